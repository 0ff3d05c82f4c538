//! Explores models of the protocol between slots, depot, drains, forks and the reaper. The exploration visits all
//! states, so it covers any number of pre-emptions.
//!
//! The file `model.rs` models one size class: its stacks on three CPUs, its depot and its supplier. The file
//! `reaper.rs` models how the reaper thread sleeps and wakes up. The checker `stateright` explores each scenario, and
//! checks the invariants in every state. The file `graph.rs` explores each scenario again, to find operations that
//! never end. The two explorations of a scenario must find the same number of states. Each planted bug must cause the
//! failure that the test expects.
//!
//! `PROTOCOL=full` adds larger scenarios. `STORY=1` prints the counterexample traces of planted bugs, and
//! `STORY_JSON=DIRECTORY` writes them for `uslab story FILE --html`.
//!
//! The unit test `in_step` of `uslab-magazine` checks that the code follows `model.rs`.
#![cfg(all(test, not(any(loom, shuttle, uslab_heap, uslab_no_rseq))))]

mod graph;
mod model;
mod reaper;
mod story;

use graph::{FairModel, Graph, ThreadMove};
use model::Bug::{self, *};
use model::Mechanism::{self, Claimed, Rseq};
use model::ThreadRole::{self, *};
use model::{Action, ActionKind, Fault, Pc, Protocol, State, inside};
use stateright::{Checker, Model, Property};

/// A protocol in which two states count as equal if they differ only in the names of CPUs and rounds.
#[derive(Clone)]
struct CanonicalProtocol {
    protocol: Protocol,
}

impl CanonicalProtocol {
    fn canonical(&self, state: &State) -> State {
        self.protocol.canonical(state)
    }
}

impl Model for CanonicalProtocol {
    type State = State;
    type Action = Action;
    fn init_states(&self) -> Vec<State> {
        vec![self.canonical(&self.protocol.start())]
    }
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.protocol.actions(state, actions);
    }
    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        Some(self.canonical(&self.protocol.next(before, action)))
    }
    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no thread writes or flushes memory of another owner", |_, s: &State| {
                s.fault.is_none()
            }),
            Property::always(ROUND_IN_ONE_PLACE, |m: &Self, s: &State| {
                s.fault.is_some() || m.protocol.each_round_occurs_once(s)
            }),
            Property::always(REACH, |m: &Self, s: &State| s.fault.is_some() || m.protocol.stacks_in_limit(s)),
            Property::always(QUIESCENT_PROPERTIES, |m: &Self, s: &State| {
                s.fault.is_some() || m.protocol.is_idle_state_clean(s)
            }),
        ]
    }
}
const ROUND_IN_ONE_PLACE: &str = "each round is in one place";
const REACH: &str = "no stack holds more rounds than it has places, or has more places than its maximum";
const QUIESCENT_PROPERTIES: &str = "if no operation runs, nothing is claimed, locked, detached or taken, and the class is open if it should be";
const TERMINATION: &str = "each operation ends";

impl FairModel for CanonicalProtocol {
    type State = State;
    fn starts(&self) -> Vec<State> {
        self.init_states()
    }
    fn moves(&self, state: &State, moves: &mut Vec<ThreadMove<State>>) {
        let mut actions = vec![];
        self.protocol.actions(state, &mut actions);
        for action in actions {
            let next_state = self.protocol.next(state, action);
            let interrupted = |t: &usize| {
                let section = inside(state.threads[*t].pc);
                section.is_some() && next_state.threads[*t].pc == section.map_or(Pc::Idle, Pc::Enter)
            };
            moves.push(ThreadMove {
                thread: action.thread.into(),
                begins: matches!(action.act, ActionKind::Begin(_)),
                interrupts: (0..self.threads()).filter(interrupted).map(|t| 1 << t).sum(),
                target: self.canonical(&next_state),
            });
        }
    }
    fn threads(&self) -> usize {
        self.protocol.roles.len()
    }
    fn is_busy(&self, state: &State, thread: usize) -> bool {
        !matches!(state.threads[thread].pc, Pc::Idle | Pc::Gone) && state.fault.is_none()
    }
    fn waits(&self, state: &State, thread: usize) -> bool {
        Protocol::waits(state.threads[thread].pc)
    }
}

/// The sizes of a scenario: rounds per magazine, slots per stack, magazines per depot, rounds in total, and rounds that
/// a user holds.
type Sizes = [u8; 5];
/// Magazines with one round, a stack that grows from one slot to two slots, and a depot with one magazine.
const SINGLE_ROUND_SIZES: Sizes = [1, 2, 1, 2, 1];
/// A scenario with one round more than a stack has slots.
const OVERFLOWING_SIZES: Sizes = [1, 2, 1, 3, 3];
/// Magazines with two rounds, so that rounds move in batches.
const PAIRS: Sizes = [2, 2, 1, 3, 1];

