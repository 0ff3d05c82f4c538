//! Tests that compare the assembly sections with the portable code, under many signals and migrations. Other tests run
//! threads without a region.

#[path = "../../../tests/kit/sections.rs"]
mod sections;
#[path = "rseq_stepper.rs"]
mod stepper;

use super::registration::REFUSED;
use super::*;
use crate::cpu::Cpus;
use crate::layer::{Config, Layer, Supplier};
use crate::memory::Heap;
use crate::region::{Commit, LEN_MASK, LIMIT, OP_STEP, ROUND, Region};
use crate::shadow;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering::Relaxed};
use crate::table::{DrainScope, Table};
use crate::test_round::TestRound;
use crate::tracepoints;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Pid, gettid};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) static FENCE_COUNT: Counter = Counter::new(0);

/// Maximum number of objects on a stack in a [`World`].
const REACH: u16 = 6;
/// The indices of the two classes of a [`World`].
const CLASSES: [usize; 2] = [0, 1];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Pop(usize),
    Push(usize, NonNull<u8>),
    PushBatch(usize, usize),
    PopBatch(usize, usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Pop(Option<NonNull<u8>>),
    Push(bool),
    /// The popped objects; empty if the pop failed.
    PopBatch(Vec<NonNull<u8>>),
}

impl Operation {
    fn batch(n: usize) -> [NonNull<u8>; 4] {
        [200, 201, 202, 203].map(|at| round(10 * n + at))
    }
    fn run_assembly(self, world: &World) -> Outcome {
        let World { table, classes, pcpu, .. } = world;
        match self {
            Self::Pop(class) => Outcome::Pop(pcpu.pop(classes[class])),
            Self::Push(class, round) => Outcome::Push(pcpu.push(classes[class], round)),
            Self::PushBatch(class, n) => {
                Outcome::Push(push_batch(table, *pcpu, classes[class], &Self::batch(n)[..n]))
            }
            Self::PopBatch(class, n) => {
                // `into` has one place more than a batch has objects, so that a write past the batch is
                // detected.
                let mut into = [NonNull::dangling(); 4];
                let popped = pcpu.pop_batch(classes[class], n as u32, into.as_mut_ptr());
                let written = into.into_iter().filter(|place| popped && *place != NonNull::dangling());
                Outcome::PopBatch(written.collect())
            }
        }
    }
    fn run_portable_code(self, world: &World, cpu: u32) -> Outcome {
        let region = world.table.region(cpu).unwrap();
        match self {
            Self::Pop(class) => Outcome::Pop(region.pop(world.classes[class], Commit::Done)),
            Self::Push(class, round) => Outcome::Push(region.push(world.classes[class], round, Commit::Done)),
            Self::PushBatch(class, n) => {
                let (class, rounds) = (world.classes[class], &Self::batch(n)[..n]);
                Outcome::Push(region.push_batch(class, rounds, Commit::Done))
            }
            Self::PopBatch(class, n) => {
                let mut into = Magazine::new();
                region.pop_batch(world.classes[class], n as u32, &mut into, Commit::Done);
                Outcome::PopBatch(into.rounds().to_vec())
            }
        }
    }
}

/// The contents of a region that sections may read or write. The copy leaves out stack entries above the length,
/// because an aborted push may have written them.
#[derive(Clone, Debug, Default, PartialEq)]
struct SectionState {
    committed: usize,
    heads: [u64; 2],
    caps: [u32; 2],
    limits: [u32; 2],
    places: [Vec<Option<NonNull<u8>>>; 2],
}

#[derive(Clone, Debug, PartialEq)]
struct State {
    cpus: Vec<SectionState>,
}

/// A table under test, its first and last class, and the data to copy and compare its contents.
struct World {
    table: Table<Heap>,
    classes: [Class; 2],
    pcpu: PcpuPtr,
    bytes: usize,
    /// For each CPU, the address of the region to which its pointer leads when no drain runs.
    homes: Vec<NonNull<u8>>,
}

impl World {
    const REGION: usize = 64 << 10;

