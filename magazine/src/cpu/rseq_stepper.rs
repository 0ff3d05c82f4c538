//! Tests that interrupt every restartable sequence (section) of the program at each of its instructions.
//!
//! A breakpoint inside a section has the effect of a pre-emption: the kernel delivers a signal, and then lets the
//! thread continue at the section's abort address. Before the thread continues, the signal handler runs operations of
//! another thread on the same CPU, or a drain. The interrupted section then restarts, with the register contents that
//! the aborted attempt left. The aborted attempt must not change the operation's outcome.
//!
//! [`sections`] reads the list of sections from the program file. The test runs each section at its address in the
//! program ([`Call`]). The test checks that it interrupted every instruction of every section. Each test runs in a
//! separate process, because a breakpoint changes code that all threads share ([`run_test_alone`]).

use super::sections::{self, Code, Instruction, Kind, Register, Section, SectionOperands, TRAP_CODE};
use super::*;
use crate::sync::AtomicPtr;
use nix::sys::mman::{ProtFlags, mprotect};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::ops::Range;

/// Returns `true` if `USLAB_STRESS=full` requests the long variants of the tests.
fn is_long_test_run() -> bool {
    std::env::var_os("USLAB_STRESS").is_some_and(|size| size == "full")
}

/// Pins this thread to one CPU, and returns the number of that CPU.
fn pin_to_one_cpu() -> u32 {
    let cpu = usable_cpus()[0];
    pin(Pid::from_raw(0), &[cpu]);
    cpu as u32
}

// ---------------------------------------------------------------- breakpoints

struct Breakpoint<'a> {
    code: TrapPatch,
    while_trapped: &'a dyn Fn(),
    traps: Counter,
    /// The breakpoint that interrupts the restarted section; it is set when this breakpoint is hit.
    next: Option<&'a Breakpoint<'a>>,
}

/// A code address at which the test can write a trap instruction, and the original code there.
#[derive(Clone, Copy)]
struct TrapPatch {
    at: *mut Code,
    code: Code,
}

impl TrapPatch {
    fn new(at: usize) -> Self {
        let at = at as *mut Code;
        // SAFETY: code is readable, and no breakpoint is set at this address now.
        Self { at, code: unsafe { at.read_volatile() } }
    }
    fn trap(&self) {
        self.write(TRAP_CODE);
    }
    fn remove(&self) {
        self.write(self.code);
    }
    fn write(&self, code: Code) {
        // SAFETY: the code of sections and their ends is writable here, and only this thread runs it.
        unsafe { self.at.write_volatile(code) };
        sections::synchronize_code(self.at);
    }
}

static BREAKPOINT: AtomicPtr<Breakpoint<'static>> = AtomicPtr::new(core::ptr::null_mut());

impl<'a> Breakpoint<'a> {
    fn new(instruction: &Instruction, while_trapped: &'a dyn Fn(), next: Option<&'a Self>) -> Self {
        Self { code: TrapPatch::new(instruction.ip()), while_trapped, traps: Counter::new(0), next }
    }
    fn activate_breakpoint(&self) {
        BREAKPOINT.store(core::ptr::from_ref(self).cast_mut().cast(), Relaxed);
        self.code.trap();
    }
}

extern "C" fn trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the thread that sets `CALL` keeps the call alive until it resets the pointer to null.
    if unsafe { CALL.load(Relaxed).as_mut() }.is_some_and(|call| call.trap(context)) {
        return;
    }
    // SAFETY: a breakpoint is set only while `interrupted` or `run_interrupted_twice`, which own the breakpoint, run.
    let breakpoint = unsafe { &*BREAKPOINT.load(Relaxed) };
    breakpoint.code.remove();
    breakpoint.traps.add(1);
    (breakpoint.while_trapped)();
    if let Some(next) = breakpoint.next {
        next.activate_breakpoint();
    }
}

