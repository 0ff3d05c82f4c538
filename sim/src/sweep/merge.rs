//! Merges all results of a sweep into messages about missing items, tables and CSV.

use super::analysis::{self, Best, SettingScore};
use super::plan::{Plan, Work};
use super::record::{Metric, Numbers, Row};
use super::sensitivity::{self, Effect, Method, Sensitivity};
use super::store::{Store, StoredResult};
use crate::output::{Progress, grouped, table, text};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// The largest number of settings in the text report.
const MAX_SHOWN_SETTINGS: usize = 10;
/// The largest number of distinct reasons for failures in the text report.
const MAX_FAILURE_REASONS: usize = 20;

/// The existing results of a sweep.
#[derive(Debug, Default)]
pub(super) struct CollectedResults {
    /// The rows of the report, ordered by the item's number.
    pub(super) rows: Vec<Row>,
    pub(super) missing: Vec<u64>,
    pub(super) failed: Vec<(u64, String)>,
    pub(super) damaged: Vec<(u64, String)>,
}

/// Reads all existing results of a sweep.
///
/// # Errors
/// Fails if a result file contains another item's result, or cannot be read.
pub(super) fn collect(plan: &Plan, store: &Store, progress: &Progress) -> anyhow::Result<CollectedResults> {
    let stage = progress.stage("reading", plan.len());
    let mut results = CollectedResults::default();
    for number in 0..plan.len() {
        let item = plan.item(number);
        match store.read(&plan.identity(item))? {
            StoredResult::Done(numbers) => results.rows.push(Row::new(plan, item, *numbers)),
            StoredResult::Missing => results.missing.push(number),
            StoredResult::Failed(reason) => results.failed.push((number, reason)),
            StoredResult::Damaged(reason) => results.damaged.push((number, reason)),
        }
        if number % 256 == 0 {
            stage.at(number);
        }
    }
    Ok(results)
}

impl CollectedResults {
    /// Returns `true` if every item has a result.
    pub(super) fn has_all_results(&self) -> bool {
        self.missing.is_empty() && self.failed.is_empty() && self.damaged.is_empty()
    }
    /// Returns messages about items without a result: a line for each failure and each damaged file, and the command
    /// line that runs these items.
    pub(super) fn result_warnings(&self, plan: &Plan, command: &str) -> Vec<String> {
        let Self { missing, failed, damaged, .. } = self;
        let mut lines = failures(plan, "failed", failed);
        lines.extend(failures(plan, "damaged", damaged));
        let no_result = (missing.len() + failed.len() + damaged.len()) as u64;
        if no_result > 0 {
            let have = if no_result == 1 { "has" } else { "have" };
            lines.push(format!(
                "{} {have} no result; `{command}` runs the missing items",
                format_item_count(no_result)
            ));
        }
        lines
    }
}

/// Returns a line for each reason of a failure, with the items that failed; for a trace, also with its line in the
/// sweep's file.
pub(super) fn failures(plan: &Plan, outcome: &str, items: &[(u64, String)]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<u64>)> = vec![];
    for (item, reason) in items {
        match reasons.iter().position(|(known_reason, _)| known_reason == reason) {
            Some(at) => reasons[at].1.push(*item),
            None if reasons.len() < MAX_FAILURE_REASONS => reasons.push((reason, vec![*item])),
            None => {}
        }
    }
    let line = |(reason, items): &(&str, Vec<u64>)| {
        let place = match plan.item(items[0]).work {
            Work::Trace { trace } => format!("{}:{}: ", plan.path.display(), plan.traces[trace].line),
            Work::Made { .. } => String::new(),
        };
        let ranges = items.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [item] => item.to_string(),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        });
        let (noun, ranges) =
            (if items.len() == 1 { "item" } else { "items" }, ranges.collect::<Vec<_>>().join(", "));
        format!("{place}{noun} {ranges} {outcome}: {reason}")
    };
    let mut lines: Vec<_> = reasons.iter().map(line).collect();
    let listed_items: usize = reasons.iter().map(|(_, items)| items.len()).sum();
    if listed_items < items.len() {
        lines.push(format!("{} more {outcome}", format_item_count((items.len() - listed_items) as u64)));
    }
    lines
}

/// Formats a number of items with its noun.
pub(super) fn format_item_count(items: u64) -> String {
    format!("{} item{}", grouped(items), if items == 1 { "" } else { "s" })
}

