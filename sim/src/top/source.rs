//! The source of readings: a file, or a running program that writes its numbers when it receives a signal.

use super::reading::Reading;
use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the thread of libuslab.so that writes the numbers.
const THREAD: &str = "uslab-dump";
/// The longest time that a program may take to write its numbers.
const STATISTICS_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time to wait for the library's thread in a program that is still starting.
const START: Duration = Duration::from_millis(500);
/// The interval between two checks for new numbers.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The source of readings: a program or a file.
#[derive(Debug)]
pub(super) struct Source {
    program: Option<Program>,
    file: PathBuf,
    /// The version of the file when it was last read, or when a reading was last requested.
    was: Option<Version>,
    requested_at: Instant,
}

/// The version of a file. A program that rewrites the file creates a new file under the old name, so the version
/// changes.
type Version = (u64, i64, i64, u64);

fn version(meta: &Metadata) -> Version {
    (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len())
}

#[derive(Debug)]
struct Program {
    pid: i32,
    name: String,
    signal: Signal,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(Program { pid, name, .. }) => write!(f, "{name} ({pid})"),
            None => self.file.display().fmt(f),
        }
    }
}

/// The result of a check for new numbers.
#[derive(Debug)]
pub(super) enum SourceUpdate {
    /// New numbers were read.
    New(Reading),
    /// No new numbers exist yet.
    Nothing,
    /// The program has ended, or its file was removed.
    Ended,
}

impl Source {
    /// Opens a source: a program by its process id, or a file by its name.
    pub(super) fn open(target: &str) -> anyhow::Result<Self> {
        let requested_at = Instant::now();
        if target.is_empty() || target.bytes().any(|byte| !byte.is_ascii_digit()) {
            return Ok(Self { program: None, file: target.into(), was: None, requested_at });
        }
        let pid = target.parse().ok().filter(|pid| *pid > 0);
        let Some(pid) = pid.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()) else {
            bail!(
                "{target}: no such program; expected the pid of a running program, or a file that its library wrote"
            );
        };
        let proc = |what: &str| {
            let file = format!("/proc/{pid}/{what}");
            fs::read(&file).with_context(|| format!("{pid}: {file}"))
        };
        let environment = proc("environ")?;
        let name = String::from_utf8_lossy(&proc("comm")?).trim_end().to_owned();
        let status = String::from_utf8_lossy(&proc("status")?).into_owned();
        let started = "expected a program that was started with LD_PRELOAD=libuslab.so \
                       USLAB_OPTIONS=dump=FILE.json";
        let options =
            environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"USLAB_OPTIONS="));
        let options = options.map(String::from_utf8_lossy).unwrap_or_default();
        let option = |name| {
            let pairs = options.split(',').filter_map(|option| option.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
        };
        let Some(file) = option("dump").filter(|file| !file.is_empty()) else {
            bail!("{pid} ({name}): the program has no `dump` in USLAB_OPTIONS; {started}");
        };
        if !file.ends_with(".json") {
            bail!("{pid} ({name}): the program's dump file is `{file}`; expected a name that ends in .json");
        }
        let signal = if option("dump_signal") == Some("USR1") { Signal::SIGUSR1 } else { Signal::SIGUSR2 };
        // In a container the program has another process id, and its files have other paths.
        let own = field(&status, "NSpid:").and_then(|pids| pids.split_whitespace().next_back());
        let file = file.replace("%p", own.unwrap_or(target));
        let root = match file.strip_prefix('/') {
            Some(absolute) => Path::new("/proc").join(target).join("root").join(absolute),
            None => Path::new("/proc").join(target).join("cwd").join(file),
        };
        let program = Program { pid, name, signal };
        // A program that has just been started may not have the thread yet.
        let begins = Instant::now();
        while !program.listens() && begins.elapsed() < START {
            std::thread::sleep(POLL_INTERVAL);
        }
        if !program.listens() {
            bail!(
                "{pid} ({}): the program has no thread `{THREAD}` that waits for {signal}; {started}",
                program.name
            );
        }
        Ok(Self { program: Some(program), file: root, was: None, requested_at })
    }

    /// Requests a reading from the program; returns `false` if the program has ended.
    pub(super) fn ask(&mut self) -> anyhow::Result<bool> {
        self.requested_at = Instant::now();
        let Some(program) = &self.program else { return Ok(true) };
        self.was = fs::metadata(&self.file).ok().map(|meta| version(&meta));
        if !program.listens() {
            return Ok(false);
        }
        match kill(Pid::from_raw(program.pid), program.signal) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            Err(error) => Err(anyhow!("{self}: {}: {}", program.signal, error.desc())),
        }
    }

    /// Reads the program's numbers, if the program has written them.
    pub(super) fn look(&mut self) -> anyhow::Result<SourceUpdate> {
        if self.program.as_ref().is_some_and(|program| !program.listens()) {
            return Ok(SourceUpdate::Ended);
        }
        let meta = match fs::metadata(&self.file) {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound && self.program.is_some() => {
                return self.unchanged_update();
            }
            Err(error) if error.kind() == ErrorKind::NotFound && self.was.is_some() => {
                return Ok(SourceUpdate::Ended);
            }
            Err(error) => return Err(error).with_context(|| self.to_string()),
        };
        if !meta.is_file() {
            bail!("{self}: {} is not a file; expected `dump=FILE.json`", self.file.display());
        }
        if self.was == Some(version(&meta)) {
            return self.unchanged_update();
        }
        let text = match fs::read(&self.file) {
            Ok(text) => text,
            // The program has just ended.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.unchanged_update(),
            Err(error) => return Err(error).with_context(|| self.to_string()),
        };
        let at = meta.modified().with_context(|| self.to_string())?;
        let reading =
            Reading::new(self.to_string(), self.program.as_ref().map(|program| program.pid), at, &text);
        let reading = reading
            .with_context(|| format!("{self}: expected a dump file of libuslab.so (`dump=FILE.json`)"))?;
        self.was = Some(version(&meta));
        Ok(SourceUpdate::New(reading))
    }

    /// Returns that there are no new numbers yet, or an error if the program takes too long.
    fn unchanged_update(&self) -> anyhow::Result<SourceUpdate> {
        if self.program.is_some() && self.requested_at.elapsed() > STATISTICS_TIMEOUT {
            bail!(
                "{self}: the program did not write {} within {} s",
                self.file.display(),
                STATISTICS_TIMEOUT.as_secs()
            );
        }
        Ok(SourceUpdate::Nothing)
    }

    /// Waits until one reading has arrived.
    pub(super) fn wait_for_reading(&mut self) -> anyhow::Result<Reading> {
        let mut there = self.ask()?;
        while there {
            match self.look()? {
                SourceUpdate::New(reading) => return Ok(reading),
                SourceUpdate::Nothing => std::thread::sleep(POLL_INTERVAL),
                SourceUpdate::Ended => there = false,
            }
        }
        bail!("{self}: the program has ended; expected a running program")
    }
}

impl Program {
    /// Returns `true` if the program runs, has the library's thread, and handles the signal. Without this check, the
    /// signal would kill a program that does not handle it.
    fn listens(&self) -> bool {
        let proc = PathBuf::from(format!("/proc/{}", self.pid));
        let Ok(status) = fs::read_to_string(proc.join("status")) else { return false };
        let caught =
            field(&status, "SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        let Ok(threads) = fs::read_dir(proc.join("task")) else { return false };
        let named = |thread: fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim_end() == THREAD)
        };
        caught >> (self.signal as u32 - 1) & 1 == 1 && threads.flatten().any(named)
    }
}

/// Returns the value of a named line of `/proc/PID/status`.
fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
