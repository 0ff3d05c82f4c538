//! Describes the slabs of a cache one by one, so that a web page can draw them.

use crate::levels::{CacheLevels, Level};
use serde::Serialize;
use std::collections::BTreeMap;
use uslab::{CacheView, SlabList};
use uslab_magazine::MagazineView;

/// The largest number of slabs that are described one by one; counts always include all slabs of the cache.
pub(crate) const MAX_SHOWN_SLABS: usize = 8192;

/// A cache, described slab by slab.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ShownCache {
    /// The cache's number in the stream.
    pub cache: u32,
    /// For each CPU, its levels in the order in which they serve requests.
    pub cpus: Vec<Vec<Level>>,
    /// The levels that the CPUs of each node share.
    pub shared: Vec<Vec<Level>>,
    /// The slabs in the order of their lists: empty slabs, full slabs, then partial slabs by fullness.
    pub slabs: Vec<ShownSlab>,
}

/// A slab in the form that a web page draws.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ShownSlab {
    /// The slab's first page.
    pub page: u32,
    /// The name of the list that contains the slab. In the shipping allocator, the name is `full`, `partial` or
    /// `empty`.
    pub list: &'static str,
    /// One character for each object. The character is `u` for an object in use, `.` for a free object in the slab, and
    /// `d` for an object in a depot. Each letter `a` to `z` or `A` to `Z`, except `d` and `u`, means a magazine of one
    /// of CPUs 0 to 49, and `+` means a magazine of any later CPU. The letters `d` and `u` have other meanings.
    pub objects: String,
}

/// Returns the letter for an object that is in a magazine of the CPU `cpu`.
pub(crate) fn letter(cpu: usize) -> u8 {
    const LETTERS: &[u8] = b"abcefghijklmnopqrstvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    LETTERS.get(cpu).copied().unwrap_or(b'+')
}

impl ShownCache {
    /// Describes the slabs of a cache of the shipping allocator; `capacity` is the number of objects in a magazine.
    pub(crate) fn shipping(cache: u32, view: &CacheView, capacity: u32) -> Self {
        let mut slabs: Vec<_> = view.slabs.iter().take(MAX_SHOWN_SLABS).collect();
        // Full slabs are the most frequent and the least interesting, so other slabs come first if there are
        // too many slabs.
        if view.slabs.len() > MAX_SHOWN_SLABS {
            slabs =
                view.slabs.iter().filter(|slab| slab.list != SlabList::Full).take(MAX_SHOWN_SLABS).collect();
        }
        let mut bits: Vec<Vec<u8>> = Vec::with_capacity(slabs.len());
        for slab in &slabs {
            let object = |i: usize| if slab.out[i / 64] >> (i % 64) & 1 == 1 { b'u' } else { b'.' };
            bits.push((0..usize::from(slab.objects)).map(object).collect());
        }
        let position: BTreeMap<u32, usize> =
            slabs.iter().enumerate().map(|(i, slab)| (slab.page.get(), i)).collect();
        let mut mark_objects = |magazine: &MagazineView<uslab::ObjectPlace>, letter: u8| {
            for place in &magazine.rounds {
                let slab = position.get(&place.slab.get()).and_then(|i| bits.get_mut(*i));
                if let Some(object) = slab.and_then(|slab| slab.get_mut(usize::from(place.index))) {
                    *object = letter;
                }
            }
        };
        let mut levels = CacheLevels::default();
        if let Some(layer) = &view.magazines {
            for (number, cpu) in layer.cpus.iter().enumerate() {
                cpu.magazines.iter().for_each(|magazine| mark_objects(magazine, letter(number)));
            }
            for depot in &layer.depots {
                depot.full.iter().for_each(|magazine| mark_objects(magazine, b'd'));
            }
            levels = CacheLevels::shipping(layer, capacity);
        }
        let slabs = slabs.into_iter().zip(bits).map(|(slab, bits)| ShownSlab {
            page: slab.page.get(),
            list: match slab.list {
                SlabList::Full => "full",
                SlabList::Partial => "partial",
                SlabList::Empty => "empty",
            },
            objects: bits.into_iter().map(char::from).collect(),
        });
        Self { cache, cpus: levels.cpus, shared: levels.shared, slabs: slabs.collect() }
    }
}
