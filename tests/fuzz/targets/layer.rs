//! Fuzzes the magazine layer on simulated CPUs.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab_magazine::shadow::fuzz(data));
