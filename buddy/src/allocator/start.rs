//! Creates a page allocator: reserves its addresses, and sets up zones, watermarks and zonelists.

use super::{CachedZone, Counts, PageAllocator};
use crate::PAGE_SIZE;
use crate::config::PageConfig;
use crate::error::PageError;
use crate::frame::{Frame, FrameTable};
use crate::gfp::{MigrateType, ZoneKind};
use crate::per_cpu::PerCpuPages;
use crate::pfn::{Order, Pfn};
use crate::region::{
    Backend, HugePages, Region, Reservation, Uncommitted, address_limit, reserve_with_halving,
};
use crate::tables::Tables;
use crate::watermark::{self, Watermarks};
use crate::zone::{AddressLimit, Zone, ZoneShared, zeroed};
use uslab_magazine::SweepGroup;
use uslab_magazine::sync::Fixed;

/// Minimum number of pages that `new` tries to reserve (1 MiB).
const MIN_PAGES: usize = 256;

/// A planned zone that does not exist yet.
#[derive(Clone, Copy)]
struct PlannedZone {
    node: u32,
    kind: ZoneKind,
    pages: u32,
}

impl PageAllocator {
    /// Creates a page allocator: reserves its address range and divides it into zones. If the reservation fails because
    /// of `RLIMIT_AS`, the allocator gets a single zone with as many pages as the limit allows. The single zone
    /// reserves the addresses of each maximal block only when the block is committed. If the OS refuses the reservation
    /// for another reason, `new` retries with halved zones, down to 1 MiB in total. [`info`](PageAllocator::info)
    /// reports the size that was finally reserved.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid, or if the OS refuses even the smallest reservation.
    pub fn new(config: PageConfig) -> Result<Self, PageError> {
        config.validate()?;
        let wish = config.pages() as usize;
        let least = MIN_PAGES.min(wish);
        // Rounds to whole maximal blocks, so that addresses can be given up later.
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
            // Regions are so far apart that a region can grow by the whole limit.
            let apart = limit.saturating_mul(2).checked_next_power_of_two();
            let growing = apart.and_then(|apart| Self::reserve(&config, pages as u64, Some(apart)));
            if let Some(growing) = growing {
                growing.shared.record_foreign_bytes(address_limit().map_or(has, |(_, has)| has));
                return Ok(growing);
            }
        }
        let granted = reserve_with_halving((wish / 2).max(least), least, reserve);
        granted.map(|(_, pages)| pages).map_err(|pages| PageError::Refused { bytes: pages * PAGE_SIZE })
    }

    /// Creates an allocator with `pages` pages in total. Returns `None` if the OS refuses a reservation. If `apart` is
    /// set, the allocator has a single zone, which reserves addresses as it grows.
    fn reserve(config: &PageConfig, pages: u64, apart: Option<usize>) -> Option<Self> {
        let planned = plan(config, pages);
        let step = config.max_order.pages();
        let range = planned.iter().map(|zone| zone.pages.next_multiple_of(step)).sum::<u32>();
        let (mut addresses, region, mapped) = match apart {
            None => reserve_range(config, range)?,
            Some(_) if config.backend != Backend::Os || planned.len() != 1 => return None,
            Some(apart) => reserve_max_block(config, apart)?,
        };
        // A kernel without huge pages refuses the advice, which is harmless.
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
                // A memory limit also counts the free pages of a huge page.
                HugePages::Advise if !config.limited => config.pageblock_order,
                _ => Order::ZERO,
            },
            faults: config.faults.clone(),
        };
        let tables = Tables::new(config.cpus, &mut addresses)?;
        // Index 0 is the first zone. Most allocators have one zone, so the zone index array needs no writes. SAFETY:
        // zero is a valid `u8`.
        let mut zone_of = unsafe { zeroed::<u8>((range / step) as usize) }?;
        let cached_zones = make_zones(config, &planned, &shared, &tables, &mut zone_of)?;
        Some(Self {
            zonelists: zonelists(config, &planned),
            shared,
            cached_zones,
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
}

/// Returns the planned zones in address order, scaled to `pages` pages in total.
fn plan(config: &PageConfig, pages: u64) -> Vec<PlannedZone> {
    let mut planned = Vec::new();
    for (node, zones) in (0..).zip(config.scaled_nodes(pages)) {
        let mut zones: Vec<_> = zones.iter().copied().filter(|(_, pages)| *pages > 0).collect();
        zones.sort();
        planned.extend(zones.into_iter().map(|(kind, pages)| PlannedZone { node, kind, pages }));
    }
    planned
}

/// Reserves addresses for `range` pages and for the page metadata tables. Returns the reservation for the tables, the
/// region of the pages, and the number of pages that have addresses.
fn reserve_range(config: &PageConfig, range: u32) -> Option<(Reservation, Region, u32)> {
    let (bytes, align) = (range as usize * PAGE_SIZE, config.max_order.bytes());
    let (faults, backend) = (&config.faults, config.backend);
    // One reservation serves all tables and pages, if a table of stacks fits into its share of the range. If the
    // reservation does not suffice for a table of stacks, the table takes its share of addresses later.
    let stacks = Tables::footprint(&config.cpus);
    let one = (bytes / Tables::SHARE >= stacks).then(|| {
        let (page, all) = config.beside;
        let tables = range as usize * (size_of::<Frame>() + page) + all;
        Reservation::with_pages(tables + stacks, bytes, align, backend, faults)
    });
    let (addresses, region) = match one.flatten() {
        Some(one) => one,
        None => (
            Reservation::none(backend, faults),
            Region::reserve(bytes, align, Uncommitted::NoAccess, backend, faults)?,
        ),
    };
    Some((addresses, region, range))
}
/// Reserves like [`reserve_range`], but only the addresses of one maximal block. The pages' region can grow later,
/// until it reaches the next region, `apart` bytes away.
fn reserve_max_block(config: &PageConfig, apart: usize) -> Option<(Reservation, Region, u32)> {
    let (order, faults) = (config.max_order, &config.faults);
    let region =
        Region::reserve_apart(order.bytes(), apart.max(order.bytes()), Uncommitted::NoAccess, faults)?;
    Some((Reservation::none(config.backend, faults), region, order.pages()))
}

/// Creates all planned zones. Writes to `zone_of` the index of the zone that contains each maximal block. Returns
/// `None` if memory for the zones cannot be allocated.
fn make_zones(
    config: &PageConfig,
    planned: &[PlannedZone],
    shared: &ZoneShared,
    tables: &Tables,
    zone_of: &mut [u8],
) -> Option<Box<[CachedZone]>> {
    let step = config.max_order.pages();
    let lowmem = || planned.iter().filter(|zone| zone.kind != ZoneKind::Movable);
    let lowmem_pages: u64 = lowmem().map(|zone| u64::from(zone.pages)).sum();
    let min_free = min_free_pages(config, lowmem().count() as u64, lowmem_pages);
    let (mut zones, mut start) = (Vec::new(), 0);
    for &PlannedZone { node, kind, pages } in planned {
        let mut managed = [0; ZoneKind::COUNT];
        let of_node = planned.iter().filter(|zone| zone.node == node);
        of_node.for_each(|zone| managed[zone.kind as usize] = zone.pages);
        let reserve = watermark::lowmem_reserve(managed)[kind as usize];
        let marks = Watermarks::new(kind, pages, lowmem_pages, min_free, config.watermark_scale);
        let per_cpu = match config.per_cpu_pages {
            true => Some(PerCpuPages::new(tables, pages, shared)?),
            false => None,
        };
        if !zones.is_empty() {
            zone_of[(start / step) as usize..][..pages.div_ceil(step) as usize].fill(zones.len() as u8);
        }
        let zone = Zone::new(shared, (node, kind), Pfn::new(start), pages, marks, reserve)?;
        let group = SweepGroup::new(zones.len() as u32);
        let cached = CachedZone { zone, per_cpu, group };
        cached.layers().for_each(|layer| layer.join_sweeps(group));
        zones.push(cached);
        start += pages.next_multiple_of(step);
    }
    Some(zones.into())
}

/// Returns the sum of the min watermarks of all zones, in pages.
fn min_free_pages(config: &PageConfig, lowmem_zones: u64, lowmem: u64) -> u64 {
    match config.min_free_kib {
        Some(kib) => u64::from(kib) * 1024 / PAGE_SIZE as u64,
        None if config.min_free_for_huge_pages => {
            let pageblock = config.pageblock_order.pages().into();
            let daemon = watermark::huge_page_free_pages(pageblock, lowmem_zones, lowmem);
            daemon.max(watermark::min_free_pages(lowmem))
        }
        None => watermark::min_free_pages(lowmem),
    }
}

/// Returns, for each node and each highest allowed zone, the indices of the zones to try. Each zonelist starts with the
/// nearest node, and lists the zones of a node from the highest to the lowest.
fn zonelists(config: &PageConfig, planned: &[PlannedZone]) -> Box<[[Box<[u8]>; ZoneKind::COUNT]]> {
    let zonelist = |node: u32, highest: ZoneKind| {
        let of_node = |near: u32| {
            let fits = move |at: &u8| {
                let zone = &planned[usize::from(*at)];
                zone.node == near && zone.kind <= highest
            };
            (0..planned.len() as u8).rev().filter(fits)
        };
        config.nodes_by_distance(node).into_iter().flat_map(of_node).collect()
    };
    let nodes = config.nodes.len() as u32;
    (0..nodes).map(|node| ZoneKind::ALL.map(|kind| zonelist(node, kind))).collect()
}
