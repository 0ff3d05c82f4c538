//! The stored result of an item: its identity, and its numbers.

use super::identity::Identity;
use super::plan::{Item, Plan, Work};
use serde::{Deserialize, Serialize};
use uslab_engine::clock::{LockCounts, Outcome};
use uslab_engine::model::Knob;

/// The content of a result's file. The content depends only on the item's identity: it contains neither times
/// nor the name of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) of: Identity,
    pub(super) result: ItemOutcome,
}

/// The outcome of running an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ItemOutcome {
    Done(Numbers),
    /// The item could not be run; the text gives the reason.
    Failed(String),
}

impl From<Result<Outcome, String>> for ItemOutcome {
    fn from(result: Result<Outcome, String>) -> Self {
        match result {
            Ok(outcome) => Self::Done(outcome.into()),
            Err(error) => Self::Failed(error),
        }
    }
}

/// An item with a result, as a row of the sweep's tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) item: u64,
    /// Name of the trace or the workload.
    pub(super) work: String,
    /// The design with its options.
    pub(super) setting: String,
    /// `true` if the design's options have their default values.
    pub(super) is_default: bool,
    pub(super) cpus: u32,
    /// `true` if the profile is validated for this number of CPUs.
    pub(super) validated: bool,
    /// The object size; this field and the next three (operations, think time, seed) are set for workloads
    /// only.
    pub(super) size: Option<u32>,
    pub(super) ops: Option<u64>,
    pub(super) think: Option<u32>,
    pub(super) seed: Option<u64>,
    pub(super) numbers: Numbers,
}

/// The numbers of an [`Outcome`] for one item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Numbers {
    cpus: u32,
    operations: u64,
    ns: f64,
    operations_per_us: f64,
    waiting: f64,
    lines_per_operation: f64,
    depot: Lock,
    lists: Lock,
    zone: Lock,
    cpu: u64,
    depots: u64,
    slab: u64,
    pages: u64,
    commit: u64,
    slabs: u64,
    container: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lock {
    taken: u64,
    contended: u64,
    waited_ns: f64,
}

/// One number in a table of results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Count(u64),
    Real(f64),
}

impl Number {
    pub(super) fn real(self) -> f64 {
        match self {
            Self::Count(n) => n as f64,
            Self::Real(n) => n,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Real(n) => n.fmt(f),
        }
    }
}

impl From<LockCounts> for Lock {
    fn from(LockCounts { taken, contended, waited_ns }: LockCounts) -> Self {
        Self { taken, contended, waited_ns }
    }
}

impl From<Outcome> for Numbers {
    fn from(outcome: Outcome) -> Self {
        Self {
            cpus: outcome.cpus,
            operations: outcome.operations,
            ns: outcome.ns,
            operations_per_us: outcome.operations_per_us,
            waiting: outcome.waiting,
            lines_per_operation: outcome.lines_per_operation,
            depot: outcome.depot.into(),
            lists: outcome.lists.into(),
            zone: outcome.zone.into(),
            cpu: outcome.paths.cpu,
            depots: outcome.paths.depot,
            slab: outcome.paths.slab,
            pages: outcome.paths.pages,
            commit: outcome.paths.commit,
            slabs: outcome.slabs,
            container: outcome.container,
        }
    }
}

impl Numbers {
    /// The names of the columns in a table of results. The book's page about sweeps has the units of the
    /// columns.
    pub(super) const NAMES: [&'static str; 21] = [
        "operations",
        "ns",
        "operations_per_us",
        "waiting",
        "lines_per_operation",
        "depot_taken",
        "depot_contended",
        "depot_waited_ns",
        "lists_taken",
        "lists_contended",
        "lists_waited_ns",
        "zone_taken",
        "zone_contended",
        "zone_waited_ns",
        "of_cpu",
        "of_depot",
        "of_slab",
        "of_pages",
        "of_commit",
        "slabs",
        "container",
    ];
    /// Returns the values of the columns, in the order of [`NAMES`](Self::NAMES).
    pub(super) fn columns(&self) -> [Number; 21] {
        use Number::{Count, Real};
        let Self { depot, lists, zone, .. } = self;
        [
            Count(self.operations),
            Real(self.ns),
            Real(self.operations_per_us),
            Real(self.waiting),
            Real(self.lines_per_operation),
            Count(depot.taken),
            Count(depot.contended),
            Real(depot.waited_ns),
            Count(lists.taken),
            Count(lists.contended),
            Real(lists.waited_ns),
            Count(zone.taken),
            Count(zone.contended),
            Real(zone.waited_ns),
            Count(self.cpu),
            Count(self.depots),
            Count(self.slab),
            Count(self.pages),
            Count(self.commit),
            Count(self.slabs),
            Count(self.container.into()),
        ]
    }
    /// Returns the value of the metric in this row.
    pub(super) fn get(&self, metric: Metric) -> f64 {
        self.columns()[metric.column].real()
    }
}

