//! Shrinkers: callbacks with which users free recreatable objects when memory is short.
//!
//! The allocator frees unused memory without a shrinker's help. Some objects in use only save work, such as parsed
//! entries or idle connections. Only the users of objects that save work can judge which of them to free. A shrinker is
//! a callback that frees objects which only save work, as in Linux (`register_shrinker`;
//! Documentation/filesystems/vfs.rst describes `count` and `scan`). An allocation that would otherwise fail calls the
//! shrinkers. The [reaper](crate::Reaper) calls the shrinkers when the machine or a control group is short of memory.
//!
//! A shrinker runs within another user's allocation, with no allocator lock held. A shrinker must not wait for a lock
//! that an allocating thread may hold, including its own thread. Use `try_lock`, and give up if the lock is taken. A
//! shrinker may allocate and free. Allocations by a shrinker do not call shrinkers. If a shrinker panics, it may
//! already have freed some objects. The allocator catches the panic and calls the remaining shrinkers, because the
//! allocating user cannot handle the panic.
//!
//! The allocation fails if another thread holds the lock of all objects that shrinkers could free. Hold the lock of a
//! shrinker's list during a push or a pop, but not during an allocation. A thread that
//! [waits](crate::KmemCache::acquire_timeout) at a limit calls the shrinkers again every 10 ms. For a waiting
//! [future](crate::KmemCache::acquire), the [reaper](crate::reaper) calls the shrinkers at the end of each interval.

use crate::registry::{List, Registry};
use core::cell::Cell;
use core::fmt;
use std::sync::Arc;
use uslab_buddy::Gfp;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{ContainedValue, Rank, assert_unlocked, contain_panic, thread_local};

/// A callback that frees objects which can be created again. The [module](self) describes when shrinkers are called.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use uslab::{Gfp, Limit, ObjectCache, OwnedBox, Shrinker};
///
/// /// Idle sessions, kept because it takes long to open one.
/// #[derive(Default)]
/// struct Idle(Mutex<Vec<OwnedBox<String>>>);
///
/// impl Shrinker for Idle {
///     fn count(&self) -> usize {
///         self.0.try_lock().map_or(0, |idle| idle.len())
///     }
///     fn scan(&self, objects: usize, _: Gfp) -> usize {
///         let Ok(mut idle) = self.0.try_lock() else { return 0 };
///         let oldest = objects.min(idle.len());
///         idle.drain(..oldest).count()
///     }
/// }
///
/// let sessions = ObjectCache::builder("session").ctor(String::new).limit(Limit::Slabs(1)).build()?;
/// let idle = Arc::new(Idle::default());
/// let _registration = sessions.register_shrinker(idle.clone());
/// let most = sessions.info().objs_per_slab as usize;
/// while idle.count() < most {
///     let session = sessions.alloc_owned()?;
///     idle.0.lock().unwrap().push(session);
/// }
/// let session = sessions.alloc()?; // the cache is at its limit: idle sessions make room
/// assert!(idle.count() < most);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Shrinker: Send + Sync {
    /// Approximate number of objects that the shrinker could free at this time.
    fn count(&self) -> usize;
    /// Frees up to `objects` objects, beginning with the least useful, and returns the number of freed objects. `gfp`
    /// restricts the shrinker as it restricts the failing allocation. With [`Gfp::NOIO`] or [`Gfp::NOFS`], the shrinker
    /// must not start I/O or call a file system.
    fn scan(&self, objects: usize, gfp: Gfp) -> usize;
}

impl<S: Shrinker + ?Sized> Shrinker for Arc<S> {
    fn count(&self) -> usize {
        (**self).count()
    }
    fn scan(&self, objects: usize, gfp: Gfp) -> usize {
        (**self).scan(objects, gfp)
    }
}

