//! Numbers, rooms, commitment and drains, on simulated CPUs; and what a drain has to itself on real ones.

use super::*;
use crate::cpu::{claimed, rseq};
use crate::magazine::Magazine;
use crate::memory::Heap;
use crate::region::{CAP, Commit, OP, Pages};
use crate::shadow::table;
use crate::sync::{Arc, AtomicBool};
use core::time::Duration;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn round(n: usize) -> NonNull<u8> {
    NonNull::new(core::ptr::without_provenance_mut(n)).unwrap()
}
fn rounds(numbers: Range<usize>) -> Vec<NonNull<u8>> {
    numbers.map(round).collect()
}

/// A table of `cpus` simulated CPUs on heap memory of regions of `region` bytes.
fn simulated(cpus: u32, region: usize) -> Table<Heap> {
    let cpus = Cpus::simulated(cpus, 1).unwrap();
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    Table::new(cpus, region, memory).unwrap()
}

impl<M: Memory> Table<M> {
    /// Puts rounds on the class's stack on `cpu`, which is nobody else's.
    fn put(&self, cpu: u32, class: Class, rounds: &[NonNull<u8>]) -> bool {
        let region = self.region(cpu).unwrap();
        let push = || region.push_batch(class, rounds, Commit::Done);
        let places = self.limit(class).load(Relaxed);
        push() || self.open(&Operation::new(), cpu, class, places) && push()
    }
    fn len(&self, cpu: u32, class: Class) -> u64 {
        self.region(cpu).unwrap().head(class) & LEN
    }
    fn drain_all(&self, which: Which, classes: &[Class]) -> Vec<(Class, Vec<usize>)> {
        let mut given = vec![];
        self.drain(0..self.cpus.count(), which, classes.iter().copied(), |class, taken| {
            let rounds = core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get());
            given.push((class, rounds.collect()));
        });
        given
    }
}

// ---------------------------------------------------------------- numbers and rooms

#[test]
fn numbers_are_handed_out_given_back_and_used_again() {
    let table = simulated(2, 64 << 10);
    assert_eq!(table.all().count(), 0);
    let [one, two, large] = [10, 10, 1000].map(|reach| table.class(reach).unwrap());
    assert!(table.all().map(|(class, _)| class).eq([one, two, large]));
    assert_eq!([one, two, large].map(|class| class.index), [1, 2, 3], "0 is no class");
    table.retire(one);
    table.retire(large);
    assert_eq!(table.class(10), Some(one), "the number of a room of that size");
    assert_ne!(table.class(10).unwrap().index, large.index, "a room that is too large is kept for its like");
    assert_eq!(table.class(1000), Some(large));
    assert_eq!(table.limit(large).load(Relaxed), 1000);
}

#[test]
fn without_a_number_or_a_room_there_is_no_class() {
    let numbers = |region, reach| {
        let table = simulated(1, region);
        core::iter::from_fn(|| table.class(reach)).count()
    };
    assert_eq!(numbers(1 << 20, 1), CLASSES as usize - 1);
    assert_eq!(numbers(STACKS + 5 * LINE, 7) * LINE / PAGE, 0, "the region ends on a page");
    assert_eq!(numbers(64 << 10, u16::MAX), 0);
}

/// How many cases, of how many steps: few under Miri.
const ROOMS: (u32, usize) = if cfg!(miri) { (4, 20) } else { (200, 200) };

proptest! {
    #![proptest_config(ProptestConfig { cases: ROOMS.0, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is asked for and given back in whatever order: no two stacks share a word, and none leaves its region.
    #[test]
    fn rooms_never_overlap(steps in prop::collection::vec((0..3_u8, any::<u16>(), 0..16_u8), 1..ROOMS.1)) {
        let (table, mut classes) = (simulated(1, 2 << 20), Vec::<(Class, usize)>::new());
        for (step, number, bits) in steps {
            if step == 0 && !classes.is_empty() {
                let (class, _) = classes.swap_remove(usize::from(number) % classes.len());
                table.retire(class);
            } else if let Some(class) = table.class((number >> bits).max(1)) {
                classes.push((class, class.end((number >> bits).max(1).into())));
            }
            let mut stacks: Vec<_> = classes.iter().map(|(class, end)| (class.stack as usize - SEEN, *end)).collect();
            stacks.sort_unstable();
            prop_assert!(stacks.windows(2).all(|two| two[0].1 <= two[1].0), "{stacks:?}");
            prop_assert!(stacks.iter().all(|(start, end)| *start >= STACKS && *end <= 2 << 20));
            prop_assert!(stacks.iter().all(|(start, _)| start.is_multiple_of(LINE)));
            let numbers: BTreeSet<_> = classes.iter().map(|(class, _)| class.index).collect();
            prop_assert_eq!(numbers.len(), classes.len());
        }
    }
}

/// What lies at the same place of each page shares a set of a cache.
#[test]
fn stacks_of_a_page_and_more_begin_at_different_places_of_their_pages() {
    let table = simulated(1, 2 << 20);
    let places: BTreeSet<_> = (0..36).map(|_| table.class(1216).unwrap().stack as usize % PAGE).collect();
    assert_eq!(places.len(), 36);
    let [one, two] = [1216; 2].map(|reach| table.class(reach).unwrap().stack as usize % PAGE);
    assert_eq!(two.abs_diff(one) / LINE, 7, "the lowest rounds of neighbours share no line's set");
}

