//! Reports the call sites of allocations, and the lifetimes of objects.
//!
//! The table of call sites shows the numbers of `perf kmem stat --caller`. The column *hits* counts the
//! successful allocations of a call site. The column *ping-pong* counts the objects of a call site that were freed on
//! another CPU than the one that allocated them. Fragmentation is the percentage of allocated bytes that the callers
//! did not request.
//!
//! A lifetime is the time between an object's allocation and its free, if the trace contains both events. A
//! lifetime is measured in two ways: in time on the trace's clock, and in operations. The operation count
//! covers all allocations and frees on all CPUs after the object's allocation, up to and including its free.

use super::live::{Live, LiveObjects, Names, Object, Slabs};
use crate::output::{grouped, table, text};
use crate::trace::{
    CacheId, FreeOrigin, MarkId, Op, OpKind, PageUse, Ptr, Resolver, SiteId, SlabinfoComparison, TaskId,
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::{self, Write};

/// Collects the statistics of call sites, one traced operation at a time.
#[derive(Debug, Default)]
pub(crate) struct CallerStatistics {
    sites: FxHashMap<SiteId, Tally>,
    /// The live objects, indexed by address.
    live: FxHashMap<u64, ObjectBirth>,
    /// The lifetimes, indexed by the cache's number in the trace.
    caches: Vec<CacheLifetimes>,
    /// The number of allocations and frees so far.
    operations: u64,
    slabs: Slabs,
    /// The earliest and the latest time among all operations with a time.
    times: Option<(u64, u64)>,
    /// The first time of each mark.
    marks: FxHashMap<MarkId, u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    bytes_alloc: u64,
    bytes_req: u64,
    hits: u64,
    ping_pong: u64,
    hidden_frees: u64,
}

impl Tally {
    fn fragmentation_percent(&self) -> f64 {
        // An object has at least one byte.
        100.0 * (self.bytes_alloc - self.bytes_req) as f64 / self.bytes_alloc.max(1) as f64
    }
}

#[derive(Debug, Clone, Copy)]
struct ObjectBirth {
    site: SiteId,
    cache: CacheId,
    task: Option<TaskId>,
    bytes: u32,
    time_ns: u64,
    operation: u64,
}

/// The lifetimes of a cache's objects.
#[derive(Debug, Default)]
struct CacheLifetimes {
    freed: u64,
    hidden_frees: u64,
    live: u64,
    nanoseconds: QuantileSamples,
    operations: QuantileSamples,
}

/// A set of numbers for computing quantiles; each number is kept in 8 bytes.
#[derive(Debug, Default)]
struct QuantileSamples(Vec<u64>);

impl QuantileSamples {
    fn add(&mut self, number: u64) {
        self.0.push(number);
    }

    /// Returns the quantiles in multiples of `unit`, or `None` if there are no numbers.
    fn quantiles(&self, unit: f64) -> Option<Quantiles> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        // The quantile is the smallest number such that `percent` in a hundred are not above it.
        let at =
            |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)] as f64 / unit;
        Some(Quantiles { p50: at(50), p90: at(90), p99: at(99), max: sorted[last] as f64 / unit })
    }
}

