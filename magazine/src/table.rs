//! One table a CPU: where the stacks of all classes lie, and how somebody else takes them away.
//!
//! ```text
//!  words: spare, spare | CPU 0 | CPU 1 | ...                 one for every number that the kernel may give; three times
//!                          │       └──> region of CPU 1
//!                          └──> region of CPU 0
//!  the empty region: never committed, all zero: every operation misses there
//! ```
//!
//! An operation finds the region of its CPU through that CPU's word. A **drain** puts the empty region in the word's place,
//! waits until no operation that began before still runs (the *fence*), and then has the region to itself. It closes the
//! stacks that it came for (their rounds stay where they lie and are its own now), puts the word back, and only then
//! empties what it has closed. So a CPU is without its region for as long as it takes to write a few words, whatever lies
//! on the stacks; and one fence serves all CPUs and all classes that a drain wants.
//!
//! The words are there three times: inlined paths read a set of their own, and frees by address another one. So these alone can be
//! closed ([`Table::close_inlined`]): then they miss whatever lies on the stacks, while the paths behind a miss use the same stacks as
//! ever.
//!
//! ## Rules
//!
//! 1. Only operations of its CPU, and a drain that has taken its word away and fenced, write to a region. What operations never
//!    write, limits and notes, is written under the lock of drains; and so is the head of a stack that is closed.
//! 2. The empty region is never written: what is not committed refuses every push, and widening, too.
//! 3. A word is only changed under the lock of drains, and put back before any other lock is asked for.
//! 4. A class's stack on a CPU is opened by the first miss there, under the lock of drains; and not while a drain is giving
//!    away what it took of the class. A drain closes it again. So a drain knows which CPUs can use a class, and asks nothing
//!    of the others.
//! 5. A number is given to another owner only when its stacks are closed on all CPUs, for good.
//! 6. What was taken is of the drain whose number it bears. While that has not begun to give it away, another drain of the
//!    class may take it over, under the lock of drains.
//! 7. A page of stacks goes back to the system while all stacks on it are closed, by rule 4 or for good, and no drain has
//!    rounds there.
//!
//! ## Many classes at once
//!
//! A [sweep](Table::sweep) is a drain of all classes that [take part](crate::Layer::join_sweeps), whoever they are of: one fence
//! for all of them. What it takes waits where it lies until each layer [collects](crate::Layer::reap_swept) its own. A layer
//! that drains its stacks by itself meanwhile takes that over, so nothing waits for a layer that was forgotten.
//!
//! A table is of one [mechanism](crate::Mechanism). Under the claimed slot a claim *is* the region: a drain claims it, and
//! leaves the word alone.
//!
//! ## Addresses
//!
//! Each CPU's region is at most [`REGION`] bytes of addresses, and readable zeros up to the CPU's first miss; so an idle
//! CPU costs nothing. It is committed from its start upwards as classes are used there. The rooms of classes are powers
//! of two and never move; those of less than a page share pages with their like. A number that is given back keeps its room
//! for the next class of that size. [`Table::decommit_idle`] gives back the pages of stacks that serve nothing.
//!
//! Behind the regions lie the magazines of all depots, committed as they are first used.

mod drain;
mod giving;
mod idle_pages;
// A checker has cells.
#[cfg_attr(any(loom, shuttle), path = "table/cells.rs")]
mod layout;

use crate::cpu::Cpus;
use crate::cpu::regions::{SPARE, Words};
use crate::depot::Blocks;
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

/// Bytes of addresses that the regions of all CPUs have together where they are memory (the heap's), about. A simulator in a
/// page copies its memory for each of its checkpoints.
const ON_HEAP: usize = if cfg!(target_family = "wasm") { 1 << 20 } else { 64 << 20 };
/// A region is committed in steps of this many bytes.
const STEP: usize = 128 << 10;
const WORD: usize = size_of::<*mut u8>();
const LINE: usize = 64;

