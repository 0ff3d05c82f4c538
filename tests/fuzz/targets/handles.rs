//! Fuzzes handle tables, slot maps and handle caches.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab::shadow::handles::fuzz(data));
