//! The layer's shadow model, in one thread on simulated CPUs: a plain list of who holds which round, beside a layer that
//! does the same steps. Property tests and the fuzzer make the steps; what must hold is here.

use crate::ball::Ball;
use crate::slot::{Pair, Which};
use crate::{Config, Cpus, Heap, Layer, Operation, Path, Private, Stats, Supplier, on_cpu};
use arbitrary::{Arbitrary, Unstructured};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Balls 1..=n; ball b belongs to node b % nodes.
pub(crate) struct Shelf {
    pub(crate) free: RefCell<BTreeSet<Ball>>,
    nodes: u32,
    /// Times that it was asked.
    calls: Cell<u64>,
}
impl Shelf {
    pub(crate) fn new(n: usize, nodes: u32) -> Self {
        Self { free: RefCell::new((1..=n).map(Ball).collect()), nodes, calls: Cell::new(0) }
    }
}
impl Supplier<Ball> for Shelf {
    fn fill(&self, op: &Operation, node: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
        op.did(Path::Slab);
        self.calls.set(self.calls.get() + 1);
        let mut free = self.free.borrow_mut();
        let chosen: Vec<Ball> =
            free.iter().filter(|b| self.node_of(**b) == node).take(max).copied().collect();
        for b in &chosen {
            free.remove(b);
            put(*b);
        }
        chosen.len()
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = Ball>) {
        op.did(Path::Slab);
        self.calls.set(self.calls.get() + 1);
        for b in rounds {
            assert!(self.free.borrow_mut().insert(b), "{b:?} came back twice");
        }
    }
    fn node_of(&self, b: Ball) -> u32 {
        b.0 as u32 % self.nodes
    }
}

/// A layer to be made. Every value is brought into its range.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) struct Setup {
    /// 1 to 4.
    pub(crate) cpus: u8,
    /// 1 to 2, and no more than CPUs.
    pub(crate) nodes: u8,
    /// 1 to 5.
    pub(crate) capacity: u8,
    /// The largest magazine is 1 to 2 times as large.
    pub(crate) growth: u8,
    /// 1 to 5.
    pub(crate) first_fill: u8,
    /// 0 to 3.
    pub(crate) stock: u8,
    /// 0 to 3.
    pub(crate) depot_limit: u8,
    /// Fewer magazines than it may want, up to 15.
    pub(crate) magazines: Option<u8>,
    /// Rounds in all, 1 to 80.
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
    /// So many, up to 31, and back again.
    Burst {
        cpu: u8,
        n: u8,
    },
    /// A private magazine of up to 31 rounds: some are taken out and kept, others put in.
    Private {
        cpu: u8,
        n: u8,
        pops: u8,
        pushes: u8,
    },
    Drain {
        from: u8,
        to: u8,
    },
    Reap,
    Purge,
    /// Magazines become smaller, or as large as they get.
    Shrink,
    Grow,
}

