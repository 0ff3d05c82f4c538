//! Per-CPU pages: magazines that cache low-order blocks of a zone for each CPU.
//!
//! A zone has one magazine layer for each pair of an order 0..=3 and a migrate type, like the kernel's per-CPU page
//! lists. Most single-page allocations take no lock. Filling or flushing a magazine takes the zone lock once for a
//! whole batch of pages. The zone does *not* count pages in magazines as free. Pages in magazines do not merge into
//! larger blocks, and watermarks ignore them. Under memory pressure, the allocator flushes the magazines to the zone
//! ([`PageAllocator::drain_cpus`](crate::PageAllocator::drain_cpus)).
//!
//! A freed page is pushed into the magazine for its pageblock's migrate type. A page that was allocated for another
//! migrate type thus returns to its original type.

use crate::error::Limit;
use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};
use crate::tables::{StackMemory, Tables};
use crate::zone::{BlockRequest, Zone, ZoneShared};
use core::cell::Cell;
use core::ptr::NonNull;
use uslab_magazine::{Config, Layer, Operation, Round, Supplier};

/// Number of orders that magazines cache: 0..=3, the kernel's "not costly" orders. Under loom, only order 0 is cached.
const ORDERS: usize = if cfg!(loom) { 1 } else { 4 };
/// Number of magazines that a CPU's stack holds in addition to the required two. A CPU's stack thus holds at most four
/// magazines of one order and migrate type.
const STOCK: u16 = if cfg!(loom) { 0 } else { 2 };
/// Maximum number of full magazines in a depot, which all CPUs share.
const DEPOT_LIMIT: u32 = if cfg!(loom) { 1 } else { 4 };

/// The name under which tracepoints report the page layers.
pub(crate) const PAGES: &str = "pages";

/// A block of pages in a magazine, identified by its first page number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRound(pub(crate) Pfn);

impl Round for PageRound {
    #[inline(always)]
    fn into_raw(self) -> NonNull<u8> {
        // Adds one to the page number, so that page 0 is not null.
        NonNull::without_provenance(core::num::NonZeroUsize::MIN.saturating_add(self.0.index()))
    }
    #[inline(always)]
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(Pfn::new((raw.addr().get() - 1) as u32))
    }
}

/// The per-CPU magazines of one zone: a magazine layer for each order and migrate type.
#[derive(Debug)]
pub(crate) struct PerCpuPages {
    /// The layers of all orders and migrate types, sorted by order and then by type. If pages are not grouped by type,
    /// each order has a single layer.
    layers: Box<[Layer<PageRound, StackMemory>]>,
    types: usize,
}

/// Returns the number of order-0 pages in a magazine of a zone with `managed` pages. The result is the kernel's batch
/// size: a power of two minus one, based on 1/4096 of the zone and at most 256 KiB.
fn per_cpu_batch_size(managed: u32) -> u16 {
    if cfg!(loom) {
        return 1;
    }
    let goal = (managed / 4096).min(64);
    if goal <= 1 { 1 } else { (1 << (goal + goal / 2).ilog2()) - 1 }
}

impl PerCpuPages {
    /// Creates the per-CPU magazines for a zone of `managed` pages. Returns `None` if memory for the magazines cannot
    /// be reserved.
    pub(crate) fn new(tables: &Tables, managed: u32, shared: &ZoneShared) -> Option<Self> {
        let types = if shared.mobility { MigrateType::COUNT } else { 1 };
        let orders = ORDERS.min(shared.max_order.index() + 1);
        let layer = |n: usize| {
            let config = Config::new((per_cpu_batch_size(managed) >> (n / types)).max(1), STOCK, DEPOT_LIMIT);
            let mut layer = tables.layer(config, true)?;
            layer.set_name(PAGES);
            Some(layer)
        };
        Some(Self { layers: (0..orders * types).map(layer).collect::<Option<_>>()?, types })
    }

