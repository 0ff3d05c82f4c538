//! Operations that the threads of a simulation execute. Each operation asserts everything that it can check without
//! knowing what the other threads do.

use super::*;
use crate::Fork;
use core::alloc::Layout;
use script::ScriptedOp;
use uslab_magazine::Operation;
use uslab_magazine::sync::relax;
use uslab_magazine::sync::schedule::{alone, end};

type OperationFn = fn(&SimThread<'_>, &ScriptedOp);

/// All operations, each with the group from which it is drawn, and its weight.
pub(super) const WEIGHTED_OPERATIONS: &[(&str, char, u64, OperationFn)] = &[
    ("alloc", 'o', 20, alloc),
    ("free", 'o', 20, free),
    ("alloc_node", 'a', 3, alloc_node),
    ("free_any", 'a', 4, free_any),
    ("bulk", 'a', 4, bulk),
    ("free_all", 'a', 2, free_all),
    ("prefill", 'a', 3, prefill),
    ("acquire", 'y', 8, acquire),
    ("poll", 'y', 8, poll),
    ("wait", 'y', 3, wait),
    ("acquire_timeout", 'y', 3, acquire_timeout),
    ("give_up", 'y', 3, give_up),
    ("post", 'b', 8, post),
    ("fetch", 'b', 8, fetch),
    ("defer", 'r', 6, defer),
    ("pin", 'r', 2, pin),
    ("look", 'r', 3, look),
    ("unpin", 'r', 2, |s, _| s.end_all_reads()),
    ("read", 'r', 6, read),
    ("advance", 'r', 3, |_, _| rcu::advance()),
    ("hoard", 's', 6, hoard),
    ("pool_alloc", 'q', 10, pool_alloc),
    ("handle_new", 'h', 5, handle_new),
    ("handle_get", 'h', 8, handle_get),
    ("handle_free", 'h', 6, handle_free),
    ("hive_insert", 'v', 6, hive_insert),
    ("hive_remove", 'v', 4, hive_remove),
    ("hive_walk", 'v', 3, hive_walk),
    ("pages", 'p', 6, pages),
    ("large", 'p', 4, large),
    ("kmalloc", 'k', 4, kmalloc),
    ("huge", 'k', 1, huge),
    ("shrink", 'g', 4, shrink),
    ("reap", 'g', 4, reap),
    ("drain", 'g', 4, drain),
    ("live", 'g', 2, live),
    ("shrink_all", 'e', 4, |s, _| _ = s.world.core().shrink(&Operation::new())),
    ("reap_all", 'e', 3, |s, _| _ = s.world.subsystem.reap()),
    ("drain_all", 'e', 3, |s, t| s.world.subsystem.drain_cpus(t.a as u32 % s.cpus()..s.cpus())),
    ("report", 'e', 1, |s, _| drop((s.world.subsystem.info(), s.world.subsystem.slabinfo()))),
    ("interval", 'i', 4, |s, _| _ = s.world.subsystem.end_interval()),
    ("relieve", 'i', 3, |s, _| crate::reclaim::reaper::Reap::free_unused(&**s.world.core())),
    ("release", 'i', 3, |s, _| _ = s.world.subsystem.pages().decommit()),
    ("decommit", 'i', 2, |s, _| _ = s.world.subsystem.pages().decommit_free()),
    ("destroy", 'd', 4, destroy),
    ("leave", 'l', 4, leave),
    ("make", 'l', 5, |s, t| {
        if s.slot(t.a).is_none() {
            s.world.make(s.number(t.a))
        }
    }),
    ("brief", 'l', 6, brief),
    ("wrong_free", 'w', 3, wrong_free),
    ("fork", 'f', 4, fork),
    ("child", 'f', 0, child),
];

impl SimThread<'_> {
    pub(super) fn perform(&self, op: &Op) {
        let (.., does) = WEIGHTED_OPERATIONS
            .iter()
            .find(|known| known.0 == op.name)
            .expect("the script must name an existing object");
        does(self, &op.arguments);
        self.world.shadow.verify();
        self.world.check_limits();
    }
    fn with_state<R>(&self, f: impl FnOnce(&mut ThreadState) -> R) -> R {
        f(&mut self.world.thread_states[self.me].borrow_mut())
    }
    fn books<R>(&self, f: impl FnOnce(&mut OwnershipLedger) -> R) -> R {
        f(&mut self.world.shadow.books.borrow_mut())
    }
    fn cpus(&self) -> u32 {
        self.world.subsystem.cpus().count()
    }
    fn number(&self, a: u64) -> usize {
        a as usize % self.world.script.caches.len().max(1)
    }
    fn slot(&self, a: u64) -> Option<Arc<Slot>> {
        self.world.slot(self.number(a))
    }
    fn pick(&self, a: u64) -> Option<Object> {
        self.with_state(|mine| {
            (!mine.held.is_empty()).then(|| mine.held.swap_remove(a as usize % mine.held.len()))
        })
    }
    fn hold(&self, object: Object) {
        self.with_state(|mine| mine.held.push(object));
    }
    #[track_caller]
    fn adopt_memory(&self, a: u64, slot: &Slot, at: NonNull<u8>) {
        self.hold(self.world.adopt_object(self.number(a), slot, at));
    }
    #[track_caller]
    fn adopt_any_allocation(&self, at: NonNull<u8>, len: usize, of: Origin) {
        self.hold(self.world.shadow.adopt(Object { at, len, made: 0, stamp: 0, of }));
    }
    /// Checks that an allocation may fail with the error `error`.
    #[track_caller]
    fn refused(&self, slot: &Slot, error: AllocError) {
        let allowed = match error {
            AllocError::Destroyed => slot.destroyed.get() || slot.destroying.get() > 0,
            AllocError::CacheLimit { slabs } => {
                u64::from(slabs) == slot.setup.limit || !self.world.script.faults.is_empty()
            }
            AllocError::Memory(_) | AllocError::TooLarge => true,
            AllocError::Injected => !self.world.script.faults.is_empty(),
            _ => !self.world.script.faults.is_empty(),
        };
        assert!(allowed, "an allocation is refused with {error:?}");
    }
    #[track_caller]
    pub(super) fn end_wait(&self, wait: Wait, result: Result<NonNull<u8>, AllocError>) {
        match result {
            Ok(at) => self.adopt_memory(wait.number as u64, &wait.slot, at),
            Err(error) => self.refused(&wait.slot, error),
        }
    }
    /// Polls a wait. If no object is available, keeps the wait and returns `false`.
    #[track_caller]
    fn poll_wait(&self, mut wait: Wait) -> bool {
        match self.world.poll(&mut wait) {
            Poll::Ready(result) => self.end_wait(wait, result),
            Poll::Pending => {
                self.with_state(|mine| mine.waits.push(wait));
                return false;
            }
        }
        true
    }
    fn pick_random_wait(&self, a: u64) -> Option<Wait> {
        self.with_state(|mine| {
            (!mine.waits.is_empty()).then(|| mine.waits.swap_remove(a as usize % mine.waits.len()))
        })
    }
    pub(super) fn end_all_reads(&self) {
        if let Some((guard, number, _)) = self.with_state(|mine| mine.reader.take()) {
            self.books(|books| books.readers.remove(&number));
            drop(guard);
        }
    }
}

