//! Tests that compare the layer with its [specification](spec). A single thread executes random steps with a layer on
//! simulated CPUs. After each step, each object must be where the specification requires it to be. The steps come from
//! property tests or from the fuzzer.

use crate::sync::Arc;
use crate::test_round::TestRound;
pub(crate) use crate::test_round::table;
use crate::{Config, Cpus, Heap, Layer, Operation, Path, Supplier, Table, on_cpu};
use arbitrary::{Arbitrary, Unstructured};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use uslab_magazine_spec as spec;

/// A supplier of the objects 1 to n. The object `b` belongs to node `b % nodes`.
pub(crate) struct TestSupplier {
    pub(crate) free: RefCell<BTreeSet<TestRound>>,
    nodes: u32,
    calls: Cell<u64>,
}
impl TestSupplier {
    pub(crate) fn new(n: usize, nodes: u32) -> Self {
        Self { free: RefCell::new((1..=n).map(TestRound).collect()), nodes, calls: Cell::new(0) }
    }
}
impl Supplier<TestRound> for TestSupplier {
    fn fill(&self, op: &Operation, node: u32, max: usize, mut put: impl FnMut(TestRound)) -> usize {
        op.did(Path::Slab);
        self.calls.set(self.calls.get() + 1);
        let mut free = self.free.borrow_mut();
        let chosen: Vec<TestRound> =
            free.iter().filter(|b| self.node_of(**b) == node).take(max).copied().collect();
        for b in &chosen {
            free.remove(b);
            put(*b);
        }
        chosen.len()
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = TestRound>) {
        op.did(Path::Slab);
        self.calls.set(self.calls.get() + 1);
        for b in rounds {
            assert!(self.free.borrow_mut().insert(b), "{b:?} was flushed twice");
        }
    }
    fn node_of(&self, b: TestRound) -> u32 {
        b.0 as u32 % self.nodes
    }
}

/// The environment of the specification. The specification's supplier chooses objects in the same way as
/// [`TestSupplier`].
#[derive(Debug)]
struct SpecWorld {
    free: BTreeSet<TestRound>,
    nodes: usize,
    budget: spec::Budget,
}
impl spec::World<TestRound> for SpecWorld {
    fn fill(&mut self, node: usize, most: usize) -> Vec<TestRound> {
        let of_node = |round: &&TestRound| round.0 % self.nodes == node;
        let chosen: Vec<TestRound> = self.free.iter().filter(of_node).take(most).copied().collect();
        chosen.iter().for_each(|round| _ = self.free.remove(round));
        chosen
    }
    fn flush(&mut self, rounds: Vec<TestRound>) {
        self.free.extend(rounds);
    }
    fn node_of(&self, round: &TestRound) -> usize {
        round.0 % self.nodes
    }
    fn budget(&mut self) -> &mut spec::Budget {
        &mut self.budget
    }
}

#[cfg(test)]
pub(crate) fn layer(cpus: Cpus, config: Config) -> Layer<TestRound> {
    Layer::new(&table(cpus), config).unwrap()
}

/// The random parameters of a layer under test. Any number is valid, because it is reduced to the parameter's range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) struct Setup {
    /// Number of CPUs, 1 to 4.
    pub(crate) cpus: u8,
    /// Number of nodes, 1 or 2, and at most the number of CPUs.
    pub(crate) nodes: u8,
    /// Number of objects per magazine, 1 to 5.
    pub(crate) capacity: u8,
    /// Number of objects that the first fill requests, 1 to 5.
    pub(crate) first_fill: u8,
    /// Number of magazines that a stack holds in addition to the required two, 0 to 3.
    pub(crate) stock: u8,
    /// Maximum number of magazines per depot, 0 to 3.
    pub(crate) depot_limit: u8,
    /// Total number of objects that the supplier has, 1 to 80.
    pub(crate) total: u8,
    /// The depots' budget, as a number of objects, 0 to 15.
    pub(crate) budget: u8,
}

#[derive(Clone, Debug, Arbitrary)]
pub(crate) enum Step {
    Alloc {
        cpu: u8,
    },
    Free {
        cpu: u8,
        pick: u16,
    },
    /// Allocates up to 31 objects and frees all of them.
    Burst {
        cpu: u8,
        n: u8,
    },
    Drain {
        from: u8,
        to: u8,
    },
    Reap,
    Purge,
    Shrink,
    /// Drops the layer together with all objects in it. A new layer with the same sizes replaces the dropped layer in
    /// the table.
    Anew,
}

