//! A model of SLUB with sheaves, as Linux 6.18 has it: arrays of objects for each CPU, and a barn of full and empty ones.
//!
//! ```text
//!   CPU 0: main [o o o .]  spare [. . . .]     CPU 1: main, spare      the spare sheaf is full, empty or missing
//!              └───────── whole sheaves ─────────┘
//!                barn: at most 10 full, 10 empty
//!                          │ whole sheaves' worth of objects
//!                   slabs as [`slub`](super::slub)
//! ```
//!
//! - **Allocate**: from the main sheaf. If that is empty: the spare one, if it has objects; then a full one of the barn for the
//!   empty one; then an empty sheaf, the spare one or another, is filled from slabs and becomes the main one.
//! - **Free**: to the main sheaf. If that is full: the spare one, if it has room; if there is no spare one, an empty sheaf of
//!   the barn or a new one; then an empty one of the barn for the full one. A barn that has ten full ones takes no more: the
//!   spare sheaf is emptied to the slabs instead.
//! - **Shrink**: all sheaves are emptied to the slabs, and slabs go as SLUB's do.
//!
//! Objects in sheaves count as active. In 6.18 two caches have sheaves, `maple_node` and `vm_area_struct`, of 32 objects each;
//! all others are plain SLUB. With `sheaf_capacity=N` all have them, of at least so many objects.
//!
//! Source: `Documentation/ABI` and the patch series "SLUB percpu sheaves", in our own words. A stream does not tell
//! `kfree_rcu` from `kfree`, so there are no sheaves that wait for a grace period.

use super::slub::{self, Slub};
use crate::design::NoMemory;
use crate::held::{Held, Holder, OwnSlabs};
use crate::model::{Deed, Knob, Op, Policy};
use crate::slabs::Object;
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::{Geometry, GeometryError};
use uslab_magazine::Cpus;

/// What can be set: that of SLUB, and the sheaves' size.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// Objects of a sheaf, for all caches; `None`: as 6.18 has it.
    pub sheaf_capacity: Option<usize>,
    /// As in [`slub::Knobs`].
    pub cpu_partial: Option<u32>,
    /// As in [`slub::Knobs`].
    pub min_partial: Option<usize>,
}

impl Knobs {
    fn slub(&self) -> slub::Knobs {
        let Self { cpu_partial, min_partial, .. } = *self;
        slub::Knobs { cpu_partial, min_partial, ..slub::Knobs::default() }
    }
}

/// Full sheaves that a barn takes, and empty ones.
const BARN: usize = 10;

/// A cache with sheaves.
#[derive(Debug)]
pub struct Sheaves {
    /// Objects of a sheaf; 0: none.
    capacity: usize,
    cpus: Vec<Cpu>,
    full: Vec<Vec<Object>>,
    /// Empty sheaves of the barn.
    empty: usize,
    slub: Slub,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    main: Vec<Object>,
    /// Full or empty, where there is one.
    spare: Option<Vec<Object>>,
}

