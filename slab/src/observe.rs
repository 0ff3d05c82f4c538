//! What slow operations do, step by step: see [`Subsystem::observe`](crate::Subsystem::observe).
//!
//! A tracepoint notes its [`Step`] on the operation's own stack, whatever locks are held, and the operation shows all of them at its
//! end, when it holds none. So there is no buffer that CPUs share, and nothing to be read out in time. Fast paths have no
//! tracepoint: what is not shown was served by the CPU's own magazines.

pub use uslab_magazine::tracepoints::{Counts, Observed, Observer, Step, TooManyObservers, What};
