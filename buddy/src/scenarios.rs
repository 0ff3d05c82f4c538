//! Test scenarios for loom and shuttle that run the zone and the per-CPU pages. Planted bugs check that the scenarios
//! detect errors.
//!
//! A scenario's name begins with the properties that the scenario checks. The file `tests/claims.toml` describes the
//! properties. Properties B1 to B7 cover blocks, frames and their memory. Property B8 covers charges, and P1 and P2
//! cover per-CPU pages. Each scenario ends with an audit of the allocator. Loom explores small scenarios exhaustively;
//! their scripts move one thread to another CPU before one of its first steps. Shuttle samples the schedules of larger
//! scenarios, with sequential consistency. Only loom checks memory orderings.

#[cfg(loom)]
mod models;
#[cfg(shuttle)]
mod schedules;
mod world;

#[cfg(shuttle)]
use uslab_magazine::sync::schedule::Schedules;
#[cfg(loom)]
use uslab_magazine::{
    Script,
    sync::check::{Bound, Model, Models},
};

#[cfg(loom)]
const THREE: Bound = Bound::Preemptions(3);
/// Returns all scripts for a thread that starts on CPU 0. The thread stays there, or moves to CPU 1 before one of its
/// steps.
#[cfg(loom)]
fn moves(floor: u64) -> Models<Script> {
    Model::new(THREE, floor).each(Script::all(0, 2, 6))
}
#[cfg(shuttle)]
const RUNS: Schedules = Schedules(5000);

uslab_magazine::sync::scenarios! {
    #![planted(uslab_planted)]

    b1 {
        loom("B1 alloc || free of the buddy", Model::new(Bound::None, 25), models::allocation_during_the_free_of_its_buddy);
        bug("a merge does not check the buddy", "B1", "page 1 taken off an empty list");
        bug("no merge", "B1", "missed merge with the buddy");
        bug("a frame is marked after unlocking", "B1", "page 1 taken off an empty list");
    }
    b1_told {
        loom("B1 two allocations, observed", Model::new(THREE, 500), models::each_of_two_allocations_reports_its_splits);
        bug("the split count is read in an earlier lock hold", "B1", "each split is reported once");
    }
    b2 {
        loom("B2 alloc || free || free", Model::new(THREE, 9800), models::alloc_during_two_frees);
        bug("a buddy is merged without checking it again", "B2", "missed merge with the buddy");
    }
    b3 {
        loom("B3 a block's order and owner reach the next thread", Model::new(Bound::None, 110), models::freed_block_keeps_order_and_owner);
        bug("the owner of a page is cleared after its free", "B3", "the owner was lost");
    }
    b4 {
        loom("B4 free || free of one block", Model::new(Bound::None, 1400), models::two_frees_of_one_block);
        bug("a block is claimed without an atomic exchange", "B4", "Concurrent write accesses");
    }
    b5 {
        loom("B5 another thread reads the owner", Model::new(Bound::None, 18), models::any_thread_reads_an_initialised_owner);
        bug("an owner is published before it is initialised", "B5", "the owner that a reader finds is initialised");
    }
    b6 {
        loom("B6 decommit || use of a block", Model::new(Bound::None, 1200), models::decommit_keeps_the_frames_of_a_block_in_use);
        bug("frames of a partly free page are discarded", "B6", "Concurrent read and write accesses");
    }
    b7 {
        loom("B7 trim || alloc", Model::new(Bound::None, 4900), models::trim_during_an_allocation_returns_only_free_pages);
        bug("free pages are discarded after unlocking", "B7", "Concurrent write accesses");
    }
    b8 {
        loom("B8 charge || charge || alloc", Model::new(Bound::None, 500), models::two_charges_during_an_allocation);
        bug("a charge is made without checking the limit again", "B8", "more pages are charged than are free");
    }
    b8_zones {
        loom("B8 two threads charge two zones", Model::new(Bound::None, 2500), models::two_charges_of_two_zones_during_an_allocation);
        bug("a charge is made without checking the limit again", "B8", "more pages are charged than are free");
    }
    p1 {
        loom("P1 refill, drain || zone", moves(4200), models::refill_and_drain_during_zone_use);
        bug("a frame is marked after unlocking", "P1", "page 2 taken off an empty list");
    }
    p2 {
        loom("P2 drain || own CPU", moves(3300), models::drain_of_a_busy_cpu);
        bug("a freed page is marked after entering the magazine", "P2", "the frame and the free list disagree");
    }

    zones {
        shuttle("B1 B2 B3 B5 B6 B7 B8: threads exchange blocks of three orders", RUNS, schedules::zone);
        bug("a merge does not check the buddy", "B1", "taken off an empty list");
        bug("no merge", "B1", "missed merge with the buddy");
        bug("a frame is marked after unlocking", "B1", "taken off an empty list");
        bug("a buddy is merged without checking it again", "B2", "missed merge with the buddy");
        bug("the owner of a page is cleared after its free", "B3", "the owner was lost");
        bug("an owner is published before it is initialised", "B5", "the owner that a reader finds is initialised");
        bug("frames of a partly free page are discarded", "B6", "the owner was lost");
        bug("free pages are discarded after unlocking", "B7", "the memory of a page in use was decommitted");
        bug("a charge is made without checking the limit again", "B8", "more pages are charged than are free");
    }
    freed_twice {
        shuttle("B4: four threads free the same pages", RUNS, schedules::free_same_pages);
        bug("a block is claimed without an atomic exchange", "B4", "page freed twice");
    }
    per_cpu_pages {
        shuttle("P1 P2: four threads use and drain the pages of two CPUs", Schedules(2_500), schedules::per_cpu);
        bug("a freed page is marked after entering the magazine", "P2", "the frame and the free list disagree");
        bug("a drain issues no fence", "P2", "page allocated twice");
        bug("a flush returns no rounds to the supplier", "P1", "per-CPU pages counted");
    }
}
