//! Replays a trace on designs other than the shipping allocator, and compares them with the traced kernel's
//! tables.
//!
//! A trace does not show what a cache held before the trace began. Each reported count is therefore the
//! kernel's count in the table `before`, plus the design's change since then.

use super::input::Input;
use super::kernel_pages::{self, SnapshotPages};
use super::prediction::{OtherBootFolders, Prediction};
use super::series::Series;
use super::start::Start;
use super::{Options, ReplayError};
use crate::output::{Progress, grouped, size, table, text};
use crate::trace::{CacheTally, Tables};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use uslab_buddy::{Order, PAGE_SIZE, PageAllocator, ZoneInfo, ZoneKind};
use uslab_engine::design::{CacheCounts, Locks, Unsupported};
use uslab_engine::designs::{DesignError, Spec, Visitor};
use uslab_engine::{Design, Engine, EngineError, MAX_MACHINE_MEMORY, Paths, Policy, Stream};

/// A comparison of designs with a kernel.
#[derive(Debug, Serialize)]
pub struct DesignReport {
    /// The trace's file.
    pub trace: String,
    /// The number of CPUs of the simulated machine.
    pub cpus: u32,
    /// The number of operations of the trace.
    pub operations: u64,
    /// The design of the traced kernel, which `--design linux` selects. The value is `None` if the traced kernel is
    /// unknown.
    pub linux: Option<String>,
    /// The data that the recording lacks, each item with its effect on the result.
    pub missing: Vec<&'static str>,
    /// The run of each design.
    pub designs: Vec<DesignRun>,
    /// The change from the first design to the second design, if the user requested a prediction.
    pub prediction: Option<Prediction>,
}

/// One design's run of the trace.
#[derive(Debug, Serialize)]
pub struct DesignRun {
    /// The design, with its options.
    pub design: String,
    /// `true` if the design or its options differ from the traced kernel's. If the design differs from the traced
    /// kernel's, differences from the kernel's tables are its effect; otherwise, they are errors of the model.
    pub is_other: bool,
    /// The first violated conservation invariant, with the operation at which the run ended.
    pub violated: Option<String>,
    /// The bytes that the design needed in excess of the traced kernel's free memory. A design needs more memory than
    /// the kernel, because only the kernel reclaims and compacts memory.
    pub added_memory: u64,
    /// The number of operations on slab objects that each level (CPU, depot, slab, pages) served.
    pub paths: Paths,
    /// The number of shared locks that the design would have taken; 0 if the design does not count locks.
    pub locks: Locks,
    /// The caches whose sheaf or magazine capacity is changed by the design's options.
    pub capacities: CapacityEffect,
    /// The snapshots for which the kernel has tables.
    pub moments: Vec<Moment>,
    /// The design's counts in the `before` snapshot, indexed by cache number.
    #[serde(skip)]
    pub before: Vec<CacheCounts>,
}

/// The effect of a design's options on the capacity of sheaves or magazines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CapacityEffect {
    /// The number of caches that have sheaves or magazines.
    pub caches: u64,
    /// The number of caches whose capacity is larger than without the options.
    pub raised: u64,
    /// The number of caches whose capacity is smaller than without the options.
    pub lowered: u64,
    /// The cache whose nonzero capacity grows by the largest factor: its name, and its capacity without and with the
    /// options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_raised: Option<(String, u64, u64)>,
}

impl CapacityEffect {
    /// Compares the capacities of a stream's caches with and without the design's options.
    fn new<P: Policy>(spec: &Spec<P>, stream: &Stream) -> Result<Self, DesignError> {
        let Some(plain) = spec.without_options() else { return Ok(Self::default()) };
        let with = spec.on(stream, CapacityVisitor(stream))??;
        let without = plain.on(stream, CapacityVisitor(stream))??;
        let all = stream.caches.iter().zip(without.into_iter().zip(with));
        let all: Vec<_> = all.filter(|(_, (without, with))| without.max(with) > &0).collect();
        let count = |of: fn(u64, u64) -> bool| all.iter().filter(|(_, (a, b))| of(*a, *b)).count() as u64;
        let raised = all.iter().filter(|(_, (without, with))| with > without && *without > 0);
        let most = raised.max_by(|(_, (a, b)), (_, (c, d))| (b * c).cmp(&(d * a)));
        Ok(Self {
            caches: all.len() as u64,
            raised: count(|without, with| with > without),
            lowered: count(|without, with| with < without),
            most_raised: most.map(|(cache, (without, with))| (cache.name.clone(), *without, *with)),
        })
    }
}

