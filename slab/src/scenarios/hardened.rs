//! Scenarios of hardening under several threads: quarantine, guard samples, and tags.

use super::world::{SMALL, assert_all_freed, run_beside};
use crate::cache::core::Core;
use crate::debug::check::on_cpu;
use crate::guard::Pool;
use crate::harden::{Harden, RandomKeys};
use crate::{Config, CorruptionKind, ObjectCache, OwnedBox};
#[cfg(shuttle)]
use crate::{Gfp, KmemCache, debug::check::SPACING};
use uslab_buddy::Backend;
use uslab_magazine::sync::{Arc, Counter, thread};

/// Q1: a cache is dropped while separate threads free its objects into a quarantine of `places` places.
pub(super) fn race_drop_with_delayed_frees(objects: u32, places: usize) {
    on_cpu(0);
    // The configuration gives the size of a quarantine in bytes.
    let harden = Harden { quarantine: places * crate::debug::check::SPACING, ..Harden::OFF };
    let core = Core::new(Config { magazines: SMALL, harden, ..Config::for_models(2) }).unwrap();
    let cache = ObjectCache::<u64>::builder("model").ctor(|| 7).build_on(&core).unwrap();
    let free = |object: OwnedBox<u64>| move || drop(object);
    run_beside((0..objects).map(|_| free(cache.alloc_owned().unwrap())).collect(), || drop(cache));
    assert_all_freed(core);
}

fn pool(slots: usize) -> Arc<Pool> {
    let secret = RandomKeys::new(&Harden { seed: Some(7), ..Harden::OFF });
    Arc::new(Pool::new(slots, Backend::Heap, secret.next()).unwrap())
}

/// G2: two threads free the same guard sample; exactly one free is valid.
pub(super) fn race_two_frees_of_sample() {
    let pool = pool(1);
    let object = pool.alloc(8, 8).unwrap().addr().get();
    let right = Arc::new(Counter::new(0));
    let free = || {
        let (pool, right) = (pool.clone(), right.clone());
        move || {
            // The second thread finds the page cleared, and reports an overflow.
            let refused = pool.free(object).is_err_and(|(kind, _)| kind != CorruptionKind::Overflow);
            right.add(u64::from(!refused));
        }
    };
    let other = thread::spawn(free());
    free()();
    other.join().unwrap();
    assert_eq!(right.get(), 1, "at most one free of a sample succeeds");
    assert!(pool.alloc(8, 8).is_some());
}

/// G2: one thread frees a guard sample while other threads allocate from its slot. Two threads must never use the slot
/// at the same time.
pub(super) fn race_guard_slot_reuse(others: u32) {
    let pool = pool(1);
    let object = pool.alloc(8, 8).unwrap().addr().get();
    let ask = || {
        let pool = pool.clone();
        move || {
            if let Some(object) = pool.alloc(8, 8) {
                assert!(pool.free(object.addr().get()).is_ok(), "a sample has one owner");
            }
        }
    };
    let threads: Vec<_> = (0..others).map(|_| thread::spawn(ask())).collect();
    assert!(pool.free(object).is_ok());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pool.used(), 0);
}

/// T1: three threads free the same object of a cache with checked frees; exactly one free is valid.
#[cfg(shuttle)]
pub(super) fn race_three_checked_frees() {
    on_cpu(0);
    let refused = Arc::new(Counter::new(0));
    let heard = refused.clone();
    let corruption = std::sync::Arc::new(move |corruption: &crate::Corruption<'_>| {
        assert_eq!(corruption.kind, CorruptionKind::DoubleFree);
        heard.add(1);
    });
    let config = Config { magazines: SMALL, check_frees: true, corruption, ..Config::for_models(2) };
    let core = Core::new(config).unwrap();
    let cache = std::sync::Arc::new(KmemCache::builder("model", SPACING).build_on(&core).unwrap());
    let object = cache.alloc(Gfp::KERNEL).unwrap().addr();
    let free = |cpu| {
        let cache = cache.clone();
        move || {
            on_cpu(cpu);
            let base = cache.cache().core().memory.pages.address(uslab_buddy::Pfn::new(0));
            let object = base.map_addr(|_| object);
            // SAFETY: all frees except one are the tested error, and the object is not used.
            unsafe { cache.free(object) };
        }
    };
    run_beside(vec![free(0), free(1)], free(1));
    assert_eq!(refused.get(), 2, "at most one free of an object succeeds");
    drop(cache);
    assert_all_freed(core);
}
