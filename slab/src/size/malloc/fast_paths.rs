//! What the inlined paths of a malloc read: by size, by address, and nothing that anybody writes to while objects come and go.
//!
//! It may lie in a static, where no pointer leads to it. Until it is [published](FastPaths::publish) everything misses, by the
//! same two comparisons that find sizes without a class and addresses of others: so no path asks whether there is a malloc.
//!
//! What these paths cost is the loads and stores that they make. So a size leads to its fast path in one load, by a table of
//! 16 KiB of which a program touches the lines of its sizes.

use super::{CLASSES, MAX_CLASS, class_of, size_of_class};
use crate::cache::Object;
use crate::debug::profile::Profiler;
use crate::memory::page_classes::PageClass;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use uslab_buddy::{PAGE_SIZE, StackMemory};
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicUsize, UnsafeCell};
use uslab_magazine::{FastPath, FastPathTable};

const WORDS: usize = MAX_CLASS / 8;
/// The class of each number of words, less one: a table and no arithmetic, because sizes vary and a branch on them is
/// mispredicted.
const BY_WORDS: [u8; WORDS] = {
    let mut table = [0; WORDS];
    let mut word = 0;
    while word < WORDS {
        table[word] = class_of((word + 1) * 8) as u8;
        word += 1;
    }
    table
};

/// Bytes of the objects of each class.
const BYTES: [u32; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = size_of_class(class) as u32;
        class += 1;
    }
    table
};

/// Where the objects of a class begin in its slabs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stride {
    /// What an offset has within its slab. Slabs lie at multiples of their size.
    mask: u32,
    /// Tells multiples of the stride from other offsets, as [`Cache::begins_object`](crate::cache::Cache::begins_object).
    multiples: u32,
}

impl Stride {
    /// Bytes that a slab has at most: `offset * ceil(2^32 / stride)` modulo `2^32` tells multiples of up to 2^15 for offsets
    /// below 2^17.
    const MOST: usize = 1 << 17;

    /// Of objects that lie `stride` bytes apart in slabs of `slab` bytes, a power of two; `None` for larger slabs, whose objects
    /// are found by their frames.
    pub(super) fn new(stride: usize, slab: usize) -> Option<Self> {
        (slab <= Self::MOST)
            .then(|| Self { mask: (slab - 1) as u32, multiples: u32::MAX / stride as u32 + 1 })
    }
    /// Whether an object begins so many bytes behind the first page. Never of the default.
    #[inline(always)]
    fn begins_object(self, offset: usize) -> bool {
        (offset as u32 & self.mask).wrapping_mul(self.multiples) < self.multiples
    }
}

/// What is published.
#[derive(Debug)]
pub(super) struct Known {
    /// By page; see [`PageClasses`](crate::memory::page_classes::PageClasses).
    pub(super) page_classes: NonNull<PageClass>,
    /// The caches' inlined paths of frees; closed where objects are checked.
    pub(super) frees: FastPathTable<Object, StackMemory, CLASSES>,
    /// What serves allocations while a profile counts them, and that profile.
    pub(super) counted: FastPathTable<Object, StackMemory, CLASSES>,
    pub(super) profiler: NonNull<Profiler>,
    /// By what is known of a page: none first, then the classes.
    pub(super) strides: [Stride; CLASSES + 1],
}

/// The same, as the paths find it.
#[derive(Debug)]
struct Tables {
    known: Known,
    /// Those of allocations, by words, less one.
    by_words: FastPathTable<Object, StackMemory, WORDS>,
}

/// See the [module](self).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct FastPaths {
    /// How many entries of the table may be used: all, or none yet.
    words: AtomicUsize,
    /// How many bytes the pages have, 0 as long as they are not known, and where they begin.
    bytes: AtomicUsize,
    base: AtomicUsize,
    tables: UnsafeCell<MaybeUninit<Tables>>,
}

// SAFETY: addresses of what any thread may use; written once, before anybody reads them.
unsafe impl Send for FastPaths {}
// SAFETY: as above.
unsafe impl Sync for FastPaths {}

