//! Parses the beginning of an event line, before the fields; all formats have this part in common.

use super::fields::{self, find_byte, skip_spaces, word};

/// The beginning of an event line, before the fields.
#[derive(Debug)]
pub(super) struct Prefix<'a> {
    /// The command, possibly with leading blanks.
    pub(super) comm: &'a [u8],
    pub(super) cpu: u64,
    pub(super) context: Option<u8>,
    pub(super) time_ns: u64,
    /// The event's name.
    pub(super) event: &'a [u8],
    pub(super) body: &'a [u8],
}

/// Parses the part of a line between the task and the event: `[cpu] flags time: `. This part of the line begins at the
/// first bracket that fits the syntax, because a command's name may also contain brackets. The callback `comm` parses
/// the task, which is before this part.
pub(super) fn parse_cpu_prefix<'a>(
    line: &'a [u8],
    comm: impl Fn(&'a [u8]) -> Option<&'a [u8]>,
) -> Option<(Prefix<'a>, &'a [u8])> {
    let mut from = 0;
    for _ in 0..8 {
        let open = from + find_byte(b'[', &line[from..]);
        let inside = line.get(open + 1..)?;
        if let Some(found) = split_after_bracket(inside)
            && let Some(comm) = comm(&line[..open])
        {
            let (prefix, rest) = found;
            return Some((Prefix { comm, ..prefix }, rest));
        }
        from = open + 1;
    }
    None
}

fn split_after_bracket(inside: &[u8]) -> Option<(Prefix<'_>, &[u8])> {
    let (cpu, rest) = fields::number(inside).filter(|(cpu, _)| *cpu < 100_000)?;
    let rest = skip_spaces(rest.strip_prefix(b"]")?);
    let (context, (time_ns, rest)) = match stamp(rest) {
        Some(stamp) => (None, stamp),
        None => {
            let (flags, rest) = word(rest);
            (flags.get(2).copied(), stamp(rest).filter(|_| !flags.ends_with(b":"))?)
        }
    };
    Some((Prefix { comm: b"", cpu, context, time_ns, event: b"", body: b"" }, rest))
}

/// Parses the time before `: `, and returns the text after it.
fn stamp(text: &[u8]) -> Option<(u64, &[u8])> {
    let (time_ns, rest) = fields::time(text)?;
    let rest = rest.strip_prefix(b":")?;
    matches!(rest, [] | [b' ', ..]).then(|| (time_ns, skip_spaces(rest)))
}

/// Returns the command from `comm-pid` or `comm-pid  (tgid)`; the pid follows the last `-`.
pub(super) fn comm_before_pid(task: &[u8]) -> Option<&[u8]> {
    let mut task = task.trim_ascii_end();
    if let Some(inner) = task.strip_suffix(b")") {
        task = inner[..memchr::memrchr(b'(', inner)?].trim_ascii_end();
    }
    let digits = task.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    match task[..task.len() - digits].split_last() {
        Some((b'-', comm)) if digits > 0 => Some(comm),
        _ => None,
    }
}
