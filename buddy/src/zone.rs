//! A zone: the buddy allocator proper.
//!
//! A zone is a run of pages. Its free pages are in blocks of `2^order` pages, each starting at a multiple of
//! its size. Two blocks of one order that are halves of one block of the next order are *buddies*:
//! `pfn ^ 2^order`. An allocation takes a block of the smallest order that is large enough and **splits** it,
//! keeping the low half each time. A free **merges** the block with its buddy while the buddy is free, too.
//! Both cost O(1) per order: the buddy's frame says whether it is free, and lists are doubly linked (Knuth,
//! TAOCP 1, 2.5; the kernel's `page_alloc.c`).
//!
//! ## What keeps large blocks free
//!
//! * **Migrate types.** Pages that can be moved or dropped share pageblocks, apart from pages that stay. A
//!   request goes down this ladder:
//!   1. its own type, smallest fit;
//!   2. reserved memory that was never committed, or was decommitted: it has no type yet;
//!   3. *claim*: from the largest block of the fallback types downwards, take over the block's whole pageblock
//!      if the type can hope to fill it (a block of a pageblock or more always; a smaller one if half of the
//!      pageblock is free or compatible);
//!   4. *steal*: the smallest block of a fallback type that is large enough; its pageblock keeps its type, so
//!      that the page returns to the same type.
//! * **Placement.** A freed block whose merged buddy's buddy is free goes to the back of its list: with a
//!   little time, the two merge into a block two orders up.
//!
//! ## Commitment
//!
//! Memory is committed one *maximal block* (largest order) at a time, when the lists of the type cannot
//! serve. Uncommitted memory counts as free: watermarks, buddyinfo and indices describe the zone, not the
//! backed memory. A zone begins at a multiple of the maximal block. If its size is no such multiple, its last
//! pages are the *tail*: committed together, they coalesce to the largest aligned blocks that fit.
//!
//! ## Decommitting and discarding
//!
//! A wholly free maximal block is *decommitted*. Free pages next to pages in use are *discarded*: the block
//! stays free and committed, and its pages are backed anew at the next touch. (`MADV_DONTNEED`, not
//! `MADV_FREE`: the process's memory falls immediately, not when the machine runs short.) Adjacent free
//! blocks are discarded by one system call, up to [`CHUNK`] pages or one block. A freed block is backed, and
//! so is the block that it merges into; the halves of a split block keep its state. Of two blocks of one
//! order a backed one is allocated first.
//!
//! The counter `backed` has the free backed pages. Largest blocks are returned first:
//! * frees return what is above the *surplus*, down to three quarters of it. The surplus is an eighth of the
//!   pages in use, between a sixteenth of [`ZoneShared::keep`] and all of it. The lower bound adapts: it
//!   doubles when as many pages as it has were returned and taken again, and halves when four times as many
//!   were returned and few of them taken again;
//! * [`decommit_idle`](Zone::decommit_idle) returns as much as was free throughout since its last call, and
//!   what a reap has just freed;
//! * [`decommit_free`](Zone::decommit_free) returns all of it.
//!
//! ## Charges
//!
//! Memory mapped outside the pages can be *charged* to a zone: the zone then withdraws as many free pages,
//! like a balloon in a virtual machine. So a limit on the zones also covers that memory. With several zones
//! each is charged a part. All zones are locked while the room is checked and the parts are charged.
//!
//! ## Lock
//!
//! One lock per zone, a leaf: under it no other lock is taken, except that a charge locks the following
//! zones. No foreign code runs under it, except the code that fills and empties a magazine for the calling
//! layer. It protects the free areas, the links and states of free frames, and the commitment. Pageblock
//! types are written under it; they are also read without it, as a hint, to choose a magazine.

use crate::error::Limit;
use crate::faults::{Call, Faults, PAGE};
use crate::frame::{FrameTable, Kind, State};
use crate::free_area::{End, FreeArea};
use crate::gfp::{MigrateType, ZoneKind};
use crate::pfn::{Order, Pfn};
use crate::region::{HugePages, Region, address_limit, may_map};
use crate::watermark::{self, Watermarks};
use crate::{MAX_ORDER, PAGE_SIZE};
use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::alloc_zeroed;
use uslab_magazine::Operation;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, Fixed, MODEL, MutexGuard, Rank, planted, tell};
use uslab_magazine::tracepoints::Step;

/// State shared by all zones of an allocator.
#[derive(Debug)]
pub(crate) struct ZoneShared {
    pub(crate) region: Region,
    pub(crate) frames: FrameTable,
    /// The largest order, and the step of commitment.
    pub(crate) max_order: Order,
    pub(crate) pageblock_order: Order,
    /// True if pages are grouped by type; false if there are too few pageblocks.
    pub(crate) mobility: bool,
    /// Most free pages that a zone keeps backed after frees; and the upper bound of that number.
    pub(crate) keep: Fixed,
    pub(crate) most_kept: u32,
    /// Maximum number of pages in all: more than region and frames have if addresses are limited.
    pub(crate) most: Fixed,
    pub(crate) limit: AddressLimit,
    pub(crate) huge_pages: HugePages,
    /// The smallest block that is discarded. Above 0 if a part of a huge page is not worth splitting it.
    pub(crate) discard_from: Order,
    pub(crate) faults: Faults,
}

