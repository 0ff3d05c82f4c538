//! A model of the shipping allocator: its rules, without its memory and locks.
//!
//! The shipping code itself is available as a [design](crate::Shipping). The [clock](crate::clock) needs steps that the
//! shipping code does not report, but the model does. A test runs the shipping code and the model on random streams.
//! After every operation, the test compares the allocated object, the number of objects at each level, the steps, and
//! the level that served the operation.
//!
//! ```text
//!   CPU 0: a stack of objects                CPU 1: a stack
//!              └── magazines, the newest objects of a stack ──┘
//!                     depot: full magazines, the newest first
//!                               │ magazines, in batches of 32 objects
//!            slabs: empty | partial, in four bands of fullness | full
//! ```
//!
//! - **Allocate**: take an object from the CPU's stack. If the stack is empty, take the depot's newest magazine; else
//!   fill from listed slabs, fullest first, lowest objects first; else fill from a new slab. The first fill takes up to
//!   [`first_fill`](Knobs::first_fill) objects. Each later fill, on any CPU, takes twice as many as the fill before, up
//!   to a magazine.
//! - **Free**: put the object on the CPU's stack. The stack's capacity doubles whenever it is used up. At its final
//!   capacity, the stack's newest magazine moves to the depot. Beyond the depot's limit, or the common limit of all
//!   depots, the magazine is flushed to slabs. A flush moves newer objects first.
//! - **Slabs**: a slab that changes its fullness band moves to the end of its new list. A slab that becomes empty is
//!   freed if at least `min_partial` slabs had room before its last object was freed.
//! - **Reap**: flushes each stack that was not used since the last reap, and as many depot magazines as were not needed
//!   in that time. A [tick](Policy::tick) is a reap that also frees empty slabs. Streams contain no ticks: the
//!   simulated machine reaps when it shrinks.
//! - **Shrink**: flushes all stacks, CPU by CPU, and the depot. Empty slabs are freed, and the slabs of each band are
//!   sorted, fullest first.
//!
//! The model deliberately omits:
//!
//! - **The allocator's own memory**: stacks, magazines of depots, long bitmaps, and uncommitted pages. No operation of
//!   the model is therefore served at level [`Commit`](uslab_magazine::Path::Commit). Its level follows from its other
//!   steps, which the test compares. A depot of the model always has room up to its limit; in the shipping code all
//!   depots share the addresses of one region.
//! - **Memory shortage**: smaller slabs, drains, shrinkers, and limits on stacks. An allocation of the model fails if
//!   the page allocator has no page.
//! - **Several nodes, bulk requests, constructors, limits and grace periods**, which no stream contains.
//! - **The lock under which a CPU opens a stack** at its first miss.
//!
//! **Adaptation to contention**: the shipping code counts contention, but does not adapt to it.
//!
//! Source: `uslab_magazine::Layer` with its depots, tuning and drains; `uslab::Magazines` for the sizes; `uslab` for
//! the lists of a node and the order in which objects are flushed.

use crate::design::NoMemory;
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Knob, Lines, Op, Policy, by_geometry};
use crate::slabs::{End, Object, Slabs};
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::Geometry;
use uslab_magazine::{Cpus, MAX_CAPACITY, MAX_DEPOT};

/// The sizes of magazines, stacks and depots; the fields have the names of `uslab_magazine::Config`. The value of a
/// `None` field is derived from the object size.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The number of objects in a full magazine.
    pub capacity: Option<u16>,
    /// The largest number of objects that the first fill takes. `None` is 1.
    pub first_fill: Option<u16>,
    /// The number of magazines, in addition to two, that fit into a stack.
    pub stock: Option<u16>,
    /// The largest number of magazines that the depot keeps.
    pub depot_limit: Option<u32>,
}

/// The sizes that are computed from the options and the object size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    capacity: usize,
    first_fill: usize,
    /// The number of objects that fit into a stack when it has grown to its final capacity.
    reach: usize,
    depot_limit: usize,
    /// The bytes of all objects in a full magazine.
    magazine: u64,
}

impl Sizes {
    /// Returns the sizes for objects with a distance of `stride` bytes: magazines of 64 KiB, stacks of 256 KiB and
    /// depots of 4 MiB, within bounds.
    fn new(stride: usize, knobs: &Knobs) -> Self {
        let by_size = ((64 << 10) / stride).clamp(4, 64);
        let capacity = knobs.capacity.map_or(by_size, usize::from);
        let first_fill = knobs.first_fill.map_or(1, usize::from).min(capacity);
        let reach = ((256 << 10) / stride).min(1216);
        let stock = knobs.stock.map_or((reach / capacity).saturating_sub(2), usize::from);
        let depot = ((4 << 20) / (capacity * stride)).clamp(10, 1024);
        Self {
            capacity,
            first_fill,
            reach: (capacity * (2 + stock)).min(1 << 14),
            depot_limit: knobs.depot_limit.map_or(depot, |limit| limit as usize),
            magazine: (capacity * stride) as u64,
        }
    }
}