impl fmt::Display for CapacityEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caches, raised, lowered, most_raised } = self;
        write!(f, "the options raise the capacity of sheaves or magazines in {raised} of {caches} caches")?;
        if let Some((name, without, with)) = most_raised {
            write!(f, " (most in {name}, from {without} to {with} objects)")?;
        }
        write!(f, " and lower it in {lowered}")
    }
}

/// A visitor that returns the initial capacity of each cache, before the design has served an operation.
struct CapacityVisitor<'s>(&'s Stream);

impl Visitor for CapacityVisitor<'_> {
    type Out = Result<Vec<u64>, Unsupported>;

    fn visit<D: Design>(self, mut design: D) -> Self::Out {
        self.0.caches.iter().try_for_each(|cache| design.learn(cache))?;
        Ok((0..self.0.caches.len() as u32).map(|cache| design.counts(cache).capacity).collect())
    }
}

/// A snapshot of the kernel's tables, with the counts of a design and of the kernel.
#[derive(Debug, Serialize)]
pub struct Moment {
    /// The snapshot's name in the trace.
    pub name: String,
    /// The caches that occur both in the trace and in the kernel's table.
    pub caches: Vec<CacheAtMoment>,
    /// The number of slabs in all compared caches.
    pub slabs: SlabSums,
    /// The number of active objects in all compared caches.
    pub active_objs: ActiveSums,
    /// The kernel's free pages; `None` if the trace or the tables lack free blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<SnapshotPages>,
    /// The number of the design's free blocks of each order, for each zone.
    #[serde(skip)]
    free: Vec<(ZoneKind, Vec<u64>)>,
}

/// The slabs of a cache in a snapshot: the kernel's slabs, and the slabs that a design predicts.
#[derive(Debug, Serialize)]
pub struct CacheAtMoment {
    /// The cache's name.
    pub name: String,
    /// The number of objects in a slab of the kernel.
    pub objects_per_slab: u64,
    /// The kernel's counts for the cache.
    pub kernel: KernelCacheAtMoment,
    /// The design's counts for the cache.
    pub design: DesignCacheAtMoment,
    /// The known causes of the difference; empty if nothing differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<SlabCause>,
}

/// The reason why a design has more or fewer slabs of a cache than the kernel, with the cause's count since the
/// `before` snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlabCause {
    /// Objects were freed in the kernel without an event. In the design, an object that was freed without an
    /// event stays in use until its address is allocated again.
    FreedWithoutEvent(u64),
    /// Objects were allocated without an event. The replay infers a likely time for an allocation without an
    /// event, if the trace shows the allocation of the object's page.
    AllocatedWithoutEvent(u64),
    /// Objects from before the trace were freed, and the trace does not show the slabs that contained them.
    FreedFromBefore(u64),
    /// The kernel's table and page events differ by this number of slabs, because a slab's pages are freed a grace
    /// period after it has left the table.
    PagesDiffer(u64),
    /// The design puts this number of objects into a slab; the kernel puts in a different number.
    OtherSize(u64),
    /// In the `before` snapshot, some free objects were in slabs that the trace does not show; their distribution over
    /// these slabs is a guess.
    FreeBefore(u64),
    /// No other cause applies: the model of the kernel's policy chose other slabs than the kernel did.
    Model,
}

impl SlabCause {
    /// Derives the cause from three inputs: the counters in `before` and now, the kernel's number of slabs in both, and
    /// the intended differences.
    fn of(
        before: CacheTally,
        now: CacheTally,
        slabs: [u64; 2],
        intended: Option<Self>,
        guessed: u64,
    ) -> Vec<Self> {
        let by_pages = now.slabs - before.slabs;
        let differ = by_pages.abs_diff(slabs[1] as i64 - slabs[0] as i64);
        let causes = [
            (now.hidden_frees - before.hidden_frees, Self::FreedWithoutEvent as fn(u64) -> Self),
            (now.hidden_allocs - before.hidden_allocs, Self::AllocatedWithoutEvent),
            (now.pre_trace_frees - before.pre_trace_frees, Self::FreedFromBefore),
            (guessed, Self::FreeBefore),
            (differ, Self::PagesDiffer),
        ];
        let causes = causes.into_iter().filter(|(n, _)| *n > 0).map(|(n, cause)| cause(n));
        let causes: Vec<_> = intended.into_iter().chain(causes).collect();
        if causes.is_empty() { vec![Self::Model] } else { causes }
    }
}

