//! Tests of class numbers, of the committed part of regions, and of the space (*room*) that each class has in a region.

use super::*;

#[test]
fn class_numbers_are_allocated_freed_and_reused() {
    let table = simulated(2, 64 << 10);
    assert_eq!(table.all().count(), 0);
    let [one, two, large] = [10, 10, 1000].map(|reach| table.class(reach).unwrap());
    assert!(table.all().map(|(class, _)| class).eq([one, two, large]));
    assert_eq!([one, two, large].map(|class| class.index), [1, 2, 3], "0 is not a class number");
    table.retire(one);
    table.retire(large);
    assert_eq!(table.class(10), Some(one), "a freed number must be reused if its room has the size");
    assert_ne!(
        table.class(10).unwrap().index,
        large.index,
        "a room that is too large is kept for a large class"
    );
    assert_eq!(table.class(1000), Some(large));
    assert_eq!(table.limit(large).load(Relaxed), 1000);
}

#[test]
fn number_of_classes_is_limited_by_class_numbers_and_region_size() {
    let numbers = |region, reach| {
        let table = simulated(1, region);
        core::iter::from_fn(|| table.class(reach)).count()
    };
    assert_eq!(numbers(1 << 20, 1), CLASSES as usize - 1);
    assert_eq!(numbers(STACKS + 5 * LINE, 7) * LINE / PAGE, 0, "the region ends at a page boundary");
    assert_eq!(numbers(64 << 10, u16::MAX), 0);
}

/// The number of property test cases, and the number of steps in each case. Under Miri, the property test runs only a
/// few cases.
const CASES_AND_STEPS: (u32, usize) = if cfg!(miri) { (4, 20) } else { (200, 200) };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES_AND_STEPS.0, failure_persistence: None, ..ProptestConfig::default() })]

    /// The test allocates and returns class numbers in random order. No two stacks may overlap, and no stack may extend
    /// past the end of its region.
    #[test]
    fn stacks_of_different_classes_never_overlap(steps in prop::collection::vec((0..3_u8, any::<u16>(), 0..16_u8), 1..CASES_AND_STEPS.1)) {
        let (table, mut classes) = (simulated(1, 2 << 20), Vec::<(Class, usize)>::new());
        for (step, number, bits) in steps {
            if step == 0 && !classes.is_empty() {
                let (class, _) = classes.swap_remove(usize::from(number) % classes.len());
                table.retire(class);
            } else if let Some(class) = table.class((number >> bits).max(1)) {
                classes.push((class, class.end((number >> bits).max(1).into())));
            }
            let mut stacks: Vec<_> = classes.iter().map(|(class, end)| (class.stack as usize - SEEN_OFFSET, *end)).collect();
            stacks.sort_unstable();
            prop_assert!(stacks.windows(2).all(|two| two[0].1 <= two[1].0), "{stacks:?}");
            prop_assert!(stacks.iter().all(|(start, end)| *start >= STACKS && *end <= 2 << 20));
            prop_assert!(stacks.iter().all(|(start, _)| start.is_multiple_of(LINE)));
            let numbers: BTreeSet<_> = classes.iter().map(|(class, _)| class.index).collect();
            prop_assert_eq!(numbers.len(), classes.len());
        }
    }
}

/// Large stacks begin at different offsets, because words at the same offset of different pages compete for one set of
/// the processor's cache.
#[test]
fn large_stacks_begin_at_different_page_offsets() {
    let table = simulated(1, 2 << 20);
    let places: BTreeSet<_> = (0..36).map(|_| table.class(1216).unwrap().stack as usize % PAGE).collect();
    assert_eq!(places.len(), 36);
    let [one, two] = [1216; 2].map(|reach| table.class(reach).unwrap().stack as usize % PAGE);
    assert_eq!(two.abs_diff(one) / LINE, 7, "the lowest rounds of neighbours share no line's set");
}

