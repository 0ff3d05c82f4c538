//! Errors of allocations, caches and subsystems.
//!
//! A failed call changes nothing and loses nothing. The caller may free memory and try again. Only an [invalid
//! free](crate::corruption) ends the process, unless a handler is set.
//!
//! | case | result | test |
//! |---|---|---|
//! | an object of no bytes | [`CacheError::Geometry`] | `invalid_cache_configurations_are_errors` |
//! | memory of no bytes | [`ZERO_SIZE`](crate::ZERO_SIZE), which may be freed | `kmalloc_of_size_zero_succeeds` |
//! | alignment that is no power of two | [`CacheError::Geometry`] | `invalid_cache_configurations_are_errors` |
//! | alignment, to 1 MiB and beyond | none: it is kept up to the largest block, 4 MiB | `alignments_up_to_one_mebibyte_are_honoured` |
//! | more than a block holds | [`CacheError::Geometry`], [`AllocError::TooLarge`] | `allocations_of_impossible_sizes_are_errors` |
//! | more above 4 MiB than a limit on all memory leaves | [`AllocError::Refused`] | `blocks_and_mappings_share_a_single_memory_limit` |
//! | a count times a size that overflows | [`AllocError::TooLarge`] | `kmalloc_sizes_that_overflow_are_errors` |
//! | a request for more objects than the cache, or all pages, can ever hold | [`AllocError::CacheLimit`], [`AllocError::TooLarge`] | `impossible_bulk_size_is_an_error` |
//! | a name with blanks, or none | [`CacheError::Name`] | `invalid_cache_configurations_are_errors` |
//! | no page is left in the range | [`AllocError::Memory`]: out of pages | `exhausted_page_range_is_an_error_until_a_free` |
//! | the cache is at its limit | [`AllocError::CacheLimit`] | `cache_at_its_limit_drains_magazines_of_another_cpu` |
//! | the caches of an account are at its limit | [`AllocError::AccountLimit`] | `account_at_its_limit_reclaims_from_idle_caches` |
//! | a cache with a constructor that zeroes on free, or with another subsystem's account | [`CacheError::ZeroOnFree`], [`CacheError::Account`] | `invalid_cache_configurations_are_errors` |
//! | the node has no object, and no other may serve | [`AllocError::Memory`], which names the node | `allocation_uses_the_requested_numa_node_unless_full` |
//! | no such node | [`AllocError::Memory`] | `freed_objects_return_to_their_numa_node` |
//! | `mmap` refused at the start | fewer pages; in the end [`StartError`] | `subsystem_reserves_less_in_little_address_space` `refused_mmap_error_names_its_purpose` |
//! | `RLIMIT_AS`, before the start or set by a program under the library | all but 32 MiB, or an eighth, for memory up to 4 MiB; then as if `mmap` were refused | `heap_leaves_part_of_the_address_limit_for_mappings` |
//! | `realloc` of what is no object | [`AllocError::NotAnObject`], after the report | `interior_address_cannot_be_reallocated` |
//! | `mmap` refused later | [`AllocError::Memory`], [`AllocError::SideTable`], [`AllocError::Refused`], [`CacheError::Memory`] | `refused_mmap_error_names_its_purpose` |
//! | `membarrier` refused, which was granted at the start | none: objects on CPUs' stacks stay there and are allocated; [`DrainInfo`](crate::DrainInfo) counts | `drains_in_a_sandbox_without_membarrier_lose_no_object` |
//! | `madvise` refused | none: the pages are free, but stay with the process | `refused_madvise_call_causes_no_error` |
//! | anything refused, anywhere | any of these | `each_operation_survives_each_refused_system_call` |
//! | a constructor refuses | [`AllocError::Constructor`] | `constructor_error_leaks_nothing` |
//! | a destroyed cache is used | [`AllocError::Destroyed`] | `destroyed_cache_allocates_and_frees_nothing` |
//! | a cache in use is destroyed | [`Busy`] | `destroy_is_refused_while_objects_are_in_use` |
//! | C: size 0, too much, overflow | a pointer; null and `ENOMEM` | `preloaded_malloc_follows_the_c_malloc_contract` |
//!
//! # Panics
//! User callbacks run under `uslab_sync::catch_panic`. No lock is held while a callback runs, unless the table names
//! one. A panic is *passed on* if an operation ran the callback for its own caller. The operation restores a consistent
//! state, and then panics with the callback's payload. A panic is *contained* if the callback ran in an unrelated
//! caller's allocation, free or reap. After a contained panic, the unrelated call continues. The panic hook has
//! reported the panic, and the payload is leaked, because its `Drop` may panic, too. After either kind of panic, no
//! memory is lost and all locks are released.
//!
//! | callback | a panic | goes on with | state | it calls the allocator, or ends itself or its cache |
//! |---|---|---|---|---|
//! | constructor ([`ctor`](crate::KmemCacheBuilder::ctor)) | passed on to the allocation | no other node, no reclaim | the object is free and zero, its new slab is returned | may use the cache; [`destroy`](crate::KmemCache::destroy) is [`Busy`], but succeeds if the object's slab is new, and then the allocation is [`AllocError::Destroyed`] |
//! | fallible constructor ([`try_ctor`](crate::KmemCacheBuilder::try_ctor)) | passed on, as above | as above | as above | as above |
//! | destructor ([`dtor`](crate::KmemCacheBuilder::dtor), `Drop` of an object) | contained | the next object | the object counts as destructed; what the destructor left is leaked | may use the cache; `destroy` is [`Busy`] while any thread destructs free objects of the cache, and does not wait |
//! | reset ([`reset`](crate::ObjectCacheBuilder::reset)) | passed on to the free; contained if the free waited for readers | the free, which happens first | the object is free, as the reset left it | may use the cache; `destroy` is [`Busy`] |
//! | weight ([`weigh`](crate::ObjectCacheBuilder::weigh)) | contained | the mean so far | unchanged | may use the cache; `destroy` is [`Busy`] |
//! | preparation ([`alloc_with`](crate::ObjectCache::alloc_with)) | passed on to the allocation | nothing | the object is free again | may use the cache; `destroy` is [`Busy`] |
//! | waker ([`acquire`](crate::KmemCache::acquire)) | contained; of its `clone`, passed on to the poll | the next waiter | the waiter keeps its place or object | allocations fail at the limit while others wait; it may drop its future, whose object is the next waiter's |
//! | values of a hive ([`Hive`](crate::Hive)) | the first is passed on when the hive is dropped; the other payloads are forgotten | the next value | all values are dropped, all memory is returned | may use other hives |
//! | start of a static cache ([`StaticCache`](crate::StaticCache)) | passed on to `get` | nothing | not started; the next `get` tries again | `get` of the same cache is [`StartError::Starting`] |
//! | captured values (`Drop` of what any of these closures owns) | contained, once the cache, the shrinker or the subsystem has it | the next closure | what the `Drop` left is leaked | may use other caches |
//! | observer ([`observe`](crate::Subsystem::observe)) | contained, and counted | the next observer | it is closed: not called again, and dropped | its operations are not shown; it may drop its own and other [`Observer`](crate::observe::Observer)s, and does not wait for their calls |
//! | shrinker ([`Shrinker`](crate::Shrinker)) | contained; counts as one object dropped | the next shrinker | still registered | no shrinker is asked on its behalf; it may drop its own [`Registration`](crate::Registration) |
//! | corruption handler ([`Config::corruption`](crate::Config::corruption)) | contained | the call that found it | the free is refused, as if the handler had returned | may use and destroy the cache |
//! | corruption handler of pages ([`PageConfig::corruption`](uslab_buddy::PageConfig::corruption)) | contained | the free of pages | the free is refused | may use the pages |
//! | deferred closure ([`Guard::defer`](crate::rcu::Guard)) | contained; passed on if `Guard::flush` of the collector is called directly | the collector's next batch | closures that the same thread deferred right behind it may be lost; [frees](crate::KmemCache::free_deferred) are not | may use and free to any cache |
//! | supplier ([`Supplier`](uslab_magazine::Supplier)) | passed on to the layer's call, when all other stacks are empty | the other CPUs and nodes | the rounds that it was handed are lost | may use and close the layer |
//! | memory of a table ([`Memory`](uslab_magazine::Memory)) | contained, as a refusal; passed on by `Table::new` | without the memory | unchanged | must not use the table, whose locks are held |
//! | closures of handles and pools (`make`, `keep`, growth of an arena) | passed on | nothing | the value is not in; what was kept or freed before stays so | `&mut` forbids it; an arena that grows panics, as its `RefCell` is borrowed |
//! | functions of C (`uslab.h`) | a C++ exception or a Rust panic aborts the process | nowhere | none | may use other caches; must not destroy their own |
//!
//! If a `Drop` (of a [`CacheBox`](crate::CacheBox) or a `Hive`) passes on a panic while its thread is already
//! unwinding, the process aborts, as everywhere in Rust. Under `panic = "abort"` any panic aborts the process.

