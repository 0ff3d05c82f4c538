//! The loom backend: repaired atomics, the ordering hook, and spurious failures on request.

use crate::Ordering;
use crate::planted;
use crate::rank::{LockRank, Nesting, Rank, RankedGuard};
use crate::story::{self, TraceValue};
use loom::sync::atomic as l;
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::OnceLock;

pub use loom::lazy_static;
pub use loom::sync::Arc;
/// Accepts `const` in `thread_local!` and drops it, because loom's macro has no `const` form.
#[macro_export]
#[doc(hidden)]
macro_rules! thread_local_of_loom {
    () => {};
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = const { $value:expr }; $($rest:tt)*) => {
        $crate::thread_local_itself! { $(#[$attribute])* $visible static $name: $type = $value; }
        $crate::thread_local_of_loom! { $($rest)* }
    };
    ($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr; $($rest:tt)*) => {
        $crate::thread_local_itself! { $(#[$attribute])* $visible static $name: $type = $value; }
        $crate::thread_local_of_loom! { $($rest)* }
    };
}
pub use loom::thread_local as thread_local_itself;
pub use thread_local_of_loom as thread_local;

/// Yields to other threads inside a waiting loop. Without a yield, loom reports a waiting loop as endless.
pub fn relax() {
    loom::thread::yield_now();
}

/// loom's threads, counted for the row that a model prints.
pub mod thread {
    pub use loom::thread::*;

    /// Parks the current thread without a timeout. No time passes in a model, so there is no timeout.
    pub fn park_timeout(_: core::time::Duration) {
        park();
    }

    /// Starts a thread.
    #[track_caller]
    pub fn spawn<F: FnOnce() -> T + 'static, T: 'static>(f: F) -> JoinHandle<T> {
        crate::execution::count_thread();
        // If the execution fails first, the thread never starts and its closure is leaked. Dropping a loom `Arc`
        // outside an execution panics again, which would abort the program.
        let f = core::mem::ManuallyDrop::new(f);
        loom::thread::spawn(move || core::mem::ManuallyDrop::into_inner(f)())
    }
}

/// A cell whose accesses loom checks. The model fails if an exclusive access races with another access.
#[derive(Debug)]
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Creates a cell around `value`.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }
    /// Calls `f` with shared access to the value.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }
    /// Calls `f` with exclusive access to the value.
    #[track_caller]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}
impl<T: Default> Default for UnsafeCell<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// loom's mutex with a lock rank. The checker reports deadlocks.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>, LockRank);

/// Releases the lock of a [`Mutex`] when dropped.
pub type MutexGuard<'a, T> = RankedGuard<loom::sync::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value` without a rank.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value), LockRank::NONE)
    }
    /// Creates an unlocked mutex around `value` with a rank.
    pub fn ranked(rank: impl Into<Rank>, value: T) -> Self {
        Self(loom::sync::Mutex::new(value), LockRank::of(rank.into()))
    }
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Waits for the lock, like [`lock`](Self::lock). The thread may hold other locks of the same rank.
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let (held, lock) = (self.1.request(nesting), self.story_lock());
        lock.record_wait(Location::caller());
        let guard = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        RankedGuard::with_guard(guard, held, lock.record_acquired(Location::caller()))
    }
    /// Returns the guard, or `None` if the lock is held.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let (held, lock) = (self.1.request(Nesting::None), self.story_lock());
        let Ok(guard) = self.0.try_lock() else {
            lock.record_busy(Location::caller());
            return None;
        };
        Some(RankedGuard::with_guard(guard, held, lock.record_acquired(Location::caller())))
    }
    fn story_lock(&self) -> story::Lock {
        story::Lock::new(self, self.1.rank())
    }
    /// Returns the protected value without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Options of the ordering hook, read from the environment.
struct Hook {
    weaken: Option<(String, Ordering)>,
    list: bool,
}

fn hook() -> &'static Hook {
    static HOOK: OnceLock<Hook> = OnceLock::new();
    HOOK.get_or_init(|| Hook {
        weaken: std::env::var("OM").ok().map(|spec| {
            parse(&spec).unwrap_or_else(|| {
                panic!("OM={spec}: expected file:line:column:arg:Ordering with Relaxed, Acquire, Release or AcqRel")
            })
        }),
        list: std::env::var_os("OM_LIST").is_some(),
    })
}

fn parse(spec: &str) -> Option<(String, Ordering)> {
    let (site, ordering) = spec.rsplit_once(':')?;
    let ordering = match ordering {
        "Relaxed" => Ordering::Relaxed,
        "Acquire" => Ordering::Acquire,
        "Release" => Ordering::Release,
        "AcqRel" => Ordering::AcqRel,
        _ => return None,
    };
    Some((site.to_owned(), ordering))
}

