//! The shadow model of the page allocator: a simple map of all allocated blocks. A real allocator and the shadow model
//! execute the same operations. Property tests and the fuzzer generate operations, and this module checks the result of
//! each operation.
//!
//! After every allocation, no page is allocated twice, and the flags allow the zone and node of the block. An
//! allocation that ignores watermarks fails only if no zone has a free block. After every sequence of operations, the
//! audit finds exactly the pages that the shadow model expects. Once all blocks are freed and a decommit ran, all pages
//! are merged and their memory is returned to the OS. If faults are injected, allocations may fail, but all other
//! checks still apply.

use crate::faults::{POINTS, Rule};
use crate::{Backend, Faults, Gfp, MigrateType, Order, PageAllocator, PageConfig, Pfn, ZoneKind};
use arbitrary::{Arbitrary, Result, Unstructured};
use std::collections::BTreeMap;
use uslab_magazine::{Cpus, on_cpu};

/// A random operation that the allocator and the shadow model execute. Any number in an operation is valid, because it
/// is reduced to the valid range.
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
    /// Injects faults: `times` calls of a fault point fail, starting with the `nth` call. A `point` beyond the last
    /// fault point selects all points.
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
/// Returns the number of an existing node, or the number after the last node, which does not exist.
fn node(u: &mut Unstructured<'_>) -> Result<Option<u32>> {
    Ok(if u.arbitrary()? { Some(u.int_in_range(0..=3)?) } else { None })
}

/// Generates allocators with up to three nodes of up to three zones. The generated allocators are small enough to run
/// out of memory.
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
    /// True while an injected fault may make a call fail.
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

    /// Checks a failed allocation that ignored watermarks and could flush the magazines. The failure is correct only if
    /// no zone has a suitable block.
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
            Op::Grant => self.disarm_faults(),
        }
    }

    fn disarm_faults(&mut self) {
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

/// Executes all operations and then frees all blocks. The allocator is checked against the shadow model throughout.
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
    shadow.disarm_faults();
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

/// Decodes an allocator configuration and a list of operations from `data`, and runs the operations.
///
/// # Panics
/// Panics if the allocator and its shadow model disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(case.config, &case.ops);
    }
}
