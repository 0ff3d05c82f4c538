//! Histories under shuttle: four threads on two CPUs use handles, hives or a mempool, and drain the CPUs. Each call
//! takes effect at one point between its start and its end. Some order of these points must explain the results of all
//! calls in a history.

use super::linearizable::{Recorder, Spec, check, check_each_object_history};
use super::world::{SMALL, assert_all_freed};
use crate::cache::core::Core;
use crate::debug::check::{SPACING, on_cpu};
use crate::handle::{Generations, Handle, HandleCache};
use crate::objects::hive::Key;
use crate::{Config, Gfp, Hive, KmemCache, Limit, Mempool, ObjectCache};
use core::fmt::Debug;
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use uslab_magazine::Operation;
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{Arc, Mutex, relax};
use uslab_magazine::threads::{migrate_between_cpus, run_in_threads};

const THREADS: usize = 4;
const STEPS: usize = 12;

fn core(pages: u32) -> std::sync::Arc<Core> {
    on_cpu(0);
    Core::new(Config { magazines: SMALL, ..Config::for_models(pages) }).unwrap()
}
/// Drains the CPUs, or runs another maintenance operation, at random.
fn run_random_maintenance(core: &Core) {
    match choose(4) {
        0 => core.drain(0..1),
        1 => core.drain(1..2),
        2 => _ = core.reap(),
        _ => _ = core.shrink(&Operation::new()),
    }
}
fn random_value() -> u64 {
    choose(1 << 20) as u64
}
fn assert_linearizable(outcome: Result<(), impl Debug>) {
    assert!(outcome.is_ok(), "no sequential order explains the results: {outcome:?}");
}

// ---- handles ----

#[derive(Clone, PartialEq, Eq, Hash)]
enum HandleLife {
    NotYet,
    Live(u64),
    Over,
}
type Name = Handle<u32, 28>;
#[derive(Clone, Copy, Debug)]
enum HandleOp {
    Alloc(Name, u64),
    IsValid(Name, bool),
    Get(Name, Option<u64>),
    Free(Name, bool),
}
impl HandleOp {
    fn handle(&self) -> u32 {
        match self {
            Self::Alloc(handle, _)
            | Self::IsValid(handle, _)
            | Self::Get(handle, _)
            | Self::Free(handle, _) => handle.to_bits(),
        }
    }
}
impl Spec for HandleLife {
    type Op = HandleOp;
    fn allows(&mut self, op: &HandleOp) -> bool {
        let value = if let Self::Live(value) = self { Some(*value) } else { None };
        match op {
            HandleOp::Alloc(_, value) => core::mem::replace(self, Self::Live(*value)) == Self::NotYet,
            HandleOp::IsValid(_, valid) => value.is_some() == *valid,
            HandleOp::Get(_, found) => value == *found,
            HandleOp::Free(_, freed) => {
                if value.is_some() {
                    *self = Self::Over;
                }
                value.is_some() == *freed
            }
        }
    }
}

