//! Type-stable caches: the pages of a slab outlive a grace period.
//!
//! Linux's `SLAB_TYPESAFE_BY_RCU` on `crossbeam-epoch`. A reader [`pin`]s, finds an object without a lock and looks at
//! it: the object may have been freed and even allocated again meanwhile, but as long as the reader is pinned its memory
//! stays an object of the same cache, constructed. The reader must therefore check after it has got hold of the object
//! (by a count or a lock inside of it) that it is still the one it looked for. Readers write no shared cache line.
//!
//! Only the *pages* wait: freed objects are reused at once. A slab that is given up goes to the collector, and comes to
//! the page allocator when every reader who might have seen it has gone.
//!
//! Releasing memory this way allocates from the global allocator (the collector keeps a list), so type-stable caches
//! do not belong under a `GlobalAlloc`.

pub use crossbeam_epoch::Guard;

/// Enters a reader: no slab of a type-stable cache that is given up from now on goes before the guard is dropped.
///
/// Cost: a store to the thread's own word and a fence. Keep it short: what is given up meanwhile piles up.
pub fn pin() -> Guard {
    crossbeam_epoch::pin()
}

/// Helps the collector on: what was given up before goes back to the page allocator as soon as no reader is left that
/// was there at the time. Call it a few times to wait for one's own garbage in tests; it never blocks.
pub fn advance() {
    pin().flush();
}

/// Runs `release` when all readers of now have gone.
pub(crate) fn after_grace(release: impl FnOnce() + Send + 'static) {
    pin().defer(release);
}
