//! The magazine layer: allocates and frees objects through the current CPU's stack.
//!
//! ```text
//!  alloc                                          free
//!   │ pop this CPU's stack ─────────────────┐      │ push on this CPU's stack             this CPU only
//!   │ a magazine from the depot ────────────┤      │ the stack gets more places           this CPU only
//!   │ a magazine filled by the supplier ────┘      │ a magazine to the depot              one shared visit a magazine
//!   └ None                                         │ depot beyond its limit: the magazine to the supplier
//!                                                  └ the CPU has no stack: this round to the supplier
//! ```
//!
//! Objects move between the stacks, the depot and the supplier in whole magazines. A stack has room for at least two
//! magazines (Bonwick & Adams 2001, section 3.1). If a stack had room for only one magazine, a CPU could need the depot
//! at every allocation and every free. With room for two magazines, a CPU executes at least a magazine's worth of
//! operations between two depot accesses.
//!
//! ## Invariants
//!
//! * Each object is in exactly one place: with its user, on a stack, in the depot, or in a local variable of a thread
//!   that moves it.
//! * The depot holds only full magazines.
//! * A thread may migrate to another CPU between any two steps, so the layer never retries an operation on a stack. An
//!   allocation that fetches a magazine keeps one object before it pushes the other objects on a stack. If the push
//!   fails, the objects move to the depot or to the supplier.
//! * The layer holds no lock and no claim while it calls the supplier.
//!
//! ## Nodes
//!
//! A layer has a class (a set of stacks, one per CPU) for each memory node. A CPU allocates objects from its node's
//! class. A freed object is pushed on the CPU's stack for the object's node, and returns to this node in a magazine.
//!
//! ## Locks
//!
//! Locks are taken in this order: the table's `drains`, a depot's lock, and the table's `making`. See ARCHITECTURE.md.
//! A depot that grows takes the lock `making` while it holds the depot's lock. A fork takes the locks `drains`, every
//! depot's lock, and `making`. No lock is held while the supplier runs.
//!
//! ## Fork
//!
//! See [`Fork`]. The child of a fork sees the memory accesses of each other thread up to some point in time, and no
//! later access. Each operation commits with one store, so the head and the contents of each stack agree in the child.
//! The child loses the objects that were in local variables of other threads: at most one magazine per thread.

use crate::cpu::regions::Words;
use crate::cpu::rseq::StaticWords;
use crate::cpu::{Cpus, Mechanism, claimed, rseq};
use crate::depot::Depot;
use crate::fast_path::FastPath;
use crate::fork::Fork;
use crate::magazine::{MAX_CAPACITY, Magazine};
use crate::memory::{Heap, Memory};
use crate::paths::{PathCounts, Paths};
use crate::region::Class;
pub use crate::round::Round;
use crate::sync::fork::ForkLock;
use crate::sync::{Counter, FirstPanic, Fixed, Rank, assert_unlocked, tell};
use crate::table::{DrainScope, DrainedRounds, SweepGroup, Table};
use crate::tracepoints::{Operation, OperationKind, Step};
use crate::tuning::LayerTuning;
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

/// The level below the magazines, for example slabs or a zone. A supplier fills empty magazines and takes the objects
/// of flushed magazines.
///
/// The layer holds no lock and no claim while it calls the supplier. The supplier reports the level that served the
/// request to the [`Operation`]. A supplier without objects need not report a level. If the supplier panics, the panic
/// propagates to the caller of the layer. Only the objects that the supplier had already received are lost.
pub trait Supplier<R: Round> {
    /// Passes up to `max` objects of `node` to `put`, and returns the number of passed objects. The result is 0 if no
    /// object is available.
    fn fill(&self, op: &Operation, node: u32, max: usize, put: impl FnMut(R)) -> usize;
    /// Takes flushed objects back from the layer.
    fn flush(&self, op: &Operation, rounds: impl Iterator<Item = R>);
    /// Returns the memory node to which the object `round` belongs. The layer calls `node_of` only on machines with
    /// several nodes.
    fn node_of(&self, _round: R) -> u32 {
        0
    }
}

