//! A traced event with its fields as numbers, independent of the text format.
//!
//! Event names, call sites, cache names and allocation flags are interned; an [`Event`] contains their [`Symbol`]s.

use super::symbols::Symbol;

/// The largest CPU number that a kernel can print (`NR_CPUS` of x86-64 is at most 8192).
pub const MAX_CPU_NUMBER: u16 = 8191;

/// An object's address as the trace prints it. An address is real or hashed; hashed addresses can only be compared for
/// equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ptr(pub u64);

impl Ptr {
    /// Returns `true` if the value has at most 32 bits, as hashed pointers do.
    #[must_use]
    pub fn is_hashed(self) -> bool {
        self.0 < 1 << 48
    }
}

/// A page frame number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pfn(pub u64);

/// The kernel function that wrote an object event; it determines how the parser finds the object's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// `kmalloc` or `kfree`.
    Kmalloc,
    /// `kmem_cache_alloc` or `kmem_cache_free`.
    Cache,
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The event's name, without the group that perf prints before it.
    pub name: Symbol,
    /// The CPU on which the event happened.
    pub cpu: u16,
    /// The context flag, which is the third character in ftrace's column of flags. The context flag is `.`
    /// for a task, `s` for a softirq, `h` for a hardirq, `H` for a hardirq inside a softirq. `None` if the
    /// format of the trace has no column of flags.
    pub context: Option<u8>,
    /// The time in nanoseconds on the trace's clock. The time can decrease from one event to the next, so do not sort
    /// events by time.
    pub time_ns: u64,
    /// `true` if the kernel no longer knew the name of the command (`<...>`).
    pub comm_unknown: bool,
    /// The command of the allocating task; for an allocation in an interrupt, the command of the interrupted task.
    pub task: Option<Symbol>,
    /// The kind of the event, together with its fields.
    pub kind: EventKind,
}

/// The kind of an event, together with the event's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An object was allocated.
    Alloc {
        /// The object's address; 0 if the allocation failed.
        ptr: Ptr,
        /// The call site: `function+0x1b/0x40`.
        site: Symbol,
        /// The requested bytes.
        bytes_req: u32,
        /// The number of bytes that the object occupies.
        bytes_alloc: u32,
        /// The allocation flags.
        gfp: Symbol,
        /// The cache, if the event names a cache (since 6.18).
        cache: Option<Symbol>,
        /// The allocating function.
        via: EventSource,
    },
    /// An object was freed.
    Free {
        /// The object's address, never 0.
        ptr: Ptr,
        /// The call site of the free.
        site: Symbol,
        /// The cache, if the event names a cache.
        cache: Option<Symbol>,
        /// The freeing function.
        via: EventSource,
    },
    /// A call `kfree(NULL)`, which does nothing.
    FreeNull,
    /// An object event with the placeholder `(____ptrval____)` instead of a pointer, because the kernel had no hash key
    /// yet.
    Placeholder,
    /// The allocation or free of an object that is larger than kmalloc's limit.
    TooLarge {
        /// `true` for an allocation.
        alloc: bool,
    },
    /// A block of `2^order` pages was allocated.
    PageAlloc {
        /// The first page of the allocated block.
        pfn: Pfn,
        /// The order of the block, at most the largest order with [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// The migrate type of the block: 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// The allocation flags.
        gfp: Symbol,
    },
    /// A page allocation that failed.
    PageAllocFailed,
    /// A block of `2^order` pages was freed.
    PageFree {
        /// The first page of the freed block.
        pfn: Pfn,
        /// The order of the block, at most the largest order with [64 KiB pages](super::PageSize::max_order).
        order: u8,
    },
    /// A block of `2^order` pages left the free lists of the buddy allocator.
    ZoneLocked {
        /// The block's first page.
        pfn: Pfn,
        /// The order of the block, at most the largest order with [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// The migrate type of the request: 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// `true` if the pages moved to a per-CPU list; `false` if they moved to a caller.
        percpu_refill: bool,
    },
    /// A block of `2^order` pages was returned from a per-CPU list to the buddy allocator.
    PcpuDrain {
        /// The block's first page.
        pfn: Pfn,
        /// The order of the block, at most the largest order with [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// The migrate type of the free list that receives the pages: 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
    },
    /// A request for `2^order` pages is served from a block of another migrate type.
    ExtFrag {
        /// The first page of the block or of the request, depending on the kernel version.
        pfn: Pfn,
        /// The requested order, at most the largest order with [64 KiB pages](super::PageSize::max_order).
        order: u8,
    },
    /// A text that user space wrote into the trace.
    Mark(Symbol),
    /// An event of another kind, which the parser only counts.
    Other,
}

/// The names of the events whose fields the parser reads. The symbol of an event with a known name is the name's index
/// in the list `KNOWN_EVENTS`.
pub(super) const KNOWN_EVENTS: [&[u8]; 14] = [
    b"kmalloc",
    b"kmalloc_node",
    b"kmem_cache_alloc",
    b"kmem_cache_alloc_node",
    b"kfree",
    b"kmem_cache_free",
    b"mm_page_alloc",
    b"mm_page_free",
    b"mm_page_alloc_zone_locked",
    b"mm_page_pcpu_drain",
    b"mm_page_alloc_extfrag",
    b"tracing_mark_write",
    b"print",
    b"bputs",
];

/// The number of events in the group kmem, which come first in `KNOWN_EVENTS`; the events for marks follow.
pub(super) const KMEM_EVENT_COUNT: usize = 11;

/// Returns `true` if the name is a C identifier, as all event names are.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// Returns `true` if the parser reads the fields of the named event and the event is not a mark.
pub(super) fn is_kmem_event(name: &[u8]) -> bool {
    KNOWN_EVENTS[..KMEM_EVENT_COUNT].contains(&name)
}

/// Returns `true` if a line contains the name of a kmem event, in any form that a known tool prints. The known forms
/// are `kmalloc:`, `kmem:kmalloc:` and `kmem:kmalloc(`.
pub(super) fn has_kmem_event_name(line: &[u8]) -> bool {
    line.split(|b| matches!(b, b' ' | b'\t' | b'(')).any(|word| {
        let word = word.strip_suffix(b":").unwrap_or(word);
        is_kmem_event(word.strip_prefix(b"kmem:").unwrap_or(word))
    })
}
