//! A model of SLUB's policy in Linux 6.1 to 6.17: it decides which slab serves an allocation, to which slab an object
//! is freed, and when slabs are created or freed.
//!
//! The model has no memory behind its addresses, and takes no locks. The model shares two components with the shipping
//! allocator: the page allocator, and Linux's rule for the order of a slab ([`Geometry`]). The model was validated
//! against `/proc/slabinfo` of real kernels.
//!
//! ```text
//!   CPU 0                    CPU 1                     each CPU
//!   current slab ─ its free objects, the CPU's own     takes from here, and frees to here if the object is of that slab
//!   partial slabs: 3 2 1     partial slabs             at most `cpu_partial_slabs`, at least 1; the newest serves next
//!        │  ▲                                          too many: all of them go
//!        ▼  │
//!   the node's partial slabs: a b c d ...              served from the front, filled at the back
//!   full slabs: on no list
//! ```
//!
//! - **Allocate**: take an object from the first of these sources: the CPU's current slab, remote frees to the current
//!   slab, the CPU's newest partial slab, slabs of the node, a new slab. The node's first slab becomes current, and
//!   further slabs of the node fill the CPU's list to half of the list's limit.
//! - **Free**: an object of the current slab returns to the current slab. Any other object returns to its own
//!   slab. A slab that was full joins this CPU's partial slabs. If the CPU already has too many partial
//!   slabs, all its partial slabs first move to the node. Empty slabs that move to the node are freed if the node has
//!   [`min_partial`](Knobs::min_partial) other slabs. A slab on the node's list that becomes empty is also freed if the
//!   node has `min_partial` other slabs. A CPU therefore keeps the last full slab to which it freed an object, even if
//!   `cpu_partial` is 0.
//! - **Shrink**: each CPU returns its slabs to the node. Empty slabs are freed, and the node's list is sorted, fullest
//!   first.
//!
//! In `/proc/slabinfo`, all objects count as active, except free objects in slabs on the node's list.
//!
//! Source: Linux, `mm/slub.c` of 6.1 as described in the kernel's documentation and its authors' notes.

use crate::design::NoMemory;
use crate::held::CpuOwnedSlabs;
use crate::model::{CostEvent, Knob, Op, Policy, default_from_geometry};
use crate::slabs::{End, Object};
use crate::stream::CacheInfo;
use serde::Deserialize;
use uslab::{Geometry, GeometryError, OrderRule};
use uslab_magazine::Cpus;

/// The SLUB options that boot parameters and `sysfs` files of a kernel can change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// The number of free objects that the partial slabs of a CPU should contain. If `None`, the number is derived from
    /// the object size.
    pub cpu_partial: Option<u32>,
    /// The number of empty slabs that stay on the node's list; `None` derives the number from the object size.
    pub min_partial: Option<usize>,
    /// The number of objects that a slab should hold, if the limit on its order permits it. If `None`, the number is
    /// derived from the number of CPUs.
    pub slab_min_objects: Option<u32>,
    /// The smallest order that a slab can have; `None` means 0.
    pub slab_min_order: Option<u8>,
    /// The largest order of a slab that holds more than one object; `None` means 3.
    pub slab_max_order: Option<u8>,
    /// The number of CPUs that the modelled machine has, if it differs from the stream's number. For example, on 4
    /// CPUs, CPU 1 also runs the operations of CPU 5 of the stream.
    pub cpus: Option<u32>,
}

impl Knobs {
    fn cpu_partial(&self, size: usize) -> u32 {
        self.cpu_partial.unwrap_or(match size {
            4096.. => 6,
            1024.. => 24,
            256.. => 52,
            _ => 120,
        })
    }
    fn rule(&self, cpus: u32) -> OrderRule {
        let rule = OrderRule::for_cpus(self.cpus.unwrap_or(cpus));
        let (min, max) = (self.slab_min_order, self.slab_max_order);
        OrderRule {
            min_order: min.unwrap_or(rule.min_order),
            max_order: max.unwrap_or(rule.max_order).max(min.unwrap_or(0)),
            min_objects: self.slab_min_objects.unwrap_or(rule.min_objects),
            ..rule
        }
    }
}

/// The SLUB options that the models with sheaves also have.
pub(crate) const CPU_PARTIAL_KNOB: Knob = Knob {
    name: "cpu_partial",
    means: "objects that a CPU's partial slabs are to have room for (0: one such slab)",
    range: 0..=u32::MAX as u64,
    percent: false,
    default: |size, cpus| {
        default_from_geometry::<Slub>(size, cpus, |geometry| {
            Knobs::default().cpu_partial(geometry.stride()) as usize
        })
    },
};
pub(crate) const MIN_PARTIAL_KNOB: Knob = Knob {
    name: "min_partial",
    means: "empty slabs that stay on the list of the node",
    range: 0..=u32::MAX as u64,
    percent: false,
    default: |size, cpus| default_from_geometry::<Slub>(size, cpus, Geometry::min_partial),
};
pub(crate) const SLAB_MIN_OBJECTS_KNOB: Knob = Knob {
    name: "slab_min_objects",
    means: "objects that a slab is to hold, if its order allows it (0: by the number of CPUs)",
    range: 0..=u32::MAX as u64,
    percent: false,
    default: |_, cpus| OrderRule::for_cpus(cpus).min_objects.into(),
};
pub(crate) const SLAB_MIN_ORDER_KNOB: Knob = Knob {
    name: "slab_min_order",
    means: "smallest order of a slab",
    range: 0..=MAX_LINUX_ORDER as u64,
    percent: false,
    default: |_, cpus| OrderRule::for_cpus(cpus).min_order.into(),
};
pub(crate) const SLAB_MAX_ORDER_KNOB: Knob = Knob {
    name: "slab_max_order",
    means: "largest order of a slab that holds more than one object",
    range: 0..=MAX_LINUX_ORDER as u64,
    percent: false,
    default: |_, cpus| OrderRule::for_cpus(cpus).max_order.into(),
};

