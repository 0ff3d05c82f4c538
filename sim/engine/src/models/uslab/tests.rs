use super::*;
use crate::design::{At, Design};
use crate::machine::Machine;
use crate::model::{Model, ModelObject};
use crate::pages::Pages;
use crate::shipping::Shipping;
use crate::stream::Kind;
use crate::testing::{Script, script};
use proptest::prelude::*;
use std::collections::HashMap;
use uslab::{Block, Magazines};
use uslab_magazine::{Path, Paths};
use uslab_magazine_spec::UNBUDGETED_MAGAZINES;

/// The object size in bytes at which a slab has eight objects, and up to six slabs with free objects are kept.
const SIZE: u32 = 4096;

fn knobs(capacity: u16, depot_limit: u32) -> Knobs {
    Knobs { capacity: Some(capacity), first_fill: None, stock: Some(0), depot_limit: Some(depot_limit) }
}
fn play(knobs: Knobs, play: impl FnOnce(&mut Script<'_, Uslab>)) {
    script(SIZE, knobs, |script: &mut Script<'_, Uslab>| {
        assert_eq!(script.per_slab(), 8);
        play(script);
    });
}

#[test]
fn fill_size_doubles_with_each_miss() {
    play(Knobs::default(), |script| {
        let mut told = |expected: &[CostEvent], counts| {
            script.alloc(0, 1);
            assert_eq!((script.cost_events(), script.counts()), (expected, counts));
        };
        told(&[CostEvent::Refill(0), CostEvent::Made, CostEvent::Refill(1)], (1, 1));
        told(&[CostEvent::Refill(2)], (1, 3));
        told(&[], (1, 3));
        told(&[CostEvent::Refill(4)], (1, 7));
        (0..3).for_each(|_| told(&[], (1, 7)));
        // The fill may take eight objects, but the slab has one.
        told(&[CostEvent::Refill(1)], (1, 8));
        // The next fill may take sixteen objects, but a slab has eight.
        told(&[CostEvent::Refill(0), CostEvent::Made, CostEvent::Refill(8)], (2, 16));
    });
}

#[test]
fn full_stack_doubles_its_capacity() {
    play(Knobs::default(), |script| {
        // A shrink resets the capacity of stacks that have objects.
        script.alloc(0, 41);
        script.shrink();
        let mut widened = vec![];
        for number in 0..40 {
            script.free(0, [number]);
            widened.extend((script.cost_events() == [CostEvent::Widened]).then_some(number + 1));
        }
        assert_eq!(widened, [1, 2, 3, 5, 9, 17, 33], "the stack has objects before it has places");
    });
}

/// Moves seven objects out of their slab: two are allocated, two are in the depot, and three are on the stack of CPU 0;
/// objects 0 and 3 were freed last. Returns the locations of the depot's objects, which are objects 2 and 1, newest
/// first.
fn play_with_magazine_in_depot(script: &mut Script<'_, Uslab>) -> [(u64, u16); 2] {
    script.alloc(0, 6);
    let places = [2, 1].map(|number| script.place(number));
    script.free(0, 0..3);
    assert_eq!((script.cost_events(), script.counts()), (&[][..], (1, 7)), "these objects fill the stack");
    script.free(0, [3]);
    assert_eq!((script.cost_events(), script.counts()), (&[CostEvent::Exchange][..], (1, 7)));
    places
}

#[test]
fn full_stack_passes_a_magazine_through_the_depot() {
    play(knobs(2, 1), |script| {
        let places = play_with_magazine_in_depot(script);
        script.alloc(1, 1);
        assert_eq!((script.place(6), script.cost_events()), (places[0], &[CostEvent::Exchange][..]));
        script.alloc(1, 1);
        assert_eq!((script.place(7), script.cost_events()), (places[1], &[][..]));
    });
}

#[test]
fn objects_that_overflow_the_depot_return_to_their_slabs() {
    play(knobs(2, 1), |script| {
        play_with_magazine_in_depot(script);
        script.free(0, [4]);
        script.free(0, [5]);
        assert_eq!(
            (script.cost_events(), script.counts()),
            (&[CostEvent::Miss, CostEvent::Flush(2)][..], (1, 5))
        );
    });
    play(knobs(2, 0), |script| {
        script.alloc(0, 6);
        script.free(0, 0..4);
        assert_eq!(script.cost_events(), [CostEvent::Flush(2)], "a depot without room must not be visited");
    });
    play(knobs(40, 0), |script| {
        script.alloc(0, 81);
        assert_eq!(script.counts(), (11, 88), "seven objects remain on the stack");
        script.free(0, 0..74);
        assert_eq!(
            script.cost_events(),
            [CostEvent::Flush(32), CostEvent::Flush(8)],
            "no more objects are moved in one lock hold"
        );
    });
}

