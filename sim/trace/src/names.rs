//! Finds the cache for each allocation in a trace.
//!
//! Before 6.18, the event `kmem_cache_alloc` does not name its cache. The module searches for the cache's name in this
//! order:
//!
//! 1. For `kmalloc`: the size class, which follows from the bytes and flags. On kernels with `SLAB_BUCKETS`,
//!    messages and copies from user space have separate size classes, which only the caller's name reveals.
//! 2. The field `name=` of the event; of the free of its pointer; or of other frees for this call site and size
//!    ([`shapes`](super::shapes)).
//! 3. A short list of callers whose objects are freed only by `kfree`, which names no cache.
//! 4. The cache of other objects on the object's page.
//! 5. The object size, if slabinfo has exactly one cache with this size.
//! 6. A placeholder, `?function:size`.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::event::EventSource;
use super::line::Strings;
use super::op::{CacheId, CacheInfo, CacheKind};
use super::page_size::PageSize;
use super::shapes::{Shape, Shapes};
use super::symbols::Symbol;
use uslab::SlabInfo;

/// Call sites of `kmem_cache_alloc` whose objects are freed by `kfree`, each with its cache.
const KNOWN_CALL_SITES: [(&str, &str); 2] =
    [("kmalloc_reserve", "skbuff_small_head"), ("alloc_unbound_pwq", "pool_workqueue")];

/// Call sites with separate size classes (`SLAB_BUCKETS`, since 6.11), and the names of these classes.
const BUCKET_CALL_SITES: [(&str, &str); 4] = [
    ("load_msg", "msg_msg"),
    ("alloc_msg", "msg_msg"),
    ("memdup_user", "memdup_user"),
    ("vmemdup_user", "memdup_user"),
];

/// The name of the pseudo-cache for objects that are too large for a slab.
const KMALLOC_LARGE: &str = "kmalloc-large";

/// How the caches of `kmem_cache_alloc` events were found; each field is the number of allocations that one
/// source named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct NameSources {
    /// The event itself named the cache; all kmalloc events count for this source.
    pub in_event: u64,
    /// A later free of the same pointer named the cache.
    pub by_free: u64,
    /// Frees of other objects with the same call site and size named the cache.
    pub by_site: u64,
    /// The table of known callers named the cache.
    pub by_known_site: u64,
    /// Another object on the object's page named the cache.
    pub by_neighbour: u64,
    /// Slabinfo has exactly one cache with this object size.
    pub by_size: u64,
    /// The number of allocations for which no source named the cache.
    pub left: u64,
}

