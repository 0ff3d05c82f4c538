//! A table holds the per-CPU stacks of all classes. Each CPU has a *region*; a per-CPU pointer (the *word*)
//! leads to it.
//!
//! ```text
//!  words: spare, spare | CPU 0 | CPU 1 | ...                 one for every number that the kernel may give; three times
//!                          │       └──> region of CPU 1
//!                          └──> region of CPU 0
//!  the empty region: never committed, all zero: every operation misses there
//! ```
//!
//! *Fast path.* An operation loads its CPU's word and pushes or pops in that region. It commits with one store
//! to the head of its class.
//!
//! *Drain.* A drain must read another CPU's stacks. It
//!
//! 1. points the CPU's word to the empty region;
//! 2. issues the *fence*, after which no earlier operation is still running, so the drain owns the region;
//! 3. closes the stacks it wants: their rounds stay in place and now belong to the drain;
//! 4. restores the word;
//! 5. gives the rounds of the closed stacks away.
//!
//! The CPU misses only during steps 1 to 4: a few stores per class, however many rounds the stacks hold. One
//! fence serves all CPUs and all classes of a drain.
//!
//! *Three sets of words.* Inlined paths read a separate set of words, and inlined frees by address a third. So
//! these alone can be closed ([`Table::close_inlined`]): then they miss whatever the stacks hold, while the
//! slow paths use the same stacks as before.
//!
//! ## Rules
//!
//! 1. A region is written only by operations of its CPU, and by a drain that has taken its word away and fenced.
//!    Operations never write limits and notes; these are written under the lock of drains, and so is the head
//!    of a closed stack.
//! 2. The empty region is never written: what is not committed refuses every push, and widening, too.
//! 3. A word is only changed under the lock of drains, and restored before any other lock is taken.
//! 4. The first miss of a CPU in a class opens the class's stack there, under the lock of drains, unless a
//!    drain is giving away rounds of the class. A drain closes the stack again. So a drain knows which CPUs
//!    can use a class, and leaves the others alone.
//! 5. A number gets another owner only when its stacks are closed on all CPUs, for good.
//! 6. Taken rounds belong to the drain whose number they bear. Until that drain begins to give them away,
//!    another drain of the class may take them over, under the lock of drains.
//! 7. A page of stacks is decommitted while all stacks on it are closed, by rule 4 or for good, and no drain
//!    has rounds there.
//!
//! ## Many classes in one drain
//!
//! A [sweep](Table::sweep) is a drain of all classes that [take part](crate::Layer::join_sweeps), of any
//! layer: one fence for all of them. The rounds that it takes stay in place until each layer
//! [collects](crate::Layer::reap_swept) its part. A layer that drains its stacks before that takes them over,
//! so nothing waits for a layer that was forgotten.
//!
//! A table uses one [mechanism](crate::Mechanism). Under the claimed slot a claim *is* the region: a drain
//! claims it, and leaves the word alone.
//!
//! ## Addresses
//!
//! Each CPU's region is at most [`REGION`] bytes of addresses, which read as zero up to the CPU's first miss;
//! so an idle CPU costs nothing. It is committed from its start upwards as classes are used there. The rooms
//! of classes are powers of two and never move; rooms smaller than a page share pages with rooms of their
//! size. A returned number keeps its room for the next class of that size. [`Table::decommit_idle`] decommits
//! the pages of stacks that serve nothing.
//!
//! Behind the regions are the magazines of all depots, committed when they are first used.

mod drain;
mod giving;
mod idle_pages;
// A checker has cells.
#[cfg_attr(any(loom, shuttle), path = "table/cells.rs")]
mod layout;

use crate::cpu::Cpus;
use crate::cpu::regions::{SPARE, Words};
use crate::depot::{Blocks, DepotBudget};
use crate::fork::Fork;
use crate::magazine::MAX_CAPACITY;
use crate::memory::{ALIGN, Memory};
#[doc(hidden)]
pub use crate::region::REGION;
use crate::region::{CLASSES, Class, LEN, NULL, PAGE, ROUND, Region, SEEN, STACKS};
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::{ForkLock, ForkMutex};
use crate::sync::{AtomicU32, Counter, MODEL, Rank, UnsafeCell, planted, tell};
use crate::tracepoints::{Operation, Step, Tracepoints};
use core::ops::Range;
pub(crate) use drain::Taken;
pub use drain::{Drains, SweepGroup, Which};
use giving::Giving;
use layout::Layout;
use std::sync::Arc;

