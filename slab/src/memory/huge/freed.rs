//! Freed mappings above the largest block that are kept for reuse.

use core::alloc::Layout;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::Region;

/// Maximum number of freed mappings that are kept. Each operation inspects all freed mappings, which costs less than a
/// page fault.
const MAX_KEPT_MAPPINGS: usize = 64;

/// Divisor of a request's size: a mapping may exceed the request by at most the fraction `1 / MAX_WASTE_DIVISOR`.
const MAX_WASTE_DIVISOR: usize = 8;

/// Number of reaping intervals after which an unused mapping is unmapped.
const IDLE_INTERVALS: u8 = 2;

/// A freed mapping, or the remaining part of a freed mapping.
#[derive(Debug)]
struct FreedMapping {
    region: Region,
    /// Sequence number of the latest free that added a part to this mapping.
    freed_at: u64,
    /// Number of reaping intervals that ended since the latest free.
    idle: u8,
}

/// List of freed mappings, which keep the contents from their last use.
///
/// # Invariants
/// No two mappings are adjacent, unless the system refused to join them. `bytes` is the sum of the mappings' sizes.
#[derive(Debug)]
pub(super) struct Freed {
    /// The freed mappings, in a box to save stack space.
    extents: Box<[Option<FreedMapping>]>,
    bytes: usize,
    frees: u64,
}

impl Freed {
    pub(super) fn new() -> Self {
        Self { extents: (0..MAX_KEPT_MAPPINGS).map(|_| None).collect(), bytes: 0, frees: 0 }
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.extents.iter().flatten().map(|extent| &extent.region)
    }

    /// Takes the smallest mapping that has room for `layout`, and cuts off its surplus.
    pub(super) fn take(&mut self, layout: Layout) -> Option<Region> {
        let bytes = layout.size().max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let has_room = |region: &Region| {
            region.bytes() >= bytes && region.base().addr().get().is_multiple_of(layout.align())
        };
        let slots = self.extents.iter_mut().filter(|slot| slot.as_ref().is_some_and(|e| has_room(&e.region)));
        let slot = slots.min_by_key(|slot| slot.as_ref().map(|extent| extent.region.bytes()))?;
        let FreedMapping { mut region, freed_at, idle } = slot.take()?;
        if region.bytes() - bytes > bytes / MAX_WASTE_DIVISOR {
            *slot =
                region.split_off(bytes).map(|remainder| FreedMapping { region: remainder, freed_at, idle });
        }
        self.bytes -= region.bytes();
        Some(region)
    }

    /// Keeps a freed mapping. If the list is full, returns the mapping that has been unused for the
    /// longest time.
    pub(super) fn put(&mut self, mut region: Region) -> Option<Region> {
        self.bytes += region.bytes();
        for slot in &mut self.extents {
            let Some(FreedMapping { region: mut other, freed_at, idle }) = slot.take() else { continue };
            let join_result = match other.join(region) {
                // The new mapping is joined to the mapping below it.
                Ok(()) => {
                    region = other;
                    continue;
                }
                Err(same) => {
                    region = same;
                    region.join(other)
                }
            };
            *slot = join_result.err().map(|other| FreedMapping { region: other, freed_at, idle });
        }
        let is_full = self.extents.iter().all(Option::is_some);
        let victim = if is_full { self.pop_oldest_mapping() } else { None };
        self.frees += 1;
        let extent = FreedMapping { region, freed_at: self.frees, idle: 0 };
        if let Some(slot) = self.extents.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(extent);
        }
        victim
    }

    /// If more than `max_bytes` bytes are kept, takes the mapping that has been unused for the longest time. Takes only
    /// a part of this mapping if unmapping that part suffices.
    pub(super) fn pop_if_kept_exceeds(&mut self, max_bytes: usize) -> Option<Region> {
        let excess = self.bytes.checked_sub(max_bytes).filter(|excess| *excess > 0)?;
        let slot = self.oldest()?;
        let extent = slot.as_mut()?;
        let part = extent.region.bytes().checked_sub(excess).filter(|kept_bytes| *kept_bytes > 0);
        let part = part.and_then(|kept_bytes| extent.region.split_off(kept_bytes));
        let region = part.or_else(|| slot.take().map(|extent| extent.region))?;
        self.bytes -= region.bytes();
        Some(region)
    }

    pub(super) fn end_interval(&mut self) {
        self.extents.iter_mut().flatten().for_each(|extent| extent.idle = extent.idle.saturating_add(1));
    }

    /// Takes a mapping that was unused for [`IDLE_INTERVALS`] intervals, if there is one.
    pub(super) fn pop_idle_mapping(&mut self) -> Option<Region> {
        let idle = |slot: &&mut Option<FreedMapping>| {
            slot.as_ref().is_some_and(|extent| extent.idle >= IDLE_INTERVALS)
        };
        let region = self.extents.iter_mut().find(idle)?.take()?.region;
        self.bytes -= region.bytes();
        Some(region)
    }

    fn oldest(&mut self) -> Option<&mut Option<FreedMapping>> {
        let slots = self.extents.iter_mut().filter(|slot| slot.is_some());
        slots.min_by_key(|slot| slot.as_ref().map(|extent| extent.freed_at))
    }
    fn pop_oldest_mapping(&mut self) -> Option<Region> {
        let region = self.oldest()?.take()?.region;
        self.bytes -= region.bytes();
        Some(region)
    }
}

