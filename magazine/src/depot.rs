//! The depot: what the CPUs of a node share of a class, full magazines under one lock.
//!
//! It is visited once a magazine at most, so a plain lock serves: what costs when CPUs meet here is the other CPU's cache
//! lines, not the lock (a lock-free pair of stacks measured the same). Magazines are copied in and out: one visit is one
//! lock hold, and there are no empty magazines to keep. An empty depot costs no lock: its length is readable from outside.
//! What they lie in is the table's memory, which a depot asks for as it grows and gives back at a reap: an allocator may stand
//! on this, so a visit allocates nothing; and a depot that was never used is a few words.
//!
//! **Working set** (Bonwick & Adams 2001, section 3.7): the depot remembers the smallest length that it had since the last
//! reap. So many magazines were not needed through the whole interval: they are surplus.

use crate::magazine::Magazine;
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::ForkMutex;
use crate::sync::{AtomicU32, Counter, MutexGuard, Rank, planted, tell};
use crate::tracepoints::{Operation, Step};
use core::ptr::NonNull;

/// Room for a magazine, in the memory of a table; on lists of one owner each.
#[derive(Debug)]
pub(crate) struct Block(NonNull<Slot>);
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    next: Option<Block>,
    magazine: Magazine,
}

// SAFETY: whoever has it owns the slot.
unsafe impl Send for Block {}

impl Block {
    /// # Safety
    /// `at` is aligned for a slot, may be written to, and is nobody else's from now on.
    pub(crate) unsafe fn at(at: NonNull<u8>) -> Self {
        let at = at.cast::<Slot>();
        // SAFETY: by contract.
        unsafe { at.write(Slot { next: None, magazine: Magazine::new() }) };
        Self(at)
    }
    /// For whom there is no table.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn on_heap() -> Self {
        Self(NonNull::from(Box::leak(Box::new(Slot { next: None, magazine: Magazine::new() }))))
    }
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn address(&self) -> usize {
        self.0.addr().get()
    }
    fn slot(&self) -> &Slot {
        // SAFETY: written when the block was made; it is this owner's.
        unsafe { self.0.as_ref() }
    }
    fn slot_mut(&mut self) -> &mut Slot {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl Slot {
    /// For debuggers: where the address of the next one lies, and the length and the rounds of its magazine.
    pub(crate) const LAYOUT: [usize; 3] = {
        let magazine = core::mem::offset_of!(Self, magazine);
        let [len, rounds] = Magazine::LAYOUT;
        [core::mem::offset_of!(Self, next), magazine + len, magazine + rounds]
    };
}

/// A list of them, the newest first.
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
    /// Takes all of the others over.
    pub(crate) fn append(&mut self, mut others: Self) {
        core::iter::from_fn(|| others.pop()).for_each(|block| self.push(block));
    }
    fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        let slots = core::iter::successors(self.0.as_ref(), |block| block.slot().next.as_ref());
        slots.map(|block| &block.slot().magazine)
    }
    /// Where there is no table to take them back. Returns how many they were.
    #[cfg(any(test, loom, shuttle))]
    pub(crate) fn free(mut self) -> usize {
        // SAFETY: made by `Block::on_heap`, and owned.
        let free = |block: Block| unsafe { drop(Box::from_raw(block.0.as_ptr())) };
        core::iter::from_fn(|| self.pop()).map(free).count()
    }
}

/// The magazines.
#[derive(Debug)]
pub(crate) struct Full {
    /// The newest first,
    magazines: Blocks,
    /// and how many.
    len: u32,
    /// Room that was used and is not now, kept for the next magazines.
    spare: Blocks,
    /// Whether it takes magazines.
    open: bool,
    /// Shortest since the interval began.
    min: u32,
}

/// See the module. What each visit writes comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Depot {
    /// Visits that moved a magazine; written under the lock.
    pub(crate) exchanges: Counter,
    /// The number of magazines, stored under the lock; read without it as a hint.
    len: AtomicU32,
    limit: u32,
    pub(crate) full: ForkMutex<Full>,
    /// Visits that found the lock taken.
    pub(crate) contention: Counter,
    /// 1 where there may be room to spare.
    spare: Counter,
}

