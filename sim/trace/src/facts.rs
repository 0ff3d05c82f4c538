//! Facts about a trace: numbers that can be computed without a replay.

use std::collections::BTreeMap;

use serde::Serialize;

use super::direct_map::DirectMap;
use super::line::Format;
use super::names::NameSources;
use super::op::{CacheId, CacheKind};
use super::page_size::{PageSize, PageSizeSource};
use super::recorded::Recorded;
use super::resolve::{CacheTally, MarkState, Resolver};
use super::tables::Tables;
use uslab::SlabInfo;

/// The pairs of snapshots between which the change of the kernel's tables is compared with the trace.
const SNAPSHOT_PAIRS: [(&str, &str); 3] = [("before", "end"), ("before", "after"), ("boot", "before")];

/// All facts about a trace. Each list of names with counts is sorted by count, largest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Facts {
    /// The text format of the trace.
    pub format: Option<Format>,
    /// The header that ftrace wrote to the trace.
    pub header: Option<Header>,
    /// The number of lines in the file.
    pub lines: u64,
    /// The number of events.
    pub total: u64,
    /// The number of events of each name.
    pub events: Vec<(String, u64)>,
    /// The number of lines that are neither events nor headers nor blank.
    pub not_understood: u64,
    /// The first lines that the parser did not understand, shortened, each with its number.
    pub first_not_understood: Vec<(u64, String)>,
    /// The number of lost events that the trace reports.
    pub lost: u64,
    /// `true` if the text does not end with a line feed, so that its last line may be incomplete.
    pub unterminated: bool,
    /// If the last line is truncated and therefore omitted: its text, shortened, and its number.
    pub cut_line: Option<(u64, String)>,
    /// The header that `libuslab.so` wrote into its recording.
    pub recorded: Option<Recorded>,
    /// The address at which the traced kernel maps all memory (the direct map).
    pub direct_map: DirectMap,
    /// The page size of the traced machine.
    pub page_size: PageSize,
    /// How the page size was determined.
    pub page_size_source: PageSizeSource,
    /// The number of events on each CPU.
    pub by_cpu: BTreeMap<usize, u64>,
    /// The number of events for each context flag. The flag is `.` for a task, `s` for a softirq, `h` for a
    /// hardirq, `H` for a hardirq inside a softirq.
    pub by_context: BTreeMap<char, u64>,
    /// The time of the first event, and the largest time of any event, in seconds.
    pub time: Option<(f64, f64)>,
    /// The number of events at time 0.
    pub zero_times: u64,
    /// The number of events with the same time as the previous event.
    pub same_times: u64,
    /// The number of events with an earlier time than the previous event.
    pub times_going_back: u64,
    /// The number of events with `<...>` instead of a command.
    pub comm_unknown: u64,
    /// The number of object events with a hashed pointer.
    pub hashed_pointers: u64,
    /// The number of object events with a placeholder instead of a pointer.
    pub placeholders: u64,
    /// The number of calls `kfree(NULL)`.
    pub kfree_of_null: u64,
    /// The number of object allocations that failed.
    pub alloc_failed: u64,
    /// The number of object allocations of 0 bytes; the kernel serves each of them with an object of the
    /// smallest size class.
    pub zero_sizes: u64,
    /// The number of object allocations that exceed kmalloc's largest size and were omitted.
    pub too_large: u64,
    /// The number of distinct call sites of object events.
    pub call_sites: usize,
    /// The number of call sites that allocate from several caches; a call site with two sizes counts twice.
    pub call_sites_with_several_caches: u64,
    /// The total number of requested bytes, and the total number of allocated bytes.
    pub bytes: (u64, u64),
    /// The number of object allocations for each set of allocation flags.
    pub gfp: Vec<(String, u64)>,
    /// The number of `kmem_cache_free` events that name a cache, and the number of all `kmem_cache_free` events.
    pub cache_free_named: (u64, u64),
    /// The number of `kmem_cache_alloc` events that name a cache, and the number of all `kmem_cache_alloc` events.
    pub cache_alloc_named: (u64, u64),
    /// How the cache name of each allocation was found.
    pub name_sources: NameSources,
    /// Facts about the objects of all caches together.
    pub objects: ObjectFacts,
    /// Facts about pages.
    pub pages: PageFacts,
    /// Facts about every cache; the busiest cache comes first.
    pub caches: Vec<CacheFacts>,
    /// The marks that user space wrote.
    pub marks: Vec<TraceMarkFacts>,
    /// `true` if the first mark, `before`, was lost with the oldest events, so that the parser inserted it at the
    /// beginning.
    pub mark_was_lost: bool,
    /// For each cache, the number of live objects and of known slabs at both ends of each workload (marks `WORKLOAD
    /// ...`).
    pub phases: Vec<CacheStatesAtMark>,
    /// Comparisons of the kernel's slabinfo tables with the trace, one for each span of time.
    pub slabinfo: Vec<SlabinfoComparison>,
    /// Comparisons of the kernel's page counts with the trace, one for each span of time.
    pub page_spans: Vec<PageComparison>,
    /// The kernel's totals in each snapshot, compared with the trace's totals at that time.
    pub absolute: Vec<SnapshotTotals>,
}

