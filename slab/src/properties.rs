//! Property tests against shadow models: the lists of a node, and caches on simulated CPUs.

use crate::geometry::{Geometry, OrderRule};
use crate::ground::Ground;
use crate::node::{Node, Place, State, Unlisted};
use crate::slab::Fill;
use crate::subsystem::{Config, Core};
use crate::{AllocError, Gfp, KmemCache, Magazines};
use core::ptr::NonNull;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uslab_buddy::{Door, Order, PageAllocator, PageConfig, Pfn};
use uslab_magazine::{Cpus, on_cpu};

/// So much memory for simulated CPUs, from the heap, none of it in reserve.
fn pages(cpus: u32, nodes: u32, bytes: usize) -> PageConfig {
    let mut config = PageConfig::default_for(Cpus::simulated(cpus, nodes).unwrap()).limit(bytes);
    config.min_free_kib = Some(0);
    config.door = Door::Heap;
    config
}

// ---- the lists of a node ----

#[derive(Clone, Debug)]
enum ListStep {
    Add { taken: usize },
    Take { max: usize },
    Give { picks: Vec<usize> },
    GiveFree { pick: usize },
    Shrink,
    DiscardEmpty,
}

fn list_steps() -> impl Strategy<Value = Vec<ListStep>> {
    let step = prop_oneof![
        3 => (0..40_usize).prop_map(|taken| ListStep::Add { taken }),
        6 => (1..40_usize).prop_map(|max| ListStep::Take { max }),
        6 => prop::collection::vec(any::<usize>(), 1..40).prop_map(|picks| ListStep::Give { picks }),
        1 => any::<usize>().prop_map(|pick| ListStep::GiveFree { pick }),
        1 => Just(ListStep::Shrink),
        1 => Just(ListStep::DiscardEmpty),
    ];
    prop::collection::vec(step, 1..60)
}

/// A node, and beside it which objects of which slab are out.
struct Lists {
    ground: Ground,
    geometry: Geometry,
    min_partial: usize,
    node: Node,
    shadow: BTreeMap<u32, BTreeSet<usize>>,
}

