//! The command `uslab replay`: runs a kernel's memory trace through the shipping allocator.
//!
//! If a trace lacks a fact, the replay infers it, counts it separately and reports it.
//!
//! | the trace shows | the replay does |
//! |---|---|
//! | a free of an object whose allocation had no event (*hidden allocation*) | allocates and frees an object |
//! | a pointer handed out again, or a page freed, under a live object (*hidden free*) | frees the object |
//! | a free of an object from before the trace (*pre-trace*) | nothing; it is counted |
//! | pages of slabs and of large objects | nothing: the simulated caches allocate their own pages |
//! | other pages | allocates and frees them, splitting blocks that are freed in parts; a page larger than 4 KiB becomes a block of 4 KiB pages |
//! | a mark `SHRINK end`: the traced system had shrunk its caches | shrinks all caches; it is counted |
//! | a mark `SHRINK cache NAME`: the traced system shrinks one cache | shrinks the model of the kernel's cache, but not the shipping allocator's caches |
//!
//! A traced CPU is replayed on the simulated CPU with the same number, modulo the number of simulated CPUs.
//!
//! The replay checks the conservation invariants at every snapshot mark, after every `snapshot_every`
//! operations, at the end, and once more after everything was freed, reaped and shrunk.

mod at;
mod finish;
mod from_before;
mod hidden;
mod input;
mod kernel_pages;
mod linux;
mod moments;
mod page;
mod prediction;
mod recycled;
mod series;
mod shrink;
mod start;
mod steps;
mod stream;
#[cfg(test)]
mod testing;
mod traced;

pub use at::{Moments, page_stream};
pub use input::read_stream;
pub use kernel_pages::{PageCause, PageCauseKind, PageError, SnapshotPages, ZonePages};
pub use moments::{DesignReport, designs};
pub use page::{front, page};
pub use prediction::{OtherBootFolders, Prediction};
pub use series::Series;
pub use shrink::{Recorded, Returned, returned_by_shrink};
pub use stream::is_converted;

use crate::machine::{Build, BuildError, FailedAllocation, Machine, TraceAllocations};
use crate::output::Progress;
use crate::report::{CallerStatistics, LiveObjects, Report};
use crate::resident::resident_bytes;
use crate::trace::{
    self, CacheId, FreeOrigin, Op, OpKind, PageSize, PageSizeSource, PageUse, Recording, Resolver, Source,
    Tables, TraceError,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uslab::{Magazines, Violation};
use uslab_engine::Stream;
use uslab_magazine::{MAX_CPUS, MAX_NODES};

/// The options of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of simulated CPUs. `None` uses the number of CPUs in the trace.
    pub cpus: Option<u32>,
    /// The number of memory nodes.
    pub nodes: u32,
    /// The magazine size of every cache.
    pub magazines: Magazines,
    /// The memory of the simulated machine in bytes.
    pub memory: u64,
    /// The number of operations between two checks of the conservation invariants. With `None`, the
    /// invariants are checked only at marks and at the end.
    pub snapshot_every: Option<u64>,
    /// `true` if a free without a traced allocation is an error.
    pub strict: bool,
    /// The page size of the traced machine; `None` infers it from the trace's tables or addresses.
    pub page_size: Option<PageSize>,
    /// `true` if the report includes call sites and lifetimes.
    pub callers: bool,
    /// The live objects that the report of call sites shows.
    pub live: LiveObjects,
    /// `true` to continue even if the parser cannot read many lines of kmem events.
    pub partial: bool,
}

/// The default memory of the simulated machine: 16 GiB, committed on first use.
pub const DEFAULT_MEMORY: u64 = 16 << 30;

impl Default for Options {
    fn default() -> Self {
        Self {
            cpus: None,
            nodes: 1,
            magazines: Magazines::BySize,
            memory: DEFAULT_MEMORY,
            snapshot_every: None,
            strict: false,
            page_size: None,
            callers: false,
            live: LiveObjects::Workload,
            partial: false,
        }
    }
}

