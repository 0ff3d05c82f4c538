//! Reads recorded operations: the malloc lab's traces, and CSV.
//!
//! A `.rep` file (from Bryant and O'Hallaron's malloc lab) begins with four lines of one number each: a heap size, the
//! number of ids, the number of operations, and a weight. After these four lines, each line has one operation. An
//! operation is `a ID BYTES`, `r ID BYTES` or `f ID`. The lines of a CSV file are `op,id,size[,align]`; the operation
//! is a letter as in a `.rep` file, or `alloc`, `resize` or `free`. A line that frees a block has no size and no
//! alignment. The first line of a CSV file may contain the names of the columns.
//!
//! The whole file is read and checked before its operations run; an operation on a block that does not exist is
//! reported with its line.

use super::error::OpsError;
use super::lines::{Line, Lines};
use super::op::Op;
use core::alloc::Layout;
use rustc_hash::FxHashMap;

/// The alignment that malloc guarantees, in bytes, which recorded traces assume.
const MALLOC_ALIGN: usize = 16;
/// The largest alignment that an operation may request, in bytes.
pub(super) const MAX_ALIGN: usize = 1 << 30;
/// The largest size that an operation may request, in bytes.
const MAX_REQUEST: usize = 1 << 40;

pub(super) const REP_FORMAT: &str = "`a ID BYTES`, `r ID BYTES` or `f ID`";
pub(super) const CSV: &str = "`alloc,ID,SIZE[,ALIGN]`, `resize,ID,SIZE[,ALIGN]` or `free,ID`; the first line may be \
     `op,id,size[,align]`";
const SIZE: &str = "1 to 2^40 bytes";

/// The blocks that exist at one point of the file.
#[derive(Debug, Default)]
struct BlockStates {
    /// For each id that has occurred, `true` if the block with this id exists.
    live_blocks: FxHashMap<u64, bool>,
}

