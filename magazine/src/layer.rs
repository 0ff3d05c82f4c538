//! The layer: allocation and free through the magazines of the current CPU.
//!
//! ```text
//!  alloc                                        free
//!   │ pop the loaded magazine ──────────────┐    │ push on the loaded magazine        this CPU only
//!   │ previous has rounds: swap, retry      │    │ previous has room: swap, retry     this CPU only
//!   │ full magazine from the stock ─────────┤    │ empty magazine from the stock      this CPU only
//!   │ full magazine from the depot          │    │ empty magazine from the depot      one shared visit a magazine
//!   │ fill the previous from the supplier ──┘    │ depot beyond its limit: flush one to the supplier
//!   └ None                                       └ no magazine to be had: this round to the supplier
//! ```
//!
//! Two magazines a CPU and not one (Bonwick & Adams 2001, section 3.1): at the edge between full and empty one
//! magazine would go to the depot for every allocation and every free; with two, at least a magazine's worth of
//! operations lies between two exchanges. It is always the *previous* magazine that leaves, so only its fill needs
//! checking at the commit.
//!
//! ## Invariants
//!
//! * A magazine is in exactly one place: a slot, a stock, the depot, or the hands of one thread.
//! * The depot's full list holds only full magazines and its empty list only empty ones.
//! * Nothing is assumed about the CPU between two operations on slots: every step reads its number anew, and a pair
//!   read before is confirmed by `replace`.
//! * The supplier is called with no lock, claim or operation held.
//!
//! ## Locks
//!
//! `drains`, a depot's `lists` and the store's `making`, in this order: see ARCHITECTURE.md. No two are ever needed
//! together; only a fork takes them all. None is held while the supplier runs.
//!
//! ## Fork
//!
//! See [`Fork`]. A thread's memory accesses up to the fork are all in the child or none from some point on, and each operation commits by one store:
//! so a slot and its magazines agree. What the other threads held in hand is lost to the child, as all that they owned:
//! their rounds, and for each thread at most the magazines of one exchange.

use crate::cpu::rseq::{self, Fast};
use crate::cpu::{Cpus, Mechanism, claimed};
use crate::depot::{Chain, Depot};
use crate::fork::Fork;
use crate::front::Front;
use crate::memory::{Heap, Memory};
use crate::paths::{Operation, PathCounts, Paths};
use crate::slot::{Fill, Num, Pair, Pop, Push, Replace, Which};
use crate::store::Store;
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::{ForkLock, ForkMutex};
use crate::sync::{Counter, Fixed, Rank, assert_unlocked, planted, tell};
use crate::tuning::Tuning;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

/// What magazines hold: anything that fits a pointer.
///
/// Rounds travel: whoever runs on a CPU is handed what another thread has left there. So they must be `Send`, and layers may
/// be shared by threads whatever their rounds are.
///
/// ```compile_fail,E0277
/// use core::{cell::Cell, ptr::NonNull};
/// #[derive(Clone, Copy)]
/// struct RoundsThatCannotBeSentAreRefused<'a>(&'a Cell<u64>);
/// impl uslab_magazine::Round for RoundsThatCannotBeSentAreRefused<'_> {
///     fn into_raw(self) -> NonNull<u8> {
///         NonNull::from(self.0).cast()
///     }
///     unsafe fn from_raw(raw: NonNull<u8>) -> Self {
///         Self(unsafe { raw.cast().as_ref() })
///     }
/// }
/// ```
pub trait Round: Copy + Send {
    /// The round as a pointer (a number may use `NonNull::without_provenance`).
    fn into_raw(self) -> NonNull<u8>;
    /// The round again.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Round::into_raw) of the same type.
    unsafe fn from_raw(raw: NonNull<u8>) -> Self;
}

/// Where rounds come from and go to when magazines cannot serve: the slab layer, or a zone.
///
/// It is called with no lock, claim or slot operation of the layer held. It says to [`Operation`] how dear it was: one that
/// did nothing but say that it has nothing may be silent.
pub trait Supplier<R: Round> {
    /// Hands up to `max` rounds of `node` to `put` and returns how many; 0 means that none can be had.
    fn fill(&self, op: &Operation, node: u32, max: usize, put: impl FnMut(R)) -> usize;
    /// Takes rounds back.
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = R>);
    /// The node that a round belongs to; asked only where there are several.
    fn node_of(&self, _round: R) -> u32 {
        0
    }
}

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rounds in a magazine at first, at least 1.
    pub capacity: u16,
    /// The most that it grows to where CPUs meet at the depot.
    pub largest: u16,
    /// Rounds that the first fill asks for, at least 1; each one after it asks for twice as many, up to a magazine.
    pub first_fill: u16,
    /// Magazines in each CPU's stock of full and in its stock of empty ones; 0 is no stock.
    ///
    /// Stock times capacity should cover the batch that a CPU cycles through; then whole batches never leave it.
    pub stock: u16,
    /// Full magazines that each node's depot keeps; what comes beyond goes to the supplier.
    pub depot_limit: u32,
    /// The most magazines that are ever made. With none left, rounds go to the supplier.
    pub magazines: u32,
}

