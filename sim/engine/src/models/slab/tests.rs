use super::*;
use crate::testing::{CPUS, Free, ObjectPlace, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;

fn knobs(limit: u32, batchcount: u32, shared: u32) -> Knobs {
    Knobs { limit: Some(limit), batchcount: Some(batchcount), shared: Some(shared) }
}
/// Runs a script with four objects per slab, arrays of four objects that are moved in pairs, and a shared array of two
/// objects. At most 12 free objects stay in slabs: four batches of two objects each, and one slab of four objects.
fn play(play: impl FnOnce(&mut Script<'_, Slab>)) {
    script(1024, knobs(4, 2, 1), |script: &mut Script<'_, Slab>| {
        assert_eq!(script.per_slab(), 4);
        play(script);
    });
}

#[test]
fn empty_cpu_array_fetches_a_batch_of_objects() {
    play(|script| {
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((1, 2), &[CostEvent::Miss, CostEvent::Made, CostEvent::Refill(2)][..])
        );
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((1, 2), &[][..]),
            "the other object of the batch"
        );
        script.alloc(0, 1);
        assert_eq!(script.counts(), (1, 4));
    });
}

#[test]
fn full_cpu_array_moves_its_oldest_objects_to_the_shared_array() {
    play(|script| {
        script.alloc(0, 6);
        let places = [0, 1].map(|number| script.place(number));
        script.free(0, 0..4);
        assert_eq!(script.cost_events(), []);
        script.free(0, [4]);
        assert_eq!((script.counts(), script.cost_events()), ((2, 6), &[CostEvent::Exchange][..]));
        script.alloc(1, 2);
        assert_eq!(
            [script.place(7), script.place(6)],
            places,
            "another CPU gets the objects, the last freed first"
        );
    });
}

#[test]
fn objects_that_overflow_the_shared_array_return_to_their_slabs() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, 0..7);
        assert_eq!((script.counts(), script.cost_events()), ((2, 6), &[CostEvent::Flush(2)][..]));
    });
}

#[test]
fn cpu_array_unused_for_two_seconds_loses_a_fifth_of_its_objects() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, 0..4);
        script.wait(2);
        assert_eq!(script.counts(), (2, 8), "the array was used since the last reap");
        script.wait(2);
        assert_eq!(script.counts(), (2, 7), "a reap must free a fifth of four objects, rounded up");
        script.alloc(0, 1);
        script.wait(2);
        assert_eq!(script.counts(), (2, 7));
    });
}

#[test]
fn free_slabs_beyond_the_limit_are_released_oldest_first() {
    play(|script| {
        script.alloc(0, 24);
        script.free(0, 0..24);
        // Four objects stay in the array and two in the shared array, so 18 would be free in slabs. When 14 objects are
        // free, the first free slab is freed; when 14 are free again, the second slab is freed.
        assert_eq!(script.counts(), (4, 6));
    });
}

#[test]
fn slabs_free_for_four_seconds_are_released() {
    play(|script| {
        script.alloc(0, 12);
        script.free(0, 0..12);
        // The arrays hold six objects. The slab of objects 4 to 7 is free. The limit of three fifths of a slab is
        // rounded up to one slab.
        assert_eq!(script.counts(), (3, 6));
        script.wait(4);
        assert_eq!(script.counts().0, 2);
    });
}

/// Regression test: one damaged time in a trace made the model run for hours.
#[test]
fn clock_jump_runs_only_the_last_reap_intervals() {
    play(|script| {
        script.alloc(0, 12);
        script.free(0, 0..12);
        script.wait(18_000_000_000);
        assert_eq!(script.counts(), (0, 0));
    });
}

#[test]
fn shrink_empties_arrays_and_releases_free_slabs() {
    play(|script| {
        script.alloc(0, 24);
        script.free(0, 0..24);
        assert_eq!((script.shrink(), script.counts()), ((6, 4), (0, 0)));
    });
}

#[test]
fn array_capacity_falls_with_object_size() {
    let of = |size: usize| {
        let geometry = Slab::geometry(size, 4, &Knobs::default()).unwrap();
        let info = CacheInfo::new("", crate::stream::Kind::Named, 0);
        let slab = Slab::new(&info, Cpus::simulated(4, 1).unwrap(), &geometry, &Knobs::default());
        (slab.cpus[0].limit, slab.batchcount, slab.shared.limit)
    };
    assert_eq!(
        [256, 264, 1024, 1032, 4096, 4104].map(of),
        [(120, 60, 480), (54, 27, 216), (54, 27, 216), (24, 12, 96), (24, 12, 96), (8, 4, 0)]
    );
}

