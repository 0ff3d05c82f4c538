//! What a pair costs when there are many more threads than CPUs, free to move.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::team::{Team, cpus, mean};
use uslab_benches::{Bench, Column, Made, Subject, Work, contenders, work};

#[derive(Clone)]
struct Oversubscribed {
    threads: usize,
    budget: Duration,
}

impl Oversubscribed {
    fn with<S: Subject>(&self, subject: &S, threads: usize) -> f64 {
        let member = |_, team: &Team| {
            let mut local = subject.local();
            let mut checked = Checked::new(&mut local);
            work::pairs(&mut checked, 10_000);
            checked.finish::<S>();
            team.measure(|| work::pairs(&mut local, 20_000))
        };
        mean(&Team::run(threads, false, self.budget, member))
    }
}

impl Work for Oversubscribed {
    fn live(&self) -> usize {
        self.threads
    }
    fn run<S: Subject>(&self, made: &Made<S>) -> Vec<f64> {
        let subject = made.get();
        let one = self.with(subject, 1);
        let all = self.with(subject, self.threads);
        vec![one, all, all / one]
    }
}

fn main() -> anyhow::Result<()> {
    let mut bench =
        Bench::start("oversubscribed", "CPU ns for a hot pair of 64 B, eight threads a CPU, free to move");
    let threads = cpus() * 8;
    let columns = [
        Column::lower("1 thread", "ns"),
        Column::lower(format!("{threads} threads"), "ns"),
        Column::lower("to its own 1 thread", "times"),
    ];
    let work = Oversubscribed { threads, budget: bench.budget() };
    bench.group("", columns, contenders::<8>(&work));
    bench.run()
}
