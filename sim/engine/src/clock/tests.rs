use super::*;
use crate::models::bonwick94::{self, Bonwick94};
use crate::models::magazines01::{self, Magazines01};
use crate::models::sheaves::{self, Node, Sheaves};
use crate::models::slab::{self, Slab};
use crate::models::slub::{self, Slub};
use crate::models::uslab::{self, Uslab};

fn price(ns: f64) -> Price {
    Price { ns, spread: [ns, ns], source: "made up".to_owned() }
}
/// A test profile: the two CPUs of a pair are 10 ns apart, and CPUs of different pairs are 100 ns apart.
fn profile() -> Profile {
    Profile {
        name: "made up".to_owned(),
        validated_cpus: 0,
        own: price(1.0),
        lock: price(2.0),
        exchange: price(4.0),
        object: price(3.0),
        batched: price(0.5),
        relist: price(5.0),
        slab: price(50.0),
        levels: vec![Level { cpus: 2, line: price(10.0) }, Level { cpus: 0, line: price(100.0) }],
    }
}
/// The effects of a free in a design with two locks that all CPUs share.
fn effects<'a>(cost_events: &'a [CostEvent], frames: &'a [u32]) -> OperationEffects<'a> {
    let lines = Lines { depot: 1, lists: 1, counts: 0, slabs: 0 };
    OperationEffects {
        cache: 0,
        cost_events,
        frames,
        takes_cpu_lock: false,
        container_objects: 16,
        depot_slot: 0,
        taken: false,
        lines,
    }
}

#[test]
fn operation_served_by_its_cpu_costs_its_work_and_the_cpu_lock() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    assert_eq!(clock.charge(0, 7.0, &effects(&[], &[0])), (8.0, false));
    let locked = OperationEffects { takes_cpu_lock: true, ..effects(&[], &[0]) };
    assert_eq!(clock.charge(1, 7.0, &locked), (10.0, false));
    assert_eq!((clock.moved_lines, clock.waited_ns), (0, 0.0));
}

#[test]
fn second_cpu_waits_for_the_contended_lock() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    // The CPU's own work costs 1, the lock costs 2, and the object costs 3.
    assert_eq!(clock.charge(0, 0.0, &effects(&[CostEvent::Refill(1)], &[0])).0, 6.0);
    // The CPU requests the lock at 1 and waits until 6. The lock costs 2, the lock's line and the slab's line
    // cost 10 each, and the object costs 3.
    assert_eq!(clock.charge(1, 0.0, &effects(&[CostEvent::Refill(1)], &[0])).0, 31.0);
    // The other pair of CPUs is farther away; the operation uses a new slab.
    assert_eq!(
        clock.charge(2, 40.0, &effects(&[CostEvent::Refill(1)], &[1])).0,
        40.0 + 1.0 + 2.0 + 100.0 + 3.0
    );
    let lists = clock.counts[&Lock::Lists(0)];
    assert_eq!((lists.taken, lists.contended, lists.waited_ns), (3, 1, 5.0));
    assert_eq!((clock.moved_lines, clock.waited_ns), (3, 5.0));
}

/// Two caches have two depots, two sets of slab lists, and slabs on different pages.
#[test]
fn simulated_caches_share_no_lock_or_cache_line() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    let effects_of = |cache: u32, events: &'static [CostEvent]| OperationEffects {
        cache,
        ..effects(events, [&[0], &[1]][cache as usize])
    };
    for events in [&[CostEvent::Refill(1)][..], &[CostEvent::Exchange], &[CostEvent::Relist]] {
        let time = clock.charge(0, 0.0, &effects_of(0, events));
        assert_eq!(clock.charge(1, 0.0, &effects_of(1, events)), time, "{events:?}");
        clock = Clock { counts: clock.counts, ..Clock::new(&profile) };
    }
    assert_eq!((clock.locks(|lock| matches!(lock, Lock::Lists(_))).taken, clock.counts.len()), (4, 4));
}

#[test]
fn depot_lock_is_released_before_the_magazine_is_fetched() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    assert_eq!(clock.charge(0, 0.0, &effects(&[CostEvent::Exchange], &[])), (7.0, false));
    // The lock's line moves, then a header and sixteen objects in three lines.
    assert_eq!(
        clock.charge(1, 10.0, &effects(&[CostEvent::Exchange], &[])),
        (10.0 + 7.0 + 10.0 + 30.0, false)
    );
    assert_eq!(clock.free[&Lock::Depot(0)], 27.0);
    // The clock reports the wait for the depot, because contention makes magazines grow.
    assert_eq!(clock.charge(0, 20.0, &effects(&[CostEvent::Miss], &[])), (27.0 + 2.0 + 10.0 + 4.0, true));
}

