//! A region: what one CPU keeps of every class, and what one section does to it.
//!
//! ```text
//!  claim, committed, notes | stack of one class                        | stack of another one | ...
//!                            seen, cap, limit|quiet, head,   0 p p p p . . .
//!                                                     len:16|ops:48
//! ```
//!
//! * `head`: how many rounds lie on the stack, and how many pops and pushes it has served. Every section commits by one plain
//!   store to one head.
//! * `cap`: how many places of the stack may be used now. 0 in a class that was never used here, so nothing can be pushed
//!   there; a batch widens it, up to `limit`. Where that is 0 the class is closed: the [table](crate::table) opens it.
//! * `quiet`: the limit less one magazine. A push below it prefetches the line of its round to write, because the next pop hands the
//!   round to a user who writes to it. A stack from `quiet` on will give its newest magazine away. The stack of a CPU that only
//!   frees is always that full; that of a CPU which allocates as much as it frees rarely is.
//! * A word that is always null, and the rounds behind it. A pop that reads the null has missed: no other test.
//! * A push misses if its round is on top already: the round was freed twice. The slow path can find out.
//! * `seen` and the notes (`taken`, `served`, `backed`, `going`) are a drain's.
//!
//! All of a stack lies together, so a section finds everything by one address, and the line of the head is that of the
//! lowest rounds. (With heads in an array of their own a hot pair took a tenth more.)
//!
//! A class lies at the same offset in every region. A region of nothing but zeros answers every pop and every push with a
//! miss; that is what the [empty region](crate::table) is, and what the region of a CPU is that was never used.
//!
//! The functions here run inside one operation of the CPU: no other operation of that CPU overlaps. A mechanism sees to
//! that: `cpu::claimed` runs these bodies, `cpu::rseq` has the same steps in assembly (a test compares the two), and under a
//! checker the token model of it runs these bodies again. What an operation on a region must not do is listed with
//! [`Table`](crate::Table).

// A checker has a region of its own cells.
#[cfg_attr(any(loom, shuttle), path = "region/cells.rs")]
mod layout;

use crate::magazine::Magazine;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{planted, tell};
use core::ptr::NonNull;
pub(crate) use layout::*;

/// A head's length, in the low 16 bits,
pub(crate) const LEN: u64 = 0xffff;
/// and above it the count of pops and pushes.
pub(crate) const OP: u64 = 1 << 16;
/// The lower half of a limit's word is the limit, the upper half `quiet`.
const LIMITED: u32 = 0xffff;
/// What a region notes of pops and pushes whose head was set to zero: the lowest bit says that this is going on,
const MOVING: u64 = 1;
/// and above it is how many they were.
const SERVED: u64 = 2;
/// Bytes of a round.
pub(crate) const ROUND: usize = size_of::<*mut u8>();

/// Bytes of addresses of a region, at most.
pub const REGION: usize = 4 << 20;

/// A set of a region's pages, by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages([u64; REGION / 4096 / 64]);

impl Pages {
    pub(crate) fn add(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    pub(crate) fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
    pub(crate) fn has(&self, page: usize) -> bool {
        self.0[page / 64] & 1 << (page % 64) != 0
    }
    /// Runs of pages that follow each other.
    pub(crate) fn runs(&self) -> impl Iterator<Item = core::ops::Range<usize>> + '_ {
        let (mut at, end) = (0, 64 * self.0.len());
        core::iter::from_fn(move || {
            let start = (at..end).find(|page| self.has(*page))?;
            at = (start..end).find(|page| !self.has(*page)).unwrap_or(end);
            Some(start..at)
        })
    }
}

/// Where a class lies in every region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// Its number within the table.
    pub(crate) index: u32,
    /// Bytes from the start of a region to the head of its stack.
    pub(crate) stack: u32,
}

impl Class {
    /// Bytes from the start of a region to the end of the first `places` places.
    pub(crate) const fn end(self, places: u32) -> usize {
        self.stack as usize + NULL + (places as usize + 1) * ROUND
    }
}

/// Whether a body commits. Only the model of restartable sequences ever stops short of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Done,
    #[cfg(any(loom, shuttle))]
    Aborted,
}