impl ZoneShared {
    /// The type of unclaimed pageblocks.
    fn unclaimed(&self) -> MigrateType {
        if self.mobility { MigrateType::Movable } else { MigrateType::Unmovable }
    }

    /// Discards `pages`; they stay committed. `false` if the system keeps them: locked memory (`mlock`),
    /// which only costs more than expected.
    ///
    /// # Safety
    /// The pages are free and committed, and no thread can take them during the call.
    unsafe fn discard(&self, pages: Range<Pfn>) -> bool {
        if MODEL {
            (pages.start.get()..pages.end.get())
                .for_each(|page| self.frames.frame(Pfn::new(page)).page_discard());
        }
        // SAFETY: no thread uses the pages, by this function's contract.
        unsafe { self.region.discard(byte_range(pages.start, pages.end.get() - pages.start.get())) }
    }
}

/// With limited addresses: the bytes used by other mappings, and the bytes reserved for them.
#[derive(Debug, Default)]
pub(crate) struct AddressLimit {
    /// Bytes of other mappings when the limit was first seen.
    others: Counter,
    /// Bytes of tables that [describe the pages](crate::PageAllocator::grow_table).
    pub(crate) tables: Counter,
}

/// Bytes of addresses left to other mappings, counted from the time that a limit is seen; an eighth of a
/// small limit. A thread's stack takes 8 MiB.
const OTHERS: usize = 32 << 20;

impl ZoneShared {
    /// Bytes of addresses of the pages and of the tables that describe them.
    fn own_addresses(&self) -> usize {
        self.region.bytes() + self.frames.reserved() + self.limit.tables.get() as usize
    }
    /// Records the bytes of other mappings, out of the `has` bytes of the process.
    pub(crate) fn see_limit(&self, has: usize) {
        self.limit.others.set(has.saturating_sub(self.own_addresses()) as u64);
    }
    /// Maps the pages below `end` that have no addresses, and the addresses of their frames. `false` if other
    /// mappings have or need them. The caller holds the lock of the only zone.
    fn grow(&self, end: u32) -> bool {
        let bytes = end as usize * PAGE_SIZE;
        let more = bytes - self.region.bytes();
        let leaves_enough = |(limit, has): (usize, usize)| {
            let others = has.saturating_sub(self.own_addresses() + self.limit.others.get() as usize);
            let left = more + OTHERS.min(limit / 8).saturating_sub(others);
            has.saturating_add(left) <= limit
        };
        let grown = end <= self.most.get()
            // The test without a file is first: a sandbox may forbid opening files.
            && (may_map(more + OTHERS) || address_limit().is_none_or(leaves_enough))
            && self.frames.grow(end)
            && self.region.grow(bytes);
        if grown {
            if self.huge_pages != HugePages::System {
                self.region.advise(self.huge_pages);
            }
            // Last, because each page of the range needs a frame first.
            self.frames.set_len(end);
        }
        grown
    }
}

/// Order of the group of pages that is searched for adjacent free blocks; their frames fill one OS page.
const CHUNK: u8 = 6;

/// Counts of a zone's events, kept under its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ZoneEvents {
    /// Blocks cut in two.
    pub splits: u64,
    /// Pairs of buddies joined.
    pub merges: u64,
    /// Pageblocks (or larger blocks) claimed from another migrate type.
    pub claims: u64,
    /// Blocks stolen from a pageblock that kept its other type: fragmentation events.
    pub steals: u64,
    /// Maximal blocks (or the tail) committed.
    pub commits: u64,
    /// Commits that the system refused.
    pub commits_refused: u64,
    /// Maximal blocks (or the tail) decommitted.
    pub decommits: u64,
    /// Runs of free pages that were discarded while they stayed committed.
    pub discards: u64,
    /// Pages taken off the free lists.
    pub pages_taken: u64,
    /// Pages freed to them.
    pub pages_freed: u64,
}

impl ZoneEvents {
    /// Number of system calls that supplied or returned memory.
    fn system_calls(&self) -> u64 {
        self.commits + self.commits_refused + self.decommits
    }
}

/// A run of pages under one lock. The fields before the lock are read-only and have their own cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Zone {
    pub(crate) node: u32,
    pub(crate) kind: ZoneKind,
    /// A multiple of the maximal block.
    pub(crate) start: Pfn,
    /// Pages in the zone.
    pub(crate) managed: u32,
    pub(crate) marks: Watermarks,
    /// By the highest zone that the request could use.
    pub(crate) reserve: [u32; ZoneKind::COUNT],
    /// The migrate type of each pageblock, as [`encode`] stores it. Written under the lock.
    types: Box<[Fixed]>,
    inner: ForkMutex<Inner>,
}

