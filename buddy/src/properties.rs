//! The allocator against a shadow: any mix of orders, types, zones, nodes, splits, bulk, CPU moves and draining.
//!
//! The shadow is a plain map of who holds what. After every allocation: no page is held twice, it lies in a zone and
//! on a node that the flags allow, and an allocation that no watermark holds back fails only if no zone has a block.
//! After every sequence: the audit agrees with the shadow; and once all is freed and released, all memory has
//! coalesced and gone back.
//!
//! `PROPTEST_CASES` sets the number of cases.

use crate::{Door, Gfp, MigrateType, Order, PageAllocator, PageConfig, Pfn, ZoneKind};
use proptest::prelude::*;
use std::collections::BTreeMap;
use uslab_magazine::{Cpus, on_cpu};

const CASES: u32 = 10_000;

#[derive(Clone, Debug)]
enum Op {
    Alloc { order: u8, gfp: Gfp, node: Option<u32> },
    Free(prop::sample::Index),
    Split(prop::sample::Index, u8),
    Bulk { gfp: Gfp, node: Option<u32>, max: usize },
    Cpu(u32),
    Drain(u32, u32),
    Reap,
    Release,
}

fn gfp() -> impl Strategy<Value = Gfp> {
    let zone = prop_oneof![6 => Just(Gfp::KERNEL), 1 => Just(Gfp::DMA), 1 => Just(Gfp::DMA32)];
    let kind = prop_oneof![3 => Just(Gfp::KERNEL), 3 => Just(Gfp::MOVABLE), 2 => Just(Gfp::RECLAIMABLE)];
    let how = prop_oneof![
        4 => Just(Gfp::KERNEL), 2 => Just(Gfp::MEMALLOC), 1 => Just(Gfp::HIGH), 1 => Just(Gfp::ATOMIC),
        1 => Just(Gfp::NORETRY), 1 => Just(Gfp::ZERO),
    ];
    let more = prop_oneof![4 => Just(Gfp::KERNEL), 1 => Just(Gfp::THIS_NODE), 1 => Just(Gfp::COMP)];
    (zone, kind, how, more).prop_map(|(zone, kind, how, more)| zone | kind | how | more)
}

fn op() -> impl Strategy<Value = Op> {
    let node = || proptest::option::of(0..4_u32);
    let order = prop_oneof![4 => Just(0_u8), 4 => 1..=3_u8, 2 => 4..=10_u8];
    prop_oneof![
        12 => (order, gfp(), node()).prop_map(|(order, gfp, node)| Op::Alloc { order, gfp, node }),
        9 => any::<prop::sample::Index>().prop_map(Op::Free),
        2 => (any::<prop::sample::Index>(), 1..=3_u8).prop_map(|(block, down)| Op::Split(block, down)),
        1 => (gfp(), node(), 0..100_usize).prop_map(|(gfp, node, max)| Op::Bulk { gfp, node, max }),
        3 => (0..4_u32).prop_map(Op::Cpu),
        1 => (0..4_u32, 0..5_u32).prop_map(|(a, b)| Op::Drain(a.min(b), b)),
        1 => Just(Op::Reap),
        1 => Just(Op::Release),
    ]
}

fn config() -> impl Strategy<Value = PageConfig> {
    let zones = proptest::sample::subsequence(ZoneKind::ALL.to_vec(), 1..=3);
    let node = (zones, prop::collection::vec(1..700_u32, 3))
        .prop_map(|(kinds, pages)| kinds.into_iter().zip(pages).collect::<Vec<_>>());
    let geometry =
        prop_oneof![Just((10, 9)), Just((10, 4)), (1..=6_u8).prop_flat_map(|max| (Just(max), 0..=max))];
    let free_kib = prop_oneof![Just(Some(0)), Just(None), (0..512_u32).prop_map(Some)];
    let cpus = (1..=4_u32).prop_flat_map(|cpus| (Just(cpus), 1..=cpus));
    (prop::collection::vec(node, 1..=3), geometry, free_kib, cpus, any::<bool>(), 0..20_u8).prop_map(
        |(mut nodes, (max, pageblock), min_free_kib, (cpus, cpu_nodes), per_cpu_pages, door)| {
            nodes.resize(nodes.len().max(cpu_nodes as usize), Vec::new());
            PageConfig {
                max_order: Order::new(max).unwrap(),
                pageblock_order: Order::new(pageblock).unwrap(),
                min_free_kib,
                per_cpu_pages,
                // System calls are slow, so not every time.
                door: if door == 0 { Door::Os } else { Door::Heap },
                ..PageConfig::with_nodes(Cpus::simulated(cpus, cpu_nodes).unwrap(), nodes)
            }
        },
    )
}

/// Who holds what.
struct Shadow {
    pages: PageAllocator,
    blocks: BTreeMap<Pfn, Order>,
}

