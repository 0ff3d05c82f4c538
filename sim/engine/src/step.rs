//! The steps of an operation.

use serde::{Serialize, Serializer};
use uslab_magazine::Path;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// Allocated an object.
    Alloc,
    /// Freed an object.
    Free {
        /// The CPU that allocated it.
        allocated_on: u32,
    },
    /// Allocated and freed an object.
    Pass,
    /// Allocated a block of pages.
    AllocPages {
        /// The first page.
        page: u32,
        /// The order.
        order: u8,
    },
    /// Freed a block.
    FreePages {
        /// The first page.
        page: u32,
        /// The order.
        order: u8,
    },
    /// Split a block into several.
    SplitPages {
        /// The first page.
        page: u32,
        /// The order of the parts.
        order: u8,
    },
    /// Shrank all caches.
    Shrink {
        /// Objects that were flushed from CPU layers.
        objects: u64,
        /// Slabs that were freed.
        slabs: u64,
    },
    /// Was refused memory.
    Failed,
    /// Does not concern the allocator.
    Nothing,
}

/// A part of an operation: most operations have one, a block that is freed in parts has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Step {
    /// The kind.
    #[serde(flatten)]
    pub what: What,
    /// The CPU.
    pub cpu: u32,
    /// The cache's number in the stream.
    pub cache: Option<u32>,
    /// The first page of the object's slab, and the object's index in it.
    pub object: Option<(u32, u16)>,
    /// The level at which it was served; `None` if it did nothing.
    #[serde(serialize_with = "name")]
    #[cfg_attr(test, ts(type = "Path | null"))]
    pub path: Option<Path>,
    /// A description.
    pub sentence: String,
    /// The steps that shipping code reported: everything for the shipping design, only pages for a model.
    pub did: Vec<String>,
}

fn name<S: Serializer>(path: &Option<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    path.map(Path::name).serialize(serializer)
}
