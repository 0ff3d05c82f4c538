//! The assembly against the portable bodies, in a storm of signals and migrations; and threads that have no slot.

#[path = "../../../tests/sections/mod.rs"]
mod sections;
#[path = "rseq_stepper.rs"]
mod stepper;

use super::*;
use crate::ball::Ball;
use crate::cpu::Cpus;
use crate::layer::{Config, Layer, Supplier};
use crate::memory::Heap;
use crate::paths;
use crate::slot::{Commit, Num};
use crate::sync::{AtomicBool, Counter, Mutex, Ordering::Relaxed};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::{Pid, gettid};
use std::time::{Duration, Instant};

const CAPACITY: u32 = 3;
/// What a magazine may grow to.
const ROOM: u32 = CAPACITY + 1;
/// Magazines that are in no slot.
const SPARE: usize = 10;

/// What an operation does, with numbers that exist.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Pop(Which),
    Push(Which, NonNull<u8>),
    Replace(Which, Pair, Pair, Fill),
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Pop(Pop),
    Push(Push),
    Replace(Replace),
}

impl Operation {
    fn in_assembly(self, store: &Store<Heap>, fast: Fast) -> Outcome {
        match self {
            Self::Pop(which) => Outcome::Pop(pop(store, fast, which)),
            Self::Push(which, round) => Outcome::Push(push(store, fast, which, round)),
            Self::Replace(which, old, new, leaving) => {
                Outcome::Replace(replace(store, fast, which, old, new, leaving))
            }
        }
    }
    fn in_rust(self, store: &Store<Heap>, cpu: u32) -> Outcome {
        match self {
            Self::Pop(which) => Outcome::Pop(store.pop_body(cpu, which, Commit::Done)),
            Self::Push(which, round) => Outcome::Push(store.push_body(cpu, which, round, Commit::Done)),
            Self::Replace(which, old, new, leaving) => {
                Outcome::Replace(store.replace_body(cpu, which, old, new, leaving, Commit::Done))
            }
        }
    }
}

/// A store with magazines of every fill in all slots, and what it takes to copy and compare it.
struct World {
    store: Store<Heap>,
    magazines: Vec<Num>,
    /// What is used of the table, and the magazines: in words from the base.
    used: [std::ops::Range<usize>; 2],
}

impl World {
    fn new(cpus: u32) -> Self {
        let count = cpus * 4 + SPARE as u32;
        let bytes = Store::<Heap>::footprint(Cpus::os().slots(), [(ROOM, count)].into_iter());
        let store =
            Store::new(cpus, Cpus::os().slots(), Heap::new(bytes).unwrap(), count, ROOM, CAPACITY).unwrap();
        let magazines: Vec<Num> =
            (0..count).map(|_| store.create(&paths::Operation::new(), CAPACITY, false).unwrap()).collect();
        for (i, num) in magazines.iter().enumerate() {
            (0..i % 4).for_each(|r| assert!(store.get(*num).owner_push(ball(100 * i + r + 1))));
        }
        for cpu in 0..cpus {
            let of = |i: u32| magazines[(cpu * 4 + i) as usize];
            let pairs = &store.slot(cpu).unwrap().pairs;
            pairs[0].store(Pair { loaded: of(0), previous: of(1) }.word(), Relaxed);
            pairs[1].store(Pair { loaded: of(2), previous: Num::SENTINEL }.word(), Relaxed);
            pairs[2].store(Pair { loaded: of(3), previous: Num::SENTINEL }.word(), Relaxed);
        }
        let slots = (FIRST_SLOT + cpus as usize * size_of::<Slot>()) / 8;
        let used = [0..slots, magazines[0].0 as usize..bytes / 8];
        Self { store, magazines, used }
    }
    /// Magazines that are in no slot, of 0, 1, 2, 3, 0, 1 ... rounds.
    fn spare(&self) -> [Num; SPARE] {
        *self.magazines.last_chunk().unwrap()
    }
    fn read(&self, into: &mut Vec<u64>) {
        into.resize(self.used[1].end, 0);
        for range in self.used.clone() {
            // SAFETY: the heap is that long, zeroed at first, and this thread alone uses it.
            into[range.clone()].copy_from_slice(unsafe {
                core::slice::from_raw_parts(
                    self.store.base().cast::<u64>().as_ptr().add(range.start),
                    range.len(),
                )
            });
        }
    }
    /// What is left of `words` without the cells beyond a magazine's length: an aborted push may have written there.
    fn visible(&self, words: &mut [u64]) {
        for num in &self.magazines {
            let cells = &mut words[num.0 as usize..][..ROUNDS / 8 + ROOM as usize];
            let len = (cells[0] & 0xffff) as usize;
            cells[ROUNDS / 8 + len..].fill(0);
        }
    }
    fn write(&self, from: &[u64]) {
        for range in self.used.clone() {
            // SAFETY: as in `read`; any words are valid slots and magazines of the same layout.
            unsafe {
                let to = self.store.base().cast::<u64>().add(range.start);
                to.copy_from_nonoverlapping(NonNull::from(&from[range.start]), range.len());
            }
        }
    }
}

