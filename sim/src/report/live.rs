//! The objects that are live when a trace ends: by call site, to find leaks, and by slab, to find the objects that keep
//! partial slabs.
//!
//! An object counts if its allocation is in the trace and its free is not. A leaking site has live objects from all
//! parts of the trace. A site that fills a cache has live objects from the beginning, and a busy site has some from the
//! end. A slab is known if its pages were allocated in the trace, and if the addresses of objects show their pages.
//!
//! If the trace marks a workload, as recordings do, objects from before the workload are omitted, and the workload's
//! time is divided.

use crate::output::{grouped, size, table, text};
use crate::trace::{Pfn, Ptr};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::{self, Write};

/// The number of equal parts of the time.
const PARTS: usize = 4;

/// An object that is live at the end.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) ptr: Ptr,
    pub(crate) call_site: u32,
    pub(crate) cache: u32,
    pub(crate) task: Option<u32>,
    pub(crate) bytes: u32,
    pub(crate) time_ns: u64,
}

/// The pages that belong to slabs at the end.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// For each page of a slab: the slab's first page, and its order.
    pages: FxHashMap<u64, (u64, u8)>,
}

impl Slabs {
    pub(crate) fn alloc(&mut self, first: Pfn, order: u8) {
        for page in 0..1 << order {
            self.pages.insert(first.0 + page, (first.0, order));
        }
    }

    pub(crate) fn free(&mut self, first: Pfn, order: u8) {
        for page in 0..1 << order {
            self.pages.remove(&(first.0 + page));
        }
    }
}

/// The objects that are live at the end of a trace.
#[derive(Debug, Serialize)]
pub struct Live {
    /// `true` if objects from before the workload are omitted from all fields but [`pinned`](Self::pinned).
    pub of_workload: bool,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The call sites, most bytes first.
    pub sites: Vec<LiveSite>,
    /// The commands, each with its control group if the trace has it, most bytes first. Objects allocated in an
    /// interrupt belong to the interrupted command. Objects without a command in the trace are omitted.
    pub commands: Vec<LiveCommand>,
    /// Caches with partial slabs, most bytes of holes first.
    pub pinned: Vec<Pinned>,
}

/// The live objects of a call site.
#[derive(Debug, Serialize)]
pub struct LiveSite {
    /// The call site as `function+offset`, as it is in the trace.
    pub call_site: String,
    /// The cache that has most of the site's live objects.
    pub cache: String,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The number of all allocations of the site in the trace.
    pub allocations: u64,
    /// The live objects by the quarter of the workload, or of the trace, in which they were allocated.
    pub by_quarter: [u64; PARTS],
    /// The age of the site's oldest live object, in seconds of the trace's clock.
    pub oldest_seconds: f64,
    /// A guess at the reason for the site's live objects.
    pub looks_like: Looks,
}

/// The live objects of a command.
#[derive(Debug, Serialize)]
pub struct LiveCommand {
    /// The name of the command.
    pub command: String,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The call site with the most bytes.
    pub call_site: String,
}

/// A guess at the reason for a site's live objects, from their ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Looks {
    /// Each quarter adds objects, and none is freed: a leak, or a growing cache.
    Growing,
    /// Nearly all objects are from the first quarter: allocated once.
    Settled,
    /// Nearly all objects are from the last quarter, and may be freed soon.
    Recent,
    /// The ages show no other pattern.
    Mixed,
}

impl Looks {
    fn of(by_quarter: [u64; PARTS], allocations: u64) -> Self {
        let live: u64 = by_quarter.iter().sum();
        let most = |part: u64| part * 10 >= live * 9;
        let [first, .., last] = by_quarter;
        // A leak leaves at least a tenth of an even share in each quarter, and at least a twentieth of the site's
        // allocations.
        let spread = by_quarter.iter().all(|part| part * 10 * PARTS as u64 >= live);
        if live >= 2 * PARTS as u64 && spread && live * 20 >= allocations {
            Self::Growing
        } else if most(first) {
            Self::Settled
        } else if most(last) {
            Self::Recent
        } else {
            Self::Mixed
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Growing => "grows: a leak, or a cache",
            Self::Settled => "made once",
            Self::Recent => "recent",
            Self::Mixed => "",
        }
    }
}

/// The slabs of a cache that have free objects.
#[derive(Debug, Serialize)]
pub struct Pinned {
    /// The name of the cache.
    pub cache: String,
    /// The number of slabs that were allocated in the trace, have holes, and have live objects of the trace.
    pub slabs: u64,
    /// The bytes of the slabs' holes.
    pub holes: u64,
    /// The number of slabs that a single object keeps.
    pub by_one: u64,
    /// The median over these slabs of the age of the youngest live object, in seconds.
    pub youngest_seconds: f64,
    /// The call site with the most objects in slabs of which at most a quarter is in use.
    pub site: Option<String>,
}

