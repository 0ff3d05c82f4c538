//! Reports on zones: free blocks as in `/proc/buddyinfo` and `/proc/pagetypeinfo`, fragmentation indices, and counters.
//!
//! Reserved but uncommitted memory counts as free blocks of the sizes that a commit would create. The reports also give
//! the size of uncommitted memory separately.

use crate::allocator::{CachedZone, PageAllocator};
use crate::gfp::{MigrateType, ZoneKind};
use crate::pfn::Order;
use crate::watermark::Watermarks;
use crate::zone::ZoneEvents;
use crate::{MAX_ORDER, PAGE_SIZE};
use core::fmt;
use uslab_magazine::Paths;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// A report on all zones of a page allocator. The `Display` output of the report has the format of `/proc/buddyinfo`.
///
/// The numbers of one zone are consistent, because they are read under the zone's lock. The report reads the zones and
/// the per-CPU pages at different times, so the numbers may disagree while other threads allocate or free.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BuddyInfo {
    /// The report on each zone, sorted by node and then from the lowest to the highest zone.
    pub zones: Vec<ZoneInfo>,
    /// Size of a pageblock, as an order: `2^order` pages.
    pub pageblock_order: Order,
    /// True if pages are grouped by migrate type. An allocator with less memory than three pageblocks does not group
    /// pages.
    pub mobility: bool,
    /// Number of bytes of address space reserved for pages.
    pub reserved_bytes: usize,
    /// Number of allocations that found every zone below its low watermark.
    pub below_low: u64,
    /// Number of allocations that flushed the per-CPU pages.
    pub drains: u64,
    /// Number of failed allocations.
    pub failures: u64,
    /// Number of invalid frees that the allocator refused.
    pub corruptions: u64,
}

/// A report on one zone. All sizes are in pages, unless a field says otherwise.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ZoneInfo {
    /// Index of the memory node, counted from 0.
    pub node: u32,
    /// The kind of the zone, such as Normal or DMA32.
    pub zone: ZoneKind,
    /// Number of pages in the zone.
    pub managed: u32,
    /// Number of free pages, committed or not. Pages in per-CPU magazines do not count as free.
    pub free: u32,
    /// Number of charged free pages: see [`PageAllocator::charge`].
    pub charged: u32,
    /// Number of free pages that are not committed.
    pub uncommitted: u32,
    /// Number of free committed pages whose memory the OS took back; the next access gets zeroed memory.
    pub discarded: u32,
    /// Number of pages in per-CPU magazines.
    pub per_cpu: u64,
    /// Number of pages that are in allocated blocks.
    pub allocated: u64,
    /// The zone's watermarks.
    pub watermarks: Watermarks,
    /// Number of pages that the zone keeps free in addition to the watermark, indexed by the highest zone that the
    /// request allows.
    pub lowmem_reserve: [u32; ZoneKind::COUNT],
    /// Number of free blocks, by order and migrate type.
    pub blocks: [[u32; MigrateType::COUNT]; ORDERS],
    /// Number of pageblocks, indexed by migrate type.
    pub pageblocks: [u32; MigrateType::COUNT],
    /// Number of used pages, plus free pages that are not merged into the largest possible block.
    pub pages_not_in_maximal_blocks: u32,
    /// The zone's event counters, such as splits and merges.
    pub events: ZoneEvents,
    /// Counts of the per-CPU magazines' events.
    pub per_cpu_events: PerCpuEvents,
}

/// Event counts of a zone's per-CPU magazines. A block of any order counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PerCpuEvents {
    /// Number of blocks that were allocated.
    pub allocs: u64,
    /// Number of blocks that were freed.
    pub frees: u64,
    /// Numbers of allocations and frees, by the level that served them. The level `slab` is always 0 for pages.
    pub paths: Paths,
    /// Number of magazines that were filled from the zone.
    pub fills: u64,
    /// Number of magazines that were flushed to the zone.
    pub flushes: u64,
}

impl ZoneInfo {
    fn new(pages: &PageAllocator, cached: &CachedZone) -> Self {
        let zone = &cached.zone;
        let mut info = {
            let inner = zone.lock();
            let mut pageblocks = [0; MigrateType::COUNT];
            zone.pageblock_types().for_each(|mobility| pageblocks[mobility as usize] += 1);
            Self {
                node: zone.node,
                zone: zone.kind,
                managed: zone.managed,
                free: inner.free() + inner.charged_pages(),
                charged: inner.charged_pages(),
                uncommitted: inner.uncommitted_pages(),
                discarded: inner.discarded(),
                per_cpu: 0,
                allocated: 0,
                watermarks: zone.marks,
                lowmem_reserve: zone.reserve,
                blocks: zone.free_blocks(&pages.shared, &inner),
                pageblocks,
                pages_not_in_maximal_blocks: zone.pages_not_in_maximal_blocks(&pages.shared, &inner),
                events: inner.events,
                per_cpu_events: PerCpuEvents::default(),
            }
        };
        if let Some(per_cpu) = &cached.per_cpu {
            info.per_cpu = per_cpu.pages();
            for (_, layer) in per_cpu.layers() {
                let (stats, events) = (layer.stats(), &mut info.per_cpu_events);
                events.allocs += stats.allocs;
                events.frees += stats.frees;
                events.paths += stats.paths;
                events.fills += stats.fills;
                events.flushes += stats.flushes;
            }
        }
        info.allocated = u64::from(info.managed - info.free).saturating_sub(info.per_cpu);
        info
    }

