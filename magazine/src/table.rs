//! A table contains the per-CPU stacks of all classes. Each CPU has a *region* with its stacks. A per-CPU pointer (the
//! *word*) leads to the region.
//!
//! ```text
//!  words: spare, spare | CPU 0 | CPU 1 | ...                 one for every number that the kernel may give; three times
//!                          │       └──> region of CPU 1
//!                          └──> region of CPU 0
//!  the empty region: never committed, all zero: every operation misses there
//! ```
//!
//! *Fast path.* An operation loads its CPU's pointer, and pushes or pops in the CPU's region. An operation commits with
//! one store to the head of a stack.
//!
//! *Drain.* A drain must read another CPU's stacks. A drain has five steps:
//!
//! 1. The drain points the CPU's pointer to the empty region.
//! 2. The drain issues the *fence* (membarrier), after which no earlier operation is still running in the region, so
//!    that the drain owns the region.
//! 3. The drain closes the selected stacks, whose objects stay in place but now belong to the drain.
//! 4. The drain points the CPU's pointer to the CPU's region again.
//! 5. The drain flushes the objects on the closed stacks.
//!
//! Operations on the drained CPU miss only during steps 1 to 4 of a drain. Steps 1 to 4 of a drain take a few stores
//! per class, for any number of objects. A drain of all CPUs and all classes issues only one fence.
//!
//! *Three sets of per-CPU pointers.* Slow paths read the first set, inlined paths read a second set, and inlined frees
//! by address read a third set. [`Table::close_inlined`] can therefore close only the inlined paths. Closed paths
//! always miss, while slow paths still use the stacks.
//!
//! ## Rules
//!
//! 1. Only two kinds of code write to a region: operations on its CPU, and a drain that has redirected the CPU's
//!    pointer and then issued a fence. Operations never write a stack's limit, or the notes that drains keep in a
//!    region. A thread must hold the drain lock to write a limit, a drain's note, or the head of a closed stack.
//! 2. No thread writes to the empty region: its committed size is 0, so every push and every growth of a stack fails.
//! 3. A thread that redirects a per-CPU pointer holds the drain lock, and restores the pointer before it takes any
//!    other lock.
//! 4. The first miss of a CPU in a class opens the class's stack on the CPU, under the drain lock. The stack cannot be
//!    opened while a drain is flushing objects of the class. A drain closes the stacks that it takes. A drain therefore
//!    knows which CPUs use a class, and skips the others.
//! 5. A class number gets a new owner only after its stacks on all CPUs were closed permanently.
//! 6. The objects on a taken stack belong to the drain whose number is recorded with the stack. As long as the drain
//!    has not begun to flush the objects, another drain of the class may take them over, under the drain lock.
//! 7. A page is decommitted only while all stacks on it are closed, and while no drain owns objects on it.
//!
//! ## Many classes in one drain
//!
//! A [sweep](Table::sweep) is a drain, with a single fence, of all classes that have
//! [joined](crate::Layer::join_sweeps) it, in any layer. The swept objects stay in place until their layer
//! [collects](crate::Layer::reap_swept) them. If a layer drains its stacks before it collects, the drain takes over its
//! swept objects. No layer therefore waits for another layer.
//!
//! All stacks of a table are protected by the same [mechanism](crate::Mechanism). With the claimed mechanism, a drain
//! claims the region instead of redirecting the pointer.
//!
//! ## Addresses
//!
//! The region of a CPU has at most [`REGION`] bytes of address space, which read as zero until the CPU's first miss. A
//! CPU that is never used takes no memory. A region is committed from its start upwards, as its CPU uses more classes.
//! A class has space for its stack in each region (its *room*). The size of a room is a power of two, and a room never
//! moves. A room that is smaller than a page shares its page only with rooms of the same size. A returned class number
//! keeps its room, for the next class that needs a room of the same size. [`Table::decommit_idle`] decommits pages that
//! contain only idle stacks.
//!
//! The memory for depot magazines comes after the regions, and is committed on first use.

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

