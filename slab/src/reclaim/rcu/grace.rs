//! Grace periods under shuttle: what `crossbeam-epoch` promises, and no more, in a few lines. Its own atomics and its collector
//! belong to the process: they would outlive executions, and what they ran would be of another one.
//!
//! What was deferred runs when nobody is pinned any more who was so at that time; on a thread that pins or flushes, at once or
//! later, as the schedule has it.

use core::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{lazy_static, relax};

#[derive(Default)]
struct Periods {
    /// Of readers, and of what is deferred.
    next: u64,
    readers: BTreeSet<u64>,
    waiting: VecDeque<(u64, Box<dyn FnOnce() + Send>)>,
}

/// Of an execution, whose threads are all on one of the system's: none is inside while another one runs.
#[derive(Default)]
struct Shared(RefCell<Periods>);
// SAFETY: as said there.
unsafe impl Sync for Shared {}
impl Drop for Shared {
    fn drop(&mut self) {
        // What an execution that failed leaves behind has no checker any more.
        core::mem::forget(core::mem::take(&mut self.0.borrow_mut().waiting));
    }
}

lazy_static! {
    static ref PERIODS: Shared = Shared::default();
}

/// A reader, as long as it lives.
#[derive(Debug)]
pub struct Guard(u64);

/// Enters a reader.
pub(super) fn pin() -> Guard {
    relax();
    let mut periods = PERIODS.0.borrow_mut();
    periods.next += 1;
    let number = periods.next;
    periods.readers.insert(number);
    drop(periods);
    if choose(2) == 0 {
        collect();
    }
    Guard(number)
}

impl Guard {
    /// Runs `f` when all readers of now have gone, this one included.
    pub fn defer(&self, f: impl FnOnce() + Send + 'static) {
        let mut periods = PERIODS.0.borrow_mut();
        periods.next += 1;
        let number = periods.next;
        periods.waiting.push_back((number, Box::new(f)));
    }
    /// Runs what may run.
    pub fn flush(&self) {
        collect();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PERIODS.0.borrow_mut().readers.remove(&self.0);
    }
}

/// Whether nothing waits.
#[cfg(test)]
pub(crate) fn is_idle() -> bool {
    PERIODS.0.borrow().waiting.is_empty()
}

fn collect() {
    loop {
        let mut periods = PERIODS.0.borrow_mut();
        let oldest = periods.readers.first().copied().unwrap_or(u64::MAX);
        let may_run = periods.waiting.front().is_some_and(|(number, _)| *number < oldest);
        let Some((_, run)) = may_run.then(|| periods.waiting.pop_front()).flatten() else { return };
        drop(periods);
        run();
    }
}