#[cfg(all(target_pointer_width = "64", not(any(loom, shuttle))))]
const _: () = assert!(core::mem::offset_of!(Zone, inner) == 64);

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Inner {
    areas: [FreeArea; MAX_ORDER as usize + 1],
    /// Pages on the lists.
    listed: u32,
    /// Listed pages in discarded blocks.
    discarded: u32,
    /// True if the system took the contents of all returned pages so far. It keeps the contents of locked
    /// memory (`mlock`).
    discards_zero: bool,
    /// Listed pages in backed blocks that are large enough to be discarded.
    backed: u32,
    /// The minimum of `backed` since the last `decommit_idle`.
    idle: u32,
    /// Backed pages that were used in the interval that ended last.
    recent: u32,
    /// Lower bound of the free pages that frees leave backed.
    surplus: u32,
    /// Pages that frees returned to the system, and returned pages that were taken again, since `surplus`
    /// changed.
    returned: u32,
    taken_again: u32,
    /// Pages that are not committed.
    uncommitted: u32,
    /// Free pages withdrawn because other code uses as much memory.
    charged: u32,
    fresh: Fresh,
    tail_committed: bool,
    pub(crate) events: ZoneEvents,
}

/// At least 1/16 of [`ZoneShared::keep`] stays backed.
const LEAST_SURPLUS: u32 = 16;

impl Inner {
    /// Adapts the lower bound to whether returned pages were taken again.
    fn adapt(&mut self, keep: u32) {
        if self.taken_again > self.surplus {
            self.surplus = self.surplus.saturating_mul(2).min(keep);
        } else if self.returned / 4 > self.surplus {
            if self.taken_again < self.returned / 4 {
                self.surplus = (self.surplus / 2).max(keep / LEAST_SURPLUS);
            }
        } else {
            return;
        }
        (self.returned, self.taken_again) = (0, 0);
    }
    /// Free pages, committed or not, except charged ones.
    pub(crate) fn free(&self) -> u32 {
        self.listed + self.uncommitted - self.charged
    }
    pub(crate) fn charged(&self) -> u32 {
        self.charged
    }
    pub(crate) fn uncommitted(&self) -> u32 {
        self.uncommitted
    }
    /// Free committed pages that were discarded.
    pub(crate) fn discarded(&self) -> u32 {
        self.discarded
    }
    /// Free pages that could be discarded.
    pub(crate) fn backed(&self) -> u32 {
        self.backed
    }
    /// Whole maximal blocks that are not committed.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = u32> + '_ {
        self.fresh.returned.iter().copied().chain(self.fresh.never.clone())
    }
    /// The uncommitted blocks that were committed before.
    pub(crate) fn returned(&self) -> &[u32] {
        &self.fresh.returned
    }
    /// The lowest maximal block from which on no block was ever committed.
    pub(crate) fn untouched(&self) -> u32 {
        self.fresh.never.start
    }
    /// The free pages, for a counterexample trace.
    #[cfg(loom)]
    fn watched(&self) -> uslab_magazine::sync::story::Watched {
        let parts = vec![("free pages".to_owned(), self.free().to_string())];
        uslab_magazine::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }
    pub(crate) fn area(&self, order: Order) -> &FreeArea {
        &self.areas[order.index()]
    }
}

/// The uncommitted maximal blocks of a zone, by number within the zone, without the tail.
///
/// A zone of 64 GiB has 16,384 of them; creating this touches none.
#[derive(Debug)]
struct Fresh {
    /// Blocks that were committed before; the last one is next. Its capacity is all blocks, so it never
    /// grows.
    returned: Vec<u32>,
    /// Blocks that were never committed; the lowest is next once `returned` is empty.
    never: Range<u32>,
}

impl Fresh {
    /// Creates the list of all `blocks` blocks; `None` if the heap refuses the memory.
    fn all(blocks: u32) -> Option<Self> {
        let mut returned = Vec::new();
        returned.try_reserve_exact(blocks as usize).ok()?;
        Some(Self { returned, never: 0..blocks })
    }
    fn len(&self) -> u32 {
        self.returned.len() as u32 + self.never.len() as u32
    }
    /// The block that is committed next.
    fn next(&self) -> Option<u32> {
        self.returned.last().copied().or_else(|| self.never.clone().next())
    }
    fn pop(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| self.never.next())
    }
    fn push(&mut self, block: u32) {
        self.returned.push(block);
    }
}

/// Allocates `len` all-zero values, without writing them if the heap has zeroed memory; `None` if it refuses.
///
/// # Safety
/// All-zero bytes are a valid `T`.
pub(crate) unsafe fn zeroed<T>(len: usize) -> Option<Box<[T]>> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the layout's size is not zero.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
    // SAFETY: the global allocator has just allocated the slice, and zeros are a valid `T`, by this
    // function's contract.
    Some(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(memory, len).as_ptr()) })
}

/// Encodes the type of a pageblock. Zero is [`MigrateType::Movable`], so a table of zeros needs no write.
const fn encode(mobility: MigrateType) -> u32 {
    mobility as u32 ^ MigrateType::Movable as u32
}
fn decode(kept: &Fixed) -> MigrateType {
    MigrateType::from_bits(kept.get() ^ MigrateType::Movable as u32)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) order: Order,
    pub(crate) mobility: MigrateType,
    /// Pages that must stay free; `None` ignores watermarks.
    pub(crate) floor: Option<u32>,
}

/// The system refused to commit memory.
struct Refused;

