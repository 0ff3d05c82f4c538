//! Parses the text that `perf script` prints. A line has the form `comm pid [cpu] time: group:event: fields`.
//!
//! The text does not contain ftrace's flags. Pointers begin with `0x`, and the null pointer is `(nil)`. Call
//! sites do not have the size of the function, and the field `page=` repeats the field `pfn=`. The time may
//! decrease from one line to the next if the lines are from different CPUs. With call graphs, indented lines
//! `address function (module)` follow an event.

use super::fields::{self, find_byte, word};
use super::prefix::{Prefix, parse_cpu_prefix};

pub(super) fn cut(line: &[u8]) -> Option<Prefix<'_>> {
    let (prefix, rest) = parse_cpu_prefix(line, parse_comm_and_pid)?;
    let (mut name, mut body) = word(rest);
    // With `-F +period`, a number precedes the event.
    if fields::decimal(name).is_some() {
        (name, body) = word(body);
    }
    if name == b"PERF_RECORD_LOST" {
        return Some(Prefix { event: name, body, ..prefix });
    }
    let name = name.strip_suffix(b":")?;
    let event = name.get(find_byte(b':', name) + 1..)?;
    Some(Prefix { event, body, ..prefix })
}

/// Parses `comm pid` or `comm pid/tid`; with the option `-F`, either part may be missing.
fn parse_comm_and_pid(task: &[u8]) -> Option<&[u8]> {
    let task = task.trim_ascii();
    let start = memchr::memrchr(b' ', task).map_or(0, |blank| blank + 1);
    let ids = &task[start..];
    let pid = memchr::memchr(b'/', ids).map_or(ids, |slash| &ids[slash + 1..]);
    // A thread that has already exited has the pid -1.
    let is_pid = pid == b"-1" || fields::decimal(pid).is_some();
    Some(if is_pid { task[..start].trim_ascii_end() } else { task })
}

/// Returns the control group, which `-F +cgroup` prints after the fields.
pub(super) fn cgroup(body: &[u8]) -> Option<&[u8]> {
    let body = body.trim_ascii_end();
    let word = &body[memchr::memrchr(b' ', body)? + 1..];
    word.starts_with(b"/").then_some(word)
}

/// Returns `true` for an indented line such as `ffffffff8130f9d5 kmem_cache_alloc+0x1d5 ([kernel.kallsyms])`.
pub(super) fn is_call_chain(line: &[u8]) -> bool {
    matches!(line.first(), Some(b' ' | b'\t')) && fields::hex(word(line.trim_ascii_start()).0).is_some()
}

/// Returns `true` for an event of perf itself, for example a mapping that `--show-mmap-events` prints.
pub(super) fn is_perf_event(line: &[u8]) -> bool {
    memchr::memmem::find(line, b": PERF_RECORD_").is_some()
}
