//! Tests that compare the protocol model (`tests/protocol/model.rs`) with the shipping code.
//!
//! A test executes a random script of actions both in the model and in the code. Each thread of the model has a
//! corresponding OS thread that runs the code. The OS threads stop at *gates*, which are the calls of the supplier and
//! every [`inject_yield`](crate::layer). Between two gates, one OS thread runs alone, on the CPU that the script
//! selects. The model executes the same thread's actions up to the next gate. After each step, the complete states of
//! model and code must agree: stacks, limits, drained objects, depot, supplier, class, and the owner of each object.
//! After a fork, the script continues in the parent or in the child. If the script continues in the child, no thread
//! except the forking thread continues.
//!
//! The code under test uses the claimed mechanism. No thread stops inside a restartable sequence or while it holds a
//! lock. Interruptions of restartable sequences are covered by the loom models and by `rseq_stepper`.

#[allow(dead_code, reason = "only another program explores the model")]
#[path = "../../tests/protocol/model.rs"]
mod model;

use crate::layer::{Config, Layer, Supplier};
use crate::memory::Heap;
use crate::region::Class;
use crate::sync::Mutex;
use crate::sync::Rank;
use crate::sync::fork::ForkLock;
use crate::table::{DrainScope, SweepGroup, Table};
use crate::test_round::{TestRound, table};
use crate::tracepoints::Operation;
use crate::{Cpus, Fork, on_cpu};
use model::{Action, ActionKind, Bug, Mechanism, Op, Pc, Protocol, State, ThreadRole};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A command to a thread: its new CPU, the operation to begin if it is idle, and `true` if it continues as the child of
/// a fork.
type ThreadCommand = (u32, Op, bool);
/// A thread's report at a gate: `true` if its operation has ended.
type ThreadReport = bool;

std::thread_local! {
    static STEP_GATE: RefCell<Option<(Sender<ThreadReport>, Receiver<ThreadCommand>)>> = const { RefCell::new(None) };
}

/// Waits at a gate until the script lets this thread continue. A thread that belongs to no script does not wait.
pub(crate) fn wait_at_gate() {
    STEP_GATE.with_borrow(|gate| {
        if let Some((said, detected)) = gate {
            // When the script ends, its threads end, even inside an operation.
            let next = said.send(false).ok().and_then(|()| detected.recv().ok());
            let Some((cpu, ..)) = next else { std::panic::resume_unwind(Box::new(())) };
            on_cpu(cpu);
        }
    });
}

/// A supplier that hands out its lowest-numbered objects first, like the supplier of the model.
struct LowestFirstSupplier(Mutex<BTreeSet<usize>>);
impl Supplier<TestRound> for LowestFirstSupplier {
    fn fill(&self, _: &Operation, _: u32, max: usize, put: impl FnMut(TestRound)) -> usize {
        wait_at_gate();
        let mut rounds = self.0.lock();
        let chosen: Vec<usize> = rounds.iter().copied().take(max).collect();
        chosen.iter().for_each(|round| _ = rounds.remove(round));
        chosen.iter().copied().map(TestRound).for_each(put);
        chosen.len()
    }
    fn flush(&self, _: &Operation, rounds: impl Iterator<Item = TestRound>) {
        wait_at_gate();
        let rounds: Vec<usize> = rounds.map(|round| round.0).collect();
        for round in rounds {
            assert!(self.0.lock().insert(round), "round {round} was flushed to the supplier twice");
        }
    }
}

struct Code {
    table: Arc<Table<Heap>>,
    config: Config,
    /// The current layer; `None` after a layer was dropped and before the next layer reuses its class number.
    layer: Mutex<Option<Arc<Layer<TestRound>>>>,
    supplier: LowestFirstSupplier,
    rounds: usize,
    held: Vec<Mutex<Vec<usize>>>,
}
const TEST_SWEEP_GROUP: SweepGroup = SweepGroup::new(0);

