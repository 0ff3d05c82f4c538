//! Memory by the call stack that allocated it, and leaks: memory that is no longer reachable (as in Solaris'
//! `::findleaks`).
//!
//! The search for leaks is conservative. Every aligned word of the process's writable memory is a root. The roots
//! include thread stacks, large blocks and pages, but not the slabs of caches with checked frees. If a word contains an
//! address inside an object in use, that object is reachable, and the search continues with the object's words. The
//! search therefore misses a leak if any word looks like a pointer to the leaked object. An object to which only a
//! register refers is wrongly reported. No word of memory that the search reads leads to a reported object.

use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::debugged::ObjectInUse;
use crate::debug::stacks::CallStack;
use crate::debug::tracks::TrackEvent;
use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;
use std::fs;
use uslab_buddy::frame::Kind;
use uslab_buddy::{PAGE_SIZE, Pfn};

/// A group of objects of one cache that are in use and were allocated by one call stack.
///
/// ```
/// use uslab::report::leaks::Holder;
///
/// let is_leak = |holder: &Holder| holder.unreachable > 0;
/// # let _ = is_leak;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// Name of the cache.
    pub cache: String,
    /// Number of objects in use.
    pub objects: u64,
    /// Sum of the requested sizes of the holder's objects.
    pub bytes: u64,
    /// Number of the holder's objects that are unreachable.
    pub unreachable: u64,
    /// Call stack of the allocations; empty without the debug flag `U`.
    pub stack: CallStack,
}

/// Holders of objects, sorted by the number of unreachable objects, then by bytes, in descending order. `Display`
/// writes a line for each holder, followed by its call stack with one function per line.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config { slab_debug: "FU".parse()?, ..Config::default() })?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// let holders = subsystem.leaks();
/// assert_eq!((holders.0[0].objects, holders.0[0].unreachable), (1, 0)); // `root` is on the stack
/// # drop(root);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Holders(pub Vec<Holder>);

impl Holders {
    /// Number of unreachable objects of all holders.
    pub fn unreachable(&self) -> u64 {
        self.0.iter().map(|holder| holder.unreachable).sum()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache, objects, bytes, unreachable, stack } = self;
        write!(f, "{unreachable:>7} unreachable of {objects} in use, {bytes} bytes, of {cache}\n{stack}")
    }
}
impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|holder| holder.fmt(f))
    }
}

/// An object in use, with the data that the search needs.
struct Object {
    /// Address of the object with all bits inverted. The search also reads this list, which must not make its objects
    /// reachable.
    inverted_address: usize,
    asked: usize,
    usable: usize,
    cache: usize,
    stack: CallStack,
    is_reached: bool,
}

impl Object {
    fn lowest_object_address(&self) -> usize {
        !self.inverted_address
    }
}

/// State of a search for reachable objects.
struct Search {
    /// All objects in use, sorted by descending address.
    objects: Vec<Object>,
    /// Indices of objects that were reached but not searched yet.
    open: Vec<usize>,
}

impl Search {
    /// If a word contains an address inside an object, marks that object as reached.
    fn mark_object_at_word(&mut self, word: usize) {
        let index = self.objects.partition_point(|object| object.lowest_object_address() > word);
        if let Some(object) = self.objects.get_mut(index)
            && word - object.lowest_object_address() < object.usable.max(1)
            && !core::mem::replace(&mut object.is_reached, true)
        {
            self.open.push(index);
        }
    }
    /// Searches a range of memory. The search reads memory through the kernel, because another thread may unmap the
    /// range.
    fn search_memory_range(&mut self, range: Range<usize>) {
        let mut copy = [0_usize; 512];
        let mut address = range.start;
        while address < range.end {
            let bytes = (range.end - address).min(size_of_val(&copy));
            let bytes_read = read_memory(address, &mut copy, bytes);
            copy[..bytes_read / size_of::<usize>()].iter().for_each(|word| self.mark_object_at_word(*word));
            address += if bytes_read == 0 { PAGE_SIZE.min(bytes) } else { bytes_read };
        }
        // The copied words must not stay on this thread's stack, which the search may read next.
        core::hint::black_box(&mut copy).fill(0);
    }
    fn finish(&mut self) {
        while let Some(index) = self.open.pop() {
            let start = self.objects[index].lowest_object_address();
            self.search_memory_range(
                start..start + self.objects[index].usable / size_of::<usize>() * size_of::<usize>(),
            );
        }
    }
}

