//! Tests of stacks, drains and sweeps. On real CPUs, a test checks that a drain has exclusive access to a region.

use super::*;

#[test]
fn stack_operations_respect_capacity_and_limit() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    let region = table.region(0).unwrap();
    let look = || (region.head(class) / OP_STEP, region.head(class) & LEN_MASK, region.cap(class));
    assert_eq!((region.pop(class, Commit::Done), region.push(class, round(1), Commit::Done)), (None, false));
    let batch = |numbers: Range<usize>| region.push_batch(class, &rounds(numbers), Commit::Done);
    assert!(!batch(1..2), "no region is committed");
    assert!(table.open(&Operation::new(), 0, class, 8));
    assert!(batch(1..2));
    assert_eq!(look(), (0, 1, 1));
    assert!(!region.push(class, round(2), Commit::Done));
    // A batch doubles the number of places, or adds the number of places that it needs, up to the limit.
    assert!(batch(2..3));
    assert_eq!(look(), (0, 2, 2));
    assert!(batch(3..8));
    assert_eq!(look(), (0, 7, 7));
    assert!(!batch(8..10));
    assert_eq!(look(), (0, 7, 7));
    assert!(batch(8..9));
    assert_eq!(look(), (0, 8, 8));
    // Only single pops and pushes are counted.
    assert_eq!(region.pop(class, Commit::Done), Some(round(8)));
    assert!(region.push(class, round(9), Commit::Done));
    assert_eq!(look(), (2, 8, 8));
    let mut magazine = Magazine::new();
    assert!(region.pop_batch(class, 3, &mut magazine, Commit::Done));
    assert_eq!((magazine.rounds(), look()), (&[round(6), round(7), round(9)][..], (2, 5, 8)));
    let mut none = Magazine::new();
    assert!(!region.pop_batch(class, 6, &mut none, Commit::Done) && none.is_empty());
    // A batch that fits into the existing places does not depend on the limit.
    table.set_limit(class, || 2);
    assert!(region.push_batch(class, &rounds(11..14), Commit::Done));
    assert_eq!(look(), (2, 8, 8));
}

#[test]
fn retired_class_stays_closed_after_its_limit_changes() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    table.change_limit(class, || 4);
    assert_eq!(table.limit(class).load(Relaxed), 4);
    table.set_limit(class, || 0);
    table.change_limit(class, || 4);
    assert_eq!(table.limit(class).load(Relaxed), 0);
}

#[test]
fn lowering_a_stack_limit_removes_no_objects() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..5)));
    table.set_limit(class, || 2);
    let region = table.region(0).unwrap();
    assert!(!table.put(0, class, &[round(5)]));
    assert_eq!((table.len(0, class), region.cap(class)), (4, 4));
    assert!(region.pop(class, Commit::Done).is_some() && region.push(class, round(4), Commit::Done));
    assert_eq!(table.drain_all(DrainScope::All, &[class]), [(class, vec![4, 3, 2, 1])]);
    assert!(!table.put(0, class, &rounds(1..4)) && table.put(0, class, &rounds(1..3)));
}

// ---------------------------------------------------------------- drains

