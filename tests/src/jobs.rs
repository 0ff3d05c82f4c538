//! Many jobs, with a bar that shows how far they are.

use indicatif::{ProgressBar, ProgressStyle};
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

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