#[test]
fn fullest_slab_serves_its_lowest_object_first() {
    // The stack has two objects; each further free flushes the upper object to its slab.
    play(knobs(1, 0), |script| {
        script.alloc(0, 24);
        let places = [8, 16, 17, 0, 1, 2].map(|number| script.place(number));
        script.free(0, [16, 17, 0, 1, 2, 8]);
        for place in places {
            script.alloc(0, 1);
            assert_eq!(script.place(script.numbers() - 1), place);
        }
    });
}

#[test]
fn empty_slab_is_freed_if_six_slabs_have_free_objects() {
    play(knobs(1, 0), |script| {
        script.alloc(0, 64);
        script.free(0, 0..48);
        // The stack holds objects 0 and 47. Of the first six slabs, the first and the last are partial.
        assert_eq!(script.counts(), (8, 18));
        // The sixth slab becomes empty while six slabs have room, so it is freed; the seventh is freed later.
        script.free(0, [48]);
        assert_eq!(
            (script.cost_events(), script.counts()),
            (&[CostEvent::Flush(1), CostEvent::Released][..], (7, 17))
        );
        script.free(0, 49..64);
        assert_eq!(script.counts(), (6, 2));
    });
}

#[test]
fn reap_flushes_objects_unused_since_the_last_reap() {
    play(knobs(2, 1), |script| {
        play_with_magazine_in_depot(script);
        script.tick();
        assert_eq!(script.counts(), (1, 7), "the stack was used, and the magazine was just put");
        script.tick();
        assert_eq!(script.counts(), (1, 2), "only the allocated objects may remain");
        script.free(0, [4, 5]);
        script.tick();
        assert_eq!(script.counts(), (1, 2));
        script.tick();
        assert_eq!(script.counts(), (0, 0), "an empty slab must be freed, too");
    });
}

#[test]
fn shrink_empties_magazines_and_sorts_slabs() {
    script(16, knobs(1, 0), |script: &mut Script<'_, Uslab>| {
        assert_eq!(script.per_slab(), 256);
        script.alloc(0, 768);
        // All three slabs, with 40, 35 and 10 free objects, are in the fullest band.
        script.free(0, (0..40).chain(256..291).chain(512..522));
        assert_eq!(script.counts(), (3, 685), "two objects are on the stack");
        assert_eq!((script.shrink(), script.counts()), ((2, 0), (3, 683)));
        let expected = [600, 100, 400].map(|number| script.slab_of(number));
        script.alloc(0, 85);
        // Slabs with more than 32 free objects are not sorted: they stay behind, in their order.
        let served: Vec<_> = (768..853).map(|number| script.slab_of(number)).collect();
        let [first, second, third] = expected;
        assert_eq!(served, [[first].repeat(10), [second].repeat(40), [third].repeat(35)].concat());
    });
}

#[test]
fn magazine_capacity_falls_with_object_size() {
    let of = |stride| {
        let Sizes { capacity, first_fill: 1, reach, depot_limit, .. } = sizes(stride, &Knobs::default())
        else {
            panic!("the first fill must request one object")
        };
        (capacity, reach, depot_limit)
    };
    assert_eq!(
        [8, 64, 256, 1024, 2048, 4096, 32 << 10, 1 << 20].map(of),
        [
            (64, 1216, 1024),
            (64, 1216, 1024),
            (64, 1024, 256),
            (64, 256, 64),
            (32, 128, 64),
            (16, 64, 64),
            (4, 8, 32),
            (4, 8, 10)
        ]
    );
    let said = Knobs { capacity: Some(4), first_fill: Some(9), stock: Some(u16::MAX), depot_limit: Some(0) };
    assert_eq!(
        sizes(64, &said),
        Sizes { capacity: 4, first_fill: 4, reach: 16_384, depot_limit: 0, magazine_bytes: 256 },
        "no fill is larger than a magazine, no stack than 16,384"
    );
}

// ---- compared with the shipping code ----

/// The configuration that the shipping code and the model share in a test.
#[derive(Clone, Debug)]
struct Setup {
    cpus: u32,
    /// The object size of each cache, in bytes.
    sizes: Vec<u32>,
    /// The magazine capacity, the stock and the depot limit. If `None`, the three values depend on the object size;
    /// with a capacity of 0, no cache has magazines.
    sized: Option<(u16, u16, u32)>,
}

