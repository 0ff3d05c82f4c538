//! The specification of the magazine layer: for each operation, which objects (*rounds*) it moves, and from where to
//! where.
//!
//! ```text
//!  CPU 0: a stack          CPU 1: a stack
//!     │ a magazine at a time     │
//!     └──────── depot ───────────┘      full magazines
//!                 │
//!              supplier                 slabs, or a zone
//! ```
//!
//! - An **allocation** takes the newest object from the CPU's stack. If the stack is empty, the operation takes a
//!   magazine from the depot. If the depot is empty too, the operation requests objects from the supplier. The caller
//!   gets the last object of the magazine, and the CPU's stack gets the other objects.
//! - A **fill** requests objects from the supplier. The first fill requests [`first_fill`](Sizes::first_fill) objects.
//!   Each later fill requests twice as many objects as the fill before, up to a full magazine.
//! - A **free** pushes the object on the CPU's stack. A full stack doubles its capacity, up to a limit. A full stack at
//!   its limit moves its newest magazine to the depot. If the depot refuses the magazine, its objects are returned to
//!   the supplier.
//! - A **depot** stores full magazines, and hands out the [newest](Depot::take) one first. A depot refuses a magazine
//!   that would exceed its own limit or the [budget](Budget) of all depots.
//! - A **drain** removes all objects from the stacks of some CPUs. The capacity of a drained stack is 0 until its next
//!   use.
//! - A **reap** drains all stacks that were not used since the last reap, and flushes all depot magazines that were not
//!   needed since the last reap.
//! - A **shortage** halves the capacity limit of stacks, down to two magazines, and resets the size of fills. A reap
//!   doubles the limit again if no shortage occurred since the last reap.
//!
//! The specification models no memory management, no locks and no concurrency. Tests compare the shipping code with the
//! specification, operation by operation. A separate model checker interleaves the steps of operations, and models
//! restartable sequences and drains itself. The model checker uses [`Depot`], [`Usage`] and [`widened_capacity`] from
//! this crate.
//!
//! The design follows Bonwick and Adams, "Magazines and Vmem" (USENIX 2001), sections 3.1 to 3.4. In contrast to the
//! paper, each CPU has one stack instead of two magazines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// A list of elements in the order in which they were added, oldest first.
pub trait List {
    /// An element.
    type Item;
    /// Returns the number of elements.
    fn len(&self) -> usize;
    /// Returns `true` if the list has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends an element, which becomes the newest.
    fn push(&mut self, item: Self::Item);
    /// Removes and returns the element at index `at`. The oldest element has index 0.
    fn remove(&mut self, at: usize) -> Self::Item;
}

impl<T> List for Vec<T> {
    type Item = T;
    fn len(&self) -> usize {
        self.len()
    }
    fn push(&mut self, item: T) {
        self.push(item);
    }
    fn remove(&mut self, at: usize) -> T {
        self.remove(at)
    }
}

/// A list of at most `N` elements, without heap memory. Unlike a `Vec`, a `SmallList` is `Copy`, which a model checker
/// needs for its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SmallList<T, const N: usize> {
    /// The array that stores the elements. Unused entries have the default value.
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for SmallList<T, N> {
    fn default() -> Self {
        Self { items: [T::default(); N], len: 0 }
    }
}
impl<T, const N: usize> SmallList<T, N> {
    /// Returns the elements, oldest first.
    pub fn items(&self) -> &[T] {
        &self.items[..self.len.into()]
    }
    /// Returns the elements, oldest first.
    pub fn items_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len.into()]
    }
}
impl<T: Copy + Default, const N: usize> List for SmallList<T, N> {
    type Item = T;
    fn len(&self) -> usize {
        self.len.into()
    }
    fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }
    fn remove(&mut self, at: usize) -> T {
        let len = usize::from(self.len);
        self.items[at..len].rotate_left(1);
        self.len -= 1;
        core::mem::take(&mut self.items[len - 1])
    }
}