#[test]
fn written_cache_lines_become_exclusive() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    let exchange_effects = effects(&[CostEvent::Exchange], &[]);
    let take = OperationEffects { taken: true, ..effects(&[CostEvent::Exchange], &[]) };
    for (cpu, visit, lines, reason) in [
        (0, &exchange_effects, 0, "no CPU had them"),
        (1, &take, 4, "the lock's and the magazine's three"),
        (0, &exchange_effects, 4, "the same: CPU 1 still has the magazine"),
        (0, &take, 0, "all is here"),
        (
            2,
            &OperationEffects { depot_slot: 1, ..effects(&[CostEvent::Exchange], &[]) },
            1,
            "another magazine's place, the same lock",
        ),
        (1, &take, 4, "it was written since"),
        (2, &take, 4, "CPU 0 wrote it, and CPU 1 has it, too"),
        (1, &take, 1, "the magazine is here, and was only read elsewhere"),
    ] {
        let before = clock.moved_lines;
        clock.charge(cpu, 1000.0, visit);
        assert_eq!(clock.moved_lines - before, lines, "CPU {cpu}: {reason}");
    }
}

#[test]
fn cache_lines_of_counters_move_to_the_cpu_that_updates_them() {
    let profile = profile();
    let mut clock = Clock::new(&profile);
    let lines = Lines { depot: 1, lists: 2, counts: 3, slabs: 1 };
    let grows = &[CostEvent::Refill(0), CostEvent::Made, CostEvent::Refill(2)][..];
    let effects_on =
        |cost_events, frames| OperationEffects { lines, taken: true, ..effects(cost_events, frames) };
    for (cpu, operation, lines, reason) in [
        (0, effects_on(grows, &[7, 8]), 0, "no CPU had them"),
        (
            1,
            effects_on(grows, &[9, 8]),
            11,
            "two of the lists, three of the zone, a frame, three counts, the depot's, one of slabs",
        ),
        (1, effects_on(&[], &[]), 0, "all is here"),
        (0, effects_on(&[], &[]), 0, "nothing is counted"),
        (0, effects_on(&[CostEvent::Exchange], &[]), 4, "three counts, and the depot's with its lock"),
        (1, effects_on(&[CostEvent::Flush(1)], &[9, 7]), 5, "three counts, the depot's and a frame"),
        (0, effects_on(&[CostEvent::Widened], &[]), 4, "three counts and the depot's"),
    ] {
        let before = clock.moved_lines;
        clock.charge(cpu, 1000.0, &operation);
        assert_eq!(clock.moved_lines - before, lines, "CPU {cpu}: {reason}");
    }
}

#[test]
fn first_object_of_a_batch_includes_the_visit_cost() {
    assert_eq!([0, 1, 5].map(|n| profile().move_objects_ns(n)), [0.0, 3.0, 5.0]);
    let profile = profile();
    let mut clock = Clock::new(&profile);
    assert_eq!(clock.charge(0, 0.0, &effects(&[CostEvent::Flush(5)], &[])).0, 1.0 + 2.0 + 5.0);
}

fn point<P: Policy>(knobs: P::Knobs, workload: &str, cpus: u32, seed: u64) -> Outcome {
    outcome_after_operations::<P>(2000, knobs, workload, cpus, seed)
}
fn outcome_after_operations<P: Policy>(
    operations: u64,
    knobs: P::Knobs,
    workload: &str,
    cpus: u32,
    seed: u64,
) -> Outcome {
    let profile = Profile::built_in().next().expect("a profile must be built in");
    let pages = Pages::new(cpus).unwrap();
    run::<P>(&pages, knobs, &workload.parse().unwrap(), &profile, 64, operations, seed).unwrap()
}

