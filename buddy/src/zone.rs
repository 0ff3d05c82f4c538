//! A zone: the buddy allocator proper.
//!
//! A zone is a run of pages. Free pages are in blocks of `2^order` pages, each starting at a multiple of its size. The
//! halves of one block of the next order are *buddies*: `pfn ^ 2^order`. An allocation takes the smallest sufficient
//! block and **splits** it, keeping the low half each time. A free **merges** the block with its buddy while the buddy
//! is also free. Splitting and merging cost O(1) per order: the buddy's frame says whether the buddy is free, and lists
//! are doubly linked (Knuth, TAOCP 1, 2.5; the kernel's `page_alloc.c`).
//!
//! ## What keeps large blocks free
//!
//! * **Migrate types.** Pages that can be moved or dropped share pageblocks, separate from unmovable pages. A
//!   request tries these sources in order:
//!   1. free blocks of the requested type, smallest sufficient block first;
//!   2. reserved memory that was never committed, or was decommitted, and has no type yet;
//!   3. *claim*: takes over the whole pageblock of a free block of a fallback type, largest block first. A block of at
//!      least a pageblock is always claimed. A smaller block is claimed if half of its pageblock is free or compatible;
//!   4. *steal*: takes the smallest sufficient block of a fallback type. The pageblock keeps its type, so that the
//!      stolen page later returns to that type.
//! * **Placement.** If the buddy of a freed block's parent block is free, the freed block is put at the back
//!   of its list, because it will probably merge into a block two orders larger.
//!
//! Module `commitment` has the rules for commits, decommits, discards and charges.
//!
//! ## Lock
//!
//! Each zone has one lock, a leaf: no other lock is taken under it, except that a charge locks the following zones. No
//! foreign code runs under the lock, except the code that fills and empties a magazine for the calling layer. The lock
//! protects the free areas, the links and states of free frames, and the commitment. Pageblock types are written under
//! the lock. Pageblock types are also read without the lock, as a hint, to choose a magazine.

mod commitment;

use crate::error::Limit;
use crate::faults::{Call, Faults, PAGE};
use crate::frame::{FrameTable, Kind, State};
use crate::free_area::{FreeArea, ListEnd};
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
use uslab_magazine::sync::{Counter, Fixed, MODEL, MutexGuard, Rank, tell};
use uslab_magazine::tracepoints::Step;

/// State shared by all zones of an allocator.
#[derive(Debug)]
pub(crate) struct ZoneShared {
    pub(crate) region: Region,
    pub(crate) frames: FrameTable,
    /// The largest order, which is also the unit of commits.
    pub(crate) max_order: Order,
    pub(crate) pageblock_order: Order,
    /// True if pages are grouped by type. Pages are not grouped if there are too few pageblocks.
    pub(crate) mobility: bool,
    /// Maximum number of free pages that a zone keeps backed after frees, and the upper bound of that maximum.
    pub(crate) keep: Fixed,
    pub(crate) most_kept: u32,
    /// Maximum number of pages in total. The number exceeds the number of frames if addresses are limited.
    pub(crate) most: Fixed,
    pub(crate) limit: AddressLimit,
    pub(crate) huge_pages: HugePages,
    /// Order of the smallest block that is discarded. The order is above 0 if discarding a smaller part is not worth
    /// splitting a huge page.
    pub(crate) discard_from: Order,
    pub(crate) faults: Faults,
}

impl ZoneShared {
    fn default_type(&self) -> MigrateType {
        if self.mobility { MigrateType::Movable } else { MigrateType::Unmovable }
    }

    /// Discards `pages`; the pages stay committed. Returns `false` if the system keeps the pages, because they are
    /// locked (`mlock`). If the system keeps pages, the zone uses more memory than expected.
    ///
    /// # Safety
    /// The pages must be free and committed, and no thread may take them during the call.
    unsafe fn discard(&self, pages: Range<Pfn>) -> bool {
        if MODEL {
            (pages.start.get()..pages.end.get())
                .for_each(|page| self.frames.frame(Pfn::new(page)).mark_discarded_page());
        }
        // SAFETY: no thread uses the pages, by this function's contract.
        unsafe { self.region.discard(byte_range(pages.start, pages.end.get() - pages.start.get())) }
    }
}

