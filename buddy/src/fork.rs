//! Support for a `fork` while other threads allocate pages. If another thread was moving a page between a magazine and
//! a zone, the child loses this page. The child can count its lost pages with [`check`](PageAllocator::check).

use crate::allocator::{CachedZone, PageAllocator};
use crate::per_cpu::{PageRound, PerCpuPages};
use crate::tables::StackMemory;
use crate::zone::Zone;
use uslab_magazine::sync::Rank;
use uslab_magazine::sync::fork::ForkLock;
use uslab_magazine::{Fork, Layer};

impl CachedZone {
    /// Returns the zone and its magazines, or `None` if the zone has no magazines.
    pub(crate) fn zone_and_magazines(&self) -> Option<(&Zone, &PerCpuPages)> {
        Some((&self.zone, self.per_cpu.as_ref()?))
    }
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Layer<PageRound, StackMemory>> {
        self.per_cpu.iter().flat_map(|per_cpu| per_cpu.layers()).map(|(_, layer)| layer)
    }
}

impl Fork for PageAllocator {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: the thread holds the locks of all earlier ranks that `rank` requires, by this function's contract.
        unsafe { self.tables.locks(rank, visit) };
        for cached in &self.cached_zones {
            if rank == Rank::Zone {
                visit(cached.zone.lists());
            }
            // SAFETY: the thread holds the locks of all earlier ranks that `rank` requires, by this function's
            // contract.
            cached.layers().for_each(|layer| unsafe { layer.locks(rank, visit) });
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: the process is a child with a single thread, by this function's contract.
        unsafe {
            self.cached_zones
                .iter()
                .flat_map(CachedZone::layers)
                .for_each(|layer| layer.forget_other_threads());
            self.tables.forget_other_threads();
        }
        self.counts.forks.add(1);
    }
}