/// The header that ftrace wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The number of events that the text contains.
    pub in_buffer: u64,
    /// The number of events that the kernel wrote, including lost events.
    pub written: u64,
    /// The number of CPUs of the machine.
    pub cpus: u64,
}

/// Facts about objects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectFacts {
    /// The number of successful allocations.
    pub allocs: u64,
    /// The number of frees, excluding `kfree(NULL)`.
    pub frees: u64,
    /// The number of frees whose allocation is in the trace.
    pub matched: u64,
    /// The number of matched frees on another CPU than the one that allocated.
    pub remote: u64,
    /// The number of frees whose object has no allocation event.
    pub hidden_allocs: u64,
    /// The number of frees without an event: `overwritten + live_when_page_freed`.
    pub hidden_frees: u64,
    /// The number of frees of objects that were allocated before the trace.
    pub pre_trace_frees: u64,
    /// The number of allocations that returned the pointer of an object that was still live.
    pub overwritten: u64,
    /// The number of objects that were live when their page was freed.
    pub live_when_page_freed: u64,
    /// The number of pairs of a hidden allocation and a hidden free that are really two events in the wrong order. The
    /// first number counts frees that appear after the next allocation of their pointer; the second counts frees that
    /// appear before the allocation of their object.
    pub swapped_pairs: (u64, u64),
    /// The number of hidden frees for each pair of cache and allocating function.
    pub hidden_free_sites: Vec<(String, String, u64)>,
    /// The number of hidden allocations of each cache.
    pub hidden_alloc_caches: Vec<(String, u64)>,
    /// For each cache, the number of objects that came from `kmem_cache_alloc` and were freed by `kfree`.
    pub kfree_of_cache_object: Vec<(String, u64)>,
    /// The frees that name another cache than their allocation: the allocation's cache, the free's cache, and the
    /// number of such frees.
    pub name_differs: Vec<(String, String, u64)>,
    /// The number of matched frees for each pair of allocating CPU and freeing CPU.
    pub cpu_pairs: Vec<(usize, usize, u64)>,
}

/// Facts about pages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageFacts {
    /// The number of page allocations of each order.
    pub allocs_by_order: Vec<u64>,
    /// The number of page frees of each order.
    pub frees_by_order: Vec<u64>,
    /// The number of page allocations of each migrate type.
    pub allocs_by_migratetype: Vec<u64>,
    /// The number of page allocations that failed.
    pub alloc_failed: u64,
    /// The number of `mm_page_alloc_zone_locked` events that move pages to a per-CPU list.
    pub percpu_refills: u64,
    /// The number of `mm_page_alloc_zone_locked` events that move pages to a caller.
    pub zone_direct: u64,
    /// The number of page frees whose allocation is not in the trace.
    pub free_unseen: u64,
    /// The number of page allocations whose pages were still allocated.
    pub alloc_over_live: u64,
    /// The largest number of pages in use at the same time, among the pages that the trace allocated.
    pub peak: u64,
    /// The number of matched page frees, whose allocation is in the trace.
    pub free_matched: u64,
    /// The number of matched page frees on another CPU than the one that allocated.
    pub free_remote: u64,
}

/// Facts about one cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheFacts {
    /// The cache's name.
    pub name: String,
    /// The cache's kind.
    pub kind: CacheKind,
    /// The cache's counters.
    #[serde(flatten)]
    pub tally: CacheTally,
}

