//! Infers when allocations and frees happened whose event is missing or out of order.

use super::linux;
use super::steps::shrink_target;
use super::traced::{TracedInput, function};
use crate::trace::{CacheId, FreeOrigin, HiddenFreeEvidence, Op, OpKind, Ptr, SiteId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Sorts the events of each object into the order in which they must have happened. A trace has some events of
/// different CPUs in the wrong order, which looks like a hidden free and then a hidden allocation.
///
/// - In `alloc, alloc, free, free`, the first free really happened before the second allocation.
/// - In `free, alloc, alloc`, the free really happened after the first allocation, unless an earlier allocation is
///   known.
pub(super) fn sort_object_events(ops: &mut Vec<Op>) {
    /// The state of an object after its last event; each number is the index of an operation.
    enum LastEvent {
        /// The trace shows a free of the object, but no earlier allocation.
        Early(usize),
        /// The trace shows a free of the object, and a later allocation at the same address.
        EarlyThenAlloc(usize, usize),
        /// The object was freed without an event; the number is the index of the next allocation at its
        /// address.
        Reused(usize),
        /// The object was freed without an event; the numbers are the indices of the next allocation at its
        /// address, and of the free of that allocation.
        ReusedThenFree(usize, usize),
    }
    let mut seen: FxHashMap<u64, LastEvent> = FxHashMap::default();
    let mut moved = FxHashMap::default();
    for at in 0..ops.len() {
        match ops[at].kind {
            OpKind::HiddenFree { ptr, sign: HiddenFreeEvidence::Reused, .. } => {
                if let Some(LastEvent::EarlyThenAlloc(free, alloc)) =
                    seen.insert(ptr.0, LastEvent::Reused(at))
                {
                    moved.insert(alloc, free);
                    seen.remove(&ptr.0);
                }
            }
            OpKind::HiddenFree { ptr, .. } => _ = seen.remove(&ptr.0),
            OpKind::Alloc { ptr, .. } => match seen.remove(&ptr.0) {
                Some(LastEvent::Early(free)) => _ = seen.insert(ptr.0, LastEvent::EarlyThenAlloc(free, at)),
                Some(LastEvent::Reused(free)) if free + 1 == at => {
                    _ = seen.insert(ptr.0, LastEvent::Reused(free))
                }
                _ => {}
            },
            OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } => {
                if let Some(LastEvent::Reused(free)) = seen.remove(&ptr.0) {
                    seen.insert(ptr.0, LastEvent::ReusedThenFree(free, at));
                }
            }
            OpKind::Free { cache, ptr, origin } => {
                if let Some(LastEvent::ReusedThenFree(hidden, free)) =
                    seen.insert(ptr.0, LastEvent::Early(at))
                {
                    ops[hidden].cpu = ops[free].cpu;
                    // Objects from before the trace are not freed.
                    let nothing = OpKind::Free { cache, ptr, origin: FreeOrigin::PreTrace };
                    ops[at].kind = core::mem::replace(&mut ops[free].kind, nothing);
                    seen.remove(&ptr.0);
                }
                if origin == FreeOrigin::PreTrace {
                    seen.remove(&ptr.0);
                }
            }
            _ => {}
        }
    }
    if moved.is_empty() {
        return;
    }
    let early: FxHashSet<_> = moved.values().copied().collect();
    let all = core::mem::take(ops);
    for (at, op) in all.iter().enumerate() {
        if early.contains(&at) {
            continue;
        }
        ops.push(*op);
        if let Some(free) = moved.get(&at)
            && let OpKind::Free { cache, ptr, .. } = all[*free].kind
        {
            let origin = FreeOrigin::Matched { alloc_cpu: op.cpu };
            ops.push(Op { kind: OpKind::Free { cache, ptr, origin }, time_ns: op.time_ns, ..all[*free] });
        }
    }
}

