//! The reaper: a thread that periodically ends a reaping interval of a subsystem.
//!
//! Objects that magazines keep beyond their working set, and objects on stacks that serve nothing any more, are flushed to the
//! slabs; free objects there are destructed; empty slabs are freed to the page allocator; and as much memory as was free
//! throughout the interval is decommitted. illumos reaps every 15 s, FreeBSD checks working sets every 20 s.
//!
//! There are three ways to use it:
//! * [`Config::reap_every`](crate::Config::reap_every): the subsystem starts a thread once it has grown to [`START_BYTES`], an
//!   object with a destructor was constructed, or a cache has a waiter. The thread sleeps while nothing is freed and there is
//!   no waiter, and keeps neither the subsystem nor the process alive. In the child of a fork it is started again under the
//!   same conditions. If the system refuses a thread, frees decommit what is above
//!   [`PageConfig::keep_free`](uslab_buddy::PageConfig::keep_free), and the start is retried at twice the size, and for each
//!   first waiter; [`ReaperInfo`] reports it. [`Uslab`](crate::Uslab) has it by [`reap_every`](crate::Uslab::reap_every) or
//!   `USLAB_OPTIONS=reap=500`, and `libuslab.so` by the latter only.
//! * [`Reaper`]: a thread that runs until the value is dropped. It can also watch for [memory pressure](pressure): then
//!   magazines become smaller, the [shrinkers](crate::shrinker) free a quarter of what they count, and all free memory is
//!   decommitted immediately.
//! * [`Subsystem::end_interval`](crate::Subsystem::end_interval), at times of your choice.
//!
//! Destructors of objects run on the reaper's thread, too.
//!
//! The thread sleeps on a `parking_lot` lock: an allocation never reaches this code.

mod background;

pub(crate) use background::{Background, Reap};
#[doc(hidden)]
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
    /// True if memory is short and no thread has reacted yet.
    short: bool,
    intervals: u64,
    pressures: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Reaper thread of a subsystem; dropping it stops the thread.
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
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Closed to stop the watcher.
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
#[must_use = "a builder starts nothing until it starts"]
pub struct ReaperBuilder {
    interval: Duration,
    psi: Option<Psi>,
    group: Option<MemoryGroup>,
}

impl ReaperBuilder {
    /// Watches for this pressure, in a separate thread.
    pub fn psi(mut self, psi: Psi) -> Self {
        self.psi = Some(psi);
        self
    }
    /// Checks this group's mark at the end of each interval.
    pub fn group(mut self, group: MemoryGroup) -> Self {
        self.group = Some(group);
        self
    }

    /// Starts the threads. They keep `core` alive.
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
    /// Starts a builder with this interval.
    pub fn builder(interval: Duration) -> ReaperBuilder {
        ReaperBuilder { interval, psi: None, group: None }
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(body)?);
        Ok(())
    }

    /// Wakes the reaper at each event of `watched`.
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
    /// Number of times that memory was short.
    pub fn pressures(&self) -> u64 {
        self.shared.state.lock().pressures
    }
}

fn run(core: &dyn Reap, shared: &Shared, interval: Duration, group: Option<&MemoryGroup>) {
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
        // The panic hook has reported a panic already.
        contain_panic(|| core.end_interval());
        short |= group.is_some_and(MemoryGroup::is_short);
        if short {
            contain_panic(|| core.relieve());
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
            // The panic hook has reported a destructor's panic already. A shrinker or destructor on this very thread may drop
            // the reaper.
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
    fn reaper_decommits_idle_memory_and_ends() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("burst", 256).build_in(&subsystem).unwrap();
        let burst: Vec<_> = (0..50_000).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        for object in burst {
            // SAFETY: allocated above from this cache, freed once.
            unsafe { cache.free(object) };
        }
        let before = subsystem.info().pages.committed_bytes();
        assert!(before > 8 << 20);
        let reaper = Reaper::builder(Duration::from_millis(2)).start(&subsystem).unwrap();
        let begun = Instant::now();
        // As many intervals as it takes: no time is asserted.
        while subsystem.info().pages.committed_bytes() > 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert!(reaper.intervals() > 0);
        drop(reaper);
        assert_eq!(subsystem.info().pages.committed_bytes(), 0);
        assert_eq!(subsystem.check().unwrap().objects, 0);
    }

    /// Waits for a condition; no time is asserted.
    fn wait(until: impl Fn() -> bool) {
        let begun = Instant::now();
        while !until() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to that");
            std::thread::yield_now();
        }
    }

    /// Has a shrinker with ten objects, and a cache that keeps a slab of free ones.
    fn loaded() -> (Subsystem, KmemCache, crate::Registration, Arc<uslab_magazine::sync::Counter>) {
        struct Ten(Arc<uslab_magazine::sync::Counter>);
        impl crate::Shrinker for Ten {
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
        let registered = subsystem.register_shrinker(Ten(dropped.clone()));
        (subsystem, cache, registered, dropped)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pressure_event_frees_recently_used_memory() {
        use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
        use std::os::fd::AsRawFd;
        let (subsystem, cache, _registered, dropped) = loaded();
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
        wait(|| reaper.pressures() > 0);
        assert_eq!(cache.info().slabs, 0);
        assert!(dropped.get() >= 3, "a quarter of ten");
        // The watcher exits although the socket stays ready.
        drop(reaper);
    }

    #[test]
    fn cgroup_under_pressure_frees_memory_at_the_next_interval() {
        let (subsystem, cache, _registered, dropped) = loaded();
        let directory = std::env::temp_dir().join(format!("uslab-reaper-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("memory.high"), "1000000\n").unwrap();
        std::fs::write(directory.join("memory.current"), "100\n").unwrap();
        let group = MemoryGroup::at(&directory).unwrap();
        let reaper = Reaper::builder(Duration::from_millis(2)).group(group).start(&subsystem).unwrap();
        wait(|| reaper.intervals() > 3);
        assert_eq!((reaper.pressures(), dropped.get()), (0, 0));
        std::fs::write(directory.join("memory.current"), "999999\n").unwrap();
        wait(|| reaper.pressures() > 0);
        assert_eq!(cache.info().slabs, 0);
        assert!(dropped.get() >= 3);
        drop(reaper);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn system_memory_pressure_can_be_watched() {
        let (subsystem, ..) = loaded();
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
