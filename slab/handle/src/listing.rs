//! Tests what happens if a slot counts its generation in more bits than a handle has.
//!
//! In the tutorial "Memory Allocators from Scratch", a slot counts its lives in 32 bits, and a handle holds only 8 of
//! these bits. The tutorial says that after 256 frees a stale handle is mistaken for a new one. The tutorial is wrong:
//! after 256 frees, the slot's count is 256 and a new handle has generation 0, so *every* handle of the slot is stale
//! from the start. The claim would be true if the slot also counted in 8 bits. A retired slot is neither lost while in
//! use nor reached by a stale handle.

use super::{HandleTable, WrapPolicy};

/// One slot of the tutorial's listing. All handles of the slot have index 0, and differ only in the generation.
#[derive(Default)]
struct GenerationSlot {
    generation: u32,
    alive: bool,
    bits: u32,
}

impl GenerationSlot {
    fn from_handle_bits(bits: u32) -> Self {
        Self { bits, ..Self::default() }
    }
    /// Returns the 32 bits of a handle: index 0 in the low 24 bits, and the generation's low 8 bits above them.
    fn spawn(&mut self) -> u32 {
        self.alive = true;
        self.generation << 24
    }
    fn is_valid(&self, handle: u32) -> bool {
        self.alive && self.generation == handle >> 24
    }
    fn free(&mut self, handle: u32) -> bool {
        let valid = self.is_valid(handle);
        if valid {
            self.alive = false;
            self.generation = self.generation.wrapping_add(1) & (u32::MAX >> (32 - self.bits));
        }
        valid
    }
}

#[test]
fn slot_with_32_bit_handles_is_lost_after_256_frees() {
    let mut slot = GenerationSlot::from_handle_bits(32);
    let first = slot.spawn();
    assert!(slot.free(first));
    for _ in 1..256 {
        let handle = slot.spawn();
        assert!(slot.is_valid(handle) && !slot.is_valid(first));
        assert!(slot.free(handle));
    }
    assert_eq!(slot.generation, 256);
    // The slot is in use, unreachable and thus lost. The old handle is *not* mistaken for the new handle of the slot.
    for _ in 0..1000 {
        let handle = slot.spawn();
        assert_eq!(handle, first, "the handles must have equal bits");
        assert!(slot.alive && !slot.is_valid(handle) && !slot.is_valid(first));
        assert!(!slot.free(handle));
    }
}

#[test]
fn eight_bit_generation_revives_a_handle_after_256_frees() {
    let mut slot = GenerationSlot::from_handle_bits(8);
    let first = slot.spawn();
    for _ in 0..256 {
        let handle = slot.spawn();
        assert!(slot.free(handle));
    }
    slot.spawn();
    assert!(slot.is_valid(first));
}

#[test]
fn retiring_table_rejects_every_old_handle() {
    let mut table = HandleTable::<u32, u32, 8>::new();
    let first = table.alloc(0).unwrap();
    table.free(first);
    for life in 1..1000 {
        let handle = table.alloc(life).unwrap();
        assert_eq!(
            (table.get(handle), table.get(first)),
            (Some(&life), None),
            "new handles are valid, and old ones are not"
        );
        assert_eq!(table.free(handle), Some(life));
    }
    assert_eq!(table.retired(), 3);
    // A table that wraps has 255 lives, because no handle has generation 0.
    let mut table = HandleTable::<u32, u32, 8>::with(WrapPolicy::Wrap);
    let lives: Vec<_> = (0..256)
        .map(|life| {
            let handle = table.alloc(life).unwrap();
            table.free(handle);
            handle
        })
        .collect();
    assert_eq!(lives[0], lives[255]);
    assert!(lives[1..255].iter().all(|handle| *handle != lives[0]));
}