/// The size of a room is the smallest power of two for which the stack fits at every possible offset.
#[test]
fn each_stack_gets_the_smallest_sufficient_memory_area() {
    let rooms = [1, 4, 5, 12, 13, 252, 253, 388, 389, 1216].map(Table::<Heap>::room);
    let expected = [
        (64, 64),
        (64, 64),
        (128, 64),
        (128, 64),
        (256, 64),
        (2048, 64),
        (4096, 1024),
        (4096, 1024),
        (8192, 2048),
        (16384, PAGE - MAGAZINE),
    ];
    assert_eq!(rooms, expected);
}

/// A pop detects an empty stack by the null word below the stack's first entry.
#[test]
fn null_word_below_a_stack_is_never_overwritten() {
    let table = simulated(2, 128 << 10);
    let classes = [1, 2, 7, 8, 500, 1216].map(|reach| (table.class(reach).unwrap(), usize::from(reach)));
    for cpu in 0..2 {
        for (class, reach) in classes {
            assert!(table.put(cpu, class, &rounds(1..reach + 1)) && !table.put(cpu, class, &[round(1)]));
        }
    }
    let mut used = classes.to_vec();
    for turn in 0..3 {
        for (class, reach) in &used {
            for cpu in 0..2 {
                let region = table.region(cpu).unwrap();
                assert_eq!(
                    (region.round(*class, 0), table.len(cpu, *class)),
                    (None, *reach as u64),
                    "{turn}"
                );
                let popped = core::iter::from_fn(|| region.pop(*class, Commit::Done)).count();
                assert_eq!((popped, region.round(*class, 0)), (*reach, None));
            }
        }
        // New classes reuse the space of returned class numbers.
        for (class, reach) in &mut used {
            table.retire(*class);
            *class = table.class(*reach as u16).unwrap();
            (0..2).for_each(|cpu| assert!(table.put(cpu, *class, &rounds(1..*reach + 1))));
        }
    }
}

// ---------------------------------------------------------------- memory

/// Heap memory in which a commit succeeds only below a limit. Dropping the memory panics if a range was committed
/// twice.
struct RefusingMemory {
    heap: Heap,
    granted: Counter,
    committed_ranges: crate::sync::Mutex<Vec<Range<usize>>>,
}
// SAFETY: all methods call the heap's methods, and some commits are refused.
unsafe impl Memory for RefusingMemory {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        if range.end as u64 > self.granted.get() || !self.heap.commit(op, range.clone()) {
            return false;
        }
        self.committed_ranges.lock().push(range);
        true
    }
}
/// The check is in `drop`, because a table treats a panic in any other method as a refusal.
impl Drop for RefusingMemory {
    fn drop(&mut self) {
        let mut committed_ranges = self.committed_ranges.lock().clone();
        committed_ranges.sort_unstable_by_key(|range| range.start);
        let apart = committed_ranges.windows(2).all(|two| two[0].end <= two[1].start);
        let within =
            committed_ranges.iter().all(|range| range.start < range.end && range.end <= self.bytes());
        assert!(std::thread::panicking() || apart && within, "{committed_ranges:?}");
    }
}

fn refusing_table(cpus: u32, region: usize) -> Table<RefusingMemory> {
    let cpus = Cpus::simulated(cpus, 1).unwrap();
    let heap = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
    let granted = Counter::new(PAGE as u64);
    let committed_ranges = crate::sync::Mutex::ranked(Rank::Faults, vec![]);
    Table::new(cpus, region, RefusingMemory { heap, granted, committed_ranges }).unwrap()
}

