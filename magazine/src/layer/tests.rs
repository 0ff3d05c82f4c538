use super::*;
use crate::on_cpu;
use crate::shadow::{TestSupplier, table};
use crate::sync::catch_panic;
use crate::test_round::TestRound;

struct EndlessSupplier;
impl Supplier<TestRound> for EndlessSupplier {
    fn fill(&self, _: &Operation, _: u32, max: usize, put: impl FnMut(TestRound)) -> usize {
        (1..=max).map(TestRound).for_each(put);
        max
    }
    fn flush(&self, _: &Operation, rounds: impl Iterator<Item = TestRound>) {
        rounds.for_each(drop);
    }
}

#[test]
fn stack_fill_from_an_empty_supplier_is_not_counted() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(0, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 0)).unwrap();
    on_cpu(0);
    assert_eq!((layer.alloc(&supplier), layer.stats().fills), (None, 0));
}

#[test]
fn extreme_layer_sizes_cause_no_panic() {
    let cpus = Cpus::simulated(2, 2).unwrap();
    on_cpu(0);
    let region = 2 << 20;
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    let table = Arc::new(Table::new(cpus, region, memory).unwrap());
    let shorts = [0, 1, u16::MAX];
    for (capacity, stock) in shorts.iter().flat_map(|a| shorts.map(|b| (*a, b))) {
        for (first_fill, depot_limit) in shorts.iter().flat_map(|a| [0, 1, u32::MAX].map(|b| (*a, b))) {
            for config in [
                Config { capacity, first_fill, stock, depot_limit, round_bytes: 0 },
                Config::new(capacity, stock, depot_limit),
            ] {
                assert!(config.most_rounds(&cpus) < u64::MAX);
                let layer: Layer<TestRound> = Layer::new(&table, config).unwrap();
                let rounds: Vec<_> = (0..300).map(|_| layer.alloc(&EndlessSupplier).unwrap()).collect();
                rounds.into_iter().for_each(|round| layer.free(&EndlessSupplier, round));
                layer.shrink();
                layer.reap(&EndlessSupplier);
                layer.flush_all(&EndlessSupplier);
                let stats = layer.stats();
                assert_eq!((stats.allocs, stats.in_magazines + stats.in_depot), (stats.frees, 0));
            }
        }
    }
}

/// Regression: if the supplier panicked during a drain, the drained classes stayed closed, and objects taken from other
/// CPUs were lost.
#[test]
fn supplier_panic_leaves_every_size_class_open() {
    struct OncePanickingSupplier<'a>(&'a TestSupplier, Counter);
    impl Supplier<TestRound> for OncePanickingSupplier<'_> {
        fn fill(&self, _: &Operation, _: u32, _: usize, _: impl FnMut(TestRound)) -> usize {
            0
        }
        fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
            self.1.add(1);
            assert!(self.1.get() > 1, "the first flush panics");
            self.0.flush(op, rounds);
        }
    }
    let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(0, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 0)).unwrap();
    for cpu in 0..2 {
        on_cpu(cpu);
        layer.free(&supplier, TestRound(cpu as usize + 1));
    }
    let supplier = OncePanickingSupplier(&supplier, Counter::new(0));
    let panic = catch_panic(|| layer.drain(&supplier, 0..2)).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the first flush panics"));
    assert_eq!(*supplier.0.free.borrow(), [TestRound(2)].into(), "the other CPU's round was flushed");
    assert_eq!(layer.stats().in_magazines, 0);
    layer.free(&supplier, TestRound(3));
    assert_eq!(layer.stats().in_magazines, 1, "the class is open again");
}

