//! Debug checks of a cache's objects beyond checked frees: red zones, poison, users, traces
//! ([`flags`](crate::debug::flags)).
//!
//! An object's record is stored next to the object's tag, outside the slab ([`tracks`](crate::debug::tracks)). Only red
//! zones are in the slab. An object's record and red zones belong to the thread that owns the object. The allocating
//! thread owns the object until the allocation returns; the freeing thread owns it once it has taken the tag. No lock
//! is therefore needed to access an object's record and red zones, or to report damage.

use super::alloc::BULK_BATCH;
use super::checked::{Checked, ObjectDebugChecks};
use super::node::{NodeCount, ObjectIndex};
use super::{Cache, Object};
use crate::cache::kmem_cache::KmemCache;
use crate::debug::corruption::{Corruption, CorruptionKind};
use crate::debug::faults::{Call, SLAB};
use crate::debug::flags::SlabDebug;
use crate::debug::lines::Lines;
use crate::debug::report::{Bytes, ObjectReport};
use crate::debug::stacks::CallStack;
use crate::debug::traces::Traces;
use crate::debug::tracks::{Record, Track, TrackEvent, this_thread};
use crate::debug::watch::{Damage, Part, State, Watch, fill_padding, inspect_padding};
use core::fmt::Write;
use core::ops::Range;
use core::ptr::NonNull;
use uslab_buddy::{Order, Pfn};
use uslab_magazine::Operation;

/// Result of [`validate`](KmemCache::validate).
///
/// ```
/// use uslab::{Gfp, KmemCache};
/// use uslab::debug::flags::SlabDebug;
///
/// let inodes = KmemCache::builder("inode", 600).slab_debug(SlabDebug::FULL).build()?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// let found = inodes.validate();
/// assert!(found.objects > 1 && found.errors() == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Validation {
    /// Number of objects checked, both free and in use.
    pub objects: u64,
    /// Number of byte ranges of objects or slabs that an invalid write overwrote; `validate` reports each range.
    pub damages: u64,
    /// Number of damaged byte ranges that were repaired.
    pub repairs: u64,
}

impl Validation {
    /// Number of damages plus number of repairs, which is how SLUB's tests count errors.
    pub fn errors(&self) -> u64 {
        self.damages + self.repairs
    }
}