impl Code {
    fn new(protocol: &Protocol) -> Self {
        let table = table(Cpus::simulated(protocol.cpus.into(), 1).unwrap());
        let stock = protocol.reach / protocol.capacity - 2;
        let config = Config::new(protocol.capacity.into(), stock.into(), protocol.depot_limit.into());
        Self {
            layer: Mutex::new(Some(Self::new_layer(&table, config))),
            table,
            config,
            supplier: LowestFirstSupplier(Mutex::new((1..=protocol.rounds.into()).collect())),
            rounds: protocol.rounds.into(),
            held: protocol.roles.iter().map(|_| Mutex::new(vec![])).collect(),
        }
    }
    fn new_layer(table: &Arc<Table<Heap>>, config: Config) -> Arc<Layer<TestRound>> {
        let layer = Layer::new(table, config).unwrap();
        layer.join_sweeps(TEST_SWEEP_GROUP);
        Arc::new(layer)
    }
    fn layer(&self) -> Arc<Layer<TestRound>> {
        self.layer.lock().clone().expect("a round must have an owner when the states are compared")
    }
    fn class(&self) -> Class {
        self.layer().nodes[0].class()
    }

    fn run(&self, thread: usize, op: Op, child: bool) {
        let (layer, held) = (self.layer(), &self.held[thread]);
        match op {
            Op::Alloc => {
                let round = layer.alloc(&self.supplier);
                held.lock().extend(round.map(|round| round.0));
            }
            Op::Free => {
                let round = held.lock().pop().expect("the model must hold a round");
                layer.free(&self.supplier, TestRound(round));
            }
            Op::Drain => layer.drain(&self.supplier, 0..self.table.cpus().count()),
            Op::Reap => {
                drop(layer);
                self.table
                    .sweep(0..self.table.cpus().count(), DrainScope::Idle, |group| group == TEST_SWEEP_GROUP);
                wait_at_gate();
                self.layer().reap_swept(&self.supplier);
            }
            Op::Close => {
                layer.close();
                layer.flush_all(&self.supplier);
            }
            Op::Resize => {
                let reach = self.config.reach();
                let smaller = if self.table.class_limits(self.class()).0 == u64::from(reach) {
                    self.config.capacity
                } else {
                    reach
                };
                self.table.change_limit(self.class(), || smaller);
            }
            Op::Retire => {
                let class = self.class().index;
                drop(layer);
                drop(self.layer.lock().take());
                // The objects of the next owner get the next higher numbers.
                let fresh = self.rounds + 1..=2 * self.rounds;
                *self.supplier.0.lock() = fresh.collect();
                *self.layer.lock() = Some(Self::new_layer(&self.table, self.config));
                assert_eq!(self.class().index, class, "the number belongs to the next layer");
            }
            // SAFETY: the thread does nothing between the two calls, and in the child no other thread continues.
            Op::Fork => unsafe {
                let process = Process(&self.table, &layer);
                process.before_fork();
                if child {
                    process.after_fork_in_child();
                    let others = self.held.iter().enumerate().filter(|(other, _)| *other != thread);
                    others.for_each(|(_, held)| held.lock().clear());
                } else {
                    process.after_fork_in_parent();
                }
            },
        }
    }

    /// Returns the state of the code, in a form that can be compared with the state of the model.
    fn state_lines(&self) -> Vec<(String, String)> {
        let (layer, class) = (self.layer(), self.class());
        let mut parts = vec![];
        let mut put = |name: String, value: String| parts.push((name, value));
        for cpu in 0..self.table.cpus().count() {
            let region = self.table.region(cpu).unwrap();
            if region.committed() == 0 {
                put(format!("CPU {cpu}"), "never used".to_owned());
                continue;
            }
            let (len, taken) = (region.served(class).1 as u32, region.taken_rounds(class));
            let round = |i| region.round(class, i).expect("a round").addr().get();
            let rounds: Vec<usize> = (1..=len.max(taken)).map(round).collect();
            let (cap, limit) = (region.cap(class), region.limit(class));
            let idle = Table::<Heap>::is_idle(region, class);
            put(
                format!("CPU {cpu}"),
                format!("{rounds:?}, {taken} taken, {cap} of {limit} places, idle: {idle}"),
            );
            assert_eq!(region.claim().load(crate::sync::Ordering::Relaxed), 0);
        }
        let depot: Vec<Vec<usize>> = layer.nodes[0]
            .depot
            .look()
            .iter()
            .map(|m| m.rounds().iter().map(|r| r.addr().get()).collect())
            .collect();
        put("depot".to_owned(), format!("{depot:?}"));
        put("supplier".to_owned(), format!("{:?}", *self.supplier.0.lock()));
        put("class".to_owned(), format!("{:?}", self.table.class_limits(class)));
        for (thread, held) in self.held.iter().enumerate() {
            put(format!("thread {thread}"), format!("{:?}", *held.lock()));
        }
        parts
    }
}

