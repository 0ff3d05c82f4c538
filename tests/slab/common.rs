//! Helper functions for tests of caches.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use uslab::{Config, Corruption, CorruptionKind, ObjectCache, OwnedBox, Subsystem};
use uslab_buddy::PageConfig;
use uslab_magazine::sync::Mutex;
use uslab_magazine::{Cpus, on_cpu};

/// A lock for tests that keep an RCU reader for long, and for tests that need a process without readers. The lock is
/// `std`'s, because debug assertions would count a held lock of the project.
#[allow(clippy::disallowed_types)]
pub(crate) static READERS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Returns a configuration with simulated CPUs, `bytes` of memory and no reserve.
pub(crate) fn config(cpus: u32, nodes: u32, bytes: usize) -> Config {
    let cpus = Cpus::simulated(cpus, nodes).unwrap();
    // Mappings above the largest block do not count towards this limit.
    let pages =
        PageConfig { limited: false, min_free_kib: Some(0), ..PageConfig::default_for(cpus).limit(bytes) };
    Config { check_frees: true, ..Config::new(pages) }
}

pub(crate) fn subsystem(cpus: u32) -> Subsystem {
    Subsystem::new(config(cpus, 1, 64 << 20)).unwrap()
}

/// Creates and drops `caches` caches, one after the other. Another thread, on CPU 1, frees one object of each cache
/// after a few more caches were created.
pub(crate) fn use_boxes_outliving_cache(subsystem: &Subsystem, caches: usize) {
    let (sender, receiver) = sync_channel::<OwnedBox<u64>>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            on_cpu(1);
            receiver.into_iter().for_each(|object| assert_eq!(*object, 7));
        });
        on_cpu(0);
        for i in 0..caches {
            let name = format!("outlived-{i}");
            let cache = ObjectCache::builder(name).ctor(|| 7_u64).build_in(subsystem).unwrap();
            sender.send(cache.alloc_owned().unwrap()).unwrap();
        }
        drop(sender);
    });
}

/// The corruption reports that the handler has received.
#[derive(Clone, Default)]
pub(crate) struct RecordedReports(Arc<Mutex<Vec<(CorruptionKind, String)>>>);

impl RecordedReports {
    /// Makes this value the corruption handler of `config`.
    pub(crate) fn listen(&self, config: &mut Config) {
        let reports = self.clone();
        config.corruption = Arc::new(move |corruption: &Corruption<'_>| {
            reports.0.lock().push((corruption.kind, corruption.to_string()));
        });
    }
    pub(crate) fn take_reports(&self) -> Vec<(CorruptionKind, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Checks that nothing is in use: no objects or slabs exist, and all pages are in the largest possible blocks and
/// returned to the system.
pub(crate) fn assert_all_memory_returned(subsystem: &Subsystem) {
    subsystem.shrink();
    subsystem.pages().decommit();
    let census = subsystem.check().unwrap();
    assert_eq!(
        (census.objects, census.slabs, census.slab_pages, census.large_pages, census.huge_pages),
        (0, 0, 0, 0, 0),
        "{census:?}"
    );
    let pages = subsystem.pages().info();
    let charged_pages = pages.zones.iter().map(|zone| zone.charged).sum::<u32>();
    assert_eq!((pages.pages_not_in_maximal_blocks(), pages.committed_bytes(), charged_pages), (0, 0, 0));
}
