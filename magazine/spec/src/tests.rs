use super::*;

/// A supplier of the objects 1 to n, which hands out the lowest-numbered object first.
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
fn each_stack_fill_doubles_up_to_a_magazine() {
    let (mut layer, mut world) = (layer(4, 1, 0, 1), Rounds::new(20, 0));
    let left = [(); 12].map(|()| {
        layer.alloc(0, &mut world).unwrap();
        world.free.len()
    });
    assert_eq!(left, [19, 17, 17, 13, 13, 13, 13, 9, 9, 9, 9, 5]);
    // After a shortage, the next fill is a first fill again.
    layer.shrink();
    assert_eq!((layer.drain(0..1, &mut world), world.free.len()), (3, 8));
    assert_eq!((layer.alloc(0, &mut world).is_some(), world.free.len()), (true, 7));
}

#[test]
fn full_stack_moves_its_newest_magazine_to_the_depot() {
    let (mut layer, mut world) = (layer(2, 2, 0, 1), Rounds::new(8, 0));
    let rounds: Vec<u32> = (0..6).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
    assert_eq!(rounds, [2, 1, 4, 3, 6, 5]);
    rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
    assert_eq!(layer.stack(0, 0), [2, 1, 6, 5]);
    assert_eq!(layer.depot(0).magazines_in_take_order().collect::<Vec<_>>(), [[4, 3]]);
    assert_eq!(world.events, [Event::Widened, Event::Widened, Event::Exchange]);
    // The other CPU gets the magazine from the depot.
    assert_eq!([(); 2].map(|()| layer.alloc(1, &mut world)), [Some(3), Some(4)]);
    assert!(layer.depot(0).magazines().is_empty());
    assert_eq!((layer.flush_all(&mut world), world.free), (4, vec![8, 7, 5, 6, 1, 2]), "newest first");
}

#[test]
fn flush_returns_the_newest_objects_to_the_supplier_first() {
    for (depot_limit, events) in [(0, vec![Event::Widened; 2]), (1, vec![Event::Exchange; 2])] {
        let (mut layer, mut world) = (layer(2, 2, 0, depot_limit), Rounds::new(5, 0));
        let rounds: Vec<u32> = (0..5).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
        rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
        if depot_limit > 0 {
            world.events.drain(..2);
            layer.flush_depot(0, 1, &mut world);
        }
        assert_eq!((world.free, world.events), (rounds[2..4].iter().rev().copied().collect(), events));
    }
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
    assert_eq!(limited.depot(0).magazines().len(), UNBUDGETED_MAGAZINES + 1);
    assert_eq!(limited.flush_all(&mut world), 5);
    assert_eq!((world.free.len(), world.budget), (9, Budget::new(1)));
}

#[test]
fn reap_flushes_objects_unused_in_the_interval() {
    let (mut layer, mut world) = (layer(2, 2, 0, 4), Rounds::new(20, 9));
    let rounds: Vec<u32> = (0..8).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
    rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
    assert_eq!(layer.reap(&mut world), 0, "the stack was used, and the depot began empty");
    let round = layer.alloc(0, &mut world).unwrap();
    layer.free(0, round, &mut world);
    assert_eq!(layer.reap(&mut world), 4, "only the stack was used");
    assert_eq!(layer.reap(&mut world), 4, "nothing was used");
}

#[test]
fn reap_flushes_only_idle_stacks_of_a_cpu() {
    let sizes = Sizes { capacity: 4, first_fill: 4, reach: 8, depot_limit: 0, magazine_bytes: 4 };
    // The supplier's objects belong to node 0. CPU 1 frees to node 0, and allocates on node 1.
    let (mut layer, mut world) = (Layer::new(sizes, vec![0, 1]), Rounds::new(4, 0));
    assert_eq!(layer.cpus(), 2);
    let round = layer.alloc(1, &mut world).unwrap();
    layer.free(1, round, &mut world);
    assert_eq!([layer.stack(0, 1).len(), layer.stack(1, 1).len(), layer.reap(&mut world)], [1, 3, 0]);
    assert!(layer.alloc(1, &mut world).is_some());
    assert_eq!([layer.reap(&mut world), layer.stack(0, 1).len(), layer.stack(1, 1).len()], [1, 0, 2]);
}

