//! The levels between a CPU and the slabs of a cache, for any design.

use serde::Serialize;
use uslab::ObjectPlace;
use uslab_magazine::{DepotView, LayerView, MagazineView};

/// A level that holds free objects, such as a stack, a sheaf or an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Level {
    /// The design's name for the level.
    pub name: &'static str,
    /// The number of objects in the level.
    pub objects: u32,
    /// The number of objects that fit into the level.
    pub room: u32,
    /// The location of each object: the first page of its slab, and its index in the slab; the last object is allocated
    /// next.
    pub places: Vec<(u32, u16)>,
}

/// The per-CPU levels and the shared levels of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheLevels {
    /// For each CPU, its levels, beginning with the level that serves requests first.
    pub cpus: Vec<Vec<Level>>,
    /// For each node, its shared levels: full magazines or sheaves, or a shared array.
    pub shared: Vec<Vec<Level>>,
}

impl Level {
    /// Creates a level that holds the objects at `places` and has a capacity of `room` objects.
    pub fn new(name: &'static str, places: Vec<(u32, u16)>, room: usize) -> Self {
        Self { name, objects: places.len() as u32, room: room.max(places.len()) as u32, places }
    }
}

impl CacheLevels {
    /// Builds the levels of the shipping allocator: for each CPU, a stack divided into magazines of `capacity` objects;
    /// for each node, a depot.
    pub(crate) fn shipping(layer: &LayerView<ObjectPlace>, capacity: u32) -> Self {
        let places = |magazine: &MagazineView<ObjectPlace>| {
            magazine.rounds.iter().map(|place| (place.slab.get(), place.index)).collect::<Vec<_>>()
        };
        let cpus = layer.cpus.iter().map(|cpu| {
            let mut stack = Vec::with_capacity(cpu.magazines.iter().map(|m| m.rounds.len()).sum());
            for magazine in cpu.magazines.iter().rev() {
                stack.extend(magazine.rounds.iter().map(|place| (place.slab.get(), place.index)));
            }
            vec![Level::new("stack", stack, (cpu.most * capacity) as usize)]
        });
        let depot = |depot: &DepotView<ObjectPlace>| {
            let magazines = depot.full.iter();
            magazines.map(|m| Level::new("magazine", places(m), m.capacity as usize)).collect()
        };
        Self { cpus: cpus.collect(), shared: layer.depots.iter().map(depot).collect() }
    }
}
