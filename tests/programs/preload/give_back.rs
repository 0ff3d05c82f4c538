//! Tests that memory freed by a program returns to the system while the program waits and does not call the library.

use super::{compiled, print_line};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use uslab_tests::{ControlGroup, libuslab, server};

/// The longest time for which a test waits, in tenths of a second.
const TIMEOUT: u32 = 600;
const KEYS: usize = 30_000;

struct KilledChild(Child);
impl Drop for KilledChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledChild {
    /// Returns the resident memory of the program in KiB.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }
    fn has_reaper_thread(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "uslab-reaper")
    }
}

/// The example server allocates with `Box`, so it uses the library's malloc. The test sets and deletes keys of mixed
/// sizes.
#[test]
fn server_decommits_the_memory_of_deleted_keys() {
    let mut command = Command::new(server());
    command.args(["--listen", "127.0.0.1:0", "--memory", "box"]).env("LD_PRELOAD", libuslab());
    let mut process =
        KilledChild(command.env("USLAB_OPTIONS", "reap=500").stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!process.has_reaper_thread(), "the memory is still too small");
    let stream = TcpStream::connect(line.trim().strip_prefix("listening on ").expect(&line)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut writer, mut reader) = (stream.try_clone().unwrap(), BufReader::new(stream));
    let mut send_requests = |requests: &str, replies: usize| {
        writer.write_all(requests.as_bytes()).unwrap();
        for _ in 0..replies {
            line.clear();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "+OK\r\n");
        }
    };
    let mut random = 1_u64;
    for size in [16, 200, 1000, 8000] {
        for _ in 0..KEYS / 100 {
            let mut requests = String::new();
            for _ in 0..100 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let key = format!("k{}", (random >> 33) as usize % KEYS);
                let (len, value) = (key.len(), "x".repeat(size));
                write!(requests, "*3\r\n$3\r\nSET\r\n${len}\r\n{key}\r\n${size}\r\n{value}\r\n").unwrap();
            }
            send_requests(&requests, 100);
        }
    }
    let peak = process.resident();
    assert!(peak > 100 << 10, "{peak} KiB");
    assert!(process.has_reaper_thread());
    send_requests("FLUSHALL\r\n", 1);
    let freed = process.resident();
    let mut freed_now = freed;
    for _ in 0..TIMEOUT {
        if freed_now <= peak / 4 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        freed_now = process.resident();
    }
    print_line(&format!(
        "preload: server: {peak} KiB with all keys, {freed} KiB without, {freed_now} KiB then"
    ));
    assert!(freed_now <= peak / 4, "{freed_now} KiB of {peak} remain");
}

/// When all other threads have exited, the library's thread does not keep the process alive.
#[test]
fn reaper_thread_does_not_keep_the_process_alive() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("last_thread.c", dir.path());
    let dump = format!("dump={}/numbers.json", dir.path().display());
    // Regression test: the thread of dumps waited for ever, and the reaper waited for it.
    let with_dump_and_reaper = format!("{dump},reap=500");
    for (options, threads) in
        [("", "0"), ("reap=500", "1"), (dump.as_str(), "1"), (with_dump_and_reaper.as_str(), "2")]
    {
        let mut program = Command::new(&program);
        program.arg(threads).env("LD_PRELOAD", libuslab()).env("USLAB_OPTIONS", options);
        let output = program.output().unwrap();
        assert!(
            output.status.success(),
            "{options} {:?} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Regression test: 63 of 100 MiB were not returned to the system, so the kernel killed the program.
#[test]
fn freed_memory_is_decommitted_in_a_small_cgroup() {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("group.c", dir.path());
    for mib in [32, 64, 100, 256] {
        let Some(group) = ControlGroup::new(mib << 20) else {
            return print_line("preload: skipped the control group: this process may not create one");
        };
        // The program allocates three fifths of the limit, twice.
        let mut command = group.command(&program, Some(&libuslab()));
        command.arg((mib * 3 / 5).to_string());
        let output = command.env_remove("USLAB_OPTIONS").output().unwrap();
        assert!(output.status.success() && output.stdout == b"all good\n", "{mib} MiB: {output:?}");
    }
}
