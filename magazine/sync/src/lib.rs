#![doc = include_str!("../README.md")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
// README.md shows tests.
#![allow(clippy::test_attr_in_doctest)]

pub use core::sync::atomic::Ordering;

#[cfg(all(uslab_models, not(loom)))]
compile_error!("the models need --cfg loom: without it they would check nothing");

#[cfg(loom)]
#[path = "loom.rs"]
mod backend;
#[cfg(shuttle)]
#[path = "shuttle.rs"]
mod backend;
#[cfg(not(any(loom, shuttle)))]
#[path = "std.rs"]
mod backend;

#[cfg(loom)]
pub mod check;
#[cfg(any(loom, shuttle))]
#[cfg_attr(loom, allow(unreachable_pub, reason = "what `schedule` shows of it"))]
mod execution;
pub mod fork;
#[doc(hidden)]
pub mod observers;
mod parker;
#[doc(hidden)]
pub mod rank;
#[cfg(loom)]
mod replay;
#[cfg(all(test, any(loom, shuttle)))]
mod scenarios;
#[cfg(shuttle)]
pub mod schedule;
pub mod shard;
#[cfg(loom)]
mod split;
#[cfg(loom)]
pub mod story;
mod table;

#[cfg(any(loom, shuttle))]
pub use backend::lazy_static;
pub use backend::{
    Arc, AtomicBool, AtomicI32, AtomicI64, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, Hint, Mutex, MutexGuard, UnsafeCell, fence, relax, thread, thread_local,
};
#[cfg(loom)]
pub use backend::{thread_local_itself, weak_arm};

/// True in builds for a checker.
pub const MODEL: bool = cfg!(any(loom, shuttle));

/// Atomics of `static`s that outlive a checker's executions: no checker sees them.
pub mod unseen {
    #[allow(clippy::disallowed_types, reason = "for statics")]
    pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};
}

pub use parker::Parker;
pub use rank::Rank;
pub use shard::unset;

/// A bug that the checkers must find: `planted!("a ticket is taken in two steps" => wrong)` does `wrong` where `caught` runs the
/// scenario with that bug, and nothing elsewhere. A statement of its own: whoever reads the code around it may skip it.
///
/// * `wrong` is an expression or a block, of any type. `return`, `continue` and `break` are of the function that it stands in:
///   so it leaves out what comes behind it, or does something else instead.
/// * `planted!("..." => let length = 0)` gives a variable that is defined above another value of its type, from here on.
///
/// Outside the checkers nothing of it is compiled. So it may use what only they have; and the compiler warns of a variable, a
/// `mut` or an import that is there for its sake alone.
///
/// ```
/// use uslab_sync::planted;
///
/// fn longest(words: &[&str]) -> usize {
///     planted!("no words have a length" => return 1);
///     let longest = words.iter().map(|word| word.len()).max().unwrap_or(0);
///     planted!("the longest is one too long" => let longest = longest + 1);
///     longest
/// }
///
/// # #[cfg(not(any(loom, shuttle)))]
/// assert_eq!((longest(&[]), longest(&["a", "an"])), (0, 2));
/// ```
#[cfg(not(any(loom, shuttle)))]
#[macro_export]
macro_rules! planted {
    ($bug:literal => $($wrong:tt)+) => {};
}
/// A bug that the checkers must find: `planted!("a ticket is taken in two steps" => wrong)`. What it may look like says the
/// documentation of other builds.
#[cfg(any(loom, shuttle))]
#[macro_export]
macro_rules! planted {
    ($bug:literal => let $variable:ident = $wrong:expr) => {
        let $variable = if $crate::is_planted($bug) { $wrong } else { $variable };
    };
    ($bug:literal => $wrong:expr) => {
        if $crate::is_planted($bug) {
            $wrong;
        }
    };
}
#[cfg(any(loom, shuttle))]
pub use execution::{is_planted, unique};

/// A step of the story that a failing model prints: `tell!("opens {path}")`, or `tell!(stack => "pops")` where
/// `stack.watched()` says what may have changed. Directly behind what it tells, so that no other thread comes between.
///
/// Nothing outside loom: the arguments are not even evaluated.
#[cfg(not(loom))]
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {};
}
/// A step of the story that a failing model prints: `tell!("opens {path}")`, or `tell!(stack => "pops")` where
/// `stack.watched()` says what may have changed. Directly behind what it tells, so that no other thread comes between.
///
/// Nothing outside loom: the arguments are not even evaluated.
#[cfg(loom)]
#[macro_export]
macro_rules! tell {
    ($text:literal $(, $argument:expr)* $(,)?) => {
        if $crate::story::listens() {
            $crate::story::step(format!($text $(, $argument)*), None);
        }
    };
    ($watched:expr => $text:literal $(, $argument:expr)* $(,)?) => {
        if $crate::story::listens() {
            $crate::story::step(format!($text $(, $argument)*), Some($watched.watched()));
        }
    };
}

/// Whether this execution of a model has failed and is being unwound: destructors then leave everything as it lies,
/// because nothing of a model may run without its checker. Always false outside one.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub const fn abandoned() -> bool {
    false
}
#[cfg(any(loom, shuttle))]
pub use std::thread::panicking as abandoned;

