//! Limits the number of public paths of each crate, and requires examples for its types. The limit on public paths may
//! be raised only for a stated reason.

use std::fmt::Write;
use uslab_tests::surface::items;

/// A crate, its maximum number of public paths, and `true` if each of its types must have an example that runs. In
/// `uslab-buddy`, 41 of the paths belong to `Gfp`: Linux's flags, and the set operations that bitflags generates.
const CRATES: [(&str, usize, bool); 4] = [
    // The crate has 392 paths, plus `slab_debug` (41 are the set operations that bitflags generates for its flags, the
    // others are the contents of a report), hardening, profiles, and what objects hold.
    ("uslab", 496, true),
    ("uslab-handle", 79, true),
    ("uslab-magazine", 74, false),
    ("uslab-buddy", 128, false),
];

#[test]
fn public_path_count_of_each_crate_is_bounded() {
    let mut wrong = String::new();
    for (package, most, must_have_examples) in CRATES {
        let items = items(package).unwrap();
        let (paths, types) = (items.len(), items.iter().filter(|item| item.is_type).count());
        let bare = items.iter().filter(|item| item.is_type && !item.has_example).map(|item| &*item.path);
        let bare: Vec<&str> = bare.collect();
        println!(
            "SURFACE {package} | {paths} public paths, at most {most} | {types} types, {} without an example",
            bare.len()
        );
        if paths > most {
            writeln!(wrong, "{package}: {paths} public paths, at most {most}:").unwrap();
            items.iter().for_each(|item| writeln!(wrong, "  {}", item.path).unwrap());
        }
        if must_have_examples && !bare.is_empty() {
            writeln!(wrong, "{package}: types without an example that runs:\n  {}", bare.join("\n  "))
                .unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
