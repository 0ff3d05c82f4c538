//! `libuslab.so`: the malloc of a C library on [`Uslab`], for programs that are started with it.
//!
//! ```console
//! $ cargo build --release -p libuslab
//! $ LD_PRELOAD=target/release/libuslab.so USLAB_OPTIONS=stats=1 sqlite3 :memory: 'select 1'
//! ```
//!
//! All functions of the C library that hand out memory, or take, measure or describe it, are here, so that none of its own
//! pointers comes by; what they mean is as in glibc's manual. Where versions differ, it is what serves most programs:
//! `aligned_alloc` takes any alignment, as up to 2.37, and `realloc` to nothing frees and returns null. Memory is aligned to 16
//! bytes; `malloc(0)` is a pointer like any other. `dlopen` is here because of `RTLD_DEEPBIND`: see [`loader`].
//!
//! # What ends the program
//!
//! | call | with `USLAB_OPTIONS=harden=1` | with `check=1` | without |
//! |---|---|---|---|
//! | `free`, `realloc` or `malloc_usable_size` of an address that is nobody's, or inside an object | yes | yes | yes |
//! | a second `free` of a block above 32 KiB | yes | yes | yes, unless the address was handed out again |
//! | a second `free` of a smaller object | yes | yes | when this CPU has freed nothing of that size in between; else when the object leaves the CPUs' magazines for its slab: up to then the next two allocations may get the same address |
//! | `free_sized` or a sized `delete` of another size | yes | yes | no |
//! | `realloc` of a small object that is free | yes | at the free that follows from it | as a second `free`, if it moves |
//! | `malloc_usable_size` of a small object that is free | yes | no | no |
//! | writing behind an object | at its free | with `slab_debug=Z` | with `slab_debug=Z` |
//! | writing to an object that is free | when it is handed out | with `slab_debug=P` | with `slab_debug=P` |
//! | touching what `malloc(0)` gave | yes | no | no |
//!
//! One allocation in 500,000 is sampled: whatever is done wrong with that ends the program at once, and is told with the call stacks
//! of its allocation and its free. `guard=N` says another number, and `guard=0` none.
//!
//! The first line on standard error says what was called and with which address: see
//! [`corruption`](uslab::corruption).
//!
//! C++'s `new` and `delete` are here, too: see [`cplusplus`].
//!
//! Object caches for C are in `uslab.h`, and [`cache`]; `libuslab-cache` has them without a malloc, from the same source. If it is told to, it writes its numbers on a signal ([`dump`]), and
//! records each call ([`record`]).
//!
//! `uslab_version` is there to be found: a program that finds it runs on one of the two libraries.

#[cfg(any(uslab_heap, not(target_os = "linux")))]
compile_error!(
    "a library to preload needs Linux, and pages that are mapped: its memory cannot come from the malloc that it is"
);

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

/// The library's own global allocator, out of line. Inlined, [`Uslab`] would be in each of its thousand places that drop a box, and the
/// loader would relocate the descriptors of all these restartable sequences: 44 KiB of each process, and a tenth of its start.
struct OutOfLine;

#[global_allocator]
static ALLOCATOR: OutOfLine = OutOfLine;

// SAFETY: that of `Uslab`.
unsafe impl GlobalAlloc for OutOfLine {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has bytes, as it has for `alloc`.
        unsafe { Uslab.alloc(layout) }
    }
    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has bytes, as it has for `alloc_zeroed`.
        unsafe { Uslab.alloc_zeroed(layout) }
    }
    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory is of `Uslab`, with this layout, as every function here hands out.
        unsafe { Uslab.dealloc(memory, layout) }
    }
    #[inline(never)]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory is of `Uslab`, with this layout, as every function here hands out.
        unsafe { Uslab.realloc(memory, layout, size) }
    }
}

/// Bytes of a page, for the functions that align to one.
const PAGE: usize = 4096;

/// Aligns the calling function to a cache line. For functions whose conditional jumps then neither cross nor end a block of 32 bytes:
/// Intel's processors from Skylake to Cascade Lake do not cache the decoded form of such jumps ("Mitigations for Jump Conditional Code
/// Erratum", 2019), which cost batches 5 %.
#[inline(always)]
pub(crate) fn at_a_line() {
    // SAFETY: no instruction, or `nop`s if the compiler has put instructions before it.
    unsafe { core::arch::asm!(".p2align 6", options(nomem, nostack, preserves_flags)) };
}

