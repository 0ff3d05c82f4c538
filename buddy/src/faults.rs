//! Fault injection, which makes fallible calls fail on purpose, so that tests run the error paths.
//!
//! A [`Point`] is a place in the code where a fault can be injected, such as a memory mapping or the creation of a
//! magazine. Each layer defines its own fault points. [`POINTS`] lists the fault points of the page allocator. A
//! [`Rule`] selects the calls that fail at a point. Fault rules have the same attributes as fault injection in Linux
//! (`Documentation/fault-injection`):
//!
//! | attribute | a call is refused only |
//! |---|---|
//! | `nth` | if it is the `nth` or a later one |
//! | `space` | after calls for this number of bytes in all |
//! | `interval` | if it is the `nth`, or a multiple of this later |
//! | `probability` | with this chance, in percent |
//! | `times` | this number of times; -1 is unlimited. 1 with `nth`, else -1 |
//! | `order` | for blocks of these orders |
//! | `cache` | for the cache of this name |
//!
//! [`Faults`] belong to one allocator, so allocators in one process have separate faults. The seed and the call number
//! determine which calls fail, so a single-threaded run always meets the same faults.
//!
//! # Cost
//!
//! All fault points are on slow paths, which run after the magazines missed. With default faults, a fault point costs a
//! null check. If faults are disarmed, a fault point also costs a `Relaxed` load. An armed fault point takes a lock.
//! The lock of armed faults is a leaf lock, and no memory is allocated under it. Code may therefore reach a fault point
//! while it holds any other lock. A process must not `fork` while faults are armed.

use crate::pfn::Order;
use core::ops::RangeInclusive;
use std::sync::Arc;
use uslab_magazine::sync::{Fixed, Mutex, Rank};

/// A named place in the code where fault injection can make a call fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Point {
    /// The name by which rules select the fault point.
    pub name: &'static str,
    /// A description of the failure that this fault point injects.
    pub what: &'static str,
}

/// The fault point that makes a reservation of address space fail.
pub const RESERVE: Point = Point { name: "reserve", what: "the system refuses to reserve address space" };
/// The fault point that makes a commit of memory fail.
pub const COMMIT: Point = Point { name: "commit", what: "the system refuses to commit memory" };
/// The fault point that makes returning memory to the OS fail.
pub const DECOMMIT: Point = Point { name: "decommit", what: "the system refuses to take memory back" };
/// The fault point that makes the creation of a magazine fail.
pub const MAGAZINE: Point = Point { name: "magazine", what: "the allocation of a magazine fails" };
/// The fault point that makes the allocation of a block from a zone fail.
pub const PAGE: Point = Point { name: "page", what: "a zone fails to allocate a block" };

/// All fault points of the page allocator.
pub const POINTS: [Point; 5] = [RESERVE, COMMIT, DECOMMIT, MAGAZINE, PAGE];

/// One call of a fault point: the request that a rule may refuse.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    point: Point,
    bytes: usize,
    order: Option<Order>,
    cache: Option<&'a str>,
}

impl<'a> Call<'a> {
    /// Creates the description of a call of `point` that requests `bytes` bytes.
    #[inline(always)]
    pub const fn of(point: Point, bytes: usize) -> Self {
        Self { point, bytes, order: None, cache: None }
    }
    /// Adds the order of the requested block to the call.
    #[inline(always)]
    #[must_use]
    pub const fn order(self, order: Order) -> Self {
        Self { order: Some(order), ..self }
    }
    /// Adds the name of the cache to the call.
    #[inline(always)]
    #[must_use]
    pub const fn cache(self, cache: &'a str) -> Self {
        Self { cache: Some(cache), ..self }
    }
}

/// A fault injection rule: selects the calls that fail. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The fault point whose calls fail; `None` selects all points.
    pub point: Option<Point>,
    /// Number of the first call that may fail, counted from 1.
    pub nth: u64,
    /// Number of bytes that calls receive before the first call may fail.
    pub space: u64,
    /// From the `nth` call on, only every `interval`-th call may fail.
    pub interval: u64,
    /// Probability that an eligible call fails, in percent.
    pub probability: u8,
    /// Maximum number of calls that fail; `None` is unlimited.
    pub times: Option<u64>,
    /// If set, only calls for blocks whose order is in this range may fail.
    pub orders: Option<RangeInclusive<u8>>,
    /// If set, only calls for the cache with this name may fail.
    pub cache: Option<String>,
}

