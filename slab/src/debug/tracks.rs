//! Tracks the last allocation and free of each object in a record outside the slab.
//!
//! ```text
//! page of the slab ── table: a word per page ──> its records, a separate mapping as long as the slab lives
//! ```
//!
//! An overflow of an object cannot reach the records, because they are outside the slab. The thread that allocates or
//! frees an object writes the object's record, and reports may read the record at any time. A report reads each word of
//! a record atomically, but two words may come from different events.

use super::stacks::CallStack;
use crate::debug::faults::{BITMAP, Faults};
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::time::Duration;
use uslab_buddy::region::{Backend, Region, Reserved};
use uslab_buddy::{PAGE_SIZE, PageAllocator, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, AtomicU64};

/// An allocation or free of an object, with its stack, thread, CPU and age.
///
/// ```
/// use uslab::debug::tracks::Track;
///
/// // A handler may show less than all of it.
/// let short = |track: &Track| format!("thread {} on CPU {}, {:?} ago", track.thread, track.cpu, track.age);
/// # let _ = short;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Track {
    /// Call stack of the event; empty if call stacks are not recorded.
    pub stack: CallStack,
    /// The kernel's id of the thread; 0 on systems without thread ids.
    pub thread: u32,
    /// CPU on which the event happened.
    pub cpu: u32,
    /// Time since the event, exact to a millisecond.
    pub age: Duration,
}

impl fmt::Display for Track {
    /// Writes `age=.. cpu=.. thread=..`, then the stack with one function per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "age={} cpu={} thread={}", self.age.as_millis(), self.cpu, self.thread)?;
        self.stack.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrackEvent {
    Alloc = 0,
    Free = 1,
}

#[derive(Debug)]
struct TrackEventWords {
    /// Time of the event in milliseconds of [`now`]; 0 if no event has happened.
    when: AtomicU64,
    stack: AtomicU32,
    thread: AtomicU32,
    cpu: AtomicU32,
}

/// Record of an object's last events. A record of zeros has no event.
#[derive(Debug)]
pub(crate) struct Record {
    events: [TrackEventWords; 2],
    /// Number of bytes that the user requested.
    size: AtomicU32,
}

impl Record {
    /// For debuggers: offset of the records in a block, size of a record, and distance from the allocation's track to
    /// the free's track. The next numbers are the offsets of time, stack, thread and CPU in a track.
    pub(crate) const LAYOUT: [usize; 7] = {
        let events = offset_of!(Self, events);
        [
            RECORDS_OFFSET,
            size_of::<Self>(),
            size_of::<TrackEventWords>(),
            events + offset_of!(TrackEventWords, when),
            events + offset_of!(TrackEventWords, stack),
            events + offset_of!(TrackEventWords, thread),
            events + offset_of!(TrackEventWords, cpu),
        ]
    };

    // Relaxed, here and below: only the thread that has the object writes the object's record, and a report accepts
    // any value.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Relaxed) as usize
    }
    pub(crate) fn set_size(&self, size: usize) {
        self.size.store(size as u32, Relaxed);
    }
    /// Records an event by this thread at the current time.
    pub(crate) fn record_event(&self, event: TrackEvent, cpu: u32) {
        let words = &self.events[event as usize];
        words.stack.store(CallStack::save().number(), Relaxed);
        words.thread.store(this_thread(), Relaxed);
        words.cpu.store(cpu, Relaxed);
        words.when.store(now(), Relaxed);
    }
    /// Returns the object's last event of the given kind, if it was recorded.
    pub(crate) fn track(&self, event: TrackEvent) -> Option<Track> {
        let words = &self.events[event as usize];
        let when = words.when.load(Relaxed);
        (when != 0).then(|| Track {
            stack: CallStack::from_number(words.stack.load(Relaxed)),
            thread: words.thread.load(Relaxed),
            cpu: words.cpu.load(Relaxed),
            age: Duration::from_millis(now().saturating_sub(when)),
        })
    }
}

