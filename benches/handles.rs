//! Cost of a handle compared with an index, a pointer, `Arc` and `Weak`. The measured operations find an object, detect
//! a freed object, replace an object, and visit all objects. The tables show ratios to `Box`, or to the faster one of
//! `Arc` and `Weak`.

use rand::seq::SliceRandom;
use std::hint::black_box;
use std::sync::{Arc, Weak};
use std::time::Duration;
use uslab::ObjectCache;
use uslab::handle::{HandleCache, HandleTable, PackedArray, SlotMap, WrapPolicy};
use uslab_benches::work::{below, random};
use uslab_benches::{Bench, Column, Contender, Kind, clock};

type Value<const WORDS: usize> = [u64; WORDS];

fn value<const WORDS: usize>(stamp: usize) -> Value<WORDS> {
    let mut value = [0; WORDS];
    value[0] = stamp as u64;
    value
}

/// Looks up every name repeatedly, in a random order. `find` returns the stamp of the object that it finds, or 0; the
/// caller checks the sum of all stamps.
struct NameLookup {
    budget: Duration,
    objects: usize,
    stamp_sum: u64,
}

impl NameLookup {
    fn bench_lookup<N: 'static>(
        &self,
        name: &'static str,
        kind: Kind,
        mut names: Vec<N>,
        find: impl Fn(&N) -> u64 + 'static,
    ) -> Contender {
        names.shuffle(&mut random());
        let (budget, stamp_sum, objects) = (self.budget, self.stamp_sum, self.objects as u64);
        let pass = move || names.iter().fold(0_u64, |sum, name| sum.wrapping_add(find(black_box(name))));
        Contender::new(name, kind, move || {
            assert_eq!(pass(), stamp_sum, "{name} found wrong objects");
            let pass = || {
                black_box(pass());
                objects
            };
            vec![clock::measure_per_operation(budget, || false, pass)]
        })
    }

    /// Returns the contenders for finding a live object or, if `are_freed` is set, for detecting that an object was
    /// freed.
    fn contenders(budget: Duration, objects: usize, are_freed: bool) -> anyhow::Result<Vec<Contender>> {
        let stamp_sum = if are_freed { 0 } else { (objects * (objects + 1) / 2) as u64 };
        let scenario = Self { budget, objects, stamp_sum };
        let stamps = || (1..=objects).map(value::<8>);
        let (own_kind, pool, general) = (Kind::Ours, Kind::Pool, Kind::General);
        let mut all = vec![];

        let mut narrow = HandleTable::<_, u32, 8>::new();
        let names: Vec<_> = stamps().map(|value| narrow.alloc(value)).collect::<Result<_, _>>()?;
        if are_freed {
            names.iter().for_each(|name| _ = narrow.free(*name));
        }
        let find = move |name: &_| narrow.get(*name).map_or(0, |value| value[0]);
        all.push(scenario.bench_lookup("HandleTable, 24 + 8", own_kind, names, find));

        let mut table = HandleTable::<_>::new();
        let names: Vec<_> = stamps().map(|value| table.alloc(value)).collect::<Result<_, _>>()?;
        if are_freed {
            names.iter().for_each(|name| _ = table.free(*name));
        }
        let find = move |name: &_| table.get(*name).map_or(0, |value| value[0]);
        all.push(scenario.bench_lookup("HandleTable, 32 + 32", own_kind, names, find));

        let mut map = SlotMap::<_>::new();
        let names: Vec<_> = stamps().map(|value| map.alloc(value)).collect::<Result<_, _>>()?;
        if are_freed {
            names.iter().for_each(|name| _ = map.free(*name));
        }
        let find = move |name: &_| map.get(*name).map_or(0, |value| value[0]);
        all.push(scenario.bench_lookup("SlotMap", own_kind, names, find));

        let cache: HandleCache<Value<8>> =
            ObjectCache::builder("bench-handles").ctor(|| value(0)).build_handles(WrapPolicy::Retire)?;
        let name = |value: Value<8>| cache.alloc_with(|object| *object = value);
        let names: Vec<_> = stamps().map(name).collect::<Result<_, _>>()?;
        if are_freed {
            names.iter().for_each(|name| _ = cache.free(*name));
        }
        let find = move |name: &_| cache.get(*name).map_or(0, |value| value[0]);
        all.push(scenario.bench_lookup("HandleCache, held", own_kind, names, find));

        let mut slot_map = slotmap::SlotMap::new();
        let names: Vec<_> = stamps().map(|value| slot_map.insert(value)).collect();
        if are_freed {
            slot_map.clear();
        }
        let find = move |name: &_| slot_map.get(*name).map_or(0, |value: &Value<8>| value[0]);
        all.push(scenario.bench_lookup("slotmap::SlotMap", pool, names, find));

        let arcs: Vec<_> = stamps().map(Arc::new).collect();
        let names: Vec<_> = arcs.iter().map(Arc::downgrade).collect();
        let kept_arcs = if are_freed { vec![] } else { arcs };
        let find = move |name: &Weak<Value<8>>| {
            black_box(&kept_arcs);
            name.upgrade().map_or(0, |value| value[0])
        };
        all.push(scenario.bench_lookup("Weak, upgraded", general, names, find));
        if are_freed {
            return Ok(all);
        }

        let arcs: Vec<_> = stamps().map(Arc::new).collect();
        all.push(scenario.bench_lookup("Arc, cloned", general, arcs, |name| black_box(name.clone())[0]));
        let values: Vec<_> = stamps().collect();
        all.push(
            scenario
                .bench_lookup("index", pool, (0..objects).collect(), move |name: &usize| values[*name][0]),
        );
        let boxes: Vec<_> = stamps().map(Box::new).collect();
        all.push(scenario.bench_lookup("Box", pool, boxes, |name| name[0]));
        Ok(all)
    }
}

