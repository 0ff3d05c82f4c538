//! The kernel's direct map of all memory, which converts an object's address to a page frame number.
//!
//! A page event has a page frame number, but an object event has an address. The kernel maps all memory in
//! one piece, the *direct map*. At each boot, the kernel chooses the start of the direct map (KASLR), at a
//! multiple of 1 GiB, or of 512 MiB with 64 KiB pages. In this module, the start of the direct map is the address that
//! page frame 0 has or would have. On arm64, the lowest page frames are not memory, so the start is below the first
//! mapped address. No event contains the start of the direct map, so a vote among events determines it. The kernel
//! allocates a new slab's pages directly before the slab's first object, on the same CPU. A page allocation and the
//! next object allocation on the same CPU therefore cast a vote together. The page allocation and the object allocation
//! vote for the aligned start that puts the object on the allocated pages, if such a start exists. Two unrelated events
//! can also vote, by chance; the probability for each page of the block is 1 in 262,144 with 4 KiB pages, and 1 in
//! 8,192 with 64 KiB pages.
//!
//! Votes are counted separately for each page size, because only the right page size makes the votes agree on
//! one start.

use rustc_hash::FxHashMap;

use super::event::{Pfn, Ptr};
use super::page_size::PageSize;

/// Returns the alignment of the direct map's start, which equals the size that one entry of an upper-level page table
/// maps.
fn align(size: PageSize) -> u64 {
    match size {
        PageSize::Kib4 | PageSize::Kib16 => 1 << 30,
        PageSize::Kib64 => 1 << 29,
    }
}

/// The largest length of the direct map, 64 TiB (x86-64, four page-table levels).
const LENGTH: u64 = 64 << 40;

/// The largest order of a slab in a kernel without boot parameters that change it.
const MAX_SLAB_ORDER: u8 = 3;

/// The smallest ratio at which a start with one vote is accepted: this vote, divided by the number of votes that chance
/// gives to all starts.
const SINGLE_VOTE_FACTOR: u64 = 1000;

/// The smallest ratio at which a start with several votes is accepted; smaller than for one vote, because chance rarely
/// gives one start several votes.
const SEVERAL_VOTES_FACTOR: u64 = 100;

/// The result of the search for the direct map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "base")]
pub enum DirectMap {
    /// The direct map is known: page frame 0 is at this address.
    At(u64),
    /// Addresses are real, but the vote found no start of the direct map. Addresses show which objects share a page,
    /// but cannot be matched with the pages of page events.
    Unknown,
    /// Pointers are hashed, so addresses do not show which objects share a page.
    Hashed,
}

/// The conversion between addresses and page frame numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    pub(super) direct_map: DirectMap,
    pub(super) page_size: PageSize,
}

impl Mapping {
    /// Returns the page frame number of an object's page, or of its first page if it has several. If the start of the
    /// direct map is unknown, the page frame number is computed from the address alone. A number computed from an
    /// address is larger than any page frame number, because kernel addresses are large.
    pub(super) fn pfn(self, ptr: Ptr) -> Option<Pfn> {
        let shift = self.page_size.shift();
        match self.direct_map {
            DirectMap::At(base) => {
                let offset = ptr.0.checked_sub(base).filter(|offset| *offset < LENGTH)?;
                Some(Pfn(offset >> shift))
            }
            DirectMap::Unknown => (!ptr.is_hashed()).then_some(Pfn(ptr.0 >> shift)),
            DirectMap::Hashed => None,
        }
    }

    /// Returns the object's offset from the start of its page, in bytes.
    pub(super) fn offset(self, ptr: Ptr) -> u16 {
        (ptr.0 % self.page_size.bytes()) as u16
    }

    /// Returns the address at `offset` bytes from the start of a page that [`pfn`](Self::pfn) has returned.
    pub(super) fn object(self, pfn: Pfn, offset: u16) -> Ptr {
        let base = match self.direct_map {
            DirectMap::At(base) => base,
            DirectMap::Unknown | DirectMap::Hashed => 0,
        };
        Ptr(base + (pfn.0 << self.page_size.shift()) + u64::from(offset))
    }
}

/// The vote that finds the [`DirectMap`] and the page size of a trace.
#[derive(Debug, Default)]
pub(super) struct DirectMapVote {
    /// For each CPU, the pages that it allocated last; the list is cleared when the CPU allocates an object.
    last: Vec<Option<(Pfn, u8)>>,
    /// For each page size, the votes for each start.
    votes: [FxHashMap<u64, u64>; PageSize::ALL.len()],
    /// The number of pages on which an unrelated object could be by chance.
    pages: u64,
}

impl DirectMapVote {
    /// Records that a CPU allocated a block of pages. The kernel never uses movable (user) pages for slabs.
    pub(super) fn pages(&mut self, cpu: u16, pfn: Pfn, order: u8, movable: bool) {
        let cpu = usize::from(cpu);
        if cpu >= self.last.len() {
            self.last.resize(cpu + 1, None);
        }
        self.last[cpu] = (order <= MAX_SLAB_ORDER && !movable).then_some((pfn, order));
    }

    /// Records that a CPU allocated an object.
    pub(super) fn object(&mut self, cpu: u16, ptr: Ptr) {
        let Some((pfn, order)) = self.last.get_mut(usize::from(cpu)).and_then(Option::take) else { return };
        if ptr.is_hashed() {
            return;
        }
        self.pages += 1 << order;
        for (size, votes) in PageSize::ALL.into_iter().zip(&mut self.votes) {
            if let Some(offset) = ptr.0.checked_sub(pfn.0 << size.shift())
                && offset % align(size) < size.bytes() << order
            {
                *votes.entry(offset - offset % align(size)).or_default() += 1;
            }
        }
    }

