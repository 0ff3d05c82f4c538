//! A table holds the per-CPU stacks of all classes. Each CPU has a *region*, and a per-CPU pointer (the *word*) leads
//! to the region.
//!
//! ```text
//!  words: spare, spare | CPU 0 | CPU 1 | ...                 one for every number that the kernel may give; three times
//!                          │       └──> region of CPU 1
//!                          └──> region of CPU 0
//!  the empty region: never committed, all zero: every operation misses there
//! ```
//!
//! *Fast path.* An operation loads its CPU's word, and pushes or pops in the CPU's region. The operation commits with
//! one store to the head of its class.
//!
//! *Drain.* A drain must read another CPU's stacks. A drain
//!
//! 1. points the CPU's word to the empty region;
//! 2. issues the *fence*, after which no earlier operation is still running, so that the drain owns the region;
//! 3. closes the selected stacks, whose objects stay in place and now belong to the drain;
//! 4. restores the CPU's word;
//! 5. flushes the objects of the closed stacks.
//!
//! The drained CPU misses only during steps 1 to 4 of the drain. Steps 1 to 4 of a drain take a few stores
//! per class, whatever the number of objects. One fence serves all CPUs and all classes of a drain.
//!
//! *Three sets of words.* Inlined paths read a separate set of words, and inlined frees by address read a
//! third set. [`Table::close_inlined`] closes the inlined paths alone. Closed paths always miss, and the slow
//! paths continue to use the stacks.
//!
//! ## Rules
//!
//! 1. Only two kinds of code write to a region: operations of its CPU, and a drain that has redirected the
//!    CPU's word and then fenced. Operations never write limits and notes. To write a limit, a note or the
//!    head of a closed stack, a thread must have the lock of drains.
//! 2. No thread writes to the empty region: an uncommitted region refuses every push and every growth of a
//!    stack.
//! 3. A word changes only under the lock of drains, and is restored before any other lock is taken.
//! 4. A CPU's first miss in a class opens the class's stack on the CPU, under the lock of drains. The stack
//!    stays closed while a drain is flushing objects of the class. A drain closes the stack again. A drain
//!    knows which CPUs can use a class, and skips the other CPUs.
//! 5. A class number gets another owner only when its stacks are permanently closed on all CPUs.
//! 6. The objects of a taken stack belong to the drain whose number the stack records. Until a drain
//!    begins to flush its objects, another drain of the class may take over the objects, under the lock of
//!    drains.
//! 7. A page of stacks is decommitted only while all its stacks are closed, and no drain has objects on the
//!    page.
//!
//! ## Many classes in one drain
//!
//! A [sweep](Table::sweep) is a drain of all classes that [take part](crate::Layer::join_sweeps), in any
//! layer, with a single fence. The objects that a sweep takes stay in place until each layer
//! [collects](crate::Layer::reap_swept) its objects. A layer that drains its stacks earlier takes over
//! objects that a sweep took, so no layer waits for another layer.
//!
//! A table uses one [mechanism](crate::Mechanism). With the claimed slot, a drain claims the region instead of changing
//! the word.
//!
//! ## Addresses
//!
//! Each CPU's region has at most [`REGION`] bytes of addresses; until the CPU's first miss, these bytes read
//! as zero. An idle CPU costs no memory. A region is committed from its start upwards as the CPU uses
//! classes. The space of a class in each region (its *room*) has a power-of-two size and never moves. Rooms
//! smaller than a page share pages with rooms of the same size. A returned class number keeps its room for
//! the next class of that size. [`Table::decommit_idle`] decommits the pages of idle stacks.
//!
//! The magazines of all depots follow the regions, and are committed on first use.

mod drain;
mod giving;
mod idle_pages;
// Under a checker, the table consists of separate cells and atomics.
#[cfg_attr(any(loom, shuttle), path = "table/cells.rs")]
mod layout;

use crate::cpu::Cpus;
use crate::cpu::regions::{SPARE_POINTERS, Words};
use crate::depot::{Blocks, DepotBudget};
use crate::fork::Fork;
use crate::magazine::MAX_CAPACITY;
use crate::memory::{ALIGN, Memory};
pub use crate::region::REGION;
use crate::region::{CLASSES, Class, LEN_MASK, NULL, PAGE, ROUND, Region, SEEN_OFFSET, STACKS};
use crate::sync::Ordering::Relaxed;
use crate::sync::fork::{ForkLock, ForkMutex};
use crate::sync::{AtomicU32, Counter, MODEL, Rank, UnsafeCell, tell};
use crate::tracepoints::{Operation, Step, Tracepoints};
use core::ops::Range;
pub(crate) use drain::DrainedRounds;
#[doc(hidden)]
pub use drain::{DrainScope, Drains, SweepGroup};
use giving::ActiveDrain;
use layout::Layout;
use std::sync::Arc;

