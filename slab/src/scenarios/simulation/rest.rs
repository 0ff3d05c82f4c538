//! Checks that a simulation runs while all threads are idle, and at its end.

use super::*;
use uslab_magazine::sync::Ordering::Relaxed;

impl World {
    /// Checks the waiters while all threads are idle. A woken waiter must take an available object. No object may be
    /// available to a waiter that was not woken.
    pub(super) fn settle(&self) {
        let mut goes_on = true;
        while core::mem::take(&mut goes_on) {
            for me in 0..self.thread_states.len() {
                let side = SimThread { world: self, me };
                let waits = std::mem::take(&mut self.thread_states[me].borrow_mut().waits);
                for mut wait in waits {
                    let was_woken = wait.bell.0.get() > 0;
                    match self.poll(&mut wait) {
                        Poll::Pending => self.thread_states[me].borrow_mut().waits.push(wait),
                        Poll::Ready(result) => {
                            assert!(was_woken, "a waiter with an object was not woken");
                            goes_on = true;
                            side.end_wait(wait, result);
                        }
                    }
                }
            }
        }
    }

    /// Checks the subsystem while all threads are idle, and compares it with the shadow model. `quiet` is true if no
    /// memory waits for readers.
    pub(super) fn census(&self, quiet: bool) {
        self.settle();
        let census = self.core().check().unwrap_or_else(|violation| panic!("census: {violation}"));
        self.subsystem.pages().tables().assert_at_rest();
        self.shadow.verify();
        self.check_limits();
        let deferred: u64 = self.core().caches.iter().map(|cache| cache.deferred().load(Relaxed)).sum();
        let reserve = self.world_parts.borrow().pool.clone().map_or(0, |pool| pool.reserve().0 as u64);
        let hives: usize = self
            .thread_states
            .iter()
            .map(|side| side.borrow().hive.as_ref().map_or(0, |hive| hive.0.len()))
            .sum();
        let handles = self.shadow.books.borrow().handles.iter().filter(|named| !named.freed).count();
        let objects =
            self.shadow.count(|of| matches!(of, Origin::Cache(..) | Origin::Any | Origin::Pool).into());
        let used = objects + deferred + reserve + (hives + handles) as u64;
        assert_eq!(census.used, used, "objects in use: {census:?}");
        let large =
            self.shadow.count(|of| if let Origin::Large(order) = of { order.pages().into() } else { 0 });
        assert_eq!(census.large_pages, large, "pages of large blocks: {census:?}");
        let blocks =
            self.shadow.count(|of| if let Origin::Pages(_, order) = of { order.pages().into() } else { 0 });
        // If slabs of a destroyed cache wait for readers, no other count includes them.
        let exact = census.block_pages == blocks || census.block_pages > blocks && !quiet;
        assert!(exact, "{} pages of blocks are counted, but {blocks} exist: {census:?}", census.block_pages);
        assert_eq!(
            census.huge_pages > 0,
            self.shadow.count(|of| (of == Origin::Huge).into()) > 0,
            "huge: {census:?}"
        );
        let cpus = self.subsystem.cpus();
        for slot in self.slots() {
            let (info, setup) = (slot.cache.info(), &slot.setup);
            let (cpus, nodes) = (u64::from(cpus.count()), u64::from(cpus.nodes()));
            let max = cpus * nodes * setup.capacity * (2 + setup.stock);
            assert!(info.in_magazines <= max, "{} objects in magazines, at most {max}", info.in_magazines);
            let max = nodes * setup.capacity * setup.depot;
            assert!(info.in_depot <= max, "{} objects in depots, at most {max}", info.in_depot);
            assert_eq!(info.paths.operations(), info.allocs + info.frees, "each operation has one level");
            self.check_cache_view(&slot);
        }
        // SAFETY: all threads are idle.
        let view = unsafe { self.subsystem.pages().per_cpu_view() };
        let pages =
            |orders: &[u32]| (0..).zip(orders).map(|(order, blocks)| u64::from(*blocks) << order).sum();
        let seen: u64 = view.cpus.iter().chain([&view.depot]).map(|orders| -> u64 { pages(orders) }).sum();
        assert_eq!(seen, self.subsystem.pages().info().per_cpu(), "the view shows the pages that CPUs hold");
    }

