//! The first pass over a trace, from text to records.
//!
//! The first pass parses every line once. The first pass also finds facts that need the whole trace: the cache of each
//! call site (which a later `kmem_cache_free` names), and where the kernel [maps its memory](super::direct_map). Events
//! that an allocator must replay are stored in the [spool](super::spool). Events about the free lists of the page
//! allocator are stored in a second spool. All other events are counted, but not stored. At its end, the first pass
//! marks the records of page blocks that turned out to be slabs.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use memchr::memchr;
use rustc_hash::FxHashMap;

use super::direct_map::{DirectMap, DirectMapVote, Mapping};
use super::error::{Impossible, TraceError};
use super::event::{
    Event, EventKind, EventSource, KMEM_EVENT_COUNT, MAX_CPU_NUMBER, Pfn, Ptr, has_kmem_event_name,
};
use super::fleetbench;
use super::foreign::Foreign;
use super::line::{Format, HeaderFact, Line, Parser, RejectReason, Strings};
use super::op::PageUse;
use super::page_move::PageMove;
use super::page_size::{PageSize, PageSizeSource};
use super::page_table::{PageTable, frames};
use super::recorded::{Calls, Recorded};
use super::shapes::{Shape, Shapes};
use super::source::{Chunk, Progress, Source};
use super::spool::{Record, Spool, Tag};
use super::symbols::Symbol;
use super::tables::Tables;

/// The size in bytes of the records that are kept in memory: two million events.
const MAX_SPOOL_MEMORY_BYTES: usize = 64 << 20;

/// The number of text chunks that are unpacked in advance.
const PREFETCHED_CHUNKS: usize = 4;

/// The number of a program's records between two progress reports; these records are one mebibyte.
const RECORDS_PER_PROGRESS: u64 = 43_690;

/// The migrate type of user memory.
const MOVABLE: u8 = 1;

/// The number of lines kept among the lines that the parser did not understand.
const MAX_KEPT_REJECTED_LINES: usize = 5;

/// The number of bytes that are kept of a line that the parser did not understand.
const MAX_REJECTED_LINE_BYTES: usize = 160;

/// A trace after the first pass, which reads it, and before the second pass, which interprets it.
///
/// The memory of a recording is limited by the number of live objects, call sites and touched pages. The events of a
/// long trace are stored in a temporary file.
#[derive(Debug)]
pub struct Recording {
    pub(super) path: PathBuf,
    pub(super) strings: Strings,
    pub(super) shapes: Shapes,
    pub(super) spool: Spool,
    page_moves: Spool,
    pub(super) counts: Counts,
    pub(super) mapping: Mapping,
    pub(super) page_size_source: PageSizeSource,
    /// The mark `before`, if the trace lost it together with the oldest events.
    pub(super) lost_mark: Option<Symbol>,
}

