//! Time, where an experiment needs it: the CPU time of loops, and rounds in which everybody has a turn.
//!
//! What a loop costs is the CPU time of its thread: being descheduled does not count, so a busy machine blurs it less than
//! wall-clock time. Whoever is compared runs in turn, and the median of the rounds counts: what the machine does meanwhile
//! falls on all alike.

use nix::time::{ClockId, clock_gettime};
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

/// Runs each contender `rounds` times, in turn; the medians of what they returned, in the contenders' order.
pub fn medians<const N: usize>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> [f64; N],
) -> Vec<[f64; N]> {
    let mut samples = vec![Vec::with_capacity(rounds); contenders];
    for round in 0..rounds {
        for i in turns(round, contenders) {
            samples[i].push(turn(i));
        }
    }
    samples
        .into_iter()
        .map(|s| core::array::from_fn(|k| median(s.iter().map(|row| row[k]).collect())))
        .collect()
}

/// The same, where a turn may fail: the first failure ends it.
///
/// # Errors
/// A turn's own.
pub fn try_medians<const N: usize, E>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> Result<[f64; N], E>,
) -> Result<Vec<[f64; N]>, E> {
    let mut failed = None;
    let medians = medians(rounds, contenders, |i| match failed {
        Some(_) => [0.0; N],
        None => turn(i).unwrap_or_else(|error| {
            failed = Some(error);
            [0.0; N]
        }),
    });
    failed.map_or(Ok(medians), Err)
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
        let medians = medians(3, 2, |i| {
            order.push(i);
            [i as f64, order.len() as f64]
        });
        assert_eq!((medians[0][0], medians[1][0], order.len()), (0.0, 1.0, 6));
        let mut turns = 0;
        let failed = try_medians(3, 2, |i| {
            turns += 1;
            if turns == 4 { Err(i) } else { Ok([1.0]) }
        });
        assert_eq!((failed, turns), (Err(super::turns(1, 2).nth(1).unwrap()), 4));
        assert_eq!(try_medians(3, 2, |i| Ok::<_, ()>([i as f64])), Ok(vec![[0.0], [1.0]]));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!([vec![], vec![3.0, 1.0, 2.0], vec![4.0, 1.0, 2.0, 3.0]].map(median), [0.0, 2.0, 2.5]);
    }
}
