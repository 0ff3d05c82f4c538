//! Provides the subsystem for this library's object caches (`uslab.h`): the subsystem of the malloc. All caches share
//! the malloc's pages, so one table shows all of them, and a fork holds all locks.

use uslab::report::leaks::Holders;
use uslab::{CacheError, Census, KmemCache, KmemCacheBuilder, SlabInfo, Uslab, Violation};

pub(crate) fn build(builder: KmemCacheBuilder) -> Result<KmemCache, CacheError> {
    Uslab.build(builder)
}
pub(crate) fn slabinfo() -> Option<SlabInfo> {
    Uslab.slabinfo()
}
pub(crate) fn check() -> Option<Result<Census, Violation>> {
    Uslab.check()
}
pub(crate) fn leaks() -> Option<Holders> {
    Uslab.leaks()
}
pub(crate) fn reap() -> usize {
    Uslab.reap()
}
