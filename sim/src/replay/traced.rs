//! A trace, prepared for the modules that infer facts from it.

use crate::trace::{Op, Resolver, Tables};

/// A trace, and the tables in the trace's folder.
#[derive(Clone, Copy)]
pub(super) struct TracedInput<'t> {
    pub(super) resolver: &'t Resolver,
    pub(super) ops: &'t [Op],
    pub(super) tables: &'t Tables,
}

/// Returns the function of a call site, without its offset. The result is `__d_alloc` for
/// `__d_alloc+0x2b/0x1d0`. Removes suffixes that compilers or allocation profiling have added to the
/// function's name.
pub(super) fn function(site: &str) -> &str {
    let name = site.split(['+', '.']).next().unwrap_or_default();
    name.strip_suffix("_noprof").unwrap_or(name)
}
