//! Tests the bundled samples: traces of every format and variant, with the numbers that the trace reader must find.

use std::path::PathBuf;

use uslab_sim::trace::{
    CacheKind, DirectMap, Facts, Format, Op, OpKind, PageSize, PageSizeSource, Ptr, Recording, Source, Tables,
};
use uslab_tests::workspace;

use crate::common::{
    TraceCompression, X86_64_BASE, replace_direct_map_addresses, sample_address, synthetic_arm64,
};

struct Sample {
    file: &'static str,
    format: Format,
    total: u64,
    allocs: u64,
    frees: u64,
    /// The number of frees in a sample whose allocation is not in the trace.
    unseen: u64,
    null: u64,
    lost: u64,
    events: &'static [(&'static str, u64)],
}

const SAMPLES: [Sample; 9] = [
    Sample {
        file: "ftrace-6.1",
        format: Format::Ftrace,
        total: 2987,
        allocs: 656,
        frees: 805,
        unseen: 243,
        null: 58,
        lost: 0,
        events: &[
            ("kmem_cache_free", 699),
            ("kmem_cache_alloc", 528),
            ("mm_page_alloc_zone_locked", 447),
            ("mm_page_alloc", 371),
            ("mm_page_free", 335),
            ("mm_page_pcpu_drain", 300),
            ("kfree", 164),
            ("kmalloc", 128),
            ("tracing_mark_write", 15),
        ],
    },
    Sample {
        file: "ftrace-6.12-tgid-hashed",
        format: Format::Ftrace,
        total: 2418,
        allocs: 786,
        frees: 680,
        unseen: 20,
        null: 144,
        lost: 0,
        events: &[
            ("kmem_cache_alloc", 669),
            ("kmem_cache_free", 560),
            ("mm_page_alloc", 383),
            ("mm_page_free", 344),
            ("kfree", 264),
            ("kmalloc", 117),
            ("mm_page_alloc_zone_locked", 66),
            ("tracing_mark_write", 15),
        ],
    },
    Sample {
        file: "ftrace-6.18-hashed",
        format: Format::Ftrace,
        total: 2930,
        allocs: 502,
        frees: 436,
        unseen: 97,
        null: 187,
        lost: 0,
        events: &[
            ("mm_page_alloc", 994),
            ("mm_page_free", 811),
            ("kmem_cache_alloc", 422),
            ("kmem_cache_free", 331),
            ("kfree", 292),
            ("kmalloc", 80),
        ],
    },
    Sample {
        file: "ftrace-6.1-overrun",
        format: Format::Ftrace,
        total: 459,
        allocs: 143,
        frees: 273,
        unseen: 181,
        null: 43,
        lost: 0,
        events: &[("kmem_cache_free", 221), ("kmem_cache_alloc", 106), ("kfree", 95), ("kmalloc", 37)],
    },
    Sample {
        file: "ftrace-6.1-lost-trace_pipe",
        format: Format::Ftrace,
        total: 459,
        allocs: 143,
        frees: 273,
        unseen: 181,
        null: 43,
        lost: 2533,
        events: &[("kmem_cache_free", 221), ("kmem_cache_alloc", 106), ("kfree", 95), ("kmalloc", 37)],
    },
    Sample {
        file: "perf-script-6.1",
        format: Format::PerfScript,
        total: 1978,
        allocs: 458,
        frees: 820,
        unseen: 438,
        null: 67,
        lost: 0,
        events: &[
            ("kmem_cache_free", 707),
            ("kmem_cache_alloc", 333),
            ("mm_page_free", 297),
            ("mm_page_alloc", 240),
            ("kfree", 180),
            ("kmalloc", 125),
            ("mm_page_alloc_zone_locked", 96),
        ],
    },
    Sample {
        file: "perf-script-6.12",
        format: Format::PerfScript,
        total: 3295,
        allocs: 538,
        frees: 988,
        unseen: 538,
        null: 259,
        lost: 0,
        events: &[
            ("mm_page_pcpu_drain", 926),
            ("kmem_cache_free", 858),
            ("kmem_cache_alloc", 418),
            ("kfree", 389),
            ("mm_page_free", 301),
            ("mm_page_alloc", 258),
            ("kmalloc", 120),
            ("mm_page_alloc_zone_locked", 25),
        ],
    },
    Sample {
        file: "perf-script-6.18",
        format: Format::PerfScript,
        total: 1961,
        allocs: 463,
        frees: 312,
        unseen: 9,
        null: 128,
        lost: 0,
        events: &[
            ("mm_page_alloc", 554),
            ("mm_page_free", 504),
            ("kmem_cache_alloc", 362),
            ("kfree", 246),
            ("kmem_cache_free", 194),
            ("kmalloc", 101),
        ],
    },
    Sample {
        file: "trace-cmd-report-6.12",
        format: Format::TraceCmdReport,
        total: 1338,
        allocs: 358,
        frees: 452,
        unseen: 136,
        null: 103,
        lost: 0,
        events: &[
            ("kmem_cache_free", 370),
            ("kmem_cache_alloc", 289),
            ("mm_page_free", 215),
            ("kfree", 185),
            ("mm_page_alloc", 179),
            ("kmalloc", 69),
            ("mm_page_alloc_zone_locked", 31),
        ],
    },
];

