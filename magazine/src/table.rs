//! One table a CPU: where the stacks of all classes lie, and how somebody else takes them away.
//!
//! ```text
//!  words: spare, spare | CPU 0 | CPU 1 | ...                 one for every number that the kernel may give
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
//! ## Rules
//!
//! 1. Only operations of its CPU, and a drain that has taken its word away and fenced, write to a region.
//! 2. The empty region is never written: what is not committed refuses every push, and widening, too.
//! 3. A word is only changed under the lock of drains, and put back before any other lock is asked for.
//! 4. A stack that is closed stays closed while its class's limit is 0. The limit goes to 0 before the fence, so that
//!    every operation behind it sees that, and comes back when what was taken has been given away.
//! 5. A number is given to another owner only when every region was taken with its limit at 0, for good.
//!
//! A table is of one [mechanism](crate::Mechanism). Under the claimed slot a claim *is* the region: a drain claims it, and
//! leaves the word alone.
//!
//! ## Addresses
//!
//! Each CPU's region is at most [`REGION`] bytes of addresses, and readable zeros up to the CPU's first miss; so an idle
//! CPU costs nothing. It is committed from its start upwards as classes are used there. The rooms of classes are powers
//! of two and never move. A number that is given back keeps its room for the next class of that size.

use crate::cpu::{Cpus, Mechanism, claimed, rseq};
use crate::fork::Fork;
use crate::memory::Memory;
use crate::paths::Operation;
#[cfg(any(loom, shuttle))]
use crate::region::Cells;
use crate::region::{CLASSES, Class, LEN, ROUND, Region, STACKS};
#[cfg(not(any(loom, shuttle)))]
use crate::sync::AtomicPtr;
#[cfg(any(loom, shuttle))]
use crate::sync::AtomicUsize;
#[cfg(any(loom, shuttle))]
use crate::sync::Ordering::Acquire;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::fork::{ForkLock, ForkMutex};
use crate::sync::{AtomicU32, Counter, Rank, UnsafeCell, catch_panic, planted, tell};
use core::ops::Range;
use core::ptr::NonNull;
use std::panic::resume_unwind;

/// Bytes of addresses of a region, at most.
pub const REGION: usize = 4 << 20;
/// Bytes of addresses that the regions of all CPUs have together where they are memory (the heap's), about. A simulator in a
/// page copies its memory for each of its checkpoints.
const ON_HEAP: usize = if cfg!(target_family = "wasm") { 1 << 20 } else { 64 << 20 };
/// Words in front of CPU 0's, of "CPU" -2 and -1, as threads without a registration read.
const SPARE: usize = 2;
/// A region is committed in steps of this many bytes.
const STEP: usize = 64 << 10;
const WORD: usize = size_of::<*mut u8>();
const LINE: usize = 64;
const HEADS_IN_LINE: u32 = if cfg!(any(loom, shuttle)) { u32::MAX } else { 8 };
const PAGE: usize = 4096;

/// What a table knows of a class.
#[derive(Debug)]
struct Number {
    /// Places that its stack may use on any CPU; 0 while it is closed.
    limit: AtomicU32,
    /// The limit when no drain is at work.
    open: Counter,
    /// Drains that are at work; the lock of drains protects it.
    drains: UnsafeCell<u32>,
    /// Where its room begins in a region, in bytes; the lock of making protects the rest,
    stack: UnsafeCell<u32>,
    /// and how large it is, as a power of two of lines.
    order: UnsafeCell<u8>,
    /// The next number without an owner, of the same order.
    next: UnsafeCell<u32>,
}

/// Numbers and rooms.
#[derive(Debug)]
struct Making {
    /// Numbers below have a room.
    numbers: u32,
    /// Bytes of a region that rooms take up.
    used: usize,
    /// By order, the first number without an owner; 0 is none.
    free: [u32; 16],
}

/// The stacks of all classes on all CPUs. See the [module](self).
pub struct Table<M> {
    cpus: Cpus,
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    memory: M,
    /// Bytes from one region to the next.
    region: usize,
    numbers: Box<[Number]>,
    drains: ForkMutex<()>,
    making: ForkMutex<Making>,
    /// Drains that the kernel refused a fence.
    refused: Counter,
    #[cfg(any(loom, shuttle))]
    words: Vec<AtomicUsize>,
    #[cfg(any(loom, shuttle))]
    regions: Vec<Cells>,
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

/// Which stacks a drain takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All.
    All,
    /// Those that have served nothing since the last such drain.
    Idle,
}