#[test]
fn drain_empties_only_stacks_of_the_requested_classes() {
    let table = simulated(3, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    for cpu in 0..3 {
        let first = 10 * cpu as usize + 1;
        assert!(table.put(cpu, one, &rounds(first..first + 3)) && table.put(cpu, two, &rounds(100..104)));
    }
    let mut given = vec![];
    table.drain(1..9, DrainScope::All, [one].into_iter(), |class, taken| {
        assert_eq!((class, taken.len()), (one, 3));
        given.extend(core::iter::from_fn(|| taken.pop()).map(|round| round.addr().get()));
    });
    assert_eq!(given, [13, 12, 11, 23, 22, 21]);
    assert_eq!([0, 1, 2].map(|cpu| (table.len(cpu, one), table.len(cpu, two))), [(3, 4), (0, 4), (0, 4)]);
    assert_eq!([0, 1].map(|cpu| table.region(cpu).unwrap().cap(one)), [3, 0], "the drain closes the stack");
    assert!(table.put(1, one, &rounds(1..9)), "the stack is closed until an operation opens it");
}

/// Regression: returning a class number took the region of every CPU away twice.
#[test]
fn retiring_a_class_does_not_touch_unused_cpus() {
    let table = simulated(3, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    assert!((0..3).all(|cpu| table.put(cpu, one, &rounds(1..4))));
    assert!(table.put(1, two, &rounds(4..7)));
    let claims = |claim| [0, 2].map(|cpu| table.region(cpu).unwrap().claim().store(claim, Relaxed));
    // A drain that needs a claimed region waits for the claim.
    claims(1);
    let done = AtomicBool::new(false);
    let passes = table.drains().passes;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            table.set_limit(two, || 0);
            assert_eq!(table.drain_all(DrainScope::All, &[two]), [(two, vec![6, 5, 4])]);
            assert!(
                !table.put(1, two, &rounds(4..7)) && !table.put(1, two, &[round(4)]),
                "the class stays closed"
            );
            table.retire(two);
            done.store(true, Relaxed);
        });
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !done.load(Relaxed) && std::time::Instant::now() < deadline {
            crate::sync::thread::yield_now();
        }
        let is_waiting = !done.load(Relaxed);
        claims(0);
        assert!(!is_waiting, "the drain waits for a CPU that never used the class");
    });
    assert_eq!(
        table.drains().passes - passes,
        1,
        "a number of a closed class is freed without another drain"
    );
    assert_eq!(table.class(8), Some(two));
}

/// Regression: a drain flushed objects that another drain was still flushing, so that an object had two owners.
#[test]
fn drain_skips_rounds_being_flushed_by_a_concurrent_drain() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..5))));
    let mut given = 0;
    table.drain(0..2, DrainScope::All, [class].into_iter(), |_, taken| {
        given += taken.len();
        for which in [DrainScope::All, DrainScope::Idle] {
            assert_eq!(table.drain_all(which, &[class]), []);
        }
        assert!(!table.put(0, class, &[round(9)]), "no operation may write to the region");
        while taken.pop().is_some() {}
    });
    assert_eq!(given, 8);
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(table.put(0, class, &[round(9)]));
}

#[test]
fn each_drain_flushes_only_the_rounds_assigned_to_it() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    let region = table.region(0).unwrap();
    region.take(class, 5);
    region.reassign_rounds(class, 4, 6);
    assert_eq!([5, 6].map(|drain| region.rounds_taken_by(class, drain)), [3, 0]);
    region.reassign_rounds(class, 5, 6);
    assert_eq!([5, 6].map(|drain| region.rounds_taken_by(class, drain)), [0, 3]);
}

/// Growing an open stack must not need the drain lock, because a drain may take a long time.
#[test]
fn stacks_that_a_drain_leaves_open_can_grow() {
    let table = simulated(1, 1 << 20);
    let class = table.class(1000).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    let region = table.region(0).unwrap();
    region.set_committed(class.end(8));
    let _a_drain = table.drains.lock();
    assert!(table.open(&Operation::new(), 0, class, 1000) && region.committed() >= class.end(1000));
}

/// A reap takes all stacks that are idle, and no stack that was used since the last reap.
#[test]
fn reap_takes_only_idle_stacks() {
    let table = simulated(2, 64 << 10);
    let [one, two] = [8, 8].map(|reach| table.class(reach).unwrap());
    for cpu in 0..2 {
        assert!(table.put(cpu, one, &rounds(1..4)) && table.put(cpu, two, &rounds(4..7)));
    }
    let reap = || table.drain_all(DrainScope::Idle, &[one, two]);
    assert_eq!(reap(), [], "the head was not recorded before");
    let serve = |cpu, class| {
        let region = table.region(cpu).unwrap();
        let round = region.pop(class, Commit::Done).unwrap();
        assert!(region.push(class, round, Commit::Done));
    };
    serve(0, one);
    serve(1, two);
    assert_eq!(reap(), [(one, vec![3, 2, 1]), (two, vec![6, 5, 4])]);
    assert_eq!([0, 1].map(|cpu| (table.len(cpu, one), table.len(cpu, two))), [(3, 0), (0, 3)]);
    serve(0, one);
    assert_eq!(reap(), [(two, vec![6, 5, 4])]);
    assert_eq!(reap(), [(one, vec![3, 2, 1])]);
    assert_eq!(reap(), []);
}

