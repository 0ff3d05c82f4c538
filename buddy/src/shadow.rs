//! The page allocator's shadow model: a plain map of the allocated blocks. A real allocator executes the same
//! operations. Property tests and the fuzzer generate the operations, and this module checks each result.
//!
//! After every allocation, no page is allocated twice, and the block is in a zone and on a node that the flags allow.
//! An allocation that ignores watermarks fails only if no zone has a block. After every sequence of operations, the
//! audit agrees with the shadow model. After all blocks are freed and decommitted, all memory has coalesced and was
//! returned. With injected refusals, allocations may fail, and all other checks still apply.

use crate::faults::{POINTS, Rule};
use crate::{Backend, Faults, Gfp, MigrateType, Order, PageAllocator, PageConfig, Pfn, ZoneKind};
use arbitrary::{Arbitrary, Result, Unstructured};
use std::collections::BTreeMap;
use uslab_magazine::{Cpus, on_cpu};

/// An operation of the shadow model. The numbers in an operation are reduced to valid ranges.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Op {
    Alloc {
        #[arbitrary(with = order)]
        order: Order,
        #[arbitrary(with = gfp)]
        gfp: Gfp,
        #[arbitrary(with = node)]
        node: Option<u32>,
    },
    Free(u16),
    Split(u16, u8),
    Bulk {
        #[arbitrary(with = gfp)]
        gfp: Gfp,
        #[arbitrary(with = node)]
        node: Option<u32>,
        max: u8,
    },
    Cpu(u8),
    Drain(u8, u8),
    Reap,
    Release,
    /// Refuses `times` calls of a fault point from the `nth` call on. A `point` that is too large selects all
    /// points.
    Refuse {
        point: u8,
        nth: u8,
        times: Option<u8>,
    },
    Grant,
}

fn order(u: &mut Unstructured<'_>) -> Result<Order> {
    Ok(Order::new(u.int_in_range(0..=crate::MAX_ORDER)?).unwrap())
}
fn gfp(u: &mut Unstructured<'_>) -> Result<Gfp> {
    Ok(Gfp::from_bits_truncate(u16::arbitrary(u)?.into()))
}
/// Returns an existing node, or the first number after the last node.
fn node(u: &mut Unstructured<'_>) -> Result<Option<u32>> {
    Ok(if u.arbitrary()? { Some(u.int_in_range(0..=3)?) } else { None })
}

/// Returns any allocator of up to three nodes with up to three zones, small enough to run out of memory.
fn config(u: &mut Unstructured<'_>) -> Result<PageConfig> {
    let cpus = u.int_in_range(1..=4)?;
    let cpu_nodes = u.int_in_range(1..=cpus.min(3))?;
    let mut nodes = vec![vec![]; u.int_in_range(cpu_nodes..=3)? as usize];
    for zones in &mut nodes {
        let kinds: u8 = u.arbitrary()?;
        for kind in ZoneKind::ALL.into_iter().filter(|kind| kinds & (1 << *kind as u8) != 0) {
            zones.push((kind, u.int_in_range(1..=700)?));
        }
    }
    let max = u.int_in_range(0..=crate::MAX_ORDER)?;
    let pageblock = u.int_in_range(0..=max)?;
    Ok(PageConfig {
        max_order: Order::new(max).unwrap(),
        pageblock_order: Order::new(pageblock).unwrap(),
        min_free_kib: if u.arbitrary()? { Some(u.int_in_range(0..=511)?) } else { None },
        per_cpu_pages: u.arbitrary()?,
        backend: Backend::Heap,
        ..PageConfig::with_nodes(Cpus::simulated(cpus, cpu_nodes).unwrap(), nodes)
    })
}

struct Shadow {
    pages: PageAllocator,
    faults: Faults,
    /// True while a refusal may happen.
    refusing: bool,
    blocks: BTreeMap<Pfn, Order>,
}

impl Shadow {
    fn add(&mut self, pfn: Pfn, order: Order, gfp: Gfp, node: Option<u32>) {
        let end = pfn.up(order.pages());
        let overlap = self.blocks.range(..end).next_back();
        let overlap = overlap.filter(|(start, order)| start.up(order.pages()) > pfn);
        assert_eq!(overlap, None, "page {pfn} order {order} is already allocated");
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
        // SAFETY: the block is allocated, and the shadow owns it.
        unsafe {
            let [first, last] = [pfn, last].map(|page| self.pages.address(page).cast::<u32>());
            assert!(!gfp.contains(Gfp::ZERO) || (first.read(), last.read()) == (0, 0));
            last.write(pfn.get());
            first.write(pfn.get());
        }
        self.blocks.insert(pfn, order);
    }

    fn remove(&mut self, pfn: Pfn) {
        let order = self.blocks.remove(&pfn).unwrap();
        // SAFETY: the shadow owns the block, which has this order.
        unsafe {
            for page in [pfn, pfn.up(order.pages() - 1)] {
                let bytes = self.pages.address(page).cast::<u32>();
                assert_eq!(bytes.read(), pfn.get(), "a block keeps the bytes that its owner wrote");
            }
            self.pages.free(pfn, order);
        }
    }

