//! Commitment of a zone's memory: commits, decommits, discards, and charges.
//!
//! Memory is committed one *maximal block* (largest order) at a time, when the lists of the type cannot serve a
//! request. Uncommitted memory counts as free: watermarks, buddyinfo and indices describe the zone, not the backed
//! memory. A zone begins at a multiple of the maximal block. If the size of a zone is not a multiple of the maximal
//! block, its last pages are the *tail*. The tail is committed as a whole, in the largest aligned blocks that fit.
//!
//! ## Decommitting and discarding
//!
//! A wholly free maximal block is *decommitted*. Free pages next to pages in use are *discarded*: the block stays free
//! and committed, and its pages are backed anew at the next touch. The zone uses `MADV_DONTNEED`, not `MADV_FREE`, so
//! that the process's memory use falls immediately. One system call discards adjacent free blocks, up to [`CHUNK`]
//! pages or one block. A freed block is backed, and so is the block into which it merges. The halves of a split block
//! keep the block's state. If two blocks have one order, a backed block is allocated before a discarded block.
//!
//! The counter `backed` has the number of free backed pages. The largest blocks are returned first:
//! * frees return the pages above the *surplus*, down to three quarters of the surplus. The surplus is an
//!   eighth of the pages in use, between a sixteenth of [`ZoneShared::keep`] and all of it. The lower bound
//!   of the surplus doubles when the number of pages that were returned and used again reaches the bound. The
//!   lower bound halves when four times as many pages as the bound were returned, and few of these pages were
//!   used again;
//! * [`decommit_idle`](Zone::decommit_idle) returns as many pages as were free throughout since its last call, and the
//!   pages that a reap has just freed;
//! * [`decommit_free`](Zone::decommit_free) returns all free pages.
//!
//! ## Charges
//!
//! Memory mapped outside the pages can be *charged* to a zone. A charged zone withdraws the charged number of
//! free pages, like a balloon in a virtual machine. A limit on the zones thus also covers charged memory.
//! With several zones, each zone is charged a part. All zones are locked while the room is checked and the
//! parts are charged.

use super::{CommitRefused, Inner, Zone, ZoneShared, blocks_between, byte_range, maximal_blocks};
use crate::PAGE_SIZE;
use crate::frame::{Kind, State};
use crate::free_area::ListEnd;
use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};
use core::ops::Range;
use uslab_magazine::sync::MutexGuard;

/// Order of the group of pages in which a discard searches for adjacent free blocks. The frames of the group
/// fill one OS page.
const CHUNK: u8 = 6;

