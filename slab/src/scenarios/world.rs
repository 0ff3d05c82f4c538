//! The common parts of the scenarios: caches on a few pages, and the census at the end. This module also contains the
//! scenarios that loom and shuttle share.
//!
//! Allocating or freeing an object changes a model-checked cell of the object. A scenario fails if an object has two
//! owners, if it is freed twice, or if a thread accesses the frame of a freed page. Under loom, a scenario also fails
//! if the free of an object does not happen before its next allocation. At its end, a world counts all slabs, objects
//! and pages, and then frees all memory.

use crate::Config;
use crate::cache::core::Core;
use crate::debug::check::{SPACING, on_cpu};
use crate::debug::corruption::CorruptionKind;
use crate::published::Published;
use crate::registry::Registry;
use crate::{AllocError, Gfp, Hive, KmemCache, KmemCacheBuilder, Limit, Magazines, ObjectCache, OwnedBox};
use core::alloc::Layout;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use uslab_buddy::{PAGE_SIZE, ZoneKind};
use uslab_magazine::sync::{Arc, Rank, UnsafeCell, thread};
use uslab_magazine::{Cpus, Operation};

pub(crate) struct World {
    /// The caches, which are dropped only at the end of a successful execution. A failing execution must not run the
    /// model's operations while it unwinds.
    caches: ManuallyDrop<Vec<KmemCache>>,
    pub(crate) core: std::sync::Arc<Core>,
}

// Magazines have one object and CPUs keep no more of them, so that every second operation accesses
// the depot.
pub(crate) const SMALL: Magazines = Magazines::Sized { capacity: 1, stock: 0, depot_limit: 1 };

impl World {
    pub(crate) fn new(pages: u32, magazines: Magazines, caches: &[Option<u32>]) -> Arc<Self> {
        let build = |limit: &Option<u32>| {
            let cache = KmemCache::builder("model", SPACING);
            limit.iter().fold(cache, |cache, limit| cache.limit(Limit::Slabs(*limit)))
        };
        Self::of(pages, magazines, caches.iter().map(build))
    }
    pub(crate) fn of(
        pages: u32,
        magazines: Magazines,
        caches: impl IntoIterator<Item = KmemCacheBuilder>,
    ) -> Arc<Self> {
        let config = Config { magazines, ..Config::for_models(pages) };
        Self::on(Core::new(config).unwrap(), caches)
    }
    pub(crate) fn on(
        core: std::sync::Arc<Core>,
        caches: impl IntoIterator<Item = KmemCacheBuilder>,
    ) -> Arc<Self> {
        let caches = caches.into_iter().map(|cache| cache.build_on(&core).unwrap()).collect();
        on_cpu(0);
        Arc::new(Self { caches: ManuallyDrop::new(caches), core })
    }
    #[cfg(shuttle)]
    pub(crate) fn shrink(&self, cache: usize) -> usize {
        self.caches[cache].shrink()
    }
    pub(crate) fn cache(&self) -> &KmemCache {
        &self.caches[0]
    }
    pub(crate) fn cache_at(&self, cache: usize) -> &KmemCache {
        &self.caches[cache]
    }
    pub(crate) fn alloc_of(&self, cache: usize) -> Result<NonNull<u8>, AllocError> {
        let object = self.caches[cache].alloc(Gfp::KERNEL)?;
        self.touch(object);
        Ok(object)
    }
    pub(crate) fn alloc(&self) -> NonNull<u8> {
        self.alloc_of(0).unwrap()
    }
    pub(crate) fn touch(&self, object: NonNull<u8>) {
        self.cache().touch(object);
    }
    pub(crate) fn free_to_cache(&self, cache: usize, object: NonNull<u8>) {
        self.touch(object);
        // SAFETY: the models free each allocation once, because they search for other errors.
        unsafe { self.caches[cache].free(object) };
    }
    pub(crate) fn free(&self, object: NonNull<u8>) {
        self.free_to_cache(0, object);
    }
    /// Runs a census of the subsystem, and checks that `used` objects are in use.
    pub(crate) fn census(&self, used: u64) {
        let census = self.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(census.used, used, "census: {census:?}");
    }
    /// Checks that no object is in use, and frees all memory.
    pub(crate) fn end(this: Arc<Self>) {
        this.census(0);
        this.caches.iter().for_each(|cache| _ = cache.shrink());
        this.core.memory.pages.decommit();
        let census = this.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
        let Ok(mut world) = Arc::try_unwrap(this) else { panic!("the threads have ended") };
        // SAFETY: `world` is not used after this statement.
        unsafe { ManuallyDrop::drop(&mut world.caches) };
    }
}

