//! Runs a benchmark: parses the command line, and runs rounds in which each subject is measured once.
//!
//! In each round, every subject answers each question once. Each round starts with a different subject, and consecutive
//! rounds run in opposite orders. Disturbances by the machine (other work, frequency, temperature) therefore affect all
//! subjects alike.

use crate::child::{self, LazyProcess, Program, Question};
use crate::kept::{self, Baselines, Run};
use crate::mallocs;
use crate::means;
use crate::ours;
use crate::page::{PRELOADED_SUFFIX, Page};
use crate::pools;
use crate::preload::{self, PreloadedMalloc};
use crate::report::{self, Column, Report, standings};
use crate::subject::{Kind, LazySubject, Subject, Work};
use anyhow::Context;
use clap::Parser;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The command-line arguments.
#[derive(Clone, Debug, Parser)]
#[command(about = "Questions, put to every subject in interleaved rounds")]
struct Arguments {
    /// Measures only the rows or cases whose name, written row/case, contains one of these texts
    filter: Vec<String>,
    /// Skips rows and cases whose name contains this text; the option can be repeated
    #[arg(long, value_name = "FILTER")]
    skip: Vec<String>,
    /// Quick run that shows that everything works; its numbers mean little
    #[arg(long)]
    quick: bool,
    /// Number of rounds, 10 or more for criterion's statistics [default: 11; 3 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measures only these subjects, separated by commas
    #[arg(long, value_delimiter = ',')]
    subjects: Option<Vec<String>>,
    /// A build of an older commit, made by `benches/previous`, whose subjects also take part. The path is relative to
    /// the workspace
    #[arg(long, value_name = "FOLDER")]
    previous: Vec<PathBuf>,
    #[command(flatten)]
    baselines: Baselines,
    /// Measures nothing: prints the tables of saved baselines, and how far the last table varies between them
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with_all = ["save_baseline", "baseline"])]
    saved: Vec<String>,
    /// With --saved: writes a page about these runs, and about the runs of the whole programs. The path is relative to
    /// the workspace
    #[arg(long, value_name = "FILE", requires = "saved", conflicts_with_all = ["filter", "skip", "subjects", "previous"])]
    page: Option<PathBuf>,
    /// Passed by `cargo bench`; without it (`cargo test --benches`), one quick round shows that the bench works
    #[arg(long, hide = true)]
    bench: bool,
    /// Answers questions from standard input
    #[arg(long, hide = true)]
    serve: bool,
}

/// A subject together with the work to measure.
pub struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) round: Box<dyn FnMut() -> Vec<f64>>,
}

impl Contender {
    /// Makes a contender. The closure `round` returns one value for each column of the group; it returns no values if
    /// the round failed.
    pub fn new(name: impl Into<String>, kind: Kind, round: impl FnMut() -> Vec<f64> + 'static) -> Self {
        Self { name: name.into(), kind, round: Box::new(round) }
    }
    /// Makes a contender of the subject `S`; `None` if the machine does not have `S`, or if `S` cannot do the work.
    pub fn from_subject<S: Subject>(work: &impl Work) -> Option<Self> {
        let work = work.clone();
        let lazy_subject = LazySubject::<S>::lazy(work.live());
        (S::available() && work.suits::<S>())
            .then(|| Self::new(S::NAME, S::KIND, move || work.run(&lazy_subject)))
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Contender").field(&self.name).finish()
    }
}

/// Returns contenders of all subjects that can do the work, with objects of `WORDS` words.
pub fn contenders<const WORDS: usize>(work: &impl Work) -> Vec<Contender> {
    let all = [
        Contender::from_subject::<pools::Null>(work),
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::System, WORDS>>(work),
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::MiMalloc2, WORDS>>(work),
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::GPerfTools, WORDS>>(work),
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::RpMalloc, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::MiMalloc3, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::Jemalloc, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<mallocs::OneSizeObjects<mallocs::SnMalloc, WORDS>>(work),
        Contender::from_subject::<pools::TlsVec<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<pools::Slab<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<pools::ShardedSlab<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<pools::ObjectPool<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<pools::LinearPool<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::from_subject::<pools::ArrayQueue<WORDS>>(work),
    ];
    all.into_iter().flatten().chain(ours::contenders::<WORDS>(work)).collect()
}