/// Returns the ordering for a call site: `own`, or the ordering that the hook forces.
#[track_caller]
fn ordering(op: &str, arg: u32, own: Ordering) -> Ordering {
    let hook = hook();
    if !hook.list && hook.weaken.is_none() {
        return own;
    }
    // The `Display` form of a `Location` is file:line:column.
    let site = format!("{}:{arg}", Location::caller());
    match &hook.weaken {
        Some((weakened, weak)) if site == *weakened => return *weak,
        _ => {}
    }
    static SEEN_MODELS: std::sync::Mutex<BTreeSet<String>> = std::sync::Mutex::new(BTreeSet::new());
    if hook.list && SEEN_MODELS.lock().is_ok_and(|mut seen| seen.insert(site.clone())) {
        eprintln!("SITE {site} {op} {own:?}");
    }
    own
}

/// A fence whose ordering the hook may weaken. An ordering of `Relaxed` means no fence.
#[track_caller]
pub fn fence(own: Ordering) {
    match ordering("fence", 0, own) {
        Ordering::Relaxed => {}
        strong => {
            l::fence(strong);
            story::record_fence(strong);
        }
    }
}

std::thread_local! {
    static WEAK: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Makes the `k`-th next call of `compare_exchange_weak`, on any thread of the model, fail spuriously. If `k`
/// is 0, no call fails spuriously.
pub fn weak_arm(k: u32) {
    WEAK.with(|w| w.set(k));
}

/// A `SeqCst` load in loom never reads a `SeqCst` store that another `SeqCst` store has overwritten. An `Acquire` load
/// in loom may read an overwritten `SeqCst` store.
fn as_loom_loads(order: Ordering) -> Ordering {
    if order == Ordering::SeqCst { Ordering::Acquire } else { order }
}

fn weak_fails() -> bool {
    WEAK.with(|w| {
        let k = w.get();
        w.set(k.saturating_sub(1));
        k == 1
    })
}

macro_rules! atomics {
    ($($(#[$doc:meta])* $name:ident $(<$t:ident>)?, $value:ty;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name $(<$t>)? {
            value: l::$name $(<$t>)?,
            /// The twin: a condition variable without waiters that each access notifies. A notification of the
            /// condition variable conflicts with every other notification and orders nothing.
            twin: loom::sync::Condvar,
            /// The last stored value, for the trace. Reading this field is not a step of the model.
            last: std::sync::atomic::AtomicU64,
            told: story::Atomic,
        }
        impl $(<$t>)? $name $(<$t>)? {
            /// Creates an atomic with the given value.
            #[track_caller]
            pub fn new(value: $value) -> Self {
                Self {
                    value: l::$name::new(value),
                    twin: loom::sync::Condvar::new(),
                    last: std::sync::atomic::AtomicU64::new(value as u64),
                    told: story::Atomic::new(),
                }
            }
            /// Returns the last stored value without a step of the model.
            pub fn peek(&self) -> u64 {
                self.last.load(Ordering::Relaxed)
            }
            fn record_store(&self, value: $value) {
                self.last.store(value as u64, Ordering::Relaxed);
            }
            fn checked_twin(&self) -> &l::$name $(<$t>)? {
                planted!("a store skips the shadow copy" => return &self.value);
                self.twin.notify_all();
                &self.value
            }
            /// Loads the value, like `std`'s atomic.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                let order = ordering("load", 0, order);
                let value = self.checked_twin().load(as_loom_loads(order));
                self.told.tell(None::<$value>, |name| format!("loads {} from {name} ({order:?})", value.trace_text()));
                value
            }
            /// Stores `value`, like `std`'s atomic.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                let order = ordering("store", 1, order);
                self.checked_twin().store(value, order);
                self.record_store(value);
                self.told.tell(Some(value), |name| format!("stores {} to {name} ({order:?})", value.trace_text()));
            }
            /// Swaps the value, like `std`'s atomic.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                let order = ordering("swap", 1, order);
                let before = self.checked_twin().swap(value, order);
                self.record_store(value);
                self.told.tell(Some(value), |name| changes("swap", name, before.trace_text(), value.trace_text(), order));
                before
            }
            /// Compares and exchanges, like `std`'s atomic.
            #[track_caller]
            pub fn compare_exchange(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (ordering("cas", 2, success), ordering("cas-fail", 3, failure));
                let result = self.checked_twin().compare_exchange(current, new, success, failure);
                self.record_exchange(current, new, result, success, failure)
            }
            /// Compares and exchanges, like `std`'s atomic, but may fail spuriously if [`weak_arm`] selected this call.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (ordering("cas", 2, success), ordering("cas-fail", 3, failure));
                let result = if weak_fails() {
                    Err(self.checked_twin().load(failure))
                } else {
                    self.checked_twin().compare_exchange(current, new, success, failure)
                };
                self.record_exchange(current, new, result, success, failure)
            }
            #[track_caller]
            fn record_exchange(
                &self, current: $value, new: $value, result: Result<$value, $value>, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                if result.is_ok() {
                    self.record_store(new);
                }
                self.told.tell(result.ok().map(|_| new), |name| match result {
                    Ok(before) => changes("compare_exchange", name, before.trace_text(), new.trace_text(), success),
                    Err(found) if found == current => {
                        format!("fails spuriously to change {name} from {} ({failure:?})", found.trace_text())
                    }
                    Err(found) => {
                        format!("expects {} in {name}, but finds {} ({failure:?})", current.trace_text(), found.trace_text())
                    }
                });
                result
            }
        }
    )* };
}
atomics! {
    /// loom's `AtomicBool` with repairs and trace steps.
    AtomicBool, bool;
    /// loom's `AtomicU8` with repairs and trace steps.
    AtomicU8, u8;
    /// loom's `AtomicU16` with repairs and trace steps.
    AtomicU16, u16;
    /// loom's `AtomicU32` with repairs and trace steps.
    AtomicU32, u32;
    /// loom's `AtomicU64` with repairs and trace steps.
    AtomicU64, u64;
    /// loom's `AtomicUsize` with repairs and trace steps.
    AtomicUsize, usize;
    /// loom's `AtomicI32` with repairs and trace steps.
    AtomicI32, i32;
    /// loom's `AtomicI64` with repairs and trace steps.
    AtomicI64, i64;
    /// loom's `AtomicIsize` with repairs and trace steps.
    AtomicIsize, isize;
    /// loom's `AtomicPtr` with repairs and trace steps.
    AtomicPtr<T>, *mut T;
}

