//! The queue of a cache's waiters. The module [`waiters`](super::waiters) describes the protocol.

use crate::cache::object::Object;
use core::ops::Range;
use core::task::Waker;
use std::collections::VecDeque;
use std::time::Instant;
use uslab_magazine::sync::fork::ForkMutex;
use uslab_magazine::sync::{AtomicBool, Counter, Rank};

#[derive(Debug)]
pub(crate) struct Waiters {
    /// True if a waiter does not have an object yet. The fields `waiting` and `closed` are written under the lock of
    /// `queue`.
    pub(crate) waiting: AtomicBool,
    /// True if the magazines are closed, because the cache or its account has a waiter.
    pub(crate) closed: AtomicBool,
    pub(crate) queue: ForkMutex<Queue>,
}

/// State of the queue, which the queue's lock protects.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Waiters in the order of their tickets. The first `served_waiters` waiters already have an object; later waiters
    /// have none.
    pub(crate) entries: VecDeque<Waiter>,
    pub(crate) served_waiters: usize,
    pub(crate) next_ticket: u64,
    /// Number of times that a waiter joined an empty queue. `called_in` is the value that `closings` had when the
    /// CPUs were last drained.
    pub(crate) closings: u64,
    pub(crate) called_in: u64,
    /// True if the first waiter should try to make a slab.
    pub(crate) grow: bool,
    /// True if the waiters wait for the account in addition to the cache's own limit.
    pub(crate) at_account: bool,
    /// True if the cache has lost its owner, so that its magazines stay closed.
    pub(crate) is_left: bool,
    /// Nonzero in the child of a fork until the queue is emptied, because other threads' waiters do not exist in the
    /// child.
    pub(crate) forked: Counter,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: u64,
    /// Start of the wait; `None` if the system has no clock.
    since: Option<Instant>,
    /// True if the waiter is a thread, which polls periodically and may sleep long. The reaper polls on behalf of
    /// futures.
    is_thread: bool,
    /// The waiter's waker, or `None` after the waiter was woken.
    pub(crate) waker: Option<Waker>,
    pub(crate) object: Option<Object>,
}

impl Waiter {
    pub(crate) fn new(ticket: u64, waker: Option<Waker>, is_thread: bool) -> Self {
        let since = (!cfg!(target_family = "wasm")).then(Instant::now);
        Self { ticket, since, is_thread, waker, object: None }
    }
    pub(crate) fn waited(&self) -> u64 {
        self.since.map_or(0, |since| since.elapsed().as_nanos() as u64)
    }
}

impl Queue {
    pub(crate) fn find(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
    pub(crate) fn is_waiting(&self) -> bool {
        self.entries.len() > self.served_waiters
    }
    /// Removes tickets from `tickets`, up to the ticket of the first sleeping thread in the range, and takes that
    /// thread's waker.
    pub(crate) fn take_next_sleeping_thread(&mut self, tickets: &mut Range<u64>) -> Option<Waker> {
        let first =
            self.entries.partition_point(|waiter| waiter.ticket < tickets.start).max(self.served_waiters);
        let mut found = self.entries.iter_mut().skip(first).take_while(|waiter| waiter.ticket < tickets.end);
        let next = found.find(|waiter| waiter.is_thread && waiter.waker.is_some())?;
        tickets.start = next.ticket + 1;
        next.waker.take()
    }
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            queue: ForkMutex::new(Rank::Waiters, Queue::default()),
        }
    }
}
