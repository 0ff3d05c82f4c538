//! Enumerates the outcomes of a litmus test that the memory model RC11 allows.
//!
//! RC11 is defined in "Repairing Sequential Consistency in C/C++11" (Lahav, Vafeiadis, Kang, Hur, Dreyer; PLDI 2017).
//! The relations in this module have the same names as in the paper. A candidate execution consists of three choices: a
//! run of each thread with guessed read values, a matching write for each read (`rf`), and an order of the writes to
//! each location (`mo`). A candidate execution is allowed if it satisfies the following axioms:
//!
//! - coherence: the relation `hb; eco?` is irreflexive;
//! - atomicity: the relations `rmw` and `rb; mo` are disjoint;
//! - SC: the relation `psc` is acyclic;
//! - no out-of-thin-air values: the union of `sb` and `rf` is acyclic.

use crate::program::{Change, FinalRegister, Op, Order, RACE, Registers, Shape, Value};
use std::collections::BTreeSet;

/// A memory model: RC11, or a variant in which an axiom is changed or dropped.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// True if a release sequence includes later stores by the same thread, as in C++11 and in the paper. C++20 has
    /// dropped the rule about later stores (P0982).
    pub own_stores_continue: bool,
    /// True if SC accesses are sequentially consistent. The flag does not affect SC fences. If `sc_accesses` is false,
    /// SC accesses are only acquire and release accesses.
    pub sc_accesses: bool,
    /// True if the coherence axiom, which the module documentation states, applies.
    pub coherence: bool,
    pub atomicity: bool,
    pub sc: bool,
    pub no_thin_air: bool,
}

pub const RC11: Model = Model {
    own_stores_continue: true,
    sc_accesses: true,
    coherence: true,
    atomicity: true,
    sc: true,
    no_thin_air: true,
};

const MAX_EVENTS: usize = 32;

/// A binary relation between events. For each event, the relation has a bitmap of the related events.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Relation([u32; MAX_EVENTS]);

impl Relation {
    const NONE: Self = Self([0; MAX_EVENTS]);

    fn add(&mut self, a: usize, b: usize) {
        self.0[a] |= 1 << b;
    }
    fn has_edge(&self, a: usize, b: usize) -> bool {
        self.0[a] >> b & 1 == 1
    }
    fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|a| self.0[a] | other.0[a]))
    }
    fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|a| self.0[a] & other.0[a]))
    }
    fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|a| self.0[a] & !other.0[a]))
    }
    fn compose(&self, other: &Self) -> Self {
        let mut joined = Self::NONE;
        for (row, into) in self.0.iter().zip(&mut joined.0) {
            let mut left = *row;
            while left != 0 {
                *into |= other.0[left.trailing_zeros() as usize];
                left &= left - 1;
            }
        }
        joined
    }
    fn inverse(&self) -> Self {
        let mut inverse = Self::NONE;
        for a in 0..MAX_EVENTS {
            (0..MAX_EVENTS).filter(|&b| self.has_edge(a, b)).for_each(|b| inverse.add(b, a));
        }
        inverse
    }
    /// Returns the transitive closure of the relation.
    fn closure(mut self) -> Self {
        for middle in 0..MAX_EVENTS {
            for a in 0..MAX_EVENTS {
                if self.has_edge(a, middle) {
                    self.0[a] |= self.0[middle];
                }
            }
        }
        self
    }
    /// Returns the reflexive closure of the relation.
    fn reflexive(&self) -> Self {
        Self(std::array::from_fn(|a| self.0[a] | 1 << a))
    }
    fn is_irreflexive(&self) -> bool {
        (0..MAX_EVENTS).all(|a| !self.has_edge(a, a))
    }
    fn is_acyclic(&self) -> bool {
        self.closure().is_irreflexive()
    }
    /// Returns the identity relation on a set of events, which the paper writes as `[set]`.
    fn identity(set: u32) -> Self {
        Self(std::array::from_fn(|a| set & 1 << a))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Fence,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    /// The thread of the event; `None` for the initial write of a memory location.
    thread: Option<usize>,
    kind: Kind,
    place: usize,
    value: u64,
    order: Order,
    /// True for the write of a read-modify-write. The read of a read-modify-write is the event before its write.
    changes: bool,
}

#[derive(Clone)]
struct Run {
    events: Vec<Event>,
    registers: Registers,
}