/// The reason why a replay cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace, or a table in its folder, is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An invalid option.
    #[error("{0}")]
    Option(String),
    /// The simulated machine does not start.
    #[error("the simulated machine cannot start")]
    Build(#[from] BuildError),
    /// The simulated machine has too little memory.
    #[error("{}:{line}: {failed}; the trace needs more than --limit-memory {memory}", path.display())]
    Memory {
        /// The path of the trace.
        path: PathBuf,
        /// The line of the failed allocation in the trace.
        line: u64,
        /// The allocation that failed, and the reason.
        failed: FailedAllocation,
        /// The memory limit in bytes.
        memory: u64,
    },
    /// A cache of the trace cannot be created.
    #[error("{}:{line}: {failed}", path.display())]
    Cache {
        /// The path of the trace.
        path: PathBuf,
        /// The line of the cache's first event in the trace.
        line: u64,
        /// The reason why the cache cannot be created.
        failed: FailedAllocation,
    },
    /// A free without a traced allocation, which `--strict` treats as an error.
    #[error("{}:{line}: --strict: {cache} frees {ptr:#x}, which {why}", path.display())]
    Strict {
        /// The path of the trace.
        path: PathBuf,
        /// The line of the free in the trace.
        line: u64,
        /// The name of the cache.
        cache: String,
        /// The traced address of the freed object.
        ptr: u64,
        /// The reason why the free is an error.
        why: &'static str,
    },
}

impl Options {
    /// Checks the options before the replay begins.
    ///
    /// # Errors
    /// Fails if an option is outside its range; the error names the option and its range.
    pub fn check(&self) -> Result<(), ReplayError> {
        let wrong = |text: String| Err(ReplayError::Option(text));
        if let Some(cpus) = self.cpus.filter(|n| !(1..=MAX_CPUS).contains(n)) {
            return wrong(format!("--cpus {cpus}: expected 1 to {MAX_CPUS}"));
        }
        if !(1..=MAX_NODES).contains(&self.nodes) {
            return wrong(format!("--nodes {}: expected 1 to {MAX_NODES}", self.nodes));
        }
        if let Some(cpus) = self.cpus.filter(|cpus| *cpus < self.nodes) {
            return wrong(format!("--nodes {}: expected at most {cpus}, one node for each CPU", self.nodes));
        }
        if self.snapshot_every == Some(0) {
            return wrong("--snapshot-every 0: expected at least 1".to_owned());
        }
        Ok(())
    }
}

/// The bundled trace: a real kernel, 6.1 on 4 CPUs, under a file workload.
static BUNDLED_TRACE: &[u8] = include_bytes!("../../data/files-6.1.trace.zst");
/// The name of the bundled trace in errors and reports.
pub(crate) const BUNDLED_NAME: &str = "the bundled trace";

/// Replays the trace at `path`: `-` means standard input, and `None` means the bundled trace.
///
/// # Errors
/// Returns a [`ReplayError`]. A violated conservation invariant is not an error; the report shows it.
pub fn run(path: Option<&Path>, options: &Options, progress: &Progress) -> Result<Report, ReplayError> {
    let (source, tables) = open(path, options)?;
    replay(source, &tables, options, progress)
}

/// Replays a trace like [`run`]; also returns its operations as a stream, for a [`page`].
///
/// # Errors
/// Fails in the same cases as [`run`].
pub fn run_to_stream(
    path: Option<&Path>,
    options: &Options,
    progress: &Progress,
) -> Result<(Report, Stream), ReplayError> {
    let (source, tables) = open(path, options)?;
    let mut stream = Stream::default();
    let report = replay_into_stream(source, &tables, options, progress, Some(&mut stream))?;
    Ok((report, stream))
}

fn open(path: Option<&Path>, options: &Options) -> Result<(Source, Tables), ReplayError> {
    options.check()?;
    Ok(match path {
        Some(path) if stream::is_converted(path) => {
            return Err(ReplayError::Option(format!(
                "{} is a converted trace, which lacks the kernel's events; expected --design, or the original trace",
                path.display()
            )));
        }
        Some(path) => (Source::open(path)?.partial(options.partial), Tables::from_trace_folder(path)?),
        None => (
            Source::from_reader(BUNDLED_NAME, Box::new(BUNDLED_TRACE), Some(BUNDLED_TRACE.len() as u64))?,
            bundled_tables()?,
        ),
    })
}

/// Reads a trace; the kernel's tables may show its page size.
fn read(
    source: Source,
    tables: &Tables,
    options: &Options,
    progress: impl FnMut(trace::Progress),
) -> Result<Recording, TraceError> {
    let given = options.page_size.map(|size| (size, PageSizeSource::Given));
    let known = given.or_else(|| tables.page_size().map(|size| (size, PageSizeSource::Slabinfo)));
    let mut recording = Recording::read_with_page_size(source, known, progress)?;
    recording.restore_lost_mark(tables);
    Ok(recording)
}

