//! The zone, which implements the buddy algorithm.
//!
//! A zone is a contiguous range of pages. Free pages form blocks of `2^order` pages, and each block starts at a
//! multiple of its size. The two halves of a block of the next order are *buddies*: the buddy of block `pfn` is
//! `pfn ^ 2^order`. An allocation takes the smallest sufficient block and **splits** it until its size fits, keeping
//! the low half each time. A free **merges** the block with its buddy, repeatedly, as long as the buddy is free too. A
//! split or merge takes O(1): a frame shows if the buddy is free, and the free lists are doubly linked (Knuth, TAOCP 1,
//! 2.5; the kernel's `page_alloc.c`).
//!
//! ## What keeps large blocks free
//!
//! * **Migrate types.** Movable, reclaimable and unmovable pages are kept in separate pageblocks. An allocation tries
//!   these sources of a block, in this order:
//!   1. a free block of the requested migrate type, the smallest sufficient block first;
//!   2. uncommitted memory, which has no migrate type yet;
//!   3. *claim*: the allocation takes over a pageblock of a fallback type if the pageblock contains a free block. The
//!      largest free blocks are tried first. A free block of at least a pageblock can always be claimed. A smaller
//!      block can be claimed if at least half of its pageblock is free or compatible;
//!   4. *steal*: the allocation takes the smallest sufficient block of a fallback type. The pageblock of a stolen block
//!      keeps its type, so the block returns to this type when it is freed.
//! * **Placement.** A freed block is put at the back of its list if the buddy of its parent block is free, because it
//!   will probably merge soon.
//!
//! The module `commitment` describes commits, decommits, discards and charges.
//!
//! ## Lock
//!
//! Each zone has one leaf lock. While the zone's lock is held, no other lock is taken, except that a charge also locks
//! the following zones. The zone calls no other code under its lock, except the callbacks with which a magazine layer
//! fills and empties a magazine. The lock protects the free areas, the links and states of free frames, and the
//! commitment state. The migrate types of pageblocks are written only under the lock. A thread may read the migrate
//! type of a pageblock without the lock, as a hint that selects a magazine.

mod commitment;

use crate::error::Limit;
use crate::faults::{Call, Faults, PAGE};
use crate::frame::{FrameTable, Kind, State};
use crate::free_area::{FreeArea, ListEnd};
use crate::gfp::{MigrateType, ZoneKind};
use crate::pfn::{Order, Pfn};
use crate::region::{HugePages, Region, address_limit, can_map_bytes};
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
    /// The order of the largest block. Memory is committed in blocks of this order.
    pub(crate) max_order: Order,
    pub(crate) pageblock_order: Order,
    /// True if pages are grouped by migrate type. An allocator with too few pageblocks does not group pages.
    pub(crate) mobility: bool,
    /// Maximum number of backed free pages that frees leave in a zone. The limit `keep` never exceeds `most_kept`.
    pub(crate) keep: Fixed,
    pub(crate) most_kept: u32,
    /// Maximum number of pages of all zones together. With a limited address space, `most` exceeds the number of
    /// frames.
    pub(crate) most: Fixed,
    pub(crate) limit: AddressLimit,
    pub(crate) huge_pages: HugePages,
    /// Minimum order of a block whose memory is discarded. The order is above 0 if huge pages are enabled, because
    /// discarding a smaller block would split a huge page.
    pub(crate) discard_from: Order,
    pub(crate) faults: Faults,
}

impl ZoneShared {
    fn default_type(&self) -> MigrateType {
        if self.mobility { MigrateType::Movable } else { MigrateType::Unmovable }
    }

    /// Returns the memory of `pages` to the OS. The discarded pages stay committed. Returns `false` if the OS keeps
    /// their contents, for example because the pages are locked (`mlock`). If the OS keeps the contents, the zone uses
    /// more memory than its counts show.
    ///
    /// # Safety
    /// The pages must be free and committed, and no thread may allocate them during the call.
    unsafe fn discard(&self, pages: Range<Pfn>) -> bool {
        if MODEL {
            (pages.start.get()..pages.end.get())
                .for_each(|page| self.frames.frame(Pfn::new(page)).mark_discarded_page());
        }
        // SAFETY: no thread uses the pages, by this function's contract.
        unsafe { self.region.discard(byte_range(pages.start, pages.end.get() - pages.start.get())) }
    }
}