fn explored(
    mechanism: Mechanism,
    cpus: u8,
    sizes: Sizes,
    roles: &[ThreadRole],
    bug: Option<Bug>,
) -> CanonicalProtocol {
    let [capacity, reach, depot_limit, rounds, max_held] = sizes;
    let roles = roles.to_vec();
    let protocol = Protocol {
        mechanism,
        cpus,
        capacity,
        reach,
        depot_limit,
        rounds,
        max_held,
        roles,
        bug,
        aborts: true,
    };
    CanonicalProtocol { protocol }
}

/// A failed check: its description, and the path of states that leads to the failure.
struct Failure {
    end: String,
    path: Vec<State>,
}

/// Explores all states with `stateright` until a state violates an invariant.
fn check(model: &CanonicalProtocol) -> Result<usize, Failure> {
    let any_discovery = stateright::HasDiscoveries::Any;
    let checker = model.clone().checker().threads(1).finish_when(any_discovery).spawn_bfs().join();
    // The shortest of the found paths is kept.
    let failures = checker.discoveries().into_iter().map(|(rule, path)| {
        let path_states = path.into_states();
        let fault = path_states.last().and_then(|state| state.fault);
        Failure { end: fault.map_or(rule, Fault::text).to_owned(), path: path_states }
    });
    failures
        .min_by_key(|failure| (failure.path.len(), failure.end.clone()))
        .map_or_else(|| Ok(checker.unique_state_count()), Err)
}

/// Explores all states as a graph, and searches for operations that never end.
fn check_operations_terminate(
    model: &CanonicalProtocol,
    max_states: usize,
) -> Result<(usize, usize), Failure> {
    let graph = Graph::explore(model, max_states);
    match graph.find_endless_fair_run() {
        None => Ok((graph.states.len(), graph.transition_count())),
        Some(endless) => {
            let description = if endless.round.is_empty() {
                "no thread can continue"
            } else {
                "other operations run forever"
            };
            let end = format!(
                "{TERMINATION}, but the operation of thread {} does not: {description}",
                endless.thread
            );
            // The cycle is shown once round. The shown order is only one possible order of the cycle's states: the
            // search knows which states a run may visit, not in which order.
            Err(Failure { end, path: endless.path })
        }
    }
}

fn explain(model: &CanonicalProtocol, title: &str, failure: &Failure) -> uslab_sim::story::Story {
    story::trace_of(&model.protocol, title, &failure.path, &failure.end)
}

struct Scenario {
    name: &'static str,
    sizes: Sizes,
    roles: &'static [ThreadRole],
    /// The number of CPUs in the quick run and in the full run; 0 if the scenario is not part of the run.
    cpus: [u8; 2],
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "two users", sizes: SINGLE_ROUND_SIZES, roles: &[User, User], cpus: [2, 3] },
    Scenario { name: "a user whose stack overflows", sizes: OVERFLOWING_SIZES, roles: &[User], cpus: [3, 3] },
    Scenario { name: "batches beside a drain", sizes: PAIRS, roles: &[User, Drainer], cpus: [2, 3] },
    Scenario {
        name: "a user beside a drain",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Drainer],
        cpus: [3, 3],
    },
    Scenario {
        name: "a user beside a reap",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Reaper],
        cpus: [2, 3],
    },
    Scenario { name: "a class is closed", sizes: SINGLE_ROUND_SIZES, roles: &[User, Closer], cpus: [2, 3] },
    Scenario {
        name: "a number gets another owner",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Successor],
        cpus: [2, 3],
    },
    Scenario {
        name: "a fork beside a user",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Forker],
        cpus: [2, 3],
    },
    Scenario {
        name: "a fork beside a drain",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Drainer, Forker],
        cpus: [0, 3],
    },
    Scenario {
        name: "a user beside two drains",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Drainer, Drainer],
        cpus: [0, 3],
    },
    Scenario {
        name: "two users beside a drain",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, User, Drainer],
        cpus: [0, 3],
    },
    Scenario {
        name: "a drain beside a reap",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Drainer, Reaper],
        cpus: [0, 2],
    },
    Scenario {
        name: "limits change",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Drainer, Resizer],
        cpus: [0, 3],
    },
    Scenario {
        name: "a sweep beside another owner",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, Successor, Reaper],
        cpus: [0, 2],
    },
    Scenario {
        name: "closed beside two users",
        sizes: SINGLE_ROUND_SIZES,
        roles: &[User, User, Closer],
        cpus: [0, 3],
    },
];