/// The sizes of a layer's magazines, stacks and depots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of objects in a magazine, 1 to [`MAX_CAPACITY`].
    pub capacity: u16,
    /// Number of objects that the first fill requests, at least 1. Each later fill requests twice as many objects as
    /// the fill before, up to a full magazine.
    pub first_fill: u16,
    /// Number of magazines that a CPU's stack can hold in addition to the required two.
    ///
    /// If a CPU repeatedly allocates and frees a batch of objects, the stack should be large enough for the whole
    /// batch.
    pub stock: u16,
    /// Number of magazines that each node's depot keeps, up to [`MAX_DEPOT`]. If the depot is full, further magazines
    /// are flushed to the supplier.
    pub depot_limit: u32,
    /// Number of bytes of memory that an object represents. A budget limits the total memory in all depots of a table.
    /// If the number is 0, the objects do not count towards the budget.
    pub round_bytes: u64,
}

/// Maximum number of magazines in a depot.
pub const MAX_DEPOT: u32 = 1 << 12;
/// Maximum number of objects on a stack.
const MAX_STACK_ROUNDS: u32 = 1 << 14;

impl Config {
    /// Creates a configuration with magazines of `capacity` objects, in which every fill requests a full magazine.
    pub fn new(capacity: u16, stock: u16, depot_limit: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_CAPACITY);
        Self { capacity, first_fill: capacity, stock, depot_limit, round_bytes: 0 }
    }

    /// Maximum number of objects on a CPU's stack.
    pub fn reach(&self) -> u16 {
        (u32::from(self.capacity) * (2 + u32::from(self.stock))).min(MAX_STACK_ROUNDS) as u16
    }

    /// Maximum number of objects that all stacks and depots together hold on a machine with `cpus`.
    pub fn most_rounds(&self, cpus: &Cpus) -> u64 {
        // A CPU has a separate stack for the objects of each node.
        let stacks = u64::from(cpus.count()) * u64::from(cpus.nodes());
        stacks * u64::from(self.reach())
            + u64::from(cpus.nodes()) * u64::from(self.depot_limit) * u64::from(self.capacity)
    }
}

/// Statistics of a magazine layer. The counters are exact while no operation runs. While operations run, the counters
/// are read at slightly different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of allocated objects, over all paths.
    pub allocs: u64,
    /// Number of freed objects, over all paths.
    pub frees: u64,
    /// Numbers of allocations and frees, by the level that served them.
    pub paths: Paths,
    /// Number of objects on the stacks of all CPUs.
    pub in_magazines: u64,
    /// Number of objects in the depots.
    pub in_depot: u64,
    /// Number of depot accesses that moved a magazine.
    pub depot_exchanges: u64,
    /// Number of depot accesses that had to wait for the depot's lock.
    pub depot_contention: u64,
    /// Number of magazines that the supplier filled.
    pub fills: u64,
    /// Number of magazines that were flushed to the supplier.
    pub flushes: u64,
    /// Number of frees of an object whose node differs from the freeing CPU's node.
    pub other_node_frees: u64,
    /// Number of operations that could not use a stack. An operation cannot use a stack if its CPU's region is claimed
    /// or being drained, or if its thread is not registered for rseq.
    pub busy: u64,
    /// The mechanism that protects the layer's stacks.
    pub mechanism: Mechanism,
    /// Number of times that a restartable sequence restarted in this *process*; 0 with other mechanisms.
    pub aborts: u64,
    /// Number of magazines on stacks and in depots, including partly filled magazines.
    pub magazines: u64,
    /// Number of objects in a full magazine.
    pub capacity: u64,
}

static INJECTED_YIELDS: Fixed = Fixed::new(0);

/// For stress tests in debug builds: every `n`-th miss in the process yields before its slow path. With `n` = 0, no
/// miss yields. Without yields, another thread too rarely runs between a miss and its slow path.
#[doc(hidden)]
pub fn set_yield_interval(n: u32) {
    INJECTED_YIELDS.set(n);
}
fn inject_yield() {
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::in_step::wait_at_gate();
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if let n @ 1.. = INJECTED_YIELDS.get() {
        static MISSES: Counter = Counter::new(0);
        MISSES.add(1);
        if MISSES.get().is_multiple_of(u64::from(n)) {
            crate::sync::thread::yield_now();
        }
    }
}

