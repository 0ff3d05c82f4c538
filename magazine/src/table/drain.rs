//! Drains, with which a thread takes the objects from other CPUs' stacks. The module [table](super) describes the rules
//! for drains.

use super::giving::ActiveDrain;
use super::{Number, Table};
use crate::cpu::regions::Words;
use crate::cpu::{Mechanism, claimed, rseq};
use crate::memory::Memory;
use crate::region::{CLASSES, Class, LEN_MASK, Region};
use crate::sync::Ordering::Relaxed;
use crate::sync::{FirstPanic, MutexGuard};
use core::num::NonZeroU32;
use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;

/// The kinds of stacks that a drain takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainScope {
    /// All stacks.
    All,
    /// Only stacks that have served no operation since the last drain of idle stacks.
    Idle,
}

/// A group of layers that are swept together. After a sweep, the caller must collect the objects of all layers in the
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepGroup(NonZeroU32);

impl SweepGroup {
    /// Creates the sweep group with the given number.
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }
}

/// Counters of the drains of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drains {
    /// Number of passes in which a drain took regions away from their CPUs. Each pass issues one fence, for any number
    /// of CPUs and classes.
    pub passes: u64,
    /// Number of passes that had no effect, because the kernel refused the fence (`membarrier`). After a refused fence,
    /// the objects stay on their stacks, and a class number that was being returned cannot be reused. A refused fence
    /// does not affect the fast paths.
    pub refused: u64,
    /// Longest time for which a drain kept a CPU from using its region, so that every operation on the CPU missed; 0 on
    /// systems without a clock.
    pub longest_away: Duration,
}

