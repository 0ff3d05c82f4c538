//! The free blocks of one order in a zone: two lists for each migrate type.
//!
//! A free block is *backed* if it may have physical pages, and *discarded* if its memory was returned to the OS.
//! Discarded memory reads as zero at the next access. Backed and discarded blocks are on separate lists. Finding the
//! next block to allocate, or the next block to discard, therefore takes O(1).

use crate::frame::{FrameList, FrameTable, Kind, State};
use crate::gfp::MigrateType;
use crate::pfn::Pfn;

/// The end of the list at which a free block is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListEnd {
    /// The head of the list: the block is allocated before all other blocks on it.
    Front,
    /// The tail of the list: the block is allocated last, because it will probably merge soon.
    Back,
}

/// The free lists of one order in a zone.
///
/// # Invariants
/// While no thread holds the zone's lock, a block is listed if and only if its frame has the kind [`Kind::Free`]. The
/// order, the migrate type and the discarded bit in a block's frame determine its list.
#[derive(Debug, Default)]
pub(crate) struct FreeArea {
    backed: [FrameList; MigrateType::COUNT],
    discarded: [FrameList; MigrateType::COUNT],
}

impl FreeArea {
    fn list(&mut self, state: State) -> &mut FrameList {
        let lists = if state.is_discarded() { &mut self.discarded } else { &mut self.backed };
        &mut lists[state.migrate_type() as usize]
    }

    pub(crate) fn len(&self) -> u32 {
        MigrateType::ALL.into_iter().map(|mobility| self.len_of(mobility)).sum()
    }
    pub(crate) fn len_of(&self, mobility: MigrateType) -> u32 {
        self.backed[mobility as usize].len() + self.discarded[mobility as usize].len()
    }
    /// Returns the block that an allocation of this migrate type takes next. A backed block is preferred, because using
    /// it causes no page fault.
    #[inline]
    pub(crate) fn front(&self, mobility: MigrateType) -> Option<Pfn> {
        self.backed[mobility as usize].front().or_else(|| self.discarded[mobility as usize].front())
    }
    /// Returns the backed block that allocations would take last.
    pub(crate) fn last_backed_block(&self) -> Option<Pfn> {
        self.backed.iter().find_map(FrameList::back)
    }
    /// Returns the best fallback type that has a free block in this area.
    pub(crate) fn fallback(&self, mobility: MigrateType) -> Option<MigrateType> {
        mobility.fallback_types().into_iter().find(|other| self.len_of(*other) > 0)
    }
    /// Returns the free blocks of one migrate type, in the order in which allocations take them.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone that contains this area.
    pub(crate) unsafe fn blocks<'t>(
        &self,
        frames: &'t FrameTable,
        mobility: MigrateType,
    ) -> impl Iterator<Item = (Pfn, bool)> + use<'t> {
        let [backed, discarded] = [&self.backed, &self.discarded].map(|lists| {
            // SAFETY: the caller holds the zone's lock, by this function's contract.
            unsafe { lists[mobility as usize].iter(frames) }
        });
        backed.map(|pfn| (pfn, false)).chain(discarded.map(|pfn| (pfn, true)))
    }

    /// Inserts block `pfn` into the list for `state`, and stores `state` in its frame.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone, which owns the frames' links. Block `pfn` must belong to the zone and
    /// must not be on any list.
    #[inline]
    pub(crate) unsafe fn insert(&mut self, frames: &FrameTable, pfn: Pfn, state: State, end: ListEnd) {
        debug_assert!(state.kind() == Kind::Free);
        frames.frame(pfn).set_state(state);
        let list = self.list(state);
        match end {
            // SAFETY: the caller holds the zone's lock, and the block is on no list.
            ListEnd::Front => unsafe { list.push_front(frames, pfn) },
            // SAFETY: the caller holds the zone's lock, and the block is on no list.
            ListEnd::Back => unsafe { list.push_back(frames, pfn) },
        }
    }
    /// Removes block `pfn` from the list for `state`. The block's frame stays marked as free until the caller changes
    /// it.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone, and the block must be on the list for `state`.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, frames: &FrameTable, pfn: Pfn, state: State) {
        // SAFETY: the caller holds the zone's lock, and the block is on this list.
        unsafe { self.list(state).remove(frames, pfn) };
    }
}