/// Makes the code of `sections` writable, including the code that runs after a miss, and installs the trap handler.
fn make_code_writable(sections: &[Section]) {
    const PAGE: usize = 4096;
    for Range { start, end } in sections.iter().flat_map(code_ranges) {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: the range consists of whole pages of this program's code, whose content does not change.
        unsafe { mprotect(NonNull::new(start as *mut libc::c_void).unwrap(), end - start, all) }.unwrap();
    }
    let action = SigAction::new(SigHandler::SigAction(trap), SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler interrupts only sections, which hold no lock and allocate nothing.
    unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
}

/// Runs `operation`, and calls `while_trapped` when the operation reaches `instruction` for the first time. Returns
/// `false` if the operation ends without reaching `instruction`.
fn interrupted<T>(
    instruction: &Instruction,
    while_trapped: &dyn Fn(),
    operation: impl FnOnce() -> T,
) -> (T, bool) {
    let breakpoint = Breakpoint::new(instruction, while_trapped, None);
    breakpoint.activate_breakpoint();
    let outcome = operation();
    breakpoint.code.remove();
    (outcome, breakpoint.traps.get() > 0)
}

/// Runs `operation` and interrupts it at `first`. The restarted section is interrupted again at `second`.
fn run_interrupted_twice<T>(
    [first, second]: [&Instruction; 2],
    [then, again]: [&dyn Fn(); 2],
    operation: impl FnOnce() -> T,
) -> (T, bool) {
    let second = Breakpoint::new(second, again, None);
    let first = Breakpoint::new(first, then, Some(&second));
    first.activate_breakpoint();
    let outcome = operation();
    [&second, &first].iter().for_each(|breakpoint| breakpoint.code.remove());
    (outcome, first.traps.get() > 0 && second.traps.get() > 0)
}

// ---------------------------------------------------------------- a section as a function

#[cfg(target_arch = "aarch64")]
#[path = "rseq_stepper/aarch64.rs"]
mod registers;
#[cfg(target_arch = "x86_64")]
#[path = "rseq_stepper/x86_64.rs"]
mod registers;
use registers::Registers;

/// Returns the code ranges that traps may overwrite: the section, and the start of the code that runs after a miss.
fn code_ranges(section: &Section) -> impl Iterator<Item = Range<usize>> + use<> {
    let miss = section.miss_target().map(|miss| miss..miss + size_of::<Code>());
    core::iter::once(section.code.start..section.code.end + size_of::<Code>()).chain(miss)
}

/// Calls a section at its address in the program, even if the compiler inlined it into a function that the test does
/// not call.
///
/// A trap handler jumps to the section's restart label, with the operands in the registers that the section expects. A
/// second trap, behind the section, ends the call.
struct Call {
    entry: usize,
    operands: Vec<(Register, u64)>,
    /// The two addresses at which the section ends: after a commit, and after a miss.
    exits: [usize; 2],
    /// The caller's registers, which are restored when the section ends.
    caller: Option<Registers>,
    /// The register contents at the end of the section.
    left: Option<Registers>,
}

static CALL: AtomicPtr<Call> = AtomicPtr::new(core::ptr::null_mut());

impl Call {
    /// Returns `true` if the trap belongs to this call, and not to a breakpoint inside the section.
    fn trap(&mut self, context: *mut libc::c_void) -> bool {
        let mut registers = Registers::read(context);
        let Some(caller) = self.caller else {
            self.caller = Some(registers);
            self.operands.iter().for_each(|(register, value)| registers.set(*register, *value));
            registers.jump_to(self.entry);
            registers.write(context);
            return true;
        };
        if !self.exits.contains(&registers.trap_address()) {
            return false;
        }
        self.left = Some(registers);
        caller.after_trap().write(context);
        true
    }
    fn run(mut self) -> Registers {
        let exits = self.exits.map(TrapPatch::new);
        exits.iter().for_each(TrapPatch::trap);
        CALL.store(&raw mut self, Relaxed);
        // SAFETY: the handler runs the section, which uses no stack, and then restores all registers.
        unsafe { registers::trap() };
        CALL.store(core::ptr::null_mut(), Relaxed);
        exits.iter().for_each(TrapPatch::remove);
        self.left.expect("the called section must end")
    }
}

struct TestCall<'s> {
    section: &'s Section,
    operands: SectionOperands,
}

