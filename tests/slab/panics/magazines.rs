//! Tests panics in callbacks of the magazine layer: the supplier of a layer, and the memory of a table.

use super::*;
use core::ops::Range;
use core::ptr::NonNull;
use uslab_magazine::{Config, Cpus, Heap, Layer, Memory, Operation, Round, Supplier, Table, on_cpu};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(usize);
impl Round for Number {
    fn into_raw(self) -> NonNull<u8> {
        NonNull::without_provenance(core::num::NonZeroUsize::new(self.0).unwrap())
    }
    unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        Self(raw.addr().get())
    }
}

/// The size of a region, large enough for a region to commit more memory several times.
const REGION: usize = 1 << 18;

fn table<M: Memory>(memory: impl FnOnce(Heap) -> M) -> Arc<Table<M>> {
    let cpus = Cpus::simulated(1, 1).unwrap();
    let heap = Heap::new(Table::<Heap>::footprint(&cpus, REGION)).unwrap();
    Arc::new(Table::new(cpus, REGION, memory(heap)).unwrap())
}

/// A supplier that runs a closure when the layer requests or flushes rounds.
struct ClosureRunner<F> {
    free: Mutex<Vec<Number>>,
    run: F,
}
impl<F: Fn(bool)> ClosureRunner<F> {
    fn new(rounds: usize, run: F) -> Self {
        Self { free: Mutex::new((1..=rounds).map(Number).collect()), run }
    }
    /// Flushes the layer, and returns the number of free rounds; fails if a round is free twice.
    fn census<M: Memory>(&self, layer: &Layer<Number, M>) -> usize {
        layer.flush_all(self);
        let mut free = self.free.lock().clone();
        free.sort_unstable_by_key(|round| round.0);
        assert!(free.windows(2).all(|pair| pair[0] != pair[1]));
        free.len()
    }
}
impl<F: Fn(bool)> Supplier<Number> for ClosureRunner<F> {
    fn fill(&self, _: &Operation, _: u32, max: usize, mut add: impl FnMut(Number)) -> usize {
        (self.run)(true);
        let mut handed_out = 0;
        while handed_out < max
            && let Some(round) = { self.free.lock().pop() }
        {
            add(round);
            handed_out += 1;
        }
        handed_out
    }
    fn flush(&self, _: &Operation, rounds: impl Iterator<Item = Number>) {
        (self.run)(false);
        rounds.for_each(|round| self.free.lock().push(round));
    }
}

pub(super) mod supplier {
    use super::*;

    pub(crate) fn bomb() {
        on_cpu(0);
        let table = table(|heap| heap);
        let layer = Layer::new(&table, Config::new(4, 0, 1)).unwrap();
        let is_armed = AtomicBool::new(true);
        let supplier = ClosureRunner::new(100, |_| {
            if is_armed.swap(false, Relaxed) {
                panic_with_drop_payload()
            }
        });
        assert_panic_reaches_caller(|| layer.alloc(&supplier));
        let rounds = [(); 30].map(|()| layer.alloc(&supplier).unwrap());
        rounds.into_iter().for_each(|round| layer.free(&supplier, round));
        is_armed.store(true, Relaxed);
        let cached_rounds = layer.stats().in_magazines as usize;
        assert_panic_reaches_caller(|| layer.drain(&supplier, 0..1));
        assert_eq!(layer.stats().in_magazines, 0);
        let round = layer.alloc(&supplier).unwrap();
        layer.free(&supplier, round);
        assert!(layer.stats().in_magazines > 0, "the class must be open again");
        assert_eq!(
            supplier.census(&layer),
            100 - cached_rounds,
            "only the rounds of the panicking call may be lost"
        );
    }
    pub(crate) fn reenters() {
        on_cpu(0);
        let table = table(|heap| heap);
        let layer: Layer<Number> = Layer::new(&table, Config::new(4, 0, 1)).unwrap();
        let (is_inside, calls) = (AtomicBool::new(false), Mutex::new(0));
        let run_once = |f: &dyn Fn()| {
            if !is_inside.swap(true, Relaxed) {
                f();
                is_inside.store(false, Relaxed);
            }
        };
        // The supplier cannot name itself, so the call uses another supplier of the same layer.
        let other_runner = ClosureRunner::new(0, |_| ());
        other_runner.free.lock().extend((101..=200).map(Number));
        let supplier = ClosureRunner::new(100, |_| {
            run_once(&|| {
                *calls.lock() += 1;
                let rounds = [(); 5].map(|()| layer.alloc(&other_runner).unwrap());
                rounds.into_iter().for_each(|round| layer.free(&other_runner, round));
                layer.drain(&other_runner, 0..1);
                layer.reap(&other_runner);
            });
        });
        let rounds = [(); 30].map(|()| layer.alloc(&supplier).unwrap());
        rounds.into_iter().for_each(|round| layer.free(&supplier, round));
        layer.drain(&supplier, 0..1);
        assert!(*calls.lock() > 2);
        assert_eq!(supplier.census(&layer) + other_runner.free.lock().len(), 200);
    }
    /// If a supplier closes its own layer during a call, the layer returns all rounds to the supplier.
    pub(crate) fn removes_itself() {
        on_cpu(0);
        let table = table(|heap| heap);
        let layer: Layer<Number> = Layer::new(&table, Config::new(4, 0, 1)).unwrap();
        let supplier = ClosureRunner::new(100, |fills| {
            if fills {
                layer.close()
            }
        });
        let rounds = [(); 30].map(|()| layer.alloc(&supplier).unwrap());
        rounds.into_iter().for_each(|round| layer.free(&supplier, round));
        assert_eq!(layer.stats().in_magazines, 0);
        assert_eq!(supplier.census(&layer), 100);
    }
}

pub(super) mod memory {
    use super::*;

    struct Panics(Heap, Arc<AtomicBool>);
    // SAFETY: all methods forward to `Heap`.
    unsafe impl Memory for Panics {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        fn bytes(&self) -> usize {
            self.0.bytes()
        }
        fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
            if self.1.load(Relaxed) {
                panic_with_drop_payload();
            }
            self.0.commit(op, range)
        }
        unsafe fn decommit(&self, range: Range<usize>) -> bool {
            if self.1.load(Relaxed) {
                panic_with_drop_payload();
            }
            // SAFETY: the caller keeps the contract of `Memory::decommit`, which is the same for the heap.
            unsafe { self.0.decommit(range) }
        }
    }

    /// The CPU works without a stack if the system has refused memory for the stack.
    pub(crate) fn bomb() {
        on_cpu(0);
        let is_armed = Arc::new(AtomicBool::new(false));
        let table = table(|heap| Panics(heap, is_armed.clone()));
        let layer: Layer<Number, Panics> = Layer::new(&table, Config::new(4, 0, 1)).unwrap();
        let supplier = ClosureRunner::new(100, |_| ());
        let use_all = || {
            let rounds = [(); 100].map(|()| layer.alloc(&supplier).unwrap());
            assert!(layer.alloc(&supplier).is_none());
            rounds.into_iter().for_each(|round| layer.free(&supplier, round));
        };
        is_armed.store(true, Relaxed);
        use_all();
        assert_eq!(layer.stats().in_magazines, 0);
        is_armed.store(false, Relaxed);
        use_all();
        assert!(layer.stats().in_magazines > 0);
        layer.flush_all(&supplier);
        is_armed.store(true, Relaxed);
        table.decommit_idle();
        use_all();
        assert_eq!(supplier.census(&layer), 100);
    }
}
