//! The objects that are live when a trace ends: by call site, to find leaks, and by slab, to find objects that keep
//! slabs partial.
//!
//! An object counts as live if its allocation is in the trace and its free is not. A leaking call site has
//! live objects from all parts of the trace. A call site that only fills a cache has live objects from the beginning of
//! the trace; a busy call site has a few from the end. A slab is known if its pages were allocated in the trace; the
//! address of an object reveals its page.
//!
//! If the trace marks a workload, the report omits objects from before it, unless the user requests them
//! ([`LiveObjects`]); the quarters then divide only the workload.

use crate::output::{grouped, size, table, text};
use crate::trace::{Pfn, Ptr, SlabinfoChange, is_kmalloc};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The number of equal parts into which the time is divided.
const PARTS: usize = 4;

/// An object that is live at the end of the trace.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) ptr: Ptr,
    pub(crate) call_site: u32,
    pub(crate) cache: u32,
    pub(crate) task: Option<u32>,
    pub(crate) bytes: u32,
    pub(crate) time_ns: u64,
}

/// The pages that belong to slabs at the end of the trace.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// For each page of a slab, the slab's first page and the slab's order.
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

/// The live objects that a report shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LiveObjects {
    /// Objects that were allocated since the workload began; if the trace marks no workload, all objects.
    #[default]
    Workload,
    /// All objects whose allocation is in the trace. In this mode, the quarters divide the whole trace.
    All,
}

/// The objects that are live at the end of a trace.
#[derive(Debug, Serialize)]
pub struct Live {
    /// `true` if objects from before the workload are omitted in all fields except [`pinned`](Self::pinned) and
    /// [`older`](Self::older).
    pub of_workload: bool,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The bytes of the live objects in kmalloc caches.
    pub kmalloc_bytes: u64,
    /// The live objects from before the workload, which the other fields omit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<Older>,
    /// Sentences about call sites that look like leaks, and about sites that only seem to leak.
    pub verdicts: Vec<String>,
    /// Call sites; the site with the most live bytes comes first.
    pub sites: Vec<LiveSite>,
    /// Commands; the command with the most live bytes comes first. An object allocated in an interrupt
    /// belongs to the interrupted command. Objects whose command the trace does not show are omitted.
    pub commands: Vec<LiveCommand>,
    /// Control groups of the allocating tasks; the group with the most live bytes comes first. The list is
    /// empty if the trace has no control groups.
    pub groups: Vec<LiveGroup>,
    /// Caches with slabs that are not full; the cache with the most bytes in holes comes first.
    pub pinned: Vec<Pinned>,
}

/// Live objects that were allocated before the workload.
#[derive(Debug, Serialize)]
pub struct Older {
    /// The number of objects.
    pub objects: u64,
    /// The size of the objects in bytes.
    pub bytes: u64,
    /// The bytes of the objects in kmalloc caches.
    pub kmalloc_bytes: u64,
    /// The call site with the most bytes of older objects in kmalloc caches, or else in all caches.
    pub call_site: String,
    /// The bytes of the older objects that `call_site` allocated.
    pub call_site_bytes: u64,
}

/// The live objects of a call site.
#[derive(Debug, Serialize)]
pub struct LiveSite {
    /// The call site as `function+offset`, copied from the trace.
    pub call_site: String,
    /// The cache to which most of the site's live objects belong.
    pub cache: String,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The number of all traced allocations of the call site.
    pub allocations: u64,
    /// The number of live objects that were allocated in each quarter of the workload, or of the whole trace.
    pub by_quarter: [u64; PARTS],
    /// The age of the site's oldest live object in seconds, on the trace's clock.
    pub oldest_seconds: f64,
    /// The number of the site's objects that were freed without an event.
    pub hidden_frees: u64,
    /// The number of the site's objects that the kernel freed without an event, so that they seem to be live. The
    /// number follows from the kernel's tables, which show fewer objects in use than the trace does. The value is
    /// `None` if no table contains the cache.
    pub unseen_frees: Option<u64>,
    /// The change, during the workload, of the number of objects in use in the site's cache, from the
    /// kernel's tables.
    pub kernel_change: Option<i64>,
    /// The most likely reason why the call site has live objects.
    pub looks_like: LeakGuess,
}

