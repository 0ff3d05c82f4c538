//! Selects the mutants to judge, by packages, files, known equivalent mutants, and command line arguments.

use crate::Args;
use crate::assembly;
use crate::report::Verdict;
use crate::run::parse_stored_verdicts;
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use uslab_sync::shard::Shard;
use uslab_tests::imports::Imports;
use uslab_tests::models::Subject;
use uslab_tests::mutate::{Mutant, RULES};
use uslab_tests::workspace;

/// An entry of `tests/mutants.toml` about mutants that have no observable effect.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EquivalentMutants {
    pub(crate) file: String,
    pub(crate) function: String,
    /// The rule that makes the mutants of this entry; `None` matches any rule.
    pub(crate) rule: Option<String>,
    /// A part of the text of the change; `None` matches all changes in the function.
    pub(crate) change: Option<String>,
    pub(crate) reason: String,
}

impl EquivalentMutants {
    pub(crate) fn fits(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.function == mutant.function
            && self.rule.as_ref().is_none_or(|rule| *rule == mutant.rule)
            && self.change.as_ref().is_none_or(|change| mutant.change.contains(change))
    }
}

/// The contents of `tests/mutants.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) files: Vec<String>,
    /// The rules whose mutants are judged by default.
    pub(crate) rules: Vec<String>,
    /// The largest accepted percentage of mutants that are neither detected nor explained.
    pub(crate) most_live: f64,
    /// The largest accepted percentage of mutants that only a floor detects (a model that explores too few executions).
    pub(crate) most_by_floors: f64,
    /// The largest accepted percentage of mutants whose only effect is that tests run out of time.
    pub(crate) most_by_time: f64,
    #[serde(default)]
    pub(crate) equivalent: Vec<EquivalentMutants>,
}

pub(crate) fn config(args: &Args, subjects: &Subjects) -> anyhow::Result<Config> {
    let path = subjects.root.join("tests/mutants.toml");
    let shown = || path.display().to_string();
    let mut config: Config = if subjects.own || path.exists() {
        toml::from_str(&fs::read_to_string(&path).with_context(shown)?).with_context(shown)?
    } else {
        Config {
            files: subjects.files()?,
            rules: RULES.map(str::to_owned).into(),
            most_live: 3.0,
            most_by_floors: 0.0,
            most_by_time: 5.0,
            equivalent: vec![],
        }
    };
    for of in &config.equivalent {
        let place = format!("{} {}", of.file, of.function);
        ensure!(!of.reason.trim().is_empty(), "{}: {place}: no reason is given", shown());
        let rule = of.rule.as_deref().unwrap_or(RULES[0]);
        let (rules, known) = if assembly::files().any(|file| file == of.file) {
            (&assembly::RULES[..], true)
        } else {
            (&RULES[..], config.files.contains(&of.file))
        };
        let any = of.rule.is_none();
        ensure!(
            any || rules.contains(&rule),
            "{}: {place}: unknown rule `{rule}`; expected one of {rules:?}",
            shown()
        );
        ensure!(known, "{}: {place}: the file is not in `files`", shown());
    }
    for rule in &config.rules {
        ensure!(RULES.contains(&&**rule), "{}: unknown rule `{rule}`; expected one of {RULES:?}", shown());
    }
    if !args.files.is_empty() {
        config.files.clone_from(&args.files);
    }
    Ok(config)
}

/// A package to mutate; its tests judge the mutants.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The path of the package's root module.
    pub(crate) lib: String,
    /// The folder of the crate with the package's models, if this is a different crate.
    pub(crate) judges: Option<&'static str>,
}

impl Package {
    pub(crate) fn changes_file(&self, file: &str) -> bool {
        Path::new(file).starts_with(Path::new(&self.lib).parent().unwrap_or(Path::new("")))
    }
}

/// The packages to mutate, and the workspace that contains them.
pub(crate) struct Subjects {
    /// The workspace's root.
    pub(crate) root: PathBuf,
    /// The root of the git repository.
    pub(crate) top: PathBuf,
    pub(crate) packages: Vec<Package>,
    /// The directory in which the models are built.
    pub(crate) target: PathBuf,
    /// `true` if the packages belong to this workspace.
    pub(crate) own: bool,
}

/// The packages of this workspace.
pub(crate) const PACKAGES: [(&str, &str, Option<&str>); 5] = [
    ("uslab-magazine-spec", "magazine/spec/src/lib.rs", None),
    ("uslab-magazine", "magazine/src/lib.rs", None),
    ("uslab-buddy", "buddy/src/lib.rs", None),
    ("uslab-handle", "slab/handle/src/lib.rs", None),
    ("uslab", "slab/src/lib.rs", Some("slab/handle/src")),
];

impl Subjects {
    pub(crate) fn find(args: &Args) -> anyhow::Result<Self> {
        let Some(manifest) = &args.manifest_path else {
            let package = |(name, lib, judges): (&str, &str, _)| Package {
                name: name.to_owned(),
                lib: lib.to_owned(),
                judges,
            };
            let packages = PACKAGES.map(package).into();
            let (root, target) = (workspace().to_owned(), workspace().join("target/loom"));
            return Ok(Self { top: root.clone(), root, packages, target, own: true });
        };
        let found = Subject::find(Some(manifest), &[], "loom")?;
        let first = found.first().context("no package of the workspace has a library")?;
        let package = |of: &Subject| Package {
            name: of.package.clone(),
            lib: of.lib.display().to_string(),
            judges: None,
        };
        let top =
            Command::new("git").args(["rev-parse", "--show-toplevel"]).current_dir(&first.root).output();
        let top = top.context("git")?;
        ensure!(top.status.success(), "{}: no file is in git", first.root.display());
        let top = PathBuf::from(String::from_utf8_lossy(&top.stdout).trim_end());
        let (root, target) = (first.root.clone(), first.target.clone());
        Ok(Self { root, top, packages: found.iter().map(package).collect(), target, own: false })
    }

