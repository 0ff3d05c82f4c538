//! The operations for a replayer: events with their cache, with irregularities resolved.

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
    /// Pages directly from the page allocator, for objects above 8192 bytes: a pseudo-cache. All large objects share
    /// one id.
    KmallocLarge,
    /// A cache whose name is known.
    Named,
    /// A cache whose name could not be found, called `?function:size`.
    Placeholder,
}

/// A cache of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The cache's name in slabinfo, or a placeholder that starts with `?`.
    pub name: String,
    /// The cache's kind.
    pub kind: CacheKind,
    /// The bytes that an object takes (`bytes_alloc`, slabinfo's `objsize`); 0 if no event and no table shows it. The
    /// size of [`CacheKind::KmallocLarge`] differs for each operation.
    pub size: u32,
}

/// One operation, in the trace's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The line of the operation's event, from 1. A hidden operation has the line that revealed it.
    pub line: u64,
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU on which the operation happens. A hidden free happens on the CPU of the event that revealed it.
    pub cpu: u16,
    /// The allocating command, if the trace names it. In an interrupt, the task is the interrupted command.
    pub task: Option<TaskId>,
    /// The kind of operation, with its data.
    pub kind: OpKind,
}

/// The kind of operation, with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocates an object. The pointer is not live: if it was, a [`HiddenFree`](OpKind::HiddenFree) precedes.
    Alloc {
        /// The object's cache.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The caller ([`Resolver::call_site`](super::Resolver::call_site)).
        site: SiteId,
        /// The requested bytes.
        bytes_req: u32,
        /// The bytes that the object takes.
        bytes_alloc: u32,
        /// `true` if the flags allow the caller to sleep.
        may_block: bool,
    },
    /// Frees an object. Unless the origin is [`FreeOrigin::Matched`], no object is live at the pointer.
    Free {
        /// The object's cache: the allocation's, if the trace has it.
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
        /// The evidence for the free.
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
        /// The order of the free.
        order: u8,
        /// The pages' origin.
        origin: PageFreeOrigin,
        /// The pages' use.
        usage: PageUse,
    },
    /// Marks a text that user space wrote into the trace ([`Resolver::mark`](super::Resolver::mark)).
    Mark {
        /// The number of the text.
        text: MarkId,
    },
}

/// The number of a command, as the trace names tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// The number of a call site in a [`Resolver`](super::Resolver), from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// The number of a mark's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkId(pub(super) super::symbols::Symbol);

/// The origin of a freed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreeOrigin {
    /// The object's allocation is in the trace.
    Matched {
        /// The CPU that allocated the object.
        alloc_cpu: u16,
    },
    /// The object's allocation had no event, or comes later in the text. The pointer is already free, or is on a page
    /// that was allocated in the trace.
    HiddenAlloc,
    /// The object was allocated before the trace began.
    PreTrace,
}

/// The evidence for a free without an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenFreeSign {
    /// The pointer was allocated again.
    Reused,
    /// The object's page was freed.
    PageFreed,
}

/// The use of a block of pages, as far as the trace shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageUse {
    /// The trace shows no use: user memory, page tables, page cache. With hashed pointers, the use is always unknown.
    Other = 0,
    /// The object caches allocate the block as a slab.
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

/// The origin of freed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFreeOrigin {
    /// The pages' allocation is in the trace.
    Matched {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
        /// The order of the allocation.
        order: u8,
    },
    /// The pages' allocation is not in the trace: memory freed at boot, a part of a split block, a bulk allocation.
    Unseen,
    /// The free has no event: the block is allocated again without a free. The block at `pfn` is live.
    Hidden {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
    },
}