impl Shadow {
    fn add(&mut self, pfn: Pfn, order: Order, gfp: Gfp, node: Option<u32>) {
        let end = pfn.up(order.pages());
        let overlap = self.blocks.range(..end).next_back();
        let overlap = overlap.filter(|(start, order)| start.up(order.pages()) > pfn);
        assert_eq!(overlap, None, "page {pfn} order {order} is held already");
        assert!(pfn.is_aligned(order));
        assert_eq!(self.pages.block_of(pfn), Some((pfn, order)));
        let last = pfn.up(order.pages() - 1);
        assert_eq!(self.pages.zone_of(pfn), self.pages.zone_of(last));
        assert!(self.pages.zone_of(pfn) <= gfp.highest_zone());
        if let Some(node) = node.filter(|_| gfp.contains(Gfp::THIS_NODE)) {
            assert_eq!(self.pages.node_of(pfn), node);
        }
        if gfp.contains(Gfp::COMP) && order > Order::ZERO {
            assert_eq!(self.pages.block_of(last), Some((pfn, order)));
        }
        // SAFETY: the block is allocated and the shadow's.
        unsafe {
            let bytes = self.pages.address(pfn).cast::<u32>();
            assert!(!gfp.contains(Gfp::ZERO) || bytes.read() == 0);
            bytes.write(pfn.get());
        }
        self.blocks.insert(pfn, order);
    }

    fn remove(&mut self, pfn: Pfn) {
        let order = self.blocks.remove(&pfn).unwrap();
        // SAFETY: the shadow holds the block, with this order.
        unsafe {
            assert_eq!(self.pages.address(pfn).cast::<u32>().read(), pfn.get(), "somebody else wrote here");
            self.pages.free(pfn, order);
        }
    }

    fn pick(&self, index: prop::sample::Index) -> Option<Pfn> {
        let n = self.blocks.len();
        (n > 0).then(|| *self.blocks.keys().nth(index.index(n)).unwrap())
    }

    /// An allocation that no watermark held back, and that could call in the magazines, failed: there must be none.
    fn failed(&self, order: Order, gfp: Gfp, node: Option<u32>) {
        let known = node.is_none_or(|node| node < self.pages.nodes()) && order <= self.pages.max_order();
        if !gfp.contains(Gfp::MEMALLOC) || !known {
            return;
        }
        for zone in self.pages.info().zones {
            let allowed = !gfp.contains(Gfp::THIS_NODE) || Some(zone.node) == node;
            if zone.zone <= gfp.highest_zone() && allowed {
                assert_ne!(zone.extfrag_index(order), -1000, "order {order} {gfp} failed: {zone:?}");
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Alloc { order, gfp, node } => {
                let order = Order::new(order).unwrap();
                match self.pages.alloc(order, gfp, node) {
                    Ok(pfn) => self.add(pfn, order, gfp, node),
                    Err(_) => self.failed(order, gfp, node),
                }
            }
            Op::Free(index) => {
                if let Some(pfn) = self.pick(index) {
                    self.remove(pfn);
                }
            }
            Op::Split(index, down) => {
                let Some(pfn) = self.pick(index) else { return };
                let from = self.blocks[&pfn];
                let to = Order::new(from.get().saturating_sub(down)).unwrap();
                // SAFETY: the shadow holds the block, with this order.
                unsafe { self.pages.split(pfn, from, to) };
                self.blocks.remove(&pfn);
                for page in (0..from.pages()).step_by(to.pages() as usize) {
                    self.add(pfn.up(page), to, Gfp::MOVABLE, None);
                }
            }
            Op::Bulk { gfp, node, max } => {
                let mut got = Vec::new();
                let n = self.pages.alloc_bulk(gfp, node, max, |pfn| got.push(pfn));
                assert!(n == got.len() && n <= max);
                got.into_iter().for_each(|pfn| self.add(pfn, Order::ZERO, gfp, node));
                if n < max {
                    self.failed(Order::ZERO, gfp, node);
                }
            }
            Op::Cpu(cpu) => on_cpu(cpu),
            Op::Drain(from, to) => self.pages.drain_cpus(from..to),
            Op::Reap => drop(self.pages.reap()),
            Op::Release => drop(self.pages.release()),
        }
    }

    fn audit(&self) {
        let census = self.pages.check().unwrap_or_else(|violation| panic!("{violation}"));
        let held: u64 = self.blocks.values().map(|order| u64::from(order.pages())).sum();
        assert_eq!(census.allocated, held);
        let all = census.uncommitted + census.listed + census.per_cpu + census.allocated;
        assert_eq!(all, census.managed);
        let info = self.pages.info();
        assert_eq!(info.allocated(), held);
        assert_eq!(info.free() + info.per_cpu() + held, info.managed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES),
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_mix_of_requests_agrees_with_the_shadow_and_coalesces(
        config in config(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        on_cpu(0);
        let pages = PageAllocator::new(config).unwrap();
        let mut shadow = Shadow { pages, blocks: BTreeMap::new() };
        for op in &ops {
            shadow.run(op);
        }
        shadow.audit();
        while let Some(pfn) = shadow.blocks.keys().next().copied() {
            shadow.remove(pfn);
        }
        shadow.pages.release();
        shadow.audit();
        let (info, census) = (shadow.pages.info(), shadow.pages.check().unwrap());
        prop_assert_eq!(info.pages_not_in_maximal_blocks(), 0);
        prop_assert_eq!(info.committed_bytes(), 0);
        prop_assert_eq!((census.uncommitted, census.per_cpu), (census.managed, 0));
        for zone in &info.zones {
            let events = zone.events;
            prop_assert_eq!(events.commits, events.decommits);
            prop_assert_eq!(events.pages_taken, events.pages_freed);
            if !ops.iter().any(|op| matches!(op, Op::Split(..))) {
                prop_assert_eq!(events.splits, events.merges);
            }
            let typed: u32 = zone.pageblocks.iter().sum();
            let unclaimed = if info.mobility { MigrateType::Movable } else { MigrateType::Unmovable };
            prop_assert_eq!(zone.pageblocks[unclaimed as usize], typed);
        }
    }
}
