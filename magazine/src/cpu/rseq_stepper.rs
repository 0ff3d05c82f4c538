//! Every section, interrupted at each of its instructions.
//!
//! A breakpoint inside a section does what a pre-emption does: the kernel delivers a signal, and so sends the thread to the
//! section's abort address. Before it gets there the handler runs what another thread of this CPU or a drain may have done
//! meanwhile; then the section runs again, with the registers that the aborted attempt left. What comes of it must be what
//! would have come without that attempt.
//!
//! Nothing here knows what a section looks like or how many there are: [`sections`] reads them from the program.
//! A breakpoint changes code that all threads share, so each test has a process of its own ([`alone`]).

use super::sections::{self, Section};
use super::*;
use crate::sync::AtomicPtr;
use iced_x86::Instruction;
use nix::sys::mman::{ProtFlags, mprotect};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::Command;

/// Runs `test` in a process in which nothing else runs: this program again, asked for that one test.
fn alone(name: &str, test: fn()) {
    const VARIABLE: &str = "USLAB_STEPPER";
    if mechanism() != Mechanism::Rseq {
        println!("no restartable sequences here: nothing to interrupt");
        return;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::{name}");
    if std::env::var_os(VARIABLE).is_some_and(|asked| *asked == *name) {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(VARIABLE, &name);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{name}: {}", output.status);
}

/// Keeps this thread on one CPU, whose number it returns.
fn stay() -> u32 {
    let cpu = usable()[0];
    pin(Pid::from_raw(0), &[cpu]);
    cpu as u32
}

// ---------------------------------------------------------------- breakpoints

/// A breakpoint that is met once.
struct Breakpoint<'a> {
    at: *mut u8,
    /// The byte that it stands in place of.
    byte: u8,
    meanwhile: &'a dyn Fn(),
    met: Counter,
}

/// The one that stands now.
static BREAKPOINT: AtomicPtr<Breakpoint<'static>> = AtomicPtr::new(core::ptr::null_mut());

impl Breakpoint<'_> {
    fn write(&self, byte: u8) {
        // SAFETY: the code of sections is writable here, and this thread alone runs it.
        unsafe { self.at.write_volatile(byte) };
    }
}

extern "C" fn trap(_: libc::c_int) {
    // SAFETY: a breakpoint stands in `interrupted` only, which keeps it.
    let breakpoint = unsafe { &*BREAKPOINT.load(Relaxed) };
    breakpoint.write(breakpoint.byte);
    breakpoint.met.add(1);
    (breakpoint.meanwhile)();
}

/// Makes the code of these sections writable, and breakpoints known.
fn prepare(sections: &[Section]) {
    const PAGE: usize = 4096;
    for section in sections {
        let (start, end) = (section.code.start / PAGE * PAGE, section.code.end.next_multiple_of(PAGE));
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: whole pages of this program's code, which stay what they are.
        unsafe { mprotect(NonNull::new(start as *mut libc::c_void).unwrap(), end - start, all) }.unwrap();
    }
    let action = SigAction::new(SigHandler::Handler(trap), SaFlags::empty(), SigSet::empty());
    // SAFETY: what a handler runs here interrupts a section, and a section holds no lock and allocates nothing.
    unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
}

/// Runs `operation`, interrupted where it first comes to `instruction`: there `meanwhile` runs. `false` if it does not come
/// there.
fn interrupted<T>(
    instruction: &Instruction,
    meanwhile: &dyn Fn(),
    operation: impl FnOnce() -> T,
) -> (T, bool) {
    const INT3: u8 = 0xcc;
    let at = instruction.ip() as *mut u8;
    // SAFETY: code can be read.
    let breakpoint = Breakpoint { at, byte: unsafe { at.read_volatile() }, meanwhile, met: Counter::new(0) };
    BREAKPOINT.store((&raw const breakpoint).cast_mut().cast(), Relaxed);
    breakpoint.write(INT3);
    let outcome = operation();
    breakpoint.write(breakpoint.byte);
    (outcome, breakpoint.met.get() > 0)
}

