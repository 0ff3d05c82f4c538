use super::*;

/// A supplier of the objects 1 to n, the lowest number first.
#[derive(Debug)]
struct Rounds {
    free: Vec<u32>,
    budget: Budget,
    events: Vec<Event>,
}
impl Rounds {
    fn new(n: u32, most: u64) -> Self {
        Self { free: (1..=n).rev().collect(), budget: Budget::new(most), events: vec![] }
    }
}
impl World<u32> for Rounds {
    fn fill(&mut self, _: usize, most: usize) -> Vec<u32> {
        let most = most.min(self.free.len());
        let mut rounds = self.free.split_off(self.free.len() - most);
        rounds.reverse();
        rounds
    }
    fn flush(&mut self, rounds: Vec<u32>) {
        self.free.extend(rounds);
    }
    fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }
    fn observe(&mut self, event: Event) {
        self.events.push(event);
    }
}

fn layer(capacity: usize, first_fill: usize, stock: usize, depot_limit: usize) -> Layer<u32> {
    let reach = capacity * (2 + stock);
    let sizes = Sizes { capacity, first_fill, reach, depot_limit, magazine_bytes: capacity as u64 };
    Layer::new(sizes, vec![0, 0])
}

#[test]
fn fills_double_up_to_a_magazine() {
    let (mut layer, mut world) = (layer(4, 1, 0, 1), Rounds::new(20, 0));
    let left = [(); 12].map(|()| {
        layer.alloc(0, &mut world).unwrap();
        world.free.len()
    });
    assert_eq!(left, [19, 17, 17, 13, 13, 13, 13, 9, 9, 9, 9, 5]);
}

#[test]
fn stack_passes_its_newest_magazine_to_the_depot() {
    let (mut layer, mut world) = (layer(2, 2, 0, 1), Rounds::new(8, 0));
    let rounds: Vec<u32> = (0..6).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
    assert_eq!(rounds, [2, 1, 4, 3, 6, 5]);
    rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
    assert_eq!(layer.stack(0, 0), [2, 1, 6, 5]);
    assert_eq!(layer.depot(0).in_take_order().collect::<Vec<_>>(), [[4, 3]]);
    assert_eq!(world.events, [Event::Widened, Event::Widened, Event::Exchange]);
    // The other CPU gets the magazine from the depot.
    assert_eq!([(); 2].map(|()| layer.alloc(1, &mut world)), [Some(3), Some(4)]);
    assert!(layer.depot(0).magazines().is_empty());
}

#[test]
fn depot_refuses_magazines_beyond_its_limit_or_budget() {
    let (mut limited, mut world) = (layer(1, 1, 0, 1), Rounds::new(9, 9));
    let rounds: Vec<u32> = (0..5).map(|_| limited.alloc(0, &mut world).unwrap()).collect();
    rounds.iter().for_each(|round| limited.free(0, *round, &mut world));
    assert_eq!((limited.depot(0).magazines().len(), world.free.len()), (1, 6));
    assert_eq!(world.events[2..], [Event::Exchange, Event::Refused, Event::Refused]);
    let (mut limited, mut world) = (layer(1, 1, 0, 9), Rounds::new(9, 1));
    let rounds: Vec<u32> = (0..7).map(|_| limited.alloc(0, &mut world).unwrap()).collect();
    rounds.iter().for_each(|round| limited.free(0, *round, &mut world));
    assert_eq!(limited.depot(0).magazines().len(), UNCOUNTED + 1);
    assert_eq!(limited.flush_all(&mut world), 5);
    assert_eq!((world.free.len(), world.budget), (9, Budget::new(1)));
}

#[test]
fn reap_flushes_objects_unused_in_the_interval() {
    let (mut layer, mut world) = (layer(2, 2, 0, 4), Rounds::new(20, 9));
    let rounds: Vec<u32> = (0..8).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
    rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
    assert_eq!(layer.reap(&mut world), 0, "the stack was used, and the depot began empty");
    assert_eq!(layer.reap(&mut world), 8, "nothing was used");
}

#[test]
fn shortage_halves_the_limit_of_stacks() {
    let (mut layer, mut world) = (layer(2, 2, 6, 0), Rounds::new(40, 0));
    let mut most = |layer: &mut Layer<u32>| {
        // A drained stack starts again with capacity 0.
        layer.flush_all(&mut world);
        let rounds: Vec<u32> = (0..20).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
        rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
        layer.stack(0, 0).len()
    };
    assert_eq!(most(&mut layer), 16);
    layer.shrink();
    assert_eq!(most(&mut layer), 8);
    (0..3).for_each(|_| layer.shrink());
    assert_eq!(most(&mut layer), 4);
    let mut empty_world = Rounds::new(0, 0);
    (0..2).for_each(|_| _ = layer.reap(&mut empty_world));
    assert_eq!(most(&mut layer), 8);
}

#[test]
fn few_elements_keep_their_order() {
    let mut few = SmallList::<u8, 3>::default();
    [1, 2, 3].into_iter().for_each(|item| few.push(item));
    assert_eq!(few.remove(1), 2);
    assert_eq!(few.items(), [1, 3]);
    few.push(4);
    assert_eq!((few.remove(0), few.items()), (1, &[3, 4][..]));
}
