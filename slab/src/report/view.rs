//! Snapshots of where each object of a cache is: its slab with the slab's bitmap, and the CPU's stack or depot that
//! holds it. Pictures and single-stepping use these snapshots; [`CacheInfo`](crate::CacheInfo) has the totals.

use crate::cache::kmem_cache::KmemCache;
use crate::cache::node::{ObjectIndex, State};
use crate::cache::{Cache, Object};
use core::ptr::NonNull;
use uslab_buddy::Pfn;
use uslab_magazine::{LayerView, Round};

/// Snapshot of the place of each object of a cache.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// // SAFETY: no other thread uses the subsystem.
/// let view = unsafe { inodes.view() };
/// let objects = view.slabs.iter().map(|slab| u64::from(slab.objects)).sum::<u64>();
/// assert_eq!(objects, inodes.info().objects);
/// let place = inodes.place_of(root.address()).ok_or("no object")?;
/// assert!(view.slabs.iter().any(|slab| slab.page == place.slab));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheView {
    /// The cache's slabs, list by list: empty, full, then partial by fullness.
    pub slabs: Vec<SlabView>,
    /// Contents of the cache's stacks and depots; `None` without magazines.
    pub magazines: Option<LayerView<ObjectPlace>>,
}

/// Snapshot of a slab: the list that contains it, and the state of each object.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Magazines, SlabView, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).magazines(Magazines::Off).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// // SAFETY: no other thread uses the subsystem.
/// let view = unsafe { inodes.view() };
/// let slab: &SlabView = &view.slabs[0];
/// assert_eq!(slab.out.iter().map(|word| word.count_ones()).sum::<u32>(), 1); // a bit for the root
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlabView {
    /// First page of the slab.
    pub page: Pfn,
    /// The node's list that contains the slab.
    pub list: SlabList,
    /// Number of objects in the slab.
    pub objects: u16,
    /// Bitmap of the slab, with 64 objects per word, lowest first. A bit is set if a user or a magazine has the object.
    pub out: Vec<u64>,
}

/// Kind of list of a node that contains slabs.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Magazines, SlabList, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).magazines(Magazines::Off).build_in(&subsystem)?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// // SAFETY: no other thread uses the subsystem.
/// let view = unsafe { inodes.view() };
/// assert_eq!(view.slabs[0].list, SlabList::Partial); // one object is out, the others are not
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabList {
    /// Slabs without free objects.
    Full,
    /// Slabs with both free objects and taken objects.
    Partial,
    /// Slabs whose objects are all free.
    Empty,
}

/// Place of an object: the first page of its slab, and its index in the slab.
///
/// ```
/// use uslab::{Gfp, KmemCache, ObjectPlace};
///
/// let inodes = KmemCache::builder("inode", 600).build()?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// let ObjectPlace { index, .. } = inodes.place_of(root.address()).ok_or("no object")?;
/// assert!(usize::from(index) < inodes.geometry().objects());
/// let inside = root.address().map_addr(|address| address.saturating_add(8));
/// assert_eq!(inodes.place_of(inside), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    /// First page of the object's slab.
    pub slab: Pfn,
    /// Index of the object in its slab, counted from 0.
    pub index: u16,
}

impl Cache {
    fn place_of(&self, object: Object) -> Option<ObjectPlace> {
        let ObjectIndex { slab, index } = self.place(object).ok()?;
        Some(ObjectPlace { slab, index: index as u16 })
    }

