//! The slabs of a cache: their creation and charge, the construction, allocation and free of their objects, and their
//! release.

use super::{Cache, Object};
use crate::cache::node::{BANDS, FreeOptions, FreedState, Node, ObjectIndex, State, UnlistedSlabs};
use crate::cache::page_owners;
use crate::debug::corruption::CorruptionKind;
use crate::debug::faults::{BITMAP, CONSTRUCTOR, CONSTRUCTOR_PANIC, Call, LIMIT};
use crate::debug::flags::SlabDebug;
use crate::error::AllocError;
use crate::harden::Hardened;
use crate::memory::page_classes::PageRecord;
use crate::memory::slab::{Constructed, MAX_INDIVIDUALLY_CONSTRUCTED};
use core::any::Any;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use uslab_buddy::region::address_above;
use uslab_buddy::{Gfp, Order, Pfn};
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::{assert_unlocked, catch_panic, contain_panic, tell, thread_local};
#[cfg(any(not(loom), crossbeam_loom))]
use uslab_magazine::tracepoints::OperationKind;
use uslab_magazine::tracepoints::Step;

/// Number of objects freed per lock acquisition, small enough that other threads wait little and large enough that the
/// lock costs little per object.
const BATCH: usize = 32;

/// Flags of an object's allocation that also apply to the allocation of its slab's pages.
const INHERITED_GFP: Gfp = Gfp::HIGH
    .union(Gfp::NOWAIT)
    .union(Gfp::NORETRY)
    .union(Gfp::NOIO)
    .union(Gfp::NOFS)
    .union(Gfp::THIS_NODE)
    .union(Gfp::MEMALLOC);

/// Payload of a constructor's panic. If a panic is not resumed, its payload is leaked, because the payload's `Drop` may
/// panic.
type Panic = ManuallyDrop<Box<dyn Any + Send>>;

pub(super) enum ConstructionFailure {
    Error(AllocError),
    Panic(Panic),
}

impl From<AllocError> for ConstructionFailure {
    fn from(error: AllocError) -> Self {
        Self::Error(error)
    }
}

thread_local! {
    /// True while this thread runs a destructor of any cache.
    pub(super) static IS_DESTRUCTING: Cell<bool> = const { Cell::new(false) };
}

impl Cache {
    pub(super) fn object(&self, ObjectIndex { slab, index }: ObjectIndex) -> Object {
        let base = self.core.memory.pages.address(slab);
        // SAFETY: the object is inside the slab's block.
        Object(unsafe { address_above(base, self.geometry().offset(index)) })
    }

    /// Takes up to `max` objects from listed slabs of `node`. An unconstructed object is taken alone, so that the
    /// caller can construct it.
    pub(super) fn alloc_from_slabs(
        &self,
        op: &Operation,
        node: u32,
        max: usize,
        put: &mut impl FnMut(Object),
    ) -> Result<usize, ConstructionFailure> {
        let node = &self.nodes[node as usize];
        if !self.constructs_on_allocation() {
            return Ok(node.alloc(op, &self.core.memory, max, true, |place| put(self.object(place))).0);
        }
        let mut last = None;
        let (taken, is_new) = node.alloc(op, &self.core.memory, max, true, |place| {
            last.replace(place).into_iter().for_each(|place| put(self.object(place)));
        });
        if let Some(place) = last {
            if is_new {
                self.construct(self.object(place))
                    .inspect_err(|_| _ = self.free_destructed_objects(op, &[place], FreedState::Refused))?;
            }
            put(self.object(place));
        }
        Ok(taken)
    }