fn path(file: &str) -> PathBuf {
    workspace().join("sim/data/samples").join(file).with_added_extension("txt.zst")
}

fn facts(file: &str) -> Facts {
    let mut ops = Recording::open(&path(file)).unwrap().resolve(None).unwrap();
    while ops.next_op().unwrap().is_some() {}
    ops.facts(&Tables::default())
}

#[test]
fn counts_of_each_sample_trace_are_correct() {
    for sample in &SAMPLES {
        let facts = facts(sample.file);
        let objects = &facts.objects;
        assert_eq!(facts.format, Some(sample.format), "{}", sample.file);
        assert_eq!(facts.not_understood, 0, "{}: {:?}", sample.file, facts.first_not_understood);
        assert_eq!(facts.total, sample.total, "{}: events", sample.file);
        assert_eq!(objects.allocs, sample.allocs, "{}: allocations", sample.file);
        assert_eq!(objects.frees, sample.frees, "{}: frees", sample.file);
        assert_eq!(objects.frees - objects.matched, sample.unseen, "{}: frees unseen", sample.file);
        assert_eq!(objects.hidden_allocs + objects.pre_trace_frees, sample.unseen, "{}", sample.file);
        assert_eq!(facts.kfree_of_null, sample.null, "{}: kfree of null", sample.file);
        assert_eq!(facts.lost, sample.lost, "{}: lost events", sample.file);
        let mut ours: Vec<(&str, u64)> = facts.events.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let mut theirs = sample.events.to_vec();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "{}: events by name", sample.file);
    }
}

#[test]
fn trace_header_reveals_a_ring_buffer_overrun() {
    let header = facts("ftrace-6.1-overrun").header.unwrap();
    assert_eq!((header.in_buffer, header.written, header.cpus), (459, 2992, 4));
    assert_eq!(facts("ftrace-6.1-lost-trace_pipe").header, None);
}

#[test]
fn allocation_events_of_new_kernels_name_the_cache() {
    for file in ["ftrace-6.18-hashed", "perf-script-6.18"] {
        let facts = facts(file);
        let (named, all) = facts.cache_alloc_named;
        assert_eq!(named, all, "{file}");
        assert_eq!(facts.name_sources.in_event, facts.objects.allocs, "{file}");
        assert!(facts.caches.iter().any(|cache| cache.name == "maple_node"), "{file}");
    }
}

#[test]
fn hashed_pointers_in_a_trace_are_counted() {
    for (file, hashed) in
        [("ftrace-6.1", false), ("ftrace-6.12-tgid-hashed", true), ("ftrace-6.18-hashed", true)]
    {
        let facts = facts(file);
        let expected = if hashed { facts.objects.allocs + facts.objects.frees } else { 0 };
        assert_eq!(facts.hashed_pointers, expected, "{file}");
    }
}

/// A plain text, a compressed text, and a spool that exceeds its memory must give the same results.
#[test]
fn compressed_trace_gives_the_operations_of_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    for sample in &SAMPLES {
        let packed = std::fs::read(path(sample.file)).unwrap();
        let text = zstd::decode_all(&packed[..]).unwrap();
        let texts = [text.clone(), TraceCompression::Gzip.pack(&text), TraceCompression::Xz.pack(&text)];
        for (n, bytes) in texts.iter().enumerate() {
            // The names of the files do not reveal their format.
            let file = folder.path().join("trace");
            std::fs::write(&file, bytes).unwrap();
            let mut ops = Recording::open(&file).unwrap().resolve(None).unwrap();
            while ops.next_op().unwrap().is_some() {}
            assert_eq!(ops.facts(&Tables::default()), facts(sample.file), "{}, {n}", sample.file);
        }
    }
}

#[test]
fn operations_of_each_sample_trace_are_consistent() {
    for sample in &SAMPLES {
        crate::common::check_operations(&path(sample.file), &Tables::default());
    }
}

/// Returns the facts of a trace and all its operations; the function `back` converts the addresses.
fn read(text: Vec<u8>, back: impl Fn(u64) -> u64) -> (Vec<Op>, Facts) {
    let source = Source::from_reader("moved", Box::new(std::io::Cursor::new(text)), None).unwrap();
    let mut resolver = Recording::read(source, |_| {}).unwrap().resolve(None).unwrap();
    let mut ops = Vec::new();
    while let Some(mut op) = resolver.next_op().unwrap() {
        match &mut op.kind {
            OpKind::Alloc { ptr, .. } | OpKind::Free { ptr, .. } | OpKind::HiddenFree { ptr, .. }
                if ptr.0 >> 48 != 0 =>
            {
                *ptr = Ptr(back(ptr.0));
            }
            _ => {}
        }
        ops.push(op);
    }
    (ops, resolver.facts(&Tables::default()))
}

