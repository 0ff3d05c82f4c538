//! What several tests of traces share.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use uslab_sim::trace::{CacheKind, Facts, FreeOrigin, OpKind, PageFreeOrigin, PageUse, Recording, Tables};

/// How a trace may be compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Packing {
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    pub(crate) const ALL: [Self; 3] = [Self::Gzip, Self::Xz, Self::Zstd];

    pub(crate) fn pack(self, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Gzip => {
                let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                to.write_all(text).unwrap();
                to.finish().unwrap()
            }
            Self::Xz => {
                let options = lzma_rust2::XzOptions::with_preset(0);
                let mut to = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
                to.write_all(text).unwrap();
                to.finish().unwrap()
            }
            Self::Zstd => {
                let mut to = zstd::Encoder::new(Vec::new(), 1).unwrap();
                to.include_checksum(true).unwrap();
                to.write_all(text).unwrap();
                to.finish().unwrap()
            }
        }
    }

    /// What errors call it.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Takes all operations of a trace and checks that a replayer that believes them never sees a contradiction.
pub(crate) fn check_operations(path: &Path, tables: &Tables) -> Facts {
    let mut ops = Recording::open(path).unwrap().resolve(tables.latest_slabinfo()).unwrap();
    let mut live = HashMap::new();
    let mut blocks = HashMap::new();
    let mut last_line = 0;
    let mut slabs = 0;
    while let Some(op) = ops.next_op().unwrap() {
        let place = || format!("{}:{}", path.display(), op.line);
        assert!(op.line >= last_line, "{}: lines go back", place());
        last_line = op.line;
        match op.kind {
            OpKind::Alloc { cache, ptr, bytes_req, bytes_alloc } => {
                assert!(bytes_req <= bytes_alloc, "{}", place());
                let info = ops.cache(cache);
                let sized = info.kind == CacheKind::KmallocLarge || info.size == bytes_alloc;
                assert!(sized, "{}: {info:?}, {bytes_alloc} bytes", place());
                assert_eq!(live.insert(ptr, (cache, op.cpu)), None, "{}: live already", place());
            }
            OpKind::Free { cache, ptr, origin: FreeOrigin::Matched { alloc_cpu } }
            | OpKind::HiddenFree { cache, ptr, alloc_cpu, .. } => {
                assert_eq!(live.remove(&ptr), Some((cache, alloc_cpu)), "{}", place());
            }
            OpKind::Free { ptr, .. } => assert_eq!(live.get(&ptr), None, "{}: unseen, yet live", place()),
            OpKind::PageAlloc { pfn, order, usage, .. } => {
                slabs += u64::from(usage == PageUse::Slab);
                assert_eq!(blocks.insert(pfn, (order, op.cpu)), None, "{}: live already", place());
            }
            OpKind::PageFree { pfn, origin: PageFreeOrigin::Matched { alloc_cpu, order }, .. }
            | OpKind::PageFree { pfn, order, origin: PageFreeOrigin::Hidden { alloc_cpu }, .. } => {
                assert_eq!(blocks.remove(&pfn), Some((order, alloc_cpu)), "{}", place());
            }
            OpKind::PageFree { pfn, origin: PageFreeOrigin::Unseen, .. } => {
                assert_eq!(blocks.get(&pfn), None, "{}: unseen, yet live", place());
            }
            OpKind::Mark { .. } => {}
        }
    }
    let facts = ops.facts(tables);
    assert_eq!(live.len() as u64, facts.caches.iter().map(|cache| cache.tally.live).sum::<u64>());
    let new: u64 = facts.caches.iter().map(|cache| cache.tally.slabs_new).sum();
    assert!(slabs >= new, "{}: {slabs} blocks became slabs, {new} were seen", path.display());
    facts
}
