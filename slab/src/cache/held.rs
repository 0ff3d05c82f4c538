//! Held memory: memory that constructed objects own in addition to their bytes, such as buffers or strings. The
//! allocator does not know of held memory unless the builder [declares](super::kmem_cache::KmemCacheBuilder::holds) or
//! [weighs](crate::ObjectCacheBuilder::weigh) it.
//!
//! * Held memory is charged to limits in bytes and to accounts when an object is constructed, and uncharged when the object is
//!   destructed.
//! * Free objects in slabs hold at most [`MAX_SURPLUS_BYTES`] bytes: a free that exceeds this bound destructs free objects. Declared
//!   held memory also determines the size of magazines.
//! * The weight of an object is the mean over objects weighed at their construction and at their free to the slab.
//! * Destructions wake waiters at a limit: an object that is freed to its slab, or a slab that is freed.

use super::hooks::HeldBytes;
use super::{Cache, Object};
use crate::error::AllocError;
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{assert_unlocked, contain_panic};

/// Maximum bytes that free objects in the slabs of a cache hold.
pub const MAX_SURPLUS_BYTES: usize = 2 << 20;

impl Cache {
    fn is_weight_known(&self) -> bool {
        !matches!(self.config.holds, HeldBytes::Unknown)
    }
    /// Mean number of bytes that one object holds.
    fn weight(&self) -> u64 {
        match &self.config.holds {
            HeldBytes::Unknown => 0,
            HeldBytes::Declared(bytes) => *bytes as u64,
            // Relaxed: the weight publishes no other data.
            HeldBytes::Weighed(_) => self.counts.weight.load(Relaxed),
        }
    }
    /// Bytes that all constructed objects hold.
    pub(super) fn held_bytes(&self) -> u64 {
        // Relaxed: the number publishes no other data.
        self.counts.held.load(Relaxed)
    }

    /// Charges the bytes that an object will hold, before the object is constructed.
    ///
    /// # Errors
    /// Fails if the limit is reached.
    pub(super) fn begin_object(&self) -> Result<(), AllocError> {
        // Relaxed, here and below: the numbers order nothing about the objects.
        let live = self.counts.live.fetch_add(1, Relaxed) + 1;
        if !self.is_weight_known() {
            return Ok(());
        }
        self.charge_held(live).inspect_err(|_| self.end_object())
    }
    /// Uncharges an object that was destructed, or could not be constructed.
    pub(super) fn end_object(&self) {
        let live = self.counts.live.fetch_sub(1, Relaxed) - 1;
        if self.is_weight_known() {
            // A decrease cannot be refused.
            _ = self.charge_held(live);
        }
    }
    /// Sets the charge to the bytes that `live` objects hold.
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

    /// Weighs an object to which no other thread has access.
    pub(super) fn weigh(&self, object: Object) {
        let HeldBytes::Weighed(weigh) = &self.config.holds else { return };
        assert_unlocked();
        contain_panic(|| {
            let bytes = weigh(object.0) as u64;
            // Relaxed: concurrent updates of a mean do not matter.
            let mean = self.counts.weight.load(Relaxed);
            let next = if mean == 0 { bytes } else { mean - mean / 8 + bytes / 8 };
            self.counts.weight.store(next, Relaxed);
        });
        // Memory that is already held cannot be refused, but the next object is refused.
        _ = self.charge_held(self.counts.live.load(Relaxed));
    }

    /// Destructs free objects in slabs if they hold more than [`MAX_SURPLUS_BYTES`] bytes. Returns the number of slabs freed.
    pub(super) fn destruct_surplus(&self, op: &Operation) -> usize {
        let weight = self.weight();
        if weight == 0 {
            return 0;
        }
        let idle = self.counts.live.load(Relaxed).saturating_sub(self.count().inuse);
        if idle.saturating_mul(weight) > MAX_SURPLUS_BYTES as u64 { self.destruct_idle(op) } else { 0 }
    }
}
