//! Exhaustive models of the slab floor: the shipping source under loom, on two to four pages of two objects each.
//!
//! | model | claim | planted bug that it catches |
//! |---|---|---|
//! | S1 | two frees and an allocation on one slab: it is always on the list that its fill says, moved once | the list is found in one lock hold and left in the next |
//! | S2 | shrink takes a slab only while no object is out; an allocation never gets an object of a released slab | the slab is chosen in one lock hold and used in the next |
//! | S3 | caches that press each other for the last page, and shrink beside refill: no deadlock | a node's lock is held under pressure |
//! | C1 | destroy beside the last free: refused, or every slab is released once, after the free | a slab goes though the judgement is of an earlier lock hold |
//! | C1' | destroy beside an allocation: the allocation fails, or destroy is refused | as C1 |
//! | C2 | dropping a cache beside a visitor who has its objects in hand: whoever is last sees to its end, alone | it is given up as one in use; two see to its end |
//! | C3 | dropping a cache beside the frees of its last objects: whoever is last sees to its end, alone | the last to leave does not look back; who came meanwhile is overlooked; the magazines of a cache that is left stay open |
//! | C4 | the last free of a cache that nobody owns beside a new cache: that never gets an object of the old one | a number is given back while objects are out |
//! | M1 | objects that CPUs exchange through magazines and depot: one owner at a time, free before the next allocation | a region is used without its claim |
//! | W1 | a hive that is walked while its cache is reaped: its values, and not what the reaper has in hand | a hive takes a set bit for a value |
//! | G1 | two threads start the global subsystem at once: one value, found complete | the second to publish keeps its own |
//! | U1 | the public API in a user's model: what is freed on one CPU serves the other, and all goes back | an assertion of the user fails while caches and objects live |
//! | R1 | a walk of the registry beside one that goes: who stays is seen, once | a walk of the registry remembers a place |
//! | L1 | a cache at its limit: what one CPU frees, the other one gets | the limit's ladder ends before the other CPUs are drained |
//!
//! What they run on, and the census that each ends with, they share with the schedules: see `world`.

use crate::debug::check::{Bound, Script, caught, model, models, on_cpu};
use crate::published::Published;
use crate::registry::Registry;
use crate::world::{
    SMALL, World, drop_beside_frees, drop_beside_reaps, publish, reuse_beside_a_late_free, walk_beside_reaps,
};
use crate::{AllocError, Gfp, KmemCache, Magazines, ObjectCache, Subsystem};
use core::mem::ManuallyDrop;
use uslab_magazine::sync::{Arc, Rank, planted, thread};

/// Three entries; the first or the second goes while another thread walks. Two have gone before: with the third one the list
/// moves up.
fn r1_who_stays_is_seen_beside_one_that_goes(goes: usize) {
    let registry = Arc::new(Registry::new(Rank::Caches));
    let entries: Vec<_> = (0..5).map(std::sync::Arc::new).collect();
    entries.iter().for_each(|entry| registry.push(entry));
    entries[3..].iter().for_each(|entry| registry.remove(std::sync::Arc::as_ptr(entry)));
    let (other, one) = (registry.clone(), entries[goes].clone());
    let t = thread::spawn(move || other.remove(std::sync::Arc::as_ptr(&one)));
    let mut walked: Vec<usize> = registry.iter().map(|entry| *entry).collect();
    t.join().unwrap();
    walked.retain(|entry| *entry != goes);
    let stay: Vec<_> = (0..3).filter(|entry| *entry != goes).collect();
    assert_eq!(walked, stay, "who stays is seen once");
}

fn s1_two_frees_and_an_allocation_on_one_slab() {
    let world = World::new(2, Magazines::Off, &[None]);
    let (a, b) = (world.alloc(), world.alloc());
    let other = world.clone();
    let t = thread::spawn(move || other.free(b));
    world.free(a);
    let c = world.alloc();
    t.join().unwrap();
    world.census(1);
    world.free(c);
    World::end(world);
}

fn s2_shrink_beside_free_and_allocation() {
    let world = World::new(2, Magazines::Off, &[None]);
    let a = world.alloc();
    let other = world.clone();
    let t = thread::spawn(move || _ = other.cache().shrink());
    world.free(a);
    let b = world.alloc();
    world.touch(b);
    t.join().unwrap();
    world.census(1);
    world.free(b);
    World::end(world);
}

/// One page, two caches that each have it or want it.
fn s3_caches_that_press_each_other() {
    // Of a deadlock nothing may be dropped: loom has no thread any more that could.
    let world = ManuallyDrop::new(World::new(1, Magazines::Off, &[None, None]));
    let other = world.clone();
    let t = thread::spawn(move || {
        if let Ok(object) = other.alloc_of(1) {
            other.free_of(1, object);
        }
        drop(ManuallyDrop::into_inner(other));
    });
    if let Ok(object) = world.alloc_of(0) {
        world.free(object);
    }
    t.join().unwrap();
    World::end(ManuallyDrop::into_inner(world));
}

