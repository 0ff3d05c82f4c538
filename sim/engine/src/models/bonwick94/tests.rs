use super::*;
use crate::testing::{Free, ObjectPlace, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;

/// Runs a script on a cache with four objects of 1,024 bytes per page.
fn play(play: impl FnOnce(&mut Script<'_, Bonwick94>)) {
    script(1024, Knobs::default(), |script: &mut Script<'_, Bonwick94>| {
        assert_eq!(script.per_slab(), 4);
        play(script);
    });
}

#[test]
fn slab_is_filled_before_a_new_slab_is_created() {
    play(|script| {
        script.alloc(0, 4);
        assert_eq!((script.counts(), script.slab_of(3)), ((1, 4), 0));
        script.alloc(0, 1);
        assert_eq!((script.counts(), script.slab_of(4)), ((2, 5), 1));
        assert_eq!(script.cost_events(), [CostEvent::Made, CostEvent::Refill(1)]);
    });
}

#[test]
fn slab_that_was_full_most_recently_serves_first() {
    play(|script| {
        script.alloc(0, 12);
        script.free(0, [1, 5]);
        let (first, last) = ((0, 1), (1, 1));
        script.alloc(0, 2);
        assert_eq!(
            [script.place(12), script.place(13)],
            [last, first],
            "the slab that was full last must be first"
        );
    });
}

#[test]
fn empty_slab_serves_after_all_partial_slabs() {
    play(|script| {
        script.alloc(0, 12);
        script.free(0, 0..4);
        script.free(0, [4]);
        script.alloc(0, 2);
        assert_eq!([script.slab_of(12), script.slab_of(13)], [1, 0]);
    });
}

#[test]
fn slab_that_was_empty_longest_serves_first() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, (4..8).chain(0..4));
        script.alloc(0, 1);
        assert_eq!(script.slab_of(8), 1);
    });
}

#[test]
fn empty_slabs_stay_until_memory_is_reclaimed() {
    play(|script| {
        script.alloc(0, 9);
        script.free(0, 0..8);
        assert_eq!(script.counts(), (3, 1));
        assert_eq!((script.shrink(), script.counts()), ((0, 2), (1, 1)));
    });
}

#[test]
fn remotely_freed_object_serves_any_cpu() {
    play(|script| {
        script.alloc(0, 2);
        let place = script.place(0);
        script.free(1, [0]);
        assert_eq!(script.cost_events(), [CostEvent::Flush(1)]);
        script.alloc(2, 1);
        assert_eq!((script.place(2), script.cost_events()), (place, &[CostEvent::Refill(1)][..]));
    });
}

#[test]
fn slab_wastes_at_most_an_eighth() {
    // With objects of 1,400 bytes, two objects leave 1,296 bytes of one page unused, five objects leave 1,192
    // bytes of two pages, and eleven objects leave 984 bytes of four pages.
    let geometry = geometry_wasting_at_most_an_eighth(1400, u8::MAX).unwrap();
    assert_eq!((geometry.order().get(), geometry.objects(), geometry.waste()), (2, 11, 984));
    let bounded = geometry_wasting_at_most_an_eighth(1400, 1).unwrap();
    assert_eq!((bounded.order().get(), bounded.objects()), (1, 5));
    assert_eq!(geometry_wasting_at_most_an_eighth(5000, 0).unwrap().order().get(), 1, "one object must fit");
}

/// A simple implementation of the paper's rules, with which the tests compare the model.
pub(in crate::models) struct Rules {
    pub(in crate::models) free: Free,
    partial: Vec<u64>,
    empty: Vec<u64>,
}

impl Rules {
    pub(in crate::models) fn new(per_slab: u16) -> Self {
        Self { free: Free::new(per_slab), partial: vec![], empty: vec![] }
    }
}

impl Shadow for Rules {
    fn alloc(&mut self, _: usize) -> ObjectPlace {
        if self.partial.is_empty() {
            let slab = if self.empty.is_empty() { self.free.make() } else { self.empty.remove(0) };
            self.partial.push(slab);
        }
        let slab = self.partial[0];
        let object = self.free.take(slab);
        if self.free.of(slab) == 0 {
            self.partial.remove(0);
        }
        object
    }
    fn free(&mut self, _: usize, object: ObjectPlace) {
        let slab = object.0;
        let full = self.free.of(slab) == 0;
        self.free.put(object);
        if self.free.is_empty(slab) {
            self.partial.retain(|partial| *partial != slab);
            self.empty.push(slab);
        } else if full {
            self.partial.insert(0, slab);
        }
    }
    fn shrink(&mut self) {
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
    fn bonwick94_model_follows_its_rules(steps in steps(), size in 400..5000_u32) {
        agrees::<Bonwick94>(size, Knobs::default(), steps, |per_slab| Box::new(Rules::new(per_slab)))?;
    }
}
