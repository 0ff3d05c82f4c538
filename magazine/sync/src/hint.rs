// Backends include this file if they have no checker, or a checker that does not track the uses of atomics.

/// A number that guides decisions, for example a limit or a batch size; a reader may get an old value. All
/// accesses are `Relaxed`, because a lost update is harmless. A read under a checker may return any value
/// that the memory model allows; a read of a [`Counter`](crate::Counter) returns only the newest value.
#[derive(Debug)]
pub struct Hint(AtomicU64);

impl Hint {
    /// Creates a hint with the given value.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// Returns the current value, or an older value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Overwrites the hint's value.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
