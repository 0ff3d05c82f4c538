//! Waiting at a limit: a queue of those who found the cache at its limit.
//!
//! ```text
//! acquire ── alloc ── an object
//!              └ at the limit: join the queue; the first one closes the magazines, and calls in what they hold, as do those who join meanwhile
//!                   └ first in the queue ── given a free object ──────────────┐
//!                                        └─ a charge came back: grow ── leave ┴─ the last one opens the magazines
//! free ── magazine, while nobody waits
//!           └ closed: to its slab; then, if somebody waits, the first gets a free object of the slabs
//! ```
//!
//! # Protocol
//!
//! * **Magazines** are closed while somebody waits. So the inlined paths need not know of the queue: a free finds no place on its
//!   CPU's stack, and goes to its slab by the slow path that it has for full stacks. An object that was on its way meanwhile ends in
//!   its slab, too (see [`Layer::close`](uslab_magazine::Layer::close)). All that reaches a slab looks for waiters behind that.
//! * **No lost wake-up, of objects.** A waiter sets `closed` and then looks into each slab under its node's lock. A free puts its
//!   object there under the same lock and then reads `closed`. Whichever is second there sees the other.
//! * **No lost wake-up, of charges.** A waiter sets `waiting` and then changes the charge, by nothing. Who gives a charge back changes
//!   it, and then reads `waiting`. Whichever is second in the order of that word sees the other. What it finds it notes in
//!   `grow`: the first in the queue should try to make a slab. Whoever leaves the first place notes that, too, for the next one.
//! * **Objects that are not constructed** are nobody's gift, because constructors run without a lock: who brings one to its slab notes
//!   `grow`, and the first in the queue takes it from the slabs and constructs it.
//! * **An account** at its limit is waited for in the queues of its caches. The first waiter closes the magazines of all of them, and each
//!   gives its empty slabs back as they come. A cache finds behind its own frees that nobody waits any more, and opens its magazines.
//! * **Fair.** Objects are given in the order of tickets, to the first who has none. Others do not pass: slabs refuse to serve
//!   allocations while somebody waits ([`SlabSupplier`](super::alloc)), and a new waiter joins at the end. Nobody's first poll returns
//!   before the CPUs have been drained. What a waiter has been given is its own from then on, whenever it runs.
//! * **Cancellation.** A waiter that is dropped leaves the queue. What it was given goes the way of a free, and so to the next
//!   one. If it was first, the next one is told to try to grow. One that is forgotten (`mem::forget`) gets one object, which
//!   is lost with it until the cache goes. Until then nobody behind it makes a slab, nor while the first one is not polled.
//! * **Shrinkers** are asked by the allocation that waits in the end. One that gave up then, because its lock was taken, may have something
//!   to drop a moment later, and no free tells of that. So a thread that waits asks again now and then, and for futures the reaper does: the
//!   first who waits wakes it, and it does not sleep before nobody waits any more.
//! * **Readers** who have gone tell nobody, either. So a thread helps the collector on, as often, as long as anything of its cache, or of its
//!   account's caches, waits for readers; for futures the reaper does. A thread that finds nothing sleeps until it is woken: it
//!   reads the counts by changing them by nothing, and who raises one from 0 by that sees that it waits, and wakes it. Whichever
//!   is second in the order of that word sees the other. Who registers a shrinker of a limit wakes threads, too: whichever of the
//!   two has the lock of their list second sees the other.
//! * **Wakers** are user code: the lock is never held while they run or are dropped, and what they panic with is forgotten, because who
//!   runs them has objects in hand and others to wake.
//! * **The lock** is taken before `Drains`, `Depot` and `Node`.
//!
//! A cache with waiters is slow: each allocation and free takes the queue's and a node's lock. The first waiter pays for a drain of all
//! CPUs, and so does who joins before that is done. It is at its limit then, where each allocation that fails pays for one, too.

use super::alloc::SlabSupplier;
use super::node::NodeCount;
use super::wait_queue::{Queue, Waiter};
use super::{Cache, Object};
use crate::error::AllocError;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_buddy::Gfp;
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::Release;
use uslab_magazine::sync::{
    MutexGuard, Ordering::Relaxed, Parker, abandoned, assert_unlocked, contain_panic, planted,
};
use uslab_magazine::tracepoints::What;