fn ball(n: usize) -> NonNull<u8> {
    NonNull::new(core::ptr::without_provenance_mut(n)).unwrap()
}

struct Dice(u64);
impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

fn operation(dice: &mut Dice, world: &World, cpus: u32) -> Operation {
    let which = dice.of(&Which::ALL);
    match dice.below(5) {
        0 | 1 => Operation::Pop(which),
        2 | 3 => Operation::Push(which, ball(1 + dice.below(1 << 40))),
        _ => {
            let mut any = || if dice.below(8) == 0 { Num::SENTINEL } else { dice.of(&world.magazines) };
            let (new, guess) =
                (Pair { loaded: any(), previous: any() }, Pair { loaded: any(), previous: any() });
            let held = world.store.pair(dice.below(cpus as usize) as u32, which);
            let old = if dice.below(4) == 0 { guess } else { held };
            Operation::Replace(which, old, new, dice.of(&[Fill::Any, Fill::Empty, Fill::Full]))
        }
    }
}

/// Signals to this thread every 40 us while the value lives.
fn storm() -> Timer {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, so it is safe in a signal.
    unsafe { sigaction(Signal::SIGALRM, &action) }.unwrap();
    let to =
        SigevNotify::SigevThreadId { signal: Signal::SIGALRM, thread_id: gettid().as_raw(), si_value: 0 };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(to)).unwrap();
    let every = TimeSpec::from_duration(Duration::from_micros(40));
    timer.set(Expiration::Interval(every), TimerSetTimeFlags::empty()).unwrap();
    timer
}

fn usable() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    (0..CpuSet::count()).filter(|c| set.is_set(*c).unwrap()).collect()
}
fn pin(thread: Pid, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|c| set.set(*c).unwrap());
    sched_setaffinity(thread, &set).unwrap();
}

/// An abort runs a section again from its restart label: what it reads there must still be what it was.
#[test]
fn no_section_writes_what_its_restart_reads() {
    let checked = sections::check();
    assert!(checked.sections >= 50 && checked.instructions >= 500, "{checked:?}");
}

/// Every operation must have done what the portable body does on one of the CPUs: same answer, same memory.
#[test]
fn sections_do_what_the_portable_bodies_do() {
    if mechanism() != Mechanism::Rseq {
        println!("no restartable sequences here: nothing to compare");
        return;
    }
    let cpus = Cpus::os().count();
    let (world, twin) = (World::new(cpus), World::new(cpus));
    let fast = Fast::new(&world.store, Mechanism::Rseq);
    let (mut dice, mut before, mut after, mut tried) = (Dice(7), vec![], vec![], vec![]);
    let (stop, me, usable, aborts_before) = (AtomicBool::new(false), gettid(), usable(), aborts());
    let (mut done, mut seen) = (0u64, 0u64);
    let deadline = Instant::now() + Duration::from_secs(20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(3);
            while !stop.load(Relaxed) {
                pin(me, &[dice.of(&usable)]);
                std::thread::sleep(Duration::from_micros(100));
            }
            pin(me, &usable);
        });
        let timer = storm();
        let restarted = |n| aborts() >= aborts_before + n;
        while Instant::now() < deadline && (done < 400_000 || !restarted(10)) {
            world.read(&mut before);
            let operation = operation(&mut dice, &world, cpus);
            let outcome = operation.in_assembly(&world.store, fast);
            world.read(&mut after);
            world.visible(&mut after);
            let here = cpu_id();
            let found = [here].into_iter().chain((0..cpus).filter(|c| *c != here)).find(|cpu| {
                twin.write(&before);
                let same = operation.in_rust(&twin.store, *cpu) == outcome;
                twin.read(&mut tried);
                twin.visible(&mut tried);
                same && world.used.iter().all(|range| tried[range.clone()] == after[range.clone()])
            });
            if found.is_none() {
                stop.store(true, Relaxed);
            }
            assert!(found.is_some(), "{operation:?} gave {outcome:?}, as on no CPU");
            seen |= 1 << found.unwrap_or(0).min(63);
            done += 1;
        }
        drop(timer);
        stop.store(true, Relaxed);
    });
    let restarts = aborts() - aborts_before;
    println!("{done} operations compared, {restarts} restarts");
    assert!(restarts > 0, "no section was ever restarted");
    assert_eq!(seen.count_ones() as usize, usable.len().min(64), "every CPU's slot was used");
}