impl fmt::Display for SlabCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FreedWithoutEvent(n) => write!(f, "{} objects freed without an event", grouped(n)),
            Self::AllocatedWithoutEvent(n) => write!(f, "{} objects allocated without an event", grouped(n)),
            Self::FreedFromBefore(n) => write!(f, "{} objects from before the trace were freed", grouped(n)),
            Self::PagesDiffer(n) => {
                write!(f, "page events and the kernel's table differ by {} slabs", grouped(n))
            }
            Self::OtherSize(n) => write!(f, "a slab of this design holds {} objects", grouped(n)),
            Self::FreeBefore(n) => write!(
                f,
                "{} objects were free at `before` in slabs that the trace does not show",
                grouped(n)
            ),
            Self::Model => f.write_str("the trace shows all events; the model chose other slabs"),
        }
    }
}

/// The kernel's counts for a cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KernelCacheAtMoment {
    /// The number of slabs.
    pub slabs: u64,
    /// The number of objects, without the free objects in slabs on the nodes' partial lists.
    pub active_objs: u64,
    /// The number of pages in a slab.
    pub pages_per_slab: u64,
}

/// A design's counts for a cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DesignCacheAtMoment {
    /// The number of slabs: the kernel's number in `before` plus the design's change.
    pub slabs: i64,
    /// The uncertainty of the predicted number of slabs; for the kernel's design, the band contains the real number for
    /// at least nine of ten caches.
    pub band: [i64; 2],
    /// The number of active objects: the kernel's number in `before` plus the design's change.
    pub active_objs: i64,
    /// The number of traced objects in use.
    pub used: u64,
    /// The change of `used` since the `before` snapshot.
    pub used_change: i64,
    /// The number of objects in a slab.
    pub objects_per_slab: u64,
    /// The order of a slab.
    pub order: u8,
    /// The number of free traced objects that CPUs hold.
    pub in_magazines: u64,
    /// The number of free objects in the depot or barn that all CPUs share.
    pub in_depot: u64,
}

/// The numbers of slabs, summed over many caches.
#[derive(Debug, Default, Serialize)]
pub struct SlabSums {
    /// The kernel's number of slabs.
    pub kernel: u64,
    /// The design's number of slabs.
    pub design: i64,
    /// The sum over all caches of the absolute difference between the design and the kernel.
    pub absolute_error: u64,
    /// The error of a prediction without any change after the `before` snapshot: the sum of the absolute changes.
    pub unchanged_error: u64,
    /// The design's error divided by the error of predicting no change; below 1, the model is better than no model. The
    /// value is `None` if nothing changed.
    pub skill: Option<f64>,
    /// The accuracy of the prediction for caches with more than 100 objects.
    pub caches_over_100: AccurateCacheCount,
    /// The number of caches whose number of slabs is inside the band.
    pub in_band: u64,
}

/// The number of caches that are predicted accurately.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct AccurateCacheCount {
    /// The number of caches that the prediction covers.
    pub n: u64,
    /// The number of caches that are predicted within 2 %.
    pub within_2_percent: u64,
    /// The number of caches that are predicted within 2 % or one slab.
    pub within_2_percent_or_a_slab: u64,
}

/// The numbers of active objects, summed over many caches.
#[derive(Debug, Default, Serialize)]
pub struct ActiveSums {
    /// The sum over all caches of the kernel's absolute change since `before`.
    pub absolute_change: u64,
    /// The sum over all caches of the absolute difference between the design and the kernel.
    pub absolute_error: u64,
}

