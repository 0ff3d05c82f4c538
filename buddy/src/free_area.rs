//! The free blocks of one order: two lists for each migrate type.
//!
//! A free block's memory is *backed* (it may hold pages of the machine) or *discarded* (it was given back to the system, and
//! its pages are backed anew, zero, when they are next touched). Blocks of both kinds are kept apart, so that the next block to
//! hand out and the next one to discard are each found at once.

use crate::frame::{FrameList, FrameTable, Kind, State};
use crate::gfp::MigrateType;
use crate::pfn::Pfn;

/// At which end of its list a free block is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Handed out soonest.
    Front,
    /// Handed out last: the block will probably merge soon.
    Back,
}

/// The free blocks of one order.
///
/// # Invariants
/// A frame says [`Kind::Free`] with this order, a type, and whether it is discarded, iff it is on that list (while the zone's
/// lock is free).
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

    /// Blocks of all types.
    pub(crate) fn len(&self) -> u32 {
        MigrateType::ALL.into_iter().map(|mobility| self.len_of(mobility)).sum()
    }
    /// Blocks of one type.
    pub(crate) fn len_of(&self, mobility: MigrateType) -> u32 {
        self.backed[mobility as usize].len() + self.discarded[mobility as usize].len()
    }
    /// The block that would be handed out next: a backed one if there is one, which costs no page fault.
    #[inline]
    pub(crate) fn front(&self, mobility: MigrateType) -> Option<Pfn> {
        self.backed[mobility as usize].front().or_else(|| self.discarded[mobility as usize].front())
    }
    /// The backed block that would be handed out last.
    pub(crate) fn last_backed(&self) -> Option<Pfn> {
        self.backed.iter().find_map(FrameList::back)
    }
    /// The first type besides `mobility` that has a block, best first.
    pub(crate) fn fallback(&self, mobility: MigrateType) -> Option<MigrateType> {
        mobility.fallbacks().into_iter().find(|other| self.len_of(*other) > 0)
    }
    /// The blocks of one type, in the order of their handing out.
    ///
    /// # Safety
    /// As for [`insert`](FreeArea::insert).
    pub(crate) unsafe fn blocks<'t>(
        &self,
        frames: &'t FrameTable,
        mobility: MigrateType,
    ) -> impl Iterator<Item = (Pfn, bool)> + use<'t> {
        let [backed, discarded] = [&self.backed, &self.discarded].map(|lists| {
            // SAFETY: the caller holds the lock.
            unsafe { lists[mobility as usize].iter(frames) }
        });
        backed.map(|pfn| (pfn, false)).chain(discarded.map(|pfn| (pfn, true)))
    }

    /// Puts a block on its list and says so in its frame.
    ///
    /// # Safety
    /// The caller holds the lock of the zone, whose frames' links therefore belong to it, and the block `pfn` of
    /// `state` belongs to the zone and is on no list.
    #[inline]
    pub(crate) unsafe fn insert(&mut self, frames: &FrameTable, pfn: Pfn, state: State, end: End) {
        debug_assert!(state.kind() == Kind::Free);
        frames.frame(pfn).set_state(state);
        let list = self.list(state);
        match end {
            // SAFETY: the caller holds the lock, and the block is on no list.
            End::Front => unsafe { list.push_front(frames, pfn) },
            // SAFETY: as above.
            End::Back => unsafe { list.push_back(frames, pfn) },
        }
    }
    /// Takes a block off its list. Its frame goes on saying that it is free until the caller says otherwise.
    ///
    /// # Safety
    /// The caller holds the lock of the zone, and the block is on the list of `state` here.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, frames: &FrameTable, pfn: Pfn, state: State) {
        // SAFETY: the caller holds the lock, and the block is on this list.
        unsafe { self.list(state).remove(frames, pfn) };
    }
}
