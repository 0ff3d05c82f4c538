//! Slab geometry: order of a slab, and the number and offsets of its objects.
//!
//! The geometry follows Linux's rule, and agrees with each row of `/proc/slabinfo` (`calculate_order`,
//! `calculate_sizes` and `calculate_alignment` of `mm/slub.c` and `mm/slab_common.c`, in different words):
//!
//! 1. A slab should hold `4 * (bit length of present CPUs + 1)` objects: at least one, and at most as many as the
//!    largest ordinary order holds. With more CPUs, larger slabs make threads take the node's lock less often.
//! 2. A slab gets the smallest order that holds the wanted objects and wastes at most 1/16 of the slab. If no order
//!    wastes at most 1/16 of the slab, the bound is raised to 1/8, 1/4, and finally 1/2.
//! 3. An object that is larger than the largest ordinary slab gets the smallest order that holds one object.
//!
//! Therefore **the CPU count is an input**: slabs of the same object size may have different orders on machines with
//! different CPU counts. A comparison with a kernel must use the kernel's CPU count.
//!
//! The stride is the object size rounded up to a word, then to the alignment. Linux stores a free-list pointer after
//! each object that has a constructor or is type-stable. In uslab, bitmaps outside the slab replace free lists, so the
//! stride needs no room for a pointer.

use core::fmt;
use uslab_buddy::{MAX_ORDER, Order, PAGE_SIZE};

/// Size of a word in bytes, which is also the smallest size and alignment of an object.
pub(crate) const WORD: usize = 8;
/// Smallest stride in models, in bytes; the model checker's record of object owners has one cell per `SPACING`
/// bytes.
pub(crate) const SPACING: usize = 2048;
/// Size of a cache line in bytes, to which hardware-aligned objects are aligned.
pub const CACHE_LINE: usize = 64;
/// Maximum number of objects in a slab.
pub const MAX_OBJECTS: usize = 32_767;

/// Inputs to the choice of a slab's order, besides the object: the CPU count and the kernel's tunables.
///
/// ```
/// use uslab::{Geometry, OrderRule};
///
/// let objects = |rule| Geometry::new(1024, 0, &rule).map(|geometry| geometry.objects());
/// assert_eq!(objects(OrderRule::for_cpus(2))?, 16);
/// assert_eq!(objects(OrderRule::for_cpus(64))?, 32); // larger slabs, so that CPUs meet less often
/// assert_eq!(objects(OrderRule { max_order: 0, ..OrderRule::for_cpus(64) })?, 4); // a page each
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderRule {
    /// Number of CPUs that are present. More present CPUs mean larger slabs.
    pub present_cpus: u32,
    /// Maximum number of CPUs that the machine can have. If `present_cpus` is 1, `possible_cpus` replaces it, for
    /// machines that add their CPUs late.
    pub possible_cpus: u32,
    /// Smallest order of a slab (`slab_min_order`); default 0.
    pub min_order: u8,
    /// Largest ordinary order of a slab (`slab_max_order`); default 3, the largest order that Linux considers cheap.
    pub max_order: u8,
    /// Minimum number of objects that a slab should hold (`slab_min_objects`); 0 derives the number from the CPU count.
    pub min_objects: u32,
}

impl OrderRule {
    /// Returns Linux's rule for a machine with `cpus` CPUs.
    pub const fn for_cpus(cpus: u32) -> Self {
        Self { present_cpus: cpus, possible_cpus: cpus, min_order: 0, max_order: 3, min_objects: 0 }
    }

    fn min_objects(&self) -> usize {
        if self.min_objects != 0 {
            return self.min_objects as usize;
        }
        let cpus = if self.present_cpus <= 1 { self.possible_cpus.max(1) } else { self.present_cpus };
        4 * ((u32::BITS - cpus.leading_zeros()) as usize + 1)
    }

    /// Returns the order of a slab whose first object, of `stride` bytes, starts at byte `lead`; `None` if no block
    /// holds an object.
    fn order(&self, lead: usize, stride: usize) -> Option<Order> {
        let bytes = |order: u8| PAGE_SIZE << order;
        let room = |order: u8| bytes(order).saturating_sub(lead);
        let max = self.max_order.min(MAX_ORDER);
        let wanted = self.min_objects().min((room(max) / stride).max(1));
        let start = Order::for_bytes(lead + wanted * stride)?.get().max(self.min_order);
        if start <= MAX_ORDER && room(start) / stride > MAX_OBJECTS {
            return Order::new(Order::for_bytes(MAX_OBJECTS * stride)?.get().saturating_sub(1));
        }
        [16, 8, 4, 2]
            .iter()
            .find_map(|part| (start..=max).find(|&order| room(order) % stride <= bytes(order) / part))
            .map_or_else(|| Order::for_bytes(lead + stride), Order::new)
    }
}

