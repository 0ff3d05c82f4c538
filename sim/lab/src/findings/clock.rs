//! Time, where an experiment needs it: the CPU time of loops, and rounds in which everybody has a turn.
//!
//! What a loop costs is the CPU time of its thread: being descheduled does not count, so a busy machine blurs it less than
//! wall-clock time. Whoever is compared runs in turn: what the machine does meanwhile falls on all alike. The median of the
//! rounds counts, with an interval for it. A claim is decided only where the whole interval lies on one side.

use super::Holds;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// CPU time of the calling thread. A system call, 0.2 microseconds or so.
pub fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Nanoseconds of CPU time that `work` took.
pub fn nanoseconds(work: impl FnOnce()) -> f64 {
    let start = cpu();
    work();
    (cpu() - start).as_nanos() as f64
}

/// Who has a turn when in a round of `contenders`: each round begins with another one, in turn forwards and backwards, so
/// that no one always follows the same one.
pub fn turns(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |i| {
        let i = (i + round) % contenders;
        if round.is_multiple_of(2) { i } else { contenders - 1 - i }
    })
}

/// What each round of a contender measured, in the order of the rounds: round 3 of one ran beside round 3 of another.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples<const N: usize>(Vec<[f64; N]>);

/// The median of some rounds, and an interval that it lies in with 95 % of confidence or more: of `n` values in order the
/// `k`-th from either end, as the binomial distribution has it. Fewer than six rounds have their whole range. Nothing is
/// taken for granted of how times are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// Where the interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// Rounds.
    pub rounds: usize,
}

/// Runs each contender `rounds` times, in turn.
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

/// The same, where a turn may fail: the first failure ends it.
///
/// # Errors
/// A turn's own.
pub fn try_rounds<const N: usize, E>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> Result<[f64; N], E>,
) -> Result<Vec<Samples<N>>, E> {
    let mut failed = None;
    let samples = self::rounds(rounds, contenders, |i| match failed {
        Some(_) => [0.0; N],
        None => turn(i).unwrap_or_else(|error| {
            failed = Some(error);
            [0.0; N]
        }),
    });
    failed.map_or(Ok(samples), Err)
}

impl<const N: usize> Samples<N> {
    /// Of one of the things measured.
    pub fn spread(&self, thing: usize) -> Spread {
        self.each(|round| round[thing])
    }
    /// Of what follows from all that a round measured.
    pub fn each(&self, of: impl Fn(&[f64; N]) -> f64) -> Spread {
        Spread::of(self.0.iter().map(of).collect())
    }
    /// How many times as much of it as `other` had in the same round: what a round disturbs falls on both.
    pub fn times(&self, other: &Self, thing: usize) -> Spread {
        Spread::of(self.pairs(other).map(|(a, b)| a[thing] / b[thing]).collect())
    }
    /// What this one and `other` measured in each round.
    pub fn pairs<'s>(&'s self, other: &'s Self) -> impl Iterator<Item = (&'s [f64; N], &'s [f64; N])> {
        self.0.iter().zip(&other.0)
    }
}

impl Spread {
    /// Rounds below which nothing is decided.
    const FEWEST: usize = 5;

