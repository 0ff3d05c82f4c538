//! A list of the caches or shrinkers of a subsystem. A registry keeps no entry alive.
//!
//! Allocations under memory pressure iterate over a registry, and the global allocator may use one of the listed
//! caches. A registry therefore allocates and frees outside its lock, and releases the lock before a caller uses an
//! entry.
//!
//! An iteration unlocks the registry between two entries, so other threads may remove entries during the iteration. The
//! position of an iteration is therefore a number instead of an index. Each pushed entry gets the next larger number.
//! An iteration continues at the first entry whose number is larger than its position.

use core::fmt;
use std::sync::{Arc, Weak};
use uslab_magazine::sync::Rank;
use uslab_magazine::sync::fork::ForkMutex;

/// A lock-protected list of entries, oldest first.
pub(crate) struct Registry<T: 'static>(ForkMutex<List<T>>);

pub(crate) struct List<T> {
    /// Entries sorted by number. A removed entry becomes `None`, because moving all later entries would be slow.
    entries: Vec<(u64, Option<Weak<T>>)>,
    removed_entries: usize,
    /// Number that the next pushed entry will get.
    next: u64,
    /// Address of the first entry and number of entries, for debuggers.
    place: [usize; 2],
}

impl<T> List<T> {
    /// For debuggers: the offset of `place`, the bytes of an entry, the offset of the `Arc`'s address in an entry (null
    /// after the removal), and the offset of the value in the `Arc`'s memory.
    pub(crate) const LAYOUT: [usize; 4] = [
        core::mem::offset_of!(Self, place),
        size_of::<(u64, Option<Weak<T>>)>(),
        core::mem::offset_of!((u64, Option<Weak<T>>), 1),
        // In an `Arc`'s memory, two counts precede the value.
        if align_of::<T>() > 16 { align_of::<T>() } else { 16 },
    ];
    fn update_debugger_layout(&mut self) {
        self.place = [self.entries.as_ptr().addr(), self.entries.len()];
    }
    /// Addresses of all entries that were not removed, including entries whose value was dropped.
    pub(crate) fn entries(&self) -> impl Iterator<Item = *const T> {
        self.entries.iter().filter_map(|(_, entry)| Some(entry.as_ref()?.as_ptr()))
    }
}

impl<T> Registry<T> {
    /// Makes an empty list whose lock has rank `rank`.
    pub(crate) fn new(rank: Rank) -> Self {
        Self(ForkMutex::new(rank, List { entries: Vec::new(), removed_entries: 0, next: 0, place: [0; 2] }))
    }

    pub(crate) fn push(&self, entry: &Arc<T>) {
        let mut larger = Vec::new();
        loop {
            let mut list = self.0.lock();
            let len = list.entries.len();
            if len == list.entries.capacity() {
                if larger.capacity() <= len {
                    drop(list);
                    larger = Vec::with_capacity(2 * len + 64);
                    continue;
                }
                larger.append(&mut list.entries);
                core::mem::swap(&mut list.entries, &mut larger);
            }
            let number = list.next;
            list.next += 1;
            list.entries.push((number, Some(Arc::downgrade(entry))));
            return list.update_debugger_layout();
        }
    }

    /// Removes `entry`. The memory of `entry` stays valid during the call, because the caller owns the entry or is
    /// dropping it.
    pub(crate) fn remove(&self, entry: *const T) {
        let mut list = self.0.lock();
        let is_it = |(_, other): &&mut (u64, Option<Weak<T>>)| {
            other.as_ref().is_some_and(|other| core::ptr::eq(other.as_ptr(), entry))
        };
        let Some((_, found)) = list.entries.iter_mut().find(is_it) else {
            return;
        };
        // The removed entry is dropped after the lock is released.
        let _gone = found.take();
        list.removed_entries += 1;
        if 2 * list.removed_entries > list.entries.len() {
            list.entries.retain(|(_, entry)| entry.is_some());
            list.removed_entries = 0;
            list.update_debugger_layout();
        }
        drop(list);
    }

