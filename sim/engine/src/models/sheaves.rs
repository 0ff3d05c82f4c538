//! Models of SLUB with sheaves: arrays of objects for each CPU, and a barn of full and empty sheaves. Linux 7.x has
//! sheaves for every cache, on top of the slab list of the [`Node`]. Linux 6.18 and 6.19 have sheaves for two caches,
//! on top of the CPUs' slabs of [`Slub`].
//!
//! ```text
//!   CPU 0: main [o o o .]  spare [. . . .]  rcu [o . . .]     CPU 1 ...     the spare sheaf is full, empty or missing
//!              └───────── whole sheaves ─────────┘
//!                barn: at most 10 full, 10 empty
//!                          │ as many objects as a sheaf has room for
//!              7.x: the node's partial slabs        6.18: as [`slub`](super::slub)
//! ```
//!
//! - **Allocate**: take an object from the main sheaf. If the main sheaf is empty, swap it with a spare sheaf that has
//!   objects; else exchange it for a full sheaf of the barn; else fill an empty sheaf and use it as the main sheaf. In
//!   Linux 6.18, a non-blocking request does not fill a sheaf, but takes one object from the layer below.
//! - **Free**: put the object into the main sheaf. If the main sheaf is full, swap it with a spare sheaf that has room;
//!   without a spare sheaf, make the full sheaf the spare; else exchange it for an empty sheaf of the barn. If the barn
//!   already has ten full sheaves, flush the spare sheaf.
//! - **Free after a grace period**: put the object into the CPU's rcu sheaf. A full rcu sheaf waits for a
//!   grace period as a whole. After the grace period, the rcu sheaf moves to the barn, or is flushed if the
//!   barn has ten full sheaves.
//! - **Refill** (7.x): slabs leave the front of the node's list until their free objects suffice to fill the sheaf. The
//!   slab that left the list last supplies its objects first. A partly used slab returns to the back of the list, and
//!   unused slabs return to its front. Empty slabs are freed if the list has [`min_partial`](Knobs::min_partial) slabs.
//!   If the sheaf still has room, new slabs are created, and the unused objects of the last new slab enter at the
//!   front.
//! - **Flush** (7.x): return objects to their slabs, from the last object to the first; nearby objects of one slab are
//!   returned together. A slab that was full enters the list at its back. A slab that becomes empty is freed if the
//!   list has `min_partial` slabs.
//! - **Shrink**: flush all sheaves, free empty slabs, and sort the list, fullest first.
//!
//! Objects in sheaves count as active in `/proc/slabinfo`.
//!
//! Source: `Documentation/ABI`, LWN "Slabs, sheaves, and barns", and the cover letters of "SLUB percpu sheaves" and of
//! "slab: replace cpu (partial) slabs with sheaves", paraphrased.

use super::slub::{self, FULL, PARTIAL, Slub};
use crate::design::{CallMode, NoMemory};
use crate::held::{CpuOwnedSlabs, Held, Holder};
use crate::model::{CostEvent, Knob, Op, Policy, default_from_geometry};
use crate::slabs::{End, Object};
use crate::stream::CacheInfo;
use serde::Deserialize;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use uslab::{Geometry, GeometryError};
use uslab_magazine::Cpus;

/// The options of SLUB, together with the size of sheaves.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The capacity of a sheaf in objects; 0 disables sheaves. If `None`, the cache has the recorded capacity, or else
    /// the capacity that the kernel computes.
    pub sheaf_capacity: Option<Capacity>,
    /// The option `cpu_partial`, with the same meaning as in the design `slub`.
    pub cpu_partial: Option<u32>,
    /// The option `min_partial`, with the same meaning as in the design `slub`.
    pub min_partial: Option<usize>,
    /// The option [`slub::Knobs::slab_min_objects`].
    pub slab_min_objects: Option<u32>,
    /// The option [`slub::Knobs::slab_min_order`].
    pub slab_min_order: Option<u8>,
    /// The option [`slub::Knobs::slab_max_order`].
    pub slab_max_order: Option<u8>,
}