/// Approximate total size of all regions in bytes, if they are in heap memory. In WebAssembly the size is small,
/// because a simulator copies its whole memory for each checkpoint.
const HEAP_REGIONS_BYTES: usize = if cfg!(target_family = "wasm") { 1 << 20 } else { 64 << 20 };
/// Each commit of a region is rounded up to a multiple of this number of bytes.
const COMMIT_STEP: usize = 128 << 10;
const WORD: usize = size_of::<*mut u8>();
const LINE: usize = 64;

#[derive(Debug)]
struct Number {
    /// The limit that a CPU gets when it opens the class's stack; 0 if the class is closed permanently or is being
    /// drained.
    limit: AtomicU32,
    /// The limit that applies while no drain of the class is running; 0 if the class is closed permanently.
    open: Counter,
    /// Number of objects in a full magazine, which a full stack passes to the depot.
    magazine: Counter,
    /// Number of the group with which this class is swept; 0 if it belongs to no group.
    swept: Counter,
    /// Number of drains of the class that are running. The table's drain lock protects this cell.
    drains: UnsafeCell<u32>,
    /// Number of the sweep whose taken objects wait to be collected; 0 if no objects wait. The table's drain lock
    /// protects this cell.
    waiting: UnsafeCell<u64>,
    /// Byte offset of the class's stack in a region; set once, when the class number gets its room.
    stack: Counter,
    /// Base-2 logarithm of the room's size in cache lines.
    order: Counter,
    /// The next class number in the list of unused numbers with the same room size. The cell is protected by the lock
    /// `making`.
    next: UnsafeCell<u32>,
}

impl Number {
    /// Returns the size of the class's room in bytes.
    fn room(&self) -> usize {
        LINE << self.order.get()
    }
    /// Returns [`quiet`](crate::region) for a stack whose limit is `limit`.
    fn quiet(&self, limit: u16) -> u16 {
        limit.saturating_sub(self.magazine.get() as u16)
    }
    /// Returns the range of region pages that the class's room covers; empty if the class has no room yet.
    fn pages(&self) -> Range<usize> {
        match self.stack.get() as usize / PAGE {
            0 if !MODEL => 0..0,
            first => first..first + self.room().div_ceil(PAGE),
        }
    }
}

/// The allocator of class numbers and of their rooms in a region.
#[derive(Debug)]
struct ClassNumbersAndRooms {
    /// The lowest class number that never had an owner. All smaller numbers have a room.
    numbers: u32,
    /// Number of bytes at the start of a region that are divided into rooms.
    used: usize,
    /// For each room size below a page, the start of the next room. If the start is at a page boundary, the next room
    /// needs a new page.
    parts: [usize; PARTS],
    /// For each room size, the first number in the list of returned class numbers, or 0.
    free: [u32; 16],
    /// Number of class numbers that were returned since the last decommit of idle stacks.
    returned: u32,
    /// Blocks of memory for depot magazines that no depot uses.
    blocks: Blocks,
    /// Number of bytes that were divided into blocks for depot magazines, and number of bytes committed for this
    /// purpose.
    cut: [usize; 2],
}
/// Size in bytes of a stack that holds one magazine, rounded up to cache lines.
const MAGAZINE: usize = ((MAX_CAPACITY as usize + 1) * ROUND).next_multiple_of(LINE);
/// Number of returned class numbers after which the table decommits idle stacks. Idle stacks are decommitted only
/// rarely, because each such pass checks every class number.
const RETURNS_UNTIL_DECOMMIT: u32 = 64;
/// Number of different room sizes below a page.
const PARTS: usize = (PAGE / LINE).ilog2() as usize;

