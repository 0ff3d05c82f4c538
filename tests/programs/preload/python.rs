//! Tests python with threads and forks, and runs python's own tests.

use super::{check_same_output, command, preloaded, print_line, program, run_long_tests, text};
use std::path::PathBuf;
use std::process::Command;

/// Returns the path of the real interpreter; `python3` may be only a launcher.
pub(crate) fn python() -> Option<PathBuf> {
    let output = Command::new(program("python3")?).args(["-c", "import sys; print(sys.executable)"]).output();
    Some(text(&output.ok()?.stdout).trim().into())
}

#[test]
fn python_output_is_unchanged_by_the_preloaded_library() {
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
        // Python allocates everything with malloc instead of Python arenas.
        python.env("PYTHONMALLOC", "malloc");
        python
    };
    check_same_output("python3", || command(&python, &["-c", script]));
    check_same_output("python3, all by malloc", own_malloc);
}

/// Python's own tests that make large or many allocations, from several threads and across forks.
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
fn test_suite_of_python_passes_with_the_library() {
    if !run_long_tests() {
        return print_line("preload: skipped python's tests: USLAB_PRELOAD=full runs them");
    }
    let Some(python) = python() else { return };
    // Python imports from the directory in which it starts, so a file there with a module's name would be imported. An
    // empty directory has no file with a module's name.
    let folder = tempfile::tempdir().unwrap();
    let (mut equal_results, mut different_results) = (0, vec![]);
    for test in PYTHON_TESTS {
        let run = || {
            let mut run = command(&python, &["-m", "test", "--timeout", "900", test]);
            run.env("PYTHONMALLOC", "malloc").current_dir(folder.path());
            run
        };
        let with_library = preloaded(&mut run(), "");
        if with_library.status.success() {
            equal_results += 1;
            continue;
        }
        // Some tests fail on some machines with any malloc.
        let without_library = run().output().expect("the program must start");
        let tail: String =
            text(&with_library.stdout).lines().rev().take(15).map(|line| format!("    {line}\n")).collect();
        match without_library.status.success() {
            true => different_results.push(format!(
                "{test}: {:?}\n{tail}{}",
                with_library.status,
                text(&with_library.stderr)
            )),
            false => print_line(&format!("preload: skipped {test}: it fails without the library, too")),
        }
    }
    print_line(&format!("preload: {equal_results} of python's tests passed"));
    assert!(different_results.is_empty(), "{}", different_results.join("\n"));
    assert!(equal_results >= 15, "too few tests passed: {equal_results}");
}
