//! Exhaustive models of the zone and of the per-CPU pages, on ranges of two or four pages.
//!
//! | model | claim | planted bugs it catches |
//! |---|---|---|
//! | B1 | an allocation against the free of its buddy: blocks never overlap, no merge is missed | blind merge, no merge, frame marked late |
//! | B2 | an allocation against the frees of both halves: merged once, frames and lists agree | buddy checked in one lock hold, merged in the next |
//! | B3 | order, owner and data travel with the block to whoever frees it next | owner cleared late |
//! | B4 | two frees of one block: one gets it, the other is told | claim by load and store |
//! | B5 | whoever asks a frame for its owner, block of others or not, finds that initialised | owner announced early |
//! | B6 | memory that goes back to the system takes no frame of another block with it | frames discarded outwards |
//! | B7 | a trim beside an allocation: memory goes back of free pages only | free pages discarded after the lock |
//! | P1 | refill and drain of magazines against the zone: a page is in one place, none is lost | frame marked late |
//! | P2 | a drain from outside against the CPU's own allocation and free | page marked late |
//!
//! In P1 and P2 one thread is moved to the other CPU before each of its first steps, a script each.
//!
//! What they run on, and the audit that each ends with, they share with the schedules: see `world`.

use crate::world::{ONE, Owner, allocator_of, audit, free, two};
use crate::{Gfp, Order, PageAllocator, Pfn};
use uslab_magazine::sync::check::{Bound, caught, model, models};
use uslab_magazine::sync::{Arc, AtomicU32, Ordering::*, thread};
use uslab_magazine::{Script, on_cpu};

/// An allocator of `pages` pages in one maximal block.
fn allocator(pages: u32, per_cpu_pages: bool) -> Arc<PageAllocator> {
    let order = Order::new(pages.ilog2() as u8).unwrap();
    allocator_of(pages, order, per_cpu_pages, |corruption| panic!("{corruption}"))
}

fn b1_alloc_against_the_free_of_the_buddy() {
    let pages = allocator(4, false);
    let mine = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || other.alloc(ONE, Gfp::KERNEL, None).unwrap());
    free(&pages, mine, ONE);
    free(&pages, t.join().unwrap(), ONE);
    audit(&pages);
}

fn b2_alloc_against_two_frees() {
    let pages = allocator(4, false);
    let halves = [(); 2].map(|()| pages.alloc(ONE, Gfp::KERNEL, None).unwrap());
    let frees = halves.map(|half| {
        let pages = pages.clone();
        thread::spawn(move || free(&pages, half, ONE))
    });
    let mine = pages.alloc(two(), Gfp::KERNEL, None).unwrap();
    for t in frees {
        t.join().unwrap();
    }
    free(&pages, mine, two());
    audit(&pages);
}

