//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! A library that is opened with that flag looks for symbols in its own dependencies first, and so finds the C library's
//! `malloc` and `free` and not these. What one side has allocated is then freed by the other, which ends the program (PHP opens
//! its extensions so). So the flag is cleared: the library finds what every other one finds. Sanitizers refuse such libraries
//! for the same reason.
//!
//! The dynamic loader takes whoever calls `dlopen` for whom to search: its `RUNPATH`, its namespace. So the real one is jumped
//! to and not called, with the caller's return address where it was.

use core::ffi::{CStr, c_char, c_int, c_void};
use nix::libc;
use uslab_magazine::sync::AtomicPtr;
use uslab_magazine::sync::Ordering::Relaxed;

/// The C library's `dlopen`; null until it was looked for.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds it. Dependencies of this library have it, so a program without one does not come here.
extern "C" fn find() -> *mut c_void {
    const NAME: &CStr = c"dlopen";
    // SAFETY: the name ends in a NUL; the search begins behind this library.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr()) };
    if real.is_null() {
        std::process::abort();
    }
    // Relaxed: the same address whoever finds it, and it was there before.
    REAL.store(real, Relaxed);
    real
}

/// `dlopen(3)`.
///
/// # Safety
/// As `dlopen(3)`: the library's constructors run.
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
        real = sym REAL,
        keep = const !libc::RTLD_DEEPBIND,
        find = sym find,
    )
}

/// `dlopen(3)`. The caller's `RUNPATH` is searched where the compiler makes the last call a jump, as it does with
/// optimisation.
///
/// # Safety
/// As `dlopen(3)`: the library's constructors run.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    let known = REAL.load(Relaxed);
    let real = if known.is_null() { find() } else { known };
    // SAFETY: the C library's function of that name has this type.
    let real: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: passed on.
    unsafe { real(file, flags & !libc::RTLD_DEEPBIND) }
}
