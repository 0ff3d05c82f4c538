//! Waiting at a limit: the queue of a cache's waiters.
//!
//! ```text
//! acquire ── alloc ── an object
//!              └ at the limit: join the queue; the first waiter closes the magazines and flushes them, as do waiters that join before that is done
//!                   └ first in the queue ── given a free object ──────────────┐
//!                                        └─ the charge fell: grow ───── leave ┴─ the last one opens the magazines
//! free ── magazine, if the cache has no waiter
//!           └ closed: to its slab; then, if there are waiters, the first one gets a free object of the slabs
//! ```
//!
//! # Protocol
//!
//! * **Magazines** are closed while the cache has waiters, so the inlined paths need not check the queue. A free then
//!   finds no room on its CPU's stack, and takes the slow path to its slab, as if the stack were full. A free that was
//!   already running when the magazines were closed also ends in the slab (see
//!   [`Layer::close`](uslab_magazine::Layer::close)). Every path that puts an object into a slab checks for waiters
//!   afterwards.
//! * **No lost wake-up by an object.** A waiter first sets `closed`, and then searches each slab under its node's lock.
//!   A free first puts its object into the slab under the node's lock, and then reads `closed`. The thread that takes
//!   the lock second sees the first thread's write.
//! * **No lost wake-up by a charge.** A waiter sets `waiting` and then adds 0 to the charge. A thread that frees a slab
//!   first reduces the charge, and then reads `waiting`. The thread that is second in the charge's modification order
//!   sees the first thread's write. A thread that sees a waiter sets `grow`. The first waiter then tries to make a
//!   slab. A waiter that leaves the front of the queue also sets `grow`, for the next waiter.
//! * **Unconstructed objects** are not handed to a waiter, because a constructor must run without a lock. A thread that
//!   frees an unconstructed object to its slab sets `grow`. The first waiter takes a free unconstructed object from the
//!   slab and constructs it.
//! * **Accounts.** A waiter at an account's limit waits in its cache's queue. The account's first waiter closes the
//!   magazines of all caches of the account, and each cache frees its slabs as they become empty. After a free, a cache
//!   opens its magazines if the account no longer has waiters.
//! * **Fairness.** A freed object is given to the waiter with the lowest ticket that has no object yet. While there are
//!   waiters, slabs refuse other allocations ([`SlabSupplier`](crate::cache::alloc)), and a new waiter joins at the end
//!   of the queue. The first poll of a future does not return before the CPUs have been drained. An object that was
//!   given to a waiter stays with that waiter, however late the waiter runs.
//! * **Cancellation.** A waiter that is dropped leaves the queue. The object of a dropped waiter is freed, which passes
//!   it to the next waiter. If the first waiter in the queue is dropped, the next waiter tries to grow the cache. A
//!   leaked future (`mem::forget`) is given one object, which is lost until the cache is destroyed. Until the leaked
//!   future is given its object, later waiters make no slabs. Later waiters also make no slabs as long as the first
//!   waiter is not polled.
//! * **Shrinkers** are called by an allocation before it waits. If another thread holds a lock that a shrinker needs,
//!   the shrinker may be able to free objects a moment later. No free wakes the waiter at that moment. Therefore a
//!   waiting thread calls shrinkers again periodically, and the reaper calls shrinkers for futures. The first waiter
//!   wakes the reaper, which does not sleep while there are waiters.
//! * **RCU readers** do not announce their exit. While freed objects of its cache or account wait for a grace period, a
//!   waiting thread periodically advances the collector. For futures, the reaper advances the collector. If no objects
//!   are in a grace period, the thread sleeps until it is woken. A waiting thread reads the counts of objects in a
//!   grace period by adding 0. A thread that raises the count of waiting objects above 0 sees the waiter, and wakes it.
//!   The thread that is second in the count's modification order sees the first thread's write. Registering a shrinker
//!   at a limit also wakes waiting threads. The lock of the shrinkers' list orders the registration and the wait.
//! * **Wakers** are user code. No thread holds the queue's lock while it runs or drops a waker. A panic of a waker is
//!   contained, because the caller may hold objects and must wake other waiters.
//! * **Lock order:** take the queue's lock before the locks of `Drains`, `Depot` and `Node`.
//!
//! A cache with waiters is slow, because each allocation and free takes the queue's lock and a node's lock. The first
//! waiter, and each waiter that joins before the drain ends, pays for a drain of all CPUs. If allocations did not wait,
//! each allocation that fails at the limit would also pay for a drain.

