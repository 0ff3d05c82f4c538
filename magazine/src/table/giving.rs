//! Drains of the current thread that are giving rounds away. User code runs then, and may fork: the child
//! finds its own drains here.

use crate::region::{CLASSES, Class};
use crate::sync::thread_local;
use core::cell::Cell;

/// A drain of this thread.
pub(super) struct Giving {
    /// The table's address.
    table: usize,
    number: u64,
    /// A bit for each class that is closed for this drain.
    classes: [Cell<u64>; CLASSES.div_ceil(64) as usize],
    before: *const Self,
}
thread_local! {
    /// The innermost drain of the thread.
    static GIVING: Cell<*const Giving> = const { Cell::new(core::ptr::null()) };
}

impl Giving {
    pub(super) fn new(table: usize, number: u64, classes: impl Iterator<Item = Class>) -> Self {
        let new =
            Self { table, number, classes: [const { Cell::new(0) }; _], before: GIVING.with(Cell::get) };
        classes.for_each(|class| new.bits(class).update(|bits| bits | Self::bit(class)));
        new
    }
    fn bits(&self, class: Class) -> &Cell<u64> {
        &self.classes[class.index as usize / 64]
    }
    fn bit(class: Class) -> u64 {
        1 << (class.index % 64)
    }
    /// Runs `f`, which gives the rounds away.
    pub(super) fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        GIVING.with(|giving| giving.set(self));
        let done = f();
        GIVING.with(|giving| giving.set(self.before));
        done
    }
    pub(super) fn is_done_with(&self, class: Class) {
        self.bits(class).update(|bits| bits & !Self::bit(class));
    }
    /// The numbers of this thread's drains for which the class is closed.
    pub(super) fn own(table: usize, class: Class) -> impl Iterator<Item = u64> + Clone {
        // SAFETY: null, or a drain whose `during` has not returned.
        let first = unsafe { GIVING.with(Cell::get).as_ref() };
        // SAFETY: null, or an outer drain, whose `during` returns after this one's.
        let all = core::iter::successors(first, |giving| unsafe { giving.before.as_ref() });
        let closed =
            move |giving: &&Self| giving.table == table && giving.bits(class).get() & Self::bit(class) > 0;
        all.filter(closed).map(|giving| giving.number)
    }
}