    fn new() -> Self {
        // Registers this thread if the libc has not registered it, because every section of an unregistered
        // thread misses.
        cpu_id();
        let cpus = Cpus::os();
        let bytes = Table::<Heap>::footprint(&cpus, Self::REGION);
        let table = Table::new(cpus, Self::REGION, Heap::new(bytes).unwrap()).unwrap();
        let classes: Vec<Class> = core::iter::from_fn(|| table.class(REACH)).collect();
        let classes = [classes[0], classes[classes.len() - 1]];
        let pcpu = PcpuPtr::new(&table, Words::Always);
        // SAFETY: the table has a word for each CPU, and no drain runs.
        let home =
            |cpu| unsafe { table.words_of(Words::Always).cast::<NonNull<u8>>().add(cpu as usize).read() };
        let homes = (0..table.cpus().count()).map(home).collect();
        Self { table, classes, pcpu, bytes, homes }
    }
    fn cpus(&self) -> u32 {
        self.table.cpus().count()
    }
    fn base(&self, cpu: u32) -> NonNull<u8> {
        self.homes[cpu as usize]
    }
    fn set_cpu_word(&self, cpu: u32, to: NonNull<u8>) {
        // SAFETY: the table has a word for each CPU, and only this thread uses the world.
        unsafe { self.table.words_of(Words::Always).cast::<NonNull<u8>>().add(cpu as usize).write(to) };
    }
    /// Points the per-CPU pointer of `cpu` to the empty region, as a running drain does.
    fn detach_region(&self, cpu: u32) {
        // SAFETY: each table has spare words, which point to the empty region.
        self.set_cpu_word(cpu, unsafe { self.table.spare_words().cast::<NonNull<u8>>().read() });
    }
    fn snapshot(&self) -> State {
        let look = |region: Region<'_>| SectionState {
            committed: region.committed(),
            heads: self.classes.map(|class| region.head(class)),
            caps: self.classes.map(|class| region.cap(class)),
            limits: self.classes.map(|class| region.limit(class)),
            places: self.classes.map(|class| {
                let len = (region.head(class) & LEN_MASK) as u32;
                (0..=len).map(|i| region.round(class, i)).collect()
            }),
        };
        State { cpus: (0..self.cpus()).map(|cpu| look(self.table.region(cpu).unwrap())).collect() }
    }
    fn write(&self, state: &State) {
        for (cpu, look) in (0..).zip(&state.cpus) {
            self.set_cpu_word(cpu, self.base(cpu));
            self.table.region(cpu).unwrap().set_committed(look.committed);
            for at in CLASSES {
                let (class, base) = (self.classes[at], self.base(cpu));
                // SAFETY: the words are in the region, where any value is valid, and only this thread uses the world.
                unsafe {
                    let head = base.add(class.stack as usize);
                    head.cast().write(look.heads[at]);
                    head.sub(CAP).cast().write(look.caps[at]);
                    head.sub(LIMIT).cast().write(look.limits[at]);
                    for (i, round) in look.places[at].iter().enumerate() {
                        head.add(NULL + ROUND * i).cast().write(*round);
                    }
                }
            }
        }
    }
    /// Asserts that sections changed only the contents in [`State`] and stack entries above the length.
    fn assert_only_state_written(&self) {
        let empty_stack = SectionState {
            places: CLASSES.map(|_| vec![None; usize::from(REACH) + 1]),
            ..SectionState::default()
        };
        self.write(&State { cpus: vec![empty_stack; self.cpus() as usize] });
        let (first, words) = (self.base(0), self.table.words_of(Words::Always));
        let fast_path = first.addr().get() - words.addr().get();
        // SAFETY: the range contains the regions of all CPUs and the empty region, and only this thread uses the world.
        let regions = unsafe {
            core::slice::from_raw_parts(
                first.cast::<u64>().as_ptr(),
                (self.cpus() as usize + 1) * Self::REGION / 8,
            )
        };
        assert!(regions.iter().all(|word| *word == 0), "the operation wrote to other memory");
        assert!(fast_path + size_of_val(regions) <= self.bytes);
    }
}

