//! Small, exhaustive models of handles, with two or three threads on two pages.

use super::{ObjectHandle, Objects};
use crate::Magazines;
use crate::debug::check::on_cpu;
use crate::scenarios::world::SMALL;
use uslab_magazine::sync::thread;

/// H1: a held handle refers to the old object until the handle is dropped, or else the handle is stale.
pub(in crate::scenarios) fn hold_object_across_reuse() {
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

/// H2: if one handle is freed twice, one free succeeds, and the object returns to the cache once.
pub(in crate::scenarios) fn race_two_frees_of_handle() {
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

/// H3: the last holder returns the object to the cache, exactly once.
pub(in crate::scenarios) fn race_free_with_two_holders() {
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

/// H4: a thread that receives a handle from another thread finds the object prepared, and may free it. This model would
/// fail if the memory orderings were weaker.
pub(in crate::scenarios) fn pass_handle_without_ordering() {
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

/// H4: a thread that guesses a handle before it is handed out finds a prepared object or nothing.
pub(in crate::scenarios) fn guess_handle_during_alloc() {
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

/// H4: a thread frees a handle that it received, without holding the object first.
pub(in crate::scenarios) fn free_passed_handle_unheld() {
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

/// H5: all writes to an object precede its next life, whichever thread returned the object. This model would fail if
/// the memory orderings were weaker.
pub(in crate::scenarios) fn order_writes_before_slot_reuse() {
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

/// H6: two objects that are numbered concurrently get different numbers and different entries.
pub(in crate::scenarios) fn race_two_number_assignments() {
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

/// H7: a stale handle does not find the new object that reuses its number.
pub(in crate::scenarios) fn reuse_number_after_destruction() {
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
