//! Drains: a thread takes the objects from another CPU's stacks. The module [table](super) describes the
//! rules.

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

/// The stacks that a drain takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainScope {
    /// All stacks.
    All,
    /// Stacks that have served no operation since the last drain of idle stacks.
    Idle,
}

/// A group of layers that one caller sweeps. After a sweep, the caller must collect the objects of all layers
/// in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepGroup(NonZeroU32);

impl SweepGroup {
    /// Creates the group with the given number.
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }
}

/// Counters of a table's drains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drains {
    /// Number of drain passes that took regions from CPUs. Each pass issues one fence, whatever the number of
    /// CPUs and classes.
    pub passes: u64,
    /// Number of passes without effect, because the kernel refused the fence (`membarrier`). After a refused
    /// fence, objects stay on the stacks, and class numbers that the table was about to reuse are lost. Fast
    /// paths are unaffected by a refused fence.
    pub refused: u64,
    /// Longest time that a CPU was without its region, during which every operation on the CPU missed; 0 on systems
    /// without a clock.
    pub longest_away: Duration,
}

impl<M: Memory> Table<M> {
    /// Calls `owned` for each used region of `cpus` that `wanted` selects, while no operation runs on the region.
    /// Returns `false`, without any effect, if the kernel refused the fence. The caller must hold the lock of drains.
    pub(super) fn own_regions(
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
                    self.record_absence(&since);
                };
                claimed::run_claimed(region, &mut timed);
                any = true;
            }
            self.done.add(any.into());
            return true;
        }
        // The set of CPUs must not change during the pass. `own_regions` calls `wanted` once per CPU, and
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
        self.record_absence(&since);
        fenced
    }
    /// The caller must hold the lock of drains, so that no drain has taken a region away.
    fn lead_inlined(&self, closed: [bool; 2]) {
        for (words, closed) in Words::INLINED.into_iter().zip(closed) {
            self.closed[words as usize].set(closed.into());
            let lead = if closed { Self::detach_cpu } else { Self::reattach_cpu };
            (0..self.cpus.count()).for_each(|cpu| lead(self, words, cpu));
        }
    }
    /// Records how long a CPU was without its region.
    fn record_absence(&self, since: &Clock) {
        self.longest_away.set(self.longest_away.get().max(since.nanoseconds()));
    }
    /// Closes the stacks of `classes` on `cpus` that `which` selects. Passes each closed stack to `give`,
    /// which takes the objects with [`DrainedRounds::pop`]. One fence serves all stacks. Fast paths continue
    /// concurrently, and miss on closed stacks. `drain` also flushes objects that a sweep took from the
    /// drained classes.
    ///
    /// If `give` panics, the remaining objects of its stack are lost. The first panic is resumed after all
    /// other stacks have been flushed and the classes are open again.
    pub(crate) fn drain(
        &self,
        cpus: Range<u32>,
        which: DrainScope,
        classes: impl Iterator<Item = Class> + Clone,
        mut give: impl FnMut(Class, &mut DrainedRounds<'_>),
    ) {
        // Other drains may work on the same stacks. Each drain flushes only the objects that it took.
        let number = drain_number();
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
        giving.during(|| {
            for class in classes {
                self.give(class, number, &mut give, &mut panics);
                giving.is_done_with(class);
            }
        });
        panics.resume();
    }

    /// Adds the class to all sweeps of `group`, until the class number is returned.
    pub(crate) fn join_sweeps(&self, class: Class, group: SweepGroup) {
        self.numbers[class.index as usize].swept.set(group.0.get().into());
    }

    /// Flushes the objects of the class that a sweep took, unless another drain has flushed them. A panic of
    /// `give` is handled as in [`drain`](Self::drain).
    pub(crate) fn collect(&self, class: Class, mut give: impl FnMut(Class, &mut DrainedRounds<'_>)) {
        let number = {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: this thread holds the lock of drains.
            unsafe { self.claim(class) }
        };
        if number > 0 {
            let giving = ActiveDrain::new(self.address(), number, core::iter::once(class));
            let mut panics = FirstPanic::default();
            giving.during(|| self.give(class, number, &mut give, &mut panics));
            panics.resume();
        }
    }

    pub(crate) fn lock_drains(&self) -> MutexGuard<'_, ()> {
        self.drains.lock()
    }

    /// Returns `true` if the stack holds objects and has served no operation since the last call of `record_head`.
    pub(crate) fn is_idle(region: Region<'_>, class: Class) -> bool {
        let head = region.head(class);
        head & LEN_MASK > 0 && region.recorded_head(class) == head
    }

    /// Takes the objects on the stacks of `classes`, with one fence.
    ///
    /// # Safety
    /// The caller must hold the lock of drains, and must have [closed](Self::close) the classes for drain `number`.
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
        self.own_regions(cpus, wanted, &mut owned);
    }
    /// Notes that the pages of the class's room may be backed by memory. The caller must hold the lock of drains.
    pub(super) fn note_backed(&self, region: Region<'_>, class: Class) {
        let mut pages = region.backed();
        self.numbers[class.index as usize].pages().for_each(|page| pages.add(page));
        region.set_backed(&pages);
    }

    /// Flushes the objects that drain `number` took or took over, and opens the class. `panics` catches
    /// panics of `give`.
    fn give(
        &self,
        class: Class,
        number: u64,
        give: &mut impl FnMut(Class, &mut DrainedRounds<'_>),
        panics: &mut FirstPanic,
    ) {
        for region in self.used_regions(0..self.cpus.count()) {
            let taken = region.taken_by(class, number);
            if taken > 0 {
                region.clear_taken_note(class);
                panics.catch(|| give(class, &mut DrainedRounds { region, class, left: taken }));
            }
        }
        let _one_at_a_time = self.lock_drains();
        // SAFETY: this thread holds the lock of drains, and this drain has closed or claimed the class.
        unsafe { self.reopen(class) };
    }

    /// Closes the class for drain `number`, which takes over the objects that wait to be flushed.
    ///
    /// # Safety
    /// The caller must hold the lock of drains.
    pub(crate) unsafe fn close(&self, class: Class, number: u64) {
        // SAFETY: the caller holds the lock of drains, by contract.
        let before = self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(number) });
        if before == 0 {
            // SAFETY: the caller holds the lock of drains, by contract.
            unsafe { self.close_again(class) };
        } else {
            self.used_regions(0..self.cpus.count())
                .for_each(|region| region.hand_over(class, before, number));
        }
    }
    /// # Safety
    /// The caller must hold the lock of drains.
    pub(super) unsafe fn close_again(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: the caller holds the lock of drains, by contract.
        number.drains.with_mut(|p| unsafe { *p += 1 });
        // Relaxed: threads that depend on the limit hold the lock of drains, and other threads use it as a
        // hint.
        number.limit.store(0, Relaxed);
    }
    /// Claims the objects of the class that wait to be flushed. Returns the number of the drain that took the
    /// objects, or 0 if no objects wait.
    ///
    /// # Safety
    /// The caller must hold the lock of drains.
    pub(super) unsafe fn claim(&self, class: Class) -> u64 {
        // SAFETY: the caller holds the lock of drains, by contract.
        self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(0) })
    }
    /// # Safety
    /// The caller must hold the lock of drains, and must have called [`close`](Self::close) before.
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

