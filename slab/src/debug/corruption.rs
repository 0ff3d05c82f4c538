//! Invalid frees and overwritten memory, and the handler that receives all reports about them.
//!
//! This table lists errors that are always detected, and errors that only checked frees or other
//! options detect:
//!
//! | what | noticed, with checked frees | noticed, without | test |
//! |---|---|---|---|
//! | **foreign**: no object of any cache | at the free | at the free of kmalloc and malloc; else at the slab | `checked_free_refuses_addresses_outside_objects` `slab_refuses_foreign_objects_without_checked_frees` `free_of_an_address_outside_the_range_is_counted` |
//! | **interior**: an address inside an object | at the free | at the free of kmalloc and malloc; else at the slab | the same, and `malloc_refuses_interior_frees_without_checks` |
//! | interior: behind the last object of a slab | at the free | at the slab | `checked_free_refuses_addresses_outside_objects` |
//! | **wrong cache**: an object of another cache | at the free | at the slab | the same |
//! | **double free** | at the free, of two threads at one moment, too | at the slab, or never | `checked_free_detects_a_double_free` `double_free_is_detected_at_the_slab_free` `concurrent_double_frees_succeed_only_once` |
//! | a double free of a block of pages, or above 4 MiB: foreign | at the free | at the free | `kmalloc_refuses_foreign_addresses` `huge_memory_is_freed_only_by_its_start_address` |
//! | a free to a destroyed cache: foreign | at the free | at the free of kmalloc and malloc | `destroyed_cache_allocates_and_frees_nothing` |
//! | **wrong size**: a free with a wrong size | at the free | never | `free_with_a_wrong_size_is_reported` |
//! | **overflow**: a write behind an object | with [canaries](crate::Harden::canaries), at the free | never | `write_past_an_object_is_reported_at_its_free` |
//! | **write after free** | with [`zero_on_free`](crate::Harden::zero_on_free), when the object is handed out | never | `write_to_a_free_object_is_reported_on_reuse` |
//! | **no object**: `realloc` or the size of what is foreign or interior | at the call | at the call | `interior_address_cannot_be_reallocated` |
//! | under `libuslab.so` | as here; ends the program | as malloc; ends the program | `invalid_free_is_reported_and_aborts_the_program` `free_inside_an_object_aborts_even_without_checks` |
//!
//! Errors that only [`slab_debug`](crate::debug::flags) detects:
//!
//! | what | flag | noticed | test |
//! |---|---|---|---|
//! | **red zone**: bytes before or behind an object | `Z` | at its free, at its next allocation, by [`validate`](crate::KmemCache::validate) | `red_zone_write_is_reported_and_repaired` |
//! | **poison**: bytes of a free object | `P` | at its next allocation, by `validate` | `poisoned_object_write_is_reported_and_repaired` |
//! | **padding**: bytes of a slab outside of objects | `Z`, `P` | when the slab is freed, by `validate` | `write_after_the_last_slab_object_is_reported` |
//!
//! When the handler returns, overwritten debug bytes are repaired, and the interrupted allocation or free continues.
//! With the flag `U`, a report names the last allocation and the last free of the object. The report of a refused free
//! describes the object that contains the address, even if it belongs to another cache. [`Corruption::report`] contains
//! everything known about the object; the format `{:#}` shows the report.
//!
//! The [handler](Handler) decides what happens next: the [default](abort) prints the report to standard error and
//! aborts the process.
//!
//! *Checked frees* keep one byte per object that records if the object is in use.
//! [`Config::check_frees`](crate::Config::check_frees),
//! [`KmemCacheBuilder::check_frees`](crate::KmemCacheBuilder::check_frees) and `USLAB_OPTIONS=check=1` enable them.
//! Checked frees are off by default in builds without debug assertions. Without checked frees, a double free is
//! detected only when the object reaches its slab, whose bitmap already marks the object as free. The object may reach
//! its slab much later, and until then **it may be allocated twice**. If the object was allocated again between its two
//! frees, the double free is missed, or a later free is reported instead. Without checked frees, a request for the size
//! of a free object is not detected either.
//!
//! A free that does not name its cache (`Kmalloc`, `Malloc`) reads the page's frame and the cache that the frame names.
//! The frame of a page and the cache that it names suffice to decide whether an object begins at an address. A free
//! with a layout reads no frame unless frees are checked. [`Malloc::free_sized`](crate::Malloc) is a free with a
//! layout, and so is `dealloc` of a `#[global_allocator]`.
//!
//! A refused free changes nothing, even if the address is inside an object. No lock is held while the handler runs.