/// Returns all runs of a thread in which each read returns one of `values`.
fn all_thread_runs(shape: &Shape, thread: usize, values: &BTreeSet<u64>) -> Vec<Run> {
    let mut runs = vec![Run { events: Vec::new(), registers: vec![None; shape.registers.len()] }];
    for statement in &shape.threads[thread] {
        let mut longer_runs = Vec::new();
        for run in runs {
            if !statement.is_executed(&run.registers) {
                longer_runs.push(run);
                continue;
            }
            let event = |kind, place, value, order| Event {
                thread: Some(thread),
                kind,
                place,
                value,
                order,
                changes: false,
            };
            let mut extended = |events: &[Event], found: Option<(usize, FinalRegister)>| {
                let mut run = run.clone();
                run.events.extend_from_slice(events);
                if let Some((register, found)) = found {
                    run.registers[register] = Some(found);
                }
                longer_runs.push(run);
            };
            let found = |register, value| Some((register, FinalRegister { value, spurious: false }));
            let mut changed = |register, place, before, after, order| {
                let write = Event { changes: true, ..event(Kind::Write, place, after, order) };
                extended(&[event(Kind::Read, place, before, order), write], found(register, before));
            };
            match statement.op {
                Op::Fence(order) => extended(&[event(Kind::Fence, 0, 0, order)], None),
                Op::Store { place, value, order } => {
                    let value = match value {
                        Value::Number(number) => number,
                        Value::Register(register) => run.registers[register].map_or(0, |found| found.value),
                    };
                    extended(&[event(Kind::Write, place, value, order)], None);
                }
                Op::Load { register, place, order } => {
                    for &value in values {
                        extended(&[event(Kind::Read, place, value, order)], found(register, value));
                    }
                }
                Op::Change { register, place, change, value, order } => {
                    for &before in values {
                        changed(register, place, before, Change::apply(change, before, value), order);
                    }
                }
                Op::Exchange { register, place, expected, new, orders: [success, failure], weak } => {
                    for &value in values {
                        if value == expected {
                            changed(register, place, value, new, success);
                        }
                    }
                    for &value in values {
                        if value != expected || weak {
                            let found = FinalRegister { value, spurious: value == expected };
                            extended(&[event(Kind::Read, place, value, failure)], Some((register, found)));
                        }
                    }
                }
            }
        }
        runs = longer_runs;
    }
    runs
}

/// Returns all values that memory locations can have in any execution.
fn values(shape: &Shape) -> BTreeSet<u64> {
    let mut values = BTreeSet::from([0]);
    // Each iteration propagates a value through one more statement.
    for _ in 0..=shape.threads.iter().map(Vec::len).sum::<usize>() {
        let written: Vec<u64> = (0..shape.threads.len())
            .flat_map(|thread| all_thread_runs(shape, thread, &values))
            .flat_map(|run| run.events)
            .filter(|event| event.kind == Kind::Write)
            .map(|event| event.value)
            .collect();
        let before = values.len();
        values.extend(written);
        if values.len() == before {
            break;
        }
    }
    values
}

/// Returns the outcomes of a program that `model` allows.
#[derive(Debug, PartialEq, Eq)]
pub struct AllowedOutcomes {
    /// If any execution has a data race, the result contains only [`RACE`], because the behaviour is then undefined.
    pub outcomes: BTreeSet<String>,
    pub executions: u64,
}

pub fn allowed(shape: &Shape, model: Model) -> AllowedOutcomes {
    let values = values(shape);
    let runs: Vec<Vec<Run>> =
        (0..shape.threads.len()).map(|thread| all_thread_runs(shape, thread, &values)).collect();
    let mut allowed = AllowedOutcomes { outcomes: BTreeSet::new(), executions: 0 };
    let mut chosen = vec![0; runs.len()];
    loop {
        let picked: Vec<&Run> = chosen.iter().zip(&runs).map(|(&at, runs)| &runs[at]).collect();
        CandidateExecution::new(shape, model, &picked).add_consistent_executions(&mut allowed);
        // Advances to the next combination of runs.
        let Some(at) = (0..runs.len()).find(|&at| chosen[at] + 1 < runs[at].len()) else { break };
        chosen[..at].fill(0);
        chosen[at] += 1;
    }
    if allowed.outcomes.contains(RACE) {
        allowed.outcomes = BTreeSet::from([RACE.to_owned()]);
    }
    allowed
}

