//! The test world of the magazine layer: a cache of numbered objects, with a record of each object's owner.
//!
//! After an execution, a census checks three things: each object has one owner, each magazine is in the right list, and
//! all counts are exact. The owner of an object writes to the cell that belongs to the object. Loom observes all
//! accesses to the cells; it detects a second owner, and a free without a happens-before order to the next allocation.

use crate::classic::depot::List;
use crate::classic::magazine::{CpuCache, Magazine};
use crate::classic::{Cache, Sizes, Slab};
use uslab_magazine::sync::{Arc, Counter, Mutex, UnsafeCell, planted, tell};
use uslab_magazine::{Cpus, Script, threads};

/// The slab layer of a test: a heap of objects under a lock.
#[derive(Debug)]
pub(super) struct TestSupplier {
    objects: Mutex<Vec<usize>>,
    /// `true` if memory for magazines is available.
    magazines: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SharedSupplier(Arc<TestSupplier>);

impl SharedSupplier {
    pub(super) fn has_object(&self, object: usize) -> bool {
        self.0.objects.lock().contains(&object)
    }
    pub(super) fn count(&self) -> usize {
        self.0.objects.lock().len()
    }
}

impl Slab<usize> for SharedSupplier {
    fn alloc(&self) -> Option<usize> {
        planted!("the slab layer allocates without checking again" => {
            let object = self.0.objects.lock().last().copied()?;
            self.0.objects.lock().retain(|other| *other != object);
            return Some(object);
        });
        self.0.objects.lock().pop()
    }
    fn free(&self, object: usize) {
        self.0.objects.lock().push(object);
        tell!("frees {object} to the slab layer");
    }
    fn magazine(&self, size: usize) -> Option<Vec<usize>> {
        self.0.magazines.then(|| Vec::with_capacity(size))
    }
}

pub(super) struct World {
    pub(super) cache: Cache<usize, SharedSupplier>,
    /// One cell for each object; only the object's owner writes to the cell.
    held: Vec<UnsafeCell<bool>>,
    /// The number of objects that were in magazines at the beginning.
    cached: u64,
    allocs: Counter,
    frees: Counter,
}

// SAFETY: loom checks accesses to the cells; shuttle runs all threads of an execution on one system thread.
unsafe impl Sync for World {}

/// Returns a magazine with room for `size` rounds, which contains the given objects.
fn magazine(size: usize, objects: &[usize]) -> Magazine<usize> {
    let mut rounds = Vec::with_capacity(size);
    rounds.extend(objects);
    Magazine { rounds, size }
}

/// Functions that build the initial state of a world.
impl World {
    /// Creates a world whose supplier has the objects 1 to `objects`, and whose magazines have `size` rounds.
    pub(super) fn new(cpus: u32, size: usize, objects: usize) -> Self {
        let supplier = TestSupplier { objects: Mutex::new((1..=objects).collect()), magazines: true };
        let sizes = Sizes { first: size, largest: 2 * size + 1, contention: 2 };
        let cpus = Cpus::simulated(cpus, 1).unwrap();
        World {
            cache: Cache::new(cpus, sizes, SharedSupplier(Arc::new(supplier))),
            held: (0..=objects).map(|_| UnsafeCell::new(false)).collect(),
            cached: 0,
            allocs: Counter::new(0),
            frees: Counter::new(0),
        }
    }
    fn size(&mut self) -> usize {
        self.cache.depot.0.get_mut().size
    }
    /// Returns the supplier without taking a lock, so that traces do not show this access as a step.
    fn supplier(&mut self) -> &mut TestSupplier {
        Arc::get_mut(&mut self.cache.slab.0).expect("the supplier must not be shared yet")
    }
    fn take_from_supplier(&mut self, objects: &[usize]) {
        self.supplier().objects.get_mut().retain(|object| !objects.contains(object));
    }
    fn magazine(&mut self, objects: &[usize]) -> Magazine<usize> {
        self.take_from_supplier(objects);
        self.cached += objects.len() as u64;
        magazine(self.size(), objects)
    }
    /// Gives magazines to a CPU that had no magazines.
    pub(super) fn cpu(mut self, cpu: usize, loaded: &[usize], previous: &[usize]) -> Self {
        let (loaded, previous) = (self.magazine(loaded), self.magazine(previous));
        let cache = self.cache.per_cpu[cpu].0.get_mut();
        *cache = CpuCache { loaded, previous, ..CpuCache::new() };
        self
    }
    /// Adds a full magazine with the given objects to the depot, or an empty magazine if the list is empty.
    pub(super) fn in_depot(mut self, objects: &[usize]) -> Self {
        let magazine = self.magazine(objects);
        self.cache.depot.0.get_mut().put(magazine);
        self
    }
    /// Makes two intervals pass, so that everything in the depot is older than the current interval.
    pub(super) fn with_old_depot(mut self) -> Self {
        let stock = self.cache.depot.0.get_mut();
        for list in [&mut stock.full, &mut stock.empty] {
            list.end_interval();
            list.end_interval();
        }
        self
    }
    /// Sets the number of depot visits that had to wait in the current interval.
    pub(super) fn contended(mut self, visits: u64) -> Self {
        self.cache.depot.0.get_mut().contended = visits;
        self
    }
    /// Marks the given objects as in use at the beginning.
    pub(super) fn out(mut self, objects: &[usize]) -> Self {
        self.take_from_supplier(objects);
        for object in objects {
            self.set_owned(*object, true);
            self.allocs.add(1);
            self.cache.slab_allocs.add(1);
        }
        self
    }
    /// Leaves the supplier without any objects.
    pub(super) fn without_slab_objects(mut self) -> Self {
        let slab_objects = self.supplier().objects.get_mut();
        assert!(slab_objects.is_empty(), "{slab_objects:?} remain with the supplier");
        self
    }
    /// Leaves the supplier without memory for magazines.
    pub(super) fn without_magazine_memory(mut self) -> Self {
        self.supplier().magazines = false;
        self
    }
}

impl World {
    fn set_owned(&self, object: usize, owned: bool) {
        // SAFETY: only the object's owner accesses the cell; loom reports a second owner as a race.
        let before = self.held[object].with_mut(|held| unsafe { held.replace(owned) });
        assert_ne!(before, owned, "an object has two owners");
    }
    pub(super) fn alloc(&self) -> Option<usize> {
        let object = self.cache.alloc()?;
        self.set_owned(object, true);
        self.allocs.add(1);
        Some(object)
    }
    pub(super) fn free(&self, object: usize) {
        self.set_owned(object, false);
        self.frees.add(1);
        self.cache.free(object);
    }