/// Functions for the names and counts of a [`Live`].
pub(crate) struct Names<'n> {
    pub(crate) site: &'n dyn Fn(u32) -> String,
    pub(crate) allocations: &'n dyn Fn(u32) -> u64,
    pub(crate) cache: &'n dyn Fn(u32) -> String,
    pub(crate) task: &'n dyn Fn(u32) -> String,
    pub(crate) page_of: &'n dyn Fn(Ptr) -> Option<Pfn>,
    pub(crate) page_bytes: u64,
    /// The first and the last time of the trace.
    pub(crate) times: (u64, u64),
    /// The first and the last time of the workload.
    pub(crate) workload: Option<(u64, u64)>,
}

impl Live {
    pub(crate) fn new(objects: &[Object], slabs: &Slabs, names: &Names<'_>) -> Self {
        let begin = names.workload.map_or(0, |(begin, _)| begin);
        let later: Vec<&Object> = objects.iter().filter(|object| object.time_ns >= begin).collect();
        Self {
            of_workload: names.workload.is_some(),
            objects: later.len() as u64,
            bytes: later.iter().map(|object| u64::from(object.bytes)).sum(),
            sites: sites(&later, names),
            commands: commands(&later, names),
            pinned: pinned(objects, slabs, names),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn sites(objects: &[&Object], names: &Names<'_>) -> Vec<LiveSite> {
    #[derive(Default)]
    struct Sum {
        objects: u64,
        bytes: u64,
        by_quarter: [u64; PARTS],
        first: Option<u64>,
        caches: FxHashMap<u32, u64>,
    }
    let (begin, last) = names.workload.unwrap_or(names.times);
    let end = names.times.1;
    let part = |time: u64| {
        let (since, all) =
            (u128::from(time.saturating_sub(begin)), u128::from(last.saturating_sub(begin).max(1)));
        ((since * PARTS as u128 / all) as usize).min(PARTS - 1)
    };
    let mut sums = FxHashMap::<u32, Sum>::default();
    for object in objects {
        let sum = sums.entry(object.call_site).or_default();
        sum.objects += 1;
        sum.bytes += u64::from(object.bytes);
        sum.by_quarter[part(object.time_ns)] += 1;
        sum.first = Some(sum.first.map_or(object.time_ns, |first| first.min(object.time_ns)));
        *sum.caches.entry(object.cache).or_default() += 1;
    }
    let site = |(site, sum): (u32, Sum)| {
        let allocations = (names.allocations)(site);
        let cache = sum.caches.iter().max_by_key(|(cache, count)| (**count, Reverse(**cache)));
        LiveSite {
            call_site: (names.site)(site),
            cache: cache.map_or_else(String::new, |(cache, _)| (names.cache)(*cache)),
            objects: sum.objects,
            bytes: sum.bytes,
            allocations,
            by_quarter: sum.by_quarter,
            oldest_seconds: seconds(end.saturating_sub(sum.first.unwrap_or(end))),
            looks_like: Looks::of(sum.by_quarter, allocations),
        }
    };
    let mut sites: Vec<_> = sums.into_iter().map(site).collect();
    sites.sort_by(|a, b| (b.bytes, &a.call_site).cmp(&(a.bytes, &b.call_site)));
    sites
}

fn commands(objects: &[&Object], names: &Names<'_>) -> Vec<LiveCommand> {
    #[derive(Default)]
    struct Sum {
        objects: u64,
        bytes: u64,
        sites: FxHashMap<u32, u64>,
    }
    let mut sums = FxHashMap::<u32, Sum>::default();
    for (object, task) in objects.iter().filter_map(|object| Some((object, object.task?))) {
        let sum = sums.entry(task).or_default();
        sum.objects += 1;
        sum.bytes += u64::from(object.bytes);
        *sum.sites.entry(object.call_site).or_default() += u64::from(object.bytes);
    }
    let row = |(task, sum): (u32, Sum)| {
        let site = sum.sites.iter().max_by_key(|(site, bytes)| (**bytes, Reverse(**site)));
        LiveCommand {
            command: (names.task)(task),
            objects: sum.objects,
            bytes: sum.bytes,
            call_site: site.map_or_else(String::new, |(site, _)| (names.site)(*site)),
        }
    };
    let mut commands: Vec<_> = sums.into_iter().map(row).collect();
    commands.sort_by(|a, b| (b.bytes, &a.command).cmp(&(a.bytes, &b.command)));
    commands
}

fn pinned(objects: &[Object], slabs: &Slabs, names: &Names<'_>) -> Vec<Pinned> {
    #[derive(Default)]
    struct Slab {
        cache: u32,
        bytes: u64,
        room: u64,
        youngest: u64,
        sites: Vec<u32>,
    }
    let mut by_slab = FxHashMap::<u64, Slab>::default();
    for object in objects {
        let Some((first, order)) = (names.page_of)(object.ptr).and_then(|page| slabs.pages.get(&page.0))
        else {
            continue;
        };
        let slab = by_slab.entry(*first).or_default();
        let size = u64::from(object.bytes).max(1);
        slab.cache = object.cache;
        slab.bytes = size;
        slab.room = ((names.page_bytes << order) / size).max(1);
        slab.youngest = slab.youngest.max(object.time_ns);
        slab.sites.push(object.call_site);
    }
    #[derive(Default)]
    struct Sum {
        slabs: u64,
        holes: u64,
        by_one: u64,
        ages: Vec<u64>,
        sites: FxHashMap<u32, u64>,
    }
    let mut sums = FxHashMap::<u32, Sum>::default();
    for slab in by_slab.into_values() {
        let used = slab.sites.len() as u64;
        let Some(holes) = slab.room.checked_sub(used).filter(|holes| *holes > 0) else { continue };
        let sum = sums.entry(slab.cache).or_default();
        sum.slabs += 1;
        sum.holes += holes * slab.bytes;
        sum.by_one += u64::from(used == 1);
        sum.ages.push(names.times.1.saturating_sub(slab.youngest));
        if used * 4 <= slab.room {
            slab.sites.iter().for_each(|site| *sum.sites.entry(*site).or_default() += 1);
        }
    }
    let row = |(cache, mut sum): (u32, Sum)| {
        sum.ages.sort_unstable();
        let site = sum.sites.iter().max_by_key(|(site, count)| (**count, Reverse(**site)));
        Pinned {
            cache: (names.cache)(cache),
            slabs: sum.slabs,
            holes: sum.holes,
            by_one: sum.by_one,
            youngest_seconds: seconds(sum.ages[sum.ages.len() / 2]),
            site: site.map(|(site, _)| (names.site)(*site)),
        }
    };
    let mut pinned: Vec<_> = sums.into_iter().map(row).collect();
    pinned.sort_by(|a, b| (b.holes, &a.cache).cmp(&(a.holes, &b.cache)));
    pinned
}

impl Live {
    pub(super) fn write_page(&self, out: &mut String, rows: usize) -> fmt::Result {
        let shown = rows.min(self.sites.len());
        writeln!(
            out,
            "\nStill live at the end: {} in {} objects ({shown} of {} call sites, the most bytes first)",
            size(self.bytes),
            grouped(self.objects),
            grouped(self.sites.len() as u64)
        )?;
        let of = if self.of_workload { "workload" } else { "trace" };
        let since = if self.of_workload { "since the workload began" } else { "in the trace" };
        writeln!(
            out,
            "  Allocated {since} and not freed. Objects by the quarter of the {of} that they were allocated in: a leak has some of all of them."
        )?;
        let mut sites = table(&[
            "call site",
            "cache",
            "bytes",
            "objects",
            "of",
            "q1",
            "q2",
            "q3",
            "q4",
            "oldest s",
            "looks like",
        ]);
        for site in &self.sites[..shown] {
            let mut row = vec![
                site.call_site.clone(),
                site.cache.clone(),
                grouped(site.bytes),
                grouped(site.objects),
                grouped(site.allocations),
            ];
            row.extend(site.by_quarter.map(grouped));
            row.extend([format!("{:.3}", site.oldest_seconds), site.looks_like.words().to_owned()]);
            sites.add_row(row);
        }
        out.push_str(&text(&sites));
        let growing: Vec<_> =
            self.sites.iter().filter(|site| site.looks_like == Looks::Growing).take(3).collect();
        for site in growing {
            writeln!(
                out,
                "{} keeps {} of {}: {} of its {} allocations were not freed, and some of each quarter of the {of}.",
                site.call_site,
                size(site.bytes),
                site.cache,
                grouped(site.objects),
                grouped(site.allocations)
            )?;
        }
        if !self.commands.is_empty() {
            let shown = rows.min(self.commands.len());
            writeln!(
                out,
                "\nThe same by command ({shown} of {}); an interrupt counts as the command that it interrupted",
                grouped(self.commands.len() as u64)
            )?;
            let mut commands = table(&["command", "bytes", "objects", "most by"]);
            for row in &self.commands[..shown] {
                commands.add_row([
                    row.command.clone(),
                    grouped(row.bytes),
                    grouped(row.objects),
                    row.call_site.clone(),
                ]);
            }
            out.push_str(&text(&commands));
        }
        if self.pinned.is_empty() {
            return Ok(());
        }
        let shown = rows.min(self.pinned.len());
        writeln!(
            out,
            "\nPartial slabs ({shown} of {} caches, the most bytes of holes first)",
            grouped(self.pinned.len() as u64)
        )?;
        writeln!(
            out,
            "  Of slabs that were allocated in the trace. age: of the youngest object of a slab, the median in seconds; site: who allocated most \
             objects in slabs that are a quarter full at most."
        )?;
        let mut slabs = table(&["cache", "holes", "slabs", "kept by one object", "age", "site"]);
        for row in &self.pinned[..shown] {
            slabs.add_row([
                row.cache.clone(),
                size(row.holes),
                grouped(row.slabs),
                grouped(row.by_one),
                format!("{:.3}", row.youngest_seconds),
                row.site.clone().unwrap_or_default(),
            ]);
        }
        out.push_str(&text(&slabs));
        Ok(())
    }
}
