//! Tests of the table on simulated CPUs.

use super::*;
use crate::cpu::{Mechanism, claimed, rseq};
use crate::magazine::Magazine;
use crate::memory::Heap;
use crate::region::{CAP, Commit, OP_STEP, Pages};
use crate::shadow::table;
use crate::sync::{Arc, AtomicBool, AtomicPtr};
use core::ptr::NonNull;
use core::time::Duration;
use proptest::prelude::*;
use std::collections::BTreeSet;

mod drains;
mod idle_pages;
mod rooms;

fn round(n: usize) -> NonNull<u8> {
    NonNull::new(core::ptr::without_provenance_mut(n)).unwrap()
}
fn rounds(numbers: Range<usize>) -> Vec<NonNull<u8>> {
    numbers.map(round).collect()
}

/// Creates a table in heap memory for `cpus` simulated CPUs, with regions of `region` bytes.
fn simulated(cpus: u32, region: usize) -> Table<Heap> {
    let cpus = Cpus::simulated(cpus, 1).unwrap();
    let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    Table::new(cpus, region, memory).unwrap()
}

impl<M: Memory> Table<M> {
    /// Pushes the objects `rounds` on the class's stack on `cpu`. No other thread may use this stack during the call.
    fn put(&self, cpu: u32, class: Class, rounds: &[NonNull<u8>]) -> bool {
        let region = self.region(cpu).unwrap();
        let push = || region.push_batch(class, rounds, Commit::Done);
        let places = self.limit(class).load(Relaxed);
        push() || self.open(&Operation::new(), cpu, class, places) && push()
    }
    fn len(&self, cpu: u32, class: Class) -> u64 {
        self.region(cpu).unwrap().head(class) & LEN_MASK
    }
    fn drain_all(&self, which: DrainScope, classes: &[Class]) -> Vec<(Class, Vec<usize>)> {
        let mut given = vec![];
        self.drain(0..self.cpus.count(), which, classes.iter().copied(), |class, taken| {
            let rounds = core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get());
            given.push((class, rounds.collect()));
        });
        given
    }
}

fn collected(table: &Table<impl Memory>, class: Class) -> Vec<usize> {
    let mut rounds = vec![];
    table.collect(class, |_, taken| {
        rounds.extend(core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get()));
    });
    rounds
}

/// To observe only allocations, a heap profile closes only the inlined allocation paths.
#[test]
fn inlined_frees_stay_open_while_allocations_are_closed() {
    use crate::shadow::TestSupplier;
    use crate::test_round::TestRound;
    use crate::{Config, Layer, Mechanism};
    let (table, supplier) = (table(Cpus::os()), TestSupplier::new(100, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 2, 2)).unwrap();
    let (allocs, frees, behind) = (
        layer.fast_path(Words::Inlined),
        layer.fast_path(Words::InlinedFrees),
        layer.fast_path(Words::Always),
    );
    let used = || {
        let held: Vec<TestRound> = (0..3).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
    };
    for with_frees in [false, true, false] {
        assert!(table.close_inlined(with_frees));
        let (mut freed, mut had) = (0, 0);
        for _ in 0..1000 {
            used();
            // A drain during the profile must leave closed paths closed.
            layer.drain(&supplier, 0..u32::MAX);
            used();
            // SAFETY: the layer exists until the end of the test.
            assert_eq!(unsafe { allocs.alloc_fast() }, None);
            // SAFETY: the layer exists until the end of the test.
            if let Some(round) = unsafe { behind.alloc_fast() } {
                had += 1;
                // SAFETY: the layer exists until the end of the test, and `round` was allocated from it.
                if unsafe { frees.free_fast(round) } { freed += 1 } else { layer.free(&supplier, round) }
            }
        }
        let sections = layer.mechanism() == Mechanism::Rseq;
        assert!(had > 0 || !sections);
        assert!(if sections && !with_frees { freed > 0 } else { freed == 0 }, "{freed}");
        table.open_inlined();
    }
    layer.flush_all(&supplier);
    assert_eq!(supplier.free.borrow().len(), 100);
}