/// What was interrupted, for the floors.
#[derive(Default)]
struct Steps {
    sections: BTreeSet<usize>,
    instructions: BTreeSet<u64>,
    interrupted: u64,
}

impl Steps {
    fn add(&mut self, section: &Section, instruction: &Instruction) {
        self.sections.insert(section.code.start);
        self.instructions.insert(instruction.ip());
        self.interrupted += 1;
    }
    /// Instructions of sections that were entered, at which nothing was interrupted.
    fn missed(&self, all: &[Section]) -> Vec<String> {
        all.iter()
            .filter(|section| self.sections.contains(&section.code.start))
            .flat_map(|section| section.instructions.iter().map(move |one| (section, one)))
            .filter(|(_, instruction)| !self.instructions.contains(&instruction.ip()))
            .map(|(section, instruction)| section.name(instruction))
            .collect()
    }
    /// Prints what was reached, and asserts that it was enough.
    fn end(&self, all: &[Section], sections: usize, interrupted: u64) {
        println!(
            "{} of {} sections, {} instructions, {} interrupted operations",
            self.sections.len(),
            all.len(),
            self.instructions.len(),
            self.interrupted
        );
        assert!(self.sections.len() >= sections, "fewer than {sections} sections were entered");
        assert!(self.interrupted >= interrupted, "fewer than {interrupted} operations were interrupted");
    }
}

// ---------------------------------------------------------------- one operation

/// What happens on the CPU while a section of it is interrupted.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    /// A drain takes what all slots hold.
    Drain,
    /// Both magazines of a slot left, and came back with the rounds that they had, but
    /// made for one more,
    Larger(Pair),
    /// or for just these.
    Smaller(Pair),
    /// They left and came back with other rounds.
    Refilled(Pair),
    /// Another operation from beginning to end.
    Whole(Operation),
}

impl Meanwhile {
    fn all(world: &World, which: Which, pair: Pair) -> Vec<Self> {
        let [.., one, other] = world.spare();
        let swapped = Pair { loaded: pair.previous, previous: pair.loaded };
        let exchanged = Pair { loaded: one, previous: pair.loaded };
        let others = [
            Self::Nothing,
            Self::Drain,
            Self::Larger(pair),
            Self::Smaller(pair),
            Self::Refilled(pair),
            Self::Whole(Operation::Replace(which, pair, swapped, Fill::Any)),
            Self::Whole(Operation::Replace(which, pair, exchanged, Fill::Any)),
            Self::Whole(Operation::Replace(which, pair, Pair { loaded: other, previous: one }, Fill::Any)),
        ];
        let on_slots = Which::ALL.into_iter().flat_map(|which| {
            [Self::Whole(Operation::Pop(which)), Self::Whole(Operation::Push(which, ball(99)))]
        });
        others.into_iter().chain(on_slots).collect()
    }

    fn run(self, store: &Store<Heap>, cpu: u32) {
        let both = |pair: Pair| [pair.loaded, pair.previous].map(|num| store.get(num));
        match self {
            Self::Nothing => {}
            Self::Drain => Which::ALL.into_iter().for_each(|which| _ = store.take(cpu, which)),
            Self::Larger(pair) => both(pair).iter().for_each(|m| m.capacity.set(CAPACITY + 1)),
            Self::Smaller(pair) => both(pair).iter().for_each(|m| m.capacity.set(m.len().max(1))),
            Self::Refilled(pair) => both(pair).iter().for_each(|m| {
                if m.owner_pop().is_none() {
                    m.owner_push(ball(98));
                }
            }),
            Self::Whole(operation) => _ = operation.in_rust(store, cpu),
        }
    }
}