impl<M: Memory> Table<M> {
    /// Calls `owned` for each used region of `cpus` that `wanted` selects. No operation runs in the region during the
    /// call. Returns `false` and does nothing if the kernel refused the fence. The calling thread must hold the table's
    /// drain lock.
    pub(super) fn with_region_ownership(
        &self,
        cpus: Range<u32>,
        wanted: impl Fn(Region<'_>) -> bool,
        owned: &mut dyn FnMut(Region<'_>),
    ) -> bool {
        let cpus = cpus.start..cpus.end.min(self.cpus.count());
        let wanted =
            |cpu: &u32| self.region(*cpu).is_some_and(|region| region.committed() > 0 && wanted(region));
        if self.cpus.mechanism() == Mechanism::Claimed {
            let mut any = false;
            for region in cpus.filter(wanted).filter_map(|cpu| self.region(cpu)) {
                let mut timed = |region: Region<'_>| {
                    let since = Clock::start();
                    owned(region);
                    self.record_region_absence(&since);
                };
                claimed::run_with_claimed_region(region, &mut timed);
                any = true;
            }
            self.done.add(any.into());
            return true;
        }
        // The set of CPUs must not change during the pass. `with_region_ownership` calls `wanted` once per CPU, and
        // records the answer in the CPU's word.
        let (mut any, since) = (false, Clock::start());
        for cpu in cpus.clone().filter(wanted) {
            self.detach_region(cpu);
            any = true;
        }
        if !any {
            return true;
        }
        let is_away = |cpu: &u32| self.is_away(*cpu);
        let fenced = rseq::fence(self, cpus.clone().filter(is_away));
        if fenced { &self.done } else { &self.refused }.add(1);
        for cpu in cpus.filter(is_away) {
            if let Some(region) = self.region(cpu).filter(|_| fenced) {
                owned(region);
            }
            self.restore_region(cpu);
        }
        self.record_region_absence(&since);
        fenced
    }
    /// Closes or reopens the two sets of per-CPU pointers that inlined paths read. The caller must hold the drain lock,
    /// so that no drain is using a region.
    fn close_or_open_inlined(&self, closed: [bool; 2]) {
        for (words, closed) in Words::INLINED_WORDS.into_iter().zip(closed) {
            self.closed[words as usize].set(closed.into());
            let lead = if closed { Self::detach_cpu } else { Self::reattach_cpu };
            (0..self.cpus.count()).for_each(|cpu| lead(self, words, cpu));
        }
    }
    /// Records how long a drain kept a CPU from using its region.
    fn record_region_absence(&self, since: &Clock) {
        self.longest_away.set(self.longest_away.get().max(since.nanoseconds()));
    }
    /// Drains the stacks of `classes` on `cpus` that `which` selects, with one fence. Each drained stack is passed to
    /// `give`, which takes the objects with [`DrainedRounds::pop`]. Each drain issues a single fence for all stacks.
    /// Fast paths continue concurrently, but miss on a closed stack. If a sweep took objects of the drained classes,
    /// `drain` flushes these objects, too.
    ///
    /// If `give` panics, the objects that `give` has not yet taken from its stack are lost. The first panic is resumed
    /// after all other stacks were flushed and the classes were opened again.
    pub(crate) fn drain(
        &self,
        cpus: Range<u32>,
        which: DrainScope,
        classes: impl Iterator<Item = Class> + Clone,
        mut give: impl FnMut(Class, &mut DrainedRounds<'_>),
    ) {
        // Other drains may work on the same stacks. Each drain flushes only the objects that it took.
        let number = next_drain_number();
        {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: this thread holds the lock of drains.
            unsafe {
                classes.clone().for_each(|class| self.close(class, number));
                self.take(number, cpus, which, classes.clone());
                // The drain claims waiting objects under the lock that it already holds. When `drain`
                // returns, all objects that it found have been flushed.
                classes.clone().for_each(|class| _ = self.claim(class));
            }
        }
        let giving = ActiveDrain::new(self.address(), number, classes.clone());
        let mut panics = FirstPanic::default();
        giving.run_listed(|| {
            for class in classes {
                self.give(class, number, &mut give, &mut panics);
                giving.record_class_done(class);
            }
        });
        panics.resume();
    }

    /// Adds the class to all future sweeps of `group`, until the class number is returned.
    pub(crate) fn join_sweeps(&self, class: Class, group: SweepGroup) {
        self.numbers[class.index as usize].swept.set(group.0.get().into());
    }

    /// Flushes the objects that a sweep took from the class, unless another drain has already flushed them. If `give`
    /// panics, the panic is handled as in [`drain`](Self::drain).
    pub(crate) fn collect(&self, class: Class, mut give: impl FnMut(Class, &mut DrainedRounds<'_>)) {
        let number = {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: this thread holds the lock of drains.
            unsafe { self.claim(class) }
        };
        if number > 0 {
            let giving = ActiveDrain::new(self.address(), number, core::iter::once(class));
            let mut panics = FirstPanic::default();
            giving.run_listed(|| self.give(class, number, &mut give, &mut panics));
            panics.resume();
        }
    }

    pub(crate) fn lock_drains(&self) -> MutexGuard<'_, ()> {
        self.drains.lock()
    }

    /// Returns `true` if the class's stack holds objects and has served no operation since the last call of
    /// `record_head`.
    pub(crate) fn is_idle(region: Region<'_>, class: Class) -> bool {
        let head = region.head(class);
        head & LEN_MASK > 0 && region.recorded_head(class) == head
    }

    /// Takes the objects on the selected stacks of `classes` for drain `number`, with one fence.
    ///
    /// # Safety
    /// The caller must hold the drain lock, and must have [closed](Self::close) the classes for drain `number`.
    unsafe fn take(
        &self,
        number: u64,
        cpus: Range<u32>,
        which: DrainScope,
        classes: impl Iterator<Item = Class> + Clone,
    ) {
        let wanted = |region: Region<'_>| match which {
            // A class that is closed permanently must accept no objects from now on, even if it is empty.
            DrainScope::All => classes.clone().any(|class| {
                let closed = self.is_closed(class);
                closed && region.is_open(class) || region.head(class) & LEN_MASK > 0
            }),
            DrainScope::Idle => {
                let any = classes.clone().any(|class| Self::is_idle(region, class));
                if !any {
                    classes.clone().for_each(|class| region.record_head(class));
                }
                any
            }
        };
        let mut owned = |region: Region<'_>| {
            for class in classes.clone() {
                if which == DrainScope::All || Self::is_idle(region, class) {
                    region.take(class, number);
                }
                region.record_head(class);
            }
        };
        self.with_region_ownership(cpus, wanted, &mut owned);
    }
    /// Records that the pages of the class's room in `region` may be backed by memory. The calling thread must hold the
    /// table's drain lock.
    pub(super) fn mark_room_backed(&self, region: Region<'_>, class: Class) {
        let mut pages = region.backed_pages();
        self.numbers[class.index as usize].pages().for_each(|page| pages.add(page));
        region.set_backed_pages(&pages);
    }