fn gfp(b: u64) -> Gfp {
    [Gfp::KERNEL, Gfp::KERNEL, Gfp::ZERO, Gfp::NOWAIT, Gfp::HIGH, Gfp::MEMALLOC | Gfp::ZERO][b as usize % 6]
}
/// If `gfp` requests zeroed memory, checks that an object without a constructor is zero.
#[track_caller]
fn check_zeroed(gfp: Gfp, slot: &Slot, at: NonNull<u8>) {
    if gfp.contains(Gfp::ZERO) && slot.setup.ctor == 0 {
        // SAFETY: this thread owns the object.
        let bytes = unsafe { core::slice::from_raw_parts(at.as_ptr(), slot.cache.geometry().object_size()) };
        assert!(bytes.iter().all(|byte| *byte == 0), "an object is not zero");
    }
}

fn alloc(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let begun = s.books(OwnershipLedger::now);
    match slot.cache.alloc(gfp(t.b)) {
        Ok(at) => {
            s.books(|books| books.record_served(slot.key(), begun));
            check_zeroed(gfp(t.b), &slot, at);
            s.adopt_memory(t.a, &slot, at);
        }
        Err(error) => s.refused(&slot, error),
    }
}
fn alloc_node(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let node = t.b as u32 % s.world.subsystem.cpus().nodes();
    match slot.cache.alloc_node(Gfp::THIS_NODE, node) {
        Ok(at) => {
            let pages = s.world.subsystem.pages();
            let object_node = pages.pfn_of(at.as_ptr()).map(|pfn| pages.node_of(pfn));
            assert_eq!(object_node, Some(node), "the object is on the requested node");
            s.adopt_memory(t.a, &slot, at);
        }
        Err(error) => s.refused(&slot, error),
    }
}
fn free(s: &SimThread<'_>, t: &ScriptedOp) {
    if let Some(object) = s.pick(t.a) {
        s.world.give_back(object);
    }
}
/// Frees an object by its address alone.
fn free_any(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(object) = s.pick(t.a) else { return };
    let of = if let Origin::Cache(..) = object.of { Origin::Any } else { object.of };
    s.world.give_back(Object { of, ..object });
}
fn free_all(s: &SimThread<'_>, _: &ScriptedOp) {
    s.with_state(|mine| std::mem::take(&mut mine.held))
        .into_iter()
        .for_each(|object| s.world.give_back(object));
}
fn bulk(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let mut out = [None; 6];
    let out = &mut out[..1 + t.b as usize % 6];
    match slot.cache.alloc_bulk(gfp(t.b / 6), out) {
        Ok(()) => out
            .iter()
            .for_each(|at| s.adopt_memory(t.a, &slot, at.expect("a bulk allocation must fill every place"))),
        Err(error) => {
            assert!(out.iter().all(Option::is_none), "a refused bulk allocation takes no objects");
            s.refused(&slot, error);
        }
    }
}
fn prefill(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let n = 1 + t.b as usize % 3;
    match slot.cache.prefill(Gfp::KERNEL, n) {
        Ok(mut prefilled) => {
            for left in (t.b as usize % 2..n).rev() {
                let at =
                    prefilled.alloc().expect("objects that were allocated before the failure must exist");
                let object = s.world.adopt_object(s.number(t.a), &slot, at);
                assert_eq!(prefilled.len(), left, "the number of remaining objects is right");
                relax();
                if t.b & 4 == 0 {
                    s.hold(object);
                } else {
                    s.world.shadow.remove_owner(object);
                    // SAFETY: the object belongs to this cache, and has no user.
                    unsafe { prefilled.free(at) };
                    break;
                }
            }
        }
        Err(error) => s.refused(&slot, error),
    }
}

