//! The workloads that stress threads run in turns.

use super::affinity;
use super::log::StressOperation;
use super::worker::{HeldObject, Worker};
use super::world::{Memory, Source};
use clap::ValueEnum;
use std::sync::Arc;
use std::time::Duration;
use uslab::{Gfp, KmemCache};
use uslab_buddy::Order;

/// A workload of the stress test: one way to use the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Objects of a few caches are allocated and freed at random.
    Churn,
    /// One thread allocates objects, and another thread frees them.
    Exchange,
    /// A thread allocates thousands of objects in a row, pauses, and frees all of them.
    Burst,
    /// The objects of a process are allocated together, and also freed together.
    Fork,
    /// A thread that moves between CPUs allocates and frees objects at random.
    Migrate,
    /// Caches are created, shrunk and destroyed while other threads use them.
    Lifecycle,
    /// A thread reaps, shrinks, drains and releases memory while other threads allocate.
    Reap,
    /// Objects are prefilled, and allocated in bulk.
    Private,
    /// Kmalloc and malloc allocate objects of every size class.
    Sizes,
    /// Blocks of pages, and objects above the largest size class, are allocated.
    Large,
}

impl Workload {
    /// All workloads, in order.
    pub const ALL: [Self; 10] = [
        Self::Churn,
        Self::Exchange,
        Self::Burst,
        Self::Fork,
        Self::Migrate,
        Self::Lifecycle,
        Self::Reap,
        Self::Private,
        Self::Sizes,
        Self::Large,
    ];

    /// Returns the workload's name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Runs one turn of the workload: hundreds or thousands of operations, or fewer if a pause of the world begins.
    pub(super) fn run_turn(self, worker: &mut Worker<'_, '_>) {
        worker.workload = self;
        worker.look(4);
        match self {
            Self::Churn => churn(worker, 1000),
            Self::Exchange => exchange(worker),
            Self::Burst => burst(worker),
            Self::Fork => fork(worker),
            Self::Migrate => migrate(worker),
            Self::Lifecycle => run_temporary_cache_workload(worker),
            Self::Reap => reap(worker),
            Self::Private => private(worker),
            Self::Sizes => sizes(worker),
            Self::Large => large(worker),
        }
    }
}

fn common(worker: &mut Worker<'_, '_>) -> Source {
    let sources: Vec<_> = Source::common().collect();
    worker.pick(&sources)
}

fn churn(worker: &mut Worker<'_, '_>, steps: usize) {
    let hot = [common(worker), common(worker), common(worker)];
    for _ in 0..steps {
        if worker.is_paused() {
            return;
        }
        match worker.chance_one_in(2).then(|| worker.random_held_object()).flatten() {
            Some(held) => worker.free(held),
            None => {
                let source = worker.pick(&hot);
                if let Some(held) = worker.alloc(source) {
                    worker.keep(held);
                }
            }
        }
    }
}

/// The largest number of objects in a bin.
const MAX_BIN_OBJECTS: usize = 512;

fn exchange(worker: &mut Worker<'_, '_>) {
    let source = common(worker);
    for _ in 0..16 {
        if worker.is_paused() {
            return;
        }
        let bin = worker.below(worker.bins.len());
        if worker.chance_one_in(2) {
            let room = MAX_BIN_OBJECTS.saturating_sub(worker.bins[bin].lock().len());
            let batch = (0..room.min(64)).filter_map(|_| worker.alloc(source)).collect();
            worker.leave(bin, batch);
        } else {
            for held in worker.take(bin, 64) {
                worker.free(held);
            }
        }
    }
}

/// Frees objects in a randomly chosen order.
fn free_in_random_order<'w>(worker: &mut Worker<'w, '_>, mut objects: Vec<HeldObject<'w>>) {
    match worker.below(3) {
        0 => {}
        1 => objects.reverse(),
        _ => {
            for i in (1..objects.len()).rev() {
                let other = worker.below(i + 1);
                objects.swap(i, other);
            }
        }
    }
    objects.into_iter().for_each(|held| worker.free(held));
}

fn burst(worker: &mut Worker<'_, '_>) {
    let source = common(worker);
    let most = 500 + worker.below(2500);
    let mut objects = Vec::new();
    for _ in 0..most {
        if worker.is_paused() {
            break;
        }
        objects.extend(worker.alloc(source));
    }
    // Sometimes the thread is a reader of type-stable caches during the pause.
    let reader = worker.chance_one_in(4).then(uslab::rcu::pin);
    std::thread::sleep(Duration::from_micros(worker.below(1000) as u64));
    drop(reader);
    free_in_random_order(worker, objects);
}

fn fork(worker: &mut Worker<'_, '_>) {
    for _ in 0..4 {
        let mut processes = vec![];
        for _ in 0..1 + worker.below(8) {
            if worker.is_paused() {
                break;
            }
            processes.push(Source::family().filter_map(|source| worker.alloc(source)).collect::<Vec<_>>());
        }
        for process in processes {
            free_in_random_order(worker, process);
        }
    }
}

fn migrate(worker: &mut Worker<'_, '_>) {
    let cpus = affinity::usable();
    for _ in 0..16 {
        let cpu = worker.pick(&cpus);
        worker.run_and_log(StressOperation::Move(cpu), |_| affinity::pin(&[cpu]));
        churn(worker, 64);
    }
    worker.other("moves to any CPU", |_| affinity::pin(&cpus));
}

/// The largest number of objects that a temporary cache has at a time.
const TEMPORARY: usize = 100;