impl Setup {
    fn magazines(&self) -> Magazines {
        match self.sized {
            Some((0, ..)) => Magazines::Off,
            Some((capacity, stock, depot_limit)) => Magazines::Sized { capacity, stock, depot_limit },
            None => Magazines::BySize,
        }
    }
    fn knobs(&self) -> Knobs {
        match self.sized {
            Some((0, ..)) => Knobs { capacity: Some(0), ..Knobs::default() },
            // With explicit sizes, the shipping code fills whole magazines.
            Some((capacity, stock, depot_limit)) => Knobs {
                capacity: Some(capacity),
                first_fill: Some(capacity),
                stock: Some(stock),
                depot_limit: Some(depot_limit),
            },
            None => Knobs::default(),
        }
    }
}

/// The rule by which a step chooses the object to free.
#[derive(Clone, Copy, Debug)]
enum FreedObject {
    Newest,
    Oldest,
    Any(usize),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A CPU allocates objects; the fields are the CPU, the cache, and the number of objects.
    Alloc(u32, usize, usize),
    Free(u32, FreedObject, usize),
    /// Shrinks all caches.
    Shrink,
    /// Ends an interval of the reaper.
    Reap,
}

/// The shipping code and the model, which run the same operations.
struct ShippingAndModel<'m, 'p> {
    shipping: Shipping<'m>,
    model: Model<'p, Uslab>,
    /// For each cache, maps the first page of a slab to the number of slabs created before it.
    born: Vec<HashMap<u32, u64>>,
    held: Vec<(usize, Block<'m>, ModelObject<'p>)>,
}

/// The counts that the shipping code reports for a cache.
type ShippingCounts = uslab::CacheInfo;

impl<'m, 'p> ShippingAndModel<'m, 'p> {
    fn new(machine: &'m Machine, pages: &'p Pages, setup: &Setup) -> Self {
        let mut pair = Self {
            shipping: Shipping::on(machine),
            model: Model::new(pages, setup.knobs()).expect("the model must accept the knobs"),
            born: vec![HashMap::new(); setup.sizes.len()],
            held: vec![],
        };
        for (number, size) in (0..).zip(&setup.sizes) {
            let info = CacheInfo::new(format!("cache-{number}"), Kind::Named, *size);
            pair.shipping.learn(&info).expect("the objects must fit in a slab");
            pair.model.learn(&info).expect("the objects must fit in a slab");
        }
        pair
    }
    fn read_counts(&self, cache: usize) -> ShippingCounts {
        self.shipping.cache(cache as u32).expect("the cache must have slabs").info()
    }

    fn alloc(&mut self, cpu: u32, cache: usize) {
        let (at, number) = (At::new(cpu, 0), cache as u32);
        let (before, paths) = (self.read_counts(cache), self.model.paths());
        let block = self.shipping.alloc(at, number, 0).expect("memory");
        let given = self.model.alloc(at, number, 0).expect("memory");
        let after = self.compare_operation(cache, &before, paths);
        let (page, index) = self.shipping.place(number, &block).expect("the object must be in a slab");
        if after.slabs_made > before.slabs_made {
            // The slab was created for this allocation.
            self.born[cache].insert(page, before.slabs_made);
        }
        let ModelObject::Object(object) = given else { unreachable!("the object has a slab") };
        let (slabs, _) = self.model.cache(number).expect("the cache must have slabs");
        assert_eq!(
            (slabs.born(object.slab), object.index),
            (self.born[cache][&page], index),
            "the same object"
        );
        self.held.push((cache, block, given));
    }
    fn free(&mut self, cpu: u32, pick: FreedObject) {
        let at = At::new(cpu, 0);
        let (cache, block, given) = match pick {
            _ if self.held.is_empty() => return,
            FreedObject::Newest => self.held.pop().expect("the list must not be empty"),
            FreedObject::Oldest => self.held.remove(0),
            FreedObject::Any(which) => self.held.swap_remove(which % self.held.len()),
        };
        let (before, paths) = (self.read_counts(cache), self.model.paths());
        self.shipping.free(at, cache as u32, block);
        self.model.free(at, cache as u32, given);
        self.compare_operation(cache, &before, paths);
    }
    fn step(&mut self, step: Step, most: usize) {
        let at = At::new(0, 0);
        let cpus = self.shipping.machine.subsystem.cpus().count();
        match step {
            Step::Alloc(cpu, cache, n) => {
                let n = n.min(most - self.held.len());
                (0..n).for_each(|_| self.alloc(cpu % cpus, cache % self.born.len()));
                return;
            }
            Step::Free(cpu, pick, n) => return (0..n).for_each(|_| self.free(cpu % cpus, pick)),
            Step::Shrink => {
                self.shipping.shrink(at, None);
                self.model.shrink(at, None);
            }
            Step::Reap => {
                self.shipping.machine.subsystem.end_interval();
                self.model.tick(at);
            }
        }
        (0..self.born.len()).for_each(|cache| self.compare(cache));
    }