/// The report of a sweep.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) sweep: String,
    pub(super) items: u64,
    pub(super) done: u64,
    pub(super) missing: u64,
    pub(super) failed: u64,
    pub(super) damaged: u64,
    pub(super) metric: &'static str,
    /// The name of the profile of prices, and the number of CPUs up to which the profile is validated.
    pub(super) profile: String,
    pub(super) validated_cpus: u32,
    pub(super) settings: Vec<SettingScore>,
    pub(super) best: Vec<Best>,
    pub(super) sensitivity: Vec<Sensitivity>,
}

impl Report {
    pub(super) fn new(plan: &Plan, all: &CollectedResults, metric: Metric) -> Self {
        Self {
            sweep: plan.hash.clone(),
            items: plan.len(),
            done: all.rows.len() as u64,
            missing: all.missing.len() as u64,
            failed: all.failed.len() as u64,
            damaged: all.damaged.len() as u64,
            metric: metric.name(),
            profile: plan.profile.name.clone(),
            validated_cpus: plan.profile.validated_cpus,
            settings: analysis::scores(&all.rows, metric),
            best: analysis::best_settings(&all.rows, metric),
            sensitivity: sensitivity::sensitivity(&all.rows, metric),
        }
    }
    /// Returns a sentence about the CPU counts for which results are only simulated.
    pub(super) fn describe_validation(&self) -> String {
        let profile = &self.profile;
        match self.validated_cpus {
            0 => format!(
                "The costs are from profile {profile}, which was not compared with measurements: all numbers are simulated."
            ),
            n => format!(
                "The costs are from profile {profile}, which was compared with measurements on up to {n} CPUs (marked with *); for more CPUs, all numbers are simulated."
            ),
        }
    }
}

/// Returns a sentence about the accuracy of the sensitivity indices of a design.
pub(super) fn describe_accuracy(sensitivity: &Sensitivity) -> String {
    let Sensitivity { settings, left_out, method, chance, .. } = sensitivity;
    let mut summary = match method {
        Method::Grid => format!("exact, from all {settings} combinations"),
        Method::Fit { predicts } => {
            format!(
                "estimated by a polynomial that was fitted to {settings} settings. It explains {} of the differences between settings; the error of an index can be as large as the unexplained rest. The pictures by value include the effects of other knobs",
                percent(*predicts)
            )
        }
    };
    if *left_out > 0 {
        summary += &format!("; {left_out} settings with missing results are omitted");
    }
    summary += &match chance {
        Some(chance) => format!("; chance could explain {} of all differences", percent(*chance)),
        None => "; with one seed, chance cannot be estimated".to_owned(),
    };
    summary
}

/// Formats a sensitivity index as a percentage. An index below the unexplained part of the variance is shown as an
/// upper bound.
pub(super) fn index(part: f64, method: Method) -> String {
    match method {
        Method::Fit { predicts } if part < 1.0 - predicts => {
            format!("< {}", percent((part + 1.0 - predicts).min(1.0)))
        }
        _ => percent(part),
    }
}

/// Formats a fraction as a percentage.
pub(super) fn percent(part: f64) -> String {
    // Adding 0 turns -0 into 0: an empty sum is -0.
    format!("{:.1} %", 100.0 * part + 0.0)
}

