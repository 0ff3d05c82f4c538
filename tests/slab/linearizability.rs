//! Tests that concurrent operations on caches, pools with a reserve, handles and hives are linearizable.
//!
//! Real threads run and record their calls with the results; afterwards, the history of calls is checked. Each kind of
//! object also has a wrapper with a deliberate error, whose history must be rejected. Handle tables and hives have a
//! single owner, so the tests protect them by a lock.

use crate::linearizable::{Call, Object, OwnedOp, Recorder, Spec, check, check_each_object_history};
use std::collections::BTreeSet;
use std::fmt::Debug;
use uslab::handle::{Generations, Handle, HandleCache, HandleTable};
use uslab::objects::Key;
use uslab::{Config, Gfp, Hive, KmemCache, Limit, Mempool, ObjectCache, Subsystem};
use uslab_magazine::sync::Mutex;

const THREADS: u64 = 4;
/// The number of rounds of a test; the next constant is the number of operations of each thread in a round.
const ROUNDS: u64 = 20;
const CALLS: u64 = 100;
/// The number of rounds within which a wrapper's error must be found; a single round may miss it.
const TRIES: u64 = 2000;

/// Runs `body` on each thread, with a new seed in every round, and returns the recorded calls.
fn record<O: Send>(round: u64, body: impl Fn(&Recorder<O>, &mut XorShift) + Sync) -> Vec<Call<O>> {
    let recorder = Recorder::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (recorder, body) = (&recorder, &body);
            scope.spawn(move || body(recorder, &mut XorShift(round * THREADS + thread + 1)));
        }
    });
    recorder.history()
}

/// The random number generator xorshift64 (Marsaglia 2003).
struct XorShift(u64);
impl XorShift {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % n
    }
}

/// Returns `true` if the checker rejects the history of at least one round.
fn is_some_history_rejected(is_refused: impl FnMut(u64) -> bool) -> bool {
    (0..TRIES).any(is_refused)
}
fn explained<K: Debug>(round: u64, outcome: Result<(), K>) {
    assert!(outcome.is_ok(), "no order explains round {round}: {outcome:?}");
}

// ---- objects of a cache ----

/// Allocates and frees objects, some of which the threads pass to each other.
fn exchange(round: u64, alloc: impl Fn() -> usize + Sync, free: impl Fn(usize) + Sync) -> Vec<Call<OwnedOp>> {
    let shared = Mutex::new(vec![]);
    record(round, |recorder, dice| {
        for _ in 0..CALLS {
            if dice.below(2) == 0 {
                let object = recorder.call(&alloc, |object| OwnedOp::Alloc(*object));
                shared.lock().push(object);
            } else {
                let mut objects = shared.lock();
                let n = objects.len() as u64;
                let object = (n > 0).then(|| objects.swap_remove(dice.below(n) as usize));
                drop(objects);
                if let Some(object) = object {
                    recorder.call(|| free(object), |()| OwnedOp::Free(object));
                }
            }
        }
    })
}

#[test]
fn concurrent_allocations_never_share_an_object() {
    for round in 0..ROUNDS {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("linear", 64).build_in(&subsystem).unwrap();
        let alloc = || cache.alloc(Gfp::KERNEL).unwrap().expose_provenance().get();
        let free = |object: usize| {
            let object = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(object)).unwrap();
            // SAFETY: the object was allocated from this cache; the thread that takes it from the list frees it once.
            unsafe { cache.free(object) };
        };
        let history = exchange(round, alloc, free);
        explained(round, check_each_object_history(&Object { owned: false }, &history, OwnedOp::object));
    }
}

#[test]
fn linearizability_checker_detects_non_atomic_pool_allocation() {
    let run_wrong_pool = |round| {
        let objects = Mutex::new((0..1000).collect::<Vec<usize>>());
        let alloc = || {
            let last = *objects.lock().last().expect("the cache must have more objects than are used");
            std::thread::yield_now();
            objects.lock().pop();
            last
        };
        let history = exchange(round, alloc, |object| objects.lock().push(object));
        check_each_object_history(&Object { owned: false }, &history, OwnedOp::object).is_err()
    };
    assert!(is_some_history_rejected(run_wrong_pool));
}

// ---- a reserve ----

