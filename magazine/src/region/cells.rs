//! A region of constructed cells that a checker can watch. Zeroed memory cannot contain a checker's atomics.

use super::*;
use crate::sync::Counter;
use crate::sync::Ordering::Release;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// Number of classes in a checker's region, which is enough for models.
pub(crate) const CLASSES: u32 = 4;
/// Size of a page, and of the space for a class, in bytes.
pub(crate) const PAGE: usize = 64;
/// Offsets of words that are not objects. A checker's region has separate cells for the words that are not
/// objects.
pub(crate) const SEEN_OFFSET: usize = 0;
pub(crate) const NULL: usize = 0;
pub(crate) const STACKS: usize = 0;

#[derive(Debug)]
pub(crate) struct Cells {
    /// The region's CPU, for the trace. The empty region's CPU number is one more than the last CPU's number.
    cpu: u32,
    claim: AtomicU32,
    committed: Counter,
    /// In the model of restartable sequences, the thread that runs on the CPU holds this mutex.
    pub(crate) token: crate::sync::Mutex<()>,
    classes: Vec<ClassCells>,
    places: Vec<UnsafeCell<*mut u8>>,
    backed: UnsafeCell<Pages>,
    unwritable_pages: UnsafeCell<Pages>,
}
#[derive(Debug)]
struct ClassCells {
    head: AtomicU64,
    /// A cell written with each store of the head, so that the checker reports two unordered writers as a race.
    writer: UnsafeCell<()>,
    /// 1 if the head was ever stored, else 0.
    used: Counter,
    cap: UnsafeCell<u32>,
    limit: AtomicU32,
    seen: UnsafeCell<u64>,
    taken: AtomicU64,
    served: AtomicU64,
}
impl Cells {
    /// Creates the region of `cpu`, with `words` words for stacks. Every class starts with `cap` places.
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
    /// Zeroes the classes whose stacks begin on `pages`, as the system does with decommitted pages. Words that are
    /// already null are skipped.
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

    /// The stacks that were ever used, for a counterexample trace.
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

    /// Records a writer of a class, so that the checker reports two unordered writers as a race.
    pub(super) fn is_written(&self, class: Class) {
        self.class(class).writer.with_mut(|_| self.class(class).used.set(1));
    }
    /// Asserts that the region is committed up to `end`.
    pub(super) fn writable(&self, end: usize) {
        assert!(self.committed() >= end, "a region that is not committed was written");
    }
}
