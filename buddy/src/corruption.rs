//! Corruption: an attempt to free memory that is not allocated. A free detects corruption from the frame's state,
//! reports it, and changes nothing.
//!
//! Each allocator has one handler of corruption, a plain function
//! ([`PageConfig::corruption`](crate::PageConfig::corruption)). The handler never runs under a lock. The default
//! handler, [`abort`], writes one line and aborts. If a handler returns, the free does nothing.

use crate::frame::Kind;
use crate::pfn::{Order, Pfn};

/// An invalid free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// The freed block was already free.
    DoubleFree {
        /// The page that was freed.
        pfn: Pfn,
        /// The block's actual state: on a free list, or among the per-CPU pages.
        found: Kind,
    },
    /// The freed block was allocated with another order.
    WrongOrder {
        /// The page that was freed.
        pfn: Pfn,
        /// The order passed to the free.
        freed: Order,
        /// The order with which the block was allocated.
        allocated: Order,
    },
    /// The freed page is inside a block, or was never allocated.
    NotABlock {
        /// The page that was freed.
        pfn: Pfn,
    },
    /// The allocator does not have the freed page.
    Foreign {
        /// The page that was freed.
        pfn: Pfn,
        /// Number of pages of the allocator.
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

/// Handler of detected corruption.
pub type Handler = fn(&Corruption);

/// Writes one line to standard error and aborts the process.
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
