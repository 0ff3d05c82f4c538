//! Reaping: how many full magazines a depot gives back, and when.
//!
//! A depot that keeps all holds memory that nobody needs. One that gives all back fetches it again a moment later. Every 15 seconds you
//! are asked how many of the full magazines are to go back to slabs. Between two questions you are told of each visit. What is here keeps
//! all. A full magazine (8 objects) that is kept for an interval costs 2, an object that comes from a slab 1.
//!
//! There is nothing to call: keep in `Mine` what you want to know at the end of an interval.

use uslab_engine::course::Reaper;

#[derive(Debug, Default)]
pub struct Mine {}

impl Reaper for Mine {
    /// A magazine went to the depot, or came from there: it has so many full ones now.
    fn visited(&mut self, _full: usize) {
        // To be written.
    }
    /// An interval ends, and the depot has so many full magazines. How many go back?
    fn reap(&mut self, _full: usize) -> usize {
        // To be written.
        0
    }
}
