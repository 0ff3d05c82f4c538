//! A replay as a stream of operations, for the engine of pages: the same actions that the machine here performs.

use super::{linux, start};
use crate::trace::{
    CacheId, CacheKind, FreeOrigin, HiddenFreeSign, Kernel, Op, OpKind, PageSize, PageUse, Pfn, Ptr, Resolver, SiteId, Tables,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use uslab_buddy::ZoneKind;
use uslab_engine::design::Manner;
use uslab_engine::stream::{Kind, MAGIC};
use uslab_engine::{Stream, Writer};

/// Whether a file is a trace that was converted. What cannot be opened, or is shorter, is for others to complain of; a pipe keeps its bytes.
pub fn is_converted(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == *MAGIC
}

/// The operations as a stream, with each hidden allocation at its likely time; its first caches by other names, if there are.
pub(super) fn of(
    title: String,
    cpus: u32,
    zones: &[(ZoneKind, u32)],
    tables: &Tables,
    resolver: &Resolver,
    ops: &[Op],
    renamed: impl IntoIterator<Item = (String, Kind, u32)>,
    from_start: bool,
) -> Stream {
    let shrinks = shrinks(resolver, ops, tables);
    let deaths = deaths(resolver, ops, &tables.kernel);
    let readings = readings(resolver, ops);
    let late: FxHashMap<_, _> = readings.iter().map(|(mark, read)| (*read, *mark)).collect();
    let mut early = hidden_allocations(ops, |ptr| resolver.page_of(ptr)).into_iter().peekable();
    let mut writer = Writer::new(title, cpus);
    let mut from_before = FxHashSet::default();
    zones.iter().for_each(|(kind, pages)| writer.zone(*kind, *pages));
    for (name, kind, size) in renamed {
        writer.cache(name, kind, size);
    }
    for (at, op) in ops.iter().enumerate() {
        let cpu = u32::from(op.cpu) % cpus;
        if at == 0 && from_start {
            let slabs = slabs_from_before(resolver, ops, tables);
            writer.begin(op.time_ns);
            for slab in slabs {
                learn(&mut writer, resolver, slab.cache.0 as usize + 1);
                let others = slab.objects - slab.used.len() as u32 - slab.free;
                writer.start(cpu, slab.cache.0, &slab.used, others, slab.free);
                from_before.extend(slab.used);
            }
        }
        write(&mut writer, resolver, op, cpu);
        if let OpKind::Free { ptr, origin: FreeOrigin::PreTrace, .. } = op.kind
            && from_before.remove(&ptr.0)
        {
            writer.free(cpu, ptr.0);
        }
        let marked = late.get(&at).copied().or(Some(at).filter(|at| !readings.contains_key(at)));
        if let Some(OpKind::Mark { text }) = marked.map(|marked| ops[marked].kind) {
            writer.mark(resolver.mark(text));
        }
        match shrinks.get(&at) {
            None => {}
            Some(None) => writer.shrink(cpu, None),
            Some(Some(folder)) => {
                let attributes = &tables.kernel.attributes;
                let known = resolver.caches().get(..writer.caches()).unwrap_or_default();
                for (info, number) in known.iter().zip(0..) {
                    if info.kind != CacheKind::KmallocLarge && attributes.folder(&info.name) == folder {
                        writer.shrink(cpu, Some(number));
                    }
                }
            }
        }
        for ptr in deaths.get(&at).into_iter().flatten() {
            writer.allow(Manner::AfterGrace);
            writer.free(cpu, *ptr);
        }
        while let Some((_, free)) = early.next_if(|(then, _)| *then == at) {
            if let OpKind::Free { cache, ptr, .. } = ops[free].kind {
                learn(&mut writer, resolver, cache.0 as usize + 1);
                writer.alloc(cpu, cache.0, ptr.0, resolver.cache(cache).size.into());
            }
        }
    }
    learn(&mut writer, resolver, resolver.caches().len());
    let kernel = &tables.kernel;
    writer.kernel(linux::design(kernel), |cache| kernel.attributes.number(cache, "sheaf_capacity"));
    writer.finish()
}

/// A slab from before the trace, as far as the trace shows it.
struct FromBefore {
    cache: CacheId,
    objects: u32,
    /// Objects that are freed in the trace, by address.
    used: Vec<u64>,
    /// Objects that are allocated in the trace first.
    free: u32,
}

/// Slabs from before the trace, in the order in which the kernel allocates from them. An address that an allocation has before any
/// free, on a page that was not handed out in the trace, was free at its beginning; one that is freed first was in use. Of the
/// other objects nothing is seen: they stay in use, unless the page is freed.
fn slabs_from_before(resolver: &Resolver, ops: &[Op], tables: &Tables) -> Vec<FromBefore> {
    let Some(slabinfo) = tables.latest_slabinfo() else { return vec![] };
    let (mut handed_out, mut seen) = (FxHashSet::default(), FxHashSet::default());
    let (mut places, mut pages, mut slabs) = (FxHashMap::default(), FxHashMap::default(), Vec::new());
    for op in ops {
        let (cache, ptr, is_free) = match op.kind {
            OpKind::Alloc { cache, ptr, .. } => (cache, ptr, true),
            OpKind::Free { cache, ptr, .. } => (cache, ptr, false),
            OpKind::PageAlloc { pfn, order, .. } | OpKind::PageFree { pfn, order, .. } => {
                for page in pfn.0..pfn.0 + (1 << order) {
                    if handed_out.insert(page)
                        && let Some(slab) = pages.get(&page)
                    {
                        // Nothing of it was in use at last: what was not seen was free.
                        let slab: &mut FromBefore = &mut slabs[*slab];
                        slab.free = slab.objects - slab.used.len() as u32;
                    }
                }
                continue;
            }
            _ => continue,
        };
        let Some(page) = resolver.page_of(ptr).filter(|page| !handed_out.contains(&page.0)) else { continue };
        let info = resolver.cache(cache);
        let Some(row) = slabinfo.get(&info.name).filter(|_| info.kind != CacheKind::KmallocLarge) else { continue };
        if !seen.insert(ptr.0) {
            continue;
        }
        let at = *places.entry((cache, page.0 / row.pages_per_slab)).or_insert_with(|| {
            let objects = row.objects_per_slab as u32;
            slabs.push(FromBefore { cache, objects, used: vec![], free: 0 });
            slabs.len() - 1
        });
        pages.insert(page.0, at);
        let slab = &mut slabs[at];
        if slab.used.len() as u32 + slab.free < slab.objects {
            if is_free { slab.free += 1 } else { slab.used.push(ptr.0) }
        }
    }
    slabs
}

/// Puts events of one object in the order in which they must have happened. The trace has some of different CPUs the other way round.
/// They look like a hidden free and a hidden allocation:
///
/// - `alloc, alloc, free, free`: the first free came before the second allocation.
/// - `free, alloc, alloc`, where the free has no allocation: it came after the first allocation.
pub(super) fn put_in_order(ops: &mut Vec<Op>) {
    /// What was last seen of an object, by operation.
    enum Seen {
        /// A free without an allocation.
        Early(usize),
        /// The same, and an allocation.
        EarlyThenAlloc(usize, usize),
        /// A hidden free; the allocation follows.
        Reused(usize),
        /// A hidden free, and the free that is matched with the allocation after it.
        ReusedThenFree(usize, usize),
    }
    let mut seen: FxHashMap<u64, Seen> = FxHashMap::default();
    let mut moved = FxHashMap::default();
    for at in 0..ops.len() {
        match ops[at].kind {
            OpKind::HiddenFree { ptr, sign: HiddenFreeSign::Reused, .. } => {
                match seen.insert(ptr.0, Seen::Reused(at)) {
                    Some(Seen::EarlyThenAlloc(free, alloc)) => {
                        _ = moved.insert(alloc, free);
                        seen.remove(&ptr.0);
                    }
                    _ => {}
                }
            }
            OpKind::HiddenFree { ptr, .. } => _ = seen.remove(&ptr.0),
            OpKind::Alloc { ptr, .. } => match seen.remove(&ptr.0) {
                Some(Seen::Early(free)) => _ = seen.insert(ptr.0, Seen::EarlyThenAlloc(free, at)),
                Some(Seen::Reused(free)) if free + 1 == at => _ = seen.insert(ptr.0, Seen::Reused(free)),
                _ => {}
            },
            OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } => match seen.remove(&ptr.0) {
                Some(Seen::Reused(free)) => _ = seen.insert(ptr.0, Seen::ReusedThenFree(free, at)),
                _ => {}
            },
            OpKind::Free { cache, ptr, origin: FreeOrigin::HiddenAlloc } => {
                match seen.insert(ptr.0, Seen::Early(at)) {
                    Some(Seen::ReusedThenFree(hidden, free)) => {
                        ops[hidden].cpu = ops[free].cpu;
                        let OpKind::Free { origin, .. } = ops[free].kind else { unreachable!("it is a free") };
                        ops[at].kind = OpKind::Free { cache, ptr, origin };
                        ops[free].kind = OpKind::Free { cache, ptr, origin: FreeOrigin::PreTrace };
                        seen.remove(&ptr.0);
                    }
                    _ => {}
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

/// When objects were given to `kfree_rcu`, which has no event: the operation, and their addresses.
///
/// An object that a function allocates right after another one, and whose call site has no seen free, dies with that other one:
/// `kernfs_fop_open` allocates an open file and what its inode has for all open files. Until 7.0 `kfree_rcu` collects for five seconds.
/// What has no such companion dies when its address is handed out again.
fn deaths(resolver: &Resolver, ops: &[Op], kernel: &Kernel) -> FxHashMap<usize, Vec<u64>> {
    const COLLECTED_NS: u64 = 5_000_000_000;
    /// Operations between the two allocations.
    const NEAR: usize = 8;
    let collected = if linux::is_of_7(kernel) { 0 } else { COLLECTED_NS };
    struct Life {
        site: SiteId,
        ptr: u64,
        /// The life of the object that the same function allocated before it.
        companion: Option<usize>,
        /// The operation that ends it, if there is one.
        end: usize,
        is_seen: bool,
    }
    let (mut lives, mut live) = (Vec::<Life>::new(), FxHashMap::default());
    let (mut last, mut functions) = (FxHashMap::default(), FxHashMap::default());
    let mut sites: FxHashMap<SiteId, [usize; 3]> = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { ptr, site, .. } => {
                let function = functions.entry(site).or_insert_with(|| start::function(&resolver.call_site(site)).to_owned());
                let before = last.insert((op.cpu, function.clone()), (at, lives.len()));
                sites.entry(site).or_default()[0] += 1;
                let before = before.filter(|(then, _)| at - then <= NEAR).map(|(_, life)| life);
                live.insert(ptr.0, lives.len());
                lives.push(Life { site, ptr: ptr.0, companion: before, end: ops.len(), is_seen: false });
            }
            OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } | OpKind::HiddenFree { ptr, .. } => {
                if let Some(life) = live.remove(&ptr.0) {
                    let life: &mut Life = &mut lives[life];
                    life.end = at;
                    life.is_seen = matches!(op.kind, OpKind::Free { .. });
                    sites.entry(life.site).or_default()[1 + usize::from(life.is_seen)] += 1;
                }
            }
            _ => {}
        }
    }
    let mut found: FxHashMap<usize, Vec<u64>> = FxHashMap::default();
    // A few may be seen: an address that was handed out without an event is freed with one.
    let is_hidden = |site| sites.get(&site).is_some_and(|[all, hidden, seen]| hidden * 10 > *all && seen * 20 < *all);
    for life in lives.iter().filter(|life| is_hidden(life.site)) {
        let Some(companion) = life.companion.map(|companion| &lives[companion]).filter(|life| life.is_seen) else { continue };
        let then = ops[companion.end].time_ns + collected;
        let at = match collected {
            0 => companion.end,
            _ => ops.partition_point(|op| op.time_ns < then),
        };
        if at < life.end {
            if std::env::var_os("DBG").is_some() { eprintln!("death {}", resolver.call_site(life.site)); }
            found.entry(at).or_default().push(life.ptr);
        }
    }
    found
}

/// When objects were allocated that the trace shows the frees of only: the operation, and that of the free; in order.
///
/// Bulk allocation has no event. It takes whole slabs as they are made, so an object that was never seen since its page was
/// handed out was allocated there and then. Of others nothing can be said.
fn hidden_allocations(ops: &[Op], page_of: impl Fn(Ptr) -> Option<Pfn>) -> Vec<(usize, usize)> {
    let (mut handed_out, mut seen) = (FxHashMap::default(), FxHashMap::default());
    let mut found = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::PageAlloc { pfn, order, .. } => {
                handed_out.extend((pfn.0..pfn.0 + (1 << order)).map(|page| (page, at)));
            }
            OpKind::PageFree { pfn, order, .. } => {
                (pfn.0..pfn.0 + (1 << order)).for_each(|page| _ = handed_out.remove(&page));
            }
            OpKind::Free { ptr, origin, .. } => {
                let last = seen.insert(ptr.0, at);
                let then = page_of(ptr).and_then(|page| handed_out.get(&page.0).copied());
                if origin == FreeOrigin::HiddenAlloc
                    && let Some(then) = then.filter(|then| last.is_none_or(|last| last < *then))
                {
                    found.push((then, at));
                }
            }
            OpKind::Alloc { ptr, .. } | OpKind::HiddenFree { ptr, .. } => _ = seen.insert(ptr.0, at),
            OpKind::Mark { .. } => {}
        }
    }
    found.sort_unstable();
    found
}

