//! What it costs to find an object by its name, and to find that it is gone.

use crate::lab::clock;
use crate::lab::experiments::Context;
use crate::lab::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use std::hint::black_box;
use std::sync::{Arc, Weak};
use uslab::handle::{HandleTable, SlotMap};

/// 64 bytes, of which the first word tells the object from the others.
type Object = [u64; 8];

fn object(stamp: usize) -> Object {
    [stamp as u64 + 1, 0, 0, 0, 0, 0, 0, 0]
}

/// Looks up all objects by their names in random order, once.
type Pass = Box<dyn Fn() -> u64>;

/// A pass over `names`, and what it is called.
fn by<N: 'static>(mut names: Vec<N>, rng: &mut Pcg64, find: impl Fn(&N) -> u64 + 'static) -> Pass {
    names.shuffle(rng);
    Box::new(move || names.iter().fold(0, |sum, name| sum + find(black_box(name))))
}

/// All ways to find `n` objects; where they are `gone`, only those that can tell.
fn passes(n: usize, gone: bool, rng: &mut Pcg64) -> anyhow::Result<Vec<(&'static str, Pass)>> {
    let mut all = Vec::new();
    let mut narrow = HandleTable::<Object, u32, 8>::new();
    let names = (0..n).map(|i| narrow.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if gone {
        names.iter().for_each(|name| _ = narrow.free(*name));
    }
    all.push((
        "table, 24 + 8 bits",
        by(names, rng, move |name| narrow.get(*name).map_or(0, |object| object[0])),
    ));
    let mut wide = HandleTable::<Object>::new();
    let names = (0..n).map(|i| wide.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if gone {
        names.iter().for_each(|name| _ = wide.free(*name));
    }
    all.push((
        "table, 32 + 32 bits",
        by(names, rng, move |name| wide.get(*name).map_or(0, |object| object[0])),
    ));
    let mut map = SlotMap::<Object>::new();
    let names = (0..n).map(|i| map.alloc(object(i))).collect::<Result<Vec<_>, _>>()?;
    if gone {
        names.iter().for_each(|name| _ = map.free(*name));
    }
    all.push(("slot map", by(names, rng, move |name| map.get(*name).map_or(0, |object| object[0]))));
    let mut kept: Vec<Arc<Object>> = (0..n).map(|i| Arc::new(object(i))).collect();
    let names: Vec<Weak<Object>> = kept.iter().map(Arc::downgrade).collect();
    if gone {
        kept.clear();
    }
    let upgrade = move |name: &Weak<Object>| {
        black_box(&kept);
        name.upgrade().map_or(0, |object| object[0])
    };
    all.push((WEAK, by(names, rng, upgrade)));
    if !gone {
        let arcs: Vec<_> = (0..n).map(|i| Arc::new(object(i))).collect();
        all.push(("Arc, cloned", by(arcs, rng, |name| black_box(Arc::clone(name))[0])));
        let boxes: Vec<_> = (0..n).map(|i| Box::new(object(i))).collect();
        all.push(("Box", by(boxes, rng, |name| name[0])));
        let objects: Vec<_> = (0..n).map(object).collect();
        all.push(("index", by((0..n).collect(), rng, move |name: &usize| objects[*name][0])));
    }
    Ok(all)
}

const WEAK: &str = "Weak, upgraded";

/// Nanoseconds a look-up, by name.
fn measured(context: &Context<'_>, n: usize, gone: bool) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let passes = passes(n, gone, &mut context.rng())?;
    let expected = if gone { 0 } else { (n as u64) * (n as u64 + 1) / 2 };
    for (name, pass) in &passes {
        anyhow::ensure!(pass() == expected, "{name} found other objects");
    }
    let repeats = (context.scale(2_000_000) / n).max(1);
    let medians = clock::medians(context.rounds(), passes.len(), |i| {
        let time = clock::nanoseconds(|| {
            for _ in 0..repeats {
                black_box((passes[i].1)());
            }
        });
        [time / (repeats * n) as f64]
    });
    Ok(passes.iter().zip(medians).map(|((name, _), [time])| (*name, time)).collect())
}

/// Times of all names, for so many objects each.
pub(super) fn times(context: &Context<'_>, objects: &[u32], findings: &mut Findings) -> anyhow::Result<()> {
    let stage = context.progress.stage("handles", 2 * objects.len() as u64);
    for (i, n) in objects.iter().enumerate() {
        let found = measured(context, *n as usize, false)?;
        stage.at(2 * i as u64 + 1);
        let gone = measured(context, *n as usize, true)?;
        stage.at(2 * i as u64 + 2);
        let mut table = Table::new(
            format!("One of {n} objects of 64 bytes, in random order, ns"),
            &["by", "~found", "~of the index", "~found gone"],
        );
        let index = found.last().map_or(1.0, |(_, time)| *time);
        let of = |times: &[(&str, f64)], wanted: &str| {
            times.iter().find(|(name, _)| *name == wanted).map(|(_, time)| *time)
        };
        for (name, time) in &found {
            let ratio = Value::from(time / index);
            table.row(vec![(*name).into(), (*time).into(), ratio, of(&gone, name).into()]);
        }
        findings.table(table);
        findings.bars(Bars::measured(
            format!("Finding one of {n} objects"),
            Axis::linear("ns"),
            found.iter().copied(),
        ));
        if let (Some(weak), Some(handle)) = (of(&found, WEAK), of(&found, "table, 24 + 8 bits")) {
            let weak_gone = of(&gone, WEAK).unwrap_or(0.0) / of(&gone, "table, 24 + 8 bits").unwrap_or(1.0);
            findings.claim(Claim {
                says: "a handle costs less than a weak pointer".into(),
                source: "Memory Allocators from Scratch".into(),
                found: format!(
                    "with {n} objects a Weak takes {:.1} times as long as a handle to find one, {weak_gone:.1} times to find \
                     that it is gone",
                    weak / handle
                ),
                holds: match (weak > handle, weak_gone > 1.0) {
                    (true, true) => Holds::Yes,
                    (false, false) => Holds::No,
                    _ => Holds::Partly,
                },
                measured: true,
            });
        }
    }
    Ok(())
}
