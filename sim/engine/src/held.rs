//! The objects that a policy holds outside of slabs.

use crate::levels::{CacheLevels, Level};
use crate::slabs::{Object, Slabs};

/// The CPU or shared level that holds objects outside of slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A single CPU holds the container.
    Cpu(u32),
    /// All CPUs share the container: a depot, a barn or a shared array.
    Shared,
}

/// A container of objects outside of slabs: an array, a magazine, a sheaf.
#[derive(Clone, Debug)]
pub struct Held {
    /// The CPU or shared level that holds the container.
    pub holder: Holder,
    /// The design's name for the container.
    pub name: &'static str,
    /// The number of objects that fit into the container.
    pub room: usize,
    /// The objects in the container.
    pub objects: Vec<Object>,
}

impl Held {
    /// Creates a container with these objects and the given capacity.
    pub fn new(holder: Holder, name: &'static str, room: usize, objects: &[Object]) -> Self {
        Self { holder, name, room, objects: objects.to_vec() }
    }
}

/// The slabs that one CPU owns. Other CPUs cannot allocate free objects of an owned slab, so the owner counts as
/// holding these objects.
#[derive(Clone, Debug)]
pub struct CpuOwnedSlabs {
    /// The CPU that owns the slabs.
    pub cpu: u32,
    /// The design's name for owned slabs.
    pub name: &'static str,
    /// The numbers of the owned slabs.
    pub slabs: Vec<u32>,
}

impl CacheLevels {
    /// Builds the levels of a policy's cache on one node, from the policy's containers and owned slabs.
    pub fn of(containers: &[Held], owned_slabs: &[CpuOwnedSlabs], slabs: &Slabs, cpus: u32) -> Self {
        let mut levels = Self { cpus: vec![vec![]; cpus as usize], shared: vec![vec![]] };
        for Held { holder, name, room, objects } in containers {
            let owned_slabs = match *holder {
                Holder::Cpu(cpu) => &mut levels.cpus[cpu as usize],
                Holder::Shared => &mut levels.shared[0],
            };
            let places = objects.iter().map(|object| (object.page, object.index)).collect();
            owned_slabs.push(Level::new(name, places, *room));
        }
        for CpuOwnedSlabs { cpu, name, slabs: owned_slabs } in owned_slabs {
            let free = |slab: &u32| {
                let (slab, page) = (*slab, slabs.page(*slab));
                let free = (0..slabs.objects_of(slab)).filter(move |index| !slabs.is_allocated(slab, *index));
                free.map(move |index| (page, index))
            };
            let places = owned_slabs.iter().flat_map(free).collect();
            let room = owned_slabs.iter().map(|slab| usize::from(slabs.objects_of(*slab))).sum();
            // A policy may have more CPUs than the stream; the additional CPUs have no operations.
            if let Some(levels) = levels.cpus.get_mut(*cpu as usize) {
                levels.push(Level::new(name, places, room));
            }
        }
        levels
    }
}
