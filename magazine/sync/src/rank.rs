//! Lock ranks. Debug builds check that every thread acquires locks in the order of their ranks.
//!
//! A crate declares the ranks of its locks with [`ranks!`](crate::ranks), outermost first, and creates each lock with a
//! rank. In debug, loom and shuttle builds, a thread may wait for a lock only if the lock's rank comes after the ranks
//! of all locks that the thread holds. Acquiring a lock out of order panics with the names of the two ranks, even if no
//! deadlock is possible. The check uses one small table per thread and never allocates memory. The rank check therefore
//! works inside an allocator and in `fork` handlers. In release builds, ranks are not stored and not checked.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

#[cfg(any(loom, shuttle, debug_assertions))]
use crate::{abandoned, thread_local};
#[cfg(any(loom, shuttle, debug_assertions))]
use core::cell::Cell;
use core::fmt;

/// Declares the lock ranks of a crate, from the outermost lock to the innermost. A thread that holds a lock may wait
/// only for locks of later ranks.
///
/// The macro defines an `enum` of the ranks. Pass a rank to [`Mutex::ranked`](crate::Mutex::ranked). Ranks that
/// different `ranks!` declare are not compared with each other. A program that uses several such crates must ensure a
/// consistent order between their locks.
///
/// * `ALL` is a slice of all ranks, in order.
/// * `assert_unlocked()` panics, in debug, loom and shuttle builds, if the calling thread holds a lock of one of these
///   ranks. Call `assert_unlocked` before running user code.
///
/// ```
/// use uslab_sync::{Mutex, ranks};
///
/// ranks! {
///     /// The lock order of this program.
///     enum Rank {
///         /// The account holders.
///         Accounts,
///         /// The balance of one account.
///         Balance,
///     }
/// }
///
/// let accounts = Mutex::ranked(Rank::Accounts, vec!["Ann"]);
/// let balance = Mutex::ranked(Rank::Balance, 7);
/// let names = accounts.lock();
/// assert_eq!((names.len(), *balance.lock()), (1, 7)); // The other order panics in a debug build.
/// drop(names);
/// Rank::assert_unlocked();
/// ```
#[macro_export]
macro_rules! ranks {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident { $($(#[$doc:meta])* $rank:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $visibility enum $name {
            $($(#[$doc])* $rank,)+
        }
        const _: () = {
            static RANK_LIST: $crate::rank::List = $crate::rank::List::new(&[$(stringify!($rank)),+]);
            #[allow(dead_code)]
            impl $name {
                /// All ranks, from the outermost lock to the innermost.
                $visibility const ALL: &[Self] = &[$(Self::$rank),+];

                /// In debug, loom and shuttle builds, asserts that the calling thread holds no lock of these ranks.
                /// Locks without a rank, and locks of other rank declarations, are ignored.
                ///
                /// # Panics
                /// Panics in debug, loom and shuttle builds if the calling thread holds a lock of these ranks. User
                /// code must not run while a ranked lock is held.
                #[inline(always)]
                #[track_caller]
                $visibility fn assert_unlocked() {
                    RANK_LIST.assert_unlocked();
                }
            }
            impl From<$name> for $crate::Rank {
                #[inline(always)]
                fn from(rank: $name) -> Self {
                    RANK_LIST.rank(rank as u8)
                }
            }
        };
    };
}

/// The names of all ranks in one lock order. The macro [`ranks!`](crate::ranks) creates the list.
#[derive(Debug)]
pub struct List(&'static [&'static str]);

impl List {
    pub const fn new(names: &'static [&'static str]) -> Self {
        Self(names)
    }
    #[inline(always)]
    pub const fn rank(&'static self, place: u8) -> Rank {
        Rank { list: self, place }
    }
    #[inline(always)]
    #[track_caller]
    pub fn assert_unlocked(&'static self) {
        #[cfg(any(loom, shuttle, debug_assertions))]
        if let Some(held) = HELD_RANKS.with(|table| table.innermost(Some(self), Nesting::None))
            && !abandoned()
        {
            panic!("user code would run while a lock is held: {held}");
        }
    }
}

/// The rank of a lock: its position in a lock order that [`ranks!`](crate::ranks) declared.
#[derive(Clone, Copy)]
pub struct Rank {
    list: &'static List,
    place: u8,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.list.0.get(usize::from(self.place)).copied().unwrap_or("?"))
    }
}
impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.list, other.list) && self.place == other.place
    }
}
impl Eq for Rank {}