impl<'s> TestCall<'s> {
    fn new(section: &'s Section) -> Self {
        Self { section, operands: section.operands() }
    }
    /// Returns the operations on the class with index `class` that the section can perform.
    fn operations(&self, class: usize) -> Vec<Operation> {
        match self.operands.kind {
            Kind::Pop => vec![Operation::Pop(class)],
            // Some stacks already have object 403 on top.
            Kind::Push => [77, 403].map(|n| Operation::Push(class, round(n))).to_vec(),
            Kind::PushBatch => [1, 3].map(|n| Operation::PushBatch(class, n)).to_vec(),
            Kind::PopBatch => [1, 3].map(|n| Operation::PopBatch(class, n)).to_vec(),
        }
    }
    fn run(&self, world: &World, word: i64, operation: Operation) -> Outcome {
        let SectionOperands { area, words, stack, rounds, count, .. } = self.operands;
        let (end, miss) = (self.section.code.end, self.section.miss_target());
        assert_ne!(
            Some(end),
            miss,
            "{:#x}: the section ends at the same place whether it committed or not",
            self.section.code.start
        );
        let (class, address, n) = match operation {
            Operation::Pop(class) => (class, 0, 0),
            Operation::Push(class, round) => (class, round.addr().get(), 0),
            Operation::PushBatch(class, n) | Operation::PopBatch(class, n) => (class, 0, n),
        };
        let (batch, mut into) = (Operation::batch(n), [None; 4]);
        let address = match operation {
            Operation::PushBatch(..) => batch.as_ptr().addr(),
            Operation::PopBatch(..) => (&raw mut into).expose_provenance(),
            _ => address,
        };
        // The test cannot choose the CPU number, so it shifts the address of the words instead.
        let zero = world
            .table
            .words_of(Words::Always)
            .addr()
            .get()
            .wrapping_add_signed(8 * (word - i64::from(cpu_id())) as isize);
        let mut operands = vec![
            (area, world.pcpu.area as u64),
            (words, zero as u64),
            (stack, world.classes[class].stack.into()),
            (rounds, address as u64),
        ];
        operands.extend(count.map(|count| (count, n as u64)));
        let entry = self.section.restart();
        let exits = [end, miss.unwrap_or(end)];
        let left = Call { entry, operands, exits, caller: None, left: None }.run();
        let done = left.trap_address() == end;
        match operation {
            Operation::Pop(_) => Outcome::Pop(NonNull::new(left.get(rounds) as *mut u8)),
            Operation::Push(..) | Operation::PushBatch(..) => Outcome::Push(done),
            Operation::PopBatch(..) => {
                // The section has written `into`.
                let into = core::hint::black_box(into);
                Outcome::PopBatch(
                    into[..if done { n } else { 0 }].iter().map(|round| round.unwrap()).collect(),
                )
            }
        }
    }
}

/// What the test has covered: the entered sections, the interrupted instructions, and the number of interruptions.
#[derive(Default)]
struct InterruptionCoverage {
    sections: BTreeSet<usize>,
    instructions: BTreeSet<usize>,
    interrupted: u64,
}

