//! Slabs from before a trace, which the trace shows by the objects that it allocates from them and frees to them.

use super::traced::Traced;
use crate::trace::{CacheId, CacheKind, OpKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// A slab from before the trace, as far as the trace shows it.
pub(super) struct FromBefore {
    pub(super) cache: CacheId,
    /// Objects that it has.
    pub(super) objects: u32,
    /// Objects that are freed in the trace, by address.
    pub(super) used: Vec<u64>,
    /// Objects that are allocated in the trace first.
    pub(super) free: u32,
}

/// Slabs from before the trace, in the order in which the kernel allocates from them. An address that an allocation has before any
/// free, on a page that was not handed out in the trace, was free at its beginning; one that is freed first was in use. Of the
/// other objects nothing is seen: they stay in use, unless the page is freed.
pub(super) fn slabs_from_before(Traced { resolver, ops, tables }: Traced<'_>) -> Vec<FromBefore> {
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
        let Some(row) = slabinfo.get(&info.name).filter(|_| info.kind != CacheKind::KmallocLarge) else {
            continue;
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};

    #[test]
    fn what_an_address_is_first_used_for_tells_what_it_was_at_the_beginning() {
        let trace = Trace::new(
            &[
                // Page 4096: one free object, which is allocated twice, and one in use.
                "0 alloc f+0x1 node ffff888001000000",
                "0 free node ffff888001000000",
                "0 alloc f+0x1 node ffff888001000000",
                "0 free node ffff888001000200",
                // Page 4097 was handed out in the trace.
                "0 page 4097",
                "0 alloc f+0x1 node ffff888001001000",
                // Page 4098 is freed: what was not seen of it was free.
                "0 free node ffff888001002400",
                "0 unpage 4098",
                "0 page 4098",
                "0 alloc f+0x1 node ffff888001002000",
            ],
            &[("before.slabinfo", SLABINFO)],
        );
        let slabs = slabs_from_before(trace.traced());
        let found: Vec<_> = slabs.into_iter().map(|slab| (slab.objects, slab.used, slab.free)).collect();
        assert_eq!(found, [(8, vec![0xffff_8880_0100_0200], 1), (8, vec![0xffff_8880_0100_2400], 7)]);
        let without_tables = Trace::new(&["0 alloc f+0x1 node ffff888001000000"], &[]);
        assert!(slabs_from_before(without_tables.traced()).is_empty());
    }
}
