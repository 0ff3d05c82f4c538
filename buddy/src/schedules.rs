//! The zone and the per-CPU pages under shuttle: larger scenarios than loom can exhaust, on random and on PCT schedules.
//!
//! Four threads on sixteen pages, in blocks of four at most. A scenario's name begins with the properties that it is of, as a
//! model's does (`models` has the table), and it ends in the same audit. Sequentially consistent: orderings are loom's
//! business.

use crate::world::{ONE, Owner, allocator_of, audit, free, two};
use crate::{Gfp, Order, PageAllocator, Pfn};
use uslab_magazine::on_cpu;
use uslab_magazine::sync::schedule::{caught, choose, schedules, wander};
use uslab_magazine::sync::{Arc, Mutex, thread};

const PAGES: u32 = 16;
const THREADS: usize = 4;
const STEPS: usize = 12;
/// Schedules of each kind,
const RUNS: usize = 10_000;
/// and, for each seed, in which a planted bug must be found.
const SOON: usize = 5000;

fn allocator(per_cpu_pages: bool) -> Arc<PageAllocator> {
    allocator_of(PAGES, two().up(), per_cpu_pages, |corruption| panic!("{corruption}"))
}

/// Runs `side` in all threads.
fn crowd<W: Send + Sync + 'static>(world: &Arc<W>, side: fn(&W, usize)) {
    let threads = [(); THREADS - 1].map(|()| world.clone());
    let threads: Vec<_> =
        (1..).zip(threads).map(|(t, world)| thread::spawn(move || side(&world, t))).collect();
    side(world, 0);
    threads.into_iter().for_each(|t| t.join().unwrap());
    on_cpu(0);
}

/// Blocks and whose they are.
struct World {
    pages: Arc<PageAllocator>,
    /// One for each block that is ever allocated.
    owners: Vec<Owner>,
    /// Blocks on their way to another thread, each with its order and the number of its owner.
    post: Mutex<Vec<(Pfn, Order, usize)>>,
}

impl World {
    /// Takes a block and signs it; on its way at once, or kept.
    fn alloc(&self, owner: usize) -> Option<(Pfn, Order, usize)> {
        let order = [ONE, two(), two().up()][choose(3)];
        let pfn = self.pages.alloc(order, Gfp::KERNEL, None).ok()?;
        let frame = self.pages.frame(pfn);
        // SAFETY: the block is this thread's, and the owner lives as long as the world.
        unsafe { self.owners[owner].announce(frame) };
        // SAFETY: as above.
        frame.data().with_mut(|data| unsafe { (*data)[0] = owner as u64 });
        Some((pfn, order, owner))
    }
    fn free(&self, (pfn, order, owner): (Pfn, Order, usize)) {
        let frame = self.pages.frame(pfn);
        assert_eq!(frame.state().order(), order, "the order was lost");
        assert!(core::ptr::eq(frame.owner().cast(), &self.owners[owner]), "the owner was lost");
        // SAFETY: the block is this thread's.
        let signed = frame.data().with(|data| unsafe { (*data)[0] });
        assert_eq!(signed, owner as u64, "the data was lost");
        free(&self.pages, pfn, order);
    }
}

/// Blocks of three orders are allocated, passed on, freed and given back to the system; strangers ask for owners.
fn zone() {
    fn side(w: &World, thread: usize) {
        let mut held = vec![];
        for step in 0..STEPS {
            match choose(8) {
                0..=2 => held.extend(w.alloc(thread * STEPS + step)),
                3 => held.pop().into_iter().for_each(|block| w.free(block)),
                4 => w.post.lock().extend(held.pop()),
                5 => {
                    let block = w.post.lock().pop();
                    held.extend(block);
                }
                // SAFETY: all owners are the world's.
                6 => unsafe { Owner::ask(w.pages.frame(Pfn::new(choose(PAGES as usize) as u32))) },
                _ => _ = w.pages.trim(),
            }
        }
        held.into_iter().for_each(|block| w.free(block));
    }
    let owners = (0..THREADS * STEPS).map(|_| Owner::new()).collect();
    let world = Arc::new(World { pages: allocator(false), owners, post: Mutex::new(vec![]) });
    crowd(&world, side);
    let left: Vec<_> = world.post.lock().drain(..).collect();
    left.into_iter().for_each(|block| world.free(block));
    audit(&world.pages);
}