/// Repeatedly replaces a random value out of 1,000 by a new value. Shows the cost of moving values, for several value
/// sizes.
fn replace<const WORDS: usize>(budget: Duration) -> anyhow::Result<Vec<Contender>> {
    const LIVE_OBJECTS: usize = 1000;
    const CHUNK: u64 = 1000;
    let contender = |name, kind, mut replace: Box<dyn FnMut(usize, Value<WORDS>)>| {
        let mut random = random();
        Contender::new(name, kind, move || {
            let chunk = || {
                (0..CHUNK).for_each(|stamp| replace(below(&mut random, LIVE_OBJECTS), value(stamp as usize)));
                CHUNK
            };
            vec![clock::measure_per_operation(budget, || false, chunk)]
        })
    };
    let mut table = HandleTable::<Value<WORDS>>::new();
    let mut names: Vec<_> =
        (0..LIVE_OBJECTS).map(|stamp| table.alloc(value(stamp))).collect::<Result<_, _>>()?;
    let in_table = move |pick: usize, value| {
        table.free(names[pick]);
        if let Ok(name) = table.alloc(value) {
            names[pick] = name;
        }
    };
    let mut map = SlotMap::<Value<WORDS>>::new();
    let mut names: Vec<_> =
        (0..LIVE_OBJECTS).map(|stamp| map.alloc(value(stamp))).collect::<Result<_, _>>()?;
    let in_map = move |pick: usize, value| {
        map.free(names[pick]);
        if let Ok(name) = map.alloc(value) {
            names[pick] = name;
        }
    };
    let mut array = PackedArray::new();
    (0..LIVE_OBJECTS).try_for_each(|stamp| array.alloc(value(stamp)).map(drop))?;
    let in_array = move |pick: usize, value: Value<WORDS>| {
        array.free(pick);
        _ = black_box(array.alloc(value));
    };
    let mut boxes: Vec<_> = (0..LIVE_OBJECTS).map(|stamp| Some(Box::new(value::<WORDS>(stamp)))).collect();
    let in_boxes = move |pick: usize, value| {
        boxes[pick] = None;
        boxes[pick] = Some(Box::new(value));
    };
    Ok(vec![
        contender("HandleTable", Kind::Ours, Box::new(in_table)),
        contender("SlotMap", Kind::Ours, Box::new(in_map)),
        contender("PackedArray", Kind::Ours, Box::new(in_array)),
        contender("Box", Kind::General, Box::new(in_boxes)),
    ])
}

/// Sums the values that remain after `freed` per cent of 10,000 values were freed at random.
fn visit(budget: Duration, freed: usize) -> anyhow::Result<Vec<Contender>> {
    const VALUES: usize = 10_000;
    let mut table = HandleTable::<Value<4>>::new();
    let mut map = SlotMap::<Value<4>>::new();
    let mut boxes = vec![];
    let mut names = vec![];
    for stamp in 0..VALUES {
        names.push((table.alloc(value(stamp))?, map.alloc(value(stamp))?, stamp));
        boxes.push(Some(Box::new(value::<4>(stamp))));
    }
    names.shuffle(&mut random());
    for (in_table, in_map, stamp) in names.drain(..VALUES * freed / 100) {
        table.free(in_table);
        map.free(in_map);
        boxes[stamp] = None;
    }
    let expected = names.iter().map(|(.., stamp)| *stamp as u64).sum::<u64>();
    let count = names.len() as u64;
    let contender = |name, kind, pass: Box<dyn Fn() -> u64>| {
        Contender::new(name, kind, move || {
            assert_eq!(pass(), expected, "{name} visited other objects");
            let pass = || {
                black_box(pass());
                count
            };
            vec![clock::measure_per_operation(budget, || false, pass)]
        })
    };
    Ok(vec![
        contender("HandleTable", Kind::Ours, Box::new(move || table.iter().map(|(_, value)| value[0]).sum())),
        contender("SlotMap", Kind::Ours, Box::new(move || map.as_slice().iter().map(|value| value[0]).sum())),
        contender("Box", Kind::General, Box::new(move || boxes.iter().flatten().map(|value| value[0]).sum())),
    ])
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start("handles", "CPU ns to find, miss, replace and visit objects by their names");
    let budget = bench.budget();
    let ns = || [Column::lower("", "ns")];
    for objects in [1000, 100_000] {
        bench.group(
            format!("find, {objects} of 64 B"),
            ns(),
            NameLookup::contenders(budget, objects, false)?,
        );
    }
    bench.group("miss, 1000 of 64 B", ns(), NameLookup::contenders(budget, 1000, true)?);
    bench.group("replace, 16 B", ns(), replace::<2>(budget)?);
    bench.group("replace, 256 B", ns(), replace::<32>(budget)?);
    bench.group("replace, 1024 B", ns(), replace::<128>(budget)?);
    bench.group("replace, 4096 B", ns(), replace::<512>(budget)?);
    for freed in [5, 95] {
        bench.group(format!("visit 32 B, {freed} % freed"), ns(), visit(budget, freed)?);
    }
    bench.run()
}
