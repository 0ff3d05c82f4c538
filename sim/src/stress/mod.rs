//! Loads the allocator with more threads than CPUs and many workloads at the same time, and verifies every
//! object.
//!
//! ```text
//! round ─ seats ─ threads, one after the other on each seat ─ turns ─ operations
//!   └ census: what the threads hold = what the caches say = what a walk of all slabs and pages finds
//! ```
//!
//! The stress test runs the shipping crates on the machine's real CPUs, with the magazine mechanism that the
//! system supports. Every object carries a stamp of its owner (module `stamp`), which is verified when the object is
//! allocated, while a thread holds it, and when it is freed. A thread may keep an object for several turns and rounds,
//! or leave it to another thread. At the end the run frees everything, and checks that nothing remains. The seed
//! determines the actions of each thread, but not their timing. A violation is therefore reported with the last
//! operations of the threads involved, and with all logged operations on the object.

pub(crate) mod affinity;
mod harm;
mod last_deeds;
mod log;
mod options;
mod report;
mod runs;
mod stamp;
mod worker;
mod workload;
mod world;

use crate::output::{Progress, Stage, grouped};
use crate::resident::resident_bytes;
use anyhow::{Context, bail};
pub use harm::{FaultSpec, FreedObjectHook};
use options::ROUNDS;
pub use options::{Options, SECONDS};
pub use report::Report;
use report::{End, RoundReport};
pub use runs::{RunResult, Runs};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use uslab::Census;
use uslab_magazine::sync::catch_panic;
use uslab_magazine::sync::{AtomicBool, Ordering::Relaxed};
use worker::{ObjectBin, ThreadSeat, Worker};
pub use workload::Workload;
use world::{CensusError, World};

/// Returns the names of the caches that the workloads share. For tests of the checks, the run can leak an object of any
/// shared cache.
pub fn caches() -> impl Iterator<Item = &'static str> {
    world::names()
}

/// After a turn, a thread ends with a probability of 1 in `MEAN_TURNS_PER_THREAD`.
const MEAN_TURNS_PER_THREAD: u32 = 8;
/// The number of entries in all logs together; the next two constants limit the number of entries in one log.
const TOTAL_LOG_ENTRIES: usize = 1 << 16;
const MIN_LOG_ENTRIES: usize = 256;
const MAX_LOG_ENTRIES: usize = 1 << 12;

/// The limit at which a stress run, or a round of it, ends.
#[derive(Clone, Copy, Debug)]
struct RunLimit {
    time: Option<Duration>,
    operations: Option<u64>,
}

impl RunLimit {
    /// Returns how much of the limit the run has reached, in thousandths.
    fn done(&self, time: Duration, operations: u64) -> u64 {
        let time = self.time.map_or(0.0, |goal| time.as_secs_f64() / goal.as_secs_f64());
        let operations = self.operations.map_or(0.0, |goal| operations as f64 / goal.max(1) as f64);
        (time.max(operations) * 1000.0) as u64
    }
    /// Returns the limit at which round `part` ends, if there are `parts` rounds.
    fn part(&self, part: u32, parts: u32) -> Self {
        Self {
            time: self.time.map(|time| time * part / parts),
            operations: self
                .operations
                .map(|n| (n as f64 * f64::from(part) / f64::from(parts)).ceil() as u64),
        }
    }
}