fn bundled_tables() -> Result<Tables, TraceError> {
    let texts = [
        ("kernel.txt", "6.1.192"),
        ("before.slabinfo", include_str!("../../data/files-6.1.before.slabinfo")),
        ("before.buddyinfo", include_str!("../../data/files-6.1.before.buddyinfo")),
        ("before.zoneinfo", include_str!("../../data/files-6.1.before.zoneinfo")),
        ("end.slabinfo", include_str!("../../data/files-6.1.end.slabinfo")),
        ("end.buddyinfo", include_str!("../../data/files-6.1.end.buddyinfo")),
    ];
    let text = |path: &Path| texts.into_iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| text);
    Tables::of(Path::new(BUNDLED_NAME), |path| Ok(text(path)))
}

/// Replays a trace from an open file, with the kernel's tables.
///
/// # Errors
/// Fails in the same cases as [`run`].
pub fn replay(
    source: Source,
    tables: &Tables,
    options: &Options,
    progress: &Progress,
) -> Result<Report, ReplayError> {
    replay_into_stream(source, tables, options, progress, None)
}

fn replay_into_stream(
    source: Source,
    tables: &Tables,
    options: &Options,
    progress: &Progress,
    to: Option<&mut Stream>,
) -> Result<Report, ReplayError> {
    let begun = Instant::now();
    let stage = progress.stage("reading", source.progress().total.unwrap_or(0));
    let recording = read(source, tables, options, |p| stage.at(p.bytes))?;
    drop(stage);
    let read = begun.elapsed();

    let path = recording.path().to_owned();
    let traced_cpus = stream::traced_cpus(recording.counts());
    let build = Build {
        cpus: cpus(&recording, options)?,
        nodes: options.nodes,
        magazines: options.magazines,
        memory: options.memory,
    };
    let rss_before = resident_bytes();
    let machine = Machine::new(&build)?;
    let stage = progress.stage("replaying", recording.records());
    let resolver = recording.resolve(tables.latest_slabinfo())?;
    let mut run = Run {
        path,
        build,
        options,
        machine: &machine,
        held: TraceAllocations::new(&machine),
        resolver,
        nodes: (0..build.cpus).map(|cpu| machine.subsystem.cpus().node_of(cpu)).collect(),
        remote: Vec::new(),
        watch: options.callers.then(CallerStatistics::default),
        operations: 0,
        served: 0,
        shrinks: 0,
        checked: 0,
        violations: Vec::new(),
        snapshots: Vec::new(),
        checking: Duration::ZERO,
    };
    let mut ops = Vec::new();
    let begun = Instant::now();
    while let Some(op) = run.resolver.next_op()? {
        run.step(&op)?;
        if to.is_some() {
            ops.push(op);
        }
        if run.operations.is_multiple_of(65_536) {
            stage.at(run.operations);
        }
    }
    let replayed = begun.elapsed().saturating_sub(run.checking);
    drop(stage);
    if let Some(to) = to {
        hidden::sort_object_events(&mut ops);
        let traced = traced::TracedInput { resolver: &run.resolver, ops: &ops, tables };
        let slabs = from_before::initial_slabs_of_trace(traced);
        *to = stream::of(title(&run.path), build.cpus, &[], traced, stream::InitialSlabs::Slabs(slabs));
    }
    run.snapshot("the end of the trace", false);
    let taken = finish::ReportFacts {
        build,
        tables,
        traced_cpus,
        read,
        replayed,
        rss: [rss_before, resident_bytes()],
    };
    Ok(run.finish(taken))
}

fn cpus(recording: &Recording, options: &Options) -> Result<u32, ReplayError> {
    let traced = stream::traced_cpus(recording.counts());
    if options.cpus.is_none() && traced > u64::from(MAX_CPUS) {
        return Err(ReplayError::Option(format!(
            "{}: {traced} CPUs; expected at most {MAX_CPUS}, or --cpus with a smaller number",
            recording.path().display()
        )));
    }
    Ok(options.cpus.unwrap_or(traced as u32))
}

/// Returns the page title for the trace at `path`.
fn title(path: &Path) -> String {
    match path.to_str() {
        Some(BUNDLED_NAME) => {
            "a real kernel (6.1, 4 CPUs) creates, searches and deletes thousands of files".to_owned()
        }
        _ => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
    }
}

/// A replay in progress.
struct Run<'r, 'm> {
    path: PathBuf,
    build: Build,
    options: &'r Options,
    machine: &'m Machine,
    held: TraceAllocations<'m>,
    resolver: Resolver,
    /// The node of each simulated CPU.
    nodes: Vec<u32>,
    /// The number of remote frees of each cache, indexed by the cache's number in the trace.
    remote: Vec<RemoteFrees>,
    watch: Option<CallerStatistics>,
    operations: u64,
    /// The number of allocations and frees that the replay requested from the simulated machine.
    served: u64,
    /// The number of marks at which all caches were shrunk.
    shrinks: u64,
    /// The number of checks of the conservation invariants so far.
    checked: u64,
    violations: Vec<String>,
    snapshots: Vec<Snapshot>,
    /// The total time of the checks, which the replay's time excludes.
    checking: Duration,
}

