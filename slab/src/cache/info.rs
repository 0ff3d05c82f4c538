//! Statistics of one cache.

use super::Cache;
use uslab_magazine::Paths;
use uslab_magazine::sync::Ordering::Relaxed;

/// Numbers of one cache. Exact while no other thread uses the cache; otherwise a snapshot with each number taken separately:
/// moving objects may be counted twice or not at all.
///
/// Frees of another node's objects are counted ([`other_node_frees`](Self::other_node_frees)), which costs nothing. The CPU on
/// which an object was allocated is not recorded; the cost of frees between CPUs of a node shows as
/// [`depot_exchanges`](Self::depot_exchanges).
///
/// Cost: reads each CPU's and magazine's words, and takes each node's lock once; the fast paths count nothing for it.
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let inodes = KmemCache::builder("inode", 600).build()?;
/// let blocks = inodes.alloc_blocks(Gfp::KERNEL, 30)?;
/// let info = inodes.info();
/// assert_eq!((info.used, info.allocs - info.frees), (30, 30));
/// // Each object is in one of four places, or five with a quarantine.
/// assert_eq!(info.objects, info.used + info.in_magazines + info.in_depot + info.free_in_slabs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheInfo {
    /// Name of the cache.
    pub name: String,
    /// Requested bytes of an object.
    pub object_size: u64,
    /// Bytes from one object to the next.
    pub slab_size: u64,
    /// Alignment of the objects, in bytes.
    pub align: u64,
    /// Order of a slab: it has `2^order` pages.
    pub order: u8,
    /// Objects per slab.
    pub objs_per_slab: u64,
    /// Slabs with free objects that a node keeps before it frees empty ones.
    pub min_partial: u64,
    /// Most slabs that the cache may have; `None` without a limit.
    pub limit: Option<u64>,
    /// True if pages outlive a grace period.
    pub type_stable: bool,
    /// Number of caches that share this one under other names.
    pub aliases: u64,

    /// Slabs on all lists.
    pub slabs: u64,
    /// Slabs whose objects are all out.
    pub full: u64,
    /// Slabs with objects out and free objects.
    pub partial: u64,
    /// Slabs with no object out.
    pub empty: u64,
    /// Pages inside slabs that no object in use touches and whose memory was returned to the system.
    pub discarded: u64,
    /// Slabs that wait for the end of a grace period; not included in `slabs`.
    pub grace: u64,
    /// Pages of all slabs, including those that wait for a grace period.
    pub pages: u64,
    /// Highest number of slabs so far.
    pub slabs_peak: u64,
    /// Slabs made so far.
    pub slabs_made: u64,
    /// Slabs freed so far.
    pub slabs_released: u64,
    /// Slabs made with the smallest order because memory was short.
    pub order_fallbacks: u64,

    /// Objects in all slabs.
    pub objects: u64,
    /// Objects in use.
    pub used: u64,
    /// Freed objects that wait for a grace period, included in `used`.
    pub deferred: u64,
    /// Objects on CPUs' stacks.
    pub in_magazines: u64,
    /// Objects in the depots.
    pub in_depot: u64,
    /// Freed objects in the [quarantine](crate::Harden::quarantine).
    pub quarantined: u64,
    /// Objects free in slabs.
    pub free_in_slabs: u64,

    /// Futures and threads that wait for an object at the limit, in [`acquire`](crate::KmemCache::acquire).
    pub waiting: u64,
    /// Finished waits: with an object, or cancelled.
    pub waits: u64,
    /// Total duration of the finished waits, in nanoseconds.
    pub waited_ns: u64,

    /// Number of allocations.
    pub allocs: u64,
    /// Number of frees.
    pub frees: u64,
    /// Allocations and frees by where they were served.
    pub paths: Paths,
    /// Visits to the depots that moved a magazine.
    pub depot_exchanges: u64,
    /// Visits to the depots that waited for another one.
    pub depot_contention: u64,
    /// Magazines filled from slabs.
    pub fills: u64,
    /// Magazines flushed to slabs.
    pub flushes: u64,
    /// Allocations that got an object of another node than requested, because that node had no memory. The requested node is
    /// the current CPU's, or that of [`alloc_node`](crate::KmemCache::alloc_node).
    pub other_node_allocs: u64,
    /// Frees of another node's objects.
    pub other_node_frees: u64,
    /// Objects in a full magazine; 0 without magazines.
    pub magazine_capacity: u64,
    /// True if the cache was configured with magazines and works without: there was no class number left, or no memory.
    pub magazines_refused: bool,
    /// Number of constructor runs.
    pub constructed: u64,
    /// Number of destructor runs.
    pub destructed: u64,
    /// Bytes that constructed objects hold in addition to their own, if they are [declared](crate::KmemCacheBuilder::holds) or
    /// [weighed](crate::ObjectCacheBuilder::weigh).
    pub held_bytes: u64,
    /// Number of failed allocations.
    pub failures: u64,
    /// Refused frees (double, foreign, interior, wrong cache), and damage found.
    pub corruptions: u64,
}