    /// Returns the number of free blocks of `order`, of all migrate types together.
    pub fn free_blocks(&self, order: Order) -> u64 {
        self.blocks[order.index()].iter().map(|n| u64::from(*n)).sum()
    }
    /// Returns the number of blocks of `order` that could be split from the free blocks.
    fn suitable_blocks(&self, order: Order) -> u64 {
        let block_count = |from: Order| self.free_blocks(from) << (from.get() - order.get());
        order.through(Order::MAX).map(block_count).sum()
    }
    fn free_blocks_of_all_orders(&self) -> u64 {
        Order::ZERO.through(Order::MAX).map(|order| self.free_blocks(order)).sum()
    }
    fn free_pages(&self) -> u64 {
        Order::ZERO.through(Order::MAX).map(|order| self.free_blocks(order) << order.get()).sum()
    }

    /// Returns the kernel's `extfrag_index` in 1/1,000, which shows why an allocation of `order` would fail. The index
    /// is near 0 if too little memory is free, near 1,000 if free memory is too fragmented, and -1,000 if the
    /// allocation would succeed.
    pub fn extfrag_index(&self, order: Order) -> i64 {
        let blocks = self.free_blocks_of_all_orders();
        if blocks == 0 {
            return 0;
        }
        if self.suitable_blocks(order) > 0 {
            return -1000;
        }
        let wanted = self.free_pages() * 1000 / u64::from(order.pages());
        1000 - ((1000 + wanted) / blocks) as i64
    }
    /// Returns the kernel's `unusable_index`, in 1/1,000: the fraction of free memory that is in blocks smaller than
    /// `order`. The result is 1,000 if no memory is free.
    pub fn unusable_free_index(&self, order: Order) -> u64 {
        let free = self.free_pages();
        if free == 0 {
            return 1000;
        }
        (free - (self.suitable_blocks(order) << order.get())) * 1000 / free
    }
}

impl BuddyInfo {
    /// Number of pages in all zones.
    pub fn managed(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.managed)).sum()
    }
    /// Number of free pages in all zones, committed or not. Pages in per-CPU magazines do not count as free.
    pub fn free(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.free)).sum()
    }
    /// Number of pages in per-CPU magazines.
    pub fn per_cpu(&self) -> u64 {
        self.zones.iter().map(|zone| zone.per_cpu).sum()
    }
    /// Number of pages that are in allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.zones.iter().map(|zone| zone.allocated).sum()
    }
    /// Number of bytes of committed pages.
    pub fn committed_bytes(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.managed - zone.uncommitted)).sum::<u64>()
            * PAGE_SIZE as u64
    }
    /// Upper bound of the physical memory in use, in bytes: committed pages whose memory was not returned to the OS.
    /// The true number is lower if some committed pages were never accessed.
    pub fn backed_bytes(&self) -> u64 {
        let discarded = self.zones.iter().map(|zone| u64::from(zone.discarded)).sum::<u64>();
        self.committed_bytes() - discarded * PAGE_SIZE as u64
    }
    /// Number of used pages, plus free pages that are not merged into the largest possible block. The result is 0 after
    /// all pages were freed and the per-CPU magazines were flushed.
    pub fn pages_not_in_maximal_blocks(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.pages_not_in_maximal_blocks)).sum()
    }
    /// Returns a `Display` wrapper that prints the report like `/proc/pagetypeinfo`.
    pub fn pagetypeinfo(&self) -> PageTypeInfo<'_> {
        PageTypeInfo(self)
    }
}