/// Regression: a panic while one node's objects were flushed left the next node's class closed, and lost the objects
/// taken from it.
#[test]
fn panic_flushing_one_numa_node_does_not_stop_other_nodes() {
    struct PanickingSupplier<'a>(&'a TestSupplier, Counter);
    impl Supplier<TestRound> for PanickingSupplier<'_> {
        fn fill(&self, _: &Operation, _: u32, _: usize, _: impl FnMut(TestRound)) -> usize {
            0
        }
        fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
            self.1.add(1);
            assert!(self.1.get() > 1, "the first flush panics");
            self.0.flush(op, rounds);
        }
        fn node_of(&self, round: TestRound) -> u32 {
            round.0 as u32 % 2
        }
    }
    let (table, none) = (table(Cpus::simulated(2, 2).unwrap()), TestSupplier::new(0, 2));
    let supplier = PanickingSupplier(&none, Counter::new(0));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 0)).unwrap();
    layer.join_sweeps(SweepGroup::new(0));
    for cpu in 0..2 {
        on_cpu(cpu);
        layer.free(&supplier, TestRound(cpu as usize + 2));
    }
    assert_eq!(layer.stats().in_magazines, 2);
    table.sweep(0..2, DrainScope::All, |_| true);
    let op = &Operation::new();
    let panic = catch_panic(|| layer.drain_swept(op, &supplier)).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the first flush panics"));
    assert_eq!((layer.stats().in_magazines, none.free.borrow().len()), (0, 1));
    layer.free(&supplier, TestRound(5));
    assert_eq!(layer.stats().in_magazines, 1, "the other node's class is open");
}

/// Regression: after a fork during a drain, the class stayed closed in the child, and frees in the child overwrote
/// objects that were being flushed.
#[test]
fn fork_during_a_drain_flush_loses_no_object() {
    struct ForkingSupplier<'a>(&'a TestSupplier, &'a Layer<TestRound>, Counter, u64);
    impl Supplier<TestRound> for ForkingSupplier<'_> {
        fn fill(&self, _: &Operation, _: u32, _: usize, _: impl FnMut(TestRound)) -> usize {
            0
        }
        fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
            for round in rounds {
                // The drain still has objects of this stack and of other stacks to flush.
                self.2.add(1);
                if self.2.get() == self.3 {
                    // SAFETY: this is the only thread.
                    unsafe { self.1.table.forget_other_threads() };
                    self.1.free(self, TestRound(9));
                }
                self.0.flush(op, core::iter::once(round));
            }
        }
        fn node_of(&self, round: TestRound) -> u32 {
            round.0 as u32 % self.1.nodes.len() as u32
        }
    }
    // With two nodes, one drain takes objects from two classes. The sixth object is in the second node's
    // class, and is flushed after the first node's class was opened again.
    for (nodes, at) in [(1, 2), (2, 2), (2, 6)] {
        let (table, none) = (table(Cpus::simulated(2, nodes).unwrap()), TestSupplier::new(0, nodes));
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 0, 0)).unwrap();
        let supplier = ForkingSupplier(&none, &layer, Counter::new(0), at);
        for n in 1..9 {
            on_cpu(n as u32 % 2);
            layer.free(&supplier, TestRound(n));
        }
        assert_eq!(layer.stats().in_magazines, 8);
        for _ in 0..2 {
            layer.drain(&supplier, 0..2);
            assert_eq!(*none.free.borrow(), [1, 2, 3, 4, 5, 6, 7, 8, 9].map(TestRound).into());
            for n in [20, 21] {
                on_cpu(n as u32 % 2);
                layer.free(&supplier, TestRound(n));
            }
            assert_eq!(layer.stats().in_magazines, 2, "the classes are open again");
            layer.drain(&supplier, 0..2);
            assert!([20, 21].into_iter().all(|n| none.free.borrow_mut().remove(&TestRound(n))));
        }
    }
}

/// Regression: a free panicked if the object's node has no CPUs.
#[test]
fn round_of_a_cpuless_node_is_flushed_to_the_supplier() {
    let (table, supplier) = (table(Cpus::simulated(2, 2).unwrap()), TestSupplier::new(0, 3));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 0, 0)).unwrap();
    on_cpu(0);
    let rounds = [3, 4, 5].map(TestRound);
    rounds.into_iter().for_each(|round| layer.free(&supplier, round));
    assert_eq!(layer.stats().in_magazines, 2);
    assert_eq!(*supplier.free.borrow(), [TestRound(5)].into());
    let stats = layer.stats();
    assert_eq!((stats.frees, stats.busy, stats.paths.slab), (3, 1, 1));
}

