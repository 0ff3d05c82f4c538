//! Prefilled stocks: objects reserved for one owner, whose next allocations cannot fail.

use crate::cache::kmem_cache::KmemCache;
use crate::error::AllocError;
use core::ptr::NonNull;
use uslab_buddy::Gfp;
use uslab_magazine::sync::abandoned;

/// A stock of objects reserved for one owner, made by [`KmemCache::prefill`]. Linux calls such a stock a prefilled
/// sheaf.
///
/// An allocation or free takes a few plain instructions: it reads no CPU number, executes no locked instruction, and
/// accesses no shared memory. Dropping the stock frees the remaining objects. The cache counts the stock's objects as
/// [used](crate::CacheInfo::used). The cache does not count allocations and frees of the stock.
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let cache = KmemCache::builder("node", 64).build()?;
/// let mut nodes = cache.prefill(Gfp::KERNEL, 3)?;
/// // Three allocations that cannot fail, under a lock for instance.
/// let taken: Vec<_> = (0..3).filter_map(|_| nodes.alloc()).collect();
/// assert_eq!(taken.len(), 3);
/// // SAFETY: allocated above from this cache, freed once.
/// taken.into_iter().for_each(|node| unsafe { nodes.free(node) });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it frees the objects"]
pub struct Prefilled<'c> {
    pub(crate) cache: &'c KmemCache,
    pub(crate) gfp: Gfp,
    objects: Vec<NonNull<u8>>,
    /// Maximum number of objects that the stock keeps.
    max_stock: usize,
}

impl KmemCache {
    /// Reserves at least `n` objects for one owner, whose next `n` allocations cannot fail and access no shared memory.
    ///
    /// # Errors
    /// Fails as [`alloc_bulk`](Self::alloc_bulk) does, and then allocates nothing. Fails with [`AllocError::Refused`]
    /// if the heap has no room for the pointers.
    #[doc(alias = "kmem_cache_prefill_sheaf")]
    pub fn prefill(&self, gfp: Gfp, n: usize) -> Result<Prefilled<'_>, AllocError> {
        Prefilled::new(self, gfp, n)
    }
}

// SAFETY: the stock owns its objects, which may be handed to any thread.
unsafe impl Send for Prefilled<'_> {}

impl<'c> Prefilled<'c> {
    pub(crate) fn new(cache: &'c KmemCache, gfp: Gfp, n: usize) -> Result<Self, AllocError> {
        let mut new = Self { cache, gfp, objects: Vec::new(), max_stock: 0 };
        new.refill(n)?;
        Ok(new)
    }

    /// Takes an object from the stock, or returns `None` if the stock is empty. The first `n` allocations from the
    /// stock cannot fail.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<NonNull<u8>> {
        let object = self.objects.pop()?;
        Some(self.cache.cache().hand_out_reserved_object(object, self.gfp))
    }

    /// Returns an object to the stock; if the stock is full, frees the object to the cache.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`KmemCache::free`]; `object` may be any object of the stock's cache.
    #[inline(always)]
    pub unsafe fn free(&mut self, object: NonNull<u8>) {
        if self.objects.len() < self.max_stock {
            return self.cache.cache().free_to_reserve(object, || self.objects.push(object));
        }
        // SAFETY: by contract, the object belongs to this cache and is no longer used.
        unsafe { self.cache.free(object) };
    }

    /// Number of objects in the stock: this number of further allocations cannot fail.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
    /// Returns `true` if the stock is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refills the stock to at least `n` objects, and raises its capacity to `n`.
    ///
    /// # Errors
    /// Fails if fewer objects are available, and then leaves the stock unchanged.
    #[doc(alias = "kmem_cache_refill_sheaf")]
    pub fn refill(&mut self, n: usize) -> Result<(), AllocError> {
        let missing_objects = n.saturating_sub(self.len());
        self.cache.cache().reserve(self.gfp - Gfp::ZERO, missing_objects, &mut self.objects)?;
        self.max_stock = self.max_stock.max(n);
        Ok(())
    }
}

