//! The experiment on object caching: objects stay constructed while they are free (Bonwick, "The Slab Allocator",
//! 1994).

use super::{Context, check_bound, four_cpu_subsystem};
use crate::findings::clock::{self, Spread};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table};
use clap::Args;
use std::hint::black_box;
use std::sync::Arc;
use uslab::{Config, ObjectCache, Subsystem};
use uslab_magazine::sync::Counter;

/// How much does it save to keep objects constructed between uses?
///
/// The experiment allocates and frees objects in bursts from two caches: one constructs each object once, the other at
/// each allocation. A constructor writes some words of state, locks and list heads.
#[derive(Debug, Args)]
pub struct Constructors {
    /// Numbers of words that a constructor writes, separated by commas.
    #[arg(long, value_name = "WORDS", value_delimiter = ',', default_value = "1,4,16,62",
          value_parser = clap::value_parser!(u16).range(1..=62))]
    words: Vec<u16>,
    /// Number of objects that are allocated and freed together.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    burst: u32,
    /// Number of bursts.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    bursts: u32,
}

/// An object of 512 bytes, whose first words a constructor sets.
struct Object([u64; 64]);

impl Object {
    /// Each word depends on its address, like a list head that points to itself, so the compiler cannot set several
    /// words with one wide store.
    #[inline(never)]
    fn construct(&mut self, words: u16, constructed: &Counter) {
        constructed.add(1);
        for (i, word) in self.0.iter_mut().take(usize::from(words)).enumerate() {
            *word = black_box(i as u64) ^ 0x5a5a;
        }
    }
    /// Changes the object as a user does: sets a word and resets it, like a lock that is taken and released.
    fn write_all_words(&mut self) {
        let word = black_box(&mut self.0[63]);
        *word += 1;
        black_box(&mut *word);
        *word -= 1;
    }
}

/// One of the two caches that the experiment compares.
struct ObjectSource {
    cache: ObjectCache<Object>,
    words: u16,
    keeps_state: bool,
    constructed: Arc<Counter>,
}

impl ObjectSource {
    fn new(subsystem: &Subsystem, words: u16, keeps_state: bool) -> anyhow::Result<Self> {
        let constructed = Arc::new(Counter::new(0));
        let counter = constructed.clone();
        let construct = move || {
            let mut object = Object([0; 64]);
            if keeps_state {
                object.construct(words, &counter);
            }
            object
        };
        let cache = ObjectCache::builder("object").ctor(construct).check_frees(false).build_in(subsystem)?;
        Ok(Self { cache, words, keeps_state, constructed })
    }
    /// Runs `bursts` bursts; each burst allocates `burst` objects and frees them.
    fn bursts(&self, burst: u32, bursts: u32) -> anyhow::Result<()> {
        let mut objects = Vec::with_capacity(burst as usize);
        for _ in 0..bursts {
            for _ in 0..burst {
                let mut object = self.cache.alloc()?;
                if !self.keeps_state {
                    object.construct(self.words, &self.constructed);
                }
                object.write_all_words();
                objects.push(object);
            }
            objects.clear();
        }
        Ok(())
    }
}

/// Returns the number of constructions for a burst size: first for objects that stay constructed, then for construction
/// at each allocation.
fn counts(words: u16, burst: u32, bursts: u32) -> anyhow::Result<[u64; 2]> {
    let count = |keeps_state| {
        let object_source = ObjectSource::new(&four_cpu_subsystem()?, words, keeps_state)?;
        object_source.bursts(burst, bursts)?;
        anyhow::Ok(object_source.constructed.get())
    };
    Ok([count(true)?, count(false)?])
}

/// Returns the nanoseconds per object, from allocation to free, if objects stay constructed and if each allocation
/// constructs one, and the ratio of the two times.
fn times(context: &Context<'_>, words: u16, burst: u32, bursts: u32) -> anyhow::Result<[Spread; 3]> {
    let subsystem = Subsystem::new(Config::default())?;
    let object_sources =
        [ObjectSource::new(&subsystem, words, true)?, ObjectSource::new(&subsystem, words, false)?];
    let mut result = Ok(());
    let samples = clock::rounds(context.rounds(), 2, |i| {
        let time = clock::nanoseconds(|| result = object_sources[i].bursts(burst, bursts));
        [time / (f64::from(burst) * f64::from(bursts))]
    });
    result.map(|()| [samples[0].spread(0), samples[1].spread(0), samples[1].times(&samples[0], 0)])
}

impl Constructors {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how much time does it save to keep objects constructed between uses?";
        let mut findings = Findings::new("constructors", question, context.seed);
        let options = format!("--burst {} --bursts {}", self.burst, self.bursts);
        check_bound(
            &options,
            u64::from(self.burst) * u64::from(self.bursts),
            20_000_000,
            "allocations, one times the other",
        )?;
        let mut table = Table::new(
            format!("{} bursts of {} objects of 512 bytes", self.bursts, self.burst),
            &[
                "words",
                "allocations",
                "constructed, kept",
                "constructed, anew",
                "~kept, ns",
                "~anew, ns",
                "~ratio",
            ],
        );
        let mut curves = [Vec::new(), Vec::new()];
        let mut last = None;
        let stage = context.progress.stage("constructors", self.words.len() as u64);
        for (i, &words) in self.words.iter().enumerate() {
            let [keeps_state, constructed_again] = counts(words, self.burst, self.bursts)?;
            let times = match context.exact {
                true => [Spread::default(); 3],
                false => times(context, words, self.burst, self.bursts)?,
            };
            for (curve, time) in curves.iter_mut().zip(times) {
                curve.push((f64::from(words), time.median));
            }
            last = Some((words, times[2]));
            table.row(vec![
                u64::from(words).into(),
                (u64::from(self.burst) * u64::from(self.bursts)).into(),
                keeps_state.into(),
                constructed_again.into(),
                times[0].into(),
                times[1].into(),
                times[2].into(),
            ]);
            stage.at(i as u64 + 1);
        }
        drop(stage);
        findings.table(table);
        let [keeps_state, constructed_again] = curves;
        if let Some((words, ratio)) = last {
            findings.claim(Claim {
                says:
                    "keeping free objects constructed saves the constructor at each use"
                        .into(),
                source: "Bonwick 1994".into(),
                found: format!(
                    "if each use constructs {words} words, bursts take {} times as long as with constructed objects; 1.2 times or more counts as a saving",
                    ratio.shown(2)
                ),
                holds: match (ratio.at_least(1.2), ratio.at_least(1.0)) {
                    (Holds::No, Holds::Yes) => Holds::Partly,
                    (holds, _) => holds,
                },
                measured: true,
            });
        }
        let series = |name: &str, points| Series { name: name.into(), points };
        findings.chart(Chart {
            title: "An allocation, a use and a free".into(),
            x: Axis::linear("words to construct"),
            y: Axis::linear("ns"),
            series: vec![
                series("kept constructed", keeps_state),
                series("constructed anew", constructed_again),
            ],
            measured: true,
        });
        Ok(findings)
    }
}
