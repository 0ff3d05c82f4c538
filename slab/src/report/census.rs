//! The conservation check of a subsystem, whose result is a [`Census`].

use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::node::NodeCount;
use crate::cache::node::State;
use crate::memory::slab::Fill;
use core::fmt;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::Pfn;

/// Result of a [`check`](crate::Subsystem::check): counts of all objects and pages by their state.
///
/// ```text
/// objects = used + in_magazines + in_depot + quarantined + free_in_slabs        for each cache
///    used = allocations - frees
///   pages = slabs + slabs that wait + kmalloc's large blocks + other blocks + per-CPU + free
/// ```
///
/// The check also verifies three properties of each slab: it is on exactly the list for its fill, its head agrees with
/// its bitmap, and its frames name its cache. No other thread may use the subsystem during the check.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let blocks = inodes.alloc_blocks(Gfp::KERNEL, 30)?;
/// let census = subsystem.check()?;
/// assert_eq!(census.used, 30);
/// assert_eq!(census.objects, 30 + census.in_magazines + census.in_depot + census.free_in_slabs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Census {
    /// Number of caches.
    pub caches: u64,
    /// Number of slabs on the lists of nodes.
    pub slabs: u64,
    /// Number of objects in slabs, which is the sum of the five counts from `used` to `free_in_slabs`.
    pub objects: u64,
    /// Number of objects in use.
    pub used: u64,
    /// Number of objects on CPUs' stacks.
    pub in_magazines: u64,
    /// Number of objects in depots.
    pub in_depot: u64,
    /// Number of objects in quarantine.
    pub quarantined: u64,
    /// Number of objects that are free in slabs.
    pub free_in_slabs: u64,
    /// Number of all pages, which is the sum of the six counts from `slab_pages` to `free_pages` plus `lost_pages`.
    pub pages: u64,
    /// Number of pages of the slabs on the lists of nodes.
    pub slab_pages: u64,
    /// Number of pages of slabs that wait for a grace period.
    pub grace_pages: u64,
    /// Number of pages in large blocks of kmalloc.
    pub large_pages: u64,
    /// Number of pages in allocated blocks that are neither slabs nor large blocks.
    pub block_pages: u64,
    /// Number of pages in per-CPU magazines.
    pub per_cpu_pages: u64,
    /// Number of free pages, committed or not.
    pub free_pages: u64,
    /// Number of objects that other threads were moving when the process was forked. `used` includes these objects. The
    /// number is 0 except in a forked child.
    pub lost_objects: u64,
    /// Number of slabs that other threads were moving at the fork. `block_pages` includes their pages.
    pub lost_slabs: u64,
    /// Number of pages that other threads were moving at the fork.
    pub lost_pages: u64,
    /// Number of pages of memory above the largest block; `pages` does not include them.
    pub huge_pages: u64,
}

/// A violated invariant of the subsystem.
///
/// ```
/// use uslab::Violation;
///
/// let lost = Violation::Count { cache: "inode".into(), what: "objects in use", found: 29, expected: 30 };
/// assert_eq!(lost.to_string(), "cache inode: 29 objects in use, expected 30");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A slab has a wrong state, or is on a wrong list.
    Slab {
        /// Name of the cache.
        cache: String,
        /// First page of the slab.
        page: u32,
        /// Description of what is wrong with the slab.
        what: String,
    },
    /// Two counts of a cache that should be equal differ.
    Count {
        /// Name of the cache.
        cache: String,
        /// Description of the counted items.
        what: &'static str,
        /// Number that the walk over the slabs found.
        found: u64,
        /// Number that the counters contain.
        expected: u64,
    },
    /// Slabs and large blocks have more pages than the page allocator has handed out.
    Pages {
        /// Number of pages in slabs and large blocks.
        found: u64,
        /// Number of pages that the page allocator has handed out.
        allocated: u64,
    },
    /// The table of huge memory is unsorted, miscounts its allocations, or has more bytes than are charged.
    Huge,
    /// The check of the page allocator found a violation.
    Buddy(uslab_buddy::Violation),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slab { cache, page, what } => write!(f, "cache {cache}: slab at page {page}: {what}"),
            Self::Count { cache, what, found, expected } => {
                write!(f, "cache {cache}: {found} {what}, expected {expected}")
            }
            Self::Pages { found, allocated } => {
                write!(f, "{found} pages in slabs and large blocks, but only {allocated} are allocated")
            }
            Self::Huge => f.write_str("the table of huge memory is unsorted, or larger than the charge"),
            Self::Buddy(violation) => violation.fmt(f),
        }
    }
}
impl std::error::Error for Violation {}

impl Core {
    pub(crate) fn check(&self) -> Result<Census, Violation> {
        Census::take(self)
    }
}

