//! Reports faults in the pool of the [sampled guard](super). A `SIGSEGV` handler finds the object of the faulting page.
//!
//! The first sampled allocation installs the handler, unless the constructor of a library installed it earlier. The
//! handler forwards faults outside the pool, unchanged, to the program's previous handler. If a program installs its
//! own handler later, faults in samples are not reported.

use super::Pool;
use core::fmt::{self, Write};
use uslab_magazine::sync::FixedPtr;

/// Pools in which faults are reported. Pools that are not in this list report errors only when an object is freed.
static REPORTED_POOLS: [FixedPtr<Pool>; 8] = [const { FixedPtr::null() }; 8];

/// Writer to standard error that takes no lock.
pub(crate) struct LockFreeStderr;

impl Write for LockFreeStderr {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        #[cfg(unix)]
        // SAFETY: pointer and length describe the text. An error of the write cannot be reported.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
        }
        #[cfg(not(unix))]
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        Ok(())
    }
}

/// Adds `pool` to the pools in which faults are reported. A reported fault ends the process.
pub(super) fn register_pool_for_faults(pool: &Pool) {
    let pool = core::ptr::from_ref(pool).cast_mut();
    for place in &REPORTED_POOLS {
        if place.get().is_null() {
            place.set(pool);
        }
        // Two concurrent calls may try the same place.
        if place.get() == pool {
            break;
        }
    }
    #[cfg(target_os = "linux")]
    handler::install();
}

/// Returns `true` if faults in the pool are reported.
#[cfg(test)]
pub(super) fn is_pool_registered(pool: *const Pool) -> bool {
    REPORTED_POOLS.iter().any(|place| core::ptr::eq(place.get(), pool))
}
/// Removes a pool from the list before it is dropped.
pub(super) fn unregister_pool(pool: &Pool) {
    for place in REPORTED_POOLS.iter().filter(|place| core::ptr::eq(place.get(), pool)) {
        place.set(core::ptr::null_mut());
    }
}

#[cfg(target_os = "linux")]
pub(crate) mod handler {
    use super::{LockFreeStderr, Pool, REPORTED_POOLS};
    use core::ffi::{c_int, c_void};
    use core::fmt::Write;
    use core::mem::{MaybeUninit, transmute};
    use libc::{SA_ONSTACK, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSEGV, sigaction, siginfo_t};
    use uslab_magazine::sync::Kept;
    use uslab_magazine::sync::Ordering::Relaxed;
    use uslab_magazine::sync::unseen::AtomicBool;

    static PREVIOUS_SIGNAL_ACTION: Kept<sigaction> = Kept::new();

    pub(crate) fn install() {
        static IS_HANDLER_INSTALLED: AtomicBool = AtomicBool::new(false);
        // Relaxed: the flag only selects the thread that installs the handler.
        if IS_HANDLER_INSTALLED.swap(true, Relaxed) {
            return;
        }
        let mut before = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: the call only reads the current action; all zeros is a valid action.
        unsafe {
            if libc::sigaction(SIGSEGV, core::ptr::null(), before.as_mut_ptr()) != 0 {
                return;
            }
            // The previous handler is stored before the new handler can run.
            PREVIOUS_SIGNAL_ACTION.put(before.assume_init());
            let mut own_action: sigaction = before.assume_init();
            // The previous handler runs on the stack that it requested.
            let has_none = [SIG_DFL, SIG_IGN].contains(&own_action.sa_sigaction);
            own_action.sa_flags |= SA_SIGINFO | if has_none { SA_ONSTACK } else { 0 };
            own_action.sa_sigaction = on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            libc::sigaction(SIGSEGV, &raw const own_action, core::ptr::null_mut());
        }
    }

    /// Returns the pool that contains `address`, if faults in that pool are reported.
    fn pool_of(address: usize) -> Option<&'static Pool> {
        // SAFETY: a listed pool is alive.
        let pools = REPORTED_POOLS.iter().filter_map(|place| unsafe { place.get().as_ref() });
        { pools }.find(|pool| pool.holds(address))
    }
    extern "C" fn report_fault(address: usize) -> ! {
        if let Some(pool) = pool_of(address) {
            let _ = write!(LockFreeStderr, "uslab: guard: {}", pool.fault(address));
        }
        std::process::abort();
    }
    /// Makes the thread continue in [`report_fault`], on its normal stack, after the signal handler returns. The
    /// alternate signal stack may be too small for the symbol lookup.
    ///
    /// # Safety
    /// `context` must belong to this thread, whose stack must not have overflowed.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_variables))]
    unsafe fn redirect_to_fault_reporter(context: *mut libc::ucontext_t, address: usize) {
        let entry: extern "C" fn(usize) -> ! = report_fault;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: by contract, the context is valid.
        unsafe {
            let registers = &mut (*context).uc_mcontext.gregs;
            // Continue below the red zone, with the stack aligned as after a call.
            let stack = &mut registers[libc::REG_RSP as usize];
            *stack = ((*stack - 128) & !15) - 8;
            registers[libc::REG_RDI as usize] = address as i64;
            registers[libc::REG_RIP as usize] = entry as usize as i64;
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: by contract, the context is valid. The stack pointer is aligned, unless the stack itself caused the
        // fault.
        unsafe {
            let registers = &mut (*context).uc_mcontext;
            registers.regs[0] = address as u64;
            registers.pc = entry as usize as u64;
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        report_fault(address);
    }

    extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passed `info`; if its code is above 0, the signal is a fault, which
        // has an address.
        let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
        if let Some(address) = fault.filter(|address| pool_of(*address).is_some()) {
            // SAFETY: the kernel passed the context of this thread, which resumes with it.
            return unsafe { redirect_to_fault_reporter(context.cast(), address) };
        }
        // SAFETY: the action was stored before this handler was installed, and is never removed.
        let Some(before) = (unsafe { PREVIOUS_SIGNAL_ACTION.get() }) else { return };
        match before.sa_sigaction {
            // With the default action, the access is repeated without this handler, or the signal
            // is sent again.
            SIG_DFL => {
                // SAFETY: `before` is the previous action, which the system returned.
                unsafe {
                    libc::sigaction(signal, &raw const *before, core::ptr::null_mut());
                    if fault.is_none() {
                        libc::raise(signal);
                    }
                }
            }
            SIG_IGN if fault.is_none() => {}
            SIG_IGN => {
                // SAFETY: the call only restores the default action, so that a fault which the
                // program ignores ends the process.
                unsafe { libc::signal(signal, SIG_DFL) };
            }
            handler if before.sa_flags & SA_SIGINFO != 0 => {
                // SAFETY: the flag `SA_SIGINFO` means that the handler has this type.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without the flag `SA_SIGINFO` the handler has this type.
                let handler: extern "C" fn(c_int) = unsafe { transmute(handler) };
                handler(signal);
            }
        }
    }
}
