//! What a run found: for each case and subject the median of its rounds, how far they spread, and the ratio to the best
//! general allocator of the same run.

use crate::subject::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;
use uslab_sim::output;

/// Which way a number is good, and with that what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Compared with the lowest median of the general allocators.
    Lower,
    /// Compared with the median of the general allocators' medians.
    Higher,
}

/// What a contender measures.
#[derive(Clone, Debug)]
pub struct Column {
    /// As shown, after the case's name; may be empty.
    pub name: String,
    /// As shown; may be empty.
    pub unit: &'static str,
    /// Which way it is good.
    pub better: Better,
}

impl Column {
    /// A column where less is better.
    pub fn lower(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, better: Better::Lower }
    }
    /// A column where more is better.
    pub fn higher(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, better: Better::Higher }
    }
}

/// The rounds of one contender.
#[derive(Debug)]
pub struct Samples {
    name: &'static str,
    kind: Kind,
    columns: Vec<Vec<f64>>,
}

impl Samples {
    pub(crate) fn new(name: &'static str, kind: Kind, columns: usize) -> Self {
        Self { name, kind, columns: vec![Vec::new(); columns] }
    }
    /// One round. A contender that could not do it returns nothing, and has no rows then.
    pub(crate) fn add(&mut self, values: Vec<f64>) {
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
}

/// A subject in a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub case: String,
    /// Of what.
    pub unit: String,
    /// Which way it is good.
    pub better: Better,
    /// The subject.
    pub subject: String,
    /// What it is to the others.
    pub kind: Kind,
    /// Median of the rounds, their quartiles, and the extremes.
    pub median: f64,
    /// See `median`.
    pub quartiles: [f64; 2],
    /// See `median`.
    pub extremes: [f64; 2],
    /// To the best general allocator (see [`Better`]).
    pub ratio: Option<f64>,
    /// The rounds, in order.
    pub samples: Vec<f64>,
}

/// Everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The bench's name.
    pub question: String,
    /// What it asks.
    pub what: String,
    /// Rounds.
    pub rounds: u32,
    /// CPUs that the run could use.
    pub cpus: usize,
    /// Kernel.
    pub kernel: String,
    /// The CPUs' model.
    pub processor: String,
    /// What serves our CPUs' slots.
    pub mechanism: String,
    /// Load average when it began and when it ended.
    pub load: [f64; 2],
    /// Case by case, the best first.
    pub rows: Vec<Row>,
}

/// As the kernel names it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "unknown".into(), |(_, model)| model.trim().into())
}

/// The value below which a share of `sorted` lies, between two values by their distance.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, part) = (at as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// The middle of some values, `None` of none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

impl Report {
    pub(crate) fn new(
        question: &str,
        what: &str,
        rounds: u32,
        load: [f64; 2],
        groups: impl Iterator<Item = (String, Vec<Column>, Vec<Samples>)>,
    ) -> Self {
        let mut rows = Vec::new();
        for (case, columns, contenders) in groups {
            for (i, column) in columns.iter().enumerate() {
                let rounds = contenders.iter().map(|c| (c.name, c.kind, c.columns[i].clone()));
                rows.extend(Self::rows(&case, column, rounds));
            }
        }
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            question: question.into(),
            what: what.into(),
            rounds,
            cpus: crate::team::cpus(),
            kernel: kernel.trim().into(),
            processor: processor(),
            mechanism: format!("{:?}", uslab_magazine::Cpus::os().mechanism()).to_lowercase(),
            load,
            rows,
        }
    }

    fn rows<'a>(
        case: &str,
        column: &Column,
        contenders: impl Iterator<Item = (&'a str, Kind, Vec<f64>)>,
    ) -> Vec<Row> {
        let case = match (case, column.name.as_str()) {
            (case, "") => case.to_owned(),
            ("", name) => name.to_owned(),
            (case, name) => format!("{case}, {name}"),
        };
        let row = |(subject, kind, samples): (&str, Kind, Vec<f64>)| {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            Row {
                case: case.clone(),
                unit: column.unit.into(),
                better: column.better,
                subject: subject.into(),
                kind,
                median: quantile(&sorted, 0.5),
                quartiles: [0.25, 0.75].map(|share| quantile(&sorted, share)),
                extremes: [0.0, 1.0].map(|share| quantile(&sorted, share)),
                ratio: None,
                samples,
            }
        };
        let mut rows: Vec<Row> = contenders.filter(|(.., samples)| !samples.is_empty()).map(row).collect();
        let general = rows.iter().filter(|row| row.kind == Kind::General).map(|row| row.median);
        let reference = match column.better {
            Better::Lower => general.min_by(f64::total_cmp),
            Better::Higher => median(general.collect()),
        };
        for row in &mut rows {
            row.ratio =
                reference.filter(|reference| *reference > 0.0).map(|reference| row.median / reference);
        }
        rows.sort_by(|a, b| match column.better {
            Better::Lower => a.median.total_cmp(&b.median),
            Better::Higher => b.median.total_cmp(&a.median),
        });
        rows
    }
}