/// With limited addresses: the bytes used by other mappings, and the bytes reserved for them.
#[derive(Debug, Default)]
pub(crate) struct AddressLimit {
    /// Number of bytes of other mappings when the limit was first seen.
    others: Counter,
    /// Number of bytes of tables that [describe the pages](crate::PageAllocator::grow_table).
    pub(crate) tables: Counter,
}

/// Bytes of addresses that the allocator leaves to other mappings once it knows of a limit; at most an eighth
/// of a small limit.
const OTHER_MAPPINGS_BYTES: usize = 32 << 20;

impl ZoneShared {
    /// Number of bytes of address space for the pages and for the tables that describe the pages.
    fn own_addresses(&self) -> usize {
        self.region.bytes() + self.frames.reserved() + self.limit.tables.get() as usize
    }
    /// Records the bytes of other mappings, out of the `process_bytes` bytes of the process.
    pub(crate) fn record_foreign_bytes(&self, process_bytes: usize) {
        self.limit.others.set(process_bytes.saturating_sub(self.own_addresses()) as u64);
    }
    /// Maps addresses for the pages below `end` that have no addresses, and for the frames of these pages.
    /// Returns `false` if other mappings have or need the addresses. The caller must hold the lock of the
    /// only zone.
    fn grow(&self, end: u32) -> bool {
        let bytes = end as usize * PAGE_SIZE;
        let more = bytes - self.region.bytes();
        let leaves_enough = |(limit, has): (usize, usize)| {
            let others = has.saturating_sub(self.own_addresses() + self.limit.others.get() as usize);
            let left = more + OTHER_MAPPINGS_BYTES.min(limit / 8).saturating_sub(others);
            has.saturating_add(left) <= limit
        };
        let grown = end <= self.most.get()
            // The test that needs no file comes first, because a sandbox may forbid opening files.
            && (may_map(more + OTHER_MAPPINGS_BYTES) || address_limit().is_none_or(leaves_enough))
            && self.frames.grow(end)
            && self.region.grow(bytes);
        if grown {
            if self.huge_pages != HugePages::System {
                self.region.advise(self.huge_pages);
            }
            // The number of frames grows last, because each page of the range needs its frame first.
            self.frames.set_len(end);
        }
        grown
    }
}
/// Counts of a zone's events, kept under its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ZoneEvents {
    /// Number of blocks split in two.
    pub splits: u64,
    /// Number of pairs of buddies merged.
    pub merges: u64,
    /// Number of pageblocks (or larger blocks) claimed from another migrate type.
    pub claims: u64,
    /// Number of blocks stolen from a pageblock that kept its other type: fragmentation events.
    pub steals: u64,
    /// Number of commits of a maximal block or the tail.
    pub commits: u64,
    /// Number of commits that the system refused.
    pub commits_refused: u64,
    /// Number of decommits of a maximal block or the tail.
    pub decommits: u64,
    /// Number of runs of free pages that were discarded while they stayed committed.
    pub discards: u64,
    /// Number of pages taken off the free lists.
    pub pages_taken: u64,
    /// Number of pages freed to the free lists.
    pub pages_freed: u64,
}

impl ZoneEvents {
    fn system_calls(&self) -> u64 {
        self.commits + self.commits_refused + self.decommits
    }
}