/// Address space used outside the pages. This record matters only if the address space is limited.
#[derive(Debug, Default)]
pub(crate) struct AddressLimit {
    /// Number of bytes that other mappings of the process used when the limit was recorded.
    others: Counter,
    /// Number of bytes of address space that [page metadata tables](crate::PageAllocator::grow_table) use.
    pub(crate) tables: Counter,
}

/// If the address space is limited, the bytes that the allocator leaves to other mappings (at most an eighth of the
/// limit).
const OTHER_MAPPINGS_BYTES: usize = 32 << 20;

impl ZoneShared {
    /// Number of bytes of address space that the pages and the page metadata tables use.
    fn own_address_bytes(&self) -> usize {
        self.region.bytes() + self.frames.reserved() + self.limit.tables.get() as usize
    }
    /// Records how many of the process's `process_bytes` bytes of address space belong to other mappings.
    pub(crate) fn record_foreign_bytes(&self, process_bytes: usize) {
        self.limit.others.set(process_bytes.saturating_sub(self.own_address_bytes()) as u64);
    }
    /// Maps addresses for all pages below `end` that have no addresses yet, and for their frames. Returns `false` if
    /// other mappings occupy these addresses, or need the rest of the limited address space. The caller must hold the
    /// lock of the allocator's only zone.
    fn grow(&self, end: u32) -> bool {
        let bytes = end as usize * PAGE_SIZE;
        let more = bytes - self.region.bytes();
        let leaves_enough = |(limit, has): (usize, usize)| {
            let others = has.saturating_sub(self.own_address_bytes() + self.limit.others.get() as usize);
            let left = more + OTHER_MAPPINGS_BYTES.min(limit / 8).saturating_sub(others);
            has.saturating_add(left) <= limit
        };
        let grown = end <= self.most.get()
            // The test that needs no file comes first, because a sandbox may forbid opening files.
            && (can_map_bytes(more + OTHER_MAPPINGS_BYTES) || address_limit().is_none_or(leaves_enough))
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
/// Event counters of a zone, protected by the zone's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ZoneEvents {
    /// Number of times that a block was split in two.
    pub splits: u64,
    /// Number of times that two buddies were merged.
    pub merges: u64,
    /// Number of pageblocks, or larger blocks, that allocations claimed from another migrate type.
    pub claims: u64,
    /// Number of fragmentation events, in which an allocation stole a block, and the block's pageblock kept its migrate
    /// type.
    pub steals: u64,
    /// Number of times that a maximal block or the zone's tail was committed.
    pub commits: u64,
    /// Number of commits that the OS refused.
    pub commits_refused: u64,
    /// Number of times that a maximal block or the zone's tail was decommitted.
    pub decommits: u64,
    /// Number of runs of free pages whose memory was returned to the OS while they stayed committed.
    pub discards: u64,
    /// Number of pages that allocations took from the free lists.
    pub pages_taken: u64,
    /// Number of pages that frees added to the free lists.
    pub pages_freed: u64,
}

impl ZoneEvents {
    fn system_calls(&self) -> u64 {
        self.commits + self.commits_refused + self.decommits
    }
}

/// A zone: a contiguous range of pages under one lock. The fields before the lock are read-only and fill one cache
/// line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Zone {
    pub(crate) node: u32,
    pub(crate) kind: ZoneKind,
    /// The zone's first page, a multiple of the maximal block size.
    pub(crate) start: Pfn,
    pub(crate) managed: u32,
    pub(crate) marks: Watermarks,
    /// The zone's lowmem reserve in pages, indexed by the highest zone that the request allows.
    pub(crate) reserve: [u32; ZoneKind::COUNT],
    /// The migrate type of each pageblock, encoded by [`encode`]. The migrate types are written only under the zone's
    /// lock.
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
    /// Number of pages on the free lists that are in discarded blocks.
    discarded: u32,
    /// True if the OS has discarded the contents of every page that was returned to it so far. The OS keeps the
    /// contents of locked memory (`mlock`).
    discards_zero: bool,
    /// Number of pages on the free lists that are in backed blocks large enough to be discarded.
    backed: u32,
    /// The minimum value of `backed` since the last `decommit_idle`.
    idle: u32,
    /// Number of backed pages that were in use at some time during the previous reaping interval.
    recent: u32,
    /// Minimum number of backed free pages that frees leave in the zone. The minimum adapts to the amount of returned
    /// memory that is used again.
    surplus: u32,
    /// Number of pages that frees returned to the OS since `surplus` last changed.
    returned: u32,
    /// Number of returned pages that were used again since `surplus` last changed.
    taken_again: u32,
    /// Number of pages that are not committed.
    uncommitted: u32,
    /// Number of free pages that the zone withholds, to account for memory that other code uses.
    charged: u32,
    fresh: UncommittedBlocks,
    tail_committed: bool,
    pub(crate) events: ZoneEvents,
}

