//! The command `uslab slabs`: shows what a kernel's caches hold, how much of that memory is holes, and which
//! action would return the memory. The command reads only the kernel's tables and needs no trace.

pub mod attributes;
mod change;
mod dump;
mod estimate;
mod page;
mod settings;
mod source;

pub use change::{CacheChange, Change};
pub use estimate::{Bounds, Layers, Machine};
pub use settings::{CacheSetting, Capacity, Debug, Difference, Request, Setting};
pub(crate) use source::count_cpus_in_ranges;
pub use source::{Cache, Memory, Snapshot, read_table};

use crate::output::{self, grouped, signed, size};
use crate::replay::Returned;
use anyhow::bail;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// The option whose effect on each cache a report shows, if the user requests no other option.
const ALL_DEBUG_OPTION: &str = "slab_debug=FZPU";

/// The order in which the report sorts the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Sorted by the total size of all slabs.
    #[default]
    Bytes,
    /// Sorted by the bytes in holes.
    Holes,
    /// Sorted by the largest number of bytes that a shrink may free.
    Shrink,
    /// Sorted by the number of objects in use.
    Objects,
    /// Sorted by the number of slabs.
    Slabs,
    /// Sorted by name.
    Name,
}

/// The state of a kernel's caches at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The folder or file that the command read.
    pub place: String,
    /// The paths of the tables that the command read.
    pub read: Vec<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The number of CPUs.
    pub cpus: u64,
    /// `true` if no table has the number of CPUs, so that `cpus` is the largest number that the slab orders allow.
    pub cpus_guessed: bool,
    /// `true` if no table shows whether the kernel has sheaves, so that the bounds cover all releases.
    pub kernel_guessed: bool,
    /// The number of memory nodes.
    pub nodes: u64,
    /// The page size in bytes.
    pub page_size: u64,
    /// The amount of memory in bytes, from meminfo.
    pub memory: Option<Memory>,
    /// The number of pages on the free lists of the buddy allocator.
    pub free_pages: Option<u64>,
    /// The number of free pages in blocks that are large enough for the largest slab.
    pub free_pages_for_slabs: Option<u64>,
    /// The bytes of all slabs.
    pub bytes: u64,
    /// The bytes of objects in use; free objects that CPUs hold are included.
    pub in_use: u64,
    /// The bytes in holes: free objects in partial slabs.
    pub holes: u64,
    /// The bytes at the ends of slabs, where no further object fits.
    pub waste: u64,
    /// The number of bytes that a shrink of all caches frees.
    pub shrink: Bounds,
    /// The result of a shrink, computed from a recording's trace, if the user gave a trace.
    pub shrink_by_trace: Option<TraceShrink>,
    /// The bytes of reclaimable caches, of which `drop_caches` frees a part. The value is `None` if no table shows
    /// which caches are reclaimable.
    pub reclaimable: Option<u64>,
    /// The largest number of bytes in slabs that CPUs hold.
    pub cpu_slabs: u64,
    /// The largest number of bytes in objects that sheaves hold.
    pub parked: u64,
    /// The caches, in the order that the user requested.
    pub caches: Vec<Row>,
    /// The effects of other kernel options: the options that the user requested, or a built-in selection.
    pub settings: Vec<Setting>,
    /// `true` if the user requested the options in `settings`.
    pub settings_requested: bool,
    /// Messages about files that could not be read.
    pub faults: Vec<String>,
    /// The snapshot of a recording that the report shows.
    pub moment: Option<String>,
    /// The snapshots of the recording that the report does not show.
    pub other_moments: Vec<String>,
}

/// The result of a shrink, computed from a trace whose events show each slab.
#[derive(Clone, Debug, Serialize)]
pub struct TraceShrink {
    /// The file name of the trace.
    pub trace: String,
    /// The design of the traced kernel.
    pub design: String,
    /// Bytes that a shrink of all caches returns. For caches without an event, the lower bound from the
    /// kernel's tables is used.
    pub bytes: u64,
    /// The real shrink after the snapshot, if the recording contains one.
    pub recorded: Option<RecordedShrink>,
}

/// A real shrink in a recording; its numbers include the effect of allocations and frees during the shrink.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedShrink {
    /// The name of the next snapshot.
    pub until: String,
    /// The decrease of slab memory up to the snapshot `until`, in bytes, as the model computes it.
    pub by_trace: i64,
    /// The decrease of slab memory up to the snapshot `until`, in bytes, as the kernel's tables show it for the trace's
    /// caches.
    pub by_tables: i64,
}