/// Reason why no slab can hold objects of the given size.
///
/// ```
/// use uslab::{Geometry, GeometryError, OrderRule};
///
/// let error = Geometry::new(600, 24, &OrderRule::for_cpus(4));
/// assert_eq!(error, Err(GeometryError::Alignment(24)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The object size is 0.
    Empty,
    /// The alignment is not a power of two.
    Alignment(usize),
    /// One object is larger than the largest block.
    TooLarge {
        /// Size of one object in bytes, rounded up to its alignment.
        stride: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("an object of 0 bytes"),
            Self::Alignment(align) => write!(f, "alignment {align} is not a power of two"),
            Self::TooLarge { stride } => {
                write!(f, "an object of {stride} bytes; the largest block has {}", PAGE_SIZE << MAX_ORDER)
            }
        }
    }
}
impl std::error::Error for GeometryError {}

/// Layout of a cache's objects in a slab.
///
/// # Invariants
///
/// * `stride` is a multiple of `align`, which is a power of two and at least a word. Every object is aligned, because a
///   block of pages is aligned to its size, which is at least `stride`.
/// * `1 <= objects <= MAX_OBJECTS` and `lead + objects * stride + guard <= slab_bytes`. The bounds on `objects` and
///   `slab_bytes` also hold for slabs of order `min_order`.
/// * `lead` is a multiple of `align`. `lead` is 0 without red zones.
///
/// ```
/// use uslab::{Geometry, OrderRule};
///
/// let inodes = Geometry::new(600, 0, &OrderRule::for_cpus(4))?;
/// assert_eq!((inodes.order().pages(), inodes.objects(), inodes.waste()), (4, 27, 184));
/// // Index of the object at a byte offset.
/// assert_eq!((inodes.index(1200), inodes.index(1201)), (Some(2), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    object_size: u32,
    stride: u32,
    align: u32,
    /// Number of bytes of a slab before its first object.
    lead: u32,
    /// Number of inaccessible bytes at the end of a slab: 0 or one page.
    guard: u32,
    most: u32,
    order: Order,
    min_order: Order,
    /// `2^RECIPROCAL_SHIFT / stride`, rounded up (see [`Geometry::index`]).
    reciprocal: u64,
}

/// Shift that makes the reciprocal exact for offsets and strides up to the largest block, 2^22 bytes. The error of
/// `offset * reciprocal` is below `offset / 2^44 <= 2^-22 <= 1 / stride`, and the product stays below 2^64 because a
/// stride has at least 2^3 bytes.
const RECIPROCAL_SHIFT: u32 = 44;
const _: () = assert!((PAGE_SIZE << MAX_ORDER) <= 1 << 22);

impl Geometry {
    /// Indices of the objects that overlap the given byte range of a slab with `objects` objects.
    pub(crate) fn object_indices_in_range(
        &self,
        bytes: core::ops::Range<usize>,
        objects: u16,
    ) -> core::ops::Range<usize> {
        let index = |bytes: usize| bytes.saturating_sub(self.lead as usize) / self.stride as usize;
        let objects = usize::from(objects);
        index(bytes.start).min(objects)..(index(bytes.end - 1) + 1).min(objects)
    }
    /// Returns `true` if objects of this geometry can replace the objects of `other`, by the rule of Linux's
    /// `find_mergeable`. The objects of this geometry must be larger by less than a word, and at least as strictly
    /// aligned.
    pub(crate) fn serves(&self, other: &Self) -> bool {
        let excess = self.object_size.checked_sub(other.object_size);
        excess.is_some_and(|excess| (excess as usize) < WORD)
            && (self.stride, self.guard) == (other.stride, other.guard)
            && self.align.is_multiple_of(other.align)
    }

