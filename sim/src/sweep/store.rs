//! Stores each result in a separate file, which is either complete or does not exist. The name of a result's file is
//! the hash of the item's identity.
//!
//! ```text
//! RESULTS/
//!     items/4f/4f0c…9a.json   by the first two digits: 256 folders
//!     costs/*.csv             what each process's items took: no part of the results, because it differs from run to run
//! ```

use super::identity::{Identity, Key};
use super::plan::Plan;
use super::record::{ItemOutcome, Numbers, Record};
use anyhow::{Context, bail};
use rustc_hash::FxHashMap;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder in which results are stored.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

/// The state of an item's stored result.
#[derive(Debug, PartialEq)]
pub(super) enum StoredResult {
    Missing,
    /// The file is truncated or changed, so it contains no valid result.
    Damaged(String),
    Failed(String),
    Done(Box<Numbers>),
}

impl Store {
    /// Opens the store of a sweep. The folder is the given folder; otherwise, the folder that the sweep's file names;
    /// otherwise, a folder named after this file: `depot.results` for `depot.toml`.
    pub(super) fn new(plan: &Plan, results: Option<&Path>) -> Self {
        let default_folder = || plan.results.clone().unwrap_or_else(|| plan.path.with_extension("results"));
        Self { folder: results.map_or_else(default_folder, Path::to_owned) }
    }
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
    /// Returns the path of the file with an item's result.
    pub(super) fn path(&self, key: Key) -> PathBuf {
        let name = key.to_string();
        self.folder.join("items").join(&name[..2]).join(name + ".json")
    }

    /// Writes the result of an item under a temporary name, and then renames it.
    ///
    /// # Errors
    /// Fails if the file cannot be written; the error names its path. If writing fails, no part of the result
    /// is stored.
    pub(super) fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.path(record.of.key());
        let write = || -> anyhow::Result<()> {
            let folder = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(folder)?;
            // The permissions of an ordinary new file, which the umask restricts.
            let new = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(new).tempfile_in(folder)?;
            file.write_all(&(serde_json::to_string(record)? + "\n").into_bytes())?;
            let (file, new) = file.into_parts();
            // A network file system may report only here that it is full. Waiting for the disk would take longer than
            // most items.
            nix::unistd::close(file)?;
            new.persist(&path)?;
            Ok(())
        };
        write().with_context(|| path.display().to_string())
    }

    /// Reads the result of an item.
    ///
    /// # Errors
    /// Fails if the file contains another item's result, or cannot be read.
    pub(super) fn read(&self, identity: &Identity) -> anyhow::Result<StoredResult> {
        let path = self.path(identity.key());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(StoredResult::Missing),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Ok(StoredResult::Damaged(format!("{}: no text", path.display())));
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(error) => return Ok(StoredResult::Damaged(format!("{}: {error}", path.display()))),
        };
        if record.of != *identity {
            bail!(
                "{}: the file has the result of {}; expected the result of {identity}",
                path.display(),
                record.of
            );
        }
        Ok(match record.result {
            ItemOutcome::Failed(why) => StoredResult::Failed(why),
            ItemOutcome::Done(numbers) => StoredResult::Done(Box::new(numbers)),
        })
    }

    /// Creates a new file in which this process records the run times of its items.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub(super) fn costs(&self) -> anyhow::Result<File> {
        let folder = self.folder.join("costs");
        let create = || -> anyhow::Result<File> {
            std::fs::create_dir_all(&folder)?;
            let new = Permissions::from_mode(0o666);
            let file = tempfile::Builder::new()
                .prefix("run-")
                .suffix(".csv")
                .permissions(new)
                .tempfile_in(&folder)?;
            Ok(file.keep()?.0)
        };
        create().with_context(|| folder.display().to_string())
    }

    /// Returns the run times that all processes have recorded for a sweep's items: the number of runs, the sum in
    /// seconds, and the longest time.
    ///
    /// # Errors
    /// Fails if a file of times cannot be read.
    pub(super) fn cost(&self, plan: &Plan) -> anyhow::Result<Cost> {
        let folder = self.folder.join("costs");
        let mut cost = Cost::default();
        let entries = match folder.read_dir() {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(cost),
            Err(error) => return Err(error).with_context(|| folder.display().to_string()),
        };
        let items: FxHashMap<Key, u64> =
            (0..plan.len()).map(|number| (plan.identity(plan.item(number)).key(), number)).collect();
        for entry in entries {
            let path = entry.with_context(|| folder.display().to_string())?.path();
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            // The last line of a process that was killed may be cut off.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let numbers = line
                    .split_once(',')
                    .and_then(|(key, s)| Some((*items.get(&key.parse().ok()?)?, s.parse().ok()?)));
                if let Some((item, seconds)) = numbers {
                    cost.add(item, seconds);
                }
            }
        }
        Ok(cost)
    }
}

/// The recorded run times of a sweep's items.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(super) struct Cost {
    /// The number of runs; one item may have been run several times.
    pub(super) runs: u64,
    pub(super) seconds: f64,
    pub(super) dearest_seconds: f64,
    /// The number of the item with the longest run.
    pub(super) slowest_item: u64,
}

impl Cost {
    fn add(&mut self, item: u64, seconds: f64) {
        self.runs += 1;
        self.seconds += seconds;
        if seconds > self.dearest_seconds {
            (self.dearest_seconds, self.slowest_item) = (seconds, item);
        }
    }
    /// Returns the mean run time in seconds.
    pub(super) fn mean(&self) -> f64 {
        self.seconds / self.runs.max(1) as f64
    }
}

/// Formats a line for the file that records run times.
pub(super) fn format_cost_line(key: Key, elapsed: Duration) -> String {
    format!("{key},{:.6}\n", elapsed.as_secs_f64())
}