impl Cache {
    fn debugged(&self) -> Option<(&Checked, &ObjectDebugChecks)> {
        let checked = self.checked.as_ref()?;
        Some((checked, checked.debugged.as_ref()?))
    }
    fn record<'a>(
        &'a self,
        checked: &'a Checked,
        debugged: &ObjectDebugChecks,
        place: ObjectIndex,
    ) -> Option<&'a Record> {
        // SAFETY: `create_slab_records` made records for the slab, which exists as long as any of its objects is
        // allocated.
        debugged.has_records().then(|| unsafe { checked.tags.tracks.record(place.slab, place.index) })
    }
    /// Returns the number of bytes that the object's user requested.
    fn used_bytes(&self, record: Option<&Record>) -> usize {
        record.map_or(self.geometry().object_size(), Record::size)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn debug_alloc(&self, checked: &Checked, debugged: &ObjectDebugChecks, object: Object) {
        let Ok(place) = self.place(object) else { return };
        let record = self.record(checked, debugged, place);
        let size = self.geometry().object_size();
        // SAFETY: the object belongs to the cache, and has no user yet.
        unsafe {
            debugged.watch.inspect(object.0, State::Free, |damage| self.report_damage(place, damage));
            debugged.watch.fill(object.0, State::InUse(size));
        }
        if let Some(record) = record {
            record.set_size(size);
            self.record_event(debugged, record, TrackEvent::Alloc);
        }
        self.print_debug_event(debugged, "alloc", object);
    }
    #[cold]
    #[inline(never)]
    pub(super) fn debug_free(&self, checked: &Checked, debugged: &ObjectDebugChecks, object: Object) {
        let Ok(place) = self.place(object) else { return };
        let record = self.record(checked, debugged, place);
        let state = State::InUse(self.used_bytes(record));
        // SAFETY: the object belongs to the cache and was freed by its user, and this thread took its tag.
        unsafe {
            debugged.watch.inspect(object.0, state, |damage| self.report_damage(place, damage));
            debugged.watch.fill(object.0, State::Free);
        }
        if let Some(record) = record {
            self.record_event(debugged, record, TrackEvent::Free);
        }
        self.print_debug_event(debugged, "free", object);
    }
    fn record_event(&self, debugged: &ObjectDebugChecks, record: &Record, event: TrackEvent) {
        if debugged.flags.contains(SlabDebug::USERS) {
            record.record_event(event, self.core.cpus.current());
        }
    }
    fn print_debug_event(&self, debugged: &ObjectDebugChecks, event: &str, Object(object): Object) {
        if debugged.flags.contains(SlabDebug::TRACE) {
            let (name, thread) = (self.name(), this_thread());
            // A write error of standard error cannot be reported.
            let _ = writeln!(Lines::new(), "TRACE {name} {event} {:#x} thread={thread}", object.addr());
        }
    }
    /// Returns `true` if an injected fault refuses this allocation.
    pub(super) fn is_refused(&self) -> bool {
        let call = || Call::of(SLAB, self.geometry().object_size()).cache(self.name());
        self.debugged().is_some_and(|(_, debugged)| {
            debugged.flags.contains(SlabDebug::FAULTS) && self.core.faults.fires(call())
        })
    }

    /// Allows the user of a new object to access only its first `size` bytes.
    pub(super) fn restrict_access_to_size(&self, object: NonNull<u8>, size: usize) {
        if let Some((checked, debugged)) = self.debugged()
            && let Ok(place) = self.place(Object(object))
            && let Some(record) = self.record(checked, debugged, place)
        {
            record.set_size(size);
            // SAFETY: this thread has just allocated the object, and has not shared it.
            unsafe { debugged.watch.resize(object, size, size, false) };
        }
    }
    /// Changes the requested size of an object in use to `size`, and zeroes the added bytes if `zero` is true. Returns
    /// `false` if the object is smaller than `size` or not watched.
    pub(crate) fn resize_watched(&self, object: NonNull<u8>, size: usize, zero: bool) -> bool {
        let Some((checked, debugged)) = self.debugged() else { return false };
        let is_valid_size = (1..=self.geometry().object_size()).contains(&size);
        let place = self.place(Object(object)).ok().filter(|_| is_valid_size && self.has_red_zones());
        let is_in_use = checked.tags.is_allocated(object, checked.tag);
        let Some((place, record)) =
            place.and_then(|place| Some((place, self.record(checked, debugged, place)?)))
        else {
            return false;
        };
        if is_in_use {
            let old = record.size();
            // SAFETY: the caller is the object's user.
            unsafe {
                debugged.watch.inspect(object, State::InUse(old), |damage| self.report_damage(place, damage));
                debugged.watch.resize(object, old, size, zero);
            }
            record.set_size(size);
        }
        is_in_use
    }
    pub(crate) fn has_red_zones(&self) -> bool {
        self.geometry().lead() > 0
    }
    /// Number of bytes that the user of the object at `place` may access.
    pub(super) fn usable_bytes(&self, place: ObjectIndex) -> usize {
        match self.debugged() {
            Some((checked, debugged)) if self.has_red_zones() => {
                self.used_bytes(self.record(checked, debugged, place))
            }
            _ => self.geometry().usable(),
        }
    }

    /// Byte range of a slab, from its start, that `objects` objects and their red zones occupy.
    fn watched_byte_range(&self, debugged: &ObjectDebugChecks, objects: usize) -> Range<usize> {
        let geometry = self.geometry();
        geometry.lead() - debugged.watch.left..geometry.offset(objects) - debugged.watch.left
    }
    /// Reserves address space for a new slab's records; returns `false` if the process has no addresses left.
    pub(super) fn try_reserve_slab_records(&self, slab: Pfn, order: Order) -> bool {
        let (memory, end) = (&self.core.memory, (slab.get() + order.pages()) as usize);
        !memory.pages.has_unmapped_pages()
            || memory.grow_side_table(end)
                && self.checked.as_ref().is_none_or(|checked| checked.tags.grow(&memory.pages, end))
    }
    /// Makes the records of a new slab, and fills its watched bytes; returns `false` if memory is short.
    pub(super) fn create_slab_records(
        &self,
        op: &Operation,
        slab: Pfn,
        order: Order,
        objects: usize,
    ) -> bool {
        let Some(checked) = &self.checked else { return true };
        let Some(debugged) = &checked.debugged else { return checked.tags.cover(op, slab, order) };
        if !checked.tags.cover(op, slab, order)
            || debugged.has_records() && !checked.tags.tracks.cover(op, slab, objects, &self.core.faults)
        {
            return false;
        }
        if debugged.watch.is_on() {
            let base = self.core.memory.pages.address(slab);
            // SAFETY: only this thread has the slab, which has room for `objects` objects.
            unsafe {
                fill_padding(base, self.watched_byte_range(debugged, objects), self.watched_bytes(order));
                (0..objects).for_each(|index| {
                    debugged.watch.fill(self.object(ObjectIndex { slab, index }).0, State::Free);
                });
            }
        }
        true
    }
    /// Checks the padding of a slab that is about to be freed, and frees its records.
    pub(super) fn check_and_free_records(&self, slab: Pfn, order: Order) {
        let Some((checked, debugged)) = self.debugged() else { return };
        self.inspect_padding(debugged, slab, order);
        // Waits until `describe_object_at` has released the node's lock; later searches see that the slab no longer
        // belongs to the cache.
        drop(self.nodes[self.core.memory.pages.node_of(slab) as usize].lists().lock());
        if debugged.has_records() {
            // SAFETY: the records were made with the slab, and none of the slab's objects is allocated.
            unsafe { checked.tags.tracks.free_slab_records(slab) };
        }
    }
    /// Number of bytes of a slab, without its guard page.
    fn watched_bytes(&self, order: Order) -> usize {
        order.bytes() - self.geometry().guard()
    }
    fn inspect_padding(&self, debugged: &ObjectDebugChecks, slab: Pfn, order: Order) -> u64 {
        if !debugged.watch.is_on() {
            return 0;
        }
        let base = self.core.memory.pages.address(slab);
        let objects = self.watched_byte_range(debugged, self.geometry().objects_at(order));
        let see = |damage| self.report_damage(ObjectIndex { slab, index: 0 }, damage);
        // SAFETY: the slab belongs to the cache and has the given order, and no thread writes to bytes outside of
        // objects.
        unsafe { inspect_padding(base, objects, self.watched_bytes(order), see) }
    }

    /// Reports damage to an object, or to the padding of its slab.
    #[cold]
    fn report_damage(&self, place: ObjectIndex, damage: Damage) {
        let kind = match damage.part {
            Part::LeftRedZone | Part::RightRedZone => CorruptionKind::RedZone,
            Part::Poison => CorruptionKind::Poison,
            Part::Padding => CorruptionKind::Padding,
        };
        let padding = kind == CorruptionKind::Padding;
        let slab = self.core.memory.pages.address(place.slab);
        let address = if padding { slab } else { self.object(place).0 }.addr().get();
        self.counts.corruptions.add(1);
        let seen = self.describe(place, Some(damage));
        let report = &seen.as_ref().map(with_bytes);
        let (index, report) = ((!padding).then_some(place.index), report.as_ref());
        self.core.report(&Corruption { kind, address, cache: self.name(), owner: None, index, report });
    }
    /// Describes an object and copies its bytes for a report. Returns `None` if the cache has no debug checks. The slab
    /// must exist during the whole call.
    fn describe(&self, place: ObjectIndex, damage: Option<Damage>) -> Option<(Bytes, ObjectReport<'static>)> {
        let (checked, debugged) = self.debugged()?;
        let (memory, Object(object)) = (&self.core.memory, self.object(place));
        let order = memory.frames().frame(place.slab).state().order();
        let Watch { size, left, right, .. } = debugged.watch;
        let padding = damage.is_some_and(|damage| damage.part == Part::Padding);
        let record = self.record(checked, debugged, place).filter(|_| !padding);
        let bytes = match self.config.no_access {
            true => Bytes::NONE,
            // SAFETY: the object and its zones are in a slab of the cache. A concurrent write to the object would be an
            // error of the program.
            false => unsafe { Bytes::of(object, left, size, right) },
        };
        let report = ObjectReport {
            damage,
            slab: memory.pages.address(place.slab).addr().get(),
            slab_bytes: order.bytes(),
            objects: self.geometry().objects_at(order),
            object: if padding { 0 } else { object.addr().get() },
            size,
            left: &[],
            bytes: &[],
            right: &[],
            allocated: record.and_then(|record| record.track(TrackEvent::Alloc)),
            freed: record.and_then(|record| record.track(TrackEvent::Free)),
            noticed: CallStack::NONE,
        };
        Some((bytes, report))
    }
    /// Describes the object of this cache that contains `address`.
    pub(super) fn describe_object_at(&self, address: NonNull<u8>) -> Option<(Bytes, ObjectReport<'static>)> {
        let pages = &self.core.memory.pages;
        let pfn = pages.pfn_of(address.as_ptr())?;
        // A slab loses its owner before `check_and_free_records` takes the node's lock.
        let _lists = self.nodes[pages.node_of(pfn) as usize].lists().lock();
        let is_ours = self.core.memory.frames().frame(pfn).owner() == self.owner();
        self.describe(is_ours.then(|| self.object_index_at(address))??, None)
    }

    /// Calls `each` for each listed slab while holding the lock of the slab's node, so the slab cannot be freed. `many`
    /// estimates the number of results.
    fn collect_from_listed_slabs<T>(
        &self,
        many: fn(&NodeCount) -> u64,
        each: impl Fn(Pfn, Order, &mut dyn FnMut(T)),
    ) -> Vec<T> {
        let memory = &self.core.memory;
        loop {
            // Memory is not allocated under a node's lock, because the global allocator may need that node. The
            // allocation of the vector may itself add slabs, so the vector gets spare room.
            let expected = many(&self.count()) as usize;
            let mut found = Vec::with_capacity(expected + expected / 8 + BULK_BATCH);
            let mut all = true;
            let mut push_result = |one| match found.len() < found.capacity() {
                true => found.push(one),
                false => all = false,
            };
            for node in self.nodes() {
                node.walk(memory, |slab, _, _, _| {
                    each(slab, memory.frames().frame(slab).state().order(), &mut push_result);
                });
            }
            if all {
                return found;
            }
        }
    }

    fn validate(&self) -> Validation {
        let mut found = Validation::default();
        let Some((checked, debugged)) = self.debugged() else { return found };
        let _kept = ListedSlabsGuard::new(self);
        for (slab, order) in
            self.collect_from_listed_slabs(NodeCount::slabs, |slab, order, put| put((slab, order)))
        {
            found.damages += self.inspect_padding(debugged, slab, order);
            for index in 0..self.geometry().objects_at(order) {
                let place = ObjectIndex { slab, index };
                let Object(object) = self.object(place);
                let record = self.record(checked, debugged, place);
                let state = match checked.tags.is_allocated(object, checked.tag) {
                    true => State::InUse(self.used_bytes(record)),
                    false => State::Free,
                };
                found.objects += 1;
                // SAFETY: the object is in a slab that stays listed. By contract, no other thread uses the
                // cache.
                found.damages += unsafe {
                    debugged.watch.inspect(object, state, |damage| self.report_damage(place, damage))
                };
            }
        }
        found.repairs = found.damages;
        found
    }

    /// Calls `of` for each object in use, and returns the results. Without checked frees, the result is empty. `of`
    /// must not allocate or lock.
    pub(crate) fn in_use<T>(&self, event: TrackEvent, of: impl Fn(ObjectInUse) -> T) -> Vec<T> {
        let Some(checked) = &self.checked else { return Vec::new() };
        let debugged = checked.debugged.as_ref();
        self.collect_from_listed_slabs(
            |count| count.inuse,
            |slab, order, put| {
                for index in 0..self.geometry().objects_at(order) {
                    let place = ObjectIndex { slab, index };
                    let Object(object) = self.object(place);
                    if checked.tags.is_allocated(object, checked.tag) {
                        let record = debugged.and_then(|debugged| self.record(checked, debugged, place));
                        put(of(ObjectInUse {
                            object,
                            asked: self.used_bytes(record),
                            usable: self.usable_bytes(place),
                            track: record.and_then(|record| record.track(event)),
                        }));
                    }
                }
            },
        )
    }

    fn traces(&self, event: TrackEvent) -> Traces {
        if !self.debugged().is_some_and(|(_, debugged)| debugged.has_records()) {
            return Traces::default();
        }
        let size = self.geometry().object_size();
        let in_use =
            self.in_use(event, |object| Some((object.track?, size.saturating_sub(object.asked) as u64)));
        Traces::of(in_use.into_iter().flatten())
    }
}

