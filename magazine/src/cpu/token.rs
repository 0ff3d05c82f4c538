//! Restartable sequences as a checker sees them: a **token** for each CPU.
//!
//! Whoever holds a CPU's token is the thread that runs on it. That encodes what the kernel promises: sections of one
//! CPU never overlap, a context switch orders them, and the rseq membarrier returns when what ran on a CPU has
//! committed or will restart (take the token and drop it).
//!
//! Pre-emption, a signal and a migration inside a section have one visible effect: everything before the commit may
//! have happened, the commit did not, and the section runs again, perhaps on another CPU. Where that strikes is the
//! thread's [`Script`](super::Script): `aborted` runs the section up to its commit on the old CPU first.
//!
//! What this leaves to tests: the assembly, the registration and the kernel.

use super::{Mechanism, here, step};
use crate::memory::Memory;
use crate::slot::{Commit, Fill, Num, Pair, Pop, Push, Replace, Which};
use crate::store::Store;
use crate::sync::{MutexGuard, planted};
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

fn token<M: Memory>(store: &Store<M>, cpu: u32) -> Option<MutexGuard<'_, ()>> {
    Some(store.slot(cpu)?.token.lock())
}

pub(crate) fn fence<M: Memory>(store: &Store<M>, cpus: impl Iterator<Item = u32>) -> bool {
    cpus.for_each(|cpu| drop(token(store, cpu)));
    true
}

/// The inlined path: under loom everything takes the other one, whose first step is the same operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fast;

impl Fast {
    pub(crate) fn new<M: Memory>(_: &Store<M>, _: Mechanism) -> Self {
        Self
    }
    pub(crate) fn nowhere() -> Self {
        Self
    }
    pub(crate) fn pop<const WHICH: usize>(&self) -> Option<NonNull<u8>> {
        None
    }
    pub(crate) fn push<const WHICH: usize>(&self, _: NonNull<u8>) -> bool {
        false
    }
}

/// Runs `body` on the CPU that the script says, after an attempt that was aborted if it says so.
fn section<M: Memory, R>(store: &Store<M>, body: impl Fn(u32, Commit) -> R) -> Option<R> {
    let (cpu, aborted_on) = step();
    if let Some(old) = aborted_on
        && let Some(_running) = token(store, old)
    {
        body(old, Commit::Aborted);
    }
    let running = token(store, cpu)?;
    if planted("section not armed") {
        // Another thread may run on the CPU before this one is done.
        drop(running);
        return Some(body(cpu, Commit::Done));
    }
    Some(body(cpu, Commit::Done))
}

/// The planted bug of a section that trusts what it read before it began.
fn stale<M: Memory>(store: &Store<M>, which: Which) -> Option<Num> {
    planted("magazine read before the section").then(|| store.pair(here(), which).loaded)
}

pub(crate) fn pop<M: Memory>(store: &Store<M>, _: Fast, which: Which) -> Pop {
    let stale = stale(store, which);
    let body = |cpu, commit| match stale {
        Some(loaded) => store.pop_from(loaded, commit),
        None => store.pop_body(cpu, which, commit),
    };
    section(store, body).unwrap_or(Pop::Busy)
}

pub(crate) fn push<M: Memory>(store: &Store<M>, _: Fast, which: Which, round: NonNull<u8>) -> Push {
    let stale = stale(store, which);
    let body = |cpu, commit| match stale {
        Some(loaded) => store.push_on(loaded, round, commit),
        None => store.push_body(cpu, which, round, commit),
    };
    section(store, body).unwrap_or(Push::Busy)
}

pub(crate) fn replace<M: Memory>(
    store: &Store<M>,
    _: Fast,
    which: Which,
    old: Pair,
    new: Pair,
    leaving: Fill,
) -> Replace {
    let leaving = if planted("fill checked before the section") {
        if !store.get(old.previous).is(leaving) {
            return Replace::Changed;
        }
        Fill::Any
    } else {
        leaving
    };
    section(store, |cpu, commit| store.replace_body(cpu, which, old, new, leaving, commit))
        .unwrap_or(Replace::Changed)
}
