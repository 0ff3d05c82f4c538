//! Cost of an allocation after earlier frees left every slab half empty.

use crate::memory::free;
use rand::seq::SliceRandom;
use std::time::Duration;
use uslab_benches::work::{Places, random};
use uslab_benches::{Bench, Column, LazySubject, Subject, ThreadAccess, Work, clock, contenders};

/// Number of times per round that half of the objects are freed and allocated again.
const HALF_REFILLS_PER_ROUND: usize = 4;

#[derive(Clone)]
struct RefillWorkload {
    objects: usize,
}

impl Work for RefillWorkload {
    fn live(&self) -> usize {
        self.objects
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let mut order: Box<[u32]> = (0..self.objects as u32).collect();
        let mut rng = random();
        let mut places = Places::new(self.objects);
        let mut local = lazy_subject.get().local();
        for &place in &order {
            places.put(place as usize, local.alloc(u64::from(place)));
        }
        let mut cpu_time = Duration::ZERO;
        for _ in 0..HALF_REFILLS_PER_ROUND {
            order.shuffle(&mut rng);
            let first_half = &order[..self.objects / 2];
            free::<S, _>(&mut local, &mut places, first_half);
            let start = clock::cpu();
            for &place in first_half {
                places.put(place as usize, local.alloc(u64::from(place)));
            }
            cpu_time += clock::cpu() - start;
        }
        free::<S, _>(&mut local, &mut places, &order);
        vec![cpu_time.as_nanos() as f64 / (HALF_REFILLS_PER_ROUND * (self.objects / 2)) as f64]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "refills",
        "CPU ns for an allocation of 64 B, after a random half of 1,000,000 objects was freed, while that half is allocated again",
    );
    let refills = RefillWorkload { objects: bench.scale(1_000_000) };
    bench.group("", [Column::lower("", "ns")], contenders::<8>(&refills));
}
