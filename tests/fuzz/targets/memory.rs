//! Fuzzes kmalloc and malloc.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab::shadow::memory::fuzz(data));