/// A mark that user space wrote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceMarkFacts {
    /// The number of object and page events before the mark, not counting failed allocations and
    /// `kfree(NULL)`.
    pub at: u64,
    /// The mark's time in seconds.
    pub time: f64,
    /// The mark's text.
    pub text: String,
}

/// The state of the caches at a mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheStatesAtMark {
    /// The mark's text.
    pub mark: String,
    /// Each cache that has live objects or slabs: its name, its number of live objects, and its number of
    /// slabs.
    pub caches: Vec<(String, u64, i64)>,
}

/// Compares the change between two slabinfo snapshots with the traced events between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlabinfoComparison {
    /// The name of the span's earlier snapshot.
    pub from: &'static str,
    /// The name of the span's later snapshot.
    pub to: &'static str,
    /// The caches that changed according to slabinfo or the trace; the busiest cache comes first.
    pub rows: Vec<SlabinfoChange>,
    /// The sums over all rows of the comparison.
    pub sum: SlabinfoTotals,
}

/// The change of one cache between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlabinfoChange {
    /// The cache's name.
    pub cache: String,
    /// The number of allocations between the snapshots.
    pub allocs: u64,
    /// The number of frees between the snapshots.
    pub frees: u64,
    /// The change of `active_objs` in the kernel's tables.
    pub real: i64,
    /// The number of traced allocations minus the number of traced frees.
    pub raw: i64,
    /// The number of allocations minus the number of frees, including hidden allocations and hidden frees.
    pub corrected: i64,
    /// The number of objects in a slab.
    pub per_slab: u64,
    /// The change of `num_slabs` in the kernel's tables.
    pub real_slabs: i64,
    /// The number of slabs allocated in the trace minus the number of slabs freed.
    pub slabs_seen: i64,
    /// The value of `active_objs` in the later snapshot.
    pub active_end: u64,
    /// The value of `num_objs` in the later snapshot.
    pub num_end: u64,
    /// The value of `num_slabs` in the later snapshot.
    pub slabs_end: u64,
}

/// Sums over the rows of a [`SlabinfoComparison`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SlabinfoTotals {
    /// The number of rows.
    pub caches: u64,
    /// The kernel's change of the number of objects, summed over all rows.
    pub real: i64,
    /// The number of allocations minus the number of frees, summed over all rows.
    pub raw: i64,
    /// The change including hidden allocations and hidden frees, summed over all rows.
    pub corrected: i64,
    /// The absolute value of the kernel's change of the number of objects, summed over all rows.
    pub abs_real: u64,
    /// The absolute difference between the kernel's change and the change by traced events, summed over all rows.
    pub abs_err_raw: u64,
    /// The absolute difference between the kernel's change and the change including hidden operations, summed over all
    /// rows.
    pub abs_err_corrected: u64,
    /// The number of rows in which the change by traced events equals the kernel's change.
    pub exact_raw: u64,
    /// The number of rows in which the change including hidden operations equals the kernel's change.
    pub exact_corrected: u64,
    /// The number of rows in which the change including hidden operations differs from the kernel's change by at most
    /// one slab per CPU.
    pub within_one_slab_per_cpu: u64,
    /// The absolute value of the kernel's change of the number of slabs, summed over all rows.
    pub abs_real_slabs: u64,
    /// The absolute difference between the traced and the kernel's change of the number of slabs, summed over all rows.
    pub abs_err_slabs: u64,
    /// The number of rows in which the traced change of the number of slabs equals the kernel's change.
    pub exact_slabs: u64,
}

/// Compares the change between two page snapshots with the traced events between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageComparison {
    /// The earlier moment.
    pub from: &'static str,
    /// The later moment.
    pub to: &'static str,
    /// The change of the number of pages in use, computed from buddyinfo and the per-CPU lists in zoneinfo.
    pub real_used: i64,
    /// The number of pages allocated minus the number of pages freed.
    pub traced: i64,
    /// The number of pages in the buddy allocator, in the earlier and in the later snapshot.
    pub buddy_free: (u64, u64),
    /// The number of pages in per-CPU lists, in the earlier and in the later snapshot.
    pub percpu: (u64, u64),
}

