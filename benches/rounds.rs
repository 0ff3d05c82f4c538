//! The run: what was asked for on the command line, and rounds in which every subject has its turn.
//!
//! A round puts each question to each subject once, and starts with another subject each time, in turn forwards and
//! backwards. So what the machine does meanwhile (other work, frequency, temperature) falls on all subjects alike, and no
//! subject always follows the same one. Running one subject after the other, as criterion does, compares minutes with
//! minutes.

use crate::classic;
use crate::mallocs;
use crate::ours;
use crate::pools;
use crate::report::{Column, Report, Samples};
use crate::subject::{Kind, Made, Subject, Work};
use clap::Parser;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use uslab_sim::lab::clock::turns;
use uslab_sim::output::{Form, Place, Progress};

/// What the command line says.
#[derive(Clone, Debug, Parser)]
#[command(about = "One question, put to every subject in interleaved rounds")]
struct Arguments {
    /// Only cases whose name contains this
    filter: Option<String>,
    /// Small and short: numbers mean little, but everything runs
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 9; 3 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Only these, separated by commas
    #[arg(long, value_delimiter = ',')]
    subjects: Option<Vec<String>>,
    /// Writes all samples to a file, or to NAME.json in a folder
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Given by `cargo bench`; without it (`cargo test --benches`) one quick round shows that the bench works
    #[arg(long, hide = true)]
    bench: bool,
    /// One subject, in this process: prints what it measured
    #[arg(long, hide = true)]
    child: Option<String>,
}

/// A subject with the question put to it.
pub struct Contender {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) round: Box<dyn FnMut() -> Vec<f64>>,
}

impl Contender {
    /// `round` returns a value for each column of the group.
    pub fn new(name: &'static str, kind: Kind, round: impl FnMut() -> Vec<f64> + 'static) -> Self {
        Self { name, kind, round: Box::new(round) }
    }
    fn of<S: Subject>(work: &impl Work) -> Option<Self> {
        let work = work.clone();
        let made = Made::<S>::later(work.live());
        work.suits::<S>().then(|| Self::new(S::NAME, S::KIND, move || work.run(&made)))
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Contender").field(&self.name).finish()
    }
}

/// All subjects whose objects have `WORDS` words and whom the work suits.
pub fn contenders<const WORDS: usize>(work: &impl Work) -> Vec<Contender> {
    let all = [
        Contender::of::<pools::Null>(work),
        Contender::of::<ours::Kmem<WORDS>>(work),
        Contender::of::<ours::Typed<WORDS>>(work),
        Contender::of::<ours::Private<WORDS>>(work),
        Contender::of::<mallocs::OneSize<mallocs::Ours, WORDS>>(work),
        Contender::of::<mallocs::OneSize<mallocs::OursUnsized, WORDS>>(work),
        Contender::of::<mallocs::OneSize<mallocs::System, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<mallocs::OneSize<mallocs::MiMalloc, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<mallocs::OneSize<mallocs::Jemalloc, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<mallocs::OneSize<mallocs::SnMalloc, WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<mallocs::OneSize<mallocs::TcMalloc, WORDS>>(work),
        Contender::of::<pools::TlsVec<WORDS>>(work),
        Contender::of::<classic::Classic<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<pools::Slab<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<pools::ShardedSlab<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<pools::ObjectPool<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<pools::LinearPool<WORDS>>(work),
        #[cfg(feature = "peers")]
        Contender::of::<pools::ArrayQueue<WORDS>>(work),
    ];
    all.into_iter().flatten().collect()
}

/// Contenders that measure the same columns.
#[derive(Debug)]
struct Group {
    case: String,
    columns: Vec<Column>,
    contenders: Vec<Contender>,
}

/// A question being asked.
#[derive(Debug)]
pub struct Bench {
    question: &'static str,
    what: &'static str,
    arguments: Arguments,
    groups: Vec<Group>,
}

