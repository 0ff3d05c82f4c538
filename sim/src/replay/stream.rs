//! Converts a replay to a stream of operations, which the engine of web pages runs. The stream contains the
//! operations of the simulated machine.

use super::from_before::InitialSlab;
use super::hidden::{HiddenOperationKind, deaths, hidden_operations};
use super::linux;
use super::recycled::recycled;
use super::steps::{find_slabinfo_readings, shrinks};
use super::traced::TracedInput;
use crate::trace::{CacheKind, Counts, FreeOrigin, Kernel, Op, OpKind, PageSize, PageUse, Pfn, Resolver};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use uslab::SlabInfo;
use uslab_buddy::ZoneKind;
use uslab_engine::design::CallMode;
use uslab_engine::stream::{Kind, MAGIC};
use uslab_engine::{Stream, Writer};

/// Returns `true` if a file is a converted trace. Returns `false` for a pipe, which is not read, and for a file that is
/// too short or cannot be opened; the caller reports the error.
pub fn is_converted(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == *MAGIC
}

/// Returns the number of CPUs of the traced machine, from the header or the events of the trace.
pub(super) fn traced_cpus(counts: &Counts) -> u64 {
    let header = counts.header.map(|(_, _, cpus)| cpus).or(counts.machine_cpus);
    (counts.by_cpu.len() as u64).max(header.unwrap_or(0)).max(1)
}

/// The slabs that exist before the first operation of a stream.
pub(super) enum InitialSlabs<'k> {
    /// Slabs inferred from the trace.
    Slabs(Vec<InitialSlab>),
    /// No initial slabs, because the design models another kernel; the fields are that kernel's caches (names, kinds,
    /// sizes), its `Kernel`, and its slabinfo.
    Other(Vec<(String, Kind, u32)>, &'k Kernel, &'k SlabInfo),
}

/// Returns the operations as a stream, in which each hidden operation has its likely time.
pub(super) fn of(
    title: String,
    cpus: u32,
    zones: &[(ZoneKind, u32)],
    traced: TracedInput<'_>,
    before: InitialSlabs<'_>,
) -> Stream {
    let TracedInput { resolver, ops, tables } = traced;
    let (shrinks, deaths, readings) = (shrinks(traced), deaths(traced), find_slabinfo_readings(traced));
    let recycled = recycled(traced, cpus);
    let late: FxHashMap<_, _> = readings.iter().map(|(mark, read)| (*read, *mark)).collect();
    let mut hidden = hidden_operations(traced).into_iter().peekable();
    let mut writer = Writer::new(title, cpus);
    let (mut slabs, mut kernel, mut slabinfo) = (vec![], &tables.kernel, tables.latest_slabinfo());
    let mut online = traced_cpus(resolver.counts()) as u32;
    match before {
        InitialSlabs::Slabs(from_before) => slabs = from_before,
        InitialSlabs::Other(caches, other, table) => {
            (kernel, slabinfo, online) = (other, Some(table), cpus);
            caches.into_iter().for_each(|(name, kind, size)| writer.cache(name, kind, size));
        }
    }
    // Zones have the pages that the trace or the tables mention.
    let pages = |slab: &InitialSlab| Some(slabinfo?.get(&resolver.cache(slab.cache).name)?.pages_per_slab);
    let unseen: u64 = slabs.iter().filter(|slab| slab.has_no_traced_object()).filter_map(pages).sum();
    let largest = zones.iter().map(|(_, pages)| *pages).max().unwrap_or(0);
    for (kind, pages) in zones {
        writer.zone(*kind, if *pages == largest { pages.saturating_add(unseen as u32) } else { *pages });
    }
    let mut from_before: FxHashSet<u64> = FxHashSet::default();
    for (at, op) in ops.iter().enumerate() {
        let cpu = u32::from(op.cpu) % cpus;
        writer.begin(op.time_ns);
        for slab in slabs.drain(..) {
            learn(&mut writer, resolver, slab.cache.0 as usize + 1);
            let others = slab.objects - slab.used.len() as u32 - slab.free;
            let owner = slab.owner.map_or(cpu, |cpu| u32::from(cpu) % cpus);
            writer.start(owner, slab.cache.0, &slab.used, others, slab.free, slab.owner.is_some());
            from_before.extend(slab.used);
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
            writer.allow(CallMode::AfterGrace);
            writer.free(cpu, *ptr);
        }
        for ptr in recycled.get(&at).into_iter().flatten() {
            writer.free(cpu, *ptr);
        }
        while let Some(hidden) = hidden.next_if(|hidden| hidden.after == at) {
            let cpu = u32::from(hidden.cpu) % cpus;
            match hidden.what {
                HiddenOperationKind::Alloc(cache, ptr) => {
                    learn(&mut writer, resolver, cache.0 as usize + 1);
                    writer.alloc(cpu, cache.0, ptr.0, resolver.cache(cache).size.into());
                }
                HiddenOperationKind::Free(ptr) => _ = writer.free(cpu, ptr.0),
            }
        }
    }
    learn(&mut writer, resolver, resolver.caches().len());
    let mut design = linux::design(kernel);
    if !design.is_empty() {
        design += &linux::slab_size_option(&design, slabinfo, online);
    }
    writer.kernel(design, |cache| kernel.attributes.number(cache, "sheaf_capacity"));
    writer.finish()
}

