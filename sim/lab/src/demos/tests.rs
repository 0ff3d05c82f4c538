use super::*;
use crate::allocators::Holes;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn command(text: &str) -> Command {
    text.parse().unwrap()
}

/// Runs a demo's script. Returns the sentences of all scenes, and the last scene.
fn run(name: Name, script: &[&str]) -> (Vec<String>, Scene) {
    let mut demo = name.make().unwrap();
    let scenes: Vec<_> = script.iter().map(|text| demo.act(&command(text))).collect();
    (scenes.iter().map(|scene| scene.said.clone()).collect(), scenes[scenes.len() - 1].clone())
}

/// Returns the number of bytes of headers and tags in a free block.
fn tags(name: Name) -> usize {
    match name {
        Name::FirstFit | Name::BestFit | Name::WorstFit => 8,
        Name::Tlsf => 4,
        _ => 0,
    }
}

/// The demos that compare several allocators.
const COMPARISON_DEMOS: [Name; 4] = [Name::FiftyPercent, Name::Robson, Name::Pinning, Name::SlabsOverBuddy];
/// The demos whose memory has no free pieces, or that have several memories.
const DEMOS_WITHOUT_HOLE_COUNTS: [Name; 9] = [
    Name::LazyPool,
    Name::Handles,
    Name::HandlesWrap,
    Name::Packed,
    Name::Layout,
    COMPARISON_DEMOS[0],
    COMPARISON_DEMOS[1],
    COMPARISON_DEMOS[2],
    COMPARISON_DEMOS[3],
];

/// Checks that the ranges of a scene cover the memory without gaps, and that its free ranges equal the free pieces that
/// the allocator reports.
fn check(name: Name, scene: &Scene) {
    let mut end = 0;
    for part in &scene.parts {
        assert_eq!(part.at, end, "{name:?}: {:?}", scene.parts);
        end += part.bytes;
    }
    let bytes = match name {
        Name::Linear | Name::Stack | Name::LazyPool => 256,
        Name::Handles | Name::HandlesWrap => 128,
        Name::Packed => 192,
        Name::Layout => 512,
        Name::Pool => 24 * 96,
        Name::Tlsf => 4096,
        Name::Arena => 5 * 4096,
        Name::ChunkedPool | Name::ReservedPool => 4 * 4096,
        lanes if COMPARISON_DEMOS.contains(&lanes) => 0,
        _ => 1024,
    };
    assert_eq!(end, bytes, "{name:?}");
    assert_eq!(scene.strip().chars().count(), 64);
    if DEMOS_WITHOUT_HOLE_COUNTS.contains(&name) {
        return;
    }
    let mut holes = Holes::default();
    let free = scene.parts.iter().filter(|part| part.is == Is::Free);
    free.for_each(|part| holes.add(part.bytes - tags(name)));
    assert_eq!(holes, scene.holes, "{name:?}: {:?}", scene.parts);
}

#[test]
fn each_demo_script_produces_complete_scenes() {
    for name in Name::ALL {
        let mut demo = name.make().unwrap();
        for text in name.about().script {
            assert_eq!(command(text).to_string(), *text);
            let before = demo.scene();
            let scene = demo.act(&command(text));
            check(name, &scene);
            check_structure(&before, &scene);
        }
    }
}

#[test]
fn demo_web_page_opens_after_an_informative_step() {
    for About { name, script, telling: opening_length, .. } in Name::ALL.map(Name::about) {
        let (_, scene) = run(name, &script[..opening_length]);
        let structure = scene.structure.unwrap();
        let lanes = if let Shape::Lanes { lanes, .. } = &structure.shape { lanes.as_slice() } else { &[] };
        let mut parts = scene.parts.iter().chain(lanes.iter().flat_map(|lane| &lane.parts));
        assert!(parts.any(|part| matches!(part.is, Is::Used(_))), "{name:?}: a block must be in use");
        assert!(!structure.steps.is_empty(), "{name:?}: `{}` must have steps", script[opening_length - 1]);
        assert!(!structure.text.is_empty(), "{name:?}");
    }
}

