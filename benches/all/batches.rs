//! Cost of an allocation and free in batches: a thousand objects are allocated one after the other, and then
//! freed in one of three orders.

use std::time::Duration;
use uslab_benches::subject::Checked;
use uslab_benches::work::{Batch, Order};
use uslab_benches::{Bench, Column, LazySubject, Subject, Work, clock, contenders};

#[derive(Clone)]
struct Batches {
    batch: Batch,
    budget: Duration,
}

impl Work for Batches {
    fn live(&self) -> usize {
        self.batch.size()
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let mut local = lazy_subject.get().local();
        let mut places = self.batch.places(&local);
        let mut checked = Checked::new(&mut local);
        for _ in 0..20 {
            self.batch.run(&mut checked, &mut places);
        }
        checked.finish::<S>();
        let ten = || (0..10).map(|_| self.batch.run(&mut local, &mut places)).sum();
        vec![clock::measure_per_operation(self.budget, || false, ten)]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "batches",
        "CPU ns for an allocation and its free, in batches of 1000 allocations of 64 B and 1000 frees",
    );
    for (case, order) in [("lifo", Order::Lifo), ("fifo", Order::Fifo), ("random", Order::Random)] {
        let batches = Batches { batch: Batch::new(1000, order), budget: bench.budget() };
        bench.group(case, [Column::lower("", "ns")], contenders::<8>(&batches));
    }
}