    /// Frees objects to their slabs. Returns the number of slabs released.
    pub(super) fn free_to_slabs(&self, op: &Operation, mut objects: impl Iterator<Item = Object>) -> usize {
        let (memory, mut slabs) = (&self.core.memory, 0);
        loop {
            let mut batch = [None; BATCH];
            let len = self.find_object_positions(&mut objects, &mut batch);
            let mut start = 0;
            while let Some(&Some((node, _))) = batch[..len].get(start) {
                let run = batch[start..len].iter().map_while(|entry| entry.filter(|(n, _)| *n == node));
                let (mut unlisted, mut refused, mut count) = (UnlistedSlabs::default(), [None; BATCH], 0);
                let mut places = 0;
                // SAFETY: `place` found each object in a slab of this cache. The object's bit is set, so the slab stays
                // listed. By contract, the object is not free yet.
                let slabs_above_minimum = unsafe {
                    self.nodes[node as usize].free(
                        op,
                        memory,
                        FreeOptions { slabs: self.min_partial, objects: FreedState::Constructed },
                        run.map(|(_, place)| place).inspect(|_| places += 1),
                        &mut unlisted,
                        |place| {
                            refused[count] = Some(place);
                            count += 1;
                        },
                    )
                };
                start += places;
                if slabs_above_minimum > 0 {
                    self.discard_unused_node_pages(&self.nodes[node as usize], slabs_above_minimum);
                }
                slabs += self.release(op, unlisted);
                for place in refused.into_iter().flatten() {
                    self.counts.late_corruptions.add(1);
                    self.refuse(CorruptionKind::DoubleFree, self.object(place).0, Some(place.index));
                }
            }
            if len < BATCH {
                self.serve(op);
                if self.has_destructor() {
                    self.core.note_freed_objects();
                }
                return slabs + self.destruct_surplus(op);
            }
            op.pause();
        }
    }

    /// Fills `batch` with the slabs and indices of the next objects, and returns how many objects it found. The call
    /// holds no lock while it takes objects from the magazine and reads their frames.
    fn find_object_positions(
        &self,
        objects: &mut impl Iterator<Item = Object>,
        batch: &mut [Option<(u32, ObjectIndex)>; BATCH],
    ) -> usize {
        let mut len = 0;
        for object in objects {
            match self.place(object) {
                Ok(place) => {
                    self.weigh(object);
                    batch[len] = Some((self.core.memory.pages.node_of(place.slab), place));
                    len += 1;
                }
                Err(kind) => {
                    self.counts.late_corruptions.add(1);
                    self.refuse(kind, object.0, None);
                }
            }
            if len == BATCH {
                break;
            }
        }
        len
    }

    /// Frees unconstructed objects of one node to their slabs. Returns the number of slabs released.
    fn free_destructed_objects(&self, op: &Operation, places: &[ObjectIndex], back: FreedState) -> usize {
        let Some(ObjectIndex { slab, .. }) = places.first() else { return 0 };
        let (memory, mut unlisted) = (&self.core.memory, UnlistedSlabs::default());
        let node = &self.nodes[memory.pages.node_of(*slab) as usize];
        let refused = |place| unreachable!("the caller must have taken {place:?}");
        // SAFETY: the caller took the objects, so their bits are set and the slab is listed.
        unsafe {
            let stays = FreeOptions { slabs: self.min_partial, objects: back };
            node.free(op, memory, stays, places.iter().copied(), &mut unlisted, refused)
        };
        let slabs = self.release(op, unlisted);
        self.serve(op);
        slabs
    }

    /// Frees the memory that free objects own, by destructing the free objects of slabs that stay allocated. Returns
    /// the number of slabs released.
    ///
    /// Objects of a type-stable cache stay constructed, because readers may access free objects.
    pub(super) fn destruct_free_objects(&self, op: &Operation) -> usize {
        if !self.constructs_on_allocation() || self.config.type_stable || !self.has_destructor() {
            return 0;
        }
        let states = (0..BANDS).map(State::Partial).chain([State::Empty]);
        states
            .map(|state| {
                self.nodes
                    .iter()
                    .map(|node| self.destruct_free_objects_in_state(op, node, state))
                    .sum::<usize>()
            })
            .sum()
    }
    fn destruct_free_objects_in_state(&self, op: &Operation, node: &Node, state: State) -> usize {
        let (mut visits, mut slabs) = (node.len_of(state), 0);
        let mut indices = [0_u16; MAX_INDIVIDUALLY_CONSTRUCTED];
        loop {
            let mut taken_count = 0;
            let add_index = |index| {
                indices[taken_count] = index as u16;
                taken_count += 1;
            };
            let Some(slab) = node.take_constructed(&self.core.memory, state, &mut visits, add_index) else {
                return slabs;
            };
            for batch in indices[..taken_count].chunks(BATCH) {
                let mut places = [ObjectIndex { slab, index: 0 }; BATCH];
                for (place, index) in places.iter_mut().zip(batch) {
                    place.index = usize::from(*index);
                    self.destruct_and_zero_object(self.object(*place));
                }
                slabs += self.free_destructed_objects(op, &places[..batch.len()], FreedState::Destructed);
            }
        }
    }

