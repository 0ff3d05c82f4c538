//! For tests of a [`Policy`], with feature `testing`: scripts whose outcome is worked out by hand, and random streams beside a
//! [`Shadow`] of its rules. Each step checks the laws of conservation, too.
//!
//! All of it panics where a law does not hold.

use crate::design::{At, Design, Manner};
use crate::model::{Deed, Given, Model, Policy};
use crate::pages::Pages;
use crate::slabs::Object;
use crate::stream::{CacheInfo, Kind};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// CPUs of every machine here.
pub const CPUS: u32 = 3;

thread_local! {
    /// One for all: what a model leaves behind it gives back.
    static PAGES: Pages = Pages::new(CPUS).expect("a machine of addresses");
}

/// A model with one cache, and its objects by number: the first one that was allocated has 0.
#[derive(Debug)]
pub struct Script<'p, P: Policy> {
    model: Model<'p, P>,
    objects: Vec<Option<Given<'p>>>,
    ns: u64,
}

/// Runs a script on a cache of objects of `size` bytes.
pub fn script<P: Policy>(size: u32, knobs: P::Knobs, play: impl FnOnce(&mut Script<'_, P>)) {
    PAGES.with(|pages| {
        let mut model = Model::<P>::new(pages, knobs).expect("knobs that it accepts");
        let info = CacheInfo::new("node", Kind::Named, size);
        model.learn(&info).expect("objects that fit");
        play(&mut Script { model, objects: vec![], ns: 0 });
    });
}

impl<P: Policy> Script<'_, P> {
    fn at(&self, cpu: u32) -> At {
        At::new(cpu, self.ns)
    }
    /// Allocates `n` objects, whose numbers go on from the last one's.
    pub fn alloc(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let object = self.model.alloc(self.at(cpu), 0, 0).expect("memory");
            self.objects.push(Some(object));
        }
        self.check();
    }
    /// The same, by a caller that may not block.
    pub fn alloc_without_blocking(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let at = At { manner: Manner::NonBlocking, ..self.at(cpu) };
            let object = self.model.alloc(at, 0, 0).expect("memory");
            self.objects.push(Some(object));
        }
        self.check();
    }
    /// Frees these objects after a grace period.
    pub fn free_after_grace(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("freed once");
            self.model.free(At { manner: Manner::AfterGrace, ..self.at(cpu) }, 0, object);
        }
        self.check();
    }
    /// Frees these objects.
    pub fn free(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("freed once");
            self.model.free(self.at(cpu), 0, object);
        }
        self.check();
    }
    /// Time passes.
    pub fn wait(&mut self, seconds: u64) {
        self.ns += seconds * 1_000_000_000;
        self.model.pass(self.at(0));
        self.check();
    }
    /// An interval ends.
    pub fn tick(&mut self) {
        self.model.tick(self.at(0));
        self.check();
    }
    /// All is given back that can be: objects of CPU layers, and slabs.
    pub fn shrink(&mut self) -> (u64, u64) {
        let gone = self.model.shrink(self.at(0), None);
        self.check();
        gone
    }
    fn check(&self) {
        let out = self.objects.iter().flatten().count() as u64;
        assert_eq!(self.model.check(out, 0), Ok(()));
        assert_eq!(self.model.counts(0).used, out);
    }
    /// Slabs, and objects that count as active.
    pub fn counts(&self) -> (u64, u64) {
        let counts = self.model.counts(0);
        (counts.slabs(), counts.active_objs())
    }
    /// How many objects were allocated.
    pub fn numbers(&self) -> usize {
        self.objects.len()
    }
    /// Objects of a slab.
    pub fn per_slab(&self) -> u64 {
        self.model.counts(0).per_slab
    }
    fn object(&self, number: usize) -> Object {
        match self.objects[number].as_ref().expect("in use") {
            Given::Object(object) => *object,
            Given::Large { .. } => unreachable!("it has a slab"),
        }
    }
    /// Where an object lies.
    pub fn place(&self, number: usize) -> Place {
        let Object { slab, index, .. } = self.object(number);
        (self.model.cache(0).expect("a cache with slabs").0.born(slab), index)
    }
    /// The slab that it lies in, by how many were made before.
    pub fn slab_of(&self, number: usize) -> u64 {
        self.place(number).0
    }
    /// What the last operation did.
    pub fn deeds(&self) -> &[Deed] {
        self.model.deeds()
    }
}