/// Regression: a panic while memory was committed propagated to the caller of the allocation.
#[test]
fn memory_commit_that_panics_counts_as_refused() {
    struct PanickingMemory(Heap);
    // SAFETY: all methods call the heap's methods, and a commit that panics counts as a refusal.
    unsafe impl Memory for PanickingMemory {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        fn bytes(&self) -> usize {
            self.0.bytes()
        }
        fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
            assert!(range.start == 0, "intended panic");
            self.0.commit(op, range)
        }
        unsafe fn decommit(&self, _: Range<usize>) -> bool {
            panic!("intended panic")
        }
    }
    let cpus = Cpus::simulated(1, 1).unwrap();
    let heap = Heap::new(Table::<Heap>::footprint(&cpus, 64 << 10)).unwrap();
    let table = Table::new(cpus, 64 << 10, PanickingMemory(heap)).unwrap();
    let class = table.class(8).unwrap();
    assert!(!table.put(0, class, &rounds(1..3)) && table.block(&Operation::new()).is_none());
    assert_eq!(table.decommit_idle(), 0);
}

#[test]
fn refused_memory_commit_grows_no_stack() {
    let table = refusing_table(1, 512 << 10);
    let [small, large] = [8, 16000].map(|reach| table.class(reach).unwrap());
    let region = table.region(0).unwrap();
    assert!(!table.put(0, small, &rounds(1..3)));
    assert_eq!((region.committed(), region.cap(small), region.pop(small, Commit::Done)), (0, 0, None));
    // The memory grants one commit step.
    table.memory.granted.set((PAGE + COMMIT_STEP) as u64);
    assert!(table.put(0, small, &rounds(1..3)));
    assert_eq!((region.committed(), region.cap(small)), (COMMIT_STEP, 2));
    // Only places within the granted step can be used.
    assert!(table.put(0, large, &rounds(1..3)) && !table.put(0, large, &rounds(3..15_000)));
    assert_eq!((region.committed(), region.cap(large), region.cap(small)), (COMMIT_STEP, 2, 2));
    assert_eq!((table.len(0, large), table.len(0, small)), (2, 2));
    table.memory.granted.set(u64::MAX);
    assert!(table.put(0, large, &rounds(3..15_000)));
    assert_eq!((region.cap(large), table.len(0, large)), (14_999, 14_999));
}

#[test]
fn each_commit_doubles_the_committed_part_of_a_region() {
    let table = refusing_table(2, 1 << 20);
    let [one, two, three] = [16000; 3].map(|reach| table.class(reach).unwrap());
    let region = table.region(1).unwrap();
    let before = PAGE + (1 << 20);
    for (granted, committed) in [(2 * COMMIT_STEP - 1, 0), (2 * COMMIT_STEP, 2 * COMMIT_STEP)] {
        table.memory.granted.set((before + granted) as u64);
        assert_eq!(table.put(1, one, &rounds(1..2)), committed > 0);
        assert_eq!(region.committed(), committed);
    }
    table.memory.granted.set(u64::MAX);
    assert!(two.end(16000) < 4 * COMMIT_STEP && table.put(1, two, &rounds(1..2)));
    assert_eq!(region.committed(), 4 * COMMIT_STEP);
    table.set_limit(three, || 1);
    assert!((4 * COMMIT_STEP..5 * COMMIT_STEP).contains(&three.end(1)) && table.put(1, three, &rounds(1..2)));
    assert_eq!((region.committed(), table.region(0).unwrap().committed()), (8 * COMMIT_STEP, 0));
}

#[test]
fn stack_may_use_the_last_committed_byte_of_its_region() {
    let table = refusing_table(1, 512 << 10);
    let class = table.class(16000).unwrap();
    table.memory.granted.set((PAGE + COMMIT_STEP) as u64);
    let places = (COMMIT_STEP - class.end(0)) / ROUND;
    table.set_limit(class, || places as u16);
    assert!(table.put(0, class, &rounds(1..2)) && table.put(0, class, &rounds(2..places + 1)));
    let region = table.region(0).unwrap();
    assert_eq!((region.committed(), class.end(region.cap(class))), (COMMIT_STEP, COMMIT_STEP));
    assert!(!table.commit_stack_places(&Operation::new(), 0, class, places as u32), "the table is unchanged");
    assert!(
        !table.commit_stack_places(&Operation::new(), 0, class, places as u32 + 1),
        "no more room is available"
    );
}

