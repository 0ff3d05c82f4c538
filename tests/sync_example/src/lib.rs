//! A pool of values whose free slots form a lock-free stack (Treiber 1986), and the checks of the pool.
//!
//! A thread that has taken a slot owns the value in the slot until it returns the slot. Between the load and the
//! exchange of the head, another thread may take the first slot and return it on top of a different one (the ABA
//! problem). The head therefore contains a tag, and each take increments the tag.
//!
//! The file `checks.rs` contains the models, the random schedules and the planted bug that they must find. To run the
//! checks, use these commands in this folder:
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

/// Marks the end of the list, in place of a slot number.
const NONE: u32 = u32::MAX;
/// An increment of the tag in a head.
const TAG: u64 = 1 << 32;

/// A pool of values in slots, which any thread can use.
#[derive(Debug)]
pub struct Slots<T> {
    /// The tag in the high half, and the number of the first free slot in the low half.
    head: AtomicU64,
    slots: Box<[Slot<T>]>,
}

#[derive(Debug)]
struct Slot<T> {
    /// While this slot is free, the number of the next free slot.
    next: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a value is accessed only through its slot, which one thread owns at a time.
unsafe impl<T: Send> Sync for Slots<T> {}

/// A slot that a thread has taken; dropping this value returns the slot.
#[derive(Debug)]
pub struct TakenSlot<'a, T> {
    slots: &'a Slots<T>,
    number: u32,
}

impl<T> Slots<T> {
    /// Creates one slot for each of `values`; all slots are free.
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

    /// Takes a free slot; returns `None` if no slot is free.
    pub fn take(&self) -> Option<TakenSlot<'_, T>> {
        // Acquire: pairs with the Release in `give`, so that `next` and the value are those that were written there.
        let mut head = self.head.load(Acquire);
        loop {
            let number = head as u32;
            let slot = self.slots.get(number as usize)?;
            // Relaxed: ordered by the head. If the slot was reused since, the head's tag has changed, and the exchange
            // fails.
            let next = slot.next.load(Relaxed);
            let tagged = head.wrapping_add(TAG);
            planted!("a take leaves the tag as it is" => let tagged = head);
            let new = tagged & !u64::from(NONE) | u64::from(next);
            // Relaxed: the head was read with Acquire. Acquire on failure: pairs with the Release in `give`, for the
            // head found.
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
    /// The number of the taken slot.
    pub fn number(&self) -> usize {
        self.number as usize
    }
    /// Calls `f` with the value of the slot.
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
