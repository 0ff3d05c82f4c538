//! The slabs of one cache on one memory node. The slabs are in lists under one lock: full slabs, partial slabs by
//! fullness, and empty slabs.
//!
//! The number of objects in use (`inuse` of `objects`) alone determines a slab's list:
//!
//! | state      | when                 | list                                                             |
//! |------------|----------------------|------------------------------------------------------------------|
//! | empty      | `inuse == 0`         | `empty`                                                          |
//! | partial(b) | between              | `partial[b]`, `b = BANDS * inuse / objects`, the fullest band last |
//! | full       | `inuse == objects`   | `full`                                                           |
//!
//! A slab moves to another list only at these events:
//!
//! | event                          | from           | to                                                                             |
//! |--------------------------------|----------------|--------------------------------------------------------------------------------|
//! | a new slab, some objects taken | unlisted       | partial or full                                                                |
//! | objects taken                  | partial, empty | a fuller band, or full                                                         |
//! | an object freed                | full, partial  | a less full band, or empty                                                     |
//! | the last object freed          | partial, full  | empty; **unlisted** if there were `min_partial` partial and empty slabs before |
//! | shrink                         | empty          | unlisted                                                                       |
//! | destroy, with no object in use | empty          | unlisted                                                                       |
//!
//! Only one thread knows an unlisted slab, and that thread frees the slab's pages after releasing the lock. Destructors
//! and the page allocator never run under the lock.
//!
//! # Unused pages
//!
//! Free objects of partial and empty slabs occupy memory, which the node counts in pages (`unused_pages`).
//! [`Node::discard_unused`] returns pages without objects in use to the system, and subtracts them from `unused_pages`.
//! A free requests a discard if `unused_pages` exceeds [`Lists::max_unused_pages`]. The reaper discards pages that were
//! unused during a whole interval. A shrink discards all unused pages. When an object is allocated from a slab, none of
//! the slab's pages counts as discarded any more.
//!
//! # Order
//!
//! An allocation takes objects from the fullest band first, so that sparse slabs become empty. Within a band, an
//! allocation takes slabs from the front. New slabs are added at the back of a list. With random order, new slabs are
//! added at a random end of a list, and a slab's objects are allocated in random order. The number of empty slabs that
//! a node keeps follows the kernel's rule (`__slab_free`, `get_partial_node`, `__kmem_cache_do_shrink` of `mm/slub.c`).
//! The kernel has a single partial list, which only shrinking sorts.

use crate::cache::live::Live;
use crate::debug::gdb;
use crate::geometry::Geometry;
use crate::harden::{Draws, Key};
use crate::memory::slab::Fill;
use crate::memory::slab_memory::SlabMemory;
use uslab_buddy::{Order, PAGE_SIZE, Pfn, frame::FrameList};
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{Counter, MutexGuard, Rank, tell};
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{MAX_NODES, Operation};

/// Number of lists of partial slabs, by fullness. Four bands separate almost empty from almost full slabs; more bands
/// would only move slabs more often.
pub(crate) const BANDS: usize = 4;

/// Maximum number of free objects in a slab that a shrink sorts (the kernel's number). Slabs with fewer free objects
/// come first; slabs above the maximum follow unsorted.
const MAX_SORTED_FREE_OBJECTS: usize = 32;

/// Fullness of a slab, which determines its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    Partial(usize),
    Full,
}

impl From<Fill> for State {
    fn from(Fill { inuse, objects }: Fill) -> Self {
        match inuse {
            0 => Self::Empty,
            n if n == objects => Self::Full,
            n => Self::Partial(BANDS * usize::from(n) / usize::from(objects)),
        }
    }
}

/// Counts of the slabs and objects of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeCount {
    pub(crate) full: u64,
    pub(crate) partial: u64,
    pub(crate) empty: u64,
    /// Number of objects in all slabs. `inuse` counts the objects in use.
    pub(crate) objects: u64,
    pub(crate) inuse: u64,
    /// Number of pages in slabs whose memory was returned to the system.
    pub(crate) discarded: u64,
}

