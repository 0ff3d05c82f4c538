//! Observers: registered functions that many threads call without a lock, and that any thread may remove.
//!
//! A call first increments the count of running calls in the observer's slot, and then tests the slot's open flag. A
//! thread that removes an observer closes the slot, and waits until all counted calls have ended. The last counted call
//! drops the observer's function. When `remove` returns, no call is running, and the function is dropped. Calling an
//! observer takes no lock and never waits. Signal handlers may therefore call observers, and a `fork` needs no lock for
//! them.

// loom's `thread_local!` has no `const` form.
#![allow(clippy::missing_const_for_thread_local)]

use crate::Ordering::{Acquire, Relaxed, Release};
use crate::{AtomicU32, Counter, UnsafeCell, contain_panic, thread_local};
use core::cell::Cell;
use core::fmt;

/// Maximum number of registered observers. In models there is only one slot, so that observers compete for it.
pub const MAX_OBSERVERS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// A set of up to [`MAX_OBSERVERS`] registered functions of the `dyn Fn` type `F`.
pub struct Observers<F: ?Sized> {
    /// Number of registered observers. A reader with a stale count acts as if it ran slightly earlier or later, which
    /// is harmless.
    registered: Counter,
    slots: [Slot<F>; MAX_OBSERVERS],
    suppressed: Counter,
    panics: Counter,
}

/// A slot for one registered function. The field `state` contains the flags of the slot and the number of running
/// calls. If the function was removed, the last running call drops it. Only the last running call clears the flag
/// `SLOT_CLOSING`.
struct Slot<F: ?Sized> {
    state: AtomicU32,
    observer: UnsafeCell<Option<Box<F>>>,
}
/// Flag: the slot is in use or reserved.
const SLOT_RESERVED: u32 = 1 << 31;
/// Flag: the slot contains a function that may be called.
const SLOT_OPEN: u32 = 1 << 30;
/// Flag: the slot is closed, and its last running call must drop the function.
const SLOT_CLOSING: u32 = 1 << 29;
/// Flag: the removing thread does not wait, so the last running call must also free the slot.
const LAST_CALL_FREES_SLOT: u32 = 1 << 28;

// SAFETY: calls need `Sync`, and dropping the function on any thread needs `Send`. Two threads write the cell: the
// thread that set `SLOT_RESERVED`, before the slot opens, and the last running call.
unsafe impl<F: ?Sized + Send + Sync> Sync for Slot<F> {}
// SAFETY: dropping the function on another thread needs `Send`, which this impl requires.
unsafe impl<F: ?Sized + Send + Sync> Send for Slot<F> {}

impl<F: ?Sized> fmt::Debug for Observers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("there", &self.registered).finish_non_exhaustive()
    }
}

/// The record of a running observer call on this thread: the address of its slot, and the enclosing call. The record is
/// in the stack frame of the call.
struct RunningCall {
    slot: usize,
    outer: *const Self,
}

thread_local! {
    /// The innermost observer call that is running on this thread.
    static INNERMOST_CALL: Cell<*const RunningCall> = Cell::new(core::ptr::null());
}

fn is_inside() -> bool {
    !INNERMOST_CALL.with(Cell::get).is_null()
}

/// The error of registering an observer when [`MAX_OBSERVERS`] observers are already registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyObservers;

impl fmt::Display for TooManyObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all {MAX_OBSERVERS} observers are already in use")
    }
}
impl core::error::Error for TooManyObservers {}

/// The identity of a [registered](Observers::add) function, which [`Observers::remove`] needs.
#[derive(Debug)]
#[must_use = "the function cannot be removed without its place"]
pub struct Place(usize);

impl<F: ?Sized> Default for Observers<F> {
    fn default() -> Self {
        let slot = |_| Slot { state: AtomicU32::new(0), observer: UnsafeCell::new(None) };
        let slots = core::array::from_fn(slot);
        Self { registered: Counter::new(0), slots, suppressed: Counter::new(0), panics: Counter::new(0) }
    }
}