fn round(n: usize) -> NonNull<u8> {
    NonNull::new(core::ptr::without_provenance_mut(n)).unwrap()
}

struct Random(u64);
impl Random {
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

/// Returns a random object to push. Sometimes the object is one of a few that may already be on top of a stack.
fn random_round(dice: &mut Random) -> NonNull<u8> {
    let most = dice.of(&[2, 1 << 40]);
    // The value 1 marks places that were never written.
    round(2 + dice.below(most))
}

fn operation(dice: &mut Random) -> Operation {
    let (class, n) = (dice.of(&CLASSES), 1 + dice.below(3));
    match dice.below(6) {
        0 | 1 => Operation::Pop(class),
        2 | 3 => Operation::Push(class, random_round(dice)),
        4 => Operation::PushBatch(class, n),
        _ => Operation::PopBatch(class, n),
    }
}

/// Returns a random state, in which each stack has a random length and capacity. The committed part of the region has
/// the minimum size, has the maximum size, or ends exactly where a grown stack ends.
fn state(dice: &mut Random, world: &World) -> State {
    let look = |dice: &mut Random| {
        let caps = CLASSES.map(|_| dice.below(usize::from(REACH) + 1));
        let lens = caps.map(|cap| dice.below(cap + 1));
        let needed = CLASSES.map(|at| if caps[at] > 0 { world.classes[at].end(caps[at] as u32) } else { 0 });
        let needed = needed.into_iter().max().unwrap_or(0);
        let committed_end = world.classes[dice.of(&CLASSES)].end(dice.below(usize::from(REACH) + 1) as u32);
        SectionState {
            committed: dice.of(&[needed, needed.max(committed_end), World::REGION]),
            heads: lens.map(|len| OP_STEP * dice.below(1 << 20) as u64 + len as u64),
            caps: caps.map(|cap| cap as u32),
            limits: CLASSES.map(|_| dice.of(&[0, 4, REACH.into(), REACH.into()])),
            places: lens.map(|len| (0..=len).map(|i| (i > 0).then(|| random_round(dice))).collect()),
        }
    };
    State { cpus: (0..world.cpus()).map(|_| look(dice)).collect() }
}

/// Sends this thread a signal every 40 us, until the value is dropped.
struct SignalStorm(libc::timer_t);
impl SignalStorm {
    fn begin() -> Self {
        extern "C" fn ignore_signal(_: libc::c_int) {}
        let action = SigAction::new(SigHandler::Handler(ignore_signal), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, and is therefore async-signal-safe.
        unsafe { sigaction(Signal::SIGALRM, &action) }.unwrap();
        let every = libc::timespec { tv_sec: 0, tv_nsec: 40_000 };
        let every = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the structs contain numbers, for which zero is valid. The null pointers are allowed, and the other
        // pointers are places for results. `nix` cannot direct a timer's signal to one thread on musl.
        unsafe {
            let (mut to, mut timer): (libc::sigevent, _) = (core::mem::zeroed(), core::mem::zeroed());
            to.sigev_notify = libc::SIGEV_THREAD_ID;
            to.sigev_signo = libc::SIGALRM;
            to.sigev_notify_thread_id = gettid().as_raw();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut to, &raw mut timer), 0);
            assert_eq!(libc::timer_settime(timer, 0, &raw const every, core::ptr::null_mut()), 0);
            Self(timer)
        }
    }
}
impl Drop for SignalStorm {
    fn drop(&mut self) {
        // SAFETY: the timer was created above and is deleted only once.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn usable_cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    (0..CpuSet::count()).filter(|c| set.is_set(*c).unwrap()).collect()
}
fn pin(thread: Pid, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|c| set.set(*c).unwrap());
    sched_setaffinity(thread, &set).unwrap();
}

/// The inputs of a section must be unchanged at its restart label, because an aborted section continues there.
#[test]
fn restartable_sections_do_not_modify_their_restart_inputs() {
    let checked = sections::check();
    assert!(checked.sections >= 20 && checked.instructions >= 200, "{checked:?}");
    assert!(checked.survive >= 1, "a batch widens its stack: {checked:?}");
}

