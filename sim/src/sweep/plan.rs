//! All items of a sweep; an item is computed from its number instead of stored in a list.
//!
//! An item's number is written in mixed radix. The digits of an item's number are, from the slowest to the
//! fastest:
//!
//! ```text
//! traces:     trace, setting, CPUs
//! workloads:  workload, seed, bytes of an object, operations, think time, setting, CPUs
//! ```
//!
//! Items of traces come before items of workloads. A shard is a range of consecutive items. Because of this order, a
//! shard reads few traces, and contains both small and large (expensive) numbers of CPUs.

use super::identity::{Identity, WorkloadIdentity};
use super::sample;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use uslab_engine::clock::Profile;

/// The version of the simulator, which is a part of each result's identity.
pub(super) const SIMULATOR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A sample of a design's settings: points of a Latin hypercube, used instead of all combinations of option values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sample {
    pub(super) points: u32,
    #[serde(default)]
    pub(super) seed: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Trace {
    /// The trace's name in the sweep's file.
    pub(super) name: String,
    /// The SHA-256 of the trace's bytes and of the kernel's tables in the trace's folder.
    pub(super) sha256: String,
    #[serde(skip)]
    pub(super) path: PathBuf,
    /// The line of the sweep's file that names the trace.
    #[serde(skip)]
    pub(super) line: usize,
}

/// An option of a design with its values.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Knob {
    pub(super) key: String,
    pub(super) values: Vec<u64>,
}

/// The numbered settings of all designs.
#[derive(Debug, Default, Serialize)]
pub(super) struct Settings {
    designs: Vec<Knobs>,
}

/// The settings of one design.
#[derive(Debug, Serialize)]
struct Knobs {
    design: String,
    knobs: Vec<Knob>,
    sample: Option<Sample>,
    /// The number of the first setting of the design.
    #[serde(skip)]
    first: u64,
    #[serde(skip)]
    count: u64,
    /// For a sample: for each point, the part of each option's axis that contains the point.
    #[serde(skip)]
    strata: Vec<Vec<u32>>,
}

impl Settings {
    /// Adds the settings of a design, given its options. If the number of settings overflows, it saturates.
    pub(super) fn add(&mut self, design: String, knobs: Vec<Knob>, sample: Option<&Sample>) {
        let all = knobs.iter().fold(1_u64, |all, knob| all.saturating_mul(knob.values.len() as u64));
        // A sample with at least as many points as combinations is replaced by all combinations.
        let sample = sample.filter(|sample| u64::from(sample.points) < all).copied();
        let strata = sample.map_or_else(Vec::new, |Sample { points, seed }| {
            // Each design gets a different sample, which does not depend on the order of designs.
            let of_design = Sha256::digest(design.as_bytes());
            let of_design = of_design.iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte));
            let values: Vec<_> = knobs.iter().map(|knob| knob.values.len()).collect();
            sample::strata(points, &values, seed ^ of_design)
        });
        let count = strata.first().map_or(all, |parts| parts.len() as u64);
        let first = self.count();
        self.designs.push(Knobs { design, knobs, sample, first, count, strata });
    }
    pub(super) fn count(&self) -> u64 {
        self.designs.last().map_or(0, |last| last.first.saturating_add(last.count))
    }
    /// Returns a setting as text, in the form that `--design` accepts.
    pub(super) fn text(&self, number: u64) -> String {
        let at = self.designs.partition_point(|knobs| knobs.first <= number) - 1;
        let Knobs { design, knobs, sample, first, strata, .. } = &self.designs[at];
        let mut text = design.clone();
        let mut point = number - first;
        let mut values = vec![0; knobs.len()];
        match sample {
            Some(Sample { points, .. }) => {
                for (value, (knob, strata)) in values.iter_mut().zip(knobs.iter().zip(strata)) {
                    *value =
                        knob.values[sample::value_of(strata[point as usize], *points, knob.values.len())];
                }
            }
            // The last option changes fastest.
            None => {
                for (value, knob) in values.iter_mut().zip(knobs).rev() {
                    let radix = knob.values.len() as u64;
                    *value = knob.values[(point % radix) as usize];
                    point /= radix;
                }
            }
        }
        for (knob, value) in knobs.iter().zip(values) {
            text += &format!(":{}={value}", knob.key);
        }
        text
    }
    /// Iterates over the designs, each with its options and its number of settings.
    pub(super) fn designs(&self) -> impl Iterator<Item = (&str, &[Knob], u64)> {
        self.designs.iter().map(|of| (of.design.as_str(), &of.knobs[..], of.count))
    }
}

