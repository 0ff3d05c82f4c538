//! Parses one line of a trace: determines its format, and reads its fields.
//!
//! | text of | looks like |
//! |---|---|
//! | ftrace ([`ftrace`](super::ftrace)) | `comm-pid [cpu] flags time: event: k=v ...` |
//! | `perf script` ([`perf`](super::perf)) | `comm pid [cpu] time: kmem:event: k=v ...` |
//! | `trace-cmd report` ([`trace_cmd`](super::trace_cmd)) | `comm-pid [cpu] time: event:  (site) k=v ...` |
//! | babeltrace ([`babeltrace`](super::babeltrace)) | `[time] (+delta) host event: { cpu_id = 1 }, { k = v, ... }` |
//! | wee_alloc ([`wee_alloc`](super::wee_alloc)) | `Alloc(552),` and `Free(0),` |
//! | Fleetbench ([`fleetbench`](super::fleetbench)) | `16, 101940.7, 1974305.1`: a distribution |
//!
//! For each of the kernel's formats, a module splits a line into a [`Prefix`] and the fields of the event.
//! This module parses the fields of an event, whose syntax is the same in all formats. The first line that is
//! an event determines the format of the trace.

use memchr::{memchr, memmem};

use super::error::Impossible;
use super::event::{
    Event, EventKind, EventSource, KNOWN_EVENTS, MAX_CPU_NUMBER, Pfn, Ptr, has_kmem_event_name, is_name,
};
use super::fields::{self, Fields, Pointer, word};
use super::fleetbench::Row;
use super::page_size::PageSize;
use super::prefix::Prefix;
use super::program::Call;
use super::symbols::{Symbol, Symbols};
use super::wee_alloc::Blocks;
use super::{babeltrace, ftrace, perf, trace_cmd, wee_alloc};

/// The format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The text that the kernel itself prints in `trace` or `trace_pipe` of tracefs.
    Ftrace,
    /// The text that `perf script` prints.
    PerfScript,
    /// The text that `trace-cmd report` prints.
    TraceCmdReport,
    /// The text that babeltrace prints for a trace by LTTng.
    Babeltrace,
    /// Calls of malloc and free in a program, in wee_alloc's text format.
    WeeAlloc,
    /// A distribution of a program's allocations, in Fleetbench's text format. From the distribution, the parser
    /// generates a trace.
    Fleetbench,
    /// Calls of malloc and free in a program, as `libuslab.so` records them. The recordings of `libuslab.so` are
    /// binary.
    Libuslab,
}

impl Format {
    /// Returns `true` if the events of this format are a kernel's events.
    #[must_use]
    pub fn is_kernel_format(self) -> bool {
        matches!(self, Self::Ftrace | Self::PerfScript | Self::TraceCmdReport | Self::Babeltrace)
    }
}

/// The kind of a line, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The line is an event.
    Event(Event),
    /// A notice with the number of events that the kernel lost; 0 if the kernel does not report the number.
    Lost(u64),
    /// The line is a header that contains a fact.
    Header(HeaderFact),
    /// The line is a comment, is blank, or belongs to a call chain.
    Nothing,
}

/// A fact from a header line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFact {
    /// The header of ftrace: `# entries-in-buffer/entries-written: 459/2992   #P:4`.
    Entries {
        /// The number of events in the text.
        in_buffer: u64,
        /// The number of events that the kernel wrote, including lost events.
        written: u64,
        /// The number of CPUs of the machine.
        cpus: u64,
    },
    /// The header of trace-cmd: `cpus=4`.
    Cpus(u64),
}

/// The reason why a line is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// The form of the line is unknown.
    NotUnderstood,
    /// The form of the line is known, but the line contains an impossible value.
    Impossible(Impossible),
}

/// The page size with the largest accepted values. The parser uses this page size because the real page size is known
/// only after all lines are parsed.
const LARGEST_PAGE_SIZE: PageSize = PageSize::Kib64;

