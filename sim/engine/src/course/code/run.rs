//! Runs a student's policy on a stream, operation by operation.

use super::verdict::{Check, Verdict};
use crate::step::What;
use crate::{Engine, Model, Pages, Policy, Stream, View};
use serde::Serialize;
use std::any::Any;
use std::collections::BTreeMap;
use uslab_lab::demos::Scene;
use uslab_magazine::sync::catch_panic;

/// The invariant that every policy must keep.
pub(super) const POLICY_INVARIANT: &str = "no object is allocated twice or lost";

/// The failure of a student's policy at one operation.
pub(super) struct PolicyFailure {
    /// The number of the operation that failed, counted from 1.
    pub(super) at: u64,
    pub(super) wrong: String,
}

/// The states before a policy's failure, and a description of the error. A failure has either `views` or `scenes`.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Failure {
    /// The name of the lab.
    pub lab: String,
    /// A description of the states that the web page shows.
    pub title: String,
    /// The error message.
    pub wrong: String,
    /// The index, counted from 0, of the state that shows the error.
    pub at: usize,
    /// The object that the error concerns, if any: the first page of its slab, and its index in the slab.
    pub object: Option<(u32, u16)>,
    /// The offsets, in bytes, of the memory blocks that the error concerns.
    pub blocks: Vec<usize>,
    /// The number of CPUs of the machine.
    pub cpus: u32,
    /// The names of the machine's caches.
    pub caches: Vec<String>,
    /// The states of the simulated machine, if the lab runs a machine.
    pub views: Vec<View>,
    /// The states of a memory, if the lab shows a memory.
    pub scenes: Vec<Scene>,
}

/// The number of operations shown before a failure.
const SHOWN_OPERATIONS: u64 = 40;

/// Converts the payload of a panic into text.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("the policy panics: {}", text.unwrap_or("no reason is given"))
}

/// Runs a policy on the whole stream. After each operation, calls `after_operation` with the model and the number of
/// operations that have run.
pub(super) fn run<P: Policy>(
    stream: &Stream,
    mut after_operation: impl FnMut(u64, &Model<'_, P>),
) -> Result<(), PolicyFailure> {
    let pages = Pages::of(stream).expect("a machine of a few CPUs must start");
    let model = Model::<P>::new(&pages, P::Knobs::default());
    let mut engine = Engine::new(model.map_err(|unable| PolicyFailure { at: 0, wrong: unable.0 })?, stream);
    for at in 1..=stream.operations {
        let result = catch_panic(|| {
            engine.run(at).map_err(|error| error.to_string())?;
            if engine.failed() > 0 {
                engine.design().check_caches()?;
                return Err("an allocation is refused although memory is free".to_owned());
            }
            engine.design().check_caches().map(drop)
        });
        if let Err(reason) = result.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
            // A policy that was interrupted may be inconsistent, so it is not dropped.
            std::mem::forget(engine);
            return Err(PolicyFailure { at, wrong: reason });
        }
        after_operation(at, engine.design());
    }
    Ok(())
}

/// Returns the states to display: the last states before the failed operation, and the state at the failure.
pub(super) fn moments<P: Policy>(
    lab: &str,
    stream: &Stream,
    PolicyFailure { at, wrong: reason }: PolicyFailure,
) -> Failure {
    let pages = Pages::of(stream).expect("a machine of a few CPUs must start");
    let (mut views, mut object, mut reason) = (vec![], None, reason);
    if let Ok(model) = Model::<P>::new(&pages, P::Knobs::default()) {
        let mut engine = Engine::new(model, stream);
        let cache_numbers: Vec<u32> = (0..stream.caches.len() as u32).collect();
        let first = at.saturating_sub(SHOWN_OPERATIONS);
        // The last caller of each object.
        let mut owners = BTreeMap::new();
        for moment in 0..=at {
            let view = catch_panic(|| {
                let steps = engine.run_with_steps(moment).ok()?;
                for step in steps.iter().filter(|step| matches!(step.what, What::Alloc)) {
                    owners.insert(step.object, (moment, step.cpu));
                }
                Some((moment >= first).then(|| engine.view(steps, &cache_numbers)))
            });
            match view {
                Ok(Some(view)) => views.extend(view),
                _ => break,
            }
        }
        object = engine.design().doubly_allocated_object().map(|object| (object.page, object.index));
        if let Some((operation, cpu)) = object.and_then(|_| owners.get(&object)) {
            reason += &format!(": CPU {cpu} has had the object since operation {operation}");
        }
        std::mem::forget(engine);
    }
    Failure {
        lab: lab.to_owned(),
        title: format!("{lab}: operation {at}"),
        wrong: reason,
        at: views.len().saturating_sub(1),
        object,
        blocks: vec![],
        cpus: stream.cpus,
        caches: stream.caches.iter().map(|cache| cache.name.clone()).collect(),
        views,
        scenes: vec![],
    }
}

impl Verdict {
    /// Returns the verdict on a policy that broke an invariant.
    pub(super) fn verdict_on_broken_invariant<P: Policy>(
        lab: &str,
        seed: u32,
        stream: &Stream,
        failure: PolicyFailure,
    ) -> Self {
        let failure_text = format!("operation {}: {}", failure.at, failure.wrong);
        let failure = moments::<P>(lab, stream, failure);
        Self {
            lab: lab.to_owned(),
            seed,
            checks: vec![Check::new(POLICY_INVARIANT, failure_text, false)],
            failure: serde_json::to_value(failure).ok(),
        }
    }
    /// Returns the verdict on a policy that kept all invariants; the verdict shows the policy's cost. If the cost was
    /// too high, `excess_operation` is the first operation after which it exceeded the limit.
    pub(super) fn judge_costs<P: Policy>(
        lab: &str,
        seed: u32,
        stream: &Stream,
        costs: Vec<Check>,
        excess_operation: Option<u64>,
    ) -> Self {
        let failed_checks = costs
            .iter()
            .find(|check| !check.holds)
            .map(|check| format!("{}, found {}", check.wanted, check.found));
        let failure = failed_checks
            .zip(excess_operation)
            .map(|(reason, at)| moments::<P>(lab, stream, PolicyFailure { at, wrong: reason }));
        let mut checks =
            vec![Check::new(POLICY_INVARIANT, format!("in {} operations", stream.operations), true)];
        checks.extend(costs);
        Self {
            lab: lab.to_owned(),
            seed,
            checks,
            failure: failure.and_then(|failure| serde_json::to_value(failure).ok()),
        }
    }
}
