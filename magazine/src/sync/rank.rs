//! The lock order, and the check that every thread keeps it.
//!
//! Each lock of the three crates has a [`Rank`]. Where checks are on (debug builds, loom, shuttle) a thread may only ask
//! for a lock whose rank is above all that it holds; anything else panics with both names, whether or not another thread
//! is there to deadlock with. The check needs one small table for each thread and allocates nothing, so that it works
//! below the global heap and in the handlers of a `fork`. Release builds keep neither ranks nor table.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

#[cfg(any(loom, shuttle, debug_assertions))]
use super::thread_local;
#[cfg(any(loom, shuttle, debug_assertions))]
use core::cell::Cell;

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The place of a lock in the lock order, outermost first: whoever holds one asks only for later ones.
        ///
        /// ARCHITECTURE.md, "Locks", says for each what it protects and what is taken under it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rank {
            $($(#[$doc])* $name,)*
        }
        impl Rank {
            /// All ranks, outermost first.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}
ranks! {
    /// Locks of users, tests and models. They are not ordered among themselves.
    Caller,
    /// The list of caches that others may share.
    Mergeable,
    /// The list of shrinkers.
    Shrinkers,
    /// The list of caches.
    Caches,
    /// The list of tables.
    Tables,
    /// What serialises the drains of a table.
    Drains,
    /// The magazines of a CPU, where a lock protects them.
    Cpu,
    /// The magazines of a depot.
    Depot,
    /// The numbers of a table's classes, and what of it is committed.
    Making,
    /// The slabs of a cache on one node.
    Node,
    /// Who is inside of a cache that may go.
    Visits,
    /// The free lists of a zone.
    Zone,
    /// The table of memory above the largest block.
    Huge,
    /// The tags of checked frees.
    Tags,
    /// A CPU's batch of objects that wait for readers.
    Deferred,
    /// The numbers of handles that nobody uses.
    Numbers,
    /// The objects of a mempool that are kept back.
    Reserve,
    /// The thread that runs on a CPU, in models.
    Token,
    /// Which calls are to be refused, in tests.
    Faults,
}

#[cfg(any(loom, shuttle, debug_assertions))]
const RANKS: usize = Rank::ALL.len();

/// The locks that a thread holds.
#[cfg(any(loom, shuttle, debug_assertions))]
struct Table {
    /// A bit for each rank of which there are any.
    ranks: Cell<u32>,
    /// How many of each.
    counts: [Cell<u32>; RANKS],
}

#[cfg(any(loom, shuttle, debug_assertions))]
impl Table {
    const fn new() -> Self {
        Self { ranks: Cell::new(0), counts: [const { Cell::new(0) }; RANKS] }
    }

    fn innermost(&self) -> Option<Rank> {
        Some(Rank::ALL[self.ranks.get().checked_ilog2()? as usize])
    }
    fn add(&self, rank: Rank) {
        let count = &self.counts[rank as usize];
        count.set(count.get() + 1);
        self.ranks.set(self.ranks.get() | 1 << rank as u32);
    }
    fn remove(&self, rank: Rank) {
        let count = &self.counts[rank as usize];
        count.set(count.get() - 1);
        if count.get() == 0 {
            self.ranks.set(self.ranks.get() & !(1 << rank as u32));
        }
    }
}

#[cfg(any(loom, shuttle, debug_assertions))]
thread_local! {
    static HELD: Table = Table::new();
}

/// The innermost lock that the thread holds.
#[cfg(any(loom, shuttle, debug_assertions))]
fn innermost() -> Option<Rank> {
    HELD.with(Table::innermost)
}

/// Asserts, in debug builds, that the calling thread holds no lock of these crates. The caller's own do not count.
///
/// # Panics
/// In debug builds, when a lock is held: user code must never run under one.
#[inline(always)]
#[track_caller]
pub fn assert_unlocked() {
    #[cfg(any(loom, shuttle, debug_assertions))]
    if let Some(held) = innermost()
        && held != Rank::Caller
        && !super::abandoned()
    {
        panic!("user code would run while a lock is held: {held:?}");
    }
}

/// Whether locks of the rank that is asked for may be held already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// They may not.
    None,
    /// They may: all that do so take them in one order.
    Same,
}

/// What a lock knows of its rank; nothing in release builds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(#[cfg(any(loom, shuttle, debug_assertions))] Rank);

impl Place {
    pub(super) const fn of(rank: Rank) -> Self {
        let _ = rank;
        Self(
            #[cfg(any(loom, shuttle, debug_assertions))]
            rank,
        )
    }
    /// To be called before the lock is waited for, so that a wrong order panics and does not hang.
    #[inline(always)]
    #[track_caller]
    pub(super) fn ask(self, nesting: Nesting) -> Held {
        let _ = nesting;
        #[cfg(any(loom, shuttle, debug_assertions))]
        {
            // A checker may let other threads go on while one that failed is unwound. They give nothing back to the table
            // then (see `Held`), and what they would say hides why it failed.
            if let Some(held) = innermost().filter(|_| !super::abandoned()) {
                let again = nesting == Nesting::Same || self.0 == Rank::Caller;
                let legal = self.0 > held || self.0 == held && again;
                assert!(legal, "lock order: {:?} is asked for while {held:?} is held", self.0);
            }
            HELD.with(|table| table.add(self.0));
        }
        Held(self)
    }
}

/// A lock is asked for or held as long as this lives.
#[derive(Debug)]
pub(super) struct Held(#[cfg_attr(not(any(loom, shuttle, debug_assertions)), allow(dead_code))] Place);

#[cfg(any(loom, shuttle, debug_assertions))]
impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        // A checker's thread that did not get to its end has no thread-locals any more.
        if !super::abandoned() {
            HELD.with(|table| table.remove(self.0.0));
        }
    }
}

