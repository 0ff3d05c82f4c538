//! A region of constructed cells, which a checker can watch: zeroed memory cannot contain its atomics.

use super::*;
use crate::sync::Counter;
use crate::sync::Ordering::Release;
use crate::sync::{AtomicU32, AtomicU64, UnsafeCell};

/// Number of classes, as in a region in memory; models need no more.
pub(crate) const CLASSES: u32 = 4;
/// Bytes of a page: the size of a class's room.
pub(crate) const PAGE: usize = 64;
/// Offsets of words that are not rounds; these have separate cells here.
pub(crate) const SEEN: usize = 0;
pub(crate) const NULL: usize = 0;
pub(crate) const STACKS: usize = 0;

#[derive(Debug)]
pub(crate) struct Cells {
    /// The region's CPU, for the trace; the empty region has the number behind the last CPU.
    cpu: u32,
    claim: AtomicU32,
    committed: Counter,
    /// Held by the thread that runs on the CPU, in the model of restartable sequences.
    pub(crate) token: crate::sync::Mutex<()>,
    classes: Vec<ClassCells>,
    places: Vec<UnsafeCell<*mut u8>>,
    backed: UnsafeCell<Pages>,
    going: UnsafeCell<Pages>,
}
#[derive(Debug)]
struct ClassCells {
    head: AtomicU64,
    /// Written with each store of the head: two unordered writers are a race.
    writer: UnsafeCell<()>,
    /// 1 if the head was ever stored.
    used: Counter,
    cap: UnsafeCell<u32>,
    limit: AtomicU32,
    seen: UnsafeCell<u64>,
    taken: AtomicU64,
    served: AtomicU64,
}
impl Cells {
    /// Creates the region of `cpu`, with `words` words of stacks. Every class has `cap` places.
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
            going: UnsafeCell::default(),
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
    pub(super) fn going_cell(&self) -> &'t UnsafeCell<Pages> {
        &self.0.going
    }
    /// Zeroes the classes whose stacks begin on these pages, as the system does with returned pages. Null
    /// words are skipped.
    pub(crate) fn zero(&self, pages: core::ops::Range<usize>, classes: impl Iterator<Item = Class>) {
        for class in classes {
            self.class(class).writer.with_mut(|_| ());
            // Release: the system call follows all earlier writes; pairs with the Acquire of the head in
            // `served`.
            self.head_word(class).store(0, Release);
            self.set_seen(class, 0);
        }
        for page in pages {
            for place in &self.0.places[page * PAGE / ROUND..(page + 1) * PAGE / ROUND][1..] {
                // SAFETY: the checker reports any racing access.
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
            let (head, taken) = (class.head.peek(), class.taken.peek() & LEN);
            let shown =
                if taken > 0 { format!("{}, {taken} taken", head & LEN) } else { (head & LEN).to_string() };
            (class.used.get() > 0).then(|| (format!("CPU {} stack {index}", self.0.cpu), shown))
        };
        let parts = self.0.classes.iter().enumerate().filter_map(stack).collect();
        crate::sync::story::Watched { id: core::ptr::from_ref(self.0).addr(), parts }
    }

    /// Makes two unordered writers of a class a race.
    pub(super) fn is_written(&self, class: Class) {
        self.class(class).writer.with_mut(|_| self.class(class).used.set(1));
    }
    /// Asserts that the region is committed up to `end`.
    pub(super) fn writable(&self, end: usize) {
        assert!(self.committed() >= end, "a region that is not committed was written");
    }
}