/// The interned strings of a trace.
#[derive(Debug, Default)]
pub struct Strings {
    /// Event names.
    pub events: Symbols,
    /// Call sites.
    pub sites: Symbols,
    /// The names of caches that occur in the trace.
    pub caches: Symbols,
    /// Allocation flags.
    pub gfp: Symbols,
    /// The texts of the marks in the trace.
    pub marks: Symbols,
    /// The names of commands that allocate.
    pub tasks: Symbols,
}

/// A parser, which receives the lines of a trace in order. The parser determines the format of the trace only
/// once.
#[derive(Debug)]
pub struct Parser {
    format: Option<Format>,
    /// `true` if the text began with a line `cpus=`, which only trace-cmd prints.
    trace_cmd: bool,
    strings: Strings,
    /// The program's live blocks, if the trace was recorded from a program.
    blocks: Blocks,
    /// The rows of the distribution, if the text is in Fleetbench's format.
    rows: Vec<Row>,
    /// The allocation flags of the previous line; kept because successive lines often have equal flags.
    last_gfp: (Vec<u8>, Option<Symbol>),
    /// The command on the previous line with an allocation.
    last_task: (Vec<u8>, Option<Symbol>),
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}

impl Parser {
    /// Creates a parser that has not parsed any line.
    #[must_use]
    pub fn new() -> Self {
        let mut strings = Strings::default();
        for name in KNOWN_EVENTS {
            strings.events.intern(name);
        }
        Self {
            format: None,
            trace_cmd: false,
            strings,
            blocks: Blocks::default(),
            rows: Vec::new(),
            last_gfp: (Vec::new(), None),
            last_task: (Vec::new(), None),
        }
    }

