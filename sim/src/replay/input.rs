//! Reads the trace that designs replay, together with the kernel's tables in its folder.

use super::from_before::initial_slabs_of_trace;
use super::kernel_pages::{self, SnapshotPages};
use super::start::{RenamedCache, Start};
use super::stream::InitialSlabs;
use super::traced::TracedInput;
use super::{Options, ReplayError, linux, open};
use crate::output::Progress;
use crate::trace::{CacheTally, PageSize, Tables};
use rustc_hash::FxHashMap;
use std::fmt;
use std::path::Path;
use uslab_engine::Stream;

/// The trace that designs replay, and facts about the traced kernel.
pub(super) struct Input {
    pub trace: String,
    pub stream: Stream,
    pub tables: Tables,
    /// The kernel's free pages at each snapshot of its tables.
    pub pages: FxHashMap<String, SnapshotPages>,
    pub tallies: FxHashMap<&'static str, Vec<CacheTally>>,
    /// The assumed number of free objects that each cache had before the trace, indexed by cache.
    pub guessed: Vec<u64>,
    pub missing: Vec<&'static str>,
    /// For a prediction, the same operations with the other kernel's caches; they start from that kernel's tables, if
    /// the user gives such tables.
    pub other: Option<(Stream, Tables)>,
}

impl Input {
    pub(super) fn open(
        path: Option<&Path>,
        options: &Options,
        start: Option<&Start>,
        progress: &Progress,
    ) -> Result<Self, ReplayError> {
        if let Some(path) = path
            && let Some(stream) = read_converted(path)?
        {
            let stream = distribute_over_cpus(stream, options)?;
            if start.is_some() {
                return Err(ReplayError::Option(format!(
                    "--start: {} is a converted trace, which lacks the call sites; expected the original trace",
                    path.display()
                )));
            }
            let (trace, tables) = (path.display().to_string(), Tables::from_trace_folder(path)?);
            let (pages, tallies) = (<_>::default(), <_>::default());
            return Ok(Self {
                trace,
                stream,
                tables,
                pages,
                tallies,
                guessed: vec![],
                missing: vec![],
                other: None,
            });
        }
        let (source, tables) = open(path, options)?;
        let stage = progress.stage("reading", source.progress().total.unwrap_or(0));
        let mut recording = super::read(source, &tables, options, |p| stage.at(p.bytes))?;
        drop(stage);
        let (page_size, _) = recording.page_size();
        if page_size != PageSize::Kib4 {
            return Err(ReplayError::Option(format!(
                "{} is from a machine with pages of {page_size}, but designs have pages of 4 KiB, so their slabs cannot be compared; expected a trace of a \
                 machine with pages of 4 KiB",
                recording.path().display()
            )));
        }
        let cpus = super::cpus(&recording, options)?;
        let trace = recording.path().display().to_string();
        let page_moves = recording.page_moves()?;
        let mut resolver = recording.resolve(tables.latest_slabinfo())?;
        let mut ops = std::iter::from_fn(|| resolver.next_op().transpose()).collect::<Result<Vec<_>, _>>()?;
        super::hidden::sort_object_events(&mut ops);
        let zones = kernel_pages::machine_zones(&ops, |mark| resolver.mark(mark), &tables);
        let all = TracedInput { resolver: &resolver, ops: &ops, tables: &tables };
        let slabs = initial_slabs_of_trace(all);
        let mut guessed = vec![0; resolver.caches().len()];
        slabs.iter().for_each(|slab| guessed[slab.cache.0 as usize] += u64::from(slab.guessed));
        let traced = super::stream::of(trace.clone(), cpus, &zones, all, InitialSlabs::Slabs(slabs));
        let missing = linux::missing_items(all);
        let mark = |mark| resolver.mark(mark);
        let pages = kernel_pages::rebuild(&ops, &page_moves, mark, &tables, resolver.counts());
        let tallies = |moment: &str| resolver.tallies_at_mark(&format!("SNAP {moment} begin")).to_vec();
        let tallies = tables.snapshots.iter().map(|at| (at.moment, tallies(at.moment))).collect();
        let other = start.map(|start| {
            let renamed = start.rename(&mut ops, &resolver);
            let renamed = renamed.into_iter().map(|RenamedCache { name, kind, size }| (name, kind, size));
            let begin = InitialSlabs::Other(renamed.collect(), start.kernel(), start.other_kernel_slabinfo());
            let all = TracedInput { resolver: &resolver, ops: &ops, tables: &tables };
            (super::stream::of(trace.clone(), cpus, &zones, all, begin), start.tables(&tables))
        });
        Ok(Self { trace, stream: traced, tables, pages, tallies, guessed, missing, other })
    }
}

/// Reads a converted trace; returns `None` for a file in another format.
pub(super) fn read_converted(path: &Path) -> Result<Option<Stream>, ReplayError> {
    if !super::stream::is_converted(path) {
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(|error| wrong(path, &error))?;
    Stream::read(&bytes).map(Some).map_err(|error| wrong(path, &error))
}

/// Moves the operations of a stream to the number of CPUs in the options.
pub(super) fn distribute_over_cpus(stream: Stream, options: &Options) -> Result<Stream, ReplayError> {
    options.check()?;
    match options.cpus {
        Some(cpus) => {
            stream.with_cpus(cpus).map_err(|error| ReplayError::Option(format!("--cpus {cpus}: {error}")))
        }
        None => Ok(stream),
    }
}

fn wrong(path: &Path, error: &dyn fmt::Display) -> ReplayError {
    ReplayError::Option(format!("{}: {error}", path.display()))
}

/// Reads a trace, possibly a converted one, as a stream for designs.
///
/// # Errors
/// Fails in the same cases as [`run`](super::run).
pub fn read_stream(
    path: Option<&Path>,
    options: &Options,
    progress: &Progress,
) -> Result<Stream, ReplayError> {
    Input::open(path, options, None, progress).map(|input| input.stream)
}
