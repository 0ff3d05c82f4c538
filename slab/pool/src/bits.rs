//! Functions that iterate over the bits of bitmaps, and a bitmap of bytes that marks the slots in use. The bitmap
//! consists of bytes instead of words, because it is stored in the bytes that the pool's slots leave unused.

use super::error::PoolError;
use alloc::vec::Vec;
use core::ops::Range;

/// Returns the lowest run of set bits: the run's start and length, and `bits` without the run. `bits` must not be 0.
#[inline(always)]
pub fn lowest_run(bits: u64) -> (usize, usize, u64) {
    let start = bits.trailing_zeros();
    // Adding the lowest bit of a run carries into the gap above the run, or out at the top of the
    // word.
    (start as usize, (bits >> start).trailing_ones() as usize, bits & bits.wrapping_add(1 << start))
}

pub(super) const fn bytes(bits: usize) -> usize {
    bits.div_ceil(8)
}

pub(super) fn new_bitmap(bits: usize) -> Result<Vec<u8>, PoolError> {
    let (mut map, bytes) = (Vec::new(), bytes(bits));
    map.try_reserve_exact(bytes).map_err(|_| PoolError::Memory { bytes })?;
    map.resize(bytes, 0);
    Ok(map)
}

pub(super) fn get(map: &[u8], bit: usize) -> bool {
    map[bit / 8] & 1 << (bit % 8) != 0
}

/// Sets or clears a bit, and returns its previous value.
pub(super) fn set_bit(map: &mut [u8], bit: usize, value: bool) -> bool {
    let old_value = get(map, bit);
    map[bit / 8] = map[bit / 8] & !(1 << (bit % 8)) | u8::from(value) << (bit % 8);
    old_value
}

pub(super) fn iter_set_bits(map: &[u8]) -> impl Iterator<Item = usize> {
    runs(map).flatten()
}

/// An iterator over runs of set bits, in ascending order. The iterator reads 64 bits at a time, and ends a run at each
/// 64th bit.
#[derive(Clone, Debug)]
struct Runs<'m> {
    bytes: &'m [u8],
    word: u64,
    first_bit: usize,
}

fn runs(map: &[u8]) -> Runs<'_> {
    let (word, remaining) = word(map);
    Runs { bytes: remaining, word, first_bit: 0 }
}

/// Returns the first 8 bytes, padded with zeros, and the bytes that follow them.
fn word(map: &[u8]) -> (u64, &[u8]) {
    match map.split_first_chunk() {
        Some((bytes, remaining)) => (u64::from_le_bytes(*bytes), remaining),
        None => {
            let mut bytes = [0; 8];
            bytes[..map.len()].copy_from_slice(map);
            (u64::from_le_bytes(bytes), &[])
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        while self.word == 0 {
            if self.bytes.is_empty() {
                return None;
            }
            (self.word, self.bytes) = word(self.bytes);
            self.first_bit += 64;
        }
        let (start, count, remaining) = lowest_run(self.word);
        self.word = remaining;
        Some(self.first_bit + start..self.first_bit + start + count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_bits_are_found_at_word_and_bitmap_ends() {
        for bits in [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200] {
            let mut map = vec![0; bytes(bits)];
            let set: Vec<_> =
                (0..bits).filter(|bit| bit % 63 == 0 || bit % 7 == 3 || bit + 1 == bits).collect();
            for &bit in &set {
                assert!(!set_bit(&mut map, bit, true));
            }
            assert_eq!(iter_set_bits(&map).collect::<Vec<_>>(), set);
            for &bit in &set {
                assert!(get(&map, bit) && set_bit(&mut map, bit, false) && !set_bit(&mut map, bit, false));
            }
            assert_eq!(iter_set_bits(&map).next(), None);
        }
    }

    #[test]
    fn adjacent_set_bits_form_a_run() {
        let runs = |mut bits: u64| {
            let mut runs = Vec::new();
            while bits != 0 {
                let (start, count, remaining) = lowest_run(bits);
                runs.push((start, count));
                bits = remaining;
            }
            runs
        };
        assert_eq!(runs(0b1110_0110_0001), [(0, 1), (5, 2), (9, 3)]);
        assert_eq!(runs(!0), [(0, 64)]);
        assert_eq!(runs(!0 << 63 | 1), [(0, 1), (63, 1)]);
        assert_eq!(runs(!1), [(1, 63)]);
    }
}