/// A slot's magazines in all fills, by the fills of loaded and previous.
fn pairs(world: &World) -> impl Iterator<Item = Pair> {
    let [empty, some, _, full, empty_too, some_too, _, full_too, ..] = world.spare();
    let previous = [empty_too, some_too, full_too];
    [empty, some, full].into_iter().flat_map(move |loaded| previous.map(|previous| Pair { loaded, previous }))
}

fn operations(world: &World, which: Which, pair: Pair) -> [Operation; 6] {
    let [.., one, _] = world.spare();
    let new = Pair { loaded: one, previous: pair.loaded };
    let other = Pair { loaded: pair.previous, previous: pair.loaded };
    [
        Operation::Pop(which),
        Operation::Push(which, ball(77)),
        Operation::Replace(which, pair, new, Fill::Any),
        Operation::Replace(which, pair, new, Fill::Empty),
        Operation::Replace(which, pair, new, Fill::Full),
        Operation::Replace(which, other, new, Fill::Any),
    ]
}

/// Same answer, same memory as the portable body gives that runs once, after what happened meanwhile.
#[test]
fn an_interrupted_operation_does_what_it_does_after_what_interrupted_it() {
    alone("an_interrupted_operation_does_what_it_does_after_what_interrupted_it", || {
        let cpu = stay();
        let sections = sections::all();
        prepare(&sections);
        let cpus = Cpus::os().count();
        let (world, twin) = (World::new(cpus), World::new(cpus));
        let fast = Fast::new(&world.store, Mechanism::Rseq);
        let (mut begin, mut before, mut after, mut expected) = (vec![], vec![], vec![], vec![]);
        world.read(&mut begin);
        let mut steps = Steps::default();
        let starts: Vec<(Which, Pair)> =
            Which::ALL.into_iter().flat_map(|which| pairs(&world).map(move |pair| (which, pair))).collect();
        for (which, pair) in starts {
            world.write(&begin);
            world.store.slot(cpu).unwrap().pairs[which as usize].store(pair.word(), Relaxed);
            world.read(&mut before);
            for operation in operations(&world, which, pair) {
                let run = |instruction: &Instruction, meanwhile: Meanwhile| {
                    world.write(&before);
                    interrupted(instruction, &|| meanwhile.run(&world.store, cpu), || {
                        operation.in_assembly(&world.store, fast)
                    })
                };
                for section in &sections {
                    if !run(&section.instructions[0], Meanwhile::Nothing).1 {
                        continue;
                    }
                    for instruction in &section.instructions {
                        for meanwhile in Meanwhile::all(&world, which, pair) {
                            let (outcome, met) = run(instruction, meanwhile);
                            if !met {
                                continue;
                            }
                            steps.add(section, instruction);
                            world.read(&mut after);
                            twin.write(&before);
                            meanwhile.run(&twin.store, cpu);
                            let outcome_expected = operation.in_rust(&twin.store, cpu);
                            twin.read(&mut expected);
                            [&mut after, &mut expected].into_iter().for_each(|words| world.visible(words));
                            let same = world
                                .used
                                .iter()
                                .all(|range| after[range.clone()] == expected[range.clone()]);
                            assert!(
                                outcome == outcome_expected && same,
                                "{}: {operation:?}, interrupted there by {meanwhile:?}: {outcome:?}, expected {outcome_expected:?}{}",
                                section.name(instruction),
                                if same { "" } else { ", and other memory" }
                            );
                        }
                    }
                }
            }
        }
        assert_eq!(steps.missed(&sections), [""; 0], "never interrupted there");
        steps.end(&sections, 9, 10_000);
    });
}

// ---------------------------------------------------------------- the layer as a whole

/// A layer, and who has which ball.
struct Table {
    layer: Layer<Ball>,
    shelf: Shelf,
    /// By ball: whether somebody has it.
    out: Vec<AtomicBool>,
    allocs: Counter,
    frees: Counter,
}

