//! The results of a benchmark run. For each case and subject, the report shows the median of the rounds, their spread,
//! and the ratio to the best general allocator of this run. The report's last table ranks this project's subjects, row
//! by row.

use crate::page::PRELOADED_SUFFIX;
use crate::subject::Kind;
use std::fmt::{self, Write};

/// The direction in which a number is better; it also determines the value for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterDirection {
    /// Less is better: the number is compared with the lowest median of the general allocators.
    Lower,
    /// More is better: the number is compared with the median over all general allocators, each with its own median.
    Higher,
    /// The number is already a ratio, so it is not compared.
    Ratio,
}

/// A column of a contender's measurements.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name of the column in tables, printed after the name of the case; may be empty.
    pub name: String,
    /// Unit of the column's numbers in tables; may be empty.
    pub unit: &'static str,
    /// Direction in which the numbers in the column are better.
    pub better: BetterDirection,
    /// Row of the last table in which the column counts; `None` for the row of the group.
    row: Option<String>,
    counts: bool,
    subtract_floor: bool,
    preloaded: bool,
}

impl Column {
    fn new(name: impl Into<String>, unit: &'static str, better: BetterDirection) -> Self {
        Self {
            name: name.into(),
            unit,
            better,
            row: None,
            counts: true,
            subtract_floor: false,
            preloaded: false,
        }
    }
    /// Makes a column in which less is better.
    pub fn lower(name: impl Into<String>, unit: &'static str) -> Self {
        Self::new(name, unit, BetterDirection::Lower)
    }
    /// Makes a column in which more is better.
    pub fn higher(name: impl Into<String>, unit: &'static str) -> Self {
        Self::new(name, unit, BetterDirection::Higher)
    }
    /// Makes a column of ratios to another measurement of the same contender, in which less is better.
    pub fn ratio(name: impl Into<String>) -> Self {
        Self::new(name, "times", BetterDirection::Ratio)
    }
    /// Sets the last table's row in which the column counts.
    pub fn count_in_summary_row(self, row: impl Into<String>) -> Self {
        Self { row: Some(row.into()), ..self }
    }
    /// Shows the column in tables, but does not count it in the last table.
    pub fn exclude_from_summary(self) -> Self {
        Self { counts: false, ..self }
    }
    /// Subtracts the value of the floor (the harness alone) before the comparison.
    pub fn subtract_floor(self) -> Self {
        Self { subtract_floor: true, ..self }
    }
    pub(crate) fn has_floor_price(&self) -> bool {
        self.subtract_floor
    }
    pub(crate) fn preloaded(&self) -> Self {
        Self { preloaded: true, ..self.clone() }
    }
    /// Returns the case's name followed by the name of the column.
    pub(crate) fn case(&self, case: &str) -> String {
        match (case, self.name.as_str()) {
            (case, "") => case.to_owned(),
            ("", name) => name.to_owned(),
            (case, name) => format!("{case}, {name}"),
        }
    }
    /// Returns the last table's row in which the column counts, or `None` if it does not count. `row` is the row of the
    /// group, whose name already shows that a malloc is preloaded.
    pub(crate) fn standing_in_row(&self, row: &str) -> Option<String> {
        let display_name =
            |name: &String| format!("{name}{}", if self.preloaded { PRELOADED_SUFFIX } else { "" });
        self.counts.then(|| self.row.as_ref().map_or_else(|| row.to_owned(), display_name))
    }
}

/// The result of one subject in one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// The row that contains the case.
    pub row: String,
    /// The name of the case.
    pub case: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Direction in which the values are better.
    pub better: BetterDirection,
    /// Name of the subject.
    pub subject: String,
    /// Kind of the subject.
    pub kind: Kind,
    /// Median of the values of all rounds.
    pub median: f64,
    /// Lower and upper quartile of the values of all rounds.
    pub quartiles: [f64; 2],
    /// Ratio of the median to the best general allocator (see [`BetterDirection`]).
    pub ratio: Option<f64>,
    /// Value of each round, in the order of the rounds.
    pub samples: Vec<f64>,
    /// Row of the last table in which the result counts, if any.
    standing: Option<String>,
}

/// All results of a benchmark run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Commit, rounds, load and machine of the run.
    pub(crate) conditions: String,
    /// Names and descriptions of the rows.
    pub(crate) names: Vec<(String, String)>,
    /// Rows and cases in which no subject has a value.
    pub(crate) unmeasured: Vec<(String, String)>,
    /// Results grouped by case, with the best subject first.
    pub rows: Vec<Row>,
}

