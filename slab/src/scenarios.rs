//! Scenarios of the caches for loom and shuttle: parameters of their runs, and planted bugs that the runs must detect.
//!
//! A scenario's name begins with the properties that it checks (`tests/claims.toml` states them): S1-S4 the lists of
//! slabs, S5 constructed objects, C1-C4 the end of a cache, M1 magazines, W1 hives, H1-H7 handles, G1 the global
//! subsystem, U1 the public API, R1 the registry, L1 limits, L2-L9 waiting at them and accounts, P1 mappings, Q1 the
//! quarantine, G2 slots of samples, T1 tags, V1 and V2 the reaper, O1 and O2 heap profiles, A1-A6 the whole subsystem.
//! Each scenario ends in the census of `world`. The scenarios of loom are exhaustive and small. The scenarios of
//! shuttle are larger, sampled, and sequentially consistent, so only loom checks memory orderings.

mod handles;
mod hardened;
#[cfg(shuttle)]
mod histories;
#[cfg(shuttle)]
#[allow(dead_code, reason = "only the magazines record histories of owned objects")]
#[path = "../../tests/kit/linearizable.rs"]
mod linearizable;
#[cfg(loom)]
mod models;
#[cfg(all(loom, crossbeam_loom))]
mod rcu;
#[cfg(shuttle)]
mod schedules;
#[cfg(shuttle)]
mod simulation;
mod waiting;
pub(crate) mod world;

#[cfg(shuttle)]
use crate::Config;
use crate::Magazines;
#[cfg(loom)]
use crate::debug::check::{Bound, Script};
#[cfg(shuttle)]
use uslab_magazine::sync::{self, schedule::Schedules};
#[cfg(shuttle)]
use world::config_with_nodes;
use world::{
    SMALL, race_cache_walk_with_reaps, race_construction_with_shrinks, race_drop_with_frees,
    race_drop_with_reaps, race_live_listing_with_allocs, race_mapping_frees, race_registry_removals,
    race_reuse_with_late_frees, walk_registry_during_removals,
};

#[cfg(all(loom, crossbeam_loom))]
const ONE_PREEMPTION: Bound = Bound::Preemptions(1);
#[cfg(loom)]
const TWO_PREEMPTIONS: Bound = Bound::Preemptions(2);
#[cfg(loom)]
const THREE_PREEMPTIONS: Bound = Bound::Preemptions(3);
#[cfg(shuttle)]
const RUNS: Schedules = Schedules(2000);

