//! The program's malloc, call by call: `USLAB_OPTIONS=record=FILE`, for `uslab replay FILE`.
//!
//! ```text
//! a call ── takes a place in the file, by one addition to a word of its header ── before a free, behind an allocation
//!    │        └ there is no room yet: the file grows, by up to a mebibyte. It is as large as it may be, or the device is full:
//!    │          the place is all that is noted
//!    └──── writes the record there, its last word last
//! ```
//!
//! # Rules
//!
//! * While it records, the inlined paths serve nothing, and so each call comes here. Otherwise a slow one does, for a load.
//! * An address is taken for an allocation behind the free that gave it back, whatever threads did. A `realloc` that moves is both,
//!   in the order that the program sees: the old memory is gone, the new one there. One in place says the new size.
//! * What the library itself allocates is not recorded, nor are object caches ([`cache`](crate::cache)), nor frees of null. What
//!   the C library allocates for a thread of this one is: 288 bytes for the one that reaps, with `reap=MS`.
//! * No lock and no heap: what may call malloc may be recorded, a handler of signals, too. (A file that cannot be made is
//!   told with the library's own memory.)
//! * A new file each time: FILE if there is none yet, else FILE.PID, FILE.PID.2 and so on. So the programs that a program
//!   starts have theirs; a process begins it with its first call. In the child of a fork that is its first after the fork, and
//!   what it frees of its parent's was never allocated in its file. A child of `vfork` has its parent's memory, and file.
//! * The file is found by its name whenever it grows: descriptors are the program's. Who removes it, or may not open it any
//!   more, has what is recorded up to then. It must not be cut while the program runs (`SIGBUS`). Addresses for all that it may
//!   become are taken at once.

/// The reader's own source, so that there is one of the format.
#[allow(dead_code, reason = "one writes, another one reads")]
#[path = "../../../sim/trace/src/record_format.rs"]
mod format;

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, dangling_mut, null_mut};
use format::{CALLS, HEADER, Header, Kind, RECORD, ROOM, Record, WORD};
use nix::errno::Errno;
use nix::libc;
use std::io::{Error, Result, Write};
use std::mem::MaybeUninit;
use uslab::malloc::MAX_ALIGN;
use uslab::{AllocError, Uslab};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, AtomicU64, Kept};

/// By how many records the file grows at least and at most; between, it doubles.
const LEAST: u64 = (64 << 10) / (RECORD * WORD) as u64;
const MOST: u64 = (1 << 20) / (RECORD * WORD) as u64;

/// In a page that the system empties for the child of a fork. So that child begins anew, however it was made.
struct Recorder {
    /// The file's words. Null before there is a file; [`NONE`] while it is being made, and where it cannot be.
    file: AtomicPtr<AtomicU64>,
    /// Records that it may have.
    most: AtomicU64,
}

const NONE: *mut AtomicU64 = dangling_mut();

/// Of a process that has none, and of its children, which do not try again.
static NOTHING: Recorder = Recorder { file: AtomicPtr::new(NONE), most: AtomicU64::new(0) };

/// Null before the first call.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(null_mut());

/// The process that was recorded last: this one, or one that it was forked from.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// What is found when the file grows.
static FILE: Kept<Found> = Kept::new();

/// On the stack of whoever makes the first call, so not as long as names may be.
type Name = [u8; 1024];

struct Found {
    name: Name,
    /// Of the name that was asked for, which others begin with.
    length: usize,
    device: libc::dev_t,
    inode: libc::ino_t,
}

/// A place in the file, and when it was taken.
struct Place {
    words: &'static [AtomicU64],
    cpu: u16,
    time_ns: u64,
}

/// Makes the file, if one is asked for: a program that never calls malloc has one, too.
pub(crate) fn begin() {
    let _ = file();
}

/// Records memory that was just handed out; null if there was none.
#[inline]
pub(crate) fn allocated(memory: *mut c_void, size: usize, align: usize) {
    write(take(), Kind::Alloc, memory.addr(), size, align);
}

