//! What a sweep says: which settings are best, and how much of the difference is of which axis.

use super::record::{Metric, Numbers, Outcomes, Record};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// An axis with more values than that is cut into as many groups of neighbours: with one run in each group, chance would look like
/// an effect.
const MOST_GROUPS: usize = 8;

/// What runs are compared within: all but the setting.
type Cell<'a> = (&'a str, Option<u32>, Option<u32>, Option<u64>, Option<u32>, Option<u64>);

/// A setting, over all that it ran on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Score {
    pub(super) setting: String,
    /// The geometric mean of what it reaches of the best setting's value, over all works, CPUs and seeds: 1 is best everywhere.
    pub(super) of_best: f64,
    /// The least of it, and where.
    pub(super) worst: f64,
    pub(super) worst_at: String,
    pub(super) runs: u64,
}

/// The best setting of a work on some CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Best {
    pub(super) work: String,
    pub(super) cpus: u32,
    pub(super) setting: String,
    /// The mean over seeds, sizes and the like.
    pub(super) mean: f64,
    /// What the values lie between.
    pub(super) spread: [f64; 2],
    /// The setting after it, and what it reaches of the best.
    pub(super) second: Option<(String, f64)>,
}

/// How much of the variance an axis explains alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Effect {
    /// `work`, `cpus` and so on, or a knob.
    pub(super) axis: String,
    /// The variance of the means over its values, as a part of the whole variance: the first-order index.
    pub(super) share: f64,
    /// Its values, or groups of them, with the mean of each.
    pub(super) means: Vec<(String, f64)>,
}

/// The effects within a design.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Sensitivity {
    /// The design's name.
    pub(super) design: String,
    pub(super) runs: u64,
    /// The largest share first.
    pub(super) effects: Vec<Effect>,
}

/// The numbers of a run; `None`: it failed.
pub(super) fn numbers(record: &Record) -> Option<&Numbers> {
    match &record.result {
        Outcomes::Done(numbers) => Some(numbers),
        Outcomes::Failed(_) => None,
    }
}

fn cell(record: &Record) -> Cell<'_> {
    let Record { work, cpus, size, ops, think, seed, .. } = record;
    (work, *cpus, *size, *ops, *think, *seed)
}

fn values(records: &[Record], metric: Metric) -> impl Iterator<Item = (&Record, f64)> + Clone {
    records.iter().filter_map(move |record| Some((record, numbers(record)?.get(metric))))
}

/// All settings, the best one first.
pub(super) fn scores(records: &[Record], metric: Metric) -> Vec<Score> {
    let mut best: FxHashMap<Cell<'_>, f64> = FxHashMap::default();
    for (record, value) in values(records, metric) {
        best.entry(cell(record)).and_modify(|best| *best = metric.better(*best, value)).or_insert(value);
    }
    let mut settings: FxHashMap<&str, (f64, u64, f64, String)> = FxHashMap::default();
    for (record, value) in values(records, metric) {
        let ratio = metric.ratio(value, best[&cell(record)]);
        let (logs, runs, worst, at) =
            settings.entry(&record.setting).or_insert((0.0, 0, f64::MAX, String::new()));
        *logs += ratio.ln();
        *runs += 1;
        if ratio < *worst {
            (*worst, *at) = (ratio, place(record));
        }
    }
    let mut scores: Vec<_> = settings
        .into_iter()
        .map(|(setting, (logs, runs, worst, worst_at))| Score {
            setting: setting.to_owned(),
            of_best: (logs / runs as f64).exp(),
            worst,
            worst_at,
            runs,
        })
        .collect();
    scores.sort_by(|a, b| b.of_best.total_cmp(&a.of_best).then_with(|| a.setting.cmp(&b.setting)));
    scores
}

fn place(record: &Record) -> String {
    match record.cpus {
        Some(cpus) => format!("{} on {cpus}", record.work),
        None => record.work.clone(),
    }
}