/// Writes all sections to a file, together with the results of the portable code on regions with random contents. A
/// machine-checked proof compares the sections with a separate specification. The proof uses the samples in this file
/// to check its specification against the portable code.
#[test]
#[ignore = "writes to a file; run by .ci/sections"]
fn restartable_sections_are_written_to_the_proof_file() {
    use serde_json::json;
    let (world, mut dice) = (World::new(), Random(11));
    let address = |round: Option<NonNull<u8>>| round.map_or(0, |round| round.addr().get());
    // Returns all non-zero words, by offset.
    let words = || -> Vec<(usize, u64)> {
        (0..World::REGION / 8)
            // SAFETY: the word is in the region of CPU 0, which only this thread uses.
            .map(|i| (8 * i, unsafe { world.base(0).cast::<u64>().add(i).read() }))
            .filter(|(_, word)| *word != 0)
            .collect()
    };
    let samples: Vec<_> = (0..4000)
        .map(|_| {
            world.write(&state(&mut dice, &world));
            let before = words();
            let operation = operation(&mut dice);
            let (kind, class, rounds) = match operation {
                Operation::Pop(class) => ("Pop", class, vec![]),
                Operation::Push(class, round) => ("Push", class, vec![round]),
                Operation::PushBatch(class, n) => ("PushBatch", class, Operation::batch(n)[..n].to_vec()),
                Operation::PopBatch(class, n) => ("PopBatch", class, vec![round(1); n]),
            };
            let (done, popped) = match operation.run_portable_code(&world, 0) {
                Outcome::Pop(round) => (round.is_some(), vec![address(round)]),
                Outcome::Push(done) => (done, vec![]),
                Outcome::PopBatch(popped) => {
                    (!popped.is_empty(), popped.into_iter().map(|round| address(Some(round))).collect())
                }
            };
            json!({
                "kind": kind,
                "stack": world.classes[class].stack,
                "rounds": rounds.into_iter().map(|round| address(Some(round))).collect::<Vec<_>>(),
                "before": before,
                "after": words(),
                "done": done,
                "popped": popped,
            })
        })
        .collect();
    sections::write_sections_file(json!({ "samples": samples, "layout": {
        "CAP": CAP, "LIMIT": LIMIT, "NULL": NULL, "ROUND": ROUND, "OP_STEP": OP_STEP, "LEN_MASK": LEN_MASK,
        "COMMITTED": core::mem::offset_of!(crate::region::Header, committed),
        "CPU_ID": CPU_ID, "RSEQ_CS": RSEQ_CS,
    }}));
}

