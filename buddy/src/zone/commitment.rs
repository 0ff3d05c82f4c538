//! The commitment of a zone's memory: commits, decommits, discards and charges.
//!
//! A zone commits memory in *maximal blocks* (blocks of the largest order), one at a time. A zone commits a maximal
//! block when the free lists of the requested migrate type cannot serve an allocation. Uncommitted memory counts as
//! free in watermarks, in buddyinfo and in the fragmentation indices. A zone begins at a multiple of the maximal block
//! size. If a zone's size is not a multiple of the maximal block size, the pages after its last maximal block are its
//! *tail*. The tail is committed as a whole, and is divided into the largest aligned blocks that fit.
//!
//! ## Decommitting and discarding
//!
//! A maximal block that is completely free is *decommitted*. Free blocks in a maximal block that also has pages in use
//! are *discarded*. A discarded block stays free and committed, and the next access backs its pages again. Discarding
//! uses `MADV_DONTNEED`, not `MADV_FREE`, so that the process's memory use drops immediately. One system call discards
//! adjacent free blocks within a group of 2^[`CHUNK`] pages, or one larger block. A block is backed after it is freed,
//! even if it merges with a discarded block. When a block is split, both halves keep its backed or discarded state.
//! Among free blocks of the same order, backed blocks are allocated before discarded blocks.
//!
//! The counter `backed` is the number of backed free pages. Three functions return memory to the OS, largest blocks
//! first:
//! * frees return pages when more than the *surplus* is backed, until three quarters of the surplus are left. The
//!   surplus is an eighth of the pages in use, but at least an adaptive lower bound and at most [`ZoneShared::keep`].
//!   The lower bound is between a sixteenth of [`ZoneShared::keep`] and all of it. The lower bound of the surplus
//!   doubles when the returned pages that were used again exceed the bound. The lower bound halves when the returned
//!   pages exceed four times the bound, and less than a quarter of them were used again;
//! * [`decommit_idle`](Zone::decommit_idle) returns as many pages as stayed free since its last call, and the pages
//!   that the current reap has freed;
//! * [`decommit_free`](Zone::decommit_free) returns the memory of all free pages to the OS.
//!
//! ## Charges
//!
//! Memory that other code maps can be *charged* to a zone. A charged zone withholds the charged number of free pages,
//! like a balloon in a virtual machine. A limit on the zones' memory thus also covers memory that other code maps. With
//! several zones, a charge is divided among them. All zones stay locked while a charge checks that enough pages are
//! free and is divided among the zones.

use super::{CommitRefused, Inner, Zone, ZoneShared, blocks_between, byte_range, maximal_blocks};
use crate::PAGE_SIZE;
use crate::frame::{Kind, State};
use crate::free_area::ListEnd;
use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};
use core::ops::Range;
use uslab_magazine::sync::MutexGuard;

/// Order of the aligned group of pages in which a discard looks for adjacent free blocks. The frames of the pages in
/// one chunk fill one OS page.
const CHUNK: u8 = 6;

impl Zone {
    /// Commits the next maximal block, or the tail if the tail can hold a block of `order`. Returns `Ok(false)` if no
    /// uncommitted memory is left.
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
        self.set_pageblock_types(shared, start, pages, mobility);
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

    /// Decommits all free pages of the zone, including the tail. Returns the number of decommitted bytes.
    ///
    /// The zone's lock is released between two blocks.
    pub(crate) fn decommit_free(&self, shared: &ZoneShared) -> usize {
        let mut bytes = 0;
        let mut inner = self.inner.lock();
        let (start, pages) = (self.tail_start(shared), self.tail_pages(shared));
        if inner.tail_committed && self.is_in_maximal_blocks(shared, start, pages) {
            let discarded = inner.discarded;
            self.decommit_block(shared, &mut inner, start, pages);
            inner.tail_committed = false;
            // Pages that had already been returned do not count.
            bytes += (pages - (discarded - inner.discarded)) as usize * PAGE_SIZE;
        }
        drop(inner);
        bytes + self.decommit_down_to(shared, 0)
    }

