//! Why there is no object, and why there is no cache.

use crate::geometry::GeometryError;
use core::fmt;

/// Why an allocation failed: which limit was reached. The caller may free something and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// The cache has as many slabs as it may, and no object of them is free anywhere.
    CacheLimit {
        /// The limit, in slabs.
        slabs: u32,
    },
    /// The page allocator has no block for another slab.
    Memory(uslab_buddy::AllocError),
    /// No memory for the bitmap of another slab.
    SideTable,
    /// The size, or a count times a size, is larger than what can be had at all.
    TooLarge,
    /// The system maps no more memory.
    Refused {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// The cache was destroyed.
    Destroyed,
    /// The cache has no magazine left, or none at all, so there is no private one.
    NoMagazines,
    /// It was refused on purpose: see [`faults`](crate::faults).
    Injected,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheLimit { slabs } => write!(f, "the cache is at its limit of {slabs} slabs"),
            Self::Memory(error) => write!(f, "no pages for another slab: {error}"),
            Self::SideTable => f.write_str("no memory for the bitmap of another slab"),
            Self::TooLarge => f.write_str("larger than what can be had"),
            Self::Refused { bytes } => write!(f, "the system maps no {bytes} bytes more"),
            Self::Destroyed => f.write_str("the cache was destroyed"),
            Self::NoMagazines => f.write_str("the cache has no magazine to spare"),
            Self::Injected => f.write_str("refused by fault injection"),
        }
    }
}
impl std::error::Error for AllocError {}

impl From<uslab_buddy::AllocError> for AllocError {
    fn from(error: uslab_buddy::AllocError) -> Self {
        Self::Memory(error)
    }
}

/// Why a cache could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheError {
    /// No slab can hold such objects.
    Geometry(GeometryError),
    /// The name is empty or has blanks, which readers of slabinfo take for the end of it.
    Name,
    /// No memory for the cache's magazines.
    Memory,
    /// A type-stable cache in the process-wide malloc's subsystem: its slabs are released by a collector that allocates.
    TypeStable,
    /// The global subsystem could not be started.
    Start(crate::StartError),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::Name => f.write_str("a cache name must not be empty or have blanks"),
            Self::Memory => f.write_str("no memory for the cache's magazines"),
            Self::TypeStable => f.write_str("a type-stable cache cannot stand under the malloc"),
            Self::Start(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for CacheError {}

impl From<GeometryError> for CacheError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}
impl From<crate::StartError> for CacheError {
    fn from(error: crate::StartError) -> Self {
        Self::Start(error)
    }
}

/// A cache cannot be destroyed: objects of it are in callers' hands. It goes on as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Objects in use; at least 1, unless others share the cache.
    pub live: u64,
    /// Others that share the cache: see [`KmemCacheBuilder::merge`](crate::KmemCacheBuilder::merge).
    pub aliases: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects are in use", self.live)?;
        if self.aliases > 0 {
            write!(f, ", and {} others share the cache", self.aliases)?;
        }
        Ok(())
    }
}
impl std::error::Error for Busy {}
