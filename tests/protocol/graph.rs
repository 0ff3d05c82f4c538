//! Builds a graph of all reachable states, and searches it for infinite runs.
//!
//! The property `eventually` of `stateright` follows a path only until a state repeats, so it misses failures inside a
//! cycle. The search in this module also finds failures inside cycles. **A thread waits forever** if a fair run can
//! stay in a strongly connected set of states in which the thread is always in the same operation.
//!
//! A run is fair if:
//! * a thread takes its next step if the step is possible in every state from some point on (weak fairness);
//! * a thread that waits for a lock, or a drain that waits for a claim, gets it if it becomes free infinitely often
//!   (strong fairness). `std` guarantees no order of lock waiters, but a thread that never finds a lock free would have
//!   to be unlucky each time;
//! * no section is interrupted infinitely often.
//!
//! A fair run need not begin new operations: from some point on, threads may stay idle, and other threads must still
//! stop waiting.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

/// A model, seen by the search for fair cycles.
pub(crate) trait FairModel {
    type State: Copy + Eq + Hash;
    /// Returns the initial states of the model.
    fn starts(&self) -> Vec<Self::State>;
    /// Appends all moves that are possible in `state` to the list `moves_out`.
    fn moves(&self, state: &Self::State, moves_out: &mut Vec<ThreadMove<Self::State>>);
    fn threads(&self) -> usize;
    /// Returns `true` if the thread is in an operation that must end eventually.
    fn is_busy(&self, state: &Self::State, thread: usize) -> bool;
    /// Returns `true` if the thread waits for a lock, even for one that is free in this state.
    fn waits(&self, state: &Self::State, thread: usize) -> bool;
}

/// A move that one thread makes from one state to another state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadMove<S> {
    pub(crate) thread: usize,
    /// `true` if the move begins a new operation. A fair run need not contain moves that begin an operation.
    pub(crate) begins: bool,
    /// The threads whose sections this move interrupts, as a bit set.
    pub(crate) interrupts: u8,
    pub(crate) target: S,
}

#[derive(Clone, Copy)]
struct Edge {
    target: u32,
    thread: u8,
    interrupts: u8,
}

/// The graph of all reachable states and their moves.
pub(crate) struct Graph<S> {
    pub(crate) states: Vec<S>,
    edges: Vec<Edge>,
    /// For each state, the index of its first edge.
    first: Vec<u32>,
    /// For each state, the state from which the exploration reached it first.
    sources: Vec<u32>,
    threads: usize,
    /// For each state, the busy threads as a bit set; the next two fields are the waiting threads, and the threads that
    /// can continue their operation.
    busy: Vec<u8>,
    waits: Vec<u8>,
    ready_threads: Vec<u8>,
}

/// An infinite run: a path that leads to a cycle of states, and the cycle.
#[derive(Debug)]
pub(crate) struct EndlessRun<S> {
    /// The thread whose operation does not end.
    pub(crate) thread: usize,
    pub(crate) path: Vec<S>,
    /// The states of the cycle; empty if the run ends in a state in which no thread can move.
    pub(crate) round: Vec<S>,
}

impl<S: Copy + Eq + Hash> Graph<S> {
    /// Explores all states of a model.
    ///
    /// # Panics
    /// Panics if the model has more than `max_states` states.
    pub(crate) fn explore(model: &impl FairModel<State = S>, max_states: usize) -> Self {
        let mut state_numbers: HashMap<S, u32, BuildHasherDefault<DefaultHasher>> = HashMap::default();
        let mut graph = Self {
            states: model.starts(),
            edges: vec![],
            first: vec![0],
            sources: vec![],
            threads: model.threads(),
            busy: vec![],
            waits: vec![],
            ready_threads: vec![],
        };
        for (i, state) in (0..).zip(&graph.states) {
            state_numbers.insert(*state, i);
            graph.sources.push(i);
        }
        let (mut state_index, mut moves) = (0, vec![]);
        while state_index < graph.states.len() {
            let state = graph.states[state_index];
            let mask = |is_in_set: &dyn Fn(usize) -> bool| {
                (0..graph.threads).map(|t| u8::from(is_in_set(t)) << t).sum::<u8>()
            };
            graph.busy.push(mask(&|t| model.is_busy(&state, t)));
            graph.waits.push(mask(&|t| model.waits(&state, t)));
            model.moves(&state, &mut moves);
            let mut ready = 0;
            for ThreadMove { thread, begins, interrupts, target } in moves.drain(..) {
                // The interruption of a section is not a step of its thread.
                let is_own_step = interrupts >> thread & 1 == 0;
                ready |= u8::from(!begins && is_own_step) << thread;
                let next_number = graph.states.len() as u32;
                let target = *state_numbers.entry(target).or_insert_with(|| {
                    graph.states.push(target);
                    graph.sources.push(state_index as u32);
                    next_number
                });
                graph.edges.push(Edge { target, thread: thread as u8, interrupts });
            }
            graph.ready_threads.push(ready);
            graph.first.push(graph.edges.len() as u32);
            assert!(graph.states.len() <= max_states, "more than {max_states} states");
            state_index += 1;
        }
        graph
    }

    fn edges(&self, state: u32) -> &[Edge] {
        &self.edges[self.first[state as usize] as usize..self.first[state as usize + 1] as usize]
    }
    pub(crate) fn transition_count(&self) -> usize {
        self.edges.len()
    }