    /// Computes the slab geometry for objects of `size` bytes, aligned to `align` bytes (0 means a word).
    ///
    /// # Errors
    /// Fails if `size` is 0, `align` is not a power of two, or an object is larger than the largest block.
    pub fn new(size: usize, align: usize, rule: &OrderRule) -> Result<Self, GeometryError> {
        Self::with_layout(size, align, 0, 0, rule)
    }
    /// Computes the geometry as [`new`](Self::new) does, with a red zone of at least `zone` bytes on both sides of each
    /// object. Two adjacent objects share the gap between them equally.
    pub(crate) fn with_red_zones(
        size: usize,
        align: usize,
        zone: usize,
        rule: &OrderRule,
    ) -> Result<Self, GeometryError> {
        Self::with_layout(size, align, zone, zone, rule)
    }
    /// Computes the geometry as [`new`](Self::new) does, and reserves at least `tail` bytes after each object. The
    /// object's user must not write these bytes.
    pub(crate) fn with_tail(
        size: usize,
        tail: usize,
        align: usize,
        rule: &OrderRule,
    ) -> Result<Self, GeometryError> {
        Self::with_layout(size, align, 0, tail, rule)
    }
    fn with_layout(
        size: usize,
        align: usize,
        before: usize,
        behind: usize,
        rule: &OrderRule,
    ) -> Result<Self, GeometryError> {
        if size == 0 {
            return Err(GeometryError::Empty);
        }
        if align != 0 && !align.is_power_of_two() {
            return Err(GeometryError::Alignment(align));
        }
        let align = align.max(WORD);
        let largest = PAGE_SIZE << MAX_ORDER;
        let total_size = size.checked_add(before + behind);
        let stride = match total_size.and_then(|size| size.checked_next_multiple_of(align)) {
            Some(stride) if stride <= largest => stride,
            stride => return Err(GeometryError::TooLarge { stride: stride.unwrap_or(usize::MAX) }),
        };
        let lead = if before == 0 { 0 } else { ((stride - size) / 2).next_multiple_of(align) };
        let too_large = GeometryError::TooLarge { stride: lead + stride };
        Ok(Self {
            object_size: size as u32,
            stride: stride as u32,
            align: align as u32,
            lead: lead as u32,
            guard: 0,
            most: MAX_OBJECTS as u32,
            order: rule.order(lead, stride).ok_or(too_large)?,
            min_order: Order::for_bytes(lead + stride).ok_or(too_large)?,
            reciprocal: (1 << RECIPROCAL_SHIFT) / stride as u64 + 1,
        })
    }

    /// Limits a slab to `objects` objects, and reduces its order to the smallest order that holds them.
    pub(crate) fn at_most(self, objects: usize) -> Self {
        let max_objects = objects.clamp(1, self.most as usize);
        let bytes = self.lead() + max_objects * self.stride() + self.guard();
        let order = Order::for_bytes(bytes).unwrap_or(self.order);
        Self { most: max_objects as u32, order: order.min(self.order), ..self }
    }

    /// Adds a guard page at the end of each slab. Slabs get at least four pages, so guard pages take at most a quarter
    /// of the addresses. A slab of the largest order gets no guard page.
    pub(crate) fn with_guard(self) -> Self {
        let lowest = Order::for_bytes(self.lead() + self.stride() + PAGE_SIZE);
        let (Some(lowest), Some(usual)) = (lowest, Order::for_bytes(4 * PAGE_SIZE)) else {
            return self;
        };
        let order = self.order.max(usual).max(lowest);
        Self { guard: PAGE_SIZE as u32, order, min_order: lowest, ..self }
    }
    /// Number of inaccessible bytes at the end of a slab.
    pub(crate) const fn guard(&self) -> usize {
        self.guard as usize
    }

    /// Returns the alignment of a hardware-aligned object of `size` bytes. The alignment is a cache line, halved as
    /// long as the object fits into the half (`SLAB_HWCACHE_ALIGN`).
    pub const fn hardware_align(size: usize) -> usize {
        let mut align = CACHE_LINE;
        while size <= align / 2 && align > WORD {
            align /= 2;
        }
        align
    }

