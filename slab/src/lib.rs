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
//! | module | |
//! |---|---|
//! | [`geometry`] | order, objects a slab, alignment: Linux's rule |
//! | `slab` | one slab: which objects are out |
//! | `node` | a cache's slabs on one node: full, partial, empty |
//! | `cache` | allocation and free, growth and release, pressure |
//! | [`kmem_cache`], [`typed`] | a cache as users hold it, untyped and typed |
//! | `pinned`, `type_stable`, `static_cache` | typed caches that promise more |
//! | `owner`, `registry` | who keeps a cache, and how it goes |
//! | `tags` | which objects are out, asked at a free |
//! | [`kmalloc`], [`size_class`] | memory of any size, by the kernel's 13 classes |
//! | [`malloc`] | memory of any size, by four classes a doubling |
//! | [`large`] | what no class holds, and the way back of any memory |
//! | [`huge`] | what no block of pages holds |
//! | [`global_alloc`], `bootstrap`, [`options`] | the process-wide malloc, its start and its settings |
//! | `allocator` | the same and caches for containers that take an allocator |
//! | [`prefill`], [`mempool`] | objects of one owner, and a reserve for all |
//! | [`magazines`] | how large magazines are |
//! | [`pool`] | objects of one size in memory of the caller's choice, for one thread |
//! | [`handle`] | small values that name an object, and know when it is gone |
//! | [`hive`] | values of one owner that never move, walked without looking at what is free |
//! | [`live`] | which objects are in use, to walk over |
//! | [`shrinker`] | what users can drop when memory is short |
//! | [`reaper`] | threads that give idle memory back |
//! | [`pressure`] | how Linux says that memory is short |
//! | `rcu` | type-stable caches |
//! | [`corruption`] | frees that cannot be right |
//! | [`faults`] | refusals on purpose |
//! | [`fork`] | all locks, for a process that forks |
//! | [`info`], [`census`] | the numbers, and whether they add up |
//! | `prometheus` | the numbers as Prometheus reads them (a feature) |
//! | `check` | under loom: check your own code on top of this one |
//! | [`subsystem`] | the pages and all caches on them; the global one |

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

#[cfg(not(any(loom, shuttle)))]
mod allocator;
pub mod block;
#[cfg(not(any(loom, shuttle)))]
mod bootstrap;
mod cache;
pub mod census;
#[cfg(any(loom, shuttle))]
pub mod check;
pub mod corruption;
pub mod error;
pub mod faults;
pub mod fork;
pub mod geometry;
#[cfg(not(any(loom, shuttle)))]
pub mod global_alloc;
mod ground;
pub mod handle;
pub mod hive;
// As kmalloc.
#[cfg_attr(loom, allow(dead_code))]
pub mod huge;
pub mod info;
// No subsystem has one under a checker.
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
pub mod kmalloc;
pub mod kmem_cache;
pub mod large;
pub mod live;
pub mod magazines;
#[cfg(not(any(loom, shuttle)))]
pub mod malloc;
pub mod mempool;
mod node;
#[cfg(not(any(loom, shuttle)))]
pub mod options;
mod owner;
#[cfg(not(any(loom, shuttle)))]
mod page_classes;
mod page_owners;
mod pinned;
pub mod prefill;
#[cfg(not(any(loom, shuttle)))]
pub mod pressure;
#[cfg(feature = "prometheus")]
pub mod prometheus;
// The global subsystem of a checker's execution is not published, but the models run this.
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
mod published;
#[cfg(not(loom))]
pub mod rcu;
#[cfg(not(any(loom, shuttle)))]
pub mod reaper;
mod registry;
pub mod shrinker;
pub mod size_class;
mod slab;
#[cfg(not(shuttle))]
mod static_cache;
pub mod subsystem;
#[cfg(not(loom))]
mod tags;
#[cfg(not(loom))]
mod type_stable;
pub mod typed;
pub mod view;

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
pub use pinned::PinnedCache;
pub use prefill::Prefilled;
#[cfg(not(any(loom, shuttle)))]
pub use reaper::{Reaper, ReaperBuilder, ReaperInfo, ReaperThread};
pub use shrinker::{Registration, Shrinker};
pub use size_class::SizeClass;
#[cfg(not(shuttle))]
pub use static_cache::StaticCache;
#[cfg(not(any(loom, shuttle)))]
pub use subsystem::HeapUsage;
pub use subsystem::{Config, Info, StartError, Subsystem, slabinfo};
#[cfg(not(loom))]
pub use type_stable::{StableBox, TypeStableCache};
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
