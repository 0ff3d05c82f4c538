//! The command `cargo check-orderings` weakens every memory ordering of a crate, one at a time. For each
//! weakened ordering, a model must fail.
//!
//! One build is enough for all mutants, because `uslab-sync`'s loom backend reads the mutant from the environment. All
//! models first run with one pre-emption, to find out which ordering sites each model reaches. For each mutant, the
//! models that reach its site then run until one fails: cheapest models first, with one pre-emption, and then with the
//! bound of each model.
//!
//! The check shows that a model *detects* each weaker ordering, which means that at least one checked property needs
//! the ordering. The check does not show that an ordering is strong enough, because the models themselves show this.

use anyhow::{Context, bail};
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uslab_sync::shard::{Shard, Share};
use uslab_tests::claims::{Runner, properties};
use uslab_tests::jobs::side_by_side;
use uslab_tests::models::{Outcome, Subject, Test, build};
use uslab_tests::share::ShardArgs;
use uslab_tests::source::{Build, Ordering, Site, Sources};
use uslab_tests::waiver::Waiver;

/// Weaken every memory ordering of a crate, one at a time, and expect a loom model to fail.
///
/// The packages are this workspace's packages with models, or other packages with atomics from `uslab-sync`. The models
/// of a package are the tests of its library that call `uslab_sync::check::model`. The check fails if no model detects
/// a mutant, or if no model reaches an ordering stronger than Relaxed. Orderings in code that loom does not compile are
/// listed. The last line of the output has the counts.
///
/// Exit codes: 0 if every mutant is detected or waived, 1 if not, 2 for wrong usage, an invalid waiver file, or a shard
/// that is missing or from another build.
#[derive(Debug, Parser)]
#[command(name = "check-orderings", max_term_width = 100)]
struct Args {
    /// Packages to check. Default: the packages of this workspace that have models; in another workspace, all packages
    /// that it builds by default.
    #[arg(value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Manifest of another workspace.
    #[arg(long, value_name = "FILE")]
    manifest_path: Option<PathBuf>,
    /// Cargo profile for building the models; the workspace must define it.
    #[arg(long, value_name = "NAME", default_value = "loom")]
    profile: String,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Time limit for one model under one mutant, in seconds, from 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// File with the waivers. Default: tests/orderings.toml of the workspace, if it exists.
    #[arg(long, value_name = "FILE")]
    waivers: Option<PathBuf>,
    #[command(flatten)]
    share: ShardArgs,
}

/// The name under which the shards of this command are stored.
const RUNNER_NAME: &str = "check-orderings";

/// A test that runs models, with its number of executions and the sites that it reaches with one pre-emption.
struct Model {
    test: Test,
    /// The names of the models that the test runs.
    names: Vec<String>,
    executions: u64,
    sites: BTreeSet<String>,
}

/// All tests with models, cheapest first; the next field has all sites that these tests, or the tests of planted bugs,
/// reach.
struct Models {
    list: Vec<Model>,
    reached: BTreeSet<String>,
    /// The tests that fail even if no ordering is weakened.
    broken: Vec<String>,
}

/// The verdict on one mutant.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// A model failed.
    Caught {
        model: String,
        message: String,
        /// The row for the mutant in the table of claims.
        row: String,
    },
    /// No model failed, but a waiver states why the stronger ordering is kept.
    Waived { reason: String },
    /// No model failed, and there is no waiver.
    Survived {
        /// The models that exceeded their time limit.
        timed_out: Vec<String>,
    },
}

#[derive(Debug, Deserialize, Serialize)]
struct Mutant {
    site: Site,
    weaker: Ordering,
    verdict: Verdict,
    seconds: f64,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, weaker, verdict, .. } = self;
        match verdict {
            Verdict::Caught { model, message, .. } => {
                write!(f, "caught    {site} -> {weaker} | {model} | {message}")
            }
            Verdict::Waived { reason } => write!(f, "waived    {site} -> {weaker} | {reason}"),
            Verdict::Survived { timed_out } => {
                write!(f, "SURVIVES  {site} -> {weaker}")?;
                timed_out.iter().try_for_each(|model| write!(f, " | {model} did not end in time"))
            }
        }
    }
}