#[test]
fn stack_filled_after_a_drain_is_not_idle() {
    let (mut layer, mut world) = (layer(4, 4, 0, 0), Rounds::new(8, 0));
    for _ in 0..2 {
        assert!(layer.alloc(0, &mut world).is_some());
        assert_eq!((layer.reap(&mut world), layer.drain(0..1, &mut world)), (0, 3));
    }
}

#[test]
fn stack_used_without_a_length_change_is_not_idle() {
    let (mut popped, mut world) = (layer(4, 4, 0, 0), Rounds::new(8, 0));
    assert_eq!((popped.alloc(0, &mut world), popped.reap(&mut world)), (Some(4), 0));
    (0..4).for_each(|_| assert!(popped.alloc(0, &mut world).is_some()));
    assert_eq!([popped.reap(&mut world), popped.reap(&mut world)], [0, 3]);
    let (mut full, mut world) = (layer(1, 1, 0, 0), Rounds::new(3, 0));
    let [first, second, third] = [(); 3].map(|()| full.alloc(0, &mut world).unwrap());
    full.free(0, first, &mut world);
    full.free(0, second, &mut world);
    assert_eq!(full.reap(&mut world), 0);
    full.free(0, third, &mut world);
    assert_eq!([full.reap(&mut world), full.reap(&mut world)], [0, 2]);
}

#[test]
fn reaping_an_empty_stack_keeps_its_capacity() {
    let (mut layer, mut world) = (layer(2, 2, 0, 0), Rounds::new(4, 0));
    for _ in 0..2 {
        let rounds: Vec<u32> = (0..4).map(|_| layer.alloc(0, &mut world).unwrap()).collect();
        rounds.iter().for_each(|round| layer.free(0, *round, &mut world));
        for _ in 0..4 {
            let round = layer.alloc(0, &mut world).unwrap();
            world.free.push(round);
        }
        assert_eq!([layer.reap(&mut world), layer.reap(&mut world)], [0, 0]);
    }
    assert_eq!(world.events, [Event::Widened; 2]);
}

#[test]
fn depot_surplus_is_the_lowest_magazine_count_in_an_interval() {
    let mut depot = Depot::<Vec<u8>>::default();
    (0..3).for_each(|magazine| depot.put(magazine));
    assert_eq!(depot.surplus(), 0, "the depot began empty");
    depot.reset_interval_statistics();
    assert_eq!([(); 3].map(|()| depot.surplus()), [0, 3, 0]);
    let taken = depot.take().unwrap();
    depot.put(taken);
    assert_eq!(depot.surplus(), 2);
}

#[test]
fn depot_budget_is_at_least_8_mib() {
    assert_eq!([4, 16].map(|cpus| Budget::from_cpu_count(cpus).limit()), [8 << 20, 16 << 20]);
}

#[test]
fn memory_shortage_halves_the_stack_limits() {
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
    assert_eq!((layer.reap(&mut empty_world), most(&mut layer)), (0, 4), "memory was short");
    assert_eq!((layer.reap(&mut empty_world), most(&mut layer)), (0, 8));
}

#[test]
fn inline_list_keeps_the_order_of_its_elements() {
    let mut few = SmallList::<u8, 3>::default();
    [1, 2, 3].into_iter().for_each(|item| few.push(item));
    assert_eq!(few.remove(1), 2);
    assert_eq!(few.items(), [1, 3]);
    few.push(4);
    assert_eq!((few.remove(0), few.items(), few.len()), (1, &[3, 4][..], 2));
}