/// When caches were shrunk: the operation after which it happened, and the cache's folder in `/sys/kernel/slab`; `None` for all.
///
/// A recording's script writes to the file `shrink` of one folder after the other, all of them twice, between two marks. Opening one
/// allocates in `kernfs_fop_open`, and ends with a free of the path. If there are as many of these as the script opens files, the n-th
/// is of the n-th folder. Else it is known only that all caches were shrunk at the second mark.
fn shrinks(resolver: &Resolver, ops: &[Op], tables: &Tables) -> FxHashMap<usize, Option<String>> {
    let mut moments = tables.snapshots.iter().filter(|moment| ["before", "end"].contains(&moment.moment));
    let (mut found, mut opens) = (FxHashMap::default(), None::<BTreeMap<SiteId, Vec<usize>>>);
    let mut names = FxHashMap::default();
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { site, .. } => {
                let Some(opens) = &mut opens else { continue };
                let opened = names.entry(site).or_insert_with(|| resolver.call_site(site).starts_with("kernfs_fop_open+"));
                if *opened {
                    opens.entry(site).or_default().push(at);
                }
            }
            OpKind::Mark { text } => match &*resolver.mark(text) {
                "SHRINK begin" => opens = Some(BTreeMap::new()),
                "SHRINK end" => {
                    let sites = opens.take().unwrap_or_default();
                    let folders = moments.next().map_or(&[][..], |moment| &moment.folders);
                    // One open allocates at two sites: both objects are there when the caller writes.
                    let of_all = sites.into_values().filter(|opens| opens.len() == 2 * folders.len());
                    match of_all.max_by_key(|opens| opens.first().copied()).filter(|opens| !opens.is_empty()) {
                        Some(opens) => {
                            let ends = opens.into_iter().map(|open| next_free(ops, open));
                            found.extend(ends.zip(folders.iter().cycle().cloned().map(Some)));
                        }
                        None => _ = found.insert(at, None),
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }
    found
}

/// The first free on the CPU of an operation after it, or itself if there is none.
fn next_free(ops: &[Op], from: usize) -> usize {
    let mut after = ops[from..].iter().zip(from..);
    let found = after.find(|(op, _)| op.cpu == ops[from].cpu && matches!(op.kind, OpKind::Free { .. }));
    found.map_or(from, |(_, at)| at)
}

/// When the kernel read its slabinfo: of each mark `SNAP MOMENT begin`, by its operation, the operation before the reading. The script
/// opens files first. The reading begins with a buffer of `seq_read_iter`; if there is none before the next mark, it is the mark.
fn readings(resolver: &Resolver, ops: &[Op]) -> FxHashMap<usize, usize> {
    let mut found = FxHashMap::default();
    let (mut begun, mut names) = (None, FxHashMap::default());
    for (at, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Mark { text } => {
                let text = resolver.mark(text);
                begun = (text.starts_with("SNAP ") && text.ends_with(" begin")).then_some(at);
            }
            OpKind::Alloc { site, .. } if begun.is_some() => {
                let reads = names.entry(site).or_insert_with(|| resolver.call_site(site).starts_with("seq_read_iter+"));
                if *reads {
                    found.extend(begun.take().map(|mark| (mark, at)));
                }
            }
            _ => {}
        }
    }
    found
}

/// Makes the first `n` caches known, with the operation that has begun.
fn learn(to: &mut Writer, resolver: &Resolver, n: usize) {
    for info in resolver.caches().get(to.caches()..n).unwrap_or_default() {
        to.cache(info.name.clone(), kind(info.kind), info.size);
    }
}

/// One operation, on `cpu` of the machine.
fn write(to: &mut Writer, resolver: &Resolver, op: &Op, cpu: u32) {
    to.begin(op.time_ns);
    if let OpKind::Alloc { cache, .. } | OpKind::Free { cache, .. } = op.kind {
        learn(to, resolver, cache.0 as usize + 1);
    }
    match op.kind {
        OpKind::Alloc { cache, ptr, bytes_alloc, may_block, .. } => {
            to.allow(if may_block { Manner::Plain } else { Manner::NonBlocking });
            to.alloc(cpu, cache.0, ptr.0, bytes_alloc.into());
        }
        OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } | OpKind::HiddenFree { ptr, .. } => {
            to.free(cpu, ptr.0);
        }
        OpKind::Free { cache, ptr, origin: FreeOrigin::HiddenAlloc } => {
            // Nobody knows when it was allocated, unless somebody has guessed.
            if !to.free(cpu, ptr.0) {
                to.pass(cpu, cache.0, resolver.cache(cache).size.into());
            }
        }
        OpKind::Free { origin: FreeOrigin::PreTrace, .. } => {}
        OpKind::PageAlloc { pfn, order, migratetype, usage: PageUse::Other } => {
            for (pfn, order) in our_blocks(resolver.page_size(), pfn, order) {
                to.alloc_pages(cpu, pfn, order, migratetype);
            }
        }
        OpKind::PageFree { pfn, order, usage: PageUse::Other, .. } => {
            for (pfn, order) in our_blocks(resolver.page_size(), pfn, order) {
                to.free_pages(cpu, pfn, order);
            }
        }
        OpKind::PageAlloc { .. } | OpKind::PageFree { .. } => {}
        OpKind::Mark { .. } => {}
    }
}