/// The counters that several CPUs write, together on one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) paths: PathCounts,
    /// Number of objects that were allocated without a pop from a stack.
    pub(crate) around_allocs: Counter,
    around_frees: Counter,
    fills: Counter,
    flushes: Counter,
    other_node_frees: Counter,
    pub(crate) busy: Counter,
}

/// One node's class of stacks, and the node's depot. A depot access writes only the first cache line of this struct,
/// and the magazine that it moves.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct NodeClass<R, M> {
    /// Net number of objects that batches and drains have added to the stacks. The number `net` splits the operation
    /// counts in the heads into allocations and frees: allocations = (ops - (objects on stacks - net)) / 2.
    pub(crate) net: Counter,
    pub(crate) depot: Depot,
    pub(crate) fast_path: FastPath<R, M>,
}

impl<R: Round, M: Memory> NodeClass<R, M> {
    pub(crate) fn class(&self) -> Class {
        self.fast_path.class()
    }
}

/// A magazine layer: the stacks of each CPU, and a depot for each node. See the [module](self).
///
/// A layer that is dropped leaks the objects on its stacks and in its depots. Call [`flush_all`](Layer::flush_all)
/// before the layer is dropped.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Layer<R, M: Memory = Heap>
where
    R: Round,
{
    // Slow paths write this cache line, and only read the following lines.
    pub(crate) counts: Counts,
    pub(crate) nodes: Box<[NodeClass<R, M>]>,
    pub(crate) table: Arc<Table<M>>,
    pub(crate) config: Config,
    tuning: LayerTuning,
    name: Box<str>,
}

impl<R: Round, M: Memory> Layer<R, M> {
    /// Creates a layer without objects. Returns `None` if the table has no free class number or no space for another
    /// class.
    pub fn new(table: &Arc<Table<M>>, config: Config) -> Option<Self> {
        Self::with_nodes(table, table.cpus().nodes(), config)
    }
    fn with_nodes(table: &Arc<Table<M>>, nodes: u32, config: Config) -> Option<Self> {
        let capacity = config.capacity.clamp(1, MAX_CAPACITY);
        let config = Config {
            capacity,
            first_fill: config.first_fill.clamp(1, capacity),
            depot_limit: config.depot_limit.min(MAX_DEPOT),
            ..config
        };
        let mut layer = Self {
            nodes: Box::default(),
            table: table.clone(),
            config,
            tuning: LayerTuning::new(&config),
            counts: Counts::default(),
            name: Box::default(),
        };
        let (count, mut nodes) = (nodes, Vec::with_capacity(nodes as usize));
        for _ in 0..count {
            let Some(class) = table.class(config.reach()) else {
                // Dropping the layer retires the class numbers that it already got.
                layer.nodes = nodes.into();
                return None;
            };
            table.set_magazine_capacity(class, capacity);
            let depot = Depot::new(config.depot_limit, config.round_bytes.saturating_mul(capacity.into()));
            nodes.push(NodeClass {
                net: Counter::new(0),
                depot,
                fast_path: FastPath::new(table, class, Words::Always),
            });
        }
        layer.nodes = nodes.into();
        Some(layer)
    }

    /// Sets the name under which tracepoints report the layer.
    pub fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    /// Returns the CPUs for which the layer was created.
    pub fn cpus(&self) -> &Cpus {
        self.table.cpus()
    }
    /// The mechanism that protects the layer's stacks.
    pub fn mechanism(&self) -> Mechanism {
        self.cpus().mechanism()
    }

    // ---- batches on the current CPU's stack: the thread may be on another CPU at each call ----

