//! Caches with a reserve, like Linux's mempool (see [`Mempool`]).

use crate::cache::kmem_cache::KmemCache;
use crate::error::AllocError;
use core::ptr::NonNull;
use uslab_buddy::Gfp;
use uslab_magazine::sync::{Counter, Mutex, Rank, abandoned};

/// A cache with a reserve of objects, for callers whose allocations must not fail. The type
/// corresponds to Linux's `mempool`.
///
/// An allocation tries the cache first, and takes a reserved object only if the cache refuses. A free refills the
/// reserve before it frees objects to the cache. As long as the pool's users have fewer objects than a full reserve,
/// the next allocation succeeds, even if no memory is left. For example, a program that must write data to disk before
/// it can free memory depends on a mempool for the write.
///
/// A [fork](crate::Fork) of the subsystem does not take the lock of the reserve. If another thread held that lock at
/// the fork, the lock stays locked in the child for ever. In the child, use only pools that no other thread was using
/// at the fork.
///
/// Source: the documented behaviour of Linux's `mm/mempool.c`. Unlike in Linux, an allocation does not wait; callers
/// that want to wait use [`KmemCache::acquire`].
///
/// ```
/// use uslab::{Gfp, KmemCache, Limit, Mempool};
///
/// let requests = KmemCache::builder("request", 256).limit(Limit::Slabs(1)).build()?;
/// let pool = Mempool::new(requests, 4)?;
/// let others: Vec<_> = std::iter::from_fn(|| pool.cache().alloc_block(Gfp::KERNEL).ok()).collect();
/// // The cache is at its limit; four allocations more cannot fail.
/// let mine: Vec<_> = (0..4).map(|_| pool.alloc_block(Gfp::KERNEL)).collect::<Result<_, _>>()?;
/// assert!(pool.alloc_block(Gfp::KERNEL).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "mempool_t")]
pub struct Mempool {
    cache: KmemCache,
    reserve: Mutex<Vec<Reserve>>,
    /// Number of objects in a full reserve.
    reserve_size: usize,
    /// Number of objects that are missing from a full reserve. The number is a hint, which spares frees the reserve's
    /// lock while the reserve is full.
    lacks: Counter,
}

#[derive(Debug)]
struct Reserve(NonNull<u8>);

// SAFETY: a reserved object has no user, and may be handed to any thread.
unsafe impl Send for Reserve {}

impl Mempool {
    /// Creates a pool on `cache` with `reserve_size` objects in reserve.
    ///
    /// # Errors
    /// Fails as [`KmemCache::alloc_blocks`] does if fewer objects are available; then no objects stay allocated.
    #[doc(alias = "mempool_create_slab_pool")]
    pub fn new(cache: KmemCache, reserve_size: usize) -> Result<Self, AllocError> {
        cache.cache().check_object_limit(reserve_size)?;
        // The vector has room for all objects, because nothing is allocated under the lock.
        let (mut objects, mut reserve) = (Vec::new(), Vec::new());
        reserve
            .try_reserve_exact(reserve_size)
            .map_err(|_| AllocError::Refused { bytes: reserve_size * size_of::<Reserve>() })?;
        cache.cache().reserve(Gfp::KERNEL, reserve_size, &mut objects)?;
        reserve.extend(objects.into_iter().map(Reserve));
        let reserve = Mutex::ranked(Rank::Reserve, reserve);
        let pool = Self { cache, reserve, reserve_size, lacks: Counter::new(0) };
        Ok(pool)
    }

    /// The cache from which the pool allocates. Allocations directly from the cache do not use the
    /// reserve.
    pub fn cache(&self) -> &KmemCache {
        &self.cache
    }
    /// Number of objects in the reserve now, and in a full reserve.
    pub fn reserve(&self) -> (usize, usize) {
        (self.reserve.lock().len(), self.reserve_size)
    }

