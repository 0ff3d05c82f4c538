//! Parses the text that the kernel itself prints. A line has the form `comm-pid  (tgid) [cpu] flags time: event:
//! fields`.
//!
//! The column `(tgid)` exists only with the option `record-tgid`; the flags column exists unless `irq-info` is off. A
//! command's name may contain nearly any character (`kworker/0:1`, `mini-0`, blanks, brackets). If the kernel no longer
//! knows the name of the task, it prints `<...>`.
//!
//! With the option `latency-format`, and in `trace-cmd report -l`, a line has the form `comm-pid  cpuflags time: event:
//! fields`. With `latency-format`, a time is in microseconds since the trace began (`10us `), and `+`, `!` or `#` marks
//! a long pause after it. If the option `verbose` is also set, a line has the form `comm pid cpu flags preempt number
//! [time] 0.010ms (+0.000ms): event: fields`.

use super::fields::{self, skip_spaces, word};
use super::prefix::{Prefix, comm_before_pid, parse_cpu_prefix};

pub(super) fn cut(line: &[u8]) -> Option<Prefix<'_>> {
    let (prefix, rest) = parse_cpu_prefix(line, comm_before_pid)
        .or_else(|| parse_latency_prefix(line))
        .or_else(|| parse_verbose_prefix(line))?;
    let (mut name, mut body) = word(rest);
    // The option `--ts-diff` of `trace-cmd report` first prints the time since the previous line: `(+12)`.
    if name.starts_with(b"(+") {
        (name, body) = word(body);
    }
    if let Some(event) = name.strip_suffix(b":") {
        return Some(Prefix { event, body, ..prefix });
    }
    // With the option `sym-addr`, a mark's writer has an address: `tracing_mark_write <ffffffff8149895a>: text`.
    let (address, body) = word(body);
    fields::hex(address.strip_prefix(b"<")?.strip_suffix(b">:")?)?;
    Some(Prefix { event: name, body, ..prefix })
}

/// Returns `true` for a line of a call stack such as ` => kmem_cache_alloc`, or for the line before the
/// stack; the options `stacktrace` and `userstacktrace` print these lines.
pub(super) fn is_call_stack_line(line: &[u8]) -> bool {
    let text = line.trim_ascii();
    text.starts_with(b"=> ") || text.ends_with(b"stack trace>")
}

#[cold]
fn parse_latency_prefix(line: &[u8]) -> Option<(Prefix<'_>, &[u8])> {
    let mut from = 0;
    for _ in 0..8 {
        let start = from + line[from..].iter().position(|b| *b != b' ')?;
        let end = start + fields::find_byte(b' ', &line[start..]);
        if let Some((cpu, flags)) = fields::number(&line[start..end])
            && is_flags_column(flags)
            && let Some(comm) = comm_before_pid(&line[..start])
        {
            let (time_ns, rest) = parse_latency_time(&line[end..])?;
            let context = flags.get(2).copied();
            return Some((Prefix { comm, cpu, context, time_ns, event: b"", body: b"" }, rest));
        }
        from = end;
    }
    None
}

/// Returns `true` for a flags column such as `d..1.`: interrupts, need to reschedule, kind of context,
/// preemption depth, migration depth.
fn is_flags_column(flags: &[u8]) -> bool {
    let of_flag = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'#');
    (4..=6).contains(&flags.len()) && !flags[0].is_ascii_digit() && flags.iter().all(of_flag)
}

/// Parses ` 10us : `, ` 10us+: `, ` 1234: ` of a clock without nanoseconds, and ` 100.000010: ` of trace-cmd.
fn parse_latency_time(text: &[u8]) -> Option<(u64, &[u8])> {
    let (time, rest) = fields::time(skip_spaces(text))?;
    let (time_ns, rest) = match rest.strip_prefix(b"us") {
        Some([b' ' | b'+' | b'!' | b'#' | b'*' | b'@' | b'$', rest @ ..]) => (time.checked_mul(1000)?, rest),
        Some(rest) => (time.checked_mul(1000)?, rest),
        None => (time, rest),
    };
    Some((time_ns, skip_spaces(rest.strip_prefix(b":")?)))
}

#[cold]
fn parse_verbose_prefix(line: &[u8]) -> Option<(Prefix<'_>, &[u8])> {
    let open = memchr::memmem::find(line, b" (+")?;
    let close = open + memchr::memmem::find(&line[open..], b"): ")?;
    // The line is parsed from the right, because a command's name may contain blanks.
    let mut left = line[..open].trim_ascii_end();
    let mut last = || {
        let blank = memchr::memrchr(b' ', left)?;
        let (rest, word) = left.split_at(blank);
        left = rest.trim_ascii_end();
        Some(&word[1..])
    };
    let time = last()?;
    let stamp = last()?.strip_prefix(b"[")?.strip_suffix(b"]")?;
    fields::hex(stamp)?;
    let (_number, _preempt, flags) =
        (fields::hex(last()?)?, fields::hex(last()?)?, fields::decimal(last()?)?);
    let (cpu, pid) = (fields::decimal(last()?)?, fields::decimal(last()?)?);
    let _ = (flags, pid);
    // Milliseconds with three decimals are microseconds.
    let time_ns = match time.strip_suffix(b"ms") {
        Some(ms) => fields::time(ms).filter(|(_, rest)| rest.is_empty())?.0 / 1000,
        None => fields::decimal(time)?,
    };
    let prefix = Prefix { comm: left, cpu, context: None, time_ns, event: b"", body: b"" };
    Some((prefix, skip_spaces(&line[close + 3..])))
}