/// Contenders that measure the same columns.
#[derive(Debug)]
struct Group {
    row: String,
    case: String,
    columns: Vec<Column>,
    contenders: Vec<Contender>,
    /// `true` if each round runs in a new process.
    isolated: bool,
}

impl Group {
    fn name(&self) -> String {
        format!("{}/{}", self.row, self.case)
    }
    fn question(&self, subject: &str) -> Question {
        Question { row: self.row.clone(), case: self.case.clone(), subject: subject.into() }
    }
}

/// All rows and contenders of a benchmark program.
#[derive(Debug)]
pub struct Bench {
    name: &'static str,
    /// Names and descriptions of the rows, in order; each new group is added to the last row.
    rows: Vec<(String, String)>,
    arguments: Arguments,
    groups: Vec<Group>,
    preloads: bool,
}

impl Bench {
    /// Parses the command line. If the command line is invalid, prints the error and exits.
    pub fn start(name: &'static str, description: &'static str) -> Self {
        // A thread that panics ends the bench, because the other threads would wait for it for ever.
        #[expect(clippy::disallowed_methods, reason = "the program's own path must be readable")]
        let report = std::panic::take_hook();
        #[expect(clippy::disallowed_methods, reason = "the program's own path must be readable")]
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::exit(101);
        }));
        let rows = vec![(name.into(), description.into())];
        Self { name, rows, arguments: Arguments::parse(), groups: Vec::new(), preloads: false }
    }
    /// Returns `true` if the benchmark should do only a small amount of work.
    pub fn is_quick(&self) -> bool {
        self.arguments.quick || !self.arguments.bench
    }
    /// Returns the CPU time that one measurement should take.
    pub fn budget(&self) -> Duration {
        Duration::from_millis(if self.is_quick() { 1 } else { 20 })
    }
    /// Returns `full_count`, or a twentieth of it in a quick run.
    pub fn scale(&self, full_count: usize) -> usize {
        if self.is_quick() { (full_count / 20).max(1) } else { full_count }
    }
    fn rounds(&self) -> u32 {
        let default_rounds = if !self.arguments.bench {
            1
        } else if self.is_quick() {
            3
        } else {
            11
        };
        self.arguments.rounds.unwrap_or(default_rounds)
    }

    /// Begins a new row; the groups that are added next belong to it.
    pub fn row(&mut self, name: impl Into<String>, description: impl Into<String>) {
        self.rows.push((name.into(), description.into()));
    }

    /// Repeats the measurement of each group in a separate row, in which the subject `system` runs in processes that
    /// preload a malloc. The preloaded mallocs are this project's malloc and its peers.
    pub fn preloads(&mut self) {
        self.preloads = true;
    }

    /// Adds one or more cases to the last row. The `round` of each contender returns one value for each column.
    pub fn group(
        &mut self,
        case: impl Into<String>,
        columns: impl IntoIterator<Item = Column>,
        contenders: Vec<Contender>,
    ) {
        self.add(case.into(), columns.into_iter().collect(), contenders, false);
    }

    /// Adds cases as [`group`](Self::group) does, but runs each round of a contender in a new process.
    pub fn isolated_group(
        &mut self,
        case: impl Into<String>,
        columns: impl IntoIterator<Item = Column>,
        contenders: Vec<Contender>,
    ) {
        self.add(case.into(), columns.into_iter().collect(), contenders, true);
    }

    fn add(&mut self, case: String, columns: Vec<Column>, contenders: Vec<Contender>, isolated: bool) {
        let row = self.rows.last().map(|(name, _)| name.clone()).unwrap_or_default();
        let mut group = Group { row, case, columns, contenders, isolated };
        if isolated && !self.arguments.serve {
            let companion =
                LazyProcess::new("this", self.program(std::env::current_exe().unwrap_or_default(), None));
            let spawning = |contender: &Contender| {
                let question = group.question(&contender.name);
                companion.contender(contender.name.clone(), contender.kind, true, question)
            };
            group.contenders = group.contenders.iter().map(spawning).collect();
        }
        self.groups.push(group);
    }

    fn program(&self, path: PathBuf, library: Option<PathBuf>) -> Program {
        Program { path, library, quick: self.is_quick() }
    }

    /// Runs all measurements, passes the samples to criterion, and prints the tables.
    ///
    /// # Errors
    /// Fails if the command line names a subject, a case, an older build or a baseline that does not exist.
    pub fn run(self) -> anyhow::Result<()> {
        self.report().map(drop)
    }

    /// Runs the bench as [`run`](Self::run) does, and returns the results.
    ///
    /// # Errors
    /// Fails under the same conditions as [`run`](Self::run).
    pub fn report(mut self) -> anyhow::Result<Report> {
        if self.arguments.serve {
            self.serve()?;
            std::process::exit(0);
        }
        self.add_older_subjects()?;
        self.preloaded()?;
        self.select()?;
        let reports = if self.arguments.saved.is_empty() {
            let baselines = self.arguments.baselines.clone();
            let (report, run) = self.measure();
            kept::analyse_with_criterion(&report.rows, &run, &baselines, &kept::directory())?;
            vec![report]
        } else {
            let saved = self.arguments.saved.iter().map(|name| self.saved(name));
            let reports = saved.collect::<anyhow::Result<Vec<_>>>()?;
            if let Some(file) = &self.arguments.page {
                self.write_page(&reports, file)?;
            }
            reports
        };
        for report in &reports {
            print!("{report}");
        }
        print!("{}", standings(&reports));
        reports.into_iter().next_back().context("expected a question")
    }

    /// Runs as a child process, and answers the questions of the parent process.
    fn serve(mut self) -> anyhow::Result<()> {
        child::answer_requests(|question| {
            let group = self.groups.iter_mut().find(|g| g.row == question.row && g.case == question.case);
            let contender = group.and_then(|g| g.contenders.iter_mut().find(|c| c.name == question.subject));
            contender.map_or_else(Vec::new, |contender| (contender.round)())
        })
    }

    /// Adds the subjects that older builds of this project provide.
    fn add_older_subjects(&mut self) -> anyhow::Result<()> {
        for folder in self.arguments.previous.clone() {
            let program = resolve_workspace_path(&folder).join(self.name);
            anyhow::ensure!(
                program.is_file(),
                "--previous: {} does not exist; benches/previous builds it",
                program.display()
            );
            let commit = name_of(&folder);
            let previous_build = LazyProcess::new(&commit, self.program(program.canonicalize()?, None));
            for group in &mut self.groups {
                let own_contenders = group.contenders.iter().filter(|contender| contender.kind == Kind::Ours);
                let names: Vec<_> = own_contenders.map(|contender| contender.name.clone()).collect();
                let previous_build = names.iter().map(|name| {
                    let question = group.question(name);
                    previous_build.contender(
                        format!("{name}@{commit}"),
                        Kind::Before,
                        group.isolated,
                        question,
                    )
                });
                let previous_build: Vec<_> = previous_build.collect();
                group.contenders.extend(previous_build);
            }
        }
        Ok(())
    }

    /// Adds the rows of the preloaded mallocs; each of these rows follows the row that it repeats.
    fn preloaded(&mut self) -> anyhow::Result<()> {
        // `cargo test --benches` starts no processes and builds nothing.
        if !self.preloads || !self.arguments.bench {
            return Ok(());
        }
        let uses_system = |group: &Group| group.contenders.iter().any(|contender| contender.name == "system");
        let name = |row: &str| format!("{row}{PRELOADED_SUFFIX}");
        let is_wanted = |group: &Group| {
            uses_system(group) && self.is_selected(&format!("{}/{}", name(&group.row), group.case))
        };
        if !self.groups.iter().any(is_wanted) {
            return Ok(());
        }
        let mut mallocs = preload::peers();
        let library = self.arguments.saved.is_empty().then(uslab_tests::libuslab);
        mallocs.push(PreloadedMalloc { name: "libuslab".into(), kind: Kind::Ours, library });
        for folder in &self.arguments.previous {
            mallocs.push(PreloadedMalloc {
                name: format!("libuslab@{}", name_of(folder)),
                kind: Kind::Before,
                library: Some(resolve_workspace_path(folder).join("libuslab.so").canonicalize()?),
            });
        }
        let executable = std::env::current_exe()?;
        let processes = mallocs.into_iter().map(|malloc| {
            (
                LazyProcess::new(&malloc.name, self.program(executable.clone(), malloc.library)),
                malloc.name,
                malloc.kind,
            )
        });
        let processes: Vec<_> = processes.collect();
        let contenders = |group: &Group| {
            let system = processes.iter().map(|(process, name, kind)| {
                process.contender(name.clone(), *kind, group.isolated, group.question("system"))
            });
            // The floor does not depend on the malloc, so the C library's process measures it for all mallocs.
            let floor = group.contenders.iter().find(|contender| contender.kind == Kind::Floor);
            let floor = floor.filter(|_| group.columns.iter().any(Column::has_floor_price)).map(|floor| {
                let question = group.question(&floor.name);
                processes[0].0.contender(floor.name.clone(), floor.kind, group.isolated, question)
            });
            system.chain(floor).collect()
        };
        let mut groups = Vec::new();
        for group in std::mem::take(&mut self.groups) {
            let preloaded = uses_system(&group).then(|| Group {
                row: name(&group.row),
                case: group.case.clone(),
                columns: group.columns.iter().map(Column::preloaded).collect(),
                contenders: contenders(&group),
                isolated: group.isolated,
            });
            groups.push(group);
            groups.extend(preloaded);
        }
        self.groups = groups;
        let rows = std::mem::take(&mut self.rows).into_iter();
        let row_and_description = |(row, description): (String, String)| {
            let preloaded = (name(&row), format!("{description}; malloc preloaded"));
            [(row, description), preloaded]
        };
        self.rows = rows.flat_map(row_and_description).collect();
        Ok(())
    }

    fn write_page(&self, runs: &[Report], file: &Path) -> anyhow::Result<()> {
        let mut expected = Vec::new();
        for group in &self.groups {
            let own_contenders = group.contenders.iter().filter(|contender| contender.kind == Kind::Ours);
            for subject in own_contenders.map(|contender| &contender.name) {
                let standings = group.columns.iter().filter_map(|column| column.standing_in_row(&group.row));
                expected.extend(standings.map(|standing| (standing, subject.clone())));
            }
        }
        expected.sort_unstable();
        expected.dedup();
        let programs = self.arguments.saved.iter().map(|name| means::saved(&kept::directory(), name));
        let programs = programs.filter_map(Result::transpose).collect::<anyhow::Result<Vec<_>>>()?;
        let features = if cfg!(feature = "peers") { " --features peers" } else { "" };
        let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let command = format!(
            "cargo bench -p uslab-benches{features} --bench {} -- {}",
            self.name,
            arguments.join(" ")
        );
        let page = Page { command, runs, expected, programs: &programs }.to_string();
        let file = resolve_workspace_path(file);
        std::fs::write(&file, page.trim_end().to_owned() + "\n").with_context(|| file.display().to_string())
    }

    fn measure(mut self) -> (Report, Run) {
        let commit = kept::commit();
        mallocs::missing_libraries().for_each(|name| {
            eprintln!("{name} is skipped: its library is neither installed nor built by benches/peers")
        });
        let load_before = load();
        let rounds = self.rounds();
        let empty = |group: &Group| vec![vec![Vec::new(); group.columns.len()]; group.contenders.len()];
        let mut samples: Vec<Vec<Vec<Vec<f64>>>> = self.groups.iter().map(empty).collect();
        for round in 0..rounds as usize {
            eprintln!("{}: round {} of {rounds}", self.name, round + 1);
            for (group, samples) in self.groups.iter_mut().zip(&mut samples) {
                for i in turns(round, group.contenders.len()) {
                    for (column, value) in samples[i].iter_mut().zip((group.contenders[i].round)()) {
                        column.push(value);
                    }
                }
            }
        }
        let load = format!("load average {load_before} to {}", load());
        let conditions = format!("{rounds} interleaved rounds, {load}; {}", report::machine());
        let run = Run { commit, conditions };
        (self.report_from_samples(run.to_string(), samples), run)
    }

    fn saved(&self, baseline: &str) -> anyhow::Result<Report> {
        let directory = kept::directory();
        let mut samples = Vec::new();
        for group in &self.groups {
            let rounds_of = |contender: &Contender, column: &Column| {
                kept::saved(&directory, [&group.row, &column.case(&group.case), &contender.name], baseline)
            };
            let rows = group
                .contenders
                .iter()
                .map(|c| group.columns.iter().map(|column| rounds_of(c, column)).collect());
            samples.push(rows.collect::<anyhow::Result<Vec<Vec<_>>>>()?);
        }
        let has_no_values = samples.iter().flatten().flatten().all(Vec::is_empty);
        anyhow::ensure!(!has_no_values, "--saved: no baseline {baseline} exists for these rows");
        let saved = self.groups.iter().zip(&samples);
        let saved =
            saved.filter(|(_, rounds_of)| rounds_of.iter().flatten().any(|rounds| !rounds.is_empty()));
        let rows = dedup(saved.map(|(group, _)| group.row.as_str()).collect());
        Ok(self.report_from_samples(kept::runs(&directory, &rows, baseline)?, samples))
    }

    /// Makes a report from the samples, which are indexed by group, contender, round and column.
    fn report_from_samples(&self, conditions: String, samples: Vec<Vec<Vec<Vec<f64>>>>) -> Report {
        let mut report = Report::new(conditions, self.rows.clone());
        for (group, mut samples) in self.groups.iter().zip(samples) {
            for (i, column) in group.columns.iter().enumerate() {
                let rounds = group.contenders.iter().zip(&mut samples);
                let rounds =
                    rounds.map(|(c, samples)| (c.name.as_str(), c.kind, std::mem::take(&mut samples[i])));
                report.add(&group.row, &group.case, column, rounds);
            }
        }
        report
    }

    fn is_selected(&self, name: &str) -> bool {
        let Arguments { filter, skip, .. } = &self.arguments;
        (filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str())))
            && !skip.iter().any(|part| name.contains(part.as_str()))
    }

    /// Removes all rows, cases and subjects that the command line does not select.
    fn select(&mut self) -> anyhow::Result<()> {
        if let Some(wanted_subjects) = &self.arguments.subjects {
            let known_names: Vec<_> =
                self.groups.iter().flat_map(|g| &g.contenders).map(|c| c.name.as_str()).collect();
            if let Some(unknown) = wanted_subjects.iter().find(|name| !known_names.contains(&name.as_str())) {
                anyhow::bail!(
                    "--subjects: unknown subject {unknown}; expected one of {}",
                    dedup(known_names).join(",")
                );
            }
            for group in &mut self.groups {
                group.contenders.retain(|c| wanted_subjects.contains(&c.name));
            }
        }
        let groups = std::mem::take(&mut self.groups);
        let known_names: Vec<_> = groups.iter().map(Group::name).collect();
        self.groups = groups.into_iter().filter(|group| self.is_selected(&group.name())).collect();
        let names = || dedup(known_names.iter().map(String::as_str).collect()).join(", ");
        anyhow::ensure!(!self.groups.is_empty(), "unknown row or case; expected one of: {}", names());
        Ok(())
    }
}

/// Returns the order in which the contenders run in a round. Each round begins with a different contender, and
/// consecutive rounds run in opposite orders, so no contender always follows the same one.
fn turns(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |i| {
        let i = (i + round) % contenders;
        if round.is_multiple_of(2) { i } else { contenders - 1 - i }
    })
}

/// Resolves a path from the command line relative to the workspace, because cargo starts benches in their package's
/// folder.
fn resolve_workspace_path(path: &Path) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns the last component of the folder's path, which is the name of a commit.
fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

fn dedup(names: Vec<&str>) -> Vec<&str> {
    let mut seen_names = Vec::new();
    for name in names {
        if !seen_names.contains(&name) {
            seen_names.push(name);
        }
    }
    seen_names
}

/// Returns the load average of the last minute; 0 if it cannot be read.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}