/// The events of one combination of thread runs, and all relations that do not depend on `rf` and `mo`.
struct CandidateExecution<'s> {
    shape: &'s Shape,
    model: Model,
    events: Vec<Event>,
    registers: Registers,
    sb: Relation,
    rmw: Relation,
    same_place: Relation,
}

impl<'s> CandidateExecution<'s> {
    fn new(shape: &'s Shape, model: Model, runs: &[&Run]) -> Self {
        let made = |place| Event {
            thread: None,
            kind: Kind::Write,
            place,
            value: 0,
            order: if shape.plain.contains(&place) { Order::Plain } else { Order::Rlx },
            changes: false,
        };
        let mut events: Vec<Event> = (0..shape.places.len()).map(made).collect();
        let mut registers = vec![None; shape.registers.len()];
        for run in runs {
            events.extend_from_slice(&run.events);
            for (into, found) in registers.iter_mut().zip(&run.registers) {
                *into = into.or(*found);
            }
        }
        assert!(events.len() <= MAX_EVENTS, "{}: at most {MAX_EVENTS} events", shape.name);
        if !model.sc_accesses {
            for event in &mut events {
                if event.order == Order::Sc && event.kind != Kind::Fence {
                    event.order = Order::AcqRel;
                }
            }
        }
        let (mut sb, mut rmw, mut same_place) = (Relation::NONE, Relation::NONE, Relation::NONE);
        for (a, first) in events.iter().enumerate() {
            for (b, second) in events.iter().enumerate() {
                let starts = first.thread.is_none() && second.thread.is_some();
                if starts || (a < b && first.thread.is_some() && first.thread == second.thread) {
                    sb.add(a, b);
                }
                if first.kind != Kind::Fence && second.kind != Kind::Fence && first.place == second.place {
                    same_place.add(a, b);
                }
            }
            if first.changes {
                rmw.add(a - 1, a);
            }
        }
        Self { shape, model, events, registers, sb, rmw, same_place }
    }

    fn matching_events(&self, holds: impl Fn(&Event) -> bool) -> u32 {
        self.events.iter().enumerate().filter(|(_, event)| holds(event)).fold(0, |set, (at, _)| set | 1 << at)
    }

    /// Adds the outcomes of all consistent executions of these events to `allowed`.
    fn add_consistent_executions(&self, allowed: &mut AllowedOutcomes) {
        let reads: Vec<usize> =
            (0..self.events.len()).filter(|&e| self.events[e].kind == Kind::Read).collect();
        let sources: Vec<Vec<usize>> = reads
            .iter()
            .map(|&read| {
                let event = self.events[read];
                let fits = |&write: &usize| {
                    let from = self.events[write];
                    from.kind == Kind::Write
                        && from.place == event.place
                        && from.value == event.value
                        && !self.sb.has_edge(read, write)
                };
                (0..self.events.len()).filter(fits).collect()
            })
            .collect();
        if sources.iter().any(Vec::is_empty) {
            return;
        }
        let orders: Vec<Vec<Vec<usize>>> = (0..self.shape.places.len())
            .map(|place| {
                let writes = (0..self.events.len())
                    .filter(|&e| self.events[e].kind == Kind::Write && self.events[e].place == place);
                self.linear_orders(&mut Vec::new(), &writes.collect::<Vec<_>>())
            })
            .collect();
        for_each_choice(&sources, |chosen| {
            let mut rf = Relation::NONE;
            for (&read, &&write) in reads.iter().zip(chosen) {
                rf.add(write, read);
            }
            if self.model.no_thin_air && !self.sb.or(&rf).is_acyclic() {
                return;
            }
            let hb = self.happens_before(&rf);
            if self.model.coherence && !hb.is_irreflexive() {
                return;
            }
            for_each_choice(&orders, |chosen| self.finish(&rf, &hb, chosen, allowed));
        });
    }

    /// Returns all total orders of `writes` that respect program order.
    fn linear_orders(&self, before: &mut Vec<usize>, writes: &[usize]) -> Vec<Vec<usize>> {
        if before.len() == writes.len() {
            return vec![before.clone()];
        }
        let mut orders = Vec::new();
        for &next in writes.iter().filter(|write| !before.contains(write)).collect::<Vec<_>>() {
            if writes.iter().all(|&other| before.contains(&other) || !self.sb.has_edge(other, next)) {
                before.push(next);
                orders.extend(self.linear_orders(before, writes));
                before.pop();
            }
        }
        orders
    }

