//! Computes, with the model of the traced kernel, which slabs a shrink of all caches would return at a
//! snapshot of a recording. The model contains each slab that the trace shows, with its objects; the kernel's
//! tables do not count empty slabs.

use super::{Options, ReplayError, read_stream};
use crate::output::Progress;
use std::collections::BTreeMap;
use std::path::Path;
use uslab_engine::designs::{LINUX_DESIGN, NoPolicy, Spec, Visitor};
use uslab_engine::{Design, Engine, Stream};

/// The slabs that a shrink of all caches would return.
#[derive(Debug)]
pub struct Returned {
    /// The design of the traced kernel.
    pub design: String,
    /// The number of returned slabs by cache; caches without an event are left out.
    pub slabs: BTreeMap<String, u64>,
    /// The real shrink of the traced system after the snapshot, if the recording contains one.
    pub recorded: Option<Recorded>,
}

/// A real shrink of the traced system after the snapshot, as the model computes it.
#[derive(Debug)]
pub struct Recorded {
    /// The name of the next snapshot.
    pub until: String,
    /// The number of slabs by which each cache is smaller in the snapshot `until`; negative for caches that grew.
    pub slabs: BTreeMap<String, i64>,
}

/// Returns the slabs that a shrink would have freed when the recorder read the tables of the snapshot `moment`.
///
/// # Errors
/// Fails if the trace cannot be read, has no mark of the snapshot, or does not show the kernel's release.
pub fn returned_by_shrink(trace: &Path, moment: &str, progress: &Progress) -> Result<Returned, ReplayError> {
    let stream = read_stream(Some(trace), &Options::default(), progress)?;
    let shown = trace.display();
    let mark = format!("SNAP {moment} begin");
    let Some(mark) = stream.marks.iter().find(|at| at.text == mark) else {
        return Err(ReplayError::Option(format!(
            "{shown}: the trace has no mark `{mark}`, so the time at which the tables were read is unknown"
        )));
    };
    let wrong = |error: String| ReplayError::Option(format!("{shown}: {error}"));
    let spec = LINUX_DESIGN.parse::<Spec<NoPolicy>>().map_err(|error| wrong(error.to_string()))?;
    let stage = progress.stage("replaying", mark.operation);
    let run = |until: Option<u64>| {
        let shrink = Shrink { stream: &stream, operation: mark.operation, until };
        spec.on(&stream, shrink).map_err(|error| wrong(error.to_string()))?.map_err(wrong)
    };
    let slabs = run(None)?.into_iter().map(|(name, slabs)| (name, slabs.max(0).unsigned_abs())).collect();
    let later = || stream.marks.iter().filter(|later| later.operation > mark.operation);
    let next = later().find_map(|next| {
        let moment = next.text.strip_prefix("SNAP ")?.strip_suffix(" begin")?;
        Some((next.operation, moment))
    });
    let is_shrunk = |next: u64| later().any(|at| at.operation < next && at.text.starts_with("SHRINK "));
    let recorded = match next.filter(|(next, _)| is_shrunk(*next)) {
        Some((next, moment)) => Some(Recorded { until: moment.to_owned(), slabs: run(Some(next))? }),
        None => None,
    };
    drop(stage);
    Ok(Returned { design: stream.linux.clone(), slabs, recorded })
}

/// Counts the slabs that a shrink frees in each cache.
struct Shrink<'s> {
    stream: &'s Stream,
    /// The operation at which the caches are shrunk.
    operation: u64,
    /// The operation at which the slabs are counted again, if the stream itself contains the shrink.
    until: Option<u64>,
}

impl Visitor for Shrink<'_> {
    type Out = Result<BTreeMap<String, i64>, String>;

    fn visit<D: Design>(self, design: D) -> Self::Out {
        let mut engine = Engine::new(design, self.stream);
        engine.run(self.operation).map_err(|error| error.to_string())?;
        let slabs = |engine: &Engine<'_, D>| -> Vec<u64> {
            (0..engine.caches() as u32).map(|cache| engine.design().counts(cache).slabs()).collect()
        };
        let mut before = slabs(&engine);
        match self.until {
            None => engine.shrink(),
            Some(until) => engine.run(until).map_err(|error| error.to_string())?,
        }
        let now = slabs(&engine);
        before.resize(now.len(), 0);
        let rows = self.stream.caches.iter().zip(before.into_iter().zip(now));
        let returned = rows.map(|(info, (before, now))| (info.name.clone(), before as i64 - now as i64));
        Ok(returned.collect())
    }
}
