// Included by the backends that have no checker, or one that needs no notice of an atomic's use.

/// A number that decisions depend on although it may be stale: a limit, or how much to fetch. `Relaxed`; a
/// lost update is harmless. Unlike a [`Counter`](crate::Counter), a checker sees it and explores each value
/// that a thread may read.
#[derive(Debug)]
pub struct Hint(AtomicU64);

impl Hint {
    /// Creates a hint with this value.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// The current value, or an older one.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Overwrites the number.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
