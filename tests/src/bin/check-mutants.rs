//! `cargo check-mutants`: the meaning of core files is changed in one place at a time, and some test or model must fail.
//!
//! [`mutate`](uslab_tests::mutate) makes the mutants by rule, all in one copy of the workspace; the variable `MUTANT` switches one on.
//! So there are two builds, one of the unit and property tests and one of the loom models, however many mutants there are.
//! Mutants that do not compile are left out until the rest does. Every test then runs once, to see which mutants it reaches
//! and how long it takes. A mutant runs through what reaches it, cheapest first, until something fails.
//!
//! Tests are cheaper than models, so most mutants fall to a test. What models would notice alone is another question, and
//! `--models` asks it: there is one build then, and no test that is not a model.

use anyhow::{Context, bail, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use uslab_sync::shard::{Shard, Share};
use uslab_tests::jobs::{run_within, side_by_side};
use uslab_tests::models::{Subject, loom_flags, rows};
use uslab_tests::mutate::{Mutant, Mutated, RULES, SWITCH, Switched};
use uslab_tests::share::{ShareArgs, tracked};
use uslab_tests::{cargo_in, workspace};

/// Change the meaning of core files, one place at a time, and expect a test or a model to fail.
///
/// A mutant is killed by a model's assertion, by a test, or only by a model that explores too little; one that makes a test run
/// for ever is out of time. What nothing notices lives: it should stand in tests/mutants.toml, with the reason why nothing
/// could notice it. Verdicts are kept in target/mutants for each state of the sources, so that a run that was ended goes on.
///
/// Environment: BOUND, the pre-emption bound of all models (default 1). Exit codes: 0 of those that nothing notices, and of those that only a floor notices, no more are unexplained than
/// tests/mutants.toml allows; of a sample, no more with a confidence of 95 %. 1 there are more, or something else is wrong, 2 wrong
/// usage, a bad tests/mutants.toml, or a share that is missing or of another build.
#[derive(Debug, Parser)]
#[command(name = "check-mutants", max_term_width = 100)]
struct Args {
    /// The files, relative to the workspace. Default: those that tests/mutants.toml names, or all of the libraries that are built by default
    /// in another workspace without such a file.
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// The manifest of another workspace, which git knows. Its tests and models are those of its libraries.
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// Print one JSON object in place of the text.
    #[arg(long)]
    json: bool,
    /// Print the mutants, those that would not compile included, and build nothing.
    #[arg(long)]
    list: bool,
    /// Run the models alone, and no other test. What they do not notice is listed, and is no fault.
    #[arg(long)]
    models: bool,
    /// Begin no mutant after so many minutes: the next run goes on with the others.
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    minutes: Option<u32>,
    /// Only so many mutants, drawn at random.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// What is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only mutants of these rules. Default: those that tests/mutants.toml names.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = RULES)]
    rule: Vec<String>,
    #[command(flatten)]
    share: ShareArgs,
}

/// What its shares are of.
const WHAT: &str = "check-mutants";

/// A mutant that changes nothing that could be noticed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equivalent {
    file: String,
    function: String,
    /// All rules if there is none.
    rule: Option<String>,
    /// A piece of the change; all changes of the function if there is none.
    change: Option<String>,
    reason: String,
}

impl Equivalent {
    fn fits(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.function == mutant.function
            && self.rule.as_ref().is_none_or(|rule| *rule == mutant.rule)
            && self.change.as_ref().is_none_or(|change| mutant.change.contains(change))
    }
}

/// `tests/mutants.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    files: Vec<String>,
    /// Rules whose mutants are judged.
    rules: Vec<String>,
    /// Of 100 mutants, so many may be neither noticed nor explained.
    most_live: f64,
    /// And so many of 100 be noticed by a floor alone.
    most_by_floors: f64,
    #[serde(default)]
    equivalent: Vec<Equivalent>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// A model failed.
    Model { name: String, message: String },
    /// A test failed.
    Test { name: String, message: String },
    /// Models explored less than they should, and nothing else failed.
    Floor { name: String },
    /// A test did not end.
    Time { name: String },
    /// Nothing failed.
    Lives,
    /// Nothing reaches it.
    Unreached,
    /// There was no time for it.
    Waits,
}

/// What is counted of verdicts, in this order.
const KINDS: [&str; 7] =
    ["by models' assertions", "by tests", "by floors only", "out of time", "live", "unreached", "wait"];