impl CacheInfo {
    /// Returns `true` if the cache ever had a slab. Tables omit other caches by default.
    pub fn had_slabs(&self) -> bool {
        self.slabs_made > 0
    }
}

impl Cache {
    /// Objects of all slabs, and those in use. Allocates nothing.
    pub(crate) fn objects(&self) -> (u64, u64) {
        let (count, layer) = (self.count(), self.config.per_cpu.stats());
        let kept = layer.in_magazines + layer.in_depot + self.config.per_cpu.quarantined();
        (count.objects, count.inuse.saturating_sub(kept))
    }

    /// Number of allocations. Allocates nothing.
    pub(crate) fn allocs(&self) -> u64 {
        self.config.per_cpu.stats().allocs + self.counts.direct_allocs.get()
    }

    pub(crate) fn info(&self) -> CacheInfo {
        CacheInfo { name: self.name().to_owned(), ..self.numbers() }
    }
    /// The numbers without the name. Allocates nothing.
    pub(crate) fn numbers(&self) -> CacheInfo {
        let (count, counts, geometry) = (self.count(), &self.counts, self.geometry());
        let dear = counts.direct_paths.now();
        let direct = dear.of_operations(counts.direct_allocs.get() + counts.direct_frees.get());
        let layer = self.config.per_cpu.stats();
        let (in_magazines, quarantined) = (layer.in_magazines, self.config.per_cpu.quarantined());
        CacheInfo {
            name: String::new(),
            object_size: geometry.object_size() as u64,
            slab_size: geometry.stride() as u64,
            align: geometry.align() as u64,
            order: geometry.order().get(),
            objs_per_slab: geometry.objects() as u64,
            min_partial: self.min_partial as u64,
            limit: self.config.limit.map(u64::from),
            aliases: self.refs().aliases(),
            type_stable: self.config.type_stable,
            slabs: count.slabs(),
            full: count.full,
            partial: count.partial,
            empty: count.empty,
            discarded: count.discarded,
            // Relaxed: numbers.
            grace: counts.grace.load(Relaxed),
            deferred: counts.deferred.load(Relaxed),
            slabs_peak: counts.peak.get(),
            slabs_made: counts.made.get(),
            slabs_released: counts.released.get(),
            order_fallbacks: counts.order_fallbacks.get(),
            pages: counts.pages.get(),
            objects: count.objects,
            used: count.inuse.saturating_sub(in_magazines + layer.in_depot + quarantined),
            in_magazines,
            in_depot: layer.in_depot,
            quarantined,
            free_in_slabs: count.objects - count.inuse,
            waiting: self.waiting() as u64,
            waits: counts.waits.get(),
            waited_ns: counts.waited.get(),
            allocs: layer.allocs + counts.direct_allocs.get(),
            frees: layer.frees + counts.direct_frees.get() + self.config.per_cpu.delayed_frees(),
            paths: layer.paths + direct,
            depot_exchanges: layer.depot_exchanges,
            depot_contention: layer.depot_contention,
            fills: layer.fills,
            flushes: layer.flushes,
            other_node_allocs: counts.other_node_allocs.get(),
            other_node_frees: layer.other_node_frees + counts.other_node_frees.get(),
            magazine_capacity: layer.capacity,
            magazines_refused: self.config.per_cpu.is_refused(),
            constructed: counts.constructed.get(),
            destructed: counts.destructed.get(),
            held_bytes: self.held_bytes(),
            failures: counts.failures.get(),
            corruptions: counts.corruptions.get(),
        }
    }
}
