//! What an operation did.

use core::ptr::NonNull;
use serde::Serialize;

/// What an operation did, in outline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// Allocated an object.
    Alloc {
        /// Its address, a number only.
        #[serde(skip)]
        at: Address,
    },
    /// Freed one.
    Free {
        /// Its address, a number only.
        #[serde(skip)]
        at: Address,
        /// The CPU that allocated it.
        allocated_on: u32,
    },
    /// Allocated and freed one.
    Pass {
        /// Its address, a number only.
        #[serde(skip)]
        at: Address,
    },
    /// Allocated a block of pages.
    AllocPages {
        /// The first page.
        page: u32,
        /// The order.
        order: u8,
    },
    /// Freed one.
    FreePages {
        /// The first page.
        page: u32,
        /// The order.
        order: u8,
    },
    /// Made several blocks of one.
    SplitPages {
        /// The first page.
        page: u32,
        /// The order of the parts.
        order: u8,
    },
    /// Shrank all caches.
    Shrink {
        /// Objects that reaping gave back.
        objects: u64,
        /// Slabs that shrinking gave back.
        slabs: u64,
    },
    /// Was refused memory.
    Failed,
    /// Nothing that concerns the allocator.
    Nothing,
}

/// Where an object begins. A number: there is no memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(crate) NonNull<u8>);

impl From<NonNull<u8>> for Address {
    fn from(at: NonNull<u8>) -> Self {
        Self(at)
    }
}

/// The dearest thing that an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Stayed with what its CPU holds: no lock.
    Cpu,
    /// Visited a depot.
    Depot,
    /// Took from slabs or gave to them, under a node's lock.
    Slab,
    /// Went to the page allocator, or to its zones.
    Pages,
    /// Had memory committed or given back.
    Commit,
}

/// A part of an operation: most have one, a block that is freed in parts has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What it was.
    #[serde(flatten)]
    pub what: What,
    /// The CPU.
    pub cpu: u32,
    /// The cache's number in the stream.
    pub cache: Option<u32>,
    /// The slab's first page and the object in it.
    pub object: Option<(u32, u16)>,
    /// The dearest thing it did; `None` if it did nothing.
    pub path: Option<Path>,
    /// All of it in words.
    pub sentence: String,
}