impl LiveSite {
    /// Describes why the site has live objects, and how many of these objects the kernel freed without an
    /// event.
    fn looks_like(&self) -> String {
        let unseen = self.unseen_frees.filter(|unseen| *unseen > 0);
        let unseen = unseen.map(|unseen| format!("up to {} of them freed without an event", grouped(unseen)));
        match (self.looks_like, unseen) {
            (LeakGuess::FreedUnseen, Some(unseen)) => unseen,
            (guess, Some(unseen)) if guess.words().is_empty() => unseen,
            (guess, Some(unseen)) => format!("{}; {unseen}", guess.words()),
            (guess, None) => guess.words().to_owned(),
        }
    }
}

/// The live objects that one command allocated.
#[derive(Debug, Serialize)]
pub struct LiveCommand {
    /// The name of the command.
    pub command: String,
    /// The number of live objects.
    pub objects: u64,
    /// The bytes of the live objects.
    pub bytes: u64,
    /// The call site at which the command allocated the most live bytes.
    pub call_site: String,
}

/// The live objects that the tasks of one control group allocated.
#[derive(Debug, Serialize)]
pub struct LiveGroup {
    /// Path of the control group.
    pub group: String,
    /// Number of live objects of the group.
    pub objects: u64,
    /// Number of bytes of the group's live objects.
    pub bytes: u64,
    /// The command with the most live bytes in the group.
    pub command: String,
    /// The call site with the most live bytes in the group.
    pub call_site: String,
}

/// The likely reason why a call site has live objects, judged by the objects' ages and the kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeakGuess {
    /// Each quarter, except perhaps the first, adds objects that are not freed: a leak, or a growing cache.
    Growing,
    /// Each quarter adds the same number of objects, but these objects are freed without an event: by
    /// `kfree_rcu` or in bulk.
    FreedUnseen,
    /// Nearly all live objects are from the first quarter, so the site allocated them once.
    Settled,
    /// Nearly all live objects are from the last quarter, so they may be freed soon.
    Recent,
    /// The ages of the objects match no other pattern.
    Mixed,
}

impl LeakGuess {
    fn of(by_quarter: [u64; PARTS], allocations: u64) -> Self {
        let live: u64 = by_quarter.iter().sum();
        let most = |part: u64| part * 10 >= live * 9;
        let [first, .., last] = by_quarter;
        // A leak leaves at least a tenth of an even share in each quarter, and at least a twentieth of the site's
        // allocations. A leak that begins in the second quarter leaves nearly all of them.
        let is_spread = |parts: &[u64]| parts.iter().all(|part| part * 10 * parts.len() as u64 >= live);
        let is_leak = is_spread(&by_quarter) && live * 20 >= allocations
            || is_spread(&by_quarter[1..]) && live * 10 >= allocations * 9;
        if live >= 2 * PARTS as u64 && is_leak {
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
            Self::FreedUnseen => "freed without an event",
            Self::Settled => "made once",
            Self::Recent => "recent",
            Self::Mixed => "",
        }
    }
}

/// The slabs of a cache that are only partly in use.
#[derive(Debug, Serialize)]
pub struct Pinned {
    /// The name of the cache.
    pub cache: String,
    /// The number of the cache's partial slabs: slabs that were allocated in the trace, and have both free
    /// and live objects.
    pub slabs: u64,
    /// The number of bytes in the free objects of the cache's partial slabs.
    pub holes: u64,
    /// The number of the cache's slabs that a single live object keeps from being freed.
    pub by_one: u64,
    /// The age in seconds of a slab's youngest live object: the median over the cache's partial slabs.
    pub youngest_seconds: f64,
    /// The age in seconds of a slab's oldest live object: the median over the cache's partial slabs.
    pub oldest_seconds: f64,
    /// The call site with the most objects in slabs that are at most a quarter in use.
    pub site: Option<String>,
    /// The partial slabs of the cache; the slab with the most bytes in holes comes first.
    pub partial: Vec<PartialSlab>,
}

