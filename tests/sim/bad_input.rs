//! Tests that an error in a file is reported with the file's name and the position of the error, without a panic.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt, SeedableRng};
use uslab_sim::trace::{Impossible, Recording, Source, Tables, TraceError};
use uslab_tests::workspace;

use crate::common::TraceCompression;

const VALID_LINES: &str = "            init-1       [003] .....     6.254505: kmem_cache_alloc: call_site=f+0x95/0x150 \
                    ptr=ffff888004a9a000 bytes_req=64 bytes_alloc=64 gfp_flags=GFP_KERNEL node=-1 accounted=true\n";

fn read(name: &str, bytes: &[u8]) -> Result<Recording, TraceError> {
    let source = Source::from_reader(name, Box::new(Cursor::new(bytes.to_vec())), Some(bytes.len() as u64))?;
    Recording::read(source, |_| {})
}

fn message(bytes: &[u8]) -> String {
    read("t.txt", bytes).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn unreadable_trace_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.txt");
    let error = Recording::open(&missing).unwrap_err();
    assert!(matches!(error, TraceError::Open { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&*missing.to_string_lossy()), "{error}");
    let error = Recording::open(folder.path()).unwrap_err();
    assert!(matches!(error, TraceError::Directory { .. }), "{error:?}");
    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let error = Recording::open(&empty).unwrap_err();
    assert!(matches!(error, TraceError::Empty { .. }), "{error:?}");
}

#[test]
fn binary_trace_files_are_refused() {
    assert!(matches!(read("t", b"\x7fELF\x02\x01\x01\x00\x00\x00").unwrap_err(), TraceError::Binary { .. }));
    assert!(message(b"PERFILE2\x68\x00\x00").contains("perf script"));
    assert!(message(b"\x17\x08Dtracing6\x00").contains("trace-cmd report"));
    for packing in TraceCompression::ALL {
        let twice = packing.pack(&TraceCompression::Gzip.pack(VALID_LINES.as_bytes()));
        assert_eq!(message(&twice), "t.txt: not text: compressed twice; unpack it once", "{packing:?}");
    }
}

#[test]
fn trace_text_without_events_is_refused() {
    let error = read("t.txt", b"# a comment\n").unwrap_err();
    assert_eq!(error.to_string(), "t.txt: no event in 1 lines");
    let error = read("t.txt", b"Dear reader,\nthis is a letter.\n").unwrap_err();
    assert!(error.to_string().contains("\"Dear reader,\""), "{error}");
}

#[test]
fn damaged_compressed_traces_are_refused() {
    // The numbers vary, so that the packed file is not tiny.
    let text: String = (0..1000_u64)
        .map(|n| {
            VALID_LINES.replace("004a9a000", &format!("{:09x}", n.wrapping_mul(0x9e37_79b9) & 0xf_ffff_ffc0))
        })
        .collect();
    for packing in TraceCompression::ALL {
        let packed = packing.pack(text.as_bytes());
        let events = |bytes: &[u8]| read("t", bytes).map(|recording| recording.counts().events);
        assert_eq!(events(&packed).unwrap(), 1000, "{packing:?}");
        // The concatenation of two packed files is a packed file.
        assert_eq!(events(&packed.repeat(2)).unwrap(), 2000, "{packing:?}");
        let mut cuts = vec![6, 11, 20, packed.len() / 2, packed.len() - 9, packed.len() - 1];
        cuts.extend((0..packed.len()).skip(7).step_by(997));
        for cut in cuts {
            let error = events(&packed[..cut]).unwrap_err();
            assert!(matches!(error, TraceError::Truncated { .. }), "{packing:?} cut at {cut}: {error:?}");
            assert_eq!(error.to_string(), "t: the compressed file is truncated or damaged");
        }
        let damaged = |at: usize| {
            let mut damaged = packed.clone();
            damaged[at..at + 4].iter_mut().for_each(|byte| *byte ^= 0x55);
            events(&damaged).unwrap_err()
        };
        // The damage is in the checksums at the end, then in the middle, after which some decoders miss the end.
        let error = damaged(packed.len() - 4);
        assert!(matches!(error, TraceError::Damaged { .. }), "{packing:?}: {error:?}");
        assert_eq!(error.to_string(), format!("t: its {} data is damaged", packing.name()));
        let error = damaged(packed.len() / 2);
        let told = matches!(error, TraceError::Damaged { .. } | TraceError::Truncated { .. });
        assert!(told, "{packing:?}: {error:?}");
    }
}

#[test]
fn xz_window_above_the_memory_limit_is_refused() {
    let mut packed = TraceCompression::Xz.pack(VALID_LINES.as_bytes());
    // The stream's header has 12 bytes. The block header has its length, flags, the filter's number, and the filter's
    // one-byte property, the window: 30 is 128 MiB, 31 is 192 MiB.
    assert_eq!(packed[14..16], [0x21, 1]);
    let length = (usize::from(packed[12]) + 1) * 4;
    let mut with_window = |code| {
        packed[16] = code;
        let mut sum = flate2::Crc::new();
        sum.update(&packed[12..12 + length - 4]);
        packed[12 + length - 4..12 + length].copy_from_slice(&sum.sum().to_le_bytes());
        read("t.xz", &packed)
    };
    assert_eq!(with_window(30).unwrap().counts().events, 1);
    assert_eq!(
        with_window(31).unwrap_err().to_string(),
        "t.xz: its xz data refers further back than the 128 MiB that are accepted"
    );
}

#[test]
fn trace_with_a_truncated_last_line_is_read() {
    // Regression test: the whole trace was refused for a cut last line.
    let cut = VALID_LINES.repeat(3);
    let cut = &cut[..cut.len() - 70];
    let recording = read("t.txt", cut.as_bytes()).unwrap();
    assert_eq!((recording.counts().events, recording.counts().not_understood), (2, 0));
    let (line, text) = recording.counts().cut_line.clone().unwrap();
    assert_eq!(line, 3);
    assert!(VALID_LINES.starts_with(&text), "{text}");
    // A file with nothing else is not a trace.
    let error = read("t.txt", &VALID_LINES.as_bytes()[..80]).unwrap_err();
    assert!(matches!(&error, TraceError::NotATrace { first, .. } if !first.is_empty()), "{error:?}");
    // A last line that only lacks its line feed is an event like any other, and counted.
    let whole = VALID_LINES.repeat(3);
    let recording = read("t.txt", whole.trim_end().as_bytes()).unwrap();
    assert_eq!(recording.counts().events, 3);
    assert!(recording.counts().unterminated && recording.counts().cut_line.is_none());
    // A line cut in the middle of the file is not understood, and shown in the report.
    let middle = format!("{VALID_LINES}{}\n{}", &VALID_LINES[..80], VALID_LINES.repeat(20));
    let recording = read("t.txt", middle.as_bytes()).unwrap();
    assert_eq!((recording.counts().events, recording.counts().not_understood), (21, 1));
    assert_eq!(recording.counts().first_not_understood[0].0, 2);
}

#[test]
fn trace_with_an_endless_line_is_refused() {
    let error = read("t.txt", &vec![b'x'; 3 << 20]).unwrap_err();
    assert!(matches!(error, TraceError::LongLine { line: 1, .. }), "{error:?}");
}

#[test]
fn impossible_values_in_a_trace_are_refused() {
    // Regression test: such values reached the code that rebuilds a kernel's free pages, which panicked.
    let locked = "  a-1 [000] .....  1.0: mm_page_alloc_zone_locked: page=ffffea0000a34640 pfn=0x28d19 order=0 migratetype=0 percpu_refill=0\n";
    let drained = "  a-1 [000] .....  1.0: mm_page_pcpu_drain: page=ffffea0000a34640 pfn=0x28d19 order=0 migratetype=0\n";
    let page = "  a-1 [000] .....  1.0: mm_page_alloc: page=ffffea0000a34640 pfn=0x28d19 order=0 migratetype=0 gfp_flags=GFP\n";
    for (good, from, to, field, value) in [
        (page, "order=0", "order=11", "order", 11),
        (locked, "order=0", "order=12", "order", 12),
        (drained, "order=0", "order=12", "order", 12),
        (page, "pfn=0x28d19", "pfn=0xfffffffffffff", "pfn", 0xf_ffff_ffff_ffff),
        (page, "[000]", "[8192]", "cpu", 8192),
        (VALID_LINES, "bytes_alloc=64", "bytes_alloc=0", "bytes_alloc", 0),
        (VALID_LINES, "bytes_alloc=64", "bytes_alloc=99999999", "bytes_alloc", 99_999_999),
        (VALID_LINES, "bytes_req=64", "bytes_req=65", "bytes_req", 65),
    ] {
        let text = format!("{good}{}", good.replace(from, to));
        match read("t.txt", text.as_bytes()).unwrap_err() {
            TraceError::Impossible { line: 2, what: Impossible { field: f, value: v, .. }, .. } => {
                assert_eq!((f, v), (field, value));
            }
            other => panic!("{field}={value}: {other:?}"),
        }
    }
    let error = message(page.replace("order=0", "order=11").as_bytes());
    assert_eq!(error, "t.txt:1: impossible order=11 (0 to 10 are accepted where pages have 4 KiB)");
}

#[test]
fn damaged_kernel_tables_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("before.slabinfo");
    std::fs::write(&path, "slabinfo - version: 2.1\nrubbish\n").unwrap();
    let error = Tables::read(folder.path()).unwrap_err().to_string();
    assert_eq!(error, format!("{}:2: expected ` : tunables` after a name and five numbers", path.display()));
}