/// The result of a whole run, or of one shard. A shard contains only its own mutants; all other fields are the same in
/// all shards.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Report {
    /// The number of ordering sites that loom compiles.
    sites: usize,
    /// The number of mutants in all shards.
    of: usize,
    mutants: Vec<Mutant>,
    /// The ordering sites that loom compiles but no model reaches.
    unreached: Vec<Site>,
    /// The ordering sites that loom does not compile.
    outside: Vec<Site>,
    /// Error messages that are not verdicts on mutants.
    wrong: Vec<String>,
    seconds: f64,
}

impl Report {
    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.mutants.iter().filter(|mutant| which(&mutant.verdict)).count()
    }
    fn caught_count(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Caught { .. }))
    }
    fn waived_mutant_count(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Waived { .. }))
    }
    fn has_passed(&self) -> bool {
        let relaxed = |site: &Site| site.ordering == Ordering::Relaxed;
        self.wrong.is_empty()
            && self.unreached.iter().all(relaxed)
            && self.caught_count() + self.waived_mutant_count() == self.mutants.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mutant in &self.mutants {
            writeln!(f, "{mutant}")?;
        }
        for site in &self.unreached {
            let word = if site.ordering == Ordering::Relaxed { "unreached" } else { "UNREACHED" };
            writeln!(f, "{word} {site}")?;
        }
        for site in &self.outside {
            writeln!(f, "outside   {site} (loom does not compile it)")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "FAILED: {wrong}")?;
        }
        let Self { sites, mutants, unreached, .. } = self;
        let (caught, waived) = (self.caught_count(), self.waived_mutant_count());
        write!(
            f,
            "orderings: {sites} sites, {} mutants, {caught} caught, {waived} waived, {} unreached",
            mutants.len(),
            unreached.len()
        )
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (subjects, waivers) = match requested(&args) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("check-orderings: {error:#}");
            return ExitCode::from(2);
        }
    };
    let shard = match args.share.requested() {
        Ok(shard) => shard,
        Err(error) => {
            eprintln!("check-orderings: {error:#}");
            return ExitCode::from(2);
        }
    };
    let report = match args.share.merge.is_empty() {
        true => check(&args, shard.unwrap_or(Shard::WHOLE_SHARD), &subjects, &waivers),
        false => merge(&args),
    };
    let report = report.and_then(|report| match shard {
        None => judge(&args, &waivers, report),
        Some(shard) => leave(&args, shard, report),
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("check-orderings: {error:#}");
            return ExitCode::from(if args.share.merge.is_empty() { 1 } else { 2 });
        }
    };
    match args.json.then(|| serde_json::to_string_pretty(&report)) {
        None => println!("{report}"),
        Some(Ok(json)) => println!("{json}"),
        Some(Err(error)) => {
            eprintln!("check-orderings: {error}");
            return ExitCode::FAILURE;
        }
    }
    if report.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns `true` if the run checks all packages of this workspace, because only such a run writes rows for the table
/// of claims.
fn covers_all_subjects(args: &Args) -> bool {
    args.packages.is_empty() && args.manifest_path.is_none()
}

/// Returns the selected packages, which all belong to one workspace, and the waivers for them.
fn requested(args: &Args) -> anyhow::Result<(Vec<Subject>, Vec<Waiver>)> {
    let subjects = if covers_all_subjects(args) {
        Subject::all_modelled_crates()
    } else {
        Subject::find(args.manifest_path.as_deref(), &args.packages, &args.profile)?
    };
    let root =
        subjects.first().map(|subject| &subject.root).context("no package of the workspace has a library")?;
    let usual = root.join("tests/orderings.toml");
    let waivers = match &args.waivers {
        Some(path) => Waiver::read(path)?,
        None if usual.exists() => Waiver::read(&usual)?,
        None => vec![],
    };
    // Waivers of other packages are ignored.
    let of_them =
        |waiver: &Waiver| subjects.iter().any(|of| Path::new(&waiver.file).starts_with(of.sources()));
    Ok((
        subjects.clone(),
        waivers.into_iter().filter(|waiver| covers_all_subjects(args) || of_them(waiver)).collect(),
    ))
}

