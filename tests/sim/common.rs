//! Helper functions for the tests that use traces.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use uslab_sim::trace::{
    CacheKind, Facts, FreeOrigin, OpKind, PageFreeOrigin, PageSize, PageUse, Recording, Tables,
};

/// The compression format of a test trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TraceCompression {
    Gzip,
    Xz,
    Zstd,
}

impl TraceCompression {
    pub(crate) const ALL: [Self; 3] = [Self::Gzip, Self::Xz, Self::Zstd];

    pub(crate) fn pack(self, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Gzip => {
                let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                to.write_all(text).unwrap();
                to.finish().unwrap()
            }
            Self::Xz => {
                let mut to = liblzma::write::XzEncoder::new(Vec::new(), 0);
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

    /// Returns the name that error messages give to the compression format.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The address at which the kernels of the samples map page frame 0: x86-64 without address randomisation.
pub(crate) const X86_64_BASE: u64 = 0xffff_8880_0000_0000;

/// The largest offset of an address in the direct map.
const DIRECT_MAP_BYTES: u64 = 64 << 40;

/// Replaces each direct-map address in a text by the result of the function `address`.
pub(crate) fn replace_direct_map_addresses(text: &[u8], address: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, b"ptr=") {
        let digits = at + if rest[at + 4..].starts_with(b"0x") { 6 } else { 4 };
        let end = digits + rest[digits..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
        out.extend_from_slice(&rest[..digits]);
        let printed = std::str::from_utf8(&rest[digits..end]).unwrap();
        match u64::from_str_radix(printed, 16) {
            Ok(real) if real >> 48 != 0 => out.extend(format!("{:016x}", address(real)).into_bytes()),
            _ => out.extend_from_slice(printed.as_bytes()),
        }
        rest = &rest[end..];
    }
    out.extend_from_slice(rest);
    out
}

/// Converts an address of a sample to an address on an arm64 machine that maps page frame 0 at `base`. The conversion
/// keeps the page frame number and the offset in the page.
pub(crate) fn synthetic_arm64_address(real: u64, size: PageSize, base: u64) -> u64 {
    match real.checked_sub(X86_64_BASE).filter(|offset| *offset < DIRECT_MAP_BYTES) {
        Some(offset) => base + (offset >> 12 << size.shift()) + offset % 4096,
        None => real,
    }
}

/// Reverses [`synthetic_arm64_address`].
pub(crate) fn sample_address(made: u64, size: PageSize, base: u64) -> u64 {
    match made.checked_sub(base).filter(|offset| *offset < DIRECT_MAP_BYTES) {
        Some(offset) => X86_64_BASE + (offset >> size.shift() << 12) + offset % size.bytes(),
        None => made,
    }
}

/// Converts an x86-64 sample to a trace of an arm64 machine with large pages. [`synthetic_arm64_address`] converts the
/// addresses; a kmalloc of whole pages (above 8 KiB) keeps its number of pages.
pub(crate) fn synthetic_arm64(text: &[u8], size: PageSize, base: u64) -> Vec<u8> {
    let text = String::from_utf8(replace_direct_map_addresses(text, |real| {
        synthetic_arm64_address(real, size, base)
    }))
    .unwrap();
    let line = |line: &str| match line.split_once(" bytes_alloc=") {
        Some((before, after)) if line.contains("kmalloc: ") => {
            let (bytes, after) = after.split_once(' ').unwrap();
            let bytes: u64 = bytes.parse().unwrap();
            let bytes = if bytes > 8192 { bytes << (size.shift() - 12) } else { bytes };
            format!("{before} bytes_alloc={bytes} {after}")
        }
        _ => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect::<String>().into_bytes()
}

/// Reads all operations of a trace, and checks that they are consistent.
pub(crate) fn check_operations(path: &Path, tables: &Tables) -> Facts {
    let mut ops = Recording::open(path).unwrap().resolve(tables.latest_slabinfo()).unwrap();
    let mut live = HashMap::new();
    let mut blocks = HashMap::new();
    let (mut last_line, mut lines_go_back) = (0, false);
    let mut slabs = 0;
    while let Some(op) = ops.next_op().unwrap() {
        let place = || format!("{}:{}", path.display(), op.line);
        lines_go_back |= op.line < last_line;
        last_line = op.line;
        match op.kind {
            OpKind::Alloc { cache, ptr, bytes_req, bytes_alloc, .. } => {
                assert!(bytes_req <= bytes_alloc, "{}", place());
                let info = ops.cache(cache);
                let sized = info.kind == CacheKind::KmallocLarge || info.size == bytes_alloc;
                assert!(sized, "{}: {info:?}, {bytes_alloc} bytes", place());
                assert_eq!(
                    live.insert(ptr, (cache, op.cpu)),
                    None,
                    "{}: the object is already live",
                    place()
                );
            }
            OpKind::Free { cache, ptr, origin: FreeOrigin::Matched { alloc_cpu } }
            | OpKind::HiddenFree { cache, ptr, alloc_cpu, .. } => {
                assert_eq!(live.remove(&ptr), Some((cache, alloc_cpu)), "{}", place());
            }
            OpKind::Free { ptr, .. } => {
                assert_eq!(live.get(&ptr), None, "{}: an unseen object is live", place())
            }
            OpKind::PageAlloc { pfn, order, usage, .. } => {
                slabs += u64::from(usage == PageUse::Slab);
                assert_eq!(
                    blocks.insert(pfn, (order, op.cpu)),
                    None,
                    "{}: the object is already live",
                    place()
                );
            }
            OpKind::PageFree { pfn, origin: PageFreeOrigin::Matched { alloc_cpu, order }, .. }
            | OpKind::PageFree { pfn, order, origin: PageFreeOrigin::Hidden { alloc_cpu }, .. } => {
                assert_eq!(blocks.remove(&pfn), Some((order, alloc_cpu)), "{}", place());
            }
            OpKind::PageFree { pfn, origin: PageFreeOrigin::Unseen, .. } => {
                assert_eq!(blocks.get(&pfn), None, "{}: an unseen object is live", place());
            }
            OpKind::Mark { .. } => {}
        }
    }
    let facts = ops.facts(tables);
    assert!(!lines_go_back || facts.times_going_back > 0, "{}: line numbers decrease", path.display());
    assert_eq!(live.len() as u64, facts.caches.iter().map(|cache| cache.tally.live).sum::<u64>());
    let new: u64 = facts.caches.iter().map(|cache| cache.tally.slabs_new).sum();
    assert!(slabs >= new, "{}: {slabs} blocks became slabs, but {new} were expected", path.display());
    facts
}