impl BlockStates {
    /// Returns the operation of a line if the operation is possible in the current state. The argument `size` is absent
    /// for a free.
    fn op(
        &mut self,
        line: &Line<'_>,
        kind: RecordKind,
        id: u64,
        size: Option<&str>,
        align: usize,
    ) -> Result<Op, OpsError> {
        let state = self.live_blocks.get(&id).copied();
        let layout = |align| {
            let size =
                size.and_then(|size| size.parse().ok()).filter(|size| (1..=MAX_REQUEST).contains(size));
            let size = size.ok_or_else(|| line.error(format!("no size for block {id}"), SIZE))?;
            let layout =
                Layout::from_size_align(size, align).ok().filter(|layout| layout.align() <= MAX_ALIGN);
            layout.ok_or_else(|| {
                line.error(format!("{align} is not an alignment"), "a power of two up to 2^30")
            })
        };
        let checked_state = |expected| match state {
            Some(true) => Ok(()),
            Some(false) => Err(line.error(format!("block {id} was freed before"), expected)),
            None => Err(line.error(format!("block {id} was never allocated"), expected)),
        };
        let op = match kind {
            RecordKind::Alloc if state == Some(true) => {
                return Err(line.error(format!("block {id} exists already"), "an id that is not in use"));
            }
            RecordKind::Alloc => Op::Alloc { id, layout: layout(align)? },
            RecordKind::Resize => {
                checked_state("a block that is in use")?;
                Op::Resize { id, layout: layout(align)? }
            }
            RecordKind::Free => {
                checked_state("a block that is in use")?;
                Op::Free { id }
            }
        };
        self.live_blocks.insert(id, kind != RecordKind::Free);
        Ok(op)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum RecordKind {
    Alloc,
    Resize,
    Free,
}

impl RecordKind {
    fn of(text: &str) -> Option<Self> {
        match text {
            "a" | "alloc" => Some(Self::Alloc),
            "r" | "resize" => Some(Self::Resize),
            "f" | "free" => Some(Self::Free),
            _ => None,
        }
    }
}

/// Reads the operations of a malloc lab's trace.
pub(super) fn read_malloc_lab_trace(mut lines: Lines) -> Result<Vec<Op>, OpsError> {
    let mut header = [0; 4];
    for (i, number) in header.iter_mut().enumerate() {
        let Some(line) = lines.next_line()? else {
            let (path, line) = (lines.path().to_owned(), lines.number());
            return Err(OpsError::Early {
                path,
                line,
                kind: "lines of a header",
                found: i as u64,
                declared: 4,
            });
        };
        let parsed = line.text.parse();
        *number = parsed
            .map_err(|_| line.error("no header", "four numbers first: heap size, ids, operations, weight"))?;
    }
    let [_, ids, declared, _]: [u64; 4] = header;
    let (mut ops, mut states) = (vec![], BlockStates::default());
    while let Some(line) = lines.next_line()? {
        if ops.len() as u64 == declared {
            let (path, line) = (lines.path().to_owned(), lines.number());
            return Err(OpsError::Late { path, line, kind: "operations", declared });
        }
        let words: Vec<_> = line.text.split_whitespace().collect();
        let (kind, id, size) = match words[..] {
            [kind @ ("a" | "r"), id, size] => (RecordKind::of(kind), id, Some(size)),
            ["f", id] => (Some(RecordKind::Free), id, None),
            _ => (None, "", None),
        };
        let (Some(kind), Ok(id)) = (kind, id.parse::<u64>()) else {
            return Err(line.error("no operation", REP_FORMAT));
        };
        if id >= ids {
            let reason = format!("block {id}, but the header declares {ids} ids");
            return Err(line.error(reason, "an id below the number in the header"));
        }
        ops.push(states.op(&line, kind, id, size, MALLOC_ALIGN)?);
    }
    let early_end = |kind, found, declared| OpsError::Early {
        path: lines.path().to_owned(),
        line: lines.number(),
        kind,
        found,
        declared,
    };
    if (ops.len() as u64) < declared {
        return Err(early_end("operations", ops.len() as u64, declared));
    }
    if (states.live_blocks.len() as u64) < ids {
        return Err(early_end("ids", states.live_blocks.len() as u64, ids));
    }
    Ok(ops)
}

/// Reads the operations of a CSV file.
pub(super) fn csv(mut lines: Lines) -> Result<Vec<Op>, OpsError> {
    let (mut ops, mut states) = (vec![], BlockStates::default());
    while let Some(line) = lines.next_line()? {
        let fields: Vec<_> = line.text.split(',').map(str::trim).collect();
        if line.names(&["op", "id"]) {
            continue;
        }
        // The columns of a free may be empty.
        let field_count = fields.iter().rposition(|field| !field.is_empty()).map_or(0, |last| last + 1);
        let parsed = match (fields.first().and_then(|op| RecordKind::of(op)), &fields[..field_count]) {
            (Some(RecordKind::Free), [_, id]) => Some((RecordKind::Free, id, None, None)),
            (Some(kind), [_, id, size]) if kind != RecordKind::Free => Some((kind, id, Some(*size), None)),
            (Some(kind), [_, id, size, align]) if kind != RecordKind::Free => {
                Some((kind, id, Some(*size), Some(align)))
            }
            _ => None,
        };
        let parsed = parsed.and_then(|(kind, id, size, align)| {
            Some((
                kind,
                id.parse().ok()?,
                size,
                align.map_or(Some(MALLOC_ALIGN), |align| align.parse().ok())?,
            ))
        });
        let Some((kind, id, size, align)) = parsed else { return Err(line.error("no operation", CSV)) };
        ops.push(states.op(&line, kind, id, size, align)?);
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uslab_trace::Source;

    fn lines(name: &'static str, text: &str) -> Lines {
        let bytes = std::io::Cursor::new(text.as_bytes().to_vec());
        Lines::of(Source::from_reader(name, Box::new(bytes), None).unwrap())
    }
    fn parse_malloc_lab_trace(text: &str) -> Result<Vec<Op>, String> {
        read_malloc_lab_trace(lines("short.rep", text)).map_err(|error| error.to_string())
    }
    fn read_csv(text: &str) -> Result<Vec<Op>, String> {
        csv(lines("ops.csv", text)).map_err(|error| error.to_string())
    }
    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn malloc_lab_trace_is_parsed() {
        let ops = parse_malloc_lab_trace("20000\n2\n5\n1\na 0 512\na 1 128\nr 0 640\nf 1\nf 0\n").unwrap();
        let expected = [
            Op::Alloc { id: 0, layout: layout(512, 16) },
            Op::Alloc { id: 1, layout: layout(128, 16) },
            Op::Resize { id: 0, layout: layout(640, 16) },
            Op::Free { id: 1 },
            Op::Free { id: 0 },
        ];
        assert_eq!(ops, expected);
    }

    #[test]
    fn csv_workload_is_parsed() {
        let ops =
            read_csv("op,id,size,align\nalloc,7,100,64\n\na,8,10\nresize,7,200,64\nfree,7,,\nf,8").unwrap();
        let expected = [
            Op::Alloc { id: 7, layout: layout(100, 64) },
            Op::Alloc { id: 8, layout: layout(10, 16) },
            Op::Resize { id: 7, layout: layout(200, 64) },
            Op::Free { id: 7 },
            Op::Free { id: 8 },
        ];
        assert_eq!(ops, expected);
    }

    #[test]
    fn csv_header_is_the_first_nonempty_line() {
        for text in ["\n\nop,id,size\na,1,8\n", "Op,ID,Size\na,1,8\n", " OP , Id\na,1,8\n"] {
            assert_eq!(read_csv(text).map(|ops| ops.len()), Ok(1), "{text}");
        }
        let error = read_csv("op,id,size\nop,id,size\n").unwrap_err();
        assert!(error.starts_with("ops.csv:2: no operation"), "{error}");
    }

    #[test]
    fn block_id_can_be_reused_after_its_free() {
        assert_eq!(read_csv("a,1,8\nf,1\na,1,8\n").unwrap().len(), 3);
    }

    #[test]
    fn invalid_workload_line_error_names_the_line_number() {
        let rep_of = |ops: &str, ids: u64| {
            parse_malloc_lab_trace(&format!("1000\n{ids}\n{}\n1\n{ops}\n", ops.lines().count())).unwrap_err()
        };
        let cases = [
            (
                "a 0 8\nx 0 8",
                "short.rep:6: no operation: \"x 0 8\"; expected `a ID BYTES`, `r ID BYTES` or `f ID`",
            ),
            ("a 0 0", "short.rep:5: no size for block 0: \"a 0 0\"; expected 1 to 2^40 bytes"),
            ("a 0 -8", "short.rep:5: no size for block 0: \"a 0 -8\"; expected 1 to 2^40 bytes"),
            (
                "a 0 8\na 0 8",
                "short.rep:6: block 0 exists already: \"a 0 8\"; expected an id that is not in use",
            ),
            (
                "a 0 8\nf 0\nf 0",
                "short.rep:7: block 0 was freed before: \"f 0\"; expected a block that is in use",
            ),
            ("f 0", "short.rep:5: block 0 was never allocated: \"f 0\"; expected a block that is in use"),
            ("r 0 8", "short.rep:5: block 0 was never allocated: \"r 0 8\"; expected a block that is in use"),
            (
                "a 1 8",
                "short.rep:5: block 1, but the header declares 1 ids: \"a 1 8\"; expected an id below the number in the header",
            ),
            ("a 0", "short.rep:5: no operation: \"a 0\"; expected `a ID BYTES`, `r ID BYTES` or `f ID`"),
        ];
        for (ops, error) in cases {
            assert_eq!(rep_of(ops, 1), error, "{ops}");
        }
        assert_eq!(
            read_csv("alloc,1,8,3\n").unwrap_err(),
            "ops.csv:1: 3 is not an alignment: \"alloc,1,8,3\"; expected a power of two up to 2^30"
        );
        assert_eq!(
            read_csv("a,1,8\nfree,1,8\n").unwrap_err(),
            "ops.csv:2: no operation: \"free,1,8\"; expected `alloc,ID,SIZE[,ALIGN]`, `resize,ID,SIZE[,ALIGN]` or `free,ID`; \
             the first line may be `op,id,size[,align]`"
        );
        assert!(read_csv("a,1,8\nmalloc,2,8\n").unwrap_err().starts_with("ops.csv:2: no operation"));
    }

    #[test]
    fn wrong_headers_and_truncated_files_are_refused() {
        let cases = [
            ("1000\n1\n", "short.rep: the file ends after line 2, with 2 of 4 lines of a header"),
            (
                "a 0 8\n",
                "short.rep:1: no header: \"a 0 8\"; expected four numbers first: heap size, ids, operations, weight",
            ),
            ("1000\n1\n3\n1\na 0 8\nf 0\n", "short.rep: the file ends after line 6, with 2 of 3 operations"),
            ("1000\n1\n1\n1\na 0 8\nf 0\n", "short.rep:6: more operations than the header's 1"),
            ("1000\n2\n2\n1\na 0 8\nf 0\n", "short.rep: the file ends after line 6, with 1 of 2 ids"),
        ];
        for (text, error) in cases {
            assert_eq!(parse_malloc_lab_trace(text).unwrap_err(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn operations_read_from_any_file_can_be_executed(
            words in prop::collection::vec((0..12_usize, 0..2_u64, 0..8_u64), 1..8),
            more in prop_oneof![3 => Just(0), 1 => 0..3_usize],
        ) {
            let text = |text_with_separator: &str| {
                let line = |(kind, id, size): &(usize, u64, u64)| {
                    let op = ["a", "a", "a", "a", "a", "f", "f", "f", "f", "r", "r", "x"][*kind];
                    if op == "f" { format!("f{text_with_separator}{id}\n") } else { format!("{op}{text_with_separator}{id}{text_with_separator}{size}\n") }
                };
                words.iter().map(line).collect::<String>()
            };
            let header = format!("0\n2\n{}\n1\n", words.len() + more);
            for ops in [parse_malloc_lab_trace(&(header + &text(" "))), read_csv(&text(","))].into_iter().flatten() {
                prop_assert_eq!(ops.len(), words.len(), "no operation may be skipped");
                let mut live = std::collections::BTreeSet::new();
                for op in ops {
                    match op {
                        Op::Alloc { id, layout } => prop_assert!(live.insert(id) && layout.size() > 0),
                        Op::Resize { id, layout } => prop_assert!(live.contains(&id) && layout.size() > 0),
                        Op::Free { id } => prop_assert!(live.remove(&id)),
                    }
                }
            }
        }
    }
}