/// The kernel's totals in one snapshot, compared with the trace's totals at that time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotTotals {
    /// The name of the snapshot.
    pub moment: &'static str,
    /// The number of active objects in slabinfo.
    pub active: u64,
    /// The number of live objects that the trace allocated, counting only caches in slabinfo.
    pub seen_live: u64,
    /// The number of slabs in slabinfo.
    pub slabs: u64,
    /// The number of slabs that the trace allocated and did not free.
    pub slabs_seen: i64,
}

impl Resolver {
    /// Returns all facts; the caller must first have fetched all operations from the resolver. The parameter `tables`
    /// contains the kernel's tables from the trace's folder.
    #[must_use]
    pub fn facts(&self, tables: &Tables) -> Facts {
        let counts = &self.recording.counts;
        let tally = &self.tally;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let cpus = counts.by_cpu.len() as u64;
        Facts {
            format: counts.format,
            header: counts.header.map(|(in_buffer, written, cpus)| Header { in_buffer, written, cpus }),
            lines: counts.lines,
            total: counts.events,
            events: self.recording.events_by_name.clone(),
            not_understood: counts.not_understood,
            first_not_understood: counts.first_not_understood.clone(),
            lost: counts.lost,
            unterminated: counts.unterminated,
            cut_line: counts.cut_line.clone(),
            recorded: counts.recorded.clone(),
            direct_map: self.mapping.direct_map,
            page_size: self.mapping.page_size,
            page_size_source: self.page_size_source,
            by_cpu: counts.by_cpu.iter().copied().enumerate().filter(|&(_, events)| events > 0).collect(),
            by_context: (0..=u8::MAX)
                .zip(&counts.by_context)
                .filter(|&(_, &events)| events > 0)
                .map(|(flag, &events)| (char::from(flag), events))
                .collect(),
            time: counts.time_ns.map(|(first, latest)| (seconds(first), seconds(latest))),
            zero_times: counts.zero_times,
            same_times: counts.same_times,
            times_going_back: counts.times_going_back,
            comm_unknown: counts.comm_unknown,
            hashed_pointers: counts.hashed_pointers,
            placeholders: counts.placeholders,
            kfree_of_null: counts.kfree_of_null,
            alloc_failed: counts.alloc_failed,
            zero_sizes: counts.zero_sizes,
            too_large: counts.too_large,
            call_sites: self.recording.call_sites,
            call_sites_with_several_caches: self.recording.ambiguous_sites,
            bytes: (counts.bytes_req, counts.bytes_alloc),
            gfp: self.recording.by_gfp.clone(),
            cache_free_named: counts.cache_free_named,
            cache_alloc_named: counts.cache_alloc_named,
            name_sources: self.name_sources(),
            objects: self.object_facts(),
            pages: PageFacts {
                allocs_by_order: tally.page_allocs.clone(),
                frees_by_order: tally.page_frees.clone(),
                allocs_by_migratetype: tally.by_migratetype.clone(),
                alloc_failed: counts.page_alloc_failed,
                percpu_refills: counts.percpu_refills,
                zone_direct: counts.zone_direct,
                free_unseen: tally.page_free_unseen,
                alloc_over_live: tally.page_alloc_over_live,
                peak: tally.pages_peak,
                free_matched: tally.page_free_matched,
                free_remote: tally.page_free_remote,
            },
            caches: self.cache_facts(),
            marks: tally
                .marks
                .iter()
                .map(|mark| TraceMarkFacts {
                    at: mark.at,
                    time: seconds(mark.time_ns),
                    text: mark.text.clone(),
                })
                .collect(),
            mark_was_lost: tally.mark_was_lost,
            phases: self.phases(),
            slabinfo: self.spans(tables, |from, to, a, b| {
                let (old, new) = (a.0.slabinfo.as_ref()?, b.0.slabinfo.as_ref()?);
                Some(self.compare_slabinfo_snapshots((from, to), (old, a.1), (new, b.1), cpus))
            }),
            page_spans: self.spans(tables, |from, to, a, b| {
                let buddy_free = (a.0.buddy_free()?, b.0.buddy_free()?);
                let percpu = (a.0.percpu?, b.0.percpu?);
                let free = |buddy: u64, percpu: u64| (buddy + percpu) as i64;
                Some(PageComparison {
                    from,
                    to,
                    real_used: free(buddy_free.0, percpu.0) - free(buddy_free.1, percpu.1),
                    traced: b.1.pages_net - a.1.pages_net,
                    buddy_free,
                    percpu,
                })
            }),
            absolute: tables
                .snapshots
                .iter()
                .filter_map(|snapshot| {
                    let mark = self.moment(snapshot.moment)?;
                    let info = snapshot.slabinfo.as_ref()?;
                    let seen = || {
                        let caches = mark.caches.iter().zip(self.caches());
                        caches.filter(|(_, cache)| info.get(&cache.name).is_some()).map(|(tally, _)| tally)
                    };
                    Some(SnapshotTotals {
                        moment: snapshot.moment,
                        active: info.rows.iter().map(|row| row.active_objects).sum(),
                        seen_live: seen().map(|cache| cache.live).sum(),
                        slabs: info.rows.iter().map(|row| row.slabs).sum(),
                        slabs_seen: seen().map(|cache| cache.slabs).sum(),
                    })
                })
                .collect(),
        }
    }

