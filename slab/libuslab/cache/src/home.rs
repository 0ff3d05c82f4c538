//! Provides the subsystem for this library's object caches (`uslab.h`): the global subsystem of the process.

use core::cell::Cell;
use nix::libc;
use uslab::report::leaks::Holders;
use uslab::{CacheError, Census, Fork, KmemCache, KmemCacheBuilder, SlabInfo, Subsystem, Violation};
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicBool, AtomicPtr};

static STARTED_SUBSYSTEM: AtomicPtr<Subsystem> = AtomicPtr::new(core::ptr::null_mut());

fn started() -> Option<&'static Subsystem> {
    // Acquire: pairs with the Release in `start`.
    let started = STARTED_SUBSYSTEM.load(Acquire);
    // SAFETY: the pointer is null or the global subsystem, which is never freed.
    unsafe { started.as_ref() }
}

fn start() -> Result<&'static Subsystem, CacheError> {
    // Constructors of other libraries may run before the constructor of this library.
    register_fork_handlers();
    let subsystem = Subsystem::global()?;
    // Release: pairs with the Acquire in `started`.
    STARTED_SUBSYSTEM.store(core::ptr::from_ref(subsystem).cast_mut(), Release);
    Ok(subsystem)
}

/// Registers the library's fork handlers when the library is loaded. A program's own fork handlers therefore run before
/// the library takes its locks, and after the library releases them.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD_HANDLER: extern "C" fn() = register_fork_handlers;

extern "C" fn register_fork_handlers() {
    static ARE_HANDLERS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the swap only decides which thread registers.
    if !ARE_HANDLERS_REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(parent_after_fork), Some(child_after_fork)) };
    }
}

std::thread_local! {
    /// The subsystem whose locks the forking thread holds; `None` if the subsystem had not started before the fork.
    static FORKING_SUBSYSTEM: Cell<Option<&'static Subsystem>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    // The thread-local is accessed before the locks are taken, because its first access may
    // allocate memory.
    FORKING_SUBSYSTEM.set(started());
    // SAFETY: `parent_after_fork` or `child_after_fork` runs afterwards on this thread.
    FORKING_SUBSYSTEM.get().into_iter().for_each(|subsystem| unsafe { subsystem.before_fork() });
}
extern "C" fn parent_after_fork() {
    // SAFETY: `before_fork` took all locks on this thread.
    FORKING_SUBSYSTEM.take().into_iter().for_each(|subsystem| unsafe { subsystem.after_fork_in_parent() });
}
extern "C" fn child_after_fork() {
    // SAFETY: the thread is the copy of the thread that took all locks in `before_fork`, and the only thread. The C
    // library's `vfork` and `posix_spawn` run no handlers.
    FORKING_SUBSYSTEM.take().into_iter().for_each(|subsystem| unsafe { subsystem.after_fork_in_child() });
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
