//! The frame table for loom and shuttle: frames on the heap, with checks of page ownership.

use super::{Frame, Link, OwnerData, State};
use crate::pfn::Pfn;
use crate::region::Reservation;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, Counter, Fixed, UnsafeCell};

/// The frames of a model. All frames of a model are writable from the start, and count as one OS page.
#[derive(Debug)]
pub(super) struct Memory(Box<[Frame]>);

impl Memory {
    pub(super) fn new(len: u32, _: Option<usize>, _: &mut Reservation) -> Option<Self> {
        Some(Self((0..len).map(|_| Frame::new()).collect()))
    }
    pub(super) fn first(&self) -> NonNull<Frame> {
        NonNull::from(&*self.0).cast()
    }
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
    pub(super) fn commit(&self, _: Range<u32>) -> bool {
        true
    }
    /// # Safety
    /// All frames of `pages` must be [`Kind::Inside`](super::Kind::Inside), and no thread may access any other field of
    /// these frames.
    pub(super) unsafe fn discard(&self, pages: Range<u32>) {
        pages.for_each(|page| self.0[page as usize].discard());
    }
    pub(super) fn grow(&self, _len: u32) -> bool {
        false
    }
    /// # Safety
    /// During the call, no thread may read a frame whose index is `_len` or higher.
    pub(super) unsafe fn cut(&self, _len: u32) {}
}

impl Frame {
    fn new() -> Self {
        Self {
            link: UnsafeCell::new(Link::default()),
            state: AtomicU32::new(0),
            head: Fixed::new(0),
            owner: AtomicPtr::new(null_mut()),
            data: UnsafeCell::new(OwnerData::default()),
            life: PageLife { out: Counter::new(0), race: UnsafeCell::new(()) },
        }
    }

    /// Resets all fields of the frame to zero.
    fn discard(&self) {
        self.set_state(State::INSIDE_BLOCK);
        self.set_head(Pfn::new(0));
        // SAFETY: no thread uses the frame, by the contract of the table's `discard`. The checker reports any
        // concurrent use.
        unsafe {
            self.set_link(Link::default());
            self.set_owner(core::ptr::null_mut());
            self.data.with_mut(|data| *data = [0; 5]);
        }
    }
}

/// True while the page is allocated.
#[derive(Debug)]
pub(super) struct PageLife {
    out: Counter,
    /// A cell for race detection: every touch reads it, and every allocation and free writes it, so that loom reports
    /// unordered accesses.
    race: UnsafeCell<()>,
}

impl PageLife {
    #[track_caller]
    pub(super) fn touch(&self) {
        self.race.with(|_| ());
        assert_eq!(self.out.get(), 1, "a freed page was touched");
    }
    #[track_caller]
    pub(super) fn set(&self, out: bool) {
        self.race.with_mut(|_| ());
        let text = if out { "page allocated twice" } else { "page freed twice" };
        assert_ne!(self.out.get(), u64::from(out), "{text}");
        self.out.set(u64::from(out));
    }
    #[track_caller]
    pub(super) fn discard(&self) {
        // Lets another thread run, because shuttle would not switch between a lock and this access.
        #[cfg(shuttle)]
        uslab_magazine::sync::thread::yield_now();
        self.race.with_mut(|_| ());
        assert_eq!(self.out.get(), 0, "the memory of a page in use was decommitted");
    }
}