impl CallerStatistics {
    /// Adds an operation of the trace to the statistics.
    pub(crate) fn observe_op(&mut self, op: &Op) {
        if op.time_ns > 0 {
            let (first, last) = self.times.unwrap_or((op.time_ns, op.time_ns));
            self.times = Some((first.min(op.time_ns), last.max(op.time_ns)));
        }
        match op.kind {
            OpKind::Alloc { cache, ptr, site, bytes_req, bytes_alloc, .. } => {
                self.operations += 1;
                let tally = self.sites.entry(site).or_default();
                tally.bytes_alloc += u64::from(bytes_alloc);
                tally.bytes_req += u64::from(bytes_req);
                tally.hits += 1;
                self.cache_lifetimes(cache).live += 1;
                let birth = ObjectBirth {
                    site,
                    task: op.task,
                    cache,
                    bytes: bytes_alloc,
                    time_ns: op.time_ns,
                    operation: self.operations,
                };
                self.live.insert(ptr.0, birth);
            }
            OpKind::Free { cache, ptr, origin } => {
                self.operations += 1;
                let Some(birth) = self.live.remove(&ptr.0) else { return };
                if let FreeOrigin::Matched { alloc_cpu } = origin
                    && alloc_cpu != op.cpu
                {
                    self.sites.entry(birth.site).or_default().ping_pong += 1;
                }
                let operations = self.operations - birth.operation;
                let lives = self.cache_lifetimes(cache);
                lives.live -= 1;
                lives.freed += 1;
                lives.operations.add(operations);
                // While the clock does not run, every time is 0. Between CPUs the clock may step back.
                if birth.time_ns > 0 {
                    lives.nanoseconds.add(op.time_ns.saturating_sub(birth.time_ns));
                }
            }
            // The object was freed at an unknown time after its allocation.
            OpKind::HiddenFree { cache, ptr, .. } => {
                if let Some(birth) = self.live.remove(&ptr.0) {
                    self.sites.entry(birth.site).or_default().hidden_frees += 1;
                    let lives = self.cache_lifetimes(cache);
                    lives.live -= 1;
                    lives.hidden_frees += 1;
                }
            }
            OpKind::PageAlloc { pfn, order, usage: PageUse::Slab, .. } => self.slabs.alloc(pfn, order),
            OpKind::PageFree { pfn, order, .. } => self.slabs.free(pfn, order),
            OpKind::Mark { text } => _ = self.marks.entry(text).or_insert(op.time_ns),
            OpKind::PageAlloc { .. } => {}
        }
    }

    /// Returns the objects that are live after all operations so far. The parameter `tables` contains the changes of
    /// the kernel's slabinfo for each time span.
    fn remaining_live_objects(
        &self,
        resolver: &Resolver,
        tables: &[SlabinfoComparison],
        which: LiveObjects,
    ) -> Live {
        let mut objects: Vec<_> = self
            .live
            .iter()
            .map(|(ptr, birth)| Object {
                ptr: Ptr(*ptr),
                call_site: birth.site.0,
                cache: birth.cache.0,
                task: birth.task.map(|task| task.0),
                bytes: birth.bytes,
                time_ns: birth.time_ns,
            })
            .collect();
        objects.sort_by_key(|object| object.ptr);
        // The tables show the workload only.
        let of_workload = which == LiveObjects::Workload;
        let span = tables.iter().find(|span| of_workload && span.from == "before");
        let names = Names {
            hidden_frees: &|site| self.sites.get(&SiteId(site)).map_or(0, |tally| tally.hidden_frees),
            tables: &|cache| span?.rows.iter().find(|row| row.cache == cache),
            site: &|site| resolver.call_site(SiteId(site)),
            allocations: &|site| self.sites.get(&SiteId(site)).map_or(0, |tally| tally.hits),
            cache: &|cache| resolver.cache(CacheId(cache)).name.clone(),
            task: &|task| resolver.task(TaskId(task)),
            page_of: &|ptr| resolver.page_of(ptr),
            page_bytes: resolver.page_size().bytes(),
            times: self.times.unwrap_or_default(),
            workload: self.workload(resolver).filter(|_| of_workload),
        };
        Live::new(&objects, &self.slabs, &names)
    }

    /// Returns the times at which the workload of a recording began and ended.
    fn workload(&self, resolver: &Resolver) -> Option<(u64, u64)> {
        let (_, last) = self.times?;
        let time = |begins: &str| {
            let of = |(mark, _): &(&MarkId, &u64)| resolver.mark(**mark).starts_with(begins);
            self.marks.iter().filter(of).map(|(_, time)| *time).min()
        };
        let begin = time("WORKLOAD begin")?;
        Some((begin, time("WORKLOAD end").filter(|end| *end > begin).unwrap_or(last)))
    }

    fn cache_lifetimes(&mut self, cache: CacheId) -> &mut CacheLifetimes {
        let at = cache.0 as usize;
        if at >= self.caches.len() {
            self.caches.resize_with(at + 1, CacheLifetimes::default);
        }
        &mut self.caches[at]
    }

