//! The result of a stress run as text and JSON, with the last operations before each violation.

use super::last_deeds;
use super::log::Entry;
use super::worker::{Tally, ThreadSeat};
use super::workload::Workload;
use super::world::{Violation, World};
use super::{Options, ROUNDS};
use crate::output::{grouped, size, table, text};
use crate::story::Story;
use serde::Serialize;
use std::fmt::{self, Write};
use std::time::Duration;
use uslab::{Census, Info, Paths, faults};

/// The inputs of a stress report, which are known at the end of a run.
pub(super) struct ReportInputs<'a, 'w> {
    pub(super) options: &'a Options,
    pub(super) world: &'a World,
    pub(super) seats: &'a [ThreadSeat<'w>],
    pub(super) threads_started: u64,
    pub(super) tallies: &'a [(Workload, Tally)],
    /// The cache statistics from before everything was freed.
    pub(super) infos: &'a Info,
    pub(super) elapsed: Duration,
    pub(super) rounds: Vec<RoundReport>,
    pub(super) end: Option<End>,
}

/// The report of a stress run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of the program.
    pub version: &'static str,
    /// The seed of the threads' decisions.
    pub seed: u64,
    /// The number of CPUs of the machine.
    pub cpus: u32,
    /// The mechanism that protects the magazines, for example restartable sequences.
    pub mechanism: String,
    /// The number of threads that ran at the same time.
    pub threads: u64,
    /// The number of threads started during the whole run.
    pub threads_started: u64,
    /// `true` if the user ended the run early.
    pub interrupted: bool,
    /// The total duration of all rounds in seconds.
    pub seconds: f64,
    /// The number of allocations, frees, refused allocations and other calls.
    pub operations: u64,
    /// The number of operations per second.
    pub operations_per_second: f64,
    /// The operation counts of each workload.
    pub workloads: Vec<WorkloadReport>,
    /// The fault rules as text.
    pub faults: Option<String>,
    /// For each fault point, the number of checked calls and the number of refused calls.
    pub fault_points: Vec<faults::Tally>,
    /// The number of allocations and frees at each level that served them, for all caches that exist at the end and for
    /// memory outside caches.
    pub paths: Paths,
    /// The number of operations that each thread's log keeps; the histories in this report are made from the
    /// logs.
    pub remembered: u64,
    /// The number of restartable sequences that were aborted and restarted.
    pub aborts: u64,
    /// The state at the end of each round.
    pub rounds: Vec<RoundReport>,
    /// The state after everything was freed; `None` after a violation.
    pub end: Option<End>,
    /// The violations; empty if the run found no error.
    pub violations: Vec<ViolationReport>,
    /// The last operations of all threads before the first violation, for a story web page.
    #[serde(skip)]
    pub story: Option<Story>,
}

/// The operation counts of one workload.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    /// The name of the workload.
    pub name: String,
    /// The number of operations.
    pub operations: u64,
    /// The number of operations per second of the whole run.
    pub operations_per_second: f64,
    /// The number of objects allocated.
    pub allocs: u64,
    /// The number of objects freed.
    pub frees: u64,
    /// The number of allocations that were refused where a refusal is permitted.
    pub refused: u64,
}

/// The state at the end of a round, while no thread runs.
#[derive(Debug, Serialize)]
pub struct RoundReport {
    /// The number of operations so far.
    pub operations: u64,
    /// The number of objects and blocks that the threads hold.
    pub held: u64,
    /// The number of bytes of committed pages.
    pub committed_bytes: u64,
    /// The resident bytes of the process.
    pub resident_bytes: u64,
    /// The counts of the census; three independent methods gave the same counts.
    pub census: Census,
}

/// The state after all memory was freed and returned.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct End {
    /// The number of objects that still exist in slabs, expected to be 0.
    pub objects: u64,
    /// The number of slabs that still exist, expected to be 0.
    pub slabs: u64,
    /// The number of free pages that are not merged to blocks of the largest order, expected to be 0.
    pub pages_not_in_maximal_blocks: u64,
    /// The committed bytes before and after everything was freed.
    pub committed_bytes: [u64; 2],
    /// The resident bytes of the process after everything was freed.
    pub resident_bytes: u64,
}