/// Bytes of addresses of all CPUs' regions together, about, if they are memory (of the heap). A simulator in a
/// page copies its memory for each of its checkpoints.
const ON_HEAP: usize = if cfg!(target_family = "wasm") { 1 << 20 } else { 64 << 20 };
/// A region is committed in steps of this many bytes.
const STEP: usize = 128 << 10;
const WORD: usize = size_of::<*mut u8>();
const LINE: usize = 64;

/// State of a class's number.
#[derive(Debug)]
struct Number {
    /// Places that its stack may use on a CPU that opens it; 0 if it is closed for good, or a drain is
    /// running.
    limit: AtomicU32,
    /// The limit while no drain is running.
    open: Counter,
    /// Rounds of a magazine: a full stack gives one away.
    magazine: Counter,
    /// The group of sweeps that take from it; 0 for no group.
    swept: Counter,
    /// Number of drains that are running. The lock of drains protects it.
    drains: UnsafeCell<u32>,
    /// Number of the drain whose taken rounds wait to be given away; 0 if no rounds wait. The lock of drains
    /// protects it.
    waiting: UnsafeCell<u64>,
    /// Offset of its stack in a region, in bytes, and the size of its room, as a power of two of lines. Set
    /// once.
    stack: Counter,
    order: Counter,
    /// The next number without an owner, of the same order. The lock of making protects it.
    next: UnsafeCell<u32>,
}

impl Number {
    /// Bytes of its room.
    fn room(&self) -> usize {
        LINE << self.order.get()
    }
    /// [`quiet`](crate::region) of a stack of `limit` places.
    fn quiet(&self, limit: u16) -> u16 {
        limit.saturating_sub(self.magazine.get() as u16)
    }
    /// The pages of its room; empty if it has no room yet.
    fn pages(&self) -> Range<usize> {
        match self.stack.get() as usize / PAGE {
            0 if !MODEL => 0..0,
            first => first..first + self.room().div_ceil(PAGE),
        }
    }
}

/// Numbers and rooms.
#[derive(Debug)]
struct Making {
    /// All smaller numbers have a room.
    numbers: u32,
    /// Bytes of a region that rooms take up.
    used: usize,
    /// By order: start of the next room smaller than a page. At a page boundary a new page is needed.
    parts: [usize; PARTS],
    /// By order, the first number without an owner; 0 if there is no such number.
    free: [u32; 16],
    /// Numbers returned since idle stacks were last decommitted.
    returned: u32,
    /// Unused magazines of depots.
    blocks: Blocks,
    /// Bytes cut for such magazines, and bytes committed for them.
    cut: [usize; 2],
}
/// Bytes of a stack of a magazine, in lines.
const MAGAZINE: usize = ((MAX_CAPACITY as usize + 1) * ROUND).next_multiple_of(LINE);
/// Returned numbers after which idle stacks are decommitted. A pass visits every number.
const RETURNED: u32 = 64;
/// Sizes of rooms below a page.
const PARTS: usize = (PAGE / LINE).ilog2() as usize;

/// The stacks of all classes on all CPUs. See the [module](self).
pub struct Table<M> {
    cpus: Cpus,
    memory: M,
    /// Bytes from one region to the next.
    region: usize,
    numbers: Box<[Number]>,
    drains: ForkMutex<()>,
    making: ForkMutex<Making>,
    pub(crate) depots: Arc<DepotBudget>,
    done: Counter,
    refused: Counter,
    /// Nanoseconds.
    longest_away: Counter,
    /// For each of [`Words`], 1 if closed. The lock of drains protects it.
    closed: [Counter; 3],
    tracepoints: Arc<Tracepoints>,
    layout: Layout,
}

