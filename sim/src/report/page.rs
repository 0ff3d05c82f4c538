//! Formats a report as text for human readers.

use super::cause::explained;
use super::{CacheReport, Report, percent};
use crate::output::{grouped, signed, size, table, text};
use crate::trace::PageSize;
use std::fmt::Write;
use uslab::Path;

/// Returns the percentage of a cache's operations that the CPUs' own magazines served.
fn cpu_served_percent(cache: &CacheReport) -> String {
    format!("{:.1}", 100.0 * cache.paths.share(Path::Cpu).unwrap_or(0.0))
}

/// The number of caches that the report shows by default.
const MAX_SHOWN_CACHES: usize = 25;
/// The number of differences between the kernel and the replay that the report explains by default.
const MAX_EXPLAINED_DIFFERENCES: usize = 8;

/// Formats a number with its noun: `1 CPU`, `4 CPUs`.
fn format_count(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Formats how often something happened: `once`, `3 times`.
fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{} times", grouped(n)) }
}

impl Report {
    /// Returns the whole report as text.
    pub fn page(&self, all: bool) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_page(&mut out, all);
        out
    }

    /// Returns the first lines of the report: the trace, the simulated machine and the defects of the trace.
    pub fn head(&self) -> String {
        let mut out = String::new();
        let _ = self.write_report_head(&mut out);
        out
    }

    fn write_report_head(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{}: {} events on {}",
            self.trace,
            grouped(self.events_total),
            format_count(self.traced.cpus, "CPU")
        )?;
        if let Some(recorded) = &self.facts.recorded {
            writeln!(out, "Recorded: {}, process {}", recorded.program, recorded.process)?;
        }
        writeln!(out, "Simulated: {}", self.simulated())?;
        for warning in &self.trace_health.warnings {
            // Continued lines are indented.
            let mark = if warning.starts_with(' ') { "" } else { "WARNING: " };
            writeln!(out, "{mark}{warning}")?;
        }
        Ok(())
    }

    fn write_page(&self, out: &mut String, all: bool) -> std::fmt::Result {
        self.write_report_head(out)?;
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
            "\n{} allocations, {} frees (and {} of null); {} hidden allocations, {} hidden frees, {} pre-trace \
             frees; {} freed on another CPU ({:.2} %)",
            grouped(o.allocs),
            grouped(o.frees),
            grouped(o.kfree_of_null),
            grouped(o.hidden_allocs),
            grouped(o.hidden_frees),
            grouped(o.pre_trace_frees),
            grouped(o.remote_frees),
            percent(o.remote_frees, o.matched_frees)
        )?;
        if self.facts.zero_sizes > 0 {
            writeln!(
                out,
                "  {} allocations requested 0 bytes, and got an object of the smallest size class.",
                grouped(self.facts.zero_sizes)
            )?;
        }
        if self.machine.nodes > 1 {
            writeln!(
                out,
                "  {} objects were freed on another node ({:.2} %). These frees return the object directly to its slab, without magazines.",
                grouped(o.remote_node_frees),
                percent(o.remote_node_frees, o.matched_frees)
            )?;
        }
        if o.hidden_allocs + o.hidden_frees > 0 {
            writeln!(
                out,
                "  hidden: an operation of the kernel without an event. A hidden allocation (kmem_cache_alloc_bulk) is seen when its\n  \
                 object is freed, and a hidden free (kfree_rcu, bulk frees) when the address is allocated again or its page\n  \
                 is freed. The replay runs the operation at that time."
            )?;
        }
        if o.pre_trace_frees > 0 {
            writeln!(
                out,
                "  pre-trace: frees of objects from before the trace; the replay does not have these objects and ignores their frees."
            )?;
        }
        writeln!(out, "{} operations by where they were served: {}", grouped(o.paths.operations()), o.paths)?;
        self.write_caches(out, all)?;
        self.write_kernel_comparison(out, all)?;
        self.write_pages(out)?;
        self.write_report_end(out)
    }

    /// Describes the simulated machine, and which of its CPUs and nodes the trace uses.
    fn simulated(&self) -> String {
        let (traced, m) = (&self.traced, &self.machine);
        let mut what = format!(
            "{}, {}, {} of memory, magazines {}",
            format_count(m.cpus.into(), "CPU"),
            format_count(m.nodes.into(), "node"),
            size(m.memory_bytes),
            m.magazine
        );
        let traced_pages = self.trace_health.page_size;
        if traced_pages != PageSize::Kib4 {
            what += &format!("; pages of 4 KiB instead of the trace's {traced_pages}");
        }
        if u64::from(m.cpus) < traced.cpus {
            let folded = match m.cpus {
                1 => "all CPUs of the trace run on this CPU".to_owned(),
                n => format!("CPU n of the trace runs as CPU n modulo {n}"),
            };
            what += &format!("; {folded}");
        }
        if m.cpus_used < m.cpus {
            what += &format!("; {} used; the others have no event", format_count(m.cpus_used.into(), "CPU"));
        }
        if m.nodes_used < m.nodes {
            what += &format!("; {} used", format_count(m.nodes_used.into(), "node"));
        }
        what
    }

    fn write_caches(&self, out: &mut String, all: bool) -> std::fmt::Result {
        let shown = if all { self.caches.len() } else { MAX_SHOWN_CACHES.min(self.caches.len()) };
        writeln!(
            out,
            "\nCaches at the end of the trace ({shown} of {}, {})",
            self.caches.len(),
            self.sort.words()
        )?;
        writeln!(
            out,
            "  objects = used + in magazines + in depot + free in slabs; cpu % = served by the CPU's own magazines, without a lock\n  \
             remote = freed on another CPU than the allocating CPU; remote % = share of the frees whose allocation is in the trace"
        )?;
        if self.shrinks > 0 {
            writeln!(
                out,
                "  All caches were shrunk {} during the replay, at each mark `SHRINK end` of the trace, because the traced system\n  \
                 shrank its caches there: magazines, depots and empty slabs hold only objects freed since the last shrink.",
                times(self.shrinks)
            )?;
        }
        let shown_names = || self.caches.iter().take(shown).map(|c| c.name.as_str());
        if shown_names().any(|name| name.starts_with('?') && name.contains(':')) {
            writeln!(
                out,
                "  ?function:size = an unknown cache, which no event and no table names: the function's allocations of this size."
            )?;
        }
        if shown_names().any(|name| name == "?kfree") {
            writeln!(out, "  ?kfree = an unknown cache: objects whose only event is their kfree.")?;
        }
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
            "cpu %",
            "exchanges",
            "remote",
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
                cpu_served_percent(c),
                c.depot_exchanges.to_string(),
                c.remote_frees.to_string(),
                format!("{:.1}", c.remote_percent),
            ]);
        }
        out.push_str(&text(&rows));
        let merged = self.caches.iter().take(shown).filter(|cache| !cache.aliases.is_empty());
        let merged: Vec<_> =
            merged.map(|cache| format!("{} = {}", cache.name, cache.aliases.join(", "))).collect();
        if !merged.is_empty() {
            writeln!(out, "Caches that the kernel merged share one row: {}", merged.join("; "))?;
        }
        Ok(())
    }

    fn write_kernel_comparison(&self, out: &mut String, all: bool) -> std::fmt::Result {
        let Some(k) = &self.against_kernel else { return Ok(()) };
        let shown = if all { k.rows.len() } else { MAX_SHOWN_CACHES.min(k.rows.len()) };
        writeln!(
            out,
            "\nCompared with the kernel, from `{}` to `{}` ({shown} of {} caches): the kernel's change, the replay's change, the difference",
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
            "Total: objects {} in the kernel, {} in the replay, absolute error {} (predicting no change: {}; {} of {} caches exact); slabs {} in the kernel, {} in the replay, \
             absolute error {} (predicting no change: {})",
            signed(k.objects_kernel),
            signed(k.objects_ours),
            grouped(k.objects_abs_error),
            grouped(k.objects_abs_change),
            k.objects_exact,
            k.caches,
            signed(k.slabs_kernel),
            signed(k.slabs_ours),
            grouped(k.slabs_abs_error),
            grouped(k.slabs_abs_change)
        )?;
        let differing = || k.rows.iter().filter_map(|row| Some((row, row.cause?)));
        if differing().next().is_some() {
            writeln!(out, "Why objects differ:")?;
        }
        let explained_here = if all { usize::MAX } else { MAX_EXPLAINED_DIFFERENCES };
        for (row, cause) in differing().take(explained_here) {
            writeln!(out, "  {}", explained(row, cause))?;
        }
        let more = differing().count().saturating_sub(explained_here);
        if more > 0 {
            writeln!(out, "  and {more} more caches; --all explains them")?;
        }
        writeln!(
            out,
            "Slabs differ because objects differ, and because policies differ: in SLUB each CPU fills one slab at a time, while magazines mix the\n\
             objects of several slabs."
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
        writeln!(out, "Free memory in blocks smaller than the given order: {}", unusable.join(", "))
    }

    fn write_report_end(&self, out: &mut String) -> std::fmt::Result {
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
            "Time: {:.2} s reading, {:.0} ns an event; {:.2} s replaying {} operations, {:.0} ns an operation; {:.2} million events per second in total",
            self.read_seconds,
            self.read_ns_per_event,
            self.replay_seconds,
            grouped(self.operations),
            self.replay_ns_per_operation,
            self.events_per_second / 1e6
        )
    }

    /// Returns the introduction for a user who started the program without arguments.
    pub fn introduction(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_introduction(&mut out);
        out
    }

    /// Describes how the machine handled objects that were freed on another CPU than the one that allocated them.
    fn describe_remote_frees(&self) -> String {
        let (o, traced) = (&self.objects, self.facts.objects.remote);
        let here = match (o.remote_frees, o.remote_node_frees) {
            (0, _) => ".".to_owned(),
            (_, 0) => ", and took the same path as frees on the allocating CPU.".to_owned(),
            (_, far) => format!(
                ";\n{:>9}  of these frees came from another node: directly to the object's slab, without magazines.",
                grouped(far)
            ),
        };
        match traced {
            n if n == o.remote_frees => here,
            n => format!(" ({} on the traced machine){here}", grouped(n)),
        }
    }

    fn write_introduction(&self, out: &mut String) -> std::fmt::Result {
        let o = &self.objects;
        writeln!(
            out,
            "uslab replayed {} memory events that a real Linux kernel (6.1, {} CPUs) recorded while four processes\n\
             created, searched and deleted thousands of files. The replay served the same requests with its own allocator:\n\
             {} allocations and {} frees in {} object caches, each on the CPU that the trace names.",
            grouped(self.events_total),
            self.traced.cpus,
            grouped(o.allocs),
            grouped(o.frees),
            self.caches.len()
        )?;
        let m = &self.machine;
        if u64::from(m.cpus) != self.traced.cpus || m.nodes > 1 {
            writeln!(out, "Simulated: {}.", self.simulated())?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "All operations, including {} inferred ones, by where they were served:\n",
            grouped(o.paths.operations().saturating_sub(o.allocs + o.frees))
        )?;
        for path in Path::ALL {
            let what = match path {
                Path::Cpu => "a magazine of its own CPU, without any lock",
                Path::Depot => "magazines that CPUs share",
                Path::Slab => "the slabs of its cache",
                Path::Pages => "the page allocator",
                Path::Commit => "the system",
            };
            let share = 100.0 * o.paths.share(path).unwrap_or(0.0);
            writeln!(out, "  {:<6} {share:>6.2} %  {what}", path.name())?;
        }
        writeln!(
            out,
            "\n{:>9}  times a CPU exchanged a whole magazine with a depot;\n\
             {:>9}  frees came from another CPU than the allocation{}\n",
            grouped(o.depot_exchanges),
            grouped(o.remote_frees),
            self.describe_remote_frees()
        )?;
        writeln!(out, "The busiest caches:\n")?;
        let mut rows =
            table(&["cache", "bytes", "allocs", "frees", "peak", "slabs", "cpu %", "in magazines"]);
        for c in self.caches.iter().take(8) {
            rows.add_row([
                c.name.clone(),
                c.slab_size.to_string(),
                grouped(c.allocs),
                grouped(c.frees),
                grouped(c.peak_live),
                grouped(c.slabs),
                cpu_served_percent(c),
                grouped(c.in_magazines),
            ]);
        }
        out.push_str(&text(&rows));
        if let Some(k) = &self.against_kernel {
            writeln!(
                out,
                "\nAccording to the kernel's own tables, its caches grew by {} objects and {} slabs during the workload;\n\
                 in the replay, they grew by {} objects and {} slabs.",
                k.objects_kernel, k.slabs_kernel, k.objects_ours, k.slabs_ours
            )?;
        }
        let (c, t) = (&self.conservation, &self.teardown);
        writeln!(
            out,
            "\nEvery object and every page was counted {} times: {}. When everything\n\
             was freed, {} objects and {} slabs were left, and {} returned to the system.\n\
             The replay processed {:.1} million events a second.\n",
            c.checked,
            if c.violated == 0 {
                "nothing was lost, nothing was in two places"
            } else {
                "VIOLATIONS WERE FOUND, see below"
            },
            t.objects,
            t.slabs,
            size(t.committed_bytes[0] - t.committed_bytes[1]),
            self.events_per_second / 1e6
        )?;
        c.violations.iter().try_for_each(|v| writeln!(out, "  {v}"))?;
        out.push_str(
            "Where to go next:\n  \
             uslab replay FILE       replay your own trace (ftrace, perf script or trace-cmd text, .zst too)\n  \
             uslab replay --all      this trace with every cache, beside the kernel's numbers\n  \
             uslab replay --html F   the page F: this trace in a browser, operation by operation, forward and back\n  \
             uslab replay --cpus 64  the same events on a machine with 64 CPUs and its larger slabs\n  \
             uslab geometry 192      how objects of a size are laid out in slabs\n  \
             uslab --help            everything else\n",
        );
        Ok(())
    }
}
