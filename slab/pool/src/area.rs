//! Areas: the memory that a caller chooses for a pool.
//!
//! | area | memory |
//! |---|---|
//! | [`Borrowed`] | borrowed: an array, a `Vec`'s spare capacity, a block of another pool |
//! | [`StackArea`] | an aligned array in a local variable, lent to a pool as [`Borrowed`] |
//! | [`HeapArea`] | the global allocator's, with the requested alignment |
//! | [`MappedArea`] | the system's: pages that are committed when they are first touched |
//!
//! The name comes from Reinalter's area policies (2012), whose example has a heap area and memory on the stack.

use super::error::PoolError;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
#[cfg(feature = "std")]
use uslab_buddy::region::{Backend, Region};

/// Provides the memory of a pool.
///
/// # Safety
/// [`memory`](Self::memory) must return the same range at each call, even after the value was moved. Until the value is
/// dropped, the range must be valid for reads and writes, and no other code may use it.
pub unsafe trait Area {
    /// Returns the start of the memory and its length in bytes. The contents of the memory are unspecified.
    fn memory(&self) -> NonNull<[u8]>;
}

/// An area in borrowed memory. A value of type `Borrowed` takes 16 bytes.
///
/// ```
/// use core::alloc::Layout;
/// use core::mem::MaybeUninit;
/// use uslab_pool::{Borrowed, FixedPool, SlotLayout};
///
/// // An array on the stack, and the spare capacity of a vector.
/// let mut array = [const { MaybeUninit::uninit() }; 256];
/// let mut vec = Vec::<u8>::with_capacity(256);
/// for memory in [&mut array[..], vec.spare_capacity_mut()] {
///     let mut pool = FixedPool::new(Borrowed::from(memory), SlotLayout::new(16, 1)?)?;
///     assert_eq!(pool.capacity(), 16);
///     pool.alloc(Layout::new::<[u8; 16]>())?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Borrowed<'m> {
    memory: NonNull<[u8]>,
    // The area does not store the reference itself, because moving a reference would invalidate pointers derived
    // from it.
    owner: PhantomData<&'m mut [MaybeUninit<u8>]>,
}

// SAFETY: the area behaves like the exclusive reference from which it was made.
unsafe impl Send for Borrowed<'_> {}

// SAFETY: the memory is exclusively borrowed for `'m`, and the value does not outlive `'m`.
unsafe impl Area for Borrowed<'_> {
    fn memory(&self) -> NonNull<[u8]> {
        self.memory
    }
}

impl<'m> From<&'m mut [MaybeUninit<u8>]> for Borrowed<'m> {
    fn from(memory: &'m mut [MaybeUninit<u8>]) -> Self {
        let len = memory.len();
        let memory = NonNull::slice_from_raw_parts(NonNull::from(memory).cast(), len);
        Self { memory, owner: PhantomData }
    }
}

/// An area of `N` bytes inside the value itself, aligned to 64 bytes. Lend this area to a pool instead of moving it
/// into the pool, because a move would invalidate the pool's pointers.
///
/// ```
/// use core::alloc::Layout;
/// use uslab_pool::{FixedPool, SlotLayout, StackArea};
///
/// let mut area = StackArea::<1024>::new();
/// let mut pool = FixedPool::new(area.lend(), SlotLayout::new(32, 8)?)?;
/// assert_eq!(pool.capacity(), 32);
/// let object = pool.alloc(Layout::new::<[u64; 4]>())?;
/// # let _ = object;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StackArea<const N: usize>([MaybeUninit<u8>; N]);

impl<const N: usize> StackArea<N> {
    /// Creates the area without writing to its memory.
    #[inline]
    pub const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; N])
    }
    /// Lends the memory to a pool.
    pub fn lend(&mut self) -> Borrowed<'_> {
        Borrowed::from(&mut self.0[..])
    }
}

impl<const N: usize> Default for StackArea<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// An area in memory of the global allocator, freed on drop.
#[derive(Debug)]
pub struct HeapArea {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the area owns its memory, which any thread may free.
unsafe impl Send for HeapArea {}

// SAFETY: `new` allocated the memory, which is owned until the value is dropped, and does not move with the value.
unsafe impl Area for HeapArea {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }
}

