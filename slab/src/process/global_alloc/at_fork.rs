//! A fork finds every lock of the process-wide malloc held (`pthread_atfork`).
//!
//! The handlers are registered when the library is loaded, or else at the allocator's start, which is before almost all
//! others: so theirs run before ours take the locks, and after ours have let them go.

use super::{PROCESS, STARTING};
use crate::cache::core::Core;
use core::cell::Cell;
use uslab_magazine::Fork;
use uslab_magazine::sync::AtomicBool;
use uslab_magazine::sync::Ordering::Relaxed;

/// From here on, forks find the locks held.
pub(super) fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: only says who does it.
    if REGISTERED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the handlers are functions of this program that never go.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

std::thread_local! {
    /// Whose locks the forking thread holds.
    static FORKING: Cell<Option<&'static Core>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    // The word first: what it needs may come from this malloc.
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
        // SAFETY: as above; the thread is its copy, and alone. The C library's `vfork` and `posix_spawn` run no handlers.
        unsafe { core.after_fork_in_child() };
        // Relaxed: only says whose it is.
        STARTING.store(std::process::id(), Relaxed);
    }
}