fn defer(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(object) = s.pick(t.a) else { return };
    match object.of {
        Origin::Cache(number, of)
            if let Some(slot) = s.world.slot(number).filter(|slot| slot.number == of) =>
        {
            s.world.shadow.remove_owner(object);
            s.books(|books| {
                let readers = books.readers.iter().copied().collect();
                books.waiting.insert(object.at.addr().get(), (object.stamp, readers));
            });
            // SAFETY: the object's owner has given it up.
            unsafe { slot.cache.free_deferred(object.at) };
        }
        _ => s.hold(object),
    }
}
fn pin(s: &SimThread<'_>, _: &ScriptedOp) {
    if s.with_state(|mine| mine.reader.is_some()) {
        return;
    }
    let guard = rcu::pin();
    let (number, seen) = s.books(|books| {
        books.stamps += 1;
        books.readers.insert(books.stamps);
        (
            books.stamps,
            books.owned.values().filter(|object| matches!(object.of, Origin::Cache(..))).copied().collect(),
        )
    });
    s.with_state(|mine| mine.reader = Some((guard, number, seen)));
}
/// Checks the objects that a reader found when it pinned. Deferred objects must be unchanged; other objects of a
/// type-stable cache must be constructed.
fn look(s: &SimThread<'_>, _: &ScriptedOp) {
    s.with_state(|mine| {
        let Some((_, number, seen)) = &mine.reader else { return };
        for object in seen {
            let at = object.at.addr().get();
            let waits = |books: &mut OwnershipLedger| {
                let known = books.waiting.get(&at);
                known.is_some_and(|(stamp, readers)| *stamp == object.stamp && readers.contains(number))
            };
            if s.books(waits) {
                object.verify("an object that a reader can read");
            }
            if let Origin::Cache(slot, _) = object.of
                && s.world.script.caches[slot].stable > 0
                && object.made > 0
            {
                // SAFETY: the object's pages wait for the reader.
                let made = unsafe { object.at.cast::<u64>().read() };
                assert_eq!(made, CONSTRUCTED_VALUE, "memory that a reader can read is constructed");
            }
        }
    });
}
/// Pins a reader while some operations run.
fn read(s: &SimThread<'_>, t: &ScriptedOp) {
    pin(s, t);
    for _ in 0..2 * t.a {
        relax();
        look(s, t);
    }
    s.end_all_reads();
}