    /// Returns `true` if the contents of free objects matter to a constructor, a reader, a validation, or a neighbour's
    /// canary.
    fn keeps_free_object_contents(&self) -> bool {
        if self.hardened.as_ref().is_some_and(Hardened::can_check_used_objects) {
            return true;
        }
        let watched = SlabDebug::RED_ZONE.union(SlabDebug::POISON);
        self.has_hooks()
            || self.config.type_stable
            || self.config.no_access
            || self.config.debug.intersects(watched)
    }
    /// Returns up to `most` unused pages of the node's slabs to the system. Returns the number of returned pages.
    fn discard_unused_node_pages(&self, node: &Node, most: u64) -> u64 {
        if self.keeps_free_object_contents() || !self.core.memory.pages.can_discard_pages() {
            return 0;
        }
        // SAFETY: the check above ensures that free objects have no contents that matter.
        unsafe { node.discard_unused(&self.core.memory, most) }
    }
    /// Discards pages that were unused throughout the reaping interval that just ended.
    pub(super) fn discard_idle_pages(&self) {
        self.nodes
            .iter()
            .for_each(|node| _ = self.discard_unused_node_pages(node, node.end_reaping_interval()));
    }
    pub(crate) fn discard_all_unused_pages(&self) {
        self.nodes.iter().for_each(|node| _ = self.discard_unused_node_pages(node, u64::MAX));
    }

    /// Allocates pages of the usual order. If pages of the usual order are not immediately available, allocates the
    /// smallest order that holds an object.
    pub(super) fn pages(&self, op: &Operation, node: u32, gfp: Gfp) -> Result<(Pfn, Order), AllocError> {
        let (order, least) = (self.geometry().order(), self.geometry().min_order());
        let mut flags = gfp & INHERITED_GFP | self.config.page_flags;
        if self.has_hooks() || self.config.zero_on_free && self.config.check_frees {
            // A constructor gets initialised bytes, so free objects must be zero.
            flags |= Gfp::ZERO;
        }
        let alloc = |order: Order, flags: Gfp| {
            let flags = if order > Order::ZERO { flags | Gfp::COMP } else { flags };
            self.core.memory.alloc_pages(op, order, flags, node).map(|pfn| (pfn, order))
        };
        if order > least {
            if let Ok(block) = alloc(order, flags | Gfp::NORETRY) {
                return Ok(block);
            }
            let block = alloc(least, flags)?;
            self.counts.order_fallbacks.add(1);
            return Ok(block);
        }
        Ok(alloc(order, flags)?)
    }

    /// Returns `true` if an object is constructed when it leaves its slab, instead of together with its slab.
    pub(super) fn constructs_on_allocation(&self) -> bool {
        self.config.constructed == Constructed::OneByOne
    }
    fn has_destructor(&self) -> bool {
        self.config.hooks.as_ref().is_some_and(|hooks| hooks.destruct.is_some())
    }

    /// Constructs an object that no other thread can access. On failure, the object's bytes are zeroed again.
    pub(super) fn construct(&self, object: Object) -> Result<(), ConstructionFailure> {
        let Some(hooks) = &self.config.hooks else { return Ok(()) };
        assert_unlocked();
        self.charge_object()?;
        let call = Call::of(CONSTRUCTOR, self.geometry().object_size());
        let constructed = if self.core.faults.fires(call.cache(self.name())) {
            Err(Box::new(CONSTRUCTOR_PANIC) as Box<dyn Any + Send>)
        } else {
            catch_panic(|| (hooks.construct)(object.0))
        };
        let refusal = match constructed {
            Ok(true) => {
                self.counts.constructed.add(1);
                if self.has_destructor() {
                    self.core.note_new_object();
                }
                self.weigh(object);
                return Ok(());
            }
            Ok(false) => AllocError::Constructor.into(),
            Err(panic) => ConstructionFailure::Panic(Panic::new(panic)),
        };
        self.zero(object);
        self.uncharge_object();
        Err(refusal)
    }

    /// Destructs an object that no other thread can access. A panic ends only the destructor. The panic hook has
    /// already reported the panic, which the caller cannot handle, because it is freeing an unrelated object.
    pub(super) fn destruct(&self, object: Object) {
        let Some(hooks) = &self.config.hooks else { return };
        if let Some(destruct) = &hooks.destruct {
            assert_unlocked();
            let outer = IS_DESTRUCTING.with(|destructing| destructing.replace(true));
            contain_panic(|| destruct(object.0));
            IS_DESTRUCTING.with(|destructing| destructing.set(outer));
            self.counts.destructed.add(1);
        }
        self.uncharge_object();
    }
    /// Destructs an object whose slab stays allocated, and zeroes the object for the next constructor.
    fn destruct_and_zero_object(&self, object: Object) {
        self.destruct(object);
        self.zero(object);
    }
    fn zero(&self, object: Object) {
        // SAFETY: only the caller has the object, which is not constructed and has `object_size` bytes.
        unsafe { object.0.write_bytes(0, self.geometry().object_size()) };
    }

