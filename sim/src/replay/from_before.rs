//! Infers which slabs existed when the trace began, from the traced objects in them.

use super::linux;
use super::steps::{find_slabinfo_readings, shrink_target};
use super::traced::TracedInput;
use crate::trace::{CacheId, CacheKind, OpKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// A slab that existed when the trace began, as far as the trace shows it.
pub(super) struct InitialSlab {
    pub(super) cache: CacheId,
    pub(super) objects: u32,
    /// The addresses of the slab's objects that the trace frees.
    pub(super) used: Vec<u64>,
    /// The number of free objects in the slab: objects whose first event is an allocation, and objects that are assumed
    /// to be free.
    pub(super) free: u32,
    /// The number of free objects that are only assumed to be free.
    pub(super) guessed: u32,
    /// The CPU that owns the slab, if any.
    pub(super) owner: Option<u16>,
    /// The first CPU that allocated a free object of the slab.
    first: Option<u16>,
    /// The number of free objects that the slab gained before the kernel wrote the table `before`.
    gained: i64,
    /// `true` if the kernel had freed the slab's page before it wrote the table `before`.
    is_gone: bool,
}

impl InitialSlab {
    fn new(cache: CacheId, objects: u32) -> Self {
        Self {
            cache,
            objects,
            used: vec![],
            free: 0,
            guessed: 0,
            owner: None,
            first: None,
            gained: 0,
            is_gone: false,
        }
    }
    /// Returns `true` if no object of the slab is in the trace.
    pub(super) fn has_no_traced_object(&self) -> bool {
        self.used.is_empty() && self.first.is_none()
    }
}

/// Infers the slabs that existed before the trace, in the order in which the kernel allocates from them.
/// On a page from before the trace, the first event of an address shows the initial state of the object there. If the
/// first event of an address is an allocation, the object was free when the trace began; if the first event is a free,
/// the object was in use.
///
/// If an object has no event, the trace does not show its state. The kernel's table `before` gives the number of free
/// objects without an event. Free objects without an event are assigned to slabs from which the kernel did not
/// allocate. The free objects without an event are spread over as many slabs as sysfs counts on the partial list.
/// Without the kernel's table, objects without an event count as in use until the kernel frees their page.
pub(super) fn initial_slabs_of_trace(traced: TracedInput<'_>) -> Vec<InitialSlab> {
    let TracedInput { resolver, ops, tables } = traced;
    let Some(slabinfo) = tables.latest_slabinfo() else { return vec![] };
    let (before, is_shrunk) = before_snapshot_operation(traced);
    let (mut handed_out, mut seen) = (FxHashSet::default(), FxHashSet::default());
    let (mut places, mut pages, mut slabs) = (FxHashMap::default(), FxHashMap::default(), Vec::new());
    // The slabs created until the moment `before`, by first page, with their cache and objects in use.
    let mut made: FxHashMap<u64, (CacheId, i64)> = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        let (cache, ptr, taken) = match op.kind {
            OpKind::Alloc { cache, ptr, .. } => (cache, ptr, true),
            OpKind::Free { cache, ptr, .. } | OpKind::HiddenFree { cache, ptr, .. } => (cache, ptr, false),
            OpKind::PageAlloc { pfn, order, .. } | OpKind::PageFree { pfn, order, .. } => {
                for page in pfn.0..pfn.0 + (1 << order) {
                    if at < before {
                        made.remove(&page);
                    }
                    if handed_out.insert(page)
                        && let Some(slab) = pages.get(&page)
                    {
                        // No object of the freed slab was in use, so unknown objects were free.
                        let slab: &mut InitialSlab = &mut slabs[*slab];
                        slab.free = slab.objects - slab.used.len() as u32;
                        slab.is_gone = at < before;
                    }
                }
                continue;
            }
            OpKind::Mark { .. } => continue,
        };
        let Some(page) = resolver.page_of(ptr) else { continue };
        let info = resolver.cache(cache);
        let Some(row) = slabinfo.get(&info.name).filter(|_| info.kind != CacheKind::KmallocLarge) else {
            continue;
        };
        let block = page.0 / row.pages_per_slab;
        if handed_out.contains(&page.0) {
            if at < before {
                let (_, used) = made.entry(block * row.pages_per_slab).or_insert((cache, 0));
                *used += if taken { 1 } else { -1 };
            }
            continue;
        }
        let place = *places.entry((cache, block)).or_insert_with(|| {
            let objects = row.objects_per_slab as u32;
            slabs.push(InitialSlab::new(cache, objects));
            slabs.len() - 1
        });
        let slab = &mut slabs[place];
        if at < before {
            slab.gained += if taken { -1 } else { 1 };
        }
        if !seen.insert(ptr.0) {
            continue;
        }
        pages.insert(page.0, place);
        if slab.used.len() as u32 + slab.free < slab.objects {
            if taken {
                slab.free += 1;
                slab.first.get_or_insert(op.cpu);
            } else {
                slab.used.push(ptr.0);
            }
        }
    }
    if !is_shrunk {
        find_cpu_slabs(traced, &mut slabs);
    }
    add_unseen_free_objects(traced, &mut slabs, &made);
    slabs
}