    /// Returns the format, if a line has already determined it.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        self.format
    }

    /// Returns the strings that have been interned so far.
    #[must_use]
    pub fn strings(&self) -> &Strings {
        &self.strings
    }

    /// Returns all interned strings; the caller must first have parsed all lines.
    #[must_use]
    pub fn into_strings(self) -> Strings {
        self.strings
    }

    /// Parses one line, without its line feed.
    ///
    /// # Errors
    ///
    /// Fails if the form of the line is unknown, or if the line contains an impossible value.
    pub fn parse(&mut self, line: &[u8]) -> Result<Line, RejectReason> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.first() {
            None => return Ok(Line::Nothing),
            Some(b'#') => return Ok(comment(line)),
            Some(b'C' | b'c' | b'v') => {
                if let Some(known) = self.parse_header_line(line) {
                    return Ok(known);
                }
            }
            Some(_) => {}
        }
        if self.format.is_none() {
            if wee_alloc::is_wee_alloc_call(line) {
                self.format = Some(Format::WeeAlloc);
            } else if Row::of(line).is_some() {
                self.format = Some(Format::Fleetbench);
            }
        }
        match self.format {
            Some(Format::WeeAlloc) => return self.call(line),
            Some(Format::Fleetbench) => return self.row(line),
            Some(Format::Babeltrace) => return self.parse_babeltrace_event(line),
            None if line.starts_with(b"[") && babeltrace::convert_to_perf_script(line).is_some() => {
                self.format = Some(Format::Babeltrace);
                return self.parse_babeltrace_event(line);
            }
            _ => {}
        }
        let prefix = match self.format {
            Some(format) => cut(format, line),
            None => self.detect(line),
        };
        match prefix {
            Some(prefix) => self.event(&prefix),
            None if self.format == Some(Format::PerfScript) && perf::is_call_chain(line) => Ok(Line::Nothing),
            None if matches!(self.format, Some(Format::PerfScript) | None) && perf::is_perf_event(line) => {
                Ok(Line::Nothing)
            }
            None if matches!(self.format, Some(Format::Ftrace | Format::TraceCmdReport) | None)
                && ftrace::is_call_stack_line(line) =>
            {
                Ok(Line::Nothing)
            }
            None if line.iter().all(u8::is_ascii_whitespace) => Ok(Line::Nothing),
            None => Err(RejectReason::NotUnderstood),
        }
    }

    /// Parses a line that starts in the first column and is not an event.
    fn parse_header_line(&mut self, line: &[u8]) -> Option<Line> {
        if let Some(lost) = parse_lost_notice(line) {
            return Some(Line::Lost(lost));
        }
        if let Some(cpus) = line.strip_prefix(b"cpus=").and_then(fields::decimal) {
            self.trace_cmd = true;
            return Some(Line::Header(HeaderFact::Cpus(cpus)));
        }
        let is_empty_cpu = line.starts_with(b"CPU ") && line.ends_with(b" is empty");
        if is_empty_cpu || line.starts_with(b"version = ") {
            self.trace_cmd = true;
            return Some(Line::Nothing);
        }
        None
    }

    fn detect<'a>(&mut self, line: &'a [u8]) -> Option<Prefix<'a>> {
        let order = if self.trace_cmd {
            [Format::TraceCmdReport, Format::Ftrace, Format::PerfScript]
        } else {
            [Format::PerfScript, Format::Ftrace, Format::TraceCmdReport]
        };
        let cut_well = |format| cut(format, line).filter(|prefix| is_name(prefix.event));
        let (format, prefix) = order.iter().find_map(|&format| Some((format, cut_well(format)?)))?;
        // Without its `cpus=` line, trace-cmd's text differs from ftrace's by the call site in parentheses.
        let format = match format {
            Format::Ftrace if trace_cmd::repeats_site(prefix.body) => Format::TraceCmdReport,
            other => other,
        };
        self.format = Some(format);
        cut(format, line)
    }

    fn event(&mut self, prefix: &Prefix<'_>) -> Result<Line, RejectReason> {
        check_range("cpu", prefix.cpu, 0, u64::from(MAX_CPU_NUMBER))?;
        if self.format == Some(Format::PerfScript) && prefix.event == b"PERF_RECORD_LOST" {
            let events = word(prefix.body.strip_prefix(b"lost").unwrap_or(prefix.body)).0;
            return fields::decimal(events).map(Line::Lost).ok_or(RejectReason::NotUnderstood);
        }
        // The event is filled in place, because events are large and this code runs for each.
        let mut event = Event {
            name: Symbol(0),
            cpu: prefix.cpu as u16,
            context: prefix.context,
            time_ns: prefix.time_ns,
            comm_unknown: prefix.comm.ends_with(b"<...>") && prefix.comm.trim_ascii_start().len() == 5,
            task: None,
            kind: EventKind::Other,
        };
        event.name = self.kind(prefix, &mut event.kind)?;
        if matches!(event.kind, EventKind::Alloc { .. }) && !event.comm_unknown {
            let command = prefix.comm.trim_ascii();
            let group = Some(prefix.body).filter(|_| self.format == Some(Format::PerfScript));
            let joined = group.and_then(perf::cgroup).map(|group| [command, b" in ", group].concat());
            let task = joined.as_deref().unwrap_or(command);
            event.task = Some(intern_repeated(&mut self.strings.tasks, &mut self.last_task, task));
        }
        Ok(Line::Event(event))
    }

    fn kind(&mut self, prefix: &Prefix<'_>, to: &mut EventKind) -> Result<Symbol, RejectReason> {
        let mut fields = Fields::new(prefix.body);
        let place = match prefix.event {
            b"kmalloc" => self.alloc(&mut fields, EventSource::Kmalloc, to).map(|()| 0)?,
            b"kmalloc_node" => self.alloc(&mut fields, EventSource::Kmalloc, to).map(|()| 1)?,
            b"kmem_cache_alloc" => self.alloc(&mut fields, EventSource::Cache, to).map(|()| 2)?,
            b"kmem_cache_alloc_node" => self.alloc(&mut fields, EventSource::Cache, to).map(|()| 3)?,
            b"kfree" => self
                .free(&mut fields, EventSource::Kmalloc, to)
                .map(|()| 4)
                .ok_or(RejectReason::NotUnderstood)?,
            b"kmem_cache_free" => self
                .free(&mut fields, EventSource::Cache, to)
                .map(|()| 5)
                .ok_or(RejectReason::NotUnderstood)?,
            b"mm_page_alloc" => self.page_alloc(&mut fields, to).map(|()| 6)?,
            b"mm_page_free" => {
                let (pfn, order) = block(&mut fields)?;
                *to = EventKind::PageFree { pfn, order };
                7
            }
            b"mm_page_alloc_zone_locked" => {
                let (pfn, order) = block(&mut fields)?;
                let migratetype = migratetype(&mut fields)?;
                let refill = fields.get(b"percpu_refill=").ok_or(RejectReason::NotUnderstood)?;
                *to = EventKind::ZoneLocked { pfn, order, migratetype, percpu_refill: refill == b"1" };
                8
            }
            b"mm_page_pcpu_drain" => {
                let (pfn, order) = block(&mut fields)?;
                *to = EventKind::PcpuDrain { pfn, order, migratetype: migratetype(&mut fields)? };
                9
            }
            b"mm_page_alloc_extfrag" => {
                let (pfn, order) = pages(&mut fields, b"alloc_order=")?;
                *to = EventKind::ExtFrag { pfn, order };
                10
            }
            b"tracing_mark_write" => self.mark(prefix.body, to, 11),
            b"print" => self.mark(prefix.body, to, 12),
            b"bputs" => self.mark(prefix.body, to, 13),
            name if is_name(name) => return Ok(self.strings.events.intern(name)),
            _ => return Err(RejectReason::NotUnderstood),
        };
        Ok(Symbol(place))
    }

    /// Parses babeltrace's text of an event; events outside the group kmem are omitted.
    fn parse_babeltrace_event(&mut self, line: &[u8]) -> Result<Line, RejectReason> {
        match babeltrace::convert_to_perf_script(line) {
            Some(text) => self.event(&perf::cut(&text).ok_or(RejectReason::NotUnderstood)?),
            None if has_kmem_event_name(line) => Err(RejectReason::NotUnderstood),
            None => Ok(Line::Nothing),
        }
    }

    /// Parses a line of a program's trace.
    fn call(&mut self, line: &[u8]) -> Result<Line, RejectReason> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(Line::Nothing);
        }
        let call = self.blocks.call(line).ok_or(RejectReason::NotUnderstood)?;
        Ok(Line::Event(self.event_from_call(call, 0, 0)))
    }

    /// Parses a line of a distribution.
    fn row(&mut self, line: &[u8]) -> Result<Line, RejectReason> {
        if !line.iter().all(u8::is_ascii_whitespace) {
            self.rows.push(Row::of(line).ok_or(RejectReason::NotUnderstood)?);
        }
        Ok(Line::Nothing)
    }

    /// Moves the parsed distribution out of the parser.
    pub(super) fn take_distribution_rows(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.rows)
    }

    /// Sets the format to a recording of `libuslab.so`.
    pub(super) fn is_recorded(&mut self) {
        self.format = Some(Format::Libuslab);
    }

    /// Converts a call that a program made to an event. An unknown CPU or time becomes 0 in the event.
    pub(super) fn event_from_call(&mut self, call: Call, cpu: u16, time_ns: u64) -> Event {
        let site = self.strings.sites.intern(b"malloc");
        let kind = match call {
            Call::Alloc { block, bytes, takes } => EventKind::Alloc {
                ptr: Ptr(block),
                site,
                bytes_req: bytes,
                bytes_alloc: takes,
                gfp: self.gfp(b"none"),
                cache: None,
                via: EventSource::Kmalloc,
            },
            Call::Free { block } => {
                EventKind::Free { ptr: Ptr(block), site, cache: None, via: EventSource::Kmalloc }
            }
            Call::FreeOfNothing => EventKind::FreeNull,
            Call::TooLarge => EventKind::TooLarge { alloc: true },
            Call::FreeOfTooLarge => EventKind::TooLarge { alloc: false },
            Call::Failed => EventKind::Alloc {
                ptr: Ptr(0),
                site,
                bytes_req: 0,
                bytes_alloc: 0,
                gfp: self.gfp(b"none"),
                cache: None,
                via: EventSource::Kmalloc,
            },
            Call::Resized => EventKind::Other,
        };
        let name = match call {
            Call::Alloc { .. } | Call::TooLarge | Call::Failed => &b"Alloc"[..],
            Call::Free { .. } | Call::FreeOfNothing | Call::FreeOfTooLarge => b"Free",
            Call::Resized => b"Resize",
        };
        let name = self.strings.events.intern(name);
        Event { name, cpu, context: None, time_ns, comm_unknown: false, task: None, kind }
    }

    /// Parses the text of a mark. trace-cmd prints the name of the writing function before this text. With
    /// ftrace's option `fields`, the mark's text is the field `buf`, which may be before or after the field
    /// `ip`.
    fn mark(&mut self, body: &[u8], to: &mut EventKind, place: u32) -> u32 {
        let mut text = body.strip_prefix(b"tracing_mark_write: ").unwrap_or(body);
        if let Some(buf) = text.strip_prefix(b"buf=") {
            text = memmem::rfind(buf, b" ip=0x").map_or(buf, |ip| &buf[..ip]);
        } else if text.starts_with(b"ip=") {
            text = memmem::find(text, b" buf=").map_or(text, |buf| &text[buf + 5..]);
        }
        *to = EventKind::Mark(self.strings.marks.intern(text));
        place
    }

    fn alloc(
        &mut self,
        fields: &mut Fields<'_>,
        via: EventSource,
        to: &mut EventKind,
    ) -> Result<(), RejectReason> {
        let (bytes_req, bytes_alloc) =
            self.parse_alloc_fields(fields, via, to).ok_or(RejectReason::NotUnderstood)?;
        if matches!(to, EventKind::Alloc { ptr: Ptr(1..), .. }) {
            check_range("bytes_alloc", bytes_alloc, 1, LARGEST_PAGE_SIZE.max_kmalloc_object_bytes())?;
            check_range("bytes_req", bytes_req, 0, bytes_alloc)?;
        }
        Ok(())
    }

    fn parse_alloc_fields(
        &mut self,
        fields: &mut Fields<'_>,
        via: EventSource,
        to: &mut EventKind,
    ) -> Option<(u64, u64)> {
        let site = fields.get(b"call_site=")?;
        let early = fields.next_name(b"name=");
        let pointer = fields.pointer(b"ptr=")?;
        let cache = early.or_else(|| fields.optional(b"name="));
        let bytes_req = fields.number(b"bytes_req=")?;
        let bytes_alloc = fields.number(b"bytes_alloc=")?;
        let gfp = fields.get(b"gfp_flags=")?;
        *to = match pointer {
            Pointer::Placeholder => EventKind::Placeholder,
            Pointer::Address(address) => EventKind::Alloc {
                ptr: Ptr(address),
                site: self.strings.sites.intern(site),
                bytes_req: bytes_req.min(u64::from(u32::MAX)) as u32,
                bytes_alloc: bytes_alloc.min(u64::from(u32::MAX)) as u32,
                gfp: self.gfp(gfp),
                cache: cache.filter(|name| !name.is_empty()).map(|name| self.strings.caches.intern(name)),
                via,
            },
        };
        Some((bytes_req, bytes_alloc))
    }

    fn free(&mut self, fields: &mut Fields<'_>, via: EventSource, to: &mut EventKind) -> Option<()> {
        let site = fields.get(b"call_site=")?;
        let early = fields.next_name(b"name=");
        *to = match fields.pointer(b"ptr=")? {
            Pointer::Placeholder => EventKind::Placeholder,
            Pointer::Address(0) => EventKind::FreeNull,
            Pointer::Address(address) => EventKind::Free {
                ptr: Ptr(address),
                site: self.strings.sites.intern(site),
                cache: match early.or_else(|| fields.optional(b"name=")) {
                    Some(name) if !name.is_empty() => Some(self.strings.caches.intern(name)),
                    _ => None,
                },
                via,
            },
        };
        Some(())
    }

    fn page_alloc(&mut self, fields: &mut Fields<'_>, to: &mut EventKind) -> Result<(), RejectReason> {
        let page = fields.next_if(b"page=");
        // The event has the number of no page; its print format shows 0 instead.
        if fields.starts_with(b"pfn=0xffffffffffffffff") {
            *to = EventKind::PageAllocFailed;
            return Ok(());
        }
        let (pfn, order) = block(fields)?;
        let migratetype = migratetype(fields)?;
        let gfp = fields.get(b"gfp_flags=").ok_or(RejectReason::NotUnderstood)?;
        // Page 0 is never allocated, so it marks a failure.
        let failed = pfn.0 == 0
            && !page.is_some_and(|page| fields::pointer(page).is_some_and(|p| p != Pointer::Address(0)));
        *to = if failed {
            EventKind::PageAllocFailed
        } else {
            EventKind::PageAlloc { pfn, order, migratetype, gfp: self.gfp(gfp) }
        };
        Ok(())
    }

    fn gfp(&mut self, text: &[u8]) -> Symbol {
        intern_repeated(&mut self.strings.gfp, &mut self.last_gfp, text)
    }
}

