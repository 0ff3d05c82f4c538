//! What a C program has a cache call, and when none of it is called any more.
//!
//! Whoever gives memory back runs destructors, and whoever is short of memory runs shrinkers: any thread of the program, also while
//! another one destroys the cache. `uslab_cache_destroy` promises that nothing is called once it has returned, so that the program
//! may free what its functions use. It waits for whoever still has the cache: all of them keep these [`Callbacks`] by an `Arc`.
//!
//! In the child of a fork some of those are threads that there are no more, and would be waited for for ever. There the [`Gate`]
//! says it: it counts who is inside a callback, and begins anew with each fork. What such a thread had in hand is lost to the child:
//! the destructors of these objects do not run.

use core::ffi::{c_int, c_void};
use core::fmt;
use core::time::Duration;
use nix::libc;
use std::sync::Arc;
use uslab::{Gfp, Shrinker};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed};
use uslab_magazine::sync::{AtomicBool, AtomicU64, Counter};

/// Forks that led to this process, since the first cache was made.
static FORKS: Counter = Counter::new(0);

extern "C" fn forked() {
    FORKS.add(1);
}

/// From here on forks are counted.
fn count_forks() {
    static COUNTED: AtomicBool = AtomicBool::new(false);
    // Relaxed: only says who does it.
    if !COUNTED.swap(true, Relaxed) {
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// Who is inside: `forks: 32 | closed: 1 | inside: 31`.
struct Gate(AtomicU64);

const CLOSED: u64 = 1 << 31;

/// The word as it is in the process of so many forks: nobody of an earlier one is inside.
fn here(word: u64, forks: u64) -> u64 {
    if word >> 32 == forks & u64::from(u32::MAX) { word } else { forks << 32 | word & CLOSED }
}

impl Gate {
    /// Changes the word to what `to` makes of it; `false` if that is nothing.
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let mut word = self.0.load(Relaxed);
        while let Some(next) = to(word) {
            // Acquire and Release: pair with the same of other changes and of `close`. Either that sees who is inside, or who comes
            // sees that it is closed; and what was called is over before it.
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
    /// Calls it unless the gate is closed. An exception ends the process: no exception passes through the allocator.
    fn pass<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let forks = FORKS.get();
        let entered = self.change(|word| {
            let word = here(word, forks);
            (word & CLOSED == 0).then_some(word + 1)
        });
        let result = entered.then(|| aborting(call))?;
        // Who forked inside, and is the child now, may have been forgotten there.
        self.change(|word| (here(word, forks) == word).then(|| word - 1));
        Some(result)
    }
    /// Returns when nobody is inside, and nobody comes in any more.
    fn close(&self) {
        // Acquire, Release: see `change`.
        let mut word = self.0.fetch_or(CLOSED, AcqRel);
        while here(word, FORKS.get()) & (CLOSED - 1) > 0 {
            pause();
            word = self.0.load(Acquire);
        }
    }
}

/// Calls a function of the program. An exception, or a panic, of it aborts here.
extern "C" fn aborting<R>(call: impl FnOnce() -> R) -> R {
    call()
}

/// Callbacks are short, and this is rare.
fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// The functions of a cache, as in `struct uslab_cache_options`.
pub(crate) struct Functions {
    pub(crate) user: *mut c_void,
    pub(crate) ctor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>,
    pub(crate) dtor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>,
    pub(crate) count: Option<unsafe extern "C-unwind" fn(*mut c_void) -> usize>,
    pub(crate) scan: Option<unsafe extern "C-unwind" fn(usize, *mut c_void) -> usize>,
}

// SAFETY: whoever makes a cache promises that its functions may be called, with the pointer, from any thread.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// They, and who is inside of them.
pub(crate) struct Callbacks {
    functions: Functions,
    gate: Gate,
    /// The forks up to the cache's making.
    forks: u64,
}

impl Callbacks {
    pub(crate) fn new(functions: Functions) -> Arc<Self> {
        count_forks();
        let forks = FORKS.get();
        Arc::new(Self { functions, gate: Gate(AtomicU64::new(forks << 32)), forks })
    }
    /// Whether the object could be constructed.
    pub(crate) fn construct(&self, object: &mut [u8]) -> bool {
        let object = object.as_mut_ptr().cast();
        // SAFETY: by contract it may be called on each object of the cache.
        self.functions
            .ctor
            .is_none_or(|ctor| self.gate.pass(|| unsafe { ctor(object, self.functions.user) }) == Some(0))
    }
    pub(crate) fn destruct(&self, object: &mut [u8]) {
        if let Some(dtor) = self.functions.dtor {
            // SAFETY: as above.
            self.gate.pass(|| unsafe { dtor(object.as_mut_ptr().cast(), self.functions.user) });
        }
    }
    /// Returns when nothing is called any more. The cache was given up before.
    pub(crate) fn end(mut this: Arc<Self>) {
        while this.forks == FORKS.get() {
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
        // SAFETY: by contract it may be called from any thread.
        self.functions
            .count
            .and_then(|count| self.gate.pass(|| unsafe { count(self.functions.user) }))
            .unwrap_or(0)
    }
    fn scan(&self, objects: usize, _: Gfp) -> usize {
        // SAFETY: as above.
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
