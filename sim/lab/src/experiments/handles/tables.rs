//! Handles step by step: a table, the indirections of a slot map, names that become invalid, and the effect of loading
//! a saved table.

use crate::findings::{Axis, Bars, Claim, Findings, Holds, Table, Value};
use anyhow::{Context as _, ensure};
use core::mem::offset_of;
use std::sync::Arc;
use uslab::handle::{
    Generations, Handle, Handle16x16, Handle20x12, Handle24x8, Handle32x32, HandleTable, PackedArray,
    SlotMap, StableIds,
};

fn shown(handle: Handle24x8) -> String {
    format!("{:#010x}", handle.to_bits())
}
fn shown_value<T: core::fmt::Display>(value: Option<T>) -> Value {
    value.map_or_else(|| "rejected".into(), |value| value.to_string().into())
}

/// Shows how an object is created and freed, and how a lookup with its old handle fails.
pub(super) fn walk(findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        "A table of 24 + 8 bits, step by step",
        &["step", "handle", "slot", "generation", "get says", "in use"],
    );
    let mut objects = HandleTable::<&str, u32, 8>::new();
    let mut row = |step: &str, handle: Handle24x8, result: Value, in_use: usize| {
        let slot = u64::from(handle.index());
        let generation = u64::from(handle.generation());
        table.row(vec![
            step.into(),
            shown(handle).into(),
            slot.into(),
            generation.into(),
            result,
            in_use.into(),
        ]);
    };
    let imp = objects.alloc("imp")?;
    row("spawn imp", imp, shown_value(objects.get(imp)), objects.len());
    let door_handle = objects.alloc("door")?;
    row("spawn door", door_handle, shown_value(objects.get(door_handle)), objects.len());
    let freed = objects.free(imp);
    ensure!(freed == Some("imp"), "the imp was freed as {freed:?}");
    row("free imp; the old handle", imp, shown_value(objects.get(imp)), objects.len());
    let baron = objects.alloc("baron")?;
    row("spawn baron, in its slot", baron, shown_value(objects.get(baron)), objects.len());
    row("the old handle", imp, shown_value(objects.get(imp)), objects.len());
    let freed = objects.free(imp);
    row("free by the old handle", imp, shown_value(freed), objects.len());
    row("the door's handle", door_handle, shown_value(objects.get(door_handle)), objects.len());
    let unknown = Handle24x8::new(99, 1).context("99 has 24 bits")?;
    row("a slot beyond the table", unknown, shown_value(objects.get(unknown)), objects.len());
    findings.table(table);
    Ok(())
}

/// Shows a slot map into which A, B and C are inserted; then B is removed, and D is inserted.
pub(super) fn indirections(findings: &mut Findings) -> anyhow::Result<()> {
    let mut table = Table::new(
        "A slot map: the place of each value, and the handle that finds it; `-` means no value",
        &["step", "values", "dense to sparse", "sparse to dense", "generations", "A", "B", "C", "D"],
    );
    let mut map = SlotMap::<char, u32, 8>::new();
    let mut names: Vec<(char, Handle24x8)> = Vec::new();
    let mut row = |step: &str, map: &SlotMap<char, u32, 8>, names: &[(char, Handle24x8)]| {
        let list = |items: Vec<String>| Value::from(items.join(" "));
        let slots = 0..names.iter().map(|(_, handle)| handle.index() + 1).max().unwrap_or(0);
        let owner =
            |slot| names.iter().find(|(_, handle)| handle.index() == slot && map.is_valid(*handle)).copied();
        let value_of = |slot, what: &dyn Fn(Handle24x8) -> Option<String>| {
            owner(slot).and_then(|(_, handle)| what(handle)).unwrap_or_else(|| "-".into())
        };
        let place = |handle| map.place(handle).map(|place| place.to_string());
        let generation = |handle: Handle24x8| Some(handle.generation().to_string());
        let mut values = vec![
            step.into(),
            list(map.as_slice().iter().map(char::to_string).collect()),
            list(map.handles().iter().map(|handle| handle.index().to_string()).collect()),
            list(slots.clone().map(|slot| value_of(slot, &place)).collect()),
            list(slots.map(|slot| value_of(slot, &generation)).collect()),
        ];
        for name in 'A'..='D' {
            let handle = names.iter().find(|(known_name, _)| *known_name == name);
            values.push(handle.map_or(Value::Nothing, |(_, handle)| {
                let handle_text = format!("{}.{}", handle.index(), handle.generation());
                match map.get(*handle) {
                    Some(found) => format!("{handle_text}: {found}").into(),
                    None => format!("{handle_text}: rejected").into(),
                }
            }));
        }
        table.row(values);
    };
    for name in ['A', 'B', 'C'] {
        names.push((name, map.alloc(name)?));
    }
    row("A, B, C come", &map, &names);
    let freed = map.free(names[1].1);
    ensure!(freed == Some('B'), "B was freed as {freed:?}");
    row("B goes", &map, &names);
    names.push(('D', map.alloc('D')?));
    row("D comes", &map, &names);
    let freed = map.free(names[2].1);
    ensure!(freed == Some('C'), "C was freed as {freed:?}");
    row("C goes", &map, &names);
    findings.table(table);
    Ok(())
}