/// Counts over all lines of a trace, made by the first pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// The format of the text.
    pub format: Option<Format>,
    /// The number of all lines.
    pub lines: u64,
    /// The number of events.
    pub events: u64,
    /// The number of lines that are neither events nor headers nor blank.
    pub not_understood: u64,
    /// The first lines that the parser did not understand, shortened, each with its number.
    pub first_not_understood: Vec<(u64, String)>,
    /// The number of events that the kernel or `libuslab.so` reports as lost; a notice without a number counts as one
    /// event.
    pub lost: u64,
    /// The number of notices about lost events.
    pub lost_notices: u64,
    /// The three numbers in ftrace's header: events in the buffer, events written, CPUs.
    pub header: Option<(u64, u64, u64)>,
    /// The number of the machine's CPUs, from trace-cmd's header.
    pub machine_cpus: Option<u64>,
    /// The number of events by CPU.
    pub by_cpu: Vec<u64>,
    pub(super) by_name: Vec<u64>,
    /// The number of events for each context flag, indexed by the flag's ASCII code.
    pub(super) by_context: Vec<u64>,
    /// The time of the first event, and the largest time of any event, in nanoseconds.
    pub time_ns: Option<(u64, u64)>,
    /// The number of events at time 0, which happened before the clock started.
    pub zero_times: u64,
    /// The number of events with the same time as the previous event.
    pub same_times: u64,
    /// The number of events with an earlier time than the previous event; the two events were on different
    /// CPUs. If an event's time decreases between two CPUs, all events are sorted by time.
    pub times_going_back: u64,
    /// The number of kmem events among the lines that the parser did not understand.
    pub kmem_not_understood: u64,
    /// The first kmem lines that the parser did not understand, shortened, each with its number.
    first_kmem: Vec<(u64, String)>,
    /// The number of events for which the kernel no longer knew the command (`<...>`).
    pub comm_unknown: u64,
    /// The number of object events with a hashed pointer.
    pub hashed_pointers: u64,
    /// The number of object events with a placeholder instead of a pointer, because the kernel could not hash
    /// pointers yet.
    pub placeholders: u64,
    /// The number of object frees, without `kfree(NULL)`.
    pub frees: u64,
    /// The number of calls `kfree(NULL)`.
    pub kfree_of_null: u64,
    /// The number of object allocations that failed.
    pub alloc_failed: u64,
    /// The number of successful object allocations of 0 bytes.
    pub zero_sizes: u64,
    /// The number of object allocations that exceed kmalloc's largest size and were omitted.
    pub too_large: u64,
    /// The number of page allocations that failed.
    pub page_alloc_failed: u64,
    /// The number of successful object allocations, by allocation flags.
    pub(super) by_gfp: Vec<u64>,
    /// The number of requested bytes in successful allocations.
    pub bytes_req: u64,
    /// The number of allocated bytes in successful allocations.
    pub bytes_alloc: u64,
    /// The number of `kmem_cache_free` events that name a cache, and the number of all `kmem_cache_free` events.
    pub cache_free_named: (u64, u64),
    /// The number of `kmem_cache_alloc` events that name a cache, and the number of all `kmem_cache_alloc` events.
    pub cache_alloc_named: (u64, u64),
    /// The number of `mm_page_alloc_zone_locked` events that move pages to a per-CPU list.
    pub percpu_refills: u64,
    /// The number of `mm_page_alloc_zone_locked` events that move pages to a caller.
    pub zone_direct: u64,
    /// The number of allocations from caches whose name came only from the free of the object.
    pub named_by_free: u64,
    /// `true` if the text does not end with a line feed.
    pub unterminated: bool,
    /// If the last line is truncated and therefore omitted: its text, shortened, and its number.
    pub cut_line: Option<(u64, String)>,
    /// The header that `libuslab.so` wrote into its recording.
    pub recorded: Option<Recorded>,
}

impl Recording {
    /// Reads the text of `source` on a separate thread, while the calling thread parses it. The calling
    /// thread calls `progress` once for every 128 KiB of text. The page size of the traced machine is
    /// inferred from the trace, or else assumed to be 4 KiB.
    ///
    /// # Errors
    ///
    /// Fails if reading fails, the thread cannot start, the temporary file fails, or the text contains no
    /// event. Also fails on an impossible value, such as an order above 10, an object of no bytes or more than 4 MiB,
    /// or a CPU above 8191. If the pages are larger than 4 KiB, higher orders and larger objects are accepted. A last
    /// line that is incomplete is omitted, and noted in the [`Counts`].
    pub fn read(source: Source, progress: impl FnMut(Progress)) -> Result<Self, TraceError> {
        Self::read_with_page_size(source, None, progress)
    }

    /// Reads a trace as [`read`](Self::read) does, with a known page size and the source of this knowledge.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`read`](Self::read).
    pub fn read_with_page_size(
        source: Source,
        page_size: Option<(PageSize, PageSizeSource)>,
        progress: impl FnMut(Progress),
    ) -> Result<Self, TraceError> {
        Self::read_with_spool_limit(MAX_SPOOL_MEMORY_BYTES, source, page_size, progress)
    }

