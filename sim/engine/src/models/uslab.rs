//! A model of the shipping allocator without memory and locks: the [specification](uslab_magazine_spec) of its magazine
//! layer, on top of a model of its slab rules.
//!
//! The shipping code itself is available as a [design](crate::Shipping). The [clock](crate::clock) needs steps that the
//! model reports but the shipping code does not. A test runs the shipping code and the model on random streams. After
//! every operation, the test compares the allocated object, the number of objects at each level, the steps, and the
//! level that served the operation.
//!
//! - **Fill**: takes objects from listed slabs, beginning with the fullest slab and its lowest object; if none is left,
//!   from a new slab.
//! - **Flush**: returns objects to their slabs, in batches of 32 objects. A slab that changes its fullness band moves
//!   to the end of its new list. A slab that becomes empty is freed if at least `min_partial` slabs had free objects
//!   before the last object was freed.
//! - A [tick](Policy::tick) is a reap that also frees empty slabs. Streams contain no ticks: the simulated machine reaps
//!   when it shrinks.
//! - **Shrink**: flushes all stacks, CPU by CPU, and the depot. Empty slabs are freed, and the slabs of each band are
//!   sorted, fullest first.
//!
//! The model deliberately omits these parts of the shipping allocator:
//!
//! - **The allocator's own memory**: stacks, magazines of depots, long bitmaps, and uncommitted pages. Therefore no
//!   operation of the model is served at the level [`Commit`](uslab_magazine::Path::Commit). A served level follows
//!   from an operation's other steps, and the test compares these steps. A depot of the model always has room up to its
//!   limit; in the shipping code all depots share the addresses of one region.
//! - **Memory shortage**: smaller slabs, drains, shrinkers, and limits on stacks. An allocation of the model fails if
//!   the page allocator has no page.
//! - **Several nodes, bulk requests, constructors, limits and grace periods**: no stream contains them.
//! - **The lock that a CPU takes to open a stack** at its first miss.
//!
//! **Adaptation to contention**: the shipping code counts contention, but does not adapt to it.
//!
//! Sources: `uslab::Magazines` for the sizes; `uslab` for the lists of a node and for the order of a flush.

use crate::design::{NoMemory, Unsupported};
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Knob, Lines, Op, Policy, default_from_geometry};
use crate::slabs::{End, Object, Slabs};
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::Geometry;
use uslab_magazine::{Cpus, MAX_CAPACITY, MAX_DEPOT};
use uslab_magazine_spec::{Budget, Event, Layer, Sizes, World};

/// The sizes of magazines, stacks and depots; the fields have the names of `uslab_magazine::Config`. If a field is
/// `None`, its value is derived from the object size.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The number of objects in a full magazine; with 0, the cache has no magazines, and no other field may
    /// be set.
    pub capacity: Option<u16>,
    /// The largest number of objects that the first fill of a stack takes. `None` means 1.
    pub first_fill: Option<u16>,
    /// The number of magazines that fit into a stack, minus two.
    pub stock: Option<u16>,
    /// The largest number of magazines that the depot keeps.
    pub depot_limit: Option<u32>,
}

/// Returns the default sizes for objects that are `stride` bytes apart: magazines of 64 KiB, stacks of 256 KiB and
/// depots of 4 MiB, within bounds.
fn sizes(stride: usize, knobs: &Knobs) -> Sizes {
    let by_size = ((64 << 10) / stride).clamp(4, 64);
    let capacity = knobs.capacity.map_or(by_size, usize::from);
    let first_fill = knobs.first_fill.map_or(1, usize::from).min(capacity);
    let reach = ((256 << 10) / stride).min(1216);
    let stock = knobs.stock.map_or((reach / capacity).saturating_sub(2), usize::from);
    let depot = ((4 << 20) / (capacity * stride)).clamp(10, 1024);
    Sizes {
        capacity,
        first_fill,
        reach: (capacity * (2 + stock)).min(1 << 14),
        depot_limit: knobs.depot_limit.map_or(depot, |limit| limit as usize),
        magazine_bytes: (capacity * stride) as u64,
    }
}

/// Returns a default that depends on the object size.
fn by_size(size: usize, cpus: u32, of: fn(&Sizes) -> usize) -> u64 {
    default_from_geometry::<Uslab>(size, cpus, |geometry| of(&sizes(geometry.stride(), &Knobs::default())))
}

