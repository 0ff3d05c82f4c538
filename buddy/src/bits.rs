//! Bits of a word, as walks over bitmaps need them.

/// The lowest bits that stand together: where they begin, how many they are, and what is left without them. `bits` is not 0.
#[inline(always)]
pub fn lowest_run(bits: u64) -> (usize, usize, u64) {
    let at = bits.trailing_zeros();
    // Added to the lowest bit, they carry into the gap above, or out at the top.
    (at as usize, (bits >> at).trailing_ones() as usize, bits & bits.wrapping_add(1 << at))
}

#[cfg(test)]
mod tests {
    #[test]
    fn bits_that_stand_together_are_a_run() {
        let runs = |mut bits: u64| {
            let mut runs = Vec::new();
            while bits != 0 {
                let (at, count, rest) = super::lowest_run(bits);
                runs.push((at, count));
                bits = rest;
            }
            runs
        };
        assert_eq!(runs(0b1110_0110_0001), [(0, 1), (5, 2), (9, 3)]);
        assert_eq!(runs(!0), [(0, 64)]);
        assert_eq!(runs(!0 << 63 | 1), [(0, 1), (63, 1)]);
        assert_eq!(runs(!1), [(1, 63)]);
    }
}
