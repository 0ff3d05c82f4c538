//! Fuzzes the readers of traces and of the kernel's tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab_sim::fuzz::trace(data));