    /// Compares the level that served an allocation or free, then the steps, and then the number of objects at each
    /// level.
    fn compare_operation(&mut self, cache: usize, before: &ShippingCounts, paths: Paths) -> ShippingCounts {
        let after = self.read_counts(cache);
        let (told, did) = (class(paths, self.model.paths()), class(before.paths, after.paths));
        let did = if did == Path::Commit { level_without_commits(before, &after) } else { did };
        assert_eq!(told, did, "the class of {:?}, from {before:?} to {after:?}", self.model.cost_events());
        let count = |of: fn(&CostEvent) -> u64| self.model.cost_events().iter().map(of).sum::<u64>();
        // Without magazines, the shipping code counts neither fills nor flushes.
        let magazines = self.model.counts(cache as u32).capacity > 0;
        let some = |n: u64| u64::from(magazines && n > 0);
        let (from, to) = (
            count(|deed| if let CostEvent::Refill(n) = deed { u64::from(*n) } else { 0 }),
            count(|deed| if let CostEvent::Flush(n) = deed { u64::from(*n) } else { 0 }),
        );
        let (made, released) =
            (count(|d| u64::from(*d == CostEvent::Made)), count(|d| u64::from(*d == CostEvent::Released)));
        for (what, told, did) in [
            ("slabs made", made, after.slabs_made - before.slabs_made),
            ("slabs freed", released, after.slabs_released - before.slabs_released),
            (
                "visits to the depot",
                count(|deed| u64::from(*deed == CostEvent::Exchange)),
                after.depot_exchanges - before.depot_exchanges,
            ),
            ("fills", some(from), after.fills - before.fills),
            ("flushes", some(to), after.flushes - before.flushes),
            (
                "objects free in slabs",
                before.free_in_slabs + to + made * after.objs_per_slab,
                after.free_in_slabs + from + released * after.objs_per_slab,
            ),
        ] {
            assert_eq!(told, did, "{what}: {:?}, from {before:?} to {after:?}", self.model.cost_events());
        }
        self.compare(cache);
        after
    }
    /// Compares the number of objects at each level.
    fn compare(&self, cache: usize) {
        let cache = cache as u32;
        assert_eq!(self.model.counts(cache), self.shipping.counts(cache), "the model, the shipping code");
    }
    fn check(&self) {
        let held = self.held.len() as u64;
        assert_eq!(self.model.check(held, 0), Ok(()));
        assert_eq!(self.shipping.check(held, 0), Ok(()));
    }
}

/// Returns the level that served the only operation between two snapshots of the counts.
fn class(before: Paths, after: Paths) -> Path {
    let counted = Path::ALL.map(|path| after.of(path) - before.of(path));
    assert_eq!(counted.iter().sum::<u64>(), 1, "one operation: {before:?}, {after:?}");
    let class = counted.iter().position(|n| *n == 1).expect("the operation must have one level");
    Path::ALL[class]
}
/// Returns the level that served an operation, ignoring memory commits for pages, stacks or depots.
fn level_without_commits(before: &ShippingCounts, after: &ShippingCounts) -> Path {
    if (before.slabs_made, before.slabs_released) != (after.slabs_made, after.slabs_released) {
        Path::Pages
    } else if (before.fills, before.flushes) != (after.fills, after.flushes) {
        Path::Slab
    } else if before.depot_exchanges != after.depot_exchanges {
        Path::Depot
    } else {
        Path::Cpu
    }
}

/// Runs the shipping code and the model until everything is freed, and compares them; at most `most` objects are
/// allocated at a time.
fn side_by_side(setup: &Setup, steps: impl IntoIterator<Item = Step>, most: usize) -> Paths {
    let machine = Machine::with(setup.cpus, setup.magazines()).expect("a machine without memory must start");
    let pages = Pages::new(setup.cpus).expect("a machine without memory must start");
    let mut pair = ShippingAndModel::new(&machine, &pages, setup);
    for step in steps {
        pair.step(step, most);
    }
    pair.check();
    pair.step(Step::Free(0, FreedObject::Newest, most), most);
    pair.step(Step::Shrink, most);
    assert_eq!((pair.held.len(), pair.model.counts(0).slabs()), (0, 0), "no object may remain");
    pair.check();
    pair.model.paths()
}