/// Replays a trace through designs.
///
/// # Errors
/// Fails in the same cases as [`run`](super::run).
pub fn designs<P: Policy>(
    path: Option<&Path>,
    options: &Options,
    specs: &[Spec<P>],
    predict: Option<&OtherBootFolders>,
    series: Option<&RefCell<Series>>,
    progress: &Progress,
) -> Result<DesignReport, ReplayError> {
    let start = predict.and_then(|beside| beside.start.as_deref());
    let start = start.map(|folder| Start::read(folder, progress)).transpose()?;
    let boots = predict.map(OtherBootFolders::read).transpose()?;
    let Input { trace, stream: traced, tables, pages, tallies, guessed, missing, other } =
        Input::open(path, options, start.as_ref(), progress)?;
    let mut designs: Vec<DesignRun> = Vec::new();
    for spec in specs {
        // A prediction's second design begins where its kernel does, or where the first one's does with its own slabs.
        let second = designs.first().filter(|_| predict.is_some());
        let (stream, tables) =
            second.and(other.as_ref()).map_or((&traced, &tables), |(stream, tables)| (stream, tables));
        let seen = second.filter(|_| other.is_none()).map(|first| &first.before[..]);
        let stage = progress.stage("replaying", stream.operations);
        let wrong = |error: String| ReplayError::Option(format!("--design {spec}: {error}"));
        let rows = series.map_or(0, |series| series.borrow().len());
        let (mut larger, mut added) = (None::<Stream>, 0);
        let run = loop {
            let machine = larger.as_ref().unwrap_or(stream);
            let run = Run {
                design: spec.to_string(),
                stream: machine,
                tables,
                seen,
                series,
                at: |at| stage.at(at),
            };
            match spec.on(machine, run).map_err(|error| wrong(error.to_string()))? {
                Ok(run) => break run,
                Err(stop @ StopReason::Memory { .. }) => {
                    let Some(next) = with_enlarged_zones(&stream.zones, added) else {
                        return Err(wrong(stop.to_string()));
                    };
                    if let Some(series) = series {
                        series.borrow_mut().truncate(rows);
                    }
                    let larger = larger.get_or_insert_with(|| stream.clone());
                    (larger.zones, added) = next;
                }
                Err(stop) => return Err(wrong(stop.to_string())),
            }
        };
        drop(stage);
        let capacities = CapacityEffect::new(spec, stream).map_err(|error| wrong(error.to_string()))?;
        designs.push(DesignRun { added_memory: added, capacities, ..run });
    }
    // A design that began with other tables is compared with the traced kernel only in the prediction.
    let beside = if other.is_some() { 1 } else { designs.len() };
    // A counterfactual design is meant to differ from the kernel.
    let linux = traced.linux.parse::<Spec<P>>().ok();
    let is_other = |spec: &Spec<P>| {
        let spec = spec.as_traced(&traced).ok();
        linux.as_ref().zip(spec).is_some_and(|(linux, spec)| linux.to_string() != spec.to_string())
    };
    let is_other: Vec<_> = specs.iter().map(is_other).collect();
    for (run, is_other) in designs.iter_mut().zip(&is_other) {
        run.is_other = *is_other;
    }
    for (run, is_other) in designs.iter_mut().zip(is_other).take(beside) {
        for moment in &mut run.moments {
            moment.find_causes(is_other, &traced, &tables, &tallies, &guessed);
            let mut design = core::mem::take(&mut moment.free);
            if run.added_memory > 0 {
                // Free pages of a larger machine are not compared.
                design.clear();
            }
            moment.pages = pages.get(&moment.name).map(|pages| pages.clone().with_design_blocks(&design));
        }
    }
    let prediction = match &designs[..] {
        [from, to] => boots.map(|boots| Prediction::new(from, to, &boots)),
        _ => None,
    };
    if let (Some(_), [_, to]) = (&other, &mut designs[..]) {
        to.moments.clear();
    }
    let linux = Some(traced.linux).filter(|linux| !linux.is_empty());
    let (cpus, operations) = (traced.cpus, traced.operations);
    Ok(DesignReport { trace, cpus, operations, linux, missing, designs, prediction })
}

/// The memory that is added when a run is repeated because it ran out of memory, in eighths of the largest zone.
const ADDED_MEMORY_EIGHTHS: [u64; 3] = [1, 4, 8];

/// Enlarges the zones to the next step above `added` bytes; returns the zones and the new amount of added memory.
/// Returns `None` if no table describes the zones, or if the machine already had the largest size.
fn with_enlarged_zones(zones: &[(ZoneKind, u32)], added: u64) -> Option<(Vec<(ZoneKind, u32)>, u64)> {
    let mut zones = zones.to_vec();
    let (_, pages) = zones.iter_mut().max_by_key(|(_, pages)| *pages)?;
    let mut more = ADDED_MEMORY_EIGHTHS.into_iter().map(|eighths| u64::from(*pages) * eighths / 8);
    let more = more.find(|more| more * PAGE_SIZE as u64 > added)?;
    *pages = u32::try_from(u64::from(*pages) + more).ok()?;
    Some((zones, more * PAGE_SIZE as u64))
}