/// The sequential specification of a pool with a reserve.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolSpec {
    min_live: usize,
    live_objects: BTreeSet<usize>,
}
#[derive(Clone, Copy, Debug)]
enum PoolOp {
    /// An allocation, with the allocated object; `None` if it was refused.
    Alloc(Option<usize>),
    Free(usize),
}
impl Spec for PoolSpec {
    type Op = PoolOp;
    fn allows(&mut self, op: &PoolOp) -> bool {
        match op {
            // An allocation must succeed while fewer objects are in use than the reserve has.
            PoolOp::Alloc(None) => self.live_objects.len() >= self.min_live,
            PoolOp::Alloc(Some(object)) => self.live_objects.insert(*object),
            PoolOp::Free(object) => self.live_objects.remove(object),
        }
    }
}
fn run_allocations_and_frees(
    round: u64,
    alloc: impl Fn() -> Option<usize> + Sync,
    free: impl Fn(usize) + Sync,
) -> Vec<Call<PoolOp>> {
    record(round, |recorder, dice| {
        let mut own_objects = vec![];
        for _ in 0..CALLS {
            if own_objects.len() < 2 && dice.below(2) == 0 {
                own_objects.extend(recorder.call(&alloc, |object| PoolOp::Alloc(*object)));
                std::thread::yield_now();
            } else if let Some(object) = own_objects.pop() {
                recorder.call(|| free(object), |()| PoolOp::Free(object));
            }
        }
        for object in own_objects {
            recorder.call(|| free(object), |()| PoolOp::Free(object));
        }
    })
}

#[test]
fn mempool_refuses_only_while_its_reserve_is_used() {
    let mut refusals = 0;
    for round in 0..ROUNDS {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("linear", 512).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let pool = Mempool::new(cache, 3).unwrap();
        // One of the cache's own objects is left.
        let mut other_blocks: Vec<_> =
            std::iter::from_fn(|| pool.cache().alloc_block(Gfp::KERNEL).ok()).collect();
        drop(other_blocks.pop());
        let alloc = || pool.alloc(Gfp::KERNEL).ok().map(|object| object.expose_provenance().get());
        let free = |object: usize| {
            let object = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(object)).unwrap();
            // SAFETY: the object was allocated from this pool; one thread frees it once.
            unsafe { pool.free(object) };
        };
        let history = run_allocations_and_frees(round, alloc, free);
        refusals += history.iter().filter(|call| matches!(call.op, PoolOp::Alloc(None))).count();
        explained(round, check(&PoolSpec { min_live: 3, live_objects: BTreeSet::new() }, &history));
    }
    assert!(refusals > 0, "the reserve must be used in some history");
    println!("LINEARIZABLE | mempool | {ROUNDS} histories | {refusals} refusals");
}

#[test]
fn linearizability_checker_detects_a_late_reserve_refill() {
    let run_wrong_pool = |round| {
        let (objects, deferred) = (Mutex::new((0..3).collect::<Vec<usize>>()), Mutex::new(vec![]));
        // The wrong wrapper frees an object only at the next free.
        let free = |object| {
            let before = std::mem::replace(&mut *deferred.lock(), vec![object]);
            objects.lock().extend(before);
        };
        let history = run_allocations_and_frees(round, || objects.lock().pop(), free);
        check(&PoolSpec { min_live: 3, live_objects: BTreeSet::new() }, &history).is_err()
    };
    assert!(is_some_history_rejected(run_wrong_pool));
}

// ---- handles ----

/// The states that one handle can have.
#[derive(Clone, PartialEq, Eq, Hash)]
enum HandleState {
    NotYet,
    Live,
    Over,
}
#[derive(Clone, Copy, Debug)]
enum HandleOp {
    Insert(u64),
    /// A lookup of a handle; `true` if it found a value.
    Get(u64, bool),
    Remove(u64, bool),
}
impl Spec for HandleState {
    type Op = HandleOp;
    fn allows(&mut self, op: &HandleOp) -> bool {
        let is_live_state = *self == Self::Live;
        match op {
            HandleOp::Insert(_) => std::mem::replace(self, Self::Live) == Self::NotYet,
            HandleOp::Get(_, value_found) => is_live_state == *value_found,
            HandleOp::Remove(_, value_found) => {
                if is_live_state {
                    *self = Self::Over;
                }
                is_live_state == *value_found
            }
        }
    }
}
fn handle(op: &HandleOp) -> u64 {
    match op {
        HandleOp::Insert(handle) | HandleOp::Get(handle, _) | HandleOp::Remove(handle, _) => *handle,
    }
}
/// Runs threads that look up handles from other threads; some of these handles are stale.
fn run_handle_lookups(
    round: u64,
    insert: impl Fn() -> Handle + Sync,
    get: impl Fn(Handle) -> bool + Sync,
    remove: impl Fn(Handle) -> bool + Sync,
) -> Vec<Call<HandleOp>> {
    let known_handles: Mutex<Vec<Handle>> = Mutex::new(vec![]);
    record(round, |recorder, dice| {
        for _ in 0..CALLS {
            let (n, operation) = (known_handles.lock().len() as u64, dice.below(4));
            if n == 0 || operation == 0 {
                let handle = recorder.call(&insert, |handle| HandleOp::Insert(handle.to_bits()));
                known_handles.lock().push(handle);
                continue;
            }
            // The handle is one of the newest, which other threads also use.
            let index = n - 1 - dice.below(n.min(4));
            let handle = known_handles.lock()[index as usize];
            if operation < 3 {
                recorder.call(|| get(handle), |value_found| HandleOp::Get(handle.to_bits(), *value_found));
            } else {
                recorder
                    .call(|| remove(handle), |value_found| HandleOp::Remove(handle.to_bits(), *value_found));
            }
        }
    })
}