/// Adds the first `n` caches that the trace names.
fn learn(to: &mut Writer, resolver: &Resolver, n: usize) {
    for info in resolver.caches().get(to.caches()..n).unwrap_or_default() {
        to.cache(info.name.clone(), kind(info.kind), info.size);
    }
}

/// Writes an operation, which the machine's CPU `cpu` runs, to the stream.
fn write(to: &mut Writer, resolver: &Resolver, op: &Op, cpu: u32) {
    if let OpKind::Alloc { cache, .. } | OpKind::Free { cache, .. } = op.kind {
        learn(to, resolver, cache.0 as usize + 1);
    }
    match op.kind {
        OpKind::Alloc { cache, ptr, bytes_alloc, may_block, .. } => {
            to.allow(if may_block { CallMode::Plain } else { CallMode::NonBlocking });
            to.alloc(cpu, cache.0, ptr.0, bytes_alloc.into());
        }
        OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } | OpKind::HiddenFree { ptr, .. } => {
            to.free(cpu, ptr.0);
        }
        OpKind::Free { cache, ptr, origin: FreeOrigin::HiddenAlloc } => {
            // The time of its allocation is unknown, unless it was guessed.
            if !to.free(cpu, ptr.0) {
                to.pass(cpu, cache.0, resolver.cache(cache).size.into());
            }
        }
        OpKind::Free { origin: FreeOrigin::PreTrace, .. } => {}
        OpKind::PageAlloc { pfn, order, migratetype, usage: PageUse::Other } => {
            for (pfn, order) in split_into_4k_blocks(resolver.page_size(), pfn, order) {
                to.alloc_pages(cpu, pfn, order, migratetype);
            }
        }
        OpKind::PageFree { pfn, order, usage: PageUse::Other, .. } => {
            for (pfn, order) in split_into_4k_blocks(resolver.page_size(), pfn, order) {
                to.free_pages(cpu, pfn, order);
            }
        }
        OpKind::PageAlloc { .. } | OpKind::PageFree { .. } => {}
        OpKind::Mark { .. } => {}
    }
}

/// Returns the stream's kind for a cache of the trace.
pub(super) fn kind(kind: CacheKind) -> Kind {
    match kind {
        CacheKind::Kmalloc => Kind::Kmalloc,
        CacheKind::KmallocLarge => Kind::Large,
        CacheKind::Named | CacheKind::Placeholder => Kind::Named,
    }
}

/// Splits `2^order` pages of the traced machine into blocks of 4 KiB pages; returns each block's first page and order.
pub(super) fn split_into_4k_blocks(size: PageSize, pfn: Pfn, order: u8) -> impl Iterator<Item = (u64, u8)> {
    let finer = (size.shift() - PageSize::Kib4.shift()) as u8;
    let all = order + finer;
    let each = all.min(uslab_buddy::MAX_ORDER);
    (0..1_u64 << (all - each)).map(move |i| ((pfn.0 << finer) + (i << each), each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_are_split_into_adjacent_4_kib_blocks() {
        let blocks = |size, pfn, order| split_into_4k_blocks(size, Pfn(pfn), order).collect::<Vec<_>>();
        assert_eq!(blocks(PageSize::Kib4, 77, 10), [(77, 10)]);
        assert_eq!(blocks(PageSize::Kib16, 77, 0), [(308, 2)]);
        assert_eq!(blocks(PageSize::Kib64, 3, 6), [(48, 10)]);
        // The largest traced block has 512 MiB, the largest simulated block 4 MiB.
        let largest = blocks(PageSize::Kib64, 1 << 13, 13);
        assert_eq!(largest.len(), 128);
        assert!((0..).zip(&largest).all(|(i, block)| *block == ((1 << 17) + (i << 10), 10)));
    }
}