/// What a table knows of a class.
#[derive(Debug)]
struct Number {
    /// Places that its stack may use on a CPU where it is opened; 0 if it is closed for good, or a drain is at work.
    limit: AtomicU32,
    /// The limit when no drain is at work.
    open: Counter,
    /// Rounds of a magazine: a full stack gives one away.
    magazine: Counter,
    /// The group of sweeps that take from it; 0 is none.
    swept: Counter,
    /// Drains that are at work; the lock of drains protects it,
    drains: UnsafeCell<u32>,
    /// and the number of the drain whose rounds wait for somebody to give them away; 0 is none.
    waiting: UnsafeCell<u64>,
    /// Where its stack begins in a region, in bytes, and how large its room is, as a power of two of lines. Set once.
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
    /// The pages that its room lies on; none if it has no room yet.
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
    /// Numbers below have a room.
    numbers: u32,
    /// Bytes of a region that rooms take up.
    used: usize,
    /// By order, where the next room of less than a page begins; at a page it is another one.
    parts: [usize; PARTS],
    /// By order, the first number without an owner; 0 is none.
    free: [u32; 16],
    /// Numbers returned since idle stacks were last decommitted.
    returned: u32,
    /// Magazines of depots that nobody uses.
    blocks: Blocks,
    /// Bytes that such were made of, and bytes that are committed for them.
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
    done: Counter,
    refused: Counter,
    /// In nanoseconds.
    longest_away: Counter,
    /// Which [`Words`] are closed, as 1; the lock of drains protects it.
    closed: [Counter; 3],
    tracepoints: Arc<Tracepoints>,
    layout: Layout,
}

// SAFETY: what it points to is its memory's, whose owner may be any thread; regions are atomics, and cells whose access the
// rules of the module serialise.
unsafe impl<M: Memory> Send for Table<M> {}
// SAFETY: as above.
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

impl<M: Memory> Table<M> {
    /// Bytes of addresses for the words, for each CPU a region of `region` bytes, and as much for the depots.
    #[doc(hidden)]
    pub fn footprint(cpus: &Cpus, region: usize) -> usize {
        Self::front(cpus) + Self::stride(region) * (cpus.count() as usize + 2)
    }
    /// Of these, bytes from the start that may be committed at once: all but the empty region and what is behind it.
    #[doc(hidden)]
    pub fn writable(cpus: &Cpus, region: usize) -> usize {
        Self::front(cpus) + Self::stride(region) * cpus.count() as usize
    }
    /// What a region has where memory is addresses; `on_heap` where it is memory.
    #[doc(hidden)]
    pub fn region_bytes(cpus: &Cpus, on_heap: bool) -> usize {
        if MODEL {
            // Cells that a checker makes anew for every execution: a line of them for each class.
            return CLASSES as usize * LINE;
        }
        if on_heap { (ON_HEAP / cpus.count() as usize).clamp(128 << 10, REGION) } else { REGION }
    }
    const fn stride(region: usize) -> usize {
        let align = if MODEL { LINE } else { ALIGN };
        region.next_multiple_of(align)
    }
    /// Bytes of a set of words, spare ones included.
    fn word_bytes(cpus: &Cpus) -> usize {
        (SPARE + cpus.slots() as usize) * WORD
    }
    /// Bytes in front of the first region.
    fn front(cpus: &Cpus) -> usize {
        (3 * Self::word_bytes(cpus)).next_multiple_of(crate::memory::ALIGN)
    }

