//! An allocator that tries pools first, and uses the system's heap for all other requests.
//!
//! An allocation is served by the pool of its size class if the slot has at most *tolerance* unused bytes and the pool
//! has room. The system's heap serves all other allocations. A free finds the pool or the heap by the address of the
//! object. The hybrid counts operations by the allocator that served them; many heap allocations show that the size
//! classes are badly chosen.
//!
//! [`boxed`](Hybrid::boxed) makes boxed objects that are dropped automatically.
//!
//! Source: Kenwright, "Fast Efficient Fixed-Size Memory Pool" (2012), which overloads `new` and `delete` to use pools
//! this way.

use super::allocator::Allocator;
use super::classes::ClassPools;
use super::error::{BadFree, Refused};
use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::System;

/// Counts operations by the allocator that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Number of allocations that a pool served.
    pub pool: u64,
    /// Number of allocations that the heap served because no class fits the layout within the tolerance.
    pub unfit: u64,
    /// Number of allocations that the heap served because the pool of the class was full.
    pub full: u64,
    /// Number of frees that a pool served.
    pub pool_frees: u64,
    /// Number of frees that the heap served.
    pub heap_frees: u64,
}

/// An allocator that uses pools, and the system's heap for all other requests. See the [module](self).
///
/// ```
/// use uslab_pool::{ClassPools, Hybrid, SizeClasses};
///
/// let hybrid = Hybrid::new(ClassPools::new(&SizeClasses::micro(), 64 << 20)?, 32);
/// let small = hybrid.boxed([1_u8; 100]).unwrap();
/// let large = hybrid.boxed([2_u8; 1000]).unwrap();
/// assert_eq!((small[99], large[999]), (1, 2));
/// drop((small, large));
/// let routes = hybrid.routes();
/// assert_eq!((routes.pool, routes.unfit, routes.pool_frees, routes.heap_frees), (1, 1, 1, 1));
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
#[derive(Debug)]
pub struct Hybrid {
    pools: RefCell<ClassPools>,
    tolerance: usize,
    routes: Cell<Routes>,
}

impl Hybrid {
    /// Makes a hybrid of `pools`, which serve an allocation if it leaves at most `tolerance` bytes of its slot unused.
    pub fn new(pools: ClassPools, tolerance: usize) -> Self {
        Self { pools: RefCell::new(pools), tolerance, routes: Cell::default() }
    }

    /// Allocates memory for `layout` from a pool or from the heap.
    ///
    /// # Errors
    /// Returns [`Refused::Memory`] if the pools and the heap have no memory.
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<u8>, Refused> {
        let mut routes = self.routes.get();
        let mut pools = self.pools.borrow_mut();
        let fitting_pools = pools
            .class(layout)
            .ok()
            .filter(|&class| pools.pools()[class].slots().stride() - layout.size() <= self.tolerance);
        let memory = fitting_pools.and_then(|class| pools.alloc_in(class, layout).ok());
        let memory = match memory {
            Some(memory) => {
                routes.pool += 1;
                memory
            }
            None => {
                let memory = System.allocate(layout, 0)?;
                *if fitting_pools.is_some() { &mut routes.full } else { &mut routes.unfit } += 1;
                memory
            }
        };
        self.routes.set(routes);
        Ok(memory)
    }
    /// Frees memory to the pool or heap from which it came.
    ///
    /// # Errors
    /// Returns an error if the address is inside a pool's slot, but not at its start.
    ///
    /// # Safety
    /// This hybrid must have allocated the memory with `layout`, and must not have freed it since. The caller must no
    /// longer use the memory.
    pub unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) -> Result<(), BadFree> {
        let mut routes = self.routes.get();
        let mut pools = self.pools.borrow_mut();
        let class_index = pools.class(layout).ok().filter(|&class| pools.pools()[class].owns(memory));
        if let Some(class) = class_index {
            // SAFETY: the slot belongs to this class and is no longer used, by this function's contract.
            unsafe { pools.free_in(class, memory, layout) }?;
            routes.pool_frees += 1;
        } else {
            // SAFETY: the memory belongs to no pool, so it belongs to the heap. The freed memory is no longer used, by
            // this function's contract.
            unsafe { System.release(memory, layout, 0) }?;
            routes.heap_frees += 1;
        }
        self.routes.set(routes);
        Ok(())
    }

    /// Moves an object into a box. Dropping the box drops the object, and frees the object's
    /// memory.
    ///
    /// # Errors
    /// If memory is short, returns the object as the error value.
    pub fn boxed<T>(&self, object: T) -> Result<HybridBox<'_, T>, T> {
        let Ok(memory) = self.alloc(Layout::new::<T>()) else { return Err(object) };
        let memory = memory.cast();
        // SAFETY: the memory was just allocated, with the size and alignment of the type.
        unsafe { memory.write(object) };
        Ok(HybridBox { object: memory, hybrid: self })
    }
    /// Returns the numbers of operations, by the allocator that served them.
    pub fn routes(&self) -> Routes {
        self.routes.get()
    }
    /// Consumes the hybrid, and returns its pools. Objects in the heap may still be in use after this call. Objects in
    /// the returned pools become invalid.
    pub fn into_pools(self) -> ClassPools {
        self.pools.into_inner()
    }
}