    /// Requested size of an object, in bytes.
    pub const fn object_size(&self) -> usize {
        self.object_size as usize
    }
    /// Distance between two adjacent objects in bytes; the column `objsize` of slabinfo.
    #[inline(always)]
    pub const fn stride(&self) -> usize {
        self.stride as usize
    }
    /// Number of bytes from the start of a slab to its first object: 0 without [red zones](crate::debug::flags).
    pub const fn lead(&self) -> usize {
        self.lead as usize
    }
    /// Sizes in bytes of the red zones before and after each object.
    pub(crate) const fn zones(&self) -> (usize, usize) {
        let gap = self.stride() - self.object_size();
        if self.lead == 0 { (0, 0) } else { (gap / 2, gap - gap / 2) }
    }
    /// Number of bytes of an object that its user may write. The number includes bytes added by rounding, unless the
    /// object is watched.
    pub(crate) const fn usable(&self) -> usize {
        if self.lead == 0 { self.stride() } else { self.object_size() }
    }
    /// Alignment of every object, in bytes.
    pub const fn align(&self) -> usize {
        self.align as usize
    }
    /// Order of a slab when memory is not short.
    pub const fn order(&self) -> Order {
        self.order
    }
    /// Smallest order that holds one object, which slabs have when memory is short.
    pub const fn min_order(&self) -> Order {
        self.min_order
    }
    /// Number of objects in a slab of the usual order.
    pub const fn objects(&self) -> usize {
        self.objects_at(self.order)
    }
    /// Number of objects in a slab of `order`.
    pub const fn objects_at(&self, order: Order) -> usize {
        let n = order.bytes().saturating_sub(self.lead() + self.guard()) / self.stride();
        let max_objects = self.most as usize;
        if n < max_objects { n } else { max_objects }
    }
    /// Number of unused bytes at the end of a slab of the usual order.
    pub const fn waste(&self) -> usize {
        self.order.bytes() - self.lead() - self.guard() - self.objects() * self.stride()
    }
    /// Number of slabs that a node keeps on its partial and empty lists before it frees a slab that becomes empty. The
    /// number is half the bit length of the stride, limited to 5 to 10 (`set_min_partial`).
    pub const fn min_partial(&self) -> usize {
        let half = self.stride.ilog2() as usize / 2;
        if half < 5 {
            5
        } else if half > 10 {
            10
        } else {
            half
        }
    }
    /// Returns the index of the object that starts at byte `offset` of the slab, or `None` if no object starts there.
    /// Cost: two multiplications.
    #[inline(always)]
    pub const fn index(&self, offset: usize) -> Option<usize> {
        let Some(offset) = offset.checked_sub(self.lead()) else { return None };
        let index = ((offset as u64 * self.reciprocal) >> RECIPROCAL_SHIFT) as usize;
        if index * self.stride() == offset { Some(index) } else { None }
    }
    /// Returns `true` if a slab of order `order` has an object with index `index`. Cost: one multiplication;
    /// [`objects_at`](Self::objects_at) needs a division.
    #[inline(always)]
    pub(crate) const fn has_object(&self, index: usize, order: Order) -> bool {
        index < self.most as usize && self.offset(index + 1) + self.guard() <= order.bytes()
    }
    /// Number of bytes from the start of the slab to the object with index `index`.
    #[inline(always)]
    pub const fn offset(&self, index: usize) -> usize {
        self.lead() + index * self.stride()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(size: usize, cpus: u32) -> Geometry {
        Geometry::new(size, 0, &OrderRule::for_cpus(cpus)).unwrap()
    }

    #[test]
    fn geometry_of_an_invalid_size_or_alignment_is_an_error() {
        let rule = OrderRule::for_cpus(2);
        assert_eq!(Geometry::new(0, 8, &rule), Err(GeometryError::Empty));
        assert_eq!(Geometry::new(8, 24, &rule), Err(GeometryError::Alignment(24)));
        assert!(matches!(Geometry::new(usize::MAX, 8, &rule), Err(GeometryError::TooLarge { .. })));
        assert!(matches!(Geometry::new((4 << 20) + 1, 8, &rule), Err(GeometryError::TooLarge { .. })));
        assert!(Geometry::new(4 << 20, 8, &rule).is_ok());
        assert!(matches!(Geometry::new(8, 8 << 20, &rule), Err(GeometryError::TooLarge { .. })));
        let wild = OrderRule { max_order: 200, min_order: 99, min_objects: u32::MAX, ..rule };
        assert!(Geometry::new(64, 8, &wild).is_ok(), "extreme tunables give the order of one object");
    }

    #[test]
    fn slab_order_grows_with_the_cpu_count() {
        assert_eq!(geometry(1024, 2).objects(), 16);
        assert_eq!(geometry(1024, 64).objects(), 32);
        assert_eq!(geometry(8192, 2).order().get(), 3);
        assert_eq!(geometry(40_000, 2).objects(), 1);
    }

    #[test]
    fn slab_order_counts_possible_cpus_on_single_cpu_machines() {
        let rule = OrderRule { possible_cpus: 256, ..OrderRule::for_cpus(1) };
        assert_eq!(Geometry::new(1024, 0, &rule).unwrap(), geometry(1024, 256));
    }

    #[test]
    fn hardware_alignment_is_smaller_for_small_objects() {
        let rows = [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64), (200, 64)];
        for (size, align) in rows {
            assert_eq!(Geometry::hardware_align(size), align, "size {size}");
        }
    }