/// Four threads use handles that any of the threads allocated, including stale handles.
pub(super) fn handles() {
    struct HistoryState {
        core: std::sync::Arc<Core>,
        cache: HandleCache<u64, u32, 28>,
        known: Mutex<Vec<Name>>,
        recorder: Recorder<HandleOp>,
    }
    fn run_thread(HistoryState { core, cache, known, recorder }: &HistoryState, _: usize) {
        for _ in 0..STEPS {
            migrate_between_cpus(2);
            let what = choose(10);
            if what == 0 {
                run_random_maintenance(core);
                continue;
            }
            let handle = {
                // The handles that were allocated last, which other threads also use.
                let handles = known.lock();
                let n = handles.len();
                (n > 0).then(|| handles[n - 1 - choose(n.min(3))])
            };
            match handle {
                Some(handle) if what < 5 => {
                    let get = || {
                        let held = cache.get(handle)?;
                        relax();
                        Some(*held)
                    };
                    recorder.call(get, |found| HandleOp::Get(handle, *found));
                }
                Some(handle) if what < 6 => {
                    recorder.call(|| cache.is_valid(handle), |valid| HandleOp::IsValid(handle, *valid));
                }
                Some(handle) if what < 8 => {
                    recorder.call(|| cache.free(handle), |freed| HandleOp::Free(handle, *freed));
                }
                _ => {
                    let value = random_value();
                    let alloc = || cache.alloc_with(|object| *object = value).ok();
                    let handle =
                        recorder.call(alloc, |handle| handle.map(|handle| HandleOp::Alloc(handle, value)));
                    known.lock().extend(handle);
                }
            }
        }
    }
    let core = core(1);
    let builder = ObjectCache::builder("named").ctor(|| 0_u64);
    let cache = builder.build_handles_on(&core, Generations::default()).unwrap();
    let seen = Arc::new(HistoryState {
        core: core.clone(),
        cache,
        known: Mutex::new(vec![]),
        recorder: Recorder::new(),
    });
    run_in_threads(&seen, THREADS, run_thread);
    assert_linearizable(check_each_object_history(
        &HandleLife::NotYet,
        &seen.recorder.history(),
        HandleOp::handle,
    ));
    drop(seen);
    assert_all_freed(core);
}

// ---- hives ----

/// Values in the hives by address, each with the hive that owns it.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Places(BTreeMap<usize, (usize, u64)>);
/// Operation on a hive; the first field is the hive's number.
#[derive(Clone, Debug)]
enum HiveOp {
    Insert(usize, usize, u64),
    Get(usize, usize, u64),
    Remove(usize, usize, u64),
    Walk(usize, Vec<(usize, u64)>),
}
impl Spec for Places {
    type Op = HiveOp;
    fn allows(&mut self, op: &HiveOp) -> bool {
        match op {
            HiveOp::Insert(hive, place, value) => self.0.insert(*place, (*hive, *value)).is_none(),
            HiveOp::Get(hive, place, value) => self.0.get(place) == Some(&(*hive, *value)),
            HiveOp::Remove(hive, place, value) => self.0.remove(place) == Some((*hive, *value)),
            HiveOp::Walk(hive, walked) => {
                let own = self.0.iter().filter(|(_, (of, _))| of == hive);
                own.map(|(place, (_, value))| (*place, *value)).eq(walked.iter().copied())
            }
        }
    }
}

/// Threads pass two hives to each other. Each hive has one owner at a time. A thread that finds no hive drains the
/// CPUs. Each hive reuses slots that the other hive freed.
pub(super) fn hives() {
    const HIVE_COUNT: usize = 2;
    /// Maximum number of values in the hives, which have eight slots together.
    const VALUES: usize = 3;
    struct HiveUnderTest {
        number: usize,
        hive: Hive<u64>,
        keys: Vec<(usize, Key<u64>)>,
    }
    struct HistoryState {
        core: std::sync::Arc<Core>,
        kits: Mutex<Vec<HiveUnderTest>>,
        recorder: Recorder<HiveOp>,
    }
    fn step(HiveUnderTest { number, hive, keys }: &mut HiveUnderTest, recorder: &Recorder<HiveOp>) {
        let number = *number;
        let what = choose(6);
        if what == 0 {
            let walk = || {
                let mut walked: Vec<_> =
                    hive.iter().map(|value| (core::ptr::from_ref(value).addr(), *value)).collect();
                walked.sort_unstable();
                walked
            };
            recorder.call(walk, |walked| HiveOp::Walk(number, walked.clone()));
        } else if what < 3 && keys.len() < VALUES {
            let value = random_value();
            let insert = || {
                let key = hive.insert(value).ok()?;
                Some((core::ptr::from_ref(hive.get(&key)).addr(), key))
            };
            let noted = |kept: &Option<(usize, _)>| {
                kept.as_ref().map(|(place, _)| HiveOp::Insert(number, *place, value))
            };
            keys.extend(recorder.call(insert, noted));
        } else if let Some((place, key)) = keys.pop() {
            if what == 3 {
                recorder.call(|| *hive.get(&key), |value| HiveOp::Get(number, place, *value));
                keys.push((place, key));
            } else {
                recorder.call(|| hive.remove(key), |value| HiveOp::Remove(number, place, *value));
            }
        }
    }
    fn run_thread(HistoryState { core, kits, recorder }: &HistoryState, _: usize) {
        for _ in 0..STEPS {
            migrate_between_cpus(2);
            let mut mine = {
                let mut kits = kits.lock();
                let n = kits.len();
                (n > 0).then(|| kits.swap_remove(choose(n)))
            };
            match &mut mine {
                Some(kit) => step(kit, recorder),
                None => run_random_maintenance(core),
            }
            kits.lock().extend(mine);
        }
    }
    let core = core(4);
    let kit = |number| HiveUnderTest {
        number,
        hive: Hive::on(Hive::<u64>::builder("model").build_on(&core).unwrap()),
        keys: vec![],
    };
    let kits = Mutex::new((0..HIVE_COUNT).map(kit).collect());
    let seen = Arc::new(HistoryState { core: core.clone(), kits, recorder: Recorder::new() });
    run_in_threads(&seen, THREADS, run_thread);
    assert_linearizable(check(&Places::default(), &seen.recorder.history()));
    drop(seen);
    assert_all_freed(core);
}

