//! The reaper thread of a subsystem.
//!
//! ```text
//!                               grown to START_BYTES, an object with a destructor
//!                               was constructed, or a cache has a waiter
//!  off ── reap_every ──> wanted ─────────────────────────────> running <──────────────┐
//!                          ^  └── no thread: at twice the size, ──┘ │                 │ pages are freed,
//!                          │      or for the next waiter            └─── quiet ──> asleep   or a waiter joins
//!                          └───────────── the child of a fork ──────────┴─────────────┘
//! ```
//!
//! # Rules
//!
//! * The thread is started by allocations that make a slab, take a block, map memory, or wait at a limit. Frees never
//!   start the thread, because thread libraries free memory while they hold locks that a thread start may need. The
//!   starting thread holds none of the subsystem's locks. If the start itself allocates, its allocations find the
//!   reaper already running.
//! * The C library creates the thread. A thread start of `std` would read the environment under a lock, and register
//!   destructors of thread-locals.
//! * A free unparks the thread with a word and a futex, without a lock or an allocation.
//! * The thread keeps the subsystem alive only while it ends an interval. When the last user drops the subsystem, the
//!   drop wakes the thread, which then exits.
//! * A process whose main thread has called `pthread_exit` lives as long as it has threads. If only the library's
//!   threads are left, they exit, which ends the process.

use std::sync::{Arc, Weak};
use std::time::Duration;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::thread::{Thread, current, park_timeout};
use uslab_magazine::sync::unseen::AtomicU64;
use uslab_magazine::sync::{AtomicPtr, AtomicU32, Counter, Fixed, MODEL, contain_panic};

/// Size at which a subsystem starts its reaper thread: bytes of committed pages plus bytes of mappings above 4 MiB.
/// Reaping a smaller subsystem is not worth a thread.
pub const START_BYTES: usize = 8 << 20;

/// Number of consecutive intervals without work after which the thread sleeps. Flushing a depot takes fewer intervals.
const MAX_INTERVALS_WITHOUT_WORK: u32 = 4;

/// Interval at which the sleeping thread checks whether it is the process's last thread.
const LAST_THREAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// State of the reaper thread of [`Config::reap_every`](crate::Config::reap_every).
///
/// ```
/// use uslab::{Config, ReaperThread, Subsystem};
///
/// let subsystem = Subsystem::new(Config { reap_every: None, ..Config::default() })?;
/// assert_eq!(subsystem.info().reaper.thread, ReaperThread::Off);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ReaperThread {
    /// The configuration requests no reaper.
    Off,
    /// The thread has not started: the subsystem is too small, or the system refused a thread.
    Wanted,
    /// The thread is running and ends intervals.
    Running,
    /// The thread is asleep until pages are freed or a waiter joins.
    Asleep,
}
use ReaperThread::{Asleep, Off, Running, Wanted};

impl ReaperThread {
    fn of(state: u32) -> Self {
        [Off, Wanted, Running, Asleep].into_iter().find(|known| *known as u32 == state).unwrap_or(Off)
    }
}

/// A report on the reaper thread of [`Config::reap_every`](crate::Config::reap_every).
///
/// ```
/// use std::time::Duration;
/// use uslab::{Config, ReaperThread, Subsystem};
///
/// let reap_every = Some(Duration::from_millis(500));
/// let subsystem = Subsystem::new(Config { reap_every, ..Config::default() })?;
/// let reaper = subsystem.info().reaper;
/// assert_eq!((reaper.interval_ms, reaper.intervals), (500, 0));
/// assert_eq!(reaper.thread, ReaperThread::Wanted); // there is nothing to reap yet
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReaperInfo {
    /// State of the reaper's thread.
    pub thread: ReaperThread,
    /// Length of a reaping interval, in milliseconds.
    pub interval_ms: u32,
    /// Number of intervals ended so far.
    pub intervals: u64,
    /// Number of times that the system refused to create a thread.
    pub refused: u64,
}

