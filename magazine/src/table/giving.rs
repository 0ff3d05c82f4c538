//! A list of the current thread's drains that are flushing objects. While a drain flushes objects, user code
//! runs and may fork. The child finds its thread's drains in the list of this module.

use crate::region::{CLASSES, Class};
use crate::sync::thread_local;
use core::cell::Cell;

/// A drain of this thread.
pub(super) struct ActiveDrain {
    table: usize,
    number: u64,
    /// One bit for each class that is closed for this drain.
    classes: [Cell<u64>; CLASSES.div_ceil(64) as usize],
    before: *const Self,
}
thread_local! {
    /// The innermost drain of the thread.
    static INNERMOST_DRAIN: Cell<*const ActiveDrain> = const { Cell::new(core::ptr::null()) };
}

impl ActiveDrain {
    pub(super) fn new(table: usize, number: u64, classes: impl Iterator<Item = Class>) -> Self {
        let new = Self {
            table,
            number,
            classes: [const { Cell::new(0) }; _],
            before: INNERMOST_DRAIN.with(Cell::get),
        };
        classes.for_each(|class| new.bits(class).update(|bits| bits | Self::bit(class)));
        new
    }
    fn bits(&self, class: Class) -> &Cell<u64> {
        &self.classes[class.index as usize / 64]
    }
    fn bit(class: Class) -> u64 {
        1 << (class.index % 64)
    }
    /// Runs `f`, which flushes the objects, while this drain is in the thread's list.
    pub(super) fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        INNERMOST_DRAIN.with(|giving| giving.set(self));
        let done = f();
        INNERMOST_DRAIN.with(|giving| giving.set(self.before));
        done
    }
    pub(super) fn is_done_with(&self, class: Class) {
        self.bits(class).update(|bits| bits & !Self::bit(class));
    }
    /// The numbers of this thread's drains for which the class is closed.
    pub(super) fn drains_of_thread(table: usize, class: Class) -> impl Iterator<Item = u64> + Clone {
        // SAFETY: the pointer is null, or points to a drain whose `during` has not returned.
        let first = unsafe { INNERMOST_DRAIN.with(Cell::get).as_ref() };
        // SAFETY: the pointer is null, or points to an outer drain, whose `during` returns later.
        let all = core::iter::successors(first, |giving| unsafe { giving.before.as_ref() });
        let closed =
            move |giving: &&Self| giving.table == table && giving.bits(class).get() & Self::bit(class) > 0;
        all.filter(closed).map(|giving| giving.number)
    }
}
