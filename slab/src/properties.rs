//! Property tests with shadow models: the lists of a node, and caches on simulated CPUs.

use crate::cache::node::{
    BANDS, FreeOptions, FreedState, Node, NodeClosedError, NodeCount, ObjectIndex, State, UnlistedSlabs,
};
use crate::geometry::{Geometry, OrderRule};
use crate::memory::slab::{Constructed, Fill, MAX_INDIVIDUALLY_CONSTRUCTED};
use crate::memory::slab_memory::SlabMemory;
use crate::shadow::{Refuse, caches, memory, pages};
use crate::{Gfp, Magazines, SlabDebug};
use core::alloc::Layout;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use uslab_buddy::{Backend, Order, PAGE_SIZE, PageAllocator, PageConfig, Pfn};
use uslab_magazine::Operation;

// ---- the lists of a node ----

#[derive(Clone, Debug)]
enum ListStep {
    Add { taken: usize },
    Take { max: usize },
    Give { picks: Vec<usize>, stay: bool },
    Destruct,
    GiveFree { pick: usize },
    Shrink,
    DiscardEmpty,
    DiscardUnused { most: u64 },
}

fn list_steps() -> impl Strategy<Value = Vec<ListStep>> {
    let step = prop_oneof![
        3 => (0..40_usize).prop_map(|taken| ListStep::Add { taken }),
        6 => (1..40_usize).prop_map(|max| ListStep::Take { max }),
        6 => (prop::collection::vec(any::<usize>(), 1..40), any::<bool>()).prop_map(|(picks, stay)| ListStep::Give { picks, stay }),
        1 => Just(ListStep::Destruct),
        1 => any::<usize>().prop_map(|pick| ListStep::GiveFree { pick }),
        1 => Just(ListStep::Shrink),
        1 => Just(ListStep::DiscardEmpty),
        2 => prop_oneof![Just(u64::MAX), 1..5_u64].prop_map(|most| ListStep::DiscardUnused { most }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A node and its shadow, which records the taken objects and the constructed objects of each slab.
struct Lists {
    memory: SlabMemory,
    geometry: Geometry,
    min_partial: usize,
    node: Node,
    constructed: Constructed,
    shadow: BTreeMap<u32, BTreeSet<usize>>,
    built: BTreeMap<u32, BTreeSet<usize>>,
    /// Discarded pages of each slab, keyed by the slab's first page.
    discarded: BTreeMap<u32, BTreeSet<usize>>,
}

impl Lists {
    fn new(size: usize, order: u8, min_partial: usize) -> Self {
        let pages = PageConfig { backend: Backend::default(), ..pages(1, 1, 8 << 20) };
        let pages = PageAllocator::new(pages).unwrap();
        let rule = OrderRule { min_order: order, max_order: order, ..OrderRule::for_cpus(2) };
        let geometry = Geometry::new(size, 8, &rule).unwrap();
        Self {
            memory: SlabMemory::new(
                pages,
                &mut uslab_buddy::Reservation::none(Backend::Heap, &crate::Faults::default()),
            )
            .unwrap(),
            geometry,
            min_partial,
            node: Node::new(None, geometry),
            constructed: Constructed::Together,
            shadow: BTreeMap::new(),
            built: BTreeMap::new(),
            discarded: BTreeMap::new(),
        }
    }
    fn order(&self) -> Order {
        self.geometry.order()
    }
    fn add(&mut self, taken: usize) {
        let flags = if self.order() > Order::ZERO { Gfp::COMP } else { Gfp::empty() };
        let slab = self.memory.pages.alloc(self.order(), flags, None).unwrap();
        let mut taken_indices = BTreeSet::new();
        // SAFETY: the block is new, and only this test has it.
        unsafe {
            let new = self.memory.slab(slab);
            assert!(new.set_up(&Operation::new(), self.geometry.objects(), self.constructed));
            new.alloc_bits(taken, taken > 0, None, |index| assert!(taken_indices.insert(index)));
            self.node.add(&Operation::new(), &self.memory, slab).unwrap();
        }
        let max_objects = if self.constructs_individually() { 1 } else { self.geometry.objects() };
        assert_eq!(taken_indices.len(), taken.min(max_objects));
        taken_indices.iter().for_each(|&index| self.check_and_write_stamp(ObjectIndex { slab, index }));
        self.built.insert(slab.get(), taken_indices.clone());
        self.shadow.insert(slab.get(), taken_indices);
    }
    fn constructs_individually(&self) -> bool {
        self.constructed == Constructed::OneByOne
    }
    /// Number of a slab's free objects that are constructed.
    fn idle_objects(&self, slab: u32) -> usize {
        self.built[&slab].difference(&self.shadow[&slab]).count()
    }
    fn take(&mut self, max: usize) {
        let free: usize = self.shadow.values().map(|out| self.geometry.objects() - out.len()).sum();
        let mut taken = Vec::new();
        let (count, is_new) =
            self.node.alloc(&Operation::new(), &self.memory, max, true, |place| taken.push(place));
        assert_eq!(count, taken.len());
        if self.constructs_individually() {
            assert_eq!(count > 0, free > 0);
            let is_constructed = |place: &ObjectIndex| self.built[&place.slab.get()].contains(&place.index);
            assert!(
                taken.iter().all(|place| is_constructed(place) != is_new),
                "the bulk allocation is complete, or its slab has no free object"
            );
            assert!(!is_new || count == 1 && self.idle_objects(taken[0].slab.get()) == 0);
        } else {
            assert_eq!((count, is_new), (max.min(free), false), "every free object can be allocated");
        }
        let mut runs: Vec<u32> = taken.iter().map(|place| place.slab.get()).collect();
        runs.dedup();
        let slabs: BTreeSet<u32> = runs.iter().copied().collect();
        assert_eq!(runs.len(), slabs.len(), "objects of one slab are allocated together");
        let fullness = |slab: &u32| match self.state(*slab).0 {
            State::Partial(band) => band + 1,
            State::Empty | State::Full => 0,
        };
        let best = self.shadow.keys().map(fullness).max().unwrap_or(0);
        let ranks: Vec<usize> = runs.iter().map(fullness).collect();
        assert!(
            ranks.first().is_none_or(|first| *first == best),
            "the fullest slabs are first, and empty slabs last"
        );
        assert!(ranks.is_sorted_by(|a, b| a >= b), "the fullest slabs are first, and empty slabs last");
        for place in taken {
            assert!(self.shadow.get_mut(&place.slab.get()).unwrap().insert(place.index), "{place:?} twice");
            self.built.get_mut(&place.slab.get()).unwrap().insert(place.index);
            self.discarded.remove(&place.slab.get());
            self.check_and_write_stamp(place);
        }
    }
    /// Returns the addresses of an object's first and last byte, and the value that its user writes to both.
    fn first_and_last_byte(&self, ObjectIndex { slab, index }: ObjectIndex) -> ([*mut u8; 2], u8) {
        let at = self.geometry.offset(index);
        let base = self.memory.pages.address(slab).as_ptr();
        let last = at + self.geometry.object_size() - 1;
        ([at, last].map(|at| base.wrapping_add(at)), (slab.get() as usize + index) as u8 | 1)
    }
    fn check_and_write_stamp(&self, place: ObjectIndex) {
        let (ends, stamp) = self.first_and_last_byte(place);
        // SAFETY: the object is in use, so the test owns its bytes.
        ends.into_iter().for_each(|byte| unsafe { byte.write(stamp) });
    }
    /// Returns the pages of a slab on which no object is in use.
    fn unused_pages(&self, slab: u32) -> BTreeSet<usize> {
        let mut pages: BTreeSet<usize> = (0..self.order().pages() as usize).collect();
        let bytes =
            |index| self.geometry.offset(index)..self.geometry.offset(index) + self.geometry.object_size();
        for bytes in self.shadow[&slab].iter().map(|&index| bytes(index)) {
            (bytes.start / PAGE_SIZE..=(bytes.end - 1) / PAGE_SIZE).for_each(|page| _ = pages.remove(&page));
        }
        // Slabs of more than 16 pages discard their pages in parts.
        let part = (self.order().pages() as usize).div_ceil(16);
        let is_aligned_part =
            |page: &usize| (page / part * part..(page / part + 1) * part).all(|page| pages.contains(&page));
        pages.iter().copied().filter(is_aligned_part).collect()
    }
    fn discard_unused(&mut self, most: u64) {
        let mut all = 0;
        // Full slabs and one-page slabs in use have no unused pages.
        let slabs = self.shadow.keys().filter(|slab| match self.state(**slab).0 {
            State::Empty => true,
            State::Partial(_) => self.order() > Order::ZERO,
            State::Full => false,
        });
        let unused: BTreeMap<_, _> = slabs.map(|slab| (*slab, self.unused_pages(*slab))).collect();
        unused
            .iter()
            .for_each(|(slab, pages)| all += pages.len() - self.discarded.get(slab).map_or(0, BTreeSet::len));
        // SAFETY: no free object is constructed.
        let pages = unsafe { self.node.discard_unused(&self.memory, most) };
        let bounds = most.min(all as u64)..most.saturating_add(self.order().pages().into());
        assert!(bounds.contains(&pages), "{pages} of {all} pages, but {most} were requested");
        if pages == all as u64 {
            self.discarded.extend(unused.into_iter().filter(|(_, pages)| !pages.is_empty()));
        } else {
            // The node chooses the slabs, and discards all unused pages of a chosen slab.
            for (slab, unused) in unused {
                // SAFETY: the test has no other thread.
                let now = unsafe { self.memory.slab(Pfn::new(slab)).discarded() } as usize;
                let before = self.discarded.get(&slab).map_or(0, BTreeSet::len);
                assert!(now == before || now == unused.len());
                if now > before {
                    self.discarded.insert(slab, unused);
                }
            }
        }
    }
    fn destruct(&mut self) {
        let idle: usize = self.shadow.keys().map(|slab| self.idle_objects(*slab)).sum();
        let mut destructed = 0;
        for state in (0..BANDS).map(State::Partial).chain([State::Empty]) {
            let mut visits = self.node.len_of(state);
            let mut indices = Vec::new();
            while let Some(slab) =
                self.node.take_constructed(&self.memory, state, &mut visits, |index| indices.push(index))
            {
                let places: Vec<_> = indices.drain(..).map(|index| ObjectIndex { slab, index }).collect();
                for place in &places {
                    assert!(self.built[&slab.get()].contains(&place.index));
                    assert!(
                        self.shadow.get_mut(&slab.get()).unwrap().insert(place.index),
                        "{place:?} is allocated"
                    );
                }
                destructed += places.len();
                self.give(&places, FreedState::Destructed);
            }
        }
        assert_eq!(destructed, if self.constructs_individually() { idle } else { 0 });
    }
    /// Frees objects; the node must refuse objects that are already free.
    fn give(&mut self, places: &[ObjectIndex], back: FreedState) {
        let (mut unlisted, mut refused) = (UnlistedSlabs::default(), Vec::new());
        let mut expected = Vec::new();
        for place in places {
            let taken_indices = self.shadow.get_mut(&place.slab.get()).unwrap();
            if !taken_indices.remove(&place.index) {
                expected.push(*place);
            }
            if back != FreedState::Constructed {
                self.built.get_mut(&place.slab.get()).unwrap().remove(&place.index);
            }
        }
        // SAFETY: all slabs of the shadow are listed, and empty slabs are unlisted only at the end.
        unsafe {
            let op = &Operation::new();
            self.node.free(
                op,
                &self.memory,
                FreeOptions { slabs: self.min_partial, objects: back },
                places.iter().copied(),
                &mut unlisted,
                |place| {
                    refused.push(place);
                },
            );
        }
        assert_eq!(refused, expected);
        self.release(unlisted);
    }
    fn release(&mut self, mut unlisted: UnlistedSlabs) {
        while let Some(slab) = unlisted.pop(&self.memory) {
            let taken_indices = self.shadow.remove(&slab.get()).expect("the slab must be unlisted once");
            assert!(taken_indices.is_empty(), "a slab with allocated objects was freed");
            self.built.remove(&slab.get());
            self.discarded.remove(&slab.get());
            // SAFETY: `add` allocated the slab with this order, and the slab is on no list.
            unsafe { self.memory.pages.free(slab, self.order()) };
        }
    }
    fn objects_in_use(&self) -> Vec<ObjectIndex> {
        let places = |(slab, out): (&u32, &BTreeSet<usize>)| {
            let slab = Pfn::new(*slab);
            out.iter().map(move |&index| ObjectIndex { slab, index }).collect::<Vec<_>>()
        };
        self.shadow.iter().flat_map(places).collect()
    }
    fn state(&self, slab: u32) -> (State, Fill) {
        let fill = Fill { inuse: self.shadow[&slab].len() as u16, objects: self.geometry.objects() as u16 };
        (State::from(fill), fill)
    }
    /// Checks that each slab is on exactly the expected list, and that no other slab is listed.
    fn check(&self) {
        let mut listed = BTreeMap::new();
        let count = self.node.walk(&self.memory, |slab, state, fill, agrees| {
            assert!(agrees, "the slab's head and bitmaps must agree");
            assert!(listed.insert(slab.get(), (state, fill)).is_none(), "page {slab} is listed twice");
        });
        let expected: BTreeMap<_, _> = self.shadow.keys().map(|slab| (*slab, self.state(*slab))).collect();
        assert_eq!(listed, expected);
        for slab in self.shadow.keys().filter(|_| self.constructs_individually()) {
            // SAFETY: the test has no other thread.
            let built: BTreeSet<_> = unsafe { self.memory.slab(Pfn::new(*slab)).constructed() }.collect();
            let free = self.built[slab].difference(&self.shadow[slab]).copied().collect();
            assert_eq!(built, free);
        }
        let objects_in_use: usize = self.shadow.values().map(BTreeSet::len).sum();
        assert_eq!((count.slabs(), count.inuse), (self.shadow.len() as u64, objects_in_use as u64));
        assert_eq!(count.objects as usize, self.shadow.len() * self.geometry.objects());
        assert_eq!(count.discarded as usize, self.discarded.values().map(BTreeSet::len).sum::<usize>());
        for (ends, stamp) in self.objects_in_use().into_iter().map(|place| self.first_and_last_byte(place)) {
            for byte in ends {
                // SAFETY: the object is in use, so the test owns its bytes.
                let found = unsafe { byte.read() };
                assert_eq!(found, stamp, "memory of an allocated object was discarded");
            }
        }
        for (&slab, pages) in &self.discarded {
            let base = self.memory.pages.address(Pfn::new(slab)).as_ptr();
            // Discarded memory on the heap keeps its contents.
            #[cfg(all(target_os = "linux", not(uslab_heap)))]
            // SAFETY: the pages are in an allocated block, which no thread writes.
            assert!(pages.iter().all(|page| unsafe { base.add(page * PAGE_SIZE).read() } == 0));
        }
    }
    /// Checks, after a shrink, that each band has its slabs with few free objects sorted by the number of free objects.
    fn check_partial_slab_order(&self) {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        self.node.walk(&self.memory, |_, state, fill, _| {
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
    /// Property S1 in one thread: after any sequence of steps, each slab is on exactly the list for its state.
    #[test]
    fn random_node_list_operations_agree_with_the_reference_model(
        // The bitmaps have 8, 1, 1, 1, 1, 4 and 5 words. Four words are the longest bitmap that fits into a frame. The
        // remaining slabs have many pages; the last slab has two pages per `discarded` bit.
        (size, order) in prop::sample::select(vec![
            (8_usize, 0_u8), (64, 0), (500, 1), (2048, 0), (4096, 0), (32, 1), (56, 2), (1000, 2), (3000, 3), (20_000, 5),
        ]),
        min_partial in 0..4_usize,
        one_by_one in any::<bool>(),
        steps in list_steps(),
    ) {
        let mut lists = Lists::new(size, order, min_partial);
        if one_by_one && lists.geometry.objects() <= MAX_INDIVIDUALLY_CONSTRUCTED {
            lists.constructed = Constructed::OneByOne;
        }
        for step in steps {
            match step {
                ListStep::Add { taken } if lists.shadow.len() < 30 => lists.add(taken),
                ListStep::Add { .. } => {}
                ListStep::Take { max } => lists.take(max),
                ListStep::Destruct => lists.destruct(),
                ListStep::Give { picks, stay } => {
                    let mut objects_in_use = lists.objects_in_use();
                    let places: Vec<_> = picks
                        .into_iter()
                        .map_while(|pick| (!objects_in_use.is_empty()).then(|| objects_in_use.swap_remove(pick % objects_in_use.len())))
                        .collect();
                    lists.give(&places, if stay { FreedState::Constructed } else { FreedState::Refused });
                }
                ListStep::GiveFree { pick } => {
                    let slabs: Vec<_> = lists.shadow.keys().copied().collect();
                    if let Some(&slab) = slabs.get(pick % slabs.len().max(1)) {
                        let place = ObjectIndex { slab: Pfn::new(slab), index: pick % lists.geometry.objects() };
                        // If the object is free, both frees are invalid; if it is in use, only the second free is.
                        // The node must refuse each invalid free.
                        if lists.shadow[&slab].len() > 1 || !lists.shadow[&slab].contains(&place.index) {
                            lists.give(&[place, place], FreedState::Constructed);
                        }
                    }
                }
                ListStep::Shrink => {
                    let mut unlisted = UnlistedSlabs::default();
                    lists.node.shrink(&lists.memory, &mut unlisted);
                    lists.release(unlisted);
                    lists.check_partial_slab_order();
                }
                ListStep::DiscardEmpty => {
                    let mut unlisted = UnlistedSlabs::default();
                    lists.node.discard_empty(&lists.memory, &mut unlisted);
                    lists.release(unlisted);
                    prop_assert!(lists.shadow.values().all(|objects_in_use| !objects_in_use.is_empty()));
                }
                ListStep::DiscardUnused { most } => {
                    if !lists.constructs_individually() {
                        lists.discard_unused(most);
                    }
                }
            }
            lists.check();
        }
    }
}

#[test]
fn node_frees_empty_slabs_beyond_min_partial() {
    // The first free makes room in a slab of two objects, but empties a slab of one object.
    for (size, objects) in [(2048, 2), (4096, 1)] {
        for min_partial in 0..5 {
            let mut lists = Lists::new(size, 0, min_partial);
            (0..4).for_each(|_| lists.add(objects));
            lists.objects_in_use().chunks(objects).for_each(|slab| lists.give(slab, FreedState::Constructed));
            lists.check();
            let count = lists.node.count();
            let kept = (min_partial + 1).saturating_sub(objects).min(4) as u64;
            assert_eq!((count.empty, count.slabs()), (kept, kept), "{min_partial} with {objects} objects");
        }
    }
}

/// A shrink must sort slabs with up to 32 free objects; the other slabs must follow in their previous order.
#[test]
fn shrinking_keeps_the_order_of_slabs_with_many_free_objects() {
    let mut lists = Lists::new(40, 0, 0);
    let objects = lists.geometry.objects();
    [40, 33, 32, 45, 31].into_iter().for_each(|free| lists.add(objects - free));
    lists.node.shrink(&lists.memory, &mut UnlistedSlabs::default());
    let mut order = Vec::new();
    lists.node.walk(&lists.memory, |_, state, fill, _| {
        assert_eq!(state, State::Partial(2));
        order.push(fill.objects - fill.inuse);
    });
    assert_eq!(order, [31, 32, 40, 33, 45]);
}

#[test]
fn shrinking_sorts_nearly_full_slabs() {
    let mut lists = Lists::new(40, 0, 0);
    let objects = lists.geometry.objects();
    [3, 1, 2].into_iter().for_each(|free| lists.add(objects - free));
    lists.node.shrink(&lists.memory, &mut UnlistedSlabs::default());
    let mut order = Vec::new();
    lists.node.walk(&lists.memory, |_, state, fill, _| {
        assert_eq!(state, State::Partial(BANDS - 1));
        order.push(fill.objects - fill.inuse);
    });
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn nodes_of_destroyed_caches_close_after_the_last_free() {
    let mut lists = Lists::new(2048, 0, 5);
    lists.add(2);
    lists.add(0);
    let other = Node::new(None, lists.geometry);
    let mut unlisted = UnlistedSlabs::default();
    let nodes = [other, core::mem::replace(&mut lists.node, Node::new(None, lists.geometry))];
    assert_eq!(Node::close(&nodes, &lists.memory, &mut unlisted), Err((2, 0)));
    assert!(unlisted.pop(&lists.memory).is_none(), "a refused close changes nothing");
    let [other, node] = nodes;
    lists.node = node;
    lists.give(&lists.objects_in_use(), FreedState::Constructed);
    let nodes = [other, core::mem::replace(&mut lists.node, Node::new(None, lists.geometry))];
    assert_eq!(Node::close(&nodes, &lists.memory, &mut unlisted), Ok(()));
    lists.release(unlisted);
    assert_eq!((lists.shadow.len(), nodes[1].count()), (0, NodeCount::default()));
    let slab = lists.memory.pages.alloc(lists.order(), Gfp::empty(), None).unwrap();
    for node in &nodes {
        // SAFETY: the block is new, and only this test has it.
        unsafe {
            assert!(lists.memory.slab(slab).set_up(&Operation::new(), 2, Constructed::Together));
            assert_eq!(node.add(&Operation::new(), &lists.memory, slab), Err(NodeClosedError));
        }
    }
    // SAFETY: the slab was allocated above, and is on no list.
    unsafe { lists.memory.pages.free(slab, lists.order()) };
}

#[test]
fn counts_of_the_nodes_sum_to_the_count_of_the_cache() {
    let [one, ten] = [1, 10].map(|n| NodeCount {
        full: n,
        partial: 2 * n,
        empty: 3 * n,
        objects: 4 * n,
        inuse: 5 * n,
        discarded: 6 * n,
    });
    let total = NodeCount { full: 11, partial: 22, empty: 33, objects: 44, inuse: 55, discarded: 66 };
    assert_eq!((one + ten, total.slabs()), (total, 66));
}

// ---- caches and memory on simulated CPUs ----

fn refusals() -> impl Strategy<Value = Refuse> {
    (0..10_u8, 0..9_u8, proptest::option::of(1..4_u8)).prop_map(|(point, nth, times)| Refuse {
        point,
        nth,
        times,
    })
}

fn setups() -> impl Strategy<Value = caches::Setup> {
    let magazines = prop::sample::select(vec![
        Magazines::BySize,
        Magazines::Off,
        Magazines::Sized { capacity: 1, stock: 0, depot_limit: 0 },
        Magazines::Sized { capacity: 3, stock: 1, depot_limit: 2 },
    ]);
    (1..=2_u32, prop::sample::select(vec![8_usize, 200, 2048, 4096]), magazines, 1..6_u32, flags()).prop_map(
        |(nodes, size, magazines, limit, debug)| caches::Setup { nodes, size, magazines, limit, debug },
    )
}

/// Draws random debug flags; half of the cases have no flag. The flag for traces is excluded, because traces print
/// lines to standard error.
fn flags() -> impl Strategy<Value = SlabDebug> {
    let flags = any::<u8>().prop_map(|bits| SlabDebug::from_bits_truncate(bits) - SlabDebug::TRACE);
    prop_oneof![Just(SlabDebug::empty()), flags]
}

fn cache_step() -> impl Strategy<Value = caches::Step> {
    use caches::Step;
    let (cpu, cache) = (0..caches::CPUS as u8, 0..caches::CACHES as u8);
    let at = (cpu.clone(), cache.clone());
    prop_oneof![
        8 => (at.clone(), any::<bool>()).prop_map(|((cpu, cache), zeroed)| Step::Alloc { cpu, cache, zeroed }),
        8 => (cpu.clone(), any::<u16>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        3 => (at.clone(), 0..20_u8).prop_map(|((cpu, cache), n)| Step::Bulk { cpu, cache, n }),
        3 => (cpu.clone(), 0..30_u8).prop_map(|(cpu, n)| Step::FreeMany { cpu, n }),
        2 => (at.clone(), 0..2_u8, any::<bool>())
            .prop_map(|((cpu, cache), node, strict)| Step::Node { cpu, cache, node, strict }),
        1 => (at, 0..20_u8, 0..20_u8, 0..20_u8)
            .prop_map(|((cpu, cache), n, takes, gives)| Step::Prefill { cpu, cache, n, takes, gives }),
        1 => cache.clone().prop_map(|cache| Step::Shrink { cache }),
        1 => cache.prop_map(|cache| Step::Destroy { cache }),
        1 => Just(Step::Reap),
        1 => cpu.prop_map(|cpu| Step::Drain { cpu }),
    ]
}

fn random_cache_steps() -> impl Strategy<Value = Vec<caches::Step>> {
    use caches::Step;
    let refusing =
        prop_oneof![20 => cache_step(), 1 => refusals().prop_map(Step::Refuse), 1 => Just(Step::Grant)];
    // In half of the cases no failure is injected, and the expected result is exact.
    prop_oneof![prop::collection::vec(cache_step(), 1..60), prop::collection::vec(refusing, 1..60)]
}

proptest! {
    /// Compares caches with a shadow of the objects in use: no object may be allocated twice, overlap another object,
    /// or be lost.
    #[test]
    fn random_cache_operations_agree_with_the_reference_model(setup in setups(), steps in random_cache_steps()) {
        caches::run(setup, &steps);
    }
}

fn random_memory_step() -> impl Strategy<Value = memory::Step> {
    use memory::{AllocApi, Step};
    let api = prop_oneof![1 => Just(AllocApi::Kmalloc), 1 => Just(AllocApi::KmallocLayout), 3 => Just(AllocApi::Malloc)];
    let cpu = 0..2_u8;
    let large = 8193_usize..4 << 20;
    let huge = prop_oneof![4_usize << 20..16 << 20, (4..16_usize).prop_map(|n| n << 20)];
    let size = prop_oneof![2 => 0..9000_usize, 2 => 8000..40_000_usize, 2 => large, 3 => huge];
    let align = prop::sample::select(vec![1_usize, 8, 16, 16, 4096, 1 << 16, 8 << 20]);
    let layout = (size, align).prop_map(|(size, align)| Layout::from_size_align(size, align).unwrap());
    let gfp = prop::sample::select(vec![Gfp::KERNEL, Gfp::KERNEL, Gfp::ZERO, Gfp::RECLAIMABLE]);
    let allocs = (cpu.clone(), api.clone(), layout.clone(), gfp)
        .prop_map(|(cpu, api, layout, gfp)| Step::Alloc { cpu, api, layout, gfp });
    prop_oneof![
        10 => allocs,
        8 => (cpu.clone(), any::<u16>(), any::<bool>())
            .prop_map(|(cpu, pick, sized)| Step::Free { cpu, pick, sized }),
        6 => (cpu.clone(), any::<u16>(), layout.clone())
            .prop_map(|(cpu, pick, layout)| Step::Resize { cpu, pick, layout }),
        1 => (cpu.clone(), any::<u16>(), api, layout)
            .prop_map(|(cpu, pick, api, layout)| Step::Move { cpu, pick, api, layout }),
        1 => Just(Step::Shrink),
        1 => Just(Step::Reap),
        2 => Just(Step::Interval),
        1 => cpu.prop_map(|cpu| Step::Drain { cpu }),
        1 => refusals().prop_map(Step::Refuse),
        1 => Just(Step::Grant),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Each case maps some megabytes and writes to them, ten times the work of a case of the other properties.
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(4000_u32).div_ceil(4),
        ..ProptestConfig::default()
    })]

    /// Compares memory of all sizes, mostly above the size classes, with a map of the allocated memory.
    #[test]
    fn random_memory_operations_agree_with_the_reference_model(debug in flags(), steps in prop::collection::vec(random_memory_step(), 1..40)) {
        memory::run(uslab_buddy::Backend::Os, debug, &steps);
    }
}

/// Runs the stored inputs of the fuzzer.
pub(crate) fn corpus(target: &str, fuzz: fn(&[u8])) {
    let folder = format!("{}/../tests/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let replayed = std::fs::read_dir(folder).unwrap().map(|file| {
        let path = file.unwrap().path();
        println!("{}", path.display());
        fuzz(&std::fs::read(path).unwrap());
    });
    assert!(replayed.count() > 0);
}

#[test]
fn cache_operations_of_the_fuzzing_corpus_agree_with_the_reference_model() {
    corpus("caches", caches::fuzz);
}

#[test]
fn memory_operations_of_the_fuzzing_corpus_agree_with_the_reference_model() {
    corpus("memory", memory::fuzz);
}

/// Regression test: the charge of a freed mapping was lost if the mapping could not be added to the list.
#[test]
fn freed_mapping_is_uncharged_even_if_it_cannot_be_listed() {
    use memory::{AllocApi, Step};
    let alloc = |api, size, align| Step::Alloc {
        cpu: 0,
        api,
        layout: Layout::from_size_align(size, align).unwrap(),
        gfp: Gfp::KERNEL,
    };
    let steps = [
        alloc(AllocApi::Malloc, 28_673, 8 << 20),
        Step::Free { cpu: 0, pick: 0, sized: false },
        Step::Refuse(Refuse { point: 9, nth: 0, times: None }),
        alloc(AllocApi::Kmalloc, 0, 1),
        alloc(AllocApi::Malloc, 0, 8 << 20),
    ];
    memory::run(Backend::Os, SlabDebug::default(), &steps);
}