/// Writes the file of a shard: one row with the fields that all shards share, and one row for each mutant.
fn leave(args: &Args, shard: Shard, mut report: Report) -> anyhow::Result<Report> {
    let mutants = report.mutants.iter().map(serde_json::to_string);
    let mutants = mutants.collect::<Result<Vec<_>, _>>()?;
    let seconds = std::mem::take(&mut report.seconds);
    let ours = std::mem::take(&mut report.mutants);
    let rows = [serde_json::to_string(&report)?].into_iter().chain(mutants).collect();
    let path = args.share.leave(RUNNER_NAME, shard, &shard_independent_args(args), rows)?;
    eprintln!("check-orderings: share {shard}: {}", path.display());
    Ok(Report { mutants: ours, seconds, ..report })
}

/// Returns the arguments that must be equal for all shards.
fn shard_independent_args(args: &Args) -> String {
    let manifest = args.manifest_path.iter().map(|path| path.display().to_string());
    let words: Vec<String> = manifest.chain(args.packages.iter().cloned()).collect();
    words.join(" ")
}

/// Merges the results of all shards, and returns them.
fn merge(args: &Args) -> anyhow::Result<Report> {
    let (mut whole, mut first) = (Report::default(), None);
    for Share { shard, rows, .. } in args.share.joined(RUNNER_NAME)? {
        let (common, mutants) = rows.split_first().with_context(|| format!("share {shard} has no rows"))?;
        if *first.get_or_insert_with(|| common.clone()) != *common {
            bail!("the sites of share {shard} differ from the first share's");
        }
        let mutants = mutants.iter().map(|row| serde_json::from_str(row)).collect::<Result<Vec<_>, _>>()?;
        whole.mutants.extend::<Vec<Mutant>>(mutants);
    }
    let common: Report = serde_json::from_str(&first.unwrap_or_default())?;
    if whole.mutants.len() != common.of {
        bail!("the shares have {} mutants; expected {}", whole.mutants.len(), common.of);
    }
    Ok(Report { mutants: whole.mutants, ..common })
}

fn check(args: &Args, shard: Shard, subjects: &[Subject], waivers: &[Waiver]) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let limit = Duration::from_secs(args.limit);
    let root = &subjects[0].root;
    let libs: Vec<&Path> = subjects.iter().map(|subject| subject.lib.as_path()).collect();
    let sources = Sources::scan(root, &libs)?;
    let models = models(subjects, limit)?;

    let mut report = Report { wrong: models.broken, ..Report::default() };
    let scanned: BTreeSet<String> = sources.sites.iter().map(Site::id).collect();
    // Sites of other crates are ignored.
    let ours = |id: &&String| subjects.iter().any(|subject| Path::new(id).starts_with(subject.sources()));
    for id in models.reached.iter().filter(ours).filter(|id| !scanned.contains(*id)) {
        report.wrong.push(format!("a model reaches {id}, which is not in the scan of the sources"));
    }
    let mut used = vec![0; waivers.len()];
    let mut todo = vec![];
    for site in sources.sites {
        match site.build {
            Build::Tests => continue,
            Build::Shipping => report.outside.push(site),
            Build::Loom => {
                report.sites += 1;
                for (used, _) in used.iter_mut().zip(waivers).filter(|(_, waiver)| waiver.fits(&site)) {
                    *used += 1;
                }
                let id = site.id();
                // A site that only a planted bug reaches is not part of the allocator, and needs no ordering.
                let by_model = models.list.iter().any(|model| model.sites.contains(&id));
                if by_model || site.ordering == Ordering::Relaxed && models.reached.contains(&id) {
                    todo.extend(
                        site.operation.weaker(site.ordering).iter().map(|weak| (site.clone(), *weak)),
                    );
                } else {
                    report.unreached.push(site);
                }
            }
        }
    }
    for (used, waiver) in used.iter().zip(waivers).filter(|(used, _)| **used != 1) {
        report.wrong.push(format!("stale waiver: it matches {used} sites; expected one: {}", waiver.place()));
    }

    report.of = todo.len();
    let ours = shard.items(todo.len() as u64);
    let todo = &todo[ours.start as usize..ours.end as usize];
    report.mutants = side_by_side("mutants", todo, |(site, weaker), progress| {
        progress.set_message(site.to_string());
        let begun = Instant::now();
        let mut verdict = run(site, *weaker, &models.list, limit)?;
        if let Verdict::Survived { timed_out } = &verdict
            && timed_out.is_empty()
            && let Some(waiver) = waivers.iter().find(|waiver| waiver.fits(site))
        {
            verdict = Verdict::Waived { reason: waiver.reason.clone() };
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Mutant { site: site.clone(), weaker: *weaker, verdict, seconds })
    })?;
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Checks the conditions that require the verdicts on all mutants.
fn judge(args: &Args, waivers: &[Waiver], mut report: Report) -> anyhow::Result<Report> {
    for waiver in waivers {
        let mut of_it = report.mutants.iter().filter(|mutant| waiver.fits(&mutant.site)).peekable();
        if of_it.peek().is_some() && of_it.all(|mutant| matches!(mutant.verdict, Verdict::Caught { .. })) {
            report.wrong.push(format!("stale waiver: the mutants are caught: {}", waiver.place()));
        }
    }
    if report.waived_mutant_count() * 20 > report.mutants.len() {
        report.wrong.push(format!(
            "{} of {} mutants are waived; expected at most one in twenty",
            report.waived_mutant_count(),
            report.mutants.len()
        ));
    }
    let rows = report.mutants.iter().filter_map(|mutant| match &mutant.verdict {
        Verdict::Caught { row, .. } => Some(format!("{row}\n")),
        _ => None,
    });
    if covers_all_subjects(args) {
        let file = Runner::Orderings.file();
        std::fs::write(&file, rows.collect::<String>()).with_context(|| file.display().to_string())?;
    }
    Ok(report)
}

