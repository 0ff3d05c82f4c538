//! Runs two workloads with equal sizes and equal mean lifetimes: the first has two kinds of lifetimes, the second has
//! one.

use super::{Context, Policy, Spread, seeds, shown};
use crate::experiments::load::Load;
use crate::findings::{Claim, Findings, Holds, Table, Value};

/// The number of seeds is large, because results differ more between two seeds than between the two kinds of workload.
const SEEDS: u64 = 30;
/// Each of the two distributions of lifetimes has a mean of 218. In the first distribution of lifetimes, a tenth of the
/// blocks live for 2,000 allocations, and all other blocks for 20.
const KINDS: [&str; 3] = ["bimodal:20,2000,0.1", "exponential:218", "uniform:1..435"];
/// The size of each allocator's memory in bytes. With a mean size of 520 bytes, slightly less than half of the memory
/// is in use at a time.
const MEMORY: usize = 1 << 18;

pub(super) fn run(context: &Context<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        format!(
            "Lifetimes of the same mean, sizes of 16 to 1,024 bytes, medians of {SEEDS} seeds: free memory that is not in the \
             largest piece, %"
        ),
        &[
            "allocator",
            "two kinds",
            "exponential",
            "even",
            "two kinds less exponential",
            "two kinds less even",
            "in use, %",
        ],
    );
    let mut parts = Vec::new();
    let (mut lower, mut higher) = (Vec::new(), Vec::new());
    for policy in Policy::ALL {
        let (mut losses, mut use_percent) = ([const { Vec::new() }; 3], Vec::new());
        for context in seeds(context, SEEDS) {
            for (kind, losses) in KINDS.into_iter().zip(&mut losses) {
                let workload = Load::of(&context, "uniform:16..1024", kind, 20_000)?;
                let run = policy.run(MEMORY, &workload)?;
                losses.push(100.0 - run.mean_percent_of_possible());
                use_percent.push(run.in_use());
            }
        }
        let [two_kinds, exponential, uniform] = losses;
        let difference_to =
            |other: &[f64]| Spread::of(two_kinds.iter().zip(other).map(|(a, b)| a - b).collect());
        let differences = [difference_to(&exponential), difference_to(&uniform)];
        let verdicts = differences.map(|difference| difference.at_most(0.0));
        match verdicts {
            [Holds::Yes, Holds::Yes] => lower.push(policy.shown()),
            [Holds::No, Holds::No] => higher.push(policy.shown()),
            _ => {}
        }
        parts.extend(verdicts);
        let mut row = vec![Value::from(policy.shown())];
        row.extend([two_kinds, exponential, uniform].map(shown));
        row.extend(differences.map(|difference| Value::Spread(difference, 1)));
        row.push(shown(use_percent));
        table.row(row);
    }
    findings.table(table);
    findings.claim(Claim {
        says: "lifetimes of two kinds keep fragmentation low: most objects die young, a few live long".into(),
        source: "Memory Allocators from Scratch, after Wilson and others 1995".into(),
        found: format!(
            "with lifetimes of two kinds, less memory is lost than with both other distributions under {}, and more under {}; the other policies show no clear difference; a difference counts if its interval over the seeds excludes 0",
            names(&lower),
            names(&higher)
        ),
        holds: Holds::each(parts),
        measured: false,
    });
    Ok(())
}

fn names(policies: &[String]) -> String {
    if policies.is_empty() { "none".to_owned() } else { policies.join(" and ") }
}