/// How long a thread sleeps before it asks the shrinkers again, if there are any, and helps the collector on.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// Of what shrinkers have they are asked for one part in so many.
const ASKED: usize = 8;

/// What wakers do, user code. One that panics has been reported where it did so, and keeps nobody from the rest.
fn quietly(run: impl FnOnce()) {
    assert_unlocked();
    contain_panic(run);
}
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| quietly(|| waker.wake()));
}

impl Cache {
    /// Whether somebody waits for an object.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        // Relaxed: see "No lost wake-up" above.
        self.waiters.waiting.load(Relaxed)
    }

    /// How many wait for an object, those that were given one and have not run since not counted.
    pub(super) fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.entries.len() - queue.given
    }

    /// In the child of a fork: those who wait are other threads', or will find that they wait no more.
    ///
    /// # Safety
    /// As [`Fork::forget_other_threads`](crate::Fork::forget_other_threads): the lock is held.
    pub(crate) unsafe fn forget_waiters(&self) {
        // SAFETY: by contract.
        if let Some(queue) = unsafe { self.waiters.queue.held() } {
            // Those of the account's other caches look at that.
            if queue.at_account && queue.forked.get() == 0 {
                self.config.account.iter().for_each(|account| account.end_wait());
            }
            queue.forked.set(1);
            if self.waiters.waiting.swap(false, Relaxed) {
                self.core.waited_for.fetch_sub(1, Relaxed);
            }
        }
    }
    fn queue(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.waiters.queue.lock();
        if queue.forked.get() > 0 {
            queue.forked.set(0);
            // What they had is in the parent: wakers of other threads are not run here.
            queue.entries.drain(..).for_each(core::mem::forget);
            (queue.given, queue.at_account) = (0, false);
            _ = self.settle(&mut queue);
        }
        queue
    }

    /// To be done behind each change of the queue; the waker of the first who waits, if that should try to grow.
    fn settle(&self, queue: &mut Queue) -> Option<Waker> {
        let (waiters, account) = (&self.waiters, self.config.account.as_ref());
        let is_waiting = queue.is_waiting();
        if is_waiting != self.has_waiters() {
            waiters.waiting.store(is_waiting, Relaxed);
            let count = &self.core.waited_for;
            _ = if is_waiting { count.fetch_add(1, Relaxed) } else { count.fetch_sub(1, Relaxed) };
        }
        if !is_waiting && core::mem::take(&mut queue.at_account) {
            account.into_iter().for_each(|account| account.end_wait());
        }
        let closed = is_waiting || account.is_some_and(|account| account.is_waited_for());
        planted!("magazines stay open while somebody waits" => let closed = false);
        // Relaxed: written under the lock; elsewhere it is a hint.
        if closed != waiters.closed.load(Relaxed) {
            waiters.closed.store(closed, Relaxed);
            match closed {
                true => self.config.per_cpu.close(),
                false if queue.is_left => {}
                false => self.config.per_cpu.reopen(),
            }
        }
        let given = queue.given;
        queue.entries.get_mut(given).filter(|_| queue.grow)?.waker.take()
    }
    fn resettle(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue();
        change(&mut queue);
        let waker = self.settle(&mut queue);
        drop(queue);
        wake(waker);
    }

    /// Opens or closes the magazines as the account has it, if there is one.
    pub(super) fn follow_account(&self) {
        self.resettle(|_| ());
    }
    /// The first who waits does so for the account, from now on; `false` if it did before.
    fn wait_for_account(&self) -> bool {
        let Some(account) = &self.config.account else { return false };
        let mut begins = false;
        self.resettle(|queue| {
            begins = queue.is_waiting() && !queue.at_account;
            if begins {
                queue.at_account = true;
                account.begin_wait();
            }
        });
        if begins {
            // From now on they look at the account's other caches.
            self.wake_own_threads();
            self.core.close_account(&self.operation(What::Reclaim), account);
        }
        begins
    }

    /// A place at the end of the queue, which is kept in `place` before anything else is done.
    fn join(&self, waker: &Waker, is_thread: bool, place: &mut Option<u64>) -> Result<(), AllocError> {
        let mut waker = Some(waker.clone());
        let mut larger = VecDeque::new();
        loop {
            let mut queue = self.queue();
            let len = queue.entries.len();
            if len == queue.entries.capacity() {
                // Outside of the lock: whose memory that is may be a cache, too.
                if larger.capacity() <= len {
                    drop(queue);
                    let bytes = (2 * len + 8) * size_of::<Waiter>();
                    larger.try_reserve(2 * len + 8).map_err(|_| AllocError::Refused { bytes })?;
                    continue;
                }
                larger.append(&mut queue.entries);
                core::mem::swap(&mut queue.entries, &mut larger);
            }
            debug_assert!(len < queue.entries.capacity(), "nothing is allocated under the lock");
            let (ticket, is_first) = (queue.next_ticket, !queue.is_waiting());
            queue.next_ticket += 1;
            queue.entries.push_back(Waiter::new(ticket, waker.take(), is_thread));
            *place = Some(ticket);
            queue.grow |= is_first;
            queue.closings += u64::from(is_first);
            // This one is not asleep.
            let own = self.settle(&mut queue);
            drop(queue);
            quietly(|| drop(own));
            return Ok(());
        }
    }
    /// What is free somewhere comes to the slabs, and so to who waits. The first one does it, and so does who joins before that is done:
    /// until then a CPU may hold objects, which whoever comes later would get.
    fn call_in(&self) {
        let Queue { closings, called_in, .. } = *self.queue();
        planted!("who joins does not wait for what is called in" => self.queue().called_in = closings);
        if called_in < closings {
            self.touch_charge();
            self.flush_deferred();
            self.flush_all(&self.operation(What::Reclaim));
            self.core.background.start_or_wake();
            self.resettle(|queue| queue.called_in = queue.called_in.max(closings));
        }
    }

    /// Behind each free to a slab: gives free objects of the slabs to those who wait, as far as there are any.
    #[inline]
    pub(super) fn serve(&self, op: &Operation) {
        // Relaxed: see "No lost wake-up" above.
        if self.waiters.closed.load(Relaxed) {
            self.serve_closed(op);
        }
    }
    #[cold]
    fn serve_closed(&self, op: &Operation) {
        while self.has_waiters() {
            let Some(wakers) = self.serve_one(op) else { break };
            wake(wakers.into_iter().flatten());
        }
        // What is free is not constructed: the first who waits does that, outside of the lock.
        let is_free = || {
            let NodeCount { objects, inuse, .. } = self.count();
            objects > inuse
        };
        if self.has_waiters() && self.constructs_one_by_one() && is_free() {
            self.let_grow();
        }
        if self.config.account.as_ref().is_some_and(|account| account.is_waited_for()) {
            self.discard_empty(op);
        } else if !self.has_waiters() {
            // Those who waited for the account do not any more.
            self.resettle(|_| ());
        }
    }
    #[cold]
    #[inline(never)]
    fn serve_one(&self, op: &Operation) -> Option<[Option<Waker>; 2]> {
        let mut queue = self.queue();
        let place = queue.given;
        planted!("the last to come is served first" => let place = queue.entries.len().saturating_sub(1));
        queue.entries.get(place)?;
        let mut object = None;
        let (here, nodes) = (self.this_node(), self.nodes.len() as u32);
        let take = |node: u32| {
            let put = |place| object = Some(self.object(place));
            self.nodes[node as usize].alloc(op, &self.core.memory, 1, false, put).0 > 0
        };
        (0..nodes).map(|i| (here + i) % nodes).any(take).then_some(())?;
        self.counts.direct_allocs.add(1);
        self.counts.direct_paths.count(op);
        let waiter = &mut queue.entries[place];
        waiter.object = object;
        let waker = waiter.waker.take();
        queue.given += 1;
        Some([waker, self.settle(&mut queue)])
    }

    /// A charge came back: the first who waits may make a slab.
    pub(super) fn let_grow(&self) {
        if self.has_waiters() {
            self.resettle(|queue| queue.grow = true);
        }
    }
    /// The account's limit is another one: whoever waits first may make a slab, now or when it looks next.
    pub(super) fn limit_changed(&self) {
        self.resettle(|queue| queue.grow = true);
    }
    /// While somebody waits: shrinkers of what is waited for drop some of what they have, once more.
    pub(super) fn ask_again(&self, gfp: Gfp) {
        if !self.has_waiters() || !gfp.may_reclaim() {
            return;
        }
        let ask = |cache: &Self| _ = self.core.shrinkers.run(ASKED, gfp, cache.number);
        let at_account = self.queue().at_account;
        match self.config.account.as_ref().filter(|_| at_account) {
            Some(account) => self.core.of_account(account).for_each(|cache| ask(&cache)),
            None => ask(self),
        }
    }
    /// Whether anything waits for readers. What begins to do so behind that wakes the threads that wait by then.
    fn has_in_grace(&self) -> bool {
        // Release: pairs with the Acquire of `begin_grace`.
        [&self.counts.grace, &self.counts.deferred].into_iter().any(|count| count.fetch_add(0, Release) > 0)
    }
    /// Whether there is anything that nobody tells of: what shrinkers may drop, and what waits for readers.
    fn must_look(&self) -> bool {
        let mut of_account = self.config.account.iter().flat_map(|account| self.core.of_account(account));
        // A checker's clock stands still: there the reaper asks shrinkers.
        let asks = !cfg!(shuttle) && self.core.shrinkers.has_limits();
        asks || self.has_in_grace() || of_account.any(|cache| cache.has_in_grace())
    }
    /// Threads that wait here, or for the account, look again.
    pub(super) fn wake_threads(&self) {
        match self.config.account.as_ref().filter(|account| account.is_waited_for()) {
            Some(account) => self.core.of_account(account).for_each(|cache| cache.wake_own_threads()),
            None => self.wake_own_threads(),
        }
    }
    fn wake_own_threads(&self) {
        // Relaxed: see "Readers" above.
        if self.has_waiters() {
            let mut tickets = 0..self.queue().next_ticket;
            wake(core::iter::from_fn(|| self.queue().next_thread(&mut tickets)));
        }
    }
    /// Sleeps until it is woken, or `deadline` is over: whether it was woken.
    fn sleep(&self, parker: &Parker, deadline: Option<Instant>, _gfp: Gfp) -> bool {
        while self.must_look() {
            let soon = Instant::now() + ASK_AGAIN;
            if deadline.is_some_and(|deadline| deadline <= soon) {
                break;
            }
            if parker.park(Some(soon)) {
                return true;
            }
            self.ask_again(_gfp);
            crate::reclaim::rcu::advance();
        }
        parker.park(deadline)
    }
    /// Opens the magazines, unless somebody waits.
    pub(super) fn reopen(&self) {
        let queue = self.queue();
        if !(queue.is_left || self.waiters.closed.load(Relaxed)) {
            self.config.per_cpu.reopen();
        }
    }
    /// Nobody owns the cache any more: closes the magazines for good. Who is in the queue was forgotten, as futures borrow the cache.
    pub(super) fn close_for_good(&self) {
        let mut queue = self.queue();
        queue.is_left = true;
        let forgotten = core::mem::take(&mut queue.entries);
        queue.given = 0;
        if !forgotten.is_empty() {
            _ = self.settle(&mut queue);
        }
        drop(queue);
        self.config.per_cpu.close();
        for Waiter { waker, object, .. } in forgotten {
            quietly(|| drop(waker));
            object.into_iter().for_each(|Object(object)| self.unreserve(object));
        }
    }

    /// An object for the first who waits, of a slab or of a new one.
    fn alloc_at_limit(&self, gfp: Gfp) -> Result<Object, AllocError> {
        let source = SlabSupplier::for_waiter(self, gfp);
        let (op, here, nodes) = (&self.operation(What::Alloc), self.this_node(), self.nodes.len() as u32);
        let again =
            |source: &SlabSupplier<'_>| (0..nodes).find_map(|i| self.direct(op, source, (here + i) % nodes));
        let result = match again(&source).ok_or_else(|| source.error()) {
            Err(error @ AllocError::Memory(_)) => self.reclaim(op, &source, error, again),
            result => result,
        };
        // Of a new slab.
        self.serve(op);
        result
    }

    /// What need not be waited for: an object below the limit, or an error.
    #[inline]
    fn acquire_now(&self, gfp: Gfp) -> Option<Result<NonNull<u8>, AllocError>> {
        if self.has_waiters() {
            return None;
        }
        let result = self.alloc(gfp);
        if result.is_err_and(AllocError::is_limit) {
            // What waits has not failed.
            self.counts.failures.sub(1);
            return None;
        }
        Some(result)
    }
    fn poll_acquire(
        &self,
        gfp: Gfp,
        place: &mut Option<u64>,
        is_thread: bool,
        waker: &Waker,
    ) -> Poll<Result<NonNull<u8>, AllocError>> {
        loop {
            let Some(ticket) = *place else {
                if let Some(done) = self.acquire_now(gfp) {
                    return Poll::Ready(done);
                }
                self.admits(1)?;
                self.join(waker, is_thread, place).inspect_err(|_| self.counts.failures.add(1))?;
                self.call_in();
                continue;
            };
            // User code: outside of the lock.
            let mut mine = Some(waker.clone());
            let mut queue = self.queue();
            let Some(at) = queue.find(ticket) else {
                // A fork has forgotten it.
                *place = None;
                continue;
            };
            if let Some(object) = queue.entries[at].object {
                let left = queue.entries.remove(at);
                queue.given -= 1;
                drop(queue);
                *place = None;
                left.iter().for_each(|left| self.has_waited(left));
                quietly(|| drop((mine, left)));
                return Poll::Ready(Ok(self.hand_out(object, gfp)));
            }
            if at > queue.given || !core::mem::take(&mut queue.grow) {
                core::mem::swap(&mut queue.entries[at].waker, &mut mine);
                drop(queue);
                quietly(|| drop(mine));
                return Poll::Pending;
            }
            drop(queue);
            quietly(|| drop(mine));
            let result = self.alloc_at_limit(gfp);
            if matches!(result, Err(AllocError::AccountLimit { .. })) && self.wait_for_account() {
                self.let_grow();
            } else if !result.is_err_and(|error| error.is_limit()) {
                *place = None;
                self.leave(ticket, true);
                self.counts.failures.add(result.is_err().into());
                return Poll::Ready(result.map(|object| self.hand_out(object, gfp)));
            }
        }
    }

    fn has_waited(&self, left: &Waiter) {
        self.counts.waits.add(1);
        self.counts.waited.add(left.waited());
    }
    /// Gives up a place, and what it was given; `grow` says that the next one should try to make a slab in any case.
    fn leave(&self, ticket: u64, grow: bool) {
        let mut queue = self.queue();
        let Some(at) = queue.find(ticket) else { return };
        queue.grow |= grow;
        let left = queue.entries.remove(at);
        let object = left.as_ref().and_then(|waiter| waiter.object);
        queue.given -= usize::from(object.is_some());
        let waker = self.settle(&mut queue);
        drop(queue);
        planted!("who leaves the first place tells nobody" => let waker = None);
        left.iter().for_each(|left| self.has_waited(left));
        wake(waker);
        quietly(|| drop(left));
        planted!("a waiter that goes keeps what it was given" => return);
        if let Some(Object(object)) = object {
            self.unreserve(object);
        }
    }

    /// See [`KmemCache::acquire`](crate::KmemCache::acquire).
    pub(crate) fn acquire(&self, gfp: Gfp) -> Acquiring<'_> {
        Acquiring { cache: self, gfp, is_thread: false, place: None }
    }
    /// See [`KmemCache::acquire_timeout`](crate::KmemCache::acquire_timeout).
    pub(crate) fn acquire_timeout(&self, gfp: Gfp, timeout: Duration) -> Result<NonNull<u8>, AllocError> {
        if let Some(done) = self.acquire_now(gfp) {
            return done;
        }
        // What is beyond the clock is for ever.
        let deadline = Instant::now().checked_add(timeout);
        let (parker, mut acquire) = (Arc::new(Parker::new()), self.acquire(gfp));
        acquire.is_thread = true;
        let (waker, mut woken) = (Waker::from(parker.clone()), true);
        loop {
            match Pin::new(&mut acquire).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending if !woken => {
                    self.counts.failures.add(1);
                    return Err(self.limit_error());
                }
                Poll::Pending => woken = self.sleep(&parker, deadline, gfp),
            }
        }
    }
}