/// Copies up to `bytes` bytes of this process's memory, and returns the number of bytes that could be read.
#[cfg(target_os = "linux")]
fn read_memory(address: usize, copy: &mut [usize], bytes: usize) -> usize {
    let local_range =
        libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes.min(size_of_val(copy)) };
    let remote = libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(address),
        iov_len: local_range.iov_len,
    };
    // SAFETY: the call writes at most to `copy`, and fails for unmapped memory.
    let bytes_read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local_range, 1, &raw const remote, 1, 0) };
    usize::try_from(bytes_read).unwrap_or(0)
}
#[cfg(not(target_os = "linux"))]
fn read_memory(_at: usize, _copy: &mut [usize], _bytes: usize) -> usize {
    0
}

/// The kernel's table of the process's pages; `None` if the table is not usable.
struct PageMap(Option<fs::File>);

impl PageMap {
    fn open() -> Self {
        let map = Self(fs::File::open("/proc/self/pagemap").ok());
        // Emulators and sandboxes may show an empty table. This variable's page is certainly in
        // memory, so it shows if the table works.
        let (known_byte, mut found_bytes) = (0_u8, 0);
        let page = (&raw const known_byte).expose_provenance() / PAGE_SIZE * PAGE_SIZE;
        map.for_each_resident_range(page..page + PAGE_SIZE, |part| found_bytes += part.len());
        if found_bytes == PAGE_SIZE { map } else { Self(None) }
    }
    /// Calls `search` with the parts of `range` whose pages are in memory or in swap space. All other pages were never
    /// written. Pages that were never written contain no address, and reading them would map them.
    fn for_each_resident_range(&self, range: Range<usize>, mut search: impl FnMut(Range<usize>)) {
        use std::io::{Read, Seek, SeekFrom};
        const PAGEMAP_ENTRY_BYTES: usize = size_of::<u64>();
        let Some(mut file) = self.0.as_ref() else { return search(range) };
        let (mut start, mut address) = (None, range.start);
        while address < range.end {
            let mut entries = [0; 512 * PAGEMAP_ENTRY_BYTES];
            let bytes = entries
                .len()
                .min((range.end.div_ceil(PAGE_SIZE) - address / PAGE_SIZE) * PAGEMAP_ENTRY_BYTES);
            let entry = SeekFrom::Start((address / PAGE_SIZE * PAGEMAP_ENTRY_BYTES) as u64);
            let bytes_read = file.seek(entry).and_then(|_| file.read(&mut entries[..bytes])).unwrap_or(0);
            if bytes_read < PAGEMAP_ENTRY_BYTES {
                return search(start.unwrap_or(address)..range.end);
            }
            for entry in entries[..bytes_read].as_chunks::<PAGEMAP_ENTRY_BYTES>().0 {
                // Bit 63 of an entry means that the page is in memory. Bit 62 means that the page is in swap space
                // (Linux, Documentation/admin-guide/mm/pagemap.rst).
                let is_written = u64::from_ne_bytes(*entry) >> 62 != 0;
                if is_written {
                    start.get_or_insert(address);
                } else if let Some(start) = start.take() {
                    search(start..address);
                }
                address = (address / PAGE_SIZE + 1) * PAGE_SIZE;
            }
        }
        if let Some(start) = start {
            search(start..range.end);
        }
    }
}

/// Returns the ranges of the process's private writable memory. Returns `None` if the system does not list the memory,
/// or refuses to read it (as emulators and sandboxes may).
fn writable_ranges() -> Option<Vec<Range<usize>>> {
    let (known_word, mut copy) = (usize::MAX, [0]);
    if read_memory((&raw const known_word).expose_provenance(), &mut copy, size_of::<usize>())
        != size_of::<usize>()
    {
        return None;
    }
    let maps = fs::read("/proc/self/maps").ok()?;
    // File names may contain any bytes, not only UTF-8.
    let maps = String::from_utf8_lossy(&maps);
    let range = |line: &str| {
        let (addresses, fields) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        // Stacks and heaps may be executable, too.
        let is_private = fields.starts_with("rw") && fields.as_bytes().get(3) == Some(&b'p');
        is_private.then_some(address(start)?..address(end)?)
    };
    Some(maps.lines().filter_map(range).collect())
}

