//! Records the steps of an operation, as the allocator's tracepoints report them.

use crate::design::Design;
use crate::engine::{Engine, EngineError};
use crate::step::{Step, What};
use crate::stream::Action;
use crate::told::{capitalized, describe_page_steps, pages, slowest_level};
use std::sync::Arc;
use uslab_magazine::sync::{Mutex, Rank};
use uslab_magazine::tracepoints::Observer;

impl<D: Design> Engine<'_, D> {
    /// Runs until `target` operations have run, or until the stream ends. Returns the steps of the last operation if
    /// this call ran it.
    ///
    /// # Errors
    /// Returns an [`EngineError`].
    pub fn run_with_steps(&mut self, target: u64) -> Result<Vec<Step>, EngineError> {
        let target = target.min(self.stream.operations);
        self.run(target.saturating_sub(1))?;
        let mut steps = Vec::new();
        if self.operations < target {
            self.operation(|engine, action| {
                let (cache, freed) = engine.subject(action).unzip();
                let watch = Watch::new(engine, engine.cpu(), cache);
                let step_kind = engine.act(action)?;
                let object = if step_kind == What::Alloc { engine.youngest() } else { freed.flatten() };
                let step = watch.finish_step_recording(engine, step_kind, object);
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

/// Records the steps of an operation that is in progress.
struct Watch {
    cpu: u32,
    cache: Option<u32>,
    /// The steps that the shipping code reported. With the shipping design, the list has all steps; with a model, it
    /// has only the steps of the model's page allocator.
    did: Arc<Mutex<RecordedSteps>>,
    observer: Option<Observer>,
}

impl Watch {
    fn new<D: Design>(engine: &Engine<'_, D>, cpu: u32, cache: Option<u32>) -> Self {
        let recorded_steps = Arc::new(Mutex::ranked(Rank::Faults, RecordedSteps::new()));
        let recorder = recorded_steps.clone();
        // The machine has no other observer.
        let observer = engine
            .design
            .pages()
            .tracepoints()
            .observe(move |op| recorder.lock().extend_from_slice(op.steps));
        Self { cpu, cache, did: recorded_steps, observer: observer.ok() }
    }

    /// Ends the recording, and returns the description of the step.
    fn finish_step_recording<D: Design>(
        mut self,
        engine: &Engine<'_, D>,
        what: What,
        object: Option<(u32, u16)>,
    ) -> Step {
        drop(self.observer.take());
        let (cpu, cache, recorded_steps) = (self.cpu, self.cache, core::mem::take(&mut *self.did.lock()));
        let freeing = matches!(what, What::Free { .. });
        let of_slabs = cache.and_then(|cache| engine.design.describe(cpu, cache, freeing, &recorded_steps));
        let (path, description) = match of_slabs {
            _ if what == What::Nothing => (None, String::new()),
            Some((path, description)) => (Some(path.max(slowest_level(&recorded_steps))), description),
            // The step concerns pages, or a large object made of pages.
            None => {
                let description = describe_page_steps(&recorded_steps);
                let is_object_operation = matches!(what, What::Alloc | What::Free { .. });
                let text = format!(
                    "too large for a cache, so it is a block of pages. {}",
                    capitalized(&description)
                );
                (Some(slowest_level(&recorded_steps)), if is_object_operation { text } else { description })
            }
        };
        let name =
            cache.and_then(|cache| engine.stream.caches.get(cache as usize)).map_or("", |info| &info.name);
        let sentence = sentence(what, cpu, name, &description);
        let recorded_steps = recorded_steps.iter().map(ToString::to_string).collect();
        Step { what, cpu, cache, object, path, sentence, did: recorded_steps }
    }
}

/// Describes a step in one sentence, whose last words are `description`.
pub(crate) fn sentence(what: What, cpu: u32, name: &str, description: &str) -> String {
    match what {
        What::Alloc => format!("CPU {cpu} allocates from {name}: {description}"),
        What::Free { allocated_on, .. } if allocated_on != cpu => {
            format!("CPU {cpu} frees an object of {name} that CPU {allocated_on} allocated: {description}")
        }
        What::Free { .. } => format!("CPU {cpu} frees an object of {name}: {description}"),
        What::Pass => {
            format!(
                "CPU {cpu} frees an object of {name} whose allocation has no event in the trace. The replay allocates the object and frees it."
            )
        }
        What::AllocPages { page, order } => {
            format!("CPU {cpu} allocates {}, page {page}: {description}", pages(order))
        }
        What::FreePages { page, order } => {
            format!("CPU {cpu} frees {}, page {page}: {description}", pages(order))
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