/// The number of the list with the slabs whose objects are all free. Lists 1 to 4 have the slabs of the fullness bands,
/// and list 5 has the full slabs.
const EMPTY: u8 = 0;
const BANDS: u8 = 4;
const FULL: u8 = EMPTY + BANDS + 1;
/// The number of objects that are returned to slabs under one acquisition of the lock.
const BATCH: usize = 32;
/// A shrink sorts a slab only if it has at most this number of free objects.
const SORTED: u16 = 32;

/// A cache that follows the rules of `uslab`: see the [module](self).
#[derive(Debug)]
pub struct Uslab {
    /// The magazine layer; `None` if the cache has no magazines, so that each operation accesses slabs.
    layer: Option<Layer<Object>>,
    min_partial: usize,
}

/// The slabs of a cache, which supply its magazine layer with objects.
struct Supplier<'o, 'a> {
    op: &'o mut Op<'a>,
    min_partial: usize,
}

impl World<Object> for Supplier<'_, '_> {
    /// Takes objects from slabs on the lists, or from a new slab.
    fn fill(&mut self, _: usize, most: usize) -> Vec<Object> {
        let op = &mut *self.op;
        let mut objects = Vec::with_capacity(most);
        while objects.len() < most
            && let Some(slab) = (EMPTY..FULL).rev().find_map(|list| op.slabs.first(list))
        {
            take(op.slabs, slab, most, &mut objects);
        }
        // The fill's access to the lists counts even if the fill found no object.
        op.did(CostEvent::Refill(objects.len() as u32));
        if objects.is_empty()
            && let Ok(slab) = op.make(EMPTY)
        {
            take(op.slabs, slab, most, &mut objects);
            op.did(CostEvent::Refill(objects.len() as u32));
        }
        objects
    }

    fn flush(&mut self, objects: Vec<Object>) {
        let op = &mut *self.op;
        for batch in objects.chunks(BATCH) {
            op.did(CostEvent::Flush(batch.len() as u32));
            for of_slab in batch.chunk_by(|one, next| one.slab == next.slab) {
                let slab = of_slab[0].slab;
                of_slab.iter().for_each(|object| op.slabs.put(*object));
                settle(op.slabs, slab);
                // A slab of a single object was full before the free, so it is not among the slabs with room.
                let itself = usize::from(op.slabs.objects() == 1);
                if op.slabs.is_empty(slab) && with_room(op.slabs) - itself >= self.min_partial {
                    op.release(slab);
                }
            }
        }
    }

    fn budget(&mut self) -> &mut Budget {
        self.op.budget
    }
    fn observe(&mut self, event: Event) {
        self.op.did(match event {
            Event::Widened => CostEvent::Widened,
            Event::Exchange => CostEvent::Exchange,
            Event::Refused => CostEvent::Miss,
        });
    }
}

