//! Tests of decommitting pages that contain only idle stacks.

use super::*;

/// Heap memory that records which ranges were committed and decommitted.
struct RecordingMemory {
    heap: Heap,
    granted: crate::sync::Mutex<Vec<Range<usize>>>,
    decommitted: crate::sync::Mutex<Vec<Range<usize>>>,
}
// SAFETY: all methods call the heap's methods, and `decommit` zeroes the memory.
unsafe impl Memory for RecordingMemory {
    fn base(&self) -> NonNull<u8> {
        self.heap.base()
    }
    fn bytes(&self) -> usize {
        self.heap.bytes()
    }
    fn commit(&self, op: &Operation, range: Range<usize>) -> bool {
        self.granted.lock().push(range.clone());
        self.heap.commit(op, range)
    }
    unsafe fn decommit(&self, range: Range<usize>) -> bool {
        // SAFETY: the range is in the heap's memory, and no other thread uses it, by the method's contract.
        unsafe { self.base().add(range.start).write_bytes(0, range.len()) };
        self.decommitted.lock().push(range);
        true
    }
}
/// The check is in `drop`, because a table treats a panic in any other method as a refusal.
impl Drop for RecordingMemory {
    fn drop(&mut self) {
        let granted = self.granted.lock().clone();
        let is_granted = |at: usize| granted.iter().any(|granted| granted.contains(&at));
        let is_right =
            |range: &Range<usize>| range.clone().step_by(PAGE).all(is_granted) && !range.is_empty();
        let decommitted = self.decommitted.lock();
        assert!(
            std::thread::panicking() || decommitted.iter().all(is_right),
            "{decommitted:?} of {granted:?}"
        );
    }
}

fn recording_table(cpus: u32) -> Table<RecordingMemory> {
    recording_table_with_region(cpus, 128 << 10)
}
fn recording_table_with_region(cpus: u32, region: usize) -> Table<RecordingMemory> {
    let cpus = Cpus::simulated(cpus, 1).unwrap();
    let heap = Heap::new(Table::<RecordingMemory>::footprint(&cpus, region)).unwrap();
    let [granted, decommitted] = [(); 2].map(|()| crate::sync::Mutex::ranked(Rank::Faults, vec![]));
    Table::new(cpus, region, RecordingMemory { heap, granted, decommitted }).unwrap()
}

/// Regression: a decommit also decommitted the part of a class's room that had never been committed.
#[test]
fn decommit_skips_memory_that_was_never_committed() {
    let table = recording_table_with_region(1, 1 << 20);
    let class = table.class(20_000).unwrap();
    assert!(table.put(0, class, &rounds(1..9)));
    let (region, pages) = (table.region(0).unwrap(), table.numbers[class.index as usize].pages());
    assert!(region.committed() < pages.end * PAGE, "the room is larger than the stack");
    assert_eq!(table.drain_all(DrainScope::All, &[class]).len(), 1);
    assert_eq!(table.decommit_idle(), region.committed() - pages.start * PAGE);
    assert!(region.backed_pages().is_empty());
}

#[test]
fn decommit_of_idle_stacks_keeps_neighbouring_stacks() {
    let table = recording_table(2);
    // Two classes share a page, one class has two pages, and one class of another size shares no page.
    let [a, b] = [100; 2].map(|reach| table.class(reach).unwrap());
    let large = table.class(700).unwrap();
    let alone = table.class(30).unwrap();
    assert_eq!(a.stack as usize / PAGE, b.stack as usize / PAGE);
    let classes = [a, b, large, alone];
    classes.iter().for_each(|class| table.join_sweeps(*class, SweepGroup::new(0)));
    let reap = || {
        table.sweep(0..2, DrainScope::Idle, |_| true);
        classes.iter().for_each(|class| _ = collected(&table, *class));
        (table.decommit_idle(), core::mem::take(&mut *table.memory.decommitted.lock()).len())
    };
    for class in classes {
        assert!(table.put(1, class, &rounds(1..9)));
    }
    assert_eq!(reap(), (0, 0), "the stack is recorded for the first time");
    assert!(table.put(1, b, &rounds(9..10)), "the pages are in use");
    let pages = table.numbers[large.index as usize].pages().len();
    assert!(pages > 1);
    assert_eq!(reap().0, (pages + 1) * PAGE, "the page of a stack in use stays");
    assert_eq!((table.len(1, b), table.len(1, a)), (9, 0));
    assert_eq!(reap(), (PAGE, 1), "the last stack is idle now");
    assert_eq!(reap(), (0, 0), "once");
    for class in classes {
        let region = table.region(1).unwrap();
        assert_eq!(region.round(class, 0), None);
        assert!(table.put(1, class, &rounds(1..9)), "the stack serves again");
        assert_eq!(table.limit(class).load(Relaxed), [100, 100, 700, 30][class.index as usize - 1]);
    }
    // Returned classes leave no committed pages, either.
    classes.iter().for_each(|class| table.retire(*class));
    assert_eq!(table.decommit_idle(), (pages + 2) * PAGE);
    assert!(table.region(1).unwrap().backed_pages().is_empty());
}

