//! Reclaims memory from all caches, by sweeps of magazines, release of empty slabs, and shrinkers.

use super::Cache;
use super::core::Core;
use super::lifetime::owner::CacheRef;
use super::per_cpu::OBJECT_SWEEP_GROUP;
use crate::reclaim::pressure::{SHARE, lowest_memory_limit};
use crate::reclaim::reaper::{BackgroundReaper, Reap};
use crate::reclaim::shrinker::{Registration, Shrinker};
use core::ops::Range;
use uslab_buddy::{Gfp, PAGE_SIZE};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{DrainScope, Operation};

/// Number of the cache whose limit a shrinker serves, or 0 if the shrinker serves all memory.
fn shrinker_cache_number(cache: Option<&Cache>) -> u64 {
    cache.map_or(0, |cache| cache.number)
}

impl Core {
    /// Takes the stacks of all caches on `cpus`, with one fence per table. The taken objects wait until each cache has
    /// flushed its own objects.
    fn sweep(&self, cpus: Range<u32>, which: DrainScope) {
        // A call on one cache flushes the deferred frees of all caches.
        self.caches.iter().take(1).for_each(|cache| cache.flush_deferred());
        self.memory.pages.tables().sweep(cpus, which, |group| group == OBJECT_SWEEP_GROUP);
    }

    /// Adapts the amount of kept free memory to the current limits, if
    /// [`Config::heed_limits`](crate::Config::heed_limits) is on.
    pub(crate) fn adapt_to_memory_limits(&self) {
        if !self.heed_limits {
            return;
        }
        let committed = self.memory.pages.committed_bytes() + self.huge.mapped_bytes();
        let room = lowest_memory_limit().map(|least| least.saturating_sub(committed as u64));
        self.memory.pages.keep_at_most(room.map_or(u64::MAX, |room| room / SHARE));
    }

    /// Decommits the tags of pages without objects. Decommitting tags frees one byte for every eight decommitted bytes
    /// of pages.
    pub(crate) fn discard_tags(&self) {
        #[cfg(not(shuttle))]
        {
            let tags = self.tags.lock().0.clone();
            tags.inspect(|tags| _ = tags.discard_unused(&self.memory.pages));
        }
    }

    pub(crate) fn shrink(&self, op: &Operation) -> usize {
        self.unmap_kept_mappings();
        self.sweep(0..self.cpus.count(), DrainScope::All);
        let slabs = self.for_each_swept_cache(|cache| cache.shrink_after_sweep(op));
        self.memory.pages.tables().decommit_idle();
        slabs
    }
    /// Drains the objects on the stacks of `cpus` to their slabs.
    pub(crate) fn drain(&self, cpus: Range<u32>) {
        self.sweep(cpus, DrainScope::All);
        self.for_each_swept_cache(|cache| {
            cache.drain_swept();
            0
        });
    }
    fn for_each_swept_cache(&self, each: impl Fn(&Cache) -> usize) -> usize {
        self.refs().map(|cache| each(&cache)).sum()
    }

    /// Frees the empty slabs of all caches. Returns the number of slabs freed.
    pub(crate) fn discard_empty(&self) -> usize {
        self.refs().map(|cache| cache.discard_empty(&cache.operation(OperationKind::Reclaim).cold())).sum()
    }

    /// Reclaims memory from all caches except `except`: each cache frees its empty slabs, and keeps less memory from
    /// now on. The call also unmaps freed mappings. Returns the number of freed slabs plus unmapped mappings.
    pub(crate) fn reclaim(&self, op: &Operation, except: Option<&Cache>) -> usize {
        let others = self.refs().filter(|cache| except.is_none_or(|except| !core::ptr::eq(&**cache, except)));
        let slabs = others.inspect(|cache| cache.shrink_magazines()).map(|cache| cache.discard_empty(op));
        slabs.sum::<usize>() + usize::from(self.unmap_kept_mappings() > 0)
    }

    /// Subtracts `bytes` bytes of mappings from the charge, and returns `bytes`.
    pub(crate) fn uncharge_mappings(&self, bytes: usize) -> usize {
        self.memory.pages.uncharge(bytes / PAGE_SIZE);
        bytes
    }
    /// Unmaps all mappings that are kept for reuse. Returns the number of unmapped bytes.
    pub(crate) fn unmap_kept_mappings(&self) -> usize {
        self.uncharge_mappings(self.huge.release())
    }