struct Shadow {
    cpus: Cpus,
    layer: Layer<Ball>,
    shelf: Shelf,
    total: usize,
    most_cached: u64,
    live: Vec<Ball>,
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
        let config = Config::new(&cpus, capacity, stock.into(), depot_limit.into());
        let config = Config {
            largest: capacity * u16::from(range(setup.growth, 1, 2)),
            first_fill: range(setup.first_fill, 1, 5).into(),
            magazines: setup.magazines.map_or(config.magazines, |n| config.magazines.min(u32::from(n % 16))),
            ..config
        };
        let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
        let total = usize::from(range(setup.total, 1, 80));
        Self {
            cpus,
            layer: Layer::new(cpus, config, memory).unwrap(),
            shelf: Shelf::new(total, cpus.nodes()),
            total,
            most_cached: config.most_rounds(&cpus),
            live: vec![],
            allocs: 0,
            frees: 0,
        }
    }
    fn on(&self, cpu: u8) {
        on_cpu(u32::from(cpu) % self.cpus.count());
    }
    fn got(&mut self, ball: Ball) {
        assert!(!self.live.contains(&ball), "{ball:?} handed out twice");
        self.live.push(ball);
        self.allocs += 1;
    }
    fn take(&mut self) -> bool {
        let ball = self.seen(|layer, shelf| layer.alloc(shelf));
        ball.map(|ball| self.got(ball)).is_some()
    }
    fn pick(&mut self, pick: usize) -> Option<Ball> {
        let n = self.live.len();
        (n > 0).then(|| self.live.swap_remove(pick % n))
    }
    fn give(&mut self, pick: usize) {
        if let Some(ball) = self.pick(pick) {
            self.seen(|layer, shelf| {
                layer.free(shelf, ball);
                Some(())
            });
            self.frees += 1;
        }
    }
    /// Does one operation (none if it has no answer), and looks which of all classes counts it: the class of what changed.
    fn seen<T>(&self, operation: impl FnOnce(&Layer<Ball>, &Shelf) -> Option<T>) -> Option<T> {
        let before = (self.layer.stats(), self.stocks(), self.shelf.calls.get());
        let answer = operation(&self.layer, &self.shelf);
        let after = (self.layer.stats(), self.stocks(), self.shelf.calls.get());
        let shared = |s: &Stats| (s.depot_exchanges, s.magazines);
        let path = if before.2 != after.2 {
            Path::Slab
        } else if shared(&before.0) != shared(&after.0) || before.1 != after.1 {
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
    /// CPUs' stocks that there are; one that a drain took comes from the depot again.
    fn stocks(&self) -> usize {
        let slots = (0..self.cpus.count()).flat_map(|cpu| [(cpu, Which::Full), (cpu, Which::Empty)]);
        slots.filter(|(cpu, which)| self.layer.store.pair(*cpu, *which) != Pair::SENTINELS).count()
    }
    fn cached(&self) -> u64 {
        let s = self.layer.stats();
        s.in_magazines + s.in_stock + s.in_depot
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { cpu } => {
                self.on(cpu);
                self.take();
            }
            Step::Free { cpu, pick } => {
                self.on(cpu);
                self.give(pick.into());
            }
            Step::Burst { cpu, n } => {
                self.on(cpu);
                let got = (0..n % 32).filter(|_| self.take()).count();
                (0..got).for_each(|_| self.give(usize::MAX));
            }
            Step::Private { cpu, n, pops, pushes } => {
                self.on(cpu);
                self.private(usize::from(n % 32), pops % 32, pushes % 32);
            }
            Step::Drain { from, to } => {
                let (from, to) = (u32::from(from) % 5, u32::from(to) % 5);
                self.layer.drain(&self.shelf, from..to);
            }
            Step::Reap => drop(self.layer.reap(&self.shelf)),
            Step::Shrink => self.layer.shrink(),
            Step::Grow => self.layer.grow(),
            Step::Purge => {
                self.layer.purge(&self.shelf);
                assert_eq!(self.cached(), 0);
            }
        }
    }

    /// What a private magazine promised, it holds.
    fn private(&mut self, n: usize, pops: u8, pushes: u8) {
        // The magazine borrows the layer, the balls do not.
        let mut out = vec![];
        let mut back: Vec<Ball> = (0..pushes).map_while(|i| self.pick(i.into())).collect();
        let private: Option<Private<'_, Ball>> = self.layer.private(&self.shelf, n);
        if let Some(mut private) = private {
            assert!(private.len() >= n, "{} of {n}", private.len());
            out.extend((0..pops).map_while(|_| self.seen(|_, _| private.pop())));
            assert!(out.len() >= n.min(pops.into()), "{} of {n} promised", out.len());
            self.frees += back.len() as u64;
            for ball in back.drain(..) {
                self.seen(|_, shelf| {
                    private.push(shelf, ball);
                    Some(())
                });
            }
            private.close(&self.shelf);
        }
        out.into_iter().for_each(|ball| self.got(ball));
        // Without a private magazine they stay out.
        self.live.append(&mut back);
    }

    /// I5, and that the statistics tell the truth.
    fn check(&self) {
        let s = self.layer.stats();
        let held = self.live.len() as u64 + self.cached() + self.shelf.free.borrow().len() as u64;
        assert_eq!(held, self.total as u64, "a ball was lost: {s:?}");
        assert_eq!((s.allocs, s.frees), (self.allocs, self.frees));
        assert_eq!(s.paths.operations(), s.allocs + s.frees, "each operation is of one class: {s:?}");
        assert_eq!((s.changed, s.busy), (0, 0), "one thread never meets anybody");
        assert!(self.cached() <= self.most_cached, "{s:?}");
    }
}

/// Does all steps, checks after each of them and frees everything in the end.
///
/// # Panics
/// The layer and its shadow do not agree.
pub(crate) fn run(setup: &Setup, steps: Vec<Step>) {
    let mut shadow = Shadow::new(setup);
    for step in steps {
        shadow.step(step);
        shadow.check();
    }
    while !shadow.live.is_empty() {
        shadow.give(0);
    }
    shadow.layer.purge(&shadow.shelf);
    assert_eq!(shadow.shelf.free.borrow().len(), shadow.total, "all balls are back");
}

#[derive(Debug, Arbitrary)]
struct Case {
    setup: Setup,
    steps: Vec<Step>,
}

/// Runs the layer that `data` describes through the steps that it describes.
///
/// # Panics
/// The layer and its shadow do not agree.
pub fn fuzz(data: &[u8]) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) {
        run(&case.setup, case.steps);
    }
}