/// A checker's guard, which is counted.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub struct Locked<G> {
    guard: G,
    _held: Held,
}

#[cfg(any(loom, shuttle))]
impl<G> Locked<G> {
    pub(super) fn by(guard: G, held: Held) -> Self {
        Self { guard, _held: held }
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::Deref> core::ops::Deref for Locked<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::DerefMut> core::ops::DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::fork::{ForkLock, ForkMutex};
    use crate::sync::{Mutex, MutexGuard};

    /// What asking for `inner` while `outer` is held panics with.
    fn refusal(outer: Rank, inner: Rank) -> Option<String> {
        let (outer, inner) = (Mutex::ranked(outer, ()), Mutex::ranked(inner, ()));
        let nested = std::panic::AssertUnwindSafe(|| {
            let _outer = outer.lock();
            drop(inner.lock());
        });
        std::panic::catch_unwind(nested).err().map(|panic| *panic.downcast::<String>().unwrap())
    }

    #[test]
    fn a_lock_that_is_asked_for_out_of_order_panics_with_both_names() {
        assert_eq!(refusal(Rank::Depot, Rank::Zone), None);
        let text = refusal(Rank::Zone, Rank::Depot).unwrap();
        assert_eq!(text, "lock order: Depot is asked for while Zone is held");
        let text = refusal(Rank::Node, Rank::Node).unwrap();
        assert_eq!(text, "lock order: Node is asked for while Node is held");
        assert_eq!(innermost(), None, "the panic gave all of them back");
    }

    #[test]
    fn a_wrong_order_is_refused_without_waiting() {
        let (zone, depot) = (Mutex::ranked(Rank::Zone, ()), Mutex::ranked(Rank::Depot, ()));
        let _zone = zone.lock();
        let asks: [fn(&Mutex<()>); 2] = [|lock| drop(lock.try_lock()), |lock| drop(lock.lock_nested())];
        for ask in asks {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(&depot))).is_err());
        }
        // It would wait for itself.
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(zone.lock()))).is_err());
    }

    #[test]
    fn locks_of_one_rank_nest_where_their_order_is_told_and_the_callers_nest_anyhow() {
        let nodes: [_; 3] = core::array::from_fn(|_| Mutex::ranked(Rank::Node, ()));
        let mut held: Vec<MutexGuard<'_, ()>> = nodes.iter().map(Mutex::lock_nested).collect();
        drop(held.remove(0));
        assert_eq!(innermost(), Some(Rank::Node));
        drop(held);
        assert_eq!(innermost(), None);
        assert_eq!(refusal(Rank::Caller, Rank::Caller), None);
        let callers = Mutex::new(());
        let _held = callers.lock();
        // A user's own lock is his affair.
        assert_unlocked();
    }

    #[test]
    fn a_lock_that_is_held_across_a_fork_counts_until_it_is_released() {
        let lock = ForkMutex::new(Rank::Zone, 7);
        // SAFETY: released below, on this thread; no other one is here.
        unsafe {
            lock.hold();
            assert_eq!((innermost(), lock.held()), (Some(Rank::Zone), Some(&7)));
            lock.release();
            assert_eq!((innermost(), lock.held()), (None, None));
            lock.release();
        }
        assert!(lock.try_lock().is_some());
    }

    /// The table of ARCHITECTURE.md is the one statement of the order: it has each rank, in its place.
    #[test]
    fn the_published_lock_order_is_the_asserted_one() {
        let text = include_str!("../../../ARCHITECTURE.md");
        let section = text.split("\n## ").find(|section| section.starts_with("Locks")).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let order: Vec<String> = Rank::ALL.iter().map(|rank| format!("{rank:?}")).collect();
        assert_eq!(rows.collect::<Vec<_>>(), order);
    }

    /// `Mutex::new` makes a lock of no place in the order: it is for users, tests and models.
    #[test]
    #[cfg_attr(miri, ignore = "reads all sources: minutes, of nothing that is unsafe")]
    fn no_lock_of_the_crates_is_without_a_rank() {
        let mut folders: Vec<_> =
            ["magazine", "buddy", "slab"].map(|krate| format!("../{krate}/src").into()).into();
        let (mut found, mut files): (Vec<String>, _) = (vec![], 0);
        while let Some(folder) = folders.pop() {
            let _: &std::path::PathBuf = &folder;
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.file_stem().unwrap().to_str().unwrap();
                let checks = ["models", "properties", "schedules", "world", "tests", "sync"];
                if checks.contains(&name) || name.ends_with("_tests") || name.ends_with("_stepper") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let shipped = text.split("\nmod tests {").next().unwrap();
                let unranked =
                    |line: &&str| line.contains("Mutex::new(") && !line.contains("ForkMutex::new(");
                found.extend(
                    shipped.lines().filter(unranked).map(|line| format!("{}: {line}", path.display())),
                );
            }
        }
        assert!(files > 50 && found.is_empty(), "{files} files: {found:#?}");
    }
}
