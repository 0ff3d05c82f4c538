//! Scenarios of the zone and the per-CPU pages for loom and shuttle, with the planted bugs to detect.
//!
//! A scenario's name begins with the properties that it checks (`tests/claims.toml` describes them). The
//! properties B1-B7 cover blocks, frames and their memory, B8 covers charges, and P1 and P2 cover per-CPU
//! pages. Each scenario ends with the audit of `world`. loom's scenarios are small and exhaustive, and their
//! scripts move one thread to another CPU before each of its first steps. shuttle's scenarios are larger,
//! sampled, and sequentially consistent. The memory orderings are checked only by loom.

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
/// Returns scripts in which the first thread stays on CPU 0, or moves to CPU 1 before one of its steps.
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
        loom("B2 alloc || free || free", Model::new(THREE, 9800), models::alloc_against_two_frees);
        bug("a buddy is merged without checking it again", "B2", "missed merge with the buddy");
    }
    b3 {
        loom("B3 a block's order and owner reach the next thread", Model::new(Bound::None, 110), models::order_and_owner_travel_with_the_block);
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
        loom("P1 refill, drain || zone", moves(4200), models::refill_and_drain_against_the_zone);
        bug("a frame is marked after unlocking", "P1", "page 2 taken off an empty list");
    }
    p2 {
        loom("P2 drain || own CPU", moves(3300), models::drain_against_the_cpu_itself);
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
        shuttle("B4: four threads free the same pages", RUNS, schedules::twice);
        bug("a block is claimed without an atomic exchange", "B4", "page freed twice");
    }
    per_cpu_pages {
        shuttle("P1 P2: four threads use and drain the pages of two CPUs", Schedules(2_500), schedules::per_cpu);
        bug("a freed page is marked after entering the magazine", "P2", "the frame and the free list disagree");
        bug("a drain issues no fence", "P2", "page allocated twice");
        bug("a flush returns no rounds to the supplier", "P1", "per-CPU pages counted");
    }
}
