//! How many rounds a magazine is made for, and how many a fill asks for.
//!
//! * **Growth.** CPUs that meet at a depot visit it too often: when one visit in sixteen finds the lock taken, magazines
//!   are made twice as large, up to [`Config::largest`]. (Bonwick & Adams 2001, section 3.4, take the rate of contention
//!   too; their sizes only grow.)
//! * **Shrinking.** When memory is short, magazines are made half as large, and fills begin anew with few rounds. Each
//!   reaping interval without such an event takes one step back, up to [`Config::capacity`]. (FreeBSD's UMA shrinks, too.)
//! * **Slow start.** The first fill asks for [`Config::first_fill`] rounds, each one after it for twice as many: so a layer
//!   that has handed out ten rounds keeps no more than ten.
//!
//! A magazine's capacity changes only while it is empty and in the hands of one thread, so a size takes effect as
//! magazines come by; there is no moment at which all change. All numbers here are rough: a lost update costs nothing.

use crate::layer::Config;
use crate::sync::Counter;

/// Visits that must have found the lock taken, and the part of all visits that this must be.
const CONTENDED: u64 = 8;
const ONE_IN: u64 = 16;

#[derive(Debug)]
pub(crate) struct Tuning {
    /// Rounds of a magazine.
    rounds: Counter,
    /// Rounds of the next fill.
    fill: Counter,
    /// Visits, and those that found the lock taken, when the size last changed.
    visits: Counter,
    contended: Counter,
    /// Memory was short in this interval.
    short: Counter,
}

impl Tuning {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            rounds: Counter::new(config.capacity.into()),
            fill: Counter::new(config.first_fill.max(1).into()),
            visits: Counter::new(0),
            contended: Counter::new(0),
            short: Counter::new(0),
        }
    }

    /// Rounds that a magazine is made for now.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.get() as u32
    }

    /// Rounds that this fill asks for; the next one asks for more.
    pub(crate) fn fill(&self) -> usize {
        let fill = self.fill.get();
        if fill < self.rounds.get() {
            self.fill.set(2 * fill);
        }
        fill as usize
    }

    /// A depot with so many visits and contended visits in all has found its lock taken.
    #[cold]
    pub(crate) fn contended(&self, config: &Config, visits: u64, contended: u64) {
        let (new, met) =
            (visits.saturating_sub(self.visits.get()), contended.saturating_sub(self.contended.get()));
        if met >= CONTENDED && met * ONE_IN >= new {
            self.visits.set(visits);
            self.contended.set(contended);
            self.grow(config);
        }
    }
    pub(crate) fn grow(&self, config: &Config) {
        self.rounds.set((2 * self.rounds.get()).min(config.largest.into()));
    }

    /// Memory is short.
    #[cold]
    pub(crate) fn shrink(&self, config: &Config) {
        self.short.set(1);
        self.rounds.set((self.rounds.get() / 2).max(1));
        self.fill.set(config.first_fill.max(1).into());
    }

    /// A reaping interval ends.
    pub(crate) fn interval(&self, config: &Config) {
        let rounds = self.rounds.get();
        if self.short.get() > 0 {
            self.short.set(0);
        } else {
            self.rounds.set((2 * rounds).min(config.capacity.into()).max(rounds));
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const CONFIG: Config =
        Config { capacity: 8, largest: 20, first_fill: 1, stock: 0, depot_limit: 0, magazines: 0 };

    #[test]
    fn each_fill_asks_for_twice_as_many_up_to_a_magazine() {
        let tuning = Tuning::new(&CONFIG);
        let fills = || [(); 6].map(|()| tuning.fill());
        assert_eq!(fills(), [1, 2, 4, 8, 8, 8]);
        tuning.shrink(&CONFIG);
        assert_eq!(fills(), [1, 2, 4, 4, 4, 4]);
    }

    #[test]
    fn one_visit_in_sixteen_since_the_last_growth_and_not_fewer_than_eight() {
        let tuning = Tuning::new(&CONFIG);
        let grown = [(100, 7), (129, 8), (128, 8), (257, 16), (256, 16), (400, 25)].map(|(all, met)| {
            tuning.contended(&CONFIG, all, met);
            tuning.rounds()
        });
        assert_eq!(grown, [8, 8, 16, 16, 20, 20]);
    }

    #[test]
    fn what_has_grown_stays_and_what_has_shrunk_comes_back_to_where_it_began() {
        let tuning = Tuning::new(&CONFIG);
        let rounds = |step: &dyn Fn(&Tuning)| {
            step(&tuning);
            tuning.rounds()
        };
        assert_eq!(rounds(&|t| t.grow(&CONFIG)), 16);
        assert_eq!(rounds(&|t| t.interval(&CONFIG)), 16);
        assert_eq!([(); 3].map(|()| rounds(&|t| t.shrink(&CONFIG))), [8, 4, 2]);
        assert_eq!([(); 4].map(|()| rounds(&|t| t.interval(&CONFIG))), [2, 4, 8, 8]);
        assert_eq!([(); 5].map(|()| rounds(&|t| t.shrink(&CONFIG))), [4, 2, 1, 1, 1]);
    }
}
