//! The kernel's own text: `comm-pid  (tgid) [cpu] flags time: event: fields`.
//!
//! The `(tgid)` column is there with the option `record-tgid`, the flags unless `irq-info` is off. A command's name may
//! hold nearly anything (`kworker/0:1`, `mini-0`, blanks, brackets), and is `<...>` when the kernel has forgotten it.

use super::fields::word;
use super::prefix::{Prefix, comm_before_pid, cut_at_cpu};

pub(super) fn cut(line: &[u8]) -> Option<Prefix<'_>> {
    let (prefix, rest) = cut_at_cpu(line, comm_before_pid)?;
    let (name, body) = word(rest);
    Some(Prefix { event: name.strip_suffix(b":")?, body, ..prefix })
}
