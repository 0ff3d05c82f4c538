//! glibc's functions that describe or tune its malloc, implemented for this malloc: `mallinfo2(3)`,
//! `malloc_info(3)`, `malloc_stats(3)`, and `mallopt(3)`.
//!
//! glibc's own functions would describe the unused heap of glibc. The numbers have the meaning that glibc's manual
//! describes. Numbers about parts that this malloc does not have (fast bins, a top chunk) are 0.

use core::ffi::c_int;
use core::fmt::Write as _;
use nix::errno::Errno;
use nix::libc;
use std::io::Write as _;
use uslab::{HeapUsage, Info, Uslab};

/// The result of `mallinfo2`; with `c_int` numbers, the result of the older `mallinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MallInfo<N> {
    /// Number of bytes of committed pages.
    arena: N,
    /// Number of free objects.
    ordblks: N,
    smblks: N,
    /// Number of blocks above 4 MiB, each a separate mapping.
    hblks: N,
    /// Number of bytes of the blocks above 4 MiB.
    hblkhd: N,
    usmblks: N,
    fsmblks: N,
    /// Number of bytes of `arena` that are in use.
    uordblks: N,
    /// Number of bytes of `arena` that are not in use.
    fordblks: N,
    keepcost: N,
}

impl<N> MallInfo<N> {
    fn new(usage: &HeapUsage, number: impl Fn(usize) -> N) -> Self {
        Self {
            arena: number(usage.committed),
            ordblks: number(usage.free_objects),
            smblks: number(0),
            hblks: number(usage.huge_pieces),
            hblkhd: number(usage.huge),
            usmblks: number(0),
            fsmblks: number(0),
            uordblks: number(usage.used),
            fordblks: number(usage.committed.saturating_sub(usage.used)),
            keepcost: number(0),
        }
    }
}

/// Implements `mallinfo2(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> MallInfo<usize> {
    MallInfo::new(&Uslab.usage(), |number| number)
}

/// `mallinfo(3)`. A number that does not fit is replaced by the largest value.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> MallInfo<c_int> {
    MallInfo::new(&Uslab.usage(), |number| c_int::try_from(number).unwrap_or(c_int::MAX))
}

/// `malloc_stats(3)`, which prints the same text as glibc, on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let HeapUsage { committed, used, huge, huge_cached, .. } = Uslab.usage();
    let (mut text, all) = (String::new(), committed + huge + huge_cached);
    for (title, system, in_use) in [("Arena 0:", committed, used), ("Total (incl. mmap):", all, used + huge)]
    {
        let _ = writeln!(text, "{title}\nsystem bytes     = {system:10}\nin use bytes     = {in_use:10}");
    }
    // An error of the write to standard error cannot be reported.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// `malloc_info(3)`, which prints XML in glibc's format. For each size, `count` is the number of free objects of that
/// size.
///
/// # Safety
/// `to` must be an open `FILE` stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, to: *mut libc::FILE) -> c_int {
    if options != 0 {
        return Errno::EINVAL as c_int;
    }
    let text = format_usage_xml(&Uslab.usage(), Uslab.info().as_ref());
    // SAFETY: by this function's contract, `to` is an open stream, and the text has this many bytes.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), to) };
    if written == text.len() { 0 } else { -1 }
}

fn format_usage_xml(usage: &HeapUsage, info: Option<&Info>) -> String {
    let (mut sizes, mut free) = (String::new(), 0);
    for cache in info.iter().flat_map(|info| &info.caches) {
        let (count, size) = (cache.objects - cache.used.min(cache.objects), cache.slab_size);
        if count > 0 {
            free += count * size;
            let total = count * size;
            // Writing to a string does not fail.
            let _ = writeln!(
                sizes,
                "  <size from=\"{size}\" to=\"{size}\" total=\"{total}\" count=\"{count}\"/>"
            );
        }
    }
    let HeapUsage { committed, free_objects, huge_pieces, huge, .. } = *usage;
    let totals = format!(
        "<total type=\"fast\" count=\"0\" size=\"0\"/>\n\
         <total type=\"rest\" count=\"{free_objects}\" size=\"{free}\"/>\n"
    );
    let system = format!(
        "<system type=\"current\" size=\"{committed}\"/>\n\
         <system type=\"max\" size=\"{committed}\"/>\n\
         <aspace type=\"total\" size=\"{committed}\"/>\n\
         <aspace type=\"mprotect\" size=\"{committed}\"/>\n"
    );
    format!(
        "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n{sizes}</sizes>\n{totals}{system}</heap>\n{totals}\
         <total type=\"mmap\" count=\"{huge_pieces}\" size=\"{huge}\"/>\n{system}</malloc>\n"
    )
}

const M_MXFAST: c_int = 1;
const M_MMAP_THRESHOLD: c_int = -3;

/// `mallopt(3)`. Returns 1 for every parameter that glibc accepts, including unknown parameters, and 0 for
/// parameters that glibc refuses. `mallopt` changes nothing, because there are no bins, arenas or thresholds.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    let is_accepted = match parameter {
        M_MXFAST => (0..=80 * size_of::<usize>() as c_int / 4).contains(&value),
        M_MMAP_THRESHOLD => (0..=32 << 20).contains(&value),
        _ => true,
    };
    c_int::from(is_accepted)
}
