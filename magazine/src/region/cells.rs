//! A region for loom and shuttle, which consists of separate cells. A model's region cannot be zeroed memory, because
//! the atomics of loom and shuttle must be constructed.

use super::*;
use crate::sync::Counter;
use crate::sync::Ordering::Release;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// Number of classes in a region of a model; class number 0 is unused.
pub(crate) const CLASSES: u32 = 4;
/// Size in bytes of a page, and of the space for one class.
pub(crate) const PAGE: usize = 64;
/// The offsets of a stack's control words are all 0. A model's region stores the control words in separate cells.
pub(crate) const SEEN_OFFSET: usize = 0;
pub(crate) const NULL: usize = 0;
pub(crate) const STACKS: usize = 0;

#[derive(Debug)]
pub(crate) struct Cells {
    /// The number of the region's CPU, for counterexample traces. The number of the empty region is one more than the
    /// last CPU's number.
    cpu: u32,
    claim: AtomicU32,
    committed: Counter,
    /// The CPU's token. In the model of restartable sequences, a thread that runs on the CPU holds this mutex.
    pub(crate) token: crate::sync::Mutex<()>,
    classes: Vec<ClassCells>,
    places: Vec<UnsafeCell<*mut u8>>,
    backed: UnsafeCell<Pages>,
    unwritable_pages: UnsafeCell<Pages>,
}
#[derive(Debug)]
struct ClassCells {
    head: AtomicU64,
    /// A cell for race detection. Each store to the head also writes this cell, so that two unordered writers are
    /// reported as a race.
    writer: UnsafeCell<()>,
    /// Is 1 if the head was ever written, and 0 otherwise.
    used: Counter,
    cap: UnsafeCell<u32>,
    limit: AtomicU32,
    seen: UnsafeCell<u64>,
    taken: AtomicU64,
    served: AtomicU64,
}
impl Cells {
    /// Creates the region of `cpu`, with `words` entries for all stacks together. The initial capacity of each stack is
    /// `cap`.
    pub(crate) fn new(cpu: u32, words: usize, cap: u32) -> Self {
        let class = |_| ClassCells {
            head: AtomicU64::new(0),
            writer: UnsafeCell::new(()),
            used: Counter::new(0),
            cap: UnsafeCell::new(cap),
            limit: AtomicU32::new(0),
            seen: UnsafeCell::new(0),
            taken: AtomicU64::new(0),
            served: AtomicU64::new(0),
        };
        Self {
            cpu,
            claim: AtomicU32::new(0),
            committed: Counter::new(0),
            token: crate::sync::Mutex::ranked(crate::sync::Rank::Token, ()),
            classes: (0..CLASSES).map(class).collect(),
            places: (0..words).map(|_| UnsafeCell::new(core::ptr::null_mut())).collect(),
            backed: UnsafeCell::default(),
            unwritable_pages: UnsafeCell::default(),
        }
    }
}
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region<'t>(pub(crate) &'t Cells);
impl<'t> Region<'t> {
    fn class(&self, class: Class) -> &'t ClassCells {
        &self.0.classes[class.index as usize]
    }
    pub(super) fn head_word(&self, class: Class) -> &'t AtomicU64 {
        &self.class(class).head
    }
    pub(super) fn cap_cell(&self, class: Class) -> &'t UnsafeCell<u32> {
        &self.class(class).cap
    }
    pub(super) fn limit_word(&self, class: Class) -> &'t AtomicU32 {
        &self.class(class).limit
    }
    pub(super) fn seen_cell(&self, class: Class) -> &'t UnsafeCell<u64> {
        &self.class(class).seen
    }
    pub(super) fn taken_word(&self, class: Class) -> &'t AtomicU64 {
        &self.class(class).taken
    }
    pub(super) fn served_word(&self, class: Class) -> &'t AtomicU64 {
        &self.class(class).served
    }
    pub(super) fn backed_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.0.backed
    }
    pub(super) fn unwritable_pages_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.0.unwritable_pages
    }
    /// Zeroes the stacks that begin on `pages`, as the OS does with decommitted pages. Entries that are already null
    /// are not written.
    pub(crate) fn zero(&self, pages: core::ops::Range<usize>, classes: impl Iterator<Item = Class>) {
        for class in classes {
            self.class(class).writer.with_mut(|_| ());
            // Release: pairs with the Acquire of the head in `served`. The system call of a real decommit follows all
            // earlier writes.
            self.head_word(class).store(0, Release);
            self.set_recorded_head(class, 0);
        }
        for page in pages {
            for place in &self.0.places[page * PAGE / ROUND..(page + 1) * PAGE / ROUND][1..] {
                // SAFETY: the checker reports any racing access of the place.
                place.with_mut(|p| unsafe { *p = core::ptr::null_mut() });
            }
        }
    }
    pub(super) fn place(&self, class: Class, i: u32) -> &'t UnsafeCell<*mut u8> {
        &self.0.places[class.stack as usize / ROUND + i as usize]
    }
    pub(crate) fn claim(&self) -> &'t AtomicU32 {
        &self.0.claim
    }
    pub(crate) fn committed(&self) -> usize {
        self.0.committed.get() as usize
    }
    pub(crate) fn set_committed(&self, bytes: usize) {
        self.0.committed.set(bytes as u64);
    }

    /// Returns the stacks that were ever used, to print in a counterexample trace.
    #[cfg(loom)]
    pub(super) fn watched(&self) -> crate::sync::story::Watched {
        let stack = |(index, class): (usize, &ClassCells)| {
            let (len, taken) = (class.head.peek() & LEN_MASK, class.taken.peek() & LEN_MASK);
            let shown = if taken > 0 { format!("{len}, {taken} taken") } else { len.to_string() };
            (class.used.get() > 0).then(|| (format!("CPU {} stack {index}", self.0.cpu), shown))
        };
        let parts = self.0.classes.iter().enumerate().filter_map(stack).collect();
        crate::sync::story::Watched { id: core::ptr::from_ref(self.0).addr(), parts }
    }

    /// Records a write to the class's stack, so that two unordered writers are reported as a race.
    pub(super) fn is_written(&self, class: Class) {
        self.class(class).writer.with_mut(|_| self.class(class).used.set(1));
    }
    /// Asserts that the first `end` bytes of the region are committed.
    pub(super) fn writable(&self, end: usize) {
        assert!(self.committed() >= end, "a region that is not committed was written");
    }
}