/// Returns the positions and sizes of a structure's free blocks.
fn free_blocks(shape: &Shape) -> Option<BTreeMap<usize, usize>> {
    Some(match shape {
        Shape::Tree { unit, lists } => (0..)
            .zip(lists)
            .flat_map(|(order, list)| list.iter().map(move |position| (*position, unit << order)))
            .collect(),
        Shape::Grid { rows } => {
            let cells = rows.iter().flat_map(|row| &row.cells);
            cells.flat_map(|cell| &cell.list).map(|block| (block.at, block.bytes)).collect()
        }
        Shape::List { blocks } => blocks.iter().map(|block| (block.at, block.bytes)).collect(),
        _ => return None,
    })
}

/// Applies the steps of a command to the list of free blocks before the command.
fn replay(mut free: BTreeMap<usize, usize>, structure: &Structure) -> BTreeMap<usize, usize> {
    let is_tree = matches!(structure.shape, Shape::Tree { .. });
    let mut inspected = None;
    for Step { said: sentence, on } in &structure.steps {
        match *on {
            On::Split { at: position, bytes } => {
                assert_eq!(free.insert(position & !bytes, bytes), Some(2 * bytes), "{sentence}");
                free.insert(position, bytes);
            }
            On::Inspect { at: position, bytes, kept: true } => inspected = Some((position, bytes)),
            On::Take { at: position, bytes } if is_tree => {
                assert_eq!(free.remove(&position), Some(bytes), "{sentence}")
            }
            // The search ended at the block that serves the request.
            On::Take { at: position, bytes } => {
                let (block_start, size) = inspected.unwrap();
                assert!(block_start <= position && position + bytes <= block_start + size, "{sentence}");
                assert_eq!(free.remove(&block_start), Some(size), "{sentence}");
            }
            On::Neighbour { at: position, bytes, merged: true } => {
                assert_eq!(free.remove(&position), Some(bytes), "{sentence}")
            }
            On::Put { at: position, bytes } => assert_eq!(free.insert(position, bytes), None, "{sentence}"),
            _ => {}
        }
    }
    free
}

