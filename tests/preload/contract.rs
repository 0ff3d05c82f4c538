//! What C programs rely on.

use crate::python::python;
use crate::{compiled, preloaded, program, text};
use std::collections::BTreeSet;
use std::process::Command;
use uslab_tests::{libuslab, workspace};

#[test]
fn the_library_does_what_c_programs_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let api = compiled("api.c", dir.path());
    for rseq in ["on", "off"] {
        let output = preloaded(Command::new(&api).env("USLAB_RSEQ", rseq), "check=1");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "rseq {rseq}: {:?}\n{out}{err}", output.status);
        assert!(out.starts_with("all good with ") && err.is_empty(), "rseq {rseq}: {out}{err}");
    }
}

/// What a C program that includes the header prints, once it is compiled and linked with the library.
fn linked(source: &str) -> String {
    let (dir, library) = (tempfile::tempdir().unwrap(), libuslab());
    let (out, beside) = (dir.path().join("program"), library.parent().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-D_POSIX_C_SOURCE=200809L", "-o"])
        .arg(&out);
    cc.arg(workspace().join(source)).arg("-I").arg(workspace().join("slab/libuslab"));
    cc.arg("-L").arg(beside).arg("-luslab").arg(format!("-Wl,-rpath,{}", beside.display()));
    assert!(cc.status().expect("a C compiler").success());
    let output = Command::new(out).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    said
}

#[test]
fn the_example_in_c_builds_few_buffers() {
    let said = linked("slab/examples/requests.c");
    let built = said.strip_prefix("100000 requests, ").and_then(|rest| rest.split_once(' ')).unwrap().0;
    assert!((1..1000).contains(&built.parse::<u32>().unwrap()), "{said}");
    assert!(said.contains("\nrequest ") && said.contains("\nmalloc-1024 "), "{said}");
}

/// The header is checked in: a program that includes it compiles, links and runs; and it declares what the library has.
#[test]
fn the_header_is_what_the_library_has() {
    let (table, library) = (linked("tests/preload/caches.c"), libuslab());
    assert!(table.contains("\nrequest ") && !table.contains("\nplain "), "{table}");

    let Some(nm) = program("nm") else { return };
    let symbols =
        text(&Command::new(nm).args(["-D", "--defined-only"]).arg(&library).output().unwrap().stdout);
    let has: BTreeSet<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let header = std::fs::read_to_string(workspace().join("slab/libuslab/uslab.h")).unwrap();
    let declared = header.lines().filter(|line| line.ends_with(");")).filter_map(|line| {
        let name = line.split('(').next()?.rsplit([' ', '*']).next()?;
        name.starts_with("uslab_").then_some(name)
    });
    let malloc = "malloc calloc free free_sized free_aligned_sized realloc reallocarray posix_memalign aligned_alloc \
                  memalign valloc pvalloc malloc_usable_size malloc_trim";
    let expected: BTreeSet<_> = declared.chain(malloc.split_whitespace()).collect();
    assert_eq!(has, expected);
}

#[test]
fn a_wrong_free_is_named_and_ends_the_program() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let api = compiled("api.c", dir.path());
    for (what, said) in [
        ("foreign", "free of an address that no cache owns"),
        ("stack", "free of an address that no cache owns"),
        ("inside", "free of an address inside an object"),
        ("inside-page", "free of an address inside an object"),
        ("inside-huge", "free of an address inside an object"),
        ("twice", "double free"),
        ("twice-huge", "free of an address that no cache owns"),
    ] {
        let output = preloaded(Command::new(&api).arg(what), "check=1");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.signal(), Some(6), "{what}: {out}{err}");
        assert!(
            out.is_empty() && err.starts_with("uslab: corruption: ") && err.contains(said),
            "{what}: {err}"
        );
    }
}

#[test]
fn the_table_is_printed_at_the_end_and_wrong_options_are_named() {
    let output = preloaded(Command::new("true").arg(""), "stats=1,colour=red");
    let err = text(&output.stderr);
    assert!(output.status.success());
    let (first, table) = err.split_once('\n').unwrap();
    assert!(first.starts_with("uslab: USLAB_OPTIONS: `colour=red`: expected "), "{err}");
    assert!(
        table.starts_with("slabinfo - version: 2.1 (statistics)\n") && table.contains("\nmalloc-64 "),
        "{err}"
    );
    let quiet = preloaded(&mut Command::new("true"), "");
    assert!(quiet.stderr.is_empty(), "{}", text(&quiet.stderr));
}

#[test]
fn memory_beyond_the_limit_is_refused_and_the_program_goes_on() {
    let Some(python) = python() else { return };
    let script = "
try:
    held = [bytearray(1 << 20) for _ in range(100)]
    print('all')
except MemoryError:
    print('refused')
print(sum(len(str(i)) for i in range(1000)))";
    let output = preloaded(Command::new(python).args(["-c", script]), "limit=48m");
    assert_eq!(text(&output.stdout), "refused\n2890\n", "{}", text(&output.stderr));
}
