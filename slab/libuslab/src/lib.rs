//! `libuslab.so` provides the C library's malloc interface on top of [`Uslab`], for preloading.
//!
//! ```console
//! $ cargo build --release -p libuslab
//! $ LD_PRELOAD=target/release/libuslab.so USLAB_OPTIONS=stats=1 sqlite3 :memory: 'select 1'
//! ```
//!
//! The library replaces every function of the C library that allocates, frees, measures or describes memory. A program
//! therefore never passes memory of the C library's malloc to this library. The functions behave as glibc's manual
//! describes. If glibc versions differ, the functions behave as most programs expect. For example, `aligned_alloc`
//! accepts any alignment, as in glibc up to 2.37, and `realloc` to size 0 frees the memory and returns null. Memory is
//! aligned to 16 bytes, and `malloc(0)` returns a unique pointer. The library replaces `dlopen` because of the flag
//! `RTLD_DEEPBIND` (see [`loader`]).
//!
//! # What ends the program
//!
//! | call | with `USLAB_OPTIONS=harden=1` | with `check=1` | without |
//! |---|---|---|---|
//! | `free`, `realloc` or `malloc_usable_size` of an address that is foreign, or inside an object | yes | yes | yes |
//! | a second `free` of a block above 32 KiB | yes | yes | yes, unless the address was handed out again |
//! | a second `free` of a smaller object | yes | yes | if this CPU has freed nothing of that size in between; else when the object is flushed from the CPUs' magazines to its slab: until then the next two allocations may get the same address |
//! | `free_sized` or a sized `delete` of another size | yes | yes | no |
//! | `realloc` of a small object that is free | yes | at the free that follows from it | as a second `free`, if it moves |
//! | `malloc_usable_size` of a small object that is free | yes | no | no |
//! | writing behind an object | at its free | with `slab_debug=Z` | with `slab_debug=Z` |
//! | writing to an object that is free | at its next allocation | with `slab_debug=P` | with `slab_debug=P` |
//! | accessing the result of `malloc(0)` | yes | no | no |
//!
//! By default, the library samples one allocation in 500,000 for the guard. Any misuse of a sampled allocation ends the
//! program immediately, and the report shows the call stacks of the allocation and its free. The option `guard=N` sets
//! another sampling interval, and `guard=0` disables sampling.
//!
//! If the library finds an error, the first line on standard error names the function and the address (see
//! [`corruption`](uslab::corruption)).
//!
//! The library also contains C++'s `new` and `delete` (see [`cplusplus`]).
//!
//! Object caches for C are in `uslab.h` and [`cache`]. `libuslab-cache` provides these caches without the malloc, from
//! the same source. Options make the library write its statistics on a signal ([`dump`]), or record each call
//! ([`record`]).
//!
//! A program that finds the symbol `uslab_version` runs with `libuslab` or `libuslab-cache`.

#[cfg(any(uslab_heap, not(target_os = "linux")))]
compile_error!("libuslab needs Linux and mapped pages: a malloc cannot get its memory from malloc");

pub mod cache;
mod callbacks;
pub mod cplusplus;
pub mod dump;
mod home;
#[cfg(target_env = "gnu")]
pub mod limits;
#[cfg(target_env = "gnu")]
pub mod loader;
pub mod record;
pub mod statistics;

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use nix::errno::Errno;
use uslab::malloc::MAX_ALIGN;
use uslab::{Gfp, Uslab};

/// The global allocator of this library's own code, whose functions are not inlined. If [`Uslab`] were inlined, its
/// code would be in each of the thousand places that drop a box. The loader would then relocate the descriptors of all
/// inlined restartable sequences, at a cost of 44 KiB per process and a tenth of its start time.
struct OutOfLineAllocator;

#[global_allocator]
static ALLOCATOR: OutOfLineAllocator = OutOfLineAllocator;

