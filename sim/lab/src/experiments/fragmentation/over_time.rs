//! A long run that answers two questions: does fragmentation grow over time, and do searches get longer?

use super::{Context, Policy, Run, SEEDS, Sample, Spread, seeds};
use crate::experiments::load::Load;
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};

/// Of a hundred samples, the first five show a new heap. All later samples show a steady state, because the longest
/// lifetime is 4,000 operations.
const OPERATIONS: u64 = 200_000;
const MEMORY: usize = 1 << 18;
/// The thresholds: the increase in percentage points that counts as more fragmentation, and the factor that counts as
/// longer searches.
const FRAGMENTATION_INCREASE: f64 = 5.0;
const LONGER_SEARCH_FACTOR: f64 = 1.1;

/// Returns the mean number of steps per operation between the first and the last sample.
fn steps(samples: &[Sample]) -> f64 {
    let [first, .., last] = samples else { return 0.0 };
    (last.steps - first.steps) as f64 / (last.operations - first.operations).max(1) as f64
}

/// Returns the lost share of free memory and the search length, both at the beginning, in the middle and at the end of
/// a run.
fn parts_of(run: &Run) -> [[f64; 3]; 2] {
    let new = &run.outcome.samples[..(run.outcome.samples.len() / 20).max(1)];
    let parts = [new, run.samples_of_quarters(1, 2), run.samples_of_quarters(3, 4)];
    [parts.map(|samples| 100.0 - Run::mean(samples, |s| run.percent_of_possible(s))), parts.map(steps)]
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
    let (mut young_steps, mut old_steps) = (Vec::new(), Vec::new());
    let mut curves = [const { Vec::new() }; 2];
    for policy in Policy::ALL {
        let mut runs = Vec::new();
        for context in seeds(context, SEEDS) {
            let workload = Load::of(&context, "uniform:16..1024", "bimodal:20,2000,0.1", OPERATIONS)?;
            let run = policy.run(MEMORY, &workload)?;
            if runs.is_empty() {
                let sample_windows = || run.outcome.samples.windows(5).step_by(4);
                let lost_blocks = sample_windows()
                    .map(|l| (l[4].operations as f64, 100.0 - run.percent_of_possible(&l[4])))
                    .collect();
                let steps = sample_windows().map(|l| (l[4].operations as f64, steps(l))).collect();
                for (curves, points) in curves.iter_mut().zip([lost_blocks, steps]) {
                    curves.push(Series { name: policy.shown(), points });
                }
            }
            runs.push(parts_of(&run));
        }
        let spread_of = |f: &dyn Fn(&[[f64; 3]; 2]) -> f64| Spread::of(runs.iter().map(f).collect());
        let lost_blocks = [
            spread_of(&|[lost_blocks, _]| lost_blocks[1] - lost_blocks[0]),
            spread_of(&|[lost_blocks, _]| lost_blocks[2] - lost_blocks[1]),
        ];
        let slowdowns =
            [spread_of(&|[_, steps]| steps[1] / steps[0]), spread_of(&|[_, steps]| steps[2] / steps[1])];
        for (quantity, i, decimals, changes) in [
            ("not in the largest piece, %; points", 0, 1, lost_blocks),
            ("steps an operation; times", 1, 2, slowdowns),
        ] {
            let mut row = vec![Value::from(policy.shown()), quantity.into()];
            row.extend((0..3).map(|part| Value::Spread(spread_of(&|run| run[i][part]), decimals)));
            row.extend(changes.map(|change| Value::Spread(change, decimals)));
            table.row(row);
        }
        young_steps.push([
            lost_blocks[0].at_least(FRAGMENTATION_INCREASE),
            slowdowns[0].at_least(LONGER_SEARCH_FACTOR),
        ]);
        old_steps.push([
            lost_blocks[1].at_least(FRAGMENTATION_INCREASE),
            slowdowns[1].at_least(LONGER_SEARCH_FACTOR),
        ]);
    }
    findings.table(table);
    let [lost_blocks, steps] = curves;
    for (title, axis, series) in [
        (
            "Free memory that is not in the largest piece as time goes on, the first seed",
            Axis::linear("%"),
            lost_blocks,
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
    for (statement, verdicts) in [
        ("a new heap gets slower and more fragmented with time", young_steps),
        ("a heap in steady state still gets slower and more fragmented with time", old_steps),
    ] {
        let confirmed = |i: usize| verdicts.iter().filter(|v| v[i] == Holds::Yes).count();
        findings.claim(Claim {
            says: statement.into(),
            source: "Kenwright 2012, of heaps in general".into(),
            found: format!(
                "fragmentation grows under {} of {} allocators, and searches become longer under {}; {FRAGMENTATION_INCREASE} percentage points count as growth, and {LONGER_SEARCH_FACTOR} times the steps as longer searches",
                confirmed(0),
                verdicts.len(),
                confirmed(1)
            ),
            holds: Holds::each(verdicts.into_iter().flatten()),
            measured: false,
        });
    }
    Ok(())
}
