//! The slot contract: what one operation on the current CPU's slot does.
//!
//! A slot is **one word**: the numbers of two magazines, (loaded, previous). Number 0 is the *sentinel*, a magazine of
//! capacity 0 and length 0 that is never written: it misses in `pop` and in `push` with no extra test, so a slot that
//! was never used, or was drained, is simply the word 0.
//!
//! | operation | effect | else |
//! |---|---|---|
//! | `pop` | takes the newest round of the loaded magazine | `Miss` (it is empty), `Busy` |
//! | `push` | puts a round on the loaded magazine | `Miss` (it is full), `Busy` |
//! | `replace(old, new, leaving)` | one CAS of the pair, if the slot holds `old` *and* the previous magazine of `old` still is as `leaving` says | `Changed`: nothing happened |
//!
//! `Busy` means that no operation could be had (a failed claim, a CPU without a slot): go on without the slot and do
//! not retry. After a `Miss` the pair is read *outside* any operation; a stale pair, or another CPU's, is found out by
//! `replace`.
//!
//! **Why `replace` looks at the fill again.** A miss on (1, 2), both empty; a drain takes both away; two frees bring
//! back the pair (1, 2), with 2 full; the pair alone looks unchanged, and without the second look 2 would land among
//! the empty magazines. With it no sequence number is needed, because only the previous magazine ever leaves.
//!
//! **Why a CAS.** A drain writes the slot from another CPU. A plain store could overwrite its sentinel, and two
//! would own the magazines.
//!
//! The functions named `*_body` run entirely inside one operation of a CPU: no other operation of that CPU overlaps,
//! and only a drain's [`take`](Store::take) may strike in between. A mechanism sees to that: `cpu::claimed` runs these
//! bodies, `cpu::rseq` has the same steps in assembly (a test compares the two), and under loom the token model of it
//! runs these bodies again.

use crate::memory::Memory;
use crate::store::{MAG_LEN, MAG_OP, Store};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell, planted, tell};
use core::ptr::NonNull;

/// The number of a magazine within its layer; 0 is the sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Num(pub(crate) u32);

impl Num {
    pub(crate) const SENTINEL: Self = Self(0);

    pub(crate) fn is_sentinel(self) -> bool {
        self.0 == 0
    }
    /// A magazine's number as a round of a stock.
    pub(crate) fn into_raw(self) -> Option<NonNull<u8>> {
        NonNull::new(core::ptr::without_provenance_mut(self.0 as usize))
    }
    pub(crate) fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw.addr().get() as u32)
    }
}

/// What a slot holds: the two magazines of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) loaded: Num,
    pub(crate) previous: Num,
}

impl Pair {
    pub(crate) const SENTINELS: Self = Self { loaded: Num::SENTINEL, previous: Num::SENTINEL };

    pub(crate) fn word(self) -> u64 {
        u64::from(self.loaded.0) | u64::from(self.previous.0) << 32
    }
    pub(crate) fn of(word: u64) -> Self {
        Self { loaded: Num(word as u32), previous: Num((word >> 32) as u32) }
    }
}

#[cfg(loom)]
impl core::fmt::Display for Pair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "({}, {})", self.loaded.0, self.previous.0)
    }
}

/// Which of a CPU's three slots: its rounds, or its stock of full or of empty magazines (magazines whose rounds are
/// magazine numbers; they use `loaded` only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Rounds = 0,
    Full = 1,
    Empty = 2,
}

impl Which {
    pub(crate) const ALL: [Self; 3] = [Self::Rounds, Self::Full, Self::Empty];
}

/// What `replace` asks of the magazine that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Any,
    Empty,
    Full,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pop {
    Round(NonNull<u8>),
    Miss,
    Busy,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Push {
    Done,
    Miss,
    Busy,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Replace {
    Done,
    Changed,
}

/// Whether a body commits. Only the model of restartable sequences ever stops short of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Done,
    #[cfg(any(loom, shuttle))]
    Aborted,
}

/// One CPU's slots. Zeroed memory is a valid, empty one.
///
/// Two cache lines apart from the next CPU's, as the hardware fetches lines in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// 0, or 1 while an operation of the claimed mechanism runs.
    pub(crate) claim: AtomicU32,
    /// By [`Which`]. Written by operations of the CPU (CAS) and by drains (swap to 0).
    pub(crate) pairs: [AtomicU64; 3],
    /// Held by the thread that runs on the CPU, in the model of the other mechanism.
    #[cfg(any(loom, shuttle))]
    pub(crate) token: crate::sync::Mutex<()>,
    /// The drain lock protects the rest: what a drain took and has not collected yet (0: nothing),
    pub(crate) taken: [UnsafeCell<u64>; 3],
    /// and how far the CPU had come at the last reap.
    pub(crate) seen: UnsafeCell<u64>,
}

