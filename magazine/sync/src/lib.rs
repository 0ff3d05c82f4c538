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
pub use backend::{arm_spurious_failure, thread_local_itself};

/// True in builds for loom or shuttle.
pub const MODEL: bool = cfg!(any(loom, shuttle));

pub use parker::Parker;
pub use rank::Rank;
pub use shard::unset;

/// Marks a place where tests can plant a bug, which loom or shuttle must then detect. The code `wrong` in
/// `planted!("a ticket is taken without an atomic increment" => wrong)` runs only if `assert_caught` plants the bug
/// with this name.
///
/// * The code `wrong` is an expression or a block of any type. A `return`, `continue` or `break` in the code `wrong`
///   acts on the enclosing function or loop. A planted bug can therefore skip the code that follows.
/// * The form `planted!("..." => let length = 0)` shadows an existing variable with a wrong value of the same type.
///
/// In builds without loom and shuttle, `planted!` compiles to nothing. The code `wrong` may use items that exist only
/// in loom and shuttle builds. In normal builds, the compiler warns about variables and imports that only `wrong` uses.
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
/// Marks a place where tests can plant a bug: `planted!("a ticket is taken without an atomic increment" => wrong)`. The
/// documentation of normal builds describes all forms of `planted!`.
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

/// Records a step in the counterexample trace of a model, for example `tell!("opens {path}")`. The form
/// `tell!(stack => "pops")` also records the state that `stack.watched()` returns, which the step may have changed. The
/// call must directly follow the step, so that no other thread runs between the step and its record.
///
/// In builds without loom, `tell!` compiles to nothing and does not evaluate its arguments.
#[cfg(not(loom))]
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {};
}
/// Records a step in the counterexample trace of a model, for example `tell!("opens {path}")`. The form
/// `tell!(stack => "pops")` also records the state that `stack.watched()` returns, which the step may have changed. The
/// call must directly follow the step, so that no other thread runs between the step and its record.
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

/// Returns `true` while loom or shuttle unwinds a failed execution. While a failed execution unwinds, destructors must
/// do nothing, because the objects of the model are no longer usable. In builds without loom and shuttle, the result is
/// always `false`.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub const fn abandoned() -> bool {
    false
}
#[cfg(any(loom, shuttle))]
pub use std::thread::panicking as abandoned;

/// Runs a user's function. If the function panics, returns the panic as an error. The caller should restore its own
/// state and then resume the panic with `resume_unwind`. In loom and shuttle builds, panics are not caught: see
/// [`abandoned`].
pub fn catch_panic<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    if cfg!(any(loom, shuttle)) {
        Ok(f())
    } else {
        std::panic::catch_unwind(core::panic::AssertUnwindSafe(f))
    }
}

/// Runs a user's function. A panic of the function is discarded, because the panic hook has already reported it. The
/// result is `None` if the function panicked. The panic payload is leaked, because dropping it could panic again.
pub fn contain_panic<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_panic(f).map_err(core::mem::forget).ok()
}

/// Runs several user functions, and continues with the next function if one panics. At the end,
/// [`resume`](Self::resume) resumes the first panic. The payloads of all later panics are leaked.
#[derive(Debug, Default)]
#[must_use = "`resume` passes the panic on"]
pub struct FirstPanic(Option<Box<dyn core::any::Any + Send>>);

impl FirstPanic {
    /// Runs a function. If the function panics, stores the panic, unless an earlier function panicked. The result is
    /// `None` if the function panicked.
    pub fn catch<R>(&mut self, f: impl FnOnce() -> R) -> Option<R> {
        let later_panic = |panic| match &mut self.0 {
            Some(_) => core::mem::forget(panic),
            first => *first = Some(panic),
        };
        catch_panic(f).map_err(later_panic).ok()
    }
    /// Resumes the first panic if any function panicked.
    pub fn resume(self) {
        if let Some(panic) = self.0 {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Wraps a user's value, such as a closure, whose `Drop` may panic. If dropping the value panics, the panic is
/// discarded as in [`contain_panic`].
#[derive(Debug)]
pub struct ContainedValue<T>(core::mem::ManuallyDrop<T>);

impl<T> ContainedValue<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(core::mem::ManuallyDrop::new(value))
    }
}
impl<T> core::ops::Deref for ContainedValue<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> Drop for ContainedValue<T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped only here, and not used afterwards.
        contain_panic(|| unsafe { core::mem::ManuallyDrop::drop(&mut self.0) });
    }
}