impl NodeCount {
    pub(crate) fn slabs(&self) -> u64 {
        self.full + self.partial + self.empty
    }
}

impl core::ops::Add for NodeCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            full: self.full + other.full,
            partial: self.partial + other.partial,
            empty: self.empty + other.empty,
            objects: self.objects + other.objects,
            inuse: self.inuse + other.inuse,
            discarded: self.discarded + other.discarded,
        }
    }
}

/// Slabs that are on no node list, so that only the owner of this value can access them.
#[derive(Debug, Default)]
pub(crate) struct UnlistedSlabs(FrameList);

impl UnlistedSlabs {
    /// # Safety
    /// The slab `pfn` must be on no list, and no other thread may know it.
    unsafe fn push(&mut self, memory: &SlabMemory, pfn: Pfn) {
        // SAFETY: by contract, only the owner of this list uses the link of each frame on it.
        unsafe { self.0.push_back(memory.frames(), pfn) };
    }
    pub(crate) fn pop(&mut self, memory: &SlabMemory) -> Option<Pfn> {
        // SAFETY: only the owner of this list uses the frames on it.
        unsafe { self.0.pop_front(memory.frames()) }
    }
}

/// An object, identified by its slab and its index in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectIndex {
    pub(crate) slab: Pfn,
    pub(crate) index: usize,
}

#[derive(Debug)]
pub(crate) struct Node {
    lists: ForkMutex<Lists>,
    geometry: Geometry,
}

/// Number of pages of free objects that a node's slabs may always keep, so that small caches never call the system.
const MIN_KEPT_PAGES: u64 = 32;

/// Counts of the pages that free objects in slabs occupy. The lists' lock protects the counts.
#[derive(Debug, Default)]
struct FreePageCounts {
    /// Number of pages in the listed slabs whose memory was returned to the system.
    discarded: u64,
    /// Smallest value of `unused_pages` since the last reap.
    least: u64,
    /// 1.25 times the number of unused pages after the last discard pass. While fewer pages are unused, frees do not
    /// start another discard pass.
    next_pass_limit: u64,
}

/// A node's lists and counts, which the lock protects.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    full: FrameList,
    partial: [FrameList; BANDS],
    empty: FrameList,
    /// Number of objects in the slabs of all lists. `inuse` counts the objects in use.
    objects: u64,
    inuse: u64,
    unused: FreePageCounts,
    /// True if the cache is destroyed, so that no more slabs may be listed.
    closed: bool,
    /// Number of callers that currently [keep](Node::keep) all slabs on their lists.
    kept: Counter,
    /// Number of objects that count as in use while a thread destructs them. `lost` counts the objects whose
    /// destructing thread was lost in a fork.
    destructing: Counter,
    lost: Counter,
    /// Seed of the order of objects and slabs, if the order is random. `holds` counts the lock holds that drew a random
    /// number.
    key: Option<Key>,
    holds: u64,
}

