//! Faults in the pool of the [sampled guard](super), told: a handler of `SIGSEGV` that knows whose page it was.
//!
//! It is installed when the first allocation is sampled, so that handlers which the program has by then are behind it: a fault
//! elsewhere goes to them as it came. A program that installs one later has its own, and no fault is told.

use super::Pool;
use core::fmt::{self, Write};
use uslab_magazine::sync::FixedPtr;

/// The pool whose faults are told.
static POOL: FixedPtr<Pool> = FixedPtr::null();

/// Standard error, past everything that may hold a lock.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        #[cfg(unix)]
        // SAFETY: the text is so long. There is nobody to tell that it is closed.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
        }
        #[cfg(not(unix))]
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        Ok(())
    }
}

/// From now on faults in `pool` are told, and end the process.
pub(super) fn tell(pool: &Pool) {
    if !POOL.get().is_null() {
        return;
    }
    POOL.set(core::ptr::from_ref(pool).cast_mut());
    #[cfg(target_os = "linux")]
    handler::install();
}

/// There is no such pool any more.
pub(super) fn forget(pool: &Pool) {
    if core::ptr::eq(POOL.get(), pool) {
        POOL.set(core::ptr::null_mut());
    }
}

#[cfg(target_os = "linux")]
mod handler {
    use super::{POOL, Stderr};
    use core::ffi::{c_int, c_void};
    use core::fmt::Write;
    use core::mem::{MaybeUninit, transmute};
    use libc::{SA_ONSTACK, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSEGV, sigaction, siginfo_t};
    use uslab_magazine::sync::Ordering::Relaxed;
    use uslab_magazine::sync::{AtomicBool, Kept};

    /// What was there before.
    static BEFORE: Kept<sigaction> = Kept::new();

    pub(super) fn install() {
        static INSTALLED: AtomicBool = AtomicBool::new(false);
        // Relaxed: only says who does it.
        if INSTALLED.swap(true, Relaxed) {
            return;
        }
        let mut before = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: it only asks; zeros are an action, too.
        unsafe {
            if libc::sigaction(SIGSEGV, core::ptr::null(), before.as_mut_ptr()) != 0 {
                return;
            }
            // Before the handler can run.
            BEFORE.put(before.assume_init());
            let mut own: sigaction = before.assume_init();
            own.sa_sigaction = on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            own.sa_flags |= SA_SIGINFO | SA_ONSTACK;
            libc::sigaction(SIGSEGV, &raw const own, core::ptr::null_mut());
        }
    }

    extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's; a code above 0 is a fault's, which has an address.
        let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
        // SAFETY: a pool that is named lives.
        if let (Some(address), Some(pool)) = (fault, unsafe { POOL.get().as_ref() })
            && pool.holds(address)
        {
            let mistake = pool.fault(address);
            let tell = move || _ = write!(Stderr, "uslab: guard: {mistake}");
            // A thread of Rust's has a stack for handlers, which is too small to look for names on.
            match std::thread::Builder::new().spawn(tell) {
                Ok(thread) => _ = thread.join(),
                Err(_) => tell(),
            }
            std::process::abort();
        }
        // SAFETY: put there before this was installed, and never taken.
        let Some(before) = (unsafe { BEFORE.get() }) else { return };
        match before.sa_sigaction {
            // The access is made again, or the signal sent, without this handler.
            SIG_DFL => {
                // SAFETY: what was there.
                unsafe {
                    libc::sigaction(signal, &raw const *before, core::ptr::null_mut());
                    if fault.is_none() {
                        libc::raise(signal);
                    }
                }
            }
            SIG_IGN if fault.is_none() => {}
            SIG_IGN => {
                // SAFETY: an ignored fault ends the process.
                unsafe { libc::signal(signal, SIG_DFL) };
            }
            handler if before.sa_flags & SA_SIGINFO != 0 => {
                // SAFETY: what the flag says of it.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: what the absent flag says of it.
                let handler: extern "C" fn(c_int) = unsafe { transmute(handler) };
                handler(signal);
            }
        }
    }
}
