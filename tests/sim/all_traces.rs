//! Compares the facts that `uslab` computes with every number in each `facts.json` in the folder `USLAB_TRACES`.
//!
//! An independent program computed the facts in `facts.json`, which is in the same folder as the trace. A trace is a
//! subfolder with a `facts.json` and a `trace.txt.zst` or `trace.txt`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use uslab_sim::trace::{CacheFacts, Facts, SlabinfoComparison, Tables};

#[test]
fn facts_of_published_traces_match_the_published_facts() {
    let Some(folder) = std::env::var_os("USLAB_TRACES") else {
        println!("skipped: USLAB_TRACES is not set");
        return;
    };
    let traces = trace_folders_in(folder.as_ref());
    let mut failures = Vec::new();
    for trace in &traces {
        let comparison = compare(trace);
        comparison.print(trace);
        failures.extend(comparison.differences.iter().map(|d| format!("{}: {d}", trace.display())));
    }
    assert!(failures.is_empty(), "{} differences:\n{}", failures.len(), failures.join("\n"));
}

/// Returns the trace folders that have a `facts.json`; fails if there is no such folder.
pub(crate) fn trace_folders_in(folder: &Path) -> Vec<PathBuf> {
    let mut traces: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("facts.json").exists())
        .collect();
    traces.sort();
    assert!(!traces.is_empty(), "no folder with a facts.json in {}", folder.display());
    traces
}

/// The number of values that were compared, for each name of a fact.
#[derive(Default)]
struct Comparison {
    values: BTreeMap<String, usize>,
    differences: Vec<String>,
}

impl Comparison {
    /// Compares one JSON value, including all values inside it.
    fn value(&mut self, fact: &str, ours: Value, theirs: &Value) {
        *self.values.entry(fact.to_owned()).or_default() += leaves(theirs).max(1);
        if !are_equal(&ours, theirs) {
            self.differences.push(format!("{fact}: ours {ours}, theirs {theirs}"));
        }
    }

    fn print(&self, trace: &Path) {
        let total: usize = self.values.values().sum();
        println!("{}: {total} values compared, {} differ", trace.display(), self.differences.len());
        let line: Vec<String> = self.values.iter().map(|(fact, n)| format!("{fact} {n}")).collect();
        println!("    {}", line.join(", "));
    }
}

/// Returns `true` if the values are equal; fractional times may differ by a nanosecond.
fn are_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b))
        }
        (Value::Number(x), Value::Number(y)) if x.is_f64() || y.is_f64() => {
            x.as_f64().zip(y.as_f64()).is_some_and(|(x, y)| (x - y).abs() < 1e-9)
        }
        _ => a == b,
    }
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(leaves).sum(),
        Value::Object(map) => map.values().map(leaves).sum(),
        _ => 1,
    }
}

fn compare(folder: &Path) -> Comparison {
    let text = std::fs::read_to_string(folder.join("facts.json")).unwrap();
    let theirs: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let names = ["trace.txt.zst", "trace.txt"];
    let path = names.map(|name| folder.join(name)).into_iter().find(|path| path.exists()).unwrap();
    let tables = Tables::from_trace_folder(&path).unwrap();
    let facts = crate::common::check_operations(&path, &tables);

    let mut comparison = Comparison::default();
    for (fact, theirs) in &theirs {
        match fact.as_str() {
            "caches" => caches(&mut comparison, &facts.caches, theirs),
            "slabinfo" => slabinfo(&mut comparison, &facts.slabinfo, theirs),
            "phases" => phases(&mut comparison, &facts, theirs),
            // The script keeps the most frequent names; among equally frequent names its choice is arbitrary.
            "gfp" | "hidden_alloc_caches" | "hidden_free_sites" => {
                let (ours, all) = counted(fact, &facts, theirs);
                comparison.value(fact, ours, &all);
            }
            _ => comparison.value(fact, whole_fact_value(fact, &facts), theirs),
        }
    }
    comparison
}

