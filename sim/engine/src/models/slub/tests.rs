//! Tests of the model: scripts whose results were worked out by hand, and comparisons with a simple implementation that
//! tracks each object.

use super::*;
use crate::design::{At, Design};
use crate::model::Model;
use crate::pages::Pages;
use crate::stream::Kind;
use crate::testing::{CPUS, Free, ObjectPlace, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The object size in bytes, at which a slab of the largest order holds eight objects.
const SIZE: u32 = 4096;

fn knobs(cpu_partial: u32, min_partial: usize) -> Knobs {
    Knobs { cpu_partial: Some(cpu_partial), min_partial: Some(min_partial), ..Knobs::default() }
}
fn play(cpu_partial: u32, min_partial: usize, play: impl FnOnce(&mut Script<'_, Slub>)) {
    script(SIZE, knobs(cpu_partial, min_partial), |script: &mut Script<'_, Slub>| {
        assert_eq!(script.per_slab(), 8);
        play(script);
    });
}

#[test]
fn objects_of_a_cpu_slab_count_as_active() {
    play(0, 5, |script| {
        script.alloc(0, 1);
        assert_eq!(script.counts(), (1, 8), "the seven free objects of the current slab count as active");
        script.alloc(0, 7);
        assert_eq!(script.counts(), (1, 8));
        script.alloc(0, 1);
        assert_eq!(script.counts(), (2, 16));
        assert_eq!(script.slab_of(0), script.slab_of(7));
        assert_ne!(script.slab_of(0), script.slab_of(8));
    });
}

#[test]
fn remotely_freed_objects_in_the_current_slab_serve_first() {
    play(0, 5, |script| {
        script.alloc(0, 8);
        script.free(1, [2, 3]);
        script.alloc(0, 2);
        assert_eq!(script.counts(), (1, 8), "the two objects that CPU 1 freed");
        script.alloc(0, 1);
        assert_eq!(script.counts(), (2, 16));
    });
}

#[test]
fn remote_free_adds_a_full_slab_to_cpu_partial() {
    // A slab has eight objects, so a CPU may keep one partial slab: twice four objects, divided by eight.
    play(4, 5, |script| {
        script.alloc(0, 25);
        assert_eq!(script.counts(), (4, 32));
        // The slab of objects 0 to 7 is full and not current. CPU 1 gets the slab, and its free objects stay active.
        script.free(1, [0]);
        assert_eq!(script.counts(), (4, 32));
        // The slab of objects 8 to 15 joins CPU 1's partial slabs, too. The list had room for one slab: the
        // older slab moves to the node, where its free object shows.
        script.free(1, [8]);
        assert_eq!(script.counts(), (4, 31));
        // CPU 1 first allocates from its own list.
        script.alloc(1, 1);
        assert_eq!(script.slab_of(25), script.slab_of(9));
        // CPU 1 then allocates from the node.
        script.alloc(1, 1);
        assert_eq!((script.slab_of(26), script.counts()), (script.slab_of(1), (4, 32)));
    });
}

#[test]
fn cpu_keeps_one_partial_slab_if_cpu_partial_is_zero() {
    play(0, 5, |script| {
        script.alloc(0, 17);
        script.free(1, [0]);
        assert_eq!(script.counts(), (3, 24), "CPU 1 has the slab");
        script.free(1, [8]);
        assert_eq!(script.counts(), (3, 23), "CPU 1 has another slab now");
    });
}

#[test]
fn slub_frees_empty_slabs_beyond_min_partial() {
    play(0, 2, |script| {
        script.alloc(0, 33);
        // CPU 0 has four full slabs and a current slab. Each slab becomes empty on the CPU's list, and leaves the list
        // for the next slab.
        script.free(0, 0..8);
        assert_eq!(script.counts(), (5, 40));
        script.free(0, 8..16);
        assert_eq!(script.counts(), (5, 32), "the first slab on the node's list");
        script.free(0, 16..24);
        assert_eq!(script.counts(), (5, 24), "the second slab");
        script.free(0, 24..25);
        assert_eq!(script.counts(), (4, 16), "the third slab was freed");
    });
    play(0, 0, |script| {
        script.alloc(0, 17);
        script.free(1, [0, 8]);
        assert_eq!(script.counts(), (3, 23));
        script.free(1, 1..8);
        assert_eq!(script.counts(), (2, 16), "the slab of the node became empty");
    });
}

#[test]
fn cpu_takes_extra_partial_slabs_from_its_node() {
    // A CPU has room for two partial slabs. The CPU takes one slab as its current slab, and two further
    // slabs: one more than half of its limit of two.
    play(8, 5, |script| {
        script.alloc(0, 48);
        script.free(1, [0, 8, 16, 24, 32]);
        // CPU 1 holds the last slab; the four earlier slabs moved to the node in two drains.
        assert_eq!(script.counts(), (6, 48 - 4));
        script.alloc(0, 1);
        assert_eq!(script.counts(), (6, 48 - 1), "one slab serves, and two are kept");
    });
}

#[test]
fn shrink_sorts_partial_slabs_fullest_first() {
    play(4, 5, |script| {
        script.alloc(0, 32);
        script.alloc(1, 8);
        script.free(0, (8..12).chain(16..18).chain(32..40));
        let gone = script.shrink();
        assert_eq!(gone, (0, 1), "the slab of CPU 1 is empty");
        assert_eq!(script.counts(), (4, 32 - 6));
        script.alloc(1, 1);
        assert_eq!(
            script.slab_of(40),
            script.slab_of(18),
            "a slab with two free objects must stay below the limit of four"
        );
    });
}

#[test]
fn cpu_allocates_first_from_slabs_that_existed_before_the_stream() {
    let pages = Pages::new(CPUS).unwrap();
    let mut model = Model::<Slub>::new(&pages, knobs(8, 5)).unwrap();
    model.learn(&CacheInfo::new("cache", Kind::Named, SIZE)).unwrap();
    let at = |cpu| At::new(cpu, 0);
    let mut page = |cpu, used, owned| {
        let objects = model.start(at(cpu), 0, used, 8 - used, owned);
        assert_eq!(objects.len(), used as usize);
        model.place(0, &objects[0]).unwrap().0
    };
    let (current, partial, shared) = (page(0, 6, true), page(0, 7, true), page(1, 5, false));
    assert_eq!(
        model.counts(0).active_objs(),
        24 - 3,
        "only the free objects of the shared slab are inactive"
    );
    let mut alloc = |cpu| {
        let object = model.alloc(at(cpu), 0, 0).unwrap();
        model.place(0, &object).unwrap().0
    };
    assert_eq!([0, 0, 0, 1].map(&mut alloc), [current, current, partial, shared]);
    assert_eq!(alloc(0), alloc(0), "a new slab");
    assert_eq!(model.counts(0).slabs(), 4);
}

#[test]
fn large_objects_bypass_slabs() {
    let pages = Pages::new(CPUS).unwrap();
    let mut slub = Model::<Slub>::new(&pages, Knobs::default()).unwrap();
    let at = |cpu| At::new(cpu, 0);
    let info = |kind, size| CacheInfo::new("node", kind, size);
    slub.learn(&info(Kind::Large, 0)).unwrap();
    let object = slub.alloc(at(2), 0, 1 << 20).unwrap();
    assert_eq!((slub.place(0, &object), slub.check(1, 0)), (None, Ok(())));
    slub.free(at(0), 0, object);
    let block = slub.alloc_pages(at(0), 3, 1).unwrap();
    assert_eq!(slub.check(0, 8), Ok(()));
    let (page, order) = slub.block(&block);
    assert_eq!(order, 3);
    let parts = slub.split_pages(block, 1);
    let places: Vec<_> = parts.iter().map(|part| slub.block(part)).collect();
    assert_eq!(places, [0, 2, 4, 6].map(|at| (page + at, 1)));
    parts.into_iter().for_each(|part| slub.free_pages(at(0), part));
    assert_eq!(slub.check(0, 0), Ok(()));
    assert!(slub.check(1, 0).unwrap_err().starts_with("objects in use: 0; expected 1"));
    assert!(slub.check(0, 1).unwrap_err().starts_with("allocated pages: 0; expected 1"));
    let error = slub.learn(&info(Kind::Named, 1 << 30)).unwrap_err().to_string();
    assert!(error.starts_with("cache node: "), "{error}");
}

/// A simple implementation of SLUB's rules, in which every object and every list is a separate value.
pub(in crate::models) struct Rules {
    room: usize,
    min_partial: usize,
    free: Free,
    /// For each current slab, the number of its free objects that its CPU may allocate.
    own: BTreeMap<usize, usize>,
    current: BTreeMap<usize, u64>,
    lists: BTreeMap<usize, Vec<u64>>,
    node: Vec<u64>,
}

impl Shadow for Rules {
    fn alloc(&mut self, cpu: usize) -> ObjectPlace {
        loop {
            let Some(slab) = self.current.get(&cpu).copied() else {
                self.find(cpu);
                continue;
            };
            let own = self.own.entry(cpu).or_default();
            if *own > 0 {
                *own -= 1;
                return self.free.take(slab);
            }
            *own = self.free.of(slab);
            if *own == 0 {
                self.current.remove(&cpu);
            }
        }
    }
    fn free(&mut self, cpu: usize, object: ObjectPlace) {
        let slab = object.0;
        self.free.put(object);
        if self.current.get(&cpu) == Some(&slab) {
            *self.own.entry(cpu).or_default() += 1;
            return;
        }
        let held = self.current.values().any(|current| *current == slab)
            || self.lists.values().any(|list| list.contains(&slab));
        if held {
            return;
        }
        match self.node.iter().position(|listed| *listed == slab) {
            Some(place) => {
                if self.free.is_empty(slab) && self.node.len() >= self.min_partial {
                    self.node.remove(place);
                    self.free.slabs.remove(&slab);
                }
            }
            None => {
                let list = self.lists.entry(cpu).or_default();
                let older = if list.len() >= self.room { std::mem::take(list) } else { vec![] };
                list.push(slab);
                older.into_iter().rev().for_each(|slab| self.give(slab, false));
            }
        }
    }
    fn shrink(&mut self) {
        for cpu in 0..CPUS as usize {
            let own = self.own.remove(&cpu).unwrap_or(0);
            if let Some(slab) = self.current.remove(&cpu)
                && self.free.of(slab) > 0
            {
                let by_others = self.free.of(slab) > own;
                self.give(slab, !by_others);
            }
            for slab in self.lists.remove(&cpu).unwrap_or_default().into_iter().rev() {
                self.give(slab, false);
            }
        }
        let (gone, mut rest): (Vec<_>, Vec<_>) =
            self.node.drain(..).partition(|slab| self.free.is_empty(*slab));
        gone.iter().for_each(|slab| _ = self.free.slabs.remove(slab));
        rest.reverse();
        rest.sort_by_key(|slab| self.free.of(*slab));
        self.node = rest;
    }
    fn slabs(&self) -> u64 {
        self.free.slabs.len() as u64
    }
    fn active(&self) -> u64 {
        let listed: usize = self.node.iter().map(|slab| self.free.of(*slab)).sum();
        self.slabs() * u64::from(self.free.per_slab) - listed as u64
    }
}

impl Rules {
    pub(in crate::models) fn new(per_slab: u16, cpu_partial: u32, min_partial: usize) -> Self {
        Self {
            room: (cpu_partial * 2).div_ceil(per_slab.into()) as usize,
            min_partial,
            free: Free::new(per_slab),
            own: BTreeMap::new(),
            current: BTreeMap::new(),
            lists: BTreeMap::new(),
            node: vec![],
        }
    }
    fn find(&mut self, cpu: usize) {
        let list = self.lists.entry(cpu).or_default();
        let slab = if let Some(slab) = list.pop() {
            slab
        } else if self.node.is_empty() {
            self.free.make()
        } else {
            let slab = self.node.remove(0);
            let more = (self.room / 2 + 1).min(self.node.len());
            list.extend(self.node.drain(..more));
            slab
        };
        self.own.insert(cpu, self.free.of(slab));
        self.current.insert(cpu, slab);
    }
    fn give(&mut self, slab: u64, in_front: bool) {
        if self.free.is_empty(slab) && self.node.len() >= self.min_partial {
            self.free.slabs.remove(&slab);
        } else {
            let place = if in_front { 0 } else { self.node.len() };
            self.node.insert(place, slab);
        }
    }
}

proptest! {
    #[test]
    fn slub_model_follows_its_rules(steps in steps(), cpu_partial in 0..20_u32, min_partial in 0..4_usize) {
        agrees::<Slub>(SIZE, knobs(cpu_partial, min_partial), steps, |per_slab| {
            Box::new(Rules::new(per_slab, cpu_partial, min_partial))
        })?;
    }
}
