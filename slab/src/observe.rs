//! What slow operations do, step by step: see [`Subsystem::observe`](crate::Subsystem::observe).
//!
//! A tracepoint notes its [`Step`] on the operation's own stack, whatever locks are held, and the operation shows all of them at its
//! end, when it holds none. So there is no buffer that CPUs share, and nothing to be read out in time. Fast paths have no
//! tracepoint: what is not shown was served by the CPU's own magazines.
//!
//! With the feature `tracing`, `event` is an observer that makes events of them. With the feature `usdt` each step is a probe that `perf`,
//! `bpftrace` and gdb find in the running program:
//!
//! ```text
//! # bpftrace -e 'usdt:./server:uslab:SlabAdded { @[ustack] = count(); }'
//! ```

#[cfg(feature = "tracing")]
use uslab_magazine::Path;
pub use uslab_magazine::tracepoints::{Counts, Observed, Observer, Step, TooManyObservers, What};

/// An observer that makes an event of [`tracing`] of each slow operation, with the target `uslab`: `DEBUG` if it went to the pages or
/// the system, else `TRACE`. The subscriber may allocate; what it asks of this allocator makes no events.
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
    // A level is a constant of its place.
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
