//! Tests of the models: scripts whose results were worked out by hand, and comparisons with simple implementations that
//! track each object.

use super::*;
use crate::testing::{CPUS, Free, ObjectPlace, Script, Shadow, agrees, script, steps};
use proptest::prelude::*;

/// The object size in bytes, at which a slab holds eight objects.
const SIZE: u32 = 4096;

fn knobs(sheaf_capacity: usize, min_partial: usize) -> Knobs {
    let (cpu_partial, min_partial) = (Some(0), Some(min_partial));
    Knobs {
        sheaf_capacity: Some(Capacity::Objects(sheaf_capacity as u64)),
        cpu_partial,
        min_partial,
        ..Knobs::default()
    }
}
/// Runs a script on a cache with sheaves of two objects, under the rules of Linux 7.x.
fn play(min_partial: usize, play: impl FnOnce(&mut Script<'_, Sheaves<Node>>)) {
    script(SIZE, knobs(2, min_partial), |script: &mut Script<'_, Sheaves<Node>>| {
        assert_eq!(script.per_slab(), 8);
        play(script);
    });
}

#[test]
fn sheaf_miss_puts_the_new_slab_on_the_node_list() {
    play(5, |script| {
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((1, 2), &[CostEvent::Miss, CostEvent::Made, CostEvent::Relist][..])
        );
        script.alloc(0, 1);
        assert_eq!(script.cost_events(), []);
        script.alloc(0, 1);
        assert_eq!(
            script.cost_events(),
            [CostEvent::Miss, CostEvent::Refill(2), CostEvent::Remote, CostEvent::Relist]
        );
        assert_eq!(script.counts(), (1, 4));
    });
}

#[test]
fn main_and_spare_sheaf_are_swapped() {
    play(0, |script| {
        script.alloc(0, 4);
        let place = script.place(1);
        script.free(0, [0, 1]);
        assert_eq!(script.cost_events(), []);
        script.free(0, [2]);
        assert_eq!(script.cost_events(), [CostEvent::Swap]);
        script.alloc(0, 1);
        assert_eq!(script.cost_events(), []);
        script.alloc(0, 1);
        assert_eq!((script.place(5), script.cost_events()), (place, &[CostEvent::Swap][..]));
    });
}

#[test]
fn full_sheaf_moves_from_one_cpu_to_another() {
    play(0, |script| {
        script.alloc(0, 8);
        let place = script.place(3);
        script.free(0, 0..4);
        script.free(0, [4]);
        assert_eq!(script.cost_events(), [CostEvent::Exchange]);
        script.alloc(1, 1);
        assert_eq!((script.place(8), script.cost_events()), (place, &[CostEvent::Exchange][..]));
    });
}

#[test]
fn barn_keeps_at_most_ten_full_sheaves() {
    play(5, |script| {
        script.alloc(0, 40);
        script.free(0, 0..24);
        assert_eq!(script.counts(), (5, 40), "the CPU has two sheaves, and the barn ten");
        script.free(0, [24]);
        // The spare sheaf is flushed: its two objects are free in listed slabs.
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((5, 38), &[CostEvent::Miss, CostEvent::Remote, CostEvent::Relist][..])
        );
    });
}

#[test]
fn sheaf_refill_uses_the_last_detached_slab_first() {
    play(5, |script| {
        script.alloc(0, 16);
        let (of_first, of_second): (Vec<_>, Vec<_>) = (0..16).partition(|n| script.slab_of(*n) == 0);
        script.free(0, [of_first[0], of_second[0], of_second[1], of_second[2]]);
        assert_eq!(script.shrink(), (4, 0), "the first slab has one free object, and the second three");
        script.alloc(0, 2);
        assert_eq!(
            [16, 17].map(|n| script.slab_of(n)),
            [1, 1],
            "both sheaves were taken, and the second is used"
        );
        // The first slab is in front again, and the rest of the second slab is behind it.
        script.alloc(0, 2);
        assert_eq!([18, 19].map(|n| script.slab_of(n)), [0, 1]);
        assert_eq!(script.counts(), (2, 16));
    });
}

