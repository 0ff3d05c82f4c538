//! `libuslab-cache.so` provides the object caches of `uslab.h` for a program that keeps its malloc.
//!
//! The library shares source code with `libuslab.so`. The `Makefile` shows how to install `libuslab.so` and
//! `libuslab-cache.so`. The caches of a process belong to one subsystem, which starts when the first cache is made.
//! During a fork, the library holds the subsystem's locks.

#[cfg(any(uslab_heap, not(target_os = "linux")))]
compile_error!("the C libraries are for Linux");

#[path = "../../src/cache.rs"]
pub mod cache;
#[path = "../../src/callbacks.rs"]
mod callbacks;
mod home;