struct Process<'a>(&'a Table<Heap>, &'a Layer<TestRound>);
impl Fork for Process<'_> {
    unsafe fn locks(&self, rank: Rank, visit: &mut dyn FnMut(&dyn ForkLock)) {
        // SAFETY: the thread holds the locks of all earlier ranks that `rank` requires, by this function's contract.
        unsafe {
            self.0.locks(rank, visit);
            self.1.locks(rank, visit);
        }
    }
    unsafe fn forget_other_threads(&self) {
        // SAFETY: the process is a child with a single thread, by this function's contract.
        unsafe {
            self.1.forget_other_threads();
            self.0.forget_other_threads();
        }
    }
}

/// Returns the state of the model, in a form that can be compared with the state of the code.
fn state_lines(protocol: &Protocol, s: &State) -> Vec<(String, String)> {
    let mut parts = vec![];
    let mut put = |name: String, value: String| parts.push((name, value));
    for (cpu, region) in s.regions.iter().enumerate().take(protocol.cpus.into()) {
        if !region.committed {
            put(format!("CPU {cpu}"), "never used".to_owned());
            continue;
        }
        let rounds = &region.places[..usize::from(region.len.max(region.taken_count))];
        let (taken, cap, limit, idle) = (region.taken_count, region.cap, region.limit, region.is_idle());
        put(
            format!("CPU {cpu}"),
            format!("{rounds:?}, {taken} taken, {cap} of {limit} places, idle: {idle}"),
        );
    }
    let magazine = |full: &[u8; model::BATCH]| full[..usize::from(protocol.capacity)].to_vec();
    let depot: Vec<Vec<u8>> = s.depot.magazines_in_take_order().map(|full| magazine(&full)).collect();
    put("depot".to_owned(), format!("{depot:?}"));
    let supplier: BTreeSet<u32> = (0..16).filter(|round| s.supplier >> round & 1 == 1).collect();
    put("supplier".to_owned(), format!("{supplier:?}"));
    let number = &s.number;
    let class =
        (u64::from(number.open), u32::from(number.limit), u32::from(number.drains), number.waiting > 0);
    put("class".to_owned(), format!("{class:?}"));
    for (thread, _) in protocol.roles.iter().enumerate() {
        let t = &s.threads[thread];
        put(format!("thread {thread}"), format!("{:?}", &t.held_rounds[..usize::from(t.held_count)]));
    }
    parts
}

/// Returns `true` if the code has a gate where the model's thread is at `pc`, after the step at `before`.
fn is_gate_at(pc: Pc, before: Pc) -> bool {
    match pc {
        Pc::Enter(stage) => !matches!(stage, model::Stage::Pop | model::Stage::Push),
        Pc::GiveRound => before == Pc::ForgetTaken,
        Pc::Idle
        | Pc::Look
        | Pc::Fill
        | Pc::IsOpen(_)
        | Pc::LockDepotToPut
        | Pc::Flush
        | Pc::Bypass
        | Pc::LockToClaim => true,
        _ => false,
    }
}

/// Executes the model's actions of one thread from a gate to the next gate, on `cpu`. If `child` is set, the thread
/// continues as the child after a fork. Drains visit the CPUs in ascending order, as in the code.
fn state_at_the_next_gate(protocol: &Protocol, mut s: State, first: Action, cpu: u8, child: bool) -> State {
    let me = usize::from(first.thread);
    let mut action = first;
    loop {
        let before = s.threads[me].pc;
        s = protocol.next(&s, action);
        let pc = s.threads[me].pc;
        if is_gate_at(pc, before) || s.fault.is_some() {
            return s;
        }
        let mut actions = vec![];
        protocol.actions(&s, &mut actions);
        let mine = actions.iter().filter(|a| a.thread == first.thread && a.act != ActionKind::Abort);
        let on = |a: &&Action| match pc {
            Pc::Enter(_) | Pc::IsOpen(_) => a.act == ActionKind::On(cpu),
            Pc::Fork => (a.act == ActionKind::Child) == child,
            _ => true,
        };
        action = *mine.into_iter().find(on).unwrap_or_else(|| panic!("the model has no step at {pc:?}"));
    }
}

struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        // The generator is xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Executes, on an OS thread, the operations that the script sends, until the script ends.
fn run_thread(code: &Code, thread: usize, say: Sender<ThreadReport>, detected: Receiver<ThreadCommand>) {
    STEP_GATE.set(Some((say, detected)));
    let next = || STEP_GATE.with_borrow(|gate| gate.as_ref().and_then(|(_, detected)| detected.recv().ok()));
    while let Some((cpu, op, child)) = next() {
        on_cpu(cpu);
        code.run(thread, op, child);
        STEP_GATE.with_borrow(|gate| gate.as_ref().map(|(say, _)| say.send(true)));
    }
}

/// Executes a random script of `steps` steps in the model and in the code. If the states of model and code differ,
/// returns the first difference and the steps that led to it.
fn difference(protocol: &Protocol, seed: u64, steps: usize) -> Option<String> {
    let code = Arc::new(Code::new(protocol));
    let (mut state, mut script, mut dice) = (protocol.start(), String::new(), Random(seed * 2 + 1));
    let mut ends = vec![];
    for thread in 0..protocol.roles.len() {
        let ((tell, detected), (say, said)) = (channel(), channel());
        let code = code.clone();
        ends.push((tell, said, std::thread::spawn(move || run_thread(&code, thread, say, detected))));
    }
    let mut step = || {
        let mut actions = vec![];
        protocol.actions(&state, &mut actions);
        // A script has at most one fork. Forks are rare, so that other threads are inside operations when one
        // occurs.
        let action = loop {
            let action = actions[dice.below(actions.len())];
            if action.act != ActionKind::Begin(Op::Fork) || dice.below(16) == 0 {
                break action;
            }
        };
        let me = usize::from(action.thread);
        // Every thread is now at a gate. Selects the CPU for the thread's next step.
        let cpu = dice.below(protocol.cpus.into()) as u8;
        let pc = state.threads[me].pc;
        let (op, first) = match action.act {
            ActionKind::Begin(op) => (op, action),
            ActionKind::On(_) if matches!(pc, Pc::Enter(_) | Pc::IsOpen(_)) => {
                (Op::Free, Action { act: ActionKind::On(cpu), ..action })
            }
            _ => (Op::Free, action),
        };
        script += &format!("thread {me} on CPU {cpu}: {pc:?} {:?}\n", first.act);
        let child = op == Op::Fork && dice.below(2) == 1;
        state = state_at_the_next_gate(protocol, state, first, cpu, child);
        let _ = ends[me].0.send((cpu.into(), op, child));
        let Ok(over) = ends[me].1.recv() else { panic!("the code panicked after\n{script}") };
        if let Some(fault) = state.fault {
            return Some(format!("the model: {}", fault.text()));
        }
        if over != (state.threads[me].pc == Pc::Idle) {
            return Some(format!(
                "code and model disagree whether the operation ended: {over} in the code, but the model is at {:?}",
                state.threads[me].pc
            ));
        }
        let (model, code) = (state_lines(protocol, &state), code.state_lines());
        let other = model.iter().zip(&code).find(|(model, code)| model != code);
        other.map(|((part, model), (_, code))| {
            format!("{part}: the model has {model}, but the code has {code}")
        })
    };
    let difference = (0..steps).find_map(|_| step());
    // After the script, each operation runs to its end without the model. The test abandons the operations if
    // model and code differed.
    for (thread, (tell, said, handle)) in ends.into_iter().enumerate() {
        if state.threads[thread].pc == Pc::Gone {
            // The child does not have this thread, which waits at the fork.
            core::mem::forget(tell);
            continue;
        }
        let mut busy = difference.is_none() && state.threads[thread].pc != Pc::Idle;
        while busy {
            tell.send((0, Op::Free, false)).expect("the thread must exist");
            busy = said.recv() == Ok(false);
        }
        drop(tell);
        if difference.is_none() {
            handle.join().expect("the thread's operations must have ended");
        }
    }
    difference.map(|difference| format!("{difference}\nbehind\n{script}"))
}

