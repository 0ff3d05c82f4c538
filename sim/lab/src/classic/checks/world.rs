//! What models and schedules run on: a cache of numbered balls, and who holds which.
//!
//! A world ends in a census: each ball is in one place, each magazine where its fill belongs, the counts exact. Whoever holds a
//! ball writes to its cell. The checker watches the cells: it finds a second owner, and a free that does not happen before the next
//! allocation of that ball.

use crate::classic::depot::List;
use crate::classic::magazine::{CpuCache, Magazine};
use crate::classic::{Cache, Sizes, Slab};
use uslab_magazine::sync::{Arc, Counter, Mutex, UnsafeCell, planted, tell, thread};
use uslab_magazine::{Cpus, Script};

/// The slab layer: a locked heap of balls.
#[derive(Debug)]
pub(super) struct TestSupplier {
    balls: Mutex<Vec<usize>>,
    /// Whether there is memory for magazines.
    magazines: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SharedSupplier(Arc<TestSupplier>);

impl SharedSupplier {
    pub(super) fn has(&self, ball: usize) -> bool {
        self.0.balls.lock().contains(&ball)
    }
    pub(super) fn count(&self) -> usize {
        self.0.balls.lock().len()
    }
}

impl Slab<usize> for SharedSupplier {
    fn alloc(&self) -> Option<usize> {
        if planted("the slab layer looks and then takes") {
            let ball = self.0.balls.lock().last().copied()?;
            self.0.balls.lock().retain(|other| *other != ball);
            return Some(ball);
        }
        self.0.balls.lock().pop()
    }
    fn free(&self, ball: usize) {
        self.0.balls.lock().push(ball);
        tell!("gives {ball} to the slab layer");
    }
    fn magazine(&self, size: usize) -> Option<Vec<usize>> {
        self.0.magazines.then(|| Vec::with_capacity(size))
    }
}

pub(super) struct World {
    pub(super) cache: Cache<usize, SharedSupplier>,
    /// One for each ball; written by whoever holds it.
    held: Vec<UnsafeCell<bool>>,
    /// Balls that were in magazines at the beginning.
    cached: u64,
    allocs: Counter,
    frees: Counter,
}

// SAFETY: the cells are what loom watches; shuttle runs all threads of an execution on one.
unsafe impl Sync for World {}

/// A magazine of `size` with these balls.
fn magazine(size: usize, balls: &[usize]) -> Magazine<usize> {
    let mut rounds = Vec::with_capacity(size);
    rounds.extend(balls);
    Magazine { rounds, size }
}

/// The beginning.
impl World {
    /// Balls 1 to `balls`, all of them on the supplier, and magazines of `size`.
    pub(super) fn new(cpus: u32, size: usize, balls: usize) -> Self {
        let supplier = TestSupplier { balls: Mutex::new((1..=balls).collect()), magazines: true };
        let sizes = Sizes { first: size, largest: 2 * size + 1, contention: 2 };
        let cpus = Cpus::simulated(cpus, 1).unwrap();
        World {
            cache: Cache::new(cpus, sizes, SharedSupplier(Arc::new(supplier))),
            held: (0..=balls).map(|_| UnsafeCell::new(false)).collect(),
            cached: 0,
            allocs: Counter::new(0),
            frees: Counter::new(0),
        }
    }
    fn size(&mut self) -> usize {
        self.cache.depot.0.get_mut().size
    }
    /// Without a lock, so that it is no step of a story.
    fn supplier(&mut self) -> &mut TestSupplier {
        Arc::get_mut(&mut self.cache.slab.0).expect("nobody else has the supplier yet")
    }
    fn from_shelf(&mut self, balls: &[usize]) {
        self.supplier().balls.get_mut().retain(|ball| !balls.contains(ball));
    }
    fn magazine(&mut self, balls: &[usize]) -> Magazine<usize> {
        self.from_shelf(balls);
        self.cached += balls.len() as u64;
        magazine(self.size(), balls)
    }
    /// What a CPU has, in place of nothing.
    pub(super) fn cpu(mut self, cpu: usize, loaded: &[usize], previous: &[usize]) -> Self {
        let (loaded, previous) = (self.magazine(loaded), self.magazine(previous));
        let cache = self.cache.per_cpu[cpu].0.get_mut();
        *cache = CpuCache { loaded, previous, ..CpuCache::new() };
        self
    }
    /// A magazine in the depot: full with these balls, or empty.
    pub(super) fn in_depot(mut self, balls: &[usize]) -> Self {
        let magazine = self.magazine(balls);
        self.cache.depot.0.get_mut().put(magazine);
        self
    }
    /// All that the depot has was there through two intervals.
    pub(super) fn long_ago(mut self) -> Self {
        let stock = self.cache.depot.0.get_mut();
        for list in [&mut stock.full, &mut stock.empty] {
            list.end_interval();
            list.end_interval();
        }
        self
    }
    /// So many visits to the depot had to wait in this interval.
    pub(super) fn contended(mut self, visits: u64) -> Self {
        self.cache.depot.0.get_mut().contended = visits;
        self
    }
    /// These balls are in use.
    pub(super) fn out(mut self, balls: &[usize]) -> Self {
        self.from_shelf(balls);
        for ball in balls {
            self.own(*ball, true);
            self.allocs.add(1);
            self.cache.slab_allocs.add(1);
        }
        self
    }
    /// The supplier has nothing to hand out.
    pub(super) fn nothing_else(mut self) -> Self {
        let left = self.supplier().balls.get_mut();
        assert!(left.is_empty(), "{left:?} are on the supplier");
        self
    }
    /// There is no memory for magazines.
    pub(super) fn no_magazines(mut self) -> Self {
        self.supplier().magazines = false;
        self
    }
}

impl World {
    fn own(&self, ball: usize, now: bool) {
        // SAFETY: loom watches the cell, and reports a second owner as a race.
        let before = self.held[ball].with_mut(|held| unsafe { held.replace(now) });
        assert_ne!(before, now, "a ball with two owners");
    }
    pub(super) fn alloc(&self) -> Option<usize> {
        let ball = self.cache.alloc()?;
        self.own(ball, true);
        self.allocs.add(1);
        Some(ball)
    }
    pub(super) fn free(&self, ball: usize) {
        self.own(ball, false);
        self.frees.add(1);
        self.cache.free(ball);
    }

