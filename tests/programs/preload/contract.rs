//! Tests the guarantees on which C programs rely.

use super::python::python;
use super::{compiled, preloaded, print_line, program, text};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use uslab_tests::{compile_c_program, libuslab, libuslab_cache, workspace};

#[test]
fn preloaded_malloc_follows_the_c_malloc_contract() {
    let dir = tempfile::tempdir().unwrap();
    let api = compiled("api.c", dir.path());
    for rseq in ["on", "off"] {
        // The reap interval is a minute, because an earlier reap would move objects while the program compares counts.
        let output = preloaded(Command::new(&api).env("USLAB_RSEQ", rseq), "check=1,reap=60000");
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "rseq {rseq}: {:?}\n{stdout}{err}", output.status);
        assert!(stdout.starts_with("all good with ") && err.is_empty(), "rseq {rseq}: {stdout}{err}");
    }
}

#[test]
fn malloc_starts_after_a_late_dlopen() {
    let dir = tempfile::tempdir().unwrap();
    let starts = compiled("starts.c", dir.path());
    for options in ["check=0", "check=1"] {
        let fork = preloaded(Command::new(&starts).arg("fork"), options);
        let mut late_start = Command::new(&starts);
        let late_start =
            late_start.arg("late").arg(libuslab()).env("USLAB_OPTIONS", options).output().unwrap();
        for output in [fork, late_start] {
            let (stdout, err) = (text(&output.stdout), text(&output.stderr));
            assert!(
                output.status.success() && stdout == "all good\n",
                "{options}: {:?} {stdout}{err}",
                output.status
            );
        }
    }
}

/// Returns a C header for `sandbox.c`, made from the filters of `filters.txt`. Also returns the expected outcome of
/// each behaviour under each filter, which is `well` or `-`.
fn filters(data: &str) -> (String, Vec<(String, String, String)>) {
    let (mut header, mut filters, mut calls) = (String::new(), String::new(), BTreeSet::new());
    let (mut behaviours, mut outcomes): (Vec<&str>, _) = (vec![], vec![]);
    let action = |word: &str| match word {
        "allow" => "ALLOW".to_owned(),
        "end" => "END".to_owned(),
        error => format!("FAIL({error})"),
    };
    let mut filter = "";
    for line in data.replace("\n    ", " ").lines() {
        let words: Vec<&str> = line.split('#').next().unwrap().split_whitespace().collect();
        let mut rules = |names: &[&str], action: &str, argument: &str, bits: &str| {
            for name in names {
                let rule = format!("{{__NR_{name}, {action}, {argument}, {bits}}}");
                header += &format!("#ifdef __NR_{name}\n{rule},\n#endif\n");
                calls.insert((*name).to_owned());
            }
        };
        match words[..] {
            [] => {}
            ["filter", name] => {
                header += &format!("static const struct rule rules_{}[] = {{\n", name.replace('-', "_"));
                filter = Box::leak(name.to_owned().into_boxed_str());
            }
            ["allow", ref names @ ..] => rules(names, "ALLOW", "-1", "0"),
            ["only", name, argument, bits] => rules(&[name], "ALLOW", argument, bits),
            ["deny", error, ref names @ ..] => rules(names, &action(error), "-1", "0"),
            ["otherwise", word] => {
                header += "};\n";
                let (rules, default_action) = (format!("rules_{}", filter.replace('-', "_")), action(word));
                let length = format!("sizeof {rules} / sizeof *{rules}");
                filters += &format!("{{\"{filter}\", {rules}, {length}, {default_action}}},\n");
            }
            ["outcomes", ref names @ ..] => {
                behaviours =
                    names.iter().map(|name| &*Box::leak((*name).to_owned().into_boxed_str())).collect();
            }
            [name, ref cells @ ..] if cells.len() == behaviours.len() => {
                let row = behaviours.iter().zip(cells);
                outcomes.extend(
                    row.map(|(case_name, cell)| {
                        (name.to_owned(), (*case_name).to_owned(), (*cell).to_owned())
                    }),
                );
            }
            _ => panic!("filters.txt: {line}"),
        }
    }
    header += &format!(
        "static const struct filter filters[] = {{\n{filters}}};\nstatic const struct call calls[] = {{\n"
    );
    for name in calls {
        header += &format!("#ifdef __NR_{name}\n{{__NR_{name}, \"{name}\"}},\n#endif\n");
    }
    (header + "};\n", outcomes)
}

