//! Choosing a partial slab: a cache that keeps as few slabs as possible.
//!
//! The cache has no magazines: each allocation takes an object from a slab, and each free returns an object. A slab can
//! be freed only when all of its objects are free. The choice of a slab for each allocation therefore determines how
//! many slabs can be freed. The code below takes the slab that was used most recently. Choose a better slab, but do not
//! inspect every slab: the judge counts inspections and moves.
//!
//! The exercise can use these calls, each of which has a cost:
//!
//! - `op.make(list)?`: creates a slab of free objects at the front of a list; costs 0.
//! - `op.release(slab)`: frees an empty slab; costs 0.
//! - `op.slabs.take(slab)`: takes a free object out of a slab, or returns `None` if the slab is full; costs 0.
//!   `op.slabs.put(object)`: returns an object to its slab; costs 0.
//! - `op.slabs.first(list)`, `last(list)`: the slab at that end of a list; `None` if the list is empty. `len(list)`,
//!   `list(slab)`. 0.
//! - `op.slabs.objects()`: returns the number of objects in a slab, free and in use; costs 0.
//! - `op.slabs.free(slab)`: returns the number of free objects in a slab; `is_empty(slab)`: returns `true` if all are
//!   free; each costs 1.
//! - `op.slabs.relist(slab, list, End::Front)`, or `End::Back`: moves a slab to an end of a list; costs 1.
//! - `op.slabs.walk(list)`: iterates over the slabs of a list in order; costs 1 for each slab returned.

use uslab_engine::policy::*;

const PARTIAL: u8 = 0;
const FULL: u8 = 1;

#[derive(Debug)]
pub struct Exercise;

impl Policy for Exercise {
    const NAME: &'static str = "mine";
    const DESCRIPTION: &'static str = "which partial slab";
    type Knobs = ();
    /// The lists that a slab can be on. You may add more lists to this array.
    const LISTS: &'static [&'static str] = &["partial", "full"];

    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &()) -> Self {
        Self
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        // To be written: which slab serves?
        let slab = match op.slabs.first(PARTIAL) {
            Some(slab) => slab,
            None => op.make(PARTIAL)?,
        };
        let object = op.slabs.take(slab).ok_or(NoMemory)?;
        if op.slabs.free(slab) == 0 {
            op.slabs.relist(slab, FULL, End::Front);
        }
        Ok(object)
    }

    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        // To be written: which list, and where on it?
        let slab = object.slab;
        op.slabs.put(object);
        if op.slabs.is_empty(slab) {
            op.release(slab);
        } else {
            op.slabs.relist(slab, PARTIAL, End::Front);
        }
    }

    /// The cache frees empty slabs immediately, so a shrink has nothing left to do.
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        0
    }
}