#[test]
fn decommit_finds_no_page_in_an_unused_stack() {
    let table = recording_table(1);
    let [used, unused] = [700, 700].map(|reach| table.class(reach).unwrap());
    assert!(table.put(0, used, &rounds(1..9)));
    assert_eq!(table.drain_all(DrainScope::All, &[used, unused]).len(), 1);
    let (region, pages) =
        (table.region(0).unwrap(), |class: Class| table.numbers[class.index as usize].pages());
    assert!(pages(used).all(|page| region.backed_pages().has_page(page)));
    assert!(!pages(unused).any(|page| region.backed_pages().has_page(page)));
    assert_eq!(table.decommit_idle(), pages(used).len() * PAGE);
    let start = table.home(0).addr().get() - table.memory.base().addr().get();
    let decommitted = start + pages(used).start * PAGE..start + pages(used).end * PAGE;
    assert_eq!(*table.memory.decommitted.lock(), [decommitted]);
}

/// Regression: drained objects were overwritten with zeros before the supplier received them.
#[test]
fn decommit_skips_pages_with_rounds_being_flushed() {
    let table = recording_table(1);
    let class = table.class(700).unwrap();
    assert!(table.put(0, class, &rounds(1..9)));
    table.drain(0..1, DrainScope::All, [class].into_iter(), |_, taken| {
        assert_eq!(table.decommit_idle(), 0);
        assert_eq!(core::iter::from_fn(|| taken.pop()).count(), 8);
    });
    assert!(table.decommit_idle() > 0);
}

#[test]
fn operation_count_survives_the_decommit_of_its_stack() {
    let table = recording_table(1);
    let class = table.class(700).unwrap();
    let region = table.region(0).unwrap();
    for round in 1..=2 {
        assert!(table.put(0, class, &rounds(1..9)));
        for _ in 0..3 {
            let round = region.pop(class, Commit::Done).unwrap();
            assert!(region.push(class, round, Commit::Done));
        }
        table.drain(0..1, DrainScope::All, [class].into_iter(), |_, taken| while taken.pop().is_some() {});
        assert_eq!(region.served(class), (6 * round, 0));
        assert!(table.decommit_idle() > 0);
        assert_eq!((region.head(class), region.served(class)), (0, (6 * round, 0)));
    }
    table.retire(class);
    assert_eq!(
        table.class(700).map(|class| region.served(class)),
        Some((0, 0)),
        "a new owner begins without a recorded head"
    );
}

/// Regression: decommitting an idle stack on one CPU closed another CPU's stack of the same class, although that stack
/// held objects that no drain had taken.
#[test]
fn decommit_on_another_cpu_leaves_undrained_stacks_unchanged() {
    let table = recording_table(2);
    let class = table.class(700).unwrap();
    assert!(table.put(0, class, &rounds(1..9)));
    table.drain(0..1, DrainScope::All, [class].into_iter(), |_, taken| while taken.pop().is_some() {});
    assert!(table.put(1, class, &rounds(9..17)));
    assert!(table.decommit_idle() > 0);
    let region = table.region(1).unwrap();
    assert_eq!((table.len(1, class), region.cap(class)), (8, 8));
    assert_eq!(region.pop(class, Commit::Done), Some(round(16)));
}

#[test]
fn adjacent_idle_pages_are_decommitted_as_one_range() {
    let mut pages = Pages::default();
    [0, 1, 63, 64, 65, 1023].into_iter().for_each(|page| pages.add(page));
    assert_eq!(pages.runs().collect::<Vec<_>>(), [0..2, 63..66, 1023..1024]);
}

/// The heap cannot decommit memory. Stacks that were closed for a failed decommit can be used again.
#[test]
fn failed_decommit_is_not_reported_as_decommitted() {
    let table = simulated(1, 128 << 10);
    let class = table.class(700).unwrap();
    let region = table.region(0).unwrap();
    for turn in 1..=2 {
        assert!(table.put(0, class, &rounds(1..9)));
        assert!(region.pop(class, Commit::Done).is_some());
        assert_eq!(table.drain_all(DrainScope::All, &[class]).len(), 1);
        assert_ne!(region.recorded_head(class), 0);
        assert_eq!(table.decommit_idle(), 0);
        assert_eq!((region.head(class), region.recorded_head(class)), (0, 0));
        assert_eq!((region.served(class), region.backed_pages().is_empty()), ((turn, 0), true));
    }
}
