//! The audit of a page allocator walks every frame and every free list, and checks that they agree.
//!
//! No other thread may use the allocator during the audit, because the audit misses pages that are moving between a
//! magazine and a zone. The audit proves:
//!
//! * every committed page belongs to exactly one block, and each block is aligned and inside its zone;
//! * a frame marks its block as free if and only if the block is listed exactly once, on the free list of its order and
//!   type;
//! * free buddies are always merged;
//! * a free block is on the backed list or the discarded list, as its frame records, and the zone's counts of free and
//!   discarded pages are correct;
//! * a free block is on the list of its pageblock's migrate type, and all pageblocks inside a larger free block have
//!   the same type;
//! * the numbers of free, per-CPU and allocated pages add up to all pages, and two ways of counting each number agree.
//!   The child of a `fork` loses the pages that other threads of the parent were moving. The audit counts lost pages
//!   separately.

use crate::allocator::{CachedZone, PageAllocator};
use crate::frame::{Kind, State};
use crate::gfp::{MigrateType, ZoneKind};
use crate::pfn::{Order, Pfn};
use crate::zone::{Inner, Zone, ZoneShared};
use core::fmt;

/// The numbers of pages in each state, as the audit counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Census {
    /// Number of pages in all zones.
    pub managed: u64,
    /// Number of free pages that are not committed.
    pub uncommitted: u64,
    /// Number of committed pages on the free lists.
    pub listed: u64,
    /// Number of pages on the free lists whose physical memory the OS took back. The next access to such a page gets
    /// zeroed memory.
    pub discarded: u64,
    /// Number of pages in per-CPU magazines.
    pub per_cpu: u64,
    /// Number of pages in allocated blocks.
    pub allocated: u64,
    /// Number of charged free pages: see [`PageAllocator::charge`].
    pub charged: u64,
    /// Number of pages lost in the child of a `fork`, because other threads of the parent were moving them; 0 in any
    /// other process.
    pub lost: u64,
}

/// An inconsistency that the audit found: the zone and page, and the broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the memory node, counted from 0.
    pub node: u32,
    /// Kind of the zone in which the audit found the error.
    pub zone: ZoneKind,
    /// The page at which the audit found the error; `None` if the error does not belong to a page.
    pub pfn: Option<Pfn>,
    /// The invariant that the audit found to be broken.
    pub what: BrokenInvariant,
}

/// A rule of the page allocator that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenInvariant {
    /// A committed page does not belong to any block.
    InNoBlock,
    /// A block overlaps another block, extends beyond its zone, or is not aligned.
    Overlap,
    /// Two buddies are free but were not merged.
    MissedMerge,
    /// A free block is not on the list of its pageblock's type.
    WrongType,
    /// A free block is missing from the free lists or listed twice, or a listed block is not marked as free.
    ListDisagrees,
    /// The zone's count of free pages differs from the number of pages on the free lists.
    Count {
        /// The zone's count of free pages.
        counted: u64,
        /// The number of free pages that the audit found.
        found: u64,
    },
    /// The zone's count of discarded pages differs from the number of pages that frames mark as discarded.
    Discarded {
        /// The zone's count of discarded pages.
        counted: u64,
        /// The number of discarded pages that the audit found.
        found: u64,
    },
    /// The magazines and the frames disagree about the number of per-CPU pages.
    PerCpu {
        /// Number of pages that the magazines count.
        counted: u64,
        /// The number of per-CPU pages that the audit found.
        found: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} zone {}", self.node, self.zone.name())?;
        if let Some(pfn) = self.pfn {
            write!(f, " page {pfn}")?;
        }
        match self.what {
            BrokenInvariant::InNoBlock => f.write_str(": in no block"),
            BrokenInvariant::Overlap => f.write_str(": blocks overlap"),
            BrokenInvariant::MissedMerge => f.write_str(": missed merge with the buddy"),
            BrokenInvariant::WrongType => {
                f.write_str(": on the free list of a migratetype that its pageblock does not have")
            }
            BrokenInvariant::ListDisagrees => f.write_str(": the frame and the free list disagree"),
            BrokenInvariant::Count { counted, found } => {
                write!(f, ": {counted} free pages counted, {found} found")
            }
            BrokenInvariant::Discarded { counted, found } => {
                write!(f, ": {counted} discarded pages counted, {found} found")
            }
            BrokenInvariant::PerCpu { counted, found } => {
                write!(f, ": {counted} per-CPU pages counted, {found} found")
            }
        }
    }
}
impl core::error::Error for Violation {}

impl PageAllocator {
    /// Audits all zones and magazines of the allocator: see the [module](self). No thread may allocate or free during
    /// the call.
    ///
    /// Cost: `check` reads the frame of every committed page.
    ///
    /// # Errors
    /// If an invariant is broken, returns the first inconsistency as an error.
    pub fn check(&self) -> Result<Census, Violation> {
        let mut census = Census::default();
        for cached in &self.cached_zones {
            cached.audit(&self.shared, self.counts.forks.get() > 0, &mut census)?;
        }
        Ok(census)
    }
}