fn run_long_models() -> bool {
    std::env::var("PROTOCOL").is_ok_and(|tier| tier == "full")
}

#[test]
fn every_protocol_state_satisfies_the_invariants() {
    let chosen_scenario = std::env::var("SCENARIO").unwrap_or_default();
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(&chosen_scenario)) {
        let cpus = scenario.cpus[usize::from(run_long_models())];
        for mechanism in [Rseq, Claimed].into_iter().filter(|_| cpus > 0) {
            let model = explored(mechanism, cpus, scenario.sizes, scenario.roles, None);
            let title = format!("{}, {mechanism:?}", scenario.name);
            let fail = |failure: Failure| -> ! {
                panic!("{title}: {}\n{}", failure.end, explain(&model, &title, &failure))
            };
            let (states, transitions) =
                check_operations_terminate(&model, 100_000_000).unwrap_or_else(|failure| fail(failure));
            let state_count = check(&model).unwrap_or_else(|failure| fail(failure));
            assert_eq!(states, state_count, "{title}: both searches must explore the same states");
            println!("PROTOCOL | {title} | {cpus} CPUs | {states} states | {transitions} transitions");
        }
    }
}

/// A planted bug; the mechanisms, sizes and roles that reveal it; and the failure that it must cause.
type PlantedBug = (Bug, &'static [Mechanism], Sizes, &'static [ThreadRole], &'static str);
const PLANTED: &[PlantedBug] = &[
    (NoFence, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer], OWNED_REGION_WRITTEN),
    (NoFence, &[Claimed], SINGLE_ROUND_SIZES, &[User, Drainer], ROUND_IN_ONE_PLACE),
    (FencesOne, &[Rseq], SINGLE_ROUND_SIZES, &[User, User, Drainer], OWNED_REGION_WRITTEN),
    (TakesBeforeFence, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer], OWNED_REGION_WRITTEN),
    (PutBackEarly, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer], OWNED_REGION_WRITTEN),
    (EmptyHasPlaces, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer], "the empty region was written"),
    (StaleRegion, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer], OWNED_REGION_WRITTEN),
    (BatchCommittedEarly, &[Rseq], PAIRS, &[User], "a round was flushed to the supplier twice"),
    (WidensBeyondLimit, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer], ROUND_IN_ONE_PLACE),
    (
        DrainsWithoutLock,
        RSEQ_AND_CLAIMED,
        SINGLE_ROUND_SIZES,
        &[User, Drainer, Drainer],
        "a drain ended that was not running",
    ),
    (FirstDrainOpens, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer, Drainer], ROUND_IN_ONE_PLACE),
    (GivesAwayOthers, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer, Drainer], ROUND_IN_ONE_PLACE),
    (StaysOpen, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer], ROUND_IN_ONE_PLACE),
    (OpensBesideDrain, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer], ROUND_IN_ONE_PLACE),
    (SweepForgotten, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer, Reaper], QUIESCENT_PROPERTIES),
    (NeverReopens, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer], QUIESCENT_PROPERTIES),
    (ClosedStaysOpen, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Closer], CLOSED),
    (ClosedDepotTakes, RSEQ_AND_CLAIMED, OVERFLOWING_SIZES, &[User, Closer], CLOSED),
    (
        RetiresOneCpu,
        RSEQ_AND_CLAIMED,
        SINGLE_ROUND_SIZES,
        &[User, Successor],
        "a round of the class number's previous owner was allocated",
    ),
    (DepotKeeps, RSEQ_AND_CLAIMED, OVERFLOWING_SIZES, &[User], ROUND_IN_ONE_PLACE),
    (ForkSkipsDepot, RSEQ_AND_CLAIMED, OVERFLOWING_SIZES, &[User, Forker], QUIESCENT_PROPERTIES),
    (ForkSkipsDrains, &[Rseq], SINGLE_ROUND_SIZES, &[User, Drainer, Forker], QUIESCENT_PROPERTIES),
    (ClaimsOutlive, &[Claimed], SINGLE_ROUND_SIZES, &[User, Forker], QUIESCENT_PROPERTIES),
    (DrainsOutlive, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer, Forker], QUIESCENT_PROPERTIES),
    (ChildLosesTaken, RSEQ_AND_CLAIMED, SINGLE_ROUND_SIZES, &[User, Drainer, Forker], ROUND_IN_ONE_PLACE),
];
const RSEQ_AND_CLAIMED: &[Mechanism] = &[Rseq, Claimed];
const OWNED_REGION_WRITTEN: &str = "an operation wrote to a region that a drain owns";
const CLOSED: &str = "a closed and flushed class holds rounds";