    /// Finds a fair run in which some operation never ends.
    pub(crate) fn find_endless_fair_run(&self) -> Option<EndlessRun<S>> {
        let all = || 0..self.states.len() as u32;
        (0..self.threads).find_map(|thread| {
            let busy = |state_index: &u32| self.busy[*state_index as usize] >> thread & 1 == 1;
            // No thread can move, except by beginning an operation, which no thread must do.
            if let Some(state_index) =
                all().find(|state_index| busy(state_index) && self.ready_threads[*state_index as usize] == 0)
            {
                return Some(EndlessRun { thread, path: self.shortest_path_to(state_index), round: vec![] });
            }
            let round = self.find_fair_cycle(thread, all().filter(busy).collect())?;
            let states = round.iter().map(|state_index| self.states[*state_index as usize]).collect();
            Some(EndlessRun { thread, path: self.shortest_path_to(round[0]), round: states })
        })
    }

    /// Finds a strongly connected component inside `states` in which a fair run can stay.
    fn find_fair_cycle(&self, thread: usize, states: Vec<u32>) -> Option<Vec<u32>> {
        let all_threads = (1_u8 << self.threads) - 1;
        // For each state, the set of `todo` or the component that contains it.
        let (mut group, mut groups) = (vec![0_u32; self.states.len()], 0);
        let mut todo = vec![states];
        while let Some(states) = todo.pop() {
            groups += 1;
            states.iter().for_each(|state_index| group[*state_index as usize] = groups);
            for component in self.strong_components(thread, &states, &group) {
                groups += 1;
                component.iter().for_each(|state_index| group[*state_index as usize] = groups);
                let keeps_waiting =
                    |edge: &&Edge| self.keeps_waiting(thread, edge) && group[edge.target as usize] == groups;
                let (mut moved_threads, mut not_ready) = (0_u8, 0_u8);
                for state_index in &component {
                    not_ready |= !self.ready_threads[*state_index as usize];
                    self.edges(*state_index)
                        .iter()
                        .filter(keeps_waiting)
                        .for_each(|edge| moved_threads |= 1 << edge.thread);
                }
                // Weak fairness: each thread that could always move did. A component without a move has no cycle.
                if moved_threads == 0 || (moved_threads | not_ready) & all_threads != all_threads {
                    continue;
                }
                // Strong fairness: a thread that waits for ever never finds the lock free, so states in which it is
                // free are removed.
                let is_starved = |state_index: &u32| {
                    self.waits[*state_index as usize]
                        & self.ready_threads[*state_index as usize]
                        & !moved_threads
                        != 0
                };
                let remaining_states: Vec<u32> =
                    component.iter().copied().filter(|state_index| !is_starved(state_index)).collect();
                if remaining_states.len() == component.len() {
                    return Some(component);
                }
                todo.push(remaining_states);
            }
        }
        None
    }
    /// Returns `true` if a fair run may repeat this move forever without the end of `thread`'s operation.
    fn keeps_waiting(&self, thread: usize, edge: &Edge) -> bool {
        edge.interrupts >> thread & 1 == 0
    }

    /// Returns the strongly connected components of the states in `states` (Tarjan's algorithm, without recursion).
    fn strong_components(&self, thread: usize, states: &[u32], group: &[u32]) -> Vec<Vec<u32>> {
        const UNVISITED: u32 = u32::MAX;
        let mut number = vec![UNVISITED; self.states.len()];
        let mut lowest = number.clone();
        let mut on_stack = vec![false; self.states.len()];
        let (mut components, mut stack, mut next_number) = (vec![], vec![], 0);
        for start in states.iter().copied() {
            let mut calls = if number[start as usize] == UNVISITED { vec![(start, 0)] } else { vec![] };
            while let Some((state_index, edges_done)) = calls.pop() {
                let (index, edges) = (state_index as usize, self.edges(state_index));
                if edges_done == 0 {
                    (number[index], lowest[index]) = (next_number, next_number);
                    next_number += 1;
                    stack.push(state_index);
                    on_stack[index] = true;
                } else {
                    lowest[index] = lowest[index].min(lowest[edges[edges_done - 1].target as usize]);
                }
                let mut descent = None;
                for (i, edge) in (edges_done..).zip(&edges[edges_done..]) {
                    let target = edge.target as usize;
                    if group[target] != group[index] || !self.keeps_waiting(thread, edge) {
                        continue;
                    }
                    if number[target] == UNVISITED {
                        descent = Some((i, edge.target));
                        break;
                    }
                    if on_stack[target] {
                        lowest[index] = lowest[index].min(number[target]);
                    }
                }
                if let Some((i, target)) = descent {
                    calls.extend([(state_index, i + 1), (target, 0)]);
                } else if lowest[index] == number[index] {
                    let component_start = stack
                        .iter()
                        .rposition(|s| *s == state_index)
                        .expect("the state must be in the queue");
                    let component = stack.split_off(component_start);
                    component.iter().for_each(|s: &u32| on_stack[*s as usize] = false);
                    components.push(component);
                }
            }
        }
        components
    }

    /// Returns the shortest path from an initial state to `target`.
    fn shortest_path_to(&self, mut target: u32) -> Vec<S> {
        let mut way = vec![self.states[target as usize]];
        while self.sources[target as usize] != target {
            target = self.sources[target as usize];
            way.push(self.states[target as usize]);
        }
        way.reverse();
        way
    }
}
