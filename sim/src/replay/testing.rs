//! Builds small traces for tests.

use super::traced::TracedInput;
use crate::trace::{Op, Recording, Resolver, Source, Tables};
use std::path::Path;

/// A trace of a few lines, with the text files of a recording's folder.
pub(super) struct Trace {
    resolver: Resolver,
    pub(super) ops: Vec<Op>,
    tables: Tables,
}

impl Trace {
    /// Creates a trace from lines; each line has a CPU and an event. The events are `0 mark TEXT`, `0 alloc
    /// FUNCTION+OFFSET CACHE PTR`, `0 free CACHE PTR`, `0 page PFN` and `0 unpage PFN`. Each event is one
    /// second after the previous event, and objects have 512 bytes.
    pub(super) fn new(lines: &[&str], texts: &[(&str, &str)]) -> Self {
        let line = |(second, line): (usize, &&str)| {
            let words: Vec<_> = line.split_whitespace().collect();
            let event = match words[1] {
                "mark" => format!("tracing_mark_write: {}", words[2..].join(" ")),
                "alloc" => format!(
                    "kmem_cache_alloc: call_site={}/0x9 ptr={} name={} bytes_req=512 bytes_alloc=512 gfp_flags=GFP_KERNEL node=-1 accounted=false",
                    words[2], words[4], words[3]
                ),
                "free" => format!("kmem_cache_free: call_site=f+0x1/0x9 ptr={} name={}", words[3], words[2]),
                "page" => format!(
                    "mm_page_alloc: page=0 pfn={} order=0 migratetype=0 gfp_flags=GFP_KERNEL",
                    words[2]
                ),
                _ => format!("mm_page_free: page=0 pfn={} order=0", words[2]),
            };
            format!("sh-1 [00{}] ..... {second}.000000: {event}\n", words[0])
        };
        let text: String = lines.iter().enumerate().map(line).collect();
        let text = Box::leak(text.into_boxed_str()).as_bytes();
        let source = Source::from_reader("trace", Box::new(text), None).expect("a text");
        let find =
            |path: &Path| Ok(texts.iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| *text));
        let tables = Tables::of(Path::new("folder"), find).expect("tables");
        let recording = Recording::read(source, |_| ()).expect("a trace");
        let mut resolver = recording.resolve(tables.latest_slabinfo()).expect("records");
        let mut ops = vec![];
        while let Some(op) = resolver.next_op().expect("records") {
            ops.push(op);
        }
        Self { resolver, ops, tables }
    }
    pub(super) fn traced(&self) -> TracedInput<'_> {
        TracedInput { resolver: &self.resolver, ops: &self.ops, tables: &self.tables }
    }
}

/// A slabinfo with one cache `node`, which has eight objects of 512 bytes in a page.
pub(super) const SLABINFO: &str = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>\n\
                                   node 5 8 512 8 1 : tunables 0 0 0 : slabdata 1 1 0\n";
