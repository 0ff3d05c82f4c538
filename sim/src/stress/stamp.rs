//! Stamps in objects; they reveal if two owners hold the same object.
//!
//! An allocated object begins with its owner's token; its other bytes are a pattern that follows from the seed and the
//! token. A free object of a cache with a constructor contains the free pattern, which the constructor or the last
//! owner wrote. An invalid write by another thread changes the token or the pattern.

use std::fmt;

/// The owner of an object: a thread's seat, and the serial number of the allocation at this seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(u64);

/// The number of bits for the serial number of an allocation.
const SERIAL_BITS: u32 = 48;

impl Token {
    /// Returns the token for the `serial`-th allocation of a seat; seats count from 1.
    pub(super) fn new(seat: u16, serial: u64) -> Self {
        Self(u64::from(seat) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1))
    }
    pub(super) fn seat(self) -> u16 {
        (self.0 >> SERIAL_BITS) as u16
    }
    /// Returns the token at the start of an object's bytes, or `None` if its seat number is not between 1 and `seats`.
    pub(super) fn read_from_object(bytes: &[u8], seats: u16) -> Option<Self> {
        let token = Self(u64::from_le_bytes(*bytes.first_chunk()?));
        (1..=seats).contains(&token.seat()).then_some(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}'s allocation {}", self.seat(), self.0 & ((1 << SERIAL_BITS) - 1))
    }
}

/// The size of a word of the pattern in bytes.
const WORD: usize = size_of::<u64>();

/// The expected contents of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    first: u64,
    base: u64,
}

impl Pattern {
    /// Returns the pattern of an object that `token` owns.
    pub(super) fn held(seed: u64, token: Token) -> Self {
        Self { first: token.0, base: (token.0 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }
    /// Returns the pattern of a free object. The first word of the free pattern is not a token, because no seat has the
    /// number 0.
    pub(super) fn free(seed: u64) -> Self {
        Self { first: 0x0000_dead_f4ee_b10c, base: seed ^ 0x6b6b_6b6b_6b6b_6b6b }
    }

    fn word(self, i: usize) -> [u8; WORD] {
        let word = if i == 0 { self.first } else { self.base.wrapping_add((i as u64) << 32 | i as u64) };
        word.to_le_bytes()
    }
    /// Fills `bytes` with the pattern.
    pub(super) fn write(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<WORD>();
        words.iter_mut().enumerate().for_each(|(i, word)| *word = self.word(i));
        let last = self.word(words.len());
        rest.iter_mut().zip(last).for_each(|(byte, is)| *byte = is);
    }
    /// Returns the index of the first byte that differs from the pattern.
    pub(super) fn differs(self, bytes: &[u8]) -> Option<usize> {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let in_word = |at: usize, found: &[u8]| {
            let expected = self.word(at);
            Some(at * WORD + found.iter().zip(expected).position(|(found, is)| *found != is)?)
        };
        let wrong = words.iter().enumerate().find(|(i, word)| **word != self.word(*i));
        wrong.map_or_else(|| in_word(words.len(), rest), |(i, word)| in_word(i, word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_detects_each_changed_byte() {
        for pattern in [Pattern::held(7, Token::new(3, 99)), Pattern::free(7)] {
            for size in 0..40 {
                let mut bytes = vec![0; size];
                pattern.write(&mut bytes);
                assert_eq!(pattern.differs(&bytes), None);
                for at in 0..size {
                    bytes[at] ^= 1;
                    assert_eq!(pattern.differs(&bytes), Some(at), "of {size}");
                    bytes[at] ^= 1;
                }
            }
        }
    }

    #[test]
    fn stamp_names_the_owner_of_an_object_in_use() {
        let token = Token::new(3, 99);
        let mut bytes = [0; 16];
        Pattern::held(7, token).write(&mut bytes);
        assert_eq!(
            (Token::read_from_object(&bytes, 3), Token::read_from_object(&bytes, 2)),
            (Some(token), None)
        );
        Pattern::free(7).write(&mut bytes);
        assert_eq!(
            (Token::read_from_object(&bytes, u16::MAX), Token::read_from_object(&[1], 1)),
            (None, None)
        );
        assert_eq!(token.to_string(), "thread 3's allocation 99");
    }
}
