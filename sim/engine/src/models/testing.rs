//! Scripts and random streams for models, and shadows beside them.

use crate::design::{At, Design};
use crate::model::{Deed, Given, Model, Policy};
use crate::pages::Pages;
use crate::slabs::Object;
use crate::stream::{CacheInfo, Kind};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// CPUs of every machine here.
pub(super) const CPUS: u32 = 3;

thread_local! {
    /// One for all: what a model leaves behind it gives back.
    static PAGES: Pages = Pages::new(CPUS).expect("a machine of addresses");
}

/// A model with one cache, and its objects by number.
pub(super) struct Script<'p, P: Policy> {
    model: Model<'p, P>,
    objects: Vec<Option<Given<'p>>>,
    ns: u64,
}

/// Runs a script on a cache of objects of `size` bytes.
pub(super) fn script<P: Policy>(size: u32, knobs: P::Knobs, play: impl FnOnce(&mut Script<'_, P>)) {
    PAGES.with(|pages| {
        let mut model = Model::<P>::new(pages, knobs).expect("knobs that it accepts");
        let info = CacheInfo { name: "node".to_owned(), kind: Kind::Named, size, from: 0 };
        model.learn(&info).expect("objects that fit");
        play(&mut Script { model, objects: vec![], ns: 0 });
    });
}

impl<P: Policy> Script<'_, P> {
    fn at(&self, cpu: u32) -> At {
        At { cpu, ns: self.ns }
    }
    /// Allocates `n` objects, whose numbers go on from the last one's.
    pub(super) fn alloc(&mut self, cpu: u32, n: usize) {
        for _ in 0..n {
            let object = self.model.alloc(self.at(cpu), 0, 0).expect("memory");
            self.objects.push(Some(object));
        }
        self.check();
    }
    pub(super) fn free(&mut self, cpu: u32, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let object = self.objects[number].take().expect("freed once");
            self.model.free(self.at(cpu), 0, object);
        }
        self.check();
    }
    pub(super) fn wait(&mut self, seconds: u64) {
        self.ns += seconds * 1_000_000_000;
        self.model.pass(self.at(0));
        self.check();
    }
    /// An interval ends.
    pub(super) fn tick(&mut self) {
        self.model.tick(self.at(0));
        self.check();
    }
    pub(super) fn shrink(&mut self) -> (u64, u64) {
        let gone = self.model.shrink(self.at(0));
        self.check();
        gone
    }
    fn check(&self) {
        let out = self.objects.iter().flatten().count() as u64;
        assert_eq!(self.model.check(out, 0), Ok(()));
        assert_eq!(self.model.counts(0).used, out);
    }
    /// Slabs, and objects that count as active.
    pub(super) fn counts(&self) -> (u64, u64) {
        let counts = self.model.counts(0);
        (counts.slabs(), counts.active_objs)
    }
    /// How many objects were allocated.
    pub(super) fn numbers(&self) -> usize {
        self.objects.len()
    }
    pub(super) fn per_slab(&self) -> u64 {
        self.model.counts(0).per_slab
    }
    fn object(&self, number: usize) -> Object {
        match self.objects[number].as_ref().expect("in use") {
            Given::Object(object) => *object,
            Given::Large { .. } => unreachable!("it has a slab"),
        }
    }
    pub(super) fn place(&self, number: usize) -> Place {
        let Object { slab, index, .. } = self.object(number);
        (self.model.cache(0).expect("a cache with slabs").0.born(slab), index)
    }
    pub(super) fn slab_of(&self, number: usize) -> u64 {
        self.place(number).0
    }
    /// What the last operation did.
    pub(super) fn deeds(&self) -> &[Deed] {
        self.model.deeds()
    }
}

/// Free objects of each slab that there is, and how many were made.
#[derive(Default)]
pub(super) struct Free {
    pub(super) slabs: BTreeMap<u64, BTreeSet<u16>>,
    pub(super) made: u64,
    pub(super) per_slab: u16,
}

impl Free {
    pub(super) fn new(per_slab: u16) -> Self {
        Self { per_slab, ..Self::default() }
    }
    pub(super) fn make(&mut self) -> u64 {
        self.slabs.insert(self.made, (0..self.per_slab).collect());
        self.made += 1;
        self.made - 1
    }
    pub(super) fn of(&self, slab: u64) -> usize {
        self.slabs[&slab].len()
    }
    pub(super) fn is_empty(&self, slab: u64) -> bool {
        self.of(slab) == usize::from(self.per_slab)
    }
    pub(super) fn take(&mut self, slab: u64) -> Place {
        (slab, self.slabs.get_mut(&slab).unwrap().pop_first().unwrap())
    }
    pub(super) fn put(&mut self, (slab, index): Place) {
        assert!(self.slabs.get_mut(&slab).unwrap().insert(index));
    }
    /// Objects that are not free.
    pub(super) fn active(&self) -> u64 {
        let free: usize = self.slabs.values().map(BTreeSet::len).sum();
        self.slabs.len() as u64 * u64::from(self.per_slab) - free as u64
    }
}

/// An object: its slab, by how many were made before, and which one of it.
pub(super) type Place = (u64, u16);

/// The rules of a policy as they read, with every object and every list by itself.
pub(super) trait Shadow {
    fn alloc(&mut self, cpu: usize) -> Place;
    fn free(&mut self, cpu: usize, object: Place);
    fn tick(&mut self) {}
    fn shrink(&mut self);
    fn slabs(&self) -> u64;
    fn active(&self) -> u64;
}

/// A step of a random stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Alloc(u32),
    Free(u32, usize),
    Wait,
    Shrink,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
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
pub(super) fn agrees<P: Policy>(
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
