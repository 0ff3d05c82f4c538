//! Who waits for an object of a cache, in their order. What is done with them stands in [`waiters`](super::waiters).

use super::object::Object;
use core::ops::Range;
use core::task::Waker;
use std::collections::VecDeque;
use std::time::Instant;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{AtomicBool, Counter, Rank};

/// The waiters of a cache.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Whether somebody waits who has been given nothing. Written under the lock of `queue`, as `closed`.
    pub(super) waiting: AtomicBool,
    /// Whether the magazines are closed: somebody waits here, or for the account.
    pub(super) closed: AtomicBool,
    pub(crate) queue: ForkMutex<Queue>,
}

/// What the lock protects.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By ticket. The first `given` of them have an object, and the others wait.
    pub(super) entries: VecDeque<Waiter>,
    pub(super) given: usize,
    pub(super) next_ticket: u64,
    /// How often somebody began to wait where nobody did, and the last of these times for which the CPUs have been drained.
    pub(super) closings: u64,
    pub(super) called_in: u64,
    /// Whether the first who waits should try to make a slab.
    pub(super) grow: bool,
    /// Whether they wait for the account, too.
    pub(super) at_account: bool,
    /// Whether nobody owns the cache any more: its magazines stay closed.
    pub(super) is_left: bool,
    /// Whether this is the child of a fork, which has no thread that waits.
    pub(super) forked: Counter,
}

/// Somebody in it.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    /// Since when; `None` where there is no clock.
    since: Option<Instant>,
    /// Whether it is a thread, which may sleep long and looks for itself; for futures the reaper does.
    is_thread: bool,
    /// `None` once it was woken.
    pub(super) waker: Option<Waker>,
    pub(super) object: Option<Object>,
}

impl Waiter {
    pub(super) fn new(ticket: u64, waker: Option<Waker>, is_thread: bool) -> Self {
        let since = (!cfg!(target_family = "wasm")).then(Instant::now);
        Self { ticket, since, is_thread, waker, object: None }
    }
    /// Nanoseconds that it has waited.
    pub(super) fn waited(&self) -> u64 {
        self.since.map_or(0, |since| since.elapsed().as_nanos() as u64)
    }
}

impl Queue {
    pub(super) fn find(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.len() > self.given
    }
    /// Of the threads that wait with one of `tickets`, and have not been woken, the first one's waker; the others stay in `tickets`.
    pub(super) fn next_thread(&mut self, tickets: &mut Range<u64>) -> Option<Waker> {
        let from = self.entries.partition_point(|waiter| waiter.ticket < tickets.start).max(self.given);
        let mut rest = self.entries.iter_mut().skip(from).take_while(|waiter| waiter.ticket < tickets.end);
        let next = rest.find(|waiter| waiter.is_thread && waiter.waker.is_some())?;
        tickets.start = next.ticket + 1;
        next.waker.take()
    }
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self {
            waiting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            queue: ForkMutex::new(Rank::Waiters, Queue::default()),
        }
    }
}