impl Lists {
    fn new(size: usize, order: u8, min_partial: usize) -> Self {
        let pages = PageAllocator::new(pages(1, 1, 8 << 20)).unwrap();
        Self {
            ground: Ground::new(pages, Door::Heap, &crate::Faults::default()).unwrap(),
            geometry: Geometry::new(
                size,
                8,
                &OrderRule { min_order: order, max_order: order, ..OrderRule::for_cpus(2) },
            )
            .unwrap(),
            min_partial,
            node: Node::default(),
            shadow: BTreeMap::new(),
        }
    }
    fn order(&self) -> Order {
        self.geometry.order()
    }
    fn add(&mut self, taken: usize) {
        let flags = if self.order() > Order::ZERO { Gfp::COMP } else { Gfp::empty() };
        let slab = self.ground.pages.alloc(self.order(), flags, None).unwrap();
        let mut out = BTreeSet::new();
        // SAFETY: the block is new and only this test knows it.
        unsafe {
            assert!(self.ground.slab(slab).set_up(self.geometry.objects()));
            self.ground.slab(slab).take(taken, |index| assert!(out.insert(index)));
            self.node.add(&self.ground, slab).unwrap();
        }
        assert_eq!(out.len(), taken.min(self.geometry.objects()));
        self.shadow.insert(slab.get(), out);
    }
    fn take(&mut self, max: usize) {
        let free: usize = self.shadow.values().map(|out| self.geometry.objects() - out.len()).sum();
        let mut taken = Vec::new();
        let count = self.node.take(&self.ground, max, |place| taken.push(place));
        assert_eq!(
            (count, taken.len()),
            (max.min(free), max.min(free)),
            "everything that is free can be taken"
        );
        let mut runs: Vec<u32> = taken.iter().map(|place| place.slab.get()).collect();
        runs.dedup();
        let slabs: BTreeSet<u32> = runs.iter().copied().collect();
        assert_eq!(runs.len(), slabs.len(), "objects of one slab come together");
        let fullness = |slab: &u32| match self.state(*slab).0 {
            State::Partial(band) => band + 1,
            State::Empty | State::Full => 0,
        };
        let best = self.shadow.keys().map(fullness).max().unwrap_or(0);
        let ranks: Vec<usize> = runs.iter().map(fullness).collect();
        assert!(ranks.first().is_none_or(|first| *first == best), "the fullest come first, empty ones last");
        assert!(ranks.is_sorted_by(|a, b| a >= b), "the fullest come first, empty ones last");
        for place in taken {
            assert!(self.shadow.get_mut(&place.slab.get()).unwrap().insert(place.index), "{place:?} twice");
        }
    }
    /// Gives places back; those that are free already are refused.
    fn give(&mut self, places: &[Place]) {
        let (mut unlisted, mut refused) = (Unlisted::default(), Vec::new());
        let mut expected = Vec::new();
        for place in places {
            let out = self.shadow.get_mut(&place.slab.get()).unwrap();
            if !out.remove(&place.index) {
                expected.push(*place);
            }
        }
        // SAFETY: all slabs of the shadow are listed, and those that fall empty are unlisted at the end only.
        unsafe {
            self.node.give(&self.ground, self.min_partial, places.iter().copied(), &mut unlisted, |place| {
                refused.push(place);
            });
        }
        assert_eq!(refused, expected);
        self.release(unlisted);
    }
    fn release(&mut self, mut unlisted: Unlisted) {
        while let Some(slab) = unlisted.pop(&self.ground) {
            let out = self.shadow.remove(&slab.get()).expect("unlisted once");
            assert!(out.is_empty(), "a slab with objects out was given up");
            // SAFETY: allocated in `add` with this order, and on no list any more.
            unsafe { self.ground.pages.free(slab, self.order()) };
        }
    }
    /// Objects that are out, as places.
    fn out(&self) -> Vec<Place> {
        let places = |(slab, out): (&u32, &BTreeSet<usize>)| {
            let slab = Pfn::new(*slab);
            out.iter().map(move |&index| Place { slab, index }).collect::<Vec<_>>()
        };
        self.shadow.iter().flat_map(places).collect()
    }
    /// What a slab should be, by the shadow.
    fn state(&self, slab: u32) -> (State, Fill) {
        let fill = Fill { inuse: self.shadow[&slab].len() as u16, objects: self.geometry.objects() as u16 };
        (State::from(fill), fill)
    }
    /// Each slab is on exactly the list that the shadow's fill asks for, and nothing else is listed.
    fn check(&self) {
        let mut listed = BTreeMap::new();
        let count = self.node.walk(&self.ground, |slab, state, fill, agrees| {
            assert!(agrees, "head and bitmap disagree");
            assert!(listed.insert(slab.get(), (state, fill)).is_none(), "page {slab} is listed twice");
        });
        let expected: BTreeMap<_, _> = self.shadow.keys().map(|slab| (*slab, self.state(*slab))).collect();
        assert_eq!(listed, expected);
        let out: usize = self.shadow.values().map(BTreeSet::len).sum();
        assert_eq!((count.slabs(), count.inuse), (self.shadow.len() as u64, out as u64));
        assert_eq!(count.objects as usize, self.shadow.len() * self.geometry.objects());
    }
    /// After shrinking: in each band, slabs with few free objects come by how few.
    fn check_sorted(&self) {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        self.node.walk(&self.ground, |_, state, fill, _| {
            assert_ne!(state, State::Empty);
            if let State::Partial(band) = state {
                let free = usize::from(fill.objects - fill.inuse).min(33);
                let before = last.insert(band, free).unwrap_or(0);
                assert!(before <= free, "band {band}: {before} free before {free}");
            }
        });
    }
}

