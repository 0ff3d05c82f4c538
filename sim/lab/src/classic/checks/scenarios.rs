//! The scenarios of the magazine layer for loom and shuttle: the way to run each scenario, and the planted bugs that it
//! must find.
//!
//! The name of a scenario begins with the properties that it tests (stated in `tests/claims.toml`). The properties are
//! C1 (rounds), C2 (exchanges), C3 (drains), C4 (the working set), C5 (resizing), C6 (locks) and C7 (counts). Each
//! scenario ends with a census, which checks the state of its world. Loom's scenarios are small and run exhaustively;
//! shuttle's scenarios are larger and run as random samples.

#[cfg(loom)]
use super::models;
#[cfg(shuttle)]
use super::schedules;
#[cfg(loom)]
use uslab_magazine::Script;
#[cfg(loom)]
use uslab_magazine::sync::check::Bound;
#[cfg(shuttle)]
use uslab_magazine::sync::schedule::Schedules;

/// The bound for scenarios with two threads: loom runs every interleaving. A critical section counts as one step, so
/// the number of interleavings is small.
#[cfg(loom)]
pub(super) const ALL: Bound = Bound::None;
/// The bound on interleavings for scenarios with three threads.
#[cfg(loom)]
const THREE: Bound = Bound::Preemptions(3);
/// Returns scripts for the first thread: it stays on CPU 0, or moves to CPU 1 before one of its first `operations`
/// operations.
#[cfg(loom)]
fn moves(operations: u32) -> impl Iterator<Item = Script> {
    Script::all(0, 2, operations)
}
#[cfg(shuttle)]
const RUNS: Schedules = Schedules(5000);

const OBJECT_IN_ONE_PLACE: &str = "each object is in one place";

uslab_magazine::sync::scenarios! {
    #![planted(uslab_planted)]

    two_threads_of_one_cpu {
        loom("C1: two threads of one CPU", Model::new(ALL, 11), models::one_cpu);
    }
    a_thread_is_moved {
        loom("C1 C2: a thread is moved between its operations", Model::new(ALL, 170).each(moves(4)), models::moved);
    }
    three_threads_of_two_cpus {
        loom("C1 C2: three threads of two CPUs", Model::new(THREE, 50), models::three);
    }
    both_ask_the_slab_layer {
        loom("C1: both ask the slab layer", Model::new(ALL, 14), models::alloc_without_magazines);
        bug("the slab layer allocates without checking again", "C1", "Causality violation");
    }
    rounds_travel_through_the_depot {
        loom("C1 C2: rounds travel through the depot", Model::new(ALL, 1400).each(moves(3)), models::travel);
        bug("an exchange loses the previous magazine", "C1", OBJECT_IN_ONE_PLACE);
    }
    a_free_makes_a_magazine {
        loom("C2: a free makes a magazine beside an allocation", Model::new(ALL, 8), models::free_makes_magazine);
        bug("a new magazine is loaded without checking the CPU again", "C2", "the previous magazine is full or empty");
    }
    two_frees_make_magazines {
        loom("C2: two frees make magazines", Model::new(ALL, 32), models::two_frees_make_magazines);
        bug("an exchange loses the previous magazine", "C2", OBJECT_IN_ONE_PLACE);
    }
    the_slab_layer_refuses {
        loom("C1 C7: the slab layer refuses", Model::new(ALL, 13), models::refused);
        bug("a refused magazine allocation loses the round", "C1", OBJECT_IN_ONE_PLACE);
        bug("a refused allocation is counted", "C7", "the counts are exact");
    }
    a_drain_beside_an_exchange {
        loom("C3: a drain beside an exchange", Model::new(ALL, 500).each(moves(3)), models::drained);
        bug("a drain skips the previous magazine", "C3", "a drain leaves no objects");
        bug("a drain frees objects with a CPU lock held", "C6", "user code would run while a lock is held");
    }
    two_drains_beside_an_allocation {
        loom("C3: two drains beside an allocation", Model::new(THREE, 1200), models::two_drains);
    }
    end_of_life {
        loom("C3: the last owner ends the cache", Model::new(ALL, 40), models::last_drop_returns_objects);
        bug("a drain skips the depot", "C3", "the end of the cache frees all objects to the slab layer");
    }
    a_drain_beside_an_allocation_and_a_free {
        loom("C1 C3: a drain beside an allocation and a free", Model::new(THREE, 1000), models::drain_during_alloc_and_free);
    }
    a_reap_beside_an_exchange {
        loom("C4: a reap beside an exchange", Model::new(ALL, 10), models::reaped);
        bug("the working set ignores taken magazines", "C4", "a reap takes only unused magazines");
    }
    an_interval_ends_beside_an_exchange {
        loom("C4: an interval ends beside an exchange", Model::new(ALL, 11), models::reap_spares_new_magazines);
        bug("a reap frees the working set", "C4", "a reap takes only unused magazines");
    }
    resizing_beside_frees {
        loom("C5: resizing beside frees", Model::new(ALL, 20).each(moves(2)), models::resized);
    }
    resizing_beside_an_allocation {
        loom("C5: resizing beside an allocation", Model::new(ALL, 7).each(moves(2)), models::resize_during_allocation);
        bug("a depot restores an old magazine size", "C5", "the empty list has only the current size");
    }
    statistics_beside_an_exchange {
        loom("C6 C7: statistics beside an exchange", Model::new(ALL, 9), models::statistics_never_decrease);
        bug("statistics lock the depot first", "C6", "lock order: Cpu is requested while Depot is held");
    }

    exchanges {
        shuttle("C1 C2 C6 C7: four threads exchange", RUNS, schedules::exchange);
        bug("an exchange loses the previous magazine", "C2", OBJECT_IN_ONE_PLACE);
        bug("a new magazine is loaded without checking the CPU again", "C2", "the previous magazine is full or empty");
        bug("the slab layer allocates without checking again", "C1", "an object has two owners");
    }
    beside_drains_reaps_and_resizing {
        shuttle("C1 C2 C3 C4 C5 C6 C7: three exchange, one maintains", RUNS, schedules::owner_is_tested);
        bug("a drain skips the previous magazine", "C3", "a drain leaves no objects");
        bug("a depot restores an old magazine size", "C5", "the empty list has only the current size");
        bug("a drain frees objects with a CPU lock held", "C6", "user code would run while a lock is held");
    }
}
