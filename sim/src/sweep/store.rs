//! Results in files: one an item, there wholly or not at all, under the hash of their sweep.
//!
//! ```text
//! RESULTS/
//!     0123456789abcdef/          the sweep's hash
//!         items/000012/12345.json  a thousand items a folder
//!         costs/*.csv              what each process's items took: no part of the results, because it differs from run to run
//! ```

use super::plan::Plan;
use super::record::{Outcomes, Record};
use anyhow::{Context, bail};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Items of a folder.
const FOLDER: u64 = 1000;

/// Where the results of a sweep are.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    hash: String,
}

/// What is there of an item.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Missing,
    /// A file that is no result: cut off, or changed.
    Damaged(String),
    Failed(String),
    Done(Box<Record>),
}

impl Store {
    /// Of a sweep; left out, beside its file: `depot.results` of `depot.toml`.
    pub(super) fn new(plan: &Plan, results: Option<&Path>) -> Self {
        let folder = results.map_or_else(|| plan.path.with_extension("results"), Path::to_owned);
        Self { folder: folder.join(plan.short_hash()), hash: plan.hash.clone() }
    }
    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
    fn path(&self, item: u64) -> PathBuf {
        self.folder.join("items").join(format!("{:06}", item / FOLDER)).join(format!("{item}.json"))
    }

    /// Writes the result of an item.
    ///
    /// # Errors
    /// The file, and why it cannot be written. Nothing of it is there then.
    pub(super) fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.path(record.item);
        let write = || -> anyhow::Result<()> {
            let folder = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(folder)?;
            // What a new file may: the umask takes its part.
            let new = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(new).tempfile_in(folder)?;
            file.write_all(&(serde_json::to_string(record)? + "\n").into_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("item {}: {}", record.item, path.display()))
    }

    /// Reads what is there of an item.
    ///
    /// # Errors
    /// It is the result of another sweep, or it cannot be read.
    pub(super) fn read(&self, item: u64) -> anyhow::Result<Found> {
        let path = self.path(item);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Missing),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Ok(Found::Damaged(format!("{}: no text", path.display())));
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let damaged = |why: &dyn std::fmt::Display| Found::Damaged(format!("{}: {why}", path.display()));
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(error) => return Ok(damaged(&error)),
        };
        if record.sweep != self.hash {
            bail!(
                "{}: a result of sweep {}; expected one of {}",
                path.display(),
                record.sweep.get(..16).unwrap_or(&record.sweep),
                &self.hash[..16]
            );
        }
        if record.item != item {
            return Ok(damaged(&format_args!("the result of item {}", record.item)));
        }
        Ok(match &record.result {
            Outcomes::Failed(why) => Found::Failed(why.clone()),
            Outcomes::Done(_) => Found::Done(Box::new(record)),
        })
    }

    /// A new file for what items of this process take.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn costs(&self) -> anyhow::Result<File> {
        let folder = self.folder.join("costs");
        let make = || -> anyhow::Result<File> {
            std::fs::create_dir_all(&folder)?;
            let new = Permissions::from_mode(0o666);
            let file = tempfile::Builder::new()
                .prefix("run-")
                .suffix(".csv")
                .permissions(new)
                .tempfile_in(&folder)?;
            Ok(file.keep()?.0)
        };
        make().with_context(|| folder.display().to_string())
    }

    /// What items took, as all processes have noted it: how many, and seconds of all, of the dearest one.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn cost(&self) -> anyhow::Result<Cost> {
        let folder = self.folder.join("costs");
        let mut cost = Cost::default();
        let entries = match folder.read_dir() {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(cost),
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        };
        for entry in entries {
            let path = entry.with_context(|| folder.display().to_string())?.path();
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            // The last line of a process that was killed may be cut off.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let numbers = line
                    .split_once(',')
                    .and_then(|(item, s)| Some((item.parse::<u64>().ok()?, s.parse().ok()?)));
                if let Some((item, seconds)) = numbers {
                    cost.add(item, seconds);
                }
            }
        }
        Ok(cost)
    }
}

/// What runs took.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(super) struct Cost {
    /// Runs, of which an item may have had several.
    pub(super) runs: u64,
    pub(super) seconds: f64,
    pub(super) dearest_seconds: f64,
    /// The item.
    pub(super) dearest: u64,
}

impl Cost {
    fn add(&mut self, item: u64, seconds: f64) {
        self.runs += 1;
        self.seconds += seconds;
        if seconds > self.dearest_seconds {
            (self.dearest_seconds, self.dearest) = (seconds, item);
        }
    }
    /// Seconds of a run.
    pub(super) fn mean(&self) -> f64 {
        self.seconds / self.runs.max(1) as f64
    }
}

/// A line of a file of costs.
pub(super) fn cost_line(item: u64, took: Duration) -> String {
    format!("{item},{:.6}\n", took.as_secs_f64())
}
