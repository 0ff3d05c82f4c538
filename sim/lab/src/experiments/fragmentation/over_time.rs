//! A long run, which answers two questions: does fragmentation grow over time, and do searches get longer?

use super::{Context, Policy, Run, SEEDS, Sample, Spread, seeds};
use crate::experiments::load::Load;
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};

/// Of a hundred samples, the first five show a new heap, and all later ones a steady state: the longest lifetime is
/// 4,000 operations.
const OPERATIONS: u64 = 200_000;
const MEMORY: usize = 1 << 18;
/// The increase in percentage points that counts as more fragmentation, and the factor in steps that counts as longer
/// searches.
const FRAGMENTATION_INCREASE: f64 = 5.0;
const LONGER_SEARCH_FACTOR: f64 = 1.1;

/// Returns the steps per operation over the time of some samples.
fn steps(samples: &[Sample]) -> f64 {
    let [first, .., last] = samples else { return 0.0 };
    (last.steps - first.steps) as f64 / (last.operations - first.operations).max(1) as f64
}

/// Returns the lost share and the search length in three parts of a run.
fn parts_of(run: &Run) -> [[f64; 3]; 2] {
    let new = &run.outcome.samples[..(run.outcome.samples.len() / 20).max(1)];
    let parts = [new, run.quarters(1, 2), run.quarters(3, 4)];
    [parts.map(|samples| 100.0 - Run::mean(samples, |s| run.of_possible(s))), parts.map(steps)]
}

pub(super) fn run(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        format!("{OPERATIONS} operations, lifetimes of two kinds, medians of {SEEDS} seeds: the run's first twentieth and later"),
        &[
            "allocator",
            "what",
            "first twentieth",
            "second quarter",
            "last quarter",
            "from first to second",
            "from second to last",
        ],
    )
    .named_by(2);
    let (mut young, mut old) = (Vec::new(), Vec::new());
    let mut curves = [const { Vec::new() }; 2];
    for policy in Policy::ALL {
        let mut runs = Vec::new();
        for context in seeds(context, SEEDS) {
            let loaded = Load::of(&context, "uniform:16..1024", "bimodal:20,2000,0.1", OPERATIONS)?;
            let run = policy.run(MEMORY, &loaded)?;
            if runs.is_empty() {
                let looks = || run.outcome.samples.windows(5).step_by(4);
                let lost =
                    looks().map(|l| (l[4].operations as f64, 100.0 - run.of_possible(&l[4]))).collect();
                let steps = looks().map(|l| (l[4].operations as f64, steps(l))).collect();
                for (curves, points) in curves.iter_mut().zip([lost, steps]) {
                    curves.push(Series { name: policy.shown(), points });
                }
            }
            runs.push(parts_of(&run));
        }
        let of = |f: &dyn Fn(&[[f64; 3]; 2]) -> f64| Spread::of(runs.iter().map(f).collect());
        let lost = [of(&|[lost, _]| lost[1] - lost[0]), of(&|[lost, _]| lost[2] - lost[1])];
        let longer = [of(&|[_, steps]| steps[1] / steps[0]), of(&|[_, steps]| steps[2] / steps[1])];
        for (what, i, decimals, changes) in
            [("not in the largest piece, %; points", 0, 1, lost), ("steps an operation; times", 1, 2, longer)]
        {
            let mut row = vec![Value::from(policy.shown()), what.into()];
            row.extend((0..3).map(|part| Value::Spread(of(&|run| run[i][part]), decimals)));
            row.extend(changes.map(|change| Value::Spread(change, decimals)));
            table.row(row);
        }
        young.push([lost[0].at_least(FRAGMENTATION_INCREASE), longer[0].at_least(LONGER_SEARCH_FACTOR)]);
        old.push([lost[1].at_least(FRAGMENTATION_INCREASE), longer[1].at_least(LONGER_SEARCH_FACTOR)]);
    }
    findings.table(table);
    let [lost, steps] = curves;
    for (title, axis, series) in [
        (
            "Free memory that is not in the largest piece as time goes on, the first seed",
            Axis::linear("%"),
            lost,
        ),
        ("Steps of an operation as time goes on, the first seed", Axis::logarithmic("steps"), steps),
    ] {
        findings.chart(Chart {
            title: title.into(),
            x: Axis::linear("operations"),
            y: axis,
            series,
            measured: false,
        });
    }
    for (says, verdicts) in [
        ("a new heap gets slower and more fragmented with time", young),
        ("a heap in steady state still gets slower and more fragmented with time", old),
    ] {
        let so = |i: usize| verdicts.iter().filter(|v| v[i] == Holds::Yes).count();
        findings.claim(Claim {
            says: says.into(),
            source: "Kenwright 2012, of heaps in general".into(),
            found: format!(
                "fragmentation grows under {} of {} allocators, and searches become longer under {}; {FRAGMENTATION_INCREASE} points and {LONGER_SEARCH_FACTOR} times the steps count as growth",
                so(0),
                verdicts.len(),
                so(1)
            ),
            holds: Holds::each(verdicts.into_iter().flatten()),
            measured: false,
        });
    }
    Ok(())
}
