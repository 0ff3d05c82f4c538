//! Sources, which generate the operations of CPUs.

/// The next action that a source requests from a CPU.
pub(super) enum Next<O> {
    /// Allocate an object of a cache. The value of `bytes` is used only for large kmalloc.
    Alloc { cache: u32, bytes: u64 },
    /// Free an object of a cache.
    Free { cache: u32, object: O },
    /// Stay idle until the given time.
    Until(f64),
    /// Stay idle until another CPU's allocation [wakes](Source::got) this CPU.
    Sleep,
    /// The CPU has no more operations.
    Done,
}

/// A source of operations for all CPUs.
pub(super) trait Source<O> {
    /// Returns the next action of a CPU; the CPU is free from the time `now` on.
    fn next(&mut self, cpu: u32, now: f64) -> Next<O>;
    /// Receives an object; its allocation ends at the time `then`. Returns the CPU that slept until this allocation, if
    /// a CPU did.
    fn got(&mut self, cpu: u32, then: f64, object: O) -> Option<u32>;
    /// Returns the number of objects in use.
    fn held(&self) -> u64;
}
