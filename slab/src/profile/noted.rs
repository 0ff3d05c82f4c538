//! Records of a profile: sites, and live samples.

use super::own::{MAX_LIVE_SAMPLES, SampleMemory};
use super::{Amount, CallStack, FIXED_POINT_PARTS_PER_OBJECT, MAX_CACHE_NAME_BYTES, MAX_PROFILE_SITES};
use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

/// A site of a profile: a cache together with a call stack that allocated from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) cache: [u8; MAX_CACHE_NAME_BYTES],
    pub(super) len: u8,
    pub(super) stack: u32,
    pub(super) allocated: SampleSum,
    pub(super) live: SampleSum,
    /// Index plus one of the next site on the list.
    pub(super) next: u32,
}

/// An [`Amount`] in fractions of objects. Because the fractions are integers, a sum is exactly zero after all added
/// amounts have been subtracted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampleSum {
    pub(super) samples: u64,
    pub(super) parts: u64,
    pub(super) bytes: u64,
}

impl SampleSum {
    /// Estimates an amount from one sample of `bytes` bytes.
    pub(super) fn of(bytes: u64, rate: u64) -> Self {
        let share = -super::expm1(-(bytes as f64) / rate as f64);
        Self {
            samples: 1,
            parts: (FIXED_POINT_PARTS_PER_OBJECT / share).round() as u64,
            bytes: (bytes as f64 / share).round() as u64,
        }
    }
    pub(super) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.parts += other.parts;
        self.bytes += other.bytes;
    }
    pub(super) fn take(&mut self, other: Self) {
        self.samples -= other.samples;
        self.parts -= other.parts;
        self.bytes -= other.bytes;
    }
    pub(super) fn to_amount(self) -> Amount {
        Amount {
            samples: self.samples,
            objects: (self.parts as f64 / FIXED_POINT_PARTS_PER_OBJECT).round() as u64,
            bytes: self.bytes,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LiveObjects {
    /// Bitwise inverted address of the sample, so that a search for leaks finds no pointer to it; 0 if unused.
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) site: u32,
    /// Index plus one of the next sample on the same list: a hash list, or the free list.
    pub(super) next: u32,
}

/// Records of a profile. Records allocate memory only at their creation, because a malloc uses them.
#[derive(Debug)]
pub(super) struct Records {
    /// Number of the profile, counted from 1.
    pub(super) run: u32,
    pub(super) rate: u64,
    pub(super) lost: u64,
    pub(super) sites: Vec<Site>,
    pub(super) site_lists: Vec<u32>,
    pub(super) live: Vec<LiveObjects>,
    pub(super) live_lists: Vec<u32>,
    pub(super) free: u32,
    pub(super) own: Option<SampleMemory>,
}

impl Records {
    /// Makes empty records, for the time before the first profile.
    pub(super) const fn empty() -> Self {
        Self {
            run: 0,
            rate: 0,
            lost: 0,
            sites: vec![],
            site_lists: vec![],
            live: vec![],
            live_lists: vec![],
            free: 0,
            own: None,
        }
    }
    /// Makes records with room for all sites and samples. The system commits only the list heads, because the remaining
    /// memory is not touched.
    pub(super) fn with_room(rate: u64) -> Option<Self> {
        let mut records = Self { rate, ..Self::empty() };
        records.sites.try_reserve_exact(MAX_PROFILE_SITES).ok()?;
        records.live.try_reserve_exact(MAX_LIVE_SAMPLES).ok()?;
        for (lists, len) in
            [(&mut records.site_lists, MAX_PROFILE_SITES), (&mut records.live_lists, MAX_LIVE_SAMPLES)]
        {
            lists.try_reserve_exact(len).ok()?;
            lists.resize(len, 0);
        }
        Some(records)
    }

    /// Returns the index of a site, or `None` if a new site has no room.
    pub(super) fn site(&mut self, name: &str, stack: CallStack) -> Option<u32> {
        let stack = stack.number();
        let len = name.len().min(MAX_CACHE_NAME_BYTES);
        let mut cache = [0; MAX_CACHE_NAME_BYTES];
        cache[..len].copy_from_slice(&name.as_bytes()[..len]);
        let mut hasher = DefaultHasher::new();
        (&cache, stack).hash(&mut hasher);
        let list = hasher.finish() as usize % MAX_PROFILE_SITES;
        let first = *self.site_lists.get(list)?;
        let mut at = first;
        while at > 0 {
            let site = &self.sites[at as usize - 1];
            if site.stack == stack && site.cache == cache {
                return Some(at - 1);
            }
            at = site.next;
        }
        if self.sites.len() == MAX_PROFILE_SITES {
            return None;
        }
        let (allocated, live) = (SampleSum::default(), SampleSum::default());
        self.sites.push(Site { cache, len: len as u8, stack, allocated, live, next: first });
        self.site_lists[list] = self.sites.len() as u32;
        Some(self.sites.len() as u32 - 1)
    }

    pub(super) fn address_hash_bucket(address: usize) -> usize {
        ((address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % MAX_LIVE_SAMPLES
    }
    pub(super) fn note(&mut self, address: usize, bytes: u64, name: &str, stack: CallStack) -> Option<()> {
        let site = self.site(name, stack)?;
        let place = match self.free {
            0 if self.live.len() == MAX_LIVE_SAMPLES => return None,
            0 => {
                self.live.push(LiveObjects { address: !address, bytes, site, next: 0 });
                self.live.len() as u32
            }
            place => {
                self.free = self.live[place as usize - 1].next;
                place
            }
        };
        let list = Self::address_hash_bucket(address);
        self.live[place as usize - 1] =
            LiveObjects { address: !address, bytes, site, next: self.live_lists[list] };
        self.live_lists[list] = place;
        let sum = SampleSum::of(bytes, self.rate);
        let site = &mut self.sites[site as usize];
        site.allocated.add(sum);
        site.live.add(sum);
        Some(())
    }
    /// Removes the sample at `address`; returns `false` if no sample is there.
    pub(super) fn forget(&mut self, address: usize) -> bool {
        let list = Self::address_hash_bucket(address);
        let (mut before, mut place) = (0, self.live_lists.get(list).copied().unwrap_or(0));
        while place > 0 {
            let live = self.live[place as usize - 1];
            if live.address == !address {
                match before {
                    0 => self.live_lists[list] = live.next,
                    _ => self.live[before as usize - 1].next = live.next,
                }
                self.live[place as usize - 1] = LiveObjects { address: 0, next: self.free, ..live };
                self.free = place;
                self.sites[live.site as usize].live.take(SampleSum::of(live.bytes, self.rate));
                return true;
            }
            (before, place) = (place, live.next);
        }
        false
    }
}
