//! The lab `reaping`, in which a student decides how many magazines a depot keeps.

use super::exchange::ROUNDS;
use super::reference::{exchange, reaping::Exercise};
use super::run::{PolicyFailure, run};
use super::streams::generate_days;
use super::verdict::{Check, Verdict};
use crate::design::NoMemory;
use crate::held::{Held, Holder};
use crate::model::{CostEvent, Op, Policy};
use crate::models::bonwick94::{self, release_empty};
use crate::slabs::Object;
use crate::stream::{CacheInfo, Stream};
use core::fmt;
use uslab::{Geometry, GeometryError};
use uslab_lab::course::{Layer, visits};
use uslab_magazine::Cpus;

const LAB: &str = "reaping";
/// The length of a reaping interval in nanoseconds.
const REAP_INTERVAL_NS: u64 = 15_000_000_000;

/// The interface of the exercise `reaping`: decides how many full magazines a depot flushes.
pub trait Reaper: Default + fmt::Debug {
    /// Called after a magazine was added to the depot or taken from it; the depot now has `full` full magazines.
    fn visited(&mut self, full: usize);
    /// Called at the end of an interval, when the depot has `full` full magazines. Returns the number of magazines to
    /// flush to slabs.
    fn reap(&mut self, full: usize) -> usize;
}

/// A depot that flushes magazines; a student's reaper chooses how many.
#[derive(Debug)]
struct ReaperPolicy<R> {
    layer: exchange::Exercise<Object>,
    reaper: R,
    /// The number of full magazines kept at the end of an interval, summed over all intervals.
    kept: u64,
}

impl<R: Reaper> ReaperPolicy<R> {
    fn count_contention<T>(
        &mut self,
        op: &mut Op<'_>,
        act: impl FnOnce(&exchange::Exercise<Object>) -> T,
    ) -> T {
        let before = visits();
        let output = act(&self.layer);
        if visits() != before {
            op.did(CostEvent::Exchange);
            self.reaper.visited(self.layer.full(|full| full.len()));
        }
        output
    }
}

impl<R: Reaper> Policy for ReaperPolicy<R> {
    const NAME: &'static str = "mine";
    const DESCRIPTION: &'static str = "magazines whose depot is reaped, over a model of the slabs of 1994";
    type Knobs = ();
    const LISTS: &'static [&'static str] = bonwick94::Bonwick94::LISTS;
    const TICK: Option<u64> = Some(REAP_INTERVAL_NS);

    fn geometry(size: usize, cpus: u32, _: &()) -> Result<Geometry, GeometryError> {
        bonwick94::Bonwick94::geometry(size, cpus, &bonwick94::Knobs {})
    }
    fn new(_: &CacheInfo, cpus: Cpus, _: &Geometry, _: &()) -> Self {
        Self { layer: Layer::new(cpus.count() as usize, ROUNDS), reaper: R::default(), kept: 0 }
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let cpu = op.cpu as usize;
        if let Some(object) = self.count_contention(op, |layer| layer.alloc(cpu)) {
            return Ok(object);
        }
        op.did(CostEvent::Refill(1));
        bonwick94::take(op)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        let cpu = op.cpu as usize;
        self.count_contention(op, |layer| layer.free(cpu, object));
    }
    fn tick(&mut self, op: &mut Op<'_>) {
        let full = self.layer.full(|full| full.len());
        let reaped = self.reaper.reap(full);
        assert!(reaped <= full, "`reap` returned {reaped} magazines, but the depot has only {full}");
        let flushed_objects: Vec<_> = self.layer.full(|full| full.drain(..reaped).flatten().collect());
        flushed_objects.into_iter().for_each(|object| bonwick94::put(op, object));
        release_empty(op);
        self.kept += (full - reaped) as u64;
    }
    fn shrink(&mut self, op: &mut Op<'_>) -> u64 {
        let containers = self.layer.drain();
        let held = containers.len() as u64;
        containers.into_iter().for_each(|object| bonwick94::put(op, object));
        release_empty(op);
        held
    }
    fn held(&self) -> Vec<Held> {
        let mut held = vec![];
        self.layer.each_magazine(&mut |cpu, name, rounds| {
            let holder = cpu.map_or(Holder::Shared, |cpu| Holder::Cpu(cpu as u32));
            held.push(Held::new(holder, name, ROUNDS, rounds));
        });
        held
    }
}

/// Returns the totals after each operation: magazines kept, and objects taken from slabs.
fn costs<R: Reaper>(stream: &Stream) -> Result<Vec<(u64, u64)>, PolicyFailure> {
    let (mut costs, mut slabs) = (vec![], 0);
    run::<ReaperPolicy<R>>(stream, |_, model| {
        slabs += u64::from(model.cost_events().contains(&CostEvent::Refill(1)));
        let kept_slabs = model.cache(0).map_or(0, |(_, policy)| policy.kept);
        costs.push((kept_slabs, slabs));
    })?;
    Ok(costs)
}
fn sum((kept, slabs): (u64, u64)) -> u64 {
    2 * kept + slabs
}

/// Runs a student's reaper, and returns a verdict on it.
pub fn reaping<R: Reaper>(seed: u32) -> Verdict {
    let stream = generate_days(LAB, seed, REAP_INTERVAL_NS);
    let Ok(reference) = costs::<Exercise>(&stream) else {
        unreachable!("the reference solution must serve every request")
    };
    let student = match costs::<R>(&stream) {
        Ok(student) => student,
        Err(broken) => {
            return Verdict::verdict_on_broken_invariant::<ReaperPolicy<R>>(LAB, seed, &stream, broken);
        }
    };
    let last = |costs: &[(u64, u64)]| costs.last().copied().unwrap_or_default();
    let (kept_slabs, slabs) = last(&student);
    let bound = sum(last(&reference)) as f64 * 1.05;
    let requirement = format!(
        "the cost is at most {bound:.0}: 2 for each interval of a kept full magazine, 1 for each object from a slab"
    );
    let result = format!(
        "2 x {kept_slabs} kept magazines + {slabs} objects from slabs = {}",
        sum((kept_slabs, slabs))
    );
    let check = Check::new(requirement, result, sum((kept_slabs, slabs)) as f64 <= bound);
    // The first operation after which the policy's cost exceeds the limit.
    let excess_operation = student
        .iter()
        .zip(&reference)
        .position(|(student, other)| sum(*student) as f64 > sum(*other) as f64 * 1.05 + 60.0);
    Verdict::judge_costs::<ReaperPolicy<R>>(
        LAB,
        seed,
        &stream,
        vec![check],
        excess_operation.map(|operation| operation as u64 + 1),
    )
}