/// Runs a user's function. The caller puts its own state right, then passes a panic on with `resume_unwind`. A checker's panic is not
/// caught: see [`abandoned`].
pub fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    if cfg!(any(loom, shuttle)) {
        Ok(f())
    } else {
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
    }
}

/// Runs a user's function whose panic ends here: the panic hook has reported it. `None` if it panicked. The payload is forgotten, because
/// its `Drop` may panic.
pub fn contain_panic<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_panic(f).map_err(core::mem::forget).ok()
}

/// Users' functions that run one after another, each whether the others panic or not. The first panic is passed on behind the last of them;
/// the payloads of the others are forgotten.
#[derive(Debug, Default)]
#[must_use = "`resume` passes the panic on"]
pub struct FirstPanic(Option<Box<dyn core::any::Any + Send>>);

impl FirstPanic {
    /// Runs one of them. `None` if it panicked.
    pub fn catch<R>(&mut self, f: impl FnOnce() -> R) -> Option<R> {
        let later = |panic| match &mut self.0 {
            Some(_) => core::mem::forget(panic),
            first => *first = Some(panic),
        };
        catch_panic(f).map_err(later).ok()
    }
    /// Passes the first panic on, if there was one.
    pub fn resume(self) {
        if let Some(panic) = self.0 {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A user's value, such as a closure, that any thread may be the last to use. A panic of its `Drop` is contained, as by
/// [`contain_panic`].
#[derive(Debug)]
pub struct Contained<T>(core::mem::ManuallyDrop<T>);

impl<T> Contained<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(core::mem::ManuallyDrop::new(value))
    }
}
impl<T> core::ops::Deref for Contained<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped here only, and not used afterwards.
        contain_panic(|| unsafe { core::mem::ManuallyDrop::drop(&mut self.0) });
    }
}

/// Room for what one call takes and another one gives back, where no stack frame spans the two: the locks that are held
/// across a `fork`. What is left in it is never dropped.
pub struct Kept<T>(core::cell::UnsafeCell<Option<core::mem::ManuallyDrop<T>>>);

// SAFETY: whoever calls `put` and `take` promises that nobody else does meanwhile, and takes where it was put.
unsafe impl<T> Sync for Kept<T> {}
// SAFETY: as above; what is in it is not touched where the room goes.
unsafe impl<T> Send for Kept<T> {}

impl<T> Kept<T> {
    /// Empty.
    pub const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(None))
    }
    /// Keeps `value`.
    ///
    /// # Safety
    /// Nobody else uses this meanwhile: one of the locks that are kept sees to that.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: by contract the access is exclusive.
        unsafe { *self.0.get() = Some(core::mem::ManuallyDrop::new(value)) };
    }
    /// What is kept.
    ///
    /// # Safety
    /// Nobody puts or takes anything while the answer is used.
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: by contract nobody writes.
        unsafe { (*self.0.get()).as_deref() }
    }
    /// What was kept.
    ///
    /// # Safety
    /// As [`put`](Kept::put), on the thread that called it, or the one that it became in the child of a `fork`.
    pub unsafe fn take(&self) -> Option<T> {
        // SAFETY: by contract the access is exclusive.
        unsafe { (*self.0.get()).take() }.map(core::mem::ManuallyDrop::into_inner)
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self::new()
    }
}
impl<T> core::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

/// A number that no other call gets, in the life of the process; under a checker in that of the execution, so that each
/// time that it runs it gets the same ones.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub fn unique() -> u64 {
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    // Relaxed: that it is one of its kind is all that is asked.
    NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

/// A statistic: added to by many, read by reports. An algorithm may only use it as a rough limit, which may be passed in
/// a race. A `Relaxed` `std` atomic in every build.
///
/// Costs a locked instruction per [`add`](Counter::add): it belongs on slow paths.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(core::sync::atomic::AtomicU64);

impl Counter {
    /// Starts at `value`.
    pub const fn new(value: u64) -> Self {
        Self(core::sync::atomic::AtomicU64::new(value))
    }
    /// Adds `n`, wrapping.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// Subtracts `n`, wrapping.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
    /// The count now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Raises the count to `value` if that is more.
    #[inline]
    pub fn max(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
    /// Overwrites the count; for a counter with one writer.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A word that is written before it is shared and read by anyone, even without happens-before: a reader who came
/// too early sees the old value (zero), never a torn one. A `Relaxed` `std` atomic in every build.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Fixed(core::sync::atomic::AtomicU32);

impl Fixed {
    /// Holds `value`.
    pub const fn new(value: u32) -> Self {
        Self(core::sync::atomic::AtomicU32::new(value))
    }
    /// The value, or zero if it has not become visible yet.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the value, before the thing that holds it is shared.
    #[inline(always)]
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The same for a pointer. For what outlives the executions of a checker.
#[derive(Debug)]
#[repr(transparent)]
pub struct FixedPtr<T>(core::sync::atomic::AtomicPtr<T>);

impl<T> FixedPtr<T> {
    /// Null.
    pub const fn null() -> Self {
        Self(core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()))
    }
    /// The value, or null if it has not become visible yet.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the value, before the thing that it belongs to is shared.
    #[inline(always)]
    pub fn set(&self, value: *mut T) {
        self.0.store(value, Ordering::Relaxed);
    }
}