/// The kernel's id of the current thread; 0 on systems without thread ids.
pub(crate) fn this_thread() -> u32 {
    #[cfg(target_os = "linux")]
    // SAFETY: the system call has no arguments.
    return unsafe { libc::gettid() } as u32;
    #[cfg(not(target_os = "linux"))]
    0
}

/// Milliseconds since a fixed point in time; 1 on systems without a clock.
fn now() -> u64 {
    #[cfg(not(target_family = "wasm"))]
    return std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_millis() as u64);
    #[cfg(target_family = "wasm")]
    1
}

/// Header of a slab's block of records; the records follow the header in the same memory.
struct Block {
    /// The mapped memory that contains this block.
    memory: Region,
}

const RECORDS_OFFSET: usize = size_of::<Block>().next_multiple_of(align_of::<Record>());

/// Table of the addresses of slabs' record blocks, with a word per page.
#[derive(Debug)]
pub(crate) struct TrackTable {
    table: Reserved,
}

impl TrackTable {
    /// Makes a table for `pages` pages; returns `None` if the system refuses address space.
    pub(crate) fn new(pages: usize, backend: Backend, faults: &Faults) -> Option<Self> {
        let table = Reserved::new(pages.checked_mul(size_of::<usize>())?, backend, faults, BITMAP)?;
        Some(Self { table })
    }
    /// Unmaps the table's words for pages that [cannot exist](PageAllocator::max_pages).
    ///
    /// # Safety
    /// No slab may be on these pages, now or later.
    pub(crate) unsafe fn cut(&self, of: &PageAllocator) {
        // SAFETY: the region has no other user. By contract, no slab needs the unmapped words.
        unsafe { of.truncate_table(&self.table, of.max_pages() * size_of::<usize>()) };
    }
    pub(crate) fn place(&self) -> usize {
        self.table.base().addr().get()
    }
    /// # Safety
    /// The table must be committed up to and including the slab's word.
    unsafe fn word(&self, slab: Pfn) -> &AtomicPtr<Block> {
        // SAFETY: by contract, the word is committed. An atomic pointer has the layout of a word,
        // and zero means null.
        unsafe { self.table.base().cast::<AtomicPtr<Block>>().add(slab.get() as usize).as_ref() }
    }

