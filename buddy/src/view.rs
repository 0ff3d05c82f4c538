//! The numbers of pages that each CPU holds, for visualisations. [`ZoneInfo`](crate::ZoneInfo) has the totals over all
//! CPUs.

use crate::allocator::PageAllocator;
use crate::pfn::Order;
use uslab_magazine::MagazineView;

/// Numbers of cached blocks. Each inner array is indexed by order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PerCpuView {
    /// For each CPU, the number of blocks of each order in its magazines.
    pub cpus: Vec<Vec<u32>>,
    /// For each order, the number of blocks in the depots, which all CPUs share.
    pub depot: Vec<u32>,
}

impl PageAllocator {
    /// Returns the numbers of blocks in the per-CPU magazines and depots of all zones.
    ///
    /// # Safety
    /// No other thread may use the allocator during the call.
    pub unsafe fn per_cpu_view(&self) -> PerCpuView {
        let mut view =
            PerCpuView { cpus: vec![Vec::new(); self.cpus().count() as usize], ..PerCpuView::default() };
        let add =
            |to: &mut Vec<u32>, order: Order, magazines: &mut dyn Iterator<Item = &MagazineView<()>>| {
                to.resize(to.len().max(order.index() + 1), 0);
                to[order.index()] += magazines.map(|magazine| magazine.rounds.len() as u32).sum::<u32>();
            };
        for (order, layer) in
            self.cached_zones.iter().filter_map(|cached| cached.per_cpu.as_ref()).flat_map(|p| p.layers())
        {
            // SAFETY: no other thread uses the allocator, by this function's contract.
            let layer = unsafe { layer.view(|_| ()) };
            for (to, cpu) in view.cpus.iter_mut().zip(&layer.cpus) {
                add(to, order, &mut cpu.magazines.iter());
            }
            add(&mut view.depot, order, &mut layer.depots.iter().flat_map(|depot| &depot.full));
        }
        view
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Gfp, Order, PageAllocator, PageConfig};
    use uslab_magazine::{Cpus, on_cpu};

    #[test]
    fn allocator_view_lists_magazine_pages_by_cpu() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        let pages = PageAllocator::new(PageConfig::default_for(cpus).limit(1 << 30)).unwrap();
        on_cpu(1);
        let order = Order::new(2).unwrap();
        pages.alloc_block(order, Gfp::KERNEL, None).unwrap().free();
        // SAFETY: this test is the only user of the allocator.
        let view = unsafe { pages.per_cpu_view() };
        assert_eq!(view.cpus[0], [0, 0, 0, 0]);
        assert_eq!(u64::from(view.cpus[1][2]) * 4, pages.info().per_cpu());
        assert_eq!(view.depot, [0, 0, 0, 0]);
    }
}