impl Verdict {
    fn kind(&self) -> usize {
        match self {
            Self::Model { .. } => 0,
            Self::Test { .. } => 1,
            Self::Floor { .. } => 2,
            Self::Time { .. } => 3,
            Self::Lives => 4,
            Self::Unreached => 5,
            Self::Waits => 6,
        }
    }
    fn noticed(&self) -> bool {
        self.kind() < 4
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Judged {
    #[serde(flatten)]
    mutant: Mutant,
    verdict: Verdict,
    /// Why nothing could notice it.
    equivalent: Option<String>,
}

/// What became of all; or a share's: that has some of the mutants, and all else is every share's.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Report {
    /// Mutants in all.
    of: usize,
    mutants: Vec<Judged>,
    /// They were drawn from more.
    sampled: bool,
    /// What did not compile.
    left_out: usize,
    /// What is wrong besides.
    wrong: Vec<String>,
    seconds: f64,
}

impl Report {
    /// Those that are judged: what is explained and what waits is not.
    fn judged(&self) -> impl Iterator<Item = &Judged> {
        self.mutants
            .iter()
            .filter(|of| of.verdict != Verdict::Waits && (of.verdict.noticed() || of.equivalent.is_none()))
    }
    /// How many of them are of that kind, and with the interval of what that says of all.
    fn share(&self, which: impl Fn(&Verdict) -> bool) -> Rate {
        let all = self.judged().count();
        Rate { of: self.judged().filter(|of| which(&of.verdict)).count(), all, sampled: self.sampled }
    }
    fn living(&self) -> Rate {
        self.share(|verdict| !verdict.noticed())
    }
    fn by_floors(&self) -> Rate {
        self.share(|verdict| matches!(verdict, Verdict::Floor { .. }))
    }
    fn counts<'m>(mutants: impl Iterator<Item = &'m Judged>) -> String {
        let mut counts = [0; KINDS.len()];
        mutants.for_each(|of| counts[of.verdict.kind()] += 1);
        let counts: Vec<String> =
            counts.iter().zip(KINDS).map(|(count, kind)| format!("{count} {kind}")).collect();
        counts.join(", ")
    }
}

/// Some of all.
#[derive(Clone, Copy, Debug)]
struct Rate {
    of: usize,
    all: usize,
    sampled: bool,
}

impl Rate {
    /// What this says of those that it was drawn from, in 100 and with a confidence of 95 % (Wilson 1927).
    fn interval(self) -> [f64; 2] {
        let (n, p) = (self.all as f64, self.of as f64 / self.all.max(1) as f64);
        if !self.sampled || self.all == 0 {
            return [100.0 * p; 2];
        }
        let z2 = 1.96_f64 * 1.96;
        let (middle, half) = (p + z2 / (2.0 * n), 1.96 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt());
        [middle - half, middle + half].map(|bound| (100.0 * bound / (1.0 + z2 / n)).clamp(0.0, 100.0))
    }
    /// Whether it is more than so many in 100, beyond what chance may do.
    fn exceeds(self, most: f64) -> bool {
        self.interval()[0] > most
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, all, sampled } = self;
        write!(f, "{of} of {all}, {:.1} %", 100.0 * *of as f64 / (*all).max(1) as f64)?;
        let [low, high] = self.interval();
        if *sampled {
            write!(f, " (of all {low:.1} to {high:.1} % with a confidence of 95 %)")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Judged { mutant, verdict, equivalent } in &self.mutants {
            match (verdict, equivalent) {
                (verdict, Some(reason)) if !verdict.noticed() && *verdict != Verdict::Waits => {
                    writeln!(f, "equivalent {mutant} | {reason}")?
                }
                (Verdict::Lives, _) => writeln!(f, "LIVES      {mutant}")?,
                (Verdict::Unreached, _) => writeln!(f, "UNREACHED  {mutant}")?,
                (Verdict::Waits, _) => {}
                (Verdict::Floor { name }, _) => writeln!(f, "floor only {mutant} | {name}")?,
                (Verdict::Time { name }, _) => writeln!(f, "time       {mutant} | {name}")?,
                _ => {}
            }
        }
        let files: BTreeSet<&String> = self.mutants.iter().map(|of| &of.mutant.file).collect();
        for file in files {
            writeln!(
                f,
                "{file}: {}",
                Self::counts(self.mutants.iter().filter(|of| of.mutant.file == *file))
            )?;
        }
        for wrong in &self.wrong {
            writeln!(f, "FAILED: {wrong}")?;
        }
        writeln!(
            f,
            "neither noticed nor explained: {}; by a floor only: {}",
            self.living(),
            self.by_floors()
        )?;
        let equivalent =
            self.mutants.iter().filter(|of| !of.verdict.noticed() && of.equivalent.is_some()).count();
        write!(
            f,
            "mutants: {} ({} did not compile): {}; of those not noticed {equivalent} are explained; {:.0} s",
            self.mutants.len(),
            self.left_out,
            Self::counts(self.mutants.iter()),
            self.seconds
        )
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let asked = Subjects::find(&args).and_then(|subjects| {
        let config = config(&args, &subjects)?;
        Ok((sources(&args, subjects, &config.files)?, config))
    });
    let (mut tree, config) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(2);
        }
    };
    let shard = match args.share.asked() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(2);
        }
    };
    if args.list {
        let chosen = chosen(&args, &config, &tree);
        share_of(&chosen, shard).iter().for_each(|mutant| println!("{} {mutant}", mutant.number));
        return ExitCode::SUCCESS;
    }
    let report = match args.share.merge.is_empty() {
        true => check(&args, &config, &mut tree, shard),
        false => merge(&args),
    };
    let report = report.map(|report| explain(&args, &config, report, shard.is_none()));
    let report = report.and_then(|report| match shard {
        None => Ok(report),
        Some(shard) => leave(&args, shard, report),
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("check-mutants: {error:#}");
            return ExitCode::from(if args.share.merge.is_empty() { 1 } else { 2 });
        }
    };
    match args.json.then(|| serde_json::to_string_pretty(&report)) {
        Some(Ok(json)) => println!("{json}"),
        _ => println!("{report}"),
    }
    // What models leave to tests is no fault.
    let few =
        !report.living().exceeds(config.most_live) && !report.by_floors().exceeds(config.most_by_floors);
    let good = report.wrong.is_empty() && (args.models || few);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn config(args: &Args, subjects: &Subjects) -> anyhow::Result<Config> {
    let path = subjects.root.join("tests/mutants.toml");
    let shown = || path.display().to_string();
    let mut config: Config = if subjects.own || path.exists() {
        toml::from_str(&fs::read_to_string(&path).with_context(shown)?).with_context(shown)?
    } else {
        let files = tracked(&subjects.root)?.into_iter();
        let files =
            files.filter(|file| file.ends_with(".rs") && subjects.packages.iter().any(|of| of.has(file)));
        Config {
            files: files.collect(),
            rules: RULES.map(str::to_owned).into(),
            most_live: 3.0,
            most_by_floors: 0.0,
            equivalent: vec![],
        }
    };
    for of in &config.equivalent {
        let place = format!("{} {}", of.file, of.function);
        ensure!(!of.reason.trim().is_empty(), "{}: {place}: no reason is given", shown());
        let rule = of.rule.as_deref().unwrap_or(RULES[0]);
        ensure!(RULES.contains(&rule), "{}: {place}: no rule `{rule}`; there are {RULES:?}", shown());
        ensure!(config.files.contains(&of.file), "{}: {place}: the file is none of `files`", shown());
    }
    for rule in &config.rules {
        ensure!(RULES.contains(&&**rule), "{}: no rule `{rule}`; there are {RULES:?}", shown());
    }
    if !args.files.is_empty() {
        config.files.clone_from(&args.files);
    }
    Ok(config)
}