/// The smallest power of two that holds the stack wherever it begins.
#[test]
fn rooms_are_as_small_as_their_stacks_allow() {
    let rooms = [1, 4, 5, 12, 13, 252, 253, 388, 389, 1216].map(Table::<Heap>::room);
    let expected = [
        (64, 64),
        (64, 64),
        (128, 64),
        (128, 64),
        (256, 64),
        (2048, 64),
        (4096, 1024),
        (4096, 1024),
        (8192, 2048),
        (16384, PAGE - MAGAZINE),
    ];
    assert_eq!(rooms, expected);
}

/// A pop finds the end of its stack by a null below it.
#[test]
fn the_word_below_a_stack_stays_null() {
    let table = simulated(2, 128 << 10);
    let classes = [1, 2, 7, 8, 500, 1216].map(|reach| (table.class(reach).unwrap(), usize::from(reach)));
    for cpu in 0..2 {
        for (class, reach) in classes {
            assert!(table.put(cpu, class, &rounds(1..reach + 1)) && !table.put(cpu, class, &[round(1)]));
        }
    }
    let mut used = classes.to_vec();
    for turn in 0..3 {
        for (class, reach) in &used {
            for cpu in 0..2 {
                let region = table.region(cpu).unwrap();
                assert_eq!(
                    (region.round(*class, 0), table.len(cpu, *class)),
                    (None, *reach as u64),
                    "{turn}"
                );
                let popped = core::iter::from_fn(|| region.pop(*class, Commit::Done)).count();
                assert_eq!((popped, region.round(*class, 0)), (*reach, None));
            }
        }
        // The same rooms, for others.
        for (class, reach) in &mut used {
            table.retire(*class);
            *class = table.class(*reach as u16).unwrap();
            (0..2).for_each(|cpu| assert!(table.put(cpu, *class, &rounds(1..*reach + 1))));
        }
    }
}

// ---------------------------------------------------------------- memory

/// A heap that grants what lies below its limit, and nothing twice.
struct Refusing {
    heap: Heap,
    granted: Counter,
    has: crate::sync::Mutex<Vec<Range<usize>>>,
}
// SAFETY: as the heap's; it grants less.
unsafe impl Memory for Refusing {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        assert!(range.start < range.end && range.end <= self.bytes(), "{range:?}");
        if range.end as u64 > self.granted.get() || !self.heap.commit(op, range.clone()) {
            return false;
        }
        let mut has = self.has.lock();
        assert!(
            has.iter().all(|had| had.end <= range.start || range.end <= had.start),
            "{range:?} of {has:?}"
        );
        has.push(range);
        true
    }
}

fn refusing(cpus: u32, region: usize) -> Table<Refusing> {
    let cpus = Cpus::simulated(cpus, 1).unwrap();
    let heap = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    let granted = Counter::new(PAGE as u64);
    let has = crate::sync::Mutex::ranked(Rank::Faults, vec![]);
    Table::new(cpus, region, Refusing { heap, granted, has }).unwrap()
}

#[test]
fn a_refused_commit_is_a_miss_and_nothing_is_widened() {
    let table = refusing(1, 512 << 10);
    let [small, large] = [8, 16000].map(|reach| table.class(reach).unwrap());
    let region = table.region(0).unwrap();
    assert!(!table.put(0, small, &rounds(1..3)));
    assert_eq!((region.committed(), region.cap(small), region.pop(small, Commit::Done)), (0, 0, None));
    // The first step and no more.
    table.memory.granted.set((PAGE + STEP) as u64);
    assert!(table.put(0, small, &rounds(1..3)));
    assert_eq!((region.committed(), region.cap(small)), (STEP, 2));
    // As far as the step reaches, and no farther.
    assert!(table.put(0, large, &rounds(1..3)) && !table.put(0, large, &rounds(3..15_000)));
    assert_eq!((region.committed(), region.cap(large), region.cap(small)), (STEP, 2, 2));
    assert_eq!((table.len(0, large), table.len(0, small)), (2, 2));
    table.memory.granted.set(u64::MAX);
    assert!(table.put(0, large, &rounds(3..15_000)));
    assert_eq!((region.cap(large), table.len(0, large)), (14_999, 14_999));
}

#[test]
fn what_is_committed_is_of_that_cpu_and_twice_as_much_each_time() {
    let table = refusing(2, 1 << 20);
    let [one, two, three] = [16000; 3].map(|reach| table.class(reach).unwrap());
    let region = table.region(1).unwrap();
    let before = PAGE + (1 << 20);
    for (granted, committed) in [(2 * STEP - 1, 0), (2 * STEP, 2 * STEP)] {
        table.memory.granted.set((before + granted) as u64);
        assert_eq!(table.put(1, one, &rounds(1..2)), committed > 0);
        assert_eq!(region.committed(), committed);
    }
    table.memory.granted.set(u64::MAX);
    assert!(two.end(16000) < 4 * STEP && table.put(1, two, &rounds(1..2)));
    assert_eq!(region.committed(), 4 * STEP);
    table.set_limit(three, 1);
    assert!((4 * STEP..5 * STEP).contains(&three.end(1)) && table.put(1, three, &rounds(1..2)));
    assert_eq!((region.committed(), table.region(0).unwrap().committed()), (8 * STEP, 0));
}

