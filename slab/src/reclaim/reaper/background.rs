//! The reaper that a subsystem starts by itself.
//!
//! ```text
//!                               grown to START_BYTES, an object with a destructor
//!                               was constructed, or somebody waits at a limit
//!  off ── reap_every ──> wanted ─────────────────────────────> running <──────────────┐
//!                          ^  └── no thread: at twice the size, ──┘ │                 │ pages come back,
//!                          │      or when the next one waits        └─── quiet ──> asleep   or somebody waits
//!                          └───────────── the child of a fork ──────────┴─────────────┘
//! ```
//!
//! # Rules
//!
//! * It is started by allocations that make a slab, take a block, map, or wait at a limit, never by frees: those come from inside of thread libraries,
//!   which may hold the locks that a new thread needs. What starts it holds no lock of ours. What a start allocates finds it
//!   running already.
//! * The thread is the C library's, not `std`'s, whose start looks at the environment under a lock of its own, and registers
//!   destructors of thread-locals.
//! * A free wakes it by an unpark: a word and a futex, no lock and no memory.
//! * It holds the subsystem only during an interval. The last user's drop wakes it, and it ends.
//! * A process whose main thread ended by `pthread_exit` lives as long as it has threads. When none is left but the library's own, they
//!   end, and the process with them.

use std::sync::{Arc, Weak};
use std::time::Duration;
use uslab_magazine::sync::Ordering::{Acquire, Relaxed, Release};
use uslab_magazine::sync::thread::{Thread, current, park_timeout};
use uslab_magazine::sync::unseen::AtomicU64;
use uslab_magazine::sync::{AtomicPtr, AtomicU32, Counter, Fixed, MODEL, contain_panic, planted};

/// Bytes of pages that a subsystem has committed, and of mappings above 4 MiB, before it starts a thread: what is less is not worth one.
pub const START_BYTES: usize = 8 << 20;

/// Intervals in a row that find nothing before the thread sleeps: more than a depot needs to give up what it holds.
const QUIET: u32 = 4;

/// How often the thread looks, asleep, whether it is the last one of the process.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread of [`Config::reap_every`](crate::Config::reap_every) is doing.
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
    /// Nobody asked for one.
    Off,
    /// There is none: the subsystem is too small yet, or the system refused it.
    Wanted,
    /// It ends intervals.
    Running,
    /// It waits for pages to come back, or for somebody who waits at a limit.
    Asleep,
}
use ReaperThread::{Asleep, Off, Running, Wanted};

impl ReaperThread {
    fn of(state: u32) -> Self {
        [Off, Wanted, Running, Asleep].into_iter().find(|known| *known as u32 == state).unwrap_or(Off)
    }
}

/// A report on the thread of [`Config::reap_every`](crate::Config::reap_every).
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
    /// What it is doing.
    pub thread: ReaperThread,
    /// Milliseconds of an interval.
    pub interval_ms: u32,
    /// Intervals that it ended.
    pub intervals: u64,
    /// Times that the system gave no thread.
    pub refused: u64,
}

/// What is reaped.
pub(crate) trait Reap: Send + Sync {
    /// Ends an interval. Bytes that went back to the system.
    fn end_interval(&self) -> usize;
    /// Memory is short outside: all that can be had goes back.
    fn relieve(&self);
    /// As long as this stays, another interval finds nothing new.
    fn changes(&self) -> u64;
    /// Whether somebody waits for the next interval, or it [changed](Self::changes) although nobody wakes the thread for that.
    fn is_needed(&self, _seen: u64) -> bool {
        false
    }
    /// The thread of its own.
    fn background(&self) -> &Background;
}

#[derive(Debug)]
pub(crate) struct Background {
    /// A [`ReaperThread`].
    state: AtomicU32,
    /// Milliseconds.
    interval: Fixed,
    /// MiB of committed pages at which it is started.
    start_at: Fixed,
    /// The thread, to wake it; null before it says who it is.
    thread: AtomicPtr<Thread>,
    intervals: Counter,
    refused: Counter,
    core: Weak<dyn Reap>,
}

