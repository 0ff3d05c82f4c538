//! Whole programs, each with several mallocs preloaded: their time and memory.
//!
//! First the benchmark programs of `programs/`, then real ones. The allocators are the C library's, `libuslab.so`, and the peers
//! that `benches/peers` has built or the machine has as shared libraries. Missing programs and libraries are named on standard
//! error.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use uslab_benches::means::{COLUMNS, OURS, ROW, means, unit};
use uslab_benches::preload::{Preload, peers};
use uslab_benches::{Bench, Column, Contender, Kind};
use wait4::{ResourceUsage, Wait4};

/// The mallocs to compare.
fn preloads() -> Vec<Preload> {
    let ours = Preload { name: OURS.into(), kind: Kind::Ours, library: Some(uslab_tests::libuslab()) };
    [vec![ours], peers()].concat()
}

/// A program and the work that it does.
#[derive(Clone, Copy)]
struct Program {
    case: &'static str,
    /// Executables that it requires.
    needs: &'static [&'static str],
    run: fn(&Work<'_>) -> Result<Cost, Failure>,
}

/// The circumstances of a program's run.
struct Work<'a> {
    /// The malloc's library.
    library: Option<&'a Path>,
    /// `true` for little work.
    quick: bool,
    /// A separate folder for its files.
    dir: &'a Path,
}

/// The measured cost.
struct Cost {
    time: Duration,
    /// User and system time, of the program and of all children for which it waited.
    cpu: Duration,
    /// The largest resident set of a process, in bytes.
    peak: f64,
    /// The number of operations by which times are divided; `None` for real programs.
    operations: Option<f64>,
}

/// The failure of a program that should have succeeded.
struct Failure(String);

const PROGRAMS: [Program; 22] = [
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
    Program { case: "python3", needs: &["python3"], run: |work| python(work, "pymalloc") },
    Program { case: "python3, all by malloc", needs: &["python3"], run: |work| python(work, "malloc") },
    Program { case: "gcc", needs: &["gcc"], run: gcc },
    Program { case: "sqlite3", needs: &["sqlite3"], run: sqlite },
    Program { case: "perl", needs: &["perl"], run: perl },
    Program { case: "redis", needs: &["redis-server", "redis-benchmark"], run: redis },
];

impl Work<'_> {
    fn scale(&self, full: u32) -> u32 {
        if self.quick { (full / 20).max(1) } else { full }
    }
    /// A command that runs with the malloc.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir).stdin(Stdio::null());
        if let Some(library) = self.library {
            command.env("LD_PRELOAD", library);
        }
        command
    }
    /// Runs the command until it exits. It must succeed, and print something, which is in the file `answer`.
    fn time(&self, mut command: Command) -> Result<Cost, Failure> {
        command.stdout(File::create(self.answer()).expect("a file"));
        let start = Instant::now();
        let end = command.spawn().expect("it starts").wait4().expect("its end");
        let time = start.elapsed();
        if !end.status.success() {
            return Err(Failure(format!("{command:?}: {:?}", end.status)));
        }
        assert!(self.answer().metadata().expect("the file").len() > 0, "{command:?} says nothing");
        Ok(Cost::new(time, &end.rusage))
    }
    fn answer(&self) -> PathBuf {
        self.dir.join("answer")
    }
}

impl Cost {
    fn new(time: Duration, usage: &ResourceUsage) -> Self {
        Self { time, cpu: usage.utime + usage.stime, peak: usage.maxrss as f64, operations: None }
    }
}

/// Runs a program of `programs/`.
fn bench(work: &Work<'_>, arguments: &[&str]) -> Result<Cost, Failure> {
    let mut command = work.command(env!("CARGO_BIN_EXE_programs"));
    command.args(arguments).args(work.quick.then_some("--quick"));
    let said = work.dir.join("error");
    command.stderr(File::create(&said).expect("a file"));
    let cost = work.time(command);
    let said = std::fs::read_to_string(said).expect("a file");
    let cost = cost.map_err(|Failure(how)| Failure(how + "\n" + &said))?;
    let answer = std::fs::read_to_string(work.answer()).expect("a file");
    let operations = answer.strip_suffix(" operations\n").and_then(|number| number.parse().ok());
    let peak =
        said.lines().find_map(|line| line.strip_prefix("peak ")?.strip_suffix(" KiB")?.parse::<f64>().ok());
    Ok(Cost {
        operations: Some(operations.expect("a number of operations")),
        // The program's own measurement: the kernel's peak of a child includes what this process had at the fork.
        peak: peak.expect("a peak") * 1024.0,
        ..cost
    })
}

/// Dictionaries, strings, JSON, and objects with short lives.
fn python(work: &Work<'_>, malloc: &str) -> Result<Cost, Failure> {
    // The interpreter itself: `python3` may be a launcher.
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let python = String::from_utf8(found.expect("python3").stdout).expect("a path");
    let script = format!(
        "
import json, re, zlib
class Node:
    def __init__(self, key, left): self.key, self.left, self.tags = key, left, {{'k': str(key)}}
total = 0
for i in range({}):
    d = {{}}
    for j in range(20000):
        d.setdefault(j * 7919 % 997, []).append(str(j) * (j % 7))
    text = json.dumps(d)
    again = json.loads(text)
    words = sorted(re.findall(r'[1-9]+', text), key=lambda w: (len(w), w))
    tree = None
    for j in range(20000): tree = Node(j, tree if j % 100 else None)
    total += len(again) + len(words) + zlib.crc32(' '.join(words).encode()) % 97 + tree.key
print(total)",
        work.scale(8)
    );
    let mut command = work.command(python.trim());
    command.args(["-c", &script]).env("PYTHONMALLOC", malloc);
    work.time(command)
}

