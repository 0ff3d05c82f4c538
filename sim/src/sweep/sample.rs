//! A Latin hypercube: so many points that each axis, cut into as many parts, has one point in each part.
//!
//! McKay, Beckman and Conover, "A Comparison of Three Methods for Selecting Values of Input Variables in the Analysis of Output from a
//! Computer Code" (Technometrics 21, 1979).

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// For each axis, in which part of it each point lies.
///
/// The same seed gives the same parts. Costs four bytes for each point and axis.
pub(super) fn strata(points: u32, axes: usize, seed: u64) -> Vec<Vec<u32>> {
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

/// The value in the middle of a part, of an axis with so many values.
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
        fn each_part_of_each_axis_has_one_point(points in 1..500_u32, axes in 0..5_usize, seed in any::<u64>()) {
            let all = strata(points, axes, seed);
            prop_assert_eq!(all.len(), axes);
            for mut axis in all {
                axis.sort_unstable();
                prop_assert_eq!(axis, (0..points).collect::<Vec<_>>());
            }
        }

        #[test]
        fn as_many_points_as_values_are_all_values_and_no_value_is_favoured(points in 1..500_u32, values in 1..500_usize) {
            let mut hits = vec![0_u32; values];
            (0..points).for_each(|part| hits[value_of(part, points, values)] += 1);
            let (least, most) = (hits.iter().min().unwrap(), hits.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", hits);
        }
    }

    #[test]
    fn another_seed_or_axis_has_another_order() {
        let two = strata(100, 2, 1);
        assert_ne!(two[0], two[1]);
        assert_ne!(two, strata(100, 2, 2));
        assert_eq!(two, strata(100, 2, 1));
    }
}