/// Acquires objects until one of the requests must wait.
fn acquire(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    _ = (0..1 + t.b % 4).all(|_| s.poll_wait(s.world.wait(s.number(t.a), &slot, gfp(t.b / 4))));
}
fn poll(s: &SimThread<'_>, t: &ScriptedOp) {
    s.pick_random_wait(t.a).into_iter().for_each(|wait| _ = s.poll_wait(wait));
}
/// Waits as a sleeping thread does: polls after each wake-up, while some operations run. At the end, the thread cancels
/// the wait or keeps it for later.
fn wait(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let mut wait = s.world.wait(s.number(t.a), &slot, gfp(t.b / 4));
    wait.bell.0.set(1);
    for _ in 0..8 * (1 + t.b % 4) {
        if wait.bell.0.get() > 0
            && let Poll::Ready(result) = s.world.poll(&mut wait)
        {
            return s.end_wait(wait, result);
        }
        relax();
    }
    if t.b & 1 > 0 { s.world.cancel_wait(wait) } else { s.with_state(|mine| mine.waits.push(wait)) }
}
fn acquire_timeout(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    let begun = s.books(OwnershipLedger::now);
    match slot.cache.acquire_timeout(gfp(t.b), Duration::ZERO) {
        Ok(at) => {
            s.books(|books| books.record_served(slot.key(), begun));
            s.adopt_memory(t.a, &slot, at);
        }
        Err(error) => s.refused(&slot, error),
    }
}
fn give_up(s: &SimThread<'_>, t: &ScriptedOp) {
    s.pick_random_wait(t.a).into_iter().for_each(|wait| s.world.cancel_wait(wait));
}

fn post(s: &SimThread<'_>, t: &ScriptedOp) {
    s.pick(t.a).into_iter().for_each(|object| s.books(|books| books.posted.push(object)));
}
fn fetch(s: &SimThread<'_>, _: &ScriptedOp) {
    s.books(|books| books.posted.pop()).into_iter().for_each(|object| s.hold(object));
}
fn hoard(s: &SimThread<'_>, t: &ScriptedOp) {
    match s.pick(t.a) {
        Some(object) if let Origin::Cache(..) | Origin::Any = object.of => {
            s.books(|books| books.hoard.push(object))
        }
        object => object.into_iter().for_each(|object| s.hold(object)),
    }
}
/// An allocation from the pool must succeed while users have fewer objects than a full reserve.
fn pool_alloc(s: &SimThread<'_>, _: &ScriptedOp) {
    let Some(pool) = s.world.world_parts.borrow().pool.clone() else { return };
    s.books(|books| {
        books.pool_out += 1;
        books.pool_most[s.me] = 0;
        let pool_objects = books.pool_out;
        books.pool_most.iter_mut().for_each(|most| *most = pool_objects.max(*most));
    });
    match pool.alloc(Gfp::KERNEL) {
        Ok(at) => s.adopt_any_allocation(at, 64, Origin::Pool),
        Err(error) => s.books(|books| {
            books.pool_out -= 1;
            let (most, least) = (books.pool_most[s.me], s.world.script.setup.pool as usize);
            assert!(most > least, "a pool with a reserve of {least} refuses with {error:?}, although at most {most} objects were in use");
        }),
    }
}

