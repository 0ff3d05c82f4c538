//! A region: the memory that contains one CPU's stacks, one stack per class. Each function that changes a region
//! corresponds to one restartable sequence (section).
//!
//! ```text
//!  claim, committed, notes | stack of one class                        | stack of another one | ...
//!                            seen, cap, limit|quiet, head,   0 p p p p . . .
//!                                                     len:16|ops:48
//! ```
//!
//! * The word `head` contains the number of objects on the stack, and the number of pops and pushes that the stack has
//!   served. Every section commits with one plain store to one head.
//! * The number `cap` is the stack's current capacity, in objects. The capacity is 0 if the class was never used on the
//!   CPU, so every push misses. A batch push can raise `cap`, at most to `limit`. A `limit` of 0 closes the stack,
//!   which the [table](crate::table) can open again.
//! * The number `quiet` is the stack's limit minus one magazine. A push to a stack with fewer than `quiet` objects
//!   prefetches the object's cache line for writing. The next pop passes the object to a user, which will write to it.
//!   A push to a fuller stack does not prefetch the object, because the stack's newest magazine will soon move to the
//!   depot. If a CPU only frees, its stack always has at least `quiet` objects. If a CPU frees and allocates, its stack
//!   rarely has `quiet` objects.
//! * A word that is always null precedes the objects. A pop that reads the null word has found the stack empty, and
//!   misses. A pop makes no other test for an empty stack.
//! * A push misses if the same object is already on top of the stack, because it was then freed twice. After a push has
//!   missed for this reason, the slow path can detect the double free.
//! * Only drains use `seen` and the notes (`taken`, `served`, `backed`, `unwritable_pages`).
//!
//! The head and the objects of a stack are adjacent. A section reaches the head and the objects from one address, and
//! the head shares a cache line with the lowest objects. With the heads in a separate array, an allocation and a free
//! together took 10 % longer.
//!
//! The stack of a class is at the same offset in every region. In a region that contains only zeros, every pop and
//! every push misses. The [empty region](crate::table), and the region of a CPU that was never used, contain only
//! zeros.
//!
//! A function of this module runs inside one operation on the CPU. No other operation on the same CPU runs during the
//! call. The mechanism guarantees this exclusive access. The claimed mechanism and the token model of restartable
//! sequences execute these functions. `cpu::rseq` implements the same steps in assembly, and a test compares the two
//! implementations. The module [`table`](crate::table) describes what an operation on a region must not do.

// Under a checker, a region consists of cells.
#[cfg_attr(any(loom, shuttle), path = "region/cells.rs")]
mod layout;

use crate::magazine::Magazine;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::tell;
use core::ptr::NonNull;
pub(crate) use layout::*;

/// Mask of the low 16 bits of a head, which contain the stack's length.
pub(crate) const LEN_MASK: u64 = 0xffff;
/// The amount added to a head to count one operation; the operation count is above the bits of the length.
pub(crate) const OP_STEP: u64 = 1 << 16;
/// Mask of the lower half of a limit word, which contains the limit. The upper half of a limit word contains `quiet`.
const LIMIT_MASK: u32 = 0xffff;
/// A flag in a class's `served` word. The flag is set while a thread moves the operation count from the head to
/// `served`.
const MOVING_FLAG: u64 = 1;
/// The amount added to a `served` word to count one operation; the operation count is above the flag.
const SERVED_STEP: u64 = 2;
pub(crate) const ROUND: usize = size_of::<*mut u8>();

/// Maximum number of bytes of address space for one CPU's region.
pub const REGION: usize = 4 << 20;

/// A set of pages of a region, as a bitmap of page numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages([u64; REGION / 4096 / 64]);

impl Pages {
    pub(crate) fn add(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    pub(crate) fn difference(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
    pub(crate) fn has_page(&self, page: usize) -> bool {
        self.0[page / 64] & 1 << (page % 64) != 0
    }
    pub(crate) fn runs(&self) -> impl Iterator<Item = core::ops::Range<usize>> + '_ {
        let (mut at, end) = (0, 64 * self.0.len());
        core::iter::from_fn(move || {
            let start = (at..end).find(|page| self.has_page(*page))?;
            at = (start..end).find(|page| !self.has_page(*page)).unwrap_or(end);
            Some(start..at)
        })
    }
}

/// A class: the position of its stack, which is the same in every region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// The class number, which is unique in the table.
    pub(crate) index: u32,
    /// Byte offset from the start of a region to the head of the class's stack.
    pub(crate) stack: u32,
}

impl Class {
    /// Returns the byte offset in a region at which the first `places` entries of the class's stack end.
    pub(crate) const fn end(self, places: u32) -> usize {
        self.stack as usize + NULL + (places as usize + 1) * ROUND
    }
}

