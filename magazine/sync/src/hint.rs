// Backends include this file if they have no checker, or a checker that does not track the uses of atomics.

/// A number that influences decisions, for example a limit or a batch size. A reader may get an old value. All accesses
/// are `Relaxed`, and a lost update must be harmless. In loom models, a read may return any value that the memory model
/// permits. A read of a [`Counter`](crate::Counter) always returns the newest value.
#[derive(Debug)]
pub struct Hint(AtomicU64);

impl Hint {
    /// Creates a hint with the given value.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// Returns the hint's current value, or an older one.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the hint to a new value.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
