//! Many jobs, with a bar that shows how far they are; and jobs that may take so long and no longer.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{Read, Seek};
use std::panic::resume_unwind;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Does all of `jobs`, as many at a time as there are CPUs; the results in their order.
///
/// # Errors
/// The first failure of a job.
pub fn side_by_side<J: Sync, R: Send>(
    what: &'static str,
    jobs: &[J],
    work: impl Fn(&J, &ProgressBar) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let progress = progress(jobs.len(), what);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (progress, work) = (&progress, &work);
    // One of `workers` takes every so many.
    let share = |first: usize| {
        jobs.iter().enumerate().skip(first).step_by(workers).map(|(i, job)| {
            let result = work(job, progress);
            progress.inc(1);
            (i, result)
        })
    };
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|first| scope.spawn(move || share(first).collect::<Vec<_>>())).collect();
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().flat_map(join).collect()
    });
    progress.finish_and_clear();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A bar on standard error; nothing where that is no terminal.
fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.with_prefix(what)
}

/// Runs a command: how it ended, and all that it printed. Without a status it took longer than `limit`, and was killed.
///
/// # Errors
/// It cannot be started, or what it prints cannot be read.
pub fn run_within(command: &mut Command, limit: Duration) -> anyhow::Result<(Option<ExitStatus>, String)> {
    let mut said = tempfile::tempfile().context("a temporary file for what a program prints")?;
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?);
    let mut child = command.spawn().with_context(|| command.get_program().display().to_string())?;
    let status = loop {
        match child.try_wait()? {
            None if begun.elapsed() >= limit => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
            status => break status,
        }
    };
    let mut bytes = vec![];
    said.rewind()?;
    said.read_to_end(&mut bytes)?;
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}