    /// Ends the zone's current reaping interval. Pages that are freed between this call and
    /// [`decommit_idle`](Self::decommit_idle) count as unused in the interval.
    pub(crate) fn end_reap_interval(&self) {
        let mut inner = self.inner.lock();
        inner.recent = inner.backed - inner.idle;
    }
    /// Decommits free pages that were not needed during the interval that
    /// [`end_reap_interval`](Self::end_reap_interval) ended. Returns the number of decommitted bytes.
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
    /// The zone's lock is released between two blocks.
    pub(super) fn decommit_down_to(&self, shared: &ZoneShared, keep: u32) -> usize {
        let mut bytes = 0;
        loop {
            let mut inner = self.inner.lock();
            if inner.backed <= keep {
                return bytes;
            }
            let mut orders = shared.discard_from.through(shared.max_order).rev();
            let largest = orders.find_map(|order| Some((inner.area(order).last_backed_block()?, order)));
            let Some((pfn, order)) = largest else { return bytes };
            if order == shared.max_order {
                self.decommit_block(shared, &mut inner, pfn, order.pages());
                inner.fresh.push((pfn.get() - self.start.get()) >> order.get());
                bytes += order.bytes();
                continue;
            }
            let (run, pages) = self.move_to_discarded_lists(shared, &mut inner, pfn, order);
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

    /// Marks the backed free block `pfn` and the adjacent free blocks in its chunk as discarded, and moves them to the
    /// discarded lists. Returns the run of free pages, and how many of them were backed.
    fn move_to_discarded_lists(
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

    /// Returns `true` if the `pages` pages from `start` are all free and merged into the largest possible blocks.
    fn is_in_maximal_blocks(&self, shared: &ZoneShared, start: Pfn, pages: u32) -> bool {
        maximal_blocks(start, pages, shared.max_order)
            .all(|(pfn, order)| shared.frames.frame(pfn).state().is_free(order))
    }

    /// Decommits the `pages` pages from `start`, whose blocks are free, and removes them from the free lists.
    fn decommit_block(&self, shared: &ZoneShared, inner: &mut Inner, start: Pfn, pages: u32) {
        for (pfn, order) in maximal_blocks(start, pages, shared.max_order) {
            let frame = shared.frames.frame(pfn);
            debug_assert!(frame.state().is_free(order));
            self.remove(shared, inner, pfn, frame.state());
            frame.set_state(State::INSIDE_BLOCK);
        }
        self.set_pageblock_types(shared, start, pages, shared.default_type());
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

    /// Charges this zone and the following zones. A zone can be charged its free pages above the min watermark. The
    /// callback `others` charges the following zones. The argument of `others` is the number of pages that this zone
    /// can be charged. After charging the other zones, `others` returns the number of pages that are left to charge. Of
    /// the pages that are left to charge, this zone is charged as many as possible, and `charge` returns the rest. If
    /// `others` returns `None`, the charge fails and changes nothing.
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
    /// Cancels up to `pages` pages of this zone's charge. Returns the number of pages whose charge was cancelled.
    pub(crate) fn uncharge(&self, pages: u32) -> u32 {
        let mut inner = self.inner.lock();
        let back = inner.charged.min(pages);
        inner.charged -= back;
        back
    }
    /// Decommits backed free pages until their number is at most the number of free uncharged pages. As a result, the
    /// zone's memory and its charges together do not exceed the zone's size. Without charges, the function does
    /// nothing, because backed pages never exceed free pages.
    pub(crate) fn decommit_excess_pages(&self, shared: &ZoneShared, inner: MutexGuard<'_, Inner>) {
        let free = inner.free();
        let above = inner.backed > free;
        drop(inner);
        if above {
            self.decommit_down_to(shared, free);
        }
    }
}