/// Operations of a subsystem that its reaper thread calls.
pub(crate) trait Reap: Send + Sync {
    /// Ends a reaping interval. Returns the number of decommitted bytes.
    fn end_interval(&self) -> usize;
    /// Frees all unused memory, because the system is short of memory.
    fn free_unused(&self);
    /// Counter of changes. If the counter is unchanged, another interval would find no work.
    fn changes(&self) -> u64;
    /// Returns `true` if another interval is needed: a cache has a waiter, or the state has [changed](Self::changes)
    /// without waking the thread.
    fn is_needed(&self, _seen: u64) -> bool {
        false
    }
    fn background(&self) -> &BackgroundReaper;
}

#[derive(Debug)]
pub(crate) struct BackgroundReaper {
    /// State of the reaper thread, as a [`ReaperThread`].
    state: AtomicU32,
    /// Reaping interval in milliseconds; 0 if unset.
    interval: Fixed,
    /// Committed memory in MiB at which the thread is started.
    start_at: Fixed,
    /// Handle that wakes the thread; null until the thread has stored it.
    thread: AtomicPtr<Thread>,
    intervals: Counter,
    refused: Counter,
    core: Weak<dyn Reap>,
}

impl BackgroundReaper {
    pub(crate) fn new(core: Weak<dyn Reap>, interval: Option<Duration>) -> Self {
        let new = Self {
            state: AtomicU32::new(Off as u32),
            interval: Fixed::new(0),
            // Subsystems of models are small, so they need a reaper at any size.
            start_at: Fixed::new(if cfg!(shuttle) { 0 } else { (START_BYTES >> 20) as u32 }),
            thread: AtomicPtr::new(core::ptr::null_mut()),
            intervals: Counter::new(0),
            refused: Counter::new(0),
            core,
        };
        if let Some(interval) = interval {
            new.reap_every(interval);
        }
        new
    }

    /// Sets the reaping interval to `interval`, but to at least one millisecond.
    pub(crate) fn reap_every(&self, interval: Duration) {
        self.interval.set(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1));
        // Relaxed: the state is only a hint to the next allocation that grows the subsystem.
        let _ = self.state.compare_exchange(Off as u32, Wanted as u32, Relaxed, Relaxed);
    }

    /// Returns `true` if a reaper was requested and should start once the subsystem is large
    /// enough.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_served_by_thread(Wanted)
    }

    /// Starts the reaper thread if `committed` bytes are enough to justify a thread.
    #[cold]
    pub(crate) fn start(&self, committed: usize) {
        let committed = committed as u64;
        if committed >> 20 >= u64::from(self.start_at.get()) && !self.start_reaper_thread() {
            self.start_at.set(u32::try_from(committed >> 19).unwrap_or(u32::MAX));
        }
    }
    /// Starts the reaper thread if one was requested and is not running yet. Returns `false` if the system refuses to
    /// create a thread.
    fn start_reaper_thread(&self) -> bool {
        // Relaxed: the exchange only selects the starting thread; the new thread gets its data through the start
        // itself.
        if self.state.compare_exchange(Wanted as u32, Running as u32, Relaxed, Relaxed).is_err() {
            return true;
        }
        let started = thread::start(self.core.clone());
        if !started {
            self.refused.add(1);
            // Relaxed: the store only lets another thread start the reaper next.
            self.state.store(Wanted as u32, Relaxed);
        }
        started
    }

    fn is_served_by_thread(&self, thread: ReaperThread) -> bool {
        // Relaxed: `run` explains why the thread does not miss the effect of a free. loom's models have no reaper.
        !cfg!(loom) && self.state.load(Relaxed) == thread as u32
    }

    /// Wakes the reaper thread after pages were freed or a waiter joined.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.is_served_by_thread(Asleep) {
            self.unpark();
        }
    }

    /// Starts or wakes the reaper thread on behalf of a waiter, which the next interval may serve.
    pub(crate) fn start_or_wake_reaper(&self) {
        // A waiter gets a reaper however small the subsystem is.
        self.start_reaper_thread();
        self.wake();
    }

    #[cold]
    fn unpark(&self) {
        // Relaxed: one of several concurrent callers wakes the thread, and the zone's lock orders the freed pages.
        if self.state.compare_exchange(Asleep as u32, Running as u32, Relaxed, Relaxed).is_ok() {
            // Acquire: pairs with the Release in `run`. SAFETY: the pointer is null or the thread's handle, which is
            // freed only when `self` is dropped.
            unsafe { self.thread.load(Acquire).as_ref() }.into_iter().for_each(Thread::unpark);
        }
    }

    /// Resets the state in the child of a fork, which has no reaper thread. The child's next growth or waiter starts a
    /// new thread.
    pub(crate) fn reset_after_fork(&self) {
        // Relaxed: the child has one thread. The handle is leaked, like everything that the parent's other
        // threads owned.
        self.thread.store(core::ptr::null_mut(), Relaxed);
        if self.state.load(Relaxed) != Off as u32 {
            self.state.store(Wanted as u32, Relaxed);
        }
    }

    pub(crate) fn info(&self) -> ReaperInfo {
        ReaperInfo {
            thread: ReaperThread::of(self.state.load(Relaxed)),
            interval_ms: self.interval.get(),
            intervals: self.intervals.get(),
            refused: self.refused.get(),
        }
    }
}

