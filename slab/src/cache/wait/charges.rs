//! Charges of an account (see [`Account`](super::Account)).

use crate::error::AllocError;
use uslab_magazine::sync::Ordering::{Relaxed, Release};
use uslab_magazine::sync::{AtomicU32, AtomicUsize, Counter};

/// The charged bytes, the limit, and the waiters of an account.
#[derive(Debug)]
pub(crate) struct Charges {
    limit: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
    pub(crate) peak: Counter,
    pub(crate) refusals: Counter,
    pub(crate) name: String,
    /// Number of caches with a waiter that waits for the account's charge to fall.
    waiting: AtomicU32,
}

impl Charges {
    pub(crate) fn new(limit: usize) -> Self {
        let (bytes, waiting) = (AtomicUsize::new(0), AtomicU32::new(0));
        let [peak, refusals] = [(); 2].map(|()| Counter::new(0));
        Self { limit: AtomicUsize::new(limit), bytes, peak, refusals, name: "account".to_owned(), waiting }
    }
    pub(crate) fn limit(&self) -> usize {
        // Relaxed: the limit publishes no other data. A waiter for a larger limit reads the limit under the lock
        // of its wait queue.
        self.limit.load(Relaxed)
    }
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), AllocError> {
        // Relaxed: the charge publishes nothing about the slabs.
        let mut charged = self.bytes.load(Relaxed);
        while charged + bytes <= self.limit() {
            match self.bytes.compare_exchange_weak(charged, charged + bytes, Relaxed, Relaxed) {
                Ok(_) => {
                    self.peak.max((charged + bytes) as u64);
                    return Ok(());
                }
                Err(now) => charged = now,
            }
        }
        self.refusals.add(1);
        Err(self.error())
    }
    pub(crate) fn has_room(&self, slabs: usize, bytes: usize) -> bool {
        slabs.saturating_mul(bytes) <= self.limit()
    }
    pub(crate) fn error(&self) -> AllocError {
        AllocError::AccountLimit { bytes: self.limit() }
    }
    /// Returns `true` if a waiter of any cache waits for the account's charge to fall.
    pub(crate) fn has_charge_waiters(&self) -> bool {
        // Relaxed: see "No lost wake-up by a charge" in `waiters`.
        self.waiting.load(Relaxed) > 0
    }
    pub(crate) fn begin_charge_wait(&self) {
        self.waiting.fetch_add(1, Relaxed);
        // Release: pairs with the Acquire of `uncharge_account`.
        self.bytes.fetch_add(0, Release);
    }
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}