proptest! {
    /// S1, in one thread: each slab is on exactly the list its state says, after any mix of steps.
    #[test]
    fn lists_against_a_shadow(
        // Bitmaps of 8, 1, 1, 1, 1, 4 and 5 words: the last that a frame holds, and the first that it does not.
        (size, order) in prop::sample::select(vec![
            (8_usize, 0_u8), (64, 0), (500, 1), (2048, 0), (4096, 0), (32, 1), (56, 2),
        ]),
        min_partial in 0..4_usize,
        steps in list_steps(),
    ) {
        let mut lists = Lists::new(size, order, min_partial);
        for step in steps {
            match step {
                ListStep::Add { taken } if lists.shadow.len() < 30 => lists.add(taken),
                ListStep::Add { .. } => {}
                ListStep::Take { max } => lists.take(max),
                ListStep::Give { picks } => {
                    let mut out = lists.out();
                    let places: Vec<_> = picks
                        .into_iter()
                        .map_while(|pick| (!out.is_empty()).then(|| out.swap_remove(pick % out.len())))
                        .collect();
                    lists.give(&places);
                }
                ListStep::GiveFree { pick } => {
                    let slabs: Vec<_> = lists.shadow.keys().copied().collect();
                    if let Some(&slab) = slabs.get(pick % slabs.len().max(1)) {
                        let place = Place { slab: Pfn::new(slab), index: pick % lists.geometry.objects() };
                        // A free object, or one that is out and then free: the second is refused either way.
                        if lists.shadow[&slab].len() > 1 || !lists.shadow[&slab].contains(&place.index) {
                            lists.give(&[place, place]);
                        }
                    }
                }
                ListStep::Shrink => {
                    let mut unlisted = Unlisted::default();
                    lists.node.shrink(&lists.ground, &mut unlisted);
                    lists.release(unlisted);
                    lists.check_sorted();
                }
                ListStep::DiscardEmpty => {
                    let mut unlisted = Unlisted::default();
                    lists.node.discard_empty(&lists.ground, &mut unlisted);
                    lists.release(unlisted);
                    prop_assert!(lists.shadow.values().all(|out| !out.is_empty()));
                }
            }
            lists.check();
        }
    }
}

// ---- caches on simulated CPUs ----

#[derive(Clone, Debug)]
enum Step {
    Alloc { cpu: u32, cache: usize },
    Free { cpu: u32, pick: usize },
    Bulk { cpu: u32, cache: usize, n: usize },
    FreeMany { cpu: u32, n: usize },
    Node { cpu: u32, cache: usize, node: u32, strict: bool },
    Shrink { cache: usize },
    Reap,
    Drain { cpu: u32 },
}

