//! Callbacks of a C program's cache, and the code that waits until none of them runs.
//!
//! A thread that frees memory may run destructors, and a thread that is short of memory may run shrinkers. Any thread
//! of the program may run callbacks, even while another thread destroys the cache. `uslab_cache_destroy` guarantees
//! that no callback runs after it has returned. After the return, the program may free the data that its callbacks use.
//! To guarantee this, `uslab_cache_destroy` waits for all threads that still refer to the cache. Each thread that
//! refers to the cache keeps these [`Callbacks`] alive by an `Arc`.
//!
//! In a forked child, some threads that refer to the cache do not exist, so the wait would never end. In the child, the
//! [`CallbackGate`] therefore decides if callbacks may still run. The gate counts the threads inside a callback, and
//! restarts its count after each fork. If a thread was processing objects when another thread forked, the child loses
//! these objects, and their destructors do not run.

use core::ffi::{c_int, c_void};
use core::fmt;
use core::time::Duration;
use nix::libc;
use std::sync::Arc;
use uslab::{Gfp, Shrinker};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed};
use uslab_magazine::sync::{AtomicBool, AtomicU64, Counter};

/// Number of forks between the process that made the first cache and this process.
static FORK_COUNT: Counter = Counter::new(0);

extern "C" fn on_fork() {
    FORK_COUNT.add(1);
}

/// Registers the fork handler that counts forks, unless it is registered already.
fn register_fork_counter() {
    static FORK_COUNTER_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the swap only decides which thread registers.
    if !FORK_COUNTER_REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
    }
}

/// A word with the fields `forks: 32 | closed: 1 | inside: 31`; `inside` is the number of threads inside a callback.
struct CallbackGate(AtomicU64);

const GATE_CLOSED: u64 = 1 << 31;

/// Returns the word for a process after `forks` forks; threads of an earlier process do not count as inside.
fn gate_word_of_process(word: u64, forks: u64) -> u64 {
    if word >> 32 == forks & u64::from(u32::MAX) { word } else { forks << 32 | word & GATE_CLOSED }
}

impl CallbackGate {
    /// Replaces the word by the value that `to` computes from it. Returns `false` if `to` returns `None`.
    fn try_update(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let mut word = self.0.load(Relaxed);
        while let Some(next) = to(word) {
            // Acquire and Release: pair with other changes and with `close`. Either `close` sees that a thread is
            // inside a callback, or the thread sees that the gate is closed. A finished call happens before
            // `close` returns.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
    /// Runs `call` unless the gate is closed. An exception in `call` aborts the process, because exceptions must not
    /// unwind through the allocator.
    fn pass<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let forks = FORK_COUNT.get();
        let entered = self.try_update(|word| {
            let word = gate_word_of_process(word, forks);
            (word & GATE_CLOSED == 0).then_some(word + 1)
        });
        let result = entered.then(|| run_or_abort(call))?;
        // In the child, the count of a thread that on_fork inside a callback may have been reset.
        self.try_update(|word| (gate_word_of_process(word, forks) == word).then(|| word - 1));
        Some(result)
    }
    /// Closes the gate to further calls, and waits until no thread is inside.
    fn close(&self) {
        // Acquire, Release: pairs with the orderings in `try_update`.
        let mut word = self.0.fetch_or(GATE_CLOSED, AcqRel);
        while gate_word_of_process(word, FORK_COUNT.get()) & (GATE_CLOSED - 1) > 0 {
            pause();
            word = self.0.load(Acquire);
        }
    }
}

/// Calls a callback of the program. If the callback throws or panics, the process aborts.
extern "C" fn run_or_abort<R>(call: impl FnOnce() -> R) -> R {
    call()
}

/// Waits briefly. Callbacks are short, so a thread rarely waits for one.
fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// The callback functions of a cache, from `struct uslab_cache_options`.
pub(crate) struct UserFunctions {
    pub(crate) user: *mut c_void,
    pub(crate) ctor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>,
    pub(crate) dtor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>,
    pub(crate) count: Option<unsafe extern "C-unwind" fn(*mut c_void) -> usize>,
    pub(crate) scan: Option<unsafe extern "C-unwind" fn(usize, *mut c_void) -> usize>,
}

// SAFETY: the creator of a cache guarantees that any thread may call its functions with the pointer.
unsafe impl Send for UserFunctions {}
// SAFETY: the creator of a cache guarantees that any thread may call its functions with the pointer.
unsafe impl Sync for UserFunctions {}

pub(crate) struct Callbacks {
    functions: UserFunctions,
    gate: CallbackGate,
    forks: u64,
}

impl Callbacks {
    pub(crate) fn new(functions: UserFunctions) -> Arc<Self> {
        register_fork_counter();
        let forks = FORK_COUNT.get();
        Arc::new(Self { functions, gate: CallbackGate(AtomicU64::new(forks << 32)), forks })
    }
    /// Constructs the object; returns `false` if the constructor fails.
    pub(crate) fn construct(&self, object: &mut [u8]) -> bool {
        let object = object.as_mut_ptr().cast();
        // SAFETY: the creator of the cache allows calls on each object of the cache.
        self.functions
            .ctor
            .is_none_or(|ctor| self.gate.pass(|| unsafe { ctor(object, self.functions.user) }) == Some(0))
    }
    pub(crate) fn destruct(&self, object: &mut [u8]) {
        if let Some(dtor) = self.functions.dtor {
            // SAFETY: the creator of the cache allows calls on each object of the cache.
            self.gate.pass(|| unsafe { dtor(object.as_mut_ptr().cast(), self.functions.user) });
        }
    }
    /// Closes the gate, and waits until no callback runs. The caller must have dropped the cache before.
    pub(crate) fn end(mut this: Arc<Self>) {
        while this.forks == FORK_COUNT.get() {
            if Arc::get_mut(&mut this).is_some() {
                return;
            }
            pause();
        }
        this.gate.close();
    }
}

impl Shrinker for Callbacks {
    fn count(&self) -> usize {
        // SAFETY: the creator of the cache allows calls from any thread.
        self.functions
            .count
            .and_then(|count| self.gate.pass(|| unsafe { count(self.functions.user) }))
            .unwrap_or(0)
    }
    fn scan(&self, objects: usize, _: Gfp) -> usize {
        // SAFETY: the creator of the cache allows calls from any thread.
        self.functions
            .scan
            .and_then(|scan| self.gate.pass(|| unsafe { scan(objects, self.functions.user) }))
            .unwrap_or(0)
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
