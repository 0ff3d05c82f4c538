//! Object caches in userspace as Linux has them: slabs of equal objects on buddy pages, per-CPU magazines in front.
//!
//! | you want | take |
//! |---|---|
//! | objects of one type, built once and used many times | [`ObjectCache`] |
//! | the same in a `static`; that must not move; for readers without locks | [`object_cache!`], [`PinnedCache`], `TypeStableCache` |
//! | values that never move, to walk over | [`Hive`] |
//! | untyped objects of one size | [`KmemCache`] |
//! | names of objects that know when the object is gone | [`handle`] |
//! | allocations that must not fail | [`Mempool`], [`KmemCache::prefill`] |
//! | memory of any size | [`Kmalloc`], of a [`Subsystem`] |
//! | the program's heap | [`Uslab`] as `#[global_allocator]` |
//! | the same without `unsafe` | [`Block`] |
//! | to see what it does | [`slabinfo`], [`Subsystem::info`], [`Subsystem::check`] |
//!
//! ```
//! use uslab::ObjectCache;
//!
//! #[derive(Default)]
//! struct Inode { number: u64, links: u32 }
//!
//! let inodes = ObjectCache::builder("inode").ctor(Inode::default).hardware_align().build()?;
//! let mut inode = inodes.alloc()?;
//! inode.number = 7;
//! drop(inode);
//! println!("{}", uslab::slabinfo()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All allocator state is out of band: in frames beside the pages, in magazines and in lists, never in a free object (but of a
//! [`pool`], whose free list lies there by its nature). Free objects stay as they were left, an overflow reaches no
//! allocator state, and loom checks the shipping source.
//!
//! The sources lie in rooms, each of which imports from those above it in this table only:
//!
//! | room | |
//! |---|---|
//! | [`error`], [`geometry`], `published`, `registry` | what stands on nothing: errors, Linux's order rule, a value for good, lists of who is there |
//! | `debug` | [`corruption`], [`faults`], tags of objects; `check`, the kit for models |
//! | `reclaim` | [`shrinker`], [`pressure`], [`reaper`], [`rcu`] |
//! | `memory` | pages and what is known about them, slabs, [`huge`] |
//! | `cache` | the way of an object: [`kmem_cache`], [`magazines`], [`prefill`], [`mempool`], [`live`]; nodes, owners |
//! | `size` | memory of any size: [`kmalloc`], [`size_class`], [`malloc`], [`large`] |
//! | [`block`] | objects and memory of any size, as safe values |
//! | `report` | [`info`], [`census`], [`view`]; `prometheus` |
//! | [`subsystem`] | the pages and all caches on them; the global one |
//! | `objects` | [`typed`], [`hive`]; pinned, type-stable and static caches |
//! | [`handle`] | small values that name an object, and know when it is gone |
//! | `process` | [`global_alloc`], [`options`], [`fork`] |
//!
//! [`pool`] stands beside them: objects of one size in memory of the caller's choice, for one thread.

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

pub mod block;
mod cache;
mod debug;
pub mod error;
pub mod geometry;
pub mod handle;
mod memory;
mod objects;
mod process;
// The global subsystem of a checker's execution is not published, but the models run this.
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
mod published;
mod reclaim;
mod registry;
mod report;
mod size;
pub mod subsystem;

pub use cache::{kmem_cache, live, magazines, mempool, prefill};
#[cfg(any(loom, shuttle))]
pub use debug::check;
pub use debug::{corruption, faults};
pub use memory::huge;
pub use objects::{hive, typed};
pub use process::fork;
#[cfg(not(any(loom, shuttle)))]
pub use process::{global_alloc, options};
#[cfg(not(loom))]
pub use reclaim::rcu;
pub use reclaim::shrinker;
#[cfg(not(any(loom, shuttle)))]
pub use reclaim::{pressure, reaper};
#[cfg(feature = "prometheus")]
pub use report::prometheus;
pub use report::{census, info, view};
#[cfg(not(any(loom, shuttle)))]
pub use size::malloc;
pub use size::{kmalloc, large, size_class};

#[cfg(all(test, any(loom, uslab_models)))]
mod models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
#[doc(hidden)]
pub mod shadow;
#[cfg(all(test, any(loom, shuttle, uslab_models)))]
mod world;

pub use block::Block;
pub use census::{Census, Violation};
pub use corruption::{Corruption, CorruptionKind};
pub use error::{AllocError, Busy, CacheError};
pub use faults::Faults;
pub use fork::Fork;
pub use geometry::{Geometry, GeometryError, OrderRule};
#[cfg(not(any(loom, shuttle)))]
pub use global_alloc::Uslab;
pub use hive::Hive;
pub use info::{CacheInfo, DrainInfo, SlabInfo, Statistics};
pub use kmalloc::{Kmalloc, KmallocKind};
pub use kmem_cache::{KmemCache, KmemCacheBuilder, Limit};
pub use large::ZERO_SIZE;
pub use live::Live;
pub use magazines::Magazines;
#[cfg(not(any(loom, shuttle)))]
pub use malloc::Malloc;
pub use mempool::Mempool;
pub use objects::pinned::PinnedCache;
#[cfg(not(shuttle))]
pub use objects::static_cache::StaticCache;
#[cfg(not(loom))]
pub use objects::type_stable::{StableBox, TypeStableCache};
pub use prefill::Prefilled;
#[cfg(not(any(loom, shuttle)))]
pub use reaper::{Reaper, ReaperBuilder, ReaperInfo, ReaperThread};
pub use shrinker::{Registration, Shrinker};
pub use size_class::SizeClass;
#[cfg(not(any(loom, shuttle)))]
pub use subsystem::HeapUsage;
pub use subsystem::{Config, Info, StartError, Subsystem, slabinfo};
pub use typed::{CacheBox, ObjectCache, ObjectCacheBuilder, OwnedBox, PrefilledObjects};
pub use uslab_buddy::Gfp;
pub use uslab_magazine::{Path, Paths};
#[doc(inline)]
pub use uslab_pool as pool;
pub use view::{CacheView, ObjectPlace, SlabList, SlabView};

/// The examples of the README are run as this crate's.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