/// A package that is changed, and whose tests are run.
#[derive(Clone, Debug)]
struct Package {
    name: String,
    /// Its root module.
    lib: String,
    /// Where another crate lies that its models are of.
    judges: Option<&'static str>,
}

impl Package {
    fn has(&self, file: &str) -> bool {
        Path::new(file).starts_with(Path::new(&self.lib).parent().unwrap_or(Path::new("")))
    }
}

/// Whose packages are changed.
struct Subjects {
    /// The workspace's root.
    root: PathBuf,
    /// Of all that git knows there.
    top: PathBuf,
    packages: Vec<Package>,
    /// Where its models are built.
    target: PathBuf,
    /// They are of this workspace.
    own: bool,
}

/// Those of this workspace.
const PACKAGES: [(&str, &str, Option<&str>); 4] = [
    ("uslab-magazine", "magazine/src/lib.rs", None),
    ("uslab-buddy", "buddy/src/lib.rs", None),
    ("uslab-handle", "slab/handle/src/lib.rs", None),
    ("uslab", "slab/src/lib.rs", Some("slab/handle/src")),
];

impl Subjects {
    fn find(args: &Args) -> anyhow::Result<Self> {
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
        let first = found.first().context("no package there has a library")?;
        let package = |of: &Subject| Package {
            name: of.package.clone(),
            lib: of.lib.display().to_string(),
            judges: None,
        };
        let top =
            Command::new("git").args(["rev-parse", "--show-toplevel"]).current_dir(&first.root).output();
        let top = top.context("git")?;
        ensure!(top.status.success(), "{}: git knows nothing there", first.root.display());
        let top = PathBuf::from(String::from_utf8_lossy(&top.stdout).trim_end());
        let (root, target) = (first.root.clone(), first.target.clone());
        Ok(Self { root, top, packages: found.iter().map(package).collect(), target, own: false })
    }

    /// The path of the workspace below what git knows.
    fn below(&self) -> &Path {
        self.root.strip_prefix(&self.top).unwrap_or(Path::new(""))
    }
}

/// The mutated workspace.
struct Tree {
    of: Subjects,
    /// The copy of what git knows.
    copy: PathBuf,
    files: BTreeMap<String, (Mutated, Switched)>,
    /// Mutants that do not compile.
    left_out: HashSet<u32>,
}

