//! Random numbers that are the same on every machine and in every later version of the lab.
//!
//! - The generator is a named algorithm with a published definition: PCG XSL RR 128/64 (O'Neill, "PCG: A Family of
//!   Simple Fast Space-Efficient Statistically Good Algorithms", 2014). The generator's state and stream are set
//!   directly, because a library's seeding function may change.
//! - To draw an integer below a bound, this file multiplies the bound by a random number and takes the high half of the
//!   product.
//! - Logarithms and powers come from the crate `libm`, which computes them in software. The standard library instead
//!   uses the platform's functions, whose results differ in the last bit. All other operations are IEEE 754 additions
//!   and multiplications, which give the same results everywhere.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng as _;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    generator: Pcg64,
}

/// The stream number of the generator, which was chosen arbitrarily.
const STREAM: u128 = 0x6c61_625f_776f_726b_6c6f_6164_5f73_6c61;

impl Rng {
    /// Creates the sequence of random numbers that the seed `seed` determines.
    pub fn new(seed: u64) -> Self {
        let mut generator = Pcg64::new(u128::from(seed) << 64 | u128::from(!seed), STREAM);
        // The first four numbers are skipped, because they are similar for two seeds that differ in one bit.
        for _ in 0..4 {
            generator.next_u64();
        }
        Self { generator }
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    ///
    /// The probabilities of two values differ by at most the fraction `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.generator.next_u64()) * u128::from(bound)) >> 64) as u64
    }
    /// Returns a number between `min` and `max`, both included.
    pub fn in_range(&mut self, min: u64, max: u64) -> u64 {
        min + self.below((max - min).saturating_add(1))
    }
    /// Returns a random number that is at least 0 and less than 1, in steps of `2^-53`.
    pub fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
    /// Returns a random number from the exponential distribution with the mean `mean`.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }
    /// Returns a random number from the normal distribution with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        radius * libm::cos(core::f64::consts::TAU * self.unit())
    }
}

/// Values that are drawn with probabilities in proportion to their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WeightedValues {
    values: Vec<usize>,
    /// The cumulative weights: for each value, its weight plus the weights of all values before it.
    ends: Vec<u64>,
}

impl WeightedValues {
    /// Returns `None` if no weight is above 0, or if the sum of the weights exceeds a `u64`.
    pub(super) fn new(pairs: impl IntoIterator<Item = (usize, u64)>) -> Option<Self> {
        let (mut values, mut ends, mut sum) = (vec![], vec![], 0_u64);
        for (value, weight) in pairs.into_iter().filter(|(_, weight)| *weight > 0) {
            sum = sum.checked_add(weight)?;
            values.push(value);
            ends.push(sum);
        }
        (sum > 0).then_some(Self { values, ends })
    }
    pub(super) fn pick(&self, rng: &mut Rng) -> usize {
        let position = rng.below(self.ends.last().copied().unwrap_or(0));
        self.values[self.ends.partition_point(|end| *end <= position)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_sequence_of_a_seed_never_changes() {
        // The numbers were recorded once, and confirmed by another implementation of the published definition in
        // another language. The recorded numbers must never change.
        let mut rng = Rng::new(1);
        assert_eq!([0; 4].map(|_| rng.below(1000)), [72, 715, 602, 800]);
        assert_eq!((rng.unit() * 1e15) as u64, 364_190_357_484_221);
        assert_eq!(rng.normal().to_bits(), (-0.2593132641332676_f64).to_bits());
        assert_eq!(rng.exponential(100.0).to_bits(), 169.1935771971219_f64.to_bits());
    }

    #[test]
    fn random_distributions_have_their_expected_means() {
        let mut rng = Rng::new(7);
        let mut mean = |value_of: &mut dyn FnMut(&mut Rng) -> f64| {
            (0..100_000).map(|_| value_of(&mut rng)).sum::<f64>() / 100_000.0
        };
        assert!((mean(&mut |rng| rng.unit()) - 0.5).abs() < 0.01);
        assert!((mean(&mut |rng| rng.exponential(100.0)) - 100.0).abs() < 2.0);
        assert!(mean(&mut |rng| rng.normal()).abs() < 0.02);
        assert!((mean(&mut |rng| rng.normal().powi(2)) - 1.0).abs() < 0.03);
        assert!((mean(&mut |rng| rng.in_range(10, 20) as f64) - 15.0).abs() < 0.1);
    }

    #[test]
    fn random_values_include_their_bounds() {
        let mut rng = Rng::new(0);
        assert_eq!((rng.below(0), rng.below(1), rng.in_range(5, 5)), (0, 0, 5));
        rng.in_range(0, u64::MAX);
        let seen_values: std::collections::BTreeSet<_> = (0..200).map(|_| rng.in_range(3, 6)).collect();
        assert_eq!(seen_values.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
    }

    #[test]
    fn weighted_values_occur_in_proportion_to_their_weights() {
        let weighted = WeightedValues::new([(8, 1), (16, 0), (32, 3)]).unwrap();
        let mut rng = Rng::new(3);
        let picks: Vec<_> = (0..10_000).map(|_| weighted.pick(&mut rng)).collect();
        let share = picks.iter().filter(|size| **size == 32).count();
        assert!((7300..7700).contains(&share) && picks.iter().all(|size| *size != 16), "{share}");
        assert_eq!(WeightedValues::new([(8, 0)]), None);
        assert_eq!(WeightedValues::new([(8, u64::MAX), (9, 1)]), None);
    }
}