    /// Returns the report of all operations so far; `resolver` provides the names. The parameter `tables` contains the
    /// changes of the kernel's slabinfo for each time span.
    pub(crate) fn report(
        &self,
        resolver: &Resolver,
        tables: &[SlabinfoComparison],
        which: LiveObjects,
    ) -> Callers {
        let mut sites: Vec<_> = self
            .sites
            .iter()
            .map(|(id, tally)| CallSite {
                call_site: resolver.call_site(*id),
                bytes_alloc: tally.bytes_alloc,
                bytes_alloc_per_hit: tally.bytes_alloc / tally.hits.max(1),
                bytes_req: tally.bytes_req,
                bytes_req_per_hit: tally.bytes_req / tally.hits.max(1),
                hits: tally.hits,
                ping_pong: tally.ping_pong,
                fragmentation_percent: tally.fragmentation_percent(),
            })
            .collect();
        sites.sort_by(|a, b| {
            (b.bytes_alloc, b.hits, &a.call_site).cmp(&(a.bytes_alloc, a.hits, &b.call_site))
        });
        let lives = self.caches.iter().zip(resolver.caches()).map(|(lives, info)| Lifetimes {
            cache: info.name.clone(),
            freed: lives.freed,
            live: lives.live,
            hidden_frees: lives.hidden_frees,
            microseconds: lives.nanoseconds.quantiles(1000.0),
            operations: lives.operations.quantiles(1.0),
        });
        let mut lifetimes: Vec<_> = lives.filter(|l| l.freed + l.live + l.hidden_frees > 0).collect();
        lifetimes.sort_by(|a, b| (Reverse(a.freed), &a.cache).cmp(&(Reverse(b.freed), &b.cache)));
        Callers { sites, lifetimes, live: self.remaining_live_objects(resolver, tables, which) }
    }
}

/// The report of call sites and lifetimes.
#[derive(Debug, Serialize)]
pub struct Callers {
    /// The call sites; the site with the most allocated bytes comes first.
    pub sites: Vec<CallSite>,
    /// The lifetimes by cache; the cache with the most frees comes first.
    pub lifetimes: Vec<Lifetimes>,
    /// The objects that are live at the end.
    pub live: Live,
}

/// The allocations of one call site, in the columns of `perf kmem stat --caller`.
#[derive(Debug, Serialize)]
pub struct CallSite {
    /// The call site as `function+offset`, copied from the trace.
    pub call_site: String,
    /// The allocated bytes of the site's objects.
    pub bytes_alloc: u64,
    /// `bytes_alloc` divided by `hits`, rounded down.
    pub bytes_alloc_per_hit: u64,
    /// The requested bytes of the site's objects.
    pub bytes_req: u64,
    /// `bytes_req` divided by `hits`, rounded down.
    pub bytes_req_per_hit: u64,
    /// The number of allocations.
    pub hits: u64,
    /// The number of the site's objects that another CPU freed, on the traced machine.
    pub ping_pong: u64,
    /// The percentage of the allocated bytes that callers did not request.
    pub fragmentation_percent: f64,
}

/// The lifetimes of a cache's objects.
#[derive(Debug, Serialize)]
pub struct Lifetimes {
    /// The name of the cache.
    pub cache: String,
    /// The number of objects whose lifetimes are known, because the trace has both their allocation and their
    /// free.
    pub freed: u64,
    /// The number of objects with only a lower limit for the lifetime, because the trace has their allocation but not
    /// their free.
    pub live: u64,
    /// The number of objects freed without an event, at an unknown time.
    pub hidden_frees: u64,
    /// The lifetimes on the trace's clock; `None` if no object was freed while the clock was running.
    pub microseconds: Option<Quantiles>,
    /// The lifetimes, measured as a number of allocations and frees in all caches.
    pub operations: Option<Quantiles>,
}

/// Quantiles of a set of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest number.
    pub max: f64,
}