    fn push_batch(&self, node: &NodeClass<R, M>, rounds: &[NonNull<u8>]) -> bool {
        let class = node.class();
        match self.mechanism() {
            Mechanism::Rseq => rseq::push_batch(&*self.table, node.fast_path.pcpu(), class, rounds),
            Mechanism::Claimed => claimed::push_batch(&*self.table, class, rounds),
        }
    }
    /// Pushes all objects on the current CPU's stack, or pushes none of them. If the CPU has not used the class yet,
    /// `push_all` first opens the class's stack there.
    fn push_all(&self, op: &Operation, node: &NodeClass<R, M>, rounds: &[NonNull<u8>]) -> bool {
        inject_yield();
        let pushed = self.push_batch(node, rounds) || {
            inject_yield();
            let (cpu, reach) = (self.cpus().current(), self.config.reach());
            self.table.open(op, cpu, node.class(), reach.into()) && {
                inject_yield();
                self.push_batch(node, rounds)
            }
        };
        if pushed {
            node.net.add(rounds.len() as u64);
        }
        pushed
    }
    fn pop_batch(&self, node: &NodeClass<R, M>, n: u16, into: &mut Magazine) -> bool {
        inject_yield();
        let (class, n) = (node.class(), u32::from(n));
        let popped = match self.mechanism() {
            Mechanism::Rseq => rseq::pop_batch(&*self.table, node.fast_path.pcpu(), class, n, into),
            Mechanism::Claimed => claimed::pop_batch(&*self.table, class, n, into),
        };
        if popped {
            node.net.sub(n.into());
        }
        popped
    }

    #[inline(always)]
    fn this_node(&self) -> u32 {
        if self.nodes.len() == 1 { 0 } else { self.cpus().node_of(self.cpus().current()) }
    }
    /// Returns the class and depot of the node to which an object belongs. Returns `None` if this node has no CPUs.
    #[inline(always)]
    fn home_node_class(&self, supplier: &impl Supplier<R>, round: R) -> Option<&NodeClass<R, M>> {
        if self.nodes.len() == 1 {
            return self.nodes.first();
        }
        let node = supplier.node_of(round);
        if node != self.this_node() {
            self.counts.other_node_frees.add(1);
        }
        self.nodes.get(node as usize)
    }

    // ---- allocation ----

    /// Allocates an object. The layer tries the current CPU's stack, then the depot, and then the supplier. Returns
    /// `None` if the stack, the depot and the supplier are all empty.
    ///
    /// An allocation costs as much as [`FastPath::alloc`], plus one depot access per magazine. Only the depot and the
    /// supplier take locks.
    #[inline]
    pub fn alloc(&self, supplier: &impl Supplier<R>) -> Option<R> {
        self.pop().or_else(|| self.alloc_slow_with_new_operation(supplier))
    }
    /// Pops an object from the current CPU's stack. Popping from the stack is the first step of [`alloc`](Self::alloc).
    #[inline]
    pub fn pop(&self) -> Option<R> {
        // SAFETY: this layer is alive.
        unsafe { self.nodes[self.this_node() as usize].fast_path.alloc() }
    }
    /// Allocates like [`alloc`](Self::alloc), but as a part of the operation `op`, which may have taken other steps
    /// before. If the layer has no object, the caller continues the operation elsewhere.
    #[inline]
    pub fn alloc_in(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        self.pop().or_else(|| self.alloc_slow(op, supplier))
    }

    /// Creates an operation and allocates on the slow path. Fast paths thus need no space for an operation in their
    /// stack frames.
    #[cold]
    #[inline(never)]
    fn alloc_slow_with_new_operation(&self, supplier: &impl Supplier<R>) -> Option<R> {
        self.alloc_slow(&self.operation(OperationKind::Alloc), supplier)
    }

