//! The lab `exchange`, in which a student writes a magazine layer.

use super::reference::exchange::Exercise;
use super::run::{PolicyFailure, run};
use super::streams::exchanges;
use super::verdict::{Check, Verdict};
use crate::design::NoMemory;
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Op, Policy};
use crate::models::bonwick94::{self, release_empty};
use crate::slabs::Object;
use crate::stream::{CacheInfo, Stream};
use uslab::{Geometry, GeometryError};
use uslab_lab::course::{Layer, visits};
use uslab_magazine::Cpus;

const LAB: &str = "exchange";
/// The number of objects in a full magazine.
pub(super) const ROUNDS: usize = 8;

/// A policy that combines a student's magazine layer with the slab layer of Bonwick's 1994 allocator.
#[derive(Debug)]
struct LayerPolicy<L>(L);

impl<L: Layer<Object>> Policy for LayerPolicy<L> {
    const NAME: &'static str = "mine";
    const DESCRIPTION: &'static str = "a magazine layer over a model of the slabs of 1994";
    type Knobs = ();
    const LISTS: &'static [&'static str] = bonwick94::Bonwick94::LISTS;

    fn geometry(size: usize, cpus: u32, _: &()) -> Result<Geometry, GeometryError> {
        bonwick94::Bonwick94::geometry(size, cpus, &bonwick94::Knobs {})
    }
    fn new(_: &CacheInfo, cpus: Cpus, _: &Geometry, _: &()) -> Self {
        Self(L::new(cpus.count() as usize, ROUNDS))
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let before = visits();
        let round = self.0.alloc(op.cpu as usize);
        if visits() != before {
            op.did(if round.is_some() { CostEvent::Exchange } else { CostEvent::Miss });
        }
        if let Some(round) = round {
            return Ok(round);
        }
        op.did(CostEvent::Refill(1));
        bonwick94::take(op)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let before = visits();
        self.0.free(op.cpu as usize, object);
        if visits() != before {
            op.did(CostEvent::Exchange);
        }
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let containers = self.0.drain();
        let held = containers.len() as u64;
        containers.into_iter().for_each(|object| bonwick94::put(op, object));
        release_empty(op);
        held
    }
    fn held(&self) -> Vec<Held> {
        let mut held = vec![];
        self.0.each_magazine(&mut |cpu, name, rounds| {
            let holder = cpu.map_or(Holder::Shared, |cpu| Holder::Cpu(cpu as u32));
            held.push(Held::new(holder, name, ROUNDS, rounds));
        });
        held
    }
}

/// The totals after each operation: depot accesses, and objects taken from slabs.
struct Costs {
    visits: Vec<u64>,
    slabs: Vec<u64>,
}

impl Costs {
    fn of<L: Layer<Object>>(stream: &Stream) -> Result<Self, PolicyFailure> {
        let (mut costs, mut visits, mut slabs) = (Self { visits: vec![], slabs: vec![] }, 0, 0);
        run::<LayerPolicy<L>>(stream, |_, model| {
            let cost_events = model.cost_events();
            visits += u64::from(
                cost_events.iter().any(|event| matches!(event, CostEvent::Exchange | CostEvent::Miss)),
            );
            slabs += u64::from(cost_events.contains(&CostEvent::Refill(1)));
            costs.visits.push(visits);
            costs.slabs.push(slabs);
        })?;
        Ok(costs)
    }
}

/// Runs a student's magazine layer on streams, and returns a verdict on it. The models of [`uslab_lab::course`] check
/// the layer's locking.
pub fn exchange<L: Layer<Object>>(seed: u32) -> Verdict {
    let stream = exchanges(LAB, seed);
    let Ok(reference) = Costs::of::<Exercise<Object>>(&stream) else {
        unreachable!("the reference solution must serve every request")
    };
    let costs_of_student = match Costs::of::<L>(&stream) {
        Ok(costs_of_student) => costs_of_student,
        Err(broken) => {
            return Verdict::verdict_on_broken_invariant::<LayerPolicy<L>>(LAB, seed, &stream, broken);
        }
    };
    let last = |counts: &[u64]| counts.last().copied().unwrap_or(0);
    let bound = |counts: &[u64]| last(counts) as f64 * 1.02;
    let checks = vec![
        Check::at_most("visits to the depot", last(&costs_of_student.visits), bound(&reference.visits)),
        Check::at_most("objects taken from slabs", last(&costs_of_student.slabs), bound(&reference.slabs)),
    ];
    // Finds the first operation at which the policy costs more than the reference.
    let first_excess = |costs_of_student: &[u64], other: &[u64]| {
        costs_of_student.iter().zip(other).position(|(costs_of_student, other)| costs_of_student > other)
    };
    let first = [
        first_excess(&costs_of_student.visits, &reference.visits),
        first_excess(&costs_of_student.slabs, &reference.slabs),
    ];
    let first = checks.iter().zip(first).find(|(check, _)| !check.holds).and_then(|(_, first)| first);
    Verdict::judge_costs::<LayerPolicy<L>>(LAB, seed, &stream, checks, first.map(|at| at as u64 + 1))
}
