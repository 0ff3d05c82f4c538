//! The levels between a CPU and the slabs of a cache, for any design.

use serde::Serialize;
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
    /// A level with `objects` objects and room for `room`.
    pub fn new(name: &'static str, objects: usize, room: usize) -> Self {
        Self { name, objects: objects as u32, room: room.max(objects) as u32 }
    }
}

impl Levels {
    /// The levels of the shipping allocator: a stack for each CPU, which moves in magazines, and a depot for
    /// each node.
    pub(crate) fn shipping<T>(layer: &LayerView<T>) -> Self {
        let rounds = |magazines: &[MagazineView<T>]| magazines.iter().map(|m| m.rounds.len()).sum();
        let cpus = layer.cpus.iter().map(|cpu| {
            let capacity = cpu.magazines.first().map_or(0, |magazine| magazine.capacity);
            vec![Level::new("stack", rounds(&cpu.magazines), (cpu.most * capacity) as usize)]
        });
        let depot = |depot: &DepotView<T>| {
            let magazines = depot.full.iter();
            magazines.map(|m| Level::new("magazine", m.rounds.len(), m.capacity as usize)).collect()
        };
        Self { cpus: cpus.collect(), shared: layer.depots.iter().map(depot).collect() }
    }
}
