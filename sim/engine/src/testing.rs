//! Helpers for tests of a [`Policy`], available with the feature `testing`. The test helpers run scripts with known
//! results, and compare the policy with a [`Shadow`] of its rules on random streams. Each step of a test also checks
//! that no object is lost or has two owners.
//!
//! All test helpers panic if an invariant does not hold.

use crate::design::{At, CallMode, Design};
use crate::model::{CostEvent, Model, ModelObject, Policy};
use crate::pages::Pages;
use crate::slabs::Object;
use crate::stream::{CacheInfo, Kind};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The number of CPUs of every test machine.
pub const CPUS: u32 = 3;

thread_local! {
    /// All tests share one page allocator; a model returns its pages when it is dropped.
    static PAGES: Pages = Pages::new(CPUS).expect("a machine without memory must start");
}

/// A model with one cache, and the cache's objects by number; the first allocated object has number 0.
#[derive(Debug)]
pub struct Script<'p, P: Policy> {
    model: Model<'p, P>,
    objects: Vec<Option<ModelObject<'p>>>,
    ns: u64,
}

/// Runs a script on a cache with objects of `size` bytes.
pub fn script<P: Policy>(size: u32, knobs: P::Knobs, play: impl FnOnce(&mut Script<'_, P>)) {
    PAGES.with(|pages| {
        let mut model = Model::<P>::new(pages, knobs).expect("the model must accept the knobs");
        let info = CacheInfo::new("node", Kind::Named, size);
        model.learn(&info).expect("the objects must fit in a slab");
        play(&mut Script { model, objects: vec![], ns: 0 });
    });
}

impl<P: Policy> Script<'_, P> {
    fn at(&self, cpu: u32) -> At {
        At::new(cpu, self.ns)
    }
    /// Allocates `n` objects, and gives them the next `n` numbers.
    pub fn alloc(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let object = self.model.alloc(self.at(cpu), 0, 0).expect("memory");
            self.objects.push(Some(object));
        }
        self.check();
    }
    /// Allocates `n` objects as [`alloc`](Self::alloc) does, but with non-blocking requests.
    pub fn alloc_without_blocking(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let at = At { manner: CallMode::NonBlocking, ..self.at(cpu) };
            let object = self.model.alloc(at, 0, 0).expect("memory");
            self.objects.push(Some(object));
        }
        self.check();
    }
    /// Frees the given objects after a grace period.
    pub fn free_after_grace(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("the object must be freed once");
            self.model.free(At { manner: CallMode::AfterGrace, ..self.at(cpu) }, 0, object);
        }
        self.check();
    }
    /// Frees these objects.
    pub fn free(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("the object must be freed once");
            self.model.free(self.at(cpu), 0, object);
        }
        self.check();
    }
    /// Advances the model's time by a number of seconds.
    pub fn wait(&mut self, seconds: u64) {
        self.ns += seconds * 1_000_000_000;
        self.model.pass(self.at(0));
        self.check();
    }
    /// Ends an interval of the policy, such as a reaping interval.
    pub fn tick(&mut self) {
        self.model.tick(self.at(0));
        self.check();
    }
    /// Shrinks the cache; returns the number of objects flushed from CPU layers, and the number of slabs freed.
    pub fn shrink(&mut self) -> (u64, u64) {
        let freed_slabs = self.model.shrink(self.at(0), None);
        self.check();
        freed_slabs
    }
    fn check(&self) {
        let objects_in_use = self.objects.iter().flatten().count() as u64;
        assert_eq!(self.model.check(objects_in_use, 0), Ok(()));
        assert_eq!(self.model.counts(0).used, objects_in_use);
    }
    /// Returns the number of slabs, and the number of objects that count as active.
    pub fn counts(&self) -> (u64, u64) {
        let counts = self.model.counts(0);
        (counts.slabs(), counts.active_objs())
    }
    /// Returns the number of objects that were allocated so far.
    pub fn numbers(&self) -> usize {
        self.objects.len()
    }
    /// Returns the number of objects in a slab.
    pub fn per_slab(&self) -> u64 {
        self.model.counts(0).per_slab
    }
    fn object(&self, number: usize) -> Object {
        match self.objects[number].as_ref().expect("the object must be in use") {
            ModelObject::Object(object) => *object,
            ModelObject::Large { .. } => unreachable!("the object has a slab"),
        }
    }
    /// Returns the location of an object.
    pub fn place(&self, number: usize) -> ObjectPlace {
        let Object { slab, index, .. } = self.object(number);
        (self.model.cache(0).expect("the cache must have slabs").0.born(slab), index)
    }
    /// Returns the number of slabs that were created before the slab of the object.
    pub fn slab_of(&self, number: usize) -> u64 {
        self.place(number).0
    }
    /// Returns the cost events that the policy reported for the last operation.
    pub fn cost_events(&self) -> &[CostEvent] {
        self.model.cost_events()
    }
}