/// Finds when objects were passed to `kfree_rcu`, which writes no event; returns the objects' addresses by operation.
///
/// Some functions allocate two objects directly after each other. Two such objects are companions: if no free of one is
/// traced for its call site, the free of the other is used for both. For example, `kernfs_fop_open` allocates one
/// structure for the open file, and one structure that an inode keeps for all its open files. Before 7.0, `kfree_rcu`
/// collects objects for five seconds. An object without a companion is assumed to live until its address is allocated
/// again.
pub(super) fn deaths(TracedInput { resolver, ops, tables }: TracedInput<'_>) -> FxHashMap<usize, Vec<u64>> {
    const KFREE_RCU_DELAY_NS: u64 = 5_000_000_000;
    /// The largest number of operations between the allocations of an object and its companion.
    const MAX_COMPANION_DISTANCE: usize = 8;
    let collected = if linux::is_linux_7(&tables.kernel) { 0 } else { KFREE_RCU_DELAY_NS };
    struct ObjectLife {
        site: SiteId,
        ptr: u64,
        /// The index of the companion's life; the companion is the object that the same function allocated directly
        /// before.
        companion: Option<usize>,
        /// The operation that ends the object's life, if any.
        end: usize,
        is_seen: bool,
    }
    let (mut lives, mut live) = (Vec::<ObjectLife>::new(), FxHashMap::default());
    let (mut last, mut functions) = (FxHashMap::default(), FxHashMap::default());
    let mut sites: FxHashMap<SiteId, [usize; 3]> = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { ptr, site, .. } => {
                let name =
                    functions.entry(site).or_insert_with(|| function(&resolver.call_site(site)).to_owned());
                let before = last.insert((op.cpu, name.clone()), (at, lives.len()));
                sites.entry(site).or_default()[0] += 1;
                let before =
                    before.filter(|(then, _)| at - then <= MAX_COMPANION_DISTANCE).map(|(_, life)| life);
                live.insert(ptr.0, lives.len());
                lives.push(ObjectLife {
                    site,
                    ptr: ptr.0,
                    companion: before,
                    end: ops.len(),
                    is_seen: false,
                });
            }
            OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } | OpKind::HiddenFree { ptr, .. } => {
                if let Some(life) = live.remove(&ptr.0) {
                    let life: &mut ObjectLife = &mut lives[life];
                    life.end = at;
                    life.is_seen = matches!(op.kind, OpKind::Free { .. });
                    sites.entry(life.site).or_default()[1 + usize::from(life.is_seen)] += 1;
                }
            }
            _ => {}
        }
    }
    let mut found: FxHashMap<usize, Vec<u64>> = FxHashMap::default();
    // A few frees may have events: an address that was allocated without an event is freed with one.
    let is_hidden =
        |site| sites.get(&site).is_some_and(|[all, hidden, seen]| hidden * 10 > *all && seen * 20 < *all);
    for life in lives.iter().filter(|life| is_hidden(life.site)) {
        let Some(companion) = life.companion.map(|companion| &lives[companion]).filter(|life| life.is_seen)
        else {
            continue;
        };
        let then = ops[companion.end].time_ns + collected;
        let at = match collected {
            0 => companion.end,
            _ => ops.partition_point(|op| op.time_ns < then),
        };
        if at < life.end {
            found.entry(at).or_default().push(life.ptr);
        }
    }
    found
}

/// An allocation or free that has no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HiddenOperation {
    /// The operation directly before the hidden operation.
    pub(super) after: usize,
    pub(super) cpu: u16,
    pub(super) what: HiddenOperationKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HiddenOperationKind {
    Alloc(CacheId, Ptr),
    Free(Ptr),
}