/// Runs the stress test.
///
/// # Errors
/// Fails if the options contradict each other or do not fit the machine, if the subsystem does not start, or
/// if the system refuses threads. A violation is part of the report, and not an error.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Report> {
    let threads = options.threads()?;
    let goal = RunLimit { time: options.duration()?, operations: options.operations };
    let world = World::new(options.seed, options.faults.as_ref(), options.saboteur.clone())?;
    let bins: Vec<ObjectBin<'_>> = (0..threads).map(|_| ObjectBin::default()).collect();
    let entries = (TOTAL_LOG_ENTRIES / usize::from(threads)).clamp(MIN_LOG_ENTRIES, MAX_LOG_ENTRIES);
    let mut seats: Vec<_> = (1..=threads).map(|number| ThreadSeat::new(number, entries)).collect();
    let workloads =
        if options.workloads.is_empty() { &Workload::ALL[..] } else { options.workloads.as_slice() };

    let stage = progress.stage("stress", 1000);
    if let Some(faults) = &options.faults {
        world.faults.arm(faults.rules.clone());
    }
    let (begun, mut rounds) = (Instant::now(), vec![]);
    for round in 1..=ROUNDS {
        let supervisor = Supervisor {
            world: &world,
            bins: &bins,
            workloads,
            goal: goal.part(round, ROUNDS),
            whole: goal,
            begun,
            stage: &stage,
            interrupted: &options.interrupted,
        };
        seats = supervisor.round(seats)?;
        if !world.violations().is_empty() {
            break;
        }
        match census(&world, &seats, &bins) {
            Ok(census) => {
                let held = seats.iter().map(|seat| seat.held.len() as u64).sum::<u64>()
                    + bins.iter().map(|bin| bin.lock().len() as u64).sum::<u64>();
                rounds.push(RoundReport {
                    operations: world.operations.get(),
                    held,
                    committed_bytes: world.subsystem.pages().info().committed_bytes(),
                    resident_bytes: resident_bytes(),
                    census,
                });
            }
            Err(missing) => violated(&world, &format!("census of round {round}"), missing),
        }
        if options.interrupted.load(Relaxed) || !world.violations().is_empty() {
            break;
        }
    }
    let elapsed = begun.elapsed();
    world.faults.disarm();
    drop(stage);

    let infos = world.subsystem.info();
    let tallies = Workload::ALL.map(|workload| {
        let of_seat = |seat: &ThreadSeat<'_>| seat.tallies[workload as usize];
        (workload, seats.iter().map(of_seat).fold(Default::default(), worker::Tally::plus))
    });
    let threads_started = seats.iter().map(|seat| seat.threads).sum();
    let end = if world.violations().is_empty() {
        tear_down(&world, &bins, &mut seats)
    } else {
        // After a violation, objects may be damaged, so no object is touched again.
        None
    };
    let report = Report::new(report::ReportInputs {
        options,
        world: &world,
        seats: &seats,
        threads_started,
        tallies: &tallies,
        infos: &infos,
        elapsed,
        rounds,
        end,
    });
    if report.violated() {
        std::mem::forget(seats);
        std::mem::forget(bins);
        std::mem::forget(world);
    }
    Ok(report)
}

fn violated(world: &World, when: &str, missing: CensusError) {
    let CensusError { what, address } = missing;
    let what = format!("{when}: {what}");
    world.violated(world::Violation { at: world.now(), what, address, seats: Vec::new() });
}

fn census(world: &World, seats: &[ThreadSeat<'_>], bins: &[ObjectBin<'_>]) -> Result<Census, CensusError> {
    let of = |held: &worker::HeldObject<'_>| (held.source, held.memory.address());
    let left = bins.iter().flat_map(|bin| bin.lock().iter().map(of).collect::<Vec<_>>());
    let kept = seats.iter().flat_map(|seat| seat.held.iter().map(of));
    world.census(&kept.chain(left).collect::<Vec<_>>())
}

/// Verifies and frees all objects, returns all memory, and checks that nothing remains.
fn tear_down<'w>(world: &'w World, bins: &[ObjectBin<'w>], seats: &mut Vec<ThreadSeat<'w>>) -> Option<End> {
    let before = world.subsystem.info().pages.committed_bytes();
    for seat in std::mem::take(seats) {
        let mut worker = Worker::new(world, bins, seat);
        worker.free_all();
        seats.push(worker.seat);
    }
    if let Some(seat) = seats.pop() {
        let mut worker = Worker::new(world, bins, seat);
        for bin in 0..bins.len() {
            for held in worker.take(bin, usize::MAX) {
                worker.free(held);
            }
        }
        seats.push(worker.seat);
    }
    world.subsystem.reap();
    world.subsystem.shrink();
    world.grace();
    world.subsystem.pages().decommit();
    let census = census(world, seats, bins).map_err(|missing| violated(world, "at the end", missing)).ok()?;
    let pages = world.subsystem.pages().info();
    let end = End {
        objects: census.objects,
        slabs: census.slabs,
        pages_not_in_maximal_blocks: pages.pages_not_in_maximal_blocks(),
        committed_bytes: [before, pages.committed_bytes()],
        resident_bytes: resident_bytes(),
    };
    for (what, left) in [
        ("objects", end.objects),
        ("slabs", end.slabs),
        ("pages outside maximal blocks", end.pages_not_in_maximal_blocks),
        ("bytes committed", end.committed_bytes[1]),
    ] {
        if left != 0 {
            let what = format!("{left} {what} remain after all memory was freed");
            violated(world, "at the end", CensusError { what, address: None });
        }
    }
    Some(end)
}

