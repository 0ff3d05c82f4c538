//! Statistics on demand: `USLAB_OPTIONS=dump=/run/app.%p.json` enables a dump, and `kill -USR2` writes it. The option
//! `USLAB_OPTIONS=profile=512k,dump=/run/app.%p.%n.pb.gz` enables dumps of the heap profile.
//!
//! ```text
//! the library is loaded ── the option is set ── a sleeping thread, and a handler
//! signal ── handler: only wakes the thread ── thread: takes the snapshot, writes the file, sleeps
//! ```
//!
//! # Rules
//!
//! * Without the option `dump`, the library starts no thread and installs no signal handler.
//! * The program keeps control of the signal: a handler that the program installs replaces the library's handler. If a
//!   handler exists when the library starts, it stays installed; an ignored signal stays ignored. The library installs
//!   its handler once, before `main`.
//! * The dump thread blocks all signals, so the program's handlers do not run on it.
//! * A dump file is replaced atomically, so a reader always finds a complete dump. If the file name refers to a link, a
//!   pipe or a device, the dump is written to it directly.
//! * A heap profile contains addresses instead of symbols, and is written to the file piece by piece. A dump of 500
//!   stacks takes 1 MiB. Each recorded call stack begins outside this library, which may have no debug information.
//! * The process exits when the last thread of the program exits; the dump thread checks for this once per second.
//! * The child of a fork does not have the dump thread. In the child, the signal has no effect until the child calls
//!   `exec`.

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use nix::libc;
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, sigaction,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use uslab::Uslab;
use uslab::options::{Dump, DumpSignal};
use uslab::process::{OwnThread, are_alone};

/// The function runs when the library is loaded, after the C library is initialised and before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD_HANDLER: extern "C" fn() = on_load;

/// Mean number of allocations until one is sampled for the guard. The file `slab/book/src/harden.md` states what the
/// sampling costs.
const ALLOCATIONS_PER_GUARD: u32 = 500_000;

/// Semaphore that counts the requested dumps. A semaphore is used instead of an `eventfd` or a pipe, because some
/// programs close all descriptors that they do not know.
static mut REQUESTED_DUMPS: MaybeUninit<libc::sem_t> = MaybeUninit::uninit();

fn dump_semaphore() -> *mut libc::sem_t {
    (&raw mut REQUESTED_DUMPS).cast()
}

/// The signal handler calls only async-signal-safe functions.
extern "C" fn wake(_signal: c_int) {
    // SAFETY: the semaphore was initialised before this handler was installed, and `errno` belongs to this
    // thread.
    unsafe {
        let errno = libc::__errno_location();
        let before = errno.read();
        libc::sem_post(dump_semaphore());
        errno.write(before);
    }
}

extern "C" fn on_load() {
    crate::cplusplus::find();
    Uslab.guard_every(ALLOCATIONS_PER_GUARD);
    if let Some(dump) = Uslab.dump()
        && let Err(error) = start(dump)
    {
        report_error(dump.file, &error);
    }
    if let Some(rate) = Uslab.profile_wanted()
        && let Err(error) = Uslab.start_profile(rate)
    {
        // An error of the write to standard error cannot be reported.
        let _ = writeln!(std::io::stderr(), "uslab: {error}");
    }
    crate::record::begin();
    // The allocator is started here, because its start reads files, and programs may enter a
    // sandbox in `main`.
    Uslab.start();
}

fn report_error(file: &[u8], error: &Error) {
    let _ = writeln!(std::io::stderr(), "uslab: dump `{}`: {error}", file.escape_ascii());
}