/// Shows a table of a hundred particles: a tool keeps index 5, and the particle at this index is freed.
pub(super) fn show_wrong_particle(findings: &mut Findings) -> anyhow::Result<()> {
    const MARKED_PARTICLE: usize = 5;
    let mut array = PackedArray::new();
    let mut map = SlotMap::<usize>::new();
    let mut table = HandleTable::<usize>::new();
    let (mut in_map, mut in_table) = (Vec::new(), Vec::new());
    for particle in 0..100 {
        array.alloc(particle)?;
        in_map.push(map.alloc(particle)?);
        in_table.push(table.alloc(particle)?);
    }
    let mut rows = Table::new(
        "Particle 5 of 100 is freed: which particles do the kept names find?",
        &["name", "of 5 before", "of 5 after", "of 99 after", "loops over"],
    );
    let before =
        [array.get(MARKED_PARTICLE), map.get(in_map[MARKED_PARTICLE]), table.get(in_table[MARKED_PARTICLE])]
            .map(shown_value);
    let freed = [
        array.free(MARKED_PARTICLE),
        map.free(in_map[MARKED_PARTICLE]),
        table.free(in_table[MARKED_PARTICLE]),
    ]
    .map(|freed| freed == Some(5));
    ensure!(freed == [true; 3], "another particle was freed");
    let after =
        [array.get(MARKED_PARTICLE), map.get(in_map[MARKED_PARTICLE]), table.get(in_table[MARKED_PARTICLE])]
            .map(shown_value);
    let last = [array.get(99), map.get(in_map[99]), table.get(in_table[99])].map(shown_value);
    let names = ["packed array, index", "slot map, handle", "table, handle"];
    let loops = ["99 values", "99 values", "100 slots"];
    for ((((name, before), after), last), loops) in
        names.into_iter().zip(before).zip(after).zip(last).zip(loops)
    {
        rows.row(vec![name.into(), before, after, last, loops.into()]);
    }
    findings.table(rows);
    Ok(())
}

/// Shows lookups in a table that was loaded from a file; the objects were saved by handle and by name.
pub(super) fn reload(findings: &mut Findings) -> anyhow::Result<()> {
    let mut old_table = HandleTable::<&str, u32, 8>::new();
    let mut ids = StableIds::new();
    for name in ["key", "imp"] {
        ids.insert(name, old_table.alloc(name)?)?;
    }
    let player = old_table.alloc("player")?;
    ids.insert("player", player)?;
    let saved_values: Vec<&str> =
        old_table.iter().filter_map(|(handle, _)| ids.id(handle)).copied().collect();
    // The objects are loaded in reverse order, because a file need not keep the old table's order.
    let load = |generations: Generations| {
        let mut new = HandleTable::<&str, u32, 8>::with(generations);
        let mut ids = StableIds::new();
        for name in saved_values.iter().rev() {
            ids.insert(*name, new.alloc(*name)?)?;
        }
        anyhow::Ok((new, ids))
    };
    let first = old_table.fresh_generation().context("a generation that was not used")?;
    let (naive, _) = load(Generations::default())?;
    let (new_table, new) = load(Generations { first, ..Generations::default() })?;
    let translated = new.handle("player").context("the player was loaded")?;
    let mut table = Table::new(
        "The player's handle, saved, after a load",
        &["the new table", "handle", "slot", "generation", "finds"],
    );
    for (name, world, handle) in [
        ("the old one", &old_table, player),
        ("begins at generation 1: the saved handle", &naive, player),
        ("begins at a fresh generation: the saved handle", &new_table, player),
        ("the same: the saved name's handle", &new_table, translated),
    ] {
        let (slot, generation) = (u64::from(handle.index()), u64::from(handle.generation()));
        table.row(vec![
            name.into(),
            shown(handle).into(),
            slot.into(),
            generation.into(),
            shown_value(world.get(handle)),
        ]);
    }
    findings.table(table);
    Ok(())
}