#[test]
fn stacks_of_a_freed_class_number_are_empty() {
    let table = simulated(3, 64 << 10);
    let class = table.class(8).unwrap();
    for cpu in [0, 2] {
        assert!(table.put(cpu, class, &rounds(1..5)));
        table.region(cpu).unwrap().pop(class, Commit::Done).unwrap();
    }
    // The drain has seen CPU 1's idle stack. Objects of the class's next owner must not immediately count as
    // idle.
    assert!(table.put(1, class, &rounds(1..5)));
    let other = table.class(8).unwrap();
    assert!(table.put(2, other, &rounds(1..3)));
    assert!(table.drain_all(DrainScope::Idle, &[class]).is_empty());
    table.retire(class);
    for cpu in 0..3 {
        let region = table.region(cpu).unwrap();
        assert_eq!(
            (region.head(class), region.cap(class), region.recorded_head(class), region.taken_rounds(class)),
            (0, 0, 0, 0)
        );
        // The free in this test comes after the class number was returned.
        assert!(!region.push(class, round(1), Commit::Done) && !table.put(cpu, class, &[round(1)]));
    }
    assert_eq!(table.len(2, other), 2, "another class is unchanged");
}

/// When the class is retired, one stack is open and empty. An empty stack of a retired class must not accept a late
/// free. In this test, a second stack is closed but contains objects, as after a fork. When a class is retired, objects
/// on its closed stacks must be removed.
#[test]
fn retiring_a_size_class_closes_and_empties_its_stacks() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..4))));
    while table.region(0).unwrap().pop(class, Commit::Done).is_some() {}
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(1..2, DrainScope::All, |_| true);
    // SAFETY: no other thread uses the table.
    unsafe { table.forget_other_threads() };
    let state = |cpu| (table.len(cpu, class), table.region(cpu).unwrap().is_open(class));
    assert_eq!([state(0), state(1)], [(0, true), (3, false)]);
    table.retire(class);
    assert_eq!([state(0), state(1)], [(0, false); 2]);
    assert!(!table.region(0).unwrap().push(class, round(9), Commit::Done));
    assert_eq!(table.class(8), Some(class));
}

/// In this test, no layer collects the swept objects.
#[test]
fn class_number_freed_during_a_drain_is_reusable() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..1, DrainScope::All, |_| true);
    table.retire(class);
    assert_eq!(table.class(8), Some(class));
    assert_eq!(table.class_limits(class), (8, 8, 0, false));
    assert!(table.put(0, class, &rounds(1..4)));
}

/// In a region, the control words and entries of one stack must not overlap the words of another stack.
#[test]
fn stacks_of_different_classes_share_no_memory_word() {
    let table = simulated(1, 1 << 20);
    let classes: Vec<_> = core::iter::from_fn(|| table.class(3)).collect();
    assert_eq!(classes.len(), CLASSES as usize - 1);
    let region = table.region(0).unwrap();
    for (n, class) in classes.iter().enumerate() {
        assert!(table.put(0, *class, &rounds(1..3)));
        while region.pop(*class, Commit::Done).is_some() {}
        region.move_operation_count(*class);
        assert!(table.put(0, *class, &rounds(1..3)));
        region.take(*class, n as u64 + 1);
    }
    for (n, class) in classes.iter().enumerate() {
        assert_eq!(
            (region.served(*class), region.rounds_taken_by(*class, n as u64 + 1)),
            ((2, 0), 2),
            "{class:?}"
        );
    }
}

#[test]
fn cpu_without_a_region_always_misses() {
    use crate::on_cpu;
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    on_cpu(2);
    let round = round(1);
    assert_eq!((claimed::pop(&table, class), claimed::push(&table, class, round)), (None, false));
    assert!(!claimed::push_batch(&table, class, &[round]));
    assert!(!claimed::pop_batch(&table, class, 1, &mut Magazine::new()));
    on_cpu(0);
}

// ---------------------------------------------------------------- fork