impl Lists {
    fn of(&mut self, state: State) -> &mut FrameList {
        match state {
            State::Empty => &mut self.empty,
            State::Partial(band) => &mut self.partial[band],
            State::Full => &mut self.full,
        }
    }
    /// Number of slabs with free objects, which `min_partial` limits.
    fn count_slabs_with_room(&self) -> usize {
        self.partial.iter().chain([&self.empty]).map(|list| list.len() as usize).sum()
    }
    /// Returns the slab from which to allocate next: the fullest slab with free objects.
    fn best_slab(&self) -> Option<(Pfn, State)> {
        let partial =
            (0..BANDS).rev().find_map(|band| Some((self.partial[band].front()?, State::Partial(band))));
        partial.or_else(|| Some((self.empty.front()?, State::Empty)))
    }
    /// Returns the generator of random draws for the current lock hold.
    fn random_draws(&mut self) -> Option<Draws> {
        self.holds += u64::from(self.key.is_some());
        self.key.map(|key| Draws::of(key, self.holds))
    }
    /// Moves a slab from the list of its earlier state `before` to the list of its current state.
    ///
    /// # Safety
    /// The slab must be on the list of state `before`, and the caller must hold the lists' lock.
    unsafe fn move_slab(
        &mut self,
        memory: &SlabMemory,
        slab: Pfn,
        before: State,
        now: State,
        draws: &mut Option<Draws>,
    ) {
        if before != now {
            let front = draws.as_mut().is_some_and(|draws| draws.below(2) == 0);
            // SAFETY: this thread holds the lock, which protects the links of listed frames. The slab is on the list of
            // `before`.
            unsafe {
                self.of(before).remove(memory.frames(), slab);
                match front {
                    true => self.of(now).push_front(memory.frames(), slab),
                    false => self.of(now).push_back(memory.frames(), slab),
                }
            }
        }
    }
    fn count(&self) -> NodeCount {
        NodeCount {
            full: u64::from(self.full.len()),
            partial: self.partial.iter().map(|list| u64::from(list.len())).sum(),
            empty: u64::from(self.empty.len()),
            objects: self.objects,
            inuse: self.inuse,
            discarded: self.unused.discarded,
        }
    }
    /// Number of pages of free objects whose memory has not been returned to the system.
    fn unused_pages(&self, geometry: &Geometry) -> u64 {
        pages(self.objects - self.inuse, geometry).saturating_sub(self.unused.discarded)
    }
    /// Number of pages that frees may leave unused: a quarter of the number of pages in use.
    fn max_unused_pages(&self, geometry: &Geometry) -> u64 {
        MIN_KEPT_PAGES.max(pages(self.inuse, geometry) / 4)
    }
    /// Updates the smallest number of unused pages, after an object was allocated or a slab left the lists.
    fn update_min_unused_pages(&mut self, geometry: &Geometry) {
        self.unused.least = self.unused.least.min(self.unused_pages(geometry));
    }
    /// Subtracts a slab of `objects` objects from the counts.
    ///
    /// # Safety
    /// The caller must hold the lists' lock, and the slab must be initialised.
    unsafe fn forget(&mut self, memory: &SlabMemory, slab: Pfn, objects: u16) {
        self.objects -= u64::from(objects);
        // SAFETY: by contract, the lock is held and the slab is set up.
        self.unused.discarded -= u64::from(unsafe { memory.slab(slab).discarded() });
    }
    /// Takes all empty slabs off the lists, unless a caller keeps all slabs listed.
    fn take_empty_slabs(&mut self, memory: &SlabMemory, unlisted: &mut UnlistedSlabs) {
        if self.kept.get() > 0 {
            return;
        }
        // SAFETY: the caller holds the lock. No other thread knows an empty slab that is off its list, because a slab
        // is reached through a list or through an object in use.
        unsafe {
            while let Some(slab) = self.empty.pop_front(memory.frames()) {
                self.forget(memory, slab, memory.slab(slab).fill().objects);
                unlisted.push(memory, slab);
                tell!(self => "removes empty slab {slab} from its list");
            }
        }
    }
    /// Number of objects in use, excluding objects that a fork lost.
    fn used_objects(&self) -> u64 {
        self.inuse - self.lost.get()
    }
    /// Takes slabs off the lists if all their objects in use were lost in a fork.
    fn take_lost_slabs(&mut self, memory: &SlabMemory, unlisted: &mut UnlistedSlabs) {
        if self.lost.get() > 0 {
            for state in (0..BANDS).map(State::Partial).chain([State::Full]) {
                // SAFETY: the caller holds the lock, and no other thread has an object of the slab.
                unsafe {
                    while let Some(slab) = self.of(state).pop_front(memory.frames()) {
                        unlisted.push(memory, slab);
                    }
                }
            }
            (self.objects, self.inuse, self.unused.discarded) = (0, 0, 0);
            self.lost.set(0);
        }
    }
    /// The lengths of the lists, for a counterexample trace.
    #[cfg(loom)]
    fn watched(&self) -> uslab_magazine::sync::story::Watched {
        let NodeCount { full, partial, empty, .. } = self.count();
        let parts = [("full slabs", full), ("partial", partial), ("empty", empty)];
        uslab_magazine::sync::story::Watched {
            id: core::ptr::from_ref(self).addr(),
            parts: parts.map(|(part, count)| (part.to_owned(), count.to_string())).into(),
        }
    }
}

