//! The layers in front of a cache's slabs: optional magazines and an optional quarantine.
//!
//! All other code allocates, frees, flushes and counts through `PerCpu`, and never reaches a cache's magazines
//! directly. Only `PerCpu` tests whether a cache has magazines. A cache without magazines calls the parameter `bypass`,
//! which accesses the slabs directly.
//!
//! # Magazine sizes
//!
//! The default magazine sizes were chosen by measurement. A CPU's stack must have room for the batches that programs
//! allocate and free repeatedly (some 1,000 small objects). With smaller stacks, CPUs would often access the depot and
//! exchange cache lines. A magazine must be large enough to be worth a depot access, and small enough to fit into the
//! caches of the CPU that takes it. A depot absorbs objects that one thread allocates and another thread frees, and
//! batches that exceed a CPU's stack. An object that does not fit into the depot is freed to its slab individually,
//! which costs several times its share of a depot access. Larger objects leave more memory unused, so the bounds are
//! given in bytes instead of objects.
//!
//! A magazine has room for 64 KiB of objects: at most 64 objects, and at least 4. A stack holds 256 KiB of objects: at
//! most 1,216 objects, and at least two magazines. A depot holds 4 MiB of objects, and at most 1,024 magazines. When
//! memory is short, stacks hold fewer objects and depots are flushed. An object that is idle for two reap intervals is
//! flushed to its slab. A rarely used cache keeps few objects: its first fill takes one object, and each later fill
//! takes twice as many.
//!
//! Linux 7's sheaves hold 60, 28, 12 or 4 objects, depending on the object size; `Sized { capacity: 60, stock: 0, .. }`
//! is similar.

use super::object::Object;
use crate::debug::gdb;
use crate::harden::quarantine::Quarantine;
use core::fmt;
use core::ptr::NonNull;
use core::str::FromStr;
use std::ops::Range;
use uslab_buddy::{StackMemory, Tables};
use uslab_magazine::sync::Rank;
use uslab_magazine::sync::fork::ForkLock;
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::{Config, FastPath, Fork, Layer, LayerView, Operation, Stats, Supplier, SweepGroup};
use uslab_magazine::{StaticWords, Words};

/// The sweep group that a subsystem's caches form. This group comes after the sweep groups of the subsystem's zones,
/// because caches and zones share the table.
pub(super) const OBJECT_SWEEP_GROUP: SweepGroup = SweepGroup::new(u32::MAX / 2);

/// Magazine sizes of a cache, or of all caches of a subsystem.
///
/// ```
/// use uslab::{Gfp, KmemCache, Magazines};
///
/// let magazines = Magazines::Sized { capacity: 16, stock: 2, depot_limit: 4 };
/// let inodes = KmemCache::builder("inode", 600).magazines(magazines).build()?;
/// drop(inodes.alloc_block(Gfp::KERNEL)?);
/// assert!(inodes.info().in_magazines > 0); // the next allocation on that CPU takes no lock
///
/// let inodes = KmemCache::builder("inode", 600).magazines(Magazines::Off).build()?;
/// drop(inodes.alloc_block(Gfp::KERNEL)?);
/// assert_eq!(inodes.info().in_magazines, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Magazines {
    /// Magazine sizes depend on the object size, and are tuned at run time. The [module](self) describes the sizes.
    #[default]
    BySize,
    /// No magazines, for study and comparison: every allocation and free takes its node's lock.
    Off,
    /// Fixed magazine sizes, which are never tuned.
    Sized {
        /// Number of objects in a magazine, 1 to [`MAX_CAPACITY`].
        capacity: u16,
        /// Maximum number of magazines that a CPU holds in addition to the two magazines that every CPU needs.
        stock: u16,
        /// Maximum number of magazines in each node's depot, up to [`MAX_DEPOT`](uslab_magazine::MAX_DEPOT).
        depot_limit: u32,
    },
}

/// Maximum number of objects in a magazine.
pub const MAX_CAPACITY: usize = uslab_magazine::MAX_CAPACITY as usize;
const MIN_MAGAZINE_CAPACITY: usize = 4;
/// Maximum bytes of objects in a magazine.
const MAX_MAGAZINE_BYTES: usize = 64 << 10;
/// Maximum bytes of objects on a CPU's stack.
const MAX_STACK_BYTES: usize = 256 << 10;
const MAX_STACK_OBJECTS: usize = 1216;
/// Maximum bytes of objects in a node's depot.
const MAX_DEPOT_BYTES: usize = 4 << 20;
const MAX_DEPOT_MAGAZINES: usize = 1024;
const MIN_DEPOT_MAGAZINES: usize = 10;

