//! Results in files: one an item, there wholly or not at all, named by the hash of what the item depends on.
//!
//! ```text
//! RESULTS/
//!     items/4f/4f0c…9a.json   by the first two digits: 256 folders
//!     costs/*.csv             what each process's items took: no part of the results, because it differs from run to run
//! ```

use super::identity::{Identity, Key};
use super::plan::Plan;
use super::record::{Numbers, Outcomes, Record};
use anyhow::{Context, bail};
use rustc_hash::FxHashMap;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where results are.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

/// What is there of an item.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Missing,
    /// A file that is no result: cut off, or changed.
    Damaged(String),
    Failed(String),
    Done(Box<Numbers>),
}

impl Store {
    /// Of a sweep; left out, as its file says, or beside it: `depot.results` of `depot.toml`.
    pub(super) fn new(plan: &Plan, results: Option<&Path>) -> Self {
        let own = || plan.results.clone().unwrap_or_else(|| plan.path.with_extension("results"));
        Self { folder: results.map_or_else(own, Path::to_owned) }
    }
    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
    /// Where the result of an item is, or will be.
    pub(super) fn path(&self, key: Key) -> PathBuf {
        let name = key.to_string();
        self.folder.join("items").join(&name[..2]).join(name + ".json")
    }

    /// Writes the result of an item: all of it, and then its name.
    ///
    /// # Errors
    /// The file, and why it cannot be written. Nothing of it is there then.
    pub(super) fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.path(record.of.key());
        let write = || -> anyhow::Result<()> {
            let folder = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(folder)?;
            // What a new file may: the umask takes its part.
            let new = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(new).tempfile_in(folder)?;
            file.write_all(&(serde_json::to_string(record)? + "\n").into_bytes())?;
            let (file, new) = file.into_parts();
            // A file system on another machine may say only here that it is full. To wait for the disk would cost more than most items.
            nix::unistd::close(file)?;
            new.persist(&path)?;
            Ok(())
        };
        write().with_context(|| path.display().to_string())
    }

    /// Reads what is there of an item.
    ///
    /// # Errors
    /// It is the result of another item, or it cannot be read.
    pub(super) fn read(&self, of: &Identity) -> anyhow::Result<Found> {
        let path = self.path(of.key());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Missing),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Ok(Found::Damaged(format!("{}: no text", path.display())));
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(error) => return Ok(Found::Damaged(format!("{}: {error}", path.display()))),
        };
        if record.of != *of {
            bail!("{}: a result of {}; expected one of {of}", path.display(), record.of);
        }
        Ok(match record.result {
            Outcomes::Failed(why) => Found::Failed(why),
            Outcomes::Done(numbers) => Found::Done(Box::new(numbers)),
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

    /// What a sweep's items took, as all processes have noted it: how many, and seconds of all, of the dearest one.
    ///
    /// # Errors
    /// A file cannot be read.
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
pub(super) fn cost_line(key: Key, took: Duration) -> String {
    format!("{key},{:.6}\n", took.as_secs_f64())
}