impl Zone {
    /// Commits the next maximal block, or the tail if the tail can hold a block of `order`. Returns `Ok(false)` if no
    /// memory is left.
    pub(super) fn commit(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Result<bool, CommitRefused> {
        let (start, pages) = match inner.fresh.next() {
            Some(block) => (self.start.up(block * shared.max_order.pages()), shared.max_order.pages()),
            None => (self.tail_start(shared), self.tail_pages(shared)),
        };
        let is_tail = inner.fresh.next().is_none();
        if is_tail && (inner.tail_committed || pages < order.pages()) {
            return Ok(false);
        }
        let range = start.get()..start.get() + pages;
        let is_there = range.end as usize * PAGE_SIZE <= shared.region.bytes();
        if !is_there && !shared.grow(range.end)
            || !shared.frames.commit(range)
            || !shared.region.commit(byte_range(start, pages))
        {
            inner.events.commits_refused += 1;
            return Err(CommitRefused);
        }
        if is_tail {
            inner.tail_committed = true;
        } else {
            let returned = !inner.fresh.returned.is_empty();
            inner.taken_again += if returned { pages } else { 0 };
            inner.fresh.pop();
        }
        inner.uncommitted -= pages;
        inner.events.commits += 1;
        self.set_types(shared, start, pages, mobility);
        for (pfn, order) in maximal_blocks(start, pages, shared.max_order) {
            self.insert(
                shared,
                inner,
                pfn,
                State::new(Kind::Free, order, mobility).zero(true),
                ListEnd::Front,
            );
        }
        Ok(true)
    }

    /// Decommits all free pages of the zone. Returns the number of decommitted bytes.
    ///
    /// Releases the zone's lock between blocks.
    pub(crate) fn decommit_free(&self, shared: &ZoneShared) -> usize {
        let mut bytes = 0;
        let mut inner = self.inner.lock();
        let (start, pages) = (self.tail_start(shared), self.tail_pages(shared));
        if inner.tail_committed && self.is_maximal(shared, start, pages) {
            let discarded = inner.discarded;
            self.decommit_block(shared, &mut inner, start, pages);
            inner.tail_committed = false;
            // Pages that had already been returned do not count.
            bytes += (pages - (discarded - inner.discarded)) as usize * PAGE_SIZE;
        }
        drop(inner);
        bytes + self.decommit_down_to(shared, 0)
    }

    /// Ends an interval. Pages freed until [`decommit_idle`](Self::decommit_idle) count as unused in the interval.
    pub(crate) fn begin_reap(&self) {
        let mut inner = self.inner.lock();
        inner.recent = inner.backed - inner.idle;
    }
    /// Decommits free pages, except the number of pages that were used in the interval which the last
    /// [`begin_reap`](Self::begin_reap) ended. Returns the number of decommitted bytes.
    pub(crate) fn decommit_idle(&self, shared: &ZoneShared) -> usize {
        let keep = self.inner.lock().recent;
        let bytes = self.decommit_down_to(shared, keep);
        let mut inner = self.inner.lock();
        inner.idle = inner.backed;
        bytes
    }

    /// Decommits free pages, largest blocks first, until `keep` backed pages are left. Returns the number of
    /// decommitted bytes.
    ///
    /// Releases the zone's lock between blocks.
    pub(super) fn decommit_down_to(&self, shared: &ZoneShared, keep: u32) -> usize {
        let mut bytes = 0;
        loop {
            let mut inner = self.inner.lock();
            if inner.backed <= keep {
                return bytes;
            }
            let mut orders = shared.discard_from.through(shared.max_order).rev();
            let largest = orders.find_map(|order| Some((inner.area(order).last_backed()?, order)));
            let Some((pfn, order)) = largest else { return bytes };
            if order == shared.max_order {
                self.decommit_block(shared, &mut inner, pfn, order.pages());
                inner.fresh.push((pfn.get() - self.start.get()) >> order.get());
                bytes += order.bytes();
                continue;
            }
            let (run, pages) = self.mark_discarded(shared, &mut inner, pfn, order);
            if pages == 0 {
                // The frame disagrees with its list because of corruption, which the audit reports.
                return bytes;
            }
            bytes += pages as usize * PAGE_SIZE;
            // The lock is held until the memory is returned, so that no thread takes the pages.
            // SAFETY: the pages are on free lists of this zone, whose lock is held.
            inner.discards_zero &= unsafe { shared.discard(run) };
        }
    }

    /// Moves the backed free block `pfn` and its adjacent free blocks in the chunk to the lists of discarded
    /// blocks. Returns the resulting run of free pages, and the number of pages that were backed.
    fn mark_discarded(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        pfn: Pfn,
        order: Order,
    ) -> (Range<Pfn>, u32) {
        let chunk = order.max(Order::new(CHUNK).unwrap_or(Order::MAX).min(shared.max_order));
        let start = pfn.align_down(chunk);
        let end = start.up(chunk.pages()).min(self.end());
        let mut run = start..start;
        for (block, state) in blocks_between(&shared.frames, start, end) {
            if state.kind() != Kind::Free || state.order() < shared.discard_from {
                continue;
            }
            if block != run.end {
                if run.contains(&pfn) {
                    break;
                }
                run.start = block;
            }
            run.end = block.up(state.order().pages());
        }
        let mut backed = 0;
        for (block, state) in blocks_between(&shared.frames, run.start, run.end) {
            let pages = state.order().pages();
            if !state.is_discarded() {
                self.remove(shared, inner, block, state);
                self.insert(shared, inner, block, state.discarded(true).zero(true), ListEnd::Back);
                backed += pages;
                // SAFETY: all frames of a free block except the first are `Inside`, and no thread uses them.
                unsafe { shared.frames.discard(block.get() + 1..block.get() + pages) };
            }
        }
        inner.idle = inner.idle.min(inner.backed);
        inner.events.discards += 1;
        (run, backed)
    }

    /// Returns `true` if the `pages` pages from `start` are free in the largest possible blocks.
    fn is_maximal(&self, shared: &ZoneShared, start: Pfn, pages: u32) -> bool {
        maximal_blocks(start, pages, shared.max_order)
            .all(|(pfn, order)| shared.frames.frame(pfn).state().is_free(order))
    }

    /// Unlists the free maximal blocks of `pages` pages from `start` and decommits them.
    fn decommit_block(&self, shared: &ZoneShared, inner: &mut Inner, start: Pfn, pages: u32) {
        for (pfn, order) in maximal_blocks(start, pages, shared.max_order) {
            let frame = shared.frames.frame(pfn);
            debug_assert!(frame.state().is_free(order));
            self.remove(shared, inner, pfn, frame.state());
            frame.set_state(State::INSIDE);
        }
        self.set_types(shared, start, pages, shared.default_type());
        inner.uncommitted += pages;
        inner.idle = inner.idle.min(inner.backed);
        inner.events.decommits += 1;
        // SAFETY: the pages were free and are on no list now. No thread uses the unlisted pages or their frames, all of
        // which are `Inside`. The lock is held until the pages count as uncommitted.
        unsafe {
            inner.discards_zero &= shared.region.decommit(byte_range(start, pages));
            shared.frames.discard(start.get()..start.get() + pages);
        }
    }

    // --- Charges ---------------------------------------------------------------------------------------------

    /// Withdraws free pages, down to the minimum watermark. `others` is the function that charges the following zones.
    /// `others` receives the number of pages for which this zone has room, charges as many pages as it can, and returns
    /// the rest. Finally the zone charges as many of the remaining pages as it can, and `charge` returns the rest. If
    /// `others` returns `None`, the charge is refused and changes nothing.
    pub(crate) fn charge(&self, others: impl FnOnce(u32) -> Option<u32>) -> Option<u32> {
        // The lock is nested, because the thread holds the locks of earlier zones, in ascending order.
        let mut inner = self.inner.lock_nested();
        let room = inner.free().saturating_sub(self.marks.min);
        let left = others(room)?;
        let charged = left.min(room);
        inner.charged += charged;
        debug_assert!(
            inner.charged <= inner.listed + inner.uncommitted,
            "more pages are charged than are free"
        );
        Some(left - charged)
    }
    /// Cancels a charge of up to `pages` pages. Returns the number of pages whose charge was cancelled.
    pub(crate) fn uncharge(&self, pages: u32) -> u32 {
        let mut inner = self.inner.lock();
        let back = inner.charged.min(pages);
        inner.charged -= back;
        back
    }
    /// Decommits the backed pages in excess of the free pages. The zone and its charges then take no more memory than
    /// the zone's size. Without charges, the backed pages never exceed the free pages.
    pub(crate) fn decommit_charged(&self, shared: &ZoneShared, inner: MutexGuard<'_, Inner>) {
        let free = inner.free();
        let above = inner.backed > free;
        drop(inner);
        if above {
            self.decommit_down_to(shared, free);
        }
    }
}
