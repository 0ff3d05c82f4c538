//! Shuttle scenarios: four threads use an allocator of sixteen pages, in blocks of at most four pages.

use super::world::{ONE, Owner, allocator_with_pages, audit, free, order_one};
use crate::{Gfp, Order, PageAllocator, Pfn};
use uslab_magazine::sync::schedule::choose;
use uslab_magazine::sync::{Arc, Mutex};
use uslab_magazine::threads::{migrate_between_cpus, run_in_threads};

const PAGES: u32 = 16;
const THREADS: usize = 4;
const STEPS: usize = 12;

fn allocator(per_cpu_pages: bool) -> Arc<PageAllocator> {
    allocator_with_pages(PAGES, order_one().up(), per_cpu_pages, |corruption| panic!("{corruption}"))
}

struct Blocks {
    pages: Arc<PageAllocator>,
    /// The owners of all blocks, one per allocation in the scenario.
    owners: Vec<Owner>,
    /// Blocks in transit to another thread, each with its order and its owner's number.
    post: Mutex<Vec<(Pfn, Order, usize)>>,
}

impl Blocks {
    /// Allocates a block and stores an owner in its frame. The caller sends the block to another thread, or keeps it.
    fn alloc(&self, owner: usize) -> Option<(Pfn, Order, usize)> {
        let order = [ONE, order_one(), order_one().up()][choose(3)];
        let pfn = self.pages.alloc(order, Gfp::KERNEL, None).ok()?;
        let frame = self.pages.frame(pfn);
        // SAFETY: this thread owns the block, and the owner outlives it.
        unsafe { self.owners[owner].publish(frame) };
        // SAFETY: this thread owns the block.
        frame.data().with_mut(|data| unsafe { (*data)[0] = owner as u64 });
        Some((pfn, order, owner))
    }
    fn free(&self, (pfn, order, owner): (Pfn, Order, usize)) {
        let frame = self.pages.frame(pfn);
        assert_eq!(frame.state().order(), order, "the order was lost");
        assert!(core::ptr::eq(frame.owner().cast(), &self.owners[owner]), "the owner was lost");
        // SAFETY: this thread owns the block.
        let signed = frame.data().with(|data| unsafe { (*data)[0] });
        assert_eq!(signed, owner as u64, "the data was lost");
        free(&self.pages, pfn, order);
    }
}

/// Threads allocate blocks of three orders, send them to each other, free them and decommit memory. Some threads also
/// charge memory, and read the owners of blocks that other threads allocated.
pub(super) fn zone() {
    fn side(w: &Blocks, thread: usize) {
        let (mut held, mut charged) = (vec![], 0);
        for step in 0..STEPS {
            match choose(10) {
                0..=2 => held.extend(w.alloc(thread * STEPS + step)),
                3 => held.pop().into_iter().for_each(|block| w.free(block)),
                4 => w.post.lock().extend(held.pop()),
                5 => {
                    let block = w.post.lock().pop();
                    held.extend(block);
                }
                // SAFETY: all owners are elements of `owners`, which outlives the threads.
                6 => unsafe { Owner::check_owner(w.pages.frame(Pfn::new(choose(PAGES as usize) as u32))) },
                7 => {
                    let pages = 1 + choose(PAGES as usize);
                    charged += if w.pages.charge(pages) { pages } else { 0 };
                }
                8 => w.pages.uncharge(std::mem::take(&mut charged)),
                _ => _ = w.pages.decommit_free(),
            }
        }
        w.pages.uncharge(charged);
        held.into_iter().for_each(|block| w.free(block));
    }
    let owners = (0..THREADS * STEPS).map(|_| Owner::new()).collect();
    let world = Arc::new(Blocks { pages: allocator(false), owners, post: Mutex::new(vec![]) });
    run_in_threads(&world, THREADS, side);
    let left: Vec<_> = world.post.lock().drain(..).collect();
    left.into_iter().for_each(|block| world.free(block));
    audit(&world.pages);
}

/// All threads free the same pages, and each thread starts at a different page.
pub(super) fn free_same_pages() {
    fn side((pages, pfns): &(Arc<PageAllocator>, Vec<Pfn>), thread: usize) {
        let from = thread * pfns.len() / THREADS;
        pfns.iter().cycle().skip(from).take(pfns.len()).for_each(|pfn| free(pages, *pfn, ONE));
    }
    let pages = allocator_with_pages(PAGES, order_one().up(), false, |_| ());
    let pfns: Vec<_> = (0..PAGES).map(|_| pages.alloc(ONE, Gfp::KERNEL, None).unwrap()).collect();
    run_in_threads(&Arc::new((pages.clone(), pfns)), THREADS, side);
    let reported = u64::from(PAGES) * (THREADS as u64 - 1);
    assert_eq!(pages.info().corruptions, reported, "all frees of a page except one are reported");
    audit(&pages);
}

/// Each thread moves between two CPUs with regions and one CPU without a region. Each thread also drains the pages of
/// the other CPUs.
pub(super) fn per_cpu() {
    fn side(pages: &Arc<PageAllocator>, _: usize) {
        let mut held = vec![];
        for _ in 0..STEPS {
            migrate_between_cpus(2);
            match choose(8) {
                0..=2 => {
                    let order = [ONE, order_one()][choose(2)];
                    held.extend(pages.alloc(order, Gfp::KERNEL, None).map(|pfn| (pfn, order)));
                }
                3..=4 => held.pop().into_iter().for_each(|(pfn, order)| free(pages, pfn, order)),
                5 => pages.drain_cpus(choose(2) as u32..2),
                6 => _ = pages.reap(),
                _ => _ = pages.decommit(),
            }
        }
        held.into_iter().for_each(|(pfn, order)| free(pages, pfn, order));
    }
    let pages = allocator(true);
    run_in_threads(&Arc::new(pages.clone()), THREADS, side);
    audit(&pages);
}