    /// Checks that a view of a cache shows each taken object exactly once, either with its owner or in a magazine.
    fn check_cache_view(&self, slot: &Slot) {
        // SAFETY: all threads are idle.
        let view = unsafe { slot.cache.view() };
        let info = slot.cache.info();
        let layer = view.magazines.iter();
        let cpus = layer.clone().flat_map(|layer| layer.cpus.iter().flat_map(|cpu| &cpu.magazines));
        let depots = layer.flat_map(|layer| layer.depots.iter().flat_map(|depot| &depot.full));
        let held: Vec<_> = cpus.chain(depots).flat_map(|magazine| &magazine.rounds).copied().collect();
        assert_eq!(
            held.len() as u64,
            info.in_magazines + info.in_depot,
            "the view shows the objects in magazines"
        );
        let listed_slabs = |list| view.slabs.iter().filter(|slab| slab.list == list).count() as u64;
        let lists = [SlabList::Full, SlabList::Partial, SlabList::Empty].map(listed_slabs);
        assert_eq!(lists, [info.full, info.partial, info.empty], "the view shows the slabs on their lists");
        let shown_objects: u64 =
            view.slabs.iter().flat_map(|slab| &slab.out).map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(shown_objects, info.used + held.len() as u64, "the view shows the allocated objects");
        let books = self.shadow.books.borrow();
        let owned = books
            .owned
            .values()
            .filter(|object| matches!(object.of, Origin::Cache(_, number) if number == slot.number));
        let mut places = BTreeSet::new();
        for place in owned.map(|object| slot.cache.place_of(object.at)).chain(held.into_iter().map(Some)) {
            let place = place.unwrap_or_else(|| panic!("each owner must have a valid object"));
            let slab = view.slabs.iter().find(|slab| slab.page == place.slab);
            let slab = slab.unwrap_or_else(|| panic!("{place:?}: the view has no such slab"));
            let (word, bit) = (usize::from(place.index / 64), place.index % 64);
            assert!(slab.out[word] >> bit & 1 == 1, "{place:?} is free but has an owner");
            assert!(places.insert((place.slab, place.index)), "{place:?} is in two places");
        }
    }

    /// Waits until no memory waits for readers. No reader may be pinned.
    pub(super) fn wait_for_grace(&self) {
        for _ in 0..100 {
            self.core().flush_deferred();
            rcu::advance();
            if rcu::is_idle() {
                return;
            }
        }
        panic!("a deferred free must not wait without readers");
    }