/// What a thread does with a layer.
#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc,
    /// The ball that it has had longest.
    Free,
    Drain,
    Reap,
    Purge,
    Grow,
    Shrink,
}

impl Table {
    const BALLS: usize = 64;

    fn new() -> Self {
        let cpus = Cpus::os();
        let config = Config { largest: 4, ..Config::new(&cpus, 2, 1, 2) };
        let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
        Self {
            layer: Layer::new(cpus, config, memory).unwrap(),
            shelf: Shelf(Mutex::new((1..=Self::BALLS).collect())),
            out: (0..=Self::BALLS).map(|_| AtomicBool::new(false)).collect(),
            allocs: Counter::new(0),
            frees: Counter::new(0),
        }
    }
    fn step(&self, step: Step, held: &mut Hand) {
        let Self { layer, shelf, .. } = self;
        match step {
            Step::Alloc => {
                let round = layer.alloc(shelf).expect("the shelf has balls for all");
                self.allocs.add(1);
                assert!(!self.out[round.0].swap(true, Relaxed), "{round:?} handed out twice");
                held.push(round);
            }
            Step::Free => {
                let Some(round) = held.take() else { return };
                assert!(self.out[round.0].swap(false, Relaxed), "{round:?} freed twice");
                self.frees.add(1);
                layer.free(shelf, round);
            }
            Step::Drain => layer.drain(shelf, 0..layer.cpus().count()),
            Step::Reap => _ = layer.reap(shelf),
            Step::Purge => layer.purge(shelf),
            Step::Grow => layer.grow(),
            Step::Shrink => layer.shrink(),
        }
    }
    /// Every ball in one place, and the counts exact.
    fn census(&self) {
        let stats = self.layer.stats();
        assert_eq!(
            (stats.allocs, stats.frees),
            (self.allocs.get(), self.frees.get()),
            "the counts are exact"
        );
        self.layer.purge(&self.shelf);
        let stats = self.layer.stats();
        assert_eq!((stats.in_magazines, stats.in_stock, stats.in_depot), (0, 0, 0), "nothing is left behind");
        let mut balls = self.shelf.0.lock().clone();
        balls.extend((1..=Self::BALLS).filter(|ball| self.out[*ball].load(Relaxed)));
        balls.sort_unstable();
        assert_eq!(balls, (1..=Self::BALLS).collect::<Vec<_>>(), "every ball in one place");
    }
}

/// The balls of a thread. It allocates nothing while a handler runs.
struct Hand {
    balls: Vec<Ball>,
    oldest: usize,
}
impl Hand {
    fn new() -> Self {
        Self { balls: Vec::with_capacity(256), oldest: 0 }
    }
    fn push(&mut self, ball: Ball) {
        self.balls.push(ball);
    }
    fn take(&mut self) -> Option<Ball> {
        let ball = self.balls.get(self.oldest).copied()?;
        self.oldest += 1;
        Some(ball)
    }
}

use Step::{Alloc, Drain, Free, Grow, Purge, Reap, Shrink};

/// What the interrupted thread does. It misses, exchanges with the stock and the depot, fills and flushes.
const SCRIPT: [&[Step]; 9] =
    [&[Alloc; 9], &[Free; 9], &[Grow], &[Alloc; 6], &[Drain], &[Free; 4], &[Alloc; 5], &[Purge], &[Free; 7]];
/// What others do meanwhile.
const OTHERS: [&[Step]; 12] = [
    &[],
    &[Drain],
    &[Reap, Reap],
    &[Purge],
    &[Grow, Drain],
    &[Shrink, Drain],
    &[Alloc],
    &[Free],
    &[Alloc; 6],
    &[Free; 6],
    &[Alloc, Free, Free, Alloc],
    &[Drain, Grow, Free, Free, Free, Free, Free, Alloc, Alloc, Free],
];

