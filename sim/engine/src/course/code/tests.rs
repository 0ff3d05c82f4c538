//! Tests that the judges reject starters and wrong solutions, and that they accept the reference solutions.

use super::{Buddy, FreeLists, Reaper, Verdict, exchange, merge, partial, reaping, reference};
use crate::policy::*;
use uslab_lab::course::{Layer, PerCpu, See, Shared};

#[path = "starters"]
#[expect(unreachable_pub, reason = "the starting file must compile")]
mod handed_out {
    pub(super) mod exchange;
    pub(super) mod merge;
    pub(super) mod partial;
    pub(super) mod reaping;
}

const SEEDS: std::ops::Range<u32> = 0..4;

/// Returns a description of each check that failed. If an operation failed, the verdict must contain displayable
/// states, with the state of the failure among them.
fn fails(verdict: &Verdict) -> Vec<String> {
    let failed_checks = verdict.checks.iter().filter(|check| !check.holds);
    let errors: Vec<_> = failed_checks.map(|check| format!("{}: {}", check.wanted, check.found)).collect();
    match &verdict.failure {
        Some(failure) => {
            let moments = |field: &str| failure[field].as_array().unwrap().len();
            let all = moments("views") + moments("scenes");
            assert_eq!(failure["at"].as_u64(), Some(all as u64 - 1), "{errors:?}");
            assert!(!failure["wrong"].as_str().unwrap().is_empty());
        }
        None => assert!(errors.is_empty() || verdict.checks.len() > 1, "{errors:?}"),
    }
    errors
}
#[track_caller]
fn assert_fails_with(verdict: &Verdict, expected: &str) {
    let failed_checks = fails(verdict);
    assert!(
        failed_checks.iter().any(|errors| errors.contains(expected)),
        "{}: {failed_checks:?}",
        verdict.lab
    );
}

#[test]
fn solved_exercises_pass_on_each_seed() {
    for seed in SEEDS {
        for verdict in [
            merge::<reference::merge::Exercise>(seed),
            partial::<reference::partial::Exercise>(seed),
            exchange::<reference::exchange::Exercise<_>>(seed),
            reaping::<reference::reaping::Exercise>(seed),
        ] {
            assert!(verdict.holds(), "{}: {:?}", verdict.lab, fails(&verdict));
            assert_eq!(verdict.failure, None);
            let parsed: Verdict = serde_json::from_str(&verdict.json()).unwrap();
            assert_eq!(parsed, verdict);
        }
    }
}

#[test]
fn unsolved_exercises_run_but_are_rejected() {
    for seed in SEEDS {
        assert_fails_with(
            &merge::<handed_out::merge::Exercise>(seed),
            "are buddies, both free, and not merged",
        );
        assert_fails_with(&partial::<handed_out::partial::Exercise>(seed), "mean number of slabs");
        assert_fails_with(&exchange::<handed_out::exchange::Exercise<_>>(seed), "visits to the depot");
        assert_fails_with(&reaping::<handed_out::reaping::Exercise>(seed), "the cost is at most ");
    }
}

#[test]
fn different_seeds_give_different_streams() {
    let result = |seed| partial::<reference::partial::Exercise>(seed).checks[0].found.clone();
    assert_ne!(result(1), result(2));
    assert_eq!(result(1), result(1));
}

// ---------------------------------------------------------------- merge

/// Defines a merging policy that allocates like the reference solution.
macro_rules! merges {
    ($name:ident, |$lists:ident, $page:ident, $order:ident| $free:block) => {
        #[derive(Debug)]
        struct $name;
        impl Buddy for $name {
            fn alloc(lists: &mut FreeLists, order: u8) -> Option<u32> {
                reference::merge::Exercise::alloc(lists, order)
            }
            fn free($lists: &mut FreeLists, $page: u32, $order: u8) $free
        }
    };
}

