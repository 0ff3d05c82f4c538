//! Where the kernel maps all memory: what turns an object's address into a page frame number.
//!
//! Page events tell page frame numbers, object events addresses. The kernel keeps all memory mapped in one piece, the
//! *direct map*, whose beginning it chooses anew at each boot (KASLR), on a boundary of 1 GiB. No event tells it. It
//! is found by a vote: a new slab's pages are allocated just before its first object is, on the same CPU. Each
//! allocation of pages and the object allocation that follows it there vote for the one boundary that puts the object
//! on those pages, if there is one. A pair that has nothing to do with each other votes once in 262,144 times for each page of
//! the block.

use rustc_hash::FxHashMap;

use super::event::{Pfn, Ptr};

/// The direct map begins on a multiple of this: what one entry of an upper page table maps.
const ALIGN: u64 = 1 << 30;

/// The direct map is at most 64 TiB long (x86-64, four page-table levels).
const LENGTH: u64 = 64 << 40;

/// The largest slab, as an order, unless the kernel is told otherwise.
const MAX_SLAB_ORDER: u8 = 3;

/// A base needs so many times the votes that chance would give it.
const BEYOND_CHANCE: u64 = 1000;

/// What is known of the place of the direct map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "base")]
pub enum DirectMap {
    /// Page frame 0 is mapped at this address.
    At(u64),
    /// Addresses are real, but no vote tells where it begins. Objects with the same page in their address share a
    /// page; which page events are about it is not known.
    Unknown,
    /// Pointers are hashed: two objects of a page have nothing in common.
    Hashed,
}

impl DirectMap {
    /// The page that the object lies on (its first, if several). Where the beginning of the direct map is not known, it is
    /// numbered by its address: for a kernel's addresses such a number is larger than any page frame's.
    pub(super) fn pfn(self, ptr: Ptr) -> Option<Pfn> {
        match self {
            Self::At(base) => {
                let offset = ptr.0.checked_sub(base).filter(|offset| *offset < LENGTH)?;
                Some(Pfn(offset >> 12))
            }
            Self::Unknown => (!ptr.is_hashed()).then_some(Pfn(ptr.0 >> 12)),
            Self::Hashed => None,
        }
    }

    /// The address of what lies on a page that [`pfn`](Self::pfn) gave, `offset` bytes from its start.
    pub(super) fn object(self, pfn: Pfn, offset: u16) -> Ptr {
        let base = match self {
            Self::At(base) => base,
            Self::Unknown | Self::Hashed => 0,
        };
        Ptr(base + (pfn.0 << 12) + u64::from(offset))
    }
}

/// Finds the [`DirectMap`] of a trace.
#[derive(Debug, Default)]
pub(super) struct Vote {
    /// The pages that each CPU allocated last, until it allocates an object.
    last: Vec<Option<(Pfn, u8)>>,
    votes: FxHashMap<u64, u64>,
    /// Pages on which an object could have lain by chance.
    pages: u64,
}

impl Vote {
    /// A CPU allocated pages. User memory (`movable`) is never a slab.
    pub(super) fn pages(&mut self, cpu: u16, pfn: Pfn, order: u8, movable: bool) {
        let cpu = usize::from(cpu);
        if cpu >= self.last.len() {
            self.last.resize(cpu + 1, None);
        }
        self.last[cpu] = (order <= MAX_SLAB_ORDER && !movable).then_some((pfn, order));
    }

    /// A CPU allocated an object.
    pub(super) fn object(&mut self, cpu: u16, ptr: Ptr) {
        let Some((pfn, order)) = self.last.get_mut(usize::from(cpu)).and_then(Option::take) else { return };
        if ptr.is_hashed() {
            return;
        }
        self.pages += 1 << order;
        if let Some(offset) = ptr.0.checked_sub(pfn.0 << 12)
            && offset % ALIGN < 4096 << order
        {
            *self.votes.entry(offset - offset % ALIGN).or_default() += 1;
        }
    }

    /// The result; `hashed` if there were hashed pointers.
    pub(super) fn result(&self, hashed: bool) -> DirectMap {
        let all: u64 = self.votes.values().sum();
        let most = self.votes.iter().max_by_key(|(base, votes)| (**votes, **base));
        match most {
            Some((&base, &votes))
                if votes * 2 > all && votes * (ALIGN >> 12) >= BEYOND_CHANCE * self.pages =>
            {
                DirectMap::At(base)
            }
            _ if hashed => DirectMap::Hashed,
            _ => DirectMap::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_9a3d_c000_0000;

    fn at(pfn: u64, offset: u64) -> Ptr {
        Ptr(BASE + (pfn << 12) + offset)
    }

    #[test]
    fn a_slab_and_its_first_object_tell_the_base() {
        let mut vote = Vote::default();
        vote.pages(3, Pfn(0x4a98), 2, false);
        vote.pages(1, Pfn(0x99), 0, true);
        vote.object(1, at(0x99, 0));
        vote.object(2, at(0x4a98, 0));
        assert_eq!(vote.result(false), DirectMap::Unknown, "user memory, and another CPU");
        vote.object(3, at(0x4a9b, 192));
        assert_eq!(vote.result(false), DirectMap::At(BASE));
        let map = vote.result(true);
        assert_eq!(map.pfn(at(0x4a9b, 192)), Some(Pfn(0x4a9b)));
        assert_eq!(map.object(Pfn(0x4a9b), 192), at(0x4a9b, 192));
        assert_eq!(map.pfn(Ptr(0xffff_ffff_825d_d468)), None, "the kernel's own image");
        assert_eq!(map.pfn(Ptr(0x9997_02f4)), None, "a hashed pointer");
    }

    #[test]
    fn what_chance_gives_is_no_base() {
        let mut vote = Vote::default();
        // A thousand pairs that have nothing to do with each other, and one that seems to.
        for i in 0..1000 {
            vote.pages(0, Pfn(i * 977), 0, false);
            vote.object(0, at(i * 977 + 12, 0));
        }
        vote.pages(0, Pfn(7), 0, false);
        vote.object(0, at(7, 0));
        assert_eq!(vote.result(false), DirectMap::Unknown);
        for i in 0..3 {
            vote.pages(0, Pfn(i), 0, false);
            vote.object(0, at(i, 0));
        }
        assert_eq!(vote.result(false), DirectMap::At(BASE));
    }

    #[test]
    fn pages_of_unknown_frames_are_told_apart_and_are_nobodys_frame() {
        let map = DirectMap::Unknown;
        let page = map.pfn(at(5, 100)).unwrap();
        assert_eq!(map.pfn(at(5, 4000)), Some(page));
        assert_ne!(map.pfn(at(6, 0)), Some(page));
        assert!(page.0 > 1 << 40, "physical addresses have at most 52 bits");
        assert_eq!(map.object(page, 100), at(5, 100));
        assert_eq!((map.pfn(Ptr(0x9997_02f4)), DirectMap::Hashed.pfn(at(5, 0))), (None, None));
    }
}