/// Returns the value of a fact that is not compared by its parts.
fn whole_fact_value(fact: &str, facts: &Facts) -> Value {
    let (objects, pages, sources) = (&facts.objects, &facts.pages, facts.name_sources);
    let map =
        |pairs: &[(String, u64)]| Value::Object(pairs.iter().map(|(k, n)| (k.clone(), json!(n))).collect());
    let by_number = |counts: &[u64]| {
        let some = counts.iter().enumerate().filter(|&(_, &n)| n > 0);
        Value::Object(some.map(|(k, n)| (k.to_string(), json!(n))).collect())
    };
    match fact {
        "header" => facts.header.map_or(Value::Null, |h| json!([h.in_buffer, h.written, h.cpus])),
        "events" => map(&facts.events),
        "total" => json!(facts.total),
        "unparsed" => json!(facts.not_understood),
        "lost" => json!(facts.lost),
        "cpus" => json!(facts.by_cpu),
        "time" => json!(facts.time),
        "zero_timestamps" => json!(facts.zero_times),
        "same_timestamp_as_line_before" => json!(facts.same_times),
        "timestamp_goes_back" => json!(facts.times_going_back),
        "comm_unknown" => json!(facts.comm_unknown),
        "hashed_pointers" => json!(facts.hashed_pointers),
        "ptrval_placeholders" => json!(facts.placeholders),
        "kfree_of_null" => json!(facts.kfree_of_null),
        "alloc_failed" => json!(facts.alloc_failed),
        "context" => json!(facts.by_context),
        "call_sites" => json!(facts.call_sites),
        "bytes_req" => json!(facts.bytes.0),
        "bytes_alloc" => json!(facts.bytes.1),
        "page_alloc_by_order" => by_number(&pages.allocs_by_order),
        "page_free_by_order" => by_number(&pages.frees_by_order),
        "page_alloc_by_migratetype" => by_number(&pages.allocs_by_migratetype),
        "page_alloc_failed" => json!(pages.alloc_failed),
        "page_alloc_pcp_refill" => json!(pages.percpu_refills),
        "page_alloc_zone_direct" => json!(pages.zone_direct),
        "page_free_unseen_alloc" => json!(pages.free_unseen),
        "page_alloc_over_live" => json!(pages.alloc_over_live),
        "pages_peak" => json!(pages.peak),
        "page_free_remote" => json!(pages.free_remote),
        "page_free_matched" => json!(pages.free_matched),
        "kmem_cache_free_named" => json!(facts.cache_free_named),
        "kmem_cache_alloc_named" => json!(facts.cache_alloc_named),
        "cache_name_of_alloc" => {
            let all = [
                ("in the event", sources.in_event),
                ("left", sources.left),
                ("by call site and size", sources.by_site),
                ("by the free of the same pointer", sources.by_free),
                ("by a neighbour on the page", sources.by_neighbour),
                ("by size in slabinfo", sources.by_size),
                ("by a table of known sites", sources.by_known_site),
            ];
            Value::Object(all.iter().filter(|s| s.1 > 0).map(|&(k, n)| (k.to_owned(), json!(n))).collect())
        }
        "call_sites_with_several_caches" => json!(facts.call_sites_with_several_caches),
        "allocs" => json!(objects.allocs),
        "frees" => json!(objects.frees),
        "matched" => json!(objects.matched),
        "remote" => json!(objects.remote),
        "hidden_allocs" => json!(objects.hidden_allocs),
        "hidden_frees" => json!(objects.hidden_frees),
        "pre_trace_frees" => json!(objects.pre_trace_frees),
        "swapped_pairs" => json!(objects.swapped_pairs),
        "alloc_over_live" => json!(objects.overwritten),
        "live_when_page_freed" => json!(objects.live_when_page_freed),
        "kfree_of_cache_object" => map(&objects.kfree_of_cache_object),
        "name_differs" => json!(objects.name_differs),
        "other" => {
            let replayed = [
                "kmalloc",
                "kmalloc_node",
                "kmem_cache_alloc",
                "kmem_cache_alloc_node",
                "kfree",
                "kmem_cache_free",
                "mm_page_alloc",
                "mm_page_free",
                "mm_page_alloc_zone_locked",
                "tracing_mark_write",
            ];
            let other: Vec<_> =
                facts.events.iter().filter(|(name, _)| !replayed.contains(&name.as_str())).cloned().collect();
            map(&other)
        }
        "marks" => json!(facts.marks.iter().map(|m| json!([m.at, m.time, m.text])).collect::<Vec<_>>()),
        "alloc_cpu_free_cpu" => {
            let pairs = objects.cpu_pairs.iter().map(|(from, to, n)| (format!("{from}->{to}"), json!(n)));
            Value::Object(pairs.collect())
        }
        "pages" => {
            let spans = facts.page_spans.iter().map(|span| {
                let value = json!({
                    "real_used": span.real_used,
                    "traced": span.traced,
                    "buddy_free": span.buddy_free,
                    "pcp": span.percpu,
                });
                (format!("{}->{}", span.from, span.to), value)
            });
            Value::Object(spans.filter(|(span, _)| span != "boot->before").collect())
        }
        "absolute" => {
            let moments = facts.absolute.iter().filter(|at| at.moment == "before" || at.moment == "end");
            let moments = moments.map(|at| {
                let value = json!({
                    "active": at.active,
                    "seen_live": at.seen_live,
                    "slabs": at.slabs,
                    "slabs_seen": at.slabs_seen,
                });
                (at.moment.to_owned(), value)
            });
            Value::Object(moments.collect())
        }
        _ => json!("no such fact here"),
    }
}

