//! Latency of single operations on one cache while other caches are disturbed. Each latency quantile is divided by the
//! same quantile of an undisturbed run.

use crate::tails::{RANKED_QUANTILES, TickHistogram, TimedChurn};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::time::{Duration, Instant};
use uslab_benches::mallocs::OneSizeObjects;
use uslab_benches::ours::sync::{AtomicBool, Mutex, Ordering};
use uslab_benches::ours::{DisturbedSubject, GlobalSubject, Kmem, TypedSubject};
use uslab_benches::team::pin;
use uslab_benches::{Bench, Column, Contender};

/// What the second CPU does while the operations are timed.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// The reaper reaps all caches once a second.
    Reaper,
    /// A thread creates, uses once and destroys 1,000 caches a second.
    Births,
    /// Drains of another cache wait for a CPU whose thread was interrupted and does not run. On systems with
    /// restartable sequences, a drain never waits for an interrupted thread.
    StuckDrain,
}

const DISTURBANCES: [(&str, Disturbance); 3] = [
    ("reaper", Disturbance::Reaper),
    ("births", Disturbance::Births),
    ("stuck drain", Disturbance::StuckDrain),
];

/// Time for which an interrupted thread is kept from running.
const INTERRUPTION_TIME: Duration = Duration::from_millis(20);

impl Disturbance {
    /// Disturbs the other caches until `stop` is set. Returns the number of disturbances per second.
    fn run<S: DisturbedSubject>(self, stop: &AtomicBool) -> f64 {
        let is_stopped = || stop.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut times = 0;
        match self {
            Self::Reaper => times = repeat_every(Duration::from_secs(1), &is_stopped, S::reap),
            Self::Births => times = repeat_every(Duration::from_millis(1), &is_stopped, || S::other().pair()),
            Self::StuckDrain => {
                let action = SigAction::new(
                    SigHandler::Handler(spin_in_signal_handler),
                    SaFlags::SA_RESTART,
                    SigSet::empty(),
                );
                // SAFETY: the handler only makes an async-signal-safe call.
                unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("a handler");
                let other_allocator = S::other();
                let victim = Mutex::new(None);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        pin(1);
                        *victim.lock() = Some(pthread_self());
                        while !is_stopped() {
                            other_allocator.pair();
                        }
                    });
                    while !is_stopped() {
                        if let Some(victim) = *victim.lock() {
                            interrupt(victim);
                        }
                        // During the sleep, the victim runs on the CPU and gets the signal.
                        std::thread::sleep(Duration::from_millis(2));
                        other_allocator.drain();
                        times += 1;
                        std::thread::sleep(INTERRUPTION_TIME);
                    }
                });
            }
        }
        f64::from(times) / start.elapsed().as_secs_f64()
    }
}

/// Calls `action` once per interval; if a call is late, the next calls follow faster to catch up with the schedule.
/// Returns the number of calls of `action`.
fn repeat_every(interval: Duration, is_stopped: &impl Fn() -> bool, mut action: impl FnMut()) -> u32 {
    let mut next_time = Instant::now() + interval;
    let mut times = 0;
    while !is_stopped() {
        let now = Instant::now();
        if now < next_time {
            std::thread::sleep((next_time - now).min(Duration::from_millis(10)));
            continue;
        }
        action();
        times += 1;
        next_time += interval;
    }
    times
}

/// Stops a thread for [`INTERRUPTION_TIME`], at any instruction.
fn interrupt(thread: Pthread) {
    // The call fails if the thread has exited.
    _ = pthread_kill(thread, Signal::SIGUSR1);
}

extern "C" fn spin_in_signal_handler(_: libc::c_int) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(INTERRUPTION_TIME.subsec_nanos()) };
    // SAFETY: `nanosleep` is async-signal-safe; `time` is a local of this function.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Returns, for each disturbance, the quantiles of a disturbed run relative to a quiet run, and the number of
/// disturbances per second.
fn round<S: DisturbedSubject>(subject: &S, tail: &TimedChurn) -> Vec<f64> {
    let run = |disturbance: Option<Disturbance>| {
        let stop = AtomicBool::new(false);
        let (ticks, rate) = std::thread::scope(|scope| {
            let disturbing = disturbance.map(|disturbance| {
                let stop = &stop;
                scope.spawn(move || {
                    pin(1);
                    disturbance.run::<S>(stop)
                })
            });
            let measuring_thread = scope.spawn(|| {
                pin(0);
                tail.measure(&mut subject.local())
            });
            let ticks = measuring_thread.join().expect("the measuring thread must not panic");
            stop.store(true, Ordering::Relaxed);
            (
                ticks,
                disturbing.map_or(0.0, |thread| thread.join().expect("the disturbing thread must not panic")),
            )
        });
        let quantiles = |ticks: TickHistogram| {
            RANKED_QUANTILES.map(|(_, quantile)| ticks.value_at_quantile(quantile) as f64)
        };
        (ticks.into_iter().flat_map(quantiles).collect::<Vec<_>>(), rate)
    };
    let results_of = |(_, disturbance)| {
        let (undisturbed, _) = run(None);
        let (disturbed, rate) = run(Some(disturbance));
        disturbed
            .into_iter()
            .zip(undisturbed)
            .map(|(disturbed, undisturbed)| disturbed / undisturbed)
            .chain([rate])
    };
    DISTURBANCES.into_iter().flat_map(results_of).collect()
}

fn contender<S: DisturbedSubject>(tail: &TimedChurn) -> Contender {
    let (tail, mut subject) = (tail.clone(), None);
    Contender::new(S::NAME, S::KIND, move || round(subject.get_or_insert_with(|| S::new(tail.live)), &tail))
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "disturbed",
        "quantiles of single operations of `churn`, divided by the same quantiles of an undisturbed run; the disturbing thread runs on the second CPU",
    );
    let columns = DISTURBANCES.into_iter().flat_map(|(name, _)| {
        let quantiles = ["alloc", "free"].into_iter().flat_map(move |operation| {
            RANKED_QUANTILES.map(|(quantile, _)| {
                Column::ratio(format!("{name}, {operation} {quantile}"))
                    .count_in_summary_row(format!("disturbed, {name}"))
            })
        });
        quantiles.chain([Column::higher(format!("{name}, times"), "a second").exclude_from_summary()])
    });
    let columns: Vec<_> = columns.collect();
    let time = Duration::from_millis(if bench.is_quick() { 50 } else { 2500 });
    let tail = TimedChurn { time, ..TimedChurn::new(bench) };
    let contenders = vec![
        contender::<Kmem<8>>(&tail),
        contender::<TypedSubject<8>>(&tail),
        contender::<OneSizeObjects<GlobalSubject, 8>>(&tail),
    ];
    bench.group("", columns, contenders);
}
