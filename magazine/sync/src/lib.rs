#![doc = include_str!("../README.md")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
// The README contains doctests.
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
#[cfg_attr(loom, allow(unreachable_pub, reason = "`schedule` re-exports some items"))]
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

/// `true` in builds for a checker (loom or shuttle).
pub const MODEL: bool = cfg!(any(loom, shuttle));

pub use parker::Parker;
pub use rank::Rank;
pub use shard::unset;

/// Plants a bug that the checkers must find. `planted!("a ticket is taken without an atomic increment" => wrong)`
/// executes `wrong` only when `assert_caught` plants the bug of that name.
///
/// * `wrong` is an expression or a block of any type. A `return`, `continue` or `break` in `wrong` acts on the
///   enclosing function or loop. A planted bug can skip the code that follows.
/// * `planted!("..." => let length = 0)` shadows an existing variable with another value of the same type.
///
/// In builds without a checker, `planted!` compiles to nothing. Code in `wrong` may use items that exist only in
/// checker builds. The compiler warns about variables and imports that only `wrong` uses.
/// ```
/// use uslab_sync::planted;
///
/// fn longest(words: &[&str]) -> usize {
///     planted!("no words have a length" => return 1);
///     let longest = words.iter().map(|word| word.len()).max().unwrap_or(0);
///     planted!("the longest length is one too large" => let longest = longest + 1);
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
/// Plants a bug that the checkers must find: `planted!("a ticket is taken without an atomic increment" => wrong)`. The
/// documentation of builds without a checker describes all forms of `planted!`.
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

/// Records a step of the counterexample trace: `tell!("opens {path}")`. In `tell!(stack => "pops")`, `stack.watched()`
/// lists the state that may have changed. Place `tell!` directly after the step, so that no other thread runs between
/// the step and its record.
///
/// In builds without loom, `tell!` compiles to nothing and does not evaluate its arguments.
#[cfg(not(loom))]
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {};
}
/// Records a step of the counterexample trace: `tell!("opens {path}")`. In `tell!(stack => "pops")`, `stack.watched()`
/// lists the state that may have changed. Place `tell!` directly after the step, so that no other thread runs between
/// the step and its record.
///
/// In builds without loom, `tell!` compiles to nothing and does not evaluate its arguments.
#[cfg(loom)]
#[macro_export]
macro_rules! tell {
    ($text:literal $(, $argument:expr)* $(,)?) => {
        if $crate::story::is_recording() {
            $crate::story::step(format!($text $(, $argument)*), None);
        }
    };
    ($watched:expr => $text:literal $(, $argument:expr)* $(,)?) => {
        if $crate::story::is_recording() {
            $crate::story::step(format!($text $(, $argument)*), Some($watched.watched()));
        }
    };
}

/// Returns `true` while the checker unwinds a failed execution. Destructors must do nothing while a failed execution
/// unwinds, because model code may not run outside its checker. Always returns `false` in builds without a checker.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub const fn abandoned() -> bool {
    false
}
#[cfg(any(loom, shuttle))]
pub use std::thread::panicking as abandoned;

/// Runs a user's function and returns its panic as an error. The caller restores its state and then resumes the panic
/// with `resume_unwind`. A panic of the checker is not caught: see [`abandoned`].
pub fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    if cfg!(any(loom, shuttle)) {
        Ok(f())
    } else {
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
    }
}

/// Runs a user's function. If the function panics, `contain_panic` discards the panic, because the panic hook
/// has already reported it. Returns `None` if the function panicked. The panic payload is leaked, because the
/// payload's `Drop` may panic.
pub fn contain_panic<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_panic(f).map_err(core::mem::forget).ok()
}

/// Runs several users' functions, and continues after one panics. [`resume`](Self::resume) later resumes the first
/// panic. The payloads of later panics are leaked.
#[derive(Debug, Default)]
#[must_use = "`resume` passes the panic on"]
pub struct FirstPanic(Option<Box<dyn core::any::Any + Send>>);