/// A slab that live objects keep from being freed.
#[derive(Debug, Serialize)]
pub struct PartialSlab {
    /// Number of the slab's first page frame.
    pub pfn: u64,
    /// Number of the slab's live objects.
    pub objects: u64,
    /// Number of objects that the slab has room for.
    pub room: u64,
    /// Age of the slab's youngest live object, in seconds.
    pub youngest_seconds: f64,
    /// Age of the slab's oldest live object, in seconds.
    pub oldest_seconds: f64,
    /// The call site of the slab's oldest object.
    pub call_site: String,
}

/// Functions that provide the names and counts for a [`Live`].
pub(crate) struct Names<'n> {
    pub(crate) site: &'n dyn Fn(u32) -> String,
    pub(crate) allocations: &'n dyn Fn(u32) -> u64,
    /// The number of a site's objects that were freed without an event.
    pub(crate) hidden_frees: &'n dyn Fn(u32) -> u64,
    /// Returns the change of a cache's objects in use between the kernel's tables before and after the
    /// workload.
    pub(crate) tables: &'n dyn Fn(&str) -> Option<&'n SlabinfoChange>,
    pub(crate) cache: &'n dyn Fn(u32) -> String,
    pub(crate) task: &'n dyn Fn(u32) -> String,
    pub(crate) page_of: &'n dyn Fn(Ptr) -> Option<Pfn>,
    pub(crate) page_bytes: u64,
    /// The times of the trace's first and last event.
    pub(crate) times: (u64, u64),
    /// The times at which the workload begins and ends.
    pub(crate) workload: Option<(u64, u64)>,
}

impl Live {
    pub(crate) fn new(objects: &[Object], slabs: &Slabs, names: &Names<'_>) -> Self {
        let begin = names.workload.map_or(0, |(begin, _)| begin);
        let later: Vec<&Object> = objects.iter().filter(|object| object.time_ns >= begin).collect();
        let mut sites = sites(&later, names);
        attribute_hidden_frees(&mut sites, names);
        Self {
            verdicts: verdicts(&sites, names),
            of_workload: names.workload.is_some(),
            objects: later.len() as u64,
            bytes: later.iter().map(|object| u64::from(object.bytes)).sum(),
            kmalloc_bytes: kmalloc_bytes(&later, names),
            older: sum_objects_before_workload(objects, begin, names),
            sites,
            commands: commands(&later, names),
            groups: groups(&later, names),
            pinned: pinned(objects, slabs, names),
        }
    }
}

fn kmalloc_bytes(objects: &[&Object], names: &Names<'_>) -> u64 {
    let mut by_cache = FxHashMap::<u32, u64>::default();
    objects.iter().for_each(|object| *by_cache.entry(object.cache).or_default() += u64::from(object.bytes));
    let kmalloc = by_cache.into_iter().filter(|(cache, _)| is_kmalloc(&(names.cache)(*cache)));
    kmalloc.map(|(_, bytes)| bytes).sum()
}

