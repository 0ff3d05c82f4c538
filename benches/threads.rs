//! Whether two threads get twice as much done as one, each with objects of its own.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::team::{Team, cpus, mean};
use uslab_benches::work::{self, Batch, Order};
use uslab_benches::{Bench, Column, Made, Subject, Work, contenders};

/// Hot pairs, or batches in random order.
#[derive(Clone)]
struct Threads {
    batch: Option<Batch>,
    most: usize,
    budget: Duration,
}

impl Threads {
    /// CPU nanoseconds for a pair, the mean over the threads.
    fn with<S: Subject>(&self, subject: &S, threads: usize) -> f64 {
        let member = |_, team: &Team| {
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
        mean(&Team::run(threads, true, self.budget, member))
    }
}

impl Work for Threads {
    fn live(&self) -> usize {
        self.batch.as_ref().map_or(1, Batch::size) * self.most
    }
    fn run<S: Subject>(&self, made: &Made<S>) -> Vec<f64> {
        let subject = made.get();
        let one = self.with(subject, 1);
        let all = self.with(subject, self.most);
        vec![one, all, self.most as f64 * one / all]
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench = Bench::start(
        "threads",
        "CPU ns for a pair of 64 B on one thread and on two at once, pinned; scaling is throughput over one's",
    );
    let most = cpus().min(2);
    for (case, batch) in [("pairs", None), ("batches", Some(Batch::new(1000, Order::Random)))] {
        let columns = [
            Column::lower("1 thread", "ns"),
            Column::lower(format!("{most} threads"), "ns"),
            Column::higher("scaling", ""),
        ];
        let threads = Threads { batch, most, budget: bench.budget() };
        bench.group(case, columns, contenders::<8>(&threads));
    }
    bench.run()
}