/// The reason why a design's run stopped.
#[derive(Debug, thiserror::Error)]
enum StopReason {
    /// Allocations failed.
    #[error(
        "{failed} of the first {operation} operations fail, because no free block is large enough; the machine has {} MiB of memory",
        bytes >> 20
    )]
    Memory {
        /// Number of allocations that failed.
        failed: u64,
        /// Number of operations.
        operation: u64,
        /// Memory of the machine in bytes.
        bytes: u64,
    },
    /// The simulation engine cannot continue.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A run of one design on a stream.
struct Run<'s, F> {
    design: String,
    stream: &'s Stream,
    tables: &'s Tables,
    /// The cache counts that another design had in the `before` snapshot.
    seen: Option<&'s [CacheCounts]>,
    series: Option<&'s RefCell<Series>>,
    at: F,
}

impl<F: Fn(u64)> Visitor for Run<'_, F> {
    type Out = Result<DesignRun, StopReason>;

    fn visit<D: Design>(self, design: D) -> Self::Out {
        let mut engine = Engine::new(design, self.stream);
        let (mut before, mut moments, mut violated) = (None, Vec::new(), None);
        let marks = self.stream.marks.iter().map(|mark| (mark.operation, &*mark.text));
        for (operation, text) in marks.chain([(self.stream.operations, "")]) {
            let moment = text.strip_prefix("SNAP ").and_then(|text| text.strip_suffix(" begin"));
            if moment.is_none() && operation < self.stream.operations {
                continue;
            }
            if let Some(series) = self.series {
                series.borrow_mut().follow(&self.design, &mut engine, operation)?;
            }
            engine.run(operation)?;
            (self.at)(operation);
            violated = engine.check().err();
            if violated.is_some() {
                break;
            }
            if engine.failed() > 0 {
                let zones: u64 = self.stream.zones.iter().map(|(_, pages)| u64::from(*pages)).sum();
                let bytes = if zones == 0 { MAX_MACHINE_MEMORY } else { zones * PAGE_SIZE as u64 };
                return Err(StopReason::Memory { failed: engine.failed(), operation, bytes });
            }
            let Some(moment) = moment else { continue };
            let counts = |cache| engine.design().counts(cache);
            let counts: Vec<_> = (0..engine.caches() as u32).map(counts).collect();
            if moment == "before" {
                before = Some(counts);
            } else if let Some(before) = &before {
                let moment = Moment::new(moment, self.stream, self.tables, self.seen, before, &counts);
                let free = free_blocks(engine.design().pages());
                moments.extend(moment.map(|moment| Moment { free, ..moment }));
            }
        }
        let (paths, locks) = (engine.design().paths(), engine.design().locks());
        let before = before.unwrap_or_default();
        Ok(DesignRun {
            design: self.design,
            is_other: false,
            violated,
            added_memory: 0,
            paths,
            locks,
            capacities: CapacityEffect::default(),
            moments,
            before,
        })
    }
}

/// Returns the number of free blocks of each order, for each zone.
fn free_blocks(pages: &PageAllocator) -> Vec<(ZoneKind, Vec<u64>)> {
    let blocks = |zone: &ZoneInfo| (0..).map_while(Order::new).map(|order| zone.free_blocks(order)).collect();
    pages.info().zones.iter().map(|zone| (zone.zone, blocks(zone))).collect()
}

impl DesignReport {
    /// Returns `true` if all conservation invariants held.
    pub fn holds(&self) -> bool {
        self.designs.iter().all(|run| run.violated.is_none())
    }
}

/// Returns the range around a predicted number of slabs: one slab, plus 2 %, plus up to 3 % for slabs without
/// traced objects. The parameter `hidden` is the number of slabs whose objects the trace does not show.
fn slab_range(slabs: i64, hidden: u64) -> [i64; 2] {
    let most = slabs * 3 / 100;
    let width = 1 + slabs * 2 / 100 + most.min(i64::try_from(hidden).unwrap_or(most));
    [(slabs - width).max(0), slabs + width]
}