    /// Creates empty records for a new slab; returns `false` if memory is short.
    pub(crate) fn cover(&self, op: &Operation, slab: Pfn, objects: usize, faults: &Faults) -> bool {
        let bytes = RECORDS_OFFSET + objects * size_of::<Record>();
        if !self.table.commit(op, (slab.get() as usize + 1) * size_of::<usize>()) {
            return false;
        }
        // Records always use mapped memory, whatever the backend of the pages is.
        let memory = Region::committed(bytes, PAGE_SIZE, Backend::default(), faults);
        let Some(memory) = memory else { return false };
        let block = memory.base().cast::<Block>();
        // SAFETY: the memory was just mapped, is aligned to a page and larger than a block. The table is committed up
        // to the slab's word. Release: pairs with the Acquire of `record`, so that the reader finds the records mapped.
        unsafe {
            block.write(Block { memory });
            self.word(slab).store(block.as_ptr(), Release);
        }
        true
    }
    /// Frees the records of a slab.
    ///
    /// # Safety
    /// The slab must be [covered](Self::cover), and its records must no longer be used.
    pub(crate) unsafe fn free_slab_records(&self, slab: Pfn) {
        // SAFETY: by contract, the slab is covered. The region is moved out of the block before the block is unmapped.
        unsafe {
            let block = self.word(slab).swap(core::ptr::null_mut(), Acquire);
            drop(block.read().memory);
        }
    }
    /// Returns the record of an object.
    ///
    /// # Safety
    /// The slab must be [covered](Self::cover), have more than `index` objects, and exist as long as the record is
    /// used.
    pub(crate) unsafe fn record(&self, slab: Pfn, index: usize) -> &Record {
        // SAFETY: by contract, the slab is covered; records of zeros are empty. Acquire: pairs with the Release of
        // `cover`.
        unsafe {
            let block = NonNull::new_unchecked(self.word(slab).load(Acquire)).cast::<u8>();
            block.add(RECORDS_OFFSET).cast::<Record>().add(index).as_ref()
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn times_in_track_records_never_decrease() {
        let before = now();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(now() > before && before > 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn each_thread_has_a_distinct_id() {
        assert_ne!(std::thread::spawn(this_thread).join().unwrap(), this_thread());
    }

    #[test]
    fn debugger_finds_the_start_of_the_record_table() {
        let tracks = TrackTable::new(64, Backend::default(), &Faults::default()).unwrap();
        let slab = Pfn::new(0);
        assert!(tracks.cover(&Operation::new(), slab, 1, &Faults::default()));
        // SAFETY: the slab was just covered, and its records have no other user.
        unsafe {
            assert_eq!(core::ptr::from_ref(tracks.word(slab)).addr(), tracks.place());
            tracks.free_slab_records(slab);
        }
    }

    /// The test accepts commits that exceed the words in use.
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn shrunk_record_table_covers_the_remaining_pages() {
        let tracks = TrackTable::new(1 << 20, Backend::Os, &Faults::default()).unwrap();
        assert_eq!(tracks.table.reserved(), size_of::<usize>() << 20);
        let pages = PageAllocator::new(crate::shadow::pages(1, 1, 1 << 30)).unwrap();
        // SAFETY: the subsystem has no slabs.
        unsafe { tracks.cut(&pages) };
        let remaining = tracks.table.reserved();
        assert!((3 << 20..4 << 20).contains(&remaining), "{remaining} bytes left, 2 MiB for these pages");
    }

    #[test]
    fn track_records_are_freed_with_their_slab() {
        use crate::debug::flags::SlabDebug;
        use crate::{Config, Gfp, KmemCache, Subsystem};
        use std::collections::BTreeSet;
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache =
            KmemCache::builder("inode", 600).slab_debug(SlabDebug::USERS).build_in(&subsystem).unwrap();
        let objects: Vec<_> = (0..100).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        let memory = &subsystem.core().memory;
        let head = |object: &NonNull<u8>| {
            memory.frames().frame(memory.pages.pfn_of(object.as_ptr()).unwrap()).head()
        };
        let slabs: BTreeSet<_> = objects.iter().map(head).collect();
        let tags = subsystem.core().tags.lock().0.clone().unwrap();
        // SAFETY: these pages are slabs, or were slabs.
        let slabs_with_records =
            || slabs.iter().filter(|slab| unsafe { !tags.tracks.word(**slab).load(Acquire).is_null() });
        assert_eq!(slabs_with_records().count(), slabs.len());
        // SAFETY: the objects were allocated above, and are freed once.
        objects.into_iter().for_each(|object| unsafe { cache.free(object) });
        subsystem.shrink();
        assert_eq!(slabs_with_records().count(), 0);
    }

    #[test]
    fn track_records_keep_the_last_event() {
        let tracks = TrackTable::new(64, Backend::default(), &Faults::default()).unwrap();
        let (op, slab) = (Operation::new(), Pfn::new(63));
        for _ in 0..2 {
            assert!(tracks.cover(&op, slab, 500, &Faults::default()));
            // SAFETY: the slab is covered, with 500 objects.
            let records: Vec<_> = (0..500).map(|i| unsafe { tracks.record(slab, i) }).collect();
            assert!(
                records.iter().all(|record| record.size() == 0 && record.track(TrackEvent::Alloc).is_none())
            );
            records.iter().enumerate().for_each(|(i, record)| record.set_size(i));
            records[3].record_event(TrackEvent::Alloc, 7);
            assert!(records.iter().enumerate().all(|(i, record)| record.size() == i));
            let track = records[3].track(TrackEvent::Alloc).unwrap();
            assert_eq!(
                (track.cpu, track.thread, records[3].track(TrackEvent::Free)),
                (7, this_thread(), None)
            );
            assert!(track.to_string().contains("cpu=7"), "{track}");
            // SAFETY: the records are no longer used.
            unsafe { tracks.free_slab_records(slab) };
        }
        assert!(
            !tracks.cover(&op, Pfn::new(PAGE_SIZE as u32), 1, &Faults::default()),
            "the address is above the range"
        );
    }
}