    /// Charges one more slab to the cache's limit and to its account, if both have room.
    pub(super) fn charge(&self) -> Result<(), AllocError> {
        let bytes = self.geometry().order().bytes();
        // The cache's own limit is charged first. Undoing an account's charge notifies waiters, which may include the
        // caller.
        if self.config.limit.is_some_and(|slabs| self.counts.charge.load(Relaxed) >= slabs) {
            return Err(self.limit_error());
        }
        self.config.account.as_ref().map_or(Ok(()), |account| account.charge(bytes))?;
        self.charge_slab().inspect_err(|_| self.uncharge_account(bytes))
    }
    fn charge_slab(&self) -> Result<(), AllocError> {
        // Relaxed: the charge publishes nothing about the slabs.
        let mut charged = self.counts.charge.load(Relaxed);
        let call = Call::of(LIMIT, self.geometry().order().bytes());
        if self.core.faults.fires(call.cache(self.name())) {
            return Err(AllocError::CacheLimit { slabs: charged });
        }
        loop {
            if let Some(limit) = self.config.limit
                && charged >= limit
            {
                return Err(AllocError::CacheLimit { slabs: limit });
            }
            match self.counts.charge.compare_exchange_weak(charged, charged + 1, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => charged = now,
            }
        }
    }
    pub(super) fn uncharge(&self, order: Order) {
        // Acquire: pairs with the Release of `touch_charge_for_waiter`. The charge is reduced before waiters are
        // notified, because notified waiters read it.
        self.counts.charge.fetch_sub(1, Acquire);
        self.uncharge_account(order.bytes());
        self.let_first_waiter_grow();
    }
    /// Adds 0 to the charge on behalf of a waiter. A thread that decrements the charge later sees the waiter, and the
    /// waiter sees every earlier decrement.
    pub(super) fn touch_charge_for_waiter(&self) {
        // Release: pairs with the Acquire of `uncharge`.
        self.counts.charge.fetch_add(0, Release);
    }
    pub(super) fn limit_error(&self) -> AllocError {
        let charged = self.counts.charge.load(Relaxed);
        match (&self.config.account, self.config.limit) {
            (_, Some(slabs)) if charged >= slabs => AllocError::CacheLimit { slabs },
            (Some(account), _) => account.error(),
            (None, limit) => AllocError::CacheLimit { slabs: limit.unwrap_or(charged) },
        }
    }

    /// Frees slabs to the page allocator, immediately or after a grace period. Returns the number of freed slabs.
    pub(super) fn release(&self, op: &Operation, mut slabs: UnlistedSlabs) -> usize {
        core::iter::from_fn(|| slabs.pop(&self.core.memory))
            .map(|slab| self.release_unlisted_slab(op, slab))
            .count()
    }

    pub(super) fn release_unlisted_slab(&self, op: &Operation, slab: Pfn) {
        #[cfg(any(not(loom), crossbeam_loom))]
        if self.config.type_stable
            && let Some(cache) = self.keep_alive()
        {
            assert_unlocked();
            let pages = u64::from(self.core.memory.frames().frame(slab).state().order().pages());
            self.begin_grace(&self.counts.grace);
            self.counts.grace_pages.add(pages);
            crate::reclaim::rcu::run_after_grace_period(move || {
                // The count is reduced before the pages are freed, because the child of a fork in between would
                // otherwise count the pages twice.
                cache.counts.grace_pages.sub(pages);
                // The deferred release is not part of a caller's operation.
                let ended =
                    contain_panic(|| cache.free_slab_pages(&cache.operation(OperationKind::Reclaim), slab));
                // A thread that waits until this count is 0 finds all other work done except the uncharge, which
                // notifies waiters separately. In the child of a fork in between, a lost slab may stay charged, but the
                // child never waits for a slab that does not exist. Relaxed: the count publishes no other data.
                cache.counts.grace.fetch_sub(1, Relaxed);
                ended.flatten().into_iter().for_each(|order| cache.uncharge(order));
            });
            return;
        }
        self.free_slab_pages(op, slab).into_iter().for_each(|order| self.uncharge(order));
    }

