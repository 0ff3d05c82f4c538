//! The magazine layer of 2001, implemented by [`uslab_lab::classic`], on top of a model of the slabs of 1994.
//!
//! ```text
//!   CPU 0: loaded, previous    CPU 1: loaded, previous      magazines of M objects
//!              └──── whole magazines ────┘
//!                 depot: full, empty
//!                         │ one object
//!               slabs as [`bonwick94`](super::bonwick94)
//! ```
//!
//! The model runs the real code of the layer, with its real locks, on simulated CPUs. If no magazine can serve an
//! allocation, one object is taken from a slab; allocations therefore never fill magazines. The magazine size depends
//! on the object's size. Contention for the depot also makes magazines larger, but only a clock that models locks shows
//! this effect. Every 15 seconds, the depot begins to measure its working set anew. Shrinking empties all magazines.
//!
//! Source: Bonwick and Adams, "Magazines and Vmem", USENIX 2001, section 3; the sizes are from illumos.

use super::bonwick94::{self, release_empty};
use crate::design::NoMemory;
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Knob, Op, Policy, default_from_geometry};
use crate::slabs::Object;
use crate::stream::CacheInfo;
use serde::Deserialize;
use std::cell::RefCell;
use uslab::{Geometry, GeometryError};
use uslab_lab::classic::{Cache, Sizes, Slab};
use uslab_magazine::{Cpus, on_cpu};

/// The option for the magazine size; illumos derives the size from the object's size.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The initial number of objects in a magazine.
    pub magsize: Option<usize>,
}

/// A cache that follows the rules of the 2001 magazine layer.
#[derive(Debug)]
pub struct Magazines01 {
    cache: Cache<Object, FlushCollector>,
}

/// The slab layer below the magazines. The supplier has no objects to hand out, and collects returned objects until the
/// model puts them into their slabs.
#[derive(Debug, Default)]
struct FlushCollector(RefCell<Vec<Object>>);

impl Slab<Object> for FlushCollector {
    fn alloc(&self) -> Option<Object> {
        None
    }
    fn free(&self, round: Object) {
        self.0.borrow_mut().push(round);
    }
}

/// The magazine types, each with three numbers: objects per magazine; object size above which a cache starts with this
/// type; object size below which it can grow to the next type.
const MAGAZINE_TYPES: [(usize, usize, usize); 9] = [
    (1, 3200, 65_536),
    (3, 256, 32_768),
    (7, 64, 16_384),
    (15, 0, 8192),
    (31, 0, 4096),
    (47, 0, 2048),
    (63, 0, 1024),
    (95, 0, 512),
    (143, 0, 0),
];

fn sizes(object: usize) -> Sizes {
    let start = MAGAZINE_TYPES.iter().position(|(_, above, _)| object > *above).unwrap_or(3);
    let largest = MAGAZINE_TYPES[start..].iter().find(|(.., grows_below)| object >= *grows_below);
    let (first, ..) = MAGAZINE_TYPES[start];
    Sizes { first, largest: largest.map_or(first, |(rounds, ..)| *rounds), ..Sizes::default() }
}

impl Policy for Magazines01 {
    const NAME: &'static str = "magazines01";
    const DESCRIPTION: &'static str = "the magazine layer of 2001 over a model of the slabs of 1994";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[Knob {
        name: "magsize",
        means: "objects of a magazine at first",
        range: 1..=u32::MAX as u64,
        percent: false,
        default: |size, cpus| {
            default_from_geometry::<Self>(size, cpus, |geometry| sizes(geometry.stride()).first)
        },
    }];
    const LISTS: &'static [&'static str] = bonwick94::Bonwick94::LISTS;
    const TICK: Option<u64> = Some(15_000_000_000);
    const LOCKED: bool = true;

    fn geometry(size: usize, cpus: u32, _: &Knobs) -> Result<Geometry, GeometryError> {
        bonwick94::Bonwick94::geometry(size, cpus, &bonwick94::Knobs {})
    }
    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let of_its_size = sizes(geometry.stride());
        let first = knobs.magsize.unwrap_or(of_its_size.first);
        let sizes = Sizes { first, largest: of_its_size.largest.max(first), ..of_its_size };
        Self { cache: Cache::new(cpus, sizes, FlushCollector::default()) }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let served = self.visit(op, Cache::alloc);
        if let Some(object) = served {
            return Ok(object);
        }
        let object = bonwick94::take(op)?;
        op.did(CostEvent::Refill(1));
        Ok(object)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        self.visit(op, |cache| cache.free(object));
        self.flush_collected_objects(op);
    }
    fn tick(&mut self, _: &mut Op<'_>) {
        self.cache.end_interval();
    }
    fn contended(&mut self) {
        self.cache.count_contention();
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        self.cache.drain();
        let held = self.flush_collected_objects(op);
        release_empty(op);
        held
    }

    fn container(&self) -> u32 {
        self.cache.size() as u32
    }
    fn held(&self) -> Vec<Held> {
        let mut held = vec![];
        self.cache.each_magazine(|cpu, name, room, rounds| {
            let holder = cpu.map_or(Holder::Shared, Holder::Cpu);
            held.push(Held::new(holder, name, room, rounds));
        });
        held
    }
}

impl Magazines01 {
    /// Runs an operation of the magazine layer on the CPU of `op`, and records an access of the depot.
    fn visit<T>(&self, op: &mut Op<'_>, act: impl FnOnce(&Cache<Object, FlushCollector>) -> T) -> T {
        on_cpu(op.cpu);
        let before = self.cache.exchanges();
        let done = act(&self.cache);
        if self.cache.exchanges() != before {
            op.did(CostEvent::Exchange);
        }
        done
    }
    fn flush_collected_objects(&self, op: &mut Op<'_>) -> u64 {
        let objects = self.cache.slab().0.take();
        let held = objects.len() as u64;
        if held > 0 {
            op.did(CostEvent::Flush(held as u32));
        }
        objects.into_iter().for_each(|object| bonwick94::put(op, object));
        held
    }
}

#[cfg(test)]
mod tests;