/// Records a free that is about to be.
#[inline]
pub(crate) fn freed(memory: NonNull<u8>) {
    write(take(), Kind::Free, memory.addr().get(), 0, 1);
}

/// [`Uslab::reallocate`], and records it.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
pub(crate) unsafe fn reallocate(
    old: NonNull<u8>,
    size: usize,
) -> core::result::Result<NonNull<u8>, AllocError> {
    // If it moves, the old memory is free before this knows it.
    let before = take();
    // SAFETY: passed on.
    let result = unsafe { Uslab.reallocate(old, size) };
    match result {
        Ok(new) if new == old => write(before, Kind::Resize, new.addr().get(), size, MAX_ALIGN),
        Ok(new) => {
            write(before, Kind::Free, old.addr().get(), 0, 1);
            allocated(new.as_ptr().cast(), size, MAX_ALIGN);
        }
        Err(_) => write(before, Kind::Alloc, 0, size, MAX_ALIGN),
    }
    result
}

#[inline]
fn write(place: Option<Place>, kind: Kind, address: usize, size: usize, align: usize) {
    if let Some(Place { words, cpu, time_ns }) = place {
        let [address, size, align] = [address, size, align].map(|number| number as u64);
        let record = Record { kind, address, cpu, time_ns, size, align };
        for (word, value) in words.iter().zip(record.words()) {
            // Release: who sees the last word, in the file, sees the others.
            word.store(value.to_le(), Release);
        }
    }
}

/// The next place; `None` if nothing is recorded, or nothing more.
#[inline]
fn take() -> Option<Place> {
    Uslab.record()?;
    take_recorded()
}
#[cold]
fn take_recorded() -> Option<Place> {
    let (recorder, file) = file()?;
    // Relaxed: additions to one word have an order, and one that happens after another one is behind it.
    let place = word(file, CALLS).fetch_add(1, Relaxed);
    // Acquire: pairs with the Release in `grow`, so that the file is so long.
    if place >= word(file, ROOM).load(Acquire) && !recorder.grow(file, place) {
        return None;
    }
    // SAFETY: the file has room for it, and is mapped for good; nobody else has the place.
    let words = unsafe { core::slice::from_raw_parts(file.add(HEADER + place as usize * RECORD), RECORD) };
    // SAFETY: asks for a number, and for the time.
    let (cpu, now) = unsafe {
        let mut now = MaybeUninit::<libc::timespec>::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        (libc::sched_getcpu(), now.assume_init())
    };
    let time_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    Some(Place { words, cpu: u16::try_from(cpu).unwrap_or(0), time_ns })
}

/// A word of the header.
fn word(file: *mut AtomicU64, at: usize) -> &'static AtomicU64 {
    // SAFETY: a file has a header, and is mapped for good.
    unsafe { &*file.add(at) }
}

/// The recorder and its file, which is made now if there is none.
fn file() -> Option<(&'static Recorder, *mut AtomicU64)> {
    let (asked, limit) = Uslab.record()?;
    let recorder = recorder()?;
    // Acquire, Release: so that the header is there.
    let mut file = recorder.file.load(Acquire);
    if file.is_null() {
        // Calls that come meanwhile, of a handler, are not recorded: at this one there is no other thread.
        if recorder.file.compare_exchange(file, NONE, Acquire, Relaxed).is_err() {
            return None;
        }
        let errno = Errno::last_raw();
        match recorder.make(asked, limit) {
            Ok(made) => {
                recorder.file.store(made, Release);
                file = made;
            }
            // There is nobody to tell that standard error is closed.
            Err(error) => {
                let name = asked.escape_ascii();
                let _ = writeln!(std::io::stderr(), "uslab: record `{name}`: {error}; nothing is recorded");
                // Relaxed: there from the start.
                RECORDER.store((&raw const NOTHING).cast_mut(), Relaxed);
                file = NONE;
            }
        }
        Errno::set_raw(errno);
    }
    (file != NONE).then_some((recorder, file))
}