    /// Returns the shipping files of all packages, which are the modules that a build without tests can contain.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let mut files = BTreeSet::new();
        for package in &self.packages {
            let drawn = Imports::draw(&self.root.join(&package.lib))?;
            let names = drawn.paths().filter_map(|path| path.strip_prefix(&self.root).ok());
            files.extend(names.map(|name| name.display().to_string()));
        }
        Ok(files.into_iter().collect())
    }

    /// Returns the path of the workspace, relative to the repository.
    pub(crate) fn below(&self) -> &Path {
        self.root.strip_prefix(&self.top).unwrap_or(Path::new(""))
    }
}

/// Returns the selected mutants in random order, so that the mutants judged so far are always a random sample.
pub(crate) fn select_mutants<'m>(
    args: &Args,
    config: &Config,
    all: impl Iterator<Item = &'m Mutant>,
) -> Vec<Mutant> {
    let rules = if args.rule.is_empty() { &config.rules } else { &args.rule };
    let is_requested = |mutant: &&Mutant| args.assembly || rules.contains(&mutant.rule);
    let mut chosen: Vec<Mutant> = all.filter(is_requested).cloned().collect();
    if args.again {
        let (lived, argued) =
            (undetected_mutants(), |mutant: &Mutant| config.equivalent.iter().any(|of| of.fits(mutant)));
        chosen.retain(|mutant| lived.contains(&without_place(&mutant.to_string())) && !argued(mutant));
    }
    let rank = |mutant: &Mutant| {
        let mut hasher = DefaultHasher::new();
        (args.seed, mutant.number).hash(&mut hasher);
        hasher.finish()
    };
    chosen.sort_by_key(rank);
    chosen.truncate(args.sample.unwrap_or(usize::MAX));
    chosen
}

/// Returns the mutants that stored runs did not detect, or that only a floor detected.
fn undetected_mutants() -> HashSet<String> {
    let kept = fs::read_dir(workspace().join("target/mutants")).into_iter().flatten().flatten();
    let kept = kept.filter(|file| file.file_name().to_string_lossy().contains(".all."));
    let texts = kept.filter_map(|file| fs::read_to_string(file.path()).ok());
    let mut lived = HashSet::new();
    for (mutant, verdict) in texts.flat_map(|text| parse_stored_verdicts(&text).collect::<Vec<_>>()) {
        if matches!(verdict, Verdict::Lives | Verdict::Unreached | Verdict::Floor { .. }) {
            lived.insert(without_place(&mutant));
        }
    }
    lived
}

/// Returns a description of a mutant without its line number, because line numbers change when the sources change.
fn without_place(mutant: &str) -> String {
    let (place, change) = mutant.split_once(' ').unwrap_or((mutant, ""));
    format!("{} {change}", place.split(':').next().unwrap_or(place))
}

pub(crate) fn shard_of_mutants(chosen: &[Mutant], shard: Option<Shard>) -> &[Mutant] {
    let items = shard.unwrap_or(Shard::WHOLE_SHARD).items(chosen.len() as u64);
    &chosen[items.start as usize..items.end as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn mutant_is_recognized_after_its_line_moves() {
        let of = |place: &str| format!("slab/src/registry.rs:{place} remove: compare: a < b -> a <= b");
        assert_eq!(without_place(&of("12:5")), without_place(&of("17:9")));
        let line = serde_json::to_string(&(of("12:5"), Verdict::Lives)).unwrap();
        let read: Vec<_> = parse_stored_verdicts(&format!("{line}\nand what was cut o")).collect();
        assert_eq!(read, [(of("12:5"), Verdict::Lives)]);
    }

    /// Regression test: a reason that named a moved file ended the program.
    #[test]
    fn each_mutant_reason_names_an_existing_mutant() {
        let args = Args::parse_from(["check-mutants"]);
        let subjects = Subjects::find(&args).unwrap();
        let config = config(&args, &subjects).unwrap();
        let tree = crate::sources(&args, subjects, &config.files).unwrap();
        let assembly = assembly::assembly_mutants().unwrap();
        let mutants = || tree.mutants().chain(assembly.iter().map(|of| &of.mutant));
        let stale: Vec<&EquivalentMutants> =
            config.equivalent.iter().filter(|of| !mutants().any(|mutant| of.fits(mutant))).collect();
        assert!(stale.is_empty(), "tests/mutants.toml: these entries match no mutant: {stale:#?}");
    }

    #[test]
    fn mutation_run_skips_test_modules() {
        let manifest = workspace().join("tests/sync_example/Cargo.toml");
        let args = Args::parse_from(["check-mutants", "--manifest-path", manifest.to_str().unwrap()]);
        let subjects = Subjects::find(&args).unwrap();
        assert!(subjects.root.join("src/checks.rs").exists(), "the file must have a module of tests");
        assert_eq!(config(&args, &subjects).unwrap().files, ["src/lib.rs"]);
    }
}
