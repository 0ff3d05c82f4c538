//! Tables of what a malloc costs the program that embeds it: memory, start-up time, and system calls.
//!
//! Runs for about 20 minutes: `cargo bench -p uslab-benches --bench embed`. With `-- --quick`, a short run shows that
//! the bench works; `-- --table zeros` prints only that table.

use clap::{Parser, ValueEnum};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use uslab_benches::Kind;
use uslab_benches::preload::{PreloadedMalloc, peers};
use uslab_tests::{cargo, compile_c_program, libuslab};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    /// Memory of a cache of objects that each hold a buffer
    Objects,
    /// Resident memory of a service after it dropped its data
    Returns,
    /// Programs that run behind system call filters
    Filters,
    /// A process that allocates only once, and a process with small objects
    Small,
    /// Zeroed blocks of which the program accesses only eight bytes
    Zeros,
    /// Threads and blocks that fit under `ulimit -v`, and memory that is freed and mapped in a small control group
    Limits,
}

#[derive(Parser)]
struct Options {
    /// Quick run that shows that everything works; its numbers mean little
    #[arg(long)]
    quick: bool,
    /// Only these tables
    #[arg(long)]
    table: Vec<Table>,
    /// Measures only the mallocs whose name contains this text
    malloc: Option<String>,
    /// Accepted and ignored, because cargo passes it to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A malloc to preload, and the value of its `USLAB_OPTIONS`.
type Malloc = (PreloadedMalloc, &'static str);

const KEPT_OBJECT_SHARES: [&str; 3] = ["all dropped", "nine tenths", "all but one a page"];
const FOLLOWING_STATES: [&str; 2] = ["idle", "busy"];
const TASK_KINDS: [&str; 2] = ["threads", "tokio tasks"];

/// Returns the value of `LD_PRELOAD` that selects a malloc.
fn library(malloc: &PreloadedMalloc) -> &OsStr {
    malloc.library.as_deref().map_or(OsStr::new(""), Path::as_os_str)
}

/// Returns the number that follows `name` on a line of a report.
fn number(report: &str, name: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Runs the benchmark program called `name` under a malloc. Returns the program's standard error; `None` if the program
/// fails.
fn report(malloc: &Malloc, quick: bool, name: &str, numbers: &[(&str, usize)]) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    command.arg(name).args(quick.then_some("--quick"));
    for (parameter, number) in numbers {
        command.arg(format!("--{parameter}")).arg(number.to_string());
    }
    command.env("LD_PRELOAD", library(&malloc.0)).env("USLAB_OPTIONS", malloc.1);
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn cell(number: Option<f64>) -> String {
    number.map_or("failed".into(), |number| format!("{number:.0}"))
}

fn objects(quick: bool) {
    println!(
        "\n1,000 objects of 256 KiB each are allocated and freed. The resident memory is measured with one object, after all are freed, \
         and a second later.\n\n| an object is constructed | the cache knows its size | first allocation, us | one object, MiB \
         | all freed, MiB | 1 s later, MiB |\n|---|---|---|---|---|---|"
    );
    let no_library = (PreloadedMalloc { name: "system".into(), kind: Kind::General, library: None }, "");
    for (construct, constructed) in [(1, "when it first leaves its slab"), (2, "with its slab")] {
        for (size_known, known_text) in [(1, "yes"), (2, "no")] {
            let report =
                report(&no_library, quick, "objects", &[("construct", construct), ("holds", size_known)]);
            let cells = ["first", "one", "freed", "idle"]
                .map(|name| cell(report.as_deref().and_then(|report| number(report, name))));
            println!("| {constructed} | {known_text} | {} |", cells.join(" | "));
        }
    }
}

fn measure_returned_memory(mallocs: &[Malloc], quick: bool) {
    println!(
        "\nResident MiB after all sessions are loaded, then one second and ten seconds after most are dropped."
    );
    for (column, task) in (1..).zip(TASK_KINDS) {
        println!(
            "\n| {task} | loaded | {} |",
            KEPT_OBJECT_SHARES
                .map(|state| FOLLOWING_STATES.map(|next_state| format!("{state}, {next_state}")).join(" | "))
                .join(" | ")
        );
        println!("|---|---|{}", "---|".repeat(KEPT_OBJECT_SHARES.len() * FOLLOWING_STATES.len()));
        for malloc in mallocs {
            let mut loaded_mib = None;
            let mut cells = String::new();
            for kept_column in 1..=KEPT_OBJECT_SHARES.len() {
                for next_state in 1..=FOLLOWING_STATES.len() {
                    let report = report(
                        malloc,
                        quick,
                        "returns",
                        &[("keep", kept_column), ("then", next_state), ("on", column)],
                    );
                    let mib = |label| report.as_deref().and_then(|report| number(report, label));
                    loaded_mib = loaded_mib.or_else(|| mib("loaded"));
                    cells += &format!(" {}, {} |", cell(mib("soon")), cell(mib("later")));
                }
            }
            println!("| `{}` | {} |{cells}", malloc.0.name, cell(loaded_mib));
        }
    }
}

/// Prints the rows of the system call filter test, which describes each filter and the programs.
fn filters() {
    const TEST: &str = "program_with_a_system_call_filter_continues";
    println!(
        "\nPrograms install a system call filter after their start: the table shows how each program ends.\n\n| filter | program | with the library | without |\n\
         |---|---|---|---|"
    );
    let mut command = cargo();
    command.args([
        "test",
        "--quiet",
        "--package",
        "uslab-tests",
        "--test",
        "programs",
        "--",
        "--nocapture",
        TEST,
    ]);
    let output = command.output().expect("cargo must run");
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text);
    for line in output_text.lines().filter_map(|line| line.strip_prefix("preload: under filter ")) {
        let words = line.split_once(" with check=0: ").and_then(|(allocator_words, ends)| {
            Some((allocator_words.split_once(' ')?, ends.split_once("; without the library: ")?))
        });
        if let Some(((filter, program), (with_library, without_library))) = words {
            println!("| {filter} | {program} | {with_library} | {without_library} |");
        }
    }
    assert!(output.status.success(), "{output_text}");
}

/// Compiles one of the C programs of the preload tests.
fn compiled(name: &str, dir: &Path) -> PathBuf {
    let dir = dir.join(name);
    std::fs::create_dir(&dir).expect("a folder");
    compile_c_program(&format!("tests/programs/preload/{name}"), &["-O1"], &dir)
}

/// Returns the standard output of a command, if the command succeeded.
fn command_stdout(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn small(mallocs: &[Malloc], dir: &Path) {
    println!(
        "\nA process allocates 100 bytes once and ends: the table counts its system calls and its instructions. Instructions are counted under valgrind, which has no restartable sequences. Another process allocates objects of 64 bytes: the table has its memory before the first object. The ratios are the additional memory, divided by the bytes of the objects.\n\n| malloc | system calls | instructions | KiB before the first object | ratio for 10,000 objects | ratio for 100,000 objects |\n|---|---|---|---|---|---|"
    );
    let [calls, program] = ["calls.c", "small.c"].map(|name| compiled(name, dir));
    for (malloc, options) in mallocs {
        let call_count = command_stdout(Command::new(&calls).arg(library(malloc)).arg(&program).arg("once"));
        let calls = call_count.and_then(|text| text.trim().parse().ok());
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&program).arg("once");
        let output = valgrind.env("LD_PRELOAD", library(malloc)).env("USLAB_OPTIONS", options).output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
        let instructions =
            text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
        // A huge page would be mostly unused, so huge pages are off.
        let options = format!("{options},huge_pages=never");
        let text = command_stdout(
            Command::new(&program)
                .env("LD_PRELOAD", library(malloc))
                .env("USLAB_OPTIONS", options.trim_start_matches(',')),
        );
        let kib: Vec<f64> =
            text.iter().flat_map(|text| text.split_whitespace()).filter_map(|kib| kib.parse().ok()).collect();
        let ratios = [(1, 10_000.0), (2, 100_000.0)].map(|(text_column, objects)| {
            kib.get(text_column).map_or("failed".into(), |with_library| {
                format!("{:.2}", (with_library - kib[0]) / (objects / 16.0))
            })
        });
        let before = cell(kib.first().copied());
        println!(
            "| `{}` | {} | {} | {before} | {} |",
            malloc.name,
            cell(calls),
            cell(instructions),
            ratios.join(" | ")
        );
    }
}

fn zeros(mallocs: &[Malloc], quick: bool) {
    const OBJECT_COUNTS_AND_SIZES: [(usize, usize); 3] = [(300, 3 << 10), (300, 4 << 10), (2000, 128)];
    println!("\nResident MiB of zeroed blocks, after eight bytes of each block were written.\n");
    println!(
        "| malloc | {} |",
        OBJECT_COUNTS_AND_SIZES.map(|(blocks, kib)| format!("{blocks} of {kib} KiB")).join(" | ")
    );
    println!("|---|{}", "---|".repeat(OBJECT_COUNTS_AND_SIZES.len()));
    for malloc in mallocs {
        let cells = OBJECT_COUNTS_AND_SIZES.map(|(blocks, kib)| {
            let report = report(malloc, quick, "zeros", &[("blocks", blocks), ("kib", kib)]);
            cell(report.as_deref().and_then(|report| number(report, "resident")))
        });
        println!("| `{}` | {} |", malloc.0.name, cells.join(" | "));
    }
}

fn limits(mallocs: &[Malloc], dir: &Path) {
    const GROUP_SIZES: [u64; 4] = [32, 64, 100, 256];
    println!(
        "\nUnder `ulimit -v` of 900,000 KiB, threads start, and then blocks of 1 MiB are allocated: the table counts both. In a control group with the given limit, a program frees three fifths of the limit, and then maps the same amount.\n\n| malloc | threads | blocks | {} |\n|---|---|---|{}",
        GROUP_SIZES.map(|mib| format!("{mib} MiB")).join(" | "),
        "---|".repeat(GROUP_SIZES.len())
    );
    let [addresses, group] = ["addresses.c", "group.c"].map(|name| compiled(name, dir));
    for (malloc, options) in mallocs {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ulimit -v 900000 && LD_PRELOAD=$1 exec \"$0\""])
            .arg(&addresses)
            .arg(library(malloc));
        let text = command_stdout(shell.env("USLAB_OPTIONS", options)).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let [threads, blocks] = [(); 2].map(|()| cell(numbers.next().flatten()));
        let ends = GROUP_SIZES.map(|mib| {
            let Some(limited) = uslab_tests::ControlGroup::new(mib << 20) else { return "no control group" };
            let mut command = limited.command(&group, malloc.library.as_deref());
            match command_stdout(command.arg((mib * 3 / 5).to_string()).env("USLAB_OPTIONS", options)) {
                Some(_) => "ends well",
                None => "is killed",
            }
        });
        println!("| `{}` | {threads} | {blocks} | {} |", malloc.name, ends.join(" | "));
    }
}

fn main() {
    let options = Options::parse();
    let own_malloc =
        |name: &str| PreloadedMalloc { name: name.into(), kind: Kind::Ours, library: Some(libuslab()) };
    let own_mallocs = [(own_malloc("uslab"), ""), (own_malloc("uslab, reap=500"), "reap=500")];
    let all_mallocs = own_mallocs.into_iter().chain(peers().into_iter().map(|peer| (peer, "")));
    let mallocs: Vec<Malloc> = all_mallocs
        .filter(|(malloc, _)| options.malloc.as_ref().is_none_or(|name| malloc.name.contains(name.as_str())))
        .collect();
    let dir = tempfile::tempdir().expect("a folder");
    for table in Table::value_variants() {
        if !options.table.is_empty() && !options.table.contains(table) {
            continue;
        }
        match table {
            Table::Objects => objects(options.quick),
            Table::Returns => measure_returned_memory(&mallocs, options.quick),
            Table::Filters => filters(),
            Table::Small => small(&mallocs, dir.path()),
            Table::Zeros => zeros(&mallocs, options.quick),
            Table::Limits => limits(&mallocs, dir.path()),
        }
    }
}