/// Its page.
fn recorder() -> Option<&'static Recorder> {
    // Acquire: pairs with the Release below.
    let known = RECORDER.load(Acquire);
    // SAFETY: null, or mapped for good. Zeros are a recorder.
    if let Some(known) = unsafe { known.as_ref() } {
        return Some(known);
    }
    let page = map(size_of::<Recorder>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).ok()?;
    let page = page.cast::<Recorder>();
    // SAFETY: mapped just now, and nobody else's if somebody was first.
    unsafe {
        match RECORDER.compare_exchange(null_mut(), page, AcqRel, Acquire) {
            Ok(_) => Some(&*page),
            Err(first) => {
                libc::munmap(page.cast(), size_of::<Recorder>());
                Some(&*first)
            }
        }
    }
}

impl Recorder {
    fn make(&self, asked: &[u8], limit: usize) -> Result<*mut AtomicU64> {
        let process = std::process::id();
        // Relaxed: a child finds what its parent left.
        let parent = Some(PROCESS.swap(process, Relaxed)).filter(|parent| ![0, process].contains(parent));
        let too_long = |_| Error::from_raw_os_error(libc::ENAMETOOLONG);
        // SAFETY: only this thread makes a file, and puts. A child's lies beside its parent's.
        let (mut name, length) = match unsafe { FILE.get() } {
            Some(found) => (found.name, found.length),
            None => absolute(asked).map_err(too_long)?,
        };
        let mut taken = 0;
        let descriptor = loop {
            number(&mut name, length, process, taken).map_err(too_long)?;
            match open(&name, libc::O_CREAT | libc::O_EXCL) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => taken += 1,
                opened => break opened?,
            }
        };
        let most = limit.saturating_sub(HEADER * WORD) / (RECORD * WORD);
        let status = descriptor.status()?;
        let file = self.map(&descriptor, (HEADER + most * RECORD) * WORD).inspect_err(|_| {
            // SAFETY: the name ends in a NUL.
            unsafe { libc::unlink(name.as_ptr().cast()) };
        })?;
        let mut program = [0; 16];
        // SAFETY: it has room for a name.
        unsafe { libc::prctl(libc::PR_GET_NAME, program.as_mut_ptr()) };
        let header = Header { process, parent, program, calls: 0, room: 0 };
        for (at, value) in header.words().into_iter().enumerate() {
            // Relaxed: published with the file.
            word(file, at).store(value.to_le(), Relaxed);
        }
        // Relaxed: as above.
        self.most.store(most as u64, Relaxed);
        // SAFETY: only this thread makes a file, and nobody grows it yet.
        unsafe { FILE.put(Found { name, length, device: status.st_dev, inode: status.st_ino }) };
        Ok(file)
    }

    /// Maps a new file, for this process alone.
    fn map(&self, descriptor: &Descriptor, bytes: usize) -> Result<*mut AtomicU64> {
        let own = core::ptr::from_ref(self).cast_mut();
        descriptor.extend(0, HEADER * WORD)?;
        let file = map(bytes, libc::MAP_SHARED, descriptor.0)?;
        // SAFETY: of pages that are the recorder's alone, and the file's.
        let advised = unsafe {
            libc::madvise(own.cast(), size_of::<Self>(), libc::MADV_WIPEONFORK) == 0
                && libc::madvise(file, bytes, libc::MADV_DONTFORK) == 0
        };
        if advised { Ok(file.cast()) } else { Err(Error::last_os_error()) }
    }

    /// Makes room for the record at `place`; `false` if there is none. Threads may do so side by side.
    #[cold]
    fn grow(&self, file: *mut AtomicU64, place: u64) -> bool {
        // Relaxed: what is lost is told by the header.
        let most = self.most.load(Relaxed);
        if place >= most {
            return false;
        }
        let errno = Errno::last_raw();
        // Acquire: as in `take_recorded`, if another thread was first.
        let has = word(file, ROOM).load(Acquire);
        if place < has {
            return true;
        }
        let room = most.min(place + place.clamp(LEAST, MOST));
        let [from, to] = [has, room].map(|records| (HEADER + records as usize * RECORD) * WORD);
        // SAFETY: put before the file was published, and not again while it is this process's.
        let grown = unsafe { FILE.get() }.is_some_and(|found| {
            let again = open(&found.name, 0);
            again.is_ok_and(|descriptor| descriptor.is(found) && descriptor.extend(from, to).is_ok())
        });
        if grown {
            // Release: pairs with the Acquire in `take_recorded`.
            word(file, ROOM).fetch_max(room, Release);
        } else {
            // Relaxed: as above. Later calls do not try again.
            self.most.fetch_min(has, Relaxed);
        }
        Errno::set_raw(errno);
        grown
    }
}

