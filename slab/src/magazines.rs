//! How large a cache's magazines are.
//!
//! Measured, not derived: what a CPU's magazines and stocks *reach* must cover the batches that it cycles through (some
//! 1,000 small objects), else the CPUs meet at the depot and swap each other's cache lines; and an exchange of magazines
//! costs some 60 ns, so small magazines cost more a pair. Both ask for large ones. What speaks for small ones is the
//! memory that CPUs park, hence a bound in bytes and not in objects: a magazine is first made for 16 KiB of objects, 126 at
//! most (a kilobyte of rounds); where CPUs meet at the depot it grows to twice that, and when memory is short it shrinks.
//! A cache that is used little fills little: the first fill takes one object, each one after it twice as many.
//!
//! (Linux 7's sheaves hold 60, 28, 12 and 4 objects, by size; `Sized { capacity: 60, stock: 0, .. }` is near them.)

use uslab_magazine::{Config, Cpus};

/// The magazines of a cache, or of all caches of a subsystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Magazines {
    /// By the size of the object, tuned while it runs. See the [module](self).
    #[default]
    BySize,
    /// None: every allocation and free takes the lock of its node. For study and comparison.
    Off,
    /// As said, for good.
    Sized {
        /// Objects in a magazine, at least 1.
        capacity: u16,
        /// Full and empty magazines in each CPU's stock.
        stock: u16,
        /// Full magazines in each node's depot.
        depot_limit: u32,
    },
}

/// Bytes of objects that a magazine is first made for.
pub const BYTES: usize = 16 << 10;
/// Objects in a magazine at first: at most, and at least.
pub const MOST: usize = 126;
/// See [`MOST`].
pub const LEAST: usize = 4;
/// Full and empty magazines in each CPU's stock, for objects up to [`LARGE`] bytes,
pub const STOCK: u16 = 8;
/// and above.
pub const STOCK_OF_LARGE: u16 = 2;
/// Objects above are large: so few of them fill a magazine's bytes that [`LEAST`] decides.
pub const LARGE: usize = 1 << 10;
/// Full magazines that a node's depot keeps: as many as a barn's soft limit.
pub const DEPOT_LIMIT: u32 = 10;
/// Magazines that owners of private ones may hold beside, in all; address space of 2 MiB. None where address space is memory and
/// there is one thread.
pub const PRIVATE: u32 = if cfg!(target_family = "wasm") { 0 } else { 1024 };

impl Magazines {
    /// The layer's sizes for objects that lie `stride` bytes apart, with up to `private` magazines for owners of their own;
    /// `None` without magazines.
    pub(crate) fn config(self, cpus: &Cpus, stride: usize, private: u32) -> Option<Config> {
        match self {
            Self::Off => None,
            Self::Sized { capacity, stock, depot_limit } => {
                Some(Config::new(cpus, capacity, stock, depot_limit))
            }
            Self::BySize => {
                let capacity = (BYTES / stride).clamp(LEAST, MOST) as u16;
                let stock = if stride <= LARGE { STOCK } else { STOCK_OF_LARGE };
                let config = Config::new(cpus, capacity, stock, DEPOT_LIMIT);
                let magazines = config.magazines + private;
                Some(Config { largest: 2 * capacity, first_fill: 1, magazines, ..config })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magazines_hold_bytes_and_not_objects() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        let capacity =
            |stride| Magazines::BySize.config(&cpus, stride, PRIVATE).map(|config| config.capacity);
        let rows = [(8, 126), (128, 126), (192, 85), (256, 64), (1024, 16), (2048, 8), (1 << 22, 4)];
        for (stride, expected) in rows {
            assert_eq!(capacity(stride), Some(expected), "stride {stride}");
        }
        assert_eq!(Magazines::Off.config(&cpus, 8, PRIVATE), None);
    }

    /// The caches are the CPUs': a thread that has allocated once leaves nothing of its own behind.
    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn what_is_kept_does_not_grow_with_the_threads() {
        use crate::{Config, Gfp, KmemCache, Subsystem};
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("once", 64).build_in(&subsystem).unwrap();
        let cpus = u64::from(subsystem.pages().cpus().count());
        for _ in 0..100 * cpus {
            std::thread::scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|| {
                        let object = cache.alloc(Gfp::KERNEL).unwrap();
                        // SAFETY: allocated just now, freed once.
                        unsafe { cache.free(object) };
                    });
                }
            });
        }
        let info = cache.info();
        assert_eq!((info.allocs, info.frees), (1000 * cpus, 1000 * cpus));
        // A magazine's worth a CPU: threads that are in each other's way ask for more than ten objects.
        assert!(info.in_magazines + info.in_depot <= 126 * cpus, "{info:?}");
    }

    /// A cache that saw ten allocations holds ten objects' worth.
    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn a_cache_that_is_used_little_keeps_little() {
        use crate::{Config, Gfp, KmemCache, Subsystem};
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("ten", 64).build_in(&subsystem).unwrap();
        let ten: Vec<_> = (0..10).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        assert!(cache.info().in_magazines < 10);
        // SAFETY: allocated above, freed once.
        ten.into_iter().for_each(|object| unsafe { cache.free(object) });
        let info = cache.info();
        assert!(info.in_magazines + info.in_depot < 20, "{info:?}");
    }

    /// What CPUs and depots park at the very most, in bytes a CPU: for all but the largest objects.
    #[test]
    fn what_a_cache_may_park_is_bounded() {
        let cpus = Cpus::simulated(1, 1).unwrap();
        for stride in 8..=16 << 10 {
            let config = Magazines::BySize.config(&cpus, stride, PRIVATE).unwrap();
            let bytes = config.most_rounds(&cpus) as usize * stride;
            let most = if stride <= 4 << 10 { 1 << 20 } else { 2 << 20 };
            assert!(bytes <= most, "stride {stride}: {bytes} bytes");
        }
    }
}