// ---- mempools ----

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct PoolState {
    out: BTreeSet<usize>,
}
#[derive(Clone, Copy, Debug)]
enum PoolOp {
    /// The address of the allocated object, or `None` if the allocation was refused.
    Alloc(Option<usize>),
    Free(usize),
}
impl Spec for PoolState {
    type Op = PoolOp;
    fn allows(&mut self, op: &PoolOp) -> bool {
        match op {
            // As long as users have fewer objects than a full reserve, the next allocation must
            // succeed.
            PoolOp::Alloc(None) => self.out.len() >= RESERVE,
            PoolOp::Alloc(Some(object)) => self.out.insert(*object),
            PoolOp::Free(object) => self.out.remove(object),
        }
    }
}
/// Number of objects in the reserve, out of the cache's four objects.
const RESERVE: usize = 2;

/// Four threads allocate from a mempool, and also directly from its cache.
pub(super) fn pools() {
    struct HistoryState {
        core: std::sync::Arc<Core>,
        pool: Mempool,
        recorder: Recorder<PoolOp>,
    }
    fn run_thread(HistoryState { core, pool, recorder }: &HistoryState, _: usize) {
        let (mut mine, mut others) = (vec![], vec![]);
        let free = |object: NonNull<u8>| {
            let at = object.addr().get();
            // SAFETY: the object was allocated from the pool, and is freed once.
            recorder.call(|| unsafe { pool.free(object) }, |()| PoolOp::Free(at));
        };
        for _ in 0..STEPS {
            migrate_between_cpus(2);
            match choose(10) {
                0..4 => {
                    let noted =
                        |object: &Option<NonNull<u8>>| PoolOp::Alloc(object.map(|at| at.addr().get()));
                    mine.extend(recorder.call(|| pool.alloc(Gfp::KERNEL).ok(), noted));
                }
                4..7 => mine.pop().into_iter().for_each(free),
                7 => others.extend(pool.cache().alloc_block(Gfp::KERNEL)),
                8 => drop(others.pop()),
                _ => run_random_maintenance(core),
            }
        }
        mine.into_iter().for_each(free);
    }
    let core = core(2);
    let cache = KmemCache::builder("model", SPACING).limit(Limit::Slabs(2)).build_on(&core).unwrap();
    let pool = Mempool::new(cache, RESERVE).unwrap();
    let seen = Arc::new(HistoryState { core: core.clone(), pool, recorder: Recorder::new() });
    run_in_threads(&seen, THREADS, run_thread);
    assert_linearizable(check(&PoolState::default(), &seen.recorder.history()));
    drop(seen);
    assert_all_freed(core);
}
