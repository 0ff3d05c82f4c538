//! Analyses the results of a sweep: which settings are best, and which settings differ only by chance.

use super::record::{Metric, Row};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// All parameters of a run except the setting; only runs with equal parameters are compared.
type Cell<'a> = (&'a str, u32, Option<u32>, Option<u64>, Option<u32>, Option<u64>);
pub(super) type WorkloadOnCpus<'a> = (&'a str, u32);

/// The score of a setting over all its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SettingScore {
    pub(super) setting: String,
    /// The geometric mean of the ratio to the best setting's value, over all workloads, CPU counts and seeds; 1 means
    /// that no setting is better anywhere.
    pub(super) of_best: f64,
    /// The smallest ratio to the best setting's value; the next fields name the workload and CPUs.
    pub(super) worst: f64,
    pub(super) worst_at: String,
    pub(super) runs: u64,
    /// `true` if the difference from the best setting may be due to chance. The rule for chance is
    /// [`SettingLead::is_tie`].
    pub(super) ties: bool,
    /// `true` if the setting consists of the default options of the design, under all workloads.
    pub(super) is_default: bool,
}

impl SettingScore {
    /// Returns the setting as tables show it.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.setting, if self.is_default { " (default)" } else { "" })
    }
}

/// The best setting of a workload for a number of CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Best {
    pub(super) work: String,
    pub(super) cpus: u32,
    /// `true` if the profile of prices is validated for this number of CPUs.
    pub(super) validated: bool,
    pub(super) setting: String,
    /// The mean of the metric over seeds, sizes, numbers of operations and think times.
    pub(super) mean: f64,
    /// The smallest and the largest value of the metric.
    pub(super) spread: [f64; 2],
    /// The second best setting, and its value divided by the best value.
    pub(super) second: Option<(String, f64)>,
}

/// A comparison of one setting with another setting, on the runs that both have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SettingLead {
    pub(super) setting: String,
    /// The number of combinations of workload, CPU count and seed on which both settings have run.
    pub(super) runs: u64,
    /// The geometric mean of the ratio of the other setting's value to this setting's value.
    pub(super) reaches: f64,
    /// The standard error of `reaches` over all seeds, as a fraction: 0.01 is one percent. The value is `None` for a
    /// trace, or if there is only one seed.
    pub(super) chance: Option<f64>,
}

impl SettingLead {
    /// Returns `true` if the difference is at most twice its standard error; if the standard error is unknown, only if
    /// the difference is 0.
    pub(super) fn is_tie(&self) -> bool {
        self.reaches.ln().abs() <= (2.0 * self.chance.unwrap_or(0.0)).max(1e-9)
    }
}

fn cell(row: &Row) -> Cell<'_> {
    (&row.work, row.cpus, row.size, row.ops, row.think, row.seed)
}

pub(super) fn place(row: &Row) -> WorkloadOnCpus<'_> {
    (&row.work, row.cpus)
}

/// Returns each row with its value relative to the best setting, among rows that have the same workload, CPUs, seed and
/// other parameters.
pub(super) fn ratios_to_best(rows: &[Row], metric: Metric) -> impl Iterator<Item = (&Row, f64)> + Clone {
    let mut best: FxHashMap<Cell<'_>, f64> = FxHashMap::default();
    for row in rows {
        let value = row.numbers.get(metric);
        best.entry(cell(row)).and_modify(|best| *best = metric.better_of_two(*best, value)).or_insert(value);
    }
    rows.iter().map(move |row| (row, metric.ratio(row.numbers.get(metric), best[&cell(row)])))
}

