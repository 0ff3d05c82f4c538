//! Tests of handles to cached objects, with one thread and with many threads.

use super::{Generations, Handle, HandleCache, HandleError, Word, WrapPolicy};
use crate::{Config, Magazines, ObjectCache, Subsystem};
use std::sync::Arc;
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;
use uslab_magazine::sync::{Counter, Mutex};

fn subsystem(magazines: Magazines) -> Subsystem {
    let cpus = Cpus::simulated(1, 1).unwrap();
    Subsystem::new(Config { magazines, ..Config::new(PageConfig::default_for(cpus).limit(4 << 20)) }).unwrap()
}

/// Makes a cache of numbered objects, and a counter of their constructor runs.
fn cache<W: Word, const G: u32>(
    subsystem: &Subsystem,
    generations: impl Into<Generations>,
) -> (HandleCache<u64, W, G>, Arc<Counter>) {
    let constructed = Arc::new(Counter::new(0));
    let constructed_by_cache = constructed.clone();
    let builder = ObjectCache::builder("named").ctor(move || {
        constructed_by_cache.add(1);
        0_u64
    });
    (builder.build_handles_in(subsystem, generations).unwrap(), constructed)
}

/// Magazines reuse the same object, so a pointer would reach the new object, but the old handle must be stale.
#[test]
fn stale_handle_is_detected_after_the_object_is_reused() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, _) = cache::<u32, 8>(&subsystem, WrapPolicy::Retire);
    let first = cache.alloc_with(|number| *number = 1).unwrap();
    let pointer = core::ptr::from_ref(&*cache.get(first).unwrap());
    assert!(cache.free(first) && !cache.free(first));
    let second = cache.alloc_with(|number| *number = 2).unwrap();
    let found = cache.get(second).unwrap();
    assert_eq!((core::ptr::from_ref(&*found), *found), (pointer, 2), "a reader that kept the pointer sees 2");
    assert_eq!((second.index(), second.generation()), (first.index(), 2));
    assert!(cache.get(first).is_none() && !cache.is_valid(first) && !cache.free(first));
}

#[test]
fn last_holder_of_a_freed_handle_frees_the_object() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, _) = cache::<u64, 32>(&subsystem, WrapPolicy::Retire);
    let handle = cache.alloc_with(|number| *number = 7).unwrap();
    let (one, two) = (cache.get(handle).unwrap(), cache.get(handle).unwrap());
    assert!(cache.free(handle));
    assert!(!cache.is_valid(handle) && cache.get(handle).is_none() && !cache.free(handle));
    drop(one);
    let other = cache.alloc_with(|number| *number = 8).unwrap();
    assert_ne!(other.index(), handle.index(), "the object is still held");
    assert_eq!((*two, cache.info().used), (7, 2));
    drop(two);
    assert_eq!(cache.info().used, 1);
    assert_eq!(cache.alloc().unwrap().index(), handle.index());
}

#[test]
fn object_keeps_its_handle_index_until_destruction() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, made) = cache::<u64, 32>(&subsystem, WrapPolicy::Retire);
    for life in 1..=100 {
        let handle = cache.alloc().unwrap();
        assert_eq!((handle.index(), handle.generation()), (0, life));
        cache.free(handle);
    }
    let constructed = made.get();
    let stale = Handle::new(0, 100).unwrap();
    assert!(cache.shrink() > 0);
    let handle = cache.alloc().unwrap();
    assert!(made.get() > constructed, "the objects are new");
    assert_eq!((handle.index(), handle.generation(), cache.is_valid(stale)), (0, 101, false));
    // Regression test: the next generation of a free number was not counted.
    let other = self::cache::<u64, 32>(&subsystem, WrapPolicy::Retire).0;
    let freed = other.alloc().unwrap();
    assert!(other.free(freed));
    let fresh = other.fresh_generation().unwrap();
    assert!(other.alloc().unwrap().generation() < fresh);
    // Handles of this run are stale in a cache of the next run.
    let first = cache.fresh_generation().unwrap();
    let next = self::cache::<u64, 32>(&subsystem, Generations { first, ..Generations::default() }).0;
    assert_eq!((next.fresh_generation(), next.alloc().unwrap().generation()), (Some(102), 102));
}