impl InterruptionCoverage {
    fn add(&mut self, section: &Section, instruction: &Instruction) {
        self.sections.insert(section.code.start);
        self.instructions.insert(instruction.ip());
        self.interrupted += 1;
    }
    /// Returns the names of the section instructions that the test never interrupted.
    fn uninterrupted_instructions(&self, all: &[Section]) -> Vec<String> {
        all.iter()
            .flat_map(|section| section.instructions.iter().map(move |one| (section, one)))
            .filter(|(_, instruction)| !self.instructions.contains(&instruction.ip()))
            .map(|(section, instruction)| section.name(instruction))
            .collect()
    }
    /// Prints the counts, and asserts that they reach the given minimum numbers.
    fn end(&self, all: &[Section], sections: usize, interrupted: u64) {
        println!(
            "{} of {} sections, {} of {} instructions, {} interrupted operations",
            self.sections.len(),
            all.len(),
            self.instructions.len(),
            all.iter().map(|section| section.instructions.len()).sum::<usize>(),
            self.interrupted
        );
        assert!(self.sections.len() >= sections, "fewer than {sections} sections were entered");
        assert!(self.interrupted >= interrupted, "fewer than {interrupted} operations were interrupted");
    }
}

// ---------------------------------------------------------------- one operation

/// What happens on the CPU while a section is interrupted.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    Nothing,
    /// A drain takes the objects on all stacks of the CPU.
    Drain,
    /// A drain begins and does not end, so the CPU's pointer leads to the empty region.
    Away,
    /// A larger part of the CPU's region is committed.
    Commit,
    /// The limit of the class's stack on this CPU changes to the given number.
    Limit(u16),
    /// Another operation runs from start to end.
    Whole(Operation),
}

/// The index of the class that the interrupting operations use.
const TESTED_CLASS: usize = 1;
const OTHER_CLASS: usize = 0;

impl Interruption {
    const ALL: [Self; 14] = [
        Self::Nothing,
        Self::Drain,
        Self::Away,
        Self::Commit,
        Self::Limit(0),
        Self::Limit(4),
        Self::Limit(REACH),
        Self::Whole(Operation::Pop(TESTED_CLASS)),
        Self::Whole(Operation::Push(TESTED_CLASS, NonNull::without_provenance(NonZero::new(99).unwrap()))),
        Self::Whole(Operation::PushBatch(TESTED_CLASS, 2)),
        Self::Whole(Operation::PopBatch(TESTED_CLASS, 2)),
        Self::Whole(Operation::Pop(OTHER_CLASS)),
        Self::Whole(Operation::Push(OTHER_CLASS, NonNull::without_provenance(NonZero::new(98).unwrap()))),
        Self::Whole(Operation::PushBatch(OTHER_CLASS, 2)),
    ];

    fn run(self, world: &World, cpu: u32) {
        let World { table, classes, .. } = world;
        match self {
            Self::Nothing => {}
            Self::Drain => {
                let cpus = 0..table.cpus().count();
                table.drain(
                    cpus,
                    DrainScope::All,
                    classes.iter().copied(),
                    |_, taken| while taken.pop().is_some() {},
                );
            }
            Self::Away => world.detach_region(cpu),
            Self::Commit => {
                _ = table.commit_stack_places(
                    &tracepoints::Operation::new(),
                    cpu,
                    classes[TESTED_CLASS],
                    REACH.into(),
                )
            }
            Self::Limit(limit) => table.region(cpu).unwrap().open(classes[TESTED_CLASS], limit, limit / 2),
            Self::Whole(operation) => _ = operation.run_portable_code(world, cpu),
        }
    }
}

/// Returns start states in which the stack of the class with index `class` has different lengths and capacities. In
/// half of the start states, only the necessary part of the region is committed. In the other start states, the whole
/// region is committed.
fn start_states(world: &World, class: usize) -> Vec<State> {
    let mut starts = vec![];
    for (len, cap) in [(0, 0), (0, 6), (1, 1), (1, 2), (2, 3), (3, 3), (3, 6), (6, 6)] {
        for (committed, limit) in [world.classes[class].end(cap), World::REGION]
            .into_iter()
            .flat_map(|bytes| [(bytes, REACH.into()), (bytes, 4)])
        {
            let rounds = |first: usize, len: u64| -> Vec<_> {
                (0..=len as usize).map(|i| (i > 0).then(|| round(first + i))).collect()
            };
            let at = |own: u64, other: u64| CLASSES.map(|at| if at == class { own } else { other });
            let look = SectionState {
                committed,
                heads: at(7 * OP_STEP + len, 5 * OP_STEP + 3),
                caps: at(cap.into(), 4).map(|cap| cap as u32),
                limits: at(limit, REACH.into()).map(|limit| limit as u32),
                places: CLASSES.map(|at| if at == class { rounds(400, len) } else { rounds(300, 3) }),
            };
            starts.push(State { cpus: vec![look; world.cpus() as usize] });
        }
    }
    starts
}

