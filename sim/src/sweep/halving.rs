//! Successive halving: the first round runs all settings on few traces or seeds; later rounds run the best settings on
//! more of them.
//!
//! Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
//! (AISTATS 2016). The number of traces and of seeds grows from round to round; each run of a round is also a
//! run of the whole sweep.

/// Returns the number of settings in each round, from all settings down to at most `factor`. The parameter `lists`
/// contains the number of traces and the number of seeds. The number of rounds is limited, because each round must have
/// more traces or more seeds than the previous one. A setting is therefore never dropped only on the evidence of runs
/// from earlier rounds.
pub(super) fn rounds(settings: u64, factor: u64, lists: [usize; 2]) -> Vec<u64> {
    let reduced = |n: u64, min: u64| (n > min).then(|| n.div_ceil(factor));
    let last_rounds = |all: usize| std::iter::successors(Some(all as u64), |n| reduced(*n, 1)).count();
    let rounds = std::iter::successors(Some(settings), |n| reduced(*n, factor));
    rounds.take(lists.map(last_rounds).into_iter().max().unwrap_or(1)).collect()
}

/// Returns how many of `all` traces (or seeds) a round has: all in the last round, and a part, but at least one, in
/// each earlier round.
pub(super) fn part(all: usize, round: usize, rounds: usize, factor: u64) -> usize {
    let rounds_left = rounds.saturating_sub(round + 1) as u32;
    let divisor =
        factor.checked_pow(rounds_left).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if all == 0 { 0 } else { all.div_ceil(divisor) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_halving_round_keeps_a_third_of_the_settings() {
        assert_eq!(rounds(27, 3, [0, 20]), [27, 9, 3]);
        assert_eq!(rounds(28, 3, [28, 0]), [28, 10, 4, 2]);
        assert_eq!(rounds(1, 3, [9, 9]), [1]);
        assert_eq!([0, 1, 2].map(|round| part(20, round, 3, 3)), [3, 7, 20]);
        assert_eq!(part(0, 0, 3, 3), 0);
        assert_eq!(part(5, 0, 70, 3), 1);
    }

    /// Regression test: of 35 settings on 3 seeds, 31 were dropped in rounds two and three because of the single seed
    /// of round one.
    #[test]
    fn each_halving_round_uses_more_seeds() {
        assert_eq!(rounds(35, 3, [0, 3]), [35, 12]);
        assert_eq!(rounds(35, 3, [0, 1]), [35]);
        assert_eq!(rounds(35, 3, [1, 4]), [35, 12, 4]);
    }

    proptest! {
        #[test]
        fn tuning_rounds_have_fewer_settings_and_more_traces_or_seeds(
            settings in 1..1_000_000_u64,
            factor in 2..10_u64,
            traces in 0..100_usize,
            seeds in 1..100_usize,
        ) {
            let sizes = rounds(settings, factor, [traces, seeds]);
            prop_assert_eq!(sizes[0], settings);
            prop_assert!(sizes.windows(2).all(|pair| pair[1] < pair[0] && pair[1] * factor >= pair[0]));
            let parts_of = |round| [traces, seeds].map(|all| part(all, round, sizes.len(), factor));
            for round in 1..sizes.len() {
                let (before, current) = (parts_of(round - 1), parts_of(round));
                prop_assert!(before[0] <= current[0] && before[1] <= current[1] && before != current, "{:?} {:?}", before, current);
            }
            prop_assert_eq!(parts_of(sizes.len() - 1), [traces, seeds]);
        }
    }
}