/// `file` from the root, because the program may go to another directory; and the length of that.
///
/// # Errors
/// It is too long.
fn absolute(file: &[u8]) -> Result<(Name, usize)> {
    let mut name = [0; _];
    let mut rest = &mut name[..];
    // SAFETY: so many bytes are there.
    if !file.starts_with(b"/") && !unsafe { libc::getcwd(rest.as_mut_ptr().cast(), rest.len()) }.is_null() {
        let length = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        rest = &mut rest[length..];
        rest.write_all(b"/")?;
    }
    rest.write_all(file)?;
    let length = size_of::<Name>() - rest.len();
    Ok((name, length))
}

/// Makes `name`, of so many bytes, the first one, or the next if that is taken.
///
/// # Errors
/// It is too long.
fn number(name: &mut Name, length: usize, process: u32, number: u32) -> Result<()> {
    let mut rest = &mut name[length..];
    match number {
        0 => {}
        1 => write!(rest, ".{process}")?,
        _ => write!(rest, ".{process}.{number}")?,
    }
    // A NUL behind it.
    rest.write_all(&[0])
}

struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: opened here, and nobody else's.
        unsafe { libc::close(self.0) };
    }
}

fn open(name: &Name, flags: c_int) -> Result<Descriptor> {
    // SAFETY: the name ends in a NUL.
    let descriptor =
        unsafe { libc::open(name.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC | flags, 0o666) };
    if descriptor < 0 { Err(Error::last_os_error()) } else { Ok(Descriptor(descriptor)) }
}

impl Descriptor {
    fn status(&self) -> Result<libc::stat> {
        let mut status = MaybeUninit::zeroed();
        // SAFETY: fills it in.
        match unsafe { libc::fstat(self.0, status.as_mut_ptr()) } {
            // SAFETY: filled in.
            0 => Ok(unsafe { status.assume_init() }),
            _ => Err(Error::last_os_error()),
        }
    }
    fn is(&self, found: &Found) -> bool {
        self.status().is_ok_and(|status| (status.st_dev, status.st_ino) == (found.device, found.inode))
    }
    /// Gives the file so many bytes, on the device: writing to a mapping of what the device has no room for would end the
    /// program, and so would asking for more than the process may write.
    fn extend(&self, from: usize, to: usize) -> Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills it in; the descriptor is open.
        let error = unsafe {
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            match limit.rlim_cur < to as libc::rlim_t {
                true => libc::EFBIG,
                false => loop {
                    let bytes = to.saturating_sub(from) as libc::off_t;
                    match libc::posix_fallocate(self.0, from as libc::off_t, bytes) {
                        // A signal came.
                        libc::EINTR => {}
                        error => break error,
                    }
                },
            }
        };
        if error == 0 { Ok(()) } else { Err(Error::from_raw_os_error(error)) }
    }
}

fn map(bytes: usize, flags: c_int, descriptor: c_int) -> Result<*mut c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: nothing is replaced.
    let mapped = unsafe { libc::mmap(null_mut(), bytes, access, flags, descriptor, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(mapped) }
}
