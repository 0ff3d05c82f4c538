//! The loom backend: loom's types with repaired atomics, a hook that weakens memory orderings, and spurious failures on
//! request.

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
/// Accepts the `const` form of `thread_local!`, which loom's macro does not have, and ignores the `const`.
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

/// Yields the processor to other threads. Every waiting loop must call `relax`. Loom reports a waiting loop that does
/// not yield as endless.
pub fn relax() {
    loom::thread::yield_now();
}

/// Thread functions of loom, which count the threads for the `MODEL` row.
pub mod thread {
    pub use loom::thread::*;

    /// Parks the current thread, and ignores the timeout. In a model no time passes, so a timeout would never expire.
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

/// A cell whose accesses loom checks. If an exclusive access races with another access, the model fails.
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

/// A mutex of loom with a lock rank. Loom reports a deadlock as a failure.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>, LockRank);

/// A guard that releases a [`Mutex`] when it is dropped.
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
    /// Waits for the lock and acquires it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::None)
    }
    /// Acquires the lock like [`lock`](Self::lock), but permits locks of the same rank. The thread may already hold
    /// other locks of this rank.
    #[track_caller]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.wait(Nesting::Same)
    }
    #[track_caller]
    fn wait(&self, nesting: Nesting) -> MutexGuard<'_, T> {
        let (held, lock) = (self.1.request(nesting), self.trace_lock());
        lock.record_wait(Location::caller());
        let guard = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        RankedGuard::with_guard(guard, held, lock.record_acquired(Location::caller()))
    }
    /// Returns the guard, or `None` if another thread holds the lock.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let (held, lock) = (self.1.request(Nesting::None), self.trace_lock());
        let Ok(guard) = self.0.try_lock() else {
            lock.record_busy(Location::caller());
            return None;
        };
        Some(RankedGuard::with_guard(guard, held, lock.record_acquired(Location::caller())))
    }
    fn trace_lock(&self) -> story::Lock {
        story::Lock::new(self, self.1.rank())
    }
    /// Returns the protected value without locking, because the exclusive borrow excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The options of the hook that weakens memory orderings, from the environment.
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

/// Returns the memory ordering for a call site: `own`, or a weaker ordering if the hook selects this site.
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
    static VISITED_CALL_SITES: std::sync::Mutex<BTreeSet<String>> = std::sync::Mutex::new(BTreeSet::new());
    if hook.list && VISITED_CALL_SITES.lock().is_ok_and(|mut seen| seen.insert(site.clone())) {
        eprintln!("SITE {site} {op} {own:?}");
    }
    own
}

/// A memory fence, whose ordering the hook may weaken. If the ordering is `Relaxed`, the fence does nothing.
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
    static SPURIOUS_FAILURE_COUNTDOWN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Makes the `k`-th call of `compare_exchange_weak` from now on fail spuriously, counted over all threads of the model.
/// With `k` = 0, no call fails spuriously.
pub fn arm_spurious_failure(k: u32) {
    SPURIOUS_FAILURE_COUNTDOWN.with(|w| w.set(k));
}

/// Returns the ordering that loom uses for a load: `Acquire` instead of `SeqCst`. A `SeqCst` load in loom never reads
/// an overwritten `SeqCst` store, although the memory model permits it in some cases. An `Acquire` load in loom may
/// read an overwritten store.
fn loom_load_order(order: Ordering) -> Ordering {
    if order == Ordering::SeqCst { Ordering::Acquire } else { order }
}

