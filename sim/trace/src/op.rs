//! The operations for a replayer: events with their cache, and with irregularities resolved.

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
    /// Not a cache: pages straight from the page allocator, for objects above 8192 bytes. All share one id.
    KmallocLarge,
    /// Any other cache.
    Named,
    /// Its name could not be found; it is called `?function:size`.
    Placeholder,
}

/// A cache of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The name, as slabinfo has it, or a placeholder that starts with `?`.
    pub name: String,
    /// The kind.
    pub kind: CacheKind,
    /// Bytes that an object takes (`bytes_alloc`, slabinfo's `objsize`); 0 if no event and no table shows it. For
    /// [`CacheKind::KmallocLarge`] it differs for each operation.
    pub size: u32,
}

/// One operation, in the trace's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The line that it comes from, from 1. A hidden operation has the line that revealed it.
    pub line: u64,
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU on which it happens. A hidden free happens where the event that revealed it was.
    pub cpu: u16,
    /// The command that allocates, if the trace names it. In an interrupt it is the interrupted command.
    pub task: Option<TaskId>,
    /// The kind of operation, with its data.
    pub kind: OpKind,
}

/// The kind of operation, with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocates an object. Its pointer is not live: if it was, a [`HiddenFree`](OpKind::HiddenFree) comes first.
    Alloc {
        /// The cache.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// The caller ([`Resolver::call_site`](super::Resolver::call_site)).
        site: SiteId,
        /// The requested bytes.
        bytes_req: u32,
        /// Bytes that it takes.
        bytes_alloc: u32,
        /// `true` if the flags allow the caller to sleep.
        may_block: bool,
    },
    /// Frees an object. Unless it is [`FreeOrigin::Matched`], nothing is live at the pointer.
    Free {
        /// The cache: the one of the allocation, if that was seen.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// The object's origin.
        origin: FreeOrigin,
    },
    /// A free that the kernel did not trace. The object is live.
    HiddenFree {
        /// The cache.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// The CPU that allocated it.
        alloc_cpu: u16,
        /// The evidence.
        sign: HiddenFreeSign,
    },
    /// Allocates `2^order` pages.
    PageAlloc {
        /// The first page in the trace.
        pfn: Pfn,
        /// The order.
        order: u8,
        /// 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// Their use.
        usage: PageUse,
    },
    /// Frees `2^order` pages.
    PageFree {
        /// The first page in the trace.
        pfn: Pfn,
        /// The order of the free.
        order: u8,
        /// The pages' origin.
        origin: PageFreeOrigin,
        /// Their use.
        usage: PageUse,
    },
    /// User space wrote this text ([`Resolver::mark`](super::Resolver::mark)) into the trace.
    Mark {
        /// The number of the text.
        text: MarkId,
    },
}

/// A command, as the trace names tasks.
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
    /// Its allocation was seen.
    Matched {
        /// The CPU that allocated it.
        alloc_cpu: u16,
    },
    /// Its allocation had no event, or comes later in the text: the pointer is free already, or is on a page that was allocated
    /// in the trace.
    HiddenAlloc,
    /// It was allocated before the trace began.
    PreTrace,
}

/// The evidence for a free without an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenFreeSign {
    /// The pointer was allocated again.
    Reused,
    /// The page with the object was freed.
    PageFreed,
}

/// The use of a block of pages, as far as the trace shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageUse {
    /// No use that the trace shows: user memory, page tables, page cache. With hashed pointers: any use.
    Other = 0,
    /// A slab: the object caches allocate it themselves.
    Slab = 1,
    /// A large kmalloc: an [`OpKind::Alloc`] of [`CacheKind::KmallocLarge`] follows.
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
    /// Their allocation was seen.
    Matched {
        /// The CPU that allocated them.
        alloc_cpu: u16,
        /// The order of the allocation.
        order: u8,
    },
    /// Their allocation was not seen: memory that was freed at boot, a part of a split block, a bulk allocation.
    Unseen,
    /// There is no event: the same block is allocated again. `pfn` is live.
    Hidden {
        /// The CPU that allocated them.
        alloc_cpu: u16,
    },
}
