//! Usage statistics of a pool, which each allocation and free updates: load, mean, peak, and wasted bytes.

/// The usage statistics of a pool.
///
/// Cost: some additions per allocation and free, and 48 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of allocations so far.
    pub allocs: u64,
    /// Number of frees so far.
    pub frees: u64,
    /// Maximum number of objects that were in use at the same time.
    pub peak: u64,
    /// Number of bytes that all allocations so far have requested.
    pub requested: u64,
    /// Total size of the slots of all allocations so far, in bytes.
    pub given: u64,
    sum: u64,
}

impl Usage {
    #[inline]
    pub(crate) fn alloc(&mut self, requested: usize, slot_bytes: usize) {
        self.allocs += 1;
        self.requested += requested as u64;
        self.given += slot_bytes as u64;
        self.peak = self.peak.max(self.live());
        self.sum += self.live();
    }
    #[inline]
    pub(crate) fn free(&mut self) {
        self.frees += 1;
        self.sum += self.live();
    }
    /// Returns the number of objects in use.
    pub const fn live(&self) -> u64 {
        self.allocs - self.frees
    }
    /// Returns the mean number of objects in use, averaged over operations instead of over time; 0 before the first
    /// allocation.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / (self.allocs + self.frees).max(1) as f64
    }
    /// Returns the difference between the sizes of the slots and the requested sizes, over all allocations so far
    /// (internal waste). A pool wastes only the bytes by which it rounds sizes up.
    pub const fn wasted(&self) -> u64 {
        self.given - self.requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_reports_load_mean_peak_and_waste() {
        let mut usage = Usage::default();
        assert_eq!(usage.mean(), 0.0);
        // After each of these steps, the numbers of objects in use are 1, 2, 1, 2, 3.
        usage.alloc(80, 96);
        usage.alloc(96, 96);
        usage.free();
        usage.alloc(0, 96);
        usage.alloc(96, 96);
        assert_eq!((usage.live(), usage.peak, usage.mean(), usage.wasted()), (3, 3, 1.8, 16 + 96));
        usage.free();
        assert_eq!((usage.live(), usage.peak), (2, 3), "the peak must not decrease");
    }
}
