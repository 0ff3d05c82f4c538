//! Ends a replay: reads the counters, frees everything, and counts what remains.

use super::{ReplayedCache, Run, Snapshot};
use crate::machine::Build;
use crate::report::{
    CacheReport, CacheSort, Cause, Conservation, Fragmentation, KernelCache, KernelComparison, KernelRow,
    MachineReport, ObjectTotals, PageCounts, Report, SnapshotReport, Teardown, TraceHealth, TracedMachine,
    percent,
};
use crate::resident::resident_bytes;
use crate::trace::{CacheKind, Facts, SlabinfoChange, Tables};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uslab::{CacheInfo, Info, Paths};
use uslab_buddy::{BuddyInfo, Order};

/// Facts that the report needs in addition to the replay's state.
pub(super) struct ReportFacts<'t> {
    pub(super) build: Build,
    pub(super) tables: &'t Tables,
    pub(super) traced_cpus: u64,
    pub(super) read: Duration,
    pub(super) replayed: Duration,
    pub(super) rss: [u64; 2],
}

/// The largest number of violation messages in a report.
const MAX_VIOLATIONS: usize = 20;

impl Run<'_, '_> {
    /// Reads the counters at the end of the trace, frees everything, and returns the report.
    pub(super) fn finish(mut self, taken: ReportFacts<'_>) -> Report {
        let facts = self.resolver.facts(taken.tables);
        let infos = self.machine.subsystem.info();
        let against_kernel = against_kernel(&facts, &self.snapshots, &self, taken.traced_cpus);
        let caches = self.caches(&facts, &infos, taken.tables, against_kernel.as_ref());
        let callers =
            self.watch.as_ref().map(|watch| watch.report(&self.resolver, &facts.slabinfo, self.options.live));
        let teardown = self.tear_down(&infos.pages, taken.rss);
        let total = facts.total;
        let seconds = (taken.read + taken.replayed).as_secs_f64();
        let mut pages = BTreeMap::new();
        for (counts, is_alloc) in [(&facts.pages.allocs_by_order, true), (&facts.pages.frees_by_order, false)]
        {
            for (order, n) in (0..).zip(counts).filter(|(_, n)| **n > 0) {
                let entry: &mut PageCounts = pages.entry(order).or_default();
                *(if is_alloc { &mut entry.allocs } else { &mut entry.frees }) = *n;
            }
        }
        let used: BTreeSet<usize> =
            facts.by_cpu.keys().map(|cpu| cpu % taken.build.cpus.max(1) as usize).collect();
        let nodes_used: BTreeSet<u32> = used.iter().map(|cpu| self.nodes[*cpu]).collect();
        let o = &facts.objects;
        let objects = ObjectTotals {
            allocs: o.allocs,
            frees: o.frees,
            live: caches.iter().map(|c| c.live).sum(),
            matched_frees: o.matched,
            remote_frees: caches.iter().map(|c| c.remote_frees).sum(),
            remote_node_frees: caches.iter().map(|c| c.remote_node_frees).sum(),
            hidden_allocs: o.hidden_allocs,
            hidden_frees: o.hidden_frees,
            pre_trace_frees: o.pre_trace_frees,
            kfree_of_null: facts.kfree_of_null,
            paths: infos.paths(),
            depot_exchanges: caches.iter().map(|c| c.depot_exchanges).sum(),
        };
        Report {
            version: env!("CARGO_PKG_VERSION"),
            trace: self.path.display().to_string(),
            trace_health: TraceHealth::of(&facts),
            traced: TracedMachine { cpus: taken.traced_cpus, cpus_used: facts.by_cpu.len() as u64 },
            machine: MachineReport {
                cpus: taken.build.cpus,
                cpus_used: used.len() as u32,
                nodes: taken.build.nodes,
                nodes_used: nodes_used.len() as u32,
                memory_bytes: infos.pages.zones.iter().map(|zone| u64::from(zone.managed)).sum::<u64>()
                    * uslab_buddy::PAGE_SIZE as u64,
                magazine: taken.build.magazines.to_string(),
            },
            events: facts.events.iter().cloned().collect(),
            events_total: total,
            not_understood: facts.not_understood,
            lost: facts.lost,
            shrinks: self.shrinks,
            caches,
            sort: CacheSort::default(),
            objects,
            pages,
            conservation: Conservation {
                checked: self.checked,
                violated: self.violations.len() as u64,
                violations: self.violations.iter().take(MAX_VIOLATIONS).cloned().collect(),
            },
            teardown,
            against_kernel,
            fragmentation: fragmentation(&infos.pages),
            buddy: infos.pages,
            snapshots: self
                .snapshots
                .into_iter()
                .map(|s| SnapshotReport { moment: s.moment, operations: s.operations, census: s.census })
                .collect(),
            operations: self.served,
            events_per_second: total as f64 / seconds,
            read_seconds: taken.read.as_secs_f64(),
            read_ns_per_event: taken.read.as_secs_f64() * 1e9 / total.max(1) as f64,
            replay_seconds: taken.replayed.as_secs_f64(),
            replay_ns_per_operation: taken.replayed.as_secs_f64() * 1e9 / self.served.max(1) as f64,
            callers,
            facts,
        }
    }

