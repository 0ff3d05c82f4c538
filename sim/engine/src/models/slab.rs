//! A model of Linux's SLAB, which 6.8 removed: an array of objects for each CPU, an array that all CPUs share, and
//! three lists of slabs.
//!
//! ```text
//!   CPU 0   [o o o o . .]   CPU 1   [o . . . . .]     arrays of `limit` objects, the last freed is the first to go
//!              │ batchcount             ▲
//!              ▼                        │
//!   shared  [o o o o o o o o . . . . . . . .]          `shared` times `batchcount` objects
//!              │                        ▲
//!              ▼                        │
//!   partial slabs, free slabs, full slabs              at most `free_limit` free objects, beyond them free slabs go
//! ```
//!
//! - **Allocate**: take an object from the CPU's array. If the array is empty, take `batchcount` objects from the
//!   shared array; else from partial slabs, then free slabs, then one new slab. An array that was not used since its
//!   last reap takes only 16 objects from the lower levels.
//! - **Free**: put the object into the CPU's array. If the CPU's array is full, its oldest `batchcount` objects move to
//!   the shared array, as far as they fit. Objects that do not fit into the shared array move to their slabs. A slab
//!   that gets a free object moves to the back of the partial list.
//! - **Every two seconds**: if a CPU's array was not used in this interval, a fifth of it moves to slabs. Every four
//!   seconds, if a shared array was not used in this interval, a fifth of it moves to slabs. A reap frees a fifth of
//!   the limit on free slabs if no allocation has needed a free slab since the last reap.
//! - **Shrink**: flush all arrays, and free all free slabs.
//!
//! A slab has order 0 if at most an eighth of it is then wasted; otherwise it has order 1, or the larger order that one
//! object needs.
//!
//! Source: Linux's documentation of `/proc/slabinfo` and of SLAB's tunables, Gorman, "Understanding the Linux Virtual
//! Memory Manager", chapter 8, and public descriptions of `mm/slab.c` until 6.7. The model has one node, so it has no
//! alien arrays. In the model, a slab's metadata uses no space in the slab. In the model, all CPUs reap at the same
//! time; in the kernel, the CPUs reap at different times.

use super::bonwick94::{EMPTY, FULL, PARTIAL, geometry_wasting_at_most_an_eighth};
use crate::design::{NoMemory, Unsupported};
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Knob, Op, Policy, default_from_geometry};
use crate::slabs::{End, Object};
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::{Geometry, GeometryError};
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::Cpus;

/// The tunables of SLAB, which can be changed through `/proc/slabinfo`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The number of objects in a CPU's array; `None` derives the number from the object size.
    pub limit: Option<u32>,
    /// The number of objects that are moved together. If `None`, the number is half of `limit`.
    pub batchcount: Option<u32>,
    /// The number of batches that fit into the shared array. `None` means 8 on a machine with several CPUs for objects
    /// of at most a page, and otherwise 0.
    pub shared: Option<u32>,
}

/// The number of objects with which an empty array is filled if it was not used recently.
const COLD_BATCH: usize = 16;

/// Returns the default number of objects in a CPU's array, which depends on the object size.
fn limit(size: usize) -> u32 {
    match size {
        131_073.. => 1,
        4097.. => 8,
        1025.. => 24,
        257.. => 54,
        _ => 120,
    }
}

/// Returns the default number of batches in the shared array, which depends on the object size.
fn shared(size: usize, cpus: u32) -> u32 {
    if size <= PAGE_SIZE && cpus > 1 { 8 } else { 0 }
}

/// A cache that follows SLAB's rules.
#[derive(Debug)]
pub struct Slab {
    cpus: Vec<Array>,
    shared: Array,
    batchcount: usize,
    free_limit: u64,
    /// `true` if an allocation needed a free slab since the last reap of the lists.
    free_touched: bool,
    reaps: u64,
}

#[derive(Clone, Debug, Default)]
struct Array {
    /// The objects of the array, oldest first.
    objects: Vec<Object>,
    limit: usize,
    touched: bool,
}

impl Array {
    fn room(&self) -> usize {
        self.limit - self.objects.len()
    }
}