    fn happens_before(&self, rf: &Relation) -> Relation {
        let (sb, identity) = (&self.sb, Relation::identity);
        let writes = identity(self.matching_events(|e| e.kind == Kind::Write));
        let atomic_writes =
            identity(self.matching_events(|e| e.kind == Kind::Write && e.order != Order::Plain));
        let atomic_reads =
            identity(self.matching_events(|e| e.kind == Kind::Read && e.order != Order::Plain));
        let fences = identity(self.matching_events(|e| e.kind == Kind::Fence));
        let releases = identity(self.matching_events(|e| e.order.releases()));
        let acquires = identity(self.matching_events(|e| e.order.acquires()));
        let own_later =
            if self.model.own_stores_continue { sb.and(&self.same_place) } else { Relation::NONE };
        let changed = rf.compose(&self.rmw).closure().reflexive();
        let rs = writes.compose(&own_later.reflexive()).compose(&atomic_writes).compose(&changed);
        let to = releases.compose(&fences.compose(sb).reflexive()).compose(&rs);
        let sw = to
            .compose(rf)
            .compose(&atomic_reads)
            .compose(&sb.compose(&fences).reflexive())
            .compose(&acquires);
        sb.or(&sw).closure()
    }

    fn finish(&self, rf: &Relation, hb: &Relation, orders: &[&Vec<usize>], allowed: &mut AllowedOutcomes) {
        let mut mo = Relation::NONE;
        for order in orders {
            for (at, &first) in order.iter().enumerate() {
                order[at + 1..].iter().for_each(|&later| mo.add(first, later));
            }
        }
        let every = Relation::identity(u32::MAX);
        let rb = rf.inverse().compose(&mo).minus(&every);
        let eco = rf.or(&mo).or(&rb).closure();
        let is_coherent = hb.compose(&eco.reflexive()).is_irreflexive();
        let atomic = self.rmw.and(&rb.compose(&mo)) == Relation::NONE;
        if (self.model.coherence && !is_coherent) || (self.model.atomicity && !atomic) {
            return;
        }
        let sc = Relation::identity(self.matching_events(|e| e.order == Order::Sc));
        let sc_fences =
            Relation::identity(self.matching_events(|e| e.order == Order::Sc && e.kind == Kind::Fence));
        let other_places = self.sb.minus(&self.same_place);
        let scb = self
            .sb
            .or(&other_places.compose(hb).compose(&other_places))
            .or(&hb.and(&self.same_place))
            .or(&mo)
            .or(&rb);
        let psc_base = sc
            .or(&sc_fences.compose(&hb.reflexive()))
            .compose(&scb)
            .compose(&sc.or(&hb.reflexive().compose(&sc_fences)));
        let psc_fences = sc_fences.compose(&hb.or(&hb.compose(&eco).compose(hb))).compose(&sc_fences);
        if self.model.sc && !psc_base.or(&psc_fences).is_acyclic() {
            return;
        }
        allowed.executions += 1;
        allowed.outcomes.insert(if self.has_race(hb) {
            RACE.to_owned()
        } else {
            let last = |place: usize| {
                self.events[*orders[place].last().expect("the register's write must exist")].value
            };
            self.shape.outcome(&self.registers, last)
        });
    }

    fn has_race(&self, hb: &Relation) -> bool {
        let pairs = (0..self.events.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let mut conflicts = pairs.filter(|&(a, b)| {
            let (first, second) = (&self.events[a], &self.events[b]);
            self.same_place.has_edge(a, b)
                && [first, second].iter().any(|e| e.kind == Kind::Write)
                && [first, second].iter().any(|e| e.order == Order::Plain)
        });
        conflicts.any(|(a, b)| !hb.has_edge(a, b) && !hb.has_edge(b, a))
    }
}

/// Calls `f` for every combination of one element from each list.
fn for_each_choice<T>(lists: &[Vec<T>], mut f: impl FnMut(&[&T])) {
    fn from<'l, T>(lists: &'l [Vec<T>], chosen: &mut Vec<&'l T>, f: &mut impl FnMut(&[&T])) {
        let Some(list) = lists.get(chosen.len()) else { return f(chosen) };
        for one in list {
            chosen.push(one);
            from(lists, chosen, f);
            chosen.pop();
        }
    }
    from(lists, &mut Vec::new(), &mut f);
}
