//! Loom models: two or three threads use an allocator of two or four pages.

use super::world::{ONE, Owner, allocator_with_pages, audit, free, order_one, zones_with_pages};
use crate::{Gfp, Order, PageAllocator, Pfn, ZoneKind};
use uslab_magazine::sync::{Arc, AtomicU32, Ordering::*, thread};
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Script, on_cpu};

/// Creates an allocator of `pages` pages in one maximal block.
fn allocator(pages: u32, per_cpu_pages: bool) -> Arc<PageAllocator> {
    let order = Order::new(pages.ilog2() as u8).unwrap();
    allocator_with_pages(pages, order, per_cpu_pages, |corruption| panic!("{corruption}"))
}

/// B1: one thread allocates a block while another thread frees its buddy. The allocated block and the merged free block
/// never overlap, and no merge is missed.
pub(super) fn allocation_during_the_free_of_its_buddy() {
    let pages = allocator(4, false);
    let mine = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || other.alloc(ONE, Gfp::KERNEL, None).unwrap());
    free(&pages, mine, ONE);
    free(&pages, t.join().unwrap(), ONE);
    audit(&pages);
}

/// B1: two threads allocate concurrently, and each allocation reports only the splits that it made.
pub(super) fn each_of_two_allocations_reports_its_splits() {
    let pages = allocator(4, false);
    let reported = Arc::new(AtomicU32::new(0));
    let splits = reported.clone();
    let observer = pages.tracepoints().observe(move |op| {
        for step in op.steps {
            if let Step::BlocksTaken { splits: own, .. } = step {
                // Relaxed: the sum is read after both threads have ended.
                splits.fetch_add(u32::from(*own), Relaxed);
            }
        }
    });
    let other = pages.clone();
    let t = thread::spawn(move || other.alloc(ONE, Gfp::KERNEL, None).unwrap());
    let mine = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let theirs = t.join().unwrap();
    drop(observer);
    assert_eq!(reported.load(Relaxed), 2, "each split is reported once");
    free(&pages, mine, ONE);
    free(&pages, theirs, ONE);
    audit(&pages);
}

/// B2: one thread allocates a block while other threads free its two halves. The two freed halves merge exactly once,
/// and frames agree with free lists.
pub(super) fn alloc_during_two_frees() {
    let pages = allocator(4, false);
    let halves = [(); 2].map(|()| pages.alloc(ONE, Gfp::KERNEL, None).unwrap());
    let frees = halves.map(|half| {
        let pages = pages.clone();
        thread::spawn(move || free(&pages, half, ONE))
    });
    let mine = pages.alloc(order_one(), Gfp::KERNEL, None).unwrap();
    for t in frees {
        t.join().unwrap();
    }
    free(&pages, mine, order_one());
    audit(&pages);
}

/// B3: the thread that frees a block sees the order, the owner and the data that the allocating thread stored.
pub(super) fn freed_block_keeps_order_and_owner() {
    const OWNER_POINTER: *mut u8 = core::ptr::without_provenance_mut(64);
    let pages = allocator(2, false);
    let mine = pages.alloc(order_one(), Gfp::KERNEL, None).unwrap();
    let mailbox = Arc::new(AtomicU32::new(0));
    let (theirs, post) = (pages.clone(), mailbox.clone());
    let t = thread::spawn(move || {
        let Ok(pfn) = theirs.alloc(order_one(), Gfp::KERNEL, None) else { return };
        let frame = theirs.frame(pfn);
        // SAFETY: this thread owns the block, and the test only compares owners.
        unsafe { frame.set_owner(OWNER_POINTER) };
        // SAFETY: this thread owns the block.
        frame.data().with_mut(|data| unsafe { (*data)[0] = 7 });
        // Release: pairs with the Acquire of the receiving thread below.
        post.store(pfn.get() + 1, Release);
    });
    free(&pages, mine, order_one());
    let receive = || {
        // Acquire: pairs with the Release of the sending thread above.
        let Some(pfn) = mailbox.load(Acquire).checked_sub(1).map(Pfn::new) else { return false };
        let frame = pages.frame(pfn);
        assert_eq!(frame.owner(), OWNER_POINTER, "the owner was lost");
        // SAFETY: this thread received the block.
        assert_eq!(frame.data().with(|data| unsafe { (*data)[0] }), 7);
        free(&pages, pfn, frame.state().order());
        true
    };
    let received = receive();
    t.join().unwrap();
    if !received {
        receive();
    }
    audit(&pages);
}

/// B4: if two threads free the same block, one free succeeds and the other is reported as corruption.
pub(super) fn two_frees_of_one_block() {
    let pages = allocator_with_pages(2, order_one(), false, |_| ());
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || free(&other, page, ONE));
    free(&pages, page, ONE);
    t.join().unwrap();
    assert_eq!(pages.info().corruptions, 1, "one of the two frees is reported");
    audit(&pages);
}

