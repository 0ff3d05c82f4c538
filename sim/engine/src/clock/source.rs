//! Sources of the CPUs' operations.

/// The next action of a CPU.
pub(super) enum Next<O> {
    /// Allocates an object of a cache. `bytes` matter only for large kmalloc.
    Alloc { cache: u32, bytes: u64 },
    /// Frees an object.
    Free { cache: u32, object: O },
    /// Does nothing before this time.
    Until(f64),
    /// Does nothing until it is [woken](Source::got).
    Sleep,
    /// Has finished.
    Done,
}

/// A source of the CPUs' operations.
pub(super) trait Source<O> {
    /// The next action of a CPU that is free from `now` on.
    fn next(&mut self, cpu: u32, now: f64) -> Next<O>;
    /// An allocation is done at `then`. Returns the CPU, if any, that has slept until then.
    fn got(&mut self, cpu: u32, then: f64, object: O) -> Option<u32>;
    /// The number of objects in use.
    fn held(&self) -> u64;
}