/// Formats a number with about four digits.
pub(super) fn short_number(number: f64) -> String {
    match number.abs() {
        1000.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, done, items, .. } = self;
        writeln!(
            f,
            "Sweep {}: {} of {}, judged by {metric} ({}).\n{}",
            &self.sweep[..16],
            grouped(*done),
            format_item_count(*items),
            unit(metric),
            self.describe_validation()
        )?;
        let all = self.settings.len();
        writeln!(
            f,
            "\nSettings: the fraction of the best setting's {metric}, as a geometric mean over workloads, CPUs and seeds{}. The mark = means that the result is not distinguishable from the first setting's.",
            if all > MAX_SHOWN_SETTINGS {
                format!(" (the best {MAX_SHOWN_SETTINGS} of {all})")
            } else {
                String::new()
            }
        )?;
        let mut rows = table(&["setting", "of the best", "", "at worst", "where", "runs"]);
        for score in self.settings.iter().take(MAX_SHOWN_SETTINGS) {
            let SettingScore { of_best, worst, worst_at, runs, ties, .. } = score;
            rows.add_row([
                score.text(),
                percent(*of_best),
                tie_mark(*ties).to_owned(),
                percent(*worst),
                worst_at.clone(),
                grouped(*runs),
            ]);
        }
        write!(f, "{}", text(&rows))?;
        writeln!(
            f,
            "\nThe best setting for each workload and number of CPUs: the mean {metric} of its runs, and the fraction of this result that the next best setting reaches."
        )?;
        let mut rows = table(&["work", "CPUs", "setting", "mean", "from", "to", "the next one", "reaches"]);
        for best in &self.best {
            let Best { work, cpus, validated, setting, mean, spread: [min, max], second } = best;
            let (second, reaches) =
                second.clone().map_or_else(<_>::default, |(name, part)| (name, percent(part)));
            let numbers = [short_number(*mean), short_number(*min), short_number(*max)];
            let [mean, min, max] = numbers;
            rows.add_row([
                work.clone(),
                format!("{cpus}{}", if *validated { "*" } else { " " }),
                setting.clone(),
                mean,
                min,
                max,
                second,
                reaches,
            ]);
        }
        write!(f, "{}", text(&rows))?;
        if self.sensitivity.is_empty() {
            return writeln!(f, "\nNo design has a knob with several values, so there is no sensitivity.");
        }
        writeln!(f, "\n{SENSITIVITY_HELP}")?;
        for design in &self.sensitivity {
            writeln!(f, "\n{}: {}.", design.design, describe_accuracy(design))?;
            let mut rows = table(&[
                "knob",
                "alone",
                "with others",
                "% of the best",
                "most of all",
                "there",
                "by the values",
            ]);
            for effect in &design.knobs {
                let [first, total] =
                    [effect.index.first, effect.index.total].map(|part| index(part, design.method));
                let [of_best, work, there, values] = ranges(effect);
                rows.add_row([effect.knob.clone(), first, total, of_best, work, there, values]);
            }
            write!(f, "{}", text(&rows))?;
        }
        Ok(())
    }
}

/// Returns four texts about an option: the range of its means over all workloads in % of the best; the workload and CPU
/// count with the largest range; this range; and the option's values.
pub(super) fn ranges(effect: &Effect) -> [String; 4] {
    let range = |means: &mut dyn Iterator<Item = f64>| {
        let (min, max) = means.fold((f64::MAX, f64::MIN), |(min, max), mean| (min.min(mean), max.max(mean)));
        format!("{:.1} to {:.1}", 100.0 * min, 100.0 * max)
    };
    let top_place = effect.places.first();
    let values: Vec<_> = effect.means.iter().map(|(name, _)| name.as_str()).collect();
    [
        range(&mut effect.means.iter().map(|(_, mean)| *mean)),
        top_place.map_or_else(String::new, |place| format!("{} on {}", place.work, place.cpus)),
        top_place.map_or_else(String::new, |place| range(&mut place.means.iter().copied())),
        values.join(", "),
    ]
}

/// The explanation of the sensitivity indices in the report.
pub(super) const SENSITIVITY_HELP: &str = "\
Sensitivity: the fraction of the differences between a design's settings (in % of the best, for each workload and number of CPUs) that a knob explains
alone (its first-order index) and alone or with other knobs (its total index).";

/// Returns the mark for a setting that ties with the best.
pub(super) fn tie_mark(ties: bool) -> &'static str {
    if ties { "=" } else { "" }
}

/// Returns the unit of a metric, and the direction in which its values are better.
pub(super) fn unit(metric: &str) -> &'static str {
    match metric {
        "operations_per_us" => "allocations and frees per microsecond, on all CPUs together; more is better",
        "ns" => "nanoseconds until the last CPU is done; less is better",
        "waiting" => "the fraction of the CPUs' time that they spend waiting for locks; less is better",
        "lines_per_operation" => "cache lines that move between CPUs, per operation; less is better",
        _ => "slabs at the end; less is better",
    }
}

/// The names of the CSV columns before the columns of numbers and options.
const AXIS_COLUMNS: [&str; 10] =
    ["item", "work", "design", "setting", "cpus", "validated", "size", "ops", "think", "seed"];

/// Returns the names of all options, in order.
fn knob_names(rows: &[Row]) -> Vec<String> {
    let names: BTreeSet<_> = rows.iter().flat_map(Row::knobs).map(|(key, _)| key).collect();
    names.into_iter().map(str::to_owned).collect()
}