/// Returns a configuration with two CPUs on `nodes` nodes, each with `pages` pages.
pub(super) fn config_with_nodes(nodes: u32, pages: u32) -> Config {
    let mut config = Config { magazines: SMALL, ..Config::for_models(pages) };
    config.pages.cpus = Cpus::simulated(2, nodes).unwrap();
    config.pages.nodes = vec![vec![(ZoneKind::Normal, pages)]; nodes as usize];
    config
}

/// C2: a cache with a free object in a magazine is dropped while `reapers` threads reap.
pub(crate) fn race_drop_with_reaps(reapers: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let cache = KmemCache::builder("model", SPACING).build_on(&core).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: the object was just allocated.
    unsafe { cache.free(object) };
    run_during_reaps(core, reapers, false, || drop(cache));
}

/// W1: a hive with one value and one free slot is iterated and dropped while other threads reap the hive's cache.
pub(crate) fn race_cache_walk_with_reaps(reapers: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let mut hive = Hive::on(Hive::<u64>::builder("model").build_on(&core).unwrap());
    let (_kept, gone) = (hive.insert(7).unwrap(), hive.insert(8).unwrap());
    assert_eq!(hive.remove(gone), 8);
    run_during_reaps(core, reapers, cfg!(shuttle), || {
        let visited_values: Vec<u64> = hive.iter().copied().collect();
        assert_eq!(visited_values, [7], "the walk visits the values of the hive");
        drop(hive);
    });
}

/// Runs `what` while `reapers` other threads reap. With `decommits`, the reaping threads also decommit free pages.
/// `what` must destroy the only cache.
pub(crate) fn run_during_reaps(
    core: std::sync::Arc<Core>,
    reapers: u32,
    decommits: bool,
    what: impl FnOnce(),
) {
    let reap = |_| {
        let core = core.clone();
        move || {
            core.refs().for_each(|cache| _ = cache.shrink(&Operation::new()));
            if decommits {
                core.memory.pages.decommit();
            }
        }
    };
    run_beside((0..reapers).map(reap).collect(), what);
    assert_all_freed(core);
}

/// C3: a cache is dropped while separate threads free its objects. The last free of an object destroys the cache.
pub(crate) fn race_drop_with_frees(objects: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let cache = ObjectCache::<u64>::builder("model").ctor(|| 7).build_on(&core).unwrap();
    let free = |object: OwnedBox<u64>| move || drop(object);
    run_beside((0..objects).map(|_| free(cache.alloc_owned().unwrap())).collect(), || drop(cache));
    assert_all_freed(core);
}

/// C4: separate threads free the last objects of a cache without an owner, while this thread makes another cache. The
/// new cache may get the class number of the old cache.
pub(crate) fn race_reuse_with_late_frees(objects: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(1 + objects) }).unwrap();
    let build = |made| ObjectCache::<u64>::builder("model").ctor(move || made).build_on(&core).unwrap();
    let old = build(7);
    let free = |object: OwnedBox<u64>| move || drop(object);
    let late_objects = (0..objects).map(|_| free(old.alloc_owned().unwrap())).collect();
    drop(old);
    run_beside(late_objects, || {
        let new = build(8);
        drop(new.alloc().unwrap());
        let objects = [(); 2].map(|()| new.alloc().unwrap());
        assert_eq!(objects.each_ref().map(|object| **object), [8; 2], "the object's cache exists");
        drop(objects);
        drop(new);
    });
    assert_all_freed(core);
}