/// A layer must be called without a lock held, because its supplier may take locks or call the layer.
#[cfg(debug_assertions)]
#[test]
fn supplier_called_with_a_lock_held_panics() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(20, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 0)).unwrap();
    let outermost = crate::sync::Mutex::ranked(Rank::Mergeable, ());
    let message_of = |call: &dyn Fn()| {
        let _held = outermost.lock();
        let panic = catch_panic(call).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.starts_with("user code would run while a lock is held"), "{message}");
    };
    on_cpu(0);
    message_of(&|| _ = layer.alloc(&supplier));
    let rounds = [(); 6].map(|()| layer.alloc(&supplier).unwrap());
    rounds[..4].iter().for_each(|round| layer.free(&supplier, *round));
    // The stack is full, so the free flushes a magazine.
    message_of(&|| layer.free(&supplier, rounds[4]));
    layer.close();
    layer.flush_all(&supplier);
    message_of(&|| layer.free(&supplier, rounds[5]));
    layer.reopen();
    layer.free(&supplier, rounds[5]);
    message_of(&|| layer.drain(&supplier, 0..1));
}

#[test]
fn quiet_threshold_is_one_magazine_less_than_the_stack_limit() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(0, 1));
    on_cpu(0);
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 2, 0)).unwrap();
    layer.free(&supplier, TestRound(1));
    let (region, class) = (table.region(0).unwrap(), layer.nodes[0].class());
    assert_eq!((region.limit(class), region.quiet(class)), (16, 12));
    table.change_limit(class, || 8);
    assert_eq!((region.limit(class), region.quiet(class)), (8, 4));
}

/// Regression: if a layer got a class number for only one of its nodes, its creation failed and leaked the number.
#[test]
fn failed_layer_creation_frees_its_class_numbers() {
    let cpus = Cpus::simulated(3, 3).unwrap();
    // The table has space for four classes of 16 KiB.
    let config = Config::new(64, 14, 0);
    let region = crate::region::STACKS.next_multiple_of(4096) + (4 << 14);
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    let table = Arc::new(Table::new(cpus, region, memory).unwrap());
    let first = Layer::<TestRound>::new(&table, config).unwrap();
    assert!(Layer::<TestRound>::new(&table, config).is_none());
    drop(first);
    let numbers = || core::iter::from_fn(|| table.class(config.reach())).count();
    assert!(Layer::<TestRound>::new(&table, config).is_some());
    assert_eq!(numbers(), 4);
}

/// A new layer reuses the class numbers of a dropped layer. The new layer's counts begin at 0, and it never sees
/// objects of the dropped layer.
#[test]
fn reused_class_number_starts_with_empty_stacks() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let (table, supplier) = (table(cpus), TestSupplier::new(60, 1));
    let mut numbers = vec![];
    for _ in 0..5 {
        let layer: Layer<TestRound> = Layer::new(&table, Config::new(3, 1, 2)).unwrap();
        let stats = layer.stats();
        assert_eq!(stats, Stats { capacity: 3, aborts: stats.aborts, ..Stats::default() });
        for cpu in 0..2 {
            on_cpu(cpu);
            let empty_supplier = TestSupplier::new(0, 1);
            assert_eq!(
                layer.alloc(&empty_supplier),
                None,
                "no round belongs to the layer that had the number before"
            );
            let held: Vec<TestRound> = (0..9).map(|_| layer.alloc(&supplier).unwrap()).collect();
            held.into_iter().for_each(|round| layer.free(&supplier, round));
        }
        assert!(layer.stats().in_magazines > 0, "a class number is freed although its stacks hold rounds");
        *supplier.free.borrow_mut() = (1..=60).map(TestRound).collect();
        numbers.push(layer.nodes[0].class().index);
    }
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}

