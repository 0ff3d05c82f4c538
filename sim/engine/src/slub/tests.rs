//! The model on scripts whose outcome is worked out by hand, and beside a shadow that keeps every object by itself.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Objects of 1,024 bytes on a machine of one CPU lie by eight in a slab of two pages.
const PER_SLAB: u64 = 8;

fn settings(cpus: u32, cpu_partial: u32, min_partial: usize) -> Settings {
    Settings {
        cpus,
        rule: OrderRule::for_cpus(1),
        cpu_partial: Some(cpu_partial),
        min_partial: Some(min_partial),
    }
}
fn info(kind: Kind, size: u32) -> CacheInfo {
    CacheInfo { name: "node".to_owned(), kind, size, from: 0 }
}
fn at(cpu: u32) -> At {
    At { cpu, ns: 0 }
}

/// A model with one cache, and its objects by number.
struct Script {
    slub: Slub,
    objects: Vec<Option<Object>>,
}

impl Script {
    fn new(cpus: u32, cpu_partial: u32, min_partial: usize) -> Self {
        let mut slub = Slub::new(settings(cpus, cpu_partial, min_partial));
        slub.learn(&info(Kind::Named, 1024)).unwrap();
        Self { slub, objects: Vec::new() }
    }
    fn alloc(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let object = self.slub.alloc(at(cpu), 0, 0).unwrap();
            self.objects.push(Some(object));
        }
        self.check();
    }
    fn free(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("freed once");
            self.slub.free(at(cpu), 0, object);
        }
        self.check();
    }
    fn check(&self) {
        let out = self.objects.iter().flatten().count() as u64;
        assert_eq!(self.slub.check(out, 0), Ok(()));
        assert_eq!(self.slub.counts(0).used, out);
    }
    /// Slabs, and objects that count as active.
    fn counts(&self) -> (u64, u64) {
        let CacheCounts { slabs, active_objs, objects_per_slab, .. } = self.slub.counts(0);
        assert_eq!(objects_per_slab, PER_SLAB);
        (slabs, active_objs)
    }
    fn slab_of(&self, number: usize) -> u32 {
        let object = self.objects[number].as_ref().expect("in use");
        self.slub.place(0, object).expect("it lies in a slab").0
    }
}

#[test]
fn a_cpu_fills_one_slab_after_the_other_and_what_it_holds_is_active() {
    let mut script = Script::new(1, 0, 5);
    script.alloc(0, 1);
    assert_eq!(script.counts(), (1, 8), "seven of the current slab are free, and active all the same");
    script.alloc(0, 7);
    assert_eq!(script.counts(), (1, 8));
    script.alloc(0, 1);
    assert_eq!(script.counts(), (2, 16));
    assert_eq!(script.slab_of(0), script.slab_of(7));
    assert_ne!(script.slab_of(0), script.slab_of(8));
}

#[test]
fn what_others_free_to_the_current_slab_serves_before_another_slab_does() {
    let mut script = Script::new(2, 0, 5);
    script.alloc(0, 8);
    script.free(1, [2, 3]);
    script.alloc(0, 2);
    assert_eq!(script.counts(), (1, 8), "the two that CPU 1 freed");
    script.alloc(0, 1);
    assert_eq!(script.counts(), (2, 16));
}

#[test]
fn a_full_slab_goes_to_the_cpu_that_frees_to_it_and_the_list_to_the_node_when_it_is_full() {
    // Eight objects, so one partial slab for a CPU: twice four objects, by eight.
    let mut script = Script::new(2, 4, 5);
    script.alloc(0, 25);
    assert_eq!(script.counts(), (4, 32));
    // The slab of 0 to 7 is full and not current: CPU 1 gets it, and what is free in it stays active.
    script.free(1, [0]);
    assert_eq!(script.counts(), (4, 32));
    // The slab of 8 to 15 follows. The list had room for one: the older one goes to the node, where its free object shows.
    script.free(1, [8]);
    assert_eq!(script.counts(), (4, 31));
    // CPU 1 allocates: from its own list first.
    script.alloc(1, 1);
    assert_eq!(script.slab_of(25), script.slab_of(9));
    // Then from the node.
    script.alloc(1, 1);
    assert_eq!((script.slab_of(26), script.counts()), (script.slab_of(1), (4, 32)));
}

#[test]
fn without_lists_of_cpus_a_full_slab_goes_to_the_node_at_once() {
    let mut script = Script::new(2, 0, 5);
    script.alloc(0, 9);
    script.free(1, [0]);
    assert_eq!(script.counts(), (2, 15));
}