/// Each operation must return the same result as the portable code, and must change the memory of one CPU in the same
/// way. An operation that was aborted may also have grown the stack of another CPU, as the portable code would.
#[test]
fn restartable_sections_agree_with_the_portable_code() {
    if mechanism() != Mechanism::Rseq {
        println!("skipped: the system has no restartable sequences to compare");
        return;
    }
    let (world, twin) = (World::new(), World::new());
    let mut dice = Random(7);
    let (stop, me, usable, aborts_before) = (AtomicBool::new(false), gettid(), usable_cpus(), aborts());
    let (mut done, mut seen) = (0u64, 0u64);
    // An emulator rarely interrupts a section.
    let small = std::env::var_os("USLAB_STRESS").is_some_and(|size| size == "small");
    let (seconds, enough, restarts) = if small { (300, 4_000, 3) } else { (20, 400_000, 10) };
    let deadline = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Random(3);
            while !stop.load(Relaxed) {
                pin(me, &[dice.of(&usable)]);
                std::thread::sleep(Duration::from_micros(100));
            }
            pin(me, &usable);
        });
        let timer = SignalStorm::begin();
        let restarted = |n| aborts() >= aborts_before + n;
        while Instant::now() < deadline && (done < enough || !restarted(restarts)) {
            if done.is_multiple_of(8) {
                world.write(&state(&mut dice, &world));
            }
            let before = world.snapshot();
            let operation = operation(&mut dice);
            let outcome = operation.run_assembly(&world);
            let mut after = world.snapshot();
            let on = |cpu: u32| {
                twin.write(&before);
                let outcome = operation.run_portable_code(&twin, cpu);
                (outcome, twin.snapshot())
            };
            let here = cpu_id();
            let found = [here].into_iter().chain((0..world.cpus()).filter(|c| *c != here)).find(|cpu| {
                let (expected, tried) = on(*cpu);
                // An operation that was aborted on another CPU may have grown that CPU's stack.
                let mut snapshot = after.clone();
                for (at, look) in (0..).zip(&mut snapshot.cpus).filter(|(at, _)| at != cpu) {
                    let caps = before.cpus[at as usize].caps;
                    if look.caps != caps && look.caps == on(at).1.cpus[at as usize].caps {
                        look.caps = caps;
                    }
                }
                expected == outcome && snapshot == tried
            });
            if found.is_none() {
                stop.store(true, Relaxed);
                after.cpus.retain(|look| !before.cpus.contains(look));
            }
            assert!(
                found.is_some(),
                "{operation:?} returned {outcome:?} and left {after:?}, which matches no CPU; before: {before:?}"
            );
            seen |= 1 << found.unwrap_or(0).min(63);
            done += 1;
        }
        drop(timer);
        stop.store(true, Relaxed);
    });
    world.assert_only_state_written();
    let restarts = aborts() - aborts_before;
    println!("{done} operations compared, {restarts} restarts");
    assert!(restarts > 0, "no section was ever restarted");
    assert_eq!(seen.count_ones() as usize, usable.len().min(64), "every CPU's region was used");
}

