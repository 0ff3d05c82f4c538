//! A pool for each size class, for blocks of any small size in one thread.
//!
//! If one pool serves several sizes, each slot wastes the difference to the largest size. If each size class has its
//! own pool, a slot wastes at most the step between two classes. [`SizeClasses`] defines the sizes of the classes. Each
//! size class is served by a [`ReservedPool`]. The address of an object shows which class it belongs to, and each pool
//! grows as needed. Reinalter announces pools of this kind as a micro allocator, and Kenwright proposes them for
//! objects of varying sizes. `uslab::Malloc` extends the idea to all threads and sizes.
//!
//! Sources: Reinalter, "Memory allocation strategies: a pool allocator" (2012) and its comments; Kenwright, "Fast
//! Efficient Fixed-Size Memory Pool" (2012).

use super::allocator::Allocator;
use super::error::{BadFree, PoolError, Refused};
use super::reserved::ReservedPool;
use super::slot::{LINK_BYTES, SlotLayout};
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;

/// Sizes of the classes: multiples of a word in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeClasses(Vec<usize>);

impl SizeClasses {
    /// Size classes of 8 to 512 bytes in steps of 8, for example for a hash table of small entries.
    pub fn words() -> Self {
        Self((1..=64).map(|k| k * 8).collect())
    }
    /// Size classes of 32 to 256 bytes in steps of 32, for example for strings and nodes.
    pub fn micro() -> Self {
        Self((1..=8).map(|k| k * 32).collect())
    }
    /// Makes size classes from any sizes, in any order.
    ///
    /// # Errors
    /// Returns [`PoolError::Class`] if `sizes` is empty, or if a size is 0 or not a multiple of a word. Returns
    /// [`PoolError::Many`] if there are more than 65,535 sizes.
    pub fn new(sizes: impl IntoIterator<Item = usize>) -> Result<Self, PoolError> {
        let max = usize::from(u16::MAX);
        let mut sizes: Vec<_> = sizes.into_iter().take(max + 1).collect();
        if sizes.len() > max {
            return Err(PoolError::Many { blocks: sizes.len(), max });
        }
        sizes.sort_unstable();
        sizes.dedup();
        let is_invalid = |size: &&usize| **size == 0 || !size.is_multiple_of(LINK_BYTES);
        match sizes.iter().find(is_invalid) {
            Some(&size) => Err(PoolError::Class { size }),
            None if sizes.is_empty() => Err(PoolError::Class { size: 0 }),
            None => Ok(Self(sizes)),
        }
    }
    /// Returns the object size of each class, in bytes.
    pub fn sizes(&self) -> &[usize] {
        &self.0
    }
}

/// Counts the requested and the allocated bytes of the objects in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    /// Number of bytes that callers requested.
    pub requested: u64,
    /// Number of bytes of the slots that the objects occupy.
    pub allocated: u64,
}

/// Maximum size in bytes whose class is found in a table. The classes of larger sizes are found by a search.
const TABLE: usize = 4096;

/// Pools of different size classes: one pool per class. See the [module](self).
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{ClassPools, SizeClasses, Waste};
///
/// let mut pools = ClassPools::new(&SizeClasses::micro(), 64 << 20)?;
/// let layout = Layout::from_size_align(80, 16)?;
/// let object = pools.alloc(layout)?;
/// assert_eq!(pools.waste(), Waste { requested: 80, allocated: 96 });
/// // SAFETY: allocated above with this layout, freed once.
/// unsafe { pools.free(object, layout) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ClassPools {
    pools: Vec<ReservedPool>,
    /// Element `i` is the smallest class that has room for the sizes `8 * i - 7 ..= 8 * i`, up to [`TABLE`] bytes.
    by_words: Vec<u16>,
    requested: u64,
}

impl ClassPools {
    /// Makes the pools; each pool can grow to `bytes` bytes. Cost: one system call for each pool.
    ///
    /// # Errors
    /// Returns the errors of [`ReservedPool::new`].
    pub fn new(classes: &SizeClasses, bytes: usize) -> Result<Self, PoolError> {
        let sizes = classes.sizes();
        // A class guarantees an alignment of the largest power of two that divides its size, but at most a
        // page.
        let align = |size: usize| (1 << size.trailing_zeros()).min(PAGE_SIZE);
        let pools = sizes.iter().map(|&size| ReservedPool::new(SlotLayout::new(size, align(size))?, bytes));
        let pools = pools.collect::<Result<_, _>>()?;
        let words = sizes.last().map_or(0, |last| *last.min(&TABLE) / LINK_BYTES);
        let class = |word| sizes.partition_point(|&size| size < word * LINK_BYTES) as u16;
        Ok(Self { pools, by_words: (0..=words).map(class).collect(), requested: 0 })
    }