    /// Flushes the objects of the class that belong to drain `number`, and then opens the class. Panics of `give` are
    /// stored in `panics`.
    fn give(
        &self,
        class: Class,
        number: u64,
        give: &mut impl FnMut(Class, &mut DrainedRounds<'_>),
        panics: &mut FirstPanic,
    ) {
        for region in self.used_regions(0..self.cpus.count()) {
            let taken = region.rounds_taken_by(class, number);
            if taken > 0 {
                region.clear_taken_record(class);
                panics.catch(|| give(class, &mut DrainedRounds { region, class, left: taken }));
            }
        }
        let _one_at_a_time = self.lock_drains();
        // SAFETY: this thread holds the lock of drains, and this drain has closed or claimed the class.
        unsafe { self.reopen(class) };
    }

    /// Closes the class for drain `number`. If swept objects of the class wait to be collected, the drain takes them
    /// over.
    ///
    /// # Safety
    /// The calling thread must hold the table's drain lock.
    pub(crate) unsafe fn close(&self, class: Class, number: u64) {
        // SAFETY: the caller holds the lock of drains, by contract.
        let before = self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(number) });
        if before == 0 {
            // SAFETY: the caller holds the lock of drains, by contract.
            unsafe { self.close_class_again(class) };
        } else {
            self.used_regions(0..self.cpus.count())
                .for_each(|region| region.reassign_rounds(class, before, number));
        }
    }
    /// # Safety
    /// The calling thread must hold the table's drain lock.
    pub(super) unsafe fn close_class_again(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: the caller holds the lock of drains, by contract.
        number.drains.with_mut(|p| unsafe { *p += 1 });
        // Relaxed: threads that depend on the limit hold the lock of drains, and other threads use it as a
        // hint.
        number.limit.store(0, Relaxed);
    }
    /// Claims the swept objects of the class that wait to be collected. Returns the number of the sweep or drain to
    /// which the waiting objects belong, or 0 if no objects wait.
    ///
    /// # Safety
    /// The calling thread must hold the table's drain lock.
    pub(super) unsafe fn claim(&self, class: Class) -> u64 {
        // SAFETY: the caller holds the lock of drains, by contract.
        self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(0) })
    }
    /// # Safety
    /// The caller must hold the drain lock, and must have called [`close`](Self::close) before.
    pub(super) unsafe fn reopen(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: the caller holds the lock of drains, by contract.
        let left = number.drains.with_mut(|p| unsafe {
            *p -= 1;
            *p
        });
        if left == 0 {
            // Relaxed: an operation that later opens the stack takes the lock of drains, which orders the
            // operation after this drain's reads.
            number.limit.store(number.open.get() as u32, Relaxed);
        }
    }
}

