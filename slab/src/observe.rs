//! Observes the individual steps of slow operations (see [`Subsystem::observe`](crate::Subsystem::observe)).
//!
//! A tracepoint records its [`Step`] in memory on the operation's stack, even while a lock is held. When the operation
//! ends, it passes all its steps to the observers, with no lock held. Operations therefore share no buffer that could
//! overflow. Fast paths have no tracepoint. An operation that is not reported was served by the CPU's own magazines.
//!
//! With the feature `tracing`, the observer `event` emits a `tracing` event for each operation. With the feature
//! `usdt`, each step is a probe that `perf`, `bpftrace` and gdb find in the running program:
//!
//! ```text
//! # bpftrace -e 'usdt:./server:uslab:SlabAdded { @[ustack] = count(); }'
//! ```

#[cfg(feature = "tracing")]
use uslab_magazine::Path;
pub use uslab_magazine::tracepoints::{Counts, Observed, Observer, OperationKind, Step, TooManyObservers};

/// An observer that emits a [`tracing`] event for each slow operation, with the target `uslab`. The level is `DEBUG` if
/// the operation reached the pages or the system, and `TRACE` otherwise. The subscriber may allocate; its own
/// operations emit no events.
///
/// ```
/// let subsystem = uslab::Subsystem::global()?;
/// let _events = subsystem.observe(uslab::observe::event)?; // until it is dropped
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tracing")]
pub fn event(operation: &Observed<'_>) {
    struct Steps<'a>(&'a [Step]);
    impl core::fmt::Display for Steps<'_> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            let mut steps = self.0.iter();
            steps.next().map_or(Ok(()), |first| first.fmt(f))?;
            steps.try_for_each(|step| write!(f, ", {step}"))
        }
    }
    let Observed { what, cpu, name, path, lost, more, .. } = *operation;
    let steps = Steps(operation.steps);
    // The `tracing` macros need a constant level at each call site.
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(target: "uslab", tracing::Level::$level, ?what, cpu, name, ?path, lost, more, "{steps}")
        };
    }
    match path {
        Path::Pages | Path::Commit => event!(DEBUG),
        _ => event!(TRACE),
    }
}
