//! All reachable states as a graph, in which infinite runs are searched.
//!
//! The property `eventually` of `stateright` follows a path only until a state repeats, so it does not find failures in
//! a cycle. This search finds failures in cycles. **A thread waits for ever** if all states of some strongly connected
//! set have the thread in one and the same operation, and a fair run can stay in this set.
//!
//! A run is fair if:
//! * a thread that can take its next step in every state from some point on takes it (weak fairness);
//! * a thread that waits for a lock, or for a claim as drains do, gets it if it is repeatedly free (strong fairness).
//!   `std`'s locks promise no order, but a thread that never finds the lock free would have to be unlucky for ever;
//! * no section is interrupted for ever.
//!
//! No thread need begin an operation: threads may stay idle from some point on, and the waits of other threads must end
//! nevertheless.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

/// What the search for fair cycles needs to know about a model.
pub(crate) trait Fair {
    type State: Copy + Eq + Hash;
    /// The initial states.
    fn starts(&self) -> Vec<Self::State>;
    /// Appends all moves that are possible in `state` to the list `into`.
    fn moves(&self, state: &Self::State, into: &mut Vec<ThreadMove<Self::State>>);
    fn threads(&self) -> usize;
    /// Returns `true` if the thread is in an operation that must end at some time.
    fn busy(&self, state: &Self::State, thread: usize) -> bool;
    /// Returns `true` if the thread waits for a lock, even if the lock is free.
    fn waits(&self, state: &Self::State, thread: usize) -> bool;
}

/// A move of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadMove<S> {
    pub(crate) thread: usize,
    /// `true` if the move is the beginning of an operation. A fair run need not contain a move that begins an
    /// operation.
    pub(crate) begins: bool,
    /// The threads whose section this move interrupts, as a set of bits.
    pub(crate) interrupts: u8,
    pub(crate) to: S,
}

#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    thread: u8,
    interrupts: u8,
}

/// All reachable states and their moves.
pub(crate) struct Graph<S> {
    pub(crate) states: Vec<S>,
    edges: Vec<Edge>,
    /// For each state, the index of its first edge.
    first: Vec<u32>,
    /// For each state, the state from which it was first reached.
    from: Vec<u32>,
    threads: usize,
    /// For each state, three sets of threads as bits: busy threads, waiting threads, and threads that can take a step
    /// of their operation.
    busy: Vec<u8>,
    waits: Vec<u8>,
    ready: Vec<u8>,
}

/// An infinite run: the path to a cycle, and the cycle.
#[derive(Debug)]
pub(crate) struct Endless<S> {
    /// The thread whose operation does not end.
    pub(crate) thread: usize,
    pub(crate) way: Vec<S>,
    /// The states of the cycle; empty if no thread can move any longer.
    pub(crate) round: Vec<S>,
}

impl<S: Copy + Eq + Hash> Graph<S> {
    /// Explores all states.
    ///
    /// # Panics
    /// Panics if there are more than `most` states.
    pub(crate) fn of(model: &impl Fair<State = S>, most: usize) -> Self {
        let mut known: HashMap<S, u32, BuildHasherDefault<DefaultHasher>> = HashMap::default();
        let mut graph = Self {
            states: model.starts(),
            edges: vec![],
            first: vec![0],
            from: vec![],
            threads: model.threads(),
            busy: vec![],
            waits: vec![],
            ready: vec![],
        };
        for (i, state) in (0..).zip(&graph.states) {
            known.insert(*state, i);
            graph.from.push(i);
        }
        let (mut at, mut moves) = (0, vec![]);
        while at < graph.states.len() {
            let state = graph.states[at];
            let mask =
                |of: &dyn Fn(usize) -> bool| (0..graph.threads).map(|t| u8::from(of(t)) << t).sum::<u8>();
            graph.busy.push(mask(&|t| model.busy(&state, t)));
            graph.waits.push(mask(&|t| model.waits(&state, t)));
            model.moves(&state, &mut moves);
            let mut ready = 0;
            for ThreadMove { thread, begins, interrupts, to } in moves.drain(..) {
                // The interruption of a section is not a step of its thread.
                let own = interrupts >> thread & 1 == 0;
                ready |= u8::from(!begins && own) << thread;
                let next = graph.states.len() as u32;
                let to = *known.entry(to).or_insert_with(|| {
                    graph.states.push(to);
                    graph.from.push(at as u32);
                    next
                });
                graph.edges.push(Edge { to, thread: thread as u8, interrupts });
            }
            graph.ready.push(ready);
            graph.first.push(graph.edges.len() as u32);
            assert!(graph.states.len() <= most, "more than {most} states");
            at += 1;
        }
        graph
    }

    fn edges(&self, state: u32) -> &[Edge] {
        &self.edges[self.first[state as usize] as usize..self.first[state as usize + 1] as usize]
    }
    pub(crate) fn transitions(&self) -> usize {
        self.edges.len()
    }