/// A zone: a run of pages under one lock. The fields before the lock are read-only and have their own cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Zone {
    pub(crate) node: u32,
    pub(crate) kind: ZoneKind,
    /// The first page, a multiple of the maximal block.
    pub(crate) start: Pfn,
    pub(crate) managed: u32,
    pub(crate) marks: Watermarks,
    /// The lowmem reserve, indexed by the highest zone that the request could use.
    pub(crate) reserve: [u32; ZoneKind::COUNT],
    /// The migrate type of each pageblock, as [`encode`] stores it. Pageblock types are written under the zone's lock.
    types: Box<[Fixed]>,
    inner: ForkMutex<Inner>,
}

#[cfg(all(target_pointer_width = "64", not(any(loom, shuttle))))]
const _: () = assert!(core::mem::offset_of!(Zone, inner) == 64);

/// The state that the zone's lock protects.
#[derive(Debug)]
pub(crate) struct Inner {
    areas: [FreeArea; MAX_ORDER as usize + 1],
    /// Number of pages on the free lists.
    listed: u32,
    /// Number of listed pages in discarded blocks.
    discarded: u32,
    /// True if the system discarded the contents of all returned pages so far. The system keeps the contents of locked
    /// memory (`mlock`).
    discards_zero: bool,
    /// Number of listed pages in backed blocks that are large enough to be discarded.
    backed: u32,
    /// The minimum of `backed` since the last `decommit_idle`.
    idle: u32,
    /// Number of backed pages that were used in the previous interval.
    recent: u32,
    /// Lower bound of the free pages that frees leave backed.
    surplus: u32,
    /// Number of pages that frees returned to the system, and number of returned pages that were used again,
    /// since `surplus` changed.
    returned: u32,
    taken_again: u32,
    /// Number of pages that are not committed.
    uncommitted: u32,
    /// Number of free pages withdrawn because other code uses as much memory.
    charged: u32,
    fresh: UncommittedBlocks,
    tail_committed: bool,
    pub(crate) events: ZoneEvents,
}

/// At least 1/16 of [`ZoneShared::keep`] stays backed.
const BACKED_DIVISOR: u32 = 16;

