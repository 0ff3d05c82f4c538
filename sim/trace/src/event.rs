//! One traced event, in numbers: what a line of text says, and nothing of how it says it.
//!
//! Event names, call sites, cache names and allocation flags are interned; an [`Event`] holds their [`Symbol`]s.

use super::symbols::Symbol;

/// The largest CPU number a kernel can print (`NR_CPUS` of x86-64 is at most 8192).
pub const MAX_CPU: u16 = 8191;

/// An object's address as the trace prints it: real, or hashed (then only equality means anything).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ptr(pub u64);

impl Ptr {
    /// Hashed pointers are 32-bit values.
    #[must_use]
    pub fn is_hashed(self) -> bool {
        self.0 < 1 << 48
    }
}

/// A page frame number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pfn(pub u64);

/// Which function made an object event: it tells how the cache is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// `kmalloc` or `kfree`.
    Kmalloc,
    /// `kmem_cache_alloc` or `kmem_cache_free`.
    Cache,
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The event's name, without the group that perf puts before it.
    pub name: Symbol,
    /// The CPU it happened on.
    pub cpu: u16,
    /// The third flag of ftrace's flag column: `.` task, `s` softirq, `h` hardirq, `H` hardirq inside softirq;
    /// `None` where the format has no such column.
    pub context: Option<u8>,
    /// Nanoseconds on the trace's own clock. Not monotonic: never sort by it.
    pub time_ns: u64,
    /// The command's name was no longer known (`<...>`).
    pub comm_unknown: bool,
    /// The command of an allocation's task; in an interrupt it is the one that was interrupted.
    pub task: Option<Symbol>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An object was handed out.
    Alloc {
        /// Its address; 0 if the allocation failed.
        ptr: Ptr,
        /// Who asked: `function+0x1b/0x40`.
        site: Symbol,
        /// Bytes asked for.
        bytes_req: u32,
        /// Bytes the object takes.
        bytes_alloc: u32,
        /// The allocation flags.
        gfp: Symbol,
        /// The cache, where the event names it (since 6.18).
        cache: Option<Symbol>,
        /// By which function.
        via: Via,
    },
    /// An object was given back.
    Free {
        /// Its address, never 0.
        ptr: Ptr,
        /// Who gave it back.
        site: Symbol,
        /// The cache, where the event names it.
        cache: Option<Symbol>,
        /// By which function.
        via: Via,
    },
    /// `kfree(NULL)`: nothing happened.
    FreeNull,
    /// An object event whose pointer is the placeholder `(____ptrval____)`: the kernel had no key to hash with yet.
    Placeholder,
    /// An allocation that no kmalloc can serve, or the free of one.
    TooLarge {
        /// An allocation.
        alloc: bool,
    },
    /// `2^order` pages were handed out.
    PageAlloc {
        /// The first of them.
        pfn: Pfn,
        /// The order, at most that of [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// 0 unmovable, 1 movable, 2 reclaimable.
        migratetype: u8,
        /// The allocation flags.
        gfp: Symbol,
    },
    /// A page allocation that failed.
    PageAllocFailed,
    /// `2^order` pages were given back.
    PageFree {
        /// The first of them.
        pfn: Pfn,
        /// The order, at most that of [64 KiB pages](super::PageSize::max_order).
        order: u8,
    },
    /// `2^order` pages left the buddy allocator's lists.
    ZoneLocked {
        /// The first of them.
        pfn: Pfn,
        /// The order, at most that of [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// 0 unmovable, 1 movable, 2 reclaimable: what was asked for.
        migratetype: u8,
        /// For a per-CPU list, not for a caller.
        percpu_refill: bool,
    },
    /// `2^order` pages went back from a per-CPU list to the buddy allocator.
    PcpuDrain {
        /// The first of them.
        pfn: Pfn,
        /// The order, at most that of [64 KiB pages](super::PageSize::max_order).
        order: u8,
        /// 0 unmovable, 1 movable, 2 reclaimable: the list they go to.
        migratetype: u8,
    },
    /// `2^order` pages were asked for, and a block of another migrate type serves.
    ExtFrag {
        /// The block's first page, or the first of the pages themselves: kernels differ.
        pfn: Pfn,
        /// The order that was asked for, at most that of [64 KiB pages](super::PageSize::max_order).
        order: u8,
    },
    /// Text that user space wrote into the trace.
    Mark(Symbol),
    /// Another event: only counted.
    Other,
}

/// Events whose fields are read. Their symbols are their places in this list.
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

/// How many of these are of the group kmem; marks are behind them.
pub(super) const KMEM_EVENTS: usize = 11;

/// An event's name is an identifier of C.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// The name of an event whose fields are read, and which is no mark.
pub(super) fn is_kmem(name: &[u8]) -> bool {
    KNOWN_EVENTS[..KMEM_EVENTS].contains(&name)
}

/// True if a line has the name of such an event, in the form of any tool: `kmalloc:`, `kmem:kmalloc:`, `kmem:kmalloc(`.
pub(super) fn has_kmem(line: &[u8]) -> bool {
    line.split(|b| matches!(b, b' ' | b'\t' | b'(')).any(|word| {
        let word = word.strip_suffix(b":").unwrap_or(word);
        is_kmem(word.strip_prefix(b"kmem:").unwrap_or(word))
    })
}
