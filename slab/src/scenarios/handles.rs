//! Scenarios of handles that threads share. Loom and shuttle run the shipping source on two pages.

#[cfg(loom)]
pub(super) mod models;

#[cfg(shuttle)]
use super::world::SMALL;
#[cfg(shuttle)]
use crate::AllocError;
use crate::cache::core::Core;
use crate::debug::check::on_cpu;
#[cfg(shuttle)]
use crate::handle::HandleError;
use crate::handle::{Generations, Handle, HandleCache, Held};
use crate::{Config, Magazines, ObjectCache};
use core::mem::ManuallyDrop;
use uslab_magazine::sync::Ordering::Relaxed;
#[cfg(shuttle)]
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{Arc, AtomicU64, Counter, UnsafeCell};
#[cfg(shuttle)]
use uslab_magazine::threads::{migrate_between_cpus, run_in_threads};

/// A value that loom checks for data races. Under shuttle, the value counts the threads that hold its object.
struct Watched {
    value: UnsafeCell<u32>,
    holders: Counter,
}
// SAFETY: loom watches the cell; shuttle runs all threads of an execution on one thread.
unsafe impl Sync for Watched {}
// SAFETY: loom watches the cell; shuttle runs all threads of an execution on one thread.
unsafe impl Send for Watched {}

impl Watched {
    fn new() -> Self {
        Self { value: UnsafeCell::new(0), holders: Counter::new(0) }
    }
    fn set(&self, value: u32) {
        // SAFETY: loom watches the access; shuttle runs all threads on one thread.
        self.value.with_mut(|at| unsafe { *at = value });
        assert_eq!(self.holders.get(), 0, "the object being prepared has a holder");
    }
    fn get(&self) -> u32 {
        // SAFETY: loom watches the access; shuttle runs all threads on one thread.
        self.value.with(|at| unsafe { *at })
    }
}

type ObjectHandle = Handle<u32, 28>;

/// Number of slots through which threads pass handles to each other.
const PLACES: usize = if cfg!(loom) { 1 } else { 2 };

/// A cache of objects with handles, and the state of user code.
struct Objects {
    /// The cache, which is dropped only at the end of a successful execution.
    cache: ManuallyDrop<HandleCache<Watched, u32, 28>>,
    core: std::sync::Arc<Core>,
    /// Handles that threads pass to each other, each with the value of its object. The accesses have no ordering.
    passed: [AtomicU64; PLACES],
    /// State that only the owner of index 0 may access.
    #[cfg(loom)]
    index_0_state: Watched,
}

impl Objects {
    fn new(magazines: Magazines) -> Arc<Self> {
        on_cpu(0);
        let core = Core::new(Config { magazines, ..Config::for_models(2) }).unwrap();
        let builder = ObjectCache::builder("named").ctor(Watched::new);
        let cache = ManuallyDrop::new(builder.build_handles_on(&core, Generations::default()).unwrap());
        let passed = [(); PLACES].map(|()| AtomicU64::new(0));
        Arc::new(Self {
            cache,
            core,
            passed,
            #[cfg(loom)]
            index_0_state: Watched::new(),
        })
    }
    #[cfg(loom)]
    fn alloc(&self, value: u32) -> ObjectHandle {
        self.cache.alloc_with(|object| object.set(value)).unwrap()
    }
    #[cfg(shuttle)]
    fn try_alloc(&self, value: u32) -> Option<ObjectHandle> {
        let handle = self.cache.alloc_with(|object| object.set(value));
        let refused = |error: &_| matches!(error, HandleError::Object(AllocError::Memory(_)));
        assert!(handle.as_ref().err().is_none_or(refused), "{handle:?}");
        handle.ok()
    }
    fn hold(&self, handle: ObjectHandle) -> Option<Held<'_, Watched, u32, 28>> {
        let held = self.cache.get(handle)?;
        #[cfg(shuttle)]
        held.holders.add(1);
        Some(held)
    }
    /// Checks that a held object still has the value `value`, and releases the object.
    fn check_and_release_object(held: Held<'_, Watched, u32, 28>, value: u32) {
        assert_eq!((held.get(), held.get()), (value, value), "the object belongs to the handle");
        #[cfg(shuttle)]
        held.holders.sub(1);
    }
    /// If `handle` finds an object, checks that the object keeps `value` while it is held, and returns `true`.
    fn find(&self, handle: ObjectHandle, value: u32) -> bool {
        self.hold(handle).map(|held| Self::check_and_release_object(held, value)).is_some()
    }
    fn pass(&self, place: usize, handle: ObjectHandle, value: u32) {
        self.passed[place].store(u64::from(value) << 32 | u64::from(handle.to_bits()), Relaxed);
    }
    fn shared_handle(&self, place: usize) -> Option<(ObjectHandle, u32)> {
        let passed = self.passed[place].load(Relaxed);
        Some((ObjectHandle::from_bits(passed as u32)?, (passed >> 32) as u32))
    }
    fn census(&self, used: u64) {
        let census = self.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(census.used, used, "census: {census:?}");
    }
    /// Checks that `used` objects are in use, and then drops the cache, which frees them.
    fn end(this: Arc<Self>, used: u64) {
        on_cpu(0);
        this.census(used);
        let Ok(mut world) = Arc::try_unwrap(this) else { panic!("the threads have ended") };
        // SAFETY: `world` is not used after this drop.
        unsafe { ManuallyDrop::drop(&mut world.cache) };
        world.core.memory.pages.decommit();
        let census = world.core.check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!((census.slabs, census.free_pages), (0, census.pages), "census: {census:?}");
    }
}

