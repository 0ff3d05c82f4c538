//! Allocations and frees without an event, or whose event is in the wrong place: when they happened.

use super::linux;
use super::traced::{Traced, function};
use crate::trace::{FreeOrigin, HiddenFreeSign, Op, OpKind, Pfn, Ptr, SiteId};
use rustc_hash::{FxHashMap, FxHashSet};

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
                if let Some(Seen::EarlyThenAlloc(free, alloc)) = seen.insert(ptr.0, Seen::Reused(at)) {
                    moved.insert(alloc, free);
                    seen.remove(&ptr.0);
                }
            }
            OpKind::HiddenFree { ptr, .. } => _ = seen.remove(&ptr.0),
            OpKind::Alloc { ptr, .. } => match seen.remove(&ptr.0) {
                Some(Seen::Early(free)) => _ = seen.insert(ptr.0, Seen::EarlyThenAlloc(free, at)),
                Some(Seen::Reused(free)) if free + 1 == at => _ = seen.insert(ptr.0, Seen::Reused(free)),
                _ => {}
            },
            OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. } => {
                if let Some(Seen::Reused(free)) = seen.remove(&ptr.0) {
                    seen.insert(ptr.0, Seen::ReusedThenFree(free, at));
                }
            }
            OpKind::Free { cache, ptr, origin } => {
                if let Some(Seen::ReusedThenFree(hidden, free)) = seen.insert(ptr.0, Seen::Early(at)) {
                    ops[hidden].cpu = ops[free].cpu;
                    // What is from before the trace is not freed.
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

/// When objects were given to `kfree_rcu`, which has no event: the operation, and their addresses.
///
/// An object that a function allocates right after another one, and whose call site has no seen free, dies with that other one:
/// `kernfs_fop_open` allocates an open file and what its inode has for all open files. Until 7.0 `kfree_rcu` collects for five seconds.
/// What has no such companion dies when its address is handed out again.
pub(super) fn deaths(Traced { resolver, ops, tables }: Traced<'_>) -> FxHashMap<usize, Vec<u64>> {
    const COLLECTED_NS: u64 = 5_000_000_000;
    /// Operations between the two allocations.
    const NEAR: usize = 8;
    let collected = if linux::is_of_7(&tables.kernel) { 0 } else { COLLECTED_NS };
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
                let name =
                    functions.entry(site).or_insert_with(|| function(&resolver.call_site(site)).to_owned());
                let before = last.insert((op.cpu, name.clone()), (at, lives.len()));
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

/// When objects were allocated that the trace shows the frees of only: the operation, and that of the free; in order.
///
/// Bulk allocation has no event. It takes whole slabs as they are made, so an object that was never seen since its page was
/// handed out was allocated there and then. Of others nothing can be said.
pub(super) fn hidden_allocations(ops: &[Op], page_of: impl Fn(Ptr) -> Option<Pfn>) -> Vec<(usize, usize)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::Trace;
    use crate::trace::{CacheId, PageFreeOrigin, PageUse};

    const CACHE: CacheId = CacheId(0);

    fn ops(kinds: impl IntoIterator<Item = OpKind>) -> Vec<Op> {
        kinds
            .into_iter()
            .zip(1..)
            .map(|(kind, line)| Op { line, time_ns: 0, cpu: 0, task: None, kind })
            .collect()
    }
    fn hidden(ptr: u64) -> OpKind {
        OpKind::Free { cache: CACHE, ptr: Ptr(ptr), origin: FreeOrigin::HiddenAlloc }
    }

    /// Events of one address, on the CPU that each begins with.
    fn in_order(events: &str) -> String {
        let lines = events.split(' ').map(|event| match event.split_at(1) {
            (cpu, "+") => format!("{cpu} alloc f+0x1 node ffff888001000000"),
            (cpu, _) => format!("{cpu} free node ffff888001000000"),
        });
        let lines: Vec<_> = lines.collect();
        let mut ops = Trace::new(&lines.iter().map(String::as_str).collect::<Vec<_>>(), &[]).ops;
        put_in_order(&mut ops);
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
    fn a_free_that_comes_after_the_next_allocation_is_before_it() {
        // CPU 1 frees before CPU 2 allocates; what CPU 3 frees is CPU 2's.
        assert_eq!(in_order("0+ 2+ 1- 3-"), "0+ 1~ 2+ 1. 3-");
        // A free without an event, and one of what was allocated then: nothing is in the wrong order.
        assert_eq!(in_order("0+ 2+ 1- 0+ 3-"), "0+ 2~ 2+ 1- 0+ 3-");
    }

    #[test]
    fn a_free_that_comes_before_its_allocation_is_after_it() {
        assert_eq!(in_order("0+ 0- 1- 2+ 3+ 3-"), "0+ 0- 2+ 1- 3~ 3+ 3-");
        assert_eq!(in_order("0+ 0- 1- 2+ 3-"), "0+ 0- 1? 2+ 3-", "an allocation without an event");
    }

    #[test]
    fn an_object_of_kfree_rcu_dies_with_the_one_that_its_function_allocated_before() {
        // Each round: an open file and what hangs on it, at another address each time; the first one is handed out again at last.
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
        // Five seconds later: the first one, until its address is handed out again.
        assert_eq!(of("6.12.1"), [(7, node(0))]);
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
            may_block: true,
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