/// Checks that the structure agrees with the memory, and that the steps lead from the state `before` to `scene`.
fn check_structure(before: &Scene, scene: &Scene) {
    let Some(structure) = &scene.structure else { return };
    let is_used = |block: &str| scene.parts.iter().any(|part| part.is == Is::Used(block.to_owned()));
    if let Some(listed_blocks) = free_blocks(&structure.shape) {
        let free = scene.parts.iter().filter(|part| part.is == Is::Free);
        assert_eq!(listed_blocks, free.map(|part| (part.at, part.bytes)).collect());
        let old_blocks = before.structure.as_ref().and_then(|before| free_blocks(&before.shape)).unwrap();
        assert_eq!(replay(old_blocks, structure), listed_blocks, "{}: {:?}", scene.said, structure.steps);
    }
    match &structure.shape {
        Shape::Grid { rows } => {
            for row in rows {
                assert!(row.cells.iter().all(|cell| cell.bit != cell.list.is_empty()), "{row:?}");
                assert_eq!(row.bit, row.cells.iter().any(|cell| cell.bit), "{row:?}");
            }
        }
        Shape::Chain { slot, list, opened, .. } => {
            let mut slots = list.clone();
            slots.sort_unstable();
            let free = scene.parts.iter().filter(|part| part.is == Is::Free && part.at / slot < *opened);
            assert_eq!(slots, free.map(|part| part.at / slot).collect::<Vec<_>>());
        }
        Shape::Chunks { slot, bytes, chunks } => {
            let header = bytes % slot;
            let position = |at: usize, number: &usize| at + header + number * slot;
            let slots = chunks.iter().flat_map(|chunk| chunk.list.iter().map(move |n| position(chunk.at, n)));
            let mut slots: Vec<_> = slots.collect();
            slots.sort_unstable();
            let free = scene.parts.iter().filter(|part| part.is == Is::Free);
            assert_eq!(slots, free.map(|part| part.at).collect::<Vec<_>>());
            let mapped = scene.parts.iter().filter(|part| part.is == Is::Tag).count();
            assert_eq!(chunks.len(), mapped);
            assert!(
                chunks.is_sorted_by_key(|chunk| chunk.list.is_empty()),
                "full chunks must be at the back"
            );
        }
        Shape::Head { head, .. } => {
            let free = scene.parts.iter().find(|part| part.is == Is::Free);
            assert_eq!(free.map_or(*head, |part| part.at), *head);
        }
        Shape::Slots { handles, slots, .. } => {
            for handle in handles {
                let slot = &slots[handle.slot as usize];
                let object = slot.object.clone().filter(|_| slot.generation == Some(handle.generation));
                assert_eq!(handle.finds, object, "{handle:?}, {slot:?}");
            }
        }
        Shape::Packed { handles, places, values, holes, reads, checks } => {
            for handle in handles.iter().filter(|handle| handle.finds.is_some()) {
                assert_eq!(handle.finds.as_ref(), places[handle.slot as usize].map(|place| &values[place]));
            }
            let mut held_blocks: Vec<_> = holes.iter().flatten().cloned().collect();
            held_blocks.sort_unstable();
            let mut packed = values.clone();
            packed.sort_unstable();
            assert_eq!(held_blocks, packed);
            assert!(values.iter().all(|value| is_used(value)));
            assert_eq!((*reads, *checks), (values.len(), holes.len()));
        }
        Shape::Lines { arrays, line, .. } => {
            for array in arrays {
                let lines = array.used.chunks(line / 4);
                let loaded_lines: Vec<_> = lines.map(|numbers| numbers.contains(&true)).collect();
                assert_eq!(array.loaded, loaded_lines, "{}", array.layout);
            }
        }
        Shape::Lanes { bytes, kinds, lanes, frames, .. } => {
            assert_eq!(frames.len(), structure.steps.len().saturating_sub(1), "{}", scene.said);
            for Lane { name, parts, .. } in frames.iter().flatten().chain(lanes) {
                let end = parts.iter().fold(0, |end, part| {
                    assert_eq!(part.at, end, "{name}: {parts:?}");
                    end + part.bytes
                });
                assert!(end <= *bytes, "{name}");
                for part in parts {
                    assert!(!matches!(&part.is, Is::Used(block) if !kinds.contains(block)), "{part:?}");
                }
            }
        }
        Shape::Tree { .. } | Shape::List { .. } => {}
    }
}

proptest! {
    #[test]
    fn random_commands_produce_consistent_scenes(name in prop::sample::select(&Name::ALL[..]), picks in prop::collection::vec((0..10_u8, 0..200_usize), 1..60)) {
        let mut demo = name.make().unwrap();
        let mut live_blocks: Vec<String> = vec![];
        for (command_kind, n) in picks {
            let command = match command_kind {
                0 if n % 4 == 0 => Command::Get { block: "a".to_owned() },
                0..=5 if DEMOS_WITHOUT_HOLE_COUNTS.contains(&name) => Command::Alloc { bytes: None, align: 1 },
                0..=5 => Command::Alloc { bytes: Some(n), align: 1 << (n % 6) },
                6..=7 if !live_blocks.is_empty() => Command::Free { block: live_blocks[n % live_blocks.len()].clone() },
                6..=7 => Command::Free { block: "none".to_owned() },
                8 => Command::Mark,
                _ if n % 2 == 0 => Command::Reset,
                _ => Command::Pop { marker: format!("m{}", n % 4) },
            };
            let before = demo.scene();
            let scene = demo.act(&command);
            check(name, &scene);
            check_structure(&before, &scene);
            let mut is_used: Vec<_> = scene.parts.iter().filter_map(|part| match &part.is {
                Is::Used(block) | Is::Rounding(block) => Some(block.clone()),
                _ => None,
            }).collect();
            is_used.dedup();
            live_blocks = is_used;
        }
    }
}