/// The mutants of all files.
fn sources(args: &Args, mut of: Subjects, files: &[String]) -> anyhow::Result<Tree> {
    let (mut mutated, mut first) = (BTreeMap::new(), 0);
    for file in files {
        let text = fs::read_to_string(of.root.join(file)).with_context(|| file.clone())?;
        ensure!(
            of.packages.iter().any(|of| of.has(file)),
            "{file}: expected a file of one of the crates {:?}",
            of.packages.iter().map(|of| &of.name).collect::<Vec<_>>()
        );
        let made = Mutated::new(file, &text, first, "crate::mutant_switch::on")?;
        first += u32::try_from(made.mutants.len())?;
        let switched = made.switched(|_| true);
        mutated.insert(file.clone(), (made, switched));
    }
    // Models of other packages see little of a file, and are not built where that would be most of the time.
    if args.models && !args.files.is_empty() {
        of.packages.retain(|package| {
            let judged = |file: &String| package.judges.is_some_and(|of| file.starts_with(of));
            files.iter().any(|file| package.has(file) || judged(file))
        });
    }
    let copy = workspace().join(if of.own { "target/mutants/tree" } else { "target/mutants/others/tree" });
    Ok(Tree { of, copy, files: mutated, left_out: HashSet::new() })
}

/// Writes a file, unless it is there already: what did not change is not built again.
fn put(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

impl Tree {
    /// A copy of all that git knows, with the mutants in it. Returns a hash of the sources.
    fn write(&self) -> anyhow::Result<u64> {
        let mut hasher = DefaultHasher::new();
        for path in tracked(&self.of.top)? {
            // What is deleted is listed still.
            let Ok(text) = fs::read(self.of.top.join(&path)) else { continue };
            // As cargo names it.
            let name = Path::new(&path).strip_prefix(self.of.below()).ok().and_then(Path::to_str);
            let name = name.unwrap_or_default();
            // What is changed, and the tests that judge: those of the same crates, and of the whole.
            let top = name.split('/').next();
            let judges = ["tests/fork/", "tests/slab/", "tests/kit/"].iter().any(|of| name.starts_with(of));
            if name == "Cargo.lock"
                || judges
                || self.of.packages.iter().any(|of| top == of.lib.split('/').next())
            {
                (name, &text).hash(&mut hasher);
            }
            let switch = self.of.packages.iter().any(|package| package.lib == name);
            let mutated = self.files.get(name).map(|(_, switched)| switched.text.as_bytes().to_vec());
            let mut text = mutated.unwrap_or(text);
            if switch {
                text.extend_from_slice(SWITCH.as_bytes());
            }
            put(&self.copy.join(&path), &text)?;
        }
        Ok(hasher.finish())
    }

    /// The libraries, as cargo is told them.
    fn libraries(&self) -> Vec<&str> {
        let mut targets = vec!["--lib"];
        self.of.packages.iter().for_each(|package| targets.extend(["-p", &package.name]));
        targets
    }

    /// Leaves out what does not compile, until all else does.
    fn settle(&mut self, command: &[&str], targets: &[&str], flags: &str) -> anyhow::Result<String> {
        loop {
            let mut cargo = cargo_in(&self.copy.join(self.of.below()));
            // What the models depend on is built there already.
            let units = workspace().join("target/mutants/units");
            let target = if flags.is_empty() { &units } else { &self.of.target };
            cargo.args(command).args(targets);
            cargo.args(["--message-format=json", "--target-dir"]).arg(target);
            cargo
                .env("RUSTFLAGS", if flags.is_empty() { "--cap-lints allow" } else { flags })
                .env("CARGO_PROFILE_DEV_DEBUG", "false")
                .stderr(Stdio::null());
            let output = cargo.output().context("cargo")?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                return Ok(said);
            }
            let (mut blamed, mut rest) = (BTreeSet::new(), vec![]);
            for line in said.lines() {
                let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
                let message = &line["message"];
                if line["reason"] != "compiler-message" || message["level"] != "error" {
                    continue;
                }
                let of = self.blamed(message);
                if of.is_empty() {
                    rest.push(message["rendered"].as_str().unwrap_or_default().to_owned());
                }
                blamed.extend(of);
            }
            if blamed.is_empty() {
                bail!("the mutants do not build:\n{}", rest.join("\n"));
            }
            self.left_out.extend(blamed);
            for (made, switched) in self.files.values_mut() {
                *switched = made.switched(|mutant| !self.left_out.contains(&mutant));
            }
            self.write()?;
        }
    }

    /// The mutants that an error is about.
    fn blamed(&self, message: &Value) -> Vec<u32> {
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
            let blamed = switched.blamed(&places);
            if !blamed.is_empty() {
                return blamed;
            }
        }
        vec![]
    }

    fn mutants(&self) -> impl Iterator<Item = &Mutant> {
        let all = self.files.values().flat_map(|(made, _)| &made.mutants);
        all.filter(|mutant| !self.left_out.contains(&mutant.number))
    }
}

