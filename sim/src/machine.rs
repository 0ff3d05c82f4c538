//! The simulated machine: a slab subsystem on simulated CPUs, and the objects and pages that the trace has allocated.
//!
//! Every live object of the trace is a [`Block`], and every live range of pages is a [`PageBlock`]; the
//! machine finds both by their address in the trace. Each object contains a stamp, which is the object's
//! address in the trace; the machine checks the stamp when the object is freed. If the allocator ever gives
//! the same memory to two objects, one stamp overwrites the other, and the check fails.

use crate::trace::{CacheId, CacheInfo, CacheKind};
use elsa::FrozenVec;
use rustc_hash::FxHashMap;
use std::fmt;
use uslab::{
    AllocError, Block, Config, Gfp, KmallocKind, KmemCache, Magazines, SizeClass, StartError, Subsystem,
};
use uslab_buddy::{Order, PageBlock, PageConfig};
use uslab_magazine::{BadCpus, Cpus, on_cpu};

/// The configuration of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The number of simulated CPUs; the geometry rule uses it as the number of present CPUs.
    pub cpus: u32,
    /// The number of memory nodes.
    pub nodes: u32,
    /// The magazine size of every cache.
    pub magazines: Magazines,
    /// The memory of the simulated machine in bytes.
    pub memory: u64,
}

/// The reason why the simulated machine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The requested number of CPUs or nodes is not supported.
    #[error(transparent)]
    Cpus(#[from] BadCpus),
    /// The slab subsystem does not start with the given amount of memory.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The simulated slab subsystem; the allocated blocks borrow from it.
pub struct Machine {
    /// The caches, pages and CPUs.
    pub subsystem: Subsystem,
    /// The caches that the trace names, except kmalloc's size classes. A cache is added to the list when the
    /// trace first allocates from it.
    named: FrozenVec<Box<KmemCache>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}

impl Machine {
    /// Builds the machine, without committing its memory.
    ///
    /// # Errors
    /// Returns a [`BuildError`].
    pub fn new(build: &Build) -> Result<Self, BuildError> {
        let cpus = Cpus::simulated(build.cpus, build.nodes)?;
        let limit = usize::try_from(build.memory).unwrap_or(usize::MAX);
        // The traced kernels have huge pages, and therefore keep more memory free.
        let pages =
            PageConfig { min_free_for_huge_pages: true, ..PageConfig::default_for(cpus).limit(limit) };
        let config = Config { magazines: build.magazines, ..Config::new(pages) };
        Ok(Self { subsystem: Subsystem::new(config)?, named: FrozenVec::new() })
    }

    /// Returns the cache for a traced name and size; if the name is one of kmalloc's classes, returns the
    /// kmalloc cache.
    fn cache(&self, info: &CacheInfo) -> Result<&KmemCache, uslab::CacheError> {
        let kmalloc = self.subsystem.kmalloc();
        let classes = KmallocKind::ALL
            .into_iter()
            .flat_map(|kind| SizeClass::all().map(move |class| kmalloc.cache(kind, class)));
        if info.kind == CacheKind::Kmalloc
            && let Some(class) = { classes }.find(|c| c.name() == info.name)
        {
            return Ok(class);
        }
        // A cache that only hidden events name may have no size, so the smallest size is used.
        let name = info.name.replace(char::is_whitespace, "_");
        let cache = KmemCache::builder(name, info.size.max(8) as usize).build_in(&self.subsystem)?;
        Ok(self.named.push_get(Box::new(cache)))
    }
}

/// The size of a stamp in bytes; no simulated object is smaller.
const OBJECT_STAMP_BYTES: usize = size_of::<u64>();

/// A live object of the trace.
#[derive(Debug)]
struct Object<'m> {
    block: Block<'m>,
    cache: CacheId,
}

/// The objects and pages that the trace has allocated from a [`Machine`].
#[derive(Debug)]
pub struct TraceAllocations<'m> {
    machine: &'m Machine,
    /// The machine's cache for each cache number of the trace. The entry `None` is for large kmalloc objects,
    /// which have no cache.
    caches: Vec<Option<&'m KmemCache>>,
    objects: FxHashMap<u64, Object<'m>>,
    pages: FxHashMap<u64, PageBlock<'m>>,
    pages_held: u64,
    /// Messages about overwritten stamps and other errors of the run.
    pub violations: Vec<String>,
}

/// An allocation of the trace that the machine could not serve.
#[derive(Debug, thiserror::Error)]
pub enum FailedAllocation {
    /// An object could not be allocated.
    #[error("cache {0}: {1}")]
    Object(String, AllocError),
    /// A cache could not be created.
    #[error("cache {0}: {1}")]
    Cache(String, uslab::CacheError),
    /// Pages could not be allocated.
    #[error("pages of order {0}: {1}")]
    Pages(u8, uslab_buddy::AllocError),
}