#[test]
fn linear_demo_reset_frees_all_eight_blocks() {
    let (sentences, last) = run(Name::Linear, Name::Linear.about().script);
    assert_eq!(sentences[7], "h is at byte 224 and has 32.");
    assert_eq!(sentences[8], "No room for 32 bytes. Free: nothing.");
    assert_eq!(sentences[9], "The head is back at byte 0: 8 blocks are freed.");
    // The memory has 5 bytes in use, 11 bytes of padding, and 16 bytes in use.
    assert_eq!(&last.strip()[..10], "j---kkkk..");
}

#[test]
fn demo_pop_frees_only_blocks_after_the_marker() {
    let (sentence, last) =
        run(Name::Stack, &["alloc 32", "alloc 48", "mark", "alloc 64", "mark", "alloc 16", "pop m1"]);
    assert_eq!(sentence[2], "The marker m1 saves the head at byte 80.");
    assert_eq!(sentence[6], "The head is back at byte 80: 2 blocks are freed.");
    assert_eq!(last.strip().replace('.', ""), "a".repeat(8) + &"b".repeat(12));
    let Shape::Head { head, marks } = last.structure.unwrap().shape else { panic!() };
    let marks: Vec<_> = marks.iter().map(|mark| (mark.at, mark.stale)).collect();
    assert_eq!((head, marks), (80, vec![(80, false), (144, true)]));
}

#[test]
fn demo_of_an_arena_adds_and_drops_chunks() {
    let script = Name::Arena.about().script;
    let chunks = |at: usize| {
        let Shape::Head { head, marks } = run(Name::Arena, &script[..at]).1.structure.unwrap().shape else {
            panic!()
        };
        (head, marks.into_iter().map(|mark| (mark.name, mark.at, mark.stale)).collect::<Vec<_>>())
    };
    let (sentences, last) = run(Name::Arena, &script[..3]);
    assert_eq!(sentences[2], "c is at byte 4096 and has 1500.");
    assert_eq!(
        last.structure.unwrap().steps[0].said,
        "Chunk 0 has no room: its last 1196 bytes stay unused. Chunk 1, of 4096 bytes, is added."
    );
    let mark = |name: &str, at, stale| (name.to_owned(), at, stale);
    assert_eq!(chunks(3), (5596, vec![mark("chunk 1", 4096, false)]));
    // The block of 5,000 bytes gets a chunk of 5,000.
    let (head, marks) = chunks(6);
    assert_eq!((head, marks.len(), &marks[2]), (16384 + 700, 4, &mark("chunk 3", 16384, false)));
    assert_eq!(chunks(7), (5596, vec![mark("chunk 1", 4096, false), mark("m1", 5596, false)]));
    assert_eq!(chunks(9), (0, vec![mark("m1", 5596, true)]));
}

#[test]
fn pool_reuses_its_hole_without_a_search() {
    let (sentence, last) = run(Name::Pool, Name::Pool.about().script);
    assert_eq!(sentence[8], "f is at byte 0 and has 96.", "a's slot");
    assert_eq!(sentence[9], "No room for 97 bytes. Free: 2016 bytes in 21 pieces, the largest 96.");
    // A block of 80 bytes in a slot of 96 wastes 16.
    assert!(last.parts.contains(&Part { at: 272, bytes: 16, is: Is::Rounding("c".to_owned()) }), "{last:?}");
    assert_eq!(last.structure.unwrap().text, ["list of slots: 3 -> 1 -> null; slots written so far: 5"]);
}

