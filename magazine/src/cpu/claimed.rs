//! The claimed slot: the portable mechanism.
//!
//! The CPU's number is a hint. One compare-and-exchange claims the slot of that CPU for the length of one operation;
//! whoever finds it claimed goes on without it (`Busy`) and never waits, because the holder may be a thread of the
//! same CPU that was pre-empted. Migration after reading the number is harmless: the claim, not the number, owns the
//! slot.
//!
//! Cost: one locked instruction (6 to 17 ns) an operation.

use crate::memory::Memory;
use crate::slot::{Commit, Fill, Pair, Pop, Push, Replace, Which};
use crate::store::Store;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{planted, relax};
use core::ptr::NonNull;

/// Runs `f` with `cpu`'s slot claimed; `None` if it is claimed already or there is no such slot.
fn claimed<M: Memory, R>(store: &Store<M>, cpu: u32, f: impl FnOnce() -> R) -> Option<R> {
    let claim = &store.slot(cpu)?.claim;
    if !planted("slot used without its claim") {
        // Acquire: pairs with the Release below, so that the last operation's stores to the magazines are seen.
        claim.compare_exchange(0, 1, Acquire, Relaxed).ok()?;
    }
    let result = f();
    if !planted("slot used without its claim") {
        // Release: pairs with the Acquire of the next claim of this slot, a drain's fence included.
        claim.store(0, Release);
    }
    Some(result)
}

pub(crate) fn pop<M: Memory>(store: &Store<M>, cpu: u32, which: Which) -> Pop {
    claimed(store, cpu, || store.pop_body(cpu, which, Commit::Done)).unwrap_or(Pop::Busy)
}

pub(crate) fn push<M: Memory>(store: &Store<M>, cpu: u32, which: Which, round: NonNull<u8>) -> Push {
    claimed(store, cpu, || store.push_body(cpu, which, round, Commit::Done)).unwrap_or(Push::Busy)
}

pub(crate) fn replace<M: Memory>(
    store: &Store<M>,
    cpu: u32,
    which: Which,
    old: Pair,
    new: Pair,
    leaving: Fill,
) -> Replace {
    claimed(store, cpu, || store.replace_body(cpu, which, old, new, leaving, Commit::Done))
        .unwrap_or(Replace::Changed)
}

/// Returns when every operation of `cpus` that began before has ended. Waits for a holder of the claim, who may be
/// off its CPU: drains may wait, fast paths never do. Always succeeds.
pub(crate) fn fence<M: Memory>(store: &Store<M>, cpus: impl Iterator<Item = u32>) -> bool {
    for cpu in cpus {
        while store.slot(cpu).is_some() && claimed(store, cpu, || ()).is_none() {
            relax();
        }
    }
    true
}
