//! Forks while other threads use the magazines. The child must be able to use the magazine layer and its supplier. In
//! the child, only rounds (cached object pointers) that other threads held at the fork may be missing.

use crate::rounds::{Rng, TestRound, TestSupplier, layer, table};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use uslab_magazine::sync::fork::ForkLock;
use uslab_magazine::sync::{Arc, AtomicBool, Ordering::Relaxed, Rank};
use uslab_magazine::{Cpus, Fork, Heap, Layer, Table};

const WORKERS: usize = 4;
const HELD_ROUNDS: usize = 20;
const CAPACITY: u16 = 5;
const ROUNDS: usize = 2000;

/// A magazine layer and its table, which a fork copies together.
struct LayerWithTable<'a>(&'a Arc<Table<Heap>>, &'a Layer<TestRound>);
impl Fork for LayerWithTable<'_> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: the caller keeps the contract of `Fork::locks`, which is the same for the table and the layer.
        unsafe {
            self.0.locks(rank, visit);
            self.1.locks(rank, visit);
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: the caller is the only thread of a forked child and holds the locks of the table and the layer.
        unsafe {
            self.0.forget_other_threads();
            self.1.forget_other_threads();
        }
    }
}

/// Checks that run in the forked child; at the fork, four threads of the parent were using the layer. If a check fails,
/// the function returns its description as the error.
fn child(layer: &uslab_magazine::Layer<TestRound>, supplier: &TestSupplier) -> Result<(), &'static str> {
    let thread_number = 100;
    let mut own_rounds = vec![];
    for _ in 0..200 {
        own_rounds.extend(layer.alloc(supplier));
    }
    if own_rounds.len() != 200 || own_rounds.iter().any(|b| !supplier.stamp(*b, thread_number)) {
        return Err("the child got a round that it holds, or that a thread of the parent holds");
    }
    layer.drain(supplier, 0..layer.cpus().count());
    layer.reap(supplier);
    if own_rounds.iter().any(|b| !supplier.remove_round_stamp(*b, thread_number)) {
        return Err("a round has lost its stamp");
    }
    own_rounds.into_iter().for_each(|b| layer.free(supplier, b));
    layer.flush_all(supplier);
    let mut free = supplier.free.lock().clone();
    free.sort_unstable();
    if free.windows(2).any(|w| w[0] == w[1]) {
        return Err("a round is in two places");
    }
    // A thread may lose the rounds that it held, one round in transit, and a magazine. A drain may lose the rounds that
    // it had taken and not passed on yet.
    let lost_rounds = ROUNDS - free.len();
    let max_rounds = layer.config().most_rounds(layer.cpus()) as usize;
    if lost_rounds > WORKERS * (HELD_ROUNDS + 1 + usize::from(CAPACITY)) + max_rounds {
        return Err("more rounds were lost than were in use");
    }
    Ok(())
}

#[test]
fn forked_child_of_a_busy_process_uses_magazines() {
    let _alone = crate::TEST_LOCK.lock();
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let table = table(cpus);
        let (layer, supplier, stop) =
            (layer(&table, CAPACITY, 2, 4), TestSupplier::new(ROUNDS), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for t in 0..WORKERS {
                let (layer, supplier, stop) = (&layer, &supplier, &stop);
                scope.spawn(move || {
                    let (thread_number, mut dice, mut held_rounds) =
                        (t as u64 + 1, Rng(t as u64 + 1), vec![]);
                    while !stop.load(Relaxed) {
                        if held_rounds.len() < HELD_ROUNDS && dice.below(2) == 0 {
                            let round = layer.alloc(supplier).expect("the supplier must have enough rounds");
                            assert!(supplier.stamp(round, thread_number));
                            held_rounds.push(round);
                        } else if !held_rounds.is_empty() {
                            let round = held_rounds.swap_remove(dice.below(held_rounds.len()));
                            assert!(supplier.remove_round_stamp(round, thread_number));
                            layer.free(supplier, round);
                        }
                    }
                    held_rounds.iter().for_each(|b| assert!(supplier.remove_round_stamp(*b, thread_number)));
                    held_rounds.into_iter().for_each(|b| layer.free(supplier, b));
                });
            }
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    layer.drain(&supplier, 0..layer.cpus().count());
                    std::thread::yield_now();
                }
            });
            let layer_with_table = LayerWithTable(&table, &layer);
            for i in 0..100 {
                let free = supplier.free.lock();
                // SAFETY: `after_fork_in_parent` and `after_fork_in_child` follow.
                unsafe { layer_with_table.before_fork() };
                // SAFETY: the child uses the layer and the supplier, whose locks this thread holds, and libc's
                // allocator, which is usable after a fork. The child then exits without unwinding.
                match unsafe { fork() }.expect("a fork") {
                    ForkResult::Child => {
                        // SAFETY: `fork` copied only this thread.
                        unsafe { layer_with_table.after_fork_in_child() };
                        drop(free);
                        // SAFETY: the call sets an alarm, which ends a hanging child.
                        unsafe { libc::alarm(20) };
                        let outcome = uslab_magazine::sync::catch_panic(|| child(&layer, &supplier));
                        let code = match outcome {
                            Ok(Ok(())) => 0,
                            Ok(Err(what)) => {
                                eprintln!("child {i}, {}: {what}", cpus.mechanism());
                                1
                            }
                            Err(_) => 2,
                        };
                        // SAFETY: the call ends the child immediately.
                        unsafe { libc::_exit(code) }
                    }
                    ForkResult::Parent { child } => {
                        // SAFETY: this is the process that forked.
                        unsafe { layer_with_table.after_fork_in_parent() };
                        drop(free);
                        let status = waitpid(child, None).expect("the child must succeed");
                        if status != WaitStatus::Exited(child, 0) {
                            stop.store(true, Relaxed);
                        }
                        assert_eq!(status, WaitStatus::Exited(child, 0), "{}, fork {i}", cpus.mechanism());
                    }
                }
            }
            stop.store(true, Relaxed);
        });
        layer.flush_all(&supplier);
        assert_eq!(supplier.census().len(), ROUNDS, "the parent must lose no memory");
    }
}
