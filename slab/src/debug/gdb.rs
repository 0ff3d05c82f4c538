//! What a debugger sees of a process's subsystems, live or in a core: where everything lies. `slab/gdb/uslab.py` reads it.
//!
//! ```text
//! section `.uslab`: magic, version, layouts, subsystems[64] ──> SubsystemSeen ──> the list of caches ──> CacheSeen of each
//! ```
//!
//! It needs no debug information, and no symbol: a section's name outlives `strip`, and a program that has this library twice has
//! two descriptions there. The program itself never reads what is written here.
//!
//! The format has a number, which changes with it: a script that does not know it says so.

use super::stacks::{self, Depot};
use super::tracks::Record;
use crate::geometry::Geometry;
use core::ptr::null_mut;
use uslab_buddy::Frame;
use uslab_buddy::frame::FrameList;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::unseen::AtomicPtr;
use uslab_magazine::view;

/// Subsystems that are listed; a process that has more at a time does not show the others.
const SUBSYSTEMS: usize = 64;

/// What is found in the section.
#[repr(C)]
struct Description {
    magic: [u8; 8],
    version: u64,
    frame: [usize; 6],
    frame_list: [usize; 3],
    layer: [usize; 4],
    /// Records of who allocated and who freed.
    record: [usize; 7],
    /// Call stacks.
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

/// A subsystem. All addresses are numbers: nobody here follows them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SubsystemSeen {
    /// Where the first page lies, and how many there are.
    pub(crate) pages: usize,
    pub(crate) len: usize,
    pub(crate) frames: usize,
    /// Long bitmaps, 64 bytes a page.
    pub(crate) side: usize,
    /// The owner of blocks that are no slabs.
    pub(crate) large: usize,
    /// The list of caches, how that is laid out, and where in a cache its [`CacheSeen`] lies.
    pub(crate) caches: usize,
    pub(crate) list: [usize; 4],
    pub(crate) cache: usize,
    /// Lists of partial slabs of a node.
    pub(crate) bands: usize,
}

/// A subsystem's place in the description, from [`list`](Self::list) to its end.
#[derive(Debug)]
pub(crate) struct Listed(AtomicPtr<SubsystemSeen>);

impl Listed {
    /// Not yet.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
    /// Once.
    pub(crate) fn list(&self, seen: SubsystemSeen) {
        let seen = Box::into_raw(Box::new(seen));
        // Relaxed: no thread of the program reads it, but for the end, which has the subsystem for itself.
        self.0.store(seen, Relaxed);
        // Relaxed: as above; who is first has the place.
        let take = |place: &&AtomicPtr<_>| place.compare_exchange(null_mut(), seen, Relaxed, Relaxed).is_ok();
        _ = DESCRIPTION.subsystems.iter().find(take);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // Relaxed: whoever drops the subsystem came behind all who used it.
        let seen = self.0.load(Relaxed);
        // Relaxed: as in `list`.
        let leave = |place: &AtomicPtr<_>| _ = place.compare_exchange(seen, null_mut(), Relaxed, Relaxed);
        if !seen.is_null() {
            DESCRIPTION.subsystems.iter().for_each(leave);
            // SAFETY: made in `list`, and nobody but a debugger knew it.
            drop(unsafe { Box::from_raw(seen) });
        }
    }
}

/// A cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CacheSeen {
    name: usize,
    name_len: usize,
    object_size: usize,
    /// How far the first object is from the beginning of its slab, and how far the next one.
    lead: usize,
    stride: usize,
    /// 1 if a free object stays constructed, and owns what it owns.
    constructed: usize,
    nodes: Nodes,
    stacks: Stacks,
    /// Where the objects that are kept from use are written down, and how many may be.
    quarantine: [usize; 2],
    /// The table of records, a word a page; 0 if there are none.
    tracks: usize,
}

/// Nodes of a cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Nodes {
    /// Where the first one's lists of full, partial and empty slabs lie,
    pub(crate) lists: [usize; 3],
    /// how far those of the next one are, and how many nodes there are.
    pub(crate) node: usize,
    pub(crate) len: usize,
}

/// What stands in front of a cache's slabs; zeros where that is nothing.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Stacks {
    /// Of the first node: where it is written how far the head of its stack is from the start of a region, in 4 bytes, and where the
    /// address of the first slot of its depot;
    /// how far those of the next one are, and how many there are.
    pub(crate) nodes: [usize; 4],
    /// The region of CPU 0, how far the next one is, and how many there are.
    pub(crate) regions: [usize; 3],
}

impl CacheSeen {
    /// Of a cache whose name, nodes and stacks stay where they are.
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
    fn a_subsystem_is_listed_until_it_ends() {
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
        // Those of other tests are there, too.
        let all: Vec<_> = (0..=SUBSYSTEMS).map(|_| Listed::new()).collect();
        all.iter().for_each(|one| one.list(seen()));
        // Relaxed: of this thread.
        let ours: Vec<_> = all.iter().map(|one| one.0.load(Relaxed)).collect();
        let listed = || {
            // Relaxed: what is looked for is of this thread.
            let places = DESCRIPTION.subsystems.iter().map(|place| place.load(Relaxed));
            places.filter(|seen| ours.contains(seen)).count()
        };
        let count = listed();
        assert!((1..=SUBSYSTEMS).contains(&count), "{count}: one is always beyond the places");
        drop(all);
        assert_eq!(listed(), 0);
    }
}
