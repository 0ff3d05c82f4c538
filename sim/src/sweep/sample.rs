//! A Latin hypercube of `points` points: each axis is divided into `points` parts, and each part contains exactly one
//! point.
//!
//! Source: McKay, Beckman and Conover, "A Comparison of Three Methods for Selecting Values of Input Variables in the
//! Analysis of Output from a Computer Code" (Technometrics 21, 1979).
//!
//! If an axis has fewer values than points, several parts have the same value. Several points could then be equal on
//! all axes. Equal points exchange their parts of one axis with other points, until no two points are equal. After each
//! exchange, each part of an axis still contains exactly one point.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;

/// The number of exchanges to try for each point.
const TRIES: usize = 300;

/// For each axis, returns the part that contains each point. The parameter `values` contains the number of values of
/// each axis.
///
/// No two points have equal values if the number of combinations is at least twice the number of points. With fewer
/// combinations, a point is omitted if it still equals another point after many exchanges. The same seed gives the same
/// parts. The result takes four bytes for each point and axis.
pub(super) fn strata(points: u32, values: &[usize], seed: u64) -> Vec<Vec<u32>> {
    let mut parts = hypercube(points, values.len(), seed);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
    let mut random_below = |n: usize| rng.random_range(0..n as u64) as usize;
    let setting = |parts: &[Vec<u32>], point: usize| -> Vec<usize> {
        parts.iter().zip(values).map(|(axis, n)| value_of(axis[point], points, *n)).collect()
    };
    let points = points as usize;
    let mut uses_by_point: FxHashMap<Vec<usize>, usize> = FxHashMap::default();
    (0..points).for_each(|point| *uses_by_point.entry(setting(&parts, point)).or_default() += 1);
    for _ in 0..TRIES * points {
        if uses_by_point.len() == points || values.is_empty() {
            break;
        }
        let (point, other_point, axis) =
            (random_below(points), random_below(points), random_below(values.len()));
        if uses_by_point[&setting(&parts, point)] == 1 {
            continue;
        }
        let different = uses_by_point.len();
        let mut exchange = || {
            for point_index in [point, other_point] {
                if let Entry::Occupied(mut entry) = uses_by_point.entry(setting(&parts, point_index)) {
                    *entry.get_mut() -= 1;
                    if *entry.get() == 0 {
                        entry.remove();
                    }
                }
            }
            parts[axis].swap(point, other_point);
            for point_index in [point, other_point] {
                *uses_by_point.entry(setting(&parts, point_index)).or_default() += 1;
            }
            uses_by_point.len()
        };
        // An exchange that keeps the number of different points is accepted, too: otherwise the search would end where
        // no single exchange improves it.
        if exchange() < different {
            exchange();
        }
    }
    let mut seen_settings = FxHashSet::default();
    let kept_points: Vec<_> =
        (0..points).filter(|point| seen_settings.insert(setting(&parts, *point))).collect();
    parts.iter().map(|axis| kept_points.iter().map(|point| axis[*point]).collect()).collect()
}

fn hypercube(points: u32, axes: usize, seed: u64) -> Vec<Vec<u32>> {
    let axis = |number| {
        let mut rng =
            Xoshiro256PlusPlus::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut parts: Vec<u32> = (0..points).collect();
        for last in (1..points as usize).rev() {
            parts.swap(last, rng.random_range(0..=last as u64) as usize);
        }
        parts
    };
    (0..axes).map(axis).collect()
}

/// Returns the index of the value in the middle of a part, on an axis with `values` values.
pub(super) fn value_of(part: u32, points: u32, values: usize) -> usize {
    let doubled = (2 * u128::from(part) + 1) * values as u128 / (2 * u128::from(points));
    doubled as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_axis_part_has_one_point_and_no_points_are_equal(
            points in 1..200_u32,
            values in proptest::collection::vec(2..300_usize, 1..5),
            seed in any::<u64>(),
        ) {
            let all = strata(points, &values, seed);
            prop_assert_eq!(all.len(), values.len());
            let settings: FxHashSet<Vec<_>> = (0..all[0].len())
                .map(|point| all.iter().zip(&values).map(|(axis, n)| value_of(axis[point], points, *n)).collect())
                .collect();
            prop_assert_eq!(settings.len(), all[0].len());
            if values.iter().product::<usize>() >= 2 * points as usize {
                for mut axis in all {
                    axis.sort_unstable();
                    prop_assert_eq!(axis, (0..points).collect::<Vec<_>>());
                }
            }
        }

        #[test]
        fn sample_with_one_point_per_value_contains_every_value(points in 1..500_u32, values in 1..500_usize) {
            let mut hits = vec![0_u32; values];
            (0..points).for_each(|part| hits[value_of(part, points, values)] += 1);
            let (min_hits, max_hits) = (hits.iter().min().unwrap(), hits.iter().max().unwrap());
            prop_assert!(max_hits - min_hits <= 1, "{:?}", hits);
        }
    }

    #[test]
    fn sample_order_depends_on_seed_and_axes() {
        let two_strata = strata(100, &[1000, 1000], 1);
        assert_ne!(two_strata[0], two_strata[1]);
        assert_ne!(two_strata, strata(100, &[1000, 1000], 2));
        assert_eq!(two_strata, strata(100, &[1000, 1000], 1));
    }

    /// Regression test: some points of a hypercube with listed values were equal, so one setting was run twice.
    #[test]
    fn sample_repeats_no_setting() {
        for seed in 0..50 {
            let (points, values) = (32, [4, 4, 4]);
            let parts = strata(points, &values, seed);
            let settings: FxHashSet<Vec<_>> = (0..32)
                .map(|point| parts.iter().map(|axis| value_of(axis[point], points, 4)).collect())
                .collect();
            assert_eq!(settings.len(), 32);
        }
    }
}