fn handle_new(s: &SimThread<'_>, _: &ScriptedOp) {
    let Some(handles) = s.world.world_parts.borrow().handles.clone() else { return };
    let value = s.books(|books| {
        books.stamps += 1;
        books.stamps
    });
    if let Ok(handle) = handles.alloc_with(|count| count.set(value)) {
        s.books(|books| {
            assert!(
                books.handles.iter().all(|named| named.handle != handle),
                "two objects have the same handle"
            );
            books.handles.push(NamedObject { handle, value, freeing: 0, freed: false });
        });
    }
}
fn pick_handle(s: &SimThread<'_>, a: u64) -> Option<(usize, NamedObject)> {
    s.books(|books| {
        let at = (a as usize).checked_rem(books.handles.len())?;
        Some((at, books.handles[at]))
    })
}
fn handle_get(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(handles) = s.world.world_parts.borrow().handles.clone() else { return };
    let Some((at, before)) = pick_handle(s, t.a) else { return };
    let held = handles.get(before.handle);
    let handle_after = s.books(|books| books.handles[at]);
    match held {
        Some(held) => {
            assert!(!before.freed, "a stale handle finds an object");
            (0..1 + t.b).for_each(|_| {
                assert_eq!(held.get(), before.value, "the object belongs to the handle");
                relax();
            });
        }
        None => assert!(handle_after.freed || handle_after.freeing > 0, "a handle in use is stale"),
    }
}
fn handle_free(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(handles) = s.world.world_parts.borrow().handles.clone() else { return };
    let Some((at, named)) = pick_handle(s, t.a) else { return };
    s.books(|books| books.handles[at].freeing += 1);
    let freed = handles.free(named.handle);
    s.books(|books| {
        let named = &mut books.handles[at];
        named.freeing -= 1;
        assert!(!(freed && named.freed), "a handle is freed twice");
        assert!(freed || named.freed || named.freeing > 0, "a handle in use is not freed");
        named.freed |= freed;
    });
}

fn hive_insert(s: &SimThread<'_>, t: &ScriptedOp) {
    let small = Magazines::Sized { capacity: 1, stock: 0, depot_limit: 1 };
    let hive = s.with_state(|mine| mine.hive.take());
    let hive = hive.or_else(|| Some((Hive::new_in("hive", &s.world.subsystem, small).ok()?, vec![])));
    let Some((mut hive, mut keys)) = hive else { return };
    if let Ok(key) = hive.insert([t.a; _]) {
        keys.push((key, t.a));
    }
    s.with_state(|mine| mine.hive = Some((hive, keys)));
}
fn hive_remove(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some((mut hive, mut keys)) = s.with_state(|mine| mine.hive.take()) else { return };
    if !keys.is_empty() {
        let (key, value) = keys.swap_remove(t.a as usize % keys.len());
        assert_eq!(hive.remove(key)[0], value, "a value of a hive changed");
    }
    s.with_state(|mine| mine.hive = Some((hive, keys)));
}
fn hive_walk(s: &SimThread<'_>, _: &ScriptedOp) {
    let Some((mut hive, keys)) = s.with_state(|mine| mine.hive.take()) else { return };
    let mut visited_values: Vec<u64> = hive.iter().map(|value| value[0]).collect();
    let mut known_values: Vec<u64> = keys.iter().map(|(_, value)| *value).collect();
    visited_values.sort_unstable();
    known_values.sort_unstable();
    assert_eq!(visited_values, known_values, "the walk visits the values of the hive");
    s.with_state(|mine| mine.hive = Some((hive, keys)));
}