/// The knowledge about the cache of a shape before the object's page is examined.
#[derive(Debug, Clone, Copy)]
enum ShapeCacheState {
    NotAsked,
    /// The field `tells_neighbours` is `true` if the trace gave the name, which then also applies to other objects on
    /// the page.
    Cache {
        cache: CacheId,
        source: Source,
        tells_neighbours: bool,
    },
    /// The shape does not determine the cache; only the page can.
    AskPage,
    /// If the page does not reveal the cache either, the cache is slabinfo's only cache of this size, or a placeholder.
    AskPageElse {
        cache: CacheId,
        by_size: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Event,
    Taught,
    KnownSite,
}

#[derive(Debug)]
pub(super) struct Names {
    strings: Strings,
    shapes: Shapes,
    known: Vec<ShapeCacheState>,
    caches: Vec<CacheInfo>,
    numbers: HashMap<String, CacheId, rustc_hash::FxBuildHasher>,
    /// The cache for each cache name in the trace.
    by_symbol: Vec<Option<CacheId>>,
    /// For each object size, slabinfo's only cache with this size; `None` if several caches have the size.
    by_size: FxHashMap<u32, Option<String>>,
    slabinfo_sizes: FxHashMap<String, u32>,
    /// The object size of each named cache, from its allocations; needed for caches whose first event is a free.
    traced_sizes: FxHashMap<Symbol, u32>,
    page_size: PageSize,
    buckets: bool,
    named_by_frees: u64,
    pub(super) sources: NameSources,
}

impl Names {
    pub(super) fn new(
        strings: Strings,
        shapes: Shapes,
        slabinfo: Option<&SlabInfo>,
        page_size: PageSize,
    ) -> Self {
        let rows = slabinfo.map_or(&[][..], |info| &info.rows);
        // No object is larger than a slab, which has at most 4 MiB.
        let size = |row: &uslab::info::Row| u32::try_from(row.object_size).unwrap_or(u32::MAX);
        let mut by_size = FxHashMap::default();
        for row in rows.iter().filter(|row| !is_kmalloc(&row.name)) {
            by_size
                .entry(size(row))
                .and_modify(|only| *only = None)
                .or_insert_with(|| Some(row.name.clone()));
        }
        let mut traced_sizes = FxHashMap::default();
        for number in 0..shapes.len() as u32 {
            let shape = shapes.get(number);
            if shape.via == EventSource::Cache
                && let Some(name) = shape.named.or(shapes.learned(number))
            {
                traced_sizes.entry(name).or_insert(shape.bytes_alloc);
            }
        }
        let buckets = match slabinfo {
            Some(info) => info.rows.iter().any(|row| row.name.starts_with("msg_msg-")),
            // Without tables, the wrappers of allocation profiling show the kernel: they appeared one release before
            // the buckets.
            None => (0..strings.sites.len())
                .any(|n| function(strings.sites.bytes(Symbol(n as u32))).ends_with(b"_noprof")),
        };
        Self {
            known: vec![ShapeCacheState::NotAsked; shapes.len()],
            by_symbol: vec![None; strings.caches.len()],
            strings,
            shapes,
            caches: Vec::new(),
            numbers: HashMap::default(),
            by_size,
            slabinfo_sizes: rows.iter().map(|row| (row.name.clone(), size(row))).collect(),
            traced_sizes,
            page_size,
            buckets,
            named_by_frees: 0,
            sources: NameSources::default(),
        }
    }

    pub(super) fn strings(&self) -> &Strings {
        &self.strings
    }

    pub(super) fn caches(&self) -> &[CacheInfo] {
        &self.caches
    }

    pub(super) fn shape(&self, number: u32) -> &Shape {
        self.shapes.get(number)
    }

    /// Returns the name of the function that contains a call site.
    pub(super) fn containing_function(&self, site: Symbol) -> String {
        String::from_utf8_lossy(function(self.strings.sites.bytes(site))).into_owned()
    }

    /// Returns, for each source, the number of allocations whose cache this source named. The parameter
    /// `named_by_free` is the number of allocations whose own free named the cache.
    pub(super) fn sources(&self, named_by_free: u64) -> NameSources {
        let by_free = named_by_free.min(self.named_by_frees);
        NameSources { by_free, by_site: self.named_by_frees - by_free, ..self.sources }
    }

    /// Returns the cache of an allocation. The parameter `page_name` is the known cache of the object's page; the
    /// function updates it.
    pub(super) fn cache_of_alloc(&mut self, shape: u32, page_name: Option<&mut Option<CacheId>>) -> CacheId {
        if let ShapeCacheState::NotAsked = self.known[shape as usize] {
            self.known[shape as usize] = self.ask(shape);
        }
        match self.known[shape as usize] {
            ShapeCacheState::Cache { cache, source, tells_neighbours } => {
                match source {
                    Source::Event => self.sources.in_event += 1,
                    Source::Taught => self.named_by_frees += 1,
                    Source::KnownSite => self.sources.by_known_site += 1,
                }
                if let Some(name) = page_name
                    && tells_neighbours
                {
                    *name = Some(cache);
                }
                cache
            }
            ShapeCacheState::AskPage | ShapeCacheState::AskPageElse { .. } | ShapeCacheState::NotAsked => {
                if let Some(&mut Some(neighbour)) = page_name {
                    self.sources.by_neighbour += 1;
                    return neighbour;
                }
                self.find_cache_by_size(shape)
            }
        }
    }

