//! Areas: the memory of a pool, of the caller's choice.
//!
//! | area | memory |
//! |---|---|
//! | [`Borrowed`] | borrowed: an array, a `Vec`'s spare capacity, a block of another pool |
//! | [`StackArea`] | an aligned array in a local variable, lent to a pool as [`Borrowed`] |
//! | [`HeapArea`] | the global allocator's, with the requested alignment |
//! | [`MappedArea`] | the system's: pages that are committed when they are first touched |
//!
//! The names are those of Reinalter's area policies (2012); his example has a heap area and memory on the stack.

use super::error::PoolError;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
#[cfg(feature = "std")]
use uslab_buddy::region::{Backend, Region};

/// Memory for a pool.
///
/// # Safety
/// [`memory`](Self::memory) is the same at each call, wherever the value is moved; it is valid for reads and writes, and not
/// used otherwise, until the value is dropped.
pub unsafe trait Area {
    /// Start and length in bytes. The contents are unspecified.
    fn memory(&self) -> NonNull<[u8]>;
}

/// Borrowed memory. The value has 16 bytes.
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
    // Not the reference itself: moving that would invalidate pointers derived from it.
    owner: PhantomData<&'m mut [MaybeUninit<u8>]>,
}

// SAFETY: like the exclusive reference that it was made of.
unsafe impl Send for Borrowed<'_> {}

// SAFETY: exclusively borrowed for `'m`, which the value does not outlive.
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

/// `N` bytes inside the value, at a multiple of 64. Moving it would invalidate pointers, so it is lent, not moved in.
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
    /// Makes the area, without writing to it.
    #[inline]
    pub const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; N])
    }
    /// Lends the memory.
    pub fn lend(&mut self) -> Borrowed<'_> {
        Borrowed::from(&mut self.0[..])
    }
}

impl<const N: usize> Default for StackArea<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory of the global allocator, freed on drop.
#[derive(Debug)]
pub struct HeapArea {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, which any thread may free.
unsafe impl Send for HeapArea {}

// SAFETY: allocated in `new`, owned until it is dropped, and not moved with the value.
unsafe impl Area for HeapArea {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.layout.size())
    }
}

impl HeapArea {
    /// Allocates `bytes` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`PoolError::Memory`]; [`PoolError::Align`] if `align` is not a power of two; [`PoolError::NoRoom`] if `bytes` is 0.
    pub fn new(bytes: usize, align: usize) -> Result<Self, PoolError> {
        if !align.is_power_of_two() {
            return Err(PoolError::Align { align });
        }
        if bytes == 0 {
            return Err(PoolError::NoRoom { bytes, needed: 1 });
        }
        let memory = PoolError::Memory { bytes };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| memory)?;
        // SAFETY: not of size zero.
        let start = NonNull::new(unsafe { alloc::alloc::alloc(layout) }).ok_or(memory)?;
        Ok(Self { start, layout })
    }
}

impl Drop for HeapArea {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { alloc::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Pages of the system, committed when they are first touched, and zero until then. Unmapped on drop.
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
// SAFETY: committed as a whole in `new`, owned by the region until it is dropped, and not moved with the value.
unsafe impl Area for MappedArea {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0.base(), self.0.bytes())
    }
}

#[cfg(feature = "std")]
impl MappedArea {
    /// Maps `bytes` bytes, rounded up to pages, at a multiple of `align`. Cost: a system call, or three if `align` is above a
    /// page.
    ///
    /// # Errors
    /// [`PoolError::Memory`]; [`PoolError::Align`] if `align` is not a power of two.
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
    fn area_has_its_requested_size_and_alignment() {
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
            // SAFETY: the area's memory, which is not used otherwise.
            unsafe {
                memory.cast::<u8>().write_bytes(7, 4096);
                assert_eq!(memory.cast::<u8>().add(4095).read(), 7);
            }
        }
    }

    #[test]
    fn unavailable_memory_is_an_error() {
        let refused = PoolError::Memory { bytes: isize::MAX as usize };
        // Miri's heap aborts the program instead.
        if !cfg!(miri) {
            // Opaque to the optimiser, which assumes that an unused allocation succeeds.
            let area = core::hint::black_box(HeapArea::new(isize::MAX as usize, 1));
            assert_eq!(area.err(), Some(refused));
        }
        assert_eq!(MappedArea::new(isize::MAX as usize, 1).err(), Some(refused));
        assert_eq!(HeapArea::new(64, 3).err(), Some(PoolError::Align { align: 3 }));
        assert_eq!(MappedArea::new(64, 3).err(), Some(PoolError::Align { align: 3 }));
        assert_eq!(HeapArea::new(0, 8).err(), Some(PoolError::NoRoom { bytes: 0, needed: 1 }));
    }
}
