//! Fault injection in a whole subsystem: the points of the pages and those of object caches.
//!
//! The mechanism and the syntax of rules are in [`uslab_buddy::faults`]. Faults are part of the pages' configuration, before
//! anything is reserved:
//!
//! ```
//! use uslab::faults::{self, Faults};
//! use uslab::{AllocError, Config, Gfp, KmemCache, Subsystem};
//!
//! let mut config = Config::default();
//! config.pages.faults = Faults::new(1);
//! let faults = config.pages.faults.clone();
//! let subsystem = Subsystem::new(config)?;
//! let cache = KmemCache::builder("inode", 640).build_in(&subsystem)?;
//!
//! faults.arm(faults::parse("slab:cache=inode,times=-1")?);
//! assert_eq!(cache.alloc(Gfp::KERNEL), Err(AllocError::Injected));
//! faults.disarm();
//! let inode = cache.alloc(Gfp::KERNEL)?;
//! // SAFETY: allocated above from this cache, freed once.
//! unsafe { cache.free(inode) };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Rules name points by their text; `POINTS` has all of them.
pub use uslab_buddy::faults::{BadRule, Faults, Point, Rule, Tally};
#[doc(hidden)]
pub use uslab_buddy::faults::{COMMIT, Call, DECOMMIT, MAGAZINE, PAGE, RESERVE};

/// See [`Point::what`].
#[doc(hidden)]
pub const BITMAP: Point =
    Point { name: "bitmap", what: "no memory for the bitmap of a slab of many objects" };
/// See [`Point::what`]. Allocations that magazines serve do not reach this point.
#[doc(hidden)]
pub const SLAB: Point = Point { name: "slab", what: "a cache's slabs give no object" };
/// See [`Point::what`].
#[doc(hidden)]
pub const CONSTRUCTOR: Point = Point { name: "constructor", what: "an object's constructor panics" };
/// See [`Point::what`].
#[doc(hidden)]
pub const LIMIT: Point = Point { name: "limit", what: "a cache is at its limit of slabs" };

/// All points, from the lowest level up.
pub const POINTS: [Point; 9] = [RESERVE, COMMIT, DECOMMIT, MAGAZINE, PAGE, BITMAP, SLAB, CONSTRUCTOR, LIMIT];

/// Payload of an injected constructor panic, a `&'static str`. It bypasses the panic hook.
#[doc(hidden)]
pub const CONSTRUCTOR_PANIC: &str = "the constructor was refused by fault injection";

/// Parses rules for all [`POINTS`].
///
/// # Errors
/// Fails as [`Rule::parse_all`] does.
pub fn parse(text: &str) -> Result<Vec<Rule>, BadRule> {
    Rule::parse_all(text, &POINTS)
}