/// Maximum number of different ranks of the locks that one thread holds.
#[cfg(any(loom, shuttle, debug_assertions))]
const MAX_RANKS: usize = 32;

#[cfg(any(loom, shuttle, debug_assertions))]
#[derive(Clone, Copy)]
struct Entry {
    list: &'static List,
    place: u8,
    count: u32,
    /// True if the locks are held for a `fork`. Locks that are held for a `fork` are not compared with locks of other
    /// allocators that are held for the same `fork`.
    forks: bool,
}

#[cfg(any(loom, shuttle, debug_assertions))]
struct HeldRankTable {
    len: Cell<usize>,
    entries: [Cell<Option<Entry>>; MAX_RANKS],
}

#[cfg(any(loom, shuttle, debug_assertions))]
impl HeldRankTable {
    const fn new() -> Self {
        Self { len: Cell::new(0), entries: [const { Cell::new(None) }; MAX_RANKS] }
    }
    fn entries(&self) -> impl Iterator<Item = (&Cell<Option<Entry>>, Entry)> {
        self.entries[..self.len.get()].iter().filter_map(|cell| Some((cell, cell.get()?)))
    }
    /// Returns the innermost rank of the locks that this thread holds. If `list` is set, only ranks of this list count.
    fn innermost(&self, list: Option<&'static List>, nesting: Nesting) -> Option<Rank> {
        let of_it = |entry: &Entry| list.is_none_or(|list| core::ptr::eq(entry.list, list));
        let counts = |entry: &Entry| of_it(entry) && !(entry.forks && nesting == Nesting::Same);
        let entries = self.entries().map(|(_, entry)| entry).filter(counts);
        entries.max_by_key(|entry| entry.place).map(|entry| entry.list.rank(entry.place))
    }
    fn find(&self, rank: Rank) -> Option<(&Cell<Option<Entry>>, Entry)> {
        self.entries().find(|(_, entry)| entry.list.rank(entry.place) == rank)
    }
    fn add(&self, rank: Rank) {
        if let Some((cell, entry)) = self.find(rank) {
            return cell.set(Some(Entry { count: entry.count + 1, ..entry }));
        }
        let len = self.len.get();
        assert!(
            len < MAX_RANKS,
            "lock order: {rank} is requested while locks of {MAX_RANKS} other ranks are held"
        );
        self.entries[len].set(Some(Entry { list: rank.list, place: rank.place, count: 1, forks: false }));
        self.len.set(len + 1);
    }
    fn remove(&self, rank: Rank) {
        let Some((cell, entry)) = self.find(rank) else { return };
        if entry.count > 1 {
            return cell.set(Some(Entry { count: entry.count - 1, ..entry }));
        }
        self.len.set(self.len.get() - 1);
        // Moves the last table entry into the gap.
        cell.set(self.entries[self.len.get()].take());
    }
}

#[cfg(any(loom, shuttle, debug_assertions))]
thread_local! {
    static HELD_RANKS: HeldRankTable = HeldRankTable::new();
}

/// Records that this thread holds all its current locks for a `fork`.
pub fn mark_locks_held_for_fork() {
    #[cfg(any(loom, shuttle, debug_assertions))]
    HELD_RANKS.with(|table| {
        table.entries().for_each(|(cell, entry)| cell.set(Some(Entry { forks: true, ..entry })));
    });
}

/// Determines if a thread may acquire a lock while it holds other locks of the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// The acquiring thread must not hold another lock of the same rank.
    None,
    /// The acquiring thread may hold locks of the same rank. All threads must acquire these locks in the same order.
    Same,
}

/// A lock's rank. In release builds, the type is empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRank(#[cfg(any(loom, shuttle, debug_assertions))] Option<Rank>);

impl LockRank {
    /// The value for a lock without a rank.
    pub(crate) const NONE: Self = Self(
        #[cfg(any(loom, shuttle, debug_assertions))]
        None,
    );

