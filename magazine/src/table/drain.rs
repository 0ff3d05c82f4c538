//! Drains: how somebody else takes what lies on a CPU's stacks. The rules are the [table](super)'s.

use super::giving::Giving;
use super::{Number, Table};
use crate::cpu::regions::Words;
use crate::cpu::{Mechanism, claimed, rseq};
use crate::memory::Memory;
use crate::region::{CLASSES, Class, LEN, Region};
use crate::sync::Ordering::Relaxed;
use crate::sync::{FirstPanic, MutexGuard, planted};
use core::num::NonZeroU32;
use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;

/// Which stacks a drain takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Which {
    /// All.
    All,
    /// Those that have served nothing since the last such drain.
    Idle,
}

/// Layers that are swept by one caller, who collects from all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct SweepGroup(NonZeroU32);

impl SweepGroup {
    /// The group of that number.
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }
}

/// What the drains of a table did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct Drains {
    /// Times that regions were taken away: whatever the number of CPUs and classes, one fence each.
    pub passes: u64,
    /// Of these, the ones without effect, because the kernel refused the fence (`membarrier`). What lies on stacks then stays
    /// there, and numbers that would be given back are lost; fast paths go on.
    pub refused: u64,
    /// The longest that a CPU was without its region: every operation there missed. 0 where there is no clock.
    pub longest_away: Duration,
}

