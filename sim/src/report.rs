//! What a replay found: for a person, and as JSON.

use crate::machine::Build;
use crate::output::{grouped, signed, size, table, text};
use crate::replay::{CacheAt, Run, Snapshot};
use crate::trace::{CacheKind, Facts, SlabinfoChange, Tables};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use uslab::{CacheInfo, Magazines};
use uslab_buddy::{BuddyInfo, Order};

/// Resident bytes of this process; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// A replay in numbers. Its serialised form is the interface of `uslab replay --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Seed of what is random.
    pub seed: u64,
    /// The trace's file.
    pub trace: String,
    /// The machine that was simulated.
    pub machine: MachineReport,
    /// Events by name.
    pub events: BTreeMap<String, u64>,
    /// Events in all.
    pub events_total: u64,
    /// Lines that were neither events nor headers; the first ones are in `facts`.
    pub not_understood: u64,
    /// Events that the kernel says were lost. With any, numbers after the loss are not to be trusted.
    pub lost: u64,
    /// The caches, the busiest first.
    pub caches: Vec<CacheReport>,
    /// All caches together.
    pub objects: ObjectTotals,
    /// Page events by order.
    pub pages: BTreeMap<u8, PageCounts>,
    /// Conservation laws.
    pub conservation: Conservation,
    /// What was left when everything was freed, reaped, shrunk and given back.
    pub teardown: Teardown,
    /// Beside the kernel's own tables, where they lie beside the trace.
    pub against_kernel: Option<AgainstKernel>,
    /// The buddy allocator at the end of the trace.
    pub buddy: BuddyInfo,
    /// Fragmentation at the end of the trace, by zone and order.
    pub fragmentation: Vec<Fragmentation>,
    /// The conservation laws' numbers at each snapshot.
    pub snapshots: Vec<SnapshotReport>,
    /// Events a second: reading and replaying together, on one thread.
    pub events_per_second: f64,
    /// Seconds for reading the text.
    pub read_seconds: f64,
    /// Seconds for replaying, without the checks.
    pub replay_seconds: f64,
    /// Nanoseconds an event, of both together.
    pub ns_per_event: f64,
    /// All that can be said of the trace without a replay.
    pub facts: Facts,
}

/// The simulated machine.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// CPUs.
    pub cpus: u32,
    /// Memory nodes.
    pub nodes: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The magazines asked for.
    pub magazine: String,
}

/// One cache.
#[derive(Debug, Serialize)]
pub struct CacheReport {
    /// The name, as the kernel has it; placeholders for unknown ones begin with `?`.
    pub name: String,
    /// Bytes of an object.
    pub object_size: u64,
    /// Bytes from one object to the next.
    pub slab_size: u64,
    /// Objects in a slab.
    pub objs_per_slab: u64,
    /// A slab has `2^order` pages.
    pub order: u8,
    /// Allocations of the trace.
    pub allocs: u64,
    /// Frees of the trace.
    pub frees: u64,
    /// Objects live at the end of the trace.
    pub live: u64,
    /// The most that were live at a time.
    pub peak_live: u64,
    /// Frees on another CPU than the allocation.
    pub remote_frees: u64,
    /// The same in percent of the frees whose allocation was seen.
    pub remote_percent: f64,
    /// Allocations that the kernel did not trace.
    pub hidden_allocs: u64,
    /// Frees that the kernel did not trace.
    pub hidden_frees: u64,
    /// Frees of objects from before the trace.
    pub pre_trace_frees: u64,
    /// Our slabs at the end of the trace.
    pub slabs: u64,
    /// The most slabs that we had at a time.
    pub slabs_peak: u64,
    /// Objects of our slabs: in callers' hands,
    pub used: u64,
    /// in CPUs' magazines and stocks,
    pub in_magazines: u64,
    /// in depots,
    pub in_depot: u64,
    /// and free in slabs.
    pub free_in_slabs: u64,
    /// Allocations and frees that the CPU's loaded magazine served.
    pub magazine_hits: u64,
    /// The same in percent of all.
    pub hit_percent: f64,
    /// Visits to a depot that moved magazines.
    pub depot_exchanges: u64,
    /// The kernel's figures.
    pub kernel: Option<KernelCache>,
}

