//! Functions that are called until they are taken away, without a lock: those who observe.
//!
//! A call counts itself before it looks whether its place is open. Who takes a function away closes the place and waits for the
//! calls that are counted; the last of these drops the function. So when that is over nothing of it runs or is left. Calls take no
//! lock and wait for nobody, so they may come from signal handlers, and nothing of them has to be held across a `fork`.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

use crate::Ordering::{Acquire, Relaxed, Release};
use crate::{AtomicU32, Counter, UnsafeCell, contain_panic, planted, thread_local};
use core::cell::Cell;
use core::fmt;

/// Functions at a time; in models one, whose place all want.
pub const MAX_OBSERVERS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// Up to [`MAX_OBSERVERS`] functions of type `F`: a `dyn Fn`. See the [module](self).
pub struct Observers<F: ?Sized> {
    /// How many there are. A hint: who reads it early or late came earlier or later.
    there: Counter,
    slots: [Slot<F>; MAX_OBSERVERS],
    suppressed: Counter,
    panics: Counter,
}

/// The place of a function. Calls are counted in its `state`. What is taken out of it is dropped by the last one, which alone
/// changes `CLOSING` back.
struct Slot<F: ?Sized> {
    state: AtomicU32,
    observer: UnsafeCell<Option<Box<F>>>,
}
/// Somebody has it.
const TAKEN: u32 = 1 << 31;
/// There is a function in it.
const OPEN: u32 = 1 << 30;
/// It is to go when nobody calls it any more,
const CLOSING: u32 = 1 << 29;
/// and nobody waits for that: the place is free then.
const LEFT: u32 = 1 << 28;

// SAFETY: calls need `Sync`, and whoever drops it `Send`. The cell is written by whoever made it `TAKEN` before it is open, and by
// the one call that takes the function out when no other one is counted.
unsafe impl<F: ?Sized + Send + Sync> Sync for Slot<F> {}
// SAFETY: as above.
unsafe impl<F: ?Sized + Send + Sync> Send for Slot<F> {}

impl<F: ?Sized> fmt::Debug for Observers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("there", &self.there).finish_non_exhaustive()
    }
}

/// A function that this thread runs: the address of its slot, and because of which one it does so. Lies on the stack.
struct Inside {
    slot: usize,
    outer: *const Self,
}

thread_local! {
    /// The innermost one.
    static INSIDE: Cell<*const Inside> = Cell::new(core::ptr::null());
}

fn is_inside() -> bool {
    !INSIDE.with(Cell::get).is_null()
}

/// There are [`MAX_OBSERVERS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyObservers;

impl fmt::Display for TooManyObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there are {MAX_OBSERVERS} observers already")
    }
}
impl core::error::Error for TooManyObservers {}

/// Where a function was [put](Observers::add), for [`Observers::remove`].
#[derive(Debug)]
#[must_use = "without it the function stays"]
pub struct Place(usize);

impl<F: ?Sized> Default for Observers<F> {
    fn default() -> Self {
        let slot = |_| Slot { state: AtomicU32::new(0), observer: UnsafeCell::new(None) };
        let slots = core::array::from_fn(slot);
        Self { there: Counter::new(0), slots, suppressed: Counter::new(0), panics: Counter::new(0) }
    }
}

impl<F: ?Sized> Observers<F> {
    /// Calls `observer` from now on.
    ///
    /// # Errors
    /// [`TooManyObservers`].
    pub fn add(&self, observer: Box<F>) -> Result<Place, TooManyObservers> {
        // Acquire: pairs with the Release of whoever took the last one out.
        let free = |slot: &Slot<F>| slot.state.fetch_or(TAKEN, Acquire) & TAKEN == 0;
        let at = self.slots.iter().position(free).ok_or(TooManyObservers)?;
        let slot = &self.slots[at];
        // SAFETY: made ours just now, and not open yet.
        slot.observer.with_mut(|p| unsafe { *p = Some(observer) });
        // Release: pairs with the Acquire in `call`.
        slot.state.fetch_or(OPEN, Release);
        self.there.add(1);
        Ok(Place(at))
    }