/// All threads free the same pages, each from another one on.
fn twice() {
    fn side((pages, pfns): &(Arc<PageAllocator>, Vec<Pfn>), thread: usize) {
        let from = thread * pfns.len() / THREADS;
        pfns.iter().cycle().skip(from).take(pfns.len()).for_each(|pfn| free(pages, *pfn, ONE));
    }
    let pages = allocator_of(PAGES, two().up(), false, |_| ());
    let pfns: Vec<_> = (0..PAGES).map(|_| pages.alloc(ONE, Gfp::KERNEL, None).unwrap()).collect();
    crowd(&Arc::new((pages.clone(), pfns)), side);
    let told = u64::from(PAGES) * (THREADS as u64 - 1);
    assert_eq!(pages.info().corruptions, told, "all frees of a page but one are told");
    audit(&pages);
}

/// Threads move between two CPUs, and to one without a slot, and each drains the others' pages.
fn per_cpu() {
    fn side(pages: &Arc<PageAllocator>, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            wander(2);
            match choose(8) {
                0..=2 => {
                    let order = [ONE, two()][choose(2)];
                    held.extend(pages.alloc(order, Gfp::KERNEL, None).map(|pfn| (pfn, order)));
                }
                3..=4 => held.pop().into_iter().for_each(|(pfn, order)| free(pages, pfn, order)),
                5 => pages.drain_cpus(choose(2) as u32..2),
                6 => _ = pages.reap(),
                _ => _ = pages.release(),
            }
        }
        held.into_iter().for_each(|(pfn, order)| free(pages, pfn, order));
    }
    let pages = allocator(true);
    crowd(&Arc::new(pages.clone()), side);
    audit(&pages);
}

#[test]
fn zones() {
    schedules("B1 B2 B3 B5 B6 B7: blocks of three orders change hands", RUNS, zone);
}
#[test]
fn freed_twice() {
    schedules("B4: four free the same pages", RUNS, twice);
}
#[test]
fn per_cpu_pages() {
    schedules("P1 P2: four use and drain the pages of two CPUs", RUNS / 4, per_cpu);
}

#[test]
fn planted_in_a_zone() {
    caught("merge without looking at the buddy", "B1", SOON, "page handed out twice", zone);
    caught("no merge", "B1", SOON, "missed merge with the buddy", zone);
    caught("frame marked after the lock", "B1", SOON, "taken off an empty list", zone);
    caught(
        "buddy checked in one lock hold and merged in the next",
        "B2",
        SOON,
        "missed merge with the buddy",
        zone,
    );
    caught("owner cleared after the free", "B3", SOON, "the owner was lost", zone);
    caught("owner announced before it is initialised", "B5", SOON, "an owner is found initialised", zone);
    caught("frames are discarded by whole pages, outwards", "B6", SOON, "the owner was lost", zone);
    let bug = "free pages are discarded after their lock";
    caught(bug, "B7", SOON, "the memory of a page in use was given back", zone);
}
#[test]
fn planted_in_frees() {
    caught("block claimed by load and store", "B4", SOON, "page given back twice", twice);
}
#[test]
fn planted_in_per_cpu_pages() {
    caught(
        "page marked after it went into the magazine",
        "P2",
        SOON,
        "frame and free list disagree",
        per_cpu,
    );
    caught("drain without its fence", "P2", SOON, "frame and free list disagree", per_cpu);
    caught("a flush that does not flush", "P1", SOON, "per-CPU pages counted", per_cpu);
}
