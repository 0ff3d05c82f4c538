//! Records a run in virtual time with the state after each operation, so that a web page can replay the run.

use super::work::Workload;
use super::{ClockError, FinishedOperation, Outcome, Profile, Team, drive};
use crate::design::Design;
use crate::model::{Model, Policy};
use crate::observer::sentence;
use crate::pages::Pages;
use crate::step::{Step, What};
use crate::stream::{CacheInfo, Kind};
use crate::view::{SeenCache, View, pages_of};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// The data that a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// The lock of the level that CPUs share, such as a depot.
    Depot,
    /// The lock of a cache's slab lists.
    Lists,
    /// The lock of the page allocator.
    Zone,
}

/// The time that an operation waited for a lock, and the time that it then held the lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LockHold {
    /// The data that the acquired lock protects.
    pub lock: LockKind,
    /// The time in nanoseconds at which the CPU requested the lock.
    pub asked_ns: f64,
    /// The time in nanoseconds at which the CPU took the lock; later than `asked_ns` if the CPU had to wait.
    pub taken_ns: f64,
    /// The time in nanoseconds at which the CPU released the lock.
    pub freed_ns: f64,
}

/// An operation of a run in virtual time, and the state after it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TimedOperation {
    /// The time in nanoseconds at which the operation began.
    pub from_ns: f64,
    /// The time in nanoseconds at which the operation ended.
    pub to_ns: f64,
    /// The locks that the operation took, in order.
    pub holds: Vec<LockHold>,
    /// The number of cache lines that came from another CPU.
    pub lines: u64,
    /// The state after the operation. The only step that this state lists is the operation.
    pub view: View,
}

/// A run in virtual time; its operations are in the order in which they began.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Film {
    /// The outcome of the run, equal to the result of [`run`](super::run).
    pub outcome: Outcome,
    /// The state before the first operation.
    pub start: View,
    /// All operations of all CPUs, in order of their start.
    pub operations: Vec<TimedOperation>,
    /// The state at the end of the run, after the last interval.
    pub end: View,
}

/// The name of the simulated cache.
const NAME: &str = "object";

/// Runs a generated workload as [`run`](super::run) does, and records the state after each operation.
///
/// # Errors
/// Returns a [`ClockError`].
pub fn film<P: Policy>(
    pages: &Pages,
    knobs: P::Knobs,
    workload: &Workload,
    profile: &Profile,
    size: u32,
    operations: u64,
    seed: u64,
) -> Result<Film, ClockError> {
    let cpus = pages.allocator().cpus().count();
    let object = CacheInfo::new(NAME, Kind::Named, size);
    let mut team = Team::new(workload, cpus, operations, seed);
    let total = operations * u64::from(cpus);
    let (mut ends, mut seen) = (vec![], vec![]);
    // The CPU that allocated each object in use.
    let mut allocated_on = FxHashMap::default();
    let mut watch = |model: &Model<'_, P>, ran: Option<FinishedOperation<'_>>| {
        let Some(ran) = ran else {
            ends.push(view(model, seen.len() as u64, 0.0, vec![]));
            return;
        };
        let what = match ran.object {
            Some(place) if ran.allocated => {
                allocated_on.insert(place, ran.cpu);
                What::Alloc
            }
            Some(place) => What::Free { allocated_on: allocated_on.remove(&place).unwrap_or(ran.cpu) },
            None => What::Nothing,
        };
        let step = step(model, &ran, what);
        seen.push(TimedOperation {
            from_ns: ran.from_ns,
            to_ns: ran.to_ns,
            holds: ran.holds.to_vec(),
            lines: ran.lines,
            view: view(model, seen.len() as u64 + 1, ran.to_ns, vec![step]),
        });
    };
    let think = workload.think_ns();
    let outcome = drive::<P>(pages, knobs, &[object], &mut team, profile, total, think, &mut watch)?;
    let mut ends = ends.into_iter();
    let (Some(start), Some(end)) = (ends.next(), ends.next()) else { return Err(ClockError::Damaged) };
    Ok(Film { outcome, start, operations: seen, end })
}

