//! A policy on a stream, operation by operation.

use super::verdict::{Check, Verdict};
use crate::step::What;
use crate::{Engine, Model, Pages, Policy, Stream, View};
use serde::Serialize;
use std::any::Any;
use std::collections::BTreeMap;
use uslab_lab::demos::Scene;
use uslab_magazine::sync::catch_panic;

/// What no policy may do.
pub(super) const LAWS: &str = "no object is handed out twice or lost";

/// The step at which it went wrong.
pub(super) struct Broken {
    /// The operation, from 1.
    pub(super) at: u64,
    pub(super) wrong: String,
}

/// Moments to look at, and what is wrong at one of them. Either views or scenes.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Failure {
    /// The lab.
    pub lab: String,
    /// What is seen.
    pub title: String,
    /// What is wrong.
    pub wrong: String,
    /// The moment at which it is, from 0.
    pub at: usize,
    /// The object that it is about, where there is one: its slab's first page, and which one of the slab it is.
    pub object: Option<(u32, u16)>,
    /// The blocks of memory that it is about: where they begin, in bytes.
    pub blocks: Vec<usize>,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Names of its caches.
    pub caches: Vec<String>,
    /// A machine.
    pub views: Vec<View>,
    /// Or a memory.
    pub scenes: Vec<Scene>,
}

/// Moments before a failure that are shown.
const SHOWN: u64 = 40;

/// What a panic said.
pub(super) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it panics: {}", text.unwrap_or("it does not say why"))
}

/// Runs all of it; `each` sees the model after each operation, with how many ran.
pub(super) fn run<P: Policy>(
    stream: &Stream,
    mut each: impl FnMut(u64, &Model<'_, P>),
) -> Result<(), Broken> {
    let pages = Pages::of(stream).expect("a machine of a few CPUs");
    let model = Model::<P>::new(&pages, P::Knobs::default());
    let mut engine = Engine::new(model.map_err(|unable| Broken { at: 0, wrong: unable.0 })?, stream);
    for at in 1..=stream.operations {
        let result = catch_panic(|| {
            engine.run(at).map_err(|error| error.to_string())?;
            if engine.failed() > 0 {
                engine.design().check_caches()?;
                return Err("an allocation is refused, and memory is free".to_owned());
            }
            engine.design().check_caches().map(drop)
        });
        if let Err(wrong) = result.unwrap_or_else(|panic| Err(said(&*panic))) {
            // What a policy left half done is not touched again.
            std::mem::forget(engine);
            return Err(Broken { at, wrong });
        }
        each(at, engine.design());
    }
    Ok(())
}

/// The moments before an operation, and it, as far as they can be shown.
pub(super) fn moments<P: Policy>(lab: &str, stream: &Stream, Broken { at, wrong }: Broken) -> Failure {
    let pages = Pages::of(stream).expect("a machine of a few CPUs");
    let (mut views, mut object, mut wrong) = (vec![], None, wrong);
    if let Ok(model) = Model::<P>::new(&pages, P::Knobs::default()) {
        let mut engine = Engine::new(model, stream);
        let shown: Vec<u32> = (0..stream.caches.len() as u32).collect();
        let first = at.saturating_sub(SHOWN);
        // Who got each object last.
        let mut owners = BTreeMap::new();
        for moment in 0..=at {
            let view = catch_panic(|| {
                let steps = engine.run_and_tell(moment).ok()?;
                for step in steps.iter().filter(|step| matches!(step.what, What::Alloc)) {
                    owners.insert(step.object, (moment, step.cpu));
                }
                Some((moment >= first).then(|| engine.view(steps, &shown)))
            });
            match view {
                Ok(Some(view)) => views.extend(view),
                _ => break,
            }
        }
        object = engine.design().wrong_object().map(|object| (object.page, object.index));
        if let Some((since, cpu)) = object.and_then(|_| owners.get(&object)) {
            wrong += &format!(": CPU {cpu} has it since operation {since}");
        }
        std::mem::forget(engine);
    }
    Failure {
        lab: lab.to_owned(),
        title: format!("{lab}: operation {at}"),
        wrong,
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
    /// Of a policy that broke a law.
    pub(super) fn broken<P: Policy>(lab: &str, seed: u32, stream: &Stream, broken: Broken) -> Self {
        let found = format!("operation {}: {}", broken.at, broken.wrong);
        let failure = moments::<P>(lab, stream, broken);
        Self {
            lab: lab.to_owned(),
            seed,
            checks: vec![Check::new(LAWS, found, false)],
            failure: serde_json::to_value(failure).ok(),
        }
    }
    /// Of one that kept the laws, with what it cost. If that was too much, `too_dear` is the first operation at which it was.
    pub(super) fn costed<P: Policy>(
        lab: &str,
        seed: u32,
        stream: &Stream,
        costs: Vec<Check>,
        too_dear: Option<u64>,
    ) -> Self {
        let failed = costs
            .iter()
            .find(|check| !check.holds)
            .map(|check| format!("{}, found {}", check.wanted, check.found));
        let failure = failed.zip(too_dear).map(|(wrong, at)| moments::<P>(lab, stream, Broken { at, wrong }));
        let mut checks = vec![Check::new(LAWS, format!("in {} operations", stream.operations), true)];
        checks.extend(costs);
        Self {
            lab: lab.to_owned(),
            seed,
            checks,
            failure: failure.and_then(|failure| serde_json::to_value(failure).ok()),
        }
    }
}