struct Shadow {
    table: Arc<Table<Heap>>,
    config: Config,
    layer: Layer<TestRound>,
    supplier: TestSupplier,
    spec: spec::Layer<TestRound>,
    world: SpecWorld,
    budget: u64,
    total: usize,
    live: Vec<TestRound>,
    allocs: u64,
    frees: u64,
}

impl Shadow {
    fn new(setup: &Setup) -> Self {
        let range = |value: u8, from: u8, to: u8| from + value % (to - from + 1);
        let cpus = u32::from(range(setup.cpus, 1, 4));
        let cpus = Cpus::simulated(cpus, u32::from(range(setup.nodes, 1, cpus.min(2) as u8))).unwrap();
        let capacity = u16::from(range(setup.capacity, 1, 5));
        let (stock, depot_limit) = (range(setup.stock, 0, 3), range(setup.depot_limit, 0, 3));
        let config = Config::new(capacity, stock.into(), depot_limit.into());
        let config = Config { first_fill: range(setup.first_fill, 1, 5).into(), round_bytes: 1, ..config };
        let total = usize::from(range(setup.total, 1, 80));
        let (table, budget) = (table(cpus), u64::from(setup.budget % 16));
        table.depots.keep_at_most(budget);
        let supplier = TestSupplier::new(total, cpus.nodes());
        Self {
            layer: Layer::new(&table, config).unwrap(),
            spec: specified_layer(&config, &cpus),
            world: SpecWorld {
                free: (1..=total).map(TestRound).collect(),
                nodes: cpus.nodes() as usize,
                budget: spec::Budget::new(budget),
            },
            table,
            config,
            supplier,
            budget,
            total,
            live: vec![],
            allocs: 0,
            frees: 0,
        }
    }
    /// Moves the thread to a CPU.
    fn switch_cpu(&self, cpu: u8) -> usize {
        let cpu = u32::from(cpu) % self.table.cpus().count();
        on_cpu(cpu);
        cpu as usize
    }
    fn take(&mut self, cpu: usize) -> bool {
        let round = self.check_operation(|layer, supplier| layer.alloc(supplier));
        assert_eq!(round, self.spec.alloc(cpu, &mut self.world), "the allocated round");
        self.live.extend(round);
        self.allocs += u64::from(round.is_some());
        round.is_some()
    }
    fn give(&mut self, cpu: usize, pick: usize) {
        if !self.live.is_empty() {
            let round = self.live.swap_remove(pick % self.live.len());
            self.check_operation(|layer, supplier| {
                layer.free(supplier, round);
                Some(())
            });
            self.spec.free(cpu, round, &mut self.world);
            self.frees += 1;
        }
    }
    /// Executes one operation, and checks that it is counted only at the level that it reached. An operation that
    /// returns `None` must not be counted.
    fn check_operation<T>(
        &self,
        operation: impl FnOnce(&Layer<TestRound>, &TestSupplier) -> Option<T>,
    ) -> Option<T> {
        let look = || (self.layer.stats(), self.committed(), self.supplier.calls.get());
        let before = look();
        let answer = operation(&self.layer, &self.supplier);
        let after = look();
        let path = if before.2 != after.2 {
            Path::Slab
        } else if (before.0.depot_exchanges, before.1) != (after.0.depot_exchanges, after.1) {
            Path::Depot
        } else {
            Path::Cpu
        };
        for of in Path::ALL {
            let counted = after.0.paths.of(of) - before.0.paths.of(of);
            let one = u64::from(of == path && answer.is_some());
            assert_eq!(counted, one, "{of:?} counts an operation of {path:?}: {after:?}");
        }
        answer
    }
    /// Returns the number of committed bytes in the regions of all CPUs.
    fn committed(&self) -> usize {
        self.table.used_regions(0..self.table.cpus().count()).map(|region| region.committed()).sum()
    }
    fn cached(&self) -> u64 {
        let s = self.layer.stats();
        s.in_magazines + s.in_depot
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { cpu } => {
                let cpu = self.switch_cpu(cpu);
                self.take(cpu);
            }
            Step::Free { cpu, pick } => {
                let cpu = self.switch_cpu(cpu);
                self.give(cpu, pick.into());
            }
            Step::Burst { cpu, n } => {
                let cpu = self.switch_cpu(cpu);
                let got = (0..n % 32).filter(|_| self.take(cpu)).count();
                (0..got).for_each(|_| self.give(cpu, usize::MAX));
            }
            Step::Drain { from, to } => {
                let (from, to) = (u32::from(from) % 5, u32::from(to) % 5);
                self.layer.drain(&self.supplier, from..to);
                self.spec.drain(from as usize..to as usize, &mut self.world);
            }
            Step::Reap => {
                let flushed = self.layer.reap(&self.supplier);
                assert_eq!(flushed, self.spec.reap(&mut self.world) as u64, "each idle round is flushed");
            }
            Step::Shrink => {
                self.layer.shrink();
                self.spec.shrink();
            }
            Step::Anew => self.restart(),
            Step::Purge => {
                self.layer.flush_all(&self.supplier);
                self.spec.flush_all(&mut self.world);
                assert_eq!(self.cached(), 0);
            }
        }
    }

    fn restart(&mut self) {
        // The table has numbers for two layers, but the next layer must get the dropped layer's number.
        self.layer = Layer::new(&self.table, Config::new(1, 0, 0)).unwrap();
        self.layer = Layer::new(&self.table, self.config).unwrap();
        self.spec = specified_layer(&self.config, self.table.cpus());
        let all = (1..=self.total).map(TestRound);
        self.world.free = all.filter(|round| !self.live.contains(round)).collect();
        self.world.budget = spec::Budget::new(self.budget);
        *self.supplier.free.borrow_mut() = self.world.free.clone();
        (self.allocs, self.frees) = (0, 0);
        assert_eq!(self.cached(), 0, "a new layer holds no rounds");
    }

    /// Asserts that each object is where the specification has it, and checks the statistics.
    fn check(&self) {
        // SAFETY: this is the only thread.
        let view = unsafe { self.layer.view(|round| round) };
        let nodes = self.world.nodes;
        for (cpu, shown) in view.cpus.iter().enumerate() {
            let own = self.table.cpus().node_of(cpu as u32) as usize;
            let stacks = (0..nodes).map(|i| self.spec.stack((own + i) % nodes, cpu));
            let magazines = stacks.flat_map(|stack| stack.chunks(self.config.capacity.into()).rev());
            assert!(
                magazines.eq(shown.magazines.iter().map(|of| &*of.rounds)),
                "CPU {cpu}: {view:?} {:?}",
                self.spec
            );
        }
        for (node, shown) in view.depots.iter().enumerate() {
            let full = shown.full.iter().map(|of| of.rounds.clone());
            assert!(
                self.spec.depot(node).magazines_in_take_order().eq(full),
                "depot {node}: {view:?} {:?}",
                self.spec
            );
        }
        assert_eq!(*self.supplier.free.borrow(), self.world.free, "both suppliers must be equal");
        let s = self.layer.stats();
        let held = self.live.len() as u64 + self.cached() + self.world.free.len() as u64;
        assert_eq!(held, self.total as u64, "a round was lost: {s:?}");
        assert_eq!((s.allocs, s.frees), (self.allocs, self.frees));
        assert_eq!(s.paths.operations(), s.allocs + s.frees, "each operation must count at one level: {s:?}");
        assert_eq!(s.busy, 0, "one thread never finds a region in use");
        assert!(self.cached() <= self.config.most_rounds(self.table.cpus()), "{s:?}");
    }
}

