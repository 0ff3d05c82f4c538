//! Type-stable caches: the pages of a slab stay until a grace period has passed.
//!
//! Type-stable caches correspond to Linux's `SLAB_TYPESAFE_BY_RCU`, and are built on `crossbeam-epoch`. A reader
//! [`pin`]s, finds an object without a lock, and reads the object. Another thread may free and even reallocate the
//! object, but while the reader is pinned, the object's memory remains a constructed object of its cache. After the
//! reader has secured the object (by a count or a lock inside it), the reader must check that it is the expected
//! object. Readers write no shared cache line.
//!
//! Only *pages* wait for a grace period; freed objects are reused immediately. A freed slab is passed to the collector.
//! The collector frees the slab to the page allocator when every reader that might have found an object of the slab has
//! exited.
//!
//! A single object of *any* cache can also wait for a grace period (see
//! [`free_deferred`](crate::KmemCache::free_deferred), Linux's `kfree_rcu`). A reader of a deferred object need not
//! check anything, but the object's memory is freed later.
//!
//! A deferred free allocates from the global allocator, because the collector keeps a list. Type-stable caches therefore cannot
//! serve a `GlobalAlloc`.

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
/// Cost: a store to the thread's own word and a fence. Keep the section short, because freed memory accumulates while
/// it lasts.
///
/// Occasionally `pin` runs closures that threads [deferred](Guard::defer). If a closure panics, the panic is contained;
/// later closures of the same thread may be lost, but no object is lost.
pub fn pin() -> Guard {
    // Each panic uses up one deferred closure, so the number of retries is finite.
    contain_panic(collector::pin).unwrap_or_else(pin)
}

#[cfg(not(any(crossbeam_loom, shuttle)))]
use crossbeam_epoch as collector;
#[cfg(shuttle)]
use grace as collector;

/// The default collector of `crossbeam-epoch` in a model, except that it runs nothing after the execution has failed.
/// Dropping the collector outside the execution would panic a second time.
#[cfg(crossbeam_loom)]
mod collector {
    use core::mem::ManuallyDrop;
    use crossbeam_epoch::{Collector, Guard, LocalHandle};

    struct CheckedDrop<T>(ManuallyDrop<T>);

    impl<T> Drop for CheckedDrop<T> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                // SAFETY: the collector is not used after this drop.
                unsafe { ManuallyDrop::drop(&mut self.0) };
            }
        }
    }
    uslab_sync::lazy_static! {
        static ref COLLECTOR: CheckedDrop<Collector> = CheckedDrop(ManuallyDrop::new(Collector::new()));
    }
    uslab_sync::thread_local! {
        static HANDLE: CheckedDrop<LocalHandle> = CheckedDrop(ManuallyDrop::new(COLLECTOR.0.register()));
    }
    pub(super) fn pin() -> Guard {
        // A thread may pin once more while it exits.
        HANDLE.try_with(|handle| handle.0.pin()).unwrap_or_else(|_| COLLECTOR.0.register().pin())
    }
}

/// Advances the collector: memory freed earlier returns to the page allocator once all readers of that time have
/// exited. A test calls this function a few times to wait for the memory that it has freed. The call never
/// blocks.
pub fn advance() {
    contain_panic(|| pin().flush());
}

/// Number of objects per batch; each batch calls the collector once.
const BATCH_OBJECTS: usize = 64;

/// A batch of objects to be freed after a grace period.
pub(crate) struct Batch {
    objects: [Option<NonNull<u8>>; BATCH_OBJECTS],
    len: usize,
}

// SAFETY: the objects have no user, and any thread may free them.
unsafe impl Send for Batch {}

impl Batch {
    const EMPTY: Self = Self { objects: [None; BATCH_OBJECTS], len: 0 };

    /// Iterates the batch's objects. Consumes the batch as a whole, to keep the iterator `Send`.
    pub(crate) fn objects(self) -> impl Iterator<Item = NonNull<u8>> {
        self.objects.into_iter().flatten()
    }
}

/// Batches of deferred frees, one per CPU. A thread that migrates to another CPU during a free may use
/// the batch of either CPU.
pub(crate) struct Deferred(Box<[ForkMutex<Batch>]>);

impl Deferred {
    pub(crate) fn new(cpus: &Cpus) -> Self {
        Self((0..cpus.count()).map(|_| ForkMutex::new(Rank::Deferred, Batch::EMPTY)).collect())
    }
    /// Adds an object to the batch of `cpu`, and returns the batch if it has become full.
    #[must_use]
    pub(crate) fn push(&self, cpu: u32, object: NonNull<u8>) -> Option<Batch> {
        let mut batch = self.0[cpu as usize % self.0.len()].lock();
        let at = batch.len;
        batch.objects[at] = Some(object);
        batch.len += 1;
        (batch.len == BATCH_OBJECTS).then(|| core::mem::replace(&mut *batch, Batch::EMPTY))
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
pub(crate) fn after_grace(release: impl FnOnce() + Send + 'static) {
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
