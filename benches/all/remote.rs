//! Cost of an object that is allocated by one thread and freed by another thread. A ring passes objects from a producer
//! to a consumer, so all frees are remote.

use std::time::Instant;
use uslab_benches::team::{self, cpus};
use uslab_benches::{Bench, Column, LazySubject, Subject, ThreadAccess, Work, contenders};

const RING_CAPACITY: usize = 1024;
/// Number of objects in a segment; one time measurement covers one segment.
const OBJECTS_PER_SEGMENT: u64 = 10_000;

#[derive(Clone)]
struct Remote {
    segments: u64,
    /// `true` if the consumer reads an object before it frees it.
    reads_object: bool,
}

/// Spins until `poll` returns a value. After many failed attempts, yields the CPU, because the other thread may need
/// that CPU to run.
fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    for turn in 0_u32.. {
        if let Some(value) = poll() {
            return value;
        }
        if turn % 1024 < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    unreachable!("the loop never ends")
}

impl Work for Remote {
    fn live(&self) -> usize {
        // Counts the objects in the ring, and one object held by each thread.
        RING_CAPACITY + 2
    }
    fn suits<S: Subject>(&self) -> bool {
        S::SHARED
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        let subject = lazy_subject.get();
        // One additional segment is the warm-up.
        let (reads, segments, count) =
            (self.reads_object, self.segments, (self.segments + 1) * OBJECTS_PER_SEGMENT);
        let (mut ring, mut receiver) = rtrb::RingBuffer::new(RING_CAPACITY);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                team::pin(0);
                let mut local = subject.local();
                for stamp in 0..count {
                    let mut object = Some(local.alloc(stamp));
                    wait(|| match ring.push(object.take()?) {
                        Ok(()) => Some(()),
                        Err(rtrb::PushError::Full(back)) => {
                            object = Some(back);
                            None
                        }
                    });
                }
            });
            let consumer = scope.spawn(move || {
                team::pin(1);
                let mut local = subject.local();
                let mut times = Vec::with_capacity(segments as usize + 1);
                for segment in 0..=segments {
                    let start = Instant::now();
                    for i in 0..OBJECTS_PER_SEGMENT {
                        let object = wait(|| receiver.pop().ok());
                        if reads {
                            let stamp = local.stamp(&object);
                            assert_eq!(
                                stamp,
                                segment * OBJECTS_PER_SEGMENT + i,
                                "{}: an object holds the stamp of another object",
                                S::NAME
                            );
                        }
                        local.free(object);
                    }
                    times.push(start.elapsed().as_nanos() as f64 / OBJECTS_PER_SEGMENT as f64);
                }
                times.remove(0);
                times.sort_by(f64::total_cmp);
                vec![times[times.len() / 4]]
            });
            consumer.join().expect("the consumer must not panic")
        })
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "remote",
        "wall ns to pass an object of 64 B to another thread through a ring of 1024 objects; lower quartile over segments of 10,000 objects",
    );
    if cpus() < 2 {
        eprintln!(
            "remote: the machine has only one CPU, so the row measures the scheduler instead of remote frees"
        );
    }
    for (case, reads) in [("read", true), ("not read", false)] {
        let remote = Remote { segments: bench.scale(100) as u64, reads_object: reads };
        bench.group(case, [Column::lower("", "ns")], contenders::<8>(&remote));
    }
}
