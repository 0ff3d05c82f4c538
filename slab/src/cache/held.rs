//! What constructed objects hold beside their own bytes: buffers, strings, files. The allocator sees none of it, so the builder
//! [declares](super::kmem_cache::KmemCacheBuilder::holds) it or [weighs](crate::ObjectCacheBuilder::weigh) it.
//!
//! * Limits in bytes and accounts are charged with it when an object is constructed, and get it back when one is destructed.
//! * Free objects in slabs hold at most [`HELD_SURPLUS`] bytes: a free that brings more to the slabs destructs them. Magazines are sized by what
//!   objects hold, where it is declared.
//! * Weights are averages: the mean of what was weighed, when objects were constructed and when they came back to their slabs.
//! * Who waits at a limit is woken by what destructs: an object that comes back to its slab, or a slab that goes.

use super::hooks::Holds;
use super::{Cache, Object};
use crate::error::AllocError;
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{assert_unlocked, contain_panic};

/// Bytes that free objects in the slabs of a cache may hold.
pub const HELD_SURPLUS: usize = 2 << 20;

impl Cache {
    fn is_weight_known(&self) -> bool {
        !matches!(self.config.holds, Holds::Unknown)
    }
    /// Bytes that an object holds, in the mean.
    fn weight(&self) -> u64 {
        match &self.config.holds {
            Holds::Unknown => 0,
            Holds::Declared(bytes) => *bytes as u64,
            // Relaxed: a number.
            Holds::Weighed(_) => self.counts.weight.load(Relaxed),
        }
    }
    /// Bytes that all constructed objects hold.
    pub(super) fn held_bytes(&self) -> u64 {
        // Relaxed: a number.
        self.counts.held.load(Relaxed)
    }

    /// An object is about to be constructed: charges what it will hold.
    ///
    /// # Errors
    /// A limit allows no more.
    pub(super) fn begin_object(&self) -> Result<(), AllocError> {
        // Relaxed, here and below: numbers, which say nothing about the objects.
        let live = self.counts.live.fetch_add(1, Relaxed) + 1;
        if !self.is_weight_known() {
            return Ok(());
        }
        self.charge_held(live).inspect_err(|_| self.end_object())
    }
    /// An object was destructed, or could not be constructed.
    pub(super) fn end_object(&self) {
        let live = self.counts.live.fetch_sub(1, Relaxed) - 1;
        if self.is_weight_known() {
            // What is less is not refused.
            _ = self.charge_held(live);
        }
    }
    /// Charges what so many objects hold, in place of what is charged.
    fn charge_held(&self, live: u64) -> Result<(), AllocError> {
        let wanted = live.saturating_mul(self.weight());
        let mut charged = self.counts.held.load(Relaxed);
        loop {
            let more = wanted.saturating_sub(charged);
            if more > 0 {
                let pages = self.counts.pages.get() * uslab_buddy::PAGE_SIZE as u64;
                if let Some(bytes) =
                    self.config.held_limit.filter(|bytes| pages.saturating_add(wanted) > *bytes as u64)
                {
                    return Err(AllocError::HeldLimit { bytes });
                }
                self.config.account.as_ref().map_or(Ok(()), |account| account.charge(more as usize))?;
            }
            match self.counts.held.compare_exchange_weak(charged, wanted, Relaxed, Relaxed) {
                Ok(_) => {
                    if charged > wanted {
                        self.uncharge_account((charged - wanted) as usize);
                    }
                    return Ok(());
                }
                Err(now) => {
                    if more > 0 {
                        self.uncharge_account(more as usize);
                    }
                    charged = now;
                }
            }
        }
    }

    /// Weighs an object that is the caller's alone.
    pub(super) fn weigh(&self, object: Object) {
        let Holds::Weighed(weigh) = &self.config.holds else { return };
        assert_unlocked();
        contain_panic(|| {
            let bytes = weigh(object.0) as u64;
            // Relaxed: a mean, of which it does not matter when two change it at a time.
            let mean = self.counts.weight.load(Relaxed);
            let next = if mean == 0 { bytes } else { mean - mean / 8 + bytes / 8 };
            self.counts.weight.store(next, Relaxed);
        });
        // What is held already is not refused; the next object is.
        _ = self.charge_held(self.counts.live.load(Relaxed));
    }

    /// Destructs free objects of the slabs if they hold more than [`HELD_SURPLUS`]. Slabs given back.
    pub(super) fn destruct_surplus(&self, op: &Operation) -> usize {
        let weight = self.weight();
        if weight == 0 {
            return 0;
        }
        let idle = self.counts.live.load(Relaxed).saturating_sub(self.count().inuse);
        if idle.saturating_mul(weight) > HELD_SURPLUS as u64 { self.destruct_idle(op) } else { 0 }
    }
}