fn protocol(sizes: [u8; 5], roles: &[ThreadRole], bug: Option<Bug>) -> Protocol {
    let [capacity, reach, depot_limit, rounds, holds] = sizes;
    let roles = roles.to_vec();
    Protocol {
        mechanism: Mechanism::Claimed,
        cpus: 3,
        capacity,
        reach,
        depot_limit,
        rounds,
        max_held: holds,
        roles,
        bug,
        aborts: false,
    }
}

const SIZES: [[u8; 5]; 3] = [[1, 2, 1, 5, 3], [2, 4, 1, 7, 3], [1, 4, 2, 7, 3]];
const ROLE_COMBINATIONS: [&[ThreadRole]; 9] = [
    &[ThreadRole::User, ThreadRole::User, ThreadRole::Drainer, ThreadRole::Drainer],
    &[ThreadRole::User, ThreadRole::User, ThreadRole::User, ThreadRole::Reaper],
    &[ThreadRole::User, ThreadRole::Drainer, ThreadRole::Reaper, ThreadRole::Resizer],
    &[ThreadRole::User, ThreadRole::User, ThreadRole::Drainer, ThreadRole::Closer],
    &[ThreadRole::User, ThreadRole::User, ThreadRole::Closer, ThreadRole::Reaper],
    &[ThreadRole::User, ThreadRole::Successor, ThreadRole::Reaper],
    &[ThreadRole::User, ThreadRole::User, ThreadRole::Successor],
    &[ThreadRole::User, ThreadRole::User, ThreadRole::Drainer, ThreadRole::Forker],
    &[ThreadRole::User, ThreadRole::Drainer, ThreadRole::Reaper, ThreadRole::Forker],
];
/// The number of scripts of each kind, and the number of steps in a script.
const SCRIPTS_PER_KIND: u64 = if cfg!(miri) { 1 } else { 20 };
const STEPS: usize = if cfg!(miri) { 20 } else { 300 };

#[test]
fn magazine_layer_agrees_with_its_model() {
    let mut scripts = 0;
    for sizes in SIZES {
        // Miri reports threads that the child does not have as leaks.
        for roles in
            ROLE_COMBINATIONS.into_iter().filter(|roles| !cfg!(miri) || !roles.contains(&ThreadRole::Forker))
        {
            for seed in 0..SCRIPTS_PER_KIND {
                let protocol = protocol(sizes, roles, None);
                if let Some(difference) = difference(&protocol, seed, STEPS) {
                    panic!("{sizes:?} {roles:?} seed {seed}: {difference}");
                }
                scripts += 1;
            }
        }
    }
    println!("IN STEP | {scripts} scripts | {STEPS} steps each");
}

/// The scripts are long enough that a wrong model differs from the code in at least one script.
#[test]
#[cfg_attr(miri, ignore = "some bugs need long scripts")]
fn model_comparison_detects_a_wrong_magazine_model() {
    let bugs = [
        Bug::WidensBeyondLimit,
        Bug::FirstDrainOpens,
        Bug::GivesAwayOthers,
        Bug::StaysOpen,
        Bug::SweepForgotten,
        Bug::NeverReopens,
        Bug::ClosedStaysOpen,
        Bug::DepotKeeps,
        Bug::TriesAgain,
        Bug::RetiresOneCpu,
        Bug::DrainsOutlive,
        Bug::ChildLosesTaken,
    ];
    for bug in bugs {
        let mut kinds = SIZES
            .iter()
            .flat_map(|sizes| ROLE_COMBINATIONS.iter().map(move |roles| protocol(*sizes, roles, Some(bug))));
        let detected =
            kinds.any(|wrong| (0..SCRIPTS_PER_KIND).any(|seed| difference(&wrong, seed, STEPS).is_some()));
        assert!(detected, "the comparison must detect {bug:?}");
    }
}
