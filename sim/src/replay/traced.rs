//! A trace in the form from which other modules infer facts.

use crate::trace::{Op, Resolver, Tables};

/// A trace, and the tables in the trace's folder.
#[derive(Clone, Copy)]
pub(super) struct Traced<'t> {
    pub(super) resolver: &'t Resolver,
    pub(super) ops: &'t [Op],
    pub(super) tables: &'t Tables,
}

/// Returns the function of a call site, without its offset. The result is `__d_alloc` for
/// `__d_alloc+0x2b/0x1d0`. Suffixes that compilers or allocation profiling have added to a function's name
/// are removed.
pub(super) fn function(site: &str) -> &str {
    let name = site.split(['+', '.']).next().unwrap_or_default();
    name.strip_suffix("_noprof").unwrap_or(name)
}