fn step<P: Policy>(model: &Model<'_, P>, ran: &FinishedOperation<'_>, what: What) -> Step {
    let description = model.describe(ran.cpu, ran.cache, !ran.allocated, &[]);
    let (path, description) = description.map_or((None, String::new()), |(path, text)| (Some(path), text));
    let FinishedOperation { cpu, cache, object, .. } = *ran;
    let sentence = sentence(what, cpu, NAME, &description);
    Step { what, cpu, cache: Some(cache), object, path, sentence, did: vec![] }
}

fn view<P: Policy>(model: &Model<'_, P>, operation: u64, ns: f64, steps: Vec<Step>) -> View {
    View {
        operation,
        time_ns: ns as u64,
        steps,
        failed: 0,
        caches: vec![SeenCache { name: NAME.to_owned(), served: operation, counts: model.counts(0) }],
        shown: model.show(0).into_iter().collect(),
        pages: pages_of(model, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::run;
    use crate::designs::{NoPolicy, PolicyVisitor, Spec, all};

    struct Compare<'a>(&'a Workload);

    impl PolicyVisitor for Compare<'_> {
        type Out = (Outcome, Film);

        fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out {
            let profile = Profile::built_in().next().expect("a profile must be built in");
            let run = run::<P>(&Pages::new(4).unwrap(), knobs.clone(), self.0, &profile, 256, 50, 7).unwrap();
            (run, film::<P>(&Pages::new(4).unwrap(), knobs, self.0, &profile, 256, 50, 7).unwrap())
        }
    }

    #[test]
    fn recorded_operations_add_up_to_the_outcome_of_the_run() {
        let designs = all::<NoPolicy>().map(|(name, _)| name).filter(|name| *name != "uslab");
        for design in designs.chain(["uslab-model:capacity=0"]) {
            for workload in ["server=12", "remote=30", "bursts=12", "handoff=16"] {
                let workload = workload.parse::<Workload>().unwrap().thinking(50.0);
                let (run, film) = design.parse::<Spec>().unwrap().policy(Compare(&workload)).unwrap();
                assert_eq!(run, film.outcome, "{design}, {workload}");
                let Film { outcome, start, operations, end } = film;
                assert_eq!((operations.len() as u64, start.operation), (outcome.operations, 0));
                let lines: u64 = operations.iter().map(|own| own.lines).sum();
                assert!(
                    (lines as f64 - outcome.lines_per_operation * outcome.operations as f64).abs() < 1e-6
                );
                let holds =
                    |lock| operations.iter().flat_map(|own| &own.holds).filter(move |hold| hold.lock == lock);
                for (lock, counts) in [
                    (LockKind::Depot, outcome.depot),
                    (LockKind::Lists, outcome.lists),
                    (LockKind::Zone, outcome.zone),
                ] {
                    assert_eq!(holds(lock).count() as u64, counts.taken, "{design}, {workload}, {lock:?}");
                    let waited = holds(lock).map(|hold| hold.taken_ns - hold.asked_ns);
                    assert_eq!(waited.clone().filter(|ns| *ns > 0.0).count() as u64, counts.contended);
                    assert!((waited.sum::<f64>() - counts.waited_ns).abs() < 1e-6);
                }
                // Only one CPU holds a lock at any time, and the operations of one CPU do not overlap.
                for lock in [LockKind::Depot, LockKind::Lists, LockKind::Zone] {
                    let all: Vec<_> = holds(lock).collect();
                    assert!(
                        all.windows(2).all(|two| two[0].freed_ns <= two[1].taken_ns),
                        "{design}, {workload}"
                    );
                }
                for cpu in 0..4 {
                    let own: Vec<_> = operations.iter().filter(|own| own.view.steps[0].cpu == cpu).collect();
                    assert!(own.windows(2).all(|two| two[0].to_ns < two[1].from_ns), "{design}, {workload}");
                }
                let counts = &end.caches[0].counts;
                assert_eq!((counts.slabs(), counts.slabs() << counts.order), (outcome.slabs, end.pages.slab));
            }
        }
    }
}
