//! The depot holds the magazines that belong to no CPU; all CPUs use it under one lock.

use super::magazine::{CpuCache, Magazine};
use super::{Round, Sizes};
use uslab_magazine::sync::{Mutex, MutexGuard, Rank, tell};

/// One of the depot's two lists of magazines.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    Full,
    Empty,
}

/// A stack of magazines that all have the same fill, with the data of their working set (section 3.7). The list records
/// its smallest length in an interval, because no CPU needed that number of magazines.
#[derive(Debug)]
pub(super) struct List<T> {
    pub(super) magazines: Vec<Magazine<T>>,
    /// The smallest number of magazines since the interval began. The smallest number is never larger than the present
    /// number of magazines.
    pub(super) min_length: usize,
    /// The smallest number of magazines in the previous interval.
    pub(super) previous_min_length: usize,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { magazines: Vec::new(), min_length: 0, previous_min_length: 0 }
    }
}

impl<T> List<T> {
    fn take(&mut self) -> Option<Magazine<T>> {
        let magazine = self.magazines.pop()?;
        self.min_length = self.min_length.min(self.magazines.len());
        Some(magazine)
    }
    pub(super) fn end_interval(&mut self) {
        self.previous_min_length = self.min_length;
        self.min_length = self.magazines.len();
    }
    /// Takes the magazines at the bottom of the stack that no CPU has needed since the previous interval began.
    pub(super) fn reap(&mut self) -> Vec<Magazine<T>> {
        let surplus = self.min_length.min(self.previous_min_length);
        self.min_length -= surplus;
        self.previous_min_length = self.previous_min_length.saturating_sub(surplus);
        self.magazines.drain(..surplus).collect()
    }
}

/// The state of the depot, which the depot's lock protects.
#[derive(Debug)]
pub(super) struct Stock<T> {
    pub(super) full: List<T>,
    /// The empty magazines, all of the current `size`.
    pub(super) empty: List<T>,
    /// The number of rounds in a new magazine: the paper's M.
    pub(super) size: usize,
    /// The number of magazines that CPUs have exchanged at the depot.
    pub(super) exchanges: u64,
    /// The number of visits that found the lock taken; `contended_before` counts only the visits before the current
    /// interval.
    pub(super) contended: u64,
    pub(super) contended_before: u64,
}

impl<T> Stock<T> {
    pub(super) fn put(&mut self, magazine: Magazine<T>) {
        debug_assert!(
            magazine.is_full() || magazine.is_empty(),
            "the depot keeps full and empty magazines only"
        );
        let current = magazine.size == self.size;
        if !magazine.is_empty() {
            self.full.magazines.push(magazine);
        } else if current {
            self.empty.magazines.push(magazine);
        }
        // An empty magazine of an old size is dropped, and so is the placeholder for a missing magazine.
    }

    /// Section 3.4: if an interval has more contention than `sizes` permits, magazines grow, up to a bound. Magazines
    /// of the old size stay in use until they return to the depot empty. Returns the empty magazines of the old size.
    pub(super) fn resize(&mut self, sizes: &Sizes) -> Vec<Magazine<T>> {
        let contended = self.contended - self.contended_before;
        self.contended_before = self.contended;
        if contended <= sizes.contention || self.size >= sizes.largest {
            return Vec::new();
        }
        let next = STEPS.into_iter().find(|step| *step > self.size);
        self.size = next.unwrap_or(2 * self.size + 1).min(sizes.largest);
        core::mem::take(&mut self.empty).magazines
    }
}

#[derive(Debug)]
pub(super) struct Depot<T>(pub(super) Mutex<Stock<T>>);

impl<T: Round> Depot<T> {
    pub(super) fn new(size: usize) -> Self {
        let (full, empty) = (List::default(), List::default());
        let stock = Stock { full, empty, size, exchanges: 0, contended: 0, contended_before: 0 };
        Self(Mutex::ranked(Rank::Depot, stock))
    }

    /// Section 3.4: a thread that finds the lock taken waits for it, and then counts the wait.
    pub(super) fn lock(&self) -> MutexGuard<'_, Stock<T>> {
        self.0.try_lock().unwrap_or_else(|| {
            let mut stock = self.0.lock();
            stock.contended += 1;
            stock
        })
    }

    /// Runs the third step of Figure 3.1b: the previous magazine moves to the depot, the loaded one becomes the
    /// previous one, and a magazine with the fill `fill` is loaded. If the depot has no magazine with this fill,
    /// nothing moves, and the error is the size that a new magazine should have.
    pub(super) fn exchange(&self, fill: Fill, cpu: &mut CpuCache<T>) -> Result<(), usize> {
        let mut stock = self.lock();
        let list = match fill {
            Fill::Full => &mut stock.full,
            Fill::Empty => &mut stock.empty,
        };
        let Some(fresh) = list.take() else { return Err(stock.size) };
        let previous = cpu.load(fresh);
        stock.put(previous);
        stock.exchanges += 1;
        tell!(stock => "exchanges at the depot: neither of its magazines can serve");
        Ok(())
    }
}

/// The sizes to which magazines grow, in rounds, as in illumos. Up to size 31, a magazine and its list link together
/// fill a power of two of words.
const STEPS: [usize; 9] = [1, 3, 7, 15, 31, 47, 63, 95, 143];