#[cfg(any(loom, shuttle))]
impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            pairs: [(); 3].map(|()| AtomicU64::new(0)),
            claim: AtomicU32::new(0),
            token: crate::sync::Mutex::ranked(crate::sync::Rank::Token, ()),
            taken: [(); 3].map(|()| UnsafeCell::new(0)),
            seen: UnsafeCell::new(0),
        }
    }
}

impl<M: Memory> Store<M> {
    /// The pair of `cpu`, from outside any operation: a hint.
    pub(crate) fn pair(&self, cpu: u32, which: Which) -> Pair {
        // Relaxed: what the numbers name is only looked at through atomics until `replace` has confirmed the pair.
        self.slot(cpu).map_or(Pair::SENTINELS, |s| Pair::of(s.pairs[which as usize].load(Relaxed)))
    }

    pub(crate) fn pop_body(&self, cpu: u32, which: Which, commit: Commit) -> Pop {
        self.pop_from(self.pair(cpu, which).loaded, commit)
    }
    pub(crate) fn pop_from(&self, loaded: Num, commit: Commit) -> Pop {
        let magazine = self.get(loaded);
        let word = magazine.word.load(Relaxed);
        let len = word & MAG_LEN;
        if len == 0 {
            if planted("a miss counts as an operation") {
                magazine.word.store(word.wrapping_add(MAG_OP), Relaxed);
            }
            return Pop::Miss;
        }
        let Some(round) = magazine.round(len as usize - 1) else { return Pop::Miss };
        if planted("operations counted before the commit") {
            magazine.word.store(word.wrapping_add(MAG_OP), Relaxed);
        }
        // The one committing store: length and operation count together. Relaxed: the mechanism orders it.
        if commit == Commit::Done {
            let taken = if planted("a pop leaves its round in the magazine") { 0 } else { 1 };
            magazine.word.store(word - taken + MAG_OP, Relaxed);
            tell!(self => "pops {} off magazine {}", crate::sync::story::name(round), loaded.0);
        }
        Pop::Round(round)
    }

    pub(crate) fn push_body(&self, cpu: u32, which: Which, round: NonNull<u8>, commit: Commit) -> Push {
        self.push_on(self.pair(cpu, which).loaded, round, commit)
    }
    pub(crate) fn push_on(&self, loaded: Num, round: NonNull<u8>, commit: Commit) -> Push {
        let magazine = self.get(loaded);
        let word = magazine.word.load(Relaxed);
        let len = word & MAG_LEN;
        if len >= u64::from(magazine.capacity()) {
            return Push::Miss;
        }
        // Speculative: nobody reads at `len` before `len` moves.
        magazine.set_round(len as usize, round);
        if commit == Commit::Done {
            magazine.word.store(word + 1 + MAG_OP, Relaxed);
            tell!(self => "pushes {} on magazine {}", crate::sync::story::name(round), loaded.0);
        }
        Push::Done
    }

    /// Only a drain can strike between the look at the fill and the CAS, and a drain only ever writes sentinels: the
    /// slot cannot leave `old` and come back inside one operation.
    pub(crate) fn replace_body(
        &self,
        cpu: u32,
        which: Which,
        old: Pair,
        new: Pair,
        leaving: Fill,
        commit: Commit,
    ) -> Replace {
        let Some(slot) = self.slot(cpu) else { return Replace::Changed };
        let pair = &slot.pairs[which as usize];
        // The pair first: the fill may only be read of a magazine that this CPU holds.
        if pair.load(Relaxed) != old.word() {
            return Replace::Changed;
        }
        if !planted("replace without the fill re-check") && !self.get(old.previous).is(leaving) {
            return Replace::Changed;
        }
        if commit != Commit::Done {
            return Replace::Changed;
        }
        let done = if planted("replace by a plain store") {
            pair.store(new.word(), Relaxed);
            true
        } else {
            // Relaxed: the mechanism orders the operations of a CPU, and a drain fences before it looks at what it took.
            pair.compare_exchange(old.word(), new.word(), Relaxed, Relaxed).is_ok()
        };
        tell!(self => "replaces {old} by {new} of CPU {cpu} ({which:?}): {}", if done { "done" } else { "changed" });
        if done { Replace::Done } else { Replace::Changed }
    }

    /// A drain's first step: from any CPU, outside any operation. What it returns may be touched only after a fence
    /// of `cpu`.
    pub(crate) fn take(&self, cpu: u32, which: Which) -> Pair {
        let Some(slot) = self.slot(cpu) else { return Pair::SENTINELS };
        let pair = &slot.pairs[which as usize];
        let held = if planted("drain by load and store") {
            let held = pair.load(Relaxed);
            pair.store(0, Relaxed);
            held
        } else {
            // Relaxed: the fence that follows orders what was done to the magazines.
            pair.swap(0, Relaxed)
        };
        tell!(self => "drains {} from CPU {cpu} ({which:?})", Pair::of(held));
        Pair::of(held)
    }
}