/// Builds all models, and runs each model once without a mutant, with one pre-emption.
fn models(subjects: &[Subject], limit: Duration) -> anyhow::Result<Models> {
    let mut tests = vec![];
    for subject in subjects {
        tests.extend(build(subject)?);
    }
    let runs = side_by_side("models", &tests, |test, progress| {
        progress.set_message(test.name.clone());
        test.run(&[("BOUND", "1"), ("OM_LIST", "1")], limit)
    })?;
    let (mut list, mut reached, mut broken) = (vec![], BTreeSet::new(), vec![]);
    for (test, run) in tests.into_iter().zip(runs) {
        match run.outcome {
            Outcome::Passed => {
                reached.extend(run.sites.iter().cloned());
                // A test without a model tests something else; a test of a planted bug must fail, so it shows nothing.
                if !run.models.is_empty() {
                    let (names, executions) = (run.models, run.executions);
                    list.push(Model { test, names, executions, sites: run.sites });
                }
            }
            Outcome::Failed(message) => {
                broken.push(format!("{} fails without a changed ordering: {message}", test.name));
            }
            Outcome::TimedOut => {
                bail!(
                    "{} times out ({limit:?}, or ten minutes of its own) without a changed ordering",
                    test.name
                )
            }
        }
    }
    for Subject { package, .. } in subjects {
        if !list.iter().any(|model| model.test.package == *package) {
            bail!("{package}: no models ran");
        }
    }
    // Models are sorted by executions instead of time, so that the same model catches a mutant in each run.
    list.sort_by(|a, b| (a.executions, &a.test.name).cmp(&(b.executions, &b.test.name)));
    Ok(Models { list, reached, broken })
}

/// Runs the models that reach the site of a mutant, until one fails.
fn run(site: &Site, weaker: Ordering, models: &[Model], limit: Duration) -> anyhow::Result<Verdict> {
    let id = site.id();
    let mutant = format!("{id}:{weaker}");
    let mut timed_out = vec![];
    for bound in [&[("BOUND", "1")][..], &[]] {
        for Model { test, names, .. } in models.iter().filter(|model| model.sites.contains(&id)) {
            let name = || format!("{} {}", test.package, test.name);
            let environment = [&[("OM", mutant.as_str())][..], bound].concat();
            match test.run(&environment, limit).with_context(|| mutant.clone())?.outcome {
                Outcome::Passed => {}
                // A model that collapses to few executions has noticed nothing.
                Outcome::Failed(message) if message.contains("the model collapsed") => {}
                Outcome::Failed(message) => {
                    let properties: BTreeSet<&str> = names.iter().flat_map(|name| properties(name)).collect();
                    let properties: Vec<&str> = properties.into_iter().collect();
                    let row = format!(
                        "{} | MUTANT {} `{}`: {} -> {weaker} | models {}",
                        test.package,
                        site.file,
                        site.text,
                        site.ordering,
                        properties.join(" ")
                    );
                    return Ok(Verdict::Caught { model: name(), message, row });
                }
                Outcome::TimedOut => timed_out.push(name()),
            }
        }
    }
    Ok(Verdict::Survived { timed_out })
}