#[test]
fn a_stack_may_end_where_the_committed_part_of_its_region_does() {
    let table = refusing(1, 512 << 10);
    let class = table.class(16000).unwrap();
    table.memory.granted.set((PAGE + STEP) as u64);
    let places = (STEP - class.end(0)) / ROUND;
    table.set_limit(class, places as u16);
    assert!(table.put(0, class, &rounds(1..2)) && table.put(0, class, &rounds(2..places + 1)));
    let region = table.region(0).unwrap();
    assert_eq!((region.committed(), class.end(region.cap(class))), (STEP, STEP));
}

/// Behind the empty region, as much as a region, committed step by step.
#[test]
fn room_for_magazines_of_depots_is_cut_once_and_used_again() {
    let magazine = size_of::<crate::depot::Slot>();
    let region = 512 * magazine;
    assert!(region > STEP && region.is_multiple_of(ALIGN));
    let table = refusing(1, region);
    let all = || {
        let (op, mut blocks) = (&Operation::new(), Blocks::default());
        let count = core::iter::from_fn(|| table.block(op)).map(|block| blocks.push(block)).count();
        (count, blocks)
    };
    let before = PAGE + 2 * region;
    table.memory.granted.set((before + STEP - 1) as u64);
    assert_eq!(all().0, 0);
    table.memory.granted.set((before + STEP) as u64);
    let (few, mut blocks) = all();
    assert_eq!(few, STEP / magazine, "one step");
    table.memory.granted.set(u64::MAX);
    let (others, more) = all();
    assert_eq!((few + others, all().0), (512, 0));
    blocks.append(more);
    table.take_blocks(blocks);
    assert_eq!(all().0, 512);
}

/// A layer whose table gets no memory serves from its supplier, and loses nothing.
#[test]
fn without_memory_for_regions_rounds_go_to_the_supplier() {
    use crate::test_round::TestRound;
    use crate::{Config, Layer, Paths, on_cpu, shadow::TestSupplier};
    on_cpu(0);
    let table = Arc::new(refusing(1, 128 << 10));
    let layer: Layer<TestRound, Refusing> = Layer::new(&table, Config::new(4, 2, 0)).unwrap();
    let supplier = TestSupplier::new(9, 1);
    let held: Vec<_> = (0..3).map(|_| layer.alloc(&supplier).unwrap()).collect();
    held.into_iter().for_each(|round| layer.free(&supplier, round));
    let s = layer.stats();
    assert_eq!((s.allocs, s.frees, s.paths), (3, 3, Paths { slab: 6, ..Paths::default() }));
    assert_eq!((s.busy, supplier.free.borrow().len()), (6, 9));
}

#[test]
fn a_region_is_committed_where_its_cpu_was_used_and_as_far_as_classes_reach() {
    let table = simulated(4, 512 << 10);
    let [near, far] = [100, 16000].map(|reach| table.class(reach).unwrap());
    let committed = || [0, 1, 2, 3].map(|cpu| table.region(cpu).unwrap().committed());
    assert_eq!(committed(), [0; 4]);
    assert!(table.put(2, near, &rounds(1..2)));
    assert_eq!(committed(), [0, 0, STEP, 0]);
    assert!(table.put(1, far, &rounds(1..2)) && table.put(2, near, &rounds(1..50)));
    assert_eq!(committed(), [0, far.end(16000).next_multiple_of(STEP), STEP, 0]);
    assert_eq!(table.used(0..9).count(), 2);
    assert!(!table.open(&Operation::new(), 4, near, 1), "a CPU without a region");
}

/// A region of addresses has its full length; regions that are memory share what there is for all of them.
#[test]
fn footprints_hold_the_words_the_regions_the_empty_one_and_the_depots() {
    for count in [1, 3, 32, 1024] {
        let cpus = Cpus::simulated(count, 1).unwrap();
        let [addresses, memory] = [false, true].map(|on_heap| Table::<Heap>::region_bytes(&cpus, on_heap));
        assert_eq!(addresses, REGION);
        assert_eq!(memory, ((64 << 20) / count as usize).clamp(128 << 10, 4 << 20));
        for region in [64 << 10, memory] {
            let (footprint, writable) =
                (Table::<Heap>::footprint(&cpus, region), Table::<Heap>::writable(&cpus, region));
            assert_eq!(footprint - writable, 2 * region.next_multiple_of(ALIGN));
            let words = writable - count as usize * region.next_multiple_of(ALIGN);
            assert_eq!(words, ((2 + cpus.slots() as usize) * WORD).next_multiple_of(ALIGN));
        }
    }
}

