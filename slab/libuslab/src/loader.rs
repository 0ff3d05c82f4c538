//! A replacement of `dlopen` that ignores the flag `RTLD_DEEPBIND`.
//!
//! A library opened with `RTLD_DEEPBIND` searches its own dependencies first, so it finds the `malloc` and `free` of
//! the C library instead of this library's. One allocator would then free memory of another allocator, which ends the
//! program. PHP opens its extensions with `RTLD_DEEPBIND`. The `dlopen` of this library clears the flag, so that the
//! opened library uses the same allocator as all other libraries. Sanitizers also refuse libraries opened with
//! `RTLD_DEEPBIND`.
//!
//! The dynamic loader uses the caller's address to find the caller's `RUNPATH` and namespace. This library's `dlopen`
//! jumps to the C library's function instead of calling it, so that the caller's return address stays in place.

use core::ffi::{CStr, c_char, c_int, c_void};
use nix::libc;
use uslab_magazine::sync::AtomicPtr;
use uslab_magazine::sync::Ordering::Relaxed;

/// Address of the C library's `dlopen`; null until it was looked up.
static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks up the C library's `dlopen`. The C library is a dependency of this library, so its `dlopen` exists.
extern "C" fn find_dlopen() -> *mut c_void {
    const DLOPEN_NAME: &CStr = c"dlopen";
    // SAFETY: the name ends in a NUL, and the search begins after this library.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, DLOPEN_NAME.as_ptr()) };
    if real.is_null() {
        std::process::abort();
    }
    // Relaxed: every thread finds the same address, which is valid from the start.
    REAL_DLOPEN.store(real, Relaxed);
    real
}

/// `dlopen(3)`.
///
/// # Safety
/// The constructors of the opened library run, as with `dlopen(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 2f",
        "3: and esi, {keep}",
        "jmp rax",
        "2: push rdi",
        "push rsi",
        "sub rsp, 8", // as aligned as at a call
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp 3b",
        real = sym REAL_DLOPEN,
        keep = const !libc::RTLD_DEEPBIND,
        find = sym find_dlopen,
    )
}

/// `dlopen(3)`. The loader searches the caller's `RUNPATH` only if the compiler turns the last call into a jump, as it
/// does with optimisation.
///
/// # Safety
/// The constructors of the opened library run, as with `dlopen(3)`.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    let found = REAL_DLOPEN.load(Relaxed);
    let real = if found.is_null() { find_dlopen() } else { found };
    // SAFETY: the C library's function of that name has this type.
    let real: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: the caller fulfils the contract of `dlopen(3)`.
    unsafe { real(file, flags & !libc::RTLD_DEEPBIND) }
}