    /// Allocates an object, from the reserve if the cache has no object.
    ///
    /// Cost: one [`KmemCache::alloc`]; if the cache refuses, also the lock of the reserve.
    ///
    /// # Errors
    /// Fails as [`KmemCache::alloc`] does if the reserve is also empty; the pool's users then have at least as many
    /// objects as a full reserve.
    ///
    /// # Panics
    /// Panics as [`KmemCache::alloc`] does.
    #[doc(alias = "mempool_alloc")]
    pub fn alloc(&self, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.cache.alloc(gfp).or_else(|error| {
            let mut reserve = self.reserve.lock();
            let Reserve(object) = reserve.pop().ok_or(error)?;
            self.lacks.add(1);
            drop(reserve);
            Ok(self.cache.cache().hand_out_reserved_object(object, gfp))
        })
    }

    /// Frees an object to the reserve, or to the cache if the reserve is full.
    ///
    /// Cost: one [`KmemCache::free`]. While the reserve is not full, a free to the pool costs the reserve's lock, and
    /// no free to the cache.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`KmemCache::free`]; the object must come from this pool or its cache.
    #[doc(alias = "mempool_free")]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // A free of an object from the reserve happens after the object's allocation, and therefore sees that the
        // reserve is not full.
        if self.lacks.get() > 0 {
            let cache = self.cache.cache();
            return cache.free_to_reserve(object, || {
                let mut reserve = self.reserve.lock();
                if reserve.len() < self.reserve_size {
                    reserve.push(Reserve(object));
                    return self.lacks.sub(1);
                }
                drop(reserve);
                cache.release_reserved_object(object);
            });
        }
        // SAFETY: by contract, the object belongs to this cache and is no longer used.
        unsafe { self.cache.free(object) };
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        for Reserve(object) in self.reserve.get_mut().drain(..) {
            self.cache.cache().release_reserved_object(object);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Limit, Subsystem};

    #[test]
    fn mempool_reserve_serves_allocations_at_the_limit_and_is_refilled() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("r", 512).limit(Limit::Slabs(4)).build_in(&subsystem).unwrap();
        let pool = Mempool::new(cache, 5).unwrap();
        let others: Vec<_> = std::iter::from_fn(|| pool.cache().alloc_block(Gfp::KERNEL).ok()).collect();
        for _ in 0..3 {
            let mut blocks: Vec<_> = (0..5).map(|_| pool.alloc_block(Gfp::ZERO).unwrap()).collect();
            assert_eq!((pool.reserve(), pool.alloc_block(Gfp::KERNEL).is_err()), ((0, 5), true));
            assert!(blocks.iter().all(|block| block.bytes().iter().all(|byte| *byte == 0)));
            blocks.iter_mut().for_each(|block| block.bytes_mut().fill(7));
            drop(blocks.pop());
            assert_eq!(pool.reserve(), (1, 5));
            drop(blocks);
            assert_eq!(pool.reserve(), (5, 5));
        }
        drop(others);
        // From here on the cache supplies all objects, and the reserve stays full.
        let blocks: Vec<_> = (0..20).filter_map(|_| pool.alloc_block(Gfp::KERNEL).ok()).collect();
        assert_eq!((blocks.len() > 5, pool.reserve()), (true, (5, 5)));
        drop(blocks);
        drop(pool);
        subsystem.shrink();
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }

    #[test]
    fn mempool_with_a_reserve_above_the_cache_limit_is_refused() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("r", 512).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        assert!(matches!(Mempool::new(cache, 1000), Err(AllocError::CacheLimit { slabs: 1 })));
        assert_eq!(subsystem.check().unwrap().used, 0);
    }

    #[test]
    fn threads_sharing_a_mempool_reserve_never_fail_to_allocate() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("r", 512).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let pool = Mempool::new(cache, 4).unwrap();
        let _others: Vec<_> = std::iter::from_fn(|| pool.cache().alloc_block(Gfp::KERNEL).ok()).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..2000).for_each(|_| drop(pool.alloc_block(Gfp::KERNEL).unwrap())));
            }
        });
        assert_eq!(pool.reserve(), (4, 4));
    }
}