impl<M: Memory> Table<M> {
    /// Bytes of addresses for the words and, for each CPU, a region of `region` bytes.
    pub fn footprint(cpus: &Cpus, region: usize) -> usize {
        Self::front(cpus) + Self::stride(region) * (cpus.count() as usize + 1)
    }
    /// What a region has where memory is addresses; `on_heap` where it is memory.
    pub fn region_bytes(cpus: &Cpus, on_heap: bool) -> usize {
        if cfg!(any(loom, shuttle)) {
            // Cells that a checker makes anew for every execution: a line of them for each class.
            return CLASSES as usize * LINE;
        }
        if on_heap { (ON_HEAP / cpus.count() as usize).clamp(128 << 10, REGION) } else { REGION }
    }
    const fn stride(region: usize) -> usize {
        let align = if cfg!(any(loom, shuttle)) { LINE } else { crate::memory::ALIGN };
        region.next_multiple_of(align)
    }
    /// Bytes in front of the first region.
    fn front(cpus: &Cpus) -> usize {
        ((SPARE + cpus.slots() as usize) * WORD).next_multiple_of(crate::memory::ALIGN)
    }

    /// A table without a class.
    ///
    /// # Errors
    /// When `memory` cannot hold a region of `region` bytes for each CPU, or the words could not be committed.
    pub fn new(cpus: Cpus, region: usize, memory: M) -> Result<Self, TooSmall> {
        let front = Self::front(&cpus);
        let region = Self::stride(region);
        #[cfg(not(any(loom, shuttle)))]
        {
            let fits = memory.base().addr().get().is_multiple_of(crate::memory::ALIGN)
                && memory.bytes() >= Self::footprint(&cpus, region)
                && region > STACKS
                && u32::try_from(region).is_ok();
            if !fits || !memory.commit(&Operation::new(), 0..front) {
                return Err(TooSmall);
            }
        }
        let _ = front;
        let number = |_| Number {
            limit: AtomicU32::new(0),
            open: Counter::new(0),
            drains: UnsafeCell::new(0),
            stack: UnsafeCell::new(0),
            order: UnsafeCell::new(0),
            next: UnsafeCell::new(0),
        };
        let table = Self {
            cpus,
            memory,
            region,
            numbers: (0..CLASSES).map(number).collect(),
            drains: ForkMutex::new(Rank::Drains, ()),
            making: ForkMutex::new(Rank::Making, Making { numbers: 1, used: STACKS, free: [0; 16] }),
            refused: Counter::new(0),
            #[cfg(any(loom, shuttle))]
            words: (0..cpus.count() as usize).map(AtomicUsize::new).collect(),
            #[cfg(any(loom, shuttle))]
            regions: (0..=cpus.count())
                .map(|cpu| {
                    let open = cpu == cpus.count() && planted("the empty region has places");
                    Cells::new(cpu, region / ROUND, open.into())
                })
                .collect(),
        };
        #[cfg(not(any(loom, shuttle)))]
        {
            let empty = table.home(cpus.count());
            for slot in 0..SPARE + cpus.slots() as usize {
                let cpu = slot.wrapping_sub(SPARE);
                let region = if cpu < cpus.count() as usize { table.home(cpu as u32) } else { empty };
                // SAFETY: the words were committed, and nobody else knows them yet.
                unsafe {
                    table
                        .memory
                        .base()
                        .cast::<AtomicPtr<u8>>()
                        .add(slot)
                        .write(AtomicPtr::new(region.as_ptr()))
                };
            }
            #[cfg(uslab_control = "capempty")]
            // SAFETY: readable as zero, and on heap memory writable.
            unsafe { Region::at(empty) }.open_all();
        }
        Ok(table)
    }

    /// The CPUs that it was made for.
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    // ---- words and regions ----