/// Regression test: the reader assumed that the direct map begins at its address without randomisation. If the direct
/// map began elsewhere, no page was recognised as a slab, and no warning appeared.
#[test]
fn randomised_direct_map_base_is_found_from_trace_addresses() {
    let bundled = workspace().join("sim/data/files-6.1.trace.zst");
    let files = SAMPLES.iter().map(|sample| path(sample.file)).chain([bundled]);
    let shifts = [1 << 30, 0x2a57 << 30, 0xff11_0000_4000_0000_u64.wrapping_sub(X86_64_BASE)];
    for file in files {
        let text = zstd::decode_all(&std::fs::read(&file).unwrap()[..]).unwrap();
        let (ops, facts) = read(text.clone(), |real| real);
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let found = match facts.direct_map {
            DirectMap::At(base) => Some(base),
            DirectMap::Unknown | DirectMap::Hashed => None,
        };
        // The traces lack page events, have hashed pointers, or have addresses that do not correspond to their pages.
        let unknown =
            ["overrun", "lost", "hashed", "perf-script-6.18"].iter().any(|part| name.contains(part));
        assert_eq!(found, (!unknown).then_some(X86_64_BASE), "{name}");
        if found.is_some() {
            assert!(facts.caches.iter().any(|cache| cache.tally.slabs_new > 0), "{name}");
        }
        // The bundled trace is long, so one shift is enough.
        let shifts = if ops.len() > 100_000 { &shifts[1..2] } else { &shifts };
        for &shift in shifts {
            let moved = replace_direct_map_addresses(&text, |real| real.wrapping_add(shift));
            let (moved_ops, mut moved_facts) = read(moved, |real| real.wrapping_sub(shift));
            if let Some(base) = found {
                assert_eq!(moved_facts.direct_map, DirectMap::At(base.wrapping_add(shift)), "{name}");
                moved_facts.direct_map = facts.direct_map;
            }
            assert!(moved_ops == ops, "{name}, moved by {shift:#x}: the operations must not change");
            assert_eq!(moved_facts, facts, "{name}, moved by {shift:#x}");
        }
    }
}

/// Regression test: the reader assumed that every page has 4 KiB. If the pages were larger, objects were attributed to
/// no page or to a wrong page.
#[test]
fn synthetic_arm64_trace_gives_the_operations_of_x86_64() {
    let bundled = workspace().join("sim/data/files-6.1.trace.zst");
    for file in SAMPLES.iter().map(|sample| path(sample.file)).chain([bundled]) {
        let text = zstd::decode_all(&std::fs::read(&file).unwrap()[..]).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let (ops, facts) = read(text.clone(), |real| real);
        if facts.direct_map != DirectMap::At(X86_64_BASE) {
            // The page size cannot be known, and the facts report that.
            assert_eq!(facts.page_size_source, PageSizeSource::Assumed, "{name}");
            continue;
        }
        assert_eq!(
            (facts.page_size, facts.page_size_source),
            (PageSize::Kib4, PageSizeSource::Addresses),
            "{name}"
        );
        // The cases have virtual addresses of 48 and 52 bits, and memory from 1 GiB on, and from 1.5 GiB on, which is a
        // boundary for large pages only.
        let bases = [
            (PageSize::Kib64, 0xffff_0000_0000_0000 - 0x6000_0000),
            (PageSize::Kib64, 0xfff0_0000_0000_0000 - 0x4000_0000),
            (PageSize::Kib16, 0xffff_0000_0000_0000 - 0x4000_0000),
        ];
        // The bundled trace is long, so one base is enough.
        let bases = if ops.len() > 100_000 { &bases[..1] } else { &bases };
        for &(size, base) in bases {
            let (mut made_ops, mut made) =
                read(synthetic_arm64(&text, size, base), |made| sample_address(made, size, base));
            assert_eq!((made.page_size, made.page_size_source), (size, PageSizeSource::Addresses), "{name}");
            assert_eq!(made.direct_map, DirectMap::At(base), "{name}");
            let large = made.caches.iter_mut().find(|cache| cache.kind == CacheKind::KmallocLarge);
            if let Some(large) = large {
                large.tally.size >>= size.shift() - 12;
            }
            for op in &mut made_ops {
                if let OpKind::Alloc { bytes_alloc, .. } = &mut op.kind
                    && u64::from(*bytes_alloc) > size.max_kmalloc_class_bytes()
                {
                    *bytes_alloc >>= size.shift() - 12;
                }
            }
            assert!(made_ops == ops, "{name}, {size}: the operations must not change");
            (made.page_size, made.direct_map, made.bytes) = (facts.page_size, facts.direct_map, facts.bytes);
            assert_eq!(made, facts, "{name}, {size}");
        }
    }
}
