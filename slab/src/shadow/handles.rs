//! Compares handle tables, slot maps and handle caches with a plain list of their live values. A live handle must find
//! its own value, a stale handle must find nothing, and each slot must use its generations one after another.

use super::{SMALL, pages};
use crate::handle::{
    Generations, Handle, HandleCache, HandleError, HandleTable, Held, PackedArray, SlotMap, WrapPolicy,
};
use crate::{AllocError, Config, ObjectCache, Subsystem};
use arbitrary::{Arbitrary, Unstructured};
use core::convert::Infallible;
use core::fmt;
use std::collections::HashMap;
use uslab_magazine::on_cpu;
use uslab_magazine::sync::catch_panic;

const CPUS: u32 = 2;

/// The steps of which a test case consists. A number outside its range is reduced to that range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Step {
    Alloc {
        cpu: u8,
    },
    /// Allocates with a function that panics, which must leave no value stored.
    Panic,
    Free {
        cpu: u8,
        pick: u16,
    },
    /// Uses a handle that was freed, or that never existed. The stale handle must find nothing and free nothing.
    Stale {
        pick: u16,
    },
    Forged {
        index: u32,
        generation: u32,
    },
    Hold {
        pick: u16,
    },
    LetGo {
        cpu: u8,
        pick: u16,
    },
    /// Frees every value that is a multiple of `divisor`.
    Retain {
        divisor: u8,
    },
    Shrink,
}

trait Names<const G: u32> {
    /// Type of the error if no object is available.
    type Object: fmt::Debug + fmt::Display;
    fn alloc_with(&mut self, make: impl FnOnce() -> u64)
    -> Result<Handle<u32, G>, HandleError<Self::Object>>;
    fn free(&mut self, handle: Handle<u32, G>) -> Option<u64>;
    fn get(&self, handle: Handle<u32, G>) -> Option<u64>;
    fn is_valid(&self, handle: Handle<u32, G>) -> bool;
    fn retired(&self) -> u64;
}

macro_rules! names {
    ($of:ty) => {
        impl<const G: u32> Names<G> for $of {
            type Object = Infallible;
            fn alloc_with(&mut self, make: impl FnOnce() -> u64) -> Result<Handle<u32, G>, HandleError> {
                self.alloc_with(|_| make())
            }
            fn free(&mut self, handle: Handle<u32, G>) -> Option<u64> {
                self.free(handle)
            }
            fn get(&self, handle: Handle<u32, G>) -> Option<u64> {
                self.get(handle).copied()
            }
            fn is_valid(&self, handle: Handle<u32, G>) -> bool {
                self.is_valid(handle)
            }
            fn retired(&self) -> u64 {
                self.retired()
            }
        }
    };
}
names!(HandleTable<u64, u32, G>);
names!(SlotMap<u64, u32, G>);

type Cache<const G: u32> = HandleCache<u64, u32, G>;

impl<const G: u32> Names<G> for &Cache<G> {
    type Object = AllocError;
    fn alloc_with(&mut self, make: impl FnOnce() -> u64) -> Result<Handle<u32, G>, HandleError<AllocError>> {
        Cache::alloc_with(self, |value| *value = make())
    }
    fn free(&mut self, handle: Handle<u32, G>) -> Option<u64> {
        let value = Cache::get(self, handle).map(|held| *held);
        Cache::free(self, handle).then_some(value).flatten()
    }
    fn get(&self, handle: Handle<u32, G>) -> Option<u64> {
        Cache::get(self, handle).map(|held| *held)
    }
    fn is_valid(&self, handle: Handle<u32, G>) -> bool {
        Cache::is_valid(self, handle)
    }
    fn retired(&self) -> u64 {
        Cache::retired(self)
    }
}

/// Shadow model of a container: the live values, the stale handles, and the last generation of each slot.
struct Shadow<N, const G: u32> {
    names: N,
    generations: Generations,
    /// True if the container reports exactly when it is full. A handle cache is not exact, because it need not find an
    /// index that another CPU keeps.
    exact: bool,
    live: Vec<(Handle<u32, G>, u64)>,
    stale: Vec<Handle<u32, G>>,
    generations_of_index: HashMap<u32, u32>,
}

impl<N: Names<G>, const G: u32> Shadow<N, G> {
    fn new(names: N, generations: Generations, exact: bool) -> Self {
        Self { names, generations, exact, live: vec![], stale: vec![], generations_of_index: HashMap::new() }
    }

    fn expected(&self, index: u32) -> Option<u32> {
        let last = Handle::<u32, G>::LAST_GENERATION;
        match (self.generations_of_index.get(&index), self.generations.policy) {
            (None, _) => Some(self.generations.first.max(1)),
            (Some(life), _) if *life < last => Some(life + 1),
            (_, WrapPolicy::Wrap) => Some(1),
            (_, WrapPolicy::Retire) => None,
        }
    }