impl<M: Memory> Table<M> {
    /// Runs `owned` on the regions of `cpus`, of those that were used and for which `wanted` says so, with nobody else
    /// there. `false` if the kernel refused the fence: then nothing was done. The lock of drains is held.
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
                    self.was_away(&since);
                };
                claimed::own(region, &mut timed);
                any = true;
            }
            self.done.add(any.into());
            return true;
        }
        // Which CPUs they are must not change on the way: so it is asked once, and the words remember it.
        let (mut any, since) = (false, Clock::start());
        for cpu in cpus.clone().filter(wanted) {
            self.take_away(cpu);
            any = true;
        }
        if !any {
            return true;
        }
        let is_away = |cpu: &u32| self.is_away(*cpu);
        planted!("a drain takes before its fence" => {
            cpus.clone().filter(is_away).filter_map(|cpu| self.region(cpu)).for_each(&mut *owned);
        });
        let fenced = rseq::fence(self, cpus.clone().filter(is_away));
        if fenced { &self.done } else { &self.refused }.add(1);
        for cpu in cpus.filter(is_away) {
            planted!("a table word is put back before the region is done with" => self.put_back(cpu));
            if let Some(region) = self.region(cpu).filter(|_| fenced) {
                owned(region);
            }
            planted!("a drain forgets to put a region back" => continue);
            self.put_back(cpu);
        }
        self.was_away(&since);
        fenced
    }
    /// Inlined paths miss from now on, whatever their stacks hold, until [`open_inlined`](Self::open_inlined): each operation takes
    /// the path behind a miss, which uses the same stacks. [Inlined frees](Words::InlinedFrees) stay
    /// open unless `with_frees`. When this returns no inlined operation that began before still runs.
    /// `false` if the kernel refused the fence: then some that began before may run, and the caller opens them again.
    ///
    /// Where restartable sequences do not serve it does nothing: inlined paths miss anyway, and what is claimed serves on.
    ///
    /// Cost: the lock of drains and one fence.
    #[doc(hidden)]
    pub fn close_inlined(&self, with_frees: bool) -> bool {
        let _one_at_a_time = self.lock_drains();
        if self.cpus.mechanism() == Mechanism::Claimed {
            return true;
        }
        self.lead_inlined([true, with_frees]);
        rseq::fence(self, 0..self.cpus.count())
    }
    /// Takes [`close_inlined`](Self::close_inlined) back.
    #[doc(hidden)]
    pub fn open_inlined(&self) {
        let _one_at_a_time = self.lock_drains();
        self.lead_inlined([false; 2]);
    }
    /// The lock of drains is held: so no region is away.
    fn lead_inlined(&self, closed: [bool; 2]) {
        for (words, closed) in Words::INLINED.into_iter().zip(closed) {
            self.closed[words as usize].set(closed.into());
            let lead = if closed { Self::lead_away } else { Self::lead_back };
            (0..self.cpus.count()).for_each(|cpu| lead(self, words, cpu));
        }
    }
    /// A region is back.
    fn was_away(&self, since: &Clock) {
        self.longest_away.set(self.longest_away.get().max(since.nanoseconds()));
    }
    /// What drains did so far.
    #[doc(hidden)]
    pub fn drains(&self) -> Drains {
        let refused = self.refused.get();
        Drains {
            passes: self.done.get() + refused,
            refused,
            longest_away: Duration::from_nanos(self.longest_away.get()),
        }
    }
    /// Closes the stacks of `classes` on `cpus`, as far as `which` says, and shows each to `give`, who takes its rounds
    /// away with [`Taken::pop`]. One fence for all of them. Fast paths go on meanwhile: they miss where a stack is closed.
    /// What a sweep took of these classes is given away, too.
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
        // Others may be at work on the same stacks: each gives away what is its own.
        let number = drain_number();
        {
            let _one_at_a_time = self.lock_drains();
            planted!("drains without their lock" => drop(_one_at_a_time));
            // SAFETY: the lock of drains is held.
            unsafe {
                classes.clone().for_each(|class| self.close(class, number));
                self.take(number, cpus, which, classes.clone());
                // In the same hold: when a drain returns, all is given away that it found.
                classes.clone().for_each(|class| _ = self.claim(class));
            }
        }
        let giving = Giving::new(self.address(), number, classes.clone());
        let mut panics = FirstPanic::default();
        giving.during(|| {
            for class in classes {
                self.give(class, number, &mut give, &mut panics);
                giving.is_done_with(class);
            }
        });
        panics.resume();
    }

    /// The class takes part in all sweeps of `group` from now on, until its number is given back.
    pub(crate) fn join_sweeps(&self, class: Class, group: SweepGroup) {
        self.numbers[class.index as usize].swept.set(group.0.get().into());
    }

    /// Takes what lies on the stacks of `cpus`, of all classes that [joined](crate::Layer::join_sweeps) a group of `groups`: as `which` says. It
    /// waits until their layers [collect](crate::Layer::reap_swept) it; up to then these classes take no rounds that their
    /// stacks have no place for.
    ///
    /// Cost: the lock of drains and one fence for all of them.
    #[doc(hidden)]
    pub fn sweep(&self, cpus: Range<u32>, which: Which, groups: impl Fn(SweepGroup) -> bool) {
        let number = drain_number();
        let _one_at_a_time = self.lock_drains();
        let regions = || self.used(cpus.clone());
        let (mut closed, mut count) = ([Class::default(); CLASSES as usize], 0);
        let group = |at: &Number| NonZeroU32::new(at.swept.get() as u32).map(SweepGroup);
        for (class, _) in self.all().filter(|(_, at)| group(at).is_some_and(&groups)) {
            if which == Which::All || regions().any(|region| Self::is_idle(region, class)) {
                // SAFETY: the lock of drains is held.
                unsafe { self.close(class, number) };
                closed[count] = class;
                count += 1;
            } else {
                regions().for_each(|region| region.see(class));
            }
        }
        // SAFETY: as above; they were closed for this number.
        unsafe { self.take(number, cpus.clone(), which, closed[..count].iter().copied()) };
    }

    /// Gives away what a sweep took of the class, if nobody else did. Panics are as in [`drain`](Self::drain).
    pub(crate) fn collect(&self, class: Class, mut give: impl FnMut(Class, &mut Taken<'_>)) {
        let number = {
            let _one_at_a_time = self.lock_drains();
            // SAFETY: the lock of drains is held.
            unsafe { self.claim(class) }
        };
        if number > 0 {
            let giving = Giving::new(self.address(), number, core::iter::once(class));
            let mut panics = FirstPanic::default();
            giving.during(|| self.give(class, number, &mut give, &mut panics));
            panics.resume();
        }
    }

    pub(crate) fn lock_drains(&self) -> MutexGuard<'_, ()> {
        self.drains.lock()
    }

    /// Whether rounds lie there that served nothing since the class was last seen.
    pub(crate) fn is_idle(region: Region<'_>, class: Class) -> bool {
        let head = region.head(class);
        planted!("a reap takes what is in use" => return head & LEN > 0);
        head & LEN > 0 && region.seen(class) == head
    }

    /// Takes what lies on the stacks of `classes`, one fence for all of them.
    ///
    /// # Safety
    /// The lock of drains is held, and the classes were [closed](Self::close) for that number.
    unsafe fn take(
        &self,
        number: u64,
        cpus: Range<u32>,
        which: Which,
        classes: impl Iterator<Item = Class> + Clone,
    ) {
        let wanted = |region: Region<'_>| match which {
            // One that is closed for good is to take nothing from now on, empty as it may be.
            Which::All => classes.clone().any(|class| {
                let closed = self.is_closed(class);
                planted!("a closed class leaves empty stacks open" => let closed = false);
                closed && region.is_open(class) || region.head(class) & LEN > 0
            }),
            Which::Idle => {
                let any = classes.clone().any(|class| Self::is_idle(region, class));
                if !any {
                    classes.clone().for_each(|class| region.see(class));
                }
                any
            }
        };
        let mut owned = |region: Region<'_>| {
            for class in classes.clone() {
                if which == Which::All || Self::is_idle(region, class) {
                    region.take(class, number);
                }
                region.see(class);
            }
        };
        self.own_regions(cpus, wanted, &mut owned);
    }
    /// The pages of its room may be memory from now on; for who holds the lock of drains.
    pub(super) fn note_backed(&self, region: Region<'_>, class: Class) {
        let mut pages = region.backed();
        self.numbers[class.index as usize].pages().for_each(|page| pages.add(page));
        region.set_backed(&pages);
    }

    /// Gives away what the drain of that number took, or took over, and opens the class. `panics` catches those of `give`.
    fn give(
        &self,
        class: Class,
        number: u64,
        give: &mut impl FnMut(Class, &mut Taken<'_>),
        panics: &mut FirstPanic,
    ) {
        for region in self.used(0..self.cpus.count()) {
            let taken = region.taken_by(class, number);
            if taken > 0 {
                region.forget_taken(class);
                panics.catch(|| give(class, &mut Taken { region, class, left: taken }));
            }
        }
        let _one_at_a_time = self.lock_drains();
        // SAFETY: the lock of drains is held; who gives away has closed it, or claimed it from who has.
        unsafe { self.reopen(class) };
    }

    /// Closes the class for the drain of that number, which takes over what waits to be given away.
    ///
    /// # Safety
    /// The lock of drains is held.
    pub(crate) unsafe fn close(&self, class: Class, number: u64) {
        // SAFETY: by contract.
        let before = self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(number) });
        if before == 0 {
            // SAFETY: passed on.
            unsafe { self.close_again(class) };
        } else {
            planted!("what a sweep took is lost to the next drain" => return);
            self.used(0..self.cpus.count()).for_each(|region| region.hand_over(class, before, number));
        }
    }
    /// # Safety
    /// The lock of drains is held.
    pub(super) unsafe fn close_again(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: by contract.
        number.drains.with_mut(|p| unsafe { *p += 1 });
        // Relaxed: as in `set_limit_locked`.
        number.limit.store(0, Relaxed);
    }
    /// The number of the drain whose rounds wait, which are the caller's to give away; 0 if none do.
    ///
    /// # Safety
    /// The lock of drains is held.
    pub(super) unsafe fn claim(&self, class: Class) -> u64 {
        // SAFETY: by contract.
        self.numbers[class.index as usize].waiting.with_mut(|p| unsafe { p.replace(0) })
    }
    /// # Safety
    /// As [`close`](Self::close), which was called before.
    pub(super) unsafe fn reopen(&self, class: Class) {
        let number = &self.numbers[class.index as usize];
        // SAFETY: by contract.
        let left = number.drains.with_mut(|p| unsafe {
            *p -= 1;
            *p
        });
        planted!("the first of two drains opens the stack" => let left = 0);
        if left == 0 {
            // Relaxed: as in `set_limit_locked`. Who opens the stack has the lock behind us, and all that this drain has read.
            number.limit.store(number.open.get() as u32, Relaxed);
        }
    }
}

/// How long something took, where there is a clock: not in a page, nor in models.
struct Clock(#[cfg(not(any(loom, shuttle, target_family = "wasm")))] std::time::Instant);

impl Clock {
    fn start() -> Self {
        Self(
            #[cfg(not(any(loom, shuttle, target_family = "wasm")))]
            std::time::Instant::now(),
        )
    }
    fn nanoseconds(&self) -> u64 {
        #[cfg(not(any(loom, shuttle, target_family = "wasm")))]
        return self.0.elapsed().as_nanos() as u64;
        #[cfg(any(loom, shuttle, target_family = "wasm"))]
        0
    }
}

/// A number that no other drain has; 0 is none.
fn drain_number() -> u64 {
    crate::sync::unique() + 1
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