    fn pick(&self, pick: u16) -> Option<Pfn> {
        let n = self.blocks.len();
        (n > 0).then(|| *self.blocks.keys().nth(usize::from(pick) % n).unwrap())
    }

    /// Checks a failed allocation that ignores watermarks and may flush the magazines: the failure requires
    /// that no zone has a block.
    fn check_failure(&self, order: Order, gfp: Gfp, node: Option<u32>) {
        let known = node.is_none_or(|node| node < self.pages.nodes()) && order <= self.pages.max_order();
        if self.refusing || !gfp.contains(Gfp::MEMALLOC) || !gfp.may_drain() || !known {
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
            Op::Alloc { order, gfp, node } => match self.pages.alloc(order, gfp, node) {
                Ok(pfn) => self.add(pfn, order, gfp, node),
                Err(_) => self.check_failure(order, gfp, node),
            },
            Op::Free(pick) => {
                if let Some(pfn) = self.pick(pick) {
                    self.remove(pfn);
                }
            }
            Op::Split(pick, down) => {
                let Some(pfn) = self.pick(pick) else { return };
                let from = self.blocks[&pfn];
                let to = Order::new(from.get().saturating_sub(down)).unwrap();
                // SAFETY: the shadow model owns the block, which has this order.
                unsafe { self.pages.split(pfn, from, to) };
                self.blocks.remove(&pfn);
                for page in (0..from.pages()).step_by(to.pages() as usize) {
                    self.add(pfn.up(page), to, Gfp::MOVABLE, None);
                }
            }
            Op::Bulk { gfp, node, max } => {
                let (mut got, max) = (Vec::new(), usize::from(max));
                let n = self.pages.alloc_bulk(gfp, node, max, |pfn| got.push(pfn));
                assert!(n == got.len() && n <= max);
                got.into_iter().for_each(|pfn| self.add(pfn, Order::ZERO, gfp, node));
                if n < max {
                    self.check_failure(Order::ZERO, gfp, node);
                }
            }
            Op::Cpu(cpu) => on_cpu((cpu % 4).into()),
            Op::Drain(from, to) => self.pages.drain_cpus(u32::from(from % 5)..u32::from(to % 5)),
            Op::Reap => _ = self.pages.decommit_idle(|| ()),
            Op::Release => drop(self.pages.decommit()),
            Op::Refuse { point, nth, times } => {
                let every = Rule::every(POINTS.get(usize::from(point)).copied());
                let (nth, times) = (u64::from(nth) + 1, times.map(u64::from));
                self.faults.arm(vec![Rule { nth, times, ..every }]);
                self.refusing = true;
            }
            Op::Grant => self.stop_faults(),
        }
    }

    fn stop_faults(&mut self) {
        self.faults.disarm();
        self.refusing = false;
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
        let backed = info.managed() - census.uncommitted - census.discarded;
        assert_eq!(info.backed_bytes(), backed * crate::PAGE_SIZE as u64);
    }
}

/// Executes all operations, then frees all blocks, and checks the result.
///
/// # Panics
/// Panics if the allocator and its shadow model disagree.
pub(crate) fn run(config: PageConfig, ops: &[Op]) {
    on_cpu(0);
    let faults = Faults::new(0);
    // Some configurations are invalid, such as a size of no pages.
    let Ok(pages) = PageAllocator::new(PageConfig { faults: faults.clone(), ..config }) else { return };
    let mut shadow = Shadow { pages, faults, refusing: false, blocks: BTreeMap::new() };
    for op in ops {
        shadow.run(op);
    }
    shadow.audit();
    shadow.stop_faults();
    // `decommit` returns all free memory to the system.
    shadow.pages.decommit();
    let census = shadow.pages.check().unwrap();
    assert_eq!((census.listed, census.per_cpu), (census.discarded, 0));
    while let Some(pfn) = shadow.blocks.keys().next().copied() {
        shadow.remove(pfn);
    }
    shadow.pages.decommit();
    shadow.audit();
    let (info, census) = (shadow.pages.info(), shadow.pages.check().unwrap());
    assert_eq!(info.pages_not_in_maximal_blocks(), 0);
    assert_eq!(info.committed_bytes(), 0);
    assert_eq!((census.uncommitted, census.per_cpu), (census.managed, 0));
    for zone in &info.zones {
        let events = zone.events;
        assert_eq!(events.commits, events.decommits);
        assert_eq!(events.pages_taken, events.pages_freed);
        if !ops.iter().any(|op| matches!(op, Op::Split(..))) {
            assert_eq!(events.splits, events.merges);
        }
        let typed: u32 = zone.pageblocks.iter().sum();
        let default_type = if info.mobility { MigrateType::Movable } else { MigrateType::Unmovable };
        assert_eq!(zone.pageblocks[default_type as usize], typed);
    }
}

#[derive(Debug, Arbitrary)]
struct Case {
    #[arbitrary(with = config)]
    config: PageConfig,
    ops: Vec<Op>,
}

/// Decodes an allocator and its operations from `data`, and runs the operations.
///
/// # Panics
/// Panics if the allocator and its shadow model disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(case.config, &case.ops);
    }
}
