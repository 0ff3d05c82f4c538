//! The caches under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! Three or four threads on two CPUs and a handful of pages of two objects each. A scenario's name begins with the properties
//! that it is of, as a model's does (`models` has the table), and it ends in the same census. Sequentially consistent:
//! orderings are loom's business.

use crate::debug::check::on_cpu;
use crate::published::Published;
use crate::world::{
    SMALL, World, drop_beside_frees, drop_beside_reaps, publish, reuse_beside_a_late_free, walk_beside_reaps,
};
use crate::{AllocError, Gfp, KmemCache, Magazines, ObjectCache, Subsystem};
use uslab_magazine::sync::schedule::{caught, choose, schedules, wander};
use uslab_magazine::sync::{Arc, Counter, thread};

const THREADS: usize = 4;
const STEPS: usize = 12;
/// Schedules of each kind,
const RUNS: usize = 6000;
/// and, for each seed, in which a planted bug must be found.
const SOON: usize = 5000;

/// Runs `side` in all threads.
fn crowd<W: Send + Sync + 'static>(world: &Arc<W>, side: fn(&W, usize)) {
    let threads = [(); THREADS - 1].map(|()| world.clone());
    let threads: Vec<_> =
        (1..).zip(threads).map(|(t, world)| thread::spawn(move || side(&world, t))).collect();
    side(world, 0);
    threads.into_iter().for_each(|t| t.join().unwrap());
    on_cpu(0);
}

/// Two caches press each other for four pages; all allocate, free and shrink.
fn lists(magazines: Magazines) {
    fn side(w: &World, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            wander(2);
            match choose(8) {
                0..=3 => {
                    let cache = choose(2);
                    match w.alloc_of(cache) {
                        Ok(object) => held.push((cache, object)),
                        Err(error) => assert!(matches!(error, AllocError::Memory(_)), "{error}"),
                    }
                }
                4..=6 if !held.is_empty() => {
                    let (cache, object) = held.swap_remove(choose(held.len()));
                    w.free_of(cache, object);
                }
                _ => _ = w.shrink(choose(2)),
            }
        }
        held.into_iter().for_each(|(cache, object)| w.free_of(cache, object));
    }
    let world = World::new(4, magazines, &[None, None]);
    crowd(&world, side);
    World::end(world);
}

/// Three use a cache that the fourth one wants to destroy.
fn destroy(magazines: Magazines) {
    struct Doomed {
        world: Arc<World>,
        live: Counter,
    }
    fn side(Doomed { world, live }: &Doomed, thread: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            wander(2);
            if thread == 0 {
                if world.cache().destroy().is_ok() {
                    assert_eq!(live.get(), 0, "destroyed with an object in use");
                    assert_eq!(world.alloc_of(0), Err(AllocError::Destroyed), "a destroyed cache allocates");
                }
            } else if choose(3) == 0 {
                held.extend(world.alloc_of(0).ok().inspect(|_| live.add(1)));
            } else if let Some(object) = held.pop() {
                live.sub(1);
                world.free(object);
            }
        }
        for object in held {
            live.sub(1);
            world.free(object);
        }
    }
    let world = World::new(4, magazines, &[None]);
    let doomed = Arc::new(Doomed { world: world.clone(), live: Counter::new(0) });
    crowd(&doomed, side);
    drop(doomed);
    assert_eq!(world.cache().destroy(), Ok(()), "nothing is in use");
    World::end(world);
}

/// Four use a cache of two slabs at most; afterwards one of them gets all that it may have.
fn limit() {
    const SLABS: u32 = 2;
    const OBJECTS: usize = 4;
    fn side(w: &World, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            wander(2);
            if choose(2) == 0 {
                match w.alloc_of(0) {
                    Ok(object) => held.push(object),
                    Err(error) => assert_eq!(error, AllocError::CacheLimit { slabs: SLABS }),
                }
            } else {
                held.pop().into_iter().for_each(|object| w.free(object));
            }
        }
        held.into_iter().for_each(|object| w.free(object));
    }
    let world = World::new(4, SMALL, &[Some(SLABS)]);
    crowd(&world, side);
    on_cpu(1);
    let all: Vec<_> = (0..OBJECTS).map(|_| world.alloc()).collect();
    assert_eq!(world.alloc_of(0), Err(AllocError::CacheLimit { slabs: SLABS }));
    all.into_iter().for_each(|object| world.free(object));
    World::end(world);
}

