//! The numbers on demand: `USLAB_OPTIONS=dump=/run/app.%p.json`, and `kill -USR2` whenever they are wanted. And the heap profile:
//! `USLAB_OPTIONS=profile=512k,dump=/run/app.%p.%n.pb.gz`.
//!
//! ```text
//! the library is loaded ── the option is given ── a thread that sleeps, and a handler
//! signal ── handler: wakes the thread, no more ── thread: takes the snapshot, writes the file, sleeps
//! ```
//!
//! # Rules
//!
//! * Without the option there is no thread and no handler.
//! * The signal stays the program's: a handler that it installs replaces this one, and one that is there, or a signal that
//!   whoever started the program ignores, is left alone. So it is set up before `main`, and never again.
//! * The thread takes no signals, so that no handler of the program runs on it.
//! * A file is replaced at once: a reader finds a whole dump. A link, a pipe or a device is written to.
//! * A heap profile has addresses and no names, and is written as it is made: a dump of 500 stacks takes 1 MiB. Stacks begin outside of this
//!   library, which may have no debug information.
//! * The process ends with the last thread of the program: this one looks for that once a second.
//! * The child of a fork has no such thread; there the signal does nothing, until another program is started in it.

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
use std::time::Duration;
use uslab::Uslab;
use uslab::options::{Dump, DumpSignal};
use uslab::process::{OwnThread, are_alone};

/// Runs when the library is loaded: after the C library is ready, and before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// How often memory is looked for that is of no use, unless `USLAB_OPTIONS` says it. There is no thread for it before the program
/// has grown, and it sleeps while nothing is freed.
const REAP_EVERY: Duration = Duration::from_millis(500);
/// Allocations a sample of the guard: see `slab/book/src/harden.md` for what it costs.
const GUARD_EVERY: u32 = 500_000;

/// How often the thread is to wake. Not an `eventfd` or a pipe: programs close descriptors that they do not know.
static mut WANTED: MaybeUninit<libc::sem_t> = MaybeUninit::uninit();

fn wanted() -> *mut libc::sem_t {
    (&raw mut WANTED).cast()
}

/// Only what may be done in a handler.
extern "C" fn wake(_signal: c_int) {
    // SAFETY: the semaphore was made before this was installed; the thread's own word.
    unsafe {
        let errno = libc::__errno_location();
        let before = errno.read();
        libc::sem_post(wanted());
        errno.write(before);
    }
}

extern "C" fn loaded() {
    crate::cplusplus::find();
    Uslab.reap_every(REAP_EVERY);
    Uslab.guard_every(GUARD_EVERY);
    if let Some(dump) = Uslab.dump()
        && let Err(error) = start(dump)
    {
        say(dump.file, &error);
    }
    if let Some(rate) = Uslab.profile_wanted()
        && let Err(error) = Uslab.start_profile(rate)
    {
        // There is nobody to tell that standard error is closed.
        let _ = writeln!(std::io::stderr(), "uslab: {error}");
    }
    crate::record::begin();
    // The malloc starts here if nothing has allocated. Its start reads files, and programs close their sandboxes in `main`.
    drop(std::hint::black_box(Box::new(0_u8)));
}

/// There is nobody to tell that standard error is closed.
fn say(file: &[u8], error: &Error) {
    let _ = writeln!(std::io::stderr(), "uslab: dump `{}`: {error}", file.escape_ascii());
}

fn start(dump: Dump) -> Result<()> {
    let signal = match dump.signal {
        DumpSignal::Usr1 => Signal::SIGUSR1,
        DumpSignal::Usr2 => Signal::SIGUSR2,
    };
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks what is done about the signal now; and nobody knows the semaphore yet.
    unsafe {
        if libc::sigaction(signal as c_int, core::ptr::null(), before.as_mut_ptr()) != 0
            || libc::sem_init(wanted(), 0, c_uint::default()) != 0
        {
            return Err(Error::last_os_error());
        }
        if before.assume_init().sa_sigaction != libc::SIG_DFL {
            return Err(Error::other(format!("{signal} is ignored or taken: no dumps on it")));
        }
    }
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut mask))?;
    let thread = std::thread::Builder::new().name("uslab-dump".to_owned()).spawn(move || run(dump));
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    thread?;
    // Calls of the program that the signal interrupts go on.
    let action = SigAction::new(SigHandler::Handler(wake), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does what handlers may; it replaces the default.
    unsafe { sigaction(signal, &action) }?;
    Ok(())
}

fn run(dump: Dump) {
    let _own = OwnThread::begin();
    let mut number = 1_u64;
    loop {
        // SAFETY: the semaphore was made before this thread; a clock that is not told is long over.
        let woken = unsafe {
            let mut until = core::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
            until.tv_sec += 1;
            libc::sem_timedwait(wanted(), &raw const until)
        };
        if woken == 0 {
            if let Err(error) = write(&file(dump.file, number)) {
                say(dump.file, &error);
            }
            number += 1;
        } else if are_alone() {
            return;
        }
    }
}

/// The name, with this process in place of `%p`, and the dump's number in place of `%n`.
fn file(name: &[u8], number: u64) -> PathBuf {
    let mut parts = name.split(|byte| *byte == b'%');
    let mut file = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let said = match part.first() {
            Some(b'p') => Some(std::process::id().into()),
            Some(b'n') => Some(number),
            _ => None,
        };
        match said {
            Some(said) => file.extend(said.to_string().bytes().chain(part[1..].iter().copied())),
            None => file.extend([b"%", part].concat()),
        }
    }
    OsString::from_vec(file).into()
}

/// What writes the numbers in one format.
type Numbers = Box<dyn FnOnce(&mut dyn Write) -> Result<()>>;

fn write(file: &Path) -> Result<()> {
    let numbers = numbers(file)?;
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
        // There may be none.
        let _ = std::fs::remove_file(&new);
    })
}

/// Where the file whose code this is has been loaded.
fn begin(code: *const ()) -> Option<*mut core::ffi::c_void> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it writes the description of an address, or nothing; zeros are one, too.
    let (found, info) = unsafe { (libc::dladdr(code.cast(), info.as_mut_ptr()), info.assume_init()) };
    (found != 0).then_some(info.dli_fbase)
}

/// The numbers in the format that the name's end requests.
fn numbers(file: &Path) -> Result<Numbers> {
    let profile = || match Uslab.profile() {
        mut profile if profile.rate > 0 => {
            let own = begin(numbers as *const ());
            let is_own = |at| begin(core::ptr::with_exposed_provenance(at)) == own;
            profile.samples.iter_mut().for_each(|sample| sample.stack = sample.stack.skip(is_own));
            Ok(profile)
        }
        _ => Err(Error::other("there is no profile: expected `profile=512k` or another number of bytes")),
    };
    let info = || Uslab.info().ok_or_else(|| Error::other("there is no malloc"));
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