/// One sweep of a table can drain, flush or reap several layers.
#[test]
fn each_layer_flushes_only_its_rounds_of_a_shared_drain() {
    let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(40, 1));
    let layers = [(); 2].map(|()| Layer::<TestRound>::new(&table, Config::new(2, 1, 2)).unwrap());
    let op = &Operation::new();
    let holds = |layer: &Layer<TestRound>| {
        let stats = layer.stats();
        (stats.in_magazines, stats.in_depot)
    };
    let fill = |layer: &Layer<TestRound>| {
        let held: Vec<TestRound> = (0..10).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        assert_eq!(holds(layer), (6, 4));
    };
    on_cpu(0);
    layers.iter().for_each(fill);
    layers[0].join_sweeps(SweepGroup::new(0));
    table.sweep(0..2, DrainScope::All, |group| group == SweepGroup::new(0));
    assert_eq!(holds(&layers[0]), (6, 4), "the round stays in its place until then");
    assert_eq!(layers[0].drain_swept(op, &supplier), 6);
    assert_eq!((holds(&layers[0]), layers[0].drain_swept(op, &supplier)), ((0, 4), 0), "once");
    assert_eq!(
        (layers[1].drain_swept(op, &supplier), holds(&layers[1])),
        (0, (6, 4)),
        "the layer belongs to no group"
    );
    fill(&layers[0]);
    table.sweep(0..2, DrainScope::All, |group| group == SweepGroup::new(0));
    layers[0].flush_swept(op, &supplier);
    assert_eq!(holds(&layers[0]), (0, 0));
    layers[1].join_sweeps(SweepGroup::new(1));
    let reap = || {
        table.sweep(0..2, DrainScope::Idle, |group| group == SweepGroup::new(1));
        layers[1].reap_swept(&supplier)
    };
    assert_eq!([reap(), reap(), reap()], [0, 10, 0], "the idle rounds of one interval are reaped");
    assert_eq!((holds(&layers[1]), supplier.free.borrow().len()), ((0, 0), 40));
}

#[test]
fn unused_depot_blocks_are_reused_by_other_depots() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(10, 1));
    let room = || {
        let mut blocks = crate::depot::Blocks::default();
        let free = core::iter::from_fn(|| table.block(&Operation::new()));
        let count = free.map(|block| blocks.push(block)).count();
        table.take_blocks(blocks);
        count
    };
    let all = room();
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 1, 2)).unwrap();
    on_cpu(0);
    let fill = || {
        let held: Vec<TestRound> = (0..10).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        assert_eq!((layer.stats().in_depot, all - room()), (4, 2));
    };
    fill();
    layer.flush_all(&supplier);
    assert_eq!(room(), all);
    fill();
    drop(layer);
    assert_eq!(room(), all);
}

#[test]
fn closed_layer_returns_each_freed_round_to_the_supplier() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(12, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 1, 2)).unwrap();
    on_cpu(0);
    let held: Vec<TestRound> = (0..10).map(|_| layer.alloc(&supplier).unwrap()).collect();
    held.into_iter().for_each(|round| layer.free(&supplier, round));
    layer.close();
    let before = layer.stats();
    assert_eq!((before.in_magazines, before.in_depot), (6, 4));
    // The objects come first from the stack, then one by one from the supplier, and last from the depot,
    // whose magazines cannot be put on a stack.
    let got: Vec<_> = core::iter::from_fn(|| layer.alloc(&supplier)).collect();
    let stats = layer.stats();
    assert_eq!((stats.in_magazines, stats.in_depot), (0, 0));
    assert_eq!(stats.allocs - before.allocs, 12);
    assert_eq!((got.len(), supplier.free.borrow().len()), (12, 0));
    // Closed stacks keep their capacity until the next drain.
    layer.flush_all(&supplier);
    got.into_iter().for_each(|round| layer.free(&supplier, round));
    let after = layer.stats();
    assert_eq!((after.frees - stats.frees, after.busy - stats.busy), (12, 12));
    assert_eq!(
        (after.flushes, supplier.free.borrow().len()),
        (stats.flushes, 12),
        "the rounds are flushed one by one"
    );
}

/// If the objects of a fill cannot be put on a stack, requesting a whole magazine would be wasteful.
#[test]
fn fill_without_a_usable_stack_requests_a_single_round() {
    let (table, supplier) = (table(Cpus::simulated(2, 1).unwrap()), TestSupplier::new(9, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 0, 0)).unwrap();
    let counts = || {
        let stats = layer.stats();
        (stats.fills, stats.flushes, stats.busy)
    };
    on_cpu(2);
    assert!(layer.alloc(&supplier).is_some());
    assert_eq!(counts(), (1, 0, 1), "a CPU without a region");
    on_cpu(0);
    layer.close();
    assert!(layer.alloc(&supplier).is_some());
    assert_eq!(counts(), (2, 0, 2), "the class is closed");
    assert_eq!(supplier.free.borrow().len(), 7);
}