/// The free objects of each slab, and the number of slabs created so far.
#[derive(Debug, Default)]
pub struct Free {
    /// The indices of the free objects of each slab, by the slab's number.
    pub slabs: BTreeMap<u64, BTreeSet<u16>>,
    /// The number of slabs created so far.
    pub made_slabs: u64,
    /// The number of objects in a slab.
    pub per_slab: u16,
}

impl Free {
    /// Creates the initial state, which has no slabs.
    pub fn new(per_slab: u16) -> Self {
        Self { per_slab, ..Self::default() }
    }
    /// Creates a slab of free objects. Returns the number of the new slab.
    pub fn make(&mut self) -> u64 {
        self.slabs.insert(self.made_slabs, (0..self.per_slab).collect());
        self.made_slabs += 1;
        self.made_slabs - 1
    }
    /// Returns the number of free objects in a slab.
    pub fn of(&self, slab: u64) -> usize {
        self.slabs[&slab].len()
    }
    /// Returns `true` if all objects of the slab are free.
    pub fn is_empty(&self, slab: u64) -> bool {
        self.of(slab) == usize::from(self.per_slab)
    }
    /// Takes the free object with the lowest index out of a slab.
    pub fn take(&mut self, slab: u64) -> ObjectPlace {
        (slab, self.slabs.get_mut(&slab).unwrap().pop_first().unwrap())
    }
    /// Returns an object to its slab.
    pub fn put(&mut self, (slab, index): ObjectPlace) {
        assert!(self.slabs.get_mut(&slab).unwrap().insert(index));
    }
    /// Returns the number of objects that are not free.
    pub fn active(&self) -> u64 {
        let free: usize = self.slabs.values().map(BTreeSet::len).sum();
        self.slabs.len() as u64 * u64::from(self.per_slab) - free as u64
    }
}

/// The location of an object: the number of slabs created before its slab, and its index in the slab.
pub type ObjectPlace = (u64, u16);

/// A literal implementation of a policy's rules; every object and every list is a separate value.
pub trait Shadow {
    /// Allocates an object.
    fn alloc(&mut self, cpu: usize) -> ObjectPlace;
    /// Frees an object.
    fn free(&mut self, cpu: usize, object: ObjectPlace);
    /// Does the periodic work: see [`Policy::tick`].
    fn tick(&mut self) {}
    /// Frees as much memory as possible: see [`Policy::shrink`].
    fn shrink(&mut self);
    /// Returns the number of slabs.
    fn slabs(&self) -> u64;
    /// Returns the number of objects that count as active.
    fn active(&self) -> u64;
}

/// A step of a random test sequence.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Allocates an object on the given CPU.
    Alloc(u32),
    /// Frees one of the live objects on the given CPU.
    Free(u32, usize),
    /// Waits until the next tick of the policy.
    Wait,
    /// Shrinks the cache.
    Shrink,
}

/// Returns a proptest strategy for random steps.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0..CPUS).prop_map(Step::Alloc),
        36 => (0..CPUS, any::<usize>()).prop_map(|(cpu, pick)| Step::Free(cpu, pick)),
        2 => Just(Step::Wait),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..400)
}

/// Runs a model and its shadow on the same random steps, and compares their slabs, objects and counts after every step.
/// No slab may exist after all objects have been freed and the cache has been shrunk.
///
/// # Errors
/// Fails if the model and its shadow differ.
pub fn agrees<P: Policy>(
    size: u32,
    knobs: P::Knobs,
    steps: Vec<Step>,
    shadow: impl FnOnce(u16) -> Box<dyn Shadow>,
) -> Result<(), TestCaseError> {
    let mut outcome = Ok(());
    script::<P>(size, knobs, |script| {
        outcome = check_script_against_shadow(script, steps, shadow(script.per_slab() as u16))
    });
    outcome
}

fn check_script_against_shadow<P: Policy>(
    script: &mut Script<'_, P>,
    steps: Vec<Step>,
    mut shadow: Box<dyn Shadow>,
) -> Result<(), TestCaseError> {
    let mut objects_in_use = Vec::new();
    for step in steps {
        match step {
            Step::Alloc(cpu) => {
                script.alloc(cpu, 1);
                let number = script.objects.len() - 1;
                prop_assert_eq!(script.place(number), shadow.alloc(cpu as usize), "the same object");
                objects_in_use.push(number);
            }
            Step::Free(cpu, pick) if !objects_in_use.is_empty() => {
                let number = objects_in_use.swap_remove(pick % objects_in_use.len());
                shadow.free(cpu as usize, script.place(number));
                script.free(cpu, [number]);
            }
            Step::Free(..) => {}
            Step::Wait => {
                let Some(period) = P::TICK else { continue };
                script.wait(period / 1_000_000_000);
                shadow.tick();
            }
            Step::Shrink => {
                shadow.shrink();
                script.shrink();
            }
        }
        prop_assert_eq!(script.counts(), (shadow.slabs(), shadow.active()));
    }
    script.free(0, objects_in_use);
    script.shrink();
    prop_assert_eq!(script.counts(), (0, 0), "no object may remain");
    Ok(())
}