impl Magazines {
    /// Returns the layer's sizes for objects that are `stride` bytes apart and own `holds` more bytes each; `None`
    /// without magazines.
    pub(crate) fn config(self, stride: usize, holds: usize) -> Option<Config> {
        let bytes = stride.saturating_add(holds);
        match self {
            Self::Off => None,
            Self::Sized { capacity, stock, depot_limit } => {
                Some(Config { round_bytes: bytes as u64, ..Config::new(capacity, stock, depot_limit) })
            }
            Self::BySize => {
                // Objects that own other memory may occupy much more than their slots in slabs.
                let (least, least_depot) =
                    if holds > 0 { (1, 1) } else { (MIN_MAGAZINE_CAPACITY, MIN_DEPOT_MAGAZINES) };
                let capacity = (MAX_MAGAZINE_BYTES / bytes).clamp(least, MAX_CAPACITY);
                let reach = (MAX_STACK_BYTES / bytes).min(MAX_STACK_OBJECTS);
                let stock = (reach / capacity).saturating_sub(2) as u16;
                let depot = (MAX_DEPOT_BYTES / capacity.saturating_mul(bytes))
                    .clamp(least_depot, MAX_DEPOT_MAGAZINES) as u32;
                Some(Config {
                    first_fill: 1,
                    round_bytes: bytes as u64,
                    ..Config::new(capacity as u16, stock, depot)
                })
            }
        }
    }
}

impl fmt::Display for Magazines {
    /// Writes `auto`, `off`, or the number of objects in a magazine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BySize => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Sized { capacity, .. } => write!(f, "{capacity}"),
        }
    }
}

impl FromStr for Magazines {
    type Err = String;

    /// Parses `auto`, `off`, or the number of objects in a magazine. With a number, a CPU keeps eight more magazines,
    /// and a depot is as large as Linux's barn.
    fn from_str(text: &str) -> Result<Self, String> {
        const MAX_STACK_CAPACITY: u16 = MAX_CAPACITY as u16;
        match text {
            "auto" => Ok(Self::BySize),
            "off" => Ok(Self::Off),
            _ => match text.parse() {
                Ok(capacity @ 1..=MAX_STACK_CAPACITY) => {
                    Ok(Self::Sized { capacity, stock: 8, depot_limit: MIN_DEPOT_MAGAZINES as u32 })
                }
                _ => Err(format!("expected `auto`, `off`, or a number from 1 to {MAX_STACK_CAPACITY}")),
            },
        }
    }
}

/// The magazines and quarantine of a cache.
#[derive(Debug)]
pub(crate) struct PerCpu {
    front: CpuLayer,
    quarantine: Option<Quarantine>,
}

#[derive(Debug)]
enum CpuLayer {
    Magazines(Layer<Object, StackMemory>),
    Nothing,
    /// The cache has no magazines, although its configuration requests them, because no class number was left, or
    /// memory was short.
    Refused,
}

