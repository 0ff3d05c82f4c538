//! The page allocator: zones of all nodes, the per-CPU pages in front of them, and the way of a request through them.
//!
//! ```text
//! alloc(order, gfp, node)
//!   for each zone of the zonelist, at the low watermark          nearest node first, highest zone first
//!     └ order <= 3: this CPU's magazines, filled from the zone in one lock hold; else the zone
//!   again, at the minimum watermark (less for high priority)
//!   per-CPU pages of all CPUs are called in, and again           unless the caller cannot wait
//!   AllocError: which limit was met
//! ```
//!
//! A page that is already in this CPU's magazine is handed out whatever the watermark says: it was free of it when
//! the magazine was filled.
//!
//! ## Locks
//!
//! A layer calls the zone with no lock of its own held: at most one lock is held at a time. Only a charge needs all zones, and a fork
//! takes all locks there are. Each of the two takes zones in ascending order, as ARCHITECTURE.md says.

use crate::config::PageConfig;
use crate::corruption::{self, Corruption};
use crate::error::{AllocError, Limit, PageError};
use crate::frame::{Frame, FrameTable, Kind, State};
use crate::gfp::{Gfp, MigrateType, ZoneKind};
use crate::per_cpu::{PAGES, PageRound, PerCpuPages, ZoneSupplier};
use crate::pfn::{Order, Pfn};
use crate::region::{
    Backend, HugePages, Region, Reservation, Reserved, Uncommitted, address_limit, behind, reserve_most,
};
use crate::tables::Tables;
use crate::watermark::{self, Mark, Watermarks};
use crate::zone::{AddressLimit, Wanted, Zone, ZoneShared, zeroed};
use crate::{PAGE_SHIFT, PAGE_SIZE, PageBlock};
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_magazine::sync::{Counter, Fixed, MODEL, assert_unlocked, contain_panic, planted};
use uslab_magazine::tracepoints::{Tracepoints, What};
use uslab_magazine::{Cpus, Operation, SweepGroup, Which};

/// A zone and the magazines in front of it.
#[derive(Debug)]
pub(crate) struct CachedZone {
    pub(crate) zone: Zone,
    pub(crate) per_cpu: Option<PerCpuPages>,
    /// Of sweeps.
    group: SweepGroup,
}

/// What the allocator counts beside its zones.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Allocations that found every zone at its low watermark.
    pub(crate) below_low: Counter,
    /// Allocations for which the per-CPU pages were called in.
    pub(crate) drains: Counter,
    /// Allocations that failed.
    pub(crate) failures: Counter,
    /// Frees that must not be.
    pub(crate) corruptions: Counter,
    /// Forks, with other threads at work, between the process that made the allocator and this one.
    pub(crate) forks: Counter,
}

/// The page allocator.
///
/// Dropping it unmaps all its pages, allocated ones too. Cost of an operation: a low-order block is one operation on
/// the CPU's magazine and a compare-and-exchange or store on its frame; anything else takes one zone lock.
#[derive(Debug)]
pub struct PageAllocator {
    pub(crate) shared: ZoneShared,
    pub(crate) cached_zones: Box<[CachedZone]>,
    /// The zone of each maximal block.
    zone_of: Box<[u8]>,
    /// For each node and each highest zone: the zones, nearest and highest first.
    zonelists: Box<[[Box<[u8]>; ZoneKind::COUNT]]>,
    cpus: Cpus,
    pub(crate) tables: Tables,
    /// Addresses left for the tables of the layer above.
    addresses: Reservation,
    corruption: corruption::Handler,
    limited: bool,
    /// Where addresses are limited: how far apart reservations are.
    apart: Option<usize>,
    pub(crate) counts: Counts,
}

/// The least that is reserved, in pages, before a refusal is final: 1 MiB.
const LEAST_PAGES: usize = 256;

/// Pages handed to a bulk caller for each hold of a zone lock.
const BULK: usize = 64;

impl PageAllocator {
    /// Reserves the range and lays out its zones. When the reservation is refused because addresses are limited (`RLIMIT_AS`), a single zone
    /// has as many pages as the limit leaves, and their addresses one maximal block at a time, when it is committed. Else the zones are
    /// halved until the reservation is granted, down to 1 MiB in all ([`info`](PageAllocator::info) says what there is).
    ///
    /// # Errors
    /// A configuration that cannot work, or a system that grants not even that.
    pub fn new(config: PageConfig) -> Result<Self, PageError> {
        config.validate()?;
        let wish = config.pages() as usize;
        let least = LEAST_PAGES.min(wish);
        // Whole blocks, so that addresses can be given up later.
        let block = config.max_order.pages() as usize;
        let reserve = |pages: usize| {
            let pages = if pages == wish { wish } else { (pages / block * block).max(pages.min(block)) };
            Self::reserve(&config, pages as u64, None)
        };
        if let Some(pages) = reserve(wish) {
            return Ok(pages);
        }
        if let Some((limit, has)) = address_limit() {
            let pages = (limit.saturating_sub(has) / PAGE_SIZE).min(wish) / block * block;
            // Of any two places the lower one has the addresses of the whole limit, and others as many.
            let apart = limit.saturating_mul(2).checked_next_power_of_two();
            let growing = apart.and_then(|apart| Self::reserve(&config, pages as u64, Some(apart)));
            if let Some(growing) = growing {
                growing.shared.see_limit(address_limit().map_or(has, |(_, has)| has));
                return Ok(growing);
            }
        }
        let granted = reserve_most((wish / 2).max(least), least, reserve);
        granted.map(|(_, pages)| pages).map_err(|pages| PageError::Refused { bytes: pages * PAGE_SIZE })
    }

