//! A bitmap in bytes: which slots are out. Bytes and not words, because it lies in whatever a pool's memory has left.

/// Bytes for so many bits.
pub(super) const fn bytes(bits: usize) -> usize {
    bits.div_ceil(8)
}

pub(super) fn get(map: &[u8], bit: usize) -> bool {
    map[bit / 8] & 1 << (bit % 8) != 0
}

/// Sets or clears a bit, and says what it was.
pub(super) fn put(map: &mut [u8], bit: usize, on: bool) -> bool {
    let was = get(map, bit);
    map[bit / 8] = map[bit / 8] & !(1 << (bit % 8)) | u8::from(on) << (bit % 8);
    was
}

/// The bits that are set, ascending. Looks at 64 at a time.
#[derive(Clone, Debug)]
pub(super) struct Ones<'m> {
    rest: &'m [u8],
    word: u64,
    /// The bit that the word begins with.
    from: usize,
}

pub(super) fn ones(map: &[u8]) -> Ones<'_> {
    let (word, rest) = word(map);
    Ones { rest, word, from: 0 }
}

/// The first 8 bytes, or what there is and zeros behind it.
fn word(map: &[u8]) -> (u64, &[u8]) {
    match map.split_first_chunk() {
        Some((bytes, rest)) => (u64::from_le_bytes(*bytes), rest),
        None => {
            let mut bytes = [0; 8];
            bytes[..map.len()].copy_from_slice(map);
            (u64::from_le_bytes(bytes), &[])
        }
    }
}

impl Iterator for Ones<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.word == 0 {
            if self.rest.is_empty() {
                return None;
            }
            (self.word, self.rest) = word(self.rest);
            self.from += 64;
        }
        let bit = self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        Some(self.from + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_wherever_a_word_or_the_map_ends() {
        for bits in [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200] {
            let mut map = vec![0; bytes(bits)];
            let set: Vec<_> =
                (0..bits).filter(|bit| bit % 63 == 0 || bit % 7 == 3 || bit + 1 == bits).collect();
            for &bit in &set {
                assert!(!put(&mut map, bit, true));
            }
            assert_eq!(ones(&map).collect::<Vec<_>>(), set);
            for &bit in &set {
                assert!(get(&map, bit) && put(&mut map, bit, false) && !put(&mut map, bit, false));
            }
            assert_eq!(ones(&map).next(), None);
        }
    }
}
