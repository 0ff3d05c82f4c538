//! Tests of programs that use the allocator: the examples, and real programs under the preload library.
#![cfg(not(any(loom, shuttle, uslab_heap, uslab_no_rseq)))]

mod examples;
mod faulty_server;
mod gdb;
mod preload;
mod security;
mod server;
