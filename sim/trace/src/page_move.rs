//! What the kernel's page allocator tells of its own lists.

use super::event::Pfn;
use super::spool::{Record, Tag};

/// `2^order` pages that left a free list of the kernel's page allocator, or came back to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMove {
    /// The line it comes from, from 1.
    pub line: u64,
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// The CPU it happened on.
    pub cpu: u16,
    /// The first page.
    pub pfn: Pfn,
    /// The order.
    pub order: u8,
    /// 0 unmovable, 1 movable, 2 reclaimable; 0 for a [fallback](PageMoveKind::Fallback).
    pub migratetype: u8,
    /// What it was.
    pub kind: PageMoveKind,
}

/// What happened to the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageMoveKind {
    /// They left a free list (`mm_page_alloc_zone_locked`).
    Taken {
        /// Per-CPU lists hold blocks of this order and type.
        percpu_refill: bool,
    },
    /// They came back from a per-CPU list (`mm_page_pcpu_drain`).
    Drained,
    /// A block of another migrate type serves (`mm_page_alloc_extfrag`). Some kernels tell it before the pages are
    /// [taken](Self::Taken), others instead.
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