/// Heap memory in which the commit of a region blocks until another thread requests the same memory.
struct SlowCommitHeap {
    heap: Heap,
    requested: AtomicBool,
    asked_again: AtomicBool,
}
// SAFETY: all methods call the heap's methods.
unsafe impl Memory for SlowCommitHeap {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        // The words at the start are committed first, without waiting.
        if range.start > 0 {
            self.requested.store(true, Relaxed);
            while !self.asked_again.load(Relaxed) {
                crate::sync::thread::yield_now();
            }
            // Gives the second thread time to wait for the lock.
            (0..1000).for_each(|_| crate::sync::thread::yield_now());
        }
        self.heap.commit(op, range)
    }
}

#[test]
fn region_uses_memory_committed_by_a_concurrent_thread() {
    let (cpus, region) = (Cpus::simulated(1, 1).unwrap(), 1 << 20);
    let heap = Heap::new(Table::<SlowCommitHeap>::footprint(&cpus, region)).unwrap();
    let memory =
        SlowCommitHeap { heap, requested: AtomicBool::new(false), asked_again: AtomicBool::new(false) };
    let table = Table::new(cpus, region, memory).unwrap();
    let class = table.class(8).unwrap();
    let commit = || table.commit_stack_places(&Operation::new(), 0, class, 8);
    std::thread::scope(|scope| {
        let first = scope.spawn(commit);
        while !table.memory.requested.load(Relaxed) {
            crate::sync::thread::yield_now();
        }
        table.memory.asked_again.store(true, Relaxed);
        commit();
        assert!(first.join().unwrap());
    });
    assert_eq!(table.region(0).unwrap().committed(), COMMIT_STEP);
}

/// Memory from `mmap` that is readable from the start, and writable only after a commit. A write to uncommitted memory
/// terminates the program.
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, uslab_heap))))]
struct ProtectedMemory {
    base: NonNull<u8>,
    bytes: usize,
}
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, uslab_heap))))]
mod granting_memory {
    use super::*;
    use nix::libc;

    impl ProtectedMemory {
        pub(super) fn new(bytes: usize) -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: the mapping is new, at an address that the system chooses, and overlaps no other mapping.
            let base = unsafe { libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            Self { base: NonNull::new(base.cast()).unwrap(), bytes }
        }
    }
    impl Drop for ProtectedMemory {
        fn drop(&mut self) {
            // SAFETY: `new` mapped the range, and only this value uses it.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
    // SAFETY: the value owns the mapping, and hands out only its address.
    unsafe impl Send for ProtectedMemory {}
    // SAFETY: the value hands out only the mapping's address, and no method writes to the mapping.
    unsafe impl Sync for ProtectedMemory {}
    // SAFETY: the memory is mapped until drop, begins at a page and is zero, and granted parts are writable.
    unsafe impl Memory for ProtectedMemory {
        fn base(&self) -> NonNull<u8> {
            self.base
        }
        fn bytes(&self) -> usize {
            self.bytes
        }
        fn commit(&self, _: &Operation, range: Range<usize>) -> bool {
            assert!(range.start <= range.end && range.end <= self.bytes);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is within the mapping, as the assertion above shows.
            unsafe {
                let start = self.base.add(range.start).as_ptr();
                libc::mprotect(start.cast(), range.len(), access) == 0
            }
        }
    }
}

/// The regions of unused CPUs, and unused stacks, must never be written.
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(any(miri, uslab_heap))))]
#[test]
fn unused_regions_are_never_written() {
    let (cpus, region) = (Cpus::simulated(2, 1).unwrap(), 1 << 20);
    let memory = ProtectedMemory::new(Table::<ProtectedMemory>::footprint(&cpus, region));
    let table = Table::new(cpus, region, memory).unwrap();
    let [near, _, far] = [8, 16000, 16000].map(|reach| table.class(reach).unwrap());
    let both = [near, far];
    both.iter().for_each(|class| table.join_sweeps(*class, SweepGroup::new(0)));
    let used = || {
        assert!(table.put(0, near, &rounds(1..4)));
        let committed = table.region(0).unwrap().committed();
        assert!(committed > 0 && committed <= far.stack as usize - SEEN_OFFSET, "{committed}");
    };
    let given = [(near, vec![3, 2, 1])];
    used();
    assert_eq!(table.drain_all(DrainScope::All, &both), given);
    used();
    table.sweep(0..2, DrainScope::All, |_| true);
    assert_eq!(both.map(|class| collected(&table, class).len()), [3, 0]);
    used();
    for taken in [0, 3, 0] {
        table.sweep(0..2, DrainScope::Idle, |_| true);
        assert_eq!(both.map(|class| collected(&table, class).len()), [taken, 0]);
    }
    used();
    table.sweep(0..2, DrainScope::All, |_| true);
    // SAFETY: no other thread uses the table.
    unsafe { table.forget_other_threads() };
    assert_eq!(table.drain_all(DrainScope::All, &both), given);
    assert_eq!(table.decommit_idle(), 0);
    table.set_limit(far, || 5);
    both.iter().for_each(|class| table.retire(*class));
    assert_eq!([0, 1].map(|cpu| table.region(cpu).unwrap().committed()), [COMMIT_STEP, 0]);
}