    /// Calls the function no more. When this returns no call of it runs or comes, and it is dropped. From within a call of any
    /// observer it does not wait: a call on another thread may still go on.
    pub fn remove(&self, Place(at): Place) {
        self.there.sub(1);
        let slot = &self.slots[at];
        let inside = is_inside();
        // Relaxed: counted, so that nobody takes it out before all is said.
        slot.state.fetch_add(1, Relaxed);
        slot.close(if inside { LEFT } else { 0 });
        slot.leave();
        planted!("who drops an observer does not wait" => return);
        if inside {
            return;
        }
        // Acquire: pairs with the Release of whoever took it out.
        while slot.state.load(Acquire) & CLOSING != 0 {
            crate::relax();
        }
        // Relaxed: who gets the place in `add` reads on from the Release of whoever took the function out.
        slot.state.fetch_and(!TAKEN, Relaxed);
    }

    /// Whether it is worth while to call. Not within a call of any such function, which is counted.
    #[inline]
    pub fn listen(&self) -> bool {
        self.there.get() > 0 && self.is_outside()
    }
    #[cold]
    fn is_outside(&self) -> bool {
        let outside = !is_inside();
        self.suppressed.add(u64::from(!outside));
        outside
    }

    /// Shows each function to `show`. One that panics is not called again, and nobody else notices.
    pub fn each(&self, show: impl Fn(&F)) {
        let panicked = self.slots.iter().filter(|slot| slot.call(&show)).count();
        self.panics.add(panicked as u64);
    }

    /// Calls that were none, because they came [from within one](Self::listen).
    pub fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }
    /// Functions that panicked.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Drops the calls of other threads.
    ///
    /// # Safety
    /// The process is a child that `fork` made, and has no other thread yet.
    pub unsafe fn forget_other_threads(&self) {
        // SAFETY: null, or one whose `enter` has not returned.
        let first = unsafe { INSIDE.with(Cell::get).as_ref() };
        // SAFETY: as above.
        let inside = core::iter::successors(first, |inside| unsafe { inside.outer.as_ref() });
        for slot in &self.slots {
            let calls = inside.clone().filter(|inside| inside.slot == slot.address()).count() as u32;
            // Relaxed: there is one thread. What others were about to take out stays, and its place with it.
            let state = slot.state.load(Relaxed);
            slot.state.store(state & (TAKEN | OPEN | CLOSING | LEFT) | calls, Relaxed);
        }
    }
}

