//! A model of the slab allocator of 1994: all slabs are on one sorted list under one lock, without per-CPU layers.
//!
//! ```text
//!   full ... full | partial  partial ... | empty  empty ...
//!                   ▲ serves next          ▲ serves when no partial slab is left
//! ```
//!
//! - **Allocate**: take an object from the first partial slab; else from the first empty slab; else from a new slab.
//! - **Free**: return the object to its slab. A slab that was full becomes the first partial slab. A slab that becomes
//!   empty is moved to the end of the list.
//! - **Shrink**: return all empty slabs to the system. Empty slabs are kept until a shrink.
//!
//! A slab has the smallest size at which at most an eighth of the slab is wasted.
//!
//! Source: Bonwick, "The Slab Allocator: An Object-Caching Kernel Memory Allocator", USENIX Summer 1994, sections 3.2
//! and 3.4. In the model, slab metadata uses no space in the slab, as for the large objects of the paper.

use crate::design::NoMemory;
use crate::model::{CostEvent, Op, Policy};
use crate::slabs::{End, Object};
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::{Geometry, GeometryError, OrderRule};
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::Cpus;

/// The options type of [`Bonwick94`], which has no options.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {}

pub(crate) const PARTIAL: u8 = 0;
pub(crate) const EMPTY: u8 = 1;
pub(crate) const FULL: u8 = 2;

/// A cache that follows the rules of the 1994 slab allocator.
#[derive(Debug)]
pub struct Bonwick94;

impl Policy for Bonwick94 {
    const NAME: &'static str = "bonwick94";
    const DESCRIPTION: &'static str =
        "a model of the slab allocator of 1994: one list of slabs, nothing for CPUs";
    type Knobs = Knobs;
    const LISTS: &'static [&'static str] = &["partial", "empty", "full"];

    fn geometry(size: usize, _: u32, _: &Knobs) -> Result<Geometry, GeometryError> {
        geometry_wasting_at_most_an_eighth(size, u8::MAX)
    }
    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &Knobs) -> Self {
        Self
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let object = take(op)?;
        op.did(CostEvent::Refill(1));
        Ok(object)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        put(op, object);
        op.did(CostEvent::Flush(1));
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        release_empty(op);
        0
    }
}

/// Returns the geometry of the smallest order at which a slab holds an object and wastes at most an eighth. The order
/// is at most `most`, unless a single object needs a larger order.
pub(crate) fn geometry_wasting_at_most_an_eighth(size: usize, most: u8) -> Result<Geometry, GeometryError> {
    let with = |order| {
        let rule = OrderRule { min_order: order, max_order: order, min_objects: 1, ..OrderRule::for_cpus(1) };
        Geometry::new(size, 0, &rule)
    };
    let mut order = 0;
    loop {
        let geometry = with(order)?;
        let bytes = PAGE_SIZE << geometry.order().get();
        if geometry.order().get() >= most || geometry.waste() * 8 <= bytes {
            return Ok(geometry);
        }
        order = geometry.order().get() + 1;
    }
}

/// Takes an object from the first slab on the list that has a free object.
pub(crate) fn take(op: &mut Op<'_>) -> Result<Object, NoMemory> {
    let slab = match op.slabs.first(PARTIAL).or_else(|| op.slabs.first(EMPTY)) {
        Some(slab) => slab,
        None => op.make(EMPTY)?,
    };
    let object = op.slabs.take(slab).ok_or(NoMemory)?;
    let list = if op.slabs.free(slab) == 0 { FULL } else { PARTIAL };
    if op.slabs.list(slab) != list {
        op.slabs.relist(slab, list, End::Front);
    }
    Ok(object)
}
/// Returns an object to its slab.
pub(crate) fn put(op: &mut Op<'_>, object: Object) {
    let slab = object.slab;
    op.slabs.put(object);
    if op.slabs.is_empty(slab) {
        op.slabs.relist(slab, EMPTY, End::Back);
    } else if op.slabs.list(slab) == FULL {
        op.slabs.relist(slab, PARTIAL, End::Front);
    }
}
pub(crate) fn release_empty(op: &mut Op<'_>) {
    while let Some(slab) = op.slabs.first(EMPTY) {
        op.release(slab);
    }
}

#[cfg(test)]
pub(super) mod tests;