/// Three digits or so.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e7 => format!("{value:.3e}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.load;
        writeln!(f, "{}: {}", self.question, self.what)?;
        writeln!(
            f,
            "{} interleaved rounds on {} CPUs ({}), Linux {}, load average {before} to {after}, slots by {}; ratio to \
             the best general allocator\n",
            self.rounds, self.cpus, self.processor, self.kernel, self.mechanism
        )?;
        let mut table = output::table(&["case", "subject", "median", "ratio", "quartiles", "min .. max"]);
        let mut case = "";
        for row in &self.rows {
            let shown = if row.case == case { String::new() } else { format!("{} {}", row.case, row.unit) };
            case = &row.case;
            let range = |[low, high]: [f64; 2]| format!("{} .. {}", short(low), short(high));
            table.add_row([
                shown.trim_end(),
                &row.subject,
                &short(row.median),
                &row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                &range(row.quartiles),
                &range(row.extremes),
            ]);
        }
        writeln!(f, "{}", output::text(&table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_refer_to_the_best_general_allocator() {
        let column = Column::lower("", "ns");
        let contenders = [
            ("ours", Kind::Ours, vec![3.0, 1.0, 2.0]),
            ("good", Kind::General, vec![4.0, 4.0, 5.0]),
            ("bad", Kind::General, vec![9.0, 8.0, 7.0]),
            ("pool", Kind::Pool, vec![1.0]),
            ("silent", Kind::General, vec![]),
        ];
        let rows = Report::rows("case", &column, contenders.into_iter());
        let shown: Vec<_> = rows.iter().map(|row| (row.subject.as_str(), row.median, row.ratio)).collect();
        let expected = [
            ("pool", 1.0, Some(0.25)),
            ("ours", 2.0, Some(0.5)),
            ("good", 4.0, Some(1.0)),
            ("bad", 8.0, Some(2.0)),
        ];
        assert_eq!(shown, expected);
        assert_eq!((rows[1].quartiles, rows[1].extremes), ([1.5, 2.5], [1.0, 3.0]));
    }

    #[test]
    fn scaling_is_compared_with_the_middle_of_the_general_allocators() {
        let column = Column::higher("scaling", "");
        let contenders = [("ours", 1.8), ("a", 2.0), ("b", 1.0), ("c", 1.9)].map(|(name, value)| {
            (name, if name == "ours" { Kind::Ours } else { Kind::General }, vec![value])
        });
        let rows = Report::rows("", &column, contenders.into_iter());
        let ours = rows.iter().find(|row| row.subject == "ours").unwrap();
        assert_eq!((ours.case.as_str(), ours.ratio), ("scaling", Some(1.8 / 1.9)));
        assert_eq!(rows[0].subject, "a");
    }
}
