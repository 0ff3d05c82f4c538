//! The command `uslab what`: shows the format of a file, how such a file is made, and which command reads it.

use crate::slabs::Snapshot;
use crate::trace::{Foreign, Format, Line, Parser, Source, Tables, TraceError};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The number of bytes to read from a text file.
const TEXT_PREFIX_BYTES: usize = 4 << 20;

/// The report of `uslab what` about a file.
#[derive(Debug, Serialize)]
pub struct FileDescription {
    /// The path of the file.
    pub path: String,
    /// The format of the file, in words.
    pub is: String,
    /// A description of how files of this format are made.
    pub made: String,
    /// The commands that read the file.
    pub read_by: Vec<String>,
    /// Other findings about the file.
    pub notes: Vec<String>,
}

impl fmt::Display for FileDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}\nmade by: {}", self.path, self.is, self.made)?;
        for command in &self.read_by {
            writeln!(f, "read by: {command}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// A format of files that is recognised by its first bytes, or by bytes at an offset.
struct FileSignature {
    bytes: &'static [u8],
    /// The offset of the recognised bytes.
    at: usize,
    is: &'static str,
    made: &'static str,
    /// The commands that read files of this format, with `FILE` for the name of the file.
    read_by: &'static [&'static str],
}

/// The tools that read a kernel dump.
const KERNEL_DUMP_HINT: &str = "if it is a vmcore, crash's `kmem -s` or drgn-tools' `corelens FILE -M slabinfo`: `uslab slabs` reads what they print";

const FILE_SIGNATURES: [FileSignature; 9] = [
    FileSignature {
        bytes: b"PERFILE2",
        at: 0,
        is: "a perf.data file",
        made: "perf record",
        read_by: &["perf script -i FILE | uslab replay -"],
    },
    FileSignature {
        bytes: b"\x17\x08Dtracing",
        at: 0,
        is: "a trace.dat file",
        made: "trace-cmd record",
        read_by: &["trace-cmd report -i FILE | uslab replay -"],
    },
    FileSignature {
        bytes: b"uslabrec",
        at: 0,
        is: "a recording of a program's malloc",
        made: "LD_PRELOAD=libuslab.so USLAB_OPTIONS=record=FILE program",
        read_by: &["uslab replay FILE", "cargo lab race --trace FILE"],
    },
    FileSignature {
        bytes: b"uslabops",
        at: 0,
        is: "a converted trace",
        made: "uslab convert",
        read_by: &["uslab replay --design slub FILE", "uslab scale --trace FILE"],
    },
    FileSignature {
        bytes: b"KDUMP   ",
        at: 0,
        is: "a kernel's dump (kdump)",
        made: "makedumpfile",
        read_by: &[KERNEL_DUMP_HINT],
    },
    FileSignature {
        bytes: b"\x7fELF",
        at: 0,
        is: "an ELF file: a program, a library, or a dump of memory",
        made: "a linker, or kdump",
        read_by: &[KERNEL_DUMP_HINT],
    },
    FileSignature {
        bytes: b"PAR1",
        at: 0,
        is: "a table in Parquet's format",
        made: "a program for tables, such as pandas or DuckDB",
        read_by: &["no verb here"],
    },
    FileSignature {
        bytes: b"ustar",
        at: 257,
        is: "an archive",
        made: "tar, as sosreport does",
        read_by: &["tar -xf FILE, and then `uslab slabs FOLDER`"],
    },
    FileSignature {
        bytes: b"<!doctype html",
        at: 0,
        is: "a page",
        made: "--html of a verb",
        read_by: &["a browser"],
    },
];

impl FileDescription {
    fn new(path: &Path, is: &str, made: &str, read_by: &[&str]) -> Self {
        let shown = path.display().to_string();
        let read_by = read_by.iter().map(|command| command.replace("FILE", &shown)).collect();
        Self { path: shown, is: is.to_owned(), made: made.to_owned(), read_by, notes: vec![] }
    }

    /// Describes a file or folder.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no known format.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Self::describe_folder(path);
        }
        if path.is_file() {
            let mut head = vec![];
            let file = File::open(path).with_context(|| path.display().to_string())?;
            file.take(512).read_to_end(&mut head).with_context(|| path.display().to_string())?;
            if let Some(magic) = magic(&head) {
                return Ok(Self::new(path, magic.is, magic.made, magic.read_by));
            }
        }
        let source = match Source::open(path) {
            Ok(source) => source,
            Err(TraceError::Binary { .. }) => return Self::describe_binary_file(path),
            Err(error) => return Err(error.into()),
        };
        let text = read_first_lines(source)?;
        let text = String::from_utf8_lossy(&text);
        if let Some(magic) = magic(text.to_lowercase().as_bytes()) {
            return Ok(Self::new(path, magic.is, magic.made, magic.read_by));
        }
        if text.trim_start().starts_with('{')
            && let Some(json) = Self::describe_json(path, &text)
        {
            return Ok(json);
        }
        Self::describe_trace(path, &text).or_else(|| Self::describe_text_file(path, &text)).with_context(|| {
            let first = text.lines().next().unwrap_or_default();
            format!(
                "{}: no command reads this file; expected traces (ftrace, `perf script`, `trace-cmd report`, wee_alloc, Fleetbench, \
                 malloc lab, CSV), recordings, tables of a kernel, heap profiles, or results of the commands; the first line: {:?}",
                path.display(),
                first.chars().take(80).collect::<String>()
            )
        })
    }

    fn describe_folder(path: &Path) -> anyhow::Result<Self> {
        let traces = ["trace.txt.zst", "trace.txt.xz", "trace.txt.gz", "trace.txt"];
        let trace = traces.into_iter().find(|name| path.join(name).is_file());
        let snapshot = Snapshot::open(path);
        let shown = path.display();
        if let Some(trace) = trace {
            let mut what = Self::new(path, "a recording of a kernel", "uslab record", &[]);
            what.read_by.push(format!("uslab replay {shown}/{trace}"));
            if let Ok(snapshot) = snapshot {
                what.read_by.push(format!("uslab slabs {shown}"));
                what.notes.extend(snapshot.moment.map(|moment| {
                    format!(
                        "tables of the snapshots: {}",
                        [&snapshot.other_moments[..], &[moment]].concat().join(", ")
                    )
                }));
            }
            return Ok(what);
        }
        let snapshot = snapshot.with_context(|| format!("{shown}: neither a recording nor kernel tables"))?;
        let mut what = Self::new(
            path,
            "tables of a kernel",
            "sosreport, or copies of /proc and /sys/kernel/slab",
            &["uslab slabs FILE", "uslab geometry --against FILE"],
        );
        what.notes.push(format!("{} caches, from {}", snapshot.caches.len(), snapshot.read.join(", ")));
        Ok(what)
    }

    /// Describes a file that is not text, because it is compressed or has an unknown format.
    fn describe_binary_file(path: &Path) -> anyhow::Result<Self> {
        let mut packed = [0; 2];
        File::open(path)
            .and_then(|mut file| file.read_exact(&mut packed))
            .with_context(|| path.display().to_string())?;
        if packed == [0x1f, 0x8b] {
            let mut head = vec![];
            let file = File::open(path).with_context(|| path.display().to_string())?;
            let unpacked = flate2::read::MultiGzDecoder::new(file).take(512).read_to_end(&mut head);
            unpacked.with_context(|| format!("{}: its gzip data is damaged", path.display()))?;
            if let Some(magic) = magic(&head) {
                let mut what = Self::new(path, magic.is, magic.made, magic.read_by);
                what.notes.push("packed with gzip".to_owned());
                return Ok(what);
            }
            // The first field of a profile is a message.
            if head.first() == Some(&0x0a) {
                return Ok(Self::new(
                    path,
                    "a heap profile of pprof's format",
                    "USLAB_OPTIONS=dump=FILE.pb.gz, or `uslab::profile`",
                    &["uslab flame FILE", "go tool pprof FILE"],
                ));
            }
        }
        bail!("{}: neither text nor a known binary file: {}", path.display(), crate::trace::BINARY_FILE_HINT)
    }

    fn describe_json(path: &Path, text: &str) -> Option<Self> {
        // A long file is cut, and is then not valid JSON, but its names are enough.
        let has = |names: &[&str]| names.iter().all(|name| text.contains(&format!("\"{name}\"")));
        Some(if has(&["steps", "end", "version"]) {
            Self::new(
                path,
                "the counterexample of a model",
                "STORY_JSON=FILE, with a test that fails",
                &["uslab story FILE"],
            )
        } else if has(&["caches", "reaper"]) || has(&["caches", "drains"]) {
            Self::new(
                path,
                "numbers of a running program",
                "USLAB_OPTIONS=dump=FILE.json",
                &["uslab top --once FILE"],
            )
        } else if has(&["events_total"]) || has(&["designs"]) || has(&["shrink", "caches"]) {
            Self::new(
                path,
                "a report of a verb",
                "--json of `uslab replay`, `scale` or `slabs`",
                &["uslab diff FILE OTHER"],
            )
        } else {
            return None;
        })
    }

    fn describe_trace(path: &Path, text: &str) -> Option<Self> {
        let mut parser = Parser::new();
        let (mut events, mut lost, mut rejected, mut first) = (0, false, 0, None);
        // The last line may be cut.
        let whole = if text.len() >= TEXT_PREFIX_BYTES { text.rsplit_once('\n')?.0 } else { text };
        for line in whole.lines() {
            match parser.parse(line.as_bytes()) {
                Ok(Line::Event(_)) => {
                    events += 1;
                    first.get_or_insert(line);
                }
                Ok(Line::Lost(_)) => lost = true,
                Ok(_) => {}
                Err(_) => rejected += 1,
            }
        }
        let format = parser.format()?;
        let (is, made) = match format {
            Format::Ftrace => ("the text of ftrace", "`uslab record`, or cat /sys/kernel/tracing/trace"),
            Format::PerfScript => ("the text of perf script", "perf record -a -e 'kmem:*'; perf script"),
            Format::TraceCmdReport => {
                ("the text of trace-cmd report", "trace-cmd record -e kmem; trace-cmd report")
            }
            Format::Babeltrace => (
                "the text of babeltrace, of a trace by LTTng",
                "lttng enable-event --kernel 'kmem_*'; babeltrace FOLDER",
            ),
            Format::WeeAlloc => {
                ("a program's allocations, as wee_alloc's traces have them", "wee_alloc's tracing allocator")
            }
            Format::Fleetbench => ("a distribution of a program's allocations", "Fleetbench"),
            Format::Libuslab => return None,
        };
        if format.is_kernel_format() && events == 0 || format.is_kernel_format() && rejected > events {
            return None;
        }
        let mut what = Self::new(
            path,
            is,
            made,
            &["uslab replay FILE", "uslab replay FILE --design slub,sheaves", "uslab convert FILE trace.ops"],
        );
        let first = first.unwrap_or_default();
        let options: Vec<&str> = [
            ("verbose", first.contains("ms (+")),
            ("latency-format", format == Format::Ftrace && (!first.contains('[') || first.contains("ms (+"))),
            ("record-tgid", format == Format::Ftrace && first.contains(") [") && !first.contains("ms (+")),
            ("fields", has_hex_and_decimal_value(first)),
        ]
        .into_iter()
        .filter_map(|(option, is_on)| is_on.then_some(option))
        .collect();
        if !options.is_empty() {
            what.notes.push(format!("printed with the options {}", options.join(", ")));
        }
        if format.is_kernel_format() {
            let names =
                |event: &str| whole.lines().any(|line| line.contains(event) && line.contains(" name="));
            what.notes.push(match (names("kmem_cache_alloc"), names("kmem_cache_free")) {
                (true, _) => "each allocation names its cache, as since 6.18".to_owned(),
                (false, true) => {
                    "frees name their caches; objects that are not freed are named by their call sites"
                        .to_owned()
                }
                (false, false) => {
                    "no event names a cache; a slabinfo next to the trace gives the sizes".to_owned()
                }
            });
        }
        if lost {
            what.notes.push("events were lost".to_owned());
        }
        if rejected > 0 {
            what.notes
                .push(format!("{rejected} of the first {} lines were not understood", whole.lines().count()));
        }
        if let Ok(tables) = Tables::from_trace_folder(path)
            && !tables.snapshots.is_empty()
        {
            let moments: Vec<_> = tables.snapshots.iter().map(|snapshot| snapshot.moment).collect();
            what.notes.push(format!(
                "the kernel's tables of the snapshots {} are in the same folder",
                moments.join(", ")
            ));
        }
        Some(what)
    }

    fn describe_text_file(path: &Path, text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).take(5).collect();
        if let Some(foreign) = Foreign::of(&lines) {
            return Some(Self::new(path, foreign.is, foreign.made, &[foreign.instead]));
        }
        if text.starts_with("# HELP uslab_") {
            let is = "numbers of a running program, as Prometheus reads them";
            return Some(Self::new(path, is, "USLAB_OPTIONS=dump=FILE.prom", &["Prometheus"]));
        }
        let has_key = |key: &str| {
            text.lines().any(|line| line.split_once('=').is_some_and(|(name, _)| name.trim() == key))
        };
        if has_key("design") && (has_key("workload") || has_key("trace")) {
            return Some(Self::new(path, "the plan of a sweep", "an editor", &["uslab sweep FILE"]));
        }
        let is_folded = |line: &&&str| {
            line.rsplit_once(' ')
                .is_some_and(|(frames, bytes)| frames.contains(';') && bytes.parse::<u64>().is_ok())
        };
        if !lines.is_empty() && lines.iter().all(|line| is_folded(&line)) {
            return Some(Self::new(
                path,
                "folded stacks",
                "USLAB_OPTIONS=dump=FILE.folded",
                &["uslab flame FILE"],
            ));
        }
        None
    }
}

/// Returns `true` if a line gives one value in both hexadecimal and decimal, as in `bytes_req=0x40 (64)`.
fn has_hex_and_decimal_value(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).any(|pair| pair[0].contains("=0x") && pair[1].starts_with('('))
}

fn magic(head: &[u8]) -> Option<&'static FileSignature> {
    FILE_SIGNATURES
        .iter()
        .find(|magic| head.get(magic.at..).is_some_and(|head| head.starts_with(magic.bytes)))
}

/// Reads the first lines of a text.
fn read_first_lines(mut source: Source) -> Result<Vec<u8>, TraceError> {
    let mut text = vec![];
    if source.is_recorded() {
        return Ok(text);
    }
    while text.len() < TEXT_PREFIX_BYTES
        && let Some(chunk) = source.next_chunk()?
    {
        text.extend_from_slice(chunk.text);
    }
    Ok(text)
}