    /// Of these values.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return Self::default() };
        let cut = left_out(values.len());
        let (low, high) = match cut {
            0 => (*first, *last),
            cut => (values[cut], values[values.len() - 1 - cut]),
        };
        let rounds = values.len();
        Self { low, high, rounds, median: median(values) }
    }
    /// Whether it is so much or less: decided where the interval lies on one side, and there were five rounds or more.
    pub fn at_most(self, limit: f64) -> Holds {
        match self {
            _ if self.rounds < Self::FEWEST => Holds::Undecided,
            _ if self.high <= limit => Holds::Yes,
            _ if self.low > limit => Holds::No,
            _ => Holds::Undecided,
        }
    }
    /// Whether it is so much or more.
    pub fn at_least(self, limit: f64) -> Holds {
        match self {
            _ if self.rounds < Self::FEWEST => Holds::Undecided,
            _ if self.low >= limit => Holds::Yes,
            _ if self.high < limit => Holds::No,
            _ => Holds::Undecided,
        }
    }
    /// Whether it is from `least` to `most`.
    pub fn between(self, least: f64, most: f64) -> Holds {
        match (self.at_least(least), self.at_most(most)) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Yes, Holds::Yes) => Holds::Yes,
            _ => Holds::Undecided,
        }
    }
    /// With so many decimals: the median, and the interval behind it.
    pub fn shown(self, decimals: usize) -> String {
        let Self { median, low, high, .. } = self;
        format!("{median:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }
}

/// How many of `n` values are left out at either end: as many as leave 95 % of confidence that the median lies between.
fn left_out(n: usize) -> usize {
    // The chance that at most `k` of `n` values lie below the median: the binomial distribution's, term by term.
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

/// The middle one of them, or the mean of the two in the middle; 0 of none.
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
    fn everybody_has_a_turn_in_each_round_and_the_first_one_changes() {
        for contenders in 1..6 {
            let first: Vec<usize> =
                (0..contenders).map(|round| turns(round, contenders).next().unwrap()).collect();
            for round in 0..10 {
                let mut all: Vec<usize> = turns(round, contenders).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..contenders));
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
        let failed = try_rounds(3, 2, |i| {
            turns += 1;
            if turns == 4 { Err(i) } else { Ok([1.0]) }
        });
        assert_eq!((failed, turns), (Err(super::turns(1, 2).nth(1).unwrap()), 4));
        let fine = try_rounds(3, 2, |i| Ok::<_, ()>([i as f64]));
        assert_eq!(fine, Ok(vec![Samples(vec![[0.0]; 3]), Samples(vec![[1.0]; 3])]));
    }

    #[test]
    fn an_interval_leaves_out_what_the_binomial_distribution_allows() {
        // Tables of the sign test: ranks 1, 1, 2, 3 and 16 from either end.
        assert_eq!([1, 5, 8, 9, 12, 45].map(left_out), [0, 0, 0, 1, 2, 15]);
        let spread = Spread::of((1..=9).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 5.0, low: 2.0, high: 8.0, rounds: 9 });
        assert_eq!(spread.shown(1), "5.0 (2.0 to 8.0)");
        assert_eq!(Spread::of(vec![]), Spread::default());
    }

    /// Verdicts flipped from run to run: one number stood for all of them.
    #[test]
    fn an_interval_with_the_limit_in_it_decides_nothing() {
        let spread = Spread::of((1..=9).map(f64::from).collect());
        assert_eq!([1.0, 5.0, 8.0].map(|l| spread.at_most(l)), [Holds::No, Holds::Undecided, Holds::Yes]);
        assert_eq!([2.0, 5.0, 9.0].map(|l| spread.at_least(l)), [Holds::Yes, Holds::Undecided, Holds::No]);
        let between = [(1.0, 9.0), (3.0, 9.0), (9.0, 12.0), (0.0, 1.0)].map(|(a, b)| spread.between(a, b));
        assert_eq!(between, [Holds::Yes, Holds::Undecided, Holds::No, Holds::No]);
        // One run has no spread, and decides nothing either.
        let once = Spread::of(vec![1.0]);
        assert_eq!((once.at_most(100.0), once.at_least(0.0)), (Holds::Undecided, Holds::Undecided));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let (mut round, mut samples) = (0, rounds(5, 2, |_| [0.0]));
        for i in 0..5 {
            round += 1;
            samples[0].0[i] = [f64::from(round)];
            samples[1].0[i] = [2.0 * f64::from(round)];
        }
        assert_eq!(samples[1].times(&samples[0], 0), Spread { median: 2.0, low: 2.0, high: 2.0, rounds: 5 });
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!([vec![], vec![3.0, 1.0, 2.0], vec![4.0, 1.0, 2.0, 3.0]].map(median), [0.0, 2.0, 2.5]);
    }
}