impl Rule {
    /// Creates a rule with which every call of `point` fails. If `point` is `None`, every call of every point fails.
    pub const fn every(point: Option<Point>) -> Self {
        Self {
            point,
            nth: 1,
            space: 0,
            interval: 1,
            probability: 100,
            times: None,
            orders: None,
            cache: None,
        }
    }

    /// Parses rules of the form `POINT:attribute=value,...;POINT:...`. The name `any` selects all of `points`.
    ///
    /// # Errors
    /// Returns an error that contains the invalid part of `text` and the accepted values.
    pub fn parse_all(text: &str, points: &[Point]) -> Result<Vec<Self>, BadRule> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let rules = rules.map(|rule| Self::parse(rule, points)).collect::<Result<Vec<_>, _>>()?;
        if rules.is_empty() { Err(BadRule::new(text, "POINT:attribute=value,...;...")) } else { Ok(rules) }
    }

    fn parse(text: &str, points: &[Point]) -> Result<Self, BadRule> {
        let (name, attributes) = text.split_once(':').unwrap_or((text, ""));
        let point = match name.trim() {
            "any" => None,
            name => Some(*points.iter().find(|point| point.name == name).ok_or_else(|| {
                let names: Vec<_> = points.iter().map(|point| point.name).collect();
                BadRule::new(name, format!("a fault point: any, {}", names.join(", ")))
            })?),
        };
        let mut rule = Self::every(point);
        let mut times = None;
        for part in attributes.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = |expected: &str| BadRule::new(part, expected);
            let (key, value) = part.split_once('=').ok_or_else(|| bad("attribute=value"))?;
            let number = |least: u64| {
                let number = value.parse().ok().filter(|n| *n >= least);
                number.ok_or_else(|| bad(&format!("a whole number, at least {least}")))
            };
            match key {
                "nth" => {
                    rule.nth = number(1)?;
                    rule.times = Some(1);
                }
                "space" => rule.space = number(0)?,
                "interval" => rule.interval = number(1)?,
                "probability" => {
                    let percent = value.parse().ok().filter(|percent| *percent <= 100);
                    rule.probability = percent.ok_or_else(|| bad("a percentage from 0 to 100"))?;
                }
                "times" if value == "-1" => times = Some(None),
                "times" => {
                    let count = value.parse().map_err(|_| bad("a whole number, or -1 for no limit"))?;
                    times = Some(Some(count));
                }
                "order" => {
                    rule.orders = Some(
                        parse_orders(value)
                            .ok_or_else(|| bad("N, N.., ..N or N..M, with orders of 0 to 10"))?,
                    )
                }
                "cache" if !value.is_empty() => rule.cache = Some(value.to_owned()),
                "cache" => return Err(bad("the name of a cache")),
                _ => return Err(bad("nth, space, interval, probability, times, order or cache")),
            }
        }
        rule.times = times.unwrap_or(rule.times);
        Ok(rule)
    }

    fn covers(&self, call: &Call<'_>) -> bool {
        self.point.is_none_or(|point| point.name == call.point.name)
            && self.orders.as_ref().is_none_or(|o| call.order.is_some_and(|order| o.contains(&order.get())))
            && self.cache.as_ref().is_none_or(|cache| call.cache == Some(cache))
    }
}

/// Parses a range of orders, such as `2`, `1..`, `..3` or `1..3`. A range includes its first and its last order.
fn parse_orders(text: &str) -> Option<RangeInclusive<u8>> {
    let end = |text: &str, open| if text.is_empty() { Some(open) } else { text.parse().ok() };
    let most = crate::MAX_ORDER;
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (end(first, 0)?, end(last.strip_prefix('=').unwrap_or(last), most)?),
        None => (text.parse().ok()?, text.parse().ok()?),
    };
    (first <= last && last <= most).then_some(first..=last)
}

/// The error of an invalid fault rule: the invalid part, and the accepted values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule {
    part: String,
    expected: String,
}

impl BadRule {
    fn new(part: &str, expected: impl Into<String>) -> Self {
        Self { part: part.to_owned(), expected: expected.into() }
    }
}