impl Config {
    /// Magazines of `capacity` rounds that are filled whole and do not grow, enough of them for `cpus` CPUs whose stocks
    /// and depots are full.
    pub fn new(cpus: &Cpus, capacity: u16, stock: u16, depot_limit: u32) -> Self {
        // A CPU: loaded, previous, both stocks, and two in hand; a depot: its limit twice (full and empty).
        let per_cpu = 4 + 2 * u32::from(stock);
        let in_depots = cpus.nodes().saturating_mul(2).saturating_mul(depot_limit);
        let magazines = (cpus.count() * per_cpu).saturating_add(in_depots);
        let capacity = capacity.max(1);
        Self { capacity, largest: capacity, first_fill: capacity, stock, depot_limit, magazines }
    }

    /// The most rounds that the CPUs and depots of `cpus` hold: full magazines, all as large as they get.
    pub fn most_rounds(&self, cpus: &Cpus) -> u64 {
        let held = u64::from(cpus.count()) * (2 + u64::from(self.stock));
        (held + u64::from(cpus.nodes()) * u64::from(self.depot_limit)) * u64::from(self.largest)
    }
}

/// The memory given to [`Layer::new`] does not hold the slots, or could not be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl core::fmt::Display for TooSmall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory for the magazines is too small, unaligned or could not be committed")
    }
}
impl core::error::Error for TooSmall {}

/// Numbers of a layer. Exact at quiescence; while it is in use each is a snapshot of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rounds handed out and taken back, all paths.
    pub allocs: u64,
    /// See `allocs`.
    pub frees: u64,
    /// All of these, by the dearest thing that each did.
    pub paths: Paths,
    /// Rounds in the loaded and previous magazines of all CPUs.
    pub in_magazines: u64,
    /// Rounds in the full magazines of all CPUs' stocks, in private magazines, and in magazines that are on their way.
    pub in_stock: u64,
    /// Rounds in the depots' full magazines.
    pub in_depot: u64,
    /// Visits to a depot that moved at least one magazine.
    pub depot_exchanges: u64,
    /// Visits that found the depot's lock taken.
    pub depot_contention: u64,
    /// Magazines filled by the supplier, and flushed to it.
    pub fills: u64,
    /// See `fills`.
    pub flushes: u64,
    /// Frees of another node's rounds, which go round the magazines.
    pub other_node_frees: u64,
    /// Replacements that found the slot changed.
    pub changed: u64,
    /// Operations that went round the slot: it was claimed, or the CPU has none (a thread without a registration).
    pub busy: u64,
    /// Which mechanism serves the slots.
    pub mechanism: Mechanism,
    /// Restartable sequences of this *process* that were interrupted and ran again; 0 where none serve.
    pub aborts: u64,
    /// Magazines ever made (stock magazines included).
    pub magazines: u64,
    /// Rounds that a magazine is made for now.
    pub capacity: u64,
}

static STUMBLE: Fixed = Fixed::new(0);

