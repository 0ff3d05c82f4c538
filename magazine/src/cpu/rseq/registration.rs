//! Registering threads if the C library does not.
//!
//! glibc registers a `struct rseq` for every thread before it runs, and exports its location in two symbols:
//! since 2.35, and in older versions to which distributions backported it. The symbols decide, never a
//! version. If they are missing, or show that nothing is registered (musl, an older glibc,
//! `GLIBC_TUNABLES=glibc.pthread.rseq=0`), a thread's first miss registers an area of this module, and retries
//! once. The area is at the same offset from the thread pointer in all threads, as the libc's is. So sections
//! do not know whose area they use.
//!
//! * **A thread that ends** unregisters before its memory is unmapped: the kernel writes to the area whenever
//!   it resumes the thread, and a detached thread of musl unmaps its own stack. Frees of that thread after
//!   that, in destructors of later keys, bypass the stacks.
//! * **Another library was first**: the kernel has one area per thread and refuses a second one. In the thread
//!   that decides for the process, the claimed slot then serves the whole process. Any other such thread
//!   bypasses the stacks. Two copies of this crate in one program share an area, and the second one finds it
//!   registered.
//! * **A fork** keeps the registration of its thread: the kernel copies it. (A child that shares its parent's
//!   memory, by `vfork`, has no registration, and may not allocate, as with the libc's area.)
//! * **A signal handler** should not be the first in its thread to allocate. It registers the thread, and the
//!   section that it interrupted, if it had not read its CPU yet, would continue unannounced.

use crate::sync::Fixed;
use core::ffi::c_void;
use nix::libc;

/// A thread's `cpu_id` before it is registered, and if it never will be: `RSEQ_CPU_ID_UNINITIALIZED` and
/// `RSEQ_CPU_ID_REGISTRATION_FAILED`.
pub(super) const UNREGISTERED: u32 = u32::MAX;
pub(super) const REFUSED: u32 = u32::MAX - 1;

/// Size and alignment of an area in bytes: the least that any kernel takes.
pub(super) const SIZE: usize = 32;
/// Offset of the CPU's number in an area.
pub(super) const CPU_ID: usize = 4;
/// The word in front of each abort address.
const SIGNATURE: u32 = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };

/// One more than the key whose destructor unregisters a thread; 0 before the key exists.
static KEY: Fixed = Fixed::new(0);

fn rseq(area: *mut c_void, flags: libc::c_int) -> Result<(), nix::Error> {
    // SAFETY: the kernel checks its arguments; the caller ensures that the area stays while it is registered.
    let answer = unsafe { libc::syscall(libc::SYS_rseq, area, SIZE, flags, SIGNATURE) };
    nix::Error::result(answer).map(drop)
}

/// Registers this thread with its `area`, until it ends; `false` if it cannot be registered, ever.
///
/// # Safety
/// `area` is [`SIZE`] bytes of this thread, which stay until its keys' destructors have run.
#[cold]
pub(super) unsafe fn register(area: *mut c_void) -> bool {
    let registered = match rseq(area, 0) {
        // The kernel first: setting a key may allocate, and then this thread must not register again.
        // SAFETY: the key was created by `key`.
        Ok(()) => key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, area) } == 0),
        // This very area was registered by another copy of this crate, or by a signal handler just now.
        Err(nix::Error::EBUSY) => return true,
        Err(_) => false,
    };
    if !registered {
        // SAFETY: `area` is this thread's, by contract.
        unsafe { leave(area) };
    }
    registered
}

/// Two threads that are first at the same time make a key each. Either works; one of them stays unused.
fn key() -> Option<libc::pthread_key_t> {
    if KEY.get() == 0 {
        let mut key = 0;
        // SAFETY: a valid place for the key; the destructor gets the value that was set, the thread's area.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0).then(|| KEY.set(key + 1))?;
    }
    Some(KEY.get() - 1)
}

/// Unregisters this thread, for good.
///
/// # Safety
/// As [`register`].
pub(super) unsafe extern "C" fn leave(area: *mut c_void) {
    const UNREGISTER: libc::c_int = 1;
    // It may not be registered.
    let _ = rseq(area, UNREGISTER);
    // SAFETY: the area is this thread's, by contract; the kernel does not write to it any more.
    unsafe { area.byte_add(CPU_ID).cast::<u32>().write_volatile(REFUSED) };
}