/// Approximate size of all CPUs' regions together, in bytes, if the regions are heap memory. A simulator in a web page
/// copies its memory for each checkpoint.
const HEAP_REGIONS_BYTES: usize = if cfg!(target_family = "wasm") { 1 << 20 } else { 64 << 20 };
/// Granularity of commits of a region, in bytes.
const COMMIT_STEP: usize = 128 << 10;
const WORD: usize = size_of::<*mut u8>();
const LINE: usize = 64;

#[derive(Debug)]
struct Number {
    /// Number of usable places on a CPU that opens the stack; 0 if the class is closed permanently, or a drain is
    /// running.
    limit: AtomicU32,
    /// The limit while no drain is running.
    open: Counter,
    /// Number of objects that a full stack passes to the depot: one full magazine.
    magazine: Counter,
    /// Number of the sweep group that drains this class; 0 for no group.
    swept: Counter,
    /// Number of running drains of the class. The lock of drains protects the cell.
    drains: UnsafeCell<u32>,
    /// Number of the drain whose taken objects wait to be flushed; 0 if no objects wait. The lock of drains
    /// protects the cell.
    waiting: UnsafeCell<u64>,
    /// Byte offset of the class's stack in a region, and the size of its room as a power of two of cache lines. The
    /// offset is set once, when the class gets its room.
    stack: Counter,
    order: Counter,
    /// The next class number of this order that has no owner. The lock `making` protects the cell.
    next: UnsafeCell<u32>,
}

impl Number {
    /// Size of the class's room in bytes.
    fn room(&self) -> usize {
        LINE << self.order.get()
    }
    /// Returns [`quiet`](crate::region) of a stack of `limit` places.
    fn quiet(&self, limit: u16) -> u16 {
        limit.saturating_sub(self.magazine.get() as u16)
    }
    /// The pages of the class's room; empty if the class has no room yet.
    fn pages(&self) -> Range<usize> {
        match self.stack.get() as usize / PAGE {
            0 if !MODEL => 0..0,
            first => first..first + self.room().div_ceil(PAGE),
        }
    }
}

/// The class numbers and their rooms.
#[derive(Debug)]
struct ClassRooms {
    /// The lowest class number without a room; all smaller numbers have a room.
    numbers: u32,
    /// Bytes of a region that rooms take up.
    used: usize,
    /// For each order, the start of the next room that is smaller than a page. If the start is at a page
    /// boundary, the next room needs a new page.
    parts: [usize; PARTS],
    /// For each order, the first class number without an owner, or 0.
    free: [u32; 16],
    /// Number of class numbers returned since the last decommit of idle stacks.
    returned: u32,
    /// Unused magazines of depots.
    blocks: Blocks,
    /// Bytes used for depot magazines, and bytes committed for them.
    cut: [usize; 2],
}
/// Size of a stack of one magazine, in bytes, rounded up to cache lines.
const MAGAZINE: usize = ((MAX_CAPACITY as usize + 1) * ROUND).next_multiple_of(LINE);
/// Number of returned class numbers after which idle stacks are decommitted. Decommitting idle stacks checks
/// every class number.
const RETURNED: u32 = 64;
/// Number of room sizes below a page.
const PARTS: usize = (PAGE / LINE).ilog2() as usize;

/// The stacks of all classes on all CPUs. See the [module](self).
pub struct Table<M> {
    cpus: Cpus,
    memory: M,
    /// Bytes from one region to the next.
    region: usize,
    numbers: Box<[Number]>,
    drains: ForkMutex<()>,
    making: ForkMutex<ClassRooms>,
    pub(crate) depots: Arc<DepotBudget>,
    done: Counter,
    refused: Counter,
    /// Longest time for which a drain kept a CPU from its region, in nanoseconds.
    longest_away: Counter,
    /// One number for each kind of [`Words`]: 1 if the words are closed, else 0. The lock of drains protects
    /// the field.
    closed: [Counter; 3],
    tracepoints: Arc<Tracepoints>,
    layout: Layout,
}

// SAFETY: the table points into its memory, which any thread may own. Regions consist of atomics, and of
// cells whose accesses the module's rules serialise.
unsafe impl<M: Memory> Send for Table<M> {}
// SAFETY: regions consist of atomics, and of cells whose accesses the module's rules serialise.
unsafe impl<M: Memory> Sync for Table<M> {}

