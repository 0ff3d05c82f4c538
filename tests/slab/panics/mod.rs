//! Checks the contract of [`uslab::error`] about panics in user code, for each callback. The tests include a payload
//! that panics when it is dropped, a callback that calls the allocator, and a callback that removes itself or its
//! cache.

mod magazines;
mod objects;
mod reclaim;

use crate::common::assert_all_memory_returned;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::panic_any;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;
use uslab::{Gfp, KmemCache, ObjectCache, Subsystem};
use uslab_magazine::sync::{AtomicBool, Mutex, Ordering::Relaxed, catch_panic};

/// A panic payload whose `Drop` also panics.
struct PanickingDrop;
impl Drop for PanickingDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a payload");
        }
    }
}

fn panic_with_drop_payload() -> ! {
    panic_any(PanickingDrop)
}

/// Checks that the panic of a callback reaches the caller, with its payload.
#[track_caller]
fn assert_panic_reaches_caller<R>(f: impl FnOnce() -> R) {
    let Err(panic) = catch_panic(f) else { panic!("the callback must panic") };
    core::mem::forget(panic.downcast::<PanickingDrop>().expect("the panic must be the callback's"));
}

/// A guard that runs a closure once; nested calls do nothing.
#[derive(Clone, Default)]
struct RunOnceGuard(Arc<AtomicBool>);
impl RunOnceGuard {
    fn run(&self, f: impl FnOnce()) {
        if !self.0.swap(true, Relaxed) {
            f();
        }
    }
    /// Returns `true` if the closure was run.
    fn has_run(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// A weak reference to the cache or the registration that a callback uses. A strong reference would keep the cache
/// alive forever.
struct WeakTarget<T>(Arc<Mutex<Weak<T>>>);
impl<T> Clone for WeakTarget<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
impl<T> WeakTarget<T> {
    fn empty() -> Self {
        Self(Arc::new(Mutex::new(Weak::new())))
    }
    fn keep(&self, target: T) -> Arc<T> {
        let target = Arc::new(target);
        *self.0.lock() = Arc::downgrade(&target);
        target
    }
    fn get(&self) -> Option<Arc<T>> {
        self.0.lock().upgrade()
    }
}

/// A value that a callback drops while it runs.
struct DroppedInCallback<T>(Arc<Mutex<Option<T>>>);
impl<T> Clone for DroppedInCallback<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
impl<T> DroppedInCallback<T> {
    fn unset() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }
    fn fill(&self, value: T) {
        *self.0.lock() = Some(value);
    }
    fn drop_value(&self) -> bool {
        let value = self.0.lock().take();
        value.is_some()
    }
}

/// Checks that the cache still works and can be destroyed, and that no object was lost.
#[track_caller]
fn ends<T>(subsystem: &Subsystem, cache: Arc<ObjectCache<T>>) {
    drop([(); 3].map(|()| cache.alloc().unwrap()));
    cache.destroy().unwrap();
    drop(cache);
    assert_all_memory_returned(subsystem);
}
/// Checks that an untyped cache still works and can be destroyed, and that no object was lost.
#[track_caller]
fn assert_untyped_cache_ends(subsystem: &Subsystem, cache: Arc<KmemCache>) {
    drop([(); 3].map(|()| cache.alloc_block(Gfp::KERNEL).unwrap()));
    cache.destroy().unwrap();
    drop(cache);
    assert_all_memory_returned(subsystem);
}

/// Runs a test case, and fails if it does not end in time.
fn watched(case: fn()) {
    let (finished_sender, finished_receiver) = channel();
    let thread = std::thread::spawn(move || {
        case();
        finished_sender.send(()).unwrap();
    });
    match finished_receiver.recv_timeout(Duration::from_secs(100)) {
        Ok(()) => thread.join().unwrap(),
        Err(RecvTimeoutError::Disconnected) => {
            core::mem::forget(thread.join());
            panic!("the case panicked");
        }
        Err(RecvTimeoutError::Timeout) => panic!("the case does not end"),
    }
}

/// Expands the rows of the contract: the name of a callback, its module, and its cases, each of which becomes a test.
macro_rules! callbacks {
    ($($name:literal => $place:ident::$callback:ident: $($case:ident)+;)+) => {
        const CALLBACKS: &[&str] = &[$($name),+];
        $(mod $callback {
            $(#[test]
            fn $case() {
                super::watched(super::$place::$callback::$case);
            })+
        })+
    };
}
callbacks! {
    "constructor" => objects::constructor: bomb reenters removes_itself;
    "fallible constructor" => objects::try_constructor: bomb reenters removes_itself;
    "destructor" => objects::destructor: bomb reenters removes_itself;
    "reset" => objects::reset: bomb reenters removes_itself;
    "weight" => objects::weight: bomb reenters removes_itself;
    "preparation" => objects::preparation: bomb reenters removes_itself;
    "waker" => objects::waker: bomb reenters removes_itself;
    "values of a hive" => objects::hive: bomb reenters;
    "start of a static cache" => objects::static_cache: bomb reenters;
    "captured values" => objects::captured: bomb reenters;
    "observer" => reclaim::observer: bomb reenters removes_itself;
    "shrinker" => reclaim::shrinker: bomb reenters removes_itself;
    "corruption handler" => reclaim::corruption: bomb reenters removes_itself;
    "corruption handler of pages" => reclaim::page_corruption: bomb reenters;
    "deferred closure" => reclaim::deferred: bomb reenters;
    "supplier" => magazines::supplier: bomb reenters removes_itself;
    "memory of a table" => magazines::memory: bomb;
}
/// Rows of the contract whose tests are stored next to the tested code.
const ROWS_TESTED_ELSEWHERE: &[(&str, &str)] = &[
    ("closures of handles and pools", "slab/handle/src/slot_map.rs"),
    ("functions of C", "tests/programs/preload/contract.rs"),
];

/// All calls of user code in shipping sources: the file, the number of calls, and the callbacks.
const PLACES: &[(&str, usize, &[&str])] = &[
    ("buddy/src/allocator.rs", 1, &["corruption handler of pages"]),
    ("magazine/src/layer.rs", 1, &["supplier"]),
    ("magazine/src/table/drain.rs", 2, &["supplier"]),
    ("magazine/src/table/layout.rs", 2, &["memory of a table"]),
    ("magazine/sync/src/observers.rs", 1, &["observer"]),
    ("slab/src/cache/core.rs", 3, &["corruption handler", "captured values"]),
    ("slab/src/cache/lifetime/deferred.rs", 1, &["reset"]),
    ("slab/src/cache/free.rs", 1, &["reset"]),
    ("slab/src/cache/held.rs", 1, &["weight"]),
    ("slab/src/cache/hooks.rs", 1, &["captured values"]),
    ("slab/src/cache/slabs.rs", 3, &["constructor", "fallible constructor", "destructor"]),
    ("slab/src/cache/wait/waiters.rs", 1, &["waker"]),
    ("slab/src/objects/hive.rs", 1, &["values of a hive"]),
    ("slab/src/objects/static_cache.rs", 1, &["start of a static cache"]),
    ("slab/src/reclaim/rcu.rs", 4, &["deferred closure"]),
    ("slab/src/reclaim/reaper.rs", 2, &["destructor", "shrinker"]),
    ("slab/src/reclaim/reaper/background.rs", 1, &["destructor", "shrinker"]),
    ("slab/src/reclaim/shrinker.rs", 3, &["shrinker", "captured values"]),
];

/// Counts the calls of the panic wrappers in a shipping source, without imports, tests and definitions.
fn count_uses(source: &str) -> usize {
    let shipping = source.split("\nmod tests {").next().unwrap_or(source);
    let code = shipping.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = ["catch_panic(", "contain_panic(", "FirstPanic::", "ContainedValue::", "ContainedValue<"];
    code.map(|line| names.iter().map(|name| line.matches(name).count()).sum::<usize>()).sum()
}

fn sources(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, files);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
}

