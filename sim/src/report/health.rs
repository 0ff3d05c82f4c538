//! The faults of a trace. The report shows the faults of the trace first, because they limit the value of all other
//! numbers.

use crate::output::grouped;
use crate::trace::{DirectMap, Facts, Format, PageSize, PageSizeSource, Recorded};
use serde::Serialize;
use std::fmt;

/// Data that a trace lacks, or that cannot be derived from the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceHealth {
    /// The number of old events that the kernel's ring buffer overwrote before they were read. The number of
    /// overwritten events is from ftrace's header.
    pub overwritten: u64,
    /// The number of events that the header counts but the text lacks, because the text was truncated or filtered.
    pub missing: u64,
    /// The number of events that the text reports as lost; for a program's recording, the number of calls after the
    /// recording ended.
    pub lost: u64,
    /// The number of calls that were in progress when a program's recording ended.
    pub unwritten: u64,
    /// The number of lines that are neither events nor headers.
    pub not_understood: u64,
    /// The number of the last line, if it is truncated and therefore omitted.
    pub cut_last_line: Option<u64>,
    /// The address at which the traced kernel maps its memory. Without the address of the direct map, no page
    /// event can be attributed to a slab.
    pub direct_map: DirectMap,
    /// The page size of the traced machine in bytes.
    pub page_size: PageSize,
    /// The source of the page size. If the page size is assumed, the smallest request for which kmalloc takes pages is
    /// also an assumption.
    pub page_size_source: PageSizeSource,
    /// The faults of the trace as sentences, in the order of the fields.
    pub warnings: Vec<String>,
}

impl TraceHealth {
    /// Derives the health report of a trace from its facts.
    pub fn of(facts: &Facts) -> Self {
        let (in_buffer, written) = facts.header.map_or((0, 0), |h| (h.in_buffer, h.written));
        let mut health = Self {
            overwritten: written.saturating_sub(in_buffer),
            missing: in_buffer.saturating_sub(facts.total + facts.not_understood),
            lost: facts.lost,
            unwritten: facts.recorded.as_ref().map_or(0, |recorded| recorded.unwritten),
            not_understood: facts.not_understood,
            cut_last_line: facts.cut_line.as_ref().map(|(line, _)| *line),
            direct_map: facts.direct_map,
            page_size: facts.page_size,
            page_size_source: facts.page_size_source,
            warnings: Vec::new(),
        };
        let mut warnings = String::new();
        // Writing to a string cannot fail.
        let _ = health.write_warnings(&mut warnings, facts, written);
        health.warnings = warnings.lines().map(str::to_owned).collect();
        health
    }

    fn write_warnings(&self, out: &mut impl fmt::Write, facts: &Facts, written: u64) -> fmt::Result {
        if self.overwritten > 0 {
            writeln!(
                out,
                "the kernel's ring buffer was full: it overwrote the oldest {} of {} events",
                grouped(self.overwritten),
                grouped(written)
            )?;
        }
        if self.missing > 0 {
            writeln!(
                out,
                "the trace was truncated or filtered: it has {} events fewer than its header states",
                grouped(self.missing)
            )?;
        }
        if let Some(recorded) = &facts.recorded {
            self.warn_about_recording(out, recorded)?;
        } else if self.lost > 0 {
            writeln!(
                out,
                "the kernel lost {} events; all counts after the loss are inexact",
                grouped(self.lost)
            )?;
        }
        if facts.mark_was_lost {
            writeln!(
                out,
                "the lost events include the mark at which the tables `before` were read, so these tables are compared with the state at the first remaining event"
            )?;
        }
        if self.not_understood > 0 {
            writeln!(out, "{} lines were not understood, beginning with:", grouped(self.not_understood))?;
            for (line, text) in &facts.first_not_understood {
                writeln!(out, "  line {line}: {text}")?;
            }
        }
        if facts.times_going_back > 0 && facts.format.is_some_and(Format::is_kernel_format) {
            writeln!(
                out,
                "the time decreases {} between lines of different CPUs, so the events were sorted by time. The order of events with equal times is unknown",
                match facts.times_going_back {
                    1 => "once".to_owned(),
                    times => format!("{} times", grouped(times)),
                }
            )?;
        }
        if facts.format == Some(Format::Fleetbench) {
            writeln!(
                out,
                "the trace was generated from a distribution: sizes, rates and numbers of live blocks are from a real program, but the order of the frees is random"
            )?;
        }
        if facts.too_large > 0 {
            writeln!(
                out,
                "{} allocations above 4 MiB were omitted, because malloc maps such blocks separately",
                grouped(facts.too_large)
            )?;
        }
        match &facts.cut_line {
            Some((line, text)) => {
                writeln!(out, "the last line ({line}) is truncated and was ignored: {text}")?
            }
            None if facts.unterminated => {
                writeln!(out, "the last line has no line feed, so it may be truncated")?
            }
            None => {}
        }
        let pages = facts.pages.allocs_by_order.iter().chain(&facts.pages.frees_by_order).sum::<u64>();
        let objects = facts.objects.allocs + facts.objects.frees;
        if pages == 0 || objects == 0 {
            return Ok(());
        }
        let effect = "the replay cannot distinguish slab pages from other pages. It treats all of them as other pages, and finds fewer hidden frees";
        match self.direct_map {
            DirectMap::At(_) => return Ok(()),
            DirectMap::Hashed => {
                writeln!(
                    out,
                    "pointers are hashed: {effect}. Boot with no_hash_pointers to record addresses"
                )?;
            }
            DirectMap::Unknown => {
                writeln!(out, "no object is on a page that was allocated directly before it: {effect}")?;
            }
        }
        if self.page_size_source == PageSizeSource::Assumed {
            let size = self.page_size;
            writeln!(out, "  The page size is also unknown: {size} are assumed; --page-size sets it")?;
        }
        Ok(())
    }

    fn warn_about_recording(&self, out: &mut impl fmt::Write, recorded: &Recorded) -> fmt::Result {
        if self.lost > 0 {
            writeln!(
                out,
                "the recording reached its limit, or the device was full: the last {} calls are missing",
                grouped(self.lost)
            )?;
        }
        if self.unwritten > 0 {
            writeln!(
                out,
                "{} calls were in progress when the program ended, and are not in the recording",
                grouped(self.unwritten)
            )?;
        }
        if let Some(parent) = recorded.parent {
            writeln!(
                out,
                "the process was forked from process {parent}, and may free memory of that process; such frees are counted as pre-trace frees"
            )?;
        }
        Ok(())
    }
}