impl Background {
    pub(crate) fn new(core: Weak<dyn Reap>, interval: Option<Duration>) -> Self {
        let new = Self {
            state: AtomicU32::new(Off as u32),
            interval: Fixed::new(0),
            // Models are small.
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

    /// From now on, in steps of a millisecond, at least one.
    pub(crate) fn reap_every(&self, interval: Duration) {
        self.interval.set(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1));
        // Relaxed: a hint to whoever grows next.
        let _ = self.state.compare_exchange(Off as u32, Wanted as u32, Relaxed, Relaxed);
    }

    /// Whether it should be started, once the subsystem is large enough.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.is(Wanted)
    }

    /// Starts the thread if `committed` bytes are enough for it to look after.
    #[cold]
    pub(crate) fn start(&self, committed: usize) {
        let committed = committed as u64;
        if committed >> 20 >= u64::from(self.start_at.get()) && !self.start_now() {
            self.start_at.set(u32::try_from(committed >> 19).unwrap_or(u32::MAX));
        }
    }
    /// Starts it if it is wanted. `false`: the system has no thread.
    fn start_now(&self) -> bool {
        // Relaxed: who starts it is all that is decided; the thread gets what it needs by the start.
        if self.state.compare_exchange(Wanted as u32, Running as u32, Relaxed, Relaxed).is_err() {
            return true;
        }
        let started = thread::start(self.core.clone());
        if !started {
            self.refused.add(1);
            // Relaxed: as above.
            self.state.store(Wanted as u32, Relaxed);
        }
        started
    }

    fn is(&self, thread: ReaperThread) -> bool {
        // Relaxed: see `run` for why the thread does not miss what a free brought. loom's models have no reaper.
        !cfg!(loom) && self.state.load(Relaxed) == thread as u32
    }

