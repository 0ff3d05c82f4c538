//! The free blocks of one order: a list for each migrate type.

use crate::frame::{FrameList, FrameTable, Kind, State};
use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};

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
/// A frame says [`Kind::Free`] with this order and a type iff it is on that type's list (while the zone's lock is
/// free).
#[derive(Debug, Default)]
pub(crate) struct FreeArea {
    lists: [FrameList; MigrateType::COUNT],
}

impl FreeArea {
    /// Blocks of all types.
    pub(crate) fn len(&self) -> u32 {
        self.lists.iter().map(FrameList::len).sum()
    }
    /// Blocks of one type.
    pub(crate) fn len_of(&self, mobility: MigrateType) -> u32 {
        self.lists[mobility as usize].len()
    }
    /// The block that would be handed out next.
    #[inline]
    pub(crate) fn front(&self, mobility: MigrateType) -> Option<Pfn> {
        self.lists[mobility as usize].front()
    }
    /// The first type besides `mobility` that has a block, best first.
    pub(crate) fn fallback(&self, mobility: MigrateType) -> Option<MigrateType> {
        mobility.fallbacks().into_iter().find(|other| !self.lists[*other as usize].is_empty())
    }
    /// The blocks of one type, in the order of their handing out.
    ///
    /// # Safety
    /// As for [`insert`](FreeArea::insert).
    pub(crate) unsafe fn blocks<'t>(
        &self,
        frames: &'t FrameTable,
        mobility: MigrateType,
    ) -> impl Iterator<Item = Pfn> + use<'t> {
        // SAFETY: the caller holds the lock.
        unsafe { self.lists[mobility as usize].iter(frames) }
    }

    /// Puts a block on its list and says so in its frame.
    ///
    /// # Safety
    /// The caller holds the lock of the zone, whose frames' links therefore belong to it, and the block `pfn` of
    /// `order` belongs to the zone and is on no list.
    #[inline]
    pub(crate) unsafe fn insert(
        &mut self,
        frames: &FrameTable,
        pfn: Pfn,
        order: Order,
        mobility: MigrateType,
        end: End,
    ) {
        frames.frame(pfn).set_state(State::new(Kind::Free, order, mobility));
        let list = &mut self.lists[mobility as usize];
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
    /// The caller holds the lock of the zone, and the block is on the list of `mobility` here.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, frames: &FrameTable, pfn: Pfn, mobility: MigrateType) {
        // SAFETY: the caller holds the lock, and the block is on this list.
        unsafe { self.lists[mobility as usize].remove(frames, pfn) };
    }
}
