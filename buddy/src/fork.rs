//! Forking while other threads allocate pages: every lock is held meanwhile, so that the child finds all lists whole.
//!
//! What the other threads had in hand (a page on its way between a magazine and a zone) is lost to the child, as all that
//! they owned; [`check`](PageAllocator::check) there counts it.

use crate::allocator::{PageAllocator, Place};
use crate::per_cpu::{self, PageRound};
use crate::region::Reserved;
use crate::zone::Inner;
use uslab_magazine::sync::{Kept, MutexGuard};

/// The locks of a zone and of the magazines in front of it.
pub(crate) struct Locks<'p> {
    layers: [Option<uslab_magazine::Held<'p, PageRound, Reserved>>; per_cpu::MOST_LAYERS],
    _zone: MutexGuard<'p, Inner>,
}

impl Place {
    fn hold(&self) {
        // SAFETY: what borrows from it is given back by `release` before the borrow of `Held` ends, or never again touched.
        let this: &'static Self = unsafe { &*core::ptr::from_ref(self) };
        let mut layers = [const { None }; per_cpu::MOST_LAYERS];
        for (held, (_, layer)) in layers.iter_mut().zip(this.per_cpu.iter().flat_map(|own| own.layers())) {
            *held = Some(layer.hold());
        }
        let locks = Locks { layers, _zone: this.zone.lock() };
        // SAFETY: the zone's lock is held.
        unsafe { self.held.put(locks) };
    }

    fn release(&self, in_child: bool) {
        // SAFETY: `hold` took the zone's lock on this thread, and it is held yet.
        let Some(locks) = (unsafe { self.held.take() }) else { return };
        if in_child {
            locks.layers.into_iter().flatten().for_each(uslab_magazine::Held::in_child);
        }
    }
}

/// Room for the locks of a place.
pub(crate) type Room = Kept<Locks<'static>>;

/// Every lock of a page allocator. See [`PageAllocator::hold`].
#[must_use]
#[derive(Debug)]
pub struct Held<'p> {
    pages: &'p PageAllocator,
}

impl PageAllocator {
    /// Waits for every lock of the allocator. Whoever may `fork` while other threads use it holds this meanwhile, drops it in
    /// the parent and calls [`in_child`](Held::in_child) in the child, on the thread that called this. Allocates nothing.
    pub fn hold(&self) -> Held<'_> {
        self.places.iter().for_each(Place::hold);
        Held { pages: self }
    }
}

impl Held<'_> {
    /// To be called in the child, in place of dropping: nobody else runs, so whatever is claimed is nobody's.
    pub fn in_child(self) {
        self.pages.places.iter().for_each(|place| place.release(true));
        self.pages.counts.forks.add(1);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pages.places.iter().for_each(|place| place.release(false));
    }
}