// SAFETY: it points into its memory, whose owner may be any thread. Regions are atomics, and cells whose
// accesses the rules of the module serialise.
unsafe impl<M: Memory> Send for Table<M> {}
// SAFETY: regions are atomics, and cells whose accesses the rules of the module serialise.
unsafe impl<M: Memory> Sync for Table<M> {}

impl<M> core::fmt::Debug for Table<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table")
            .field("cpus", &self.cpus)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// The memory given to [`Table::new`] does not hold the table, or could not be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl core::fmt::Display for TooSmall {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory for the magazines is too small, unaligned or could not be committed")
    }
}
impl core::error::Error for TooSmall {}

/// Bytes of a set of words, spare ones included.
fn word_bytes(cpus: &Cpus) -> usize {
    (SPARE + cpus.slots() as usize) * WORD
}
/// Bytes in front of the first region.
fn front(cpus: &Cpus) -> usize {
    (3 * word_bytes(cpus)).next_multiple_of(ALIGN)
}

impl<M: Memory> Table<M> {
    /// Bytes of addresses for the words, for a region of `region` bytes per CPU, and for the depots as much as
    /// for the regions.
    #[doc(hidden)]
    pub fn footprint(cpus: &Cpus, region: usize) -> usize {
        front(cpus) + Self::stride(region) * (cpus.count() as usize + 2)
    }
    /// The first bytes of the footprint that may be committed immediately: all except the empty region and
    /// what follows it.
    #[doc(hidden)]
    pub fn writable(cpus: &Cpus, region: usize) -> usize {
        front(cpus) + Self::stride(region) * cpus.count() as usize
    }
    /// Bytes of a region, of addresses or, if `on_heap`, of memory.
    #[doc(hidden)]
    pub fn region_bytes(cpus: &Cpus, on_heap: bool) -> usize {
        if MODEL {
            // Cells, which a checker makes anew for every execution: a line of them for each class.
            return CLASSES as usize * LINE;
        }
        if on_heap { (ON_HEAP / cpus.count() as usize).clamp(128 << 10, REGION) } else { REGION }
    }
    const fn stride(region: usize) -> usize {
        let align = if MODEL { LINE } else { ALIGN };
        region.next_multiple_of(align)
    }
    /// Creates a table without classes.
    ///
    /// # Errors
    /// If `memory` cannot hold a region of `region` bytes for each CPU, or the words could not be committed.
    pub fn new(cpus: Cpus, region: usize, memory: M) -> Result<Self, TooSmall> {
        let (tracepoints, depots) = (Tracepoints::new(cpus), DepotBudget::of(&cpus));
        Self::observed(cpus, region, memory, Arc::new(tracepoints), Arc::new(depots))
    }
    /// As [`new`](Self::new), with `tracepoints` for the operations of the table's layers, and a budget for their
    /// depots.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(hidden)]
    pub fn observed(
        cpus: Cpus,
        region: usize,
        memory: M,
        tracepoints: Arc<Tracepoints>,
        depots: Arc<DepotBudget>,
    ) -> Result<Self, TooSmall> {
        let region = Self::stride(region);
        if !Self::fits(&cpus, region, &memory) {
            return Err(TooSmall);
        }
        let number = |_| Number {
            limit: AtomicU32::new(0),
            open: Counter::new(0),
            magazine: Counter::new(0),
            swept: Counter::new(0),
            drains: UnsafeCell::new(0),
            waiting: UnsafeCell::new(0),
            stack: Counter::new(0),
            order: Counter::new(0),
            next: UnsafeCell::new(0),
        };
        let making = Making {
            numbers: 1,
            used: STACKS.next_multiple_of(PAGE),
            parts: [0; PARTS],
            free: [0; 16],
            returned: 0,
            blocks: Blocks::default(),
            cut: [0; 2],
        };
        let table = Self {
            cpus,
            memory,
            region,
            numbers: (0..CLASSES).map(number).collect(),
            drains: ForkMutex::new(Rank::Drains, ()),
            making: ForkMutex::new(Rank::Making, making),
            depots,
            done: Counter::new(0),
            refused: Counter::new(0),
            longest_away: Counter::new(0),
            closed: [const { Counter::new(0) }; 3],
            tracepoints,
            layout: Layout::new(&cpus, region),
        };
        table.write_words();
        Ok(table)
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
    /// The CPUs that the table was made for.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }
    /// The tracepoints of its layers.
    #[doc(hidden)]
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        &self.tracepoints
    }