    fn alloc(&mut self, value: u64) -> Option<Handle<u32, G>> {
        let slots = Handle::<u32, G>::SLOTS;
        let used = self.live.len() as u64 + self.names.retired();
        match self.names.alloc_with(|| value) {
            Ok(handle) => {
                assert!(u64::from(handle.index()) < slots && used < slots);
                assert!(
                    self.live.iter().all(|(other, _)| other.index() != handle.index()),
                    "{handle:?} twice"
                );
                assert_eq!(Some(handle.generation()), self.expected(handle.index()), "{handle:?}");
                self.generations_of_index.insert(handle.index(), handle.generation());
                // The generation wrapped, so a stale handle became live again.
                self.stale.retain(|old| *old != handle);
                self.live.push((handle, value));
                Some(handle)
            }
            Err(HandleError::Full { slots: told, .. }) => {
                assert!(told == slots && (used == slots || !self.exact), "{used} of {slots} are in use");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn panic(&mut self) {
        let make = || -> u64 { std::panic::resume_unwind(Box::new("intended panic")) };
        let outcome = catch_panic(|| self.names.alloc_with(make));
        assert!(outcome.is_err() || matches!(outcome, Ok(Err(HandleError::Full { .. }))), "{outcome:?}");
    }

    fn free(&mut self, pick: u16) -> Option<Handle<u32, G>> {
        let pick = usize::from(pick).checked_rem(self.live.len())?;
        let (handle, value) = self.live.swap_remove(pick);
        assert_eq!(self.names.free(handle), Some(value), "{handle:?}");
        self.stale.push(handle);
        self.assert_handle_is_stale(handle);
        Some(handle)
    }

    fn assert_handle_is_stale(&mut self, handle: Handle<u32, G>) {
        let found = (self.names.is_valid(handle), self.names.get(handle), self.names.free(handle));
        assert_eq!(found, (false, None, None), "{handle:?}");
    }

    fn try_stale_handle(&mut self, pick: u16) {
        if let Some(pick) = usize::from(pick).checked_rem(self.stale.len()) {
            self.assert_handle_is_stale(self.stale[pick]);
        }
    }
    fn try_forged_handles(&mut self, index: u32, generation: u32) {
        // The reduced index refers to an existing slot.
        for index in [index, index % 16] {
            for generation in [generation, generation % 8] {
                let forged = Handle::new(index, generation);
                if let Some(forged) = forged.filter(|forged| self.live.iter().all(|(live, _)| live != forged))
                {
                    self.assert_handle_is_stale(forged);
                }
            }
        }
    }

    fn check(&self) {
        for (handle, value) in &self.live {
            assert_eq!(
                (self.names.is_valid(*handle), self.names.get(*handle)),
                (true, Some(*value)),
                "{handle:?}"
            );
        }
        let valid = self.stale.iter().find(|handle| self.names.is_valid(**handle));
        assert_eq!(valid, None, "a handle is either stale or valid");
        if self.exact {
            let near_last_generation =
                self.generations_of_index.values().filter(|life| **life == Handle::<u32, G>::LAST_GENERATION);
            let in_use = |(handle, _): &&(Handle<u32, G>, u64)| {
                handle.generation() == Handle::<u32, G>::LAST_GENERATION
            };
            let near_last_generation = near_last_generation.count() - self.live.iter().filter(in_use).count();
            let retired =
                if self.generations.policy == WrapPolicy::Retire { near_last_generation } else { 0 };
            assert_eq!(self.names.retired(), retired as u64);
        }
    }

    /// Checks that `iter` yields exactly the live handles and their values.
    fn assert_only_live_values<'a>(&self, iter: impl Iterator<Item = (Handle<u32, G>, &'a u64)>) {
        let mut listed: Vec<_> = iter.map(|(handle, value)| (handle, *value)).collect();
        let mut live = self.live.clone();
        listed.sort_unstable();
        live.sort_unstable();
        assert_eq!(listed, live);
    }
}

/// Runs all steps on each kind of container, and checks the results.
///
/// # Panics
/// Panics if a container and its shadow model disagree.
pub(crate) fn run<const G: u32>(generations: Generations, steps: &[Step]) {
    let config = Config { check_frees: true, magazines: SMALL, ..Config::new(pages(CPUS, 1, 1 << 20)) };
    let subsystem = Subsystem::new(config).unwrap();
    let builder = ObjectCache::builder("named").ctor(|| 0_u64);
    let cache: Cache<G> = builder.build_handles_in(&subsystem, generations).unwrap();
    let set_cpu = |cpu: u8| on_cpu(u32::from(cpu) % CPUS);
    set_cpu(0);
    let mut table = Shadow::new(HandleTable::<u64, u32, G>::with(generations), generations, true);
    let mut map = Shadow::new(SlotMap::<u64, u32, G>::with(generations), generations, true);
    let mut cached = Shadow::new(&cache, generations, false);
    let mut packed = PackedArray::new();
    let mut held: Vec<(Held<'_, u64, u32, G>, u64)> = vec![];
    for (value, step) in (0..).zip(steps) {
        match *step {
            Step::Alloc { cpu } => {
                set_cpu(cpu);
                table.alloc(value);
                if map.alloc(value).is_some() {
                    packed.alloc(value).unwrap();
                }
                cached.alloc(value);
            }
            Step::Panic => {
                table.panic();
                map.panic();
                cached.panic();
            }
            Step::Free { cpu, pick } => {
                set_cpu(cpu);
                table.free(pick);
                if let Some(freed) = usize::from(pick).checked_rem(map.live.len()) {
                    // The packed array ran the same steps, so it has the value at the same place as the map.
                    let (handle, value) = map.live[freed];
                    assert_eq!(map.names.place(handle).and_then(|place| packed.free(place)), Some(value));
                }
                map.free(pick);
                cached.free(pick);
            }
            Step::Stale { pick } => {
                table.try_stale_handle(pick);
                map.try_stale_handle(pick);
                cached.try_stale_handle(pick);
            }
            Step::Forged { index, generation } => {
                table.try_forged_handles(index, generation);
                map.try_forged_handles(index, generation);
                cached.try_forged_handles(index, generation);
            }
            Step::Hold { pick } => {
                if let Some(pick) = usize::from(pick).checked_rem(cached.live.len()) {
                    let (handle, value) = cached.live[pick];
                    held.push((cache.get(handle).unwrap(), value));
                }
            }
            Step::LetGo { cpu, pick } => {
                set_cpu(cpu);
                if let Some(pick) = usize::from(pick).checked_rem(held.len()) {
                    let (object, value) = held.swap_remove(pick);
                    assert_eq!(*object, value, "a held object keeps its handle");
                }
            }
            Step::Retain { divisor } => {
                let is_removed = |value: u64| value.is_multiple_of(u64::from(divisor));
                map.names.retain(|handle, value| {
                    let position = map.live.iter().position(|live| *live == (handle, *value)).unwrap();
                    if is_removed(*value) {
                        map.live.swap_remove(position);
                        map.stale.push(handle);
                    }
                    !is_removed(*value)
                });
                packed = PackedArray::new();
                map.names.as_slice().iter().for_each(|value| _ = packed.alloc(*value).unwrap());
            }
            Step::Shrink => _ = cache.shrink(),
        }
        table.check();
        table.assert_only_live_values(table.names.iter());
        map.check();
        map.assert_only_live_values(map.names.iter());
        assert_eq!((map.names.as_slice(), map.names.len()), (packed.as_slice(), map.live.len()));
        cached.check();
        assert!(held.iter().all(|(object, value)| **object == *value), "a held object keeps its handle");
    }
    // Values that are live, or that were freed while a thread holds them.
    let mut remaining_values: Vec<u64> = cached.live.iter().map(|(_, value)| *value).collect();
    remaining_values.extend(held.iter().map(|(_, value)| *value));
    remaining_values.sort_unstable();
    remaining_values.dedup();
    assert_eq!(subsystem.check().unwrap().used, remaining_values.len() as u64);
    drop((held, cached));
    drop(cache);
    let census = subsystem.check().unwrap();
    assert_eq!((census.objects, census.slabs), (0, 0));
}

#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) struct Setup {
    /// True for few slots with many lives each, false for many slots with few lives each.
    pub(crate) few_slots: bool,
    pub(crate) wrap: bool,
    /// True if the test starts near the last generation.
    pub(crate) near_last_generation: bool,
}

/// Runs all steps as [`run`] does, with the handle format and first generation that `setup` selects.
pub(crate) fn run_with(setup: Setup, steps: &[Step]) {
    let policy = if setup.wrap { WrapPolicy::Wrap } else { WrapPolicy::Retire };
    let generations_from =
        |last: u32| Generations { first: if setup.near_last_generation { last - 1 } else { 1 }, policy };
    match setup.few_slots {
        true => run::<29>(generations_from(Handle::<u32, 29>::LAST_GENERATION), steps),
        false => run::<2>(generations_from(Handle::<u32, 2>::LAST_GENERATION), steps),
    }
}

/// Runs the allocations and frees of handles that `data` encodes.
///
/// # Panics
/// Panics if a container and its shadow model disagree.
pub fn fuzz(data: &[u8]) {
    let mut data = Unstructured::new(data);
    if let (Ok(setup), Ok(steps)) = (Setup::arbitrary(&mut data), Vec::arbitrary_take_rest(data)) {
        run_with(setup, &steps);
    }
}
