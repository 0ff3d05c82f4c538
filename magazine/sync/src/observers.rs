//! Observers: functions that many threads call without a lock, and that any thread may remove.
//!
//! A call increments the slot's count before it tests whether the slot is open. A remover closes the slot and
//! waits for the counted calls; the last call drops the function. So when `remove` returns, no call runs and
//! the function is gone. Calls take no lock and never wait, so signal handlers may make them, and a `fork`
//! need not hold anything for them.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

use crate::Ordering::{Acquire, Relaxed, Release};
use crate::{AtomicU32, Counter, UnsafeCell, contain_panic, planted, thread_local};
use core::cell::Cell;
use core::fmt;

/// Maximum number of observers. Models have one slot, for which all compete.
pub const MAX_OBSERVERS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// Up to [`MAX_OBSERVERS`] functions of type `F`: a `dyn Fn`. See the [module](self).
pub struct Observers<F: ?Sized> {
    /// Number of observers. A hint: a stale value counts the reader as earlier or later.
    there: Counter,
    slots: [Slot<F>; MAX_OBSERVERS],
    suppressed: Counter,
    panics: Counter,
}

/// A slot for one function. `state` has its flags and the number of running calls. The last call drops a
/// removed function and alone clears `CLOSING`.
struct Slot<F: ?Sized> {
    state: AtomicU32,
    observer: UnsafeCell<Option<Box<F>>>,
}
/// The slot is reserved.
const TAKEN: u32 = 1 << 31;
/// The slot has a function that may be called.
const OPEN: u32 = 1 << 30;
/// The function is dropped when no call is counted any more.
const CLOSING: u32 = 1 << 29;
/// No remover waits for the drop: the slot is then free.
const LEFT: u32 = 1 << 28;

// SAFETY: calls need `Sync`, and dropping on any thread needs `Send`. The cell is written by the thread that
// set `TAKEN`, before the slot is open, and by the one call that takes the function out when no other call is
// counted.
unsafe impl<F: ?Sized + Send + Sync> Sync for Slot<F> {}
// SAFETY: dropping the function on another thread needs `Send` of it, which is required here.
unsafe impl<F: ?Sized + Send + Sync> Send for Slot<F> {}

impl<F: ?Sized> fmt::Debug for Observers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("there", &self.there).finish_non_exhaustive()
    }
}

/// A running call on this thread: the address of its slot, and the call that encloses it. Stored on the
/// stack.
struct Inside {
    slot: usize,
    outer: *const Self,
}

thread_local! {
    /// The innermost running call.
    static INSIDE: Cell<*const Inside> = Cell::new(core::ptr::null());
}

fn is_inside() -> bool {
    !INSIDE.with(Cell::get).is_null()
}

/// The error when [`MAX_OBSERVERS`] are registered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyObservers;

impl fmt::Display for TooManyObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there are {MAX_OBSERVERS} observers already")
    }
}
impl core::error::Error for TooManyObservers {}