impl Drop for BackgroundReaper {
    fn drop(&mut self) {
        // Acquire: pairs with the Release in `run`.
        let thread = self.thread.load(Acquire);
        if !thread.is_null() {
            // SAFETY: `run` made the handle from a box. `self` is being dropped, so no other thread uses
            // the handle.
            unsafe { Box::from_raw(thread) }.unpark();
        }
    }
}

/// Body of the reaper thread: ends intervals as long as the subsystem exists.
fn run(weak: &Weak<dyn Reap>) {
    let _own = OwnThread::begin();
    if let Some(core) = weak.upgrade() {
        let thread = Box::into_raw(Box::new(current()));
        // Release: pairs with the Acquires in `unpark` and `drop`.
        core.background().thread.store(thread, Release);
    }
    let (mut quiet, mut seen) = (0, 0);
    while let Some(core) = weak.upgrade() {
        let background = core.background();
        // The panic hook has already reported a panic.
        contain_panic(|| core.end_interval());
        background.intervals.add(1);
        let now = core.changes();
        quiet = if now == seen && !core.is_needed(now) { quiet + 1 } else { 0 };
        seen = now;
        let interval = Duration::from_millis(background.interval.get().into());
        if quiet < MAX_INTERVALS_WITHOUT_WORK {
            drop(core);
            wait(interval);
        } else {
            quiet = 0;
            // Relaxed: the locks of the zones and of mappings order the store. A free is either counted below, or takes
            // its lock afterwards and then sees that the thread is asleep.
            background.state.store(Asleep as u32, Relaxed);
            if core.changes() != seen {
                background.state.store(Running as u32, Relaxed);
            }
            drop(core);
            // The thread now sleeps until another thread frees pages, waits at a limit, or drops
            // the subsystem.
            let sleeps =
                |core: Arc<dyn Reap>| core.background().is_served_by_thread(Asleep) && !core.is_needed(seen);
            while !are_alone() && weak.upgrade().is_some_and(sleeps) {
                park_timeout(LAST_THREAD_CHECK_INTERVAL);
            }
            if let Some(core) = weak.upgrade() {
                // Relaxed: the exchange only ends the sleep, unless another thread has already
                // ended it.
                _ = core.background().state.compare_exchange(Asleep as u32, Running as u32, Relaxed, Relaxed);
            }
        }
        if are_alone() {
            return;
        }
    }
}

fn wait(interval: Duration) {
    // Time does not pass under shuttle, where only a wake-up ends the park below. Shuttle therefore finds a
    // lost wake-up.
    if cfg!(shuttle) { uslab_magazine::sync::relax() } else { park_timeout(interval) }
}

/// Number of running library threads in the lower half, and the pid of their process in the upper half. The child of a
/// fork has no library threads, so the pid shows if the number is valid. Library threads do not keep a process alive.
static LIBRARY_THREADS: AtomicU64 = AtomicU64::new(0);