/// Remote frees: objects that were freed on another simulated CPU, or on another node, than the one that allocated
/// them.
#[derive(Clone, Copy, Debug, Default)]
struct RemoteFrees {
    cpu: u64,
    node: u64,
}

/// The simulated caches at a snapshot of the kernel's tables.
#[derive(Clone, Debug)]
struct Snapshot {
    moment: String,
    operations: u64,
    /// The counts of each cache, indexed by the cache's number in the trace; empty if the kernel has no table
    /// to compare with.
    caches: Vec<ReplayedCache>,
    census: Option<uslab::Census>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReplayedCache {
    used: u64,
    slabs: u64,
    pre_trace_frees: u64,
    hidden_allocs: u64,
    hidden_frees: u64,
}

impl Run<'_, '_> {
    fn step(&mut self, op: &Op) -> Result<(), ReplayError> {
        self.operations += 1;
        if self.resolver.caches().len() > self.held.known_caches() {
            self.held.learn(self.resolver.caches()).map_err(|failed| ReplayError::Cache {
                path: self.path.clone(),
                line: op.line,
                failed,
            })?;
        }
        if let Some(watch) = &mut self.watch {
            watch.observe_op(op);
        }
        let cpu = u32::from(op.cpu) % self.build.cpus;
        self.served += request_count(op.kind);
        match op.kind {
            OpKind::Alloc { cache, ptr, bytes_alloc, .. } => {
                let done = self.held.alloc(cpu, cache, ptr.0, bytes_alloc);
                done.map_err(|failed| self.out_of_memory_error(op, failed))?;
            }
            OpKind::Free { cache, ptr, origin: FreeOrigin::Matched { alloc_cpu } } => {
                self.record_remote_free(cache, u32::from(alloc_cpu) % self.build.cpus, cpu);
                self.held.free(cpu, ptr.0);
            }
            OpKind::Free { cache, ptr, origin } => {
                if self.options.strict {
                    return Err(self.unknown_free_error(op, cache, ptr.0, origin));
                }
                if origin == FreeOrigin::HiddenAlloc {
                    let bytes = self.resolver.cache(cache).size;
                    let done = self.held.alloc(cpu, cache, ptr.0, bytes);
                    done.map_err(|failed| self.out_of_memory_error(op, failed))?;
                    self.held.free(cpu, ptr.0);
                }
            }
            OpKind::HiddenFree { ptr, .. } => {
                self.held.free(cpu, ptr.0);
            }
            OpKind::PageAlloc { pfn, order, migratetype, usage: PageUse::Other } => {
                for (pfn, order) in stream::split_into_4k_blocks(self.resolver.page_size(), pfn, order) {
                    let done = self.held.alloc_pages(cpu, pfn, order, migratetype);
                    done.map_err(|failed| self.out_of_memory_error(op, failed))?;
                }
            }
            OpKind::PageFree { pfn, order, usage: PageUse::Other, .. } => {
                for (pfn, order) in stream::split_into_4k_blocks(self.resolver.page_size(), pfn, order) {
                    self.held.free_pages(cpu, pfn, order);
                }
            }
            // The simulated caches allocate and free their own pages.
            OpKind::PageAlloc { .. } | OpKind::PageFree { .. } => {}
            OpKind::Mark { text } => {
                let text = self.resolver.mark(text);
                if text == "SHRINK end" {
                    self.shrinks += 1;
                    self.machine.subsystem.reap();
                    self.machine.subsystem.shrink();
                } else if let Some(moment) = text.strip_prefix("SNAP ").and_then(|t| t.strip_suffix(" begin"))
                {
                    self.snapshot(moment, true);
                }
            }
        }
        if self.options.snapshot_every.is_some_and(|n| self.operations.is_multiple_of(n)) {
            let moment = format!("operation {}", self.operations);
            self.snapshot(&moment, false);
        }
        Ok(())
    }

    fn record_remote_free(&mut self, cache: CacheId, allocated: u32, freed: u32) {
        if allocated == freed {
            return;
        }
        let at = cache.0 as usize;
        if at >= self.remote.len() {
            self.remote.resize(at + 1, RemoteFrees::default());
        }
        self.remote[at].cpu += 1;
        self.remote[at].node += u64::from(self.nodes[allocated as usize] != self.nodes[freed as usize]);
    }