/// The slot of a [registered](Observers::add) function, for [`Observers::remove`].
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
    /// Registers `observer`; calls start immediately.
    ///
    /// # Errors
    /// [`TooManyObservers`] if no slot is free.
    pub fn add(&self, observer: Box<F>) -> Result<Place, TooManyObservers> {
        // Acquire: pairs with the Release of the call that took the previous function out.
        let free = |slot: &Slot<F>| slot.state.fetch_or(TAKEN, Acquire) & TAKEN == 0;
        let at = self.slots.iter().position(free).ok_or(TooManyObservers)?;
        let slot = &self.slots[at];
        // SAFETY: this thread has just reserved the slot, and it is not open yet.
        slot.observer.with_mut(|p| unsafe { *p = Some(observer) });
        // Release: pairs with the Acquire in `call`.
        slot.state.fetch_or(OPEN, Release);
        self.there.add(1);
        Ok(Place(at))
    }

    /// Removes the function. On return, no call of it runs or begins, and it is dropped. Called from within
    /// any observer it does not wait: a call on another thread may still run.
    pub fn remove(&self, Place(at): Place) {
        self.there.sub(1);
        let slot = &self.slots[at];
        let inside = is_inside();
        // Relaxed: this count only keeps the function until both flags are set.
        slot.state.fetch_add(1, Relaxed);
        slot.close(if inside { LEFT } else { 0 });
        slot.leave();
        planted!("dropping an observer does not wait for its calls" => return);
        if inside {
            return;
        }
        // Acquire: pairs with the Release of the call that took the function out.
        while slot.state.load(Acquire) & CLOSING != 0 {
            crate::relax();
        }
        // Relaxed: `add` synchronises with the Release of the call that took the function out.
        slot.state.fetch_and(!TAKEN, Relaxed);
    }

    /// Returns `true` if there are observers to call. Within a call of any observer it returns `false` and
    /// counts the call as suppressed.
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

    /// Calls `show` with each function. A function that panics is not called again; the caller does not
    /// notice.
    pub fn each(&self, show: impl Fn(&F)) {
        let panicked = self.slots.iter().filter(|slot| slot.call(&show)).count();
        self.panics.add(panicked as u64);
    }

    /// Number of calls suppressed [within another call](Self::listen).
    pub fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }
    /// Number of functions that panicked.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Forgets the calls of other threads.
    ///
    /// # Safety
    /// The process is the child of a `fork` and has no other thread yet.
    pub unsafe fn forget_other_threads(&self) {
        // SAFETY: the pointer is null, or `enter` has not yet returned for its target.
        let first = unsafe { INSIDE.with(Cell::get).as_ref() };
        // SAFETY: `outer` is null, or `enter` has not yet returned for its target.
        let inside = core::iter::successors(first, |inside| unsafe { inside.outer.as_ref() });
        for slot in &self.slots {
            let calls = inside.clone().filter(|inside| inside.slot == slot.address()).count() as u32;
            // Relaxed: there is one thread. A function that another thread was about to take out stays in its
            // slot.
            let state = slot.state.load(Relaxed);
            slot.state.store(state & (TAKEN | OPEN | CLOSING | LEFT) | calls, Relaxed);
        }
    }
}

