//! Whole programs, each with another malloc preloaded: how long they take, and how much memory.
//!
//! The allocators are those that the machine has as shared libraries (Debian: `libjemalloc2`, `libmimalloc2.0`,
//! `libtcmalloc-minimal4`), the C library's, and `libuslab.so`. A program or a library that there is not is named on
//! standard error.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use uslab_benches::report::Report;
use uslab_benches::{Bench, Column, Contender, Kind};
use wait4::{ResourceUsage, Wait4};

/// A malloc, and what is preloaded for it.
#[derive(Clone)]
struct Preload {
    name: &'static str,
    kind: Kind,
    library: Option<PathBuf>,
}

/// What is there to compare.
fn preloads() -> Vec<Preload> {
    let known = Command::new("ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    let known = String::from_utf8_lossy(&known);
    let peer = |name, file: &str| {
        let library = known.lines().filter_map(|line| line.split_once(" => ")).find(|(found, _)| {
            found.trim_start().strip_prefix(file).is_some_and(|rest| rest.starts_with([' ', '.']))
        });
        if library.is_none() {
            eprintln!("malloc: {name} left out: the dynamic linker knows no {file}");
        }
        Some(Preload { name, kind: Kind::General, library: Some(library?.1.into()) })
    };
    let ours = Preload { name: "uslab", kind: Kind::Ours, library: Some(uslab_tests::libuslab()) };
    let system = Preload { name: "glibc", kind: Kind::General, library: None };
    let peers = [
        peer("jemalloc", "libjemalloc.so"),
        peer("mimalloc", "libmimalloc.so"),
        peer("tcmalloc", "libtcmalloc_minimal.so"),
    ];
    [ours, system].into_iter().chain(peers.into_iter().flatten()).collect()
}

/// A program with its work.
#[derive(Clone, Copy)]
struct Program {
    case: &'static str,
    /// Executables without which it cannot run.
    needs: &'static [&'static str],
    run: fn(&Work<'_>) -> Cost,
}

/// What a program is given.
struct Work<'a> {
    /// Of the malloc.
    library: Option<&'a Path>,
    /// Small.
    quick: bool,
    /// A folder of its own.
    dir: &'a Path,
}

/// What it took.
struct Cost {
    time: Duration,
    /// Of the program and all that it waited for; of the resident set, that of the largest process.
    rest: ResourceUsage,
}

const PROGRAMS: [Program; 6] = [
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
    /// A command with the malloc.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir).stdin(Stdio::null());
        if let Some(library) = self.library {
            command.env("LD_PRELOAD", library);
        }
        command
    }
    /// Runs it to its end. It succeeds, and it says something.
    fn time(&self, mut command: Command) -> Cost {
        let answer = self.dir.join("answer");
        command.stdout(File::create(&answer).expect("a file"));
        let start = Instant::now();
        let end = command.spawn().expect("it starts").wait4().expect("its end");
        let time = start.elapsed();
        assert!(end.status.success(), "{command:?}: {:?}", end.status);
        assert!(answer.metadata().expect("the file").len() > 0, "{command:?} says nothing");
        Cost { time, rest: end.rusage }
    }
}

/// Dictionaries, strings, JSON, objects that come and go.
fn python(work: &Work<'_>, malloc: &str) -> Cost {
    // The interpreter itself, not a launcher that may stand before it.
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
fn gcc(work: &Work<'_>) -> Cost {
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

/// A table of 100,000 rows: filled, indexed, joined, thinned.
fn sqlite(work: &Work<'_>) -> Cost {
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
fn perl(work: &Work<'_>) -> Cost {
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

/// The server under its own benchmark; time is the benchmark's, the rest the server's.
fn redis(work: &Work<'_>) -> Cost {
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
    assert!(end.status.success(), "redis-server: {:?}", end.status);
    Cost { time, rest: end.rusage }
}

/// The geometric mean over the programs, of each malloc's median to the C library's.
fn means(report: &Report) -> String {
    let mut text = String::from("geometric means over the programs, to glibc:\n");
    for column in ["time", "CPU time", "peak"] {
        let rows = || report.rows.iter().filter(|row| row.case.ends_with(&format!(", {column}")));
        let mut subjects: Vec<_> = rows().map(|row| row.subject.as_str()).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let mean = |subject: &str| {
            let ratios = rows().filter(|row| row.subject == subject).filter_map(|row| {
                let base = rows().find(|base| base.case == row.case && base.subject == "glibc")?;
                Some((row.median / base.median).ln())
            });
            let (sum, count) = ratios.fold((0.0, 0), |(sum, count), ratio| (sum + ratio, count + 1));
            (f64::exp(sum / f64::from(count)), count)
        };
        let mut means: Vec<_> = subjects.iter().map(|subject| (mean(subject), subject)).collect();
        means.retain(|((_, count), _)| *count > 0);
        means.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        let shown: Vec<_> = means.iter().map(|((mean, _), subject)| format!("{subject} {mean:.3}")).collect();
        let _ = writeln!(text, "{column:>9}: {}", shown.join(", "));
    }
    text
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "malloc",
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
            let round = move || {
                let dir = tempfile::tempdir().expect("a folder");
                let cost =
                    (program.run)(&Work { library: preload.library.as_deref(), quick, dir: dir.path() });
                let cpu = cost.rest.utime + cost.rest.stime;
                vec![cost.time.as_secs_f64(), cpu.as_secs_f64(), cost.rest.maxrss as f64 / f64::from(1 << 20)]
            };
            Contender::new(preload.name, preload.kind, round)
        });
        let columns =
            [Column::lower("time", "s"), Column::lower("CPU time", "s"), Column::lower("peak", "MiB")];
        bench.group(program.case, columns, contenders.collect());
    }
    let report = bench.report()?;
    print!("{}", means(&report));
    Ok(())
}
