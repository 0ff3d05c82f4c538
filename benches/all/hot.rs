//! Cost of allocating and freeing one object over and over, with a write to its first word.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::{Bench, Column, LazySubject, Subject, Work, clock, contenders, work};

#[derive(Clone)]
struct Pairs {
    budget: Duration,
}

impl Work for Pairs {
    fn live(&self) -> usize {
        1
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let mut local = lazy_subject.get().local();
        let mut checked = Checked::new(&mut local);
        work::pairs(&mut checked, 10_000);
        checked.finish::<S>();
        let local = &mut local;
        vec![clock::measure_per_operation(self.budget, || false, || work::pairs(local, 20_000))]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row("hot", "CPU ns for an allocation and its free, repeated with the same object");
    let pairs = Pairs { budget: bench.budget() };
    let ns = || [Column::lower("", "ns")];
    bench.group("16 B", ns(), contenders::<2>(&pairs));
    bench.group("64 B", ns(), contenders::<8>(&pairs));
    bench.group("256 B", ns(), contenders::<32>(&pairs));
    bench.group("1024 B", ns(), contenders::<128>(&pairs));
}
