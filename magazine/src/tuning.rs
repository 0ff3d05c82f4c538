//! Adapts the capacity limit of stacks and the sizes of fills.
//!
//! * **Slow start.** The first fill requests [`Config::first_fill`] objects, and each later fill requests twice as many
//!   as the fill before. A layer that has handed out ten objects thus caches at most ten. A stack also doubles its
//!   capacity when it is full.
//! * **Shrinking.** When memory is short, the capacity limit of stacks is halved, down to two magazines. After a
//!   shortage, the next fill is again small. Each reaping interval without a shortage doubles the limit again.
//!   FreeBSD's UMA also lowers its limits under memory pressure.
//!
//! All numbers in this module are hints. A lost update is harmless, as long as the stacks finally get the stored limit.

use crate::layer::Config;
use crate::sync::Hint;

#[derive(Debug)]
pub(crate) struct LayerTuning {
    /// Number of objects that the next fill requests.
    fill: Hint,
    /// The current capacity limit of stacks, in objects.
    reach: Hint,
    /// Is 1 if memory was short in the current reaping interval, and 0 otherwise.
    under_pressure: Hint,
}

impl LayerTuning {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            fill: Hint::new(config.first_fill.into()),
            reach: Hint::new(config.reach().into()),
            under_pressure: Hint::new(0),
        }
    }

    /// Returns the number of objects that this fill should request, and doubles the number for the next fill.
    pub(crate) fn next_fill(&self, config: &Config) -> usize {
        let fill = self.fill.get();
        let next = (2 * fill).min(config.capacity.into());
        // An unchanged number is not stored, so that other CPUs can keep the cache line.
        if next != fill {
            self.fill.set(next);
        }
        fill as usize
    }

    /// Handles a shortage of memory by halving the limit. Returns the new capacity limit of stacks.
    #[cold]
    pub(crate) fn shrink(&self, config: &Config) -> u16 {
        self.under_pressure.set(1);
        self.fill.set(config.first_fill.into());
        let least = 2 * u64::from(config.capacity);
        self.update_capacity_limit((self.reach.get() / 2).max(least.min(config.reach().into())))
    }

    /// Ends the current reaping interval and begins the next one. Returns the new capacity limit of stacks, or `None`
    /// if it did not change.
    pub(crate) fn end_interval(&self, config: &Config) -> Option<u16> {
        if self.under_pressure.get() > 0 {
            self.under_pressure.set(0);
            return None;
        }
        let (reach, most) = (self.reach.get(), u64::from(config.reach()));
        (reach < most).then(|| self.update_capacity_limit((2 * reach).min(most)))
    }
    /// Returns the current capacity limit of stacks.
    pub(crate) fn reach(&self) -> u16 {
        self.reach.get() as u16
    }
    fn update_capacity_limit(&self, reach: u64) -> u16 {
        self.reach.set(reach);
        reach as u16
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const CONFIG: Config = Config { capacity: 6, first_fill: 1, stock: 4, depot_limit: 0, round_bytes: 0 };

    #[test]
    fn fill_sizes_double_up_to_a_magazine() {
        let tuning = LayerTuning::new(&CONFIG);
        let fills = || [(); 5].map(|()| tuning.next_fill(&CONFIG));
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
        tuning.shrink(&CONFIG);
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
    }

    #[test]
    fn lowered_stack_limits_recover_to_their_initial_value() {
        let tuning = LayerTuning::new(&CONFIG);
        assert_eq!([(); 3].map(|()| tuning.shrink(&CONFIG)), [18, 12, 12]);
        assert_eq!([(); 4].map(|()| tuning.end_interval(&CONFIG)), [None, Some(24), Some(36), None]);
    }
}