/// A simple implementation of SLAB's rules, with which the tests compare the model.
struct Rules {
    free: Free,
    arrays: Vec<(Vec<ObjectPlace>, bool)>,
    /// The capacities of the CPUs' arrays and of the shared array. The last element is the capacity of the shared
    /// array.
    limits: Vec<usize>,
    batch: usize,
    bound: u64,
    partial: Vec<u64>,
    empty: Vec<u64>,
    touched: bool,
    odd: bool,
}

const SHARED: usize = CPUS as usize;

impl Rules {
    fn give_back(&mut self, objects: Vec<ObjectPlace>) {
        for object in objects {
            let slab = object.0;
            self.free.put(object);
            self.partial.retain(|partial| *partial != slab);
            if self.free.is_empty(slab) {
                self.empty.insert(0, slab);
            } else {
                self.partial.push(slab);
            }
        }
        while self.slabs() * u64::from(self.free.per_slab) - self.free.active() > self.bound {
            let Some(slab) = self.empty.pop() else { break };
            self.free.slabs.remove(&slab);
        }
    }
    fn reap(&mut self, array: usize) {
        let (objects, touched) = &mut self.arrays[array];
        if objects.is_empty() {
            return;
        }
        if *touched {
            *touched = false;
            return;
        }
        let mut gone = self.limits[array].div_ceil(5);
        if gone > objects.len() {
            gone = objects.len().div_ceil(2);
        }
        let gone = objects.drain(..gone).collect();
        self.give_back(gone);
    }
}

impl Shadow for Rules {
    fn alloc(&mut self, cpu: usize) -> ObjectPlace {
        if self.arrays[cpu].0.is_empty() {
            let batch = if self.arrays[cpu].1 { self.batch } else { self.batch.min(16) };
            if self.arrays[SHARED].0.is_empty() {
                let mut got = vec![];
                while got.len() < batch {
                    if self.partial.is_empty() && !self.empty.is_empty() {
                        self.touched = true;
                        self.partial.push(self.empty.remove(0));
                    }
                    if self.partial.is_empty() {
                        if !got.is_empty() {
                            break;
                        }
                        self.partial.push(self.free.make());
                    }
                    let slab = self.partial[0];
                    got.push(self.free.take(slab));
                    if self.free.of(slab) == 0 {
                        self.partial.remove(0);
                    }
                }
                self.arrays[cpu].0 = got;
            } else {
                let shared = &mut self.arrays[SHARED];
                let from = shared.0.len() - batch.min(shared.0.len());
                shared.1 = true;
                self.arrays[cpu].0 = shared.0.split_off(from);
            }
        }
        self.arrays[cpu].1 = true;
        self.arrays[cpu].0.pop().unwrap()
    }
    fn free(&mut self, cpu: usize, object: ObjectPlace) {
        if self.arrays[cpu].0.len() == self.limits[cpu] {
            let room = (self.limits[SHARED] - self.arrays[SHARED].0.len()).min(self.batch);
            let gone: Vec<_> = self.arrays[cpu].0.drain(..if room > 0 { room } else { self.batch }).collect();
            if room > 0 {
                self.arrays[SHARED].0.extend(gone);
            } else {
                self.give_back(gone);
            }
        }
        self.arrays[cpu].0.push(object);
    }
    fn tick(&mut self) {
        (0..SHARED).for_each(|cpu| self.reap(cpu));
        self.odd = !self.odd;
        if self.odd {
            return;
        }
        self.reap(SHARED);
        if self.touched {
            self.touched = false;
            return;
        }
        for _ in 0..self.bound.div_ceil(5 * u64::from(self.free.per_slab)) {
            if let Some(slab) = self.empty.pop() {
                self.free.slabs.remove(&slab);
            }
        }
    }
    fn shrink(&mut self) {
        let all = self.arrays.iter_mut().flat_map(|(objects, _)| std::mem::take(objects)).collect();
        self.give_back(all);
        self.empty.drain(..).for_each(|slab| _ = self.free.slabs.remove(&slab));
    }
    fn slabs(&self) -> u64 {
        self.free.slabs.len() as u64
    }
    fn active(&self) -> u64 {
        self.free.active()
    }
}

proptest! {
    #[test]
    fn slab_model_follows_its_rules(
        steps in steps(),
        size in 400..5000_u32,
        (limit, batchcount) in (1..24_u32).prop_flat_map(|limit| (Just(limit), 1..=limit)),
        shared in 0..3_u32,
    ) {
        agrees::<Slab>(size, knobs(limit, batchcount, shared), steps, |per_slab| {
            let mut limits = vec![limit as usize; SHARED];
            limits.push((shared * batchcount) as usize);
            Box::new(Rules {
                free: Free::new(per_slab),
                arrays: vec![(vec![], false); SHARED + 1],
                limits,
                batch: batchcount as usize,
                bound: u64::from((1 + CPUS) * batchcount) + u64::from(per_slab),
                partial: vec![],
                empty: vec![],
                touched: false,
                odd: false,
            })
        })?;
    }
}