    /// The allocator with `pages` pages in all, or `None` when a reservation is refused. With `apart` its only zone gets addresses as it
    /// grows.
    fn reserve(config: &PageConfig, pages: u64, apart: Option<usize>) -> Option<Self> {
        let nodes = config.scaled(pages);
        let step = config.max_order.pages();
        let zones = || {
            (0_u32..).zip(&nodes).flat_map(|(node, zones)| {
                let mut zones: Vec<_> = zones.iter().copied().filter(|(_, pages)| *pages > 0).collect();
                zones.sort();
                zones.into_iter().map(move |(kind, pages)| (node, kind, pages))
            })
        };
        let range: u32 = zones().map(|(_, _, pages)| pages.next_multiple_of(step)).sum();
        let (bytes, align) = (range as usize * PAGE_SIZE, config.max_order.bytes());
        let (faults, backend) = (&config.faults, config.backend);
        let none = || Reservation::none(backend, faults);
        let (mut addresses, region, mapped) = match apart {
            None => {
                // Where a table of stacks gets no more than its share of what there is. Else it sees how much that is.
                let stacks = Tables::footprint(&config.cpus);
                let one = (bytes / Tables::SHARE >= stacks).then(|| {
                    let (page, all) = config.beside;
                    let tables = range as usize * (size_of::<Frame>() + page) + all;
                    Reservation::with_pages(tables + stacks, bytes, align, backend, faults)
                });
                let (addresses, region) = match one.flatten() {
                    Some(one) => one,
                    None => (none(), Region::reserve(bytes, align, Uncommitted::NoAccess, backend, faults)?),
                };
                (addresses, region, range)
            }
            Some(_) if backend != Backend::Os || zones().count() != 1 => return None,
            Some(apart) => {
                let step = step as usize * PAGE_SIZE;
                let region = Region::apart(step, apart.max(align), Uncommitted::NoAccess, faults)?;
                (none(), region, config.max_order.pages())
            }
        };
        // A kernel without huge pages refuses; nothing depends on it.
        region.advise(config.huge_pages);
        let keep =
            config.keep_free.and_then(|bytes| u32::try_from(bytes / PAGE_SIZE).ok()).unwrap_or(u32::MAX);
        let shared = ZoneShared {
            region,
            frames: FrameTable::new(mapped, apart, &mut addresses)?,
            max_order: config.max_order,
            pageblock_order: config.pageblock_order,
            mobility: pages >= u64::from(config.pageblock_order.pages()) * MigrateType::COUNT as u64,
            keep: Fixed::new(keep),
            most_kept: keep,
            most: Fixed::new(range),
            limit: AddressLimit::default(),
            huge_pages: config.huge_pages,
            discard_from: match config.huge_pages {
                // A limit is one of memory: what lies free in a huge page is memory, too.
                HugePages::Advise if !config.limited => config.pageblock_order,
                _ => Order::ZERO,
            },
            faults: config.faults.clone(),
        };

        let in_lowmem = zones().filter(|(_, kind, _)| *kind != ZoneKind::Movable);
        let (mut lowmem_zones, mut lowmem) = (0, 0);
        for (_, _, pages) in in_lowmem {
            lowmem_zones += 1;
            lowmem += u64::from(pages);
        }
        let min_free = match config.min_free_kib {
            Some(kib) => u64::from(kib) * 1024 / PAGE_SIZE as u64,
            None if config.min_free_for_huge_pages => {
                let pageblock = config.pageblock_order.pages().into();
                let daemon = watermark::huge_page_free_pages(pageblock, lowmem_zones, lowmem);
                daemon.max(watermark::min_free_pages(lowmem))
            }
            None => watermark::min_free_pages(lowmem),
        };
        let tables = Tables::new(config.cpus, &mut addresses)?;
        // Not written to for the first zone, which most have alone.
        // SAFETY: zeros are numbers.
        let mut zone_of = unsafe { zeroed::<u8>((range / step) as usize) }?;
        let (mut cached_zones, mut start) = (Vec::new(), 0);
        for (node, kind, pages) in zones() {
            let mut managed = [0; ZoneKind::COUNT];
            zones()
                .filter(|(of, _, _)| *of == node)
                .for_each(|(_, kind, pages)| managed[kind as usize] = pages);
            let reserve = watermark::lowmem_reserve(managed)[kind as usize];
            let marks = Watermarks::new(kind, pages, lowmem, min_free, config.watermark_scale);
            let per_cpu = match config.per_cpu_pages {
                true => Some(PerCpuPages::new(&tables, pages, &shared)?),
                false => None,
            };
            if !cached_zones.is_empty() {
                zone_of[(start / step) as usize..][..pages.div_ceil(step) as usize]
                    .fill(cached_zones.len() as u8);
            }
            let zone = Zone::new(&shared, (node, kind), Pfn::new(start), pages, marks, reserve)?;
            let group = SweepGroup::new(cached_zones.len() as u32);
            let cached = CachedZone { zone, per_cpu, group };
            cached.layers().for_each(|layer| layer.join_sweeps(group));
            cached_zones.push(cached);
            start += pages.next_multiple_of(step);
        }

        let zonelist = |node: u32, highest: ZoneKind| -> Box<[u8]> {
            let of_node = |near: u32| {
                let fits = |at: &u8| {
                    let zone = &cached_zones[usize::from(*at)].zone;
                    zone.node == near && zone.kind <= highest
                };
                (0..cached_zones.len() as u8).rev().filter(fits).collect::<Vec<_>>()
            };
            config.nearest(node).into_iter().flat_map(of_node).collect()
        };
        let zonelists = (0..nodes.len() as u32).map(|node| ZoneKind::ALL.map(|kind| zonelist(node, kind)));
        let zonelists = zonelists.collect();
        Some(Self {
            shared,
            zonelists,
            cached_zones: cached_zones.into(),
            zone_of,
            cpus: config.cpus,
            tables,
            addresses,
            corruption: config.corruption,
            limited: config.limited,
            apart,
            counts: Counts::default(),
        })
    }