impl FastPaths {
    /// Of no malloc yet.
    pub(crate) const fn new() -> Self {
        Self {
            words: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            tables: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
    /// Opens them, to `bytes` bytes of pages from `base`.
    ///
    /// # Safety
    /// Called once. What is known lives as long as anybody comes here. Both are paths of the same layers.
    pub(super) unsafe fn publish(
        &self,
        base: NonNull<u8>,
        bytes: usize,
        allocs: &FastPathTable<Object, StackMemory, CLASSES>,
        known: Known,
    ) {
        let by_words = allocs.arranged(&BY_WORDS);
        // SAFETY: nobody reads it yet, and only this call writes it.
        self.tables.with_mut(|p| unsafe { (*p).write(Tables { known, by_words }) });
        // Relaxed: what comes of it while there are no bytes is of no importance.
        self.base.store(base.addr().get(), Relaxed);
        // Release: pair with the Acquire in `front_for` and `offset`.
        self.words.store(WORDS, Release);
        self.bytes.store(bytes, Release);
    }
    /// There are fewer pages now.
    pub(super) fn cut(&self, bytes: usize) {
        // Relaxed: what was published stays so. (`min`: where nothing was, there are none.)
        self.bytes.store(bytes.min(self.bytes.load(Relaxed)), Relaxed);
    }
    /// # Safety
    /// It was published: one of the two numbers was not 0.
    #[inline(always)]
    unsafe fn tables(&self) -> &Tables {
        // SAFETY: by contract; not written again.
        self.tables.with(|p| unsafe { (*p).assume_init_ref() })
    }

    /// The entry that serves a size at an alignment; `None` for nothing, and beyond [`MAX_CLASS`].
    #[inline(always)]
    fn word_for(&self, size: usize, align: usize) -> Option<usize> {
        // The last byte of a size that is rounded up to the alignment; that of nothing is far away.
        let word = (size.wrapping_sub(1) | (align - 1)) / 8;
        // Acquire: pairs with the Release in `publish`.
        (word < self.words.load(Acquire)).then_some(word)
    }
    /// The fast path of allocations there.
    #[inline(always)]
    fn fast_path_for(&self, size: usize, align: usize) -> Option<FastPath<Object, StackMemory>> {
        // SAFETY: it is published, and has so many entries.
        self.word_for(size, align).map(|word| unsafe { self.tables().by_words.fast_path(word) })
    }
    /// An object for a size at an alignment; `None` if this did nothing.
    ///
    /// # Safety
    /// The malloc lives.
    #[inline(always)]
    pub(crate) unsafe fn alloc(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// The same while a profile runs that sees allocations only: `None`, too, if none does, or this one is a sample.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[inline(always)]
    pub(crate) unsafe fn alloc_counted(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let word = self.word_for(size, align)?;
        // SAFETY: it is published, and has so many entries.
        let Tables { known, by_words } = unsafe { self.tables() };
        // SAFETY: the malloc lives, and with it the profiler.
        let profiler = unsafe { known.profiler.as_ref() };
        if !profiler.counts_only() {
            return None;
        }
        // SAFETY: as of the tables.
        let fast_path = unsafe { by_words.fast_path_as(&known.counted, word) };
        let bytes = BYTES[usize::from(BY_WORDS[word])];
        // SAFETY: passed on.
        profiler
            .countdown(fast_path.cpu())
            .spend(bytes.into(), || unsafe { fast_path.alloc_fast() })
            .map(Object::memory)
    }
    /// Takes memory back that was allocated so; `false` if this did nothing, as with memory that lies in no page.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc); and nobody uses the memory any more.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free_sized(&self, memory: *mut u8, size: usize, align: usize) -> bool {
        ask_for(memory);
        match (self.word_for(size, align), self.offset(memory)) {
            // SAFETY: passed on; it is published, the same size leads to the same layer, and null lies in no page.
            (Some(word), Some(_)) => unsafe {
                let Tables { known, by_words } = self.tables();
                let fast_path = by_words.fast_path_as(&known.frees, word);
                fast_path.free_fast(Object::new(NonNull::new_unchecked(memory)))
            },
            _ => false,
        }
    }
    /// The same by the address alone, or null.
    ///
    /// # Safety
    /// As [`free_sized`](Self::free_sized).
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn free(&self, memory: *mut u8) -> bool {
        ask_for(memory);
        // SAFETY: passed on.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: passed on; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_fast(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// As [`alloc`](Self::alloc), where no restartable sequence serves.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub(crate) unsafe fn alloc_claimed(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        self.fast_path_for(size, align)
            .and_then(|fast_path| unsafe { fast_path.alloc_claimed() })
            .map(Object::memory)
    }
    /// As [`free`](Self::free), where no restartable sequence serves.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline]
    #[must_use]
    pub(crate) unsafe fn free_claimed(&self, memory: *mut u8) -> bool {
        // SAFETY: passed on.
        match unsafe { self.fast_path_of(memory) } {
            // SAFETY: passed on; null has no fast path.
            Some(fast_path) => unsafe { fast_path.free_claimed(Object::new(NonNull::new_unchecked(memory))) },
            None => false,
        }
    }

    /// How far behind the first page memory lies, if it is in one.
    #[inline(always)]
    fn offset(&self, memory: *mut u8) -> Option<usize> {
        // Acquire: pairs with the Release in `publish`.
        let bytes = self.bytes.load(Acquire);
        // Relaxed: see there.
        let offset = memory.addr().wrapping_sub(self.base.load(Relaxed));
        (offset < bytes).then_some(offset)
    }
    /// Whether memory lies in a page, as objects and blocks do.
    #[inline(always)]
    pub(crate) fn hold(&self, memory: NonNull<u8>) -> bool {
        self.offset(memory.as_ptr()).is_some()
    }

    /// The class of the object that begins at `memory`; `None` if that is no object of a size class, or nobody said so.
    ///
    /// # Safety
    /// What lies there is the caller's.
    #[inline(always)]
    pub(super) unsafe fn class_at(&self, memory: *mut u8) -> Option<usize> {
        let offset = self.offset(memory)?;
        // SAFETY: it is published; there is a class for each page, one of `CLASSES`; the page's memory is the caller's.
        unsafe {
            let known = &self.tables().known;
            let class = known.page_classes.add(offset / PAGE_SIZE).as_ref().get();
            let begins = known.strides.get_unchecked(class).begins_object(offset);
            begins.then(|| class.wrapping_sub(1))
        }
    }
    /// Its fast path.
    ///
    /// # Safety
    /// As [`class_at`](Self::class_at).
    #[inline(always)]
    unsafe fn fast_path_of(&self, memory: *mut u8) -> Option<FastPath<Object, StackMemory>> {
        // SAFETY: passed on; what has a class was published.
        unsafe { self.class_at(memory).map(|class| self.tables().known.frees.fast_path(class)) }
    }
    /// Its bytes.
    ///
    /// # Safety
    /// As [`class_at`](Self::class_at).
    #[inline]
    pub(super) unsafe fn size_of(&self, memory: NonNull<u8>) -> Option<usize> {
        // SAFETY: passed on.
        unsafe { self.class_at(memory.as_ptr()) }.map(size_of_class)
    }
}

/// Asks for the line that an object begins in, to write to it: the next allocation hands the object out, and whoever gets it
/// writes. Its last user may have left it long ago; a store that misses holds up all stores behind it, this does not.
#[inline(always)]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(unused_variables))]
fn ask_for(memory: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, of any address: it reads and writes nothing, and does not fault.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) memory, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(test)]
mod tests {
    use super::super::size_of_class;
    use super::*;