/// A sweep that was read from its file and checked.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    pub(super) traces: Vec<Trace>,
    pub(super) workloads: Vec<String>,
    pub(super) settings: Settings,
    /// The sample of settings that the sweep's file requests. A design with few combinations of option values gets all
    /// combinations instead of a sample.
    #[serde(skip)]
    pub(super) sample: Option<Sample>,
    /// A function that returns the options of a design.
    #[serde(skip)]
    pub(super) knobs: fn(&str) -> &'static [uslab_engine::model::Knob],
    /// The numbers of CPUs; if the list is empty, each trace runs with its own number of CPUs.
    pub(super) cpus: Vec<u64>,
    pub(super) seeds: Vec<u64>,
    pub(super) sizes: Vec<u64>,
    pub(super) operations: Vec<u64>,
    pub(super) thinks: Vec<u64>,
    /// The profile's name or path, as `uslab scale --profile` accepts it.
    #[serde(skip)]
    pub(super) profile_name: String,
    pub(super) profile: Profile,
    #[serde(skip)]
    pub(super) profile_sha256: String,
    /// The hash of all fields above this one, and of the simulator's version.
    #[serde(skip)]
    pub(super) hash: String,
    /// The folder of the traces.
    #[serde(skip)]
    pub(super) inputs: PathBuf,
    /// The folder of the results, if the sweep's file names one.
    #[serde(skip)]
    pub(super) results: Option<PathBuf>,
    /// The path of the sweep's file.
    #[serde(skip)]
    pub(super) path: PathBuf,
}

/// The workload of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A trace, given by its index in the list of traces.
    Trace { trace: usize },
    /// A generated workload, given by its index in the list of workloads, with its parameters.
    Made { workload: usize, seed: u64, size: u32, operations: u64, think: u32 },
}

/// An item of a sweep, which is one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) number: u64,
    pub(super) work: Work,
    pub(super) setting: u64,
    /// The number of simulated CPUs; `None` means the number of CPUs in the trace.
    pub(super) cpus: Option<u32>,
}

/// Splits a number into digits in mixed radix; the last digit changes fastest.
fn digits<const N: usize>(mut number: u64, radices: [u64; N]) -> [usize; N] {
    let mut digits = [0; N];
    for (digit, radix) in digits.iter_mut().zip(radices).rev() {
        *digit = (number % radix) as usize;
        number /= radix;
    }
    digits
}