fn fails_spuriously() -> bool {
    SPURIOUS_FAILURE_COUNTDOWN.with(|w| {
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
            /// The *twin*: a condition variable without waiters, which every access notifies. Loom treats two
            /// notifications as conflicting, so it explores both orders. Notifications do not synchronise threads.
            twin: loom::sync::Condvar,
            /// The last stored value, to print in counterexample traces. Reading this field is not a step in the model.
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
            /// Returns the last stored value. The call is not a step in the model.
            pub fn peek(&self) -> u64 {
                self.last.load(Ordering::Relaxed)
            }
            fn record_store(&self, value: $value) {
                self.last.store(value as u64, Ordering::Relaxed);
            }
            fn checked_loom_atomic(&self) -> &l::$name $(<$t>)? {
                planted!("a store skips the shadow copy" => return &self.value);
                self.twin.notify_all();
                &self.value
            }
            /// Loads the value, like the method of `std`'s atomic.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                let order = ordering("load", 0, order);
                let value = self.checked_loom_atomic().load(loom_load_order(order));
                self.told.tell(None::<$value>, |name| format!("loads {} from {name} ({order:?})", value.trace_text()));
                value
            }
            /// Stores `value`, like the method of `std`'s atomic.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                let order = ordering("store", 1, order);
                self.checked_loom_atomic().store(value, order);
                self.record_store(value);
                self.told.tell(Some(value), |name| format!("stores {} to {name} ({order:?})", value.trace_text()));
            }
            /// Stores `value` and returns the previous value, like the method of `std`'s atomic.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                let order = ordering("swap", 1, order);
                let before = self.checked_loom_atomic().swap(value, order);
                self.record_store(value);
                self.told.tell(Some(value), |name| changes("swap", name, before.trace_text(), value.trace_text(), order));
                before
            }
            /// Compares and exchanges the value, like the method of `std`'s atomic.
            #[track_caller]
            pub fn compare_exchange(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (ordering("cas", 2, success), ordering("cas-fail", 3, failure));
                let result = self.checked_loom_atomic().compare_exchange(current, new, success, failure);
                self.record_exchange(current, new, result, success, failure)
            }
            /// Compares and exchanges the value, like the method of `std`'s atomic. The exchange fails spuriously only
            /// if [`arm_spurious_failure`] selected this call.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (ordering("cas", 2, success), ordering("cas-fail", 3, failure));
                let result = if fails_spuriously() {
                    Err(self.checked_loom_atomic().load(failure))
                } else {
                    self.checked_loom_atomic().compare_exchange(current, new, success, failure)
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
    /// An `AtomicBool` of loom, with repairs and with steps in counterexample traces.
    AtomicBool, bool;
    /// An `AtomicU8` of loom, with repairs and with steps in counterexample traces.
    AtomicU8, u8;
    /// An `AtomicU16` of loom, with repairs and with steps in counterexample traces.
    AtomicU16, u16;
    /// An `AtomicU32` of loom, with repairs and with steps in counterexample traces.
    AtomicU32, u32;
    /// An `AtomicU64` of loom, with repairs and with steps in counterexample traces.
    AtomicU64, u64;
    /// An `AtomicUsize` of loom, with repairs and with steps in counterexample traces.
    AtomicUsize, usize;
    /// An `AtomicI32` of loom, with repairs and with steps in counterexample traces.
    AtomicI32, i32;
    /// An `AtomicI64` of loom, with repairs and with steps in counterexample traces.
    AtomicI64, i64;
    /// An `AtomicIsize` of loom, with repairs and with steps in counterexample traces.
    AtomicIsize, isize;
    /// An `AtomicPtr` of loom, with repairs and with steps in counterexample traces.
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
            /// Changes the value, like the method of `std`'s atomic.
            #[track_caller]
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                let order = ordering("rmw", 1, order);
                let before = self.checked_loom_atomic().$operation(value, order);
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

/// A number that influences decisions, for example a limit or a batch size. A reader may get an old value. All accesses
/// are `Relaxed`, and a lost update must be harmless. Loom explores every value of a hint that a thread may read. A
/// read of a [`Counter`](crate::Counter) always returns the newest value.
#[derive(Debug)]
pub struct Hint(AtomicU64);

// Hints bypass the ordering hook, because their callers write no ordering.
impl Hint {
    /// Creates a hint with the given value.
    #[track_caller]
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// Returns the hint's current value, or an older one.
    #[track_caller]
    pub fn get(&self) -> u64 {
        let value = self.0.checked_loom_atomic().load(Ordering::Relaxed);
        self.0.told.tell(None::<u64>, |name| format!("reads {} from hint {name}", value.trace_text()));
        value
    }
    /// Sets the hint to a new value.
    #[track_caller]
    pub fn set(&self, value: u64) {
        self.0.checked_loom_atomic().store(value, Ordering::Relaxed);
        self.0.record_store(value);
        self.0.told.tell(Some(value), |name| format!("sets hint {name} to {}", value.trace_text()));
    }
}