    /// Reservation for tables that describe its pages, as many as [`PageConfig::beside`] says.
    #[doc(hidden)]
    pub fn take_addresses(&mut self) -> Reservation {
        let none = Reservation::none(self.addresses.backend, &self.addresses.faults);
        core::mem::replace(&mut self.addresses, none)
    }

    // --- Observers -------------------------------------------------------------------------------------------

    /// Who observes the operations on its pages, and on what is cached by CPU on them.
    #[doc(hidden)]
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        self.tables.tracepoints()
    }
    #[inline]
    fn operation(&self, what: What) -> Operation<'_> {
        Operation::of(self.tracepoints(), what, PAGES)
    }

    // --- Allocation ------------------------------------------------------------------------------------------

    /// Allocates a block of `2^order` pages, from `node` or else from the nearest that has one; `None` is the node
    /// of the current CPU. The contents are unspecified unless `gfp` has [`Gfp::ZERO`].
    ///
    /// # Errors
    /// Which limit was met; nothing was changed then.
    pub fn alloc(&self, order: Order, gfp: Gfp, node: Option<u32>) -> Result<Pfn, AllocError> {
        self.alloc_in(&self.operation(What::Alloc), order, gfp, node)
    }

    /// The same, in the course of an operation on pages.
    ///
    /// # Errors
    /// As [`alloc`](PageAllocator::alloc).
    #[doc(hidden)]
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

    /// The zones that may serve, best first.
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
        // The node itself is the nearest one.
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
        let mut met = Limit::Zone;
        for at in zonelist {
            let cached = &self.cached_zones[usize::from(*at)];
            let zone = &cached.zone;
            let floor = zone.marks.floor(mark, gfp, zone.reserve[gfp.highest_zone() as usize]);
            match self.try_zone(op, cached, Wanted { order, mobility, floor }) {
                Ok(pfn) => {
                    self.hand_out(pfn, order, gfp, mobility);
                    return Ok(pfn);
                }
                // The refusal of a request, not of one of its tries.
                Err(Limit::Injected) => return Err(Limit::Injected),
                Err(limit) => met = met.max(limit),
            }
        }
        Err(met)
    }

    #[inline]
    fn try_zone(&self, op: &Operation, cached: &CachedZone, wanted: Wanted) -> Result<Pfn, Limit> {
        let layer = cached.per_cpu.as_ref().and_then(|per_cpu| per_cpu.layer(wanted.order, wanted.mobility));
        let Some(layer) = layer else { return cached.zone.alloc(op, &self.shared, wanted) };
        let shelf = ZoneSupplier::filling(&cached.zone, &self.shared, wanted);
        match layer.alloc_in(op, &shelf) {
            Some(round) => Ok(round.0),
            None => Err(shelf.limit().unwrap_or(Limit::Exhausted)),
        }
    }

    fn mobility(&self, gfp: Gfp) -> MigrateType {
        if self.shared.mobility { gfp.migrate_type() } else { MigrateType::Unmovable }
    }

    /// Makes a block that nobody else knows the caller's.
    fn hand_out(&self, pfn: Pfn, order: Order, gfp: Gfp, mobility: MigrateType) {
        let compound = order > Order::ZERO && gfp.contains(Gfp::COMP);
        let frame = self.shared.frames.frame(pfn);
        let zero = frame.state().is_zero();
        frame.set_state(State::new(Kind::Allocated, order, mobility).compound(compound).zero(zero));
        let heads = if compound { order.pages() } else { 1 };
        for page in 0..heads {
            self.shared.frames.frame(pfn.up(page)).set_head(pfn);
        }
        self.watch(pfn, order, Frame::page_take);
        if gfp.contains(Gfp::ZERO) && !zero {
            // SAFETY: the block is committed and the caller's alone, who does not have it yet.
            unsafe { self.address(pfn).write_bytes(0, order.bytes()) };
        }
    }

    /// Allocates up to `max` single pages, many in one lock hold, and gives each to `put`, which may do what it
    /// likes: no lock is held. Returns how many: fewer where memory ends, 0 for a node that does not exist.
    pub fn alloc_bulk(&self, gfp: Gfp, node: Option<u32>, max: usize, mut put: impl FnMut(Pfn)) -> usize {
        let Ok(zonelist) = self.zonelist(gfp, node) else { return 0 };
        let (mobility, op) = (self.mobility(gfp), &self.operation(What::Alloc));
        let mut done = 0;
        for at in zonelist {
            let zone = &self.cached_zones[usize::from(*at)].zone;
            let floor = zone.marks.floor(Mark::Low, gfp, zone.reserve[gfp.highest_zone() as usize]);
            loop {
                let mut batch = Batch { pages: self, pfns: [Pfn::new(0); BULK], given: 0, len: 0 };
                let wanted = BULK.min(max - done);
                let one = Wanted { order: Order::ZERO, mobility, floor };
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
        // What is left in magazines, and between the marks.
        while done < max {
            let Ok(pfn) = self.find(&self.operation(What::Alloc), Order::ZERO, gfp, node) else { break };
            done += 1;
            put(pfn);
        }
        done
    }

    /// [`alloc`](PageAllocator::alloc) as an owned block that frees itself.
    ///
    /// # Errors
    /// As [`alloc`](PageAllocator::alloc).
    pub fn alloc_block(
        &self,
        order: Order,
        gfp: Gfp,
        node: Option<u32>,
    ) -> Result<PageBlock<'_>, AllocError> {
        Ok(PageBlock::new(self, self.alloc(order, gfp, node)?, order))
    }

    // --- Free ------------------------------------------------------------------------------------------------

    /// Frees the block of `order` that starts at `pfn`.
    ///
    /// A double free, a wrong order and a page that no block starts at are found from the frame, go to the handler
    /// of the configuration, and change nothing.
    ///
    /// # Safety
    /// The block was allocated by this allocator with this order (or split to it), and nobody uses it any more.
    pub unsafe fn free(&self, pfn: Pfn, order: Order) {
        // SAFETY: passed on.
        unsafe { self.free_in(&self.operation(What::Free), pfn, order) };
    }

    /// The same, in the course of an operation on pages.
    ///
    /// # Safety
    /// As [`free`](PageAllocator::free).
    #[doc(hidden)]
    pub unsafe fn free_in(&self, op: &Operation, pfn: Pfn, order: Order) {
        if let Err(corruption) = self.take_back(pfn, order) {
            self.counts.corruptions.add(1);
            assert_unlocked();
            _ = contain_panic(|| (self.corruption)(&corruption));
            return;
        }
        let cached = self.zone_at(pfn);
        let zone = &cached.zone;
        let mobility = zone.type_of(&self.shared, pfn);
        let per_cpu = cached.per_cpu.as_ref().filter(|_| !op.is_cold());
        match per_cpu.and_then(|per_cpu| per_cpu.layer(order, mobility)) {
            Some(layer) => {
                layer.free_in(op, &ZoneSupplier::returning(zone, &self.shared, order), PageRound(pfn));
                planted!("page marked after it went into the magazine" => {
                    self.shared.frames.frame(pfn).set_state(State::new(Kind::PerCpu, order, mobility));
                });
            }
            None => zone.free(op, &self.shared, order, core::iter::once(pfn)),
        }
        planted!("owner cleared after the free" => {
            // SAFETY: there is none: the block is no longer ours.
            unsafe { self.shared.frames.frame(pfn).set_owner(core::ptr::null_mut()) };
        });
    }

    /// Claims an allocated block for the free: of two frees of one block, one gets it.
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
        // SAFETY: the block was the caller's and is claimed.
        unsafe { frame.set_owner(core::ptr::null_mut()) };
        self.watch(pfn, order, Frame::page_give);
        Ok(())
    }

    /// Tells the models that the pages of a block change hands; nothing in other builds.
    #[inline(always)]
    fn watch(&self, pfn: Pfn, order: Order, change: fn(&Frame)) {
        if MODEL {
            (0..order.pages()).for_each(|page| change(self.frame(pfn.up(page))));
        }
    }

    /// Makes one allocated block of order `from` into blocks of order `to`, each of which is then freed by itself.
    /// Cost: one store for each new block, under the zone's lock.
    ///
    /// # Safety
    /// The block at `pfn` was allocated by this allocator with order `from`, is the caller's, and `to <= from`.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) {
        debug_assert!(to <= from);
        let state = State::new(Kind::Allocated, to, self.frame(pfn).state().migrate_type());
        // A fork holds the lock, so the child's audit finds one block or all of them. In any order: a block that is freed looks
        // at its buddy, which is none of these.
        let _zone = self.zone_at(pfn).zone.lock();
        for page in (0..from.pages()).step_by(to.pages() as usize) {
            let frame = self.frame(pfn.up(page));
            // SAFETY: by contract the block is the caller's.
            unsafe { frame.set_owner(core::ptr::null_mut()) };
            frame.set_head(pfn.up(page));
            frame.set_state(state);
        }
    }

    // --- Giving back -----------------------------------------------------------------------------------------

    /// Takes what lies on the stacks of these zones, with one fence a table.
    fn sweep<'a>(
        &self,
        cached_zones: impl Iterator<Item = &'a CachedZone> + Clone,
        cpus: Range<u32>,
        which: Which,
    ) {
        self.tables.sweep(cpus, which, |group| cached_zones.clone().any(|zone| zone.group == group));
    }
    fn flush_all<'a>(&self, op: &Operation, cached_zones: impl Iterator<Item = &'a CachedZone> + Clone) {
        self.sweep(cached_zones.clone(), 0..self.cpus().count(), Which::All);
        for (zone, per_cpu) in cached_zones.filter_map(CachedZone::cached) {
            per_cpu.flush_swept(op, zone, &self.shared);
        }
    }

    /// Gives the pages in the magazines of `cpus` back to their zones. The CPUs may go on meanwhile.
    pub fn drain_cpus(&self, cpus: Range<u32>) {
        let op = &self.operation(What::Reclaim);
        self.sweep(self.cached_zones.iter(), cpus, Which::All);
        for (zone, per_cpu) in self.cached_zones.iter().filter_map(CachedZone::cached) {
            per_cpu.drain_swept(op, zone, &self.shared);
        }
    }

    /// Gives per-CPU pages that have not been of use since the last call back to their zones, and returns how many; and the
    /// memory of stacks that serve nothing to the system. For a timer.
    pub fn reap(&self) -> u64 {
        self.sweep(self.cached_zones.iter(), 0..self.cpus().count(), Which::Idle);
        let cached = self.cached_zones.iter().filter_map(CachedZone::cached);
        let pages = cached.map(|(zone, per_cpu)| per_cpu.reap_swept(zone, &self.shared)).sum();
        self.tables.decommit_idle();
        pages
    }

    /// Ends an interval: [`reap`](Self::reap), and then as much memory goes back to the OS as nobody needed since the last
    /// call, in zones or on CPUs. Returns the bytes. For a timer.
    ///
    /// `reap_users` runs first: pages that it frees are taken for pages that nobody needed.
    ///
    /// Cost: as [`decommit`](Self::decommit), for the memory that goes.
    #[doc(hidden)]
    pub fn decommit_idle(&self, reap_users: impl FnOnce()) -> usize {
        self.cached_zones.iter().for_each(|cached| cached.zone.begin_reap());
        reap_users();
        self.sweep(self.cached_zones.iter(), 0..self.cpus().count(), Which::Idle);
        let release = |cached: &CachedZone| {
            let zone = &cached.zone;
            cached.per_cpu.iter().for_each(|per_cpu| _ = per_cpu.reap_swept(zone, &self.shared));
            zone.decommit_idle(&self.shared)
        };
        let bytes = self.cached_zones.iter().map(release).sum();
        self.tables.decommit_idle();
        bytes
    }

    /// Gives all per-CPU pages back to their zones, and the memory of all free pages back to the OS. Returns the bytes
    /// that went to the OS, with those that it did not take: locked memory stays.
    ///
    /// Cost: up to three system calls for each maximal block, two for each run of free pages beside pages in use; each
    /// under its zone's lock, which is let go in between.
    pub fn decommit(&self) -> usize {
        self.flush_all(&self.operation(What::Reclaim), self.cached_zones.iter());
        self.tables.decommit_idle();
        self.decommit_free()
    }

    /// Gives the memory of all free pages back to the OS; what CPUs keep stays with them. Returns the bytes.
    ///
    /// Cost: as [`decommit`](Self::decommit).
    #[doc(hidden)]
    pub fn decommit_free(&self) -> usize {
        self.cached_zones.iter().map(|cached| cached.zone.decommit_free(&self.shared)).sum()
    }

    /// As many pages less can be allocated from now on, because as much memory is in use elsewhere; `false`, with nothing changed, if not
    /// so many are free above the lowest watermark. Then CPUs' pages may be what is missing: see [`decommit`](Self::decommit).
    /// Does nothing where nothing [is limited](PageConfig::limited).
    ///
    /// Cost: all zones' locks, together, and each once more; and what free memory goes back to the OS then.
    pub fn charge(&self, pages: usize) -> bool {
        let Ok(wanted) = u32::try_from(pages) else { return !self.limited };
        if !self.limited {
            return true;
        }
        // What is held back goes back to the system: a call for each block, with no lock held but its own.
        let trim = |CachedZone { zone, .. }: &CachedZone| zone.decommit_charged(&self.shared, zone.lock());
        let left = self.charge_zones(&self.cached_zones, wanted, 0);
        left.map(|_| self.cached_zones.iter().for_each(trim)).is_some()
    }
    /// Of `wanted` pages, what `zones` and those before them leave to charge to the latter: 0 if all is charged. `None`, with nothing
    /// charged, if there is no room for all; `room` is what those before have, whose locks are held. The last zone is charged first: the
    /// others serve what has to lie low.
    ///
    /// All locks are held until it is known. Only a fork holds several as well, and takes them in this order.
    fn charge_zones(&self, zones: &[CachedZone], wanted: u32, room: u32) -> Option<u32> {
        let Some((CachedZone { zone, .. }, others)) = zones.split_first() else {
            return (wanted <= room).then_some(wanted);
        };
        zone.charge(|own| self.charge_zones(others, wanted, room + own))
    }
    /// Takes a charge back. It may be of several, or a part of one.
    pub fn uncharge(&self, pages: usize) {
        if self.limited {
            self.cached_zones.iter().fold(pages as u32, |left, cached| left - cached.zone.uncharge(left));
        }
    }

    /// Bytes of all pages, where they [are limited](PageConfig::limited).
    pub fn limit(&self) -> Option<usize> {
        let pages = self.cached_zones.iter().map(|cached| cached.zone.managed as usize);
        self.limited.then(|| pages.sum::<usize>() * PAGE_SIZE)
    }

    /// Each zone keeps at most `bytes` bytes free from now on, and never more than [`PageConfig::keep_free`].
    #[doc(hidden)]
    pub fn keep_at_most(&self, bytes: u64) {
        let pages = u32::try_from(bytes / PAGE_SIZE as u64).unwrap_or(u32::MAX);
        self.shared.keep.set(pages.min(self.shared.most_kept));
    }

    /// Bytes of addresses that it holds for its pages, committed or not.
    #[doc(hidden)]
    pub fn reserved_bytes(&self) -> usize {
        self.shared.region.bytes()
    }

    /// Pages that there may be, of which some have [no addresses yet](Self::gave_up_addresses).
    #[doc(hidden)]
    pub fn most_pages(&self) -> usize {
        self.shared.most.get() as usize
    }
    /// For tables that describe the pages: how far [apart](Region::apart) they are to lie, where addresses are limited.
    #[doc(hidden)]
    pub fn apart(&self) -> Option<usize> {
        self.apart
    }
    /// Has addresses for the first `bytes` bytes of a table that describes the pages.
    #[doc(hidden)]
    pub fn grow_table(&self, table: &Reserved, bytes: usize) -> bool {
        let Some(first) = self.cached_zones.first().filter(|_| bytes > table.reserved()) else { return true };
        let _inner = first.zone.lock();
        let before = table.reserved();
        let grown = table.grow(bytes);
        self.shared.limit.tables.add((table.reserved() - before) as u64);
        grown
    }

    /// Gives the addresses of such a table back from `bytes` bytes on: see [`Reserved::cut`].
    ///
    /// # Safety
    /// As there, except that other threads may [grow](Self::grow_table) and cut it concurrently.
    #[doc(hidden)]
    pub unsafe fn cut_table(&self, table: &Reserved, bytes: usize) {
        let _inner = self.cached_zones.first().map(|first| first.zone.lock());
        let before = table.reserved();
        // SAFETY: passed on; all who grow or cut it have the lock.
        unsafe { table.cut(bytes) };
        let tables = &self.shared.limit.tables;
        tables.set(tables.get().saturating_sub((before - table.reserved()) as u64));
    }

    /// Gives all addresses of pages back that were never committed. They are mapped again when one is committed, if a limit and others
    /// leave them, up to the pages that `limit` bytes hold. Does nothing with several zones.
    ///
    /// Watermarks do not reserve pages without addresses: any request gets the last page that has some.
    ///
    /// Cost: one system call under the zone's lock.
    #[doc(hidden)]
    pub fn give_up_addresses(&self, limit: usize) {
        let ZoneShared { region, frames, max_order, most, .. } = &self.shared;
        if let [CachedZone { zone, .. }] = &*self.cached_zones
            // Else what is smaller than the largest block is the end, and may be committed first.
            && zone.managed.is_multiple_of(max_order.pages())
        {
            let inner = zone.lock();
            let keep = Self::used_addresses(max_order, inner.untouched());
            if keep >= region.bytes() {
                return;
            }
            // First: what somebody else maps there is no page of this any more.
            let had = frames.set_len((keep / PAGE_SIZE) as u32);
            // SAFETY: nothing there was ever committed, nor is any of it while the zone is locked.
            if unsafe { region.cut(keep) } {
                let limit = u32::try_from(limit.max(keep) / max_order.bytes()).unwrap_or(u32::MAX);
                most.set(most.get().min(limit.saturating_mul(max_order.pages())));
            } else {
                frames.set_len(had);
            }
        }
    }
    fn used_addresses(max_order: &Order, untouched: u32) -> usize {
        (untouched as usize).max(1) * max_order.bytes()
    }
    /// Whether some would be given up.
    #[doc(hidden)]
    pub fn has_unused_addresses(&self) -> bool {
        let ZoneShared { region, max_order, .. } = &self.shared;
        let used = |cached: &CachedZone| Self::used_addresses(max_order, cached.zone.lock().untouched());
        self.cached_zones.iter().map(used).sum::<usize>() < region.bytes()
    }
    /// Notes what others have of the addresses that are limited, of all that the process has: see [`give_up_addresses`](Self::give_up_addresses).
    #[doc(hidden)]
    pub fn see_address_limit(&self, has: usize) {
        self.shared.see_limit(has);
    }

    /// True if pages lack addresses, which are mapped as the pages are committed.
    #[doc(hidden)]
    pub fn gave_up_addresses(&self) -> bool {
        let pages = self.cached_zones.iter().map(|cached| cached.zone.managed as usize);
        self.shared.region.bytes() < pages.sum::<usize>() * PAGE_SIZE
    }

    /// Gives the frames back of pages whose addresses were [given up](Self::give_up_addresses). Returns how many pages are
    /// left.
    ///
    /// # Safety
    /// Nobody looks at such a page meanwhile.
    #[doc(hidden)]
    pub unsafe fn give_up_frames(&self) -> usize {
        // Nobody commits frames meanwhile: that is done under this lock, too.
        let _inner = self.cached_zones.first().map(|cached| cached.zone.lock());
        // SAFETY: their pages have no addresses, and get some under this lock; else by contract.
        unsafe { self.shared.frames.cut() };
        self.shared.frames.len() as usize
    }

    /// Bytes of pages that are committed now. Allocates nothing.
    pub fn committed_bytes(&self) -> usize {
        let pages = |cached: &CachedZone| cached.zone.managed - cached.zone.lock().uncommitted();
        self.cached_zones.iter().map(|cached| pages(cached) as usize * PAGE_SIZE).sum()
    }

    /// Blocks that were decommitted so far.
    #[doc(hidden)]
    pub fn decommits(&self) -> u64 {
        self.cached_zones.iter().map(|cached| cached.zone.lock().events.decommits).sum()
    }
    /// Calls `each` with the pages of every maximal block that was decommitted and is not committed again, under its zone's lock.
    #[doc(hidden)]
    pub fn each_decommitted(&self, mut each: impl FnMut(Range<usize>)) {
        let pages = self.shared.max_order.pages() as usize;
        for CachedZone { zone, .. } in &self.cached_zones {
            let first = |block: &u32| zone.start.index() + *block as usize * pages;
            zone.lock().returned().iter().map(first).for_each(|first| each(first..first + pages));
        }
    }

    /// Pages that came back to the zones so far, and what was given back to the OS: as long as this stays, a reap finds
    /// nothing new.
    #[doc(hidden)]
    pub fn changes(&self) -> u64 {
        let changes = |cached: &CachedZone| {
            let events = cached.zone.lock().events;
            events.pages_freed + events.decommits + events.discards
        };
        self.cached_zones.iter().map(changes).sum()
    }

    /// Pages that came back to the zones so far.
    #[doc(hidden)]
    pub fn pages_freed(&self) -> u64 {
        self.cached_zones.iter().map(|cached| cached.zone.lock().events.pages_freed).sum()
    }

    // --- Looking up ------------------------------------------------------------------------------------------

    /// The frame of page `pfn`.
    ///
    /// # Panics
    /// If the allocator has no such page: a `Pfn` that it handed out, or made of an address, is always one.
    #[inline(always)]
    #[doc(hidden)]
    pub fn frame(&self, pfn: Pfn) -> &Frame {
        self.shared.frames.frame(pfn)
    }
    /// The frames of all pages, for [`FrameList`](crate::FrameList)s.
    #[inline(always)]
    #[doc(hidden)]
    pub fn frames(&self) -> &FrameTable {
        &self.shared.frames
    }
    /// The first byte of page `pfn`. Only what is allocated may be touched.
    ///
    /// # Panics
    /// If the allocator has no such page.
    #[inline(always)]
    pub fn address(&self, pfn: Pfn) -> NonNull<u8> {
        assert!(pfn.get() < self.shared.frames.len(), "page {pfn} is outside the allocator's range");
        // SAFETY: inside the region, which has as many pages as the table has frames.
        unsafe { behind(self.shared.region.base(), pfn.index() << PAGE_SHIFT) }
    }
    /// Whether a block may be read and written from now on: see [`Region::protect`](crate::Region::protect).
    ///
    /// # Safety
    /// It is the caller's, `order` is its own, and nobody uses its bytes while they are inaccessible. It is accessible when it is
    /// freed.
    #[doc(hidden)]
    pub unsafe fn protect(&self, pfn: Pfn, order: Order, accessible: bool) -> bool {
        let start = pfn.index() << PAGE_SHIFT;
        // SAFETY: passed on.
        unsafe { self.shared.region.protect(start..start + order.bytes(), accessible) }
    }
    /// Gives the memory of a block's last page back and lets nobody touch it, or makes it accessible again, as zeros.
    ///
    /// # Safety
    /// As [`protect`](Self::protect), of this page.
    #[doc(hidden)]
    pub unsafe fn guard(&self, pfn: Pfn, order: Order, on: bool) -> bool {
        let end = (pfn.index() << PAGE_SHIFT) + order.bytes();
        let (region, page) = (&self.shared.region, end - PAGE_SIZE..end);
        // SAFETY: passed on.
        unsafe {
            if on && region.backend() == Backend::Os {
                // The kernel joins two parts of a mapping again only if they had pages when they were one. Each guard would cut off a
                // mapping for ever.
                let first = self.address(pfn);
                first.write_volatile(first.read_volatile());
                region.discard(page.clone());
            }
            region.protect(page, !on)
        }
    }
    /// True if single pages go to the system: not with [`HugePages::Advise`] and without a limit.
    #[doc(hidden)]
    pub fn discards_pages(&self) -> bool {
        self.shared.discard_from == Order::ZERO
    }
    /// Returns the memory of pages of an allocated block to the system. They stay the caller's, and read as zeros.
    ///
    /// # Safety
    /// The pages belong to a block in use, and no thread reads or writes them during the call.
    #[doc(hidden)]
    pub unsafe fn discard(&self, first: Pfn, pages: u32) {
        let start = first.index() << PAGE_SHIFT;
        // SAFETY: by contract the contents are given up.
        unsafe { self.shared.region.discard(start..start + pages as usize * PAGE_SIZE) };
    }
    /// The page that `address` lies in; `None` outside the allocator's range.
    #[inline(always)]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().wrapping_sub(self.shared.region.base().addr().get());
        let page = offset >> PAGE_SHIFT;
        (page < self.shared.frames.len() as usize).then(|| Pfn::new(page as u32))
    }
    /// Bytes from the beginning of page `pfn` to an `address` of the allocator's range that is not 4 GiB or more behind it, as
    /// none is in a block.
    #[inline(always)]
    #[doc(hidden)]
    pub fn offset_from(&self, pfn: Pfn, address: *const u8) -> u32 {
        let offset = address.addr().wrapping_sub(self.shared.region.base().addr().get());
        (offset as u32).wrapping_sub(pfn.get() << PAGE_SHIFT)
    }
    /// The allocated block that page `pfn` is in, by its first page: any page of a compound block, the first page of
    /// every other. `None` for all other pages. Exact as long as the block is not freed meanwhile.
    pub fn block_of(&self, pfn: Pfn) -> Option<(Pfn, Order)> {
        let head = self.shared.frames.get(pfn)?.head();
        let state = self.shared.frames.get(head)?.state();
        let found = state.kind() == Kind::Allocated
            && (pfn == head || state.is_compound())
            && (head.get()..head.get() + state.order().pages()).contains(&pfn.get());
        found.then_some((head, state.order()))
    }
    /// The node of page `pfn`.
    ///
    /// # Panics
    /// If the allocator has no such page.
    #[inline]
    pub fn node_of(&self, pfn: Pfn) -> u32 {
        self.zone_at(pfn).zone.node
    }
    /// The zone of page `pfn`.
    ///
    /// # Panics
    /// If the allocator has no such page.
    #[doc(hidden)]
    pub fn zone_of(&self, pfn: Pfn) -> ZoneKind {
        self.zone_at(pfn).zone.kind
    }
    /// Where the stacks of CPUs lie.
    #[doc(hidden)]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// The CPUs that per-CPU pages are kept for.
    pub fn cpus(&self) -> Cpus {
        self.cpus
    }
    /// Nodes, those without zones included.
    pub fn nodes(&self) -> u32 {
        self.zonelists.len() as u32
    }
    /// The largest order.
    #[doc(hidden)]
    pub fn max_order(&self) -> Order {
        self.shared.max_order
    }

    #[inline(always)]
    fn zone_at(&self, pfn: Pfn) -> &CachedZone {
        &self.cached_zones[usize::from(self.zone_of[pfn.index() >> self.shared.max_order.get()])]
    }
}

/// Pages on their way to a bulk caller; what the caller did not get, because it panicked, is freed.
struct Batch<'a> {
    pages: &'a PageAllocator,
    pfns: [Pfn; BULK],
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
            // SAFETY: a single page that was just allocated and that nobody has seen.
            unsafe { self.pages.free(pfn, Order::ZERO) };
        }
    }
}