    #[test]
    fn every_size_of_the_table_has_its_class_at_every_alignment() {
        for size in 1..=MAX_CLASS {
            for align in (0..=10).map(|shift| 1 << shift) {
                let word = ((size - 1) | (align - 1)) / 8;
                let class = class_of(size.next_multiple_of(align));
                assert_eq!(
                    BY_WORDS.get(word).copied().map(usize::from),
                    Some(class).filter(|_| word < WORDS)
                );
            }
        }
    }

    #[test]
    fn multiples_of_the_stride_and_nothing_else_begin_an_object() {
        for stride in (0..CLASSES).map(size_of_class) {
            for slab in [Stride::MOST, stride.next_power_of_two().max(PAGE_SIZE)] {
                let objects = Stride::new(stride, slab).unwrap();
                for offset in 0..2 * Stride::MOST {
                    assert_eq!(
                        objects.begins_object(offset),
                        (offset % slab).is_multiple_of(stride),
                        "{offset}"
                    );
                }
            }
        }
        assert!((0..Stride::MOST).all(|offset| !Stride::default().begins_object(offset)));
    }

    #[test]
    fn the_size_of_an_object_is_what_its_frame_says_and_nothing_else_has_one() {
        use core::alloc::Layout;
        use uslab_buddy::Gfp;
        let subsystem = crate::Subsystem::new(crate::Config::default()).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        let alloc = |size| malloc.alloc(Layout::from_size_align(size, 8).unwrap(), Gfp::KERNEL).unwrap();
        // SAFETY: what lies there is the test's.
        let found = |memory: NonNull<u8>| unsafe { malloc.fast.size_of(memory) };
        for size in (0..CLASSES).map(size_of_class) {
            let memory = alloc(size);
            assert_eq!(found(memory).ok_or(()), malloc.core.size_of(memory).map_err(|_| ()));
            assert_eq!(found(memory), Some(size));
            // SAFETY: within the object.
            assert!((1..size).step_by(7).all(|inside| found(unsafe { memory.add(inside) }).is_none()));
            // SAFETY: allocated above, freed once.
            unsafe { malloc.free(memory) };
        }
        for size in [MAX_CLASS + 1, 1 << 20, (4 << 20) + 1] {
            let memory = alloc(size);
            assert_eq!(found(memory), None, "{size} bytes are no object");
            // SAFETY: as above.
            unsafe { malloc.free(memory) };
        }
        assert_eq!(found(crate::size::large::ZERO_SIZE), None);
    }