impl PerCpu {
    /// Creates the magazines and quarantine of the named cache, whose objects are `stride` bytes apart.
    pub(super) fn new(
        tables: &Tables,
        wanted: Magazines,
        stride: usize,
        holds: usize,
        name: &str,
        quarantine: Option<Quarantine>,
    ) -> Self {
        let front = match wanted.config(stride, holds).map(|config| tables.layer(config, false)) {
            Some(Some(mut layer)) => {
                layer.set_name(name);
                CpuLayer::Magazines(layer)
            }
            Some(None) => CpuLayer::Refused,
            None => CpuLayer::Nothing,
        };
        Self { front, quarantine }
    }
    /// For debuggers: returns the addresses of the layer's table and stacks.
    pub(super) fn places(&self) -> gdb::Stacks {
        let seen = |layer: &Layer<_, _>| gdb::Stacks { nodes: layer.places(), regions: layer.homes() };
        self.layer().map(seen).unwrap_or_default()
    }
    /// For debuggers: returns the address and number of the quarantine's places.
    pub(super) fn quarantine_addresses(&self) -> [usize; 2] {
        self.quarantine.as_ref().map(Quarantine::describe_for_debuggers).unwrap_or_default()
    }
    fn layer(&self) -> Option<&Layer<Object, StackMemory>> {
        if let CpuLayer::Magazines(layer) = &self.front { Some(layer) } else { None }
    }
    /// Returns `true` if the magazines or the quarantine may contain objects.
    pub(super) fn holds(&self) -> bool {
        self.layer().is_some() || self.quarantine.is_some()
    }
    /// Capacity of a magazine in objects; 1 without magazines.
    pub(super) fn capacity(&self) -> u64 {
        self.layer().map_or(1, |layer| layer.config().capacity.into())
    }
    /// Returns `true` if the configuration requests magazines but the cache has none (see [`CpuLayer::Refused`]).
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.front, CpuLayer::Refused)
    }
    /// Passes a freed object through the quarantine, if the cache has one. `out` receives the objects that may be
    /// reused.
    pub(super) fn pass_through_quarantine(&self, object: NonNull<u8>, out: impl Fn(NonNull<u8>)) {
        match &self.quarantine {
            Some(quarantine) => quarantine.push(object, out),
            None => out(object),
        }
    }
    pub(super) fn quarantined(&self) -> u64 {
        self.quarantine.as_ref().map_or(0, Quarantine::len)
    }
    /// Number of freed objects that are in quarantine, or that a reap or a close removed from it.
    pub(super) fn delayed_frees(&self) -> u64 {
        self.quarantine.as_ref().map_or(0, Quarantine::frees)
    }
    fn release(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        if let Some(quarantine) = &self.quarantine {
            slabs.flush(op, quarantine.take().map(Object));
        }
    }
    /// Flushes the quarantine if no object entered it during an interval. Returns the number of objects flushed.
    fn flush_idle_quarantine(&self, slabs: &impl Supplier<Object>) -> u64 {
        let mut objects = 0;
        if let Some(quarantine) = &self.quarantine {
            let idle = quarantine.reap().map(Object).inspect(|_| objects += 1);
            slabs.flush(&Operation::new(), idle);
        }
        objects
    }

    pub(super) fn take_static_words(&self, words: &'static StaticWords) -> bool {
        self.layer().is_some_and(|layer| layer.take_static_words(words))
    }
    /// Returns the layer's inlined path, which always misses if the cache has no magazines.
    pub(super) fn fast_path(&self, words: Words) -> FastPath<Object, StackMemory> {
        self.layer().map_or_else(FastPath::disabled, |layer| layer.fast_path(words))
    }

    /// Pops an object as the fast path would, while the fast path is closed.
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<Object> {
        self.layer()?.pop()
    }
    /// Allocates after the fast path has missed.
    pub(super) fn take_or_refill(
        &self,
        op: &Operation,
        slabs: &impl Supplier<Object>,
        bypass: impl FnOnce() -> Option<Object>,
    ) -> Option<Object> {
        match self.layer() {
            // With one node, the fast path was the complete first step; with several nodes, the first step also depends
            // on the CPU's node.
            Some(layer) if layer.has_one_node() => layer.alloc_slow(op, slabs),
            Some(layer) => layer.alloc_in(op, slabs),
            None => bypass(),
        }
    }
    /// Takes an object that the current CPU or the depot already holds. `slabs` must not supply objects.
    pub(super) fn alloc_from_magazines(&self, slabs: &impl Supplier<Object>) -> Option<Object> {
        self.layer()?.alloc(slabs)
    }

    pub(super) fn free(&self, slabs: &impl Supplier<Object>, object: Object, bypass: impl FnOnce()) {
        match self.layer() {
            Some(layer) => layer.free(slabs, object),
            None => bypass(),
        }
    }
    /// Frees an object after the fast path has missed.
    pub(super) fn put_or_flush(&self, slabs: &impl Supplier<Object>, object: Object, bypass: impl FnOnce()) {
        match self.layer() {
            Some(layer) if layer.has_one_node() => {
                layer.free_slow(&layer.operation(OperationKind::Free), slabs, object);
            }
            _ => self.free(slabs, object, bypass),
        }
    }

    /// Returns `true` if this CPU freed the object last, as [`Layer::has_on_top`] does.
    pub(super) fn has_on_top(&self, slabs: &impl Supplier<Object>, object: Object) -> bool {
        self.layer()
            .is_some_and(|layer| layer.has_on_top(&layer.operation(OperationKind::Free), slabs, object))
    }

    /// Flushes the objects on the stacks of `cpus` to the slabs.
    pub(super) fn drain(&self, slabs: &impl Supplier<Object>, cpus: Range<u32>) {
        self.for_each_layer(|layer| layer.drain(slabs, cpus));
    }
    /// Flushes all objects to the slabs, including objects in depots.
    pub(super) fn flush_all(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        self.release(op, slabs);
        self.for_each_layer(|layer| layer.flush_all_in_operation(op, slabs));
    }
    /// Flushes idle objects of the layer to the slabs, at the end of a reaping interval. Returns the number of objects
    /// flushed.
    pub(super) fn reap(&self, slabs: &impl Supplier<Object>) -> u64 {
        self.flush_idle_quarantine(slabs) + self.layer().map_or(0, |layer| layer.reap(slabs))
    }

    /// Includes the cache in the [sweeps](OBJECT_SWEEP_GROUP) of the table's stacks. The cache must already be on the
    /// list of caches that collect objects after a sweep.
    pub(crate) fn join_sweeps(&self) {
        self.for_each_layer(|layer| layer.join_sweeps(OBJECT_SWEEP_GROUP));
    }
    pub(super) fn drain_swept(&self, slabs: &impl Supplier<Object>) {
        self.for_each_layer(|layer| _ = layer.drain_swept(&layer.operation(OperationKind::Reclaim), slabs));
    }
    pub(super) fn flush_swept(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        self.release(op, slabs);
        self.for_each_layer(|layer| layer.flush_swept(op, slabs));
    }
    pub(super) fn reap_swept(&self, slabs: &impl Supplier<Object>) -> u64 {
        self.flush_idle_quarantine(slabs) + self.layer().map_or(0, |layer| layer.reap_swept(slabs))
    }

    /// Reduces the capacity of the magazines, because memory is short.
    pub(super) fn shrink(&self, op: &Operation, slabs: &impl Supplier<Object>) {
        self.release(op, slabs);
        self.for_each_layer(Layer::shrink);
    }
    /// Closes the magazines, so that later frees reach the slabs.
    pub(super) fn close(&self) {
        self.quarantine.iter().for_each(|quarantine| quarantine.close(true));
        self.for_each_layer(Layer::close);
    }
    pub(super) fn reopen(&self) {
        self.quarantine.iter().for_each(|quarantine| quarantine.close(false));
        self.for_each_layer(Layer::reopen);
    }

    /// Counters of the layer; all are 0 without magazines.
    pub(super) fn stats(&self) -> Stats {
        self.layer().map(Layer::stats).unwrap_or_default()
    }
    /// Returns the objects of each stack and depot; `None` without magazines.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Layer::view`].
    pub(crate) unsafe fn view<T>(&self, name: impl Fn(Object) -> T) -> Option<LayerView<T>> {
        // SAFETY: by contract, the conditions of `Layer::view` hold.
        self.layer().map(|layer| unsafe { layer.view(name) })
    }
    fn for_each_layer(&self, f: impl FnOnce(&Layer<Object, StackMemory>)) {
        self.layer().map(f).unwrap_or_default();
    }
}