#[test]
fn wrong_solutions_of_the_merge_exercise_are_detected() {
    merges!(Once, |lists, page, order| {
        let (mut page, mut order) = (page, order);
        if order < lists.order() && lists.remove(page ^ (1 << order), order) {
            page &= !(1 << order);
            order += 1;
        }
        lists.push(page, order);
    });
    merges!(KeepsTheUpperAddress, |lists, page, order| {
        let (mut page, mut order) = (page, order);
        while order < lists.order() && lists.remove(page ^ (1 << order), order) {
            page |= 1 << order;
            order += 1;
        }
        lists.push(page, order);
    });
    merges!(LosesTheBuddy, |lists, page, order| {
        if order < lists.order() {
            lists.remove(page ^ (1 << order), order);
        }
        lists.push(page, order);
    });
    merges!(Searches, |lists, page, order| {
        let (mut page, mut order) = (page, order);
        (0..64).for_each(|page_number| _ = lists.remove(1 << 20 | page_number, 0));
        while order < lists.order() && lists.remove(page ^ (1 << order), order) {
            page &= !(1 << order);
            order += 1;
        }
        lists.push(page, order);
    });
    assert_fails_with(&merge::<Once>(1), "are buddies, both free, and not merged");
    assert_fails_with(&merge::<KeepsTheUpperAddress>(1), "is not aligned to its order");
    assert_fails_with(&merge::<LosesTheBuddy>(1), "is in no block");
    assert_fails_with(&merge::<Searches>(1), "list accesses during all frees");
}

#[test]
fn wrong_buddy_allocation_solutions_are_detected() {
    #[derive(Debug)]
    struct NeverSplittingBuddy;
    impl Buddy for NeverSplittingBuddy {
        fn alloc(lists: &mut FreeLists, order: u8) -> Option<u32> {
            lists.pop(order)
        }
        fn free(lists: &mut FreeLists, page: u32, order: u8) {
            reference::merge::Exercise::free(lists, page, order);
        }
    }
    #[derive(Debug)]
    struct DoubleAllocatingBuddy;
    impl Buddy for DoubleAllocatingBuddy {
        fn alloc(lists: &mut FreeLists, order: u8) -> Option<u32> {
            let page = reference::merge::Exercise::alloc(lists, order)?;
            lists.push(page, order);
            Some(page)
        }
        fn free(lists: &mut FreeLists, page: u32, order: u8) {
            reference::merge::Exercise::free(lists, page, order);
        }
    }
    assert_fails_with(&merge::<NeverSplittingBuddy>(1), "is refused, although a free block is large enough");
    assert_fails_with(
        &merge::<DoubleAllocatingBuddy>(1),
        "is in two blocks: one is in use, the other is free",
    );
}

// ---------------------------------------------------------------- partial

/// Finds the fullest slab by inspecting all slabs.
#[derive(Debug)]
struct ScanAllSlabsPolicy;

impl Policy for ScanAllSlabsPolicy {
    const NAME: &'static str = "walks";
    const DESCRIPTION: &'static str = "the fullest slab, by a walk";
    type Knobs = ();
    const LISTS: &'static [&'static str] = &["all", "full"];
    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &()) -> Self {
        Self
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        let fullest =
            op.slabs.walk(0).filter(|slab| op.slabs.free(*slab) > 0).min_by_key(|slab| op.slabs.free(*slab));
        let slab = fullest.map_or_else(|| op.make(0), Ok)?;
        op.slabs.take(slab).ok_or(NoMemory)
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        op.slabs.put(object);
        if op.slabs.is_empty(object.slab) {
            op.release(object.slab);
        }
    }
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        0
    }
}

/// A broken policy: depending on `FAULT`, it loses each hundredth object, allocates one object twice, or keeps empty
/// slabs.
#[derive(Debug)]
struct FaultyPolicy<const FAULT: u8>(Option<Object>, u32);

impl<const FAULT: u8> Policy for FaultyPolicy<FAULT> {
    const NAME: &'static str = "wrong";
    const DESCRIPTION: &'static str = "wrong";
    type Knobs = ();
    const LISTS: &'static [&'static str] = reference::partial::Exercise::LISTS;
    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &()) -> Self {
        Self(None, 0)
    }
    fn alloc(&mut self, op: &mut Op<'_>) -> Result<Object, NoMemory> {
        match self.0.filter(|_| FAULT == 1) {
            Some(object) => Ok(object),
            None => {
                let object = reference::partial::Exercise.alloc(op)?;
                self.0 = Some(object);
                Ok(object)
            }
        }
    }
    fn free(&mut self, op: &mut Op<'_>, object: Object) {
        self.1 += 1;
        match FAULT {
            0 if self.1 == 100 => {}
            2 if op.slabs.free(object.slab) + 1 == op.slabs.objects() => op.slabs.put(object),
            3 => panic!("free number {} exceeds the limit", self.1),
            _ => reference::partial::Exercise.free(op, object),
        }
    }
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        0
    }
}

