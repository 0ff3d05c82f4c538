//! Atomics of `std` in all builds, even in loom and shuttle builds. In loom and shuttle builds, these atomics are used
//! in `static`s that outlive an execution. Loom and shuttle do not track accesses to the atomics of this module.

use crate::Ordering;
use std::sync::atomic as a;

// Wraps `std`'s atomics, so that a lint can reject atomics that bypass `uslab_sync`.
macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident $(<$t:ident>)?, $value:ty;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$t>)? (a::$name $(<$t>)?);
        impl $(<$t>)? $name $(<$t>)? {
            /// Creates an atomic with the given value.
            #[inline(always)]
            pub const fn new(value: $value) -> Self {
                Self(a::$name::new(value))
            }
            /// Loads the value, like the method of `std`'s atomic.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            /// Stores `value`, like the method of `std`'s atomic.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order)
            }
            /// Stores `value` and returns the previous value, like the method of `std`'s atomic.
            #[inline(always)]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            /// Compares and exchanges the value, like the method of `std`'s atomic.
            #[inline(always)]
            pub fn compare_exchange(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, success, failure)
            }
            /// Compares and exchanges the value, like the method of `std`'s atomic. The exchange may fail spuriously.
            #[inline(always)]
            pub fn compare_exchange_weak(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }
    )* };
}
atomics! {
    /// Wraps `std`'s `AtomicBool`.
    AtomicBool, bool;
    /// Wraps `std`'s `AtomicU8`.
    AtomicU8, u8;
    /// Wraps `std`'s `AtomicU16`.
    AtomicU16, u16;
    /// Wraps `std`'s `AtomicU32`.
    AtomicU32, u32;
    /// Wraps `std`'s `AtomicU64`.
    AtomicU64, u64;
    /// Wraps `std`'s `AtomicUsize`.
    AtomicUsize, usize;
    /// Wraps `std`'s `AtomicI32`.
    AtomicI32, i32;
    /// Wraps `std`'s `AtomicI64`.
    AtomicI64, i64;
    /// Wraps `std`'s `AtomicIsize`.
    AtomicIsize, isize;
    /// Wraps `std`'s `AtomicPtr`.
    AtomicPtr<T>, *mut T;
}

macro_rules! fetches {
    ($($operation:ident)*) => { fetches! { [$($operation)*] AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64,
        AtomicUsize usize, AtomicI32 i32, AtomicI64 i64, AtomicIsize isize } };
    ($operations:tt $($name:ident $value:ty),*) => { $( fetches! { @ $name $value, $operations } )* };
    (@ $name:ident $value:ty, [$($operation:ident)*]) => {
        impl $name { $(
            /// Changes the value, like the method of `std`'s atomic.
            #[inline(always)]
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                self.0.$operation(value, order)
            }
        )* }
    };
}
fetches! { fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min }