/// Functions for the other crates of this allocator, which may change in any version.
#[doc(hidden)]
impl<M: Memory> Table<M> {
    /// Closes the inlined paths until [`open_inlined`](Self::open_inlined). Closed paths always miss; each
    /// operation then takes the slow path, which works on the stacks of the fast path. [Inlined
    /// frees](Words::InlinedFrees) stay open unless `with_frees` is set. When `close_inlined` returns, no
    /// inlined operation that began earlier is still running. Returns `false` if the kernel refused the
    /// fence. After a refused fence, inlined operations may still run, and the caller must open the paths
    /// again.
    ///
    /// Without restartable sequences, `close_inlined` does nothing: inlined paths always miss, and the claimed slot
    /// serves all operations.
    ///
    /// Cost: the lock of drains and one fence.
    pub fn close_inlined(&self, with_frees: bool) -> bool {
        let _one_at_a_time = self.lock_drains();
        if self.cpus.mechanism() == Mechanism::Claimed {
            return true;
        }
        self.lead_inlined([true, with_frees]);
        rseq::fence(self, 0..self.cpus.count())
    }

    /// Opens the inlined paths again after [`close_inlined`](Self::close_inlined).
    pub fn open_inlined(&self) {
        let _one_at_a_time = self.lock_drains();
        self.lead_inlined([false; 2]);
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

    /// Takes objects from those stacks of `cpus` that `which` selects, in all classes that have
    /// [joined](crate::Layer::join_sweeps) one of `groups`. The objects wait until their layers
    /// [collect](crate::Layer::reap_swept) them. Until their objects are collected, stacks of the swept
    /// classes cannot be opened.
    ///
    /// Cost: the lock of drains and one fence, whatever the number of classes.
    pub fn sweep(&self, cpus: Range<u32>, which: DrainScope, groups: impl Fn(SweepGroup) -> bool) {
        let number = drain_number();
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

/// Measures durations on systems with a clock. Web pages and models have no clock.
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

/// Returns a number that no other drain has, and that is not 0.
fn drain_number() -> u64 {
    crate::sync::unique() + 1
}

/// The objects of a stack that a drain has closed.
pub(crate) struct DrainedRounds<'t> {
    region: Region<'t>,
    class: Class,
    left: u32,
}

impl DrainedRounds<'_> {
    pub(crate) fn len(&self) -> u32 {
        self.left
    }
    /// Takes the newest object of the stack.
    pub(crate) fn pop(&mut self) -> Option<NonNull<u8>> {
        let round = (self.left > 0).then(|| self.region.round(self.class, self.left))??;
        self.left -= 1;
        Some(round)
    }
}
