#![doc = include_str!("../README.md")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
// README.md contains tests.
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
pub mod unseen;

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

pub use parker::Parker;
pub use rank::Rank;
pub use shard::unset;

/// A bug that the checkers must find. `planted!("a ticket is taken in two steps" => wrong)` executes `wrong`
/// when `caught` runs the scenario with that bug; otherwise it does nothing. It is a separate statement,
/// which a reader of the surrounding code may skip.
///
/// * `wrong` is an expression or a block of any type. `return`, `continue` and `break` act on the enclosing
///   function or loop, so they can skip or replace the code that follows.
/// * `planted!("..." => let length = 0)` gives an existing variable another value of its type from here on.
///
/// Without a checker the statement compiles to nothing. So `wrong` may use items that only checkers' builds
/// have, and the compiler warns about a variable, `mut` or import that only `wrong` uses.
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
/// A bug that the checkers must find: `planted!("a ticket is taken in two steps" => wrong)`. The
/// documentation of builds without a checker describes the forms.
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

/// Records a step of the counterexample trace: `tell!("opens {path}")`, or `tell!(stack => "pops")` if
/// `stack.watched()` lists what may have changed. It must follow its step directly, so that no other thread
/// runs in between.
///
/// Compiles to nothing except under loom: the arguments are not evaluated.
#[cfg(not(loom))]
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {};
}
/// Records a step of the counterexample trace: `tell!("opens {path}")`, or `tell!(stack => "pops")` if
/// `stack.watched()` lists what may have changed. It must follow its step directly, so that no other thread
/// runs in between.
///
/// Compiles to nothing except under loom: the arguments are not evaluated.
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

/// Returns `true` while a failed execution of a model is being unwound. Destructors must then do nothing,
/// because no part of a model may run without its checker. Always `false` without a checker.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub const fn abandoned() -> bool {
    false
}
#[cfg(any(loom, shuttle))]
pub use std::thread::panicking as abandoned;

/// Runs a user's function and returns its panic. The caller restores its own state, then resumes the panic
/// with `resume_unwind`. A checker's panic is not caught: see [`abandoned`].
pub fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    if cfg!(any(loom, shuttle)) {
        Ok(f())
    } else {
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
    }
}

/// Runs a user's function and stops its panic, which the panic hook has reported. Returns `None` if it
/// panicked. The payload is forgotten, because its `Drop` may panic.
pub fn contain_panic<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_panic(f).map_err(core::mem::forget).ok()
}

/// Runs several users' functions, all of them even if some panic. [`resume`](Self::resume) then resumes the
/// first panic; the payloads of later panics are forgotten.
#[derive(Debug, Default)]
#[must_use = "`resume` passes the panic on"]
pub struct FirstPanic(Option<Box<dyn core::any::Any + Send>>);

impl FirstPanic {
    /// Runs one function. Returns `None` if it panicked.
    pub fn catch<R>(&mut self, f: impl FnOnce() -> R) -> Option<R> {
        let later = |panic| match &mut self.0 {
            Some(_) => core::mem::forget(panic),
            first => *first = Some(panic),
        };
        catch_panic(f).map_err(later).ok()
    }
    /// Resumes the first panic, if any.
    pub fn resume(self) {
        if let Some(panic) = self.0 {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A user's value, such as a closure, that any thread may drop. A panic of its `Drop` is contained, like a
/// panic in [`contain_panic`].
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
        // SAFETY: the value is dropped only here, and not used afterwards.
        contain_panic(|| unsafe { core::mem::ManuallyDrop::drop(&mut self.0) });
    }
}

/// A slot that one call fills and another call empties, with no stack frame around both: for locks that are
/// held across a `fork`. A value left in it is never dropped.
pub struct Kept<T>(core::cell::UnsafeCell<Option<core::mem::ManuallyDrop<T>>>);

// SAFETY: callers of `put` and `take` guarantee exclusive access, and take on the thread that put.
unsafe impl<T> Sync for Kept<T> {}
// SAFETY: callers of `put` and `take` guarantee exclusive access; dropping the slot does not access the
// value.
unsafe impl<T> Send for Kept<T> {}

impl<T> Kept<T> {
    /// Creates an empty slot.
    pub const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(None))
    }
    /// Stores `value`.
    ///
    /// # Safety
    /// No other thread uses the slot during the call: the caller holds a lock that guarantees it.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: the access is exclusive, by this function's contract.
        unsafe { *self.0.get() = Some(core::mem::ManuallyDrop::new(value)) };
    }
    /// The stored value, or `None`.
    ///
    /// # Safety
    /// No `put` or `take` runs while the reference is used.
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: no thread writes, by this function's contract.
        unsafe { (*self.0.get()).as_deref() }
    }
    /// Takes the stored value out.
    ///
    /// # Safety
    /// No other thread uses the slot during the call. The caller is the thread that called
    /// [`put`](Kept::put), or its copy in the child of a `fork`.
    pub unsafe fn take(&self) -> Option<T> {
        // SAFETY: the access is exclusive, by this function's contract.
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

/// Returns a number that no other call gets in the life of the process. Under a checker it is unique in the
/// execution, and a repeated execution gets the same numbers.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub fn unique() -> u64 {
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    // Relaxed: only uniqueness matters, and a read-modify-write guarantees it.
    NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

/// A statistic: many threads add to it, reports read it. An algorithm may use it only as a rough limit, which
/// a race may exceed. A `Relaxed` `std` atomic in every build.
///
/// Each [`add`](Counter::add) costs a locked instruction, so it belongs on slow paths.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(core::sync::atomic::AtomicU64);

impl Counter {
    /// Creates a counter with this value.
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
    /// The current count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Raises the count to at least `value`.
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

/// A word that is written once, before it is shared, and may be read without happens-before: an early reader
/// sees zero, never a torn value. A `Relaxed` `std` atomic in every build.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Fixed(core::sync::atomic::AtomicU32);

impl Fixed {
    /// Creates a word with this value.
    pub const fn new(value: u32) -> Self {
        Self(core::sync::atomic::AtomicU32::new(value))
    }
    /// The value, or zero if it is not visible yet.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the value. The object that contains the word must not be shared yet.
    #[inline(always)]
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A [`Fixed`] pointer, for objects that outlive a checker's executions.
#[derive(Debug)]
#[repr(transparent)]
pub struct FixedPtr<T>(core::sync::atomic::AtomicPtr<T>);

impl<T> FixedPtr<T> {
    /// Creates a null pointer.
    pub const fn null() -> Self {
        Self(core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()))
    }
    /// The pointer, or null if it is not visible yet.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the pointer. The object that contains it must not be shared yet.
    #[inline(always)]
    pub fn set(&self, value: *mut T) {
        self.0.store(value, Ordering::Relaxed);
    }
}