use super::queue::{Queue, Waiter};
use crate::cache::alloc::SlabSupplier;
use crate::cache::node::NodeCount;
use crate::cache::{Cache, Object};
use crate::error::AllocError;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uslab_buddy::Gfp;
use uslab_magazine::Operation;
#[cfg(not(loom))]
use uslab_magazine::sync::Ordering::Release;
use uslab_magazine::sync::{
    MutexGuard, Ordering::Relaxed, Parker, abandoned, assert_unlocked, contain_panic,
};
use uslab_magazine::tracepoints::OperationKind;

/// Interval at which a sleeping waiter calls the shrinkers again, if there are any, and advances the RCU collector.
const SHRINKER_INTERVAL: Duration = Duration::from_millis(10);
/// A repeated call requests the fraction `1 / SHRINKER_REPEAT_DIVISOR` of a shrinker's objects.
const SHRINKER_REPEAT_DIVISOR: usize = 8;

/// Runs a waker, which is user code. If a waker panics, the panic hook has already reported the panic. The remaining
/// wakers still run.
fn run_waker(run: impl FnOnce()) {
    assert_unlocked();
    contain_panic(run);
}
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| run_waker(|| waker.wake()));
}

impl Cache {
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        // Relaxed: see "No lost wake-up" in the module docs.
        self.waiters.waiting.load(Relaxed)
    }

    /// Number of waiters that have not yet been given an object.
    pub(crate) fn waiting(&self) -> usize {
        let queue = self.queue();
        queue.entries.len() - queue.served_waiters
    }

    /// Resets the queue in the child of a fork. Other waiting threads do not exist in the child, and this thread's own
    /// wait is over.
    ///
    /// # Safety
    /// The caller must hold the lock, by the contract of
    /// [`Fork::forget_other_threads`](crate::Fork::forget_other_threads).
    pub(crate) unsafe fn reset_waiters_after_fork(&self) {
        // SAFETY: by contract, the caller holds the lock.
        if let Some(queue) = unsafe { self.waiters.queue.held() } {
            // The waiters of the account's other caches read the account's count.
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
            // The entries' objects and wakers belong to the parent, and wakers of other threads are not run in the
            // child.
            queue.entries.drain(..).for_each(core::mem::forget);
            (queue.served_waiters, queue.at_account) = (0, false);
            _ = self.settle(&mut queue);
        }
        queue
    }

    /// Publishes the queue's state. The caller must call this after each change of the queue. Returns the waker of the
    /// first waiter, if that waiter should try to grow the cache.
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
        let closed = is_waiting || account.is_some_and(|account| account.has_charge_waiters());
        // Relaxed: the flag is written under the lock, and is only a hint to readers without the
        // lock.
        if closed != waiters.closed.load(Relaxed) {
            waiters.closed.store(closed, Relaxed);
            match closed {
                true => self.config.per_cpu.close(),
                false if queue.is_left => {}
                false => self.config.per_cpu.reopen(),
            }
        }
        let served_waiters = queue.served_waiters;
        queue.entries.get_mut(served_waiters).filter(|_| queue.grow)?.waker.take()
    }
    fn update_queue(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue();
        change(&mut queue);
        let waker = self.settle(&mut queue);
        drop(queue);
        wake(waker);
    }

    /// Opens or closes the magazines, depending on the account's waiters.
    pub(crate) fn sync_magazines_with_account(&self) {
        self.update_queue(|_| ());
    }
    /// Marks the first waiter as waiting for the account; returns `false` if it was already marked.
    fn wait_for_account(&self) -> bool {
        let Some(account) = &self.config.account else { return false };
        let mut is_first = false;
        self.update_queue(|queue| {
            is_first = queue.is_waiting() && !queue.at_account;
            if is_first {
                queue.at_account = true;
                account.begin_charge_wait();
            }
        });
        if is_first {
            // From now on this cache's waiting threads also watch the account's other caches.
            self.wake_cache_waiters();
            self.core.close_account(&self.operation(OperationKind::Reclaim), account);
        }
        is_first
    }

    /// Appends a waiter to the queue. Before any other step, writes the waiter's ticket to `place`.
    fn join(&self, waker: &Waker, is_thread: bool, place: &mut Option<u64>) -> Result<(), AllocError> {
        let mut waker = Some(waker.clone());
        let mut larger = VecDeque::new();
        loop {
            let mut queue = self.queue();
            let len = queue.entries.len();
            if len == queue.entries.capacity() {
                // The larger queue is allocated outside the lock, because the global allocator may use a cache.
                if larger.capacity() <= len {
                    drop(queue);
                    let bytes = (2 * len + 8) * size_of::<Waiter>();
                    larger.try_reserve(2 * len + 8).map_err(|_| AllocError::Refused { bytes })?;
                    continue;
                }
                larger.append(&mut queue.entries);
                core::mem::swap(&mut queue.entries, &mut larger);
            }
            debug_assert!(len < queue.entries.capacity(), "no memory is allocated under the lock");
            let (ticket, is_first) = (queue.next_ticket, !queue.is_waiting());
            queue.next_ticket += 1;
            queue.entries.push_back(Waiter::new(ticket, waker.take(), is_thread));
            *place = Some(ticket);
            queue.grow |= is_first;
            queue.closings += u64::from(is_first);
            // The returned waker belongs to this waiter, which is running and need not be woken.
            let own_waker = self.settle(&mut queue);
            drop(queue);
            run_waker(|| drop(own_waker));
            return Ok(());
        }
    }
    /// Flushes the objects of all CPUs and depots to the slabs, so that the waiters get them. The first waiter flushes,
    /// and so does each waiter that joins before this flush ends. Until the flush ends, a CPU may hold an object that a
    /// later waiter would get.
    fn drain_for_waiter(&self) {
        let Queue { closings, called_in, .. } = *self.queue();
        if called_in < closings {
            self.touch_charge_for_waiter();
            self.flush_deferred();
            self.flush_all(&self.operation(OperationKind::Reclaim));
            self.core.background.start_or_wake_reaper();
            self.update_queue(|queue| queue.called_in = queue.called_in.max(closings));
        }
    }

    /// Hands free objects from the slabs to waiters. Every free to a slab calls this function.
    #[inline]
    pub(crate) fn serve(&self, op: &Operation) {
        // Relaxed: see "No lost wake-up" in the module docs.
        if self.waiters.closed.load(Relaxed) {
            self.serve_waiters_from_slabs(op);
        }
    }
    #[cold]
    fn serve_waiters_from_slabs(&self, op: &Operation) {
        while self.has_waiters() {
            let Some(wakers) = self.serve_next_waiter(op) else { break };
            wake(wakers.into_iter().flatten());
        }
        // The free objects are not constructed, so the first waiter constructs them outside the lock.
        let is_free = || {
            let NodeCount { objects, inuse, .. } = self.count();
            objects > inuse
        };
        if self.has_waiters() && self.constructs_on_allocation() && is_free() {
            self.let_first_waiter_grow();
        }
        if self.config.account.as_ref().is_some_and(|account| account.has_charge_waiters()) {
            self.discard_empty(op);
        } else if !self.has_waiters() {
            // The account no longer has waiters.
            self.update_queue(|_| ());
        }
    }
    #[cold]
    #[inline(never)]
    fn serve_next_waiter(&self, op: &Operation) -> Option<[Option<Waker>; 2]> {
        let mut queue = self.queue();
        let place = queue.served_waiters;
        queue.entries.get(place)?;
        let mut object = None;
        let (here, nodes) = (self.this_node(), self.nodes.len() as u32);
        let take = |node: u32| {
            let set_object = |place| object = Some(self.object(place));
            self.nodes[node as usize].alloc(op, &self.core.memory, 1, false, set_object).0 > 0
        };
        (0..nodes).map(|i| (here + i) % nodes).any(take).then_some(())?;
        self.counts.direct_allocs.add(1);
        self.counts.direct_paths.count(op);
        let waiter = &mut queue.entries[place];
        waiter.object = object;
        let waker = waiter.waker.take();
        queue.served_waiters += 1;
        Some([waker, self.settle(&mut queue)])
    }

    /// Makes the first waiter try to make a slab, after the charge has decreased.
    pub(crate) fn let_first_waiter_grow(&self) {
        if self.has_waiters() {
            self.update_queue(|queue| queue.grow = true);
        }
    }
    /// Lets the first waiter try to make a slab, after the account's limit changed.
    pub(crate) fn handle_limit_change(&self) {
        self.update_queue(|queue| queue.grow = true);
    }
    /// If there are waiters, runs the shrinkers of the exhausted cache or account again, for a fraction of their
    /// objects.
    pub(crate) fn rerun_shrinkers(&self, gfp: Gfp) {
        if !self.has_waiters() || !gfp.may_reclaim() {
            return;
        }
        let run_shrinkers =
            |cache: &Self| _ = self.core.shrinkers.run(SHRINKER_REPEAT_DIVISOR, gfp, cache.number);
        let is_at_account = self.queue().at_account;
        match self.config.account.as_ref().filter(|_| is_at_account) {
            Some(account) => self.core.caches_of_account(account).for_each(|cache| run_shrinkers(&cache)),
            None => run_shrinkers(self),
        }
    }
    /// Returns `true` if freed objects of this cache wait for readers. A thread that defers a free after this call
    /// wakes the waiters.
    #[cfg(not(loom))]
    fn has_deferred_frees(&self) -> bool {
        // Release: pairs with the Acquire of `begin_grace`.
        [&self.counts.grace, &self.counts.deferred].into_iter().any(|count| count.fetch_add(0, Release) > 0)
    }
    /// Returns `true` if memory may become free without a wake-up: a shrinker may free memory, or readers may exit.
    #[cfg(not(loom))]
    fn must_poll_for_memory(&self) -> bool {
        let mut account_caches =
            self.config.account.iter().flat_map(|account| self.core.caches_of_account(account));
        // The clock of a model checker does not advance, so there the reaper runs the shrinkers.
        let has_shrinkers = !cfg!(shuttle) && self.core.shrinkers.has_limit_shrinkers();
        has_shrinkers || self.has_deferred_frees() || account_caches.any(|cache| cache.has_deferred_frees())
    }
    /// Wakes the threads that wait for this cache, or for its account.
    pub(crate) fn wake_threads(&self) {
        match self.config.account.as_ref().filter(|account| account.has_charge_waiters()) {
            Some(account) => {
                self.core.caches_of_account(account).for_each(|cache| cache.wake_cache_waiters())
            }
            None => self.wake_cache_waiters(),
        }
    }
    fn wake_cache_waiters(&self) {
        // Relaxed: see "RCU readers" in the module docs.
        if self.has_waiters() {
            let mut tickets = 0..self.queue().next_ticket;
            wake(core::iter::from_fn(|| self.queue().take_next_sleeping_thread(&mut tickets)));
        }
    }
    /// Sleeps until another thread wakes this thread or `deadline` passes; returns `true` if the
    /// thread was woken.
    fn sleep(&self, parker: &Parker, deadline: Option<Instant>, _gfp: Gfp) -> bool {
        #[cfg(not(loom))]
        while self.must_poll_for_memory() {
            let next_shrinker_run = Instant::now() + SHRINKER_INTERVAL;
            if deadline.is_some_and(|deadline| deadline <= next_shrinker_run) {
                break;
            }
            if parker.park(Some(next_shrinker_run)) {
                return true;
            }
            self.rerun_shrinkers(_gfp);
            crate::reclaim::rcu::advance();
        }
        parker.park(deadline)
    }
    /// Reopens the magazines, unless the cache has waiters.
    pub(crate) fn reopen(&self) {
        let queue = self.queue();
        if !(queue.is_left || self.waiters.closed.load(Relaxed)) {
            self.config.per_cpu.reopen();
        }
    }
    /// Closes the magazines for the rest of the cache's life, because the cache has lost its owner. Futures borrow the
    /// cache, so any remaining entries of the queue were leaked.
    pub(crate) fn close_permanently(&self) {
        let mut queue = self.queue();
        queue.is_left = true;
        let forgotten = core::mem::take(&mut queue.entries);
        queue.served_waiters = 0;
        if !forgotten.is_empty() {
            _ = self.settle(&mut queue);
        }
        drop(queue);
        self.config.per_cpu.close();
        for Waiter { waker, object, .. } in forgotten {
            run_waker(|| drop(waker));
            object.into_iter().for_each(|Object(object)| self.release_reserved_object(object));
        }
    }

    /// Allocates an object for the first waiter, from an existing or a new slab.
    fn alloc_at_limit(&self, gfp: Gfp) -> Result<Object, AllocError> {
        let source = SlabSupplier::for_first_waiter(self, gfp);
        let (op, here, nodes) =
            (&self.operation(OperationKind::Alloc), self.this_node(), self.nodes.len() as u32);
        let retry = |slabs: &SlabSupplier<'_>| {
            (0..nodes).find_map(|i| self.take_from_slab(op, slabs, (here + i) % nodes))
        };
        let result = match retry(&source).ok_or_else(|| source.error()) {
            Err(error @ AllocError::Memory(_)) => self.reclaim(op, &source, error, retry),
            result => result,
        };
        // The new slab may have more free objects, which other waiters get.
        self.serve(op);
        result
    }

    /// Allocates an object if the cache is below its limit. Returns `None` if the caller must wait at the limit.
    /// Returns all other errors.
    #[inline]
    fn try_acquire_below_limit(&self, gfp: Gfp) -> Option<Result<NonNull<u8>, AllocError>> {
        if self.has_waiters() {
            return None;
        }
        let result = self.alloc(gfp);
        if result.is_err_and(AllocError::is_limit_error) {
            // The operation will wait, so it does not count as failed.
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
                if let Some(done) = self.try_acquire_below_limit(gfp) {
                    return Poll::Ready(done);
                }
                self.check_object_limit(1)?;
                self.join(waker, is_thread, place).inspect_err(|_| self.counts.failures.add(1))?;
                self.drain_for_waiter();
                continue;
            };
            // A waker is cloned outside the lock, because cloning runs user code.
            let mut own_waker = Some(waker.clone());
            let mut queue = self.queue();
            let Some(at) = queue.find(ticket) else {
                *place = None;
                continue;
            };
            if let Some(object) = queue.entries[at].object {
                let left = queue.entries.remove(at);
                queue.served_waiters -= 1;
                drop(queue);
                *place = None;
                left.iter().for_each(|left| self.count_finished_wait(left));
                run_waker(|| drop((own_waker, left)));
                return Poll::Ready(Ok(self.hand_out(object, gfp)));
            }
            if at > queue.served_waiters || !core::mem::take(&mut queue.grow) {
                core::mem::swap(&mut queue.entries[at].waker, &mut own_waker);
                drop(queue);
                run_waker(|| drop(own_waker));
                return Poll::Pending;
            }
            drop(queue);
            run_waker(|| drop(own_waker));
            let result = self.alloc_at_limit(gfp);
            if matches!(result, Err(AllocError::AccountLimit { .. })) && self.wait_for_account() {
                self.let_first_waiter_grow();
            } else if !result.is_err_and(|error| error.is_limit_error()) {
                *place = None;
                self.leave(ticket, true);
                self.counts.failures.add(result.is_err().into());
                return Poll::Ready(result.map(|object| self.hand_out(object, gfp)));
            }
        }
    }

    fn count_finished_wait(&self, left: &Waiter) {
        self.counts.waits.add(1);
        self.counts.waited.add(left.waited());
    }
    /// Leaves the queue, and frees the object that was given to this waiter, if any. If `grow` is true, the next waiter
    /// always tries to make a slab.
    fn leave(&self, ticket: u64, grow: bool) {
        let mut queue = self.queue();
        let Some(at) = queue.find(ticket) else { return };
        queue.grow |= grow;
        let left = queue.entries.remove(at);
        let object = left.as_ref().and_then(|waiter| waiter.object);
        queue.served_waiters -= usize::from(object.is_some());
        let waker = self.settle(&mut queue);
        drop(queue);
        left.iter().for_each(|left| self.count_finished_wait(left));
        wake(waker);
        run_waker(|| drop(left));
        if let Some(Object(object)) = object {
            self.release_reserved_object(object);
        }
    }

    pub(crate) fn acquire(&self, gfp: Gfp) -> Acquiring<'_> {
        Acquiring { cache: self, gfp, is_thread: false, place: None }
    }
    pub(crate) fn acquire_timeout(&self, gfp: Gfp, timeout: Duration) -> Result<NonNull<u8>, AllocError> {
        if let Some(done) = self.try_acquire_below_limit(gfp) {
            return done;
        }
        // A deadline that the clock cannot represent means no timeout.
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

/// The future of [`KmemCache::acquire`](crate::KmemCache::acquire). The future is `Unpin` and may be dropped at any
/// time.
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
    /// True if a thread waits through this future, in
    /// [`KmemCache::acquire_timeout`](crate::KmemCache::acquire_timeout).
    is_thread: bool,
    /// The waiter's ticket while the waiter is in the queue.
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

    /// A waker that counts its calls.
    struct CountingWaker(Counter);
    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.add(1);
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn waiter_wakers_are_called_without_locks_held() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 64).build_in(&subsystem).unwrap();
        let woken = Arc::new(CountingWaker(Counter::new(0)));
        let wakes = || wake(Some(Waker::from(woken.clone())));
        {
            let _held = cache.cache().queue();
            assert!(contain_panic(wakes).is_none());
        }
        assert_eq!(woken.0.get(), 0);
        wakes();
        assert_eq!(woken.0.get(), 1);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn free_without_waiters_does_not_lock_the_wait_queue() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("free", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        let [first, second] = [(); 2].map(|()| cache.alloc(Gfp::KERNEL).unwrap());
        {
            // The free takes only locks that follow the queue's lock in the lock order. If the free took the queue's
            // lock again, the lock would report an error.
            let _held = cache.cache().queue();
            // SAFETY: the object was allocated above, and is freed once.
            assert!(contain_panic(|| unsafe { cache.free(first) }).is_some());
        }
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(second) };
    }

    /// Regression test: the call of a waiter that joined during a drain returned while CPUs still held objects.
    #[test]
    fn waiter_joining_during_a_drain_keeps_its_queue_place() {
        let pages = PageConfig::default_for(Cpus::simulated(2, 1).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        on_cpu(1);
        let mut held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        drop(held.pop());
        on_cpu(0);
        assert_eq!(cache.info().in_magazines, 1, "the object is from the other CPU");
        // The drain continues only after the second waiter has joined.
        let mut place = None;
        cache.cache().join(Waker::noop(), false, &mut place).unwrap();
        let mut second = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut second).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        on_cpu(1);
        assert!(cache.alloc(Gfp::KERNEL).is_err(), "the waiter joined last");
        let first = cache.cache().queue().entries[0].object;
        assert!(first.is_some());
        cache.cache().leave(place.unwrap(), false);
        let Poll::Ready(Ok(object)) = Pin::new(&mut second).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("the waiter is the next in the queue")
        };
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(object) };
        drop((second, held));
    }

    #[test]
    fn waiter_served_by_new_slab_wakes_the_next_waiter() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("tenant", 1000).account(&account).magazines(Magazines::Off);
        let cache = cache.build_in(&subsystem).unwrap();
        let (objects, bytes) = (cache.geometry().objects(), cache.geometry().order().bytes());
        account.set_limit(bytes);
        let held = cache.alloc_blocks(Gfp::KERNEL, objects).unwrap();
        let woken = Arc::new(CountingWaker(Counter::new(0)));
        let (waker, mut waiting) = (Waker::from(woken.clone()), vec![]);
        for i in 0..=objects {
            let waker = if i < objects { Waker::noop() } else { &waker };
            let mut acquire = cache.acquire(Gfp::KERNEL);
            assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(waker)).is_pending());
            waiting.push(acquire);
        }
        account.set_limit(3 * bytes);
        let mut poll = |i: usize| Pin::new(&mut waiting[i]).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(first)) = poll(0) else { panic!("the limit allows a slab") };
        assert_eq!(woken.0.get(), 1, "the limit allows one more slab");
        let Poll::Ready(Ok(last)) = poll(objects) else {
            panic!("the waiter was woken, and the limit allows a slab")
        };
        for object in [first, last] {
            // SAFETY: the object was allocated above, and is freed once.
            unsafe { cache.free(object) };
        }
        drop((waiting, held));
    }

    #[test]
    fn forked_child_drops_the_waiters_of_its_parent() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let waited_for = || subsystem.core().waited_for.load(Relaxed);
        assert_eq!((waited_for(), cache.cache().has_waiters()), (1, true));
        // The test forks twice, because a child may fork again.
        for _ in 0..2 {
            // SAFETY: the test continues as a forked child's only thread, and no other thread uses the subsystem.
            unsafe {
                subsystem.before_fork();
                subsystem.after_fork_in_child();
            }
            assert_eq!((waited_for(), cache.cache().has_waiters()), (0, false));
        }
        drop((acquire, held));
    }

    #[test]
    fn forked_child_reopens_the_magazines_that_waiters_closed() {
        on_cpu(0);
        let pages = PageConfig::default_for(Cpus::simulated(1, 1).unwrap()).limit(64 << 20);
        let subsystem = Subsystem::new(Config::new(pages)).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("waits", 1000).account(&account).build_in(&subsystem).unwrap();
        account.set_limit(cache.geometry().order().bytes());
        let mut held = cache.alloc_blocks(Gfp::KERNEL, cache.geometry().objects()).unwrap();
        let mut acquire = cache.acquire(Gfp::KERNEL);
        assert!(Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(account.charges.has_charge_waiters());
        // The loop runs twice, because only the first run ends the wait.
        for _ in 0..2 {
            // SAFETY: the test continues as a forked child's only thread, and no other thread uses the subsystem.
            unsafe {
                subsystem.before_fork();
                subsystem.after_fork_in_child();
            }
            assert!(!account.charges.has_charge_waiters());
        }
        assert_eq!(cache.info().waiting, 0);
        drop(held.pop());
        assert!(cache.info().in_magazines > 0);
        drop((acquire, held));
    }

    /// Regression test: objects of the account's other caches did not wake waiting threads if the objects already
    /// waited for readers.
    #[test]
    fn account_wait_of_the_first_waiter_wakes_waiting_threads() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let cache = KmemCache::builder("waits", 1000).account(&account).build_in(&subsystem).unwrap();
        let woken = [(); 3].map(|()| Arc::new(CountingWaker(Counter::new(0))));
        // The queue contains a future, followed by two threads.
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
    fn serving_an_empty_wait_queue_takes_no_object() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("idle", 64).magazines(Magazines::Off).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let served = cache.cache().serve_next_waiter(&cache.cache().operation(OperationKind::Free));
        assert_eq!((served.is_none(), cache.info().used), (true, 0));
    }

    #[test]
    fn waiters_of_an_account_retry_the_shrinkers_of_every_cache() {
        struct CountingShrinker(Arc<Counter>);
        impl Shrinker for CountingShrinker {
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
        let calls = [(); 2].map(|()| Arc::new(Counter::new(0)));
        let own = |i: usize| CountingShrinker(calls[i].clone());
        let _registered = [full.register_shrinker(own(0)), other.register_shrinker(own(1))];
        let asks = |cache: &KmemCache, gfp| {
            calls.iter().for_each(|calls| calls.set(0));
            cache.cache().rerun_shrinkers(gfp);
            calls.each_ref().map(|calls| calls.get())
        };
        let is_pending = |acquire: &mut Acquiring<'_>| {
            Pin::new(acquire).poll(&mut Context::from_waker(Waker::noop())).is_pending()
        };
        let held = full.alloc_blocks(Gfp::KERNEL, full.geometry().objects()).unwrap();
        assert_eq!(asks(&full, Gfp::KERNEL), [0, 0], "there are no waiters");
        let mut first = full.acquire(Gfp::KERNEL);
        assert!(is_pending(&mut first));
        assert_eq!(asks(&full, Gfp::NOWAIT), [0, 0]);
        assert_eq!(asks(&full, Gfp::KERNEL), [1, 0], "the cache has its own limit");
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

    /// Regression test: after a cache with waiters was dropped, all caches of its account worked without magazines for
    /// ever, and the reaper never slept.
    #[test]
    fn dropped_cache_removes_its_waiters_from_the_account() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let account = Account::new_in(&subsystem, usize::MAX);
        let build = |name| KmemCache::builder(name, 1000).account(&account).build_in(&subsystem).unwrap();
        let (full, cache) = (build("full"), build("forgets"));
        account.set_limit(full.geometry().order().bytes());
        let mut held = full.alloc_blocks(Gfp::KERNEL, full.geometry().objects()).unwrap();
        forget(&cache);
        let waited_for = || (subsystem.core().waited_for.load(Relaxed), account.charges.has_charge_waiters());
        assert_eq!(waited_for(), (1, true));
        drop(cache);
        assert_eq!(waited_for(), (0, false));
        held.truncate(held.len() - 2);
        assert!(full.info().in_magazines > 0, "the cache's magazines are open again");
    }

    #[test]
    fn dropped_cache_with_leaked_futures_is_freed() {
        on_cpu(0);
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("full", 1000).limit(Limit::Slabs(1)).build_in(&subsystem).unwrap();
        let mut held: Vec<_> =
            (0..cache.geometry().objects()).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        (0..3).for_each(|_| forget(&cache));
        // SAFETY: the object was allocated above, and is freed once.
        unsafe { cache.free(held.pop().unwrap()) };
        let core = subsystem.core();
        assert_eq!((core.waited_for.load(Relaxed), cache.info().waiting), (1, 2));
        drop(cache);
        let is_listed = || core.caches.iter().any(|cache| cache.name() == "full");
        assert_eq!((core.waited_for.load(Relaxed), is_listed()), (0, true), "the cache has objects in use");
        assert!(subsystem.info().caches.iter().all(|cache| cache.waiting == 0));
        for object in held {
            // SAFETY: the object was allocated above, and is freed once.
            assert!(unsafe { core.free_object(object) });
        }
        assert!(!is_listed());
        assert_eq!(subsystem.check().unwrap().slabs, 0);
    }
}
