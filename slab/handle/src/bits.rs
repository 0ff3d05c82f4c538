//! The handle type: an index and a generation in one word.
//!
//! ```text
//!          high bits                 low bits
//!   ┌──────────────────────┬─────────────────────────┐
//!   │ generation, from 1   │ index of the slot       │   Handle<u32, 8>: 8 + 24 bits, Handle<u64, 32>: 32 + 32
//!   └──────────────────────┴─────────────────────────┘
//! ```
//!
//! Invariant of a handle: its generation is not 0. No handle is the word 0, so `Option<Handle>` is as small as a
//! handle. A generation cannot be 0, so 8 bits count 255 lives of a slot instead of 256.

use core::fmt;
use core::hash::Hash;
use core::num::{NonZeroU32, NonZeroU64};
#[cfg(feature = "serde")]
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Representation of a handle: `u32` or `u64`.
///
/// ```
/// use uslab_handle::{Handle, Word};
///
/// /// For 32 and 64 bits.
/// fn name<W: Word, const G: u32>(handle: Handle<W, G>) -> String {
///     format!("{}v{}", handle.index(), handle.generation())
/// }
/// assert_eq!(Handle::<u32, 8>::new(7, 3).map(name), Some("7v3".to_owned()));
/// assert_eq!(Handle::<u64, 32>::new(7, 3).map(name), Some("7v3".to_owned()));
/// ```
pub trait Word: sealed::Word {}
impl<W: sealed::Word> Word for W {}

pub(super) mod sealed {
    use super::{Hash, NonZeroU32, NonZeroU64, fmt};

    pub trait Word: Copy + Ord + Hash + fmt::Debug + Into<u64> + Send + Sync + 'static {
        type NonZero: Copy + Ord + Hash + fmt::Debug + Into<Self> + TryFrom<Self> + Send + Sync;
        const BITS: u32;
        /// Converts `bits` into the word type; `bits` must fit.
        fn of(bits: u64) -> Self;
    }
    impl Word for u32 {
        type NonZero = NonZeroU32;
        const BITS: u32 = u32::BITS;
        #[inline(always)]
        fn of(bits: u64) -> Self {
            bits as u32
        }
    }
    impl Word for u64 {
        type NonZero = NonZeroU64;
        const BITS: u32 = u64::BITS;
        #[inline(always)]
        fn of(bits: u64) -> Self {
            bits
        }
    }
}

/// A small value that names an object of one table, map or cache. A handle differs from all earlier handles of its
/// slot.
///
/// `GENERATION_BITS` bits of the word hold the generation, and the other bits hold the index of the slot; each part has
/// 1 to 32 bits. A handle does not know its table, so a handle of another table can be valid by chance.
///
/// ```
/// use uslab_handle::{Handle, Handle24x8};
///
/// let handle = Handle24x8::new(7, 3).unwrap();
/// assert_eq!((handle.index(), handle.generation()), (7, 3));
/// assert_eq!(handle.to_bits(), 3 << 24 | 7);
/// assert_eq!(Handle::from_bits(handle.to_bits()), Some(handle));
/// assert_eq!(size_of::<Option<Handle24x8>>(), 4);
/// ```
///
/// Words that cannot be split this way do not compile:
///
/// ```compile_fail,E0080
/// uslab_handle::Handle::<u64, 8>::new(0, 1); // 56 bits of index
/// ```
#[doc(alias("entity", "key", "weak pointer", "external reference"))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle<W: Word = u64, const GENERATION_BITS: u32 = 32>(W::NonZero);

/// Handles of 16,777,216 slots with 255 lives each, the layout of the tutorial "Memory Allocators from Scratch".
pub type Handle24x8 = Handle<u32, 8>;
/// Handles of 1,048,576 slots with 4,095 lives each, like EnTT's default entity.
pub type Handle20x12 = Handle<u32, 12>;
/// Handles of 65,536 slots with 65,535 lives each.
pub type Handle16x16 = Handle<u32, 16>;
/// Handles of 4,294,967,296 slots with 4,294,967,295 lives each, like Bevy's entity. A slot that is reused every
/// microsecond uses up these generations in 72 minutes.
pub type Handle32x32 = Handle<u64, 32>;

impl<W: Word, const GENERATION_BITS: u32> Handle<W, GENERATION_BITS> {
    /// Number of bits of the slot index.
    pub const INDEX_BITS: u32 = {
        assert!(GENERATION_BITS >= 1 && GENERATION_BITS <= 32, "a generation has 1 to 32 bits");
        assert!(GENERATION_BITS < W::BITS && W::BITS - GENERATION_BITS <= 32, "an index has 1 to 32 bits");
        W::BITS - GENERATION_BITS
    };
    /// Number of slots that the index bits can distinguish.
    pub const SLOTS: u64 = 1 << Self::INDEX_BITS;
    /// Highest generation, which equals the number of successive handles of one slot.
    pub const LAST_GENERATION: u32 = u32::MAX >> (32 - GENERATION_BITS);