/// In the child of a fork, claims of other threads must be released. Objects that another thread's drain had not begun
/// to flush must be on their stacks again.
#[test]
fn forked_child_inherits_no_claimed_slot_or_running_drain() {
    let table = simulated(2, 64 << 10);
    let [class, other] = [8, 8].map(|reach| table.class(reach).unwrap());
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..5)) && table.put(cpu, other, &rounds(5..7))));
    table.region(1).unwrap().claim().store(1, Relaxed);
    crate::on_cpu(1);
    assert_eq!(claimed::pop(&table, other), None);
    table.region(1).unwrap().claim().store(0, Relaxed);
    table.drain(0..2, DrainScope::All, [class].into_iter(), |_, taken| {
        if taken.len() == 0 {
            return;
        }
        // The child and the drain run on different threads.
        let child = || {
            table.region(1).unwrap().claim().store(1, Relaxed);
            // SAFETY: no other thread uses the table now, as in a child after a fork.
            unsafe {
                table.before_fork();
                table.after_fork_in_child();
            }
            assert_eq!([0, 1].map(|cpu| table.region(cpu).unwrap().taken_rounds(class)), [0, 0]);
            assert_eq!(table.limit(class).load(Relaxed), 8);
            assert!(table.put(0, class, &rounds(1..9)), "the stack serves the child");
            assert_eq!([0, 1].map(|cpu| table.len(cpu, class)), [8, 4]);
            crate::on_cpu(1);
            let back: Vec<_> = core::iter::from_fn(|| claimed::pop(&table, class)).collect();
            assert_eq!(back, rounds(1..5).into_iter().rev().collect::<Vec<_>>());
            assert_eq!(claimed::pop(&table, other), Some(round(6)));
        };
        std::thread::scope(|scope| scope.spawn(child).join()).unwrap();
        // Restores the parent's state, in which the drain ends. SAFETY: no other thread uses the table.
        unsafe { table.close_class_again(class) };
        while taken.pop().is_some() {}
    });
    crate::on_cpu(0);
    assert!(table.drains.try_lock().is_some() && table.making.try_lock().is_some());
}

/// The record of a running drain is on the call stack of the draining thread. After the drain, the test overwrites this
/// stack memory. A fork after the drain must not read the overwritten record.
#[test]
fn fork_does_not_read_the_record_of_a_finished_drain() {
    #[inline(never)]
    fn old_stack_memory_is_overwritten() {
        assert!(core::hint::black_box([usize::MAX - 2; 4096])[0] > 0);
    }
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..1, DrainScope::All, |_| true);
    assert_eq!(collected(&table, class), [3, 2, 1]);
    old_stack_memory_is_overwritten();
    // SAFETY: no other thread uses the table.
    unsafe { table.forget_other_threads() };
    assert_eq!(table.class_limits(class), (8, 8, 0, false));
}

/// The drain statistics include the longest time for which a drain kept a CPU from using its region.
#[test]
fn drain_statistics_report_the_longest_drain_time() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..4))));
    assert_eq!(table.drains().longest_away, Duration::ZERO);
    let own = |time: Duration| {
        let _one_at_a_time = table.lock_drains();
        assert!(table.with_region_ownership(0..1, |_| true, &mut |_| std::thread::sleep(time)));
    };
    own(Duration::from_millis(20));
    let longest = table.drains().longest_away;
    assert!(longest >= Duration::from_millis(20), "{longest:?}");
    own(Duration::ZERO);
    assert!(table.drains().longest_away >= longest, "the longest drain counts, not the last");
}

/// A drain does not interrupt a CPU whose region was never used.
#[test]
fn drain_skips_cpu_regions_that_were_never_used() {
    for cpus in [Cpus::os(), Cpus::simulated(3, 1).unwrap()] {
        let table = table(cpus);
        let class = table.class(8).unwrap();
        let own = || {
            let (mut owned, _one_at_a_time) = (0, table.lock_drains());
            let mut look = |_: Region<'_>| {
                let since = std::time::Instant::now();
                while since.elapsed().is_zero() {}
                owned += 1;
            };
            assert!(table.with_region_ownership(0..u32::MAX, |_| true, &mut look));
            owned
        };
        assert_eq!((own(), table.drains()), (0, Drains::default()));
        assert!(table.put(cpus.count() - 1, class, &rounds(1..2)));
        assert_eq!(own(), 1);
        let drains = table.drains();
        assert!(drains.passes == 1 && drains.longest_away > Duration::ZERO, "{drains:?}");
        // Simulates two refused fences.
        table.refused.add(2);
        assert_eq!((table.drains().passes, table.drains().refused), (3, 2));
    }
}

