//! Objects of a cache with debug flags beyond checked frees: red zones, poison, users, traces ([`flags`](crate::debug::flags)).
//!
//! The record of an object is stored next to the object's tag ([`tracks`](crate::debug::tracks)); only red zones are in
//! the slab. The record and the red zones of an object belong to the thread that has the object: to the allocating
//! thread until the allocation returns, and to the freeing thread after it has taken the tag. No lock is therefore
//! needed to access an object's record and red zones, or to report damage.

use super::alloc::BULK_BATCH;
use super::checked::{Checked, Debugged};
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
    /// Number of damages plus number of repairs, as SLUB's tests count errors.
    pub fn errors(&self) -> u64 {
        self.damages + self.repairs
    }
}

impl Cache {
    fn debugged(&self) -> Option<(&Checked, &Debugged)> {
        let checked = self.checked.as_ref()?;
        Some((checked, checked.debugged.as_ref()?))
    }
    fn record<'a>(
        &'a self,
        checked: &'a Checked,
        debugged: &Debugged,
        place: ObjectIndex,
    ) -> Option<&'a Record> {
        // SAFETY: `cover_slab` made records for the slab, which exists as long as any of its objects is
        // allocated.
        debugged.has_records().then(|| unsafe { checked.tags.tracks.record(place.slab, place.index) })
    }
    /// Number of bytes that the object's user requested.
    fn used_bytes(&self, record: Option<&Record>) -> usize {
        record.map_or(self.geometry().object_size(), Record::size)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn debug_alloc(&self, checked: &Checked, debugged: &Debugged, object: Object) {
        let Ok(place) = self.place(object) else { return };
        let record = self.record(checked, debugged, place);
        let size = self.geometry().object_size();
        // SAFETY: the object belongs to the cache, and has no user yet.
        unsafe {
            debugged.watch.inspect(object.0, State::Free, |damage| self.on_damage(place, damage));
            debugged.watch.fill(object.0, State::InUse(size));
        }
        if let Some(record) = record {
            record.set_size(size);
            self.record_event(debugged, record, TrackEvent::Alloc);
        }
        self.print_event(debugged, "alloc", object);
    }
    #[cold]
    #[inline(never)]
    pub(super) fn debug_free(&self, checked: &Checked, debugged: &Debugged, object: Object) {
        let Ok(place) = self.place(object) else { return };
        let record = self.record(checked, debugged, place);
        let state = State::InUse(self.used_bytes(record));
        // SAFETY: the object belongs to the cache and was freed by its user, and this thread took its tag.
        unsafe {
            debugged.watch.inspect(object.0, state, |damage| self.on_damage(place, damage));
            debugged.watch.fill(object.0, State::Free);
        }
        if let Some(record) = record {
            self.record_event(debugged, record, TrackEvent::Free);
        }
        self.print_event(debugged, "free", object);
    }
    fn record_event(&self, debugged: &Debugged, record: &Record, event: TrackEvent) {
        if debugged.flags.contains(SlabDebug::USERS) {
            record.record_event(event, self.core.cpus.current());
        }
    }
    fn print_event(&self, debugged: &Debugged, event: &str, Object(object): Object) {
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
    pub(super) fn narrow_access(&self, object: NonNull<u8>, size: usize) {
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
        let place = self.place(Object(object)).ok().filter(|_| is_valid_size && self.is_zoned());
        let is_in_use = checked.tags.is_out(object, checked.tag);
        let Some((place, record)) =
            place.and_then(|place| Some((place, self.record(checked, debugged, place)?)))
        else {
            return false;
        };
        if is_in_use {
            let old = record.size();
            // SAFETY: the caller is the object's user.
            unsafe {
                debugged.watch.inspect(object, State::InUse(old), |damage| self.on_damage(place, damage));
                debugged.watch.resize(object, old, size, zero);
            }
            record.set_size(size);
        }
        is_in_use
    }
    pub(crate) fn is_zoned(&self) -> bool {
        self.geometry().lead() > 0
    }
    /// Number of bytes that the user of the given object may access.
    pub(super) fn usable_bytes(&self, place: ObjectIndex) -> usize {
        match self.debugged() {
            Some((checked, debugged)) if self.is_zoned() => {
                self.used_bytes(self.record(checked, debugged, place))
            }
            _ => self.geometry().usable(),
        }
    }

    /// Byte range that the objects and red zones of a slab with `objects` objects occupy, from the slab's
    /// start.
    fn watched_range(&self, debugged: &Debugged, objects: usize) -> Range<usize> {
        let geometry = self.geometry();
        geometry.lead() - debugged.watch.left..geometry.offset(objects) - debugged.watch.left
    }
    /// Reserves address space for the records of a new slab; returns `false` if addresses are limited and used up.
    pub(super) fn has_tables(&self, slab: Pfn, order: Order) -> bool {
        let (memory, end) = (&self.core.memory, (slab.get() + order.pages()) as usize);
        !memory.pages.has_unmapped_pages()
            || memory.grow_side_table(end)
                && self.checked.as_ref().is_none_or(|checked| checked.tags.grow(&memory.pages, end))
    }
    /// Makes the records of a new slab, and fills its watched bytes; returns `false` if memory is short.
    pub(super) fn cover_slab(&self, op: &Operation, slab: Pfn, order: Order, objects: usize) -> bool {
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
                fill_padding(base, self.watched_range(debugged, objects), self.watched_bytes(order));
                (0..objects).for_each(|index| {
                    debugged.watch.fill(self.object(ObjectIndex { slab, index }).0, State::Free);
                });
            }
        }
        true
    }
    /// Checks the padding of a slab that is about to be freed, and frees its records.
    pub(super) fn uncover_slab(&self, slab: Pfn, order: Order) {
        let Some((checked, debugged)) = self.debugged() else { return };
        self.inspect_padding(debugged, slab, order);
        // Waits until `search_neighbours` has released the node's lock; later searches see that the slab no longer
        // belongs to the cache.
        drop(self.nodes[self.core.memory.pages.node_of(slab) as usize].lists().lock());
        if debugged.has_records() {
            // SAFETY: the records were made with the slab, and none of the slab's objects is allocated.
            unsafe { checked.tags.tracks.uncover(slab) };
        }
    }
    /// Number of accessible bytes of a slab.
    fn watched_bytes(&self, order: Order) -> usize {
        order.bytes() - self.geometry().guard()
    }
    fn inspect_padding(&self, debugged: &Debugged, slab: Pfn, order: Order) -> u64 {
        if !debugged.watch.is_on() {
            return 0;
        }
        let base = self.core.memory.pages.address(slab);
        let objects = self.watched_range(debugged, self.geometry().objects_at(order));
        let see = |damage| self.on_damage(ObjectIndex { slab, index: 0 }, damage);
        // SAFETY: the slab belongs to the cache and has the given order, and no thread writes to bytes outside of
        // objects.
        unsafe { inspect_padding(base, objects, self.watched_bytes(order), see) }
    }

    /// Reports damage to an object, or to the padding of its slab.
    #[cold]
    fn on_damage(&self, place: ObjectIndex, damage: Damage) {
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
    /// Describes an object, with its bytes if more than its address is known. The slab must exist during the whole
    /// call.
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
    /// Describes the cache's object that contains `address`.
    pub(super) fn search_neighbours(&self, address: NonNull<u8>) -> Option<(Bytes, ObjectReport<'static>)> {
        let pages = &self.core.memory.pages;
        let pfn = pages.pfn_of(address.as_ptr())?;
        // A slab loses its owner before `uncover_slab` takes the node's lock.
        let _lists = self.nodes[pages.node_of(pfn) as usize].lists().lock();
        let is_ours = self.core.memory.frames().frame(pfn).owner() == self.owner();
        self.describe(is_ours.then(|| self.place_around(address))??, None)
    }

    /// Calls `each` for each listed slab, under the lock of the slab's node, so that the slab continues to exist.
    /// `many` estimates the number of results.
    fn collect_slabs<T>(
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
        let _kept = SlabsKept::new(self);
        for (slab, order) in self.collect_slabs(NodeCount::slabs, |slab, order, put| put((slab, order))) {
            found.damages += self.inspect_padding(debugged, slab, order);
            for index in 0..self.geometry().objects_at(order) {
                let place = ObjectIndex { slab, index };
                let Object(object) = self.object(place);
                let record = self.record(checked, debugged, place);
                let state = match checked.tags.is_out(object, checked.tag) {
                    true => State::InUse(self.used_bytes(record)),
                    false => State::Free,
                };
                found.objects += 1;
                // SAFETY: the object is in a slab that stays listed. By contract, no other thread uses the
                // cache.
                found.damages +=
                    unsafe { debugged.watch.inspect(object, state, |damage| self.on_damage(place, damage)) };
            }
        }
        found.repairs = found.damages;
        found
    }

    /// Calls `of` for each object in use, if frees are checked. `of` must not allocate or lock.
    pub(crate) fn in_use<T>(&self, event: TrackEvent, of: impl Fn(ObjectInUse) -> T) -> Vec<T> {
        let Some(checked) = &self.checked else { return Vec::new() };
        let debugged = checked.debugged.as_ref();
        self.collect_slabs(
            |count| count.inuse,
            |slab, order, put| {
                for index in 0..self.geometry().objects_at(order) {
                    let place = ObjectIndex { slab, index };
                    let Object(object) = self.object(place);
                    if checked.tags.is_out(object, checked.tag) {
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
    let (left, right, noticed) = (bytes.left_zone(), bytes.right_zone(), CallStack::save());
    ObjectReport { left, bytes: bytes.object(), right, noticed, ..*report }
}

/// An object in use, with its requested and usable sizes.
pub(crate) struct ObjectInUse {
    pub(crate) object: NonNull<u8>,
    /// Number of bytes that the user requested.
    pub(crate) asked: usize,
    /// Number of bytes that the user may use.
    pub(crate) usable: usize,
    /// The object's last event of the requested kind.
    pub(crate) track: Option<Track>,
}

/// Keeps all slabs of a cache on their lists while this value exists.
struct SlabsKept<'c>(&'c Cache);

impl<'c> SlabsKept<'c> {
    fn new(cache: &'c Cache) -> Self {
        cache.nodes().iter().for_each(|node| node.keep(true));
        Self(cache)
    }
}
impl Drop for SlabsKept<'_> {
    fn drop(&mut self) {
        self.0.nodes().iter().for_each(|node| node.keep(false));
    }
}

impl KmemCache {
    /// Checks all objects, free and in use: their red zones, their poison, and the padding of slabs must be unchanged.
    /// The call [reports](crate::corruption) damage, and then repairs it. A cache without
    /// [`RED_ZONE`](SlabDebug::RED_ZONE) and [`POISON`](SlabDebug::POISON) has nothing to check.
    ///
    /// No other thread may allocate or free during the check, because the check would report an object that is
    /// moving between a user and a slab as damaged. A reaper may run: empty slabs stay until the check ends, and
    /// [`destroy`](Self::destroy) returns [`Busy`](crate::Busy).
    ///
    /// Cost: the call reads all of the cache's memory, and takes each node's lock twice.
    #[doc(alias = "validate_slab_cache")]
    pub fn validate(&self) -> Validation {
        self.cache().validate()
    }
    /// Objects in use, grouped by the call stack of their allocation. The result is empty without
    /// [`USERS`](SlabDebug::USERS), and approximate while other threads use the cache.
    ///
    /// Cost: the call reads the record of each object under the lock of the object's node. The call
    /// allocates memory.
    pub fn alloc_traces(&self) -> Traces {
        self.cache().traces(TrackEvent::Alloc)
    }
    /// Objects in use, grouped by the call stack of the last free before their allocation; otherwise like
    /// [`alloc_traces`](Self::alloc_traces).
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
    fn object_listing_is_repeated_after_a_too_low_estimate() {
        std::thread_local! {
            static REQUESTED_BYTES: Cell<usize> = const { Cell::new(0) };
        }
        /// Number of slabs; the spare room holds only seven eighths of them.
        const SLABS: usize = 16 * BULK_BATCH;
        /// An estimate that is too low in the first attempt.
        fn many(_: &NodeCount) -> u64 {
            (REQUESTED_BYTES.replace(REQUESTED_BYTES.get() + 1) * SLABS) as u64
        }
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("looked-at", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let found = cache.cache().collect_slabs(many, |_, _, put| (0..SLABS).for_each(put));
        assert!(found.into_iter().eq(0..SLABS));
        assert_eq!(REQUESTED_BYTES.get(), 2);
    }

    /// Regression test: while a slab was freed, a report did not find the slab's records, or read them
    /// during the free.
    #[test]
    fn object_can_be_described_while_its_slab_is_freed() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("ends", 64).slab_debug(SlabDebug::USERS).build_in(&subsystem).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        let (address, inner) = (object.addr(), cache.cache());
        assert_eq!(inner.search_neighbours(object).unwrap().1.object, address.get());
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
        subsystem.shrink();
        assert!(inner.search_neighbours(object).is_none());
        let (at, done) = (AtomicUsize::new(address.get()), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                let range = subsystem.core().memory.pages.address(Pfn::new(0));
                while !done.load(Relaxed) {
                    _ = inner.search_neighbours(range.with_addr(NonZero::new(at.load(Relaxed)).unwrap()));
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