impl Depot {
    /// For up to `limit` magazines. It has room for none yet.
    pub(crate) fn new(limit: u32) -> Self {
        let (magazines, spare) = (Blocks::default(), Blocks::default());
        let full = Full { magazines, len: 0, spare, open: true, min: 0 };
        Self {
            exchanges: Counter::new(0),
            len: AtomicU32::new(0),
            limit,
            full: ForkMutex::new(Rank::Depot, full),
            contention: Counter::new(0),
            spare: Counter::new(0),
        }
    }

    /// The length as a story shows it.
    #[cfg(loom)]
    fn watched(&self) -> crate::sync::story::Watched {
        let parts = vec![("depot".to_owned(), self.len.peek().to_string())];
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    fn lock(&self, op: &Operation) -> MutexGuard<'_, Full> {
        let free = self.full.try_lock();
        tell!(op: if free.is_some() { Step::DepotVisited } else { Step::DepotContended });
        free.unwrap_or_else(|| {
            self.contention.add(1);
            self.full.lock()
        })
    }

    /// Where the address of the newest magazine's slot lies, for debuggers.
    pub(crate) fn first(&self) -> usize {
        self.full.place().addr() + core::mem::offset_of!(Full, magazines)
    }
    /// How many magazines lie here, as a hint.
    pub(crate) fn len(&self) -> u32 {
        // Relaxed: a pop that misses a push it did not happen after is a pop that came before it.
        self.len.load(Relaxed)
    }

    /// Publishes the length; for whoever holds the lock.
    fn publish(&self, len: u32) {
        // Relaxed: a hint; the lock orders the magazines.
        self.len.store(len, Relaxed);
    }
    /// A magazine was moved by whoever holds the lock.
    fn exchanged(&self) {
        self.exchanges.set(self.exchanges.get() + 1);
    }

    /// Takes the newest magazine; `false` if there is none. An empty depot costs no lock.
    pub(crate) fn take(&self, op: &Operation, into: &mut Magazine) -> bool {
        let before = self.len();
        if before == 0 {
            return false;
        }
        let mut full = self.lock(op);
        let Some(magazine) = full.magazines.magazines().next() else { return false };
        into.copy_from(magazine);
        planted!("a magazine is taken from the depot and left there" => return true);
        if let Some(block) = full.magazines.pop() {
            full.spare.push(block);
            full.len -= 1;
            // Once: its line is not the one that all visits write.
            if self.spare.get() == 0 {
                self.spare.set(1);
            }
        }
        planted!("a take is remembered in another lock hold" => {
            drop(full);
            full = self.full.lock();
        });
        full.min = full.min.min(full.len);
        planted!("the length of a depot forgets what left it" => return true);
        self.publish(full.len);
        planted!("depot length from before the lock" => self.publish(before - 1));
        tell!(op: self => Step::DepotTaken);
        self.exchanged();
        true
    }

    /// Puts a magazine here; `false` if there is no room, which `more` may have.
    #[must_use = "a magazine that was not taken is still the caller's"]
    pub(crate) fn put(
        &self,
        op: &Operation,
        magazine: &Magazine,
        more: impl FnOnce() -> Option<Block>,
    ) -> bool {
        if self.limit == 0 {
            return false;
        }
        let mut full = self.lock(op);
        planted!("a depot that is closed takes magazines" => full.open = true);
        if full.len >= self.limit || !full.open {
            return false;
        }
        planted!("a depot has room in one lock hold and gets a magazine in the next" => {
            drop(full);
            full = self.full.lock();
        });
        let Some(mut block) = full.spare.pop().or_else(more) else { return false };
        block.slot_mut().magazine.copy_from(magazine);
        full.magazines.push(block);
        full.len += 1;
        self.publish(full.len);
        tell!(op: self => Step::DepotGiven);
        self.exchanged();
        true
    }

    /// Whether it takes magazines from now on.
    pub(crate) fn set_open(&self, open: bool) {
        self.full.lock().open = open;
    }

    /// Ends an interval: how many magazines were surplus through all of it.
    pub(crate) fn surplus(&self, op: &Operation) -> u32 {
        let mut full = self.lock(op);
        let n = full.min;
        planted!("reap ignores the working set" => let n = full.len);
        full.min = full.len - n;
        n
    }

