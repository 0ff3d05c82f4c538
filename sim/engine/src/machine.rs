//! What a stream runs on: the shipping subsystem on simulated CPUs, whose pages are addresses.

use crate::stream::{CacheInfo, Kind, Stream};
use elsa::FrozenVec;
use std::fmt;
use uslab::{Config, KmallocKind, KmemCache, Magazines, SizeClass, StartError, Subsystem};
use uslab_buddy::{Backend, PAGE_SIZE, PageConfig, PageError, Phantom, ZoneKind};
use uslab_magazine::{BadCpus, Cpus};

/// Bytes that a machine may have, on every target alike: what a page's 32 bits of addresses leave.
pub const MOST_MEMORY: u64 = 1 << 30;

/// A machine that a stream does not run on.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// CPUs that cannot be.
    #[error(transparent)]
    Cpus(#[from] BadCpus),
    /// No memory for its tables.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The same, of its pages alone.
    #[error(transparent)]
    Pages(#[from] PageError),
    /// A cache that cannot be made.
    #[error("cache {0}: {1}")]
    Cache(String, uslab::CacheError),
}

/// The parts that objects borrow from.
///
/// # Invariants
/// No safe code outside this crate gets at the subsystem, and none inside looks into an object or page: there is nothing, unless
/// `bytes` says so.
pub struct Machine {
    pub(crate) subsystem: Subsystem,
    /// There is memory behind the addresses.
    pub(crate) bytes: bool,
    /// Caches that are none of kmalloc's. Grows while objects of others are out.
    named: FrozenVec<Box<KmemCache>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}

/// Pages that are addresses only, for a page allocator that does not leave this crate.
///
/// Watermarks of a machine with zones of its own are those of a kernel with huge pages: it is one that was traced.
pub(crate) fn page_config(cpus: u32, zones: &[(ZoneKind, u32)]) -> Result<PageConfig, MachineError> {
    let all = [(ZoneKind::Normal, (MOST_MEMORY / PAGE_SIZE as u64) as u32)];
    let node = if zones.is_empty() { &all } else { zones };
    let mut pages = PageConfig::with_nodes(Cpus::simulated(cpus, 1)?, vec![node.to_vec()]);
    pages.min_free_for_huge_pages = !zones.is_empty();
    // SAFETY: the allocator does not leave this crate, which asks for plain blocks only (no zeroed ones, none with a
    // constructor, none that grows) and never for their bytes. Checked frees look at tags, which are memory.
    pages.backend = Backend::Phantom(unsafe { Phantom::new() });
    Ok(pages)
}

impl Machine {
    /// For a stream, with its zones; without any, with all of [`MOST_MEMORY`]. Only the tables cost anything.
    ///
    /// # Errors
    /// The CPUs or the memory cannot be simulated, or a cache of the stream cannot be made.
    pub fn new(stream: &Stream) -> Result<Self, MachineError> {
        Self::with_magazines(stream, Magazines::default())
    }
    /// The same with these magazines in each cache.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_magazines(stream: &Stream, magazines: Magazines) -> Result<Self, MachineError> {
        Self::on(page_config(stream.cpus, &stream.zones)?, magazines)
    }
    /// The same with memory behind the addresses. [`Shipping`](crate::Shipping) writes a stamp to each object of a cache
    /// while it is out, and checks it at the free.
    ///
    /// # Errors
    /// As [`new`](Self::new); or the system has no memory.
    pub fn with_bytes(stream: &Stream) -> Result<Self, MachineError> {
        let mut pages = page_config(stream.cpus, &stream.zones)?;
        pages.backend = Backend::default();
        Ok(Self { bytes: true, ..Self::on(pages, Magazines::default())? })
    }
    /// Of so many CPUs, with these magazines.
    #[cfg(test)]
    pub(crate) fn with(cpus: u32, magazines: Magazines) -> Result<Self, MachineError> {
        Self::on(page_config(cpus, &[])?, magazines)
    }
    fn on(pages: PageConfig, magazines: Magazines) -> Result<Self, MachineError> {
        // The same on all targets and in all profiles.
        let config = Config { magazines, check_frees: false, ..Config::new(pages) };
        Ok(Self { subsystem: Subsystem::new(config)?, bytes: false, named: FrozenVec::new() })
    }

    /// A cache of a stream; `None` is large kmalloc.
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
        // A name that only hidden events have may come without a size: the smallest there is.
        let name = info.name.replace(char::is_whitespace, "_");
        let cache = KmemCache::builder(name, info.size.max(8) as usize).build_in(&self.subsystem);
        let cache = cache.map_err(|error| MachineError::Cache(info.name.clone(), error))?;
        Ok(Some(self.named.push_get(Box::new(cache))))
    }
}