struct Shelf(Mutex<Vec<usize>>);
impl Supplier<Ball> for Shelf {
    fn fill(&self, op: &paths::Operation, _: u32, max: usize, mut put: impl FnMut(Ball)) -> usize {
        op.did(paths::Path::Slab);
        let mut balls = self.0.lock();
        let n = max.min(balls.len());
        (0..n).for_each(|_| put(Ball(balls.pop().unwrap())));
        n
    }
    fn flush(&self, op: &paths::Operation, rounds: impl Iterator<Item = Ball>) {
        op.did(paths::Path::Slab);
        self.0.lock().extend(rounds.map(|ball| ball.0));
    }
}

/// 100 balls through a layer by a thread that has no slot: all go round the magazines, none waits for ever.
fn goes_round(layer: &Layer<Ball>, shelf: &Shelf) {
    let before = layer.stats();
    let held: Vec<_> = (0..100).map(|_| layer.alloc(shelf).unwrap()).collect();
    held.into_iter().for_each(|b| layer.free(shelf, b));
    let stats = layer.stats();
    assert_eq!((stats.allocs - before.allocs, stats.frees - before.frees), (100, 100));
    assert_eq!((stats.paths.slab - before.paths.slab, stats.paths.cpu), (200, before.paths.cpu));
    assert_eq!(stats.busy - before.busy, 200);
    assert_eq!(stats.in_magazines, before.in_magazines);
}

fn layer(cpus: Cpus) -> Layer<Ball> {
    let config = Config::new(&cpus, 8, 2, 2);
    Layer::new(cpus, config, Heap::new(Layer::<Ball>::footprint(&cpus, &config)).unwrap()).unwrap()
}

#[test]
fn a_thread_without_a_registration_goes_round_the_magazines() {
    if mechanism() != Mechanism::Rseq {
        return;
    }
    let (layer, shelf) = (layer(Cpus::os()), Shelf(Mutex::new((1..=1000).collect())));
    // Full magazines everywhere, so that a slow path which believed in them would try to swap them in for ever.
    let held: Vec<_> = (0..200).map(|_| layer.alloc(&shelf).unwrap()).collect();
    held.into_iter().for_each(|b| layer.free(&shelf, b));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let area = registration().unwrap();
            let unregistered = {
                let here: usize;
                // SAFETY: the thread pointer's first word is itself.
                unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) here, options(nostack, readonly)) };
                // SAFETY: gives up this thread's own registration, with the libc's size and signature.
                unsafe {
                    libc::syscall(libc::SYS_rseq, here.wrapping_add_signed(area), 32, 1, 0x5305_3053_u32)
                }
            };
            assert_eq!(unregistered, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(cpu_id(), u32::MAX);
            goes_round(&layer, &shelf);
            layer.drain(&shelf, 0..layer.cpus().count());
            layer.reap(&shelf);
        });
    });
    layer.purge(&shelf);
    assert_eq!(shelf.0.lock().len(), 1000);
}

#[test]
fn a_cpu_beyond_the_table_goes_round_the_magazines() {
    let usable = usable();
    if mechanism() != Mechanism::Rseq || usable.iter().all(|c| *c == 0) {
        return;
    }
    let one = Cpus { count: 1, ..Cpus::os() };
    let (layer, shelf) = (layer(one), Shelf(Mutex::new((1..=1000).collect())));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(Pid::from_raw(0), &[*usable.last().unwrap()]);
            goes_round(&layer, &shelf);
        });
    });
}

/// What the environment and the libc say is what is chosen, and a layer of simulated CPUs never uses sections.
#[test]
fn the_mechanism_follows_the_environment() {
    let off = std::env::var_os("USLAB_RSEQ").is_some_and(|v| v == "off");
    let expected = registration().is_some() && !off;
    assert_eq!(mechanism() == Mechanism::Rseq, expected);
    assert_eq!(layer(Cpus::os()).stats().mechanism, mechanism());
    let simulated = layer(Cpus::simulated(2, 1).unwrap());
    assert_eq!(simulated.front.fast.base, NonNull::from(&NOWHERE).cast());
    assert_eq!(simulated.front.fast.pop::<ROUND>(), None);
    assert!(!simulated.front.fast.push::<ROUND>(ball(1)));
}
