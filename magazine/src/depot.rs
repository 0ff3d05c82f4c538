//! The depot: one node's shared stores of full and of empty magazines, under one lock.
//!
//! It is visited once per magazine, or once per batch where CPUs keep a stock, so a plain lock serves: what costs when
//! CPUs meet here is the other CPU's cache lines, not the lock (a lock-free pair of stacks measured the same).
//! An empty depot costs no lock: the lengths are readable from outside.
//!
//! **Working set** (Bonwick & Adams 2001, section 3.4): each list remembers the smallest length it had since the last
//! reap. Magazines that were not needed through the whole last interval *and* so far in this one are surplus.

use crate::memory::Memory;
use crate::slot::{Fill, Num};
use crate::store::Store;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, Counter, Mutex, MutexGuard, planted};

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
    pub(crate) fn of<M: Memory>(store: &Store<M>, num: Num) -> Self {
        let mut chain = Self::new();
        chain.push(store, num);
        chain
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
    lists: Mutex<Lists>,
    /// Lengths of the two lists, stored under the lock; read without it as a hint.
    full: AtomicU32,
    empty: AtomicU32,
    /// Visits that moved a magazine, and visits that found the lock taken.
    pub(crate) exchanges: Counter,
    pub(crate) contention: Counter,
}

impl Depot {
    pub(crate) fn new() -> Self {
        Self {
            lists: Mutex::new(Lists { full: List::new(), empty: List::new(), stocks: Chain::new() }),
            full: AtomicU32::new(0),
            empty: AtomicU32::new(0),
            exchanges: Counter::new(0),
            contention: Counter::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.try_lock().unwrap_or_else(|| {
            self.contention.add(1);
            self.lists.lock()
        })
    }

    /// The lock alone, so that nobody is inside while a process forks.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    fn hint(&self, fill: Fill) -> &AtomicU32 {
        if fill == Fill::Full { &self.full } else { &self.empty }
    }

    /// How many magazines of that fill lie here, as a hint.
    pub(crate) fn len(&self, fill: Fill) -> u32 {
        // Relaxed: a pop that misses a push it did not happen after is a pop that came before it.
        self.hint(fill).load(Relaxed)
    }

    /// Takes up to `n` magazines of that fill. An empty list costs no lock.
    pub(crate) fn take<M: Memory>(&self, store: &Store<M>, fill: Fill, n: u32) -> Chain {
        let mut taken = Chain::new();
        let before = self.len(fill);
        if before == 0 {
            return taken;
        }
        let mut lists = self.lock();
        let list = lists.of(fill);
        while taken.len() < n
            && let Some(num) = list.chain.pop(store)
        {
            taken.push(store, num);
        }
        list.min = list.min.min(list.chain.len());
        let stale = planted("depot length from before the lock");
        // Relaxed: a hint; the lock orders the lists.
        self.hint(fill).store(if stale { before - taken.len() } else { list.chain.len() }, Relaxed);
        if taken.len() > 0 {
            self.exchanges.add(1);
        }
        taken
    }

    /// Puts magazines of that fill here until the list is `limit` long, and returns the others.
    pub(crate) fn put<M: Memory>(
        &self,
        store: &Store<M>,
        fill: Fill,
        limit: u32,
        mut magazines: Chain,
    ) -> Chain {
        let mut beyond = Chain::new();
        let mut lists = self.lock();
        let list = lists.of(fill);
        while let Some(num) = magazines.pop(store) {
            debug_assert!(store.get(num).is(fill), "a {fill:?} list takes only such magazines");
            if list.chain.len() >= limit {
                beyond.push(store, num);
            } else {
                list.chain.push(store, num);
            }
        }
        self.hint(fill).store(list.chain.len(), Relaxed);
        self.exchanges.add(1);
        beyond
    }

    /// All full magazines, for the supplier.
    pub(crate) fn take_all_full(&self) -> Chain {
        let mut lists = self.lock();
        self.full.store(0, Relaxed);
        let list = lists.of(Fill::Full);
        (list.min, list.reap_limit) = (0, 0);
        core::mem::replace(&mut list.chain, Chain::new())
    }

    /// Ends an interval: returns the full magazines that were surplus through all of it and the one before.
    ///
    /// Empty magazines stay: they are type-stable, and what they cost is bounded.
    pub(crate) fn reap<M: Memory>(&self, store: &Store<M>) -> Chain {
        let mut surplus = Chain::new();
        let mut lists = self.lock();
        let list = lists.of(Fill::Full);
        let n = if planted("reap ignores the working set") {
            list.chain.len()
        } else {
            list.reap_limit.min(list.min)
        };
        for _ in 0..n {
            let Some(num) = list.chain.pop(store) else { break };
            surplus.push(store, num);
        }
        list.reap_limit = list.min.saturating_sub(n);
        list.min = list.chain.len();
        self.full.store(list.chain.len(), Relaxed);
        surplus
    }

    /// An unused stock magazine.
    pub(crate) fn take_stock<M: Memory>(&self, store: &Store<M>) -> Option<Num> {
        self.lock().stocks.pop(store)
    }
    /// Keeps a stock magazine that no CPU uses; it must be empty.
    pub(crate) fn put_stock<M: Memory>(&self, store: &Store<M>, num: Num) {
        self.lock().stocks.push(store, num);
    }
}

impl Lists {
    fn of(&mut self, fill: Fill) -> &mut List {
        if fill == Fill::Full { &mut self.full } else { &mut self.empty }
    }
}