/// The row of one cache in the report.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The cache's name.
    pub name: String,
    /// The names of caches that the kernel merged with this cache.
    pub aliases: Vec<String>,
    /// The distance from one object to the next, in bytes.
    pub object_size: u64,
    /// The number of objects in a slab.
    pub objects_per_slab: u64,
    /// The number of pages in a slab.
    pub pages_per_slab: u64,
    /// The number of slabs.
    pub slabs: u64,
    /// The bytes of all slabs.
    pub bytes: u64,
    /// The number of objects in all slabs.
    pub objects: u64,
    /// The number of objects in the cache, excluding free objects in partial slabs of nodes.
    pub in_use: u64,
    /// The number of free objects in partial slabs.
    pub holes: u64,
    /// The bytes of free objects in partial slabs.
    pub hole_bytes: u64,
    /// `true` if the kernel may have estimated `in_use` and `holes`: since 6.10, slabinfo counts free objects in at
    /// most 10,000 partial slabs of a node.
    pub is_estimated: bool,
    /// The number of partial slabs of nodes, if the tables include sysfs.
    pub partial: Option<u64>,
    /// The number of objects in use in partial slabs.
    pub in_partial: Option<u64>,
    /// The number of slabs that a shrink frees.
    pub shrink_slabs: Bounds,
    /// The bytes that a shrink frees.
    pub shrink: Bounds,
    /// The number of slabs that a shrink returns, computed from a recording's trace; `None` if the trace has
    /// no event of the cache.
    pub shrink_slabs_by_trace: Option<u64>,
    /// The objects and slabs that CPUs and nodes hold.
    pub layers: Layers,
    /// `true` if writing to `drop_caches` may free the cache's objects; `None` if no table shows this.
    pub reclaimable: Option<bool>,
    /// `true` if some slabs have a lower order than usual.
    pub has_small_slabs: bool,
    /// A sentence that describes the numbers of this row in words.
    pub sentence: String,
}

impl Report {
    /// Makes a report of a snapshot. `cpus` is the number of CPUs that the user gave; `requests` are the
    /// kernel options to estimate, or empty for a selection.
    ///
    /// # Errors
    /// Fails if no table of the snapshot counts slabs, or if the tables do not show the effect of a requested option.
    pub fn new(
        snapshot: &Snapshot,
        cpus: Option<u32>,
        sort: Sort,
        requests: &[Request],
    ) -> anyhow::Result<Self> {
        if !snapshot.is_counted {
            bail!(
                "{}: no table has the number of slabs; expected a slabinfo, or cache attributes with `slabs`",
                snapshot.place
            );
        }
        let machine = Machine::of(snapshot, cpus);
        let mut caches: Vec<Row> = snapshot.caches.iter().map(|cache| Row::new(cache, &machine)).collect();
        // Equal caches are sorted by name, so that two runs give the same order.
        caches.sort_by(|a, b| a.name.cmp(&b.name));
        match sort {
            Sort::Bytes => caches.sort_by_key(|row| Reverse((row.bytes, row.in_use))),
            Sort::Holes => caches.sort_by_key(|row| Reverse(row.hole_bytes)),
            Sort::Shrink => caches.sort_by_key(|row| Reverse(row.shrink.most)),
            Sort::Objects => caches.sort_by_key(|row| Reverse(row.in_use)),
            Sort::Slabs => caches.sort_by_key(|row| Reverse(row.slabs)),
            Sort::Name => {}
        }
        let sum = |of: &dyn Fn(&Row) -> u64| caches.iter().map(of).sum::<u64>();
        let mut shrink = Bounds::default();
        caches.iter().for_each(|row| shrink += row.shrink);
        let known = caches.iter().any(|row| row.reclaimable.is_some());
        let (bytes, holes) = (sum(&|row| row.bytes), sum(&|row| row.hole_bytes));
        let in_use = sum(&|row| row.in_use * row.object_size);
        let largest = caches.iter().filter(|row| row.slabs > 0).map(|row| row.pages_per_slab).max();
        let blocks = snapshot.free_blocks.as_ref();
        let free_from = |order: usize| -> Option<u64> {
            Some(
                blocks?
                    .iter()
                    .flat_map(|zone| zone.by_order.iter().enumerate().skip(order))
                    .map(|(order, count)| count << order)
                    .sum(),
            )
        };
        Ok(Self {
            place: snapshot.place.clone(),
            read: snapshot.read.clone(),
            kernel: snapshot.kernel.clone(),
            cpus: machine.cpus,
            cpus_guessed: machine.cpus_guessed,
            kernel_guessed: !machine.is_slab
                && machine.version.is_none()
                && snapshot.caches.iter().any(|cache| cache.attributes.is_none()),
            nodes: machine.nodes,
            page_size: machine.page_size,
            memory: snapshot.memory,
            free_pages: free_from(0),
            free_pages_for_slabs: free_from(largest.unwrap_or(1).max(1).ilog2() as usize),
            bytes,
            in_use,
            holes,
            waste: bytes.saturating_sub(in_use + holes),
            shrink,
            shrink_by_trace: None,
            reclaimable: match (known, snapshot.memory) {
                (true, _) => Some(sum(&|row| if row.reclaimable == Some(true) { row.bytes } else { 0 })),
                (false, memory) => memory.map(|memory| memory.reclaimable),
            },
            cpu_slabs: sum(&|row| row.layers.cpu_slabs * row.pages_per_slab * machine.page_size),
            parked: sum(&|row| row.layers.parked * row.object_size),
            caches,
            settings: settings::estimate_settings(snapshot, &machine, requests)?,
            settings_requested: !requests.is_empty(),
            faults: snapshot.faults.clone(),
            moment: snapshot.moment.clone(),
            other_moments: snapshot.other_moments.clone(),
        })
    }

