//! Restartable sequences where there are none: another system, another processor, or a checker that cannot run them.
//! The mechanism is never chosen, and the inlined path always misses.

use super::Mechanism;
use crate::memory::Memory;
use crate::slot::{Fill, Pair, Pop, Push, Replace, Which};
use crate::store::Store;
use core::ptr::NonNull;

pub(crate) fn aborts() -> u64 {
    0
}
pub(crate) fn cpu_id() -> u32 {
    u32::MAX
}
pub(crate) fn mechanism() -> Mechanism {
    Mechanism::Claimed
}
pub(crate) fn slots(cpus: u32, _: Mechanism) -> u32 {
    cpus
}
pub(crate) fn fence<M: Memory>(_: &Store<M>, _: impl Iterator<Item = u32>) -> bool {
    true
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fast;

impl Fast {
    pub(crate) fn new<M: Memory>(_: &Store<M>, _: Mechanism) -> Self {
        Self
    }
    pub(crate) fn nowhere() -> Self {
        Self
    }
    #[inline(always)]
    pub(crate) fn pop<const WHICH: usize>(&self) -> Option<NonNull<u8>> {
        None
    }
    #[inline(always)]
    pub(crate) fn push<const WHICH: usize>(&self, _: NonNull<u8>) -> bool {
        false
    }
}

pub(crate) fn pop<M: Memory>(_: &Store<M>, _: Fast, _: Which) -> Pop {
    Pop::Busy
}
pub(crate) fn push<M: Memory>(_: &Store<M>, _: Fast, _: Which, _: NonNull<u8>) -> Push {
    Push::Busy
}
pub(crate) fn replace<M: Memory>(_: &Store<M>, _: Fast, _: Which, _: Pair, _: Pair, _: Fill) -> Replace {
    Replace::Changed
}
