//! Fork handlers (`pthread_atfork`) that hold every lock of the process-wide malloc across a fork.
//!
//! The handlers are registered when the library is loaded, or else when the allocator starts. Almost all other handlers
//! are registered later. Other libraries' fork handlers therefore run before the malloc's handlers take the locks, and
//! after they release the locks.

use super::{PROCESS_ALLOCATOR, STARTING_PID};
use crate::cache::core::Core;
use core::cell::Cell;
use uslab_magazine::Fork;
use uslab_magazine::sync::AtomicBool;
use uslab_magazine::sync::Ordering::Relaxed;

pub(super) fn register() {
    static ARE_HANDLERS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag only selects the thread that registers the handlers.
    if ARE_HANDLERS_REGISTERED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: the handlers are functions of this program, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(handle_fork_in_parent), Some(after_fork_in_child))
    };
}

std::thread_local! {
    /// The subsystem whose locks this thread holds during a fork.
    static FORK_LOCKED_CORE: Cell<Option<&'static Core>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    // The thread-local is set before the locks are taken, because its first access may allocate from this malloc.
    FORK_LOCKED_CORE.set(PROCESS_ALLOCATOR.get().map(|process| process.core()));
    // SAFETY: the handler `handle_fork_in_parent` or `after_fork_in_child` follows, on this thread.
    FORK_LOCKED_CORE.get().into_iter().for_each(|core| unsafe { core.before_fork() });
}
extern "C" fn handle_fork_in_parent() {
    // SAFETY: `before_fork` took all locks on this thread.
    FORK_LOCKED_CORE.take().into_iter().for_each(|core| unsafe { core.after_fork_in_parent() });
}
extern "C" fn after_fork_in_child() {
    if let Some(core) = FORK_LOCKED_CORE.take() {
        // SAFETY: in the parent, `before_fork` took all locks on the forking thread, and the child has no other thread.
        // The C library's `vfork` and `posix_spawn` run no handlers.
        unsafe { core.after_fork_in_child() };
        // Relaxed: the pid publishes no other data.
        STARTING_PID.store(std::process::id(), Relaxed);
    }
}