impl<F: ?Sized> Observers<F> {
    /// Registers the function `observer`, which other threads may call immediately.
    ///
    /// # Errors
    /// Returns [`TooManyObservers`] if no slot is free.
    pub fn add(&self, observer: Box<F>) -> Result<Place, TooManyObservers> {
        // Acquire: pairs with the Release of the call that took the previous function out of the slot.
        let free = |slot: &Slot<F>| slot.state.fetch_or(SLOT_RESERVED, Acquire) & SLOT_RESERVED == 0;
        let at = self.slots.iter().position(free).ok_or(TooManyObservers)?;
        let slot = &self.slots[at];
        // SAFETY: this thread has just reserved the slot, and the slot is not open yet.
        slot.observer.with_mut(|p| unsafe { *p = Some(observer) });
        // Release: pairs with the Acquire in `call`.
        slot.state.fetch_or(SLOT_OPEN, Release);
        self.registered.add(1);
        Ok(Place(at))
    }

    /// Removes a registered function. When `remove` returns, the function is dropped, and no call of it is running or
    /// will begin. Inside an observer call, `remove` does not wait, and calls on other threads may still be running.
    pub fn remove(&self, Place(at): Place) {
        self.registered.sub(1);
        let slot = &self.slots[at];
        let inside = is_inside();
        // Relaxed: the extra count only delays the drop until the flags are set.
        slot.state.fetch_add(1, Relaxed);
        slot.close(if inside { LAST_CALL_FREES_SLOT } else { 0 });
        slot.end_call();
        if inside {
            return;
        }
        // Acquire: pairs with the Release of the call that took the function out of the slot.
        while slot.state.load(Acquire) & SLOT_CLOSING != 0 {
            crate::relax();
        }
        // Relaxed: `add` synchronises with the Release of the call that took the function out of the slot.
        slot.state.fetch_and(!SLOT_RESERVED, Relaxed);
    }

    /// Returns `true` if at least one observer is registered. Inside an observer call, `is_active` returns `false` and
    /// counts a suppressed call.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.registered.get() > 0 && self.is_outside_call()
    }
    #[cold]
    fn is_outside_call(&self) -> bool {
        let outside = !is_inside();
        self.suppressed.add(u64::from(!outside));
        outside
    }

    /// Calls `show` once for each registered function. A function that panics is not called again. A panic of a
    /// function does not propagate to the caller.
    pub fn each(&self, show: impl Fn(&F)) {
        let panicked = self.slots.iter().filter(|slot| slot.call(&show)).count();
        self.panics.add(panicked as u64);
    }

    /// Number of observer calls that were suppressed because they occurred
    /// [inside another observer call](Self::is_active).
    pub fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }
    /// Number of observers that have panicked.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// In the child of a `fork`, forgets observer calls that were running on other threads.
    ///
    /// # Safety
    /// The calling thread must be the only thread of the process, which must be the child of a `fork`.
    pub unsafe fn forget_other_threads(&self) {
        // SAFETY: the pointer is null, or points into the frame of an `enter` that has not returned.
        let first = unsafe { INNERMOST_CALL.with(Cell::get).as_ref() };
        // SAFETY: `outer` is null, or points into the frame of an `enter` that has not returned.
        let inside = core::iter::successors(first, |inside| unsafe { inside.outer.as_ref() });
        for slot in &self.slots {
            let calls = inside.clone().filter(|inside| inside.slot == slot.address()).count() as u32;
            // Relaxed: the child of a `fork` has one thread. If another thread was about to take a function out, the
            // function stays in the slot.
            let state = slot.state.load(Relaxed);
            slot.state.store(
                state & (SLOT_RESERVED | SLOT_OPEN | SLOT_CLOSING | LAST_CALL_FREES_SLOT) | calls,
                Relaxed,
            );
        }
    }
}