/// Number of magazines in each depot that do not count towards the [budget](Budget).
pub const UNBUDGETED_MAGAZINES: usize = 2;

/// A depot: full magazines that all CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Depot<L> {
    magazines: L,
    /// True if the depot accepts further magazines.
    pub open: bool,
    /// The smallest number of magazines in the depot since the last reap.
    fewest: u16,
}

impl<L: List + Default> Default for Depot<L> {
    fn default() -> Self {
        Self { magazines: L::default(), open: true, fewest: 0 }
    }
}
impl<L: List> Depot<L> {
    /// Returns the magazines in the depot, oldest first.
    pub fn magazines(&self) -> &L {
        &self.magazines
    }
    /// Returns the magazines mutably, so that a model checker can rename the objects in them.
    pub fn magazines_mut(&mut self) -> &mut L {
        &mut self.magazines
    }
    /// Resets the depot's minimum since the last reap. A model that never reaps calls this function.
    pub fn reset_interval_statistics(&mut self) {
        self.fewest = 0;
    }

    /// Returns the index of the magazine that the next `take` removes from a depot of `len` magazines. The oldest
    /// magazine has index 0.
    fn next_index(len: usize) -> usize {
        len - 1
    }
    /// Removes and returns the newest magazine, or returns `None` if the depot is empty.
    pub fn take(&mut self) -> Option<L::Item> {
        let len = self.magazines.len();
        let taken = (len > 0).then(|| self.magazines.remove(Self::next_index(len)));
        self.fewest = self.fewest.min(self.magazines.len() as u16);
        taken
    }
    /// Iterates over copies of the magazines, in the order in which `take` would remove them.
    pub fn magazines_in_take_order(&self) -> impl Iterator<Item = L::Item>
    where
        L: Clone,
    {
        let mut left = self.magazines.clone();
        core::iter::from_fn(move || (!left.is_empty()).then(|| left.remove(Self::next_index(left.len()))))
    }
    /// Returns `true` if the depot is open and has fewer than `limit` magazines.
    pub fn accepts(&self, limit: usize) -> bool {
        self.open && self.magazines.len() < limit
    }
    /// Returns `true` if the budget counts the next magazine that is added, because the depot already has
    /// [`UNBUDGETED_MAGAZINES`] magazines.
    pub fn is_counted(&self) -> bool {
        self.magazines.len() >= UNBUDGETED_MAGAZINES
    }
    /// Adds a magazine. The caller must first check that the depot [accepts](Self::accepts) another magazine.
    pub fn put(&mut self, magazine: L::Item) {
        self.magazines.push(magazine);
    }
    /// Ends the current reaping interval and begins the next one. Returns the number of magazines that were never taken
    /// during the interval.
    pub fn surplus(&mut self) -> usize {
        let surplus = self.fewest;
        self.fewest = self.magazines.len() as u16 - surplus;
        surplus.into()
    }
}

/// A limit on the total bytes in several depots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    held: u64,
    most: u64,
}

impl Budget {
    /// Creates a budget of `most` bytes.
    pub fn new(most: u64) -> Self {
        Self { held: 0, most }
    }
    /// Creates the budget of a machine with `cpus` CPUs: 1 MiB for each CPU, and at least 8 MiB.
    pub fn from_cpu_count(cpus: u32) -> Self {
        Self::new((u64::from(cpus) << 20).max(8 << 20))
    }
    /// Returns the budget's limit in bytes.
    pub fn limit(&self) -> u64 {
        self.most
    }
    /// Charges `bytes` bytes to the budget, if its limit permits it. Returns `false` and charges nothing if the limit
    /// would be exceeded.
    fn charge(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || self.held + bytes <= self.most;
        self.held += if fits { bytes } else { 0 };
        fits
    }
    fn release(&mut self, bytes: u64) {
        self.held -= bytes;
    }
}

/// How a stack was used since the last sweep. The next sweep uses the recorded state to detect an idle stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Usage {
    /// True if a caller popped or pushed a single object since the last sweep.
    served: bool,
    /// The number of objects on the stack at the last sweep.
    seen: u16,
}