impl Policy for Slab {
    const NAME: &'static str = "slab";
    const DESCRIPTION: &'static str =
        "a model of SLAB in Linux until 6.7: an array for each CPU, and a shared one";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[
        Knob {
            name: "limit",
            means: "objects of a CPU's array",
            range: 1..=u32::MAX as u64,
            percent: false,
            default: |size, cpus| {
                default_from_geometry::<Slab>(size, cpus, |geometry| limit(geometry.stride()) as usize)
            },
        },
        Knob {
            name: "batchcount",
            means: "objects that move at once, half of limit where it is not set",
            range: 1..=u32::MAX as u64,
            percent: false,
            default: |size, cpus| {
                default_from_geometry::<Slab>(size, cpus, |geometry| {
                    limit(geometry.stride()).div_ceil(2) as usize
                })
            },
        },
        Knob {
            name: "shared",
            means: "batches that the shared array has room for",
            range: 0..=u32::MAX as u64,
            percent: false,
            default: |size, cpus| {
                default_from_geometry::<Slab>(size, cpus, |geometry| shared(geometry.stride(), cpus) as usize)
            },
        },
    ];
    const LISTS: &'static [&'static str] = &["partial", "free", "full"];
    const TICK: Option<u64> = Some(2_000_000_000);

    fn accept(knobs: &Knobs) -> Result<(), Unsupported> {
        match (knobs.limit, knobs.batchcount) {
            (Some(limit), Some(batch)) if batch > limit => {
                Err(Unsupported(format!("batchcount={batch}: expected at most `limit`, which is {limit}")))
            }
            _ => Ok(()),
        }
    }
    fn geometry(size: usize, _: u32, _: &Knobs) -> Result<Geometry, GeometryError> {
        geometry_wasting_at_most_an_eighth(size, 1)
    }
    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let size = geometry.stride();
        let limit = knobs.limit.unwrap_or(limit(size)) as usize;
        let batchcount = knobs.batchcount.map_or(limit.div_ceil(2), |batch| (batch as usize).min(limit));
        let shared = knobs.shared.unwrap_or(shared(size, cpus.count())) as usize;
        Self {
            cpus: vec![Array { limit, ..Array::default() }; cpus.count() as usize],
            shared: Array { limit: shared * batchcount, ..Array::default() },
            batchcount,
            free_limit: (1 + u64::from(cpus.count())) * batchcount as u64 + geometry.objects() as u64,
            free_touched: false,
            reaps: 0,
        }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let cpu = op.cpu as usize;
        if self.cpus[cpu].objects.is_empty() {
            self.refill(op);
        }
        self.cpus[cpu].touched = true;
        self.cpus[cpu].objects.pop().ok_or(NoMemory)
    }

    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let array = &mut self.cpus[op.cpu as usize];
        if array.room() == 0 {
            let shared = self.shared.room().min(self.batchcount);
            if shared > 0 {
                self.shared.objects.extend(array.objects.drain(..shared));
                op.did(CostEvent::Exchange);
            } else {
                let objects = array.objects.drain(..self.batchcount).collect();
                self.put(op, objects);
            }
        }
        self.cpus[op.cpu as usize].objects.push(object);
    }

    fn tick(&mut self, op: &mut Op<'_>) {
        for cpu in 0..self.cpus.len() {
            let objects = reap(&mut self.cpus[cpu]);
            self.put(op, objects);
        }
        self.reaps += 1;
        if !self.reaps.is_multiple_of(2) {
            return;
        }
        let objects = reap(&mut self.shared);
        self.put(op, objects);
        if !core::mem::take(&mut self.free_touched) {
            let slabs = self.free_limit.div_ceil(5 * u64::from(op.slabs.objects()));
            for _ in 0..slabs {
                let Some(slab) = op.slabs.last(EMPTY) else { break };
                op.release(slab);
            }
        }
    }

    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let arrays = self.cpus.iter_mut().chain([&mut self.shared]);
        let objects: Vec<_> = arrays.flat_map(|array| core::mem::take(&mut array.objects)).collect();
        let held = objects.len() as u64;
        self.put(op, objects);
        while let Some(slab) = op.slabs.last(EMPTY) {
            op.release(slab);
        }
        held
    }

    fn container(&self) -> u32 {
        self.cpus[0].limit as u32
    }
    fn held(&self) -> Vec<Held> {
        let held = |holder, name, array: &Array| Held::new(holder, name, array.limit, &array.objects);
        let cpus = self.cpus.iter().zip(0..).map(|(array, cpu)| held(Holder::Cpu(cpu), "array", array));
        cpus.chain([held(Holder::Shared, "shared array", &self.shared)]).collect()
    }
}

/// Takes the oldest objects out of an array that was not used since the last reap.
fn reap(array: &mut Array) -> Vec<Object> {
    if array.objects.is_empty() || core::mem::take(&mut array.touched) {
        return vec![];
    }
    let fifth = array.limit.div_ceil(5);
    let held = array.objects.len();
    array.objects.drain(..if fifth > held { held.div_ceil(2) } else { fifth }).collect()
}

impl Slab {
    /// Fills the CPU's empty array; the array stays partly empty only if memory is exhausted.
    fn refill(&mut self, op: &mut Op<'_>) {
        let array = &mut self.cpus[op.cpu as usize];
        let batch = if array.touched { self.batchcount } else { self.batchcount.min(COLD_BATCH) };
        if !self.shared.objects.is_empty() {
            let from = self.shared.objects.len().saturating_sub(batch);
            array.objects.extend(self.shared.objects.drain(from..));
            self.shared.touched = true;
            op.did(CostEvent::Exchange);
            return;
        }
        if self.shared.limit > 0 {
            op.did(CostEvent::Miss);
        }
        while array.objects.len() < batch {
            let slab = match (op.slabs.first(PARTIAL), op.slabs.first(EMPTY)) {
                (Some(slab), _) => slab,
                (None, Some(slab)) => {
                    self.free_touched = true;
                    slab
                }
                // A new slab is created only if the array would otherwise stay empty.
                (None, None) if array.objects.is_empty() => match op.make(EMPTY) {
                    Ok(slab) => slab,
                    Err(NoMemory) => return,
                },
                (None, None) => break,
            };
            while array.objects.len() < batch
                && let Some(object) = op.slabs.take(slab)
            {
                array.objects.push(object);
            }
            let list = if op.slabs.free(slab) == 0 { FULL } else { PARTIAL };
            op.slabs.relist(slab, list, End::Front);
        }
        op.did(CostEvent::Refill(array.objects.len() as u32));
    }
    /// Returns objects to their slabs, and then frees the empty slabs that exceed the limit.
    fn put(&mut self, op: &mut Op<'_>, objects: Vec<Object>) {
        if objects.is_empty() {
            return;
        }
        op.did(CostEvent::Flush(objects.len() as u32));
        for object in objects {
            op.slabs.put(object);
            let slab = object.slab;
            if op.slabs.is_empty(slab) {
                op.slabs.relist(slab, EMPTY, End::Front);
            } else {
                op.slabs.relist(slab, PARTIAL, End::Back);
            }
        }
        while op.slabs.free_objects_in_all_slabs() > self.free_limit
            && let Some(slab) = op.slabs.last(EMPTY)
        {
            op.release(slab);
        }
    }
}

#[cfg(test)]
mod tests;