/// Sums the objects that were allocated before the workload began. Returns `None` if no object was allocated
/// before the workload.
fn sum_objects_before_workload(objects: &[Object], begin: u64, names: &Names<'_>) -> Option<Older> {
    let older: Vec<&Object> = objects.iter().filter(|object| object.time_ns < begin).collect();
    let sites = sites(&older, names);
    let of_kmalloc = sites.iter().find(|site| is_kmalloc(&site.cache));
    let most = of_kmalloc.or(sites.first())?;
    Some(Older {
        objects: older.len() as u64,
        bytes: sites.iter().map(|site| site.bytes).sum(),
        kmalloc_bytes: kmalloc_bytes(&older, names),
        call_site: most.call_site.clone(),
        call_site_bytes: most.bytes,
    })
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
            hidden_frees: (names.hidden_frees)(site),
            unseen_frees: None,
            kernel_change: None,
            looks_like: LeakGuess::of(sum.by_quarter, allocations),
        }
    };
    let mut sites: Vec<_> = sums.into_iter().map(site).collect();
    sites.sort_by(|a, b| (b.bytes, &a.call_site).cmp(&(a.bytes, &b.call_site)));
    sites
}

/// Compares the call sites that seem to grow with the kernel's tables. If the tables show a smaller increase of objects
/// in use than the trace, the difference was freed without an event. The difference is first attributed to call sites
/// that have other objects freed without an event. If no table contains the cache, the site's number of frees without
/// an event decides.
fn attribute_hidden_frees(sites: &mut [LiveSite], names: &Names<'_>) {
    let mut by_cache = BTreeMap::<String, Vec<&mut LiveSite>>::new();
    for site in sites {
        by_cache.entry(site.cache.clone()).or_default().push(site);
    }
    for (cache, mut sites) in by_cache {
        let change = (names.tables)(&cache);
        // Allocations less frees by the trace, and by the tables.
        let mut unseen =
            change.map(|change| change.corrected.saturating_sub(change.real).max(0).unsigned_abs());
        sites.sort_by_key(|site| Reverse((site.hidden_frees * 1000 / site.allocations.max(1), site.objects)));
        for site in sites {
            site.kernel_change = change.map(|change| change.real);
            site.unseen_frees = unseen.map(|unseen| unseen.min(site.objects));
            unseen = unseen.zip(site.unseen_frees).map(|(unseen, here)| unseen - here);
            if site.looks_like != LeakGuess::Growing {
                continue;
            }
            let seen_frees = site.allocations.saturating_sub(site.objects + site.hidden_frees);
            let is_freed = match site.unseen_frees {
                Some(unseen) => unseen * 2 >= site.objects,
                None => site.hidden_frees * 20 >= site.allocations && site.hidden_frees >= seen_frees,
            };
            if is_freed {
                site.looks_like = LeakGuess::FreedUnseen;
            }
        }
    }
}

/// The largest number of verdicts of each kind that the report shows.
const MAX_SHOWN_VERDICTS: usize = 5;

fn verdicts(sites: &[LiveSite], names: &Names<'_>) -> Vec<String> {
    let of = if names.workload.is_some() { "workload" } else { "trace" };
    let (begin, last) = names.workload.unwrap_or(names.times);
    let that = |looks| sites.iter().filter(move |site| site.looks_like == looks);
    let growing = that(LeakGuess::Growing).take(MAX_SHOWN_VERDICTS).map(|site| {
        let begins = format!(
            "{} keeps {} of {}: {} of its {} allocations were not freed. These include allocations from each quarter of the {of}{}.",
            site.call_site,
            size(site.bytes),
            site.cache,
            grouped(site.objects),
            grouped(site.allocations),
            if site.by_quarter[0] == 0 { " from the second one on" } else { "" }
        );
        begins
            + &match site.kernel_change {
                Some(change) => format!(
                    " According to the kernel's tables, {} has {} {} objects in use.",
                    site.cache,
                    grouped(change.unsigned_abs()),
                    if change < 0 { "fewer" } else { "more" }
                ),
                None => String::new(),
            }
    });
    let freed = that(LeakGuess::FreedUnseen).take(MAX_SHOWN_VERDICTS).map(|site| {
        let begins = format!(
            "{} is no leak in this trace: {} of its objects of {} have no free in the trace, but ",
            site.call_site,
            grouped(site.objects),
            site.cache
        );
        begins
            + &match (site.kernel_change, site.unseen_frees) {
                (Some(change), Some(unseen)) => format!(
                    "according to the kernel's tables, the cache has {} {} in use, so {} were freed without an event (by kfree_rcu, or in bulk).",
                    grouped(change.unsigned_abs()),
                    if change < 0 { "fewer" } else { "more" },
                    grouped(unseen)
                ),
                _ => format!(
                    "{} other objects were freed without an event (by kfree_rcu, or in bulk), so these objects may also have been freed.",
                    grouped(site.hidden_frees)
                ),
            }
    });
    let mut verdicts: Vec<String> = growing.collect();
    verdicts.push(if verdicts.is_empty() {
        format!(
            "No call site leaks in this trace. A leak has live objects from each quarter of the {of}, and the kernel's tables do not contradict it."
        )
    } else {
        format!(
            "Objects that live longer than this {of} ({:.1} s) look like a leak, and so does a cache that is still filling.",
            seconds(last.saturating_sub(begin))
        )
    });
    verdicts.extend(freed);
    verdicts
}

