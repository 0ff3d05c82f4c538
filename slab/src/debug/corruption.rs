//! Frees that cannot be right, memory that somebody wrote to who must not, and the one handler that hears of them.
//!
//! What is noticed, and when:
//!
//! | what | noticed, with checked frees | noticed, without | test |
//! |---|---|---|---|
//! | **foreign**: no object of any cache | at the free | at the free of kmalloc and malloc; else at the slab | `foreign_interior_and_wrong_cache_are_refused_at_the_free` `without_the_check_at_the_free_the_slab_refuses_what_is_not_its_own` `a_refused_free_is_counted_and_the_process_goes_on` |
//! | **interior**: an address inside an object | at the free | at the free of kmalloc and malloc; else at the slab | the same, and `a_free_inside_an_object_is_refused_where_its_frame_is_looked_at_anyway` |
//! | interior: behind the last object of a slab | at the free | at the slab | `foreign_interior_and_wrong_cache_are_refused_at_the_free` |
//! | **wrong cache**: an object of another cache | at the free | at the slab | the same |
//! | **double free** | at the free, of two threads at one moment, too | at the slab, or never | `a_double_free_is_seen_at_the_free_where_frees_are_checked` `a_double_free_is_seen_when_its_second_copy_reaches_the_slab` `of_threads_that_free_an_object_at_one_moment_one_is_right` |
//! | a double free of a block of pages, or above 4 MiB: foreign | at the free | at the free | `kmalloc_refuses_what_it_never_handed_out` `huge_memory_is_told_from_what_lies_in_it_and_beside` |
//! | a free to a destroyed cache: foreign | at the free | at the free of kmalloc and malloc | `a_destroyed_cache_hands_nothing_out_and_takes_nothing_back` |
//! | **wrong size**: a free with a size that is not the object's | at the free | never | `a_free_of_another_size_is_named` |
//! | **overflow**: a write behind an object | with [canaries](crate::Harden::canaries), at the free | never | `a_write_behind_an_object_is_named_at_its_free` |
//! | **write after free** | with [`zero_on_free`](crate::Harden::zero_on_free), when the object is handed out | never | `a_write_to_a_free_object_is_named_when_it_is_handed_out` |
//! | **no object**: `realloc` or the size of what is foreign or interior | at the call | at the call | `what_is_no_object_has_no_size_and_is_not_moved` |
//! | under `libuslab.so` | as here; ends the program | as malloc; ends the program | `a_wrong_free_is_named_and_ends_the_program` `without_checked_frees_what_is_no_object_ends_the_program` |
//!
//! With [`slab_debug`](crate::debug::flags), and not without:
//!
//! | what | flag | noticed | test |
//! |---|---|---|---|
//! | **red zone**: bytes before or behind an object | `Z` | at its free, at its next allocation, by [`validate`](crate::KmemCache::validate) | `what_is_written_around_an_object_is_named_and_repaired` |
//! | **poison**: bytes of a free object | `P` | at its next allocation, by `validate` | `what_is_written_to_a_free_object_is_named_and_repaired` |
//! | **padding**: bytes of a slab that are no object's | `Z`, `P` | when the slab goes back, by `validate` | `what_is_written_behind_the_objects_of_a_slab_is_named` |
//!
//! These are repaired when the handler has returned, and the allocation or free goes on. With `U` reports say who allocated the object and
//! who freed it. Of a refused free that is the object which the address lies in, of whatever cache. [`Corruption::report`] has all that is
//! known of it, and `{:#}` shows that.
//!
//! The [handler](Handler) decides what comes of it: the [default](abort) says it on standard error and ends the process.
//!
//! *Checked* are the frees of caches that ask for it ([`Config::check_frees`](crate::Config::check_frees),
//! [`KmemCacheBuilder::check_frees`](crate::KmemCacheBuilder::check_frees), `USLAB_OPTIONS=check=1`): each of their objects that is
//! out is known, a byte each. In builds without debug assertions they are off unless asked for. Then a double free is noticed only
//! when the object reaches its slab, by a bit that is clear already. That may be long after, and up to then **the object may be
//! handed out twice**. It is missed, or blamed on a later free, if the object was handed out again meanwhile. Nor is the size of
//! an object that is free already told from that of one in use.
//!
//! A free that does not name its cache (`Kmalloc`, `Malloc`) looks at the page's frame and at the cache that it names. Both say
//! at no cost in memory whether an object begins at the address. A free with a layout ([`Malloc::free_sized`](crate::Malloc),
//! and so `dealloc` of a `#[global_allocator]`) looks at no frame, unless frees are checked.
//!
//! A refused free changes nothing: the object, if it is one, is as it was. The handler runs with no lock held.

use super::lines::Lines;
use super::report::ObjectReport;
use core::fmt::{self, Write as _};

/// What is wrong with a free, or with an object.
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
    /// The object was free already.
    DoubleFree,
    /// The address is no object of any cache.
    Foreign,
    /// The address lies inside an object, or behind the last one.
    Interior,
    /// The object belongs to another cache.
    WrongCache,
    /// The size of an address was asked for that is no object of any cache.
    NotAnObject,
    /// Somebody wrote before or behind an object.
    RedZone,
    /// Somebody wrote to an object that was free.
    Poison,
    /// Somebody wrote to what no object of a slab uses.
    Padding,
    /// The size that it was freed with is not its own.
    WrongSize,
    /// What lies behind the object was written to.
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
            Self::NotAnObject => "size of an address that is no object",
            Self::RedZone => "red zone overwritten of object",
            Self::Poison => "use after free of object",
            Self::Padding => "padding overwritten of slab",
            Self::WrongSize => "free with a size that is not the object's",
            Self::Overflow => "write behind the end of an object",
            Self::WriteAfterFree => "write to an object that was free",
        })
    }
}

/// A refused free, or a damage.
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
    /// What is wrong.
    pub kind: CorruptionKind,
    /// The address that was freed, or of the object that is damaged.
    pub address: usize,
    /// The cache that it was freed to; `kmalloc` where any size class would have done.
    pub cache: &'a str,
    /// The cache that owns the address, if that is another one.
    pub owner: Option<&'a str>,
    /// Which object of its slab it is, if it is one.
    pub index: Option<usize>,
    /// What is known of the object, where its cache is [debugged](crate::debug::flags) with more than `F`.
    pub report: Option<&'a ObjectReport<'a>>,
}

impl fmt::Display for Corruption<'_> {
    /// A line; with `{:#}` the report, if there is one.
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

/// Called for every refused free and every damage, with no lock held. It may end the process. A panic ends the handler's call and
/// nothing else: see [panics](crate::error#panics).
pub type Handler = dyn Fn(&Corruption<'_>) + Send + Sync;

/// The default: says it on standard error and aborts, because what else the caller does wrong is unknown.
pub fn abort(corruption: &Corruption<'_>) {
    // No `eprintln!`: it panics when standard error is closed.
    let mut lines = Lines::new();
    let _ = writeln!(lines, "uslab: corruption: {corruption}");
    if corruption.report.is_some() {
        let _ = write!(lines, "{corruption:#}");
    }
    drop(lines);
    std::process::abort();
}