const CPUS: u32 = 4;
const CACHES: usize = 2;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (cpu, cache) = (0..CPUS, 0..CACHES);
    let step = prop_oneof![
        8 => (cpu.clone(), cache.clone()).prop_map(|(cpu, cache)| Step::Alloc { cpu, cache }),
        8 => (cpu.clone(), any::<usize>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        3 => (cpu.clone(), cache.clone(), 0..20_usize).prop_map(|(cpu, cache, n)| Step::Bulk { cpu, cache, n }),
        3 => (cpu.clone(), 0..30_usize).prop_map(|(cpu, n)| Step::FreeMany { cpu, n }),
        2 => (cpu.clone(), cache.clone(), 0..2_u32, any::<bool>())
            .prop_map(|(cpu, cache, node, strict)| Step::Node { cpu, cache, node, strict }),
        1 => cache.prop_map(|cache| Step::Shrink { cache }),
        1 => Just(Step::Reap),
        1 => cpu.prop_map(|cpu| Step::Drain { cpu }),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    caches: [KmemCache; CACHES],
    /// Which objects are out, and of which cache.
    live: BTreeMap<NonNull<u8>, usize>,
    core: Arc<Core>,
}

impl World {
    fn new(nodes: u32, size: usize, magazines: Magazines, limit: u32) -> Self {
        let config = Config { check_frees: true, magazines, ..Config::new(pages(CPUS, nodes, 1 << 20)) };
        let core = Core::new(config).unwrap();
        let cache = |name: &str, size| KmemCache::builder(name, size).limit(limit).build_on(&core).unwrap();
        Self { caches: [cache("a", size), cache("b", 1000)], live: BTreeMap::new(), core }
    }
    fn got(&mut self, cache: usize, object: NonNull<u8>) {
        let size = self.caches[cache].geometry().stride();
        let start = object.addr().get();
        assert!(start.is_multiple_of(8));
        if let Some((below, other)) = self.live.range(..=object).next_back() {
            let end = below.addr().get() + self.caches[*other].geometry().stride();
            assert!(end <= start, "{object:?} lies in another object");
        }
        if let Some((above, _)) = self.live.range(object..).next() {
            assert!(start + size <= above.addr().get(), "{object:?} lies in another object");
        }
        assert!(self.live.insert(object, cache).is_none(), "{object:?} handed out twice");
    }
    fn failed(&self, cache: usize, error: AllocError, wanted: usize) {
        match error {
            // On one node a limit is met only when nothing is free: what CPUs keep was called in. (On two, bulk and
            // strict requests may leave objects of the other one.)
            AllocError::CacheLimit { slabs } => {
                let info = self.caches[cache].info();
                assert_eq!(u64::from(slabs), info.slabs, "at the limit");
                if wanted == 1 && self.core.cpus.nodes() == 1 {
                    assert_eq!(info.used, info.objects, "no object was left");
                }
            }
            AllocError::Memory(_) => {}
            error => panic!("{error}"),
        }
    }
    fn free(&mut self, pick: usize) {
        if let Some((&object, &cache)) = self.live.iter().nth(pick % self.live.len().max(1)) {
            self.live.remove(&object);
            // SAFETY: out, of this cache, and not any more in `live`.
            unsafe { self.caches[cache].free(object) };
        }
    }
    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { cpu, cache } => {
                on_cpu(cpu);
                match self.caches[cache].alloc(Gfp::ZERO) {
                    Ok(object) => self.got(cache, object),
                    Err(error) => self.failed(cache, error, 1),
                }
            }
            Step::Free { cpu, pick } => {
                on_cpu(cpu);
                self.free(pick);
            }
            Step::Bulk { cpu, cache, n } => {
                on_cpu(cpu);
                let mut out = vec![None; n];
                match self.caches[cache].alloc_bulk(Gfp::KERNEL, &mut out) {
                    Ok(()) => {
                        out.into_iter().for_each(|object| self.got(cache, object.expect("all or nothing")))
                    }
                    Err(error) => {
                        assert!(out.iter().all(Option::is_none), "all or nothing");
                        self.failed(cache, error, n);
                    }
                }
            }
            Step::FreeMany { cpu, n } => {
                on_cpu(cpu);
                (0..n).for_each(|i| self.free(i * 7));
            }
            Step::Node { cpu, cache, node, strict } => {
                on_cpu(cpu);
                let gfp = if strict { Gfp::THIS_NODE } else { Gfp::KERNEL };
                match self.caches[cache].alloc_node(gfp, node % self.core.cpus.nodes()) {
                    Ok(object) => {
                        let pages = &self.core.ground.pages;
                        let on = pages.node_of(pages.pfn_of(object.as_ptr()).unwrap());
                        assert!(!strict || on == node % self.core.cpus.nodes());
                        self.got(cache, object);
                    }
                    Err(error) => self.failed(cache, error, 2),
                }
            }
            Step::Shrink { cache } => {
                self.caches[cache].shrink();
                let info = self.caches[cache].info();
                assert_eq!((info.empty, info.in_magazines, info.in_depot), (0, 0, 0));
            }
            Step::Reap => _ = self.caches.each_ref().map(KmemCache::reap),
            Step::Drain { cpu } => self.caches.iter().for_each(|cache| cache.drain(cpu..cpu + 1)),
        }
    }
    fn check(&self) {
        let census = self.core.check().unwrap();
        assert_eq!(census.used, self.live.len() as u64);
        let held = census.used + census.in_magazines + census.in_depot + census.free_in_slabs;
        assert_eq!(census.objects, held);
    }
}

proptest! {
    /// Caches against a shadow that knows what is out: nothing twice, nothing overlapping, nothing lost.
    #[test]
    fn caches_against_a_shadow(
        nodes in 1..=2_u32,
        size in prop::sample::select(vec![8_usize, 200, 2048, 4096]),
        magazines in prop::sample::select(vec![
            Magazines::BySize,
            Magazines::Off,
            Magazines::Sized { capacity: 1, stock: 0, depot_limit: 0 },
            Magazines::Sized { capacity: 3, stock: 1, depot_limit: 2 },
        ]),
        limit in 1..6_u32,
        steps in steps(),
    ) {
        let mut world = World::new(nodes, size, magazines, limit);
        for step in steps {
            world.step(step);
            world.check();
        }
        (0..world.live.len()).for_each(|_| world.free(0));
        world.caches.iter().for_each(|cache| _ = cache.shrink());
        world.core.ground.pages.release();
        world.check();
        let pages = world.core.ground.pages.info();
        prop_assert_eq!(pages.pages_not_in_maximal_blocks(), 0);
        prop_assert_eq!(world.core.check().unwrap().slabs, 0);
    }
}