/// A metric by which settings are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    column: usize,
    /// `true` if larger values are better.
    pub(super) more: bool,
}

impl Metric {
    /// The names of the metrics, each with `true` if larger values are better.
    const ALL: [(&'static str, bool); 5] = [
        ("operations_per_us", true),
        ("ns", false),
        ("waiting", false),
        ("lines_per_operation", false),
        ("slabs", false),
    ];
    pub(super) fn name(self) -> &'static str {
        Numbers::NAMES[self.column]
    }
    /// Returns the ratio of `value` to `best`: 1 is equally good, 0 is infinitely worse.
    pub(super) fn ratio(self, value: f64, best: f64) -> f64 {
        let (smaller_value, larger_value) = if self.more { (value, best) } else { (best, value) };
        match (smaller_value > 0.0, larger_value > 0.0) {
            // Two zeros, such as no waiting at all, are equally good.
            (false, false) => 1.0,
            (true, false) => f64::INFINITY,
            (_, true) => smaller_value / larger_value,
        }
    }
    /// Returns the better of two values by this metric.
    pub(super) fn better_of_two(self, a: f64, b: f64) -> f64 {
        if self.more { a.max(b) } else { a.min(b) }
    }
}

impl std::str::FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known_metric = Self::ALL.iter().find(|(name, _)| *name == text);
        let column = Numbers::NAMES.iter().position(|name| *name == text);
        match (known_metric, column) {
            (Some((_, more)), Some(column)) => Ok(Self { column, more: *more }),
            _ => Err(format!("expected one of {}", Self::ALL.map(|(name, _)| name).join(", "))),
        }
    }
}

impl Row {
    /// Creates the row of an item from its numbers.
    pub(super) fn new(plan: &Plan, item: Item, numbers: Numbers) -> Self {
        let (size, ops, think, seed) = match item.work {
            Work::Trace { .. } => (None, None, None, None),
            Work::Made { seed, size, operations, think, .. } => {
                (Some(size), Some(operations), Some(think), Some(seed))
            }
        };
        let setting = plan.settings.text(item.setting);
        Self {
            item: item.number,
            work: plan.workload_name(item.work).to_owned(),
            is_default: is_default(plan, &setting, size, numbers.cpus),
            setting,
            cpus: numbers.cpus,
            validated: numbers.cpus <= plan.profile.validated_cpus,
            size,
            ops,
            think,
            seed,
            numbers,
        }
    }
    pub(super) fn design(&self) -> &str {
        self.setting.split(':').next().unwrap_or_default()
    }
    /// Returns the options of the row's setting.
    pub(super) fn knobs(&self) -> impl Iterator<Item = (&str, u64)> {
        knobs(&self.setting)
    }
}

/// Returns `true` if a setting consists of its design's default options. Default options depend on the object
/// size, and a trace has objects of many sizes. For a trace, therefore, only a setting that sets no option counts as
/// the default. A design without options has no default setting.
fn is_default(plan: &Plan, setting: &str, size: Option<u32>, cpus: u32) -> bool {
    let design_knobs = (plan.knobs)(setting.split(':').next().unwrap_or_default());
    let mut set =
        knobs(setting).map(|(key, value)| (design_knobs.iter().find(|knob| knob.name == key), value));
    let is_own = |knob: &Knob, value| size.is_some_and(|size| (knob.default)(size as usize, cpus) == value);
    !design_knobs.is_empty() && set.all(|(knob, value)| knob.is_some_and(|knob| is_own(knob, value)))
}

/// Returns the options of a setting, with their values.
fn knobs(setting: &str) -> impl Iterator<Item = (&str, u64)> {
    let parts = setting.split(':').skip(1).filter_map(|part| part.split_once('='));
    parts.filter_map(|(key, value)| Some((key, value.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_parsed_from_a_setting() {
        assert_eq!(
            knobs("slub:cpu_partial=0:min_partial=10").collect::<Vec<_>>(),
            [("cpu_partial", 0), ("min_partial", 10)]
        );
        assert_eq!(knobs("bonwick94").count(), 0);
    }

    #[test]
    fn each_metric_prefers_large_or_small_values() {
        for (name, more) in Metric::ALL {
            let metric: Metric = name.parse().unwrap();
            assert_eq!((metric.name(), metric.more), (name, more));
            let (better_value, worse_value) = if more { (4.0, 1.0) } else { (1.0, 4.0) };
            assert_eq!(
                (
                    metric.ratio(better_value, better_value),
                    metric.ratio(worse_value, better_value),
                    metric.better_of_two(better_value, worse_value)
                ),
                (1.0, 0.25, better_value)
            );
        }
        assert_eq!("waiting".parse::<Metric>().unwrap().ratio(0.0, 0.0), 1.0);
        assert!("speed".parse::<Metric>().unwrap_err().contains("operations_per_us"));
    }
}