    pub(crate) const fn of(rank: Rank) -> Self {
        let _ = rank;
        Self(
            #[cfg(any(loom, shuttle, debug_assertions))]
            Some(rank),
        )
    }
    #[cfg(loom)]
    pub(crate) fn rank(self) -> Option<Rank> {
        self.0
    }
    /// Checks the lock order before the thread waits for the lock, so that a wrong order causes a panic and not a
    /// deadlock.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn request(self, nesting: Nesting) -> RankEntry {
        let _ = nesting;
        #[cfg(any(loom, shuttle, debug_assertions))]
        self.check(nesting);
        RankEntry(self)
    }
    #[cfg(any(loom, shuttle, debug_assertions))]
    #[track_caller]
    fn check(self, nesting: Nesting) {
        // A checker may run other threads while it unwinds a failed thread. Threads that run during the
        // unwinding keep their table entries (see `RankEntry`), and their panics would hide the first panic.
        let innermost =
            |list| HELD_RANKS.with(|table| table.innermost(list, nesting)).filter(|_| !abandoned());
        let Some(rank) = self.0 else {
            if let Some(held) = innermost(None) {
                panic!("lock order: a lock without a rank is requested while {held} is held");
            }
            return;
        };
        if let Some(held) = innermost(Some(rank.list)) {
            let is_allowed = rank.place > held.place || rank == held && nesting == Nesting::Same;
            assert!(is_allowed, "lock order: {rank} is requested while {held} is held");
        }
        HELD_RANKS.with(|table| table.add(rank));
    }
}

/// The entry of a lock in the thread's rank table. The entry exists while the thread waits for the lock or holds it.
#[derive(Debug)]
pub(crate) struct RankEntry(
    #[cfg_attr(not(any(loom, shuttle, debug_assertions)), allow(dead_code))] LockRank,
);

#[cfg(any(loom, shuttle, debug_assertions))]
impl Drop for RankEntry {
    #[inline(always)]
    fn drop(&mut self) {
        // When a checker abandons a thread, the thread's thread-locals no longer exist.
        if let Some(rank) = self.0.0
            && !abandoned()
        {
            HELD_RANKS.with(|table| table.remove(rank));
        }
    }
}

/// A mutex guard of loom or shuttle, together with the lock's entry in the rank table.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub struct RankedGuard<G> {
    // The trace entry is dropped first, so that the trace records the release before another thread's
    // acquisition.
    #[cfg(loom)]
    _told: crate::story::RecordedLock,
    guard: G,
    _held: RankEntry,
}

#[cfg(any(loom, shuttle))]
impl<G> RankedGuard<G> {
    pub(crate) fn with_guard(
        guard: G,
        held: RankEntry,
        #[cfg(loom)] told: crate::story::RecordedLock,
    ) -> Self {
        Self {
            #[cfg(loom)]
            _told: told,
            guard,
            _held: held,
        }
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::Deref> core::ops::Deref for RankedGuard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}
#[cfg(any(loom, shuttle))]
impl<G: core::ops::DerefMut> core::ops::DerefMut for RankedGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::{HELD_RANKS, Nesting};
    use crate::fork::{ForkLock, ForkMutex};
    use crate::{Mutex, MutexGuard};

    ranks! {
        enum Rank {
            Depot,
            Node,
            Zone,
        }
    }
    ranks! {
        enum OtherLocks {
            First,
        }
    }

    /// Locks `inner` while `outer` is held, and returns the panic message if the lock call panics.
    fn refusal(outer: &Mutex<()>, inner: &Mutex<()>) -> Option<String> {
        let nested = std::panic::AssertUnwindSafe(|| {
            let _outer = outer.lock();
            drop(inner.lock());
        });
        std::panic::catch_unwind(nested).err().map(|panic| *panic.downcast::<String>().unwrap())
    }
    fn ranked(rank: Rank) -> Mutex<()> {
        Mutex::ranked(rank, ())
    }
    fn innermost() -> Option<String> {
        HELD_RANKS.with(|table| table.innermost(None, Nesting::None)).map(|rank| rank.to_string())
    }