/// Whatever others of the same CPU do while a thread is interrupted in an allocation or a free, at whatever instruction: nothing
/// is lost or handed out twice, and the counts are exact.
#[test]
fn a_layer_interrupted_anywhere_loses_nothing() {
    alone("a_layer_interrupted_anywhere_loses_nothing", || {
        stay();
        let sections = sections::all();
        prepare(&sections);
        let script = SCRIPT.concat();
        // Runs the script; interrupted in one of its steps, at one instruction.
        let run = |at: usize, instruction: &Instruction, others: &[Step]| {
            let (table, mut mine, theirs) = (Table::new(), Hand::new(), RefCell::new(Hand::new()));
            (0..8).for_each(|_| table.step(Alloc, &mut theirs.borrow_mut()));
            let meanwhile = || others.iter().for_each(|step| table.step(*step, &mut theirs.borrow_mut()));
            let mut met = false;
            for (i, step) in script.iter().enumerate() {
                if i == at {
                    ((), met) = interrupted(instruction, &meanwhile, || table.step(*step, &mut mine));
                } else {
                    table.step(*step, &mut mine);
                }
            }
            table.census();
            met
        };
        let mut steps = Steps::default();
        for at in 0..script.len() {
            for section in &sections {
                if !run(at, &section.instructions[0], &[]) {
                    continue;
                }
                for instruction in &section.instructions {
                    for others in OTHERS {
                        if run(at, instruction, others) {
                            steps.add(section, instruction);
                        }
                    }
                }
            }
        }
        steps.end(&sections, 6, 5_000);
    });
}

/// How it shows when `replace` compares with the capacity that the magazine had before an abort: meanwhile the pair leaves,
/// magazines grow, and the same pair comes back, with as many rounds in the previous magazine as once were a full one.
#[test]
fn a_partly_filled_magazine_does_not_leave_as_a_full_one() {
    alone("a_partly_filled_magazine_does_not_leave_as_a_full_one", || {
        let cpu = stay();
        let sections = sections::all();
        prepare(&sections);
        let (mut interruptions, mut came_back) = (0, 0);
        for instruction in sections.iter().flat_map(|section| &section.instructions) {
            let cpus = Cpus::os();
            let config = Config { largest: 6, ..Config::new(&cpus, 3, 0, 4) };
            let memory = Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap();
            let layer: Layer<Ball> = Layer::new(cpus, config, memory).unwrap();
            let shelf = Shelf(Mutex::new((1..=100).collect()));
            let free = || {
                let number = shelf.0.lock().pop().unwrap();
                layer.free(&shelf, Ball(number));
            };
            let pair = || layer.store.pair(cpu, Which::Rounds);
            (0..6).for_each(|_| free());
            let full = pair();
            let back = Counter::new(0);
            let meanwhile = || {
                layer.drain(&shelf, 0..cpus.count());
                layer.grow();
                (0..7).for_each(|_| free());
                (0..2).for_each(|_| _ = layer.alloc(&shelf));
                free();
                // A thread whose free missed has looked at the pair; its swap comes after three allocations.
                let seen = pair();
                (0..3).for_each(|_| _ = layer.alloc(&shelf));
                let swapped = Pair { loaded: seen.previous, previous: seen.loaded };
                replace(&layer.store, layer.front.fast, Which::Rounds, seen, swapped, Fill::Any);
                let previous = layer.store.get(pair().previous);
                back.set(u64::from(pair() == full && (previous.len(), previous.capacity()) == (3, 6)));
            };
            // Both magazines are full: one leaves for the depot.
            let ((), met) = interrupted(instruction, &meanwhile, free);
            interruptions += u32::from(met);
            came_back += back.get();
            while let Some(num) = layer.depots[0].take(&crate::Operation::new(), &layer.store, Fill::Full) {
                assert!(layer.store.get(num).is(Fill::Full), "a partly filled magazine left as a full one");
            }
        }
        println!("{interruptions} interruptions, {came_back} times the pair came back");
        assert!(interruptions >= 30 && came_back >= 20);
    });
}