impl<F: ?Sized> Slot<F> {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Calls an observer or drops it, and records that the thread is inside an observer call. Returns `None` if the
    /// observer panicked.
    fn enter<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        let this = RunningCall { slot: self.address(), outer: INNERMOST_CALL.with(Cell::get) };
        INNERMOST_CALL.with(|inside| inside.set(&raw const this));
        let result = contain_panic(run);
        INNERMOST_CALL.with(|inside| inside.set(this.outer));
        result
    }

    /// Calls the function in the slot if the slot is open. Returns `true` if the function panicked.
    fn call(&self, show: &impl Fn(&F)) -> bool {
        // Relaxed: this early test is a hint. The state is tested again after the call is counted.
        if self.state.load(Relaxed) & SLOT_OPEN == 0 {
            return false;
        }
        let mut panicked = false;
        // Acquire: pairs with the Release in `add`, which follows the write of the function.
        let before = self.state.fetch_add(1, Acquire);
        if before & SLOT_OPEN != 0 {
            // SAFETY: the slot was open when this call was counted, so the function stays until this call is uncounted.
            let call = || self.observer.with(|p| unsafe { (*p).as_deref() }.map(show));
            panicked = self.enter(call).is_none();
            if panicked {
                self.close(0);
            }
        }
        self.end_call();
        panicked
    }
    /// Closes the slot, so that no call of its observer begins any more. The last running call removes the function
    /// from the slot. The calling thread must be inside a counted call of the slot.
    fn close(&self, left: u32) {
        // Relaxed: the Release in `end_call` orders these flags before the function is taken out.
        self.state.fetch_or(SLOT_CLOSING | left, Relaxed);
        self.state.fetch_and(!SLOT_OPEN, Relaxed);
    }
    /// Ends an observer call that was counted in the slot. The last call of a closed slot removes the function and
    /// drops it.
    fn end_call(&self) {
        // Release: pairs with the Acquire of the exchange below, so all calls precede the drop.
        let before = self.state.fetch_sub(1, Release);
        let last = before - 1;
        if last & !LAST_CALL_FREES_SLOT != SLOT_RESERVED | SLOT_CLOSING {
            return;
        }
        // Several calls may read the state in which the function must be dropped. The call that wins the exchange
        // counts itself again. Acquire: pairs with the Release of each finished call.
        if self.state.compare_exchange(last, last + 1, Acquire, Relaxed).is_ok() {
            // SAFETY: the slot is closed, and no other counted call saw the slot open.
            let observer = self.observer.with_mut(|p| unsafe { (*p).take() });
            _ = self.enter(|| drop(observer));
            // Relaxed: a first guess of the state, which the exchange verifies. Release: pairs with the Acquire in
            // `remove`, in `add`, and in the exchange above.
            let mut state = self.state.load(Relaxed);
            while let Err(now) =
                self.state.compare_exchange(state, Self::state_after_dropping_call(state), Release, Relaxed)
            {
                state = now;
            }
        }
    }
    /// Returns the new state of the slot when the call that dropped the function ends. The call ends and the slot
    /// becomes free in one atomic step, so that the count is 0 when another observer gets the slot.
    fn state_after_dropping_call(state: u32) -> u32 {
        let done = match state & !(SLOT_RESERVED | SLOT_OPEN | SLOT_CLOSING | LAST_CALL_FREES_SLOT) {
            1 if state & LAST_CALL_FREES_SLOT == 0 => SLOT_CLOSING,
            // A call that removes its own observer may set `LAST_CALL_FREES_SLOT` while the function is dropped.
            1 => SLOT_CLOSING | LAST_CALL_FREES_SLOT | SLOT_RESERVED,
            // Other calls were counted during the function's drop. The last call finds no function and frees the slot.
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

    /// Removes an observer when the guard is dropped.
    struct Guard(Arc<Observers<Any>>, Option<Place>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.1.take().into_iter().for_each(|place| self.0.remove(place));
        }
    }
    fn new_guard(all: &Arc<Observers<Any>>, f: impl Fn(u32) + Send + Sync + 'static) -> Guard {
        Guard(all.clone(), Some(all.add(Box::new(f)).unwrap()))
    }

    fn observers() -> Arc<Observers<Any>> {
        Arc::default()
    }
    fn call(all: &Observers<Any>, with: u32) {
        if all.is_active() {
            all.each(|f| f(with));
        }
    }
    /// Registers an observer that sends the argument of each call to a channel.
    fn observe_into_channel(all: &Arc<Observers<Any>>) -> (Guard, Receiver<u32>) {
        let (seen, read) = channel();
        (new_guard(all, move |with| seen.send(with).unwrap()), read)
    }

    #[test]
    fn number_of_observers_is_limited() {
        let t = observers();
        for _ in 0..3 {
            let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| observe_into_channel(&t)).collect();
            let error = t.add(Box::new(|_| ())).unwrap_err();
            assert_eq!(
                (error, error.to_string()),
                (TooManyObservers, "all 4 observers are already in use".into())
            );
            call(&t, 7);
            assert!(all.iter().all(|(_, read)| read.try_recv() == Ok(7)));
            let (gone, reads): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            drop(gone);
            call(&t, 8);
            assert!(reads.into_iter().all(|read| read.recv().is_err()), "the function was dropped");
        }
        assert!(!t.is_active());
    }

    #[test]
    fn calls_made_by_an_observer_are_not_observed() {
        let t = observers();
        let (_first, read) = observe_into_channel(&t);
        let own = t.clone();
        let _second = new_guard(&t, move |with| call(&own, with));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!((read.try_iter().count(), t.suppressed()), (2, 2));
    }

    /// Regression: if an observer panicked again while it was dropped, the panic propagated to the caller, and the
    /// removing thread waited for ever.
    #[test]
    fn panic_while_dropping_a_panic_payload_is_caught() {
        struct PanickingDrop;
        impl Drop for PanickingDrop {
            fn drop(&mut self) {
                panic!("a payload");
            }
        }
        let t = observers();
        let panics = new_guard(&t, |_| std::panic::panic_any(PanickingDrop));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!(t.panics(), 1);
        drop(panics);
        // The `Drop` of a captured value may panic, too.
        let bomb = PanickingDrop;
        let captures = new_guard(&t, move |_| _ = &bomb);
        call(&t, 0);
        drop(captures);
        assert_eq!(t.panics(), 1);
    }

    #[test]
    fn only_the_panicking_observer_is_disabled() {
        let t = observers();
        let calls = Arc::new(Counter::new(0));
        let count = calls.clone();
        let panics = new_guard(&t, move |_| {
            count.add(1);
            panic!("intended panic of an observer");
        });
        let (_other, read) = observe_into_channel(&t);
        (0..3).for_each(|with| call(&t, with));
        assert_eq!((calls.get(), read.try_iter().count(), t.panics()), (1, 3, 1));
        assert_eq!(Arc::strong_count(&calls), 1, "the function was dropped");
        drop(panics);
        let all: Vec<_> = (1..MAX_OBSERVERS).map(|_| observe_into_channel(&t)).collect();
        assert!(t.add(Box::new(|_| ())).is_err() && all.len() == 3, "the observer's slot is free");
    }

    /// Regression: if an observer removed itself, its slot stayed reserved for ever.
    #[test]
    fn panicking_observer_can_drop_its_guard() {
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
        *own_too.lock() = Some(new_guard(&t, move |_| {
            _ = &own;
            panic!("intended panic of an observer");
        }));
        call(&t, 1);
        assert!(own_too.lock().is_none() && t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// If no other thread is calling the observer, the end of the call drops it and frees its slot.
    #[test]
    fn observer_can_register_and_drop_observers() {
        type TwoGuards = (Guard, Guard);
        let t = observers();
        let (own, other) = (Arc::new(Mutex::new(None::<TwoGuards>)), observe_into_channel(&t).0);
        let (own_too, t_too) = (own.clone(), t.clone());
        let observer = new_guard(&t, move |_| {
            let taken = own_too.lock().take();
            drop(taken.expect("the function is called once"));
            drop(new_guard(&t_too, |_| unreachable!("operations inside an observer are not observed")));
        });
        *own.lock() = Some((observer, other));
        (0..2).for_each(|with| call(&t, with));
        assert_eq!(Arc::strong_count(&own), 1);
        let all: Vec<_> = (0..MAX_OBSERVERS).map(|_| observe_into_channel(&t)).collect();
        assert_eq!((all.len(), t.registered.get()), (4, 4));
    }

    /// After the guard is dropped, the observer no longer uses its captured values, so the test may free them.
    #[test]
    fn observer_drop_waits_for_calls_on_other_threads() {
        let t = observers();
        let (inside, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inside_too, over_too) = (inside.clone(), over.clone());
        let observer = new_guard(&t, move |_| {
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

    /// In the child of a `fork`, the threads whose calls were counted do not exist.
    #[test]
    fn forked_child_does_not_wait_for_observer_calls() {
        let t = observers();
        let (observer, _read) = observe_into_channel(&t);
        t.slots[0].state.fetch_add(2, Relaxed);
        // SAFETY: this is the only thread, as in a child.
        unsafe { t.forget_other_threads() };
        drop(observer);
        let own = t.clone();
        // SAFETY: this is the only thread. An observer calls `forget_other_threads`.
        let observer = new_guard(&t, move |_| unsafe { own.forget_other_threads() });
        call(&t, 1);
        drop(observer);
        assert!(t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }

    /// Regression: after a fork inside nested observer calls, the child forgot the enclosing call, so the count became
    /// negative when that call ended.
    #[test]
    fn fork_inside_nested_observer_calls_frees_their_slots() {
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
        let outer = new_guard(&t, move |_| drop(own_too.lock().take()));
        *own.lock() = Some(new_guard(&t, move |_| _ = &forks));
        call(&t, 1);
        drop(outer);
        assert!(own.lock().is_none() && t.slots.iter().all(|slot| slot.state.load(Relaxed) == 0));
    }
}
