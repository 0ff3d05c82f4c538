//! The page allocator: the zones of all nodes, their per-CPU magazines, and the order in which a request tries them.
//!
//! ```text
//! alloc(order, gfp, node)
//!   for each zone of the zonelist, at the low watermark          nearest node first, highest zone first
//!     └ order <= 3: this CPU's magazines, filled from the zone in one lock hold; else the zone
//!   again, at the minimum watermark (less for high priority)
//!   flush the per-CPU pages of all CPUs, and again               unless the caller cannot wait
//!   AllocError: which limit was met
//! ```
//!
//! An allocation may take a page from the CPU's magazine even if the zone is below its watermark. The zone passed the
//! watermark check when the magazine was filled.
//!
//! ## Locks
//!
//! A thread that calls a zone holds at most one lock. Only a charge, which locks all zones, and a fork, which takes all
//! locks, hold several locks. Charges and forks lock the zones in ascending order, as ARCHITECTURE.md describes.

use crate::corruption::{self, Corruption};
use crate::error::{AllocError, Limit};
use crate::frame::{Frame, FrameTable, Kind, State};
use crate::gfp::{Gfp, MigrateType, ZoneKind};
use crate::per_cpu::{PAGES, PageRound, PerCpuPages, ZoneSupplier};
use crate::pfn::{Order, Pfn};
use crate::region::{Backend, Reservation, Reserved, address_above};
use crate::tables::Tables;
use crate::watermark::Mark;
use crate::zone::{BlockRequest, Zone, ZoneShared};
use crate::{PAGE_SHIFT, PAGE_SIZE, PageBlock};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_magazine::sync::{Counter, MODEL, assert_unlocked, contain_panic};
use uslab_magazine::tracepoints::{OperationKind, Tracepoints};
use uslab_magazine::{Cpus, DrainScope, Operation, SweepGroup};

mod start;

/// A zone and its per-CPU magazines.
#[derive(Debug)]
pub(crate) struct CachedZone {
    pub(crate) zone: Zone,
    pub(crate) per_cpu: Option<PerCpuPages>,
    /// The sweep group of the zone's magazine layers.
    group: SweepGroup,
}

/// Event counters of the page allocator. Each zone has further event counters.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Number of allocations that found every zone below its low watermark.
    pub(crate) below_low: Counter,
    /// Number of allocations that flushed the per-CPU pages.
    pub(crate) drains: Counter,
    pub(crate) failures: Counter,
    pub(crate) corruptions: Counter,
    /// Number of forks, since the allocator was created, that happened while other threads ran. The child of a `fork`
    /// continues counting from its parent's number.
    pub(crate) forks: Counter,
}

/// The page allocator.
///
/// Dropping the page allocator unmaps all its pages, including allocated pages. Allocating or freeing a low-order block
/// costs one operation on the CPU's magazine, and one compare-and-exchange or store on the block's frame. Allocating or
/// freeing a block of a higher order costs one acquisition of the zone lock.
#[derive(Debug)]
pub struct PageAllocator {
    pub(crate) shared: ZoneShared,
    pub(crate) cached_zones: Box<[CachedZone]>,
    /// For each maximal block, the index of its zone.
    zone_of: Box<[u8]>,
    /// For each node and each highest allowed zone, the indices of the zones to try, in order.
    zonelists: Box<[[Box<[u8]>; ZoneKind::COUNT]]>,
    cpus: Cpus,
    pub(crate) tables: Tables,
    /// Addresses reserved for page metadata tables.
    addresses: Reservation,
    corruption: corruption::Handler,
    limited: bool,
    /// Required distance between reservations in bytes, if the address space is limited; otherwise `None`.
    apart: Option<usize>,
    pub(crate) counts: Counts,
}

/// Maximum number of pages that a bulk allocation takes per acquisition of a zone lock.
const BULK_PAGES: usize = 64;

