//! Programs under `libuslab.so`: what C programs rely on, and real programs, whose output must be what it is without it.
//!
//! `USLAB_PRELOAD=full` adds python's own tests of what allocates most. A program that the machine does not have is named
//! on standard output with the reason.

#[path = "../slab/tests/common/exposition.rs"]
mod exposition;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use uslab_tests::{cargo, workspace};

/// The library, built as this program is.
fn library() -> PathBuf {
    static BUILT: Once = Once::new();
    // This is `target/debug/deps/preload-...`.
    let own = std::env::current_exe().expect("this program");
    let built = own.ancestors().nth(2).expect("the directory of a profile");
    BUILT.call_once(|| {
        let mut build = cargo();
        build.args(["build", "--quiet", "--package", "libuslab", "--target-dir"]).arg(built.join(".."));
        if built.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success(), "libuslab does not build");
    });
    built.join("libuslab.so")
}

fn preloaded(command: &mut Command, options: &str) -> Output {
    command.env("LD_PRELOAD", library()).env("USLAB_OPTIONS", options).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text_of(output: &Output) -> String {
    text(&output.stdout)
}

/// Past libtest's capture.
fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// The program of that name, if the machine has it.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        say(&format!("preload: skipped {name}: not on this machine"));
    }
    found
}

/// A C program of `tests/preload`, compiled.
fn compiled(name: &str, dir: &Path) -> PathBuf {
    let (source, out) = (workspace().join("tests/preload").join(name), dir.join("program"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pthread", "-w", "-o"]).arg(&out).arg(source).args(["-ldl"]);
    assert!(cc.status().expect("a C compiler").success());
    out
}

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

/// The header is checked in: a program that includes it compiles, links and runs; and it declares what the library has.
#[test]
fn the_header_is_what_the_library_has() {
    let (dir, library) = (tempfile::tempdir().unwrap(), library());
    let (source, header) = (workspace().join("tests/preload/caches.c"), workspace().join("slab/libuslab"));
    let (out, beside) = (dir.path().join("caches"), library.parent().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-D_POSIX_C_SOURCE=200809L", "-o"])
        .arg(&out);
    cc.arg(source).arg("-I").arg(header.as_path()).arg("-L").arg(beside).arg("-luslab");
    cc.arg(format!("-Wl,-rpath,{}", beside.display()));
    assert!(cc.status().expect("a C compiler").success());
    let output = Command::new(out).output().unwrap();
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    assert!(table.contains("\nrequest ") && table.contains("\nmalloc-1024 "), "{table}");
    assert!(!table.contains("\nplain "), "{table}");

    let Some(nm) = program("nm") else { return };
    let symbols =
        text(&Command::new(nm).args(["-D", "--defined-only"]).arg(&library).output().unwrap().stdout);
    let has: BTreeSet<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let header = std::fs::read_to_string(header.join("uslab.h")).unwrap();
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
    assert!(table.starts_with("slabinfo - version: 2.1\n") && table.contains("\nmalloc-64 "), "{err}");
    let quiet = preloaded(&mut Command::new("true"), "");
    assert!(quiet.stderr.is_empty(), "{}", text(&quiet.stderr));
}

/// What `dump.c` was told to write, and what it said.
fn dump(how: &str, ending: &str) -> (Option<String>, Output) {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Command::new(compiled("dump.c", dir.path()));
    program.arg(how).arg(dir.path()).arg(ending);
    let output = preloaded(&mut program, &format!("dump={}/out.%p.{ending}", dir.path().display()));
    let mut left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = left.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("out."));
    assert!(output.status.success() && output.stderr.is_empty(), "{how} {ending}: {output:?}");
    (file.map(|file| std::fs::read_to_string(file).unwrap()), output)
}

#[test]
fn on_a_signal_the_numbers_are_written_whole_in_the_format_that_the_name_asks_for() {
    for ending in ["json", "prom", "txt"] {
        let (text, output) = dump("asked", ending);
        assert_eq!(text_of(&output), "2\n", "a thread of its own");
        let dump = text.unwrap();
        let used = match ending {
            "json" => {
                let json: serde_json::Value = serde_json::from_str(&dump).unwrap();
                let caches = json["caches"].as_array().unwrap();
                let cache = caches.iter().find(|cache| cache["name"] == "malloc-112").unwrap();
                cache["used"].as_f64().unwrap()
            }
            "prom" => {
                exposition::read(&dump).unwrap()["uslab_cache_objects{cache=\"malloc-112\",place=\"used\"}"]
            }
            _ => dump.parse::<uslab::SlabInfo>().unwrap().get("malloc-112").unwrap().active_objects as f64,
        };
        assert!(used >= 1000.0, "{ending}: {used}");
    }
}

#[test]
fn a_program_keeps_its_signal_its_forks_and_its_count_of_threads() {
    assert_eq!(dump("own", "txt").0, None);
    let (file, output) = dump("fork", "txt");
    assert!(file.is_some_and(|file| file.starts_with("slabinfo - version: 2.1\n")), "{output:?}");
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut plain = Command::new(&program);
    let output = preloaded(plain.args(["none", ".", "."]), "check=1");
    assert_eq!((text_of(&output).as_str(), output.stderr.is_empty()), ("1\n", true));
    // Whoever starts it has the signal ignored.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' USR2; exec \"$0\" none . ."]).arg(&program);
    let output = preloaded(&mut ignoring, "dump=/tmp/none");
    let err = text(&output.stderr);
    assert_eq!(err, "uslab: dump `/tmp/none`: SIGUSR2 is ignored or taken: no dumps on it\n");
    assert_eq!((output.status.success(), text_of(&output).as_str()), (true, "1\n"));
}

#[test]
fn a_dump_that_cannot_be_is_named_and_the_program_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("dump.c", dir.path());
    let mut wrong = Command::new(&program);
    let output = preloaded(wrong.args(["none", ".", "."]), "dump=,dump_signal=KILL");
    let err = text(&output.stderr);
    assert!(output.status.success() && err.lines().count() == 2, "{err}");
    assert!(
        err.starts_with("uslab: USLAB_OPTIONS: `dump=`: expected ")
            && err.contains("\nuslab: USLAB_OPTIONS: `dump_signal=KILL`"),
        "{err}"
    );

    let mut command = Command::new(&program);
    command
        .args(["stay", ".", "."])
        .env("LD_PRELOAD", library())
        .env("USLAB_OPTIONS", "dump=/nowhere/%p%%p%");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(line, "uslab: dump `/nowhere/%p%%p%`: No such file or directory (os error 2)\n");
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

/// The python behind whatever launcher there is.
fn python() -> Option<PathBuf> {
    let output = Command::new(program("python3")?).args(["-c", "import sys; print(sys.executable)"]).output();
    Some(text(&output.ok()?.stdout).trim().into())
}

/// The same with the library and without, and not nothing.
#[track_caller]
fn same(name: &str, command: impl Fn() -> Command) {
    let without = command().output().expect("it starts");
    assert!(without.status.success(), "{name} alone: {}", text(&without.stderr));
    let with = preloaded(&mut command(), "check=1");
    assert!(with.status.success(), "{name}: {:?} {}", with.status, text(&with.stderr));
    assert_eq!(text(&with.stdout), text(&without.stdout), "{name}");
    assert_eq!(text(&with.stderr), text(&without.stderr), "{name}");
    assert!(!with.stdout.is_empty(), "{name} says nothing");
    say(&format!("preload: {name}: the same {} bytes with it and without", with.stdout.len()));
}

fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace());
    command
}

