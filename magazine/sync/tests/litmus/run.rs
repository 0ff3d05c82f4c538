//! Runs litmus tests under loom, with and without the repairs of `uslab_sync`.

use crate::program::{FinalRegister, Op, Order, RACE, Registers, Shape, Statement, Value};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use uslab_sync::check::loom;

/// An implementation of the memory locations, fences and threads of a litmus test.
pub(crate) trait Memory: 'static {
    type AtomicCell;
    type PlainCell;
    type Thread;
    fn atomic() -> Self::AtomicCell;
    fn plain() -> Self::PlainCell;
    fn load(place: &Self::AtomicCell, order: Ordering) -> u64;
    fn store(place: &Self::AtomicCell, value: u64, order: Ordering);
    fn change(place: &Self::AtomicCell, change: crate::program::Change, value: u64, order: Ordering) -> u64;
    fn exchange(
        place: &Self::AtomicCell,
        values: [u64; 2],
        orders: [Ordering; 2],
        weak: bool,
    ) -> Result<u64, u64>;
    fn get(place: &Self::PlainCell) -> u64;
    fn set(place: &Self::PlainCell, value: u64);
    fn fence(order: Ordering);
    fn spawn(f: impl FnOnce() -> Registers + 'static) -> Self::Thread;
    fn join(thread: Self::Thread) -> Registers;
    /// Makes the `k`-th weak exchange fail spuriously, if the implementation supports it.
    fn arm(k: u32);
}

