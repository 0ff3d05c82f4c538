//! Exhaustive models of handles that threads share: the shipping source under loom, on two to four pages.
//!
//! | model | claim | planted bug that it catches |
//! |---|---|---|
//! | H1 | a handle that is held beside a free and the object's next life: it is the old object until it is let go, or nothing | a handle is looked at and then counted; a free does not wait for holders; an object keeps its generation |
//! | H2 | two frees of one handle: one frees, the object comes back once | a handle is looked at and then freed |
//! | H3 | two holders beside a free: the last one gives the object back, once | a free does not wait for holders |
//! | H4 | a handle that is passed on without any ordering: who gets it finds the object prepared, and may free it | (orderings) |
//! | H5 | what a thread did before its free comes before the object's next life, whoever gave it back | (orderings) |
//! | H6 | two objects get numbers, and entries, at once: two numbers | a number is chosen in one lock hold and taken in the next |
//! | H7 | a number goes from a destructed object to a new one beside stale handles: none finds the new one | a number begins anew with a new object |

use super::{Generations, Handle, HandleCache};
use crate::Config;
use crate::cache::core::Core;
use crate::debug::check::{Bound, caught, model, on_cpu};
use crate::world::SMALL;
use crate::{Magazines, ObjectCache};
use core::mem::ManuallyDrop;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{Arc, AtomicU64, UnsafeCell, thread};

/// A value that loom watches.
struct Watched(UnsafeCell<u32>);
// SAFETY: loom watches the cell.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    fn set(&self, value: u32) {
        // SAFETY: loom watches the access.
        self.0.with_mut(|at| unsafe { *at = value });
    }
    fn get(&self) -> u32 {
        // SAFETY: loom watches the access.
        self.0.with(|at| unsafe { *at })
    }
}

type Named = Handle<u32, 28>;

/// Named objects, and what user code keeps beside.
struct World {
    /// Dropped at the end of an execution that succeeded only.
    cache: ManuallyDrop<HandleCache<Watched, u32, 28>>,
    core: std::sync::Arc<Core>,
    /// A handle on its way, without any ordering.
    passed: AtomicU64,
    /// What belongs to whoever owns index 0.
    beside: Watched,
}

impl World {
    fn new(magazines: Magazines) -> Arc<Self> {
        on_cpu(0);
        let core = Core::new(Config { magazines, ..Config::for_models(2) }).unwrap();
        let builder = ObjectCache::builder("named").ctor(Watched::new);
        let cache = ManuallyDrop::new(builder.build_handles_on(&core, Generations::default()).unwrap());
        Arc::new(Self { cache, core, passed: AtomicU64::new(0), beside: Watched::new() })
    }
    fn alloc(&self, value: u32) -> Named {
        self.cache.alloc_with(|object| object.set(value)).unwrap()
    }
    /// Whatever the handle finds is `value`, for as long as it is held.
    fn find(&self, handle: Named, value: u32) -> bool {
        let Some(held) = self.cache.get(handle) else { return false };
        assert_eq!((held.get(), held.get()), (value, value), "another object");
        true
    }
    fn pass(&self, handle: Named) {
        self.passed.store(handle.to_bits().into(), Relaxed);
    }
    fn passed(&self) -> Option<Named> {
        Named::from_bits(self.passed.load(Relaxed) as u32)
    }
    fn census(&self, used: u64) {
        let census = self.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(census.used, used, "census: {census:?}");
    }
    /// So many objects are in use; the cache goes, and takes them along.
    fn end(this: Arc<Self>, used: u64) {
        on_cpu(0);
        this.census(used);
        let Ok(mut world) = Arc::try_unwrap(this) else { panic!("the threads have ended") };
        // SAFETY: `world` goes out of use here.
        unsafe { ManuallyDrop::drop(&mut world.cache) };
        world.core.memory.pages.release();
        let census = world.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
    }
}

fn h1_held_beside_a_free_and_the_next_life() {
    let world = World::new(SMALL);
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
    World::end(world, 1);
}

fn h2_two_frees_of_one_handle() {
    let world = World::new(SMALL);
    let handle = world.alloc(1);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.cache.free(handle)
    });
    let mine = world.cache.free(handle);
    assert!(mine != t.join().unwrap(), "one of the two frees it");
    World::end(world, 0);
}

