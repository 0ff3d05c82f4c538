//! Test scenarios for loom and shuttle that run the magazine layer. Planted bugs check that the scenarios detect
//! errors.
//!
//! A scenario's name begins with the properties that the scenario checks. The file `tests/claims.toml` describes the
//! properties. The properties cover restartable sequences (R1, R3), the movement of objects (M1-M4), drains and CPU
//! hotplug (H1-H5), the table (T1-T3), nodes (N1), fork (F1), and the depot (D1-D5). At its end, each scenario checks
//! that every object is in exactly one place (the *census*).
//!
//! All scenarios except the depot scenarios run twice: with the claimed mechanism, and with the token model of
//! restartable sequences. Loom explores small scenarios exhaustively. Each script of a migration or an abort is a
//! separate model. Shuttle samples the schedules of larger scenarios, with sequential consistency. Only loom checks
//! memory orderings.

#[cfg(shuttle)]
#[path = "../../tests/kit/linearizable.rs"]
mod linearizable;
#[cfg(loom)]
mod models;
#[cfg(shuttle)]
mod schedules;
mod world;

#[cfg(loom)]
use crate::sync::check::Bound;
#[cfg(shuttle)]
use crate::sync::{self, schedule::Schedules};
#[cfg(loom)]
use models::{Scripts, both, moves, stays};
#[cfg(shuttle)]
use schedules::BothMechanisms;
use world::{depot_closed, depot_limit};

#[cfg(loom)]
const TWO: Bound = Bound::Preemptions(2);
#[cfg(loom)]
const THREE: Bound = Bound::Preemptions(3);
#[cfg(shuttle)]
const RUNS: Schedules = Schedules(3000);
#[cfg(shuttle)]
const BOTH_CHECKERS: BothMechanisms = BothMechanisms(RUNS);

#[cfg(loom)]
const RACE: &str = "Causality violation";
const ROUND_USED_TWICE_ERROR: &str = "round allocated or freed twice";
const ROUND_IN_ONE_PLACE: &str = "every round in one place";

