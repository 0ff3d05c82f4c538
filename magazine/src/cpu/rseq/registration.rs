//! Registering threads where the C library does not.
//!
//! glibc registers a `struct rseq` for every thread before it runs, and says by two symbols where: 2.35 and later, and what
//! distributions brought to older ones. These symbols are asked, never a version. Where they are missing, or say that nothing is
//! registered (musl, an older glibc, `GLIBC_TUNABLES=glibc.pthread.rseq=0`), a thread's first miss registers an area of our own,
//! and tries once more.
//! It lies at one offset from the thread pointer in all threads, as the libc's does. So sections do not know whose it is.
//!
//! * **A thread that ends** gives its registration back before its memory goes. The kernel writes to the area whenever it
//!   resumes the thread, and a detached thread of musl unmaps its own stack. What the thread frees behind that, in
//!   destructors of later keys, goes round the stacks.
//! * **Another library was first**: the kernel has one area a thread and refuses a second one. In the thread that decides for the
//!   process, the claimed slot serves everybody. In any other thread, that thread goes round the stacks. Two copies of this
//!   crate in one program share an area, and the second one finds it registered.
//! * **A fork** keeps the registration of its thread: the kernel copies it. (What shares its parent's memory, `vfork`, has none,
//!   and may not allocate, as with the libc's.)
//! * **A signal's handler** should not be the first in its thread to allocate. It registers the thread, and the section that it
//!   interrupted, if it had not read its CPU yet, would go on without being announced.

use crate::sync::Fixed;
use core::ffi::c_void;
use nix::libc;

/// What a thread's `cpu_id` is before it is registered, and when it never will be: `RSEQ_CPU_ID_UNINITIALIZED` and
/// `RSEQ_CPU_ID_REGISTRATION_FAILED`.
pub(super) const UNREGISTERED: u32 = u32::MAX;
pub(super) const REFUSED: u32 = u32::MAX - 1;

/// Bytes of an area, and what it is aligned to: the least that any kernel takes.
pub(super) const SIZE: usize = 32;
/// Where in it the CPU's number stands.
pub(super) const CPU_ID: usize = 4;
/// What stands before each abort address.
const SIGNATURE: u32 = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };

/// One more than the key whose destructor gives a registration back; 0 before there is one.
static KEY: Fixed = Fixed::new(0);

fn rseq(area: *mut c_void, flags: libc::c_int) -> Result<(), nix::Error> {
    // SAFETY: the kernel checks what it is told; who calls this sees to the area.
    let answer = unsafe { libc::syscall(libc::SYS_rseq, area, SIZE, flags, SIGNATURE) };
    nix::Error::result(answer).map(drop)
}

/// Registers this thread with its `area`, until it ends; `false` if it cannot be, for good.
///
/// # Safety
/// `area` is [`SIZE`] bytes of this thread's own, which stay until its keys' destructors have run.
#[cold]
pub(super) unsafe fn register(area: *mut c_void) -> bool {
    let registered = match rseq(area, 0) {
        // First the kernel: to set a key may allocate, and then this thread is not to come here again.
        // SAFETY: a key of ours.
        Ok(()) => key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, area) } == 0),
        // This very area: by another copy of this crate, or by a signal's handler just now.
        Err(nix::Error::EBUSY) => return true,
        Err(_) => false,
    };
    if !registered {
        // SAFETY: passed on.
        unsafe { leave(area) };
    }
    registered
}

/// Two threads that come first at the same time make a key each. Either does; one of them stays without use.
fn key() -> Option<libc::pthread_key_t> {
    if KEY.get() == 0 {
        let mut key = 0;
        // SAFETY: the place for the key; the destructor gets what was set, the thread's area.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0).then(|| KEY.set(key + 1))?;
    }
    Some(KEY.get() - 1)
}

/// Gives this thread's registration back, for good.
///
/// # Safety
/// As [`register`].
pub(super) unsafe extern "C" fn leave(area: *mut c_void) {
    const UNREGISTER: libc::c_int = 1;
    // There may be none.
    let _ = rseq(area, UNREGISTER);
    // SAFETY: by contract; the kernel does not write to it any more.
    unsafe { area.byte_add(CPU_ID).cast::<u32>().write_volatile(REFUSED) };
}