/// A built program of tests.
struct Program {
    path: PathBuf,
    /// Where its package lies.
    folder: PathBuf,
    name: String,
    models: bool,
}

/// One test.
struct Test {
    program: usize,
    name: String,
    seconds: f64,
    reached: HashSet<u32>,
}

/// How a run of some tests ended.
enum Ended {
    Passed,
    Failed { name: String, message: String },
    OutOfTime { name: String },
}

/// The pre-emption bound of all models.
fn bound() -> String {
    std::env::var("BOUND").unwrap_or_else(|_| "1".to_owned())
}

/// What keeps a mutant from taking all memory, in KiB. (A test of 1,024 CPUs has 9 GiB of tables, most of which nobody touches.)
const MOST_KIB: u32 = 12 << 20;

impl Program {
    fn run(
        &self,
        tests: &[&str],
        variables: &[(&str, &str)],
        limit: Duration,
    ) -> anyhow::Result<(Ended, String)> {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -d {MOST_KIB}; exec \"$0\" \"$@\"")])
            .arg(&self.path)
            .args(tests)
            .args(["--exact", "--test-threads=1"])
            .args(if self.models { &["--nocapture"][..] } else { &[] })
            .current_dir(&self.folder)
            .envs([("RUST_BACKTRACE", "0"), ("STORY", "0"), ("BOUND", &bound()), ("PROPTEST_CASES", "64")])
            .envs([("PROPTEST_FAILURE_PERSISTENCE", "off"), ("PROPTEST_MAX_SHRINK_ITERS", "0")])
            .envs(variables.iter().copied());
        let (status, text) = run_within(&mut command, limit)?;
        let failed = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let current =
            text.lines().filter_map(|line| line.strip_prefix("test ")?.split(" ... ").next()).next_back();
        let name = failed.or(current).unwrap_or(tests[0]).to_owned();
        let message = || {
            let mut lines =
                text.lines().skip_while(|line| !(line.contains("panicked at ") && line.ends_with(':')));
            lines.next();
            lines.map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
        };
        let ended = match status {
            Some(status) if status.success() => Ended::Passed,
            Some(status) => Ended::Failed { name, message: message().unwrap_or_else(|| status.to_string()) },
            None if failed.is_some() => Ended::Failed { name, message: message().unwrap_or_default() },
            None => Ended::OutOfTime { name },
        };
        Ok((ended, text))
    }
}

/// Tests of the whole, each target a program by itself: they do what a library's own tests cannot.
const WHOLE: [&str; 6] = ["-p", "uslab-tests", "--test", "fork", "--test", "slab"];

/// The programs that a build named.
fn programs(said: &str, models: bool) -> Vec<Program> {
    let program = |line: &str| {
        let line: Value =
            serde_json::from_str(line).ok().filter(|line: &Value| line["profile"]["test"] == true)?;
        let folder = Path::new(line["manifest_path"].as_str()?).parent()?.to_owned();
        let name = line["target"]["name"].as_str()?.to_owned();
        Some(Program { path: line["executable"].as_str()?.into(), folder, name, models })
    };
    said.lines().filter_map(program).collect()
}

/// Tests that take longer than this many seconds are left out: it is many mutants that each runs through.
const SLOWEST: f64 = 10.0;

/// What a test is, of which each runs once.
enum Ran {
    Test(Test),
    /// It takes too long to be run for every mutant.
    Slow,
    Wrong(String),
    /// It is in a models' program and runs none.
    Nothing,
}

/// All tests, each run once with no mutant on.
fn tests(programs: &[Program], wrong: &mut Vec<String>) -> anyhow::Result<Vec<Test>> {
    let mut names = vec![];
    for (i, program) in programs.iter().enumerate() {
        let listed = Command::new(&program.path)
            .args(["--list", "--format=terse"])
            .output()
            .context("a list of tests")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        // What plants a bug fails for its own reasons, and what is ignored is run by others.
        let test = |line: &str| Some((i, line.strip_suffix(": test")?.to_owned()));
        names.extend(listed.lines().filter_map(test).filter(|(_, name)| !name.contains("planted")));
    }
    let ran = side_by_side("tests", &names, |(i, name), bar| {
        bar.set_message(name.clone());
        let file = tempfile::NamedTempFile::new().context("a temporary file")?;
        let begun = Instant::now();
        let variables = [("MUTANT_REACHED", file.path().to_str().unwrap_or_default())];
        let (ended, said) = programs[*i].run(&[name], &variables, Duration::from_secs_f64(6.0 * SLOWEST))?;
        let seconds = begun.elapsed().as_secs_f64();
        let reached = fs::read_to_string(file.path())?.lines().filter_map(|line| line.parse().ok()).collect();
        let test = Test { program: *i, name: name.clone(), seconds, reached };
        match ended {
            Ended::Passed if programs[*i].models && rows(&said, "MODEL ").next().is_none() => {
                Ok(Ran::Nothing)
            }
            Ended::Passed if seconds <= SLOWEST => Ok(Ran::Test(test)),
            Ended::Failed { message, .. } => {
                let end: Vec<_> = said.lines().rev().take(40).collect();
                let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
                let text = format!("{} {name} fails with no mutant on: {message}\n{end}", programs[*i].name);
                Ok(Ran::Wrong(text))
            }
            _ => Ok(Ran::Slow),
        }
    })?;
    let (mut tests, mut slow) = (vec![], 0);
    for ran in ran {
        match ran {
            Ran::Test(test) => tests.push(test),
            Ran::Slow => slow += 1,
            Ran::Wrong(text) => wrong.push(text),
            Ran::Nothing => {}
        }
    }
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    eprintln!("check-mutants: {} tests and models, {slow} too slow", tests.len());
    Ok(tests)
}