    /// After a miss, allocates from a magazine of the depot or the supplier. The caller gets one object of the
    /// magazine, and the CPU's stack gets the other objects.
    #[cold]
    #[inline(never)]
    pub fn alloc_slow(&self, op: &Operation, supplier: &impl Supplier<R>) -> Option<R> {
        // Without a retry after the registration, each new thread would fetch another magazine for its CPU.
        if rseq::register_if_unregistered()
            // SAFETY: this layer is alive.
            && let Some(round) = unsafe { self.nodes[self.this_node() as usize].fast_path.alloc() }
        {
            return Some(round);
        }
        tell!(op: Step::Missed);
        inject_yield();
        let at = self.this_node();
        let node = &self.nodes[at as usize];
        let mut magazine = Magazine::new();
        // On a CPU without a region, or while the class is drained, nothing can be pushed. If nothing can be
        // pushed, the allocation requests only one object.
        let open = self.table.region(self.cpus().current()).is_some()
            && self.table.limit(node.class()).load(crate::sync::Ordering::Relaxed) > 0;
        if !(open && node.depot.take(op, &self.table.depots, &mut magazine)) {
            let ask = if open { self.tuning.next_fill(&self.config) } else { 1 };
            assert_unlocked();
            supplier.fill(op, at, ask, |round| {
                let room = magazine.push(round.into_raw());
                debug_assert!(room, "a supplier returns at most the requested number of rounds");
            });
            if !magazine.is_empty() {
                tell!(op: Step::Filled { rounds: magazine.len() as u16 });
                self.counts.fills.add(1);
            }
        }
        if magazine.is_empty() && (open || !node.depot.take(op, &self.table.depots, &mut magazine)) {
            return None;
        }
        let mine = magazine.pop()?;
        self.counts.around_allocs.add(1);
        let mut busy = !open;
        let pushed = magazine.is_empty() || self.push_all(op, node, magazine.rounds());
        if !pushed {
            busy = true;
            self.put_in_depot(op, supplier, node, &mut magazine);
        }
        if busy {
            self.counts.busy.add(1);
        }
        self.counts.paths.count(op);
        // SAFETY: only `R::into_raw` produces the pointers in magazines.
        Some(unsafe { R::from_raw(mine) })
    }

    // ---- free ----