impl Core {
    pub(crate) fn leaks(&self) -> Holders {
        let caches: Vec<_> = self.caches.iter().collect();
        let objects_of = |(cache, numbered_cache): (usize, &std::sync::Arc<Cache>)| {
            numbered_cache.in_use(TrackEvent::Alloc, |ObjectInUse { object, asked, usable, track }| {
                let stack = track.map_or(CallStack::NONE, |track| track.stack);
                Object {
                    inverted_address: !object.addr().get(),
                    asked,
                    usable,
                    cache,
                    stack,
                    is_reached: false,
                }
            })
        };
        let mut objects: Vec<_> = caches.iter().enumerate().flat_map(objects_of).collect();
        let checked = |cache: &&std::sync::Arc<Cache>| cache.config().check_frees;
        let is_checked_owner = |owner| caches.iter().filter(checked).any(|cache| cache.owner() == owner);
        objects.sort_unstable_by_key(|object| object.inverted_address);
        let mut walk = Search { objects, open: Vec::new() };
        let pages = &self.memory.pages;
        let first = pages.address(Pfn::new(0)).addr().get();
        let end = first + pages.frames().len() as usize * PAGE_SIZE;
        let ranges = writable_ranges().unwrap_or_else(|| {
            // Objects of unknown reachability count as reachable.
            walk.objects.iter_mut().for_each(|object| object.is_reached = true);
            Vec::new()
        });
        let map = PageMap::open();
        for range in ranges {
            // Blocks of pages in use are roots, except slabs of which the search knows the objects. If the search knows
            // the objects of a slab, it searches each object only after reaching it.
            for other_part in [range.start..range.end.min(first), range.start.max(end)..range.end] {
                map.for_each_resident_range(other_part, |part| walk.search_memory_range(part));
            }
            let mut address = range.start.max(first);
            while address < range.end.min(end) {
                let frame = self.memory.frames().frame(Pfn::new(((address - first) / PAGE_SIZE) as u32));
                let is_block = frame.state().kind() == Kind::Allocated;
                let bytes = if is_block { frame.state().order().bytes() } else { PAGE_SIZE };
                if is_block && !is_checked_owner(frame.owner()) {
                    map.for_each_resident_range(address..address + bytes, |part| {
                        walk.search_memory_range(part)
                    });
                }
                address += bytes;
            }
            walk.finish();
        }
        walk.holders(&caches)
    }
}