    /// Finds a fair run in which some operation does not end.
    pub(crate) fn endless(&self) -> Option<Endless<S>> {
        let all = || 0..self.states.len() as u32;
        (0..self.threads).find_map(|thread| {
            let busy = |at: &u32| self.busy[*at as usize] >> thread & 1 == 1;
            // No thread can move, except by beginning an operation, which no thread must do.
            if let Some(at) = all().find(|at| busy(at) && self.ready[*at as usize] == 0) {
                return Some(Endless { thread, way: self.path_to(at), round: vec![] });
            }
            let round = self.fair_cycle(thread, all().filter(busy).collect())?;
            let states = round.iter().map(|at| self.states[*at as usize]).collect();
            Some(Endless { thread, way: self.path_to(round[0]), round: states })
        })
    }

    /// Finds a strongly connected component within `states` in which a fair run can stay.
    fn fair_cycle(&self, thread: usize, states: Vec<u32>) -> Option<Vec<u32>> {
        let all = (1_u8 << self.threads) - 1;
        // For each state, the set of `todo` or the component that contains it.
        let (mut group, mut groups) = (vec![0_u32; self.states.len()], 0);
        let mut todo = vec![states];
        while let Some(states) = todo.pop() {
            groups += 1;
            states.iter().for_each(|at| group[*at as usize] = groups);
            for component in self.components(thread, &states, &group) {
                groups += 1;
                component.iter().for_each(|at| group[*at as usize] = groups);
                let stays = |edge: &&Edge| self.stays(thread, edge) && group[edge.to as usize] == groups;
                let (mut moved, mut not_ready) = (0_u8, 0_u8);
                for at in &component {
                    not_ready |= !self.ready[*at as usize];
                    self.edges(*at).iter().filter(stays).for_each(|edge| moved |= 1 << edge.thread);
                }
                // Weak fairness: each thread that could always move did. A component without a move has no cycle.
                if moved == 0 || (moved | not_ready) & all != all {
                    continue;
                }
                // Strong fairness: a thread that waits for ever never finds the lock free, so states in which it is
                // free are removed.
                let unlucky = |at: &u32| self.waits[*at as usize] & self.ready[*at as usize] & !moved != 0;
                let rest: Vec<u32> = component.iter().copied().filter(|at| !unlucky(at)).collect();
                if rest.len() == component.len() {
                    return Some(component);
                }
                todo.push(rest);
            }
        }
        None
    }
    /// Returns `true` if a run may repeat this move for ever while the operation of `thread` does not end.
    fn stays(&self, thread: usize, edge: &Edge) -> bool {
        edge.interrupts >> thread & 1 == 0
    }

    /// Returns the strongly connected components of the states in `states` (Tarjan's algorithm, without recursion).
    fn components(&self, thread: usize, states: &[u32], group: &[u32]) -> Vec<Vec<u32>> {
        const NEW: u32 = u32::MAX;
        let mut number = vec![NEW; self.states.len()];
        let mut low = number.clone();
        let mut on_stack = vec![false; self.states.len()];
        let (mut found, mut stack, mut next) = (vec![], vec![], 0);
        for root in states.iter().copied() {
            let mut calls = if number[root as usize] == NEW { vec![(root, 0)] } else { vec![] };
            while let Some((at, done)) = calls.pop() {
                let (here, edges) = (at as usize, self.edges(at));
                if done == 0 {
                    (number[here], low[here]) = (next, next);
                    next += 1;
                    stack.push(at);
                    on_stack[here] = true;
                } else {
                    low[here] = low[here].min(low[edges[done - 1].to as usize]);
                }
                let mut into = None;
                for (i, edge) in (done..).zip(&edges[done..]) {
                    let to = edge.to as usize;
                    if group[to] != group[here] || !self.stays(thread, edge) {
                        continue;
                    }
                    if number[to] == NEW {
                        into = Some((i, edge.to));
                        break;
                    }
                    if on_stack[to] {
                        low[here] = low[here].min(number[to]);
                    }
                }
                if let Some((i, to)) = into {
                    calls.extend([(at, i + 1), (to, 0)]);
                } else if low[here] == number[here] {
                    let from = stack.iter().rposition(|s| *s == at).expect("the state must be in the queue");
                    let component = stack.split_off(from);
                    component.iter().for_each(|s: &u32| on_stack[*s as usize] = false);
                    found.push(component);
                }
            }
        }
        found
    }

    /// Returns the shortest path to a given state.
    fn path_to(&self, mut to: u32) -> Vec<S> {
        let mut way = vec![self.states[to as usize]];
        while self.from[to as usize] != to {
            to = self.from[to as usize];
            way.push(self.states[to as usize]);
        }
        way.reverse();
        way
    }
}
