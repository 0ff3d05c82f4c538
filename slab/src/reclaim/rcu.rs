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
//! An object of *any* cache can wait as well, [by itself](crate::KmemCache::free_deferred) (Linux's `kfree_rcu`): then a
//! reader need not check anything, and what it pays for is memory.
//!
//! Releasing memory this way allocates from the global allocator (the collector keeps a list), so type-stable caches
//! do not belong under a `GlobalAlloc`.

#[cfg(shuttle)]
mod grace;

use core::ptr::NonNull;
#[cfg(not(shuttle))]
pub use crossbeam_epoch::Guard;
#[cfg(shuttle)]
pub use grace::Guard;
#[cfg(all(test, shuttle))]
pub(crate) use grace::is_idle;
use uslab_magazine::Cpus;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Rank, contain_panic};

/// Enters a reader: no slab of a type-stable cache that is given up from now on goes before the guard is dropped.
///
/// Cost: a store to the thread's own word and a fence. Keep it short: what is given up meanwhile piles up.
///
/// Now and then it runs closures that threads [deferred](Guard::defer). A panic of one is contained; closures that the same thread
/// deferred right behind it may be lost, but no object.
pub fn pin() -> Guard {
    // Each panic is of another closure.
    contain_panic(collector::pin).unwrap_or_else(pin)
}

#[cfg(not(any(crossbeam_loom, shuttle)))]
use crossbeam_epoch as collector;
#[cfg(shuttle)]
use grace as collector;

/// The default collector of `crossbeam-epoch` in a model, but that nothing of it runs once the execution has failed: to drop
/// it then, outside of the execution, would be a second panic.
#[cfg(crossbeam_loom)]
mod collector {
    use core::mem::ManuallyDrop;
    use crossbeam_epoch::{Collector, Guard, LocalHandle};

    struct Explored<T>(ManuallyDrop<T>);

    impl<T> Drop for Explored<T> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                // SAFETY: it goes out of use here.
                unsafe { ManuallyDrop::drop(&mut self.0) };
            }
        }
    }
    uslab_sync::lazy_static! {
        static ref COLLECTOR: Explored<Collector> = Explored(ManuallyDrop::new(Collector::new()));
    }
    uslab_sync::thread_local! {
        static HANDLE: Explored<LocalHandle> = Explored(ManuallyDrop::new(COLLECTOR.0.register()));
    }
    pub(super) fn pin() -> Guard {
        // A thread may pin once more as it ends.
        HANDLE.try_with(|handle| handle.0.pin()).unwrap_or_else(|_| COLLECTOR.0.register().pin())
    }
}

/// Helps the collector on: what was given up before goes back to the page allocator as soon as no reader is left that
/// was there at the time. Call it a few times to wait for one's own garbage in tests; it never blocks.
pub fn advance() {
    contain_panic(|| pin().flush());
}

/// Objects of a batch: one visit to the collector for so many.
const BATCH: usize = 64;

/// Objects that are free as soon as a grace period has passed, on their way to the collector.
pub(crate) struct Batch {
    objects: [Option<NonNull<u8>>; BATCH],
    len: usize,
}

// SAFETY: the objects are nobody's any more, and may be freed by any thread.
unsafe impl Send for Batch {}

impl Batch {
    const EMPTY: Self = Self { objects: [None; BATCH], len: 0 };

    /// The objects. It takes the batch as a whole, with its right to be sent.
    pub(crate) fn objects(self) -> impl Iterator<Item = NonNull<u8>> {
        self.objects.into_iter().flatten()
    }
}

/// One batch a CPU: who moves meanwhile shares one.
pub(crate) struct Deferred(Box<[ForkMutex<Batch>]>);

impl Deferred {
    pub(crate) fn new(cpus: &Cpus) -> Self {
        Self((0..cpus.count()).map(|_| ForkMutex::new(Rank::Deferred, Batch::EMPTY)).collect())
    }
    /// One more object on the batch of `cpu`; the batch, if it is full now.
    #[must_use]
    pub(crate) fn push(&self, cpu: u32, object: NonNull<u8>) -> Option<Batch> {
        let mut batch = self.0[cpu as usize % self.0.len()].lock();
        let at = batch.len;
        batch.objects[at] = Some(object);
        batch.len += 1;
        (batch.len == BATCH).then(|| core::mem::replace(&mut *batch, Batch::EMPTY))
    }
    /// All batches that are not empty.
    pub(crate) fn take(&self) -> impl Iterator<Item = Batch> {
        let batches = self.0.iter().map(|batch| core::mem::replace(&mut *batch.lock(), Batch::EMPTY));
        batches.filter(|batch| batch.len > 0)
    }
    /// What a fork waits for.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &ForkMutex<Batch>> {
        self.0.iter()
    }
}

/// Runs `release` when all readers of now have gone.
pub(crate) fn after_grace(release: impl FnOnce() + Send + 'static) {
    let guard = pin();
    if cfg!(not(any(loom, shuttle))) {
        // A panic of a closure that the thread deferred before loses what comes behind it.
        contain_panic(|| guard.flush());
    }
    guard.defer(release);
    // Else it would wait in this thread's own list, for more of them.
    contain_panic(|| guard.flush());
}
