//! Measures the cost of finding an object by its name, and the cost of detecting that the object was freed.

use crate::experiments::Context;
use crate::findings::clock::{self, Samples};
use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table};
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::hint::black_box;
use std::sync::{Arc, Weak};
use uslab::handle::{HandleTable, SlotMap};

/// An object of 64 bytes, whose first word identifies the object.
type Object = [u64; 8];

fn object(stamp: usize) -> Object {
    [stamp as u64 + 1, 0, 0, 0, 0, 0, 0, 0]
}

/// A measured pass, which looks up each object once by name, in random order.
type LookupPass = Box<dyn Fn() -> u64>;

/// Returns a pass that looks up all `names` with `find`.
fn lookup_pass<N: 'static>(
    mut names: Vec<N>,
    rng: &mut Pcg64,
    find: impl Fn(&N) -> u64 + 'static,
) -> LookupPass {
    names.shuffle(rng);
    Box::new(move || names.iter().fold(0, |sum, name| sum + find(black_box(name))))
}

/// Returns all methods of finding one of `n` objects. If `freed` is true, the objects are already freed, and the list
/// has only methods that detect this.
fn passes(n: usize, freed: bool, rng: &mut Pcg64) -> anyhow::Result<Vec<(&'static str, LookupPass)>> {
    let mut all = Vec::new();
    let mut narrow = HandleTable::<Object, u32, 8>::new();
    let names = (0..n).map(|i| narrow.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if freed {
        names.iter().for_each(|name| _ = narrow.free(*name));
    }
    all.push((
        "table, 24 + 8 bits",
        lookup_pass(names, rng, move |name| narrow.get(*name).map_or(0, |object| object[0])),
    ));
    let mut wide_table = HandleTable::<Object>::new();
    let names = (0..n).map(|i| wide_table.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if freed {
        names.iter().for_each(|name| _ = wide_table.free(*name));
    }
    all.push((
        "table, 32 + 32 bits",
        lookup_pass(names, rng, move |name| wide_table.get(*name).map_or(0, |object| object[0])),
    ));
    let mut map = SlotMap::<Object>::new();
    let names = (0..n).map(|i| map.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if freed {
        names.iter().for_each(|name| _ = map.free(*name));
    }
    all.push(("slot map", lookup_pass(names, rng, move |name| map.get(*name).map_or(0, |object| object[0]))));
    let mut kept_objects: Vec<Arc<Object>> = (0..n).map(|i| Arc::new(object(i))).collect();
    let names: Vec<Weak<Object>> = kept_objects.iter().map(Arc::downgrade).collect();
    if freed {
        kept_objects.clear();
    }
    let upgrade = move |name: &Weak<Object>| {
        black_box(&kept_objects);
        name.upgrade().map_or(0, |object| object[0])
    };
    all.push((WEAK_REFERENCE, lookup_pass(names, rng, upgrade)));
    if !freed {
        let arcs: Vec<_> = (0..n).map(|i| Arc::new(object(i))).collect();
        all.push(("Arc, cloned", lookup_pass(arcs, rng, |name| black_box(Arc::clone(name))[0])));
        let boxes: Vec<_> = (0..n).map(|i| Box::new(object(i))).collect();
        all.push(("Box", lookup_pass(boxes, rng, |name| name[0])));
        let objects: Vec<_> = (0..n).map(object).collect();
        all.push(("index", lookup_pass((0..n).collect(), rng, move |name: &usize| objects[*name][0])));
    }
    Ok(all)
}

const WEAK_REFERENCE: &str = "Weak, upgraded";

/// Measures the nanoseconds per lookup, for each method.
fn measure(context: &Context<'_>, n: usize, freed: bool) -> anyhow::Result<Vec<(&'static str, Samples<1>)>> {
    let passes = passes(n, freed, &mut context.rng())?;
    let expected = if freed { 0 } else { (n as u64) * (n as u64 + 1) / 2 };
    for (name, pass) in &passes {
        anyhow::ensure!(pass() == expected, "{name} found wrong objects");
    }
    let repeats = (context.scale(2_000_000) / n).max(1);
    let samples = clock::rounds(context.rounds(), passes.len(), |i| {
        let time = clock::nanoseconds(|| {
            for _ in 0..repeats {
                black_box((passes[i].1)());
            }
        });
        [time / (repeats * n) as f64]
    });
    Ok(passes.iter().map(|(name, _)| *name).zip(samples).collect())
}

/// Reports the times of all methods, for each number of objects.
pub(super) fn times(context: &Context<'_>, objects: &[u32], findings: &mut Findings) -> anyhow::Result<()> {
    let stage = context.progress.stage("handles", 2 * objects.len() as u64);
    for (i, n) in objects.iter().enumerate() {
        let measurements = measure(context, *n as usize, false)?;
        stage.at(2 * i as u64 + 1);
        let freed = measure(context, *n as usize, true)?;
        stage.at(2 * i as u64 + 2);
        let mut table = Table::new(
            format!("One of {n} objects of 64 bytes, in random order, ns"),
            &["by", "~found", "~of the index", "~found gone"],
        );
        let samples_of = |times: &[(&str, Samples<1>)], wanted_name: &str| {
            times.iter().find(|(name, _)| *name == wanted_name).map(|(_, samples)| samples.clone())
        };
        let index = samples_of(&measurements, "index");
        for (name, samples) in &measurements {
            let ratio = index.as_ref().map(|index| samples.times(index, 0));
            let freed = samples_of(&freed, name).map(|samples| samples.spread(0));
            table.row(vec![(*name).into(), samples.spread(0).into(), ratio.into(), freed.into()]);
        }
        findings.table(table);
        findings.bars(Bars::measured(
            format!("Finding one of {n} objects"),
            Axis::linear("ns"),
            measurements.iter().map(|(name, samples)| (*name, samples.spread(0).median)),
        ));
        // The ratio of a Weak's lookup time to a handle's, in the same rounds.
        let ratio_of_weak = |times| {
            Some(samples_of(times, WEAK_REFERENCE)?.times(&samples_of(times, "table, 24 + 8 bits")?, 0))
        };
        if let (Some(weak), Some(weak_gone)) = (ratio_of_weak(&measurements), ratio_of_weak(&freed)) {
            findings.claim(Claim {
                says: "a handle costs less than a weak pointer".into(),
                source: "Memory Allocators from Scratch".into(),
                found: format!(
                    "with {n} objects, a Weak takes {} times as long as a handle to find an object, and {} times as long to detect a freed object",
                    weak.shown(1),
                    weak_gone.shown(1)
                ),
                holds: Holds::each([weak, weak_gone].map(|ratio| ratio.at_least(1.0))),
                measured: true,
            });
        }
    }
    Ok(())
}