crate::sync::scenarios! {
    #![planted(uslab_planted)]

    // ---- The contract of a section
    section_contract_under_migration {
        loom("R1 R3: alloc and free while threads migrate and sections abort", both(TWO, [5800, 6900], moves(9)), models::contract);
        rseq("section not armed", "R1", RACE);
        rseq("an operation is counted before its commit", "R3", "the counts are exact");
        claimed("a CPU's region is used without a claim", "R1", RACE);
    }

    // ---- Movement of rounds
    m1_m2_rounds_travel_through_the_depot {
        loom("M1 M2: rounds travel through the depot", both(THREE, [3900, 2000], moves(6)), models::travel);
        bug("a pop does not remove the round", "M1", ROUND_USED_TWICE_ERROR);
        claimed("a CPU's region is used without a claim", "M1", RACE);
        bug("a magazine is taken twice from the depot", "M1 M2", ROUND_IN_ONE_PLACE);
        bug("the depot length is not decreased by a take", "M2", "the depot's length equals the number of its magazines");
        bug("a stack grows beyond its limit", "M2", "no more places than its maximum");
    }
    m2_a_stack_overflows {
        loom("M2: two threads push to the full stack of a CPU", both(THREE, [4700, 4700], moves(6)), models::overflow);
        rseq("the CPU number is read before the restartable section", "M2", RACE);
        rseq("the stack length is read before the restartable section", "M2", ROUND_IN_ONE_PLACE);
        claimed("a push overflows the stack", "M2", "a stack holds no more than it has places");
        bug("a magazine popped from a stack is lost", "M2", ROUND_IN_ONE_PLACE);
        bug("a magazine is put in the depot and also flushed", "M2", ROUND_IN_ONE_PLACE);
        claimed("an operation does not release its claim", "M2", "is still claimed");
    }
    m3_two_threads_of_one_cpu {
        loom("M3: two threads share a CPU", both(THREE, [330, 160], Scripts { reads: 4, cpus: 1 }), models::two_threads_on_one_cpu);
        rseq("section not armed", "M3", RACE);
        rseq("a batch push commits before writing its rounds", "R1", ROUND_IN_ONE_PLACE);
        claimed("a CPU's region is used without a claim", "M3", RACE);
        bug("a stack grows outside its restartable section", "M3", RACE);
    }
    m4_the_depot_runs_dry {
        loom("M4: the depot runs dry", both(THREE, [1700, 2600], stays()), models::two_cpus_empty_the_depot);
        bug("the supplier is called with the drain lock held", "M4", "user code would run while a lock is held");
        bug("an operation uses two classes", "M4", "each operation has one level");
    }
    m4_nothing_to_fill_from {
        loom("M4: the supplier has no rounds for a fill", both(THREE, [38, 5], stays()), models::alloc_with_an_empty_supplier);
    }

    // ---- Drains
    h1_drain_against_the_fast_path {
        loom("H1 T1: drain against the fast path", both(TWO, [2800, 16500], moves(6)), models::drain_during_pop_and_push);
        rseq("section not armed", "T1", RACE);
        rseq("the CPU number is read before the restartable section", "H1 T1", RACE);
        rseq("the region is read before the restartable section", "H1 T1", RACE);
        claimed("a CPU's region is used without a claim", "T1", RACE);
        rseq("the empty region has capacity", "H1 T1", "that is not committed was written");
        bug("a drain issues no fence", "H1 T1", RACE);
        rseq("a drain reads a stack before its fence", "H1 T1", RACE);
        claimed("a drain checks the claim without taking it", "H1 T1", RACE);
        rseq("a drain restores a CPU word too early", "H1 T1", RACE);
    }
    h1_the_only_thread_drains {
        loom("H1 T1: the only thread drains, then two threads run", both(TWO, [290, 880], moves(4)), models::drain_in_a_single_threaded_process);
        bug("a drain issues no fence", "H1 T1", RACE);
    }
    h1_drain_against_inlined_frees {
        loom("H1 T1: drain against an inlined free", both(TWO, [180, 1050], moves(3)), models::drain_during_an_inlined_free);
        rseq("a drain skips the words of inlined frees", "H1 T1", RACE);
    }
    h1_drain_against_batches {
        loom("H1 T1: drain against batches", both(TWO, [1900, 13000], moves(7)), models::drain_during_batches);
        bug("a partly pushed batch counts as pushed", "M2", ROUND_IN_ONE_PLACE);
        bug("a flush returns no rounds to the supplier", "M2", ROUND_IN_ONE_PLACE);
        bug("a partial magazine enters the depot", "M2", "a depot holds only full magazines");
    }
    h1_drain_while_a_stack_grows {
        loom("H1 T1: drain while a stack grows", both(TWO, [3100, 24000], moves(6)), models::drain_while_the_stack_grows);
        bug("a stack grows outside its restartable section", "H1 T1", RACE);
        bug("a drained stack is opened before its rounds are flushed", "H1 T1", RACE);
    }
    h1_a_drain_leaves_nothing_behind {
        loom("H1: a drain leaves no rounds", both(THREE, [210, 400], stays()), models::drain_flushes_all_unused_rounds);
        bug("a drained stack is not closed", "H1 T1", RACE);
        bug("drain does nothing", "H1", "a drain leaves no rounds");
        rseq("a drain does not restore a CPU word", "H1", "is not restored");
    }
    h1_drain_while_a_magazine_is_filled {
        loom("H1: drain while a magazine is filled", both(TWO, [1700, 8700], moves(4)), models::drain_during_a_fill);
    }
    h1_reap_of_a_cpu_that_wakes_up {
        loom("H1 T1: reap while an idle CPU becomes busy", both(THREE, [690, 1000], stays()), models::reap_while_a_cpu_wakes);
        bug("a drain issues no fence", "H1 T1", RACE);
        bug("reap does nothing", "H1", "a reap leaves no rounds");
        bug("a reap takes busy stacks", "H1", "a round that was just freed is not idle");
    }
    h2_drain_against_two_cpus {
        loom("H2 T1: drain of two busy CPUs", both(TWO, [5500, 10000], stays()), models::drain_of_two_busy_cpus);
        rseq("a drain of several CPUs fences only one", "H2 T1", RACE);
    }
    h2_drain_against_two_threads_of_one_cpu {
        loom("H2 M3 T1: drain of a CPU with two threads", both(TWO, [4300, 10000], stays()), models::drain_of_a_cpu_with_two_threads);
    }
    h3_two_drains_at_once {
        loom("H3 T1: two concurrent drains", both(TWO, [3600, 5200], stays()), models::two_drains);
        bug("a drain does not take the drain lock", "H3", RACE);
    }
    h3_a_drain_meets_another_one {
        loom("H3 T1: a drain starts while another drain flushes rounds", both(TWO, [1100, 2100], stays()), models::drain_during_the_flush_of_another);
        bug("a stack grows beyond its limit", "H3 T1", RACE);
        bug("a stack opens while another drain holds it", "H3 T1", RACE);
        bug("a drain flushes the rounds of another drain", "H3", ROUND_IN_ONE_PLACE);
    }
    h3_a_stack_is_opened_for_another_thread {
        loom("H3: a drain opens a stack that another thread needs", both(TWO, [2400, 10000], stays()), models::push_to_a_stack_that_another_opened);
    }
    h4_a_cpu_beyond_the_table {
        loom("H4: a thread runs on a CPU beyond the table", both(THREE, [220, 460], Scripts { reads: 4, cpus: 3 }), models::migration_to_a_cpu_without_a_region);
        bug("a CPU beyond the table has a node", "H4", "index out of bounds: the len is 2 but the index is 2");
        bug("a CPU beyond the table has a region", "H4", "the empty region stays empty");
    }
    h4_a_thread_without_a_region_beside_a_drain {
        loom("H4: a thread without a region runs during a drain", both(THREE, [9800, 28000], stays()), models::drain_during_a_bypass);
    }
    h5_a_layer_is_closed_beside_a_first_free {
        loom("H5: a layer is closed during the first free", both(THREE, [310, 910], stays()), models::close_during_first_free);
        bug("a stack is opened during a drain", "H5", "a closed layer holds no rounds");
    }
    h5_a_layer_is_closed_beside_frees {
        loom("H5: a layer is closed and flushed during frees", both(TWO, [1600, 20000], stays()), models::close_and_flush_during_frees);
        bug("closing a class skips empty stacks", "H5", "a closed layer holds no rounds");
        bug("a closed depot accepts magazines", "H5", "a closed layer holds no rounds");
    }

    h5_a_layer_is_closed_beside_a_shrink {
        loom("H5: a layer is closed during a shrink", both(THREE, [11, 11], stays()), models::close_during_shrink);
        bug("raising the limit reopens a retired class", "H5", "a closed layer holds no rounds");
    }

    // ---- The table
    t1_a_drain_leaves_other_classes_alone {
        loom("T1: a drain leaves other classes alone", both(TWO, [990, 7400], moves(5)), models::drain_of_one_of_two_classes);
    }
    t1_a_sweep_of_two_layers {
        loom("T1: a sweep of two busy layers", both(TWO, [520, 1200], stays()), models::sweep_of_two_layers);
        bug("a drain issues no fence", "T1", RACE);
    }
    t1_a_sweep_meets_a_drain {
        loom("T1: a sweep runs during a drain of one layer", both(TWO, [1300, 2600], stays()), models::sweep_during_a_drain);
        bug("drained rounds are lost to the next drain", "T1", "the rounds that a drain took are flushed");
    }
    t1_a_region_committed_in_part {
        loom("T1: a region is only partly committed", both(THREE, [1900, 3100], stays()), models::drain_of_a_partly_committed_region);
        bug("a stack grows before its memory is committed", "T1", "that is not committed was written");
    }
    t2_a_number_is_reused {
        loom("T2: a class number is freed and reused", both(THREE, [3400, 11000], moves(4)), models::class_number_is_reused);
        bug("a class number is freed after draining one CPU", "T2", ROUND_USED_TWICE_ERROR);
        bug("a freed class number is not closed", "T2", "a class number without an owner is closed");
    }
    t2_numbers_have_one_owner {
        loom("T2: two threads allocate and free class numbers", Model::new(THREE, 10), models::class_numbers_have_one_owner);
        bug("a class number is allocated without an atomic exchange", "T2", "a class number has one owner");
    }
    t3_pages_go_back_while_their_stacks_are_closed {
        loom("T3: pages are decommitted during use", both(TWO, [650, 4600], moves(4)), models::pages_are_decommitted_during_use);
        bug("a page is decommitted while its stacks are open", "T3", RACE);
        bug("a drain issues no fence", "T3", RACE);
    }
    t3_pages_stay_while_their_rounds_are_given_away {
        loom("T3: pages stay committed during a drain", both(THREE, [9, 9], stays()), models::decommit_during_a_drain);
        bug("a page is decommitted while its rounds are being flushed", "T3", RACE);
    }
    t3_operations_stay_counted_when_their_page_goes_back {
        loom("T3: counts survive the decommit of their page", both(THREE, [800, 800], stays()), models::counts_survive_a_decommit);
        bug("a decommit loses the operation counts of its stacks", "T3", "the counts are exact");
    }

    // ---- Nodes, fork
    n1_rounds_of_another_node_go_home {
        loom("N1: freed rounds of another node return to it", both(THREE, [7500, 8200], moves(8)), models::frees_to_remote_node);
        bug("a freed round goes to the freeing CPU's node", "N1", "only rounds of that node");
    }
    n1_a_thread_moved_between_nodes {
        loom("N1: a thread moves between nodes", both(THREE, [1500, 200], moves(8)), models::migration_between_nodes);
        bug("a freed round goes to the freeing CPU's node", "N1", "only rounds of that node");
    }
    f1_a_fork_beside_an_exchange {
        loom("F1: a fork during an exchange and a drain", both(THREE, [8, 18], stays()), models::fork_during_a_depot_access);
        claimed("claims of other threads survive a fork", "F1", "a child has no claims or drains of its parent's other threads");
        bug("drains of other threads survive a fork", "F1", "a child has no claims or drains of its parent's other threads");
        bug("a forked child loses drained rounds", "F1", ROUND_IN_ONE_PLACE);
        bug("a fork does not lock the depots", "F1", "a depot does not change while a fork holds it");
    }

    // ---- The depot alone
    d1_a_magazine_is_in_one_place {
        loom("D1: take, take, put || take", Model::new(Bound::None, 680), models::depot_take_during_take_and_put);
        bug("the depot length is read before locking", "D1", "the depot must lose no magazine");
        bug("a magazine is taken twice from the depot", "D1", RACE);
    }
    d2_what_was_written_before_the_put_is_seen {
        loom("D2: put publishes the rounds", Model::new(Bound::None, 18), models::depot_take_sees_earlier_writes);
        bug("a round is written after its magazine was put", "D2", RACE);
    }
    d3_two_puts_and_a_take {
        loom("D3: put, put, take", Model::new(Bound::None, 15000), models::depot_two_puts_and_a_take);
        bug("the depot length is read before locking", "D3", "of two magazines, at most one was taken");
    }
    d4_a_reap_takes_only_what_nobody_needed {
        loom("D4: reap || take, put", Model::new(Bound::None, 11000), models::depot_reap_during_a_take);
        bug("a reap ignores the working set", "D4", "a reap keeps magazines that were just put");
    }
    d4_a_reap_knows_what_was_needed {
        loom("D4: reap after take and put", Model::new(Bound::None, 3), models::depot_take_during_a_put);
        bug("a depot take is recorded after unlocking", "D4", "one of the two magazines was needed");
    }
    d5_two_put_where_one_has_room {
        loom("D5: put || put, with room for one magazine", Model::new(Bound::None, 3), || depot_limit(2, 1));
        shuttle("D5: four threads put magazines, with room for two", RUNS, || depot_limit(4, 2));
        bug("a magazine is put without checking the room again", "D5", "holds as many magazines as its limit allows");
    }
    d5_a_depot_is_closed_and_emptied {
        loom("D5: put || close, take", Model::new(Bound::None, 3), || depot_closed(1));
        shuttle("D5: three threads put magazines during close and take", RUNS, || depot_closed(3));
        bug("a magazine is put without checking the room again", "D5", "closed depot holds no magazines");
    }

    // ---- Larger scenarios
    exchanges {
        shuttle("R1 R3 M1 M2 M3 M4 H4: four threads exchange rounds", BOTH_CHECKERS, schedules::exchange);
        claimed("a CPU's region is used without a claim", "M1 M3", ROUND_USED_TWICE_ERROR);
        rseq("section not armed", "R1", ROUND_USED_TWICE_ERROR);
        rseq("an operation is counted before its commit", "R3", "the counts are exact");
        rseq("a batch push commits before writing its rounds", "R1", ROUND_IN_ONE_PLACE);
        bug("a magazine popped from a stack is lost", "M2", ROUND_IN_ONE_PLACE);
        bug("a magazine is put in the depot and also flushed", "M2", ROUND_IN_ONE_PLACE);
        bug("a partly pushed batch counts as pushed", "M2", ROUND_IN_ONE_PLACE);
        bug("the supplier is called with the drain lock held", "M4", "user code would run while a lock is held");
        bug("a CPU beyond the table has a region", "H4", "the empty region stays empty");
    }
    explained {
        shuttle("M1 H1: one order explains what four threads observed during drains", BOTH_CHECKERS, schedules::history);
        claimed("a CPU's region is used without a claim", "M1", "no sequential order explains");
        rseq("section not armed", "M1", "no sequential order explains");
    }
    drained {
        shuttle("H1 H2 H3 H4 T1: two threads drain the CPUs of two others", BOTH_CHECKERS, schedules::drain);
        rseq("the region is read before the restartable section", "T1", ROUND_IN_ONE_PLACE);
        rseq("a drain restores a CPU word too early", "T1", ROUND_IN_ONE_PLACE);
        claimed("a drain issues no fence", "H1 T1", ROUND_IN_ONE_PLACE);
        rseq("a drain issues no fence", "H1 T1", ROUND_USED_TWICE_ERROR);
        bug("a drained stack is not closed", "T1", ROUND_IN_ONE_PLACE);
        bug("a drained stack is opened before its rounds are flushed", "T1", ROUND_IN_ONE_PLACE);
        bug("a stack opens while another drain holds it", "H3 T1", ROUND_IN_ONE_PLACE);
        bug("a drain flushes the rounds of another drain", "H3", ROUND_IN_ONE_PLACE);
        bug("a drain does not take the drain lock", "H3", "the class is open if no drain runs");
        bug("drain does nothing", "H1", "a drain leaves no rounds");
    }
    closed_beside_others {
        shuttle("H5: a layer is closed while three threads use it", BOTH_CHECKERS, schedules::closed);
        bug("closing a class skips empty stacks", "H5", "a flush of a closed layer leaves");
        bug("a closed depot accepts magazines", "H5", "a closed depot is empty");
    }
    of_two_nodes {
        shuttle("N1 M2 T1: a drain on a machine of two nodes", BOTH_CHECKERS, schedules::nodes);
        bug("a freed round goes to the freeing CPU's node", "N1", "only rounds of that node");
    }
    gone_back {
        shuttle("T3: pages are decommitted while three threads use, drain and count", BOTH_CHECKERS, schedules::pages);
        bug("a page is decommitted while its stacks are open", "T3", "a supplier takes all rounds");
        bug("a page is decommitted while its rounds are being flushed", "T3", "a supplier takes all rounds");
        claimed("a decommit loses the operation counts of its stacks", "T3", "every operation is counted");
        rseq("a decommit loses the operation counts of its stacks", "T3", "the counts are exact");
    }
    forked {
        shuttle("F1: forks during an exchange and drains", BOTH_CHECKERS, schedules::forks);
        claimed("claims of other threads survive a fork", "F1", "a child has no claims or drains of its parent's other threads");
        bug("drains of other threads survive a fork", "F1", "a child has no claims or drains of its parent's other threads");
    }
    come_and_gone {
        shuttle("T2 T1: short-lived layers run next to a permanent one", BOTH_CHECKERS, schedules::numbers);
        bug("a class number is freed after draining one CPU", "T2", "no round belongs to the layer that had the number before");
    }
    depots {
        shuttle("D1 D2 D3 D4: three threads exchange magazines with a reaped depot", RUNS, schedules::depot);
        bug("the depot length is read before locking", "D3 D4", "a reap keeps the rounds that were just freed");
        bug("a magazine is taken twice from the depot", "D1", "each magazine is in one place");
        bug("a reap ignores the working set", "D4", "a reap keeps the rounds that were just freed");
    }
}