fn pages(s: &SimThread<'_>, t: &ScriptedOp) {
    let order = Order::new((t.a % 4).min(s.world.script.setup.order) as u8).expect("small");
    let types = [Gfp::KERNEL, Gfp::MOVABLE, Gfp::RECLAIMABLE, Gfp::ZERO];
    let pages = s.world.subsystem.pages();
    let Ok(block) = pages.alloc_block(order, types[t.b as usize % 4], None) else { return };
    // A quarter of the blocks are split, so that each page is freed separately.
    for part in block.split(if t.b < 12 { order } else { Order::ZERO }) {
        let (order, pfn) = (part.order(), part.into_pfn());
        s.adopt_any_allocation(pages.address(pfn), order.bytes(), Origin::Pages(pfn, order));
    }
}
fn large(s: &SimThread<'_>, t: &ScriptedOp) {
    let order = Order::new((t.a % 3).min(s.world.script.setup.order) as u8).expect("small");
    if let Ok(at) = s.world.core().alloc_large(order.bytes(), gfp(t.b)) {
        s.adopt_any_allocation(at, order.bytes(), Origin::Large(order));
    }
}
fn kmalloc(s: &SimThread<'_>, t: &ScriptedOp) {
    let parts = s.world.world_parts.as_ptr();
    // SAFETY: no thread writes to the parts before the end of the execution.
    let Some(kmalloc) = (unsafe { &(*parts).kmalloc }) else { return };
    let size = [8, 100, 1000, 3000][t.a as usize % 4];
    if let Ok(at) = kmalloc.alloc(size, gfp(t.b)) {
        // SAFETY: the memory was just allocated.
        let usable = unsafe { kmalloc.usable_size(at) };
        assert!(usable >= size, "only {usable} bytes of {size} are usable");
        s.adopt_any_allocation(at, size, Origin::Any);
    }
}
fn huge(s: &SimThread<'_>, t: &ScriptedOp) {
    let bytes = (4 << 20) + (1 + t.a as usize % 3) * (1 << 20);
    let layout = Layout::from_size_align(bytes, 4096).expect("small");
    if let Ok(at) = s.world.core().alloc_huge(layout, Gfp::KERNEL) {
        // Only the ends of the memory are written, because writing all of it would take most of the time.
        s.adopt_any_allocation(at, 64, Origin::Huge);
    }
}

fn shrink(s: &SimThread<'_>, t: &ScriptedOp) {
    s.slot(t.a).into_iter().for_each(|slot| _ = slot.cache.shrink());
}
fn reap(s: &SimThread<'_>, t: &ScriptedOp) {
    s.slot(t.a).into_iter().for_each(|slot| _ = slot.cache.reap());
}
fn drain(s: &SimThread<'_>, t: &ScriptedOp) {
    let first_cpu = t.b as u32 % s.cpus();
    let end_cpu = if t.b & 8 > 0 { first_cpu + 1 } else { s.cpus() };
    s.slot(t.a).into_iter().for_each(|slot| slot.cache.drain(first_cpu..end_cpu));
}
/// A snapshot of live objects must contain each object that was in use throughout the call.
fn live(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a).filter(|slot| slot.setup.merge == 0) else { return };
    let of = |slot: &Slot| Origin::Cache(s.number(t.a), slot.number);
    let mine = s.with_state(|mine| {
        mine.held.iter().filter(|object| object.of == of(&slot)).map(|object| object.at).collect::<Vec<_>>()
    });
    let live: BTreeSet<_> = slot.cache.live().iter().collect();
    assert!(mine.iter().all(|at| live.contains(at)), "an object in use is not alive");
}
fn destroy(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(slot) = s.slot(t.a) else { return };
    slot.destroying.set(slot.destroying.get() + 1);
    let destroyed = slot.cache.destroy().is_ok();
    slot.destroying.set(slot.destroying.get() - 1);
    if destroyed {
        slot.destroyed.set(true);
        let of = Origin::Cache(s.number(t.a), slot.number);
        let mut others = (0..s.world.script.caches.len())
            .filter_map(|at| s.world.slot(at))
            .filter(|other| other.number != slot.number);
        let shared = slot.setup.merge > 0 && others.any(|other| other.setup.merge > 0);
        let remaining_objects = s.world.shadow.count(|owned| (owned == of).into());
        assert!(shared || remaining_objects == 0, "destroyed with {remaining_objects} objects in use");
        // Any error is accepted, because a concurrent allocation may still count towards the limit.
        assert!(slot.cache.alloc(Gfp::KERNEL).is_err(), "a destroyed cache allocates");
    }
}
/// Drops the handle of a cache, which may have objects in use.
fn leave(s: &SimThread<'_>, t: &ScriptedOp) {
    let slot = s.world.world_parts.borrow_mut().slots.get_mut(s.number(t.a)).and_then(Option::take);
    drop(slot);
}

