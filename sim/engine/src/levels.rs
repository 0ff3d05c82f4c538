//! The levels between a CPU and the slabs of a cache, for any design.

use serde::Serialize;
use uslab::ObjectPlace;
use uslab_magazine::{DepotView, LayerView, MagazineView};

/// A level that holds objects: a stack, a sheaf, an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Level {
    /// The design's name for it.
    pub name: &'static str,
    /// The number of objects in it.
    pub objects: u32,
    /// The number of objects that fit into it.
    pub room: u32,
    /// The objects, the next to be handed out last: the first page of the slab, and the object in it.
    pub places: Vec<(u32, u16)>,
}

/// The levels of a cache that CPUs have, and those that they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// By CPU: the level that serves first comes first.
    pub cpus: Vec<Vec<Level>>,
    /// By node: full magazines or sheaves, or a shared array.
    pub shared: Vec<Vec<Level>>,
}

impl Level {
    /// Creates a level that holds `places` and has room for `room` objects.
    pub fn new(name: &'static str, places: Vec<(u32, u16)>, room: usize) -> Self {
        Self { name, objects: places.len() as u32, room: room.max(places.len()) as u32, places }
    }
}

impl Levels {
    /// The levels of the shipping allocator: a stack for each CPU, which moves in magazines of `capacity`, and a depot for each
    /// node.
    pub(crate) fn shipping(layer: &LayerView<ObjectPlace>, capacity: u32) -> Self {
        let places = |magazine: &MagazineView<ObjectPlace>| {
            magazine.rounds.iter().map(|place| (place.slab.get(), place.index)).collect::<Vec<_>>()
        };
        let cpus = layer.cpus.iter().map(|cpu| {
            let stack = cpu.magazines.iter().rev().flat_map(places).collect();
            vec![Level::new("stack", stack, (cpu.most * capacity) as usize)]
        });
        let depot = |depot: &DepotView<ObjectPlace>| {
            let magazines = depot.full.iter();
            magazines.map(|m| Level::new("magazine", places(m), m.capacity as usize)).collect()
        };
        Self { cpus: cpus.collect(), shared: layer.depots.iter().map(depot).collect() }
    }
}
