//! Forking while other threads allocate.
//!
//! The child of a multi-threaded process has only the thread that forked. A lock that another thread held
//! would stay locked in the child for ever, and the protected data might be half changed. The forking thread
//! acquires every lock before the fork, in the [lock order](crate::sync::Rank). Parent and child release the
//! locks after the fork. Another thread may also have *claimed* its CPU's region, even while the forking
//! thread holds all locks. The child of a `fork` drops claims of other threads.
//!
//! `before_fork` and the two `after_fork` methods are handlers for `pthread_atfork`, like jemalloc's `prefork`,
//! `postfork_parent` and `postfork_child`.

use crate::sync::Rank;
use crate::sync::fork::ForkLock;
use crate::sync::rank::held_for_a_fork;

/// A subsystem that a process can use across a fork, in the parent and in the child.
///
/// Without the fork handlers, a child must not use the subsystem: the child could wait for ever for a lock or a claim.
/// Objects that other threads owned or were moving at the fork are lost to the child.
///
/// # Why everything here is `unsafe`
///
/// Dropping the claim of a live thread would give one object to two threads. Locks that are never released
/// stop every other thread. No check can determine exactly if the other threads still run. A child that
/// shares its parent's memory (`vfork`, `clone(CLONE_VM)`) has another process id, although the parent's
/// threads still run. A child in a new PID namespace may have its parent's process id, although the parent's
/// threads do not run in it. Only the caller of `fork` knows if other threads still run; `fork` is therefore
/// `unsafe`.
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
    /// Calls `visit` with every lock of `rank`, always in the same order.
    ///
    /// # Safety
    /// For a rank after [`Rank::Caches`], the thread must hold the locks of all earlier ranks.
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock));

    /// Drops the claims of other threads.
    ///
    /// # Safety
    /// The caller must be the only thread, in the child of a `fork`.
    unsafe fn forget_other_threads(&self);

    /// Acquires every lock of the subsystem. `before_fork` allocates nothing. Other threads may continue on
    /// their fast paths, but wait in all other operations.
    ///
    /// # Safety
    /// After `before_fork`, the calling thread may fork. The thread then calls
    /// [`after_fork_in_parent`](Self::after_fork_in_parent) in this process, even without a fork. After a
    /// fork, the child calls [`after_fork_in_child`](Self::after_fork_in_child). Until the `after_fork` call,
    /// the thread must not use, move or drop `self`.
    ///
    /// # Panics
    /// Panics in debug builds if the thread already holds one of the locks. A second call of `before_fork`
    /// without a release waits for ever. A thread may call `before_fork` of several subsystems for one fork.
    unsafe fn before_fork(&self) {
        for rank in Rank::ALL {
            // SAFETY: the thread holds the locks of all earlier ranks, and one of the two `after_fork` calls
            // releases each lock. No thread acquires several locks of one rank in a different order.
            unsafe { self.locks(*rank, &mut |lock| lock.hold()) };
        }
        held_for_a_fork();
    }

    /// Releases the locks in the process that forked, also after a failed fork.
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
    /// The process must be a child that `fork` created with a copy of its parent's memory (not `vfork` or
    /// `clone(CLONE_VM)`), with no other thread yet. The thread must have called [`before_fork`](Self::before_fork) in
    /// the parent.
    unsafe fn after_fork_in_child(&self) {
        // SAFETY: the process is a child with a single thread, which acquired the locks before the fork, by contract.
        unsafe {
            self.forget_other_threads();
            self.after_fork_in_parent();
        }
    }
}