macro_rules! memory {
    ($(#[$doc:meta])* $name:ident, $crate_:path, $atomic:ty, $plain:ty, $thread:ident, $fence:path, $arm:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;
        impl Memory for $name {
            type AtomicCell = $atomic;
            type PlainCell = $plain;
            type Thread = loom::thread::JoinHandle<Registers>;
            fn atomic() -> Self::AtomicCell {
                <$atomic>::new(0)
            }
            fn plain() -> Self::PlainCell {
                <$plain>::new(0)
            }
            fn load(place: &Self::AtomicCell, order: Ordering) -> u64 {
                place.load(order)
            }
            fn store(place: &Self::AtomicCell, value: u64, order: Ordering) {
                place.store(value, order);
            }
            fn change(place: &Self::AtomicCell, change: crate::program::Change, value: u64, order: Ordering) -> u64 {
                use crate::program::Change;
                match change {
                    Change::Add => place.fetch_add(value, order),
                    Change::Sub => place.fetch_sub(value, order),
                    Change::And => place.fetch_and(value, order),
                    Change::Or => place.fetch_or(value, order),
                    Change::Xor => place.fetch_xor(value, order),
                    Change::Max => place.fetch_max(value, order),
                    Change::Min => place.fetch_min(value, order),
                    Change::Swap => place.swap(value, order),
                }
            }
            fn exchange(
                place: &Self::AtomicCell, [expected, new]: [u64; 2], [success, failure]: [Ordering; 2], weak: bool,
            ) -> Result<u64, u64> {
                if weak {
                    place.compare_exchange_weak(expected, new, success, failure)
                } else {
                    place.compare_exchange(expected, new, success, failure)
                }
            }
            fn get(place: &Self::PlainCell) -> u64 {
                // SAFETY: loom reports a read that races with `set`, and the value of such a read is not used.
                place.with(|value| unsafe { *value })
            }
            fn set(place: &Self::PlainCell, value: u64) {
                // SAFETY: loom reports a write that races with another access.
                place.with_mut(|into| unsafe { *into = value });
            }
            fn fence(order: Ordering) {
                $fence(order);
            }
            fn spawn(f: impl FnOnce() -> Registers + 'static) -> Self::Thread {
                $thread::thread::spawn(f)
            }
            fn join(thread: Self::Thread) -> Registers {
                thread.join().expect("the thread must not panic")
            }
            fn arm(k: u32) {
                let arm: fn(u32) = $arm;
                arm(k);
            }
        }
    };
}
memory! {
    Stock, loom, loom::sync::atomic::AtomicU64, loom::cell::UnsafeCell<u64>, loom, loom::sync::atomic::fence, |_| ()
}
memory! {
    Facade, uslab_sync, uslab_sync::AtomicU64, uslab_sync::UnsafeCell<u64>, uslab_sync, uslab_sync::fence, uslab_sync::arm_spurious_failure
}

enum MemoryCell<M: Memory> {
    Atomic(M::AtomicCell),
    Plain(M::PlainCell),
}

fn ordering(order: Order) -> Ordering {
    match order {
        Order::Plain | Order::Rlx => Ordering::Relaxed,
        Order::Acq => Ordering::Acquire,
        Order::Rel => Ordering::Release,
        Order::AcqRel => Ordering::AcqRel,
        Order::Sc => Ordering::SeqCst,
    }
}

fn run<M: Memory>(statements: &[Statement], places: &[MemoryCell<M>], count: usize) -> Registers {
    let mut registers: Registers = vec![None; count];
    let atomic = |place: usize| match &places[place] {
        MemoryCell::Atomic(atomic) => atomic,
        MemoryCell::Plain(_) => panic!("a plain location must have only plain accesses"),
    };
    for statement in statements {
        if !statement.is_executed(&registers) {
            continue;
        }
        let found = |value| Some(FinalRegister { value, spurious: false });
        match statement.op {
            Op::Fence(order) => M::fence(ordering(order)),
            Op::Store { place, value, order } => {
                let value = match value {
                    Value::Number(number) => number,
                    Value::Register(register) => registers[register].map_or(0, |found| found.value),
                };
                match &places[place] {
                    MemoryCell::Plain(plain) => M::set(plain, value),
                    MemoryCell::Atomic(atomic) => M::store(atomic, value, ordering(order)),
                }
            }
            Op::Load { register, place, order } => {
                registers[register] = found(match &places[place] {
                    MemoryCell::Plain(plain) => M::get(plain),
                    MemoryCell::Atomic(atomic) => M::load(atomic, ordering(order)),
                });
            }
            Op::Change { register, place, change, value, order } => {
                registers[register] = found(M::change(atomic(place), change, value, ordering(order)));
            }
            Op::Exchange { register, place, expected, new, orders, weak } => {
                let result = M::exchange(atomic(place), [expected, new], orders.map(ordering), weak);
                registers[register] = match result {
                    Ok(value) => found(value),
                    Err(value) => Some(FinalRegister { value, spurious: value == expected }),
                };
            }
        }
    }
    registers
}

/// The outcomes that loom explored, and the number of executions.
#[derive(Debug)]
pub(crate) struct ExploredOutcomes {
    pub outcomes: BTreeSet<String>,
    pub executions: u64,
    pub failure: Option<String>,
}

/// Explores all outcomes of a litmus test.
pub(crate) fn explore<M: Memory>(shape: &Shape) -> ExploredOutcomes {
    let shape = Arc::new(shape.clone());
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    let executions = Arc::new(AtomicU64::new(0));
    let mut failure = None;
    for armed in 0..=shape.weak_exchanges() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = bound(&shape);
        let (shape, sink, count) = (shape.clone(), outcomes.clone(), executions.clone());
        let model = move || {
            count.fetch_add(1, Ordering::Relaxed);
            M::arm(armed);
            let places = (0..shape.places.len()).map(|place| {
                if shape.plain.contains(&place) {
                    MemoryCell::Plain(M::plain())
                } else {
                    MemoryCell::<M>::Atomic(M::atomic())
                }
            });
            let places: Arc<Vec<MemoryCell<M>>> = Arc::new(places.collect());
            let threads: Vec<M::Thread> = (1..shape.threads.len())
                .map(|thread| {
                    let (shape, places) = (shape.clone(), places.clone());
                    M::spawn(move || run::<M>(&shape.threads[thread], &places, shape.registers.len()))
                })
                .collect();
            let mut registers = run::<M>(&shape.threads[0], &places, shape.registers.len());
            for thread in threads {
                for (into, found) in registers.iter_mut().zip(M::join(thread)) {
                    *into = into.or(found);
                }
            }
            let last = |place: usize| match &places[place] {
                MemoryCell::Plain(plain) => M::get(plain),
                MemoryCell::Atomic(atomic) => M::load(atomic, Ordering::Relaxed),
            };
            let outcome = shape.outcome(&registers, last);
            sink.lock().unwrap().insert(outcome);
        };
        // A panic destroys a checker's thread-local state, so loom runs on a separate thread.
        let planted = uslab_sync::check::current_planted_bug();
        let ended = std::thread::spawn(move || {
            uslab_sync::check::plant(planted);
            catch_unwind(AssertUnwindSafe(|| builder.check(model)))
        })
        .join();
        if let Ok(Err(panic)) | Err(panic) = ended {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let text = text.unwrap_or_default();
            if text.contains("Causality violation") {
                *outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    BTreeSet::from([RACE.to_owned()]);
            } else {
                failure = Some(text);
            }
        }
    }
    let outcomes = outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    ExploredOutcomes { outcomes, executions: executions.load(Ordering::Relaxed), failure }
}

/// Returns the bound on pre-emptions with which a litmus test is explored. For large litmus tests, a higher bound would
/// add no outcome.
pub(crate) fn bound(shape: &Shape) -> Option<usize> {
    let statements: usize = shape.threads.iter().map(Vec::len).sum();
    match shape.threads.len() {
        0..=2 if statements <= 6 => None,
        0..=3 => Some(3),
        _ => Some(2),
    }
}