    fn name(&self, cache: CacheId) -> String {
        self.cache(cache).name.clone()
    }

    fn object_facts(&self) -> ObjectFacts {
        let tally = &self.tally;
        let all = self.total_tally();
        let mut by_function: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (&(cache, site), &count) in &tally.hidden_free_sites {
            *by_function.entry((self.name(cache), self.names.containing_function(site))).or_default() +=
                count;
        }
        let pairs = tally.cpu_pairs.iter().enumerate().flat_map(|(from, frees)| {
            frees.iter().enumerate().filter(|&(_, &n)| n > 0).map(move |(to, &n)| (from, to, n))
        });
        ObjectFacts {
            allocs: all.allocs,
            frees: all.frees,
            matched: all.matched_frees,
            remote: all.remote_frees,
            hidden_allocs: all.hidden_allocs,
            hidden_frees: all.hidden_frees,
            pre_trace_frees: all.pre_trace_frees,
            overwritten: tally.overwritten,
            live_when_page_freed: tally.live_when_page_freed,
            swapped_pairs: (tally.swapped_late_free, tally.swapped_early_free),
            hidden_free_sites: sort_by_count_descending(
                by_function.into_iter().map(|((cache, site), n)| (cache, site, n)),
                |x| x.2,
            ),
            hidden_alloc_caches: sort_by_count_descending(
                tally
                    .caches
                    .iter()
                    .zip(self.caches())
                    .filter(|(cache, _)| cache.hidden_allocs > 0)
                    .map(|(cache, info)| (info.name.clone(), cache.hidden_allocs)),
                |x| x.1,
            ),
            kfree_of_cache_object: sort_by_count_descending(
                tally.kfree_of_cache_object.iter().map(|(&cache, &n)| (self.name(cache), n)),
                |x| x.1,
            ),
            name_differs: sort_by_count_descending(
                tally
                    .name_differs
                    .iter()
                    .map(|(&(ours, theirs), &n)| (self.name(ours), self.name(theirs), n)),
                |x| x.2,
            ),
            cpu_pairs: pairs.collect(),
        }
    }

    fn cache_facts(&self) -> Vec<CacheFacts> {
        let caches = self.caches().iter().zip(&self.tally.caches).map(|(info, &tally)| CacheFacts {
            name: info.name.clone(),
            kind: info.kind,
            tally,
        });
        sort_by_count_descending(caches, |cache| cache.tally.allocs + cache.tally.frees)
    }

    fn phases(&self) -> Vec<CacheStatesAtMark> {
        let marks = self.tally.marks.iter().filter(|mark| mark.text.starts_with("WORKLOAD "));
        marks
            .map(|mark| {
                let caches = self
                    .caches()
                    .iter()
                    .zip(&mark.caches)
                    .filter(|(_, cache)| cache.live > 0 || cache.slabs > 0);
                let caches = caches.map(|(info, cache)| (info.name.clone(), cache.live, cache.slabs));
                CacheStatesAtMark { mark: mark.text.clone(), caches: caches.collect() }
            })
            .collect()
    }