impl Zone {
    /// Creates a zone; `None` if the heap refuses memory for its tables.
    pub(crate) fn new(
        shared: &ZoneShared,
        (node, kind): (u32, ZoneKind),
        start: Pfn,
        managed: u32,
        marks: Watermarks,
        reserve: [u32; ZoneKind::COUNT],
    ) -> Option<Self> {
        debug_assert!(start.is_aligned(shared.max_order) && managed > 0);
        let whole = managed / shared.max_order.pages();
        let pageblocks = managed.div_ceil(shared.pageblock_order.pages());
        let inner = Inner {
            areas: Default::default(),
            listed: 0,
            discarded: 0,
            discards_zero: true,
            backed: 0,
            idle: 0,
            surplus: shared.keep.get() / LEAST_SURPLUS,
            returned: 0,
            taken_again: 0,
            recent: 0,
            uncommitted: managed,
            charged: 0,
            fresh: Fresh::all(whole)?,
            tail_committed: false,
            events: ZoneEvents::default(),
        };
        // SAFETY: zeros are a valid `Fixed`.
        let types = unsafe { zeroed::<Fixed>(pageblocks as usize) }?;
        if shared.unclaimed() != MigrateType::Movable {
            types.iter().for_each(|kept| kept.set(encode(shared.unclaimed())));
        }
        Some(Self {
            node,
            kind,
            start,
            managed,
            marks,
            reserve,
            types,
            inner: ForkMutex::new(Rank::Zone, inner),
        })
    }