    /// Frees an object. A free never fails, and never accesses the memory of the object.
    ///
    /// Cost: like [`alloc`](Self::alloc).
    #[inline]
    pub fn free(&self, supplier: &impl Supplier<R>, round: R) {
        // SAFETY: this layer is alive.
        if !self.home_node_class(supplier, round).is_some_and(|node| unsafe { node.fast_path.free(round) }) {
            self.free_slow_with_new_operation(supplier, round);
        }
    }
    /// Frees like [`free`](Self::free), but as a part of the operation `op`, which may have taken other steps before.
    #[inline]
    pub fn free_in(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        // SAFETY: this layer is alive.
        if !self.home_node_class(supplier, round).is_some_and(|node| unsafe { node.fast_path.free(round) }) {
            self.free_slow(op, supplier, round);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_slow_with_new_operation(&self, supplier: &impl Supplier<R>, round: R) {
        self.free_slow(&self.operation(OperationKind::Free), supplier, round);
    }

    /// Frees an object after a miss by growing the stack, or by moving a magazine from the stack to the depot.
    #[cold]
    #[inline(never)]
    pub fn free_slow(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        tell!(op: Step::Full);
        let at = if self.nodes.len() == 1 { 0 } else { supplier.node_of(round) };
        let Some(node) = self.nodes.get(at as usize) else {
            self.free_bypassing_stack(op, supplier, round);
            self.counts.paths.count(op);
            return;
        };
        if self.push_all(op, node, &[round.into_raw()]) {
            self.counts.around_frees.add(1);
        } else {
            let mut magazine = Magazine::new();
            let popped = self.pop_batch(node, self.config.capacity, &mut magazine);
            if popped {
                self.put_in_depot(op, supplier, node, &mut magazine);
                inject_yield();
            }
            // SAFETY: this layer is alive.
            if !(popped && unsafe { node.fast_path.free(round) }) {
                self.free_bypassing_stack(op, supplier, round);
            }
        }
        self.counts.paths.count(op);
    }

    /// Returns `true` if the object is on top of the current CPU's stack. If a free missed and the result is `true`,
    /// the object was freed twice, and the second free had no effect. For a layer with several nodes, the result is
    /// always `false`.
    pub fn has_on_top(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) -> bool {
        let [node] = &*self.nodes else { return false };
        let mut top = Magazine::new();
        if !self.pop_batch(node, 1, &mut top) {
            return false;
        }
        let has = top.rounds() == [round.into_raw()];
        if !self.push_all(op, node, top.rounds()) {
            self.put_in_depot(op, supplier, node, &mut top);
        }
        has
    }

    #[cold]
    fn free_bypassing_stack(&self, op: &Operation, supplier: &impl Supplier<R>, round: R) {
        tell!(op: Step::Bypassed);
        self.counts.busy.add(1);
        self.counts.around_frees.add(1);
        assert_unlocked();
        supplier.flush(op, core::iter::once(round));
    }

    // ---- magazines ----

    /// Puts a full magazine into the depot. A magazine that is not full, or that the depot does not accept, is flushed
    /// to the supplier.
    fn put_in_depot(
        &self,
        op: &Operation,
        supplier: &impl Supplier<R>,
        node: &NodeClass<R, M>,
        magazine: &mut Magazine,
    ) {
        let full = magazine.len() == usize::from(self.config.capacity);
        let kept = full && {
            inject_yield();
            node.depot.put(op, &self.table.depots, magazine, || self.table.block(op))
        };
        if !kept {
            self.flush(op, supplier, magazine);
        }
    }

    fn flush(&self, op: &Operation, supplier: &impl Supplier<R>, magazine: &mut Magazine) {
        assert_unlocked();
        tell!(op: Step::Flushed { rounds: magazine.len() as u16 });
        self.counts.flushes.add(1);
        // SAFETY: only `R::into_raw` produces the pointers in magazines.
        let rounds = core::iter::from_fn(|| magazine.pop().map(|raw| unsafe { R::from_raw(raw) })).fuse();
        supplier.flush(op, rounds);
        debug_assert!(magazine.is_empty(), "a supplier takes all rounds");
    }

    // ---- drains and reports ----

    /// Flushes the objects on the stacks of `cpus` to the supplier. The CPUs continue to allocate and free, so their
    /// stacks may hold objects again when `drain` returns.
    ///
    /// Cost: the table's drain lock, and one fence for any number of CPUs. Fast paths never wait for the drain lock or
    /// the fence.
    pub fn drain(&self, supplier: &impl Supplier<R>, cpus: Range<u32>) {
        self.drain_in_operation(&self.operation(OperationKind::Reclaim), supplier, cpus, DrainScope::All);
    }
    fn drain_in_operation(
        &self,
        op: &Operation,
        supplier: &impl Supplier<R>,
        cpus: Range<u32>,
        which: DrainScope,
    ) -> u64 {
        let mut rounds = 0;
        self.table.drain(cpus, which, self.classes(), |class, taken| {
            rounds += self.give(op, supplier, class, taken);
        });
        rounds
    }
    fn classes(&self) -> impl Iterator<Item = Class> + Clone {
        self.nodes.iter().map(NodeClass::class)
    }
    /// Flushes to the supplier the objects that a drain took from one stack. Returns the number of flushed objects.
    fn give(
        &self,
        op: &Operation,
        supplier: &impl Supplier<R>,
        class: Class,
        taken: &mut DrainedRounds<'_>,
    ) -> u64 {
        let Some(node) = self.nodes.iter().find(|node| node.class() == class) else { return 0 };
        let count = taken.len().into();
        tell!(op: Step::Drained { rounds: taken.len() });
        node.net.sub(count);
        self.counts.flushes.add(1);
        assert_unlocked();
        // SAFETY: only `R::into_raw` produces the pointers on stacks.
        let rounds = core::iter::from_fn(|| taken.pop().map(|raw| unsafe { R::from_raw(raw) })).fuse();
        supplier.flush(op, rounds);
        debug_assert_eq!(taken.len(), 0, "a supplier takes all rounds");
        op.pause();
        count
    }

    /// Flushes the objects on all stacks and in all depots to the supplier.
    pub fn flush_all(&self, supplier: &impl Supplier<R>) {
        self.flush_all_in_operation(&self.operation(OperationKind::Reclaim), supplier);
    }
    fn flush_depots(&self, op: &Operation, supplier: &impl Supplier<R>) {
        for node in &self.nodes {
            self.flush_depot(op, supplier, node, u32::MAX);
        }
    }

    fn flush_depot(
        &self,
        op: &Operation,
        supplier: &impl Supplier<R>,
        node: &NodeClass<R, M>,
        magazines: u32,
    ) -> u64 {
        let (mut magazine, mut rounds) = (Magazine::new(), 0);
        for _ in 0..magazines {
            if !node.depot.take(op, &self.table.depots, &mut magazine) {
                break;
            }
            rounds += magazine.len() as u64;
            self.flush(op, supplier, &mut magazine);
            op.pause();
        }
        node.depot.spare().into_iter().for_each(|blocks| self.table.take_blocks(blocks));
        rounds
    }

    /// Halves the capacity limit of the stacks. Call `shrink` when memory is short. To release objects as well, call
    /// [`flush_all`](Self::flush_all).
    pub fn shrink(&self) {
        self.tuning.shrink(&self.config);
        self.apply_capacity_limits();
    }
    fn apply_capacity_limits(&self) {
        self.nodes.iter().for_each(|node| self.table.change_limit(node.class(), || self.tuning.reach()));
    }

    /// Ends the current reaping interval and begins the next one. Flushes all depot magazines that were not needed
    /// during the interval, and all stacks that served no operation since the last call. Returns the number of flushed
    /// objects.
    ///
    /// Call `reap` at regular intervals (kernels use 10 to 20 s).
    pub fn reap(&self, supplier: &impl Supplier<R>) -> u64 {
        let op = &self.operation(OperationKind::Reclaim).cold();
        let idle = self.drain_in_operation(op, supplier, 0..self.cpus().count(), DrainScope::Idle);
        idle + self.end_interval(op, supplier)
    }
    fn end_interval(&self, op: &Operation, supplier: &impl Supplier<R>) -> u64 {
        let mut rounds = 0;
        for node in &self.nodes {
            let surplus = node.depot.surplus(op);
            rounds += self.flush_depot(op, supplier, node, surplus);
        }
        if let Some(reach) = self.tuning.end_interval(&self.config) {
            tell!(op: Step::Resized { places: reach });
            self.apply_capacity_limits();
        }
        rounds
    }

    /// Returns the current values of the layer's counters. The call reads the stack heads of all CPUs that were ever
    /// used, and takes no lock.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let counts = &self.counts;
        let dear = counts.paths.now();
        (stats.allocs, stats.frees) = (counts.around_allocs.get(), counts.around_frees.get());
        stats.capacity = self.config.capacity.into();
        for node in &self.nodes {
            let (mut ops, mut held) = (0, 0);
            for region in self.table.used_regions(0..self.cpus().count()) {
                let (served, len) = region.served(node.class());
                ops += served;
                // Objects that a drain has taken but not begun to flush are still on the stack.
                let len = len + u64::from(region.taken_rounds(node.class()));
                held += len;
                stats.magazines += len.div_ceil(stats.capacity);
            }
            let allocs = (ops as i64 - (held as i64 - node.net.get() as i64)) / 2;
            stats.allocs += allocs.clamp(0, ops as i64) as u64;
            stats.frees += (ops as i64 - allocs).clamp(0, ops as i64) as u64;
            stats.in_magazines += held;
            stats.in_depot += u64::from(node.depot.len()) * u64::from(self.config.capacity);
            stats.magazines += u64::from(node.depot.len());
            stats.depot_exchanges += node.depot.exchanges.get();
            stats.depot_contention += node.depot.contention.get();
        }
        stats.paths = dear.of_operations(stats.allocs + stats.frees);
        stats.fills = counts.fills.get();
        stats.flushes = counts.flushes.get();
        stats.other_node_frees = counts.other_node_frees.get();
        stats.busy = counts.busy.get();
        stats.mechanism = self.mechanism();
        stats.aborts = rseq::aborts();
        stats
    }
}

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl<R: Round, M: Memory> Layer<R, M> {
    /// Returns the sizes with which the layer was created.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns `true` if the layer has a single class, which all CPUs use. If a layer has a single class, its slow path
    /// runs only after the [fast path](Self::fast_path) missed.
    #[inline]
    pub fn has_one_node(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Flushes like [`flush_all`](Self::flush_all), but as a part of the operation `op`, which found no memory
    /// elsewhere.
    pub fn flush_all_in_operation(&self, op: &Operation, supplier: &impl Supplier<R>) {
        self.drain_in_operation(op, supplier, 0..self.cpus().count(), DrainScope::All);
        self.flush_depots(op, supplier);
    }

    /// Closes all stacks and depots, so that they accept no objects. If the caller then calls
    /// [`flush_all`](Self::flush_all), the closed layer holds no objects, and every object that is freed later is
    /// passed to the supplier.
    pub fn close(&self) {
        for node in &self.nodes {
            self.table.set_limit(node.class(), || 0);
            node.depot.set_open(false);
        }
    }

    /// Reopens the stacks and depots that [`close`](Self::close) closed.
    pub fn reopen(&self) {
        for node in &self.nodes {
            self.table.set_limit(node.class(), || self.tuning.reach());
            node.depot.set_open(true);
        }
    }

    /// Creates a layer like [`new`](Self::new), but with a single class that CPUs of all nodes share.
    pub fn on_one_node(table: &Arc<Table<M>>, config: Config) -> Option<Self> {
        Self::with_nodes(table, 1, config)
    }

    /// Starts an operation of this layer, for the tracepoints.
    #[inline]
    pub fn operation(&self, what: OperationKind) -> Operation<'_> {
        Operation::of(self.table.tracepoints(), what, &self.name)
    }

    /// Returns the fast path of the layer's class. The fast path reads the set `words` of per-CPU pointers. If the
    /// layer has several nodes, the fast path always misses, because each operation must first find its node.
    pub fn fast_path(&self, words: Words) -> FastPath<R, M> {
        match &*self.nodes {
            [node] => FastPath::new(&self.table, node.fast_path.class(), words),
            _ => FastPath::disabled(),
        }
    }

    /// Makes `words` a copy of the table's per-CPU pointers, for the [static paths](crate::StaticPath) of the table's
    /// layers. Returns `false` if the table does not use restartable sequences or already has such a copy, or if
    /// `words` is in use or too small.
    pub fn take_static_words(&self, words: &'static StaticWords) -> bool {
        self.table.take_static_words(words)
    }

    // ---- many layers together ----

    /// Adds the layer to the group of layers that a [sweep](Table::sweep) of `group` drains. After each sweep, the
    /// caller must collect the swept objects of every layer in the group.
    pub fn join_sweeps(&self, group: SweepGroup) {
        self.classes().for_each(|class| self.table.join_sweeps(class, group));
    }

    /// Completes a [drain](Self::drain) by flushing the objects that a [sweep](Table::sweep) of all stacks took from
    /// this layer. Returns the number of flushed objects.
    pub fn drain_swept(&self, op: &Operation, supplier: &impl Supplier<R>) -> u64 {
        let (mut rounds, mut panics) = (0, FirstPanic::default());
        for class in self.classes() {
            let give = |class, taken: &mut DrainedRounds<'_>| rounds += self.give(op, supplier, class, taken);
            panics.catch(|| self.table.collect(class, give));
        }
        panics.resume();
        rounds
    }

    /// Completes a [flush](Self::flush_all_in_operation) by flushing the depots, and the objects that a
    /// [sweep](Table::sweep) of all stacks took.
    pub fn flush_swept(&self, op: &Operation, supplier: &impl Supplier<R>) {
        self.drain_swept(op, supplier);
        self.flush_depots(op, supplier);
    }

    /// Completes a [reap](Self::reap) by flushing unneeded depot magazines, and the objects that a
    /// [sweep](Table::sweep) of idle stacks took. Returns the number of flushed objects.
    pub fn reap_swept(&self, supplier: &impl Supplier<R>) -> u64 {
        let op = &self.operation(OperationKind::Reclaim).cold();
        self.drain_swept(op, supplier) + self.end_interval(op, supplier)
    }
}

impl<R: Round, M: Memory> Drop for Layer<R, M> {
    fn drop(&mut self) {
        if !crate::sync::abandoned() {
            self.nodes.iter().for_each(|node| {
                self.table.take_blocks(node.depot.end(&self.table.depots));
                self.table.retire(node.class());
            });
        }
    }
}

/// The locks of a layer are the locks of its depots. The [table](Table) implements `Fork` separately, and forgets other
/// threads after its layers.
impl<R: Round, M: Memory> Fork for Layer<R, M> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        if rank == Rank::Depot {
            self.nodes.iter().for_each(|node| visit(&node.depot.full));
        }
    }
    unsafe fn forget_other_threads(&self) {}
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