/// Splits the text of a task into its command and its control group: `sh in /user.slice`.
fn split_task_text(task: &str) -> (&str, Option<&str>) {
    match task.rsplit_once(" in /") {
        Some((command, group)) => (command, task.get(task.len() - group.len() - 1..)),
        None => (task, None),
    }
}

/// Live objects of a command or a control group.
#[derive(Default)]
struct Share {
    objects: u64,
    bytes: u64,
    sites: FxHashMap<u32, u64>,
    commands: BTreeMap<String, u64>,
}

/// Sums the live objects by a `key` of their tasks.
fn sum_by_task(
    objects: &[&Object],
    names: &Names<'_>,
    key: impl Fn(&str) -> Option<&str>,
) -> Vec<(String, String, Share)> {
    let mut tasks = FxHashMap::<u32, Option<(String, String)>>::default();
    let mut sums = BTreeMap::<String, Share>::new();
    for (object, task) in objects.iter().filter_map(|object| Some((object, object.task?))) {
        let task = tasks.entry(task).or_insert_with(|| {
            let task = (names.task)(task);
            Some((key(&task)?.to_owned(), split_task_text(&task).0.to_owned()))
        });
        let Some((key, command)) = task else { continue };
        let sum = sums.entry(key.clone()).or_default();
        sum.objects += 1;
        sum.bytes += u64::from(object.bytes);
        *sum.sites.entry(object.call_site).or_default() += u64::from(object.bytes);
        *sum.commands.entry(command.clone()).or_default() += u64::from(object.bytes);
    }
    let mut sums: Vec<_> = sums
        .into_iter()
        .map(|(key, sum)| {
            let site = sum.sites.iter().max_by_key(|(site, bytes)| (**bytes, Reverse(**site)));
            (key, site.map_or_else(String::new, |(site, _)| (names.site)(*site)), sum)
        })
        .collect();
    sums.sort_by(|(a, _, one), (b, _, other)| (other.bytes, a).cmp(&(one.bytes, b)));
    sums
}

fn commands(objects: &[&Object], names: &Names<'_>) -> Vec<LiveCommand> {
    let shares = sum_by_task(objects, names, |task| Some(split_task_text(task).0));
    let row = |(command, call_site, sum): (String, String, Share)| LiveCommand {
        command,
        objects: sum.objects,
        bytes: sum.bytes,
        call_site,
    };
    shares.into_iter().map(row).collect()
}

fn groups(objects: &[&Object], names: &Names<'_>) -> Vec<LiveGroup> {
    let shares = sum_by_task(objects, names, |task| split_task_text(task).1);
    let row = |(group, call_site, sum): (String, String, Share)| {
        let command = sum.commands.iter().max_by_key(|(command, bytes)| (**bytes, Reverse(*command)));
        LiveGroup {
            group,
            objects: sum.objects,
            bytes: sum.bytes,
            command: command.map_or_else(String::new, |(command, _)| command.clone()),
            call_site,
        }
    };
    shares.into_iter().map(row).collect()
}