/// A slot in which one function stores a value, which another function takes out later. Such slots store the guards of
/// locks that are held across a `fork`. A value that stays in the slot is never dropped.
pub struct Kept<T>(core::cell::UnsafeCell<Option<core::mem::ManuallyDrop<T>>>);

// SAFETY: callers of `put` and `take` guarantee exclusive access. Callers of `take` run on the thread that called
// `put`.
unsafe impl<T> Sync for Kept<T> {}
// SAFETY: callers of `put` and `take` guarantee exclusive access. Dropping the slot does not access the value.
unsafe impl<T> Send for Kept<T> {}

impl<T> Kept<T> {
    /// Creates a slot that holds no value.
    pub const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(None))
    }
    /// Stores `value` in the slot until [`take`](Kept::take).
    ///
    /// # Safety
    /// The caller must ensure that no other thread uses the slot during the call, for example by holding a lock.
    pub unsafe fn put(&self, value: T) {
        // SAFETY: the access is exclusive, by this function's contract.
        unsafe { *self.0.get() = Some(core::mem::ManuallyDrop::new(value)) };
    }
    /// Returns the stored value, or `None` if the slot is empty.
    ///
    /// # Safety
    /// The caller must ensure that no `put` or `take` runs while the reference is used.
    pub unsafe fn get(&self) -> Option<&T> {
        // SAFETY: no thread writes to the slot, by this function's contract.
        unsafe { (*self.0.get()).as_deref() }
    }
    /// Removes the stored value from the slot and returns it.
    ///
    /// # Safety
    /// The caller must ensure that no other thread uses the slot during the call. The calling thread must be the thread
    /// that called [`put`](Kept::put), or the copy of this thread in the child of a `fork`.
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

/// Returns a number that is unique in the process. In loom and shuttle builds, the number is unique in the current
/// execution. A repeated execution gets the same numbers as before.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub fn unique() -> u64 {
    static NEXT_NUMBER: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    // Relaxed: the atomic read-modify-write alone makes the numbers unique.
    NEXT_NUMBER.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

/// A statistics counter, which many threads increment and reports read. An algorithm may use a counter only to enforce
/// an approximate limit, because concurrent updates can exceed it. In every build, a counter is an atomic of `std` with
/// `Relaxed` accesses.
///
/// Each [`add`](Counter::add) costs a locked instruction, so only slow paths should use counters.
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
    /// Raises the counter to `value` if the counter is lower.
    #[inline]
    pub fn max(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
    /// Sets the counter to `value`. If `set` is used, only one thread at a time may write the counter.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A 32-bit number that is written once, before the object that contains it is shared. A reader that does not see the
/// write gets zero, and never a torn value. In every build, the number is an atomic of `std` with `Relaxed` accesses.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Fixed(core::sync::atomic::AtomicU32);

impl Fixed {
    /// Creates the number with an initial value.
    pub const fn new(value: u32) -> Self {
        Self(core::sync::atomic::AtomicU32::new(value))
    }
    /// Returns the current value, or the initial value if the write is not visible yet.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    /// Stores the final value of the number. The object that contains the number must not be shared yet.
    #[inline(always)]
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A pointer that is written once, like [`Fixed`]. A fixed pointer can be in objects that outlive the executions of a
/// model.
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
    /// Sets the pointer. The object that contains the pointer must not be shared yet.
    #[inline(always)]
    pub fn set(&self, value: *mut T) {
        self.0.store(value, Ordering::Relaxed);
    }
}
