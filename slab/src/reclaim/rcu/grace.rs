//! Grace periods under shuttle: a minimal implementation with the guarantees of `crossbeam-epoch`. The atomics and
//! collector of `crossbeam-epoch` belong to the process. The atomics of `crossbeam-epoch` would outlive executions, and
//! its collector would run closures in another execution.
//!
//! A deferred closure runs once all readers that were pinned at the deferral have unpinned. The closure runs in a
//! thread that pins or flushes. The schedule decides whether the closure runs immediately or later.

use core::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{lazy_static, relax};

#[derive(Default)]
struct GracePeriods {
    /// Number that the next reader or closure gets.
    next: u64,
    readers: BTreeSet<u64>,
    waiting: VecDeque<(u64, Box<dyn FnOnce() + Send>)>,
}

/// State of one execution, whose threads all run on one system thread and switch only between accesses.
#[derive(Default)]
struct SharedGracePeriods(RefCell<GracePeriods>);
// SAFETY: one system thread runs all threads, and no access is interrupted.
unsafe impl Sync for SharedGracePeriods {}
impl Drop for SharedGracePeriods {
    fn drop(&mut self) {
        // After a failed execution, no model checker is left for its closures.
        core::mem::forget(core::mem::take(&mut self.0.borrow_mut().waiting));
    }
}

lazy_static! {
    static ref PERIODS: SharedGracePeriods = SharedGracePeriods::default();
}

/// A pinned reader, which is unpinned when the guard is dropped.
#[derive(Debug)]
pub struct Guard(u64);

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
    /// Runs `f` after all current readers have exited, including this guard's reader.
    pub fn defer(&self, f: impl FnOnce() + Send + 'static) {
        let mut periods = PERIODS.0.borrow_mut();
        periods.next += 1;
        let number = periods.next;
        periods.waiting.push_back((number, Box::new(f)));
    }
    /// Runs the deferred closures whose readers have all exited.
    pub fn flush(&self) {
        collect();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PERIODS.0.borrow_mut().readers.remove(&self.0);
    }
}

/// Returns `true` if no closure is waiting.
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