/// Converts a number of slabs with `objects_per_slab` objects each to slabs with `per` objects each, given the objects
/// in use.
///
/// If the new slabs are smaller, some parts of an old slab can be empty; the objects in use are assumed to be at random
/// positions.
fn resized_slabs(per: u64, slabs: u64, objects_per_slab: u64, in_use: u64) -> u64 {
    let objects = slabs * objects_per_slab;
    if per == 0 || per >= objects_per_slab {
        return objects.div_ceil(per.max(1));
    }
    let unused = 1.0 - (in_use as f64 / objects.max(1) as f64).min(1.0);
    let occupied = objects as f64 / per as f64 * (1.0 - unused.powf(per as f64));
    (occupied.round() as u64).max(in_use.div_ceil(per))
}

impl Moment {
    /// Returns `None` if the kernel has no table for the present snapshot or for `before`.
    fn new(
        name: &str,
        stream: &Stream,
        tables: &Tables,
        seen: Option<&[CacheCounts]>,
        before: &[CacheCounts],
        now: &[CacheCounts],
    ) -> Option<Self> {
        let kernel_before = tables.at("before")?.slabinfo.as_ref()?;
        let kernel = tables.at(name)?.slabinfo.as_ref()?;
        let mut moment = Self {
            name: name.to_owned(),
            caches: vec![],
            slabs: SlabSums::default(),
            active_objs: ActiveSums::default(),
            pages: None,
            free: vec![],
        };
        for (at, info) in stream.caches.iter().enumerate() {
            let (Some(row), Some(now)) = (kernel.get(&info.name), now.get(at)) else { continue };
            // A cache that was created since had no slabs at `before`.
            let (slabs, active) =
                kernel_before.get(&info.name).map_or((0, 0), |row| (row.slabs, row.active_objects));
            let then = before.get(at).cloned().unwrap_or_default();
            moment.slabs.unchanged_error += row.slabs.abs_diff(slabs);
            let added = |now: u64, then: u64| now as i64 - then as i64;
            // Slabs that the trace showed since the boot are also in the design. Only the remaining slabs have to be
            // guessed.
            let (shown, inside) =
                seen.and_then(|seen| seen.get(at)).map_or((0, 0), |seen| (seen.slabs(), seen.active_objs()));
            let unseen = slabs.saturating_sub(shown);
            let unseen =
                resized_slabs(now.per_slab, unseen, row.objects_per_slab, active.saturating_sub(inside));
            let shown = if seen.is_some() { then.slabs() } else { 0 };
            let slabs = shown + unseen;
            let design = DesignCacheAtMoment {
                slabs: (slabs as i64 + added(now.slabs(), then.slabs())).max(0),
                band: [0; 2],
                active_objs: active as i64 + added(now.active_objs(), then.active_objs()),
                used: now.used,
                used_change: added(now.used, then.used),
                objects_per_slab: now.per_slab,
                order: now.order,
                in_magazines: now.in_magazines,
                in_depot: now.in_depot,
            };
            let error = design.slabs.abs_diff(row.slabs as i64);
            moment.slabs.kernel += row.slabs;
            moment.slabs.design += design.slabs;
            moment.slabs.absolute_error += error;
            if row.objects > 100 {
                let near = &mut moment.slabs.caches_over_100;
                near.n += 1;
                near.within_2_percent += u64::from(error * 50 <= row.slabs);
                near.within_2_percent_or_a_slab += u64::from(error * 50 <= row.slabs.max(50));
            }
            moment.active_objs.absolute_change += row.active_objects.abs_diff(active);
            moment.active_objs.absolute_error += design.active_objs.abs_diff(row.active_objects as i64);
            moment.caches.push(CacheAtMoment {
                name: info.name.clone(),
                objects_per_slab: row.objects_per_slab,
                kernel: KernelCacheAtMoment {
                    slabs: row.slabs,
                    active_objs: row.active_objects,
                    pages_per_slab: row.pages_per_slab,
                },
                design,
                causes: vec![],
            });
        }
        let SlabSums { absolute_error, unchanged_error, .. } = moment.slabs;
        moment.slabs.skill = (unchanged_error > 0).then(|| absolute_error as f64 / unchanged_error as f64);
        Some(moment)
    }