use crate::geometry::GeometryError;
use core::fmt;
use uslab_buddy::PageError;

/// Reason why an allocation failed, including the limit that was reached. The caller may free memory and try again.
///
/// ```
/// use uslab::{AllocError, Gfp, KmemCache, Limit};
///
/// let inodes = KmemCache::builder("inode", 600).limit(Limit::Slabs(1)).build()?;
/// let refused = inodes.alloc_blocks(Gfp::KERNEL, 10_000).err();
/// assert_eq!(refused, Some(AllocError::CacheLimit { slabs: 1 }));
/// assert!(inodes.alloc_block(Gfp::KERNEL).is_ok()); // nothing was taken
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// The cache is at its limit of slabs, and has no free object.
    CacheLimit {
        /// The cache's limit, in slabs.
        slabs: u32,
    },
    /// The cache's slabs, plus the bytes that its objects [own outside their slots](crate::KmemCacheBuilder::holds),
    /// reach the limit in bytes, and no object is free.
    HeldLimit {
        /// The cache's limit, in bytes.
        bytes: usize,
    },
    /// The caches of the [account](crate::cache::Account) together reach the account's limit, and no object of these
    /// caches is free.
    AccountLimit {
        /// The account's limit, in bytes.
        bytes: usize,
    },
    /// The page allocator has no free block for another slab.
    Memory(uslab_buddy::AllocError),
    /// The system refused memory for the bitmap of another slab.
    SideTable,
    /// The requested size or count, or their product, exceeds what can ever be allocated.
    TooLarge,
    /// The system refused to map memory, or the [limit](uslab_buddy::PageConfig::limit) leaves no bytes for mappings.
    Refused {
        /// Number of bytes that were requested from the system.
        bytes: usize,
    },
    /// The [constructor](crate::KmemCacheBuilder::try_ctor) of an object failed.
    Constructor,
    /// The allocation failed because the cache was destroyed.
    Destroyed,
    /// The address to reallocate is not an object; this error was already reported as a corruption.
    NotAnObject,
    /// An injected failure (see [`faults`](crate::faults)).
    Injected,
}

