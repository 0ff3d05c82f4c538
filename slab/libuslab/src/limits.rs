//! Replaces `setrlimit` and `prlimit`, to notice a new limit on addresses (`RLIMIT_AS`).
//!
//! The kernel applies `RLIMIT_AS` to all mapped addresses of a process, even if they are unused. The allocator's range
//! of pages initially maps 64 GiB of addresses. A program that sets a lower limit could therefore map nothing more: no
//! thread stacks, no libraries, no blocks above 4 MiB. Smaller allocations need no further mapping, so the limit would
//! not apply to them. Setting the limit unmaps the unused part of the range: see [`Uslab::fit_address_limit`]. Pages
//! then get addresses only when they are committed, and some addresses stay free for other uses.
//!
//! The library does not notice a limit that is set in another way (by the bare system call, or by another process's
//! `prlimit`). When the allocator starts, it reads the limit that exists at that time.

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use nix::errno::Errno;
use nix::libc;
use uslab::Uslab;

/// `prlimit(2)`.
///
/// # Safety
/// `new` and `old` must be null or point to `rlimit` structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: by contract, the pointers are null or valid. On 64-bit machines, the C library's struct of a limit
    // is the same as the kernel's.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, new, old) } as c_int;
    // SAFETY: `getpid` only reads the pid.
    let is_own = process == 0 || process == unsafe { libc::getpid() };
    if result == 0 && is_own && !new.is_null() && resource == libc::RLIMIT_AS as c_uint {
        let before = Errno::last_raw();
        Uslab.fit_address_limit();
        Errno::set_raw(before);
    }
    result
}

/// `setrlimit(2)`.
///
/// # Safety
/// `limit` must point to an `rlimit` struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: `limit` is valid, by this function's contract.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// `setrlimit64`, which is the same as [`setrlimit`] on 64-bit machines.
///
/// # Safety
/// `limit` must point to an `rlimit64` struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: `limit` is valid, by this function's contract.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// `prlimit64`, which is the same as [`prlimit`] on 64-bit machines.
///
/// # Safety
/// The caller must fulfil the contract of [`prlimit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the pointers are null or valid, by this function's contract.
    unsafe { prlimit(process, resource, new, old) }
}
