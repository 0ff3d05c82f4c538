//! A pool of values whose free slots are on a lock-free stack (Treiber 1986), and its checks.
//!
//! A thread that takes a slot owns the slot's value until it returns the slot. Between loading and exchanging
//! the head, another thread may take the loaded slot and return it on top of a different slot (the ABA
//! problem). The head therefore contains a tag, which each take increments.
//!
//! `checks.rs` has the models, the random schedules and the bug that they must find. Run in this folder:
//!
//! ```text
//! cargo test                                                                          # std, threads
//! RUSTFLAGS="--cfg loom" cargo test --profile loom --target-dir ../../target/loom        # every interleaving
//! RUSTFLAGS="--cfg shuttle" cargo test --profile loom --target-dir ../../target/shuttle  # random ones
//! ```

use uslab_sync::Ordering::{Acquire, Relaxed, Release};
use uslab_sync::{AtomicU32, AtomicU64, UnsafeCell, planted};

#[cfg(test)]
mod checks;

/// The end of the list, instead of a slot's number.
const NONE: u32 = u32::MAX;
/// The number one in the tag part of a head.
const TAG: u64 = 1 << 32;

/// A pool of values in slots, which any thread may use.
#[derive(Debug)]
pub struct Slots<T> {
    /// A tag in the high half, and the number of the first free slot in the low half.
    head: AtomicU64,
    slots: Box<[Slot<T>]>,
}

#[derive(Debug)]
struct Slot<T> {
    /// The number of the next free slot, while this slot is free.
    next: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a value is accessed only through its slot, which one thread owns at a time.
unsafe impl<T: Send> Sync for Slots<T> {}

/// A taken slot, which is returned when this value is dropped.
#[derive(Debug)]
pub struct TakenSlot<'a, T> {
    slots: &'a Slots<T>,
    number: u32,
}

impl<T> Slots<T> {
    /// Creates a slot for each of `values`, all free.
    pub fn new(values: impl IntoIterator<Item = T>) -> Self {
        let slot = |(number, value): (u32, T)| Slot {
            // Each points to the one before it.
            next: AtomicU32::new(number.checked_sub(1).unwrap_or(NONE)),
            value: UnsafeCell::new(value),
        };
        let slots: Box<[_]> = (0..NONE).zip(values).map(slot).collect();
        let first = (slots.len() as u32).checked_sub(1).unwrap_or(NONE);
        Self { head: AtomicU64::new(first.into()), slots }
    }

    /// Takes a free slot; returns `None` if none is free.
    pub fn take(&self) -> Option<TakenSlot<'_, T>> {
        // Acquire: pairs with the Release in `give`, so that `next` and the value are those that were written there.
        let mut head = self.head.load(Acquire);
        loop {
            let number = head as u32;
            let slot = self.slots.get(number as usize)?;
            // Relaxed: ordered by the head. If the slot was reused since, the head's tag has changed, and the exchange fails.
            let next = slot.next.load(Relaxed);
            let tagged = head.wrapping_add(TAG);
            planted!("a take leaves the tag as it is" => let tagged = head);
            let new = tagged & !u64::from(NONE) | u64::from(next);
            // Relaxed: the head was read with Acquire. Acquire on failure: pairs with the Release in `give`, for the head found.
            match self.head.compare_exchange_weak(head, new, Relaxed, Acquire) {
                Ok(_) => return Some(TakenSlot { slots: self, number }),
                Err(found) => head = found,
            }
        }
    }

    fn give(&self, number: u32) {
        // Relaxed: the head is only stored as the next slot.
        let mut head = self.head.load(Relaxed);
        loop {
            self.slots[number as usize].next.store(head as u32, Relaxed);
            let new = head & !u64::from(NONE) | u64::from(number);
            // Release: pairs with the Acquire in `take`, so that the next owner sees `next` and the value.
            match self.head.compare_exchange_weak(head, new, Release, Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }
}

impl<T> TakenSlot<'_, T> {
    /// The number of the slot.
    pub fn number(&self) -> usize {
        self.number as usize
    }
    /// Runs `f` on the slot's value.
    pub fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the thread that took the slot owns the value; `&mut self` keeps it to one borrow at a time.
        self.slots.slots[self.number()].value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

impl<T> Drop for TakenSlot<'_, T> {
    fn drop(&mut self) {
        self.slots.give(self.number);
    }
}