    /// The lock that a fork holds.
    pub(crate) fn lists(&self) -> &ForkMutex<Inner> {
        &self.inner
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
    /// One past the last page.
    pub(crate) fn end(&self) -> Pfn {
        self.start.up(self.managed)
    }
    /// Pages behind the last whole maximal block.
    fn tail_pages(&self, shared: &ZoneShared) -> u32 {
        self.managed % shared.max_order.pages()
    }
    fn tail_start(&self, shared: &ZoneShared) -> Pfn {
        self.end().align_down(shared.max_order)
    }

    // --- Pageblock types -------------------------------------------------------------------------------------

    fn pageblock(&self, shared: &ZoneShared, pfn: Pfn) -> &Fixed {
        &self.types[(pfn.index() - self.start.index()) >> shared.pageblock_order.get()]
    }
    /// The type of the pageblock of `pfn`: exact under the lock, a hint without it.
    #[inline]
    pub(crate) fn type_of(&self, shared: &ZoneShared, pfn: Pfn) -> MigrateType {
        decode(self.pageblock(shared, pfn))
    }
    pub(crate) fn pageblock_types(&self) -> impl Iterator<Item = MigrateType> {
        self.types.iter().map(decode)
    }
    /// Sets the type of all pageblocks that begin in the `pages` pages from `pfn`, which starts a pageblock.
    fn set_types(&self, shared: &ZoneShared, pfn: Pfn, pages: u32, mobility: MigrateType) {
        let first = (pfn.index() - self.start.index()) >> shared.pageblock_order.get();
        let count = pages.div_ceil(shared.pageblock_order.pages()) as usize;
        for pageblock in &self.types[first..first + count] {
            pageblock.set(encode(mobility));
        }
    }

    // --- Free lists ------------------------------------------------------------------------------------------

    /// Lists a block with `state`, a free one.
    fn insert(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State, end: End) {
        let order = state.order();
        inner.listed += order.pages();
        if state.is_discarded() {
            inner.discarded += order.pages();
        } else if order >= shared.discard_from {
            inner.backed += order.pages();
        }
        // SAFETY: `inner` is borrowed from this zone's lock. The block is in the zone and on no list: every
        // caller has just unlisted it, received it from a free, or committed it.
        unsafe { inner.areas[order.index()].insert(&shared.frames, pfn, state, end) }
    }
    /// Unlists a block that is listed with `state`; the caller updates its frame.
    fn remove(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State) {
        let order = state.order();
        inner.listed -= order.pages();
        if state.is_discarded() {
            inner.discarded -= order.pages();
        } else if order >= shared.discard_from {
            inner.backed -= order.pages();
        }
        // SAFETY: `inner` is borrowed from this zone's lock. The callers found the block on this list, or in
        // its frame under the lock.
        unsafe { inner.areas[order.index()].remove(&shared.frames, pfn, state) }
    }

    // --- Allocation ------------------------------------------------------------------------------------------

    /// Takes one block of `order` if `floor` pages stay free. Its frame becomes [`Kind::PerCpu`] until it is
    /// handed out.
    pub(crate) fn alloc(&self, op: &Operation, shared: &ZoneShared, wanted: Wanted) -> Result<Pfn, Limit> {
        let mut taken = Err(Limit::Exhausted);
        let (_, limit) = self.fill(op, shared, wanted, 1, |pfn| taken = Ok(pfn));
        taken.map_err(|_| limit.unwrap_or(Limit::Exhausted))
    }

    /// Takes up to `max` blocks of `order` in one hold of the lock and passes each to `put`. Returns their
    /// number, and the limit that was met if there were fewer.
    pub(crate) fn fill(
        &self,
        op: &Operation,
        shared: &ZoneShared,
        Wanted { order, mobility, floor }: Wanted,
        max: usize,
        mut put: impl FnMut(Pfn),
    ) -> (usize, Option<Limit>) {
        if shared.faults.fires(Call::of(PAGE, order.bytes()).order(order)) {
            return (0, Some(Limit::Injected));
        }
        tell!(op: Step::ZoneAsked { blocks: max as u32 });
        let mut inner = self.inner.lock();
        let (calls, splits, discarded) = (inner.events.system_calls(), inner.events.splits, inner.discarded);
        let uncommitted = inner.uncommitted;
        planted!("the split count is read in an earlier lock hold" => {
            drop(inner);
            inner = self.inner.lock();
        });
        let (mut filled, mut last) = (0, 0);
        let mut limit = None;
        while filled < max {
            let free = inner.free();
            if !watermark::allows(free, order, floor) {
                limit = Some(if free < order.pages() { Limit::Exhausted } else { Limit::Watermark });
                break;
            }
            match self.take(shared, &mut inner, order, mobility) {
                Ok(pfn) => {
                    planted!("a frame is marked after unlocking" => {
                        drop(inner);
                        inner = self.inner.lock();
                    });
                    let frame = shared.frames.frame(pfn);
                    // Its own state, or the state of the free block that it was split from.
                    let zero = frame.state().is_zero() && inner.discards_zero;
                    frame.set_state(State::new(Kind::PerCpu, order, mobility).zero(zero));
                    inner.events.pages_taken += u64::from(order.pages());
                    filled += 1;
                    last = pfn.get();
                    tell!(inner => "allocates {} pages from page {pfn}", order.pages());
                    put(pfn);
                }
                Err(met) => {
                    limit = Some(met);
                    break;
                }
            }
        }
        inner.idle = inner.idle.min(inner.backed);
        inner.taken_again += discarded.saturating_sub(inner.discarded);
        inner.adapt(shared.keep.get());
        let splits = (inner.events.splits - splits) as u16;
        op.note(Step::BlocksTaken { blocks: filled as u16, order: order.get(), page: last, splits });
        if inner.events.system_calls() != calls {
            tell!(op: inner => Step::Committed { pages: uncommitted - inner.uncommitted });
        }
        self.decommit_charged(shared, inner);
        (filled, limit)
    }

    /// Goes down the ladder of the module's documentation.
    fn take(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Result<Pfn, Limit> {
        if let Some(pfn) = self.smallest_fit(shared, inner, order, mobility) {
            return Ok(pfn);
        }
        let mut limit = Limit::Fragmented;
        match self.commit(shared, inner, order, mobility) {
            Ok(true) => {
                if let Some(pfn) = self.smallest_fit(shared, inner, order, mobility) {
                    return Ok(pfn);
                }
            }
            Ok(false) => {}
            Err(Refused) => limit = Limit::CommitRefused,
        }
        self.claim(shared, inner, order, mobility)
            .or_else(|| self.steal(shared, inner, order, mobility))
            .ok_or(limit)
    }

    /// Takes the smallest sufficient block from the lists of one type.
    fn smallest_fit(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Option<Pfn> {
        order.through(shared.max_order).find_map(|current| {
            let pfn = inner.areas[current.index()].front(mobility)?;
            let state = shared.frames.frame(pfn).state();
            self.remove(shared, inner, pfn, state);
            self.split(shared, inner, pfn, state, order);
            Some(pfn)
        })
    }

    /// Splits an unlisted block that was free with `state` down to order `low`: keeps the low half and lists
    /// the upper halves.
    fn split(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State, low: Order) {
        let mut high = state.order();
        while high > low {
            high = high.down();
            self.insert(shared, inner, pfn.up(high.pages()), state.of_order(high), End::Front);
            inner.events.splits += 1;
        }
    }

    /// Claims a pageblock from another type, trying the largest free blocks first, and takes a block from it.
    fn claim(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Option<Pfn> {
        let pageblock = shared.pageblock_order;
        for current in order.through(shared.max_order).rev() {
            // A small movable block in a foreign pageblock does little harm; an unmovable one pins the
            // pageblock.
            if current.get() < pageblock.get() / 2 && mobility == MigrateType::Movable {
                return None;
            }
            let area = &inner.areas[current.index()];
            let Some(from) = area.fallback(mobility) else { continue };
            let Some(pfn) = area.front(from) else { continue };
            if current >= pageblock {
                let state = shared.frames.frame(pfn).state();
                self.remove(shared, inner, pfn, state);
                self.set_types(shared, pfn, current.pages(), mobility);
                self.split(shared, inner, pfn, state.of_type(mobility), order);
                inner.events.claims += 1;
                return Some(pfn);
            }
            if self.claim_pageblock(shared, inner, pfn, from, mobility) {
                inner.events.claims += 1;
                return self.smallest_fit(shared, inner, order, mobility);
            }
        }
        None
    }

    /// Changes the type of the pageblock of `pfn` to `mobility` and moves its free blocks to that type's
    /// lists, if at least half of it is free or compatible.
    fn claim_pageblock(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        pfn: Pfn,
        from: MigrateType,
        mobility: MigrateType,
    ) -> bool {
        let pages = shared.pageblock_order.pages();
        let start = pfn.align_down(shared.pageblock_order);
        let end = start.up(pages);
        if end > self.end() {
            return false;
        }
        let (mut free, mut movable) = (0, 0);
        for (_, state) in blocks_between(&shared.frames, start, end) {
            match state.kind() {
                Kind::Free => free += state.order().pages(),
                Kind::Allocated if state.migrate_type() == MigrateType::Movable => {
                    movable += state.order().pages();
                }
                _ => {}
            }
        }
        let compatible = match (mobility, from) {
            (MigrateType::Movable, _) => movable,
            (_, MigrateType::Movable) => pages - free - movable,
            _ => 0,
        };
        if free + compatible < pages / 2 {
            return false;
        }
        for (block, state) in blocks_between(&shared.frames, start, end) {
            if state.kind() == Kind::Free {
                self.remove(shared, inner, block, state);
                self.insert(shared, inner, block, state.of_type(mobility), End::Back);
            }
        }
        self.set_types(shared, start, pages, mobility);
        true
    }

    /// Takes the smallest sufficient block of another type; its pageblock keeps its type.
    fn steal(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Option<Pfn> {
        order.through(shared.max_order).find_map(|current| {
            let area = &inner.areas[current.index()];
            let from = area.fallback(mobility)?;
            let pfn = area.front(from)?;
            let state = shared.frames.frame(pfn).state();
            self.remove(shared, inner, pfn, state);
            self.split(shared, inner, pfn, state, order);
            inner.events.steals += 1;
            Some(pfn)
        })
    }

    // --- Free ------------------------------------------------------------------------------------------------

    /// Frees blocks of `order` in one hold of the lock. Their frames say [`Kind::PerCpu`].
    pub(crate) fn free(
        &self,
        op: &Operation,
        shared: &ZoneShared,
        order: Order,
        blocks: impl Iterator<Item = Pfn>,
    ) {
        planted!("a buddy is merged without checking it again" => {
            return blocks.for_each(|pfn| self.merge_across_locks(shared, pfn, order));
        });
        tell!(op: Step::ZoneGiven { order: order.get() });
        let mut inner = self.inner.lock();
        let (merges, mut given, mut last) = (inner.events.merges, 0, 0);
        for pfn in blocks {
            inner.events.pages_freed += u64::from(order.pages());
            self.merge(shared, &mut inner, pfn, order);
            (given, last) = (given + 1, pfn.get());
            tell!(inner => "frees {} pages from page {pfn}", order.pages());
        }
        let merges = (inner.events.merges - merges) as u16;
        op.note(Step::BlocksGiven { blocks: given, order: order.get(), page: last, merges });
        let most = self.surplus(shared, &inner).min(inner.free());
        let above = inner.backed > most;
        let left = most - most / 4;
        if above {
            inner.returned += inner.backed - left;
            inner.adapt(shared.keep.get());
        }
        drop(inner);
        let bytes = if above { self.decommit_down_to(shared, left) } else { 0 };
        if bytes > 0 {
            tell!(op: Step::Decommitted { pages: (bytes / PAGE_SIZE) as u32 });
        }
    }

    /// Free pages that frees leave backed.
    fn surplus(&self, shared: &ZoneShared, inner: &Inner) -> u32 {
        let in_use = self.managed - inner.listed - inner.uncommitted;
        (in_use / 8).clamp(inner.surplus.min(shared.keep.get()), shared.keep.get())
    }

    fn merge(&self, shared: &ZoneShared, inner: &mut Inner, mut pfn: Pfn, mut order: Order) {
        let frames = &shared.frames;
        let mobility = self.type_of(shared, pfn);
        while order < shared.max_order {
            let buddy = pfn.buddy(order);
            let state = frames.frame(buddy).state();
            let joins = state.is_free(order);
            planted!("a merge does not check the buddy" => let joins = true);
            planted!("no merge" => let joins = false);
            if !joins {
                break;
            }
            self.remove(shared, inner, buddy, state);
            if order >= shared.pageblock_order {
                self.set_types(shared, buddy, order.pages(), mobility);
            }
            frames.frame(pfn).set_state(State::INSIDE);
            frames.frame(buddy).set_state(State::INSIDE);
            pfn = pfn.min(buddy);
            order = order.up();
            inner.events.merges += 1;
        }
        let end = if self.will_merge(shared, pfn, order) { End::Back } else { End::Front };
        self.insert(shared, inner, pfn, State::new(Kind::Free, order, mobility), end);
    }

    /// Returns `true` if the block, once merged with its buddy, would find its next buddy free.
    fn will_merge(&self, shared: &ZoneShared, pfn: Pfn, order: Order) -> bool {
        if order.get() + 1 >= shared.max_order.get() {
            return false;
        }
        let parent = order.up();
        let next = pfn.align_down(parent).buddy(parent);
        shared.frames.get(next).is_some_and(|frame| frame.state().is_free(parent))
    }

    // --- Commitment ------------------------------------------------------------------------------------------

    /// Commits the next maximal block, or the tail if it can hold a block of `order`. `Ok(false)` if nothing
    /// is left.
    fn commit(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Result<bool, Refused> {
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
            return Err(Refused);
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
            self.insert(shared, inner, pfn, State::new(Kind::Free, order, mobility).zero(true), End::Front);
        }
        Ok(true)
    }

    /// Decommits all free pages. Returns bytes.
    ///
    /// Releases the lock between blocks.
    pub(crate) fn decommit_free(&self, shared: &ZoneShared) -> usize {
        let mut bytes = 0;
        let mut inner = self.inner.lock();
        let (start, pages) = (self.tail_start(shared), self.tail_pages(shared));
        if inner.tail_committed && self.is_maximal(shared, start, pages) {
            let discarded = inner.discarded;
            self.decommit_block(shared, &mut inner, start, pages);
            inner.tail_committed = false;
            // Without pages that had been returned before.
            bytes += (pages - (discarded - inner.discarded)) as usize * PAGE_SIZE;
        }
        drop(inner);
        bytes + self.decommit_down_to(shared, 0)
    }

    /// Ends an interval: pages freed from here to [`decommit_idle`](Self::decommit_idle) count as unused in
    /// it.
    pub(crate) fn begin_reap(&self) {
        let mut inner = self.inner.lock();
        inner.recent = inner.backed - inner.idle;
    }
    /// Decommits free pages, except as many as were used since the call before the last
    /// [`begin_reap`](Self::begin_reap). Returns bytes.
    pub(crate) fn decommit_idle(&self, shared: &ZoneShared) -> usize {
        let keep = self.inner.lock().recent;
        let bytes = self.decommit_down_to(shared, keep);
        let mut inner = self.inner.lock();
        inner.idle = inner.backed;
        bytes
    }

    /// Decommits free pages, largest blocks first, until `keep` backed ones are left. Returns bytes.
    ///
    /// Releases the lock between blocks.
    fn decommit_down_to(&self, shared: &ZoneShared, keep: u32) -> usize {
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
                // The frame disagrees with its list: damaged, and the audit reports it.
                return bytes;
            }
            bytes += pages as usize * PAGE_SIZE;
            // The lock is held until the memory is returned, so that no thread takes the pages.
            planted!("free pages are discarded after unlocking" => {
                drop(inner);
                // SAFETY: none; the planted bug lets other threads take the pages.
                unsafe { shared.discard(run.clone()) };
                inner = self.inner.lock();
            });
            // SAFETY: the pages are on free lists of this zone, whose lock is held.
            inner.discards_zero &= unsafe { shared.discard(run) };
        }
    }

    /// Lists the backed free block `pfn` and its adjacent free blocks in the chunk as discarded. Returns the
    /// resulting run of free pages, and how many of them were backed.
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
                self.insert(shared, inner, block, state.discarded(true).zero(true), End::Back);
                backed += pages;
                // SAFETY: all frames of a free block except its first say `Inside`, and no thread uses them.
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
        self.set_types(shared, start, pages, shared.unclaimed());
        inner.uncommitted += pages;
        inner.idle = inner.idle.min(inner.backed);
        inner.events.decommits += 1;
        // SAFETY: the pages were free and are on no list now, so no thread uses them or their frames, all of
        // which say `Inside`. The lock is held until they count as uncommitted.
        unsafe {
            inner.discards_zero &= shared.region.decommit(byte_range(start, pages));
            shared.frames.discard(start.get()..start.get() + pages);
        }
    }

    // --- Charges ---------------------------------------------------------------------------------------------

    /// Withdraws free pages, down to the minimum watermark. `others` charges the following zones: it receives
    /// the number of pages that this zone has room for, charges as many as it can, and returns how many are left.
    /// This zone charges as many of these as it can, and returns the rest. If `others` returns `None`, the
    /// charge is refused and changes nothing.
    pub(crate) fn charge(&self, others: impl FnOnce(u32) -> Option<u32>) -> Option<u32> {
        // Nested: the thread holds the locks of earlier zones, in ascending order.
        let mut inner = self.inner.lock_nested();
        let room = inner.free().saturating_sub(self.marks.min);
        let left = others(room)?;
        planted!("a charge is made without checking the limit again" => {
            drop(inner);
            inner = self.inner.lock_nested();
        });
        let charged = left.min(room);
        inner.charged += charged;
        debug_assert!(inner.charged <= inner.listed + inner.uncommitted, "more is charged than is free");
        Some(left - charged)
    }
    /// Cancels a charge of up to `pages` pages. Returns how many.
    pub(crate) fn uncharge(&self, pages: u32) -> u32 {
        let mut inner = self.inner.lock();
        let back = inner.charged.min(pages);
        inner.charged -= back;
        back
    }
    /// Decommits backed pages that exceed the free pages: together with its charges the zone then takes no
    /// more than its size. Without charges no backed page exceeds them.
    pub(crate) fn decommit_charged(&self, shared: &ZoneShared, inner: MutexGuard<'_, Inner>) {
        let free = inner.free();
        let above = inner.backed > free;
        drop(inner);
        if above {
            self.decommit_down_to(shared, free);
        }
    }

    // --- Reports
    // ---------------------------------------------------------------------------------------------

    /// Free blocks by order and type; uncommitted memory counts as the blocks as which it would be committed.
    pub(crate) fn free_blocks(
        &self,
        shared: &ZoneShared,
        inner: &Inner,
    ) -> [[u32; MigrateType::COUNT]; MAX_ORDER as usize + 1] {
        let mut blocks = [[0; MigrateType::COUNT]; MAX_ORDER as usize + 1];
        for (area, row) in inner.areas.iter().zip(&mut blocks) {
            *row = MigrateType::ALL.map(|mobility| area.len_of(mobility));
        }
        let unclaimed = shared.unclaimed() as usize;
        blocks[shared.max_order.index()][unclaimed] += inner.fresh.len();
        if !inner.tail_committed {
            for (_, order) in
                maximal_blocks(self.tail_start(shared), self.tail_pages(shared), shared.max_order)
            {
                blocks[order.index()][unclaimed] += 1;
            }
        }
        blocks
    }

    /// Pages that are not in a free block of the largest size that their place allows: pages in use, and free
    /// pages that could not merge because of them.
    pub(crate) fn pages_not_in_maximal_blocks(&self, shared: &ZoneShared, inner: &Inner) -> u32 {
        let mut maximal = inner.uncommitted + inner.area(shared.max_order).len() * shared.max_order.pages();
        if inner.tail_committed {
            let tail = maximal_blocks(self.tail_start(shared), self.tail_pages(shared), shared.max_order);
            maximal += tail
                .filter(|(pfn, order)| shared.frames.frame(*pfn).state().is_free(*order))
                .map(|(_, order)| order.pages())
                .sum::<u32>();
        }
        self.managed - maximal
    }

    /// The committed parts of the zone, as (first page, pages); `committed` has a flag for each whole maximal
    /// block.
    pub(crate) fn committed(
        &self,
        shared: &ZoneShared,
        inner: &Inner,
        committed: &[bool],
    ) -> impl Iterator<Item = (Pfn, u32)> {
        let step = shared.max_order.pages();
        let whole = (0..).zip(committed).filter(|(_, committed)| **committed);
        let whole = whole.map(move |(block, _)| (self.start.up(block * step), step));
        let tail = (self.tail_start(shared), self.tail_pages(shared));
        whole.chain(inner.tail_committed.then_some(tail))
    }
    /// Number of whole maximal blocks in the zone.
    pub(crate) fn whole_blocks(&self, shared: &ZoneShared) -> u32 {
        self.managed / shared.max_order.pages()
    }
}

/// The largest aligned blocks that make up `pages` pages from `start`.
fn maximal_blocks(start: Pfn, pages: u32, max: Order) -> impl Iterator<Item = (Pfn, Order)> {
    let end = start.up(pages);
    let mut at = start;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let order = Order::largest_at(at, end.get() - at.get(), max);
        let block = (at, order);
        at = at.up(order.pages());
        Some(block)
    })
}