/// Interns a text that is usually equal to the previous text.
fn intern_repeated(symbols: &mut Symbols, last: &mut (Vec<u8>, Option<Symbol>), text: &[u8]) -> Symbol {
    match last.1 {
        Some(symbol) if last.0 == text => symbol,
        _ => {
            let symbol = symbols.intern(text);
            last.0.clear();
            last.0.extend_from_slice(text);
            last.1 = Some(symbol);
            symbol
        }
    }
}

fn cut(format: Format, line: &[u8]) -> Option<Prefix<'_>> {
    match format {
        Format::Ftrace => ftrace::cut(line),
        Format::PerfScript => perf::cut(line),
        Format::TraceCmdReport => trace_cmd::cut(line),
        Format::Babeltrace | Format::WeeAlloc | Format::Fleetbench | Format::Libuslab => None,
    }
}

/// Parses the notices `CPU:3 [LOST 71 EVENTS]` of ftrace, and `CPU:3 [71 EVENTS DROPPED]` and `CPU:3 [EVENTS DROPPED]`
/// of trace-cmd.
fn parse_lost_notice(line: &[u8]) -> Option<u64> {
    let text = line.strip_prefix(b"CPU:")?;
    let open = memchr(b'[', text)?;
    let inside = text[open + 1..].strip_suffix(b"]")?;
    if inside == b"EVENTS DROPPED" || inside == b"LOST EVENTS" {
        return Some(0);
    }
    let number = match inside.strip_prefix(b"LOST ") {
        Some(rest) => rest.strip_suffix(b" EVENTS")?,
        None => inside.strip_suffix(b" EVENTS DROPPED")?,
    };
    fields::decimal(number)
}

