//! Statistics in Prometheus' text format, version 0.0.4 (served as `text/plain; version=0.0.4`).
//!
//! ```
//! let info = uslab::Subsystem::global()?.info();
//! let mut page = Vec::new();
//! std::io::Write::write_fmt(&mut page, format_args!("{}", info.prometheus()))?;
//! assert!(page.starts_with(b"# HELP uslab_"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sizes are in bytes. Names that end in `_total` belong to counters. A counter that is read during operations may
//! include unfinished operations, and be lower at the next read. A counter also falls when one of several caches with
//! its name is destroyed. A cache that never had a slab has no series, unless the caller requests
//! [all](Exposition::all) caches. If several caches have the same name, they share one series with the sum of their
//! numbers, because no two series may have equal labels. Accounts that have the same name also share a series.
//! Prometheus' documentation describes the format under "Exposition formats".

use crate::cache::AccountInfo;
use crate::report::info::CacheInfo;
use crate::report::info::Info;
use core::fmt::{self, Display, Formatter};
#[cfg(feature = "prometheus-client")]
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use std::collections::BTreeMap;
use uslab_buddy::{PAGE_SIZE, ZoneInfo};

/// Statistics that `Display` writes as Prometheus text. The [module](self) describes the format.
///
/// ```
/// let info = uslab::Subsystem::global()?.info();
/// let (seen, all) = (info.prometheus().to_string(), info.prometheus().all().to_string());
/// assert!(!seen.contains("dma-kmalloc-8k") && all.contains("dma-kmalloc-8k"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Exposition<'i> {
    heaps: Vec<(&'i str, &'i Info)>,
    all: bool,
}

impl<'i> Exposition<'i> {
    /// Combines the statistics of several heaps in one text. Each series has a label `heap` with the heap's name.
    ///
    /// ```
    /// use uslab::{process::heaps, prometheus::Exposition};
    ///
    /// let heaps = heaps(); // the global object caches and the malloc, as far as they have started
    /// let page = Exposition::of(heaps.iter().map(|(name, info)| (*name, info))).to_string();
    /// # assert!(page.is_empty());
    /// ```
    pub fn of(heaps: impl IntoIterator<Item = (&'i str, &'i Info)>) -> Self {
        Self { heaps: heaps.into_iter().collect(), all: false }
    }
    /// Includes caches that have never had a slab.
    #[must_use]
    pub fn all(self) -> Self {
        Self { all: true, ..self }
    }
}

impl Info {
    /// Returns the statistics in Prometheus' format. The call allocates a little memory.
    pub fn prometheus(&self) -> Exposition<'_> {
        Exposition { heaps: vec![("", self)], all: false }
    }
}

/// A collector of heap statistics for a registry of [`prometheus_client`]. The series have the same names as in the
/// text format, plus the label `heap`.
///
/// ```
/// use prometheus_client::{encoding::text::encode, registry::Registry};
/// use uslab::prometheus::Heaps;
///
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(Heaps::new(uslab::process::heaps)));
/// let sessions = uslab::ObjectCache::builder("session").ctor(|| [0_u8; 100]).build()?;
/// let _session = sessions.alloc()?;
/// let mut page = String::new();
/// encode(&mut page, &registry)?;
/// assert!(page.contains(r#"uslab_cache_objects{heap="objects",cache="session",place="used"} 1"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "prometheus-client")]
pub struct Heaps<F>(F);

#[cfg(feature = "prometheus-client")]
impl<F: Fn() -> Vec<(&'static str, Info)> + Send + Sync + 'static> Heaps<F> {
    /// Makes a collector of the statistics that `heaps` returns, each with a name. Pass
    /// [`heaps`](crate::process::heaps), or a function that reports your own subsystems. The collector calls `heaps`
    /// for each page that it makes.
    pub fn new(heaps: F) -> Self {
        Self(heaps)
    }
}

#[cfg(feature = "prometheus-client")]
impl<F> fmt::Debug for Heaps<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heaps").finish_non_exhaustive()
    }
}

#[cfg(feature = "prometheus-client")]
impl<F: Fn() -> Vec<(&'static str, Info)> + Send + Sync + 'static> Collector for Heaps<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let heaps = (self.0)();
        Exposition::of(heaps.iter().map(|(name, info)| (*name, info))).visit(&mut |name, help, series| {
            // The registry appends `_total`, and a full stop after the help text.
            let help = help.strip_suffix('.').unwrap_or(help);
            let (name, kind) = match name.strip_suffix("_total") {
                Some(name) => (name, MetricType::Counter),
                None => (name, MetricType::Gauge),
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            series.iter().try_for_each(|(labels, value)| {
                let family_encoder = metric.encode_family(labels)?;
                match (kind, seconds(name, *value)) {
                    (_, Some(seconds)) => ConstCounter::new(seconds).encode(family_encoder),
                    (MetricType::Counter, None) => ConstCounter::new(*value).encode(family_encoder),
                    _ => ConstGauge::new(*value).encode(family_encoder),
                }
            })
        })
    }
}