impl Region<'_> {
    /// The head: exact inside an operation and for whoever owns the region, a snapshot for anybody else.
    #[inline(always)]
    pub(crate) fn head(&self, class: Class) -> u64 {
        // Relaxed: the mechanism orders the operations of a CPU.
        self.head_word(class).load(Relaxed)
    }
    /// The one store by which an operation commits.
    #[inline(always)]
    pub(crate) fn set_head(&self, class: Class, head: u64) {
        self.writable(1);
        self.is_written(class);
        // Relaxed: as in `head`.
        self.head_word(class).store(head, Relaxed);
    }
    /// For operations of its CPU and whoever owns the region.
    #[inline(always)]
    pub(crate) fn cap(&self, class: Class) -> u32 {
        // SAFETY: inside an operation of the CPU, or the region is the caller's: nobody writes.
        self.cap_cell(class).with(|p| unsafe { *p })
    }
    /// As [`cap`](Self::cap).
    pub(crate) fn set_cap(&self, class: Class, cap: u32) {
        self.writable(1);
        // SAFETY: as in `cap`, and nobody else reads.
        self.cap_cell(class).with_mut(|p| unsafe { *p = cap });
    }
    /// Round `i`, counted from 1; `None` is the null word. As [`cap`](Self::cap).
    #[inline(always)]
    pub(crate) fn round(&self, class: Class, i: u32) -> Option<NonNull<u8>> {
        // SAFETY: as in `cap`.
        NonNull::new(self.place(class, i).with(|p| unsafe { *p }))
    }
    #[inline(always)]
    fn set_round(&self, class: Class, i: u32, round: NonNull<u8>) {
        self.writable(class.end(i));
        // SAFETY: as in `set_cap`.
        self.place(class, i).with_mut(|p| unsafe { *p = round.as_ptr() });
    }
    // ---- the sections ----

    /// The newest round of the class.
    #[inline(always)]
    pub(crate) fn pop(&self, class: Class, commit: Commit) -> Option<NonNull<u8>> {
        let head = self.head(class);
        let round = self.round(class, (head & LEN) as u32)?;
        planted!("operations counted before the commit" => self.set_head(class, head.wrapping_add(OP)));
        // The one committing store: length and count together.
        if commit == Commit::Done {
            self.set_head(class, head.wrapping_add(OP) - 1);
            planted!("a pop leaves its round on the stack" => self.set_head(class, head.wrapping_add(OP)));
            tell!(self => "pops {}", crate::sync::story::name(round));
        }
        Some(round)
    }

    /// Puts a round on the class's stack; `false` if no place may be used, or it is on top already.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, round: NonNull<u8>, commit: Commit) -> bool {
        let head = self.head(class);
        let (len, cap) = ((head & LEN) as u32, self.cap(class));
        planted!("a push goes above the last place" => let cap = cap + 1);
        if len >= cap || self.round(class, len) == Some(round) {
            return false;
        }
        // Speculative: nobody reads above `len` before `len` moves.
        self.set_round(class, len + 1, round);
        if commit == Commit::Done {
            self.set_head(class, head.wrapping_add(OP) + 1);
            tell!(self => "pushes {}", crate::sync::story::name(round));
        }
        true
    }

    /// Puts all these rounds on the class's stack, or none. It may use more places than now, up to its limit and to what is
    /// committed: twice as many, or as many as it takes.
    ///
    /// The new `cap` is worked out in here, from what this operation has read: so it does no harm that it stays where the
    /// operation is aborted behind it.
    pub(crate) fn push_batch(&self, class: Class, rounds: &[NonNull<u8>], commit: Commit) -> bool {
        let head = self.head(class);
        let (len, cap) = ((head & LEN) as u32, self.cap(class));
        let need = len + rounds.len() as u32;
        if need > cap {
            // Acquire: pairs with the Release in `open`, by which a stack that was drained may be used again.
            let limit = self.limit_word(class).load(Acquire);
            let limit = limit & LIMITED;
            planted!("a stack is widened beyond its limit" => let limit = u32::MAX);
            let cap = (2 * cap).max(need).min(limit);
            let end = class.end(cap);
            planted!("a region is widened before it is committed" => let end = 0);
            if need > cap || end > self.committed() {
                return false;
            }
            self.set_cap(class, cap);
        }
        let all = head + rounds.len() as u64;
        planted!("a batch is committed before its rounds are written" => self.set_head(class, all));
        for (i, round) in (len + 1..).zip(rounds) {
            self.set_round(class, i, *round);
        }
        if commit == Commit::Done {
            self.set_head(class, all);
            tell!(self => "pushes a batch of {}", rounds.len());
        }
        true
    }

    /// Takes the `n` newest rounds, or none.
    pub(crate) fn pop_batch(&self, class: Class, n: u32, into: &mut Magazine, commit: Commit) -> bool {
        let head = self.head(class);
        let Some(rest) = ((head & LEN) as u32).checked_sub(n) else { return false };
        let mut batch = Magazine::new();
        for i in 1..=n {
            let Some(round) = self.round(class, rest + i) else { return false };
            batch.push(round);
        }
        if commit == Commit::Done {
            self.set_head(class, head - u64::from(n));
            tell!(self => "pops a batch of {n}");
        }
        *into = batch;
        true
    }

    // ---- for whoever owns the region: a drain ----

    /// Closes the class's stack and notes how many rounds lie on it: from now on they are that drain's, where they lie.
    pub(crate) fn take(&self, class: Class, drain: u64) {
        let head = self.head(class);
        let len = head & LEN;
        if len > 0 {
            debug_assert_eq!(self.taken(class), 0, "a stack that is closed is pushed to by nobody");
            // Relaxed: the drain of that number reads what it has written itself; to others it is a number.
            self.taken_word(class).store((drain * OP) | len, Relaxed);
            self.set_head(class, head & !LEN);
            tell!(self => "takes a stack of {len}");
        }
        self.close(class);
    }
    /// No place may be used from now on.
    pub(crate) fn close(&self, class: Class) {
        planted!("a drained stack stays open" => return);
        // What was never written is no memory yet.
        if self.is_open(class) {
            self.set_cap(class, 0);
            // Relaxed: the region is the caller's.
            self.limit_word(class).store(0, Relaxed);
        }
    }
    /// Up to `limit` places may be used; see the module for `quiet`. For who holds the lock of drains, while nobody gives away what lies there.
    pub(crate) fn open(&self, class: Class, limit: u16, quiet: u16) {
        self.writable(1);
        {
            let limit = u32::from(limit) | u32::from(quiet) << 16;
            // Release: pairs with the Acquire in `push_batch`, which writes where a drain has read.
            self.limit_word(class).store(limit, Release);
        }
        tell!(self => "opens a stack for {limit}");
    }
    /// Whether places may be used; exact for who holds the lock of drains.
    pub(crate) fn is_open(&self, class: Class) -> bool {
        self.limit(class) > 0
    }
    /// As [`is_open`](Self::is_open): how many.
    pub(crate) fn limit(&self, class: Class) -> u32 {
        // Relaxed: the lock orders it; for others it is a hint.
        self.limit_word(class).load(Relaxed) & LIMITED
    }
    /// See the module. As [`limit`](Self::limit).
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn quiet(&self, class: Class) -> u32 {
        // Relaxed: as in `limit`.
        self.limit_word(class).load(Relaxed) >> 16
    }
    /// What a drain took that will never give it away lies on the stack again.
    pub(crate) fn untake(&self, class: Class) {
        let taken = self.taken(class);
        if taken > 0 {
            self.set_head(class, self.head(class) | u64::from(taken));
            self.forget_taken(class);
        }
    }
    /// What drain `from` took is drain `to`'s from now on; for who holds the lock of drains, if `from` has not begun to give
    /// it away.
    pub(crate) fn hand_over(&self, class: Class, from: u64, to: u64) {
        // Relaxed: as in `take`; who reads it has the lock of drains behind us.
        let taken = self.taken_word(class).load(Relaxed);
        if taken / OP == from {
            self.taken_word(class).store((to * OP) | taken & LEN, Relaxed);
        }
    }
    /// Pages of stacks that may be memory. The lock of drains protects it.
    pub(crate) fn backed(&self) -> Pages {
        // SAFETY: the lock of drains is held.
        self.backed_cell().with(|p| unsafe { *p })
    }
    /// See [`backed`](Self::backed).
    pub(crate) fn set_backed(&self, pages: &Pages) {
        // SAFETY: as above.
        self.backed_cell().with_mut(|p| unsafe { *p = *pages });
    }
    /// Pages that nobody can write to before the drain that notes it is over. As [`backed`](Self::backed).
    pub(crate) fn going(&self) -> Pages {
        // SAFETY: as above.
        self.going_cell().with(|p| unsafe { *p })
    }
    /// See [`going`](Self::going).
    pub(crate) fn set_going(&self, pages: &Pages) {
        // SAFETY: as above.
        self.going_cell().with_mut(|p| unsafe { *p = *pages });
    }
    /// How far the class had come when [`see`](Self::see) was last called; for who holds the lock of drains.
    pub(crate) fn seen(&self, class: Class) -> u64 {
        // SAFETY: the lock of drains is held.
        self.seen_cell(class).with(|p| unsafe { *p })
    }
    /// As [`seen`](Self::seen): how far it has come now.
    pub(crate) fn see(&self, class: Class) {
        let head = self.head(class);
        // Where nothing was ever written there is no memory yet.
        if self.seen(class) != head {
            self.set_seen(class, head);
        }
    }
    fn set_seen(&self, class: Class, head: u64) {
        // SAFETY: the lock of drains is held.
        self.seen_cell(class).with_mut(|p| unsafe { *p = head });
    }
    /// The class begins anew, for another owner of its number.
    pub(crate) fn reset(&self, class: Class) {
        self.set_aside(class);
        // What was never written is no memory yet.
        if self.seen(class) != 0 {
            self.set_seen(class, 0);
        }
        // Relaxed: who reads it beside this has a class that is given back.
        if self.served_word(class).load(Relaxed) != 0 {
            self.served_word(class).store(0, Relaxed);
        }
        self.forget_taken(class);
    }
    /// Nothing of an empty stack is left on its page, which may go back then: how much it served is noted elsewhere.
    pub(crate) fn set_aside(&self, class: Class) {
        let head = self.head(class);
        if head != 0 {
            debug_assert_eq!(head & LEN, 0, "a stack that holds rounds is not idle");
            // Relaxed: the lock of drains is held, and nobody else writes it.
            let served = self.served_word(class).load(Relaxed);
            self.served_word(class).store(served | MOVING, Relaxed);
            self.writable(1);
            // Release: pairs with the Acquire of the head in `served`, which then sees that it is on its way.
            self.head_word(class).store(0, Release);
            // Release: pairs with the first Acquire in `served`, which then finds the head that was left.
            self.served_word(class).store(served + head / OP * SERVED, Release);
            self.set_seen(class, 0);
        }
    }
    /// How many pops and pushes the class has served, and how many rounds lie on its stack: for anybody, a snapshot.
    pub(crate) fn served(&self, class: Class) -> (u64, u64) {
        loop {
            // Acquire: pairs with the second Release in `set_aside`.
            let served = self.served_word(class).load(Acquire);
            // Acquire: pairs with the first Release in `set_aside`.
            let head = self.head_word(class).load(Acquire);
            // Relaxed: ordered by the load before it.
            if served & MOVING == 0 && self.served_word(class).load(Relaxed) == served {
                return (served / SERVED + head / OP, head & LEN);
            }
            crate::sync::relax();
        }
    }
    /// Rounds that a drain has taken and not begun to give away.
    pub(crate) fn taken(&self, class: Class) -> u32 {
        // Relaxed: as in `take`.
        (self.taken_word(class).load(Relaxed) & LEN) as u32
    }
    /// The same, if it is that drain; for that drain.
    pub(crate) fn taken_by(&self, class: Class, drain: u64) -> u32 {
        // Relaxed: as in `take`.
        let taken = self.taken_word(class).load(Relaxed);
        planted!("a drain gives away what another one took" => return (taken & LEN) as u32);
        if taken / OP == drain { (taken & LEN) as u32 } else { 0 }
    }
    /// They are given away now, or are lost.
    pub(crate) fn forget_taken(&self, class: Class) {
        // Relaxed: as in `take`.
        self.taken_word(class).store(0, Relaxed);
        tell!(self => "gives away what was taken");
    }
}