    /// Returns the cache for a name in the trace.
    pub(super) fn cache_of_symbol(&mut self, symbol: Symbol) -> CacheId {
        if let Some(cache) = self.by_symbol[symbol.0 as usize] {
            return cache;
        }
        let name = self.strings.caches.text(symbol).into_owned();
        let kind = if name.contains("kmalloc-") { CacheKind::Kmalloc } else { CacheKind::Named };
        let cache = self.cache(name, kind, self.traced_sizes.get(&symbol).copied().unwrap_or(0));
        self.by_symbol[symbol.0 as usize] = Some(cache);
        cache
    }

    /// Returns the cache to which all frees without a known cache are attributed.
    pub(super) fn unknown_kfree_cache(&mut self) -> CacheId {
        self.cache("?kfree".to_owned(), CacheKind::Placeholder, 0)
    }

    fn ask(&mut self, number: u32) -> ShapeCacheState {
        let shape = *self.shapes.get(number);
        let site = function(self.strings.sites.bytes(shape.site)).to_vec();
        if shape.via == EventSource::Kmalloc {
            let (name, kind) = self.kmalloc_cache_name(&shape, &site);
            let cache = self.cache(name, kind, shape.bytes_alloc);
            return ShapeCacheState::Cache { cache, source: Source::Event, tells_neighbours: false };
        }
        let named_by_frees = self.shapes.learned(number);
        if let Some(symbol) = shape.named.or(named_by_frees) {
            let cache = self.cache_of_symbol(symbol);
            self.record_size(cache, shape.bytes_alloc);
            let source = if self.shapes.is_name_learned(number) { Source::Taught } else { Source::Event };
            return ShapeCacheState::Cache { cache, source, tells_neighbours: true };
        }
        let known = KNOWN_CALL_SITES.iter().find(|(caller, _)| caller.as_bytes() == base(&site));
        if let Some((_, name)) = known
            && (self.slabinfo_sizes.is_empty() || self.slabinfo_sizes.contains_key(*name))
        {
            let cache = self.cache((*name).to_owned(), CacheKind::Named, shape.bytes_alloc);
            return ShapeCacheState::Cache { cache, source: Source::KnownSite, tells_neighbours: false };
        }
        ShapeCacheState::AskPage
    }

    /// Finds the cache of an allocation by size, or else creates a placeholder. The cache for a placeholder
    /// is created only when an allocation needs it.
    fn find_cache_by_size(&mut self, number: u32) -> CacheId {
        let (cache, by_size) = match self.known[number as usize] {
            ShapeCacheState::AskPageElse { cache, by_size } => (cache, by_size),
            _ => {
                let Shape { site, bytes_alloc: size, .. } = *self.shapes.get(number);
                let found = match self.by_size.get(&size).cloned().flatten() {
                    Some(name) => (self.cache(name, CacheKind::Named, size), true),
                    None => {
                        let name = format!("?{}:{size}", self.containing_function(site));
                        (self.cache(name, CacheKind::Placeholder, size), false)
                    }
                };
                self.known[number as usize] =
                    ShapeCacheState::AskPageElse { cache: found.0, by_size: found.1 };
                found
            }
        };
        if by_size {
            self.sources.by_size += 1;
        } else {
            self.sources.left += 1;
        }
        cache
    }

    fn kmalloc_cache_name(&self, shape: &Shape, site: &[u8]) -> (String, CacheKind) {
        if let Some(symbol) = shape.named {
            return (self.strings.caches.text(symbol).into_owned(), CacheKind::Kmalloc);
        }
        if u64::from(shape.bytes_alloc) > self.page_size.max_kmalloc_class_bytes() {
            return (KMALLOC_LARGE.to_owned(), CacheKind::KmallocLarge);
        }
        let class = size_class(shape.bytes_alloc);
        let bucket =
            BUCKET_CALL_SITES.iter().find(|(caller, _)| self.buckets && caller.as_bytes() == base(site));
        let family = match bucket {
            Some((_, family)) => family,
            None => family(self.strings.gfp.bytes(shape.gfp)),
        };
        (format!("{family}-{class}"), CacheKind::Kmalloc)
    }

