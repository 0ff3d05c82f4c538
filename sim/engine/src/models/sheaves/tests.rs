use super::*;
use crate::models::slub;
use crate::testing::{CPUS, Place, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;

/// Eight objects of 4,096 bytes lie in a slab.
const SIZE: u32 = 4096;

fn knobs(sheaf_capacity: Option<usize>) -> Knobs {
    Knobs { sheaf_capacity, cpu_partial: Some(0), min_partial: Some(0) }
}
/// Sheaves of two.
fn play(play: impl FnOnce(&mut Script<'_, Sheaves>)) {
    script(SIZE, knobs(Some(2)), |script: &mut Script<'_, Sheaves>| {
        assert_eq!(script.per_slab(), 8);
        play(script);
    });
}

#[test]
fn a_miss_fills_a_sheaf() {
    play(|script| {
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.deeds()),
            ((1, 8), &[Deed::Miss, Deed::Made, Deed::Refill(2)][..])
        );
        script.alloc(0, 1);
        assert_eq!(script.deeds(), []);
        script.alloc(0, 1);
        assert_eq!(script.deeds(), [Deed::Miss, Deed::Refill(2)]);
    });
}

#[test]
fn two_sheaves_change_places() {
    play(|script| {
        script.alloc(0, 4);
        let place = script.place(1);
        script.free(0, [0, 1]);
        assert_eq!(script.deeds(), []);
        script.free(0, [2]);
        assert_eq!(script.deeds(), [Deed::Swap]);
        script.alloc(0, 1);
        assert_eq!(script.deeds(), []);
        script.alloc(0, 1);
        assert_eq!((script.place(5), script.deeds()), (place, &[Deed::Swap][..]));
    });
}

#[test]
fn a_full_sheaf_goes_from_one_cpu_to_another() {
    play(|script| {
        script.alloc(0, 8);
        let place = script.place(3);
        script.free(0, 0..4);
        script.free(0, [4]);
        assert_eq!(script.deeds(), [Deed::Exchange]);
        script.alloc(1, 1);
        assert_eq!((script.place(8), script.deeds()), (place, &[Deed::Exchange][..]));
    });
}

#[test]
fn a_barn_takes_ten_full_sheaves() {
    play(|script| {
        script.alloc(0, 40);
        script.free(0, 0..24);
        assert_eq!(script.counts(), (5, 40), "two sheaves of the CPU, ten of the barn");
        script.free(0, [24]);
        // The spare sheaf has the objects that were freed first. With them their slab is partial, and the CPU's.
        assert_eq!(script.counts(), (5, 40));
        assert!(script.deeds().contains(&Deed::Flush(2)), "{:?}", script.deeds());
    });
}

#[test]
fn most_caches_have_no_sheaves() {
    script(SIZE, knobs(None), |script: &mut Script<'_, Sheaves>| {
        script.alloc(0, 1);
        assert_eq!(script.deeds(), [Deed::Made]);
    });
    let capacity = |name: &str| {
        let info = CacheInfo { name: name.to_owned(), kind: crate::stream::Kind::Named, size: 256, from: 0 };
        let geometry = Sheaves::geometry(256, CPUS, &Knobs::default()).unwrap();
        Sheaves::new(&info, Cpus::simulated(CPUS, 1).unwrap(), &geometry, &Knobs::default()).capacity
    };
    assert_eq!(["maple_node", "vm_area_struct", "dentry"].map(capacity), [32, 32, 0]);
}

#[test]
fn a_shrink_empties_sheaves_and_barn() {
    play(|script| {
        script.alloc(0, 8);
        script.free(0, 0..6);
        assert_eq!((script.shrink(), script.counts()), ((6, 0), (1, 2)));
    });
}

type Sheaf = Vec<Place>;

/// The rules as they read, over those of SLUB.
struct Rules {
    capacity: usize,
    /// Main and spare of each CPU; both are there from the first free or refill on.
    cpus: Vec<(Sheaf, Option<Sheaf>)>,
    barn: Vec<Sheaf>,
    slub: slub::tests::Rules,
}

impl Shadow for Rules {
    fn alloc(&mut self, cpu: usize) -> Place {
        let (main, spare) = &mut self.cpus[cpu];
        if main.is_empty() {
            if spare.as_ref().is_some_and(|spare| !spare.is_empty()) {
                *main = spare.replace(vec![]).unwrap();
            } else if let Some(full) = self.barn.pop() {
                *main = full;
            } else {
                *spare = Some(vec![]);
                *main = (0..self.capacity).map(|_| self.slub.alloc(cpu)).collect();
            }
        }
        main.pop().unwrap()
    }
    fn free(&mut self, cpu: usize, object: Place) {
        let (main, spare) = &mut self.cpus[cpu];
        if main.len() == self.capacity {
            let full = std::mem::take(main);
            match spare {
                Some(spare) if spare.is_empty() => *spare = full,
                None => *spare = Some(full),
                Some(_) if self.barn.len() < 10 => self.barn.push(full),
                Some(spare) => {
                    let flushed = std::mem::replace(spare, full);
                    flushed.into_iter().for_each(|object| self.slub.free(cpu, object));
                }
            }
        }
        self.cpus[cpu].0.push(object);
    }
    fn shrink(&mut self) {
        let cpus = self.cpus.iter_mut().map(std::mem::take);
        let sheaves: Vec<_> = cpus.flat_map(|(main, spare)| [main, spare.unwrap_or_default()]).collect();
        let barn = std::mem::take(&mut self.barn);
        sheaves.into_iter().chain(barn).flatten().for_each(|object| self.slub.free(0, object));
        self.slub.shrink();
    }
    fn slabs(&self) -> u64 {
        self.slub.slabs()
    }
    fn active(&self) -> u64 {
        self.slub.active()
    }
}

proptest! {
    #[test]
    fn the_model_does_what_its_rules_say(
        steps in steps(),
        capacity in 1..6_usize,
        cpu_partial in 0..20_u32,
        min_partial in 0..4_usize,
    ) {
        let knobs = Knobs { sheaf_capacity: Some(capacity), cpu_partial: Some(cpu_partial), min_partial: Some(min_partial) };
        agrees::<Sheaves>(SIZE, knobs, steps, |per_slab| {
            Box::new(Rules {
                capacity,
                cpus: vec![<_>::default(); CPUS as usize],
                barn: vec![],
                slub: slub::tests::Rules::new(per_slab, cpu_partial, min_partial),
            })
        })?;
    }
}