    /// Returns the smallest class that has room for `layout` and guarantees its alignment.
    ///
    /// Cost: one load. Alignments above a word and sizes above [`TABLE`] cost a few extra loads.
    ///
    /// # Errors
    /// Returns an error if no class is large enough, or if no such class guarantees the alignment.
    pub(super) fn class(&self, layout: Layout) -> Result<usize, Refused> {
        let (requested, align) = (layout.size(), layout.align());
        let max = |field: fn(SlotLayout) -> usize| {
            self.pools.iter().map(|pool| field(pool.slots())).max().unwrap_or(0)
        };
        let first = match self.by_words.get(requested.div_ceil(LINK_BYTES)) {
            Some(first) => usize::from(*first),
            None => self.pools.partition_point(|pool| pool.slots().size() < requested),
        };
        if first == self.pools.len() {
            return Err(Refused::Size { requested, max: max(|slots| slots.size()) });
        }
        (first..self.pools.len())
            .find(|&class| self.pools[class].slots().align() >= align)
            .ok_or_else(|| Refused::Align { requested: align, max: max(|slots| slots.align()) })
    }
    /// Allocates memory from the smallest class that has room for `layout`.
    ///
    /// # Errors
    /// Returns an error if no class fits `layout`, or if the pool of the class is full.
    pub fn alloc(&mut self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let class = self.class(layout)?;
        self.alloc_in(class, layout)
    }
    #[inline]
    pub(super) fn alloc_in(&mut self, class: usize, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let memory = self.pools[class].alloc(layout)?;
        self.requested += layout.size() as u64;
        Ok(memory)
    }
    /// Frees memory.
    ///
    /// # Errors
    /// Returns an error if the address is not a slot of the layout's class.
    ///
    /// # Safety
    /// If the address is a slot, these pools must have allocated it with `layout`. The slot must not have been freed
    /// since, and the caller must no longer use it.
    pub unsafe fn free(&mut self, memory: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        let class = self.class(layout).map_err(|_| BadFree::Foreign { address: memory.addr().get() })?;
        // SAFETY: the slot belongs to the class and is no longer used, by this function's contract.
        unsafe { self.free_in(class, memory, layout) }
    }
    /// # Safety
    /// The conditions of [`free`](Self::free) must hold, and `class` must be the class of the layout.
    #[inline]
    pub(super) unsafe fn free_in(
        &mut self,
        class: usize,
        memory: NonNull<u8>,
        layout: Layout,
    ) -> Result<(), BadFree> {
        // SAFETY: the slot belongs to the class and is no longer used, by this function's contract.
        unsafe { self.pools[class].free(memory) }?;
        self.requested -= layout.size() as u64;
        Ok(())
    }
    /// Returns the number of bytes that the slot of an object of `layout` has.
    ///
    /// # Errors
    /// Returns an error if no class has room for `layout`.
    pub fn slot_size(&self, layout: Layout) -> Result<usize, Refused> {
        self.class(layout).map(|class| self.pools[class].slots().stride())
    }
    /// Returns the requested and the allocated bytes of the objects in use. The difference between allocated and
    /// requested bytes is internal waste.
    pub fn waste(&self) -> Waste {
        let live_bytes = |pool: &ReservedPool| pool.usage().live() * pool.slots().stride() as u64;
        Waste { requested: self.requested, allocated: self.pools.iter().map(live_bytes).sum() }
    }
    /// Returns the pools in ascending order of size.
    pub fn pools(&self) -> &[ReservedPool] {
        &self.pools
    }
}

// SAFETY: a slot of the class has the layout's size and alignment. Slots align their first byte, and the pools refuse
// other offsets.
unsafe impl Allocator for ClassPools {
    fn allocate(&mut self, layout: Layout, offset: usize) -> Result<NonNull<u8>, Refused> {
        if !offset.is_multiple_of(layout.align()) {
            return Err(Refused::Offset { requested: offset, aligned: 0 });
        }
        self.alloc(layout)
    }
    unsafe fn release(&mut self, memory: NonNull<u8>, layout: Layout, _: usize) -> Result<(), BadFree> {
        // SAFETY: the memory has this layout and is no longer used, by this function's contract.
        unsafe { self.free(memory, layout) }
    }
    /// The resize succeeds only if both layouts belong to the same class.
    unsafe fn resize(&mut self, _: NonNull<u8>, old: Layout, new: Layout, _: usize) -> bool {
        let is_same_class = self.class(new).is_ok_and(|class| self.class(old) == Ok(class));
        if is_same_class {
            self.requested = self.requested - old.size() as u64 + new.size() as u64;
        }
        is_same_class
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }
    fn pools(classes: &SizeClasses) -> ClassPools {
        ClassPools::new(classes, 128 << 10).unwrap()
    }

