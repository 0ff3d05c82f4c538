//! The audit: walks every frame and every free list, and checks that frames and lists agree.
//!
//! The audit needs a quiet allocator, as in tests or at the end of a program, because it misses pages that
//! are moving between a magazine and a zone. The audit proves:
//!
//! * every committed page is in exactly one block, and each block is aligned and inside its zone;
//! * a frame marks its block as free iff the block is exactly once on the list of its order and type;
//! * no two free buddies are unmerged;
//! * a free block is on the list of backed or of discarded blocks, as its frame says, and the zone's counts of free and
//!   discarded pages are right;
//! * a free block is on the list of its pageblock's type, and all pageblocks of a larger block have that type;
//! * pages = free + per-CPU + allocated, where each number is counted in two ways. In the child of a `fork`, pages that
//!   other threads of the parent were moving are lost. The audit counts pages lost by a `fork` once.

use crate::allocator::{CachedZone, PageAllocator};
use crate::frame::{Kind, State};
use crate::gfp::{MigrateType, ZoneKind};
use crate::pfn::{Order, Pfn};
use crate::zone::{Inner, Zone, ZoneShared};
use core::fmt;

/// Numbers of pages by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Census {
    /// Number of pages in all zones.
    pub managed: u64,
    /// Number of free pages that are not committed.
    pub uncommitted: u64,
    /// Number of committed pages on the free lists.
    pub listed: u64,
    /// Number of pages on the free lists whose memory was returned to the system until the next touch.
    pub discarded: u64,
    /// Number of pages in per-CPU magazines.
    pub per_cpu: u64,
    /// Number of pages in allocated blocks.
    pub allocated: u64,
    /// Number of charged free pages: see [`PageAllocator::charge`].
    pub charged: u64,
    /// Number of pages that other threads were moving when the process was forked; 0 except in the child of a `fork`.
    pub lost: u64,
}

/// An error that the audit found: its place, and the broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the node, from 0.
    pub node: u32,
    /// The kind of the zone on the node.
    pub zone: ZoneKind,
    /// The page at which the audit found the error, if any.
    pub pfn: Option<Pfn>,
    /// The broken invariant.
    pub what: BrokenInvariant,
}

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenInvariant {
    /// A committed page is in no block.
    InNoBlock,
    /// A block starts inside another block, extends beyond its zone, or is not aligned.
    Overlap,
    /// Two free buddies were not merged.
    MissedMerge,
    /// A free block is not on the list of its pageblock's type.
    WrongType,
    /// A block is free in its frame but not exactly once on its list, or a listed block is not free.
    ListDisagrees,
    /// The count of free pages differs from the lists.
    Count {
        /// The zone's count of free pages.
        counted: u64,
        /// The number of free pages that the audit found.
        found: u64,
    },
    /// The count of discarded pages differs from the frames.
    Discarded {
        /// The zone's count of discarded pages.
        counted: u64,
        /// The number of discarded pages that the audit found.
        found: u64,
    },
    /// The magazines' count of pages differs from the frames.
    PerCpu {
        /// The magazines' count of pages.
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
    /// Audits the whole allocator; see the [module](self). No thread may allocate or free during the call.
    ///
    /// Cost: `check` reads the frame of every committed page.
    ///
    /// # Errors
    /// Returns the first broken invariant as an error.
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
        let mut committed = vec![true; zone.whole_blocks(shared) as usize];
        let held = self.per_cpu.as_ref().map_or(0, |per_cpu| per_cpu.pages());
        let inner = zone.lock();
        for block in inner.uncommitted_blocks() {
            committed[block as usize] = false;
        }
        let walk = Walk { zone, shared, inner: &inner };
        let found = walk.check_blocks(&committed)?;
        walk.check_lists(found.listed)?;
        let fail = |what| Violation { node: zone.node, zone: zone.kind, pfn: None, what };
        let counted = u64::from(inner.free() + inner.charged_pages());
        let free = found.listed + u64::from(inner.uncommitted_pages());
        if counted != free {
            return Err(fail(BrokenInvariant::Count { counted, found: free }));
        }
        let counted = u64::from(inner.discarded());
        let backed = u64::from(inner.backed()) + counted;
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

    /// Walks the committed pages block by block. The slice `committed` has a flag for each whole maximal block.
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
        let own = |page| self.zone.type_of(self.shared, pfn.up(page)) == state.migrate_type();
        if !(0..order.pages()).step_by(step).all(own) {
            return Err(self.fail(pfn, BrokenInvariant::WrongType));
        }
        Ok(())
    }

    /// Walks the free lists. The frame of each listed block must agree with its list, and all listed blocks
    /// together must have `listed` pages. If a block is listed twice, the list has a cycle, so the list
    /// counts too many pages.
    fn check_lists(&self, listed: u64) -> Result<(), Violation> {
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