impl AllocError {
    /// Returns `true` if a free by another user can remove the cause of the error.
    pub(crate) fn is_limit_error(self) -> bool {
        matches!(self, Self::CacheLimit { .. } | Self::HeldLimit { .. } | Self::AccountLimit { .. })
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheLimit { slabs } => write!(f, "the cache is at its limit of {slabs} slabs"),
            Self::HeldLimit { bytes } => {
                write!(
                    f,
                    "the cache, including memory that its objects hold, is at its limit of {bytes} bytes"
                )
            }
            Self::AccountLimit { bytes } => write!(f, "the account is at its limit of {bytes} bytes"),
            Self::Memory(error) => write!(f, "no pages for another slab: {error}"),
            Self::SideTable => f.write_str("no memory for the bitmap of another slab"),
            Self::TooLarge => f.write_str("the size is larger than the largest possible allocation"),
            Self::Refused { bytes } => {
                write!(f, "no memory for {bytes} more bytes: the system refused, or the limit is reached")
            }
            Self::Constructor => f.write_str("the constructor of an object failed"),
            Self::Destroyed => f.write_str("the cache was destroyed"),
            Self::NotAnObject => f.write_str("the address is not an object"),
            Self::Injected => f.write_str("fault injection refused the allocation"),
        }
    }
}
impl std::error::Error for AllocError {}