#[test]
fn first_fit_and_best_fit_select_their_holes() {
    let request = |name: Name| run(name, &name.about().script[..10]).1.structure.unwrap();
    let walk = |structure: &Structure| {
        let inspected = structure.steps.iter().filter_map(|step| match step.on {
            On::Inspect { bytes, kept, .. } => Some((bytes, kept)),
            _ => None,
        });
        inspected.collect::<Vec<_>>()
    };
    let [first, best, worst] = [Name::FirstFit, Name::BestFit, Name::WorstFit].map(request);
    assert_eq!(walk(&first), [(32, false), (208, true)]);
    let remainder = walk(&best).pop().unwrap();
    assert_eq!(walk(&best), [(32, false), (208, true), (112, true), remainder]);
    assert_eq!(walk(&worst), [(32, false), (208, true), (112, false), (remainder.0, true)]);
    // With its tags, the request is rounded up from 68 to 80 bytes. First fit leaves 128 of 208 bytes, best fit leaves
    // 32 of 112 bytes, and worst fit cuts the rest of the memory.
    let remainder_of = |structure: &Structure| match structure.steps.last().unwrap().on {
        On::Put { bytes, .. } => bytes,
        _ => 0,
    };
    assert_eq!([&first, &best, &worst].map(remainder_of), [128, 32, remainder.0 - 80]);
    let (_, last) = run(Name::BestFit, Name::BestFit.about().script);
    assert_eq!(last.holes.count, 2, "g is between the merged blocks");
}

#[test]
fn demo_splits_and_merges_buddies() {
    let (sentence, last) = run(Name::Buddy, Name::Buddy.about().script);
    assert_eq!(
        sentence[0],
        "a is at byte 0 and has 128, 63 more than requested. It examined 4 free lists and made 3 splits."
    );
    assert_eq!(sentence[5], "c is free. It examined 2 buddies and made 2 merges.");
    let Structure { text, steps, .. } = last.structure.unwrap();
    assert_eq!(text.last().unwrap(), "list of 1024: 0");
    assert_eq!(steps[0].said, "The buddy of 256 is 256 XOR 256 = 0. It is free: both become 512 at 0.");
    let (_, scene) = run(Name::Buddy, &["alloc 65", "alloc 900"]);
    let steps = scene.structure.unwrap().steps;
    assert!(matches!(*steps, [Step { on: On::List { bytes: 1024, found: false }, .. }]), "{steps:?}");
    let (_, scene) = run(Name::Buddy, &["alloc 65"]);
    let splits = scene.structure.unwrap().steps.into_iter().filter_map(|step| match step.on {
        On::Split { at: position, .. } => Some(position),
        _ => None,
    });
    assert_eq!(splits.collect::<Vec<_>>(), [512, 256, 128]);
}

#[test]
fn tlsf_search_starts_at_a_sufficient_class() {
    let (_, scene) = run(Name::Tlsf, &["alloc 1000"]);
    // The request needs 1008 bytes with its header, which are rounded up to 1024, the seventh power of two from 16 on.
    assert_eq!(scene.structure.unwrap().steps[0].on, On::Class { row: 6, cell: 0 });
    // The row of the request's class has no block, so both levels are scanned.
    let About { script, telling: opening_length, .. } = Name::Tlsf.about();
    let (_, scene) = run(Name::Tlsf, &script[..opening_length]);
    let scans = scene.structure.unwrap().steps.into_iter().filter(|step| matches!(step.on, On::Word { .. }));
    assert_eq!(
        scans.map(|step| step.on).collect::<Vec<_>>(),
        [
            On::Word { row: Some(3), from: 3, found: None },
            On::Word { row: None, from: 4, found: Some(5) },
            On::Word { row: Some(5), from: 0, found: Some(0) },
        ]
    );
}

#[test]
fn packed_values_move_and_holes_stay() {
    let About { script, telling: opening_length, .. } = Name::Packed.about();
    let (_, scene) = run(Name::Packed, &script[..opening_length]);
    let Shape::Packed { values, holes, reads, checks, .. } = scene.structure.unwrap().shape else { panic!() };
    assert_eq!(values.concat(), "ahgdf");
    let holes: String = holes.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
    assert_eq!((holes.as_str(), reads, checks), ("a--d-fgh", 5, 8));
}