#[cfg(shuttle)]
const THREADS: usize = 4;
#[cfg(shuttle)]
const STEPS: usize = 12;

/// H1-H5: four threads allocate objects, pass handles on, guess handles, hold the objects that they find, and free
/// them. A thread that holds an object must have the handle's object (H1), in its prepared state (H4). An object must
/// be freed only once (H2) and returned to the cache only once (H3). An object may be prepared again only after all
/// holders have dropped it (H5).
#[cfg(shuttle)]
pub(super) fn race_four_handle_users() {
    struct SharedCache {
        world: Arc<Objects>,
        used: Counter,
    }
    fn run_thread(SharedCache { world, used }: &SharedCache, thread: usize) {
        let free = |handle| used.sub(world.cache.free(handle).into());
        let (mut held, mut known) = (vec![], vec![]);
        for step in 0..STEPS {
            migrate_between_cpus(2);
            let place = choose(PLACES);
            match choose(9) {
                0 | 1 => {
                    let value = (1 + thread * STEPS + step) as u32;
                    if let Some(handle) = world.try_alloc(value) {
                        used.add(1);
                        let before = world.shared_handle(place);
                        world.pass(place, handle, value);
                        known.extend(before);
                    }
                }
                2 => known.extend(world.shared_handle(place)),
                3 => {
                    let passed = world.shared_handle(place);
                    held.extend(passed.and_then(|(handle, value)| Some((world.hold(handle)?, value))));
                }
                4 => held
                    .pop()
                    .into_iter()
                    .for_each(|(held, value)| Objects::check_and_release_object(held, value)),
                5 => known.iter().for_each(|(handle, value)| _ = world.find(*handle, *value)),
                6 => {
                    // Guesses the handle of the object's next life, which begins with another value.
                    let Some((handle, value)) = known.last() else { continue };
                    let guess = ObjectHandle::new(handle.index(), handle.generation() + 1);
                    if let Some(held) = guess.and_then(|guess| world.hold(guess)) {
                        let found = held.get();
                        assert_ne!(found, *value, "an object is found only after it is prepared");
                        Objects::check_and_release_object(held, found);
                    }
                }
                7 => known.pop().into_iter().for_each(|(handle, _)| free(handle)),
                _ => world.shared_handle(place).into_iter().for_each(|(handle, _)| free(handle)),
            }
        }
        held.into_iter().for_each(|(held, value)| Objects::check_and_release_object(held, value));
        known.into_iter().for_each(|(handle, _)| free(handle));
    }
    let world = Objects::new(SMALL);
    let shared = Arc::new(SharedCache { world, used: Counter::new(0) });
    run_in_threads(&shared, THREADS, run_thread);
    let Some(SharedCache { world, used }) = Arc::into_inner(shared) else { panic!("the threads have ended") };
    Objects::end(world, used.get());
}

/// H6, H7: four threads allocate handles, and trigger the destruction of their objects. Objects in use have distinct
/// numbers (H6), and a stale handle finds no object, although its number is reused (H7).
#[cfg(shuttle)]
pub(super) fn race_four_number_assignments() {
    struct SharedCache {
        world: Arc<Objects>,
        /// Number of users of each object, by index.
        owners: [Counter; 4],
    }
    fn run_thread(SharedCache { world, owners }: &SharedCache, thread: usize) {
        let (mut mine, mut stale) = (vec![], vec![]);
        for step in 0..STEPS {
            migrate_between_cpus(2);
            match choose(6) {
                0..=2 => {
                    let value = (1 + thread * STEPS + step) as u32;
                    if let Some(handle) = world.try_alloc(value) {
                        let owners = &owners[handle.index() as usize];
                        owners.add(1);
                        assert_eq!(owners.get(), 1, "two objects have the same number");
                        mine.push((handle, value));
                    }
                }
                3 | 4 if !mine.is_empty() => {
                    let (handle, value) = mine.swap_remove(choose(mine.len()));
                    assert!(world.find(handle, value));
                    owners[handle.index() as usize].sub(1);
                    assert!(world.cache.free(handle));
                    stale.push(handle);
                }
                _ => _ = world.cache.shrink(),
            }
            assert!(!stale.iter().any(|stale| world.cache.is_valid(*stale)), "a stale handle is valid");
        }
        assert!(mine.iter().all(|(handle, value)| world.find(*handle, *value)));
    }
    let world = Objects::new(SMALL);
    let shared = Arc::new(SharedCache { world, owners: [(); 4].map(|()| Counter::new(0)) });
    run_in_threads(&shared, THREADS, run_thread);
    let Some(SharedCache { world, owners }) = Arc::into_inner(shared) else {
        panic!("the threads have ended")
    };
    Objects::end(world, owners.iter().map(Counter::get).sum());
}