impl HeapArea {
    /// Allocates `bytes` bytes, aligned to `align`.
    ///
    /// # Errors
    /// Returns [`PoolError::Align`] if `align` is not a power of two, [`PoolError::NoRoom`] if `bytes` is 0, and
    /// [`PoolError::Memory`] if memory is short.
    pub fn new(bytes: usize, align: usize) -> Result<Self, PoolError> {
        if !align.is_power_of_two() {
            return Err(PoolError::Align { align });
        }
        if bytes == 0 {
            return Err(PoolError::NoRoom { bytes, needed: 1 });
        }
        let memory = PoolError::Memory { bytes };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| memory)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc::alloc::alloc(layout) }).ok_or(memory)?;
        Ok(Self { start, layout })
    }
}

impl Drop for HeapArea {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `new` with this layout.
        unsafe { alloc::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// An area of memory pages from the system. The first access to a page commits it; a new page is zero. Dropping the
/// area unmaps its pages.
///
/// ```
/// use uslab_pool::{Area, MappedArea};
///
/// let area = MappedArea::new(1 << 20, 4096)?;
/// assert_eq!(area.memory().len(), 1 << 20);
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct MappedArea(Region);

#[cfg(feature = "std")]
// SAFETY: `new` commits all of the memory, which belongs to the region until it is dropped, and does not move with the
// value.
unsafe impl Area for MappedArea {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0.base(), self.0.bytes())
    }
}

#[cfg(feature = "std")]
impl MappedArea {
    /// Maps `bytes` bytes, rounded up to whole pages, aligned to `align`. Cost: one system call, or three if `align`
    /// exceeds a page.
    ///
    /// # Errors
    /// Returns [`PoolError::Align`] if `align` is not a power of two, and [`PoolError::Memory`] if the system refuses
    /// the mapping.
    pub fn new(bytes: usize, align: usize) -> Result<Self, PoolError> {
        if !align.is_power_of_two() {
            return Err(PoolError::Align { align });
        }
        Region::committed(bytes, align, Backend::default(), &uslab_buddy::Faults::default())
            .map(Self)
            .ok_or(PoolError::Memory { bytes })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn memory_area_has_the_requested_size_and_alignment() {
        let mut stack = StackArea::<4096>::new();
        let mut vec = Vec::with_capacity(4096);
        let areas: [(Box<dyn Area + '_>, usize); 4] = [
            (Box::new(HeapArea::new(4096, 512).unwrap()), 512),
            (Box::new(MappedArea::new(4096, 1 << 16).unwrap()), 1 << 16),
            (Box::new(stack.lend()), 64),
            (Box::new(Borrowed::from(vec.spare_capacity_mut())), 1),
        ];
        for (area, align) in areas {
            let memory = area.memory();
            assert_eq!((memory.len(), memory.cast::<u8>().addr().get() % align), (4096, 0));
            // SAFETY: no other code uses the area's memory.
            unsafe {
                memory.cast::<u8>().write_bytes(7, 4096);
                assert_eq!(memory.cast::<u8>().add(4095).read(), 7);
            }
        }
    }

    #[test]
    fn memory_area_that_cannot_be_allocated_is_an_error() {
        let error = PoolError::Memory { bytes: isize::MAX as usize };
        // Miri's heap aborts the program instead of refusing.
        if !cfg!(miri) {
            // `black_box` hides the allocation from the optimiser, which assumes that an unused allocation succeeds.
            let area = core::hint::black_box(HeapArea::new(isize::MAX as usize, 1));
            assert_eq!(area.err(), Some(error));
        }
        assert_eq!(MappedArea::new(isize::MAX as usize, 1).err(), Some(error));
        assert_eq!(HeapArea::new(64, 3).err(), Some(PoolError::Align { align: 3 }));
        assert_eq!(MappedArea::new(64, 3).err(), Some(PoolError::Align { align: 3 }));
        assert_eq!(HeapArea::new(0, 8).err(), Some(PoolError::NoRoom { bytes: 0, needed: 1 }));
    }
}