impl core::fmt::Display for BadRule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "`{}`: expected {}", self.part, self.expected)
    }
}
impl core::error::Error for BadRule {}

/// The numbers of calls and of injected failures at one fault point since the faults were armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Tally {
    /// The point's name.
    pub point: &'static str,
    /// Number of calls that reached the fault point.
    pub calls: u64,
    /// Number of calls that failed by injection.
    pub fired: u64,
}

/// The fault injection rules of one allocator, with their progress. Clones of a `Faults` share the rules and the
/// counts. A default `Faults` has no rules, and cannot be armed.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<SharedPlan>>);

#[derive(Debug)]
struct SharedPlan {
    armed: Fixed,
    seed: u64,
    plan: Mutex<FaultPlan>,
}

#[derive(Debug, Default)]
struct FaultPlan {
    rules: Vec<(Rule, Progress)>,
    /// One tally per fault point that was called, in the order of the first calls.
    tallies: [Option<Tally>; MAX_FAULT_POINTS],
}

const MAX_FAULT_POINTS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    calls: u64,
    bytes: u64,
    fired: u64,
}

impl Faults {
    /// Creates disarmed faults.
    pub fn new(seed: u64) -> Self {
        Self(Some(Arc::new(SharedPlan {
            armed: Fixed::new(0),
            seed,
            plan: Mutex::ranked(Rank::Faults, FaultPlan::default()),
        })))
    }

    /// Replaces all rules with `rules` and resets all counts. On [`default`](Self::default) faults, `arm` has no
    /// effect.
    pub fn arm(&self, rules: Vec<Rule>) {
        if let Some(shared) = &self.0 {
            let rules = rules.into_iter().map(|rule| (rule, Progress::default())).collect();
            // The replaced rules are freed after the lock is released.
            let _former =
                core::mem::replace(&mut *shared.plan.lock(), FaultPlan { rules, ..FaultPlan::default() });
            shared.armed.set(1);
        }
    }
    /// Removes all rules, so that no further call fails. The counts of calls and failures are kept.
    pub fn disarm(&self) {
        if let Some(shared) = &self.0 {
            shared.armed.set(0);
        }
    }
    /// Returns one tally per fault point that was called since the last [`arm`](Self::arm), in the order of the first
    /// calls.
    pub fn tally(&self) -> Vec<Tally> {
        let Some(shared) = &self.0 else { return Vec::new() };
        let tallies = shared.plan.lock().tallies;
        tallies.into_iter().flatten().collect()
    }

    /// Counts `call`, and returns `true` if a rule makes it fail.
    #[inline(always)]
    pub fn fires(&self, call: Call<'_>) -> bool {
        match &self.0 {
            None => false,
            Some(shared) => shared.armed.get() != 0 && shared.fires(&call),
        }
    }
}

impl SharedPlan {
    #[cold]
    fn fires(&self, call: &Call<'_>) -> bool {
        let mut plan = self.plan.lock();
        let mut fires = false;
        for (at, (rule, progress)) in plan.rules.iter_mut().enumerate() {
            // Every rule counts the call, even if another rule refuses it.
            fires |= rule.covers(call) && progress.fires(rule, call.bytes as u64, self.seed ^ at as u64);
        }
        let name = call.point.name;
        let place = plan.tallies.iter_mut().find(|place| place.is_none_or(|tally| tally.point == name));
        if let Some(place) = place {
            let tally = place.get_or_insert(Tally { point: name, calls: 0, fired: 0 });
            tally.calls += 1;
            tally.fired += u64::from(fires);
        }
        fires
    }
}

impl Progress {
    fn fires(&mut self, rule: &Rule, bytes: u64, seed: u64) -> bool {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let fires = self.calls >= rule.nth
            && self.bytes > rule.space
            && (self.calls - rule.nth).is_multiple_of(rule.interval)
            && rule.times.is_none_or(|times| self.fired < times)
            && mix(seed, self.calls) % 100 < u64::from(rule.probability);
        self.fired += u64::from(fires);
        fires
    }
}