/// Makes a cache, and drops its handle while its objects are in use.
fn brief(s: &SimThread<'_>, t: &ScriptedOp) {
    let magazines = Magazines::Sized { capacity: 1 + t.b as u16 % 2, stock: 0, depot_limit: 1 };
    let Ok(cache) = KmemCache::builder("brief", 64).magazines(magazines).build_in(&s.world.subsystem) else {
        return;
    };
    let len = cache.geometry().object_size();
    let objects: Vec<_> = (0..1 + t.a % 4)
        .filter_map(|_| cache.alloc(Gfp::KERNEL).ok())
        .map(|at| s.world.shadow.adopt(Object { at, len, made: 0, stamp: 0, of: Origin::Any }))
        .collect();
    let (gone, left) = objects.split_at(objects.len() / 2);
    gone.iter().for_each(|object| s.world.give_back(*object));
    drop(cache);
    left.iter().for_each(|object| s.hold(*object));
}

/// Frees an object incorrectly. The free must be refused, and leave the object unchanged.
fn wrong_free(s: &SimThread<'_>, t: &ScriptedOp) {
    let Some(object) = s.pick(t.a) else { return };
    let core = s.world.core();
    // SAFETY: no object of that cache is at the address, so the free is refused.
    unsafe {
        match (object.of, t.b % 3) {
            (Origin::Cache(..), 0) => {
                expect(&[CorruptionKind::Interior], || core.free(object.at.add(8)));
            }
            (Origin::Cache(_, number), 1) => {
                let mut others = s
                    .world
                    .slots()
                    .filter(|slot| slot.number != number && slot.setup.checked > 0 && slot.setup.merge == 0);
                if let Some(other) = others.next() {
                    expect(&[CorruptionKind::WrongCache], || other.cache.free(object.at));
                }
            }
            _ => expect(&[CorruptionKind::Foreign], || core.free(NonNull::from(s).cast())),
        }
    }
    object.verify("an object whose free was refused");
    s.hold(object);
}

/// Takes and releases the locks of a fork while other threads work, as the parent process does.
fn fork(s: &SimThread<'_>, t: &ScriptedOp) {
    // SAFETY: this thread does not use the subsystem between the calls.
    unsafe {
        s.world.subsystem.before_fork();
        (0..t.a).for_each(|_| relax());
        s.world.subsystem.after_fork_in_parent();
    }
}
/// Acts as the child of a fork, which has a copy of the memory, and this thread as its only thread. The child does not
/// touch the objects of other threads. Objects that other threads were moving are lost. The execution ends here,
/// because the child has no other thread.
fn child(s: &SimThread<'_>, t: &ScriptedOp) {
    let subsystem = &s.world.subsystem;
    // SAFETY: after `alone`, no other thread exists.
    unsafe {
        subsystem.before_fork();
        alone();
        subsystem.after_fork_in_child();
    }
    s.world.faults.disarm();
    let check = |when: &str| {
        s.world.shadow.verify();
        subsystem.check().unwrap_or_else(|violation| panic!("census of a child, {when}: {violation}"));
    };
    check("at first");
    on_cpu(t.b as u32 % s.cpus());
    for slot in (0..s.world.script.caches.len() as u64).flat_map(|slot| [slot; 2]) {
        alloc(s, &ScriptedOp { a: slot, ..ScriptedOp::default() });
    }
    pages(s, &ScriptedOp::default());
    let held = s.with_state(|mine| std::mem::take(&mut mine.held));
    // A mempool that other threads use belongs to the parent, so its objects are skipped.
    held.into_iter().filter(|object| object.of != Origin::Pool).for_each(|object| s.world.give_back(object));
    check("after some frees");
    subsystem.shrink();
    subsystem.reap();
    check("after a shrink");
    fork(s, &ScriptedOp::default());
    subsystem.pages().decommit();
    check("in the end");
    end()
}