/// The slot of the tutorial's listing, whose generation follows the value.
#[allow(dead_code, reason = "for its layout")]
#[repr(C)]
struct SlotWithGeneration<T> {
    value: T,
    generation: u32,
    alive: bool,
}

const LINE: usize = 64;

/// Shows three sizes: the bytes of a name, the bytes that a table needs in addition to its objects, and the bytes that
/// a check reads.
pub(super) fn sizes(findings: &mut Findings) {
    let mut table = Table::new(
        "Bytes",
        &["name", "of it", "of an Option of it", "slots", "beside each object in a table", "in a slot map"],
    );
    let mut bars = Vec::new();
    /// Adds a row for the handle type `$handle`, whose words have the type `$word`. A table keeps one word for each
    /// slot; a slot map keeps a word, an index and the reverse index.
    macro_rules! row {
        ($($name:literal $handle:ty, $word:ty;)+) => {$(
            let word = size_of::<$word>();
            let in_map = word + size_of::<u32>() + size_of::<$handle>();
            bars.push((concat!($name, ", table"), (size_of::<$handle>() + word) as f64));
            bars.push((concat!($name, ", slot map"), (size_of::<$handle>() + in_map) as f64));
            table.row(vec![
                $name.into(),
                size_of::<$handle>().into(),
                size_of::<Option<$handle>>().into(),
                <$handle>::SLOTS.into(),
                word.into(),
                in_map.into(),
            ]);
        )+};
    }
    row! {
        "handle, 24 + 8 bits" Handle24x8, u32;
        "handle, 20 + 12 bits" Handle20x12, u32;
        "handle, 16 + 16 bits" Handle16x16, u32;
        "handle, 32 + 32 bits" Handle32x32, u64;
    }
    let pointers = [
        ("index", size_of::<u32>(), size_of::<Option<u32>>(), 0),
        ("Box", size_of::<Box<u64>>(), size_of::<Option<Box<u64>>>(), 0),
        // An Arc stores two counts before the value.
        ("Arc, Weak", size_of::<Arc<u64>>(), size_of::<Option<Arc<u64>>>(), 2 * size_of::<usize>()),
    ];
    for (name, handle_bytes, option, extra_bytes) in pointers {
        bars.push((name, (handle_bytes + extra_bytes) as f64));
        table.row(vec![
            name.into(),
            handle_bytes.into(),
            option.into(),
            Value::Nothing,
            extra_bytes.into(),
            Value::Nothing,
        ]);
    }
    findings.table(table);
    let title = "A name, and the bytes per object that its lookup needs";
    findings.bars(Bars::exact(title, Axis::linear("bytes"), bars));
    findings.note(
        "A table also has the tag of an Option for each value, and Box and Arc what malloc keeps for an allocation of its own. \
         The tutorial counts 24 bytes for the control block of C++'s shared_ptr.",
    );
    // A lookup by a valid handle loads the generation's line, and the first line of the value if the value begins in
    // another line.
    let lines_behind = [
        offset_of!(SlotWithGeneration<[u8; 64]>, generation),
        offset_of!(SlotWithGeneration<[u8; 4096]>, generation),
    ]
    .map(|offset| offset / LINE);
    let lines_when_together = lines_behind.map(|lines| 1 + usize::from(lines > 0));
    let lines_when_apart = 2;
    let costs = [1, lines_when_together[0], lines_when_together[1], lines_when_apart];
    findings.claim(Claim {
        says: "a handle is checked by one compare and the load of one cache line".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "a lookup by a stale handle loads {} line, which has the generation; a lookup by a valid handle loads {} if the generation follows a value of 64 bytes ({} line later), {} if it follows a value of 4,096 bytes ({} lines later), and {} if generations have a separate array ({} generations per line)",
            costs[0], costs[1], lines_behind[0], costs[2], lines_behind[1], costs[3], LINE / size_of::<u32>()
        ),
        holds: match costs.iter().filter(|lines| **lines == 1).count() {
            0 => Holds::No,
            n if n == costs.len() => Holds::Yes,
            _ => Holds::Partly,
        },
        measured: false,
    });
    const {
        const fn plain<T: Copy + Send + Sync>() {}
        plain::<Handle>();
    }
}