    #[test]
    fn before_it_is_published_everything_misses() {
        let fast = FastPaths::new();
        let memory = NonNull::from(&fast).cast();
        assert!((0..MAX_CLASS).all(|size| fast.fast_path_for(size, 8).is_none()));
        // SAFETY: nothing is read.
        let found = |memory| unsafe { fast.fast_path_of(memory) }.is_some();
        assert!(!found(memory.as_ptr()) && !found(core::ptr::null_mut()) && !fast.hold(memory));
    }
    /// Slabs of another order than usual begin at other multiples: an address inside an object would pass for one.
    #[test]
    fn no_address_inside_an_object_is_taken_for_one_whatever_the_order_of_its_slab() {
        let pages = uslab_buddy::PageConfig::default_for(uslab_magazine::Cpus::os()).limit(4 << 20);
        let subsystem = crate::Subsystem::new(crate::Config::new(pages)).unwrap();
        let malloc = super::super::Malloc::new(&subsystem).unwrap();
        // Of free pages no two are beside each other; a slab of the usual order has two.
        let singles: Vec<_> = core::iter::from_fn(|| {
            subsystem.pages().alloc_block(uslab_buddy::Order::ZERO, uslab_buddy::Gfp::KERNEL, None).ok()
        })
        .collect();
        let _every_other: Vec<_> =
            singles.into_iter().filter(|page| page.pfn().get().is_multiple_of(2)).collect();
        let layout = core::alloc::Layout::from_size_align(640, 8).unwrap();
        let held: Vec<_> =
            core::iter::from_fn(|| malloc.alloc(layout, uslab_buddy::Gfp::KERNEL).ok()).collect();
        assert!(malloc.caches().iter().any(|cache| cache.info().order_fallbacks > 0));
        for memory in held {
            // SAFETY: the object is ours.
            let found = |at: usize| unsafe { malloc.fast.fast_path_of(memory.as_ptr().add(at)) }.is_some();
            assert!((8..640).step_by(8).all(|at| !found(at)), "{memory:?}");
            // SAFETY: allocated above, freed once.
            unsafe { malloc.free(memory) };
        }
        subsystem.shrink();
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }
}