/// Returns the scores of all settings, best first.
pub(super) fn scores(rows: &[Row], metric: Metric) -> Vec<SettingScore> {
    let mut settings: FxHashMap<&str, (f64, u64, f64, String, bool)> = FxHashMap::default();
    for (row, ratio) in ratios_to_best(rows, metric) {
        let (logs, runs, worst, worst_place, is_default) =
            settings.entry(&row.setting).or_insert((0.0, 0, f64::MAX, String::new(), true));
        *is_default &= row.is_default;
        *logs += ratio.ln();
        *runs += 1;
        if ratio < *worst {
            (*worst, *worst_place) = (ratio, format!("{} on {}", row.work, row.cpus));
        }
    }
    let mut scores: Vec<_> = settings
        .into_iter()
        .map(|(setting, (logs, runs, worst, worst_at, is_default))| SettingScore {
            setting: setting.to_owned(),
            of_best: (logs / runs as f64).exp(),
            worst,
            worst_at,
            runs,
            ties: false,
            is_default,
        })
        .collect();
    scores.sort_by(|a, b| b.of_best.total_cmp(&a.of_best).then_with(|| a.setting.cmp(&b.setting)));
    if let Some(first) = scores.first().map(|first| first.setting.clone()) {
        let ties: FxHashMap<_, _> = setting_leads(rows, metric, &first)
            .into_iter()
            .map(|lead| (lead.setting.clone(), lead.is_tie()))
            .collect();
        scores.iter_mut().for_each(|score| score.ties = ties.get(&score.setting) == Some(&true));
    }
    scores
}

/// Returns the lead of a setting over each other setting; the smallest lead comes first.
pub(super) fn setting_leads(rows: &[Row], metric: Metric, setting: &str) -> Vec<SettingLead> {
    let own_values: FxHashMap<_, _> = rows
        .iter()
        .filter(|row| row.setting == setting)
        .map(|row| (cell(row), row.numbers.get(metric)))
        .collect();
    // For each other setting: the parameters without the seed, and the logarithms of the ratios, one for each seed.
    type LogarithmsByCell<'a> = BTreeMap<Cell<'a>, Vec<f64>>;
    let mut logs_by_setting: BTreeMap<&str, LogarithmsByCell<'_>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.setting != setting) {
        let Some(own_value) = own_values.get(&cell(row)) else { continue };
        let reaches = metric.ratio(row.numbers.get(metric), *own_value);
        let (work, cpus, size, ops, think, _) = cell(row);
        let but_seed = (work, cpus, size, ops, think, None);
        // If one of the two values is 0, the ratio or its inverse is infinite, so the ratio is limited to a thousand.
        let log = reaches.clamp(1e-3, 1e3).ln();
        logs_by_setting.entry(&row.setting).or_default().entry(but_seed).or_default().push(log);
    }
    let mut leads: Vec<_> = logs_by_setting
        .into_iter()
        .map(|(setting, logs)| {
            let cells = logs.len() as f64;
            let (mut log, mut variance, mut runs) = (0.0, None, 0);
            for logs in logs.values() {
                let (mean, of_mean) = mean(logs);
                log += mean / cells;
                if let Some(of_mean) = of_mean {
                    *variance.get_or_insert(0.0) += of_mean / (cells * cells);
                }
                runs += logs.len() as u64;
            }
            SettingLead {
                setting: setting.to_owned(),
                runs,
                reaches: log.exp(),
                chance: variance.map(f64::sqrt),
            }
        })
        .collect();
    leads.sort_by(|a, b| b.reaches.total_cmp(&a.reaches).then_with(|| a.setting.cmp(&b.setting)));
    leads
}

/// Returns the mean of the values, and the variance of this mean if there are several values.
pub(super) fn mean(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let of_mean = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0) / n;
    (mean, (values.len() > 1).then_some(of_mean))
}