#[test]
fn memory_that_cannot_hold_the_table_is_an_error() {
    let cpus = Cpus::simulated(4, 1).unwrap();
    let new = |region, bytes| Table::new(cpus, region, Heap::new(bytes).unwrap()).map(drop);
    let (region, bytes) = (64 << 10, Table::<Heap>::footprint(&cpus, 64 << 10));
    assert_eq!(
        [new(region, bytes), new(region, bytes - 1), new(region, 256)],
        [Ok(()), Err(TooSmall), Err(TooSmall)]
    );
    assert_eq!(new(8 << 10, bytes), Err(TooSmall), "not even the words of all classes");
    assert_eq!(
        TooSmall.to_string(),
        "the memory for the magazines is too small, unaligned or could not be committed"
    );
}

// ---------------------------------------------------------------- stacks

#[test]
fn operations_on_a_stack_do_what_they_say() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    let region = table.region(0).unwrap();
    let look = || (region.head(class) / OP, region.head(class) & LEN, region.cap(class));
    assert_eq!((region.pop(class, Commit::Done), region.push(class, round(1), Commit::Done)), (None, false));
    let batch = |numbers: Range<usize>| region.push_batch(class, &rounds(numbers), Commit::Done);
    assert!(!batch(1..2), "nothing is committed");
    assert!(table.open(&Operation::new(), 0, class, 8));
    assert!(batch(1..2));
    assert_eq!(look(), (0, 1, 1));
    assert!(!region.push(class, round(2), Commit::Done));
    // Twice as many places, or as many as it takes, and never beyond the limit.
    assert!(batch(2..3));
    assert_eq!(look(), (0, 2, 2));
    assert!(batch(3..8));
    assert_eq!(look(), (0, 7, 7));
    assert!(!batch(8..10));
    assert_eq!(look(), (0, 7, 7));
    assert!(batch(8..9));
    assert_eq!(look(), (0, 8, 8));
    // Only pops and pushes are counted.
    assert_eq!(region.pop(class, Commit::Done), Some(round(8)));
    assert!(region.push(class, round(9), Commit::Done));
    assert_eq!(look(), (2, 8, 8));
    let mut magazine = Magazine::new();
    assert!(region.pop_batch(class, 3, &mut magazine, Commit::Done));
    assert_eq!((magazine.rounds(), look()), (&[round(6), round(7), round(9)][..], (2, 5, 8)));
    let mut none = Magazine::new();
    assert!(!region.pop_batch(class, 6, &mut none, Commit::Done) && none.is_empty());
    // What fits asks for no place, so the limit does not matter.
    table.set_limit(class, 2);
    assert!(region.push_batch(class, &rounds(11..14), Commit::Done));
    assert_eq!(look(), (2, 8, 8));
}

#[test]
fn a_class_that_is_closed_for_good_is_not_opened_by_another_limit() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    table.change_limit(class, 4);
    assert_eq!(table.limit(class).load(Relaxed), 4);
    table.set_limit(class, 0);
    table.change_limit(class, 4);
    assert_eq!(table.limit(class).load(Relaxed), 0);
}

#[test]
fn a_limit_that_shrinks_takes_nothing_away_and_widens_nothing() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..5)));
    table.set_limit(class, 2);
    let region = table.region(0).unwrap();
    assert!(!table.put(0, class, &[round(5)]));
    assert_eq!((table.len(0, class), region.cap(class)), (4, 4));
    assert!(region.pop(class, Commit::Done).is_some() && region.push(class, round(4), Commit::Done));
    assert_eq!(table.drain_all(Which::All, &[class]), [(class, vec![4, 3, 2, 1])]);
    assert!(!table.put(0, class, &rounds(1..4)) && table.put(0, class, &rounds(1..3)));
}

// ---------------------------------------------------------------- drains

#[test]
fn a_drain_takes_what_it_came_for_and_leaves_the_rest() {
    let table = simulated(3, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    for cpu in 0..3 {
        let first = 10 * cpu as usize + 1;
        assert!(table.put(cpu, one, &rounds(first..first + 3)) && table.put(cpu, two, &rounds(100..104)));
    }
    let mut given = vec![];
    table.drain(1..9, Which::All, [one].into_iter(), |class, taken| {
        assert_eq!((class, taken.len()), (one, 3));
        given.extend(core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get()));
    });
    assert_eq!(given, [13, 12, 11, 23, 22, 21]);
    assert_eq!([0, 1, 2].map(|cpu| (table.len(cpu, one), table.len(cpu, two))), [(3, 4), (0, 4), (0, 4)]);
    assert_eq!([0, 1].map(|cpu| table.region(cpu).unwrap().cap(one)), [3, 0], "and closes it");
    assert!(table.put(1, one, &rounds(1..9)), "until somebody comes back");
}

