//! The reference solution of the exercise `partial`: the fullest slab serves each allocation. Slabs are on eight lists,
//! ordered by the slabs' fullness.

use crate::policy::*;

const FULL: u8 = 8;

#[derive(Debug)]
pub(in crate::course::code) struct Exercise;

/// Returns the list for a slab; list 0 has the fullest slabs.
fn list(slabs: &Slabs, slab: u32) -> u8 {
    match slabs.free(slab) {
        0 => FULL,
        free => ((u32::from(free) * 8 - 1) / u32::from(slabs.objects())) as u8,
    }
}

fn settle(slabs: &mut Slabs, slab: u32) {
    let list = list(slabs, slab);
    if slabs.list(slab) != list {
        slabs.relist(slab, list, End::Front);
    }
}

impl Policy for Exercise {
    const NAME: &'static str = "fullest-first";
    const DESCRIPTION: &'static str = "the fullest slab serves";
    type Knobs = ();
    const LISTS: &'static [&'static str] = &["1/8", "2/8", "3/8", "4/8", "5/8", "6/8", "7/8", "8/8", "full"];

    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &()) -> Self {
        Self
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let slab = match (0..FULL).find_map(|list| op.slabs.first(list)) {
            Some(slab) => slab,
            None => op.make(FULL - 1)?,
        };
        let object = op.slabs.take(slab).ok_or(NoMemory)?;
        settle(op.slabs, slab);
        Ok(object)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        op.slabs.put(object);
        if op.slabs.is_empty(object.slab) {
            op.release(object.slab);
        } else {
            settle(op.slabs, object.slab);
        }
    }
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        0
    }
}