    /// Adds the number of slabs that a shrink of each cache returns, computed from the recording's trace. The bounds
    /// from the kernel's tables stay in the report. The parameter `later` is the report of the snapshot after the
    /// recording's real shrink.
    pub fn add_trace_shrink(&mut self, trace: &Path, returned: &Returned, later: Option<&Self>) {
        let recorded = returned.recorded.as_ref().zip(later).map(|(recorded, later)| {
            let of = |row: &Row| (row.pages_per_slab * self.page_size) as i64;
            let by_trace =
                self.caches.iter().map(|row| recorded.slabs.get(&row.name).unwrap_or(&0) * of(row));
            let then = |row: &Row| later.caches.iter().find(|later| later.name == row.name);
            let traced = self.caches.iter().filter(|row| recorded.slabs.contains_key(&row.name));
            let by_tables = traced
                .map(|row| then(row).map_or(0, |later| row.slabs as i64 - later.slabs as i64) * of(row));
            RecordedShrink {
                until: recorded.until.clone(),
                by_trace: by_trace.sum(),
                by_tables: by_tables.sum(),
            }
        });
        let mut bytes = 0;
        for row in &mut self.caches {
            let Bounds { least, most } = row.shrink_slabs;
            let known = returned.slabs.get(&row.name).map(|slabs| (*slabs).clamp(least, most));
            row.shrink_slabs_by_trace = known;
            bytes += known.unwrap_or(least) * row.pages_per_slab * self.page_size;
        }
        self.shrink_by_trace = Some(TraceShrink {
            trace: trace.display().to_string(),
            design: returned.design.clone(),
            bytes,
            recorded,
        });
    }

    /// Formats the report as text, with at most `rows` rows of each table. The text includes other kernel options if
    /// `settings` is `true`, or if the user requested options.
    pub fn text(&self, rows: usize, settings: bool) -> String {
        let mut text = String::new();
        self.write(&mut text, rows, settings).map_or_else(|_| String::new(), |()| text)
    }

    fn write(&self, f: &mut String, rows: usize, settings: bool) -> std::fmt::Result {
        self.head(f)?;
        self.sums(f)?;
        writeln!(f, "\n{}", self.table(rows))?;
        for row in self.caches.iter().filter(|row| row.slabs > 0).take(rows.min(5)) {
            writeln!(f, "{}", row.sentence)?;
        }
        match settings || self.settings_requested {
            true => self.write_settings(f, rows),
            false => writeln!(f, "\n`--settings` shows what other kernel options would cost in memory."),
        }
    }

