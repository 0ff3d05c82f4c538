//! The code that all pools share: adjacent slots of one size, in an arena that the slots own.

use super::allocator::{Allocator, Holes};
use super::linear::Linear;
use super::memory::{ConfigError, Memory, MemoryPiece};
use core::alloc::Layout;
use core::ops::Range;

/// Slots of one size, which are opened (used for the first time) one after the other.
#[derive(Debug)]
pub(super) struct Slots {
    arena: Linear,
    /// The size of a slot, and the distance between the starts of adjacent slots, in bytes.
    size: usize,
    stride: usize,
    align: usize,
    opened_slots: usize,
}

/// The result of inspecting all slots that were ever used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The number of inspected slots.
    pub checked: usize,
    /// The number of slots in use.
    pub active: usize,
    /// The number of slots up to the highest slot in use; a loop over the objects must inspect all of them.
    pub span: usize,
}

impl Slots {
    /// Creates slots with the layout `slot` in an unused arena; each slot is followed by `trailing_bytes` bytes that
    /// the pool uses. The slots use only the first page of an arena that grows.
    ///
    /// # Errors
    /// Fails if a slot has no bytes, fewer than `min_size`, or an alignment above [`Memory::ALIGN`]. Also fails if the
    /// arena is already in use or too small for a slot.
    pub(super) fn new(
        arena: Linear,
        slot: Layout,
        min_size: usize,
        trailing_bytes: usize,
    ) -> Result<Self, ConfigError> {
        if slot.size() < min_size.max(1) {
            return Err(ConfigError::new(
                "a slot of",
                slot.size(),
                format!("{} bytes or more", min_size.max(1)),
            ));
        }
        if !Memory::aligns(slot) {
            return Err(ConfigError::new(
                "slots aligned to",
                slot.align(),
                format!("{} or less", Memory::ALIGN),
            ));
        }
        if arena.used() > 0 {
            return Err(ConfigError::new("an arena used up to byte", arena.used(), "an empty arena"));
        }
        let capacity = arena.memory().len();
        let stride = (slot.size().saturating_add(trailing_bytes)).checked_next_multiple_of(slot.align());
        match stride.filter(|stride| *stride <= capacity) {
            Some(stride) => {
                Ok(Self { arena, size: slot.size(), stride, align: slot.align(), opened_slots: 0 })
            }
            None => Err(ConfigError::new(
                "an arena of",
                capacity,
                format!("room for a slot of {} bytes", slot.size()),
            )),
        }
    }

    /// Returns the number of slots that fit into the arena.
    pub(super) fn count(&self) -> usize {
        self.capacity() / self.stride
    }
    /// Returns the number of slots opened so far.
    pub(super) fn opened_slots(&self) -> usize {
        self.opened_slots
    }
    /// Returns `true` if a slot is large enough for `layout`.
    pub(super) fn serves(&self, layout: Layout) -> bool {
        layout.size() <= self.size && layout.align() <= self.align
    }
    pub(super) fn capacity(&self) -> usize {
        self.memory().len()
    }
    pub(super) fn memory(&self) -> &Memory {
        self.arena.memory()
    }
    pub(super) fn memory_mut(&mut self) -> &mut Memory {
        self.arena.memory_mut()
    }

    /// Opens the next slot and returns its number, or `None` if all slots have been opened.
    pub(super) fn open(&mut self) -> Option<usize> {
        if self.opened_slots == self.count() {
            return None;
        }
        let stride = Layout::from_size_align(self.stride, self.align).ok()?;
        let block = self.arena.allocate(stride)?;
        let slot = self.opened_slots;
        assert_eq!(
            self.arena.range(&block).start,
            self.slot_offset(slot),
            "another allocator uses the pool's arena"
        );
        self.opened_slots += 1;
        Some(slot)
    }

    /// Returns the offset of a slot.
    pub(super) fn slot_offset(&self, slot: usize) -> usize {
        slot * self.stride
    }
    /// Returns the offset of the trailing bytes that follow a slot.
    pub(super) fn end_of_slot(&self, slot: usize) -> usize {
        self.slot_offset(slot) + self.size
    }
    pub(super) fn piece(&self, slot: usize, layout: Layout) -> MemoryPiece {
        self.memory().piece(self.slot_offset(slot), layout.size())
    }
    pub(super) fn slot_of_piece(&self, piece: &MemoryPiece) -> usize {
        self.memory().checked_offset(piece) / self.stride
    }
    pub(super) fn range(&self, piece: &MemoryPiece) -> Range<usize> {
        piece.at()..piece.at() + self.size
    }
    /// Returns `free` free slots as free pieces; some of them may never have been used.
    pub(super) fn holes(&self, free: usize) -> Holes {
        let mut holes = Holes::default();
        holes.add_pieces(free, self.size);
        holes
    }

    // ---- pools with a flag after each slot ----

    pub(super) fn is_active(&self, slot: usize) -> bool {
        let offset = self.end_of_slot(slot);
        self.memory().slice(offset..offset + 1) == [1]
    }
    pub(super) fn set_active(&mut self, slot: usize, active: bool) {
        let offset = self.end_of_slot(slot);
        self.memory_mut().touch(1);
        self.memory_mut().slice_mut(offset..offset + 1).fill(u8::from(active));
    }
    /// Inspects the flag of every slot that was ever used, as a loop over the pool's objects does.
    pub(super) fn walk(&self) -> Walk {
        let mut walk = Walk { checked: self.opened_slots, ..Walk::default() };
        for slot in (0..self.opened_slots).filter(|slot| self.is_active(*slot)) {
            walk.active += 1;
            walk.span = slot + 1;
        }
        walk
    }
}
