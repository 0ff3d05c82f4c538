//! Where the caches of `uslab.h` stand in this library: in the process's global subsystem.

use nix::libc;
use uslab::report::leaks::Holders;
use uslab::{CacheError, Census, Fork, KmemCache, KmemCacheBuilder, SlabInfo, Subsystem, Violation};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicBool, FixedPtr};

/// The subsystem, once it has started.
static STARTED: FixedPtr<Subsystem> = FixedPtr::null();

fn started() -> Option<&'static Subsystem> {
    // SAFETY: the global one, which lives for ever.
    unsafe { STARTED.get().as_ref() }
}

fn start() -> Result<&'static Subsystem, CacheError> {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    let subsystem = Subsystem::global()?;
    STARTED.set(core::ptr::from_ref(subsystem).cast_mut());
    // Relaxed: only says who does it.
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
    Ok(subsystem)
}

// Registered once the subsystem has started: so all three find it.
extern "C" fn before_fork() {
    // SAFETY: one of the other two follows, on this thread.
    started().into_iter().for_each(|subsystem| unsafe { subsystem.before_fork() });
}
extern "C" fn in_parent() {
    // SAFETY: `before_fork` took all locks on this thread.
    started().into_iter().for_each(|subsystem| unsafe { subsystem.after_fork_in_parent() });
}
extern "C" fn in_child() {
    // SAFETY: as above; the thread is its copy, and alone. The C library's `vfork` and `posix_spawn` run no handlers.
    started().into_iter().for_each(|subsystem| unsafe { subsystem.after_fork_in_child() });
}

pub(crate) fn build(builder: KmemCacheBuilder) -> Result<KmemCache, CacheError> {
    builder.build_in(start()?)
}
pub(crate) fn slabinfo() -> Option<SlabInfo> {
    started().map(Subsystem::slabinfo)
}
pub(crate) fn check() -> Option<Result<Census, Violation>> {
    started().map(Subsystem::check)
}
pub(crate) fn leaks() -> Option<Holders> {
    started().map(Subsystem::leaks)
}
pub(crate) fn reap() -> usize {
    started().map_or(0, Subsystem::end_interval)
}
