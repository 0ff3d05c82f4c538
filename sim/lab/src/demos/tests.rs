use super::*;
use crate::allocators::Holes;
use proptest::prelude::*;

fn command(text: &str) -> Command {
    text.parse().unwrap()
}

/// Runs a script: what was said, and the last scene.
fn run(name: Name, script: &[&str]) -> (Vec<String>, Scene) {
    let mut demo = name.make().unwrap();
    let scenes: Vec<_> = script.iter().map(|text| demo.act(&command(text))).collect();
    (scenes.iter().map(|scene| scene.said.clone()).collect(), scenes[scenes.len() - 1].clone())
}

/// Bytes of headers and tags of a free block.
fn tags(name: Name) -> usize {
    match name {
        Name::FirstFit | Name::BestFit => 8,
        Name::Tlsf => 4,
        _ => 0,
    }
}

/// The parts are the memory, and the free ones are the holes that the allocator itself knows.
fn check(name: Name, scene: &Scene) {
    let mut end = 0;
    for part in &scene.parts {
        assert_eq!(part.at, end, "{name:?}: {:?}", scene.parts);
        end += part.bytes;
    }
    let bytes = match name {
        Name::Linear | Name::Stack => 256,
        Name::Pool => 24 * 96,
        Name::Tlsf => 4096,
        _ => 1024,
    };
    assert_eq!(end, bytes, "{name:?}");
    let mut holes = Holes::default();
    let free = scene.parts.iter().filter(|part| part.is == Is::Free);
    free.for_each(|part| holes.add(part.bytes - tags(name)));
    assert_eq!(holes, scene.holes, "{name:?}: {:?}", scene.parts);
    assert_eq!(scene.strip().chars().count(), 64);
}

#[test]
fn scripts_run_and_every_scene_is_whole() {
    for name in Name::ALL {
        let mut demo = name.make().unwrap();
        for text in name.script() {
            assert_eq!(command(text).to_string(), *text);
            check(name, &demo.act(&command(text)));
        }
    }
}

proptest! {
    #[test]
    fn properties_of_scenes(name in prop::sample::select(&Name::ALL[..]), picks in prop::collection::vec((0..10_u8, 0..200_usize), 1..60)) {
        let mut demo = name.make().unwrap();
        let mut live: Vec<String> = vec![];
        for (what, n) in picks {
            let command = match what {
                0..=5 => Command::Alloc { bytes: n, align: 1 << (n % 6) },
                6..=7 if !live.is_empty() => Command::Free { block: live[n % live.len()].clone() },
                6..=7 => Command::Free { block: "none".to_owned() },
                8 => Command::Mark,
                _ if n % 2 == 0 => Command::Reset,
                _ => Command::Pop { marker: format!("m{}", n % 4) },
            };
            let scene = demo.act(&command);
            check(name, &scene);
            let mut used: Vec<_> = scene.parts.iter().filter_map(|part| match &part.is {
                Is::Used(block) | Is::Rounding(block) => Some(block.clone()),
                _ => None,
            }).collect();
            used.dedup();
            live = used;
        }
    }
}

#[test]
fn eight_blocks_of_32_fill_256_bytes_and_a_reset_frees_them_at_once() {
    let (said, last) = run(Name::Linear, Name::Linear.script());
    assert_eq!(said[7], "h is at byte 224 and has 32. It took 1 look.");
    assert_eq!(said[8], "No room for 32 bytes. Free: nothing.");
    assert_eq!(said[9], "The head is back at byte 0: 8 blocks are free at once.");
    // 5 bytes, 11 of padding, 16.
    assert_eq!(&last.strip()[..10], "i---jjjj..");
}

#[test]
fn popping_to_a_marker_frees_what_came_after_it_and_nothing_else() {
    let (said, last) = run(Name::Stack, &["alloc 32", "alloc 48", "mark", "alloc 64", "alloc 16", "pop m1"]);
    assert_eq!(said[2], "m1 is the head, byte 80.");
    assert_eq!(said[5], "The head is back at byte 80: 2 blocks are free at once.");
    assert_eq!(last.strip().replace('.', ""), "a".repeat(8) + &"b".repeat(12));
}

#[test]
fn a_pools_hole_serves_the_next_request_without_a_search() {
    let (said, last) = run(Name::Pool, Name::Pool.script());
    assert_eq!(said[4], "d is at byte 96 and has 96. It took 1 look.", "b's slot");
    assert_eq!(said[5], "No room for 97 bytes. Free: 2016 bytes in 21 pieces, the largest 96.");
    // 80 bytes in a slot of 96 lose 16.
    assert!(last.parts.contains(&Part { at: 272, bytes: 16, is: Is::Rounding("c".to_owned()) }), "{last:?}");
}

#[test]
fn first_fit_takes_the_first_hole_and_best_fit_the_smallest() {
    let place = |name| run(name, &Name::FirstFit.script()[..7]).0[6].clone();
    assert!(place(Name::FirstFit).starts_with("e is at byte 16 "), "{}", place(Name::FirstFit));
    assert!(!place(Name::BestFit).starts_with("e is at byte 16 "), "{}", place(Name::BestFit));
    let (_, last) = run(Name::BestFit, Name::BestFit.script());
    assert_eq!(last.holes.count, 2, "e lies between the merged rest");
}

#[test]
fn buddies_are_halved_and_made_one_again() {
    let (said, last) = run(Name::Buddy, Name::Buddy.script());
    assert_eq!(said[0], "a is at byte 0 and has 128, 63 more than asked for. It took 4 looks, 3 splits.");
    assert_eq!(said[5], "c is free. It took 2 looks, 2 merges.");
    assert_eq!(last.facts, [("free blocks", "1 of 1024".to_owned())]);
}

#[test]
fn tlsf_begins_at_the_class_all_of_whose_blocks_are_large_enough() {
    let (_, scene) = run(Name::Tlsf, &["alloc 1000"]);
    // 1008 with its header, 1024 when rounded up: the power 10 is the seventh from 16 on.
    assert_eq!(scene.facts[2], ("class searched from", "first level 6, second level 0".to_owned()));
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    for (name, text, said) in [
        (Name::Buddy, "free a", "There is no block a; in use: none."),
        (Name::Buddy, "mark", "Only linear allocators and stacks have a head to mark."),
        (Name::Stack, "reset", "Only a linear allocator frees all at once."),
        (Name::Stack, "pop m1", "There is no marker m1; `mark` makes one."),
        (Name::Linear, "alloc 8 3", "3 is no alignment: expected a power of two"),
    ] {
        let mut demo = name.make().unwrap();
        let scene = demo.act(&command(text));
        assert_eq!((scene.said.as_str(), scene.refused), (said, true));
        check(name, &scene);
    }
    for text in ["", "alloc", "alloc x", "alloc 1 2 3", "free", "frob a"] {
        let error = text.parse::<Command>().unwrap_err().to_string();
        assert!(error.contains("expected `alloc BYTES [ALIGN]`"), "{error}");
    }
}
