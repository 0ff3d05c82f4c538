//! Checks the restartable sequences of a program that uses the library, including the copies that are inlined into the
//! program. The tests of the magazine crate check and interrupt that crate's sequences
//! (`magazine/src/cpu/rseq_stepper.rs`).

#![cfg(all(
    not(any(miri, uslab_no_rseq, uslab_heap)),
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]

#[allow(dead_code, unused_imports, reason = "the stepper owns the traps")]
#[path = "../kit/sections.rs"]
mod decoded;

use uslab::{Gfp, KmemCache, ObjectCache};

#[test]
fn restartable_sections_overwrite_no_value_that_a_restart_reads() {
    let numbers = ObjectCache::builder("number").ctor(|| 7_u64).build().unwrap();
    drop(numbers.alloc().unwrap());
    let blocks = KmemCache::builder("block", 640).build().unwrap();
    let block = blocks.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the object was allocated there, and is not used any more.
    unsafe { blocks.free(block) };
    let section_counts = decoded::check();
    assert!(section_counts.sections >= 30 && section_counts.instructions >= 300, "{section_counts:?}");
    assert!(section_counts.survive >= 1, "a batch must widen its stack: {section_counts:?}");
}

#[test]
#[ignore = "writes to a file; run by .ci/sections"]
fn restartable_sections_are_written_to_the_proof_file() {
    decoded::write_sections_file(serde_json::json!({}));
}