impl Fork for PerCpu {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: by contract, the conditions of `Fork::locks` hold.
        self.for_each_layer(|layer| unsafe { layer.locks(rank, visit) });
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract, the conditions of `Fork::forget_other_threads` hold.
        self.for_each_layer(|layer| unsafe { layer.forget_other_threads() });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn magazines_hold_fewer_objects_if_the_objects_are_larger() {
        let capacity = |stride| Magazines::BySize.config(stride, 0).map(|config| config.capacity);
        let rows =
            [(8, 64), (128, 64), (256, 64), (1024, 64), (2048, 32), (4096, 16), (32 << 10, 4), (1 << 22, 4)];
        for (stride, expected) in rows {
            assert_eq!(capacity(stride), Some(expected), "stride {stride}");
        }
        assert_eq!(Magazines::Off.config(8, 0), None);
    }

    #[test]
    fn magazine_option_text_parses_to_the_same_option() {
        for text in ["auto", "off", "1", "64"] {
            assert_eq!(text.parse::<Magazines>().map(|magazines| magazines.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "0", "65", "-1", "on"] {
            assert_eq!(
                text.parse::<Magazines>(),
                Err("expected `auto`, `off`, or a number from 1 to 64".to_owned())
            );
        }
    }

    #[test]
    fn quarantine_is_emptied_under_memory_pressure() {
        use crate::{Config, Gfp, Harden, KmemCache, Subsystem};
        let harden = Harden { quarantine: 64 << 10, ..Harden::OFF };
        let subsystem = Subsystem::new(Config { harden, ..Config::default() }).unwrap();
        let cache = KmemCache::builder("kept", 256).build_in(&subsystem).unwrap();
        let free = || {
            drop(cache.alloc_block(Gfp::KERNEL).unwrap());
            cache.info().quarantined
        };
        assert_eq!(free(), 1);
        cache.cache().shrink_magazines();
        assert_eq!(cache.info().quarantined, 0);
        let held = cache.alloc_block(Gfp::KERNEL).unwrap();
        assert!(cache.destroy().is_err());
        assert_eq!(free(), 1);
        drop(held);
    }

    /// Magazines belong to CPUs, so a thread that has allocated once must not leave cached memory behind.
    #[test]
    fn memory_kept_in_magazines_does_not_grow_with_the_thread_count() {
        use crate::{Config, Gfp, KmemCache, Subsystem};
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("once", 64).build_in(&subsystem).unwrap();
        let cpus = u64::from(subsystem.pages().cpus().count());
        for _ in 0..100 * cpus {
            std::thread::scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|| {
                        let object = cache.alloc(Gfp::KERNEL).unwrap();
                        // SAFETY: the object was just allocated, and is freed once.
                        unsafe { cache.free(object) };
                    });
                }
            });
        }
        let info = cache.info();
        assert_eq!((info.allocs, info.frees), (1000 * cpus, 1000 * cpus));
        // The bound is less than an object for each of a CPU's thousand threads. A thread that finds its CPU's region
        // claimed takes more than ten objects.
        assert!(info.in_magazines + info.in_depot <= 500 * cpus, "{info:?}");
    }

    /// A cache that served ten allocations must keep only about ten objects.
    #[test]
    fn rarely_used_cache_keeps_few_objects() {
        use crate::{Config, Gfp, KmemCache, Subsystem};
        // On real CPUs, a thread that moves to another CPU leaves some objects behind.
        let cpus = uslab_magazine::Cpus::simulated(1, 1).unwrap();
        uslab_magazine::on_cpu(0);
        let pages = uslab_buddy::PageConfig::default_for(cpus).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let cache = KmemCache::builder("ten", 64).build_in(&subsystem).unwrap();
        let ten: Vec<_> = (0..10).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        assert!(cache.info().in_magazines < 10);
        // SAFETY: the objects were allocated above, and are freed once.
        ten.into_iter().for_each(|object| unsafe { cache.free(object) });
        let info = cache.info();
        assert!(info.in_magazines + info.in_depot < 20, "{info:?}");
    }

    /// If a batch fits into a depot and a stack, repeated allocation and free of the batch must need no new slab.
    #[test]
    fn repeating_a_4_mib_batch_needs_no_new_slab() {
        use crate::{Config, Gfp, KmemCache, Subsystem};
        let cpus = uslab_magazine::Cpus::simulated(1, 1).unwrap();
        uslab_magazine::on_cpu(0);
        for size in [64, 4096] {
            let pages = uslab_buddy::PageConfig::default_for(cpus).limit(64 << 20);
            let subsystem = Subsystem::new(Config::new(pages)).unwrap();
            let cache = KmemCache::builder("batches", size).build_in(&subsystem).unwrap();
            let objects = MAX_DEPOT_BYTES / size;
            let batch = || {
                let held: Vec<_> = (0..objects).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
                // SAFETY: the objects were allocated above, and are freed once.
                held.into_iter().for_each(|object| unsafe { cache.free(object) });
                let info = cache.info();
                (info.slabs_made, info.in_magazines + info.in_depot)
            };
            let (made, parked) = batch();
            assert!(parked >= objects as u64, "{parked} of {objects} objects of {size} bytes");
            assert_eq!(batch().0, made, "new slabs for a batch of {size}-byte objects");
        }
    }

    #[test]
    fn object_bytes_kept_in_magazines_are_bounded() {
        let cpus = uslab_magazine::Cpus::simulated(1, 1).unwrap();
        for stride in 8..=32 << 10 {
            let config = Magazines::BySize.config(stride, 0).unwrap();
            let bytes = config.most_rounds(&cpus) as usize * stride;
            assert!(bytes <= MAX_DEPOT_BYTES + MAX_STACK_BYTES, "stride {stride}: {bytes} bytes");
        }
    }
}
