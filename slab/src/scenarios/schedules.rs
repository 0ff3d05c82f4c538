//! Shuttle's scenarios of caches: four threads on two CPUs, and four pages of two objects each.

use super::world::{SMALL, World, publish};
use crate::cache::core::Core;
use crate::debug::check::{SPACING, on_cpu};
use crate::published::Published;
use crate::reclaim::reaper::ReaperThread;
use crate::{AllocError, Config, Gfp, KmemCache, Limit, Magazines, ObjectCache, Shrinker, Subsystem};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{Arc, AtomicBool, Counter, Mutex, Ordering::Relaxed, relax, thread};
use uslab_magazine::threads::{migrate_between_cpus, run_in_threads};

const THREADS: usize = 4;
const STEPS: usize = 12;
/// Maximum number of turns that the reaper may take to finish.
const MAX_REAPER_TURNS: usize = 3000;

/// Two caches compete for four pages by reclaiming from each other, while all threads allocate, free and shrink.
pub(super) fn compete_for_pages_by_reclaim(magazines: Magazines) {
    fn run_thread(w: &World, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            migrate_between_cpus(2);
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
                    w.free_to_cache(cache, object);
                }
                _ => _ = w.shrink(choose(2)),
            }
        }
        held.into_iter().for_each(|(cache, object)| w.free_to_cache(cache, object));
    }
    let world = World::new(4, magazines, &[None, None]);
    run_in_threads(&world, THREADS, run_thread);
    World::end(world);
}

/// Does the random work of one thread, and returns the object that it still has in use, if any.
fn run_random_work(world: &World) -> Option<NonNull<u8>> {
    let mut held = vec![];
    for _ in 0..STEPS {
        migrate_between_cpus(2);
        if held.is_empty() || choose(2) == 0 {
            held.extend(world.alloc_of(0).ok());
        } else {
            world.free(held.swap_remove(choose(held.len())));
        }
    }
    let last = held.pop();
    held.into_iter().for_each(|object| world.free(object));
    last
}

/// Runs profiles in which each object is a sample. The live samples must be exactly the objects that threads hold.
pub(super) fn profile() {
    struct HeldObjects {
        world: Arc<World>,
        objects: Counter,
        bytes: Mutex<Vec<usize>>,
    }
    let world = World::new(4, SMALL, &[None]);
    world.core.start_profile(1, Some(1)).unwrap();
    let held = Arc::new(HeldObjects { world, objects: Counter::new(0), bytes: Mutex::new(vec![]) });
    run_in_threads(&held, THREADS, |held, _| {
        if let Some(object) = run_random_work(&held.world) {
            held.objects.add(1);
            held.bytes.lock().push(object.as_ptr().expose_provenance());
        }
    });
    let Some(HeldObjects { world, objects, bytes }) = Arc::into_inner(held) else {
        panic!("the threads have ended")
    };
    let live = |objects| {
        let live = world.core.profiler.profile().total().live;
        assert_eq!((live.objects, live.samples), (objects, objects), "live objects in the profile");
    };
    live(objects.get());
    let addresses = core::mem::take(&mut *bytes.lock());
    for address in addresses {
        world.free(NonNull::new(core::ptr::with_exposed_provenance_mut(address)).unwrap());
    }
    live(0);
    assert!(world.core.stop_profile());
    World::end(world);
}

/// The second profile samples one allocation in an exabyte, so any sample in it must come from the first profile.
pub(super) fn run_successive_profiles() {
    let world = World::new(4, SMALL, &[None]);
    world.core.start_profile(1, Some(1)).unwrap();
    let started = Counter::new(0);
    let both = Arc::new((world, started));
    run_in_threads(&both, THREADS, |(world, started), thread| {
        if thread == 0 {
            assert!(world.core.stop_profile());
        }
        if thread < 2 && world.core.start_profile(1 << 60, Some(2)).is_ok() {
            started.add(1);
        }
        run_random_work(world).into_iter().for_each(|object| world.free(object));
    });
    let Some((world, started)) = Arc::into_inner(both) else { panic!("the threads have ended") };
    assert_eq!(started.get(), 1, "the thread that starts the profile first");
    let total = world.core.profiler.profile().total();
    assert_eq!(
        (total.allocated.samples, total.live.samples),
        (0, 0),
        "a profile without sampling has no samples"
    );
    World::end(world);
}