    /// Nobody does anything any more, and `live` are in use: everything is in its place.
    pub(super) fn census(&self, live: &[usize]) {
        let mut balls: Vec<usize> = live.to_vec();
        for cpu in &self.cache.per_cpu {
            let cpu = cpu.0.lock();
            let previous = &cpu.previous;
            assert!(previous.is_full() || previous.is_empty(), "the previous magazine is full or empty");
            balls.extend(cpu.loaded.rounds.iter().chain(&previous.rounds));
        }
        let stock = self.cache.depot.0.lock();
        for List { magazines, least, .. } in [&stock.full, &stock.empty] {
            assert!(*least <= magazines.len(), "the working set is in the list");
        }
        let empty_of_size = |magazine: &Magazine<usize>| magazine.is_empty() && magazine.size == stock.size;
        assert!(stock.full.magazines.iter().all(Magazine::is_full), "the full list has only full magazines");
        assert!(stock.empty.magazines.iter().all(empty_of_size), "the empty list has only the current size");
        balls.extend(stock.full.magazines.iter().flat_map(|magazine| &magazine.rounds));
        drop(stock);
        let cached = (balls.len() - live.len()) as u64;
        balls.extend(self.cache.slab().0.balls.lock().iter());
        balls.sort_unstable();
        assert_eq!(balls, (1..self.held.len()).collect::<Vec<_>>(), "each ball is in one place");
        let stats = self.cache.stats();
        let operations = (stats.cpu_allocs + stats.slab_allocs, stats.cpu_frees + stats.slab_frees);
        assert_eq!(operations, (self.allocs.get(), self.frees.get()), "the counts are exact");
        assert_eq!(
            self.cached + stats.cpu_frees,
            stats.cpu_allocs + stats.flushed + cached,
            "the counts are exact"
        );
    }
    /// Behind a drain at rest.
    pub(super) fn cpus_have_nothing(&self) {
        let magazines = self.cache.stats().cpus.into_iter().flatten();
        assert_eq!(
            magazines.map(|magazine| magazine.size).sum::<usize>(),
            0,
            "a drain leaves nothing behind"
        );
    }
}

/// What a thread does. Returns the balls that it keeps.
pub(super) type Side = fn(&World) -> Vec<Option<usize>>;

/// Runs `here` in this thread and the others in threads of their own, each on the CPUs of its script. Returns the balls in use.
pub(super) fn together(world: &Arc<World>, here: (Script, Side), others: &[(Script, Side)]) -> Vec<usize> {
    let spawn = |(script, side): &(Script, Side)| {
        let (world, script, side) = (world.clone(), *script, *side);
        thread::spawn(move || {
            script.install();
            side(&world)
        })
    };
    let threads: Vec<_> = others.iter().map(spawn).collect();
    here.0.install();
    let mut kept = here.1(world);
    threads.into_iter().for_each(|thread| kept.extend(thread.join().unwrap()));
    Script::on(0).install();
    kept.into_iter().flatten().collect()
}

/// The same, and the census.
pub(super) fn run(world: World, here: (Script, Side), others: &[(Script, Side)]) -> Arc<World> {
    let world = Arc::new(world);
    let live = together(&world, here, others);
    world.census(&live);
    world
}

pub(super) fn alloc_then_free(world: &World) -> Vec<Option<usize>> {
    world.alloc().into_iter().for_each(|ball| world.free(ball));
    vec![]
}