/// One page, which a third cache uses: both others press all caches at once, and fail.
fn s3_caches_that_press_for_a_page_in_use() {
    let world = ManuallyDrop::new(World::new(1, Magazines::Off, &[None, None, None]));
    let used = world.alloc_of(2).unwrap();
    let other = world.clone();
    let t = thread::spawn(move || {
        assert!(matches!(other.alloc_of(1), Err(AllocError::Memory(_))));
        drop(ManuallyDrop::into_inner(other));
    });
    assert!(matches!(world.alloc_of(0), Err(AllocError::Memory(_))));
    t.join().unwrap();
    world.free_of(2, used);
    World::end(ManuallyDrop::into_inner(world));
}

fn s3_shrink_beside_refill() {
    let world = World::new(2, SMALL, &[None]);
    let other = world.clone();
    let t = thread::spawn(move || _ = other.cache().shrink());
    on_cpu(1);
    let (a, b) = (world.alloc(), world.alloc());
    t.join().unwrap();
    world.census(2);
    world.free(a);
    world.free(b);
    World::end(world);
}

fn c1_destroy_beside_the_last_free(magazines: Magazines) {
    let world = World::new(2, magazines, &[None]);
    let a = world.alloc();
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.free(a);
    });
    let destroyed = world.cache().destroy();
    t.join().unwrap();
    match destroyed {
        Ok(()) => assert_eq!(world.alloc_of(0), Err(AllocError::Destroyed)),
        Err(busy) => {
            assert_eq!(busy.live, 1);
            // The cache goes on.
            let b = world.alloc();
            world.census(1);
            world.free(b);
            assert_eq!(world.cache().destroy(), Ok(()));
        }
    }
    World::end(world);
}

fn c1_destroy_beside_an_allocation() {
    let world = World::new(2, Magazines::Off, &[None]);
    let a = world.alloc();
    world.free(a);
    let other = world.clone();
    let t = thread::spawn(move || other.alloc_of(0));
    let destroyed = world.cache().destroy();
    let allocated = t.join().unwrap();
    assert!(destroyed.is_err() || allocated.is_err(), "destroyed with an object in use");
    if let Ok(object) = allocated {
        world.free(object);
    }
    World::end(world);
}

fn m1_objects_exchanged_between_cpus(script: Script) {
    let world = World::new(2, SMALL, &[None]);
    let other = world.clone();
    let t = thread::spawn(move || {
        script.install();
        for _ in 0..2 {
            let a = other.alloc();
            other.free(a);
        }
    });
    let a = world.alloc();
    world.free(a);
    t.join().unwrap();
    World::end(world);
}

fn l1_at_the_limit_one_gets_what_the_other_frees() {
    let world = World::new(2, SMALL, &[Some(1)]);
    let (a, b) = (world.alloc(), world.alloc());
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.free(b);
    });
    world.free(a);
    t.join().unwrap();
    // One object lies with each CPU or in the slab; a third CPU's thread finds both.
    on_cpu(1);
    let (a, b) = (world.alloc(), world.alloc());
    assert_eq!(world.alloc_of(0), Err(AllocError::CacheLimit { slabs: 1 }));
    world.free(a);
    world.free(b);
    World::end(world);
}

fn g1_two_threads_publish(_: ()) {
    let published = Arc::new(Published::new());
    let other = published.clone();
    let t = thread::spawn(move || publish(&other).addr());
    let mine = publish(&published).addr();
    assert_eq!(mine, t.join().unwrap(), "two values");
}

/// What users write: the public API on the global subsystem of the execution. A typed object, a block and a private
/// magazine on one CPU beside a typed object on the other.
fn u1_the_public_api(script: Script) {
    let numbers = Arc::new(ObjectCache::builder("number").ctor(|| 7_u64).build().unwrap());
    let other = numbers.clone();
    let t = thread::spawn(move || {
        script.install();
        let mut number = other.alloc().unwrap();
        *number += 1;
        assert!(!planted("a user's assertion"), "number {number} is not theirs");
    });
    let number = numbers.alloc().unwrap();
    let blocks = KmemCache::builder("block", 100).build().unwrap();
    let mut mine = blocks.prefill(Gfp::KERNEL, 1).unwrap();
    let block = mine.alloc_block().unwrap();
    assert_eq!(block.bytes(), [0; 100]);
    drop((number, block, mine));
    t.join().unwrap();
    assert_eq!((numbers.info().used, blocks.info().used), (0, 0));
    drop((numbers, blocks));
    let census = Subsystem::global().unwrap().check().unwrap();
    assert_eq!((census.objects, census.slabs), (0, 0));
}

const TWO: Bound = Bound::Preemptions(2);
const THREE: Bound = Bound::Preemptions(3);

