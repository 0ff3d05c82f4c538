//! The reference solution of the exercise `reaping`. A magazine that stayed in the depot during the whole interval was
//! not needed (Bonwick and Adams, 2001, section 3.7).

use crate::course::Reaper;

#[derive(Debug, Default)]
pub(in crate::course::code) struct Exercise {
    least: usize,
}

impl Reaper for Exercise {
    fn visited(&mut self, full: usize) {
        self.least = self.least.min(full);
    }
    fn reap(&mut self, full: usize) -> usize {
        let unused = self.least.min(full);
        self.least = full - unused;
        unused
    }
}
