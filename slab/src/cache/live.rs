//! Snapshot of a cache's objects in use: a copy of the slabs' bitmaps.
//!
//! An iteration visits the snapshot slab by slab, and each slab in address order. The iteration does not touch free
//! objects. Each word of a bitmap covers 64 objects, and an iteration returns neighbouring objects as one run. An
//! iteration holds no lock, so its caller may call any function. An iteration may be repeated as long as the cache does
//! not change.

use core::cmp::Ordering;
use core::iter::FusedIterator;
use core::ops::Range;
use core::ptr::NonNull;
use uslab_pool::bits::lowest_run;

/// Snapshot of the objects of a [`KmemCache`](crate::KmemCache) that were in use when [`live`](crate::KmemCache::live)
/// was called.
///
/// A snapshot contains only addresses. A caller that dereferences an address must know that its object is still
/// allocated.
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let cache = KmemCache::builder("walked", 64).build()?;
/// let blocks = cache.alloc_blocks(Gfp::KERNEL, 100)?;
/// drop(cache.alloc_block(Gfp::KERNEL)?);
/// let live = cache.live();
/// assert_eq!(live.len(), 100);
/// assert!(live.iter().all(|object| blocks.iter().any(|block| block.address() == object)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Live {
    /// Number of bytes before a slab's first object.
    lead: usize,
    stride: usize,
    /// Address of each slab's first object, and the index of the slab's first word in `words`.
    slabs: Vec<(NonNull<u8>, usize)>,
    /// Bitmap of the objects in use.
    words: Vec<u64>,
}

// SAFETY: a snapshot has only addresses, and does not dereference them.
unsafe impl Send for Live {}
// SAFETY: a snapshot has only addresses, and does not dereference them.
unsafe impl Sync for Live {}

impl Live {
    pub(crate) fn new(lead: usize, stride: usize) -> Self {
        Self { lead, stride, slabs: Vec::new(), words: Vec::new() }
    }
    pub(crate) fn clear(&mut self) {
        self.slabs.clear();
        self.words.clear();
    }
    /// Returns `true` if `slabs` more slabs with `objects` objects fit without allocating.
    pub(crate) fn has_room(&self, slabs: u64, objects: u64) -> bool {
        let (slabs, words) = (slabs as usize, (slabs + objects / 64) as usize);
        self.slabs.capacity() - self.slabs.len() >= slabs && self.words.capacity() - self.words.len() >= words
    }
    /// Reserves room for `slabs` more slabs with `objects` objects.
    pub(crate) fn make_room(&mut self, slabs: u64, objects: u64) {
        self.slabs.reserve(slabs as usize);
        self.words.reserve((slabs + objects / 64) as usize);
    }
    /// Appends a slab whose objects start at `base`. Returns the bitmap words, to which the caller appends the slab's
    /// bitmap.
    pub(crate) fn slab(&mut self, base: NonNull<u8>) -> &mut Vec<u64> {
        debug_assert!(self.slabs.len() < self.slabs.capacity(), "memory is allocated under a node's lock");
        self.slabs.push((address_above(base, self.lead), self.words.len()));
        &mut self.words
    }

    /// Number of objects in the snapshot. Cost: a pass over the bitmap's words.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
    /// Returns `true` if the snapshot has no object.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
    /// Iterates the addresses of the objects, slab by slab.
    pub fn iter(&self) -> impl Iterator<Item = NonNull<u8>> + Clone {
        self.runs()
            .flat_map(move |(first, count)| (0..count).map(move |i| address_above(first, i * self.stride)))
    }
    /// Iterates over runs of neighbouring objects. A run is the address of its first object, and the number of objects,
    /// which are a stride apart. A run never extends past one bitmap word, which covers 64 objects.
    /// [`for_each`](Iterator::for_each) is faster than a `for` loop, because it keeps no iterator state.
    pub fn runs(&self) -> Runs<'_> {
        Runs { live: self, slab: 0, word: 0, bits: self.words.first().copied().unwrap_or(0) }
    }
    fn words_of(&self, i: usize) -> Range<usize> {
        self.slabs[i].1..self.slabs.get(i + 1).map_or(self.words.len(), |next| next.1)
    }
}

/// A run of adjacent objects: address of the first object, and number of objects.
pub type Run = (NonNull<u8>, usize);