/// Returns the `n`-th number of the SplitMix64 generator with the given seed (Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", 2014).
fn mix(seed: u64, n: u64) -> u64 {
    let z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Makes 1,000 calls for an order-0 page, and returns the numbers of the calls that fail.
    fn failing_call_numbers(text: &str, seed: u64) -> Vec<u64> {
        let faults = Faults::new(seed);
        faults.arm(Rule::parse_all(text, &POINTS).unwrap());
        let call = || Call::of(PAGE, 4096).order(Order::ZERO).cache("inode");
        (1..=1000).filter(|_| faults.fires(call())).collect()
    }

    #[test]
    fn fault_attributes_select_the_calls_to_refuse() {
        assert_eq!(failing_call_numbers("page", 0).len(), 1000);
        assert_eq!(failing_call_numbers("page:nth=7", 0), [7]);
        assert_eq!(failing_call_numbers("any:nth=7,times=3", 0), [7, 8, 9]);
        assert_eq!(failing_call_numbers("page:times=-1,nth=999", 0), [999, 1000]);
        assert_eq!(failing_call_numbers("page:interval=300", 0), [1, 301, 601, 901]);
        assert_eq!(failing_call_numbers("page:times=2", 0), [1, 2]);
        assert_eq!(failing_call_numbers("page:times=0", 0), []);
        assert_eq!(failing_call_numbers("page:probability=0", 0), []);
        assert_eq!(failing_call_numbers("page:space=40960,times=1", 0), [11]);
        assert_eq!(failing_call_numbers("page:order=1..", 0), []);
        assert_eq!(failing_call_numbers("page:order=..2,times=1 ; page:nth=5", 0), [1, 5]);
        assert_eq!(failing_call_numbers("page:cache=inode,cache=dentry", 0), []);
        assert_eq!(failing_call_numbers("commit", 0), []);
    }

    #[test]
    fn fault_probability_follows_seed_and_percentage() {
        let five = failing_call_numbers("page:probability=5", 1);
        assert!((25..100).contains(&five.len()), "{}", five.len());
        assert_eq!(five, failing_call_numbers("page:probability=5", 1));
        assert_ne!(five, failing_call_numbers("page:probability=5", 2));
    }

    #[test]
    fn fault_rules_refuse_calls_only_while_armed() {
        let faults = Faults::new(0);
        assert!(!faults.fires(Call::of(COMMIT, 1)));
        faults.arm(vec![Rule { nth: 2, ..Rule::every(Some(COMMIT)) }]);
        assert_eq!(
            [COMMIT, PAGE, COMMIT].map(|point| faults.fires(Call::of(point, 1))),
            [false, false, true]
        );
        faults.disarm();
        assert!(!faults.fires(Call::of(COMMIT, 1)));
        let tally = |point: Point, calls, fired| Tally { point: point.name, calls, fired };
        assert_eq!(faults.tally(), [tally(COMMIT, 2, 1), tally(PAGE, 1, 0)]);
        let none = Faults::default();
        none.arm(vec![Rule::every(None)]);
        assert!(!none.fires(Call::of(COMMIT, 1)) && none.tally().is_empty());
    }

    #[test]
    fn invalid_fault_rule_is_refused_with_accepted_values() {
        let said = |text: &str| Rule::parse_all(text, &POINTS).unwrap_err().to_string();
        assert_eq!(
            said("slob:nth=1"),
            "`slob`: expected a fault point: any, reserve, commit, decommit, magazine, page"
        );
        assert_eq!(said("page:often"), "`often`: expected attribute=value");
        assert_eq!(said("page:nth=0"), "`nth=0`: expected a whole number, at least 1");
        assert_eq!(said("page:probability=101"), "`probability=101`: expected a percentage from 0 to 100");
        assert_eq!(said("page:times=-2"), "`times=-2`: expected a whole number, or -1 for no limit");
        for order in ["11", "3..2", "x..", "..11"] {
            let text = format!("page:order={order}");
            assert_eq!(
                said(&text),
                format!("`order={order}`: expected N, N.., ..N or N..M, with orders of 0 to 10")
            );
        }
        assert_eq!(said("page:cache="), "`cache=`: expected the name of a cache");
        assert_eq!(
            said("page:stacktrace-depth=3"),
            "`stacktrace-depth=3`: expected nth, space, interval, probability, times, order or cache"
        );
        assert_eq!(said(" ; "), "` ; `: expected POINT:attribute=value,...;...");
    }
}
