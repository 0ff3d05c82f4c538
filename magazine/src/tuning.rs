//! Limits of a CPU's stack, and sizes of fills.
//!
//! * **Slow start.** The first fill requests [`Config::first_fill`] objects, and each later fill requests
//!   twice as many. A layer that has supplied ten objects thus keeps no more than ten. A stack also doubles
//!   its places whenever it is full.
//! * **Shrinking.** When memory is short, the limit of a stack halves, down to two magazines. After a shortage, fills
//!   start small again. Each reaping interval without a shortage undoes one halving. FreeBSD's UMA also shrinks its
//!   limits.
//!
//! All numbers in this module are hints: a lost update is harmless, as long as stacks get the final number.

use crate::layer::Config;
use crate::sync::Hint;

#[derive(Debug)]
pub(crate) struct Tuning {
    /// Number of objects that the next fill requests.
    fill: Hint,
    /// Limit of places of a stack.
    reach: Hint,
    /// 1 if memory was short in the current interval, else 0.
    under_pressure: Hint,
}

impl Tuning {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            fill: Hint::new(config.first_fill.into()),
            reach: Hint::new(config.reach().into()),
            under_pressure: Hint::new(0),
        }
    }

    /// Returns the number of objects for this fill, and increases the number for the next fill.
    pub(crate) fn next_fill(&self, config: &Config) -> usize {
        let fill = self.fill.get();
        let next = (2 * fill).min(config.capacity.into());
        // An unchanged number is not stored, so that other CPUs can keep the cache line.
        if next != fill {
            self.fill.set(next);
        }
        fill as usize
    }

    /// Handles a shortage of memory. Returns the new limit of a stack's places.
    #[cold]
    pub(crate) fn shrink(&self, config: &Config) -> u16 {
        self.under_pressure.set(1);
        self.fill.set(config.first_fill.into());
        let least = 2 * u64::from(config.capacity);
        self.set_reach((self.reach.get() / 2).max(least.min(config.reach().into())))
    }

    /// Ends a reaping interval. Returns the new limit of a stack's places if the limit changed.
    pub(crate) fn end_interval(&self, config: &Config) -> Option<u16> {
        if self.under_pressure.get() > 0 {
            self.under_pressure.set(0);
            return None;
        }
        let (reach, most) = (self.reach.get(), u64::from(config.reach()));
        (reach < most).then(|| self.set_reach((2 * reach).min(most)))
    }
    /// Returns the current limit of a stack's places.
    pub(crate) fn reach(&self) -> u16 {
        self.reach.get() as u16
    }
    fn set_reach(&self, reach: u64) -> u16 {
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
        let tuning = Tuning::new(&CONFIG);
        let fills = || [(); 5].map(|()| tuning.next_fill(&CONFIG));
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
        tuning.shrink(&CONFIG);
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
    }

    #[test]
    fn lowered_stack_limits_recover_to_their_initial_value() {
        let tuning = Tuning::new(&CONFIG);
        assert_eq!([(); 3].map(|()| tuning.shrink(&CONFIG)), [18, 12, 12]);
        assert_eq!([(); 4].map(|()| tuning.end_interval(&CONFIG)), [None, Some(24), Some(36), None]);
    }
}
