//! Statistics of one cache.

use super::Cache;
use uslab_magazine::Paths;
use uslab_magazine::sync::Ordering::Relaxed;

/// Statistics of one cache, which are exact while no other thread uses the cache. While other threads use the cache,
/// each number is read at a different time, and an object that moves may be counted twice or not at all.
///
/// [`other_node_frees`](Self::other_node_frees) counts frees of another node's objects, at no cost. The cache does not
/// record the CPU that allocated an object; [`depot_exchanges`](Self::depot_exchanges) shows the cost of frees between
/// CPUs of a node.
///
/// Cost: a snapshot reads the counters of each CPU and magazine, and takes each node's lock once. The fast paths
/// maintain no counters for this snapshot.
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
    /// Requested size of an object in bytes.
    pub object_size: u64,
    /// Distance in bytes between the starts of two adjacent objects.
    pub slab_size: u64,
    /// Alignment of the objects, in bytes.
    pub align: u64,
    /// Order of a slab, which has `2^order` pages.
    pub order: u8,
    /// Number of objects per slab.
    pub objs_per_slab: u64,
    /// Number of slabs with free objects that a node keeps before it frees empty slabs.
    pub min_partial: u64,
    /// Maximum number of slabs of the cache; `None` without a limit.
    pub limit: Option<u64>,
    /// True if the cache's freed pages are kept until a grace period has passed.
    pub type_stable: bool,
    /// Number of other caches that share this cache under other names.
    pub aliases: u64,

    /// Number of slabs on the lists of all nodes.
    pub slabs: u64,
    /// Number of slabs without a free object.
    pub full: u64,
    /// Number of slabs that have both free objects and objects in use or in magazines.
    pub partial: u64,
    /// Number of slabs whose objects are all free.
    pub empty: u64,
    /// Number of pages without objects in use that slabs returned to the system.
    pub discarded: u64,
    /// Number of freed slabs that wait for the end of a grace period; not included in `slabs`.
    pub grace: u64,
    /// Number of pages of all slabs, including slabs that wait for a grace period.
    pub pages: u64,
    /// Highest number of slabs so far.
    pub slabs_peak: u64,
    /// Number of slabs made so far.
    pub slabs_made: u64,
    /// Number of slabs freed so far.
    pub slabs_released: u64,
    /// Number of slabs made with the smallest order because memory was short.
    pub order_fallbacks: u64,

    /// Number of objects in all slabs.
    pub objects: u64,
    /// Number of objects in use.
    pub used: u64,
    /// Number of freed objects that wait for a grace period, included in `used`.
    pub deferred: u64,
    /// Number of objects on CPUs' stacks.
    pub in_magazines: u64,
    /// Number of objects in the depots.
    pub in_depot: u64,
    /// Number of freed objects in the [quarantine](crate::Harden::quarantine).
    pub quarantined: u64,
    /// Number of objects that are free in slabs.
    pub free_in_slabs: u64,

    /// Number of futures and threads that wait for an object at the limit, in [`acquire`](crate::KmemCache::acquire).
    pub waiting: u64,
    /// Number of finished waits, including cancelled waits.
    pub waits: u64,
    /// Total duration of the finished waits, in nanoseconds.
    pub waited_ns: u64,

    /// Number of allocations.
    pub allocs: u64,
    /// Number of frees.
    pub frees: u64,
    /// Number of allocations and of frees that each level served.
    pub paths: Paths,
    /// Number of depot accesses that moved a magazine.
    pub depot_exchanges: u64,
    /// Number of depot accesses that waited for another thread's access.
    pub depot_contention: u64,
    /// Number of magazines filled from slabs.
    pub fills: u64,
    /// Number of magazines flushed to slabs.
    pub flushes: u64,
    /// Number of allocations that got an object of another node, because the requested node had no memory. The
    /// requested node is the current CPU's node, or the argument of [`alloc_node`](crate::KmemCache::alloc_node).
    pub other_node_allocs: u64,
    /// Number of frees of an object whose node differs from the freeing CPU's node.
    pub other_node_frees: u64,
    /// Capacity of a magazine in objects; 0 without magazines.
    pub magazine_capacity: u64,
    /// True if the cache should have magazines but runs without them, because no class number was left or memory was
    /// short.
    pub magazines_refused: bool,
    /// Number of constructor runs.
    pub constructed: u64,
    /// Number of destructor runs.
    pub destructed: u64,
    /// Number of bytes that constructed objects own in addition to their slots, if
    /// [declared](crate::KmemCacheBuilder::holds) or [weighed](crate::ObjectCacheBuilder::weigh).
    pub held_bytes: u64,
    /// Number of failed allocations.
    pub failures: u64,
    /// Number of refused frees (double, foreign, interior, wrong cache) plus the number of detected damages.
    pub corruptions: u64,
}

impl CacheInfo {
    /// Returns `true` if the cache has ever had a slab. Tables of caches omit caches without slabs by default.
    pub fn had_slabs(&self) -> bool {
        self.slabs_made > 0
    }
}

impl Cache {
    /// Returns the number of objects in all slabs, and the number of objects in use. The call does not allocate.
    pub(crate) fn objects(&self) -> (u64, u64) {
        let (count, layer) = (self.count(), self.config.per_cpu.stats());
        let cached_objects = layer.in_magazines + layer.in_depot + self.config.per_cpu.quarantined();
        (count.objects, count.inuse.saturating_sub(cached_objects))
    }

    /// Number of allocations of the cache. The call does not allocate.
    pub(crate) fn allocs(&self) -> u64 {
        self.config.per_cpu.stats().allocs + self.counts.direct_allocs.get()
    }

    pub(crate) fn info(&self) -> CacheInfo {
        CacheInfo { name: self.name().to_owned(), ..self.numbers() }
    }
    /// Statistics of the cache, with an empty name. The call does not allocate.
    pub(crate) fn numbers(&self) -> CacheInfo {
        let (count, counts, geometry) = (self.count(), &self.counts, self.geometry());
        let direct_paths = counts.direct_paths.now();
        let direct = direct_paths.of_operations(counts.direct_allocs.get() + counts.direct_frees.get());
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
            // Relaxed: the counters publish no other data.
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
