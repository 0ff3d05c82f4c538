//! Imports run down: the drawing of who imports from whom, and what may not be in it.
#![cfg(not(any(loom, shuttle)))]

use std::path::Path;
use uslab_tests::imports::{Imports, crates};
use uslab_tests::workspace;

/// The floors, the ground first. What lies beside them (tests, benches) may depend on all.
const FLOORS: [&str; 4] = ["magazine", "buddy", "slab", "sim"];

/// The rooms of `slab/src`, the ground first: a room imports from those before it and from itself.
const ROOMS: [&str; 0] = [];

/// More than two files that import from each other are one file in pieces.
const MOST: usize = 2;

#[test]
#[ignore = "draws only: the circles are being cut"]
fn no_circle_of_imports_has_more_than_two_files() {
    let mut wrong = String::new();
    for member in crates(workspace()).unwrap() {
        for root in member.roots().map(|root| workspace().join(root)).filter(|root| root.is_file()) {
            let imports = Imports::draw(&root).unwrap();
            println!("{}: {} files", member.directory.display(), imports.files());
            for circle in imports.circles() {
                println!("  {circle}");
                if circle.files > MOST {
                    wrong.push_str(&format!("{}: {circle}\n", member.directory.display()));
                }
            }
        }
    }
    let wrong = wrong.replace(&format!("{}/", workspace().display()), "");
    assert!(wrong.is_empty(), "{wrong}");
}
