//! The numbers of one cache.

use super::Cache;
use uslab_magazine::Paths;
use uslab_magazine::sync::Ordering::Relaxed;

/// The numbers of one cache. Exact while nobody uses the cache; otherwise a snapshot, each number for itself: objects
/// that move meanwhile may be counted twice or not at all.
///
/// Whose free it is costs nothing to know as far as memory nodes go ([`other_node_frees`](Self::other_node_frees)). Which CPU
/// of its node an object was allocated on is kept nowhere; what frees between them cost is seen as
/// [`depot_exchanges`](Self::depot_exchanges).
///
/// Cost: each CPU's and magazine's words are read, and each node's lock is taken once; the fast paths count nothing for it.
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let inodes = KmemCache::builder("inode", 600).build()?;
/// let blocks = inodes.alloc_blocks(Gfp::KERNEL, 30)?;
/// let info = inodes.info();
/// assert_eq!((info.used, info.allocs - info.frees), (30, 30));
/// // Each object is in one of four places, or five where freed ones are kept from use.
/// assert_eq!(info.objects, info.used + info.in_magazines + info.in_depot + info.free_in_slabs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheInfo {
    /// The cache's name.
    pub name: String,
    /// Bytes of an object, as asked for.
    pub object_size: u64,
    /// Bytes from one object to the next.
    pub slab_size: u64,
    /// Alignment of the objects, in bytes.
    pub align: u64,
    /// Order of a slab: it has `2^order` pages.
    pub order: u8,
    /// Objects in a slab.
    pub objs_per_slab: u64,
    /// Slabs that a node keeps with free objects before it gives empty ones back.
    pub min_partial: u64,
    /// The most slabs that the cache may have; `None` is no limit.
    pub limit: Option<u64>,
    /// Whether pages outlive a grace period.
    pub type_stable: bool,
    /// Caches that share this one under other names.
    pub aliases: u64,

    /// Slabs in all, and by list.
    pub slabs: u64,
    /// Slabs whose objects are all out.
    pub full: u64,
    /// Slabs with objects out and objects free.
    pub partial: u64,
    /// Slabs without objects out.
    pub empty: u64,
    /// Pages inside slabs that no object in use touches and whose memory was returned to the system.
    pub discarded: u64,
    /// Slabs given up that wait for the end of a grace period; not in `slabs`.
    pub grace: u64,
    /// Pages of all slabs, those that wait for the end of a grace period included.
    pub pages: u64,
    /// The most slabs that there were at a time.
    pub slabs_peak: u64,
    /// Slabs made, and given back.
    pub slabs_made: u64,
    /// See `slabs_made`.
    pub slabs_released: u64,
    /// Slabs that got the smallest order because memory was short.
    pub order_fallbacks: u64,

    /// Objects in all slabs.
    pub objects: u64,
    /// Objects in callers' hands.
    pub used: u64,
    /// Of these, objects that were freed and wait for a grace period.
    pub deferred: u64,
    /// Objects on CPUs' stacks.
    pub in_magazines: u64,
    /// Objects in the depots.
    pub in_depot: u64,
    /// Freed objects that are kept from use: see [`Harden::quarantine`](crate::Harden::quarantine).
    pub quarantined: u64,
    /// Objects free in slabs.
    pub free_in_slabs: u64,

    /// Who waits for an object at the limit: futures and threads of [`acquire`](crate::KmemCache::acquire).
    pub waiting: u64,
    /// Waits that are over: with an object, or given up.
    pub waits: u64,
    /// Nanoseconds that they took in all.
    pub waited_ns: u64,

    /// Objects handed out.
    pub allocs: u64,
    /// Objects taken back.
    pub frees: u64,
    /// Allocations and frees, by the dearest thing that each did.
    pub paths: Paths,
    /// Visits to the depots that moved a magazine.
    pub depot_exchanges: u64,
    /// Visits to the depots that had to wait for another one.
    pub depot_contention: u64,
    /// Magazines filled from slabs, and given back to them.
    pub fills: u64,
    /// See `fills`.
    pub flushes: u64,
    /// Allocations that got an object of another node than the one asked for, which had none: the current CPU's, or that of
    /// [`alloc_node`](crate::KmemCache::alloc_node).
    pub other_node_allocs: u64,
    /// Frees of another node's objects.
    pub other_node_frees: u64,
    /// Rounds in a magazine; 0 without magazines.
    pub magazine_capacity: u64,
    /// Whether the cache was to have magazines, and works without: there was no number left for its class, or no memory.
    pub magazines_refused: bool,
    /// Times that a constructor ran.
    pub constructed: u64,
    /// Times that a destructor ran.
    pub destructed: u64,
    /// Bytes that constructed objects hold beside their own, where that is [declared](crate::KmemCacheBuilder::holds) or
    /// [weighed](crate::ObjectCacheBuilder::weigh).
    pub held_bytes: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Frees that were refused (double, foreign, interior, wrong cache), and damage that was found.
    pub corruptions: u64,
}

impl CacheInfo {
    /// Whether it ever had a slab: tables leave out those that never had one, unless they are asked for all.
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

    /// Objects that were handed out. Allocates nothing.
    pub(crate) fn allocs(&self) -> u64 {
        self.config.per_cpu.stats().allocs + self.counts.direct_allocs.get()
    }

    pub(crate) fn info(&self) -> CacheInfo {
        CacheInfo { name: self.name().to_owned(), ..self.numbers() }
    }
    /// The same without the name. Allocates nothing.
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
