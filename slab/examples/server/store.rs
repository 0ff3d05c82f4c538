//! The store of keys and values: a hash table in shards, each with a lock.

use super::buffer::append;
use super::memory::Memory;
use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::boxed::Box as BoxIn;
use allocator_api2_02::vec::Vec;
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::mem;

/// The error that memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory;

/// Number of shards. With 64 shards, two threads rarely need the same lock, and each shard remains small even with
/// millions of keys.
const SHARDS: usize = 64;

type Bytes<A> = BoxIn<[u8], A>;

fn copied<A: Allocator>(bytes: &[u8], memory: A) -> Result<Bytes<A>, OutOfMemory> {
    let mut copy = Vec::new_in(memory);
    copy.try_reserve_exact(bytes.len()).map_err(|_| OutOfMemory)?;
    append(&mut copy, bytes);
    Ok(copy.into_boxed_slice())
}

pub(crate) struct Entry<A: Allocator> {
    key: Bytes<A>,
    value: Bytes<A>,
}

impl<A: Allocator + Copy> Entry<A> {
    /// Creates an entry without key and value, which owns no memory.
    pub(crate) fn new_in(memory: A) -> Self {
        let empty = || Vec::new_in(memory).into_boxed_slice();
        Self { key: empty(), value: empty() }
    }
    pub(crate) fn reset(&mut self) {
        *self = Self::new_in(*BoxIn::allocator(&self.key));
    }
}

type Table<M> = HashTable<<M as Memory>::Object<Entry<<M as Memory>::Bytes>>, <M as Memory>::Bytes>;

/// All entries of the server, which are its keys and values. A removed entry is freed only after the shard's lock is
/// released.
pub(crate) struct Store<M: Memory> {
    memory: M,
    hasher: RandomState,
    parts: Box<[Mutex<Table<M>>]>,
}

impl<M: Memory> Store<M> {
    pub(crate) fn new(memory: M) -> Self {
        let parts = (0..SHARDS).map(|_| Mutex::new(HashTable::new_in(memory.byte_allocator()))).collect();
        Self { memory, hasher: RandomState::new(), parts }
    }

    pub(crate) fn memory(&self) -> M {
        self.memory
    }

    fn find(&self, key: &[u8]) -> (u64, &Mutex<Table<M>>) {
        let hash = self.hasher.hash_one(key);
        // The hash table takes its buckets from the low bits of the hash, and its tags from the highest seven
        // bits.
        (hash, &self.parts[(hash >> 32) as usize % SHARDS])
    }

    pub(crate) fn get<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let (hash, part) = self.find(key);
        let table = part.lock();
        look(table.find(hash, |entry| *entry.key == *key).map(|entry| &*entry.value))
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// If memory is short, changes nothing and returns an error.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<(), OutOfMemory> {
        self.update(key, |_| Ok(value))
    }

    /// Replaces the value of `key` by the result of `change`, which gets the old value.
    ///
    /// # Errors
    /// Returns the errors of `change`, or an error if memory is short. If `update` fails, the store is unchanged.
    pub(crate) fn update<V: AsRef<[u8]>, E: From<OutOfMemory>>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<&[u8]>) -> Result<V, E>,
    ) -> Result<(), E> {
        let (hash, part) = self.find(key);
        // `_old` is declared before the lock is taken, so that its value is dropped after the lock is
        // released.
        let _old;
        let mut table = part.lock();
        if let Some(entry) = table.find_mut(hash, |entry| *entry.key == *key) {
            let value = copied(change(Some(&entry.value))?.as_ref(), self.memory.byte_allocator())?;
            _old = mem::replace(&mut entry.value, value);
            return Ok(());
        }
        let mut entry = self.memory.alloc_entry().map_err(|_| OutOfMemory)?;
        entry.value = copied(change(None)?.as_ref(), self.memory.byte_allocator())?;
        entry.key = copied(key, self.memory.byte_allocator())?;
        table.try_reserve(1, |entry| self.hasher.hash_one(&*entry.key)).map_err(|_| OutOfMemory)?;
        table.insert_unique(hash, entry, |entry| self.hasher.hash_one(&*entry.key));
        Ok(())
    }

    /// Removes `key`. Returns `false` if the key was not in the store.
    pub(crate) fn remove(&self, key: &[u8]) -> bool {
        let (hash, part) = self.find(key);
        let removed = {
            let mut table = part.lock();
            table.find_entry(hash, |entry| *entry.key == *key).ok().map(|entry| entry.remove().0)
        };
        removed.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    pub(crate) fn clear(&self) {
        for part in &self.parts {
            let all = mem::replace(&mut *part.lock(), HashTable::new_in(self.memory.byte_allocator()));
            drop(all);
        }
    }
}