/// B5: a thread that reads the owner of a frame finds an initialised owner, even if the thread does not own the block.
pub(super) fn any_thread_reads_an_initialised_owner() {
    let pages = allocator(2, false);
    let owner = Arc::new(Owner::new());
    let pfn = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let (theirs, own) = (pages.clone(), owner.clone());
    // SAFETY: the block is handed to this thread, and the owner outlives both threads.
    let t = thread::spawn(move || unsafe { own.publish(theirs.frame(pfn)) });
    // SAFETY: the owner outlives both threads.
    unsafe { Owner::check_owner(pages.frame(pfn)) };
    t.join().unwrap();
    free(&pages, pfn, ONE);
    audit(&pages);
}

/// B6: decommitting a block never decommits the frames of another block.
pub(super) fn decommit_keeps_the_frames_of_a_block_in_use() {
    let pages = allocator_with_pages(4, order_one(), false, |corruption| panic!("{corruption}"));
    let mine = pages.alloc(order_one(), Gfp::KERNEL, None).unwrap();
    let theirs = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    // SAFETY: this thread owns the block.
    pages.frame(theirs).data().with_mut(|data| unsafe { (*data)[0] = 7 });
    let other = pages.clone();
    let t = thread::spawn(move || {
        // SAFETY: this thread received the block.
        assert_eq!(other.frame(theirs).data().with(|data| unsafe { (*data)[0] }), 7);
        free(&other, theirs, ONE);
    });
    free(&pages, mine, order_one());
    pages.decommit_free();
    t.join().unwrap();
    audit(&pages);
}

/// B7: a decommit that runs during an allocation returns only free pages to the OS.
pub(super) fn trim_during_an_allocation_returns_only_free_pages() {
    let pages = allocator(4, false);
    let mine = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || {
        // Marks the page as allocated. The model fails if the page is discarded, or if the discard is not ordered with
        // this allocation.
        let page = other.alloc(ONE, Gfp::KERNEL, None).unwrap();
        free(&other, page, ONE);
    });
    pages.decommit_free();
    t.join().unwrap();
    pages.decommit_free();
    let census = pages.check().unwrap();
    assert_eq!(
        (census.allocated, census.discarded),
        (1, 3),
        "every free page except this one was decommitted"
    );
    free(&pages, mine, ONE);
    audit(&pages);
}

/// B8: two charges run during an allocation, and only one of them fits. Charged and allocated pages together never
/// exceed the allocator's pages.
pub(super) fn two_charges_during_an_allocation() {
    charge_on_two_threads(allocator(4, false));
}

/// B8: two charges that span two zones run during an allocation. Neither zone alone has enough pages for one charge.
pub(super) fn two_charges_of_two_zones_during_an_allocation() {
    let zones = [(ZoneKind::Dma32, 2), (ZoneKind::Normal, 2)];
    charge_on_two_threads(zones_with_pages(&zones, order_one(), false, |corruption| panic!("{corruption}")));
}

fn charge_on_two_threads(pages: Arc<PageAllocator>) {
    let other = pages.clone();
    let t = thread::spawn(move || other.charge(3));
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let mine = pages.charge(3);
    assert!(mine != t.join().unwrap(), "one of the two charges must fit");
    let census = pages.check().unwrap();
    assert_eq!((census.charged, census.allocated), (3, 1), "exactly the free pages are charged");
    assert!(
        pages.alloc(ONE, Gfp::KERNEL, None).is_err() && !pages.charge(1),
        "no more pages are charged than exist"
    );
    pages.uncharge(3);
    free(&pages, page, ONE);
    audit(&pages);
}

/// P1: magazines are filled from the zone and drained to it concurrently. Each page stays in exactly one place, and no
/// page is lost.
pub(super) fn refill_and_drain_during_zone_use(script: Script) {
    let pages = allocator(4, true);
    let other = pages.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let block = other.alloc(order_one(), Gfp::KERNEL, None).unwrap();
        free(&other, block, order_one());
    });
    script.install();
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    free(&pages, page, ONE);
    pages.drain_cpus(0..1);
    t.join().unwrap();
    audit(&pages);
}

/// P2: one thread drains a CPU while another thread allocates and frees on this CPU.
pub(super) fn drain_of_a_busy_cpu(script: Script) {
    let pages = allocator(2, true);
    on_cpu(0);
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        other.drain_cpus(0..1);
    });
    script.install();
    let again = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    free(&pages, page, ONE);
    free(&pages, again, ONE);
    t.join().unwrap();
    audit(&pages);
}
