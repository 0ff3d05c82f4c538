//! A generation that is counted in more bits than a handle has, worked out.
//!
//! The listing in the tutorial "Memory Allocators from Scratch" counts a slot's lives in 32 bits and packs 8 of them into a
//! handle. Its text says that after 256 frees a stale handle is mistaken for a new one. That is wrong: the slot's count is then
//! 256, a new handle has 0, and *every* handle of the slot is stale from the start, for ever. The text would be right if the
//! slot counted in 8 bits, too. A slot that retires does neither.

use super::{HandleTable, WrapPolicy};

/// One slot of the listing; its handles have index 0, so they only differ in the generation.
#[derive(Default)]
struct Counted {
    generation: u32,
    alive: bool,
    /// Bits in which the slot counts.
    bits: u32,
}

impl Counted {
    fn of_bits(bits: u32) -> Self {
        Self { bits, ..Self::default() }
    }
    /// The 32 bits of a handle: the index, 0, in the low 24, and the rest of the generation above.
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
fn slot_with_wider_generation_than_handles_dies_after_256_frees() {
    let mut slot = Counted::of_bits(32);
    let first = slot.spawn();
    assert!(slot.free(first));
    for _ in 1..256 {
        let handle = slot.spawn();
        assert!(slot.is_valid(handle) && !slot.is_valid(first));
        assert!(slot.free(handle));
    }
    assert_eq!(slot.generation, 256);
    // In use, and unreachable: it is lost, and the old handle is *not* mistaken for the new one.
    for _ in 0..1000 {
        let handle = slot.spawn();
        assert_eq!(handle, first, "the same bits");
        assert!(slot.alive && !slot.is_valid(handle) && !slot.is_valid(first));
        assert!(!slot.free(handle));
    }
}

#[test]
fn eight_bit_generation_accepts_a_handle_256_frees_old() {
    let mut slot = Counted::of_bits(8);
    let first = slot.spawn();
    for _ in 0..256 {
        let handle = slot.spawn();
        assert!(slot.free(handle));
    }
    slot.spawn();
    assert!(slot.is_valid(first));
}

#[test]
fn table_that_retires_slots_accepts_no_old_handle() {
    let mut table = HandleTable::<u32, u32, 8>::new();
    let first = table.alloc(0).unwrap();
    table.free(first);
    for life in 1..1000 {
        let handle = table.alloc(life).unwrap();
        assert_eq!(
            (table.get(handle), table.get(first)),
            (Some(&life), None),
            "fresh handles are valid, old ones never"
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