/// Runs this program again, in another process, with only the test `name` of `module`.
fn run_test_alone(module: &str, name: &str, test: fn()) {
    if mechanism() == Mechanism::Rseq {
        rerun_test_program(module, name, test, None);
    } else {
        println!("skipped: the system has no restartable sequences to check");
    }
}
/// Runs a test in a process whose libc does not register threads for rseq.
fn run_without_libc_registration(module: &str, name: &str, test: fn()) {
    // The parent process checks for restartable sequences, because the test may have to make the first call.
    if std::env::var_os(SINGLE_TEST_VARIABLE).is_some() || mechanism() == Mechanism::Rseq {
        rerun_test_program(module, name, test, Some(("GLIBC_TUNABLES", "glibc.pthread.rseq=0")));
    }
}
const SINGLE_TEST_VARIABLE: &str = "USLAB_ALONE";
fn rerun_test_program(module: &str, name: &str, test: fn(), variable: Option<(&str, &str)>) {
    let (_, module) = module.split_once("::").unwrap();
    let name = format!("{module}::{name}");
    if std::env::var_os(SINGLE_TEST_VARIABLE).is_some_and(|asked| *asked == *name) {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(SINGLE_TEST_VARIABLE, &name)
        .envs(variable);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{name}: {}", output.status);
}

/// A drain issues one fence for any number of CPUs and classes, and no fence if all stacks are empty.
#[test]
fn drain_issues_a_single_membarrier() {
    run_test_alone(module_path!(), "drain_issues_a_single_membarrier", || {
        let world = World::new();
        let fences = |which: DrainScope| {
            let before = FENCE_COUNT.get();
            let mut rounds = 0;
            world
                .table
                .drain(0..world.cpus(), which, world.classes.into_iter(), |_, taken| rounds += taken.len());
            (FENCE_COUNT.get() - before, rounds)
        };
        let put = |cpu: u32, at: usize| {
            world.table.open(&tracepoints::Operation::new(), cpu, world.classes[at], REACH.into());
            assert_eq!(Operation::PushBatch(at, 3).run_portable_code(&world, cpu), Outcome::Push(true));
        };
        let all = || (0..world.cpus()).for_each(|cpu| CLASSES.iter().for_each(|at| put(cpu, *at)));
        assert_eq!(fences(DrainScope::All), (0, 0), "no CPU was used");
        all();
        assert_eq!(fences(DrainScope::All), (1, world.cpus() * 6));
        assert_eq!(fences(DrainScope::All), (0, 0), "the stack has no rounds to take");
        all();
        assert_eq!([(); 3].map(|()| fences(DrainScope::Idle)), [(0, 0), (1, world.cpus() * 6), (0, 0)]);
    });
}

struct TestSupplier(Mutex<Vec<usize>>);
impl Supplier<TestRound> for TestSupplier {
    fn fill(&self, op: &tracepoints::Operation, _: u32, max: usize, mut put: impl FnMut(TestRound)) -> usize {
        op.did(crate::Path::Slab);
        let mut rounds = self.0.lock();
        let n = max.min(rounds.len());
        (0..n).for_each(|_| put(TestRound(rounds.pop().unwrap())));
        n
    }
    fn flush(&self, op: &tracepoints::Operation, rounds: impl Iterator<Item = TestRound>) {
        op.did(crate::Path::Slab);
        self.0.lock().extend(rounds.map(|round| round.0));
    }
}

/// Allocates and frees 100 objects on a thread without a region. All operations of a thread without a region bypass the
/// stacks, and no operation hangs.
fn alloc_and_free_rounds(layer: &Layer<TestRound>, supplier: &TestSupplier) {
    let before = layer.stats();
    let held: Vec<_> = (0..100).map(|_| layer.alloc(supplier).unwrap()).collect();
    held.into_iter().for_each(|b| layer.free(supplier, b));
    let stats = layer.stats();
    assert_eq!((stats.allocs - before.allocs, stats.frees - before.frees), (100, 100));
    assert_eq!((stats.paths.slab - before.paths.slab, stats.paths.cpu), (200, before.paths.cpu));
    assert_eq!(stats.busy - before.busy, 200);
    assert_eq!(stats.in_magazines, before.in_magazines);
}

fn layer(cpus: Cpus) -> Layer<TestRound> {
    shadow::layer(cpus, Config::new(8, 2, 2))
}

#[test]
fn thread_without_rseq_registration_bypasses_the_stacks() {
    if mechanism() != Mechanism::Rseq {
        return;
    }
    let (layer, supplier) = (layer(Cpus::os()), TestSupplier(Mutex::new((1..=1000).collect())));
    // All stacks have objects, so a slow path that retried because of objects on a stack would never end.
    let held: Vec<_> = (0..200).map(|_| layer.alloc(&supplier).unwrap()).collect();
    held.into_iter().for_each(|b| layer.free(&supplier, b));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let here = thread_pointer().wrapping_offset(rseq_area_offset());
            // SAFETY: the area and the registration belong to this thread, registered by the libc or this module.
            unsafe { registration::leave(here.cast()) };
            assert_eq!(cpu_id(), REFUSED);
            alloc_and_free_rounds(&layer, &supplier);
            // Simulates a libc that registers no threads. `registration` registers no threads either.
            if libc_rseq_offset().is_some() {
                // SAFETY: the thread is not registered, so the kernel does not write to the area.
                unsafe { here.add(CPU_ID).cast::<u32>().write_volatile(UNREGISTERED_CPU_ID) };
                assert_eq!(cpu_id(), UNREGISTERED_CPU_ID);
                alloc_and_free_rounds(&layer, &supplier);
            }
            layer.drain(&supplier, 0..layer.cpus().count());
            layer.reap(&supplier);
        });
    });
    layer.flush_all(&supplier);
    assert_eq!(supplier.0.lock().len(), 1000);
}

#[test]
fn thread_on_a_cpu_beyond_the_table_bypasses_the_stacks() {
    let usable = usable_cpus();
    if mechanism() != Mechanism::Rseq || usable.iter().all(|c| *c == 0) {
        return;
    }
    let one = Cpus { count: 1, ..Cpus::os() };
    let (layer, supplier) = (layer(one), TestSupplier(Mutex::new((1..=1000).collect())));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(Pid::from_raw(0), &[*usable.last().unwrap()]);
            alloc_and_free_rounds(&layer, &supplier);
        });
    });
}