    #[test]
    fn out_of_order_locking_panics_with_both_lock_names() {
        assert_eq!(refusal(&ranked(Rank::Depot), &ranked(Rank::Zone)), None);
        let text = refusal(&ranked(Rank::Zone), &ranked(Rank::Depot)).unwrap();
        assert_eq!(text, "lock order: Depot is requested while Zone is held");
        let text = refusal(&ranked(Rank::Node), &ranked(Rank::Node)).unwrap();
        assert_eq!(text, "lock order: Node is requested while Node is held");
        let text = refusal(&ranked(Rank::Node), &Mutex::new(())).unwrap();
        assert_eq!(text, "lock order: a lock without a rank is requested while Node is held");
        assert_eq!(innermost(), None, "the panic released all locks");
    }

    #[test]
    fn wrong_lock_order_panics_without_waiting() {
        let (zone, depot) = (ranked(Rank::Zone), ranked(Rank::Depot));
        let _zone = zone.lock();
        let asks: [fn(&Mutex<()>); 2] = [|lock| drop(lock.try_lock()), |lock| drop(lock.lock_nested())];
        for ask in asks {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(&depot))).is_err());
        }
        // The thread would deadlock on a lock that it holds.
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(zone.lock()))).is_err());
    }

    #[test]
    fn locks_of_equal_rank_nest_only_with_lock_nested() {
        let nodes: [_; 3] = core::array::from_fn(|_| ranked(Rank::Node));
        let mut held: Vec<MutexGuard<'_, ()>> = nodes.iter().map(Mutex::lock_nested).collect();
        drop(held.remove(0));
        assert_eq!(innermost().as_deref(), Some("Node"));
        drop(held);
        assert_eq!(innermost(), None);
        assert_eq!(refusal(&Mutex::new(()), &Mutex::new(())), None);
    }

    #[test]
    fn ranks_of_unrelated_crates_are_not_compared() {
        let (zone, other) = (ranked(Rank::Zone), Mutex::ranked(OtherLocks::First, ()));
        assert_eq!(refusal(&zone, &other), None);
        assert_eq!(refusal(&other, &zone), None);
        let _other = other.lock();
        // A lock without a rank does not count.
        Rank::assert_unlocked();
        let user_code = std::panic::catch_unwind(OtherLocks::assert_unlocked);
        let message = *user_code.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, "user code would run while a lock is held: First");
    }

    #[test]
    fn forked_lock_keeps_its_rank_until_release() {
        let lock = ForkMutex::new(Rank::Zone, 7);
        // SAFETY: this thread releases the lock below; there is no other thread.
        unsafe {
            lock.hold();
            assert_eq!((innermost().as_deref(), lock.held()), (Some("Zone"), Some(&7)));
            lock.release();
            assert_eq!((innermost(), lock.held()), (None, None));
            lock.release();
        }
        assert!(lock.try_lock().is_some());
    }

    /// Regression: if two allocators held locks for the same `fork`, the check compared the locks of one allocator with
    /// the locks of the other, and the program aborted.
    #[test]
    fn locks_acquired_for_a_fork_skip_the_rank_check() {
        let zone = ForkMutex::new(Rank::Zone, ());
        let (depot, node) = (ForkMutex::new(Rank::Depot, ()), ranked(Rank::Node));
        // SAFETY: this thread releases the locks below; there is no other thread.
        unsafe {
            zone.hold();
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| depot.hold())).is_err());
            super::mark_locks_held_for_fork();
            depot.hold();
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(node.lock()))).is_err());
            [&depot, &zone].into_iter().for_each(|lock| lock.release());
        }
        assert_eq!(innermost(), None);
        drop(node.lock());
    }

    #[test]
    fn locks_may_be_released_in_any_order() {
        let [depot, node, zone] = [Rank::Depot, Rank::Node, Rank::Zone].map(ranked);
        let (first, second, third) = (depot.lock(), node.lock(), zone.lock());
        drop(first);
        assert_eq!(innermost().as_deref(), Some("Zone"));
        drop(third);
        assert_eq!(innermost().as_deref(), Some("Node"));
        drop(second);
        assert_eq!((innermost(), Rank::ALL.len()), (None, 3));
    }
}