fn pinned(objects: &[Object], slabs: &Slabs, names: &Names<'_>) -> Vec<Pinned> {
    #[derive(Default)]
    struct Slab {
        cache: u32,
        bytes: u64,
        room: u64,
        youngest: u64,
        /// The time and the call site of a group's oldest object.
        oldest: Option<(u64, u32)>,
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
        let born = (object.time_ns, object.call_site);
        slab.oldest = Some(slab.oldest.map_or(born, |oldest| oldest.min(born)));
        slab.sites.push(object.call_site);
    }
    #[derive(Default)]
    struct Sum {
        slabs: u64,
        holes: u64,
        by_one: u64,
        ages: Vec<u64>,
        oldest: Vec<u64>,
        sites: FxHashMap<u32, u64>,
        partial: Vec<PartialSlab>,
    }
    let mut sums = FxHashMap::<u32, Sum>::default();
    let age = |time: u64| names.times.1.saturating_sub(time);
    for (pfn, slab) in by_slab {
        let used = slab.sites.len() as u64;
        let Some(holes) = slab.room.checked_sub(used).filter(|holes| *holes > 0) else { continue };
        let sum = sums.entry(slab.cache).or_default();
        sum.slabs += 1;
        sum.holes += holes * slab.bytes;
        sum.by_one += u64::from(used == 1);
        let (oldest, site) = slab.oldest.unwrap_or_default();
        sum.ages.push(age(slab.youngest));
        sum.oldest.push(age(oldest));
        sum.partial.push(PartialSlab {
            pfn,
            objects: used,
            room: slab.room,
            youngest_seconds: seconds(age(slab.youngest)),
            oldest_seconds: seconds(age(oldest)),
            call_site: (names.site)(site),
        });
        if used * 4 <= slab.room {
            slab.sites.iter().for_each(|site| *sum.sites.entry(*site).or_default() += 1);
        }
    }
    let row = |(cache, mut sum): (u32, Sum)| {
        sum.ages.sort_unstable();
        sum.oldest.sort_unstable();
        sum.partial.sort_by_key(|slab| (Reverse(slab.room - slab.objects), slab.pfn));
        let site = sum.sites.iter().max_by_key(|(site, count)| (**count, Reverse(**site)));
        Pinned {
            cache: (names.cache)(cache),
            slabs: sum.slabs,
            holes: sum.holes,
            by_one: sum.by_one,
            youngest_seconds: seconds(sum.ages[sum.ages.len() / 2]),
            oldest_seconds: seconds(sum.oldest[sum.oldest.len() / 2]),
            partial: sum.partial,
            site: site.map(|(site, _)| (names.site)(*site)),
        }
    };
    let mut pinned: Vec<_> = sums.into_iter().map(row).collect();
    pinned.sort_by(|a, b| (b.holes, &a.cache).cmp(&(a.holes, &b.cache)));
    pinned
}

