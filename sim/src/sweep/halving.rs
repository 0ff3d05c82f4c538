//! Successive halving: all settings on little, the best of them on more, until one is left.
//!
//! Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS 2016). What grows from
//! round to round is the number of traces and of seeds: each run is one of the whole sweep.

/// How many settings each round has, from all of them to at most `factor`.
pub(super) fn rounds(settings: u64, factor: u64) -> Vec<u64> {
    let fewer = |n: &u64| (*n > factor).then(|| n.div_ceil(factor));
    std::iter::successors(Some(settings), fewer).collect()
}

/// How many of a list a round has: all in the last one, and in each one before a part of it, at least one.
pub(super) fn part(all: usize, round: usize, rounds: usize, factor: u64) -> usize {
    let left = rounds.saturating_sub(round + 1) as u32;
    let divisor = factor.checked_pow(left).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if all == 0 { 0 } else { all.div_ceil(divisor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounds_have_a_third_each_and_the_last_one_all_seeds() {
        assert_eq!(rounds(27, 3), [27, 9, 3]);
        assert_eq!(rounds(28, 3), [28, 10, 4, 2]);
        assert_eq!(rounds(1, 3), [1]);
        assert_eq!([0, 1, 2].map(|round| part(20, round, 3, 3)), [3, 7, 20]);
        assert_eq!(part(0, 0, 3, 3), 0);
        assert_eq!(part(5, 0, 70, 3), 1);
    }

    proptest! {
        #[test]
        fn rounds_end_and_grow_as_settings_fall(settings in 1..1_000_000_u64, factor in 2..10_u64, seeds in 1..100_usize) {
            let sizes = rounds(settings, factor);
            prop_assert_eq!(sizes[0], settings);
            prop_assert!(*sizes.last().unwrap() <= factor);
            prop_assert!(sizes.windows(2).all(|pair| pair[1] < pair[0] && pair[1] * factor >= pair[0]));
            let seeds_of = |round| part(seeds, round, sizes.len(), factor);
            prop_assert!((1..sizes.len()).all(|round| seeds_of(round - 1) <= seeds_of(round)));
            prop_assert_eq!(seeds_of(sizes.len() - 1), seeds);
        }
    }
}
