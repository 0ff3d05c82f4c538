//! Small, exhaustive models of handles, with two or three threads on two pages.

use super::{ObjectHandle, Objects};
use crate::Magazines;
use crate::debug::check::on_cpu;
use crate::scenarios::world::SMALL;
use uslab_magazine::sync::thread;

/// H1: a held handle refers to the old object until it is dropped, or else the handle is stale.
pub(in crate::scenarios) fn held_during_a_free_and_the_next_life() {
    let world = Objects::new(SMALL);
    let handle = world.alloc(1);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        assert!(other.cache.free(handle));
        other.alloc(2)
    });
    world.find(handle, 1);
    let next = t.join().unwrap();
    assert!(!world.find(handle, 1) && !world.cache.is_valid(handle), "a stale handle is valid");
    assert!(world.find(next, 2));
    Objects::end(world, 1);
}

/// H2: of two frees of one handle, one succeeds, and the object is returned to the cache once.
pub(in crate::scenarios) fn two_frees_of_one_handle() {
    let world = Objects::new(SMALL);
    let handle = world.alloc(1);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.cache.free(handle)
    });
    let is_freed = world.cache.free(handle);
    assert!(is_freed != t.join().unwrap(), "one of the two frees succeeds");
    Objects::end(world, 0);
}

/// H3: the last holder returns the object, once.
pub(in crate::scenarios) fn two_holders_during_a_free() {
    let world = Objects::new(Magazines::Off);
    let handle = world.alloc(1);
    let held = world.cache.get(handle).unwrap();
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.find(handle, 1)
    });
    let freer = world.clone();
    let f = thread::spawn(move || assert!(freer.cache.free(handle)));
    assert_eq!(held.get(), 1);
    drop(held);
    t.join().unwrap();
    f.join().unwrap();
    Objects::end(world, 0);
}

/// H4: a thread that receives a handle finds the object prepared, and may free it. If the memory orderings were
/// weaker, this model would fail.
pub(in crate::scenarios) fn a_handle_that_is_passed_on_without_any_ordering() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let Some((handle, _)) = other.shared_handle(0) else { return };
        // For this thread, the access happens either before the object's life begins, or during that life.
        if other.find(handle, 1) && other.cache.free(handle) {
            // In most executions this allocation gets the same object.
            other.alloc(2);
        }
    });
    world.pass(0, world.alloc(1), 1);
    t.join().unwrap();
    Objects::end(world, 1);
}

/// H4: a thread that guesses a handle before it is handed out either finds the object prepared, or finds
/// nothing.
pub(in crate::scenarios) fn a_handle_guessed_during_its_allocation() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let guess = ObjectHandle::new(0, 1).expect("the first generation must exist");
        if other.find(guess, 1) {
            other.cache.free(guess);
        }
    });
    let handle = world.alloc(1);
    t.join().unwrap();
    let used = world.cache.is_valid(handle).into();
    Objects::end(world, used);
}

/// H4: a thread frees a passed handle without holding the object before.
pub(in crate::scenarios) fn a_passed_handle_is_freed_without_holding() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        if other.shared_handle(0).is_some_and(|(handle, _)| other.cache.free(handle)) {
            other.alloc(2);
        }
    });
    world.pass(0, world.alloc(1), 1);
    t.join().unwrap();
    Objects::end(world, 1);
}

/// H5: writes precede the next life, whichever thread returned the object. If the memory orderings were
/// weaker, this model would fail.
pub(in crate::scenarios) fn writes_before_a_free_precede_the_next_life() {
    let world = Objects::new(Magazines::Off);
    let handle = world.alloc(1);
    assert_eq!(handle.index(), 0);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        drop(other.cache.get(handle));
        let first = other.alloc(2);
        if first.index() == 0 {
            // This thread owns the object, and the state that belongs to its index.
            other.index_0_state.set(2);
        }
    });
    world.index_0_state.set(1);
    assert!(world.cache.free(handle));
    t.join().unwrap();
    Objects::end(world, 1);
}

/// H6: two objects that are numbered concurrently get two numbers and two entries.
pub(in crate::scenarios) fn two_objects_get_numbers_concurrently() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.alloc(2)
    });
    let first = world.alloc(1);
    let second = t.join().unwrap();
    assert_eq!((first.index() + second.index(), first.generation(), second.generation()), (1, 1, 1));
    assert!(world.find(first, 1) && world.find(second, 2));
    Objects::end(world, 2);
}

/// H7: a stale handle does not find the new object that has its number.
pub(in crate::scenarios) fn a_number_is_reused_after_destruction() {
    let world = Objects::new(Magazines::Off);
    let stale = world.alloc(1);
    world.cache.free(stale);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.cache.shrink();
        other.cache.is_valid(stale)
    });
    let handle = world.alloc(2);
    let found = world.cache.is_valid(stale);
    assert!(!t.join().unwrap() && !found, "a stale handle is valid");
    assert!(world.find(handle, 2) && !world.find(stale, 1));
    Objects::end(world, 1);
}