impl fmt::Display for BuddyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in &self.zones {
            write!(f, "Node {}, zone {:>8} ", zone.node, zone.zone.name())?;
            for order in Order::ZERO.through(Order::MAX) {
                write!(f, "{:>6} ", zone.free_blocks(order))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Prints the report in the format of `/proc/pagetypeinfo`, with this allocator's migrate types.
#[derive(Clone, Copy, Debug)]
pub struct PageTypeInfo<'i>(&'i BuddyInfo);

impl fmt::Display for PageTypeInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.0;
        writeln!(f, "Page block order: {}", info.pageblock_order)?;
        writeln!(f, "Pages per block:  {}\n", info.pageblock_order.pages())?;
        write!(f, "{:<43} ", "Free pages count per migrate type at order")?;
        for order in Order::ZERO.through(Order::MAX) {
            write!(f, "{order:>6} ")?;
        }
        writeln!(f)?;
        for zone in &info.zones {
            for mobility in MigrateType::ALL {
                let (node, kind) = (zone.node, zone.zone.name());
                write!(f, "Node {node:>4}, zone {kind:>8}, type {:>12} ", mobility.name())?;
                for row in &zone.blocks {
                    write!(f, "{:>6} ", row[mobility as usize])?;
                }
                writeln!(f)?;
            }
        }
        write!(f, "\n{:<23}", "Number of blocks type ")?;
        for mobility in MigrateType::ALL {
            write!(f, "{:>12} ", mobility.name())?;
        }
        writeln!(f)?;
        for zone in &info.zones {
            write!(f, "Node {}, zone {:>8} ", zone.node, zone.zone.name())?;
            for count in zone.pageblocks {
                write!(f, "{count:>12} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl PageAllocator {
    /// Returns a report on all zones of the allocator. `info` allocates the report from the global allocator, and locks
    /// each zone once.
    pub fn info(&self) -> BuddyInfo {
        BuddyInfo {
            zones: self.cached_zones.iter().map(|cached| ZoneInfo::new(self, cached)).collect(),
            pageblock_order: self.shared.pageblock_order,
            mobility: self.shared.mobility,
            reserved_bytes: self.shared.region.bytes(),
            below_low: self.counts.below_low.get(),
            drains: self.counts.drains.get(),
            failures: self.counts.failures.get(),
            corruptions: self.counts.corruptions.get(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Gfp, PageConfig};
    use uslab_magazine::Cpus;

    fn zone(blocks: &[(u8, u32)]) -> ZoneInfo {
        let config = PageConfig::with_nodes(Cpus::os(), vec![vec![(ZoneKind::Normal, 1)]]);
        let mut zone = PageAllocator::new(config).unwrap().info().zones.remove(0);
        zone.blocks = Default::default();
        for (order, n) in blocks {
            zone.blocks[usize::from(*order)][1] = *n;
        }
        zone
    }
    fn order(n: u8) -> Order {
        Order::new(n).unwrap()
    }

    #[test]
    fn buddyinfo_output_matches_the_kernel_format() {
        // Zone DMA has 4 MiB and 12 KiB, zone Normal has 8 MiB, and one page is allocated.
        let nodes = vec![vec![(ZoneKind::Normal, 2048), (ZoneKind::Dma, 1027)]];
        let config = PageConfig { per_cpu_pages: false, ..PageConfig::with_nodes(Cpus::os(), nodes) };
        let pages = PageAllocator::new(config).unwrap();
        let block = pages.alloc_block(Order::ZERO, Gfp::MOVABLE, None).unwrap();
        let text = "\
Node 0, zone      DMA      1      1      0      0      0      0      0      0      0      0      1 
Node 0, zone   Normal      1      1      1      1      1      1      1      1      1      1      1 
";
        assert_eq!(pages.info().to_string(), text);
        let text = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2      3      4      5      6      7      8      9     10 
Node    0, zone      DMA, type    Unmovable      0      0      0      0      0      0      0      0      0      0      0 
Node    0, zone      DMA, type      Movable      1      1      0      0      0      0      0      0      0      0      1 
Node    0, zone      DMA, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0 
Node    0, zone   Normal, type    Unmovable      0      0      0      0      0      0      0      0      0      0      0 
Node    0, zone   Normal, type      Movable      1      1      1      1      1      1      1      1      1      1      1 
Node    0, zone   Normal, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0 

Number of blocks type     Unmovable      Movable  Reclaimable 
Node 0, zone      DMA            0            3            0 
Node 0, zone   Normal            0            4            0 
";
        assert_eq!(pages.info().pagetypeinfo().to_string(), text);
        assert_eq!(pages.info().pages_not_in_maximal_blocks(), 1024);
        block.free();
        assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
    }

    #[test]
    fn fragmentation_index_distinguishes_low_memory_from_fragmentation() {
        // 100 single free pages: fragmentation prevents order 3.
        let fragmented_zone = zone(&[(0, 100)]);
        assert_eq!(fragmented_zone.extfrag_index(order(0)), -1000);
        assert_eq!(fragmented_zone.extfrag_index(order(3)), 1000 - (1000 + 100 * 1000 / 8) / 100);
        assert_eq!(
            (fragmented_zone.unusable_free_index(order(0)), fragmented_zone.unusable_free_index(order(1))),
            (0, 1000)
        );
        // One free page: an allocation lacks memory.
        assert_eq!(zone(&[(0, 1)]).extfrag_index(order(3)), 1000 - (1000 + 1000 / 8));
        let mixed = zone(&[(0, 8), (3, 1)]);
        assert_eq!((mixed.extfrag_index(order(3)), mixed.unusable_free_index(order(3))), (-1000, 500));
        let none = zone(&[]);
        assert_eq!((none.extfrag_index(order(0)), none.unusable_free_index(order(0))), (0, 1000));
    }
}