/// A metric of items of type `T`, which has one series for each value of `label`, or a single series without a label.
struct Metric<T: 'static> {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    series: &'static [Series<T>],
}
type Series<T> = (&'static str, fn(&T) -> u64);

const fn single<T: 'static>(
    name: &'static str,
    help: &'static str,
    series: &'static [Series<T>; 1],
) -> Metric<T> {
    Metric { name, help, label: "", series }
}

const PAGE: u64 = PAGE_SIZE as u64;
/// Converts nanoseconds to seconds if the metric's name contains `_seconds`.
fn seconds(name: &str, value: u64) -> Option<f64> {
    name.contains("_seconds").then_some(value as f64 / 1e9)
}

const CACHES: &[Metric<CacheInfo>] = &[
    Metric {
        name: "uslab_cache_objects",
        help: "Objects in slabs: in use, cached at a level, or free in the slabs.",
        label: "place",
        series: &[
            ("used", |c| c.used),
            ("magazines", |c| c.in_magazines),
            ("depot", |c| c.in_depot),
            ("quarantine", |c| c.quarantined),
            ("slabs", |c| c.free_in_slabs),
        ],
    },
    Metric {
        name: "uslab_cache_slabs",
        help: "Slabs by list. Slabs in a grace period wait for readers and are on no list.",
        label: "list",
        series: &[
            ("full", |c| c.full),
            ("partial", |c| c.partial),
            ("empty", |c| c.empty),
            ("grace", |c| c.grace),
        ],
    },
    single("uslab_cache_bytes", "Bytes of the pages of all slabs.", &[("", |c| c.pages * PAGE)]),
    single("uslab_cache_used_bytes", "Bytes of objects in use.", &[("", |c| c.used * c.object_size)]),
    single("uslab_cache_allocs_total", "Objects allocated.", &[("", |c| c.allocs)]),
    single("uslab_cache_frees_total", "Objects freed.", &[("", |c| c.frees)]),
    Metric {
        name: "uslab_cache_operations_total",
        help: "Allocations and frees, by where they were served.",
        label: "path",
        series: &[
            ("cpu", |c| c.paths.cpu),
            ("depot", |c| c.paths.depot),
            ("slab", |c| c.paths.slab),
            ("pages", |c| c.paths.pages),
            ("commit", |c| c.paths.commit),
        ],
    },
    single(
        "uslab_cache_depot_exchanges_total",
        "Depot visits that moved a magazine.",
        &[("", |c| c.depot_exchanges)],
    ),
    single(
        "uslab_cache_depot_waits_total",
        "Depot visits that waited for the lock.",
        &[("", |c| c.depot_contention)],
    ),
    single("uslab_cache_magazine_fills_total", "Magazines filled from slabs.", &[("", |c| c.fills)]),
    single(
        "uslab_cache_magazines_refused",
        "1 for a cache that should have magazines but has none, because no class number or memory was available.",
        &[("", |c| c.magazines_refused.into())],
    ),
    single("uslab_cache_magazine_flushes_total", "Magazines flushed to slabs.", &[("", |c| c.flushes)]),
    single(
        "uslab_cache_other_node_allocs_total",
        "Allocations that got an object of another memory node than requested.",
        &[("", |c| c.other_node_allocs)],
    ),
    single(
        "uslab_cache_other_node_frees_total",
        "Frees of another memory node's objects.",
        &[("", |c| c.other_node_frees)],
    ),
    single(
        "uslab_cache_held_bytes",
        "Bytes that constructed objects hold in addition to their size, if the cache measures them.",
        &[("", |c| c.held_bytes)],
    ),
    single("uslab_cache_slabs_made_total", "Slabs created.", &[("", |c| c.slabs_made)]),
    single("uslab_cache_slabs_released_total", "Slabs freed.", &[("", |c| c.slabs_released)]),
    single(
        "uslab_cache_limit_bytes",
        "Limit of the bytes of all slabs; 0 is no limit.",
        &[("", |c| (c.limit.unwrap_or(0) * PAGE) << c.order)],
    ),
    single("uslab_cache_waiting", "Callers that wait for an object at the limit.", &[("", |c| c.waiting)]),
    single("uslab_cache_waits_total", "Waits at the limit that have ended.", &[("", |c| c.waits)]),
    single("uslab_cache_waited_seconds_total", "Total seconds of ended waits.", &[("", |c| c.waited_ns)]),
    single("uslab_cache_failures_total", "Allocations that failed.", &[("", |c| c.failures)]),
    single(
        "uslab_cache_corruptions_total",
        "Refused frees and detected corruptions.",
        &[("", |c| c.corruptions)],
    ),
];