/// Returns the operation at which the kernel wrote its table `before`; also returns `true` if caches had been shrunk
/// before.
fn before_snapshot_operation(traced: TracedInput<'_>) -> (usize, bool) {
    let TracedInput { resolver, ops, .. } = traced;
    let mut is_shrunk = false;
    for (at, op) in ops.iter().enumerate() {
        if let OpKind::Mark { text } = op.kind {
            let text = resolver.mark(text);
            is_shrunk |= text.starts_with("SHRINK ") && shrink_target(&text).is_none();
            if text == "SNAP before begin" {
                return (find_slabinfo_readings(traced).get(&at).copied().unwrap_or(at), is_shrunk);
            }
        }
    }
    (0, is_shrunk)
}

/// Finds the slabs that CPUs own: a CPU's current slab is the slab from which it allocates first. The slabs from which
/// a CPU allocates next are assumed to be on its partial list, up to the length of that list in sysfs.
fn find_cpu_slabs(TracedInput { resolver, tables, .. }: TracedInput<'_>, slabs: &mut [InitialSlab]) {
    let attributes = &tables.kernel.attributes;
    let counters = tables.at("before").map(|before| &before.counters);
    let mut owned: FxHashMap<(CacheId, u16), u64> = FxHashMap::default();
    for slab in slabs {
        let Some(cpu) = slab.first else { continue };
        let name = &resolver.cache(slab.cache).name;
        // A CPU with sheaves begins with objects of any slab.
        if linux::sheaf_capacity(&tables.kernel, name).is_some() {
            continue;
        }
        let partial =
            counters.map_or(0, |counters| counters.cpu_partial_slabs(attributes.folder(name), cpu.into()));
        let owned = owned.entry((slab.cache, cpu)).or_default();
        if *owned < 1 + partial {
            *owned += 1;
            slab.owner = Some(cpu);
        }
    }
}

