//! Tests that each crate or module imports only from lower crates or modules. The test compares the imports in the code
//! with the documented diagram.

use std::collections::BTreeSet;
use std::fmt::Write;
use uslab_tests::imports::{Imports, crates};
use uslab_tests::workspace;

/// The folders of the crates, from the lowest layer to the highest. Other folders (tests, benches) may import from all
/// of these layers.
const LAYER_ORDER: [&str; 4] = ["magazine", "buddy", "slab", "sim"];

/// The modules of `slab/src`, from the lowest to the highest. A module may import from itself and from the modules that
/// precede it in this list.
const MODULE_ORDER: [&str; 18] = [
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

/// The largest number of files in an import cycle; the files of a larger cycle would really be a single module.
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
        LAYER_ORDER.iter().position(|floor| *floor == top)
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
    assert_eq!(found.len(), LAYER_ORDER.len(), "each floor must have a crate");
}

#[test]
fn import_cycles_have_at_most_two_files() {
    let (mut wrong, mut files) = (String::new(), 0);
    for member in crates(workspace()).unwrap() {
        for root in member.root_files().map(|root| workspace().join(root)).filter(|root| root.is_file()) {
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
        let place = MODULE_ORDER.iter().position(|known| *known == room);
        place.unwrap_or_else(|| panic!("`{room}` is not in the list of rooms: {MODULE_ORDER:?}"))
    };
    let mut rooms = BTreeSet::new();
    // The crate's root re-exports, and is not a room.
    for arrow in imports.arrows().filter(|arrow| !arrow.rooms[0].is_empty()) {
        let [from, to] = arrow.rooms;
        rooms.extend(arrow.rooms);
        assert!(!to.is_empty(), "{arrow}: import the item from the module that defines it");
        assert!(place(to) <= place(from), "{arrow}: `{to}` is above `{from}`");
    }
    assert_eq!(rooms, BTreeSet::from(MODULE_ORDER), "the list must name exactly the existing rooms");
}