#[test]
fn each_planted_protocol_bug_violates_its_property() {
    let chosen_scenario = std::env::var("SCENARIO").unwrap_or_default();
    for (bug, mechanisms, sizes, roles, expected) in
        PLANTED.iter().filter(|row| format!("{:?}", row.0).contains(&chosen_scenario))
    {
        for mechanism in *mechanisms {
            let model = explored(*mechanism, 2, *sizes, roles, Some(*bug));
            let Err(failure) = check(&model) else { panic!("{bug:?} under {mechanism:?} was not found") };
            assert!(
                failure.end.contains(expected),
                "{bug:?} under {mechanism:?}: {}\n{}",
                failure.end,
                explain(&model, "", &failure)
            );
            store_trace(
                &format!("{bug:?}-{mechanism:?}"),
                &explain(&model, &format!("{bug:?}, {mechanism:?}"), &failure),
            );
        }
    }
}

#[test]
fn each_planted_livelock_is_detected() {
    let rows: &[(Bug, Mechanism, Sizes, &[ThreadRole])] = &[
        (TriesAgain, Rseq, PAIRS, &[User, Drainer]),
        (TriesAgain, Claimed, PAIRS, &[User, Drainer]),
        (LocksOutOfOrder, Claimed, OVERFLOWING_SIZES, &[User, Resizer]),
        (ForkSkipsDepot, Claimed, OVERFLOWING_SIZES, &[User, Forker]),
    ];
    for (bug, mechanism, sizes, roles) in rows {
        let model = explored(*mechanism, 2, *sizes, roles, Some(*bug));
        let Err(failure) = check_operations_terminate(&model, 10_000_000) else {
            panic!("{bug:?} under {mechanism:?} was not found")
        };
        store_trace(
            &format!("{bug:?}-{mechanism:?}-for-ever"),
            &explain(&model, &format!("{bug:?}, {mechanism:?}"), &failure),
        );
    }
}

/// Prints a counterexample trace and its size; also writes the trace to a file if the environment requests it.
fn store_trace(name: &str, story: &uslab_sim::story::Story) {
    println!("PLANTED | {name} | {} steps | {}", story.steps.len(), story.end);
    if std::env::var_os("STORY").is_some() {
        println!("{story}");
    }
    if let Some(directory) = std::env::var_os("STORY_JSON") {
        let file = std::path::Path::new(&directory).join(format!("{name}.json"));
        let json = serde_json::to_string_pretty(story).expect("the counterexample trace must be JSON");
        std::fs::write(&file, json).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// The test passes the file to `uslab story`, which renders it as a web page.
#[test]
fn protocol_counterexample_opens_as_a_web_page() {
    let model = explored(Rseq, 2, SINGLE_ROUND_SIZES, &[User, Drainer], Some(EmptyHasPlaces));
    let Err(failure) = check(&model) else { panic!("expected a planted bug") };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("story.json");
    let trace = explain(&model, "the empty region has a place", &failure);
    std::fs::write(&file, serde_json::to_string(&trace).unwrap()).unwrap();
    let stored = uslab_sim::story::Story::read(&file).unwrap();
    assert_eq!(stored.steps.len(), failure.path.len() - 1);
    assert!(stored.page(None).unwrap().contains("the empty region was written"));
    assert_eq!(stored.moment(stored.steps.len()).unwrap().number, stored.steps.len());
}

#[test]
fn reaper_model_loses_no_wake_up() {
    let graph = Graph::explore(&reaper::Reaper(None), 1_000_000);
    if let Some(endless) = graph.find_endless_fair_run() {
        panic!("{endless:#?}");
    }
    println!(
        "PROTOCOL | the reaper | {} states | {} transitions",
        graph.states.len(),
        graph.transition_count()
    );
    use reaper::Bug::*;
    let bugs = [LooksOnce, WakesBeforeItCounts, StaysAsleep, ChildBelieves, RefusedForGood, KeepsSubsystem];
    for bug in bugs {
        let endless = Graph::explore(&reaper::Reaper(Some(bug)), 1_000_000).find_endless_fair_run();
        let endless = endless.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!(
            "PLANTED | {bug:?} | {} steps | a cycle of {} states",
            endless.path.len() - 1,
            endless.round.len()
        );
    }
}
