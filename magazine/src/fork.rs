//! Support for a `fork` while other threads allocate.
//!
//! After a `fork`, only the thread that forked exists in the child. A lock that another thread held would stay locked
//! in the child for ever, and the data that it protects could be inconsistent. The forking thread therefore acquires
//! every lock before the fork, in the [lock order](crate::sync::Rank). After the fork, the parent and the child each
//! release the locks. In addition, another thread may have *claimed* its CPU's region, despite the locks. The child
//! therefore drops the claims of other threads.
//!
//! The methods `before_fork`, `after_fork_in_parent` and `after_fork_in_child` are handlers for `pthread_atfork`, like
//! jemalloc's `prefork`, `postfork_parent` and `postfork_child`.

use crate::sync::Rank;
use crate::sync::fork::ForkLock;
use crate::sync::rank::mark_locks_held_for_fork;

/// A subsystem that both the parent and the child can use after a `fork`.
///
/// If the handlers do not run, the child must not use the subsystem, because it could wait for ever for a lock or a
/// claim. The child loses all objects that other threads owned or were moving at the fork.
///
/// # Why everything here is `unsafe`
///
/// If a claim is dropped while its thread still runs, two threads may get the same object. If the locks are never
/// released, every other thread waits for ever. No run-time check can reliably detect if the other threads still run. A
/// child that shares its parent's memory (`vfork`, `clone(CLONE_VM)`) has a new process id, although the parent's
/// threads still run in this memory. A child in a new PID namespace may have the same process id as its parent,
/// although the parent's threads do not exist in it. The methods are therefore `unsafe`, and their caller guarantees
/// that no other thread runs.
///
/// ```compile_fail,E0133
/// # use uslab_magazine::Fork;
/// fn claims_of_live_threads_cannot_be_dropped_by_safe_code<L: Fork>(layer: &L) {
///     layer.after_fork_in_child();
/// }
/// ```
/// ```compile_fail,E0133
/// # use uslab_magazine::Fork;
/// fn locks_cannot_be_held_for_ever_by_safe_code<L: Fork>(layer: &L) {
///     layer.before_fork();
/// }
/// ```
pub trait Fork {
    /// Calls `visit` with every lock of rank `rank`, in the same order each time.
    ///
    /// # Safety
    /// If `rank` comes after [`Rank::Caches`], the thread must hold the locks of all earlier ranks.
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock));

    /// Drops the claims of threads that do not exist in the child.
    ///
    /// # Safety
    /// The calling thread must be the only thread of the process, which must be the child of a `fork`.
    unsafe fn forget_other_threads(&self);

    /// Acquires all locks of the subsystem, in preparation for a `fork`. `before_fork` allocates nothing. Other threads
    /// may continue on their fast paths, but all their other operations wait.
    ///
    /// # Safety
    /// When `before_fork` returns, the calling thread may fork. After `before_fork`, the thread must call
    /// [`after_fork_in_parent`](Self::after_fork_in_parent) in this process, even if it did not fork. After a fork, the
    /// child must call [`after_fork_in_child`](Self::after_fork_in_child). Before it has called one of the two
    /// `after_fork` functions, the thread must not use, move or drop `self`.
    ///
    /// # Panics
    /// Panics in debug builds if the thread already holds one of the locks. In release builds, a second call of
    /// `before_fork` before the locks are released waits for ever. Before one fork, a thread may call `before_fork` of
    /// several subsystems.
    unsafe fn before_fork(&self) {
        for rank in Rank::ALL {
            // SAFETY: the thread holds the locks of all earlier ranks, and one of the two `after_fork` calls
            // releases each lock. No thread acquires several locks of one rank in a different order.
            unsafe { self.locks(*rank, &mut |lock| lock.hold()) };
        }
        mark_locks_held_for_fork();
    }

    /// Releases the locks in the parent process. The function must also be called if the fork failed.
    ///
    /// # Safety
    /// The thread must have called [`before_fork`](Self::before_fork).
    unsafe fn after_fork_in_parent(&self) {
        for rank in Rank::ALL.iter().rev() {
            // SAFETY: this thread acquired the locks, and still holds the locks of earlier ranks.
            unsafe { self.locks(*rank, &mut |lock| lock.release()) };
        }
    }

    /// Drops the claims of threads that do not exist in the child, and releases the locks.
    ///
    /// # Safety
    /// The process must be a child of `fork` that has a copy of its parent's memory (not `vfork` or `clone(CLONE_VM)`),
    /// and must not have started another thread. The thread must have called [`before_fork`](Self::before_fork) in the
    /// parent.
    unsafe fn after_fork_in_child(&self) {
        // SAFETY: the process is a child with a single thread, which acquired the locks before the fork, by contract.
        unsafe {
            self.forget_other_threads();
            self.after_fork_in_parent();
        }
    }
}