impl Callers {
    /// Formats the report as text, with at most `rows` call sites and `rows` caches.
    pub fn page(&self, rows: usize) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_page(&mut out, rows);
        out
    }

    fn write_page(&self, out: &mut String, rows: usize) -> fmt::Result {
        self.live.write_page(out, rows)?;
        let shown = rows.min(self.sites.len());
        writeln!(
            out,
            "\nCall sites ({shown} of {}, the most bytes first)",
            grouped(self.sites.len() as u64)
        )?;
        writeln!(
            out,
            "  The columns are as in `perf kmem stat --caller`. ping-pong counts objects that were freed on another CPU than the allocating CPU; frag % is the part of the allocated bytes that was not requested."
        )?;
        let mut sites =
            table(&["call site", "allocated", "per", "requested", "per", "hits", "ping-pong", "frag %"]);
        for site in &self.sites[..shown] {
            sites.add_row([
                site.call_site.clone(),
                grouped(site.bytes_alloc),
                grouped(site.bytes_alloc_per_hit),
                grouped(site.bytes_req),
                grouped(site.bytes_req_per_hit),
                grouped(site.hits),
                grouped(site.ping_pong),
                format!("{:.3}", site.fragmentation_percent),
            ]);
        }
        out.push_str(&text(&sites));
        let shown = rows.min(self.lifetimes.len());
        writeln!(
            out,
            "\nLifetimes ({shown} of {}, the most frees first)",
            grouped(self.lifetimes.len() as u64)
        )?;
        writeln!(
            out,
            "  Times from allocation to free, in microseconds of the trace's clock, and in allocations and frees of all caches.\n  \
             Objects that are still live, or were freed without an event (hidden), have no lifetime."
        )?;
        let mut lives = table(&[
            "cache", "freed", "live", "hidden", "us p50", "p90", "p99", "max", "ops p50", "p90", "p99", "max",
        ]);
        for cache in &self.lifetimes[..shown] {
            let mut row = vec![
                cache.cache.clone(),
                grouped(cache.freed),
                grouped(cache.live),
                grouped(cache.hidden_frees),
            ];
            for quantiles in [cache.microseconds, cache.operations] {
                row.extend(match quantiles {
                    Some(q) => [q.p50, q.p90, q.p99, q.max].map(|number| grouped(number.round() as u64)),
                    None => ["-"; 4].map(str::to_owned),
                });
            }
            lives.add_row(row);
        }
        out.push_str(&text(&lives));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::live::LeakGuess;
    use crate::trace::{Recording, Source};

    fn watched(text: &str) -> Callers {
        callers_from_trace_text(text, LiveObjects::Workload)
    }
    fn callers_from_trace_text(text: &str, which: LiveObjects) -> Callers {
        let source =
            Source::from_reader("test", Box::new(std::io::Cursor::new(text.to_owned())), None).unwrap();
        let mut resolver = Recording::read(source, |_| {}).unwrap().resolve(None).unwrap();
        let mut watch = CallerStatistics::default();
        while let Some(op) = resolver.next_op().unwrap() {
            watch.observe_op(&op);
        }
        watch.report(&resolver, &[], which)
    }

    fn alloc(cpu: u32, microseconds: u64, site: &str, ptr: u64, bytes: [u64; 2]) -> String {
        format!(
            "  sh-1 [{cpu:03}] ..... 1.{microseconds:06}: kmalloc: call_site={site} ptr={ptr:016x} bytes_req={} \
             bytes_alloc={} gfp_flags=GFP_KERNEL node=-1 accounted=false\n",
            bytes[0], bytes[1]
        )
    }
    fn free(cpu: u32, microseconds: u64, ptr: u64) -> String {
        format!("  sh-1 [{cpu:03}] ..... 1.{microseconds:06}: kfree: call_site=f+0x1/0x2 ptr={ptr:016x}\n")
    }

    /// Regression test: the quarters divided the whole trace with the boot, which hid the call sites of a growing
    /// workload.
    #[test]
    fn leaking_site_grows_in_each_workload_quarter() {
        let mark = |microseconds: u64, text: &str| {
            format!("  sh-1 [000] ..... 1.{microseconds:06}: tracing_mark_write: {text}\n")
        };
        let mut text = alloc(0, 1, "boot+0x1/0x9", 1, [64, 64]) + &mark(100_000, "WORKLOAD begin leak 8");
        for i in 0..8 {
            text += &alloc(0, 100_001 + i * 10, "leak+0x1/0x9", 2 + i, [64, 64]);
        }
        text += &mark(100_080, "WORKLOAD end");
        text += &alloc(0, 900_000, "rest+0x1/0x9", 99, [64, 64]);
        let live = watched(&text).live;
        let sites: Vec<_> =
            live.sites.iter().map(|site| (&*site.call_site, site.by_quarter, site.looks_like)).collect();
        assert_eq!(
            sites,
            [("leak+0x1/0x9", [2; 4], LeakGuess::Growing), ("rest+0x1/0x9", [0, 0, 0, 1], LeakGuess::Recent)]
        );
        assert!(live.of_workload && live.objects == 9);
        // Regression test: memory from before the workload was hidden without a message.
        let older = live.older.expect("the object of the boot");
        assert_eq!((older.objects, older.kmalloc_bytes, &*older.call_site), (1, 64, "boot+0x1/0x9"));
        let callers = watched(&text);
        let page = callers.page(9);
        assert!(page.contains("of which 576 B are in kmalloc caches"), "{page}");
        assert!(
            page.contains("shows them): 64 B in 1 objects, of which 64 B are in kmalloc caches"),
            "{page}"
        );
        let all = callers_from_trace_text(&text, LiveObjects::All).live;
        assert!(!all.of_workload && all.objects == 10 && all.older.is_none(), "{all:?}");
        assert!(all.sites.iter().any(|site| site.call_site == "boot+0x1/0x9"), "{all:?}");
    }

    #[test]
    fn call_sites_and_lifetimes_match_a_hand_count() {
        let text = [
            alloc(0, 10, "a+0x1/0x9", 1, [60, 64]),
            alloc(0, 20, "a+0x1/0x9", 2, [33, 64]),
            alloc(1, 25, "a+0x2/0x9", 3, [100, 128]),
            free(1, 30, 1), // another CPU
            free(0, 70, 2),
            alloc(0, 80, "a+0x1/0x9", 4, [64, 64]),
            alloc(0, 90, "a+0x1/0x9", 4, [8, 64]), // its free had no event
            free(1, 95, 5),                        // allocated before the trace: belongs to no site
        ]
        .concat();
        let callers = watched(&text);
        let sites: Vec<_> = callers
            .sites
            .iter()
            .map(|s| {
                let per = [s.bytes_alloc_per_hit, s.bytes_req_per_hit];
                (
                    &s.call_site[..],
                    [s.bytes_alloc, s.bytes_req, s.hits, s.ping_pong],
                    per,
                    s.fragmentation_percent,
                )
            })
            .collect();
        let percent = |part: f64, all: f64| 100.0 * part / all;
        let expected = [
            ("a+0x1/0x9", [256, 165, 4, 1], [64, 41], percent(91.0, 256.0)),
            ("a+0x2/0x9", [128, 100, 1, 0], [128, 100], percent(28.0, 128.0)),
        ];
        assert_eq!(sites, expected);
        let [small, large] = &callers.lifetimes[..] else { panic!("{:?}", callers.lifetimes) };
        assert_eq!((&small.cache[..], small.freed, small.live, small.hidden_frees), ("kmalloc-64", 2, 1, 1));
        // The lifetimes are 20 us with 3 operations, and 50 us with 3.
        let micros = small.microseconds.unwrap();
        assert!((micros.p50 - 20.0).abs() <= 0.2 && micros.p99 == 50.0 && micros.max == 50.0, "{micros:?}");
        assert_eq!(small.operations, Some(Quantiles { p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0 }));
        assert_eq!((&large.cache[..], large.freed, large.live), ("kmalloc-128", 0, 1));
        assert_eq!((large.microseconds, large.operations), (None, None));
        let page = callers.page(1);
        for part in ["Call sites (1 of 2", "a+0x1/0x9", "35.547", "Lifetimes (1 of 2", "kmalloc-64"] {
            assert!(page.contains(part), "expected {part:?} in {page}");
        }
        // The site has the most live bytes, and so has its command: two lines of the page. The site is not among the
        // rows of call sites.
        assert_eq!(page.matches("a+0x2/0x9").count(), 2, "{page}");
        let live: Vec<_> =
            callers.live.sites.iter().map(|s| (&s.call_site[..], s.objects, s.bytes)).collect();
        assert_eq!(live, [("a+0x2/0x9", 1, 128), ("a+0x1/0x9", 1, 64)]);
    }

    /// The test uses slabs of 4 KiB. The first site frees nothing, the second site frees everything, the
    /// third site works only at the end, and the fourth site allocates everything at the beginning.
    #[test]
    fn leak_is_reported_by_its_call_site() {
        let page = |n: u64| 0xffff_8880_0100_0000 + (n << 12);
        let mut text = String::new();
        let slab = |at: u64, n: u64| {
            format!(
                "  sh-1 [000] ..... 1.{at:06}: mm_page_alloc: page=0x1 pfn={:#x} order=0 migratetype=0 gfp_flags=GFP_KERNEL\n",
                0x1000 + n
            )
        };
        for step in 0..40 {
            let at = 10 + step * 1000;
            if step == 0 {
                // The pages of a new slab precede its first object, so that the direct map is found.
                for n in 0..4 {
                    text += &slab(2 * n, n);
                    text += &alloc(0, 2 * n + 1, "first+0x1/0x9", page(n) + 63 * 64, [64, 64]);
                }
            }
            if step < 5 {
                text += &alloc(0, at, "once+0x1/0x9", page(1) + step * 64, [64, 64]);
            }
            text += &alloc(0, at + 1, "leak+0x1/0x9", page(0) + step * 64, [64, 64]);
            text += &alloc(0, at + 2, "tidy+0x1/0x9", page(2), [64, 64]);
            text += &free(0, at + 3, page(2));
            if step > 35 {
                text += &alloc(0, at + 4, "busy+0x1/0x9", page(3) + step * 64, [64, 64]);
            }
        }
        let Live { sites, pinned, objects, bytes, commands, .. } = watched(&text).live;
        let commands: Vec<_> =
            commands.iter().map(|row| (&row.command[..], row.bytes, &row.call_site[..])).collect();
        assert_eq!(commands, [("sh", 53 * 64, "leak+0x1/0x9")]);
        assert_eq!((objects, bytes), (53, 53 * 64));
        let sites: Vec<_> =
            sites.iter().map(|s| (&s.call_site[..], s.objects, s.allocations, s.looks_like)).collect();
        let expected = [
            ("leak+0x1/0x9", 40, 40, LeakGuess::Growing),
            ("once+0x1/0x9", 5, 5, LeakGuess::Settled),
            ("busy+0x1/0x9", 4, 4, LeakGuess::Recent),
            ("first+0x1/0x9", 4, 4, LeakGuess::Settled),
        ];
        assert_eq!(sites, expected);
        // The slabs have 23, 58, 63 and 59 free objects of 64.
        let [pinned] = &pinned[..] else { panic!("{pinned:?}") };
        assert_eq!((&pinned.cache[..], pinned.slabs, pinned.by_one), ("kmalloc-64", 4, 1));
        assert_eq!(pinned.holes, (23 + 58 + 63 + 59) * 64);
        assert_eq!(pinned.site.as_deref(), Some("once+0x1/0x9"));
    }

    #[test]
    fn lifetimes_ignore_times_before_the_clock_started() {
        let early = alloc(0, 0, "a", 1, [8, 8]).replace("1.000000", "0.000000");
        let callers = watched(&(early + &free(0, 5, 1)));
        assert_eq!((callers.lifetimes[0].freed, callers.lifetimes[0].microseconds), (1, None));
        // The events are sorted by time, so the freed object is from before the trace.
        let callers = watched(&(alloc(0, 9, "a", 1, [8, 8]) + &free(1, 5, 1)));
        assert_eq!((callers.lifetimes[0].freed, callers.lifetimes[0].live), (0, 1));
    }

    #[test]
    fn quantiles_are_accurate_to_one_percent() {
        let mut spread = QuantileSamples::default();
        (1..=100_000).for_each(|number| spread.add(number));
        let q = spread.quantiles(1.0).unwrap();
        for (found, expected) in [(q.p50, 50_000.0), (q.p90, 90_000.0), (q.p99, 99_000.0)] {
            assert!((found - expected).abs() <= expected / 100.0, "{q:?}");
        }
        assert_eq!(q.max, 100_000.0);
        let mut one = QuantileSamples::default();
        one.add(1_000_003);
        assert_eq!(
            one.quantiles(1.0),
            Some(Quantiles { p50: 1_000_003.0, p90: 1_000_003.0, p99: 1_000_003.0, max: 1_000_003.0 })
        );
        assert_eq!(QuantileSamples::default().quantiles(1.0), None);
    }
}