impl PageAllocator {
    #[inline]
    fn operation(&self, what: OperationKind) -> Operation<'_> {
        Operation::of(self.tracepoints(), what, PAGES)
    }

    // --- Allocation ------------------------------------------------------------------------------------------

    /// Allocates a block of `2^order` pages from `node`, or else from the nearest node with a free block. If
    /// `node` is `None`, the allocator uses the node of the current CPU. The contents of the pages are
    /// unspecified unless `gfp` has [`Gfp::ZERO`].
    ///
    /// # Errors
    /// If the allocation fails, returns an error that names the reason. A failed allocation does not change the
    /// allocator.
    pub fn alloc(&self, order: Order, gfp: Gfp, node: Option<u32>) -> Result<Pfn, AllocError> {
        self.alloc_in(&self.operation(OperationKind::Alloc), order, gfp, node)
    }

    fn find(&self, op: &Operation, order: Order, gfp: Gfp, node: Option<u32>) -> Result<Pfn, Limit> {
        if order > self.shared.max_order {
            return Err(Limit::Order);
        }
        let zonelist = self.zonelist(gfp, node)?;
        let found = self.try_zones(op, zonelist, order, gfp, Mark::Low);
        if matches!(found, Ok(_) | Err(Limit::Injected)) {
            return found;
        }
        self.counts.below_low.add(matches!(found, Err(Limit::Watermark | Limit::Exhausted)).into());
        self.try_zones(op, zonelist, order, gfp, Mark::Min).or_else(|limit| {
            if !gfp.may_drain() || matches!(limit, Limit::Zone | Limit::Injected) {
                return Err(limit);
            }
            self.counts.drains.add(1);
            self.flush_all(op, zonelist.iter().map(|at| &self.cached_zones[usize::from(*at)]));
            self.try_zones(op, zonelist, order, gfp, Mark::Min)
        })
    }

    /// Returns the indices of the zones that may serve the request, best zone first.
    fn zonelist(&self, gfp: Gfp, node: Option<u32>) -> Result<&[u8], Limit> {
        let node = match node {
            Some(node) => node,
            None if self.cpus.nodes() == 1 => 0,
            None => self.cpus.node_of(self.cpus.current()),
        };
        let lists = self.zonelists.get(node as usize).ok_or(Limit::Node)?;
        let zonelist = &lists[gfp.highest_zone() as usize];
        if !gfp.contains(Gfp::THIS_NODE) {
            return Ok(zonelist);
        }
        // The zones of `node` come first in `zonelist`.
        let own =
            zonelist.iter().take_while(|at| self.cached_zones[usize::from(**at)].zone.node == node).count();
        Ok(&zonelist[..own])
    }

    fn try_zones(
        &self,
        op: &Operation,
        zonelist: &[u8],
        order: Order,
        gfp: Gfp,
        mark: Mark,
    ) -> Result<Pfn, Limit> {
        let mobility = self.mobility(gfp);
        let mut met_limit = Limit::Zone;
        for at in zonelist {
            let cached = &self.cached_zones[usize::from(*at)];
            let zone = &cached.zone;
            let floor = zone.marks.floor(mark, gfp, zone.reserve[gfp.highest_zone() as usize]);
            match self.try_zone(op, cached, BlockRequest { order, mobility, floor }) {
                Ok(pfn) => {
                    self.hand_out(pfn, order, gfp, mobility);
                    return Ok(pfn);
                }
                // An injected fault refuses the whole request, not only one zone.
                Err(Limit::Injected) => return Err(Limit::Injected),
                Err(limit) => met_limit = met_limit.max(limit),
            }
        }
        Err(met_limit)
    }

    #[inline]
    fn try_zone(&self, op: &Operation, cached: &CachedZone, wanted: BlockRequest) -> Result<Pfn, Limit> {
        let layer = cached.per_cpu.as_ref().and_then(|per_cpu| per_cpu.layer(wanted.order, wanted.mobility));
        let Some(layer) = layer else { return cached.zone.alloc(op, &self.shared, wanted) };
        let shelf = ZoneSupplier::new_for_fill(&cached.zone, &self.shared, wanted);
        match layer.alloc_in(op, &shelf) {
            Some(round) => Ok(round.0),
            None => Err(shelf.limit().unwrap_or(Limit::Exhausted)),
        }
    }

    fn mobility(&self, gfp: Gfp) -> MigrateType {
        if self.shared.mobility { gfp.migrate_type() } else { MigrateType::Unmovable }
    }

    /// Marks a block as allocated before any other thread can refer to it.
    fn hand_out(&self, pfn: Pfn, order: Order, gfp: Gfp, mobility: MigrateType) {
        let compound = order > Order::ZERO && gfp.contains(Gfp::COMP);
        let frame = self.shared.frames.frame(pfn);
        let zero = frame.state().is_zero();
        frame.set_state(State::new(Kind::Allocated, order, mobility).with_compound(compound).zero(zero));
        let heads = if compound { order.pages() } else { 1 };
        for page in 0..heads {
            self.shared.frames.frame(pfn.up(page)).set_head(pfn);
        }
        self.watch(pfn, order, Frame::mark_page_allocated);
        if gfp.contains(Gfp::ZERO) && !zero {
            // SAFETY: the block is committed, and the caller does not have its address yet.
            unsafe { self.address(pfn).write_bytes(0, order.bytes()) };
        }
    }

    /// Allocates up to `max` single pages and passes each page to `put`. Many pages share one lock acquisition, and no
    /// lock is held while `put` runs. Returns the number of pages that were allocated. `alloc_bulk` allocates fewer
    /// than `max` pages if memory runs out, and no page if the node does not exist.
    pub fn alloc_bulk(&self, gfp: Gfp, node: Option<u32>, max: usize, mut put: impl FnMut(Pfn)) -> usize {
        let Ok(zonelist) = self.zonelist(gfp, node) else { return 0 };
        let (mobility, op) = (self.mobility(gfp), &self.operation(OperationKind::Alloc));
        let mut done = 0;
        for at in zonelist {
            let zone = &self.cached_zones[usize::from(*at)].zone;
            let floor = zone.marks.floor(Mark::Low, gfp, zone.reserve[gfp.highest_zone() as usize]);
            loop {
                let mut batch = Batch { pages: self, pfns: [Pfn::new(0); BULK_PAGES], given: 0, len: 0 };
                let wanted = BULK_PAGES.min(max - done);
                let one = BlockRequest { order: Order::ZERO, mobility, floor };
                let (filled, _) = zone.fill(op, &self.shared, one, wanted, |pfn| {
                    batch.pfns[batch.len] = pfn;
                    batch.len += 1;
                });
                for pfn in &batch.pfns[..filled] {
                    self.hand_out(*pfn, Order::ZERO, gfp, mobility);
                }
                op.pause();
                while let Some(pfn) = batch.next() {
                    put(pfn);
                }
                done += filled;
                if filled < wanted || done == max {
                    break;
                }
            }
        }
        // The remaining pages come from magazines, or from the reserve between the low and the min watermark.
        while done < max {
            let Ok(pfn) = self.find(&self.operation(OperationKind::Alloc), Order::ZERO, gfp, node) else {
                break;
            };
            done += 1;
            put(pfn);
        }
        done
    }

    /// Allocates like [`alloc`](PageAllocator::alloc), and returns an owned block that frees itself.
    ///
    /// # Errors
    /// If the allocation fails, returns an error that names the reason. A failed allocation does not change the
    /// allocator.
    pub fn alloc_block(
        &self,
        order: Order,
        gfp: Gfp,
        node: Option<u32>,
    ) -> Result<PageBlock<'_>, AllocError> {
        Ok(PageBlock::new(self, self.alloc(order, gfp, node)?, order))
    }

    // --- Free ------------------------------------------------------------------------------------------------

    /// Frees the block of `order` that starts at page `pfn`.
    ///
    /// `free` detects a double free, a wrong order, and a page that starts no block, because the page's frame records
    /// the block's state. An invalid free is reported to the configured handler and changes nothing.
    ///
    /// # Safety
    /// The block must come from an allocation of `order`, or from a split to `order`, by this allocator. No thread may
    /// use the block during or after the call.
    pub unsafe fn free(&self, pfn: Pfn, order: Order) {
        // SAFETY: the block was allocated with this order and is unused, by this function's contract.
        unsafe { self.free_in(&self.operation(OperationKind::Free), pfn, order) };
    }

    /// Changes an allocated block's state so that only the calling thread may free it. If two threads free the same
    /// block, only one free succeeds.
    fn take_back(&self, pfn: Pfn, order: Order) -> Result<(), Corruption> {
        let frames = &self.shared.frames;
        let frame = frames.get(pfn).ok_or(Corruption::Foreign { pfn, pages: frames.len() })?;
        let state = frame.state();
        match state.kind() {
            Kind::Inside => return Err(Corruption::NotABlock { pfn }),
            found @ (Kind::Free | Kind::PerCpu) => return Err(Corruption::DoubleFree { pfn, found }),
            Kind::Allocated if state.order() != order => {
                return Err(Corruption::WrongOrder { pfn, freed: order, allocated: state.order() });
            }
            Kind::Allocated => {}
        }
        let parked = State::new(Kind::PerCpu, order, state.migrate_type());
        frame.claim(state, parked).map_err(|now| Corruption::DoubleFree { pfn, found: now.kind() })?;
        // SAFETY: the caller owned the block, and this call has claimed it.
        unsafe { frame.set_owner(core::ptr::null_mut()) };
        self.watch(pfn, order, Frame::mark_page_freed);
        Ok(())
    }

    /// Reports a change of the owner of a block's pages to the loom and shuttle models. The function does nothing in
    /// normal builds.
    #[inline(always)]
    fn watch(&self, pfn: Pfn, order: Order, change: fn(&Frame)) {
        if MODEL {
            (0..order.pages()).for_each(|page| change(self.frame(pfn.up(page))));
        }
    }

    /// Splits an allocated block of order `from` into blocks of order `to`. The caller must free each of the new blocks
    /// separately. Cost: one store per new block, under the zone's lock.
    ///
    /// # Safety
    /// The caller must own the block at `pfn`, which this allocator allocated with order `from`. The order `to` must
    /// not exceed `from`.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) {
        debug_assert!(to <= from);
        let state = State::new(Kind::Allocated, to, self.frame(pfn).state().migrate_type());
        // A fork waits for this lock, so the child's audit finds either one block or all split blocks. The
        // order of the stores to the frames does not matter. A concurrent free reads the frame of its buddy,
        // and the split blocks are not the buddies of any other block.
        let _zone = self.zone_containing(pfn).zone.lock();
        for page in (0..from.pages()).step_by(to.pages() as usize) {
            let frame = self.frame(pfn.up(page));
            // SAFETY: the caller owns the block, by this function's contract.
            unsafe { frame.set_owner(core::ptr::null_mut()) };
            frame.set_head(pfn.up(page));
            frame.set_state(state);
        }
    }

    // --- Reclaim ---------------------------------------------------------------------------------------------

    /// Sweeps the per-CPU stacks of `cached_zones`, at the cost of one fence per table of stacks.
    fn sweep<'a>(
        &self,
        cached_zones: impl Iterator<Item = &'a CachedZone> + Clone,
        cpus: Range<u32>,
        which: DrainScope,
    ) {
        self.tables.sweep(cpus, which, |group| cached_zones.clone().any(|zone| zone.group == group));
    }
    fn flush_all<'a>(&self, op: &Operation, cached_zones: impl Iterator<Item = &'a CachedZone> + Clone) {
        self.sweep(cached_zones.clone(), 0..self.cpus().count(), DrainScope::All);
        for (zone, per_cpu) in cached_zones.filter_map(CachedZone::zone_and_magazines) {
            per_cpu.flush_swept(op, zone, &self.shared);
        }
    }

    /// Flushes the pages in the magazines of `cpus` to the zones that own the pages. The drained CPUs may allocate and
    /// free concurrently.
    pub fn drain_cpus(&self, cpus: Range<u32>) {
        let op = &self.operation(OperationKind::Reclaim);
        self.sweep(self.cached_zones.iter(), cpus, DrainScope::All);
        for (zone, per_cpu) in self.cached_zones.iter().filter_map(CachedZone::zone_and_magazines) {
            per_cpu.drain_swept(op, zone, &self.shared);
        }
    }

    /// Flushes to the zones all per-CPU pages that stayed unused since the last call of `reap`. Returns the number of
    /// flushed pages. `reap` also decommits the memory of per-CPU stacks that are not used. Call `reap` from a timer.
    pub fn reap(&self) -> u64 {
        self.sweep(self.cached_zones.iter(), 0..self.cpus().count(), DrainScope::Idle);
        let cached = self.cached_zones.iter().filter_map(CachedZone::zone_and_magazines);
        let pages = cached.map(|(zone, per_cpu)| per_cpu.reap_swept(zone, &self.shared)).sum();
        self.tables.decommit_idle();
        pages
    }

    /// Flushes all per-CPU pages to their zones, and then decommits all free pages. Returns the number of decommitted
    /// bytes. The result includes locked memory (`mlock`), although the OS keeps its contents.
    ///
    /// Cost: up to three system calls per maximal block, and two per run of free pages inside a partly used block. The
    /// lock of one zone is held during each system call, and released between two calls.
    pub fn decommit(&self) -> usize {
        self.flush_all(&self.operation(OperationKind::Reclaim), self.cached_zones.iter());
        self.tables.decommit_idle();
        self.decommit_free()
    }

    /// Withdraws `pages` free pages from use, to account for the same amount of memory used by other code. Returns
    /// `false` and charges nothing if too few pages are free above the min watermarks. Pages in per-CPU magazines do
    /// not count as free; [`decommit`](Self::decommit) flushes them. Without a [limit](crate::PageConfig::limited),
    /// `charge` does nothing.
    ///
    /// Cost: locking all zones together, locking each zone again, and the system calls that decommit surplus memory.
    pub fn charge(&self, pages: usize) -> bool {
        let Ok(wanted) = u32::try_from(pages) else { return !self.limited };
        if !self.limited {
            return true;
        }
        // Decommits charged memory with one call per block, while no other lock is held.
        let trim =
            |CachedZone { zone, .. }: &CachedZone| zone.decommit_excess_pages(&self.shared, zone.lock());
        let left = self.charge_zones(&self.cached_zones, wanted, 0);
        left.map(|_| self.cached_zones.iter().for_each(trim)).is_some()
    }
    /// Charges `wanted` pages in total to `zones` and to the zones before them. The caller has locked the earlier
    /// zones. Up to `room` pages can be charged to these zones together. Returns the number of pages that the earlier
    /// zones must still charge. Returns `None` and charges nothing if all zones together cannot be charged `wanted`
    /// pages. The last zone is charged first, to spare the earlier zones, which serve requests for low memory.
    ///
    /// `charge_zones` holds all zone locks until the result is known. Only charges and forks hold several zone locks at
    /// the same time. Charges and forks take the zone locks in the same order.
    fn charge_zones(&self, zones: &[CachedZone], wanted: u32, room: u32) -> Option<u32> {
        let Some((CachedZone { zone, .. }, others)) = zones.split_first() else {
            return (wanted <= room).then_some(wanted);
        };
        zone.charge(|own| self.charge_zones(others, wanted, room + own))
    }
    /// Cancels charges of `pages` pages in total. The cancelled number of pages may cover several charges or only a
    /// part of one.
    pub fn uncharge(&self, pages: usize) {
        if self.limited {
            self.cached_zones.iter().fold(pages as u32, |left, cached| left - cached.zone.uncharge(left));
        }
    }

    /// Size of all pages in bytes, or `None` if the pages [are not limited](crate::PageConfig::limited).
    pub fn limit(&self) -> Option<usize> {
        let pages = self.cached_zones.iter().map(|cached| cached.zone.managed as usize);
        self.limited.then(|| pages.sum::<usize>() * PAGE_SIZE)
    }
    fn used_address_bytes(max_order: &Order, untouched: u32) -> usize {
        (untouched as usize).max(1) * max_order.bytes()
    }

    /// Number of bytes of committed pages. `committed_bytes` allocates nothing.
    pub fn committed_bytes(&self) -> usize {
        let pages = |cached: &CachedZone| cached.zone.managed - cached.zone.lock().uncommitted_pages();
        self.cached_zones.iter().map(|cached| pages(cached) as usize * PAGE_SIZE).sum()
    }
    /// Returns the address of the first byte of page `pfn`. The caller may access the memory at this address only while
    /// the page is allocated.
    ///
    /// # Panics
    /// Panics if page `pfn` does not belong to this allocator.
    #[inline(always)]
    pub fn address(&self, pfn: Pfn) -> NonNull<u8> {
        assert!(pfn.get() < self.shared.frames.len(), "page {pfn} is outside the allocator's range");
        // SAFETY: the page is inside the region, which has as many pages as the table has frames.
        unsafe { address_above(self.shared.region.base(), pfn.index() << PAGE_SHIFT) }
    }
    /// Returns the page that contains `address`. Returns `None` if `address` is outside the allocator's range.
    #[inline(always)]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().wrapping_sub(self.shared.region.base().addr().get());
        let page = offset >> PAGE_SHIFT;
        (page < self.shared.frames.len() as usize).then(|| Pfn::new(page as u32))
    }
    /// Returns the first page and the order of the allocated block that contains page `pfn`. A compound block is found
    /// from any of its pages, and any other block only from its first page. Returns `None` for a free page, and for any
    /// later page of a block that is not compound. The result may be stale if another thread frees the block
    /// concurrently.
    pub fn block_of(&self, pfn: Pfn) -> Option<(Pfn, Order)> {
        let head = self.shared.frames.get(pfn)?.head();
        let state = self.shared.frames.get(head)?.state();
        let found = state.kind() == Kind::Allocated
            && (pfn == head || state.is_compound())
            && (head.get()..head.get() + state.order().pages()).contains(&pfn.get());
        found.then_some((head, state.order()))
    }
    /// Returns the node of page `pfn`.
    ///
    /// # Panics
    /// Panics if page `pfn` does not belong to this allocator.
    #[inline]
    pub fn node_of(&self, pfn: Pfn) -> u32 {
        self.zone_containing(pfn).zone.node
    }
    /// The CPUs that have per-CPU pages.
    pub fn cpus(&self) -> Cpus {
        self.cpus
    }
    /// Number of nodes, including nodes without zones.
    pub fn nodes(&self) -> u32 {
        self.zonelists.len() as u32
    }

    #[inline(always)]
    fn zone_containing(&self, pfn: Pfn) -> &CachedZone {
        &self.cached_zones[usize::from(self.zone_of[pfn.index() >> self.shared.max_order.get()])]
    }
}

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl PageAllocator {
    /// Takes the addresses that the configuration reserves for page metadata tables.
    pub fn take_table_reservation(&mut self) -> Reservation {
        let none = Reservation::none(self.addresses.backend, &self.addresses.faults);
        core::mem::replace(&mut self.addresses, none)
    }

    // --- Observers -------------------------------------------------------------------------------------------

    /// The observers of page operations, and of object operations in the per-CPU caches that use this allocator's
    /// pages.
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        self.tables.tracepoints()
    }

    /// Allocates a block like [`alloc`](PageAllocator::alloc), as part of the operation `op`.
    ///
    /// # Errors
    /// If the allocation fails, returns an error that names the reason. A failed allocation does not change the
    /// allocator.
    pub fn alloc_in(
        &self,
        op: &Operation,
        order: Order,
        gfp: Gfp,
        node: Option<u32>,
    ) -> Result<Pfn, AllocError> {
        let only = gfp.contains(Gfp::THIS_NODE);
        self.find(op, order, gfp, node).map_err(|limit| {
            self.counts.failures.add(1);
            let here = || self.cpus().node_of(self.cpus().current());
            let node = node.filter(|_| limit == Limit::Node || only).or_else(|| only.then(here));
            AllocError { order, node, limit }
        })
    }

    /// Frees a block like [`free`](PageAllocator::free), as part of the operation `op`.
    ///
    /// # Safety
    /// The block must come from an allocation of `order`, or from a split to `order`, by this allocator. No thread may
    /// use the block during or after the call.
    pub unsafe fn free_in(&self, op: &Operation, pfn: Pfn, order: Order) {
        if let Err(corruption) = self.take_back(pfn, order) {
            self.counts.corruptions.add(1);
            assert_unlocked();
            _ = contain_panic(|| (self.corruption)(&corruption));
            return;
        }
        let cached = self.zone_containing(pfn);
        let zone = &cached.zone;
        let mobility = zone.pageblock_type(&self.shared, pfn);
        let per_cpu = cached.per_cpu.as_ref().filter(|_| !op.is_cold());
        match per_cpu.and_then(|per_cpu| per_cpu.layer(order, mobility)) {
            Some(layer) => {
                layer.free_in(op, &ZoneSupplier::new_for_flush(zone, &self.shared, order), PageRound(pfn));
            }
            None => zone.free(op, &self.shared, order, core::iter::once(pfn)),
        }
    }

    /// Flushes idle per-CPU pages like [`reap`](Self::reap), then decommits the memory that stayed free since the last
    /// call of `decommit_idle`. Returns the number of decommitted bytes. Call `decommit_idle` from a timer.
    ///
    /// The callback `reap_users` runs first, so that the users of pages can free unneeded pages. Pages that
    /// `reap_users` frees count as free for the whole interval, so they are decommitted too.
    ///
    /// Cost: the system calls that [`decommit`](Self::decommit) would make for the returned memory.
    pub fn decommit_idle(&self, reap_users: impl FnOnce()) -> usize {
        self.cached_zones.iter().for_each(|cached| cached.zone.end_reap_interval());
        reap_users();
        self.sweep(self.cached_zones.iter(), 0..self.cpus().count(), DrainScope::Idle);
        let release = |cached: &CachedZone| {
            let zone = &cached.zone;
            cached.per_cpu.iter().for_each(|per_cpu| _ = per_cpu.reap_swept(zone, &self.shared));
            zone.decommit_idle(&self.shared)
        };
        let bytes = self.cached_zones.iter().map(release).sum();
        self.tables.decommit_idle();
        bytes
    }

    /// Decommits all free pages except the pages in per-CPU magazines. Returns the number of decommitted
    /// bytes.
    ///
    /// Cost: the system calls of [`decommit`](Self::decommit).
    pub fn decommit_free(&self) -> usize {
        self.cached_zones.iter().map(|cached| cached.zone.decommit_free(&self.shared)).sum()
    }

    /// Limits the backed free memory of each zone to `bytes` or to [`PageConfig::keep_free`], whichever is lower. All
    /// depots together may also hold at most `bytes` bytes.
    pub fn keep_at_most(&self, bytes: u64) {
        let pages = u32::try_from(bytes / PAGE_SIZE as u64).unwrap_or(u32::MAX);
        self.shared.keep.set(pages.min(self.shared.most_kept));
        self.tables().keep_at_most(bytes);
    }

    /// Number of bytes of address space reserved for pages, committed or not.
    pub fn reserved_bytes(&self) -> usize {
        self.shared.region.bytes()
    }

    /// Maximum number of pages that the allocator can have. Some of the allocator's pages may have
    /// [no addresses yet](Self::has_unmapped_pages).
    pub fn max_pages(&self) -> usize {
        self.shared.most.get() as usize
    }

    /// Required [distance](Region::reserve_apart) between page metadata tables in bytes, if the address space is
    /// limited; otherwise `None`.
    pub fn min_table_spacing(&self) -> Option<usize> {
        self.apart
    }

    /// Ensures that addresses are reserved for the first `bytes` bytes of a page metadata table. Returns `false` if the
    /// OS refuses the addresses.
    pub fn grow_table(&self, table: &Reserved, bytes: usize) -> bool {
        let Some(first) = self.cached_zones.first().filter(|_| bytes > table.reserved()) else { return true };
        let _inner = first.zone.lock();
        let before = table.reserved();
        let grown = table.grow(bytes);
        self.shared.limit.tables.add((table.reserved() - before) as u64);
        grown
    }

    /// Keeps the first `bytes` bytes of a page metadata table, and unmaps its other addresses: see [`Reserved::cut`].
    ///
    /// # Safety
    /// During the call, no thread may use or commit the table's memory after the first `bytes` bytes. Other threads may
    /// [grow](Self::grow_table) or cut the table concurrently.
    pub unsafe fn truncate_table(&self, table: &Reserved, bytes: usize) {
        let _inner = self.cached_zones.first().map(|first| first.zone.lock());
        let before = table.reserved();
        // SAFETY: no thread uses the cut part, by contract. Growing and cutting need the lock that this thread holds.
        unsafe { table.cut(bytes) };
        let tables = &self.shared.limit.tables;
        tables.set(tables.get().saturating_sub((before - table.reserved()) as u64));
    }

    /// Unmaps the addresses of never-committed pages. A later commit maps addresses again, for up to `limit` bytes of
    /// pages, if resource limits and other mappings permit it. `give_up_addresses` does nothing if the allocator has
    /// several zones.
    ///
    /// Watermarks do not protect pages without addresses. Any allocation may get the last page that has an address.
    ///
    /// Cost: one system call under the zone's lock.
    pub fn give_up_addresses(&self, limit: usize) {
        let ZoneShared { region, frames, max_order, most, .. } = &self.shared;
        if let [CachedZone { zone, .. }] = &*self.cached_zones
            // A zone that is not made of whole blocks may commit its smaller end first, and is skipped.
            && zone.managed.is_multiple_of(max_order.pages())
        {
            let inner = zone.lock();
            let keep = Self::used_address_bytes(max_order, inner.first_fresh_block());
            if keep >= region.bytes() {
                return;
            }
            // The number of frames shrinks first, because the system may map other memory at the returned addresses.
            let old_len = frames.set_len((keep / PAGE_SIZE) as u32);
            // SAFETY: the cut part was never committed, and the locked zone commits nothing now.
            if unsafe { region.cut(keep) } {
                let limit = u32::try_from(limit.max(keep) / max_order.bytes()).unwrap_or(u32::MAX);
                most.set(most.get().min(limit.saturating_mul(max_order.pages())));
            } else {
                frames.set_len(old_len);
            }
        }
    }

    /// Returns `true` if [`give_up_addresses`](Self::give_up_addresses) would unmap any addresses.
    pub fn has_unused_addresses(&self) -> bool {
        let ZoneShared { region, max_order, .. } = &self.shared;
        let used =
            |cached: &CachedZone| Self::used_address_bytes(max_order, cached.zone.lock().first_fresh_block());
        self.cached_zones.iter().map(used).sum::<usize>() < region.bytes()
    }

    /// Records that the process uses `process_bytes` bytes of its limited address space. All bytes that the allocator
    /// does not use itself count as used by other code: see [`give_up_addresses`](Self::give_up_addresses).
    pub fn update_address_limit(&self, process_bytes: usize) {
        self.shared.record_foreign_bytes(process_bytes);
    }

    /// Returns `true` if some pages have no addresses until they are committed.
    pub fn has_unmapped_pages(&self) -> bool {
        let pages = self.cached_zones.iter().map(|cached| cached.zone.managed as usize);
        self.shared.region.bytes() < pages.sum::<usize>() * PAGE_SIZE
    }

    /// Unmaps the frames of the pages whose addresses were [given up](Self::give_up_addresses). Returns the number of
    /// pages that still have frames.
    ///
    /// # Safety
    /// During the call, no thread may read the frame of a page that has no address.
    pub unsafe fn release_unmapped_frames(&self) -> usize {
        // Frames are committed only under this zone's lock, so no frame is being committed now.
        let _inner = self.cached_zones.first().map(|cached| cached.zone.lock());
        // SAFETY: the pages have no addresses, and get addresses only under this lock. No thread reads the frames of
        // these pages, by this function's contract.
        unsafe { self.shared.frames.cut() };
        self.shared.frames.len() as usize
    }

    /// Number of maximal blocks that were decommitted so far.
    pub fn decommits(&self) -> u64 {
        self.cached_zones.iter().map(|cached| cached.zone.lock().events.decommits).sum()
    }

    /// Calls `each` with the page range of every maximal block that is currently decommitted. The zone's lock is held
    /// during each call.
    pub fn for_each_decommitted_block(&self, mut each: impl FnMut(Range<usize>)) {
        let pages = self.shared.max_order.pages() as usize;
        for CachedZone { zone, .. } in &self.cached_zones {
            let first = |block: &u32| zone.start.index() + *block as usize * pages;
            zone.lock().returned_blocks().iter().map(first).for_each(|first| each(first..first + pages));
        }
    }

    /// Returns a counter that increases whenever a zone gets a freed page, decommits a block or discards pages. If the
    /// counter did not change since the last reap, another reap would find no new free memory.
    pub fn changes(&self) -> u64 {
        let changes = |cached: &CachedZone| {
            let events = cached.zone.lock().events;
            events.pages_freed + events.decommits + events.discards
        };
        self.cached_zones.iter().map(changes).sum()
    }

    /// Number of pages that were freed to the zones so far.
    pub fn pages_freed(&self) -> u64 {
        self.cached_zones.iter().map(|cached| cached.zone.lock().events.pages_freed).sum()
    }

    // --- Lookups ---------------------------------------------------------------------------------------------

    /// Returns the frame of page `pfn`.
    ///
    /// # Panics
    /// Panics if page `pfn` does not belong to this allocator. A `Pfn` that this allocator returned never causes this
    /// panic.
    #[inline(always)]
    pub fn frame(&self, pfn: Pfn) -> &Frame {
        self.shared.frames.frame(pfn)
    }

    /// Returns the frames of all pages, for use with [`FrameList`](crate::FrameList).
    #[inline(always)]
    pub fn frames(&self) -> &FrameTable {
        &self.shared.frames
    }

    /// Makes a block accessible or inaccessible: see [`Region::protect`](crate::Region::protect).
    ///
    /// # Safety
    /// The caller must own the block, and `order` must be its order. No thread may access the block's bytes while the
    /// block is inaccessible. The caller must make the block accessible again before freeing it.
    pub unsafe fn protect(&self, pfn: Pfn, order: Order, accessible: bool) -> bool {
        let start = pfn.index() << PAGE_SHIFT;
        // SAFETY: the caller owns the block, and no thread accesses the block while it is inaccessible, by contract.
        unsafe { self.shared.region.protect(start..start + order.bytes(), accessible) }
    }

    /// Makes the last page of a block inaccessible if `on` is true, and returns the page's memory to the OS. If `on` is
    /// false, makes the last page accessible again, with zeroed contents.
    ///
    /// # Safety
    /// The caller must own the block, and `order` must be its order. No thread may access the last page while it is
    /// inaccessible. The caller must make the last page accessible again before freeing the block.
    pub unsafe fn guard(&self, pfn: Pfn, order: Order, on: bool) -> bool {
        let end = (pfn.index() << PAGE_SHIFT) + order.bytes();
        let (region, page) = (&self.shared.region, end - PAGE_SIZE..end);
        // SAFETY: the caller owns the page, and no thread accesses the page while it is inaccessible, by contract.
        unsafe {
            if on && region.backend() == Backend::Os {
                // The kernel rejoins two parts of a mapping only if the mapping had pages before it was split. Without
                // a write to the page, each guard would split a mapping permanently.
                let first = self.address(pfn);
                first.write_volatile(first.read_volatile());
                region.discard(page.clone());
            }
            region.protect(page, !on)
        }
    }

    /// Returns `true` if the allocator can return the memory of single pages to the OS. With [`HugePages::Advise`] and
    /// no memory limit, single pages are never returned to the OS.
    pub fn can_discard_pages(&self) -> bool {
        self.shared.discard_from == Order::ZERO
    }

    /// Returns the memory of some pages of an allocated block to the OS. Discarded pages stay allocated and read as
    /// zero afterwards.
    ///
    /// # Safety
    /// The pages must belong to an allocated block, and no thread may read or write them during the call.
    pub unsafe fn discard(&self, first: Pfn, pages: u32) {
        let start = first.index() << PAGE_SHIFT;
        // SAFETY: no thread accesses the pages during the call, by this function's contract.
        unsafe { self.shared.region.discard(start..start + pages as usize * PAGE_SIZE) };
    }

    /// Returns the number of bytes from the beginning of page `pfn` to `address`. Page `pfn` and `address` must be in
    /// the same block, so the distance is below 4 GiB.
    #[inline(always)]
    pub fn offset_from(&self, pfn: Pfn, address: *const u8) -> u32 {
        let offset = address.addr().wrapping_sub(self.shared.region.base().addr().get());
        (offset as u32).wrapping_sub(pfn.get() << PAGE_SHIFT)
    }

    /// Returns the kind of the zone that contains page `pfn`.
    ///
    /// # Panics
    /// Panics if page `pfn` does not belong to this allocator.
    pub fn zone_of(&self, pfn: Pfn) -> ZoneKind {
        self.zone_containing(pfn).zone.kind
    }

    /// Returns the tables that hold the per-CPU stacks.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The order of the largest block.
    pub fn max_order(&self) -> Order {
        self.shared.max_order
    }
}

/// The pages that a bulk allocation got under one lock and has yet to pass to its callback. If the callback panics, the
/// remaining pages are freed.
struct Batch<'a> {
    pages: &'a PageAllocator,
    pfns: [Pfn; BULK_PAGES],
    given: usize,
    len: usize,
}

impl Batch<'_> {
    fn next(&mut self) -> Option<Pfn> {
        let pfn = self.pfns[..self.len].get(self.given).copied();
        self.given += usize::from(pfn.is_some());
        pfn
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        while let Some(pfn) = self.next() {
            // SAFETY: the page was just allocated as a single page, and no caller has received it.
            unsafe { self.pages.free(pfn, Order::ZERO) };
        }
    }
}