impl<F: ?Sized> Slot<F> {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Runs the function, or its `Drop`. Returns `None` if it panicked.
    fn enter<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        let this = Inside { slot: self.address(), outer: INSIDE.with(Cell::get) };
        INSIDE.with(|inside| inside.set(&raw const this));
        let result = contain_panic(run);
        INSIDE.with(|inside| inside.set(this.outer));
        result
    }

    /// Calls the function, if there is one. Returns `true` if it panicked.
    fn call(&self, show: &impl Fn(&F)) -> bool {
        // Relaxed: a hint; the test below decides.
        if self.state.load(Relaxed) & OPEN == 0 {
            return false;
        }
        let mut panicked = false;
        // Acquire: pairs with the Release in `add`, which follows the write of the function.
        let before = self.state.fetch_add(1, Acquire);
        planted!("a closed observer is called" => let before = OPEN);
        if before & OPEN != 0 {
            // SAFETY: the slot was open when this call was counted, so the function stays until this call
            // leaves.
            let call = || self.observer.with(|p| unsafe { (*p).as_deref() }.map(show));
            panicked = self.enter(call).is_none();
            if panicked {
                self.close(0);
            }
        }
        self.leave();
        panicked
    }
    /// Stops new calls; the last one takes the function out. The caller must be a counted call.
    fn close(&self, left: u32) {
        // Relaxed: the call that takes the function out leaves after this one, or is this one.
        self.state.fetch_or(CLOSING | left, Relaxed);
        self.state.fetch_and(!OPEN, Relaxed);
    }
    /// Ends a call. The last one takes out a function that is to be dropped.
    fn leave(&self) {
        // Release: pairs with the Acquire below: all calls come before the drop.
        let before = self.state.fetch_sub(1, Release);
        let last = before - 1;
        if last & !LEFT != TAKEN | CLOSING {
            return;
        }
        // Several calls may see this state; the winner counts itself again. Acquire: pairs with the Release
        // above: all calls are over.
        if self.state.compare_exchange(last, last + 1, Acquire, Relaxed).is_ok() {
            // SAFETY: the slot is not open, and no other counted call saw it open.
            let observer = self.observer.with_mut(|p| unsafe { (*p).take() });
            _ = self.enter(|| drop(observer));
            // Relaxed: a guess. Release: pairs with the Acquire in `remove`, in `add`, and above.
            let mut state = self.state.load(Relaxed);
            while let Err(now) = self.state.compare_exchange(state, Self::left(state), Release, Relaxed) {
                state = now;
            }
            planted!("an observer slot is freed during a call" => self.state.fetch_sub(1, Relaxed));
        }
    }
    /// The state after the call that took the function out has left. That call and the slot end in one step,
    /// so the next owner of the slot inherits no count.
    fn left(state: u32) -> u32 {
        planted!("an observer slot is freed during a call" => return state & !CLOSING);
        let done = match state & !(TAKEN | OPEN | CLOSING | LEFT) {
            1 if state & LEFT == 0 => CLOSING,
            // A remover from within a call may have set `LEFT` while the function was dropped.
            1 => CLOSING | LEFT | TAKEN,
            // Other calls were counted during the drop. The last of them finds no function and frees the
            // slot.
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

    /// Removes its observer on drop.
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
    /// An observer that sends its argument to a channel.
    fn written(all: &Arc<Observers<Any>>) -> (Guard, Receiver<u32>) {
        let (seen, read) = channel();
        (guard(all, move |with| seen.send(with).unwrap()), read)
    }

    #[test]
    fn number_of_observers_is_limited_and_slots_are_reused() {
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
    fn calls_made_by_an_observer_are_not_observed() {
        let t = observers();
        let (_first, read) = written(&t);
        let own = t.clone();
        let _second = guard(&t, move |with| call(&own, with));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!((read.try_iter().count(), t.suppressed()), (2, 2));
    }

    /// Regression: the second panic reached the caller, and the remover waited for ever.
    #[test]
    fn panic_payload_that_panics_on_drop_is_contained() {
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
        // A captured value's `Drop` may panic, too.
        let bomb = Bomb;
        let captures = guard(&t, move |_| _ = &bomb);
        call(&t, 0);
        drop(captures);
        assert_eq!(t.panics(), 1);
    }

    #[test]
    fn only_the_panicking_observer_is_disabled() {
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

    /// Regression: the slot stayed taken.
    #[test]
    fn panicking_observer_can_drop_itself() {
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

    /// On one thread: when the call ends, its observer is dropped and the slot is free.
    #[test]
    fn observer_can_register_and_drop_observers() {
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

    /// After the drop the values that calls use may be freed.
    #[test]
    fn drop_of_an_observer_waits_for_calls_on_other_threads() {
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

    /// The threads of the counted calls do not exist in the child.
    #[test]
    fn child_of_a_fork_does_not_wait_for_observer_calls() {
        let t = observers();
        let (observer, _read) = written(&t);
        t.slots[0].state.fetch_add(2, Relaxed);
        // SAFETY: this is the only thread, as in a child.
        unsafe { t.forget_other_threads() };
        drop(observer);
        let own = t.clone();
        // SAFETY: this is the only thread, as in a child. The call is from within an observer.
        let observer = guard(&t, move |_| unsafe { own.forget_other_threads() });
        call(&t, 1);
        drop(observer);
        assert!(t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// Regression: the child forgot the enclosing call, whose end then made the count negative.
    #[test]
    fn child_of_a_fork_inside_two_observer_calls_continues() {
        struct Forks(Arc<Observers<Any>>);
        impl Drop for Forks {
            fn drop(&mut self) {
                // SAFETY: this is the only thread, as in a child.
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
