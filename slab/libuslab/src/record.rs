//! Records the program's malloc calls: `USLAB_OPTIONS=record=FILE_NAME` writes a file for `uslab replay FILE_NAME`.
//!
//! ```text
//! a call ── takes a place in the file, by one addition to a word of its header ── before a free, after an allocation
//!    │        └ no room yet: the file grows, by up to a mebibyte. If it has its largest size, or the device is full:
//!    │          only the place is counted
//!    └──── writes the record there, its last word last
//! ```
//!
//! # Rules
//!
//! * During a recording, the inlined paths are closed, so each call reaches this module. Without a recording, only
//!   slow-path calls reach this module, at the cost of one load per call.
//! * If an allocation reuses an address, its record always follows the record of the free, whatever the order of
//!   threads. A `realloc` that moves memory makes two records, a free of the old memory and then an allocation. A
//!   `realloc` in place records the new size.
//! * Allocations by the library itself, object caches ([`cache`](crate::cache)), and frees of null are not recorded.
//!   Memory that the C library allocates for a thread of this library is recorded: 288 bytes for the reaper's thread,
//!   with `reap=MS`.
//! * Recording takes no lock and uses no heap, so any caller of malloc can be recorded, even a signal handler. If the
//!   file cannot be created, the error report uses only memory of the library.
//! * Each process has a new file: FILE_NAME if it does not exist, otherwise FILE_NAME.PID, FILE_NAME.PID.2 and so on.
//!   If a recorded program starts other programs, each of them has a separate file. A process creates its recording
//!   file at its first call of malloc. A forked child creates its own file at its first call after the fork. If the
//!   child frees memory that the parent allocated, the child's file has the free without the allocation. A child of
//!   `vfork` shares the memory and the file of its parent.
//! * The recorder opens the file by its name each time the file grows, because the program may close any descriptor. If
//!   the recording file is removed or can no longer be opened, the recording ends. The recording file must not be
//!   truncated while the program runs, because an access would raise `SIGBUS`. Addresses for the maximum size of the
//!   recording file are reserved at the start.

/// The source code of the reader is included here, so that the format has only one definition.
#[allow(dead_code, reason = "a recorder uses some items, and a reader the others")]
#[path = "../../../sim/trace/src/record_format.rs"]
mod format;

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, dangling_mut, null_mut};
use format::{CALLS, CAPACITY_WORD_INDEX, HEADER, Header, Kind, RECORD, Record, WORD};
use nix::errno::Errno;
use nix::libc;
use std::io::{Error, Result, Write};
use std::mem::MaybeUninit;
use uslab::malloc::MAX_ALIGN;
use uslab::{AllocError, Uslab};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, AtomicU64, Kept};

/// Minimum and maximum number of records by which the file grows. Between these bounds, the file doubles in size.
const MIN_FILE_GROWTH_RECORDS: u64 = (64 << 10) / (RECORD * WORD) as u64;
const MAX_FILE_GROWTH_RECORDS: u64 = (1 << 20) / (RECORD * WORD) as u64;

/// The recorder is stored in a page that the kernel clears in the child of a fork. A child of any kind of fork starts a
/// new recording.
struct Recorder {
    /// Pointer to the mapped words of the file. Before the file exists, the pointer is null. While the file is being
    /// created, and if its creation fails, the pointer is [`NO_FILE_POINTER`].
    file: AtomicPtr<AtomicU64>,
    most: AtomicU64,
}

const NO_FILE_POINTER: *mut AtomicU64 = dangling_mut();

/// The recorder of a process without a file; child processes use it, too, and do not try to create a file.
static RECORDER_WITHOUT_FILE: Recorder =
    Recorder { file: AtomicPtr::new(NO_FILE_POINTER), most: AtomicU64::new(0) };

/// The recorder of this process; null before the first call.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(null_mut());

/// Pid of the process that was recorded last: this process, or a process from which it was forked.
static LAST_PID: AtomicU32 = AtomicU32::new(0);

/// The name by which the file is opened when it grows.
static FILE_NAME: Kept<RecordFileIdentity> = Kept::new();

/// A buffer for a file name. The buffer is shorter than the longest possible file name, because it is on the stack of
/// the first caller of malloc.
type FileName = [u8; 1024];

struct RecordFileIdentity {
    name: FileName,
    /// Length of the requested file name, which is the start of all derived names.
    length: usize,
    device: libc::dev_t,
    inode: libc::ino_t,
}

