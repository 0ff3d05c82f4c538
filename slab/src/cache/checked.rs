//! Checks of a checked cache's objects, at each allocation and each free.
//!
//! A checked cache's fast paths are disabled. Every object of a checked cache therefore passes
//! `Cache::mark_checked_alloc` before a user gets it, and `Cache::mark_checked_free` before it can be allocated again.
//! Each object has a [tag](crate::debug::tags); further checks depend on the cache's [flags](crate::debug::flags) and
//! are in `debugged.rs`.

use super::object::Object;
use crate::debug::flags::SlabDebug;
use crate::debug::tags::Tags;
use crate::debug::watch::Watch;
use core::ptr::NonNull;
use std::sync::Arc;
use uslab_buddy::StackMemory;
use uslab_magazine::FastPath;

#[derive(Debug)]
pub(crate) struct Checked {
    pub(super) tags: Arc<Tags>,
    pub(super) tag: u8,
    /// The magazine layer's fast path, used after the checks have passed.
    pub(super) fast_path: FastPath<Object, StackMemory>,
    pub(super) debugged: Option<ObjectDebugChecks>,
}

impl Checked {
    pub(super) fn is_allocated(&self, object: NonNull<u8>) -> bool {
        self.tags.is_allocated(object, self.tag)
    }
    /// For debuggers: address of the table of records; 0 without a table.
    pub(super) fn record_table_address(&self) -> usize {
        let has_records = self.debugged.as_ref().is_some_and(ObjectDebugChecks::has_records);
        if has_records { self.tags.tracks.place() } else { 0 }
    }
}

/// Debug checks of a cache's objects, in addition to checked frees.
#[derive(Debug)]
pub(super) struct ObjectDebugChecks {
    pub(super) flags: SlabDebug,
    pub(super) watch: Watch,
}

impl ObjectDebugChecks {
    /// Creates the checks that `flags` requests, or returns `None` if `flags` requests only checked frees.
    pub(super) fn new(flags: SlabDebug, watch: Watch) -> Option<Self> {
        let other_flags = flags - SlabDebug::CHECKS;
        (!other_flags.is_empty()).then_some(Self { flags, watch })
    }
    pub(super) fn has_records(&self) -> bool {
        self.flags.intersects(SlabDebug::USERS | SlabDebug::RED_ZONE)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, KmemCache, Subsystem};

    #[test]
    fn description_for_debuggers_contains_the_address_of_the_record_table() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        for (flags, has_records) in [
            (SlabDebug::CHECKS, false),
            (SlabDebug::POISON, false),
            (SlabDebug::RED_ZONE, true),
            (SlabDebug::USERS, true),
        ] {
            let cache = KmemCache::builder("seen", 64).slab_debug(flags).build_in(&subsystem).unwrap();
            let checked = cache.cache().checked.as_ref().unwrap();
            let table = if has_records { checked.tags.tracks.place() } else { 0 };
            assert_eq!(checked.record_table_address(), table, "{flags}");
        }
    }
}