#[test]
fn allocation_without_a_free_handle_index_fails() {
    let subsystem = subsystem(Magazines::BySize);
    // This cache has four indexes.
    let (cache, _) = cache::<u32, 30>(&subsystem, WrapPolicy::Retire);
    let handles = [(); 4].map(|()| cache.alloc().unwrap());
    let mut prepared = false;
    let full = cache.alloc_with(|_| prepared = true);
    assert_eq!((full, prepared), (Err(HandleError::Full { slots: 4, retired: 0 }), false));
    assert_eq!(cache.info().used, 4, "the object without an index is free again");
    assert!(cache.free(handles[2]));
    assert_eq!(cache.alloc().map(Handle::index), Ok(handles[2].index()));
    assert!(cache.alloc().is_err());
}

#[test]
fn allocating_a_handle_at_the_cache_limit_fails() {
    let subsystem = subsystem(Magazines::BySize);
    let builder = ObjectCache::builder("limited").ctor(|| 0_u8).limit(crate::Limit::Slabs(1));
    let cache: HandleCache<u8> = builder.build_handles_in(&subsystem, WrapPolicy::Retire).unwrap();
    let handles: Vec<_> = core::iter::from_fn(|| cache.alloc().ok()).collect();
    assert_eq!(cache.alloc(), Err(HandleError::Object(crate::AllocError::CacheLimit { slabs: 1 })));
    assert!(handles.iter().all(|handle| cache.free(*handle)));
    assert!(cache.alloc().is_ok());
}

#[test]
fn handle_index_retires_after_its_last_generation() {
    let subsystem = subsystem(Magazines::BySize);
    // Each object of this cache has three lives.
    let (cache, _) = cache::<u32, 2>(&subsystem, WrapPolicy::Retire);
    let mut stale = vec![];
    for life in 0..9 {
        let handle = cache.alloc().unwrap();
        assert_eq!((handle.index(), handle.generation()), (life / 3, life % 3 + 1));
        assert!(stale.iter().all(|old| !cache.is_valid(*old)));
        assert!(cache.free(handle));
        stale.push(handle);
    }
    assert_eq!(cache.retired(), 2, "the allocation detects that the third generation was the last");
    cache.shrink();
    assert_eq!(cache.retired(), 3);
    assert_eq!(cache.alloc().map(Handle::index), Ok(3));
}

#[test]
fn handle_index_retires_once_even_if_no_other_index_is_free() {
    let subsystem = subsystem(Magazines::BySize);
    // This cache has four indexes, each with one life.
    let first = Handle::<u32, 30>::LAST_GENERATION;
    let (cache, _) = cache::<u32, 30>(&subsystem, Generations { first, ..Generations::default() });
    let handles = [(); 4].map(|()| cache.alloc().unwrap());
    assert!(handles.into_iter().all(|handle| cache.free(handle)));
    for _ in 0..2 {
        assert!(matches!(cache.alloc(), Err(HandleError::Full { slots: 4, .. })));
    }
    assert!(cache.shrink() > 0);
    assert_eq!(cache.retired(), 4);
}

#[test]
fn stale_handle_is_accepted_after_its_generation_wraps() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, _) = cache::<u32, 2>(&subsystem, WrapPolicy::Wrap);
    let old = cache.alloc().unwrap();
    cache.free(old);
    for life in 2..=3 {
        let handle = cache.alloc().unwrap();
        assert_eq!((handle.index(), handle.generation(), cache.is_valid(old)), (0, life, false));
        cache.free(handle);
    }
    assert_eq!((cache.alloc(), cache.is_valid(old), cache.retired()), (Ok(old), true, 0));
}

#[test]
fn handle_object_is_freed_if_the_prepare_closure_panics() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, _) = cache::<u64, 32>(&subsystem, WrapPolicy::Retire);
    let prepare = || cache.alloc_with(|_| panic!("intended panic"));
    assert!(uslab_magazine::sync::catch_panic(prepare).is_err());
    assert_eq!(cache.info().used, 0);
    assert_eq!(cache.fresh_generation(), Some(1), "no generation has begun");
    let handle = cache.alloc().unwrap();
    assert_eq!((handle.index(), handle.generation()), (0, 1), "no generation was skipped");
}