// SAFETY: pools and heap fulfil the contract, and addresses distinguish their memory. Pools only align the first byte
// of a slot, so other offsets are refused.
unsafe impl Allocator for Hybrid {
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
}

/// A boxed object of a [`Hybrid`].
pub struct HybridBox<'h, T> {
    object: NonNull<T>,
    hybrid: &'h Hybrid,
}

impl<T> HybridBox<'_, T> {
    /// Moves the object out of the box, and frees its memory.
    pub fn into_inner(self) -> T {
        let wrapper = ManuallyDrop::new(self);
        // SAFETY: the box owns the object, which is read for the last time.
        let object = unsafe { wrapper.object.read() };
        wrapper.give();
        object
    }
    fn give(&self) {
        // SAFETY: `boxed` allocated the memory with this layout, and neither caller uses the box
        // afterwards.
        let freed = unsafe { self.hybrid.free(self.object.cast(), Layout::new::<T>()) };
        debug_assert_eq!(freed, Ok(()));
    }
}

impl<T> Drop for HybridBox<'_, T> {
    fn drop(&mut self) {
        /// Frees the memory on drop, even if the object's destructor panics.
        struct FreeOnDrop<'b, 'h, T>(&'b HybridBox<'h, T>);
        impl<T> Drop for FreeOnDrop<'_, '_, T> {
            fn drop(&mut self) {
                self.0.give();
            }
        }
        let give = FreeOnDrop(self);
        // SAFETY: the box owns the object, and does not exist after this call.
        unsafe { give.0.object.drop_in_place() };
    }
}
impl<T> Deref for HybridBox<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the box owns the object.
        unsafe { self.object.as_ref() }
    }
}
impl<T> DerefMut for HybridBox<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the box owns the object, and the borrow is exclusive.
        unsafe { self.object.as_mut() }
    }
}
impl<T: fmt::Debug> fmt::Debug for HybridBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::classes::SizeClasses;
    use super::*;
    use std::rc::Rc;

    fn hybrid(bytes: usize, tolerance: usize) -> Hybrid {
        Hybrid::new(ClassPools::new(&SizeClasses::micro(), bytes).unwrap(), tolerance)
    }
    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    #[test]
    fn hybrid_pool_counts_pool_and_heap_allocations() {
        // A page of each class: 128 slots of 32 bytes.
        let hybrid = hybrid(4096, 8);
        let sizes = [32, 24, 23, 300, 0];
        let objects: Vec<_> = sizes.iter().map(|&size| (hybrid.alloc(layout(size)).unwrap(), size)).collect();
        assert_eq!(hybrid.routes(), Routes { pool: 2, unfit: 3, ..Routes::default() });
        let pool_objects: Vec<_> = (0..130).map(|_| hybrid.alloc(layout(32)).unwrap()).collect();
        assert_eq!(hybrid.routes(), Routes { pool: 128, unfit: 3, full: 4, ..Routes::default() });
        for (memory, size) in objects.into_iter().chain(pool_objects.into_iter().map(|memory| (memory, 32))) {
            // SAFETY: the memory was allocated above with this size, and is freed once.
            unsafe {
                memory.write_bytes(1, size);
                hybrid.free(memory, layout(size)).unwrap();
            }
        }
        let routes = hybrid.routes();
        assert_eq!((routes.pool_frees, routes.heap_frees), (128, 7));
        assert_eq!(hybrid.into_pools().waste().allocated, 0);
    }

    #[test]
    fn hybrid_pool_drops_each_object_once() {
        let (hybrid, count) = (hybrid(4096, 256), Rc::new(()));
        let small: Vec<_> = (0..200).map(|_| hybrid.boxed((count.clone(), [0_u8; 16])).unwrap()).collect();
        let large_object = hybrid.boxed((count.clone(), [0_u8; 1000])).unwrap();
        let zero_sized = hybrid.boxed(()).unwrap();
        assert_eq!(Rc::strong_count(&count), 202);
        let (inner, _) = large_object.into_inner();
        assert_eq!(Rc::strong_count(&count), 202);
        drop((small, inner, zero_sized));
        assert_eq!(Rc::strong_count(&count), 1);
        let routes = hybrid.routes();
        assert_eq!(
            (routes.pool + routes.unfit + routes.full, routes.pool_frees + routes.heap_frees),
            (202, 202)
        );
        assert!(routes.full == 200 - 128 + 1 && routes.unfit == 1, "{routes:?}");
    }

    #[test]
    fn object_whose_drop_panics_frees_its_memory() {
        #[derive(Debug)]
        struct PanickingDrop(#[allow(dead_code)] [u64; 2]);
        impl Drop for PanickingDrop {
            fn drop(&mut self) {
                panic!("no");
            }
        }
        let hybrid = hybrid(4096, 256);
        let object = hybrid.boxed(PanickingDrop([0; 2])).unwrap();
        let dropped = crate::catch_panic(|| drop(object));
        assert!(dropped.is_err());
        assert_eq!((hybrid.routes().pool, hybrid.routes().pool_frees), (1, 1));
    }
}