#[cfg(all(test, not(any(loom, shuttle, uslab_heap))))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uslab_buddy::{Backend, Faults};

    const MIB: usize = 1 << 20;

    fn mapped(bytes: usize) -> Region {
        Region::committed(bytes, PAGE_SIZE, Backend::Os, &Faults::default()).unwrap()
    }
    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 16).unwrap()
    }
    fn sizes(freed: &Freed) -> Vec<usize> {
        let mut sizes: Vec<_> = freed.iter().map(|region| region.bytes() / MIB).collect();
        sizes.sort_unstable();
        sizes
    }
    fn row<const N: usize>(mib: [usize; N]) -> [Region; N] {
        let mut remaining = Some(mapped(mib.iter().sum::<usize>() * MIB));
        mib.map(|mib| {
            let mut first = remaining.take().unwrap();
            remaining = first.split_off(mib * MIB);
            first
        })
    }

    #[test]
    fn smallest_fitting_freed_mapping_is_reused() {
        let (mut freed, [small, _apart, large, _end]) = (Freed::new(), row([6, 1, 20, 1]));
        let at = [&small, &large].map(Region::base);
        assert!(freed.put(small).is_none() && freed.put(large).is_none());
        assert!(freed.take(layout(21 * MIB)).is_none());
        // The surplus is less than an eighth.
        let mapping = freed.take(layout(11 * MIB / 2)).unwrap();
        assert_eq!((mapping.base(), mapping.bytes(), sizes(&freed)), (at[0], 6 * MIB, vec![20]));
        let part = freed.take(layout(5 * MIB + 1)).unwrap();
        assert_eq!((part.base(), part.bytes()), (at[1], 5 * MIB + PAGE_SIZE));
        assert_eq!(freed.bytes(), 15 * MIB - PAGE_SIZE);
        // The parts were joined to one mapping again.
        freed.put(part);
        assert_eq!(sizes(&freed), [20]);
        let aligned = Layout::from_size_align(5 * MIB, 1 << 40).unwrap();
        assert!(freed.take(aligned).is_none() || at[1].addr().get().is_multiple_of(1 << 40));
    }

    #[test]
    fn freed_mapping_merges_with_both_neighbours() {
        let (mut freed, [a, b, c, d]) = (Freed::new(), row([5, 6, 7, 8]));
        for region in [a, c, d] {
            freed.put(region);
        }
        assert_eq!(sizes(&freed), [5, 15]);
        freed.put(b);
        assert_eq!((sizes(&freed), freed.bytes()), (vec![26], 26 * MIB));
    }

    #[test]
    fn least_recently_used_mapping_is_unmapped_first() {
        let (mut freed, [a, _x, b, _y, c, _z]) = (Freed::new(), row([5, 1, 6, 1, 7, 1]));
        let bases = [&a, &b, &c].map(Region::base);
        [b, a, c].into_iter().for_each(|region| _ = freed.put(region));
        assert!(freed.pop_if_kept_exceeds(18 * MIB).is_none());
        let part = freed.pop_if_kept_exceeds(17 * MIB).unwrap();
        assert_eq!((part.bytes(), sizes(&freed)), (MIB, vec![5, 5, 7]));
        assert!(part.base() > bases[1], "the end of the oldest mapping");
        let mapping = freed.pop_if_kept_exceeds(9 * MIB).unwrap();
        assert_eq!((mapping.base(), freed.bytes()), (bases[1], 12 * MIB));
        assert_eq!(freed.pop_if_kept_exceeds(9 * MIB).map(|region| region.bytes()), Some(3 * MIB));
        assert!(freed.pop_if_kept_exceeds(9 * MIB).is_none());
    }

    #[test]
    fn freed_mapping_is_idle_after_two_unused_intervals() {
        let (mut freed, [a, _x, b, _y, c]) = (Freed::new(), row([5, 1, 6, 1, 7]));
        freed.put(a);
        freed.end_interval();
        freed.put(b);
        assert!(freed.pop_idle_mapping().is_none());
        freed.end_interval();
        freed.put(c);
        assert_eq!(freed.pop_idle_mapping().map(|region| region.bytes()), Some(5 * MIB));
        assert!(freed.pop_idle_mapping().is_none());
        let reused = freed.take(layout(6 * MIB)).unwrap();
        freed.put(reused);
        freed.end_interval();
        assert!(freed.pop_idle_mapping().is_none() && freed.bytes() == 13 * MIB);
        freed.end_interval();
        assert!(
            freed.pop_idle_mapping().is_some() && freed.pop_idle_mapping().is_some() && freed.bytes() == 0
        );
    }

    #[test]
    fn full_list_of_freed_mappings_drops_the_oldest() {
        let mut freed = Freed::new();
        let mut remaining = mapped((2 * MAX_KEPT_MAPPINGS + 2) * 2 * PAGE_SIZE);
        let mut separate_regions = vec![];
        for n in 0..=MAX_KEPT_MAPPINGS {
            let next = remaining.split_off(PAGE_SIZE).unwrap();
            let first = remaining.base();
            let returned = freed.put(remaining);
            assert_eq!(returned.is_some(), n == MAX_KEPT_MAPPINGS, "{n}");
            assert!(returned.is_none_or(|returned| returned.base() != first));
            remaining = next;
            let next = remaining.split_off(PAGE_SIZE).unwrap();
            separate_regions.push(remaining);
            remaining = next;
        }
        assert_eq!(freed.bytes(), MAX_KEPT_MAPPINGS * PAGE_SIZE);
    }

    proptest! {
        /// Compares the kept mappings with a list that names the owner of each byte. No byte may have two owners. The
        /// kept bytes must be exactly the bytes that were put and not taken.
        #[test]
        fn random_freed_mappings_agree_with_a_sorted_list(steps in prop::collection::vec((0..10_u8, 1..64_usize, any::<prop::sample::Index>()), 1..80)) {
            let (mut freed, mut held, mut kept) = (Freed::new(), Vec::<Region>::new(), 0);
            for (step, pages, pick) in steps {
                let bytes = pages * PAGE_SIZE;
                match step {
                    0 | 1 => held.push(mapped(bytes)),
                    2 | 3 if !held.is_empty() => {
                        let region = held.swap_remove(pick.index(held.len()));
                        kept += region.bytes();
                        kept -= freed.put(region).map_or(0, |region| region.bytes());
                    }
                    2..=6 => {
                        let max_bytes = freed.iter().map(Region::bytes).max().unwrap_or(0);
                        let region = freed.take(layout(bytes));
                        prop_assert_eq!(region.is_some(), bytes <= max_bytes);
                        if let Some(region) = region {
                            prop_assert!((bytes..=bytes + bytes / MAX_WASTE_DIVISOR).contains(&region.bytes()));
                            kept -= region.bytes();
                            held.push(region);
                        }
                    }
                    7 => {
                        let max_bytes = pick.index(2 * kept + 1);
                        while let Some(region) = freed.pop_if_kept_exceeds(max_bytes) {
                            kept -= region.bytes();
                        }
                        prop_assert!(freed.bytes() <= max_bytes);
                    }
                    _ => {
                        freed.end_interval();
                        while let Some(region) = freed.pop_idle_mapping() {
                            kept -= region.bytes();
                        }
                    }
                }
                prop_assert_eq!(freed.bytes(), kept);
                prop_assert_eq!(freed.iter().map(Region::bytes).sum::<usize>(), kept);
                let mut pieces: Vec<_> = held.iter().chain(freed.iter()).map(|r| (r.base().addr().get(), r.bytes())).collect();
                pieces.sort_unstable();
                prop_assert!(pieces.is_sorted_by(|lower, upper| lower.0 + lower.1 <= upper.0), "two mappings overlap: {:?}", pieces);
                // Each region must be readable and writable.
                for region in &held {
                    // SAFETY: the whole region is committed, and the test owns it.
                    unsafe { region.base().add(region.bytes() - 1).write(1) };
                }
            }
        }
    }
}
