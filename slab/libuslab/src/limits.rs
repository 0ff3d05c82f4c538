//! `setrlimit` and `prlimit`, because of `RLIMIT_AS`.
//!
//! The kernel applies that limit to all mapped addresses of a process, used or not, and the pages' range is initially 64 GiB of
//! them. A program that sets a lower limit could map nothing more: no thread stack, no library, no memory above 4 MiB. And
//! smaller memory, which needs no further mapping, would not be limited at all. So setting the limit here unmaps the unused
//! part of the range: see [`Uslab::fit_address_limit`]. From then on pages get their addresses when they are committed, and
//! leave some for other uses.
//!
//! A limit that is set without these functions (by the bare system call, or by `prlimit` of another process) is not seen. The
//! start reads a limit that exists when the program starts.

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use nix::errno::Errno;
use nix::libc;
use uslab::Uslab;

/// `prlimit(2)`.
///
/// # Safety
/// `new` and `old` are null or point to limits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the pointers are null or valid, by this function's contract; on 64-bit machines the libc's limits are the
    // kernel's.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, new, old) } as c_int;
    // SAFETY: it only reads the pid.
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
/// `limit` points to a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: `limit` is valid, by this function's contract.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// As [`setrlimit`].
///
/// # Safety
/// As [`setrlimit`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: `limit` is valid, by this function's contract.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// As [`prlimit`].
///
/// # Safety
/// As [`prlimit`].
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