#[test]
fn panic_tests_cover_each_user_callback() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["buddy/src", "magazine/src", "magazine/sync/src", "slab/src", "slab/libuslab/src"] {
        sources(&workspace.join(folder), &mut files);
    }
    let uses_found: BTreeMap<String, usize> = files
        .iter()
        .map(|file| file.strip_prefix(workspace).unwrap().display().to_string())
        .filter(|file| !file.contains("tests") && !file.contains("scenarios") && !file.contains("shadow"))
        .filter(|file| file != "magazine/sync/src/lib.rs")
        .map(|file| (count_uses(&std::fs::read_to_string(workspace.join(&file)).unwrap()), file))
        .filter(|(uses, _)| *uses > 0)
        .map(|(uses, file)| (file, uses))
        .collect();
    let listed_uses = PLACES.iter().map(|(file, uses, _)| ((*file).to_owned(), *uses)).collect();
    assert_eq!(uses_found, listed_uses, "name the callback in PLACES and test it");
    let known_callbacks: BTreeSet<&str> = CALLBACKS.iter().copied().collect();
    for (file, _, callbacks) in PLACES {
        assert!(callbacks.iter().all(|callback| known_callbacks.contains(callback)), "{file}: {callbacks:?}");
    }
}

#[test]
fn panic_contract_lists_each_callback() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(workspace.join("slab/src/error.rs")).unwrap();
    let table = page.split("//! # Panics").nth(1).expect("the documentation must have a section on panics");
    let rows = table.lines().skip_while(|line| !line.starts_with("//! |---")).skip(1);
    let rows: BTreeSet<&str> = rows
        .map_while(|row| row.strip_prefix("//! | "))
        .map(|row| row.split(" (").next().unwrap())
        .map(|row| row.split(" | ").next().unwrap())
        .collect();
    let tested =
        CALLBACKS.iter().copied().chain(ROWS_TESTED_ELSEWHERE.iter().map(|(name, _)| *name)).collect();
    assert_eq!(rows, tested);
    for (name, file) in ROWS_TESTED_ELSEWHERE {
        let source = std::fs::read_to_string(workspace.join(file)).unwrap();
        assert!(source.contains("panic") || source.contains("exception"), "{name}: {file} must have a test");
    }
}
