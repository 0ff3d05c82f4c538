//! Writes a Markdown page from saved runs: it shows the rows won and lost, and the tables of some rows.

use crate::means::{self, COLUMNS};
use crate::report::{Report, places};
use std::fmt;

pub(crate) struct Page<'r> {
    /// Command line that wrote the page.
    pub(crate) command: String,
    /// Saved runs; the page takes its values and tables from the last one.
    pub(crate) runs: &'r [Report],
    /// Rows of the last table, each with the subject that the row must contain.
    pub(crate) expected: Vec<(String, String)>,
    /// Saved runs of the whole-program bench, if any.
    pub(crate) programs: &'r [Report],
}

/// Preloaded rows whose tables are on the page, each with its heading.
const TABLES: [(&str, &str); 3] = [
    ("1 to 4,096 threads", "crowd preloaded"),
    ("Memory", "memory preloaded"),
    ("The start of a process", "start preloaded"),
];

/// Suffix of the names of preloaded rows.
pub(crate) const PRELOADED_SUFFIX: &str = " preloaded";

impl Page<'_> {
    /// Writes one line for each row, with the ratios of each subject.
    fn write_wins_and_losses(&self, preloaded_text: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_in_section = |row: &str| row.ends_with(PRELOADED_SUFFIX) == preloaded_text;
        let places: Vec<_> =
            places(self.runs).into_iter().filter(|place| is_in_section(place.name)).collect();
        let wins = places.iter().filter(|place| place.ratio < 1.0).count();
        writeln!(f, "Won: {wins} of {}.\n", places.len())?;
        let measured = places.iter().map(|place| (place.name, place.worst.subject.as_str()));
        let expected = self.expected.iter().map(|(row, subject)| (row.as_str(), subject.as_str()));
        let (mut rows, mut subjects) = (Vec::new(), Vec::new());
        for (row, subject) in measured.chain(expected).filter(|(row, _)| is_in_section(row)) {
            if !rows.contains(&row) {
                rows.push(row);
            }
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        writeln!(f, "| row | {} |\n|---|{}", subjects.join(" | "), "---|".repeat(subjects.len()))?;
        for row in rows {
            write!(f, "| {row} |")?;
            for subject in &subjects {
                match places.iter().find(|place| place.name == row && place.worst.subject == **subject) {
                    None => write!(f, " - |")?,
                    Some(place) => write!(f, " {:.2} ({}) |", place.ratio, place.spread())?,
                }
            }
            writeln!(f)?;
        }
        writeln!(f)
    }

    fn table(&self, row: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.runs.last() else { return Ok(()) };
        if !last.rows.iter().any(|measured| measured.row == row) {
            return writeln!(f, "**{row}**: not measured.\n");
        }
        let description =
            last.names.iter().find(|(name, _)| name == row).map_or("", |(_, description)| description);
        last.table(row, description, f)?;
        let absent: Vec<_> = last
            .unmeasured
            .iter()
            .filter(|(row_name, _)| row_name == row)
            .map(|(_, case)| case.as_str())
            .collect();
        if !absent.is_empty() {
            writeln!(f, "Not measured: {}.\n", absent.join("; "))?;
        }
        Ok(())
    }

    /// Writes each program's ratios to its best competitor, and the means.
    fn programs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.programs.last() else {
            return writeln!(f, "Not measured.\n");
        };
        let places = places(self.programs);
        let mut programs: Vec<_> = places
            .iter()
            .filter_map(|place| means::split_case_name(place.name))
            .map(|(program, _)| program)
            .collect();
        programs.sort_unstable();
        programs.dedup();
        writeln!(
            f,
            "Each cell has the ratio of `{}` to the best peer; the range over all runs is in brackets.\n",
            means::OWN_ALLOCATOR
        )?;
        writeln!(f, "| program | {} |\n|---|{}", COLUMNS.join(" | "), "---|".repeat(COLUMNS.len()))?;
        for program in programs {
            write!(f, "| {program} |")?;
            for column in COLUMNS {
                let case = format!("{program}, {column}");
                match places.iter().find(|place| place.name == case) {
                    None => write!(f, " not measured |")?,
                    Some(place) if place.ratios.len() < 2 => write!(f, " {:.2} |", place.ratio)?,
                    Some(place) => write!(f, " {:.2} ({}) |", place.ratio, place.spread())?,
                }
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        let means_text = means::means(last);
        let mut lines = means_text.lines();
        writeln!(f, "Results of the last run, {}:\n", lines.next().unwrap_or_default())?;
        lines.try_for_each(|line| writeln!(f, "- {line}"))?;
        writeln!(f)
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Benchmarks\n")?;
        writeln!(f, "This command wrote this page. `benches/README.md` defines rows, subjects and peers.\n")?;
        writeln!(f, "```console\n$ {}\n```\n", self.command)?;
        writeln!(f, "The runs:\n")?;
        for line in self.runs.iter().flat_map(|run| run.conditions.lines()) {
            writeln!(f, "- {line}")?;
        }
        for line in self.programs.iter().flat_map(|run| run.conditions.lines()) {
            writeln!(f, "- programs, {line}")?;
        }
        writeln!(f, "\n## Wins and losses\n")?;
        writeln!(
            f,
            "Each cell has the middle run's ratio to the best peer in the row's worst case; the range of all runs is in brackets. Below 1 the row is won. `disturbed` compares with the subject's quiet run, `scaling` with the median peer. `-`: the row was not measured, or does not apply to the subject. The command without `--page` also prints the worst cases.\n"
        )?;
        writeln!(f, "Called in the program:\n")?;
        self.write_wins_and_losses(false, f)?;
        writeln!(f, "`libuslab.so` and peers, both preloaded:\n")?;
        self.write_wins_and_losses(true, f)?;
        for (heading, row) in TABLES {
            writeln!(f, "## {heading}\n")?;
            writeln!(
                f,
                "Each cell has the median of the last run; the ratio to the best peer is in brackets.\n"
            )?;
            self.table(row, f)?;
        }
        writeln!(f, "## Whole programs\n")?;
        self.programs(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Column;
    use crate::subject::Kind;

    fn run(name: &str, own_time: f64) -> Report {
        let names =
            ["hot", "hot preloaded", "crowd preloaded"].map(|row| (row.to_owned(), format!("what {row} is")));
        let mut report = Report::new(format!("`{name}`: commit {name}; 11 rounds"), names.into());
        let column = Column::lower("", "ns");
        let mut add = |row: &str, case: &str, results: &[(&'static str, Kind, f64)]| {
            let samples = results.iter().map(|(subject, kind, value)| (*subject, *kind, vec![*value]));
            report.add(row, case, &column, samples);
        };
        add("hot", "64 B", &[("uslab", Kind::Ours, own_time), ("peer", Kind::General, 10.0)]);
        add("hot preloaded", "64 B", &[("libuslab", Kind::Ours, 12.0), ("peer", Kind::General, 10.0)]);
        add("crowd preloaded", "4 threads", &[("libuslab", Kind::Ours, 5.0), ("peer", Kind::General, 10.0)]);
        add("crowd preloaded", "64 threads", &[]);
        report
    }

    fn programs(own_time: f64) -> Report {
        let mut report = Report::new("`a`: commit a; 6 rounds".into(), Vec::new());
        for case in ["bench/cfrac, time", "bench/cfrac, peak"] {
            let column = Column::lower("", "ns").count_in_summary_row(case);
            let results = [("uslab", Kind::Ours, vec![own_time]), ("peer", Kind::General, vec![2.0])];
            report.add(means::ROW, case, &column, results.into_iter());
        }
        report
    }

    #[test]
    fn benchmark_page_lists_runs_and_ratios() {
        let runs = [run("a", 9.0), run("b", 7.0), run("c", 8.0)];
        let expected = [("hot", "uslab"), ("tails", "uslab"), ("mixed preloaded", "libuslab")];
        let expected = expected.map(|(row, subject)| (row.to_owned(), subject.to_owned())).into();
        let programs = [programs(1.0), programs(3.0), programs(1.5)];
        let page = Page { command: "cargo bench".into(), runs: &runs, expected, programs: &programs };
        let page = page.to_string();
        let (linked_text, preloaded_text) = page.split_once("both preloaded:").unwrap();
        for line in [
            "$ cargo bench",
            "- `b`: commit b; 11 rounds",
            "- programs, `a`: commit a; 6 rounds",
            "Won: 1 of 1.",
            "| row | uslab |",
            "| hot | 0.80 (0.70–0.90) |",
            "| tails | - |",
        ] {
            assert!(linked_text.lines().any(|other| other == line), "expected {line} in\n{page}");
        }
        for line in [
            "Won: 1 of 2.",
            "| hot preloaded | 1.20 (1.20–1.20) |",
            "| mixed preloaded | - |",
            "**crowd preloaded**: what crowd preloaded is",
            "| libuslab | 5.00 (0.50) |",
            "Not measured: 64 threads.",
            "**memory preloaded**: not measured.",
            "| bench/cfrac | 0.75 (0.50–1.50) | not measured | 0.75 (0.50–1.50) |",
            "- benchmark programs, time: uslab 0.750, peer 1.000 (1 cases)",
        ] {
            assert!(preloaded_text.lines().any(|other| other == line), "expected {line} in\n{page}");
        }
        assert!(!linked_text.contains("| hot preloaded") && !preloaded_text.contains("| hot |"));
    }

    #[test]
    fn benchmark_page_marks_missing_programs_as_not_measured() {
        let runs = [run("a", 9.0)];
        let page = Page { command: String::new(), runs: &runs, expected: Vec::new(), programs: &[] };
        assert!(page.to_string().ends_with("## Whole programs\n\nNot measured.\n\n"));
    }
}