fn start(dump: Dump) -> Result<()> {
    let signal = match dump.signal {
        DumpSignal::Usr1 => Signal::SIGUSR1,
        DumpSignal::Usr2 => Signal::SIGUSR2,
    };
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call reads the current action of the signal, and the semaphore is not shared yet.
    unsafe {
        if libc::sigaction(signal as c_int, core::ptr::null(), before.as_mut_ptr()) != 0
            || libc::sem_init(dump_semaphore(), 0, c_uint::default()) != 0
        {
            return Err(Error::last_os_error());
        }
        if before.assume_init().sa_sigaction != libc::SIG_DFL {
            return Err(Error::other(format!(
                "{signal} is ignored or handled by the program, so it triggers no dump"
            )));
        }
    }
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut mask))?;
    let thread = std::thread::Builder::new().name("uslab-dump".to_owned()).spawn(move || run(dump));
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    thread?;
    // System calls of the program that the signal interrupts are restarted.
    let action = SigAction::new(SigHandler::Handler(wake), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only async-signal-safe functions, and replaces the default action.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

fn run(dump: Dump) {
    let _own = OwnThread::begin();
    let mut number = 1_u64;
    loop {
        // SAFETY: the semaphore was initialised before this thread started. If the clock cannot be read, the time
        // is in the past.
        let woken = unsafe {
            let mut deadline = core::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut deadline);
            deadline.tv_sec += 1;
            libc::sem_timedwait(dump_semaphore(), &raw const deadline)
        };
        if woken == 0 {
            if let Err(error) = write(&numbered_path(dump.file, number)) {
                report_error(dump.file, &error);
            }
            number += 1;
        } else if are_alone() {
            return;
        }
    }
}

/// Returns the dump file's name: `%p` is replaced by the pid, and `%n` by the number of the dump.
fn numbered_path(name: &[u8], number: u64) -> PathBuf {
    let mut parts = name.split(|byte| *byte == b'%');
    let mut file = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let reply = match part.first() {
            Some(b'p') => Some(std::process::id().into()),
            Some(b'n') => Some(number),
            _ => None,
        };
        match reply {
            Some(reply) => file.extend(reply.to_string().bytes().chain(part[1..].iter().copied())),
            None => file.extend([b"%", part].concat()),
        }
    }
    OsString::from_vec(file).into()
}

type DumpWriter = Box<dyn FnOnce(&mut dyn Write) -> Result<()>>;

fn write(file: &Path) -> Result<()> {
    let numbers = dump_writer_for_file(file)?;
    let write_to = |file| {
        let mut file = BufWriter::new(file);
        numbers(&mut file)?;
        file.flush()
    };
    if file.symlink_metadata().is_ok_and(|meta| !meta.is_file()) {
        return write_to(std::fs::OpenOptions::new().write(true).truncate(true).open(file)?);
    }
    let mut new = file.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let written = File::create(&new).and_then(write_to).and_then(|()| std::fs::rename(&new, file));
    written.inspect_err(|_| {
        // It is not an error if the file does not exist.
        let _ = std::fs::remove_file(&new);
    })
}

/// Returns the base address of the file that contains this code.
fn module_base_address(code: *const ()) -> Option<*mut core::ffi::c_void> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` writes the description of an address, or nothing. An all-zero description is valid.
    let (found, info) = unsafe { (libc::dladdr(code.cast(), info.as_mut_ptr()), info.assume_init()) };
    (found != 0).then_some(info.dli_fbase)
}

/// Returns the writer for the format that the file name's extension selects.
fn dump_writer_for_file(file: &Path) -> Result<DumpWriter> {
    let profile = || match Uslab.profile() {
        mut profile if profile.rate > 0 => {
            let own_module = module_base_address(dump_writer_for_file as *const ());
            let is_own = |at| module_base_address(core::ptr::with_exposed_provenance(at)) == own_module;
            profile.samples.iter_mut().for_each(|sample| sample.stack = sample.stack.skip(is_own));
            Ok(profile)
        }
        _ => Err(Error::other("no profile is running; expected `profile=512k` or another number of bytes")),
    };
    let info = || Uslab.info().ok_or_else(|| Error::other("the malloc has not started"));
    Ok(match file.extension().and_then(|end| end.to_str()) {
        Some("gz") => {
            let profile = profile()?;
            Box::new(move |into| profile.pprof(into))
        }
        Some("folded") => {
            let profile = profile()?;
            Box::new(move |into| profile.folded(|sample| sample.live.bytes, into))
        }
        Some("json") => {
            let info = info()?;
            Box::new(move |into| {
                serde_json::to_writer(&mut *into, &info)?;
                into.write_all(b"\n")
            })
        }
        Some("prom") => {
            let info = info()?;
            Box::new(move |into| write!(into, "{}", info.prometheus()))
        }
        _ => {
            let info = info()?;
            Box::new(move |into| write!(into, "{}", info.slabinfo()))
        }
    })
}
