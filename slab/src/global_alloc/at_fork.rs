//! A fork finds every lock of the process-wide malloc held (`pthread_atfork`).
//!
//! The handlers are registered at its start, which is before almost all others: so theirs run before ours take the locks, and
//! after ours have let them go.

use super::PROCESS;
use crate::fork::Held;
use uslab_magazine::sync::Kept;

/// From here on, forks find the locks held.
pub(super) fn register() {
    // SAFETY: the handlers are functions of this program that never go.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

/// The locks that the forking thread holds.
static FORKING: Kept<Held<'static>> = Kept::new();

extern "C" fn before_fork() {
    if let Some(process) = PROCESS.get() {
        let held = process.core().hold();
        // SAFETY: all locks are held.
        unsafe { FORKING.put(held) };
    }
}
extern "C" fn in_parent() {
    // SAFETY: `before_fork` took all locks on this thread.
    drop(unsafe { FORKING.take() });
}
extern "C" fn in_child() {
    // SAFETY: as above; the thread is its copy.
    if let Some(held) = unsafe { FORKING.take() } {
        held.in_child();
    }
}
