//! The configuration of a page allocator, and its validation.

use crate::corruption;
use crate::error::PageError;
use crate::faults::Faults;
use crate::gfp::ZoneKind;
use crate::pfn::Order;
use crate::region::{Backend, HAS_OS_MAPPINGS, HugePages};
use crate::watermark::SCALE_FACTOR;
use crate::{MAX_ORDER, PAGE_SIZE, PAGEBLOCK_ORDER};
use uslab_magazine::{Cpus, MAX_NODES};

/// The configuration of a page allocator: CPUs, nodes and zones, and tuning options.
///
/// All nodes share one reserved address range. If a node has no zones, its CPUs allocate from other nodes.
#[derive(Clone, Debug)]
pub struct PageConfig {
    /// The CPUs that get magazines of pages, and the node of each CPU.
    pub cpus: Cpus,
    /// For each node, its zones and their sizes in pages, in any order. A zone of 0 pages is not created.
    pub nodes: Vec<Vec<(ZoneKind, u32)>>,
    /// The distance from each node to each other node, one row per node. The kernel uses 10 as the distance from a node
    /// to itself, and 20 to a neighbouring node. If `distances` is empty, all nodes are at the same distance from each
    /// other.
    pub distances: Vec<Vec<u32>>,
    /// The backend that supplies the allocator's memory.
    pub backend: Backend,
    /// The advice on huge pages that the OS gets for the allocator's pages.
    pub huge_pages: HugePages,
    /// True if each CPU caches low-order blocks in magazines.
    pub per_cpu_pages: bool,
    /// The distance between two watermarks of a zone, in 1/10,000 of the zone's size.
    pub watermark_scale: u32,
    /// Maximum number of bytes of free memory that a zone keeps backed by physical memory. A free never reduces the
    /// backed free memory below an eighth of the bytes in use, or below an adaptive lower bound. The lower bound is at
    /// least a sixteenth of the maximum. The lower bound doubles if the zone soon reuses memory that it returned, and
    /// halves if such memory stays unused. Frees return excess free memory to the OS, largest blocks first, until three
    /// quarters of the limit are left. If `keep_free` is `None`, frees return no memory to the OS.
    /// [`decommit_idle`](crate::PageAllocator::decommit_idle) and
    /// [`decommit_free`](crate::PageAllocator::decommit_free) return free memory regardless of `keep_free`.
    pub keep_free: Option<usize>,
    /// Total memory that the min watermarks of all zones keep free, in KiB. If `min_free_kib` is `None`, the kernel's
    /// formula determines the amount (`sqrt(16 * KiB)`, 128 KiB to 256 MiB).
    pub min_free_kib: Option<u32>,
    /// True if the memory kept free includes the reserve of the kernel's huge-page daemon: pageblocks for each migrate
    /// type, up to 5 % of the range. The default is `false`, because a userspace program does not need the daemon's
    /// reserve. If `min_free_kib` is set, `min_free_for_huge_pages` is ignored.
    pub min_free_for_huge_pages: bool,
    /// True if [charged](crate::PageAllocator::charge) memory reduces the number of pages that the zones may use. If
    /// `limited` is false, charges do nothing. The method [`limit`](Self::limit) sets this field.
    pub limited: bool,
    /// Order of the largest block. Memory is committed in blocks of this order. Models and tests set `max_order` below
    /// [`MAX_ORDER`].
    pub max_order: Order,
    /// Order of a pageblock, the unit in which pages are grouped by migrate type; at most `max_order`.
    pub pageblock_order: Order,
    /// The function that is called for each invalid free, while no lock is held.
    pub corruption: corruption::Handler,
    /// The faults to inject into this allocator.
    pub faults: Faults,
    /// Bytes of addresses to reserve for page metadata tables of other crates, per page and in total: see
    /// [`take_table_reservation`](crate::PageAllocator::take_table_reservation).
    #[doc(hidden)]
    pub beside: (usize, usize),
}