/// Options for freeing objects to slabs: how many slabs stay listed, and the state of the objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOptions {
    /// Number of slabs with free objects that stay listed. Above this number, a slab that becomes empty is released.
    pub(crate) slabs: usize,
    pub(crate) objects: FreedState,
}

/// State in which objects are freed to their slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreedState {
    /// The objects are constructed, and stay constructed.
    Constructed,
    /// The objects are not constructed, because their constructor failed.
    Refused,
    /// [`Node::take_constructed`] took the objects, and the caller destructed them.
    Destructed,
}

fn pages(objects: u64, geometry: &Geometry) -> u64 {
    objects * geometry.stride() as u64 / PAGE_SIZE as u64
}

/// Error: the node's cache is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeClosedError;

impl Node {
    /// For debuggers: returns the addresses of the lists.
    pub(crate) fn places(nodes: &[Self]) -> gdb::Nodes {
        use core::mem::offset_of;
        let lists = nodes.first().map_or(0, |node| node.lists.place().addr());
        let places = [offset_of!(Lists, full), offset_of!(Lists, partial), offset_of!(Lists, empty)];
        gdb::Nodes { lists: places.map(|at| lists + at), node: size_of::<Self>(), len: nodes.len() }
    }
    /// Creates a node without slabs. With a key, objects are allocated in a random order.
    pub(crate) fn new(key: Option<Key>, geometry: Geometry) -> Self {
        let lists = ForkMutex::new(Rank::Node, Lists { key, ..Lists::default() });
        Self { lists, geometry }
    }
    pub(crate) fn lists(&self) -> &ForkMutex<Lists> {
        &self.lists
    }

