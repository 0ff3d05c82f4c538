//! What a policy holds outside of slabs.

use crate::levels::{Level, Levels};
use crate::slabs::Object;

/// Who holds objects outside of slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A CPU.
    Cpu(u32),
    /// A depot, a barn, a shared array.
    Shared,
}

/// A place for objects outside of slabs: an array, a magazine, a sheaf.
#[derive(Clone, Debug)]
pub struct Held {
    /// Whose it is.
    pub holder: Holder,
    /// What it is called.
    pub name: &'static str,
    /// Objects that it has room for.
    pub room: usize,
    /// Those that it has.
    pub objects: Vec<Object>,
}

impl Held {
    /// These objects, in a place that has room for so many.
    pub fn new(holder: Holder, name: &'static str, room: usize, objects: &[Object]) -> Self {
        Self { holder, name, room, objects: objects.to_vec() }
    }
}

impl Levels {
    /// Of a policy that holds these, on one node.
    pub fn of(held: &[Held], cpus: u32) -> Self {
        let mut levels = Self { cpus: vec![vec![]; cpus as usize], shared: vec![vec![]] };
        for Held { holder, name, room, objects } in held {
            let own = match *holder {
                Holder::Cpu(cpu) => &mut levels.cpus[cpu as usize],
                Holder::Shared => &mut levels.shared[0],
            };
            own.push(Level::new(name, objects.len(), *room));
        }
        levels
    }
}
