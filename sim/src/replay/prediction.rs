//! What another setting would have done to the kernel that was traced.
//!
//! Two designs run the same trace: one as the kernel was set, one as it would have been. What the kernel had is known; the
//! second design says by how much another setting differs from it. What the first design gets wrong beside the kernel (hidden
//! allocations, say) is taken to be the same in both. Where a slab holds another number of objects, slabs that were there
//! before the trace count by their objects.

use super::moments::{CacheAt, DesignRun};
use crate::output::{grouped, table, text};
use crate::trace::Tables;
use serde::Serialize;
use std::fmt;

/// A change of settings, and what it does to slabs.
#[derive(Debug, Serialize)]
pub struct Prediction {
    /// The design as the traced kernel was set.
    pub from: String,
    /// The design as it would have been.
    pub to: String,
    /// By moment.
    pub moments: Vec<PredictedMoment>,
}

/// A moment of it.
#[derive(Debug, Serialize)]
pub struct PredictedMoment {
    /// Its name.
    pub name: String,
    /// The caches that the trace touches and the kernel's table has.
    pub caches: Vec<Predicted>,
    /// How the prediction compares with what another boot really had; `None` without its tables.
    pub real: Option<Compared>,
}

/// Slabs of a cache.
#[derive(Debug, Serialize)]
pub struct Predicted {
    /// The cache.
    pub name: String,
    /// In the kernel that was traced.
    pub traced: u64,
    /// With the other setting.
    pub predicted: u64,
    /// In the boot that really had it.
    pub real: Option<u64>,
}

/// A prediction beside the real thing, over caches of more than ten slabs that changed by more than 5 %.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// Caches that changed so much.
    pub changed: u64,
    /// Of these, the ones whose change has the right sign.
    pub right_sign: u64,
    /// Half of the predictions are off by less, in per cent of the real slabs.
    pub median_error_percent: f64,
    /// Half of them are off by less, in per cent of what really changed.
    pub median_error_of_change_percent: f64,
}

/// Slabs that a cache must have for its change to count.
const FEW: u64 = 10;

impl Prediction {
    /// From two runs of one trace, and the tables of another boot.
    pub fn new(from: &DesignRun, to: &DesignRun, boot: Option<&Tables>) -> Self {
        let moments = from.moments.iter().zip(&to.moments).map(|(from, to)| {
            let real = boot.and_then(|boot| boot.at(&from.name)?.slabinfo.as_ref());
            let predicted = |(from, to): (&CacheAt, &CacheAt)| Predicted {
                name: from.name.clone(),
                traced: from.kernel.slabs,
                predicted: slabs(from, to),
                real: real.and_then(|real| Some(real.get(&from.name)?.slabs)),
            };
            let caches: Vec<_> = from.caches.iter().zip(&to.caches).map(predicted).collect();
            let real = real.map(|_| Compared::new(&caches));
            PredictedMoment { name: from.name.clone(), caches, real }
        });
        Self { from: from.design.clone(), to: to.design.clone(), moments: moments.collect() }
    }
}

fn slabs(from: &CacheAt, to: &CacheAt) -> u64 {
    let error = from.kernel.slabs as i64 - from.design.slabs;
    let ratio = from.design.objects_per_slab as f64 / to.design.objects_per_slab.max(1) as f64;
    (to.design.slabs as f64 + error as f64 * ratio).round().max(0.0) as u64
}

impl Compared {
    fn new(caches: &[Predicted]) -> Self {
        let known = caches.iter().filter_map(|cache| Some((cache, cache.real?)));
        let changed: Vec<_> = known
            .filter(|(cache, real)| {
                cache.traced.max(*real) > FEW && cache.traced.abs_diff(*real) * 20 > cache.traced
            })
            .collect();
        let right_sign = changed
            .iter()
            .filter(|(cache, real)| cache.predicted.cmp(&cache.traced) == real.cmp(&cache.traced));
        let median = |whole: fn(&Predicted, u64) -> u64| {
            let off = |(cache, real): &(&Predicted, u64)| {
                100.0 * cache.predicted.abs_diff(*real) as f64 / whole(cache, *real).max(1) as f64
            };
            let mut errors: Vec<f64> = changed.iter().map(off).collect();
            errors.sort_by(f64::total_cmp);
            errors.get(errors.len() / 2).copied().unwrap_or(0.0)
        };
        Self {
            changed: changed.len() as u64,
            right_sign: right_sign.count() as u64,
            median_error_percent: median(|_, real| real),
            median_error_of_change_percent: median(|cache, real| cache.traced.abs_diff(real)),
        }
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for moment in &self.moments {
            writeln!(f, "\nFrom {} to {}, at `{}`: slabs", self.from, self.to, moment.name)?;
            if let Some(real) = &moment.real {
                let Compared { changed, right_sign, median_error_percent, median_error_of_change_percent } =
                    real;
                writeln!(
                    f,
                    "Of {changed} caches that really changed by more than 5 % the change of {right_sign} has the right sign. Half of the \
                     predictions are off by less than {median_error_percent:.1} % of the real slabs, and \
                     {median_error_of_change_percent:.1} % of the change."
                )?;
            }
            let mut caches: Vec<_> = moment.caches.iter().collect();
            let moved = |cache: &Predicted| {
                cache
                    .predicted
                    .abs_diff(cache.traced)
                    .max(cache.real.unwrap_or(cache.traced).abs_diff(cache.traced))
            };
            caches.sort_by_key(|cache| (std::cmp::Reverse(moved(cache)), &cache.name));
            let mut rows = table(&["cache", "traced", "predicted", "real"]);
            for cache in caches.into_iter().filter(|cache| moved(cache) > 0).take(15) {
                rows.add_row([
                    cache.name.clone(),
                    grouped(cache.traced),
                    grouped(cache.predicted),
                    cache.real.map_or_else(String::new, grouped),
                ]);
            }
            write!(f, "{}", text(&rows))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::moments::{DesignAt, KernelAt};

    fn at(kernel: u64, slabs: i64, objects_per_slab: u64) -> CacheAt {
        CacheAt {
            name: "dentry".to_owned(),
            objects_per_slab: 16,
            kernel: KernelAt { slabs: kernel, active_objs: 0 },
            design: DesignAt { slabs, active_objs: 0, used: 0, objects_per_slab },
            causes: vec![],
        }
    }

    #[test]
    fn what_the_first_design_gets_wrong_is_wrong_in_both() {
        // The kernel had 100 slabs, the design says 96: four are hidden from it, and eight of half the size.
        assert_eq!(slabs(&at(100, 96, 16), &at(100, 90, 16)), 94);
        assert_eq!(slabs(&at(100, 96, 16), &at(100, 190, 8)), 198);
        assert_eq!(slabs(&at(1, 9, 16), &at(1, 2, 16)), 0);
    }

    #[test]
    fn changes_below_five_per_cent_and_small_caches_do_not_count() {
        let cache =
            |traced, predicted, real| Predicted { name: String::new(), traced, predicted, real: Some(real) };
        let caches = [
            cache(100, 150, 104), // hardly changed
            cache(5, 9, 9),       // small
            cache(100, 190, 200), // right, 5 % off
            cache(100, 40, 50),   // right, 20 % off
            cache(100, 101, 50),  // wrong
            Predicted { name: String::new(), traced: 100, predicted: 1, real: None },
        ];
        let compared = Compared::new(&caches);
        assert_eq!((compared.changed, compared.right_sign, compared.median_error_percent), (3, 2, 20.0));
        assert_eq!(compared.median_error_of_change_percent, 20.0);
    }
}
