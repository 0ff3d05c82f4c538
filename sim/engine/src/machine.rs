//! The machine on which a stream runs: the shipping subsystem on simulated CPUs, whose pages are only addresses.

use crate::stream::{CacheInfo, Kind, Stream};
use elsa::FrozenVec;
use std::fmt;
use uslab::{Config, KmallocKind, KmemCache, Magazines, SizeClass, StartError, Subsystem};
use uslab_buddy::{Backend, PAGE_SIZE, PageConfig, PageError, Phantom, ZoneKind};
use uslab_magazine::{BadCpus, Cpus};

/// The largest memory of a machine in bytes: the same on all targets, because addresses in a web page have only 32
/// bits.
pub const MAX_MACHINE_MEMORY: u64 = 1 << 30;

/// The reason why a machine cannot run the stream.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The simulated machine cannot have this number of CPUs.
    #[error(transparent)]
    Cpus(#[from] BadCpus),
    /// Memory for the machine's tables is exhausted.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Memory for the metadata of pages is exhausted.
    #[error(transparent)]
    Pages(#[from] PageError),
    /// A cache of the stream cannot be created.
    #[error("cache {0}: {1}")]
    Cache(String, uslab::CacheError),
}

/// The simulated subsystem, from which allocated objects borrow.
///
/// # Invariants
/// The simulated machine has memory behind its addresses only if `bytes` is set. Because its addresses may be invalid,
/// no safe code outside this crate can access the subsystem.
pub struct Machine {
    pub(crate) subsystem: Subsystem,
    /// `true` if real memory exists at the addresses.
    pub(crate) bytes: bool,
    /// The caches that the stream names, except kmalloc's caches. The list can grow while caches in it have objects in
    /// use.
    named_caches: FrozenVec<Box<KmemCache>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}

/// Configures pages that are only addresses, for a page allocator that no code outside this crate can access.
///
/// A machine with explicit zones gets the watermarks of a kernel with huge pages, as in the traced kernels.
pub(crate) fn page_config(cpus: u32, zones: &[(ZoneKind, u32)]) -> Result<PageConfig, MachineError> {
    let all = [(ZoneKind::Normal, (MAX_MACHINE_MEMORY / PAGE_SIZE as u64) as u32)];
    let node = if zones.is_empty() { &all } else { zones };
    let mut pages = PageConfig::with_nodes(Cpus::simulated(cpus, 1)?, vec![node.to_vec()]);
    pages.min_free_for_huge_pages = !zones.is_empty();
    // SAFETY: the allocator does not leave this crate, which requests only plain blocks (not zeroed, without a
    // constructor, never resized) and never accesses their bytes. Checked frees read tags, which are in real memory.
    pages.backend = Backend::Phantom(unsafe { Phantom::new() });
    Ok(pages)
}

impl Machine {
    /// Creates the machine for a stream, with the zones of the stream; if the stream has no zones, the machine has
    /// [`MAX_MACHINE_MEMORY`] bytes. Only the machine's tables use real memory.
    ///
    /// # Errors
    /// Fails if the CPUs or the memory cannot be simulated, or if a cache of the stream cannot be created.
    pub fn new(stream: &Stream) -> Result<Self, MachineError> {
        Self::with_magazines(stream, Magazines::default())
    }
    /// Creates the machine as [`new`](Self::new) does, but each cache has the given magazines.
    ///
    /// # Errors
    /// Fails in the same cases as [`new`](Self::new).
    pub fn with_magazines(stream: &Stream, magazines: Magazines) -> Result<Self, MachineError> {
        Self::on(page_config(stream.cpus, &stream.zones)?, magazines)
    }
    /// Creates the machine as [`new`](Self::new) does, but with real memory at the addresses.
    /// [`Shipping`](crate::Shipping) writes a stamp into each allocated object, and checks the stamp when the object is
    /// freed.
    ///
    /// # Errors
    /// Fails in the same cases as [`new`](Self::new), and if the system is out of memory.
    pub fn with_bytes(stream: &Stream) -> Result<Self, MachineError> {
        let mut pages = page_config(stream.cpus, &stream.zones)?;
        pages.backend = Backend::default();
        Ok(Self { bytes: true, ..Self::on(pages, Magazines::default())? })
    }
    /// Creates a machine with `cpus` CPUs and the given magazines.
    #[cfg(test)]
    pub(crate) fn with(cpus: u32, magazines: Magazines) -> Result<Self, MachineError> {
        Self::on(page_config(cpus, &[])?, magazines)
    }
    fn on(pages: PageConfig, magazines: Magazines) -> Result<Self, MachineError> {
        // The configuration is the same on all targets and in all build profiles.
        let config = Config { magazines, check_frees: false, ..Config::new(pages) };
        Ok(Self { subsystem: Subsystem::new(config)?, bytes: false, named_caches: FrozenVec::new() })
    }

    /// Returns the machine's cache that represents a cache of the stream. Returns `None` for large kmalloc, which has
    /// no cache.
    pub(crate) fn cache(&self, info: &CacheInfo) -> Result<Option<&KmemCache>, MachineError> {
        if info.kind == Kind::Large {
            return Ok(None);
        }
        let kmalloc = self.subsystem.kmalloc();
        let classes = KmallocKind::ALL
            .into_iter()
            .flat_map(|kind| SizeClass::all().map(move |class| kmalloc.cache(kind, class)));
        if info.kind == Kind::Kmalloc
            && let Some(class) = { classes }.find(|class| class.name() == info.name)
        {
            return Ok(Some(class));
        }
        // A cache that appears only in hidden events may have no recorded size, so the smallest size is used.
        let name = info.name.replace(char::is_whitespace, "_");
        let cache = KmemCache::builder(name, info.size.max(8) as usize).build_in(&self.subsystem);
        let cache = cache.map_err(|error| MachineError::Cache(info.name.clone(), error))?;
        Ok(Some(self.named_caches.push_get(Box::new(cache))))
    }
}
