//! The free blocks of one order: two lists for each migrate type.
//!
//! The memory of a free block is *backed* (it may have physical pages) or *discarded* (it was returned to the system;
//! at the next touch, it reads as zero). Backed and discarded blocks are on separate lists, so that the next block to
//! allocate and the next block to discard are found in O(1).

use crate::frame::{FrameList, FrameTable, Kind, State};
use crate::gfp::MigrateType;
use crate::pfn::Pfn;

/// The end of the list at which a free block is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListEnd {
    /// The block is allocated before all other listed blocks.
    Front,
    /// The block is allocated after all other listed blocks, because it will probably merge soon.
    Back,
}

/// The free blocks of one order.
///
/// # Invariants
/// While no thread holds the zone's lock, a block is listed iff its frame is [`Kind::Free`]. The frame's
/// order, type and discarded bit determine the list.
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
    /// Returns the next block to allocate. A backed block is allocated first, because it costs no page fault.
    #[inline]
    pub(crate) fn front(&self, mobility: MigrateType) -> Option<Pfn> {
        self.backed[mobility as usize].front().or_else(|| self.discarded[mobility as usize].front())
    }
    /// Returns the backed block that would be allocated last.
    pub(crate) fn last_backed(&self) -> Option<Pfn> {
        self.backed.iter().find_map(FrameList::back)
    }
    /// Returns the best other type that has a free block.
    pub(crate) fn fallback(&self, mobility: MigrateType) -> Option<MigrateType> {
        mobility.fallbacks().into_iter().find(|other| self.len_of(*other) > 0)
    }
    /// Returns the blocks of one type, in the order of their allocation.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone.
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

    /// Inserts a block and updates its frame.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone, which owns the frames' links. The block `pfn` must belong to the
    /// zone, have `state`, and be on no list.
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
    /// Removes a block from its list. The block's frame stays free until the caller changes it.
    ///
    /// # Safety
    /// The caller must hold the lock of the zone, and the block must be on the list for `state`.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, frames: &FrameTable, pfn: Pfn, state: State) {
        // SAFETY: the caller holds the zone's lock, and the block is on this list.
        unsafe { self.list(state).remove(frames, pfn) };
    }
}