/// Seconds of tests that one process runs, from round to round.
const ROUNDS: [f64; 4] = [0.3, 1.0, 4.0, 1e9];

/// One mutant through all that reaches it.
fn judge(mutant: &Mutant, programs: &[Program], tests: &[Test]) -> anyhow::Result<Verdict> {
    let mut queues: Vec<Vec<&Test>> = programs.iter().map(|_| vec![]).collect();
    for test in tests.iter().filter(|test| test.reached.contains(&mutant.number)) {
        queues[test.program].push(test);
    }
    if queues.iter().all(Vec::is_empty) {
        return Ok(Verdict::Unreached);
    }
    let number = mutant.number.to_string();
    let mut floor = None;
    for most in ROUNDS {
        for (program, queue) in programs.iter().zip(&mut queues) {
            let mut seconds = 0.0;
            let enough = |test: &&Test| {
                seconds += test.seconds;
                seconds > most
            };
            let mut at = queue.iter().position(enough).unwrap_or(queue.len());
            if at == 0 && most >= 1.0 {
                at = 1.min(queue.len());
            }
            let rest = queue.split_off(at);
            let batch = std::mem::replace(queue, rest);
            let Some(_) = batch.first() else { continue };
            let expected: f64 = batch.iter().map(|test| test.seconds).sum();
            let names: Vec<&str> = batch.iter().map(|test| test.name.as_str()).collect();
            let limit = Duration::from_secs_f64(5.0 + 10.0 * expected);
            match program.run(&names, &[("MUTANT", &number)], limit)?.0 {
                Ended::Passed => {}
                Ended::Failed { name, message } if message.contains("the model collapsed") => {
                    floor = Some(Verdict::Floor { name });
                }
                Ended::Failed { name, message } if program.models => {
                    return Ok(Verdict::Model { name, message });
                }
                Ended::Failed { name, message } => return Ok(Verdict::Test { name, message }),
                // Once is enough: what runs for ever does so in others, too.
                Ended::OutOfTime { name } => return Ok(Verdict::Time { name }),
            }
        }
    }
    Ok(floor.unwrap_or(Verdict::Lives))
}

/// Those that are asked for.
fn chosen(args: &Args, config: &Config, tree: &Tree) -> Vec<Mutant> {
    let mut chosen: Vec<Mutant> = tree.mutants().cloned().collect();
    let rules = if args.rule.is_empty() { &config.rules } else { &args.rule };
    chosen.retain(|mutant| rules.contains(&mutant.rule));
    if let Some(sample) = args.sample {
        let rank = |mutant: &Mutant| {
            let mut hasher = DefaultHasher::new();
            (args.seed, mutant.number).hash(&mut hasher);
            hasher.finish()
        };
        chosen.sort_by_key(rank);
        chosen.truncate(sample);
        chosen.sort_by_key(|mutant| mutant.number);
    }
    chosen
}

/// Those of a share.
fn share_of(chosen: &[Mutant], shard: Option<Shard>) -> &[Mutant] {
    let items = shard.unwrap_or(Shard::WHOLE).items(chosen.len() as u64);
    &chosen[items.start as usize..items.end as usize]
}

/// Leaves a share in a file: a row of what all shares have, and one of each mutant.
fn leave(args: &Args, shard: Shard, report: Report) -> anyhow::Result<Report> {
    let mutants = report.mutants.iter().map(serde_json::to_string);
    let mutants = mutants.collect::<Result<Vec<_>, _>>()?;
    let common = Report { mutants: vec![], seconds: 0.0, wrong: report.wrong.clone(), ..report };
    let rows = [serde_json::to_string(&common)?].into_iter().chain(mutants).collect();
    let sample = args.sample.map(|sample| format!("sample {sample} of seed {}", args.seed));
    let models = args.models.then(|| "models".to_owned());
    let manifest = args.manifest_path.iter().map(|path| path.display().to_string());
    let words = args.files.iter().chain(&args.rule).cloned().chain(models).chain(sample).chain(manifest);
    let words: Vec<String> = words.collect();
    let path = args.share.leave(WHAT, shard, &words.join(" "), rows)?;
    eprintln!("check-mutants: share {shard}: {}", path.display());
    Ok(report)
}