/// The test makes ten thousand damaged traces, compressed or plain; the damage is flipped bytes, cuts, changed digits,
/// or shuffled, repeated or foreign lines. Each damaged trace must be read or refused, without a panic or a hang.
#[test]
fn reading_mangled_traces_never_panics() {
    let samples: Vec<Vec<u8>> = sample_files().iter().map(|path| unpacked(path)).collect();
    let lines: Vec<Vec<&[u8]>> =
        samples.iter().map(|text| text.split_inclusive(|&b| b == b'\n').collect()).collect();
    let mut rng = SmallRng::seed_from_u64(0x5_1ab);
    let (mut read_well, mut refused) = (0, 0);
    for round in 0..10_000 {
        let text = corrupt_sample(&lines, &mut rng);
        match read("mangled", &text) {
            Ok(recording) => {
                let events = recording.counts().events;
                let mut ops = recording.resolve(None).unwrap();
                let mut operations = 0;
                while ops.next_op().unwrap().is_some() {
                    operations += 1;
                }
                // An event yields its operation, and a free for an object that was live.
                assert!(operations <= 2 * events, "round {round}: {operations} from {events} events");
                let facts = ops.facts(&Tables::default());
                assert_eq!(
                    facts.objects.frees,
                    facts.objects.matched + facts.objects.hidden_allocs + facts.objects.pre_trace_frees
                );
                serde_json::to_string(&facts).unwrap();
                read_well += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    println!("{read_well} were read, {refused} refused");
    assert!(
        read_well > 2000 && refused > 500,
        "{read_well} were read, {refused} refused: the mangling is too weak or too strong"
    );
}

fn sample_files() -> Vec<PathBuf> {
    let folder = workspace().join("sim/data/samples");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 9);
    files
}

fn unpacked(path: &Path) -> Vec<u8> {
    zstd::decode_all(&std::fs::read(path).unwrap()[..]).unwrap()
}

/// Returns a part of a sample with a few random changes.
fn corrupt_sample(samples: &[Vec<&[u8]>], rng: &mut SmallRng) -> Vec<u8> {
    let sample = samples.choose(rng).unwrap();
    let start = if rng.random_bool(0.3) { 0 } else { rng.random_range(0..sample.len()) };
    let end = sample.len().min(start + rng.random_range(1..150));
    let mut lines: Vec<&[u8]> = sample[start..end].to_vec();
    match rng.random_range(0..6) {
        0 => lines.shuffle(rng),
        1 => {
            for _ in 0..rng.random_range(1..20) {
                let (line, at) = (*lines.choose(rng).unwrap(), rng.random_range(0..=lines.len()));
                lines.insert(at, line);
            }
        }
        2 => {
            for _ in 0..rng.random_range(1..20) {
                let other = samples.choose(rng).unwrap();
                lines.insert(rng.random_range(0..=lines.len()), other.choose(rng).unwrap());
            }
        }
        3 => lines.retain(|_| rng.random_bool(0.5)),
        _ => {}
    }
    let mut text = lines.concat();
    if text.is_empty() {
        return text;
    }
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..text.len());
        match rng.random_range(0..7) {
            0 => text[at] ^= 1 << rng.random_range(0..8),
            1 => text[at] = rng.next_u32() as u8,
            2 => text.truncate(at + 1),
            3 => drop(text.drain(at..text.len().min(at + rng.random_range(1..80)))),
            4 => {
                if let Some(digit) = text[at..].iter().position(u8::is_ascii_digit) {
                    text[at + digit] = b'0' + rng.random_range(0..10);
                }
            }
            5 => drop(text.splice(at..at, b"99999999999999999999".iter().copied())),
            _ => drop(text.splice(at..at, b"\n".iter().copied())),
        }
        if text.is_empty() {
            return text;
        }
    }
    if rng.random_bool(0.1) {
        text = TraceCompression::ALL.choose(rng).unwrap().pack(&text);
        if rng.random_bool(0.5) {
            let at = rng.random_range(0..text.len());
            text[at] = text[at].wrapping_add(1);
        }
    }
    text
}
