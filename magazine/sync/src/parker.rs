//! Blocks and wakes a thread. A parker can also be used as a [`Waker`](std::task::Waker).

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(any(loom, shuttle)))]
use parking_lot::{Condvar, Mutex};
#[cfg(shuttle)]
use shuttle::sync::{Condvar, Mutex};
use std::sync::Arc;
use std::task::Wake;
use std::time::Instant;

/// Blocks one thread until another thread wakes it. A thread that polls a future can pass the parker to it as a
/// [`Waker`](std::task::Waker).
///
/// If the wake-up comes before the wait, the next wait returns immediately. Several wake-ups before a wait count as
/// one. A parker does not use the token of [`std::thread::park`], because the surrounding code may use the token for
/// another purpose.
///
/// ```
/// use std::sync::Arc;
/// use std::task::Waker;
/// use std::time::{Duration, Instant};
/// use uslab_sync::Parker;
///
/// let parker = Arc::new(Parker::new());
/// let waker = Waker::from(parker.clone());
/// std::thread::spawn(move || waker.wake());
/// assert!(parker.park(None));
/// assert!(!parker.park(Some(Instant::now() + Duration::from_millis(1))));
/// ```
#[derive(Debug)]
pub struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    /// Creates a parker without a pending wake-up.
    #[allow(clippy::new_without_default, reason = "checkers have no default")]
    pub fn new() -> Self {
        Self { woken: Mutex::new(false), changed: Condvar::new() }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Parker {
    /// Waits for a wake-up, until `deadline` at the latest. Returns `true` if a wake-up arrived since the last wait.
    ///
    /// In loom and shuttle builds, a wait with a deadline returns immediately, because no time passes.
    pub fn park(&self, deadline: Option<Instant>) -> bool {
        let mut woken = self.woken.lock();
        let asleep = |woken: &mut bool| !*woken;
        match deadline {
            Some(deadline) => _ = self.changed.wait_while_until(&mut woken, asleep, deadline),
            None => self.changed.wait_while(&mut woken, asleep),
        }
        core::mem::take(&mut woken)
    }
    /// Wakes the waiting thread. If no thread is waiting, the next wait returns immediately.
    pub fn unpark(&self) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }
}

// This parker does not use loom's `park`: loom's `unpark` also wakes a thread that is blocked elsewhere.
#[cfg(any(loom, shuttle))]
impl Parker {
    /// Waits for a wake-up. With a deadline, returns immediately, because no time passes in a model. Returns `true` if
    /// a wake-up arrived since the last wait.
    pub fn park(&self, deadline: Option<Instant>) -> bool {
        let Ok(mut woken) = self.woken.lock() else { unreachable!("no lock holder panics") };
        while !*woken && deadline.is_none() {
            woken = self.changed.wait(woken).unwrap_or_else(|_| unreachable!("no lock holder panics"));
        }
        core::mem::take(&mut woken)
    }
    /// Wakes the waiting thread. If no thread is waiting, the next wait returns immediately.
    pub fn unpark(&self) {
        let Ok(mut woken) = self.woken.lock() else { unreachable!("no lock holder panics") };
        *woken = true;
        self.changed.notify_one();
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}
