//! Tests for the irregularities of real traces, one test for each.

use std::cell::RefCell;
use std::io::{Cursor, Read};
use std::sync::mpsc;
use uslab::SlabInfo;

use super::*;

/// Formats an ftrace line; `at` contains the CPU and the time, as in `1 2.5`.
fn ftrace(at: &str, event: &str) -> String {
    let (cpu, time) = at.split_once(' ').unwrap();
    format!("            init-1       [{cpu:0>3}] .....     {time}: {event}\n")
}

fn cache_alloc(ptr: u64) -> String {
    format!(
        "kmem_cache_alloc: call_site=__d_alloc+0x29/0x1d0 ptr={ptr:016x} bytes_req=192 bytes_alloc=192 gfp_flags=GFP_KERNEL \
         node=-1 accounted=true"
    )
}

fn cache_free(ptr: u64) -> String {
    format!("kmem_cache_free: call_site=__d_free+0x29/0x1d0 ptr={ptr:016x} name=dentry")
}

fn kmalloc(site: &str, ptr: u64, bytes: u32, gfp: &str) -> String {
    format!(
        "kmalloc: call_site={site}+0x1/0x2 ptr={ptr:016x} bytes_req={bytes} bytes_alloc={bytes} gfp_flags={gfp} \
         node=-1 accounted=false"
    )
}

/// Formats a list of events, each with its CPU and time.
fn trace(events: &[(&str, String)]) -> String {
    events.iter().map(|(at, event)| ftrace(at, event)).collect()
}

fn resolver(text: &str) -> Resolver {
    resolver_with_slabinfo(text, None)
}

fn resolver_with_slabinfo(text: &str, slabinfo: Option<&SlabInfo>) -> Resolver {
    let source = Source::from_reader("test", Box::new(Cursor::new(text.as_bytes().to_vec())), None).unwrap();
    Recording::read(source, |_| {}).unwrap().resolve(slabinfo).unwrap()
}

fn operations(text: &str) -> (Vec<OpKind>, Resolver) {
    let mut resolver = resolver(text);
    let mut kinds = Vec::new();
    while let Some(op) = resolver.next_op().unwrap() {
        kinds.push(op.kind);
    }
    (kinds, resolver)
}

fn facts(text: &str) -> Facts {
    operations(text).1.facts(&Tables::default())
}

fn names(text: &str) -> Vec<String> {
    let (_, resolver) = operations(text);
    resolver.caches().iter().map(|cache| cache.name.clone()).collect()
}

fn event(line: &str) -> Event {
    match Parser::new().parse(line.as_bytes()) {
        Ok(Line::Event(event)) => event,
        other => panic!("{line}: {other:?}"),
    }
}

/// Formats an event that allocates a page for a slab. Together with the next object allocation on this page, the event
/// shows where the direct map starts.
fn page_alloc(pfn: u64) -> String {
    format!("mm_page_alloc: page=ffffea0000000040 pfn={pfn:#x} order=0 migratetype=0 gfp_flags=GFP_KERNEL")
}

/// Returns the address of the n-th object on a page.
fn on_page(pfn: u64, n: u64) -> u64 {
    0xffff_8880_0000_0000 + (pfn << 12) + n * 192
}

// Quirk 1: formats and commands.

#[test]
fn trace_command_name_may_contain_any_text() {
    let body = "kfree: call_site=f+0x1/0x2 ptr=00000000ab6bd4a1";
    for comm in [
        "kworker/0:1",
        "mini-0",
        "a b",
        "[x]",
        "a [001] b",
        "(sd-pam)",
        "x-[000]-y",
        "<...>",
        "a) (1) b",
        ".x:",
    ] {
        for (tgid, pid) in [("", 12), (" (-------)", 12), (" (      1)", 4_000_000)] {
            let line = format!("{comm:>16}-{pid:<7}{tgid} [003] d.h2. 12.345678: {body}");
            let event = event(&line);
            assert_eq!((event.cpu, event.context), (3, Some(b'h')), "{line}");
            assert_eq!(event.time_ns, 12_345_678_000, "{line}");
            assert_eq!(event.comm_unknown, comm == "<...>", "{line}");
            assert!(matches!(event.kind, EventKind::Free { ptr: Ptr(0xab6b_d4a1), .. }), "{line}");
        }
        let line = format!("{comm:>16} 12345 [003] 12.345678:   kmem:{body}");
        assert_eq!(event(&line).cpu, 3, "{line}");
        let line = format!("{comm:>16} 12/345 [003] 12.345678123:   kmem:{body}");
        assert_eq!(event(&line).time_ns, 12_345_678_123, "{line}");
    }
}

