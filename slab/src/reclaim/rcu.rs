//! Type-stable caches: the pages of a slab stay until a grace period has passed.
//!
//! Type-stable caches correspond to Linux's `SLAB_TYPESAFE_BY_RCU`. Type-stable caches use the crate `crossbeam-epoch`.
//! A reader [`pin`]s, finds an object without a lock, and reads the object. Another thread may free and even reallocate
//! the object. While the reader is pinned, the object's memory remains a constructed object of its cache. The reader
//! secures the object, for instance by a count or a lock inside it. The reader must then check that the object is the
//! expected one. Readers write no shared cache line.
//!
//! Only *pages* wait for a grace period. Freed objects are reused immediately. A freed slab is passed to the collector.
//! The collector frees the slab to the page allocator after every reader that might have found one of its objects has
//! exited.
//!
//! A single object of *any* cache can also wait for a grace period (see
//! [`free_deferred`](crate::KmemCache::free_deferred), Linux's `kfree_rcu`). A reader of an object with a deferred free
//! need not check anything, but the object's memory is freed later.
//!
//! A deferred free allocates from the global allocator, for the collector's list of deferred frees. Type-stable caches
//! therefore cannot serve a `GlobalAlloc`.

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

/// Enters a read-side section. Slabs of type-stable caches that are freed from now on stay until the guard is dropped.
///
/// Cost: a store to a word of the thread, and a fence. Keep the section short, because freed memory accumulates until
/// its end.
///
/// Occasionally `pin` runs closures that threads [deferred](Guard::defer). If a closure panics, the panic is contained.
/// Later closures of the same thread may be lost, but no object is lost.
pub fn pin() -> Guard {
    // Each panic uses up one deferred closure, so the number of retries is finite.
    contain_panic(collector::pin).unwrap_or_else(pin)
}

#[cfg(not(any(crossbeam_loom, shuttle)))]
use crossbeam_epoch as collector;
#[cfg(shuttle)]
use grace as collector;

/// The default collector of `crossbeam-epoch` in a model. After a failed execution, the collector does nothing.
/// Dropping the collector outside the execution would panic a second time.
#[cfg(crossbeam_loom)]
mod collector {
    use core::mem::ManuallyDrop;
    use crossbeam_epoch::{Collector, Guard, LocalHandle};

    struct DropCheckedOnThreadExit<T>(ManuallyDrop<T>);

    impl<T> Drop for DropCheckedOnThreadExit<T> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                // SAFETY: the collector is not used after this drop.
                unsafe { ManuallyDrop::drop(&mut self.0) };
            }
        }
    }
    uslab_sync::lazy_static! {
        static ref COLLECTOR: DropCheckedOnThreadExit<Collector> = DropCheckedOnThreadExit(ManuallyDrop::new(Collector::new()));
    }
    uslab_sync::thread_local! {
        static HANDLE: DropCheckedOnThreadExit<LocalHandle> = DropCheckedOnThreadExit(ManuallyDrop::new(COLLECTOR.0.register()));
    }
    pub(super) fn pin() -> Guard {
        // A thread may pin once more while it exits.
        HANDLE.try_with(|handle| handle.0.pin()).unwrap_or_else(|_| COLLECTOR.0.register().pin())
    }
}

/// Advances the collector. Memory that was freed earlier returns to the page allocator once all readers of that time
/// have exited. A test calls `advance` a few times to wait for the memory that it has freed. The call never blocks.
pub fn advance() {
    contain_panic(|| pin().flush());
}

/// Number of objects per batch. Each batch calls the collector once.
const OBJECTS_PER_BATCH: usize = 64;

/// A batch of objects to be freed after a grace period.
pub(crate) struct Batch {
    objects: [Option<NonNull<u8>>; OBJECTS_PER_BATCH],
    len: usize,
}

// SAFETY: the objects have no user, and any thread may free them.
unsafe impl Send for Batch {}

impl Batch {
    const EMPTY: Self = Self { objects: [None; OBJECTS_PER_BATCH], len: 0 };

    /// Iterates over the batch's objects. The method consumes the batch as a whole, so that the iterator is `Send`.
    pub(crate) fn objects(self) -> impl Iterator<Item = NonNull<u8>> {
        self.objects.into_iter().flatten()
    }
}

/// Batches of deferred frees, one per CPU. A thread that migrates to another CPU during a free may use
/// the batch of either CPU.
pub(crate) struct DeferredFrees(Box<[ForkMutex<Batch>]>);

impl DeferredFrees {
    pub(crate) fn new(cpus: &Cpus) -> Self {
        Self((0..cpus.count()).map(|_| ForkMutex::new(Rank::Deferred, Batch::EMPTY)).collect())
    }
    /// Adds an object to the batch of CPU `cpu`. Returns the batch if it has become full.
    #[must_use]
    pub(crate) fn push(&self, cpu: u32, object: NonNull<u8>) -> Option<Batch> {
        let mut batch = self.0[cpu as usize % self.0.len()].lock();
        let at = batch.len;
        batch.objects[at] = Some(object);
        batch.len += 1;
        (batch.len == OBJECTS_PER_BATCH).then(|| core::mem::replace(&mut *batch, Batch::EMPTY))
    }
    pub(crate) fn take(&self) -> impl Iterator<Item = Batch> {
        let batches = self.0.iter().map(|batch| core::mem::replace(&mut *batch.lock(), Batch::EMPTY));
        batches.filter(|batch| batch.len > 0)
    }
    pub(crate) fn batches(&self) -> impl Iterator<Item = &ForkMutex<Batch>> {
        self.0.iter()
    }
}

/// Runs `release` after all current readers have exited.
pub(crate) fn run_after_grace_period(release: impl FnOnce() + Send + 'static) {
    let guard = pin();
    if cfg!(not(any(loom, shuttle))) {
        // The guard is flushed first, because a panic of the thread's earlier closure loses later closures.
        contain_panic(|| guard.flush());
    }
    guard.defer(release);
    // Without a flush, the closure would stay in the thread's own list until more closures are
    // added.
    contain_panic(|| guard.flush());
}