#[test]
fn freed_magazine_rounds_return_to_their_numa_node() {
    let (table, supplier) = (table(Cpus::simulated(2, 2).unwrap()), TestSupplier::new(8, 2));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 1)).unwrap();
    assert!(
        !layer.has_one_node()
            && Layer::<TestRound>::on_one_node(&table, layer.config).unwrap().has_one_node()
    );
    on_cpu(0);
    let [one, two] = [(); 2].map(|()| layer.alloc(&supplier).unwrap());
    assert_eq!([supplier.node_of(one), supplier.node_of(two)], [0, 0]);
    layer.free(&supplier, one);
    assert_eq!(layer.stats().other_node_frees, 0);
    on_cpu(1);
    layer.free(&supplier, two);
    assert_eq!(layer.stats().other_node_frees, 1);
    assert_eq!(
        layer.alloc(&supplier).map(|round| supplier.node_of(round)),
        Some(1),
        "the round was flushed to its node"
    );
    // SAFETY: the layer is alive.
    assert_eq!(unsafe { layer.fast_path(Words::Inlined).alloc() }, None, "each operation reads the node");
}

/// A cache may try other sources of objects before the layer. An operation is counted at the highest level that it
/// reached, even if it tried other sources first.
#[test]
fn stack_miss_is_counted_at_the_highest_level_reached() {
    use crate::Path;
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(9, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 0, 0)).unwrap();
    on_cpu(0);
    let paths = |pages, cpu| Paths { pages, cpu, ..Paths::default() };
    let op = Operation::new();
    op.did(Path::Pages);
    let round = layer.alloc_in(&op, &supplier).unwrap();
    assert_eq!(layer.stats().paths, paths(1, 0));
    layer.free_in(&op, &supplier, round);
    assert_eq!(layer.stats().paths, paths(2, 0), "the stack had one place, which held a round");
    let round = layer.alloc_in(&op, &supplier).unwrap();
    layer.free_in(&op, &supplier, round);
    let stats = layer.stats();
    assert_eq!((stats.allocs, stats.frees, stats.in_magazines, stats.paths), (2, 2, 2, paths(2, 2)));
}

#[test]
fn reopened_layer_holds_as_many_rounds_as_before_closing() {
    let (table, supplier) = (table(Cpus::simulated(1, 1).unwrap()), TestSupplier::new(20, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(2, 1, 1)).unwrap();
    on_cpu(0);
    let holds = || {
        let held: Vec<TestRound> = (0..20).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        let stats = layer.stats();
        layer.flush_all(&supplier);
        (stats.in_magazines, stats.in_depot)
    };
    assert_eq!(holds(), (6, 2));
    layer.close();
    layer.flush_all(&supplier);
    assert_eq!(holds(), (0, 0));
    layer.reopen();
    assert_eq!(holds(), (6, 2));
}

/// The statistics count allocations and frees separately, although a stack's head stores only the sum of pops and
/// pushes.
#[test]
fn operation_counts_stay_exact_through_drains_and_reaps() {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let layer: Layer<TestRound> = Layer::new(&table(cpus), Config::new(3, 2, 2)).unwrap();
    let supplier = TestSupplier::new(100, 1);
    let (mut held, mut allocs, mut frees) = (vec![], 0, 0);
    for i in 0..200_u32 {
        on_cpu(i % 2);
        for _ in 0..i % 17 {
            held.extend(layer.alloc(&supplier));
            allocs += 1;
        }
        for _ in 0..(i * 7) % 19 {
            if let Some(round) = held.pop() {
                layer.free(&supplier, round);
                frees += 1;
            }
        }
        match i % 5 {
            0 => layer.drain(&supplier, 0..1),
            1 => _ = layer.reap(&supplier),
            2 => layer.shrink(),
            _ => {}
        }
        let s = layer.stats();
        assert_eq!((s.allocs, s.frees), (allocs, frees), "round {i} is not in its place");
        let other_rounds = (held.len() + supplier.free.borrow().len()) as u64;
        assert_eq!(s.in_magazines + s.in_depot + other_rounds, 100, "round {i} is not in its place");
    }
}
