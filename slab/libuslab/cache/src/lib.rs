//! `libuslab-cache.so`: the object caches of `uslab.h` for a program that keeps its malloc.
//!
//! It shares the functions of `libuslab.so`, from one source; see its `Makefile` for how to install both. The caches are in a
//! subsystem of the process, which starts with the first of them; forks hold its locks.

#[cfg(any(uslab_heap, not(target_os = "linux")))]
compile_error!("the C libraries are for Linux");

#[path = "../../src/cache.rs"]
pub mod cache;
#[path = "../../src/callbacks.rs"]
mod callbacks;
mod home;
