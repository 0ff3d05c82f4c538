//! A buddy page allocator in userspace. The allocator divides one reserved address range into nodes and zones. The
//! allocator splits and merges power-of-two blocks, groups pages by migrate type, respects watermarks, and caches pages
//! per CPU.
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
//! * All metadata of a page is in its [`Frame`], so the allocator never writes into a free page.
//! * Once the allocator exists, only reports and [`PageBlock::split`] use the global allocator.
//! * If memory runs out, an allocation returns an [`AllocError`] that names the reason. If the OS refuses the requested
//!   address range, the allocator reserves a smaller range.
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

/// Base-2 logarithm of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Size of a page in bytes. If the OS uses larger pages, memory cannot be committed page by page, and creating an
/// allocator fails with [`PageError::Refused`].
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The largest order that a block can have: 4 MiB.
pub const MAX_ORDER: u8 = 10;
/// The order of a pageblock (2 MiB), the unit in which pages are grouped by migrate type.
pub const PAGEBLOCK_ORDER: u8 = 9;

/// Compiles and runs the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