#[test]
fn s1() {
    model(
        "S1 lists: two frees and an allocation",
        Bound::None,
        65,
        s1_two_frees_and_an_allocation_on_one_slab,
    );
}
#[test]
fn s2() {
    model(
        "S2 lists: shrink beside free and allocation",
        Bound::None,
        740,
        s2_shrink_beside_free_and_allocation,
    );
}
#[test]
fn s3() {
    model("S3 pressure: two caches, one page", Bound::None, 24, s3_caches_that_press_each_other);
    model("S3 pressure for a page in use", THREE, 2100, s3_caches_that_press_for_a_page_in_use);
    model("S3 shrink beside refill", THREE, 440, s3_shrink_beside_refill);
}
#[test]
fn c1() {
    models(
        "C1 destroy beside the last free",
        THREE,
        130,
        [Magazines::Off, SMALL],
        c1_destroy_beside_the_last_free,
    );
    model("C1 destroy beside an allocation", THREE, 990, c1_destroy_beside_an_allocation);
}
#[test]
fn c2() {
    model("C2 drop beside a visitor", THREE, 1600, || drop_beside_reaps(1));
}
#[test]
fn c3() {
    models("C3 drop beside the last frees", TWO, 1200, [1, 2], drop_beside_frees);
}
#[test]
fn c4() {
    model("C4 a late free beside a new cache", TWO, 1200, reuse_beside_a_late_free);
}
#[test]
fn r1() {
    let name = "R1 the registry is walked beside one that goes";
    models(name, Bound::None, 8, [0, 1], r1_who_stays_is_seen_beside_one_that_goes);
}
#[test]
fn w1() {
    model("W1 a hive is walked beside a reap", THREE, 6700, || walk_beside_reaps(1));
}
#[test]
fn m1() {
    models(
        "M1 objects exchanged between CPUs",
        THREE,
        20000,
        Script::all(1, 2, 10),
        m1_objects_exchanged_between_cpus,
    );
}
#[test]
fn g1() {
    models("G1 two threads publish", Bound::None, 68, [()], g1_two_threads_publish);
}
#[test]
fn u1() {
    models("U1 the public API", TWO, 1900, Script::all(1, 2, 6), u1_the_public_api);
}
/// In a model of loom's own, which stops at 1,000 branches unless it is told otherwise.
#[test]
fn u1_in_a_model_of_looms() {
    let mut builder = crate::debug::check::loom::model::Builder::new();
    (builder.max_branches, builder.preemption_bound) = (10_000, Some(1));
    builder.check(|| u1_the_public_api(Script::on(1)));
}
#[test]
fn l1() {
    model(
        "L1 limit: one CPU gets what the other frees",
        THREE,
        7,
        l1_at_the_limit_one_gets_what_the_other_frees,
    );
}

#[test]
fn planted_bugs_are_caught() {
    caught(
        "a slab's list is found in one lock hold and left in the next",
        "S1",
        TWO,
        "it is on list Full and belongs on Partial",
        [()],
        |()| s1_two_frees_and_an_allocation_on_one_slab(),
    );
    caught(
        "a slab is chosen in one lock hold and used in the next",
        "S2",
        TWO,
        "Causality violation",
        [()],
        |()| {
            s2_shrink_beside_free_and_allocation();
        },
    );
    caught("a node's lock is held under pressure", "S3", TWO, "lock order", [()], |()| {
        s3_caches_that_press_for_a_page_in_use();
    });
    caught(
        "destroy judges in one lock hold and closes in the next",
        "C1",
        TWO,
        "destroyed with an object in use",
        [()],
        |()| c1_destroy_beside_an_allocation(),
    );
    let bug = "a cache is given up while a visitor has its objects";
    caught(bug, "C2", THREE, "a cache that nobody owns is left", [()], |()| drop_beside_reaps(1));
    let bug = "two see to the end of a cache";
    caught(bug, "C2", THREE, "is gone was given up", [()], |()| drop_beside_reaps(1));
    for bug in [
        "the last to leave does not look back",
        "who came meanwhile is overlooked",
        "the magazines of a cache that is left stay open",
    ] {
        caught(bug, "C3", TWO, "a cache that nobody owns is left", [1, 2], drop_beside_frees);
    }
    let bug = "a number is given back while objects are out";
    caught(bug, "C4", TWO, "a cache that nobody owns is left", [()], |()| reuse_beside_a_late_free());
    let bug = "a walk of the registry remembers a place";
    caught(bug, "R1", TWO, "who stays is seen once", [0, 1], r1_who_stays_is_seen_beside_one_that_goes);
    let bug = "a hive takes a set bit for a value";
    caught(bug, "W1", TWO, "not the values of the hive", [()], |()| walk_beside_reaps(1));
    caught(
        "a region is used without its claim",
        "M1",
        TWO,
        "Causality violation",
        Script::all(1, 2, 10),
        m1_objects_exchanged_between_cpus,
    );
    caught("other CPUs are not drained before an error", "L1", TWO, "CacheLimit", [()], |()| {
        l1_at_the_limit_one_gets_what_the_other_frees();
    });
    caught("a released slab stays charged", "S2", TWO, "by the books 1", [()], |()| {
        s2_shrink_beside_free_and_allocation()
    });
    caught("a user's assertion", "U1", TWO, "is not theirs", [()], |()| u1_the_public_api(Script::on(1)));
    caught("the second to publish keeps its own", "G1", TWO, "two values", [()], g1_two_threads_publish);
}