fn b3_order_and_owner_travel_with_the_block() {
    const OWNER: *mut u8 = core::ptr::without_provenance_mut(64);
    let pages = allocator(2, false);
    let mine = pages.alloc(two(), Gfp::KERNEL, None).unwrap();
    let mailbox = Arc::new(AtomicU32::new(0));
    let (theirs, post) = (pages.clone(), mailbox.clone());
    let t = thread::spawn(move || {
        let Ok(pfn) = theirs.alloc(two(), Gfp::KERNEL, None) else { return };
        let frame = theirs.frame(pfn);
        // SAFETY: the block is this thread's, and only compared are owners here.
        unsafe { frame.set_owner(OWNER) };
        // SAFETY: the block is this thread's.
        frame.data().with_mut(|data| unsafe { (*data)[0] = 7 });
        // Release: pairs with the Acquire below.
        post.store(pfn.get() + 1, Release);
    });
    free(&pages, mine, two());
    let receive = || {
        // Acquire: pairs with the Release above.
        let Some(pfn) = mailbox.load(Acquire).checked_sub(1).map(Pfn::new) else { return false };
        let frame = pages.frame(pfn);
        assert_eq!(frame.owner(), OWNER, "the owner was lost");
        // SAFETY: the block was handed over.
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

fn b4_two_frees_of_one_block() {
    let pages = allocator_of(2, two(), false, |_| ());
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || free(&other, page, ONE));
    free(&pages, page, ONE);
    t.join().unwrap();
    assert_eq!(pages.info().corruptions, 1, "one of two frees is told");
    audit(&pages);
}

fn b5_a_stranger_asks_for_the_owner() {
    let pages = allocator(2, false);
    let owner = Arc::new(Owner::new());
    let pfn = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let (theirs, own) = (pages.clone(), owner.clone());
    // SAFETY: the block is handed to this thread, and the owner outlives both.
    let t = thread::spawn(move || unsafe { own.announce(theirs.frame(pfn)) });
    // SAFETY: as above.
    unsafe { Owner::ask(pages.frame(pfn)) };
    t.join().unwrap();
    free(&pages, pfn, ONE);
    audit(&pages);
}

fn b6_a_release_beside_a_block_in_use() {
    let pages = allocator_of(4, two(), false, |corruption| panic!("{corruption}"));
    let mine = pages.alloc(two(), Gfp::KERNEL, None).unwrap();
    let theirs = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    // SAFETY: the block is this thread's.
    pages.frame(theirs).data().with_mut(|data| unsafe { (*data)[0] = 7 });
    let other = pages.clone();
    let t = thread::spawn(move || {
        // SAFETY: the block was handed over.
        assert_eq!(other.frame(theirs).data().with(|data| unsafe { (*data)[0] }), 7);
        free(&other, theirs, ONE);
    });
    free(&pages, mine, two());
    pages.trim();
    t.join().unwrap();
    audit(&pages);
}

fn b7_a_trim_beside_an_allocation() {
    let pages = allocator(4, false);
    let mine = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    let other = pages.clone();
    let t = thread::spawn(move || {
        // Marked as in use: a discard of it, or one that is not ordered with this, fails the model.
        let page = other.alloc(ONE, Gfp::KERNEL, None).unwrap();
        free(&other, page, ONE);
    });
    pages.trim();
    t.join().unwrap();
    pages.trim();
    let census = pages.check().unwrap();
    assert_eq!(
        (census.allocated, census.discarded),
        (1, 3),
        "all that is free beside the page was given back"
    );
    free(&pages, mine, ONE);
    audit(&pages);
}

fn p1_refill_and_drain_against_the_zone(script: Script) {
    let pages = allocator(4, true);
    let other = pages.clone();
    let t = thread::spawn(move || {
        on_cpu(1);
        let block = other.alloc(two(), Gfp::KERNEL, None).unwrap();
        free(&other, block, two());
    });
    script.install();
    let page = pages.alloc(ONE, Gfp::KERNEL, None).unwrap();
    free(&pages, page, ONE);
    pages.drain_cpus(0..1);
    t.join().unwrap();
    audit(&pages);
}

fn p2_drain_against_the_cpu_itself(script: Script) {
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

const TWO: Bound = Bound::Preemptions(2);
const THREE: Bound = Bound::Preemptions(3);

/// The first thread stays on CPU 0, or is moved to CPU 1 before one of its steps.
fn moves() -> impl Iterator<Item = Script> + Clone {
    Script::all(0, 2, 6)
}

#[test]
fn b1() {
    model("B1 alloc || free of the buddy", Bound::None, 25, b1_alloc_against_the_free_of_the_buddy);
}
#[test]
fn b2() {
    model("B2 alloc || free || free", THREE, 9800, b2_alloc_against_two_frees);
}
#[test]
fn b3() {
    model("B3 order and owner travel", Bound::None, 110, b3_order_and_owner_travel_with_the_block);
}
#[test]
fn b4() {
    model("B4 free || free of one block", Bound::None, 1400, b4_two_frees_of_one_block);
}
#[test]
fn b5() {
    model("B5 a stranger asks for the owner", Bound::None, 18, b5_a_stranger_asks_for_the_owner);
}
#[test]
fn b6() {
    model("B6 release || a block in use", Bound::None, 1200, b6_a_release_beside_a_block_in_use);
}
#[test]
fn b7() {
    model("B7 trim || alloc", Bound::None, 4900, b7_a_trim_beside_an_allocation);
}
#[test]
fn p1() {
    models("P1 refill, drain || zone", THREE, 4200, moves(), p1_refill_and_drain_against_the_zone);
}
#[test]
fn p2() {
    models("P2 drain || own CPU", THREE, 3300, moves(), p2_drain_against_the_cpu_itself);
}

#[test]
fn planted_bugs_are_caught() {
    let b1 = |bug, expected| {
        caught(bug, "B1", TWO, expected, [()], |()| b1_alloc_against_the_free_of_the_buddy());
    };
    b1("merge without looking at the buddy", "page 1 taken off an empty list");
    b1("no merge", "missed merge with the buddy");
    b1("frame marked after the lock", "page 1 taken off an empty list");
    let bug = "buddy checked in one lock hold and merged in the next";
    caught(bug, "B2", TWO, "missed merge with the buddy", [()], |()| b2_alloc_against_two_frees());
    caught("owner cleared after the free", "B3", TWO, "the owner was lost", [()], |()| {
        b3_order_and_owner_travel_with_the_block();
    });
    let bug = "owner announced before it is initialised";
    caught(bug, "B5", TWO, "an owner is found initialised", [()], |()| b5_a_stranger_asks_for_the_owner());
    let bug = "block claimed by load and store";
    caught(bug, "B4", TWO, "Concurrent write accesses", [()], |()| b4_two_frees_of_one_block());
    let bug = "frames are discarded by whole pages, outwards";
    caught(bug, "B6", TWO, "Concurrent read and write accesses", [()], |()| {
        b6_a_release_beside_a_block_in_use()
    });
    let bug = "free pages are discarded after their lock";
    caught(bug, "B7", TWO, "Concurrent write accesses", [()], |()| b7_a_trim_beside_an_allocation());
    let bug = "frame marked after the lock";
    caught(bug, "P1", TWO, "page 2 taken off an empty list", moves(), p1_refill_and_drain_against_the_zone);
    let bug = "page marked after it went into the magazine";
    caught(bug, "P2", TWO, "frame and free list disagree", moves(), p2_drain_against_the_cpu_itself);
}