impl From<uslab_buddy::AllocError> for AllocError {
    fn from(error: uslab_buddy::AllocError) -> Self {
        Self::Memory(error)
    }
}

/// Reason why a cache could not be made.
///
/// ```
/// use uslab::{CacheError, KmemCache};
///
/// let refused = KmemCache::builder("inode cache", 600).build();
/// assert_eq!(refused.err(), Some(CacheError::Name)); // a blank ends a name in slabinfo
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheError {
    /// No slab can hold objects of the requested size and alignment.
    Geometry(GeometryError),
    /// The name is empty, or contains blanks, which readers of slabinfo would mistake for the end of the name.
    Name,
    /// The system refused address space for the tables of [checked frees](crate::Config::check_frees).
    Memory,
    /// A type-stable cache cannot use the subsystem of the process-wide malloc: the collector that frees the cache's
    /// slabs itself allocates memory.
    TypeStable,
    /// [Zero on free](crate::KmemCacheBuilder::zero_on_free) was requested for a cache whose objects stay
    /// constructed.
    ZeroOnFree,
    /// The account belongs to another subsystem.
    Account,
    /// The global subsystem failed to start.
    Start(StartError),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::Name => f.write_str("a cache name must not be empty or contain blanks"),
            Self::Memory => f.write_str("no address space for the cache's checked frees"),
            Self::ZeroOnFree => f.write_str("objects of a cache with a constructor cannot be zeroed on free"),
            Self::Account => f.write_str("the account and the cache belong to different subsystems"),
            Self::TypeStable => f.write_str("a type-stable cache cannot serve the malloc"),
            Self::Start(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for CacheError {}

impl From<GeometryError> for CacheError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}
impl From<StartError> for CacheError {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

/// Error of destroying a cache that has objects in use. The cache remains usable after the error.
///
/// ```
/// use uslab::{Busy, Gfp, KmemCache};
///
/// let inodes = KmemCache::builder("inode", 600).build()?;
/// let root = inodes.alloc_block(Gfp::KERNEL)?;
/// assert_eq!(inodes.destroy(), Err(Busy { live: 1, aliases: 0 }));
/// drop(root);
/// inodes.destroy()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Number of objects in use. If a destructor called `destroy`, the number of objects being destructed. The number
    /// is at least 1, unless the cache is shared.
    pub live: u64,
    /// Number of other users that share the cache (see [`KmemCacheBuilder::merge`](crate::KmemCacheBuilder::merge)).
    pub aliases: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects are in use", self.live)?;
        if self.aliases > 0 {
            write!(f, ", and {} other owners share the cache", self.aliases)?;
        }
        Ok(())
    }
}
impl std::error::Error for Busy {}

/// Reason why a subsystem could not start.
///
/// ```
/// use uslab::buddy::{PageConfig, PageError};
/// use uslab::magazine::Cpus;
/// use uslab::{Config, StartError, Subsystem};
///
/// let pages = PageConfig::with_nodes(Cpus::simulated(2, 1)?, vec![vec![]]); // a node without memory
/// let refused = Subsystem::new(Config::new(pages));
/// assert_eq!(refused.err(), Some(StartError::Pages(PageError::NoPages)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// The page allocator rejected the configuration, or got no address space.
    Pages(PageError),
    /// The system refused address space for the bitmaps of slabs with many objects, or for the table of huge memory.
    SideTable,
    /// The system refused address space for the tags of checked frees in the caches of kmalloc or
    /// of a malloc.
    Kmalloc,
    /// The current thread is already inside the start of the global subsystem.
    Starting,
    /// A global subsystem with another [`Config`](crate::Config) already exists.
    Started,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(error) => error.fmt(f),
            Self::SideTable => f.write_str("no address space for the side tables"),
            Self::Kmalloc => f.write_str("no address space for the checked frees of the size classes"),
            Self::Started => f.write_str("the global subsystem is already started"),
            Self::Starting => f.write_str("the global subsystem is being started by this thread"),
        }
    }
}
impl std::error::Error for StartError {}

impl From<PageError> for StartError {
    fn from(error: PageError) -> Self {
        Self::Pages(error)
    }
}
