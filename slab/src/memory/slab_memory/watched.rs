//! Object ownership in models: each object has a cell that the model checker watches.

use super::SlabMemory;
use crate::geometry::SPACING;
use core::ptr::NonNull;
use uslab_buddy::{PAGE_SIZE, Pfn};
#[cfg(loom)]
use uslab_magazine::sync::story::name;
use uslab_magazine::sync::{Counter, UnsafeCell, tell};

#[derive(Debug, Default)]
struct Owner {
    out: Counter,
    race: UnsafeCell<()>,
}

// SAFETY: the cell has no data, and exists only for loom to watch its accesses.
unsafe impl Sync for Owner {}

impl Owner {
    #[track_caller]
    fn set(&self, is_allocated: bool, _object: NonNull<u8>) {
        tell!("{} {}", if is_allocated { "hands out" } else { "frees" }, name(_object));
        // Asserts ownership first, whatever the memory ordering; the access to the cell then detects a missing
        // ordering.
        let text = if is_allocated { "object allocated twice" } else { "object freed twice" };
        assert!(self.out.get() != u64::from(is_allocated), "{text}");
        self.race.with_mut(|_| ());
        self.out.set(u64::from(is_allocated));
    }
}

#[derive(Debug)]
pub(super) struct Owners(Box<[Owner]>);

impl Owners {
    pub(super) fn new(pages: u32) -> Self {
        Self((0..pages as usize * (PAGE_SIZE / SPACING)).map(|_| Owner::default()).collect())
    }
    #[track_caller]
    pub(super) fn hand_out(&self, memory: &SlabMemory, object: NonNull<u8>) {
        self.owner_of(memory, object).set(true, object);
    }
    #[track_caller]
    pub(super) fn take_back(&self, memory: &SlabMemory, object: NonNull<u8>) {
        self.owner_of(memory, object).set(false, object);
    }
    /// Reports that the contents of these pages are lost. No object on the pages is in use, and no other thread
    /// allocates one of these objects concurrently.
    pub(super) fn discard(&self, first: Pfn, pages: u32) {
        tell!("discards {pages} pages from page {first}");
        let objects_per_page = PAGE_SIZE / SPACING;
        for owner in &self.0[first.get() as usize * objects_per_page..][..pages as usize * objects_per_page] {
            owner.race.with_mut(|_| ());
            assert!(owner.out.get() == 0, "memory of an object in use was discarded");
        }
    }
    fn owner_of(&self, memory: &SlabMemory, object: NonNull<u8>) -> &Owner {
        let base = memory.pages.address(Pfn::new(0)).addr().get();
        &self.0[(object.addr().get() - base) / SPACING]
    }
}