use super::lines::Lines;
use super::report::ObjectReport;
use core::fmt::{self, Write as _};

/// Kind of an invalid free, or of damage to an object.
///
/// ```
/// use uslab::CorruptionKind;
///
/// // A handler may count double frees, and end the process for all else.
/// let ends_process = |kind| kind != CorruptionKind::DoubleFree;
/// assert!(ends_process(CorruptionKind::WrongCache) && !ends_process(CorruptionKind::DoubleFree));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// The freed object was already free.
    DoubleFree,
    /// The address belongs to no object of any cache.
    Foreign,
    /// The address is inside an object, or past the last object of a slab.
    Interior,
    /// The object does not belong to the cache to which it was freed.
    WrongCache,
    /// The caller requested the object size at an address that belongs to no object of any cache.
    NotAnObject,
    /// The bytes before or after an object were overwritten.
    RedZone,
    /// A free object was overwritten.
    Poison,
    /// The padding of a slab was overwritten.
    Padding,
    /// The size passed to the free is not the object's size.
    WrongSize,
    /// The bytes after an object's requested size were overwritten.
    Overflow,
    /// The object was written to while it was free.
    WriteAfterFree,
}

impl fmt::Display for CorruptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DoubleFree => "double free",
            Self::Foreign => "free of an address that no cache owns",
            Self::Interior => "free of an address inside an object",
            Self::WrongCache => "free to the wrong cache",
            Self::NotAnObject => "size query for an address that is not an object",
            Self::RedZone => "overwritten red zone of object",
            Self::Poison => "use after free of object",
            Self::Padding => "overwritten padding of slab",
            Self::WrongSize => "free with a wrong size",
            Self::Overflow => "write past the end of an object",
            Self::WriteAfterFree => "write to a free object",
        })
    }
}

/// A refused free, or damage to an object or a slab.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use uslab::{Config, Corruption, Gfp, KmemCache, Subsystem};
///
/// let (report, reports) = mpsc::channel();
/// let handler = move |corruption: &Corruption<'_>| _ = report.send(corruption.to_string());
/// let config = Config { check_frees: true, corruption: Arc::new(handler), ..Config::default() };
/// let subsystem = Subsystem::new(config)?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// let inode = inodes.alloc(Gfp::KERNEL)?;
/// // SAFETY: allocated above from this cache; its frees are checked, and the second one is refused.
/// unsafe {
///     inodes.free(inode);
///     inodes.free(inode);
/// }
/// assert!(reports.try_recv()?.starts_with("cache inode: double free 0x"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption<'a> {
    /// What the check found, for example a double free.
    pub kind: CorruptionKind,
    /// Address that the caller freed, or address of the damaged object or slab.
    pub address: usize,
    /// Name of the cache to which the object was freed, or `kmalloc` for any size class.
    pub cache: &'a str,
    /// Name of the cache that owns the address, if it differs from the cache to which the object
    /// was freed.
    pub owner: Option<&'a str>,
    /// Index of the object in its slab; `None` if no object is at the address.
    pub index: Option<usize>,
    /// Description of the object, if its cache has [debug flags](crate::debug::flags) other than `F`.
    pub report: Option<&'a ObjectReport<'a>>,
}

impl fmt::Display for Corruption<'_> {
    /// Writes one line. The format `{:#}` appends the report, if any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(report) = self.report
            && f.alternate()
        {
            return report.write(f, self);
        }
        write!(f, "cache {}: {} {:#x}", self.cache, self.kind, self.address)?;
        if let Some(owner) = self.owner {
            write!(f, ", which belongs to cache {owner}")?;
        }
        if let Some(index) = self.index {
            write!(f, " (object {index} of its slab)")?;
        }
        Ok(())
    }
}

/// Handler that is called for every refused free and for all damage, with no lock held. A handler may end the process.
/// A panic ends only the handler's call (see [panics](crate::error#panics)), not the process.
pub type Handler = dyn Fn(&Corruption<'_>) + Send + Sync;

/// Prints the report to standard error and aborts the process, because the program may have further, undetected errors.
pub fn abort(corruption: &Corruption<'_>) {
    // This code does not use `eprintln!`, which panics if standard error is closed.
    let mut lines = Lines::new();
    let _ = writeln!(lines, "uslab: corruption: {corruption}");
    if corruption.report.is_some() {
        let _ = write!(lines, "{corruption:#}");
    }
    drop(lines);
    std::process::abort();
}
