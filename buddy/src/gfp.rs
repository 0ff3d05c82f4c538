//! Allocation flags, migrate types and kinds of zones.
//!
//! The flags have the kernel's names (`gfp_types.h`) without the two underscores, but different bits. Flags
//! that this crate does not use are left out. The crate ignores [`Gfp::NOIO`] and [`Gfp::NOFS`], which are
//! for the reclaiming code of its callers.

bitflags::bitflags! {
    /// Allocation flags. Empty flags (= [`Gfp::KERNEL`]) request a plain allocation that may wait.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Gfp: u32 {
        /// The allocation returns zeroed pages.
        const ZERO = 1 << 0;
        /// High priority: lowers the minimum watermark to half, or to 3/8 together with `NOWAIT`.
        const HIGH = 1 << 1;
        /// The caller cannot wait. The allocation fails without draining other CPUs' pages.
        const NOWAIT = 1 << 2;
        /// Reclaim for this allocation must not start input or output. Only callers of this crate act on the flag.
        const NOIO = 1 << 3;
        /// Reclaim for this allocation must not call into file systems. Only callers of this crate act on the flag.
        const NOFS = 1 << 4;
        /// The allocation fails at the first refusal, like `NOWAIT`, although the caller could wait.
        const NORETRY = 1 << 5;
        /// The owner of the pages can move their contents. The allocation may use movable pageblocks and the
        /// zone [`Movable`].
        ///
        /// [`Movable`]: crate::ZoneKind::Movable
        const MOVABLE = 1 << 6;
        /// A shrinker can drop the contents of the pages. The allocation uses reclaimable pageblocks.
        /// `RECLAIMABLE` takes precedence over `MOVABLE`.
        const RECLAIMABLE = 1 << 7;
        /// Allocates only from the given node, or from the current CPU's node if none is given.
        const THIS_NODE = 1 << 8;
        /// Requests a compound block. Each page of the block records the first page, for lookups by interior address.
        const COMP = 1 << 9;
        /// Allocates only from zone DMA.
        const DMA = 1 << 10;
        /// Allocates from zone DMA32 or a lower zone.
        const DMA32 = 1 << 11;
        /// Ignores watermarks, for an allocation that helps to free memory. If no block is free, a `MEMALLOC`
        /// allocation flushes all CPUs' pages. With `MEMALLOC`, shrinkers do not run, and caches release only
        /// unused memory. With `MEMALLOC`, only freed mappings are returned to the system to make room for
        /// memory above 4 MiB.
        const MEMALLOC = 1 << 12;

        /// The allocation has high priority, and its caller cannot wait.
        const ATOMIC = Self::HIGH.bits() | Self::NOWAIT.bits();
        /// The allocation is for movable pages of a user process.
        const HIGHUSER_MOVABLE = Self::MOVABLE.bits();
    }
}

impl core::fmt::Display for Gfp {
    /// Prints the flags' names joined by ` | `, or `KERNEL` for empty flags.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_empty() { f.write_str("KERNEL") } else { bitflags::parser::to_writer(self, f) }
    }
}

impl Gfp {
    /// Requests a plain allocation that may wait.
    pub const KERNEL: Self = Self::empty();

    #[inline]
    pub(crate) const fn migrate_type(self) -> MigrateType {
        if self.contains(Self::RECLAIMABLE) {
            MigrateType::Reclaimable
        } else if self.contains(Self::MOVABLE) {
            MigrateType::Movable
        } else {
            MigrateType::Unmovable
        }
    }
    #[inline]
    pub(crate) const fn highest_zone(self) -> ZoneKind {
        if self.contains(Self::DMA) {
            ZoneKind::Dma
        } else if self.contains(Self::DMA32) {
            ZoneKind::Dma32
        } else if self.contains(Self::MOVABLE) {
            ZoneKind::Movable
        } else {
            ZoneKind::Normal
        }
    }
    /// Returns `true` if the allocation may call other code to free memory. Returns `false` for a caller that cannot or
    /// will not wait, or that is itself freeing memory.
    pub const fn may_reclaim(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY).union(Self::MEMALLOC))
    }
    /// Returns `true` if the allocation may flush the per-CPU pages of all CPUs before it fails.
    pub(crate) const fn may_drain(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY))
    }
}

/// Mobility of the contents of pages. Pages of one migrate type share pageblocks, so that whole pageblocks become free
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[repr(u8)]
pub enum MigrateType {
    /// The contents of the pages stay in place until their owner frees them.
    Unmovable = 0,
    /// The owner of the pages can move their contents.
    Movable = 1,
    /// A shrinker can drop the contents of the pages.
    Reclaimable = 2,
}

impl MigrateType {
    /// Number of migrate types.
    pub const COUNT: usize = 3;
    /// All migrate types, in the kernel's order.
    pub const ALL: [Self; Self::COUNT] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// Decodes a migrate type from the low bits of a stored value.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unmovable,
            1 => Self::Movable,
            _ => Self::Reclaimable,
        }
    }
    /// Returns the migrate types to try if the lists of `self` are empty, best type first.
    pub(crate) const fn fallbacks(self) -> [Self; 2] {
        match self {
            Self::Unmovable => [Self::Reclaimable, Self::Movable],
            Self::Movable => [Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => [Self::Unmovable, Self::Movable],
        }
    }
    /// Returns the migrate type's name in `/proc/pagetypeinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
        }
    }
}

/// The kind of a zone's memory, lowest first. A request for one kind of zone may also be served by lower
/// zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum ZoneKind {
    /// Memory that the oldest devices can address.
    Dma = 0,
    /// Memory below 4 GiB.
    Dma32 = 1,
    /// Memory that belongs to no other zone.
    Normal = 2,
    /// Memory for movable pages only.
    Movable = 3,
}

impl ZoneKind {
    /// Number of zone kinds.
    pub const COUNT: usize = 4;
    /// All zone kinds, lowest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];

    /// Returns the zone kind's name in `/proc/buddyinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        }
    }
}