/// Finds allocations and frees without an event, in the order of the operations before them.
///
/// The kernel writes no event for bulk allocations. Two rules find bulk allocations in caches that freed at
/// least one object whose allocation is not in the trace.
///
/// - *A CPU leaves its current slab only when no object of the slab is free.* If no event allocated some of these
///   objects, they were therefore allocated in bulk. The first rule applies to caches without sheaves, and only to
///   slabs whose page the trace allocated.
/// - For other caches, the second rule examines new pages. If an object's first event on a new page is a free, the
///   object was allocated with the page, because bulk allocation takes whole new slabs.
pub(super) fn hidden_operations(traced: TracedInput<'_>) -> Vec<HiddenOperation> {
    let TracedInput { resolver, ops, tables } = traced;
    let (shapes, attributes) = (bulk_caches(traced), &tables.kernel.attributes);
    let (mut handed_out, mut seen) = (FxHashMap::default(), FxHashMap::default());
    let mut found = Vec::new();
    let mut current: FxHashMap<(CacheId, u16), u64> = FxHashMap::default();
    let (mut live, mut inferred) = (FxHashSet::default(), FxHashMap::<u64, Vec<u64>>::default());
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::PageAlloc { pfn, order, .. } | OpKind::PageFree { pfn, order, .. } => {
                let is_alloc = matches!(op.kind, OpKind::PageAlloc { .. });
                for page in pfn.0..pfn.0 + (1 << order) {
                    match is_alloc {
                        true => _ = handed_out.insert(page, at),
                        false => _ = handed_out.remove(&page),
                    }
                    let gone = inferred.remove(&page).into_iter().flatten().filter(|ptr| live.remove(ptr));
                    let gone = gone.map(|ptr| HiddenOperation {
                        after: at,
                        cpu: op.cpu,
                        what: HiddenOperationKind::Free(Ptr(ptr)),
                    });
                    found.extend(gone);
                }
            }
            OpKind::Free { cache, ptr, origin } => {
                let last = seen.insert(ptr.0, at);
                let then = resolver.page_of(ptr).and_then(|page| handed_out.get(&page.0).copied());
                if !live.remove(&ptr.0)
                    && origin == FreeOrigin::HiddenAlloc
                    && !shapes.contains_key(&cache)
                    && let Some(then) = then.filter(|then| last.is_none_or(|last| last < *then))
                {
                    found.push(HiddenOperation {
                        after: then,
                        cpu: ops[then].cpu,
                        what: HiddenOperationKind::Alloc(cache, ptr),
                    });
                }
            }
            OpKind::HiddenFree { ptr, .. } => {
                seen.insert(ptr.0, at);
                live.remove(&ptr.0);
            }
            OpKind::Alloc { cache, ptr, .. } => {
                seen.insert(ptr.0, at);
                let Some(shape) = shapes.get(&cache) else { continue };
                // Slabs are blocks of pages, at multiples of their size.
                let begin = ptr.0 & !(shape.bytes - 1);
                let left = current.insert((cache, op.cpu), begin).filter(|left| *left != begin);
                let page = left.and_then(|left| resolver.page_of(Ptr(left)));
                if let Some((left, page)) = left.zip(page.filter(|page| handed_out.contains_key(&page.0))) {
                    for ptr in (0..shape.objects).map(|n| left + n * shape.size) {
                        if live.insert(ptr) {
                            inferred.entry(page.0).or_default().push(ptr);
                            let what = HiddenOperationKind::Alloc(cache, Ptr(ptr));
                            found.push(HiddenOperation { after: at.saturating_sub(1), cpu: op.cpu, what });
                        }
                    }
                }
                live.insert(ptr.0);
            }
            // A CPU can also leave a slab for these reasons.
            OpKind::Mark { text } => {
                let text = resolver.mark(text);
                match shrink_target(&text).map(|cache| attributes.folder(cache)) {
                    Some(folder) => current
                        .retain(|(cache, _), _| attributes.folder(&resolver.cache(*cache).name) != folder),
                    None if text.starts_with("SHRINK ") => current.clear(),
                    None => {}
                }
            }
        }
    }
    found.extend(vectors(traced));
    found.sort_by_key(|hidden| hidden.after);
    found
}