    pub(crate) fn reap(&self) -> u64 {
        let objects = self.reap_caches();
        self.memory.pages.reap();
        self.uncharge_mappings(self.huge.end_interval());
        objects
    }
    fn reap_caches(&self) -> u64 {
        self.sweep(0..self.cpus.count(), DrainScope::Idle);
        self.for_each_swept_cache(|cache| cache.reap_swept() as usize) as u64
    }

    /// Adds a shrinker that runs at the limit of `cache`, or whenever memory is short if `cache` is `None`.
    pub(crate) fn add_shrinker(&self, shrinker: Box<dyn Shrinker>, cache: Option<&Cache>) -> Registration {
        let registration = self.shrinkers.add(shrinker, shrinker_cache_number(cache));
        // A thread that began to wait without a shrinker must wake up to call the new shrinker.
        cache.into_iter().for_each(Cache::wake_threads);
        registration
    }
    /// Runs shrinkers for growing fractions of their objects, until `again` succeeds or no shrinker can free more. If
    /// `cache` is given, only shrinkers of that cache's limit run.
    pub(crate) fn shrink_until_success<T, E>(
        &self,
        gfp: Gfp,
        cache: Option<&Cache>,
        again: impl FnMut() -> Result<T, E>,
        result: Result<T, E>,
    ) -> Result<T, E> {
        self.shrinkers.run_until(gfp, shrinker_cache_number(cache), again, result)
    }
}

impl Core {
    /// Iterates over the caches that the guard samples, each with its number of allocations.
    fn sampled_caches(&self) -> impl Iterator<Item = (CacheRef, u64)> + '_ {
        let sampled =
            self.refs().filter(|cache| cache.config().page_class.is_some() || cache.config().guarded);
        sampled.map(|cache| (cache.allocs(), cache)).map(|(allocs, cache)| (cache, allocs))
    }
    fn samples(&self) -> bool {
        self.guard.is_on()
    }
    /// Returns the number of allocations from all caches that the guard samples. This number keeps changing while there
    /// are allocations to sample.
    fn sampled_allocs(&self) -> u64 {
        if self.samples() { self.sampled_caches().map(|(_, allocs)| allocs).sum() } else { 0 }
    }
    /// If an interval had enough allocations for a guard sample but no sample was taken, drains the stacks of one
    /// class. The call draws the class at random, weighted by its number of allocations.
    fn force_sampled_slow_path(&self) {
        if !self.samples() {
            return;
        }
        let all = self.sampled_allocs();
        if !self.guard.end_interval(all) {
            return;
        }
        let mut random_allocation = self.guard.draw(all.max(1) as usize) as u64;
        for (cache, allocs) in self.sampled_caches() {
            match random_allocation.checked_sub(allocs) {
                Some(left) => random_allocation = left,
                None => return cache.drain(0..self.cpus.count()),
            }
        }
    }
}
impl Reap for Core {
    fn end_interval(&self) -> usize {
        self.force_sampled_slow_path();
        self.refs().for_each(|cache| cache.rerun_shrinkers(Gfp::KERNEL));
        // The waiters may need objects of deferred frees.
        if self.waited_for.load(Relaxed) > 0 {
            crate::reclaim::rcu::advance();
        }
        let pages = self.memory.pages.decommit_idle(|| {
            self.reap_caches();
            self.discard_empty();
        });
        self.discard_tags();
        pages + self.uncharge_mappings(self.huge.end_interval())
    }
    fn free_unused(&self) {
        let op = &self.operation(OperationKind::Reclaim);
        self.reclaim(op, None);
        self.shrinkers.run(4, Gfp::KERNEL, 0);
        self.shrink(op);
        self.memory.pages.decommit();
        self.discard_tags();
    }
    fn changes(&self) -> u64 {
        self.memory.pages.changes() + self.huge.changes() + self.sampled_allocs() + self.idle_objects.get()
    }
    fn is_needed(&self, seen: u64) -> bool {
        // Relaxed: a new waiter wakes the reaper. If the reaper is just about to sleep and misses the waiter, it checks
        // again after a second.
        self.waited_for.load(Relaxed) > 0 || self.samples() && self.changes() != seen
    }
    fn background(&self) -> &BackgroundReaper {
        &self.background
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, KmemCache, Limit, Magazines, Malloc, Subsystem};
    use core::alloc::Layout;
    use uslab_buddy::{Order, PageConfig};
    use uslab_magazine::{Cpus, on_cpu};

