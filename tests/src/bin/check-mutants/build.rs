//! The mutated workspace: a copy of the sources that contains all mutants, and its builds.

use crate::Args;
use crate::plan::Subjects;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;
use uslab_tests::jobs::errors;
use uslab_tests::mutate::{Mutant, MutatedSource, SWITCH, SwitchedSource};
use uslab_tests::share::{compiler, counts, tracked_files};
use uslab_tests::tree::mirror;
use uslab_tests::{cargo_command_in, workspace};

/// Adds [`SWITCH`] to the text of a crate's root module. The switch uses the standard library and calls the C library.
fn add_mutant_switch(root: &str) -> String {
    let without_std = root.contains("\n#![no_std]");
    let extern_std = if without_std { "extern crate std;\n" } else { "" };
    root.replace("#![forbid(unsafe_code)]", "") + extern_std + SWITCH
}

/// A copy of the workspace that contains all mutants.
pub(crate) struct Tree {
    pub(crate) of: Subjects,
    /// The folder with a copy of each file that git tracks.
    pub(crate) copy: PathBuf,
    pub(crate) files: BTreeMap<String, (MutatedSource, SwitchedSource)>,
    /// The mutants that do not compile.
    pub(crate) left_out: HashSet<u32>,
}

/// Creates the mutants of all files.
pub(crate) fn sources(args: &Args, mut of: Subjects, files: &[String]) -> anyhow::Result<Tree> {
    let (mut mutated, mut first) = (BTreeMap::new(), 0);
    for file in files {
        let text = fs::read_to_string(of.root.join(file)).with_context(|| file.clone())?;
        ensure!(
            of.packages.iter().any(|of| of.changes_file(file)),
            "{file}: expected a file of one of the crates {:?}",
            of.packages.iter().map(|of| &of.name).collect::<Vec<_>>()
        );
        let made = MutatedSource::new(file, &text, first, "crate::mutant_switch::on")?;
        first += u32::try_from(made.mutants.len())?;
        let switched = made.with_mutant_switches(|_| true);
        mutated.insert(file.clone(), (made, switched));
    }
    // Models of other packages cover little of a file. Models of other packages are not built if the build would take
    // most of the time.
    if args.models && !args.files.is_empty() {
        of.packages.retain(|package| {
            let judged = |file: &String| package.judges.is_some_and(|of| file.starts_with(of));
            files.iter().any(|file| package.changes_file(file) || judged(file))
        });
    }
    let copy = workspace().join(if of.own { "target/mutants/tree" } else { "target/mutants/others/tree" });
    Ok(Tree { of, copy, files: mutated, left_out: HashSet::new() })
}

/// The `RUSTFLAGS` for builds that contain no models. With these flags, a build omits dependencies under
/// `not(uslab_mutants)` in the manifest of the integration tests.
const PLAIN_FLAGS: &str = "--cap-lints allow --cfg uslab_mutants";

impl Tree {
    /// Copies all files that git tracks, with the mutants in them. Returns a hash of the compiler and of all files that
    /// can affect test results. The parameter `instead` replaces the text of one file.
    pub(crate) fn write(&self, instead: Option<(&str, &str)>) -> anyhow::Result<u64> {
        let (mut hasher, mut files) = (DefaultHasher::new(), BTreeMap::new());
        compiler()?.hash(&mut hasher);
        for path in tracked_files(&self.of.top)? {
            // Deleted files are still listed.
            let Ok(text) = fs::read(self.of.top.join(&path)) else { continue };
            // The path as cargo prints it.
            let name = Path::new(&path).strip_prefix(self.of.below()).ok().and_then(Path::to_str);
            let name = name.unwrap_or_default();
            if counts(&path) {
                (&path, &text).hash(&mut hasher);
            }
            let switch = self.of.packages.iter().any(|package| package.lib == name);
            let mutated = self.files.get(name).map(|(_, switched)| switched.text.as_bytes().to_vec());
            let mut text = mutated.unwrap_or(text);
            if let Some((_, instead)) = instead.filter(|(file, _)| *file == name) {
                text = instead.as_bytes().to_vec();
            }
            if switch {
                text = add_mutant_switch(&String::from_utf8(text).with_context(|| name.to_owned())?)
                    .into_bytes();
            }
            files.insert(path.into(), text);
        }
        mirror(&self.copy, &files)?;
        Ok(hasher.finish())
    }

