//! A fork finds every lock of the process-wide malloc held (`pthread_atfork`).
//!
//! The handlers are registered when the library is loaded, or else at the allocator's start, which is before
//! almost all other registrations. So others' handlers run before these take the locks, and after these have
//! released them.

use super::{PROCESS, STARTING};
use crate::cache::core::Core;
use core::cell::Cell;
use uslab_magazine::Fork;
use uslab_magazine::sync::AtomicBool;
use uslab_magazine::sync::Ordering::Relaxed;

/// From here on, forks find the locks held.
pub(super) fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: only selects the thread that registers.
    if REGISTERED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the handlers are functions of this program, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

std::thread_local! {
    /// The state whose locks the forking thread holds.
    static FORKING: Cell<Option<&'static Core>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    // Before the locks are taken: the first access to a thread-local may allocate from this malloc.
    FORKING.set(PROCESS.get().map(|process| process.core()));
    // SAFETY: one of the other handlers follows, on this thread.
    FORKING.get().into_iter().for_each(|core| unsafe { core.before_fork() });
}
extern "C" fn in_parent() {
    // SAFETY: `before_fork` took all locks on this thread.
    FORKING.take().into_iter().for_each(|core| unsafe { core.after_fork_in_parent() });
}
extern "C" fn in_child() {
    if let Some(core) = FORKING.take() {
        // SAFETY: `before_fork` took all locks on this thread's original, and the child has no other thread.
        // The C library's `vfork` and `posix_spawn` run no handlers.
        unsafe { core.after_fork_in_child() };
        // Relaxed: only a pid.
        STARTING.store(std::process::id(), Relaxed);
    }
}
