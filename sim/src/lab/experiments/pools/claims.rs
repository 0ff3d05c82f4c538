//! What the article says of its sets, and what this project aims at, beside the medians.

use super::Measured;
use super::phases::NAMES;
use crate::lab::findings::{Claim, Findings, Holds};

/// Whether a ratio lies between two others; undecided, and so in part, within a tenth of either: runs of one machine differ by
/// that much.
fn between(ratio: f64, least: f64, most: f64) -> Holds {
    match ratio {
        r if r >= 1.1 * least && r <= 0.9 * most => Holds::Yes,
        r if r <= 0.9 * least || r >= 1.1 * most => Holds::No,
        _ => Holds::Partly,
    }
}

/// What is said of several, if each of them holds.
fn each(parts: impl IntoIterator<Item = Holds>) -> Holds {
    let parts: Vec<Holds> = parts.into_iter().collect();
    match &parts[..] {
        [first, rest @ ..] if rest.iter().all(|part| part == first) => *first,
        _ => Holds::Partly,
    }
}

fn met(holds: bool) -> Holds {
    if holds { Holds::Yes } else { Holds::No }
}

/// A design's time of a phase in a set, if the set ran.
fn time(all: &[Measured], set: u8, design: usize, phase: usize) -> Option<f64> {
    all.iter().find(|measured| measured.set == set).map(|measured| measured.times[design][phase])
}

/// From how many times on a design takes "hundreds of times" as long.
const HUNDREDS: f64 = 200.0;

pub(super) fn claims(findings: &mut Findings, all: &[Measured]) {
    let source = || "the article on pools".to_owned();
    let ratio = |set, a: (usize, usize), b: (usize, usize)| {
        Some(time(all, set, a.0, a.1)? / time(all, set, b.0, b.1)?)
    };
    let (scan, list, array, map, live, slab, magazines, boxes) = (0, 1, 2, 3, 5, 6, 7, 8);
    let mut claim = |says: &str, source: String, found: String, holds: Holds| {
        findings.claim(Claim { says: says.into(), source, found, holds, measured: true });
    };
    let others: Vec<f64> = (0..NAMES.len())
        .filter(|other| *other != scan)
        .filter_map(|other| ratio(3, (scan, 0), (other, 0)))
        .collect();
    if !others.is_empty() {
        let (least, most) = others.iter().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
        let so = others.iter().filter(|ratio| **ratio >= HUNDREDS).count();
        claim(
            "at 100,000 objects a pool that scans for a free slot takes hundreds of times as long as the others",
            source(),
            format!(
                "{least:.0} to {most:.0} times; {HUNDREDS} times or more for {so} of {} others",
                others.len()
            ),
            each(others.iter().map(|ratio| met(*ratio >= HUNDREDS))),
        );
    }
    if let (Some(naive), Some(free)) = (ratio(4, (scan, 2), (array, 2)), ratio(4, (list, 2), (array, 2))) {
        claim(
            "a sparse pool is walked 9 to 18 times as fast if it is packed",
            source(),
            format!(
                "the scanning pool takes {naive:.1} times as long as the packed array, the free list {free:.1} times; within a tenth \
                 of 9 or 18 it counts as undecided"
            ),
            each([naive, free].map(|ratio| between(ratio, 9.0, 18.0))),
        );
    }
    if let Some(clustered) = ratio(1, (scan, 2), (list, 2)) {
        claim(
            "taking the first free slot keeps objects together, so that the scanning pool is walked faster than the free list",
            source(),
            format!(
                "{clustered:.2} of the free list's time, the article has 0.51; 0.9 to 1.1 count as undecided"
            ),
            between(clustered, 0.0, 1.0),
        );
    }
    if let Some(churn) = ratio(1, (map, 1), (list, 1)) {
        claim(
            "a slot map's churn costs about three times a free list's",
            source(),
            format!("{churn:.1} times; 2 to 4 count as about three, and a tenth around these as undecided"),
            between(churn, 2.0, 4.0),
        );
    }
    if let Some(churn) = ratio(1, (list, 1), (array, 1)) {
        claim(
            "the free list dominates in churn",
            format!("{}, whose own numbers for set 1 say 0.44 against 0.39 ms of the packed array", source()),
            format!("{churn:.2} times the packed array's time; 0.9 to 1.1 count as undecided"),
            between(churn, 0.0, 1.0),
        );
    }
    // Each of them: that one design walks well and another one churns well meets no aim.
    for (set, walked, most) in [(1, "5 %", 1.5), (2, "95 %", 1.0)] {
        if let (Some(bits), Some(off), Some(on)) = (
            ratio(set, (live, 2), (array, 2)),
            ratio(set, (slab, 2), (array, 2)),
            ratio(set, (magazines, 2), (array, 2)),
        ) {
            claim(
                &format!(
                    "slabs, {walked} of whose places are in use, are walked in at most {most:.1} times a packed array's time"
                ),
                "this project's aim".into(),
                format!(
                    "{off:.2} times without magazines, {on:.2} with them; a pool with a bitmap, beside them, {bits:.2}"
                ),
                each([off, on].map(|ratio| met(ratio <= most))),
            );
        }
    }
    if let (Some(off), Some(on), Some(shared)) =
        (ratio(1, (slab, 1), (list, 1)), ratio(1, (magazines, 1), (list, 1)), ratio(1, (boxes, 1), (list, 1)))
    {
        claim(
            "slabs churn in at most one and a half times a free list's time",
            "this project's aim".into(),
            format!(
                "{shared:.2} times in boxes of an object cache, {on:.2} in a hive with magazines, {off:.2} without"
            ),
            each([shared, on, off].map(|ratio| met(ratio <= 1.5))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Medians of set 3 in which the scan takes `scan` ms, one other `slow` and the rest 1.
    fn set_3(scan: f64, slow: f64) -> Vec<Measured> {
        let mut times = vec![[1.0; 3]; NAMES.len()];
        (times[0][0], times[6][0]) = (scan, slow);
        vec![Measured { set: 3, times }]
    }

    fn verdict(all: &[Measured]) -> (Holds, String) {
        let mut findings = Findings::new("pools", "", 1);
        claims(&mut findings, all);
        match findings.parts.into_iter().next() {
            Some(crate::lab::findings::Part::Claim(claim)) => (claim.holds, claim.found),
            part => panic!("{part:?}"),
        }
    }

    #[test]
    fn hundreds_of_times_is_judged_by_every_other_design() {
        assert_eq!(verdict(&set_3(300.0, 1.0)).0, Holds::Yes);
        let (holds, found) = verdict(&set_3(1000.0, 10.0));
        assert_eq!(holds, Holds::Partly);
        assert_eq!(found, "100 to 1000 times; 200 times or more for 7 of 8 others");
        assert_eq!(verdict(&set_3(150.0, 1.0)).0, Holds::No);
    }

    #[test]
    fn what_lies_within_a_tenth_of_a_limit_is_undecided() {
        let verdicts = [0.5, 0.95, 1.0, 1.05, 1.2].map(|ratio| between(ratio, 0.0, 1.0));
        assert_eq!(verdicts, [Holds::Yes, Holds::Partly, Holds::Partly, Holds::Partly, Holds::No]);
        let verdicts = [5.0, 8.5, 11.0, 17.0, 25.0].map(|ratio| between(ratio, 9.0, 18.0));
        assert_eq!(verdicts, [Holds::No, Holds::Partly, Holds::Yes, Holds::Partly, Holds::No]);
        assert_eq!(each([Holds::Yes, Holds::No]), Holds::Partly);
        assert_eq!(each([Holds::No, Holds::No]), Holds::No);
    }
}
