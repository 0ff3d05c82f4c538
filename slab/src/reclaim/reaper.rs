//! The reaper: a thread that periodically ends a reaping interval of a subsystem.
//!
//! The end of an interval has four steps. First, objects beyond the magazines' working set, and objects on idle stacks,
//! are flushed to the slabs. Second, free objects in slabs are destructed. Third, empty slabs are freed to the page
//! allocator. Fourth, memory that stayed free throughout the interval is decommitted. (illumos reaps every 15 s.
//! FreeBSD checks working sets every 20 s.)
//!
//! A subsystem is reaped in one of three ways:
//! * [`Config::reap_every`](crate::Config::reap_every): the subsystem starts a thread once it has grown to
//!   [`START_BYTES`], an object with a destructor was constructed, or a cache has a waiter. The subsystem's thread
//!   sleeps while no memory is freed and no waiter exists. The subsystem's thread does not keep the subsystem or the
//!   process alive. In the child of a fork, the subsystem starts its thread again under the same conditions. If the
//!   system refuses a thread, frees decommit the memory above
//!   [`PageConfig::keep_free`](uslab_buddy::PageConfig::keep_free). After a refusal, the subsystem tries again to start
//!   the thread at twice the size, and when a first waiter joins. [`ReaperInfo`] reports refusals.
//!   [`Uslab`](crate::Uslab) starts this thread for [`reap_every`](crate::Uslab::reap_every) or
//!   `USLAB_OPTIONS=reap=500`. `libuslab.so` starts this thread only for the option `reap`.
//! * [`Reaper`]: a thread that runs until its `Reaper` value is dropped. A `Reaper` can also watch for [memory
//!   pressure](pressure). Under pressure, magazines become smaller, the [shrinkers](crate::shrinker) free a quarter of
//!   the objects that they count, and all free memory is decommitted immediately.
//! * [`Subsystem::end_interval`](crate::Subsystem::end_interval): the program itself decides when reaping intervals
//!   end.
//!
//! The reaper's thread also runs the destructors of objects.
//!
//! The thread of a `Reaper` sleeps on a lock of `parking_lot`, which allocations never take.

mod background;

pub(crate) use background::{BackgroundReaper, Reap};
pub use background::{OwnThread, are_alone};
pub use background::{ReaperInfo, ReaperThread, START_BYTES};

use crate::reclaim::pressure::{self, MemoryGroup, Psi, Watched};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uslab_magazine::sync::contain_panic;

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// True if memory is short and the reaper has not yet reacted.
    short: bool,
    intervals: u64,
    pressures: u64,
}

#[derive(Debug, Default)]
struct ReaperState {
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread that reaps a subsystem, which stops when this value is dropped.
///
/// ```
/// use std::time::Duration;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let reaper = Reaper::builder(Duration::from_secs(15)).start(&subsystem)?;
/// assert_eq!(reaper.intervals(), 0);
/// drop(reaper); // waits for the thread
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops it"]
pub struct Reaper {
    shared: Arc<ReaperState>,
    threads: Vec<JoinHandle<()>>,
    /// Pipe whose closing stops the watcher of memory pressure.
    watching: Option<io::PipeWriter>,
}

/// Builder of a [`Reaper`].
///
/// ```
/// use std::time::Duration;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let (inodes, sessions) = (Subsystem::new(Config::default())?, Subsystem::new(Config::default())?);
/// let builder = Reaper::builder(Duration::from_secs(15));
/// let reapers = [builder.clone().start(&inodes)?, builder.start(&sessions)?];
/// assert!(reapers.iter().all(|reaper| reaper.pressures() == 0)); // they watch for none
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder starts no reaper until `start` is called"]
pub struct ReaperBuilder {
    interval: Duration,
    psi: Option<Psi>,
    group: Option<MemoryGroup>,
}

impl ReaperBuilder {
    /// Watches for the memory pressure `psi`, in a separate thread.
    pub fn psi(mut self, psi: Psi) -> Self {
        self.psi = Some(psi);
        self
    }
    /// Checks the memory group `group` for pressure at the end of each interval.
    pub fn group(mut self, group: MemoryGroup) -> Self {
        self.group = Some(group);
        self
    }

    /// Starts the reaper's threads, which keep `core` alive.
    pub(crate) fn start_on(self, core: Arc<dyn Reap>) -> io::Result<Reaper> {
        let watched = self.psi.as_ref().map(Psi::watch).transpose()?;
        let mut reaper = Reaper { shared: Arc::default(), threads: Vec::new(), watching: None };
        let (interval, group, shared) = (self.interval, self.group, reaper.shared.clone());
        reaper.spawn("uslab-reaper", move || run(&*core, &shared, interval, group.as_ref()))?;
        if let Some(watched) = watched {
            reaper.watch(watched)?;
        }
        Ok(reaper)
    }
}

impl Reaper {
    /// Starts a builder of a reaper that ends an interval every `interval`.
    pub fn builder(interval: Duration) -> ReaperBuilder {
        ReaperBuilder { interval, psi: None, group: None }
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(body)?);
        Ok(())
    }

    fn watch(&mut self, watched: Watched) -> io::Result<()> {
        let (stop, watching) = io::pipe()?;
        self.watching = Some(watching);
        let shared = self.shared.clone();
        self.spawn("uslab-pressure", move || {
            while pressure::next(&watched, &stop) {
                shared.state.lock().short = true;
                shared.changed.notify_all();
            }
        })
    }

    /// Number of intervals ended so far.
    pub fn intervals(&self) -> u64 {
        self.shared.state.lock().intervals
    }
    /// Number of times that the reaper found the machine or group short of memory.
    pub fn pressures(&self) -> u64 {
        self.shared.state.lock().pressures
    }
}

