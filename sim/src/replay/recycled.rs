//! Infers when objects were freed without an event, in caches with sheaves. `kfree_rcu` puts objects into a
//! sheaf, and no event shows the time.
//!
//! An object at an address that is allocated again was freed much earlier, because CPUs and the barn first hand out
//! other free objects. The free is therefore placed `n` allocations earlier; `n` is the number of objects that all
//! sheaves hold. At the end of a trace, `n` objects are free but not yet allocated again; the oldest objects are
//! assumed to be free.

use super::linux;
use super::traced::TracedInput;
use crate::trace::{CacheId, FreeOrigin, OpKind};
use rustc_hash::FxHashMap;

/// The number of full sheaves that a barn accepts.
const BARN: usize = 10;

/// The state of a cache during the trace.
#[derive(Default)]
struct Cache {
    /// The total number of objects in the cache's sheaves.
    pool: usize,
    /// The allocations from the cache, as operation numbers.
    allocs: Vec<usize>,
    /// The objects in use, each with the index of its allocation.
    live: FxHashMap<u64, usize>,
}

/// Returns the addresses of objects that were freed without an event, keyed by the operation that precedes
/// the free.
pub(super) fn recycled(traced: TracedInput<'_>, cpus: u32) -> FxHashMap<usize, Vec<u64>> {
    let mut found: FxHashMap<usize, Vec<u64>> = FxHashMap::default();
    let mut caches = caches(traced, cpus);
    for (at, op) in traced.ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc { cache, ptr, .. } => {
                let Some(cache) = caches.get_mut(&cache) else { continue };
                cache.live.insert(ptr.0, cache.allocs.len());
                cache.allocs.push(at);
            }
            OpKind::HiddenFree { cache, ptr, .. } => {
                let Some(cache) = caches.get_mut(&cache) else { continue };
                let Some(own) = cache.live.remove(&ptr.0) else { continue };
                let number = cache.allocs.len().saturating_sub(cache.pool).max(own + 1);
                if let Some(then) = cache.allocs.get(number) {
                    found.entry(*then).or_default().push(ptr.0);
                }
            }
            OpKind::Free { cache, ptr, .. } => {
                if let Some(cache) = caches.get_mut(&cache) {
                    cache.live.remove(&ptr.0);
                }
            }
            _ => {}
        }
    }
    for cache in caches.into_values() {
        let mut oldest: Vec<_> = cache.live.into_iter().map(|(ptr, number)| (number, ptr)).collect();
        oldest.sort_unstable();
        let first = cache.allocs.len().saturating_sub(cache.pool);
        for (number, (_, ptr)) in
            (first..cache.allocs.len()).zip(oldest).filter(|(number, (own, _))| own < number)
        {
            found.entry(cache.allocs[number]).or_default().push(ptr);
        }
    }
    found
}

/// Returns the caches with sheaves in which most objects are freed without an event.
fn caches(TracedInput { resolver, ops, tables }: TracedInput<'_>, cpus: u32) -> FxHashMap<CacheId, Cache> {
    let mut frees: FxHashMap<CacheId, [u64; 2]> = FxHashMap::default();
    for op in ops {
        match op.kind {
            OpKind::Free { cache, origin: FreeOrigin::Matched { .. }, .. } => {
                frees.entry(cache).or_default()[0] += 1;
            }
            OpKind::HiddenFree { cache, .. } => frees.entry(cache).or_default()[1] += 1,
            _ => {}
        }
    }
    let hidden = frees.into_iter().filter(|(_, [seen, hidden])| hidden > seen);
    let with_sheaves = hidden.filter_map(|(cache, _)| {
        let capacity = linux::sheaf_capacity(&tables.kernel, &resolver.cache(cache).name)? as usize;
        // Each CPU has two sheaves.
        let pool = capacity * (BARN + 2 * cpus as usize);
        Some((cache, Cache { pool, ..Cache::default() }))
    });
    with_sheaves.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};

    #[test]
    fn untraced_free_precedes_reuse_by_the_capacity_of_all_sheaves() {
        // A sheaf holds one object, so one CPU and the barn hold 12.
        let attributes = "name\tsheaf_capacity\nnode\t1\n";
        let objects = |from: u64, n: u64| {
            (from..from + n).map(|n| format!("0 alloc f+0x1 node ffff8880{:08x}", 0x100_0000 + n * 512))
        };
        // The trace allocates 20 objects, and the first two again.
        let lines: Vec<_> = objects(0, 20).chain(objects(0, 2)).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let found = |attributes| {
            let texts =
                [("kernel.txt", "7.2"), ("before.slabinfo", SLABINFO), ("slab-attributes.tsv", attributes)];
            let trace = Trace::new(&lines, &texts);
            let found = recycled(trace.traced(), 1);
            // In the operations, the second allocation follows a hidden free.
            let mut found: Vec<_> = found
                .into_iter()
                .flat_map(|(at, ptrs)| ptrs.into_iter().map(move |ptr| (at, (ptr & 0xff_ffff) / 512)))
                .collect();
            found.sort_unstable();
            found
        };
        let all = found(attributes);
        assert_eq!((all[0], all[1]), ((8, 0), (9, 1)), "12 frees before the addresses are reused");
        // Of the objects not allocated again, the oldest are freed, one at each of the last 12 allocations.
        let last: Vec<_> = all[2..].iter().map(|(_, object)| *object).collect();
        assert_eq!(last, (2..14).collect::<Vec<_>>());
        assert_eq!(found("name\tsheaf_capacity\nnode\t0\n"), [], "without sheaves");
    }
}