impl Policy for Uslab {
    const NAME: &'static str = "uslab-model";
    const DESCRIPTION: &'static str = "a model of the shipping allocator, for virtual time";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[
        Knob {
            name: "capacity",
            means: "number of objects in a magazine (0: no magazines)",
            range: 0..=MAX_CAPACITY as u64,
            percent: false,
            default: |size, cpus| by_size(size, cpus, |sizes| sizes.capacity),
        },
        Knob {
            name: "first_fill",
            means: "objects that a cache's first fill asks for",
            range: 1..=MAX_CAPACITY as u64,
            percent: false,
            default: |size, cpus| by_size(size, cpus, |sizes| sizes.first_fill),
        },
        Knob {
            name: "stock",
            means: "magazines that a CPU's stack has room for beyond two",
            range: 0..=u16::MAX as u64,
            percent: false,
            default: |size, cpus| {
                by_size(size, cpus, |sizes| (sizes.reach / sizes.capacity).saturating_sub(2))
            },
        },
        Knob {
            name: "depot_limit",
            means: "full magazines that the depot keeps",
            range: 0..=MAX_DEPOT as u64,
            percent: false,
            default: |size, cpus| by_size(size, cpus, |sizes| sizes.depot_limit),
        },
    ];
    const LINES: Lines = Lines { depot: 1, lists: 3, counts: 1, slabs: 1 };
    const LISTS: &'static [&'static str] = &[
        "empty",
        "partial, below 1/4",
        "partial, from 1/4",
        "partial, from 1/2",
        "partial, from 3/4",
        "full",
    ];

    fn accept(knobs: &Knobs) -> Result<(), Unsupported> {
        let Knobs { capacity, first_fill, stock, depot_limit } = knobs;
        if *capacity == Some(0) && (first_fill.is_some() || stock.is_some() || depot_limit.is_some()) {
            let wrong = "capacity=0: expected no other option, because there are no magazines";
            return Err(Unsupported(wrong.to_owned()));
        }
        Ok(())
    }
    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let layer = || Layer::new(sizes(geometry.stride(), knobs), vec![0; cpus.count() as usize]);
        Self { layer: (knobs.capacity != Some(0)).then(layer), min_partial: geometry.min_partial() }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let cpu = op.cpu as usize;
        let mut slabs = Supplier { op, min_partial: self.min_partial };
        let object = match &mut self.layer {
            Some(layer) => layer.alloc(cpu, &mut slabs),
            None => slabs.fill(0, 1).pop(),
        };
        object.ok_or(NoMemory)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let cpu = op.cpu as usize;
        let mut slabs = Supplier { op, min_partial: self.min_partial };
        match &mut self.layer {
            Some(layer) => layer.free(cpu, object, &mut slabs),
            None => slabs.flush(vec![object]),
        }
    }

    fn tick(&mut self, op: &mut Op<'_>) {
        self.reap(op);
        release_empty(op);
    }

    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let mut slabs = Supplier { op: &mut *op, min_partial: self.min_partial };
        let held = self.layer.as_mut().map_or(0, |layer| layer.flush_all(&mut slabs));
        release_empty(op);
        for band in EMPTY + 1..FULL {
            let mut slabs: Vec<_> = op.slabs.walk(band).collect();
            slabs.sort_by_key(|slab| op.slabs.free(*slab).min(SORTED + 1));
            slabs.into_iter().for_each(|slab| op.slabs.relist(slab, band, End::Back));
        }
        held as u64
    }

    fn container(&self) -> u32 {
        self.layer.as_ref().map_or(0, |layer| layer.sizes().capacity as u32)
    }
    fn shared(&self) -> u32 {
        self.layer.as_ref().map_or(0, |layer| layer.depot(0).magazines().len() as u32)
    }
    fn held(&self) -> Vec<Held> {
        let Some(layer) = &self.layer else { return vec![] };
        let Sizes { capacity, reach, .. } = *layer.sizes();
        let stacks = (0..layer.cpus())
            .map(|cpu| Held::new(Holder::Cpu(cpu as u32), "stack", reach, layer.stack(0, cpu)));
        let depot = layer.depot(0).magazines_in_take_order();
        let depot = depot.map(|full| Held::new(Holder::Shared, "magazine", capacity, &full));
        stacks.chain(depot).collect()
    }
}

impl Uslab {
    /// Ends an interval of the reaper. Returns the number of objects flushed to slabs.
    fn reap(&mut self, op: &mut Op<'_>) -> u64 {
        let mut slabs = Supplier { op, min_partial: self.min_partial };
        self.layer.as_mut().map_or(0, |layer| layer.reap(&mut slabs) as u64)
    }
}

/// Returns the number of slabs with free objects.
fn with_room(slabs: &Slabs) -> usize {
    (EMPTY..FULL).map(|list| slabs.len(list)).sum()
}
/// Moves objects from a slab to `objects`, until `objects` has `most` objects.
fn take(slabs: &mut Slabs, slab: u32, most: usize, objects: &mut Vec<Object>) {
    while objects.len() < most
        && let Some(object) = slabs.take(slab)
    {
        objects.push(object);
    }
    settle(slabs, slab);
}
/// Moves the slab to the end of the list for its fullness, unless the slab is already on this list.
fn settle(slabs: &mut Slabs, slab: u32) {
    let objects = u32::from(slabs.objects());
    let out = objects - u32::from(slabs.free(slab));
    let list = match out {
        0 => EMPTY,
        out if out == objects => FULL,
        out => EMPTY + 1 + (u32::from(BANDS) * out / objects) as u8,
    };
    if list != slabs.list(slab) {
        slabs.relist(slab, list, End::Back);
    }
}
fn release_empty(op: &mut Op<'_>) {
    while let Some(slab) = op.slabs.first(EMPTY) {
        op.release(slab);
    }
}

#[cfg(test)]
mod tests;
