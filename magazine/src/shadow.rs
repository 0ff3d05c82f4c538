//! The layer's shadow model: a plain list of the owners of all rounds. A layer on simulated CPUs executes the same
//! steps, in one thread. Property tests and the fuzzer generate the steps, and this module checks each result.

use crate::sync::Arc;
use crate::test_round::TestRound;
pub(crate) use crate::test_round::table;
use crate::{Config, Cpus, Heap, Layer, Operation, Path, Supplier, Table, on_cpu};
use arbitrary::{Arbitrary, Unstructured};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A supplier of rounds 1 to n. Round b belongs to node b % nodes.
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

#[cfg(test)]
pub(crate) fn layer(cpus: Cpus, config: Config) -> Layer<TestRound> {
    Layer::new(&table(cpus), config).unwrap()
}

/// Parameters of a layer. Each parameter is reduced to its range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) struct Setup {
    /// Number of CPUs, 1 to 4.
    pub(crate) cpus: u8,
    /// Number of nodes, 1 to 2, and at most the number of CPUs.
    pub(crate) nodes: u8,
    /// Rounds per magazine, 1 to 5.
    pub(crate) capacity: u8,
    /// Rounds of the first fill, 1 to 5.
    pub(crate) first_fill: u8,
    /// Magazines of stock per stack, 0 to 3.
    pub(crate) stock: u8,
    /// Magazines per depot, 0 to 3.
    pub(crate) depot_limit: u8,
    /// Total number of rounds, 1 to 80.
    pub(crate) total: u8,
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
    /// Allocates the given number of rounds, at most 31, and frees them.
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
    /// Drops the layer with all its rounds. A new layer of equal sizes takes its place in the table.
    Anew,
}

struct Shadow {
    table: Arc<Table<Heap>>,
    config: Config,
    layer: Layer<TestRound>,
    supplier: TestSupplier,
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
        let config = Config { first_fill: range(setup.first_fill, 1, 5).into(), ..config };
        let total = usize::from(range(setup.total, 1, 80));
        let table = table(cpus);
        Self {
            layer: Layer::new(&table, config).unwrap(),
            table,
            config,
            supplier: TestSupplier::new(total, cpus.nodes()),
            total,
            live: vec![],
            allocs: 0,
            frees: 0,
        }
    }
    fn switch_cpu(&self, cpu: u8) {
        on_cpu(u32::from(cpu) % self.table.cpus().count());
    }
    fn got(&mut self, round: TestRound) {
        assert!(!self.live.contains(&round), "{round:?} allocated twice");
        self.live.push(round);
        self.allocs += 1;
    }
    fn take(&mut self) -> bool {
        let round = self.check_operation(|layer, supplier| layer.alloc(supplier));
        round.map(|round| self.got(round)).is_some()
    }
    fn pick(&mut self, pick: usize) -> Option<TestRound> {
        let n = self.live.len();
        (n > 0).then(|| self.live.swap_remove(pick % n))
    }
    fn give(&mut self, pick: usize) {
        if let Some(round) = self.pick(pick) {
            self.check_operation(|layer, supplier| {
                layer.free(supplier, round);
                Some(())
            });
            self.frees += 1;
        }
    }
    /// Executes one operation, and checks that exactly the level that the operation reached counts it. An operation
    /// that returns `None` does not count.
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
            assert_eq!(counted, one, "{of:?} of an operation of class {path:?}: {after:?}");
        }
        answer
    }
    /// Committed bytes in the regions of all CPUs.
    fn committed(&self) -> usize {
        self.table.used(0..self.table.cpus().count()).map(|region| region.committed()).sum()
    }
    fn cached(&self) -> u64 {
        let s = self.layer.stats();
        s.in_magazines + s.in_depot
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { cpu } => {
                self.switch_cpu(cpu);
                self.take();
            }
            Step::Free { cpu, pick } => {
                self.switch_cpu(cpu);
                self.give(pick.into());
            }
            Step::Burst { cpu, n } => {
                self.switch_cpu(cpu);
                let got = (0..n % 32).filter(|_| self.take()).count();
                (0..got).for_each(|_| self.give(usize::MAX));
            }
            Step::Drain { from, to } => {
                let (from, to) = (u32::from(from) % 5, u32::from(to) % 5);
                self.layer.drain(&self.supplier, from..to);
            }
            Step::Reap => drop(self.layer.reap(&self.supplier)),
            Step::Shrink => self.layer.shrink(),
            Step::Anew => self.restart(),
            Step::Purge => {
                self.layer.flush_all(&self.supplier);
                assert_eq!(self.cached(), 0);
            }
        }
    }

    fn restart(&mut self) {
        // The table has numbers for two layers, but the next layer must get the dropped layer's number.
        self.layer = Layer::new(&self.table, Config::new(1, 0, 0)).unwrap();
        self.layer = Layer::new(&self.table, self.config).unwrap();
        let all = (1..=self.total).map(TestRound);
        *self.supplier.free.borrow_mut() = all.filter(|round| !self.live.contains(round)).collect();
        (self.allocs, self.frees) = (0, 0);
        assert_eq!(self.cached(), 0, "a new layer holds no rounds");
    }

    /// Checks I1, I5, I6, and the statistics.
    fn check(&self) {
        let s = self.layer.stats();
        let held = self.live.len() as u64 + self.cached() + self.supplier.free.borrow().len() as u64;
        assert_eq!(held, self.total as u64, "a round was lost: {s:?}");
        // SAFETY: this is the only thread.
        let view = unsafe { self.layer.view(|round| round) };
        let depots = || view.depots.iter().flat_map(|depot| &depot.full);
        assert!(depots().all(|full| full.rounds.len() == usize::from(self.config.capacity)), "{view:?}");
        let magazines = view.cpus.iter().flat_map(|cpu| &cpu.magazines).chain(depots());
        let mut all: Vec<TestRound> = magazines.flat_map(|magazine| magazine.rounds.clone()).collect();
        all.extend(self.live.iter().chain(&*self.supplier.free.borrow()));
        all.sort_unstable();
        assert!(all.iter().copied().eq((1..=self.total).map(TestRound)), "each round in one place: {view:?}");
        assert_eq!((s.allocs, s.frees), (self.allocs, self.frees));
        assert_eq!(s.paths.operations(), s.allocs + s.frees, "each operation has one level: {s:?}");
        assert_eq!(s.busy, 0, "one thread never meets contention");
        assert!(self.cached() <= self.config.most_rounds(self.table.cpus()), "{s:?}");
    }
}

/// Executes all steps, checks the state after each step, and frees all rounds at the end.
///
/// # Panics
/// Panics if the layer and its shadow model disagree.
pub(crate) fn run(setup: &Setup, steps: Vec<Step>) {
    let mut shadow = Shadow::new(setup);
    for step in steps {
        shadow.step(step);
        shadow.check();
    }
    while !shadow.live.is_empty() {
        shadow.give(0);
    }
    shadow.layer.flush_all(&shadow.supplier);
    assert_eq!(shadow.supplier.free.borrow().len(), shadow.total, "all rounds were flushed");
}

#[derive(Debug, Arbitrary)]
struct Case {
    setup: Setup,
    steps: Vec<Step>,
}

/// Decodes a layer and its steps from `data`, and runs the steps.
///
/// # Panics
/// Panics if the layer and its shadow model disagree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(&case.setup, case.steps);
    }
}