/// "Magazines and Vmem", figure 2: with a single lock, the total throughput falls as the number of CPUs grows. With
/// magazines, throughput grows with the number of CPUs.
#[test]
fn magazines_scale_better_than_a_single_lock() {
    // The run is long enough that the first slabs do not matter.
    const LONG: u64 = 20_000;
    let simulate = |cpus| {
        outcome_after_operations::<Bonwick94>(LONG, bonwick94::Knobs::default(), "pairs", cpus, 1)
            .operations_per_us
    };
    let magazines = |cpus| {
        outcome_after_operations::<Magazines01>(LONG, magazines01::Knobs::default(), "pairs", cpus, 1)
            .operations_per_us
    };
    let (lock, layer) = ([1, 2, 4, 8, 16].map(simulate), [1, 2, 4, 8, 16].map(magazines));
    assert!(lock[1..].iter().all(|later_mean| *later_mean < lock[0] / 2.0), "{lock:?}");
    for (index, speed) in layer.into_iter().enumerate() {
        let (cpus, speed_up) = (f64::from(1 << index), speed / layer[0]);
        assert!(speed_up > 0.85 * cpus && speed_up <= cpus, "{cpus} CPUs: {speed_up} of {layer:?}");
    }
    assert!(layer[4] > 20.0 * lock[4], "{layer:?}, {lock:?}");
}

#[test]
fn depot_contention_enlarges_magazines() {
    let size = |cpus| point::<Magazines01>(magazines01::Knobs::default(), "bursts", cpus, 1).container;
    assert_eq!(size(1), 15);
    assert!(size(16) > size(1) && size(16) <= 143, "{}", size(16));
}

#[test]
fn simulated_outcome_depends_only_on_the_seed() {
    let point_of_seed = |seed| point::<Slub>(slub::Knobs::default(), "server=500", 3, seed);
    assert_eq!(point_of_seed(7), point_of_seed(7));
    assert_ne!(point_of_seed(7), point_of_seed(8));
}

#[test]
fn each_workload_finishes_on_any_number_of_cpus() {
    let names = Workload::ALL.map(|(name, _)| name.split_once('=').map_or(name, |(name, _)| name));
    for workload in names {
        for cpus in [1, 2, 3, 8] {
            let all = [
                point::<Uslab>(uslab::Knobs::default(), workload, cpus, 1),
                point::<Slub>(slub::Knobs::default(), workload, cpus, 1),
                point::<Sheaves<Node>>(
                    sheaves::Knobs { sheaf_capacity: Some(sheaves::Capacity::Objects(28)), ..<_>::default() },
                    workload,
                    cpus,
                    1,
                ),
                point::<Slab>(slab::Knobs::default(), workload, cpus, 1),
                point::<Bonwick94>(bonwick94::Knobs::default(), workload, cpus, 1),
                point::<Magazines01>(magazines01::Knobs::default(), workload, cpus, 1),
            ];
            for outcome in all {
                assert!(outcome.operations >= 2000, "{workload} on {cpus}: {outcome:?}");
                assert_eq!(outcome.paths.operations(), outcome.operations, "{workload} on {cpus}");
                assert!(outcome.ns > 0.0 && (0.0..1.0).contains(&outcome.waiting), "{workload}: {outcome:?}");
            }
        }
    }
}

#[test]
fn workload_is_parsed_from_its_name_and_parameters() {
    for (text, error) in [
        ("churn", "unknown workload `churn`; expected one of pairs, bursts=N"),
        ("pairs=2", "unknown workload `pairs=2`"),
        ("bursts=0", "`bursts=0`: expected bursts=N with N from 1 to 1048576"),
        ("remote=101", "`remote=101`: expected remote=N with N from 1 to 100"),
        ("server=many", "`server=many`: expected server=N"),
    ] {
        let message = text.parse::<Workload>().unwrap_err().to_string();
        assert!(message.starts_with(error), "{message}");
    }
    assert_eq!("remote=20".parse::<Workload>().unwrap().to_string(), "remote=20");
}

#[test]
fn clock_profile_has_a_source_for_each_price() {
    let names: Vec<_> = Profile::built_in().map(|profile| profile.name).collect();
    assert_eq!(names, ["vm2", "milan2s"], "all profiles must parse");
    for profile in Profile::built_in() {
        for (name, price) in profile.prices() {
            assert!(price.source.len() > 20, "{} of {}: {}", name, profile.name, price.source);
        }
    }
    let profile = profile();
    assert_eq!(
        [(0, 1), (1, 2), (2, 3)].map(|(from, to)| profile.cache_line_move_ns(from, to)),
        [10.0, 100.0, 10.0]
    );
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(Profile::parse(&text), Ok(profile));
    for (from, to, error) in [
        ("\"lock\"", "\"look\"", "unknown field `look`"),
        ("\"ns\":2.0", "\"ns\":-2.0", "lock: -2 ns with a spread of 2 to 2; expected"),
        ("\"cpus\":0", "\"cpus\":8", "levels: expected a last level of all CPUs"),
    ] {
        let message = Profile::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(message.starts_with(error), "{message}");
    }
}