fn setups() -> impl Strategy<Value = Setup> {
    let size = prop_oneof![8..64_u32, 64..512_u32, 512..9000_u32, 9000..300_000_u32];
    let sized = prop::option::of((0..=6_u16, 0..=3_u16, 0..=3_u32));
    (1..=4_u32, prop::collection::vec(size, 1..=3), sized).prop_map(|(cpus, sizes, sized)| Setup {
        cpus,
        sizes,
        sized,
    })
}
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || prop_oneof![4 => 1..8_usize, 3 => 1..40_usize, 1 => 1..250_usize];
    let pick = prop_oneof![
        Just(FreedObject::Newest),
        Just(FreedObject::Oldest),
        any::<usize>().prop_map(FreedObject::Any)
    ];
    let step = prop_oneof![
        20 => (0..4_u32, 0..3_usize, n()).prop_map(|(cpu, cache, n)| Step::Alloc(cpu, cache, n)),
        20 => (0..4_u32, pick, n()).prop_map(|(cpu, pick, n)| Step::Free(cpu, pick, n)),
        2 => Just(Step::Shrink),
        3 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn model_agrees_with_the_shipping_code(setup in setups(), steps in steps()) {
        side_by_side(&setup, steps, 500);
    }
}

/// Fills stacks and depots of each size, and then frees more objects than fit.
#[test]
fn model_stacks_and_depots_match_shipping_capacity() {
    for size in [1024, 4096, 12_000, 300_000] {
        let Sizes { capacity, reach, depot_limit, magazine_bytes, .. } = sizes(size, &Knobs::default());
        let most = reach + (depot_limit + 2) * capacity;
        let setup = Setup { cpus: 1, sizes: vec![size as u32], sized: None };
        let paths =
            side_by_side(&setup, [Step::Alloc(0, 0, most), Step::Free(0, FreedObject::Newest, most)], most);
        let budget = Budget::from_cpu_count(1).limit() / magazine_bytes + UNBUDGETED_MAGAZINES as u64;
        assert_eq!(paths.depot, budget.min(depot_limit as u64), "{size}: all that it keeps, and never more");
        assert!(paths.slab + paths.pages > 2, "{size}: {paths:?}");
    }
}

/// The test checks only the limits on objects and magazines, because comparing this many objects after each operation
/// would take too long.
#[test]
fn model_depots_of_small_objects_match_shipping_capacity() {
    let setup = Setup { cpus: 1, sizes: vec![64], sized: None };
    let machine = Machine::with(1, setup.magazines()).expect("a machine without memory must start");
    let pages = Pages::new(1).expect("a machine without memory must start");
    let ShippingAndModel { mut shipping, mut model, .. } = ShippingAndModel::new(&machine, &pages, &setup);
    let at = At::new(0, 0);
    let both = |_| (shipping.alloc(at, 0, 0).expect("memory"), model.alloc(at, 0, 0).expect("memory"));
    let held: Vec<_> = (0..70_000).map(both).collect();
    for (block, given) in held.into_iter().rev() {
        shipping.free(at, 0, block);
        model.free(at, 0, given);
    }
    let counts = model.counts(0);
    assert_eq!((counts.in_magazines, counts.in_depot, counts.depot_exchanges), (1216, 65_536, 1024));
    assert_eq!(counts, shipping.counts(0));
}

/// The sum of the depots' separate limits is twice the limit on all depots together.
#[test]
fn model_depots_of_many_caches_match_shipping_capacity() {
    let Sizes { capacity, reach, depot_limit, magazine_bytes, .. } = sizes(16_384, &Knobs::default());
    let budget = Budget::from_cpu_count(1).limit();
    let caches = 2 * (budget / (depot_limit as u64 * magazine_bytes)) as usize;
    let setup = Setup { cpus: 1, sizes: vec![16_384; caches], sized: None };
    let most = reach + depot_limit * capacity;
    let all = most * caches;
    let allocs = (0..caches).map(|cache| Step::Alloc(0, cache, most));
    let frees = [
        Step::Free(0, FreedObject::Newest, all),
        Step::Alloc(0, 0, most),
        Step::Free(0, FreedObject::Newest, most),
    ];
    let paths = side_by_side(&setup, allocs.chain(frees), all);
    let kept = budget / magazine_bytes + (caches * UNBUDGETED_MAGAZINES) as u64;
    assert!(
        (kept..kept + 2 * depot_limit as u64 + 1).contains(&paths.depot),
        "{paths:?}, with at most {kept} objects kept"
    );
}