#[test]
fn random_scripts_depend_on_the_seed_alone() {
    for name in Name::ALL {
        let script = name.script(7, 40).unwrap();
        assert_eq!(script.len(), 40);
        assert_eq!(script, name.script(7, 40).unwrap());
        assert_ne!(script, name.script(8, 40).unwrap(), "{name:?}");
        let mut demo = name.make().unwrap();
        for command in script {
            assert_eq!(super::tests::command(&command.to_string()), command);
            let before = demo.scene();
            let scene = demo.act(&command);
            check(name, &scene);
            check_structure(&before, &scene);
        }
    }
}

#[test]
fn refused_demo_command_leaves_the_state_unchanged() {
    for (name, text, sentences) in [
        (Name::Buddy, "free a", "Unknown block a; in use: none."),
        (Name::Buddy, "mark", "Only linear allocators and stacks have a head to mark."),
        (Name::Stack, "reset", "Only a linear allocator frees all at once."),
        (Name::Stack, "pop m1", "Unknown marker m1; `mark` creates one."),
        (Name::Linear, "alloc 8 3", "3 is not an alignment: expected a power of two"),
    ] {
        let mut demo = name.make().unwrap();
        let scene = demo.act(&command(text));
        assert_eq!((scene.said.as_str(), scene.refused), (sentences, true));
        check(name, &scene);
    }
    for text in ["", "alloc x", "alloc 1 2 3", "free", "frob a"] {
        let error = text.parse::<Command>().unwrap_err().to_string();
        assert!(error.contains("expected `alloc BYTES [ALIGN]`"), "{error}");
    }
}

#[test]
fn lazily_initialized_pool_links_one_block_per_allocation() {
    let (sentences, last) = run(Name::LazyPool, Name::LazyPool.about().script);
    assert_eq!(
        sentences[0],
        "a is block 0. Block 0 joins the chain of free blocks: it is written for the first time. The next free block is block 1."
    );
    assert_eq!(sentences[3], "b is free: block 1 holds the number 3, and is the next free block.");
    // The freed blocks are allocated again, last freed first; each allocation also adds one more block to the list.
    assert!(sentences[5].starts_with("d is block 0. Block 3 joins"), "{}", sentences[5]);
    assert!(sentences[6].starts_with("e is block 1. Block 4 joins"), "{}", sentences[6]);
    assert_eq!(last.strip(), format!("ddddeeeecccc....|...{}", "_".repeat(44)));
    let all = vec!["alloc"; 17];
    let (sentences, _) = run(Name::LazyPool, &all);
    assert!(sentences[15].ends_with("No block is free."), "{}", sentences[15]);
    assert_eq!(sentences[16], "All 16 blocks are in use.");
}

#[test]
fn demo_chunks_are_mapped_moved_and_unmapped() {
    let steps = |script: &[&str]| -> Vec<String> {
        let structure = run(Name::ChunkedPool, script).1.structure.unwrap();
        structure.steps.into_iter().map(|step| step.said).collect()
    };
    let script = Name::ChunkedPool.about().script;
    assert_eq!(
        steps(&script[..4]),
        [
            "No chunk has a free slot. Chunk 1 is mapped, and becomes the first chunk.",
            "d gets slot 0 of chunk 1, the head of the list of chunk 1."
        ]
    );
    assert_eq!(
        steps(&script[..6]),
        [
            "b is freed: slot 1 of chunk 0 becomes the head of the list of chunk 0.",
            "Chunk 0 was full: it moves to the front."
        ]
    );
    assert_eq!(
        steps(&script[..7]),
        [
            "f gets slot 1 of chunk 0, the head of the list of chunk 0.",
            "Chunk 0 is full: it moves to the back."
        ]
    );
    let (sentences, last) = run(Name::ChunkedPool, script);
    assert_eq!(sentences[9], "1 empty chunk is returned to the system.");
    assert_eq!(
        last.strip(),
        format!("={}{}{}{}", "a".repeat(5), "f".repeat(5), "c".repeat(5), "_".repeat(48))
    );
    let (sentences, _) =
        run(Name::ChunkedPool, &[&["alloc"; 13][..], &["purge", "alloc 1281", "reset"]].concat());
    assert_eq!(sentences[12], "No room for 1280 bytes. Free: nothing.");
    assert_eq!(sentences[13], "No chunk is empty: nothing is returned to the system.");
    let (sentences, _) = run(Name::Pool, &["purge"]);
    assert_eq!(sentences, ["Only a pool of chunks returns memory to the system."]);
}

