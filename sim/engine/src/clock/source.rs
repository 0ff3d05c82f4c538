//! Who says what CPUs do next.

/// What a CPU does next.
pub(super) enum Next<O> {
    /// An object of a cache. `bytes` matter for large kmalloc only.
    Alloc { cache: u32, bytes: u64 },
    /// Takes one back.
    Free { cache: u32, object: O },
    /// Nothing before then.
    Until(f64),
    /// Nothing before it is [woken](Source::got).
    Sleep,
    /// Nothing any more.
    Done,
}

/// Who says what CPUs do next.
pub(super) trait Source<O> {
    /// The CPU is free from `now` on.
    fn next(&mut self, cpu: u32, now: f64) -> Next<O>;
    /// An allocation is done at `then`: the CPU, if any, that has slept until then.
    fn got(&mut self, cpu: u32, then: f64, object: O) -> Option<u32>;
    /// Objects that are out.
    fn held(&self) -> u64;
}