// SAFETY: `Uslab` fulfils the contract.
unsafe impl GlobalAlloc for OutOfLineAllocator {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty, by the contract of `alloc`.
        unsafe { Uslab.alloc(layout) }
    }
    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty, by the contract of `alloc_zeroed`.
        unsafe { Uslab.alloc_zeroed(layout) }
    }
    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `Uslab` allocated the memory with this layout, by the contract of `dealloc`.
        unsafe { Uslab.dealloc(memory, layout) }
    }
    #[inline(never)]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `Uslab` allocated the memory with this layout, by the contract of `realloc`.
        unsafe { Uslab.realloc(memory, layout, size) }
    }
}

/// Size of a page in bytes, for functions that align to whole pages.
const PAGE: usize = 4096;

/// Aligns the calling function to a cache line, so that none of its conditional jumps crosses or touches the end of a
/// 32-byte block. Intel's processors from Skylake to Cascade Lake do not cache the decoded form of a jump that crosses
/// or touches the end of a 32-byte block ("Mitigations for Jump Conditional Code Erratum", 2019). Without this
/// alignment, batches of allocations take 5 % longer.
#[inline(always)]
pub(crate) fn align_to_cache_line() {
    // SAFETY: the directive adds no instruction, or `nop`s if the compiler has put instructions before it.
    unsafe { core::arch::asm!(".p2align 6", options(nomem, nostack, preserves_flags)) };
}

/// Allocates memory. Each call returns a unique pointer, even for size 0. Returns null and sets `ENOMEM` if memory is
/// short.
#[inline(always)]
fn allocate(size: usize, align: usize, gfp: Gfp) -> *mut c_void {
    match Uslab.allocate_fast(size, align) {
        Some(memory) => {
            if gfp.contains(Gfp::ZERO) {
                // SAFETY: the memory has `size` bytes, and is not shared yet.
                unsafe { memory.write_bytes(0, size) };
            }
            memory.as_ptr().cast()
        }
        None => allocate_slow_path(size, align, gfp),
    }
}
#[cold]
#[inline(never)]
fn allocate_slow_path(size: usize, align: usize, gfp: Gfp) -> *mut c_void {
    let layout = Layout::from_size_align(size, align).ok();
    let memory = layout.map_or(null_mut(), |layout| Uslab.allocate_after_miss(layout, gfp).cast());
    record::record_alloc(memory, size, align);
    if memory.is_null() { no_memory() } else { memory }
}

#[cold]
pub(crate) fn no_memory() -> *mut c_void {
    Errno::ENOMEM.set();
    null_mut()
}
#[cold]
fn invalid() -> *mut c_void {
    Errno::EINVAL.set();
    null_mut()
}

/// Implements `malloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    align_to_cache_line();
    match Uslab.allocate_fast(size, MAX_ALIGN) {
        Some(memory) => memory.as_ptr().cast(),
        None => malloc_slow(size),
    }
}
#[cold]
#[inline(never)]
extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    match Uslab.allocate_after_fast_miss(size, MAX_ALIGN) {
        Some(memory) => memory.as_ptr().cast(),
        None => allocate_slow_path(size, MAX_ALIGN, Gfp::KERNEL),
    }
}

/// Implements `calloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    count.checked_mul(size).map_or_else(no_memory, |bytes| allocate(bytes, MAX_ALIGN, Gfp::ZERO))
}

/// `free(3)`, which preserves `errno`.
///
/// # Safety
/// `memory` must be null or come from this library, and the caller must no longer use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    align_to_cache_line();
    // SAFETY: the memory is null or belongs to this library and is no longer used, by this function's contract.
    unsafe {
        if !Uslab.free_fast(memory.cast()) {
            free_slow(memory);
        }
    }
}
/// The slow path of `free`, which may make system calls.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(memory: *mut c_void) {
    let Some(memory) = NonNull::new(memory.cast()) else { return };
    // SAFETY: `errno` belongs to this thread, and its address does not change. By contract, the freed memory is
    // no longer used.
    unsafe {
        if Uslab.free_after_fast_miss(memory.as_ptr()) {
            return;
        }
        let errno = nix::libc::__errno_location();
        let before = errno.read();
        record::record_free(memory);
        Uslab.free_slow(memory);
        errno.write(before);
    }
}