    /// Returns the magazine layer for an order and a migrate type. Returns `None` if blocks of this order are not
    /// cached.
    #[inline]
    pub(crate) fn layer(
        &self,
        order: Order,
        mobility: MigrateType,
    ) -> Option<&Layer<PageRound, StackMemory>> {
        self.layers.get(order.index() * self.types + (mobility as usize).min(self.types - 1))
    }
    pub(crate) fn layers(&self) -> impl Iterator<Item = (Order, &Layer<PageRound, StackMemory>)> {
        let orders = Order::ZERO.through(Order::MAX);
        orders
            .zip(self.layers.chunks(self.types))
            .flat_map(|(order, row)| row.iter().map(move |l| (order, l)))
    }
    /// Flushes to the zone all pages that a [sweep](Tables::sweep) removed from the per-CPU stacks.
    pub(crate) fn drain_swept(&self, op: &Operation, zone: &Zone, shared: &ZoneShared) {
        for (order, layer) in self.layers() {
            layer.drain_swept(op, &ZoneSupplier::new_for_flush(zone, shared, order));
        }
    }
    /// Flushes to the zone all pages in the depots, and all pages that a sweep removed from the per-CPU stacks.
    pub(crate) fn flush_swept(&self, op: &Operation, zone: &Zone, shared: &ZoneShared) {
        for (order, layer) in self.layers() {
            layer.flush_swept(op, &ZoneSupplier::new_for_flush(zone, shared, order));
        }
    }
    /// Flushes to the zone the blocks that a sweep of idle stacks removed, and the surplus of the depots. Returns the
    /// number of flushed pages.
    pub(crate) fn reap_swept(&self, zone: &Zone, shared: &ZoneShared) -> u64 {
        let reaped = self.layers().map(|(order, layer)| {
            layer.reap_swept(&ZoneSupplier::new_for_flush(zone, shared, order)) * u64::from(order.pages())
        });
        reaped.sum()
    }
    pub(crate) fn pages(&self) -> u64 {
        let held = self.layers().map(|(order, layer)| {
            let stats = layer.stats();
            (stats.in_magazines + stats.in_depot) * u64::from(order.pages())
        });
        held.sum()
    }
}

/// The supplier behind a magazine layer: fills magazines from a zone, for one request.
pub(crate) struct ZoneSupplier<'a> {
    zone: &'a Zone,
    shared: &'a ZoneShared,
    wanted: BlockRequest,
    /// The reason why the last fill got fewer blocks than it requested.
    limit: Cell<Option<Limit>>,
}

impl<'a> ZoneSupplier<'a> {
    /// Creates a supplier that fills magazines for the allocation `wanted`.
    #[inline]
    pub(crate) fn new_for_fill(zone: &'a Zone, shared: &'a ZoneShared, wanted: BlockRequest) -> Self {
        Self { zone, shared, wanted, limit: Cell::new(None) }
    }
    /// Creates a supplier that only takes flushed blocks. A fill through a supplier for flushes always fails, because
    /// its watermark is unreachable.
    #[inline]
    pub(crate) fn new_for_flush(zone: &'a Zone, shared: &'a ZoneShared, order: Order) -> Self {
        let wanted = BlockRequest { order, mobility: MigrateType::Unmovable, floor: Some(u32::MAX) };
        Self::new_for_fill(zone, shared, wanted)
    }
    /// Returns the reason why the last fill got fewer blocks than it requested.
    pub(crate) fn limit(&self) -> Option<Limit> {
        self.limit.get()
    }
}

impl Supplier<PageRound> for ZoneSupplier<'_> {
    fn fill(&self, op: &Operation, _node: u32, max: usize, mut put: impl FnMut(PageRound)) -> usize {
        let put = |pfn| put(PageRound(pfn));
        let (filled, limit) = self.zone.fill(op, self.shared, self.wanted, max, put);
        self.limit.set(limit);
        filled
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = PageRound>) {
        self.zone.free(op, self.shared, self.wanted.order, rounds.map(|round| round.0));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn per_cpu_batch_sizes_match_linux() {
        // The batch is 63 on any zone of 1 GiB or more.
        assert_eq!([1 << 18, 1 << 24].map(per_cpu_batch_size), [63, 63]);
        assert_eq!([0, 3840, 8191, 8192, 20_000].map(per_cpu_batch_size), [1, 1, 1, 1, 3]);
    }

    #[test]
    fn page_number_round_trips_through_a_magazine_pointer() {
        for n in [0, 1, u32::MAX - 1] {
            let round = PageRound(Pfn::new(n));
            // SAFETY: `into_raw` created the pointer.
            assert_eq!(unsafe { PageRound::from_raw(round.into_raw()) }.0, round.0);
        }
    }
}