pub(super) fn with_bytes<'a>((bytes, report): &'a (Bytes, ObjectReport<'static>)) -> ObjectReport<'a> {
    let (left, right, noticed) = (bytes.left_red_zone(), bytes.right_red_zone(), CallStack::save());
    ObjectReport { left, bytes: bytes.object(), right, noticed, ..*report }
}

/// An object in use, with its requested and usable sizes.
pub(crate) struct ObjectInUse {
    pub(crate) object: NonNull<u8>,
    /// Number of bytes that the user requested.
    pub(crate) asked: usize,
    /// Number of bytes that the user may use.
    pub(crate) usable: usize,
    /// The object's last event of the requested kind, if it was recorded.
    pub(crate) track: Option<Track>,
}

/// Keeps all slabs of a cache on their lists while this value exists.
struct ListedSlabsGuard<'c>(&'c Cache);

impl<'c> ListedSlabsGuard<'c> {
    fn new(cache: &'c Cache) -> Self {
        cache.nodes().iter().for_each(|node| node.keep(true));
        Self(cache)
    }
}
impl Drop for ListedSlabsGuard<'_> {
    fn drop(&mut self) {
        self.0.nodes().iter().for_each(|node| node.keep(false));
    }
}

impl KmemCache {
    /// Checks all objects, free and in use: their red zones, their poison, and the padding of slabs must be unchanged.
    /// The call [reports](crate::corruption) damage, and then repairs it. A cache without
    /// [`RED_ZONE`](SlabDebug::RED_ZONE) and [`POISON`](SlabDebug::POISON) has nothing to check.
    ///
    /// During the check, no other thread may allocate or free, because an object on its way between a user and a slab
    /// would be reported as damaged. A reaper may run during the check. Empty slabs stay until the check ends, and
    /// [`destroy`](Self::destroy) returns [`Busy`](crate::Busy).
    ///
    /// Cost: the call reads all of the cache's memory, and takes each node's lock twice.
    #[doc(alias = "validate_slab_cache")]
    pub fn validate(&self) -> Validation {
        self.cache().validate()
    }
    /// Returns the objects in use, grouped by the call stack of their allocation. The result is empty without the flag
    /// [`USERS`](SlabDebug::USERS), and approximate while other threads use the cache.
    ///
    /// Cost: the call reads each object's record under the lock of the object's node. The call allocates memory.
    pub fn alloc_traces(&self) -> Traces {
        self.cache().traces(TrackEvent::Alloc)
    }
    /// Returns the objects in use, grouped by the call stack of the last free before their allocation. The
    /// result has the form described at [`alloc_traces`](Self::alloc_traces).
    pub fn free_traces(&self) -> Traces {
        self.cache().traces(TrackEvent::Free)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, Subsystem};
    use core::cell::Cell;
    use core::num::NonZero;
    use uslab_magazine::sync::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    #[test]
    fn object_listing_is_retried_if_the_estimate_was_too_low() {
        std::thread_local! {
            static REQUESTED_BYTES: Cell<usize> = const { Cell::new(0) };
        }
        /// Number of simulated slabs. The vector's spare room holds only seven eighths of that number.
        const SLABS: usize = 16 * BULK_BATCH;
        /// An estimate of the result count that is too low in the first attempt only.
        fn estimate_too_low(_: &NodeCount) -> u64 {
            (REQUESTED_BYTES.replace(REQUESTED_BYTES.get() + 1) * SLABS) as u64
        }
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("looked-at", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let found =
            cache.cache().collect_from_listed_slabs(estimate_too_low, |_, _, put| (0..SLABS).for_each(put));
        assert!(found.into_iter().eq(0..SLABS));
        assert_eq!(REQUESTED_BYTES.get(), 2);
    }

    /// Regression test: a report of an object whose slab was being freed did not find the slab's records, or read freed
    /// records.
    #[test]
    fn object_can_be_described_while_its_slab_is_freed() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("ends", 64).slab_debug(SlabDebug::USERS).build_in(&subsystem).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        let (address, inner) = (object.addr(), cache.cache());
        assert_eq!(inner.describe_object_at(object).unwrap().1.object, address.get());
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
        subsystem.shrink();
        assert!(inner.describe_object_at(object).is_none());
        let (at, done) = (AtomicUsize::new(address.get()), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                let range = subsystem.core().memory.pages.address(Pfn::new(0));
                while !done.load(Relaxed) {
                    _ = inner.describe_object_at(range.with_addr(NonZero::new(at.load(Relaxed)).unwrap()));
                }
            });
            for _ in 0..2_000 {
                let object = cache.alloc(Gfp::KERNEL).unwrap();
                at.store(object.addr().get(), Relaxed);
                // SAFETY: the object was allocated above, and is freed once.
                unsafe { cache.free(object) };
                subsystem.shrink();
            }
            done.store(true, Relaxed);
        });
    }
}
