//! Time and memory of whole programs, each with several mallocs preloaded.
//!
//! The programs are the benchmark programs of `programs/`, real programs, and servers. The mallocs are the C library's
//! malloc, `libuslab.so`, and other mallocs that `benches/peers` has built or that are installed as shared libraries.
//! If a program or library is missing, its name is printed on standard error. The output of a program must be the same
//! under every malloc.

mod real;
mod servers;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uslab_benches::means::{COLUMNS, OWN_ALLOCATOR, ROW, means, unit};
use uslab_benches::preload::{PreloadedMalloc, peers};
use uslab_benches::{Bench, Column, Contender, Kind};
use wait4::{ResourceUsage, Wait4};

/// The mallocs that this run compares.
fn preloads() -> Vec<PreloadedMalloc> {
    let own_library = PreloadedMalloc {
        name: OWN_ALLOCATOR.into(),
        kind: Kind::Ours,
        library: Some(uslab_tests::libuslab()),
    };
    [vec![own_library], peers()].concat()
}

/// A program to measure, with its input and arguments.
#[derive(Clone, Copy)]
struct Program {
    case: &'static str,
    /// Executables that the program needs to run.
    needs: &'static [&'static str],
    run: fn(&Work<'_>) -> Result<Cost, Failure>,
}

/// One run of a program under one malloc.
struct Work<'a> {
    library: Option<&'a Path>,
    /// `true` for a short run, which only shows that the program works.
    quick: bool,
    dir: &'a Path,
}

struct Cost {
    time: Duration,
    /// User and system time of the program and of all child processes that it waited for.
    cpu: Duration,
    /// Largest resident set of any of the processes, in bytes.
    peak: f64,
    /// Number of operations by which the times are divided; `None` for real programs.
    operations: Option<f64>,
    /// The program's standard output, which must be the same under every malloc.
    answer: Vec<u8>,
}

/// The command that failed, and its exit status.
struct Failure(String);

const PROGRAMS: [Program; 33] = [
    Program {
        case: "bench/alloc-test-1",
        needs: &[],
        run: |work| bench(work, &["alloc-test", "--threads", "1"]),
    },
    Program { case: "bench/alloc-test-n", needs: &[], run: |work| bench(work, &["alloc-test"]) },
    Program {
        case: "bench/cache-scratch-1",
        needs: &[],
        run: |work| bench(work, &["cache-scratch", "--threads", "1"]),
    },
    Program { case: "bench/cache-scratch-n", needs: &[], run: |work| bench(work, &["cache-scratch"]) },
    Program {
        case: "bench/cache-thrash-1",
        needs: &[],
        run: |work| bench(work, &["cache-thrash", "--threads", "1"]),
    },
    Program { case: "bench/cache-thrash-n", needs: &[], run: |work| bench(work, &["cache-thrash"]) },
    Program { case: "bench/cfrac", needs: &[], run: |work| bench(work, &["cfrac"]) },
    Program { case: "bench/glibc-simple", needs: &[], run: |work| bench(work, &["glibc-simple"]) },
    Program { case: "bench/glibc-thread", needs: &[], run: |work| bench(work, &["glibc-thread"]) },
    Program { case: "bench/larson", needs: &[], run: |work| bench(work, &["larson"]) },
    Program { case: "bench/larson-sized", needs: &[], run: |work| bench(work, &["larson-sized"]) },
    Program { case: "bench/malloc-large", needs: &[], run: |work| bench(work, &["malloc-large"]) },
    Program { case: "bench/mstress", needs: &[], run: |work| bench(work, &["mstress"]) },
    Program { case: "bench/rptest", needs: &[], run: |work| bench(work, &["rptest"]) },
    Program { case: "bench/xmalloc", needs: &[], run: |work| bench(work, &["xmalloc"]) },
    Program { case: "bench/xmalloc-64", needs: &[], run: |work| bench(work, &["xmalloc-64"]) },
    Program { case: "python3", needs: &["python3"], run: |work| real::python(work, "pymalloc") },
    Program { case: "python3, all by malloc", needs: &["python3"], run: |work| real::python(work, "malloc") },
    Program { case: "gcc", needs: &["gcc"], run: real::gcc },
    Program { case: "sqlite3", needs: &["sqlite3"], run: real::sqlite },
    Program { case: "perl", needs: &["perl"], run: real::perl },
    Program { case: "php", needs: &["php"], run: real::php },
    Program { case: "ruby", needs: &["ruby"], run: real::ruby },
    Program { case: "node", needs: &["node"], run: real::node },
    Program { case: "java", needs: &["java", "javac"], run: real::java },
    Program { case: "go, cgo", needs: &["go", "gcc"], run: real::go },
    Program { case: "rustc", needs: &["rustc"], run: real::rustc },
    Program { case: "chromium", needs: &["chromium"], run: real::chromium },
    Program { case: "redis", needs: &["redis-server", "redis-benchmark"], run: servers::redis },
    Program { case: "memcached", needs: &["memcached"], run: servers::memcached },
    Program { case: "nginx", needs: &["nginx", "ab"], run: servers::nginx },
    Program { case: "haproxy", needs: &["haproxy", "ab"], run: servers::haproxy },
    Program { case: "postgres", needs: &["postgres", "pgbench", "setpriv"], run: servers::postgres },
];