impl Plan {
    fn trace_radices(&self) -> [u64; 3] {
        [self.traces.len() as u64, self.settings.count(), self.cpus.len().max(1) as u64]
    }
    fn workload_radices(&self) -> [u64; 7] {
        let Self { workloads, seeds, sizes, operations, thinks, .. } = self;
        let [workloads, seeds, sizes, operations, thinks] =
            [workloads.len(), seeds.len(), sizes.len(), operations.len(), thinks.len()].map(|n| n as u64);
        [workloads, seeds, sizes, operations, thinks, self.settings.count(), self.cpus.len() as u64]
    }
    /// Returns the number of items, or `None` if the number does not fit into a `u64`.
    pub(super) fn count(&self) -> Option<u64> {
        let product =
            |radices: &[u64]| radices.iter().try_fold(1_u64, |product, radix| product.checked_mul(*radix));
        product(&self.trace_radices())?.checked_add(product(&self.workload_radices())?)
    }
    /// Returns the number of items in the sweep.
    pub(super) fn len(&self) -> u64 {
        self.count().unwrap_or(u64::MAX)
    }
    /// Returns an item by its number, which must be below [`len`](Self::len).
    pub(super) fn item(&self, number: u64) -> Item {
        let traces = self.trace_radices().iter().product();
        if number < traces {
            let [trace, setting, cpus] = digits(number, self.trace_radices());
            let cpus = self.cpus.get(cpus).map(|n| *n as u32);
            return Item { number, work: Work::Trace { trace }, setting: setting as u64, cpus };
        }
        let [workload, seed, size, operations, think, setting, cpus] =
            digits(number - traces, self.workload_radices());
        let work = Work::Made {
            workload,
            seed: self.seeds[seed],
            size: self.sizes[size] as u32,
            operations: self.operations[operations],
            think: self.thinks[think] as u32,
        };
        Item { number, work, setting: setting as u64, cpus: Some(self.cpus[cpus] as u32) }
    }
    /// Returns the identity under which the item's result is stored.
    pub(super) fn identity(&self, item: Item) -> Identity {
        let of = match item.work {
            Work::Trace { trace } => WorkloadIdentity::Trace { sha256: self.traces[trace].sha256.clone() },
            Work::Made { workload, seed, size, operations, think } => WorkloadIdentity::Made {
                workload: self.workloads[workload].clone(),
                seed,
                size,
                ops: operations,
                think,
            },
        };
        let (setting, profile) = (self.settings.text(item.setting), self.profile_sha256.clone());
        Identity { simulator: SIMULATOR_VERSION.to_owned(), profile, of, setting, cpus: item.cpus }
    }
    /// Returns the name of the trace or workload of an item.
    pub(super) fn workload_name(&self, work: Work) -> &str {
        match work {
            Work::Trace { trace } => &self.traces[trace].name,
            Work::Made { workload, .. } => &self.workloads[workload],
        }
    }
    /// Returns the first digits of the sweep's hash, short enough for a name.
    pub(super) fn short_hash(&self) -> &str {
        &self.hash[..16]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Returns a plan whose axes have these lengths.
    pub(in super::super) fn plan(lengths: &[usize], knobs: &[usize], sample: Option<Sample>) -> Plan {
        let values = |n: usize| (0..n as u64).map(|n| n * 3 + 1).collect::<Vec<_>>();
        let name = |kind: &str, n: usize| (0..n).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
        let mut settings = Settings::default();
        settings.add("slub".to_owned(), vec![], sample.as_ref());
        let knob = |(at, n): (usize, &usize)| Knob { key: format!("k{at}"), values: values(*n) };
        settings.add("sheaves".to_owned(), knobs.iter().enumerate().map(knob).collect(), sample.as_ref());
        let trace = |name: String| Trace { path: PathBuf::new(), line: 1, sha256: String::new(), name };
        Plan {
            traces: name("trace", lengths[0]).into_iter().map(trace).collect(),
            workloads: name("work", lengths[1]),
            settings,
            sample,
            knobs: |_| &[],
            cpus: values(lengths[2]),
            seeds: values(lengths[3]),
            sizes: values(lengths[4]),
            operations: values(lengths[5]),
            thinks: values(lengths[6]),
            profile_name: "free".to_owned(),
            profile: Profile::free(),
            profile_sha256: String::new(),
            hash: String::new(),
            inputs: PathBuf::new(),
            results: None,
            path: PathBuf::new(),
        }
    }

    /// Returns a text that distinguishes an item from all other items.
    fn describe_item(plan: &Plan, item: Item) -> String {
        format!(
            "{} {:?} {} {:?}",
            plan.workload_name(item.work),
            item.work,
            plan.settings.text(item.setting),
            item.cpus
        )
    }

    proptest! {
        #[test]
        fn item_numbers_map_one_to_one_to_items(
            lengths in proptest::collection::vec(1..4_usize, 7),
            knobs in proptest::collection::vec(1..4_usize, 0..3),
        ) {
            let plan = plan(&lengths, &knobs, None);
            let settings = 1 + knobs.iter().product::<usize>();
            let [traces, works, cpus] = [lengths[0], lengths[1], lengths[2]];
            let item_count = works * lengths[3..].iter().product::<usize>() * settings * cpus;
            prop_assert_eq!(plan.len() as usize, traces * settings * cpus + item_count);
            let all: HashSet<_> = (0..plan.len()).map(|number| describe_item(&plan, plan.item(number))).collect();
            prop_assert_eq!(all.len() as u64, plan.len());
            let of_trace = (settings * cpus) as u64;
            for number in 0..plan.len() {
                let item = plan.item(number);
                prop_assert_eq!(item.number, number);
                let is_trace = matches!(item.work, Work::Trace { .. });
                prop_assert_eq!(is_trace, number < of_trace * traces as u64);
                if let Work::Trace { trace } = item.work {
                    prop_assert_eq!(trace as u64, number / of_trace);
                }
            }
        }

        #[test]
        fn sample_contains_each_value_equally_often(points in 1..=10_u32, seed in any::<u64>()) {
            let plan = plan(&[0, 1, 1, 1, 1, 1, 1], &[4, 5], Some(Sample { points, seed }));
            // A design without options has one setting, with any sample.
            prop_assert_eq!(plan.settings.count(), 1 + u64::from(points));
            for (key, values) in [("k0", 4), ("k1", 5)] {
                let hits = |value: u64| {
                    let text = format!("{key}={value}");
                    (1..plan.settings.count()).filter(|n| plan.settings.text(*n).split(':').any(|part| part == text)).count()
                };
                let hits: Vec<_> = (0..values).map(|value| hits(value * 3 + 1)).collect();
                prop_assert!(hits.iter().max().unwrap() - hits.iter().min().unwrap() <= 1, "{:?}", hits);
                prop_assert_eq!(hits.iter().sum::<usize>(), points as usize);
            }
        }
    }

    #[test]
    fn consecutive_sweep_items_differ_in_cpu_count() {
        let plan = plan(&[1, 1, 3, 2, 1, 1, 1], &[2], None);
        let texts: Vec<_> = (0..6).map(|n| describe_item(&plan, plan.item(n))).collect();
        assert_eq!(texts[0], "trace0 Trace { trace: 0 } slub Some(1)");
        assert_eq!(texts[1], "trace0 Trace { trace: 0 } slub Some(4)");
        assert_eq!(texts[3], "trace0 Trace { trace: 0 } sheaves:k0=1 Some(1)");
    }

    #[test]
    fn item_count_overflow_is_detected() {
        let lengths = [1, 2000, 2000, 2000, 2000, 2000, 2000];
        assert_eq!(plan(&lengths, &[2000], None).count(), None);
    }
}
