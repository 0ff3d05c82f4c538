//! The steps of an operation, for display.

use serde::{Serialize, Serializer};
use uslab_magazine::Path;

/// The kind of a step of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// The operation allocated an object.
    Alloc,
    /// The operation freed an object.
    Free {
        /// The CPU on which the object was allocated.
        allocated_on: u32,
    },
    /// The operation allocated an object and freed it again.
    Pass,
    /// The operation allocated a block of pages.
    AllocPages {
        /// The block's first page.
        page: u32,
        /// The block's order.
        order: u8,
    },
    /// The operation freed a block of pages.
    FreePages {
        /// The block's first page.
        page: u32,
        /// The block's order.
        order: u8,
    },
    /// The operation split a block into several smaller blocks.
    SplitPages {
        /// The block's first page.
        page: u32,
        /// The order of the resulting blocks.
        order: u8,
    },
    /// The operation shrank all caches.
    Shrink {
        /// The number of objects flushed from CPU layers.
        objects: u64,
        /// The number of freed slabs.
        slabs: u64,
    },
    /// The operation failed for lack of memory.
    Failed,
    /// The operation does not concern the allocator.
    Nothing,
}

/// A step: an operation, or a part of an operation. Most operations have one step; a free of a block in several pieces
/// has several steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Step {
    /// The kind of the step.
    #[serde(flatten)]
    pub what: What,
    /// The CPU that ran the step.
    pub cpu: u32,
    /// The cache's number in the stream.
    pub cache: Option<u32>,
    /// The location of the object: the first page of its slab, and its index in the slab.
    pub object: Option<(u32, u16)>,
    /// The level that served the step. The level is `None` if the step had no effect.
    #[serde(serialize_with = "name")]
    #[cfg_attr(test, ts(type = "Path | null"))]
    pub path: Option<Path>,
    /// A sentence that describes the step.
    pub sentence: String,
    /// The events that the shipping code reported. For the shipping design, the list has all events; for a model, only
    /// the events of its page allocator.
    pub did: Vec<String>,
}

fn name<S: Serializer>(path: &Option<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    path.map(Path::name).serialize(serializer)
}
