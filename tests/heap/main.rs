//! Tests of programs whose heap is `Uslab`.
#![cfg(not(any(loom, shuttle)))]

#[path = "../kit/process.rs"]
mod process;

mod give_back;
mod global_alloc;
mod sections;
mod static_paths;

#[global_allocator]
static ALLOCATOR: uslab::Uslab = uslab::Uslab;