/// Where an operation ends: after its commit. In the model of restartable sequences, an operation can also be aborted
/// before its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    Done,
    #[cfg(any(loom, shuttle))]
    Aborted,
}

impl Region<'_> {
    /// Returns the head of the class's stack. The head is exact for operations on the CPU and for the region's owner,
    /// and may be stale for other threads.
    #[inline(always)]
    pub(crate) fn head(&self, class: Class) -> u64 {
        // Relaxed: the mechanism orders the operations of a CPU.
        self.head_word(class).load(Relaxed)
    }
    /// Commits an operation with one store to the head.
    #[inline(always)]
    pub(crate) fn set_head(&self, class: Class, head: u64) {
        self.writable(1);
        self.is_written(class);
        // Relaxed: the mechanism orders the operations of a CPU.
        self.head_word(class).store(head, Relaxed);
    }
    /// Returns the current capacity of the class's stack. Only an operation on the region's CPU, or the region's owner,
    /// may call `cap`.
    #[inline(always)]
    pub(crate) fn cap(&self, class: Class) -> u32 {
        // SAFETY: the caller is an operation of the CPU or owns the region, so no other thread writes the cell.
        self.cap_cell(class).with(|p| unsafe { *p })
    }
    /// Sets the current capacity of the class's stack. Only an operation on the region's CPU, or the region's owner,
    /// may call `set_cap`.
    pub(crate) fn set_cap(&self, class: Class, cap: u32) {
        self.writable(1);
        // SAFETY: the caller is an operation of the CPU or owns the region, so no other thread accesses the cell.
        self.cap_cell(class).with_mut(|p| unsafe { *p = cap });
    }
    /// Returns the `i`-th object on the class's stack, counted from 1. For `i` = 0, `round` reads the null word and
    /// returns `None`. Only an operation on the region's CPU, or the region's owner, may call `round`.
    #[inline(always)]
    pub(crate) fn round(&self, class: Class, i: u32) -> Option<NonNull<u8>> {
        // SAFETY: the caller is an operation of the CPU or owns the region, so no other thread writes the place.
        NonNull::new(self.place(class, i).with(|p| unsafe { *p }))
    }
    #[inline(always)]
    fn set_round(&self, class: Class, i: u32, round: NonNull<u8>) {
        self.writable(class.end(i));
        // SAFETY: the caller is an operation of the CPU or owns the region, so no other thread accesses the place.
        self.place(class, i).with_mut(|p| unsafe { *p = round.as_ptr() });
    }
    // ---- the sections ----

    #[inline(always)]
    pub(crate) fn pop(&self, class: Class, commit: Commit) -> Option<NonNull<u8>> {
        let head = self.head(class);
        let round = self.round(class, (head & LEN_MASK) as u32)?;
        // One store commits the length and the count together.
        if commit == Commit::Done {
            self.set_head(class, head.wrapping_add(OP_STEP) - 1);
            tell!(self => "pops {}", crate::sync::story::name(round));
        }
        Some(round)
    }

    /// Pushes an object on the class's stack. Returns `false` if the stack is full, or if the object is already on top
    /// of it.
    #[inline(always)]
    pub(crate) fn push(&self, class: Class, round: NonNull<u8>, commit: Commit) -> bool {
        let head = self.head(class);
        let (len, cap) = ((head & LEN_MASK) as u32, self.cap(class));
        if len >= cap || self.round(class, len) == Some(round) {
            return false;
        }
        // No reader sees the stored object before the stack's length grows.
        self.set_round(class, len + 1, round);
        if commit == Commit::Done {
            self.set_head(class, head.wrapping_add(OP_STEP) + 1);
            tell!(self => "pushes {}", crate::sync::story::name(round));
        }
        true
    }

    /// Pushes all of `rounds` on the class's stack, or pushes none of them. The push may double `cap`, or raise it to
    /// what the batch needs, within the limit and the committed memory.
    ///
    /// The operation computes the new `cap` only from values that it has read. The new `cap` is therefore valid even if
    /// the operation is aborted afterwards.
    pub(crate) fn push_batch(&self, class: Class, rounds: &[NonNull<u8>], commit: Commit) -> bool {
        let head = self.head(class);
        let (len, cap) = ((head & LEN_MASK) as u32, self.cap(class));
        let need = len + rounds.len() as u32;
        if need > cap {
            // Acquire: pairs with the Release in `open`, which makes a drained stack usable again.
            let limit = self.limit_word(class).load(Acquire);
            let limit = limit & LIMIT_MASK;
            let cap = (2 * cap).max(need).min(limit);
            let end = class.end(cap);
            if need > cap || end > self.committed() {
                return false;
            }
            self.set_cap(class, cap);
        }
        let all = head + rounds.len() as u64;
        for (i, round) in (len + 1..).zip(rounds) {
            self.set_round(class, i, *round);
        }
        if commit == Commit::Done {
            self.set_head(class, all);
            tell!(self => "pushes a batch of {}", rounds.len());
        }
        true
    }

    /// Pops the `n` newest objects from the class's stack, or pops none if it has fewer.
    pub(crate) fn pop_batch(&self, class: Class, n: u32, into: &mut Magazine, commit: Commit) -> bool {
        let head = self.head(class);
        let Some(rest) = ((head & LEN_MASK) as u32).checked_sub(n) else { return false };
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

    // ---- for the region's owner: a drain ----

    /// Closes the class's stack, and records that its objects belong to drain `drain`. The taken objects stay where
    /// they are until the drain flushes them.
    pub(crate) fn take(&self, class: Class, drain: u64) {
        let head = self.head(class);
        let len = head & LEN_MASK;
        if len > 0 {
            debug_assert_eq!(self.taken_rounds(class), 0, "no thread pushes to a closed stack");
            // Relaxed: the drain of that number reads its own store. Other threads use the stored value only
            // as a count.
            self.taken_word(class).store((drain * OP_STEP) | len, Relaxed);
            self.set_head(class, head & !LEN_MASK);
            tell!(self => "takes a stack of {len}");
        }
        self.close(class);
    }
    /// Closes the class's stack in this region, so that nothing can be pushed on it.
    pub(crate) fn close(&self, class: Class) {
        // The memory of a stack that was never written may be uncommitted.
        if self.is_open(class) {
            self.set_cap(class, 0);
            // Relaxed: the caller owns the region.
            self.limit_word(class).store(0, Relaxed);
        }
    }
    /// Opens the class's stack in this region, for up to `limit` objects. The [module](self) defines `quiet`. The
    /// caller must hold the drain lock, and no drain may be flushing objects of this stack.
    pub(crate) fn open(&self, class: Class, limit: u16, quiet: u16) {
        self.writable(1);
        {
            let limit = u32::from(limit) | u32::from(quiet) << 16;
            // Release: pairs with the Acquire in `push_batch`, which overwrites places that a drain has read.
            self.limit_word(class).store(limit, Release);
        }
        tell!(self => "opens a stack with the limit word {limit:#x}");
    }
    /// Returns `true` if the class's stack is open in this region. The result is exact if the calling thread holds the
    /// table's drain lock.
    pub(crate) fn is_open(&self, class: Class) -> bool {
        self.limit(class) > 0
    }
    /// Returns the maximum capacity of the class's stack; 0 if the stack is closed. The result is exact if the calling
    /// thread holds the table's drain lock.
    pub(crate) fn limit(&self, class: Class) -> u32 {
        // Relaxed: the lock of drains orders the limit, which is a hint for other threads.
        self.limit_word(class).load(Relaxed) & LIMIT_MASK
    }
    /// Returns `quiet` of the class's stack, as the [module](self) defines it. The result is exact if the calling
    /// thread holds the table's drain lock.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn quiet(&self, class: Class) -> u32 {
        // Relaxed: the lock of drains orders `quiet`, which is a hint for other threads.
        self.limit_word(class).load(Relaxed) >> 16
    }
    /// Returns to the stack the objects that a drain took and will never flush.
    pub(crate) fn return_taken_rounds(&self, class: Class) {
        let taken = self.taken_rounds(class);
        if taken > 0 {
            self.set_head(class, self.head(class) | u64::from(taken));
            self.clear_taken_record(class);
        }
    }
    /// Transfers the objects that drain `from` took to drain `to`, if drain `from` has not begun to flush them. The
    /// calling thread must hold the table's drain lock.
    pub(crate) fn reassign_rounds(&self, class: Class, from: u64, to: u64) {
        // Relaxed: the lock of drains orders the note with later readers.
        let taken = self.taken_word(class).load(Relaxed);
        if taken / OP_STEP == from {
            self.taken_word(class).store((to * OP_STEP) | taken & LEN_MASK, Relaxed);
        }
    }
    /// Returns the region's pages that may be backed by memory. The calling thread must hold the table's drain lock.
    pub(crate) fn backed_pages(&self) -> Pages {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.backed_cell().with(|p| unsafe { *p })
    }
    /// Sets the region's pages that may be backed by memory. The calling thread must hold the table's drain lock.
    pub(crate) fn set_backed_pages(&self, pages: &Pages) {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.backed_cell().with_mut(|p| unsafe { *p = *pages });
    }
    /// Returns the region's pages that no operation can write until the running decommit ends. The calling thread must
    /// hold the table's drain lock.
    pub(crate) fn unwritable_pages(&self) -> Pages {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.unwritable_pages_cell().with(|p| unsafe { *p })
    }
    /// Sets the region's pages that no operation can write until the running decommit ends. The calling thread must
    /// hold the table's drain lock.
    pub(crate) fn mark_pages_unwritable(&self, pages: &Pages) {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.unwritable_pages_cell().with_mut(|p| unsafe { *p = *pages });
    }
    /// Returns the head of the class's stack at the last call of [`record_head`](Self::record_head). The calling thread
    /// must hold the table's drain lock.
    pub(crate) fn recorded_head(&self, class: Class) -> u64 {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.seen_cell(class).with(|p| unsafe { *p })
    }
    /// Records the current head of the class's stack. The calling thread must hold the table's drain lock.
    pub(crate) fn record_head(&self, class: Class) {
        let head = self.head(class);
        // The memory of a stack that was never written may be uncommitted.
        if self.recorded_head(class) != head {
            self.set_recorded_head(class, head);
        }
    }
    fn set_recorded_head(&self, class: Class, head: u64) {
        // SAFETY: the caller holds the lock of drains, which protects the cell.
        self.seen_cell(class).with_mut(|p| unsafe { *p = head });
    }
    /// Resets the class's counts and notes, so that a new owner can use the class number.
    pub(crate) fn reset(&self, class: Class) {
        self.move_operation_count(class);
        // The memory of a stack that was never written may be uncommitted.
        if self.recorded_head(class) != 0 {
            self.set_recorded_head(class, 0);
        }
        // Relaxed: the class of any concurrent reader has been retired.
        if self.served_word(class).load(Relaxed) != 0 {
            self.served_word(class).store(0, Relaxed);
        }
        self.clear_taken_record(class);
    }
    /// Moves the operation count of an empty stack from the head to the region's header, so that the stack's page can
    /// be decommitted.
    pub(crate) fn move_operation_count(&self, class: Class) {
        let head = self.head(class);
        if head != 0 {
            debug_assert_eq!(head & LEN_MASK, 0, "a stack that holds rounds is not idle");
            // Relaxed: this thread holds the lock of drains, and no other thread writes the word.
            let served = self.served_word(class).load(Relaxed);
            self.served_word(class).store(served | MOVING_FLAG, Relaxed);
            self.writable(1);
            // Release: pairs with the Acquire of the head in `served`, which then sees `MOVING_FLAG`.
            self.head_word(class).store(0, Release);
            // Release: pairs with the first Acquire in `served`, which then sees the cleared head.
            self.served_word(class).store(served + head / OP_STEP * SERVED_STEP, Release);
            self.set_recorded_head(class, 0);
        }
    }
    /// Returns the number of pops and pushes that the class has served on this CPU, and the number of objects on its
    /// stack. The two numbers are consistent with each other. Any thread may call `served`.
    pub(crate) fn served(&self, class: Class) -> (u64, u64) {
        loop {
            // Acquire: pairs with the second Release in `move_operation_count`.
            let served = self.served_word(class).load(Acquire);
            // Acquire: pairs with the first Release in `move_operation_count`.
            let head = self.head_word(class).load(Acquire);
            // Relaxed: the preceding Acquire load orders this load.
            if served & MOVING_FLAG == 0 && self.served_word(class).load(Relaxed) == served {
                return (served / SERVED_STEP + head / OP_STEP, head & LEN_MASK);
            }
            crate::sync::relax();
        }
    }
    /// Returns the number of objects that a drain has taken but not begun to flush.
    pub(crate) fn taken_rounds(&self, class: Class) -> u32 {
        // Relaxed: other callers use the value only as a count, and the drain that stored the value sees its
        // own store.
        (self.taken_word(class).load(Relaxed) & LEN_MASK) as u32
    }
    /// Returns the number of taken objects that belong to drain `drain`. Only drain `drain` may call `rounds_taken_by`.
    pub(crate) fn rounds_taken_by(&self, class: Class, drain: u64) -> u32 {
        // Relaxed: drain `drain` reads its own store, and any other value counts as 0.
        let taken = self.taken_word(class).load(Relaxed);
        if taken / OP_STEP == drain { (taken & LEN_MASK) as u32 } else { 0 }
    }
    /// Clears the record of taken objects, because a drain is flushing them or they are lost.
    pub(crate) fn clear_taken_record(&self, class: Class) {
        // Relaxed: only the drain that took the objects depends on the value.
        self.taken_word(class).store(0, Relaxed);
        tell!(self => "flushes the drained rounds");
    }
}
