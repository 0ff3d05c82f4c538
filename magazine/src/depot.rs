//! The depot: one node's shared stores of full and of empty magazines, under one lock.
//!
//! It is visited once a magazine at most, and rarely where CPUs keep a stock, so a plain lock serves: what costs when
//! CPUs meet here is the other CPU's cache lines, not the lock (a lock-free pair of stacks measured the same). One
//! magazine moves at a time: where one CPU frees what another one allocates, larger batches only let more rounds
//! circulate, whose lines travel.
//! An empty depot costs no lock: the lengths are readable from outside.
//!
//! **Working set** (Bonwick & Adams 2001, section 3.7): each list remembers the smallest length it had since the last
//! reap. Magazines that were not needed through the whole last interval *and* so far in this one are surplus.

use crate::memory::Memory;
use crate::paths::Operation;
use crate::slot::{Fill, Num};
use crate::store::Store;
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::ForkMutex;
use crate::sync::{AtomicU32, Counter, MutexGuard, Rank, planted, tell};

/// A chain of magazines owned by whoever holds it, linked through the magazines themselves; last in, first out.
#[derive(Debug)]
pub(crate) struct Chain {
    head: Num,
    len: u32,
}

impl Chain {
    pub(crate) const fn new() -> Self {
        Self { head: Num::SENTINEL, len: 0 }
    }
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
    /// `num` must be owned by the caller and not be the sentinel.
    pub(crate) fn push<M: Memory>(&mut self, store: &Store<M>, num: Num) {
        debug_assert!(!num.is_sentinel());
        store.get(num).set_link(self.head);
        self.head = num;
        self.len += 1;
    }
    pub(crate) fn pop<M: Memory>(&mut self, store: &Store<M>) -> Option<Num> {
        let num = self.head;
        if num.is_sentinel() {
            return None;
        }
        self.head = store.get(num).link();
        self.len -= 1;
        Some(num)
    }
}

/// One list of the depot with its working-set counters, in magazines.
#[derive(Debug)]
struct List {
    chain: Chain,
    /// Shortest since the interval began,
    min: u32,
    /// and through the interval before.
    reap_limit: u32,
}