/// What the kernel's last table says of a cache, and how it changed.
#[derive(Debug, Serialize)]
pub struct KernelCache {
    /// Active objects at the last snapshot.
    pub active_objs: u64,
    /// Objects at the last snapshot.
    pub num_objs: u64,
    /// Slabs at the last snapshot.
    pub num_slabs: u64,
    /// Between the two exact snapshots: the kernel's change of objects,
    pub objects_change: i64,
    /// ours for the same events,
    pub our_objects_change: i64,
    /// the kernel's change of slabs,
    pub slabs_change: i64,
    /// and ours.
    pub our_slabs_change: i64,
}

/// Sums over all caches.
#[derive(Debug, Default, Serialize)]
pub struct ObjectTotals {
    /// See [`CacheReport`].
    pub allocs: u64,
    /// See [`CacheReport`].
    pub frees: u64,
    /// See [`CacheReport`].
    pub live: u64,
    /// Frees whose allocation was seen.
    pub matched_frees: u64,
    /// See [`CacheReport`].
    pub remote_frees: u64,
    /// See [`CacheReport`].
    pub hidden_allocs: u64,
    /// See [`CacheReport`].
    pub hidden_frees: u64,
    /// See [`CacheReport`].
    pub pre_trace_frees: u64,
    /// `kfree(NULL)`, which does nothing.
    pub kfree_of_null: u64,
    /// See [`CacheReport`].
    pub magazine_hits: u64,
    /// See [`CacheReport`].
    pub depot_exchanges: u64,
}

/// Page events of one order.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PageCounts {
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
}

/// The conservation laws.
#[derive(Debug, Serialize)]
pub struct Conservation {
    /// Times that they were checked.
    pub checked: u64,
    /// Violations found.
    pub violated: u64,
    /// The first of them.
    pub violations: Vec<String>,
}

/// After everything was freed.
#[derive(Debug, Serialize)]
pub struct Teardown {
    /// Objects left in slabs: 0.
    pub objects: u64,
    /// Slabs left: 0.
    pub slabs: u64,
    /// Free pages outside the largest possible blocks: 0.
    pub pages_not_in_maximal_blocks: u64,
    /// Committed bytes before and after.
    pub committed_bytes: [u64; 2],
    /// Resident bytes of the process: before the replay, at its end, after everything was given back.
    pub resident_bytes: [u64; 3],
}

/// The kernel's own change between two snapshots and ours for the same events.
#[derive(Debug, Serialize)]
pub struct AgainstKernel {
    /// The first snapshot.
    pub from: &'static str,
    /// The second.
    pub to: &'static str,
    /// Caches that changed.
    pub caches: u64,
    /// Sum of the kernel's changes of active objects.
    pub objects_kernel: i64,
    /// Sum of ours.
    pub objects_ours: i64,
    /// Caches whose change of objects is exactly the kernel's.
    pub objects_exact: u64,
    /// Sum of the absolute differences in objects.
    pub objects_abs_error: u64,
    /// Sum of the kernel's changes of slabs.
    pub slabs_kernel: i64,
    /// Sum of ours.
    pub slabs_ours: i64,
    /// Sum of the absolute differences in slabs.
    pub slabs_abs_error: u64,
    /// By cache.
    pub rows: Vec<KernelRow>,
}

/// One cache between the snapshots.
#[derive(Debug, Serialize)]
pub struct KernelRow {
    /// The cache.
    pub cache: String,
    /// The kernel's change of active objects, and ours.
    pub objects: [i64; 2],
    /// The kernel's change of slabs, and ours.
    pub slabs: [i64; 2],
}

/// Fragmentation of one zone for one order, in 1/1,000.
#[derive(Debug, Serialize)]
pub struct Fragmentation {
    /// The zone.
    pub zone: String,
    /// The order.
    pub order: u8,
    /// The kernel's `extfrag_index`: -1000 where an allocation would succeed.
    pub extfrag_index: i64,
    /// The part of free memory that is of no use for the order.
    pub unusable_free_index: u64,
}

/// The machine at a snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// What moment it is.
    pub moment: String,
    /// Operations before it.
    pub operations: u64,
    /// What was counted; `None` where a law was violated.
    pub census: Option<uslab::Census>,
}

/// What the replay knows besides its own state.
pub(crate) struct Taken<'t> {
    pub(crate) build: Build,
    pub(crate) tables: &'t Tables,
    pub(crate) seed: u64,
    pub(crate) read: Duration,
    pub(crate) replayed: Duration,
    pub(crate) rss: [u64; 2],
}