/// A position in the file for one record, and the record's time.
struct RecordSlot {
    words: &'static [AtomicU64],
    cpu: u16,
    time_ns: u64,
}

/// Creates the file if recording is enabled, so that even a program that never calls malloc has a file.
pub(crate) fn begin() {
    let _ = file();
}

#[inline]
pub(crate) fn record_alloc(memory: *mut c_void, size: usize, align: usize) {
    write(take_slot(), Kind::Alloc, memory.addr(), size, align);
}

/// Records a free; the caller frees the memory afterwards.
#[inline]
pub(crate) fn record_free(memory: NonNull<u8>) {
    write(take_slot(), Kind::Free, memory.addr().get(), 0, 1);
}

/// Calls [`Uslab::reallocate`], and records this call.
///
/// # Safety
/// The caller must fulfil the contract of [`Uslab::reallocate`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn reallocate(
    old: NonNull<u8>,
    size: usize,
) -> core::result::Result<NonNull<u8>, AllocError> {
    // If the memory moves, other threads may reuse the old memory before this thread continues, so
    // the record's place is taken first.
    let before = take_slot();
    // SAFETY: the memory may be reallocated, by this function's contract.
    let result = unsafe { Uslab.reallocate(old, size) };
    match result {
        Ok(new) if new == old => write(before, Kind::Resize, new.addr().get(), size, MAX_ALIGN),
        Ok(new) => {
            write(before, Kind::Free, old.addr().get(), 0, 1);
            record_alloc(new.as_ptr().cast(), size, MAX_ALIGN);
        }
        Err(_) => write(before, Kind::Alloc, 0, size, MAX_ALIGN),
    }
    result
}

#[inline]
fn write(place: Option<RecordSlot>, kind: Kind, address: usize, size: usize, align: usize) {
    if let Some(RecordSlot { words, cpu, time_ns }) = place {
        let [address, size, align] = [address, size, align].map(|number| number as u64);
        let record = Record { kind, address, cpu, time_ns, size, align };
        for (word, value) in words.iter().zip(record.words()) {
            // Release: a reader that sees the record's last word in the file also sees the other words.
            word.store(value.to_le(), Release);
        }
    }
}

/// Reserves the next position in the file. Returns `None` if recording is disabled, or if the file is full.
#[inline]
fn take_slot() -> Option<RecordSlot> {
    Uslab.record()?;
    take_record_slot()
}
#[cold]
fn take_record_slot() -> Option<RecordSlot> {
    let (recorder, file) = file()?;
    // Relaxed: additions to one word are ordered, and a later addition gets a later place.
    let place = word_at(file, CALLS).fetch_add(1, Relaxed);
    // Acquire: pairs with the Release in `grow`, so that the file is at least this long.
    if place >= word_at(file, CAPACITY_WORD_INDEX).load(Acquire) && !recorder.grow(file, place) {
        return None;
    }
    // SAFETY: the file has room for the record, and is never unmapped. No other thread has this place in the file.
    let words = unsafe { core::slice::from_raw_parts(file.add(HEADER + place as usize * RECORD), RECORD) };
    // SAFETY: the calls read the CPU number and the time.
    let (cpu, now) = unsafe {
        let mut now = MaybeUninit::<libc::timespec>::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        (libc::sched_getcpu(), now.assume_init())
    };
    let time_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    Some(RecordSlot { words, cpu: u16::try_from(cpu).unwrap_or(0), time_ns })
}

fn word_at(file: *mut AtomicU64, at: usize) -> &'static AtomicU64 {
    // SAFETY: a file has a header, and is never unmapped.
    unsafe { &*file.add(at) }
}

/// Returns the recorder and its file, and creates the file if it does not exist.
fn file() -> Option<(&'static Recorder, *mut AtomicU64)> {
    let (requested_path, limit) = Uslab.record()?;
    let recorder = recorder()?;
    // Acquire, Release: publish the file's header.
    let mut file = recorder.file.load(Acquire);
    if file.is_null() {
        // Calls that happen while the file is being made are not recorded. During the first call the process has no
        // other thread, so a concurrent call can come only from a signal handler.
        if recorder.file.compare_exchange(file, NO_FILE_POINTER, Acquire, Relaxed).is_err() {
            return None;
        }
        let errno = Errno::last_raw();
        match recorder.create_file(requested_path, limit) {
            Ok(made) => {
                recorder.file.store(made, Release);
                file = made;
            }
            // An error of the write to standard error cannot be reported.
            Err(error) => {
                let name = requested_path.escape_ascii();
                let _ = writeln!(std::io::stderr(), "uslab: record `{name}`: {error}; nothing is recorded");
                // Relaxed: readers find a static value, which is initialised from the start.
                RECORDER.store((&raw const RECORDER_WITHOUT_FILE).cast_mut(), Relaxed);
                file = NO_FILE_POINTER;
            }
        }
        Errno::set_raw(errno);
    }
    (file != NO_FILE_POINTER).then_some((recorder, file))
}

