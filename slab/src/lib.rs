//! Object caches for Linux userspace, built like the kernel's: slabs on buddy pages, with per-CPU magazines.
//!
//! | purpose | type |
//! |---|---|
//! | objects of one type, constructed once and reused many times | [`ObjectCache`] |
//! | untyped objects of one size | [`KmemCache`] |
//! | the program's heap | [`Uslab`] as `#[global_allocator]` |
//! | separate pages and caches, also on simulated CPUs | [`Subsystem`] |
//! | flags of an allocation | [`Gfp`] |
//!
//! For embedding: objects stay constructed between uses, and a freed object moves to the magazine of the current CPU.
//!
//! ```
//! use uslab::ObjectCache;
//!
//! let buffers =
//!     ObjectCache::builder("buffer").ctor(|| Vec::<u8>::with_capacity(4096)).reset(Vec::clear).build()?;
//! let mut buffer = buffers.alloc()?;
//! buffer.extend_from_slice(b"hello");
//! drop(buffer); // empty again, with its capacity
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For study: reports show where each object is, and count all operations.
//!
//! ```
//! use uslab::subsystem::Config;
//! use uslab::{Gfp, KmemCache, Subsystem};
//!
//! let subsystem = Subsystem::new(Config::default())?;
//! let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
//! let blocks = (0..100).map(|_| inodes.alloc_block(Gfp::KERNEL)).collect::<Result<Vec<_>, _>>()?;
//! print!("{}", subsystem.slabinfo()); // /proc/slabinfo, format 2.1
//! drop(blocks);
//! let census = subsystem.check()?; // walks every slab and page, and fails if anything is lost
//! assert_eq!(census.used, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For checking: under `--cfg loom`, loom runs code that uses these caches in every schedule.
//!
//! ```
//! use uslab::ObjectCache;
//! use uslab::sync::{Arc, thread}; // `std` in your program, loom in a model
//!
//! fn two_threads_share_a_cache() {
//!     let cache = Arc::new(ObjectCache::builder("message").ctor(|| 0_u64).build().unwrap());
//!     let other = cache.clone();
//!     let child = thread::spawn(move || *other.alloc().unwrap() = 1);
//!     *cache.alloc().unwrap() = 2;
//!     child.join().unwrap();
//!     assert_eq!(cache.info().used, 0);
//! }
//!
//! #[cfg(not(loom))]
//! two_threads_share_a_cache();
//! #[cfg(loom)]
//! uslab::check::model("a shared cache", uslab::check::Bound::Preemptions(2), 2, two_threads_share_a_cache);
//! ```
//!
//! Frequently used types are also exported from the crate's root, for example [`error::AllocError`] as
//! `uslab::AllocError`.

#![cfg_attr(
    any(loom, shuttle),
    allow(dead_code, reason = "models have no malloc, no reports and no debugger")
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

// The file ARCHITECTURE.md states which module may import from which.
pub mod block;
pub mod cache;
pub mod debug;
pub mod error;
pub mod geometry;
mod guard;
pub mod handle;
pub mod harden;
mod memory;
pub mod objects;
pub mod observe;
pub mod process;
pub mod profile;
// Models do not publish their global subsystem, but they do check the module `published`.
mod published;
pub mod reclaim;
mod registry;
pub mod report;
pub mod size;
pub mod subsystem;

#[cfg(all(test, not(any(loom, shuttle))))]
mod properties;
#[cfg(all(test, any(loom, shuttle)))]
mod scenarios;
#[cfg(all(any(test, uslab_fuzz), not(any(loom, shuttle))))]
pub mod shadow;

// Items on the first page of the documentation.
#[doc(inline)]
pub use cache::kmem_cache::KmemCache;
#[doc(inline)]
pub use objects::typed::ObjectCache;
#[cfg(not(any(loom, shuttle)))]
#[doc(inline)]
pub use process::global_alloc::Uslab;
#[doc(inline)]
pub use subsystem::Subsystem;
#[doc(inline)]
pub use uslab_buddy::Gfp;
#[doc(inline)]
pub use uslab_pool as pool;
pub use {uslab_buddy as buddy, uslab_magazine as magazine, uslab_sync as sync};

// Short names of frequently used items, which are documented in their modules.
#[doc(no_inline)]
pub use self::{
    block::Block,
    cache::kmem_cache::{KmemCacheBuilder, Limit},
    cache::per_cpu::Magazines,
    cache::{Live, Mempool, Prefilled, kmem_cache},
    debug::corruption::{Corruption, CorruptionKind},
    debug::faults::Faults,
    debug::flags::{DebugRules, SlabDebug},
    debug::{corruption, faults},
    error::{AllocError, Busy, CacheError},
    geometry::{Geometry, GeometryError, OrderRule},
    harden::Harden,
    memory::huge,
    objects::typed::{CacheBox, ObjectCacheBuilder, OwnedBox, PrefilledObjects},
    objects::{Hive, PinnedCache, typed},
    observe::{Observed, Observer, TooManyObservers},
    process::fork::{self, Fork},
    reclaim::shrinker::{self, Registration, Shrinker},
    report::info::{CacheInfo, DrainInfo, Path, Paths, SlabInfo, Statistics},
    report::{CacheView, Census, ObjectPlace, SlabList, SlabView, Violation, info},
    size::kmalloc::{Kmalloc, KmallocKind},
    size::size_class::SizeClass,
    size::{ZERO_SIZE, kmalloc, size_class},
    subsystem::{Config, Info, StartError, slabinfo},
};
#[cfg(not(any(loom, shuttle)))]
#[doc(no_inline)]
pub use self::{
    process::{global_alloc, options},
    reclaim::pressure,
    reclaim::reaper::{self, Reaper, ReaperBuilder, ReaperInfo, ReaperThread},
    size::malloc::{self, Malloc},
    subsystem::HeapUsage,
};
#[cfg(any(loom, shuttle))]
#[doc(no_inline)]
pub use debug::check;
#[cfg(not(shuttle))]
#[doc(no_inline)]
pub use objects::StaticCache;
#[cfg(any(not(loom), crossbeam_loom))]
#[doc(no_inline)]
pub use objects::{StableBox, TypeStableCache};
#[cfg(any(not(loom), crossbeam_loom))]
#[doc(no_inline)]
pub use reclaim::rcu;
#[cfg(feature = "prometheus")]
#[doc(no_inline)]
pub use report::prometheus;

/// Runs the README's examples as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the book's examples as doctests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../book/src/study.md")]
    struct Study;
    #[doc = include_str!("../book/src/check.md")]
    struct Check;
    #[doc = include_str!("../book/src/embed.md")]
    struct Embed;
    #[doc = include_str!("../book/src/recipes.md")]
    struct Recipes;
    #[doc = include_str!("../book/src/operate.md")]
    struct Operate;
    #[doc = include_str!("../book/src/harden.md")]
    struct Hardened;
}