/// Name of the processor, as the kernel reports it.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown".into(), |(_, model)| model.trim().into())
}

/// Describes the CPUs, the kernel, and the mechanism by which this project reaches per-CPU slots.
pub(crate) fn machine() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} CPUs ({}), Linux {}, slots by {}",
        crate::team::cpus(),
        processor_name(),
        kernel.trim(),
        crate::ours::mechanism()
    )
}

/// Returns the quantile `share` of `sorted`, interpolated linearly.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (lower_index, part) = (position as usize, position.fract());
    let upper_index = (lower_index + 1).min(sorted.len() - 1);
    sorted[lower_index] + (sorted[upper_index] - sorted[lower_index]) * part
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

impl Report {
    pub(crate) fn new(conditions: String, names: Vec<(String, String)>) -> Self {
        Self { conditions, names, rows: Vec::new(), unmeasured: Vec::new() }
    }

    /// Adds one column of a group to the report, with the values that each contender had in all rounds. A contender
    /// without values gets no row in the report.
    pub(crate) fn add<'a>(
        &mut self,
        row: &str,
        case: &str,
        column: &Column,
        contenders: impl Iterator<Item = (&'a str, Kind, Vec<f64>)>,
    ) {
        let row_of = |(subject, kind, samples): (&str, Kind, Vec<f64>)| {
            let mut sorted_samples = samples.clone();
            sorted_samples.sort_by(f64::total_cmp);
            Row {
                row: row.into(),
                case: column.case(case),
                unit: column.unit,
                better: column.better,
                subject: subject.into(),
                kind,
                median: quantile(&sorted_samples, 0.5),
                quartiles: [0.25, 0.75].map(|share| quantile(&sorted_samples, share)),
                ratio: None,
                samples,
                standing: column.standing_in_row(row),
            }
        };
        let mut rows: Vec<Row> = contenders.filter(|(.., samples)| !samples.is_empty()).map(row_of).collect();
        if column.subtract_floor {
            match rows.iter().find(|row| row.kind == Kind::Floor).map(|row| row.median) {
                // Without a floor to subtract, the values would mean something else.
                None => rows.clear(),
                Some(floor) => rows.iter_mut().for_each(|row| {
                    row.median -= floor;
                    row.quartiles = row.quartiles.map(|quartile| quartile - floor);
                }),
            }
        }
        if rows.is_empty() {
            self.unmeasured.push((row.into(), column.case(case)));
        }
        let general = rows.iter().filter(|row| row.kind == Kind::General).map(|row| row.median);
        let reference = match column.better {
            BetterDirection::Lower => general.min_by(f64::total_cmp),
            BetterDirection::Higher => median(general.collect()),
            BetterDirection::Ratio => Some(1.0),
        };
        for row in &mut rows {
            row.ratio =
                reference.filter(|reference| *reference > 0.0).map(|reference| row.median / reference);
        }
        rows.sort_by(|a, b| match column.better {
            BetterDirection::Lower | BetterDirection::Ratio => a.median.total_cmp(&b.median),
            BetterDirection::Higher => b.median.total_cmp(&a.median),
        });
        self.rows.extend(rows);
    }

    /// Formats one row as a Markdown table with a line per subject and a column per case; a cell shows the median and
    /// the ratio.
    pub(crate) fn table(&self, name: &str, description: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = || self.rows.iter().filter(|row| row.row == name);
        let (mut cases, mut subjects) = (Vec::new(), Vec::new());
        for row in rows() {
            if !cases.contains(&(&row.case, row.unit)) {
                cases.push((&row.case, row.unit));
            }
            if !subjects.contains(&&row.subject) {
                subjects.push(&row.subject);
            }
        }
        if cases.is_empty() {
            return Ok(());
        }
        write!(f, "**{name}**: {description}\n\n| subject |")?;
        for (case, unit) in &cases {
            write!(f, " {} |", format!("{case} {unit}").trim())?;
        }
        writeln!(f, "\n|---|{}", "---|".repeat(cases.len()))?;
        for subject in subjects {
            write!(f, "| {subject} |")?;
            for (case, _) in &cases {
                match rows().find(|row| row.subject == *subject && row.case == **case) {
                    None => write!(f, " - |")?,
                    Some(Row {
                        median,
                        ratio: Some(ratio),
                        better: BetterDirection::Lower | BetterDirection::Higher,
                        ..
                    }) => {
                        write!(f, " {} ({ratio:.2}) |", short_number(*median))?;
                    }
                    Some(row) => write!(f, " {} |", short_number(row.median))?,
                }
            }
            writeln!(f)?;
        }
        // The cases of a row have similar spreads; the widest spread is shown for all cases.
        let spread = |row: &Row| (row.quartiles[1] - row.quartiles[0]) / row.median;
        let mut spreads: Vec<_> = rows().filter(|row| row.median > 0.0).map(spread).collect();
        spreads.sort_by(f64::total_cmp);
        if let Some(widest_spread) = spreads.last() {
            writeln!(
                f,
                "\nDistance between the quartiles, in % of the median: {:.0} % in a typical cell, {:.0} % in the cell with the largest distance.",
                spreads[spreads.len() / 2] * 100.0,
                widest_spread * 100.0
            )?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}\n", self.conditions)?;
        self.names.iter().try_for_each(|(name, description)| self.table(name, description, f))
    }
}

