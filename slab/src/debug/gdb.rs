//! Layout of a process's subsystems for a debugger, live or in a core. `slab/gdb/uslab.py` reads it.
//!
//! ```text
//! section `.uslab`: magic, version, layouts, subsystems[64] ──> SubsystemSeen ──> the list of caches ──> CacheSeen of each
//! ```
//!
//! It needs no debug information and no symbol: a section's name survives `strip`, and a program with two copies of this
//! library has two descriptions in the section. The program itself never reads it.
//!
//! The format has a version, which changes with it: a script that does not know the version reports that.

use super::stacks::{self, Depot};
use super::tracks::Record;
use crate::geometry::Geometry;
use core::ptr::null_mut;
use uslab_buddy::Frame;
use uslab_buddy::frame::FrameList;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::unseen::AtomicPtr;
use uslab_magazine::view;

/// Most subsystems that are listed; further ones of a process are not shown.
const SUBSYSTEMS: usize = 64;

/// Contents of the section.
#[repr(C)]
struct Description {
    magic: [u8; 8],
    version: u64,
    frame: [usize; 6],
    frame_list: [usize; 3],
    layer: [usize; 4],
    /// Layout of the allocation and free records.
    record: [usize; 7],
    /// The table of call stacks.
    stacks: &'static Depot,
    depot: [usize; 3],
    subsystems: [AtomicPtr<SubsystemSeen>; SUBSYSTEMS],
}

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".uslab"))]
static DESCRIPTION: Description = Description {
    magic: *b"uslabgdb",
    version: 2,
    frame: Frame::LAYOUT,
    frame_list: FrameList::LAYOUT,
    layer: view::LAYOUT,
    record: Record::LAYOUT,
    stacks: &stacks::DEPOT,
    depot: Depot::LAYOUT,
    subsystems: [const { AtomicPtr::new(null_mut()) }; SUBSYSTEMS],
};

/// Description of a subsystem. Addresses are numbers, because the program never dereferences them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SubsystemSeen {
    /// Address of the first page; then the number of pages, and the frames.
    pub(crate) pages: usize,
    pub(crate) len: usize,
    pub(crate) frames: usize,
    /// Address of the long bitmaps, 64 bytes per page.
    pub(crate) side: usize,
    /// Owner word of blocks that are not slabs.
    pub(crate) large: usize,
    /// Address of the list of caches; then the list's layout, and the offset of a [`CacheSeen`] in a cache.
    pub(crate) caches: usize,
    pub(crate) list: [usize; 4],
    pub(crate) cache: usize,
    /// Number of partial lists of a node.
    pub(crate) bands: usize,
}

/// A subsystem's entry in the description, from [`list`](Self::list) until the drop.
#[derive(Debug)]
pub(crate) struct Listed(AtomicPtr<SubsystemSeen>);

impl Listed {
    /// An entry that is not listed yet.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
    /// Lists the subsystem; call it once.
    pub(crate) fn list(&self, seen: SubsystemSeen) {
        let seen = Box::into_raw(Box::new(seen));
        // Relaxed: the program only reads it in the drop, which has the subsystem exclusively.
        self.0.store(seen, Relaxed);
        // Relaxed: the first thread takes the entry; nothing else is read.
        let take = |place: &&AtomicPtr<_>| place.compare_exchange(null_mut(), seen, Relaxed, Relaxed).is_ok();
        _ = DESCRIPTION.subsystems.iter().find(take);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // Relaxed: the drop of the subsystem comes after all its uses.
        let seen = self.0.load(Relaxed);
        // Relaxed: only this value's drop removes it.
        let leave = |place: &AtomicPtr<_>| _ = place.compare_exchange(seen, null_mut(), Relaxed, Relaxed);
        if !seen.is_null() {
            DESCRIPTION.subsystems.iter().for_each(leave);
            // SAFETY: made in `list`, and only a debugger reads it otherwise.
            drop(unsafe { Box::from_raw(seen) });
        }
    }
}

/// Description of a cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CacheSeen {
    name: usize,
    name_len: usize,
    object_size: usize,
    /// Offset of the first object in its slab; then the stride.
    lead: usize,
    stride: usize,
    /// 1 if free objects stay constructed, and own what they own.
    constructed: usize,
    nodes: Nodes,
    stacks: Stacks,
    /// Address of the quarantine's places, and their number.
    quarantine: [usize; 2],
    /// Address of the table of records, a word per page; 0 if there is none.
    tracks: usize,
}

/// Description of the nodes of a cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Nodes {
    /// Addresses of the first node's lists of full, partial and empty slabs.
    pub(crate) lists: [usize; 3],
    /// Stride of the nodes; then their number.
    pub(crate) node: usize,
    pub(crate) len: usize,
}

/// Description of the stacks and depots of a cache; zeros without them.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Stacks {
    /// Of the first node: address of the 4-byte offset of its stack's head in a region, and of the pointer to the first slot of
    /// its depot. Then the stride of the nodes, and their number.
    pub(crate) nodes: [usize; 4],
    /// Region of CPU 0, stride of the regions, and their number.
    pub(crate) regions: [usize; 3],
}

impl CacheSeen {
    /// Describes a cache. Its name, nodes and stacks must not move.
    pub(crate) fn new(
        name: &str,
        geometry: &Geometry,
        constructed: bool,
        nodes: Nodes,
        stacks: Stacks,
        quarantine: [usize; 2],
        tracks: usize,
    ) -> Self {
        Self {
            name: name.as_ptr().addr(),
            name_len: name.len(),
            object_size: geometry.object_size(),
            lead: geometry.lead(),
            stride: geometry.stride(),
            constructed: constructed.into(),
            nodes,
            stacks,
            quarantine,
            tracks,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn debugger_lists_a_subsystem_until_its_end() {
        let seen = || SubsystemSeen {
            pages: 1,
            len: 2,
            frames: 3,
            side: 4,
            large: 5,
            caches: 6,
            list: [7; 4],
            cache: 8,
            bands: 9,
        };
        // Other tests may have listed theirs.
        let all: Vec<_> = (0..=SUBSYSTEMS).map(|_| Listed::new()).collect();
        all.iter().for_each(|one| one.list(seen()));
        // Relaxed: written by this thread.
        let ours: Vec<_> = all.iter().map(|one| one.0.load(Relaxed)).collect();
        let listed = || {
            // Relaxed: the searched values were written by this thread.
            let places = DESCRIPTION.subsystems.iter().map(|place| place.load(Relaxed));
            places.filter(|seen| ours.contains(seen)).count()
        };
        let count = listed();
        assert!((1..=SUBSYSTEMS).contains(&count), "{count}: one is always beyond the places");
        drop(all);
        assert_eq!(listed(), 0);
    }
}
