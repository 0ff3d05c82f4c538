//! The depot: full magazines of one class, which all CPUs of a node share under one lock.
//!
//! A CPU accesses the depot at most once per magazine, so a plain lock is fast enough. An experiment with two lock-free
//! stacks was not faster, because contention costs the transfer of cache lines in any case. The depot copies a
//! magazine's objects in and out. An access therefore takes the lock only once, and the depot keeps no empty magazines.
//! A CPU detects an empty depot without the lock, because any thread can read the depot's length. The magazines of a
//! depot are stored in the table's memory. A depot requests more of the table's memory as it grows, and returns unused
//! memory at a reap. The depot never calls the global allocator, which may be built on this crate. A depot that was
//! never used takes only a few words of memory.
//!
//! **Working set** (Bonwick & Adams 2001, section 3.7): the depot records its minimum length since the last reap. The
//! minimum length is the *surplus*: the number of magazines that no CPU needed during the interval.
//!
//! **Budget**: a depot can always keep its first [`FREE`] magazines. A depot accepts further magazines only while all
//! depots that share the [`DepotBudget`] together stay within the budget. A depot that has only a few magazines
//! therefore does not write to the shared counter of the budget.

use crate::cpu::Cpus;
use crate::magazine::Magazine;
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::ForkMutex;
use crate::sync::{AtomicU32, Counter, MutexGuard, Rank, tell};
use crate::tracepoints::{Operation, Step};
use core::ptr::NonNull;

/// Memory for one magazine, taken from a table. A block is on at most one list, and the owner of the list owns the
/// block.
#[derive(Debug)]
pub(crate) struct Block(NonNull<Slot>);
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    next: Option<Block>,
    magazine: Magazine,
}

// SAFETY: a `Block` owns its slot, whichever thread holds the `Block`.
unsafe impl Send for Block {}

impl Block {
    /// # Safety
    /// The memory at `at` must be aligned and writable for a slot, and no other code may use it.
    pub(crate) unsafe fn at(at: NonNull<u8>) -> Self {
        let at = at.cast::<Slot>();
        // SAFETY: `at` is aligned, writable and unused by other code, by this function's contract.
        unsafe { at.write(Slot { next: None, magazine: Magazine::new() }) };
        Self(at)
    }
    /// Allocates a block from the heap, for tests without a table.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn on_heap() -> Self {
        Self(NonNull::from(Box::leak(Box::new(Slot { next: None, magazine: Magazine::new() }))))
    }
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }
    fn slot(&self) -> &Slot {
        // SAFETY: the slot was written when the block was created, and this value owns the slot.
        unsafe { self.0.as_ref() }
    }
    fn slot_mut(&mut self) -> &mut Slot {
        // SAFETY: the slot was written when the block was created. This value owns the slot and is borrowed
        // exclusively.
        unsafe { self.0.as_mut() }
    }
}

impl Slot {
    /// For debuggers: the byte offsets in a slot of the next slot's address, of the magazine's length, and of the
    /// magazine's objects.
    pub(crate) const LAYOUT: [usize; 3] = {
        let magazine = core::mem::offset_of!(Self, magazine);
        let [len, rounds] = Magazine::LAYOUT;
        [core::mem::offset_of!(Self, next), magazine + len, magazine + rounds]
    };
}

/// A singly linked list of blocks, newest first.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Option<Block>);

impl Blocks {
    pub(crate) fn push(&mut self, mut block: Block) {
        block.slot_mut().next = self.0.take();
        self.0 = Some(block);
    }
    pub(crate) fn pop(&mut self) -> Option<Block> {
        let mut block = self.0.take()?;
        self.0 = block.slot_mut().next.take();
        Some(block)
    }
    pub(crate) fn append(&mut self, mut others: Self) {
        core::iter::from_fn(|| others.pop()).for_each(|block| self.push(block));
    }
    fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        let slots = core::iter::successors(self.0.as_ref(), |block| block.slot().next.as_ref());
        slots.map(|block| &block.slot().magazine)
    }
    /// Frees all blocks of the list, which must come from the heap. Returns the number of freed blocks.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn free(mut self) -> usize {
        // SAFETY: `Block::on_heap` created the block, and the list owned it.
        let free = |block: Block| unsafe { drop(Box::from_raw(block.0.as_ptr())) };
        core::iter::from_fn(|| self.pop()).map(free).count()
    }
}

/// Number of magazines in each depot that do not count towards the budget.
pub(crate) const FREE: u32 = 2;

/// A limit on the total bytes in the depots of one or more tables. The first two magazines of each depot do
/// not count towards the budget.
#[derive(Debug)]
#[repr(align(64))]
pub struct DepotBudget {
    held: Counter,
    most: Counter,
    default: u64,
}

