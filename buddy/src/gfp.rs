//! Allocation flags, migrate types and kinds of zones.
//!
//! The flags have the kernel's names (`gfp_types.h`) without the two underscores, but different bits. Flags
//! that this crate does not use are left out, except [`Gfp::NOIO`] and [`Gfp::NOFS`], which the reclaiming
//! code above reads.

bitflags::bitflags! {
    /// Allocation flags. Empty (= [`Gfp::KERNEL`]) is a plain allocation that may wait.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Gfp: u32 {
        /// The pages are zeroed.
        const ZERO = 1 << 0;
        /// High priority: may go down to half of the minimum watermark (3/8 of it together with `NOWAIT`).
        const HIGH = 1 << 1;
        /// The caller cannot wait: the allocation fails without draining other CPUs' pages.
        const NOWAIT = 1 << 2;
        /// Reclaim for this allocation must not start input or output. Used by the code above.
        const NOIO = 1 << 3;
        /// Reclaim for this allocation must not call into file systems. Used by the code above.
        const NOFS = 1 << 4;
        /// Fails at the first refusal, like `NOWAIT`, although the caller could wait.
        const NORETRY = 1 << 5;
        /// The owner can move the contents: allows movable blocks and the zone [`Movable`].
        ///
        /// [`Movable`]: crate::ZoneKind::Movable
        const MOVABLE = 1 << 6;
        /// A shrinker can drop the contents: reclaimable blocks. Takes precedence over `MOVABLE`.
        const RECLAIMABLE = 1 << 7;
        /// Only from the given node, or without one from the current CPU's node.
        const THIS_NODE = 1 << 8;
        /// A compound block: each of its pages knows the first one, so an interior address leads to the
        /// block.
        const COMP = 1 << 9;
        /// From zone DMA.
        const DMA = 1 << 10;
        /// From zone DMA32, or below.
        const DMA32 = 1 << 11;
        /// Ignores watermarks: this allocation frees memory by allocating a little. If no block is free, all
        /// CPUs' pages are flushed. Shrinkers do not run, and caches only give up unused memory. For memory
        /// above 4 MiB only freed mappings are returned.
        const MEMALLOC = 1 << 12;

        /// High priority, for a caller that cannot wait.
        const ATOMIC = Self::HIGH.bits() | Self::NOWAIT.bits();
        /// Movable pages of a user.
        const HIGHUSER_MOVABLE = Self::MOVABLE.bits();
    }
}

impl core::fmt::Display for Gfp {
    /// Names joined by ` | `; `KERNEL` if empty.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_empty() { f.write_str("KERNEL") } else { bitflags::parser::to_writer(self, f) }
    }
}

impl Gfp {
    /// A plain allocation that may wait.
    pub const KERNEL: Self = Self::empty();

    /// The migrate type that the flags select.
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
    /// The highest zone that the flags allow.
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
    /// Returns `true` if other code may be called to free memory: not for a caller that cannot or will not
    /// wait, or that is itself freeing memory.
    pub const fn may_reclaim(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY).union(Self::MEMALLOC))
    }
    /// Returns `true` if the allocation may flush the per-CPU pages of all CPUs before it fails.
    pub(crate) const fn may_drain(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY))
    }
}

/// Mobility of the contents of pages. Pages of one type share pageblocks, so that whole pageblocks become
/// free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[repr(u8)]
pub enum MigrateType {
    /// Stays in place until its owner frees it.
    Unmovable = 0,
    /// Its owner can move it.
    Movable = 1,
    /// A shrinker can drop it.
    Reclaimable = 2,
}

impl MigrateType {
    /// Number of migrate types.
    #[doc(hidden)]
    pub const COUNT: usize = 3;
    /// All types, in the kernel's order.
    pub const ALL: [Self; Self::COUNT] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// Decodes the low bits of a stored type.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unmovable,
            1 => Self::Movable,
            _ => Self::Reclaimable,
        }
    }
    /// The types to try if this type's lists are empty, best first.
    pub(crate) const fn fallbacks(self) -> [Self; 2] {
        match self {
            Self::Unmovable => [Self::Reclaimable, Self::Movable],
            Self::Movable => [Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => [Self::Unmovable, Self::Movable],
        }
    }
    /// The name in `/proc/pagetypeinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
        }
    }
}

/// The kind of a zone's memory, lowest first. A request may be served by its zone and lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum ZoneKind {
    /// Memory that the oldest devices can address.
    Dma = 0,
    /// Memory below 4 GiB.
    Dma32 = 1,
    /// All other memory.
    Normal = 2,
    /// Memory for movable pages only.
    Movable = 3,
}

impl ZoneKind {
    /// Number of kinds.
    #[doc(hidden)]
    pub const COUNT: usize = 4;
    /// All kinds, lowest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];

    /// The name in `/proc/buddyinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        }
    }
}
