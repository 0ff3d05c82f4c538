//! The depot: what the CPUs of a node share of a class, full magazines under one lock.
//!
//! It is visited once a magazine at most, so a plain lock serves: what costs when CPUs meet here is the other CPU's cache
//! lines, not the lock (a lock-free pair of stacks measured the same). Magazines are copied in and out: one visit is one
//! lock hold, and there are no empty magazines to keep. An empty depot costs no lock: its length is readable from outside.
//!
//! **Working set** (Bonwick & Adams 2001, section 3.7): the depot remembers the smallest length that it had since the last
//! reap. Magazines that were not needed through the whole last interval *and* so far in this one are surplus.

use crate::magazine::Magazine;
use crate::paths::Operation;
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::ForkMutex;
use crate::sync::{AtomicU32, Counter, MutexGuard, Rank, planted, tell};

/// The magazines, the newest last.
#[derive(Debug)]
pub(crate) struct Full {
    magazines: Vec<Magazine>,
    /// Whether it takes magazines.
    open: bool,
    /// Shortest since the interval began,
    min: u32,
    /// and through the interval before.
    reap_limit: u32,
}

impl Full {
    fn len(&self) -> u32 {
        self.magazines.len() as u32
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Depot {
    pub(crate) full: ForkMutex<Full>,
    limit: u32,
    /// Their number, stored under the lock; read without it as a hint.
    len: AtomicU32,
    /// Rounds in them; written under the lock.
    rounds: Counter,
    /// Visits that moved a magazine, and visits that found the lock taken.
    pub(crate) exchanges: Counter,
    pub(crate) contention: Counter,
}

impl Depot {
    /// For up to `limit` magazines; `None` if there is no memory for them.
    pub(crate) fn new(limit: u32) -> Option<Self> {
        let mut magazines = Vec::new();
        // All at once: a visit allocates nothing, because an allocator may stand on this.
        magazines.try_reserve_exact(limit as usize).ok()?;
        Some(Self {
            full: ForkMutex::new(Rank::Depot, Full { magazines, open: true, min: 0, reap_limit: 0 }),
            limit,
            len: AtomicU32::new(0),
            rounds: Counter::new(0),
            exchanges: Counter::new(0),
            contention: Counter::new(0),
        })
    }

    /// The length as a story shows it.
    #[cfg(loom)]
    fn watched(&self) -> crate::sync::story::Watched {
        let parts = vec![("depot".to_owned(), self.len.peek().to_string())];
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    fn lock(&self, op: &Operation) -> MutexGuard<'_, Full> {
        tell!(op: Depot, "visits the depot");
        self.full.try_lock().unwrap_or_else(|| {
            self.contention.add(1);
            self.full.lock()
        })
    }

    /// How many magazines lie here, as a hint.
    pub(crate) fn len(&self) -> u32 {
        // Relaxed: a pop that misses a push it did not happen after is a pop that came before it.
        self.len.load(Relaxed)
    }

    /// Rounds that lie here, as a hint.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.get()
    }

    /// Publishes the length; for whoever holds the lock and took or put so many rounds.
    fn publish(&self, len: u32, taken: usize, put: usize) {
        // Relaxed: a hint; the lock orders the magazines.
        self.len.store(len, Relaxed);
        self.rounds.set(self.rounds.get() + put as u64 - taken as u64);
    }

    /// Takes the newest magazine; `false` if there is none. An empty depot costs no lock.
    pub(crate) fn take(&self, op: &Operation, into: &mut Magazine) -> bool {
        let before = self.len();
        if before == 0 {
            return false;
        }
        let mut full = self.lock(op);
        let Some(magazine) = full.magazines.last() else { return false };
        into.copy_from(magazine);
        if !planted("a magazine is taken from the depot and left there") {
            full.magazines.pop();
        }
        full.min = full.min.min(full.len());
        let stale = planted("depot length from before the lock");
        self.publish(if stale { before - 1 } else { full.len() }, into.len(), 0);
        tell!(self => "takes a magazine from the depot");
        self.exchanges.add(1);
        true
    }

    /// Puts a magazine here; `false` if there is no room.
    #[must_use = "a magazine that was not taken is still the caller's"]
    pub(crate) fn put(&self, op: &Operation, magazine: &Magazine) -> bool {
        if self.limit == 0 {
            return false;
        }
        let mut full = self.lock(op);
        let open = full.open || planted("a depot that is closed takes magazines");
        if full.len() >= self.limit || !open {
            return false;
        }
        full.magazines.push(magazine.clone());
        self.publish(full.len(), 0, magazine.len());
        tell!(self => "puts a magazine into the depot");
        self.exchanges.add(1);
        true
    }

    /// Whether it takes magazines from now on.
    pub(crate) fn set_open(&self, open: bool) {
        self.full.lock().open = open;
    }

    /// Whatever lies here is surplus: an interval begins with nothing.
    pub(crate) fn forget_working_set(&self, op: &Operation) {
        let mut full = self.lock(op);
        (full.min, full.reap_limit) = (0, 0);
    }

    /// Ends an interval: how many magazines were surplus through all of it and the one before.
    pub(crate) fn surplus(&self, op: &Operation) -> u32 {
        let mut full = self.lock(op);
        let n =
            if planted("reap ignores the working set") { full.len() } else { full.reap_limit.min(full.min) };
        full.reap_limit = full.min.saturating_sub(n);
        full.min = full.len() - n;
        n
    }

    /// The magazines, the next one to be taken first.
    pub(crate) fn look(&self) -> Vec<Magazine> {
        // Room for all of them, outside the lock, as long as nobody else comes; its caller is alone.
        let mut magazines = Vec::with_capacity(self.len() as usize);
        let full = self.full.lock();
        let room = magazines.capacity();
        magazines.extend(full.magazines.iter().rev().take(room).cloned());
        magazines
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::ptr::NonNull;

    #[test]
    fn visits_move_one_magazine_or_do_not_count() {
        let (depot, op, mut magazine) = (Depot::new(1).unwrap(), &Operation::new(), Magazine::new());
        magazine.push(NonNull::dangling());
        assert_eq!([depot.put(op, &magazine), depot.put(op, &magazine)], [true, false], "one is the limit");
        assert_eq!((depot.len(), depot.rounds(), depot.exchanges.get()), (1, 1, 1));
        let mut taken = Magazine::new();
        assert!(depot.take(op, &mut taken) && !depot.take(op, &mut Magazine::new()));
        assert_eq!(taken.rounds(), magazine.rounds());
        assert_eq!((depot.len(), depot.rounds(), depot.exchanges.get()), (0, 0, 2));
    }

    #[test]
    fn what_was_not_needed_for_two_intervals_is_surplus() {
        let (depot, op, mut magazine) = (Depot::new(8).unwrap(), &Operation::new(), Magazine::new());
        for _ in 0..5 {
            assert!(depot.put(op, &magazine));
        }
        // The interval in which they came does not count, nor does the first one through which they lay.
        assert_eq!([(); 2].map(|()| depot.surplus(op)), [0, 0]);
        assert!(depot.take(op, &mut magazine) && depot.take(op, &mut magazine));
        assert_eq!(depot.surplus(op), 3);
    }
}