/// A table of all stacks: the stacks of all classes on all CPUs. See the [module](self).
pub struct Table<M> {
    cpus: Cpus,
    memory: M,
    /// Distance in bytes from one region to the next.
    region: usize,
    numbers: Box<[Number]>,
    drains: ForkMutex<()>,
    making: ForkMutex<ClassNumbersAndRooms>,
    pub(crate) depots: Arc<DepotBudget>,
    done: Counter,
    refused: Counter,
    /// Longest time in nanoseconds for which a drain kept a CPU from using its region.
    longest_away: Counter,
    /// For each set of per-CPU pointers (see [`Words`]), 1 if the set is closed, and 0 otherwise. The table's drain
    /// lock protects this field.
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

/// Returns the size in bytes of a set of per-CPU pointers, including the spare pointers.
fn word_bytes(cpus: &Cpus) -> usize {
    (SPARE_POINTERS + cpus.word_count() as usize) * WORD
}
/// Returns the number of bytes in front of the first region.
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
    /// Returns an error if `memory` is too small for one region of `region` bytes per CPU, or if the memory for the
    /// per-CPU pointers could not be committed.
    pub fn new(cpus: Cpus, region: usize, memory: M) -> Result<Self, BadTableMemory> {
        let (tracepoints, depots) = (Tracepoints::new(cpus), DepotBudget::of(&cpus));
        Self::observed(cpus, region, memory, Arc::new(tracepoints), Arc::new(depots))
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
    /// Returns the CPUs for which the table was created.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    // ---- words and regions ----

    /// Returns the region of `cpu`, even while a drain has redirected the CPU's pointer. Returns `None` if the CPU has
    /// no region.
    #[inline]
    pub(crate) fn region(&self, cpu: u32) -> Option<Region<'_>> {
        (cpu < self.cpus.count()).then(|| self.region_at(cpu))
    }
    /// Returns the regions of all CPUs in `cpus` that have ever used a stack.
    pub(crate) fn used_regions(&self, cpus: Range<u32>) -> impl Iterator<Item = Region<'_>> {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        cpus.filter_map(|cpu| self.region(cpu)).filter(|region| region.committed() > 0)
    }
    /// Points all three pointers of `cpu` to the empty region, as the first step of a drain.
    fn detach_region(&self, cpu: u32) {
        for words in Words::ALL {
            self.detach_cpu(words, cpu);
        }
        tell!(self => "detaches the region of CPU {cpu}");
    }
    /// Restores the pointers of `cpu` after a drain, except pointers in closed sets.
    fn restore_region(&self, cpu: u32) {
        let open = Words::ALL.into_iter().filter(|words| self.closed[*words as usize].get() == 0);
        open.for_each(|words| self.reattach_cpu(words, cpu));
        tell!(self => "restores the region of CPU {cpu}");
    }

    // ---- classes ----

    /// Allocates a class number and a room for a class whose stacks hold up to `reach` objects. Returns `None` if no
    /// class number is unused, or if regions have no space for another room.
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
    /// Returns the classes of all class numbers that ever got a room.
    fn all(&self) -> impl Iterator<Item = (Class, &Number)> + Clone {
        let numbers = (0..).zip(&*self.numbers).skip(1);
        let numbers_with_room = numbers.filter(|(_, number)| !number.pages().is_empty());
        numbers_with_room.map(|(index, number)| (self.class_at(index), number))
    }

    /// Sets the number of objects in a magazine of the class. `set_magazine_capacity` must be called once, before the
    /// first push.
    pub(crate) fn set_magazine_capacity(&self, class: Class, rounds: u16) {
        self.numbers[class.index as usize].magazine.set(rounds.into());
    }

    /// Returns the size of the room for a stack of `reach` objects: a power of two, in cache lines. `room` also returns
    /// the number of bytes at the start of the room in which the stack may begin. If all large stacks began at the same
    /// offset in a page, they would compete for the same sets of the processor's cache. Stacks of a page or more
    /// therefore begin at different offsets.
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

    /// Sets the limit of the class's stacks on all CPUs. If the limit is 0, the class is closed permanently. The
    /// function `limit` is called under the drain lock, so that the last call of `set_limit` also stores the last
    /// result.
    ///
    /// If a stack already holds more objects, they stay on it until they are used or drained.
    pub(crate) fn set_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        // SAFETY: this thread holds the lock of drains.
        unsafe { self.set_limit_locked(class, limit()) };
    }
    /// Sets the limit like `set_limit`, unless the class is closed permanently.
    pub(crate) fn change_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        let closed = self.is_closed(class);
        if !closed {
            // SAFETY: this thread holds the lock of drains.
            unsafe { self.set_limit_locked(class, limit()) };
        }
    }
    /// # Safety
    /// The calling thread must hold the table's drain lock.
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
    /// Returns `true` if the class is closed permanently. A drain closes the class only temporarily.
    fn is_closed(&self, class: Class) -> bool {
        self.numbers[class.index as usize].open.get() == 0
    }
    /// Returns the current limit of the class's stacks. The limit is exact if the caller holds the drain lock, and a
    /// hint otherwise.
    #[inline]
    pub(crate) fn limit(&self, class: Class) -> &AtomicU32 {
        &self.numbers[class.index as usize].limit
    }

    /// Returns the limit without drains, the current limit, the number of running drains, and `true` if swept objects
    /// wait to be collected.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn class_limits(&self, class: Class) -> (u64, u32, u32, bool) {
        let _one_at_a_time = self.drains.lock();
        let number = &self.numbers[class.index as usize];
        // SAFETY: this thread holds the lock of drains.
        let (drains, waiting) = unsafe { (number.drains.with(|p| *p), number.waiting.with(|p| *p)) };
        (number.open.get(), number.limit.load(Relaxed), drains, waiting > 0)
    }

    /// Returns the number of an unused class to the table. Objects that are still on stacks of the class are leaked.
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
            if !self.with_region_ownership(all.clone(), wanted, &mut owned) {
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
        if making.returned == RETURNS_UNTIL_DECOMMIT {
            making.returned = 0;
            drop(making);
            self.decommit_idle();
        }
    }

    /// Opens the class's stack on `cpu`, and commits enough of the CPU's region for a stack of `places` objects.
    /// Returns `true` if a retried push may now succeed. Returns `false` if the stack was already open and committed,
    /// if the OS refused memory, or if the class is closed or being drained.
    ///
    /// Cost: one attempt to take the drain lock, at a CPU's first miss in a class and after each drain of the class.
    #[cold]
    pub(crate) fn open(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        if region.is_open(class) {
            return self.commit_stack_places(op, cpu, class, places);
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
        let more = self.commit_stack_places(op, cpu, class, places);
        if limit == 0 || region.committed() < class.end(0) || region.is_open(class) {
            return more;
        }
        region.open(class, limit as u16, number.quiet(limit as u16));
        self.mark_room_backed(region, class);
        true
    }

    /// Commits enough of the region of `cpu` for the class's stack to hold `places` objects. Returns `false` if the OS
    /// refused memory, if the CPU has no region, or if enough of the region was already committed.
    pub(crate) fn commit_stack_places(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
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

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl<M: Memory> Table<M> {
    /// Returns the number of bytes of address space that a table needs: per-CPU pointers, one region of `region` bytes
    /// per CPU, the empty region, and space for depot magazines.
    pub fn footprint(cpus: &Cpus, region: usize) -> usize {
        header_bytes(cpus) + Self::stride(region) * (cpus.count() as usize + 2)
    }

    /// Returns the number of bytes at the start of a table's memory that may be committed in advance: all bytes before
    /// the empty region.
    pub fn writable(cpus: &Cpus, region: usize) -> usize {
        header_bytes(cpus) + Self::stride(region) * cpus.count() as usize
    }

    /// Returns a suitable size for one CPU's region, in bytes. If `on_heap` is set, a region takes memory and not only
    /// address space.
    pub fn region_bytes(cpus: &Cpus, on_heap: bool) -> usize {
        if MODEL {
            // A checker creates the cells of all classes in every execution, so its regions are small.
            return CLASSES as usize * LINE;
        }
        if on_heap { (HEAP_REGIONS_BYTES / cpus.count() as usize).clamp(128 << 10, REGION) } else { REGION }
    }

    /// Creates a table like [`new`](Self::new), but with the given tracepoints for its layers and the given budget for
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
        let making = ClassNumbersAndRooms {
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

    /// Returns the tracepoints of the table's layers.
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
                    if own.clone().all(|number| region.rounds_taken_by(class, number) == 0) {
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