    fn lock(&self, op: &Operation) -> MutexGuard<'_, Lists> {
        tell!(op: Step::NodeVisited);
        self.lists.lock()
    }

    /// Takes up to `max` free objects under one lock acquisition, from the fullest slabs first. Returns the number of
    /// objects, and `true` if the call took a single unconstructed object. The call takes an unconstructed object only
    /// if no constructed object is left and `new` allows it; the caller then constructs the object.
    pub(crate) fn alloc(
        &self,
        op: &Operation,
        memory: &SlabMemory,
        max: usize,
        new: bool,
        mut put: impl FnMut(ObjectIndex),
    ) -> (usize, bool) {
        let mut lists = self.lock(op);
        let (mut taken, mut is_new) = (0, false);
        let mut draws = lists.random_draws();
        while taken < max
            && let Some((slab, before)) = lists.best_slab()
        {
            // SAFETY: the lock is held, and the slab is on a list of this node.
            unsafe {
                let fill_before = memory.slab(slab).fill();
                lists.unused.discarded -= u64::from(memory.slab(slab).clear_discarded_marks());
                let put = |index| put(ObjectIndex { slab, index });
                let now;
                (now, is_new) =
                    memory.slab(slab).alloc_bits(max - taken, new && taken == 0, draws.as_mut(), put);
                let objects = now.inuse - fill_before.inuse;
                taken += usize::from(objects);
                lists.move_slab(memory, slab, before, now.into(), &mut draws);
                tell!(op: lists => Step::ObjectsTaken { slab: slab.get(), objects });
                // The slab's other free objects are not constructed.
                if is_new || objects == 0 {
                    break;
                }
            }
        }
        lists.inuse += taken as u64;
        lists.update_min_unused_pages(&self.geometry);
        (taken, is_new)
    }

    /// Puts a new slab on a list.
    ///
    /// # Errors
    /// Fails if the cache is destroyed; the caller keeps the slab.
    ///
    /// # Safety
    /// The slab must be initialised, belong to this node's cache, and be known only to the caller.
    pub(crate) unsafe fn add(
        &self,
        op: &Operation,
        memory: &SlabMemory,
        slab: Pfn,
    ) -> Result<(), NodeClosedError> {
        let mut lists = self.lock(op);
        if lists.closed {
            return Err(NodeClosedError);
        }
        // SAFETY: only the caller knows the slab, and the lock is held.
        unsafe {
            let fill = memory.slab(slab).fill();
            lists.objects += u64::from(fill.objects);
            lists.inuse += u64::from(fill.inuse);
            lists.of(fill.into()).push_back(memory.frames(), slab);
        }
        tell!(op: lists => Step::SlabAdded { slab: slab.get() });
        Ok(())
    }

    /// Frees objects under one lock acquisition. Adds slabs that become empty, and that the node does not keep, to
    /// `unlisted`. Calls `refused` with each object that was already free. Returns the number of unused pages above the
    /// bound, for [`discard_unused`](Self::discard_unused). The result is 0 until the node has a quarter more unused
    /// pages than after the last discard pass.
    ///
    /// # Safety
    /// Each place must be an object in a slab of this node and cache. The objects are in use, or the call refuses them.
    /// No slab of the freed objects may have been released.
    pub(crate) unsafe fn free(
        &self,
        op: &Operation,
        memory: &SlabMemory,
        stays: FreeOptions,
        places: impl Iterator<Item = ObjectIndex>,
        unlisted: &mut UnlistedSlabs,
        mut refused: impl FnMut(ObjectIndex),
    ) -> u64 {
        let mut lists = self.lock(op);
        let mut draws = lists.random_draws();
        let mut places = places.peekable();
        while let Some(&ObjectIndex { slab: pfn, .. }) = places.peek() {
            // SAFETY: the lock is held. By contract, the slab is on a list of this node.
            unsafe {
                let slab = memory.slab(pfn);
                let before = State::from(slab.fill());
                // Objects that were allocated together are freed together, so that their slab moves once.
                let places_of_slab = core::iter::from_fn(|| places.next_if(|place| place.slab == pfn));
                let refused = |index| refused(ObjectIndex { slab: pfn, index });
                let (given, fill) = slab.free_objects_in_bitmap(
                    places_of_slab.map(|place| place.index),
                    stays.objects == FreedState::Constructed,
                    refused,
                );
                lists.inuse -= u64::from(given);
                if stays.objects == FreedState::Destructed {
                    lists.destructing.sub(u64::from(given));
                }
                tell!(op: lists => Step::ObjectsGiven { slab: pfn.get(), objects: given });
                let now = State::from(fill);
                lists.move_slab(memory, pfn, before, now, &mut draws);
                // The comparison is with the lists before the slab's last object was freed: a full slab of one object
                // does not count as a slab with free objects.
                if now == State::Empty
                    && before != State::Empty
                    && lists.kept.get() == 0
                    && lists.count_slabs_with_room() - usize::from(fill.objects == 1) >= stays.slabs
                {
                    lists.empty.remove(memory.frames(), pfn);
                    lists.forget(memory, pfn, fill.objects);
                    unlisted.push(memory, pfn);
                    lists.update_min_unused_pages(&self.geometry);
                }
            }
        }
        let (unused, bound) = (lists.unused_pages(&self.geometry), lists.max_unused_pages(&self.geometry));
        // Returns all pages above the bound, not only pages above `next_pass_limit`, because a pass that discards few
        // pages raises `next_pass_limit` by a quarter.
        if unused > lists.unused.next_pass_limit { unused.saturating_sub(bound) } else { 0 }
    }

    /// Returns up to `most` pages without objects in use to the system, starting with the emptiest slabs.
    ///
    /// The call releases the node's lock between two slabs. Cost: a system call for each run of pages,
    /// made with the lock held.
    ///
    /// # Safety
    /// The cache's free objects must own no other memory, and readers must not see them.
    pub(crate) unsafe fn discard_unused(&self, memory: &SlabMemory, most: u64) -> u64 {
        // A slab of one page has no unused page as long as an object is in use.
        let bands = if self.geometry.order() == Order::ZERO { 0 } else { BANDS };
        let states = || core::iter::once(State::Empty).chain((0..bands).map(State::Partial));
        let mut visits = [0; BANDS + 1];
        {
            let mut lists = self.lists.lock();
            visits.iter_mut().zip(states()).for_each(|(visits, state)| *visits = lists.of(state).len());
        }
        if visits == [0; BANDS + 1] {
            return 0;
        }
        let mut pages = 0;
        for (state, mut visits) in states().zip(visits) {
            // Each slab of the list moves to the back of the list, so that the slabs' order does
            // not change.
            while visits > 0 {
                visits -= 1;
                let mut lists = self.lists.lock();
                // SAFETY: this thread holds the lock, which protects the links of listed frames, and each slab on a
                // list is set up.
                let Some(slab) = (unsafe { lists.of(state).pop_front(memory.frames()) }) else { break };
                if pages >= most {
                    // SAFETY: the lock is held, and the slab is on no list.
                    unsafe { lists.of(state).push_back(memory.frames(), slab) };
                    continue;
                }
                // SAFETY: the lock is held, and a slab that was on a list is set up.
                let runs = unsafe { memory.slab(slab).discard_unused(&self.geometry) };
                let found = runs.pages();
                // SAFETY: the lock is held, and the slab is on no list.
                unsafe { lists.of(state).push_back(memory.frames(), slab) };
                // SAFETY: by contract, free objects own no other memory. No thread can take free objects before the
                // lock is released.
                runs.for_each(|(first, pages)| unsafe { memory.discard(first, pages) });
                lists.unused.discarded += u64::from(found);
                lists.update_min_unused_pages(&self.geometry);
                pages += u64::from(found);
            }
        }
        let mut lists = self.lists.lock();
        let unused = lists.unused_pages(&self.geometry);
        // The next pass waits until the number of unused pages has grown by a quarter, because a
        // pass visits all slabs.
        lists.unused.next_pass_limit = unused + unused / 4;
        pages
    }
    /// Ends a reaping interval. Returns the number of pages that were unused during the whole interval.
    pub(crate) fn end_reaping_interval(&self) -> u64 {
        let mut lists = self.lists.lock();
        lists.update_min_unused_pages(&self.geometry);
        let idle = lists.unused.least;
        lists.unused.least = lists.unused_pages(&self.geometry) - idle;
        idle
    }

    /// Takes the constructed free objects of one slab, so that the caller can destruct them. The search inspects up to
    /// `visits` slabs of a list, and moves each inspected slab to the back of the list. The search ends at the first
    /// slab with constructed free objects. Returns the slab with constructed free objects, if any, and reduces `visits`
    /// by the number of inspected slabs.
    pub(crate) fn take_constructed(
        &self,
        memory: &SlabMemory,
        state: State,
        visits: &mut u32,
        mut put: impl FnMut(usize),
    ) -> Option<Pfn> {
        let mut lists = self.lists.lock();
        while let Some(left) = visits.checked_sub(1) {
            *visits = left;
            // SAFETY: this thread holds the lock, which protects the links of listed frames, and each slab on a list
            // is set up.
            unsafe {
                let slab = lists.of(state).pop_front(memory.frames())?;
                let fill_before = memory.slab(slab).fill();
                let now = memory.slab(slab).take_constructed(&mut put);
                let taken = u64::from(now.inuse - fill_before.inuse);
                lists.inuse += taken;
                lists.destructing.add(taken);
                lists.of(now.into()).push_back(memory.frames(), slab);
                if now != fill_before {
                    return Some(slab);
                }
            }
        }
        None
    }
    pub(crate) fn len_of(&self, state: State) -> u32 {
        self.lists.lock().of(state).len()
    }

    /// Takes all empty slabs off the lists. In each band, sorts the slabs with few free objects, fewest first.
    pub(crate) fn shrink(&self, memory: &SlabMemory, unlisted: &mut UnlistedSlabs) {
        let mut lists = self.lists.lock();
        lists.take_empty_slabs(memory, unlisted);
        for band in (0..BANDS).rev() {
            let mut unsorted_slabs = core::mem::take(&mut lists.partial[band]);
            let mut sorted: [FrameList; MAX_SORTED_FREE_OBJECTS + 1] =
                [const { FrameList::new() }; MAX_SORTED_FREE_OBJECTS + 1];
            // SAFETY: this thread holds the lock, which protects the links of listed frames.
            unsafe {
                while let Some(slab) = unsorted_slabs.pop_front(memory.frames()) {
                    let fill = memory.slab(slab).fill();
                    let free = usize::from(fill.objects - fill.inuse);
                    // The last sorted list contains all other slabs, in their previous order.
                    sorted[free.min(MAX_SORTED_FREE_OBJECTS + 1) - 1].push_back(memory.frames(), slab);
                }
                for list in &mut sorted {
                    while let Some(slab) = list.pop_front(memory.frames()) {
                        lists.partial[band].push_back(memory.frames(), slab);
                    }
                }
            }
        }
    }

    pub(crate) fn discard_empty(&self, memory: &SlabMemory, unlisted: &mut UnlistedSlabs) {
        self.lists.lock().take_empty_slabs(memory, unlisted);
    }

    /// `keep(true)` keeps all slabs on their lists, and prevents the destruction of the cache, until `keep(false)`.
    /// Calls of `keep` may be nested.
    pub(crate) fn keep(&self, keep: bool) {
        let keepers = &self.lists.lock().kept;
        // In the child of a fork, the number of callers that keep slabs may already be 0.
        keepers.set(if keep { keepers.get() + 1 } else { keepers.get().saturating_sub(1) });
    }
    /// Forgets, in the child of a fork, other threads that kept slabs or destructed objects.
    ///
    /// # Safety
    /// The calling thread must hold the lock, as [`Fork::forget_other_threads`](crate::Fork::forget_other_threads)
    /// requires.
    pub(crate) unsafe fn forget_other_threads(&self) {
        // SAFETY: by contract, this thread holds the lock.
        if let Some(lists) = unsafe { self.lists.held() } {
            lists.kept.set(0);
            lists.lost.add(lists.destructing.get());
            lists.destructing.set(0);
        }
    }

    pub(crate) fn count(&self) -> NodeCount {
        self.lists.lock().count()
    }

    /// Takes all nodes' locks, in ascending order. A fork is the only other holder of several node locks, and takes a
    /// cache's locks in the same order.
    pub(crate) fn lock_all_nodes(nodes: &[Self]) -> [Option<MutexGuard<'_, Lists>>; MAX_NODES as usize] {
        let mut all = [const { None }; MAX_NODES as usize];
        for (guard, node) in all.iter_mut().zip(nodes) {
            *guard = Some(node.lists.lock_nested());
        }
        all
    }

    /// Closes all nodes of a cache if no object of the cache is in use. The caller then owns the cache's slabs, and no
    /// slab can be added.
    ///
    /// # Errors
    /// If objects are in use, nothing changes. In this case, the error has the number of objects in use, and of free
    /// objects that threads are destructing.
    pub(crate) fn close(
        nodes: &[Self],
        memory: &SlabMemory,
        unlisted: &mut UnlistedSlabs,
    ) -> Result<(), (u64, u64)> {
        let mut all = Self::lock_all_nodes(nodes);
        let sum = |count: fn(&Lists) -> u64| all.iter().flatten().map(|lists| count(lists)).sum::<u64>();
        let (out, destructing) =
            (sum(|lists| lists.used_objects() + lists.kept.get()), sum(|lists| lists.destructing.get()));
        if out > 0 {
            return Err((out - destructing, destructing));
        }
        for lists in all.iter_mut().flatten() {
            lists.closed = true;
            lists.take_empty_slabs(memory, unlisted);
            lists.take_lost_slabs(memory, unlisted);
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lists.lock().closed
    }

    /// Records the objects in use, slab by slab, until `out` is full. Returns `true` if `out` had room for all objects.
    pub(crate) fn live(&self, memory: &SlabMemory, out: &mut Live) -> bool {
        let lists = self.lists.lock();
        let NodeCount { full, partial, objects, .. } = lists.count();
        if !out.has_room(full + partial, objects) {
            return false;
        }
        for list in core::iter::once(&lists.full).chain(&lists.partial) {
            // SAFETY: this thread holds the lock, which protects listed frames and their slabs.
            unsafe {
                for slab in list.iter(memory.frames()) {
                    let words = out.slab(memory.pages.address(slab));
                    memory.slab(slab).allocated(|word| words.push(word));
                }
            }
        }
        true
    }

    /// Calls `see` for each slab with its list's state, its fill, and `true` if the slab's head and bitmap agree.
    pub(crate) fn walk(&self, memory: &SlabMemory, mut see: impl FnMut(Pfn, State, Fill, bool)) -> NodeCount {
        let lists = self.lists.lock();
        let partial = lists.partial.iter().enumerate().map(|(band, list)| (State::Partial(band), list));
        for (state, list) in
            [(State::Empty, &lists.empty), (State::Full, &lists.full)].into_iter().chain(partial)
        {
            // SAFETY: this thread holds the lock, which protects listed frames and their slabs.
            unsafe {
                for slab in list.iter(memory.frames()) {
                    see(slab, state, memory.slab(slab).fill(), memory.slab(slab).agrees());
                }
            }
        }
        lists.count()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Fork, Gfp, KmemCache, Magazines, Subsystem};

    #[test]
    fn description_for_debuggers_contains_the_addresses_of_the_lists() {
        let nodes =
            [(); 2].map(|()| Node::new(None, Geometry::new(64, 0, &crate::OrderRule::for_cpus(2)).unwrap()));
        let gdb::Nodes { lists: places, node, len } = Node::places(&nodes);
        assert_eq!((node, len), (size_of::<Node>(), 2));
        let lists = nodes[0].lists.lock();
        let [full, partial, empty] =
            [&lists.full, &lists.partial[0], &lists.empty].map(|list| core::ptr::from_ref(list).addr());
        assert_eq!(places, [full, partial, empty]);
    }

    /// Regression test: a discard pass returned too few pages, because it returned only the pages above its threshold
    /// and raised the threshold by a quarter.
    #[test]
    fn frees_discard_unused_pages_of_partial_slabs() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache =
            KmemCache::builder("bodies", 2560).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let (each, pages) = (cache.geometry().objects(), cache.geometry().order().pages() as usize);
        assert!(pages > 1, "the slabs must have pages to discard");
        let objects: Vec<_> = (0..1000 * each).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        for (n, object) in objects.iter().enumerate() {
            if n % each > 0 {
                // SAFETY: the object was allocated above, and is freed once.
                unsafe { cache.free(*object) };
            }
        }
        let info = cache.info();
        assert_eq!((info.slabs, info.used), (1000, 1000), "each slab has one object");
        // An object is on at most two pages. The node may keep a quarter of the pages in use, plus a quarter more
        // between two passes.
        assert!(info.discarded as usize > 1000 * (pages - 2) * 9 / 10, "{info:?}");
        for object in objects.iter().step_by(each) {
            // SAFETY: the object was allocated above, and is freed once.
            unsafe { cache.free(*object) };
        }
    }

    #[test]
    fn forked_child_keeps_no_unlisted_slabs() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("kept", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let keep = |keep| cache.cache().nodes().iter().for_each(|node| node.keep(keep));
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        keep(true);
        assert_eq!((cache.shrink(), cache.destroy().is_err()), (0, true));
        // SAFETY: the test continues as a forked child's only thread, and no other thread uses the subsystem.
        unsafe {
            subsystem.before_fork();
            subsystem.after_fork_in_child();
        }
        assert_eq!(cache.shrink(), 1);
        // This thread, which kept the slabs listed, continues in the child.
        keep(false);
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        assert_eq!(cache.shrink(), 1);
    }
}