    #[test]
    fn object_count_of_a_slab_fits_the_counter_type() {
        let rule = OrderRule { max_order: 10, min_objects: 1 << 30, ..OrderRule::for_cpus(2) };
        for size in [8, 16, 24, 64, 128, 136] {
            let geometry = Geometry::new(size, 0, &rule).unwrap();
            assert!(geometry.order().bytes() / geometry.stride() <= MAX_OBJECTS, "size {size}: {geometry:?}");
        }
    }

    proptest! {
        /// The reciprocal must agree with division for every offset of every slab.
        #[test]
        fn object_index_agrees_with_division(size in 1_usize..=4 << 20, align in 0_u32..=12, offset in 0_usize..4 << 20) {
            let geometry = Geometry::new(size, 1 << align, &OrderRule::for_cpus(4)).unwrap();
            let stride = geometry.stride();
            let exact = offset.is_multiple_of(stride).then(|| offset / stride);
            prop_assert_eq!(geometry.index(offset), exact);
            let start = offset / stride * stride;
            prop_assert_eq!(geometry.index(start), Some(start / stride));
            for order in (0..=MAX_ORDER).filter_map(Order::new) {
                for index in [start / stride, geometry.objects_at(order), geometry.objects_at(order).saturating_sub(1)] {
                    prop_assert_eq!(geometry.has_object(index, order), index < geometry.objects_at(order));
                }
            }
        }

        #[test]
        fn objects_with_red_zones_are_aligned_disjoint_and_inside_the_slab(
            size in 1_usize..=1 << 20, align in 0_u32..=16, cpus in 1_u32..256, index in 0_usize..MAX_OBJECTS,
        ) {
            let align = 1 << align;
            let rule = OrderRule::for_cpus(cpus);
            let geometry = Geometry::with_red_zones(size, align, WORD, &rule).unwrap();
            let (left, right) = geometry.zones();
            prop_assert!(left >= WORD && right >= WORD && geometry.lead() >= left);
            prop_assert_eq!(left + size + right, geometry.stride());
            prop_assert_eq!(geometry.usable(), size);
            for order in [geometry.order(), geometry.min_order()] {
                let objects = geometry.objects_at(order);
                prop_assert!((1..=MAX_OBJECTS).contains(&objects));
                let index = index % objects;
                let offset = geometry.offset(index);
                prop_assert!(offset.is_multiple_of(align) && offset >= left);
                prop_assert!(offset + size + right <= order.bytes());
                prop_assert_eq!(geometry.index(offset), Some(index));
                prop_assert_eq!(geometry.index(offset + 1), None);
                prop_assert!(geometry.has_object(objects - 1, order));
                prop_assert!(!geometry.has_object(objects, order));
            }
            prop_assert_eq!(geometry.index(0), None);
            prop_assert_eq!(geometry.index(geometry.lead() - 1), None);
        }

        /// A limited slab has no more objects than the limit, and no more pages than its objects need.
        #[test]
        fn slab_of_few_objects_has_no_superfluous_pages(size in 1_usize..=1 << 16, most in 1_usize..=MAX_OBJECTS, cpus in 1_u32..256) {
            let unlimited = Geometry::new(size, 0, &OrderRule::for_cpus(cpus)).unwrap();
            let limited = unlimited.at_most(most);
            prop_assert_eq!(limited.objects(), most.min(unlimited.objects()));
            prop_assert!(limited.order() <= unlimited.order() && limited.order() >= limited.min_order());
            prop_assert!(limited.order() == limited.min_order() || limited.objects() * limited.stride() > limited.order().bytes() / 2);
            prop_assert!(!limited.has_object(limited.objects(), limited.order()));
        }

        #[test]
        fn objects_are_aligned_and_inside_the_slab(size in 1_usize..=4 << 20, align in 0_u32..=22, cpus in 1_u32..2048) {
            let geometry = Geometry::new(size, 1 << align, &OrderRule::for_cpus(cpus)).unwrap();
            prop_assert!(geometry.objects() >= 1 && geometry.objects() <= MAX_OBJECTS);
            prop_assert!(geometry.objects() * geometry.stride() + geometry.waste() == geometry.order().bytes());
            prop_assert_eq!((geometry.lead(), geometry.zones(), geometry.usable()), (0, (0, 0), geometry.stride()));
            prop_assert!(geometry.stride() >= size && geometry.stride().is_multiple_of(geometry.align()));
            prop_assert!(geometry.align() >= 1 << align);
            prop_assert!(geometry.min_order() <= geometry.order());
            prop_assert!(geometry.waste() <= geometry.order().bytes() / 2);
        }
    }
}
