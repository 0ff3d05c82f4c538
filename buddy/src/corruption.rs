//! Corruption: an attempt to free a page at which no allocated block starts, or to free a block with a wrong order. A
//! free detects corruption from the state in the page's frame. An invalid free is reported and changes nothing.
//!
//! Each allocator calls one function, its corruption handler, for every invalid free
//! ([`PageConfig::corruption`](crate::PageConfig::corruption)). The corruption handler never runs under a lock. The
//! default handler, [`abort`], writes one line to standard error and aborts the process. If the handler returns, the
//! invalid free has no effect.

use crate::frame::Kind;
use crate::pfn::{Order, Pfn};

/// An invalid free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// The freed block was already free.
    DoubleFree {
        /// The page number that was passed to the free.
        pfn: Pfn,
        /// Where the free block already is: on a free list, or among the per-CPU pages.
        found: Kind,
    },
    /// The block was freed with a different order than it was allocated with.
    WrongOrder {
        /// The page number that was passed to the free.
        pfn: Pfn,
        /// The order passed to the free.
        freed: Order,
        /// The order with which the block was allocated.
        allocated: Order,
    },
    /// The freed page is not the first page of an allocated block.
    NotABlock {
        /// The page number that was passed to the free.
        pfn: Pfn,
    },
    /// The freed page number is outside the allocator's range.
    Foreign {
        /// The page number that was passed to the free.
        pfn: Pfn,
        /// Number of pages in the allocator's range.
        pages: u32,
    },
}

impl core::fmt::Display for Corruption {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::DoubleFree { pfn, found: Kind::PerCpu } => {
                write!(f, "double free of page {pfn}: it is already a free page of a CPU")
            }
            Self::DoubleFree { pfn, .. } => write!(f, "double free of page {pfn}: it is on a free list"),
            Self::WrongOrder { pfn, freed, allocated } => {
                write!(f, "free of page {pfn} with order {freed}: it was allocated with order {allocated}")
            }
            Self::NotABlock { pfn } => write!(f, "free of page {pfn}: no allocated block starts there"),
            Self::Foreign { pfn, pages } => {
                write!(f, "free of page {pfn}: the allocator has {pages} pages")
            }
        }
    }
}

/// The type of a function that is called for each invalid free.
pub type Handler = fn(&Corruption);

/// Writes a description of the corruption to standard error, in one line, and aborts the process.
pub fn abort(corruption: &Corruption) {
    use std::io::Write;
    // A plain `write` is used, because `eprintln!` would panic when standard error is closed. One write of a stack
    // buffer allocates nothing.
    let mut line = [0_u8; 160];
    let mut rest = &mut line[..];
    let room = rest.len();
    let _ = writeln!(rest, "uslab-buddy: corruption: {corruption}");
    let used = room - rest.len();
    let _ = std::io::stderr().write_all(&line[..used]);
    std::process::abort();
}
