//! The experiment that repeats the pool measurements of the article "Arena pools: from naive pool to slot map", and
//! adds slabs.
//!
//! Each pool design is implemented as a Rust program would implement it. The measured program stores the article's
//! particles, and runs the article's three phases: allocate and free, churn, iterate. `black_box` receives the result
//! of each phase, so that the compiler does not remove the phase. The article's figure of 0.88 ns for a free and an
//! allocation suggests that the compiler removed work there. A design with stable keys keeps them in a list, whose cost
//! counts as churn; the packed array has no keys.

mod claims;
mod designs;
mod phases;

use super::{Context, four_cpu_subsystem};
use crate::findings::clock::{self, Samples};
use crate::findings::{Axis, Bars, Findings, Table, Value};
use clap::Args;
use phases::{FRAMES, NAMES, Order, REPLACED_PER_FRAME, Run, SETS, Set, run_round};
use uslab::{Config, Subsystem};

/// Which pool allocates, churns and iterates fastest: naive, free list, packed, slot map, or slabs?
///
/// The article measures four sets of parameters. Each set makes a number of allocations, frees some objects at random,
/// replaces 500 objects in each of 1,000 frames, and walks over the remaining objects. The output also shows the
/// article's numbers, and adds slabs without magazines and slabs with a magazine for each CPU.
#[derive(Debug, Args)]
pub struct Pools {
    /// Run only these sets of the article, 1 to 4, separated by commas.
    #[arg(long, value_name = "SET", value_delimiter = ',', default_value = "1,2,3,4", value_parser = clap::value_parser!(u8).range(1..=4))]
    sets: Vec<u8>,
}

impl Pools {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "which pool allocates, churns and iterates fastest: naive, free list, packed, slot map, or slabs?";
        let mut findings = Findings::new("pools", question, context.seed);
        let mut rng = context.rng();
        // The number of rounds is small, because the naive pool's walks alone take 20 seconds in the fourth set.
        let rounds = if context.quick || context.exact { 1 } else { 5 };
        let stage = context.progress.stage("pools", (self.sets.len() * NAMES.len() * rounds) as u64);
        let mut finished_runs = 0;
        let (mut all, mut shortened) = (Vec::new(), false);
        for number in &self.sets {
            let set = &SETS[usize::from(*number) - 1];
            let walks = if context.exact { 1 } else { context.scale(set.walks) };
            let frames = context.scale(FRAMES);
            let order = Order::new(set, frames, &mut rng);
            let subsystem = if context.exact {
                four_cpu_subsystem()?
            } else {
                Subsystem::new(Config { check_frees: false, ..Config::default() })?
            };
            let mut runs = [Run::default(); NAMES.len()];
            let samples = clock::try_rounds(rounds, NAMES.len(), |design| -> anyhow::Result<_> {
                finished_runs += 1;
                stage.at(finished_runs);
                let run = run_round(design, set, &order, walks, &subsystem)?;
                runs[design] = run;
                Ok([run.build, run.churn, run.walks])
            })?;
            shortened |= !has_article_run_length(set, frames, walks);
            findings.table(table(*number, set, frames, walks, &runs, &samples));
            all.push(SetTimes { set: *number, samples });
        }
        drop(stage);
        if shortened {
            findings.note("The article's times are of 1,000 frames and all walks. They are shown next to ours if our run is equally long.");
        }
        pictures(&mut findings, &all);
        claims::claims(&mut findings, &all);
        Ok(findings)
    }
}

/// Returns `true` if a set runs at the article's full length, so that its times can be compared with the article's
/// times.
fn has_article_run_length(set: &Set, frames: usize, walks: usize) -> bool {
    (frames, walks) == (FRAMES, set.walks)
}

fn table(number: u8, set: &Set, frames: usize, walks: usize, runs: &[Run], samples: &[Samples<3>]) -> Table {
    let article = has_article_run_length(set, frames, walks);
    let design_columns = [
        "design",
        "looked at in a walk",
        "which are",
        "objects among them",
        "~allocate and free, ms",
        "~churn, ms",
        "~walks, ms",
    ];
    let article_columns = ["article: allocate and free, ms", "article: churn, ms", "article: walks, ms"];
    let mut table = Table::new(
        format!(
            "Set {number}: {} allocated, {} freed; {REPLACED_PER_FRAME} replaced in each of {frames} frames; walks: {walks}",
            set.allocs, set.frees
        ),
        &[&design_columns[..], if article { &article_columns } else { &[] }].concat(),
    );
    for (i, name) in NAMES.into_iter().enumerate() {
        // A walk over boxes is not possible.
        let if_walked = |value: Value| if runs[i].inspected > 0 { value } else { Value::Nothing };
        let counts =
            [runs[i].inspected.into(), runs[i].looks_at.into(), runs[i].active.into()].map(if_walked);
        let [build, churn, walks] = [0, 1, 2].map(|phase| samples[i].spread(phase));
        let mut row =
            [vec![name.into()], counts.into(), vec![build.into(), churn.into(), if_walked(walks.into())]]
                .concat();
        if article {
            row.extend(set.article.get(i).map_or([const { Value::Nothing }; 3], |ms| ms.map(Value::from)));
        }
        table.row(row);
    }
    table
}

/// The measurements of a set: for each design and each round, the times of the three phases.
struct SetTimes {
    set: u8,
    samples: Vec<Samples<3>>,
}

/// Draws a picture of each phase, from the set that studies the phase, or else from the first set that was run.
fn pictures(findings: &mut Findings, all: &[SetTimes]) {
    let phases = ["Allocating and freeing", "Churn", "Walks"];
    for (phase, (name, phase_set)) in phases.into_iter().zip([3, 1, 4]).enumerate() {
        let Some(SetTimes { set, samples }) =
            all.iter().find(|set_times| set_times.set == phase_set).or(all.first())
        else {
            continue;
        };
        // The last design, boxes, has no walk.
        let design_count = NAMES.len() - usize::from(phase == 2);
        let bars = NAMES
            .into_iter()
            .zip(samples)
            .take(design_count)
            .map(|(name, times)| (name, times.spread(phase).median));
        findings.bars(Bars::measured(format!("{name} in set {set}"), Axis::logarithmic("ms"), bars));
    }
}
