//! Cost of one allocation and free when several threads allocate at the same time; each thread frees only its own
//! objects.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::team::{Team, cpus, mean};
use uslab_benches::work::{self, Batch, Order};
use uslab_benches::{Bench, Column, LazySubject, Subject, Work, contenders};

/// With `batch`, threads allocate batches and free them in random order; otherwise, each thread allocates and frees one
/// object over and over.
#[derive(Clone)]
struct Threads {
    batch: Option<Batch>,
    threads: usize,
    /// `true` if each thread stays on one CPU, with at most one thread per CPU; `false` if threads may move.
    pinned: bool,
    /// `true` if the row shows how throughput scales with threads; `false` if it shows the time of one allocation and
    /// free.
    scaling: bool,
    budget: Duration,
}

impl Threads {
    /// Returns CPU nanoseconds per allocation and free, averaged over the threads.
    fn measure<S: Subject>(&self, subject: &S, threads: usize) -> f64 {
        let worker = |_, team: &Team| {
            let mut local = subject.local();
            let Some(batch) = &self.batch else {
                let mut checked = Checked::new(&mut local);
                work::pairs(&mut checked, 10_000);
                checked.finish::<S>();
                return team.measure(|| work::pairs(&mut local, 20_000));
            };
            let mut places = batch.places(&local);
            let mut checked = Checked::new(&mut local);
            for _ in 0..20 {
                batch.run(&mut checked, &mut places);
            }
            checked.finish::<S>();
            team.measure(|| (0..10).map(|_| batch.run(&mut local, &mut places)).sum())
        };
        mean(&Team::run(threads, self.pinned, self.budget, worker))
    }
}

impl Work for Threads {
    fn live(&self) -> usize {
        self.batch.as_ref().map_or(1, Batch::size) * self.threads
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let subject = lazy_subject.get();
        let all = self.measure(subject, self.threads);
        if !self.scaling {
            return vec![all];
        }
        vec![self.threads as f64 * self.measure(subject, 1) / all]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    let two_threads = cpus().min(2);
    let budget = bench.budget();
    let batches = || Some(Batch::new(1000, Order::Random));
    let pinned = |batch, scaling| Threads { batch, threads: two_threads, pinned: true, scaling, budget };
    bench.row(
        "threads",
        "CPU ns for an allocation of 64 B and its free, on each of several concurrent threads",
    );
    let ns = || [Column::lower("", "ns")];
    bench.group(format!("{two_threads} threads, batches"), ns(), contenders::<8>(&pinned(batches(), false)));
    let many_threads = Threads { batch: None, threads: 16, pinned: false, scaling: false, budget };
    bench.group("16 threads, hot", ns(), contenders::<8>(&many_threads));
    bench.row("scaling", "throughput of two pinned threads, divided by the throughput of one thread");
    let times = || [Column::higher("", "times")];
    bench.group("hot", times(), contenders::<8>(&pinned(None, true)));
    bench.group("batches", times(), contenders::<8>(&pinned(batches(), true)));
}