    /// Frees all memory. First, each cache in turn allocates all memory for itself.
    pub(super) fn end(self: Arc<Self>) {
        self.faults.disarm();
        on_cpu(0);
        for side in self.thread_states.iter() {
            let ThreadState { held, reader, hive, waits } = std::mem::take(&mut *side.borrow_mut());
            drop(reader);
            waits.into_iter().for_each(|wait| self.cancel_wait(wait));
            if let Some((mut hive, keys)) = hive {
                keys.into_iter().for_each(|(key, value)| assert_eq!(hive.remove(key)[0], value));
            }
            held.into_iter().for_each(|object| self.give_back(object));
        }
        let books = || self.shadow.books.borrow_mut();
        let posted = std::mem::take(&mut books().posted);
        let hoard = std::mem::take(&mut books().hoard);
        posted.into_iter().chain(hoard).for_each(|object| self.give_back(object));
        let named = std::mem::take(&mut books().handles);
        let handles = self.world_parts.borrow_mut().handles.take();
        for named in named.iter().filter(|named| !named.freed) {
            assert!(handles.iter().all(|handles| handles.free(named.handle)), "a handle in use is stale");
        }
        drop(handles);
        let pool = self.world_parts.borrow_mut().pool.take();
        if let Some(pool) = &pool {
            let (has, least) = pool.reserve();
            assert!(has == least, "the reserve of a pool at rest is {has} of {least}");
        }
        drop(pool);
        self.wait_for_grace();
        self.census(true);
        for (number, slot) in (0..self.script.caches.len()).filter_map(|slot| Some((slot, self.slot(slot)?)))
        {
            if !slot.destroyed.get() && slot.setup.stable == 0 {
                self.core().shrink(&uslab_magazine::Operation::new());
                self.wait_for_grace();
                (0..2).for_each(|cpu| self.check_all_objects_allocatable(number, &slot, cpu));
            }
            if slot.setup.checked > 0 && !slot.destroyed.get() {
                self.double_free(&slot.cache);
            }
        }
        let parts = || self.world_parts.borrow_mut();
        let slots = std::mem::take(&mut parts().slots);
        let (kmalloc, shrinker) = {
            let mut parts = parts();
            (parts.kmalloc.take(), parts.shrinker.take())
        };
        drop((slots, kmalloc, shrinker));
        self.wait_for_grace();
        self.subsystem.shrink();
        self.wait_for_grace();
        self.subsystem.pages().decommit();
        let census = self.core().check().unwrap_or_else(|violation| panic!("census: {violation}"));
        assert_eq!(
            (census.slabs, census.free_pages),
            (0, census.pages),
            "all memory is free at the end: {census:?}"
        );
        assert_eq!(self.core().caches.iter().count(), 0, "a cache without an owner is freed");
        assert!(self.shadow.made.borrow().is_empty(), "freed objects are still constructed");
        let Some(mut world) = Arc::into_inner(self) else { panic!("the threads have ended") };
        // SAFETY: the world is not used after this statement.
        unsafe {
            ManuallyDrop::drop(&mut world.world_parts);
            ManuallyDrop::drop(&mut world.thread_states);
            ManuallyDrop::drop(&mut world.subsystem);
        }
    }

    /// Checks that one cache alone can get all objects that its limit and the pages allow, regardless of where its free
    /// objects are.
    fn check_all_objects_allocatable(&self, number: usize, slot: &Slot, from: u32) {
        let cpus = self.subsystem.cpus().count();
        let (geometry, setup) = (slot.cache.geometry(), &self.script.setup);
        on_cpu(from % cpus);
        let mut all = vec![];
        while let Ok(at) = slot.cache.alloc(Gfp::KERNEL) {
            all.push(self.adopt_object(number, slot, at));
        }
        // If no larger block is free, slabs may be as small as one object.
        let order = geometry.min_order();
        let blocks = (1 + setup.pages) >> order.get();
        let pages = u64::from(self.subsystem.cpus().nodes()) * blocks;
        let slabs = if slot.setup.limit > 0 { pages.min(slot.setup.limit) } else { pages };
        let min_objects = slabs as usize * geometry.objects_at(order);
        let has_large_slabs = u64::from(order.get()) <= setup.order;
        assert!(
            !has_large_slabs || all.len() >= min_objects,
            "a cache alone allocates {} objects, but at least {min_objects} are available",
            all.len()
        );
        for (cpu, object) in (0..).zip(all) {
            on_cpu(cpu % cpus);
            self.give_back(object);
        }
    }
    /// Frees an object twice, and expects the second free to be refused. All threads are idle, so no other thread
    /// reallocates the object.
    fn double_free(&self, cache: &KmemCache) {
        on_cpu(0);
        let Ok(object) = cache.alloc(Gfp::KERNEL) else { return };
        // SAFETY: the second free is refused.
        unsafe {
            cache.free(object);
            // The object's slab may have been freed, too.
            expect(&[CorruptionKind::DoubleFree, CorruptionKind::Foreign], || cache.free(object));
        }
    }
}
