//! The experiment on the duration of single allocations: the slowest allocation determines a frame's time, and the
//! median does not.

use super::{Context, check_bound};
use crate::allocators::{Allocator, Linear, System};
use crate::findings::clock::{self, Spread};
use crate::findings::{Axis, Chart, Claim, Findings, Holds, Series, Table, Value};
use anyhow::Context as _;
use clap::Args;
use core::alloc::Layout;
use hdrhistogram::Histogram;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use rand::RngExt;
use std::hint::black_box;
use std::time::Instant;
use uslab::{Block, Config, Gfp, Malloc, Subsystem};

/// How long does the slowest allocation take, and why?
///
/// Each frame allocates blocks of 16 to 1,024 bytes, times and writes each block, and frees all blocks at its end. The
/// allocators are the system's malloc in a fresh heap, the same malloc in a fragmented heap, a linear allocator that is
/// reset, and slabs. The experiment finds the cause of each slow call: a page fault, another program on the CPU, or the
/// allocator itself. Calls that another program interrupted are shown, but statements about allocators exclude them.
/// Frames run in rounds; the allocators alternate, and each round uses a new heap.
#[derive(Debug, Args)]
pub struct Latency {
    /// The number of frames in all rounds together.
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    frames: u32,
    /// Number of allocations in a frame.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    allocations: u32,
}

/// The duration in nanoseconds from which a call counts as slow, so that the experiment looks for its cause.
const SLOW_CALL_NS: u64 = 1000;
/// The length of a frame at 60 Hz, in milliseconds.
const FRAME: f64 = 16.6;

/// For each possible cause, the number of slow calls.
#[derive(Default)]
struct SlowCallCauses {
    faults: u64,
    switches: u64,
    own: u64,
}

/// The durations of allocations or of frees.
struct CallTimes {
    all: Histogram<u64>,
    /// The durations of all calls that no other program interrupted.
    own: Histogram<u64>,
    causes: SlowCallCauses,
}

/// The durations of all calls to one allocator.
struct AllocatorTimes {
    allocs: CallTimes,
    frees: CallTimes,
    /// The total time in nanoseconds of the worst frame's calls: first with calls that another program interrupted,
    /// then without them.
    worst_frame: [u64; 2],
}

impl AllocatorTimes {
    /// Combines the durations of all rounds.
    fn sum(rounds: Vec<Self>) -> anyhow::Result<Self> {
        let mut sum = Self { allocs: CallTimes::new()?, frees: CallTimes::new()?, worst_frame: [0; 2] };
        for round in rounds {
            sum.allocs.add(&round.allocs)?;
            sum.frees.add(&round.frees)?;
            sum.worst_frame = [0, 1].map(|i| sum.worst_frame[i].max(round.worst_frame[i]));
        }
        Ok(sum)
    }
}

/// The names of the timed allocators; the constants below are indices into this array.
const NAMES: [&str; 4] = ["system malloc", "system malloc, fragmented", "linear, reset each frame", "slab"];
const FRESH_HEAP: usize = 0;
const FRAGMENTED_HEAP: usize = 1;
const LINEAR: usize = 2;

impl CallTimes {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { all: histogram()?, own: histogram()?, causes: SlowCallCauses::default() })
    }
    /// Adds the durations that were measured in another round.
    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.all.add(&other.all)?;
        self.own.add(&other.own)?;
        let SlowCallCauses { faults, switches, own } = other.causes;
        self.causes.faults += faults;
        self.causes.switches += switches;
        self.causes.own += own;
        Ok(())
    }
    /// Records a duration. Returns `true` if the allocator caused the duration of the call.
    fn record(&mut self, nanoseconds: u64, clock: &mut Clock) -> bool {
        self.all.saturating_record(nanoseconds);
        let descheduled = nanoseconds >= SLOW_CALL_NS && {
            let [faults, switches] = clock.faults_and_switches();
            let cause = match (switches, faults) {
                (true, _) => &mut self.causes.switches,
                (_, true) => &mut self.causes.faults,
                _ => &mut self.causes.own,
            };
            *cause += 1;
            switches
        };
        if !descheduled {
            self.own.saturating_record(nanoseconds);
        }
        !descheduled
    }
}

