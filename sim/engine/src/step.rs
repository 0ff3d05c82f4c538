//! What an operation did.

use serde::{Serialize, Serializer};
use uslab_magazine::Path;

/// What an operation did, in outline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// Allocated an object.
    Alloc,
    /// Freed one.
    Free {
        /// The CPU that allocated it.
        allocated_on: u32,
    },
    /// Allocated and freed one.
    Pass,
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

/// A part of an operation: most have one, a block that is freed in parts has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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
    #[serde(serialize_with = "name")]
    #[cfg_attr(test, ts(type = "Path | null"))]
    pub path: Option<Path>,
    /// All of it in words.
    pub sentence: String,
    /// What shipping code did for it, step by step: all of the shipping design, what pages took for a model.
    pub did: Vec<String>,
}

fn name<S: Serializer>(path: &Option<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    path.map(Path::name).serialize(serializer)
}
