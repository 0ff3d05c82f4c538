//! Loom's models of caches: two threads, and one to four pages of two objects each.

use super::world::{SMALL, World, assert_all_freed, config_with_nodes, publish, run_during_reaps};
use crate::cache::core::Core;
use crate::debug::check::{SPACING, Script, on_cpu};
use crate::published::Published;
use crate::{AllocError, Config, Gfp, Hive, KmemCache, Limit, Magazines, Mempool, ObjectCache, Subsystem};
use core::mem::ManuallyDrop;
use uslab_magazine::sync::{Arc, planted, thread};

/// S1: a slab is always on the list for its fill, and moves between lists only once.
pub(super) fn race_frees_and_alloc_on_slab() {
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

/// S2: a shrink takes a slab only while all objects of the slab are free. An allocation never gets an object of a freed
/// slab.
pub(super) fn race_shrink_free_and_alloc() {
    race_reclaim_free_and_alloc(|cache| _ = cache.shrink());
}
/// S6: an allocated object keeps its memory, and a slab is usable again after its memory was returned to the system.
pub(super) fn race_discard_free_and_alloc() {
    race_reclaim_free_and_alloc(|cache| cache.cache().discard_all_unused_pages());
}
fn race_reclaim_free_and_alloc(reclaim: fn(&KmemCache)) {
    let world = World::new(2, Magazines::Off, &[None]);
    let a = world.alloc();
    let other = world.clone();
    let t = thread::spawn(move || reclaim(other.cache()));
    world.free(a);
    let b = world.alloc();
    world.touch(b);
    t.join().unwrap();
    world.census(1);
    world.free(b);
    World::end(world);
}

/// S3: two caches compete for one page by reclaiming from each other.
pub(super) fn reclaim_between_two_caches() {
    // After a deadlock, nothing may be dropped, because loom has no thread left that could run the
    // drop.
    let world = ManuallyDrop::new(World::new(1, Magazines::Off, &[None, None]));
    let other = world.clone();
    let t = thread::spawn(move || {
        if let Ok(object) = other.alloc_of(1) {
            other.free_to_cache(1, object);
        }
        drop(ManuallyDrop::into_inner(other));
    });
    if let Ok(object) = world.alloc_of(0) {
        world.free(object);
    }
    t.join().unwrap();
    World::end(ManuallyDrop::into_inner(world));
}

/// S3: two caches concurrently reclaim from all caches and fail, because a third cache uses the only page.
pub(super) fn reclaim_page_in_use() {
    let world = ManuallyDrop::new(World::new(1, Magazines::Off, &[None, None, None]));
    let used = world.alloc_of(2).unwrap();
    let other = world.clone();
    let t = thread::spawn(move || {
        assert!(matches!(other.alloc_of(1), Err(AllocError::Memory(_))));
        drop(ManuallyDrop::into_inner(other));
    });
    assert!(matches!(world.alloc_of(0), Err(AllocError::Memory(_))));
    t.join().unwrap();
    world.free_to_cache(2, used);
    World::end(ManuallyDrop::into_inner(world));
}

/// S3: a shrink during a refill causes no deadlock.
pub(super) fn race_shrink_with_refill() {
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

/// C1: a destruction that runs during the last free is refused, or afterwards frees each slab exactly once.
pub(super) fn race_destroy_with_last_free(magazines: Magazines) {
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
            // The cache stays usable.
            let b = world.alloc();
            world.census(1);
            world.free(b);
            assert_eq!(world.cache().destroy(), Ok(()));
        }
    }
    World::end(world);
}

/// C1: either the allocation fails because the cache is destroyed, or the destruction is refused.
pub(super) fn race_destroy_with_alloc() {
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

/// C1: a cache is destroyed while another thread requests a cache with the same configuration. Either the other thread
/// gets a new cache, or the destruction is refused.
pub(super) fn race_destroy_with_merge() {
    on_cpu(0);
    let core = Core::new(Config { magazines: Magazines::Off, ..Config::for_models(2) }).unwrap();
    let build =
        |core: &std::sync::Arc<Core>| KmemCache::builder("model", SPACING).merge().build_on(core).unwrap();
    let first = build(&core);
    let object = first.alloc(Gfp::KERNEL).unwrap();
    let other = core.clone();
    let t = thread::spawn(move || build(&other));
    assert!(first.destroy().is_err(), "destroyed with an object in use");
    let second = t.join().unwrap();
    let shares = core::ptr::eq(first.cache(), second.cache());
    assert_eq!(first.info().aliases, u64::from(shares), "every owner that shares the cache is counted");
    // SAFETY: the object was allocated above, and is freed once.
    unsafe { first.free(object) };
    drop((first, second));
    assert_all_freed(core);
}

/// M1: objects pass through magazines and the depot. Each object has one owner at a time, and each free happens before
/// the object's next allocation.
pub(super) fn exchange_objects_between_cpus(script: Script) {
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

/// L1: at the cache's limit, a thread can allocate the object that another thread frees.
pub(super) fn reuse_freed_object_at_limit() {
    let world = World::new(2, SMALL, &[Some(1)]);
    let (a, b) = (world.alloc(), world.alloc());
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.free(b);
    });
    world.free(a);
    t.join().unwrap();
    // An object is on each CPU or in the slab, and a thread on a third CPU finds both objects.
    on_cpu(1);
    let (a, b) = (world.alloc(), world.alloc());
    assert_eq!(world.alloc_of(0), Err(AllocError::CacheLimit { slabs: 1 }));
    world.free(a);
    world.free(b);
    World::end(world);
}