const ACCOUNT_METRICS: &[Metric<AccountInfo>] = &[
    single("uslab_account_charged_bytes", "Bytes that are charged.", &[("", |a| a.charged)]),
    single("uslab_account_peak_bytes", "Maximum of the charged bytes.", &[("", |a| a.peak)]),
    single("uslab_account_limit_bytes", "Limit of the charged bytes.", &[("", |a| a.limit)]),
    single("uslab_account_refusals_total", "Slabs refused because of the limit.", &[("", |a| a.refusals)]),
    single("uslab_account_waiting", "Callers that wait in the account's caches.", &[("", |a| a.waiting)]),
];

const ZONE_METRICS: &[Metric<ZoneInfo>] = &[
    Metric {
        name: "uslab_zone_bytes",
        help: "Bytes of a zone's pages, by state. Discarded and uncommitted pages are free, and their memory is returned to the system.",
        label: "state",
        series: &[
            ("allocated", |z| z.allocated * PAGE),
            ("per_cpu", |z| z.per_cpu * PAGE),
            ("free", |z| u64::from(z.free - z.uncommitted - z.discarded) * PAGE),
            ("discarded", |z| u64::from(z.discarded) * PAGE),
            ("uncommitted", |z| u64::from(z.uncommitted) * PAGE),
        ],
    },
    single(
        "uslab_zone_charged_bytes",
        "Free bytes of separate mappings under a limit.",
        &[("", |z| u64::from(z.charged) * PAGE)],
    ),
    Metric {
        name: "uslab_zone_operations_total",
        help: "Page blocks allocated and freed through per-CPU magazines, by where they were served.",
        label: "path",
        series: &[
            ("cpu", |z| z.per_cpu_events.paths.cpu),
            ("depot", |z| z.per_cpu_events.paths.depot),
            ("pages", |z| z.per_cpu_events.paths.pages),
            ("commit", |z| z.per_cpu_events.paths.commit),
        ],
    },
];

const SUBSYSTEM_METRICS: &[Metric<Info>] = &[
    Metric {
        name: "uslab_beyond_caches_bytes",
        help: "Bytes of memory in use that no cache serves: blocks of pages, and separate mappings.",
        label: "kind",
        series: &[("large", |i| i.kmalloc_large.pages * PAGE), ("huge", |i| i.huge.pages * PAGE)],
    },
    Metric {
        name: "uslab_beyond_caches_allocs_total",
        help: "Allocations of memory that no cache serves.",
        label: "kind",
        series: &[("large", |i| i.kmalloc_large.allocs), ("huge", |i| i.huge.allocs)],
    },
    Metric {
        name: "uslab_huge_bytes",
        help: "Bytes of separate mappings: in use, and freed but kept.",
        label: "place",
        series: &[("used", |i| i.huge.pages * PAGE), ("cached", |i| i.huge.cached_pages * PAGE)],
    },
    single(
        "uslab_huge_reused_total",
        "Large blocks that reused a freed mapping.",
        &[("", |i| i.huge.reused)],
    ),
    single(
        "uslab_huge_unmapped_total",
        "Freed mappings, or parts of them, that were returned to the system.",
        &[("", |i| i.huge.unmapped)],
    ),
    Metric {
        name: "uslab_large_operations_total",
        help: "Page blocks allocated and freed without a cache, by where they were served.",
        label: "path",
        series: &[
            ("cpu", |i| i.kmalloc_large.paths.cpu),
            ("depot", |i| i.kmalloc_large.paths.depot),
            ("pages", |i| i.kmalloc_large.paths.pages),
            ("commit", |i| i.kmalloc_large.paths.commit),
        ],
    },
    Metric {
        name: "uslab_drains_total",
        help: "Drains of objects and pages from CPUs' stacks. A drain that membarrier refused took nothing.",
        label: "outcome",
        // A drain may be refused between these two reads.
        series: &[
            ("done", |i| i.drains.passes.saturating_sub(i.drains.refused)),
            ("refused", |i| i.drains.refused),
        ],
    },
    single("uslab_page_failures_total", "Allocations of pages that failed.", &[("", |i| i.pages.failures)]),
    single("uslab_page_corruptions_total", "Refused frees of pages.", &[("", |i| i.pages.corruptions)]),
];