    /// Makes a slab inaccessible if the cache's users need only the addresses of its objects. Returns `false` if the
    /// system refuses. If the cache's objects are accessible, the slab gets a guard page, if the system permits it.
    pub(super) fn make_slab_inaccessible(&self, slab: Pfn, order: Order) -> bool {
        let pages = &self.core.memory.pages;
        let guarded = self.has_guard_page(slab) && self.core.mappings.can_map_guard_pages();
        // SAFETY: no object is in the last page.
        if guarded && !unsafe { pages.guard(slab, order, true) } {
            self.core.mappings.refuse();
        }
        // SAFETY: with `no_access`, the bytes of the cache's slabs are never accessed.
        !self.config.no_access || unsafe { pages.protect(slab, order, false) }
    }
    /// Makes the hidden parts of a slab accessible again; returns `false` if the system refuses.
    pub(super) fn make_slab_accessible(&self, slab: Pfn, order: Order) -> bool {
        let pages = &self.core.memory.pages;
        // SAFETY: no object of the slab is in use.
        unsafe {
            (!self.config.no_access || pages.protect(slab, order, true))
                && (!self.has_guard_page(slab) || pages.guard(slab, order, false))
        }
    }
    /// Returns `true` if the slab ends in a guard page. Only slabs in the first pages have guard pages, because each
    /// guard page uses two of the limited number of mappings.
    fn has_guard_page(&self, slab: Pfn) -> bool {
        self.geometry().guard() > 0 && slab.get() < self.core.mappings.guarded_page_count()
    }
    /// Records the page class of the slab's pages; returns `false` if memory is short.
    pub(super) fn record_page_class(&self, _op: &Operation, _slab: Pfn, _order: Order) -> bool {
        if let Some(known) = self.page_class_record(_order) {
            let (first, pages) = (_slab.get() as usize, _order.pages() as usize);
            // SAFETY: all objects of the slab belong to this cache.
            return unsafe { self.core.memory.classes.set(_op, first, pages, known) };
        }
        true
    }
    fn forget_page_class(&self, _slab: Pfn, _order: Order) {
        if self.page_class_record(_order).is_some() {
            // SAFETY: `record_page_class` was called for this slab, all of whose objects belong to this cache.
            unsafe { self.core.memory.classes.clear(_slab.get() as usize, _order.pages() as usize) };
        }
    }
    /// Returns the page class to record for a slab of the given order. Lookups assume that slabs have the usual order.
    /// An object in a slab of another order is found through its page's frame.
    fn page_class_record(&self, order: Order) -> Option<PageRecord> {
        let class = self.config.page_class.filter(|_| order == self.geometry().order())?;
        let [_, frees, _] = self.fast_paths();
        Some(PageRecord::new(class, frees.stack()))
    }

    /// Records the cache that owns a slab's pages, so that a box of a typed cache finds its cache.
    pub(super) fn record_page_owner(&self, slab: Pfn, order: Order) -> bool {
        if !self.has_hooks() {
            return true;
        }
        let (first, pages) = (self.core.memory.pages.address(slab), order.pages() as usize);
        !self.core.faults.fires(Call::of(BITMAP, pages * size_of::<*mut Self>()).cache(self.name()))
            && page_owners::set(first, pages, self.owner().cast(), self.core.backend)
    }

    /// Frees the pages of a slab that no other thread knows. The caller uncharges the slab.
    fn free_slab_pages(&self, op: &Operation, slab: Pfn) -> Option<Order> {
        tell!(op: Step::SlabReleased { slab: slab.get() });
        let memory = &self.core.memory;
        let order = memory.frames().frame(slab).state().order();
        // SAFETY: only the caller knows the slab.
        for index in unsafe { memory.slab(slab).constructed() } {
            self.destruct(self.object(ObjectIndex { slab, index }));
        }
        // SAFETY: only the caller knows the block.
        unsafe { memory.set_owner(slab, order, core::ptr::null_mut()) };
        self.forget_page_class(slab, order);
        if self.checked.is_some() {
            self.check_and_free_records(slab, order);
        }
        if !self.make_slab_accessible(slab, order) {
            // The pages stay inaccessible, so they cannot be freed.
            return None;
        }
        // SAFETY: `pages` allocated the slab with this order. All objects of the slab are free, and the slab is on no
        // list.
        unsafe { memory.free_pages(op, slab, order) };
        self.core.note_freed_pages();
        self.counts.released.add(1);
        self.counts.pages.sub(u64::from(order.pages()));
        Some(order)
    }
}