impl Bench {
    /// Reads the command line; says what is wrong with it, and ends, if something is.
    pub fn start(question: &'static str, what: &'static str) -> Self {
        // A thread that panics ends the bench: the others would wait for it for ever.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::exit(101);
        }));
        Self { question, what, arguments: Arguments::parse(), groups: Vec::new() }
    }
    /// Whether everything should be small and short.
    pub fn quick(&self) -> bool {
        self.arguments.quick || !self.arguments.bench
    }
    /// CPU time of one measurement.
    pub fn budget(&self) -> Duration {
        Duration::from_millis(if self.quick() { 1 } else { 20 })
    }
    /// `full`, or less of it where numbers do not matter.
    pub fn scale(&self, full: usize) -> usize {
        if self.quick() { (full / 20).max(1) } else { full }
    }
    fn rounds(&self) -> u32 {
        let usual = if !self.arguments.bench {
            1
        } else if self.quick() {
            3
        } else {
            9
        };
        self.arguments.rounds.unwrap_or(usual)
    }

    /// A case of the question, or several at once: each contender's round returns a value for each column.
    pub fn group(
        &mut self,
        case: impl Into<String>,
        columns: impl IntoIterator<Item = Column>,
        contenders: Vec<Contender>,
    ) {
        let group = Group { case: case.into(), columns: columns.into_iter().collect(), contenders };
        self.groups.push(group);
    }

    /// As [`group`](Self::group), each contender's rounds in new processes of their own.
    pub fn isolated(
        &mut self,
        case: impl Into<String>,
        columns: impl IntoIterator<Item = Column>,
        contenders: Vec<Contender>,
    ) {
        let case = case.into();
        let quick = self.quick();
        let spawning = |contender: Contender| {
            let child = crate::resident::Child { case: case.clone(), subject: contender.name, quick };
            Contender::new(contender.name, contender.kind, move || child.run())
        };
        let contenders = match &self.arguments.child {
            Some(child) => {
                if let Some(subject) = child.strip_prefix(&format!("{case}/")) {
                    let contender = contenders.into_iter().find(|contender| contender.name == subject);
                    let values = contender.map_or_else(Vec::new, |mut contender| (contender.round)());
                    println!("{}", serde_json::json!(values));
                    std::process::exit(0);
                }
                Vec::new()
            }
            None => contenders.into_iter().map(spawning).collect(),
        };
        self.group(case, columns, contenders);
    }

    /// Asks, prints the table, and writes the JSON.
    ///
    /// # Errors
    /// The command line names a subject or case that there is none of, or the JSON cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        self.report().map(drop)
    }

    /// As [`run`](Self::run), and what was found.
    ///
    /// # Errors
    /// As `run`.
    pub fn report(mut self) -> anyhow::Result<Report> {
        let json = self.json()?;
        self.select()?;
        let load_before = load();
        let rounds = self.rounds();
        let mut samples: Vec<Vec<Samples>> = self
            .groups
            .iter()
            .map(|g| g.contenders.iter().map(|c| Samples::new(c.name, c.kind, g.columns.len())).collect())
            .collect();
        let length: usize = self.groups.iter().map(|group| group.contenders.len()).sum();
        let progress = Progress::new();
        let stage = progress.stage(self.question, u64::from(rounds) * length as u64);
        let mut turn = 0;
        for round in 0..rounds as usize {
            for (group, samples) in self.groups.iter_mut().zip(&mut samples) {
                for i in turns(round, group.contenders.len()) {
                    samples[i].add((group.contenders[i].round)());
                    turn += 1;
                    stage.at(turn);
                }
            }
        }
        drop(stage);
        let groups = self.groups.into_iter().zip(samples);
        let groups = groups.map(|(group, samples)| (group.case, group.columns, samples));
        let report = Report::new(self.question, self.what, rounds, [load_before, load()], groups);
        print!("{report}");
        json.map_or(Ok(()), |json| json.json(&report))?;
        Ok(report)
    }

    fn json(&self) -> anyhow::Result<Option<Place>> {
        let path = self.arguments.json.as_ref();
        let file = |path: &PathBuf| match path.is_dir() {
            true => path.join(format!("{}.json", self.question)),
            false => path.clone(),
        };
        path.map(|path| Place::open(Form::Json, &file(path))).transpose()
    }

    /// Leaves what the command line asks for.
    fn select(&mut self) -> anyhow::Result<()> {
        if let Some(wanted) = &self.arguments.subjects {
            let known: Vec<_> = self.groups.iter().flat_map(|g| &g.contenders).map(|c| c.name).collect();
            if let Some(unknown) = wanted.iter().find(|wanted| !known.contains(&wanted.as_str())) {
                anyhow::bail!("--subjects: there is no {unknown} here, only {}", dedup(known).join(","));
            }
            for group in &mut self.groups {
                group.contenders.retain(|c| wanted.iter().any(|wanted| wanted == c.name));
            }
        }
        if let Some(filter) = &self.arguments.filter {
            self.groups.retain(|group| group.case.contains(filter));
            anyhow::ensure!(!self.groups.is_empty(), "no case contains {filter:?}");
        }
        Ok(())
    }
}

fn dedup(names: Vec<&str>) -> Vec<&str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The load average of the last minute; 0 where it cannot be read.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}