/// What all shares left.
fn merge(args: &Args) -> anyhow::Result<Report> {
    let (mut whole, mut first) = (Report::default(), None);
    for Share { shard, rows, .. } in args.share.joined(WHAT)? {
        let (common, mutants) = rows.split_first().with_context(|| format!("share {shard}: no rows"))?;
        if *first.get_or_insert_with(|| common.clone()) != *common {
            bail!("share {shard} has other mutants than the first one");
        }
        let mutants = mutants.iter().map(|row| serde_json::from_str(row)).collect::<Result<Vec<_>, _>>()?;
        whole.mutants.extend::<Vec<Judged>>(mutants);
    }
    let common: Report = serde_json::from_str(&first.unwrap_or_default())?;
    if whole.mutants.len() != common.of {
        bail!("the shares have {} mutants, and there are {}", whole.mutants.len(), common.of);
    }
    Ok(Report { mutants: whole.mutants, ..common })
}

/// Why what was not noticed need not be; and, where `all` shares are there, reasons that nothing needs.
fn explain(args: &Args, config: &Config, mut report: Report, all: bool) -> Report {
    let mut used = vec![false; config.equivalent.len()];
    for Judged { mutant, verdict, equivalent } in &mut report.mutants {
        let reason = config.equivalent.iter().zip(&mut used).find(|(of, _)| of.fits(mutant));
        *equivalent = reason.map(|(of, used)| {
            *used |= !verdict.noticed() && *verdict != Verdict::Waits;
            of.reason.clone()
        });
    }
    let waits = report.mutants.iter().any(|of| of.verdict == Verdict::Waits);
    let whole = all
        && !waits
        && !args.models
        && args.files.is_empty()
        && args.sample.is_none()
        && args.rule.is_empty();
    for of in config.equivalent.iter().zip(used).filter(|(_, used)| whole && !used).map(|(of, _)| of) {
        report.wrong.push(format!(
            "tests/mutants.toml: {} {} {:?}: all that it fits is noticed",
            of.file, of.function, of.change
        ));
    }
    report
}