/// Formats a number with about three digits.
pub fn short_number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e7 => format!("{value:.3e}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The worst case that one of this project's subjects has in one row of one run.
struct WorstCase<'r> {
    name: &'r str,
    worst: &'r Row,
    /// Ratio to the best peer; a higher ratio is worse.
    ratio: f64,
}

impl Report {
    fn standings(&self) -> Vec<WorstCase<'_>> {
        let mut all: Vec<WorstCase<'_>> = Vec::new();
        for row in self.rows.iter().filter(|row| row.kind == Kind::Ours) {
            let (Some(name), Some(ratio)) = (row.standing.as_deref(), row.ratio) else { continue };
            let ratio = if row.better == BetterDirection::Higher { ratio.recip() } else { ratio };
            match all.iter_mut().find(|s| s.name == name && s.worst.subject == row.subject) {
                None => all.push(WorstCase { name, worst: row, ratio }),
                Some(standing) if standing.ratio < ratio => (standing.worst, standing.ratio) = (row, ratio),
                Some(_) => {}
            }
        }
        all
    }
    /// Returns the results of other subjects of the given kind in the same case as `row`.
    fn other_results_in_case<'r>(&'r self, row: &'r Row, kind: Kind) -> impl Iterator<Item = &'r Row> {
        self.rows.iter().filter(move |r| r.row == row.row && r.case == row.case && r.kind == kind)
    }
}

/// One of this project's subjects in one row, over several runs.
pub(crate) struct SubjectInRow<'r> {
    /// Name of the row of the last table.
    pub(crate) name: &'r str,
    /// The subject's worst case in the median run.
    pub(crate) worst: &'r Row,
    /// Ratios of all runs, in ascending order.
    pub(crate) ratios: Vec<f64>,
    /// Ratio in the run that is the median.
    pub(crate) ratio: f64,
    /// Best peer in the median run; `None` if the ratio is not a comparison with a peer.
    pub(crate) best: Option<&'r Row>,
    run: &'r Report,
}

impl<'r> SubjectInRow<'r> {
    fn from_runs(mut runs: Vec<(WorstCase<'r>, &'r Report)>) -> Self {
        runs.sort_by(|(a, _), (b, _)| a.ratio.total_cmp(&b.ratio));
        let ratios = runs.iter().map(|(standing, _)| standing.ratio).collect();
        let (WorstCase { name, worst, ratio }, run) = runs.swap_remove(runs.len() / 2);
        let best = run
            .other_results_in_case(worst, Kind::General)
            .next()
            .filter(|_| worst.better == BetterDirection::Lower);
        SubjectInRow { name, worst, ratios, ratio, best, run }
    }
    /// Returns a text with the smallest and largest ratio; empty if there is only one run.
    pub(crate) fn spread(&self) -> String {
        match self.ratios.as_slice() {
            [lowest, .., highest] => format!("{lowest:.2}–{highest:.2}"),
            [_] | [] => String::new(),
        }
    }
    /// Returns the name and value of the best peer.
    pub(crate) fn format_best_peer(&self) -> String {
        self.best.map_or_else(String::new, |best| format!("{} {}", best.subject, short_number(best.median)))
    }
}

/// Returns one entry for each row and each of this project's subjects, worst ratio first. If the number of runs is
/// even, the worse of the two middle runs counts as the median.
pub(crate) fn places(runs: &[Report]) -> Vec<SubjectInRow<'_>> {
    let mut all: Vec<Vec<(WorstCase<'_>, &Report)>> = Vec::new();
    for run in runs {
        for standing in run.standings() {
            let same_case = |runs: &&mut Vec<(WorstCase<'_>, &Report)>| {
                let other_case = &runs[0].0;
                other_case.name == standing.name && other_case.worst.subject == standing.worst.subject
            };
            match all.iter_mut().find(same_case) {
                Some(runs) => runs.push((standing, run)),
                None => all.push(vec![(standing, run)]),
            }
        }
    }
    let mut places: Vec<_> = all.into_iter().map(SubjectInRow::from_runs).collect();
    places.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    places
}