/// The per-CPU pointer that an operation reads, and the CPU to whose region it points.
#[derive(Clone, Copy, Debug)]
struct Word {
    number: i64,
    cpu: Option<u32>,
}

impl Word {
    /// Returns the per-CPU pointers of the first and the last CPU, without duplicates.
    fn cpus(world: &World) -> Vec<Self> {
        let mut cpus = vec![0, world.cpus() - 1];
        cpus.dedup();
        cpus.into_iter().map(|cpu| Self { number: cpu.into(), cpu: Some(cpu) }).collect()
    }
    /// Returns per-CPU pointers that belong to no CPU: two in front of CPU 0's pointer, the first behind the last CPU's
    /// pointer, and the last of all.
    fn spare_words(world: &World) -> Vec<Self> {
        let (count, last) = (i64::from(world.cpus()), i64::from(world.table.cpus().word_count()) - 1);
        let spare =
            [-2, -1, count, last].into_iter().filter(|number| *number < 0 || (count..=last).contains(number));
        spare.map(|number| Self { number, cpu: None }).collect()
    }
}

/// Returns the allowed outcomes of an operation that starts in `state` and is interrupted by all of `meanwhiles`, in
/// this order. An outcome is allowed if the portable code produces it after the interruptions. The stack may be larger,
/// because an aborted attempt may have grown it.
fn expected_outcomes(
    twin: &World,
    word: Word,
    state: &State,
    meanwhiles: &[Interruption],
    operation: Operation,
) -> Vec<(Outcome, State)> {
    twin.write(state);
    let Some((while_trapped, later)) = meanwhiles.split_first() else {
        let outcome = match (word.cpu, operation) {
            (Some(cpu), _) => operation.run_portable_code(twin, cpu),
            (None, Operation::Pop(_)) => Outcome::Pop(None),
            (None, Operation::Push(..) | Operation::PushBatch(..)) => Outcome::Push(false),
            (None, Operation::PopBatch(..)) => Outcome::PopBatch(vec![]),
        };
        return vec![(outcome, twin.snapshot())];
    };
    let mut starts = vec![state.clone()];
    if let (Some(cpu), Operation::PushBatch(..)) = (word.cpu, operation) {
        operation.run_portable_code(twin, cpu);
        let mut widened = state.clone();
        widened.cpus[cpu as usize].caps = twin.snapshot().cpus[cpu as usize].caps;
        starts.extend((widened != *state).then_some(widened));
    }
    let behind = |start: State| {
        twin.write(&start);
        while_trapped.run(twin, word.cpu.unwrap_or(0));
        let cpu = word.cpu.filter(|_| !matches!(while_trapped, Interruption::Away));
        expected_outcomes(twin, Word { cpu, ..word }, &twin.snapshot(), later, operation)
    };
    starts.into_iter().flat_map(behind).collect()
}

/// The state of the test that interrupts all sections of the program at every instruction.
struct AllSectionsTest {
    world: World,
    twin: World,
    steps: InterruptionCoverage,
    /// Number of runs in which an aborted attempt had visibly grown the stack.
    survived: u64,
    pairs: u64,
}

