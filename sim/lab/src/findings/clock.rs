//! Measures the CPU time of loops, in rounds in which the contenders run alternately.
//!
//! The cost of a loop is the CPU time that its thread used. Time in which the thread does not run does not count, so a
//! busy machine distorts CPU time less than wall-clock time. Contenders run alternately, so that disturbances of the
//! machine affect all contenders equally. The result is the median over all rounds, with an interval. A claim is
//! decided only if the whole interval is on one side of its limit.

use super::Holds;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// Returns the CPU time of the calling thread. The call costs a system call, about 0.2 microseconds.
pub fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns the nanoseconds of CPU time that a call of `work` took.
pub fn nanoseconds(work: impl FnOnce()) -> f64 {
    let start_time = cpu();
    work();
    (cpu() - start_time).as_nanos() as f64
}

/// Returns the order in which the contenders run in a round. Each round begins with a different contender and reverses
/// the direction, so no contender always runs after the same one.
pub fn turns(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |i| {
        let i = (i + round) % contenders;
        if round.is_multiple_of(2) { i } else { contenders - 1 - i }
    })
}

/// The measurements of one contender, for each round. Measurements of two contenders can be compared if they belong to
/// the same round.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples<const N: usize>(Vec<[f64; N]>);

/// The median of several rounds, with an interval that contains the true median with a confidence of at least 95 %. The
/// ends of the interval are the `k`-th values from both ends of `n` sorted values; `k` follows from the binomial
/// distribution. With fewer than six rounds, the interval goes from the smallest to the largest value. The interval
/// does not assume any distribution of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value of the sorted measurements, or the mean of the two middle values.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The number of rounds in which the value was measured.
    pub rounds: usize,
}

/// Runs each contender `rounds` times; in each round, every contender runs once.
pub fn rounds<const N: usize>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> [f64; N],
) -> Vec<Samples<N>> {
    let mut samples = vec![Samples(Vec::with_capacity(rounds)); contenders];
    for round in 0..rounds {
        for i in turns(round, contenders) {
            samples[i].0.push(turn(i));
        }
    }
    samples
}

/// Runs each contender as [`rounds`] does, but a turn may fail; the first failure ends the run.
///
/// # Errors
/// Returns the error of the first turn that fails.
pub fn try_rounds<const N: usize, E>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> Result<[f64; N], E>,
) -> Result<Vec<Samples<N>>, E> {
    let mut first_error = None;
    let samples = self::rounds(rounds, contenders, |i| match first_error {
        Some(_) => [0.0; N],
        None => turn(i).unwrap_or_else(|error| {
            first_error = Some(error);
            [0.0; N]
        }),
    });
    first_error.map_or(Ok(samples), Err)
}

impl<const N: usize> Samples<N> {
    /// Returns the spread of one of the measured quantities over all rounds.
    pub fn spread(&self, index: usize) -> Spread {
        self.spread_of(|round| round[index])
    }
    /// Returns the spread of a value that `value_of` computes from the measurements of each round.
    pub fn spread_of(&self, value_of: impl Fn(&[f64; N]) -> f64) -> Spread {
        Spread::of(self.0.iter().map(value_of).collect())
    }
    /// Returns the spread of the ratio to `other`; the ratio is computed for each round, because a disturbance affects
    /// both contenders of a round.
    pub fn times(&self, other: &Self, index: usize) -> Spread {
        Spread::of(self.pairs(other).map(|(a, b)| a[index] / b[index]).collect())
    }
    /// Iterates over the rounds, with the measurements of this contender and of `other`.
    pub fn pairs<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = (&'s [f64; N], &'s [f64; N])> {
        self.0.iter().zip(&other.0)
    }
}

impl Spread {
    /// The smallest number of rounds that can decide a claim.
    const MIN_DECIDING_ROUNDS: usize = 5;