#[test]
fn sheaf_flush_groups_nearby_objects_of_one_slab() {
    // Flushes a sheaf of eight objects, which alternate between two slabs.
    script(SIZE, knobs(8, 5), |script: &mut Script<'_, Sheaves<Node>>| {
        script.alloc(0, 16);
        let (a, b): (Vec<_>, Vec<_>) = (0..16).partition(|n| script.slab_of(*n) == 0);
        assert_eq!((a.len(), b.len()), (8, 8));
        script.free(0, [a[0], b[0], b[1], b[2], a[1]]);
        script.shrink();
        // Three objects of `b` are between the two objects of `a`. The flush therefore puts `a` on the list first, and
        // returns the first object of `a` last.
        assert_eq!(script.counts(), (2, 11));
        script.alloc(1, 5);
        assert_eq!(
            script.counts(),
            (3, 19),
            "the sheaf has eight objects: five of these, and three of a new slab"
        );
    });
}

#[test]
fn sheaves_free_an_emptied_slab_beyond_min_partial() {
    // The slab itself counts among the slabs of the list.
    for (min_partial, slabs) in [(0, 0), (1, 0), (2, 1)] {
        script(SIZE, knobs(0, min_partial), |script: &mut Script<'_, Sheaves<Node>>| {
            script.alloc(0, 8);
            script.free(0, 0..8);
            assert_eq!(script.counts(), (slabs, 0), "{min_partial}");
        });
    }
}

#[test]
fn full_rcu_sheaf_waits_for_the_grace_period() {
    play(5, |script| {
        script.alloc(0, 4);
        script.free_after_grace(0, [0]);
        assert_eq!(script.counts(), (1, 4), "an rcu sheaf must count as active");
        script.free_after_grace(0, [1]);
        // The rcu sheaf is full. Before the grace period ends, other CPUs refill from slabs.
        script.alloc(1, 1);
        assert_eq!(
            script.cost_events(),
            [CostEvent::Miss, CostEvent::Refill(2), CostEvent::Remote, CostEvent::Relist]
        );
        script.alloc(1, 1);
        script.wait(1);
        script.alloc(1, 1);
        assert_eq!(script.cost_events(), [CostEvent::Exchange], "the sheaf is in the barn");
        script.free_after_grace(1, [2]);
        assert_eq!(script.shrink().0, 2, "one object is in the main sheaf, and one in the rcu sheaf");
    });
}

#[test]
fn linux_6_18_uses_sheaves_in_two_caches() {
    script(SIZE, Knobs::default(), |script: &mut Script<'_, Sheaves<Slub>>| {
        script.alloc(0, 1);
        assert_eq!(script.cost_events(), [CostEvent::Made]);
    });
    script(SIZE, knobs(2, 0), |script: &mut Script<'_, Sheaves<Slub>>| {
        script.alloc_without_blocking(0, 1);
        assert_eq!(script.cost_events(), [CostEvent::Miss, CostEvent::Made]);
        script.alloc(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events()),
            ((1, 8), &[CostEvent::Miss, CostEvent::Refill(2)][..])
        );
    });
    play(0, |script| {
        script.alloc_without_blocking(0, 1);
        assert_eq!(
            (script.counts(), script.cost_events().len()),
            ((1, 2), 3),
            "Linux 7.x must fill one sheaf for all CPUs"
        );
    });
}

fn sheaf_capacity_with_knobs<B: SlabLayer>(
    knobs: &Knobs,
    name: &str,
    size: usize,
    recorded: Option<u32>,
) -> usize {
    let info = CacheInfo {
        sheaf_capacity: recorded,
        ..CacheInfo::new(name, crate::stream::Kind::Named, size as u32)
    };
    let geometry = Sheaves::<B>::geometry(size, CPUS, &Knobs::default()).unwrap();
    Sheaves::<B>::new(&info, Cpus::simulated(CPUS, 1).unwrap(), &geometry, knobs).capacity
}

#[test]
fn sheaf_capacity_percentage_applies_to_each_cache() {
    let sizes = [8, 256, 1024, 4096];
    let with = |text: &str, recorded| {
        let knobs: Knobs = serde_json::from_value(serde_json::json!({ "sheaf_capacity": text })).unwrap();
        sizes.map(|size| sheaf_capacity_with_knobs::<Node>(&knobs, "x", size, recorded))
    };
    assert_eq!((with("50%", None), with("200%", None)), ([30, 14, 6, 2], [120, 56, 24, 8]));
    assert_eq!((with("50%", Some(7)), with("50%", Some(0))), ([3; 4], [0; 4]), "of the recorded capacity");
    assert_eq!(with("30", None), [30; 4]);
}