/// All publish, and look again.
fn published() {
    let published = Arc::new(Published::new());
    let threads = [(); THREADS].map(|()| {
        let published = published.clone();
        thread::spawn(move || [(); STEPS].map(|()| publish(&published).addr()))
    });
    let mut found: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    found.dedup();
    assert_eq!(found.len(), 1, "two values");
}

/// What users write: typed objects, blocks and prefilled objects of the global subsystem.
fn public_api() {
    struct Caches {
        numbers: ObjectCache<u64>,
        blocks: KmemCache,
    }
    fn side(Caches { numbers, blocks }: &Caches, _: usize) {
        let (mut held, mut mine) = (vec![], vec![]);
        for _ in 0..STEPS {
            wander(2);
            match choose(6) {
                0..=1 => held.extend(numbers.alloc().ok()),
                2 => mine.extend(blocks.alloc_block(Gfp::KERNEL).ok()),
                3 => drop(held.pop()),
                4 => drop(mine.pop()),
                _ => {
                    let Ok(mut prefilled) = blocks.prefill(Gfp::KERNEL, 1) else { continue };
                    assert_eq!(prefilled.alloc_block().unwrap().bytes(), [0; 100]);
                }
            }
        }
        assert!(
            held.iter().all(|number| **number == 7),
            "a number is constructed once, and nobody changed it"
        );
    }
    let numbers = ObjectCache::builder("number").ctor(|| 7_u64).build().unwrap();
    let blocks = KmemCache::builder("block", 100).build().unwrap();
    let caches = Arc::new(Caches { numbers, blocks });
    crowd(&caches, side);
    assert_eq!((caches.numbers.info().used, caches.blocks.info().used), (0, 0), "something is left");
    drop(caches);
    let census = Subsystem::global().unwrap().check().unwrap();
    assert_eq!((census.objects, census.slabs), (0, 0), "something is left");
}

#[test]
fn pressed() {
    schedules("S1 S2 S3: four press two caches for four pages", RUNS, || lists(Magazines::Off));
    schedules("M1 S1 S2 S3: the same through magazines", RUNS, || lists(SMALL));
}
#[test]
fn destroyed() {
    schedules("C1: three use a cache that is destroyed", RUNS, || destroy(Magazines::Off));
    schedules("C1 M1: the same through magazines", RUNS, || destroy(SMALL));
    schedules("C2: a cache goes while three visit it", RUNS, || drop_beside_reaps(3));
    schedules("C3: a cache goes while three free its last objects", RUNS, || drop_beside_frees(3));
    schedules("C4: a late free beside a new cache", RUNS, reuse_beside_a_late_free);
}
#[test]
fn walked() {
    schedules("W1: a hive is walked while three reap", RUNS, || walk_beside_reaps(3));
}
#[test]
fn limited() {
    schedules("L1 M1: four use a cache at its limit", RUNS, limit);
}
#[test]
fn started() {
    schedules("G1: four publish", RUNS, published);
}
#[test]
fn used() {
    schedules("U1 M1: four use the public API", RUNS, public_api);
}

#[test]
fn planted_in_lists() {
    let off = || lists(Magazines::Off);
    caught(
        "a slab's list is found in one lock hold and left in the next",
        "S1",
        SOON,
        "taken off an empty list",
        off,
    );
    caught(
        "a slab is chosen in one lock hold and used in the next",
        "S2",
        SOON,
        "taken off an empty list",
        off,
    );
    caught("a released slab stays charged", "S2", SOON, "slabs, listed or waiting, by the books", off);
    caught("a node's lock is held under pressure", "S3", SOON, "lock order", off);
    caught("a region is used without its claim", "M1", SOON, "census: ", || lists(SMALL));
}
#[test]
fn planted_in_a_destroy() {
    let bug = "destroy judges in one lock hold and closes in the next";
    caught(bug, "C1", SOON, "destroyed with an object in use", || destroy(Magazines::Off));
    let bug = "a cache is given up while a visitor has its objects";
    caught(bug, "C2", SOON, "a cache that nobody owns is left", || drop_beside_reaps(3));
}
#[test]
fn planted_in_a_walk() {
    let bug = "a hive takes a set bit for a value";
    caught(bug, "W1", SOON, "not the values of the hive", || walk_beside_reaps(3));
}
#[test]
fn planted_at_a_limit() {
    caught("other CPUs are not drained before an error", "L1", SOON, "CacheLimit", limit);
}
#[test]
fn planted_in_a_start() {
    caught("the second to publish keeps its own", "G1", SOON, "two values", published);
}
#[test]
fn planted_below_the_public_api() {
    caught("a region is used without its claim", "U1", SOON, "something is left", public_api);
}