/// Once a cache that went took every CPU's region away, twice.
#[test]
fn a_class_that_goes_asks_nothing_of_cpus_that_did_not_use_it() {
    let table = simulated(3, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    assert!((0..3).all(|cpu| table.put(cpu, one, &rounds(1..4))));
    assert!(table.put(1, two, &rounds(4..7)));
    let claims = |claim| [0, 2].map(|cpu| table.region(cpu).unwrap().claim().store(claim, Relaxed));
    // Who wants these regions waits.
    claims(1);
    let done = AtomicBool::new(false);
    let passes = table.drains().passes;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            table.set_limit(two, 0);
            assert_eq!(table.drain_all(Which::All, &[two]), [(two, vec![6, 5, 4])]);
            assert!(
                !table.put(1, two, &rounds(4..7)) && !table.put(1, two, &[round(4)]),
                "it is closed for good"
            );
            table.retire(two);
            done.store(true, Relaxed);
        });
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !done.load(Relaxed) && std::time::Instant::now() < deadline {
            crate::sync::thread::yield_now();
        }
        let waited = !done.load(Relaxed);
        claims(0);
        assert!(!waited, "it waits for a CPU that never used the class");
    });
    assert_eq!(
        table.drains().passes - passes,
        1,
        "and where all is closed a number goes without another one"
    );
    assert_eq!(table.class(8), Some(two));
}

/// Once a drain gave away what another one had taken and was still giving away: two owners for each round.
#[test]
fn what_a_drain_is_giving_away_is_no_other_drains() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..5))));
    let mut given = 0;
    table.drain(0..2, Which::All, [class].into_iter(), |_, taken| {
        given += taken.len();
        for which in [Which::All, Which::Idle] {
            assert_eq!(table.drain_all(which, &[class]), []);
        }
        assert!(!table.put(0, class, &[round(9)]), "and nobody may write there");
        while taken.pop().is_some() {}
    });
    assert_eq!(given, 8);
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(table.put(0, class, &[round(9)]));
}

/// All idle stacks, and none that has served since the last look.
#[test]
fn a_reap_takes_idle_stacks_only() {
    let table = simulated(2, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    for cpu in 0..2 {
        assert!(table.put(cpu, one, &rounds(1..4)) && table.put(cpu, two, &rounds(4..7)));
    }
    let reap = || table.drain_all(Which::Idle, &[one, two]);
    assert_eq!(reap(), [], "nothing was seen before");
    let serve = |cpu, class| {
        let region = table.region(cpu).unwrap();
        let round = region.pop(class, Commit::Done).unwrap();
        assert!(region.push(class, round, Commit::Done));
    };
    serve(0, one);
    serve(1, two);
    assert_eq!(reap(), [(one, vec![3, 2, 1]), (two, vec![6, 5, 4])]);
    assert_eq!([0, 1].map(|cpu| (table.len(cpu, one), table.len(cpu, two))), [(3, 0), (0, 3)]);
    serve(0, one);
    assert_eq!(reap(), [(two, vec![6, 5, 4])]);
    assert_eq!(reap(), [(one, vec![3, 2, 1])]);
    assert_eq!(reap(), []);
}

#[test]
fn a_number_that_was_given_back_is_closed_and_empty_everywhere() {
    let table = simulated(3, 64 << 10);
    let class = table.class(8).unwrap();
    for cpu in [0, 2] {
        assert!(table.put(cpu, class, &rounds(1..5)));
        table.region(cpu).unwrap().pop(class, Commit::Done).unwrap();
    }
    // Seen, and nothing served: what another owner puts there is not idle at once.
    assert!(table.put(1, class, &rounds(1..5)));
    let other = table.class(8).unwrap();
    assert!(table.put(2, other, &rounds(1..3)));
    assert!(table.drain_all(Which::Idle, &[class]).is_empty());
    table.retire(class);
    for cpu in 0..3 {
        let region = table.region(cpu).unwrap();
        assert_eq!(
            (region.head(class), region.cap(class), region.seen(class), region.taken(class)),
            (0, 0, 0, 0)
        );
        // A late free.
        assert!(!region.push(class, round(1), Commit::Done) && !table.put(cpu, class, &[round(1)]));
    }
    assert_eq!(table.len(2, other), 2, "and another one is as it was");
}

#[test]
fn a_cpu_without_a_region_misses() {
    use crate::on_cpu;
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    on_cpu(2);
    let round = round(1);
    assert_eq!((claimed::pop(&table, class), claimed::push(&table, class, round)), (None, false));
    assert!(!claimed::push_batch(&table, class, &[round]));
    assert!(!claimed::pop_batch(&table, class, 1, &mut Magazine::new()));
    on_cpu(0);
}

// ---------------------------------------------------------------- fork

/// The child has one thread: claims are nobody's, and what a drain of another thread had not begun to give away lies where it
/// lay.
#[test]
fn a_child_finds_no_claim_and_no_drain_of_other_threads() {
    let table = simulated(2, 64 << 10);
    let [class, other] = [8, 8].map(|reach| table.class(reach).unwrap());
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..5)) && table.put(cpu, other, &rounds(5..7))));
    table.region(1).unwrap().claim().store(1, Relaxed);
    crate::on_cpu(1);
    assert_eq!(claimed::pop(&table, other), None);
    table.region(1).unwrap().claim().store(0, Relaxed);
    table.drain(0..2, Which::All, [class].into_iter(), |_, taken| {
        if taken.len() == 0 {
            return;
        }
        table.region(1).unwrap().claim().store(1, Relaxed);
        // SAFETY: this thread is the only one, as in a child.
        unsafe {
            table.before_fork();
            table.after_fork_in_child();
        }
        assert_eq!([0, 1].map(|cpu| table.region(cpu).unwrap().taken(class)), [0, 0]);
        assert_eq!(table.limit(class).load(Relaxed), 8);
        assert!(table.put(0, class, &rounds(1..9)), "the stack serves the child");
        assert_eq!([0, 1].map(|cpu| table.len(cpu, class)), [8, 4]);
        crate::on_cpu(1);
        let back: Vec<_> = core::iter::from_fn(|| claimed::pop(&table, class)).collect();
        assert_eq!(back, rounds(1..5).into_iter().rev().collect::<Vec<_>>());
        assert_eq!(claimed::pop(&table, other), Some(round(6)));
        // Back to the parent, so to speak: its drain ends as it began.
        // SAFETY: this thread is the only one.
        unsafe { table.close_again(class) };
        while taken.pop().is_some() {}
    });
    crate::on_cpu(0);
    assert!(table.drains.try_lock().is_some() && table.making.try_lock().is_some());
}