/// The blocks that start between two pages, each with its state; other pages are skipped.
///
/// Exact for free blocks under the zone's lock; allocated blocks may change concurrently.
pub(crate) fn blocks_between(
    frames: &FrameTable,
    start: Pfn,
    end: Pfn,
) -> impl Iterator<Item = (Pfn, State)> {
    let mut at = start;
    core::iter::from_fn(move || {
        while at < end {
            let (pfn, state) = (at, frames.frame(at).state());
            if state.kind() != Kind::Inside {
                at = at.up(state.order().pages());
                return Some((pfn, state));
            }
            at = at.up(1);
        }
        None
    })
}

fn byte_range(start: Pfn, pages: u32) -> Range<usize> {
    start.index() * PAGE_SIZE..(start.index() + pages as usize) * PAGE_SIZE
}

#[cfg(any(loom, shuttle))]
impl Zone {
    /// A planted bug: the buddy is found free in one hold of the lock and merged in the next.
    fn merge_across_locks(&self, shared: &ZoneShared, pfn: Pfn, order: Order) {
        let frames = &shared.frames;
        let buddy = pfn.buddy(order);
        let inner = self.inner.lock();
        let state = frames.frame(buddy).state();
        let joins = order < shared.max_order && state.is_free(order);
        drop(inner);
        let mut inner = self.inner.lock();
        if !joins {
            let mobility = self.type_of(shared, pfn);
            return self.insert(shared, &mut inner, pfn, State::new(Kind::Free, order, mobility), End::Front);
        }
        self.remove(shared, &mut inner, buddy, state);
        frames.frame(pfn).set_state(State::INSIDE);
        frames.frame(buddy).set_state(State::INSIDE);
        self.merge(shared, &mut inner, pfn.min(buddy), order.up());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The list is written under the zone's lock, where the heap must not be called: it may be built on this
    /// zone.
    #[test]
    fn list_of_returned_blocks_never_grows() {
        let mut fresh = Fresh::all(1000).unwrap();
        let room = fresh.returned.capacity();
        assert!(room >= 1000 && fresh.len() == 1000);
        let all: Vec<u32> = core::iter::from_fn(|| fresh.pop()).collect();
        assert!(all.iter().copied().eq(0..1000));
        all.into_iter().for_each(|block| fresh.push(block));
        assert_eq!((fresh.returned.capacity(), fresh.len(), fresh.next()), (room, 1000, Some(999)));
    }
}