#[test]
fn handle_is_valid_until_its_object_is_freed() {
    for round in 0..ROUNDS {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let builder = ObjectCache::builder("linear").ctor(|| 0_u64);
        let cache: HandleCache<u64> = builder.build_handles_in(&subsystem, Generations::default()).unwrap();
        let (get, free) = (|handle| cache.get(handle).is_some(), |handle| cache.free(handle));
        let history = run_handle_lookups(round, || cache.alloc().unwrap(), get, free);
        explained(round, check_each_object_history(&HandleState::NotYet, &history, handle));
    }
}

#[test]
fn handle_table_behind_a_lock_is_linearizable() {
    let run = |round, two_holds: bool| {
        let table = Mutex::new(HandleTable::<u32>::new());
        let remove = |handle| {
            if two_holds {
                let value_found = table.lock().get(handle).is_some();
                std::thread::yield_now();
                let _ = table.lock().free(handle);
                return value_found;
            }
            table.lock().free(handle).is_some()
        };
        let insert = || table.lock().alloc(1).unwrap();
        let history = run_handle_lookups(round, insert, |handle| table.lock().get(handle).is_some(), remove);
        check_each_object_history(&HandleState::NotYet, &history, handle)
    };
    (0..ROUNDS).for_each(|round| explained(round, run(round, false)));
    assert!(is_some_history_rejected(|round| run(round, true).is_err()));
}

// ---- a hive ----

/// The sequential specification of one address: the value that was last inserted there, if any.
#[derive(Clone, PartialEq, Eq, Hash)]
struct AddressSpec(Option<u64>);
#[derive(Clone, Copy, Debug)]
enum HiveOp {
    Insert(usize, u64),
    Get(usize, u64),
    Remove(usize, u64),
}
impl Spec for AddressSpec {
    type Op = HiveOp;
    fn allows(&mut self, op: &HiveOp) -> bool {
        match op {
            HiveOp::Insert(_, value) => self.0.replace(*value).is_none(),
            HiveOp::Get(_, value) => self.0 == Some(*value),
            HiveOp::Remove(_, value) => self.0.take() == Some(*value),
        }
    }
}
fn place(op: &HiveOp) -> usize {
    match op {
        HiveOp::Insert(place, _) | HiveOp::Get(place, _) | HiveOp::Remove(place, _) => *place,
    }
}

/// A value stays at the address where it was inserted; until it is removed, no other value gets this address.
#[test]
fn hive_value_keeps_its_address_until_removed() {
    let run = |round, refills_late: bool| {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let hive =
            Mutex::new(Hive::<u64>::new_in("linear", &subsystem, uslab::Magazines::default()).unwrap());
        let keys: Mutex<Vec<(usize, Key<u64>)>> = Mutex::new(vec![]);
        let history = record(round, |recorder, dice| {
            for _ in 0..CALLS {
                let (value, operation) = (dice.below(u64::MAX >> 8), dice.below(3));
                let removed_key = if operation == 0 { None } else { keys.lock().pop() };
                let Some((index, key)) = removed_key else {
                    let insert = || {
                        let mut hive = hive.lock();
                        let key = hive.insert(value).unwrap();
                        (std::ptr::from_ref(hive.get(&key)).addr(), key)
                    };
                    let inserted = recorder.call(insert, |(index, _)| HiveOp::Insert(*index, value));
                    keys.lock().push(inserted);
                    continue;
                };
                if operation == 1 {
                    recorder.call(|| *hive.lock().get(&key), |value| HiveOp::Get(index, *value));
                    keys.lock().push((index, key));
                } else if refills_late {
                    // The wrong wrapper removes the value before the recorded call begins.
                    let value = hive.lock().remove(key);
                    std::thread::yield_now();
                    recorder.call(|| value, |value| HiveOp::Remove(index, *value));
                } else {
                    recorder.call(|| hive.lock().remove(key), |value| HiveOp::Remove(index, *value));
                }
            }
        });
        check_each_object_history(&AddressSpec(None), &history, place)
    };
    (0..ROUNDS).for_each(|round| explained(round, run(round, false)));
    assert!(is_some_history_rejected(|round| run(round, true).is_err()));
}