    /// Iterates over the live entries that were pushed before this call, oldest first. An entry that lives until the
    /// end of the iteration is found exactly once, even if other entries are removed during the iteration.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        let end = self.0.lock().next;
        let mut first = 0;
        core::iter::from_fn(move || {
            loop {
                let list = self.0.lock();
                let place = list.entries.partition_point(|(n, _)| *n < first);
                let (number, entry) = list.entries.get(place).filter(|(number, _)| *number < end)?;
                first = number + 1;
                let entry = entry.as_ref().and_then(Weak::upgrade);
                if entry.is_some() {
                    return entry;
                }
            }
        })
    }

    /// The lock of the list. No entry is removed while a caller holds the lock.
    pub(crate) fn list(&self) -> &ForkMutex<List<T>> {
        &self.0
    }
}

impl<T> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List")
            .field("entries", &(self.entries.len() - self.removed_entries))
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Regression test: an iteration skipped an entry after an earlier entry had been removed.
    #[test]
    fn registry_walk_skips_no_entry_after_a_removal() {
        let registry = Registry::new(Rank::Caches);
        let mut entries: Vec<_> = (0..9).map(Arc::new).collect();
        entries.iter().for_each(|entry| registry.push(entry));
        let mut visited_entries = Vec::new();
        for entry in registry.iter() {
            visited_entries.push(*entry);
            // Remove this entry, and the middle entry of the remaining ones.
            registry.remove(Arc::as_ptr(&entry));
            if *entry == 2 {
                registry.remove(Arc::as_ptr(&entries[5]));
            }
        }
        assert_eq!(visited_entries, [0, 1, 2, 3, 4, 6, 7, 8]);
        entries.truncate(2);
        entries.iter().for_each(|entry| registry.push(entry));
        assert_eq!(registry.iter().map(|entry| *entry).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn registry_list_is_at_most_half_empty() {
        let registry = Registry::new(Rank::Caches);
        let entries: Vec<_> = (0..3).map(Arc::new).collect();
        entries.iter().for_each(|entry| registry.push(entry));
        for n in 0..100 {
            let other = Arc::new(n);
            registry.push(&other);
            registry.remove(Arc::as_ptr(&other));
            let list = registry.list().lock();
            assert!(list.entries.len() <= 2 * entries.len(), "{} after {n}", list.entries.len());
            assert_eq!(format!("{:?}", &*list), "List { entries: 3, .. }");
            assert_eq!(
                list.place,
                [list.entries.as_ptr().addr(), list.entries.len()],
                "debuggers find the entries at these addresses"
            );
        }
    }

    #[test]
    fn registry_list_grows_only_when_full() {
        let registry = Registry::new(Rank::Caches);
        let entries: Vec<_> = (0..200).map(Arc::new).collect();
        let place = || registry.list().lock().place;
        let mut moves = 0;
        for (n, entry) in entries.iter().enumerate() {
            let [before, _] = place();
            registry.push(entry);
            let [after, len] = place();
            assert_eq!(len, n + 1);
            moves += usize::from(before != after);
        }
        assert_eq!(moves, 3, "the table grows to 64, 192 and 448 entries");
        assert!(registry.iter().map(|entry| *entry).eq(0..200));
        let len = || registry.list().lock().entries.len();
        entries[..100].iter().for_each(|entry| registry.remove(Arc::as_ptr(entry)));
        assert_eq!(len(), 200, "exactly half of the entries were removed");
        registry.remove(Arc::as_ptr(&entries[100]));
        assert_eq!(len(), 99);
        assert!(registry.iter().map(|entry| *entry).eq(101..200));
    }

    /// If an iteration visited new entries, it might never end while another thread makes caches.
    #[test]
    fn registry_walk_excludes_entries_added_during_the_walk() {
        let registry = Registry::new(Rank::Caches);
        let entries: Vec<_> = (0..3).map(Arc::new).collect();
        entries.iter().for_each(|entry| registry.push(entry));
        let visited_entries: Vec<_> =
            registry.iter().inspect(|entry| registry.push(entry)).map(|entry| *entry).collect();
        assert_eq!(visited_entries, [0, 1, 2]);
    }
}