    fn cache(&mut self, name: String, kind: CacheKind, size: u32) -> CacheId {
        if let Some(&cache) = self.numbers.get(&name) {
            self.record_size(cache, size);
            return cache;
        }
        let cache = CacheId(self.caches.len() as u32);
        let size = match self.slabinfo_sizes.get(&name) {
            Some(&objsize) if size == 0 => objsize,
            _ => size,
        };
        self.numbers.insert(name.clone(), cache);
        self.caches.push(CacheInfo { name, kind, size });
        cache
    }

    fn record_size(&mut self, cache: CacheId, size: u32) {
        let known = &mut self.caches[cache.0 as usize].size;
        if *known == 0 {
            *known = size;
        }
    }
}

/// Returns the function of a call site: `function` for `function+0x1b/0x40`.
fn function(site: &[u8]) -> &[u8] {
    &site[..memchr::memchr(b'+', site).unwrap_or(site.len())]
}

/// Returns the name of a function without suffixes of the compiler (`.isra.0`) or of allocation profiling.
fn base(function: &[u8]) -> &[u8] {
    let name = &function[..memchr::memchr(b'.', function).unwrap_or(function.len())];
    name.strip_suffix(b"_noprof").unwrap_or(name)
}

/// Returns the family of kmalloc caches for allocation flags; the kernel checks for DMA first, then for reclaimable,
/// then for accounted.
fn family(gfp: &[u8]) -> &'static str {
    let has = |flags: &[&[u8]]| gfp.split(|&b| b == b'|').any(|flag| flags.contains(&flag));
    if has(&[b"GFP_DMA", b"__GFP_DMA"]) {
        "dma-kmalloc"
    } else if has(&[b"__GFP_RECLAIMABLE"]) {
        "kmalloc-rcl"
    } else if has(&[b"__GFP_ACCOUNT", b"GFP_KERNEL_ACCOUNT"]) {
        "kmalloc-cg"
    } else {
        "kmalloc"
    }
}

/// Returns `true` for the name of a kmalloc cache (including `kmalloc_buckets`); `kmem_cache_alloc` does not allocate
/// from these caches.
#[must_use]
pub fn is_kmalloc(name: &str) -> bool {
    name.starts_with("kmalloc") || name.starts_with("dma-kmalloc")
}

/// Formats a size as in the name of a size class: `512`, `1k`.
fn size_class(bytes: u32) -> String {
    if bytes >= 1024 && bytes.is_multiple_of(1024) { format!("{}k", bytes / 1024) } else { bytes.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kmalloc_families_are_named_by_flags() {
        for (gfp, name) in [
            ("GFP_KERNEL", "kmalloc"),
            ("GFP_KERNEL_ACCOUNT|__GFP_ZERO", "kmalloc-cg"),
            ("GFP_NOWAIT|__GFP_NOWARN|__GFP_ACCOUNT", "kmalloc-cg"),
            ("GFP_KERNEL_ACCOUNT|__GFP_RECLAIMABLE", "kmalloc-rcl"),
            ("GFP_KERNEL|GFP_DMA|__GFP_NOWARN", "dma-kmalloc"),
            ("GFP_KERNEL|GFP_DMA32", "kmalloc"),
            ("none", "kmalloc"),
        ] {
            assert_eq!(family(gfp.as_bytes()), name, "{gfp}");
        }
    }

    #[test]
    fn cache_names_are_derived_from_functions_and_sizes() {
        assert_eq!(function(b"__d_alloc+0x29/0x1d0"), b"__d_alloc");
        assert_eq!(function(b"__d_alloc"), b"__d_alloc");
        assert_eq!(base(b"memdup_user_noprof"), b"memdup_user");
        assert_eq!(base(b"load_msg.isra.0"), b"load_msg");
        assert_eq!(size_class(512), "512");
        assert_eq!(size_class(1024), "1k");
        assert_eq!(size_class(8192), "8k");
        assert_eq!(size_class(1100), "1100");
    }
}
