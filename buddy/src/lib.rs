//! A buddy page allocator in userspace. The allocator divides one reserved address range into nodes and
//! zones. The allocator splits and merges blocks by order, groups pages by migrate type, and has watermarks
//! and per-CPU pages.
//!
//! ```text
//! PageAllocator ── zonelists: nearest node, highest zone first
//!   └ PerCpuPages ── magazines of blocks of order 0..=3, one layer a type (uslab_magazine)
//!       └ Zone ── one lock: free areas by order and type, split, merge, claim, steal, watermarks
//!           └ Region ── reserve, commit, decommit            FrameTable ── 64 bytes a page
//! ```
//!
//! | module | |
//! |---|---|
//! | [`region`] | address space: the only code that requests memory from the OS |
//! | [`frame`] | one descriptor per page, and lists of them |
//! | `free_area`, `zone` | the buddy allocator |
//! | [`watermark`] | how much is kept free, and for which requests |
//! | `per_cpu` | magazines of pages |
//! | `allocator` | the path of a request; [`PageBlock`] is the safe way to use pages |
//! | [`info`], [`census`] | reports, and the audit |
//! | [`corruption`] | invalid frees |
//! | [`faults`] | injected refusals |
//! | `fork` | all locks, for a process that forks |
//!
//! # Invariants
//!
//! * All metadata of a page is in its [`Frame`], and the allocator never writes into a free page.
//! * After construction, only reports and [`PageBlock::split`] allocate from the global allocator.
//! * Lack of memory is an error ([`AllocError`]) that names the limit. If the system refuses the reservation,
//!   the allocator uses a smaller range.
//!
//! # Example
//!
//! ```
//! use uslab_buddy::{Gfp, Order, PageAllocator, PageConfig};
//! use uslab_magazine::Cpus;
//!
//! let pages = PageAllocator::new(PageConfig::default_for(Cpus::os()))?;
//! let mut block = pages.alloc_block(Order::for_bytes(20_000).unwrap(), Gfp::ZERO, None)?;
//! assert_eq!(block.bytes().len(), 32 << 10);
//! block.bytes_mut()[0] = 1;
//! block.free();
//! pages.decommit();
//! assert_eq!(pages.info().pages_not_in_maximal_blocks(), 0);
//! assert_eq!(pages.info().committed_bytes(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models map nothing"))]

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

mod allocator;
mod block;
pub mod census;
mod config;
pub mod corruption;
mod error;
#[doc(hidden)]
pub mod faults;
mod fork;
#[doc(hidden)]
pub mod frame;
mod free_area;
mod gfp;
pub mod info;
mod per_cpu;
mod pfn;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod tables;
#[doc(hidden)]
pub mod view;
#[doc(hidden)]
pub mod watermark;
mod zone;

#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, any(loom, shuttle)))]
mod scenarios;
#[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
pub mod shadow;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use allocator::PageAllocator;
pub use block::PageBlock;
pub use census::{Census, Violation};
pub use config::PageConfig;
pub use corruption::Corruption;
pub use error::{AllocError, Limit, PageError};
pub use gfp::{Gfp, MigrateType, ZoneKind};
pub use info::{BuddyInfo, ZoneInfo};
pub use pfn::{Order, Pfn};
pub use region::{Backend, HugePages};

#[doc(hidden)]
pub use {
    faults::Faults,
    frame::{Frame, FrameList, FrameTable, Kind, Link, State},
    region::{Phantom, Region, Reservation, Reserved},
    tables::{StackMemory, Tables},
    view::PerCpuView,
    zone::ZoneEvents,
};

/// Number of address bits inside a page.
pub const PAGE_SHIFT: u32 = 12;
/// Size of a page in bytes. If the system's pages are larger, memory cannot be committed in units of this size, and
/// creating an allocator fails with [`PageError::Refused`].
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The largest order, inclusive: blocks of 4 MiB.
pub const MAX_ORDER: u8 = 10;
/// The order of a pageblock, the unit of grouping by migrate type: 2 MiB.
pub const PAGEBLOCK_ORDER: u8 = 9;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