// ---------------------------------------------------------------- sweeps

/// Rounds that are given away, as numbers.
fn collected(table: &Table<impl Memory>, class: Class) -> Vec<usize> {
    let mut rounds = vec![];
    table.collect(class, |_, taken| {
        rounds.extend(core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get()));
    });
    rounds
}

#[test]
fn a_sweep_takes_from_those_that_take_part_and_each_collects_its_own() {
    let table = simulated(3, 64 << 10);
    let [one, two, silent] = [8; 3].map(|reach| table.class(reach).unwrap());
    for (start, class) in [(1, one), (11, two), (21, silent)] {
        assert!((0..2).all(|cpu| table.put(
            cpu,
            class,
            &rounds(start + 3 * cpu as usize..start + 3 + 3 * cpu as usize)
        )));
    }
    for class in [one, two] {
        table.join_sweeps(class, SweepGroup::new(0));
    }
    table.sweep(0..3, Which::All, |_| true);
    assert_eq!([one, two, silent].map(|class| table.limit(class).load(Relaxed)), [0, 0, 8]);
    assert!(!table.put(0, one, &rounds(90..91)), "closed until it is collected");
    assert_eq!((collected(&table, one), collected(&table, silent)), (vec![3, 2, 1, 6, 5, 4], vec![]));
    assert!(collected(&table, one).is_empty(), "once");
    assert_eq!([one, two].map(|class| table.limit(class).load(Relaxed)), [8, 0]);
    // A drain takes over what nobody has collected; the next sweep does, too.
    assert_eq!(table.drain_all(Which::Idle, &[two]), [(two, vec![13, 12, 11]), (two, vec![16, 15, 14])]);
    assert!(collected(&table, two).is_empty());
    assert!(table.put(2, two, &rounds(1..3)));
    (0..2).for_each(|_| table.sweep(0..3, Which::All, |_| true));
    assert_eq!(collected(&table, two), [2, 1]);
    assert_eq!(table.limit(two).load(Relaxed), 8);
    // Also what lay on other CPUs than its own.
    assert!(table.put(2, two, &rounds(1..3)));
    table.sweep(0..3, Which::All, |_| true);
    let mut rounds = 0;
    table.drain(0..1, Which::All, [two].into_iter(), |_, taken| {
        rounds += core::iter::from_fn(|| taken.pop()).count()
    });
    assert_eq!((rounds, table.limit(two).load(Relaxed)), (2, 8));
    // Who is idle nowhere is not closed.
    table.join_sweeps(silent, SweepGroup::new(0));
    table.sweep(0..3, Which::Idle, |_| true);
    assert_eq!(table.limit(silent).load(Relaxed), 8);
    table.sweep(0..1, Which::Idle, |_| true);
    assert_eq!(
        (collected(&table, silent), table.len(1, silent)),
        (vec![23, 22, 21], 3),
        "of those CPUs only"
    );
}

/// Found: each sweep used up who had asked, so a reap that came between left a shrink nothing to sweep.
#[test]
fn a_sweep_of_idle_stacks_leaves_the_others_to_the_sweep_of_all_that_comes_next() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(3));
    table.sweep(0..1, Which::Idle, |_| true);
    table.sweep(0..1, Which::All, |group| group != SweepGroup::new(3));
    assert!(collected(&table, class).is_empty(), "another group's");
    table.sweep(0..1, Which::All, |group| group == SweepGroup::new(3));
    assert_eq!(collected(&table, class), [3, 2, 1]);
}

#[test]
fn what_a_sweep_took_of_a_class_that_goes_is_forgotten_and_its_number_begins_anew() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(1, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..2, Which::All, |_| true);
    table.retire(class);
    assert_eq!(table.class(8), Some(class));
    assert!(collected(&table, class).is_empty());
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(table.put(1, class, &rounds(1..4)));
    table.sweep(0..2, Which::All, |_| true);
    assert_eq!(table.len(1, class), 3, "its predecessor took part");
}