impl DepotBudget {
    /// The part of the budget that each CPU adds, in bytes. The total budget is at least
    /// [`MIN_BYTES`](Self::MIN_BYTES).
    const BUDGET_BYTES_PER_CPU: u64 = 1 << 20;
    const MIN_BYTES: u64 = 8 << 20;

    /// Creates the default budget for a machine with the given CPUs.
    pub fn of(cpus: &Cpus) -> Self {
        Self::new(Self::MIN_BYTES.max(u64::from(cpus.count()) * Self::BUDGET_BYTES_PER_CPU))
    }
    pub(crate) fn new(most: u64) -> Self {
        Self { held: Counter::new(0), most: Counter::new(most), default: most }
    }
    /// Sets the budget to `bytes`, or to the machine's default budget if that is lower. Depots that already exceed the
    /// new budget keep their magazines.
    pub fn keep_at_most(&self, bytes: u64) {
        self.most.set(bytes.min(self.default));
    }
    /// Charges `bytes` to the budget, unless the budget is used up. Returns `false` if nothing was charged. Concurrent
    /// charges may exceed the budget by one magazine each.
    fn charge(&self, bytes: u64) -> bool {
        let fits = bytes == 0 || self.held.get().saturating_add(bytes) <= self.most.get();
        if fits {
            self.held.add(bytes);
        }
        fits
    }
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }
}

#[derive(Debug)]
pub(crate) struct FullMagazines {
    /// The blocks with full magazines, newest first.
    magazines: Blocks,
    len: u32,
    /// Blocks without a magazine, kept for later magazines.
    spare: Blocks,
    /// True if the depot is open, and so accepts magazines.
    open: bool,
    /// Minimum number of magazines in the depot since the reaping interval began.
    min: u32,
}

/// The depot of one class on one node; see the [module](self). The fields that every access writes come first, so that
/// they share a cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Depot {
    /// Number of depot accesses that moved a magazine. Only the holder of the depot's lock writes the count.
    pub(crate) exchanges: Counter,
    /// Number of magazines in the depot. Only the holder of the depot's lock writes the length; other threads may read
    /// it as a hint.
    len: AtomicU32,
    limit: u32,
    /// Size of a full magazine's objects in bytes; 0 if this depot's magazines do not count towards the budget.
    bytes: u64,
    pub(crate) full: ForkMutex<FullMagazines>,
    /// Number of accesses that found the depot's lock held.
    pub(crate) contention: Counter,
    /// Is 1 if the depot may have blocks without a magazine, and 0 otherwise.
    spare: Counter,
}

impl Depot {
    /// Creates an empty depot for up to `limit` magazines, each with objects of `bytes` bytes in total.
    pub(crate) fn new(limit: u32, bytes: u64) -> Self {
        let (magazines, spare) = (Blocks::default(), Blocks::default());
        let full = FullMagazines { magazines, len: 0, spare, open: true, min: 0 };
        Self {
            exchanges: Counter::new(0),
            len: AtomicU32::new(0),
            limit,
            bytes,
            full: ForkMutex::new(Rank::Depot, full),
            contention: Counter::new(0),
            spare: Counter::new(0),
        }
    }

    /// Returns the depot's length, to print in a counterexample trace.
    #[cfg(loom)]
    fn watched(&self) -> crate::sync::story::Watched {
        let parts = vec![("depot".to_owned(), self.len.peek().to_string())];
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    fn lock(&self, op: &Operation) -> MutexGuard<'_, FullMagazines> {
        let free = self.full.try_lock();
        tell!(op: if free.is_some() { Step::DepotVisited } else { Step::DepotContended });
        free.unwrap_or_else(|| {
            self.contention.add(1);
            self.full.lock()
        })
    }

    /// For debuggers: the address at which the depot stores the pointer to its newest magazine.
    pub(crate) fn first(&self) -> usize {
        self.full.place().addr() + core::mem::offset_of!(FullMagazines, magazines)
    }
    /// Returns the number of magazines in the depot, as a hint.
    pub(crate) fn len(&self) -> u32 {
        // Relaxed: a pop that does not see a push is ordered before that push.
        self.len.load(Relaxed)
    }

    /// Stores the depot's length, so that other threads can read it. The caller must hold the depot's lock.
    fn publish(&self, len: u32) {
        // Relaxed: the length is a hint, and the lock orders the magazines.
        self.len.store(len, Relaxed);
    }
    /// Counts an access that moved a magazine. The caller must hold the depot's lock.
    fn count_exchange(&self) {
        self.exchanges.set(self.exchanges.get() + 1);
    }