    fn out_of_memory_error(&self, op: &Op, failed: FailedAllocation) -> ReplayError {
        ReplayError::Memory { path: self.path.clone(), line: op.line, failed, memory: self.build.memory }
    }

    fn unknown_free_error(&self, op: &Op, cache: CacheId, ptr: u64, origin: FreeOrigin) -> ReplayError {
        ReplayError::Strict {
            path: self.path.clone(),
            line: op.line,
            cache: self.resolver.cache(cache).name.clone(),
            ptr,
            why: match origin {
                FreeOrigin::PreTrace => "was allocated before the trace began",
                _ => "was never seen allocated or is free already",
            },
        }
    }

    /// Checks the conservation invariants, and keeps the counts of the snapshot. The counts of each cache are
    /// kept only if `compared` is true.
    fn snapshot(&mut self, moment: &str, compared: bool) {
        let begun = Instant::now();
        let census = self.check(moment);
        let infos: rustc_hash::FxHashMap<String, uslab::CacheInfo> =
            self.machine.subsystem.info().caches.into_iter().map(|info| (info.name.clone(), info)).collect();
        let used = self.held.used_by_cache();
        let caches = (0..self.resolver.caches().len()).map(|i| {
            let id = CacheId(i as u32);
            let info = self.held.cache(id).and_then(|cache| infos.get(cache.name()));
            let used = used.get(i).copied().unwrap_or(0);
            if let Some(info) = info.filter(|info| info.used != used) {
                let name = &info.name;
                self.violations.push(format!(
                    "{moment}: cache {name}: the cache counts {} objects in use, but the trace has {used}",
                    info.used
                ));
            }
            let tally = self.resolver.cache_tally(id);
            ReplayedCache {
                used,
                slabs: info.map_or(0, |info| info.slabs),
                pre_trace_frees: tally.pre_trace_frees,
                hidden_allocs: tally.hidden_allocs,
                hidden_frees: tally.hidden_frees,
            }
        });
        // All caches are checked every time. Their numbers are kept only for comparison with the kernel, because a
        // replay may have millions of moments.
        let caches: Vec<_> = caches.collect();
        let caches = if compared { caches } else { Vec::new() };
        self.snapshots.push(Snapshot {
            moment: moment.to_owned(),
            operations: self.operations,
            caches,
            census,
        });
        self.checking += begun.elapsed();
    }

    /// Checks two sums: for every cache, objects = used + magazines + depot + free in slabs; and pages = slabs +
    /// kmalloc-large + traced pages + per-CPU + free.
    fn check(&mut self, moment: &str) -> Option<uslab::Census> {
        self.checked += 1;
        self.violations.extend(self.held.violations.drain(..).map(|v| format!("{moment}: {v}")));
        let census = match self.machine.subsystem.check() {
            Ok(census) => census,
            Err(violation) => {
                self.violations.push(format!("{moment}: {}", describe_violation(&violation)));
                return None;
            }
        };
        let c = &census;
        let objects = c.used + c.in_magazines + c.in_depot + c.free_in_slabs;
        let pages =
            c.slab_pages + c.grace_pages + c.large_pages + self.held.pages() + c.per_cpu_pages + c.free_pages;
        for (what, found, expected) in [
            ("objects: used + magazines + depot + free in slabs", objects, c.objects),
            ("pages: slabs + kmalloc-large + traced + per-CPU + free", pages, c.pages),
            (
                "objects in use by the caches and by the trace",
                c.used + self.large(),
                self.held.objects() as u64,
            ),
        ] {
            if found != expected {
                self.violations.push(format!("{moment}: {what}: found {found}, expected {expected}"));
            }
        }
        Some(census)
    }

    fn large(&self) -> u64 {
        let large = self.machine.subsystem.info().kmalloc_large;
        large.allocs - large.frees
    }
}

/// Returns the number of allocations and frees that an operation requests from the simulated machine.
fn request_count(kind: OpKind) -> u64 {
    match kind {
        OpKind::Alloc { .. }
        | OpKind::HiddenFree { .. }
        | OpKind::Free { origin: FreeOrigin::Matched { .. }, .. }
        | OpKind::PageAlloc { usage: PageUse::Other, .. }
        | OpKind::PageFree { usage: PageUse::Other, .. } => 1,
        OpKind::Free { origin: FreeOrigin::HiddenAlloc, .. } => 2,
        OpKind::Free { origin: FreeOrigin::PreTrace, .. }
        | OpKind::PageAlloc { .. }
        | OpKind::PageFree { .. }
        | OpKind::Mark { .. } => 0,
    }
}

fn describe_violation(violation: &Violation) -> String {
    violation.to_string()
}