/// Free objects of each slab that there is, and how many were made.
#[derive(Debug, Default)]
pub struct Free {
    /// By number of the slab: which of its objects are free.
    pub slabs: BTreeMap<u64, BTreeSet<u16>>,
    /// Slabs made so far.
    pub made: u64,
    /// Objects of a slab.
    pub per_slab: u16,
}

impl Free {
    /// No slab, as yet.
    pub fn new(per_slab: u16) -> Self {
        Self { per_slab, ..Self::default() }
    }
    /// One more slab, whose objects are free.
    pub fn make(&mut self) -> u64 {
        self.slabs.insert(self.made, (0..self.per_slab).collect());
        self.made += 1;
        self.made - 1
    }
    /// Free objects of a slab.
    pub fn of(&self, slab: u64) -> usize {
        self.slabs[&slab].len()
    }
    /// Whether all of its objects are free.
    pub fn is_empty(&self, slab: u64) -> bool {
        self.of(slab) == usize::from(self.per_slab)
    }
    /// Its lowest free object.
    pub fn take(&mut self, slab: u64) -> Place {
        (slab, self.slabs.get_mut(&slab).unwrap().pop_first().unwrap())
    }
    /// Takes an object back.
    pub fn put(&mut self, (slab, index): Place) {
        assert!(self.slabs.get_mut(&slab).unwrap().insert(index));
    }
    /// Objects that are not free.
    pub fn active(&self) -> u64 {
        let free: usize = self.slabs.values().map(BTreeSet::len).sum();
        self.slabs.len() as u64 * u64::from(self.per_slab) - free as u64
    }
}

/// An object: its slab, by how many were made before, and which one of it.
pub type Place = (u64, u16);

/// The rules of a policy as they read, with every object and every list by itself.
pub trait Shadow {
    /// An object.
    fn alloc(&mut self, cpu: usize) -> Place;
    /// Takes it back.
    fn free(&mut self, cpu: usize, object: Place);
    /// See [`Policy::tick`].
    fn tick(&mut self) {}
    /// See [`Policy::shrink`].
    fn shrink(&mut self);
    /// Slabs that there are.
    fn slabs(&self) -> u64;
    /// Objects that count as active.
    fn active(&self) -> u64;
}

/// A step of a random stream.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An allocation on a CPU.
    Alloc(u32),
    /// A free on a CPU, of one of the objects that are out.
    Free(u32, usize),
    /// As long as from one tick to the next.
    Wait,
    /// All is given back.
    Shrink,
}

/// Random streams.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0..CPUS).prop_map(Step::Alloc),
        36 => (0..CPUS, any::<usize>()).prop_map(|(cpu, pick)| Step::Free(cpu, pick)),
        2 => Just(Step::Wait),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..400)
}

/// A model and its shadow on one stream: the same slabs, the same objects, the same numbers after every step; and when all
/// objects are free and all is shrunk, no slab is left.
///
/// # Errors
/// They do not agree.
pub fn agrees<P: Policy>(
    size: u32,
    knobs: P::Knobs,
    steps: Vec<Step>,
    shadow: impl FnOnce(u16) -> Box<dyn Shadow>,
) -> Result<(), TestCaseError> {
    let mut outcome = Ok(());
    script::<P>(size, knobs, |script| outcome = along(script, steps, shadow(script.per_slab() as u16)));
    outcome
}

fn along<P: Policy>(
    script: &mut Script<'_, P>,
    steps: Vec<Step>,
    mut shadow: Box<dyn Shadow>,
) -> Result<(), TestCaseError> {
    let mut out = Vec::new();
    for step in steps {
        match step {
            Step::Alloc(cpu) => {
                script.alloc(cpu, 1);
                let number = script.objects.len() - 1;
                prop_assert_eq!(script.place(number), shadow.alloc(cpu as usize), "the same object");
                out.push(number);
            }
            Step::Free(cpu, pick) if !out.is_empty() => {
                let number = out.swap_remove(pick % out.len());
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
    script.free(0, out);
    script.shrink();
    prop_assert_eq!(script.counts(), (0, 0), "nothing is left");
    Ok(())
}