/// Iterator over the runs of a [`Live`].
///
/// ```
/// use uslab::{Gfp, KmemCache};
///
/// let inodes = KmemCache::builder("inode", 600).build()?;
/// let blocks = inodes.alloc_blocks(Gfp::KERNEL, 10)?;
/// let live = inodes.live();
/// assert_eq!(live.runs().map(|(_first, count)| count).sum::<usize>(), blocks.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Runs<'l> {
    live: &'l Live,
    slab: usize,
    /// Index of the current bitmap word; `bits` are the word's remaining bits.
    word: usize,
    bits: u64,
}

/// Adds `bytes` to an address, without requiring that the result is inside the allocation.
#[inline(always)]
fn address_above(first: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    first.map_addr(|address| address.saturating_add(bytes))
}

impl Runs<'_> {
    #[inline(always)]
    fn object(&self, base: NonNull<u8>, index: usize) -> NonNull<u8> {
        address_above(base, index * self.live.stride)
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let live = self.live;
        while self.bits == 0 {
            self.word += 1;
            self.bits = *live.words.get(self.word)?;
        }
        while !live.words_of(self.slab).contains(&self.word) {
            self.slab += 1;
        }
        let (base, first) = live.slabs[self.slab];
        let (at, count, rest) = lowest_run(self.bits);
        self.bits = rest;
        Some((self.object(base, (self.word - first) * 64 + at), count))
    }

    #[inline]
    fn fold<B, F: FnMut(B, Run) -> B>(self, init: B, mut f: F) -> B {
        let mut sum = init;
        for slab in self.slab..self.live.slabs.len() {
            let (base, first) = self.live.slabs[slab];
            for word in self.live.words_of(slab) {
                let mut bits = match word.cmp(&self.word) {
                    Ordering::Less => 0,
                    Ordering::Equal => self.bits,
                    Ordering::Greater => self.live.words[word],
                };
                while bits != 0 {
                    let (at, count, rest) = lowest_run(bits);
                    bits = rest;
                    sum = f(sum, (self.object(base, (word - first) * 64 + at), count));
                }
            }
        }
        sum
    }
}

impl FusedIterator for Runs<'_> {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{Config, Gfp, KmemCache, Magazines, Subsystem};
    use std::collections::BTreeSet;

    /// The test covers a cache with 16 objects per slab, a slab whose objects fill whole bitmap words, and a slab whose
    /// bitmap is in the side table.
    #[test]
    fn iteration_over_a_snapshot_visits_only_objects_in_use() {
        for (size, objects) in [(256, 1000), (64, 1000), (8, 3000)] {
            let subsystem = Subsystem::new(Config::default()).unwrap();
            let cache = KmemCache::builder("live", size).build_in(&subsystem).unwrap();
            assert!(cache.live().is_empty() && cache.live().iter().next().is_none());
            let single_block = cache.alloc_block(Gfp::KERNEL).unwrap();
            assert!(cache.live().iter().eq([single_block.address()]));
            drop(single_block);
            let mut blocks = cache.alloc_blocks(Gfp::KERNEL, objects).unwrap();
            for keep in [objects, objects / 2, 100, 3, 0] {
                let mut n = 0;
                blocks.retain(|_| {
                    n += 1;
                    n % (objects / keep.max(1)).max(1) == 0 && keep > 0
                });
                let expected: BTreeSet<_> = blocks.iter().map(|block| block.address()).collect();
                let live = cache.live();
                let visited: Vec<_> = live.iter().collect();
                assert_eq!((live.len(), live.is_empty()), (expected.len(), expected.is_empty()));
                assert_eq!(visited.len(), expected.len(), "{size} bytes: each object is visited once");
                assert_eq!(visited.iter().copied().collect::<BTreeSet<_>>(), expected);
                // `fold` continues where `next` stopped.
                let runs: Vec<_> = live.runs().collect();
                assert!(runs.iter().all(|(_, count)| (1..=64).contains(count)));
                for taken in [0, 1, 2, 5, runs.len()] {
                    let mut walk = live.runs();
                    let mut visited_runs: Vec<_> = walk.by_ref().take(taken).collect();
                    walk.for_each(|run| visited_runs.push(run));
                    assert_eq!(visited_runs, runs, "{size} bytes, {taken} by one");
                }
            }
        }
    }

    #[test]
    fn walk_of_live_objects_holds_no_lock() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("live", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let blocks = cache.alloc_blocks(Gfp::KERNEL, 10).unwrap();
        let live = cache.live();
        let new_blocks: Vec<_> = live.iter().map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
        assert_eq!((live.len(), new_blocks.len(), cache.live().len()), (10, 10, 20));
        drop(blocks);
        assert_eq!((live.len(), cache.live().len()), (10, 10), "the cache is unchanged");
    }
}
