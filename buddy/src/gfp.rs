//! Allocation flags, migrate types and kinds of zones.
//!
//! The flags have the kernel's names (`gfp_types.h`) without the two leading underscores. The flags' bit values differ
//! from the kernel's. Kernel flags that this project does not use are not defined. The page allocator ignores
//! [`Gfp::NOIO`] and [`Gfp::NOFS`], which restrict the reclaim code of its callers.

bitflags::bitflags! {
    /// Allocation flags. Empty flags (= [`Gfp::KERNEL`]) request a plain allocation that may wait.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Gfp: u32 {
        /// The allocation returns zeroed pages.
        const ZERO = 1 << 0;
        /// High priority: the allocation may take free pages down to half the min watermark, or to 3/8 of it together
        /// with `NOWAIT`.
        const HIGH = 1 << 1;
        /// The caller cannot wait for memory to be freed. The allocation fails instead of flushing the per-CPU pages of
        /// all CPUs.
        const NOWAIT = 1 << 2;
        /// Reclaim for this allocation must not start I/O. The page allocator ignores the flag, and only its callers
        /// act on it.
        const NOIO = 1 << 3;
        /// Reclaim for this allocation must not call into file systems. The page allocator ignores the flag, and only
        /// its callers act on it.
        const NOFS = 1 << 4;
        /// Like `NOWAIT`, the allocation fails without trying to free memory, although its caller could wait.
        const NORETRY = 1 << 5;
        /// The owner of the pages can move their contents. The allocation may use movable pageblocks and the
        /// [`Movable`] zone.
        ///
        /// [`Movable`]: crate::ZoneKind::Movable
        const MOVABLE = 1 << 6;
        /// A shrinker can drop the contents of the pages. The pages come from reclaimable pageblocks, if possible. If
        /// both flags are set, `RECLAIMABLE` takes precedence over `MOVABLE`.
        const RECLAIMABLE = 1 << 7;
        /// Allocates only from the requested node, or from the current CPU's node if the request names no node.
        const THIS_NODE = 1 << 8;
        /// Requests a compound block: every page of the block leads to its first page. Each page of a compound block
        /// records the block's first page, so that any address in the block leads to the block.
        const COMP = 1 << 9;
        /// Allocates only from zone DMA.
        const DMA = 1 << 10;
        /// Allocates from zone DMA32 or zone DMA.
        const DMA32 = 1 << 11;
        /// The allocation ignores watermarks, because it is part of freeing other memory. If no block is free, a
        /// `MEMALLOC` allocation flushes the per-CPU pages of all CPUs. For a `MEMALLOC` allocation, shrinkers do not
        /// run, and caches release only unused memory. A `MEMALLOC` allocation above 4 MiB makes room only by unmapping
        /// mappings that were already freed.
        const MEMALLOC = 1 << 12;

        /// High priority, for a caller that cannot wait.
        const ATOMIC = Self::HIGH.bits() | Self::NOWAIT.bits();
        /// A plain allocation of movable pages, like the pages of a user process.
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
    /// A plain allocation, whose caller may wait.
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
    /// Returns `true` if the allocation may call reclaim code, such as shrinkers, to free memory. The result is `false`
    /// if the caller cannot or will not wait, or is already freeing memory.
    pub const fn may_reclaim(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY).union(Self::MEMALLOC))
    }
    /// Returns `true` if the allocation may flush the per-CPU pages of all CPUs before it fails.
    pub(crate) const fn may_drain(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY))
    }
}

/// The migrate type of a page: whether the contents can be moved or dropped. Pages of the same migrate type share
/// pageblocks, so whole pageblocks become free more often.
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
    /// All migrate types, in the order in which the kernel numbers them.
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
    /// Returns the fallback migrate types, best first, for an allocation that finds no free block of the type `self`.
    pub(crate) const fn fallback_types(self) -> [Self; 2] {
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

/// The kind of a zone, in the kernel's order. A request that allows a kind of zone may also be served from lower zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum ZoneKind {
    /// The DMA zone: memory that the oldest devices can address.
    Dma = 0,
    /// The DMA32 zone: memory below 4 GiB.
    Dma32 = 1,
    /// The Normal zone: memory that belongs to no other zone.
    Normal = 2,
    /// The Movable zone: memory for movable pages only.
    Movable = 3,
}

impl ZoneKind {
    /// Number of zone kinds.
    pub const COUNT: usize = 4;
    /// All zone kinds, from the lowest zone to the highest.
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