    /// Checks that each object has its expected owner when all threads have ended; the objects in `live` are in use.
    pub(super) fn census(&self, live: &[usize]) {
        let mut objects: Vec<usize> = live.to_vec();
        for cpu in &self.cache.per_cpu {
            let cpu = cpu.0.lock();
            let previous = &cpu.previous;
            assert!(previous.is_full() || previous.is_empty(), "the previous magazine is full or empty");
            objects.extend(cpu.loaded.rounds.iter().chain(&previous.rounds));
        }
        let stock = self.cache.depot.0.lock();
        for List { magazines, min_length, .. } in [&stock.full, &stock.empty] {
            assert!(*min_length <= magazines.len(), "the working set is in the list");
        }
        let empty_of_size = |magazine: &Magazine<usize>| magazine.is_empty() && magazine.size == stock.size;
        assert!(stock.full.magazines.iter().all(Magazine::is_full), "the full list has only full magazines");
        assert!(stock.empty.magazines.iter().all(empty_of_size), "the empty list has only the current size");
        objects.extend(stock.full.magazines.iter().flat_map(|magazine| &magazine.rounds));
        drop(stock);
        let cached = (objects.len() - live.len()) as u64;
        objects.extend(self.cache.slab().0.objects.lock().iter());
        objects.sort_unstable();
        assert_eq!(objects, (1..self.held.len()).collect::<Vec<_>>(), "each object is in one place");
        let stats = self.cache.stats();
        let operations = (stats.cpu_allocs + stats.slab_allocs, stats.cpu_frees + stats.slab_frees);
        assert_eq!(operations, (self.allocs.get(), self.frees.get()), "the counts are exact");
        assert_eq!(
            self.cached + stats.cpu_frees,
            stats.cpu_allocs + stats.flushed + cached,
            "the counts are exact"
        );
    }
    /// Checks, after a drain without concurrent operations, that CPUs hold no objects.
    pub(super) fn assert_cpus_are_empty(&self) {
        let magazines = self.cache.stats().cpus.into_iter().flatten();
        assert_eq!(magazines.map(|magazine| magazine.size).sum::<usize>(), 0, "a drain leaves no objects");
    }
}

pub(super) type ThreadFn = threads::ThreadFn<World>;

/// Runs `first_thread` in this thread and each of `other_threads` in a new thread; each script names the CPUs on which
/// its thread runs. After all threads have ended, checks the world by a census.
pub(super) fn run(
    world: World,
    first_thread: (Script, ThreadFn),
    other_threads: &[(Script, ThreadFn)],
) -> Arc<World> {
    let world = Arc::new(world);
    let live = threads::run_concurrently(&world, first_thread, other_threads);
    world.census(&live);
    world
}

pub(super) fn alloc_then_free(world: &World) -> Vec<Option<usize>> {
    world.alloc().into_iter().for_each(|object| world.free(object));
    vec![]
}
