//! The kit for checking **your** code: with `--cfg loom` the caches run inside a loom model, and so does the code that you
//! built on them.
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
//! The API is the same. Sizes are small, so that a few operations reach every path
//! ([`Config::for_models`](crate::Config::for_models)). Each execution has a separate global subsystem. Threads run on one of
//! two simulated CPUs: [`on_cpu`], or a [`Script`] that moves a thread between two steps.
//!
//! In addition to your own assertions, a model detects: a double free; a free that does not happen before the next allocation
//! of the object, or an allocation that does not happen before the free (your code passed the object on with too weak an
//! ordering); invalid frees; and all that loom detects in your own atomics, locks and cells. For these use
//! [`uslab::sync`](crate::sync), which is `std` in your program and a repaired loom in a model; loom's own atomics skip
//! interleavings. `planted!` marks bugs that [`caught`] must find. `scenarios!` lists models and their planted bugs in one
//! table. `uslab/examples/check_your_code.rs` has all of it, and `sessions.rs` the same for [handles](crate::handle).
//!
//! A failing model prints the trace of that execution, a step per line, and a command that repeats it alone; with
//! `STORY_JSON=file` the trace is also written there, and `uslab story file --html page.html` makes a page of it. `tell!` adds
//! your own steps to it, and does nothing outside loom. `STORY=1` prints the traces of planted bugs.
//!
//! It does not detect errors in an object's bytes (loom checks its cells only), nor anything beyond the bound. Models have no
//! size classes (`Kmalloc`), grace periods or reapers. In a failed execution no destructor of a cache or an object runs. loom's
//! own `loom::model` works too, with `LOOM_MAX_BRANCHES=10000 LOOM_MAX_PREEMPTIONS=2`, but its executions are not counted.

/// Least number of bytes from one object to the next: the checker that watches an object's owner has one cell for as many bytes.
pub const SPACING: usize = crate::geometry::SPACING;

#[cfg(loom)]
pub use uslab_magazine::sync::check::{Bound, caught, loom, model, models};
pub use uslab_magazine::{Script, on_cpu};