impl Inner {
    /// Raises or lowers the lower bound, depending on whether returned pages were used again.
    fn adapt_surplus(&mut self, keep: u32) {
        if self.taken_again > self.surplus {
            self.surplus = self.surplus.saturating_mul(2).min(keep);
        } else if self.returned / 4 > self.surplus {
            if self.taken_again < self.returned / 4 {
                self.surplus = (self.surplus / 2).max(keep / BACKED_DIVISOR);
            }
        } else {
            return;
        }
        (self.returned, self.taken_again) = (0, 0);
    }
    /// Number of free pages, committed or not, except charged pages.
    pub(crate) fn free(&self) -> u32 {
        self.listed + self.uncommitted - self.charged
    }
    pub(crate) fn charged_pages(&self) -> u32 {
        self.charged
    }
    pub(crate) fn uncommitted_pages(&self) -> u32 {
        self.uncommitted
    }
    /// Number of free committed pages that were discarded.
    pub(crate) fn discarded(&self) -> u32 {
        self.discarded
    }
    /// Number of free pages that could be discarded.
    pub(crate) fn backed(&self) -> u32 {
        self.backed
    }
    /// Whole maximal blocks that are not committed.
    pub(crate) fn uncommitted_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.fresh.returned.iter().copied().chain(self.fresh.never.clone())
    }
    /// The uncommitted blocks that were committed before.
    pub(crate) fn returned_blocks(&self) -> &[u32] {
        &self.fresh.returned
    }
    /// The number of the first maximal block after all blocks that were ever committed.
    pub(crate) fn fresh_start(&self) -> u32 {
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
/// A zone of 64 GiB has 16,384 maximal blocks. Creating the list of all blocks writes no entry.
#[derive(Debug)]
struct UncommittedBlocks {
    /// Blocks that were committed before. The block that was decommitted last is committed next. The vector has
    /// capacity for all blocks, so it never grows.
    returned: Vec<u32>,
    /// Maximal blocks that were never committed. The lowest block is committed when `returned_blocks` is empty.
    never: Range<u32>,
}

impl UncommittedBlocks {
    /// Creates the list of all `blocks` blocks. Returns `None` if the heap refuses the memory.
    fn all(blocks: u32) -> Option<Self> {
        let mut returned = Vec::new();
        returned.try_reserve_exact(blocks as usize).ok()?;
        Some(Self { returned, never: 0..blocks })
    }
    fn len(&self) -> u32 {
        self.returned.len() as u32 + self.never.len() as u32
    }
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

/// Allocates `len` all-zero values, without writing if the heap supplies zeroed memory. Returns `None` if the heap
/// refuses the memory.
///
/// # Safety
/// All-zero bytes must be a valid `T`.
pub(crate) unsafe fn zeroed<T>(len: usize) -> Option<Box<[T]>> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the layout's size is not zero.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
    // SAFETY: the global allocator has just allocated the slice, and zeros are a valid `T`, by contract.
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
pub(crate) struct BlockRequest {
    pub(crate) order: Order,
    pub(crate) mobility: MigrateType,
    /// Number of pages that must stay free; `None` ignores watermarks.
    pub(crate) floor: Option<u32>,
}

/// Error: the system refused to commit memory.
struct CommitRefused;

impl Zone {
    /// Creates a zone. Returns `None` if the heap refuses memory for the zone's tables.
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
            surplus: shared.keep.get() / BACKED_DIVISOR,
            returned: 0,
            taken_again: 0,
            recent: 0,
            uncommitted: managed,
            charged: 0,
            fresh: UncommittedBlocks::all(whole)?,
            tail_committed: false,
            events: ZoneEvents::default(),
        };
        // SAFETY: zeros are a valid `Fixed`.
        let types = unsafe { zeroed::<Fixed>(pageblocks as usize) }?;
        if shared.default_type() != MigrateType::Movable {
            types.iter().for_each(|kept| kept.set(encode(shared.default_type())));
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

    /// The zone's lock, which a fork holds.
    pub(crate) fn lists(&self) -> &ForkMutex<Inner> {
        &self.inner
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
    /// The page after the zone's last page.
    pub(crate) fn end(&self) -> Pfn {
        self.start.up(self.managed)
    }
    /// Number of pages after the last whole maximal block.
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
    /// Returns the type of the pageblock of `pfn`: exact under the zone's lock, a hint without it.
    #[inline]
    pub(crate) fn type_of(&self, shared: &ZoneShared, pfn: Pfn) -> MigrateType {
        decode(self.pageblock(shared, pfn))
    }
    pub(crate) fn pageblock_types(&self) -> impl Iterator<Item = MigrateType> {
        self.types.iter().map(decode)
    }
    /// Sets the type of all pageblocks that begin in the `pages` pages from `pfn`, which must start a pageblock.
    fn set_types(&self, shared: &ZoneShared, pfn: Pfn, pages: u32, mobility: MigrateType) {
        let first = (pfn.index() - self.start.index()) >> shared.pageblock_order.get();
        let count = pages.div_ceil(shared.pageblock_order.pages()) as usize;
        for pageblock in &self.types[first..first + count] {
            pageblock.set(encode(mobility));
        }
    }

    // --- Free lists ------------------------------------------------------------------------------------------

    /// Puts a block on its list; the `state` of the block must be free.
    fn insert(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State, end: ListEnd) {
        let order = state.order();
        inner.listed += order.pages();
        if state.is_discarded() {
            inner.discarded += order.pages();
        } else if order >= shared.discard_from {
            inner.backed += order.pages();
        }
        // SAFETY: `inner` is borrowed from this zone's lock. The inserted block is in the zone and on no list: every
        // caller has just unlisted it, received it from a free, or committed it.
        unsafe { inner.areas[order.index()].insert(&shared.frames, pfn, state, end) }
    }
    /// Unlists a block that is listed with `state`. The caller must update the block's frame.
    fn remove(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State) {
        let order = state.order();
        inner.listed -= order.pages();
        if state.is_discarded() {
            inner.discarded -= order.pages();
        } else if order >= shared.discard_from {
            inner.backed -= order.pages();
        }
        // SAFETY: `inner` is borrowed from this zone's lock. The callers found the removed block on this list, or in
        // its frame under the lock.
        unsafe { inner.areas[order.index()].remove(&shared.frames, pfn, state) }
    }

    // --- Allocation ------------------------------------------------------------------------------------------

    /// Takes one block of `order` if `floor` pages stay free. The block's frame is [`Kind::PerCpu`] until the block is
    /// handed out.
    pub(crate) fn alloc(
        &self,
        op: &Operation,
        shared: &ZoneShared,
        wanted: BlockRequest,
    ) -> Result<Pfn, Limit> {
        let mut taken = Err(Limit::Exhausted);
        let (_, limit) = self.fill(op, shared, wanted, 1, |pfn| taken = Ok(pfn));
        taken.map_err(|_| limit.unwrap_or(Limit::Exhausted))
    }

    /// Takes up to `max` blocks of `order` under one acquisition of the lock, and passes each block to `put`.
    /// Returns the number of blocks, and the limit that stopped the fill if the number is below `max`.
    pub(crate) fn fill(
        &self,
        op: &Operation,
        shared: &ZoneShared,
        BlockRequest { order, mobility, floor }: BlockRequest,
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
                    let frame = shared.frames.frame(pfn);
                    // The state of this block, or of the free block from which it was split.
                    let zero = frame.state().is_zero() && inner.discards_zero;
                    frame.set_state(State::new(Kind::PerCpu, order, mobility).zero(zero));
                    inner.events.pages_taken += u64::from(order.pages());
                    filled += 1;
                    last = pfn.get();
                    tell!(inner => "allocates {} pages, starting at page {pfn}", order.pages());
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
        inner.adapt_surplus(shared.keep.get());
        let splits = (inner.events.splits - splits) as u16;
        op.note(Step::BlocksTaken { blocks: filled as u16, order: order.get(), page: last, splits });
        if inner.events.system_calls() != calls {
            tell!(op: inner => Step::Committed { pages: uncommitted - inner.uncommitted });
        }
        self.decommit_charged(shared, inner);
        (filled, limit)
    }

    /// Takes a block from the sources in the order of the module documentation.
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
            Err(CommitRefused) => limit = Limit::CommitRefused,
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

    /// Splits an unlisted block, which was free with `state`, down to order `low`. `split` keeps the low half
    /// and lists the upper halves.
    fn split(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State, low: Order) {
        let mut high = state.order();
        while high > low {
            high = high.down();
            self.insert(shared, inner, pfn.up(high.pages()), state.with_order(high), ListEnd::Front);
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
            // A small movable block in a foreign pageblock does little harm, but an unmovable block pins the pageblock.
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
                self.split(shared, inner, pfn, state.with_type(mobility), order);
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

    /// Changes the type of the pageblock of `pfn` to `mobility` if at least half of the pageblock is free or
    /// compatible. The claimed pageblock's free blocks move to the lists of the new type.
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
                self.insert(shared, inner, block, state.with_type(mobility), ListEnd::Back);
            }
        }
        self.set_types(shared, start, pages, mobility);
        true
    }

    /// Takes the smallest sufficient block of another type. The pageblock of a stolen block keeps its type.
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

    /// Frees blocks of `order` under one acquisition of the lock. The frames of the freed blocks must be
    /// [`Kind::PerCpu`].
    pub(crate) fn free(
        &self,
        op: &Operation,
        shared: &ZoneShared,
        order: Order,
        blocks: impl Iterator<Item = Pfn>,
    ) {
        tell!(op: Step::ZoneGiven { order: order.get() });
        let mut inner = self.inner.lock();
        let (merges, mut given, mut last) = (inner.events.merges, 0, 0);
        for pfn in blocks {
            inner.events.pages_freed += u64::from(order.pages());
            self.merge(shared, &mut inner, pfn, order);
            (given, last) = (given + 1, pfn.get());
            tell!(inner => "frees {} pages, starting at page {pfn}", order.pages());
        }
        let merges = (inner.events.merges - merges) as u16;
        op.note(Step::BlocksGiven { blocks: given, order: order.get(), page: last, merges });
        let most = self.surplus(shared, &inner).min(inner.free());
        let above = inner.backed > most;
        let left = most - most / 4;
        if above {
            inner.returned += inner.backed - left;
            inner.adapt_surplus(shared.keep.get());
        }
        drop(inner);
        let bytes = if above { self.decommit_down_to(shared, left) } else { 0 };
        if bytes > 0 {
            tell!(op: Step::Decommitted { pages: (bytes / PAGE_SIZE) as u32 });
        }
    }

    /// Number of free pages that frees leave backed.
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
        let end = if self.will_merge(shared, pfn, order) { ListEnd::Back } else { ListEnd::Front };
        self.insert(shared, inner, pfn, State::new(Kind::Free, order, mobility), end);
    }

    /// Returns `true` if the buddy of the block's parent block is free.
    fn will_merge(&self, shared: &ZoneShared, pfn: Pfn, order: Order) -> bool {
        if order.get() + 1 >= shared.max_order.get() {
            return false;
        }
        let parent = order.up();
        let next = pfn.align_down(parent).buddy(parent);
        shared.frames.get(next).is_some_and(|frame| frame.state().is_free(parent))
    }

    // --- Commitment ------------------------------------------------------------------------------------------

    // --- Reports ---------------------------------------------------------------------------------------------

    /// Number of free blocks by order and type. Uncommitted memory counts as the blocks that a commit would create.
    pub(crate) fn free_blocks(
        &self,
        shared: &ZoneShared,
        inner: &Inner,
    ) -> [[u32; MigrateType::COUNT]; MAX_ORDER as usize + 1] {
        let mut blocks = [[0; MigrateType::COUNT]; MAX_ORDER as usize + 1];
        for (area, row) in inner.areas.iter().zip(&mut blocks) {
            *row = MigrateType::ALL.map(|mobility| area.len_of(mobility));
        }
        let default_type = shared.default_type() as usize;
        blocks[shared.max_order.index()][default_type] += inner.fresh.len();
        if !inner.tail_committed {
            for (_, order) in
                maximal_blocks(self.tail_start(shared), self.tail_pages(shared), shared.max_order)
            {
                blocks[order.index()][default_type] += 1;
            }
        }
        blocks
    }

    /// Number of pages that are in use, or that are free in a smaller block than their position allows
    /// because of pages in use.
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

    /// The committed parts of the zone, as (first page, pages). `committed` has a flag for each whole maximal block.
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
    pub(crate) fn whole_blocks(&self, shared: &ZoneShared) -> u32 {
        self.managed / shared.max_order.pages()
    }
}

/// Returns the largest aligned blocks that make up `pages` pages from `start`.
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

/// Returns the blocks that start between two pages, each with its state. Pages that start no block are skipped.
///
/// The result is exact for free blocks under the zone's lock. Allocated blocks may change concurrently.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The list of returned blocks is written under the zone's lock, where the heap must not be called: the heap may be
    /// built on this zone.
    #[test]
    fn list_of_returned_blocks_never_reallocates() {
        let mut fresh = UncommittedBlocks::all(1000).unwrap();
        let room = fresh.returned.capacity();
        assert!(room >= 1000 && fresh.len() == 1000);
        let all: Vec<u32> = core::iter::from_fn(|| fresh.pop()).collect();
        assert!(all.iter().copied().eq(0..1000));
        all.into_iter().for_each(|block| fresh.push(block));
        assert_eq!((fresh.returned.capacity(), fresh.len(), fresh.next()), (room, 1000, Some(999)));
    }
}