#[test]
fn trace_formats_are_distinguished() {
    let format = |text: &str| {
        let mut parser = Parser::new();
        for line in text.lines() {
            parser.parse(line.as_bytes()).unwrap();
        }
        parser.format().unwrap()
    };
    let body = "call_site=f+0x1 ptr=(nil)";
    assert_eq!(format(&format!("  a-1 [000] .....  1.5: kfree: {body}")), Format::Ftrace);
    assert_eq!(format(&format!("  a 1 [000] 1.5: kmem:kfree: {body}")), Format::PerfScript);
    assert_eq!(format(&format!("cpus=4\n  a-1 [000] 1.5: kfree: (f+0x1) {body}")), Format::TraceCmdReport);
    assert_eq!(format(&format!("  a-1 [000] ..... 1.5: kfree:    (f+0x1) {body}")), Format::TraceCmdReport);
    // The option irq-info is off, so lines have no flags column.
    assert_eq!(format(&format!("# tracer: nop\n  a-1 [000] 1.5: kfree: {body}")), Format::Ftrace);
}

#[test]
fn trace_lines_without_events_are_skipped() {
    let mut parser = Parser::new();
    for line in [
        "",
        "   ",
        "# tracer: nop",
        "##### CPU 3 buffer started ####",
        "version = 6",
        "# entries-in-buffer/x",
    ] {
        assert_eq!(parser.parse(line.as_bytes()), Ok(Line::Nothing), "{line:?}");
    }
    assert_eq!(parser.parse(b"cpus=4"), Ok(Line::Header(HeaderFact::Cpus(4))));
    assert_eq!(parser.parse(b"what is this"), Err(RejectReason::NotUnderstood));
    // Call chains occur only in perf's text.
    let chain = b"\tffffffff8130f9d5 kmem_cache_alloc+0x1d5 ([kernel.kallsyms])";
    assert_eq!(parser.parse(chain), Err(RejectReason::NotUnderstood));
    parser.parse(b"a 1 [000] 1.5: kmem:kfree: call_site=f+0x1 ptr=(nil)").unwrap();
    assert_eq!(parser.parse(chain), Ok(Line::Nothing));
}

#[test]
fn trace_fields_of_older_kernels_are_parsed() {
    let line = "  a-1 [000] d... 1.5: kmem_cache_alloc_node: call_site=f+0x1 ptr=0000000012345678 bytes_req=8 bytes_alloc=8 \
                gfp_flags=GFP_KERNEL node=0";
    assert!(matches!(event(line).kind, EventKind::Alloc { via: EventSource::Cache, .. }));
    let line = "  a-1 [000] d... 1.5: kmalloc_node: call_site=f+0x1 ptr=0000000012345678 bytes_req=8 bytes_alloc=8 \
                gfp_flags=GFP_KERNEL";
    assert!(matches!(event(line).kind, EventKind::Alloc { via: EventSource::Kmalloc, .. }));
    let line = "  a-1 [000] d... 1.5: mm_page_free: page=0000000012345678 pfn=123456 order=3";
    assert_eq!(event(line).kind, EventKind::PageFree { pfn: Pfn(123_456), order: 3 });
}

/// Regression test: the parser read a flag at an index beyond the end of the flags.
#[test]
fn last_context_flag_may_be_any_byte() {
    let mut text = ftrace("0 1.0", "kfree: call_site=f+0x1/0x2 ptr=00000000ab6bd4a1").into_bytes();
    let flags = text.windows(5).position(|flags| flags == b".....").unwrap();
    text[flags + 2] = 0xff;
    let source = Source::from_reader("test", Box::new(Cursor::new(text)), None).unwrap();
    let mut resolver = Recording::read(source, |_| {}).unwrap().resolve(None).unwrap();
    resolver.next_op().unwrap();
    assert_eq!(resolver.facts(&Tables::default()).by_context, [('\u{ff}', 1)].into());
}

/// Regression test: the sum of lost events overflowed.
#[test]
fn largest_lost_event_count_is_parsed() {
    let lost = "CPU:1 [LOST 18446744073709551615 EVENTS]\n";
    let event = ftrace("0 1.0", "kfree: call_site=f+0x1/0x2 ptr=00000000ab6bd4a1");
    assert_eq!(facts(&format!("{lost}{lost}{event}")).lost, u64::MAX);
}

// Quirk 2: names.

#[test]
fn free_event_names_the_cache_of_its_call_site() {
    let (a, b) = (on_page(1, 0), on_page(2, 0));
    let text = trace(&[("0 1.0", cache_alloc(a)), ("0 1.1", cache_alloc(b)), ("0 1.2", cache_free(a))]);
    let (_, resolver) = operations(&text);
    assert_eq!(resolver.cache(CacheId(0)).name, "dentry");
    let sources = resolver.name_sources();
    assert_eq!((sources.by_free, sources.by_site, sources.left), (1, 1, 0));
}

