//! Records the steps of an operation, as the allocator's tracepoints report them.

use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::step::{Step, What};
use crate::stream::Action;
use crate::told::{capital, dearest, pages, pages_text};
use std::sync::Arc;
use uslab_magazine::sync::{Mutex, Rank};
use uslab_magazine::tracepoints::Observer;

impl<D: Design> Engine<'_, D> {
    /// Runs until `until` operations have run, or until the stream ends. Returns the steps of the last operation if
    /// this call ran it.
    ///
    /// # Errors
    /// Returns an [`EngineError`].
    pub fn run_with_steps(&mut self, until: u64) -> Result<Vec<Step>, EngineError> {
        let until = until.min(self.stream.operations);
        self.run(until.saturating_sub(1))?;
        let mut steps = Vec::new();
        if self.operations < until {
            self.operation(|engine, action| {
                let (cache, freed) = engine.subject(action).unzip();
                let watch = Watch::new(engine, engine.cpu(), cache);
                let what = engine.act(action)?;
                let object = if what == What::Alloc { engine.youngest() } else { freed.flatten() };
                let step = watch.into_step(engine, what, object);
                if !matches!(action, Action::Start { .. }) {
                    steps.push(step);
                }
                Some(())
            })?;
        }
        Ok(steps)
    }
}

type RecordedSteps = Vec<uslab_magazine::tracepoints::Step>;

/// The observation of an operation in progress.
struct Watch {
    cpu: u32,
    cache: Option<u32>,
    /// The steps that the shipping code reported. The shipping design gets all steps; a model gets only page steps.
    did: Arc<Mutex<RecordedSteps>>,
    observer: Option<Observer>,
}

impl Watch {
    fn new<D: Design>(engine: &Engine<'_, D>, cpu: u32, cache: Option<u32>) -> Self {
        let did = Arc::new(Mutex::ranked(Rank::Faults, RecordedSteps::new()));
        let noted = did.clone();
        // The machine has no other observer.
        let observer =
            engine.design.pages().tracepoints().observe(move |op| noted.lock().extend_from_slice(op.steps));
        Self { cpu, cache, did, observer: observer.ok() }
    }

    /// Ends the observation, and returns a description of the step.
    fn into_step<D: Design>(
        mut self,
        engine: &Engine<'_, D>,
        what: What,
        object: Option<(u32, u16)>,
    ) -> Step {
        drop(self.observer.take());
        let (cpu, cache, did) = (self.cpu, self.cache, core::mem::take(&mut *self.did.lock()));
        let freeing = matches!(what, What::Free { .. });
        let of_slabs = cache.and_then(|cache| engine.design.how(cpu, cache, freeing, &did));
        let (path, how) = match of_slabs {
            _ if what == What::Nothing => (None, String::new()),
            Some((path, how)) => (Some(path.max(dearest(&did))), how),
            // The step concerns pages, or a large object made of pages.
            None => {
                let how = pages_text(&did);
                let large = matches!(what, What::Alloc | What::Free { .. });
                let whole = format!("too large for a cache, so it is a block of pages. {}", capital(&how));
                (Some(dearest(&did)), if large { whole } else { how })
            }
        };
        let name =
            cache.and_then(|cache| engine.stream.caches.get(cache as usize)).map_or("", |info| &info.name);
        let sentence = sentence(what, cpu, name, &how);
        let did = did.iter().map(ToString::to_string).collect();
        Step { what, cpu, cache, object, path, sentence, did }
    }
}

/// Describes a step in one sentence; `how` ends it.
pub(crate) fn sentence(what: What, cpu: u32, name: &str, how: &str) -> String {
    match what {
        What::Alloc => format!("CPU {cpu} allocates from {name}: {how}"),
        What::Free { allocated_on, .. } if allocated_on != cpu => {
            format!("CPU {cpu} frees an object of {name} that CPU {allocated_on} allocated: {how}")
        }
        What::Free { .. } => format!("CPU {cpu} frees an object of {name}: {how}"),
        What::Pass => {
            format!(
                "CPU {cpu} frees an object of {name} whose allocation the trace hides: it is allocated and freed here."
            )
        }
        What::AllocPages { page, order } => {
            format!("CPU {cpu} allocates {}, page {page}: {how}", pages(order))
        }
        What::FreePages { page, order } => {
            format!("CPU {cpu} frees {}, page {page}: {how}", pages(order))
        }
        What::SplitPages { page, order } => {
            format!(
                "CPU {cpu} frees a block in parts: the block at page {page} is split into blocks of order {order}."
            )
        }
        What::Shrink { objects, slabs } => format!(
            "All caches are shrunk: the CPUs flush {objects} objects, and {slabs} empty slabs are returned to the page allocator."
        ),
        What::Failed if name.is_empty() => format!("CPU {cpu} requests pages, but none is free."),
        What::Failed => {
            format!("CPU {cpu} requests an object of {name}, but no memory is free.")
        }
        What::Nothing => {
            "Not an operation of the allocator: a mark, pages of the traced kernel's own slabs, or a free of memory from before the trace."
                .to_owned()
        }
    }
}