/// Found: its stacks stayed closed in the child, and what lay on them was lost.
#[test]
fn a_child_finds_what_a_sweep_took_on_its_stacks() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..4))));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..2, Which::All, |_| true);
    // SAFETY: this thread is the only one.
    unsafe {
        table.before_fork();
        table.after_fork_in_child();
    }
    assert_eq!([0, 1].map(|cpu| table.len(cpu, class)), [3, 3]);
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(collected(&table, class).is_empty());
    assert_eq!(table.drain_all(Which::All, &[class]).len(), 2);
}

/// Memory that notes what goes back.
struct Noting {
    heap: Heap,
    gone: crate::sync::Mutex<Vec<Range<usize>>>,
}
// SAFETY: the heap's; what is released is made zero.
unsafe impl Memory for Noting {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        self.heap.commit(op, range)
    }
    unsafe fn release(&self, range: Range<usize>) -> bool {
        // SAFETY: in the heap's range; by contract nobody minds.
        unsafe { self.base().add(range.start).write_bytes(0, range.len()) };
        self.gone.lock().push(range);
        true
    }
}

fn noting(cpus: u32) -> Table<Noting> {
    let (cpus, region) = (Cpus::simulated(cpus, 1).unwrap(), 128 << 10);
    let heap = Heap::new(Table::<Noting>::footprint(&cpus, region)).unwrap();
    let memory = Noting { heap, gone: crate::sync::Mutex::ranked(Rank::Faults, vec![]) };
    Table::new(cpus, region, memory).unwrap()
}

#[test]
fn pages_of_idle_stacks_go_back_once_and_those_beside_stay() {
    let table = noting(2);
    // Two that share a page, one of two pages, and one of a size that shares with nobody.
    let [a, b] = [100; 2].map(|reach| table.class(reach).unwrap());
    let large = table.class(700).unwrap();
    let alone = table.class(30).unwrap();
    assert_eq!(a.stack as usize / PAGE, b.stack as usize / PAGE);
    let classes = [a, b, large, alone];
    classes.iter().for_each(|class| table.join_sweeps(*class, SweepGroup::new(0)));
    let reap = || {
        table.sweep(0..2, Which::Idle, |_| true);
        classes.iter().for_each(|class| _ = collected(&table, *class));
        (table.release_idle(), core::mem::take(&mut *table.memory.gone.lock()).len())
    };
    for class in classes {
        assert!(table.put(1, class, &rounds(1..9)));
    }
    assert_eq!(reap(), (0, 0), "seen for the first time");
    assert!(table.put(1, b, &rounds(9..10)), "in use");
    let pages = table.numbers[large.index as usize].pages().len();
    assert!(pages > 1);
    assert_eq!(reap().0, (pages + 1) * PAGE, "but not the page that one in use lies on");
    assert_eq!((table.len(1, b), table.len(1, a)), (9, 0));
    assert_eq!(reap(), (PAGE, 1), "now it is idle, too");
    assert_eq!(reap(), (0, 0), "once");
    for class in classes {
        let region = table.region(1).unwrap();
        assert_eq!(region.round(class, 0), None);
        assert!(table.put(1, class, &rounds(1..9)), "it serves again");
        assert_eq!(table.limit(class).load(Relaxed), [100, 100, 700, 30][class.index as usize - 1]);
    }
    // Numbers that are given back leave nothing either.
    classes.iter().for_each(|class| table.retire(*class));
    assert_eq!(table.release_idle(), (pages + 2) * PAGE);
    assert!(table.region(1).unwrap().backed().is_empty());
}

#[test]
fn a_stack_that_was_never_used_is_closed_already_and_has_no_page_to_give_back() {
    let table = noting(1);
    let [used, unused] = [700, 700].map(|reach| table.class(reach).unwrap());
    assert!(table.put(0, used, &rounds(1..9)));
    assert_eq!(table.drain_all(Which::All, &[used, unused]).len(), 1);
    let (region, pages) =
        (table.region(0).unwrap(), |class: Class| table.numbers[class.index as usize].pages());
    assert!(pages(used).all(|page| region.backed().has(page)));
    assert!(!pages(unused).any(|page| region.backed().has(page)));
    assert_eq!(table.release_idle(), pages(used).len() * PAGE);
    let start = table.home(0).addr().get() - table.memory.base().addr().get();
    let gone = start + pages(used).start * PAGE..start + pages(used).end * PAGE;
    assert_eq!(*table.memory.gone.lock(), [gone]);
}

/// Found: they were zero before the supplier had them.
#[test]
fn rounds_that_are_being_given_away_stay_on_their_page() {
    let table = noting(1);
    let class = table.class(700).unwrap();
    assert!(table.put(0, class, &rounds(1..9)));
    table.drain(0..1, Which::All, [class].into_iter(), |_, taken| {
        assert_eq!(table.release_idle(), 0);
        assert_eq!(core::iter::from_fn(|| taken.pop()).count(), 8);
    });
    assert!(table.release_idle() > 0);
}