/// Registration of a shrinker. Dropping the registration unregisters the shrinker. A thread that has already found the
/// shrinker may call it once more after the drop.
///
/// ```
/// use std::sync::Arc;
/// use uslab::{Config, Gfp, Registration, Shrinker, Subsystem};
///
/// struct Idle;
/// impl Shrinker for Idle {
///     fn count(&self) -> usize {
///         0
///     }
///     fn scan(&self, _: usize, _: Gfp) -> usize {
///         0
///     }
/// }
///
/// let (subsystem, idle) = (Subsystem::new(Config::default())?, Arc::new(Idle));
/// let registration: Registration = subsystem.register_shrinker(idle.clone());
/// drop(registration); // it is not called any more
/// assert_eq!(Arc::strong_count(&idle), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the registration removes the shrinker"]
pub struct Registration {
    entry: Arc<Entry>,
    list: Arc<Shrinkers>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.list.0.remove(Arc::as_ptr(&self.entry));
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

pub(crate) struct Entry {
    shrinker: ContainedValue<Box<dyn Shrinker>>,
    /// Number of the cache at whose limit the shrinker is called, or 0 for a shrinker of all memory.
    cache: u64,
}

/// Divisors of the shrinkers' counts, which are tried one after another while the allocation fails.
const COUNT_DIVISORS: [usize; 3] = [8, 2, 1];

thread_local! {
    /// True while this thread runs a shrinker, so that the shrinker's allocations do not call shrinkers.
    static IS_SHRINKING: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
pub(crate) struct Shrinkers(Registry<Entry>);

impl Shrinkers {
    pub(crate) fn new() -> Self {
        Self(Registry::new(Rank::Shrinkers))
    }
    pub(crate) fn list(&self) -> &ForkMutex<List<Entry>> {
        self.0.list()
    }

    /// Adds a shrinker that is called at the limit of the cache with number `cache`, or for all memory if `cache` is 0.
    pub(crate) fn add(self: &Arc<Self>, shrinker: Box<dyn Shrinker>, cache: u64) -> Registration {
        let entry = Arc::new(Entry { shrinker: ContainedValue::new(shrinker), cache });
        self.0.push(&entry);
        Registration { entry, list: self.clone() }
    }

    /// Returns `true` if any shrinker is registered for a cache's limit.
    pub(crate) fn has_limit_shrinkers(&self) -> bool {
        self.0.iter().any(|entry| entry.cache != 0)
    }
    /// Requests that each shrinker frees `1/share` of the objects that it counts. If `cache` is not 0, only shrinkers
    /// of that cache's limit run. Returns the number of freed objects.
    pub(crate) fn run(&self, share: usize, gfp: Gfp, cache: u64) -> usize {
        assert_unlocked();
        if IS_SHRINKING.with(|shrinking| shrinking.replace(true)) {
            return 0;
        }
        let mut dropped = 0;
        for entry in self.0.iter() {
            if cache == 0 || cache == entry.cache {
                let freed_objects = contain_panic(|| match entry.shrinker.count() {
                    0 => 0,
                    count => entry.shrinker.scan(count.div_ceil(share), gfp),
                });
                // The shrinker may have freed objects before it panicked, so it counts as one
                // object.
                dropped += freed_objects.unwrap_or(1);
            }
        }
        IS_SHRINKING.with(|shrinking| shrinking.set(false));
        dropped
    }

    /// Requests growing fractions of the shrinkers' counts, until `again` succeeds or the shrinkers have no object left
    /// to free.
    pub(crate) fn run_until<T, E>(
        &self,
        gfp: Gfp,
        cache: u64,
        mut again: impl FnMut() -> Result<T, E>,
        mut result: Result<T, E>,
    ) -> Result<T, E> {
        if !gfp.may_reclaim() {
            return result;
        }
        for share in COUNT_DIVISORS {
            if result.is_ok() || self.run(share, gfp, cache) == 0 {
                break;
            }
            result = again();
        }
        result
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, KmemCache, Limit, Subsystem};
    use uslab_magazine::sync::Mutex;

    /// A shrinker that drops its own registration when it is called, and panics when it is dropped.
    struct SelfRemovingShrinker(Arc<Mutex<Option<Registration>>>);
    impl Shrinker for SelfRemovingShrinker {
        fn count(&self) -> usize {
            1
        }
        fn scan(&self, _: usize, _: Gfp) -> usize {
            let registration = self.0.lock().take();
            drop(registration);
            0
        }
    }
    impl Drop for SelfRemovingShrinker {
        fn drop(&mut self) {
            panic!("intended panic");
        }
    }

    /// Regression test: a panic in a shrinker's drop reached the caller of the allocation.
    #[test]
    fn allocation_succeeds_if_dropping_a_shrinker_panics() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("none", 64).limit(Limit::Slabs(0)).build_in(&subsystem).unwrap();
        let registration = Arc::new(Mutex::new(None));
        let registered = cache.register_shrinker(SelfRemovingShrinker(registration.clone()));
        *registration.lock() = Some(registered);
        assert!(cache.alloc(Gfp::KERNEL).is_err() && registration.lock().is_none());
        assert_eq!(Arc::strong_count(&registration), 1);
    }
}