/// For stress tests, in debug builds: lets a thread yield between its miss and the replacement that follows, each
/// `n`-th time in the process; 0 is never. What comes between the two is otherwise too rare to be tested.
#[doc(hidden)]
pub fn stumble_every(n: u32) {
    STUMBLE.set(n);
}
fn stumble() {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if let n @ 1.. = STUMBLE.get() {
        static MISSES: Counter = Counter::new(0);
        MISSES.add(1);
        if MISSES.get().is_multiple_of(u64::from(n)) {
            crate::sync::thread::yield_now();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Operations that were not of the CPU's own alone.
    pub(crate) paths: PathCounts,
    /// Rounds that no slot handed out or took back.
    pub(crate) around_allocs: Counter,
    around_frees: Counter,
    fills: Counter,
    flushes: Counter,
    other_node_frees: Counter,
    changed: Counter,
    busy: Counter,
    pub(crate) magazines: Counter,
}

/// Per-CPU magazines over a depot per node. See the [module](self).
///
/// Dropping a layer forgets the rounds in it: [`purge`](Layer::purge) first.
#[derive(Debug)]
pub struct Layer<R, M = Heap> {
    pub(crate) front: Front<R>,
    pub(crate) cpus: Cpus,
    pub(crate) config: Config,
    pub(crate) store: Store<M>,
    pub(crate) depots: Box<[Depot]>,
    drains: ForkMutex<()>,
    tuning: Tuning,
    pub(crate) counts: Counts,
    rounds: PhantomData<fn(R) -> R>,
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// Bytes of [`Memory`] that hold a layer of that config with all its magazines made.
    pub fn footprint(cpus: &Cpus, config: &Config) -> usize {
        let stocks = Self::stocks(cpus, config);
        let sizes = [(u32::from(config.largest), config.magazines), (u32::from(config.stock), stocks)];
        Store::<M>::footprint(cpus.slots(), sizes.into_iter())
    }
    /// Stock magazines that can be in use or in hand.
    fn stocks(cpus: &Cpus, config: &Config) -> u32 {
        if config.stock == 0 { 0 } else { cpus.count() * 3 }
    }

    /// A layer without any magazine yet: they are made as frees and fills need them.
    ///
    /// # Errors
    /// When `memory` cannot hold the slots. Fewer bytes than [`footprint`](Self::footprint) are legal otherwise: then
    /// fewer magazines are made.
    pub fn new(cpus: Cpus, config: Config, memory: M) -> Result<Self, TooSmall> {
        let capacity = config.capacity.max(1);
        let config = Config { capacity, largest: config.largest.max(capacity), ..config };
        let (room, stock) = (config.largest.into(), config.stock.into());
        let most = config.magazines.saturating_add(Self::stocks(&cpus, &config));
        let store = Store::new(cpus.count(), cpus.slots(), memory, most, room, stock).ok_or(TooSmall)?;
        Ok(Self {
            front: Front::of(Fast::new(&store, cpus.mechanism())),
            cpus,
            config,
            store,
            depots: (0..cpus.nodes()).map(|_| Depot::new()).collect(),
            drains: ForkMutex::new(Rank::Drains, ()),
            tuning: Tuning::new(&config),
            counts: Counts::default(),
            rounds: PhantomData,
        })
    }

    /// The CPUs that the layer was made for.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }
    /// Its inlined path by itself.
    pub fn front(&self) -> Front<R> {
        self.front
    }
    /// What serves its slots: one mechanism for all operations of a layer.
    pub fn mechanism(&self) -> Mechanism {
        self.cpus.mechanism()
    }
    /// The sizes that it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    // ---- the current CPU's slots: each call reads the CPU's number anew ----

    fn pop(&self, which: Which) -> Pop {
        match self.mechanism() {
            Mechanism::Rseq => rseq::pop(&self.store, self.front.fast, which),
            Mechanism::Claimed => claimed::pop(&self.store, self.cpus.current(), which),
        }
    }
    fn push(&self, which: Which, round: NonNull<u8>) -> Push {
        match self.mechanism() {
            Mechanism::Rseq => rseq::push(&self.store, self.front.fast, which, round),
            Mechanism::Claimed => claimed::push(&self.store, self.cpus.current(), which, round),
        }
    }
    fn replace(&self, node: u32, which: Which, old: Pair, new: Pair, leaving: Fill) -> Replace {
        stumble();
        let answer = match self.mechanism() {
            Mechanism::Rseq => rseq::replace(&self.store, self.front.fast, which, old, new, leaving),
            Mechanism::Claimed => {
                let cpu = self.cpus.current();
                // Equal pairs (two CPUs without magazines) do not tell that the thread has changed its node meanwhile;
                // the machine's own CPUs are one node, so the sequences need not ask.
                if self.cpus.node_of(cpu) == node || planted("a magazine of another node is installed") {
                    claimed::replace(&self.store, cpu, which, old, new, leaving)
                } else {
                    Replace::Changed
                }
            }
        };
        if answer == Replace::Changed {
            self.counts.changed.add(1);
        }
        answer
    }
    fn fence(&self, cpus: impl Iterator<Item = u32>) -> bool {
        match self.mechanism() {
            Mechanism::Rseq => rseq::fence(&self.store, cpus),
            Mechanism::Claimed => claimed::fence(&self.store, cpus),
        }
    }
    fn depot(&self, node: u32) -> &Depot {
        &self.depots[node as usize]
    }

    // ---- allocation ----

    /// A round, from the nearest place that has one; `None` if the supplier has none either.
    ///
    /// Cost: as [`Front::alloc`]; once per magazine an exchange; a shared lock only for the depot and in the supplier.
    #[inline]
    pub fn alloc(&self, supplier: &impl Supplier<R>) -> Option<R> {
        // SAFETY: this layer lives.
        unsafe { self.front.alloc() }.or_else(|| self.alloc_new(supplier))
    }
    /// The same, in the course of an operation that may have done something before, and goes on elsewhere if there is no
    /// round.
    #[inline]
    pub fn alloc_in(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        // SAFETY: this layer lives.
        unsafe { self.front.alloc() }.or_else(|| self.alloc_slow(op, supplier))
    }

    /// What slow paths keep of an operation is made here, so that it costs the fast ones no place on the stack.
    #[cold]
    #[inline(never)]
    fn alloc_new(&self, supplier: &impl Supplier<R>) -> Option<R> {
        self.alloc_slow(&Operation::new(), supplier)
    }

    /// The same, for both mechanisms.
    #[cold]
    fn alloc_slow(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        tell!(self.store => "alloc");
        let round = match self.pop(Which::Rounds) {
            // SAFETY: as in `alloc`.
            Pop::Round(raw) => Some(unsafe { R::from_raw(raw) }),
            Pop::Miss => self.alloc_missed(op, supplier),
            Pop::Busy => self.alloc_busy(op, supplier),
        };
        if round.is_some() {
            self.counts.paths.count(op);
        }
        round
    }

    #[cold]
    fn alloc_missed(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        loop {
            let cpu = self.cpus.current();
            let node = self.cpus.node_of(cpu);
            let pair = self.store.pair(cpu, Which::Rounds);
            if self.store.get(pair.previous).len() > 0 {
                self.swap(node, pair);
            } else if let Some(full) = self.take_full(op, node) {
                self.install(op, supplier, node, pair, full, Fill::Empty);
            } else {
                return self.alloc_filling(op, supplier, node, pair);
            }
            match self.pop(Which::Rounds) {
                // SAFETY: as in `alloc`.
                Pop::Round(raw) => return Some(unsafe { R::from_raw(raw) }),
                Pop::Miss => {}
                Pop::Busy => return self.alloc_busy(op, supplier),
            }
        }
    }

    /// Detaches the previous magazine (it is empty), fills it and installs it; the first round is the caller's.
    fn alloc_filling(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, pair: Pair) -> Option<R> {
        let detached = Pair { previous: Num::SENTINEL, ..pair };
        let (num, pair) = if pair.previous.is_sentinel() {
            (self.take_empty(op, node), pair)
        } else if self.replace(node, Which::Rounds, pair, detached, Fill::Empty) == Replace::Done {
            (Some(pair.previous), detached)
        } else {
            (None, pair)
        };
        let Some(num) = num else { return self.alloc_around(op, supplier) };
        let magazine = self.store.get(num);
        magazine.resize(self.tuning.rounds());
        let ask = self.tuning.fill().min(magazine.capacity() as usize);
        let _held = planted("the supplier fills under the lock of making").then(|| self.store.making.lock());
        assert_unlocked();
        let filled = supplier.fill(op, node, ask, |round| {
            let room = magazine.owner_push(round.into_raw());
            debug_assert!(room, "a supplier hands out at most what was asked for");
        });
        if filled == 0 {
            if planted("a refused fill forgets its magazine") {
                return None;
            }
            // Back to where it was, so that a failed allocation leaves the CPU as it found it.
            let old = Pair { previous: num, ..pair };
            if self.replace(node, Which::Rounds, pair, old, Fill::Any) == Replace::Changed {
                self.put_empty(op, node, num);
            }
            return None;
        }
        tell!("filled magazine {} with {filled}, one of them for itself", num.0);
        let mine = magazine.owner_pop();
        self.counts.fills.add(1);
        self.counts.around_allocs.add(1);
        let new = Pair { loaded: num, previous: pair.loaded };
        if magazine.len() == 0
            || self.replace(node, Which::Rounds, pair, new, Fill::Any) == Replace::Changed
                && !planted("a filled magazine is taken for installed")
        {
            self.put_away(op, supplier, node, num);
        }
        // SAFETY: as in `alloc`.
        mine.map(|raw| unsafe { R::from_raw(raw) })
    }

    fn alloc_busy(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        self.counts.busy.add(1);
        self.alloc_around(op, supplier)
    }

    /// Without the magazines of this CPU: from the supplier, else from the depot.
    #[cold]
    fn alloc_around(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        tell!("goes round the magazines");
        let node = self.cpus.node_of(self.cpus.current());
        assert_unlocked();
        let mut round = None;
        supplier.fill(op, node, 1, |r| round = Some(r));
        if round.is_none() {
            let num = self.take_from_depot(op, node, Fill::Full)?;
            let early = planted("a magazine goes back before its round is taken")
                && self.depot(node).put(op, &self.store, Fill::Full, u32::MAX, num);
            // SAFETY: as in `alloc`.
            round = self.store.get(num).owner_pop().map(|raw| unsafe { R::from_raw(raw) });
            if !early {
                self.put_away(op, supplier, node, num);
            }
        }
        self.counts.around_allocs.add(1);
        round
    }

    // ---- free ----

    /// Takes a round back. Never fails, never touches what the round names.
    ///
    /// Cost: as [`alloc`](Self::alloc).
    #[inline]
    pub fn free(&self, supplier: &impl Supplier<R>, round: R) {
        // SAFETY: this layer lives.
        if !unsafe { self.front.free(round) } {
            self.free_new(supplier, round);
        }
    }
    /// The same, in the course of an operation that may have done something before.
    #[inline]
    pub fn free_in(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        // SAFETY: this layer lives.
        if !unsafe { self.front.free(round) } {
            self.free_slow(op, supplier, round);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_new(&self, supplier: &impl Supplier<R>, round: R) {
        self.free_slow(&Operation::new(), supplier, round);
    }

    /// The same, for both mechanisms.
    #[cold]
    fn free_slow(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        tell!(self.store => "free of {}", crate::sync::story::name(round.into_raw()));
        while !self.push_round(op, supplier, round) {
            let cpu = self.cpus.current();
            let node = self.cpus.node_of(cpu);
            let pair = self.store.pair(cpu, Which::Rounds);
            let previous = self.store.get(pair.previous);
            if previous.len() < previous.capacity() {
                self.swap(node, pair);
            } else if let Some(empty) =
                self.take_empty(op, node).or_else(|| self.flush_one(op, supplier, node))
            {
                self.install(op, supplier, node, pair, empty, Fill::Full);
            } else {
                self.free_around(op, supplier, round);
                break;
            }
        }
        self.counts.paths.count(op);
    }

    /// Pushes the round, or takes it round the magazines; `false` if the loaded magazine is full.
    fn push_round(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) -> bool {
        let pushed = match self.mechanism() {
            Mechanism::Rseq => rseq::push(&self.store, self.front.fast, Which::Rounds, round.into_raw()),
            Mechanism::Claimed => {
                // One look at the CPU for both questions: the thread may be moved between two.
                let cpu = self.cpus.current();
                if self.cpus.nodes() > 1 && supplier.node_of(round) != self.cpus.node_of(cpu) {
                    self.counts.other_node_frees.add(1);
                    self.free_around(op, supplier, round);
                    return true;
                }
                claimed::push(&self.store, cpu, Which::Rounds, round.into_raw())
            }
        };
        if pushed == Push::Busy {
            self.counts.busy.add(1);
            self.free_around(op, supplier, round);
        }
        pushed != Push::Miss
    }

    #[cold]
    fn free_around(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        tell!("goes round the magazines");
        self.counts.around_frees.add(1);
        assert_unlocked();
        supplier.flush(op, core::iter::once(round));
    }

    // ---- exchanging magazines ----

    fn swap(&self, node: u32, pair: Pair) {
        let swapped = Pair { loaded: pair.previous, previous: pair.loaded };
        // Neither leaves, so neither fill matters; a changed slot is looked at again.
        self.replace(node, Which::Rounds, pair, swapped, Fill::Any);
    }

    /// Makes `num` the loaded magazine of the slot that holds `pair`; its previous one, which is `leaving`, goes to
    /// the stock. If the slot changed, `num` is put away.
    fn install(
        &self,
        op: &Operation,
        supplier: &impl Supplier<R>,
        node: u32,
        pair: Pair,
        num: Num,
        leaving: Fill,
    ) {
        let new = Pair { loaded: num, previous: pair.loaded };
        if self.replace(node, Which::Rounds, pair, new, leaving) == Replace::Changed {
            self.put_away(op, supplier, node, num);
        } else if !pair.previous.is_sentinel() && !planted("exchange forgets the magazine that left") {
            match leaving {
                Fill::Full => self.put_full(op, supplier, node, pair.previous),
                _ => self.put_empty(op, node, pair.previous),
            }
        }
    }

    /// Any magazine that the caller owns, to where it belongs.
    pub(crate) fn put_away(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, num: Num) {
        if self.store.get(num).is(Fill::Full) {
            self.put_full(op, supplier, node, num);
        } else {
            self.flush(op, supplier, node, num);
        }
    }

    pub(crate) fn take_full(&self, op: &Operation, node: u32) -> Option<Num> {
        self.take(op, node, Which::Full, Fill::Full)
    }

    /// An empty magazine: from the stock, the depot, or made.
    pub(crate) fn take_empty(&self, op: &Operation, node: u32) -> Option<Num> {
        let rounds = self.tuning.rounds();
        if let Some(num) = self.take(op, node, Which::Empty, Fill::Empty) {
            self.store.get(num).resize(rounds);
            return Some(num);
        }
        if self.counts.magazines.get() >= u64::from(self.config.magazines) {
            return None;
        }
        let num = self.store.create(op, rounds, false)?;
        self.counts.magazines.add(1);
        Some(num)
    }

    /// From this CPU's stock, else from the depot.
    fn take(&self, op: &Operation, node: u32, which: Which, fill: Fill) -> Option<Num> {
        if self.config.stock > 0
            && let Pop::Round(raw) = self.pop(which)
        {
            return Some(Num::from_raw(raw));
        }
        self.take_from_depot(op, node, fill)
    }

    fn take_from_depot(&self, op: &Operation, node: u32, fill: Fill) -> Option<Num> {
        self.visit(node, |depot| depot.take(op, &self.store, fill))
    }

    /// A visit to the depot. If it was contended, magazines may grow.
    fn visit<T>(&self, node: u32, f: impl FnOnce(&Depot) -> T) -> T {
        let depot = self.depot(node);
        let before = depot.contention.get();
        let answer = f(depot);
        let contended = depot.contention.get();
        if contended != before {
            self.tuning.contended(&self.config, depot.exchanges.get(), contended);
        }
        answer
    }

    /// Puts a magazine on this CPU's stock; `false` if it has no room.
    fn put_on_stock(&self, op: &Operation, node: u32, which: Which, num: Num) -> bool {
        let Some(raw) = num.into_raw() else { return false };
        if self.config.stock == 0 {
            return false;
        }
        match self.push(which, raw) {
            Push::Done => true,
            Push::Busy => false,
            // The stock is full, or this CPU has none yet.
            Push::Miss => self.start_stock(op, node, which) && self.push(which, raw) == Push::Done,
        }
    }

    /// Gives this CPU a stock if it has none.
    #[cold]
    fn start_stock(&self, op: &Operation, node: u32, which: Which) -> bool {
        if self.store.pair(self.cpus.current(), which) != Pair::SENTINELS {
            return false;
        }
        let kept = self.depot(node).take_stock(op, &self.store);
        let Some(num) = kept.or_else(|| self.store.create(op, u32::from(self.config.stock), true)) else {
            return false;
        };
        let new = Pair { loaded: num, previous: Num::SENTINEL };
        if self.replace(node, which, Pair::SENTINELS, new, Fill::Any) == Replace::Changed {
            self.depot(node).put_stock(op, &self.store, num);
            return false;
        }
        true
    }

    /// A full magazine to the stock, else to the depot, and beyond its limit to the supplier.
    pub(crate) fn put_full(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, num: Num) {
        if !self.put(op, node, Which::Full, Fill::Full, self.config.depot_limit, num) {
            self.flush(op, supplier, node, num);
        }
    }

    pub(crate) fn put_empty(&self, op: &Operation, node: u32, num: Num) {
        let _always = self.put(op, node, Which::Empty, Fill::Empty, u32::MAX, num);
    }

    /// `false` if there is no room.
    fn put(&self, op: &Operation, node: u32, which: Which, fill: Fill, limit: u32, num: Num) -> bool {
        debug_assert!(self.store.get(num).is(fill), "a {fill:?} list takes only such magazines");
        if self.put_on_stock(op, node, which, num) && !planted("a magazine in the stock and in the depot") {
            return true;
        }
        self.visit(node, |depot| depot.put(op, &self.store, fill, limit, num))
    }

    /// Empties a magazine into the supplier and keeps it as an empty one, in the depot: the stock of this CPU may be what
    /// is being drained.
    fn flush(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, num: Num) {
        self.flush_rounds(op, supplier, num);
        let _always = self.depot(node).put(op, &self.store, Fill::Empty, u32::MAX, num);
    }
    fn flush_all(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, mut chain: Chain) {
        let mut emptied = Chain::new();
        while let Some(num) = chain.pop(&self.store) {
            self.flush_rounds(op, supplier, num);
            emptied.push(&self.store, num);
        }
        self.depot(node).put_emptied(op, &self.store, emptied);
    }
    fn flush_rounds(&self, op: &Operation, supplier: &impl Supplier<R>, num: Num) {
        let magazine = self.store.get(num);
        if magazine.len() > 0 {
            assert_unlocked();
            tell!("flushes magazine {}", num.0);
            self.counts.flushes.add(1);
            // SAFETY: as in `alloc`.
            let rounds = core::iter::from_fn(|| magazine.owner_pop().map(|raw| unsafe { R::from_raw(raw) }));
            if planted("a flush that does not flush") {
                rounds.fuse().for_each(drop);
            } else {
                supplier.flush(op, rounds.fuse());
            }
        }
        debug_assert_eq!(magazine.len(), 0, "a supplier takes all rounds");
    }

    /// No empty magazine is to be had: a full one of the depot is emptied.
    pub(crate) fn flush_one(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32) -> Option<Num> {
        let num = self.take_from_depot(op, node, Fill::Full)?;
        self.flush_rounds(op, supplier, num);
        self.store.get(num).resize(self.tuning.rounds());
        Some(num)
    }

    // ---- from outside ----

    /// Takes away what `cpus` hold, stocks included, and gives the rounds to the supplier. The CPUs may go on
    /// meanwhile and hold new magazines when this returns.
    ///
    /// Drains of one layer wait for each other; fast paths wait for none.
    pub fn drain(&self, supplier: &impl Supplier<R>, cpus: Range<u32>) {
        self.drain_in(&Operation::new(), supplier, cpus);
    }
    fn drain_in(&self, op: &Operation, supplier: &impl Supplier<R>, cpus: Range<u32>) {
        if planted("drain does nothing") {
            return;
        }
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        for node in 0..self.cpus.nodes() {
            let of_node = |cpu: &u32| self.cpus.node_of(*cpu) == node;
            let (rounds, stocked) = self.collect(cpus.clone().filter(of_node));
            self.flush_all(op, supplier, node, rounds);
            self.unstock(op, supplier, node, stocked);
        }
    }

    /// Publishes sentinels in all slots concerned, waits until no operation that began before still runs, and only
    /// then collects: magazines of rounds, and stock magazines.
    ///
    /// Where the fence is refused, what was taken waits in `taken` for the next drain whose fence works.
    fn collect(&self, cpus: impl Iterator<Item = u32> + Clone) -> (Chain, Chain) {
        let (mut rounds, mut stocks) = (Chain::new(), Chain::new());
        let _one_at_a_time = (!planted("drains without their lock")).then(|| self.drains.lock());
        let stocks_too = !planted("drain forgets the stocks");
        for slot in cpus.clone().filter_map(|cpu| Some((cpu, self.store.slot(cpu)?))) {
            for which in Which::ALL.into_iter().filter(|which| stocks_too || *which == Which::Rounds) {
                // SAFETY: the drain lock is held.
                slot.1.taken[which as usize].with_mut(|p| unsafe {
                    if *p == 0 {
                        *p = self.store.take(slot.0, which).word();
                    }
                });
            }
        }
        let held = cpus.filter(|cpu| {
            self.store.slot(*cpu).is_some_and(|slot| {
                // SAFETY: the drain lock is held.
                Which::ALL.iter().any(|w| slot.taken[*w as usize].with_mut(|p| unsafe { *p }) != 0)
            })
        });
        if !planted("drain without its fence") && !self.fence(held.clone()) {
            return (rounds, stocks);
        }
        for slot in held.filter_map(|cpu| self.store.slot(cpu)) {
            for which in Which::ALL {
                // SAFETY: the drain lock is held.
                let pair = Pair::of(slot.taken[which as usize].with_mut(|p| unsafe { p.replace(0) }));
                let pair = if planted("drain forgets the previous") {
                    Pair { previous: Num(0), ..pair }
                } else {
                    pair
                };
                for num in [pair.loaded, pair.previous].into_iter().filter(|n| !n.is_sentinel()) {
                    let to = if which == Which::Rounds { &mut rounds } else { &mut stocks };
                    to.push(&self.store, num);
                }
            }
        }
        (rounds, stocks)
    }

    /// Takes stocks apart: full magazines are flushed, empty ones kept.
    fn unstock(&self, op: &Operation, supplier: &impl Supplier<R>, node: u32, mut stocks: Chain) {
        while let Some(stock) = stocks.pop(&self.store) {
            let mut chain = Chain::new();
            while let Some(raw) = self.store.get(stock).owner_pop() {
                chain.push(&self.store, Num::from_raw(raw));
            }
            if !planted("drain forgets what a stock holds") {
                self.flush_all(op, supplier, node, chain);
            }
            self.depot(node).put_stock(op, &self.store, stock);
        }
    }

    /// Gives everything that the layer holds to the supplier: all CPUs, stocks and depots.
    pub fn purge(&self, supplier: &impl Supplier<R>) {
        self.purge_in(&Operation::new(), supplier);
    }
    /// The same, in the course of an operation that found nothing elsewhere.
    pub fn purge_in(&self, op: &Operation, supplier: &impl Supplier<R>) {
        self.drain_in(op, supplier, 0..self.cpus.count());
        for node in 0..self.cpus.nodes() {
            self.flush_all(op, supplier, node, self.depot(node).take_all_full(op));
        }
    }

    /// Memory is short: magazines become smaller for a while. [`purge`](Self::purge) is what gives back.
    pub fn shrink(&self) {
        self.tuning.shrink(&self.config);
    }

    /// As if CPUs had met at a depot.
    #[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
    pub(crate) fn grow(&self) {
        self.tuning.grow(&self.config);
    }

    /// Ends a reaping interval: gives back the depots' surplus over the working set of this interval and the last,
    /// and what CPUs hold that served nothing since the last call. Returns the rounds given back.
    ///
    /// Call it at regular intervals (kernels use 10 to 20 s).
    pub fn reap(&self, supplier: &impl Supplier<R>) -> u64 {
        if planted("reap does nothing") {
            return 0;
        }
        let _held = planted("reap drains under the lock of drains").then(|| self.drains.lock());
        let flushed = Counter::new(0);
        let (counting, op) = (Counting { supplier, flushed: &flushed }, &Operation::new());
        for cpu in 0..self.cpus.count() {
            if self.idle(cpu) {
                self.drain(&counting, cpu..cpu + 1);
            }
        }
        for node in 0..self.cpus.nodes() {
            self.flush_all(op, &counting, node, self.depot(node).reap(op, &self.store));
        }
        self.tuning.interval(&self.config);
        flushed.get()
    }

    /// Whether `cpu` holds something and has served nothing since this was last asked.
    fn idle(&self, cpu: u32) -> bool {
        let Some(slot) = self.store.slot(cpu) else { return false };
        let pair = self.store.pair(cpu, Which::Rounds);
        // The pair and the loaded magazine's count move with every operation.
        let now = pair.word() ^ self.store.get(pair.loaded).operations().rotate_left(32);
        let _one_at_a_time = (!planted("drains without their lock")).then(|| self.drains.lock());
        // SAFETY: the drain lock is held.
        let before = slot.seen.with_mut(|p| unsafe { p.replace(now) });
        pair != Pair::SENTINELS && now == before
    }

    /// The numbers now. Walks all CPUs and magazines; takes no lock.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let counts = &self.counts;
        let dear = counts.paths.now();
        for cpu in 0..self.cpus.count() {
            let pair = self.store.pair(cpu, Which::Rounds);
            let held = self.store.get(pair.loaded).len() + self.store.get(pair.previous).len();
            stats.in_magazines += u64::from(held);
        }
        for depot in &self.depots {
            stats.in_depot += depot.rounds();
            stats.depot_exchanges += depot.exchanges.get();
            stats.depot_contention += depot.contention.get();
        }
        (stats.allocs, stats.frees) = (counts.around_allocs.get(), counts.around_frees.get());
        let mut rounds = 0;
        for magazine in self.store.iter() {
            stats.magazines += 1;
            if !magazine.is_stock() {
                rounds += u64::from(magazine.len());
                let (allocs, frees) = magazine.served();
                stats.allocs += allocs;
                stats.frees += frees;
            }
        }
        // What is in no slot and no depot.
        stats.in_stock = rounds.saturating_sub(stats.in_magazines + stats.in_depot);
        stats.paths = dear.of_operations(stats.allocs + stats.frees);
        stats.fills = counts.fills.get();
        stats.flushes = counts.flushes.get();
        stats.other_node_frees = counts.other_node_frees.get();
        stats.changed = counts.changed.get();
        stats.busy = counts.busy.get();
        stats.capacity = self.tuning.rounds().into();
        stats.mechanism = self.mechanism();
        stats.aborts = rseq::aborts();
        stats
    }
}

impl<R: Round, M: Memory> Fork for Layer<R, M> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Drains => visit(&self.drains),
            Rank::Depot => self.depots.iter().for_each(|depot| visit(&depot.lists)),
            Rank::Making => visit(&self.store.making),
            _ => {}
        }
    }
    unsafe fn forget_other_threads(&self) {
        for slot in (0..self.cpus.count()).filter_map(|cpu| self.store.slot(cpu)) {
            if !planted("claims outlive their threads") {
                // Relaxed: there is one thread.
                slot.claim.store(0, Relaxed);
            }
        }
    }
}

