//! Divides the work of a command into shards, which can run on several machines.

use crate::workspace;
use anyhow::{Context, ensure};
use clap::Args;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use uslab_sync::shard::{Shard, Share};

/// The options that run one shard, or merge the files of all shards.
#[derive(Clone, Debug, Default, Args)]
pub struct ShardArgs {
    /// Run only shard I of N; the first shard is 0. Default: the shard that a batch system assigns by
    /// SLURM_ARRAY_TASK_ID with _COUNT, _MIN and _STEP, or by JOB_COMPLETION_INDEX with JOB_COMPLETIONS; without these
    /// variables, everything.
    #[arg(long, value_name = "I/N", conflicts_with = "merge")]
    pub shard: Option<Shard>,
    /// File for the rows of the shard; it is either complete or does not exist. Default:
    /// target/shares/NAME.I-of-N.rows.
    #[arg(long, value_name = "FILE", conflicts_with = "merge")]
    rows: Option<PathBuf>,
    /// Merge the shards in these files, without running any test.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub merge: Vec<PathBuf>,
}

impl ShardArgs {
    /// Returns the requested shard; `None` means the whole run.
    ///
    /// # Errors
    /// Fails if the variables of the batch system are inconsistent.
    pub fn requested(&self) -> anyhow::Result<Option<Shard>> {
        Shard::requested(self.shard).map_err(anyhow::Error::msg)
    }

    /// Writes the rows of one shard of the command `what`, and returns the path of the file. The parameter `of`
    /// describes the command line arguments, which must be equal for all shards.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the build cannot be identified.
    pub fn leave(&self, what: &str, shard: Shard, of: &str, rows: Vec<String>) -> anyhow::Result<PathBuf> {
        let folder = workspace().join("target/shares");
        let path = self.rows.clone().unwrap_or_else(|| Share::file(&folder, what, shard));
        let built = |name: &str| ["rs", "toml", "lock"].iter().any(|end| name.ends_with(&format!(".{end}")));
        let of = format!("build {} {of}", build(built)?).trim_end().to_owned();
        Share { what: what.to_owned(), shard, of, rows }.write(&path).map_err(anyhow::Error::msg)?;
        Ok(path)
    }

    /// Reads the rows of all shards of the command `what`.
    ///
    /// # Errors
    /// Fails if a shard is missing, or if the shards come from different runs.
    pub fn joined(&self, what: &str) -> anyhow::Result<Vec<Share>> {
        Share::join(what, &self.merge).map_err(anyhow::Error::msg)
    }
}

/// Returns all files in a folder, relative to it, except files that git ignores.
///
/// # Errors
/// Fails if git cannot be run.
pub fn tracked_files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(folder)
        .output()
        .context("git")?;
    ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim_end());
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Returns `true` if a tracked file can affect test results; most prose, web pages, scripts and stored results cannot.
pub fn counts(name: &str) -> bool {
    let words = name.ends_with(".md") && name != "ARCHITECTURE.md" && !name.starts_with("slab/book/");
    let others =
        [".ci/", "benches/", "sim/web/", "tests/claims.toml", "tests/mutants", "tests/orderings.toml"];
    !words && !others.iter().any(|start| name.starts_with(start))
}

/// Returns the version text of the compiler.
///
/// # Errors
/// Fails if the compiler cannot be run.
pub fn compiler() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("-vV").current_dir(workspace()).output().context("rustc")?;
    ensure!(said.status.success(), "rustc -vV: {}", String::from_utf8_lossy(&said.stderr).trim_end());
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// Returns the identity of a build: a hash of the compiler version, and of the tracked files for which `of` returns
/// `true`.
///
/// # Errors
/// Fails if git or the compiler cannot be run.
pub fn build(of: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    compiler()?.hash(&mut hasher);
    let mut names = tracked_files(workspace())?;
    names.sort();
    for name in names.iter().filter(|name| of(name)) {
        // Deleted files are still listed.
        if let Ok(text) = fs::read(workspace().join(name)) {
            (name, text).hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the result of a tool was kept although tests, seeds or the compiler had changed.
    #[test]
    fn hash_of_a_test_result_covers_only_files_the_tests_read() {
        let names = tracked_files(workspace()).unwrap();
        let (counted, others): (Vec<&str>, Vec<&str>) =
            names.iter().map(|name| &**name).partition(|name| counts(name));
        for start in [
            "Cargo.toml",
            "Cargo.lock",
            ".cargo/",
            "tests/Cargo.toml",
            "tests/fuzz/corpus/",
            "tests/src/",
            "magazine/sync/src/",
            // Tests read these files.
            "ARCHITECTURE.md",
            "slab/book/src/c.md",
        ] {
            assert!(counted.iter().any(|name| name.starts_with(start)), "{start}");
            assert!(!others.iter().any(|name| name.starts_with(start)), "{start}");
        }
        assert!(others.contains(&"README.md") && others.contains(&"tests/mutants.toml"));
        assert!(compiler().unwrap().starts_with("rustc "));
        assert_ne!(build(counts).unwrap(), build(|name| counts(name) && name != "Cargo.toml").unwrap());
    }
}
