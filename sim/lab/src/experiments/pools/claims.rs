//! Checks the statements of the article on pools, and the goals of this project; each claim is checked in each round.

use super::SetTimes;
use super::phases::NAMES;
use crate::findings::clock::Spread;
use crate::findings::{Claim, Findings, Holds};

/// Returns the ratio of two designs' durations in one phase of a set; `None` if the set did not run.
fn ratio(all: &[SetTimes], set: u8, phase: usize, design: usize, other_design: usize) -> Option<Spread> {
    let samples = &all.iter().find(|measured| measured.set == set)?.samples;
    Some(samples[design].times(&samples[other_design], phase))
}

/// The indices of the phases in the measured data.
const BUILD_PHASE: usize = 0;
const CHURN_PHASE: usize = 1;
const WALK_PHASE: usize = 2;

/// The smallest factor that counts as "hundreds of times" as long.
const MIN_FACTOR_OF_HUNDREDS: f64 = 200.0;

pub(super) fn claims(findings: &mut Findings, all: &[SetTimes]) {
    let source = || "the article on pools".to_owned();
    let ratio = |set, phase, design, other_design| ratio(all, set, phase, design, other_design);
    let (scan, list, array, map, live, slab, magazines, boxes) = (0, 1, 2, 3, 5, 6, 7, 8);
    let mut claim = |statement: &str, source: String, finding: String, verdict_on_claim: Holds| {
        findings.claim(Claim {
            says: statement.into(),
            source,
            found: finding,
            holds: verdict_on_claim,
            measured: true,
        });
    };
    let other_designs: Vec<Spread> = (0..NAMES.len())
        .filter(|other_design| *other_design != scan)
        .filter_map(|other_design| ratio(3, BUILD_PHASE, scan, other_design))
        .collect();
    if !other_designs.is_empty() {
        let medians = || other_designs.iter().map(|ratio| ratio.median);
        let (min_ratio, max_ratio) = medians().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(r), m.max(r)));
        let verdicts: Vec<Holds> =
            other_designs.iter().map(|ratio| ratio.at_least(MIN_FACTOR_OF_HUNDREDS)).collect();
        let confirmed = verdicts.iter().filter(|verdict_on_claim| **verdict_on_claim == Holds::Yes).count();
        claim(
            "at 100,000 objects a pool that scans for a free slot takes hundreds of times as long as the others",
            source(),
            format!(
                "the scanning pool takes {min_ratio:.0} to {max_ratio:.0} times as long as the other designs, and at least {MIN_FACTOR_OF_HUNDREDS} times as long as {confirmed} of these {} designs",
                other_designs.len()
            ),
            Holds::each(verdicts),
        );
    }
    if let (Some(naive), Some(free)) = (ratio(4, WALK_PHASE, scan, array), ratio(4, WALK_PHASE, list, array))
    {
        claim(
            "a sparse pool is walked 9 to 18 times as fast if it is packed",
            source(),
            format!(
                "a walk over the scanning pool takes {} times as long as a walk over the packed array, and a walk over the free list takes {} times as long",
                naive.shown(1),
                free.shown(1)
            ),
            Holds::each([naive, free].map(|ratio| ratio.is_between(9.0, 18.0))),
        );
    }
    if let Some(list_ratio) = ratio(1, WALK_PHASE, scan, list) {
        claim(
            "taking the first free slot keeps objects together, so that the scanning pool is walked faster than the free list",
            source(),
            format!(
                "a walk over the scanning pool takes {} times the free list's time; the article measured 0.51 times",
                list_ratio.shown(2)
            ),
            list_ratio.at_most(1.0),
        );
    }
    if let Some(churn) = ratio(1, CHURN_PHASE, map, list) {
        claim(
            "a slot map's churn costs about three times a free list's",
            source(),
            format!(
                "a slot map's churn takes {} times as long as a free list's; 2 to 4 times count as about three",
                churn.shown(1)
            ),
            churn.is_between(2.0, 4.0),
        );
    }
    if let Some(churn) = ratio(1, CHURN_PHASE, list, array) {
        claim(
            "the free list dominates in churn",
            format!(
                "{}, whose own numbers for set 1 are 0.44 ms, and 0.39 ms for the packed array",
                source()
            ),
            format!("the free list's churn takes {} times the packed array's time", churn.shown(2)),
            churn.at_most(1.0),
        );
    }
    // One design must meet both goals. A design that walks well and a second design that churns well do not suffice.
    for (set, active_share, max_ratio) in [(1, "5 %", 1.5), (2, "95 %", 1.0)] {
        if let (Some(bits), Some(without_magazines), Some(with_magazines)) = (
            ratio(set, WALK_PHASE, live, array),
            ratio(set, WALK_PHASE, slab, array),
            ratio(set, WALK_PHASE, magazines, array),
        ) {
            claim(
                &format!(
                    "a walk over slabs with {active_share} of their places in use takes at most {max_ratio:.1} times a packed array's time"
                ),
                "this project's aim".into(),
                format!(
                    "a walk over slabs takes {} times a packed array's time without magazines, and {} times with them; for comparison, a walk over a pool with a bitmap takes {} times the array's time",
                    without_magazines.shown(2),
                    with_magazines.shown(2),
                    bits.shown(2)
                ),
                Holds::each([without_magazines, with_magazines].map(|ratio| ratio.at_most(max_ratio))),
            );
        }
    }
    if let (Some(without_magazines), Some(with_magazines), Some(shared)) = (
        ratio(1, CHURN_PHASE, slab, list),
        ratio(1, CHURN_PHASE, magazines, list),
        ratio(1, CHURN_PHASE, boxes, list),
    ) {
        claim(
            "slabs churn in at most one and a half times a free list's time",
            "this project's aim".into(),
            format!(
                "compared with a free list, churn takes {} times as long in boxes of an object cache, {} times as long in a hive with magazines, and {} times as long in a hive without magazines",
                shared.shown(2),
                with_magazines.shown(2),
                without_magazines.shown(2)
            ),
            Holds::each([shared, with_magazines, without_magazines].map(|ratio| ratio.at_most(1.5))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::clock;

    /// Returns results of set 3 with `rounds` rounds: in each round, the scan takes `scan` ms, one other design `slow`
    /// ms, and all other designs 1 ms.
    fn set_3_results(rounds: usize, scan: f64, slow: f64) -> Vec<SetTimes> {
        let time = |design| match design {
            0 => scan,
            6 => slow,
            _ => 1.0,
        };
        let samples = clock::rounds(rounds, NAMES.len(), |design| [time(design), 1.0, 1.0]);
        vec![SetTimes { set: 3, samples }]
    }

    fn verdict(all: &[SetTimes]) -> (Holds, String) {
        let mut findings = Findings::new("pools", "", 1);
        claims(&mut findings, all);
        match findings.parts.into_iter().next() {
            Some(crate::findings::Part::Claim(claim)) => (claim.holds, claim.found),
            part => panic!("{part:?}"),
        }
    }

    #[test]
    fn speedup_claim_is_compared_with_each_design() {
        assert_eq!(verdict(&set_3_results(5, 300.0, 1.0)).0, Holds::Yes);
        let (verdict_on_claim, finding) = verdict(&set_3_results(5, 1000.0, 10.0));
        assert_eq!(verdict_on_claim, Holds::Partly);
        assert_eq!(
            finding,
            "the scanning pool takes 100 to 1000 times as long as the other designs, and at least 200 times as long as 7 of these 8 designs"
        );
        assert_eq!(verdict(&set_3_results(5, 150.0, 1.0)).0, Holds::No);
    }

    /// Regression test: one claim was confirmed in a run and refuted in the next run.
    #[test]
    fn verdict_after_a_single_round_is_undecided() {
        assert_eq!(verdict(&set_3_results(1, 300.0, 1.0)).0, Holds::Undecided);
    }
}