impl Work<'_> {
    fn scale(&self, full: u32) -> u32 {
        if self.quick { (full / 20).max(1) } else { full }
    }
    /// Makes a command that runs with the malloc of this run preloaded.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir).stdin(Stdio::null());
        if let Some(library) = self.library {
            command.env("LD_PRELOAD", library);
        }
        command
    }
    /// Runs a command until it exits, and returns its cost. The measured command must succeed and print something on
    /// standard output.
    fn time(&self, mut command: Command) -> Result<Cost, Failure> {
        let printed = self.dir.join("answer");
        command.stdout(File::create(&printed).expect("a file"));
        let start = Instant::now();
        let end =
            command.spawn().expect("the program must start").wait4().expect("the program must be waited for");
        let time = start.elapsed();
        if !end.status.success() {
            return Err(Failure(format!("{command:?}: {:?}", end.status)));
        }
        let answer = std::fs::read(printed).expect("a file");
        assert!(!answer.is_empty(), "{command:?} prints nothing");
        Ok(Cost { answer, ..Cost::new(time, &end.rusage) })
    }
    /// Writes a file into the folder of the run.
    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Cost {
    fn new(time: Duration, usage: &ResourceUsage) -> Self {
        Self {
            time,
            cpu: usage.utime + usage.stime,
            peak: usage.maxrss as f64,
            operations: None,
            answer: Vec::new(),
        }
    }
}

/// Runs one of the benchmark programs in `programs/`.
fn bench(work: &Work<'_>, arguments: &[&str]) -> Result<Cost, Failure> {
    let mut command = work.command(env!("CARGO_BIN_EXE_programs"));
    command.args(arguments).args(work.quick.then_some("--quick"));
    let error_text = work.dir.join("error");
    command.stderr(File::create(&error_text).expect("a file"));
    let cost = work.time(command);
    let error_text = std::fs::read_to_string(error_text).expect("a file");
    let cost = cost.map_err(|Failure(reason)| Failure(reason + "\n" + &error_text))?;
    let answer = String::from_utf8_lossy(&cost.answer);
    let operations = answer.strip_suffix(" operations\n").and_then(|number| number.parse().ok());
    let peak = error_text
        .lines()
        .find_map(|line| line.strip_prefix("peak ")?.strip_suffix(" KiB")?.parse::<f64>().ok());
    Ok(Cost {
        operations: Some(operations.expect("the program must print its operations")),
        // The program measures its peak itself, because the kernel's peak of a child includes this process's memory at
        // the fork.
        peak: peak.expect("a peak") * 1024.0,
        ..cost
    })
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        ROW,
        "whole programs with a malloc preloaded: wall time, CPU time, and the largest resident set of a process",
    );
    let (quick, preloads) = (bench.is_quick(), preloads());
    let is_installed = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    for program in PROGRAMS {
        if let Some(missing_program) = program.needs.iter().find(|program_name| !is_installed(program_name)) {
            eprintln!("malloc: skipped {}: {missing_program} is not installed", program.case);
            continue;
        }
        let answered = Rc::new(RefCell::new(None));
        let contenders = preloads.iter().cloned().map(|preload| {
            let answered = Rc::clone(&answered);
            let (name, kind) = (preload.name.clone(), preload.kind);
            let round = move || {
                let dir = tempfile::tempdir().expect("a folder");
                let cost =
                    (program.run)(&Work { library: preload.library.as_deref(), quick, dir: dir.path() });
                match cost {
                    Ok(cost) => {
                        let mut answered = answered.borrow_mut();
                        let first = answered.get_or_insert_with(|| cost.answer.clone());
                        assert!(
                            *first == cost.answer,
                            "{}: the output differs with {}",
                            program.case,
                            preload.name
                        );
                        // The unit is nanoseconds per operation, or seconds.
                        let unit = cost.operations.map_or(1.0, |operations| operations / 1e9);
                        let times = [cost.time, cost.cpu].map(|time| time.as_secs_f64() / unit);
                        vec![times[0], times[1], cost.peak / f64::from(1 << 20)]
                    }
                    // A peer that cannot run a program has no number for that program. This project's malloc
                    // must run all programs.
                    Err(Failure(reason)) if preload.kind == Kind::General => {
                        eprintln!("malloc: {} failed with {}: {reason}", program.case, preload.name);
                        Vec::new()
                    }
                    Err(Failure(reason)) => panic!("{} failed with {}: {reason}", program.case, preload.name),
                }
            };
            Contender::new(name, kind, round)
        });
        let columns = COLUMNS.map(|name| Column::lower(name, unit(program.case, name)));
        bench.group(program.case, columns, contenders.collect());
    }
    let report = bench.report()?;
    print!("{}", means(&report));
    Ok(())
}
