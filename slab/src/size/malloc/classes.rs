//! Size classes of malloc, four per doubling, and the lookup of the class of a size.

use crate::profile::MAX_SAMPLE_BYTES;

/// Number of classes up to 64 bytes, which is one class per word.
const SMALL_CLASSES: usize = 8;
/// Size in bytes of the largest class. Requests above this size get blocks of pages.
pub const MAX_CLASS: usize = 32 << 10;
pub(super) const CLASSES: usize = SMALL_CLASSES + 4 * 9;
/// A profile's sample must have room for any object of a class.
const _: () = assert!(MAX_CLASS <= MAX_SAMPLE_BYTES);
/// Largest order of malloc's slabs. Linux's order 3 would hold one or two of the largest objects, and waste up to a
/// third.
pub(super) const MAX_SLAB_ORDER: u8 = 5;
/// Maximum size in bytes of objects whose slabs have the subsystem's usual orders.
pub(super) const MAX_USUAL_ORDER_OBJECT_BYTES: usize = 8 << 10;

/// Returns the smallest class whose objects have at least `size` bytes. `size` is from 1 to [`MAX_CLASS`].
pub(super) const fn smallest_class_for(size: usize) -> usize {
    if size <= 64 {
        return (size - 1) / 8;
    }
    let last = size - 1;
    let bits = last.ilog2();
    // Sizes 65 to 80 are the first class above 64: the last byte's index is 64 to 79, whose logarithm is 6, and the
    // next two bits count the class.
    SMALL_CLASSES + 4 * (bits as usize - 6) + ((last >> (bits - 2)) & 3)
}

pub(super) const fn size_of_class(class: usize) -> usize {
    if class < SMALL_CLASSES {
        return (class + 1) * 8;
    }
    let (doubling, step) = ((class - SMALL_CLASSES) / 4, (class - SMALL_CLASSES) % 4);
    (5 + step) << (doubling + 4)
}

/// Returns the name of a class's cache, such as `malloc-64`. The name is formatted by hand for speed, because each
/// program start formats the names of all classes.
pub(super) fn name_of_class(class: usize) -> String {
    let size = size_of_class(class);
    let mut name = String::with_capacity("malloc-0".len() + size.ilog10() as usize);
    name.push_str("malloc-");
    (0..=size.ilog10())
        .rev()
        .for_each(|digit| name.push((b'0' + (size / 10_usize.pow(digit) % 10) as u8) as char));
    name
}

/// Alignment that a class guarantees: the largest power of two that divides its size.
pub(super) const fn align_of_class(class: usize) -> usize {
    1 << size_of_class(class).trailing_zeros()
}

/// Number of size values, counted in words, that have a class.
pub(super) const WORDS: usize = MAX_CLASS / 8;
/// Class of each size, indexed by the number of words minus one. A table replaces arithmetic, because the processor
/// would mispredict branches on varying sizes.
pub(super) const CLASS_BY_WORDS: [u8; WORDS] = {
    let mut table = [0; WORDS];
    let mut word = 0;
    while word < WORDS {
        table[word] = smallest_class_for((word + 1) * 8) as u8;
        word += 1;
    }
    table
};

/// Returns the size in words minus one, after rounding it up to a power-of-two alignment. The result is far above
/// [`WORDS`] for size 0.
#[inline(always)]
pub(super) fn word_of(size: usize, align: usize) -> usize {
    // Index of the last byte of the size, rounded up to the alignment.
    (size.wrapping_sub(1) | (align - 1)) / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::alloc::Layout;

    #[test]
    fn each_size_gets_the_smallest_size_class_that_holds_it() {
        let sizes: Vec<usize> = (0..CLASSES).map(size_of_class).collect();
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert_eq!(sizes[..14], [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192]);
        assert_eq!(sizes.last(), Some(&MAX_CLASS));
        for size in 1..=MAX_CLASS {
            let smallest = sizes.iter().position(|class| *class >= size);
            assert_eq!(Some(smallest_class_for(size)), smallest, "size {size}");
        }
    }

    #[test]
    fn malloc_size_class_is_named_after_its_size() {
        for class in 0..CLASSES {
            assert_eq!(name_of_class(class), format!("malloc-{}", size_of_class(class)));
        }
    }

    #[test]
    fn aligned_size_gets_the_first_class_with_sufficient_alignment() {
        for align in (0..=15).map(|shift| 1 << shift) {
            for size in 1..=MAX_CLASS {
                let padded = Layout::from_size_align(size, align).unwrap().pad_to_align().size();
                let first = (smallest_class_for(size)..CLASSES).find(|class| align_of_class(*class) >= align);
                let size_class = (padded <= MAX_CLASS).then(|| smallest_class_for(padded));
                assert_eq!(size_class, first, "{size} aligned to {align}");
            }
        }
    }

    #[test]
    fn rounding_to_size_classes_wastes_at_most_a_fifth() {
        let max_waste =
            (65..=MAX_CLASS).map(|size| 1.0 - size as f64 / size_of_class(smallest_class_for(size)) as f64);
        assert!(max_waste.clone().all(|w| w < 0.2), "{:?}", max_waste.max_by(f64::total_cmp));
        let mean_waste = |class: &dyn Fn(usize) -> usize| {
            // The average over the sizes that the kernel's classes cover.
            (1..=MAX_USUAL_ORDER_OBJECT_BYTES)
                .map(|size| (class(size) - size) as f64 / class(size) as f64)
                .sum::<f64>()
                / MAX_USUAL_ORDER_OBJECT_BYTES as f64
        };
        let mean_of_classes = mean_waste(&|size| size_of_class(smallest_class_for(size)));
        let kernel = mean_waste(&|size| crate::SizeClass::for_size(size).unwrap().size());
        assert!(mean_of_classes < 0.09 && kernel > 2.0 * mean_of_classes, "{mean_of_classes} {kernel}");
    }

    #[test]
    fn size_table_maps_every_layout_to_a_class() {
        for size in 1..=MAX_CLASS {
            for align in (0..=10).map(|shift| 1 << shift) {
                let word = word_of(size, align);
                let class = smallest_class_for(size.next_multiple_of(align));
                assert_eq!(
                    CLASS_BY_WORDS.get(word).copied().map(usize::from),
                    Some(class).filter(|_| word < WORDS)
                );
            }
        }
    }
}