/// The number of the list that contains each CPU's current slab.
const CURRENT_SLAB_LIST: u8 = 0;
/// The number of the list that contains the slabs on CPUs' partial lists.
const CPU_PARTIAL_LIST: u8 = 1;
/// The number of the list that contains the node's partial slabs.
pub(super) const PARTIAL: u8 = 2;
/// The number of the list that contains full slabs; in SLUB, full slabs are on no list.
pub(super) const FULL: u8 = 3;

/// A cache that follows SLUB's rules: see the [module](self).
#[derive(Debug)]
pub struct Slub {
    cpus: Vec<Cpu>,
    /// The number of slabs that fit on a CPU's partial list; adding a slab to a full list evicts the list. A CPU's
    /// partial list holds one slab even if its limit is 0.
    cpu_partial_slabs: usize,
    min_partial: usize,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    current: Option<u32>,
    /// The number of free objects in the current slab that its CPU may allocate. Objects that other CPUs freed are
    /// counted separately.
    own: u16,
    /// The CPU's partial slabs, newest last.
    partial: Vec<u32>,
}

impl Policy for Slub {
    const NAME: &'static str = "slub";
    const DESCRIPTION: &'static str =
        "a model of SLUB in Linux 6.1 to 6.17: a current slab and partial slabs for each CPU";
    type Knobs = Knobs;
    const KNOBS: &'static [Knob] = &[
        CPU_PARTIAL_KNOB,
        MIN_PARTIAL_KNOB,
        SLAB_MIN_OBJECTS_KNOB,
        SLAB_MIN_ORDER_KNOB,
        SLAB_MAX_ORDER_KNOB,
        Knob {
            name: "cpus",
            means: "number of CPUs of the policy",
            range: 1..=u32::MAX as u64,
            percent: false,
            default: |_, cpus| cpus.into(),
        },
    ];
    const LISTS: &'static [&'static str] = &["current", "CPU partial", "partial", "full"];
    const HAS_ORDER_FALLBACK: bool = true;
    const SHARED_LISTS: Option<(u8, u8)> = Some((PARTIAL, FULL));

    fn geometry(size: usize, cpus: u32, knobs: &Knobs) -> Result<Geometry, GeometryError> {
        Geometry::new(size, 0, &knobs.rule(cpus))
    }
    fn new(_: &CacheInfo, cpus: Cpus, geometry: &Geometry, knobs: &Knobs) -> Self {
        // As a rule, half of the objects of a partial slab are free.
        let slabs =
            knobs.cpu_partial(geometry.stride()).saturating_mul(2).div_ceil(geometry.objects() as u32);
        Self {
            cpus: vec![Cpu::default(); knobs.cpus.unwrap_or(cpus.count()) as usize],
            cpu_partial_slabs: slabs as usize,
            min_partial: knobs.min_partial.unwrap_or_else(|| geometry.min_partial()),
        }
    }

    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let cpu = self.cpu(op);
        let slab = self.current(op, cpu)?;
        self.cpus[cpu].own -= 1;
        op.slabs.take(slab).ok_or(NoMemory)
    }

    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let slab = object.slab;
        op.slabs.put(object);
        let number = self.cpu(op);
        let cpu = &mut self.cpus[number];
        if cpu.current == Some(slab) {
            cpu.own += 1;
            return;
        }
        op.did(CostEvent::Remote);
        match op.slabs.list(slab) {
            FULL => self.keep(op, number, slab),
            PARTIAL if op.slabs.is_empty(slab) && op.slabs.len(PARTIAL) >= self.min_partial => {
                op.did(CostEvent::Relist);
                op.release(slab);
            }
            _ => {}
        }
    }

    fn adopt(&mut self, op: &mut Op<'_>, slab: u32) {
        let number = self.cpu(op);
        let (cpu, most) = (&mut self.cpus[number], self.cpu_partial_slabs);
        if cpu.current.is_none() {
            (cpu.current, cpu.own) = (Some(slab), op.slabs.free(slab));
            op.slabs.relist(slab, CURRENT_SLAB_LIST, End::Front);
        } else if cpu.partial.len() < most {
            // The first slab serves first.
            cpu.partial.insert(0, slab);
            op.slabs.relist(slab, CPU_PARTIAL_LIST, End::Back);
        }
    }

    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        for cpu in 0..self.cpus.len() {
            let own = core::mem::take(&mut self.cpus[cpu].own);
            if let Some(slab) = self.cpus[cpu].current.take() {
                match op.slabs.free(slab) {
                    0 => op.slabs.relist(slab, FULL, End::Front),
                    free => self.leave(op, slab, if free == own { End::Front } else { End::Back }),
                }
            }
            let partial = core::mem::take(&mut self.cpus[cpu].partial);
            self.return_slabs_to_node(op, partial);
        }
        sort_partial_list(op);
        0
    }

    fn own_slabs(&self) -> Vec<CpuOwnedSlabs> {
        let cpus = self.cpus.iter().zip(0..);
        cpus.flat_map(|(own, cpu)| {
            let current = own.current.into_iter().collect();
            [("current slab", current), ("partial slabs", own.partial.clone())]
                .map(|(name, slabs)| CpuOwnedSlabs { cpu, name, slabs })
        })
        .collect()
    }
}

