//! Stubs for builds without restartable sequences: for another OS, for another processor, or under loom or shuttle.
//! Without restartable sequences, the rseq mechanism is never chosen, and the inlined path always misses.

use super::Mechanism;
pub use super::no_static_words::StaticWords;
use super::regions::{Regions, Words};
use crate::magazine::Magazine;
use crate::region::Class;
use core::ptr::NonNull;

pub(crate) fn aborts() -> u64 {
    0
}
pub(crate) fn cpu_id() -> u32 {
    u32::MAX
}
pub(crate) fn register_if_unregistered() -> bool {
    false
}
pub(crate) fn mechanism() -> Mechanism {
    Mechanism::Claimed
}
pub(crate) fn word_count(cpus: u32, _: Mechanism) -> u32 {
    cpus
}
pub(crate) fn fence(_: &impl Regions, _: impl Iterator<Item = u32>) -> bool {
    true
}

/// The class of a disabled fast path, with which every operation misses.
pub(crate) const NO_CLASS: Class = Class { index: 0, stack: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcpuPtr;

impl PcpuPtr {
    pub(crate) fn new(_: &impl Regions, _: Words) -> Self {
        Self
    }
    pub(crate) fn cpu(&self) -> u32 {
        u32::MAX
    }
    pub(crate) fn of_static(_: &'static StaticWords, _: Words) -> Self {
        Self
    }
    pub(crate) fn disabled() -> Self {
        Self
    }
    #[inline(always)]
    pub(crate) fn pop(&self, _: Class) -> Option<NonNull<u8>> {
        None
    }
    #[inline(always)]
    pub(crate) fn push(&self, _: Class, _: NonNull<u8>) -> bool {
        false
    }
}

pub(crate) fn push_batch(_: &impl Regions, _: PcpuPtr, _: Class, _: &[NonNull<u8>]) -> bool {
    false
}
pub(crate) fn pop_batch(_: &impl Regions, _: PcpuPtr, _: Class, _: u32, _: &mut Magazine) -> bool {
    false
}