#[test]
fn empty_slabs_go_once_the_node_has_enough_without_them() {
    let mut script = Script::new(1, 0, 2);
    script.alloc(0, 33);
    // Four full slabs and a current one. Each falls empty: two stay on the list, the others go.
    script.free(0, 0..8);
    assert_eq!(script.counts(), (5, 32), "the first one on the list: the node has none beside it");
    script.free(0, 8..16);
    assert_eq!(script.counts(), (4, 24), "the second one was the second of two, and went");
    script.free(0, 16..17);
    assert_eq!(script.counts(), (4, 23));
    script.free(0, 17..24);
    assert_eq!(script.counts(), (3, 16));
}

#[test]
fn a_cpu_takes_more_slabs_of_the_node_than_it_needs() {
    // Room for two partial slabs: it takes one to serve, and two more, which is one above half of two.
    let mut script = Script::new(2, 8, 5);
    script.alloc(0, 48);
    script.free(1, [0, 8, 16, 24, 32]);
    // CPU 1 holds the last one; the four before went to the node in two drains.
    assert_eq!(script.counts(), (6, 48 - 4));
    script.alloc(0, 1);
    assert_eq!(script.counts(), (6, 48 - 1), "one serves, two are kept");
}

#[test]
fn a_shrink_leaves_full_slabs_and_partial_ones_the_fullest_first() {
    let mut script = Script::new(2, 4, 5);
    script.alloc(0, 32);
    script.alloc(1, 8);
    script.free(0, (8..12).chain(16..18).chain(32..40));
    let gone = script.slub.shrink(at(0));
    assert_eq!(gone, (0, 1), "the slab of CPU 1 is empty");
    assert_eq!(script.counts(), (4, 32 - 6));
    script.check();
    script.alloc(1, 1);
    assert_eq!(script.slab_of(40), script.slab_of(18), "two free objects are fewer than four");
}

#[test]
fn large_objects_and_pages_are_counted_and_lie_in_no_slab() {
    let mut slub = Slub::new(Settings::new(4));
    slub.learn(&info(Kind::Large, 0)).unwrap();
    let object = slub.alloc(at(3), 0, 1 << 20).unwrap();
    assert_eq!((slub.place(0, &object), slub.check(1, 0)), (None, Ok(())));
    slub.free(at(0), 0, object);
    let block = slub.alloc_pages(at(0), 3, 1).unwrap();
    assert_eq!(slub.check(0, 8), Ok(()));
    let parts = slub.split_pages(block, 1);
    assert_eq!(
        parts.iter().map(|part| slub.block(part)).collect::<Vec<_>>(),
        [(0, 1), (2, 1), (4, 1), (6, 1)]
    );
    parts.into_iter().for_each(|part| slub.free_pages(at(0), part));
    assert_eq!(slub.check(0, 0), Ok(()));
    assert!(slub.check(1, 0).unwrap_err().starts_with("objects in use: 0, not 1"));
    let error = slub.learn(&info(Kind::Named, 1 << 30)).unwrap_err().to_string();
    assert!(error.starts_with("cache node: "), "{error}");
}

/// Where an object is that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Free {
    /// Of the slab.
    Slab,
    /// Of the CPU whose current slab it is.
    Cpu,
}

/// The rules as they read, with every object and every list by itself.
#[derive(Default)]
struct Shadow {
    room: usize,
    min_partial: usize,
    /// Free objects of each slab that there is.
    slabs: BTreeMap<u32, Vec<Free>>,
    made: u32,
    current: BTreeMap<usize, u32>,
    lists: BTreeMap<usize, Vec<u32>>,
    node: Vec<u32>,
}