    // ---- words and regions ----

    /// The region of `cpu`, regardless of its word; `None` if that CPU has no region.
    #[inline]
    pub(crate) fn region(&self, cpu: u32) -> Option<Region<'_>> {
        planted!("a CPU beyond the table has a region" => return Some(self.region_at(cpu)));
        (cpu < self.cpus.count()).then(|| self.region_at(cpu))
    }
    /// The regions of CPUs that were ever used.
    pub(crate) fn used(&self, cpus: Range<u32>) -> impl Iterator<Item = Region<'_>> {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        cpus.filter_map(|cpu| self.region(cpu)).filter(|region| region.committed() > 0)
    }
    /// A drain's first step: points all words of `cpu` to the empty region.
    fn take_away(&self, cpu: u32) {
        for words in Words::ALL {
            planted!("a drain skips the words of inlined frees" => if words == Words::InlinedFrees {
                continue;
            });
            self.lead_away(words, cpu);
        }
        tell!(self => "detaches the region of CPU {cpu}");
    }
    /// A drain's last step: points the words that are not closed to the region again.
    fn put_back(&self, cpu: u32) {
        let open = Words::ALL.into_iter().filter(|words| self.closed[*words as usize].get() == 0);
        open.for_each(|words| self.lead_back(words, cpu));
        tell!(self => "restores the region of CPU {cpu}");
    }

    // ---- classes ----

    /// A number for a class whose stack has up to `reach` places; `None` if no number or no room is left.
    pub(crate) fn class(&self, reach: u16) -> Option<Class> {
        let (bytes, colours) = Self::room(reach);
        let order = (bytes / LINE).ilog2() as u8;
        let mut making = self.making.lock();
        let kept = making.free[usize::from(order)];
        planted!("a class number is allocated without an atomic exchange" => {
            drop(making);
            making = self.making.lock();
        });
        let index = if kept > 0 {
            // SAFETY: the lock of making is held.
            making.free[usize::from(order)] = self.numbers[kept as usize].next.with(|p| unsafe { *p });
            kept
        } else {
            let index = making.numbers;
            let part = making.parts.get(usize::from(order)).copied();
            let start = part.filter(|start| !start.is_multiple_of(PAGE)).unwrap_or(making.used);
            if index >= CLASSES || start + bytes > self.region {
                return None;
            }
            making.numbers = index + 1;
            if start == making.used {
                making.used += bytes.next_multiple_of(PAGE);
            }
            if let Some(part) = making.parts.get_mut(usize::from(order)) {
                *part = start + bytes;
            }
            let number = &self.numbers[index as usize];
            number.order.set(order.into());
            // Callers write the beginnings of lines. A load that follows a store to the same offset in another
            // page waits, so no head or cap is there.
            number.stack.set((start + index as usize * 7 * LINE % colours + SEEN) as u64);
            index
        };
        drop(making);
        let class = self.named(index);
        #[cfg(uslab_control = "capempty")]
        // SAFETY: readable as zero, and on heap memory writable.
        unsafe { Region::at(self.home(self.cpus.count())) }.set_cap(class, 2);
        self.set_limit(class, || reach);
        Some(class)
    }

    /// The class of a number that has a room.
    fn named(&self, index: u32) -> Class {
        Class { index, stack: self.numbers[index as usize].stack.get() as u32 }
    }
    /// The classes of all numbers that have a room.
    fn all(&self) -> impl Iterator<Item = (Class, &Number)> + Clone {
        let numbers = (0..).zip(&*self.numbers).skip(1);
        let roomy = numbers.filter(|(_, number)| !number.pages().is_empty());
        roomy.map(|(index, number)| (self.named(index), number))
    }

    /// Sets the rounds that a full stack of the class gives away. Set once, before the first push.
    pub(crate) fn set_magazine(&self, class: Class, rounds: u16) {
        self.numbers[class.index as usize].magazine.set(rounds.into());
    }

    /// Bytes of the room for a stack of `reach` places, a power of two of lines, and the number of its first
    /// bytes in which it may begin. Stacks that began at the same offset of different pages would compete for
    /// the same few sets of a processor's cache, so stacks of a page and more begin at different offsets,
    /// chosen so that one magazine takes one page.
    fn room(reach: u16) -> (usize, usize) {
        let stack = SEEN + NULL + (usize::from(reach) + 1) * ROUND;
        let mut bytes = stack.next_power_of_two().max(LINE);
        loop {
            let colours = if bytes < ALIGN { LINE } else { (bytes / 4).min(ALIGN - MAGAZINE) };
            if stack + colours - LINE <= bytes {
                return (bytes, colours);
            }
            bytes *= 2;
        }
    }

    /// Sets the number of places that the class's stacks may use; 0 closes it for good. `limit` is called
    /// under the lock, so that the last caller that changed its result wins.
    ///
    /// Rounds beyond the limit stay until they are used, or a drain takes them.
    pub(crate) fn set_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        // SAFETY: the lock of drains is held.
        unsafe { self.set_limit_locked(class, limit()) };
    }
    /// As `set_limit`, unless the class is closed.
    pub(crate) fn change_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        let closed = self.is_closed(class);
        planted!("raising the limit reopens a retired class" => let closed = false);
        if !closed {
            // SAFETY: the lock of drains is held.
            unsafe { self.set_limit_locked(class, limit()) };
        }
    }
    /// # Safety
    /// The lock of drains is held.
    unsafe fn set_limit_locked(&self, class: Class, limit: u16) {
        let number = &self.numbers[class.index as usize];
        number.open.set(limit.into());
        // SAFETY: the lock of drains is held.
        if number.drains.with(|p| unsafe { *p }) == 0 {
            // Relaxed: written and depended on under the lock of drains; elsewhere it is a hint.
            number.limit.store(limit.into(), Relaxed);
        }
        // Open stacks stay open until they are drained.
        if limit > 0 {
            let open = self.used(0..self.cpus.count()).filter(|region| region.is_open(class));
            open.for_each(|region| region.open(class, limit, number.quiet(limit)));
        }
    }
    /// Returns `true` if the class is closed for good, and not only during a drain.
    fn is_closed(&self, class: Class) -> bool {
        self.numbers[class.index as usize].open.get() == 0
    }
    /// Number of places that its stacks may use; exact if the caller holds the lock of drains, otherwise a
    /// hint.
    #[inline]
    pub(crate) fn limit(&self, class: Class) -> &AtomicU32 {
        &self.numbers[class.index as usize].limit
    }

    /// The limit without drains, the current limit, the number of drains, and whether rounds wait to be given
    /// away.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn limits_of(&self, class: Class) -> (u64, u32, u32, bool) {
        let _one_at_a_time = self.drains.lock();
        let number = &self.numbers[class.index as usize];
        // SAFETY: the lock of drains is held.
        let (drains, waiting) = unsafe { (number.drains.with(|p| *p), number.waiting.with(|p| *p)) };
        (number.open.get(), number.limit.load(Relaxed), drains, waiting > 0)
    }

    /// Returns an unused number. Rounds on its stacks are forgotten.
    pub(crate) fn retire(&self, class: Class) {
        self.numbers[class.index as usize].swept.set(0);
        let all = 0..self.cpus.count();
        planted!("a class number is freed after draining one CPU" => let all = 0..1);
        {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: the lock of drains is held. Rounds that a sweep has taken are forgotten, too.
            unsafe {
                self.set_limit_locked(class, 0);
                planted!("a freed class number is not closed" => self.set_limit_locked(class, 1));
                if self.claim(class) > 0 {
                    self.reopen(class);
                }
            }
            let wanted = |region: Region<'_>| region.is_open(class) || region.head(class) & LEN > 0;
            let mut owned = |region: Region<'_>| region.take(class, 0);
            // Without a fence an operation may still use the number: then it gets no other owner.
            if !self.own_regions(all.clone(), wanted, &mut owned) {
                return;
            }
            // No operation writes to a stack that is closed for good.
            self.used(all).for_each(|region| region.reset(class));
        }
        let mut making = self.making.lock();
        let number = &self.numbers[class.index as usize];
        let order = number.order.get() as usize;
        // SAFETY: the lock of making is held.
        number.next.with_mut(|p| unsafe { *p = making.free[order] });
        making.free[order] = class.index;
        making.returned += 1;
        if making.returned == RETURNED {
            making.returned = 0;
            drop(making);
            self.decommit_idle();
        }
    }

    /// Opens the class's stack on the CPU, and commits the CPU's region up to the end of `places` places of
    /// it. Returns `true` if it changed anything: not if the stack is open already, if memory is refused, or
    /// if the class is closed or being drained.
    ///
    /// Cost: the lock of drains, without waiting for it, at the first miss of a CPU in a class and after each
    /// drain of the class.
    #[cold]
    pub(crate) fn open(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        if region.is_open(class) {
            return self.commit_places(op, cpu, class, places);
        }
        // Another thread may hold it for long: a fence.
        let one_at_a_time = self.drains.try_lock();
        let beside_a_drain = one_at_a_time.is_none();
        planted!("a stack is opened during a drain" => let beside_a_drain = false);
        if beside_a_drain {
            return false;
        }
        let number = &self.numbers[class.index as usize];
        // Relaxed: the lock of drains is held.
        let limit = number.limit.load(Relaxed);
        planted!("a drained stack is opened before its rounds are flushed" => let limit = number.open.get() as u32);
        // The committed part may suffice for some places.
        let more = self.commit_places(op, cpu, class, places);
        if limit == 0 || region.committed() < class.end(0) || region.is_open(class) {
            return more;
        }
        region.open(class, limit as u16, number.quiet(limit as u16));
        self.note_backed(region, class);
        true
    }

    /// Makes the region of `cpu` writable up to the end of `places` places of the class. Returns `false` if
    /// memory is refused or the CPU has no region; otherwise whether it changed anything.
    pub(crate) fn commit_places(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        let end = class.end(places);
        if region.committed() >= end {
            return false;
        }
        tell!(op: Step::RegionCommitted { cpu });
        let _making = self.making.lock();
        let has = region.committed();
        if has >= end {
            return true;
        }
        // Doubles the committed part if memory allows it: a program that comes to use all its classes commits
        // a few times.
        [end.max(2 * has), end].into_iter().any(|goal| {
            let goal = goal.next_multiple_of(STEP).min(self.region);
            let granted = self.grant(op, cpu, has..goal);
            if granted {
                region.set_committed(goal);
            }
            granted
        })
    }
}

