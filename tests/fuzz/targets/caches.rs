//! Fuzzes object caches.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab::shadow::caches::fuzz(data));