/// The minimum number of backed free pages is [`ZoneShared::keep`] divided by this number.
const BACKED_DIVISOR: u32 = 16;

impl Inner {
    /// Doubles the surplus if returned pages were soon used again, and halves it if few of them were.
    fn adapt_surplus_bound(&mut self, keep: u32) {
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
    /// Number of free pages, committed or not, minus the charged pages.
    pub(crate) fn free(&self) -> u32 {
        self.listed + self.uncommitted - self.charged
    }
    pub(crate) fn charged_pages(&self) -> u32 {
        self.charged
    }
    pub(crate) fn uncommitted_pages(&self) -> u32 {
        self.uncommitted
    }
    /// Number of free committed pages whose memory was discarded.
    pub(crate) fn discarded(&self) -> u32 {
        self.discarded
    }
    /// Number of backed free pages that could be discarded.
    pub(crate) fn backed_pages(&self) -> u32 {
        self.backed
    }
    /// Returns the numbers of the whole maximal blocks that are not committed.
    pub(crate) fn uncommitted_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.fresh.returned.iter().copied().chain(self.fresh.never.clone())
    }
    /// Returns the numbers of the maximal blocks that were committed once and are now decommitted.
    pub(crate) fn returned_blocks(&self) -> &[u32] {
        &self.fresh.returned
    }
    /// Returns the number of the first maximal block after all blocks that were ever committed.
    pub(crate) fn first_fresh_block(&self) -> u32 {
        self.fresh.never.start
    }
    /// Returns the number of free pages, to print in a counterexample trace.
    #[cfg(loom)]
    fn watched(&self) -> uslab_magazine::sync::story::Watched {
        let parts = vec![("free pages".to_owned(), self.free().to_string())];
        uslab_magazine::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }
    pub(crate) fn area(&self, order: Order) -> &FreeArea {
        &self.areas[order.index()]
    }
}

/// The numbers of a zone's uncommitted maximal blocks, counted from the zone's start. The zone's tail is not included.
///
/// A zone of 64 GiB has 16,384 maximal blocks, so the list must be cheap to create. Never-committed blocks are stored
/// as a range, and creating the list writes no entry.
#[derive(Debug)]
struct UncommittedBlocks {
    /// Blocks that were committed once and are now decommitted. The block that was decommitted last is the first to be
    /// committed again. The vector has capacity for all blocks, so it never grows.
    returned: Vec<u32>,
    /// The range of maximal blocks that were never committed. The lowest never-committed block is committed when no
    /// decommitted block is left.
    never: Range<u32>,
}

impl UncommittedBlocks {
    /// Creates a list in which all `blocks` maximal blocks are uncommitted. Returns `None` if the heap allocation
    /// fails.
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

/// Allocates a slice of `len` all-zero values. The slice is not written if the heap supplies zeroed memory. Returns
/// `None` if the heap allocation fails.
///
/// # Safety
/// A `T` whose bytes are all zero must be valid.
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

/// Encodes the migrate type of a pageblock as a number. The code of [`MigrateType::Movable`] is 0, so a zeroed table
/// needs no initialisation.
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
    /// Number of pages that must stay free after the allocation; `None` ignores watermarks.
    pub(crate) floor: Option<u32>,
}

/// Error: the OS refused to commit memory.
struct CommitRefused;

impl Zone {
    /// Creates a zone. Returns `None` if the heap allocation of the zone's tables fails.
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