/// The last step of a shrink: frees the node's empty slabs, and sorts the node's list so that the fullest slabs come
/// first.
pub(super) fn sort_partial_list(op: &mut Op<'_>) {
    let slabs: Vec<_> = op.slabs.walk(PARTIAL).collect();
    let (empty, rest): (Vec<_>, Vec<_>) = slabs.into_iter().partition(|slab| op.slabs.is_empty(*slab));
    empty.into_iter().for_each(|slab| op.release(slab));
    // A shrink sorts only slabs with at most this number of free objects, because sorting emptier slabs does
    // not pay.
    const SORTED: u16 = 32;
    let (mut sorted, rest): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|slab| op.slabs.free(*slab) <= SORTED);
    // Each slab moves to the front of the slabs that are equally full.
    sorted.reverse();
    sorted.sort_by_key(|slab| op.slabs.free(*slab));
    sorted.into_iter().chain(rest).for_each(|slab| op.slabs.relist(slab, PARTIAL, End::Back));
}

/// The largest order of a block of pages in Linux.
const MAX_LINUX_ORDER: u8 = 10;

impl Slub {
    fn cpu(&self, op: &Op<'_>) -> usize {
        op.cpu as usize % self.cpus.len()
    }
    /// Returns the CPU's current slab, which has a free object that the CPU may allocate.
    fn current(&mut self, op: &mut Op<'_>, number: usize) -> Result<u32, NoMemory> {
        let cpu = &mut self.cpus[number];
        if let Some(slab) = cpu.current {
            if cpu.own > 0 {
                return Ok(slab);
            }
            cpu.own = op.slabs.free(slab);
            if cpu.own > 0 {
                op.did(CostEvent::Remote);
                return Ok(slab);
            }
            cpu.current = None;
            op.slabs.relist(slab, FULL, End::Front);
        }
        let slab = match cpu.partial.pop() {
            Some(slab) => {
                op.did(CostEvent::Swap);
                slab
            }
            None => match self.take_slabs_from_node(op, number) {
                Some(slab) => slab,
                None => op.make(CURRENT_SLAB_LIST)?,
            },
        };
        op.slabs.relist(slab, CURRENT_SLAB_LIST, End::Front);
        let cpu = &mut self.cpus[number];
        (cpu.current, cpu.own) = (Some(slab), op.slabs.free(slab));
        Ok(slab)
    }
    /// Takes the first slab of the node's list, and more slabs for the CPU's partial list.
    fn take_slabs_from_node(&mut self, op: &mut Op<'_>, cpu: usize) -> Option<u32> {
        let first = op.slabs.first(PARTIAL)?;
        op.did(CostEvent::Relist);
        op.slabs.relist(first, CURRENT_SLAB_LIST, End::Front);
        for _ in 0..self.cpu_partial_slabs / 2 + 1 {
            let Some(slab) = op.slabs.first(PARTIAL) else { break };
            op.slabs.relist(slab, CPU_PARTIAL_LIST, End::Front);
            self.cpus[cpu].partial.push(slab);
        }
        Some(first)
    }

    /// Adds a slab that was full until now to the CPU's partial list.
    fn keep(&mut self, op: &mut Op<'_>, cpu: usize, slab: u32) {
        op.slabs.relist(slab, CPU_PARTIAL_LIST, End::Front);
        let partial = &mut self.cpus[cpu].partial;
        let full = partial.len() >= self.cpu_partial_slabs;
        let older = if full { core::mem::take(partial) } else { Vec::new() };
        partial.push(slab);
        self.return_slabs_to_node(op, older);
    }
    fn return_slabs_to_node(&self, op: &mut Op<'_>, slabs: Vec<u32>) {
        slabs.into_iter().rev().for_each(|slab| self.leave(op, slab, End::Back));
    }
    /// Moves a slab that no CPU owns any more to the node's list, or frees the slab.
    fn leave(&self, op: &mut Op<'_>, slab: u32, end: End) {
        op.did(CostEvent::Relist);
        if op.slabs.is_empty(slab) && op.slabs.len(PARTIAL) >= self.min_partial {
            op.release(slab);
        } else {
            op.slabs.relist(slab, PARTIAL, end);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