#[test]
fn what_a_stack_has_served_stays_counted_when_its_page_goes_back() {
    let table = noting(1);
    let class = table.class(700).unwrap();
    let region = table.region(0).unwrap();
    for round in 1..=2 {
        assert!(table.put(0, class, &rounds(1..9)));
        for _ in 0..3 {
            let round = region.pop(class, Commit::Done).unwrap();
            assert!(region.push(class, round, Commit::Done));
        }
        table.drain(0..1, Which::All, [class].into_iter(), |_, taken| while taken.pop().is_some() {});
        assert_eq!(region.served(class), (6 * round, 0));
        assert!(table.release_idle() > 0);
        assert_eq!((region.head(class), region.served(class)), (0, (6 * round, 0)));
    }
    table.retire(class);
    assert_eq!(table.class(700).map(|class| region.served(class)), Some((0, 0)), "another owner begins anew");
}

/// Found: a stack that no drain had seen yet was closed with its rounds, because the class's page of another CPU went back.
#[test]
fn a_stack_that_nobody_saw_stays_as_it_is_while_pages_of_another_cpu_go_back() {
    let table = noting(2);
    let class = table.class(700).unwrap();
    assert!(table.put(0, class, &rounds(1..9)));
    table.drain(0..1, Which::All, [class].into_iter(), |_, taken| while taken.pop().is_some() {});
    assert!(table.put(1, class, &rounds(9..17)));
    assert!(table.release_idle() > 0);
    let region = table.region(1).unwrap();
    assert_eq!((table.len(1, class), region.cap(class)), (8, 8));
    assert_eq!(region.pop(class, Commit::Done), Some(round(16)));
}

#[test]
fn no_head_or_cap_lies_at_the_beginning_of_a_line() {
    let table = simulated(1, 1 << 20);
    for class in [1, 7, 8, 64, 500, 1216].map(|reach| table.class(reach).unwrap()) {
        let head = class.stack as usize % LINE;
        assert!(head >= 2 * CAP, "{class:?}");
    }
}

#[test]
fn pages_are_told_apart_in_runs() {
    let mut pages = Pages::default();
    [0, 1, 63, 64, 65, 1023].into_iter().for_each(|page| pages.add(page));
    assert_eq!(pages.runs().collect::<Vec<_>>(), [0..2, 63..66, 1023..1024]);
}

// ---------------------------------------------------------------- real CPUs

/// What was taken away is the drain's alone behind the fence: it looks twice, and sees the same.
#[test]
fn a_region_that_was_taken_away_is_written_by_nobody() {
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let table = table(cpus);
        let classes = [table.class(64).unwrap(), table.class(64).unwrap()];
        let stop = AtomicBool::new(false);
        let (looks, used, written) = std::thread::scope(|scope| {
            for t in 0..4 {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let class = classes[t % 2];
                    let fast_paths = crate::FastPath::<crate::test_round::TestRound, Heap>::new(table, class);
                    let mut held: Vec<_> =
                        (0..32).map(|i| crate::test_round::TestRound(t * 100 + i + 1)).collect();
                    let mut turn = 0_u32;
                    while !stop.load(Relaxed) {
                        turn += 1;
                        if turn % 64 < 32 {
                            if let Some(round) = held.pop() {
                                // SAFETY: the table lives.
                                if !unsafe { fast_paths.free(round) } {
                                    let rounds = [crate::Round::into_raw(round)];
                                    let push = || match table.cpus.mechanism() {
                                        Mechanism::Rseq => {
                                            rseq::push_batch(&**table, fast_paths.pcpu(), class, &rounds)
                                        }
                                        Mechanism::Claimed => claimed::push_batch(&**table, class, &rounds),
                                    };
                                    let pushed = push()
                                        || table.open(&Operation::new(), table.cpus.current(), class, 64)
                                            && push();
                                    if !pushed {
                                        held.push(round);
                                    }
                                }
                            }
                        } else {
                            // SAFETY: as above.
                            held.extend(unsafe { fast_paths.alloc() });
                        }
                    }
                });
            }
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let (mut looks, mut used, mut written) = (0, 0, 0);
            while used < 500 && written == 0 && std::time::Instant::now() < deadline {
                let look = |region: Region<'_>| {
                    classes.map(|class| {
                        let head = region.head(class);
                        let places: Vec<_> = (0..=64).map(|i| region.round(class, i)).collect();
                        (head, region.cap(class), places)
                    })
                };
                let mut owned = |region: Region<'_>| {
                    let before = look(region);
                    if looks % 8 == 0 {
                        crate::sync::thread::yield_now();
                    }
                    written += u32::from(before != look(region));
                    used += u32::from(before.iter().any(|(head, ..)| *head > 0));
                    looks += 1;
                };
                let _one_at_a_time = table.lock_drains();
                assert!(table.with_regions(0..table.cpus.count(), |_| true, &mut owned));
            }
            stop.store(true, Relaxed);
            (looks, used, written)
        });
        assert_eq!(written, 0, "a region that was taken away was written");
        assert!(used > 0, "{looks} looks at regions, none of which was used");
        let drains = table.drains();
        assert!(drains.passes > 0 && drains.refused == 0, "{drains:?}");
        // The empty one is as it was.
        let empty = table.home(cpus.count());
        // SAFETY: in the table's memory, and whoever wrote there was joined.
        let words = unsafe { core::slice::from_raw_parts(empty.cast::<u64>().as_ptr(), table.region / 8) };
        assert!(words.iter().all(|word| *word == 0), "the empty region was written");
    }
}