/// C23's `free_sized`. If frees are checked, the function verifies the size. If frees are not checked, the function
/// ignores the size, because memory that `realloc` kept in place may have another size.
///
/// # Safety
/// The caller must fulfil the contract of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, size: usize) {
    // SAFETY: the memory is null or belongs to this library and is no longer used, by this function's contract.
    unsafe { free_aligned_sized(memory, MAX_ALIGN, size) };
}
/// Returns `false` if the memory is known to have a size other than `size`. If the size differs, `has_size` ends the
/// program, unless the memory is null.
#[cold]
#[inline(never)]
fn has_size(memory: *mut c_void, size: usize, align: usize) -> bool {
    NonNull::new(memory.cast()).is_none_or(|memory| Uslab.has_size(memory, size, align))
}

/// C23's `free_aligned_sized`.
///
/// # Safety
/// The caller must fulfil the contract of [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, align: usize, size: usize) {
    // SAFETY: the memory is null or belongs to this library and is no longer used, by this function's contract.
    unsafe {
        // With checked frees, `free_fast` misses. The smallest alignment is `MAX_ALIGN`.
        if !Uslab.free_fast(memory.cast()) && has_size(memory, size, align.max(MAX_ALIGN)) {
            free_slow(memory);
        }
    }
}

/// `realloc(3)`.
///
/// # Safety
/// If the call succeeds, `memory` counts as freed, so the contract of [`free`] applies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(memory.cast()) else { return malloc(size) };
    if size == 0 {
        // SAFETY: the memory belongs to this library and is no longer used, by this function's contract.
        unsafe { free(memory) };
        return null_mut();
    }
    // SAFETY: the memory belongs to this library, and is no longer used after a success, by this function's contract.
    let moved = unsafe {
        match Uslab.record() {
            None => Uslab.reallocate(old, size),
            Some(_) => record::reallocate(old, size),
        }
    };
    moved.map_or_else(|_| no_memory(), |memory| memory.as_ptr().cast())
}

/// `reallocarray(3)`.
///
/// # Safety
/// The caller must fulfil the contract of [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the memory is null or belongs to this library, and is no longer used after a success, by contract.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => no_memory(),
    }
}

/// `posix_memalign(3)`, which preserves `errno` and returns the error.
///
/// # Safety
/// `out` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return Errno::EINVAL as c_int;
    }
    let before = Errno::last_raw();
    let memory = allocate(size, align.max(MAX_ALIGN), Gfp::KERNEL);
    Errno::set_raw(before);
    if memory.is_null() {
        return Errno::ENOMEM as c_int;
    }
    // SAFETY: `out` is writable, by this function's contract.
    unsafe { out.write(memory) };
    0
}

/// `aligned_alloc(3)` as in glibc up to 2.37, in which it is the same as [`memalign`]. From version 2.38 on, glibc
/// rejects an alignment that is not a power of two. Programs built for either glibc version work with this library.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// `memalign(3)`, which rounds `align` up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let align = align.checked_next_power_of_two();
    align.map_or_else(invalid, |align| allocate(size, align.max(MAX_ALIGN), Gfp::KERNEL))
}

/// Implements `valloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate(size, PAGE, Gfp::KERNEL)
}

/// `pvalloc(3)`, which rounds the size up to whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    size.max(1).checked_next_multiple_of(PAGE).map_or_else(no_memory, |bytes| valloc(bytes))
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// `memory` must be null or come from this library, and must not be freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    // SAFETY: the memory belongs to this library and is not freed, by this function's contract.
    NonNull::new(memory.cast()).map_or(0, |memory| unsafe { Uslab.usable_size(memory) })
}

/// Number of bytes that `malloc_trim` ignores: untouched pages that CPUs took in batches for a few small blocks.
const IGNORED_TRIM_BYTES: usize = 1 << 20;

/// `malloc_trim(3)`, which decommits all unused memory. Returns 1 if more than [`IGNORED_TRIM_BYTES`] bytes were
/// decommitted. The second of two consecutive calls of `malloc_trim` returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    c_int::from(Uslab.release() > IGNORED_TRIM_BYTES)
}
