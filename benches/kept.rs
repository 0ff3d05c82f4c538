//! Passes the samples of interleaved rounds to criterion as benchmarks.
//!
//! Criterion alone would measure the subjects one after the other, and the machine may change between two subjects. The
//! benches first run all rounds, and measure every subject in each round. After all rounds, criterion gets the samples
//! for its statistics, its report, and its saved baselines.

use crate::report::Row;
use anyhow::Context;
use criterion::measurement::{Measurement, ValueFormatter};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Minimum number of samples that criterion accepts.
const MIN_SAMPLES: usize = 10;

/// Criterion baselines to save and to compare with.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Baselines {
    /// Saves the samples as a criterion baseline of this name
    #[arg(long, value_name = "NAME")]
    save_baseline: Option<String>,
    /// Compares the samples with the saved baseline of this name
    #[arg(long, value_name = "NAME", conflicts_with = "save_baseline")]
    baseline: Option<String>,
    /// Also writes criterion's HTML report, under target/criterion/report
    #[arg(long)]
    plots: bool,
}

/// A criterion measurement whose values were measured before; its unit is the unit of the row.
struct MeasuredValue(&'static str);

impl Measurement for MeasuredValue {
    type Intermediate = ();
    type Value = f64;
    fn start(&self) {}
    fn end(&self, (): ()) -> f64 {
        0.0
    }
    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }
    fn zero(&self) -> f64 {
        0.0
    }
    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

impl ValueFormatter for MeasuredValue {
    fn scale_values(&self, _: f64, _: &mut [f64]) -> &'static str {
        self.0
    }
    fn scale_throughputs(&self, _: f64, _: &Throughput, _: &mut [f64]) -> &'static str {
        self.0
    }
    fn scale_for_machines(&self, _: &mut [f64]) -> &'static str {
        self.0
    }
}

/// Returns criterion's output folder in the target directory of this program.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("CRITERION_HOME").map_or_else(
        || {
            // The executable is `target/release/deps/all-...`.
            let executable = std::env::current_exe().unwrap_or_default();
            executable.ancestors().nth(3).unwrap_or(Path::new("target")).join("criterion")
        },
        PathBuf::from,
    )
}

/// Conditions under which the samples of a row were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Commit of the source tree, with the suffix `-dirty` if the tree had uncommitted changes.
    pub(crate) commit: String,
    /// Number of rounds, load average, and description of the machine.
    #[serde(rename = "how")]
    pub(crate) conditions: String,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {}; {}", self.commit, self.conditions)
    }
}