/// The best setting of each work on each number of CPUs.
pub(super) fn best(records: &[Record], metric: Metric) -> Vec<Best> {
    let mut places: BTreeMap<(&str, u32), BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for (record, value) in values(records, metric) {
        let place = places.entry((&record.work, record.cpus.unwrap_or(0))).or_default();
        place.entry(&record.setting).or_default().push(value);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    places
        .into_iter()
        .filter_map(|((work, cpus), settings)| {
            let mut means: Vec<_> =
                settings.iter().map(|(setting, values)| (*setting, mean(values))).collect();
            means.sort_by(|a, b| if metric.more { b.1.total_cmp(&a.1) } else { a.1.total_cmp(&b.1) });
            let (setting, first) = *means.first()?;
            let values = &settings[setting];
            let spread = [
                values.iter().copied().fold(f64::MAX, f64::min),
                values.iter().copied().fold(f64::MIN, f64::max),
            ];
            let second = means.get(1).map(|(name, value)| ((*name).to_owned(), metric.ratio(*value, first)));
            Some(Best {
                work: work.to_owned(),
                cpus,
                setting: setting.to_owned(),
                mean: first,
                spread,
                second,
            })
        })
        .collect()
}

/// The effect of each axis within each design.
pub(super) fn sensitivity(records: &[Record], metric: Metric) -> Vec<Sensitivity> {
    let mut designs: BTreeMap<&str, Vec<(&Record, f64)>> = BTreeMap::new();
    for (record, value) in values(records, metric) {
        let name = record.setting.split(':').next().unwrap_or_default();
        designs.entry(name).or_default().push((record, value));
    }
    designs.into_iter().map(|(design, runs)| of_design(design, &runs)).collect()
}

fn of_design(design: &str, runs: &[(&Record, f64)]) -> Sensitivity {
    let mut axes: BTreeMap<String, Vec<(Value<'_>, f64)>> = BTreeMap::new();
    for (record, value) in runs {
        let number = |n: Option<u64>| n.map(Value::Number);
        let plain = [
            ("work", Some(Value::Name(&record.work))),
            ("cpus", number(record.cpus.map(u64::from))),
            ("size", number(record.size.map(u64::from))),
            ("ops", number(record.ops)),
            ("think", number(record.think.map(u64::from))),
            ("seed", number(record.seed)),
        ];
        for (axis, at) in plain {
            axes.entry(axis.to_owned()).or_default().extend(at.map(|at| (at, *value)));
        }
        for (knob, at) in knobs(&record.setting) {
            axes.entry(knob.to_owned()).or_default().push((Value::Number(at), *value));
        }
    }
    // A knob that some settings leave out says nothing of these.
    let mut effects: Vec<_> = axes.into_iter().filter_map(|(axis, values)| effect(axis, values)).collect();
    effects.sort_by(|a, b| b.share.total_cmp(&a.share));
    Sensitivity { design: design.to_owned(), runs: runs.len() as u64, effects }
}

/// The knobs of a setting.
pub(super) fn knobs(setting: &str) -> impl Iterator<Item = (&str, u64)> {
    let parts = setting.split(':').skip(1).filter_map(|part| part.split_once('='));
    parts.filter_map(|(key, value)| Some((key, value.parse().ok()?)))
}

/// Where a run is on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Value<'a> {
    Number(u64),
    Name(&'a str),
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// `None`: the axis has one value.
fn effect(axis: String, runs: Vec<(Value<'_>, f64)>) -> Option<Effect> {
    let mut distinct: Vec<_> = runs.iter().map(|(at, _)| *at).collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < 2 {
        return None;
    }
    // Names have no neighbours.
    let is_grouped = distinct.len() > MOST_GROUPS && matches!(distinct[0], Value::Number(_));
    let groups = if is_grouped { MOST_GROUPS } else { distinct.len() };
    let group_of: FxHashMap<_, _> =
        distinct.iter().enumerate().map(|(rank, at)| (*at, rank * groups / distinct.len())).collect();
    let names = (0..groups).map(|group| {
        let mut own = distinct.iter().filter(|at| group_of[at] == group);
        match (own.next(), own.next_back()) {
            (Some(first), Some(last)) => format!("{first} to {last}"),
            (first, _) => first.map(ToString::to_string).unwrap_or_default(),
        }
    });
    let grouped: Vec<_> = runs.iter().map(|(at, value)| (group_of[at], *value)).collect();
    let (share, means) = first_order(&grouped, groups);
    Some(Effect { axis, share, means: names.zip(means).collect() })
}

/// The first-order index by means of groups: the variance of these, each weighed with its runs, as a part of the whole variance; and the
/// means. Where nothing varies it is 0.
fn first_order(runs: &[(usize, f64)], groups: usize) -> (f64, Vec<f64>) {
    let n = runs.len().max(1) as f64;
    let mean = runs.iter().map(|(_, value)| value).sum::<f64>() / n;
    let whole = runs.iter().map(|(_, value)| (value - mean).powi(2)).sum::<f64>() / n;
    let mut sums = vec![(0.0, 0.0); groups];
    for (group, value) in runs {
        sums[*group].0 += value;
        sums[*group].1 += 1.0;
    }
    let means: Vec<_> = sums.iter().map(|(sum, runs)| sum / f64::max(*runs, 1.0)).collect();
    let between = sums.iter().zip(&means).map(|((_, runs), at)| runs * (at - mean).powi(2)).sum::<f64>() / n;
    // Rounding alone makes a variance of equal values that is not 0.
    let nothing = (mean * 1e-9).powi(2);
    (if whole > nothing { between / whole } else { 0.0 }, means)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_index_of_a_sum_is_each_terms_part_of_the_variance() {
        // y = 3a + b on a grid: the variances of the terms are as 9 to 1.
        let grid = (0..4_usize).flat_map(|a| (0..4_usize).map(move |b| (a, b, (3 * a + b) as f64)));
        let of_a: Vec<_> = grid.clone().map(|(a, _, y)| (a, y)).collect();
        let of_b: Vec<_> = grid.map(|(_, b, y)| (b, y)).collect();
        let (a, means) = first_order(&of_a, 4);
        assert!((a - 0.9).abs() < 1e-12, "{a}");
        assert_eq!(means, [1.5, 4.5, 7.5, 10.5]);
        assert!((first_order(&of_b, 4).0 - 0.1).abs() < 1e-12);
        // Of what acts only with another one, nothing is first order.
        let product = [(0, 1.0), (0, -1.0), (1, -1.0), (1, 1.0)];
        assert_eq!(first_order(&product, 2).0, 0.0);
        assert_eq!(first_order(&[(0, 0.1), (1, 0.1), (0, 0.1)], 2).0, 0.0);
    }

    proptest! {
        #[test]
        fn an_index_is_from_0_to_1(runs in proptest::collection::vec((0..5_usize, -1e6..1e6_f64), 1..60)) {
            let (share, _) = first_order(&runs, 5);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&share), "{}", share);
        }
    }

    #[test]
    fn many_values_are_groups_of_neighbours() {
        let runs = (0..20).map(|n| (Value::Number(n), n as f64)).collect();
        let effect = effect("k".to_owned(), runs).unwrap();
        assert_eq!(effect.means.len(), MOST_GROUPS);
        assert_eq!(effect.means[0], ("0 to 2".to_owned(), 1.0));
        assert!(super::effect("k".to_owned(), vec![(Value::Number(1), 2.0)]).is_none());
    }

    #[test]
    fn knobs_are_read_off_a_setting() {
        assert_eq!(
            knobs("slub:cpu_partial=0:min_partial=10").collect::<Vec<_>>(),
            [("cpu_partial", 0), ("min_partial", 10)]
        );
        assert_eq!(knobs("bonwick94").count(), 0);
    }
}
