//! The layer under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! Four threads on two CPUs alloc, free, drain and reap, tens of operations each; at the end every ball is in one place and
//! the counts are exact. Sequentially consistent: orderings are loom's business.

use crate::sync::{Arc, Counter, Mutex, thread};
use crate::{Config, Cpus, Heap, Layer, Round, Supplier, on_cpu};
use core::ptr::NonNull;

#[derive(Clone, Copy)]
struct Ball(usize);
impl Round for Ball {
    fn into_raw(self) -> NonNull<u8> {
        NonNull::new(core::ptr::without_provenance_mut(self.0)).unwrap()
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw.addr().get())
    }
}

struct Shelf(Mutex<Vec<usize>>);
impl Supplier<Ball> for Shelf {
    fn fill(&self, _: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
        let mut balls = self.0.lock();
        let n = max.min(balls.len());
        balls.drain(..n).for_each(|b| put(Ball(b)));
        n
    }
    fn flush(&self, rounds: impl Iterator<Item = Ball>) {
        self.0.lock().extend(rounds.map(|b| b.0));
    }
}

const BALLS: usize = 24;
const STEPS: usize = 20;

fn scenario() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let config = Config::new(&cpus, 2, 2, 2);
    let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
    let layer = Arc::new(Layer::<Ball>::new(cpus, config, memory).unwrap());
    let shelf = Arc::new(Shelf(Mutex::new((1..=BALLS).collect())));
    let counts = Arc::new((Counter::new(0), Counter::new(0)));
    let threads: Vec<_> = (0..4_usize)
        .map(|t| {
            let (layer, shelf, counts) = (layer.clone(), shelf.clone(), counts.clone());
            thread::spawn(move || {
                let mut held = vec![];
                for i in 0..STEPS {
                    on_cpu(((t + i / 5) % 2) as u32);
                    match (t, i % 7) {
                        (3, 2) => layer.drain(&*shelf, 0..2),
                        (3, 5) => drop(layer.reap(&*shelf)),
                        (_, 0..=3) => {
                            if let Some(ball) = layer.alloc(&*shelf) {
                                held.push(ball);
                                counts.0.add(1);
                            }
                        }
                        _ => {
                            for ball in held.drain(held.len() / 2..) {
                                layer.free(&*shelf, ball);
                                counts.1.add(1);
                            }
                        }
                    }
                }
                held.into_iter().map(|b| b.0).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut balls: Vec<usize> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    let stats = layer.stats();
    assert_eq!((stats.allocs, stats.frees), (counts.0.get(), counts.1.get()), "the counts are exact");
    layer.purge(&*shelf);
    balls.extend(shelf.0.lock().iter());
    balls.sort_unstable();
    assert_eq!(balls, (1..=BALLS).collect::<Vec<_>>(), "every ball in one place");
}

#[test]
fn random_schedules() {
    shuttle::check_random(scenario, 2_000);
}

#[test]
fn pct_schedules() {
    shuttle::check_pct(scenario, 2_000, 3);
}
