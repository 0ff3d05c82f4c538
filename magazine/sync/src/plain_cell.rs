// Backends include this file if their checker does not track plain memory.

/// The `UnsafeCell` of `core`, with the access methods of loom's cell.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Creates a cell around `value`.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }
    /// Calls `f` with shared access. In loom builds, loom checks that no thread writes the cell during the call.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    /// Calls `f` with exclusive access. In loom builds, loom checks that no other thread accesses the cell during the
    /// call.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
