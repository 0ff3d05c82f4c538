//! Registers threads for restartable sequences if the C library does not.
//!
//! Since version 2.35, glibc registers a `struct rseq` for every thread before the thread runs. Two symbols export the
//! location of this structure. Some distributions backported the rseq registration to older versions of glibc. The
//! module `registration` therefore tests for the symbols, and not for a version of glibc. The libc registers no threads
//! if it is musl or an older glibc, or with `GLIBC_TUNABLES=glibc.pthread.rseq=0`. If the libc registers no threads, a
//! thread's first miss registers a thread-local area of this module, and retries the operation once. Like the libc's
//! area, this area is at the same offset from the thread pointer in all threads. Sections therefore do not depend on
//! whether the libc or this crate registered the area.
//!
//! * **Thread exit**: a thread unregisters its area before its memory is unmapped. Unregistering is necessary, because
//!   the kernel writes to the area whenever it resumes the thread, and a detached musl thread unmaps its own stack. If
//!   a key destructor runs after the unregistration and frees an object, the free bypasses the stacks.
//! * **Another library registered first**: the kernel accepts one area per thread and refuses a second area. If the
//!   refused thread is the one that chooses the mechanism, the whole process uses the claimed mechanism. A thread that
//!   the kernel refuses later bypasses the stacks. Two copies of this crate in one program share a thread's area, so
//!   the second copy finds it registered.
//! * **Fork**: the child keeps the registration of the forking thread, because the kernel copies it. After `vfork`, the
//!   child shares its parent's memory, has no registration, and must not allocate. After `vfork`, a child must not use
//!   the C library's `struct rseq` either.
//! * **Signal handler**: a thread's first allocation should not happen in a signal handler. The first allocation
//!   registers the thread. If the handler interrupted a section that had not read the CPU number yet, this section
//!   would continue without being announced.

use crate::sync::Fixed;
use core::ffi::c_void;
use nix::libc;

/// The values of a thread's `cpu_id` before registration (`RSEQ_CPU_ID_UNINITIALIZED`) and after a failed registration
/// (`RSEQ_CPU_ID_REGISTRATION_FAILED`).
pub(super) const UNREGISTERED_CPU_ID: u32 = u32::MAX;
pub(super) const REFUSED: u32 = u32::MAX - 1;

/// Size and alignment of a `struct rseq` in bytes: the original values, which every kernel accepts.
pub(super) const SIZE: usize = 32;
/// Byte offset of the field `cpu_id`, the CPU number, in a `struct rseq`.
pub(super) const CPU_ID: usize = 4;
/// The signature that the kernel requires in front of each abort address.
const SIGNATURE: u32 = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00 };

/// The pthread key whose destructor unregisters a thread, plus one; 0 before the key exists.
static KEY: Fixed = Fixed::new(0);

fn rseq(area: *mut c_void, flags: libc::c_int) -> Result<(), nix::Error> {
    // SAFETY: the kernel checks the arguments. The caller keeps the area in place while it is registered.
    let answer = unsafe { libc::syscall(libc::SYS_rseq, area, SIZE, flags, SIGNATURE) };
    nix::Error::result(answer).map(drop)
}

/// Registers `area` as the `struct rseq` of this thread, until the thread ends. Returns `false` if the registration
/// failed. In this case the thread stays unregistered.
///
/// # Safety
/// The memory at `area` must be [`SIZE`] bytes of this thread that stay valid until the destructors of the thread's
/// pthread keys have run.
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

/// Returns the pthread key that unregisters a thread, and creates it if necessary. If two threads create a key
/// concurrently, one of the keys stays unused.
fn key() -> Option<libc::pthread_key_t> {
    if KEY.get() == 0 {
        let mut key = 0;
        // SAFETY: `key` is a valid place for the result. The destructor receives the value of the key, which
        // is the address of the thread's area.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0).then(|| KEY.set(key + 1))?;
    }
    Some(KEY.get() - 1)
}

/// Unregisters this thread, which then stays unregistered.
///
/// # Safety
/// The pointer `area` must satisfy the conditions of [`register`].
pub(super) unsafe extern "C" fn leave(area: *mut c_void) {
    const UNREGISTER_FLAG: libc::c_int = 1;
    // The call fails harmlessly if the area is not registered.
    let _ = rseq(area, UNREGISTER_FLAG);
    // SAFETY: the area is this thread's, by contract, and the kernel no longer writes to it.
    unsafe { area.byte_add(CPU_ID).cast::<u32>().write_volatile(REFUSED) };
}