impl AllSectionsTest {
    /// Asserts that the result and the memory equal an outcome of the portable code that runs once, after the
    /// interruptions.
    fn assert_expected_outcome(
        &mut self,
        got: Outcome,
        at: &str,
        (word, start, operation): (Word, &State, Operation),
        meanwhiles: &[Interruption],
    ) {
        let got = (got, self.world.snapshot());
        let may_be = expected_outcomes(&self.twin, word, start, meanwhiles, operation);
        let found = may_be.iter().position(|expected| *expected == got);
        assert!(
            found.is_some(),
            "{at}: {operation:?} on {word:?} from {start:?}, interrupted there by {meanwhiles:?}: {got:?}, expected {may_be:?}"
        );
        self.survived += u64::from(found > Some(0));
    }
    fn run_with_one_interruption(&mut self, call: &TestCall, case: (Word, &State, Operation)) {
        let (word, start, operation) = case;
        for instruction in &call.section.instructions {
            for while_trapped in Interruption::ALL {
                self.world.write(start);
                let cpu = word.cpu.unwrap_or(0);
                let run = || call.run(&self.world, word.number, operation);
                let (outcome, traps) = interrupted(instruction, &|| while_trapped.run(&self.world, cpu), run);
                if traps {
                    self.steps.add(call.section, instruction);
                    self.assert_expected_outcome(
                        outcome,
                        &call.section.name(instruction),
                        case,
                        &[while_trapped],
                    );
                }
            }
        }
    }
    fn run_with_two_interruptions(
        &mut self,
        call: &TestCall,
        case: (Word, &State, Operation),
        pairs: &[[Interruption; 2]],
    ) {
        let (word, start, operation) = case;
        let cpu = word.cpu.unwrap_or(0);
        let instructions = &call.section.instructions;
        for first in instructions {
            for (second, [then, again]) in
                instructions.iter().flat_map(|second| pairs.iter().map(move |both| (second, *both)))
            {
                self.world.write(start);
                let (outcome, traps) = run_interrupted_twice(
                    [first, second],
                    [&|| then.run(&self.world, cpu), &|| again.run(&self.world, cpu)],
                    || call.run(&self.world, word.number, operation),
                );
                if traps {
                    self.pairs += 1;
                    self.assert_expected_outcome(outcome, &call.section.name(second), case, &[then, again]);
                }
            }
        }
    }
}

/// The test covers every section of this program, including sections inlined into functions that the test does not
/// call. Each section runs for the first CPU, the last CPU and no CPU; for the first and the last class of a region;
/// and with stacks of different lengths.
///
/// If several copies of a section differ only in registers and addresses, only the first copy runs from all start
/// states. All copies of a section are interrupted at each of their instructions. With `USLAB_STRESS=full`, all copies
/// run from all start states.
#[test]
fn interrupted_stack_operation_completes_after_the_interruption() {
    run_test_alone(module_path!(), "interrupted_stack_operation_completes_after_the_interruption", || {
        pin_to_one_cpu();
        let sections = sections::all();
        make_code_writable(&sections);
        let (world, twin) = (World::new(), World::new());
        let starts = CLASSES.map(|class| start_states(&world, class));
        let (cpus, spare) = (Word::cpus(&world), Word::spare_words(&world));
        let mut all =
            AllSectionsTest { world, twin, steps: InterruptionCoverage::default(), survived: 0, pairs: 0 };
        let (mut forms, mut missed) = (BTreeSet::new(), 0);
        for section in &sections {
            let call = TestCall::new(section);
            let whole = forms.insert(section.form()) || is_long_test_run();
            // Takes every n-th start state, beginning with the last state, whose stack is full.
            for (class, operation) in CLASSES
                .into_iter()
                .flat_map(|class| call.operations(class).into_iter().map(move |operation| (class, operation)))
            {
                for (i, word) in cpus.iter().enumerate() {
                    let step = if whole && i == 0 || is_long_test_run() { 1 } else { 9 + 2 * (class + i) };
                    for start in starts[class].iter().rev().step_by(step) {
                        all.run_with_one_interruption(&call, (*word, start, operation));
                    }
                }
                for word in spare.iter().filter(|_| whole) {
                    all.run_with_one_interruption(&call, (*word, &starts[class][7], operation));
                    missed += 1;
                }
                let some = Interruption::ALL.into_iter().step_by(if is_long_test_run() { 1 } else { 5 });
                let then =
                    Interruption::ALL.into_iter().skip(1).step_by(if is_long_test_run() { 2 } else { 7 });
                let both: Vec<_> = some.flat_map(|one| then.clone().map(move |two| [one, two])).collect();
                let few = if is_long_test_run() { 5 } else { 17 };
                for start in starts[class].iter().rev().step_by(few).filter(|_| whole) {
                    all.run_with_two_interruptions(&call, (cpus[0], start, operation), &both);
                }
            }
        }
        assert_eq!(
            all.steps.uninterrupted_instructions(&sections),
            [""; 0],
            "each instruction of a section must be interrupted"
        );
        println!(
            "{} forms; an aborted attempt had widened the stack {} times; {} interrupted twice; {missed} on spare words",
            forms.len(),
            all.survived,
            all.pairs
        );
        assert!(all.survived > 0 && all.pairs > 10_000);
        assert!(missed > 0);
        assert_eq!(all.steps.sections.len(), sections.len());
        all.steps.end(&sections, 4, 100_000);
    });
}