    /// # Safety
    /// The caller must fulfil the safety conditions of [`KmemCache::view`].
    unsafe fn view(&self) -> CacheView {
        let memory = &self.core().memory;
        let mut listed_slabs = Vec::with_capacity(self.count().slabs() as usize);
        for node in self.nodes() {
            // The vector already has enough capacity, because nothing may be allocated under the node's
            // lock.
            node.walk(memory, |page, state, fill, _| listed_slabs.push((page, state, fill.objects)));
        }
        let slabs = listed_slabs.into_iter().map(|(page, state, objects)| {
            let mut out = Vec::with_capacity(usize::from(objects).div_ceil(64));
            // SAFETY: the slab was found on a list, so it is set up. By contract, no other thread uses the
            // slab.
            unsafe { memory.slab(page).allocated(|word| out.push(word)) };
            let list = match state {
                State::Empty => SlabList::Empty,
                State::Partial(_) => SlabList::Partial,
                State::Full => SlabList::Full,
            };
            SlabView { page, list, objects, out }
        });
        let absent_place = ObjectPlace { slab: Pfn::new(u32::MAX), index: 0 };
        let name = |object| self.place_of(object).unwrap_or(absent_place);
        // SAFETY: by contract, no other thread uses the subsystem.
        let magazines = unsafe { self.config().per_cpu.view(name) };
        CacheView { slabs: slabs.collect(), magazines }
    }
}

impl KmemCache {
    /// Returns a snapshot of the place of each object. Cost: the call reads every slab and every magazine.
    ///
    /// # Safety
    /// No other thread may use the subsystem until the call returns, not even through the program's global allocator.
    pub unsafe fn view(&self) -> CacheView {
        // SAFETY: by contract, no other thread uses the subsystem.
        unsafe { self.cache().view() }
    }

    /// Returns the place of the object that begins at `address`, or `None` if no object of the cache begins there. The
    /// call does not read the object.
    pub fn place_of(&self, address: NonNull<u8>) -> Option<ObjectPlace> {
        // SAFETY: the object is used only to compute its place, and is not freed.
        self.cache().place_of(unsafe { Object::from_raw(address) })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, Magazines, Subsystem};
    use uslab_buddy::PageConfig;
    use uslab_magazine::{Cpus, on_cpu};

    #[test]
    fn cache_view_shows_each_allocated_object_exactly_once() {
        let cpus = Cpus::simulated(2, 1).unwrap();
        let subsystem = Subsystem::new(Config::new(PageConfig::default_for(cpus).limit(64 << 20))).unwrap();
        let magazines = Magazines::Sized { capacity: 4, stock: 1, depot_limit: 1 };
        let cache = KmemCache::builder("seen", 256).magazines(magazines).build_in(&subsystem).unwrap();
        on_cpu(0);
        let mut blocks: Vec<_> = (0..100).map(|_| cache.alloc_block(Gfp::KERNEL).unwrap()).collect();
        on_cpu(1);
        blocks.truncate(50);
        // SAFETY: this test is the only user.
        let view = unsafe { cache.view() };
        let info = cache.info();
        let slabs_on = |list| view.slabs.iter().filter(|slab| slab.list == list).count() as u64;
        assert_eq!(
            [slabs_on(SlabList::Full), slabs_on(SlabList::Partial), slabs_on(SlabList::Empty)],
            [info.full, info.partial, info.empty]
        );
        let layer = view.magazines.unwrap();
        let magazines = layer.cpus.iter().flat_map(|cpu| &cpu.magazines);
        let magazine_contents = magazines.chain(layer.depots.iter().flat_map(|depot| &depot.full));
        let mut places: Vec<_> = magazine_contents.flat_map(|magazine| magazine.rounds.clone()).collect();
        assert_eq!(places.len() as u64, info.in_magazines + info.in_depot);
        places.extend(blocks.iter().map(|block| cache.place_of(block.address()).unwrap()));
        let allocated_objects = view.slabs.iter().flat_map(|slab| {
            let words = slab.out.iter().enumerate();
            let bits = words.flat_map(|(i, word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
            });
            bits.map(|index| ObjectPlace { slab: slab.page, index: index as u16 })
        });
        let key = |place: &ObjectPlace| (place.slab, place.index);
        let mut allocated_objects: Vec<_> = allocated_objects.collect();
        allocated_objects.sort_unstable_by_key(key);
        places.sort_unstable_by_key(key);
        assert_eq!(places, allocated_objects);
        let interior = blocks[0].address().map_addr(|start| start.saturating_add(8));
        assert_eq!(cache.place_of(interior), None, "no object begins there");
    }
}