    /// Returns the cargo arguments that select the libraries.
    pub(crate) fn libraries(&self) -> Vec<&str> {
        let mut targets = vec!["--lib"];
        self.of.packages.iter().for_each(|package| targets.extend(["-p", &package.name]));
        targets
    }

    /// Runs cargo in the copy; adds `flags` if the build contains models.
    pub(crate) fn cargo(&self, command: &[&str], targets: &[&str], flags: &str) -> anyhow::Result<Output> {
        let mut cargo = cargo_command_in(&self.copy.join(self.of.below()));
        // The dependencies of the models are already built there.
        let units = workspace().join("target/mutants/units");
        cargo
            .args(command)
            .args(targets)
            .args(["--message-format=json", "--target-dir"])
            .arg(if flags.is_empty() { &units } else { &self.of.target })
            .env("RUSTFLAGS", if flags.is_empty() { PLAIN_FLAGS } else { flags })
            // Cargo distinguishes a crate from the same crate in a copied workspace only by the compiler's wrapper.
            // Without a wrapper, the next run of the models would use the copy's artefacts.
            .env("RUSTC_WORKSPACE_WRAPPER", "/usr/bin/env")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .output()
            .context("cargo")
    }

    /// Builds the copy, and removes mutants that do not compile, until the build succeeds.
    pub(crate) fn settle(
        &mut self,
        command: &[&str],
        targets: &[&str],
        flags: &str,
    ) -> anyhow::Result<String> {
        loop {
            let output = self.cargo(command, targets, flags)?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                return Ok(said);
            }
            let (mut blamed, mut rest) = (BTreeSet::new(), vec![]);
            for message in errors(&said) {
                let of = self.mutants_of_error(&message);
                if of.is_empty() {
                    rest.push(message["rendered"].as_str().unwrap_or_default().to_owned());
                }
                blamed.extend(of);
            }
            if blamed.is_empty() {
                let cargo = String::from_utf8_lossy(&output.stderr);
                bail!("the mutants do not build:\n{}{}", rest.join("\n"), cargo.trim_end());
            }
            self.left_out.extend(blamed);
            for (made, switched) in self.files.values_mut() {
                *switched = made.with_mutant_switches(|mutant| !self.left_out.contains(&mutant));
            }
            self.write(None)?;
        }
    }

    /// Returns the mutants that an error message refers to.
    pub(crate) fn mutants_of_error(&self, message: &Value) -> Vec<u32> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut spans = list(&message["spans"]);
        spans.sort_by_key(|span| span["is_primary"] != true);
        for child in list(&message["children"]) {
            spans.extend(list(&child["spans"]));
        }
        for (name, (_, switched)) in &self.files {
            let place = |span: &Value| -> Option<Range<usize>> {
                let at = |field: &str| usize::try_from(span[field].as_u64()?).ok();
                (span["file_name"] == name.as_str()).then_some(at("byte_start")?..at("byte_end")?)
            };
            let places: Vec<_> = spans.iter().filter_map(place).collect();
            let blamed = switched.mutants_at_places(&places);
            if !blamed.is_empty() {
                return blamed;
            }
        }
        vec![]
    }

    pub(crate) fn mutants(&self) -> impl Iterator<Item = &Mutant> {
        let all = self.files.values().flat_map(|(made, _)| &made.mutants);
        all.filter(|mutant| !self.left_out.contains(&mutant.number))
    }
}
