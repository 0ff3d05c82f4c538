//! The shipping allocators under the lab's trait: a slab subsystem that serves as malloc, and one object cache of a
//! subsystem.
//!
//! The subsystem runs on one simulated CPU, so its counts depend only on the operations. The metadata is outside the
//! managed memory, so bookkeeping accesses no managed bytes.
//!
//! The lab counts as a step each operation that the CPU's own magazine cannot serve: a visit to a depot, a fill from
//! slabs, or a flush to slabs. The subsystem counts steps only in total, so the steps of the longest operation are
//! unknown. The counts of splits and merges come from the page allocator. The free pieces are the page allocator's free
//! blocks, and the free objects in slabs and magazines. [`trim`](Allocator::trim) returns the pages of free objects to
//! the page allocator.

use super::allocator::{Allocator, Holes, Work};
use core::alloc::Layout;
use core::ops::Range;
use uslab::{Block, CacheError, Config, Gfp, Info, KmemCache, Malloc, StartError, Subsystem};
use uslab_buddy::{PAGE_SIZE, PageConfig};
use uslab_magazine::{Cpus, on_cpu};

/// A slab subsystem on one simulated CPU, and its malloc.
#[derive(Debug)]
pub struct Shipping {
    subsystem: Subsystem,
    malloc: Malloc,
}

/// The reason why the subsystem cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ShippingError {
    /// Memory for the subsystem's pages is exhausted.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Memory for the subsystem's magazines is exhausted.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl Shipping {
    /// Creates a subsystem with `bytes` bytes of pages and no reserve.
    ///
    /// # Errors
    /// Returns a [`ShippingError`].
    pub fn new(bytes: usize) -> Result<Self, ShippingError> {
        let cpus = Cpus::simulated(1, 1).unwrap_or_else(|error| unreachable!("one CPU: {error}"));
        let pages = PageConfig { min_free_kib: Some(0), ..PageConfig::default_for(cpus).limit(bytes) };
        let subsystem = Subsystem::new(Config::new(pages))?;
        let malloc = Malloc::new(&subsystem)?;
        Ok(Self { subsystem, malloc })
    }

    /// Returns the subsystem.
    pub fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }
    /// Returns the malloc of the subsystem as an [`Allocator`].
    pub fn malloc(&self) -> Slab<'_> {
        Slab { subsystem: &self.subsystem, malloc: &self.malloc, work: Work::default() }
    }
    /// Creates an object cache in the subsystem.
    ///
    /// # Errors
    /// Fails if the object is too large for a slab, or if memory is exhausted.
    pub fn make_cache(&self, object: Layout) -> Result<KmemCache, CacheError> {
        KmemCache::builder("lab", object.size()).align(object.align()).build_in(&self.subsystem)
    }
    /// Returns a cache of the subsystem as an [`Allocator`].
    pub fn cache<'c>(&'c self, cache: &'c KmemCache) -> ObjectSlab<'c> {
        ObjectSlab { subsystem: &self.subsystem, cache, work: Work::default() }
    }
}

/// The slab subsystem as malloc: it serves small requests from size classes, and larger requests with blocks of pages.
#[derive(Debug)]
pub struct Slab<'s> {
    subsystem: &'s Subsystem,
    malloc: &'s Malloc,
    work: Work,
}

/// An object cache of the subsystem.
#[derive(Debug)]
pub struct ObjectSlab<'s> {
    subsystem: &'s Subsystem,
    cache: &'s KmemCache,
    work: Work,
}

/// An allocated object of a [`Slab`] or an [`ObjectSlab`].
#[derive(Debug)]
pub struct SlabBlock<'s> {
    block: Block<'s>,
    /// The requested size in bytes; the object may be larger.
    size: usize,
}

fn holes(info: &Info) -> Holes {
    let mut holes = Holes::default();
    for zone in &info.pages.zones {
        for (order, blocks) in zone.blocks.iter().enumerate() {
            let blocks = blocks.iter().map(|n| *n as usize).sum();
            holes.add_pieces(blocks, PAGE_SIZE << order);
        }
        holes.add_pieces(zone.per_cpu as usize, PAGE_SIZE);
    }
    for cache in &info.caches {
        let free = cache.in_magazines + cache.in_depot + cache.free_in_slabs;
        holes.add_pieces(free as usize, cache.slab_size as usize);
    }
    holes
}

fn work(info: &Info, calls: Work) -> Work {
    let steps = info.caches.iter().map(|cache| cache.depot_exchanges + cache.fills + cache.flushes).sum();
    let events = info.pages.zones.iter().map(|zone| &zone.events);
    let (splits, merges) = events.fold((0, 0), |(s, m), zone| (s + zone.splits, m + zone.merges));
    Work { steps, splits, merges, ..calls }
}

macro_rules! in_subsystem {
    () => {
        type Block = SlabBlock<'s>;

        fn free(&mut self, block: SlabBlock<'s>) {
            on_cpu(0);
            drop(block);
            self.work.frees += 1;
        }
        fn range(&self, block: &SlabBlock<'s>) -> Range<usize> {
            let address = block.block.address().addr().get();
            address..address + block.block.usable_size()
        }
        fn bytes<'b>(&'b mut self, block: &'b mut SlabBlock<'s>) -> &'b mut [u8] {
            block.block.front_mut(block.size)
        }
        fn capacity(&self) -> usize {
            self.subsystem.pages().info().managed() as usize * PAGE_SIZE
        }
        fn holes(&self) -> Holes {
            holes(&self.subsystem.info())
        }
        fn work(&self) -> Work {
            work(&self.subsystem.info(), self.work)
        }
        fn trim(&mut self) {
            on_cpu(0);
            self.subsystem.shrink();
            self.subsystem.pages().decommit();
        }
        fn check(&self) -> Result<(), String> {
            self.subsystem.check().map(drop).map_err(|violation| violation.to_string())
        }
    };
}

impl<'s> Allocator for Slab<'s> {
    const NAME: &'static str = "uslab";
    in_subsystem!();

    fn alloc(&mut self, layout: Layout) -> Option<SlabBlock<'s>> {
        on_cpu(0);
        let block = self.malloc.alloc_block(layout, Gfp::KERNEL).ok();
        self.work.count_allocation(block.map(|block| SlabBlock { block, size: layout.size() }))
    }
}

impl<'s> Allocator for ObjectSlab<'s> {
    const NAME: &'static str = "uslab, one cache";
    in_subsystem!();

    fn alloc(&mut self, layout: Layout) -> Option<SlabBlock<'s>> {
        on_cpu(0);
        let geometry = self.cache.geometry();
        let is_supported = layout.size() <= geometry.object_size() && layout.align() <= geometry.align();
        let block = if is_supported { self.cache.alloc_block(Gfp::KERNEL).ok() } else { None };
        self.work.count_allocation(block.map(|block| SlabBlock { block, size: layout.size() }))
    }
}