    #[test]
    fn default_size_classes_match_the_article() {
        assert_eq!(SizeClasses::words().sizes().len(), 64);
        assert_eq!((SizeClasses::words().sizes()[0], SizeClasses::words().sizes()[63]), (8, 512));
        assert_eq!(SizeClasses::micro().sizes(), [32, 64, 96, 128, 160, 192, 224, 256]);
        assert_eq!(SizeClasses::new([64, 8, 64]).unwrap().sizes(), [8, 64]);
        assert_eq!(SizeClasses::new([]), Err(PoolError::Class { size: 0 }));
        assert_eq!(SizeClasses::new([0, 8]), Err(PoolError::Class { size: 0 }));
        assert_eq!(SizeClasses::new([8, 20]), Err(PoolError::Class { size: 20 }));
    }

    #[test]
    fn each_size_gets_the_smallest_size_class_that_holds_it() {
        for classes in [SizeClasses::words(), SizeClasses::micro(), SizeClasses::new([8, 48, 4096]).unwrap()]
        {
            let (pools, max) = (pools(&classes), *classes.sizes().last().unwrap());
            for size in 0..=max {
                let smallest = classes.sizes().iter().copied().find(|&class| class >= size);
                assert_eq!(pools.slot_size(layout(size, 1)).ok(), smallest, "{size} of {classes:?}");
            }
            let error = Refused::Size { requested: max + 1, max };
            assert_eq!(pools.slot_size(layout(max + 1, 1)), Err(error));
        }
    }

    #[test]
    fn aligned_request_gets_a_size_class_with_its_alignment() {
        let pools = pools(&SizeClasses::new([32, 96, 128, 4096]).unwrap());
        let size = |size, align| pools.slot_size(layout(size, align));
        assert_eq!([size(65, 8), size(65, 32), size(65, 64)], [Ok(96), Ok(96), Ok(128)]);
        assert_eq!(size(1, 256), Ok(4096));
        assert_eq!(size(1, 8192), Err(Refused::Align { requested: 8192, max: 4096 }));
    }

    /// For an object of 80 bytes, a slot of 96 bytes wastes 16 bytes. A class of 80 bytes would waste no byte for this
    /// object.
    #[test]
    fn size_class_waste_counts_only_objects_in_use() {
        let mut coarse_pools = pools(&SizeClasses::micro());
        let mut word_pools = pools(&SizeClasses::words());
        let object = layout(80, 8);
        let objects: Vec<_> = (0..10)
            .map(|_| (coarse_pools.alloc(object).unwrap(), word_pools.alloc(object).unwrap()))
            .collect();
        assert_eq!(coarse_pools.waste(), Waste { requested: 800, allocated: 960 });
        assert_eq!(word_pools.waste(), Waste { requested: 800, allocated: 800 });
        for (a, b) in objects {
            // SAFETY: the memory was allocated above and is freed once.
            unsafe {
                coarse_pools.free(a, object).unwrap();
                word_pools.free(b, object).unwrap();
            }
        }
        assert_eq!((coarse_pools.waste(), word_pools.waste()), (Waste::default(), Waste::default()));
    }

    #[test]
    fn free_with_a_wrong_layout_or_address_is_refused() {
        let mut pools = pools(&SizeClasses::micro());
        let object = pools.alloc(layout(30, 8)).unwrap();
        let address = object.addr().get();
        // SAFETY: invalid frees are refused, and then the memory is freed once.
        unsafe {
            assert_eq!(pools.free(object, layout(40, 8)), Err(BadFree::Foreign { address }));
            assert_eq!(pools.free(object, layout(4000, 8)), Err(BadFree::Foreign { address }));
            let interior_address = object.add(1);
            assert_eq!(
                pools.free(interior_address, layout(30, 8)),
                Err(BadFree::Interior { address: address + 1, slot: 0 })
            );
            assert_eq!(pools.free(object, layout(30, 8)), Ok(()));
        }
    }

    #[test]
    fn too_many_size_classes_are_refused() {
        let words =
            |max| SizeClasses::new((1..).map(|k| k * 8).take(max)).map(|classes| classes.sizes().len());
        assert_eq!(words(65_535), Ok(65_535));
        let error = PoolError::Many { blocks: 65_536, max: 65_535 };
        assert_eq!((words(65_536), words(usize::MAX)), (Err(error), Err(error)));
        assert_eq!(error.to_string(), "65536 blocks or sizes are too many: at most 65535");
    }
}
