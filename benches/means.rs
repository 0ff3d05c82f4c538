//! Results of whole programs under a preloaded malloc, as the bench `malloc` measures them.

use crate::kept;
use crate::report::{Column, Report, Row};
use crate::subject::Kind;
use std::fmt::{self, Write as _};
use std::path::Path;

/// Name of the table row for whole programs.
pub const ROW: &str = "malloc";
/// Name of this project's malloc in the tables.
pub const OWN_ALLOCATOR: &str = "uslab";
/// Names of the columns of each program.
pub const COLUMNS: [&str; 3] = ["time", "CPU time", "peak"];
/// Prefix of the names of the benchmark programs.
const BENCH_PREFIX: &str = "bench/";

/// Returns the unit of a program's column.
pub fn unit(program: &str, column: &str) -> &'static str {
    match (column, program.starts_with(BENCH_PREFIX)) {
        ("peak", _) => "MiB",
        (_, true) => "ns",
        (_, false) => "s",
    }
}

/// Splits the name of a case into the program and the column.
pub(crate) fn split_case_name(case: &str) -> Option<(&str, &str)> {
    case.rsplit_once(", ")
}

/// Returns the results that the bench saved as a baseline; `None` if it saved no results. Each saved case becomes a
/// separate row.
///
/// # Errors
/// Fails if a file is not valid criterion JSON.
pub(crate) fn saved(directory: &Path, baseline: &str) -> anyhow::Result<Option<Report>> {
    let cases = kept::saved_cases(directory, ROW, baseline)?;
    if cases.is_empty() {
        return Ok(None);
    }
    let mut report = Report::new(kept::runs(directory, &[ROW], baseline)?, Vec::new());
    for of_case in cases.chunk_by(|a, b| a.0 == b.0) {
        let case = &of_case[0].0;
        let Some((program, column)) = split_case_name(case) else { continue };
        let column = Column::lower("", unit(program, column)).count_in_summary_row(case);
        let mut subjects = Vec::new();
        for (_, subject) in of_case {
            let kind = if subject == OWN_ALLOCATOR { Kind::Ours } else { Kind::General };
            subjects.push((subject.as_str(), kind, kept::saved(directory, [ROW, case, subject], baseline)?));
        }
        report.add(ROW, case, &column, subjects.into_iter());
    }
    Ok(Some(report))
}

/// Formats geometric means over all programs: each malloc is compared with the other malloc that has the lowest mean.
pub fn means(report: &Report) -> String {
    let mut text = String::from("geometric means over the programs; the best single peer is 1\n");
    for (programs, bench) in [("benchmark programs", true), ("real programs", false)] {
        for column in COLUMNS {
            let of_column = |row: &&Row| {
                row.case.starts_with(BENCH_PREFIX) == bench && row.case.ends_with(&format!(", {column}"))
            };
            let rows: Vec<_> = report.rows.iter().filter(of_column).collect();
            let Some(means) = ColumnMeans::from_rows(&rows) else { continue };
            let _ = writeln!(text, "{programs}, {column}: {means}");
        }
    }
    text
}

/// Means of one column over all programs.
struct ColumnMeans {
    cases: usize,
    /// For each malloc, the mean of its ratios to the best other malloc in each case; the lowest mean comes first.
    means: Vec<(String, f64)>,
    /// Lowest mean of any other malloc.
    best_peer: f64,
    /// Names of the mallocs that failed in at least one case.
    incomplete: Vec<String>,
}

impl ColumnMeans {
    /// Returns the means of the given rows; `None` if no other malloc has a result in every case.
    fn from_rows(rows: &[&Row]) -> Option<Self> {
        let distinct_names = |name: fn(&Row) -> &String| {
            let mut names: Vec<_> = rows.iter().map(|row| name(row).clone()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let (cases, subjects) = (distinct_names(|row| &row.case).len(), distinct_names(|row| &row.subject));
        let (mut means, mut incomplete, mut best_peer) = (Vec::new(), Vec::new(), f64::INFINITY);
        for subject in subjects {
            let own_rows = || rows.iter().filter(|row| row.subject == subject);
            let logarithms: Vec<_> = own_rows().filter_map(|row| Some(row.ratio?.ln())).collect();
            if logarithms.len() < cases {
                incomplete.push(subject);
                continue;
            }
            let mean = (logarithms.iter().sum::<f64>() / cases as f64).exp();
            if own_rows().all(|row| row.kind == Kind::General) {
                best_peer = best_peer.min(mean);
            }
            means.push((subject, mean));
        }
        means.sort_by(|a, b| a.1.total_cmp(&b.1));
        best_peer.is_finite().then_some(Self { cases, means, best_peer, incomplete })
    }
}

impl fmt::Display for ColumnMeans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column_text = |(name, mean): &(String, f64)| format!("{name} {:.3}", mean / self.best_peer);
        let column_text: Vec<_> = self.means.iter().map(column_text).collect();
        write!(f, "{} ({} cases)", column_text.join(", "), self.cases)?;
        if !self.incomplete.is_empty() {
            write!(f, "; not in every case: {}", self.incomplete.join(", "))?;
        }
        Ok(())
    }
}