    fn find_causes(
        &mut self,
        is_other: bool,
        stream: &Stream,
        tables: &Tables,
        tallies: &FxHashMap<&'static str, Vec<CacheTally>>,
        guessed: &[u64],
    ) {
        let slabs = |moment, name| Some(tables.at(moment)?.slabinfo.as_ref()?.get(name)?.slabs);
        for cache in &mut self.caches {
            let number = stream.caches.iter().position(|info| info.name == cache.name);
            let tally = |moment: &str| {
                let all = tallies.get(moment).map_or(&[][..], Vec::as_slice);
                number.and_then(|number| all.get(number)).copied().unwrap_or_default()
            };
            let then = slabs("before", &cache.name).unwrap_or_default();
            let per_slab = cache.design.objects_per_slab;
            let intended = (per_slab != cache.objects_per_slab).then_some(SlabCause::OtherSize(per_slab));
            let guessed = number.and_then(|number| guessed.get(number)).copied().unwrap_or(0);
            let (before, now, slabs) = (tally("before"), tally(&self.name), [then, cache.kernel.slabs]);
            let hidden = |tally: CacheTally| tally.hidden_frees + tally.hidden_allocs;
            let design = &mut cache.design;
            design.band = slab_range(
                design.slabs,
                (guessed + hidden(now).saturating_sub(hidden(before))) / per_slab.max(1),
            );
            self.slabs.in_band += u64::from((design.band[0]..=design.band[1]).contains(&(slabs[1] as i64)));
            if design.slabs != slabs[1] as i64 {
                cache.causes = match is_other {
                    // The other causes explain an error, and this is an effect.
                    true => intended.into_iter().collect(),
                    false => SlabCause::of(before, now, slabs, intended, guessed),
                };
            }
        }
    }
}

/// The number of caches to show; the cache with the largest difference between a design and the kernel comes first.
const MAX_WORST_CACHES: usize = 10;

/// The text that explains the table of sums.
const LEGEND: &str = "difference: of the slabs of each cache from the traced kernel's, in all; an error for the traced kernel's own design, \
    an effect for another one. if nothing changed: the same for the table of `before`. skill: the first divided by the second. \
    in band: caches whose slabs are in the range that holds nine of ten.\n";