/// L1: the cache is at its limit, and all its free objects are on the stack and in the depot of another node.
pub(super) fn reuse_remote_object_at_limit() {
    let cache = KmemCache::builder("model", SPACING).limit(Limit::Slabs(2));
    let world = World::on(Core::new(config_with_nodes(2, 2)).unwrap(), [cache]);
    on_cpu(1);
    let [a, b, c, d] = [(); 4].map(|()| world.alloc());
    // The stack has two places, so one of the three objects is in the depot.
    [a, b, c].into_iter().for_each(|object| world.free(object));
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.free(d);
    });
    on_cpu(0);
    let early_object = world.alloc();
    t.join().unwrap();
    let late_objects = [(); 3].map(|()| world.alloc());
    late_objects.into_iter().chain([early_object]).for_each(|object| world.free(object));
    World::end(world);
}

/// L1: two threads each try to make a slab, although the limit is one slab.
pub(super) fn race_two_growths_at_limit() {
    let world = World::new(2, Magazines::Off, &[Some(1)]);
    let other = world.clone();
    let t = thread::spawn(move || other.alloc_of(0));
    let own_object = world.alloc_of(0);
    let other_object = t.join().unwrap();
    assert!(own_object.is_ok() || other_object.is_ok(), "one of two threads must get the first slab");
    assert!(world.cache().info().slabs <= 1, "the cache has no more slabs than its limit");
    own_object.into_iter().chain(other_object).for_each(|object| world.free(object));
    World::end(world);
}

/// G1: two threads publish values. All threads must see the same value, fully initialised.
pub(super) fn race_two_publications() {
    let published = Arc::new(Published::new());
    let other = published.clone();
    let t = thread::spawn(move || publish(&other).addr());
    let own_address = publish(&published).addr();
    assert_eq!(own_address, t.join().unwrap(), "all threads see one published value");
}

/// U1: two CPUs use the public API on the execution's global subsystem. One CPU uses a typed object, a block and a
/// prefilled stock; the other CPU uses a typed object.
pub(super) fn exercise_public_api(script: Script) {
    let numbers = Arc::new(ObjectCache::builder("number").ctor(|| 7_u64).build().unwrap());
    let other = numbers.clone();
    let t = thread::spawn(move || {
        script.install();
        let mut number = other.alloc().unwrap();
        *number += 1;
        planted!("an assertion of the model fails" => panic!("number {number} belongs to another thread"));
    });
    let number = numbers.alloc().unwrap();
    let blocks = KmemCache::builder("block", 100).build().unwrap();
    let mut stock = blocks.prefill(Gfp::KERNEL, 1).unwrap();
    let block = stock.alloc_block().unwrap();
    assert_eq!(block.bytes(), [0; 100]);
    drop((number, block, stock));
    t.join().unwrap();
    assert_eq!((numbers.info().used, blocks.info().used), (0, 0));
    drop((numbers, blocks));
    let census = Subsystem::global().unwrap().check().unwrap();
    assert_eq!((census.objects, census.slabs), (0, 0));
}

/// Runs the model U1 in loom's own `model`, which stops at 1,000 branches by default.
#[test]
fn public_api_model_passes_in_an_ordinary_loom_model() {
    let mut builder = crate::debug::check::loom::model::Builder::new();
    (builder.max_branches, builder.preemption_bound) = (10_000, Some(1));
    builder.check(|| exercise_public_api(Script::on(1)));
}

/// W1: a thread removes a value from a hive while another thread reaps the hive's cache.
pub(super) fn race_removal_with_reap() {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let mut hive = Hive::on(Hive::<u64>::builder("model").build_on(&core).unwrap());
    let key = hive.insert(7).unwrap();
    run_during_reaps(core, 1, true, || {
        assert_eq!(hive.remove(key), 7);
        drop(hive);
    });
}

/// A5: a mempool reserves `reserved` of its cache's two objects. Two threads allocate and free concurrently. A thread
/// that gets an object beyond the reserve only frees it.
pub(super) fn race_two_users_of_reserve(reserved: usize) {
    on_cpu(0);
    let core = Core::new(Config { magazines: Magazines::Off, ..Config::for_models(1) }).unwrap();
    let cache = KmemCache::builder("model", SPACING).build_on(&core).unwrap();
    let pool = Arc::new(Mempool::new(cache, reserved).unwrap());
    let use_one = |pool: &Mempool| {
        let object = pool.alloc(Gfp::KERNEL).unwrap();
        // SAFETY: the object was just allocated.
        unsafe { pool.free(object) };
    };
    let not_reserved = pool.cache().alloc(Gfp::KERNEL);
    let other = pool.clone();
    let t = thread::spawn(move || use_one(&other));
    // Another thread may be first. loom does not switch threads at the number of missing objects, which is a plain
    // number.
    pool.reserve();
    match not_reserved {
        // SAFETY: the object was allocated above, from the pool's cache.
        Ok(object) => unsafe { pool.free(object) },
        Err(_) => use_one(&pool),
    }
    t.join().unwrap();
    assert_eq!(pool.reserve(), (reserved, reserved), "the reserve of a pool at rest");
    drop(pool);
    assert_all_freed(core);
}
