//! Runs many jobs at the same time with a progress bar, and runs commands with a time limit.

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::panic::resume_unwind;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use uslab_sync::{AtomicUsize, Ordering::Relaxed};

/// Runs all `jobs`, with at most one job per CPU at a time. Returns the results in the order of the jobs.
///
/// # Errors
/// Fails with the first failure of a job; after that, no further job begins.
pub fn side_by_side<J: Sync, R: Send>(
    what: &'static str,
    jobs: &[J],
    work: impl Fn(&J, &ProgressBar) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let progress = progress(jobs.len(), what);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (progress, work) = (&progress, &work);
    // Each thread takes the next job when it is done.
    let next = &AtomicUsize::new(0);
    let share = || {
        let mut done = vec![];
        while !progress.is_finished() {
            let i = next.fetch_add(1, Relaxed);
            let Some(job) = jobs.get(i) else { break };
            let result = work(job, progress);
            progress.inc(1);
            if result.is_err() {
                progress.abandon();
            }
            done.push((i, result));
        }
        done
    };
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(share)).collect();
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().flat_map(join).collect()
    });
    progress.finish_and_clear();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns a progress bar on standard error; it is hidden unless standard error is a terminal.
fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.with_prefix(what)
}

/// Returns the compiler errors that cargo reports with the option `--message-format json`.
pub fn errors(said: &str) -> impl Iterator<Item = Value> {
    said.lines().filter_map(|line| {
        let mut line: Value = serde_json::from_str(line).ok()?;
        let is_error = line["reason"] == "compiler-message" && line["message"]["level"] == "error";
        is_error.then(|| line["message"].take())
    })
}

/// The result of a command that was run.
#[derive(Debug)]
pub struct CommandResult {
    /// The exit status; `None` if this program killed the command for taking too long, or if the command exceeded its
    /// CPU time limit.
    pub status: Option<ExitStatus>,
    /// The complete output of the command.
    pub said: String,
    /// The CPU time of the command, exact to a few milliseconds.
    pub used: Duration,
}

/// Runs a command. The command is killed when it has used `limit` of CPU time. The command is also killed if it used
/// almost no CPU time for this long although a CPU was available. Elapsed time alone does not count, because it means
/// little on a busy machine.
///
/// # Errors
/// Fails if the command cannot be started, if its output cannot be read, or if another process killed it. For example,
/// the system kills processes when it is out of memory; the result of the command then means nothing.
pub fn run_with_time_limit(command: &mut Command, limit: Duration) -> anyhow::Result<CommandResult> {
    let mut said = tempfile::tempfile().context("cannot create a temporary file for a program's output")?;
    command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| command.get_program().display().to_string())?;
    // The start of the observed interval, and the CPU time used before it.
    let (mut at, mut before) = (begun, Duration::ZERO);
    let (status, used) = loop {
        let used = cpu_time(child.id()).unwrap_or_else(|| begun.elapsed());
        if let Some(status) = child.try_wait()? {
            ensure!(
                ![Some(SIGKILL), Some(SIGTERM)].contains(&status.signal()),
                "{status}, not killed by this program: {command:?}"
            );
            break (Some(status).filter(|status| status.signal() != Some(SIGXCPU)), used);
        }
        let mut ends = used >= limit;
        if at.elapsed() >= limit {
            // A process that waits for ever may still wake up now and then.
            ends |= (used - before) * 20 < at.elapsed() && !is_waiting_for_cpu(child.id());
            (at, before) = (Instant::now(), used);
        }
        if ends {
            child.kill()?;
            child.wait()?;
            break (None, used);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut bytes = vec![];
    said.rewind()?;
    said.read_to_end(&mut bytes)?;
    Ok(CommandResult { status, said: String::from_utf8_lossy(&bytes).into_owned(), used })
}

/// The number of the signal SIGKILL, which is the same on Linux and other systems.
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// The number of the signal that a process gets at its CPU time limit.
const SIGXCPU: i32 = 24;

/// Returns the CPU time of a process and of the child processes that it waited for, if `/proc` exists (proc(5)).
fn cpu_time(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields are the twelfth to fifteenth after the name, which may contain anything; in ticks of 10 ms.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    let ticks: u64 = fields.map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some(Duration::from_millis(10 * ticks))
}

/// Returns `true` if a thread of the process is ready to run but has no CPU, because other threads use all CPUs; needs
/// `/proc` (proc(5)).
fn is_waiting_for_cpu(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok()).any(|stat| {
        // The state is the first field after the name, which may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('R'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: f64) -> CommandResult {
        run_with_time_limit(Command::new("sh").args(["-c", script]), Duration::from_secs_f64(limit)).unwrap()
    }

    #[test]
    fn idle_job_is_killed() {
        let ended = shell("echo here; exit 3", 60.0);
        assert_eq!((ended.status.unwrap().code(), ended.said.trim()), (Some(3), "here"));
        let ended = shell("echo here; exec sleep 1000", 0.3);
        assert!(ended.status.is_none() && ended.said.trim() == "here", "{ended:?}");
    }

    /// Regression test: if the system killed a process for lack of memory, the process counted as failed, and its
    /// mutant as detected.
    #[test]
    fn run_ends_if_the_system_kills_a_job() {
        for signal in ["KILL", "TERM"] {
            let script = format!("kill -{signal} $$");
            let ran = run_with_time_limit(Command::new("sh").args(["-c", &script]), Duration::from_secs(60));
            assert!(ran.unwrap_err().to_string().contains("not killed by this program"));
        }
        assert!(shell("ulimit -St 1; while :; do :; done", 60.0).status.is_none());
        assert_eq!(shell("kill -ABRT $$", 60.0).status.unwrap().signal(), Some(6));
        let (begin, begun) = std::sync::mpsc::channel();
        let jobs: Vec<usize> = (0..1000).collect();
        let done = side_by_side("jobs", &jobs, |job, _| {
            begin.send(*job)?;
            ensure!(*job != 0, "the first command fails");
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        });
        assert_eq!(done.unwrap_err().to_string(), "the first command fails");
        assert!(begun.try_iter().count() < 500);
    }

    /// Regression test: each wake-up counted as work, so a test that a mutant made wait forever was never killed.
    #[test]
    fn job_that_only_polls_is_killed() {
        let ended = shell("while sleep 0.2; do :; done", 1.0);
        assert!(ended.status.is_none() && ended.used < Duration::from_secs(1), "{ended:?}");
    }

    /// Regression test: on a busy machine, a process that got no CPU for seconds counted as out of time.
    #[test]
    fn job_waiting_for_a_cpu_is_distinguished_from_a_sleeping_job() {
        for (script, asks) in [("while :; do :; done", true), ("exec sleep 1000", false)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            // The loop waits until the shell has become that program.
            let said = (0..10_000).any(|_| {
                std::thread::sleep(Duration::from_millis(2));
                is_waiting_for_cpu(child.id()) == asks
            });
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(said, "{script}");
        }
    }

    #[test]
    fn job_beyond_its_time_limit_is_killed() {
        let ended = shell("while :; do :; done", 0.2);
        assert!(ended.status.is_none() && ended.used >= Duration::from_millis(200), "{ended:?}");
    }
}