impl Drop for Prefilled<'_> {
    fn drop(&mut self) {
        if !abandoned() {
            self.objects.drain(..).for_each(|object| self.cache.cache().release_reserved_object(object));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Limit, Magazines, Subsystem};
    use std::collections::BTreeSet;
    use uslab_buddy::PageConfig;
    use uslab_magazine::{Cpus, on_cpu};

    fn subsystem(magazines: Magazines) -> Subsystem {
        on_cpu(0);
        let cpus = Cpus::simulated(2, 1).unwrap();
        Subsystem::new(Config { magazines, ..Config::new(PageConfig::default_for(cpus).limit(64 << 20)) })
            .unwrap()
    }

    #[test]
    fn prefilled_allocations_succeed_at_the_limit() {
        let subsystem = subsystem(Magazines::BySize);
        let cache = KmemCache::builder("limited", 64).limit(Limit::Slabs(4)).build_in(&subsystem).unwrap();
        let mut stock = cache.prefill(Gfp::KERNEL, 150).unwrap();
        assert!(stock.len() >= 150);
        // Another user takes all remaining objects.
        let mut other_objects = vec![];
        while let Ok(object) = cache.alloc(Gfp::KERNEL) {
            other_objects.push(object);
        }
        let stock_objects: BTreeSet<_> = (0..150).map(|_| stock.alloc().unwrap()).collect();
        assert_eq!(stock_objects.len(), 150, "each object is allocated once");
        assert!(other_objects.iter().all(|o| !stock_objects.contains(o)));
        subsystem.check().unwrap();
        for object in other_objects {
            // SAFETY: the object was allocated from this cache, and is freed once.
            unsafe { cache.free(object) };
        }
        for object in stock_objects {
            // SAFETY: the object was allocated from this cache, and is freed once.
            unsafe { stock.free(object) };
        }
        subsystem.check().unwrap();
        drop(stock);
        assert_eq!(cache.info().used, 0);
        cache.shrink();
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }

    #[test]
    fn refused_prefill_keeps_no_objects() {
        let subsystem = subsystem(Magazines::BySize);
        let cache = KmemCache::builder("limited", 64).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        assert_eq!(cache.prefill(Gfp::KERNEL, 65).unwrap_err(), AllocError::CacheLimit { slabs: 1 });
        let census = subsystem.check().unwrap();
        assert_eq!((census.used, cache.info().used), (0, 0));
        let mut all = cache.prefill(Gfp::KERNEL, 64).unwrap();
        assert_eq!(all.refill(65), Err(AllocError::CacheLimit { slabs: 1 }));
        assert_eq!(all.len(), 64);
        let plain = KmemCache::builder("plain", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let mut three = plain.prefill(Gfp::KERNEL, 3).unwrap();
        let info = plain.info();
        assert_eq!((three.len(), info.allocs), (3, 3), "the objects are from the slabs");
        assert_eq!((info.paths.operations(), info.paths.cpu), (3, 0));
        // The vector's room is allocated before any object, because nothing may be allocated under a lock.
        assert_eq!(three.objects.capacity(), 3);
        three.refill(100).unwrap();
        assert_eq!((three.len(), three.objects.capacity(), plain.info().allocs), (100, 100, 100));
    }

    #[test]
    fn failed_refill_frees_its_objects() {
        let subsystem = subsystem(Magazines::BySize);
        let cache = KmemCache::builder("large", 4096).build_in(&subsystem).unwrap();
        let max_stock = cache.prefill(Gfp::KERNEL, 12_000).unwrap();
        let mut stock = cache.prefill(Gfp::KERNEL, 10).unwrap();
        assert!(matches!(stock.refill(12_000), Err(AllocError::Memory(_))));
        assert_eq!(stock.len(), 10);
        drop((max_stock, stock));
        assert_eq!((subsystem.check().unwrap().used, cache.info().used), (0, 0));
    }

    #[test]
    fn prefilled_stock_bypasses_the_cpu_stacks_and_the_depot() {
        let subsystem = subsystem(Magazines::Sized { capacity: 8, stock: 2, depot_limit: 4 });
        let cache = KmemCache::builder("hot", 64).build_in(&subsystem).unwrap();
        let mut stock = cache.prefill(Gfp::KERNEL, 6).unwrap();
        let before = cache.info();
        for _ in 0..1000 {
            let (a, b) = (stock.alloc().unwrap(), stock.alloc().unwrap());
            // SAFETY: the objects were just allocated, and are freed once.
            unsafe {
                stock.free(a);
                stock.free(b);
            }
        }
        let info_after = cache.info();
        assert_eq!(info_after, before, "the cache counts the objects as in use");
        subsystem.check().unwrap();
    }

    #[test]
    fn prefilled_stock_keeps_freed_objects_up_to_its_size() {
        let subsystem = subsystem(Magazines::Sized { capacity: 8, stock: 2, depot_limit: 4 });
        let cache = KmemCache::builder("batch", 64).build_in(&subsystem).unwrap();
        let mut stock = cache.prefill(Gfp::KERNEL, 100).unwrap();
        let (before, info) = (subsystem.check().unwrap(), cache.info());
        for _ in 0..3 {
            let batch: Vec<_> = (0..100).map(|_| stock.alloc().unwrap()).collect();
            // SAFETY: the objects were allocated from this cache, and are freed once.
            batch.into_iter().for_each(|object| unsafe { stock.free(object) });
            assert_eq!(stock.len(), 100);
        }
        let info_after = cache.info();
        assert_eq!((info_after, subsystem.check().unwrap().used), (info, before.used));
    }

    #[test]
    fn prefilled_stock_frees_foreign_blocks_to_their_caches() {
        let subsystem = subsystem(Magazines::BySize);
        let cache = KmemCache::builder("mine", 64).build_in(&subsystem).unwrap();
        let other = KmemCache::builder("other", 64).build_in(&subsystem).unwrap();
        let mut stock = cache.prefill(Gfp::KERNEL, 5).unwrap();
        let held = stock.len();
        let mut block = stock.alloc_block().unwrap();
        block.bytes_mut().fill(3);
        stock.free_block(block);
        assert_eq!(stock.len(), held);
        stock.free_block(other.alloc_block(Gfp::KERNEL).unwrap());
        drop(stock.alloc_block());
        assert_eq!((stock.len(), cache.info().used, other.info().used), (held - 1, held as u64 - 1, 0));
        drop(stock);
        subsystem.check().unwrap();
    }

    #[test]
    fn prefilled_stock_accepts_more_frees_than_allocations() {
        let subsystem = subsystem(Magazines::Sized { capacity: 4, stock: 1, depot_limit: 2 });
        let cache = KmemCache::builder("sink", 64).build_in(&subsystem).unwrap();
        let objects: Vec<_> = (0..200).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        let mut stock = cache.prefill(Gfp::KERNEL, 1).unwrap();
        for object in objects {
            // SAFETY: the object was allocated from this cache, and is freed once.
            unsafe { stock.free(object) };
        }
        drop(stock);
        assert_eq!(cache.info().used, 0);
        cache.shrink();
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }
}
