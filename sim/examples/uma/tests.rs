//! Tests UMA's rules with scripts, and against a shadow that implements the rules literally.

use super::*;
use proptest::prelude::*;
use uslab_engine::testing::{CPUS, Free, ObjectPlace, Script, Shadow, agrees, script, steps};

/// In this test, four objects of 8,192 bytes fill a slab, and two objects fill a bucket.
fn play(play: impl FnOnce(&mut Script<'_, UmaModel>)) {
    script(8192, Knobs { bucket_size: Some(2) }, |script: &mut Script<'_, UmaModel>| {
        assert_eq!(script.per_slab(), 4);
        play(script);
    });
}

#[test]
fn bucket_objects_are_allocated_in_lifo_order() {
    play(|script| {
        script.alloc(0, 1);
        assert_eq!((script.place(0), script.counts()), ((0, 1), (1, 2)));
        assert_eq!(script.cost_events(), [CostEvent::Made, CostEvent::Refill(1), CostEvent::Refill(1)]);
        script.alloc(0, 1);
        assert_eq!((script.place(1), script.cost_events()), ((0, 0), &[][..]));
    });
}

#[test]
fn freed_objects_fill_the_allocation_bucket_before_the_free_bucket() {
    play(|script| {
        script.alloc(0, 4);
        let places = [3, 0, 1, 2].map(|number| script.place(number));
        script.free(0, [0, 1, 2, 3]);
        assert_eq!((script.cost_events(), script.counts()), (&[][..], (1, 4)), "both buckets are full");
        script.alloc(0, 2);
        assert_eq!([script.place(4), script.place(5)], [places[2], places[1]]);
        script.alloc(0, 1);
        assert_eq!(
            (script.place(6), script.cost_events()),
            (places[0], &[CostEvent::Swap][..]),
            "the two buckets are swapped"
        );
    });
}

#[test]
fn full_bucket_moves_through_the_zone_to_another_cpu() {
    play(|script| {
        script.alloc(0, 6);
        let place = script.place(3);
        script.free(0, 0..5);
        assert_eq!(script.cost_events(), [CostEvent::Exchange]);
        script.alloc(1, 1);
        assert_eq!((script.place(6), script.cost_events()), (place, &[CostEvent::Exchange][..]));
    });
}

#[test]
fn partial_slabs_serve_before_free_and_new_slabs() {
    play(|script| {
        script.alloc(0, 12);
        script.free(0, (0..4).chain([4]));
        // Now two slabs have free objects: the first one is empty, the second one partial. The third one is
        // full.
        script.shrink();
        assert_eq!(script.counts(), (2, 7));
        script.alloc(1, 1);
        assert_eq!(
            (script.slab_of(12), script.counts()),
            (3, (3, 9)),
            "one object of the second slab, and one of a new slab"
        );
        script.alloc(1, 1);
        assert_eq!(script.slab_of(13), 1);
    });
}

#[test]
fn buckets_keep_freed_objects_until_reclaim() {
    play(|script| {
        script.alloc(0, 40);
        script.free(0, 0..40);
        assert_eq!(script.counts(), (10, 40), "all objects are in buckets");
        assert_eq!((script.shrink(), script.counts()), ((40, 10), (0, 0)));
    });
}

#[test]
fn bucket_capacity_falls_with_object_size() {
    for (size, entries) in [(16, 256), (64, 256), (65, 128), (512, 32), (3000, 4), (4096, 2)] {
        script(size, Knobs::default(), |script: &mut Script<'_, UmaModel>| {
            script.alloc(0, 1);
            assert_eq!(script.counts().1, entries, "objects of {size} bytes");
        });
    }
}

/// A literal implementation of the rules.
struct Rules {
    free: Free,
    /// Slabs with free objects, both partly used and empty; the slab that serves next is first.
    partial: Vec<u64>,
    unused: Vec<u64>,
    entries: usize,
    /// For each CPU, the bucket from which it allocates, and the bucket to which it frees.
    from: Vec<Vec<ObjectPlace>>,
    to: Vec<Vec<ObjectPlace>>,
    zone: Vec<Vec<ObjectPlace>>,
}

impl Rules {
    fn of_slabs(&mut self) -> ObjectPlace {
        let slab = match (self.partial.first(), self.unused.first()) {
            (Some(slab), _) | (None, Some(slab)) => *slab,
            (None, None) => self.free.make(),
        };
        self.partial.retain(|other| *other != slab);
        self.unused.retain(|other| *other != slab);
        let object = self.free.take(slab);
        if self.free.of(slab) > 0 {
            self.partial.insert(0, slab);
        }
        object
    }
}

impl Shadow for Rules {
    fn alloc(&mut self, cpu: usize) -> ObjectPlace {
        if self.from[cpu].is_empty() {
            if !self.to[cpu].is_empty() {
                self.from[cpu] = take(&mut self.to[cpu]);
            } else if let Some(bucket) = self.zone.pop() {
                self.from[cpu] = bucket;
            } else {
                self.from[cpu] = (0..self.entries).map(|_| self.of_slabs()).collect();
            }
        }
        self.from[cpu].pop().unwrap()
    }
    fn free(&mut self, cpu: usize, object: ObjectPlace) {
        if self.from[cpu].len() < self.entries {
            self.from[cpu].push(object);
        } else {
            if self.to[cpu].len() == self.entries {
                self.zone.push(take(&mut self.to[cpu]));
            }
            self.to[cpu].push(object);
        }
    }
    fn shrink(&mut self) {
        let mut buckets = vec![];
        for cpu in 0..CPUS as usize {
            buckets.extend([take(&mut self.from[cpu]), take(&mut self.to[cpu])]);
        }
        buckets.append(&mut self.zone);
        for object in buckets.into_iter().flatten() {
            self.free.put(object);
            self.partial.retain(|slab| *slab != object.0);
            match self.free.is_empty(object.0) {
                true => _ = self.free.slabs.remove(&object.0),
                false => self.partial.push(object.0),
            }
        }
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
    fn uma_model_follows_its_rules(steps in steps(), size in 400..5000_u32, entries in 1..9_usize) {
        agrees::<UmaModel>(size, Knobs { bucket_size: Some(entries) }, steps, |per_slab| {
            let buckets = || vec![vec![]; CPUS as usize];
            Box::new(Rules {
                free: Free::new(per_slab),
                partial: vec![],
                unused: vec![],
                entries,
                from: buckets(),
                to: buckets(),
                zone: vec![],
            })
        })?;
    }
}
