//! Forking while other threads allocate.
//!
//! The child of a process with threads has only the thread that forked. A lock that another one held would be held there for
//! ever, and what it protects may be half done. So every lock is taken before the fork and given back on both sides after
//! it, in the [lock order](crate::sync::Rank). A thread may also have *claimed* the region of its CPU, which no lock waits for;
//! in the child such claims are nobody's and are dropped.
//!
//! These three steps are what `pthread_atfork` takes, and what jemalloc calls `prefork`, `postfork_parent` and
//! `postfork_child`.

use crate::sync::Rank;
use crate::sync::fork::ForkLock;
use crate::sync::rank::held_for_a_fork;

/// What a process may use while it forks, and go on using in the child.
///
/// Without these calls a child must not use it: it could wait for ever for a lock or a claim of a thread that it does not
/// have. What other threads had in hand at the fork is lost to the child, as all that they owned.
///
/// # Why nothing here is safe
///
/// Dropping the claims of threads that live hands one object to two of them, and locks that are never given back stop every
/// other thread. No check would be exact: a child that shares its parent's memory (`vfork`, `clone(CLONE_VM)`) has another
/// process id although the threads live, and one in a new PID namespace may have the same although they do not. Who calls
/// `fork`, which is `unsafe` itself, knows.
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
    /// Shows all locks of that rank to `visit`, always in the same order.
    ///
    /// # Safety
    /// For a rank beyond [`Rank::Caches`] the thread holds the locks of all ranks before it.
    #[doc(hidden)]
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock));

    /// Drops the claims of other threads.
    ///
    /// # Safety
    /// As [`after_fork_in_child`](Self::after_fork_in_child).
    #[doc(hidden)]
    unsafe fn forget_other_threads(&self);

    /// Waits for every lock. Allocates nothing. Fast paths of other threads go on; whatever else they ask for waits.
    ///
    /// # Safety
    /// The thread forks next, or decides not to, and calls [`after_fork_in_parent`](Self::after_fork_in_parent) in the
    /// process that it is in, and [`after_fork_in_child`](Self::after_fork_in_child) in the child if there is one. Between
    /// these calls it neither uses nor moves nor drops this.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of it already. A second call of the same one waits for ever; several subsystems may be
    /// held for one fork.
    unsafe fn before_fork(&self) {
        for rank in Rank::ALL {
            // SAFETY: the locks of all ranks before are held; each is released by one of the other two calls. Several of one
            // rank are held by nobody else, or in the order of `locks`.
            unsafe { self.locks(*rank, &mut |lock| lock.hold()) };
        }
        held_for_a_fork();
    }

    /// Gives the locks back in the process that forked, also when the fork failed.
    ///
    /// # Safety
    /// The thread called [`before_fork`](Self::before_fork).
    unsafe fn after_fork_in_parent(&self) {
        for rank in Rank::ALL.iter().rev() {
            // SAFETY: taken by this thread, and those of ranks before are still held.
            unsafe { self.locks(*rank, &mut |lock| lock.release()) };
        }
    }

    /// Drops the claims of the threads that the child does not have, and gives the locks back.
    ///
    /// # Safety
    /// The process is a child that `fork` made with a copy of its parent's memory (not `vfork`, nor `clone(CLONE_VM)`), and
    /// has no other thread yet. This thread called [`before_fork`](Self::before_fork) in the parent.
    unsafe fn after_fork_in_child(&self) {
        // SAFETY: passed on; the locks are those that the thread took before the fork.
        unsafe {
            self.forget_other_threads();
            self.after_fork_in_parent();
        }
    }
}