    /// Reads a trace as [`read_with_page_size`](Self::read_with_page_size) does, but keeps at most `spool_limit` bytes
    /// of records in memory.
    pub(super) fn read_with_spool_limit(
        spool_limit: usize,
        mut source: Source,
        page_size: Option<(PageSize, PageSizeSource)>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self, TraceError> {
        let mut pass = TraceReadPass::new(source.path().to_owned(), spool_limit);
        pass.partial = source.is_partial();
        if source.is_recorded() {
            pass.recorded(source, progress)?;
            return pass.finish(page_size);
        }
        // Unpacked text reaches the pass in chunks, whose buffers are returned for reuse. The thread that ends first
        // closes its ends of both channels, which ends the other thread.
        let (filled, chunks) = mpsc::sync_channel(PREFETCHED_CHUNKS);
        let (used, spare) = mpsc::channel::<Vec<u8>>();
        let path = source.path().to_owned();
        let unpack = move || {
            let next = |source: &mut Source| {
                let Some(Chunk { text, first_line }) = source.next_chunk()? else { return Ok(None) };
                let mut buffer = spare.try_recv().unwrap_or_default();
                buffer.clear();
                buffer.extend_from_slice(text);
                Ok(Some((buffer, first_line, source.progress())))
            };
            while let Some(chunk) = next(&mut source).transpose() {
                let last = chunk.is_err();
                if filled.send(chunk).is_err() || last {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            let started = thread::Builder::new().spawn_scoped(scope, unpack);
            let reader = started.map_err(|source| TraceError::Read { path, source })?;
            let parsed = chunks.into_iter().try_for_each(|chunk| {
                let (text, first_line, read) = chunk?;
                pass.chunk(&text, first_line)?;
                progress(read);
                // The parser may already have read everything.
                let _ = used.send(text);
                Ok(())
            });
            // The scope alone would wait for the thread's closure, but not for the thread's end.
            reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            parsed
        })?;
        pass.finish(page_size)
    }

    /// Opens and reads `path`; `-` is standard input.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Source::open`] and [`read`](Self::read).
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::read(Source::open(path)?, |_| {})
    }

    /// If a trace has lost its mark `before` together with its oldest events, inserts the mark at the beginning.
    pub fn restore_lost_mark(&mut self, tables: &Tables) {
        const MARK: &[u8] = b"SNAP before begin";
        let overwritten = self.counts.header.is_some_and(|(in_buffer, written, _)| in_buffer < written);
        let lost = overwritten || self.counts.lost > 0;
        if lost && tables.at("before").is_some() && self.strings.marks.find(MARK).is_none() {
            self.lost_mark = Some(self.strings.marks.intern(MARK));
        }
    }

    /// Returns the path of the trace.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the counts of the recording.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of records for the second pass; the pass takes time in proportion to this number.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.spool.len()
    }

    /// Returns the events about the kernel's free lists of pages, in the order of the trace. No allocator
    /// replays these events, so they do not become operations.
    ///
    /// # Errors
    ///
    /// Fails if the temporary file fails.
    pub fn page_moves(&mut self) -> Result<Vec<PageMove>, TraceError> {
        let mut moves = Vec::new();
        let scanned = self.page_moves.scan(|_, _, record| {
            moves.push(PageMove::of(record));
            Ok(())
        });
        scanned.map_err(|source| TraceError::Spool { source })?;
        Ok(moves)
    }

    /// Returns the number of events by name, most frequent first.
    #[must_use]
    pub fn events_by_name(&self) -> Vec<(String, u64)> {
        names_with_counts(&self.strings.events, &self.counts.by_name)
    }

    /// Returns the number of object allocations by flags, most frequent first.
    #[must_use]
    pub fn allocations_by_gfp(&self) -> Vec<(String, u64)> {
        names_with_counts(&self.strings.gfp, &self.counts.by_gfp)
    }

    /// Returns the address at which the traced kernel maps all memory.
    #[must_use]
    pub fn direct_map(&self) -> DirectMap {
        self.mapping.direct_map
    }

    /// Returns the page size of the traced machine, and how it was determined.
    #[must_use]
    pub fn page_size(&self) -> (PageSize, PageSizeSource) {
        (self.mapping.page_size, self.page_size_source)
    }