#[test]
fn demo_of_reserved_addresses_commits_step_by_step() {
    let (_, last) = run(Name::ReservedPool, Name::ReservedPool.about().script);
    assert_eq!(last.structure.unwrap().text, ["list of slots: 6 -> 7 -> null; slots written so far: 8"]);
    let (_, last) = run(Name::ReservedPool, &["alloc"; 5]);
    let structure = last.structure.unwrap();
    assert_eq!(
        structure.steps[0].said,
        "The list is empty: 4096 more bytes are committed, and slots 4 to 7 join the list."
    );
    assert_eq!(structure.steps[1].said, "e gets slot 4, the head of the list.");
    let (sentences, _) = run(Name::ReservedPool, &["alloc"; 17]);
    assert_eq!(sentences[16], "No room for 1024 bytes. Free: nothing.");
}

#[test]
fn demo_slot_retires_after_its_last_generation() {
    let (sentences, last) = run(Name::Handles, Name::Handles.about().script);
    assert_eq!(sentences[4], "a is stale: its generation differs from the slot's.");
    assert!(sentences[9].ends_with("is retired: it is never used again."), "{}", sentences[9]);
    assert_eq!(sentences[11], "a is stale: its generation differs from the slot's.");
    assert_eq!(&last.strip()[..24], format!("{}bbbbbbbbeeeeeeee", "#".repeat(8)));
    let (sentences, last) = run(Name::HandlesWrap, Name::HandlesWrap.about().script);
    assert_eq!(
        sentences[7],
        "a finds d, which is not its object: the generation has wrapped, and the check cannot detect it."
    );
    assert_eq!(
        sentences[8],
        "a freed d: the generation had wrapped, so the stale handle matched another object."
    );
    assert_eq!(last.facts, [("retired slots".to_owned(), "0".to_owned())]);
}

#[test]
fn demo_walk_loads_whole_cache_lines() {
    let (sentences, last) = run(Name::Layout, &["walk position.x structs"]);
    assert_eq!(
        sentences[0],
        "16 structs as structs, position.x: 8 lines of 64 bytes are loaded, and 12 % of the bytes are used."
    );
    let is_used: usize =
        last.parts.iter().filter(|part| matches!(part.is, Is::Used(_))).map(|part| part.bytes).sum();
    assert_eq!(is_used, 16 * 4);
    let (sentences, _) = run(Name::Layout, &["walk position.x numbers", "walk x structs"]);
    assert_eq!(
        sentences[0],
        "16 structs as numbers, position.x: 1 line of 64 bytes is loaded, and 100 % of the bytes are used."
    );
    assert!(sentences[1].starts_with("Expected `walk position.x`"), "{}", sentences[1]);
}

#[test]
fn race_sends_identical_requests_to_each_allocator() {
    let race = race(7, 60).unwrap();
    assert_eq!(race.commands.len(), 60);
    for (name, scenes) in &race.scenes {
        assert_eq!(scenes.len(), 61);
        let mut demo = name.allocator_for_race().unwrap();
        let typed = race.commands.iter().map(|text| demo.act(&command(text)));
        assert_eq!(
            typed.collect::<Vec<_>>(),
            scenes[1..],
            "the output must be the same as for typed commands"
        );
        assert!(scenes.iter().all(|scene| scene.bytes() == 1024), "{name:?}");
    }
    assert_eq!(
        race.scenes.iter().map(|(name, _)| name.name()).collect::<Vec<_>>(),
        ["first-fit", "best-fit", "buddy", "tlsf"]
    );
    assert_ne!(super::race(8, 60).unwrap().commands, race.commands);
    assert_eq!(play("none"), None);
    let typed = play(&format!("linear\n{}", Name::Linear.about().script.join("\n"))).unwrap();
    assert_eq!(
        typed[1..].iter().map(|scene| scene.said.clone()).collect::<Vec<_>>(),
        run(Name::Linear, Name::Linear.about().script).0
    );
    let scenes = play("linear\nfrob").unwrap();
    assert!(scenes[1].refused && scenes[1].said.starts_with("unknown command `frob`"), "{}", scenes[1].said);
}

