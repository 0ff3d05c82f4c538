//! Converts kernel memory traces from text to the operations that a replayer runs.
//!
//! ```text
//!  file, .gz .xz .zst, stdin    Recording                        Resolver
//!  source -> line -> event  ->  spool, shapes, counts   ->  names, resolve -> op     (-> facts)
//!            ftrace, perf,      (pass 1: what the           (pass 2: which cache,
//!            trace_cmd,          text says)                  which irregularity)
//!            wee_alloc, fleetbench, recorded
//! ```
//!
//! A trace is read in two passes, because a cache's name often comes late in the trace. An event
//! `kmem_cache_alloc` does not name the object's cache; the event `kmem_cache_free`, often much later, does.
//! The text is parsed only once, while another thread unpacks the following text; the first pass passes records of 32
//! bytes to the second.
//!
//! The events belong to the kernel's group `kmem`, and have the form that ftrace, `perf script` or `trace-cmd
//! report` prints. Events can also be a program's calls of malloc and free, from wee_alloc's traces, Fleetbench's
//! distributions, or binary recordings of `libuslab.so`. The parser skips no line silently: it counts and shows lines
//! that it does not understand, and reports lost events. Operations that the kernel did not trace (hidden allocations,
//! hidden frees, and allocations from before the trace) are inferred and counted separately.
//!
//! ```no_run
//! use std::path::Path;
//! use uslab_trace::{Recording, Tables, TraceError};
//!
//! # fn main() -> Result<(), TraceError> {
//! let path = Path::new("trace.txt.zst");
//! let tables = Tables::from_trace_folder(path)?;
//! let mut ops = Recording::open(path)?.resolve(tables.latest_slabinfo())?;
//! while let Some(op) = ops.next_op()? {
//!     println!("{}: {:?}", op.line, op.kind);
//! }
//! println!("{:?}", ops.facts(&tables).objects);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod babeltrace;
mod direct_map;
mod error;
mod event;
mod facts;
mod fields;
mod fleetbench;
mod foreign;
mod ftrace;
mod kernel;
mod line;
mod names;
mod op;
mod page_move;
mod page_size;
mod page_table;
mod perf;
mod prefix;
mod program;
#[allow(dead_code, reason = "one reads, another one writes")]
mod record_format;
mod recorded;
mod recording;
mod resolve;
mod shapes;
mod slabinfo;
mod source;
mod spool;
mod symbols;
mod tables;
mod trace_cmd;
mod wee_alloc;

#[cfg(test)]
mod tests;

pub use direct_map::DirectMap;
pub use error::{Impossible, TraceError};
pub use event::{Event, EventKind, EventSource, MAX_CPU_NUMBER, Pfn, Ptr};
pub use facts::{
    CacheFacts, CacheStatesAtMark, Facts, Header, ObjectFacts, PageComparison, PageFacts, SlabinfoChange,
    SlabinfoComparison, SlabinfoTotals, SnapshotTotals, TraceMarkFacts,
};
pub use foreign::Foreign;
pub use kernel::{Attributes, Kernel};
pub use line::{Format, HeaderFact, Line, Parser, RejectReason, Strings};
pub use names::{NameSources, is_kmalloc};
pub use op::{
    CacheId, CacheInfo, CacheKind, FreeOrigin, HiddenFreeEvidence, MarkId, Op, OpKind, PageFreeOrigin,
    PageUse, SiteId, TaskId,
};
pub use page_move::{PageMove, PageMoveKind};
pub use page_size::{PageSize, PageSizeSource};
pub use recorded::Recorded;
pub use recording::{Counts, Recording};
pub use resolve::{CacheTally, Resolver};
pub use slabinfo::{KernelSlabInfo, MAX_SCANNED_PARTIAL_SLABS, SlabinfoRowError, Tunables};
pub use source::BINARY_FILE_HINT;
pub use source::{Chunk, Progress, Source};
pub use symbols::{Symbol, Symbols};
pub use tables::{FreeBlocks, SNAPSHOT_NAMES, Snapshot, Tables, ZoneSpan};