fn recorder() -> Option<&'static Recorder> {
    // Acquire: pairs with the Release that publishes the recorder's page.
    let current = RECORDER.load(Acquire);
    // SAFETY: the pointer is null, or its target is never unmapped. All zeros is a valid recorder.
    if let Some(current) = unsafe { current.as_ref() } {
        return Some(current);
    }
    let page = map(size_of::<Recorder>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).ok()?;
    let page = page.cast::<Recorder>();
    // SAFETY: the page was just mapped, and is not shared if another thread was first.
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
    fn create_file(&self, requested_path: &[u8], limit: usize) -> Result<*mut AtomicU64> {
        let process = std::process::id();
        // Relaxed: a child finds its parent's value.
        let parent = Some(LAST_PID.swap(process, Relaxed)).filter(|parent| ![0, process].contains(parent));
        let too_long = |_| Error::from_raw_os_error(libc::ENAMETOOLONG);
        // SAFETY: only this thread makes a file and writes `FILE_NAME`. The file of a child is in the same directory
        // as its parent's file.
        let (mut name, length) = match unsafe { FILE_NAME.get() } {
            Some(found) => (found.name, found.length),
            None => absolute_path(requested_path).map_err(too_long)?,
        };
        let mut number = 0;
        let descriptor = loop {
            append_file_number(&mut name, length, process, number).map_err(too_long)?;
            match open(&name, libc::O_CREAT | libc::O_EXCL) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => number += 1,
                opened => break opened?,
            }
        };
        let max_records = limit.saturating_sub(HEADER * WORD) / (RECORD * WORD);
        let status = descriptor.status()?;
        let file = self.map(&descriptor, (HEADER + max_records * RECORD) * WORD).inspect_err(|_| {
            // SAFETY: the name ends in a NUL.
            unsafe { libc::unlink(name.as_ptr().cast()) };
        })?;
        let mut program = [0; 16];
        // SAFETY: the buffer has room for the name of a thread.
        unsafe { libc::prctl(libc::PR_GET_NAME, program.as_mut_ptr()) };
        let header = Header { process, parent, program, calls: 0, room: 0 };
        for (at, value) in header.words().into_iter().enumerate() {
            // Relaxed: the word is published with the file.
            word_at(file, at).store(value.to_le(), Relaxed);
        }
        // Relaxed: the number is published with the file.
        self.most.store(max_records as u64, Relaxed);
        // SAFETY: only this thread makes a file, and no thread grows it yet.
        unsafe {
            FILE_NAME.put(RecordFileIdentity { name, length, device: status.st_dev, inode: status.st_ino })
        };
        Ok(file)
    }

    /// Maps a new file, which no other process uses.
    fn map(&self, descriptor: &Descriptor, bytes: usize) -> Result<*mut AtomicU64> {
        let recorder = core::ptr::from_ref(self).cast_mut();
        descriptor.extend(0, HEADER * WORD)?;
        let file = map(bytes, libc::MAP_SHARED, descriptor.0)?;
        // SAFETY: only the recorder and the file use these pages.
        let advised = unsafe {
            libc::madvise(recorder.cast(), size_of::<Self>(), libc::MADV_WIPEONFORK) == 0
                && libc::madvise(file, bytes, libc::MADV_DONTFORK) == 0
        };
        if advised { Ok(file.cast()) } else { Err(Error::last_os_error()) }
    }

    /// Extends the file until it contains the record at index `place`. Returns `false` if the file cannot grow. Several
    /// threads may call `grow` concurrently.
    #[cold]
    fn grow(&self, file: *mut AtomicU64, place: u64) -> bool {
        // Relaxed: the header has the number of lost records.
        let max_records = self.most.load(Relaxed);
        if place >= max_records {
            return false;
        }
        let errno = Errno::last_raw();
        // Acquire: if another thread was first, pairs with the Release below.
        let room_before = word_at(file, CAPACITY_WORD_INDEX).load(Acquire);
        if place < room_before {
            return true;
        }
        let room = max_records.min(place + place.clamp(MIN_FILE_GROWTH_RECORDS, MAX_FILE_GROWTH_RECORDS));
        let [from, to] = [room_before, room].map(|records| (HEADER + records as usize * RECORD) * WORD);
        // SAFETY: `FILE_NAME` was written before the file was published, and is not written again in this process.
        let grown = unsafe { FILE_NAME.get() }.is_some_and(|found| {
            let reopened = open(&found.name, 0);
            reopened
                .is_ok_and(|descriptor| descriptor.is_same_file(found) && descriptor.extend(from, to).is_ok())
        });
        if grown {
            // Release: pairs with the Acquire in `take_record_slot`.
            word_at(file, CAPACITY_WORD_INDEX).fetch_max(room, Release);
        } else {
            // Relaxed: the number is a hint. If the file could not grow, later calls do not try
            // again.
            self.most.fetch_min(room, Relaxed);
        }
        Errno::set_raw(errno);
        grown
    }
}