    /// Returns the number of call sites of object events.
    #[must_use]
    pub fn call_sites(&self) -> usize {
        self.strings.sites.len()
    }

    /// Returns the number of call sites that allocate from several caches; a call site with two sizes counts twice.
    #[must_use]
    pub fn ambiguous_sites(&self) -> u64 {
        self.shapes.ambiguous_origin_count()
    }
}

fn names_with_counts(symbols: &super::symbols::Symbols, counts: &[u64]) -> Vec<(String, u64)> {
    let mut named: Vec<_> = counts
        .iter()
        .enumerate()
        .filter(|&(_, &count)| count > 0)
        .map(|(number, &count)| (symbols.text(Symbol(number as u32)).into_owned(), count))
        .collect();
    named.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    named
}

/// Adds one to a counter in a list, and extends the list with zeros if it is too short.
pub(super) fn increment_at(counts: &mut Vec<u64>, at: usize) {
    if at >= counts.len() {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
}

struct TraceReadPass {
    path: PathBuf,
    parser: Parser,
    shapes: Shapes,
    spool: Spool,
    page_moves: Spool,
    counts: Counts,
    last_time: Option<u64>,
    /// The time of the last event on each CPU.
    last_times: Vec<u64>,
    /// `true` to accept a trace in which the parser does not understand many lines of kmem events.
    partial: bool,
    /// The live objects of caches, each with the record and shape of its allocation.
    objects: FxHashMap<u64, (u64, u32)>,
    vote: DirectMapVote,
    /// For each page size, the first value that is impossible with it, and the line of the value.
    impossible: [Option<(u64, Impossible)>; PageSize::ALL.len()],
}

impl TraceReadPass {
    fn new(path: PathBuf, spool_limit: usize) -> Self {
        Self {
            path,
            parser: Parser::new(),
            shapes: Shapes::default(),
            spool: Spool::new(spool_limit),
            page_moves: Spool::new(spool_limit / 4),
            counts: Counts::default(),
            last_time: None,
            last_times: Vec::new(),
            partial: false,
            objects: FxHashMap::default(),
            vote: DirectMapVote::default(),
            impossible: [None; PageSize::ALL.len()],
        }
    }

    fn chunk(&mut self, mut text: &[u8], first_line: u64) -> Result<(), TraceError> {
        let mut number = first_line;
        while !text.is_empty() {
            let (line, rest) = match memchr(b'\n', text) {
                Some(end) => (&text[..end], &text[end + 1..]),
                None => (text, &text[text.len()..]),
            };
            self.counts.unterminated = line.len() == text.len();
            self.line(line, number)?;
            number += 1;
            text = rest;
        }
        self.counts.lines = number - 1;
        Ok(())
    }

    /// Reads a recording of `libuslab.so`; each record counts as a line.
    fn recorded(&mut self, source: Source, mut progress: impl FnMut(Progress)) -> Result<(), TraceError> {
        self.parser.is_recorded();
        let mut calls = Calls::open(source)?;
        while let Some((number, call, cpu, time_ns)) = calls.next_call()? {
            let event = self.parser.event_from_call(call, cpu, time_ns);
            self.event(&event, number).map_err(|source| TraceError::Spool { source })?;
            self.counts.lines = number;
            if number.is_multiple_of(RECORDS_PER_PROGRESS) {
                progress(calls.progress());
            }
        }
        let recorded = calls.finish();
        self.counts.lost = recorded.lost;
        self.counts.recorded = Some(recorded);
        Ok(())
    }

    fn line(&mut self, text: &[u8], number: u64) -> Result<(), TraceError> {
        match self.parser.parse(text) {
            Ok(Line::Event(event)) => {
                self.check_time(&event, number)?;
                self.event(&event, number).map_err(|source| TraceError::Spool { source })?;
            }
            Ok(Line::Nothing) => {}
            Ok(Line::Lost(events)) => {
                self.counts.lost = self.counts.lost.saturating_add(events.max(1));
                self.counts.lost_notices += 1;
            }
            Ok(Line::Header(HeaderFact::Entries { in_buffer, written, cpus })) => {
                // Each CPU's own text has a header, whose numbers cover all CPUs.
                let (before, others, _) = self.counts.header.unwrap_or_default();
                self.counts.header = Some((before.max(in_buffer), others.max(written), cpus));
            }
            Ok(Line::Header(HeaderFact::Cpus(cpus))) => self.counts.machine_cpus = Some(cpus),
            Err(_) if self.counts.unterminated => self.counts.cut_line = Some((number, shown(text))),
            Err(RejectReason::Impossible(what)) => {
                return Err(TraceError::Impossible { path: self.path.clone(), line: number, what });
            }
            Err(RejectReason::NotUnderstood) => {
                self.counts.not_understood += 1;
                if self.counts.first_not_understood.len() < MAX_KEPT_REJECTED_LINES {
                    self.counts.first_not_understood.push((number, shown(text)));
                }
                if has_kmem_event_name(text) {
                    self.counts.kmem_not_understood += 1;
                    if self.counts.first_kmem.len() < MAX_KEPT_REJECTED_LINES {
                        self.counts.first_kmem.push((number, shown(text)));
                    }
                }
            }
        }
        Ok(())
    }

    /// The time can decrease between CPUs, because a text may contain all events of one CPU before the events of the
    /// next. On each single CPU, the time must not decrease, except after events at time 0, before the clock starts.
    fn check_time(&mut self, event: &Event, line: u64) -> Result<(), TraceError> {
        if !self.parser.format().is_some_and(Format::is_kernel_format) || event.time_ns == 0 {
            return Ok(());
        }
        let cpu = usize::from(event.cpu);
        if cpu >= self.last_times.len() {
            self.last_times.resize(cpu + 1, 0);
        }
        let last = &mut self.last_times[cpu];
        if event.time_ns < *last {
            let times = (*last, event.time_ns);
            return Err(TraceError::TimeGoesBack { path: self.path.clone(), line, cpu: event.cpu, times });
        }
        *last = event.time_ns;
        Ok(())
    }

    /// Sorts all records by time, and then matches frees that name a cache with their allocations again.
    fn sort(&mut self) -> std::io::Result<()> {
        // Before the clock starts, an event belongs after the previous event on its CPU.
        let mut last = vec![0; usize::from(MAX_CPU_NUMBER) + 1];
        let mut time = |record: &Record| {
            let last = &mut last[usize::from(record.cpu)];
            if record.time_ns != 0 {
                *last = record.time_ns;
            }
            *last
        };
        self.spool = std::mem::replace(&mut self.spool, Spool::new(1)).sort_by_time(&mut time)?;
        let mut last = vec![0; usize::from(MAX_CPU_NUMBER) + 1];
        let mut time = |record: &Record| {
            let last = &mut last[usize::from(record.cpu)];
            *last = record.time_ns.max(*last);
            *last
        };
        self.page_moves = std::mem::replace(&mut self.page_moves, Spool::new(1)).sort_by_time(&mut time)?;
        self.shapes.forget();
        self.objects.clear();
        self.counts.named_by_free = 0;
        let Self { spool, shapes, objects, counts, .. } = self;
        spool.scan(|spool, place, record| {
            match record.tag {
                Tag::Alloc => {
                    let key = shapes.printed_shape(record.key);
                    if key != record.key {
                        spool.update(place, |record| record.key = key)?;
                    }
                    let shape = shapes.get(key);
                    if shape.via == EventSource::Cache && shape.named.is_none() {
                        objects.insert(record.at, (place, key));
                    } else {
                        objects.remove(&record.at);
                    }
                }
                Tag::FreeKmalloc | Tag::FreeCache => {
                    if let Some((place, shape)) = objects.remove(&record.at)
                        && let Some(name) = record.key.checked_sub(1)
                    {
                        counts.named_by_free += 1;
                        if let Some(own) = shapes.learn(shape, Symbol(name)) {
                            spool.update(place, |record| record.key = own)?;
                        }
                    }
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn event(&mut self, event: &Event, line: u64) -> std::io::Result<()> {
        self.count(event);
        let record = Record {
            at: 0,
            time_ns: event.time_ns,
            line,
            cpu: event.cpu,
            key: 0,
            tag: Tag::Alloc,
            order: 0,
            migratetype: 0,
            usage: PageUse::Other as u8,
        };
        if let EventKind::PageAlloc { order, .. }
        | EventKind::PageFree { order, .. }
        | EventKind::ZoneLocked { order, .. }
        | EventKind::PcpuDrain { order, .. }
        | EventKind::ExtFrag { order, .. } = event.kind
        {
            self.possible("order", order.into(), 0, |size| size.max_order().into(), line);
        }
        match event.kind {
            EventKind::Alloc { ptr: Ptr(0), .. } => {
                self.counts.alloc_failed += 1;
                Ok(())
            }
            EventKind::Alloc { ptr, site, bytes_req, bytes_alloc, gfp, cache, via } => {
                self.possible("bytes_alloc", bytes_alloc.into(), 1, PageSize::max_kmalloc_object_bytes, line);
                let shape = Shape { site, bytes_req, bytes_alloc, gfp, via, named: cache };
                self.alloc(ptr, &shape, record.with_allocating_task(event.task.map(|task| task.0)))
            }
            EventKind::Free { ptr, cache, via, .. } => self.free(ptr, cache, via, record),
            EventKind::PageAlloc { pfn, order, migratetype, .. } => {
                self.vote.pages(event.cpu, pfn, order, migratetype == MOVABLE);
                self.spool.push(Record { at: pfn.0, tag: Tag::PageAlloc, order, migratetype, ..record })
            }
            EventKind::PageFree { pfn, order } => {
                self.spool.push(Record { at: pfn.0, tag: Tag::PageFree, order, ..record })
            }
            EventKind::Mark(text) => self.spool.push(Record { tag: Tag::Mark, key: text.0, ..record }),
            EventKind::ZoneLocked { pfn, order, migratetype, percpu_refill } => {
                let (tag, key) = (Tag::PageTaken, u32::from(percpu_refill));
                self.page_moves.push(Record { at: pfn.0, tag, key, order, migratetype, ..record })
            }
            EventKind::PcpuDrain { pfn, order, migratetype } => {
                let tag = Tag::PageDrained;
                self.page_moves.push(Record { at: pfn.0, tag, order, migratetype, ..record })
            }
            EventKind::ExtFrag { pfn, order } => {
                self.page_moves.push(Record { at: pfn.0, tag: Tag::PageFallback, order, ..record })
            }
            EventKind::FreeNull
            | EventKind::Placeholder
            | EventKind::TooLarge { .. }
            | EventKind::PageAllocFailed
            | EventKind::Other => Ok(()),
        }
    }

    /// Records the page sizes with which a value is impossible.
    fn possible(
        &mut self,
        field: &'static str,
        value: u64,
        least: u64,
        most: impl Fn(PageSize) -> u64,
        line: u64,
    ) {
        // Nearly every value is possible with all page sizes.
        if value <= most(PageSize::ALL[0]) {
            return;
        }
        for (size, first) in PageSize::ALL.into_iter().zip(&mut self.impossible) {
            if value > most(size) {
                let what = Impossible { field, value, most: most(size), least, page_size: Some(size) };
                first.get_or_insert((line, what));
            }
        }
    }

    fn alloc(&mut self, ptr: Ptr, shape: &Shape, record: Record) -> std::io::Result<()> {
        let number = self.shapes.number(*shape);
        if shape.via == EventSource::Cache && shape.named.is_none() {
            self.objects.insert(ptr.0, (self.spool.len(), number));
        } else {
            self.objects.remove(&ptr.0);
        }
        self.vote.object(record.cpu, ptr);
        self.spool.push(Record { at: ptr.0, tag: Tag::Alloc, key: number, ..record })
    }

    fn free(
        &mut self,
        ptr: Ptr,
        cache: Option<Symbol>,
        via: EventSource,
        record: Record,
    ) -> std::io::Result<()> {
        if let Some((place, shape)) = self.objects.remove(&ptr.0)
            && let Some(name) = cache
        {
            self.counts.named_by_free += 1;
            if let Some(own) = self.shapes.learn(shape, name) {
                self.spool.update(place, |record| record.key = own)?;
            }
        }
        let tag = match via {
            EventSource::Kmalloc => Tag::FreeKmalloc,
            EventSource::Cache => Tag::FreeCache,
        };
        self.spool.push(Record { at: ptr.0, tag, key: cache.map_or(0, |name| name.0 + 1), ..record })
    }

    fn count(&mut self, event: &Event) {
        let counts = &mut self.counts;
        counts.events += 1;
        increment_at(&mut counts.by_cpu, usize::from(event.cpu));
        increment_at(&mut counts.by_name, event.name.0 as usize);
        if let Some(context) = event.context {
            increment_at(&mut counts.by_context, usize::from(context));
        }
        counts.comm_unknown += u64::from(event.comm_unknown);
        counts.zero_times += u64::from(event.time_ns == 0);
        counts.same_times += u64::from(self.last_time == Some(event.time_ns));
        counts.times_going_back += u64::from(self.last_time.is_some_and(|last| event.time_ns < last));
        self.last_time = Some(event.time_ns);
        let (first, latest) = counts.time_ns.unwrap_or((event.time_ns, event.time_ns));
        counts.time_ns = Some((first, latest.max(event.time_ns)));
        match event.kind {
            EventKind::Alloc { ptr, bytes_req, bytes_alloc, gfp, cache, via, .. } => {
                if via == EventSource::Cache {
                    counts.cache_alloc_named.0 += u64::from(cache.is_some());
                    counts.cache_alloc_named.1 += 1;
                }
                if ptr.0 != 0 {
                    increment_at(&mut counts.by_gfp, gfp.0 as usize);
                    counts.zero_sizes += u64::from(bytes_req == 0);
                    counts.bytes_req += u64::from(bytes_req);
                    counts.bytes_alloc += u64::from(bytes_alloc);
                    counts.hashed_pointers += u64::from(ptr.is_hashed());
                }
            }
            EventKind::Free { ptr, cache, via, .. } => {
                if via == EventSource::Cache {
                    counts.cache_free_named.0 += u64::from(cache.is_some());
                    counts.cache_free_named.1 += 1;
                }
                counts.frees += 1;
                counts.hashed_pointers += u64::from(ptr.is_hashed());
            }
            EventKind::FreeNull => counts.kfree_of_null += 1,
            EventKind::Placeholder => counts.placeholders += 1,
            EventKind::TooLarge { alloc } => counts.too_large += u64::from(alloc),
            EventKind::PageAllocFailed => counts.page_alloc_failed += 1,
            EventKind::ZoneLocked { percpu_refill: true, .. } => counts.percpu_refills += 1,
            EventKind::ZoneLocked { percpu_refill: false, .. } => counts.zone_direct += 1,
            EventKind::PageAlloc { .. }
            | EventKind::PageFree { .. }
            | EventKind::PcpuDrain { .. }
            | EventKind::ExtFrag { .. }
            | EventKind::Mark(_)
            | EventKind::Other => {}
        }
    }

    fn finish(mut self, known: Option<(PageSize, PageSizeSource)>) -> Result<Recording, TraceError> {
        let rows = self.parser.take_distribution_rows();
        let line = self.counts.lines;
        let made = fleetbench::calls(&rows, |call| {
            let event = self.parser.event_from_call(call, 0, 0);
            self.event(&event, line)
        });
        made.map_err(|source| TraceError::Spool { source })?;
        self.counts.format = self.parser.format();
        let kmem = self.counts.by_name.iter().take(KMEM_EVENT_COUNT).sum::<u64>();
        if self.counts.events == 0 || kmem == 0 {
            let texts: Vec<&str> = self.counts.first_not_understood.iter().map(|(_, text)| &**text).collect();
            let cut = self.counts.cut_line.as_ref().map(|(_, text)| &**text);
            let texts: Vec<&str> = texts.into_iter().chain(cut).collect();
            if let foreign @ Some(_) = Foreign::of(&texts) {
                let first = String::new();
                return Err(TraceError::NotATrace {
                    path: self.path,
                    lines: self.counts.lines,
                    first,
                    foreign,
                });
            }
        }
        if self.counts.events == 0 {
            let first = self.counts.first_not_understood.first();
            return Err(TraceError::NotATrace {
                path: self.path,
                foreign: None,
                lines: self.counts.lines,
                first: first
                    .or(self.counts.cut_line.as_ref())
                    .map(|(_, text)| text.clone())
                    .unwrap_or_default(),
            });
        }
        let rejected = self.counts.kmem_not_understood;
        if rejected * 20 > kmem + rejected && !self.partial {
            return Err(TraceError::MostlyNotUnderstood {
                path: self.path,
                rejected,
                lines: kmem + rejected,
                first: self.counts.first_kmem,
            });
        }
        if self.counts.times_going_back > 0 && self.counts.format.is_some_and(Format::is_kernel_format) {
            self.sort().map_err(|source| TraceError::Spool { source })?;
        }
        let pointers = self.counts.by_gfp.iter().sum::<u64>() + self.counts.frees;
        let elected = self.vote.result(known.map(|(size, _)| size));
        let direct_map = match elected {
            Some((base, _)) => DirectMap::At(base),
            None if self.counts.hashed_pointers * 2 > pointers => DirectMap::Hashed,
            None => DirectMap::Unknown,
        };
        let (page_size, page_size_source) = known
            .or(elected.map(|(_, size)| (size, PageSizeSource::Addresses)))
            .unwrap_or((PageSize::Kib4, PageSizeSource::Assumed));
        let mut impossible = PageSize::ALL.into_iter().zip(self.impossible);
        if let Some((_, Some((line, what)))) = impossible.find(|(size, _)| *size == page_size) {
            return Err(TraceError::Impossible { path: self.path, line, what });
        }
        let mapping = Mapping { direct_map, page_size };
        if let DirectMap::At(_) = direct_map {
            mark_slabs(&mut self.spool, &self.shapes, mapping)
                .map_err(|source| TraceError::Spool { source })?;
        }
        Ok(Recording {
            path: self.path,
            strings: self.parser.into_strings(),
            shapes: self.shapes,
            spool: self.spool,
            page_moves: self.page_moves,
            counts: self.counts,
            mapping,
            page_size_source,
            lost_mark: None,
        })
    }
}

/// Marks the records of page allocations whose pages are slabs or large objects.
fn mark_slabs(spool: &mut Spool, shapes: &Shapes, mapping: Mapping) -> std::io::Result<()> {
    // For each page of a block whose use is unknown, the index of its allocation plus one.
    let mut blocks = PageTable::<u64>::new();
    spool.scan(|spool, place, record| {
        let usage = match record.tag {
            Tag::PageAlloc => {
                frames(Pfn(record.at), record.order).for_each(|pfn| *blocks.entry(pfn) = place + 1);
                return Ok(());
            }
            Tag::PageFree => {
                for pfn in frames(Pfn(record.at), record.order) {
                    if let Some(block) = blocks.get(pfn) {
                        *block = 0;
                    }
                }
                return Ok(());
            }
            Tag::Alloc => {
                let shape = shapes.get(record.key);
                let large = shape.via == EventSource::Kmalloc
                    && u64::from(shape.bytes_alloc) > mapping.page_size.max_kmalloc_class_bytes();
                if large { PageUse::KmallocLarge } else { PageUse::Slab }
            }
            Tag::FreeCache => PageUse::Slab,
            Tag::FreeKmalloc | Tag::Mark | Tag::PageTaken | Tag::PageDrained | Tag::PageFallback => {
                return Ok(());
            }
        };
        match mapping.pfn(Ptr(record.at)).and_then(|pfn| blocks.get(pfn)) {
            Some(block) if *block != 0 => {
                let place = std::mem::take(block) - 1;
                spool.update(place, |record| record.usage = usage as u8)
            }
            _ => Ok(()),
        }
    })
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_REJECTED_LINE_BYTES)]).into_owned();
    if line.len() > MAX_REJECTED_LINE_BYTES { text + " ..." } else { text }
}