/// A violation, with the operations that preceded it.
#[derive(Debug, Serialize)]
pub struct ViolationReport {
    /// A description of the violation.
    pub what: String,
    /// The seconds since the start.
    pub at: f64,
    /// `true` if the violation concerns a particular object.
    pub object: bool,
    /// All logged operations at the object's address, of all threads.
    pub history: Vec<String>,
    /// The last operations of each thread that is involved in the violation.
    pub last: Vec<(u16, Vec<String>)>,
}

/// The largest number of lines in an object's history, and also in the list of a thread's last operations.
const MAX_HISTORY_LINES: usize = 32;
const LAST: usize = 24;
/// The largest number of violations that are reported with a history, because one bug often causes many
/// violations.
const MAX_TRACED_VIOLATIONS: usize = 4;

impl ViolationReport {
    fn new(violation: &Violation, seats: &[ThreadSeat<'_>]) -> Self {
        let mut history: Vec<(u16, &Entry)> = seats
            .iter()
            .flat_map(|seat| seat.log.iter().map(|entry| (seat.number, entry)))
            .filter(|(_, entry)| violation.address.is_some_and(|at| entry.address == at))
            .collect();
        history.sort_by_key(|(_, entry)| entry.at);
        let from = history.len().saturating_sub(MAX_HISTORY_LINES);
        // Threads in the object's history are involved, too: a thread that freed the object twice, for example, is
        // unknown at the place of the violation.
        let mut involved = violation.seats.clone();
        for (seat, _) in history[from..].iter().rev().take(4) {
            if !involved.contains(seat) {
                involved.push(*seat);
            }
        }
        let last = |seat: &ThreadSeat<'_>| {
            let mut lines: Vec<_> = seat.log.iter().rev().take(LAST).map(Entry::to_string).collect();
            lines.reverse();
            (seat.number, lines)
        };
        Self {
            what: violation.what.clone(),
            at: violation.at.as_secs_f64(),
            object: violation.address.is_some(),
            history: history[from..]
                .iter()
                .map(|(seat, entry)| format!("thread {seat:<4} {entry}"))
                .collect(),
            last: seats.iter().filter(|seat| involved.contains(&seat.number)).map(last).collect(),
        }
    }
}

