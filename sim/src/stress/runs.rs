//! Executes many stress runs with consecutive seeds, or one shard of these runs, so that several machines can share the
//! work.

use super::{Options, run};
use crate::output::{Progress, grouped};
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use uslab_sync::shard::{Shard, Share};

/// The kind of work that is stored in the files of shards.
const WORK_KIND: &str = "stress";

/// The result of one stress run.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RunResult {
    /// The seed of the run.
    pub seed: u64,
    /// The number of allocations, frees, refused allocations and other calls.
    pub operations: u64,
    /// Descriptions of the violations.
    pub violations: Vec<String>,
}

/// The results of all stress runs, or of one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// The total number of runs, in all shards.
    pub of: u64,
    /// The results in the order of their seeds.
    pub runs: Vec<RunResult>,
}

impl Runs {
    /// Runs the shard `shard` of `of` stress runs. The first run has the seed in `options`, and later runs have the
    /// following seeds.
    ///
    /// # Errors
    /// Fails if one of the stress runs fails; see [`run`]. Also fails if the user ended a run early, because
    /// the merged result would be incomplete.
    pub fn run(options: &Options, of: u64, shard: Shard, progress: &Progress) -> anyhow::Result<Self> {
        let mut runs = vec![];
        for number in shard.items(of) {
            let seed = options.seed.wrapping_add(number);
            let report = run(&Options { seed, ..options.clone() }, progress)?;
            if options.interrupted.load(Relaxed) {
                bail!("the run with seed {seed} ({} of {of}) was interrupted", number + 1);
            }
            let violations = report.violations.into_iter().map(|violation| violation.what).collect();
            runs.push(RunResult { seed, operations: report.operations, violations });
        }
        Ok(Self { of, runs })
    }

    /// Writes the rows of a shard to a file; the file is either complete or does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn leave(&self, options: &Options, shard: Shard, path: Option<&Path>) -> anyhow::Result<PathBuf> {
        let program = std::env::current_exe().and_then(std::fs::read).context("cannot read this program")?;
        let mut hasher = DefaultHasher::new();
        program.hash(&mut hasher);
        let of = format!("program {:016x}, {} runs, {options:?}", hasher.finish(), self.of);
        let rows = self.runs.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        let path = path.map_or_else(|| Share::file(Path::new("."), WORK_KIND, shard), Path::to_owned);
        let share = Share { what: WORK_KIND.to_owned(), shard, of, rows };
        share.write(&path).map_err(anyhow::Error::msg)?;
        Ok(path)
    }

    /// Merges the rows of all shards.
    ///
    /// # Errors
    /// Fails if the file of a shard is missing, truncated, from another program, or from a series with other
    /// options.
    pub fn merge(files: &[PathBuf]) -> anyhow::Result<Self> {
        let shares = Share::join(WORK_KIND, files).map_err(anyhow::Error::msg)?;
        let of = shares[0].of.split(", ").find_map(|part| part.strip_suffix(" runs")?.parse().ok());
        let of: u64 = of.with_context(|| format!("{}: expected a number of runs", shares[0].of))?;
        let mut runs: Vec<RunResult> = vec![];
        for row in shares.iter().flat_map(|share| &share.rows) {
            runs.push(serde_json::from_str(row).with_context(|| format!("the row {row:?}"))?);
        }
        let follow = runs.windows(2).all(|two| two[1].seed == two[0].seed.wrapping_add(1));
        ensure!(
            follow && runs.len() as u64 == of,
            "the shares have {} runs; expected {of} runs with consecutive seeds",
            runs.len()
        );
        Ok(Self { of, runs })
    }

    /// Returns `true` if a run found a violation.
    pub fn violated(&self) -> bool {
        self.runs.iter().any(|ran| !ran.violations.is_empty())
    }

    /// Formats a line for each stress run, and a line with the sums.
    pub fn page(&self) -> String {
        let line = |ran: &RunResult| {
            let violations: Vec<String> =
                ran.violations.iter().map(|what| format!("\n  VIOLATION {what}")).collect();
            format!("seed {}: {} operations{}\n", ran.seed, grouped(ran.operations), violations.concat())
        };
        let operations = self.runs.iter().map(|ran| ran.operations).sum();
        let violations: usize = self.runs.iter().map(|ran| ran.violations.len()).sum();
        let lines: String = self.runs.iter().map(line).collect();
        let runs = self.runs.len();
        format!(
            "{lines}stress: {} operations, {violations} violations, {runs} of {} runs\n",
            grouped(operations),
            self.of
        )
    }
}
