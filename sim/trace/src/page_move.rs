//! Events about the free lists of the kernel's page allocator.

use super::event::Pfn;
use super::spool::{Record, Tag};

/// A block of `2^order` pages that left a free list of the kernel's page allocator, or returned to a free list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMove {
    /// The line of the event, from 1.
    pub line: u64,
    /// The time in nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU of the event.
    pub cpu: u16,
    /// The block's first page.
    pub pfn: Pfn,
    /// The block's order.
    pub order: u8,
    /// The migrate type: 0 unmovable, 1 movable, 2 reclaimable; 0 for a [fallback](PageMoveKind::Fallback).
    pub migratetype: u8,
    /// The kernel event that moved the block.
    pub kind: PageMoveKind,
}

/// The kind of event about a free list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageMoveKind {
    /// The pages left a free list (`mm_page_alloc_zone_locked`).
    Taken {
        /// `true` if the pages moved to a per-CPU list, which therefore holds blocks of this order and type.
        percpu_refill: bool,
    },
    /// The pages returned from a per-CPU list (`mm_page_pcpu_drain`).
    Drained,
    /// A request is served from a block of another migrate type than the requested one (`mm_page_alloc_extfrag`). Some
    /// kernels report a fallback before the pages are [taken](Self::Taken); other kernels report only the fallback.
    Fallback,
}

impl PageMove {
    pub(super) fn of(record: &Record) -> Self {
        let &Record { at, time_ns, line, cpu, key, tag, order, migratetype, .. } = record;
        let kind = match tag {
            Tag::PageTaken => PageMoveKind::Taken { percpu_refill: key != 0 },
            Tag::PageDrained => PageMoveKind::Drained,
            _ => PageMoveKind::Fallback,
        };
        Self { line, time_ns, cpu, pfn: Pfn(at), order, migratetype, kind }
    }
}