/// In a table's memory, the space for depot magazines comes after the empty region. The space for depot magazines is as
/// large as a region, and is committed step by step.
#[test]
fn memory_of_removed_depot_magazines_is_reused() {
    let magazine = size_of::<crate::depot::Slot>();
    let region = 512 * magazine;
    assert!(region > COMMIT_STEP && region.is_multiple_of(ALIGN));
    let table = refusing_table(1, region);
    let all = || {
        let (op, mut blocks) = (&Operation::new(), Blocks::default());
        let count = core::iter::from_fn(|| table.block(op)).map(|block| blocks.push(block)).count();
        (count, blocks)
    };
    let before = PAGE + 2 * region;
    table.memory.granted.set((before + COMMIT_STEP - 1) as u64);
    assert_eq!(all().0, 0);
    table.memory.granted.set((before + COMMIT_STEP) as u64);
    let (few, mut blocks) = all();
    assert_eq!(few, COMMIT_STEP / magazine, "one commit step");
    table.memory.granted.set(u64::MAX);
    let (others, more) = all();
    assert_eq!((few + others, all().0), (512, 0));
    blocks.append(more);
    table.take_blocks(blocks);
    assert_eq!(all().0, 512);
}

/// If the table cannot commit memory, the layer passes objects directly from and to its supplier, and loses none of
/// them.
#[test]
fn rounds_return_to_the_supplier_if_region_memory_is_exhausted() {
    use crate::test_round::TestRound;
    use crate::{Config, Layer, Paths, on_cpu, shadow::TestSupplier};
    on_cpu(0);
    let table = Arc::new(refusing_table(1, 128 << 10));
    let layer: Layer<TestRound, RefusingMemory> = Layer::new(&table, Config::new(4, 2, 0)).unwrap();
    let supplier = TestSupplier::new(9, 1);
    let held: Vec<_> = (0..3).map(|_| layer.alloc(&supplier).unwrap()).collect();
    held.into_iter().for_each(|round| layer.free(&supplier, round));
    let s = layer.stats();
    assert_eq!((s.allocs, s.frees, s.paths), (3, 3, Paths { slab: 6, ..Paths::default() }));
    assert_eq!((s.busy, supplier.free.borrow().len()), (6, 9));
}

