//! Exhaustive models of handles that threads share: the shipping source under loom, on two to four pages.

use super::{Generations, Handle, HandleCache};
use crate::Config;
use crate::cache::core::Core;
use crate::debug::check::{Bound, on_cpu};
use crate::scenarios::world::SMALL;
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
struct Objects {
    /// Dropped at the end of an execution that succeeded only.
    cache: ManuallyDrop<HandleCache<Watched, u32, 28>>,
    core: std::sync::Arc<Core>,
    /// A handle on its way, without any ordering.
    passed: AtomicU64,
    /// What belongs to whoever owns index 0.
    beside: Watched,
}

impl Objects {
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

/// H1: a handle that is held is the old object until it is let go, or nothing.
fn held_beside_a_free_and_the_next_life() {
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

/// H2: one frees, the object comes back once.
fn two_frees_of_one_handle() {
    let world = Objects::new(SMALL);
    let handle = world.alloc(1);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.cache.free(handle)
    });
    let mine = world.cache.free(handle);
    assert!(mine != t.join().unwrap(), "one of the two frees it");
    Objects::end(world, 0);
}

/// H3: the last one gives the object back, once.
fn two_holders_beside_a_free() {
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

/// H4: who gets it finds the object prepared, and may free it. What kills this model are weaker orderings.
fn a_handle_that_is_passed_on_without_any_ordering() {
    let world = Objects::new(Magazines::Off);
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
    Objects::end(world, 1);
}

/// H4: whoever guesses a handle before it is given out finds its object prepared, or nothing.
fn a_guessed_handle_beside_its_allocation() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let guess = Named::new(0, 1).expect("the first that there may be");
        if other.find(guess, 1) {
            other.cache.free(guess);
        }
    });
    let handle = world.alloc(1);
    t.join().unwrap();
    let used = world.cache.is_valid(handle).into();
    Objects::end(world, used);
}

/// H4: the one who frees a passed handle does not hold the object before.
fn a_passed_handle_is_freed_at_once() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        if other.passed().is_some_and(|handle| other.cache.free(handle)) {
            other.alloc(2);
        }
    });
    world.pass(world.alloc(1));
    t.join().unwrap();
    Objects::end(world, 1);
}

/// H5: whoever gave the object back. What kills this model are weaker orderings.
fn what_was_done_before_a_free_comes_before_the_next_life() {
    let world = Objects::new(Magazines::Off);
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
    Objects::end(world, 1);
}

/// H6: two numbers, and entries.
fn two_objects_get_numbers_at_once() {
    let world = Objects::new(Magazines::Off);
    let other = world.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.alloc(2)
    });
    let mine = world.alloc(1);
    let theirs = t.join().unwrap();
    assert_eq!((mine.index() + theirs.index(), mine.generation(), theirs.generation()), (1, 1, 1));
    assert!(world.find(mine, 1) && world.find(theirs, 2));
    Objects::end(world, 2);
}

/// H7: beside stale handles, none of which finds the new one.
fn a_number_goes_from_a_destructed_object_to_a_new_one() {
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

const TWO: Bound = Bound::Preemptions(2);
const THREE: Bound = Bound::Preemptions(3);

uslab_magazine::sync::scenarios! {
    h1 {
        loom("H1 handles: held beside a free and the next life", Model::new(THREE, 220), held_beside_a_free_and_the_next_life);
        bug("a handle is looked at and then counted", "H1", "another object");
        bug("an object keeps its generation", "H1", "another object");
    }
    h2 {
        loom("H2 handles: two frees of one", Model::new(THREE, 50), two_frees_of_one_handle);
        bug("a handle is looked at and then freed", "H2", "object freed twice");
    }
    h3 {
        loom("H3 handles: two holders beside a free", Model::new(TWO, 900), two_holders_beside_a_free);
        bug("a free does not wait for holders", "H3", "object freed twice");
    }
    h4 {
        loom("H4 handles: passed on", Model::new(THREE, 20), a_handle_that_is_passed_on_without_any_ordering);
    }
    h4_guessed {
        loom("H4 handles: guessed", Model::new(THREE, 140), a_guessed_handle_beside_its_allocation);
    }
    h4_freed_at_once {
        loom("H4 handles: passed on and freed", Model::new(THREE, 20), a_passed_handle_is_freed_at_once);
    }
    h5 {
        loom("H5 handles: before a free, before the next life", Model::new(THREE, 140), what_was_done_before_a_free_comes_before_the_next_life);
    }
    h6 {
        loom("H6 handles: two get numbers", Model::new(THREE, 1100), two_objects_get_numbers_at_once);
        bug("a number is chosen in one lock hold and taken in the next", "H6", "(0, 1, 1)");
    }
    h7 {
        loom("H7 handles: a number goes to a new object", Model::new(THREE, 350), a_number_goes_from_a_destructed_object_to_a_new_one);
        bug("a number begins anew with a new object", "H7", "a stale handle is valid");
    }
}