    /// A table without a class.
    ///
    /// # Errors
    /// When `memory` cannot hold a region of `region` bytes for each CPU, or the words could not be committed.
    pub fn new(cpus: Cpus, region: usize, memory: M) -> Result<Self, TooSmall> {
        Self::observed(cpus, region, memory, Arc::new(Tracepoints::new(cpus)))
    }
    /// The same, whose layers show their operations to those who observe `tracepoints`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(hidden)]
    pub fn observed(
        cpus: Cpus,
        region: usize,
        memory: M,
        tracepoints: Arc<Tracepoints>,
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
    /// The CPUs that it was made for.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }
    /// Who observes its layers.
    #[doc(hidden)]
    pub fn tracepoints(&self) -> &Arc<Tracepoints> {
        &self.tracepoints
    }

    // ---- words and regions ----

    /// The region of `cpu`, wherever its word leads; `None` if that CPU has none.
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
    /// A drain's first step: all words of `cpu` lead to the empty region.
    fn take_away(&self, cpu: u32) {
        for words in Words::ALL {
            planted!("a drain forgets the words of inlined frees" => if words == Words::InlinedFrees {
                continue;
            });
            self.lead_away(words, cpu);
        }
        tell!(self => "takes the region of CPU {cpu} away");
    }
    /// A drain's last step: those that are not closed lead to the region again.
    fn put_back(&self, cpu: u32) {
        let open = Words::ALL.into_iter().filter(|words| self.closed[*words as usize].get() == 0);
        open.for_each(|words| self.lead_back(words, cpu));
        tell!(self => "puts the region of CPU {cpu} back");
    }

    // ---- classes ----

    /// A number for a class whose stack has up to `reach` places; `None` if there is none left, or no room.
    pub(crate) fn class(&self, reach: u16) -> Option<Class> {
        let (bytes, colours) = Self::room(reach);
        let order = (bytes / LINE).ilog2() as u8;
        let mut making = self.making.lock();
        let kept = making.free[usize::from(order)];
        planted!("a number is looked at and then taken" => {
            drop(making);
            making = self.making.lock();
        });
        let index = if kept > 0 {
            // SAFETY: the lock is held.
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
            // Callers write the beginnings of lines. A load that follows a store to the same place of another page waits, so
            // no head or cap lies there.
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

    /// A full stack of the class gives `rounds` rounds away. Set once, before the first push.
    pub(crate) fn set_magazine(&self, class: Class, rounds: u16) {
        self.numbers[class.index as usize].magazine.set(rounds.into());
    }

    /// Bytes of the room for a stack of so many places, a power of two of lines, and how many of its first bytes it may begin
    /// in. Stacks that began at the same place of different pages would fall on the same few sets of a processor's cache,
    /// so those of a page and more begin at different ones; and so that one magazine takes one page.
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

    /// How many places the class's stacks may use from now on; 0 closes it for good. Asked under the lock, so that the last one wins who
    /// changed what it says.
    ///
    /// What lies beyond stays until it is used, or a drain takes it.
    pub(crate) fn set_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        // SAFETY: the lock of drains is held.
        unsafe { self.set_limit_locked(class, limit()) };
    }
    /// The same, unless it is closed.
    pub(crate) fn change_limit(&self, class: Class, limit: impl FnOnce() -> u16) {
        let _one_at_a_time = self.drains.lock();
        let closed = self.is_closed(class);
        planted!("a class that is closed for good is opened by its limit" => let closed = false);
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
            // Relaxed: under the lock of drains; elsewhere it is a hint.
            number.limit.store(limit.into(), Relaxed);
        }
        // Stacks that are open stay so until they are drained.
        if limit > 0 {
            let open = self.used(0..self.cpus.count()).filter(|region| region.is_open(class));
            open.for_each(|region| region.open(class, limit, number.quiet(limit)));
        }
    }
    /// Whether the class is closed for good, and not for as long as a drain lasts.
    fn is_closed(&self, class: Class) -> bool {
        self.numbers[class.index as usize].open.get() == 0
    }
    /// How many places its stacks may use; a hint, but for who holds the lock of drains.
    #[inline]
    pub(crate) fn limit(&self, class: Class) -> &AtomicU32 {
        &self.numbers[class.index as usize].limit
    }

    /// The limit when no drain is at work, the limit now, how many drains there are, and whether rounds wait to be given away.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn limits_of(&self, class: Class) -> (u64, u32, u32, bool) {
        let _one_at_a_time = self.drains.lock();
        let number = &self.numbers[class.index as usize];
        // SAFETY: the lock of drains is held.
        let (drains, waiting) = unsafe { (number.drains.with(|p| *p), number.waiting.with(|p| *p)) };
        (number.open.get(), number.limit.load(Relaxed), drains, waiting > 0)
    }

