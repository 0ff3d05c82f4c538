//! Cost of one allocation and free when 100,000 objects are live; random bursts replace 1 to 256 objects at a time.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::work::Churn;
use uslab_benches::{Bench, Column, LazySubject, Subject, Work, clock, contenders};

#[derive(Clone)]
struct ChurnWorkload {
    live: usize,
    budget: Duration,
}

impl Work for ChurnWorkload {
    fn live(&self) -> usize {
        self.live
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let mut local = lazy_subject.get().local();
        let mut checked = Checked::new(&mut local);
        let mut churn = Churn::fill(&mut checked, self.live);
        churn.bursts(&mut checked, self.live as u64 / 4);
        churn.empty(&mut checked);
        checked.finish::<S>();
        let mut churn = Churn::fill(&mut local, self.live);
        churn.bursts(&mut local, self.live as u64);
        let ns = clock::measure_per_operation(self.budget, || false, || churn.bursts(&mut local, 10_000));
        churn.empty(&mut local);
        vec![ns]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "churn",
        "CPU ns to free an object of 64 B and allocate another, among 100,000 live objects that are replaced in random bursts of 1 to 256",
    );
    let churning = ChurnWorkload { live: bench.scale(100_000), budget: bench.budget() };
    bench.group("", [Column::lower("", "ns")], contenders::<8>(&churning));
}
