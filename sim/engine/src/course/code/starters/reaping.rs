//! Reaping: how many full magazines a depot flushes, and when.
//!
//! A depot that keeps all its magazines holds memory that is not needed. A depot that flushes all its magazines soon
//! has to fetch equally many objects from slabs again. Every 15 seconds, `reap` returns how many of the full magazines
//! the depot must flush to slabs. During the 15 seconds, `visited` is called at each access of the depot. The code
//! below never flushes a magazine. A full magazine (8 objects) that is kept for an interval costs 2, and an object that
//! comes from a slab costs 1.
//!
//! No calls are needed: store in `Exercise` the data that you need at the end of an interval.

use uslab_engine::course::Reaper;

#[derive(Debug, Default)]
pub struct Exercise {}

impl Reaper for Exercise {
    /// Called after a magazine was added to the depot or taken; the depot now has `full` full magazines.
    fn visited(&mut self, _full: usize) {
        // To be written.
    }
    /// Called at the end of an interval, when the depot has `full` full magazines. Returns how many magazines to flush
    /// to slabs.
    fn reap(&mut self, _full: usize) -> usize {
        // To be written.
        0
    }
}
