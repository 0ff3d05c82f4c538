//! Fuzzes the page allocator.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab_buddy::shadow::fuzz(data));