    fn caches(
        &self,
        facts: &Facts,
        infos: &Info,
        tables: &Tables,
        against: Option<&KernelComparison>,
    ) -> Vec<CacheReport> {
        let slabinfo = tables.latest_slabinfo();
        let held = self.held.used_by_cache();
        let large = self.resolver.caches().iter().position(|c| c.kind == CacheKind::KmallocLarge);
        let large = large.and_then(|id| held.get(id)).copied().unwrap_or(0);
        let report = facts.caches.iter().map(|cache| {
            let tally = &cache.tally;
            let info = infos.caches.iter().find(|info| {
                cache.kind != CacheKind::KmallocLarge
                    && info.name == cache.name.replace(char::is_whitespace, "_")
            });
            let number = |f: fn(&CacheInfo) -> u64| info.map_or(0, f);
            let change = against.and_then(|a| a.rows.iter().find(|row| row.cache == cache.name));
            let kernel = slabinfo.and_then(|table| table.get(&cache.name)).map(|row| KernelCache {
                active_objs: row.active_objects,
                num_objs: row.objects,
                num_slabs: row.slabs,
                objects_change: change.map_or(0, |c| c.objects[0]),
                our_objects_change: change.map_or(0, |c| c.objects[1]),
                slabs_change: change.map_or(0, |c| c.slabs[0]),
                our_slabs_change: change.map_or(0, |c| c.slabs[1]),
            });
            let id = self.resolver.caches().iter().position(|info| info.name == cache.name);
            let remote = id.and_then(|id| self.remote.get(id)).copied().unwrap_or_default();
            let paths = match cache.kind {
                CacheKind::KmallocLarge => infos.kmalloc_large.paths,
                _ => info.map_or_else(Paths::default, |info| info.paths),
            };
            CacheReport {
                name: cache.name.clone(),
                aliases: tables.kernel.attributes.aliases(&cache.name),
                object_size: info.map_or(u64::from(tally.size), |i| i.object_size),
                slab_size: info.map_or(u64::from(tally.size), |i| i.slab_size),
                objs_per_slab: number(|i| i.objs_per_slab),
                order: info.map_or(0, |i| i.order),
                allocs: tally.allocs,
                frees: tally.frees,
                live: tally.live,
                peak_live: tally.peak_live,
                remote_frees: remote.cpu,
                remote_node_frees: remote.node,
                remote_percent: percent(remote.cpu, tally.matched_frees),
                hidden_allocs: tally.hidden_allocs,
                hidden_frees: tally.hidden_frees,
                pre_trace_frees: tally.pre_trace_frees,
                slabs: number(|i| i.slabs),
                slabs_peak: number(|i| i.slabs_peak),
                used: if cache.kind == CacheKind::KmallocLarge { large } else { number(|i| i.used) },
                in_magazines: number(|i| i.in_magazines),
                in_depot: number(|i| i.in_depot),
                free_in_slabs: number(|i| i.free_in_slabs),
                paths,
                depot_exchanges: number(|i| i.depot_exchanges),
                kernel,
            }
        });
        report.collect()
    }