fn run(core: &dyn Reap, shared: &ReaperState, interval: Duration, group: Option<&MemoryGroup>) {
    loop {
        let mut short = {
            let mut state = shared.state.lock();
            if !state.stop && !state.short {
                shared.changed.wait_for(&mut state, interval);
            }
            if state.stop {
                return;
            }
            std::mem::take(&mut state.short)
        };
        // The panic hook has already reported a panic.
        contain_panic(|| core.end_interval());
        short |= group.is_some_and(MemoryGroup::is_near_memory_high);
        if short {
            contain_panic(|| core.free_unused());
        }
        let mut state = shared.state.lock();
        state.intervals += 1;
        state.pressures += u64::from(short);
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        self.watching = None;
        for thread in self.threads.drain(..) {
            // The panic hook has already reported a destructor's panic. A shrinker or destructor may drop the reaper on
            // the reaper's own thread.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, KmemCache, Subsystem};
    use std::time::Instant;

    #[test]
    fn running_reaper_decommits_idle_memory() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("burst", 256).build_in(&subsystem).unwrap();
        let burst: Vec<_> = (0..50_000).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        for object in burst {
            // SAFETY: `object` was allocated from this cache, and is freed once.
            unsafe { cache.free(object) };
        }
        let before = subsystem.info().pages.committed_bytes();
        assert!(before > 8 << 20);
        let reaper = Reaper::builder(Duration::from_millis(2)).start(&subsystem).unwrap();
        let begun = Instant::now();
        // The test asserts no duration, and waits for as many intervals as needed.
        while subsystem.info().pages.committed_bytes() > 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert!(reaper.intervals() > 0);
        drop(reaper);
        assert_eq!(subsystem.info().pages.committed_bytes(), 0);
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }

    /// Waits until a condition is true, without asserting how long this takes.
    fn wait_until(until: impl Fn() -> bool) {
        let begun = Instant::now();
        while !until() {
            assert!(begun.elapsed() < Duration::from_secs(60), "this allocation must not run");
            std::thread::yield_now();
        }
    }

    /// Makes a subsystem with two contents: a shrinker of ten objects, and a cache that keeps one slab of free objects.
    fn idle_subsystem() -> (Subsystem, KmemCache, crate::Registration, Arc<uslab_magazine::sync::Counter>) {
        struct TenObjectShrinker(Arc<uslab_magazine::sync::Counter>);
        impl crate::Shrinker for TenObjectShrinker {
            fn count(&self) -> usize {
                10
            }
            fn scan(&self, objects: usize, _gfp: Gfp) -> usize {
                self.0.add(objects as u64);
                objects
            }
        }
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("kept", 64).build_in(&subsystem).unwrap();
        drop(cache.alloc_block(Gfp::KERNEL).unwrap());
        let dropped = Arc::new(uslab_magazine::sync::Counter::new(0));
        let registered = subsystem.register_shrinker(TenObjectShrinker(dropped.clone()));
        (subsystem, cache, registered, dropped)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pressure_event_frees_recently_used_memory() {
        use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
        use std::os::fd::AsRawFd;
        let (subsystem, cache, _registered, dropped) = idle_subsystem();
        // Out-of-band data raises the same event as a trigger.
        let (ours, watched) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).unwrap();
        let mut reaper = Reaper::builder(Duration::from_secs(3600)).start(&subsystem).unwrap();
        reaper.watch(watched).unwrap();
        assert_eq!((reaper.pressures(), cache.info().slabs), (0, 1));
        match send(ours.as_raw_fd(), b"!", MsgFlags::MSG_OOB) {
            Ok(_) => {}
            Err(nix::errno::Errno::EOPNOTSUPP) => {
                return println!("skipped: no out-of-band data on this kernel");
            }
            Err(error) => panic!("{error}"),
        }
        wait_until(|| reaper.pressures() > 0);
        assert_eq!(cache.info().slabs, 0);
        assert!(dropped.get() >= 3, "a quarter of ten objects");
        // The watching thread must exit although the socket stays ready.
        drop(reaper);
    }

    #[test]
    fn reaper_frees_memory_of_a_cgroup_under_pressure() {
        let (subsystem, cache, _registered, dropped) = idle_subsystem();
        let directory = std::env::temp_dir().join(format!("uslab-reaper-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("memory.high"), "1000000\n").unwrap();
        std::fs::write(directory.join("memory.current"), "100\n").unwrap();
        let group = MemoryGroup::at(&directory).unwrap();
        let reaper = Reaper::builder(Duration::from_millis(2)).group(group).start(&subsystem).unwrap();
        wait_until(|| reaper.intervals() > 3);
        assert_eq!((reaper.pressures(), dropped.get()), (0, 0));
        std::fs::write(directory.join("memory.current"), "999999\n").unwrap();
        wait_until(|| reaper.pressures() > 0);
        assert_eq!(cache.info().slabs, 0);
        assert!(dropped.get() >= 3);
        drop(reaper);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn reaper_can_watch_the_system_memory_pressure() {
        let (subsystem, ..) = idle_subsystem();
        let psi = Psi::system(Duration::from_millis(150), Duration::from_secs(2));
        match Reaper::builder(Duration::from_secs(3600)).psi(psi).start(&subsystem) {
            Ok(reaper) => drop(reaper),
            Err(error) => {
                assert!(error.to_string().starts_with("/proc/pressure/memory: "), "{error}");
                println!("skipped: {error}");
            }
        }
    }
}