#[test]
fn dropped_handle_cache_frees_each_object_once() {
    let count = Arc::new(());
    let constructed = count.clone();
    let subsystem = subsystem(Magazines::BySize);
    let builder = ObjectCache::builder("counted").ctor(move || constructed.clone());
    let cache: HandleCache<Arc<()>> = builder.build_handles_in(&subsystem, WrapPolicy::Retire).unwrap();
    let handles = [(); 200].map(|()| cache.alloc().unwrap());
    handles[..100].iter().for_each(|handle| assert!(cache.free(*handle)));
    // Leaked values hold objects, some in use and others free.
    for handle in &handles[150..] {
        core::mem::forget(cache.get(*handle));
    }
    handles[180..].iter().for_each(|handle| assert!(cache.free(*handle)));
    assert_eq!(cache.info().used, 100);
    drop(cache);
    let census = subsystem.check().unwrap();
    assert_eq!((census.objects, census.slabs, Arc::strong_count(&count)), (0, 0, 1));
}

/// Threads share handles, each together with the number stored in its object. An object that a thread finds by a handle
/// must contain the number published with that handle.
#[test]
fn object_with_a_holder_is_not_reused() {
    const THREADS: u64 = 4;
    const STEPS: u64 = 20_000;
    let builder = ObjectCache::builder("shared").ctor(|| 0_u64);
    let cache: HandleCache<u64, u32, 16> = builder.build_handles(WrapPolicy::Retire).unwrap();
    type SharedHandle = Mutex<Option<(Handle<u32, 16>, u64)>>;
    let board: [SharedHandle; 16] = core::array::from_fn(|_| Mutex::new(None));
    let (found, freed, allocated) = (Counter::new(0), Counter::new(0), Counter::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, board, found, freed, allocated) = (&cache, &board, &found, &freed, &allocated);
            scope.spawn(move || {
                let mut random = thread + 1;
                for step in 0..STEPS {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let place = &board[(random >> 40) as usize % board.len()];
                    let pinned = *place.lock();
                    match (pinned, random >> 33 & 3) {
                        (Some((handle, number)), 0 | 1) => {
                            if let Some(held) = cache.get(handle) {
                                assert_eq!(*held, number);
                                std::hint::spin_loop();
                                assert_eq!(*held, number);
                                found.add(1);
                            }
                        }
                        (Some((handle, number)), 2) => {
                            // This thread holds the object while it, or another thread, frees the
                            // object.
                            let held = cache.get(handle);
                            freed.add(u64::from(cache.free(handle)));
                            assert!(held.is_none_or(|held| *held == number));
                        }
                        _ => {
                            let number = thread * STEPS + step + 1;
                            let handle = cache.alloc_with(|object| *object = number).unwrap();
                            allocated.add(1);
                            let replaced = place.lock().replace((handle, number));
                            freed.add(u64::from(replaced.is_some_and(|(old, _)| cache.free(old))));
                        }
                    }
                }
            });
        }
    });
    let remaining_handles =
        board.iter().filter_map(|place| *place.lock()).filter(|(handle, _)| cache.free(*handle)).count();
    assert_eq!(allocated.get(), freed.get() + remaining_handles as u64, "each handle is freed once");
    assert!(found.get() > 0 && freed.get() > 0);
    assert_eq!(cache.info().used, 0);
}

#[test]
fn reaping_a_handle_cache_returns_the_number_of_flushed_objects() {
    let subsystem = subsystem(Magazines::BySize);
    let (cache, _) = cache::<u32, 8>(&subsystem, WrapPolicy::Retire);
    let handles: Vec<_> = (0..5).map(|_| cache.alloc().unwrap()).collect();
    assert!(handles.into_iter().all(|handle| cache.free(handle)));
    let held = cache.info().in_magazines;
    let flushed_objects: u64 = (0..4).map(|_| cache.reap()).sum();
    assert!(held >= 5 && flushed_objects == held - cache.info().in_magazines, "{flushed_objects} of {held}");
    assert_eq!(cache.info().in_magazines, 0);
}