// ---------------------------------------------------------------- the layer as a whole

/// A layer under test, with a record of the objects that threads own.
struct TestedLayer {
    table: Arc<Table<Heap>>,
    layer: Layer<TestRound>,
    supplier: TestSupplier,
    /// For each object number, true while a thread owns the object.
    out: Vec<AtomicBool>,
    allocs: Counter,
    frees: Counter,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc,
    /// Frees the object that the thread has owned for the longest time.
    Free,
    Drain,
    Reap,
    Purge,
    Shrink,
    /// Creates another layer and drops it while objects are on its stacks. The next layer then reuses the class number.
    Another,
}

impl TestedLayer {
    const ROUNDS: usize = 64;

    fn new(table: &Arc<Table<Heap>>) -> Self {
        Self {
            table: table.clone(),
            layer: Layer::new(table, Config::new(2, 1, 2)).unwrap(),
            supplier: TestSupplier(Mutex::new((1..=Self::ROUNDS).collect())),
            out: (0..=Self::ROUNDS).map(|_| AtomicBool::new(false)).collect(),
            allocs: Counter::new(0),
            frees: Counter::new(0),
        }
    }
    fn step(&self, step: Step, held: &mut OwnedRounds) {
        let Self { layer, supplier, .. } = self;
        match step {
            Step::Alloc => {
                let round = layer.alloc(supplier).expect("the supplier must have enough rounds");
                self.allocs.add(1);
                assert!(!self.out[round.0].swap(true, Relaxed), "{round:?} allocated twice");
                held.push(round);
            }
            Step::Free => {
                let Some(round) = held.take() else { return };
                assert!(self.out[round.0].swap(false, Relaxed), "{round:?} freed twice");
                self.frees.add(1);
                layer.free(supplier, round);
            }
            Step::Drain => layer.drain(supplier, 0..layer.cpus().count()),
            Step::Reap => _ = layer.reap(supplier),
            Step::Purge => layer.flush_all(supplier),
            Step::Shrink => layer.shrink(),
            Step::Another => {
                let layer: Layer<TestRound> = Layer::new(&self.table, Config::new(2, 1, 2)).unwrap();
                let supplier = TestSupplier(Mutex::new((1001..=1009).collect()));
                let got = [(); 3].map(|()| layer.alloc(&supplier).unwrap());
                assert!(
                    got.iter().all(|round| round.0 > 1000),
                    "{got:?} belongs to the layer that had the number before"
                );
                got.into_iter().for_each(|round| layer.free(&supplier, round));
            }
        }
    }
    /// Asserts that each object is either with a thread or with the supplier, and that the counts are exact.
    fn census(&self) {
        let stats = self.layer.stats();
        assert_eq!(
            (stats.allocs, stats.frees),
            (self.allocs.get(), self.frees.get()),
            "the counts are exact"
        );
        self.layer.flush_all(&self.supplier);
        let stats = self.layer.stats();
        assert_eq!((stats.in_magazines, stats.in_depot), (0, 0), "the drain leaves no rounds");
        let mut rounds = self.supplier.0.lock().clone();
        rounds.extend((1..=Self::ROUNDS).filter(|round| self.out[*round].load(Relaxed)));
        rounds.sort_unstable();
        assert_eq!(rounds, (1..=Self::ROUNDS).collect::<Vec<_>>(), "every round in one place");
    }
}

