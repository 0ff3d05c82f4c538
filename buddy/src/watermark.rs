//! Watermarks: how many pages of a zone stay free, and which requests may use them.
//!
//! The kernel's formulas determine the watermarks (`__setup_per_zone_wmarks`, `setup_per_zone_lowmem_reserve`). An
//! allocator of `n` KiB keeps `sqrt(16 * n)` KiB free. Each zone keeps a share in proportion to its size. A kernel with
//! huge pages keeps more memory free (about 11 times as much on a machine of 1 GiB), so that migrate types need not
//! share pageblocks. An allocation first tries to leave the zone above its *low* watermark. If every zone is below its
//! low watermark, the allocation tries again with the *min* watermark. A kernel would then also wake its reclaimer.
//! High-priority allocations may use pages below the min watermark, down to half of it or less. In addition, a zone
//! keeps a *lowmem reserve*, and refuses it to requests that allow a higher zone.
//!
//! Zones of fewer than [`MIN_WATERMARKED_PAGES`] pages have no watermarks, because even the formula's minimum would
//! keep all their pages free.

use crate::gfp::{Gfp, ZoneKind};
use crate::pfn::Order;

/// Minimum size in pages of a zone that has watermarks.
pub const MIN_WATERMARKED_PAGES: u32 = 64;

/// The distance between two watermarks, in 1/10,000 of the zone's size: the kernel's default of
/// `vm.watermark_scale_factor`.
pub const SCALE_FACTOR: u32 = 10;

/// For each zone kind, the number of pages in higher zones per page of its lowmem reserve. With a ratio of 0, the zone
/// has no lowmem reserve.
const LOWMEM_RESERVE_RATIO: [u32; ZoneKind::COUNT] = [256, 256, 32, 0];

/// The min, low and high watermarks of a zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Watermarks {
    /// The min watermark: only high-priority requests may use the pages below it.
    pub min: u32,
    /// The low watermark: reclaim should begin when fewer pages are free.
    pub low: u32,
    /// The high watermark: reclaim may stop when more pages are free.
    pub high: u32,
}

/// Returns the number of pages that the allocator keeps free, over all zones. The argument `lowmem` is the number of
/// pages in all zones except Movable.
pub(crate) fn min_free_pages(lowmem: u64) -> u64 {
    let kib = (lowmem * 4 * 16).isqrt().clamp(128, 256 << 10);
    kib / 4
}

/// Number of migrate types that have per-CPU lists in the kernel: unmovable, movable and reclaimable.
const PCP_TYPES: u64 = 3;

/// Returns the number of pages that the kernel's huge-page daemon keeps free (`set_recommended_min_free_kbytes`). Each
/// of the `zones` zones keeps two pageblocks free, so that one remains free while the other is filled. In addition,
/// each zone keeps one pageblock free for each pair of migrate types that could mix. The result is at most a twentieth
/// of `lowmem`. The kernel's limit is slightly lower: a twentieth of the pages above the high watermarks.
pub(crate) fn huge_page_free_pages(pageblock: u64, zones: u64, lowmem: u64) -> u64 {
    (pageblock * zones * (2 + PCP_TYPES * PCP_TYPES)).min(lowmem / 20)
}

impl Watermarks {
    /// Returns the watermarks of a zone of `managed` pages. All zones together keep `min_free` pages free, and all
    /// zones except Movable have `lowmem` pages. The unit of `scale` is 1/10,000, as in [`SCALE_FACTOR`].
    pub(crate) fn new(kind: ZoneKind, managed: u32, lowmem: u64, min_free: u64, scale: u32) -> Self {
        if managed < MIN_WATERMARKED_PAGES {
            return Self::default();
        }
        let pages = u64::from(managed);
        let share = min_free * pages / lowmem.max(1);
        let min = if kind == ZoneKind::Movable { (pages / 1024).clamp(32, 128) } else { share };
        let gap = (share / 4).max(pages * u64::from(scale) / 10_000);
        let mark = |n: u64| u32::try_from((min + n * gap).min(pages)).unwrap_or(managed);
        Self { min: mark(0), low: mark(1), high: mark(2) }
    }
}

