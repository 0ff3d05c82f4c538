use super::*;
use crate::testing::{CPUS, ObjectPlace, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;

/// Runs a script on a cache with four objects per slab and two objects per magazine.
fn play(play: impl FnOnce(&mut Script<'_, Magazines01>)) {
    script(1024, Knobs { magsize: Some(2) }, |script: &mut Script<'_, Magazines01>| {
        assert_eq!(script.per_slab(), 4);
        play(script);
    });
}

#[test]
fn allocations_do_not_fill_magazines() {
    play(|script| {
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((1, 1), &[CostEvent::Made, CostEvent::Refill(1)][..])
        );
        script.alloc(0, 1);
        assert_eq!((script.counts(), script.cost_events()), ((1, 2), &[CostEvent::Refill(1)][..]));
    });
}

#[test]
fn freed_objects_fill_magazines_in_lifo_order() {
    play(|script| {
        script.alloc(0, 4);
        let place = script.place(2);
        script.free(0, [0]);
        assert_eq!(script.cost_events(), [CostEvent::Exchange], "the new magazine must come from the depot");
        script.free(0, [1]);
        assert_eq!(script.cost_events(), []);
        script.free(0, [2]);
        assert_eq!((script.counts(), script.cost_events()), ((1, 4), &[CostEvent::Exchange][..]));
        script.alloc(0, 1);
        assert_eq!((script.place(4), script.cost_events()), (place, &[][..]));
    });
}

#[test]
fn full_magazine_moves_from_one_cpu_to_another() {
    play(|script| {
        script.alloc(0, 8);
        let place = script.place(3);
        // Objects 6 and 7 are in the loaded magazine, and objects 4 and 5 are in the previous magazine. The
        // depot got objects 0 and 1 first, and then objects 2 and 3.
        script.free(0, 0..8);
        script.alloc(1, 1);
        assert_eq!((script.place(8), script.cost_events()), (place, &[CostEvent::Exchange][..]));
    });
}

#[test]
fn alternating_operations_at_a_magazine_boundary_avoid_the_depot() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, 0..8);
        script.alloc(0, 3);
        for _ in 0..6 {
            let number = script.numbers() - 1;
            script.free(0, [number]);
            assert_eq!(script.cost_events(), []);
            script.alloc(0, 1);
            assert_eq!(script.cost_events(), []);
        }
    });
}

#[test]
fn shrink_empties_cpus_and_depot() {
    play(|script| {
        script.alloc(0, 9);
        script.free(0, 0..8);
        assert_eq!((script.shrink(), script.counts()), ((8, 2), (1, 1)));
    });
}

#[test]
fn without_contention_magazines_keep_their_size() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, 0..8);
        script.wait(60);
        assert_eq!(script.counts(), (2, 8));
        script.alloc(1, 2);
        script.free(1, [8, 9]);
        assert_eq!(script.cost_events(), [], "the magazine still has room for two");
    });
}

#[test]
fn magazine_capacity_falls_with_object_size() {
    let of = |size| (sizes(size).first, sizes(size).largest);
    assert_eq!(
        [8, 64, 65, 256, 257, 512, 1024, 3200, 3201, 65_536].map(of),
        [(15, 143), (15, 143), (7, 143), (7, 143), (3, 143), (3, 95), (3, 63), (3, 47), (1, 47), (1, 1)]
    );
}

type Magazine = Vec<ObjectPlace>;

/// A simple implementation of the paper's rules, with which the tests compare the model.
struct Rules {
    /// The loaded and the previous magazine of each CPU. The value is `None` if the CPU lacks the magazine.
    cpus: Vec<[Option<Magazine>; 2]>,
    full: Vec<Magazine>,
    /// The number of empty magazines in the depot.
    empty: usize,
    size: usize,
    slabs: bonwick94::tests::Rules,
}

impl Rules {
    fn exchange(&mut self, cpu: usize, magazine: Magazine) {
        let [loaded, previous] = &mut self.cpus[cpu];
        let previous = std::mem::replace(previous, loaded.replace(magazine));
        match previous {
            Some(previous) if previous.is_empty() => self.empty += 1,
            Some(previous) => self.full.push(previous),
            None => {}
        }
    }
}

impl Shadow for Rules {
    fn alloc(&mut self, cpu: usize) -> ObjectPlace {
        for _ in 0..2 {
            let [loaded, previous] = &mut self.cpus[cpu];
            if let Some(object) = loaded.as_mut().and_then(Vec::pop) {
                return object;
            }
            if previous.as_ref().is_some_and(|previous| !previous.is_empty()) {
                std::mem::swap(loaded, previous);
            } else if let Some(full) = self.full.pop() {
                self.exchange(cpu, full);
            }
        }
        self.cpus[cpu][0].as_mut().and_then(Vec::pop).unwrap_or_else(|| self.slabs.alloc(cpu))
    }
    fn free(&mut self, cpu: usize, object: ObjectPlace) {
        let size = self.size;
        let has_room =
            |magazine: &Option<Vec<_>>| magazine.as_ref().is_some_and(|rounds| rounds.len() < size);
        let [loaded, previous] = &mut self.cpus[cpu];
        if !has_room(loaded) {
            if has_room(previous) {
                std::mem::swap(loaded, previous);
            } else {
                // Takes an empty magazine from the depot, or creates one.
                self.empty = self.empty.saturating_sub(1);
                self.exchange(cpu, vec![]);
            }
        }
        self.cpus[cpu][0].as_mut().unwrap().push(object);
    }
    fn shrink(&mut self) {
        let magazines = self.cpus.iter_mut().flat_map(|cpu| cpu.iter_mut().filter_map(Option::take));
        let magazines: Vec<_> = magazines.chain(self.full.drain(..)).collect();
        self.empty = 0;
        magazines.into_iter().flatten().for_each(|object| self.slabs.free(0, object));
        self.slabs.shrink();
    }
    fn slabs(&self) -> u64 {
        self.slabs.slabs()
    }
    fn active(&self) -> u64 {
        self.slabs.active()
    }
}

proptest! {
    #[test]
    fn magazine_model_follows_the_papers_rules(steps in steps(), size in 400..5000_u32, magsize in 1..9_usize) {
        agrees::<Magazines01>(size, Knobs { magsize: Some(magsize) }, steps, |per_slab| {
            Box::new(Rules {
                cpus: vec![[None, None]; CPUS as usize],
                full: vec![],
                empty: 0,
                size: magsize,
                slabs: bonwick94::tests::Rules::new(per_slab),
            })
        })?;
    }
}
