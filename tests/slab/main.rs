//! Tests the whole subsystem of caches through its public interface. A test that concerns a whole process, its memory
//! or its limits runs in a separate process (`kit/process.rs`).
#![cfg(not(any(loom, shuttle)))]

mod common;
#[path = "../kit/exposition.rs"]
mod exposition;
#[path = "../kit/linearizable.rs"]
mod linearizable;
#[path = "../kit/process.rs"]
mod process;

mod allocator_api;
mod auto_traits;
mod boxes;
mod cache;
mod corruption;
mod costs;
mod errors;
mod frugal;
mod geometry;
mod harden;
mod held;
mod info;
mod kmalloc;
mod leaks;
mod linearizability;
mod malloc;
mod observe;
mod outlived;
mod panics;
mod prometheus;
mod rcu;
mod sandbox;
mod shrinker;
mod slab_debug;
mod typed;
mod waiting;

use uslab_magazine::sync;
