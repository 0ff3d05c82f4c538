//! Loom's models of grace periods, with the collector's own atomics (`--cfg crossbeam_loom`): readers run while memory
//! is freed.
//!
//! While a reader is pinned, it delays all frees. Each thread that pins registers with the collector. Models of grace
//! periods therefore have only two threads, which pin once or a few times and do little else.

use super::world::World;
use crate::debug::check::{SPACING, on_cpu};
use crate::{KmemCache, Magazines, rcu};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{Arc, AtomicPtr, AtomicU64, UnsafeCell, fence, planted, relax, thread};

/// Number of turns that complete a grace period whose readers have exited, because the epoch advances twice.
const TURNS_PER_GRACE_PERIOD: usize = 3;

struct SharedObject {
    found: AtomicPtr<u8>,
    contents: UnsafeCell<u64>,
}

impl SharedObject {
    /// Acts as a reader: pins, and reads the object if it is published.
    fn look(&self, world: &World) {
        let mut reader = Some(rcu::pin());
        planted!("a reader is not pinned" => reader = None);
        // Nothing may be dropped while a failing execution unwinds.
        let reader = ManuallyDrop::new(reader);
        if let Some(object) = NonNull::new(self.found.load(Acquire)) {
            // SAFETY: only a thread that has reallocated the object writes; loom reports a race.
            self.contents.with(|contents| {
                assert_eq!(unsafe { *contents }, 7, "the object is the one that was published")
            });
            world.touch(object);
        }
        drop(ManuallyDrop::into_inner(reader));
    }
}

/// Advances the collector until no free is waiting.
fn wait(world: &World) {
    for _ in 0..2 * TURNS_PER_GRACE_PERIOD {
        let info = world.cache().info();
        if info.grace == 0 && info.deferred == 0 {
            return;
        }
        // A joined thread still unregisters from the collector, and is pinned for that.
        relax();
        rcu::advance();
    }
    let info = world.cache().info();
    assert_eq!((info.grace, info.deferred), (0, 0), "the grace period must end");
}

fn type_stable() -> Arc<World> {
    World::of(1, Magazines::Off, [KmemCache::builder("model", SPACING).type_stable()])
}

/// Another thread unpublishes the first object of `world` and passes it to `frees`, while this thread reads the object.
/// The only thread switch that loom makes may therefore happen during the read.
fn race_read_with_free(world: Arc<World>, frees: fn(&World, &SharedObject, NonNull<u8>)) {
    let object = world.alloc();
    let shared =
        Arc::new(SharedObject { found: AtomicPtr::new(object.as_ptr()), contents: UnsafeCell::new(7) });
    let (other, hidden) = (world.clone(), shared.clone());
    let t = thread::spawn(move || {
        on_cpu(1);
        // Readers that start after this store do not find the object.
        hidden.found.store(null_mut(), Release);
        frees(&other, &hidden, object);
    });
    shared.look(&world);
    t.join().unwrap();
    wait(&world);
    World::end(world);
}

/// E1: the page of a freed slab stays while a reader reads it, and is afterwards freed once.
pub(super) fn race_read_with_slab_free() {
    race_read_with_free(type_stable(), |world, _, object| {
        world.free(object);
        assert_eq!(world.cache().shrink(), 1);
        (0..TURNS_PER_GRACE_PERIOD).for_each(|_| rcu::advance());
    });
}

/// E2: an object whose free is deferred is not reallocated while a reader reads it.
pub(super) fn race_read_with_deferred_free() {
    let world = World::of(1, Magazines::Off, [KmemCache::builder("model", SPACING)]);
    race_read_with_free(world, |world, shared, object| {
        // SAFETY: `race_read_with_free` allocated the object, which is hidden from new readers.
        unsafe { world.cache().free_deferred(object) };
        world.core.flush_deferred();
        (0..TURNS_PER_GRACE_PERIOD).for_each(|_| rcu::advance());
        let next = world.alloc();
        if next == object {
            // SAFETY: the contents belong to the new owner; loom reports a concurrent reader.
            shared.contents.with_mut(|contents| unsafe { *contents = 8 });
        }
        world.free(next);
    });
}

/// E3: a freed object of a type-stable cache is reallocated immediately. A reader that checks the key before and after
/// reading does not mistake the new object's contents for the old contents.
pub(super) fn race_read_with_reallocation() {
    struct Entry {
        found: AtomicPtr<u8>,
        key: AtomicU64,
        value: AtomicU64,
    }
    let world = type_stable();
    let object = world.alloc();
    let entry = Arc::new(Entry {
        found: AtomicPtr::new(object.as_ptr()),
        key: AtomicU64::new(1),
        value: AtomicU64::new(10),
    });
    let (other, readers) = (world.clone(), entry.clone());
    let t = thread::spawn(move || {
        on_cpu(1);
        let reader = ManuallyDrop::new(rcu::pin());
        if let Some(object) = NonNull::new(readers.found.load(Acquire))
            && readers.key.load(Acquire) == 1
        {
            other.touch(object);
            let value = readers.value.load(Relaxed);
            // The fence pairs with the fence of the freeing thread: a reader that has read a later value sees the
            // cleared key.
            fence(Acquire);
            let same = readers.key.load(Relaxed) == 1;
            planted!("a reader does not recheck the key" => let same = true);
            assert!(!same || value == 10, "a value of another object");
        }
        drop(ManuallyDrop::into_inner(reader));
    });
    entry.found.store(null_mut(), Release);
    entry.key.store(0, Relaxed);
    fence(Release);
    world.free(object);
    let new_object = world.alloc();
    if new_object == object {
        entry.value.store(20, Relaxed);
        entry.key.store(2, Release);
    }
    t.join().unwrap();
    world.free(new_object);
    assert_eq!(world.cache().shrink(), 1);
    wait(&world);
    World::end(world);
}