impl Usage {
    /// Records that a caller popped or pushed a single object, not a magazine.
    pub fn record_use(&mut self) {
        self.served = true;
    }
    /// Records that a sweep found `len` objects on the stack.
    pub fn record_sweep(&mut self, len: usize) {
        *self = Self { served: false, seen: len as u16 };
    }
    /// Returns `true` if the stack, which now has `len` objects, is not empty and was not used since the last sweep.
    pub fn is_idle(&self, len: usize) -> bool {
        len > 0 && !self.served && usize::from(self.seen) == len
    }
}

/// Returns the capacity to which a stack of capacity `places` grows to hold `need` objects, or `None` if `limit` is too
/// low.
pub fn widened_capacity(places: usize, need: usize, limit: usize) -> Option<usize> {
    let most = (2 * places).max(need).min(limit);
    (need <= most).then_some(most)
}

/// The sizes of a layer's magazines, stacks and depots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of objects in a full magazine, at least 1.
    pub capacity: usize,
    /// Number of objects that the first fill requests, from 1 to a full magazine.
    pub first_fill: usize,
    /// Maximum capacity of a stack in objects, at least two magazines.
    pub reach: usize,
    /// Maximum number of magazines in each depot.
    pub depot_limit: usize,
    /// Total size in bytes of the objects in a full magazine.
    pub magazine_bytes: u64,
}

/// An event that an operation reports to the observer, other than the push or pop of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A stack grew because a caller freed an object to the full stack.
    Widened,
    /// A magazine moved between a stack and the depot.
    Exchange,
    /// A depot refused a magazine, although its limit is above 0.
    Refused,
}

/// The environment of a layer: the supplier, the budget of all depots, and an observer of events.
pub trait World<R> {
    /// Returns up to `most` new objects from the memory of `node`.
    fn fill(&mut self, node: usize, most: usize) -> Vec<R>;
    /// Returns flushed objects to the supplier, in the order of the vector.
    fn flush(&mut self, rounds: Vec<R>);
    /// Returns the memory node to which the object belongs.
    fn node_of(&self, _round: &R) -> usize {
        0
    }
    /// Returns the budget that all depots share.
    fn budget(&mut self) -> &mut Budget;
    /// Receives an event of an operation.
    fn observe(&mut self, _event: Event) {}
}

/// The stack of one CPU for objects of one memory node.
#[derive(Clone, Debug)]
struct Stack<R> {
    /// The objects on the stack, newest last.
    rounds: Vec<R>,
    /// The current capacity of the stack, as a number of objects. A stack's capacity may exceed the limit after a
    /// shortage has lowered the limit.
    places: usize,
    usage: Usage,
}

impl<R> Default for Stack<R> {
    fn default() -> Self {
        Self { rounds: vec![], places: 0, usage: Usage::default() }
    }
}
impl<R> Stack<R> {
    /// Grows the stack, if necessary, so that `more` further objects fit. Returns `Some(true)` if the stack grew, and
    /// `None` if `limit` does not permit the growth.
    fn widen(&mut self, more: usize, limit: usize) -> Option<bool> {
        let need = self.rounds.len() + more;
        if need <= self.places {
            return Some(false);
        }
        self.places = widened_capacity(self.places, need, limit)?;
        Some(true)
    }
    /// Removes and returns all objects, newest first, and sets the capacity to 0.
    fn take_all(&mut self) -> Vec<R> {
        let mut rounds = core::mem::take(&mut self.rounds);
        rounds.reverse();
        self.places = 0;
        self.usage.record_sweep(0);
        rounds
    }
}

#[derive(Clone, Debug)]
struct Node<R> {
    /// The stacks for this node's objects, indexed by CPU.
    stacks: Vec<Stack<R>>,
    depot: Depot<Vec<Vec<R>>>,
}

