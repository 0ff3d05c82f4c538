//! Reaping: how many full magazines a depot flushes, and when.
//!
//! A depot that keeps all its magazines holds memory that is not needed. A depot that flushes all its magazines must
//! soon fetch the same number of objects from slabs again. Every 15 seconds, `reap` returns how many full magazines the
//! depot must flush to slabs. Between two calls of `reap`, `visited` is called at each access of the depot. The code
//! below never flushes a magazine. A full magazine (8 objects) that is kept for an interval costs 2, and an object that
//! comes from a slab costs 1.
//!
//! The exercise needs no calls: store in `Exercise` the data that you need at the end of an interval.

use uslab_engine::course::Reaper;

#[derive(Debug, Default)]
pub struct Exercise {}

impl Reaper for Exercise {
    /// Called after a magazine was added to the depot or taken from it; the depot now has `full` full magazines.
    fn visited(&mut self, _full: usize) {
        // To be written.
    }
    /// Called at the end of an interval, when the depot has `full` full magazines. Returns the number of magazines to
    /// flush to slabs.
    fn reap(&mut self, _full: usize) -> usize {
        // To be written.
        0
    }
}