/// Three threads use a cache while a fourth thread destroys it.
pub(super) fn race_destroy_with_three_users(magazines: Magazines) {
    struct DestroyedCacheScenario {
        world: Arc<World>,
        live: Counter,
    }
    fn run_thread(DestroyedCacheScenario { world, live }: &DestroyedCacheScenario, thread: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            migrate_between_cpus(2);
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
    let doomed = Arc::new(DestroyedCacheScenario { world: world.clone(), live: Counter::new(0) });
    run_in_threads(&doomed, THREADS, run_thread);
    drop(doomed);
    assert_eq!(world.cache().destroy(), Ok(()), "no object is in use");
    World::end(world);
}

/// Four threads use a cache of at most two slabs. At the end, one thread must be able to allocate all objects up to the
/// limit.
pub(super) fn use_cache_at_slab_limit(config: Config) {
    const SLABS: u32 = 2;
    const OBJECTS: usize = 4;
    fn run_thread(w: &World, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            migrate_between_cpus(2);
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
    let cache = KmemCache::builder("model", SPACING).limit(Limit::Slabs(SLABS));
    let world = World::on(Core::new(config).unwrap(), [cache]);
    run_in_threads(&world, THREADS, run_thread);
    on_cpu(1);
    let all: Vec<_> = (0..OBJECTS).map(|_| world.alloc()).collect();
    assert_eq!(world.alloc_of(0), Err(AllocError::CacheLimit { slabs: SLABS }));
    all.into_iter().for_each(|object| world.free(object));
    World::end(world);
}

/// All threads publish a value, and then read the published value.
pub(super) fn publish_and_read_value() {
    let published = Arc::new(Published::new());
    let threads = [(); THREADS].map(|()| {
        let published = published.clone();
        thread::spawn(move || [(); STEPS].map(|()| publish(&published).addr()))
    });
    let mut found: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    found.dedup();
    assert_eq!(found.len(), 1, "all threads see one published value");
}

/// Two threads allocate pages and free them, which starts a reaper. The reaper must decommit the freed pages, even if
/// it falls asleep soon.
pub(super) fn race_page_use_with_reaper() {
    fn run_thread(core: &std::sync::Arc<Core>) {
        for _ in 0..3 {
            migrate_between_cpus(2);
            let block = core.alloc_large(PAGE_SIZE, Gfp::KERNEL).unwrap();
            (0..choose(20)).for_each(|_| relax());
            // SAFETY: the block was allocated above, and is freed once.
            unsafe { core.free(block) };
        }
    }
    on_cpu(0);
    let reap_every = Some(std::time::Duration::from_millis(1));
    let core = Core::new(Config { reap_every, ..Config::for_models(2) }).unwrap();
    let other = core.clone();
    let t = thread::spawn(move || run_thread(&other));
    run_thread(&core);
    t.join().unwrap();
    let committed = || core.memory.pages.committed_bytes();
    let gone = (0..MAX_REAPER_TURNS).any(|_| {
        relax();
        committed() == 0
    });
    assert!(gone, "the reaper must not sleep while memory can be returned");
}

/// A thread waits at a limit for an object that a shrinker keeps. The shrinker frees the object only when it is not
/// busy. No free wakes the waiter for this object. The reaper must therefore call the shrinker again, however soon the
/// reaper falls asleep. If a wake-up is lost, the scenario deadlocks.
pub(super) fn wait_for_repeated_shrinking() {
    /// Number of shrinker calls that free nothing: a waiter calls the shrinkers once before it joins the queue, and
    /// once afterwards. Later, a reaper that wakes up for any reason also calls the shrinkers.
    const USELESS_SHRINKER_CALLS: u64 = 2;
    struct KeptObjects {
        object: Mutex<Option<usize>>,
        in_vain: Counter,
        core: std::sync::Weak<Core>,
    }
    impl Shrinker for Arc<KeptObjects> {
        fn count(&self) -> usize {
            let kept = self.object.try_lock();
            self.in_vain.add(u64::from(kept.is_none()));
            kept.map_or(0, |kept| kept.iter().count())
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            let Some(object) = self.object.try_lock().and_then(|mut kept| kept.take()) else { return 0 };
            let object = NonNull::new(core::ptr::with_exposed_provenance_mut(object)).unwrap();
            // SAFETY: the scenario stored the object below, and this code takes it only once.
            self.core.upgrade().into_iter().for_each(|core| unsafe { core.free(object) });
            1
        }
    }
    on_cpu(0);
    let reap_every = Some(std::time::Duration::from_millis(1));
    let core = Core::new(Config { magazines: SMALL, reap_every, ..Config::for_models(2) }).unwrap();
    let cache = KmemCache::builder("model", SPACING).limit(Limit::Slabs(1)).build_on(&core).unwrap();
    let [first, second] = [(); 2].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
    let kept = Arc::new(KeptObjects {
        object: Mutex::new(Some(first.as_ptr().expose_provenance())),
        in_vain: Counter::new(0),
        core: std::sync::Arc::downgrade(&core),
    });
    let _registration = cache.register_shrinker(kept.clone());
    let until =
        |is_so: &dyn Fn() -> bool| (0..MAX_REAPER_TURNS).take_while(|_| !is_so()).for_each(|_| relax());
    if choose(2) == 0 {
        until(&|| core.background.info().thread == ReaperThread::Asleep);
    }
    let locked = Arc::new(AtomicBool::new(false));
    let locks = locked.clone();
    let t = thread::spawn(move || {
        let _object = kept.object.lock();
        locks.store(true, Relaxed);
        until(&|| kept.in_vain.get() >= USELESS_SHRINKER_CALLS);
    });
    until(&|| locked.load(Relaxed));
    // After a deadlock, nothing may be dropped.
    let cache = ManuallyDrop::new(cache);
    let object = cache.acquire_timeout(Gfp::KERNEL, std::time::Duration::MAX).unwrap();
    t.join().unwrap();
    // SAFETY: the objects were allocated above, and are freed once; `KeptObjects` freed the first object.
    unsafe { [object, second].into_iter().for_each(|object| cache.free(object)) };
    drop(ManuallyDrop::into_inner(cache));
}

/// Uses the public API: typed objects, blocks and prefilled objects of the global subsystem.
pub(super) fn exercise_api_on_all_threads() {
    struct Caches {
        numbers: ObjectCache<u64>,
        blocks: KmemCache,
    }
    fn run_thread(Caches { numbers, blocks }: &Caches, _: usize) {
        let (mut held, mut mine) = (vec![], vec![]);
        for _ in 0..STEPS {
            migrate_between_cpus(2);
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
        assert!(held.iter().all(|number| **number == 7), "a number is constructed once and never changed");
    }
    let numbers = ObjectCache::builder("number").ctor(|| 7_u64).build().unwrap();
    let blocks = KmemCache::builder("block", 100).build().unwrap();
    let caches = Arc::new(Caches { numbers, blocks });
    run_in_threads(&caches, THREADS, run_thread);
    assert_eq!((caches.numbers.info().used, caches.blocks.info().used), (0, 0), "no object remains in use");
    drop(caches);
    let census = Subsystem::global().unwrap().check().unwrap();
    assert_eq!((census.objects, census.slabs), (0, 0), "no object remains in use");
}