/// The list of objects that a thread owns. The list has enough capacity from the start, because a signal handler must
/// not allocate.
struct OwnedRounds {
    rounds: Vec<TestRound>,
    oldest: usize,
}
impl OwnedRounds {
    fn new() -> Self {
        Self { rounds: Vec::with_capacity(256), oldest: 0 }
    }
    fn push(&mut self, round: TestRound) {
        self.rounds.push(round);
    }
    fn take(&mut self) -> Option<TestRound> {
        let round = self.rounds.get(self.oldest).copied()?;
        self.oldest += 1;
        Some(round)
    }
}

use Step::{Alloc, Another, Drain, Free, Purge, Reap, Shrink};

/// The steps that the interrupted thread executes. The steps cause misses, growing stacks, depot accesses, fills and
/// flushes.
const SCRIPT: [&[Step]; 9] = [
    &[Alloc; 9],
    &[Free; 9],
    &[Shrink],
    &[Alloc; 6],
    &[Drain],
    &[Free; 4],
    &[Alloc; 5],
    &[Purge],
    &[Free; 7],
];
const OTHER_CPU_STEPS: [&[Step]; 12] = [
    &[],
    &[Drain],
    &[Reap, Reap],
    &[Purge],
    &[Shrink, Drain],
    &[Another],
    &[Alloc],
    &[Free],
    &[Alloc; 6],
    &[Free; 6],
    &[Alloc, Free, Free, Alloc],
    &[Drain, Another, Free, Free, Free, Free, Free, Alloc, Alloc, Free],
];

/// Interrupting an allocation or a free never loses an object, never hands out an object twice, and keeps the counts
/// exact. The test interrupts every instruction, and then runs the steps of another thread of the same CPU.
#[test]
fn interruption_at_any_instruction_loses_no_object() {
    run_test_alone(module_path!(), "interruption_at_any_instruction_loses_no_object", || {
        pin_to_one_cpu();
        let sections = sections::all();
        make_code_writable(&sections);
        let (script, table) = (SCRIPT.concat(), shadow::table(Cpus::os()));
        // Runs the script with one step interrupted at one instruction.
        let run = |at: usize, instruction: &Instruction, others: &[Step]| {
            let (game, mut mine, theirs) =
                (TestedLayer::new(&table), OwnedRounds::new(), RefCell::new(OwnedRounds::new()));
            (0..8).for_each(|_| game.step(Alloc, &mut theirs.borrow_mut()));
            let while_trapped = || others.iter().for_each(|step| game.step(*step, &mut theirs.borrow_mut()));
            let mut traps = false;
            for (i, step) in script.iter().enumerate() {
                if i == at {
                    ((), traps) = interrupted(instruction, &while_trapped, || game.step(*step, &mut mine));
                } else {
                    game.step(*step, &mut mine);
                }
            }
            game.census();
            traps
        };
        let mut steps = InterruptionCoverage::default();
        for at in 0..script.len() {
            for section in &sections {
                if !run(at, &section.instructions[0], &[]) {
                    continue;
                }
                for instruction in &section.instructions {
                    for others in OTHER_CPU_STEPS {
                        if run(at, instruction, others) {
                            steps.add(section, instruction);
                        }
                    }
                }
            }
        }
        steps.end(&sections, 5, 5_000);
    });
}