    /// Pages came back, or somebody waits: there may be something to do.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.is(Asleep) {
            self.unpark();
        }
    }

    /// Somebody waits for what the next interval may bring.
    pub(crate) fn start_or_wake(&self) {
        planted!("who waits at a limit wakes no reaper" => return);
        // However small the subsystem is, and although there was none before.
        self.start_now();
        self.wake();
    }

    #[cold]
    fn unpark(&self) {
        // Relaxed: one of those who come together wakes it, and the pages are under their zone's lock.
        if self.state.compare_exchange(Asleep as u32, Running as u32, Relaxed, Relaxed).is_ok() {
            // Acquire: pairs with the Release in `run`.
            // SAFETY: null, or the thread's handle, which is freed by the drop of this only.
            unsafe { self.thread.load(Acquire).as_ref() }.into_iter().for_each(Thread::unpark);
        }
    }

    /// In the child of a fork there is no such thread; another one is started when it grows, or when somebody waits.
    pub(crate) fn in_child(&self) {
        // Relaxed: the child has one thread. The handle is leaked, as all that other threads had.
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

impl Drop for Background {
    fn drop(&mut self) {
        // Acquire: pairs with the Release in `run`.
        let thread = self.thread.load(Acquire);
        if !thread.is_null() {
            // SAFETY: made by `run` from a box; nobody else has this any more.
            unsafe { Box::from_raw(thread) }.unpark();
        }
    }
}

/// Ends intervals as long as there is a subsystem.
fn run(weak: &Weak<dyn Reap>) {
    let _own = OwnThread::begin();
    if let Some(core) = weak.upgrade() {
        let own = Box::into_raw(Box::new(current()));
        // Release: pairs with the Acquires of those who wake or drop it.
        core.background().thread.store(own, Release);
    }
    let (mut quiet, mut seen) = (0, 0);
    while let Some(core) = weak.upgrade() {
        let own = core.background();
        // What panics has been reported where it did so.
        contain_panic(|| core.end_interval());
        own.intervals.add(1);
        let now = core.changes();
        quiet = if now == seen && !core.is_needed(now) { quiet + 1 } else { 0 };
        seen = now;
        let interval = Duration::from_millis(own.interval.get().into());
        if quiet < QUIET {
            drop(core);
            wait(interval);
        } else {
            quiet = 0;
            // Relaxed: the locks of the zones and of mappings order it. A free is either counted below, or took its lock after
            // that, and then finds that the thread sleeps.
            own.state.store(Asleep as u32, Relaxed);
            planted!("the reaper falls asleep without another look" => seen = core.changes());
            if core.changes() != seen {
                own.state.store(Running as u32, Relaxed);
            }
            drop(core);
            // Until somebody frees pages, waits at a limit, or drops the subsystem.
            let sleeps = |core: Arc<dyn Reap>| core.background().is(Asleep) && !core.is_needed(seen);
            while !are_alone() && weak.upgrade().is_some_and(sleeps) {
                park_timeout(LOOK);
            }
            if let Some(core) = weak.upgrade() {
                // Relaxed: as above. Who woke it has done so already.
                _ = core.background().state.compare_exchange(Asleep as u32, Running as u32, Relaxed, Relaxed);
            }
        }
        if are_alone() {
            return;
        }
    }
}

/// For an interval, or less.
fn wait(interval: Duration) {
    // Under shuttle nobody's time passes: there the park below ends by a wake-up only, so that a lost one shows.
    if cfg!(shuttle) { uslab_magazine::sync::relax() } else { park_timeout(interval) }
}

/// How many threads the library has for itself in this process, by its number, which is in front: the child of a fork has none. A
/// process ends with the last of its own threads, and these are none.
static OWN: AtomicU64 = AtomicU64::new(0);

/// Changes how many there are.
fn change_own(change: impl Fn(u32) -> u32) {
    let process = u64::from(std::process::id()) << 32;
    // Relaxed, here and where it is looked at: a number.
    let mut now = OWN.load(Relaxed);
    loop {
        let own = if now >> 32 == process >> 32 { now as u32 } else { 0 };
        match OWN.compare_exchange(now, process | u64::from(change(own)), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// The calling thread is one of them, as long as this lives.
#[doc(hidden)]
#[derive(Debug)]
pub struct OwnThread(());

impl OwnThread {
    /// From now on.
    pub fn begin() -> Self {
        change_own(|own| own + 1);
        Self(())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        change_own(|own| own.saturating_sub(1));
    }
}

/// Whether the main thread has ended and none is left but the library's own.
#[doc(hidden)]
pub fn are_alone() -> bool {
    if MODEL {
        return false;
    }
    #[cfg(target_os = "linux")]
    {
        use std::io::Read;
        let (mut text, own) = ([0; 512], OWN.load(Relaxed));
        let read = std::fs::File::open("/proc/self/stat").and_then(|mut stat| stat.read(&mut text));
        // `number (name) state ...`, the twentieth is how many threads; the name may have anything in it.
        let Ok(text) = core::str::from_utf8(&text[..read.unwrap_or(0)]) else { return false };
        let mut fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        let is_over = fields.next() == Some("Z");
        let threads: Option<u64> = fields.nth(16).and_then(|threads| threads.parse().ok());
        // One that begins or ends meanwhile is among the threads or is not: the next look tells.
        is_over && OWN.load(Relaxed) == own && threads == Some(1 + (own & u64::from(u32::MAX)))
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

    /// Bytes of the thread's stack, as `std`'s: destructors run on it.
    const STACK: usize = 2 << 20;

    /// A thread of its own, which takes no signals. `false` if the system gives none.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        let (mut attributes, mut id) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let core = Box::into_raw(Box::new(core));
        // SAFETY: each is initialised by the call that it is first passed to; the thread owns what it is passed, and this
        // does if there is none.
        unsafe {
            if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                drop(Box::from_raw(core));
                return false;
            }
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            // The new thread has the mask of this one: no handler of the program should run on it.
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
        // SAFETY: a name of less than 16 bytes, which ends in a NUL.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"uslab-reaper".as_ptr());
        }
        // SAFETY: from `start`, which gave it up.
        super::run(&unsafe { *Box::from_raw(core.cast::<Weak<dyn Reap>>()) });
        null_mut()
    }

    const fn may_be_sent<T: Send>() {}
    const _: () = may_be_sent::<Weak<dyn Reap>>();
}

#[cfg(any(loom, shuttle))]
mod thread {
    use super::{Reap, Weak};

    /// A thread of the checker's.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        drop(uslab_magazine::sync::thread::spawn(move || super::run(&core)));
        true
    }
}

#[cfg(not(any(unix, shuttle)))]
mod thread {
    use super::{Reap, Weak};

    /// A thread of its own. `false` if the system gives none.
    pub(super) fn start(core: Weak<dyn Reap>) -> bool {
        std::thread::Builder::new().name("uslab-reaper".to_owned()).spawn(move || super::run(&core)).is_ok()
    }
}