// ---------------------------------------------------------------- sweeps

#[test]
fn each_swept_round_is_flushed_to_its_own_size_class() {
    let table = simulated(3, 64 << 10);
    let [one, two, silent] = [8; 3].map(|reach| table.class(reach).unwrap());
    for (start, class) in [(1, one), (11, two), (21, silent)] {
        assert!((0..2).all(|cpu| table.put(
            cpu,
            class,
            &rounds(start + 3 * cpu as usize..start + 3 + 3 * cpu as usize)
        )));
    }
    for class in [one, two] {
        table.join_sweeps(class, SweepGroup::new(0));
    }
    table.sweep(0..3, DrainScope::All, |_| true);
    assert_eq!([one, two, silent].map(|class| table.limit(class).load(Relaxed)), [0, 0, 8]);
    assert!(!table.put(0, one, &rounds(90..91)), "the stack is closed until its rounds are flushed");
    assert_eq!((collected(&table, one), collected(&table, silent)), (vec![3, 2, 1, 6, 5, 4], vec![]));
    assert!(collected(&table, one).is_empty(), "once");
    assert_eq!([one, two].map(|class| table.limit(class).load(Relaxed)), [8, 0]);
    // A drain takes over objects that were not collected. The next sweep also takes over objects that were
    // not collected.
    assert_eq!(table.drain_all(DrainScope::Idle, &[two]), [(two, vec![13, 12, 11]), (two, vec![16, 15, 14])]);
    assert!(collected(&table, two).is_empty());
    assert!(table.put(2, two, &rounds(1..3)));
    (0..2).for_each(|_| table.sweep(0..3, DrainScope::All, |_| true));
    assert_eq!(collected(&table, two), [2, 1]);
    assert_eq!(table.limit(two).load(Relaxed), 8);
    // A drain takes over uncollected objects of all CPUs, not only of the drained CPUs.
    assert!(table.put(2, two, &rounds(1..3)));
    table.sweep(0..3, DrainScope::All, |_| true);
    let mut rounds = 0;
    table.drain(0..1, DrainScope::All, [two].into_iter(), |_, taken| {
        rounds += core::iter::from_fn(|| taken.pop()).count()
    });
    assert_eq!((rounds, table.limit(two).load(Relaxed)), (2, 8));
    // A sweep does not close a class without an idle stack.
    table.join_sweeps(silent, SweepGroup::new(0));
    table.sweep(0..3, DrainScope::Idle, |_| true);
    assert_eq!(table.limit(silent).load(Relaxed), 8);
    table.sweep(0..1, DrainScope::Idle, |_| true);
    assert_eq!(
        (collected(&table, silent), table.len(1, silent)),
        (vec![23, 22, 21], 3),
        "only the stacks of those CPUs are drained"
    );
}

/// Regression: a sweep of idle stacks removed busy classes from the list, so that a later full sweep did not find them.
#[test]
fn full_drain_finds_classes_that_an_idle_drain_skipped() {
    let table = simulated(1, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(0, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(3));
    table.sweep(0..1, DrainScope::Idle, |_| true);
    table.sweep(0..1, DrainScope::All, |group| group != SweepGroup::new(3));
    assert!(collected(&table, class).is_empty(), "the class of another group is open");
    table.sweep(0..1, DrainScope::All, |group| group == SweepGroup::new(3));
    assert_eq!(collected(&table, class), [3, 2, 1]);
}

#[test]
fn drained_rounds_of_a_retired_class_are_dropped() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!(table.put(1, class, &rounds(1..4)));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..2, DrainScope::All, |_| true);
    table.retire(class);
    assert_eq!(table.class(8), Some(class));
    assert!(collected(&table, class).is_empty());
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(table.put(1, class, &rounds(1..4)));
    table.sweep(0..2, DrainScope::All, |_| true);
    assert_eq!(table.len(1, class), 3, "the earlier layer took part");
}

