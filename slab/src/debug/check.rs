//! The kit for checking **your** code: with `--cfg loom` the caches run inside a loom model, and so does what you built on
//! them.
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
//! The API is the same; what differs is small on purpose, so that a few operations reach every path
//! ([`Config::for_models`](crate::Config::for_models)). Each execution has a global subsystem of its own. Threads play
//! one of two simulated CPUs: [`on_cpu`], or a [`Script`] that moves a thread between two steps.
//!
//! What a model finds by itself, besides your own assertions: an object freed twice, a free that does not happen before
//! the next allocation of the object, or an allocation that does not happen before the free (your code passed the object
//! on with too weak an ordering), frees that cannot be right, and all that loom finds in your own atomics, locks and
//! cells. For these use [`uslab::sync`](crate::sync), which is `std` in your program and a repaired loom in a model;
//! loom's own atomics skip interleavings. `planted!` is there for bugs that [`caught`] must find. `scenarios!` states
//! models and their planted bugs in one table. `uslab/examples/check_your_code.rs` has all of it, and `sessions.rs` the
//! same for [handles](crate::handle).
//!
//! A model that fails prints the story of that execution, one line a step, and a command that repeats it alone; with
//! `STORY_JSON=file` the story is written there, too, and `uslab story file --html page.html` makes a page of it. `tell!` adds your own steps to it, and is nothing
//! outside loom. `STORY=1` prints the stories of planted bugs.
//!
//! What it does not find: what your code does with an object's bytes (loom watches its cells only), and what lies beyond
//! the bound. There are no size classes (`Kmalloc`), grace periods and reapers in models. In an execution that failed no
//! destructor of a cache or an object runs. loom's own `loom::model` works too, with `LOOM_MAX_BRANCHES=10000
//! LOOM_MAX_PREEMPTIONS=2`; but nobody counts its executions.

/// The bytes from one object to the next are at least these: what watches an object's owner has one cell for as many.
pub const SPACING: usize = crate::geometry::SPACING;

#[cfg(loom)]
pub use uslab_magazine::sync::check::{Bound, caught, loom, model, models};
pub use uslab_magazine::{Script, on_cpu};
