//! An allocator that several collections of one thread share.

use crate::allocator::Allocator;
use core::alloc::Layout;
use core::cell::RefCell;
use core::ptr::NonNull;

/// An [`Allocator`] that several collections share by reference. `&Local<A>` implements the allocator trait of
/// `allocator-api2`, with a feature for each version (`allocator-api2-02`, `allocator-api2-04`).
///
/// Like the allocator that it wraps, a `Local` serves only one thread. A collection grows in place as far as its block
/// allows: into the rest of its slot, or into the free block after it.
///
/// ```
/// # #[cfg(feature = "allocator-api2-02")] {
/// use allocator_api2_02::vec::Vec;
/// use uslab_pool::{Local, StackArea, Tlsf};
///
/// let mut memory = StackArea::<4096>::new();
/// let heap = Local::new(Tlsf::new(memory.lend())?);
/// let mut squares = Vec::new_in(&heap);
/// squares.extend((0..100_u64).map(|n| n * n));
/// assert_eq!(squares[99], 9801);
/// # }
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
///
/// Cost: each call reads and writes a flag twice, in addition to the allocator's cost.
#[derive(Debug)]
pub struct Local<A>(RefCell<A>);

impl<A: Allocator> Local<A> {
    /// Makes a `Local` that shares `allocator` between collections.
    pub const fn new(allocator: A) -> Self {
        Self(RefCell::new(allocator))
    }
    /// Returns the allocator, which is accessible if no collection borrows it.
    pub fn get_mut(&mut self) -> &mut A {
        self.0.get_mut()
    }
    /// Consumes the wrapper, and returns the allocator.
    pub fn into_inner(self) -> A {
        self.0.into_inner()
    }

    pub(crate) fn obtain(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.0.borrow_mut().allocate(layout, 0).ok()
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Allocator::release`].
    pub(crate) unsafe fn give(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the memory has this layout and is no longer used, by this function's contract.
        let freed = unsafe { self.0.borrow_mut().release(memory, layout, 0) };
        debug_assert_eq!(freed, Ok(()), "the block must belong to this allocator");
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Allocator::resize`].
    pub(crate) unsafe fn fit(&self, memory: NonNull<u8>, old: Layout, new: Layout) -> bool {
        // SAFETY: the memory has the old layout, by this function's contract.
        unsafe { self.0.borrow_mut().resize(memory, old, new, 0) }
    }
}
