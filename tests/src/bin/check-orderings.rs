//! `cargo check-orderings`: every memory ordering of the allocator is weakened, one at a time, and some model must fail.
//!
//! One build serves: the loom backend of `uslab-sync` takes the mutant from the environment. The models run at one
//! pre-emption first, to see which sites each of them reaches; then each mutant runs through the models that reach its
//! site, cheapest first, at one pre-emption and then at each model's own bound, until one fails.
//!
//! What this shows is that the models *notice* a weaker ordering, so each ordering stands for something that is
//! checked. It does not show that an ordering is strong enough: the models themselves do.

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use uslab_tests::claims::{Runner, properties};
use uslab_tests::models::{MODELLED, Modelled, Outcome, Test, build};
use uslab_tests::source::{Build, Ordering, Site, Sources};
use uslab_tests::waiver::Waiver;
use uslab_tests::workspace;

/// Weaken every memory ordering of the allocator, one at a time, and expect a loom model to fail.
///
/// A mutant that no model notices fails the check, and so does an ordering stronger than Relaxed that no model reaches.
/// Orderings in what loom cannot compile are listed. The last line holds the counts.
///
/// Exit codes: 0 every mutant is caught or waived, 1 not so, 2 wrong usage or a bad waiver file.
#[derive(Debug, Parser)]
#[command(name = "check-orderings", max_term_width = 100)]
struct Args {
    /// Print one JSON object in place of the text.
    #[arg(long)]
    json: bool,
    /// The most that one model may take under one mutant, in seconds, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The waivers. Default: tests/orderings.toml of the workspace.
    #[arg(long, value_name = "FILE")]
    waivers: Option<PathBuf>,
}

/// A test of models, its executions and the sites it reaches at one pre-emption.
struct Model {
    test: Test,
    /// The names of its models.
    names: Vec<String>,
    executions: u64,
    sites: BTreeSet<String>,
}

/// All models, cheapest first; and what they and the tests of planted bugs reach together.
struct Models {
    list: Vec<Model>,
    reached: BTreeSet<String>,
    /// What fails with no ordering changed.
    broken: Vec<String>,
}

/// What became of a mutant.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// A model failed.
    Caught {
        model: String,
        message: String,
        #[serde(skip)]
        row: String,
    },
    /// No model failed, and the waiver says why the ordering is kept.
    Waived { reason: String },
    /// No model failed.
    Survived {
        /// Models that did not end in time.
        timed_out: Vec<String>,
    },
}

#[derive(Debug, Serialize)]
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

/// The whole result.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Sites in what loom compiles.
    sites: usize,
    mutants: Vec<Mutant>,
    /// Sites in what loom compiles that no model reaches.
    unreached: Vec<Site>,
    /// Sites in what loom does not compile.
    outside: Vec<Site>,
    /// What is wrong besides.
    wrong: Vec<String>,
    seconds: f64,
}

impl Report {
    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.mutants.iter().filter(|mutant| which(&mutant.verdict)).count()
    }
    fn caught(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Caught { .. }))
    }
    fn waived(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Waived { .. }))
    }
    fn good(&self) -> bool {
        let relaxed = |site: &Site| site.ordering == Ordering::Relaxed;
        self.wrong.is_empty()
            && self.unreached.iter().all(relaxed)
            && self.caught() + self.waived() == self.mutants.len()
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
        let (caught, waived) = (self.caught(), self.waived());
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
    let path = args.waivers.clone().unwrap_or_else(|| workspace().join("tests/orderings.toml"));
    let waivers = match Waiver::read(&path) {
        Ok(waivers) => waivers,
        Err(error) => {
            eprintln!("check-orderings: {error:#}");
            return ExitCode::from(2);
        }
    };
    let report = match check(&args, &waivers) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("check-orderings: {error:#}");
            return ExitCode::FAILURE;
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
    if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(args: &Args, waivers: &[Waiver]) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let limit = Duration::from_secs(args.limit);
    let sources = Sources::scan(workspace(), &MODELLED.map(|modelled| modelled.lib))?;
    let models = models(limit)?;

    let mut report = Report { wrong: models.broken, ..Report::default() };
    let scanned: BTreeSet<String> = sources.sites.iter().map(Site::id).collect();
    for id in models.reached.iter().filter(|id| !scanned.contains(*id)) {
        report.wrong.push(format!("a model reaches {id}, which the scan of the sources does not know"));
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
                // What only a planted bug reaches is no part of the allocator, and needs no ordering.
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
        report.wrong.push(format!("stale waiver: it fits {used} sites, not one: {}", waiver.place()));
    }

    report.mutants = side_by_side("mutants", &todo, |(site, weaker), progress| {
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

    for waiver in waivers {
        let mut of_it = report.mutants.iter().filter(|mutant| waiver.fits(&mutant.site)).peekable();
        if of_it.peek().is_some() && of_it.all(|mutant| matches!(mutant.verdict, Verdict::Caught { .. })) {
            report.wrong.push(format!("stale waiver: the mutants are caught: {}", waiver.place()));
        }
    }
    if report.waived() * 20 > report.mutants.len() {
        report.wrong.push(format!(
            "{} of {} mutants are waived, at most one in twenty may be",
            report.waived(),
            report.mutants.len()
        ));
    }
    let rows = report.mutants.iter().filter_map(|mutant| match &mutant.verdict {
        Verdict::Caught { row, .. } => Some(format!("{row}\n")),
        _ => None,
    });
    let file = Runner::Orderings.file();
    std::fs::write(&file, rows.collect::<String>()).with_context(|| file.display().to_string())?;
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Builds all models and runs each once, unchanged, at one pre-emption.
fn models(limit: Duration) -> anyhow::Result<Models> {
    let mut tests = vec![];
    for modelled in MODELLED {
        tests.extend(build(modelled.package)?);
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
                // Without a model it is a test of something else; one of a planted bug must fail, so it shows nothing.
                if !run.models.is_empty() {
                    let (names, executions) = (run.models, run.executions);
                    list.push(Model { test, names, executions, sites: run.sites });
                }
            }
            Outcome::Failed(message) => {
                broken.push(format!("{} fails with no ordering changed: {message}", test.name));
            }
            Outcome::TimedOut => {
                bail!("{} does not end within {limit:?} with no ordering changed", test.name)
            }
        }
    }
    for Modelled { package, .. } in MODELLED {
        if !list.iter().any(|model| model.test.package == package) {
            bail!("{package}: no models ran");
        }
    }
    // Not by time: which model catches a mutant is to be the same each time.
    list.sort_by(|a, b| (a.executions, &a.test.name).cmp(&(b.executions, &b.test.name)));
    Ok(Models { list, reached, broken })
}

/// One mutant through the models that reach its site.
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
                // A collapse to few executions is no finding.
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

/// Does all of `jobs`, as many at a time as there are CPUs; the results in their order, or the first failure.
fn side_by_side<J: Sync, R: Send>(
    what: &'static str,
    jobs: &[J],
    work: impl Fn(&J, &ProgressBar) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let progress = progress(jobs.len(), what);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (progress, work) = (&progress, &work);
    // One of `workers` takes every so many.
    let share = |first: usize| {
        jobs.iter().enumerate().skip(first).step_by(workers).map(|(i, job)| {
            let result = work(job, progress);
            progress.inc(1);
            (i, result)
        })
    };
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|first| scope.spawn(move || share(first).collect::<Vec<_>>())).collect();
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().flat_map(join).collect()
    });
    progress.finish_and_clear();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A bar on standard error; nothing where that is no terminal.
fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.with_prefix(what)
}