/// Every pointer is another one, of no bytes, too. Null, and `ENOMEM`, if there is none.
#[inline(always)]
fn allocate(size: usize, align: usize, gfp: Gfp) -> *mut c_void {
    match Uslab.allocate_fast(size, align) {
        Some(memory) => {
            if gfp.contains(Gfp::ZERO) {
                // SAFETY: so many bytes are the caller's from now on.
                unsafe { memory.write_bytes(0, size) };
            }
            memory.as_ptr().cast()
        }
        None => allocate_slow(size, align, gfp),
    }
}
#[cold]
#[inline(never)]
fn allocate_slow(size: usize, align: usize, gfp: Gfp) -> *mut c_void {
    let layout = Layout::from_size_align(size, align).ok();
    let memory = layout.map_or(null_mut(), |layout| Uslab.allocate_missed(layout, gfp).cast());
    record::allocated(memory, size, align);
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

/// `malloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    at_a_line();
    match Uslab.allocate_fast(size, MAX_ALIGN) {
        Some(memory) => memory.as_ptr().cast(),
        None => malloc_slow(size),
    }
}
#[cold]
#[inline(never)]
extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    match Uslab.allocate_next(size, MAX_ALIGN) {
        Some(memory) => memory.as_ptr().cast(),
        None => allocate_slow(size, MAX_ALIGN, Gfp::KERNEL),
    }
}

/// `calloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    count.checked_mul(size).map_or_else(no_memory, |bytes| allocate(bytes, MAX_ALIGN, Gfp::ZERO))
}

/// `free(3)`: `errno` stays.
///
/// # Safety
/// `memory` is null, or came from this library and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    at_a_line();
    // SAFETY: passed on.
    unsafe {
        if !Uslab.free_fast(memory.cast()) {
            free_slow(memory);
        }
    }
}
/// What may ask the system for something.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(memory: *mut c_void) {
    let Some(memory) = NonNull::new(memory.cast()) else { return };
    // SAFETY: the thread's own word, which stays where it is; passed on.
    unsafe {
        if Uslab.free_next(memory.as_ptr()) {
            return;
        }
        let errno = nix::libc::__errno_location();
        let before = errno.read();
        record::freed(memory);
        Uslab.free_slow(memory);
        errno.write(before);
    }
}

/// C23's `free_sized`. The size is looked at where frees are checked; it is of no use otherwise: what `realloc` left where it was is
/// of another one.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, size: usize) {
    // SAFETY: passed on.
    unsafe { free_aligned_sized(memory, MAX_ALIGN, size) };
}
/// Whether memory was allocated for this size, as far as it is known; if not, the program ends, unless it is null.
#[cold]
#[inline(never)]
fn has_size(memory: *mut c_void, size: usize, align: usize) -> bool {
    NonNull::new(memory.cast()).is_none_or(|memory| Uslab.has_size(memory, size, align))
}

/// C23's `free_aligned_sized`.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, align: usize, size: usize) {
    // SAFETY: passed on.
    unsafe {
        // Where frees are checked this misses. No memory is aligned to less.
        if !Uslab.free_fast(memory.cast()) && has_size(memory, size, align.max(MAX_ALIGN)) {
            free_slow(memory);
        }
    }
}

/// `realloc(3)`.
///
/// # Safety
/// As [`free`], after a success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(memory.cast()) else { return malloc(size) };
    if size == 0 {
        // SAFETY: passed on.
        unsafe { free(memory) };
        return null_mut();
    }
    // SAFETY: passed on.
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
/// As [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => no_memory(),
    }
}

/// `posix_memalign(3)`: `errno` stays, what is wrong is returned.
///
/// # Safety
/// `out` may be written to.
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
    // SAFETY: by contract.
    unsafe { out.write(memory) };
    0
}

/// `aligned_alloc(3)`, as glibc up to 2.37 has it: [`memalign`]. From 2.38 on it refuses an alignment that is no power of
/// two; a program that was made for either runs here.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// `memalign(3)`: the next power of two, if `align` is none.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let align = align.checked_next_power_of_two();
    align.map_or_else(invalid, |align| allocate(size, align.max(MAX_ALIGN), Gfp::KERNEL))
}

/// `valloc(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate(size, PAGE, Gfp::KERNEL)
}

/// `pvalloc(3)`: whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    size.max(1).checked_next_multiple_of(PAGE).map_or_else(no_memory, |bytes| valloc(bytes))
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// `memory` is null, or came from this library and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    // SAFETY: passed on.
    NonNull::new(memory.cast()).map_or(0, |memory| unsafe { Uslab.usable_size(memory) })
}

/// Bytes that `malloc_trim` does not count: pages that CPUs took in batches for a few small blocks, and that nobody wrote to.
const FEW: usize = 1 << 20;

/// `malloc_trim(3)`: gives what is not in use back to the system. 1 if that was more than [`FEW`]: so of two calls in a row the second
/// returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    c_int::from(Uslab.release() > FEW)
}
