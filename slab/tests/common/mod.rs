//! What the tests of caches share.

#![allow(dead_code)]

pub(crate) mod exposition;

use std::sync::Arc;
use uslab::{Config, Corruption, CorruptionKind, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::Cpus;
use uslab_magazine::sync::Mutex;

/// A subsystem of simulated CPUs with so much memory, none of it in reserve.
pub(crate) fn config(cpus: u32, nodes: u32, bytes: usize) -> Config {
    let cpus = Cpus::simulated(cpus, nodes).unwrap();
    let mut pages = PageConfig::default_for(cpus).limit(bytes);
    pages.min_free_kib = Some(0);
    Config { check_frees: true, ..Config::new(pages) }
}

pub(crate) fn subsystem(cpus: u32) -> Subsystem {
    Subsystem::new(config(cpus, 1, 64 << 20)).unwrap()
}

/// What a handler was told.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<(CorruptionKind, String)>>>);

impl Heard {
    /// Makes the handler of `config` this one.
    pub(crate) fn listen(&self, config: &mut Config) {
        let heard = self.clone();
        config.corruption = Arc::new(move |corruption: &Corruption<'_>| {
            heard.0.lock().push((corruption.kind, corruption.to_string()));
        });
    }
    pub(crate) fn take(&self) -> Vec<(CorruptionKind, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Nothing is left anywhere: no objects, no slabs, all pages in maximal blocks and with the OS.
pub(crate) fn assert_all_given_back(subsystem: &Subsystem) {
    subsystem.shrink();
    subsystem.pages().release();
    let census = subsystem.check().unwrap();
    assert_eq!(
        (census.objects, census.slabs, census.slab_pages, census.large_pages, census.huge_pages),
        (0, 0, 0, 0, 0),
        "{census:?}"
    );
    let pages = subsystem.pages().info();
    assert_eq!((pages.pages_not_in_maximal_blocks(), pages.committed_bytes()), (0, 0));
}