/// Functions for the other uslab crates, which may change in any version.
#[doc(hidden)]
impl<M: Memory> Table<M> {
    /// Closes the inlined paths until [`open_inlined`](Self::open_inlined) is called. A closed path always misses. If
    /// inlined paths are closed, each operation takes the slow path, which uses the same stacks.
    /// [Inlined frees by address](Words::InlinedFrees) are closed only if `with_frees` is set. When `close_inlined`
    /// returns `true`, no earlier operation is still running on a closed path. Returns `false` if the kernel refused
    /// the fence. If the fence was refused, earlier operations may still run on the closed paths, and the caller must
    /// open the paths again.
    ///
    /// Without restartable sequences, `close_inlined` does nothing, because inlined paths always miss.
    ///
    /// The cost is the drain lock and one fence.
    pub fn close_inlined(&self, with_frees: bool) -> bool {
        let _one_at_a_time = self.lock_drains();
        if self.cpus.mechanism() == Mechanism::Claimed {
            return true;
        }
        self.close_or_open_inlined([true, with_frees]);
        rseq::fence(self, 0..self.cpus.count())
    }

    /// Reopens the inlined paths that [`close_inlined`](Self::close_inlined) closed.
    pub fn open_inlined(&self) {
        let _one_at_a_time = self.lock_drains();
        self.close_or_open_inlined([false; 2]);
    }

    /// Returns the counters of the table's drains.
    pub fn drains(&self) -> Drains {
        let refused = self.refused.get();
        Drains {
            passes: self.done.get() + refused,
            refused,
            longest_away: Duration::from_nanos(self.longest_away.get()),
        }
    }

    /// Drains the stacks of `cpus` that `which` selects, in all classes that have [joined](crate::Layer::join_sweeps)
    /// one of `groups`. The taken objects stay in place until their layers [collect](crate::Layer::reap_swept) them.
    /// Until the objects of a swept class are collected, no stack of the class can be opened.
    ///
    /// Cost: the drain lock and one fence, for any number of classes.
    pub fn sweep(&self, cpus: Range<u32>, which: DrainScope, groups: impl Fn(SweepGroup) -> bool) {
        let number = next_drain_number();
        let _one_at_a_time = self.lock_drains();
        let regions = || self.used_regions(cpus.clone());
        let (mut closed, mut count) = ([Class::default(); CLASSES as usize], 0);
        let group = |at: &Number| NonZeroU32::new(at.swept.get() as u32).map(SweepGroup);
        for (class, _) in self.all().filter(|(_, at)| group(at).is_some_and(&groups)) {
            if which == DrainScope::All || regions().any(|region| Self::is_idle(region, class)) {
                // SAFETY: this thread holds the lock of drains.
                unsafe { self.close(class, number) };
                closed[count] = class;
                count += 1;
            } else {
                regions().for_each(|region| region.record_head(class));
            }
        }
        // SAFETY: this thread holds the lock of drains, and closed the classes for this number.
        unsafe { self.take(number, cpus.clone(), which, closed[..count].iter().copied()) };
    }
}

/// A stopwatch that measures durations on systems with a clock. WebAssembly and models have no clock.
struct Clock(Option<std::time::Instant>);

impl Clock {
    fn start() -> Self {
        let has_clock = cfg!(not(any(loom, shuttle, target_family = "wasm")));
        Self(has_clock.then(std::time::Instant::now))
    }
    fn nanoseconds(&self) -> u64 {
        self.0.map_or(0, |start| start.elapsed().as_nanos() as u64)
    }
}

/// Returns a number for a new drain: unique, and not 0.
fn next_drain_number() -> u64 {
    crate::sync::unique() + 1
}

/// The objects on a drained stack that were not flushed yet.
pub(crate) struct DrainedRounds<'t> {
    region: Region<'t>,
    class: Class,
    left: u32,
}

impl DrainedRounds<'_> {
    pub(crate) fn len(&self) -> u32 {
        self.left
    }
    /// Takes the newest object from the drained stack.
    pub(crate) fn pop(&mut self) -> Option<NonNull<u8>> {
        let round = (self.left > 0).then(|| self.region.round(self.class, self.left))??;
        self.left -= 1;
        Some(round)
    }
}
