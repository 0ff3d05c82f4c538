//! The command `uslab record`: records a trace of a running kernel, with its tables, for `uslab replay`.
//!
//! One shell script (`steps.sh`) records the running kernel, and also a kernel that is [booted](qemu) for the
//! recording. The recording steps are a shell script, because a guest has no other interpreter. The recorder drains the
//! running kernel's events during the recording (`drain`); a guest keeps its events in its trace buffers.

mod drain;
mod format;
pub mod qemu;
mod ring;

use crate::interrupt::on_interrupt;
use crate::output::{Progress, grouped};
use anyhow::{Context, bail};
use drain::{Drain, DrainProgress};
use format::Printer;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_magazine::sync::{AtomicBool, Ordering::Relaxed};

/// The shell script that writes marks and copies tables.
const STEPS: &str = include_str!("steps.sh");

/// The events of the group `kmem` that a replay reads. Kernels before 6.1 have separate events for
/// allocations on a node, with the suffix `_node`.
const EVENTS: [&str; 11] = [
    "kmalloc",
    "kmem_cache_alloc",
    "kmalloc_node",
    "kmem_cache_alloc_node",
    "kfree",
    "kmem_cache_free",
    "mm_page_alloc",
    "mm_page_free",
    "mm_page_alloc_zone_locked",
    "mm_page_pcpu_drain",
    "mm_page_alloc_extfrag",
];

/// The usual mount points of tracefs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Options for recording the running kernel.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mount point of tracefs. `None` tries the usual mount points.
    pub tracefs: Option<PathBuf>,
    /// The size of each CPU's buffer in bytes.
    pub buffer: u64,
    /// `true` to shrink all caches at the beginning and at the end of the recording.
    pub shrink: bool,
    /// The length of the recording in seconds; with a command, the recording ends when the command exits.
    pub seconds: u64,
    /// The workload: a program and its arguments.
    pub command: Vec<String>,
}

/// The counters of a finished recording.
#[derive(Debug, Serialize)]
pub struct Recorded {
    /// The folder of the recording.
    pub folder: PathBuf,
    /// The kernel's release.
    pub kernel: String,
    /// The number of events in the trace.
    pub events: u64,
    /// The number of events that did not fit into the kernel's buffers.
    pub lost: u64,
    /// The CPUs that lost events.
    pub losers: Vec<String>,
    /// The exit status of the workload's command.
    pub status: u32,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, kernel, events, lost, losers, status } = self;
        writeln!(
            f,
            "{}: {} events of Linux {kernel}, {} events lost",
            folder.display(),
            grouped(*events),
            grouped(*lost)
        )?;
        if *lost > 0 {
            writeln!(f, "Events were lost on {}; a larger --buffer prevents this.", losers.join(", "))?;
        }
        if *status > 0 {
            writeln!(f, "The workload ended with exit code {status}.")?;
        }
        writeln!(f, "Next: uslab replay {}", folder.join(TRACE).display())
    }
}

/// The file name of the trace in a recording's folder.
const TRACE: &str = "trace.txt.zst";

/// A new folder, which receives its final name only when the recording in it is complete. If the value is dropped
/// before the recording is complete, the folder is removed.
#[derive(Debug)]
struct Folder {
    to: PathBuf,
    partial: PathBuf,
}