/// Adds free objects that have no event but are counted in the kernel's table `before`. A trace that begins
/// at boot contains the creation of most slabs, so their free objects are already known.
fn add_unseen_free_objects(
    TracedInput { resolver, tables, .. }: TracedInput<'_>,
    slabs: &mut Vec<InitialSlab>,
    made: &FxHashMap<u64, (CacheId, i64)>,
) {
    #[derive(Default)]
    struct ObservedState {
        /// The numbers of free objects, of slabs with free objects, and of all slabs; the first two exclude slabs that
        /// CPUs own.
        free: i64,
        partial: i64,
        slabs: i64,
        /// The slabs without a known free object.
        full: Vec<usize>,
    }
    let Some(before) = tables.at("before") else { return };
    let Some(slabinfo) = &before.slabinfo else { return };
    if 2 * made.len() as u64 > slabinfo.rows.iter().map(|row| row.slabs).sum() {
        return;
    }
    let mut shown: FxHashMap<CacheId, ObservedState> = FxHashMap::default();
    for (number, slab) in slabs.iter().enumerate().filter(|(_, slab)| !slab.is_gone) {
        let shown = shown.entry(slab.cache).or_default();
        shown.slabs += 1;
        if slab.owner.is_none() {
            let free = (i64::from(slab.free) + slab.gained).clamp(0, slab.objects.into());
            shown.free += free;
            shown.partial += i64::from(free > 0);
            if free == 0 && slab.used.len() < slab.objects as usize {
                shown.full.push(number);
            }
        }
    }
    let objects = |cache: CacheId| {
        slabinfo.get(&resolver.cache(cache).name).map_or(0, |row| row.objects_per_slab as i64)
    };
    for (cache, used) in made.values() {
        let shown = shown.entry(*cache).or_default();
        let free = (objects(*cache) - used).max(0);
        shown.slabs += 1;
        shown.free += free;
        shown.partial += i64::from(free > 0);
    }
    for (info, cache) in resolver.caches().iter().zip(0..).map(|(info, number)| (info, CacheId(number))) {
        let Some(row) = slabinfo.get(&info.name).filter(|_| info.kind != CacheKind::KmallocLarge) else {
            continue;
        };
        let shown = shown.remove(&cache).unwrap_or_default();
        let objects = row.objects_per_slab.max(1);
        let free = (row.objects as i64 - row.active_objects as i64 - shown.free).max(0) as u64;
        let unseen = (row.slabs as i64 - shown.slabs).max(0) as u64;
        let candidates = unseen + shown.full.len() as u64;
        if free == 0 || candidates == 0 {
            continue;
        }
        let counted = before.counters.count(tables.kernel.attributes.folder(&info.name), "partial");
        // Half of a partial slab is assumed free if no counter exists.
        let partial = counted.map_or(2 * free / objects, |all| (all as i64 - shown.partial).max(0) as u64);
        let partial = partial.max(free.div_ceil(objects)).clamp(1, candidates);
        let free = free.min(partial * objects);
        let of_seen = partial * shown.full.len() as u64 / candidates;
        for n in 0..partial {
            let free = (free * (n + 1) / partial - free * n / partial) as u32;
            if n < of_seen {
                let slab = &mut slabs[shown.full[(n * shown.full.len() as u64 / of_seen) as usize]];
                slab.free = free.min(slab.objects - slab.used.len() as u32);
                slab.guessed = slab.free;
            } else {
                slabs.push(InitialSlab { free, guessed: free, ..InitialSlab::new(cache, objects as u32) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};

    #[test]
    fn first_use_of_an_address_determines_its_initial_state() {
        let trace = Trace::new(
            &[
                // Page 4096 has one free object, which is allocated twice, and one object in use.
                "0 alloc f+0x1 node ffff888001000000",
                "0 free node ffff888001000000",
                "0 alloc f+0x1 node ffff888001000000",
                "0 free node ffff888001000200",
                // Page 4097 was allocated in the trace.
                "0 page 4097",
                "0 alloc f+0x1 node ffff888001001000",
                // Page 4098 is freed, so its unknown objects were free.
                "0 free node ffff888001002400",
                "0 unpage 4098",
                "0 page 4098",
                "0 alloc f+0x1 node ffff888001002000",
            ],
            &[("before.slabinfo", SLABINFO)],
        );
        let slabs = initial_slabs_of_trace(trace.traced());
        let found: Vec<_> = slabs.into_iter().map(|slab| (slab.objects, slab.used, slab.free)).collect();
        assert_eq!(found, [(8, vec![0xffff_8880_0100_0200], 1), (8, vec![0xffff_8880_0100_2400], 7)]);
        let without_tables = Trace::new(&["0 alloc f+0x1 node ffff888001000000"], &[]);
        assert!(initial_slabs_of_trace(without_tables.traced()).is_empty());
    }

    #[test]
    fn unseen_free_objects_are_spread_over_partial_slabs() {
        let table = SLABINFO.replace(
            "5 8 512 8 1 : tunables 0 0 0 : slabdata 1 1",
            "36 64 512 8 1 : tunables 0 0 0 : slabdata 8 8",
        );
        let counters = "name\tpartial\tslabs_cpu_partial\nnode\t6 N0=6\t8(1) C0=8(1)\n";
        let lines = [
            "0 mark SNAP before begin",
            "0 alloc f+0x1 node ffff888001000000", // the current slab of CPU 0,
            "0 alloc f+0x1 node ffff888001001000", // its partial one,
            "0 alloc f+0x1 node ffff888001002000", // the list's first one
            "1 free node ffff888001003000",
        ];
        let texts = [("before.slabinfo", &*table), ("before.sysfs-slab.tsv", counters)];
        let found = |texts: &[(&str, &str)]| {
            let slabs = initial_slabs_of_trace(Trace::new(&lines, texts).traced());
            slabs
                .into_iter()
                .map(|slab| (slab.owner, slab.used.len(), slab.free, slab.guessed))
                .collect::<Vec<_>>()
        };
        let (own, shown) = ((Some(0), 0, 1, 0), (None, 0, 1, 0));
        // 28 objects are free, 27 of them not in the trace: in five more partial slabs, including the slab to which an
        // object was freed.
        let unseen = [5, 6, 5, 6].map(|free| (None, 0, free, free));
        let expected: Vec<_> = [own, own, shown, (None, 1, 5, 5)].into_iter().chain(unseen).collect();
        assert_eq!(found(&texts), expected);
        // Without counters a CPU has its current slab, and half of a partial slab is free.
        let found = found(&texts[..1]);
        let guessed: Vec<_> = found.iter().map(|slab| slab.3).collect();
        assert_eq!((&found[..3], guessed.iter().sum::<u32>()), (&[own, shown, shown][..], 26));
    }
}
