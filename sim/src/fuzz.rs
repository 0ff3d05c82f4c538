//! Entry points for the fuzzer; its inputs are arbitrary texts, which are read as a trace and as the kernel's tables.
//!
//! An input is one trace, followed by up to six tables, separated by form feeds. The tables are `slabinfo`,
//! `buddyinfo` and `zoneinfo`: first the three tables `before` the workload, then the three at its `end`. No input
//! causes a panic; every error names an existing line, and every completed replay keeps the conservation invariants.

use crate::output::Progress;
use crate::replay::{Options, ReplayError, replay as replay_trace};
use crate::report::Report;
use crate::trace::{Facts, Recording, Source, Tables, TraceError};
use std::io::Cursor;
use std::path::Path;
use uslab::{Magazines, SlabInfo};

const FUZZ_SECTION_SEPARATOR: u8 = b'\x0c';
/// The tables of a fuzzer's input, in order.
const TABLES: [&str; 6] = [
    "before.slabinfo",
    "before.buddyinfo",
    "before.zoneinfo",
    "end.slabinfo",
    "end.buddyinfo",
    "end.zoneinfo",
];

/// The parts of a fuzzer's input.
struct Input<'d> {
    trace: &'d [u8],
    tables: [Option<&'d [u8]>; TABLES.len()],
}

impl<'d> Input<'d> {
    fn new(data: &'d [u8]) -> Self {
        let mut parts = data.split(|byte| *byte == FUZZ_SECTION_SEPARATOR);
        let trace = parts.next().unwrap_or_default();
        Self { trace, tables: TABLES.map(|_| parts.next()) }
    }
    fn source(&self) -> Result<Source, TraceError> {
        Source::from_reader(
            "trace",
            Box::new(Cursor::new(self.trace.to_vec())),
            Some(self.trace.len() as u64),
        )
        // A fuzzer's trace has many lines that are not understood.
        .map(|source| source.partial(true))
    }
    fn tables(&self) -> Result<Tables, TraceError> {
        Tables::of(Path::new(""), |path| {
            let table = TABLES.iter().position(|name| path == Path::new(name));
            let text = table.and_then(|table| self.tables[table]);
            Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
        })
    }
    /// Checks that an error has a message and names an existing line.
    fn check_trace_error(&self, error: &TraceError) {
        let (text, line) = match error {
            // Errors of records have no line.
            TraceError::Recording { .. } => return,
            TraceError::Impossible { .. } if self.trace.starts_with(b"uslabrec") => return,
            TraceError::LongLine { line, .. }
            | TraceError::Impossible { line, .. }
            | TraceError::TimeGoesBack { line, .. } => (self.trace, *line),
            TraceError::Table { path, line, .. } => {
                let table = TABLES.iter().position(|name| path == Path::new(name));
                (table.and_then(|table| self.tables[table]).unwrap_or_default(), *line)
            }
            TraceError::Empty { .. } | TraceError::Binary { .. } | TraceError::NotATrace { .. } => return,
            // The file is compressed, or begins like a compressed file.
            TraceError::Damaged { .. } | TraceError::Truncated { .. } => return,
            other => panic!("{other}"),
        };
        let lines = text.split(|byte| *byte == b'\n').count() as u64;
        assert!((1..=lines).contains(&line), "{error}, of {lines} lines");
    }
}

/// Reads and interprets a fuzzer's input as a trace.
///
/// # Panics
/// Panics if one of the guarantees in the [module documentation](self) is broken.
pub fn trace(data: &[u8]) {
    let input = Input::new(data);
    for table in input.tables.iter().flatten() {
        if let Ok(info) = String::from_utf8_lossy(table).parse::<SlabInfo>() {
            assert_eq!(info.to_string().parse(), Ok(info), "the printed text is parsed to the same value");
        }
    }
    let tables = input.tables().inspect_err(|error| input.check_trace_error(error)).unwrap_or_default();
    match facts(&input, &tables) {
        Ok(facts) => {
            let by_cpu: u64 = facts.by_cpu.values().sum();
            assert_eq!(facts.total, by_cpu);
            serde_json::to_vec(&facts).expect("facts must be serialisable");
        }
        Err(error) => input.check_trace_error(&error),
    }
}

fn facts(input: &Input<'_>, tables: &Tables) -> Result<Facts, TraceError> {
    let mut ops = Recording::read(input.source()?, |_| {})?.resolve(tables.latest_slabinfo())?;
    while let Some(op) = ops.next_op()? {
        assert!(op.line >= 1);
    }
    Ok(ops.facts(tables))
}

/// Replays a fuzzer's input on a small machine.
///
/// # Panics
/// Panics if one of the guarantees in the [module documentation](self) is broken.
pub fn replay(data: &[u8]) {
    let input = Input::new(data);
    let tables = input.tables().unwrap_or_default();
    let magazines = match data.len() % 3 {
        0 => Magazines::BySize,
        1 => Magazines::Off,
        _ => Magazines::Sized { capacity: 2, stock: 1, depot_limit: 1 },
    };
    let options = Options {
        cpus: Some(3),
        nodes: 2,
        magazines,
        memory: 64 << 20,
        snapshot_every: Some(16),
        ..Options::default()
    };
    let replayed: Result<Report, ReplayError> = input
        .source()
        .map_err(ReplayError::from)
        .and_then(|source| replay_trace(source, &tables, &options, &Progress::new()));
    match replayed {
        Ok(report) => {
            assert_eq!(report.conservation.violations, [""; 0]);
            assert!(!report.page(true).is_empty());
            serde_json::to_vec(&report).expect("a report must be serialisable");
        }
        Err(ReplayError::Trace(error)) => input.check_trace_error(&error),
        Err(ReplayError::Memory { .. } | ReplayError::Cache { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(target: &str, fuzz: fn(&[u8])) {
        let folder = format!("{}/../tests/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let replayed = std::fs::read_dir(folder).unwrap().map(|file| {
            let path = file.unwrap().path();
            println!("{}", path.display());
            fuzz(&std::fs::read(path).unwrap());
        });
        assert!(replayed.count() > 0);
    }

    #[test]
    fn trace_fuzzing_corpus_is_parsed() {
        corpus("trace", trace);
    }

    #[test]
    fn trace_fuzzing_corpus_is_replayed() {
        corpus("trace", replay);
        corpus("replay", replay);
    }
}
