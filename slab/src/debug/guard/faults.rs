//! Faults in the pool of the [sampled guard](super), told: a handler of `SIGSEGV` that knows whose page it was.
//!
//! It is installed when the first allocation is sampled, or before, by a library's constructor. Handlers which the program has by then
//! are behind it: a fault elsewhere goes to them as it came. If a program installs one later, faults of samples are not reported.

use super::Pool;
use core::fmt::{self, Write};
use uslab_magazine::sync::FixedPtr;

/// The pools whose faults are told. Those of more subsystems are told at the free only.
static POOLS: [FixedPtr<Pool>; 8] = [const { FixedPtr::null() }; 8];

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
    let pool = core::ptr::from_ref(pool).cast_mut();
    for place in &POOLS {
        if place.get().is_null() {
            place.set(pool);
        }
        // Two that come at once may want one place.
        if place.get() == pool {
            break;
        }
    }
    #[cfg(target_os = "linux")]
    handler::install();
}

/// Whether faults in the pool are told.
#[cfg(test)]
pub(super) fn tells(pool: *const Pool) -> bool {
    POOLS.iter().any(|place| core::ptr::eq(place.get(), pool))
}
/// There is no such pool any more.
pub(super) fn forget(pool: &Pool) {
    for place in POOLS.iter().filter(|place| core::ptr::eq(place.get(), pool)) {
        place.set(core::ptr::null_mut());
    }
}

#[cfg(target_os = "linux")]
pub(crate) mod handler {
    use super::{POOLS, Pool, Stderr};
    use core::ffi::{c_int, c_void};
    use core::fmt::Write;
    use core::mem::{MaybeUninit, transmute};
    use libc::{SA_ONSTACK, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSEGV, sigaction, siginfo_t};
    use uslab_magazine::sync::Kept;
    use uslab_magazine::sync::Ordering::Relaxed;
    use uslab_magazine::sync::unseen::AtomicBool;

    /// What was there before.
    static BEFORE: Kept<sigaction> = Kept::new();

    pub(crate) fn install() {
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
            // What is called in turn runs on the stack that it asked for.
            let has_none = [SIG_DFL, SIG_IGN].contains(&own.sa_sigaction);
            own.sa_flags |= SA_SIGINFO | if has_none { SA_ONSTACK } else { 0 };
            own.sa_sigaction = on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            libc::sigaction(SIGSEGV, &raw const own, core::ptr::null_mut());
        }
    }

    /// The pool of an address, if its faults are told.
    fn pool_of(address: usize) -> Option<&'static Pool> {
        // SAFETY: a pool that is named lives.
        let pools = POOLS.iter().filter_map(|place| unsafe { place.get().as_ref() });
        { pools }.find(|pool| pool.holds(address))
    }
    extern "C" fn told(address: usize) -> ! {
        if let Some(pool) = pool_of(address) {
            let _ = write!(Stderr, "uslab: guard: {}", pool.fault(address));
        }
        std::process::abort();
    }
    /// Lets the thread go on in [`told`] when the handler returns, on its own stack: names need more than a handler's has, where that is
    /// another one.
    ///
    /// # Safety
    /// It is the thread's, whose stack did not overflow.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_variables))]
    unsafe fn go_to(context: *mut libc::ucontext_t, address: usize) {
        let told: extern "C" fn(usize) -> ! = told;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: by contract.
        unsafe {
            let registers = &mut (*context).uc_mcontext.gregs;
            // Below what a function may use there, and aligned as behind a call.
            let stack = &mut registers[libc::REG_RSP as usize];
            *stack = ((*stack - 128) & !15) - 8;
            registers[libc::REG_RDI as usize] = address as i64;
            registers[libc::REG_RIP as usize] = told as usize as i64;
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: by contract. It is aligned where a fault is no fault of the stack's.
        unsafe {
            let registers = &mut (*context).uc_mcontext;
            registers.regs[0] = address as u64;
            registers.pc = told as usize as u64;
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        told(address);
    }

    extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's; a code above 0 is a fault's, which has an address.
        let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
        if let Some(address) = fault.filter(|address| pool_of(*address).is_some()) {
            // SAFETY: the kernel's, of this thread, which goes on with it.
            return unsafe { go_to(context.cast(), address) };
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
