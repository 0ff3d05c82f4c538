//! Registration of threads for restartable sequences, if the C library does not register them.
//!
//! Since 2.35, glibc registers a `struct rseq` for every thread before the thread runs, and exports its location in two
//! symbols. Distributions backported the registration of threads to older versions of glibc. This module tests for the
//! symbols, and never for a version of glibc. With musl, an older glibc, or `GLIBC_TUNABLES=glibc.pthread.rseq=0`, the
//! libc registers no threads. If the libc registers no threads, a thread's first miss registers an area of this module
//! and retries once. This module's area is at the same offset from the thread pointer in all threads, like the libc's
//! area. Sections need not know whether the libc or this module registered the area.
//!
//! * **A thread that ends** unregisters its area before the memory is unmapped. The kernel writes to a
//!   registered area whenever it resumes the thread, and a detached musl thread unmaps its stack. A free in a
//!   key destructor that runs after the unregistration bypasses the stacks.
//! * **Another library registered first**: the kernel accepts one area per thread and refuses a second area. If a
//!   refused thread decides the mechanism, the claimed slot serves the whole process. Any later refused thread bypasses
//!   the stacks. Two copies of this crate in one program share an area, and the second copy finds the area registered.
//! * **A fork** keeps the registration of the forking thread, because the kernel copies it. A child that
//!   shares its parent's memory (`vfork`) has no registration and may not allocate. After `vfork`, a child
//!   must not use the C library's own `struct rseq` either.
//! * **A signal handler** should not make a thread's first allocation. An allocation in a handler would register the
//!   thread. A section that was interrupted before it read the CPU number would then continue unannounced.

use crate::sync::Fixed;
use core::ffi::c_void;
use nix::libc;

/// A thread's `cpu_id` before registration and after a failed registration: `RSEQ_CPU_ID_UNINITIALIZED` and
/// `RSEQ_CPU_ID_REGISTRATION_FAILED`.
pub(super) const UNREGISTERED: u32 = u32::MAX;
pub(super) const REFUSED: u32 = u32::MAX - 1;

/// Size and alignment of a `struct rseq` in bytes: the minimum that every kernel accepts.
pub(super) const SIZE: usize = 32;
/// Byte offset of the CPU number in a `struct rseq`.
pub(super) const CPU_ID: usize = 4;
/// The signature word in front of each abort address.
const SIGNATURE: u32 = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };

/// The key whose destructor unregisters a thread, plus one; 0 before the key exists.
static KEY: Fixed = Fixed::new(0);

fn rseq(area: *mut c_void, flags: libc::c_int) -> Result<(), nix::Error> {
    // SAFETY: the kernel checks the arguments. The caller keeps the area in place while it is registered.
    let answer = unsafe { libc::syscall(libc::SYS_rseq, area, SIZE, flags, SIGNATURE) };
    nix::Error::result(answer).map(drop)
}

/// Registers this thread with `area` until the thread ends. Returns `false` if the thread can never be registered.
///
/// # Safety
/// `area` is [`SIZE`] bytes of this thread that stay in place until the destructors of the thread's keys have run.
#[cold]
pub(super) unsafe fn register(area: *mut c_void) -> bool {
    let registered = match rseq(area, 0) {
        // The kernel registers the area first: setting a key may allocate, and the allocation must not register the
        // thread again. SAFETY: `key` created the key.
        Ok(()) => key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, area) } == 0),
        // Another copy of this crate, or a signal handler, has just registered this area.
        Err(nix::Error::EBUSY) => return true,
        Err(_) => false,
    };
    if !registered {
        // SAFETY: `area` is this thread's area, by contract.
        unsafe { leave(area) };
    }
    registered
}

/// If the first calls of two threads overlap, each thread creates a key. If two threads create a key, one of
/// the keys stays unused.
fn key() -> Option<libc::pthread_key_t> {
    if KEY.get() == 0 {
        let mut key = 0;
        // SAFETY: `key` is a valid place for the result. The destructor receives the value of the key, which
        // is the address of the thread's area.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0).then(|| KEY.set(key + 1))?;
    }
    Some(KEY.get() - 1)
}

/// Unregisters this thread permanently.
///
/// # Safety
/// `area` must satisfy the conditions of [`register`].
pub(super) unsafe extern "C" fn leave(area: *mut c_void) {
    const UNREGISTER_FLAG: libc::c_int = 1;
    // The call fails harmlessly if the area is not registered.
    let _ = rseq(area, UNREGISTER_FLAG);
    // SAFETY: the area is this thread's, by contract, and the kernel no longer writes to it.
    unsafe { area.byte_add(CPU_ID).cast::<u32>().write_volatile(REFUSED) };
}