impl<F: ?Sized> Slot<F> {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Runs the function, or its `Drop`. `None` if it panicked.
    fn enter<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        let this = Inside { slot: self.address(), outer: INSIDE.with(Cell::get) };
        INSIDE.with(|inside| inside.set(&raw const this));
        let result = contain_panic(run);
        INSIDE.with(|inside| inside.set(this.outer));
        result
    }

    /// Whether the function, if there is one, panicked.
    fn call(&self, show: &impl Fn(&F)) -> bool {
        // Relaxed: a hint, asked again below.
        if self.state.load(Relaxed) & OPEN == 0 {
            return false;
        }
        let mut panicked = false;
        // Acquire: pairs with the Release in `add`, behind which the function is there.
        let before = self.state.fetch_add(1, Acquire);
        planted!("an observer is called that was closed meanwhile" => let before = OPEN);
        if before & OPEN != 0 {
            // SAFETY: it was open when this call was counted, so nobody takes it out before the call has left.
            let call = || self.observer.with(|p| unsafe { (*p).as_deref() }.map(show));
            panicked = self.enter(call).is_none();
            if panicked {
                self.close(0);
            }
        }
        self.leave();
        panicked
    }
    /// No call begins any more, and the last one takes the observer out. For a call that is counted.
    fn close(&self, left: u32) {
        // Relaxed: whoever takes the observer out leaves after us, or is us.
        self.state.fetch_or(CLOSING | left, Relaxed);
        self.state.fetch_and(!OPEN, Relaxed);
    }
    /// A call is over. The last one takes the function out, if it is to go.
    fn leave(&self) {
        // Release: pairs with the Acquire below: all calls come before the function is dropped.
        let before = self.state.fetch_sub(1, Release);
        let last = before - 1;
        if last & !LEFT != TAKEN | CLOSING {
            return;
        }
        // One of those who find it so, counted again. Acquire: pairs with the Release above: all calls are over.
        if self.state.compare_exchange(last, last + 1, Acquire, Relaxed).is_ok() {
            // SAFETY: it is not open, and no other call is counted that saw it open.
            let observer = self.observer.with_mut(|p| unsafe { (*p).take() });
            _ = self.enter(|| drop(observer));
            // Relaxed: a guess. Release: pairs with the Acquire in `remove`, or in `add`, and with that above.
            let mut state = self.state.load(Relaxed);
            while let Err(now) = self.state.compare_exchange(state, Self::left(state), Release, Relaxed) {
                state = now;
            }
            planted!("a place is free before its last call has left" => self.state.fetch_sub(1, Relaxed));
        }
    }
    /// The state when one has left who took the function out. Its end and the place's are one step: the next one who has the place
    /// finds nobody counted whom it does not know.
    fn left(state: u32) -> u32 {
        planted!("a place is free before its last call has left" => return state & !CLOSING);
        let done = match state & !(TAKEN | OPEN | CLOSING | LEFT) {
            1 if state & LEFT == 0 => CLOSING,
            // Who left may have come while the function was dropped.
            1 => CLOSING | LEFT | TAKEN,
            // The last of those who are counted meanwhile finds no function, and ends it.
            _ => 0,
        };
        (state & !done) - 1
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod scenarios;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{AtomicBool, Mutex, thread};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    type Any = dyn Fn(u32) + Send + Sync;

    /// Removed when it is dropped.
    struct Guard(Arc<Observers<Any>>, Option<Place>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.1.take().into_iter().for_each(|place| self.0.remove(place));
        }
    }
    fn guard(all: &Arc<Observers<Any>>, f: impl Fn(u32) + Send + Sync + 'static) -> Guard {
        Guard(all.clone(), Some(all.add(Box::new(f)).unwrap()))
    }

    fn observers() -> Arc<Observers<Any>> {
        Arc::default()
    }
    fn call(all: &Observers<Any>, with: u32) {
        if all.listen() {
            all.each(|f| f(with));
        }
    }
    /// One that writes down what it is called with.
    fn written(all: &Arc<Observers<Any>>) -> (Guard, Receiver<u32>) {
        let (seen, read) = channel();
        (guard(all, move |with| seen.send(with).unwrap()), read)
    }

    #[test]
    fn there_are_so_many_observers_and_places_are_used_again() {
        let t = observers();
        for _ in 0..3 {
            let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| written(&t)).collect();
            let error = t.add(Box::new(|_| ())).unwrap_err();
            assert_eq!(
                (error, error.to_string()),
                (TooManyObservers, "there are 4 observers already".into())
            );
            call(&t, 7);
            assert!(all.iter().all(|(_, read)| read.try_recv() == Ok(7)));
            let (gone, reads): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            drop(gone);
            call(&t, 8);
            assert!(reads.into_iter().all(|read| read.recv().is_err()), "and the function is gone");
        }
        assert!(!t.listen());
    }

    #[test]
    fn what_an_observer_does_is_not_shown_but_counted() {
        let t = observers();
        let (_first, read) = written(&t);
        let own = t.clone();
        let _second = guard(&t, move |with| call(&own, with));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!((read.try_iter().count(), t.suppressed()), (2, 2));
    }

    /// Once the second panic reached the caller, and who removed the observer waited for ever.
    #[test]
    fn a_payload_that_panics_when_it_is_dropped_stays_with_the_observer() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("a payload");
            }
        }
        let t = observers();
        let panics = guard(&t, |_| std::panic::panic_any(Bomb));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!(t.panics(), 1);
        drop(panics);
        // Neither does what it captured.
        let bomb = Bomb;
        let captures = guard(&t, move |_| _ = &bomb);
        call(&t, 0);
        drop(captures);
        assert_eq!(t.panics(), 1);
    }

    #[test]
    fn an_observer_that_panics_is_not_called_again_and_the_others_are() {
        let t = observers();
        let calls = Arc::new(Counter::new(0));
        let count = calls.clone();
        let panics = guard(&t, move |_| {
            count.add(1);
            panic!("an observer");
        });
        let (_other, read) = written(&t);
        (0..3).for_each(|with| call(&t, with));
        assert_eq!((calls.get(), read.try_iter().count(), t.panics()), (1, 3, 1));
        assert_eq!(Arc::strong_count(&calls), 1, "it was dropped");
        drop(panics);
        let all: Vec<_> = (1..MAX_OBSERVERS).map(|_| written(&t)).collect();
        assert!(t.add(Box::new(|_| ())).is_err() && all.len() == 3, "its place is free");
    }

    /// Its place was never free again.
    #[test]
    fn an_observer_that_panics_may_be_dropped_by_its_own_drop() {
        struct Owner(Arc<Mutex<Option<Guard>>>);
        impl Drop for Owner {
            fn drop(&mut self) {
                let own = self.0.lock().take();
                drop(own);
            }
        }
        let t = observers();
        let own = Owner(Arc::default());
        let own_too = own.0.clone();
        *own_too.lock() = Some(guard(&t, move |_| {
            _ = &own;
            panic!("an observer");
        }));
        call(&t, 1);
        assert!(own_too.lock().is_none() && t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// On one thread; when its call is over it is dropped, and its place is free.
    #[test]
    fn an_observer_may_drop_itself_and_others_and_register_one() {
        type Both = (Guard, Guard);
        let t = observers();
        let (own, other) = (Arc::new(Mutex::new(None::<Both>)), written(&t).0);
        let (own_too, t_too) = (own.clone(), t.clone());
        let observer = guard(&t, move |_| {
            let taken = own_too.lock().take();
            drop(taken.expect("called once"));
            drop(guard(&t_too, |_| unreachable!("what an observer does is not shown")));
        });
        *own.lock() = Some((observer, other));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!(Arc::strong_count(&own), 1);
        let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| written(&t)).collect();
        assert_eq!((all.len(), t.there.get()), (4, 4));
    }

    /// What a call uses may go when the drop has returned.
    #[test]
    fn who_drops_an_observer_waits_for_calls_on_other_threads() {
        let t = observers();
        let (inside, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inside_too, over_too) = (inside.clone(), over.clone());
        let observer = guard(&t, move |_| {
            inside_too.store(true, Release);
            thread::sleep(core::time::Duration::from_millis(30));
            over_too.store(true, Release);
        });
        thread::scope(|scope| {
            scope.spawn(|| call(&t, 1));
            while !inside.load(Acquire) {
                thread::yield_now();
            }
            drop(observer);
            assert!(over.load(Acquire));
        });
    }

    /// The threads that were in calls are no more.
    #[test]
    fn a_child_waits_for_no_call_of_other_threads() {
        let t = observers();
        let (observer, _read) = written(&t);
        t.slots[0].state.fetch_add(2, Relaxed);
        // SAFETY: this thread is the only one, as in a child.
        unsafe { t.forget_other_threads() };
        drop(observer);
        let own = t.clone();
        // SAFETY: as above; from within a call.
        let observer = guard(&t, move |_| unsafe { own.forget_other_threads() });
        call(&t, 1);
        drop(observer);
        assert!(t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// The call around it once counted for nothing in the child, and its end for one call less than none.
    #[test]
    fn a_child_is_within_two_calls() {
        struct Forks(Arc<Observers<Any>>);
        impl Drop for Forks {
            fn drop(&mut self) {
                // SAFETY: this thread is the only one, as in a child.
                unsafe { self.0.forget_other_threads() };
            }
        }
        let t = observers();
        let (forks, own) = (Forks(t.clone()), Arc::new(Mutex::new(None)));
        let own_too = own.clone();
        let outer = guard(&t, move |_| drop(own_too.lock().take()));
        *own.lock() = Some(guard(&t, move |_| _ = &forks));
        call(&t, 1);
        drop(outer);
        assert!(own.lock().is_none() && t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }
}