#[test]
fn recorded_sheaf_capacity_overrides_the_size_rule() {
    fn capacity<B: SlabLayer>(name: &str, size: usize, recorded: Option<u32>) -> usize {
        sheaf_capacity_with_knobs::<B>(&Knobs::default(), name, size, recorded)
    }
    let sizes = [8, 248, 256, 1016, 1024, 4088, 4096, 8192];
    assert_eq!(sizes.map(|size| capacity::<Node>("x", size, None)), [60, 60, 28, 28, 12, 12, 4, 4]);
    assert_eq!(capacity::<Node>("maple_node", 256, None), 32);
    assert_eq!(capacity::<Node>("kmem_cache", 256, None), 0);
    assert_eq!([0, 7].map(|recorded| capacity::<Node>("x", 64, Some(recorded))), [0, 7]);
    let in_6_18 = |name, size| capacity::<Slub>(name, size, None);
    assert_eq!(
        (in_6_18("maple_node", 256), in_6_18("vm_area_struct", 192), in_6_18("dentry", 192)),
        (32, 32, 0)
    );
}

#[test]
fn shrink_empties_sheaves_and_barn() {
    play(5, |script| {
        script.alloc(0, 8);
        script.free(0, 0..6);
        assert_eq!((script.shrink(), script.counts()), ((6, 0), (1, 2)));
    });
}

type Sheaf = Vec<ObjectPlace>;

/// A simple implementation of the layer below sheaves, for comparison with the model.
trait SimpleSlabLayer {
    fn refill(&mut self, cpu: usize, room: usize) -> Sheaf;
    /// Takes back flushed objects, which all belong to one slab.
    fn take_back(&mut self, cpu: usize, objects: &[ObjectPlace]);
    fn shrink(&mut self);
    fn slabs(&self) -> u64;
    fn active(&self) -> u64;
}

/// A simple implementation of the layer below the sheaves of Linux 6.18, in which CPUs own slabs. The simple layer has
/// the rules of SLUB in Linux up to 6.17.
struct CpuSlabs(slub::tests::Rules);

impl SimpleSlabLayer for CpuSlabs {
    fn refill(&mut self, cpu: usize, room: usize) -> Sheaf {
        (0..room).map(|_| self.0.alloc(cpu)).collect()
    }
    fn take_back(&mut self, cpu: usize, objects: &[ObjectPlace]) {
        objects.iter().for_each(|object| self.0.free(cpu, *object));
    }
    fn shrink(&mut self) {
        self.0.shrink();
    }
    fn slabs(&self) -> u64 {
        self.0.slabs()
    }
    fn active(&self) -> u64 {
        self.0.active()
    }
}

/// A simple implementation of the layer below the sheaves of Linux 7.x: the node's list of slabs.
struct ListedSlabs {
    min_partial: usize,
    free: Free,
    list: Vec<u64>,
}

impl SimpleSlabLayer for ListedSlabs {
    fn refill(&mut self, _: usize, room: usize) -> Sheaf {
        let mut enough = 0;
        let mut count = 0;
        while enough < room && count < self.list.len() {
            enough += self.free.of(self.list[count]);
            count += 1;
        }
        let taken: Vec<u64> = self.list.drain(..count).collect();
        let mut sheaf = vec![];
        for slab in taken.into_iter().rev() {
            if sheaf.len() == room {
                if self.free.is_empty(slab) && self.list.len() >= self.min_partial {
                    self.free.slabs.remove(&slab);
                } else {
                    self.list.insert(0, slab);
                }
                continue;
            }
            let objects = self.free.of(slab).min(room - sheaf.len());
            sheaf.extend((0..objects).map(|_| self.free.take(slab)));
            if self.free.of(slab) > 0 {
                self.list.push(slab);
            }
        }
        while sheaf.len() < room {
            let slab = self.free.make();
            let objects = self.free.of(slab).min(room - sheaf.len());
            sheaf.extend((0..objects).map(|_| self.free.take(slab)));
            if self.free.of(slab) > 0 {
                self.list.insert(0, slab);
            }
        }
        sheaf
    }
    fn take_back(&mut self, _: usize, objects: &[ObjectPlace]) {
        let slab = objects[0].0;
        objects.iter().for_each(|object| self.free.put(*object));
        let listed = self.list.iter().position(|listed| *listed == slab);
        if self.free.is_empty(slab) && self.list.len() >= self.min_partial {
            listed.map(|at| self.list.remove(at));
            self.free.slabs.remove(&slab);
        } else if listed.is_none() {
            self.list.push(slab);
        }
    }
    fn shrink(&mut self) {
        let (gone, mut rest): (Vec<_>, Vec<_>) =
            self.list.drain(..).partition(|slab| self.free.is_empty(*slab));
        gone.iter().for_each(|slab| _ = self.free.slabs.remove(slab));
        rest.reverse();
        rest.sort_by_key(|slab| self.free.of(*slab));
        self.list = rest;
    }
    fn slabs(&self) -> u64 {
        self.free.slabs.len() as u64
    }
    fn active(&self) -> u64 {
        self.free.active()
    }
}