    /// Makes the handle for a slot index and a generation. Returns `None` if the index or the generation does not fit
    /// into its bits, or if the generation is 0.
    pub fn new(index: u32, generation: u32) -> Option<Self> {
        let fits = u64::from(index) < Self::SLOTS && generation <= Self::LAST_GENERATION;
        if fits { Self::from_bits(pack::<W, GENERATION_BITS>(index, generation)) } else { None }
    }
    /// Returns the index of the slot.
    #[inline(always)]
    pub fn index(self) -> u32 {
        index_of::<W, GENERATION_BITS>(self.to_bits())
    }
    /// Returns the generation of the slot; the first generation is 1.
    #[doc(alias = "version")]
    #[inline(always)]
    pub fn generation(self) -> u32 {
        generation_of::<W, GENERATION_BITS>(self.to_bits())
    }
    /// Returns the word, for interfaces that take numbers.
    #[inline(always)]
    pub fn to_bits(self) -> W {
        self.0.into()
    }
    /// Makes a handle from a word. Returns `None` if the generation in the word is 0, which no handle has.
    #[inline(always)]
    pub fn from_bits(bits: W) -> Option<Self> {
        if generation_of::<W, GENERATION_BITS>(bits) == 0 {
            return None;
        }
        W::NonZero::try_from(bits).ok().map(Self)
    }
}

#[inline(always)]
pub(super) fn pack<W: Word, const G: u32>(index: u32, generation: u32) -> W {
    W::of(u64::from(generation) << Handle::<W, G>::INDEX_BITS | u64::from(index))
}
#[inline(always)]
pub(super) fn index_of<W: Word, const G: u32>(bits: W) -> u32 {
    (bits.into() & (Handle::<W, G>::SLOTS - 1)) as u32
}
#[inline(always)]
pub(super) fn generation_of<W: Word, const G: u32>(bits: W) -> u32 {
    (bits.into() >> Handle::<W, G>::INDEX_BITS) as u32
}

impl<W: Word, const GENERATION_BITS: u32> fmt::Debug for Handle<W, GENERATION_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("index", &self.index())
            .field("generation", &self.generation())
            .finish()
    }
}

/// A handle is serialised as its word. A handle that another run has saved is stale: see [`remap`](super::remap).
#[cfg(feature = "serde")]
impl<W: Word, const GENERATION_BITS: u32> Serialize for Handle<W, GENERATION_BITS> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bits = self.to_bits().into();
        if W::BITS == u32::BITS {
            serializer.serialize_u32(bits as u32)
        } else {
            serializer.serialize_u64(bits)
        }
    }
}
#[cfg(feature = "serde")]
impl<'de, W: Word, const GENERATION_BITS: u32> Deserialize<'de> for Handle<W, GENERATION_BITS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = if W::BITS == u32::BITS {
            u32::deserialize(deserializer)?.into()
        } else {
            u64::deserialize(deserializer)?
        };
        let bad = || {
            de::Error::custom(format_args!(
                "{bits} is not a handle: its generation is 0, and the first one is 1"
            ))
        };
        Self::from_bits(W::of(bits)).ok_or_else(bad)
    }
}

const _: () = {
    const fn value<T: Copy + Send + Sync + Eq + Ord + Hash + 'static>() {}
    value::<Handle24x8>();
    value::<Handle32x32>();
    assert!(size_of::<Handle24x8>() == 4 && size_of::<Option<Handle24x8>>() == 4);
    assert!(size_of::<Handle20x12>() == 4 && size_of::<Handle16x16>() == 4);
    assert!(size_of::<Handle32x32>() == 8 && size_of::<Option<Handle32x32>>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn check_limits<W: Word, const G: u32>(slots: u64, last: u32) {
        type H<W, const G: u32> = Handle<W, G>;
        assert_eq!((H::<W, G>::SLOTS, H::<W, G>::LAST_GENERATION), (slots, last));
        let top = (slots - 1) as u32;
        for (index, generation) in [(0, 1), (top, 1), (0, last), (top, last), (top / 3, last / 3 + 1)] {
            let handle = H::<W, G>::new(index, generation).unwrap();
            assert_eq!((handle.index(), handle.generation()), (index, generation));
            assert_eq!(H::<W, G>::from_bits(handle.to_bits()), Some(handle));
            let text = serde_json::to_string(&handle).unwrap();
            assert_eq!(serde_json::from_str::<H<W, G>>(&text).unwrap(), handle);
        }
        let refused = [(0, 0), (top, 0)].into_iter().chain(top.checked_add(1).map(|over| (over, 1)));
        for (index, generation) in refused.chain(last.checked_add(1).map(|over| (0, over))) {
            assert_eq!(H::<W, G>::new(index, generation), None);
        }
    }

    #[test]
    fn generation_bits_of_a_handle_limit_slots_and_generations() {
        check_limits::<u32, 8>(16_777_216, 255);
        check_limits::<u32, 12>(1 << 20, 4095);
        check_limits::<u32, 16>(1 << 16, 65_535);
        check_limits::<u32, 24>(256, (1 << 24) - 1);
        check_limits::<u32, 31>(2, u32::MAX >> 1);
        check_limits::<u32, 1>(1 << 31, 1);
        check_limits::<u64, 32>(1 << 32, u32::MAX);
    }

    #[test]
    fn handle_of_generation_zero_is_invalid() {
        assert_eq!(Handle24x8::from_bits(0), None);
        assert_eq!(Handle24x8::from_bits(0x00ff_ffff), None);
        assert_eq!(Handle32x32::from_bits(7), None);
        let error = serde_json::from_str::<Handle24x8>("7").unwrap_err().to_string();
        assert!(error.contains("7 is not a handle: its generation is 0"), "{error}");
    }

    #[test]
    fn debug_output_of_a_handle_shows_index_and_generation() {
        assert_eq!(format!("{:?}", Handle20x12::new(5, 9).unwrap()), "Handle { index: 5, generation: 9 }");
    }
}
