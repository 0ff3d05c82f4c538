//! Sources of operations for simulated CPUs.

/// The next action that a source requests from a CPU.
pub(super) enum Next<O> {
    /// Allocate an object of a cache. The field `bytes` is used only for allocations of large kmalloc.
    Alloc { cache: u32, bytes: u64 },
    /// The CPU returns an object to its cache.
    Free { cache: u32, object: O },
    /// The CPU stays idle until the given time.
    IdleUntil(f64),
    /// The CPU stays idle until an allocation of another CPU [wakes](Source::allocated) it.
    SleepUntilWoken,
    /// The source has no more operations for the CPU.
    Done,
}

/// A source of operations for all CPUs.
pub(super) trait Source<O> {
    /// Returns the next action of a CPU that becomes free at the time `now`.
    fn next(&mut self, cpu: u32, now: f64) -> Next<O>;
    /// Receives an object whose allocation ends at the time `end_ns`. Returns the CPU that slept until this
    /// allocation, if any.
    fn allocated(&mut self, cpu: u32, end_ns: f64, object: O) -> Option<u32>;
    /// Returns the number of objects in use.
    fn objects_in_use(&self) -> u64;
}
