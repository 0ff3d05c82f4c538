//! Cost of false sharing: two threads write to their own small objects. If one cache line holds objects of both
//! threads, each write takes the line from the other CPU (as in Hoard's tests cache-thrash and cache-scratch).

use std::time::Duration;
use uslab_benches::ours::sync::Mutex;
use uslab_benches::team::{Team, cpus, mean};
use uslab_benches::{Bench, Column, LazySubject, Subject, ThreadAccess, Work, contenders};

/// Number of objects of a thread; a thread's objects together cover several cache lines.
const OBJECTS: usize = 32;
/// Number of writes to each object before a new object replaces it.
const WRITES_PER_OBJECT: u64 = 100;

#[derive(Clone, Copy)]
enum HandOverMode {
    /// Threads allocate their own objects from the start (active sharing: cache-thrash).
    No,
    /// One thread allocates the first objects for all threads, alternating between threads, so neighbouring objects
    /// belong to different threads. Threads free the objects that were allocated for them and may get the same objects
    /// again (passive sharing: cache-scratch).
    Yes,
}

#[derive(Clone)]
struct SharingWorkload {
    hand_over: HandOverMode,
    threads: usize,
    budget: Duration,
}

/// Measures false sharing among objects; a subject whose objects have no addresses cannot be measured.
impl Work for SharingWorkload {
    fn live(&self) -> usize {
        self.threads * OBJECTS
    }
    fn suits<S: Subject>(&self) -> bool {
        S::SHARED
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let subject = lazy_subject.get();
        let mut local = subject.local();
        let probe = local.alloc(0);
        let writable = local.address(&probe).is_some();
        local.free(probe);
        if !writable {
            return Vec::new();
        }
        let mut piles: Vec<Vec<_>> = (0..self.threads).map(|_| Vec::with_capacity(OBJECTS)).collect();
        if let HandOverMode::Yes = self.hand_over {
            for i in 0..self.threads * OBJECTS {
                piles[i % self.threads].push(local.alloc(0));
            }
        }
        let piles: Vec<_> = piles.into_iter().map(|pile| Mutex::new(Some(pile))).collect();
        let worker = |i: usize, team: &Team| {
            let mut local = subject.local();
            let mut own_objects = piles[i].lock().take().unwrap_or_default();
            own_objects.drain(..).for_each(|object| local.free(object));
            let writes = || {
                own_objects.extend((0..OBJECTS as u64).map(|stamp| local.alloc(stamp)));
                for write in 1..=WRITES_PER_OBJECT {
                    for object in &own_objects {
                        if let Some(word) = local.address(object) {
                            // SAFETY: this thread owns the object. The access is volatile, so that every write is made.
                            unsafe { word.write_volatile(word.read_volatile() + write) };
                        }
                    }
                }
                for (stamp, object) in own_objects.drain(..).enumerate() {
                    let sum = stamp as u64 + WRITES_PER_OBJECT * (WRITES_PER_OBJECT + 1) / 2;
                    assert_eq!(local.stamp(&object), sum, "{}: another thread wrote to the object", S::NAME);
                    local.free(object);
                }
                OBJECTS as u64 * WRITES_PER_OBJECT
            };
            team.measure(writes)
        };
        vec![mean(&Team::run(self.threads, true, self.budget, worker))]
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row("sharing", "CPU ns for a write to a thread's own small objects, two pinned threads");
    let threads = cpus().min(2);
    for (case, hand_over) in [("thrash", HandOverMode::No), ("scratch", HandOverMode::Yes)] {
        let work = SharingWorkload { hand_over, threads, budget: bench.budget() };
        bench.group(format!("{case}, 8 B"), [Column::lower("", "ns")], contenders::<1>(&work));
        bench.group(format!("{case}, 16 B"), [Column::lower("", "ns")], contenders::<2>(&work));
    }
}
