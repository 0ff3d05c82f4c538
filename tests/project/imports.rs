//! Tests that a crate or module imports only from those below it. The test compares the documented diagram
//! with the imports in the code.

use std::collections::BTreeSet;
use std::fmt::Write;
use uslab_tests::imports::{Imports, crates};
use uslab_tests::workspace;

/// The folders of the crates, from the lowest layer up. All other folders (tests, benches) may import from
/// all of these layers.
const FLOORS: [&str; 4] = ["magazine", "buddy", "slab", "sim"];

/// The modules of `slab/src`, from the lowest up. A module may import from itself and from the modules listed
/// before it.
const ROOMS: [&str; 18] = [
    "geometry",
    "error",
    "published",
    "registry",
    "debug",
    "profile",
    "harden",
    "guard",
    "reclaim",
    "memory",
    "cache",
    "size",
    "block",
    "report",
    "subsystem",
    "objects",
    "handle",
    "process",
];

/// The largest number of files that may import from each other in a cycle; a larger cycle would be one module
/// in pieces.
const MAX_CYCLE_FILES: usize = 2;

#[test]
fn import_graph_follows_re_exports() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;");
    write("a.rs", "use crate::b::{self, B as Other}; pub struct A(b::B);");
    write("b.rs", "pub struct B; fn f() { vec![super::c::C::new()]; }");
    write("c.rs", "use crate::A; pub struct C; #[cfg(test)] mod tests { use crate::d::D; }");
    write("d.rs", "use crate::c::C; pub struct D; #[cfg(all(loom, unix))] fn f() { crate::a::A; }");
    let imports = Imports::draw(&folder.path().join("lib.rs")).unwrap();
    let name = |path: &std::path::Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let arrows: Vec<_> = imports
        .arrows()
        .map(|arrow| format!("{} {} {}", name(arrow.from), arrow.names.join("+"), name(arrow.to)))
        .collect();
    assert_eq!(arrows, ["a B+b b", "b C c", "c A a", "d C c"]);
    let circles = imports.circles();
    assert_eq!((circles.len(), circles[0].files, circles[0].arrows.len()), (1, 3, 3));
    assert!(circles[0].to_string().contains("c.rs imports A from "), "{}", circles[0]);
}

#[test]
fn crates_depend_only_on_crates_at_lower_layers() {
    let floor = |directory: &std::path::Path| {
        let top = directory.iter().next()?;
        FLOORS.iter().position(|floor| *floor == top)
    };
    let mut found = BTreeSet::new();
    for member in crates(workspace()).unwrap() {
        let Some(own) = floor(&member.directory) else { continue };
        found.insert(own);
        for other in &member.dependencies {
            let below = floor(other).is_some_and(|other| other <= own);
            assert!(
                below,
                "{} depends on {}, which is on a higher floor",
                member.directory.display(),
                other.display()
            );
        }
    }
    assert_eq!(found.len(), FLOORS.len(), "each floor must have a crate");
}

#[test]
fn import_cycles_have_at_most_two_files() {
    let (mut wrong, mut files) = (String::new(), 0);
    for member in crates(workspace()).unwrap() {
        for root in member.roots().map(|root| workspace().join(root)).filter(|root| root.is_file()) {
            let imports = Imports::draw(&root).unwrap();
            println!("{}: {} files", root.display(), imports.files());
            files += imports.files();
            for circle in imports.circles() {
                println!("  {circle}");
                // The sections of both processors are drawn, although a build has only one of the two.
                let elsewhere = usize::from(circle.to_string().contains("cpu/rseq/aarch64.rs"));
                if circle.files - elsewhere > MAX_CYCLE_FILES {
                    writeln!(wrong, "{circle}").unwrap();
                }
            }
        }
    }
    assert!(files > 200, "the drawing has only {files} files");
    assert!(wrong.is_empty(), "{}", wrong.replace(&format!("{}/", workspace().display()), ""));
}

#[test]
fn slab_modules_import_only_from_lower_modules() {
    let imports = Imports::draw(&workspace().join("slab/src/lib.rs")).unwrap();
    let place = |room: &str| {
        let place = ROOMS.iter().position(|known| *known == room);
        place.unwrap_or_else(|| panic!("`{room}` is not in the list of rooms: {ROOMS:?}"))
    };
    let mut rooms = BTreeSet::new();
    // The crate's root re-exports, and is not a room.
    for arrow in imports.arrows().filter(|arrow| !arrow.rooms[0].is_empty()) {
        let [from, to] = arrow.rooms;
        rooms.extend(arrow.rooms);
        assert!(!to.is_empty(), "{arrow}: import the item from the module that defines it");
        assert!(place(to) <= place(from), "{arrow}: `{to}` is above `{from}`");
    }
    assert_eq!(rooms, BTreeSet::from(ROOMS), "the list must name exactly the existing rooms");
}