fn comment(line: &[u8]) -> Line {
    let entries = || {
        let rest = line.strip_prefix(b"# entries-in-buffer/entries-written:")?;
        let (counts, rest) = word(rest);
        let slash = memchr(b'/', counts)?;
        Some(HeaderFact::Entries {
            in_buffer: fields::decimal(&counts[..slash])?,
            written: fields::decimal(&counts[slash + 1..])?,
            cpus: fields::decimal(word(rest).0.strip_prefix(b"#P:")?)?,
        })
    };
    entries().map_or(Line::Nothing, Line::Header)
}

/// Parses the fields `pfn=` and `order=`.
fn block(fields: &mut Fields<'_>) -> Result<(Pfn, u8), RejectReason> {
    pages(fields, b"order=")
}

/// Parses the field `pfn=` and the order, whose key is `key`.
fn pages<const N: usize>(fields: &mut Fields<'_>, key: &[u8; N]) -> Result<(Pfn, u8), RejectReason> {
    fields.next_if(b"page=");
    let pfn = fields.get(b"pfn=").and_then(fields::pfn).ok_or(RejectReason::NotUnderstood)?;
    let order = fields.number(key).ok_or(RejectReason::NotUnderstood)?;
    check_range("order", order, 0, LARGEST_PAGE_SIZE.max_order().into())?;
    // Physical addresses have 52 bits.
    check_range("pfn", pfn, 0, (1 << 40) - 1)?;
    Ok((Pfn(pfn), order as u8))
}

fn migratetype(fields: &mut Fields<'_>) -> Result<u8, RejectReason> {
    let value = fields.number(b"migratetype=").ok_or(RejectReason::NotUnderstood)?;
    check_range("migratetype", value, 0, 15)?;
    Ok(value as u8)
}

fn check_range(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), RejectReason> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(RejectReason::Impossible(Impossible { field, value, most, least, page_size: None }))
    }
}