fn check(args: &Args, config: &Config, tree: &mut Tree, shard: Option<Shard>) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let sources = tree.write()?;
    let libraries: Vec<String> = tree.libraries().into_iter().map(str::to_owned).collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    let loom = loom_flags();
    if !args.models {
        tree.settle(&["check", "--profile", "dev"], &libraries, "")?;
    }
    tree.settle(&["check", "--profile", "loom"], &libraries, &loom)?;
    let models = tree.settle(&["test", "--no-run", "--profile", "loom"], &libraries, &loom)?;
    let mut built = vec![(models, true)];
    if !args.models {
        built.push((tree.settle(&["test", "--no-run", "--profile", "dev"], &libraries, "")?, false));
        if tree.of.own {
            built.push((tree.settle(&["test", "--no-run", "--profile", "dev"], &WHOLE, "")?, false));
        }
        // What is cheaper comes first.
        built.rotate_left(1);
    }
    let chosen = chosen(args, config, tree);
    let ours = share_of(&chosen, shard);
    eprintln!(
        "check-mutants: {} mutants, {} do not compile, {:.0} s",
        ours.len(),
        tree.left_out.len(),
        begun.elapsed().as_secs_f64()
    );

    let programs: Vec<Program> = built.iter().flat_map(|(said, models)| programs(said, *models)).collect();
    let whole = WHOLE.iter().filter(|word| **word == "--test" && tree.of.own).count();
    let packages = tree.of.packages.len();
    let expected = if args.models { packages } else { 2 * packages + whole };
    ensure!(programs.len() == expected, "cargo names {} test programs, and not {expected}", programs.len());
    let mut wrong = vec![];
    let tests = tests(&programs, &mut wrong)?;
    eprintln!("check-mutants: what reaches what, {:.0} s", begun.elapsed().as_secs_f64());

    let kept = Kept::open(sources, args.models)?;
    let end = args.minutes.map(|minutes| begun + Duration::from_secs(60 * u64::from(minutes)));
    let verdicts = side_by_side("mutants", ours, |mutant, bar| {
        bar.set_message(mutant.to_string());
        match kept.verdict(mutant) {
            Some(verdict) => Ok(verdict),
            None if end.is_some_and(|end| Instant::now() >= end) => Ok(Verdict::Waits),
            None => kept.keep(mutant, judge(mutant, &programs, &tests)?),
        }
    })?;
    let judged = ours.iter().zip(verdicts);
    let judged = judged.map(|(mutant, verdict)| Judged { mutant: mutant.clone(), verdict, equivalent: None });
    Ok(Report {
        of: chosen.len(),
        sampled: args.sample.is_some(),
        mutants: judged.collect(),
        left_out: tree.left_out.len(),
        wrong,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Verdicts of runs that were ended, of the same sources and the same tests.
struct Kept {
    known: HashMap<String, Verdict>,
    file: fs::File,
}

impl Kept {
    fn open(sources: u64, models: bool) -> anyhow::Result<Self> {
        let tests = if models { "models" } else { "all" };
        let path = format!("target/mutants/verdicts.{sources:016x}.{tests}.bound-{}", bound());
        let path = workspace().join(path);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let known = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self { known, file: file.with_context(|| path.display().to_string())? })
    }
    fn verdict(&self, mutant: &Mutant) -> Option<Verdict> {
        self.known.get(&mutant.to_string()).cloned()
    }
    fn keep(&self, mutant: &Mutant, verdict: Verdict) -> anyhow::Result<Verdict> {
        let line = serde_json::to_string(&(mutant.to_string(), &verdict))?;
        // At once: it is one line of several threads.
        (&self.file).write_all(format!("{line}\n").as_bytes())?;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(verdict: Verdict, equivalent: bool) -> Judged {
        let mutant = Mutant {
            number: 0,
            file: "a.rs".to_owned(),
            line: 1,
            column: 1,
            function: "f".to_owned(),
            rule: "compare".to_owned(),
            change: "a < b -> a <= b".to_owned(),
        };
        Judged { mutant, verdict, equivalent: equivalent.then(|| "it is".to_owned()) }
    }

    #[test]
    fn what_is_explained_or_waits_is_not_judged() {
        let floor = || Verdict::Floor { name: "m".to_owned() };
        let mutants = vec![
            judged(Verdict::Lives, false),
            judged(Verdict::Lives, true),
            judged(Verdict::Waits, false),
            judged(Verdict::Unreached, false),
            judged(floor(), false),
            judged(Verdict::Time { name: "m".to_owned() }, true),
        ];
        let report = Report { mutants, ..Report::default() };
        let living = report.living();
        assert_eq!((living.of, living.all), (2, 4));
        assert_eq!((report.by_floors().of, living.interval()), (1, [50.0; 2]));
    }

    #[test]
    fn a_sample_says_more_the_larger_it_is() {
        let rate = |of, all, sampled| Rate { of, all, sampled };
        // As tables of Wilson's interval have them.
        assert_eq!(
            rate(1, 10, true).to_string(),
            "1 of 10, 10.0 % (of all 1.8 to 40.4 % with a confidence of 95 %)"
        );
        assert_eq!(
            rate(0, 100, true).to_string(),
            "0 of 100, 0.0 % (of all 0.0 to 3.7 % with a confidence of 95 %)"
        );
        assert!(!rate(1, 20, true).exceeds(3.0) && rate(30, 200, true).exceeds(3.0));
        assert!(rate(4, 100, false).exceeds(3.0) && !rate(3, 100, false).exceeds(3.0));
        assert!(!rate(0, 0, true).exceeds(0.0));
    }

    #[test]
    fn shares_of_mutants_are_put_together_again() {
        let folder = tempfile::tempdir().unwrap();
        let whole: Vec<Judged> = (0..7)
            .map(|number| {
                let mut of =
                    judged(Verdict::Model { name: "m".to_owned(), message: "it fails".to_owned() }, false);
                of.mutant.number = number;
                of
            })
            .collect();
        let files: Vec<PathBuf> = (0..3)
            .map(|index| {
                let file = folder.path().join(format!("{index}"));
                let args =
                    ["check-mutants", "--shard", &format!("{index}/3"), "--rows", file.to_str().unwrap()];
                let args = Args::parse_from(args);
                let shard = args.share.asked().unwrap().unwrap();
                let items = shard.items(7);
                let mutants = whole[items.start as usize..items.end as usize].iter();
                let mutants = mutants.map(|of| Judged {
                    mutant: of.mutant.clone(),
                    verdict: of.verdict.clone(),
                    equivalent: None,
                });
                let report = Report { of: 7, left_out: 5, mutants: mutants.collect(), ..Report::default() };
                leave(&args, shard, report).unwrap();
                file
            })
            .collect();
        let merged = |files: &[PathBuf]| {
            let files = files.iter().map(|file| file.to_str().unwrap());
            merge(&Args::parse_from(["check-mutants", "--merge"].into_iter().chain(files)))
        };
        let report = merged(&files).unwrap();
        assert_eq!(
            report.mutants.iter().map(|of| of.mutant.number).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6]
        );
        assert_eq!((report.of, report.left_out), (7, 5));
        let error = merged(&files[..2]).unwrap_err().to_string();
        assert!(error.contains("share 2/3 of check-mutants is missing"), "{error}");
    }
}