impl<'m> TraceAllocations<'m> {
    /// Creates empty holdings: no objects and no pages.
    pub fn new(machine: &'m Machine) -> Self {
        Self {
            machine,
            caches: Vec::new(),
            objects: FxHashMap::default(),
            pages: FxHashMap::default(),
            pages_held: 0,
            violations: Vec::new(),
        }
    }

    /// Creates the caches that the trace has named since the previous call.
    ///
    /// # Errors
    /// Fails if the object size exceeds every slab, or if memory is exhausted.
    pub fn learn(&mut self, caches: &[CacheInfo]) -> Result<(), FailedAllocation> {
        for info in &caches[self.caches.len()..] {
            let cache = match info.kind {
                CacheKind::KmallocLarge => None,
                _ => Some(
                    self.machine.cache(info).map_err(|e| FailedAllocation::Cache(info.name.clone(), e))?,
                ),
            };
            self.caches.push(cache);
        }
        Ok(())
    }

    /// Returns the number of the trace's caches that have been added to the machine so far.
    pub fn known_caches(&self) -> usize {
        self.caches.len()
    }

    /// Returns the machine's cache that represents a cache of the trace. Returns `None` for large kmalloc,
    /// which has no cache.
    pub fn cache(&self, id: CacheId) -> Option<&'m KmemCache> {
        self.caches.get(id.0 as usize).copied().flatten()
    }

    /// Returns the number of the trace's objects that are in use.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }
    /// Returns the number of the trace's pages that are in use, not counting slabs and large objects.
    pub fn pages(&self) -> u64 {
        self.pages_held
    }
    /// Returns the number of the trace's objects in use, for each cache.
    pub fn used_by_cache(&self) -> Vec<u64> {
        let mut counts = vec![0; self.caches.len()];
        for object in self.objects.values() {
            counts[object.cache.0 as usize] += 1;
        }
        counts
    }

    /// Allocates, on the simulated `cpu`, an object for the trace's address `at`.
    ///
    /// # Errors
    /// Fails if the allocation fails; a later free of the address `at` then has no effect.
    pub fn alloc(&mut self, cpu: u32, cache: CacheId, at: u64, bytes: u32) -> Result<(), FailedAllocation> {
        on_cpu(cpu);
        let block = match self.caches[cache.0 as usize] {
            Some(ours) => {
                ours.alloc_block(Gfp::KERNEL).map_err(|e| FailedAllocation::Object(ours.name().to_owned(), e))
            }
            None => {
                let kmalloc = self.machine.subsystem.kmalloc();
                kmalloc
                    .alloc_block(bytes as usize, Gfp::KERNEL)
                    .map_err(|e| FailedAllocation::Object("kmalloc-large".to_owned(), e))
            }
        };
        let mut block = block?;
        // Large blocks have no stamp, because a stamp would touch pages that the replay otherwise only reserves.
        if self.caches[cache.0 as usize].is_some() {
            block.front_mut(OBJECT_STAMP_BYTES).copy_from_slice(&at.to_ne_bytes());
        }
        if let Some(old) = self.objects.insert(at, Object { block, cache }) {
            self.violations.push(format!("the trace has two live objects at address {at:#x}"));
            drop(old);
        }
        Ok(())
    }

    /// Frees, on the simulated `cpu`, the object at the trace's address `at`. Returns `false` if no object is
    /// in use at this address.
    pub fn free(&mut self, cpu: u32, at: u64) -> bool {
        let Some(object) = self.objects.remove(&at) else { return false };
        if self.caches[object.cache.0 as usize].is_some()
            && object.block.front(OBJECT_STAMP_BYTES) != at.to_ne_bytes()
        {
            let found = object
                .block
                .front(OBJECT_STAMP_BYTES)
                .iter()
                .rev()
                .map(|b| format!("{b:02x}"))
                .collect::<String>();
            self.violations.push(format!("the trace's object at {at:#x} was overwritten by {found}"));
        }
        on_cpu(cpu);
        drop(object);
        true
    }

    /// Allocates, on the simulated `cpu`, a block of pages for the trace's page number `pfn`.
    ///
    /// # Errors
    /// Fails if the allocation fails; a later free of these pages then has no effect.
    pub fn alloc_pages(
        &mut self,
        cpu: u32,
        pfn: u64,
        order: u8,
        migratetype: u8,
    ) -> Result<(), FailedAllocation> {
        on_cpu(cpu);
        let gfp = match migratetype {
            1 => Gfp::KERNEL | Gfp::MOVABLE,
            2 => Gfp::KERNEL | Gfp::RECLAIMABLE,
            _ => Gfp::KERNEL,
        };
        // Orders were already checked when the trace was read.
        let wanted = Order::new(order).unwrap_or(Order::MAX);
        let block = self.machine.subsystem.pages().alloc_block(wanted, gfp, None);
        let block = block.map_err(|e| FailedAllocation::Pages(order, e))?;
        self.free_pages(cpu, pfn, order);
        self.pages_held += u64::from(wanted.pages());
        self.pages.insert(pfn, block);
        Ok(())
    }

    /// Frees, on the simulated `cpu`, every page that is in use from `pfn` to `pfn + 2^order - 1`, in the
    /// trace's numbering. If a larger block contains the pages, it is split first; smaller blocks are freed one by one.
    /// Returns the number of freed pages.
    pub fn free_pages(&mut self, cpu: u32, pfn: u64, order: u8) -> u64 {
        on_cpu(cpu);
        let wanted = Order::new(order).unwrap_or(Order::MAX);
        if let Some(block) = self.pages.remove(&pfn) {
            if block.order() == wanted {
                self.pages_held -= u64::from(wanted.pages());
                drop(block);
                return u64::from(wanted.pages());
            }
            self.pages.insert(pfn, block);
        }
        // A larger block that contains the pages starts at `pfn` rounded down to a larger alignment.
        for above in order + 1..=Order::MAX.get() {
            let head = pfn & !((1 << above) - 1);
            if self.pages.get(&head).is_some_and(|block| block.order().get() >= above)
                && let Some(block) = self.pages.remove(&head)
            {
                for (i, part) in (0..).zip(block.split(wanted)) {
                    self.pages.insert(head + i * u64::from(wanted.pages()), part);
                }
                break;
            }
        }
        let mut freed = 0;
        let mut next = pfn;
        while next < pfn + u64::from(wanted.pages()) {
            let pages = match self.pages.remove(&next) {
                Some(block) => {
                    freed += u64::from(block.order().pages());
                    u64::from(block.order().pages())
                }
                None => 1,
            };
            next += pages;
        }
        self.pages_held -= freed;
        freed
    }

    /// Frees, on CPU 0, every object and page that is still in use.
    pub fn free_all(&mut self) {
        on_cpu(0);
        let mut left: Vec<u64> = self.objects.keys().copied().collect();
        left.sort_unstable();
        for at in left {
            self.free(0, at);
        }
        self.pages.clear();
        self.pages_held = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(memory: u64) -> Machine {
        Machine::new(&Build { cpus: 2, nodes: 1, magazines: Magazines::BySize, memory }).unwrap()
    }
    fn cache(name: &str, kind: CacheKind, size: u32) -> CacheInfo {
        CacheInfo { name: name.to_owned(), kind, size }
    }

    #[test]
    fn page_block_freed_in_parts_is_released_with_its_last_part() {
        let machine = machine(64 << 20);
        let mut held = TraceAllocations::new(&machine);
        held.alloc_pages(0, 64, 3, 0).unwrap();
        assert_eq!(held.free_pages(1, 66, 0), 1);
        assert_eq!(held.free_pages(1, 68, 2), 4);
        assert_eq!((held.pages(), held.free_pages(0, 66, 0)), (3, 0));
        assert_eq!(held.free_pages(0, 64, 3), 3, "the rest of the object");
        assert_eq!(held.pages(), 0);
        machine.subsystem.pages().decommit();
        assert_eq!(machine.subsystem.pages().info().pages_not_in_maximal_blocks(), 0);
    }

    #[test]
    fn larger_order_free_releases_each_inner_block() {
        let machine = machine(64 << 20);
        let mut held = TraceAllocations::new(&machine);
        held.alloc_pages(0, 8, 1, 1).unwrap();
        held.alloc_pages(0, 10, 0, 2).unwrap();
        assert_eq!(held.free_pages(0, 8, 2), 3);
        assert_eq!(held.pages(), 0);
    }

    #[test]
    fn kmalloc_sizes_map_to_kmalloc_caches() {
        let machine = machine(64 << 20);
        let mut held = TraceAllocations::new(&machine);
        let infos = [
            cache("kmalloc-64", CacheKind::Kmalloc, 64),
            cache("msg_msg-64", CacheKind::Kmalloc, 64),
            cache("kmalloc-large", CacheKind::KmallocLarge, 0),
        ];
        held.learn(&infos).unwrap();
        held.alloc(0, CacheId(0), 0x1000, 64).unwrap();
        held.alloc(0, CacheId(1), 0x2000, 64).unwrap();
        held.alloc(1, CacheId(2), 0x3000, 20_000).unwrap();
        assert_eq!(held.used_by_cache(), [1, 1, 1]);
        let info = machine.subsystem.info();
        assert_eq!(info.caches.iter().filter(|c| c.name == "kmalloc-64").map(|c| c.used).sum::<u64>(), 1);
        assert!(held.free(1, 0x1000) && !held.free(1, 0x1000));
        held.free_all();
        assert_eq!((held.objects(), held.violations.len()), (0, 0));
        assert_eq!(machine.subsystem.check().unwrap().used, 0);
    }

    #[test]
    fn memory_shortage_is_returned_as_an_error() {
        let machine = machine(16 * 4096);
        let mut held = TraceAllocations::new(&machine);
        held.learn(&[cache("big", CacheKind::Named, 4096)]).unwrap();
        let failed = (0..100).find_map(|i| held.alloc(0, CacheId(0), i, 4096).err());
        assert!(failed.unwrap().to_string().starts_with("cache big: "));
    }
}