    /// Frees all objects, reaps, shrinks, returns the pages, and counts what remains.
    fn tear_down(&mut self, before: &BuddyInfo, rss: [u64; 2]) -> Teardown {
        self.held.free_all();
        let subsystem = &self.machine.subsystem;
        subsystem.reap();
        subsystem.shrink();
        subsystem.pages().decommit();
        let census = self.check("after everything was freed");
        let pages = subsystem.pages().info();
        let teardown = Teardown {
            objects: census.as_ref().map_or(u64::MAX, |c| c.objects),
            slabs: census.as_ref().map_or(u64::MAX, |c| c.slabs),
            pages_not_in_maximal_blocks: pages.pages_not_in_maximal_blocks(),
            committed_bytes: [before.committed_bytes(), pages.committed_bytes()],
            resident_bytes: [rss[0], rss[1], resident_bytes()],
        };
        for (what, left) in [
            ("objects", teardown.objects),
            ("slabs", teardown.slabs),
            ("pages outside maximal blocks", teardown.pages_not_in_maximal_blocks),
            ("bytes committed", teardown.committed_bytes[1]),
        ] {
            if left != 0 {
                self.violations.push(format!("after everything was freed, {left} {what} remain"));
            }
        }
        teardown
    }
}

/// Compares the kernel's changes with the replay's changes, between the snapshots in which the kernel's tables are
/// exact. The kernel's tables are exact directly after the kernel has shrunk all caches.
fn against_kernel(
    facts: &Facts,
    snapshots: &[Snapshot],
    run: &Run<'_, '_>,
    cpus: u64,
) -> Option<KernelComparison> {
    let span = facts.slabinfo.iter().find(|span| (span.from, span.to) == ("before", "end"))?;
    let at = |moment: &str| snapshots.iter().find(|s| s.moment == moment);
    let (before, end) = (at(span.from)?, at(span.to)?);
    let ours = |row: &SlabinfoChange| -> (ReplayedCache, ReplayedCache) {
        let id = run.resolver.caches().iter().position(|cache| cache.name == row.cache);
        let of = |s: &Snapshot| id.and_then(|id| s.caches.get(id)).copied().unwrap_or_default();
        (of(before), of(end))
    };
    let rows: Vec<KernelRow> = span
        .rows
        .iter()
        .map(|row| {
            let (a, b) = ours(row);
            // The replay has no objects from before the trace. Frees of objects from before the trace are subtracted,
            // because they lower the kernel's count.
            let pre = b.pre_trace_frees as i64 - a.pre_trace_frees as i64;
            let site = facts.objects.hidden_free_sites.iter().find(|(cache, ..)| *cache == row.cache);
            let mut compared = KernelRow {
                cache: row.cache.clone(),
                objects: [row.real, b.used as i64 - a.used as i64 - pre],
                slabs: [row.real_slabs, b.slabs as i64 - a.slabs as i64],
                hidden_allocs: b.hidden_allocs,
                hidden_frees: b.hidden_frees,
                hidden_free_site: site.map(|(_, site, _)| site.clone()),
                cause: None,
            };
            compared.cause = Cause::of(&compared, row.per_slab, cpus);
            compared
        })
        .collect();
    let sum = |f: fn(&KernelRow) -> i64| rows.iter().map(f).sum();
    Some(KernelComparison {
        from: span.from,
        to: span.to,
        caches: rows.len() as u64,
        objects_kernel: sum(|r| r.objects[0]),
        objects_ours: sum(|r| r.objects[1]),
        objects_exact: rows.iter().filter(|r| r.objects[0] == r.objects[1]).count() as u64,
        objects_abs_error: rows.iter().map(|r| r.objects[0].abs_diff(r.objects[1])).sum(),
        objects_abs_change: rows.iter().map(|r| r.objects[0].unsigned_abs()).sum(),
        slabs_kernel: sum(|r| r.slabs[0]),
        slabs_ours: sum(|r| r.slabs[1]),
        slabs_abs_error: rows.iter().map(|r| r.slabs[0].abs_diff(r.slabs[1])).sum(),
        slabs_abs_change: rows.iter().map(|r| r.slabs[0].unsigned_abs()).sum(),
        rows,
    })
}

fn fragmentation(pages: &BuddyInfo) -> Vec<Fragmentation> {
    let of_zone = |zone: &uslab_buddy::ZoneInfo| {
        let name = format!("node {} {:?}", zone.node, zone.zone);
        (0..=Order::MAX.get())
            .filter_map(Order::new)
            .map(|order| Fragmentation {
                zone: name.clone(),
                order: order.get(),
                extfrag_index: zone.extfrag_index(order),
                unusable_free_index: zone.unusable_free_index(order),
            })
            .collect::<Vec<_>>()
    };
    pages.zones.iter().flat_map(of_zone).collect()
}