/// Computes the lowmem reserves of one node. The entry `[zone][highest]` is the number of pages that `zone` withholds
/// from requests whose highest allowed zone is `highest`. The argument `managed` has the number of pages of each zone
/// kind; 0 for a missing zone.
pub(crate) fn lowmem_reserve(managed: [u32; ZoneKind::COUNT]) -> [[u32; ZoneKind::COUNT]; ZoneKind::COUNT] {
    let mut reserve = [[0; ZoneKind::COUNT]; ZoneKind::COUNT];
    for zone in 0..ZoneKind::COUNT {
        let ratio = LOWMEM_RESERVE_RATIO[zone];
        let mut above = 0_u32;
        for highest in zone + 1..ZoneKind::COUNT {
            above = above.saturating_add(managed[highest]);
            if ratio > 0 && managed[zone] > 0 {
                reserve[zone][highest] = above / ratio;
            }
        }
    }
    reserve
}

/// The watermark that one allocation attempt must respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Low,
    Min,
}

impl Watermarks {
    /// Returns how many pages must stay free after an allocation with the flags `gfp`: the watermark `mark` plus the
    /// lowmem reserve. Returns `None` if the allocation ignores watermarks.
    pub(crate) fn floor(&self, mark: Mark, gfp: Gfp, reserve: u32) -> Option<u32> {
        if gfp.contains(Gfp::MEMALLOC) {
            return None;
        }
        let pages = match mark {
            Mark::Low => self.low,
            Mark::Min => {
                let mut min = self.min;
                if gfp.contains(Gfp::HIGH) {
                    min -= min / 2;
                    if gfp.contains(Gfp::NOWAIT) {
                        min -= min / 4;
                    }
                }
                min
            }
        };
        Some(pages.saturating_add(reserve))
    }
}