/// One large file, with optimisation.
fn gcc(work: &Work<'_>) -> Result<Cost, Failure> {
    let mut source = String::from("#include <stdio.h>\n#include <string.h>\n");
    let functions = work.scale(200);
    for n in 0..functions {
        let _ = write!(
            source,
            "struct s{n} {{ int a[{len}]; struct s{n} *next; double d; }};
int f{n}(struct s{n} *s, int k) {{
    int sum = {n};
    for (int i = 0; i < {len}; i++) {{
        if (s->a[i] % 3 == k) sum += s->a[i] * {n};
        else if (s->a[i] > {n}) sum ^= i << (k & 7);
        switch ((sum + i) & 7) {{ case 0: sum -= k; break; case 3: sum *= 5; break; case 5: s->d += sum; break; }}
    }}
    while (s->next) {{ s = s->next; sum += (int)s->d + s->a[sum & 3]; }}
    return sum;
}}
",
            len = n % 13 + 5
        );
    }
    source.push_str("int main(void) { puts(\"done\"); return 0; }\n");
    std::fs::write(work.dir.join("large.c"), source).expect("a file");
    let mut command = work.command("gcc");
    command.args(["-O2", "-S", "-o", "-", "large.c"]);
    work.time(command)
}

/// A table of 100,000 rows: filled, indexed, joined, partly deleted.
fn sqlite(work: &Work<'_>) -> Result<Cost, Failure> {
    let rows = work.scale(100_000);
    let script = format!(
        "create table t(a integer primary key, b text, c real);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
             insert into t select i, printf('%08d-%s', i * 7919 % {rows}, hex(i)), i / 3.0 from n;
         create index tb on t(b);
         select count(*), sum(a), max(b), round(avg(c), 3) from t;
         select substr(b, 1, 3) as k, count(*), length(group_concat(b, ',')) from t group by k order by k;
         delete from t where a % 3 = 0;
         update t set b = b || '-' || a where a % 2 = 0;
         select sum(length(x.b || y.b)) from t x join t y on x.a + 1 = y.a;
         vacuum; select count(*) from t;"
    );
    let mut command = work.command("sqlite3");
    command.args([":memory:", &script]);
    work.time(command)
}

/// Hashes of strings that grow, lists, substitutions.
fn perl(work: &Work<'_>) -> Result<Cost, Failure> {
    let script = format!(
        "my $sum = 0;
         for my $round (1..{}) {{
             my %h; $h{{$_ % 4999}} .= \"$_,\" for 1..100000;
             my @parts = map {{ [split /,/, $h{{$_}}] }} sort keys %h;
             my $s = join ' ', map {{ scalar(@$_) . \":$_->[0]\" }} @parts;
             $s =~ s/(\\d+):(\\d+)/$2-$1/g;
             $sum += length $s;
         }}
         print \"$sum\\n\";",
        work.scale(20)
    );
    let mut command = work.command("perl");
    command.args(["-e", &script]);
    work.time(command)
}

/// The server under its own benchmark. The time is the benchmark's, the other costs are the server's.
fn redis(work: &Work<'_>) -> Result<Cost, Failure> {
    let socket = work.dir.join("socket");
    let mut server = work.command("redis-server");
    server.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null());
    let mut server = server.spawn().expect("it starts");
    let client = |program: &str, arguments: &[&str]| {
        Command::new(program).arg("-s").arg(&socket).args(arguments).output().expect("it starts")
    };
    while !client("redis-cli", &["ping"]).stdout.starts_with(b"PONG") {
        assert!(server.try_wait().expect("its state").is_none(), "redis-server ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let requests = work.scale(100_000).to_string();
    let commands = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
    let start = Instant::now();
    let done = client(
        "redis-benchmark",
        &["-q", "-n", &requests, "-r", "100000", "-d", "128", "-P", "16", "-t", commands],
    );
    let time = start.elapsed();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    client("redis-cli", &["shutdown", "nosave"]);
    let end = server.wait4().expect("its end");
    if !end.status.success() {
        return Err(Failure(format!("redis-server: {:?}", end.status)));
    }
    Ok(Cost::new(time, &end.rusage))
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        ROW,
        "whole programs with a malloc preloaded: wall time, CPU time, and the largest resident set of a process",
    );
    let (quick, preloads) = (bench.quick(), preloads());
    let has = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    for program in PROGRAMS {
        if let Some(missing) = program.needs.iter().find(|needed| !has(needed)) {
            eprintln!("malloc: {} left out: there is no {missing}", program.case);
            continue;
        }
        let contenders = preloads.iter().cloned().map(|preload| {
            let (name, kind) = (preload.name.clone(), preload.kind);
            let round = move || {
                let dir = tempfile::tempdir().expect("a folder");
                let cost =
                    (program.run)(&Work { library: preload.library.as_deref(), quick, dir: dir.path() });
                match cost {
                    Ok(cost) => {
                        // Nanoseconds per operation, or seconds.
                        let unit = cost.operations.map_or(1.0, |operations| operations / 1e9);
                        let times = [cost.time, cost.cpu].map(|time| time.as_secs_f64() / unit);
                        vec![times[0], times[1], cost.peak / f64::from(1 << 20)]
                    }
                    // A peer that cannot run a program has no number for it. This project's malloc must run all.
                    Err(Failure(how)) if preload.kind == Kind::General => {
                        eprintln!("malloc: {} failed with {}: {how}", program.case, preload.name);
                        Vec::new()
                    }
                    Err(Failure(how)) => panic!("{} failed with {}: {how}", program.case, preload.name),
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