impl Policy for Sheaves {
    const NAME: &'static str = "sheaves";
    const ABOUT: &'static str = "a model of SLUB in Linux 6.18: two sheaves for each CPU, and a barn";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[
        Knob {
            name: "sheaf_capacity",
            means: "objects of a sheaf; not set, only maple_node and vm_area_struct have sheaves, of 32",
            range: 1..=u32::MAX as u64,
            default: |_, _| 0,
        },
        slub::CPU_PARTIAL_KNOB,
        slub::MIN_PARTIAL_KNOB,
    ];
    const LISTS: &'static [&'static str] = Slub::LISTS;

    fn geometry(size: usize, cpus: u32, knobs: &Knobs) -> Result<Geometry, GeometryError> {
        Slub::geometry(size, cpus, &knobs.slub())
    }
    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let capacity = match (&*info.name, knobs.sheaf_capacity) {
            (_, Some(capacity)) => capacity,
            ("maple_node" | "vm_area_struct", None) => 32,
            _ => 0,
        };
        Self {
            capacity,
            cpus: vec![Cpu::default(); cpus.count() as usize],
            full: vec![],
            empty: 0,
            slub: Slub::new(info, cpus, geometry, &knobs.slub()),
        }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        if self.capacity == 0 {
            return self.slub.alloc(op);
        }
        if self.cpus[op.cpu as usize].main.is_empty() {
            self.fill_main(op)?;
        }
        self.cpus[op.cpu as usize].main.pop().ok_or(NoMemory)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        if self.capacity == 0 {
            return self.slub.free(op, object);
        }
        if self.cpus[op.cpu as usize].main.len() == self.capacity {
            self.make_room(op);
        }
        self.cpus[op.cpu as usize].main.push(object);
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let cpus = self.cpus.iter_mut().map(core::mem::take);
        let sheaves = cpus.flat_map(|cpu| [cpu.main, cpu.spare.unwrap_or_default()]);
        let objects: Vec<_> = sheaves.chain(self.full.drain(..)).flatten().collect();
        self.empty = 0;
        let held = objects.len() as u64;
        self.flush(op, objects);
        held + self.slub.shrink(op)
    }

    fn container(&self) -> u32 {
        self.capacity as u32
    }
    fn held(&self) -> Vec<Held> {
        if self.capacity == 0 {
            return vec![];
        }
        let sheaf = |holder, name, objects: &[Object]| Held::new(holder, name, self.capacity, objects);
        let of_cpu = |(cpu, number): (&Cpu, u32)| {
            let main = sheaf(Holder::Cpu(number), "main sheaf", &cpu.main);
            let spare = cpu.spare.as_ref().map(|spare| sheaf(Holder::Cpu(number), "spare", spare));
            [Some(main), spare].into_iter().flatten().collect::<Vec<_>>()
        };
        let cpus = self.cpus.iter().zip(0..).flat_map(of_cpu);
        cpus.chain(self.full.iter().map(|full| sheaf(Holder::Shared, "full sheaf", full))).collect()
    }
    fn own_slabs(&self) -> Vec<OwnSlabs> {
        self.slub.own_slabs()
    }
}

impl Sheaves {
    /// A main sheaf with objects instead of the empty one.
    fn fill_main(&mut self, op: &mut Op<'_>) -> Result<(), NoMemory> {
        let Cpu { main, spare } = &mut self.cpus[op.cpu as usize];
        if let Some(spare) = spare
            && !spare.is_empty()
        {
            core::mem::swap(main, spare);
            op.did(Deed::Swap);
            return Ok(());
        }
        if let Some(full) = self.full.pop() {
            *main = full;
            self.empty += 1;
            op.did(Deed::Exchange);
            return Ok(());
        }
        op.did(Deed::Miss);
        // The empty sheaf that is filled: the spare one, or one of the barn, or a new one. The main one, which is empty, takes the
        // spare one's place.
        if spare.take().is_none() {
            self.empty = self.empty.saturating_sub(1);
        }
        let mut sheaf = Vec::with_capacity(self.capacity);
        while sheaf.len() < self.capacity {
            match self.slub.alloc(op) {
                Ok(object) => sheaf.push(object),
                Err(NoMemory) if sheaf.is_empty() => return Err(NoMemory),
                Err(NoMemory) => break,
            }
        }
        op.did(Deed::Refill(sheaf.len() as u32));
        let cpu = &mut self.cpus[op.cpu as usize];
        cpu.spare = Some(core::mem::replace(&mut cpu.main, sheaf));
        Ok(())
    }

    /// A main sheaf with room instead of the full one.
    fn make_room(&mut self, op: &mut Op<'_>) {
        let Cpu { main, spare } = &mut self.cpus[op.cpu as usize];
        match spare {
            Some(spare) if spare.len() < self.capacity => {
                core::mem::swap(main, spare);
                op.did(Deed::Swap);
            }
            None => {
                *spare = Some(core::mem::take(main));
                if self.empty > 0 {
                    self.empty -= 1;
                    op.did(Deed::Exchange);
                }
            }
            // Too many full ones: the spare one is emptied, and is the main one then.
            Some(spare) if self.full.len() >= BARN => {
                let objects = core::mem::take(spare);
                core::mem::swap(main, spare);
                op.did(Deed::Miss);
                self.flush(op, objects);
            }
            Some(_) => {
                self.full.push(core::mem::take(main));
                self.empty = self.empty.saturating_sub(1);
                op.did(Deed::Exchange);
            }
        }
    }
    fn flush(&mut self, op: &mut Op<'_>, objects: Vec<Object>) {
        if objects.is_empty() {
            return;
        }
        op.did(Deed::Flush(objects.len() as u32));
        objects.into_iter().for_each(|object| self.slub.free(op, object));
    }
}

#[cfg(test)]
mod tests;
