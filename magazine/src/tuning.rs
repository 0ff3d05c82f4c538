//! How many rounds a CPU's stack may hold, and how many a fill asks for.
//!
//! * **Slow start.** The first fill asks for [`Config::first_fill`] rounds, each one after it for twice as many: so a layer
//!   that has handed out ten rounds keeps no more than ten. A stack, too, gets twice as many places whenever it is full.
//! * **Shrinking.** When memory is short, stacks may hold half as many rounds, two magazines at least, and fills begin anew
//!   with few rounds. Each reaping interval without such an event takes one step back. (FreeBSD's UMA shrinks, too.)
//!
//! All numbers here are hints: a lost update costs nothing, as long as stacks get the number that stays.

use crate::layer::Config;
use crate::sync::Hint;

#[derive(Debug)]
pub(crate) struct Tuning {
    /// Rounds of the next fill.
    fill: Hint,
    /// Places that a stack may have.
    reach: Hint,
    /// Memory was short in this interval.
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

    /// Rounds that this fill asks for; the next one asks for more.
    pub(crate) fn fill(&self, config: &Config) -> usize {
        let fill = self.fill.get();
        let next = (2 * fill).min(config.capacity.into());
        // Where it is the same, no CPU's line is taken from the others.
        if next != fill {
            self.fill.set(next);
        }
        fill as usize
    }

    /// Memory is short. Places that a stack may have from now on.
    #[cold]
    pub(crate) fn shrink(&self, config: &Config) -> u16 {
        self.under_pressure.set(1);
        self.fill.set(config.first_fill.into());
        let least = 2 * u64::from(config.capacity);
        self.set_reach((self.reach.get() / 2).max(least.min(config.reach().into())))
    }

    /// A reaping interval ends. Places that a stack may have from now on, if that is news.
    pub(crate) fn interval(&self, config: &Config) -> Option<u16> {
        if self.under_pressure.get() > 0 {
            self.under_pressure.set(0);
            return None;
        }
        let (reach, most) = (self.reach.get(), u64::from(config.reach()));
        (reach < most).then(|| self.set_reach((2 * reach).min(most)))
    }
    /// Places that a stack may have now.
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

    const CONFIG: Config = Config { capacity: 6, first_fill: 1, stock: 4, depot_limit: 0 };

    #[test]
    fn each_fill_asks_for_twice_as_many_up_to_a_magazine() {
        let tuning = Tuning::new(&CONFIG);
        let fills = || [(); 5].map(|()| tuning.fill(&CONFIG));
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
        tuning.shrink(&CONFIG);
        assert_eq!(fills(), [1, 2, 4, 6, 6]);
    }

    #[test]
    fn what_has_shrunk_comes_back_to_where_it_began() {
        let tuning = Tuning::new(&CONFIG);
        assert_eq!([(); 3].map(|()| tuning.shrink(&CONFIG)), [18, 12, 12]);
        assert_eq!([(); 4].map(|()| tuning.interval(&CONFIG)), [None, Some(24), Some(36), None]);
    }
}
