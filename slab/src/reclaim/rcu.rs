//! Type-stable caches: the pages of a slab outlive a grace period.
//!
//! This is Linux's `SLAB_TYPESAFE_BY_RCU` on `crossbeam-epoch`. A reader [`pin`]s, finds an object without a lock and reads it.
//! The object may have been freed and even reallocated meanwhile, but as long as the reader is pinned, its memory stays an
//! object of the same cache, constructed. So after the reader has secured the object (by a count or a lock inside it), it must
//! check that it is the expected one. Readers write no shared cache line.
//!
//! Only the *pages* wait: freed objects are reused immediately. A freed slab is passed to the collector, and freed to the page
//! allocator when every reader that might have found it has exited.
//!
//! A single object of *any* cache can wait, too: see [`free_deferred`](crate::KmemCache::free_deferred) (Linux's `kfree_rcu`).
//! Then a reader need not check anything, at the price of memory.
//!
//! Deferring allocates from the global allocator (the collector keeps a list), so type-stable caches do not belong under a
//! `GlobalAlloc`.

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

/// Enters a read-side section: slabs of type-stable caches that are freed from now on stay until the guard is dropped.
///
/// Cost: a store to the thread's own word and a fence. Keep it short: freed memory accumulates meanwhile.
///
/// Occasionally it runs closures that threads [deferred](Guard::defer). A panic of one is contained; closures that the same
/// thread deferred right behind it may be lost, but no object.
pub fn pin() -> Guard {
    // Each panic is of another closure.
    contain_panic(collector::pin).unwrap_or_else(pin)
}

#[cfg(not(any(crossbeam_loom, shuttle)))]
use crossbeam_epoch as collector;
#[cfg(shuttle)]
use grace as collector;

/// The default collector of `crossbeam-epoch` in a model, except that nothing of it runs after the execution has failed:
/// dropping it outside of the execution would be a second panic.
#[cfg(crossbeam_loom)]
mod collector {
    use core::mem::ManuallyDrop;
    use crossbeam_epoch::{Collector, Guard, LocalHandle};

    struct Explored<T>(ManuallyDrop<T>);

    impl<T> Drop for Explored<T> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                // SAFETY: it is not used after this.
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
        // An exiting thread may pin once more.
        HANDLE.try_with(|handle| handle.0.pin()).unwrap_or_else(|_| COLLECTOR.0.register().pin())
    }
}

/// Advances the collector: memory that was freed before is returned to the page allocator once all readers of that time have
/// exited. Call it a few times in tests to wait for your own garbage; it never blocks.
pub fn advance() {
    contain_panic(|| pin().flush());
}

/// Objects per batch, for which the collector is visited once.
const BATCH: usize = 64;

/// Objects to be freed after a grace period, on their way to the collector.
pub(crate) struct Batch {
    objects: [Option<NonNull<u8>>; BATCH],
    len: usize,
}

// SAFETY: the objects have no user, and may be freed by any thread.
unsafe impl Send for Batch {}

impl Batch {
    const EMPTY: Self = Self { objects: [None; BATCH], len: 0 };

    /// The objects. It takes the batch as a whole, to keep it `Send`.
    pub(crate) fn objects(self) -> impl Iterator<Item = NonNull<u8>> {
        self.objects.into_iter().flatten()
    }
}

/// One batch per CPU; a thread that migrates in between shares another CPU's.
pub(crate) struct Deferred(Box<[ForkMutex<Batch>]>);

impl Deferred {
    pub(crate) fn new(cpus: &Cpus) -> Self {
        Self((0..cpus.count()).map(|_| ForkMutex::new(Rank::Deferred, Batch::EMPTY)).collect())
    }
    /// Adds an object to the batch of `cpu`; returns the batch if it is full now.
    #[must_use]
    pub(crate) fn push(&self, cpu: u32, object: NonNull<u8>) -> Option<Batch> {
        let mut batch = self.0[cpu as usize % self.0.len()].lock();
        let at = batch.len;
        batch.objects[at] = Some(object);
        batch.len += 1;
        (batch.len == BATCH).then(|| core::mem::replace(&mut *batch, Batch::EMPTY))
    }
    /// Takes all batches that are not empty.
    pub(crate) fn take(&self) -> impl Iterator<Item = Batch> {
        let batches = self.0.iter().map(|batch| core::mem::replace(&mut *batch.lock(), Batch::EMPTY));
        batches.filter(|batch| batch.len > 0)
    }
    /// The locks that a fork takes.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &ForkMutex<Batch>> {
        self.0.iter()
    }
}

/// Runs `release` after all current readers have exited.
pub(crate) fn after_grace(release: impl FnOnce() + Send + 'static) {
    let guard = pin();
    if cfg!(not(any(loom, shuttle))) {
        // A panic of an earlier closure of the thread loses the ones behind it.
        contain_panic(|| guard.flush());
    }
    guard.defer(release);
    // Otherwise it would wait in this thread's own list for more closures.
    contain_panic(|| guard.flush());
}
