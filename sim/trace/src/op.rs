//! The operations that a replayer runs: each has its cache, and irregularities of the trace are resolved.

use super::event::{Pfn, Ptr};

/// The number of a cache in a [`Resolver`](super::Resolver); numbers begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// How the events of a cache identify it: by size class, or by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// A size class of kmalloc (`kmalloc-64`, `kmalloc-cg-1k`, `msg_msg-512` ...).
    Kmalloc,
    /// A pseudo-cache for objects above 8192 bytes, whose pages come directly from the page allocator. All
    /// objects of kmalloc-large share one cache number.
    KmallocLarge,
    /// A cache whose name is known.
    Named,
    /// A cache without a known name; it is called `?function:size`.
    Placeholder,
}

/// A cache of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The cache's name in slabinfo, or a placeholder that starts with `?`.
    pub name: String,
    /// The cache's kind.
    pub kind: CacheKind,
    /// The number of bytes that an object occupies (`bytes_alloc`, or `objsize` in slabinfo); 0 if unknown.
    /// For [`CacheKind::KmallocLarge`], the size is stored in each operation instead.
    pub size: u32,
}

/// One operation of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The line of the operation's event, from 1. A hidden operation has the line of the event that revealed it.
    pub line: u64,
    /// The time in nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU on which the operation happens. A hidden free has the CPU of the event that revealed it.
    pub cpu: u16,
    /// The command that allocates, if the trace names commands. In an interrupt, the field contains the interrupted
    /// command.
    pub task: Option<TaskId>,
    /// The kind of the operation, together with its data.
    pub kind: OpKind,
}

/// The kind of an operation, together with the operation's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Allocates an object. If an object is live at this pointer, a [`HiddenFree`](OpKind::HiddenFree)
    /// precedes the allocation.
    Alloc {
        /// The object's cache.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The call site ([`Resolver::call_site`](super::Resolver::call_site)).
        site: SiteId,
        /// The requested bytes.
        bytes_req: u32,
        /// The number of bytes that the object occupies.
        bytes_alloc: u32,
        /// `true` if the allocation flags allow the caller to sleep.
        may_block: bool,
    },
    /// Frees an object. Unless the origin is [`FreeOrigin::Matched`], the trace has no live object at the
    /// pointer.
    Free {
        /// The object's cache; taken from the allocation if the trace contains it.
        cache: CacheId,
        /// The object's address in the trace.
        ptr: Ptr,
        /// The information in the trace about the allocation of the freed object.
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
        /// The event that revealed the free.
        sign: HiddenFreeEvidence,
    },
    /// Allocates `2^order` pages.
    PageAlloc {
        /// The block's first page in the trace.
        pfn: Pfn,
        /// The block's order.
        order: u8,
        /// The migrate type: 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// What the pages are used for.
        usage: PageUse,
    },
    /// Frees `2^order` pages.
    PageFree {
        /// The block's first page in the trace.
        pfn: Pfn,
        /// The order that the event of the free contains.
        order: u8,
        /// The information in the trace about the allocation of the freed pages.
        origin: PageFreeOrigin,
        /// What the pages were used for.
        usage: PageUse,
    },
    /// Marks the time at which user space wrote a text into the trace
    /// ([`Resolver::mark`](super::Resolver::mark)).
    Mark {
        /// The number of the mark's text.
        text: MarkId,
    },
}

/// The number of a command in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// The number of a call site in a [`Resolver`](super::Resolver); numbers begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// The number of a mark's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkId(pub(super) super::symbols::Symbol);

/// The information in the trace about the allocation of a freed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreeOrigin {
    /// The object's allocation is in the trace.
    Matched {
        /// The CPU that allocated the object.
        alloc_cpu: u16,
    },
    /// The object's allocation has no event, or has an event that comes after the free. The pointer had already been
    /// freed, or is on a page that was allocated during the trace.
    HiddenAlloc,
    /// The object was allocated before the trace began.
    PreTrace,
}

/// The kind of event that revealed an object's untraced free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenFreeEvidence {
    /// The pointer was allocated again, so its object must have been freed.
    Reused,
    /// The object's page was freed, so the object must have been freed.
    PageFreed,
}

/// What a block of pages is used for, as far as the trace reveals it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageUse {
    /// The trace does not reveal the use: the block is user memory, a page table, or page cache. With hashed
    /// pointers, the trace never reveals the use of pages.
    Other = 0,
    /// An object cache allocated the block as a slab.
    Slab = 1,
    /// The block holds a large kmalloc object: an [`OpKind::Alloc`] of [`CacheKind::KmallocLarge`] follows.
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

/// The information in the trace about the allocation of freed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFreeOrigin {
    /// The pages' allocation is in the trace.
    Matched {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
        /// The order of the allocation.
        order: u8,
    },
    /// The trace has no allocation of these pages: they were freed at boot, are part of a split block, or were
    /// allocated in bulk.
    Unseen,
    /// The free has no event: the trace allocates a block at `pfn` although a live block already begins there.
    Hidden {
        /// The CPU that allocated the pages.
        alloc_cpu: u16,
    },
}