    /// Where the word of CPU 0 lies.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn words(&self) -> NonNull<u8> {
        // SAFETY: behind the spare ones, in the same range.
        unsafe { self.memory.base().add(SPARE * WORD) }
    }
    /// Where the spare words lie.
    #[cfg(not(any(loom, shuttle)))]
    #[allow(dead_code, reason = "for restartable sequences, which are not in every build")]
    pub(crate) fn spare_words(&self) -> NonNull<u8> {
        self.memory.base()
    }
    /// Where the region of `cpu` lies; of one more than there are, the empty one.
    #[cfg(not(any(loom, shuttle)))]
    #[inline]
    fn home(&self, cpu: u32) -> NonNull<u8> {
        // SAFETY: `new` checked that the memory holds a region for each CPU and the empty one.
        unsafe { self.memory.base().add(Self::front(&self.cpus) + cpu as usize * self.region) }
    }
    #[cfg(not(any(loom, shuttle)))]
    fn word(&self, cpu: u32) -> &AtomicPtr<u8> {
        debug_assert!(cpu < self.cpus.count());
        // SAFETY: written in `new`, for each CPU below the count.
        unsafe { self.words().cast::<AtomicPtr<u8>>().add(cpu as usize).as_ref() }
    }

    /// The region of `cpu`, wherever its word leads; `None` if that CPU has none.
    #[inline]
    pub(crate) fn region(&self, cpu: u32) -> Option<Region<'_>> {
        if cpu >= self.cpus.count() && !planted("a CPU beyond the table has a region") {
            return None;
        }
        // SAFETY: in the table's memory, which stays while it lives, reads as zero, and is aligned.
        #[cfg(not(any(loom, shuttle)))]
        return Some(unsafe { Region::at(self.home(cpu)) });
        #[cfg(any(loom, shuttle))]
        return Some(Region(&self.regions[cpu as usize]));
    }
    /// The regions of CPUs that were ever used.
    pub(crate) fn used(&self, cpus: Range<u32>) -> impl Iterator<Item = Region<'_>> {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        cpus.filter_map(|cpu| self.region(cpu)).filter(|region| region.committed() > 0)
    }
    /// The region that the word of `cpu` leads to: what an operation reads first.
    #[cfg(any(loom, shuttle))]
    pub(crate) fn current(&self, cpu: u32) -> Option<Region<'_>> {
        let word = self.words.get(cpu as usize)?;
        // Acquire: pairs with the Release in `put_back`. (On the machine an address dependency does it.)
        Some(Region(&self.regions[word.load(Acquire)]))
    }
    /// A drain's first step.
    fn take_away(&self, cpu: u32) {
        // Relaxed: the fence shows it, and until then either region will do.
        #[cfg(not(any(loom, shuttle)))]
        self.word(cpu).store(self.home(self.cpus.count()).as_ptr(), Relaxed);
        #[cfg(any(loom, shuttle))]
        self.words[cpu as usize].store(self.cpus.count() as usize, Relaxed);
        tell!(self => "takes the region of CPU {cpu} away");
    }
    /// Its last.
    fn put_back(&self, cpu: u32) {
        // Release: what a drain did to the region is seen by every operation that finds it again.
        #[cfg(not(any(loom, shuttle)))]
        self.word(cpu).store(self.home(cpu).as_ptr(), Release);
        #[cfg(any(loom, shuttle))]
        self.words[cpu as usize].store(cpu as usize, Release);
        tell!(self => "puts the region of CPU {cpu} back");
    }
    /// Which CPUs' regions are there, as a story shows it.
    #[cfg(loom)]
    fn watched(&self) -> crate::sync::story::Watched {
        let part = |(cpu, word): (usize, &AtomicUsize)| {
            let there = word.peek() as usize == cpu;
            (format!("CPU {cpu} region"), if there { "there" } else { "away" }.to_owned())
        };
        let parts = self.words.iter().enumerate().map(part).collect();
        crate::sync::story::Watched { id: core::ptr::from_ref(self).addr(), parts }
    }

    // ---- classes ----

    /// A number for a class whose stack has up to `reach` places; `None` if there is none left, or no room.
    pub(crate) fn class(&self, reach: u16) -> Option<Class> {
        let (bytes, colours) = Self::room(reach);
        let order = (bytes / LINE).ilog2() as u8;
        let mut making = self.making.lock();
        let kept = making.free[usize::from(order)];
        let index = if kept > 0 {
            // SAFETY: the lock is held.
            making.free[usize::from(order)] = self.numbers[kept as usize].next.with(|p| unsafe { *p });
            kept
        } else {
            // Callers write the beginnings of lines. A load that follows a store to the same place of another page waits, so
            // no head lies there.
            let (index, start) =
                (making.numbers + u32::from(making.numbers.is_multiple_of(HEADS_IN_LINE)), making.used);
            if index >= CLASSES || start + bytes > self.region {
                return None;
            }
            (making.numbers, making.used) = (index + 1, start + bytes);
            let number = &self.numbers[index as usize];
            let colour = index as usize * 5 * LINE % colours;
            // SAFETY: the lock is held.
            unsafe {
                number.stack.with_mut(|p| *p = (start + colour) as u32);
                number.order.with_mut(|p| *p = order);
            }
            index
        };
        // SAFETY: the lock is held.
        let stack = self.numbers[index as usize].stack.with(|p| unsafe { *p });
        drop(making);
        let class = Class { index, stack };
        self.set_limit(class, reach);
        Some(class)
    }

    /// Bytes of the room for a stack of so many places, a power of two of lines, and how many of its first bytes it may begin
    /// in. Stacks that began at the same place of different pages would fall on the same few sets of a processor's cache,
    /// so those of a page and more begin at different ones.
    fn room(reach: u16) -> (usize, usize) {
        let stack = (usize::from(reach) + 1) * ROUND;
        let mut bytes = stack.next_power_of_two().max(LINE);
        loop {
            let colours = if bytes < PAGE { LINE } else { (bytes / 4).min(PAGE) };
            if stack + colours - LINE <= bytes {
                return (bytes, colours);
            }
            bytes *= 2;
        }
    }

    /// How many places the class's stacks may use from now on; 0 closes it for good.
    ///
    /// What lies beyond stays until it is used, or a drain takes it.
    pub(crate) fn set_limit(&self, class: Class, limit: u16) {
        let _one_at_a_time = self.drains.lock();
        // SAFETY: the lock of drains is held.
        unsafe { self.set_limit_locked(class, limit) };
    }
    /// The same, unless it is closed.
    pub(crate) fn change_limit(&self, class: Class, limit: u16) {
        let _one_at_a_time = self.drains.lock();
        if !self.is_closed(class) {
            // SAFETY: the lock of drains is held.
            unsafe { self.set_limit_locked(class, limit) };
        }
    }
    /// # Safety
    /// The lock of drains is held.
    unsafe fn set_limit_locked(&self, class: Class, limit: u16) {
        let number = &self.numbers[class.index as usize];
        number.open.set(limit.into());
        // SAFETY: the lock of drains is held.
        if number.drains.with(|p| unsafe { *p }) == 0 {
            // Release: pairs with the Acquire in `push_batch`. A class that is closed is drained next, whose fence shows it.
            number.limit.store(limit.into(), Release);
        }
    }
    /// Whether the class is closed for good, and not for as long as a drain lasts.
    fn is_closed(&self, class: Class) -> bool {
        self.numbers[class.index as usize].open.get() == 0
    }
    /// Where operations read the class's limit.
    #[inline]
    pub(crate) fn limit(&self, class: Class) -> &AtomicU32 {
        &self.numbers[class.index as usize].limit
    }

    /// Gives a number back, which nobody uses any more. What lies on its stacks is forgotten.
    pub(crate) fn retire(&self, class: Class) {
        self.set_limit(class, if planted("a number that is given back stays open") { 1 } else { 0 });
        let all = 0..self.cpus.count();
        let all = if planted("a number is given back when one CPU is drained") { 0..1 } else { all };
        let owned = |region: Region<'_>| {
            region.take(class, 0);
            region.reset(class);
        };
        // Without a fence somebody may still use the number: then nobody else gets it.
        if !self.with_regions(all, |_| true, owned) {
            return;
        }
        let mut making = self.making.lock();
        let number = &self.numbers[class.index as usize];
        // SAFETY: the lock of making is held.
        let order = usize::from(number.order.with(|p| unsafe { *p }));
        // SAFETY: as above.
        number.next.with_mut(|p| unsafe { *p = making.free[order] });
        making.free[order] = class.index;
    }

    /// Lets the region of `cpu` be written up to the end of `places` places of the class. `false` if that cannot be had, or
    /// the CPU has none; else whether anything is different now.
    #[cold]
    pub(crate) fn commit(&self, op: &Operation, cpu: u32, class: Class, places: u32) -> bool {
        let Some(region) = self.region(cpu) else { return false };
        let end = class.end(places);
        if region.committed() >= end {
            return false;
        }
        tell!(op: Depot, "commits a part of the region of CPU {cpu}");
        let _making = self.making.lock();
        let has = region.committed();
        if has >= end {
            return true;
        }
        let goal = end.next_multiple_of(STEP).min(self.region);
        #[cfg(not(any(loom, shuttle)))]
        {
            let start = self.home(cpu).addr().get() - self.memory.base().addr().get();
            if !self.memory.commit(op, start + has..start + goal) {
                return false;
            }
        }
        region.set_committed(goal);
        true
    }

    // ---- drains ----

    /// For a planted bug.
    #[cfg_attr(not(any(loom, shuttle)), allow(dead_code))]
    pub(crate) fn hold_drains(&self) -> crate::sync::MutexGuard<'_, ()> {
        self.drains.lock()
    }

    /// Runs `owned` on the regions of `cpus`, of those that were used and for which `wanted` says so, with nobody else
    /// there. `false` if the kernel refused the fence: then nothing was done.
    fn with_regions(
        &self,
        cpus: Range<u32>,
        wanted: impl Fn(Region<'_>) -> bool,
        mut owned: impl FnMut(Region<'_>),
    ) -> bool {
        let _one_at_a_time = (!planted("drains without their lock")).then(|| self.drains.lock());
        self.with_regions_locked(cpus, wanted, &mut owned)
    }
    fn with_regions_locked(
        &self,
        cpus: Range<u32>,
        wanted: impl Fn(Region<'_>) -> bool,
        owned: &mut dyn FnMut(Region<'_>),
    ) -> bool {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        let wanted =
            |cpu: &u32| self.region(*cpu).is_some_and(|region| region.committed() > 0 && wanted(region));
        if self.cpus.mechanism() == Mechanism::Claimed {
            for region in cpus.filter(wanted).filter_map(|cpu| self.region(cpu)) {
                claimed::own(region, owned);
            }
            return true;
        }
        // Which CPUs they are must not change on the way: so it is asked once, and the words remember it.
        let mut any = false;
        for cpu in cpus.clone().filter(wanted) {
            self.take_away(cpu);
            any = true;
        }
        if !any {
            return true;
        }
        let is_away = |cpu: &u32| self.is_away(*cpu);
        let early = planted("a drain takes before its fence");
        if early {
            cpus.clone().filter(is_away).filter_map(|cpu| self.region(cpu)).for_each(&mut *owned);
        }
        let fenced = planted("drain without its fence") || {
            let mut away = cpus.clone().filter(is_away);
            if planted("a drain of several CPUs fences one") {
                rseq::fence(self, away.next().into_iter())
            } else {
                rseq::fence(self, away)
            }
        };
        if !fenced {
            self.refused.add(1);
        }
        for cpu in cpus.filter(is_away) {
            let back = planted("a table word is put back before the region is done with");
            if back {
                self.put_back(cpu);
            }
            if let Some(region) = self.region(cpu).filter(|_| fenced && !early) {
                owned(region);
            }
            if !back {
                self.put_back(cpu);
            }
        }
        fenced
    }
    /// Whether a drain has taken the region of `cpu` away; for that drain.
    pub(crate) fn is_away(&self, cpu: u32) -> bool {
        // Relaxed: only drains write it, and their lock is held.
        #[cfg(not(any(loom, shuttle)))]
        return self.word(cpu).load(Relaxed) != self.home(cpu).as_ptr();
        #[cfg(any(loom, shuttle))]
        return self.words[cpu as usize].load(Relaxed) != cpu as usize;
    }

    /// Closes the stacks of `classes` on `cpus`, as far as `which` says, and shows each to `give`, who takes its rounds
    /// away with [`Taken::pop`]. One fence for all of them. Fast paths go on meanwhile: they miss where a stack is closed.
    ///
    /// Where `give` panics, the rounds that it left are lost. The first panic goes on when all other stacks were given
    /// away and the classes are open again.
    pub(crate) fn drain(
        &self,
        cpus: Range<u32>,
        which: Which,
        classes: impl Iterator<Item = Class> + Clone,
        mut give: impl FnMut(Class, &mut Taken<'_>),
    ) {
        let lock = || (!planted("drains without their lock")).then(|| self.drains.lock());
        // Others may be at work on the same stacks: each gives away what it has taken itself.
        let number = crate::sync::unique();
        {
            let _one_at_a_time = lock();
            // SAFETY: the lock of drains is held.
            classes.clone().for_each(|class| unsafe { self.close(class) });
            let idle = |region: Region<'_>, class: Class| {
                let head = region.head(class);
                head & LEN > 0 && (region.seen(class) == head || planted("a reap takes what is in use"))
            };
            let wanted = |region: Region<'_>| match which {
                // One that is closed for good is to take nothing from now on, empty as it may be.
                Which::All => classes.clone().any(|class| {
                    let closed = self.is_closed(class) && !planted("a closed class leaves empty stacks open");
                    closed || region.head(class) & LEN > 0
                }),
                Which::Idle => {
                    let any = classes.clone().any(|class| idle(region, class));
                    if !any {
                        classes.clone().for_each(|class| region.see(class));
                    }
                    any
                }
            };
            let mut owned = |region: Region<'_>| {
                for class in classes.clone() {
                    if which == Which::All || idle(region, class) {
                        region.take(class, number);
                    }
                    region.see(class);
                }
            };
            self.with_regions_locked(cpus.clone(), wanted, &mut owned);
        }
        let mut outcome = Ok(());
        for class in classes.clone() {
            for region in self.used(cpus.clone()) {
                let taken = region.taken_by(class, number);
                if taken > 0 {
                    region.forget_taken(class);
                    let given = catch_panic(|| give(class, &mut Taken { region, class, left: taken }));
                    outcome = outcome.and(given);
                }
            }
        }
        {
            let _one_at_a_time = lock();
            // SAFETY: as above.
            classes.for_each(|class| unsafe { self.reopen(class) });
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// At rest: the class as its operations expect it, and the empty region as it was made.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn assert_at_rest(&self, class: Class) {
        for cpu in 0..self.cpus.count() {
            assert!(!self.is_away(cpu), "the word of CPU {cpu} is not back");
            let region = Region(&self.regions[cpu as usize]);
            assert_eq!(region.claim().load(Relaxed), 0, "the region of CPU {cpu} is still claimed");
            assert_eq!(region.taken(class), 0, "what a drain took is given away");
        }
        let number = &self.numbers[class.index as usize];
        assert_eq!(
            u64::from(number.limit.load(Relaxed)),
            number.open.get(),
            "no drain is at work, and the class is open"
        );
        assert_eq!(
            self.regions.last().map(|empty| Region(empty).committed()),
            Some(0),
            "the empty region stays empty"
        );
    }

    /// # Safety
    /// The lock of drains is held.
    pub(crate) unsafe fn close(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: by contract.
        number.drains.with_mut(|p| unsafe { *p += 1 });
        if !planted("a drained stack is widened at once") {
            // Relaxed: the fence shows it to every operation behind it.
            number.limit.store(0, Relaxed);
        }
    }
    /// # Safety
    /// As [`close`](Self::close), which was called before.
    unsafe fn reopen(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: by contract.
        let left = number.drains.with_mut(|p| unsafe {
            *p -= 1;
            *p
        });
        if left == 0 || planted("the first of two drains opens the stack") {
            // Release: pairs with the Acquire in `push_batch`, which writes where this drain has read.
            number.limit.store(number.open.get() as u32, Release);
        }
    }
}

/// Rounds of a stack that a drain has closed.
pub(crate) struct Taken<'t> {
    region: Region<'t>,
    class: Class,
    left: u32,
}

impl Taken<'_> {
    pub(crate) fn len(&self) -> u32 {
        self.left
    }
    /// The newest.
    pub(crate) fn pop(&mut self) -> Option<NonNull<u8>> {
        let round = (self.left > 0).then(|| self.region.round(self.class, self.left))??;
        self.left -= 1;
        Some(round)
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
            if !planted("claims outlive their threads") {
                // Relaxed: there is one thread.
                region.claim().store(0, Relaxed);
            }
        }
        // What a drain of another thread had taken is lost with it; but its classes go on.
        for (index, number) in (0..).zip(&*self.numbers) {
            // SAFETY: there is one thread.
            let drains = number.drains.with_mut(|p| unsafe { p.replace(0) });
            if drains > 0 && !planted("drains outlive their threads") {
                // SAFETY: as above.
                let class = Class { index, stack: number.stack.with(|p| unsafe { *p }) };
                self.used(0..self.cpus.count()).for_each(|region| region.forget_taken(class));
                // Relaxed: as above.
                number.limit.store(number.open.get() as u32, Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "table_tests.rs"]
mod tests;
