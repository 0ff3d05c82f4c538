//! Test scenarios in which threads add and remove observers while other threads call them.

use super::{Observers, Place};
use crate::{Arc, Mutex, UnsafeCell, thread};
use std::sync::Arc as Shared;

type SharedObservers = Shared<Observers<dyn Fn() + Send + Sync>>;

/// A cell that observers read. The test writes the cell when no observer can be running.
struct ObservedCell(UnsafeCell<u32>);
// SAFETY: the checker reports a racing write of the cell.
unsafe impl Sync for ObservedCell {}
// SAFETY: the checker reports a racing write of the cell.
unsafe impl Send for ObservedCell {}

/// A reference from an observer to the cell. The cell is written when the observer is dropped.
struct Watch(Arc<ObservedCell>);
impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the checker reports any racing access of the cell.
        self.0.0.with_mut(|p| unsafe { *p = 0 });
    }
}

fn observe(all: &SharedObservers) -> Option<(Arc<ObservedCell>, Place)> {
    let seen = Arc::new(ObservedCell(UnsafeCell::new(0)));
    // SAFETY: no other thread can access the cell yet.
    seen.0.with_mut(|p| unsafe { *p = 1 });
    let watch = Watch(seen.clone());
    // SAFETY: the checker reports a racing write of the cell.
    let observer = all.add(Box::new(move || watch.0.0.with(|p| assert_eq!(unsafe { *p }, 1))));
    Some((seen, observer.ok()?))
}
fn remove(all: &SharedObservers, (seen, place): (Arc<ObservedCell>, Place)) {
    all.remove(place);
    // SAFETY: the checker reports any racing access of the cell.
    seen.0.with_mut(|p| unsafe { *p = 2 });
}
fn call(all: &SharedObservers) {
    all.each(|observer| observer());
}

/// An observer's data is initialised before its first call, even if another thread calls it. No call of the observer
/// runs after `remove` returns.
fn observer() {
    let here = SharedObservers::default();
    let there = here.clone();
    let t = thread::spawn(move || call(&there));
    observe(&here).into_iter().for_each(|observer| remove(&here, observer));
    t.join().unwrap();
}

/// If a slot is reused, the new observer finds it empty.
fn reused_slot_is_empty() {
    let here = SharedObservers::default();
    let there = here.clone();
    let t = thread::spawn(move || observe(&there).into_iter().for_each(|observer| remove(&there, observer)));
    if let Some(observer) = observe(&here) {
        call(&here);
        remove(&here, observer);
    }
    t.join().unwrap();
    // SAFETY: the other thread has ended.
    unsafe { here.forget_other_threads() };
    observe(&here).into_iter().for_each(|observer| remove(&here, observer));
}

/// A second observer gets the slot of the first observer, whose last call may still be running.
fn second_observer_reuses_slot() {
    let here = SharedObservers::default();
    let there = here.clone();
    let t = thread::spawn(move || call(&there));
    for _ in 0..2 {
        observe(&here).into_iter().for_each(|observer| remove(&here, observer));
    }
    t.join().unwrap();
}

/// In this scenario, an observer removes itself. When an observer removes itself, `remove` does not wait, and the end
/// of its last call frees the slot.
fn observer_drops_itself() {
    let here = SharedObservers::default();
    let own: Arc<Mutex<Option<Place>>> = Arc::new(Mutex::new(None));
    let (all, own_too) = (Shared::downgrade(&here), own.clone());
    let observer = here.add(Box::new(move || {
        let place = own_too.lock().take();
        place.into_iter().for_each(|place| all.upgrade().unwrap().remove(place));
    }));
    *own.lock() = Some(observer.unwrap());
    let there = here.clone();
    let t = thread::spawn(move || call(&there));
    call(&here);
    t.join().unwrap();
    assert!(own.lock().is_none());
    let last = observe(&here).expect("a slot must be free");
    remove(&here, last);
}

crate::scenarios! {
    #![planted(uslab_planted)]

    an_observer_comes_and_goes_beside_a_call {
        loom("observer comes and goes", Model::new(Bound::Preemptions(3), 7000), observer);
        bug("a closed observer is called", "observers", "Causality violation");
        bug("dropping an observer does not wait for its calls", "observers", "Causality violation");
    }
    two_observers_of_one_place {
        loom("two observers compete for one place", Model::new(Bound::Preemptions(3), 900), reused_slot_is_empty);
    }
    one_observer_after_the_other {
        loom("two observers run one after the other during a call", Model::new(Bound::Preemptions(3), 24_000), second_observer_reuses_slot);
        bug("an observer slot is freed during a call", "observers", "maximum number of branches");
    }
    an_observer_that_drops_itself {
        loom("an observer drops itself beside a call", Model::new(Bound::Preemptions(3), 4300), observer_drops_itself);
    }
}