impl Live {
    pub(super) fn write_page(&self, out: &mut String, rows: usize) -> fmt::Result {
        let of = if self.of_workload { "workload" } else { "trace" };
        writeln!(out, "\nPossible leaks, by call site")?;
        self.verdicts.iter().try_for_each(|verdict| writeln!(out, "  {verdict}"))?;
        let shown = rows.min(self.sites.len());
        writeln!(
            out,
            "\nStill live at the end: {} in {} objects, of which {} are in kmalloc caches ({shown} of {} call sites, the most bytes first)",
            size(self.bytes),
            grouped(self.objects),
            size(self.kmalloc_bytes),
            grouped(self.sites.len() as u64)
        )?;
        let since = if self.of_workload { "since the workload began" } else { "in the trace" };
        writeln!(
            out,
            "  Allocated {since} and not freed. Objects are grouped by the quarter of the {of} in which they were allocated: a leak has objects from every quarter."
        )?;
        if let Some(Older { objects, bytes, kmalloc_bytes, call_site, call_site_bytes }) = &self.older {
            writeln!(
                out,
                "  Objects from before the workload are not shown (`--live all` shows them): {} in {} objects, of which {} are in kmalloc caches. The call site with the most bytes has {}: {call_site}.",
                size(*bytes),
                grouped(*objects),
                size(*kmalloc_bytes),
                size(*call_site_bytes)
            )?;
        }
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
            row.extend([format!("{:.3}", site.oldest_seconds), site.looks_like()]);
            sites.add_row(row);
        }
        out.push_str(&text(&sites));
        self.write_tasks(out, rows)?;
        self.write_partial_slabs(out, rows)
    }

    /// Writes the live objects by process and by control group.
    fn write_tasks(&self, out: &mut String, rows: usize) -> fmt::Result {
        if !self.commands.is_empty() {
            let shown = rows.min(self.commands.len());
            writeln!(
                out,
                "\nLive objects by process ({shown} of {} commands); allocations in an interrupt count for the interrupted command",
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
        if self.groups.is_empty() {
            return Ok(());
        }
        let shown = rows.min(self.groups.len());
        writeln!(out, "\nLive objects by control group ({shown} of {})", grouped(self.groups.len() as u64))?;
        let mut groups = table(&["group", "bytes", "objects", "command", "most by"]);
        for row in &self.groups[..shown] {
            groups.add_row([
                row.group.clone(),
                grouped(row.bytes),
                grouped(row.objects),
                row.command.clone(),
                row.call_site.clone(),
            ]);
        }
        out.push_str(&text(&groups));
        Ok(())
    }

    /// Writes which objects keep slabs partial, first by cache and then by slab.
    fn write_partial_slabs(&self, out: &mut String, rows: usize) -> fmt::Result {
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
            "  Only slabs that were allocated in the trace are counted. age: seconds since a slab's youngest object was allocated; \
             oldest: the same for its oldest object; both are medians over the slabs. site: the call site that allocated the most objects in slabs that are at most a quarter full."
        )?;
        let mut slabs = table(&["cache", "holes", "slabs", "kept by one object", "age", "oldest", "site"]);
        for row in &self.pinned[..shown] {
            slabs.add_row([
                row.cache.clone(),
                size(row.holes),
                grouped(row.slabs),
                grouped(row.by_one),
                format!("{:.3}", row.youngest_seconds),
                format!("{:.3}", row.oldest_seconds),
                row.site.clone().unwrap_or_default(),
            ]);
        }
        out.push_str(&text(&slabs));
        let mut each: Vec<_> =
            self.pinned.iter().flat_map(|row| row.partial.iter().map(|slab| (&row.cache, slab))).collect();
        let all = each.len() as u64;
        // The emptiest first, and of these the oldest.
        each.sort_by(|(_, a), (_, b)| {
            let used = |slab: &PartialSlab| slab.objects as f64 / slab.room as f64;
            used(a)
                .total_cmp(&used(b))
                .then(b.youngest_seconds.total_cmp(&a.youngest_seconds))
                .then(a.pfn.cmp(&b.pfn))
        });
        each.truncate(rows);
        writeln!(
            out,
            "\nThe objects that keep each slab ({} of {}, the emptiest slab first)",
            each.len(),
            grouped(all)
        )?;
        let mut slabs = table(&["slab", "cache", "objects", "of", "youngest s", "oldest s", "oldest by"]);
        for (cache, slab) in each {
            slabs.add_row([
                format!("pfn {:#x}", slab.pfn),
                cache.clone(),
                grouped(slab.objects),
                grouped(slab.room),
                format!("{:.3}", slab.youngest_seconds),
                format!("{:.3}", slab.oldest_seconds),
                slab.call_site.clone(),
            ]);
        }
        out.push_str(&text(&slabs));
        Ok(())
    }
}
