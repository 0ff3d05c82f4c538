//! A replay as a stream of operations, for the engine of pages: the same actions that the machine here performs.

use crate::trace::{CacheKind, FreeOrigin, Op, OpKind, PageSize, PageUse, Pfn, Resolver};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use uslab_engine::Writer;
use uslab_engine::stream::{Kind, MAGIC};

/// Whether a file is a trace that was converted. What cannot be opened, or is shorter, is for others to complain of; a pipe keeps its bytes.
pub fn is_converted(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == *MAGIC
}

/// Makes the first `n` caches known, with the operation that has begun.
pub(super) fn learn(to: &mut Writer, resolver: &Resolver, n: usize) {
    for info in resolver.caches().get(to.caches()..n).unwrap_or_default() {
        to.cache(info.name.clone(), kind(info.kind), info.size);
    }
}

/// One operation, on `cpu` of the machine.
pub(super) fn write(to: &mut Writer, resolver: &Resolver, op: &Op, cpu: u32) {
    to.begin(op.time_ns);
    if let OpKind::Alloc { cache, .. } | OpKind::Free { cache, .. } = op.kind {
        learn(to, resolver, cache.0 as usize + 1);
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
}
