//! The operations for a replayer: each event has its cache, and irregularities of the trace are resolved.

use super::event::{Pfn, Ptr};

/// The number of a cache in a [`Resolver`](super::Resolver), from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// The kind of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// A size class of kmalloc (`kmalloc-64`, `kmalloc-cg-1k`, `msg_msg-512` ...).
    Kmalloc,
    /// A pseudo-cache for objects above 8192 bytes, whose pages come directly from the page allocator. All large
    /// objects have one common id.
    KmallocLarge,
    /// A cache whose name is known.
    Named,
    /// A cache whose name could not be found; it is called `?function:size`.
    Placeholder,
}

/// A cache of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The cache's name in slabinfo, or a placeholder that starts with `?`.
    pub name: String,
    /// The cache's kind.
    pub kind: CacheKind,
    /// The number of bytes that an object takes (`bytes_alloc`, or `objsize` in slabinfo); 0 if no event and no table
    /// shows the number. For [`CacheKind::KmallocLarge`], the size differs between operations.
    pub size: u32,
}

/// One operation; operations are in the order of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The line of the operation's event, from 1. A hidden operation has the line of the event that revealed it.
    pub line: u64,
    /// The time in nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU on which the operation happens. A hidden free has the CPU of the event that revealed it.
    pub cpu: u16,
    /// The command that allocates, if the trace names commands. In an interrupt, the command is the interrupted
    /// command.
    pub task: Option<TaskId>,
    /// The kind of operation, with its data.
    pub kind: OpKind,
}

/// The kind of operation, with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocates an object. No object is live at the pointer; if one was live, a [`HiddenFree`](OpKind::HiddenFree)
    /// comes before.
    Alloc {
        /// The object's cache.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The caller ([`Resolver::call_site`](super::Resolver::call_site)).
        site: SiteId,
        /// The requested bytes.
        bytes_req: u32,
        /// The number of bytes that the object takes.
        bytes_alloc: u32,
        /// `true` if the allocation flags allow the caller to sleep.
        may_block: bool,
    },
    /// Frees an object. Unless the origin is [`FreeOrigin::Matched`], the trace shows no live object at the pointer.
    Free {
        /// The object's cache, taken from the object's allocation if the trace contains the allocation.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The object's origin.
        origin: FreeOrigin,
    },
    /// Frees a live object whose free the kernel did not trace.
    HiddenFree {
        /// The object's cache.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The CPU that allocated the object.
        alloc_cpu: u16,
        /// The evidence that the object was freed.
        sign: HiddenFreeSign,
    },
    /// Allocates `2^order` pages.
    PageAlloc {
        /// The block's first page in the trace.
        pfn: Pfn,
        /// The block's order.
        order: u8,
        /// The migrate type: 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// The pages' use.
        usage: PageUse,
    },
    /// Frees `2^order` pages.
    PageFree {
        /// The block's first page in the trace.
        pfn: Pfn,
        /// The order that the free names.
        order: u8,
        /// The pages' origin.
        origin: PageFreeOrigin,
        /// The pages' use.
        usage: PageUse,
    },
    /// Marks the time of a text that user space wrote into the trace ([`Resolver::mark`](super::Resolver::mark)).
    Mark {
        /// The number of the text.
        text: MarkId,
    },
}

/// The number of a command that the trace names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// The number of a call site in a [`Resolver`](super::Resolver), from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// The number of a mark's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkId(pub(super) super::symbols::Symbol);

/// Where a freed object was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreeOrigin {
    /// The object's allocation is in the trace.
    Matched {
        /// The CPU that allocated the object.
        alloc_cpu: u16,
    },
    /// The object's allocation has no event, or comes after the free in the text. The pointer was already free, or is
    /// on a page that was allocated in the trace.
    HiddenAlloc,
    /// The object was allocated before the trace began.
    PreTrace,
}

/// The evidence that a free without an event happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenFreeSign {
    /// The pointer was allocated again.
    Reused,
    /// The object's page was freed.
    PageFreed,
}

/// What a block of pages is used for, as far as the trace shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageUse {
    /// The trace shows no use of the block: user memory, page tables, page cache. With hashed pointers, the trace never
    /// shows a use.
    Other = 0,
    /// An object cache allocated the block as a slab.
    Slab = 1,
    /// The block is a large kmalloc: an [`OpKind::Alloc`] of [`CacheKind::KmallocLarge`] follows.
    KmallocLarge = 2,
}

impl PageUse {
    pub(super) fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Slab,
            2 => Self::KmallocLarge,
            _ => Self::Other,
        }
    }
}

/// Where freed pages were allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFreeOrigin {
    /// The pages' allocation is in the trace.
    Matched {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
        /// The order of the allocation.
        order: u8,
    },
    /// The pages' allocation is not in the trace: the memory was freed at boot, is a part of a split block, or was
    /// allocated in bulk.
    Unseen,
    /// The free has no event: the block is allocated again although no free was traced. A block that begins at `pfn` is
    /// live.
    Hidden {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
    },
}