/// Returns a fact's value from this project and its value from the independent program. The independent program lists
/// only the largest counts, so this function compares the list of counts, and each name with its count.
fn counted(fact: &str, facts: &Facts, theirs: &Value) -> (Value, Value) {
    let ours: Vec<(String, u64)> = match fact {
        "gfp" => facts.gfp.clone(),
        "hidden_alloc_caches" => facts.objects.hidden_alloc_caches.clone(),
        _ => {
            let sites = facts.objects.hidden_free_sites.iter();
            sites.map(|(cache, site, n)| (format!("{cache} {site}"), *n)).collect()
        }
    };
    let theirs: Vec<(String, u64)> = match theirs {
        Value::Object(map) => map.iter().map(|(name, n)| (name.clone(), n.as_u64().unwrap())).collect(),
        list => {
            let entries = list.as_array().unwrap().iter().map(|entry| {
                let (n, names) = entry.as_array().unwrap().split_last().unwrap();
                let names: Vec<&str> = names.iter().map(|n| n.as_str().unwrap()).collect();
                (names.join(" "), n.as_u64().unwrap())
            });
            entries.collect()
        }
    };
    let mut counts: Vec<u64> = ours.iter().map(|o| o.1).take(theirs.len()).collect();
    let mut their_counts: Vec<u64> = theirs.iter().map(|t| t.1).collect();
    counts.sort_unstable();
    their_counts.sort_unstable();
    let shared: Vec<_> = theirs.iter().map(|(name, _)| ours.iter().find(|o| o.0 == *name)).collect();
    (json!([counts, shared]), json!([their_counts, theirs]))
}

fn caches(comparison: &mut Comparison, ours: &[CacheFacts], theirs: &Value) {
    let theirs = theirs.as_object().unwrap();
    let mut names: Vec<&String> = ours.iter().map(|c| &c.name).collect();
    let mut their_names: Vec<&String> = theirs.keys().collect();
    names.sort();
    their_names.sort();
    comparison.value("names of caches", json!(names), &json!(their_names));
    for CacheFacts { name, tally, .. } in ours {
        let all = json!({
            "alloc": tally.allocs, "free": tally.frees, "live": tally.live, "peak": tally.peak_live,
            "remote": tally.remote_frees, "matched": tally.matched_frees, "hid_free": tally.hidden_frees,
            "hid_alloc": tally.hidden_allocs, "pre": tally.pre_trace_frees, "slabs": tally.slabs,
            "slab_new": tally.slabs_new, "slab_gone": tally.slabs_gone, "slab_peak": tally.slabs_peak,
            "size": tally.size,
        });
        if let Some(theirs) = theirs.get(name) {
            comparison.value("caches", json!([name, all]), &json!([name, theirs]));
        }
    }
}

fn slabinfo(comparison: &mut Comparison, ours: &[SlabinfoComparison], theirs: &Value) {
    let theirs = theirs.as_object().unwrap();
    comparison.value("slabinfo spans", json!(ours.len()), &json!(theirs.len()));
    for span in ours {
        let name = format!("{}->{}", span.from, span.to);
        let theirs = &theirs[&name];
        let s = &span.sum;
        let sum = json!({
            "caches": s.caches, "sum_real": s.real, "sum_raw": s.raw, "sum_corrected": s.corrected,
            "abs_real": s.abs_real, "abs_err_raw": s.abs_err_raw, "abs_err_corrected": s.abs_err_corrected,
            "exact_raw": s.exact_raw, "exact_corrected": s.exact_corrected,
            "within_one_slab_per_cpu": s.within_one_slab_per_cpu, "abs_real_slabs": s.abs_real_slabs,
            "abs_err_slabs": s.abs_err_slabs, "exact_slabs": s.exact_slabs,
        });
        comparison.value("slabinfo sums", json!([name, sum]), &json!([name, theirs["sum"]]));
        let key = |row: &Value| row["cache"].as_str().unwrap().to_owned();
        let rows = span.rows.iter().map(|r| {
            json!({
                "cache": r.cache, "allocs": r.allocs, "frees": r.frees, "real": r.real, "raw": r.raw,
                "corrected": r.corrected, "per_slab": r.per_slab, "real_slabs": r.real_slabs,
                "slab_pages_seen": r.slabs_seen, "active_end": r.active_end, "num_end": r.num_end,
                "slabs_end": r.slabs_end,
            })
        });
        let mut rows: Vec<Value> = rows.collect();
        let mut their_rows = theirs["rows"].as_array().unwrap().clone();
        rows.sort_by_key(key);
        their_rows.sort_by_key(key);
        let names = |rows: &[Value]| json!([name, rows.iter().map(key).collect::<Vec<_>>()]);
        comparison.value("slabinfo rows", names(&rows), &names(&their_rows));
        for (ours, theirs) in rows.iter().zip(&their_rows).filter(|(a, b)| a["cache"] == b["cache"]) {
            comparison.value("slabinfo rows", json!([name, ours]), &json!([name, theirs]));
        }
    }
}

/// The independent program lists only caches with at least four slabs.
fn phases(comparison: &mut Comparison, facts: &Facts, theirs: &Value) {
    let ours = facts.phases.iter().map(|phase| {
        let caches = phase.caches.iter().filter(|(_, _, slabs)| *slabs >= 4);
        let caches: Map<_, _> =
            caches.map(|(name, live, slabs)| (name.clone(), json!([live, slabs]))).collect();
        json!([phase.mark, caches])
    });
    comparison.value("phases", ours.collect(), theirs);
}