    /// Returns the zone's lock, which a fork holds while it copies the process.
    pub(crate) fn lists(&self) -> &ForkMutex<Inner> {
        &self.inner
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
    /// Returns the page number after the zone's last page.
    pub(crate) fn end(&self) -> Pfn {
        self.start.up(self.managed)
    }
    /// Returns the size of the tail: the number of pages after the last whole maximal block.
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
    /// Returns the migrate type of the pageblock that contains `pfn`. Without the zone's lock, the result is only a
    /// hint.
    #[inline]
    pub(crate) fn pageblock_type(&self, shared: &ZoneShared, pfn: Pfn) -> MigrateType {
        decode(self.pageblock(shared, pfn))
    }
    pub(crate) fn pageblock_types(&self) -> impl Iterator<Item = MigrateType> {
        self.types.iter().map(decode)
    }
    /// Sets the migrate type of all pageblocks that begin in the `pages` pages from `pfn`. A pageblock must begin at
    /// `pfn`.
    fn set_pageblock_types(&self, shared: &ZoneShared, pfn: Pfn, pages: u32, mobility: MigrateType) {
        let first = (pfn.index() - self.start.index()) >> shared.pageblock_order.get();
        let count = pages.div_ceil(shared.pageblock_order.pages()) as usize;
        for pageblock in &self.types[first..first + count] {
            pageblock.set(encode(mobility));
        }
    }

    // --- Free lists ------------------------------------------------------------------------------------------

    /// Inserts a block into the free list for `state`, whose kind must be `Free`.
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
    /// Removes a block from the free list for `state`. After removing a block, the caller must update the state in the
    /// block's frame.
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

    /// Allocates one block, if the requested minimum of pages stays free. The frame of the returned block has the kind
    /// [`Kind::PerCpu`] until the allocator hands the block out.
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

    /// Allocates up to `max` blocks under one acquisition of the zone's lock, and passes each block to `put`. Returns
    /// the number of allocated blocks and, if it is below `max`, the reason.
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
        inner.adapt_surplus_bound(shared.keep.get());
        let splits = (inner.events.splits - splits) as u16;
        op.note(Step::BlocksTaken { blocks: filled as u16, order: order.get(), page: last, splits });
        if inner.events.system_calls() != calls {
            tell!(op: inner => Step::Committed { pages: uncommitted - inner.uncommitted });
        }
        self.decommit_excess_pages(shared, inner);
        (filled, limit)
    }

    /// Takes a block from the first source that has one, in the order that the module documentation lists.
    fn take(
        &self,
        shared: &ZoneShared,
        inner: &mut Inner,
        order: Order,
        mobility: MigrateType,
    ) -> Result<Pfn, Limit> {
        if let Some(pfn) = self.take_smallest_fit(shared, inner, order, mobility) {
            return Ok(pfn);
        }
        let mut limit = Limit::Fragmented;
        match self.commit(shared, inner, order, mobility) {
            Ok(true) => {
                if let Some(pfn) = self.take_smallest_fit(shared, inner, order, mobility) {
                    return Ok(pfn);
                }
            }
            Ok(false) => {}
            Err(CommitRefused) => limit = Limit::CommitRefused,
        }
        self.claim(shared, inner, order, mobility)
            .or_else(|| self.steal_block(shared, inner, order, mobility))
            .ok_or(limit)
    }