    /// The room that it does not use now, if there is any: the caller's.
    pub(crate) fn spare(&self) -> Option<Blocks> {
        if self.spare.get() == 0 {
            return None;
        }
        let mut full = self.full.lock();
        self.spare.set(0);
        Some(core::mem::take(&mut full.spare))
    }
    /// All of its room, with what lies there: nobody uses it any more.
    pub(crate) fn end(&self) -> Blocks {
        let mut full = self.full.lock();
        let mut blocks = core::mem::take(&mut full.magazines);
        blocks.append(core::mem::take(&mut full.spare));
        full.len = 0;
        blocks
    }

    /// The magazines, the next one to be taken first.
    pub(crate) fn look(&self) -> Vec<Magazine> {
        // Room for all of them, outside the lock, as long as nobody else comes; its caller is alone.
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
    fn visits_move_one_magazine_or_do_not_count() {
        let (depot, op, mut magazine) = (Depot::new(1), &Operation::new(), Magazine::new());
        let put = |magazine: &Magazine| depot.put(op, magazine, || Some(Block::on_heap()));
        magazine.push(NonNull::dangling());
        assert_eq!([put(&magazine), put(&magazine)], [true, false], "one is the limit");
        assert_eq!((depot.len(), depot.exchanges.get()), (1, 1));
        let mut taken = Magazine::new();
        assert!(depot.take(op, &mut taken) && !depot.take(op, &mut Magazine::new()));
        assert_eq!(taken.rounds(), magazine.rounds());
        assert_eq!((depot.len(), depot.exchanges.get()), (0, 2));
        depot.end().free();
    }

    #[test]
    fn room_that_a_magazine_has_left_is_used_again_or_goes_back_once() {
        let (depot, op, mut magazine) = (Depot::new(2), &Operation::new(), Magazine::new());
        assert!(depot.put(op, &magazine, || Some(Block::on_heap())) && depot.spare().is_none());
        assert!(depot.take(op, &mut magazine) && depot.put(op, &magazine, || None));
        assert!(!depot.put(op, &magazine, || None), "there is room for one");
        assert!(depot.take(op, &mut magazine));
        let spare = depot.spare().unwrap();
        assert_eq!((spare.magazines().count(), depot.spare().is_none()), (1, true));
        assert!(!depot.put(op, &magazine, || None));
        spare.free();
    }

    #[test]
    fn what_was_not_needed_for_an_interval_is_surplus() {
        let (depot, op, mut magazine) = (Depot::new(8), &Operation::new(), Magazine::new());
        for _ in 0..5 {
            assert!(depot.put(op, &magazine, || Some(Block::on_heap())));
        }
        assert_eq!(depot.surplus(op), 0, "the interval in which they came does not count");
        assert!(depot.take(op, &mut magazine) && depot.take(op, &mut magazine));
        assert_eq!(depot.surplus(op), 3);
        // One comes while the surplus leaves: it is not surplus at once.
        assert!(depot.put(op, &magazine, || None));
        assert!((0..3).all(|_| depot.take(op, &mut magazine)));
        assert_eq!((depot.len(), depot.surplus(op), depot.surplus(op)), (1, 0, 1));
        depot.end().free();
    }

    #[test]
    fn debuggers_find_the_list_of_magazines_where_it_lies() {
        let depot = Depot::new(1);
        assert_eq!(depot.first(), core::ptr::from_ref(&depot.full.lock().magazines).addr());
    }

    #[test]
    fn a_closed_depot_takes_no_magazine_and_hands_out_what_it_has() {
        let (depot, op, mut magazine) = (Depot::new(2), &Operation::new(), Magazine::new());
        let put = |magazine: &Magazine| depot.put(op, magazine, || Some(Block::on_heap()));
        assert!(put(&magazine));
        depot.set_open(false);
        assert!(!put(&magazine) && depot.take(op, &mut magazine));
        depot.set_open(true);
        assert!(put(&magazine));
        depot.end().free();
    }

    #[test]
    fn all_room_of_a_depot_comes_back_when_it_ends() {
        let (depot, op, mut magazine) = (Depot::new(3), &Operation::new(), Magazine::new());
        assert!((0..3).all(|_| depot.put(op, &magazine, || Some(Block::on_heap()))));
        assert!(depot.take(op, &mut magazine));
        let mut blocks = depot.end();
        assert_eq!(blocks.magazines().count(), 3, "two with a magazine, and one to spare");
        blocks.append(depot.end());
        assert_eq!(blocks.magazines().count(), 3);
        blocks.free();
    }
}