/// Violations that are kept with their text.
const VIOLATIONS_KEPT: usize = 20;

impl Run<'_, '_> {
    /// Takes the numbers at the end of the trace, frees everything, and reports.
    pub(crate) fn finish(mut self, taken: Taken<'_>) -> Report {
        let facts = self.resolver.facts(taken.tables);
        let infos = self.machine.subsystem.info();
        let against_kernel = against_kernel(&facts, &self.snapshots, &self);
        let caches = self.caches(&facts, &infos.caches, taken.tables, against_kernel.as_ref());
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
        let o = &facts.objects;
        let objects = ObjectTotals {
            allocs: o.allocs,
            frees: o.frees,
            live: caches.iter().map(|c| c.live).sum(),
            matched_frees: o.matched,
            remote_frees: o.remote,
            hidden_allocs: o.hidden_allocs,
            hidden_frees: o.hidden_frees,
            pre_trace_frees: o.pre_trace_frees,
            kfree_of_null: facts.kfree_of_null,
            magazine_hits: caches.iter().map(|c| c.magazine_hits).sum(),
            depot_exchanges: caches.iter().map(|c| c.depot_exchanges).sum(),
        };
        Report {
            version: env!("CARGO_PKG_VERSION"),
            seed: taken.seed,
            trace: self.path.display().to_string(),
            machine: MachineReport {
                cpus: taken.build.cpus,
                nodes: taken.build.nodes,
                memory_bytes: taken.build.memory,
                magazine: match taken.build.magazines {
                    Magazines::Off => "off".to_owned(),
                    Magazines::Sized { capacity, .. } => capacity.to_string(),
                    _ => "auto".to_owned(),
                },
            },
            events: facts.events.iter().cloned().collect(),
            events_total: total,
            not_understood: facts.not_understood,
            lost: facts.lost,
            caches,
            objects,
            pages,
            conservation: Conservation {
                checked: self.checked,
                violated: self.violations.len() as u64,
                violations: self.violations.iter().take(VIOLATIONS_KEPT).cloned().collect(),
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
            events_per_second: total as f64 / seconds,
            read_seconds: taken.read.as_secs_f64(),
            replay_seconds: taken.replayed.as_secs_f64(),
            ns_per_event: seconds * 1e9 / total.max(1) as f64,
            facts,
        }
    }

    fn caches(
        &self,
        facts: &Facts,
        infos: &[CacheInfo],
        tables: &Tables,
        against: Option<&AgainstKernel>,
    ) -> Vec<CacheReport> {
        let slabinfo = tables.latest_slabinfo();
        let held = self.held.by_cache();
        let large = self.resolver.caches().iter().position(|c| c.kind == CacheKind::KmallocLarge);
        let large = large.and_then(|id| held.get(id)).copied().unwrap_or(0);
        let report = facts.caches.iter().map(|cache| {
            let tally = &cache.tally;
            let info = infos.iter().find(|info| {
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
            let served = number(|i| i.allocs + i.frees);
            CacheReport {
                name: cache.name.clone(),
                object_size: info.map_or(u64::from(tally.size), |i| i.object_size),
                slab_size: info.map_or(u64::from(tally.size), |i| i.slab_size),
                objs_per_slab: number(|i| i.objs_per_slab),
                order: info.map_or(0, |i| i.order),
                allocs: tally.allocs,
                frees: tally.frees,
                live: tally.live,
                peak_live: tally.peak_live,
                remote_frees: tally.remote_frees,
                remote_percent: percent(tally.remote_frees, tally.matched_frees),
                hidden_allocs: tally.hidden_allocs,
                hidden_frees: tally.hidden_frees,
                pre_trace_frees: tally.pre_trace_frees,
                slabs: number(|i| i.slabs),
                slabs_peak: number(|i| i.slabs_peak),
                used: if cache.kind == CacheKind::KmallocLarge { large } else { number(|i| i.used) },
                in_magazines: number(|i| i.in_magazines),
                in_depot: number(|i| i.in_depot),
                free_in_slabs: number(|i| i.free_in_slabs),
                magazine_hits: number(|i| i.magazine_hits),
                hit_percent: percent(number(|i| i.magazine_hits), served),
                depot_exchanges: number(|i| i.depot_exchanges),
                kernel,
            }
        });
        report.collect()
    }

    /// Frees all, reaps, shrinks, gives the pages back, and looks at what is left.
    fn tear_down(&mut self, before: &BuddyInfo, rss: [u64; 2]) -> Teardown {
        self.held.free_all();
        let subsystem = &self.machine.subsystem;
        subsystem.reap();
        subsystem.shrink();
        subsystem.pages().release();
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
                self.violations.push(format!("after everything was freed: {left} {what} left"));
            }
        }
        teardown
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Between the moments that the kernel's tables call exact: right after all caches were shrunk.
fn against_kernel(facts: &Facts, snapshots: &[Snapshot], run: &Run<'_, '_>) -> Option<AgainstKernel> {
    let span = facts.slabinfo.iter().find(|span| (span.from, span.to) == ("before", "end"))?;
    let at = |moment: &str| snapshots.iter().find(|s| s.moment == moment);
    let (before, end) = (at(span.from)?, at(span.to)?);
    let ours = |row: &SlabinfoChange| {
        let id = run.resolver.caches().iter().position(|cache| cache.name == row.cache);
        let of = |s: &Snapshot| id.and_then(|id| s.caches.get(id)).copied().unwrap_or_default();
        let (a, b): (CacheAt, CacheAt) = (of(before), of(end));
        // Objects from before the trace are not among ours: their frees take off what we never had.
        let pre = (b.pre_trace_frees - a.pre_trace_frees) as i64;
        [b.used as i64 - a.used as i64 - pre, b.slabs as i64 - a.slabs as i64]
    };
    let rows: Vec<KernelRow> = span
        .rows
        .iter()
        .map(|row| {
            let [objects, slabs] = ours(row);
            KernelRow {
                cache: row.cache.clone(),
                objects: [row.real, objects],
                slabs: [row.real_slabs, slabs],
            }
        })
        .collect();
    let sum = |f: fn(&KernelRow) -> i64| rows.iter().map(f).sum();
    Some(AgainstKernel {
        from: span.from,
        to: span.to,
        caches: rows.len() as u64,
        objects_kernel: sum(|r| r.objects[0]),
        objects_ours: sum(|r| r.objects[1]),
        objects_exact: rows.iter().filter(|r| r.objects[0] == r.objects[1]).count() as u64,
        objects_abs_error: rows.iter().map(|r| r.objects[0].abs_diff(r.objects[1])).sum(),
        slabs_kernel: sum(|r| r.slabs[0]),
        slabs_ours: sum(|r| r.slabs[1]),
        slabs_abs_error: rows.iter().map(|r| r.slabs[0].abs_diff(r.slabs[1])).sum(),
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

/// Caches shown unless all are asked for.
const SHOWN: usize = 25;

impl Report {
    /// The whole report as text.
    pub fn page(&self, all: bool) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_page(&mut out, all);
        out
    }

    fn write_page(&self, out: &mut String, all: bool) -> std::fmt::Result {
        let m = &self.machine;
        writeln!(
            out,
            "{}: {} events on {} CPUs, {} node{}, {} of memory, magazines {}, seed {}",
            self.trace,
            grouped(self.events_total),
            m.cpus,
            m.nodes,
            if m.nodes == 1 { "" } else { "s" },
            size(m.memory_bytes),
            m.magazine,
            self.seed
        )?;
        self.write_warnings(out)?;
        writeln!(out, "\nEvents")?;
        let mut events = table(&["event", "count"]);
        let mut by_count: Vec<_> = self.events.iter().collect();
        by_count.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
        for (name, n) in by_count {
            events.add_row([name.clone(), grouped(*n)]);
        }
        out.push_str(&text(&events));
        let o = &self.objects;
        writeln!(
            out,
            "\n{} allocations, {} frees ({} of null beside them); {} hidden allocations, {} hidden frees, {} pre-trace \
             frees; {:.2} % freed on another CPU",
            grouped(o.allocs),
            grouped(o.frees),
            grouped(o.kfree_of_null),
            grouped(o.hidden_allocs),
            grouped(o.hidden_frees),
            grouped(o.pre_trace_frees),
            percent(o.remote_frees, o.matched_frees)
        )?;
        self.write_caches(out, all)?;
        self.write_kernel(out, all)?;
        self.write_pages(out)?;
        self.write_end(out)
    }

    fn write_warnings(&self, out: &mut String) -> std::fmt::Result {
        if self.not_understood > 0 {
            writeln!(out, "WARNING: {} lines were not understood, the first:", grouped(self.not_understood))?;
            for (line, text) in &self.facts.first_not_understood {
                writeln!(out, "  line {line}: {text}")?;
            }
        }
        if self.lost > 0 {
            let lost = grouped(self.lost);
            writeln!(out, "WARNING: the kernel lost {lost} events; what follows the loss is not exact")?;
        }
        Ok(())
    }

    fn write_caches(&self, out: &mut String, all: bool) -> std::fmt::Result {
        let shown = if all { self.caches.len() } else { SHOWN.min(self.caches.len()) };
        writeln!(
            out,
            "\nCaches at the end of the trace ({shown} of {}, the busiest first)",
            self.caches.len()
        )?;
        writeln!(
            out,
            "  objects = used + in magazines + in depot + free in slabs; hits = served by a CPU's magazine"
        )?;
        let mut rows = table(&[
            "cache",
            "size",
            "/slab",
            "pages",
            "allocs",
            "frees",
            "peak",
            "slabs",
            "used",
            "magazines",
            "depot",
            "free",
            "hits %",
            "exchanges",
            "remote %",
        ]);
        for c in self.caches.iter().take(shown) {
            rows.add_row([
                c.name.clone(),
                c.slab_size.to_string(),
                c.objs_per_slab.to_string(),
                (1u32 << c.order).to_string(),
                c.allocs.to_string(),
                c.frees.to_string(),
                c.peak_live.to_string(),
                c.slabs.to_string(),
                c.used.to_string(),
                c.in_magazines.to_string(),
                c.in_depot.to_string(),
                c.free_in_slabs.to_string(),
                format!("{:.1}", c.hit_percent),
                c.depot_exchanges.to_string(),
                format!("{:.1}", c.remote_percent),
            ]);
        }
        out.push_str(&text(&rows));
        Ok(())
    }

    fn write_kernel(&self, out: &mut String, all: bool) -> std::fmt::Result {
        let Some(k) = &self.against_kernel else { return Ok(()) };
        let shown = if all { k.rows.len() } else { SHOWN.min(k.rows.len()) };
        writeln!(
            out,
            "\nBeside the kernel, from `{}` to `{}` ({shown} of {} caches): its change, ours, the difference",
            k.from, k.to, k.caches
        )?;
        let mut rows = table(&["cache", "objects", "ours", "diff", "slabs", "ours", "diff"]);
        for r in k.rows.iter().take(shown) {
            rows.add_row([
                r.cache.clone(),
                signed(r.objects[0]),
                signed(r.objects[1]),
                signed(r.objects[1] - r.objects[0]),
                signed(r.slabs[0]),
                signed(r.slabs[1]),
                signed(r.slabs[1] - r.slabs[0]),
            ]);
        }
        out.push_str(&text(&rows));
        writeln!(
            out,
            "Total: objects {} there, {} here, absolute error {} ({} of {} caches exact); slabs {} there, {} here, \
             absolute error {}",
            signed(k.objects_kernel),
            signed(k.objects_ours),
            grouped(k.objects_abs_error),
            k.objects_exact,
            k.caches,
            signed(k.slabs_kernel),
            signed(k.slabs_ours),
            grouped(k.slabs_abs_error)
        )?;
        writeln!(
            out,
            "Objects differ where the kernel counts what a CPU merely keeps. Slabs differ by policy: SLUB fills one\n\
             slab a CPU at a time, here magazines mix the objects of several slabs."
        )
    }

    fn write_pages(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nPage events by order")?;
        let mut rows = table(&["order", "allocs", "frees"]);
        for (order, counts) in &self.pages {
            rows.add_row([order.to_string(), grouped(counts.allocs), grouped(counts.frees)]);
        }
        out.push_str(&text(&rows));
        writeln!(out, "\nBuddy allocator at the end of the trace (free blocks by order)")?;
        write!(out, "{}", self.buddy)?;
        let unusable: Vec<String> = self
            .fragmentation
            .iter()
            .filter(|f| [3, 9, 10].contains(&f.order))
            .map(|f| format!("{} order {}: {:.1} %", f.zone, f.order, f.unusable_free_index as f64 / 10.0))
            .collect();
        writeln!(out, "Free memory of no use for an order: {}", unusable.join(", "))
    }

    fn write_end(&self, out: &mut String) -> std::fmt::Result {
        let (c, t) = (&self.conservation, &self.teardown);
        writeln!(out, "\nConservation: checked {} times, violated {} times", c.checked, c.violated)?;
        c.violations.iter().try_for_each(|v| writeln!(out, "  {v}"))?;
        writeln!(
            out,
            "Everything freed: {} objects, {} slabs, {} pages outside maximal blocks; committed {} -> {}; resident {} \
             before, {} at the end, {} after",
            t.objects,
            t.slabs,
            t.pages_not_in_maximal_blocks,
            size(t.committed_bytes[0]),
            size(t.committed_bytes[1]),
            size(t.resident_bytes[0]),
            size(t.resident_bytes[1]),
            size(t.resident_bytes[2])
        )?;
        writeln!(
            out,
            "Time: {:.2} s reading, {:.2} s replaying: {:.0} ns an event, {:.2} million events a second",
            self.read_seconds,
            self.replay_seconds,
            self.ns_per_event,
            self.events_per_second / 1e6
        )
    }

    /// The page for somebody who has just started the program.
    pub fn introduction(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_introduction(&mut out);
        out
    }

    fn write_introduction(&self, out: &mut String) -> std::fmt::Result {
        let o = &self.objects;
        let served = self.caches.iter().map(|c| c.magazine_hits).sum::<u64>();
        writeln!(
            out,
            "uslab replayed {} memory events that a real Linux kernel (6.1, {} CPUs) recorded while four processes\n\
             created, searched and deleted thousands of files, and did with its own allocator what the kernel did:\n\
             {} allocations and {} frees in {} object caches, each on the CPU that the trace names.\n",
            grouped(self.events_total),
            self.machine.cpus,
            grouped(o.allocs),
            grouped(o.frees),
            self.caches.len()
        )?;
        writeln!(
            out,
            "  {:>5.1} %  of the allocations and frees were served by a magazine of their own CPU, without any lock;\n\
             {:>9}  times a CPU went to a depot, to exchange whole magazines;\n\
             {:>9}  frees came from another CPU than the allocation, and needed nothing special.\n",
            percent(served, o.allocs + o.frees + o.hidden_allocs),
            grouped(o.depot_exchanges),
            grouped(o.remote_frees)
        )?;
        writeln!(out, "The busiest caches:\n")?;
        let mut rows =
            table(&["cache", "bytes", "allocs", "frees", "peak", "slabs", "hits %", "in magazines"]);
        for c in self.caches.iter().take(8) {
            rows.add_row([
                c.name.clone(),
                c.slab_size.to_string(),
                grouped(c.allocs),
                grouped(c.frees),
                grouped(c.peak_live),
                grouped(c.slabs),
                format!("{:.1}", c.hit_percent),
                grouped(c.in_magazines),
            ]);
        }
        out.push_str(&text(&rows));
        if let Some(k) = &self.against_kernel {
            writeln!(
                out,
                "\nThe kernel's own tables say that its caches grew by {} objects and {} slabs during the workload;\n\
                 here they grew by {} objects and {} slabs.",
                k.objects_kernel, k.slabs_kernel, k.objects_ours, k.slabs_ours
            )?;
        }
        let (c, t) = (&self.conservation, &self.teardown);
        writeln!(
            out,
            "\nEvery object and every page was counted {} times: {}. When everything\n\
             was freed, {} objects and {} slabs were left, and {} went back to the system.\n\
             {:.1} million events a second, seed {}.\n",
            c.checked,
            if c.violated == 0 {
                "nothing was lost, nothing was in two places"
            } else {
                "SOMETHING IS WRONG, see below"
            },
            t.objects,
            t.slabs,
            size(t.committed_bytes[0] - t.committed_bytes[1]),
            self.events_per_second / 1e6,
            self.seed
        )?;
        c.violations.iter().try_for_each(|v| writeln!(out, "  {v}"))?;
        out.push_str(
            "Where to go next:\n  \
             uslab replay FILE       replay your own trace (ftrace, perf script or trace-cmd text, .zst too)\n  \
             uslab replay --all      this trace with every cache, beside the kernel's numbers\n  \
             uslab replay --cpus 64  the same events on a machine with 64 CPUs and its larger slabs\n  \
             uslab geometry 192      how objects of a size are laid out in slabs\n  \
             uslab --help            everything else\n",
        );
        Ok(())
    }
}