    /// Removes the depot's newest magazine and copies it to `into`. Returns `false` if the depot is empty, in most
    /// cases without taking the lock.
    pub(crate) fn take(&self, op: &Operation, budget: &DepotBudget, into: &mut Magazine) -> bool {
        let before = self.len();
        if before == 0 {
            return false;
        }
        let mut full = self.lock(op);
        let Some(magazine) = full.magazines.magazines().next() else { return false };
        into.copy_from(magazine);
        if let Some(block) = full.magazines.pop() {
            full.spare.push(block);
            full.len -= 1;
            if full.len >= FREE {
                budget.held.sub(self.bytes);
            }
            // The check avoids most writes to the cache line of `spare`, which accesses of the depot rarely
            // change.
            if self.spare.get() == 0 {
                self.spare.set(1);
            }
        }
        full.min = full.min.min(full.len);
        self.publish(full.len);
        tell!(op: self => Step::DepotTaken);
        self.count_exchange();
        true
    }

    /// Adds a magazine. Returns `false` if the depot is full or closed, if the budget is used up, or if the depot needs
    /// a block and `more` supplies none.
    #[must_use = "the caller still owns a magazine that was not taken"]
    pub(crate) fn put(
        &self,
        op: &Operation,
        budget: &DepotBudget,
        magazine: &Magazine,
        more: impl FnOnce() -> Option<Block>,
    ) -> bool {
        if self.limit == 0 {
            return false;
        }
        let mut full = self.lock(op);
        if full.len >= self.limit || !full.open {
            return false;
        }
        let counted = full.len >= FREE;
        if counted && !budget.charge(self.bytes) {
            return false;
        }
        let Some(mut block) = full.spare.pop().or_else(more) else {
            if counted {
                budget.held.sub(self.bytes);
            }
            return false;
        };
        block.slot_mut().magazine.copy_from(magazine);
        full.magazines.push(block);
        full.len += 1;
        self.publish(full.len);
        tell!(op: self => Step::DepotGiven);
        self.count_exchange();
        true
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.full.lock().open = open;
    }

    /// Ends the current reaping interval and begins the next one. Returns the surplus: the number of magazines that no
    /// CPU needed during the interval.
    pub(crate) fn surplus(&self, op: &Operation) -> u32 {
        let mut full = self.lock(op);
        let n = full.min;
        full.min = full.len - n;
        n
    }

    /// Removes and returns the blocks without a magazine. Returns `None` if every block of the depot holds a magazine.
    pub(crate) fn spare(&self) -> Option<Blocks> {
        if self.spare.get() == 0 {
            return None;
        }
        let mut full = self.full.lock();
        self.spare.set(0);
        Some(core::mem::take(&mut full.spare))
    }
    /// Removes and returns all blocks, including the magazines in them. No other thread may use the depot during the
    /// call.
    pub(crate) fn end(&self, budget: &DepotBudget) -> Blocks {
        let mut full = self.full.lock();
        budget.held.sub(u64::from(full.len.saturating_sub(FREE)) * self.bytes);
        let mut blocks = core::mem::take(&mut full.magazines);
        blocks.append(core::mem::take(&mut full.spare));
        full.len = 0;
        blocks
    }