fn changes(operation: &str, name: &str, before: String, after: String, order: Ordering) -> String {
    format!("changes {name} from {before} to {after} by {operation} ({order:?})")
}

impl Default for AtomicU32 {
    fn default() -> Self {
        Self::new(0)
    }
}
impl Default for AtomicU64 {
    fn default() -> Self {
        Self::new(0)
    }
}

macro_rules! fetches {
    ($($operation:ident $after:expr;)*) => { fetches! { [$(($operation $after))*] AtomicU8 u8, AtomicU16 u16, AtomicU32 u32,
        AtomicU64 u64, AtomicUsize usize, AtomicI32 i32, AtomicI64 i64, AtomicIsize isize } };
    ($operations:tt $($name:ident $value:ty),*) => { $( fetches! { @ $name $value, $operations } )* };
    (@ $name:ident $value:ty, [$(($operation:ident $after:expr))*]) => {
        impl $name { $(
            /// Changes the value, like `std`'s atomic.
            #[track_caller]
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                let order = ordering("rmw", 1, order);
                let before = self.checked_twin().$operation(value, order);
                let after: fn($value, $value) -> $value = $after;
                let after = after(before, value);
                self.record_store(after);
                self.told.tell(Some(after), |name| changes(stringify!($operation), name, before.trace_text(), after.trace_text(), order));
                before
            }
        )* }
    };
}
fetches! {
    fetch_add |before, value| before.wrapping_add(value);
    fetch_sub |before, value| before.wrapping_sub(value);
    fetch_and |before, value| before & value;
    fetch_or |before, value| before | value;
    fetch_xor |before, value| before ^ value;
    fetch_max |before, value| before.max(value);
    fetch_min |before, value| before.min(value);
}

/// A number that guides decisions, for example a limit or a batch size; a reader may get an old value. All accesses are
/// `Relaxed`, because a lost update is harmless. A checker explores each value of a hint that a thread may read, unlike
/// the value of a [`Counter`](crate::Counter).
#[derive(Debug)]
pub struct Hint(AtomicU64);

// Hints bypass the ordering hook, because their callers write no ordering.
impl Hint {
    /// Creates a hint with the given value.
    #[track_caller]
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// Returns the current value, or an older value.
    #[track_caller]
    pub fn get(&self) -> u64 {
        let value = self.0.checked_twin().load(Ordering::Relaxed);
        self.0.told.tell(None::<u64>, |name| format!("reads {} from hint {name}", value.trace_text()));
        value
    }
    /// Overwrites the hint's value.
    #[track_caller]
    pub fn set(&self, value: u64) {
        self.0.checked_twin().store(value, Ordering::Relaxed);
        self.0.record_store(value);
        self.0.told.tell(Some(value), |name| format!("sets hint {name} to {}", value.trace_text()));
    }
}