#[test]
fn regions_are_committed_for_used_cpus_and_existing_classes() {
    let table = simulated(4, 512 << 10);
    let [near, far] = [100, 16000].map(|reach| table.class(reach).unwrap());
    let committed = || [0, 1, 2, 3].map(|cpu| table.region(cpu).unwrap().committed());
    assert_eq!(committed(), [0; 4]);
    assert!(table.put(2, near, &rounds(1..2)));
    assert_eq!(committed(), [0, 0, COMMIT_STEP, 0]);
    assert!(table.put(1, far, &rounds(1..2)) && table.put(2, near, &rounds(1..50)));
    assert_eq!(committed(), [0, far.end(16000).next_multiple_of(COMMIT_STEP), COMMIT_STEP, 0]);
    assert_eq!(table.used_regions(0..9).count(), 2);
    assert!(!table.open(&Operation::new(), 4, near, 1), "a CPU without a region");
}

/// Regions that only reserve addresses all have the full size. Regions in heap memory divide a fixed amount of memory
/// among them.
#[test]
fn table_footprint_covers_words_regions_and_depots() {
    for count in [1, 3, 32, 1024] {
        let cpus = Cpus::simulated(count, 1).unwrap();
        let [addresses, memory] = [false, true].map(|on_heap| Table::<Heap>::region_bytes(&cpus, on_heap));
        assert_eq!(addresses, REGION);
        assert_eq!(memory, ((64 << 20) / count as usize).clamp(128 << 10, 4 << 20));
        for region in [64 << 10, memory] {
            let (footprint, writable) =
                (Table::<Heap>::footprint(&cpus, region), Table::<Heap>::writable(&cpus, region));
            assert_eq!(footprint - writable, 2 * region.next_multiple_of(ALIGN));
            let words = writable - count as usize * region.next_multiple_of(ALIGN);
            assert_eq!(words, (3 * (2 + cpus.word_count() as usize) * WORD).next_multiple_of(ALIGN));
        }
    }
}

#[test]
fn too_little_memory_for_the_table_is_an_error() {
    let cpus = Cpus::simulated(4, 1).unwrap();
    let new = |region, bytes| Table::new(cpus, region, Heap::new(bytes).unwrap()).map(drop);
    let (region, bytes) = (64 << 10, Table::<Heap>::footprint(&cpus, 64 << 10));
    assert_eq!(
        [new(region, bytes), new(region, bytes - 1), new(region, 256)],
        [Ok(()), Err(BadTableMemory), Err(BadTableMemory)]
    );
    assert_eq!(new(8 << 10, bytes), Err(BadTableMemory), "the memory must be too small for all words");
    assert_eq!(
        BadTableMemory.to_string(),
        "the memory for the magazines is too small, unaligned or could not be committed"
    );
}

#[test]
fn stack_heads_are_never_at_the_start_of_a_cache_line() {
    let table = simulated(1, 1 << 20);
    for class in [1, 7, 8, 64, 500, 1216].map(|reach| table.class(reach).unwrap()) {
        let head = class.stack as usize % LINE;
        assert!(head >= 2 * CAP, "{class:?}");
    }
}

/// Threads that concurrently request memory for a depot magazine get different blocks.
#[test]
fn concurrent_requests_for_magazine_memory_get_distinct_blocks() {
    let (rounds, each) = if cfg!(miri) { (1, 10) } else { (20, 400) };
    for _ in 0..rounds {
        let (table, at_once) = (simulated(1, 2 << 20), std::sync::Barrier::new(4));
        let take = || {
            at_once.wait();
            let rooms = core::iter::from_fn(|| table.block(&Operation::new())).take(each);
            rooms.map(|room| room.address()).collect::<Vec<_>>()
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((all.len(), BTreeSet::from_iter(all).len()), (4 * each, 4 * each));
    }
}

/// Regression: a table accepted regions of more than 4 MiB, and the first free of a class whose stack was beyond 4 MiB
/// panicked.
#[test]
fn region_above_four_mib_is_refused() {
    let cpus = Cpus::simulated(1, 1).unwrap();
    let made = |region| {
        let memory = Heap::new(Table::<Heap>::footprint(&cpus, region)).unwrap();
        Table::new(cpus, region, memory).is_ok()
    };
    assert_eq!([4 << 20, (4 << 20) + 1].map(made), [true, false]);
}