/// Returns a default that depends on the object size.
fn by_size(size: usize, cpus: u32, of: fn(&Sizes) -> usize) -> u64 {
    by_geometry::<Uslab>(size, cpus, |geometry| of(&Sizes::new(geometry.stride(), &Knobs::default())))
}

/// The number of the list with the slabs whose objects are all free. The next four numbers are the lists of the
/// fullness bands; the last number is the list of full slabs.
const EMPTY: u8 = 0;
const BANDS: u8 = 4;
const FULL: u8 = EMPTY + BANDS + 1;
/// The number of magazines that a depot may keep in any case.
const FREE: usize = 2;
/// The limit on the bytes that all depots hold together, in addition to the magazines that a depot may keep in any
/// case; for each CPU, and at least once.
const SHARED_PER_CPU: u64 = 1 << 20;
const SHARED: u64 = 8 << 20;
/// The number of objects that are returned to slabs while the lock is held once.
const BATCH: usize = 32;
/// The largest number of free objects with which a slab is sorted by a shrink.
const SORTED: u16 = 32;

/// A cache of `uslab`: see the [module](self).
#[derive(Debug)]
pub struct Uslab {
    sizes: Sizes,
    min_partial: usize,
    /// The largest number of objects that the next fill takes.
    fill: usize,
    cpus: Vec<Cpu>,
    /// The depot's full magazines, newest last.
    depot: Vec<Vec<Object>>,
    /// The smallest number of magazines that the depot had since the last reap.
    fewest: usize,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    /// The objects on the stack, newest last.
    stack: Vec<Object>,
    /// The current capacity of the stack, in objects.
    places: usize,
    /// `true` if the stack was used since the last reap.
    used: bool,
}

impl Cpu {
    /// Ensures that `need` objects fit, by doubling the capacity until it is `reach`. Returns `true` if the capacity
    /// grew.
    fn widen(&mut self, need: usize, reach: usize) -> bool {
        let less = need > self.places;
        if less {
            self.places = (2 * self.places).max(need).min(reach);
        }
        less
    }
    /// Takes all objects of the stack, and resets its capacity to 0.
    fn take_all(&mut self) -> Vec<Object> {
        self.places = 0;
        core::mem::take(&mut self.stack)
    }
}