#[test]
fn objects_of_a_shared_call_site_keep_their_cache() {
    let (a, b) = (on_page(1, 0), on_page(2, 0));
    let other = cache_free(b).replace("dentry", "inode_cache");
    let text = trace(&[
        ("0 1.0", cache_alloc(a)),
        ("0 1.1", cache_alloc(b)),
        ("0 1.2", cache_free(a)),
        ("0 1.3", other),
    ]);
    let facts = facts(&text);
    assert_eq!(facts.call_sites_with_several_caches, 1);
    assert_eq!(facts.name_sources.by_free, 2);
    for cache in ["dentry", "inode_cache"] {
        let found = facts.caches.iter().find(|c| c.name == cache).unwrap();
        assert_eq!((found.tally.allocs, found.tally.matched_frees), (1, 1), "{cache}");
    }
}

#[test]
fn unnamed_cache_is_named_after_its_page_neighbour() {
    let unnamed = |ptr| cache_alloc(ptr).replace("__d_alloc", "other");
    let named = [
        ("0 1.0", cache_alloc(on_page(1, 0))),
        ("0 1.5", unnamed(on_page(1, 1))),
        ("0 1.9", cache_free(on_page(1, 0))),
    ];
    assert_eq!(names(&trace(&named)), ["dentry"]);
    // The page was freed in between, so its objects are not neighbours.
    let mut freed = named.to_vec();
    freed.insert(0, ("0 0.9", page_alloc(1)));
    freed.insert(2, ("0 1.2", "mm_page_free: page=ffffea0000000040 pfn=0x1 order=0".to_owned()));
    assert_eq!(names(&trace(&freed)), ["dentry", "?other:192"]);
    let alone = trace(&[("0 1.0", unnamed(on_page(1, 0)))]);
    assert_eq!(names(&alone), ["?other:192"]);
    let row = |name: &str| format!("{name} 1 1 192 21 1 : tunables 0 0 0 : slabdata 1 1 0\n");
    let table = |rows: &[&str]| {
        let rows: String = rows.iter().map(|name| row(name)).collect();
        format!("slabinfo - version: 2.1\n{rows}").parse().unwrap()
    };
    for (rows, name) in [
        (&["kmalloc-192", "cred"][..], "cred"),
        (&["dentry", "cred"], "?other:192"),
        (&["kmalloc-192"], "?other:192"),
    ] {
        let mut resolver = resolver_with_slabinfo(&alone, Some(&table(rows)));
        resolver.next_op().unwrap();
        assert_eq!(resolver.caches()[0].name, name);
    }
}

#[test]
fn kmalloc_size_classes_and_buckets_are_named() {
    let class = |text: &str| names(text).pop().unwrap();
    let one = |site: &str, bytes, gfp: &str| trace(&[("0 1.0", kmalloc(site, on_page(1, 0), bytes, gfp))]);
    assert_eq!(class(&one("f", 64, "GFP_KERNEL")), "kmalloc-64");
    assert_eq!(class(&one("f", 2048, "GFP_KERNEL_ACCOUNT|__GFP_ZERO")), "kmalloc-cg-2k");
    assert_eq!(class(&one("f", 96, "GFP_KERNEL_ACCOUNT|__GFP_RECLAIMABLE")), "kmalloc-rcl-96");
    assert_eq!(class(&one("f", 96, "GFP_KERNEL|GFP_DMA")), "dma-kmalloc-96");
    assert_eq!(class(&one("load_msg", 512, "GFP_KERNEL_ACCOUNT")), "kmalloc-cg-512");
    // A later kernel, recognised by the wrapper functions, has separate classes for messages.
    let new = one("load_msg", 512, "GFP_KERNEL_ACCOUNT")
        + &one("kmemdup_noprof", 8, "GFP_KERNEL").replace("[000]", "[001]");
    assert_eq!(names(&new), ["msg_msg-512", "kmalloc-8"]);
}

// Quirks 4, 5 and 6: kfree of any object, of null, and of large memory.

#[test]
fn kfree_frees_objects_of_named_caches() {
    let a = on_page(1, 0);
    let kfree = format!("kfree: call_site=f+0x1/0x2 ptr={a:016x}");
    let facts = facts(&trace(&[("0 1.0", cache_alloc(a)), ("1 1.1", kfree)]));
    assert_eq!((facts.objects.matched, facts.objects.remote), (1, 1));
    assert_eq!(facts.objects.kfree_of_cache_object, [("?__d_alloc:192".to_owned(), 1)]);
}