/// Returns the absolute form of the name `file` and its length, because the program may change its
/// directory.
///
/// # Errors
/// Returns an error if the name is too long for the buffer.
fn absolute_path(file: &[u8]) -> Result<(FileName, usize)> {
    let mut name = [0; _];
    let mut tail = &mut name[..];
    // SAFETY: the buffer has this many bytes.
    if !file.starts_with(b"/") && !unsafe { libc::getcwd(tail.as_mut_ptr().cast(), tail.len()) }.is_null() {
        let length = tail.iter().position(|byte| *byte == 0).unwrap_or(0);
        tail = &mut tail[length..];
        tail.write_all(b"/")?;
    }
    tail.write_all(file)?;
    let length = size_of::<FileName>() - tail.len();
    Ok((name, length))
}

/// Completes the file name, whose first `length` bytes are given: adds a numbered suffix if a file of that name exists.
///
/// # Errors
/// Returns an error if the name is too long for the buffer.
fn append_file_number(name: &mut FileName, length: usize, process: u32, number: u32) -> Result<()> {
    let mut remaining = &mut name[length..];
    match number {
        0 => {}
        1 => write!(remaining, ".{process}")?,
        _ => write!(remaining, ".{process}.{number}")?,
    }
    // A NUL follows the name.
    remaining.write_all(&[0])
}

struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value opened the descriptor, and no other code uses it.
        unsafe { libc::close(self.0) };
    }
}

fn open(name: &FileName, flags: c_int) -> Result<Descriptor> {
    // SAFETY: the name ends in a NUL.
    let descriptor =
        unsafe { libc::open(name.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC | flags, 0o666) };
    if descriptor < 0 { Err(Error::last_os_error()) } else { Ok(Descriptor(descriptor)) }
}

impl Descriptor {
    fn status(&self) -> Result<libc::stat> {
        let mut status = MaybeUninit::zeroed();
        // SAFETY: `fstat` writes the result.
        match unsafe { libc::fstat(self.0, status.as_mut_ptr()) } {
            // SAFETY: `fstat` has written the result.
            0 => Ok(unsafe { status.assume_init() }),
            _ => Err(Error::last_os_error()),
        }
    }
    fn is_same_file(&self, found: &RecordFileIdentity) -> bool {
        self.status().is_ok_and(|status| (status.st_dev, status.st_ino) == (found.device, found.inode))
    }
    /// Allocates blocks on the file's device. Without allocated blocks, a write to the mapping would kill the program
    /// if the device is full or the file exceeds the process's size limit.
    fn extend(&self, from: usize, to: usize) -> Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes its result, and the descriptor is open.
        let error = unsafe {
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            match limit.rlim_cur < to as libc::rlim_t {
                true => libc::EFBIG,
                false => loop {
                    let bytes = to.saturating_sub(from) as libc::off_t;
                    match libc::posix_fallocate(self.0, from as libc::off_t, bytes) {
                        // A signal has interrupted the call, which is repeated.
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
    // SAFETY: the mapping is new, and replaces no other mapping.
    let mapped = unsafe { libc::mmap(null_mut(), bytes, access, flags, descriptor, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(mapped) }
}
