//! The list of the drains with which the current thread is flushing objects. While a drain flushes objects, user code
//! runs, which may fork. In the child of a fork, the list shows which drains belong to the forking thread.

use crate::region::{CLASSES, Class};
use crate::sync::thread_local;
use core::cell::Cell;

/// A drain of this thread that is flushing objects.
pub(super) struct ActiveDrain {
    table: usize,
    number: u64,
    /// A bitmap with one bit per class; a bit is set while its class is closed for this drain.
    classes: [Cell<u64>; CLASSES.div_ceil(64) as usize],
    before: *const Self,
}
thread_local! {
    /// The innermost drain of this thread, which links to the outer drains.
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
    /// Runs `f`, which flushes the drain's objects. During the call, the drain is in the thread's list.
    pub(super) fn run_listed<R>(&self, f: impl FnOnce() -> R) -> R {
        INNERMOST_DRAIN.with(|giving| giving.set(self));
        let done = f();
        INNERMOST_DRAIN.with(|giving| giving.set(self.before));
        done
    }
    pub(super) fn record_class_done(&self, class: Class) {
        self.bits(class).update(|bits| bits & !Self::bit(class));
    }
    /// Returns the numbers of this thread's drains for which the class is closed.
    pub(super) fn drains_of_thread(table: usize, class: Class) -> impl Iterator<Item = u64> + Clone {
        // SAFETY: the pointer is null, or points to a drain whose `run_listed` has not returned.
        let first = unsafe { INNERMOST_DRAIN.with(Cell::get).as_ref() };
        // SAFETY: the pointer is null, or points to an outer drain, whose `run_listed` returns later.
        let all = core::iter::successors(first, |giving| unsafe { giving.before.as_ref() });
        let closed =
            move |giving: &&Self| giving.table == table && giving.bits(class).get() & Self::bit(class) > 0;
        all.filter(closed).map(|giving| giving.number)
    }
}