    /// Returns the spread of `values`.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return Self::default() };
        let omitted = omitted_values_per_end(values.len());
        let (low, high) = match omitted {
            0 => (*first, *last),
            omitted => (values[omitted], values[values.len() - 1 - omitted]),
        };
        let rounds = values.len();
        Self { low, high, rounds, median: median(values) }
    }
    /// Decides the claim that the value is at most `limit`. A decision requires at least five rounds, and an interval
    /// that is wholly on one side of the limit.
    pub fn at_most(self, limit: f64) -> Holds {
        match self {
            _ if self.rounds < Self::MIN_DECIDING_ROUNDS => Holds::Undecided,
            _ if self.high <= limit => Holds::Yes,
            _ if self.low > limit => Holds::No,
            _ => Holds::Undecided,
        }
    }
    /// Decides the claim that the value is at least `limit`.
    pub fn at_least(self, limit: f64) -> Holds {
        match self {
            _ if self.rounds < Self::MIN_DECIDING_ROUNDS => Holds::Undecided,
            _ if self.low >= limit => Holds::Yes,
            _ if self.high < limit => Holds::No,
            _ => Holds::Undecided,
        }
    }
    /// Decides the claim that the value is at least `min` and at most `max`.
    pub fn is_between(self, min: f64, max: f64) -> Holds {
        match (self.at_least(min), self.at_most(max)) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Yes, Holds::Yes) => Holds::Yes,
            _ => Holds::Undecided,
        }
    }
    /// Formats the median, followed by the interval, with `decimals` decimals each.
    pub fn shown(self, decimals: usize) -> String {
        let Self { median, low, high, .. } = self;
        format!("{median:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }
}

/// Returns the number of values to omit at each end; the remaining values enclose the median with a confidence of 95 %.
fn omitted_values_per_end(n: usize) -> usize {
    // The probability that at most `k` of `n` values are below the median is summed from the binomial distribution,
    // term by term.
    let (mut term, mut sum, mut k) = (0.5_f64.powi(n as i32), 0.0, 0_usize);
    loop {
        sum += term;
        if 2.0 * sum > 0.05 || n < 6 {
            return k.saturating_sub(1);
        }
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
}

/// Returns the middle value, or the mean of the two middle values; 0 for an empty list.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_take_turns_to_run_first() {
        for contenders in 1..6 {
            let first: Vec<usize> =
                (0..contenders).map(|round| turns(round, contenders).next().unwrap()).collect();
            for round in 0..10 {
                let mut turn_order: Vec<usize> = turns(round, contenders).collect();
                turn_order.sort_unstable();
                assert!(turn_order.into_iter().eq(0..contenders));
            }
            assert!(contenders < 3 || first.iter().any(|f| *f != first[0]), "{first:?}");
        }
        let mut order = Vec::new();
        let samples = rounds(3, 2, |i| {
            order.push(i);
            [i as f64, order.len() as f64]
        });
        assert_eq!((samples[0].spread(0).median, samples[1].spread(0).median, order.len()), (0.0, 1.0, 6));
        let mut turns = 0;
        let first_error = try_rounds(3, 2, |i| {
            turns += 1;
            if turns == 4 { Err(i) } else { Ok([1.0]) }
        });
        assert_eq!((first_error, turns), (Err(super::turns(1, 2).nth(1).unwrap()), 4));
        let complete = try_rounds(3, 2, |i| Ok::<_, ()>([i as f64]));
        assert_eq!(complete, Ok(vec![Samples(vec![[0.0]; 3]), Samples(vec![[1.0]; 3])]));
    }

    #[test]
    fn confidence_interval_follows_the_binomial_distribution() {
        // Tables of the sign test give ranks 1, 1, 2, 3 and 16 from either end.
        assert_eq!([1, 5, 8, 9, 12, 45].map(omitted_values_per_end), [0, 0, 0, 1, 2, 15]);
        let spread = Spread::of((1..=9).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 5.0, low: 2.0, high: 8.0, rounds: 9 });
        assert_eq!(spread.shown(1), "5.0 (2.0 to 8.0)");
        assert_eq!(Spread::of(vec![]), Spread::default());
    }

    /// Regression test: verdicts changed from run to run, because each depended on a single measurement.
    #[test]
    fn claim_is_undecided_if_the_interval_contains_the_limit() {
        let spread = Spread::of((1..=9).map(f64::from).collect());
        assert_eq!([1.0, 5.0, 8.0].map(|l| spread.at_most(l)), [Holds::No, Holds::Undecided, Holds::Yes]);
        assert_eq!([2.0, 5.0, 9.0].map(|l| spread.at_least(l)), [Holds::Yes, Holds::Undecided, Holds::No]);
        let verdicts =
            [(1.0, 9.0), (3.0, 9.0), (9.0, 12.0), (0.0, 1.0)].map(|(a, b)| spread.is_between(a, b));
        assert_eq!(verdicts, [Holds::Yes, Holds::Undecided, Holds::No, Holds::No]);
        // One run has no spread, and decides nothing.
        let single_value = Spread::of(vec![1.0]);
        assert_eq!(
            (single_value.at_most(100.0), single_value.at_least(0.0)),
            (Holds::Undecided, Holds::Undecided)
        );
    }

    #[test]
    fn ratios_compare_times_within_a_round() {
        let (mut round, mut samples) = (0, rounds(5, 2, |_| [0.0]));
        for i in 0..5 {
            round += 1;
            samples[0].0[i] = [f64::from(round)];
            samples[1].0[i] = [2.0 * f64::from(round)];
        }
        assert_eq!(samples[1].times(&samples[0], 0), Spread { median: 2.0, low: 2.0, high: 2.0, rounds: 5 });
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!([vec![], vec![3.0, 1.0, 2.0], vec![4.0, 1.0, 2.0, 3.0]].map(median), [0.0, 2.0, 2.5]);
    }
}