/// A supplier that counts what it is given.
struct Counting<'a, S> {
    supplier: &'a S,
    flushed: &'a Counter,
}

impl<R: Round, S: Supplier<R>> Supplier<R> for Counting<'_, S> {
    fn fill(&self, op: &Operation, node: u32, max: usize, put: impl FnMut(R)) -> usize {
        self.supplier.fill(op, node, max, put)
    }
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = R>) {
        self.supplier.flush(op, rounds.inspect(|_| self.flushed.add(1)));
    }
    fn node_of(&self, round: R) -> u32 {
        self.supplier.node_of(round)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Heap;
    use crate::ball::Ball;

    #[test]
    fn magazines_grow_where_visits_to_a_depot_meet_and_only_there() {
        let cpus = Cpus::simulated(1, 1).unwrap();
        let config = Config { largest: 8, ..Config::new(&cpus, 4, 0, 4) };
        let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
        let layer: Layer<Ball> = Layer::new(cpus, config, memory).unwrap();
        let visit = || _ = layer.visit(0, |depot| depot.take_all_full(&Operation::new()));
        (0..100).for_each(|_| visit());
        assert_eq!(layer.stats().capacity, 4);
        for met in 1..=8 {
            let held = layer.depot(0).lists.lock();
            std::thread::scope(|scope| {
                scope.spawn(visit);
                while layer.depot(0).contention.get() < met {
                    std::thread::yield_now();
                }
                drop(held);
            });
        }
        assert_eq!(layer.stats().capacity, 8);
    }

    /// Hands out balls without end.
    struct Endless;
    impl Supplier<Ball> for Endless {
        fn fill(&self, _: &Operation, _: u32, max: usize, put: impl FnMut(Ball)) -> usize {
            (1..=max).map(Ball).for_each(put);
            max
        }
        fn flush(&self, _: &Operation, rounds: impl Iterator<Item = Ball>) {
            rounds.for_each(drop);
        }
    }

    #[test]
    fn sizes_at_their_ends_are_refused_or_work_and_nothing_overflows() {
        let cpus = Cpus::simulated(2, 2).unwrap();
        let shorts = [0, 1, u16::MAX];
        let longs = [0, 1, u32::MAX];
        for (capacity, stock) in shorts.iter().flat_map(|a| shorts.map(|b| (*a, b))) {
            for (depot_limit, magazines) in longs.iter().flat_map(|a| longs.map(|b| (*a, b))) {
                let configs = [
                    Config::new(&cpus, capacity, stock, depot_limit),
                    Config { capacity, largest: 0, first_fill: u16::MAX, stock, depot_limit, magazines },
                    Config { capacity: 1, largest: capacity, first_fill: 0, stock, depot_limit, magazines },
                ];
                for config in configs {
                    assert!(
                        Layer::<Ball>::footprint(&cpus, &config) > 0 && config.most_rounds(&cpus) < u64::MAX
                    );
                    assert!(Layer::<Ball>::new(cpus, config, Heap::new(1).unwrap()).is_err());
                    let layer: Layer<Ball> = Layer::new(cpus, config, Heap::new(1 << 20).unwrap()).unwrap();
                    let balls: Vec<_> = (0..300).map(|_| layer.alloc(&Endless).unwrap()).collect();
                    balls.into_iter().for_each(|ball| layer.free(&Endless, ball));
                    layer.grow();
                    layer.shrink();
                    if let Some(mut private) = layer.private(&Endless, 3) {
                        assert!(!private.refill(&Endless, usize::MAX) && private.len() < 1 << 20);
                        private.close(&Endless);
                    }
                    layer.purge(&Endless);
                    let stats = layer.stats();
                    assert_eq!(
                        (stats.allocs, stats.in_magazines + stats.in_stock + stats.in_depot),
                        (stats.frees, 0)
                    );
                }
            }
        }
    }

    #[test]
    fn a_private_magazine_for_more_than_all_magazines_hold_is_refused_at_once() {
        let cpus = Cpus::simulated(1, 1).unwrap();
        let config = Config::new(&cpus, 4, 0, 4);
        let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
        let layer: Layer<Ball> = Layer::new(cpus, config, memory).unwrap();
        let most = 4 * config.magazines as usize;
        assert!(layer.private(&Endless, most + 1).is_none() && layer.private(&Endless, usize::MAX).is_none());
        assert_eq!(layer.stats().fills, 0);
        let mut all = layer.private(&Endless, most).unwrap();
        assert_eq!(all.len(), most);
        all.close(&Endless);
    }
}