    fn write_settings(&self, f: &mut String, rows: usize) -> std::fmt::Result {
        if self.settings.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\nMemory with other kernel options, computed from slab geometry, without their effect on speed:\n"
        )?;
        let mut table = output::table(&["setting", "now", "then", "change", "what is counted"]);
        for Setting { setting, now, then, direction, about, .. } in &self.settings {
            table.add_row([
                setting.clone(),
                size(*now),
                format_bounds(*then),
                direction.clone(),
                about.clone(),
            ]);
        }
        f.push_str(&output::text(&table));
        // What changes in the same way is named once.
        let mut others: Vec<(Vec<&str>, String)> = vec![];
        for setting in &self.settings {
            let text = setting.describe_other_changes();
            match others.last_mut() {
                _ if text.is_empty() => {}
                Some((names, last)) if *last == text => names.push(&setting.setting),
                _ => others.push((vec![&setting.setting], text)),
            }
        }
        if !others.is_empty() {
            writeln!(f, "\nOther quantities that change with these options:")?;
        }
        for (names, text) in others {
            writeln!(f, "{}: {text}", names.join(", "))?;
        }
        let is_shown = |setting: &&Setting| self.settings_requested || setting.setting == ALL_DEBUG_OPTION;
        self.settings.iter().filter(is_shown).try_for_each(|setting| write_setting_by_cache(f, setting, rows))
    }

    /// Writes the folder or file that the command read, and the files that could not be read.
    fn head(&self, f: &mut String) -> std::fmt::Result {
        let linux = self.kernel.as_ref().map_or(String::new(), |kernel| format!("Linux {kernel}, "));
        let nodes = if self.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", self.nodes) };
        let at_most = if self.cpus_guessed { "at most " } else { "" };
        // Files of the place are named relative to it.
        let place = Path::new(&self.place);
        let folder = if self.moment.as_ref().is_some_and(|moment| place.ends_with(moment)) {
            place.parent()
        } else {
            Some(place)
        };
        let named = |path: &String| {
            let inside = folder.and_then(|folder| Path::new(path).strip_prefix(folder).ok());
            let inside = inside.filter(|path| !path.as_os_str().is_empty());
            inside.map_or_else(|| path.clone(), |path| path.display().to_string())
        };
        let read: Vec<String> = self.read.iter().map(named).collect();
        writeln!(
            f,
            "{} ({linux}{at_most}{} CPUs, {nodes}), from {}",
            self.place,
            self.cpus,
            read.join(", ")
        )?;
        if self.cpus_guessed {
            writeln!(
                f,
                "No table names the number of CPUs. {} CPUs are assumed, the most that agree with the slab orders. `--cpus N` sets the number.",
                self.cpus
            )?;
        }
        if self.kernel_guessed {
            writeln!(
                f,
                "No table names the kernel's release. The numbers below hold for kernels with CPU slabs (up to 6.19) and for kernels with \
                 sheaves (6.18 in two caches, 7.0 and later in nearly all). `--kernel RELEASE` makes them more exact."
            )?;
        }
        if !self.other_moments.is_empty() {
            writeln!(
                f,
                "The recording has other snapshots: {}. `uslab slabs {place}/{} --against {place}/{}` compares two of them.",
                self.other_moments.join(", "),
                self.other_moments[0],
                self.moment.as_deref().unwrap_or_default(),
                place = self.place,
            )?;
        }
        for fault in &self.faults {
            writeln!(f, "Left out: {fault}")?;
        }
        Ok(())
    }

    fn sums(&self, f: &mut String) -> std::fmt::Result {
        let slabs: u64 = self.caches.iter().map(|row| row.slabs).sum();
        write!(f, "\n{} caches hold {} in {} slabs", self.caches.len(), size(self.bytes), grouped(slabs))?;
        if let Some(memory) = self.memory {
            write!(f, ", {} of {} of memory", percent(self.bytes, memory.total), large(memory.total))?;
        }
        writeln!(
            f,
            ": {} objects in use, {} holes (free objects in partial slabs), {} waste (too small for an object).",
            percent(self.in_use, self.bytes),
            percent(self.holes, self.bytes),
            percent(self.waste, self.bytes)
        )?;
        writeln!(
            f,
            "A shrink of all caches (echo 1 to /sys/kernel/slab/*/shrink) returns {}. It frees only completely empty slabs, which the \
             tables do not count.",
            format_bounds(self.shrink)
        )?;
        if let Some(TraceShrink { trace, design, bytes, recorded }) = &self.shrink_by_trace {
            writeln!(
                f,
                "The model of this kernel ({design}), which replays {trace}, predicts that a shrink at this time returns {}.",
                size(*bytes)
            )?;
            if let Some(RecordedShrink { until, by_trace, by_tables }) = recorded {
                writeln!(
                    f,
                    "The recording contains a later shrink: up to `{until}`, slabs changed by {} in the model, and by {} in the kernel's tables. Both changes \
                     cover the trace's caches, and include slabs that were created and freed around that shrink, so they differ from the \
                     prediction.",
                    change::difference(-by_trace),
                    change::difference(-by_tables)
                )?;
            }
        }
        if let Some(reclaimable) = self.reclaimable {
            writeln!(
                f,
                "drop_caches is a different operation: it frees unused objects of reclaimable caches, at most {}. The tables do not show how many objects are unused.",
                size(reclaimable)
            )?;
        }
        if self.cpu_slabs > 0 {
            writeln!(
                f,
                "CPUs hold up to {} of slabs, whose free objects count as in use.",
                size(self.cpu_slabs)
            )?;
        }
        if self.parked > 0 {
            writeln!(
                f,
                "Sheaves and barns (arrays of free objects in front of the slabs) hold up to {} of free objects, which count as in use.",
                size(self.parked)
            )?;
        }
        if let Some((all, large)) = self.free_pages.zip(self.free_pages_for_slabs) {
            writeln!(
                f,
                "{} of the free memory ({} of {}) is in blocks that are large enough for the largest slabs; if no such block is free, a new slab gets a smaller order.",
                percent(large, all),
                self::large(large * self.page_size),
                self::large(all * self.page_size)
            )?;
        }
        Ok(())
    }

    /// Formats the sums over all caches in one line.
    pub fn summary(&self) -> String {
        format!(
            "{}: {} in slabs, {} holes, a shrink returns {}\n",
            self.place,
            size(self.bytes),
            percent(self.holes, self.bytes),
            format_bounds(self.shrink)
        )
    }

    /// Formats a table of at most `rows` changed caches: the change per second since the report `before` (`time` ago),
    /// and the total change since the report `first` (`total` ago).
    pub fn rates(
        &self,
        (before, time): (&Self, Duration),
        (first, total): (&Self, Duration),
        rows: usize,
    ) -> String {
        let (last, all) = (Change::new(before, self), Change::new(first, self));
        let changed = |change: &Change| {
            let caches = change.caches.iter().map(|cache| (cache.name.clone(), (cache.objects, cache.slabs)));
            caches.collect::<BTreeMap<_, _>>()
        };
        let (by_last, by_all) = (changed(&last), changed(&all));
        // The caches that change now come first.
        let later = all.caches.iter().filter(|cache| !by_last.contains_key(&cache.name));
        let names: Vec<_> = last.caches.iter().chain(later).map(|cache| &cache.name).collect();
        if names.is_empty() {
            return "nothing changed\n".to_owned();
        }
        let [objects, slabs] = ["objects", "slabs"]
            .map(|what| format!("{what} since the start, {:.0} s ago", total.as_secs_f64()));
        let mut table = output::table(&["cache", "objects per second", "slabs per second", &objects, &slabs]);
        let each = |count: i64| count as f64 / time.as_secs_f64().max(0.001);
        for name in names.into_iter().take(rows) {
            let of = |changes: &BTreeMap<String, (i64, i64)>| changes.get(name).copied().unwrap_or_default();
            let ((objects, slabs), (all_objects, all_slabs)) = (of(&by_last), of(&by_all));
            table.add_row([
                name.clone(),
                format!("{:+.0}", each(objects)),
                format!("{:+.1}", each(slabs)),
                signed(all_objects),
                signed(all_slabs),
            ]);
        }
        output::text(&table)
    }

    /// Formats a table of the report's first `rows` caches.
    pub fn table(&self, rows: usize) -> String {
        let mut header = vec![
            "cache",
            "bytes",
            "of all",
            "objects in use",
            "bytes/object",
            "holes",
            "of the cache",
            "slabs",
            "partial slabs",
            "objects/slab",
            "pages/slab",
            "shrink returns",
        ];
        if self.shrink_by_trace.is_some() {
            header.push("by the trace");
        }
        let mut table = output::table(&header);
        for row in self.caches.iter().take(rows) {
            let mut cells = vec![
                row.name.clone(),
                size(row.bytes),
                percent(row.bytes, self.bytes),
                grouped(row.in_use),
                row.object_size.to_string(),
                size(row.hole_bytes),
                percent(row.hole_bytes, row.bytes),
                grouped(row.slabs),
                row.partial.map_or("?".to_owned(), grouped),
                row.objects_per_slab.to_string(),
                row.pages_per_slab.to_string(),
                format_bounds(row.shrink),
            ];
            if self.shrink_by_trace.is_some() {
                let slabs = row.shrink_slabs_by_trace;
                cells.push(slabs.map_or_else(
                    || "?".to_owned(),
                    |slabs| size(slabs * row.pages_per_slab * self.page_size),
                ));
            }
            table.add_row(cells);
        }
        let mut text = output::text(&table);
        if let Some(more) = self.caches.len().checked_sub(rows).filter(|more| *more > 0) {
            let _ = writeln!(text, "... and {more} more: `--all` shows them.");
        }
        text
    }
}