impl<M: Memory> Fork for Table<M> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Drains => visit(&self.drains),
            Rank::Making => visit(&self.making),
            _ => {}
        }
    }
    unsafe fn forget_other_threads(&self) {
        for region in self.used(0..self.cpus.count()) {
            planted!("claims of other threads survive a fork" => continue);
            // Relaxed: the child has one thread.
            region.claim().store(0, Relaxed);
        }
        // Rounds that drains of other threads had taken and not begun to give away are still on their stacks,
        // and go back to them.
        for (class, number) in self.all() {
            // Rounds that this thread's own drains give away stay theirs: the stacks are closed until those
            // drains end.
            let own = Giving::own(self.address(), class);
            // SAFETY: the child has one thread.
            let drains = number.drains.with_mut(|p| unsafe { p.replace(own.clone().count() as u32) });
            // SAFETY: the child has one thread.
            number.waiting.with_mut(|p| unsafe { *p = 0 });
            planted!("drains of other threads survive a fork" => continue);
            if drains > 0 {
                for region in self.used(0..self.cpus.count()) {
                    planted!("a forked child loses drained rounds" => region.forget_taken(class));
                    if own.clone().all(|number| region.taken_by(class, number) == 0) {
                        region.untake(class);
                    }
                }
                if own.count() == 0 {
                    // Relaxed: the child has one thread.
                    number.limit.store(number.open.get() as u32, Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
