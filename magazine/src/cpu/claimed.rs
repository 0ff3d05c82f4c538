//! The claimed mechanism: a portable way to give one operation exclusive access to a CPU's stacks (its *region*).
//!
//! The CPU number that an operation reads is only a hint. An operation claims the CPU's region with one
//! compare-and-exchange. If another thread has already claimed the region, the operation bypasses the region instead of
//! waiting. Waiting could take a long time, because the claiming thread may be pre-empted on the same CPU. A thread may
//! migrate after it reads the CPU number, so the claim, not the number, grants access to the region.
//!
//! Cost: one locked instruction (6 to 17 ns) per operation.

use super::regions::Regions;
use crate::magazine::Magazine;
use crate::region::{Class, Commit, Region};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::relax;
use core::ptr::NonNull;

/// Claims the region of a CPU and runs `f` on it. Returns `None` if the region is already claimed, or was never used.
#[inline(always)]
fn claimed<R>(region: Region<'_>, f: impl FnOnce() -> R) -> Option<R> {
    // No thread may write to an uncommitted region, not even to claim the region.
    if region.committed() == 0 {
        return None;
    }
    // Acquire: pairs with the Release that drops the claim, so this operation sees the previous operation's stores.
    region.claim().compare_exchange(0, 1, Acquire, Relaxed).ok()?;
    let result = f();
    // Release: pairs with the Acquire of the region's next claim, including a drain's claim.
    region.claim().store(0, Release);
    Some(result)
}

#[inline(always)]
pub(crate) fn pop(table: &impl Regions, class: Class) -> Option<NonNull<u8>> {
    let region = table.region(table.this_cpu())?;
    claimed(region, || region.pop(class, Commit::Done)).flatten()
}

#[inline(always)]
pub(crate) fn push(table: &impl Regions, class: Class, round: NonNull<u8>) -> bool {
    let Some(region) = table.region(table.this_cpu()) else { return false };
    claimed(region, || region.push(class, round, Commit::Done)) == Some(true)
}

pub(crate) fn push_batch(table: &impl Regions, class: Class, rounds: &[NonNull<u8>]) -> bool {
    let Some(region) = table.region(table.this_cpu()) else { return false };
    claimed(region, || region.push_batch(class, rounds, Commit::Done)) == Some(true)
}

pub(crate) fn pop_batch(table: &impl Regions, class: Class, n: u32, into: &mut Magazine) -> bool {
    let Some(region) = table.region(table.this_cpu()) else { return false };
    claimed(region, || region.pop_batch(class, n, into, Commit::Done)) == Some(true)
}

/// Claims the region of a CPU for a drain, and runs `f` on the region. Waits if another thread holds the claim, even
/// while that thread is pre-empted. A drain may wait for a claim, but a fast path must never wait.
pub(crate) fn run_with_claimed_region(region: Region<'_>, f: &mut dyn FnMut(Region<'_>)) {
    while claimed(region, || f(region)).is_none() {
        relax();
    }
}
