//! The kernel's 13 size classes of kmalloc: sizes, lookup and guaranteed alignment.
//!
//! The classes are the powers of two from 8 to 8,192 bytes, plus 96 and 192, because many structures are slightly
//! larger than 64 or 128 bytes. Up to 192 bytes, a table with one byte for each 8 bytes of size contains the class.
//! Above 192 bytes, the bit length determines the class (`kmalloc_info` and `__kmalloc_index` of `mm/slab_common.c`).

pub(crate) const CLASSES: usize = 13;

/// Object sizes in bytes of all classes, in ascending order.
pub const CLASS_SIZES: [usize; CLASSES] = [8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192];

/// Size labels in cache names, such as the `1k` of `kmalloc-1k`.
const SIZE_LABELS: [&str; CLASSES] =
    ["8", "16", "32", "64", "96", "128", "192", "256", "512", "1k", "2k", "4k", "8k"];

/// Largest size that the lookup table covers; larger sizes are looked up by bit length.
const MAX_TABLE_LOOKUP_SIZE: usize = 192;

/// Class of the sizes `8 * i + 1 ..= 8 * i + 8`, indexed by `i`.
const CLASS_BY_EIGHT_BYTES: [u8; MAX_TABLE_LOOKUP_SIZE / 8] = {
    let mut table = [0; MAX_TABLE_LOOKUP_SIZE / 8];
    let (mut i, mut class) = (0, 0);
    while i < table.len() {
        if (i + 1) * 8 > CLASS_SIZES[class as usize] {
            class += 1;
        }
        table[i] = class;
        i += 1;
    }
    table
};

/// One of the 13 size classes of kmalloc.
///
/// ```
/// use uslab::SizeClass;
///
/// assert_eq!(SizeClass::for_size(65).map(SizeClass::size), Some(96));
/// // Objects of 96 bytes are aligned to 32.
/// assert_eq!(SizeClass::for_layout(65, 64).map(SizeClass::size), Some(128));
/// assert_eq!(SizeClass::for_size(8193), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Returns the smallest class that has room for `size` bytes, or `None` for 0 bytes and for more than 8,192 bytes.
    /// Cost: one load, or one count of leading zeros.
    #[inline]
    pub const fn for_size(size: usize) -> Option<Self> {
        match size {
            0 => None,
            1..=MAX_TABLE_LOOKUP_SIZE => Some(Self(CLASS_BY_EIGHT_BYTES[(size - 1) / 8])),
            // Sizes 193 to 256 have bit length 8 and class 7, and each doubling is the next class.
            _ if size <= CLASS_SIZES[CLASSES - 1] => {
                Some(Self((usize::BITS - (size - 1).leading_zeros()) as u8 - 1))
            }
            _ => None,
        }
    }
    /// Returns the smallest class whose objects have `size` bytes and are aligned to `align`.
    pub fn for_layout(size: usize, align: usize) -> Option<Self> {
        let first = Self::for_size(size.max(1))?;
        (first.0..CLASSES as u8).map(Self).find(|class| class.align() >= align)
    }
    /// Iterates over all 13 classes, from the smallest to the largest.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
    /// Index of the class in [`CLASS_SIZES`].
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// Size in bytes of an object of the class.
    pub const fn size(self) -> usize {
        CLASS_SIZES[self.index()]
    }
    /// Alignment that the class guarantees: the largest power of two that divides its size.
    pub const fn align(self) -> usize {
        1 << self.size().trailing_zeros()
    }
    /// Label of the class's size in cache names, such as `8`, `192` or `1k`.
    pub(crate) const fn label(self) -> &'static str {
        SIZE_LABELS[self.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_gets_the_smallest_size_class_that_holds_it() {
        for size in 1..=8192 {
            let smallest = CLASS_SIZES.iter().position(|&class| class >= size);
            assert_eq!(SizeClass::for_size(size).map(SizeClass::index), smallest, "size {size}");
        }
        assert_eq!(SizeClass::for_size(0), None);
        assert_eq!(SizeClass::for_size(8193), None);
        assert_eq!(SizeClass::for_size(usize::MAX), None);
    }

    #[test]
    fn size_class_alignment_is_the_largest_power_of_two_that_divides_its_size() {
        let promised: Vec<_> = SizeClass::all().map(SizeClass::align).collect();
        assert_eq!(promised, [8, 16, 32, 64, 32, 128, 64, 256, 512, 1024, 2048, 4096, 8192]);
    }

    #[test]
    fn layout_gets_a_class_with_sufficient_alignment() {
        let class = |size, align| SizeClass::for_layout(size, align).map(SizeClass::size);
        assert_eq!(class(65, 8), Some(96));
        assert_eq!(class(65, 64), Some(128), "class 96 guarantees an alignment of only 32");
        assert_eq!(class(8, 4096), Some(4096));
        assert_eq!(class(8, 16384), None);
        assert_eq!(class(0, 1), Some(8));
    }
}