    fn subsystem(guard_every: u32) -> Subsystem {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap()).limit(64 << 20);
        Subsystem::new(Config { guard_every, check_frees: false, ..Config::new(pages) }).unwrap()
    }

    #[test]
    fn change_counter_counts_magazine_operations_only_while_the_guard_samples() {
        for every in [0, 1 << 30] {
            let subsystem = subsystem(every);
            let malloc = Malloc::new(&subsystem).unwrap();
            let pair = || {
                let memory = malloc.alloc(Layout::new::<[u64; 8]>(), Gfp::KERNEL).unwrap();
                // SAFETY: the memory was just allocated, and is freed once.
                unsafe { malloc.free(memory) };
            };
            pair();
            let (core, seen) = (subsystem.core(), subsystem.core().changes());
            assert!(!core.is_needed(seen));
            pair();
            assert_eq!(core.changes() != seen, every > 0);
            assert_eq!(core.is_needed(seen), every > 0);
            assert!(!core.is_needed(core.changes()));
            assert_eq!(core.is_needed(seen + 1000), every > 0, "without samples the working set is empty");
        }
    }

    #[test]
    fn guard_samples_malloc_and_kmalloc_allocations() {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap()).limit(64 << 20);
        let sample_every_alloc = Config { magazines: Magazines::Off, guard_every: 1, ..Config::new(pages) };
        let subsystem = Subsystem::new(sample_every_alloc).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let malloc_alloc = |size| malloc.alloc(Layout::from_size_align(size, 8).unwrap(), Gfp::KERNEL);
        let kmalloc_alloc = |size| subsystem.kmalloc().alloc(size, Gfp::KERNEL);
        for alloc in [&malloc_alloc as &dyn Fn(usize) -> _, &kmalloc_alloc] {
            let seen = subsystem.core().guard.samples();
            for size in (1..64).map(|n| 16 * n) {
                // SAFETY: the memory was just allocated, and is freed once.
                unsafe { malloc.free(alloc(size).unwrap()) };
            }
            assert!(subsystem.core().guard.samples() >= seen + 16);
        }
    }

    #[test]
    fn shrinking_decommits_pages_of_unused_magazine_stacks() {
        let subsystem = subsystem(0);
        let cache = KmemCache::builder("entry", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_blocks(Gfp::KERNEL, 1000).unwrap());
        let core = subsystem.core();
        core.shrink(&core.operation(OperationKind::Reclaim));
        assert_eq!(core.memory.pages.tables().decommit_idle(), 0);
    }

    /// The test accepts that a table, which waits for more caches, keeps some pages.
    #[test]
    fn dropped_caches_decommit_their_magazine_stacks() {
        let subsystem = subsystem(0);
        for n in 0..1000 {
            let cache = KmemCache::builder(format!("short-{n}"), 64).build_in(&subsystem).unwrap();
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        }
        let caches: Vec<_> = (0..1000)
            .map(|n| KmemCache::builder(format!("long-{n}"), 64).build_in(&subsystem).unwrap())
            .collect();
        caches.iter().for_each(|cache| drop(cache.alloc_block(Gfp::KERNEL).unwrap()));
        drop(caches);
        let remaining_pages = subsystem.core().memory.pages.tables().decommit_idle();
        assert!(remaining_pages <= 4 << 20, "{remaining_pages} bytes");
    }

    #[test]
    fn magazines_shrink_after_memory_pressure() {
        let subsystem = subsystem(0);
        let cache = KmemCache::builder("entry", 64).build_in(&subsystem).unwrap();
        let held = || {
            let mut blocks = cache.alloc_blocks(Gfp::KERNEL, 1000).unwrap();
            let free = || blocks.pop().map(|_| cache.info().in_magazines);
            core::iter::from_fn(free).max().unwrap()
        };
        let before = held();
        drop(subsystem.pages().alloc_block(Order::MAX, Gfp::KERNEL, None));
        subsystem.core().free_unused();
        assert_eq!(subsystem.pages().info().backed_bytes(), 0, "all free slabs were freed");
        assert_eq!(cache.info().in_magazines, 0);
        assert!(held() < before);
    }

    /// Stacks in use may keep objects, because the size of a stack changes only when the stack is drained.
    #[test]
    fn magazines_shrink_after_the_cache_reached_its_limit() {
        let pages = PageConfig::default_for(Cpus::simulated(2, 1).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config { check_frees: false, ..Config::new(pages) }).unwrap();
        let cache = KmemCache::builder("entry", 64).limit(Limit::Slabs(16)).build_in(&subsystem).unwrap();
        let held = || {
            on_cpu(0);
            let mut blocks = cache.alloc_blocks(Gfp::KERNEL, 16 * cache.geometry().objects()).unwrap();
            let free = || blocks.pop().map(|_| cache.info().in_magazines);
            core::iter::from_fn(free).max().unwrap()
        };
        let before = held();
        // All objects are on the first CPU's stack. The second CPU reaches the limit, and flushes the first CPU's
        // stack.
        on_cpu(1);
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        assert!(held() < before);
    }

    #[test]
    fn cache_change_counter_is_the_sum_of_its_parts() {
        let subsystem = subsystem(1 << 30);
        let malloc = Malloc::new(&subsystem).unwrap();
        for bytes in [64, 5 << 20] {
            let memory = malloc.alloc(Layout::from_size_align(bytes, 8).unwrap(), Gfp::KERNEL).unwrap();
            // SAFETY: the memory was just allocated, and is freed once.
            unsafe { malloc.free(memory) };
        }
        drop(subsystem.pages().alloc_block(Order::MAX, Gfp::KERNEL, None).unwrap());
        let core = subsystem.core();
        let parts = [core.memory.pages.changes(), core.huge.changes(), core.sampled_allocs()];
        assert!(parts.iter().all(|part| *part > 0), "{parts:?}");
        assert_eq!(core.changes(), parts.iter().sum::<u64>());
    }

    #[test]
    fn objects_idle_for_an_interval_are_flushed() {
        let subsystem = subsystem(0);
        let caches = [Magazines::Off, Magazines::BySize].map(|magazines| {
            KmemCache::builder("entry", 64).magazines(magazines).build_in(&subsystem).unwrap()
        });
        caches.iter().for_each(|cache| drop(cache.alloc_blocks(Gfp::KERNEL, 1000).unwrap()));
        let keep = || {
            caches.each_ref().map(|cache| {
                let info = cache.info();
                [info.in_magazines + info.in_depot, info.empty]
            })
        };
        let [[_, empty], [parked, _]] = keep();
        assert!(empty > 0 && parked > 0);
        let bytes: usize = (0..8).map(|_| subsystem.core().end_interval()).sum();
        assert!(bytes >= PAGE_SIZE, "{bytes}");
        assert_eq!(keep(), [[0; 2]; 2]);
    }

    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn guard_sampling_rate_does_not_depend_on_magazines() {
        let subsystem = subsystem(500);
        let cache = KmemCache::builder("sampled", 64).build_in(&subsystem).unwrap();
        let samples = || subsystem.core().guard.samples();
        let held: Vec<_> = (0..20_000).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
        let magazine_samples = samples();
        drop(held);
        // While the profile runs, each allocation misses.
        subsystem.start_profile(1 << 20).unwrap();
        (0..20_000).for_each(|_| drop(cache.alloc_block(Gfp::KERNEL).unwrap()));
        subsystem.stop_profile();
        let profile_samples = samples() - magazine_samples;
        for samples in [magazine_samples, profile_samples] {
            assert!((10..400).contains(&samples), "{magazine_samples}, {profile_samples}");
        }
    }

    // In builds that this `cfg` excludes, each allocation misses.
    #[cfg(all(target_os = "linux", not(uslab_heap)))]
    #[test]
    fn guard_forces_a_stack_miss_if_an_interval_had_no_sample() {
        let subsystem = subsystem(1000);
        let _malloc = Malloc::new(&subsystem).unwrap();
        let core = subsystem.core();
        let (first, _) = core.sampled_caches().next().unwrap();
        let pairs = |n| {
            for _ in 0..n {
                let object = first.alloc(Gfp::KERNEL).unwrap();
                // SAFETY: the object was just allocated, and is freed once.
                unsafe { first.free(object) };
            }
        };
        let held = || first.info().in_magazines;
        pairs(10_000);
        assert!(held() > 0);
        core.force_sampled_slow_path();
        assert_eq!(held(), 0, "the CPU served all its allocations");
        pairs(10);
        let before = held();
        assert!(before > 0);
        core.force_sampled_slow_path();
        assert_eq!(held(), before, "the operations are too few for a sample");
    }
}