fn update_library_thread_count(change: impl Fn(u32) -> u32) {
    let process = u64::from(std::process::id()) << 32;
    // Relaxed, here and at the read: the counter publishes no other data.
    let mut now = LIBRARY_THREADS.load(Relaxed);
    loop {
        let threads = if now >> 32 == process >> 32 { now as u32 } else { 0 };
        match LIBRARY_THREADS.compare_exchange(now, process | u64::from(change(threads)), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// Guard that marks the calling thread as a library thread.
#[doc(hidden)]
#[derive(Debug)]
pub struct OwnThread(());

impl OwnThread {
    /// Marks the calling thread as a library thread.
    pub fn begin() -> Self {
        update_library_thread_count(|own| own + 1);
        Self(())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        update_library_thread_count(|own| own.saturating_sub(1));
    }
}

/// Returns `true` if the main thread has exited and only the library's threads are left.
#[doc(hidden)]
pub fn are_alone() -> bool {
    if MODEL {
        return false;
    }
    #[cfg(target_os = "linux")]
    {
        use std::io::Read;
        let (mut text, own) = ([0; 512], LIBRARY_THREADS.load(Relaxed));
        let read = std::fs::File::open("/proc/self/stat").and_then(|mut stat| stat.read(&mut text));
        // The text is `number (name) state ...`; the twentieth field is the number of threads, and the name may contain
        // any character.
        let Ok(text) = core::str::from_utf8(&text[..read.unwrap_or(0)]) else { return false };
        let mut fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        let is_over = fields.next() == Some("Z");
        let threads: Option<u64> = fields.nth(16).and_then(|threads| threads.parse().ok());
        // A thread that starts or exits during this check may be counted or not, so the next check decides.
        is_over && LIBRARY_THREADS.load(Relaxed) == own && threads == Some(1 + (own & u64::from(u32::MAX)))
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(all(unix, not(any(loom, shuttle))))]
mod thread {
    use super::{Reap, Weak};
    use core::ffi::c_void;
    use core::mem::MaybeUninit;
    use core::ptr::null_mut;

    /// Size of the thread's stack in bytes. The stack is as large as `std`'s default stack, because destructors run on
    /// it.
    const STACK_BYTES: usize = 2 << 20;

    /// Starts a reaper thread, which blocks all signals. Returns `false` if the system refuses to create a thread.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        let (mut attributes, mut id) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let core = Box::into_raw(Box::new(core));
        // SAFETY: each value is initialised by the first call that receives it. The new thread owns its argument;
        // without a new thread, this function keeps it.
        unsafe {
            if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                drop(Box::from_raw(core));
                return false;
            }
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            // The new thread inherits this signal mask, because it should run no signal handler of the
            // program.
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let made = libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), main, core.cast());
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            if made != 0 {
                drop(Box::from_raw(core));
            }
            made == 0
        }
    }

    extern "C" fn main(core: *mut c_void) -> *mut c_void {
        #[cfg(target_os = "linux")]
        // SAFETY: the name has fewer than 16 bytes and ends in a NUL.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"uslab-reaper".as_ptr());
        }
        // SAFETY: the pointer came from `start`, which passed its ownership to this thread.
        super::run(&unsafe { *Box::from_raw(core.cast::<Weak<dyn Reap>>()) });
        null_mut()
    }

    const fn assert_is_send<T: Send>() {}
    const _: () = assert_is_send::<Weak<dyn Reap>>();
}

#[cfg(any(loom, shuttle))]
mod thread {
    use super::{Reap, Weak};

    /// Starts the reaper as a thread of the model checker.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        drop(uslab_magazine::sync::thread::spawn(move || super::run(&core)));
        true
    }
}

#[cfg(not(any(unix, shuttle)))]
mod thread {
    use super::{Reap, Weak};

    /// Starts a reaper thread. Returns `false` if the system refuses to create a thread.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        std::thread::Builder::new().name("uslab-reaper".to_owned()).spawn(move || super::run(&core)).is_ok()
    }
}
