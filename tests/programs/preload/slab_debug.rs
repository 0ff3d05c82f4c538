//! Tests programs whose malloc uses slab debugging.

use super::{compiled, preloaded, run_long_tests, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns the report about a mistake that must end the program.
fn report(program: &Path, mistake: &str, options: &str) -> String {
    // The guard is disabled, because it would report a sampled object in another form.
    let output = preloaded(Command::new(program).arg(mistake), &format!("{options},guard=0"));
    let (stdout, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        !output.status.success() && stdout.is_empty(),
        "{mistake} {options}: {:?}\n{stdout}{err}",
        output.status
    );
    err
}

#[test]
fn memory_bug_report_shows_alloc_and_free_call_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("damage.c", dir.path());
    let rows = [
        ("overflow", "Right Redzone overwritten", false),
        ("underflow", "Left Redzone overwritten", false),
        ("late", "Poison overwritten", true),
        ("double", "double free", true),
        ("realloc", "Right Redzone overwritten", false),
    ];
    for options in ["slab_debug=FZPU", "slab_debug=FZPU:malloc-*", "slab_debug=:malloc-56:malloc-64,check=0"]
    {
        for (mistake, mistake_text, freed) in rows {
            let err = report(&program, mistake, options);
            assert!(err.starts_with("uslab: corruption: cache malloc-"), "{mistake} {options}: {err}");
            assert!(err.contains(&format!(": {mistake_text}\n")), "{mistake} {options}: {err}");
            let allocation_line = err.find("\nAllocated: age=").unwrap_or_else(|| panic!("{err}"));
            let freed_at = err.find("\nFreed: age=").unwrap_or(usize::MAX);
            let positions_of =
                |name: &str| err.match_indices(name).map(|(position, _)| position).collect::<Vec<_>>();
            if mistake != "realloc" {
                let positions = positions_of("the_allocation");
                assert!(
                    positions.iter().any(|position| *position > allocation_line && *position < freed_at),
                    "{mistake} {options}: {err}"
                );
            }
            assert!(
                mistake != "double" || err.contains(": 6b 6b 6b 6b 6b 6b 6b 6b "),
                "the object must be unchanged: {err}"
            );
            if freed {
                assert!(
                    positions_of("the_free").iter().any(|position| *position > freed_at),
                    "{mistake} {options}: {err}"
                );
            }
        }
        let output = preloaded(Command::new(&program).arg("none"), options);
        assert_eq!((&*text(&output.stdout), &*text(&output.stderr)), ("well\n", ""), "{options}");
    }
    // Objects of other sizes are not checked.
    let output =
        preloaded(Command::new(&program).arg("overflow"), "slab_debug=FZPU:malloc-128,check=0,guard=0");
    assert_eq!((&*text(&output.stdout), &*text(&output.stderr)), ("unnoticed\n", ""));
}

#[test]
fn slab_debug_tracing_prints_each_allocation_and_free() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("damage.c", dir.path());
    let output =
        preloaded(Command::new(&program).arg("none"), "slab_debug=T:malloc-56:malloc-64,check=0,guard=0");
    let err = text(&output.stderr);
    assert_eq!((output.status.success(), &*text(&output.stdout)), (true, "well\n"), "{err}");
    let (mut stdout, mut freed, mut threads) = (BTreeSet::new(), 0, BTreeSet::new());
    for line in err.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let &["TRACE", "malloc-56" | "malloc-64", operation, address, thread] = &*words else {
            panic!("{err}")
        };
        threads.insert(thread);
        match operation {
            "alloc" => assert!(stdout.insert(address), "{line}: twice\n{err}"),
            "free" => freed += u32::from(stdout.remove(address)),
            _ => panic!("{err}"),
        }
    }
    assert!(freed > 0, "the program must free what it allocates: {err}");
    let thread = threads.pop_first().and_then(|thread| thread.strip_prefix("thread=")?.parse::<u32>().ok());
    assert!(thread.is_some_and(|thread| thread > 0) && threads.is_empty(), "{err}");
}

/// The program allocates twenty objects whose addresses are stored nowhere, and five objects for which a list holds
/// only inner addresses.
#[test]
fn exit_report_groups_leaks_by_allocation_site() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("damage.c", dir.path());
    for options in ["leaks=1", "leaks=1,slab_debug=FZPU"] {
        let output = preloaded(Command::new(&program).arg("leak"), options);
        let err = text(&output.stderr);
        assert!(output.status.success() && err.starts_with("uslab: leaks: "), "{options}: {err}");
        let rows: Vec<_> = err.split_inclusive('\n').collect();
        let count_of = |name: &str| {
            let positions = rows.iter().position(|row| row.contains(name))?;
            let row = rows[..positions].iter().rfind(|row| row.contains(" unreachable of "))?;
            row.split_whitespace().next()?.parse::<u32>().ok()
        };
        // A stale word elsewhere may look like the address of an object.
        assert!(
            count_of("the_allocation").is_some_and(|objects| (10..=20).contains(&objects)),
            "{options}: {err}"
        );
        assert_eq!(count_of("the_list"), None, "{options}: {err}");
        let output = preloaded(Command::new(&program).arg("none"), options);
        assert_eq!(text(&output.stdout), "well\n", "{options}");
    }
}

/// Tests shells, which fork, and whose child processes continue to use the heap.
#[test]
fn forked_children_use_the_debugged_heap() {
    let script = "for i in 1 2 3; do (echo $i | cat; (echo sub $i)) ; done; echo $(echo inner | tr a-z A-Z)";
    let shell = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    };
    let without_library = shell().output().unwrap();
    let with_library = preloaded(&mut shell(), "slab_debug=FZPU");
    assert!(with_library.status.success(), "{:?} {}", with_library.status, text(&with_library.stderr));
    assert_eq!(
        (text(&with_library.stdout), text(&with_library.stderr)),
        (text(&without_library.stdout), String::new())
    );
}

#[test]
fn debugged_malloc_follows_the_c_malloc_contract() {
    let dir = tempfile::tempdir().unwrap();
    let api = compiled("api.c", dir.path());
    // Red zones double a class whose size is a power of two, because it is aligned to its size. Red zones take more
    // memory than the program's own checks expect. Recording the stacks of all allocations takes a minute.
    let options = if run_long_tests() { "slab_debug=FPU,reap=60000" } else { "slab_debug=FP,reap=60000" };
    let output = preloaded(&mut Command::new(&api), options);
    let (stdout, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{:?}\n{stdout}{err}", output.status);
    assert!(stdout.starts_with("all good with "), "{stdout}");
}
