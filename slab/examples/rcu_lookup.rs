//! A hash table that threads read without a lock, and without writing to shared memory. The nodes of the table
//! are objects of a type-stable cache.
//!
//! A reader is pinned, so the memory of every node that it finds remains a node. While a reader reads a node, the node
//! may be freed and reused for another entry, so the reader checks three conditions:
//!
//! * the node's sequence number is even, and has the same value before and after the fields are read, so the fields
//!   belong to one entry;
//! * the node has the requested key;
//! * the chain ends in the mark of this bucket; otherwise the node was moved to another chain, and the reader starts
//!   again.
//!
//! The marks correspond to Linux's `hlist_nulls` (Documentation/RCU/rculist_nulls.rst).

use std::error::Error;
use std::ptr::NonNull;
use uslab::sync::{AtomicPtr, AtomicU64, Counter, Mutex, Ordering::*};
use uslab::{ObjectCache, StableBox, TypeStableCache, rcu};

struct Node {
    /// The sequence number is odd while a writer changes the fields.
    sequence: AtomicU64,
    key: AtomicU64,
    value: AtomicU64,
    next: AtomicPtr<Node>,
}

impl Node {
    fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            key: AtomicU64::new(0),
            value: AtomicU64::new(0),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }
    /// Returns the key and the value of one entry, or `None` while a writer changes them.
    fn read(&self) -> Option<(u64, u64)> {
        // Acquire: pairs with the Release of the second store in `write`.
        let before = self.sequence.load(Acquire);
        // Acquire: pairs with the Release of the fields in `write`. A thread that read a new field also reads a new
        // sequence number below.
        let fields = (self.key.load(Acquire), self.value.load(Acquire));
        (before.is_multiple_of(2) && self.sequence.load(Relaxed) == before).then_some(fields)
    }
    /// Only the owner of the node may call `write`.
    fn write(&self, key: u64, value: u64) {
        let now = self.sequence.load(Relaxed);
        self.sequence.store(now + 1, Relaxed);
        self.key.store(key, Release);
        self.value.store(value, Release);
        self.sequence.store(now + 2, Release);
    }
}

/// Returns the mark that ends the chain of a bucket. A mark is odd, whereas addresses of nodes are
/// always even.
fn chain_end_marker(bucket: usize) -> *mut Node {
    std::ptr::without_provenance_mut(bucket << 1 | 1)
}

struct Table<'c> {
    nodes: &'c TypeStableCache<Node>,
    buckets: Vec<AtomicPtr<Node>>,
    /// Entries by key. A writer of the table holds this lock.
    entries: Mutex<std::collections::BTreeMap<u64, StableBox<'c, Node>>>,
    restarts: Counter,
}

impl<'c> Table<'c> {
    fn new(nodes: &'c TypeStableCache<Node>, buckets: usize) -> Self {
        Self {
            nodes,
            buckets: (0..buckets).map(|bucket| AtomicPtr::new(chain_end_marker(bucket))).collect(),
            entries: Mutex::default(),
            restarts: Counter::new(0),
        }
    }
    fn bucket(&self, key: u64) -> usize {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % self.buckets.len()
    }

    fn insert(&self, key: u64, value: u64) -> Result<(), uslab::AllocError> {
        let node = self.nodes.alloc()?;
        node.write(key, value);
        let mut entries = self.entries.lock();
        let head = &self.buckets[self.bucket(key)];
        node.next.store(head.load(Relaxed), Relaxed);
        // Release: a reader that finds the node finds it initialised.
        head.store(node.as_ptr().as_ptr(), Release);
        entries.insert(key, node);
        Ok(())
    }

    fn remove(&self, key: u64) -> bool {
        let mut entries = self.entries.lock();
        let Some(node) = entries.remove(&key) else { return false };
        let mut link = &self.buckets[self.bucket(key)];
        while link.load(Relaxed) != node.as_ptr().as_ptr() {
            // SAFETY: a linked node is an entry, and only the thread that holds the lock changes
            // the table.
            link = unsafe { &(*link.load(Relaxed)).next };
        }
        link.store(node.next.load(Relaxed), Release);
        // The node is free immediately, and readers may find it with another entry.
        drop(node);
        true
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _reader = rcu::pin();
        let bucket = self.bucket(key);
        'again: loop {
            // Acquire: pairs with the Release of `insert`.
            let mut at = self.buckets[bucket].load(Acquire);
            while at.addr().is_multiple_of(2) {
                // SAFETY: the reader found the node while pinned, so the node stays a node until the unpin.
                let node = unsafe { NonNull::new_unchecked(at).as_ref() };
                match node.read() {
                    Some((found, value)) if found == key => return Some(value),
                    Some(_) => at = node.next.load(Acquire),
                    None => {
                        self.restarts.add(1);
                        continue 'again;
                    }
                }
            }
            if at == chain_end_marker(bucket) {
                return None;
            }
            self.restarts.add(1);
        }
    }
}

const KEYS: u64 = 64;
const READERS: u64 = 3;
const LOOKUP_COUNT: u64 = 200_000;

fn value(key: u64, n: u64) -> u64 {
    key << 32 | n
}

fn main() -> Result<(), Box<dyn Error>> {
    let nodes = ObjectCache::builder("node").ctor(Node::new).build_type_stable()?;
    let table = Table::new(&nodes, 8);
    // Keys from `KEYS` on stay while other entries change.
    for key in KEYS..2 * KEYS {
        table.insert(key, value(key, 0))?;
    }
    let (found, readers) = (Counter::new(0), Counter::new(READERS));
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (table, found, readers) = (&table, &found, &readers);
            scope.spawn(move || {
                for n in 0..LOOKUP_COUNT {
                    let key = (n * 7 + reader) % (2 * KEYS);
                    let found_value = table.get(key);
                    assert!(
                        found_value.is_some() || key < KEYS,
                        "key {key} must be found, because it is never removed"
                    );
                    assert!(
                        found_value.is_none_or(|value| value >> 32 == key),
                        "key {key}: the value belongs to another key"
                    );
                    found.add(u64::from(found_value.is_some()));
                }
                readers.sub(1);
            });
        }
        let mut life = 0;
        while readers.get() > 0 {
            life += 1;
            for key in 0..KEYS {
                if !table.remove(key) {
                    table.insert(key, value(key, life)).unwrap_or_else(|error| panic!("{error}"));
                }
            }
            if life % 64 == 0 {
                // Slabs that are freed while readers read wait for the readers.
                nodes.shrink();
            }
        }
    });
    println!(
        "{} lookups: {} found a value, and {} were restarted; no value was wrong",
        READERS * LOOKUP_COUNT,
        found.get(),
        table.restarts.get()
    );
    println!("nodes: {} allocations were served by {} objects", nodes.info().allocs, nodes.info().objects);
    Ok(())
}