#[test]
fn demo_names_match_the_command_line_values() {
    use clap::ValueEnum;
    for name in Name::ALL {
        assert_eq!(name.to_possible_value().unwrap().get_name(), name.name());
        assert_eq!(serde_json::to_value(name).unwrap(), name.name());
    }
}

/// Runs a script, and returns each allocator's name with the words that the demo shows for it.
fn words(name: Name, script: &[&str]) -> Vec<(String, String)> {
    let Shape::Lanes { lanes, .. } = run(name, script).1.structure.unwrap().shape else { panic!() };
    lanes.into_iter().map(|lane| (lane.name, lane.says)).collect()
}

#[test]
fn adversary_forces_memory_use_only_if_blocks_do_not_move() {
    let times = |says: &str| says.split(' ').next().unwrap().parse::<f64>().unwrap();
    let all = words(Name::Robson, Name::Robson.about().script);
    let (moving, others) = all.split_last().unwrap();
    assert_eq!((moving.0.as_str(), times(&moving.1)), ("moved together, by handles", 1.0));
    assert!(others.iter().all(|(_, says)| times(says) > 2.5), "{others:?}");
    let (_, refused) = run(Name::Robson, &[Name::Robson.about().script, &["round"]].concat());
    assert!(refused.refused && refused.said.ends_with("`fill` starts again."), "{}", refused.said);
}

#[test]
fn equal_sizes_leave_no_holes() {
    let holes = |script: &[&str]| words(Name::FiftyPercent, script).into_iter().map(|(_, says)| says);
    assert!(holes(&["fill one-size", "round", "round"]).all(|says| says == "0 holes, 100 blocks"));
    let script = Name::FiftyPercent.about().script;
    let first: Vec<usize> =
        holes(script).map(|says| says.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!((35..65).contains(&first[0]) && first[3] < first[2], "{first:?}");
}

#[test]
fn request_fits_only_if_long_lived_blocks_are_in_a_separate_heap() {
    let script = Name::Pinning.about().script;
    let all = words(Name::Pinning, &script[..3]);
    for (name, says) in all {
        assert_eq!(says.starts_with('✓'), name.ends_with(", apart"), "{name}: {says}");
    }
    let (said, _) = run(Name::Pinning, &["free short-lived", "round", "fill 7"]);
    assert_eq!(
        said,
        [
            "No blocks are in use: `fill` allocates them.",
            "Expected `fill ONE-IN`, `free short-lived` or `alloc BYTES`.",
            "Expected `fill 32`, `fill 64` or `fill 128`."
        ]
    );
}

#[test]
fn slabs_hold_more_objects_unless_the_size_is_a_power_of_two() {
    let objects = |size: &str| {
        let all = words(Name::SlabsOverBuddy, &[size]);
        let counts = all.iter().map(|(_, says)| says.split(' ').next().unwrap().parse().unwrap());
        counts.collect::<Vec<usize>>()
    };
    assert_eq!(objects("fill 1100"), [32, 58]);
    assert_eq!(objects("fill 2048"), [32, 32]);
    let (said, _) = run(Name::SlabsOverBuddy, &["fill 7", "round"]);
    let fill = "Expected `fill 1100`, `fill 600`, `fill 2048` or `fill 2700`.";
    assert_eq!(said, [fill, "Expected `fill SIZE`."]);
}