/// Number of pages of the default range: 64 GiB of address space, or 1 GiB if reserving addresses also takes memory.
const DEFAULT_PAGES: u32 = if HAS_OS_MAPPINGS { 16 << 20 } else { 1 << 18 };

/// Upper bound of all page numbers. A page number plus one still fits into 32 bits.
pub(crate) const MAX_PAGES: u64 = (u32::MAX - (1 << MAX_ORDER)) as u64;

impl PageConfig {
    /// Creates a configuration in which each node of `cpus` has one Normal zone. All zones together have 64 GiB of
    /// address space. Zones commit memory only when it is needed. The address space is smaller if `RLIMIT_AS` grants
    /// less (see [`PageAllocator::new`](crate::PageAllocator::new)), and 1 GiB on systems without `mmap` (see
    /// [`region`](crate::region)).
    pub fn default_for(cpus: Cpus) -> Self {
        let pages = DEFAULT_PAGES / cpus.nodes();
        Self::with_nodes(cpus, vec![vec![(ZoneKind::Normal, pages)]; cpus.nodes() as usize])
    }

    /// Creates a configuration in which node `n` has the zones `nodes[n]`. All other fields have their defaults.
    pub fn with_nodes(cpus: Cpus, nodes: Vec<Vec<(ZoneKind, u32)>>) -> Self {
        Self {
            cpus,
            nodes,
            distances: Vec::new(),
            backend: Backend::default(),
            huge_pages: HugePages::default(),
            per_cpu_pages: true,
            watermark_scale: SCALE_FACTOR,
            keep_free: None,
            min_free_kib: None,
            min_free_for_huge_pages: false,
            limited: false,
            max_order: Order::MAX,
            pageblock_order: Order::new(PAGEBLOCK_ORDER).unwrap_or(Order::MAX),
            corruption: corruption::abort,
            faults: Faults::default(),
            beside: (0, 0),
        }
    }