/// Regression test: the first allocation read the list of CPUs, so the system call filter of a login server ended the
/// program. Regression test: freeing a mapping read the address limit, `malloc_trim` issued a membarrier, and a heap
/// above 8 MiB started a thread.
#[test]
fn program_with_a_system_call_filter_continues() {
    let dir = tempfile::tempdir().unwrap();
    let data = std::fs::read_to_string(workspace().join("tests/programs/preload/filters.txt")).unwrap();
    let (header, outcomes) = filters(&data);
    std::fs::write(dir.path().join("filters.h"), header).unwrap();
    let include = format!("-I{}", dir.path().display());
    let sandbox = compile_c_program("tests/programs/preload/sandbox.c", &["-O1", &include], dir.path());
    assert!(outcomes.len() >= 5 * 6);
    let mut failures = vec![];
    for (filter, case_name, expected) in outcomes {
        let mut program = Command::new(&sandbox);
        let outcome_alone = text(&program.args([&filter, &case_name]).output().unwrap().stdout);
        if outcome_alone.starts_with("no filter may be closed") {
            return print_line(
                "preload: skipped the filters of system calls: the system does not allow them",
            );
        }
        for options in ["check=0", "check=1"] {
            let output = preloaded(&mut program, options);
            let (stdout, err) = (text(&output.stdout), text(&output.stderr));
            print_line(&format!(
                "preload: under filter {filter} {case_name} with {options}: {stdout}; without the library: {outcome_alone}"
            ));
            let is_as_expected = if expected == "-" {
                stdout == outcome_alone && stdout != "well"
            } else {
                stdout == expected
            };
            if !is_as_expected {
                failures.push(format!(
                    "{filter} {case_name} {options}: {stdout} {err}{:?}, alone {outcome_alone}",
                    output.status
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// If a program defines only some forms of `operator new` and `delete`, the other forms (for arrays, with a size) must
/// call the program's forms.
#[test]
fn cplusplus_new_and_delete_are_replaced_consistently() {
    let Some(cc) = program("c++") else { return };
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("operators");
    for own_flags in [&[][..], &["-DOWN"]] {
        let mut cc = Command::new(&cc);
        cc.args(["-O1", "-std=c++17", "-w", "-fsized-deallocation", "-fno-builtin"]).args(own_flags);
        let source = workspace().join("tests/programs/preload/operators.cpp");
        assert!(cc.arg("-o").arg(&binary).arg(source).status().expect("a C++ compiler").success());
        for options in ["check=0", "check=1"] {
            let output = preloaded(&mut Command::new(&binary), options);
            let (stdout, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{own_flags:?} {options}: {:?}\n{stdout}{err}", output.status);
            assert!(
                stdout.starts_with("all good with ") && err.is_empty(),
                "{own_flags:?} {options}: {stdout}{err}"
            );
        }
    }
}

/// Regression test: `delete` waited for the loader's lock, while the loader held it and ran a constructor that waited
/// for the deleting thread.
#[test]
fn delete_does_not_wait_for_the_loader_lock() {
    let Some(cc) = program("c++") else { return };
    let dir = tempfile::tempdir().unwrap();
    let [library, opener] = ["library.so", "opens"].map(|name| dir.path().join(name));
    for (target, flags) in [(&library, &["-shared", "-fPIC", "-DLIBRARY"][..]), (&opener, &[][..])] {
        let mut cc = Command::new(&cc);
        cc.args(["-std=c++17", "-w", "-fsized-deallocation", "-fno-builtin", "-pthread"]).args(flags);
        let source = workspace().join("tests/programs/preload/constructor.cpp");
        assert!(cc.arg("-o").arg(target).arg(source).arg("-ldl").status().expect("a C++ compiler").success());
    }
    let output = preloaded(Command::new(opener).arg(library), "check=1");
    let (stdout, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout == "opened\n", "{:?} {stdout}{err}", output.status);
}

/// Regression test: the program aborted, because later symbol lookups by the library did not search the C++ library.
#[test]
fn cplusplus_extension_catches_bad_alloc_at_the_limit() {
    let (Some(cxx), Some(cc)) = (program("c++"), program("cc")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [library, opener] = ["extension.so", "opens"].map(|name| dir.path().join(name));
    let source = workspace().join("tests/programs/preload/extension.cpp");
    let compile = |compiler: &Path, flags: &[&str], target: &Path| {
        let mut compiler = Command::new(compiler);
        assert!(compiler.args(flags).arg("-o").arg(target).arg(&source).status().unwrap().success());
    };
    compile(&cxx, &["-std=c++17", "-w", "-shared", "-fPIC", "-DLIBRARY"], &library);
    compile(&cc, &["-x", "c", "-w"], &opener);
    for options in ["check=0", "check=1"] {
        let output = preloaded(Command::new(&opener).arg(&library), options);
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success() && stdout == "3 refused\n",
            "{options}: {:?} {stdout}{err}",
            output.status
        );
    }
}

/// Installs both libraries by `make install`; returns `None` if `make` or `pkg-config` is missing.
fn install_library() -> Option<TempDir> {
    let (make_program, _) = (program("make")?, program("pkg-config")?);
    let (prefix, library_file) = (tempfile::tempdir().unwrap(), libuslab_cache());
    let mut install = Command::new(make_program);
    install.args(["--silent", "-C"]).arg(workspace().join("slab/libuslab")).arg("install");
    install.arg(format!("PREFIX={}", prefix.path().display()));
    install.arg(format!("BUILT={}", library_file.parent().unwrap().display()));
    assert!(install.status().unwrap().success());
    Some(prefix)
}

fn pkg_config(prefix: &Path, args: &[&str]) -> String {
    let mut pkg_config = Command::new("pkg-config");
    let output = pkg_config.args(args).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// Compiles and links a C program with the flags of `pkg-config`.
fn linked(prefix: &Path, library: &str, source: &str) -> PathBuf {
    let binary = prefix.join(library);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-D_DEFAULT_SOURCE", "-pthread", "-o"]);
    cc.arg(&binary).arg(workspace().join(source));
    cc.args(pkg_config(prefix, &["--cflags", "--libs", library]).split_whitespace());
    cc.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    assert!(cc.status().expect("a C compiler").success());
    binary
}

fn command_output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let output_text = text(&output.stdout);
    assert!(
        output.status.success(),
        "{command:?}: {:?}\n{output_text}{}",
        output.status,
        text(&output.stderr)
    );
    output_text
}

#[test]
fn c_example_program_constructs_few_buffers() {
    let Some(prefix) = install_library() else { return };
    for (library, has_malloc) in [("uslab", true), ("uslab-cache", false)] {
        let output_text =
            command_output(&mut Command::new(linked(prefix.path(), library, "slab/examples/requests.c")));
        let buffers = output_text
            .strip_prefix("100000 requests, ")
            .and_then(|remaining| remaining.split_once(' '))
            .unwrap()
            .0;
        assert!((1..1000).contains(&buffers.parse::<u32>().unwrap()), "{output_text}");
        assert_eq!(
            (output_text.contains("\nrequest "), output_text.contains("\nmalloc-1024 ")),
            (true, has_malloc),
            "{library}: {output_text}"
        );
    }
}

#[test]
fn c_program_in_the_book_compiles_and_runs() {
    let Some(prefix) = install_library() else { return };
    let page = std::fs::read_to_string(workspace().join("slab/book/src/c.md")).unwrap();
    let (_, program) = page.split_once("\n```c\n").unwrap();
    let source = prefix.path().join("sessions.c");
    std::fs::write(&source, program.split_once("\n```\n").unwrap().0).unwrap();
    for library in ["uslab", "uslab-cache"] {
        let output_text =
            command_output(&mut Command::new(linked(prefix.path(), library, source.to_str().unwrap())));
        let (sessions, idle) =
            output_text.trim().strip_suffix(" idle").unwrap().split_once(" sessions, ").unwrap();
        let [sessions, idle] = [sessions, idle].map(|number| number.parse::<u32>().unwrap());
        assert!(sessions >= 300 && (1..=sessions).contains(&idle), "{output_text}");
    }
}

/// The test calls every function of the header under each mechanism, through each of the two libraries, and on threads
/// that libc does not register.
#[test]
fn c_functions_of_object_caches_behave_as_documented() {
    let Some(prefix) = install_library() else { return };
    for library in ["uslab", "uslab-cache"] {
        let program = linked(prefix.path(), library, "tests/programs/preload/caches.c");
        for variable in
            [("USLAB_RSEQ", "on"), ("USLAB_RSEQ", "off"), ("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]
        {
            // The library's own thread also uses memory, and `uslab_check` requires that no other thread does.
            let table = command_output(
                Command::new(&program).env("USLAB_OPTIONS", "reap=0").env(variable.0, variable.1),
            );
            assert!(table.contains("\nolder ") && !table.contains("\nplain "), "{table}");
        }
    }
}

/// An exception cannot pass through the allocator's functions, because they are not written in C++.
#[test]
fn exception_leaving_a_cache_callback_aborts_the_program() {
    use std::os::unix::process::ExitStatusExt;
    let (Some(cxx), Some(prefix)) = (program("c++"), install_library()) else { return };
    for library in ["uslab", "uslab-cache"] {
        let binary = prefix.path().join(format!("throws-{library}"));
        let mut cxx = Command::new(&cxx);
        cxx.args(["-std=c++17", "-w", "-o"]).arg(&binary);
        cxx.arg(workspace().join("tests/programs/preload/throws.cpp"));
        cxx.args(pkg_config(prefix.path(), &["--cflags", "--libs", library]).split_whitespace());
        cxx.arg(format!("-Wl,-rpath,{}", prefix.path().join("lib").display()));
        assert!(cxx.status().expect("a C++ compiler").success());
        for callback in ["ctor", "dtor", "count", "scan"] {
            let output = Command::new(&binary).arg(callback).env("USLAB_OPTIONS", "reap=0").output().unwrap();
            let (stdout, err) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.signal(), Some(6), "{library} {callback}: {stdout}{err}");
            assert!(stdout.is_empty(), "{library} {callback}: {stdout}");
        }
    }
}

/// Regression test: all statistics ignored objects in quarantine.
#[test]
fn statistics_count_objects_in_quarantine_as_cached() {
    let Some(prefix) = install_library() else { return };
    let program = linked(prefix.path(), "uslab", "tests/programs/preload/caches.c");
    command_output(Command::new(program).arg("quarantine").env("USLAB_OPTIONS", "reap=0,quarantine=4k"));
}

/// Regression test: the library for caches registered its fork handlers only when the first cache was created. The
/// library therefore held its locks while the program's older fork handlers ran.
#[test]
fn fork_handlers_registered_earlier_can_use_caches() {
    let Some(prefix) = install_library() else { return };
    for library in ["uslab", "uslab-cache"] {
        let program = linked(prefix.path(), library, "tests/programs/preload/fork_handlers.c");
        assert_eq!(command_output(&mut Command::new(program)), "forked\n");
    }
}

/// Programs load the library by a file name that contains the version of its interface. The version in `pkg-config` and
/// in the manual page must equal the library's version.
#[test]
fn installed_files_have_consistent_names_and_versions() {
    let Some(prefix) = install_library() else { return };
    let file = |name: &str| prefix.path().join(name);
    for (library, links) in [("uslab", "libuslab.so"), ("uslab-cache", "libuslab-cache.so")] {
        let version = pkg_config(prefix.path(), &["--modversion", library]);
        let target_file = std::fs::canonicalize(file(&format!("lib/{links}"))).unwrap();
        assert_eq!(target_file, file(&format!("lib/{links}.{version}")).canonicalize().unwrap());
        assert_eq!(std::fs::canonicalize(file(&format!("lib/{links}.0"))).unwrap(), target_file);
        let file_bytes = std::fs::read(&target_file).unwrap();
        let name = [b"\0", links.as_bytes(), b".0\0"].concat();
        assert!(
            file_bytes.windows(name.len()).any(|bytes| bytes == name),
            "{links}: the page must have the library's name"
        );
        let page = std::fs::read_to_string(file("share/man/man3/uslab.3")).unwrap();
        assert!(page.starts_with(&format!(".TH USLAB 3 \"\" \"uslab {version}\"")), "{page}");
    }
}

fn declared_functions() -> BTreeSet<String> {
    let header = std::fs::read_to_string(workspace().join("slab/libuslab/uslab.h")).unwrap();
    let names = header.lines().filter(|line| line.ends_with(");")).filter_map(|line| {
        let name = line.split('(').next()?.rsplit([' ', '*']).next()?;
        name.starts_with("uslab_").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn manual_page_documents_the_whole_header() {
    let page = std::fs::read_to_string(workspace().join("slab/libuslab/man/uslab.3")).unwrap();
    let (_, synopsis) = page.split_once(".SH SYNOPSIS").unwrap();
    let undocumented: Vec<_> =
        declared_functions().into_iter().filter(|name| !synopsis.contains(&format!("{name}("))).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
    let header = std::fs::read_to_string(workspace().join("slab/libuslab/uslab.h")).unwrap();
    let words = header.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let constants: BTreeSet<_> =
        words.filter(|word| word.starts_with("USLAB_") && *word != "USLAB_H").collect();
    assert!(constants.len() > 20);
    let undocumented: Vec<_> = constants.into_iter().filter(|name| !page.contains(name)).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

/// The header must declare exactly the functions that the libraries export. `libuslab` replaces the program's malloc;
/// `libuslab-cache` leaves it unchanged.
#[test]
fn header_declares_exactly_the_exported_functions() {
    let Some(nm) = program("nm") else { return };
    let exported_symbols = |library: &Path| -> BTreeSet<String> {
        let symbols = command_output(Command::new(&nm).args(["-D", "--defined-only"]).arg(library));
        symbols.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect()
    };
    let declared = declared_functions();
    assert_eq!(exported_symbols(&libuslab_cache()), declared);
    let malloc = "malloc calloc free free_sized free_aligned_sized realloc reallocarray posix_memalign aligned_alloc \
                  memalign valloc pvalloc malloc_usable_size malloc_trim mallinfo mallinfo2 malloc_info malloc_stats \
                  mallopt dlopen setrlimit setrlimit64 prlimit prlimit64";
    let operators = "_Znwm _Znam _ZnwmSt11align_val_t _ZnamSt11align_val_t _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm \
                     _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t";
    let functions = [malloc, operators].into_iter().flat_map(str::split_whitespace);
    let expected: BTreeSet<_> = declared.into_iter().chain(functions.map(str::to_owned)).collect();
    assert_eq!(exported_symbols(&libuslab()), expected);
}

/// Checks that each invalid call ends the program with the expected message.
fn assert_invalid_calls_end_program(options: &str, failures: &[(&str, &str)]) {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let api = compiled("api.c", dir.path());
    for (case_name, output_text) in failures {
        let output = preloaded(Command::new(&api).arg(case_name), options);
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.signal(), Some(6), "{case_name}: {stdout}{err}");
        assert!(
            stdout.is_empty() && err.starts_with("uslab: corruption: ") && err.contains(output_text),
            "{case_name}: {err}"
        );
    }
}

#[test]
fn invalid_free_is_reported_and_aborts_the_program() {
    assert_invalid_calls_end_program(
        "check=1,guard=0",
        &[
            ("foreign", "free of an address that no cache owns"),
            ("stack", "free of an address that no cache owns"),
            ("inside", "free of an address inside an object"),
            ("inside-page", "free of an address inside an object"),
            ("inside-huge", "free of an address inside an object"),
            ("twice", "double free"),
            ("twice-huge", "free of an address that no cache owns"),
        ],
    );
}

/// Regression test: by default, `free`, `realloc` and `malloc_usable_size` silently ignored an address inside an
/// object.
#[test]
fn free_inside_an_object_aborts_even_without_checks() {
    assert_invalid_calls_end_program(
        "check=0,guard=0",
        &[
            ("foreign", "free of an address that no cache owns"),
            ("stack", "free of an address that no cache owns"),
            ("inside", "free of an address inside an object"),
            ("inside-page", "free of an address inside an object"),
            ("inside-huge", "free of an address inside an object"),
            ("twice-late", "double free"),
            ("twice-page", "free of an address that no cache owns"),
            ("twice-huge", "free of an address that no cache owns"),
            ("move-foreign", "free of an address that no cache owns"),
            ("move-inside", "free of an address inside an object"),
            ("move-inside-page", "free of an address inside an object"),
            ("size-foreign", "size query for an address that is not an object"),
            ("size-inside", "size query for an address that is not an object"),
            ("size-inside-huge", "size query for an address that is not an object"),
        ],
    );
}

/// Regression test: glibc's statistics functions reported glibc's heap, which was not in use.
#[test]
fn malloc_info_writes_xml_about_the_replaced_heap() {
    let dir = tempfile::tempdir().unwrap();
    let output = preloaded(Command::new(compiled("api.c", dir.path())).arg("report"), "check=0");
    let (xml, stats) = (text(&output.stdout), text(&output.stderr));
    let system =
        stats.strip_prefix("Arena 0:\nsystem bytes     = ").and_then(|remaining| remaining.split_once('\n'));
    let (system, remaining) = system.unwrap_or_else(|| panic!("{stats}"));
    assert!(
        remaining.starts_with("in use bytes     = ") && remaining.contains("\nTotal (incl. mmap):\n"),
        "{stats}"
    );
    assert!(xml.contains(&format!("<system type=\"current\" size=\"{}\"/>", system.trim())), "{stats}{xml}");
    // The text needs no escapes, so it is well-formed if its tags are nested.
    let mut open = vec![];
    for tag in xml.split('<').skip(1).map(|tag| tag.split('>').next().unwrap()) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{xml}"),
            None if tag.ends_with('/') => assert!(!open.is_empty(), "{xml}"),
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty() && xml.starts_with("<malloc version=\"1\">\n"), "{xml}");
    assert!(xml.contains("<total type=\"mmap\" count=\"1\" size=\"9437184\"/>"), "{xml}");
}

/// Regression test: mappings above 4 MiB did not count towards the limit.
#[test]
fn memory_limit_includes_large_mappings() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("budget.c", dir.path());
    for options in ["limit=64m", "limit=64m,huge_cache=0,check=1"] {
        let output = preloaded(&mut Command::new(&program), options);
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success() && stdout == "kept\n",
            "{options}: {:?} {stdout}{err}",
            output.status
        );
    }
}

/// Regression test: the library called glibc's `free`, which does not know the program's allocations.
#[test]
fn library_opened_with_deepbind_uses_the_replaced_free() {
    let dir = tempfile::tempdir().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(dir.path().join("libdeepbind.so"));
    cc.arg(workspace().join("tests/programs/preload/deepbind_library.c"));
    assert!(cc.status().expect("a C compiler").success());
    // The library is found by its name alone, through the program's `RUNPATH`, because `dlopen` uses its caller's.
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-o"]).arg(dir.path().join("program"));
    cc.arg(workspace().join("tests/programs/preload/deepbind.c")).arg("-ldl");
    cc.arg(format!("-Wl,--enable-new-dtags,-rpath,{}", dir.path().display()));
    assert!(cc.status().expect("a C compiler").success());
    let output = preloaded(&mut Command::new(dir.path().join("program")), "check=1");
    let (stdout, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout == "freed\n", "{:?} {stdout}{err}", output.status);
}

/// Returns the number of system calls of a program under a library (no library if the name is empty); `None` if tracing
/// is not permitted.
fn system_calls(counter: &Path, library: &Path, program: &[&OsStr]) -> Option<u32> {
    let output = Command::new(counter).arg(library).args(program).output().unwrap();
    let output_text = text(&output.stdout);
    if !output.status.success() {
        print_line(&format!("preload: skipped the count of system calls: {}", output_text.trim()));
        return None;
    }
    Some(output_text.trim().parse().unwrap_or_else(|_| panic!("{output_text}{}", text(&output.stderr))))
}

/// Regression test: starting a process took 423 system calls. Each of 52 magazine layers made a mapping and a commit,
/// and each of the first 268 allocations of a process read the process id. A later version made 80 more system calls
/// than a process without the library; 20 of them loaded two libraries that are no longer needed.
#[test]
fn process_start_takes_few_system_calls() {
    let [counts, allocates] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let counter = compiled("calls.c", counts.path());
    let program = compiled("small.c", allocates.path());
    let calls = |library: &Path| system_calls(&counter, library, &[program.as_os_str(), OsStr::new("once")]);
    let (Some(with_library), Some(without_library)) = (calls(&libuslab()), calls(Path::new(""))) else {
        return;
    };
    print_line(&format!(
        "preload: {with_library} system calls of a program that allocates once, {without_library} without the library"
    ));
    // A process group and each group above it take up to six calls. The unwinder takes eleven calls without gcc's
    // archive.
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let depth = groups.lines().map(|line| line.matches('/').count()).max().unwrap_or(0) as u32;
    assert!(
        with_library - without_library <= 40 + 6 * depth + 11,
        "{with_library} and {without_library}: {groups}"
    );
}

/// The test allocates objects of 64 bytes; each takes about 66 bytes of memory. The rest of the memory is the fixed
/// cost of a process.
#[test]
fn small_process_uses_little_extra_memory() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("small.c", dir.path());
    let kib = |output: std::process::Output| -> Vec<u32> {
        text(&output.stdout).split_whitespace().map(|kib| kib.parse().unwrap()).collect()
    };
    let without_library = kib(Command::new(&program).output().unwrap());
    // Huge pages are disabled, because they would be mostly unused.
    let with_library = kib(preloaded(&mut Command::new(&program), "check=0,huge_pages=never"));
    let ratios = |kib: &[u32]| {
        [(1, 10_000), (2, 100_000)]
            .map(|(index, n)| f64::from(kib[index] - kib[0]) / f64::from(n * 64 / 1024))
    };
    let (ratios_with, ratios_without) = (ratios(&with_library), ratios(&without_library));
    print_line(&format!(
        "preload: {} KiB before the first object, {} without the library; 10,000 and 100,000 objects of 64 bytes take {:.2} and {:.2} times \
         their bytes, {:.2} and {:.2} without",
        with_library[0],
        without_library[0],
        ratios_with[0],
        ratios_with[1],
        ratios_without[0],
        ratios_without[1]
    ));
    assert!(ratios_with[0] < 1.3 && ratios_with[1] < 1.1, "{with_library:?}");
    assert!(with_library[0] - without_library[0] < 640, "{with_library:?} {without_library:?}");
}

#[test]
fn stats_table_is_printed_at_exit() {
    let output = preloaded(Command::new("true").arg(""), "stats=1,colour=red");
    let err = text(&output.stderr);
    assert!(output.status.success());
    let (first, table) = err.split_once('\n').unwrap();
    assert!(first.starts_with("uslab: USLAB_OPTIONS: `colour=red`: expected "), "{err}");
    assert!(
        table.starts_with("slabinfo - version: 2.1 (statistics)\n") && table.contains("\nmalloc-64 "),
        "{err}"
    );
    let quiet_run = preloaded(&mut Command::new("true"), "");
    assert!(quiet_run.stderr.is_empty(), "{}", text(&quiet_run.stderr));
}

/// Regression test: an address limit that the process set for itself did not apply to small blocks, and left no
/// addresses for threads and mappings. If the limit was set before the process started, half of the addresses under the
/// limit remained unused.
#[test]
fn heap_leaves_part_of_the_address_limit_for_mappings() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("limit.c", dir.path());
    for mib in [256, 512] {
        // Checks are disabled, because they take an eighth of the memory.
        let by_itself = preloaded(Command::new(&program).arg(mib.to_string()), "check=0");
        let shell = format!("ulimit -v {} && exec \"$0\"", mib << 10);
        let before = preloaded(Command::new("sh").args(["-c", &shell]).arg(&program), "check=0");
        for (output, moment) in [(by_itself, "by itself"), (before, "before the start")] {
            let (stdout, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{mib} MiB, {moment}: {:?} {stdout}{err}", output.status);
            let count: usize = stdout.trim().parse().unwrap_or_else(|_| panic!("{stdout}{err}"));
            assert!((mib * 6 / 10..mib).contains(&count), "{mib} MiB, {moment}: {count} MB");
        }
    }
}

/// Regression test: when the process started, the page range reserved three quarters of the address limit. The
/// remaining addresses were enough for 22 threads and 648 blocks; the C library's malloc left enough for 109 threads
/// and 841 blocks.
#[test]
fn address_limit_leaves_room_for_thread_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("addresses.c", dir.path());
    // The second option enables tags, which take an eighth of the slabs.
    for options in ["check=0", "check=1"] {
        let mut shell = Command::new("sh");
        let output = preloaded(shell.args(["-c", "ulimit -v 900000 && exec \"$0\""]).arg(&program), options);
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{options}: {:?} {stdout}{err}", output.status);
        let numbers: Vec<usize> = stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        print_line(&format!(
            "preload: {options} under ulimit -v 900000: {numbers:?} threads and blocks of 1 MiB"
        ));
        assert!(numbers[0] >= 100 && numbers[1] >= 800, "{options}: {stdout}");
    }
}

/// Returns the system's limit on the number of mappings of a process.
fn max_mappings_per_process() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap()
}

/// Regression test: each guard and each large block was a separate mapping, and these mappings were never removed. A
/// heap of half a GiB had 4,159 mappings, and nothing limited their number. The tags of freed slabs also remained in
/// memory, where they took an eighth of the heap's peak size.
#[test]
fn hardened_heap_creates_few_mappings() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("mappings.c", dir.path());
    for options in ["check=0", "check=1", "harden=1"] {
        let output = preloaded(Command::new(&program).arg("scattered"), &format!("reap=50,{options}"));
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && err.is_empty(), "{options}: {:?} {stdout}{err}", output.status);
        print_line(&format!(
            "preload: {options}: numbers of mappings with half of the heap and without it, then KiB: {stdout}"
        ));
        let numbers: Vec<usize> = stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let max_mappings = if options == "harden=1" { max_mappings_per_process() / 2 } else { 200 };
        assert!(
            numbers[0] < max_mappings && numbers[1] < 400 && numbers[2] < 20 << 10,
            "{options}: {stdout}"
        );
    }
}

/// Regression test: when the process had reached the limit on mappings, memory that could not be unmapped was never
/// freed.
#[test]
fn hardened_program_at_the_mapping_limit_continues() {
    let max_mappings = max_mappings_per_process();
    if max_mappings > 1 << 20 {
        return print_line(&format!(
            "preload: skipped the crowd: the test cannot create {max_mappings} mappings"
        ));
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("mappings.c", dir.path());
    for options in ["check=0", "harden=1"] {
        let output = preloaded(Command::new(&program).args(["crowded", &max_mappings.to_string()]), options);
        let (stdout, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{options}: {:?} {stdout}{err}", output.status);
        print_line(&format!(
            "preload: {options}: blocks next to a crowd of mappings, and blocks without it: {stdout}"
        ));
        let numbers: Vec<usize> = stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let has_enough = numbers[..6]
            .iter()
            .zip([20_000, 12_000, 40].iter().cycle())
            .all(|(count, total)| count * 10 >= total * 9);
        assert!(has_enough && numbers[6] == 1, "{options}: {stdout}");
        let output_text =
            "uslab: harden: the system refuses mappings (vm.max_map_count): new memory has no guard pages\n";
        assert_eq!(err, if options == "harden=1" { output_text } else { "" });
    }
}

#[test]
fn address_limit_of_a_vfork_child_does_not_affect_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let output = preloaded(Command::new(compiled("limit.c", dir.path())).arg("vfork"), "check=0");
    assert_eq!(text(&output.stdout), "100\n", "{:?} {}", output.status, text(&output.stderr));
}

/// A large block may get addresses that earlier were the end of the page range. Regression test: freeing a large block
/// at an address of the former page range was treated as freeing a page, and reported corruption.
#[test]
fn large_block_at_former_page_addresses_can_be_freed() {
    let Some(python) = python() else { return };
    for mib in [100, 200, 300] {
        let script =
            format!("held = bytearray(150 << 20); large = bytearray({mib} << 20); del large; print('freed')");
        let shell = "ulimit -v 1048576 && exec \"$0\" -c \"$1\"";
        let output = preloaded(Command::new("sh").args(["-c", shell]).arg(&python).arg(script), "check=0");
        assert_eq!(
            text(&output.stdout),
            "freed\n",
            "{mib} MiB: {:?} {}",
            output.status,
            text(&output.stderr)
        );
    }
}

/// Regression test: a refused request above the address limit used up all remaining addresses of the page range, so
/// later allocations failed.
#[test]
fn refused_request_above_the_address_limit_reserves_nothing() {
    let Some(python) = python() else { return };
    let script = "
try: bytearray(1 << 40)
except MemoryError: print('refused', len([bytes(1000) for _ in range(100000)]))";
    let shell = "ulimit -v 1048576 && exec \"$0\" -c \"$1\"";
    let output = preloaded(Command::new("sh").args(["-c", shell]).arg(python).arg(script), "check=0");
    assert_eq!(text(&output.stdout), "refused 100000\n", "{:?} {}", output.status, text(&output.stderr));
}

/// Regression test: the library wrote its statistics table to a file of the program, which had opened the file under
/// the same descriptor.
#[test]
fn exit_report_is_not_written_to_program_files() {
    let folder = tempfile::tempdir().unwrap();
    let script = "for n in 3 4 5 6 7 8 9; do eval \"exec $n>out$n\"; done; echo hello >&3";
    let mut bash = Command::new("bash");
    preloaded(bash.current_dir(&folder).args(["-c", script]), "stats=1");
    for n in 3..10 {
        let output_text = std::fs::read_to_string(folder.path().join(format!("out{n}"))).unwrap();
        assert_eq!(output_text, if n == 3 { "hello\n" } else { "" }, "out{n}");
    }
}

/// The page range only reserves a part of the address limit; large blocks can use this part, and some of the limit
/// remains free.
#[test]
fn large_blocks_use_reserved_addresses_under_an_address_limit() {
    let Some(python) = python() else { return };
    let script = "
import mmap, resource, threading
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
threads = [threading.Thread(target=lambda: list(range(1000))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
large = bytearray(400 << 20)
mapped = mmap.mmap(-1, 60 << 20)
try: bytearray(700 << 20)
except MemoryError: print('refused', len([str(i) for i in range(1000)]))";
    let output = preloaded(Command::new(python).args(["-c", script]), "check=0");
    assert_eq!(text(&output.stdout), "refused 1000\n", "{}", text(&output.stderr));
}

#[test]
fn allocation_beyond_the_memory_limit_is_refused() {
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
