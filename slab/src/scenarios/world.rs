//! What the scenarios run on: caches on a few pages, and the census at the end. And scenarios that are for both checkers.
//!
//! Handing an object out and taking it back changes a cell of that object: two owners and a double free fail, as does
//! touching the frame of a page that was given back; under loom a free that does not happen before the next allocation does,
//! too. A world ends in the census: slabs, objects and pages all add up, and then all go back.

use crate::Config;
use crate::cache::core::Core;
use crate::debug::check::{SPACING, on_cpu};
use crate::published::Published;
use crate::{AllocError, Gfp, Hive, KmemCache, KmemCacheBuilder, Limit, Magazines, ObjectCache, OwnedBox};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use uslab_buddy::ZoneKind;
use uslab_magazine::sync::{Arc, UnsafeCell, thread};
use uslab_magazine::{Cpus, Operation};

pub(crate) struct World {
    /// Dropped at the end of an execution that succeeded only: a failing one must not run the model on while it unwinds.
    caches: ManuallyDrop<Vec<KmemCache>>,
    pub(crate) core: std::sync::Arc<Core>,
}

// Magazines of one object, no stock: every second operation visits the depot.
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
    /// Uses the object: its page must be out.
    pub(crate) fn touch(&self, object: NonNull<u8>) {
        self.cache().touch(object);
    }
    pub(crate) fn free_of(&self, cache: usize, object: NonNull<u8>) {
        self.touch(object);
        // SAFETY: the models free what they allocated, once; what is wrong otherwise is what they look for.
        unsafe { self.caches[cache].free(object) };
    }
    pub(crate) fn free(&self, object: NonNull<u8>) {
        self.free_of(0, object);
    }
    /// Everything is where its state says; so many objects are in use.
    pub(crate) fn census(&self, used: u64) {
        let census = self.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(census.used, used, "census: {census:?}");
    }
    /// Nothing is in use: everything goes back.
    pub(crate) fn end(this: Arc<Self>) {
        this.census(0);
        this.caches.iter().for_each(|cache| _ = cache.shrink());
        this.core.memory.pages.release();
        let census = this.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
        let Ok(mut world) = Arc::try_unwrap(this) else { panic!("the threads have ended") };
        // SAFETY: `world` goes out of use here.
        unsafe { ManuallyDrop::drop(&mut world.caches) };
    }
}

/// Two CPUs, each on a node of its own with so many pages.
pub(super) fn two_nodes(pages: u32) -> Config {
    let mut config = Config { magazines: SMALL, ..Config::for_models(pages) };
    config.pages.cpus = Cpus::simulated(2, 2).unwrap();
    config.pages.nodes = vec![vec![(ZoneKind::Normal, pages)]; 2];
    config
}

/// C2: a cache with a free object in a magazine is dropped while others reap: `reapers` threads.
pub(crate) fn drop_beside_reaps(reapers: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let cache = KmemCache::builder("model", SPACING).build_on(&core).unwrap();
    let object = cache.alloc(Gfp::KERNEL).unwrap();
    // SAFETY: allocated just now.
    unsafe { cache.free(object) };
    beside_reaps(core, reapers, false, || drop(cache));
}

/// W1: a hive with a value and a free place is walked, and dropped, while others reap its cache.
pub(crate) fn walk_beside_reaps(reapers: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let mut hive = Hive::on(Hive::<u64>::builder("model").build_on(&core).unwrap());
    let (_kept, gone) = (hive.insert(7).unwrap(), hive.insert(8).unwrap());
    assert_eq!(hive.remove(gone), 8);
    beside_reaps(core, reapers, cfg!(shuttle), || {
        let walked: Vec<u64> = hive.iter().copied().collect();
        assert_eq!(walked, [7], "not the values of the hive");
        drop(hive);
    });
}

/// Does `what` while others reap, and may give free pages back to the system. The only cache there is goes by it.
pub(crate) fn beside_reaps(core: std::sync::Arc<Core>, reapers: u32, decommits: bool, what: impl FnOnce()) {
    let reap = |_| {
        let core = core.clone();
        move || {
            core.refs().for_each(|cache| _ = cache.shrink(&Operation::new()));
            if decommits {
                core.memory.pages.release();
            }
        }
    };
    beside((0..reapers).map(reap).collect(), what);
    all_gone(core);
}

/// C3: a cache is dropped while each of its objects is freed by a thread of its own. Whoever is last sees to its end.
pub(crate) fn drop_beside_frees(objects: u32) {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let cache = ObjectCache::<u64>::builder("model").ctor(|| 7).build_on(&core).unwrap();
    let free = |object: OwnedBox<u64>| move || drop(object);
    beside((0..objects).map(|_| free(cache.alloc_owned().unwrap())).collect(), || drop(cache));
    all_gone(core);
}

/// C4: the last object of a cache that nobody owns is freed while another cache is made, which may get its number.
pub(crate) fn reuse_beside_a_late_free() {
    on_cpu(0);
    let core = Core::new(Config { magazines: SMALL, ..Config::for_models(2) }).unwrap();
    let build = |made| ObjectCache::<u64>::builder("model").ctor(move || made).build_on(&core).unwrap();
    let old = build(7);
    let late = old.alloc_owned().unwrap();
    drop(old);
    beside(vec![|| drop(late)], || {
        let new = build(8);
        drop(new.alloc().unwrap());
        let objects = [(); 2].map(|()| new.alloc().unwrap());
        assert_eq!(objects.each_ref().map(|object| **object), [8; 2], "an object of a cache that is gone");
        drop(objects);
        drop(new);
    });
    all_gone(core);
}

/// Does `what` while each of `others` is done on a thread of its own.
pub(super) fn beside(others: Vec<impl FnOnce() + Send + 'static>, what: impl FnOnce()) {
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

/// All caches have gone, with all that they had.
pub(super) fn all_gone(core: std::sync::Arc<Core>) {
    assert_eq!(core.caches.iter().count(), 0, "a cache that nobody owns is left");
    assert_eq!(std::sync::Arc::strong_count(&core), 1, "a cache that is gone was given up, too");
    core.memory.pages.release();
    let census = core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
    assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
}

/// A value with something to initialise.
pub(crate) struct Value(UnsafeCell<u32>);
// SAFETY: loom watches the cell; shuttle runs all threads of an execution on one.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}
/// The value, made and published by whoever is first.
pub(crate) fn publish(published: &Published<Value>) -> *const Value {
    let value = published.get().unwrap_or_else(|| {
        let value = Value(UnsafeCell::new(0));
        // SAFETY: nobody else knows the value.
        value.0.with_mut(|value| unsafe { *value = 7 });
        published.publish(Box::new(value))
    });
    // SAFETY: written before it was published, and constant since.
    assert_eq!(value.0.with(|value| unsafe { *value }), 7);
    value
}