fn h3_two_holders_beside_a_free() {
    let world = World::new(Magazines::Off);
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
    World::end(world, 0);
}

fn h4_a_handle_that_is_passed_on_without_any_ordering() {
    let world = World::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let Some(handle) = other.passed() else { return };
        // Before its life begins, as this thread sees it, or in it.
        if other.find(handle, 1) && other.cache.free(handle) {
            // The same object, most often.
            other.alloc(2);
        }
    });
    world.pass(world.alloc(1));
    t.join().unwrap();
    World::end(world, 1);
}

/// The one who frees a passed handle does not hold the object before.
fn h4_a_passed_handle_is_freed_at_once() {
    let world = World::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        if other.passed().is_some_and(|handle| other.cache.free(handle)) {
            other.alloc(2);
        }
    });
    world.pass(world.alloc(1));
    t.join().unwrap();
    World::end(world, 1);
}

fn h5_what_was_done_before_a_free_comes_before_the_next_life() {
    let world = World::new(Magazines::Off);
    let handle = world.alloc(1);
    assert_eq!(handle.index(), 0);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        drop(other.cache.get(handle));
        let mine = other.alloc(2);
        if mine.index() == 0 {
            // The object is this thread's: so is what belongs to its index.
            other.beside.set(2);
        }
    });
    world.beside.set(1);
    assert!(world.cache.free(handle));
    t.join().unwrap();
    World::end(world, 1);
}

fn h6_two_objects_get_numbers_at_once() {
    let world = World::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.alloc(2)
    });
    let mine = world.alloc(1);
    let theirs = t.join().unwrap();
    assert_eq!((mine.index() + theirs.index(), mine.generation(), theirs.generation()), (1, 1, 1));
    assert!(world.find(mine, 1) && world.find(theirs, 2));
    World::end(world, 2);
}

fn h7_a_number_goes_from_a_destructed_object_to_a_new_one() {
    let world = World::new(Magazines::Off);
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
    World::end(world, 1);
}

const TWO: Bound = Bound::Preemptions(2);
const THREE: Bound = Bound::Preemptions(3);

#[test]
fn h1() {
    let name = "H1 handles: held beside a free and the next life";
    model(name, THREE, 220, h1_held_beside_a_free_and_the_next_life);
}
#[test]
fn h2() {
    model("H2 handles: two frees of one", THREE, 50, h2_two_frees_of_one_handle);
}
#[test]
fn h3() {
    model("H3 handles: two holders beside a free", TWO, 900, h3_two_holders_beside_a_free);
}
#[test]
fn h4() {
    model("H4 handles: passed on", THREE, 20, h4_a_handle_that_is_passed_on_without_any_ordering);
    model("H4 handles: passed on and freed", THREE, 20, h4_a_passed_handle_is_freed_at_once);
}
#[test]
fn h5() {
    let name = "H5 handles: before a free, before the next life";
    model(name, THREE, 140, h5_what_was_done_before_a_free_comes_before_the_next_life);
}
#[test]
fn h6() {
    model("H6 handles: two get numbers", THREE, 1100, h6_two_objects_get_numbers_at_once);
}
#[test]
fn h7() {
    let name = "H7 handles: a number goes to a new object";
    model(name, THREE, 350, h7_a_number_goes_from_a_destructed_object_to_a_new_one);
}

#[test]
fn planted_bugs_are_caught() {
    let bug = "a handle is looked at and then counted";
    caught(bug, "H1", TWO, "another object", [()], |()| h1_held_beside_a_free_and_the_next_life());
    let bug = "an object keeps its generation";
    caught(bug, "H1", TWO, "another object", [()], |()| h1_held_beside_a_free_and_the_next_life());
    let bug = "a number is chosen in one lock hold and taken in the next";
    caught(bug, "H6", TWO, "(0, 1, 1)", [()], |()| h6_two_objects_get_numbers_at_once());
    let bug = "a number begins anew with a new object";
    caught(bug, "H7", TWO, "a stale handle is valid", [()], |()| {
        h7_a_number_goes_from_a_destructed_object_to_a_new_one()
    });
    let bug = "a handle is looked at and then freed";
    caught(bug, "H2", TWO, "object freed twice", [()], |()| h2_two_frees_of_one_handle());
    let bug = "a free does not wait for holders";
    caught(bug, "H3", TWO, "object freed twice", [()], |()| h3_two_holders_beside_a_free());
}