/// S4: this thread takes a snapshot of the objects in use, while `others` threads each add one slab and one object on
/// `nodes` nodes. The snapshot has room for four slabs without allocating memory.
pub(crate) fn race_live_listing_with_allocs(others: u32, nodes: u32) {
    let config = Config { magazines: Magazines::Off, ..config_with_nodes(nodes, 4 + others) };
    let world = World::on(Core::new(config).unwrap(), [KmemCache::builder("model", SPACING)]);
    let objects = [(); 8].map(|()| world.alloc());
    let alloc = |cpu: u32| {
        let other = world.clone();
        thread::spawn(move || {
            on_cpu(cpu % 2);
            other.alloc().as_ptr().expose_provenance()
        })
    };
    let threads: Vec<_> = (0..others).map(alloc).collect();
    let live = world.cache().live().len();
    let object = |at| NonNull::new(core::ptr::with_exposed_provenance_mut(at)).unwrap();
    let new_objects: Vec<_> = threads.into_iter().map(|t| object(t.join().unwrap())).collect();
    assert!((8..=8 + others as usize).contains(&live), "{live} live objects, expected eight or a few more");
    objects.into_iter().chain(new_objects).for_each(|object| world.free(object));
    World::end(world);
}

/// Starts a builder of a cache whose objects record that they are constructed. The first byte of an object is 7 while
/// the object is constructed.
pub(super) fn constructing_builder() -> KmemCacheBuilder {
    KmemCache::builder("model", SPACING)
        .ctor(|object| {
            assert_eq!(object[0], 0, "an object is constructed twice");
            object[0] = 7;
        })
        .dtor(|object| {
            assert_eq!(object[0], 7, "only constructed objects are destructed");
            object[0] = 8;
        })
}
pub(super) fn alloc_constructed(world: &World) -> NonNull<u8> {
    let object = world.alloc();
    // SAFETY: this thread owns the object.
    assert_eq!(unsafe { object.read() }, 7, "each allocated object is constructed");
    object
}

/// S5: a free constructed object is allocated while `others` threads shrink the cache. Another object of the same slab
/// is in use during the scenario.
pub(crate) fn race_construction_with_shrinks(others: u32) {
    let world = World::of(2, Magazines::Off, [constructing_builder()]);
    let (kept, idle) = (alloc_constructed(&world), alloc_constructed(&world));
    world.free(idle);
    let shrink = |_| {
        let other = world.clone();
        move || _ = other.cache().shrink()
    };
    run_beside((0..others).map(shrink).collect(), || {
        let object = alloc_constructed(&world);
        world.free(object);
    });
    // SAFETY: this thread owns the object.
    assert_eq!(unsafe { kept.read() }, 7, "an object in use was destructed");
    world.census(1);
    world.free(kept);
    World::end(world);
}

/// R1: separate threads remove the entries `goes` from a list of three entries, while `walkers` threads and this thread
/// iterate over the list. Two further entries were removed earlier; the third removal compacts the list.
pub(crate) fn walk_registry_during_removals(goes: &[usize], walkers: usize) {
    let registry = Arc::new(Registry::new(Rank::Caches));
    let entries: Vec<_> = (0..5).map(std::sync::Arc::new).collect();
    entries.iter().for_each(|entry| registry.push(entry));
    entries[3..].iter().for_each(|entry| registry.remove(std::sync::Arc::as_ptr(entry)));
    let go = |gone: &usize| {
        let (other, one) = (registry.clone(), entries[*gone].clone());
        thread::spawn(move || other.remove(std::sync::Arc::as_ptr(&one)))
    };
    let going: Vec<_> = goes.iter().map(go).collect();
    let walk = |registry: &Registry<usize>| registry.iter().map(|entry| *entry).collect::<Vec<_>>();
    let walking: Vec<_> = (0..walkers)
        .map(|_| {
            let other = registry.clone();
            thread::spawn(move || walk(&other))
        })
        .collect();
    let visited_entries = walk(&registry);
    going.into_iter().for_each(|t| t.join().unwrap());
    let stay: Vec<_> = (0..3).filter(|entry| !goes.contains(entry)).collect();
    for mut walked in walking.into_iter().map(|t| t.join().unwrap()).chain([visited_entries]) {
        walked.retain(|entry| !goes.contains(entry));
        assert_eq!(walked, stay, "each remaining entry is visited once");
    }
}