/// To observe all operations, a heap profile closes all inlined paths. A drain that runs during the profile must leave
/// the inlined paths closed.
#[test]
fn closed_inlined_paths_always_miss() {
    use crate::shadow::TestSupplier;
    use crate::test_round::TestRound;
    use crate::{Config, Layer, Mechanism};
    let (table, supplier) = (table(Cpus::os()), TestSupplier::new(100, 1));
    let layer: Layer<TestRound> = Layer::new(&table, Config::new(4, 2, 2)).unwrap();
    let inlined = layer.fast_path(Words::Inlined);
    // SAFETY: the layer exists until the end of the test.
    let hits = || unsafe { inlined.alloc_fast() }.inspect(|round| layer.free(&supplier, *round)).is_some();
    let used = || {
        let held: Vec<TestRound> = (0..9).map(|_| layer.alloc(&supplier).unwrap()).collect();
        held.into_iter().for_each(|round| layer.free(&supplier, round));
        assert!(layer.stats().in_magazines > 0);
    };
    used();
    assert!(table.close_inlined(true));
    for _ in 0..2 {
        used();
        for _ in 0..1000 {
            assert!(!hits());
            // SAFETY: the layer exists until the end of the test. The inlined path is closed, so it does not
            // push the object on a stack.
            assert!(!unsafe { inlined.free_fast(TestRound(1000)) });
        }
        layer.flush_all(&supplier);
        assert_eq!(supplier.free.borrow().len(), 100, "each round was flushed once");
    }
    table.open_inlined();
    // The paths stay open after a drain, which takes each CPU's words away and restores them.
    for _ in 0..2 {
        if layer.mechanism() == Mechanism::Rseq {
            // The thread may be on another CPU at each operation.
            assert!((0..1000).any(|_| {
                used();
                hits()
            }));
        }
        layer.flush_all(&supplier);
    }
    assert_eq!(supplier.free.borrow().len(), 100);
}

/// The test checks the per-CPU pointer for each CPU number that a section may read, including the two numbers that mean
/// "no CPU".
#[test]
fn closed_cpu_words_point_to_the_empty_region() {
    use crate::Mechanism;
    for cpus in [Cpus::os(), Cpus::simulated(3, 1).unwrap()] {
        let (table, count) = (table(cpus), cpus.count());
        let class = table.class(8).unwrap();
        assert!((0..count).all(|cpu| table.put(cpu, class, &rounds(1..2))));
        let set = SPARE_POINTERS + cpus.word_count() as usize;
        // The flags of `closed` are for the words of inlined paths, and for the words of inlined frees by
        // address.
        let check = |closed: [bool; 2]| {
            for slot in 0..3 * set {
                // SAFETY: `new` has written three sets of words at the start of the memory.
                let word = unsafe { table.memory.base().cast::<AtomicPtr<u8>>().add(slot).as_ref() };
                let open = slot < set || !closed[slot / set - 1];
                let cpu =
                    (slot % set).checked_sub(SPARE_POINTERS).filter(|cpu| open && *cpu < count as usize);
                let region = table.home(cpu.map_or(count, |cpu| cpu as u32));
                assert_eq!(word.load(Relaxed), region.as_ptr(), "word {slot} of 3 sets of {set} words");
            }
        };
        check([false; 2]);
        for with_frees in [false, true] {
            assert!(table.close_inlined(with_frees));
            let sections = cpus.mechanism() == Mechanism::Rseq;
            check([sections, sections && with_frees]);
            // A drain takes all regions away, and restores only the open words.
            let one_at_a_time = table.lock_drains();
            assert!(table.with_region_ownership(0..count, |_| true, &mut |_| ()));
            check([sections, sections && with_frees]);
            drop(one_at_a_time);
            table.open_inlined();
            check([false; 2]);
        }
    }
}
