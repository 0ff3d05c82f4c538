//! Injects faults into a whole subsystem, at the fault points of pages and of object caches.
//!
//! [`uslab_buddy::faults`] implements the injection and documents the syntax of rules. Fault rules are part of the page
//! configuration, so they also affect the first reservation of addresses:
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

// Rules name points by their text; `POINTS` lists all points.
pub use uslab_buddy::faults::{BadRule, Faults, Point, Rule, Tally};
pub use uslab_buddy::faults::{COMMIT, Call, DECOMMIT, MAGAZINE, PAGE, RESERVE};

/// Fault point of a slab's bitmap (see [`Point::what`]).
pub const BITMAP: Point =
    Point { name: "bitmap", what: "no memory for the bitmap of a slab of many objects" };
/// Fault point of a cache's slabs (see [`Point::what`]). Allocations that magazines serve do not reach this fault
/// point.
pub const SLAB: Point = Point { name: "slab", what: "a cache's slabs have no free object" };
/// Fault point of an object's constructor (see [`Point::what`]).
pub const CONSTRUCTOR: Point = Point { name: "constructor", what: "an object's constructor panics" };
/// Fault point of a cache's limit (see [`Point::what`]).
pub const LIMIT: Point = Point { name: "limit", what: "a cache is at its limit of slabs" };

/// All fault points, ordered from the lowest level to the highest.
pub const POINTS: [Point; 9] = [RESERVE, COMMIT, DECOMMIT, MAGAZINE, PAGE, BITMAP, SLAB, CONSTRUCTOR, LIMIT];

/// Panic payload of an injected constructor panic, as a `&'static str`. An injected panic bypasses the panic hook.
pub const CONSTRUCTOR_PANIC: &str = "fault injection made the constructor panic";

/// Parses rules for all [`POINTS`].
///
/// # Errors
/// Fails as [`Rule::parse_all`] does.
pub fn parse(text: &str) -> Result<Vec<Rule>, BadRule> {
    Rule::parse_all(text, &POINTS)
}
