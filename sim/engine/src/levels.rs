//! What lies between a CPU and the slabs of a cache, level by level, whatever the design calls it.

use serde::Serialize;
use uslab_magazine::{DepotView, LayerView, MagazineView};

/// A place for objects: a stack, a sheaf, an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Level {
    /// What the design calls it.
    pub name: &'static str,
    /// Objects that lie there.
    pub objects: u32,
    /// Objects that it has room for.
    pub room: u32,
}

/// What CPUs hold of a cache, and what they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// By CPU: the level that serves first comes first.
    pub cpus: Vec<Vec<Level>>,
    /// By node: full magazines or sheaves, or a shared array.
    pub shared: Vec<Vec<Level>>,
}

impl Level {
    /// So many objects, where there is room for so many.
    pub fn new(name: &'static str, objects: usize, room: usize) -> Self {
        Self { name, objects: objects as u32, room: room.max(objects) as u32 }
    }
}

impl Levels {
    /// Of the shipping allocator: a stack for each CPU, which moves in magazines, and a depot for each node.
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
