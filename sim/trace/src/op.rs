//! What a replayer is told: events with their cache found and their irregularities named.

use super::event::{Pfn, Ptr};

/// The number of a cache in a [`Resolver`](super::Resolver), from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// What a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// A size class of kmalloc (`kmalloc-64`, `kmalloc-cg-1k`, `msg_msg-512` ...).
    Kmalloc,
    /// Not a cache: pages straight from the page allocator, for objects above 8192 bytes. All share one id.
    KmallocLarge,
    /// A cache of its own.
    Named,
    /// Its name could not be found; it is called `?function:size`.
    Placeholder,
}

/// A cache of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The name, as slabinfo has it, or a placeholder that starts with `?`.
    pub name: String,
    /// What it is.
    pub kind: CacheKind,
    /// Bytes an object takes (`bytes_alloc`, slabinfo's `objsize`); 0 if no event and no table tells it.
    /// For [`CacheKind::KmallocLarge`] only each operation knows.
    pub size: u32,
}

/// One operation, in the trace's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The line it comes from, from 1. Hidden operations have the line that gave them away.
    pub line: u64,
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU it happens on. A hidden free happens where the event that gave it away was.
    pub cpu: u16,
    /// The command that an allocation is by, if the trace names it. In an interrupt it is the command that was interrupted.
    pub task: Option<TaskId>,
    /// What to do.
    pub kind: OpKind,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocate an object. Its pointer is not live: a [`HiddenFree`](OpKind::HiddenFree) comes first if it was.
    Alloc {
        /// From where.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// Who asks ([`Resolver::call_site`](super::Resolver::call_site)).
        site: SiteId,
        /// Bytes asked for.
        bytes_req: u32,
        /// Bytes it takes.
        bytes_alloc: u32,
        /// The flags allow the caller to sleep.
        may_block: bool,
    },
    /// Free an object. Unless it is [`FreeOrigin::Matched`], nothing is live at the pointer.
    Free {
        /// To where. It is the cache of the allocation where that was seen.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// Where it came from.
        origin: FreeOrigin,
    },
    /// A free that the kernel did not trace. The object is live.
    HiddenFree {
        /// To where.
        cache: CacheId,
        /// Its address in the trace.
        ptr: Ptr,
        /// The CPU that allocated it.
        alloc_cpu: u16,
        /// How it is known.
        sign: HiddenFreeSign,
    },
    /// Allocate `2^order` pages.
    PageAlloc {
        /// The first page in the trace.
        pfn: Pfn,
        /// The order.
        order: u8,
        /// 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// What they became.
        usage: PageUse,
    },
    /// Free `2^order` pages.
    PageFree {
        /// The first page in the trace.
        pfn: Pfn,
        /// The order of the free.
        order: u8,
        /// Where they came from.
        origin: PageFreeOrigin,
        /// What they were.
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

/// Where a freed object came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreeOrigin {
    /// Its allocation was seen.
    Matched {
        /// The CPU that allocated it.
        alloc_cpu: u16,
    },
    /// Its allocation had no event, or comes later in the text: the pointer is already free, or lies on a page that was
    /// handed out in the trace.
    HiddenAlloc,
    /// It was allocated before the trace began.
    PreTrace,
}

/// How a free without an event is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenFreeSign {
    /// The pointer is handed out again.
    Reused,
    /// The page below it is given back.
    PageFreed,
}

/// What a block of pages is used for, as far as the trace tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageUse {
    /// Nothing that the trace knows: user memory, page tables, page cache. With hashed pointers: any use.
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

/// Where freed pages came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFreeOrigin {
    /// Their allocation was seen.
    Matched {
        /// The CPU that allocated them.
        alloc_cpu: u16,
        /// The order of the allocation.
        order: u8,
    },
    /// Their allocation was not seen: memory handed over at boot, a part of a split block, a bulk allocation.
    Unseen,
    /// No event: the same block is handed out again. `pfn` is live.
    Hidden {
        /// The CPU that allocated them.
        alloc_cpu: u16,
    },
}