impl List {
    const fn new() -> Self {
        Self { chain: Chain::new(), min: 0, reap_limit: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Lists {
    full: List,
    empty: List,
    /// Stock magazines (magazines of magazine numbers) that no CPU uses.
    stocks: Chain,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Depot {
    pub(crate) lists: ForkMutex<Lists>,
    /// Lengths of the two lists, stored under the lock; read without it as a hint.
    full: AtomicU32,
    empty: AtomicU32,
    /// Rounds in the full ones; written under the lock.
    rounds: Counter,
    /// Visits that moved a magazine, and visits that found the lock taken.
    pub(crate) exchanges: Counter,
    pub(crate) contention: Counter,
}

impl Depot {
    pub(crate) fn new() -> Self {
        Self {
            lists: ForkMutex::new(
                Rank::Depot,
                Lists { full: List::new(), empty: List::new(), stocks: Chain::new() },
            ),
            full: AtomicU32::new(0),
            empty: AtomicU32::new(0),
            rounds: Counter::new(0),
            exchanges: Counter::new(0),
            contention: Counter::new(0),
        }
    }

    /// The lengths as a story shows them.
    #[cfg(loom)]
    fn watched(&self) -> crate::sync::story::Watched {
        let list = |name: &str, len: &AtomicU32| (format!("depot {name}"), len.peek().to_string());
        let parts = vec![list("full", &self.full), list("empty", &self.empty)];
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    fn lock(&self, op: &Operation) -> MutexGuard<'_, Lists> {
        tell!(op: Depot, "visits the depot");
        self.lists.try_lock().unwrap_or_else(|| {
            self.contention.add(1);
            self.lists.lock()
        })
    }

    fn hint(&self, fill: Fill) -> &AtomicU32 {
        if fill == Fill::Full { &self.full } else { &self.empty }
    }

    /// How many magazines of that fill lie here, as a hint.
    pub(crate) fn len(&self, fill: Fill) -> u32 {
        // Relaxed: a pop that misses a push it did not happen after is a pop that came before it.
        self.hint(fill).load(Relaxed)
    }

    /// Rounds that lie here, as a hint.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.get()
    }

    /// The magazines of that fill, the next one to be taken first.
    pub(crate) fn numbers<M: Memory>(&self, store: &Store<M>, fill: Fill) -> Vec<Num> {
        // Room for all of them, outside the lock, as long as nobody else comes; its caller is alone.
        let mut numbers = Vec::with_capacity(self.len(fill) as usize);
        let mut lists = self.lists.lock();
        let mut next = lists.of(fill).chain.head;
        while !next.is_sentinel() && numbers.len() < numbers.capacity() {
            numbers.push(next);
            next = store.get(next).link();
        }
        numbers
    }

    /// Publishes the length of a list; for whoever holds the lock and took or put so many rounds.
    fn publish(&self, fill: Fill, len: u32, taken: u32, put: u32) {
        // Relaxed: a hint; the lock orders the lists.
        self.hint(fill).store(len, Relaxed);
        self.rounds.set(self.rounds.get() + u64::from(put) - u64::from(taken));
    }

    /// Takes a magazine of that fill. An empty list costs no lock.
    pub(crate) fn take<M: Memory>(&self, op: &Operation, store: &Store<M>, fill: Fill) -> Option<Num> {
        let before = self.len(fill);
        if before == 0 {
            return None;
        }
        let mut lists = self.lock(op);
        let list = lists.of(fill);
        let num = list.chain.pop(store)?;
        list.min = list.min.min(list.chain.len());
        let stale = planted("depot length from before the lock");
        let len = if stale { before - 1 } else { list.chain.len() };
        self.publish(fill, len, store.get(num).len(), 0);
        tell!(self => "takes {fill:?} magazine {} from the depot", num.0);
        self.exchanges.add(1);
        Some(num)
    }

    /// Puts a magazine of that fill here; `false` if the list is `limit` long already.
    #[must_use = "a magazine that was not taken is still the caller's"]
    pub(crate) fn put<M: Memory>(
        &self,
        op: &Operation,
        store: &Store<M>,
        fill: Fill,
        limit: u32,
        num: Num,
    ) -> bool {
        let mut lists = self.lock(op);
        let list = lists.of(fill);
        debug_assert!(store.get(num).is(fill), "a {fill:?} list takes only such magazines");
        if list.chain.len() >= limit {
            return false;
        }
        list.chain.push(store, num);
        self.publish(fill, list.chain.len(), 0, store.get(num).len());
        tell!(self => "puts {fill:?} magazine {} into the depot", num.0);
        self.exchanges.add(1);
        true
    }

    /// Puts all of these empty magazines here.
    pub(crate) fn put_emptied<M: Memory>(&self, op: &Operation, store: &Store<M>, mut emptied: Chain) {
        if emptied.len() == 0 {
            return;
        }
        let mut lists = self.lock(op);
        let before = lists.empty.chain.len();
        while let Some(num) = emptied.pop(store) {
            debug_assert!(store.get(num).is(Fill::Empty), "the empty list takes only such magazines");
            lists.empty.chain.push(store, num);
        }
        let stale = planted("depot length from before the magazines are put");
        self.publish(Fill::Empty, if stale { before } else { lists.empty.chain.len() }, 0, 0);
        tell!(self => "puts emptied magazines into the depot");
        self.exchanges.add(1);
    }

    /// All full magazines, for the supplier.
    pub(crate) fn take_all_full(&self, op: &Operation) -> Chain {
        let mut lists = self.lock(op);
        let list = lists.of(Fill::Full);
        (list.min, list.reap_limit) = (0, 0);
        let all = core::mem::replace(&mut list.chain, Chain::new());
        self.publish(Fill::Full, 0, self.rounds.get() as u32, 0);
        tell!(self => "takes all full magazines from the depot");
        all
    }

    /// Ends an interval: returns the full magazines that were surplus through all of it and the one before.
    ///
    /// Empty magazines stay: they are type-stable, and what they cost is bounded.
    pub(crate) fn reap<M: Memory>(&self, op: &Operation, store: &Store<M>) -> Chain {
        let (mut surplus, mut taken) = (Chain::new(), 0);
        let mut lists = self.lock(op);
        let list = lists.of(Fill::Full);
        let n = if planted("reap ignores the working set") {
            list.chain.len()
        } else {
            list.reap_limit.min(list.min)
        };
        for _ in 0..n {
            let Some(num) = list.chain.pop(store) else { break };
            taken += store.get(num).len();
            surplus.push(store, num);
        }
        list.reap_limit = list.min.saturating_sub(n);
        list.min = list.chain.len();
        self.publish(Fill::Full, list.chain.len(), taken, 0);
        tell!(self => "reaps the depot");
        surplus
    }

    /// An unused stock magazine.
    pub(crate) fn take_stock<M: Memory>(&self, op: &Operation, store: &Store<M>) -> Option<Num> {
        self.lock(op).stocks.pop(store)
    }
    /// Keeps a stock magazine that no CPU uses; it must be empty.
    pub(crate) fn put_stock<M: Memory>(&self, op: &Operation, store: &Store<M>, num: Num) {
        self.lock(op).stocks.push(store, num);
    }
}

impl Lists {
    fn of(&mut self, fill: Fill) -> &mut List {
        if fill == Fill::Full { &mut self.full } else { &mut self.empty }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::memory::Heap;

    fn store(magazines: u32) -> Store<Heap> {
        Store::new(1, 1, Heap::new(4096).unwrap(), magazines, 4, 4).unwrap()
    }

    #[test]
    fn visits_move_one_magazine_or_do_not_count() {
        let (depot, store, op) = (Depot::new(), store(2), &Operation::new());
        let nums = [(); 2].map(|()| store.create(op, 1, false).unwrap());
        assert_eq!(
            nums.map(|num| depot.put(op, &store, Fill::Empty, 1, num)),
            [true, false],
            "one is the limit"
        );
        assert_eq!((depot.len(Fill::Empty), depot.exchanges.get()), (1, 1));
        assert_eq!(depot.take(op, &store, Fill::Full), None);
        assert_eq!(depot.take(op, &store, Fill::Empty), Some(nums[0]));
        assert_eq!(depot.take(op, &store, Fill::Empty), None);
        assert_eq!((depot.len(Fill::Empty), depot.exchanges.get()), (0, 2));
        depot.put_emptied(op, &store, Chain::new());
        assert_eq!(depot.exchanges.get(), 2, "nothing was put");
    }

    #[test]
    fn a_stock_that_was_put_is_the_one_that_is_taken() {
        let (depot, store, op) = (Depot::new(), store(1), &Operation::new());
        let stock = store.create(op, 4, true).unwrap();
        assert_eq!(depot.take_stock(op, &store), None);
        depot.put_stock(op, &store, stock);
        assert_eq!((depot.take_stock(op, &store), depot.take_stock(op, &store)), (Some(stock), None));
    }
}
