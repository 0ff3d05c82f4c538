//! The reaper: a thread that ends a reaping interval of every cache at regular times.
//!
//! What the magazines keep beyond their working set, and what CPUs keep that serve nothing any more, goes back to the
//! slabs; empty slabs go back to the page allocator, and wholly free blocks of pages to the system. illumos reaps every
//! 15 s, FreeBSD looks at working sets every 20 s. Without a reaper, call
//! [`Subsystem::reap`](crate::Subsystem::reap) when you like.
//!
//! The thread sleeps on a `parking_lot` lock: this is the cold side, never reached from an allocation.

use crate::subsystem::{Core, Subsystem};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Debug, Default)]
struct State {
    stop: bool,
    intervals: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Reaps a subsystem until it is dropped.
///
/// ```
/// use std::time::Duration;
/// use uslab::{Config, Reaper, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let reaper = Reaper::start(&subsystem, Duration::from_secs(15))?;
/// assert_eq!(reaper.intervals(), 0);
/// drop(reaper); // waits for the thread
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops it"]
pub struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    /// Starts a thread that reaps `subsystem` every `interval`. It keeps the subsystem's pages and caches alive.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(subsystem: &Subsystem, interval: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (core, theirs) = (subsystem.core().clone(), shared.clone());
        let name = std::thread::Builder::new().name("uslab-reaper".to_owned());
        let thread = name.spawn(move || run(&core, &theirs, interval))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Intervals ended so far.
    pub fn intervals(&self) -> u64 {
        self.shared.state.lock().intervals
    }
}

fn run(core: &Core, shared: &Shared, interval: Duration) {
    loop {
        {
            let mut state = shared.state.lock();
            if !state.stop {
                shared.changed.wait_for(&mut state, interval);
            }
            if state.stop {
                return;
            }
        }
        core.reap();
        core.discard_empty();
        core.ground.pages.trim();
        shared.state.lock().intervals += 1;
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of a destructor was reported where it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Gfp, KmemCache};
    use std::time::Instant;

    #[test]
    fn idle_memory_goes_back_within_some_intervals_and_the_thread_ends() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("burst", 256).build_in(&subsystem).unwrap();
        let burst: Vec<_> = (0..50_000).map(|_| cache.alloc(Gfp::KERNEL).unwrap()).collect();
        for object in burst {
            // SAFETY: allocated above from this cache, freed once.
            unsafe { cache.free(object) };
        }
        let before = subsystem.info().pages.committed_bytes();
        assert!(before > 8 << 20);
        let reaper = Reaper::start(&subsystem, Duration::from_millis(2)).unwrap();
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
}
