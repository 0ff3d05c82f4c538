//! Tests that `uslab record` writes traces and tables that `uslab replay` can read.

use super::cli::{exit_and_output, refused, uslab};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A tracefs mount in a separate folder, which is unmounted when the value is dropped. The constructor returns `None`
/// if mounting is not permitted.
struct MountedTracefs(tempfile::TempDir);

impl MountedTracefs {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        let output = mount.args(["-t", "tracefs", "tracefs"]).arg(folder.path()).output();
        output.is_ok_and(|output| output.status.success()).then(|| Self(folder))
    }
}

impl Drop for MountedTracefs {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// If tracing is permitted, the test records the running kernel; otherwise, it prints the reason. Neither a recording
/// nor a refused recording may leave temporary files or tracing instances.
#[test]
fn failed_kernel_recording_reports_the_reason() {
    let place = tempfile::tempdir().expect("a folder");
    let out = place.path().join("trace");
    let Some(tracefs) = MountedTracefs::mount() else {
        refused(&["record", "--out", text(&out)], &["/sys/kernel/", "expected", "trac"]);
        assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 0, "no setting must remain");
        return;
    };
    // The instances belong to processes that have exited, because other tests may record concurrently.
    let instances = || {
        let instances = fs::read_dir(tracefs.0.path().join("instances")).expect("instances");
        let names = instances.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pids = names.filter_map(|name| name.strip_prefix("uslab-").map(str::to_owned));
        pids.filter(|pid| !Path::new("/proc").join(pid).exists()).count()
    };
    let args = ["record", "--out", text(&out), "--tracefs", text(tracefs.0.path()), "--buffer", "64M", "--"];
    let (code, said_out, err) =
        exit_and_output(&uslab(&[&args[..], &["sh", "-c", "ls / >/dev/null; exit 3"]].concat()));
    assert_eq!(code, Some(0), "{err}");
    assert!(said_out.contains("The workload ended with exit code 3."), "{said_out}");
    assert_eq!(instances(), 0);
    for name in [
        "before.slabinfo",
        "after.zoneinfo",
        "after.sysfs-slab.tsv",
        "slab-attributes.tsv",
        "formats.txt",
        "ftrace-stats.txt",
    ] {
        assert!(fs::metadata(out.join(name)).is_ok_and(|meta| meta.len() > 0), "{name}");
    }
    let trace = out.join("trace.txt.zst");
    let (code, report, err) = exit_and_output(&uslab(&["replay", text(&trace), "--design", "slub"]));
    assert_eq!(code, Some(0), "{err}");
    // While other tests keep the kernel busy, its buffers may lose the first events, and with them the mark of a
    // moment.
    if said_out.contains(", 0 events lost") {
        assert!(report.contains("after"), "the report must compare the recorded moments: {report}");
    } else {
        assert!(said_out.contains("Events were lost on"), "{said_out}");
    }
    refused(&[&args[..], &["true"]].concat(), &["exists", "--out"]);
    let other = place.path().join("other");
    refused(
        &["record", "--out", text(&other), "--tracefs", text(place.path())],
        &["events/kmem", "expected tracefs"],
    );
    assert!(!other.exists() && instances() == 0);
    // Regression test: SIGTERM, which `timeout` sends, left an enabled tracing instance in the kernel.
    let ended = place.path().join("ended");
    let mut recorder = Command::new(uslab_tests::uslab());
    recorder.args([
        "record",
        "--seconds",
        "3600",
        "--out",
        text(&ended),
        "--tracefs",
        text(tracefs.0.path()),
    ]);
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().expect("the program must start");
    let instance = tracefs.0.path().join(format!("instances/uslab-{}", recorder.id()));
    while !instance.exists() && recorder.try_wait().expect("a status").is_none() {
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(recorder.id() as i32);
    kill(pid, Signal::SIGTERM).expect("a signal");
    let (code, _, err) = exit_and_output(&recorder.wait_with_output().expect("output"));
    assert_eq!((code, err.trim_end()), (Some(2), "uslab: interrupted; no file was written"));
    assert!(!instance.exists() && instances() == 0);
    let left: Vec<_> = fs::read_dir(place.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn refused_kernel_image_leaves_no_recording() {
    let place = tempfile::tempdir().expect("a folder");
    let out = place.path().join("trace");
    let kernel = place.path().join("vmlinuz-9.9");
    let args = ["record", "--out", text(&out), "--qemu", text(&kernel)];
    refused(&args, &["--qemu", "expected --workload FILE", "--workload"]);
    refused(&[&args[..], &["--", "true"]].concat(), &["vmlinuz-9.9"]);
    refused(
        &[&args[..], &["--set", "cpu_partial", "--", "true"]].concat(),
        &["--set", "expected KEY=NUMBER"],
    );
    refused(&[&args[..], &["--seconds", "3"]].concat(), &["--seconds", "--qemu"]);
    refused(&["record", "--append", "slab_nomerge"], &["--qemu"]);
    assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 0);
}

/// The test boots the kernel that `USLAB_KERNEL` names; this needs qemu and a static busybox.
#[test]
#[ignore = "boots a kernel"]
fn booted_kernel_records_a_trace() {
    let kernel =
        std::env::var("USLAB_KERNEL").expect("USLAB_KERNEL: a vmlinuz, or the folder of an unpacked package");
    let place = tempfile::tempdir().expect("a folder");
    let out = place.path().join("trace");
    let load = place.path().join("load.sh");
    fs::write(&load, "#!/bin/sh\nfor i in $(seq 1 200); do echo $1 >/tmp/$i; done\n").expect("a file");
    let args = [
        "record",
        "--out",
        text(&out),
        "--qemu",
        &kernel,
        "--workload",
        text(&load),
        "--memory",
        "512M",
        "--cpus",
        "2",
    ];
    let more =
        ["--set", "min_partial=0", "--append", "slub_max_order=0 slab_max_order=0", "--", "load.sh", "a 'b'"];
    let (code, said_out, err) = exit_and_output(&uslab(&[&args[..], &more].concat()));
    assert_eq!(code, Some(0), "{err}");
    assert!(said_out.contains(" 0 lost") && !said_out.contains("exit code"), "{said_out}");
    let attributes = fs::read_to_string(out.join("slab-attributes.tsv")).expect("attributes");
    let header: Vec<_> = attributes.lines().next().expect("a header").split('\t').collect();
    let row: Vec<_> = attributes
        .lines()
        .find(|line| line.starts_with("task_struct\t"))
        .expect("a row")
        .split('\t')
        .collect();
    let value = |name| row[header.iter().position(|column| *column == name).expect("a column")];
    assert_eq!((value("min_partial"), value("objs_per_slab")), ("0", "1"), "the setting must be restored");
    let trace = out.join("trace.txt.zst");
    let (code, report, err) =
        exit_and_output(&uslab(&["replay", text(&trace), "--design", "slub:slab_max_order=0:min_partial=0"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(report.contains("end") && report.contains("buddyinfo"), "{report}");
}
