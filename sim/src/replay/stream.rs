//! A replay as a stream of operations, for the engine of pages: the same actions that the machine here performs.

use super::our_blocks;
use crate::trace::{CacheKind, FreeOrigin, Op, OpKind, PageUse, Resolver};
use uslab_engine::Writer;
use uslab_engine::stream::Kind;

/// One operation, on `cpu` of the machine.
pub(super) fn write(to: &mut Writer, resolver: &Resolver, op: &Op, cpu: u32) {
    to.begin(op.time_ns);
    for info in &resolver.caches()[to.caches()..] {
        let kind = match info.kind {
            CacheKind::Kmalloc => Kind::Kmalloc,
            CacheKind::KmallocLarge => Kind::Large,
            CacheKind::Named | CacheKind::Placeholder => Kind::Named,
        };
        to.cache(info.name.clone(), kind, info.size);
    }
    match op.kind {
        OpKind::Alloc { cache, ptr, bytes_alloc, .. } => to.alloc(cpu, cache.0, ptr.0, bytes_alloc.into()),
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
        OpKind::Mark { text } => {
            let text = resolver.mark(text);
            to.mark(text.to_owned());
            if text == "SHRINK end" {
                to.shrink(cpu);
            }
        }
    }
}
