//! Parses the text that `trace-cmd report` prints. A line has the form `comm-pid [cpu] time: event:   (site) fields`.
//!
//! Object events have the call site twice, first in parentheses; newer versions of trace-cmd also
//! print ftrace's flags. The text of trace-cmd starts with a line such as `cpus=4`.

use memchr::memchr;

use super::ftrace;
use super::prefix::Prefix;

pub(super) fn cut(line: &[u8]) -> Option<Prefix<'_>> {
    let prefix = ftrace::cut(line)?;
    let body = match prefix.body.first() {
        Some(b'(') if repeats_site(prefix.body) => {
            let end = memchr(b')', prefix.body)?;
            prefix.body[end + 1..].trim_ascii_start()
        }
        _ => prefix.body,
    };
    Some(Prefix { body, ..prefix })
}

/// Returns `true` for fields such as `(getname_flags+0x26) call_site=getname_flags+0x26 ...`.
pub(super) fn repeats_site(body: &[u8]) -> bool {
    body.first() == Some(&b'(')
        && memchr(b')', body).is_some_and(|end| body[end + 1..].trim_ascii_start().starts_with(b"call_site="))
}