#[test]
fn kfree_of_null_is_ignored() {
    for null in ["0000000000000000", "(nil)", "(null)", "0x0"] {
        let text = trace(&[("0 1.0", format!("kfree: call_site=f+0x1/0x2 ptr={null}"))]);
        let facts = facts(&text);
        assert_eq!((facts.kfree_of_null, facts.objects.frees, facts.call_sites), (1, 0, 0), "{null}");
    }
}

#[test]
fn failed_kernel_allocations_are_counted() {
    let text = trace(&[
        ("0 1.0", kmalloc("f", 7, 64, "GFP_KERNEL").replace("0000000000000007", "(____ptrval____)")),
        ("0 1.1", kmalloc("f", 0, 64, "GFP_KERNEL")),
        (
            "0 1.2",
            "mm_page_alloc: page=0000000000000000 pfn=0x0 order=3 migratetype=0 gfp_flags=GFP_KERNEL"
                .to_owned(),
        ),
    ]);
    let facts = facts(&text);
    assert_eq!((facts.placeholders, facts.alloc_failed, facts.pages.alloc_failed), (1, 1, 1));
    assert_eq!(facts.objects.allocs, 0);
}

#[test]
fn large_kmallocs_become_page_allocations() {
    let page =
        "mm_page_alloc: page=ffffea0000000400 pfn=0x10 order=2 migratetype=0 gfp_flags=GFP_KERNEL|__GFP_COMP";
    let text =
        trace(&[("0 1.0", page.to_owned()), ("0 1.1", kmalloc("f", on_page(16, 0), 16384, "GFP_KERNEL"))]);
    let (kinds, resolver) = operations(&text);
    assert!(matches!(kinds[0], OpKind::PageAlloc { usage: PageUse::KmallocLarge, order: 2, .. }));
    assert!(matches!(kinds[1], OpKind::Alloc { bytes_alloc: 16384, .. }));
    assert_eq!(resolver.cache(CacheId(0)).kind, CacheKind::KmallocLarge);
    let tally = resolver.cache_tally(CacheId(0));
    assert_eq!((tally.allocs, tally.slabs_new), (1, 0));
}

// Quirks 7 to 10: what the kernel did not trace, and events in the wrong order.

#[test]
fn frees_without_a_traced_allocation_are_counted() {
    let text = trace(&[
        ("0 0.8", page_alloc(3)),
        ("0 0.9", cache_alloc(on_page(3, 0))),
        ("0 1.0", page_alloc(1)),
        ("0 1.1", cache_free(on_page(1, 0))), // its page was allocated here
        ("0 1.2", cache_free(on_page(2, 0))), // from before the trace
        ("0 1.3", cache_free(on_page(2, 0))), // again: it must have been allocated in between
    ]);
    let (kinds, _) = operations(&text);
    let origins: Vec<_> = kinds
        .iter()
        .filter_map(|kind| match kind {
            OpKind::Free { origin, .. } => Some(*origin),
            _ => None,
        })
        .collect();
    assert_eq!(origins, [FreeOrigin::HiddenAlloc, FreeOrigin::PreTrace, FreeOrigin::HiddenAlloc]);
    assert!(matches!(kinds[2], OpKind::PageAlloc { usage: PageUse::Slab, .. }));
}

#[test]
fn unrecorded_frees_are_inferred() {
    let (a, b) = (on_page(1, 0), on_page(1, 3));
    let page = "page=ffffea0000000040 pfn=0x1 order=0";
    let text = trace(&[
        ("0 1.0", format!("mm_page_alloc: {page} migratetype=0 gfp_flags=GFP_KERNEL")),
        ("0 1.1", cache_alloc(a)),
        ("1 1.2", cache_alloc(a)),
        ("1 1.3", cache_alloc(b)),
        ("2 1.4", format!("mm_page_free: {page}")),
    ]);
    let (kinds, resolver) = operations(&text);
    let hidden: Vec<_> = kinds
        .iter()
        .filter_map(|kind| match *kind {
            OpKind::HiddenFree { ptr, alloc_cpu, sign, .. } => Some((ptr, alloc_cpu, sign)),
            _ => None,
        })
        .collect();
    assert_eq!(
        hidden,
        [
            (Ptr(a), 0, HiddenFreeEvidence::Reused),
            (Ptr(a), 1, HiddenFreeEvidence::PageFreed),
            (Ptr(b), 1, HiddenFreeEvidence::PageFreed)
        ]
    );
    assert!(matches!(
        kinds.last(),
        Some(OpKind::PageFree {
            usage: PageUse::Slab,
            origin: PageFreeOrigin::Matched { alloc_cpu: 0, order: 0 },
            ..
        })
    ));
    let all = resolver.total_tally();
    assert_eq!((all.live, all.hidden_frees), (0, 3));
}