    /// Takes the smallest sufficient block of the migrate type `mobility`.
    fn take_smallest_fit(
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

    /// Splits a block, which was just removed from the free list for `state`, down to order `low`. The lowest part is
    /// kept for the caller, and the upper halves are put on the free lists.
    fn split(&self, shared: &ZoneShared, inner: &mut Inner, pfn: Pfn, state: State, low: Order) {
        let mut high = state.order();
        while high > low {
            high = high.next_lower();
            self.insert(shared, inner, pfn.up(high.pages()), state.with_order(high), ListEnd::Front);
            inner.events.splits += 1;
        }
    }

    /// Claims a pageblock of another migrate type, and takes a block from it. The pageblocks of the largest free blocks
    /// are tried first.
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
                self.set_pageblock_types(shared, pfn, current.pages(), mobility);
                self.split(shared, inner, pfn, state.with_type(mobility), order);
                inner.events.claims += 1;
                return Some(pfn);
            }
            if self.claim_pageblock(shared, inner, pfn, from, mobility) {
                inner.events.claims += 1;
                return self.take_smallest_fit(shared, inner, order, mobility);
            }
        }
        None
    }

    /// Changes the migrate type of the pageblock that contains `pfn` to `mobility`, if at least half of the pageblock
    /// is free or compatible. The free blocks of a claimed pageblock move to the free lists of the new type.
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
        self.set_pageblock_types(shared, start, pages, mobility);
        true
    }

    /// Takes the smallest sufficient block of a fallback type. The pageblock of the stolen block keeps its migrate
    /// type.
    fn steal_block(
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

    /// Frees blocks of `order` under one acquisition of the zone's lock. The frame of each freed block must have the
    /// kind [`Kind::PerCpu`].
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
            inner.adapt_surplus_bound(shared.keep.get());
        }
        drop(inner);
        let bytes = if above { self.decommit_down_to(shared, left) } else { 0 };
        if bytes > 0 {
            tell!(op: Step::Decommitted { pages: (bytes / PAGE_SIZE) as u32 });
        }
    }

    /// Returns the maximum number of backed free pages that a free leaves in the zone.
    fn surplus(&self, shared: &ZoneShared, inner: &Inner) -> u32 {
        let in_use = self.managed - inner.listed - inner.uncommitted;
        (in_use / 8).clamp(inner.surplus.min(shared.keep.get()), shared.keep.get())
    }

    fn merge(&self, shared: &ZoneShared, inner: &mut Inner, mut pfn: Pfn, mut order: Order) {
        let frames = &shared.frames;
        let mobility = self.pageblock_type(shared, pfn);
        while order < shared.max_order {
            let buddy = pfn.buddy(order);
            let state = frames.frame(buddy).state();
            let joins = state.is_free(order);
            if !joins {
                break;
            }
            self.remove(shared, inner, buddy, state);
            if order >= shared.pageblock_order {
                self.set_pageblock_types(shared, buddy, order.pages(), mobility);
            }
            frames.frame(pfn).set_state(State::INSIDE_BLOCK);
            frames.frame(buddy).set_state(State::INSIDE_BLOCK);
            pfn = pfn.min(buddy);
            order = order.up();
            inner.events.merges += 1;
        }
        let end = if self.is_parent_buddy_free(shared, pfn, order) { ListEnd::Back } else { ListEnd::Front };
        self.insert(shared, inner, pfn, State::new(Kind::Free, order, mobility), end);
    }

    /// Returns `true` if the block will probably merge soon, because the buddy of its parent block is free.
    fn is_parent_buddy_free(&self, shared: &ZoneShared, pfn: Pfn, order: Order) -> bool {
        if order.get() + 1 >= shared.max_order.get() {
            return false;
        }
        let parent = order.up();
        let next = pfn.align_down(parent).buddy(parent);
        shared.frames.get(next).is_some_and(|frame| frame.state().is_free(parent))
    }

    // --- Commitment ------------------------------------------------------------------------------------------

    // --- Reports ---------------------------------------------------------------------------------------------

    /// Returns the number of free blocks, by order and migrate type. Uncommitted memory counts as free blocks of the
    /// sizes that a commit would create.
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

    /// Number of used pages, plus free pages that are not merged into the largest possible block.
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

    /// Returns the committed parts of the zone, each as its first page and its number of pages. The slice `committed`
    /// holds one flag per whole maximal block.
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
    pub(crate) fn whole_maximal_blocks(&self, shared: &ZoneShared) -> u32 {
        self.managed / shared.max_order.pages()
    }
}

/// Divides the `pages` pages from `start` into the largest possible aligned blocks.
fn maximal_blocks(start: Pfn, pages: u32, max: Order) -> impl Iterator<Item = (Pfn, Order)> {
    let end = start.up(pages);
    let mut at = start;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let order = Order::largest_order_at(at, end.get() - at.get(), max);
        let block = (at, order);
        at = at.up(order.pages());
        Some(block)
    })
}

/// Iterates over the blocks that start in the page range `start..end`, each with its state. Pages at which no block
/// starts are skipped.
///
/// If the caller holds the zone's lock, the result is exact for free blocks. The states of allocated blocks may change
/// during the iteration.
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

    /// Decommits append to the list of returned blocks under the zone's lock. The list of returned blocks must not grow
    /// under the lock, because the heap that would supply the memory may be built on this zone.
    #[test]
    fn list_of_decommitted_blocks_never_reallocates() {
        let mut fresh = UncommittedBlocks::all(1000).unwrap();
        let room = fresh.returned.capacity();
        assert!(room >= 1000 && fresh.len() == 1000);
        let all: Vec<u32> = core::iter::from_fn(|| fresh.pop()).collect();
        assert!(all.iter().copied().eq(0..1000));
        all.into_iter().for_each(|block| fresh.push(block));
        assert_eq!((fresh.returned.capacity(), fresh.len(), fresh.next()), (room, 1000, Some(999)));
    }
}