impl Report {
    pub(super) fn new(facts: ReportInputs<'_, '_>) -> Self {
        let ReportInputs { options, world, seats, threads_started, tallies, infos, elapsed, rounds, end } =
            facts;
        let seconds = elapsed.as_secs_f64();
        let rate = |n: u64| n as f64 / seconds.max(1e-9);
        let operations: u64 = tallies.iter().map(|(_, tally)| tally.operations()).sum();
        let workload = |(workload, tally): &(Workload, Tally)| WorkloadReport {
            name: workload.name(),
            operations: tally.operations(),
            operations_per_second: rate(tally.operations()),
            allocs: tally.allocs,
            frees: tally.frees,
            refused: tally.refused,
        };
        let cpus = world.subsystem.cpus();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            seed: options.seed,
            cpus: cpus.count(),
            mechanism: cpus.mechanism().to_string(),
            threads: seats.len() as u64,
            threads_started,
            interrupted: rounds.len() < ROUNDS as usize,
            seconds,
            operations,
            operations_per_second: rate(operations),
            workloads: tallies.iter().filter(|(_, tally)| tally.operations() > 0).map(workload).collect(),
            faults: options.faults.as_ref().map(ToString::to_string),
            fault_points: world.faults.tally(),
            paths: infos.paths(),
            remembered: seats.first().map_or(0, |seat| seat.log.max_entries() as u64),
            aborts: cpus.aborts(),
            rounds,
            end,
            violations: world.violations().iter().map(|v| ViolationReport::new(v, seats)).collect(),
            story: world.violations().first().map(|first| last_deeds::story(first, seats, options.seed)),
        }
    }

    /// Returns `true` if the run found a violation.
    pub fn violated(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Formats the whole report of the stress run as text.
    pub fn page(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_page(&mut out);
        out
    }

    fn write_page(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "stress: {} operations in {:.1} s, {} a second; {} concurrent threads, {} in total, on {} CPUs; seed {}",
            grouped(self.operations),
            self.seconds,
            grouped(self.operations_per_second as u64),
            self.threads,
            grouped(self.threads_started),
            self.cpus,
            self.seed
        )?;
        writeln!(
            out,
            "{}: {} sequences restarted; {} allocations and frees by where they were served:\n{}\n",
            self.mechanism,
            grouped(self.aborts),
            grouped(self.paths.operations()),
            self.paths
        )?;
        let mut workloads = table(&["workload", "operations", "a second", "allocs", "frees", "refused"]);
        for w in &self.workloads {
            let rate = w.operations_per_second as u64;
            let numbers = [w.operations, rate, w.allocs, w.frees, w.refused].map(grouped);
            workloads.add_row([w.name.clone()].into_iter().chain(numbers));
        }
        out.push_str(&text(&workloads));
        if let Some(rules) = &self.faults {
            writeln!(out, "\nFaults: {rules}")?;
            let mut points = table(&["point", "calls", "refused"]);
            for tally in &self.fault_points {
                points.add_row([tally.point.to_owned(), grouped(tally.calls), grouped(tally.fired)]);
            }
            out.push_str(&text(&points));
        }
        self.write_census(out)?;
        self.write_violations(out)
    }

    fn write_census(&self, out: &mut String) -> fmt::Result {
        if let (Some(first), Some(last)) = (self.rounds.first(), self.rounds.last()) {
            let c = &last.census;
            writeln!(
                out,
                "\nCensus: in each of {} comparisons, the threads, the caches' counters and a walk over all slabs and pages agreed on the counts.",
                self.rounds.len()
            )?;
            writeln!(
                out,
                "The last census: {} objects = {} used + {} in magazines + {} in depots + {} free in slabs; {} slabs.",
                grouped(c.objects),
                grouped(c.used),
                grouped(c.in_magazines),
                grouped(c.in_depot),
                grouped(c.free_in_slabs),
                grouped(c.slabs)
            )?;
            writeln!(
                out,
                "Resident memory: {} after the first round, {} after the last round; committed pages: {} after the first round, {} after the last round.",
                size(first.resident_bytes),
                size(last.resident_bytes),
                size(first.committed_bytes),
                size(last.committed_bytes)
            )?;
        }
        if let Some(end) = self.end {
            writeln!(
                out,
                "Everything freed: {} objects, {} slabs, {} pages outside maximal blocks; committed {} -> {}; resident {}.",
                end.objects,
                end.slabs,
                end.pages_not_in_maximal_blocks,
                size(end.committed_bytes[0]),
                size(end.committed_bytes[1]),
                size(end.resident_bytes)
            )?;
        }
        Ok(())
    }

    fn write_violations(&self, out: &mut String) -> fmt::Result {
        for violation in self.violations.iter().take(MAX_TRACED_VIOLATIONS) {
            writeln!(out, "\nVIOLATION at {:.6} s, seed {}: {}", violation.at, self.seed, violation.what)?;
            match (violation.object, violation.history.is_empty()) {
                (_, false) => writeln!(out, "history of the object:")?,
                (true, true) => writeln!(
                    out,
                    "history of the object: not in the logs, because each thread logs only its last {} operations",
                    grouped(self.remembered)
                )?,
                (false, true) => {}
            }
            violation.history.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
            for (seat, lines) in &violation.last {
                writeln!(out, "last operations of thread {seat}:")?;
                lines.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
            }
        }
        let n = self.violations.len();
        writeln!(out, "\n{} violation{}", grouped(n as u64), if n == 1 { "" } else { "s" })
    }
}