/// The specified state of a layer: its stacks, depots and limits.
#[derive(Clone, Debug)]
pub struct Layer<R> {
    sizes: Sizes,
    /// The node of each CPU, indexed by CPU.
    node_of_cpu: Vec<usize>,
    nodes: Vec<Node<R>>,
    /// Number of objects that the next fill requests.
    fill: usize,
    /// The current maximum capacity of a stack, in objects.
    limit: usize,
    /// True if a shortage of memory occurred since the last reap.
    short: bool,
}

impl<R> Layer<R> {
    /// Creates a layer without objects. `node_of_cpu` contains the node of each CPU. Every node must have at least one
    /// CPU.
    pub fn new(sizes: Sizes, node_of_cpu: Vec<usize>) -> Self {
        let (cpus, nodes) = (node_of_cpu.len(), node_of_cpu.iter().max().map_or(0, |last| last + 1));
        let stacks = || (0..cpus).map(|_| Stack::default()).collect();
        let nodes = (0..nodes).map(|_| Node { stacks: stacks(), depot: Depot::default() });
        let nodes = nodes.collect();
        Self { sizes, node_of_cpu, nodes, fill: sizes.first_fill, limit: sizes.reach, short: false }
    }
    /// Returns the sizes with which the layer was created.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }
    /// Number of CPUs.
    pub fn cpus(&self) -> usize {
        self.node_of_cpu.len()
    }
    /// Returns the objects on the stack of `cpu` for `node`, newest last.
    pub fn stack(&self, node: usize, cpu: usize) -> &[R] {
        &self.nodes[node].stacks[cpu].rounds
    }
    /// Returns the depot of `node`.
    pub fn depot(&self, node: usize) -> &Depot<Vec<Vec<R>>> {
        &self.nodes[node].depot
    }

    /// Allocates an object on `cpu`. Returns `None` if the stack, the depot and the supplier have no object.
    pub fn alloc(&mut self, cpu: usize, world: &mut impl World<R>) -> Option<R> {
        let (node, limit) = (self.node_of_cpu[cpu], self.limit);
        let stack = &mut self.nodes[node].stacks[cpu];
        if let Some(round) = stack.rounds.pop() {
            stack.usage.record_use();
            return Some(round);
        }
        let mut magazine = match self.take_from_depot(node, world) {
            Some(magazine) => magazine,
            None => world.fill(node, self.next_fill()),
        };
        let round = magazine.pop()?;
        let stack = &mut self.nodes[node].stacks[cpu];
        stack.widen(magazine.len(), limit).expect("an empty stack has places for two magazines");
        stack.rounds.append(&mut magazine);
        Some(round)
    }

    /// Frees the object `round` on `cpu`.
    pub fn free(&mut self, cpu: usize, round: R, world: &mut impl World<R>) {
        let (node, limit, capacity) = (world.node_of(&round), self.limit, self.sizes.capacity);
        let stack = &mut self.nodes[node].stacks[cpu];
        match stack.widen(1, limit) {
            Some(grew) => {
                if grew {
                    world.observe(Event::Widened);
                }
                // Not recorded as a use: after a push, only a pop restores the length that a sweep has seen.
                stack.rounds.push(round);
            }
            None => {
                let magazine = stack.rounds.split_off(stack.rounds.len() - capacity);
                stack.rounds.push(round);
                stack.usage.record_use();
                self.put_in_depot(node, magazine, world);
            }
        }
    }

    fn next_fill(&mut self) -> usize {
        let next = (2 * self.fill).min(self.sizes.capacity);
        core::mem::replace(&mut self.fill, next)
    }
    fn take_from_depot(&mut self, node: usize, world: &mut impl World<R>) -> Option<Vec<R>> {
        let depot = &mut self.nodes[node].depot;
        let magazine = depot.take()?;
        if depot.is_counted() {
            world.budget().release(self.sizes.magazine_bytes);
        }
        world.observe(Event::Exchange);
        Some(magazine)
    }
    fn put_in_depot(&mut self, node: usize, mut magazine: Vec<R>, world: &mut impl World<R>) {
        let Sizes { depot_limit, magazine_bytes, .. } = self.sizes;
        let depot = &mut self.nodes[node].depot;
        let accepts = depot.accepts(depot_limit);
        if accepts && (!depot.is_counted() || world.budget().charge(magazine_bytes)) {
            depot.put(magazine);
            world.observe(Event::Exchange);
        } else {
            if depot_limit > 0 {
                world.observe(Event::Refused);
            }
            magazine.reverse();
            world.flush(magazine);
        }
    }