fn run_temporary_cache_workload(worker: &mut Worker<'_, '_>) {
    for _ in 0..8 {
        if worker.is_paused() {
            return;
        }
        let slot = worker.below(worker.world.temporary.len());
        let cache = worker.world.temporary[slot].lock().clone();
        match worker.below(4) {
            0 => replace(worker, slot, &cache),
            1 => _ = worker.other("shrinks a temporary cache", |_| cache.shrink()),
            _ => alloc_and_free_temporary_object(worker, &cache),
        }
    }
}

fn replace(worker: &mut Worker<'_, '_>, slot: usize, old: &KmemCache) {
    let size = 8 + worker.below(2000);
    let made = worker.other("makes a temporary cache", |world| {
        KmemCache::builder("temporary", size).build_in(&world.subsystem)
    });
    match made {
        Ok(cache) => {
            // The old cache may be another thread's replacement; it is dropped only after the lock is released.
            let _last = std::mem::replace(&mut *worker.world.temporary[slot].lock(), Arc::new(cache));
        }
        Err(_) if worker.world.faulty => {}
        Err(error) => worker.violated(format!("a cache could not be created: {error}"), None, &[]),
    }
    // Other threads may still use the cache, so both results are right: busy, and destroyed.
    _ = worker.other("destroys a temporary cache", |_| old.destroy());
}

fn alloc_and_free_temporary_object(worker: &mut Worker<'_, '_>, cache: &KmemCache) {
    let mut objects: Vec<HeldObject<'_>> = vec![];
    for _ in 0..1 + worker.below(TEMPORARY) {
        let Some(block) = worker.granted(Source::Temporary, || cache.alloc_block(Gfp::KERNEL)) else { break };
        objects.extend(worker.adopt(Memory::Block(block), Source::Temporary));
    }
    for held in objects {
        worker.free(held);
    }
}

fn reap(worker: &mut Worker<'_, '_>) {
    for _ in 0..4 {
        if worker.is_paused() {
            return;
        }
        let cpus = worker.world.subsystem.cpus().count();
        let cpu = worker.below(cpus as usize) as u32;
        let source = common(worker);
        match worker.below(8) {
            0 => _ = worker.other("reaps everything", |world| world.subsystem.reap()),
            1 => _ = worker.other("shrinks everything", |world| world.subsystem.shrink()),
            2 => _ = worker.other("releases pages", |world| world.subsystem.pages().decommit()),
            3 => _ = worker.other("trims pages", |world| world.subsystem.pages().decommit_free()),
            4 => worker.other("drains a CPU", |world| world.subsystem.drain_cpus(cpu..cpu + 1)),
            5 => _ = worker.other("reads all numbers", |world| world.subsystem.info()),
            6 => worker.other("ends grace periods", |_| uslab::rcu::advance()),
            _ => {
                _ = worker.other("shrinks a cache", |world| world.cache(source).map(KmemCache::shrink));
            }
        }
        churn(worker, 100);
    }
}

fn private(worker: &mut Worker<'_, '_>) {
    for _ in 0..4 {
        if worker.is_paused() {
            return;
        }
        let source = common(worker);
        let Some(cache) = worker.world.cache(source) else { return };
        let promised = 1 + worker.below(150);
        let Some(mut mine) = worker.granted(source, || cache.prefill(Gfp::KERNEL, promised)) else {
            continue;
        };
        let mut objects = vec![];
        for _ in 0..promised {
            match mine.alloc_block() {
                Some(block) => objects.extend(worker.adopt(Memory::Block(block), source)),
                None => worker.violated(format!("{source}: a reserved object was not available"), None, &[]),
            }
        }
        let again = 1 + worker.below(150);
        _ = worker.granted(source, || mine.refill(again));
        for held in objects {
            match worker.part(held) {
                Some(Memory::Block(block)) if worker.chance_one_in(2) => mine.free_block(block),
                other => drop(other),
            }
        }
        drop(mine);
        let count = 1 + worker.below(300);
        for block in worker.granted(source, || cache.alloc_blocks(Gfp::KERNEL, count)).unwrap_or_default() {
            if let Some(held) = worker.adopt(Memory::Block(block), source) {
                worker.keep(held);
            }
        }
    }
}

/// Returns a random size in bytes below `2^bits`; every power of two is equally likely.
fn random_size(worker: &mut Worker<'_, '_>, bits: usize) -> u32 {
    let power = 1_usize << worker.below(bits);
    (power + worker.below(power)) as u32
}

fn sizes(worker: &mut Worker<'_, '_>) {
    for _ in 0..500 {
        if worker.is_paused() {
            return;
        }
        let size = random_size(worker, 13);
        let source = match worker.chance_one_in(2) {
            true => Source::Kmalloc(size),
            false => Source::Malloc(size, worker.pick(&[8, 16, 64])),
        };
        if let Some(held) = worker.alloc(source) {
            worker.keep(held);
        }
        if let Some(held) = worker.random_held_object() {
            worker.free(held);
        }
    }
}

fn large(worker: &mut Worker<'_, '_>) {
    for _ in 0..8 {
        if worker.is_paused() {
            return;
        }
        let mut blocks = vec![];
        for _ in 0..4 {
            let size = 8193 + random_size(worker, 19);
            let order = Order::new(worker.below(8) as u8).unwrap_or(Order::ZERO);
            let source =
                worker.pick(&[Source::Kmalloc(size), Source::Malloc(size, 64), Source::Pages(order)]);
            blocks.extend(worker.alloc(source));
        }
        free_in_random_order(worker, blocks);
    }
}