/// Finds the frees of vectors (`slabobj_ext`), which have no event. A vector records, for a slab of accounted
/// objects, which control group pays for each object. `alloc_slab_obj_exts` allocates a vector directly before the
/// first object that needs it. The kernel frees the vector together with the slab of that object.
fn vectors(TracedInput { resolver, ops, .. }: TracedInput<'_>) -> Vec<HiddenOperation> {
    let (mut names, mut latest) = (FxHashMap::default(), FxHashMap::default());
    // The vectors by the page of the object, and the pages by vector.
    let (mut of_page, mut pages) = (FxHashMap::default(), FxHashMap::default());
    let mut found = vec![];
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { ptr, site, .. } => {
                if let Some(page) = pages.remove(&ptr.0) {
                    of_page.remove(&page);
                }
                let is_vector = names
                    .entry(site)
                    .or_insert_with(|| function(&resolver.call_site(site)) == "alloc_slab_obj_exts");
                if *is_vector {
                    latest.insert(op.cpu, ptr.0);
                } else if let Some(vector) = latest.remove(&op.cpu)
                    && let Some(page) = resolver.page_of(ptr)
                {
                    of_page.insert(page.0, vector);
                    pages.insert(vector, page.0);
                }
            }
            OpKind::Free { ptr, .. } | OpKind::HiddenFree { ptr, .. } => {
                if let Some(page) = pages.remove(&ptr.0) {
                    of_page.remove(&page);
                }
            }
            OpKind::PageFree { pfn, order, .. } => {
                for page in pfn.0..pfn.0 + (1 << order) {
                    if let Some(vector) = of_page.remove(&page) {
                        pages.remove(&vector);
                        found.push(HiddenOperation {
                            after: at,
                            cpu: op.cpu,
                            what: HiddenOperationKind::Free(Ptr(vector)),
                        });
                    }
                }
            }
            OpKind::PageAlloc { .. } | OpKind::Mark { .. } => {}
        }
    }
    found
}

/// The sizes of a cache's slabs and objects.
struct Shape {
    /// The size of a slab in bytes, a power of two.
    bytes: u64,
    /// The size of an object in bytes.
    size: u64,
    objects: u64,
}