impl Policy for Uslab {
    const NAME: &'static str = "uslab-model";
    const DESCRIPTION: &'static str = "a model of the shipping allocator, for virtual time";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[
        Knob {
            name: "capacity",
            means: "objects of a magazine",
            range: 1..=MAX_CAPACITY as u64,
            default: |size, cpus| by_size(size, cpus, |sizes| sizes.capacity),
        },
        Knob {
            name: "first_fill",
            means: "objects that a cache's first fill asks for",
            range: 1..=MAX_CAPACITY as u64,
            default: |size, cpus| by_size(size, cpus, |sizes| sizes.first_fill),
        },
        Knob {
            name: "stock",
            means: "magazines that a CPU's stack has room for beyond two",
            range: 0..=u16::MAX as u64,
            default: |size, cpus| {
                by_size(size, cpus, |sizes| (sizes.reach / sizes.capacity).saturating_sub(2))
            },
        },
        Knob {
            name: "depot_limit",
            means: "full magazines that the depot keeps",
            range: 0..=MAX_DEPOT as u64,
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

    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let sizes = Sizes::new(geometry.stride(), knobs);
        Self {
            sizes,
            min_partial: geometry.min_partial(),
            fill: sizes.first_fill,
            cpus: vec![Cpu::default(); cpus.count() as usize],
            depot: vec![],
            fewest: 0,
        }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let (at, reach) = (op.cpu as usize, self.sizes.reach);
        if self.cpus[at].stack.is_empty() {
            let magazine = match self.take_from_depot(op) {
                Some(magazine) => magazine,
                None => self.fill(op)?,
            };
            // The caller gets one of the objects.
            let rest = magazine.len() - 1;
            self.cpus[at].widen(rest, reach);
            self.cpus[at].stack = magazine;
        }
        self.cpus[at].used = true;
        self.cpus[at].stack.pop().ok_or(NoMemory)
    }

    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let Sizes { capacity, reach, depot_limit, magazine: bytes, .. } = self.sizes;
        let most = SHARED.max(self.cpus.len() as u64 * SHARED_PER_CPU);
        let cpu = &mut self.cpus[op.cpu as usize];
        let leaving = (cpu.stack.len() == reach).then(|| cpu.stack.split_off(reach - capacity));
        if cpu.widen(cpu.stack.len() + 1, reach) {
            op.did(CostEvent::Widened);
        }
        cpu.stack.push(object);
        cpu.used = true;
        let Some(magazine) = leaving else { return };
        let counted = if self.depot.len() < FREE { 0 } else { bytes };
        if self.depot.len() < depot_limit && (counted == 0 || *op.shared + counted <= most) {
            *op.shared += counted;
            self.depot.push(magazine);
            op.did(CostEvent::Exchange);
        } else {
            if depot_limit > 0 {
                op.did(CostEvent::Miss);
            }
            self.flush(op, magazine);
        }
    }

    fn tick(&mut self, op: &mut Op<'_>) {
        self.reap(op);
        release_empty(op);
    }

    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let mut held = 0;
        for at in 0..self.cpus.len() {
            let stack = self.cpus[at].take_all();
            held += self.flush(op, stack);
        }
        while let Some(magazine) = self.take_from_depot(op) {
            held += self.flush(op, magazine);
        }
        release_empty(op);
        for band in EMPTY + 1..FULL {
            let mut slabs: Vec<_> = op.slabs.walk(band).collect();
            slabs.sort_by_key(|slab| op.slabs.free(*slab).min(SORTED + 1));
            slabs.into_iter().for_each(|slab| op.slabs.relist(slab, band, End::Back));
        }
        held
    }

    fn container(&self) -> u32 {
        self.sizes.capacity as u32
    }
    fn shared(&self) -> u32 {
        self.depot.len() as u32
    }
    fn held(&self) -> Vec<Held> {
        let Sizes { capacity, reach, .. } = self.sizes;
        let stacks = (0..).zip(&self.cpus);
        let stacks = stacks.map(|(number, cpu)| Held::new(Holder::Cpu(number), "stack", reach, &cpu.stack));
        let depot = self.depot.iter().map(|full| Held::new(Holder::Shared, "magazine", capacity, full));
        stacks.chain(depot).collect()
    }
}

impl Uslab {
    fn take_from_depot(&mut self, op: &mut Op<'_>) -> Option<Vec<Object>> {
        let magazine = self.depot.pop()?;
        if self.depot.len() >= FREE {
            *op.shared -= self.sizes.magazine;
        }
        op.did(CostEvent::Exchange);
        self.fewest = self.fewest.min(self.depot.len());
        Some(magazine)
    }

    /// Takes objects from slabs on the lists, or from a new slab.
    fn fill(&mut self, op: &mut Op<'_>) -> Result<Vec<Object>, NoMemory> {
        let ask = self.fill;
        self.fill = (2 * ask).min(self.sizes.capacity);
        let mut objects = Vec::with_capacity(ask);
        while objects.len() < ask
            && let Some(slab) = (EMPTY..FULL).rev().find_map(|list| op.slabs.first(list))
        {
            take(op.slabs, slab, ask, &mut objects);
        }
        // This access to the lists counts even if it found no object.
        op.did(CostEvent::Refill(objects.len() as u32));
        if objects.is_empty() {
            let slab = op.make(EMPTY)?;
            take(op.slabs, slab, ask, &mut objects);
            op.did(CostEvent::Refill(objects.len() as u32));
        }
        Ok(objects)
    }

    /// Returns objects to their slabs, beginning with the last object. Returns the number of flushed objects.
    fn flush(&self, op: &mut Op<'_>, mut objects: Vec<Object>) -> u64 {
        objects.reverse();
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
        objects.len() as u64
    }

    /// Ends a reaping interval. Returns the number of objects flushed to slabs.
    fn reap(&mut self, op: &mut Op<'_>) -> u64 {
        let mut objects = 0;
        for at in 0..self.cpus.len() {
            let cpu = &mut self.cpus[at];
            if !core::mem::take(&mut cpu.used) {
                let idle = cpu.take_all();
                objects += self.flush(op, idle);
            }
        }
        let surplus = self.fewest;
        self.fewest = self.depot.len() - surplus;
        for _ in 0..surplus {
            let magazine = self.take_from_depot(op).unwrap_or_default();
            objects += self.flush(op, magazine);
        }
        objects
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
/// Moves the slab to the end of the list for its fullness; does nothing if the slab is already on this list.
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