/// Regression: in the child of a fork, drained stacks stayed closed, and their objects were lost.
#[test]
fn forked_child_finds_drained_rounds_on_its_stacks() {
    let table = simulated(2, 64 << 10);
    let class = table.class(8).unwrap();
    assert!((0..2).all(|cpu| table.put(cpu, class, &rounds(1..4))));
    table.join_sweeps(class, SweepGroup::new(0));
    table.sweep(0..2, DrainScope::All, |_| true);
    // SAFETY: no other thread uses the table, except the thread below, which only tries the table's locks.
    unsafe {
        table.before_fork();
        let free = std::thread::scope(|scope| {
            let look = || (table.drains.try_lock().is_some(), table.making.try_lock().is_some());
            scope.spawn(look).join().unwrap()
        });
        assert_eq!(free, (false, false), "the fork holds both locks");
        table.after_fork_in_child();
    }
    assert_eq!([0, 1].map(|cpu| table.len(cpu, class)), [3, 3]);
    assert_eq!(table.limit(class).load(Relaxed), 8);
    assert!(collected(&table, class).is_empty());
    assert_eq!(table.drain_all(DrainScope::All, &[class]).len(), 2);
}

// ---------------------------------------------------------------- real CPUs

/// After its fence, a drain has exclusive access to a region. The test reads the region twice, and both reads must
/// return the same contents.
#[test]
fn cpu_region_owned_by_a_drain_is_not_written() {
    for cpus in [Cpus::os(), Cpus::os().claimed()] {
        let table = table(cpus);
        let classes = [table.class(64).unwrap(), table.class(64).unwrap()];
        let stop = AtomicBool::new(false);
        let (looks, used, written) = std::thread::scope(|scope| {
            for t in 0..4 {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let class = classes[t % 2];
                    let fast_paths = crate::FastPath::<crate::test_round::TestRound, Heap>::new(
                        table,
                        class,
                        Words::Always,
                    );
                    let mut held: Vec<_> =
                        (0..32).map(|i| crate::test_round::TestRound(t * 100 + i + 1)).collect();
                    let mut turn = 0_u32;
                    while !stop.load(Relaxed) {
                        turn += 1;
                        if turn % 64 < 32 {
                            if let Some(round) = held.pop() {
                                // SAFETY: the table exists until the scope's threads have ended.
                                if !unsafe { fast_paths.free(round) } {
                                    let rounds = [crate::Round::into_raw(round)];
                                    let push = || match table.cpus.mechanism() {
                                        Mechanism::Rseq => {
                                            rseq::push_batch(&**table, fast_paths.pcpu(), class, &rounds)
                                        }
                                        Mechanism::Claimed => claimed::push_batch(&**table, class, &rounds),
                                    };
                                    let pushed = push()
                                        || table.open(&Operation::new(), table.cpus.current(), class, 64)
                                            && push();
                                    if !pushed {
                                        held.push(round);
                                    }
                                }
                            }
                        } else {
                            // SAFETY: the table exists until the scope's threads have ended.
                            held.extend(unsafe { fast_paths.alloc() });
                        }
                    }
                });
            }
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let (mut looks, mut used, mut written) = (0, 0, 0);
            while used < 500 && written == 0 && std::time::Instant::now() < deadline {
                let look = |region: Region<'_>| {
                    classes.map(|class| {
                        let head = region.head(class);
                        let places: Vec<_> = (0..=64).map(|i| region.round(class, i)).collect();
                        (head, region.cap(class), places)
                    })
                };
                let mut owned = |region: Region<'_>| {
                    let before = look(region);
                    if looks % 8 == 0 {
                        crate::sync::thread::yield_now();
                    }
                    written += u32::from(before != look(region));
                    used += u32::from(before.iter().any(|(head, ..)| *head > 0));
                    looks += 1;
                };
                let _one_at_a_time = table.lock_drains();
                assert!(table.with_region_ownership(0..table.cpus.count(), |_| true, &mut owned));
            }
            stop.store(true, Relaxed);
            (looks, used, written)
        });
        assert_eq!(written, 0, "a region that was taken away was written");
        assert!(used > 0, "{looks} accesses to regions, none of which was used");
        let drains = table.drains();
        assert!(drains.passes > 0 && drains.refused == 0, "{drains:?}");
        // The empty region must be unchanged.
        let empty = table.home(cpus.count());
        // SAFETY: the region is in the table's memory, and all threads that could write to the region have been joined.
        let words = unsafe { core::slice::from_raw_parts(empty.cast::<u64>().as_ptr(), table.region / 8) };
        assert!(words.iter().all(|word| *word == 0), "the empty region was written");
    }
}