/// What a cache of a trace is in a stream.
pub(super) fn kind(kind: CacheKind) -> Kind {
    match kind {
        CacheKind::Kmalloc => Kind::Kmalloc,
        CacheKind::KmallocLarge => Kind::Large,
        CacheKind::Named | CacheKind::Placeholder => Kind::Named,
    }
}

/// `2^order` pages of the traced machine as blocks of our pages, which have 4 KiB: first page and order of each.
pub(super) fn our_blocks(size: PageSize, pfn: Pfn, order: u8) -> impl Iterator<Item = (u64, u8)> {
    let finer = (size.shift() - PageSize::Kib4.shift()) as u8;
    let all = order + finer;
    let each = all.min(uslab_buddy::MAX_ORDER);
    (0..1_u64 << (all - each)).map(move |i| ((pfn.0 << finer) + (i << each), each))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{CacheId, PageFreeOrigin, SiteId};

    const CACHE: CacheId = CacheId(0);

    fn ops(kinds: impl IntoIterator<Item = OpKind>) -> Vec<Op> {
        kinds.into_iter().zip(1..).map(|(kind, line)| Op { line, time_ns: 0, cpu: 0, kind }).collect()
    }
    fn hidden(ptr: u64) -> OpKind {
        OpKind::Free { cache: CACHE, ptr: Ptr(ptr), origin: FreeOrigin::HiddenAlloc }
    }

    #[test]
    fn larger_pages_are_blocks_of_ours_side_by_side() {
        let blocks = |size, pfn, order| our_blocks(size, Pfn(pfn), order).collect::<Vec<_>>();
        assert_eq!(blocks(PageSize::Kib4, 77, 10), [(77, 10)]);
        assert_eq!(blocks(PageSize::Kib16, 77, 0), [(308, 2)]);
        assert_eq!(blocks(PageSize::Kib64, 3, 6), [(48, 10)]);
        // The largest block there is has 512 MiB, ours have 4 MiB.
        let largest = blocks(PageSize::Kib64, 1 << 13, 13);
        assert_eq!(largest.len(), 128);
        assert!((0..).zip(&largest).all(|(i, block)| *block == ((1 << 17) + (i << 10), 10)));
    }

    #[test]
    fn an_object_that_was_never_seen_since_its_page_was_handed_out_was_allocated_there() {
        let usage = PageUse::Slab;
        let slab = OpKind::PageAlloc { pfn: Pfn(4), order: 1, migratetype: 0, usage };
        let origin = PageFreeOrigin::Unseen;
        let gone = OpKind::PageFree { pfn: Pfn(4), order: 1, origin, usage };
        let alloc = |ptr| OpKind::Alloc {
            cache: CACHE,
            ptr: Ptr(ptr),
            site: SiteId(0),
            bytes_req: 8,
            bytes_alloc: 8,
        };
        let matched =
            |ptr| OpKind::Free { cache: CACHE, ptr: Ptr(ptr), origin: FreeOrigin::Matched { alloc_cpu: 0 } };
        let ops = ops([
            hidden(0x4000), // 0: of a page that nobody saw handed out
            slab,           // 1
            hidden(0x5008), // 2: on its second page
            alloc(0x4010),
            matched(0x4010),
            hidden(0x4010), // 5: seen since, so nothing can be said
            hidden(0x4000), // 6: seen before the page was handed out only
            gone,
            hidden(0x4018), // 8: the page is gone
        ]);
        assert_eq!(hidden_allocations(&ops, |ptr| Some(Pfn(ptr.0 >> 12))), [(1, 2), (1, 6)]);
        assert_eq!(hidden_allocations(&ops, |_| None), [], "hashed addresses");
    }
}