impl FirstPanic {
    /// Runs one function and keeps its panic if no earlier function panicked. Returns `None` if the function panicked.
    pub fn catch<R>(&mut self, f: impl FnOnce() -> R) -> Option<R> {
        let later_panic = |panic| match &mut self.0 {
            Some(_) => core::mem::forget(panic),
            first => *first = Some(panic),
        };
        catch_panic(f).map_err(later_panic).ok()
    }
    /// Resumes the first panic, if a function panicked.
    pub fn resume(self) {
        if let Some(panic) = self.0 {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A user's value, such as a closure, that any thread may drop. A panic in the value's `Drop` is discarded as in
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
        // SAFETY: the value is dropped only here, and not used afterwards.
        contain_panic(|| unsafe { core::mem::ManuallyDrop::drop(&mut self.0) });
    }
}

/// A slot that one call fills and another call empties. For example, a slot holds guards of locks across a `fork`. A
/// value that is left in the slot is never dropped.
pub struct Kept<T>(core::cell::UnsafeCell<Option<core::mem::ManuallyDrop<T>>>);

// SAFETY: callers of `put` and `take` guarantee exclusive access. Callers of `take` run on the thread that called
// `put`.
unsafe impl<T> Sync for Kept<T> {}
// SAFETY: callers of `put` and `take` guarantee exclusive access. Dropping the slot does not access the value.
unsafe impl<T> Send for Kept<T> {}

impl<T> Kept<T> {
    /// Creates an empty slot.
    pub const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(None))
    }
    /// Stores `value` in the slot.
    ///
    /// # Safety
    /// The caller ensures that no other thread uses the slot during the call, for example by holding a lock.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: the access is exclusive, by this function's contract.
        unsafe { *self.0.get() = Some(core::mem::ManuallyDrop::new(value)) };
    }
    /// Returns the stored value, or `None` if the slot is empty.
    ///
    /// # Safety
    /// The caller ensures that no `put` or `take` runs while the reference is used.
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: no thread writes to the slot, by this function's contract.
        unsafe { (*self.0.get()).as_deref() }
    }
    /// Takes the stored value out of the slot.
    ///
    /// # Safety
    /// The caller ensures that no other thread uses the slot during the call. The caller must be the thread that called
    /// [`put`](Kept::put), or that thread's copy in the child of a `fork`.
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

/// Returns a number that is unique in the process. Under a checker, the number is unique in the execution. A repeated
/// execution returns equal numbers.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub fn unique() -> u64 {
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    // Relaxed: the atomic read-modify-write alone makes the numbers unique.
    NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

/// A statistics counter that many threads increment and that reports read. An algorithm may use a counter
/// only for a rough limit, because concurrent updates may exceed the limit. A counter is a `Relaxed` `std`
/// atomic in every build.
///
/// Each [`add`](Counter::add) costs a locked instruction, so counters belong on slow paths.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(core::sync::atomic::AtomicU64);

impl Counter {
    /// Creates a counter with the given value.
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
    /// Returns the current count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Raises the count to at least `value`.
    #[inline]
    pub fn max(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
    /// Overwrites the counter's value. A counter that is overwritten must have only one writer.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A word that is written once, before the containing object is shared. An early reader sees zero and never a torn
/// value. A fixed word is a `Relaxed` `std` atomic in every build.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Fixed(core::sync::atomic::AtomicU32);

impl Fixed {
    /// Creates a word with the given value.
    pub const fn new(value: u32) -> Self {
        Self(core::sync::atomic::AtomicU32::new(value))
    }
    /// Returns the value, or zero if the write is not visible yet.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the value of the word. The caller must not have shared the object that contains the word.
    #[inline(always)]
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A pointer that is written once, like [`Fixed`], for objects that outlive a checker's executions.
#[derive(Debug)]
#[repr(transparent)]
pub struct FixedPtr<T>(core::sync::atomic::AtomicPtr<T>);

impl<T> FixedPtr<T> {
    /// Creates a null pointer.
    pub const fn null() -> Self {
        Self(core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()))
    }
    /// Returns the pointer, or null if the write is not visible yet.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the pointer. The caller must not have shared the object that contains the pointer.
    #[inline(always)]
    pub fn set(&self, value: *mut T) {
        self.0.store(value, Ordering::Relaxed);
    }
}