#[test]
fn events_of_two_cpus_are_reordered_by_time() {
    let a = on_page(1, 0);
    let pairs = |events: &[(&str, String)]| facts(&trace(events)).objects.swapped_pairs;
    // A free appears after the next allocation.
    let late = [
        ("0 1.0", cache_alloc(a)),
        ("1 1.1", cache_alloc(a)),
        ("0 1.2", cache_free(a)),
        ("1 1.3", cache_free(a)),
    ];
    assert_eq!(pairs(&late), (1, 0));
    // A free appears before its own allocation.
    let first = [("0 1.0", cache_alloc(a)), ("0 1.1", cache_free(a))];
    let early = [
        ("1 1.2", cache_free(a)),
        ("0 1.3", cache_alloc(a)),
        ("0 1.4", cache_alloc(a)),
        ("0 1.5", cache_free(a)),
    ];
    assert_eq!(pairs(&[&first[..], &early].concat()), (0, 1));
    // A complete life in between makes two unrelated hidden events.
    let life = [("0 1.35", cache_free(a)), ("0 1.36", cache_alloc(a))];
    assert_eq!(pairs(&[&first[..], &early[..2], &life, &early[2..]].concat()), (0, 0));
    // A complete life within one time stamp does not determine the order.
    let life = [("0 1.2", cache_free(a)), ("0 1.2", cache_alloc(a))];
    let early = [
        ("1 1.2", cache_free(a)),
        ("0 1.2", cache_alloc(a)),
        ("0 1.4", cache_alloc(a)),
        ("0 1.5", cache_free(a)),
    ];
    assert_eq!(pairs(&[&first[..], &early[..2], &life, &early[2..]].concat()), (0, 1));
}

#[test]
fn trace_time_may_step_back_only_between_cpus() {
    // The text has two CPUs one after the other, so the events are sorted by time.
    let a = on_page(1, 0);
    let text = trace(&[
        ("0 1.0", cache_alloc(a)),
        ("0 3.0", cache_alloc(a)),
        ("0 3.5", cache_free(a)),
        ("1 2.0", cache_free(a)),
        ("1 0.0", cache_alloc(on_page(2, 0))), // its clock had not started: after the event before
    ]);
    let facts = facts(&text);
    assert_eq!((facts.times_going_back, facts.zero_times), (2, 1));
    let objects = facts.objects;
    assert_eq!((objects.matched, objects.remote, objects.hidden_frees), (2, 1, 0));
    assert_eq!(facts.time, Some((1.0, 3.5)));
    // On a single CPU, time may not decrease.
    let text = trace(&[("0 2.0", cache_alloc(a)), ("1 3.0", cache_free(a)), ("0 1.5", cache_alloc(a))]);
    let source = Source::from_reader("t", Box::new(std::io::Cursor::new(text)), None).unwrap();
    let error = Recording::read(source, |_| {}).unwrap_err().to_string();
    assert!(error.contains("t:3: time goes back on CPU 0, from 2.000000 to 1.500000 s"), "{error}");
}

