//! Which partial slab: a cache that keeps as few slabs as it can.
//!
//! There are no magazines here: each allocation takes an object from a slab, each free puts one back. A slab can only go back when all of
//! its objects are free at once. So it matters which slab serves. What is here takes the slab that was touched last. Choose better,
//! without a look at every slab: looks and moves are counted, one like the other.
//!
//! What there is to call, and how often it counts:
//!
//! - `op.make(list)?`: a new slab of free objects, in front of a list. 0.
//! - `op.release(slab)`: an empty slab goes back. 0.
//! - `op.slabs.take(slab)`: a free object leaves its slab, `None` if there is none. `op.slabs.put(object)`: it comes back. 0.
//! - `op.slabs.first(list)`, `last(list)`: a slab at that end of a list, `None` if there is none. `len(list)`, `list(slab)`. 0.
//! - `op.slabs.objects()`: objects of a slab, free and in use. 0.
//! - `op.slabs.free(slab)`: its free objects; `is_empty(slab)`: whether all are free. 1.
//! - `op.slabs.relist(slab, list, End::Front)`, or `End::Back`: moves a slab. 1.
//! - `op.slabs.walk(list)`: the slabs of a list in order. 1 for each that comes.

use uslab_engine::policy::*;

const PARTIAL: u8 = 0;
const FULL: u8 = 1;

#[derive(Debug)]
pub struct Mine;

impl Policy for Mine {
    const NAME: &'static str = "mine";
    const ABOUT: &'static str = "which partial slab";
    type Knobs = ();
    /// The lists that a slab can be on. As many as you like.
    const LISTS: &'static [&'static str] = &["partial", "full"];

    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &()) -> Self {
        Self
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        // To be written: which slab?
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

    /// All empty slabs go back at once here, so nothing is left to do.
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        0
    }
}