pub(crate) fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]);
    let output = git.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::null()).output();
    let commit_text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    commit_text.ok().filter(|commit_text| !commit_text.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// Returns the folder name that criterion derives from `name`. The file with a row's conditions is stored in the folder
/// of its row.
fn folder(name: &str) -> String {
    name.replace(['?', '"', '/', '\\', '*', '<', '>', ':', '|', '^'], "_")
}
fn run_file_path(directory: &Path, row: &str, baseline: &str) -> PathBuf {
    directory.join(folder(row)).join(format!("{baseline}.run.json"))
}

/// Writes the conditions of each row that is saved as a baseline.
///
/// # Errors
/// Fails if a file cannot be written.
fn save_run(rows: &[&Row], run: &Run, baseline: &str, directory: &Path) -> anyhow::Result<()> {
    for row in rows {
        let path = run_file_path(directory, &row.row, baseline);
        std::fs::write(&path, serde_json::to_string(run)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the conditions under which a baseline's rows were measured, with one line for each run. If the baseline has
/// several runs, each line also names the rows of its run.
///
/// # Errors
/// Fails if a file is not a valid [`Run`].
pub(crate) fn runs(directory: &Path, rows: &[&str], baseline: &str) -> anyhow::Result<String> {
    let mut runs: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let path = run_file_path(directory, row, baseline);
        let run = match std::fs::read_to_string(&path) {
            Err(_) => "commit not kept".into(),
            Ok(text) => {
                let run: Run = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
                run.to_string()
            }
        };
        match runs.iter_mut().find(|(run_name, _)| *run_name == run) {
            Some((_, rows)) => rows.push(row),
            None => runs.push((run, vec![row])),
        }
    }
    let several = runs.len() > 1;
    let line = |(run, rows): (String, Vec<&str>)| {
        let rows = if several { format!(" ({})", rows.join(", ")) } else { String::new() };
        format!("`{baseline}`{rows}: {run}")
    };
    Ok(runs.into_iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Passes rows to criterion, each as a benchmark named row/case/subject. Rows with too few rounds for criterion are
/// omitted.
///
/// # Errors
/// Fails if the conditions of a saved baseline cannot be written.
pub(crate) fn analyse_with_criterion(
    rows: &[Row],
    run: &Run,
    baselines: &Baselines,
    directory: &Path,
) -> anyhow::Result<()> {
    let complete_rows: Vec<_> = rows.iter().filter(|row| row.samples.len() >= MIN_SAMPLES).collect();
    for row in &complete_rows {
        let mut criterion = Criterion::default()
            .with_measurement(MeasuredValue(row.unit))
            .output_directory(directory)
            .sample_size(row.samples.len())
            // The warm-up is one call, whose value is not used. The number of iterations is then large enough for
            // fractions of a nanosecond.
            .warm_up_time(Duration::from_nanos(1))
            .measurement_time(Duration::from_secs(1))
            .nresamples(10_000);
        if !baselines.plots {
            criterion = criterion.without_plots();
        }
        if let Some(name) = &baselines.save_baseline {
            criterion = criterion.save_baseline(name.clone());
        }
        if let Some(name) = &baselines.baseline {
            criterion = criterion.retain_baseline(name.clone(), false);
        }
        let mut group = criterion.benchmark_group(&row.row);
        group.sampling_mode(SamplingMode::Flat);
        // The iterator repeats the samples, so that criterion uses each sample once, whatever its number of
        // warm-up calls.
        let mut samples = row.samples.iter().cycle();
        let mut next_time = |iterations: u64| iterations as f64 * samples.next().copied().unwrap_or_default();
        group.bench_function(id(row), |bencher| bencher.iter_custom(&mut next_time));
        group.finish();
    }
    if complete_rows.is_empty() && !rows.is_empty() {
        eprintln!("criterion needs at least {MIN_SAMPLES} rounds, so no baseline was compared or saved");
    }
    baselines.save_baseline.as_ref().map_or(Ok(()), |name| save_run(&complete_rows, run, name, directory))
}

/// Returns the name that a row has within its criterion group. If a row has no case, the benchmark's parameter is the
/// subject.
fn id(row: &Row) -> BenchmarkId {
    match row.case.as_str() {
        "" => BenchmarkId::from_parameter(&row.subject),
        case => BenchmarkId::new(case, &row.subject),
    }
}

/// Returns the samples of a row that criterion saved as a baseline; empty if nothing was saved.
///
/// # Errors
/// Fails if a file is not valid criterion JSON.
pub(crate) fn saved(
    directory: &Path,
    [row, case, subject]: [&str; 3],
    baseline: &str,
) -> anyhow::Result<Vec<f64>> {
    #[derive(Deserialize)]
    struct Sample {
        iters: Vec<f64>,
        times: Vec<f64>,
    }
    let mut path = directory.to_owned();
    path.extend([row, case, subject].into_iter().filter(|part| !part.is_empty()).map(folder));
    path.extend([baseline, "sample.json"]);
    let Ok(file) = File::open(&path) else {
        return Ok(Vec::new());
    };
    let sample: Sample = serde_json::from_reader(file).with_context(|| path.display().to_string())?;
    Ok(sample.times.iter().zip(&sample.iters).map(|(time, iterations)| time / iterations).collect())
}

/// Returns the cases and subjects of a row that criterion saved as a baseline, sorted by name.
///
/// # Errors
/// Fails if a file is not valid criterion JSON.
pub(crate) fn saved_cases(
    directory: &Path,
    row: &str,
    baseline: &str,
) -> anyhow::Result<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Benchmark {
        function_id: Option<String>,
        value_str: Option<String>,
    }
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let mut cases = Vec::new();
    for subject in folders(&directory.join(folder(row))).iter().flat_map(|case| folders(case)) {
        let path = subject.join(baseline).join("benchmark.json");
        let Ok(file) = File::open(&path) else { continue };
        let benchmark: Benchmark =
            serde_json::from_reader(file).with_context(|| path.display().to_string())?;
        cases.extend(benchmark.function_id.zip(benchmark.value_str));
    }
    cases.sort_unstable();
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Column, Report};
    use crate::subject::Kind;

    #[test]
    fn criterion_baseline_contains_each_sample_once() {
        let samples: Vec<f64> = (1..=11).map(|n| f64::from(n) + 0.25).collect();
        let mut report = Report::new(String::new(), Vec::new());
        for case in ["bench/case", ""] {
            let subject = [("subject", Kind::Ours, samples.clone())].into_iter();
            report.add("row", case, &Column::lower("", "ns"), subject);
        }
        let folder = tempfile::tempdir().unwrap();
        let baselines = Baselines { save_baseline: Some("a".into()), ..Baselines::default() };
        let run = Run { commit: "0123abcd".into(), conditions: "11 rounds".into() };
        analyse_with_criterion(&report.rows, &run, &baselines, folder.path()).unwrap();
        for case in ["bench/case", ""] {
            let mut kept_baseline = saved(folder.path(), ["row", case, "subject"], "a").unwrap();
            kept_baseline.sort_by(f64::total_cmp);
            let close = kept_baseline.iter().zip(&samples).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(kept_baseline.len() == samples.len() && close, "{kept_baseline:?}");
        }
        assert!(saved(folder.path(), ["row", "bench/case", "subject"], "b").unwrap().is_empty());
        assert_eq!(runs(folder.path(), &["row"], "a").unwrap(), "`a`: commit 0123abcd; 11 rounds");
        let two_runs = "`a` (row): commit 0123abcd; 11 rounds\n`a` (other): commit not kept";
        assert_eq!(runs(folder.path(), &["row", "other"], "a").unwrap(), two_runs);
        let cases = saved_cases(folder.path(), "row", "a").unwrap();
        assert_eq!(cases, [("bench/case".into(), "subject".into())]);
    }
}
