//! Computes the snapshots of a replay in the form that web pages show.

use super::{Options, ReplayError, input, run_to_stream};
use crate::output::Progress;
use serde::Serialize;
use std::path::Path;
use uslab_engine::designs::{Spec, Visitor};
use uslab_engine::{Design, Engine, EngineError, Policy, Stream, View};

/// Snapshots of a simulated machine, each after a given number of operations.
#[derive(Debug, Serialize)]
pub struct Moments {
    /// The name of the trace.
    pub trace: String,
    /// The name of the design.
    pub design: String,
    /// The number of operations of the whole stream.
    pub operations: u64,
    /// The snapshots in the requested order; each snapshot shows the caches slab by slab.
    pub moments: Vec<View>,
}

impl Moments {
    /// Returns a snapshot after each of the given numbers of operations, from the stream that the web page of this
    /// trace runs.
    ///
    /// # Errors
    /// Returns a [`ReplayError`]; also fails if a number exceeds the number of operations.
    pub fn new<P: Policy>(
        path: Option<&Path>,
        options: &Options,
        design: &Spec<P>,
        at: &[u64],
        progress: &Progress,
    ) -> Result<Self, ReplayError> {
        let stream = page_stream(path, options, progress)?;
        if let Some(late) = at.iter().find(|at| **at > stream.operations) {
            let (title, operations) = (&stream.title, stream.operations);
            return Err(ReplayError::Option(format!(
                "--at {late}: expected 0 to {operations}, the number of operations in {title}"
            )));
        }
        let wrong = |error: &dyn std::fmt::Display| ReplayError::Option(format!("{design}: {error}"));
        let views = design.on(&stream, Views { stream: &stream, at }).map_err(|error| wrong(&error))?;
        let moments = views.map_err(|error| wrong(&error))?;
        Ok(Self { design: design.to_string(), operations: stream.operations, moments, trace: stream.title })
    }
}

/// Returns the stream of operations that the web page of this trace runs.
///
/// # Errors
/// Returns a [`ReplayError`].
pub fn page_stream(
    path: Option<&Path>,
    options: &Options,
    progress: &Progress,
) -> Result<Stream, ReplayError> {
    match path.map(input::read_converted).transpose()?.flatten() {
        Some(mut stream) => {
            // The machine of a page has one zone.
            stream.zones.clear();
            input::distribute_over_cpus(stream, options)
        }
        None => run_to_stream(path, options, progress).map(|(_, stream)| stream),
    }
}

struct Views<'s> {
    stream: &'s Stream,
    at: &'s [u64],
}

impl Visitor for Views<'_> {
    type Out = Result<Vec<View>, EngineError>;

    fn visit<D: Design>(self, design: D) -> Self::Out {
        let mut engine = Engine::new(design, self.stream);
        let all: Vec<_> = (0..self.stream.caches.len() as u32).collect();
        let mut order: Vec<_> = self.at.iter().copied().enumerate().collect();
        order.sort_unstable_by_key(|(_, at)| *at);
        let mut views: Vec<(usize, View)> = Vec::with_capacity(order.len());
        for (place, at) in order {
            // The engine cannot run the same operation twice, so equal numbers share a snapshot.
            let view = match views.last().filter(|(_, view)| view.operation == at) {
                Some((_, same)) => same.clone(),
                None => {
                    let steps = engine.run_with_steps(at)?;
                    engine.view(steps, &all)
                }
            };
            views.push((place, view));
        }
        views.sort_unstable_by_key(|(place, _)| *place);
        Ok(views.into_iter().map(|(_, view)| view).collect())
    }
}
