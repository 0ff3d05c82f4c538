//! Describes a process's subsystems for a debugger, which examines the process or its core dump. The script
//! `slab/gdb/uslab.py` reads this description.
//!
//! ```text
//! section `.uslab`: magic, version, layouts, subsystems[64]
//!     ──> SubsystemDescription ──> the list of caches ──> CacheDescription of each
//! ```
//!
//! The debugger finds the description by its section's name, which survives `strip`, so it needs no debug information
//! and no symbol. If a program contains two copies of this library, the section has two descriptions. The program
//! itself never reads the section.
//!
//! The description starts with its format version; the script reports an unknown version.

use super::stacks::{self, Depot};
use super::tracks::Record;
use crate::geometry::Geometry;
use core::ptr::null_mut;
use uslab_buddy::Frame;
use uslab_buddy::frame::FrameList;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::unseen::AtomicPtr;
use uslab_magazine::view;

/// Maximum number of subsystems in the description, which omits further subsystems of the process.
const SUBSYSTEMS: usize = 64;

/// Contents of the section that a debugger reads.
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
    subsystems: [AtomicPtr<SubsystemDescription>; SUBSYSTEMS],
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

/// Description of a subsystem for a debugger. Addresses are stored as numbers, because the program never dereferences
/// them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SubsystemDescription {
    /// Address of the first page. `len` is the number of pages, and `frames` is the address of the frames.
    pub(crate) pages: usize,
    pub(crate) len: usize,
    pub(crate) frames: usize,
    /// Address of the bitmaps of slabs with many objects; each page has 64 bytes there.
    pub(crate) side: usize,
    /// Owner word in the frames of large blocks, which are not slabs.
    pub(crate) large: usize,
    /// Address of the list of caches. `list` is the layout of the list, and `cache` is the offset of the
    /// [`CacheDescription`] in each cache.
    pub(crate) caches: usize,
    pub(crate) list: [usize; 4],
    pub(crate) cache: usize,
    /// Number of partial lists of a node.
    pub(crate) bands: usize,
}

/// A subsystem's entry in the description, which exists from [`list`](Self::list) until this value is dropped.
#[derive(Debug)]
pub(crate) struct DebuggerEntry(AtomicPtr<SubsystemDescription>);

impl DebuggerEntry {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
    /// Lists the subsystem in the description. The caller must call `list` only once.
    pub(crate) fn list(&self, seen: SubsystemDescription) {
        let seen = Box::into_raw(Box::new(seen));
        // Relaxed: the program reads the pointer only in the drop, which has the subsystem exclusively.
        self.0.store(seen, Relaxed);
        // Relaxed: the first thread gets the entry, and reads no other data.
        let take = |place: &&AtomicPtr<_>| place.compare_exchange(null_mut(), seen, Relaxed, Relaxed).is_ok();
        _ = DESCRIPTION.subsystems.iter().find(take);
    }
}

impl Drop for DebuggerEntry {
    fn drop(&mut self) {
        // Relaxed: the drop of the subsystem comes after all its uses.
        let seen = self.0.load(Relaxed);
        // Relaxed: only this value's drop removes the entry.
        let leave = |place: &AtomicPtr<_>| _ = place.compare_exchange(seen, null_mut(), Relaxed, Relaxed);
        if !seen.is_null() {
            DESCRIPTION.subsystems.iter().for_each(leave);
            // SAFETY: `list` made the box, and besides this value only a debugger reads the box.
            drop(unsafe { Box::from_raw(seen) });
        }
    }
}

/// Description of a cache for a debugger.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CacheDescription {
    name: usize,
    name_len: usize,
    object_size: usize,
    /// Offset of the first object in its slab. `stride` is the distance between two objects.
    lead: usize,
    stride: usize,
    /// 1 if free objects stay constructed and may own other memory, 0 otherwise.
    constructed: usize,
    nodes: Nodes,
    stacks: Stacks,
    /// Address and number of the quarantine's places.
    quarantine: [usize; 2],
    /// Address of the table of allocation and free records, with a word per page; 0 without a table.
    tracks: usize,
}

/// Description of the nodes of a cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Nodes {
    /// Addresses of the first node's lists of full, partial and empty slabs.
    pub(crate) lists: [usize; 3],
    /// Distance between two nodes in bytes. `len` is the number of nodes.
    pub(crate) node: usize,
    pub(crate) len: usize,
}

/// Description of a cache's stacks and depots; all zeros without magazines.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Stacks {
    /// For the first node: addresses of its stack's head offset (4 bytes, in a region), and of the pointer to its
    /// depot's first slot. The last two elements are the distance between two nodes, and the number of nodes.
    pub(crate) nodes: [usize; 4],
    /// Address of CPU 0's region, distance between two regions, and number of regions.
    pub(crate) regions: [usize; 3],
}

impl CacheDescription {
    /// Describes a cache, whose name, nodes and stacks must not move afterwards.
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
    fn list_for_debuggers_omits_dropped_subsystems() {
        let seen = || SubsystemDescription {
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
        // Other tests may have listed their subsystems.
        let all: Vec<_> = (0..=SUBSYSTEMS).map(|_| DebuggerEntry::new()).collect();
        all.iter().for_each(|one| one.list(seen()));
        // Relaxed: this thread wrote the pointers.
        let own_entries: Vec<_> = all.iter().map(|one| one.0.load(Relaxed)).collect();
        let listed = || {
            // Relaxed: this thread wrote the pointers that the test searches.
            let places = DESCRIPTION.subsystems.iter().map(|place| place.load(Relaxed));
            places.filter(|seen| own_entries.contains(seen)).count()
        };
        let count = listed();
        assert!((1..=SUBSYSTEMS).contains(&count), "{count}: one subsystem must have no place");
        drop(all);
        assert_eq!(listed(), 0);
    }
}
