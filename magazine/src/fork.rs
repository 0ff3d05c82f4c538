//! Forking while other threads allocate.
//!
//! The child of a process with threads has only the thread that forked. A lock that another thread held would
//! stay locked there for ever, and the protected data may be half changed. So every lock is acquired before
//! the fork, in the [lock order](crate::sync::Rank), and released on both sides after it. A thread may also
//! have *claimed* the region of its CPU, and no lock waits for that claim; the child drops such claims.
//!
//! These three steps are `pthread_atfork`'s, which jemalloc calls `prefork`, `postfork_parent` and
//! `postfork_child`.

use crate::sync::Rank;
use crate::sync::fork::ForkLock;
use crate::sync::rank::held_for_a_fork;

/// A subsystem that a process can use across a fork, in the parent and in the child.
///
/// Without these calls a child must not use it: it could wait for ever for a lock or a claim of a thread that
/// it does not have. Objects that other threads owned or were moving at the fork are lost to the child.
///
/// # Why everything here is `unsafe`
///
/// Dropping the claims of live threads gives one object to two of them, and locks that are never released
/// stop every other thread. No check would be exact: a child that shares its parent's memory (`vfork`,
/// `clone(CLONE_VM)`) has another process id although the threads live, and a child in a new PID namespace
/// may have the same id although they do not. Only the caller of `fork`, which is itself `unsafe`, knows.
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
    /// Calls `visit` with every lock of that rank, always in the same order.
    ///
    /// # Safety
    /// For a rank beyond [`Rank::Caches`] the thread holds the locks of all earlier ranks.
    #[doc(hidden)]
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock));

    /// Drops the claims of other threads.
    ///
    /// # Safety
    /// The process is the child of a `fork` and has no other thread yet.
    #[doc(hidden)]
    unsafe fn forget_other_threads(&self);

    /// Acquires every lock. Allocates nothing. Fast paths of other threads continue; all their other
    /// operations wait.
    ///
    /// # Safety
    /// The thread forks next, or decides not to. It then calls
    /// [`after_fork_in_parent`](Self::after_fork_in_parent) in this process, and
    /// [`after_fork_in_child`](Self::after_fork_in_child) in the child, if there is one. Until then it
    /// neither uses nor moves nor drops `self`.
    ///
    /// # Panics
    /// In debug builds, if the thread already holds one of the locks. A second call without a release waits
    /// for ever; several subsystems may be held for one fork.
    unsafe fn before_fork(&self) {
        for rank in Rank::ALL {
            // SAFETY: the thread holds the locks of all earlier ranks, and one of the other two calls
            // releases each. No other thread holds several locks of one rank, except in the order of `locks`.
            unsafe { self.locks(*rank, &mut |lock| lock.hold()) };
        }
        held_for_a_fork();
    }

    /// Releases the locks in the process that forked, also after a failed fork.
    ///
    /// # Safety
    /// The thread called [`before_fork`](Self::before_fork).
    unsafe fn after_fork_in_parent(&self) {
        for rank in Rank::ALL.iter().rev() {
            // SAFETY: this thread acquired the locks, and still holds those of earlier ranks.
            unsafe { self.locks(*rank, &mut |lock| lock.release()) };
        }
    }

    /// Drops the claims of the threads that the child does not have, and releases the locks.
    ///
    /// # Safety
    /// The process is a child that `fork` made with a copy of its parent's memory (not `vfork`, nor
    /// `clone(CLONE_VM)`), and has no other thread yet. This thread called [`before_fork`](Self::before_fork)
    /// in the parent.
    unsafe fn after_fork_in_child(&self) {
        // SAFETY: the process is a child with a single thread, which acquired the locks before the fork, by
        // this function's contract.
        unsafe {
            self.forget_other_threads();
            self.after_fork_in_parent();
        }
    }
}