    /// Returns the start and the page size with the most votes; if the page size is known, only its votes count.
    /// Returns `None` if no start has clearly more votes than chance gives.
    pub(super) fn result(&self, known: Option<PageSize>) -> Option<(u64, PageSize)> {
        let sizes = PageSize::ALL.into_iter().zip(&self.votes);
        let elected =
            sizes.filter(|(size, _)| known.is_none_or(|known| known == *size)).filter_map(|(size, votes)| {
                let all: u64 = votes.values().sum();
                let (&base, &most) = votes.iter().max_by_key(|(base, votes)| (**votes, **base))?;
                let places = align(size) >> size.shift();
                let beyond = if most > 1 { SEVERAL_VOTES_FACTOR } else { SINGLE_VOTE_FACTOR };
                (most * 2 > all && most * places >= beyond * self.pages).then_some((most, base, size))
            });
        // With equal votes, the smaller size wins.
        let (_, base, size) = elected.max_by_key(|(votes, _, size)| (*votes, std::cmp::Reverse(*size)))?;
        Some((base, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_9a3d_c000_0000;

    fn at(pfn: u64, offset: u64) -> Ptr {
        Ptr(BASE + (pfn << 12) + offset)
    }

    fn mapping(direct_map: DirectMap) -> Mapping {
        Mapping { direct_map, page_size: PageSize::Kib4 }
    }

    #[test]
    fn direct_map_base_is_found_from_a_slab() {
        let mut vote = DirectMapVote::default();
        vote.pages(3, Pfn(0x4a98), 2, false);
        vote.pages(1, Pfn(0x99), 0, true);
        vote.object(1, at(0x99, 0));
        vote.object(2, at(0x4a98, 0));
        assert_eq!(vote.result(None), None, "user memory, and another CPU");
        vote.object(3, at(0x4a9b, 192));
        assert_eq!(vote.result(None), Some((BASE, PageSize::Kib4)));
        assert_eq!(vote.result(Some(PageSize::Kib64)), None, "pages of 64 KiB were not possible");
        let map = mapping(DirectMap::At(BASE));
        assert_eq!(map.pfn(at(0x4a9b, 192)), Some(Pfn(0x4a9b)));
        assert_eq!(map.object(Pfn(0x4a9b), 192), at(0x4a9b, 192));
        assert_eq!(map.pfn(Ptr(0xffff_ffff_825d_d468)), None, "the kernel's own image");
        assert_eq!(map.pfn(Ptr(0x9997_02f4)), None, "a hashed pointer");
    }

    /// On arm64, virtual addresses have 39, 48 or 52 bits, and memory starts at 1 GiB or elsewhere.
    #[test]
    fn arm64_direct_map_base_is_found() {
        for (first, memory) in [
            (0xffff_0000_0000_0000_u64, 0x4000_0000),
            (0xffff_0000_0000_0000, 0x80_2000_0000),
            (0xffff_ff80_0000_0000, 0x8000_0000),
            (0xfff0_0000_0000_0000, 0x4000_0000),
        ] {
            for size in PageSize::ALL {
                // A start that is not a multiple of 1 GiB is possible only with large pages.
                let base = first - (memory - memory % align(size));
                let mut vote = DirectMapVote::default();
                for n in 0..40 {
                    let pfn = (0x4000_0000 >> size.shift()) + n * 37;
                    let order = (n % 4) as u8;
                    vote.pages(0, Pfn(pfn), order, false);
                    let within = n.wrapping_mul(0x9e37_79b9) % (size.bytes() << order);
                    vote.object(0, Ptr(base + (pfn << size.shift()) + within));
                }
                assert_eq!(vote.result(None), Some((base, size)), "{first:#x}, memory at {memory:#x}");
                let map = Mapping { direct_map: DirectMap::At(base), page_size: size };
                let ptr = map.object(Pfn(0x12_3456), 4095);
                assert_eq!((map.pfn(ptr), map.offset(ptr)), (Some(Pfn(0x12_3456)), 4095));
            }
        }
    }

    #[test]
    fn unrelated_addresses_give_no_direct_map_base() {
        let mut vote = DirectMapVote::default();
        // The trace has a thousand unrelated pairs, and one pair that seems related.
        for i in 0..1000 {
            vote.pages(0, Pfn(i * 977), 0, false);
            vote.object(0, at(i * 977 + 12, 0));
        }
        vote.pages(0, Pfn(7), 0, false);
        vote.object(0, at(7, 0));
        assert_eq!(vote.result(None), None);
        for i in 0..3 {
            vote.pages(0, Pfn(i), 0, false);
            vote.object(0, at(i, 0));
        }
        assert_eq!(vote.result(None), Some((BASE, PageSize::Kib4)));
    }

    #[test]
    fn unknown_pages_get_distinct_impossible_frame_numbers() {
        let map = mapping(DirectMap::Unknown);
        let page = map.pfn(at(5, 100)).unwrap();
        assert_eq!(map.pfn(at(5, 4000)), Some(page));
        assert_ne!(map.pfn(at(6, 0)), Some(page));
        assert!(page.0 > 1 << 40, "physical addresses have at most 52 bits");
        assert_eq!(map.object(page, 100), at(5, 100));
        assert_eq!((map.pfn(Ptr(0x9997_02f4)), mapping(DirectMap::Hashed).pfn(at(5, 0))), (None, None));
    }
}
