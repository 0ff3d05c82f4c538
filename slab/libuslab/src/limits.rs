//! `setrlimit` and `prlimit`, because of `RLIMIT_AS`.
//!
//! The kernel holds that limit against all addresses that a process has mapped, used or not, and the pages' range is 64 GiB of
//! them at first. A program that sets itself a limit below could map nothing more: no thread's stack, no library, no memory above
//! 4 MiB. And as nothing more need be mapped for smaller memory, that would not be limited at all. So setting the limit here unmaps the
//! unused part of the range: see [`Uslab::fit_address_limit`]. From then on pages get their addresses when they are committed, and leave
//! some to others.
//!
//! A limit that is set past these functions (the bare system call, `prlimit` of another process) is not seen. One that is there
//! when the program starts is read by the start itself.

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
    // SAFETY: passed on; on 64-bit machines the libc's limits are the kernel's.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, new, old) } as c_int;
    // SAFETY: it only asks.
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
    // SAFETY: passed on.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// As [`setrlimit`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: passed on.
    unsafe { prlimit(0, resource, limit, null_mut()) }
}

/// As [`prlimit`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: passed on.
    unsafe { prlimit(process, resource, new, old) }
}