    /// Returns the state of the trace at the time when the kernel's tables of a snapshot were read.
    fn moment(&self, moment: &str) -> Option<&MarkState> {
        let text = format!("SNAP {moment} begin");
        self.tally.marks.iter().find(|mark| mark.text == text)
    }

    fn spans<'a, T>(
        &'a self,
        tables: &'a Tables,
        compare: impl Fn(
            &'static str,
            &'static str,
            (&'a super::tables::Snapshot, &'a MarkState),
            (&'a super::tables::Snapshot, &'a MarkState),
        ) -> Option<T>,
    ) -> Vec<T> {
        let at = |moment| Some((tables.at(moment)?, self.moment(moment)?));
        SNAPSHOT_PAIRS.iter().filter_map(|&(from, to)| compare(from, to, at(from)?, at(to)?)).collect()
    }

    fn compare_slabinfo_snapshots(
        &self,
        (from, to): (&'static str, &'static str),
        (old, before): (&SlabInfo, &MarkState),
        (new, after): (&SlabInfo, &MarkState),
        cpus: u64,
    ) -> SlabinfoComparison {
        let number = |name: &str| self.caches().iter().position(|cache| cache.name == name);
        let tally_at = |mark: &MarkState, number: Option<usize>| {
            number.and_then(|number| mark.caches.get(number)).copied().unwrap_or_default()
        };
        let changes = new.rows.iter().filter_map(|row| {
            let number = number(&row.name);
            let (a, b) = (tally_at(before, number), tally_at(after, number));
            let (old_active, old_slabs) =
                old.get(&row.name).map_or((0, 0), |old| (old.active_objects, old.slabs));
            // A trace may have the later mark first, and then has no events between the marks.
            let (allocs, frees) = (b.allocs.saturating_sub(a.allocs), b.frees.saturating_sub(a.frees));
            let hidden = change(a.hidden_allocs, b.hidden_allocs) - change(a.hidden_frees, b.hidden_frees);
            let raw = allocs as i64 - frees as i64;
            let line = SlabinfoChange {
                cache: row.name.clone(),
                allocs,
                frees,
                real: change(old_active, row.active_objects),
                raw,
                corrected: raw + hidden,
                per_slab: row.objects_per_slab,
                real_slabs: change(old_slabs, row.slabs),
                slabs_seen: b.slabs - a.slabs,
                active_end: row.active_objects,
                num_end: row.objects,
                slabs_end: row.slabs,
            };
            let touched =
                allocs + frees > 0 || line.real != 0 || line.real_slabs != 0 || line.slabs_seen != 0;
            touched.then_some(line)
        });
        let rows = sort_by_count_descending(changes, |row| row.allocs + row.frees);
        let sum = rows.iter().fold(SlabinfoTotals::default(), |sum, row| sum.with(row, cpus));
        SlabinfoComparison { from, to, rows, sum }
    }
}

impl SlabinfoTotals {
    fn with(self, row: &SlabinfoChange, cpus: u64) -> Self {
        let error = row.real.abs_diff(row.corrected);
        let slab_error = row.real_slabs.abs_diff(row.slabs_seen);
        Self {
            caches: self.caches + 1,
            real: self.real + row.real,
            raw: self.raw + row.raw,
            corrected: self.corrected + row.corrected,
            abs_real: self.abs_real + row.real.unsigned_abs(),
            abs_err_raw: self.abs_err_raw + row.real.abs_diff(row.raw),
            abs_err_corrected: self.abs_err_corrected + error,
            exact_raw: self.exact_raw + u64::from(row.real == row.raw),
            exact_corrected: self.exact_corrected + u64::from(error == 0),
            within_one_slab_per_cpu: self.within_one_slab_per_cpu + u64::from(error <= row.per_slab * cpus),
            abs_real_slabs: self.abs_real_slabs + row.real_slabs.unsigned_abs(),
            abs_err_slabs: self.abs_err_slabs + slab_error,
            exact_slabs: self.exact_slabs + u64::from(slab_error == 0),
        }
    }
}

fn change(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// Sorts a list by its counts, largest first; entries with equal counts keep their order.
fn sort_by_count_descending<T>(items: impl Iterator<Item = T>, count: impl Fn(&T) -> u64) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_by_key(|item| std::cmp::Reverse(count(item)));
    items
}