impl Census {
    pub(crate) fn take(core: &Core) -> Result<Self, Violation> {
        let mut census = Self::default();
        for cache in core.caches.iter() {
            census.add(core, &cache)?;
        }
        let pages = core.memory.pages.check().map_err(Violation::Buddy)?;
        // Users may charge their own mappings, and memory that another thread was moving at the fork stays charged.
        let mapped = (core.huge.mapped_bytes() / PAGE_SIZE) as u64;
        let charged = core.memory.pages.limit().is_none() || pages.charged >= mapped;
        if !core.huge.agrees() || !charged {
            return Err(Violation::Huge);
        }
        census.huge_pages = core.huge.info().pages;
        census.large_pages = core.large.info().pages;
        let accounted_pages = census.slab_pages + census.grace_pages + census.large_pages;
        census.pages = pages.managed;
        census.per_cpu_pages = pages.per_cpu;
        census.free_pages = pages.uncommitted + pages.listed;
        census.lost_pages = pages.lost;
        let allocated = pages.allocated;
        census.block_pages = allocated
            .checked_sub(accounted_pages)
            .ok_or(Violation::Pages { found: accounted_pages, allocated })?;
        Ok(census)
    }

    fn add(&mut self, core: &Core, cache: &Cache) -> Result<(), Violation> {
        let ListTotals { slabs, pages, objects, inuse, count } = ListTotals::count_listed_slabs(core, cache)?;
        // The call reads no names, because a name may be in a slab that is being made for this very
        // cache.
        let info = cache.numbers();
        let cached = info.in_magazines + info.in_depot + info.quarantined;
        let mut allocs = info.allocs + cache.late_corruptions();
        let (mut charged, mut booked_pages) = (cache.charged(), info.pages);
        if core.forks.get() > 0 {
            // Objects that were moving at a fork are missing from all counters, or from one of two
            // counters.
            let lost_objects = inuse.wrapping_sub(cached).wrapping_sub(allocs.wrapping_sub(info.frees));
            allocs = allocs.wrapping_add(lost_objects);
            self.lost_objects += lost_objects.cast_signed().max(0).cast_unsigned();
            let lost_slabs = charged.saturating_sub(slabs + info.grace);
            charged -= lost_slabs;
            self.lost_slabs += lost_slabs;
            booked_pages = booked_pages.min(pages + cache.grace_pages());
        }
        // After a double free that has not reached the slab, both copies of the object are in
        // magazines.
        let used_objects = allocs.checked_sub(info.frees).ok_or_else(|| Violation::Count {
            cache: cache.name().to_owned(),
            what: "objects taken back",
            found: info.frees,
            expected: allocs,
        })?;
        compare(
            cache,
            [
                ("slabs on lists", slabs, count.slabs()),
                ("objects in slabs", objects, count.objects),
                ("objects out of slabs", inuse, count.inuse),
                ("objects allocated from slabs (used or cached)", inuse, used_objects + cached),
                ("slabs (listed or in a grace period)", slabs + info.grace, charged),
                ("pages of slabs", pages + cache.grace_pages(), booked_pages),
            ],
        )?;
        self.caches += 1;
        self.slabs += slabs;
        self.objects += objects;
        self.used += used_objects;
        self.in_magazines += info.in_magazines;
        self.in_depot += info.in_depot;
        self.quarantined += info.quarantined;
        self.free_in_slabs += objects - inuse;
        self.slab_pages += pages;
        self.grace_pages += cache.grace_pages();
        Ok(())
    }
}

/// Totals over the listed slabs of a cache, and the counts that the cache's nodes keep.
#[derive(Default)]
struct ListTotals {
    slabs: u64,
    pages: u64,
    objects: u64,
    inuse: u64,
    count: NodeCount,
}

impl ListTotals {
    fn count_listed_slabs(core: &Core, cache: &Cache) -> Result<Self, Violation> {
        let (mut totals, mut count, mut wrong_slab) = (Self::default(), NodeCount::default(), None);
        for node in cache.nodes() {
            count = count
                + node.walk(&core.memory, |page, list, fill, agrees| {
                    totals.slabs += 1;
                    totals.pages += u64::from(core.memory.frames().frame(page).state().order().pages());
                    totals.inuse += u64::from(fill.inuse);
                    totals.objects += u64::from(fill.objects);
                    if let Some(fault) = fault(core, cache, page, list, fill, agrees) {
                        wrong_slab.get_or_insert((page, fault));
                    }
                });
        }
        wrong_slab.map_or(Ok(Self { count, ..totals }), |(page, fault)| {
            Err(Violation::Slab { cache: cache.name().to_owned(), page: page.get(), what: fault.to_string() })
        })
    }
}

/// Compares pairs of counts, each with a description: the count found, and the count according to the cache's counters.
fn compare<const N: usize>(cache: &Cache, books: [(&'static str, u64, u64); N]) -> Result<(), Violation> {
    let mismatch = books.into_iter().find(|(_, found, expected)| found != expected);
    mismatch.map_or(Ok(()), |(what, found, expected)| {
        Err(Violation::Count { cache: cache.name().to_owned(), what, found, expected })
    })
}

/// An error in a slab, stored as a value instead of a text, because nothing may be allocated under the node's lock.
#[derive(Clone, Copy)]
enum Fault {
    List { on: State, fill: Fill },
    Bitmap(Fill),
    Objects { has: u16, fit: usize },
    Owner,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::List { on: list, fill } => {
                write!(f, "the slab is on list {list:?}, but belongs on {:?} ({fill:?})", State::from(fill))
            }
            Self::Bitmap(fill) => write!(f, "the slab's bitmap does not agree with {fill:?}"),
            Self::Objects { has, fit } => write!(f, "the slab has {has} objects, but {fit} fit"),
            Self::Owner => f.write_str("the slab's frames name another owner"),
        }
    }
}