impl<M> core::fmt::Debug for Table<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table")
            .field("cpus", &self.cpus)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// Error: the memory given to [`Table::new`] is too small for the table, or could not be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTableMemory;

impl core::fmt::Display for BadTableMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory for the magazines is too small, unaligned or could not be committed")
    }
}
impl core::error::Error for BadTableMemory {}

/// Size of a set of words in bytes, including the spare words.
fn word_bytes(cpus: &Cpus) -> usize {
    (SPARE_POINTERS + cpus.word_count() as usize) * WORD
}
/// Number of bytes in front of the first region.
fn header_bytes(cpus: &Cpus) -> usize {
    (3 * word_bytes(cpus)).next_multiple_of(ALIGN)
}

impl<M: Memory> Table<M> {
    const fn stride(region: usize) -> usize {
        let align = if MODEL { LINE } else { ALIGN };
        region.next_multiple_of(align)
    }
    /// Creates a table without classes.
    ///
    /// # Errors
    /// Returns an error if `memory` cannot hold a region of `region` bytes for each CPU, or if the words could not be
    /// committed.
    pub fn new(cpus: Cpus, region: usize, memory: M) -> Result<Self, BadTableMemory> {
        let (tracepoints, depots) = (Tracepoints::new(cpus), DepotBudget::of(&cpus));
        Self::observed(cpus, region, memory, Arc::new(tracepoints), Arc::new(depots))
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
    /// The CPUs for which the table was created.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    // ---- words and regions ----

    /// Returns the region of `cpu`, even while its word points elsewhere. Returns `None` if the CPU has no region.
    #[inline]
    pub(crate) fn region(&self, cpu: u32) -> Option<Region<'_>> {
        (cpu < self.cpus.count()).then(|| self.region_at(cpu))
    }
    /// The regions of CPUs that were ever used.
    pub(crate) fn used_regions(&self, cpus: Range<u32>) -> impl Iterator<Item = Region<'_>> {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        cpus.filter_map(|cpu| self.region(cpu)).filter(|region| region.committed() > 0)
    }
    /// The first step of a drain: points all words of `cpu` to the empty region.
    fn detach_region(&self, cpu: u32) {
        for words in Words::ALL {
            self.detach_cpu(words, cpu);
        }
        tell!(self => "detaches the region of CPU {cpu}");
    }
    /// The last step of a drain: points the words that are not closed to the CPU's region.
    fn restore_region(&self, cpu: u32) {
        let open = Words::ALL.into_iter().filter(|words| self.closed[*words as usize].get() == 0);
        open.for_each(|words| self.reattach_cpu(words, cpu));
        tell!(self => "restores the region of CPU {cpu}");
    }

    // ---- classes ----

    /// Allocates a number for a class whose stack has up to `reach` places. Returns `None` if no class number
    /// or no space is left.
    pub(crate) fn class(&self, reach: u16) -> Option<Class> {
        let (bytes, colours) = Self::room(reach);
        let order = (bytes / LINE).ilog2() as u8;
        let mut making = self.making.lock();
        let kept = making.free[usize::from(order)];
        let index = if kept > 0 {
            // SAFETY: this thread holds the lock `making`.
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
            // Callers often write to the start of a cache line. A load that follows a store to the same
            // offset of another page waits for the store. Heads and caps avoid the offsets to which callers
            // often write.
            number.stack.set((start + index as usize * 7 * LINE % colours + SEEN_OFFSET) as u64);
            index
        };
        drop(making);
        let class = self.class_at(index);
        self.set_limit(class, || reach);
        Some(class)
    }

    fn class_at(&self, index: u32) -> Class {
        Class { index, stack: self.numbers[index as usize].stack.get() as u32 }
    }
    /// Returns the classes of all class numbers that have a room.
    fn all(&self) -> impl Iterator<Item = (Class, &Number)> + Clone {
        let numbers = (0..).zip(&*self.numbers).skip(1);
        let numbers_with_room = numbers.filter(|(_, number)| !number.pages().is_empty());
        numbers_with_room.map(|(index, number)| (self.class_at(index), number))
    }

    /// Sets the number of objects that a full stack of the class passes to the depot. `set_magazine` is
    /// called once, before the first push.
    pub(crate) fn set_magazine(&self, class: Class, rounds: u16) {
        self.numbers[class.index as usize].magazine.set(rounds.into());
    }

    /// Returns the size of the room for a stack of `reach` places, a power of two of cache lines. Also
    /// returns the number of bytes at the start of the room in which the stack may begin. Stacks at equal
    /// offsets of different pages would compete for the same sets of the processor's cache. Stacks of a page
    /// or more begin at different offsets.
    fn room(reach: u16) -> (usize, usize) {
        let stack = SEEN_OFFSET + NULL + (usize::from(reach) + 1) * ROUND;
        let mut bytes = stack.next_power_of_two().max(LINE);
        loop {
            let colours = if bytes < ALIGN { LINE } else { (bytes / 4).min(ALIGN - MAGAZINE) };
            if stack + colours - LINE <= bytes {
                return (bytes, colours);
            }
            bytes *= 2;
        }
    }

    /// Sets the number of usable places of the class's stacks. A limit of 0 closes the class permanently.
    /// `set_limit` calls `limit` under the lock, so that the result of the last call remains in effect.
    ///
    /// Objects above the limit stay on a stack until they are used, or a drain takes them.
    pub(crate) fn set_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        // SAFETY: this thread holds the lock of drains.
        unsafe { self.set_limit_locked(class, limit()) };
    }
    /// Sets the limit like `set_limit`, unless the class is closed.
    pub(crate) fn change_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        let closed = self.is_closed(class);
        if !closed {
            // SAFETY: this thread holds the lock of drains.
            unsafe { self.set_limit_locked(class, limit()) };
        }
    }
    /// # Safety
    /// The caller must hold the lock of drains.
    unsafe fn set_limit_locked(&self, class: Class, limit: u16) {
        let number = &self.numbers[class.index as usize];
        number.open.set(limit.into());
        // SAFETY: this thread holds the lock of drains.
        if number.drains.with(|p| unsafe { *p }) == 0 {
            // Relaxed: threads that depend on the limit hold the lock of drains, and other threads use it as
            // a hint.
            number.limit.store(limit.into(), Relaxed);
        }
        // Open stacks stay open until they are drained.
        if limit > 0 {
            let open = self.used_regions(0..self.cpus.count()).filter(|region| region.is_open(class));
            open.for_each(|region| region.open(class, limit, number.quiet(limit)));
        }
    }
    /// Returns `true` if the class is closed permanently, and not only during a drain.
    fn is_closed(&self, class: Class) -> bool {
        self.numbers[class.index as usize].open.get() == 0
    }
    /// The number of usable places of the class's stacks: exact under the lock of drains, otherwise a hint.
    #[inline]
    pub(crate) fn limit(&self, class: Class) -> &AtomicU32 {
        &self.numbers[class.index as usize].limit
    }

    /// Returns the limit that applies without drains, the current limit, the number of running drains, and
    /// whether objects wait to be flushed.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn limits_of(&self, class: Class) -> (u64, u32, u32, bool) {
        let _one_at_a_time = self.drains.lock();
        let number = &self.numbers[class.index as usize];
        // SAFETY: this thread holds the lock of drains.
        let (drains, waiting) = unsafe { (number.drains.with(|p| *p), number.waiting.with(|p| *p)) };
        (number.open.get(), number.limit.load(Relaxed), drains, waiting > 0)
    }

    /// Returns an unused class number to the table. Objects on the stacks of the class are leaked.
    pub(crate) fn retire(&self, class: Class) {
        self.numbers[class.index as usize].swept.set(0);
        let all = 0..self.cpus.count();
        {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: this thread holds the lock of drains. Objects of the class that a sweep has taken are
            // leaked, too.
            unsafe {
                self.set_limit_locked(class, 0);
                if self.claim(class) > 0 {
                    self.reopen(class);
                }
            }
            let wanted = |region: Region<'_>| region.is_open(class) || region.head(class) & LEN_MASK > 0;
            let mut owned = |region: Region<'_>| region.take(class, 0);
            // If the kernel refuses the fence, an operation may still use the class number, so the number
            // gets no other owner.
            if !self.own_regions(all.clone(), wanted, &mut owned) {
                return;
            }
            // No operation writes to a stack that is closed permanently.
            self.used_regions(all).for_each(|region| region.reset(class));
        }
        let mut making = self.making.lock();
        let number = &self.numbers[class.index as usize];
        let order = number.order.get() as usize;
        // SAFETY: this thread holds the lock `making`.
        number.next.with_mut(|p| unsafe { *p = making.free[order] });
        making.free[order] = class.index;
        making.returned += 1;
        if making.returned == RETURNED {
            making.returned = 0;
            drop(making);
            self.decommit_idle();
        }
    }

    /// Opens the class's stack on the CPU, and commits the CPU's region up to the end of the first `places` places.
    /// Returns `true` if the call changed anything. Returns `false` if the stack is already open, if memory is refused,
    /// or if the class is closed or being drained.
    ///
    /// Cost: an attempt to take the lock of drains, at a CPU's first miss in a class and after each drain of the class.
    #[cold]
    pub(crate) fn open(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        if region.is_open(class) {
            return self.commit_places(op, cpu, class, places);
        }
        // Another thread may hold the lock for the duration of a fence.
        let one_at_a_time = self.drains.try_lock();
        let beside_a_drain = one_at_a_time.is_none();
        if beside_a_drain {
            return false;
        }
        let number = &self.numbers[class.index as usize];
        // Relaxed: this thread holds the lock of drains.
        let limit = number.limit.load(Relaxed);
        // The committed part of the region may suffice for some places.
        let more = self.commit_places(op, cpu, class, places);
        if limit == 0 || region.committed() < class.end(0) || region.is_open(class) {
            return more;
        }
        region.open(class, limit as u16, number.quiet(limit as u16));
        self.note_backed(region, class);
        true
    }

    /// Makes the region of `cpu` writable up to the end of the class's first `places` places. Returns `false` if memory
    /// is refused, if the CPU has no region, or if nothing changed.
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
        // Doubles the committed part if memory allows, so that a program that uses all classes commits rarely.
        [end.max(2 * has), end].into_iter().any(|goal| {
            let goal = goal.next_multiple_of(COMMIT_STEP).min(self.region);
            let granted = self.grant(op, cpu, has..goal);
            if granted {
                region.set_committed(goal);
            }
            granted
        })
    }
}

