// Included by the backends whose checker need not be told where an atomic is used.

/// A number that decisions hang on although it may be out of date: a limit, how much to fetch. `Relaxed`; a lost update costs
/// nothing. Checkers see it, and explore what follows from each value that a thread may read, unlike a [`Counter`](crate::Counter)'s.
#[derive(Debug)]
pub struct Hint(AtomicU64);

impl Hint {
    /// Starts at `value`.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// The number now, or an older one.
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
