//! The free blocks of one order: two lists for each migrate type.
//!
//! The memory of a free block is *backed* (it may have pages of the machine) or *discarded* (returned to the
//! system; the next touch backs it with zeros). Each kind has its own list, so that the next block to
//! allocate and the next one to discard are found in O(1).

use crate::frame::{FrameList, FrameTable, Kind, State};
use crate::gfp::MigrateType;
use crate::pfn::Pfn;

/// The end of its list at which a free block is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Allocated soonest.
    Front,
    /// Allocated last: the block will probably merge soon.
    Back,
}

/// The free blocks of one order.
///
/// # Invariants
/// While the zone's lock is free, a frame says [`Kind::Free`] with this order, a type and a discarded bit iff
/// its block is on that list.
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

    /// Number of blocks of all types.
    pub(crate) fn len(&self) -> u32 {
        MigrateType::ALL.into_iter().map(|mobility| self.len_of(mobility)).sum()
    }
    /// Number of blocks of one type.
    pub(crate) fn len_of(&self, mobility: MigrateType) -> u32 {
        self.backed[mobility as usize].len() + self.discarded[mobility as usize].len()
    }
    /// The next block to allocate: a backed one if there is one, which costs no page fault.
    #[inline]
    pub(crate) fn front(&self, mobility: MigrateType) -> Option<Pfn> {
        self.backed[mobility as usize].front().or_else(|| self.discarded[mobility as usize].front())
    }
    /// The backed block that would be allocated last.
    pub(crate) fn last_backed(&self) -> Option<Pfn> {
        self.backed.iter().find_map(FrameList::back)
    }
    /// The best other type that has a free block.
    pub(crate) fn fallback(&self, mobility: MigrateType) -> Option<MigrateType> {
        mobility.fallbacks().into_iter().find(|other| self.len_of(*other) > 0)
    }
    /// The blocks of one type, in the order of their allocation.
    ///
    /// # Safety
    /// The caller holds the lock of the zone.
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
    /// The caller holds the lock of the zone, which owns the frames' links. The block `pfn` belongs to the
    /// zone, has `state`, and is on no list.
    #[inline]
    pub(crate) unsafe fn insert(&mut self, frames: &FrameTable, pfn: Pfn, state: State, end: End) {
        debug_assert!(state.kind() == Kind::Free);
        frames.frame(pfn).set_state(state);
        let list = self.list(state);
        match end {
            // SAFETY: the caller holds the lock, and the block is on no list.
            End::Front => unsafe { list.push_front(frames, pfn) },
            // SAFETY: the caller holds the lock, and the block is on no list.
            End::Back => unsafe { list.push_back(frames, pfn) },
        }
    }
    /// Removes a block from its list. Its frame still says that it is free, until the caller changes it.
    ///
    /// # Safety
    /// The caller holds the lock of the zone, and the block is on the list for `state`.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, frames: &FrameTable, pfn: Pfn, state: State) {
        // SAFETY: the caller holds the lock, and the block is on this list.
        unsafe { self.list(state).remove(frames, pfn) };
    }
}