impl Folder {
    fn new(to: &Path) -> anyhow::Result<Self> {
        let name =
            to.file_name().with_context(|| format!("{}: expected a new folder's name", to.display()))?;
        let mut partial = name.to_owned();
        partial.push(".partial");
        let partial = to.with_file_name(partial);
        for path in [to, &partial] {
            if path.symlink_metadata().is_ok() {
                bail!("{} exists; expected the name of a new folder (--out)", path.display());
            }
        }
        fs::create_dir(&partial).with_context(|| format!("{}", partial.display()))?;
        Ok(Self { to: to.to_owned(), partial })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        let path = self.file(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Compresses the trace's text into a file of the folder.
    fn pack(&self, text: impl Read) -> anyhow::Result<()> {
        let path = self.file(TRACE);
        let packed = File::create(&path).and_then(|to| zstd::stream::copy_encode(text, to, 3));
        packed.with_context(|| path.display().to_string())
    }

    /// Gives the folder its final name, after the trace is written.
    fn finish(self, status: &str) -> anyhow::Result<Recorded> {
        let stats = self.read("ftrace-stats.txt")?;
        let lost = lost_events(&stats);
        let kernel = self.read("kernel.txt")?.trim().to_owned();
        fs::rename(&self.partial, &self.to).with_context(|| self.to.display().to_string())?;
        Ok(Recorded {
            folder: self.to.clone(),
            kernel,
            events: sum(&stats, &["entries", "read events"]),
            lost: lost.iter().map(|(_, lost)| lost).sum(),
            losers: lost.into_iter().map(|(cpu, _)| cpu).collect(),
            status: status.trim().parse().unwrap_or(0),
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The folder has its final name, or the error cannot be handled.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// Returns the sum of the named counters in ftrace's buffer statistics.
fn sum(stats: &str, names: &[&str]) -> u64 {
    let counts = stats.lines().filter_map(|line| line.split_once(": "));
    counts.filter(|(name, _)| names.contains(name)).filter_map(|(_, n)| n.trim().parse::<u64>().ok()).sum()
}

/// The names of the counters of lost events in ftrace's statistics.
const LOSS_COUNTERS: [&str; 3] = ["overrun", "commit overrun", "dropped events"];

fn lost_events(stats: &str) -> Vec<(String, u64)> {
    let cpus = stats.split("== ").filter_map(|cpu| cpu.split_once('\n'));
    let lost = cpus.map(|(cpu, stats)| (cpu.to_owned(), sum(stats, &LOSS_COUNTERS)));
    lost.filter(|(_, lost)| *lost > 0).collect()
}

/// Returns a flag that becomes `true` when a signal interrupts the recording.
fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    on_interrupt(move || flag.store(true, Relaxed))?;
    Ok(interrupted)
}

/// Waits for a child process as long as `go_on` returns `Ok`, and kills the child on the first error.
fn wait(child: &mut Child, mut go_on: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Err(error) = go_on() {
            // The child may have exited already.
            let _ = child.kill();
            child.wait()?;
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The signal that Ctrl-C sends.
const SIGINT: i32 = 2;
/// The error message if a signal interrupts a recording.
const INTERRUPTED_MESSAGE: &str = "interrupted; no file was written";

/// A separate tracing instance of the kernel, which does not disturb other tracing. Dropping the value
/// removes the instance from the kernel.
#[derive(Debug)]
struct TracingInstance(PathBuf);

impl TracingInstance {
    fn new(tracefs: &Path) -> anyhow::Result<Self> {
        let path = tracefs.join(format!("instances/uslab-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| refused(&path, &error))?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(|error| refused(&path, &error))
    }
}

impl Drop for TracingInstance {
    fn drop(&mut self) {
        // If the kernel does not remove the instance, the error cannot be reported from `drop`.
        let _ = self.write("tracing_on", "0");
        // The instance may be busy for a moment after its last file was closed.
        for _ in 0..40 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => return,
            }
        }
    }
}

/// Returns the error for a kernel file that cannot be used. The message names the missing permission or
/// mount, and the command that provides it.
fn refused(path: &Path, error: &io::Error) -> anyhow::Error {
    let what = match error.kind() {
        ErrorKind::PermissionDenied => {
            "not permitted; expected root (sudo uslab record), and a kernel that is not locked down; --qemu runs a separate kernel, which needs neither"
        }
        ErrorKind::NotFound
            if path == Path::new("/proc/slabinfo") || path.starts_with("/sys/kernel/slab") =>
        {
            "missing; expected a kernel with CONFIG_SLUB_DEBUG, and both mounted (mount -t proc proc /proc; mount -t sysfs sysfs /sys)"
        }
        ErrorKind::NotFound => {
            "not there; expected tracefs (mount -t tracefs tracefs /sys/kernel/tracing, or --tracefs DIR where it is mounted) of a \
             kernel with tracing and SLUB"
        }
        _ => return anyhow::anyhow!("{}: {error}", path.display()),
    };
    anyhow::anyhow!("{}: {what}", path.display())
}

fn tracefs(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let places: Vec<_> =
        given.map_or_else(|| TRACEFS.map(PathBuf::from).to_vec(), |path| vec![path.to_owned()]);
    let mut why = None;
    for place in places {
        let events = place.join("events/kmem");
        match fs::metadata(&events) {
            Ok(_) => return Ok(place),
            Err(error) => _ = why.get_or_insert_with(|| refused(&events, &error)),
        }
    }
    Err(why.context("tracefs is not mounted")?)
}

/// Records the running kernel into the new folder `out`.
///
/// # Errors
/// Fails if the folder exists, the kernel cannot be traced, or the user interrupts the recording; no files
/// remain.
pub fn record(out: &Path, options: &Options) -> anyhow::Result<Recorded> {
    let folder = Folder::new(out)?;
    let tracefs = tracefs(options.tracefs.as_deref())?;
    for table in ["/proc/slabinfo", "/sys/kernel/slab"] {
        let path = Path::new(table);
        let readable = if path.is_dir() { fs::read_dir(path).map(drop) } else { File::open(path).map(drop) };
        readable.map_err(|error| refused(path, &error))?;
    }
    let interrupted = interrupts()?;
    let instance = TracingInstance::new(&tracefs)?;
    instance.write("buffer_size_kb", &(options.buffer / 1024).max(1).to_string())?;
    instance.write("trace_clock", "global")?;
    // Older kernels print hashed addresses regardless of the option.
    let _ = instance.write("options/hash-ptr", "0");
    let mut drain = Drain::start(&tracefs, &instance.0, &folder.partial)?;
    let events: Vec<_> =
        EVENTS.into_iter().filter(|event| tracefs.join("events/kmem").join(event).exists()).collect();
    for event in &events {
        instance.write(&format!("events/kmem/{event}/enable"), "1")?;
    }
    let mut seen = RecordingProgress::new(&tracefs, &instance.0);
    let mut steps = Command::new("/bin/sh");
    steps.args(["-c", STEPS, "steps.sh"]).arg(&instance.0).arg(&folder.partial);
    steps.arg(u8::from(options.shrink).to_string()).arg(options.seconds.to_string()).args(&options.command);
    let mut steps = steps.spawn().context("/bin/sh")?;
    let go_on = || -> anyhow::Result<()> {
        match interrupted.load(Relaxed) {
            true => bail!(INTERRUPTED_MESSAGE),
            false => Ok(()),
        }
    };
    let status = wait(&mut steps, || {
        go_on()?;
        if drain.has_failed() {
            drain.stop()?;
        }
        seen.look(drain.progress());
        Ok(())
    })?;
    if status.signal() == Some(SIGINT) {
        bail!(INTERRUPTED_MESSAGE);
    }
    if !status.success() {
        bail!("the recording script failed ({status}); its output above shows the failed step");
    }
    drain.stop()?;
    let commands = seen.finish();
    let kallsyms = fs::read("/proc/kallsyms").unwrap_or_default();
    let printer =
        Printer::new(drain::formats(&tracefs, &events)?, &String::from_utf8_lossy(&kallsyms), commands);
    let progress = Progress::new();
    let stage = progress.stage("printing", drain.progress().events);
    drain.print(&folder.partial, online(), printer, |events| {
        stage.at(events);
        go_on()
    })?;
    let status = folder.read("status.txt")?;
    fs::remove_file(folder.file("status.txt"))?;
    folder.finish(&status)
}

fn online() -> usize {
    let cpus = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let count = cpus.and_then(|cpus| crate::slabs::count_cpus_in_ranges(&cpus));
    count.unwrap_or_else(|| uslab_magazine::Cpus::os().count()) as usize
}

/// The interval between two readings of the command names; the kernel remembers only the last few hundred processes.
const NAME_READ_INTERVAL: Duration = Duration::from_secs(1);

/// Collects the names of commands during a recording, and shows the progress on a terminal.
struct RecordingProgress {
    tracefs: PathBuf,
    instance: PathBuf,
    commands: FxHashMap<i32, String>,
    begun: Instant,
    last: (Instant, DrainProgress),
    progress: Progress,
}

impl RecordingProgress {
    fn new(tracefs: &Path, instance: &Path) -> Self {
        let begun = Instant::now();
        let (tracefs, instance) = (tracefs.to_owned(), instance.to_owned());
        let progress = Progress::new();
        Self {
            tracefs,
            instance,
            commands: FxHashMap::default(),
            begun,
            last: (begun, DrainProgress::default()),
            progress,
        }
    }

    fn look(&mut self, taken: DrainProgress) {
        let now = Instant::now();
        let (then, before) = self.last;
        if now - then < NAME_READ_INTERVAL {
            return;
        }
        self.last = (now, taken);
        self.read_command_names();
        if !io::stderr().is_terminal() {
            return;
        }
        let megabytes = (taken.bytes - before.bytes) as f64 / 1e6 / (now - then).as_secs_f64();
        self.progress.line(format!(
            "{} s: {} events, {megabytes:.1} MB/s, {} events lost",
            (now - self.begun).as_secs(),
            grouped(taken.events),
            grouped(self.lost_events())
        ));
    }

    /// Returns the number of events that the buffers have lost so far.
    fn lost_events(&self) -> u64 {
        let cpus = fs::read_dir(self.instance.join("per_cpu")).into_iter().flatten().flatten();
        let stats = cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("stats")).ok());
        stats.map(|stats| sum(&stats, &LOSS_COUNTERS)).sum()
    }

    /// Reads the names of commands; the names of exited processes are kept from earlier readings.
    fn read_command_names(&mut self) {
        let text = fs::read(self.tracefs.join("saved_cmdlines")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        self.commands.extend(lines.filter_map(|(pid, name)| Some((pid.parse().ok()?, name.to_owned()))));
    }

    fn finish(mut self) -> FxHashMap<i32, String> {
        self.read_command_names();
        self.commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_summed_per_cpu() {
        let stats = "== cpu0\nentries: 10\noverrun: 0\ncommit overrun: 0\nbytes: 99\ndropped events: 0\n\
                     == cpu1\nentries: 5\noverrun: 3\ncommit overrun: 1\noldest event ts:     0.4\ndropped events: 2\n";
        assert_eq!((sum(stats, &["entries"]), lost_events(stats)), (15, vec![("cpu1".to_owned(), 6)]));
    }

    #[test]
    fn missing_permission_or_mount_is_reported_with_its_remedy() {
        let refusal = |path, kind| refused(Path::new(path), &io::Error::from(kind)).to_string();
        const TRACING: &str = "/sys/kernel/tracing/x";
        assert!(
            refusal(TRACING, ErrorKind::PermissionDenied)
                .starts_with("/sys/kernel/tracing/x: not permitted; expected root")
        );
        assert!(refusal(TRACING, ErrorKind::NotFound).contains("mount -t tracefs"));
        assert!(refusal("/proc/slabinfo", ErrorKind::NotFound).contains("CONFIG_SLUB_DEBUG"));
        assert!(refusal(TRACING, ErrorKind::InvalidInput).starts_with("/sys/kernel/tracing/x: "));
    }

    #[test]
    fn recording_folder_is_created_completely_or_not_at_all() {
        let place = tempfile::tempdir().expect("a folder");
        let to = place.path().join("trace");
        drop(Folder::new(&to).expect("the new folder must be created"));
        assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 0);
        let folder = Folder::new(&to).expect("the new folder must be created");
        assert!(Folder::new(&to).is_err_and(|error| error.to_string().contains("trace.partial exists")));
        fs::write(folder.file("kernel.txt"), "6.1\n").expect("a file");
        fs::write(folder.file("ftrace-stats.txt"), "entries: 2\n").expect("a file");
        fs::write(folder.file("text"), "# tracer: nop\n").expect("a file");
        folder.pack(File::open(folder.file("text")).expect("a file")).expect("packed");
        let recorded = folder.finish("3\n").expect("recorded");
        assert_eq!((recorded.events, recorded.lost, recorded.status, &*recorded.kernel), (2, 0, 3, "6.1"));
        assert!(to.join(TRACE).exists() && !place.path().join("trace.partial").exists());
        assert!(Folder::new(&to).is_err_and(|error| error.to_string().contains("exists")));
    }
}
