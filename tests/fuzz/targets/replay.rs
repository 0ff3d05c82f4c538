//! Fuzzes whole replays of traces.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uslab_sim::fuzz::replay(data));