fn fault(core: &Core, cache: &Cache, page: Pfn, list: State, fill: Fill, agrees: bool) -> Option<Fault> {
    let order = core.memory.frames().frame(page).state().order();
    let fit = cache.geometry().objects_at(order);
    let owner = |i| core.memory.frames().frame(Pfn::new(page.get() + i)).owner();
    if list != State::from(fill) {
        Some(Fault::List { on: list, fill })
    } else if !agrees {
        Some(Fault::Bitmap(fill))
    } else if usize::from(fill.objects) != fit {
        Some(Fault::Objects { has: fill.objects, fit })
    } else if !(0..order.pages()).all(|i| cache.is_owner(owner(i))) {
        Some(Fault::Owner)
    } else {
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::subsystem::Config;
    use crate::{Gfp, KmemCache, Magazines};
    use core::ptr::null_mut;
    use std::sync::Arc;
    use uslab_buddy::{Order, PageConfig};
    use uslab_magazine::{Cpus, Operation};

    /// Makes a cache with one object in use, lets `harm` damage the cache, and returns the violation that the check
    /// finds.
    fn violation(harm: impl FnOnce(&Core, &KmemCache, Pfn)) -> String {
        let cpus = Cpus::simulated(1, 1).unwrap();
        let core: Arc<Core> = Core::new(Config::new(PageConfig::default_for(cpus).limit(16 << 20))).unwrap();
        let cache = KmemCache::builder("o", 1000).magazines(Magazines::Off).build_on(&core).unwrap();
        let object = cache.alloc(Gfp::KERNEL).unwrap();
        assert!(core.check().is_ok());
        let slab = core.memory.frames().frame(core.memory.pages.pfn_of(object.as_ptr()).unwrap()).head();
        harm(&core, &cache, slab);
        let text = core.check().expect_err("the damage must be seen").to_string();
        // The cache is too damaged to be destroyed.
        core::mem::forget(cache);
        text
    }

    #[test]
    fn census_detects_a_slab_on_the_wrong_list() {
        let text = violation(|core, _, slab| {
            // SAFETY: the subsystem has no other user. The census must find this error.
            unsafe { core.memory.slab(slab).alloc_bits(6, false, None, |_| ()) };
        });
        assert!(text.contains("the slab is on list Partial(0), but belongs on Partial("), "{text}");
    }

    #[test]
    fn census_detects_a_free_count_that_contradicts_the_bitmap() {
        let text = violation(|core, _, slab| {
            // SAFETY: the subsystem has no other user.
            core.memory.frames().frame(slab).data().with_mut(|data| unsafe { (*data)[1] |= 2 });
        });
        assert!(text.contains("bitmap does not agree"), "{text}");
    }

    #[test]
    fn census_detects_a_frame_with_the_wrong_owner() {
        let text = violation(|core, _, slab| {
            // SAFETY: the subsystem has no other user.
            unsafe { core.memory.frames().frame(Pfn::new(slab.get() + 1)).set_owner(null_mut()) };
        });
        assert!(text.contains("another owner"), "{text}");
    }

    #[test]
    fn census_detects_an_unaccounted_object() {
        let text = violation(|core, cache, _| {
            cache.cache().nodes()[0].alloc(&Operation::new(), &core.memory, 1, true, |_| ());
        });
        assert_eq!(text, "cache o: 2 objects allocated from slabs (used or cached), expected 1");
    }

    #[test]
    fn census_detects_an_unaccounted_slab() {
        let text = violation(|core, cache, _| {
            let order = cache.geometry().order();
            let slab = core.memory.pages.alloc(order, Gfp::COMP, None).unwrap();
            let owner = core::ptr::from_ref(cache.cache()).cast_mut().cast();
            // SAFETY: only this test has the new block, and the cache is leaked.
            unsafe {
                core.memory.set_owner(slab, order, owner);
                assert!(core.memory.slab(slab).set_up(
                    &Operation::new(),
                    cache.geometry().objects(),
                    crate::memory::slab::Constructed::Together
                ));
                cache.cache().nodes()[0].add(&Operation::new(), &core.memory, slab).unwrap();
            }
        });
        assert_eq!(text, "cache o: 2 slabs (listed or in a grace period), expected 1");
    }

    #[test]
    fn census_detects_a_slab_on_freed_pages() {
        let text = violation(|core, cache, slab| {
            assert!(cache.geometry().order() > Order::ZERO);
            // SAFETY: the cache allocated the slab with this order. The census must find that the slab is in use.
            unsafe { core.memory.pages.free(slab, cache.geometry().order()) };
        });
        assert!(text.contains("another owner") || text.contains("are allocated"), "{text}");
    }
}