fn knob(row: &Row, name: &str) -> Option<u64> {
    row.knobs().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Formats all runs as CSV: one row for each item, ordered by the item's number.
///
/// # Errors
/// Never fails in practice, because the rows are written to memory.
pub(super) fn csv(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    let names = knob_names(rows);
    let mut csv_writer = csv::Writer::from_writer(vec![]);
    let header = AXIS_COLUMNS.iter().map(|name| (*name).to_owned());
    let header = header.chain(names.iter().map(|name| format!("knob_{name}")));
    csv_writer.write_record(header.chain(Numbers::NAMES.map(str::to_owned)))?;
    let optional_text = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
    for row in rows {
        let Row { item, work, setting, cpus, validated, size, ops, think, seed, numbers, .. } = row;
        let axes = [
            item.to_string(),
            work.clone(),
            row.design().to_owned(),
            setting.clone(),
            cpus.to_string(),
            validated.to_string(),
            optional_text(size.map(u64::from)),
            optional_text(*ops),
            optional_text(think.map(u64::from)),
            optional_text(*seed),
        ];
        let knobs = names.iter().map(|name| optional_text(knob(row, name)));
        let numbers = numbers.columns().map(|number| number.to_string());
        csv_writer.write_record(axes.into_iter().chain(knobs).chain(numbers))?;
    }
    Ok(csv_writer.into_inner().map_err(|error| error.into_error())?)
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    fn row(item: u64, setting: &str, seed: Option<u64>) -> Row {
        let row = analysis::tests::row("a, \"b\"", 4, 1, setting, 1.0 / 3.0);
        Row { item, seed, ..row }
    }

    #[test]
    fn merged_csv_row_contains_axes_knobs_and_metrics() {
        let records = [
            row(0, "slub", None),
            row(1, "slub:cpu_partial=30", Some(4)),
            row(2, "slab:limit=8", Some(u64::MAX >> 1)),
        ];
        let text = csv(&records).unwrap();
        let mut reader = csv::Reader::from_reader(&text[..]);
        let header: Vec<_> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), header.len()), (3, AXIS_COLUMNS.len() + 2 + Numbers::NAMES.len()));
        let cell =
            |row: usize, name: &str| &rows[row][header.iter().position(|column| column == name).unwrap()];
        assert_eq!([0, 1, 2].map(|row| cell(row, "seed")), ["", "4", "9223372036854775807"]);
        assert_eq!([0, 1, 2].map(|row| cell(row, "knob_cpu_partial")), ["", "30", ""]);
        assert_eq!([0, 1, 2].map(|row| cell(row, "knob_limit")), ["", "", "8"]);
        for (number, name) in records[0].numbers.columns().iter().zip(Numbers::NAMES) {
            assert_eq!(cell(0, name), number.to_string());
        }
    }

    #[test]
    fn sweep_failures_are_grouped_by_reason() {
        let plan = plan(&[0, 10, 1, 10, 1, 1, 1], &[], None);
        let all = CollectedResults {
            missing: (50..80).collect(),
            failed: [1, 2, 3, 5].map(|item| (item, "why".to_owned())).to_vec(),
            damaged: (10..40).map(|item| (item, format!("file {item}"))).collect(),
            ..CollectedResults::default()
        };
        let lines = all.result_warnings(&plan, "run");
        assert_eq!(lines[..2], ["items 1 to 3, 5 failed: why", "item 10 damaged: file 10"]);
        assert_eq!(
            lines[21..],
            ["10 items more damaged", "64 items have no result; `run` runs the missing items"]
        );
        let partial_results = CollectedResults { missing: vec![7], ..CollectedResults::default() };
        assert_eq!(
            partial_results.result_warnings(&plan, "run"),
            ["1 item has no result; `run` runs the missing items"]
        );
    }

    #[test]
    fn uncertain_sensitivity_index_is_shown_as_a_bound() {
        let index_text = |part, predicts| index(part, Method::Fit { predicts });
        assert_eq!(
            [index_text(0.0, 0.9), index_text(0.05, 0.9), index_text(0.5, 0.9)],
            ["< 10.0 %", "< 15.0 %", "50.0 %"]
        );
        assert_eq!(index(0.0, Method::Grid), "0.0 %");
    }
}
