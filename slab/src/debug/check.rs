//! A kit for checking **your** code: with `--cfg loom`, the caches and your code that uses them run inside a loom
//! model.
//!
//! ```text
//! use uslab::check::{Bound, model, on_cpu};
//! use uslab::ObjectCache;
//! use uslab::sync::{Arc, thread};
//!
//! #[test] // RUSTFLAGS="--cfg loom" cargo test --release
//! fn two_threads_share_my_pool() {
//!     model("my pool", Bound::Preemptions(2), 100, || {
//!         let pool = Arc::new(MyPool::new(ObjectCache::builder("mine").ctor(Mine::new).build().unwrap()));
//!         let other = pool.clone();
//!         let t = thread::spawn(move || { on_cpu(1); other.work() });
//!         pool.work();
//!         t.join().unwrap();
//!         assert_eq!(pool.cache().info().used, 0);
//!     });
//! }
//! ```
//!
//! In a model, the caches have the same API as in a normal build. Objects and magazines are small, so that a few
//! operations reach every path ([`Config::for_models`](crate::Config::for_models)). Each execution has its separate
//! global subsystem. Each thread runs on one of two simulated CPUs. [`on_cpu`] selects the CPU, and a [`Script`] moves
//! a thread to the other CPU between two steps.
//!
//! In addition to your own assertions, a model detects invalid frees, double frees, and all errors that loom detects in
//! your atomics, locks and cells. A model also finds code that passes an object between threads with too weak a memory
//! ordering. A free must happen before the object's next allocation, and an allocation before the object's free. Take
//! atomics, locks and cells from [`uslab::sync`](crate::sync). `uslab::sync` is `std` in your program and a repaired
//! loom in a model, because loom's own atomics skip interleavings. `planted!` marks bugs that [`assert_caught`] must
//! find. `scenarios!` lists models and their planted bugs in one table. `uslab/examples/check_your_code.rs` shows all
//! of the kit's tools, and `sessions.rs` shows the tools for [handles](crate::handle).
//!
//! A failing model prints the trace of the execution, one step per line, and a command that repeats only that
//! execution. `STORY_JSON=file` also writes the trace to a file. The command `uslab story file --html page.html` turns
//! a trace file into a page. `tell!` adds your own steps to the trace, and does nothing outside loom. `STORY=1` prints
//! the traces of planted bugs.
//!
//! A model does not detect errors in an object's bytes, because loom checks only its cells. A model also misses errors
//! beyond its bound on preemptions. Models do not support size classes (`Kmalloc`), grace periods or reapers. If an
//! execution fails, the destructors of its caches and objects do not run. `loom::model` works too, with
//! `LOOM_MAX_BRANCHES=10000 LOOM_MAX_PREEMPTIONS=2`, but it does not count executions.

/// Minimum number of bytes from one object to the next; the model checker's record of object owners has one cell per
/// `SPACING` bytes.
pub const SPACING: usize = crate::geometry::SPACING;

#[cfg(loom)]
pub use uslab_magazine::sync::check::{Bound, assert_caught, loom, model, models};
pub use uslab_magazine::{Script, on_cpu};
