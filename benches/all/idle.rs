//! Memory of idle threads that have allocated once; shows if the memory grows with the number of threads.

use std::sync::Barrier;
use uslab_benches::resident::resident;
use uslab_benches::{Bench, Column, Contender, Kind, LazySubject, Subject, ThreadAccess, Work, contenders};

#[derive(Clone)]
struct Idle {
    threads: usize,
}

impl Idle {
    /// Resident bytes per thread, including the thread's stack, when each thread has run `allocate_once` and is
    /// waiting.
    fn bytes(&self, allocate_once: impl Fn() + Sync) -> f64 {
        let (barrier, allocate_once) = (&Barrier::new(self.threads + 1), &allocate_once);
        let before = resident();
        let during = std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(move || {
                    allocate_once();
                    barrier.wait();
                    barrier.wait();
                });
            }
            barrier.wait();
            let during = resident();
            barrier.wait();
            during
        });
        (during - before) / self.threads as f64
    }
}

impl Work for Idle {
    fn live(&self) -> usize {
        self.threads
    }
    fn suits<S: Subject>(&self) -> bool {
        S::KIND != Kind::Floor
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let subject = lazy_subject.get();
        vec![self.bytes(|| {
            let mut local = subject.local();
            let object = local.alloc(1);
            assert_eq!(local.stamp(&object), 1, "{}: an object holds the stamp of another object", S::NAME);
            local.free(object);
            // A pool that a thread owns must live as long as the thread.
            std::mem::forget(local);
        })]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row("idle", "resident bytes of each of 1000 idle threads that allocated and freed 64 B once; one process per contender; null is a thread without an allocation");
    let idle = Idle { threads: bench.scale(1000) };
    let mut all = contenders::<8>(&idle);
    all.push(Contender::new("null", Kind::Floor, move || vec![idle.bytes(|| ())]));
    bench.isolated_group("", [Column::lower("", "B")], all);
}