impl Search {
    fn holders(self, caches: &[std::sync::Arc<Cache>]) -> Holders {
        let mut outer_stacks = BTreeMap::new();
        let mut holders = BTreeMap::<_, Holder>::new();
        for object in self.objects {
            let stack = *outer_stacks.entry(object.stack).or_insert_with(|| object.stack.outer());
            let holder = holders.entry((object.cache, stack)).or_insert_with(|| Holder {
                cache: caches[object.cache].name().to_owned(),
                objects: 0,
                bytes: 0,
                unreachable: 0,
                stack,
            });
            holder.objects += 1;
            holder.bytes += object.asked as u64;
            holder.unreachable += u64::from(!object.is_reached);
        }
        let mut holders: Vec<_> = holders.into_values().collect();
        holders.sort_by_key(|holder| core::cmp::Reverse((holder.unreachable, holder.bytes)));
        Holders(holders)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn walk(objects: &[(usize, usize)]) -> Search {
        let object = |&(start, usable): &(usize, usize)| Object {
            inverted_address: !start,
            asked: usable,
            usable,
            cache: 0,
            stack: CallStack::NONE,
            is_reached: false,
        };
        let mut objects: Vec<_> = objects.iter().map(object).collect();
        objects.sort_unstable_by_key(|object| object.inverted_address);
        Search { objects, open: Vec::new() }
    }
    /// Returns, for each object in ascending address order, `true` if the search reached it.
    fn reachability(walk: &Search) -> Vec<bool> {
        walk.objects.iter().rev().map(|object| object.is_reached).collect()
    }

    #[test]
    fn leak_search_accepts_pointers_to_the_inside_of_objects() {
        let objects = [(1000, 100), (1100, 0), (1108, 8), (2000, 1)];
        let reached_by =
            |word: usize| objects.map(|(start, usable)| (start..start + usable.max(1)).contains(&word));
        for word in (990..1120).chain([0, 1999, 2000, 2001, usize::MAX]) {
            let mut walk = walk(&objects);
            // Marking a word twice has the same effect as marking it once.
            walk.mark_object_at_word(word);
            walk.mark_object_at_word(word);
            assert_eq!(reachability(&walk), reached_by(word), "{word}");
            assert_eq!(
                walk.open.len(),
                reached_by(word).iter().filter(|reachability| **reachability).count(),
                "{word}"
            );
        }
    }

    /// The second of three pages is inaccessible. The search must still continue to the last word.
    #[test]
    fn leak_search_continues_past_an_unreadable_page() {
        let (no_address, bytes) = (core::ptr::null_mut(), 3 * PAGE_SIZE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the call makes a new mapping, whose second page is not used.
        let base = unsafe { libc::mmap(no_address, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let (first, words) = (base.expose_provenance(), PAGE_SIZE / size_of::<usize>());
        let places = [1, words - 1, 2 * words, 3 * words - 1];
        let objects = [1, 2, 3, 4].map(|n| (n * 1000, 8));
        // SAFETY: the address is inside the test's mapping.
        unsafe {
            { places.iter().zip(objects) }
                .for_each(|(word, (object, _))| base.cast::<usize>().add(*word).write(object));
            assert_eq!(libc::mprotect(base.add(PAGE_SIZE), PAGE_SIZE, libc::PROT_NONE), 0);
        }
        for (skipped, expected) in [(0, [true; 4]), (1, [true; 4]), (2, [false, true, true, true])] {
            let mut walk = walk(&objects);
            walk.search_memory_range(first + skipped * size_of::<usize>()..first + bytes);
            assert_eq!(reachability(&walk), expected, "{skipped}");
        }
        let mut walk = walk(&objects);
        walk.search_memory_range(first..first + bytes - size_of::<usize>());
        assert_eq!(reachability(&walk), [true, true, true, false], "the end of the object");
        // SAFETY: the test made this mapping.
        unsafe { libc::munmap(base, bytes) };
    }

    /// Regression test: the search read memory that had never been written. In a process with large address
    /// reservations, a search of unwritten memory took minutes.
    #[test]
    fn leak_search_skips_memory_that_was_never_written() {
        const HUGE_PAGE: usize = 2 << 20;
        let (no_address, bytes) = (core::ptr::null_mut(), 32 * HUGE_PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the call makes a new mapping, of which only one word is written.
        let base = unsafe {
            let base = libc::mmap(no_address, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            base.cast::<usize>().byte_add(bytes / 2).write(1000);
            base
        };
        let range = base.expose_provenance()..base.expose_provenance() + bytes;
        let map = PageMap::open();
        assert!(map.0.is_some(), "/proc/self/pagemap cannot be read");
        for range in [
            range.clone(),
            range.start + bytes / 2..range.end,
            range.start + bytes / 2..range.start + bytes / 2 + 8,
        ] {
            let (mut walk, mut searched_bytes) = (walk(&[(1000, 8)]), 0);
            map.for_each_resident_range(range.clone(), |part| {
                assert!(range.start <= part.start && part.end <= range.end, "{part:?}");
                searched_bytes += part.len();
                walk.search_memory_range(part);
            });
            assert_eq!(reachability(&walk), [true]);
            assert!(searched_bytes <= HUGE_PAGE, "{searched_bytes} bytes");
        }
        let mut searched_bytes = 0;
        map.for_each_resident_range(range.start..range.start + bytes / 4, |part| {
            searched_bytes += part.len()
        });
        assert_eq!(searched_bytes, 0, "a search must not write to unwritten pages");
        PageMap(None).for_each_resident_range(range.clone(), |part| searched_bytes += part.len());
        assert_eq!(searched_bytes, bytes, "without a table, the search must read all pages");
        // SAFETY: the test made this mapping.
        unsafe { libc::munmap(base, bytes) };
    }

    #[test]
    fn leak_search_follows_each_word_of_an_object() {
        let mut memory = vec![0_usize; 1024];
        let base = memory.as_ptr().expose_provenance();
        let address_of = |word: usize| base + word * size_of::<usize>();
        // The second object has two and a half words.
        let objects = [
            (address_of(0), 8),
            (address_of(100), 20),
            (address_of(200), 900 * 8 - 800),
            (address_of(1000), 8),
            (address_of(1010), 8),
        ];
        memory[0] = address_of(101);
        memory[101] = address_of(200);
        memory[102] = address_of(1010);
        memory[999] = address_of(1000);
        let mut walk = walk(&objects);
        walk.mark_object_at_word(address_of(0));
        walk.finish();
        assert_eq!(reachability(&walk), [true, true, true, true, false]);
        core::hint::black_box(memory);
    }

    /// Regression test: words that a search had read stayed on the stack, and made their objects reachable until they
    /// were overwritten.
    #[test]
    fn leak_search_leaves_no_object_addresses_on_the_stack() {
        let memory = vec![!0x1234_5678_9abc_usize; 2048];
        let (first, bytes) = (memory.as_ptr().addr(), size_of_val(&*memory));
        let mut stack_words = vec![0_usize; PAGE_SIZE / size_of::<usize>()];
        let stack_page = core::hint::black_box(&first as *const usize).addr() / PAGE_SIZE * PAGE_SIZE;
        core::hint::black_box(walk as fn(&[(usize, usize)]) -> Search)(&[])
            .search_memory_range(first..first + bytes);
        // Searches the page of this stack frame, and the pages of its callees' frames.
        let found_words = (0..16).map(|page| {
            let bytes_read = read_memory(stack_page - page * PAGE_SIZE, &mut stack_words, PAGE_SIZE);
            let words = &stack_words[..bytes_read / size_of::<usize>()];
            words.iter().filter(|word| **word == memory[0]).count()
        });
        let found_words: usize = found_words.sum();
        assert!(found_words < 64, "{found_words} words");
    }
}