/// Functions for the other crates of this allocator, which may change in any version.
#[doc(hidden)]
impl<M: Memory> Table<M> {
    /// Bytes of address space that a table needs for the words, for a region of `region` bytes per CPU, and
    /// for the depots, which get as many bytes as all regions together.
    pub fn footprint(cpus: &Cpus, region: usize) -> usize {
        header_bytes(cpus) + Self::stride(region) * (cpus.count() as usize + 2)
    }

    /// Number of bytes at the start of the footprint that may be committed immediately: all bytes before the empty
    /// region.
    pub fn writable(cpus: &Cpus, region: usize) -> usize {
        header_bytes(cpus) + Self::stride(region) * cpus.count() as usize
    }

    /// Size of a region in bytes of address space, or of memory if `on_heap` is set.
    pub fn region_bytes(cpus: &Cpus, on_heap: bool) -> usize {
        if MODEL {
            // A checker creates the cells of all classes in every execution, so its regions are small.
            return CLASSES as usize * LINE;
        }
        if on_heap { (HEAP_REGIONS_BYTES / cpus.count() as usize).clamp(128 << 10, REGION) } else { REGION }
    }

    /// Creates a table like [`new`](Self::new), with `tracepoints` for the operations of its layers, and a budget for
    /// their depots.
    ///
    /// # Errors
    /// Fails like [`new`](Self::new).
    pub fn observed(
        cpus: Cpus,
        region: usize,
        memory: M,
        tracepoints: Arc<Tracepoints>,
        depots: Arc<DepotBudget>,
    ) -> Result<Self, BadTableMemory> {
        let region = Self::stride(region);
        if !Self::fits(&cpus, region, &memory) {
            return Err(BadTableMemory);
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
        let making = ClassRooms {
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
            making: ForkMutex::new(Rank::NumbersAndRooms, making),
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

    /// The tracepoints of the table's layers.
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        &self.tracepoints
    }
}

impl<M: Memory> Fork for Table<M> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        match rank {
            Rank::Drains => visit(&self.drains),
            Rank::NumbersAndRooms => visit(&self.making),
            _ => {}
        }
    }
    unsafe fn forget_other_threads(&self) {
        for region in self.used_regions(0..self.cpus.count()) {
            // Relaxed: the child of a fork has one thread.
            region.claim().store(0, Relaxed);
        }
        // Objects that drains of other threads had taken and not begun to flush return to their stacks.
        for (class, number) in self.all() {
            // Objects that drains of this thread are flushing stay with these drains. Stacks of running
            // drains are closed until the drains end.
            let own = ActiveDrain::drains_of_thread(self.address(), class);
            // SAFETY: the child of a fork has one thread.
            let drains = number.drains.with_mut(|p| unsafe { p.replace(own.clone().count() as u32) });
            // SAFETY: the child of a fork has one thread.
            number.waiting.with_mut(|p| unsafe { *p = 0 });
            if drains > 0 {
                for region in self.used_regions(0..self.cpus.count()) {
                    if own.clone().all(|number| region.taken_by(class, number) == 0) {
                        region.return_taken_rounds(class);
                    }
                }
                if own.count() == 0 {
                    // Relaxed: the child of a fork has one thread.
                    number.limit.store(number.open.get() as u32, Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