/// Times calls and finds the causes of slow calls: all events since the last check count as causes of the slow call.
/// Checking for events takes longer than most of the timed calls. The clock therefore checks only after a slow call,
/// and before a call if the last check was too long ago.
struct Clock {
    last: Instant,
    before: (i64, i64),
}

impl Clock {
    fn new() -> Self {
        Self { last: Instant::now(), before: usage() }
    }
    /// Returns the nanoseconds that a call took, at least 1, and the result of the call.
    #[inline(always)]
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> (u64, T) {
        let mut start_time = Instant::now();
        if (start_time - self.last).as_nanos() as u64 >= SLOW_CALL_NS {
            self.before = usage();
            start_time = Instant::now();
        }
        let result = call();
        self.last = Instant::now();
        (((self.last - start_time).as_nanos() as u64).max(1), result)
    }
    /// Returns `[faults, switches]`; each value is `true` if such events occurred since the last check.
    fn faults_and_switches(&mut self) -> [bool; 2] {
        let usage_now = usage();
        let switched = [usage_now.0 > self.before.0, usage_now.1 > self.before.1];
        (self.before, self.last) = (usage_now, Instant::now());
        switched
    }
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("a histogram")
}

/// Returns the numbers of page faults and of context switches that the calling thread has had so far.
fn usage() -> (i64, i64) {
    getrusage(UsageWho::RUSAGE_THREAD).map_or((0, 0), |u: Usage| {
        let switches = u.voluntary_context_switches() + u.involuntary_context_switches();
        (u.minor_page_faults() + u.major_page_faults(), switches)
    })
}