/// If a thread did not unregister itself, the kernel would write to memory that has been freed and reused.
#[test]
fn exiting_thread_unregisters_its_rseq_area() {
    /// The CPU number that the thread reads after the destructors of all other pthread keys have run.
    static CPU_AT_THREAD_END: Fixed = Fixed::new(0);
    static KEY: Fixed = Fixed::new(0);
    unsafe extern "C" fn ends(turns: *mut libc::c_void) {
        CPU_AT_THREAD_END.set(cpu_id_at(rseq_area_offset()));
        // Key destructors run up to four times while values remain. SAFETY: the key belongs to this test, and its value
        // is a number, not an address.
        unsafe { libc::pthread_setspecific(KEY.get(), turns.wrapping_byte_sub(1)) };
    }
    run_without_libc_registration(module_path!(), "exiting_thread_unregisters_its_rseq_area", || {
        let joined = std::thread::spawn(|| {
            let before = cpu_id_at(rseq_area_offset());
            let used = cpu_id();
            let mut key = 0;
            // SAFETY: the first argument is a place for the key, and the second call uses the created key.
            unsafe {
                assert_eq!(libc::pthread_key_create(&raw mut key, Some(ends)), 0);
                KEY.set(key);
                assert_eq!(libc::pthread_setspecific(key, core::ptr::without_provenance(3)), 0);
            }
            (before, used)
        });
        let (before, used) = joined.join().unwrap();
        assert_eq!(before, UNREGISTERED_CPU_ID, "a thread is registered when it first misses");
        assert!(used < Cpus::os().count(), "{used}");
        assert_eq!(CPU_AT_THREAD_END.get(), REFUSED);
    });
}

/// The kernel registers one `struct rseq` per thread, and refuses to register a second one.
#[test]
fn claimed_slots_are_used_if_a_library_registered_rseq_first() {
    const NAME: &str = "claimed_slots_are_used_if_a_library_registered_rseq_first";
    run_without_libc_registration(module_path!(), NAME, || {
        #[repr(align(32))]
        struct Area {
            _words: [u32; 8],
        }
        let theirs = Box::leak(Box::new(Area { _words: [0, UNREGISTERED_CPU_ID, 0, 0, 0, 0, 0, 0] }));
        // SAFETY: the area is never freed.
        let answer = unsafe { libc::syscall(libc::SYS_rseq, &raw mut *theirs, SIZE, 0, sections::SIGNATURE) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        // This thread decides the mechanism of the process.
        assert_eq!(layer(Cpus::os()).stats().mechanism, Mechanism::Claimed);
        assert!(Cpus::os().current() < Cpus::os().count());
    });
}

/// The environment and the libc determine which mechanism the process uses. A layer on simulated CPUs never uses
/// restartable sequences. The `PcpuPtr` of a layer on simulated CPUs leads to the empty region, in which all sections
/// miss.
#[test]
fn environment_and_libc_decide_whether_rseq_is_used() {
    let is_off = std::env::var_os("USLAB_RSEQ").is_some_and(|v| v == "off");
    // If the libc registers no threads, the kernel decides the mechanism.
    if libc_rseq_offset().is_some() || is_off {
        assert_eq!(mechanism() == Mechanism::Rseq, !is_off);
    }
    assert_eq!(layer(Cpus::os()).stats().mechanism, mechanism());
    let simulated = layer(Cpus::simulated(2, 1).unwrap());
    // The spare words point to the table's empty region. A path without a table has no class.
    let spare = simulated.fast_path(Words::Inlined).pcpu();
    assert_eq!(spare.words, simulated.table.spare_words());
    for (pcpu, class) in
        [(spare, simulated.fast_path(Words::Inlined).class()), (PcpuPtr::disabled(), NO_CLASS)]
    {
        assert_eq!(pcpu.pop(class), None);
        assert!(!pcpu.push(class, round(1)) && !pcpu.push_batch(class, &[round(1)]));
        assert!(!Magazine::new().fill_with(1, |into| pcpu.pop_batch(class, 1, into)));
    }
}