/// Returns caches without sheaves in which at least one in fifty freed objects was allocated without an event. In other
/// caches, a free without an earlier allocation is caused by the wrong order of events of two CPUs.
fn bulk_caches(TracedInput { resolver, ops, tables }: TracedInput<'_>) -> FxHashMap<CacheId, Shape> {
    let Some(slabinfo) = tables.latest_slabinfo() else { return FxHashMap::default() };
    let mut frees: FxHashMap<CacheId, [u64; 2]> = FxHashMap::default();
    for op in ops {
        if let OpKind::Free { cache, origin, .. } = op.kind {
            let [hidden, all] = frees.entry(cache).or_default();
            *hidden += u64::from(origin == FreeOrigin::HiddenAlloc);
            *all += 1;
        }
    }
    let bulk = frees.into_iter().filter(|(_, [hidden, all])| hidden * 50 > *all);
    bulk.filter_map(|(cache, _)| {
        let name = &resolver.cache(cache).name;
        let row = slabinfo.get(name).filter(|_| linux::sheaf_capacity(&tables.kernel, name).is_none())?;
        let bytes = row.pages_per_slab * resolver.page_size().bytes();
        Some((cache, Shape { bytes, size: row.object_size, objects: row.objects_per_slab }))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};

    /// Sorts the events of one address and formats them as text; the text of each event begins with its CPU
    /// number.
    fn ordered_events(events: &str) -> String {
        let lines = events.split(' ').map(|event| match event.split_at(1) {
            (cpu, "+") => format!("{cpu} alloc f+0x1 node ffff888001000000"),
            (cpu, _) => format!("{cpu} free node ffff888001000000"),
        });
        let lines: Vec<_> = lines.collect();
        let mut ops = Trace::new(&lines.iter().map(String::as_str).collect::<Vec<_>>(), &[]).ops;
        sort_object_events(&mut ops);
        let shown = ops.iter().map(|op| {
            let kind = match op.kind {
                OpKind::Alloc { .. } => "+",
                OpKind::HiddenFree { .. } => "~",
                OpKind::Free { origin: FreeOrigin::Matched { .. }, .. } => "-",
                OpKind::Free { origin: FreeOrigin::HiddenAlloc, .. } => "?",
                _ => ".",
            };
            format!("{}{kind}", op.cpu)
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn late_free_is_moved_before_the_next_allocation() {
        // CPU 1 frees before CPU 2 allocates; CPU 3 frees CPU 2's object.
        assert_eq!(ordered_events("0+ 2+ 1- 3-"), "0+ 1~ 2+ 1. 3-");
        // A free without an event, and a free of the object allocated then, are in the right order.
        assert_eq!(ordered_events("0+ 2+ 1- 0+ 3-"), "0+ 2~ 2+ 1- 0+ 3-");
    }

    #[test]
    fn early_free_is_moved_after_its_allocation() {
        assert_eq!(ordered_events("0+ 0- 1- 2+ 3+ 3-"), "0+ 0- 2+ 1- 3~ 3+ 3-");
        assert_eq!(ordered_events("0+ 0- 1- 2+ 3-"), "0+ 0- 1? 2+ 3-", "an allocation without an event");
    }

    #[test]
    fn kfree_rcu_object_is_freed_with_its_companion() {
        // Each round opens a file with its dependent objects at new addresses; the first address is finally allocated
        // again.
        let mut lines = vec![];
        for round in 0..3 {
            lines.push("0 alloc kernfs_fop_open+0x9 file ffff888001000000".to_owned());
            lines.push(format!("0 alloc kernfs_fop_open+0x1 node ffff88800200{round}000"));
            lines.push("1 free file ffff888001000000".to_owned());
        }
        lines.push("0 alloc kernfs_fop_open+0x1 node ffff888002000000".to_owned());
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let of = |release: &str| {
            let trace = Trace::new(&lines, &[("kernel.txt", release)]);
            let mut found: Vec<_> = deaths(trace.traced()).into_iter().collect();
            found.sort_unstable();
            found
        };
        let node = |round: u64| vec![0xffff_8880_0200_0000 + round * 0x1000];
        assert_eq!(of("7.2.1"), [(2, node(0)), (5, node(1)), (8, node(2))]);
        // Five seconds later, the first object dies, before its address is allocated again.
        assert_eq!(of("6.12.1"), [(7, node(0))]);
    }

    /// Returns the hidden operations of a small trace; each is a pair of the preceding operation and the
    /// object's number. Page 4096 belongs to a cache of eight objects.
    fn hidden(lines: &[&str], release: &str) -> Vec<(usize, char, u64)> {
        let trace = Trace::new(lines, &[("before.slabinfo", SLABINFO), ("kernel.txt", release)]);
        let shown = |hidden: HiddenOperation| {
            let (sign, Ptr(ptr)) = match hidden.what {
                HiddenOperationKind::Alloc(_, ptr) => ('+', ptr),
                HiddenOperationKind::Free(ptr) => ('-', ptr),
            };
            (hidden.after, sign, (ptr - 0xffff_8880_0100_0000) / 512)
        };
        hidden_operations(trace.traced()).into_iter().map(shown).collect()
    }

    #[test]
    fn object_without_allocation_event_was_allocated_with_its_page() {
        let found = hidden(
            &[
                "0 page 4096",
                "0 alloc f+0x1 node ffff888001000000",
                "0 free node ffff888001000200", // never seen
                "0 free node ffff888001000000",
                "0 free node ffff888001000000", // seen since: of it nothing can be said
            ],
            "7.2.0",
        );
        assert_eq!(found, [(0, '+', 1)]);
    }

    #[test]
    fn cpu_leaves_a_slab_only_when_all_objects_are_allocated() {
        let lines = [
            "0 page 4096",
            "0 alloc f+0x1 node ffff888001000000",
            "0 alloc f+0x1 node ffff888001000200",
            "1 free node ffff888001000000",
            "1 free node ffff888001000c00", // allocated in bulk, so says the cache
            "0 page 4097",
            "0 alloc f+0x1 node ffff888001001000",
            "1 free node ffff888001000400",
            "1 unpage 4096",
        ];
        let all = [0, 2, 3, 4, 5, 6, 7].map(|n| (5, '+', n));
        let gone = [0, 3, 4, 5, 6, 7].map(|n| (9, '-', n));
        assert_eq!(hidden(&lines, "6.1.0"), [&all[..], &gone].concat());
        // A CPU with sheaves takes objects of many slabs, and a shrunk CPU begins anew.
        assert_eq!(hidden(&lines, "7.2.0"), [(0, '+', 6), (0, '+', 2)]);
        let shrunk: Vec<_> = [&lines[..5], &["0 mark SHRINK begin"], &lines[5..]].concat();
        assert_eq!(hidden(&shrunk, "6.1.0"), []);
    }
}