impl Shadow {
    fn alloc(&mut self, cpu: usize) -> u32 {
        loop {
            let Some(slab) = self.current.get(&cpu).copied() else {
                self.find(cpu);
                continue;
            };
            let free = self.slabs.get_mut(&slab).unwrap();
            if let Some(own) = free.iter().position(|free| *free == Free::Cpu) {
                free.remove(own);
                return slab;
            }
            if free.is_empty() {
                self.current.remove(&cpu);
            } else {
                free.fill(Free::Cpu);
            }
        }
    }
    fn find(&mut self, cpu: usize) {
        let list = self.lists.entry(cpu).or_default();
        let slab = if let Some(slab) = list.pop() {
            slab
        } else if self.node.is_empty() {
            self.slabs.insert(self.made, vec![Free::Slab; PER_SLAB as usize]);
            self.made += 1;
            self.made - 1
        } else {
            let slab = self.node.remove(0);
            let more = if self.room == 0 { 0 } else { (self.room / 2 + 1).min(self.node.len()) };
            list.extend(self.node.drain(..more));
            slab
        };
        self.current.insert(cpu, slab);
    }
    fn free(&mut self, cpu: usize, slab: u32) {
        let free = self.slabs.get_mut(&slab).unwrap();
        if self.current.get(&cpu) == Some(&slab) {
            return free.push(Free::Cpu);
        }
        free.push(Free::Slab);
        let held = self.current.values().any(|current| *current == slab)
            || self.lists.values().any(|list| list.contains(&slab));
        if held {
            return;
        }
        match self.node.iter().position(|listed| *listed == slab) {
            Some(place) => {
                if free.len() == PER_SLAB as usize && self.node.len() >= self.min_partial {
                    self.node.remove(place);
                    self.slabs.remove(&slab);
                }
            }
            None if self.room == 0 => self.give(slab, false),
            None => {
                let list = self.lists.entry(cpu).or_default();
                let older = if list.len() >= self.room { std::mem::take(list) } else { vec![] };
                list.push(slab);
                older.into_iter().rev().for_each(|slab| self.give(slab, false));
            }
        }
    }
    fn give(&mut self, slab: u32, in_front: bool) {
        if self.slabs[&slab].len() == PER_SLAB as usize && self.node.len() >= self.min_partial {
            self.slabs.remove(&slab);
        } else {
            let place = if in_front { 0 } else { self.node.len() };
            self.node.insert(place, slab);
        }
    }
    fn shrink(&mut self, cpus: usize) {
        for cpu in 0..cpus {
            if let Some(slab) = self.current.remove(&cpu) {
                let free = self.slabs.get_mut(&slab).unwrap();
                let others = free.contains(&Free::Slab);
                free.fill(Free::Slab);
                if !free.is_empty() {
                    self.give(slab, !others);
                }
            }
            for slab in self.lists.remove(&cpu).unwrap_or_default().into_iter().rev() {
                self.give(slab, false);
            }
        }
        let slabs = &mut self.slabs;
        self.node.retain(|slab| slabs[slab].len() < PER_SLAB as usize || slabs.remove(slab).is_none());
        self.node.sort_by_key(|slab| slabs[slab].len());
    }
    fn active(&self) -> u64 {
        let listed: usize = self.node.iter().map(|slab| self.slabs[slab].len()).sum();
        self.slabs.len() as u64 * PER_SLAB - listed as u64
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(u32),
    Free(u32, usize),
    Shrink,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0..3_u32).prop_map(Step::Alloc),
        36 => (0..3_u32, any::<usize>()).prop_map(|(cpu, pick)| Step::Free(cpu, pick)),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #[test]
    fn the_model_does_what_its_rules_say(steps in steps(), cpu_partial in 0..20_u32, min_partial in 0..4_usize) {
        let mut slub = Slub::new(settings(3, cpu_partial, min_partial));
        slub.learn(&info(Kind::Named, 1024)).unwrap();
        let room = (cpu_partial * 2).div_ceil(PER_SLAB as u32) as usize;
        let mut shadow = Shadow { room, min_partial, ..Shadow::default() };
        // Objects that are out, each with its slab in the shadow; and which page is which slab of the shadow.
        let (mut out, mut slabs) = (Vec::new(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Alloc(cpu) => {
                    let object = slub.alloc(at(cpu), 0, 0).unwrap();
                    let (page, index) = slub.place(0, &object).unwrap();
                    let slab = shadow.alloc(cpu as usize);
                    prop_assert_eq!(*slabs.entry(page).or_insert(slab), slab, "they take the same slab");
                    prop_assert!(!out.contains(&(object, page, index)), "twice");
                    out.push((object, page, index));
                }
                Step::Free(cpu, pick) if !out.is_empty() => {
                    let (object, page, _) = out.swap_remove(pick % out.len());
                    shadow.free(cpu as usize, slabs[&page]);
                    slub.free(at(cpu), 0, object);
                }
                Step::Free(..) => {}
                Step::Shrink => {
                    let before = shadow.slabs.len();
                    shadow.shrink(3);
                    prop_assert_eq!(slub.shrink(at(0)), (0, (before - shadow.slabs.len()) as u64));
                }
            }
            prop_assert_eq!(slub.check(out.len() as u64, 0), Ok(()));
            let counts = slub.counts(0);
            prop_assert_eq!((counts.slabs, counts.active_objs), (shadow.slabs.len() as u64, shadow.active()));
        }
    }
}