/// Starts the threads of a round, and waits until they end.
struct Supervisor<'w, 'e> {
    world: &'w World,
    bins: &'e [ObjectBin<'w>],
    workloads: &'e [Workload],
    /// The limit of this round, counted from the beginning of the whole run.
    goal: RunLimit,
    whole: RunLimit,
    begun: Instant,
    stage: &'e Stage,
    interrupted: &'e AtomicBool,
}

/// The time between two checks of the round's limit.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl<'w, 'e> Supervisor<'w, 'e> {
    fn round(&self, seats: Vec<ThreadSeat<'w>>) -> anyhow::Result<Vec<ThreadSeat<'w>>> {
        let world = self.world;
        world.pause.store(false, Relaxed);
        let (count, mut home) = (seats.len(), vec![]);
        let done = std::thread::scope(|scope| {
            let (send, ended) = channel();
            let mut threads = vec![];
            for seat in seats {
                threads.push(self.start(scope, seat, send.clone())?);
            }
            while home.len() < count {
                match ended.recv_timeout(CHECK_INTERVAL) {
                    Ok(seat) if world.is_paused() => home.push(seat),
                    Ok(seat) => threads.push(self.start(scope, seat, send.clone())?),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => bail!("a stress thread ended without a result"),
                }
                self.look();
                threads = join(threads, ScopedJoinHandle::is_finished);
            }
            // The rest is joined, so that thread-local state is destroyed when the census begins.
            join(threads, |_| true);
            Ok(())
        });
        world.pause.store(true, Relaxed);
        done.map(|()| home)
    }

    /// Reports the progress, and ends the round when its limit is reached.
    fn look(&self) {
        let (elapsed, operations) = (self.begun.elapsed(), self.world.operations.get());
        if self.goal.done(elapsed, operations) >= 1000 || self.interrupted.load(Relaxed) {
            self.world.pause.store(true, Relaxed);
        }
        self.stage.at(self.whole.done(elapsed, operations));
        let rate = operations as f64 / elapsed.as_secs_f64().max(1e-3);
        self.stage.say(format!("{} operations, {}/s", grouped(operations), grouped(rate as u64)));
    }

    fn start<'s>(
        &self,
        scope: &'s Scope<'s, '_>,
        seat: ThreadSeat<'w>,
        send: Sender<ThreadSeat<'w>>,
    ) -> anyhow::Result<ScopedJoinHandle<'s, ()>>
    where
        'w: 's,
        'e: 's,
    {
        let (world, bins, workloads) = (self.world, self.bins, self.workloads);
        let body = move || {
            // The receiver exists as long as any thread.
            let _ = send.send(run_stress_thread(Worker::new(world, bins, seat), workloads));
        };
        Builder::new()
            .spawn_scoped(scope, body)
            .inspect_err(|_| world.pause.store(true, Relaxed))
            .context("threads")
    }
}

/// Joins the threads for which `over` returns `true`, and returns the other threads.
fn join<'s>(
    threads: Vec<ScopedJoinHandle<'s, ()>>,
    over: impl Fn(&ScopedJoinHandle<'s, ()>) -> bool,
) -> Vec<ScopedJoinHandle<'s, ()>> {
    let (over, others) = threads.into_iter().partition::<Vec<_>, _>(over);
    // A panic was already caught and reported.
    over.into_iter().for_each(|thread| _ = thread.join());
    others
}

/// The body of a stress thread: takes turns until the thread or the round ends, and then returns the thread's
/// seat.
fn run_stress_thread<'w>(mut worker: Worker<'w, '_>, workloads: &[Workload]) -> ThreadSeat<'w> {
    let mut counted = total(&worker.seat);
    while !worker.is_paused() {
        let workload = worker.pick(workloads);
        let turn = catch_panic(|| workload.run_turn(&mut worker));
        if let Err(panic) = turn {
            let said =
                panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let what =
                format!("panic in workload {}: {}", workload.name(), said.unwrap_or("of another type"));
            worker.violated(what, None, &[]);
        }
        let now = total(&worker.seat);
        worker.world.operations.add(now - counted);
        counted = now;
        if worker.chance_one_in(MEAN_TURNS_PER_THREAD) {
            break;
        }
    }
    worker.seat
}

fn total(seat: &ThreadSeat<'_>) -> u64 {
    seat.tallies.iter().map(|tally| tally.operations()).sum()
}