    /// Limits the memory of all zones to `bytes` bytes, rounded down to pages. Each zone gets a share in proportion to
    /// its size. [Charged](crate::PageAllocator::charge) memory counts towards the limit.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limited = true;
        let all = self.pages();
        let most = (bytes / PAGE_SIZE) as u64;
        if most < all {
            self.nodes = self.scaled_nodes(most);
        }
        self
    }

    pub(crate) fn pages(&self) -> u64 {
        self.nodes.iter().flatten().map(|(_, pages)| u64::from(*pages)).sum()
    }

    /// Returns the zones of each node, scaled so that all zones together have `pages` pages. If the division leaves
    /// pages over, the first zones get them.
    pub(crate) fn scaled_nodes(&self, pages: u64) -> Vec<Vec<(ZoneKind, u32)>> {
        let all = u128::from(self.pages().max(1));
        let mut done = (0_u128, 0_u64);
        let mut share = |own: u32| {
            done.0 += u128::from(own);
            let page_end = (done.0 * u128::from(pages)).div_ceil(all) as u64;
            let share = page_end - done.1;
            done.1 = page_end;
            share as u32
        };
        self.nodes
            .iter()
            .map(|zones| zones.iter().map(|(kind, own)| (*kind, share(*own))).collect())
            .collect()
    }

    /// Returns an error that describes the first invalid setting of the configuration.
    pub(crate) fn validate(&self) -> Result<(), PageError> {
        let nodes = self.nodes.len();
        if nodes > MAX_NODES as usize {
            return Err(PageError::TooManyNodes { nodes, most: MAX_NODES });
        }
        if nodes < self.cpus.nodes() as usize {
            return Err(PageError::NodesOfCpus { cpus: self.cpus.nodes(), nodes: nodes as u32 });
        }
        for (node, zones) in (0..).zip(&self.nodes) {
            for (at, (kind, _)) in zones.iter().enumerate() {
                if zones[..at].iter().any(|(other, _)| other == kind) {
                    return Err(PageError::DuplicateZone { node, kind: *kind });
                }
            }
        }
        if self.pageblock_order > self.max_order {
            return Err(PageError::PageblockOrder { pageblock: self.pageblock_order, max: self.max_order });
        }
        if !self.distances.is_empty()
            && (self.distances.len() != nodes || self.distances.iter().any(|row| row.len() != nodes))
        {
            return Err(PageError::Distances { nodes: nodes as u32 });
        }
        if self.pages() == 0 {
            return Err(PageError::NoPages);
        }
        let step = u64::from(self.max_order.pages());
        let pages = self.nodes.iter().flatten().map(|(_, own)| u64::from(*own).next_multiple_of(step)).sum();
        if pages > MAX_PAGES {
            return Err(PageError::TooManyPages { pages, most: MAX_PAGES });
        }
        Ok(())
    }

    /// Returns all nodes, ordered by distance from `node`. At equal distances, nodes with higher numbers than `node`
    /// come first, so that not all nodes fall back to node 0.
    pub(crate) fn nodes_by_distance(&self, node: u32) -> Vec<u32> {
        let distance = |other: u32| match self.distances.get(node as usize) {
            _ if other == node => 0,
            Some(row) => row[other as usize].saturating_add(1),
            None => 1,
        };
        let mut nodes: Vec<u32> = (0..self.nodes.len() as u32).collect();
        nodes.sort_by_key(|other| (distance(*other), *other < node, *other));
        nodes
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn config(nodes: Vec<Vec<(ZoneKind, u32)>>) -> PageConfig {
        PageConfig::with_nodes(Cpus::simulated(2, 2).unwrap(), nodes)
    }
    const N: ZoneKind = ZoneKind::Normal;

    #[test]
    fn invalid_page_configuration_is_refused_with_the_reason() {
        let said = |config: &PageConfig| config.validate().unwrap_err().to_string();
        let zones = |pages| vec![vec![(N, pages)], vec![]];
        assert_eq!(said(&config(zones(0))), "no pages: at least one page of 4096 bytes is needed");
        assert_eq!(said(&config(vec![vec![(N, 9)]])), "the CPUs are on 2 nodes, but zones are given for 1");
        assert_eq!(said(&config(vec![vec![(N, 9), (N, 9)], vec![]])), "node 0 has two zones Normal");
        assert_eq!(said(&config(vec![vec![]; 17])), "17 nodes: at most 16 are supported");
        assert_eq!(
            said(&config(vec![vec![(N, u32::MAX)]; 2])),
            "8589934592 pages: at most 4294966271 are supported"
        );
        let mut bad = config(zones(9));
        bad.max_order = Order::ZERO;
        assert_eq!(said(&bad), "a pageblock of order 9 is larger than the largest block, order 0");
        let mut bad = config(zones(9));
        bad.distances = vec![vec![10, 20]];
        assert_eq!(said(&bad), "the table of node distances is not 2 by 2");
        assert_eq!(config(zones(1)).validate(), Ok(()));
    }

    #[test]
    fn memory_limit_is_divided_among_zones_by_their_size() {
        let full = config(vec![vec![(ZoneKind::Dma, 10), (N, 100)], vec![(N, 50)]]);
        for pages in 0..=160 {
            let limited = full.clone().limit(pages * PAGE_SIZE + 4095);
            assert_eq!(limited.pages(), pages as u64);
        }
        let limited = full.clone().limit(80 * PAGE_SIZE);
        assert_eq!(limited.nodes, [vec![(ZoneKind::Dma, 5), (N, 50)], vec![(N, 25)]]);
        assert_eq!(full.clone().limit(usize::MAX).nodes, full.nodes);
    }

    #[test]
    fn page_allocation_tries_the_nearest_nodes_first() {
        let mut config = config(vec![vec![(N, 1)]; 4]);
        assert_eq!(config.nodes_by_distance(1), [1, 2, 3, 0]);
        config.distances = vec![vec![10, 20, 30, 20]; 4];
        assert_eq!(config.nodes_by_distance(0), [0, 1, 3, 2]);
        assert_eq!(config.nodes_by_distance(2), [2, 0, 3, 1]);
    }
}