/// A simple implementation of the rules for sheaves, with which the tests compare the model.
struct Rules<G> {
    capacity: usize,
    /// The main and the spare sheaf of each CPU; both exist after the CPU's first free or refill.
    cpus: Vec<(Sheaf, Option<Sheaf>)>,
    barn: Vec<Sheaf>,
    ground: G,
}

impl<G: SimpleSlabLayer> Rules<G> {
    fn new(capacity: usize, ground: G) -> Box<Self> {
        Box::new(Self { capacity, cpus: vec![<_>::default(); CPUS as usize], barn: vec![], ground })
    }
    fn flush(&mut self, cpu: usize, mut sheaf: Sheaf) {
        while let Some(last) = sheaf.pop() {
            let mut same = vec![last];
            // The flush searches from the end until it has seen three objects of other slabs. The last object
            // takes the place of the object that was found.
            let (mut at, mut others) = (sheaf.len(), 0);
            while at > 0 && others < 3 {
                at -= 1;
                match sheaf[at].0 == last.0 {
                    true => same.push(sheaf.swap_remove(at)),
                    false => others += 1,
                }
            }
            self.ground.take_back(cpu, &same);
        }
    }
}

impl<G: SimpleSlabLayer> Shadow for Rules<G> {
    fn alloc(&mut self, cpu: usize) -> ObjectPlace {
        let (main, spare) = &mut self.cpus[cpu];
        if main.is_empty() {
            if spare.as_ref().is_some_and(|spare| !spare.is_empty()) {
                *main = spare.replace(vec![]).unwrap();
            } else if let Some(full) = self.barn.pop() {
                *main = full;
            } else {
                *spare = Some(vec![]);
                *main = self.ground.refill(cpu, self.capacity);
            }
        }
        main.pop().unwrap()
    }
    fn free(&mut self, cpu: usize, object: ObjectPlace) {
        let (main, spare) = &mut self.cpus[cpu];
        if main.len() == self.capacity {
            let full = std::mem::take(main);
            match spare {
                Some(spare) if spare.is_empty() => *spare = full,
                None => *spare = Some(full),
                Some(_) if self.barn.len() < 10 => self.barn.push(full),
                Some(spare) => {
                    let flushed = std::mem::replace(spare, full);
                    self.flush(cpu, flushed);
                }
            }
        }
        self.cpus[cpu].0.push(object);
    }
    fn shrink(&mut self) {
        for cpu in 0..self.cpus.len() {
            let (main, spare) = std::mem::take(&mut self.cpus[cpu]);
            self.flush(0, spare.unwrap_or_default());
            self.flush(0, main);
        }
        while let Some(full) = self.barn.pop() {
            self.flush(0, full);
        }
        self.ground.shrink();
    }
    fn slabs(&self) -> u64 {
        self.ground.slabs()
    }
    fn active(&self) -> u64 {
        self.ground.active()
    }
}

proptest! {
    #[test]
    fn model_of_linux_7_follows_its_rules(steps in steps(), capacity in 1..20_usize, min_partial in 0..4_usize) {
        agrees::<Sheaves<Node>>(SIZE, knobs(capacity, min_partial), steps, |per_slab| {
            Rules::new(capacity, ListedSlabs { min_partial, free: Free::new(per_slab), list: vec![] })
        })?;
    }

    #[test]
    fn model_of_linux_6_18_follows_its_rules(
        steps in steps(),
        capacity in 1..6_usize,
        cpu_partial in 0..20_u32,
        min_partial in 0..4_usize,
    ) {
        let knobs = Knobs { cpu_partial: Some(cpu_partial), ..knobs(capacity, min_partial) };
        agrees::<Sheaves<Slub>>(SIZE, knobs, steps, |per_slab| {
            Rules::new(capacity, CpuSlabs(slub::tests::Rules::new(per_slab, cpu_partial, min_partial)))
        })?;
    }
}