#[test]
fn sqlite_answers_the_same() {
    let Some(sqlite) = program("sqlite3") else { return };
    let queries = "
        create table t(a integer primary key, b text, c real);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
            insert into t select i, printf('%08d-%s', i * 7919 % 60000, hex(i)), i / 3.0 from n;
        create index tb on t(b);
        select count(*), sum(a), max(b), round(avg(c), 3) from t;
        select substr(b, 1, 2) as k, count(*), group_concat(a % 10, '') from t where a < 3000 group by k order by k;
        delete from t where a % 3 = 0; vacuum;
        select x.b, y.b from t x join t y on x.a + 1 = y.a where x.a % 9973 = 1;";
    same("sqlite3", || command(&sqlite, &[":memory:", queries]));
}

#[test]
fn git_answers_the_same() {
    let Some(git) = program("git") else { return };
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |args: &[&str]| {
        let mut git =
            command(&git, &["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]);
        git.args(args).current_dir(dir.path());
        git
    };
    let quietly = |args: &[&str]| {
        let output = preloaded(&mut in_dir(args), "check=1");
        assert!(output.status.success(), "git {args:?}: {}", text(&output.stderr));
    };
    quietly(&["init", "--quiet"]);
    for i in 0..30 {
        let lines: String = (0..500).map(|n| format!("{}\n", n * i % 91)).collect();
        std::fs::write(dir.path().join(format!("file{}", i % 7)), lines).unwrap();
        quietly(&["add", "--all"]);
        quietly(&["commit", "--quiet", "--message", "one more"]);
    }
    quietly(&["gc", "--quiet", "--aggressive"]);
    quietly(&["fsck", "--full"]);
    same("git log", || in_dir(&["log", "--stat", "--patch", "--format=%s %T"]));
    same("git blame", || in_dir(&["blame", "-s", "file3"]));
}

#[test]
fn gcc_compiles_the_same() {
    let Some(gcc) = program("gcc") else { return };
    let source = workspace().join("tests/preload/api.c");
    same("gcc", || command(&gcc, &["-O2", "-S", "-o", "-", &source.display().to_string()]));
}

#[test]
fn perl_and_the_shell_answer_the_same() {
    if let Some(perl) = program("perl") {
        let script = "my %h; $h{$_ % 997} .= \"$_,\" for 1..80000; \
                      print join(\"\\n\", map { \"$_ \" . length $h{$_} } sort { $a <=> $b } keys %h), \"\\n\"; \
                      my $s = join ' ', 1..20000; $s =~ s/(\\d+) (\\d+)/$2-$1/g; print substr($s, -100), \"\\n\";";
        same("perl", || command(&perl, &["-e", script]));
    }
    if let Some(bash) = program("bash") {
        let script =
            "for i in {1..3000}; do a[i]=$((i * i)); done; echo ${a[@]} | tr ' ' '\\n' | sort -rn | md5sum";
        same("bash", || command(&bash, &["-c", script]));
    }
}

#[test]
fn python_answers_the_same() {
    let Some(python) = python() else { return };
    let script = "
import json, re, threading, subprocess, sys, os, hashlib, zlib, collections, decimal
def work(n):
    d = collections.defaultdict(list)
    for i in range(30000):
        d[i % (97 + n)].append(str(i) * (i % 5))
    text = json.dumps(d)
    out[n] = (len(text), zlib.crc32(zlib.compress(re.sub(r'(\\d)\\1+', '-', text).encode())))
out = {}
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[t.start() for t in threads]
pids = []
for i in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if len(json.dumps(list(range(10000)))) == 58890 else 1)
    pids.append(pid)
print([os.waitpid(pid, 0)[1] for pid in pids])
[t.join() for t in threads]
print(sorted(out.items()))
big = bytearray(50 << 20)
for _ in range(40): big += b'x' * (1 << 20)
print(hashlib.md5(big).hexdigest(), decimal.Decimal(2).sqrt(decimal.Context(prec=3000)))
print(subprocess.run([sys.executable, '-c', 'print(sum(len(str(i)) for i in range(100000)))'], capture_output=True).stdout)
try: bytearray(1 << 62)
except MemoryError: print('no memory')
";
    let own_malloc = || {
        let mut python = command(&python, &["-c", script]);
        // All of it by malloc, not by python's own arenas.
        python.env("PYTHONMALLOC", "malloc");
        python
    };
    same("python3", || command(&python, &["-c", script]));
    same("python3, all by malloc", own_malloc);
}

/// Python's own tests: those that allocate much, in many sizes, from threads and across forks.
const PYTHON_TESTS: &[&str] = &[
    "test_list",
    "test_dict",
    "test_set",
    "test_tuple",
    "test_deque",
    "test_bytes",
    "test_bytearray",
    "test_array",
    "test_unicode",
    "test_long",
    "test_memoryview",
    "test_gc",
    "test_weakref",
    "test_json",
    "test_re",
    "test_zlib",
    "test_bz2",
    "test_pickle",
    "test_sort",
    "test_heapq",
    "test_itertools",
    "test_io",
    "test_thread",
    "test_threading",
    "test_queue",
    "test_fork1",
    "test_subprocess",
    "test_ctypes",
    "test_sqlite3",
    "test_struct",
    "test_decimal",
    "test_xml_etree",
    "test_collections",
    "test_generators",
    "test_exceptions",
    "test_mmap",
    "test_hashlib",
];

#[test]
fn pythons_own_tests_pass() {
    if std::env::var("USLAB_PRELOAD").as_deref() != Ok("full") {
        return say("preload: skipped python's own tests: USLAB_PRELOAD=full runs them");
    }
    let Some(python) = python() else { return };
    let (mut same, mut other) = (0, vec![]);
    for test in PYTHON_TESTS {
        let run = || {
            let mut run = command(&python, &["-m", "test", "--timeout", "900", test]);
            run.env("PYTHONMALLOC", "malloc").current_dir(std::env::temp_dir());
            run
        };
        let with = preloaded(&mut run(), "");
        if with.status.success() {
            same += 1;
            continue;
        }
        // Some fail on some machines whatever the malloc.
        let without = run().output().expect("it starts");
        let tail: String =
            text(&with.stdout).lines().rev().take(15).map(|line| format!("    {line}\n")).collect();
        match without.status.success() {
            true => other.push(format!("{test}: {:?}\n{tail}{}", with.status, text(&with.stderr))),
            false => say(&format!("preload: skipped {test}: it fails without the library, too")),
        }
    }
    say(&format!("preload: {same} of python's own tests passed"));
    assert!(other.is_empty(), "{}", other.join("\n"));
    assert!(same >= 15, "only {same} passed at all");
}