/// The capacity of a sheaf; as text, `N` is a number of objects, and `P%` is a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub enum Capacity {
    /// A number of objects, the same for all caches.
    Objects(u64),
    /// A percentage of the capacity that each cache has without this option.
    Percent(u64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

/// The error for a text that is not a [`Capacity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCapacity {
    /// The text is neither a number of objects nor a percentage.
    #[error("N objects, up to {most}, or P%, such as 50%", most = Capacity::MAX_OBJECTS)]
    Form,
    /// The percentage is not a number or is too large.
    #[error("P%, with P from 0 to {most}", most = Capacity::MAX_PERCENT)]
    Percent,
}

impl Capacity {
    /// The largest capacity of a sheaf in objects.
    pub const MAX_OBJECTS: u64 = 1 << 16;
    /// The largest percentage.
    pub const MAX_PERCENT: u64 = 10_000;

    /// Returns the capacity of a cache whose capacity without the option is `present`.
    pub fn of(self, present: u64) -> u64 {
        match self {
            Self::Objects(objects) => objects,
            Self::Percent(percent) => (present * percent / 100).min(Self::MAX_OBJECTS),
        }
    }
}

impl FromStr for Capacity {
    type Err = BadCapacity;

    fn from_str(text: &str) -> Result<Self, BadCapacity> {
        let number = |text: &str, most| text.parse::<u64>().ok().filter(|number| *number <= most);
        match text.strip_suffix('%') {
            Some(percent) => {
                number(percent, Self::MAX_PERCENT).map(Self::Percent).ok_or(BadCapacity::Percent)
            }
            None => number(text, Self::MAX_OBJECTS).map(Self::Objects).ok_or(BadCapacity::Form),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(objects) => write!(f, "{objects}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl TryFrom<NumberOrText> for Capacity {
    type Error = String;

    fn try_from(from: NumberOrText) -> Result<Self, String> {
        let text = match from {
            NumberOrText::Number(number) => number.to_string(),
            NumberOrText::Text(text) => text,
        };
        text.parse().map_err(|error| format!("sheaf_capacity={text}: expected {error}"))
    }
}

impl Knobs {
    fn slub(&self) -> slub::Knobs {
        let Self { cpu_partial, min_partial, slab_min_objects, slab_min_order, slab_max_order, .. } = *self;
        slub::Knobs { cpu_partial, min_partial, slab_min_objects, slab_min_order, slab_max_order, cpus: None }
    }
}

/// The largest number of full sheaves in a barn; the same limit applies to its empty sheaves.
const BARN: usize = 10;
/// The nanoseconds for which a full rcu sheaf waits, a typical grace period on a busy machine.
const GRACE_PERIOD_NS: u64 = 20_000_000;

/// The layer below sheaves, which fills sheaves and accepts flushed objects.
pub trait SlabLayer: std::fmt::Debug + Sized {
    /// The name of the design that has this layer.
    const NAME: &'static str;
    /// A one-line description of the design that has this layer.
    const DESCRIPTION: &'static str;
    /// The options that the design with this layer has: see [`Policy::KNOBS`].
    const KNOBS: &'static [Knob];

    /// Returns the number of objects in a sheaf, as the kernel computes it; 0 if the cache has no sheaves.
    fn capacity(name: &str, stride: usize) -> usize;
    /// Creates the layer of a cache without slabs.
    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self;
    /// Returns `true` if a request with the constraints in `manner` may fill a sheaf.
    fn refills(manner: CallMode) -> bool;
    /// Allocates one object without a sheaf.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    fn alloc_without_sheaf(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory>;
    /// Adds objects to a sheaf until it has `room` objects, or until memory is exhausted.
    fn refill(&mut self, op: &mut Op<'_>, sheaf: &mut Vec<Object>, room: usize);
    /// Takes back flushed objects, which all belong to one slab.
    fn take_back(&mut self, op: &mut Op<'_>, objects: &[Object]);
    /// Gives a slab to the CPU: see [`Policy::adopt`].
    fn adopt(&mut self, _: &mut Op<'_>, _slab: u32) {}
    /// Frees as much memory as possible: see [`Policy::shrink`].
    fn shrink(&mut self, op: &mut Op<'_>);
    /// Returns the slabs that CPUs own: see [`Policy::own_slabs`].
    fn own_slabs(&self) -> Vec<CpuOwnedSlabs>;
}

/// A cache that has sheaves on top of the slab layer `B`.
#[derive(Debug)]
pub struct Sheaves<B> {
    /// The number of objects in a sheaf; 0 if the cache has no sheaves.
    capacity: usize,
    cpus: Vec<Cpu>,
    full: Vec<Vec<Object>>,
    /// The number of empty sheaves in the barn.
    empty: usize,
    /// The full rcu sheaves, each with the time at which its grace period ends.
    in_grace: VecDeque<(u64, Vec<Object>)>,
    below: B,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    main: Vec<Object>,
    /// The spare sheaf, full or empty, if the CPU has one.
    spare: Option<Vec<Object>>,
    /// The rcu sheaf: objects to free after a grace period.
    rcu: Vec<Object>,
}

pub(crate) const SHEAF_CAPACITY: Knob = Knob {
    name: "sheaf_capacity",
    means: "objects of a sheaf (0: no sheaves)",
    range: 0..=Capacity::MAX_OBJECTS,
    percent: true,
    default: |size, cpus| {
        default_from_geometry::<Slub>(size, cpus, |geometry| capacity_for_stride(geometry.stride()))
    },
};

/// Returns the kernel's sheaf capacity: a base value for the object size, increased until the sheaf and its 32-byte
/// header fill their memory.
fn capacity_for_stride(stride: usize) -> usize {
    let base = match stride {
        4096.. => 4,
        1024.. => 12,
        256.. => 26,
        _ => 60,
    };
    let bytes = (32 + 8 * base as usize).next_power_of_two();
    (bytes - 32) / 8
}

impl<B: SlabLayer> Policy for Sheaves<B> {
    const NAME: &'static str = B::NAME;
    const DESCRIPTION: &'static str = B::DESCRIPTION;
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = B::KNOBS;
    const LISTS: &'static [&'static str] = Slub::LISTS;
    const HAS_ORDER_FALLBACK: bool = true;
    const SHARED_LISTS: Option<(u8, u8)> = Slub::SHARED_LISTS;

    fn geometry(size: usize, cpus: u32, knobs: &Knobs) -> Result<Geometry, GeometryError> {
        Slub::geometry(size, cpus, &knobs.slub())
    }
    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        let recorded = info.sheaf_capacity.map(|capacity| capacity as usize);
        let present = recorded.unwrap_or_else(|| B::capacity(&info.name, geometry.stride()));
        Self {
            capacity: knobs.sheaf_capacity.map_or(present, |capacity| capacity.of(present as u64) as usize),
            cpus: vec![Cpu::default(); cpus.count() as usize],
            full: vec![],
            empty: 0,
            in_grace: VecDeque::new(),
            below: B::new(info, cpus, geometry, knobs),
        }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        if self.capacity == 0 {
            return self.below.alloc_without_sheaf(op);
        }
        self.end_grace_periods(op);
        if self.cpus[op.cpu as usize].main.is_empty() {
            self.refill_main_sheaf(op);
        }
        match self.cpus[op.cpu as usize].main.pop() {
            Some(object) => Ok(object),
            None => self.below.alloc_without_sheaf(op),
        }
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        if self.capacity == 0 {
            return self.below.take_back(op, &[object]);
        }
        self.end_grace_periods(op);
        if op.manner == CallMode::AfterGrace {
            return self.free_after_grace(op, object);
        }
        if self.cpus[op.cpu as usize].main.len() == self.capacity {
            self.make_room(op);
        }
        self.cpus[op.cpu as usize].main.push(object);
    }
    fn adopt(&mut self, op: &mut Op<'_>, slab: u32) {
        self.below.adopt(op, slab);
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let mut held = 0;
        for cpu in self.cpus.iter_mut().map(core::mem::take).collect::<Vec<_>>() {
            for sheaf in [cpu.spare.unwrap_or_default(), cpu.rcu, cpu.main] {
                held += sheaf.len() as u64;
                self.flush(op, sheaf);
            }
        }
        let in_grace: Vec<_> = self.in_grace.drain(..).map(|(_, sheaf)| sheaf).collect();
        let full = core::mem::take(&mut self.full).into_iter().rev();
        for sheaf in in_grace.into_iter().chain(full) {
            held += sheaf.len() as u64;
            self.flush(op, sheaf);
        }
        self.empty = 0;
        self.below.shrink(op);
        held
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
            let holder = Holder::Cpu(number);
            let spare = cpu.spare.as_ref().map(|spare| sheaf(holder, "spare", spare));
            let rcu = (!cpu.rcu.is_empty()).then(|| sheaf(holder, "rcu sheaf", &cpu.rcu));
            [Some(sheaf(holder, "main sheaf", &cpu.main)), spare, rcu]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        let cpus = self.cpus.iter().zip(0..).flat_map(of_cpu);
        let full = self.full.iter().map(|full| sheaf(Holder::Shared, "full sheaf", full));
        let in_grace =
            self.in_grace.iter().map(|(_, full)| sheaf(Holder::Shared, "sheaf in grace period", full));
        cpus.chain(full).chain(in_grace).collect()
    }
    fn own_slabs(&self) -> Vec<CpuOwnedSlabs> {
        self.below.own_slabs()
    }
}

impl<B: SlabLayer> Sheaves<B> {
    /// Replaces the empty main sheaf by a sheaf with objects, if possible.
    fn refill_main_sheaf(&mut self, op: &mut Op<'_>) {
        let Cpu { main, spare, .. } = &mut self.cpus[op.cpu as usize];
        if let Some(spare) = spare
            && !spare.is_empty()
        {
            core::mem::swap(main, spare);
            op.did(CostEvent::Swap);
            return;
        }
        if let Some(full) = self.full.pop() {
            *main = full;
            self.empty += 1;
            op.did(CostEvent::Exchange);
            return;
        }
        op.did(CostEvent::Miss);
        if !B::refills(op.manner) {
            return;
        }
        // The empty sheaf to fill is the spare sheaf, else a sheaf of the barn, else a new sheaf. The empty
        // main sheaf becomes the spare sheaf.
        if spare.take().is_none() {
            self.empty = self.empty.saturating_sub(1);
        }
        let mut sheaf = Vec::with_capacity(self.capacity);
        self.below.refill(op, &mut sheaf, self.capacity);
        if sheaf.len() < self.capacity {
            // Memory is short, so objects stay in slabs.
            return self.flush(op, sheaf);
        }
        let cpu = &mut self.cpus[op.cpu as usize];
        cpu.spare = Some(core::mem::replace(&mut cpu.main, sheaf));
    }

    /// Replaces the full main sheaf by a sheaf with free space.
    fn make_room(&mut self, op: &mut Op<'_>) {
        let Cpu { main, spare, .. } = &mut self.cpus[op.cpu as usize];
        match spare {
            Some(spare) if spare.len() < self.capacity => {
                core::mem::swap(main, spare);
                op.did(CostEvent::Swap);
            }
            None => {
                *spare = Some(core::mem::take(main));
                if self.empty > 0 {
                    self.empty -= 1;
                    op.did(CostEvent::Exchange);
                }
            }
            // The barn has too many full sheaves: the spare sheaf is flushed and becomes the main sheaf.
            Some(spare) if self.full.len() >= BARN => {
                let objects = core::mem::take(spare);
                core::mem::swap(main, spare);
                op.did(CostEvent::Miss);
                self.flush(op, objects);
            }
            Some(_) => {
                self.full.push(core::mem::take(main));
                self.empty = self.empty.saturating_sub(1);
                op.did(CostEvent::Exchange);
            }
        }
    }
    fn free_after_grace(&mut self, op: &mut Op<'_>, object: Object) {
        let rcu = &mut self.cpus[op.cpu as usize].rcu;
        rcu.push(object);
        if rcu.len() == self.capacity {
            self.in_grace.push_back((op.ns + GRACE_PERIOD_NS, core::mem::take(rcu)));
        }
    }
    /// Moves sheaves whose grace period has ended to the barn.
    fn end_grace_periods(&mut self, op: &mut Op<'_>) {
        while let Some((_, sheaf)) = self.in_grace.pop_front_if(|(then, _)| *then <= op.ns) {
            if self.full.len() < BARN {
                self.full.push(sheaf);
            } else {
                self.flush(op, sheaf);
            }
        }
    }
    /// Objects of one slab are flushed together if at most two objects of other slabs are between them.
    fn flush(&mut self, op: &mut Op<'_>, mut objects: Vec<Object>) {
        const MAX_LOOKAHEAD: usize = 3;
        let mut batch = Vec::new();
        while let Some(last) = objects.pop() {
            batch.push(last);
            let (mut at, mut others) = (objects.len(), 0);
            while at > 0 && others < MAX_LOOKAHEAD {
                at -= 1;
                if objects[at].slab == last.slab {
                    batch.push(objects.swap_remove(at));
                } else {
                    others += 1;
                }
            }
            self.below.take_back(op, &batch);
            batch.clear();
        }
    }
}

/// The layer below the sheaves of Linux 6.18 and 6.19: current and partial slabs of each CPU.
impl SlabLayer for Slub {
    const NAME: &'static str = "sheaves-6.18";
    const DESCRIPTION: &'static str =
        "a model of SLUB in Linux 6.18 and 6.19: as slub, with sheaves for two caches";
    const KNOBS: &'static [Knob] = &[
        Knob {
            means: "objects of a sheaf, for all caches (0: no sheaves); not set, only maple_node and vm_area_struct have sheaves, of 32",
            default: |_, _| 0,
            ..SHEAF_CAPACITY
        },
        slub::CPU_PARTIAL_KNOB,
        slub::MIN_PARTIAL_KNOB,
        slub::SLAB_MIN_OBJECTS_KNOB,
        slub::SLAB_MIN_ORDER_KNOB,
        slub::SLAB_MAX_ORDER_KNOB,
    ];

    fn capacity(name: &str, _: usize) -> usize {
        if matches!(name, "maple_node" | "vm_area_struct") { 32 } else { 0 }
    }
    fn new(info: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        <Self as Policy>::new(info, cpus, geometry, &knobs.slub())
    }
    fn refills(manner: CallMode) -> bool {
        manner != CallMode::NonBlocking
    }
    fn alloc_without_sheaf(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        <Self as Policy>::alloc(self, op)
    }
    fn refill(&mut self, op: &mut Op<'_>, sheaf: &mut Vec<Object>, room: usize) {
        sheaf.extend((0..room).map_while(|_| <Self as Policy>::alloc(self, op).ok()));
        op.did(CostEvent::Refill(sheaf.len() as u32));
    }
    fn take_back(&mut self, op: &mut Op<'_>, objects: &[Object]) {
        objects.iter().for_each(|object| <Self as Policy>::free(self, op, *object));
    }
    fn adopt(&mut self, op: &mut Op<'_>, slab: u32) {
        <Self as Policy>::adopt(self, op, slab);
    }
    fn shrink(&mut self, op: &mut Op<'_>) {
        <Self as Policy>::shrink(self, op);
    }
    fn own_slabs(&self) -> Vec<CpuOwnedSlabs> {
        <Self as Policy>::own_slabs(self)
    }
}

/// The layer below the sheaves of Linux 7.x: the node's list of partial slabs, and full slabs on no list.
#[derive(Debug)]
pub struct Node {
    min_partial: usize,
}

impl SlabLayer for Node {
    const NAME: &'static str = "sheaves";
    const DESCRIPTION: &'static str =
        "a model of SLUB in Linux 7.x: sheaves for each CPU and a barn, for every cache";
    const KNOBS: &'static [Knob] = &[
        SHEAF_CAPACITY,
        Knob {
            means: "accepted as 7.x accepts it, without effect",
            default: |_, _| 0,
            ..slub::CPU_PARTIAL_KNOB
        },
        slub::MIN_PARTIAL_KNOB,
        slub::SLAB_MIN_OBJECTS_KNOB,
        slub::SLAB_MIN_ORDER_KNOB,
        slub::SLAB_MAX_ORDER_KNOB,
    ];

    fn capacity(name: &str, stride: usize) -> usize {
        match name {
            "kmem_cache" | "kmem_cache_node" => 0,
            "maple_node" => capacity_for_stride(stride).max(32),
            _ => capacity_for_stride(stride),
        }
    }
    fn new(_: &CacheInfo, _: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        Self { min_partial: knobs.min_partial.unwrap_or_else(|| geometry.min_partial()) }
    }
    fn refills(_: CallMode) -> bool {
        true
    }
    fn alloc_without_sheaf(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let slab = match op.slabs.first(PARTIAL) {
            Some(slab) => slab,
            None => op.make(PARTIAL)?,
        };
        op.did(CostEvent::Relist);
        let object = op.slabs.take(slab).ok_or(NoMemory)?;
        if op.slabs.free(slab) == 0 {
            op.slabs.relist(slab, FULL, End::Front);
        }
        Ok(object)
    }
    fn refill(&mut self, op: &mut Op<'_>, sheaf: &mut Vec<Object>, room: usize) {
        let (mut taken, mut free) = (vec![], 0);
        while free < room
            && let Some(slab) = op.slabs.first(PARTIAL)
        {
            free += usize::from(op.slabs.free(slab));
            op.slabs.relist(slab, FULL, End::Front);
            taken.push(slab);
        }
        if !taken.is_empty() {
            op.did(CostEvent::Refill(free.min(room) as u32));
        }
        while sheaf.len() < room
            && let Some(slab) = taken.pop()
        {
            op.did(CostEvent::Remote);
            self.move_free_objects(op, slab, sheaf, room, End::Back);
        }
        while let Some(slab) = taken.pop() {
            if op.slabs.is_empty(slab) && op.slabs.len(PARTIAL) >= self.min_partial {
                op.release(slab);
            } else {
                op.slabs.relist(slab, PARTIAL, End::Front);
            }
        }
        while sheaf.len() < room
            && let Ok(slab) = op.make(FULL)
        {
            self.move_free_objects(op, slab, sheaf, room, End::Front);
        }
    }
    fn take_back(&mut self, op: &mut Op<'_>, objects: &[Object]) {
        objects.iter().for_each(|object| op.slabs.put(*object));
        op.did(CostEvent::Remote);
        let slab = objects[0].slab;
        if op.slabs.is_empty(slab) && op.slabs.len(PARTIAL) >= self.min_partial {
            op.did(CostEvent::Relist);
            op.release(slab);
        } else if op.slabs.list(slab) == FULL {
            op.did(CostEvent::Relist);
            op.slabs.relist(slab, PARTIAL, End::Back);
        }
    }
    fn shrink(&mut self, op: &mut Op<'_>) {
        slub::sort_partial_list(op);
    }
    fn own_slabs(&self) -> Vec<CpuOwnedSlabs> {
        vec![]
    }
}

impl Node {
    /// Moves free objects of a slab that is on no list to a sheaf, until the sheaf has `room` objects. If free objects
    /// remain, the slab is put on the node's list.
    fn move_free_objects(&self, op: &mut Op<'_>, slab: u32, sheaf: &mut Vec<Object>, room: usize, rest: End) {
        while sheaf.len() < room
            && let Some(object) = op.slabs.take(slab)
        {
            sheaf.push(object);
        }
        if op.slabs.free(slab) > 0 {
            op.did(CostEvent::Relist);
            op.slabs.relist(slab, PARTIAL, rest);
        }
    }
}

#[cfg(test)]
mod tests;