/// R1: nearly half of the entries are removed in advance. R1: `others + 1` threads then concurrently remove one entry
/// each. The first of the concurrent removals compacts the list. After the removals, the list must have the correct
/// number of remaining entries.
pub(crate) fn race_registry_removals(others: usize) {
    let registry = Arc::new(Registry::new(Rank::Caches));
    let (all, here) = (3 + 4 * others, 2 + 2 * others);
    let entries: Vec<_> = (0..all).map(std::sync::Arc::new).collect();
    entries.iter().for_each(|entry| registry.push(entry));
    entries[here..].iter().for_each(|entry| registry.remove(std::sync::Arc::as_ptr(entry)));
    let go = |gone: usize| {
        let (other, one) = (registry.clone(), entries[gone].clone());
        thread::spawn(move || other.remove(std::sync::Arc::as_ptr(&one)))
    };
    let threads: Vec<_> = (0..others).map(go).collect();
    registry.remove(std::sync::Arc::as_ptr(&entries[others]));
    threads.into_iter().for_each(|t| t.join().unwrap());
    let stay: Vec<_> = (1 + others..here).collect();
    let list_text = format!("{:?}", &*registry.list().lock());
    let right = format!("List {{ entries: {}, .. }}", stay.len());
    assert_eq!(list_text, right, "the count of remaining entries is right");
    assert_eq!(registry.iter().map(|entry| *entry).collect::<Vec<_>>(), stay);
}

/// P1: `others` threads and this thread free the same mapping; before its free, this thread looks the mapping up.
pub(crate) fn race_mapping_frees(others: usize) {
    let core = Core::new(Config::for_models(1)).unwrap();
    let layout = Layout::from_size_align(5 << 20, PAGE_SIZE).unwrap();
    let at = core.alloc_huge(layout, Gfp::KERNEL).unwrap().as_ptr().expose_provenance();
    let piece = move || NonNull::new(core::ptr::with_exposed_provenance_mut(at)).unwrap();
    let free = |_| {
        let other = core.clone();
        thread::spawn(move || other.huge.free(piece()).is_ok())
    };
    let threads: Vec<_> = (0..others).map(free).collect();
    let bytes = core.huge.bytes(piece());
    assert!(matches!(bytes, Ok(_) | Err(CorruptionKind::Foreign)), "the mapping is partly freed: {bytes:?}");
    assert!(core.huge.agrees(), "the table of mappings is sorted");
    let is_freed = core.huge.free(piece()).is_ok();
    let other_results = threads.into_iter().map(|t| t.join().unwrap());
    assert_eq!(
        other_results.chain([is_freed]).filter(|freed| *freed).count(),
        1,
        "exactly one of the threads frees the mapping"
    );
    assert_eq!(core.huge.info().pages, 0, "the mapping is freed");
}

/// Runs `what` on this thread while each function of `others` runs in a separate thread.
pub(super) fn run_beside(others: Vec<impl FnOnce() + Send + 'static>, what: impl FnOnce()) {
    let threads: Vec<_> = (0..)
        .zip(others)
        .map(|(cpu, other)| {
            thread::spawn(move || {
                on_cpu(cpu % 2);
                other();
            })
        })
        .collect();
    what();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Checks that all caches are destroyed, and all their memory is freed.
pub(super) fn assert_all_freed(core: std::sync::Arc<Core>) {
    assert_eq!(core.caches.iter().count(), 0, "a cache without an owner is freed");
    assert_eq!(std::sync::Arc::strong_count(&core), 1, "a reference to a freed cache was released");
    core.memory.pages.decommit();
    let census = core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
    assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
}

/// A value that no reader may see before it is initialised.
pub(crate) struct Value(UnsafeCell<u32>);
// SAFETY: loom watches the cell; shuttle runs all threads of an execution on one thread.
unsafe impl Sync for Value {}
// SAFETY: loom watches the cell; shuttle runs all threads of an execution on one thread.
unsafe impl Send for Value {}
/// Creates and publishes a value, unless another thread was first. Returns the address of the published value.
pub(crate) fn publish(published: &Published<Value>) -> *const Value {
    let value = published.get().unwrap_or_else(|| {
        let value = Value(UnsafeCell::new(0));
        // SAFETY: the value is not shared yet.
        value.0.with_mut(|value| unsafe { *value = 7 });
        published.publish(Box::new(value))
    });
    // SAFETY: the value was written before it was published, and has not changed since.
    assert_eq!(value.0.with(|value| unsafe { *value }), 7);
    value
}