impl Latency {
    /// The function `alloc` also writes to the allocated memory, because a user needs memory that can be written to.
    fn time<A, B>(
        &self,
        context: &Context<'_>,
        frames: usize,
        allocator: &mut A,
        alloc: impl Fn(&mut A, Layout) -> Option<B>,
        free: impl Fn(&mut A, B),
    ) -> anyhow::Result<AllocatorTimes> {
        let mut rng = context.rng();
        let (mut allocs, mut frees, mut worst_frame) = (CallTimes::new()?, CallTimes::new()?, [0; 2]);
        let mut blocks = Vec::with_capacity(self.allocations as usize);
        let mut clock = Clock::new();
        for _ in 0..frames {
            let mut frame = [0; 2];
            let mut add = |times: &mut CallTimes, elapsed: u64, clock: &mut Clock| {
                frame[0] += elapsed;
                frame[1] += if times.record(elapsed, clock) { elapsed } else { 0 };
            };
            for _ in 0..self.allocations {
                let layout = Layout::from_size_align(rng.random_range(16..=1024), 16)?;
                let (elapsed, block) = clock.time(|| alloc(allocator, layout));
                blocks.push(block.context("the memory has no room for a frame")?);
                add(&mut allocs, elapsed, &mut clock);
            }
            for block in blocks.drain(..) {
                let (elapsed, ()) = clock.time(|| free(allocator, black_box(block)));
                add(&mut frees, elapsed, &mut clock);
            }
            worst_frame = [0, 1].map(|i| worst_frame[i].max(frame[i]));
        }
        Ok(AllocatorTimes { allocs, frees, worst_frame })
    }

    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<Findings> {
        let question = "how long does the slowest allocation take, and why?";
        let mut findings = Findings::new("latency", question, context.seed);
        let options = format!("--frames {} --allocations {}", self.frames, self.allocations);
        check_bound(
            &options,
            u64::from(self.frames) * u64::from(self.allocations),
            20_000_000,
            "allocations, one times the other",
        )?;
        if context.exact {
            findings.note("All that it finds is measured in time.");
            return Ok(findings);
        }
        let room = (self.allocations as usize * 1024).next_multiple_of(4096);
        let subsystem = Subsystem::new(Config { check_frees: false, ..Config::default() })?;
        let malloc = Malloc::new(&subsystem)?;
        let rounds = context.rounds();
        let frames = (context.scale(self.frames as usize) / rounds).max(1);
        let stage = context.progress.stage("latency", (NAMES.len() * rounds) as u64);
        let mut all: [Vec<AllocatorTimes>; 4] = Default::default();
        for round in 0..rounds {
            for (round_index, i) in clock::turns(round, NAMES.len()).enumerate() {
                all[i].push(match i {
                    FRESH_HEAP => {
                        self.time(context, frames, &mut System::default(), alloc_and_write, Allocator::free)?
                    }
                    FRAGMENTED_HEAP => {
                        let mut system = System::default();
                        let _holes = fragment(context, &mut system)?;
                        self.time(context, frames, &mut system, alloc_and_write, Allocator::free)?
                    }
                    LINEAR => {
                        let mut linear = Linear::fixed(room)?.without_fill();
                        self.time(context, frames, &mut linear, alloc_and_write, Allocator::free)?
                    }
                    _ => {
                        // The slabs are in a separate subsystem, with this machine's mechanism for CPUs instead of the
                        // lab's simulated CPU.
                        let alloc = |_: &mut (), layout| {
                            let mut block = malloc.alloc_block(layout, Gfp::KERNEL).ok()?;
                            *black_box(&mut block.front_mut(1)[0]) = 1;
                            Some(block)
                        };
                        self.time(context, frames, &mut (), alloc, |(), block: Block<'_>| drop(block))?
                    }
                });
                stage.at((round * NAMES.len() + round_index + 1) as u64);
            }
        }
        drop(stage);
        claim(&mut findings, self, &all);
        let all = NAMES.into_iter().zip(all);
        let all = all
            .map(|(name, rounds)| Ok((name, AllocatorTimes::sum(rounds)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        report(&mut findings, &all);
        Ok(findings)
    }
}

/// Allocates a block and writes its first byte.
fn alloc_and_write<A: Allocator>(allocator: &mut A, layout: Layout) -> Option<A::Block> {
    let mut block = allocator.alloc(layout)?;
    allocator.touch(&mut block);
    Some(block)
}

/// Fragments a heap: 50,000 blocks of all sizes remain, with the same number of holes between them.
fn fragment<A: Allocator>(context: &Context<'_>, allocator: &mut A) -> anyhow::Result<Vec<A::Block>> {
    let mut rng = context.rng();
    let mut all = Vec::new();
    for _ in 0..100_000 {
        let layout = Layout::from_size_align(rng.random_range(16..=2048), 16)?;
        all.push(allocator.alloc(layout).context("the memory is too small to fragment a heap")?);
    }
    let mut kept_blocks = Vec::new();
    for block in all {
        if rng.random() { kept_blocks.push(block) } else { allocator.free(block) }
    }
    Ok(kept_blocks)
}

/// The quantiles in the table: a value `n` means that one call in `n` is at least as slow as the quantile.
const QUANTILES_ONE_IN: [u64; 7] = [2, 10, 100, 1000, 10_000, 100_000, 1_000_000];

/// Returns the shortest duration among the slowest `1 / fraction` of the samples; `None` if there are too few
/// samples.
fn min_of_slowest(times: &Histogram<u64>, fraction: u64) -> Option<u64> {
    (times.len() >= fraction).then(|| times.value_at_quantile(1.0 - 1.0 / fraction as f64))
}

/// Builds a table of durations by quantile, either for all calls or only for calls that no other program interrupted.
fn quantiles(
    title: String,
    all: &[(&str, AllocatorTimes)],
    histogram_of: fn(&CallTimes) -> &Histogram<u64>,
) -> Table {
    let columns = [
        "allocator",
        "~samples",
        "~p50",
        "~p99",
        "~p99.9",
        "~p99.99",
        "~max",
        "~free p50",
        "~free p99.9",
        "~free max",
    ];
    let mut table = Table::new(title, &columns);
    for (name, allocator_times) in all {
        let (allocs, frees) = (histogram_of(&allocator_times.allocs), histogram_of(&allocator_times.frees));
        let alloc = [2, 100, 1000, 10_000].map(|fraction| min_of_slowest(allocs, fraction).into());
        let free = [2, 1000].map(|fraction| min_of_slowest(frees, fraction).into());
        table.row(
            [
                vec![(*name).into(), allocs.len().into()],
                alloc.into(),
                vec![allocs.max().into()],
                free.into(),
                vec![frees.max().into()],
            ]
            .concat(),
        );
    }
    table
}

fn report(findings: &mut Findings, all: &[(&str, AllocatorTimes)]) {
    findings.table(quantiles(
        "An allocation of 16 to 1,024 bytes with its first write, ns; the clock's own cost is in each"
            .to_owned(),
        all,
        |times| &times.all,
    ));
    findings.table(quantiles(
        "The same without calls in which the system ran something else, ns".to_owned(),
        all,
        |times| &times.own,
    ));
    let mut causes = Table::new(
        format!(
            "Why allocations took {SLOW_CALL_NS} ns or more, and the cost of the worst frame with its frees"
        ),
        &[
            "allocator",
            "~descheduled",
            "~page faults",
            "~itself",
            "~worst frame, ms",
            "~without descheduled calls, ms",
            "~of a frame at 60 Hz, %",
        ],
    );
    for (name, allocator_times) in all {
        let SlowCallCauses { faults, switches, own: own_causes } = allocator_times.allocs.causes;
        let worst_frame_ms = allocator_times.worst_frame.map(|nanoseconds| nanoseconds as f64 / 1e6);
        causes.row(vec![
            (*name).into(),
            switches.into(),
            faults.into(),
            own_causes.into(),
            Value::Number(worst_frame_ms[0], 3),
            Value::Number(worst_frame_ms[1], 3),
            Value::Number(worst_frame_ms[1] * 100.0 / FRAME, 1),
        ]);
    }
    findings.table(causes);
    findings.note(
        "The system says when it ran something else on this CPU. What a machine below it took away, and interrupts, it does not say: \
         that is in the column of the allocator itself.",
    );
    let own_causes = |allocator_times: &AllocatorTimes| {
        let times = &allocator_times.allocs.own;
        QUANTILES_ONE_IN
            .into_iter()
            .filter_map(|n| Some((n as f64, min_of_slowest(times, n)? as f64)))
            .collect()
    };
    findings.chart(Chart {
        title: "The slowest allocation in N, without descheduled ones".into(),
        x: Axis::logarithmic("one in"),
        y: Axis::logarithmic("ns"),
        series: all
            .iter()
            .map(|(name, allocator_times)| Series {
                name: (*name).into(),
                points: own_causes(allocator_times),
            })
            .collect(),
        measured: true,
    });
    findings.chart(Chart {
        title: "Allocations that took so long, without descheduled ones".into(),
        x: Axis::logarithmic("ns"),
        y: Axis::logarithmic("allocations"),
        series: all
            .iter()
            .map(|(name, allocator_times)| Series {
                name: (*name).into(),
                points: bins(&allocator_times.allocs.own),
            })
            .collect(),
        measured: true,
    });
}

/// Returns each non-empty bin of the histogram: its lower end in nanoseconds, and its number of samples. The histogram
/// has four bins per power of two.
fn bins(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut bins = std::collections::BTreeMap::new();
    for value in times.iter_recorded() {
        let power = 1_u64 << value.value_iterated_to().max(1).ilog2();
        let part = (value.value_iterated_to() - power) * 4 / power;
        *bins.entry(power + part * power / 4).or_insert(0) += value.count_since_last_iteration();
    }
    bins.into_iter().map(|(bin, count)| (bin as f64, count as f64)).collect()
}

/// Adds the claim about the slowest calls; it compares a quantile that at least ten samples of each round exceed. Calls
/// during which the thread lost its CPU do not count. The claim compares the allocators separately in each round.
fn claim(findings: &mut Findings, latency: &Latency, all: &[Vec<AllocatorTimes>]) {
    let samples =
        all.iter().flatten().map(|allocator_times| allocator_times.allocs.own.len()).min().unwrap_or(0);
    let Some(fraction) = [10_000, 1000, 100].into_iter().find(|fraction| samples >= 10 * fraction) else {
        return findings
            .note("There are too few allocations to judge the slowest: expected at least 1,000 in a round.");
    };
    let ratio = |malloc: usize, fraction: u64| {
        let tail_of = |allocator_times: &AllocatorTimes| {
            min_of_slowest(&allocator_times.allocs.own, fraction).unwrap_or(1) as f64
        };
        let rounds = all[malloc].iter().zip(&all[LINEAR]);
        Spread::of(rounds.map(|(malloc, linear)| tail_of(malloc) / tail_of(linear)).collect())
    };
    let (median, fresh_tail, tail) =
        (ratio(FRESH_HEAP, 2), ratio(FRESH_HEAP, fraction), ratio(FRAGMENTED_HEAP, fraction));
    findings.claim(Claim {
        says: "malloc and a bump pointer have the same median, and malloc's tail is two orders of magnitude longer".into(),
        source: "Memory Allocators from Scratch".into(),
        found: format!(
            "malloc's median is {} times the linear allocator's. Of {fraction} calls, malloc's slowest takes {} times as long as the linear \
             allocator's in a fresh heap, and {} times as long in a fragmented heap. Frames have {} allocations; descheduled calls are omitted. \
             Less than 1.5 times counts as the same median, and at least 50 times as a tail that is two orders of magnitude longer",
            median.shown(1),
            fresh_tail.shown(0),
            tail.shown(0),
            latency.allocations
        ),
        holds: Holds::each([median.at_most(1.5), fresh_tail.at_least(50.0), tail.at_least(50.0)]),
        measured: true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_with_too_few_samples_is_not_shown() {
        let mut times = histogram().unwrap();
        (1..=1000).for_each(|nanoseconds| times.saturating_record(nanoseconds));
        assert_eq!(min_of_slowest(&times, 2), Some(500));
        assert_eq!(min_of_slowest(&times, 1000), Some(999));
        assert_eq!(min_of_slowest(&times, 10_000), None);
    }

    #[test]
    fn latency_histogram_has_four_bins_per_power_of_two() {
        let mut times = histogram().unwrap();
        for nanoseconds in [1, 4, 5, 6, 7, 8, 9, 100, 111, 112, 127, 128] {
            times.saturating_record(nanoseconds);
        }
        let expected = [(1, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2), (96, 2), (112, 2), (128, 1)];
        assert_eq!(bins(&times), expected.map(|(bin, count)| (f64::from(bin), f64::from(count))));
    }

    #[test]
    fn only_a_context_switch_excludes_a_slow_call() {
        let mut times = CallTimes::new().unwrap();
        let mut clock = Clock::new();
        // An old count of -1 simulates a context switch since the last check; an old count of `i64::MAX` simulates
        // none.
        clock.before.1 = -1;
        assert!(!times.record(SLOW_CALL_NS, &mut clock), "the thread must have been descheduled");
        clock.before.1 = i64::MAX;
        assert!(times.record(SLOW_CALL_NS, &mut clock));
        assert!(times.record(SLOW_CALL_NS - 1, &mut clock), "a fast call must not be examined");
        assert_eq!((times.all.len(), times.own.len(), times.causes.switches), (3, 2, 1));
    }
}