#[test]
fn cache_names_are_learned_in_time_order() {
    // One call site allocates from two caches, which used the same address. In the order of the lines, the second
    // allocation hides the first.
    let a = on_page(1, 0);
    let free = |name: &str| cache_free(a).replace("name=dentry", &format!("name={name}"));
    let lines = |events: &[(&str, String)]| {
        let (kinds, resolver) = operations(&trace(events));
        let names = kinds.iter().filter_map(|kind| match kind {
            OpKind::Alloc { cache, .. } => Some(resolver.cache(*cache).name.clone()),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    let by_cpu = lines(&[
        ("0 1.0", cache_alloc(a)),
        ("0 3.0", cache_alloc(a)),
        ("1 2.0", free("first")),
        ("1 4.0", free("second")),
    ]);
    assert_eq!(by_cpu, ["first", "second"]);
}

// Quirk 11: pages.

#[test]
fn partly_freed_traced_block_can_be_allocated_again() {
    let alloc = |pfn: u64, order| {
        format!(
            "mm_page_alloc: page=ffffea0000000040 pfn={pfn:#x} order={order} migratetype=1 gfp_flags=none"
        )
    };
    let free = |pfn: u64, order| format!("mm_page_free: page=ffffea0000000040 pfn={pfn:#x} order={order}");
    let text = trace(&[
        ("0 1.0", free(0x400, 10)), // memory handed over at boot
        ("0 1.1", alloc(0x10, 3)),
        ("0 1.2", free(0x16, 1)), // its tail is freed
        ("0 1.3", alloc(0x16, 0)),
        ("1 1.4", free(0x16, 0)),
        ("1 1.5", alloc(0x10, 0)), // the whole block again, its free unseen
    ]);
    let (kinds, resolver) = operations(&text);
    let pages = resolver.facts(&Tables::default()).pages;
    assert_eq!(
        (pages.free_unseen, pages.free_matched, pages.free_remote, pages.alloc_over_live),
        (2, 1, 1, 2)
    );
    assert_eq!(pages.peak, 9);
    assert_eq!(pages.allocs_by_migratetype, [0, 3]);
    assert!(kinds.contains(&OpKind::PageFree {
        pfn: Pfn(0x10),
        order: 3,
        origin: PageFreeOrigin::Hidden { alloc_cpu: 0 },
        usage: PageUse::Other
    }));
}

/// Regression test: after a slab's pages were reused, the old slab and its objects still counted for their
/// cache.
#[test]
fn slab_ends_when_its_page_is_allocated_again() {
    let text = trace(&[
        ("0 1.0", page_alloc(0x10)),
        ("0 1.1", cache_alloc(on_page(0x10, 0))),
        ("0 1.2", cache_alloc(on_page(0x10, 1))),
        ("0 1.3", cache_free(on_page(0x10, 1))),
        ("1 1.4", page_alloc(0x10)),
        ("1 1.5", cache_alloc(on_page(0x10, 0))),
        ("1 1.6", cache_free(on_page(0x10, 0))),
    ]);
    let (kinds, resolver) = operations(&text);
    let gone = kinds.iter().filter(|kind| {
        matches!(kind, OpKind::HiddenFree { ptr, sign: HiddenFreeEvidence::PageFreed, .. } if ptr.0 == on_page(0x10, 0))
    });
    assert_eq!(gone.count(), 1, "{kinds:?}");
    let facts = resolver.facts(&Tables::default());
    assert_eq!(facts.pages.peak, 2, "the events name the tables");
    let tally = &facts.caches.iter().find(|cache| cache.name == "dentry").unwrap().tally;
    assert_eq!((tally.slabs, tally.slabs_gone, tally.slabs_peak, tally.live), (1, 1, 1, 0));
}

#[test]
fn unreplayable_trace_events_are_counted() {
    let page = |order| format!("page=ffffea000020cac0 pfn=0x832b order={order} migratetype=2");
    let text = trace(&[
        ("0 1.0", format!("mm_page_alloc_zone_locked: {} percpu_refill=1", page(0))),
        ("1 1.0", format!("mm_page_alloc_zone_locked: {} percpu_refill=0", page(4))),
        ("0 1.0", format!("mm_page_pcpu_drain: {}", page(1))),
        (
            "0 1.0",
            "mm_page_alloc_extfrag: page=ffffea0000220000 pfn=0x8800 alloc_order=3 fallback_order=10"
                .to_owned(),
        ),
        ("0 1.0", "mm_page_free_batched: page=ffffea0000220000 pfn=0x8800 order=0".to_owned()),
        ("0 1.0", "sched_switch: prev_comm=a prev_pid=1".to_owned()),
    ]);
    let (kinds, resolver) = operations(&text);
    let facts = resolver.facts(&Tables::default());
    assert!(kinds.is_empty());
    assert_eq!((facts.total, facts.not_understood), (6, 0));
    assert_eq!((facts.pages.percpu_refills, facts.pages.zone_direct), (1, 1));
    assert!(facts.events.contains(&("mm_page_free_batched".to_owned(), 1)));
    // The page allocator's list events are kept separately from the operations.
    let (page, kind) = (0x832b, |percpu_refill| PageMoveKind::Taken { percpu_refill });
    let expected = [
        (0, page, 0, 2, kind(true)),
        (1, page, 4, 2, kind(false)),
        (0, page, 1, 2, PageMoveKind::Drained),
        (0, 0x8800, 3, 0, PageMoveKind::Fallback),
    ];
    let expected = (1..).zip(expected).map(|(line, (cpu, pfn, order, migratetype, kind))| PageMove {
        line,
        time_ns: 1_000_000_000,
        cpu,
        pfn: Pfn(pfn),
        order,
        migratetype,
        kind,
    });
    // The spool is in memory, and then in a file.
    for limit in [1 << 20, 64] {
        let stream = Box::new(Cursor::new(text.clone()));
        let mut recording = Recording::read_with_spool_limit(
            limit,
            Source::from_reader("test", stream, None).unwrap(),
            None,
            |_| {},
        )
        .unwrap();
        for _ in 0..2 {
            assert_eq!(recording.page_moves().unwrap(), expected.clone().collect::<Vec<_>>());
        }
    }
}

// Quirk 12: hashed pointers show nothing about pages.

#[test]
fn hashed_pointers_have_no_page_number() {
    let facts = facts(&trace(&[("0 1.0", cache_alloc(0x9997_02f4)), ("0 1.1", cache_free(0x9997_02f4))]));
    assert_eq!((facts.hashed_pointers, facts.objects.matched), (2, 1));
    assert_eq!(facts.direct_map, DirectMap::Hashed);
}

// Quirk 14: lost events.

#[test]
fn lost_event_notices_are_parsed() {
    let mut parser = Parser::new();
    for (line, lost) in [
        ("CPU:3 [LOST 71 EVENTS]", 71),
        ("CPU:0 [LOST 2065 EVENTS]", 2065),
        ("CPU:1 [5 EVENTS DROPPED]", 5),
        ("CPU:1 [EVENTS DROPPED]", 0),
    ] {
        assert_eq!(parser.parse(line.as_bytes()), Ok(Line::Lost(lost)), "{line}");
    }
    parser.parse(b"a 1 [000] 1.5: kmem:kfree: call_site=f+0x1 ptr=(nil)").unwrap();
    assert_eq!(parser.parse(b"a 1 [000] 1.6: PERF_RECORD_LOST lost 17"), Ok(Line::Lost(17)));
}

// Quirk 15: contexts.

#[test]
fn trace_context_flags_are_parsed() {
    let line = |flags: &str| format!("  a-1 [000] {flags} 1.5: kfree: call_site=f+0x1 ptr=(nil)\n");
    let text: String =
        [".....", "..s1.", "d.h2.", "d.H2.", "bNs3."].iter().map(|flags| line(flags)).collect();
    let facts = facts(&text);
    let contexts: Vec<_> = facts.by_context.into_iter().collect();
    assert_eq!(contexts, [('.', 1), ('H', 1), ('h', 1), ('s', 2)]);
}

/// The test compares two spools: the first is in memory; the records of the second pass through the temporary file and
/// are changed there.
#[test]
fn spool_on_disk_equals_spool_in_memory() {
    let page =
        |pfn: u64| format!("mm_page_alloc: page=0 pfn={pfn:#x} order=0 migratetype=0 gfp_flags=GFP_KERNEL");
    let mut text = String::new();
    for n in 1..200 {
        text += &ftrace("0 1.0", &page(n));
    }
    for n in 1..200 {
        text += &ftrace("1 2.0", &cache_alloc(on_page(n, n % 21)));
    }
    for n in 1..200 {
        let free = cache_free(on_page(n, n % 21));
        text += &ftrace("2 3.0", &if n % 3 == 0 { free.replace("dentry", "inode_cache") } else { free });
    }
    let facts_within = |limit| {
        let source =
            Source::from_reader("test", Box::new(Cursor::new(text.clone().into_bytes())), None).unwrap();
        let mut resolver =
            Recording::read_with_spool_limit(limit, source, None, |_| {}).unwrap().resolve(None).unwrap();
        let mut operations = Vec::new();
        while let Some(op) = resolver.next_op().unwrap() {
            operations.push(op);
        }
        assert_eq!(resolver.progress(), (597, 597));
        (operations, resolver.facts(&Tables::default()))
    };
    let in_memory = facts_within(1 << 20);
    assert_eq!(in_memory.1.name_sources.by_free, 199);
    assert_eq!(in_memory.1.caches.len(), 2);
    for limit in [1, 64, 4000] {
        assert_eq!(facts_within(limit), in_memory, "{limit} bytes in memory");
    }
}

#[test]
fn trace_marks_become_operations_with_text() {
    let text = trace(&[
        ("0 1.0", "tracing_mark_write: SNAP before begin".to_owned()),
        ("0 1.5", "tracing_mark_write: a=b [c]".to_owned()),
    ]);
    let (kinds, resolver) = operations(&text);
    let texts: Vec<_> = kinds
        .iter()
        .map(|kind| match kind {
            OpKind::Mark { text } => resolver.mark(*text),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, ["SNAP before begin", "a=b [c]"]);
}

/// A stream that never ends; dropping the stream also drops its sender.
struct EndlessStream {
    text: Cursor<String>,
    _alive: mpsc::Sender<()>,
}

impl Read for EndlessStream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.text.read(buffer)? {
            0 => Ok(buffer.iter_mut().map(|byte| *byte = b'\n').count()),
            n => Ok(n),
        }
    }
}

#[test]
fn read_error_ends_the_read_ahead_thread() {
    let lines = [cache_alloc(0x1000), "mm_page_free: page=1 pfn=0x1 order=99".to_owned()];
    let text = Cursor::new(lines.map(|line| ftrace("0 1.5", &line)).concat());
    let (alive, gone) = mpsc::channel();
    let stream = Box::new(EndlessStream { text, _alive: alive });
    let read = Recording::read(Source::from_reader("endless", stream, None).unwrap(), |_| {});
    assert_eq!(read.unwrap_err().to_string(), "endless:2: impossible order=99 (0 to 13 are accepted)");
    assert_eq!(
        gone.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "the stream must not be read to its end"
    );
}

/// Regression test: after a scope has returned, a thread of the scope may still be exiting. Fuzzers reported the memory
/// of such a thread as leaked.
#[test]
fn decompression_thread_ends_with_the_trace() {
    /// A thread-local value that the thread drops after all its other thread-local values.
    struct ThreadEndNotifier(mpsc::Sender<()>);
    thread_local!(static THREAD_END_NOTIFIER: RefCell<Option<ThreadEndNotifier>> = const { RefCell::new(None) });
    impl Drop for ThreadEndNotifier {
        fn drop(&mut self) {
            std::thread::sleep(std::time::Duration::from_millis(100));
            // The test may already be over.
            let _ = self.0.send(());
        }
    }
    struct NotifyingText(Cursor<String>, mpsc::Sender<()>);
    impl Read for NotifyingText {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            THREAD_END_NOTIFIER
                .with_borrow_mut(|end| _ = end.get_or_insert_with(|| ThreadEndNotifier(self.1.clone())));
            self.0.read(to)
        }
    }
    // The second text makes the parsing thread end early.
    for (line, is_trace) in [("Alloc(552),\n", true), ("no trace\n", false)] {
        let (ends, ended) = mpsc::channel();
        // The calling thread reads the first bytes, to detect the kind of text.
        let text = NotifyingText(Cursor::new(line.repeat(1 << 14)), ends);
        let source = Source::from_reader("test", Box::new(text), None).unwrap();
        THREAD_END_NOTIFIER.set(None);
        while ended.try_recv().is_ok() {}
        assert_eq!(Recording::read(source, |_| {}).is_ok(), is_trace);
        assert_eq!(ended.try_recv(), Ok(()));
    }
}

#[test]
fn perf_command_is_shown_with_its_control_group() {
    let line = "bash  7 [000] 1.5: kmem:kmalloc: call_site=f+0x1 ptr=0xffff888003000000 bytes_req=60 bytes_alloc=64 \
                gfp_flags=GFP_KERNEL node=-1 accounted=false";
    for (line, task) in
        [(line.to_owned(), "bash"), (format!("{line} /user.slice/a"), "bash in /user.slice/a")]
    {
        let mut parser = Parser::new();
        let Ok(Line::Event(Event { task: Some(found), .. })) = parser.parse(line.as_bytes()) else {
            panic!("{line}")
        };
        assert_eq!(parser.strings().tasks.text(found), task);
    }
}

/// Regression test: the report contained no comparison, although the table `before` was in the folder.
#[test]
fn missing_snapshot_mark_is_assumed_at_the_start() {
    let table = |objects: u64| {
        format!("slabinfo - version: 2.1\ndentry {objects} 42 192 21 1 : tunables 0 0 0 : slabdata 2 2 0\n")
    };
    let (before, after) = (table(5), table(6));
    let text = |path: &std::path::Path| match path.file_name()?.to_str()? {
        "before.slabinfo" => Some(before.clone()),
        "after.slabinfo" => Some(after.clone()),
        _ => None,
    };
    let tables = Tables::of(std::path::Path::new("x"), |path| Ok(text(path))).unwrap();
    let events = [
        ("0 2.0", cache_alloc(0xffff_8880_0000_1000)),
        ("0 2.5", cache_free(0xffff_8880_0000_1000)),
        ("0 3.0", cache_alloc(0xffff_8880_0000_10c0)),
        ("0 4.0", "tracing_mark_write: SNAP after begin".to_owned()),
    ];
    let facts = |header: &str| {
        let text = header.to_owned() + &trace(&events);
        let source = Source::from_reader("test", Box::new(Cursor::new(text.into_bytes())), None).unwrap();
        let mut recording = Recording::read(source, |_| {}).unwrap();
        recording.restore_lost_mark(&tables);
        let mut resolver = recording.resolve(tables.latest_slabinfo()).unwrap();
        while resolver.next_op().unwrap().is_some() {}
        resolver.facts(&tables)
    };
    let lost = facts("# entries-in-buffer/entries-written: 4/9   #P:1\n");
    assert!(lost.mark_was_lost);
    assert_eq!(lost.marks.iter().map(|mark| mark.at).collect::<Vec<_>>(), [0, 3]);
    let [span] = &lost.slabinfo[..] else { panic!("{:?}", lost.slabinfo) };
    assert_eq!((span.from, span.rows[0].allocs, span.rows[0].real, span.rows[0].raw), ("before", 2, 1, 1));
    let whole = facts("# entries-in-buffer/entries-written: 4/4   #P:1\n");
    assert!(!whole.mark_was_lost && whole.slabinfo.is_empty());
}