/// What [`KmemCache::acquire`](crate::KmemCache::acquire) waits by: the future of an object. It may be dropped at any time, and
/// moved.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use std::pin::Pin;
/// use uslab::{Gfp, KmemCache, Limit};
///
/// let inodes = KmemCache::builder("inode", 600).limit(Limit::Slabs(1)).build()?;
/// let mut all = inodes.alloc_blocks(Gfp::KERNEL, inodes.geometry().objects())?;
/// let mut acquire = inodes.acquire(Gfp::KERNEL);
/// let mut poll = || Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop()));
/// assert!(poll().is_pending());
/// all.pop();
/// let Poll::Ready(Ok(inode)) = poll() else { panic!("an object was freed") };
/// // SAFETY: allocated above from this cache, freed once.
/// unsafe { inodes.free(inode) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Acquiring<'c> {
    cache: &'c Cache,
    gfp: Gfp,
    /// Whether it is a thread's that waits by it, and not polled as a future.
    is_thread: bool,
    /// The ticket, once it waits.
    place: Option<u64>,
}

impl Future for Acquiring<'_> {
    type Output = Result<NonNull<u8>, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { cache, gfp, is_thread, place } = &mut *self;
        cache.poll_acquire(*gfp, place, *is_thread, context.waker())
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.place.take()
            && !abandoned()
        {
            self.cache.leave(ticket, false);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::cache::Account;
    use crate::{Config, Fork, KmemCache, Limit, Magazines, Shrinker, Subsystem};
    use std::task::Wake;
    use uslab_buddy::PageConfig;
    use uslab_magazine::sync::Counter;
    use uslab_magazine::{Cpus, on_cpu};

    /// A waker that counts.
    struct Woken(Counter);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.add(1);
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn nobody_is_woken_under_a_lock() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 64).build_in(&subsystem).unwrap();
        let woken = Arc::new(Woken(Counter::new(0)));
        let wakes = || wake(Some(Waker::from(woken.clone())));
        {
            let _held = cache.cache().queue();
            assert!(contain_panic(wakes).is_none());
        }
        assert_eq!(woken.0.get(), 0);
        wakes();
        assert_eq!(woken.0.get(), 1);
    }

    /// Where nobody waits a free to a slab leaves the queue alone.
    #[cfg(debug_assertions)]
    #[test]
    fn a_free_takes_no_lock_of_those_who_wait_unless_somebody_does() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("free", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let [first, second] = [(); 2].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
        {
            // All that such a free locks comes behind it in the lock order; the queue itself would be told.
            let _held = cache.cache().queue();
            // SAFETY: allocated above, freed once.
            assert!(contain_panic(|| unsafe { cache.free(first) }).is_some());
        }
        // SAFETY: as above.
        unsafe { cache.free(second) };
    }

    /// Once it got its place and returned, while CPUs still held objects.
    #[test]
    fn who_joins_while_the_first_calls_in_is_not_passed() {
        let pages = PageConfig::default_for(Cpus::simulated(2, 1).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        on_cpu(1);
        let mut held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        drop(held.pop());
        on_cpu(0);
        assert_eq!(cache.info().in_magazines, 1, "of the other CPU");
        // It goes on from here only then.
        let mut place = None;
        cache.cache().join(Waker::noop(), false, &mut place).unwrap();
        let mut second = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut second).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        on_cpu(1);
        assert!(cache.alloc(Gfp::KERNEL).is_err(), "it came last");
        let first = cache.cache().queue().entries[0].object;
        assert!(first.is_some());
        cache.cache().leave(place.unwrap(), false);
        let Poll::Ready(Ok(object)) = Pin::new(&mut second).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it is the next one")
        };
        // SAFETY: allocated above, freed once.
        unsafe { cache.free(object) };
        drop((second, held));
    }

    #[test]
    fn who_was_served_by_a_new_slab_tells_the_next_one_to_make_another() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("tenant", 1000).account(&account).magazines(Magazines::Off);
        let cache = cache.build_in(&subsystem).unwrap();
        let (objects, bytes) = (cache.geometry().objects(), cache.geometry().order().bytes());
        account.set_limit(bytes);
        let held = cache.alloc_blocks(Gfp::KERNEL, objects).unwrap();
        let woken = Arc::new(Woken(Counter::new(0)));
        let (waker, mut waiting) = (Waker::from(woken.clone()), vec![]);
        for i in 0..=objects {
            let waker = if i < objects { Waker::noop() } else { &waker };
            let mut acquire = cache.acquire(Gfp::KERNEL);
            assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(waker)).is_pending());
            waiting.push(acquire);
        }
        account.set_limit(3 * bytes);
        let mut poll = |i: usize| Pin::new(&mut waiting[i]).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(first)) = poll(0) else { panic!("there is room for a slab") };
        assert_eq!(woken.0.get(), 1, "there is room for one more");
        let Poll::Ready(Ok(last)) = poll(objects) else { panic!("it was told, and there is room") };
        for object in [first, last] {
            // SAFETY: allocated above, freed once.
            unsafe { cache.free(object) };
        }
        drop((waiting, held));
    }

    #[test]
    fn in_the_child_of_a_fork_nothing_is_done_for_who_waited_in_the_parent() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let waited_for = || subsystem.core().waited_for.load(Relaxed);
        assert_eq!((waited_for(), cache.cache().has_waiters()), (1, true));
        // Twice: a child may fork again.
        for _ in 0..2 {
            // SAFETY: this thread goes on as the child's would, and no other one uses the subsystem.
            unsafe {
                subsystem.before_fork();
                subsystem.after_fork_in_child();
            }
            assert_eq!((waited_for(), cache.cache().has_waiters()), (0, false));
        }
        drop((acquire, held));
    }

    #[test]
    fn in_the_child_of_a_fork_a_wait_for_an_account_is_over_and_who_looks_first_opens_the_magazines() {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("waits", 1000).account(&account).build_in(&subsystem).unwrap();
        account.set_limit(cache.geometry().order().bytes());
        let mut held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(account.charges.is_waited_for());
        // Twice: it is over once.
        for _ in 0..2 {
            // SAFETY: this thread goes on as the child's would, and no other one uses the subsystem.
            unsafe {
                subsystem.before_fork();
                subsystem.after_fork_in_child();
            }
            assert!(!account.charges.is_waited_for());
        }
        assert_eq!(cache.info().waiting, 0);
        drop(held.pop());
        assert!(cache.info().in_magazines > 0);
        drop((acquire, held));
    }

    /// Whatever had come to wait for readers in the account's other caches by then had woken nobody here.
    #[test]
    fn threads_that_sleep_look_again_when_the_first_begins_to_wait_for_the_account() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("waits", 1000).account(&account).build_in(&subsystem).unwrap();
        let woken = [(); 3].map(|()| Arc::new(Woken(Counter::new(0))));
        // A future, and two threads behind it.
        let tickets = [0, 1, 2].map(|i| {
            let mut place = None;
            cache.cache().join(&Waker::from(woken[i].clone()), i > 0, &mut place).unwrap();
            place.unwrap()
        });
        assert!(cache.cache().wait_for_account());
        assert_eq!(woken.map(|woken| woken.0.get()), [0, 1, 1]);
        tickets.into_iter().for_each(|ticket| cache.cache().leave(ticket, false));
        assert_eq!(cache.info().waiting, 0);
    }

    #[test]
    fn who_comes_to_serve_and_finds_nobody_takes_nothing() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("idle", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let served = cache.cache().serve_one(&cache.cache().operation(What::Free));
        assert_eq!((served.is_none(), cache.info().used), (true, 0));
    }

    #[test]
    fn who_waits_for_an_account_has_the_shrinkers_of_all_its_caches_asked_again_and_another_one_its_own() {
        struct Asked(Arc<Counter>);
        impl Shrinker for Asked {
            fn count(&self) -> usize {
                self.0.add(1);
                0
            }
            fn scan(&self, _: usize, _: Gfp) -> usize {
                0
            }
        }
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let build = |name| KmemCache::builder(name, 1000).magazines(Magazines::Off).account(&account);
        let full = build("full").limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let other = build("other").build_in(&subsystem).unwrap();
        let asked = [(); 2].map(|()| Arc::new(Counter::new(0)));
        let own = |i: usize| Asked(asked[i].clone());
        let _registered = [full.register_shrinker(own(0)), other.register_shrinker(own(1))];
        let asks = |cache: &KmemCache, gfp| {
            asked.iter().for_each(|asked| asked.set(0));
            cache.cache().ask_again(gfp);
            asked.each_ref().map(|asked| asked.get())
        };
        let is_pending = |acquire: &mut Acquiring<'_>| {
            Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending()
        };
        let held = full.alloc_blocks(Gfp::KERNEL, full.geometry().objects()).unwrap();
        assert_eq!(asks(&full, Gfp::KERNEL), [0, 0], "nobody waits");
        let mut first = full.acquire(Gfp::KERNEL);
        assert!(is_pending(&mut first));
        assert_eq!(asks(&full, Gfp::NOWAIT), [0, 0]);
        assert_eq!(asks(&full, Gfp::KERNEL), [1, 0], "the limit is its own");
        account.set_limit(account.charged());
        let mut second = other.acquire(Gfp::KERNEL);
        assert!(is_pending(&mut second));
        assert_eq!(asks(&other, Gfp::NOWAIT), [0, 0]);
        assert_eq!(asks(&other, Gfp::KERNEL), [1, 1]);
        drop((first, second, held));
    }

    fn forget(cache: &KmemCache) {
        let mut acquire = core::mem::ManuallyDrop::new(cache.acquire(Gfp::KERNEL));
        assert!(Pin::new(&mut *acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    /// Once all caches of the account worked without magazines for ever, and the reaper never slept.
    #[test]
    fn nobody_waits_for_an_account_in_a_cache_that_is_gone() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
        let (full, cache) = (build("full"), build("forgets"));
        account.set_limit(full.geometry().order().bytes());
        let mut held = full.alloc_blocks(Gfp::KERNEL, full.geometry().objects()).unwrap();
        forget(&cache);
        let waited_for = || (subsystem.core().waited_for.load(Relaxed), account.charges.is_waited_for());
        assert_eq!(waited_for(), (1, true));
        drop(cache);
        assert_eq!(waited_for(), (0, false));
        held.truncate(held.len() - 2);
        assert!(full.info().in_magazines > 0, "its magazines are open again");
    }

    #[test]
    fn a_cache_that_is_left_ends_although_futures_of_it_were_forgotten() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let mut held: Vec<_> =
            (0..cache.geometry().objects()).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        (0..3).for_each(|_| forget(&cache));
        // SAFETY: allocated above, freed once.
        unsafe { cache.free(held.pop().unwrap()) };
        let core = subsystem.core();
        assert_eq!((core.waited_for.load(Relaxed), cache.info().waiting), (1, 2));
        drop(cache);
        let is_listed = || core.caches.iter().any(|cache| cache.name() == "full");
        assert_eq!((core.waited_for.load(Relaxed), is_listed()), (0, true), "objects are in use");
        assert!(subsystem.info().caches.iter().all(|cache| cache.waiting == 0));
        for object in held {
            // SAFETY: as above.
            assert!(unsafe { core.free_object(object) });
        }
        assert!(!is_listed());
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }
}