/// Formats the last table as Markdown, worst row first. The Markdown text is empty if no run was saved.
pub fn standings(runs: &[Report]) -> String {
    let places = places(runs);
    if places.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n| row | subject | to the best peer | runs | worst case | median | best peer | to the commit before |\n|---|---|---|---|---|---|---|---|\n",
    );
    for place in places {
        let SubjectInRow { name, worst, ratio, run, .. } = &place;
        let commit = run.other_results_in_case(worst, Kind::Before).filter_map(|row| {
            let commit = row.subject.strip_prefix(&worst.subject)?.strip_prefix('@')?;
            Some(format!("{:.2} ({commit})", worst.median / row.median))
        });
        let _ = writeln!(
            text,
            "| {name} | {} | {ratio:.2} | {} | {} | {} {} | {} | {} |",
            worst.subject,
            place.spread(),
            worst.case,
            short_number(worst.median),
            worst.unit,
            place.format_best_peer(),
            commit.collect::<Vec<_>>().join(", "),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    type Contender = (&'static str, Kind, Vec<f64>);

    fn report(cases: impl IntoIterator<Item = (&'static str, Column, Vec<Contender>)>) -> Report {
        let mut report = Report::new(String::new(), vec![("row".into(), "what".into())]);
        for (case, column, contenders) in cases {
            report.add("row", case, &column, contenders.into_iter());
        }
        report
    }

    #[test]
    fn benchmark_ratios_are_relative_to_the_best_general_allocator() {
        let contenders = vec![
            ("ours", Kind::Ours, vec![3.0, 1.0, 2.0]),
            ("good", Kind::General, vec![4.0, 4.0, 5.0]),
            ("bad", Kind::General, vec![9.0, 8.0, 7.0]),
            ("pool", Kind::Pool, vec![1.0]),
            ("silent", Kind::General, vec![]),
        ];
        let rows = report([("case", Column::lower("", "ns"), contenders)]).rows;
        let row_values: Vec<_> =
            rows.iter().map(|row| (row.subject.as_str(), row.median, row.ratio)).collect();
        let expected = [
            ("pool", 1.0, Some(0.25)),
            ("ours", 2.0, Some(0.5)),
            ("good", 4.0, Some(1.0)),
            ("bad", 8.0, Some(2.0)),
        ];
        assert_eq!(row_values, expected);
        assert_eq!(rows[1].quartiles, [1.5, 2.5]);
    }

    #[test]
    fn scaling_is_compared_with_the_median_general_allocator() {
        let contenders = [("ours", 1.8), ("a", 2.0), ("b", 1.0), ("c", 1.9)].map(|(name, value)| {
            (name, if name == "ours" { Kind::Ours } else { Kind::General }, vec![value])
        });
        let rows = report([("", Column::higher("scaling", ""), contenders.into())]).rows;
        let own_row = rows.iter().find(|row| row.subject == "ours").unwrap();
        assert_eq!((own_row.case.as_str(), own_row.ratio), ("scaling", Some(1.8 / 1.9)));
        assert_eq!(rows[0].subject, "a");
    }

    #[test]
    fn benchmark_rows_are_sorted_by_worst_ratio() {
        let run = |own_time: f64| {
            let case = |own_time, peer| {
                vec![
                    ("ours", Kind::Ours, vec![own_time]),
                    ("ours@abc", Kind::Before, vec![2.0 * own_time]),
                    ("peer", Kind::General, vec![peer]),
                ]
            };
            report([
                ("a", Column::lower("", "ns"), case(1.0, 2.0)),
                ("b", Column::lower("", "ns"), case(own_time, 10.0)),
                ("c", Column::lower("", "ns").count_in_summary_row("other"), case(12.0, 10.0)),
                ("d", Column::lower("", "ns").exclude_from_summary(), case(90.0, 10.0)),
            ])
        };
        let text = standings(&[run(7.0), run(9.0), run(8.0)]);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("ours")).collect();
        let expected = [
            "| other | ours | 1.20 | 1.20–1.20 | c | 12.0 ns | peer 10.0 | 0.50 (abc) |",
            "| row | ours | 0.80 | 0.70–0.90 | b | 8.00 ns | peer 10.0 | 0.50 (abc) |",
        ];
        assert_eq!(lines, expected);
    }
}