    /// Flushes the stacks of `cpus` to the supplier. Returns the number of flushed objects.
    pub fn drain(&mut self, cpus: Range<usize>, world: &mut impl World<R>) -> usize {
        self.drain_selected_stacks(cpus, world, |stack| !stack.rounds.is_empty(), |_| true)
    }
    /// Visits each CPU with a stack for which `wanted` returns `true`, and flushes its stacks for which `taken` does. A
    /// CPU is visited once for the stacks of all nodes.
    fn drain_selected_stacks(
        &mut self,
        cpus: Range<usize>,
        world: &mut impl World<R>,
        wanted: impl Fn(&Stack<R>) -> bool,
        taken: impl Fn(&Stack<R>) -> bool,
    ) -> usize {
        let visits = |cpu: &usize| self.nodes.iter().any(|node| wanted(&node.stacks[*cpu]));
        let visited: Vec<usize> = (cpus.start..cpus.end.min(self.node_of_cpu.len())).filter(visits).collect();
        let mut flushed = 0;
        for node in &mut self.nodes {
            for cpu in &visited {
                let stack = &mut node.stacks[*cpu];
                let rounds = if taken(stack) { stack.take_all() } else { vec![] };
                if !rounds.is_empty() {
                    flushed += rounds.len();
                    world.flush(rounds);
                }
            }
        }
        flushed
    }

    /// Flushes all stacks and all depots to the supplier. Returns the number of flushed objects.
    pub fn flush_all(&mut self, world: &mut impl World<R>) -> usize {
        let stacks = self.drain(0..usize::MAX, world);
        stacks + (0..self.nodes.len()).map(|node| self.flush_depot(node, usize::MAX, world)).sum::<usize>()
    }
    fn flush_depot(&mut self, node: usize, magazines: usize, world: &mut impl World<R>) -> usize {
        let mut flushed = 0;
        for _ in 0..magazines {
            let Some(mut magazine) = self.take_from_depot(node, world) else { break };
            flushed += magazine.len();
            magazine.reverse();
            world.flush(magazine);
        }
        flushed
    }

    /// Flushes all idle stacks, and all magazines that the depots did not need, at the end of a reaping interval.
    /// Returns the number of flushed objects.
    pub fn reap(&mut self, world: &mut impl World<R>) -> usize {
        let idle = |stack: &Stack<R>| stack.usage.is_idle(stack.rounds.len());
        let mut flushed = self.drain_selected_stacks(0..usize::MAX, world, idle, idle);
        let stacks = self.nodes.iter_mut().flat_map(|node| &mut node.stacks);
        stacks.for_each(|stack| stack.usage.record_sweep(stack.rounds.len()));
        for node in 0..self.nodes.len() {
            let surplus = self.nodes[node].depot.surplus();
            flushed += self.flush_depot(node, surplus, world);
        }
        if !core::mem::take(&mut self.short) {
            self.limit = (2 * self.limit).min(self.sizes.reach);
        }
        flushed
    }

    /// Lowers the capacity limit and makes the next fill small again, because memory is short. The current capacity of
    /// each stack stays the same.
    pub fn shrink(&mut self) {
        let Sizes { capacity, first_fill, reach, .. } = self.sizes;
        self.short = true;
        self.fill = first_fill;
        self.limit = (self.limit / 2).max(reach.min(2 * capacity));
    }
}

#[cfg(test)]
mod tests;