/// Value of a label; writing it escapes backslash, quote and line feed.
struct EscapedLabel<'s>(&'s str);

impl Display for EscapedLabel<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.split_inclusive(['\\', '"', '\n']).try_for_each(|part| match part.as_bytes() {
            [.., b'\n'] => write!(f, "{}\\n", &part[..part.len() - 1]),
            [.., last @ (b'\\' | b'"')] => write!(f, "{}\\{}", &part[..part.len() - 1], *last as char),
            _ => f.write_str(part),
        })
    }
}

type Sample<'i> = (Vec<(&'static str, &'i str)>, u64);
/// A set of labels, with all items that have these labels.
type LabelledItems<'i, T> = (Vec<(&'static str, &'i str)>, Vec<&'i T>);
/// Function that receives each metric's name, help text and samples.
type Visitor<'v> = dyn FnMut(&'static str, &'static str, &[Sample<'_>]) -> fmt::Result + 'v;

fn visit<T: 'static>(
    metrics: &[Metric<T>],
    measured: &[LabelledItems<'_, T>],
    visitor: &mut Visitor<'_>,
) -> fmt::Result {
    metrics.iter().filter(|_| !measured.is_empty()).try_for_each(|Metric { name, help, label, series }| {
        let samples = measured.iter().flat_map(|(labels, items)| {
            series.iter().map(move |(place, value)| {
                let place_label = (!label.is_empty()).then_some((*label, *place));
                let sum = items.iter().map(|item| value(item)).fold(0, u64::saturating_add);
                (labels.iter().copied().chain(place_label).collect(), sum)
            })
        });
        visitor(name, help, &samples.collect::<Vec<_>>())
    })
}

impl Exposition<'_> {
    /// Calls `visitor` for each metric, in the order of output.
    fn visit(&self, visitor: &mut Visitor<'_>) -> fmt::Result {
        type Labels<'i> = Vec<(&'static str, &'i str)>;
        fn labels<'i>(
            heap: &'i str,
            more_labels: impl IntoIterator<Item = (&'static str, &'i str)>,
        ) -> Labels<'i> {
            (!heap.is_empty()).then_some(("heap", heap)).into_iter().chain(more_labels).collect()
        }
        let mut caches: BTreeMap<(&str, &str), Vec<&CacheInfo>> = BTreeMap::new();
        for (heap, info) in &self.heaps {
            let shown_caches = info.caches.iter().filter(|cache| self.all || cache.had_slabs());
            shown_caches.for_each(|cache| caches.entry((heap, &cache.name)).or_default().push(cache));
        }
        let caches =
            caches.into_iter().map(|((heap, name), caches)| (labels(heap, [("cache", name)]), caches));
        visit(CACHES, &caches.collect::<Vec<_>>(), visitor)?;
        let mut accounts: BTreeMap<(&str, &str), Vec<&AccountInfo>> = BTreeMap::new();
        for (heap, info) in &self.heaps {
            info.accounts
                .iter()
                .for_each(|account| accounts.entry((heap, &account.name)).or_default().push(account));
        }
        let accounts = accounts
            .into_iter()
            .map(|((heap, name), account_infos)| (labels(heap, [("account", name)]), account_infos));
        visit(ACCOUNT_METRICS, &accounts.collect::<Vec<_>>(), visitor)?;
        let zones = || {
            self.heaps.iter().flat_map(|(heap, info)| info.pages.zones.iter().map(move |zone| (*heap, zone)))
        };
        let nodes: Vec<String> = zones().map(|(_, zone)| zone.node.to_string()).collect();
        let zones = zones().zip(&nodes).map(|((heap, zone), node)| {
            (labels(heap, [("node", node.as_str()), ("zone", zone.zone.name())]), vec![zone])
        });
        visit(ZONE_METRICS, &zones.collect::<Vec<_>>(), visitor)?;
        let whole_heap = self.heaps.iter().map(|(heap, info)| (labels(heap, []), vec![*info]));
        visit(SUBSYSTEM_METRICS, &whole_heap.collect::<Vec<_>>(), visitor)
    }
}

impl Display for Exposition<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.visit(&mut |name, help, samples| {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
            samples.iter().try_for_each(|(labels, value)| {
                f.write_str(name)?;
                for (i, (label, value)) in labels.iter().enumerate() {
                    write!(f, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, EscapedLabel(value))?;
                }
                f.write_str(if labels.is_empty() { " " } else { "} " })?;
                match seconds(name, *value) {
                    Some(seconds) => writeln!(f, "{seconds:?}"),
                    None => writeln!(f, "{value}"),
                }
            })
        })
    }
}