impl Row {
    fn new(cache: &Cache, machine: &Machine) -> Self {
        let row = &cache.row;
        let attributes = cache.attributes.as_ref();
        let holes = cache.holes();
        let mut made = Self {
            name: row.name.clone(),
            aliases: cache.aliases.clone(),
            object_size: row.object_size,
            objects_per_slab: row.objects_per_slab,
            pages_per_slab: row.pages_per_slab,
            slabs: row.slabs,
            bytes: row.slabs * cache.slab_bytes(machine.page_size),
            objects: row.objects,
            in_use: row.active_objects.min(row.objects),
            holes,
            hole_bytes: holes * row.object_size,
            is_estimated: cache.is_estimated(machine),
            partial: attributes.and_then(|attributes| attributes.partial),
            in_partial: attributes.and_then(|attributes| attributes.objects_partial),
            shrink_slabs: cache.shrink(machine),
            shrink: cache.shrink_bytes(machine),
            shrink_slabs_by_trace: None,
            layers: cache.layers(machine),
            reclaimable: attributes
                .and_then(|attributes| attributes.reclaim_account)
                .map(|reclaimable| reclaimable > 0),
            has_small_slabs: cache.has_small_slabs(),
            sentence: String::new(),
        };
        made.sentence = made.sentence();
        made
    }