    /// Gives a number back, which nobody uses any more. What lies on its stacks is forgotten.
    pub(crate) fn retire(&self, class: Class) {
        self.numbers[class.index as usize].swept.set(0);
        let all = 0..self.cpus.count();
        planted!("a number is given back when one CPU is drained" => let all = 0..1);
        {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: the lock of drains is held. What a sweep has taken is forgotten, too.
            unsafe {
                self.set_limit_locked(class, 0);
                planted!("a number that is given back stays open" => self.set_limit_locked(class, 1));
                if self.claim(class) > 0 {
                    self.reopen(class);
                }
            }
            let wanted = |region: Region<'_>| region.is_open(class) || region.head(class) & LEN > 0;
            let mut owned = |region: Region<'_>| region.take(class, 0);
            // Without a fence somebody may still use the number: then nobody else gets it.
            if !self.own_regions(all.clone(), wanted, &mut owned) {
                return;
            }
            // Nobody writes to what is closed for good.
            self.used(all).for_each(|region| region.reset(class));
        }
        let mut making = self.making.lock();
        let number = &self.numbers[class.index as usize];
        let order = number.order.get() as usize;
        // SAFETY: as above.
        number.next.with_mut(|p| unsafe { *p = making.free[order] });
        making.free[order] = class.index;
        making.returned += 1;
        if making.returned == RETURNED {
            making.returned = 0;
            drop(making);
            self.decommit_idle();
        }
    }

    /// Lets the CPU use the class's stack, and commits its region up to the end of `places` places of it. Whether anything is
    /// different now: not if that is so already, and not if memory is refused, the class is closed or a drain is at work.
    ///
    /// Cost: at the first miss of a CPU in a class, and after a drain of it, the lock of drains; no wait for it.
    #[cold]
    pub(crate) fn open(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        if region.is_open(class) {
            return self.commit(op, cpu, class, places);
        }
        // Who holds it may be long: a fence.
        let one_at_a_time = self.drains.try_lock();
        let beside_a_drain = one_at_a_time.is_none();
        planted!("a stack is opened beside a drain" => let beside_a_drain = false);
        if beside_a_drain {
            return false;
        }
        let number = &self.numbers[class.index as usize];
        // Relaxed: the lock is held.
        let limit = number.limit.load(Relaxed);
        planted!("a drained stack is opened at once" => let limit = number.open.get() as u32);
        // What is committed may do for some places.
        let more = self.commit(op, cpu, class, places);
        if limit == 0 || region.committed() < class.end(0) || region.is_open(class) {
            return more;
        }
        region.open(class, limit as u16, number.quiet(limit as u16));
        self.note_backed(region, class);
        true
    }

    /// Lets the region of `cpu` be written up to the end of `places` places of the class. `false` if that cannot be had, or
    /// the CPU has none; else whether anything is different now.
    pub(crate) fn commit(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
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
        // As much again as there is, if that can be had: a program that comes to use all its classes asks a few times.
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
            planted!("claims outlive their threads" => continue);
            // Relaxed: there is one thread.
            region.claim().store(0, Relaxed);
        }
        // What drains of other threads had taken, and not begun to give away, lies where it lay: so it goes on doing so.
        for (class, number) in self.all() {
            // What this thread's own drains give away stays theirs: the stacks are closed until they are done.
            let own = Giving::own(self.address(), class);
            // SAFETY: there is one thread.
            let drains = number.drains.with_mut(|p| unsafe { p.replace(own.clone().count() as u32) });
            // SAFETY: as above.
            number.waiting.with_mut(|p| unsafe { *p = 0 });
            planted!("drains outlive their threads" => continue);
            if drains > 0 {
                for region in self.used(0..self.cpus.count()) {
                    planted!("a child loses what drains had taken" => region.forget_taken(class));
                    if own.clone().all(|number| region.taken_by(class, number) == 0) {
                        region.untake(class);
                    }
                }
                if own.count() == 0 {
                    // Relaxed: as above.
                    number.limit.store(number.open.get() as u32, Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