    /// Returns copies of the depot's magazines, in the order in which `take` would remove them.
    pub(crate) fn look(&self) -> Vec<Magazine> {
        // The vector is allocated before locking. The vector is large enough if no other thread uses the
        // depot.
        let mut magazines = Vec::with_capacity(self.len() as usize);
        let full = self.full.lock();
        let room = magazines.capacity();
        magazines.extend(full.magazines.magazines().take(room).cloned());
        magazines
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn depot_visit_is_counted_only_if_it_moves_a_magazine() {
        let (depot, budget) = (Depot::new(1, 0), &DepotBudget::new(0));
        let (op, mut magazine) = (&Operation::new(), Magazine::new());
        let put = |magazine: &Magazine| depot.put(op, budget, magazine, || Some(Block::on_heap()));
        magazine.push(NonNull::dangling());
        assert_eq!([put(&magazine), put(&magazine)], [true, false], "the limit is one magazine");
        assert_eq!((depot.len(), depot.exchanges.get()), (1, 1));
        let mut taken = Magazine::new();
        assert!(depot.take(op, budget, &mut taken) && !depot.take(op, budget, &mut Magazine::new()));
        assert_eq!(taken.rounds(), magazine.rounds());
        assert_eq!((depot.len(), depot.exchanges.get()), (0, 2));
        depot.end(budget).free();
    }

    #[test]
    fn depot_reuses_the_block_of_a_taken_magazine() {
        let (depot, budget) = (Depot::new(2, 0), &DepotBudget::new(0));
        let (op, mut magazine) = (&Operation::new(), Magazine::new());
        assert!(depot.put(op, budget, &magazine, || Some(Block::on_heap())) && depot.spare().is_none());
        assert!(depot.take(op, budget, &mut magazine) && depot.put(op, budget, &magazine, || None));
        assert!(!depot.put(op, budget, &magazine, || None), "the depot has room for one magazine");
        assert!(depot.take(op, budget, &mut magazine));
        let spare = depot.spare().unwrap();
        assert_eq!((spare.magazines().count(), depot.spare().is_none()), (1, true));
        assert!(!depot.put(op, budget, &magazine, || None));
        spare.free();
    }

    #[test]
    fn depot_surplus_is_the_magazines_unused_for_an_interval() {
        let (depot, budget) = (Depot::new(8, 0), &DepotBudget::new(0));
        let (op, mut magazine) = (&Operation::new(), Magazine::new());
        for _ in 0..5 {
            assert!(depot.put(op, budget, &magazine, || Some(Block::on_heap())));
        }
        assert_eq!(depot.surplus(op), 0, "the interval in which the magazines were put does not count");
        assert!(depot.take(op, budget, &mut magazine) && depot.take(op, budget, &mut magazine));
        assert_eq!(depot.surplus(op), 3);
        // A magazine that is added while the surplus is removed does not immediately count as surplus.
        assert!(depot.put(op, budget, &magazine, || None));
        assert!((0..3).all(|_| depot.take(op, budget, &mut magazine)));
        assert_eq!((depot.len(), depot.surplus(op), depot.surplus(op)), (1, 0, 1));
        depot.end(budget).free();
    }

    #[test]
    fn debugger_layout_matches_the_list_of_magazines() {
        let depot = Depot::new(1, 0);
        assert_eq!(depot.first(), core::ptr::from_ref(&depot.full.lock().magazines).addr());
    }

    #[test]
    fn closed_depot_accepts_no_magazine() {
        let (depot, budget) = (Depot::new(2, 0), &DepotBudget::new(0));
        let (op, mut magazine) = (&Operation::new(), Magazine::new());
        let put = |magazine: &Magazine| depot.put(op, budget, magazine, || Some(Block::on_heap()));
        assert!(put(&magazine));
        depot.set_open(false);
        assert!(!put(&magazine) && depot.take(op, budget, &mut magazine));
        depot.set_open(true);
        assert!(put(&magazine));
        depot.end(budget).free();
    }

    #[test]
    fn destroying_a_depot_returns_all_its_memory_blocks() {
        let (depot, budget) = (Depot::new(3, 0), &DepotBudget::new(0));
        let (op, mut magazine) = (&Operation::new(), Magazine::new());
        assert!((0..3).all(|_| depot.put(op, budget, &magazine, || Some(Block::on_heap()))));
        assert!(depot.take(op, budget, &mut magazine));
        let mut blocks = depot.end(budget);
        assert_eq!(
            blocks.magazines().count(),
            3,
            "two depots have a magazine, and room for one more remains"
        );
        blocks.append(depot.end(budget));
        assert_eq!(blocks.magazines().count(), 3);
        blocks.free();
    }

    #[test]
    fn each_depot_keeps_two_magazines_outside_the_shared_budget() {
        let (op, budget, magazine) = (&Operation::new(), &DepotBudget::new(300), Magazine::new());
        let [a, b] = [(); 2].map(|()| Depot::new(10, 100));
        let put = |depot: &Depot| depot.put(op, budget, &magazine, || Some(Block::on_heap()));
        let take = |depot: &Depot| depot.take(op, budget, &mut Magazine::new());
        let fill = |depot: &Depot| core::iter::repeat_with(|| put(depot)).take_while(|took| *took).count();
        assert_eq!(
            [fill(&a), fill(&b)],
            [5, 2],
            "each depot keeps two magazines, and both together keep three"
        );
        assert!(take(&a) && put(&b) && !put(&b) && !put(&a));
        assert!(!b.put(op, budget, &magazine, || panic!("the budget is used up")));
        assert!(take(&b) && take(&b) && put(&b), "the magazine is one of the first two");
        let spare = b.spare();
        assert!(!b.put(op, budget, &magazine, || None) && put(&b), "a put without a block charges nothing");
        spare.map(Blocks::free);
        [&a, &b].iter().for_each(|depot| _ = depot.end(budget).free());
        assert_eq!(budget.held(), 0);
        budget.keep_at_most(100);
        assert_eq!(fill(&a), 3);
        budget.keep_at_most(1000);
        assert_eq!(fill(&a), 2, "the budget of the machine is at most 300");
        a.end(budget).free();
    }
}