    fn sentence(&self) -> String {
        let mut text = format!(
            "{} holds {}, of which {} are holes; a shrink returns {}",
            self.name,
            size(self.bytes),
            percent(self.hole_bytes, self.bytes),
            format_bounds(self.shrink)
        );
        if self.shrink.most * 2 < self.hole_bytes {
            text += match self.partial.zip(self.in_partial).filter(|(partial, _)| *partial > 0) {
                Some((partial, in_use)) => format!(
                    ", because the holes are spread over {} partial slabs with {:.1} of {} objects in use on average",
                    grouped(partial),
                    in_use as f64 / partial as f64,
                    self.objects_per_slab
                ),
                None => ", because the holes are spread over partial slabs".to_owned(),
            }
            .as_str();
        }
        if self.is_estimated {
            text += "; slabinfo estimates the holes if more than 10,000 slabs of a node are partial (/sys/kernel/slab counts them)";
        }
        if self.has_small_slabs {
            text += "; some slabs are of a lower order than usual, because there was no larger block";
        }
        text + &merged(&self.aliases) + "."
    }
}

/// Writes the effect of a kernel option on the caches that it changes most.
fn write_setting_by_cache(f: &mut String, setting: &Setting, rows: usize) -> std::fmt::Result {
    let shown = rows.min(setting.caches.len());
    if shown == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "\n{} by cache ({shown} of {}, the largest change first)\n",
        setting.setting,
        setting.caches.len()
    )?;
    let mut table =
        output::table(&["cache", "object now", "object then", "memory now", "memory then", "change"]);
    for row in &setting.caches[..shown] {
        let Bounds { least, most } = row.object_size_then;
        let then = if least == most { format!("{least} B") } else { format!("{least} to {most} B") };
        table.add_row([
            row.name.clone(),
            format!("{} B", row.object_size),
            then,
            size(row.now),
            format_bounds(row.then),
            row.change.to_string(),
        ]);
    }
    f.push_str(&output::text(&table));
    Ok(())
}

/// Returns the end of a sentence about a cache; it names the caches that were merged with the cache.
fn merged(aliases: &[String]) -> String {
    match aliases {
        [] => String::new(),
        [alias] => format!("; {alias} was merged with it"),
        aliases => format!("; {} caches were merged with it ({})", aliases.len(), few(aliases)),
    }
}

/// Returns the first few names of a list.
fn few(names: &[String]) -> String {
    let shown = names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > 4 { shown + ", ..." } else { shown }
}

/// Formats bounds as `0 B to 3.2 MiB`, or as one size if they are equal.
fn format_bounds(bounds: Bounds) -> String {
    if bounds.least == bounds.most {
        return size(bounds.least);
    }
    format!("{} to {}", size(bounds.least), size(bounds.most))
}

/// Formats the bytes of a machine's memory.
fn large(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes < 10 * GIB { size(bytes) } else { format!("{:.1} GiB", bytes as f64 / GIB as f64) }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    let percent = 100.0 * part as f64 / whole as f64;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}
