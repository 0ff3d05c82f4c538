//! What the caller of an allocation says about it.
//!
//! The names are the kernel's (`gfp_types.h`), without the two underscores; the bits are our own. Flags that this
//! floor does not act on are not here, except [`Gfp::NOIO`] and [`Gfp::NOFS`]: they travel to whoever reclaims.

bitflags::bitflags! {
    /// Allocation flags. Empty (= [`Gfp::KERNEL`]) is a plain allocation that may wait.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Gfp: u32 {
        /// The pages are zeroed.
        const ZERO = 1 << 0;
        /// High priority: may go down to half of the minimum watermark (3/8 of it together with `NOWAIT`).
        const HIGH = 1 << 1;
        /// The caller cannot wait: per-CPU pages of other CPUs are not drained before giving up.
        const NOWAIT = 1 << 2;
        /// Reclaim on behalf of this allocation must not start input or output. For the floors above.
        const NOIO = 1 << 3;
        /// Reclaim on behalf of this allocation must not call into file systems. For the floors above.
        const NOFS = 1 << 4;
        /// Gives up at the first failure, as `NOWAIT` does, though the caller could wait.
        const NORETRY = 1 << 5;
        /// The contents can be moved elsewhere by their owner: movable blocks, and the zone [`Movable`] too.
        ///
        /// [`Movable`]: crate::ZoneKind::Movable
        const MOVABLE = 1 << 6;
        /// The contents can be dropped by a shrinker: reclaimable blocks. Wins over `MOVABLE`.
        const RECLAIMABLE = 1 << 7;
        /// From the node asked for, or not at all; from the CPU's, where none is.
        const THIS_NODE = 1 << 8;
        /// A compound block: every page of it knows the first one, so that an interior address finds its block.
        const COMP = 1 << 9;
        /// From zone DMA.
        const DMA = 1 << 10;
        /// From zone DMA32, or below.
        const DMA32 = 1 << 11;
        /// No watermark holds for this one: it frees memory by allocating a little. Where no block is free, all CPUs' pages are called in.
        /// Shrinkers are not asked, and caches only for what nobody uses. For memory above 4 MiB only freed mappings are given back.
        const MEMALLOC = 1 << 12;

        /// Cannot wait, high priority.
        const ATOMIC = Self::HIGH.bits() | Self::NOWAIT.bits();
        /// Movable pages of a user.
        const HIGHUSER_MOVABLE = Self::MOVABLE.bits();
    }
}

impl core::fmt::Display for Gfp {
    /// Names joined by ` | `; `KERNEL` when empty.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.is_empty() { f.write_str("KERNEL") } else { bitflags::parser::to_writer(self, f) }
    }
}

impl Gfp {
    /// A plain allocation that may wait.
    pub const KERNEL: Self = Self::empty();

    /// The mobility that the flags ask for.
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
    /// The highest zone that may serve the flags.
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
    /// Whether others may be asked to give memory back: neither may they by who cannot wait, or does not want to, nor by who
    /// is giving memory back.
    pub const fn may_reclaim(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY).union(Self::MEMALLOC))
    }
    /// Whether the per-CPU pages of all CPUs may be called in before giving up.
    pub(crate) const fn may_drain(self) -> bool {
        !self.intersects(Self::NOWAIT.union(Self::NORETRY))
    }
}

/// Whether the contents of pages can be moved or dropped: pages of one kind share pageblocks, so that whole
/// pageblocks become free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[repr(u8)]
pub enum MigrateType {
    /// Stays where it is until its owner frees it.
    Unmovable = 0,
    /// Its owner can move it.
    Movable = 1,
    /// A shrinker can drop it.
    Reclaimable = 2,
}

impl MigrateType {
    /// How many there are.
    #[doc(hidden)]
    pub const COUNT: usize = 3;
    /// All, in the kernel's order.
    pub const ALL: [Self; Self::COUNT] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// From the low bits of a word that [`MigrateType`] was stored in.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unmovable,
            1 => Self::Movable,
            _ => Self::Reclaimable,
        }
    }
    /// Where to look when the own lists are empty, best first.
    pub(crate) const fn fallbacks(self) -> [Self; 2] {
        match self {
            Self::Unmovable => [Self::Reclaimable, Self::Movable],
            Self::Movable => [Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => [Self::Unmovable, Self::Movable],
        }
    }
    /// As `/proc/pagetypeinfo` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
        }
    }
}

/// What a zone's memory is good for, lowest first. A request may be served by its own zone and those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum ZoneKind {
    /// Memory that the oldest devices reach.
    Dma = 0,
    /// Memory below 4 GiB.
    Dma32 = 1,
    /// All other memory.
    Normal = 2,
    /// Memory for movable pages only.
    Movable = 3,
}

impl ZoneKind {
    /// How many there are.
    #[doc(hidden)]
    pub const COUNT: usize = 4;
    /// All, lowest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma, Self::Dma32, Self::Normal, Self::Movable];

    /// As `/proc/buddyinfo` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
        }
    }
}