/// Returns `true` if a zone with `free` free pages may allocate a block of `order` while `floor` pages must stay free.
///
/// Like the kernel's check, `allows` does not count the first page of the block, so an allocation may take the last
/// page above the floor.
pub(crate) fn allows(free: u32, order: Order, floor: Option<u32>) -> bool {
    let beyond_first = order.pages() - 1;
    match floor {
        Some(floor) => free.checked_sub(beyond_first).is_some_and(|left| left > floor),
        None => free > beyond_first,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn minimum_watermark_follows_the_linux_square_root_formula() {
        assert_eq!(min_free_pages(64), 32, "never below 128 KiB");
        assert_eq!(min_free_pages((16 << 30) / 4096), 16384 / 4);
        assert_eq!(min_free_pages(u64::from(u32::MAX)), 65536, "never above 256 MiB");
    }

    #[test]
    fn watermarks_match_a_running_kernel() {
        // Values from /proc/zoneinfo of a machine with 5.5 GiB and vm.min_free_kbytes = 67584.
        let (managed, min_free) = ([3840, 772_918, 655_360, 0], 67_584 / 4);
        let lowmem = managed.iter().map(|n| u64::from(*n)).sum();
        let marks = |kind: ZoneKind| {
            let marks = Watermarks::new(kind, managed[kind as usize], lowmem, min_free, SCALE_FACTOR);
            [marks.min, marks.low, marks.high]
        };
        assert_eq!(marks(ZoneKind::Dma), [45, 56, 67]);
        assert_eq!(marks(ZoneKind::Dma32), [9118, 11397, 13676]);
        assert_eq!(marks(ZoneKind::Normal), [7731, 9663, 11595]);
        let reserve = lowmem_reserve(managed);
        assert_eq!(reserve[0], [0, 3019, 5579, 5579]);
        assert_eq!(reserve[1], [0, 0, 2560, 2560]);
        assert_eq!((reserve[2], reserve[3]), ([0; 4], [0; 4]));
    }

    /// Regression: watermarks were 11 times lower than on recorded kernels, because the reserve of the huge-page daemon
    /// was missing.
    #[test]
    fn watermarks_with_huge_pages_match_recorded_kernels() {
        // Pages managed by each zone (DMA, DMA32, Normal), and the kernel's min, low and high marks, from
        // /proc/zoneinfo. Small kernels set their marks before they free their boot memory, and differ by a few pages.
        let recorded = [
            ("6.1, 1 GiB", 5, [3840, 241_910, 0], [[177, 221, 265], [11_086, 13_857, 16_628], [0; 3]]),
            ("6.12, 1 GiB", 5, [3840, 243_657, 0], [[176, 220, 264], [11_087, 13_858, 16_629], [0; 3]]),
            (
                "6.18, 7 GiB",
                0,
                [3840, 772_917, 1_081_344],
                [[34, 42, 50], [7028, 8785, 10_542], [9832, 12_290, 14_748]],
            ),
        ];
        for (kernel, off, managed, expected) in recorded {
            let lowmem = managed.iter().map(|n| u64::from(*n)).sum();
            let zones = managed.iter().filter(|n| **n > 0).count() as u64;
            let daemon = huge_page_free_pages(512, zones, lowmem);
            assert!(daemon > 4 * min_free_pages(lowmem), "{kernel}");
            for ((kind, managed), expected) in
                [ZoneKind::Dma, ZoneKind::Dma32, ZoneKind::Normal].into_iter().zip(managed).zip(expected)
            {
                let marks = Watermarks::new(kind, managed, lowmem, daemon, SCALE_FACTOR);
                for (ours, theirs) in [marks.min, marks.low, marks.high].into_iter().zip(expected) {
                    assert!(ours.abs_diff(theirs) <= off, "{kernel} {kind:?}: {marks:?}, not {expected:?}");
                }
            }
        }
        assert_eq!(
            huge_page_free_pages(512, 1, 64 << 8),
            819,
            "the watermark of a small range must be a 20th of the range"
        );
    }

    #[test]
    fn tiny_memory_zones_have_no_watermark() {
        let marks = |kind, pages| Watermarks::new(kind, pages, 1 << 20, 4096, SCALE_FACTOR);
        let of_much = |pages| Watermarks::new(ZoneKind::Normal, pages, 1 << 20, 1 << 18, SCALE_FACTOR);
        assert_eq!(
            (of_much(MIN_WATERMARKED_PAGES - 1), of_much(MIN_WATERMARKED_PAGES).min),
            (Watermarks::default(), MIN_WATERMARKED_PAGES / 4)
        );
        assert_eq!(marks(ZoneKind::Movable, 1 << 20).min, 128);
        assert_eq!(marks(ZoneKind::Movable, 100).min, 32);
    }

    #[test]
    fn highest_zone_has_no_lowmem_reserve() {
        let mut managed = [1 << 16; ZoneKind::COUNT];
        managed[ZoneKind::Dma as usize] = 0;
        let reserve = lowmem_reserve(managed);
        let none = [0; ZoneKind::COUNT];
        assert_eq!([reserve[ZoneKind::Dma as usize], reserve[ZoneKind::COUNT - 1]], [none; 2]);
        assert!(reserve[ZoneKind::Dma32 as usize] != none);
    }

    #[test]
    fn high_priority_request_may_use_pages_below_the_watermark() {
        let marks = Watermarks { min: 800, low: 1000, high: 1200 };
        let floor = |mark, gfp| marks.floor(mark, gfp, 7);
        assert_eq!(floor(Mark::Low, Gfp::ATOMIC), Some(1007));
        assert_eq!(floor(Mark::Min, Gfp::KERNEL), Some(807));
        assert_eq!(floor(Mark::Min, Gfp::HIGH), Some(407));
        assert_eq!(floor(Mark::Min, Gfp::ATOMIC), Some(307));
        assert_eq!(floor(Mark::Min, Gfp::MEMALLOC), None);
    }

    #[test]
    fn last_page_above_the_watermark_can_be_allocated() {
        let order = |n| Order::new(n).unwrap();
        assert!(allows(11, order(0), Some(10)) && !allows(10, order(0), Some(10)));
        assert!(allows(18, order(3), Some(10)) && !allows(17, order(3), Some(10)));
        assert!(allows(8, order(3), None) && !allows(7, order(3), None));
    }
}