uslab_magazine::sync::scenarios! {
    #![planted(uslab_planted)]

    // These scenarios run under both loom and shuttle.
    c2 {
        loom("C2: a cache is dropped during a reap", Model::new(THREE_PREEMPTIONS, 1600), || race_drop_with_reaps(1));
        shuttle("C2: a cache is dropped during three reaps", RUNS, || race_drop_with_reaps(3));
        bug("a cache is freed while a visitor uses its objects", "C2", "a cache without an owner is freed");
        #[cfg(loom)]
        bug("two threads free one cache", "C2", "a reference to a freed cache was released");
    }
    c3 {
        loom("C3: a cache is dropped during its last frees", Model::new(TWO_PREEMPTIONS, 1200).each([1, 2]), race_drop_with_frees);
        shuttle("C3: a cache is dropped while three threads free its last objects", RUNS, || race_drop_with_frees(3));
        #[cfg(loom)]
        bug("the last user of a dropped cache does not free it", "C3", "a cache without an owner is freed");
        bug("a visitor that joins during the check is overlooked", "C3", "a cache without an owner is freed");
        bug("dropping a cache does not close its magazines", "C3", "a cache without an owner is freed");
    }
    c4 {
        loom("C4: an object is freed late, while a new cache is created", Model::new(TWO_PREEMPTIONS, 1200), || race_reuse_with_late_frees(1));
        shuttle("C4: three objects are freed late, while a new cache is created", RUNS, || race_reuse_with_late_frees(3));
        bug("a class number is freed while its objects are in use", "C4", "a cache without an owner is freed");
    }
    w1 {
        loom("W1: a thread iterates over a hive during a reap", Model::new(THREE_PREEMPTIONS, 6700), || race_cache_walk_with_reaps(1));
        shuttle("W1: a thread iterates over a hive while three others reap", RUNS, || race_cache_walk_with_reaps(3));
        bug("a hive treats any set bit as a value", "W1", "the walk visits the values of the hive");
    }
    w1_removal {
        loom("W1: a value is removed from a hive during a reap", Model::new(TWO_PREEMPTIONS, 900), models::race_removal_with_reap);
        bug("a hive reads the value of a free place", "W1", "Causality violation");
    }

    s4 {
        loom("S4: live objects are listed during an allocation", Model::new(THREE_PREEMPTIONS, 24), || race_live_listing_with_allocs(1, 1));
        shuttle("S4: live objects are listed during three allocations on two nodes", RUNS, || race_live_listing_with_allocs(3, 2));
        bug("room in a list is used after the list was unlocked", "S4", "memory is allocated under a node's lock");
    }
    s5 {
        loom("S5: objects are constructed during a shrink", Model::new(THREE_PREEMPTIONS, 70), || race_construction_with_shrinks(1));
        shuttle("S5: objects are constructed during three shrinks", RUNS, || race_construction_with_shrinks(3));
        bug("a shrink destructs objects that it has not taken", "S5", "constructed");
    }
    r1 {
        loom("R1: a thread walks the registry while an entry is removed", Model::new(Bound::None, 8).each([0, 1]), |goes| walk_registry_during_removals(&[goes], 0));
        shuttle("R1: two threads walk the registry while two entries are removed", RUNS, || walk_registry_during_removals(&[0, 1], 1));
        bug("a registry walk continues at a stale position", "R1", "each remaining entry is visited once");
    }
    r1_two_go {
        loom("R1: two threads remove entries of the registry", Model::new(Bound::None, 2), || race_registry_removals(1));
        shuttle("R1: three threads remove entries of the registry", RUNS, || race_registry_removals(2));
        bug("a removed entry is counted after the list was unlocked", "R1", "the count of remaining entries is right");
    }
    p1 {
        loom("P1: two threads free a mapping that another thread reads", Model::new(THREE_PREEMPTIONS, 20), || race_mapping_frees(1));
        shuttle("P1: three threads free a mapping that another thread reads", RUNS, || race_mapping_frees(2));
        bug("a mapping is removed after the table was unlocked", "P1", "at < self.len");
    }

    q1 {
        loom("Q1: a cache is dropped during frees into its quarantine", Model::new(TWO_PREEMPTIONS, 4000).each([(1, 1), (2, 1)]), |(objects, places)| hardened::race_drop_with_delayed_frees(objects, places));
        shuttle("Q1: a cache is dropped while three threads free into its quarantine", RUNS, || hardened::race_drop_with_delayed_frees(3, 2));
        bug("a free does not check that the quarantine was closed", "Q1", "a cache without an owner is freed");
    }
    g2 {
        loom("G2: two threads free the same sample", Model::new(Bound::None, 12000), hardened::race_two_frees_of_sample);
        shuttle("G2: two threads free one sample", RUNS, hardened::race_two_frees_of_sample);
        #[cfg(loom)]
        bug("a guard slot is taken without an atomic exchange", "G2", "Causality violation");
        #[cfg(shuttle)]
        bug("a guard slot is taken without an atomic exchange", "G2", "at most one free of a sample succeeds");
    }
    g2_again {
        loom("G2: a guard slot is reused by two threads", Model::new(THREE_PREEMPTIONS, 4000), || hardened::race_guard_slot_reuse(2));
        shuttle("G2: a guard slot is reused by three threads", RUNS, || hardened::race_guard_slot_reuse(3));
        #[cfg(shuttle)]
        bug("a guard slot is taken without an atomic exchange", "G2", "a sample has one owner");
    }

    l2 {
        loom("L2: a free wakes one waiter", Model::new(THREE_PREEMPTIONS, 2400), || waiting::wake_waiters_after_free(1));
        shuttle("L2: one thread's frees wake two waiters", RUNS, || waiting::wake_waiters_after_free(2));
        bug("a free does not check for waiters", "L2", "deadlock");
        bug("magazines stay open while a waiter waits", "L2", "deadlock");
    }
    l2_destructed {
        loom("L2: destructing an object wakes a waiter", Model::new(TWO_PREEMPTIONS, 3300), waiting::wake_waiter_by_destruction);
        shuttle("L2: a destructed object wakes a waiter", RUNS, waiting::wake_waiter_by_destruction);
        bug("freeing a destructed object wakes no waiter", "L2", "deadlock");
    }
    l2_readers {
        shuttle("L2: a deferred free wakes a waiter", RUNS, waiting::wake_waiter_by_deferred_free);
        bug("a new deferred free wakes no collector thread", "L2", "deadlock");
    }
    l3 {
        loom("L3: the first of two waiters is served first", Model::new(THREE_PREEMPTIONS, 150), || waiting::serve_waiters_in_order(0));
        shuttle("L3: the first of two waiters is served before three allocations", RUNS, || waiting::serve_waiters_in_order(2));
        bug("the newest waiter is served first", "L3", "the second waiter must not overtake the first");
        bug("an allocation overtakes waiters", "L3", "an allocation must not overtake a waiter");
    }
    l3_joins {
        loom("L3: a waiter joins the queue during the first waiter's drain", Model::new(TWO_PREEMPTIONS, 3000), || waiting::prevent_overtaking_of_joiner(1));
        shuttle("L3: a waiter joins a queue of two during the first waiter's drain", RUNS, || waiting::prevent_overtaking_of_joiner(2));
        bug("a new waiter does not wait for drained objects", "L3", "an allocation must not overtake a waiter that joined");
    }
    l4 {
        loom("L4: the first waiter cancels during a free", Model::new(THREE_PREEMPTIONS, 24), || waiting::cancel_waiter_and_serve_next(0));
        shuttle("L4: the first and the last waiter cancel during a free", RUNS, || waiting::cancel_waiter_and_serve_next(1));
        bug("a cancelled waiter keeps its object", "L4", "the cancelled waiter's object reaches the next waiter");
    }
    l5 {
        loom("L5: a waiter's timeout races with a free", Model::new(THREE_PREEMPTIONS, 3200), || waiting::race_timeout_with_free(0));
        shuttle("L5: the timeouts of two waiters race with a free", RUNS, || waiting::race_timeout_with_free(1));
        bug("a cancelled waiter keeps its object", "L5", "an object that arrives after the timeout is not lost");
    }
    l6 {
        loom("L6: a waiter gets a new slab after a slab is freed", Model::new(TWO_PREEMPTIONS, 2100), || waiting::grow_waiter_after_slab_free(0));
        shuttle("L6: two waiters get a new slab after a slab is freed", RUNS, || waiting::grow_waiter_after_slab_free(1));
        bug("releasing a slab's charge wakes no waiter", "L6", "deadlock");
    }
    l7 {
        loom("L7: a cache with a waiter is destroyed", Model::new(TWO_PREEMPTIONS, 8000), || waiting::destroy_cache_with_waiters(1));
        shuttle("L7: a cache with two waiters is destroyed", RUNS, || waiting::destroy_cache_with_waiters(2));
        #[cfg(shuttle)]
        bug("a free does not check for waiters", "L7", "deadlock");
        #[cfg(shuttle)]
        bug("magazines stay open while a waiter waits", "L7", "deadlock");
    }
    l7_account {
        loom("L7: destroying a cache of a full account serves a waiter", Model::new(TWO_PREEMPTIONS, 1200), || waiting::destroy_cache_of_full_account(1));
        shuttle("L7: destroying a cache of a full account serves two waiters", RUNS, || waiting::destroy_cache_of_full_account(2));
        bug("destroying a cache does not wake its waiters", "L7", "deadlock");
    }

    l8 {
        loom("L8: a waiter gets memory of another cache of its account", Model::new(TWO_PREEMPTIONS, 14000).each([(false, false), (true, false), (false, true)]), |(another, shrinks)| waiting::wait_for_memory_of_peer_cache(1, another, shrinks));
        shuttle("L8: two waiters get memory of another cache of their account", RUNS, || waiting::wait_for_memory_of_peer_cache(2, false, false));
        bug("other caches of an account are not reclaimed", "L8", "deadlock");
        bug("returning a charge wakes no waiter", "L8", "deadlock");
        #[cfg(loom)]
        bug("the first waiter leaves without waking the next", "L8", "deadlock");
    }
    l8_two_grow {
        loom("L8: two caches of an account compete for one slab", Model::new(THREE_PREEMPTIONS, 70), || waiting::race_growth_at_account_limit(2));
        shuttle("L8: three caches of an account compete for one slab", RUNS, || waiting::race_growth_at_account_limit(3));
        bug("an account is charged without an atomic update", "L8", "the account stays within its limit");
    }
    l9 {
        loom("L9: raising an account's limit serves a waiter", Model::new(TWO_PREEMPTIONS, 900), || waiting::raise_limit_for_waiters(1));
        shuttle("L9: raising an account's limit serves two waiters", RUNS, || waiting::raise_limit_for_waiters(2));
        bug("raising a limit wakes no waiter", "L9", "deadlock");
    }

    // These scenarios run only under loom.
    s1 {
        loom("S1: two frees and an allocation share a slab", Model::new(Bound::None, 65), models::race_frees_and_alloc_on_slab);
        bug("a slab leaves its list after the list was unlocked", "S1", "the slab is on list Full, but belongs on Partial");
    }
    s2 {
        loom("S2: a cache shrinks during a free and an allocation", Model::new(Bound::None, 740), models::race_shrink_free_and_alloc);
        bug("a chosen slab is used after the list was unlocked", "S2", "Causality violation");
        bug("a freed slab stays charged", "S2", "expected 1");
    }
    s6 {
        loom("S6: unused pages are discarded during a free and an allocation", Model::new(Bound::None, 12), models::race_discard_free_and_alloc);
        bug("unused pages of a slab are discarded after unlocking", "S6", "Causality violation");
    }
    s3 {
        loom("S3: two caches reclaim one page from each other", Model::new(Bound::None, 24), models::reclaim_between_two_caches);
    }
    s3_for_a_page_in_use {
        loom("S3: two caches try to reclaim a page in use", Model::new(THREE_PREEMPTIONS, 2100), models::reclaim_page_in_use);
        bug("a node lock is held while reclaiming", "S3", "lock order");
    }
    s3_beside_refill {
        loom("S3: a cache shrinks during a refill", Model::new(THREE_PREEMPTIONS, 440), models::race_shrink_with_refill);
    }
    c1 {
        loom("C1: a cache is destroyed during its last free", Model::new(THREE_PREEMPTIONS, 130).each([Magazines::Off, SMALL]), models::race_destroy_with_last_free);
    }
    c1_beside_an_allocation {
        loom("C1: a cache is destroyed during an allocation", Model::new(THREE_PREEMPTIONS, 990), models::race_destroy_with_alloc);
        bug("destroy closes a node without rechecking its slabs", "C1", "destroyed with an object in use");
    }
    c1_beside_one_who_shares {
        loom("C1: a cache is destroyed while another owner merges with it", Model::new(TWO_PREEMPTIONS, 5), models::race_destroy_with_merge);
    }
    h1 {
        loom("H1: an object is held while another thread frees and reuses it", Model::new(THREE_PREEMPTIONS, 220), handles::models::hold_object_across_reuse);
        bug("a holder is counted without an atomic exchange", "H1", "the object belongs to the handle");
        bug("a freed object keeps its generation", "H1", "the object belongs to the handle");
    }
    h2 {
        loom("H2: two threads free one handle", Model::new(THREE_PREEMPTIONS, 50), handles::models::race_two_frees_of_handle);
        bug("a handle is freed without an atomic exchange", "H2", "object freed twice");
    }
    h3 {
        loom("H3: a handle with two holders is freed", Model::new(TWO_PREEMPTIONS, 900), handles::models::race_free_with_two_holders);
        bug("a free does not wait for holders", "H3", "object freed twice");
    }
    h4 {
        loom("H4: a handle is passed to another thread without ordering", Model::new(THREE_PREEMPTIONS, 20), handles::models::pass_handle_without_ordering);
    }
    h4_guessed {
        loom("H4: a handle is guessed during its allocation", Model::new(THREE_PREEMPTIONS, 140), handles::models::guess_handle_during_alloc);
        bug("an object is prepared while in use", "H4", "Causality violation");
    }
    h4_freed_at_once {
        loom("H4: a handle is passed to another thread, which frees it", Model::new(THREE_PREEMPTIONS, 20), handles::models::free_passed_handle_unheld);
    }
    h5 {
        loom("H5: writes before a free are visible to the next owner", Model::new(THREE_PREEMPTIONS, 140), handles::models::order_writes_before_slot_reuse);
    }
    h6 {
        loom("H6: two objects get numbers concurrently", Model::new(THREE_PREEMPTIONS, 1100), handles::models::race_two_number_assignments);
        bug("an object number is taken after the table was unlocked", "H6", "(0, 1, 1)");
    }
    h7 {
        loom("H7: a new object reuses a number", Model::new(THREE_PREEMPTIONS, 350), handles::models::reuse_number_after_destruction);
        bug("a new object restarts the generation of its number", "H7", "a stale handle is valid");
    }
    m1 {
        loom("M1: CPUs exchange objects", Model::new(TWO_PREEMPTIONS, 7100).each(Script::all(1, 2, 10)), models::exchange_objects_between_cpus);
        bug("a CPU's region is used without a claim", "M1", "Causality violation");
    }
    a5 {
        loom("A5: two threads use a pool's reserve", Model::new(THREE_PREEMPTIONS, 7000).each([1, 2]), models::race_two_users_of_reserve);
        bug("a mempool does not count the objects taken from its reserve", "A5", "the reserve of a pool");
    }
    g1 {
        loom("G1: two threads publish a value", Model::new(Bound::None, 68), models::race_two_publications);
        bug("the second publisher keeps its value", "G1", "all threads see one published value");
    }
    u1 {
        loom("U1: two threads use the public API", Model::new(TWO_PREEMPTIONS, 1900).each(Script::all(1, 2, 6)), models::exercise_public_api);
        bug("an assertion of the model fails", "U1", "belongs to another thread");
    }
    l1_two_grow {
        loom("L1: two threads grow a cache at its limit", Model::new(THREE_PREEMPTIONS, 64), models::race_two_growths_at_limit);
        bug("a slab is charged without an atomic update", "L1", "the cache has no more slabs than its limit");
    }
    l1 {
        loom("L1: at the limit, a CPU gets objects that another CPU freed", Model::new(THREE_PREEMPTIONS, 7), models::reuse_freed_object_at_limit);
        bug("an allocation fails without draining other CPUs", "L1", "CacheLimit");
    }
    l1_of_two_nodes {
        loom("L1: at the limit, a thread gets objects that another node caches", Model::new(TWO_PREEMPTIONS, 500), models::reuse_remote_object_at_limit);
        shuttle("L1 M1: four threads use a cache of two nodes at its limit", RUNS, || schedules::use_cache_at_slab_limit(config_with_nodes(2, 4)));
        bug("a flush skips the depots", "L1", "CacheLimit");
    }

    // These scenarios run only under shuttle.
    pressed {
        shuttle("S1 S2 S3: four threads use two caches that share four pages", RUNS, || schedules::compete_for_pages_by_reclaim(Magazines::Off));
        bug("a slab leaves its list after the list was unlocked", "S1", "taken off an empty list");
        bug("a chosen slab is used after the list was unlocked", "S2", "taken off an empty list");
        bug("a freed slab stays charged", "S2", "slabs (listed or in a grace period), expected");
        bug("a node lock is held while reclaiming", "S3", "lock order");
    }
    pressed_through_magazines {
        shuttle("M1 S1 S2 S3: four threads with magazines use two caches that share four pages", RUNS, || schedules::compete_for_pages_by_reclaim(SMALL));
        bug("a CPU's region is used without a claim", "M1", "census: ");
    }
    destroyed {
        shuttle("C1: a cache is destroyed while three threads use it", RUNS, || schedules::race_destroy_with_three_users(Magazines::Off));
        bug("destroy closes a node without rechecking its slabs", "C1", "destroyed with an object in use");
    }
    destroyed_with_magazines {
        shuttle("C1 M1: a cache with magazines is destroyed while three threads use it", RUNS, || schedules::race_destroy_with_three_users(SMALL));
        bug("destroy closes a node without rechecking its slabs", "C1", "destroyed with an object in use");
        bug("a CPU's region is used without a claim", "M1", "double free");
    }
    limited {
        shuttle("L1 M1: four threads use a cache at its limit", RUNS, || schedules::use_cache_at_slab_limit(Config::for_models(4)));
        bug("an allocation fails without draining other CPUs", "L1", "CacheLimit");
    }
    named {
        shuttle("H1 H2 H3 H4 H5: four threads use and free handles", RUNS, handles::race_four_handle_users);
        bug("a holder is counted without an atomic exchange", "H1", "the object belongs to the handle");
        bug("a freed object keeps its generation", "H1", "the object belongs to the handle");
        bug("a handle is freed without an atomic exchange", "H2", "object freed twice");
        bug("a free does not wait for holders", "H3", "object freed twice");
        bug("a free does not wait for holders", "H5", "the object being prepared has a holder");
        bug("an object is prepared while in use", "H4", "only after it is prepared");
    }
    numbered {
        shuttle("H6 H7: four threads create handles of objects that are destructed", Schedules(2500), handles::race_four_number_assignments);
        bug("an object number is taken after the table was unlocked", "H6", "two objects have the same number");
        bug("a new object restarts the generation of its number", "H7", "a stale handle is valid");
    }
    started {
        shuttle("G1: four threads publish a value", RUNS, schedules::publish_and_read_value);
        bug("the second publisher keeps its value", "G1", "all threads see one published value");
    }
    used {
        shuttle("U1 M1: four threads use the public API", RUNS, schedules::exercise_api_on_all_threads);
        bug("a CPU's region is used without a claim", "U1", "no object remains in use");
    }
    checked {
        shuttle("T1: three threads free one checked object", RUNS, hardened::race_three_checked_frees);
        bug("a tag is cleared without an atomic exchange", "T1", "object freed twice");
    }
    reaped {
        shuttle("V1: two threads allocate pages while the reaper runs", Schedules(3000), schedules::race_page_use_with_reaper);
        bug("the reaper sleeps without rechecking for work", "V1", "the reaper must not sleep while memory can be returned");
    }
    asked_again {
        shuttle("V2: a waiter gets memory that a shrinker released", Schedules(1000), schedules::wait_for_repeated_shrinking);
        bug("a waiter at a limit does not wake the reaper", "V2", "deadlock");
    }
    explained_handles {
        shuttle("H1 H2 H3 H6 H7: the results of four threads' handle operations fit one sequential order", RUNS, histories::handles);
        bug("a holder is counted without an atomic exchange", "H1", "no sequential order explains");
        bug("a freed object keeps its generation", "H1", "no sequential order explains");
        bug("a handle is freed without an atomic exchange", "H2", "no sequential order explains");
        bug("a free does not wait for holders", "H3", "object freed twice");
        bug("an object number is taken after the table was unlocked", "H6", "no sequential order explains");
        bug("a new object restarts the generation of its number", "H7", "no sequential order explains");
    }
    explained_hives {
        shuttle("W1: the results of four threads' operations on two hives fit one sequential order", RUNS, histories::hives);
        bug("a hive treats any set bit as a value", "W1", "no sequential order explains");
    }
    explained_pools {
        shuttle("A5: the results of four threads' operations on a pool fit one sequential order", RUNS, histories::pools);
        bug("a mempool does not count the objects taken from its reserve", "A5", "no sequential order explains");
    }
    profiled {
        shuttle("O1: four threads allocate and free while a profile runs", RUNS, schedules::profile);
        bug("a sample is removed after its object is freed", "O1", "live objects in the profile");
    }
    profiled_anew {
        shuttle("O2: four threads allocate and free while one profile ends and another begins", RUNS, schedules::run_successive_profiles);
        bug("a sample of one profile is recorded in the next", "O2", "a profile without sampling has no samples");
    }
    simulated {
        shuttle("A1 A2 A3 A4 A5 A6: random scripts run on a whole subsystem", simulation::Seeds(1500), || ());
        bug("a partly pushed batch counts as pushed", "A1", "expected");
        bug("a merge does not check the buddy", "A1", "taken off an empty list");
        bug("a freed object keeps its generation", "A1", "two objects have the same handle");
        bug("a flush skips the depots", "A1", "a cache alone allocates");
        bug("shrinkers run with the list lock held", "A2", "lock order");
        bug("a tag is cleared after its object is freed", "A3", "object freed twice");
        bug("deferred frees do not wait for readers", "A4", "a reader may read");
        bug("a slab is freed before its readers leave", "A4", "that a reader can read");
        bug("a mempool does not count the objects taken from its reserve", "A5", "the reserve of a pool");
        bug("the newest waiter is served first", "A6", "a waiter was overtaken");
        bug("an allocation overtakes waiters", "A6", "a waiter was overtaken");
        bug("a cancelled waiter keeps its object", "A6", "objects in use");
    }
}

// These scenarios run only under loom, with the collector's atomics (E1-E3, grace periods).
#[cfg(all(loom, crossbeam_loom))]
uslab_magazine::sync::scenarios! {
    #![planted(uslab_planted)]

    e1 {
        loom("E1: a slab is freed during a read", Model::new(ONE_PREEMPTION, 1200), rcu::race_read_with_slab_free);
        bug("a slab is freed before its readers leave", "E1", "Causality violation");
        bug("a reader is not pinned", "E1", "Causality violation");
    }
    e2 {
        loom("E2: an object is freed with a grace period during a read", Model::new(ONE_PREEMPTION, 1200), rcu::race_read_with_deferred_free);
        bug("deferred frees do not wait for readers", "E2", "Causality violation");
        bug("a reader is not pinned", "E2", "Causality violation");
    }
    e3 {
        loom("E3: a thread reads an object that is freed and reallocated", Model::new(TWO_PREEMPTIONS, 2400), rcu::race_read_with_reallocation);
        bug("a reader does not recheck the key", "E3", "a value of another object");
    }
}
