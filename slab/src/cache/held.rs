//! Held memory: memory that constructed objects own in addition to their bytes, such as buffers or strings. The
//! allocator knows an object's held memory only if the builder [declares](super::kmem_cache::KmemCacheBuilder::holds)
//! or [weighs](crate::ObjectCacheBuilder::weigh) it.
//!
//! * Constructing an object charges its held memory to limits in bytes and to accounts, and destructing the object
//!   uncharges it.
//! * Free objects in slabs hold at most [`MAX_SURPLUS_BYTES`] bytes. A free that exceeds this bound destructs free
//!   objects. Declared held memory also determines the size of magazines.
//! * The weight of an object is a mean: objects are weighed when they are constructed, and when they are freed to
//!   their slab.
//! * Waiters at a limit wake after a free object in a slab, or all objects of a freed slab, were destructed.

use super::hooks::HeldBytes;
use super::{Cache, Object};
use crate::error::AllocError;
use uslab_magazine::Operation;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{assert_unlocked, contain_panic};

/// Maximum number of bytes that the free objects in a cache's slabs may own.
pub const MAX_SURPLUS_BYTES: usize = 2 << 20;

impl Cache {
    fn is_object_weight_known(&self) -> bool {
        !matches!(self.config.holds, HeldBytes::Unknown)
    }
    /// Mean number of bytes that one object owns in addition to its slot.
    fn weight(&self) -> u64 {
        match &self.config.holds {
            HeldBytes::Unknown => 0,
            HeldBytes::Declared(bytes) => *bytes as u64,
            // Relaxed: the weight publishes no other data.
            HeldBytes::Weighed(_) => self.counts.weight.load(Relaxed),
        }
    }
    /// Number of bytes that all constructed objects own in addition to their slots.
    pub(super) fn held_bytes(&self) -> u64 {
        // Relaxed: the number publishes no other data.
        self.counts.held.load(Relaxed)
    }

    /// Charges the bytes that an object will own, before the object is constructed.
    ///
    /// # Errors
    /// Fails if the limit is reached.
    pub(super) fn charge_object(&self) -> Result<(), AllocError> {
        // Relaxed, here and below: the numbers order nothing about the objects.
        let live = self.counts.live.fetch_add(1, Relaxed) + 1;
        if !self.is_object_weight_known() {
            return Ok(());
        }
        self.charge_held_bytes(live).inspect_err(|_| self.uncharge_object())
    }
    /// Uncharges an object that was destructed or whose constructor failed.
    pub(super) fn uncharge_object(&self) {
        let live = self.counts.live.fetch_sub(1, Relaxed) - 1;
        if self.is_object_weight_known() {
            // A limit cannot refuse a decrease of the charge.
            _ = self.charge_held_bytes(live);
        }
    }
    /// Sets the charge to the bytes that `live` objects own in addition to their slots.
    fn charge_held_bytes(&self, live: u64) -> Result<(), AllocError> {
        let wanted_bytes = live.saturating_mul(self.weight());
        let mut charged = self.counts.held.load(Relaxed);
        loop {
            let missing = wanted_bytes.saturating_sub(charged);
            if missing > 0 {
                let pages = self.counts.pages.get() * uslab_buddy::PAGE_SIZE as u64;
                if let Some(bytes) =
                    self.config.held_limit.filter(|bytes| pages.saturating_add(wanted_bytes) > *bytes as u64)
                {
                    return Err(AllocError::HeldLimit { bytes });
                }
                self.config.account.as_ref().map_or(Ok(()), |account| account.charge(missing as usize))?;
            }
            match self.counts.held.compare_exchange_weak(charged, wanted_bytes, Relaxed, Relaxed) {
                Ok(_) => {
                    if charged > wanted_bytes {
                        self.uncharge_account((charged - wanted_bytes) as usize);
                    }
                    return Ok(());
                }
                Err(now) => {
                    if missing > 0 {
                        self.uncharge_account(missing as usize);
                    }
                    charged = now;
                }
            }
        }
    }

    /// Weighs an object that no other thread can access.
    pub(super) fn weigh(&self, object: Object) {
        let HeldBytes::Weighed(weigh) = &self.config.holds else { return };
        assert_unlocked();
        contain_panic(|| {
            let bytes = weigh(object.0) as u64;
            // Relaxed: concurrent updates may distort the mean slightly, which does no harm.
            let mean = self.counts.weight.load(Relaxed);
            let next = if mean == 0 { bytes } else { mean - mean / 8 + bytes / 8 };
            self.counts.weight.store(next, Relaxed);
        });
        // The limit cannot refuse memory that the object already owns, but it refuses the next
        // object.
        _ = self.charge_held_bytes(self.counts.live.load(Relaxed));
    }

    /// Destructs free objects in slabs if they own more than [`MAX_SURPLUS_BYTES`] bytes. Returns the number of slabs
    /// freed.
    pub(super) fn destruct_surplus(&self, op: &Operation) -> usize {
        let weight = self.weight();
        if weight == 0 {
            return 0;
        }
        let idle = self.counts.live.load(Relaxed).saturating_sub(self.count().inuse);
        if idle.saturating_mul(weight) > MAX_SURPLUS_BYTES as u64 {
            self.destruct_free_objects(op)
        } else {
            0
        }
    }
}