impl fmt::Display for DesignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(prediction) = &self.prediction {
            writeln!(f, "{}\n", prediction.answer())?;
        }
        writeln!(f, "{}: {} operations on {} CPUs", self.trace, grouped(self.operations), self.cpus)?;
        if let Some(linux) = &self.linux {
            writeln!(f, "The traced kernel's design, `linux`: {linux}")?;
        }
        for missing in &self.missing {
            writeln!(f, "Missing: {missing}")?;
        }
        for run in &self.designs {
            write!(f, "{}: {}", run.design, run.paths)?;
            match run.locks {
                locks if locks == Locks::default() => writeln!(f, "; locks are not counted")?,
                Locks { lists, depot } => writeln!(
                    f,
                    "; locks taken: {} of slab lists, {} of barns or depots",
                    grouped(lists),
                    grouped(depot)
                )?,
            }
            if run.capacities.raised + run.capacities.lowered > 0 {
                writeln!(f, "{}: {}", run.design, run.capacities)?;
            }
            if run.added_memory > 0 {
                writeln!(
                    f,
                    "{}: the design's machine has {} more free memory than the traced kernel had, because the kernel reclaims and compacts memory, which designs do not do. Free pages are not compared.",
                    run.design,
                    size(run.added_memory)
                )?;
            }
            if let Some(violated) = &run.violated {
                writeln!(f, "{}: A CONSERVATION INVARIANT IS VIOLATED: {violated}", run.design)?;
            }
        }
        writeln!(
            f,
            "The percentages show where operations were served; `slab` includes operations without a lock (a compare-and-swap on a slab)."
        )?;
        if self.designs.iter().all(|run| run.moments.is_empty()) {
            return writeln!(
                f,
                "\nNo comparison with the kernel: the trace's folder lacks `before.slabinfo` or a later slabinfo."
            );
        }
        let mut sums = table(&[
            "design",
            "moment",
            "slabs",
            "kernel",
            "difference",
            "if nothing changed",
            "skill",
            "within 2 %",
            "or a slab",
            "in band",
            "active objects: difference",
            "of a change",
        ]);
        // The prediction shows the second design.
        let compared = if self.prediction.is_some() { &self.designs[..1] } else { &self.designs };
        for (run, moment) in
            compared.iter().flat_map(|run| run.moments.iter().map(move |moment| (run, moment)))
        {
            let accuracy = |text: String| if run.is_other { "-".to_owned() } else { text };
            let near = moment.slabs.caches_over_100;
            sums.add_row([
                run.design.clone(),
                moment.name.clone(),
                moment.slabs.design.to_string(),
                grouped(moment.slabs.kernel),
                grouped(moment.slabs.absolute_error),
                grouped(moment.slabs.unchanged_error),
                accuracy(moment.slabs.skill.map_or_else(String::new, |skill| format!("{skill:.2}"))),
                accuracy(format!("{} of {}", near.within_2_percent, near.n)),
                accuracy(format!("{} of {}", near.within_2_percent_or_a_slab, near.n)),
                accuracy(format!("{} of {}", moment.slabs.in_band, moment.caches.len())),
                grouped(moment.active_objs.absolute_error),
                grouped(moment.active_objs.absolute_change),
            ]);
        }
        writeln!(f, "\n{}{LEGEND}", text(&sums))?;
        // The kernel's pages are the same for each design.
        let moments = self.designs.first().map_or(&[][..], |run| &run.moments);
        kernel_pages::show(f, moments.iter().filter_map(|m| Some((m.name.as_str(), m.pages.as_ref()?))))?;
        let all = self.designs.iter().flat_map(|run| run.moments.iter().map(|at| (&*run.design, at)));
        let pages = all.filter_map(|(design, at)| Some((design, &*at.name, at.pages.as_ref()?)));
        kernel_pages::write_design_blocks(f, &pages.collect::<Vec<_>>())?;
        for run in compared {
            for moment in &run.moments {
                let mut worst: Vec<_> = moment
                    .caches
                    .iter()
                    .map(|cache| (cache.design.slabs - cache.kernel.slabs as i64, cache))
                    .filter(|(error, _)| *error != 0)
                    .collect();
                worst.sort_by_key(|(error, cache)| (std::cmp::Reverse(error.abs()), &cache.name));
                if worst.is_empty() {
                    continue;
                }
                writeln!(
                    f,
                    "\n{} at `{}`: the caches whose slabs differ most from the traced kernel's:",
                    run.design, moment.name
                )?;
                for (error, cache) in worst.into_iter().take(MAX_WORST_CACHES) {
                    write!(
                        f,
                        "  {:24} {:>6} slabs ({} to {}), the kernel has {:>6} ({error:+})",
                        cache.name,
                        cache.design.slabs,
                        cache.design.band[0],
                        cache.design.band[1],
                        cache.kernel.slabs
                    )?;
                    let causes: Vec<_> = cache.causes.iter().map(SlabCause::to_string).collect();
                    writeln!(f, "{}{}", if causes.is_empty() { "" } else { ": " }, causes.join("; "))?;
                }
            }
        }
        if let Some(prediction) = &self.prediction {
            write!(f, "{prediction}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_mismatch_is_attributed_to_the_trace_first() {
        let then = CacheTally { slabs: 3, hidden_frees: 5, hidden_allocs: 2, ..CacheTally::default() };
        let of = |now, slabs| SlabCause::of(then, now, slabs, None, 0);
        let same = CacheTally { slabs: 5, ..then };
        assert_eq!(of(same, [10, 12]), [SlabCause::Model]);
        let intended = SlabCause::of(then, same, [10, 12], Some(SlabCause::OtherSize(5)), 7);
        assert_eq!(intended, [SlabCause::OtherSize(5), SlabCause::FreeBefore(7)]);
        let now = CacheTally { slabs: 4, hidden_frees: 9, hidden_allocs: 3, pre_trace_frees: 1, ..then };
        assert_eq!(
            of(now, [10, 8]),
            [
                SlabCause::FreedWithoutEvent(4),
                SlabCause::AllocatedWithoutEvent(1),
                SlabCause::FreedFromBefore(1),
                SlabCause::PagesDiffer(3)
            ]
        );
    }

    #[test]
    fn earlier_slab_counts_convert_to_another_slab_size() {
        assert_eq!(resized_slabs(8, 10, 16, 160), 20, "twice as many slabs are full");
        assert_eq!(resized_slabs(16, 10, 16, 7), 10);
        assert_eq!(resized_slabs(32, 11, 16, 7), 6);
        assert_eq!(resized_slabs(1, 10, 16, 40), 40, "each object counts separately");
        // Half of the objects are in use, so one of sixteen slabs of four objects is empty.
        assert_eq!(resized_slabs(4, 16, 8, 64), 30);
        assert_eq!((resized_slabs(4, 0, 8, 0), resized_slabs(0, 3, 8, 1)), (0, 24));
    }
}