impl CachedZone {
    fn audit(&self, shared: &ZoneShared, forked: bool, census: &mut Census) -> Result<(), Violation> {
        let zone = &self.zone;
        // Allocates before taking the lock or any count, because the global allocator may use the audited zone.
        let mut committed = vec![true; zone.whole_maximal_blocks(shared) as usize];
        let held = self.per_cpu.as_ref().map_or(0, |per_cpu| per_cpu.pages());
        let inner = zone.lock();
        for block in inner.uncommitted_blocks() {
            committed[block as usize] = false;
        }
        let walk = Walk { zone, shared, inner: &inner };
        let found = walk.check_blocks(&committed)?;
        walk.check_free_lists(found.listed)?;
        let fail = |what| Violation { node: zone.node, zone: zone.kind, pfn: None, what };
        let counted = u64::from(inner.free() + inner.charged_pages());
        let free = found.listed + u64::from(inner.uncommitted_pages());
        if counted != free {
            return Err(fail(BrokenInvariant::Count { counted, found: free }));
        }
        let counted = u64::from(inner.discarded());
        let backed = u64::from(inner.backed_pages()) + counted;
        if counted != found.discarded || shared.discard_from == Order::ZERO && backed != found.listed {
            return Err(fail(BrokenInvariant::Discarded { counted, found: found.discarded }));
        }
        // The frame of a moving page says that the page is in a magazine, but no magazine has it.
        let lost = found.per_cpu.wrapping_sub(held);
        if lost != 0 && !(forked && held < found.per_cpu) {
            return Err(fail(BrokenInvariant::PerCpu { counted: held, found: found.per_cpu }));
        }
        census.managed += u64::from(zone.managed);
        census.uncommitted += u64::from(inner.uncommitted_pages());
        census.listed += found.listed;
        census.discarded += found.discarded;
        census.per_cpu += held;
        census.lost += lost;
        census.charged += u64::from(inner.charged_pages());
        census.allocated += found.allocated;
        Ok(())
    }
}

struct Walk<'a> {
    zone: &'a Zone,
    shared: &'a ZoneShared,
    inner: &'a Inner,
}

impl Walk<'_> {
    fn fail(&self, pfn: Pfn, what: BrokenInvariant) -> Violation {
        Violation { node: self.zone.node, zone: self.zone.kind, pfn: Some(pfn), what }
    }
    fn state(&self, pfn: Pfn) -> State {
        self.shared.frames.frame(pfn).state()
    }

    /// Walks all committed pages of the zone, block by block, and checks their frames. The slice `committed` holds one
    /// flag per whole maximal block: `true` if the block is committed.
    fn check_blocks(&self, committed: &[bool]) -> Result<Census, Violation> {
        let mut found = Census::default();
        for (start, pages) in self.zone.committed(self.shared, self.inner, committed) {
            let (mut at, end) = (start, start.up(pages));
            while at < end {
                let state = self.state(at);
                let order = state.order();
                if state.kind() == Kind::Inside {
                    return Err(self.fail(at, BrokenInvariant::InNoBlock));
                }
                let next = at.up(order.pages());
                let alone = (at.get() + 1..next.get().min(end.get()))
                    .all(|inside| self.state(Pfn::new(inside)).kind() == Kind::Inside);
                if next > end || !at.is_aligned(order) || !alone {
                    return Err(self.fail(at, BrokenInvariant::Overlap));
                }
                match state.kind() {
                    Kind::Free => {
                        self.check_free_block(at, state)?;
                        found.listed += u64::from(order.pages());
                        found.discarded += u64::from(state.is_discarded()) * u64::from(order.pages());
                    }
                    Kind::PerCpu => found.per_cpu += u64::from(order.pages()),
                    _ => found.allocated += u64::from(order.pages()),
                }
                at = next;
            }
        }
        Ok(found)
    }

    fn check_free_block(&self, pfn: Pfn, state: State) -> Result<(), Violation> {
        let order = state.order();
        if order < self.shared.max_order && self.state(pfn.buddy(order)).is_free(order) {
            return Err(self.fail(pfn, BrokenInvariant::MissedMerge));
        }
        let step = self.shared.pageblock_order.pages() as usize;
        let own = |page| self.zone.pageblock_type(self.shared, pfn.up(page)) == state.migrate_type();
        if !(0..order.pages()).step_by(step).all(own) {
            return Err(self.fail(pfn, BrokenInvariant::WrongType));
        }
        Ok(())
    }

    /// Walks all free lists of the zone and checks each listed block. Each listed block's frame must match the list,
    /// and all listed blocks together must have `listed` pages. A block that is listed twice makes the list cyclic, so
    /// the walk then counts too many pages.
    fn check_free_lists(&self, listed: u64) -> Result<(), Violation> {
        let mut found = 0;
        for order in Order::ZERO.through(self.shared.max_order) {
            for mobility in MigrateType::ALL {
                let area = self.inner.area(order);
                // SAFETY: `inner` is borrowed from the guard of the zone's lock.
                for (pfn, discarded) in unsafe { area.blocks(&self.shared.frames, mobility) } {
                    let says = self.shared.frames.get(pfn).map(|frame| frame.state());
                    found += u64::from(order.pages());
                    let listed_as = State::new(Kind::Free, order, mobility).discarded(discarded);
                    if says.map(|says| says.zero(false)) != Some(listed_as) || found > listed {
                        return Err(self.fail(pfn, BrokenInvariant::ListDisagrees));
                    }
                }
            }
        }
        if found != listed {
            let invariant = BrokenInvariant::Count { counted: listed, found };
            return Err(Violation { node: self.zone.node, zone: self.zone.kind, pfn: None, what: invariant });
        }
        Ok(())
    }
}
