//! The size classes of TLSF: each class is a power of two and a linear step above it.
//!
//! ```text
//!  second-level bits 2, smallest 16 bytes:
//!
//!   fl 0: 16 20 24 28    fl 1: 32 40 48 56    fl 2: 64 80 96 112    fl 3: 128 160 192 224  ...
//! ```
//!
//! A free block belongs to the class that contains its size. A search begins at the class of the size rounded up to the
//! next step: the first class in which *all* blocks are large enough. Every block of this class fits, so no list is
//! searched. The search may therefore skip a fitting block in the class of the requested size.
//!
//! Rounding up adds less than `1 / 2^sli` of the size. The rounded size only determines where the search begins. The
//! block that was found is cut to the requested size.

/// The sizes of the classes in two levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    bits: u32,
    smallest: u32,
}

/// A size class, as an index at each of the two levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Index of the power of two; the smallest one has index 0.
    pub fl: usize,
    /// Index of the step above the power of two.
    pub sl: usize,
}

impl Classes {
    /// Makes classes with `2^bits` steps per doubling of the size, from `2^smallest` bytes on.
    pub const fn new(bits: u32, smallest: u32) -> Self {
        Self { bits, smallest }
    }
    /// Returns the number of steps per doubling of the size.
    pub const fn steps(self) -> usize {
        1 << self.bits
    }

    /// Returns the class that contains `size`. A size below the smallest class belongs to the smallest class.
    pub const fn of(self, size: usize) -> Class {
        if size < 1 << self.smallest {
            return Class { fl: 0, sl: 0 };
        }
        let power = size.ilog2();
        // The second level is the bits after the highest bit of the size.
        let sl = if power >= self.bits { size >> (power - self.bits) } else { size << (self.bits - power) };
        Class { fl: (power - self.smallest) as usize, sl: sl - self.steps() }
    }
    /// Returns the smallest size of the class in bytes.
    pub const fn start(self, class: Class) -> usize {
        let power = class.fl as u32 + self.smallest;
        ((self.steps() + class.sl) << power) >> self.bits
    }
    /// Rounds `size` up to the smallest size of a class; a search for `size` begins at this class. Returns `None` if
    /// `size` is above the largest power of two of a `usize`.
    pub const fn round_up(self, size: usize) -> Option<usize> {
        if size <= 1 << self.smallest {
            return Some(1 << self.smallest);
        }
        let power = size.ilog2();
        let step = if power > self.bits { 1 << (power - self.bits) } else { 1 };
        // Steps are powers of two, so no division is needed.
        match size.checked_add(step - 1) {
            Some(max) => Some(max & !(step - 1)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_BIT_CLASSES: Classes = Classes::new(2, 4);

    fn class(fl: usize, sl: usize) -> Class {
        Class { fl, sl }
    }

    #[test]
    fn tlsf_classes_with_two_bits_start_at_16_bytes() {
        let starts: Vec<_> =
            (0..4).flat_map(|fl| (0..4).map(move |sl| TWO_BIT_CLASSES.start(class(fl, sl)))).collect();
        assert_eq!(starts, [16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224]);
        let table = [(1, 0, 0), (16, 0, 0), (19, 0, 0), (20, 0, 1), (31, 0, 3), (32, 1, 0), (100, 2, 2)];
        for (size, fl, sl) in table {
            assert_eq!(TWO_BIT_CLASSES.of(size), class(fl, sl), "{size}");
        }
        let rounded = [(1, 16), (16, 16), (17, 20), (33, 40), (65, 80), (100, 112), (113, 128), (225, 256)];
        for (size, upper) in rounded {
            assert_eq!(TWO_BIT_CLASSES.round_up(size), Some(upper), "{size}");
        }
    }

    #[test]
    fn tlsf_classes_match_the_papers_example() {
        // With 16 steps, 460 bytes are in the doubling that begins at 256, in its step 12 (Masmano and
        // others, 2004).
        assert_eq!(Classes::new(4, 0).of(460), class(8, 12));
    }

    #[test]
    fn tlsf_classes_above_1024_are_64_bytes_apart() {
        let classes = Classes::new(4, 4);
        let starts: Vec<_> = (0..16).map(|sl| classes.start(class(6, sl))).collect();
        assert_eq!(starts, (0..16).map(|sl| 1024 + 64 * sl).collect::<Vec<_>>());
    }

    #[test]
    fn tlsf_rounding_stays_below_its_bound() {
        for bits in 2..=5 {
            let classes = Classes::new(bits, 4);
            let mut max_waste = 0.0_f64;
            for size in 16..=1 << 20 {
                let upper = classes.round_up(size).unwrap();
                let own_class = classes.of(size);
                assert!(classes.start(own_class) <= size, "a block must be in its class");
                assert_eq!(
                    classes.start(classes.of(upper)),
                    upper,
                    "a search must begin at the start of a class"
                );
                assert!((upper - size) << bits < size, "{upper} is too far above {size} bytes");
                max_waste = max_waste.max((upper - size) as f64 / size as f64);
            }
            // The waste approaches 6.25 % with 4 bits and 3.125 % with 5 bits, but never reaches these bounds.
            let bound = 1.0 / f64::from(1 << bits);
            assert!(max_waste < bound && max_waste > 0.99 * bound, "{bits} bits: {max_waste}");
        }
        assert_eq!(Classes::new(4, 4).round_up(usize::MAX), None);
    }
}