/// Creates the specification of a layer with the given parameters.
fn specified_layer(config: &Config, cpus: &Cpus) -> spec::Layer<TestRound> {
    let capacity = usize::from(config.capacity);
    let sizes = spec::Sizes {
        capacity,
        first_fill: usize::from(config.first_fill).min(capacity),
        reach: config.reach().into(),
        depot_limit: config.depot_limit as usize,
        magazine_bytes: config.round_bytes * capacity as u64,
    };
    spec::Layer::new(sizes, (0..cpus.count()).map(|cpu| cpus.node_of(cpu) as usize).collect())
}

/// Executes all steps and compares the states after each step. Frees all objects at the end.
///
/// # Panics
/// Panics if the layer and its specification disagree.
pub(crate) fn run(setup: &Setup, steps: Vec<Step>) {
    let mut shadow = Shadow::new(setup);
    for step in steps {
        shadow.step(step);
        shadow.check();
    }
    let cpu = shadow.switch_cpu(0);
    while !shadow.live.is_empty() {
        shadow.give(cpu, 0);
    }
    shadow.layer.flush_all(&shadow.supplier);
    assert_eq!(shadow.supplier.free.borrow().len(), shadow.total, "all rounds were flushed");
}

#[derive(Debug, Arbitrary)]
struct Case {
    setup: Setup,
    steps: Vec<Step>,
}

/// Decodes the parameters of a layer and a list of steps from `data`, and runs the steps.
///
/// # Panics
/// Panics if the layer and its specification disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(&case.setup, case.steps);
    }
}