#[test]
fn wrong_solutions_of_the_cache_exercises_are_detected() {
    assert_fails_with(&partial::<ScanAllSlabsPolicy>(1), "slabs inspected and moved per operation");
    assert_fails_with(&partial::<FaultyPolicy<0>>(1), "neither in a slab, in use nor cached: 1; expected 0");
    assert_fails_with(&partial::<FaultyPolicy<1>>(1), "is allocated twice");
    assert_fails_with(&partial::<FaultyPolicy<2>>(1), "the policy frees all slabs when all objects are free");
    assert_fails_with(&partial::<FaultyPolicy<3>>(1), "the policy panics: free number 1 exceeds the limit");
}

// ---------------------------------------------------------------- exchange

/// A magazine layer with one locked magazine per CPU and no previous magazine.
#[derive(Debug)]
struct OneMagazine<T> {
    rounds: usize,
    cpus: Vec<PerCpu<Vec<T>>>,
    depot: Shared<Vec<Vec<T>>>,
}

impl<T: std::fmt::Debug + Send> Layer<T> for OneMagazine<T> {
    fn new(cpus: usize, rounds: usize) -> Self {
        let cpus = (0..cpus).map(|_| PerCpu::new(vec![])).collect();
        Self { rounds, cpus, depot: Shared::new(vec![]) }
    }
    fn alloc(&self, cpu: usize) -> Option<T> {
        let mut loaded_magazine = self.cpus[cpu].lock();
        if loaded_magazine.is_empty() {
            *loaded_magazine = self.depot.lock().pop()?;
        }
        loaded_magazine.pop()
    }
    fn free(&self, cpu: usize, round: T) {
        let mut loaded_magazine = self.cpus[cpu].lock();
        if loaded_magazine.len() == self.rounds {
            let full = std::mem::take(&mut *loaded_magazine);
            self.depot.lock().push(full);
        }
        loaded_magazine.push(round);
    }
    fn drain(&self) -> Vec<T> {
        let cpus = self.cpus.iter().flat_map(|cpu| std::mem::take(&mut *cpu.lock()));
        let mut all: Vec<T> = cpus.collect();
        all.extend(self.depot.lock().drain(..).flatten());
        all
    }
    fn each_magazine(&self, see: See<'_, T>) {
        for (cpu, loaded_magazine) in self.cpus.iter().enumerate() {
            see(Some(cpu), "loaded", &loaded_magazine.lock());
        }
        self.depot.lock().iter().for_each(|magazine| see(None, "magazine", magazine));
    }
}

#[test]
fn single_magazine_visits_the_depot_too_often() {
    assert_fails_with(&exchange::<OneMagazine<_>>(1), "visits to the depot");
}

// ---------------------------------------------------------------- reaping

#[derive(Debug, Default)]
struct FlushAllReaper;
impl Reaper for FlushAllReaper {
    fn visited(&mut self, _: usize) {}
    fn reap(&mut self, full: usize) -> usize {
        full
    }
}
#[derive(Debug, Default)]
struct FlushHalfReaper;
impl Reaper for FlushHalfReaper {
    fn visited(&mut self, _: usize) {}
    fn reap(&mut self, full: usize) -> usize {
        full / 2
    }
}
#[derive(Debug, Default)]
struct ExcessiveFlushReaper;
impl Reaper for ExcessiveFlushReaper {
    fn visited(&mut self, _: usize) {}
    fn reap(&mut self, full: usize) -> usize {
        full + 1
    }
}

#[test]
fn flushing_half_or_all_depot_magazines_costs_more() {
    for seed in SEEDS {
        assert_fails_with(&reaping::<FlushAllReaper>(seed), "the cost is at most ");
        assert_fails_with(&reaping::<FlushHalfReaper>(seed), "the cost is at most ");
    }
    assert_fails_with(&reaping::<ExcessiveFlushReaper>(1), " magazines, but the depot has only ");
}