/// Returns the best setting for each workload on each number of CPUs.
pub(super) fn best_settings(rows: &[Row], metric: Metric) -> Vec<Best> {
    let mut places: BTreeMap<WorkloadOnCpus<'_>, (bool, BTreeMap<&str, Vec<f64>>)> = BTreeMap::new();
    for row in rows {
        let (_, settings) = places.entry(place(row)).or_insert_with(|| (row.validated, BTreeMap::new()));
        settings.entry(&row.setting).or_default().push(row.numbers.get(metric));
    }
    places
        .into_iter()
        .filter_map(|((work, cpus), (validated, settings))| {
            let mut means: Vec<_> =
                settings.iter().map(|(setting, values)| (*setting, mean(values).0)).collect();
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
                validated,
                setting: setting.to_owned(),
                mean: first,
                spread,
                second,
            })
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a row with `value` operations per microsecond.
    pub(in super::super) fn row(work: &str, cpus: u32, seed: u64, setting: &str, value: f64) -> Row {
        let numbers = serde_json::json!({
            "cpus": cpus, "operations": 1, "ns": 1.0, "operations_per_us": value, "waiting": 0.0, "lines_per_operation": 0.0,
            "depot": { "taken": 0, "contended": 0, "waited_ns": 0.0 }, "lists": { "taken": 0, "contended": 0, "waited_ns": 0.0 },
            "zone": { "taken": 0, "contended": 0, "waited_ns": 0.0 },
            "cpu": 0, "depots": 0, "slab": 0, "pages": 0, "commit": 0, "slabs": 1, "container": 0
        });
        Row {
            item: 0,
            work: work.to_owned(),
            setting: setting.to_owned(),
            is_default: false,
            cpus,
            validated: true,
            size: Some(64),
            ops: Some(1),
            think: Some(0),
            seed: Some(seed),
            numbers: serde_json::from_value(numbers).unwrap(),
        }
    }

    fn metric() -> Metric {
        "operations_per_us".parse().unwrap()
    }

    #[test]
    fn insignificant_difference_is_a_tie() {
        let expected_lead = |setting: &str, values: [f64; 3]| {
            values
                .into_iter()
                .enumerate()
                .map(|(seed, value)| row("w", 1, seed as u64, setting, value))
                .collect::<Vec<_>>()
        };
        let rows = [
            expected_lead("a", [10.0, 11.0, 12.0]),
            expected_lead("same", [10.0, 11.0, 12.0]),
            expected_lead("by-chance", [10.1, 10.9, 11.9]),
            expected_lead("slower", [9.0, 9.9, 10.8]),
        ]
        .concat();
        let leads = setting_leads(&rows, metric(), "a");
        let tie = |name: &str| leads.iter().find(|lead| lead.setting == name).unwrap();
        assert!(tie("same").is_tie() && tie("same").chance == Some(0.0));
        assert!(tie("by-chance").is_tie() && tie("by-chance").chance > Some(0.0));
        // A value that is a tenth less under each seed differs by more than chance.
        assert!(!tie("slower").is_tie() && (tie("slower").reaches - 0.9).abs() < 1e-9);
        let scores = scores(&rows, metric());
        let ties: Vec<_> = scores.iter().filter(|score| score.ties).map(|score| &*score.setting).collect();
        assert_eq!((&*scores[0].setting, ties), ("a", vec!["same", "by-chance"]));
    }

    /// If a setting was dropped early and therefore has only some seeds, the comparison uses only these seeds.
    #[test]
    fn settings_are_compared_on_their_common_runs() {
        let mut rows: Vec<_> = (0..4).map(|seed| row("w", 1, seed, "a", 10.0)).collect();
        rows.push(row("w", 1, 2, "b", 20.0));
        let leads = setting_leads(&rows, metric(), "a");
        assert_eq!((leads[0].runs, leads[0].reaches.round(), leads[0].is_tie()), (1, 2.0, false));
    }

    #[test]
    fn fast_and_slow_workloads_have_equal_weight() {
        let rows = [
            row("fast", 1, 1, "a", 1000.0),
            row("fast", 1, 1, "b", 500.0),
            row("slow", 1, 1, "a", 1.0),
            row("slow", 1, 1, "b", 2.0),
        ];
        let scores = scores(&rows, metric());
        assert!((scores[0].of_best - scores[1].of_best).abs() < 1e-12);
    }
}
