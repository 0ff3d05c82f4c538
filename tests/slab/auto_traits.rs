//! Checks if each public type of the three crates is `Send` and `Sync`, and states the reason. The test fails if a
//! field changes an auto trait, or if an `unsafe impl` grants too much.
//!
//! A generic type is tested with three parameters: `u8`, `Cell<u8>` (`Send`, but not `Sync`) and `Rc<u8>` (not `Send`,
//! not `Sync`).

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use uslab::handle::*;
use uslab::pool::*;
use uslab::*;
use uslab_buddy as buddy;
use uslab_magazine as magazine;
use uslab_magazine::sync;

/// Evaluates to `true` if a type has an auto trait: then the inherent constant shadows the constant of the trait.
macro_rules! is {
    ($type:ty: $auto:ident) => {{
        struct TraitProbe<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        trait NotImplemented {
            const IMPLEMENTED: bool = false;
        }
        impl<T: ?Sized> NotImplemented for TraitProbe<T> {}
        #[allow(dead_code)]
        impl<T: ?Sized + $auto> TraitProbe<T> {
            const IMPLEMENTED: bool = true;
        }
        <TraitProbe<$type>>::IMPLEMENTED
    }};
}
const YES: bool = true;
const NO: bool = false;

/// Expands rows of the form `why => Send, Sync: types`, and collects the types that do not agree with their row.
macro_rules! table {
    ($($why:literal => $send:ident $sync:ident: $($type:ty),+;)*) => {{
        let mut failures = vec![];
        $($(
            let (send, sync) = (is!($type: Send), is!($type: Sync));
            if (send, sync) != ($send, $sync) {
                failures.push(format!("{}: Send {send}, Sync {sync}, although: {}", stringify!($type), $why));
            }
        )+)*
        failures
    }};
}

/// A round type for magazines, which is `Send` because the trait `Round` requires it.
#[derive(Clone, Copy)]
struct TestRound;
impl magazine::Round for TestRound {
    fn into_raw(self) -> NonNull<u8> {
        NonNull::dangling()
    }
    unsafe fn from_raw(_: NonNull<u8>) -> Self {
        Self
    }
}
/// Static memory for a pool; the type after it is a pool in this memory.
type Stack = Borrowed<'static>;
type PoolOnStack = FixedPool<Stack>;

#[test]
fn public_types_have_exactly_the_documented_auto_traits() {
    let failures = table! {
        // --- uslab_magazine
        "numbers and settings" => YES YES: magazine::Config, magazine::DepotBudget, magazine::Drains, magazine::SweepGroup, magazine::BadTableMemory, magazine::DrainScope, magazine::Words, magazine::Stats, magazine::Cpus,
            magazine::Mechanism, magazine::BadCpus, magazine::Script, magazine::Path, magazine::Paths, sync::Rank,
            magazine::uslab_sync::Rank;
        "shared between threads by design; its rounds are `Send`" => YES YES: magazine::Layer<TestRound>;
        "a pointer to a layer; each use promises that this lives" => YES YES: magazine::FastPath<TestRound>;
        "memory by address, never written through a shared reference" => YES YES: magazine::Heap;
        "as several of them" => YES YES: magazine::FastPathTable<TestRound, magazine::Heap, 2>;
        "words of a table, for any thread" => YES YES: magazine::StaticWords, magazine::StaticPath<TestRound>;
        "a range of addresses, and locks" => YES YES: magazine::Table<magazine::Heap>, buddy::Tables, buddy::StackMemory;
        "copies of numbers, as `Vec`" => YES YES: magazine::LayerView<u8>, magazine::CpuView<u8>, magazine::DepotView<u8>,
            magazine::MagazineView<u8>;
        "notes of one operation, in cells" => YES NO: magazine::Operation<'static>;
        "a view of one operation" => YES YES: observe::Step, observe::OperationKind, observe::Counts,
            observe::TooManyObservers, observe::Observed<'static>;
        "functions that are `Send + Sync`" => YES YES: observe::Observer, magazine::tracepoints::Tracepoints,
            sync::observers::Observers<dyn Fn() + Send + Sync>;
        "a number" => YES YES: sync::observers::Place;
        "others that call them and drop them" => NO NO: sync::observers::Observers<dyn Fn()>;
        "atomics" => YES YES: sync::Counter, sync::Hint, sync::Fixed, sync::FixedPtr<u8>, magazine::PathCounts;
        "a lock hands out `&mut`, so its value need not be `Sync`" => YES YES: sync::Mutex<Cell<u8>>,
            sync::fork::ForkMutex<Cell<u8>>;
        "but it can be moved out of the lock" => NO NO: sync::Mutex<Rc<u8>>, sync::fork::ForkMutex<Rc<u8>>;
        "a lock is released by the thread that took it; the guard lends `&`" => NO YES: sync::MutexGuard<'static, u8>;
        "as above" => NO NO: sync::MutexGuard<'static, Cell<u8>>;
        "the contract requires exclusive access; the value is never dropped" => YES YES: sync::Kept<Rc<u8>>;
        "a cell" => YES NO: sync::UnsafeCell<u8>;
        "a cell" => NO NO: sync::UnsafeCell<Rc<u8>>;

        // --- uslab_buddy
        "numbers, names and settings" => YES YES: buddy::Census, buddy::Violation, buddy::census::BrokenInvariant, buddy::PageConfig,
            buddy::Corruption, buddy::Limit, buddy::AllocError, buddy::PageError, buddy::faults::Point,
            buddy::faults::Call<'static>, buddy::faults::Rule, buddy::faults::BadRule, buddy::faults::Tally, buddy::Kind,
            buddy::State, buddy::Link, buddy::Gfp, buddy::MigrateType, buddy::ZoneKind, buddy::BuddyInfo, buddy::ZoneInfo,
            buddy::info::PerCpuEvents, buddy::info::PageTypeInfo<'static>, buddy::Pfn, buddy::Order, buddy::Backend,
            buddy::Phantom, buddy::PerCpuView, buddy::HugePages, buddy::region::Uncommitted, buddy::watermark::Watermarks, buddy::ZoneEvents;
        "shared between threads by design" => YES YES: buddy::PageAllocator, buddy::Faults;
        "its pages are reached by address, under each unsafe function's contract" => YES YES: buddy::Region, buddy::Reservation, buddy::Reserved;
        "atomics, and links that belong to whoever holds the lock of their list" => YES YES: buddy::Frame,
            buddy::FrameTable, buddy::FrameList;
        "an owner of pages, which it lends by address only" => YES YES: buddy::PageBlock<'static>;

        // --- uslab
        "numbers, names and settings" => YES YES: uslab::process::OwnThread, Census, Violation, CorruptionKind, Corruption<'static>, AllocError,
            CacheError, Busy, OrderRule, GeometryError, Geometry, huge::HugeInfo, CacheInfo, DrainInfo, info::Row, SlabInfo,
            info::ParseError, KmallocKind, Limit, size::LargeInfo, HeapUsage, Magazines, options::Dump, options::DumpSignal, SizeClass,
            StartError, Info, CacheView, SlabView, SlabList, ObjectPlace, prometheus::Exposition<'static>,
            prometheus::Heaps<fn()>, pressure::Psi, pressure::MemoryGroup, ReaperBuilder,
            info::Statistics<'static>, ReaperInfo, ReaperThread, SlabDebug, DebugRules, Harden, debug::flags::BadDebugRules,
            debug::stacks::CallStack, debug::stacks::Function<'static>, debug::watch::Part, debug::watch::Damage, debug::tracks::Track,
            debug::report::ObjectReport<'static>, debug::traces::Trace, debug::traces::Traces, uslab::cache::Validation,
            uslab::report::leaks::Holder, uslab::report::leaks::Holders, uslab::cache::AccountInfo;
        "the data of a heap profile" => YES YES: profile::Profile, profile::Sample, profile::Amount, profile::Total, profile::NotStarted;
        "its handler and hooks are `Send + Sync`" => YES YES: Config, KmemCacheBuilder;
        "shared between threads by design" => YES YES: Subsystem, KmemCache, Kmalloc, Malloc, Mempool, Uslab, Reaper,
            Registration, uslab::cache::Account, sync::Parker;
        "a place in a queue, behind its lock" => YES YES: uslab::cache::Acquiring<'static>;
        "addresses that are never dereferenced" => YES YES: Live, uslab::cache::Runs<'static>;
        "owned bytes; how many are initialised is noted in a cell" => YES NO: Block<'static>;
        "one owner's magazine" => YES NO: Prefilled<'static>, PrefilledObjects<'static, u8>;
        "objects are built where `T: Send`, and are reached through boxes only" => YES YES: ObjectCache<Cell<u8>>,
            PinnedCache<Cell<u8>>, TypeStableCache<Cell<u8>>, StaticCache<Cell<u8>>;
        "a function each" => YES YES: ObjectCacheBuilder<u8, fn() -> u8>;
        "one that may refuse" => YES YES: ObjectCacheBuilder<u8, uslab::typed::Fallible<fn() -> Result<u8, u8>, u8>>;
        "a constructor that cannot be sent" => NO NO: ObjectCacheBuilder<u8, Rc<u8>>;
        "as `Box`" => YES YES: CacheBox<'static, u8>, OwnedBox<u8>, StableBox<'static, u8>;
        "as `Box`" => YES NO: CacheBox<'static, Cell<u8>>, OwnedBox<Cell<u8>>, StableBox<'static, Cell<u8>>;
        "as `Box`" => NO NO: CacheBox<'static, Rc<u8>>, OwnedBox<Rc<u8>>, StableBox<'static, Rc<u8>>;
        "as `Vec`" => YES YES: Hive<u8>, objects::Refused<u8>;
        "as `Vec`" => YES NO: Hive<Cell<u8>>, objects::Refused<Cell<u8>>;
        "as `Vec`" => NO NO: Hive<Rc<u8>>, objects::Refused<Rc<u8>>;
        "reaches nothing without its hive" => YES YES: objects::Key<Rc<u8>>;

        // --- uslab::handle
        "numbers" => YES YES: Handle, HandleError, Generations, WrapPolicy, IdConflict;
        "objects are built where `T: Send + Sync`" => YES YES: HandleCache<u8>, Held<'static, u8>;
        "as `Vec`" => YES YES: HandleTable<u8>, SlotMap<u8>, PackedArray<u8>, StableIds<u8>;
        "as `Vec`" => YES NO: HandleTable<Cell<u8>>, SlotMap<Cell<u8>>, PackedArray<Cell<u8>>, StableIds<Cell<u8>>;
        "as `Vec`" => NO NO: HandleTable<Rc<u8>>, SlotMap<Rc<u8>>, PackedArray<Rc<u8>>, StableIds<Rc<u8>>;

        // --- uslab::pool: used by one thread at a time
        "numbers, names and settings" => YES YES: SizeClasses, Waste, PoolError, pool::Refused, BadFree, Overrun, Side, Leak,
            Routes, Initialise, index_pool::State, SlotLayout, Usage, NoBounds, SimpleBounds, BadMarker, Marker,
            best_fit::Fit, best_fit::Order, tlsf::classes::Classes, tlsf::classes::Class, linear::Head, words::Event;
        "positions in memory that it owns" => YES YES: tlsf::Blocks<u8>, best_fit::Blocks<u8>, linear::Chain<u8>;
        "memory of one owner" => YES NO: Borrowed<'static>, HeapArea, FreeList, PoolOnStack, MarkedPool<Stack>,
            IndexPool<Stack>, GuardedPool<Stack>, ChunkedPool, ReservedPool, ClassPools, FixedSizeHeap<Stack, NoBounds>,
            MemoryArena<PoolOnStack, NoBounds>, Hybrid, Local<PoolOnStack>, Arena<Stack>, StackAlloc<Stack>, Tlsf<Stack>, BestFit<Stack>,
            SafePool<PoolOnStack>, LivePool<Cell<u8>, Stack>, Pool<Cell<u32>, 8>;
        "it holds values" => NO NO: LivePool<Rc<u8>, Stack>, Pool<Rc<u8>, 8>;
        "memory that is never written through a shared reference" => YES YES: StackArea<8>, MappedArea;
        "frees to a pool of one thread" => NO NO: PoolGuard<'static, IndexPool<Stack>>, PoolBox<'static, u32>,
            HybridBox<'static, u8>, Scope<'static, Stack>;
        "reads a pool's free slots" => NO NO: free_list::Chain<'static>;
    };
    assert!(failures.is_empty(), "{failures:#?}");
}

/// The table must list every public type that is declared in the sources of the three crates.
#[test]
fn auto_trait_table_lists_every_public_type() {
    let table: Vec<&str> =
        include_str!("auto_traits.rs").split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut folders: Vec<std::path::PathBuf> = ["magazine", "buddy", "slab", "slab/pool", "slab/handle"]
        .map(|krate| format!("../{krate}/src").into())
        .into();
    let (mut missing_types, mut types) = (vec![], 0);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            // These are modules of checks, and modules that exist only under a checker.
            let checks =
                ["models", "properties", "schedules", "world", "tests", "shadow", "check", "story", "grace"];
            if checks.contains(&&*name) || name.ends_with("_tests") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.split("\nmod tests {").next().unwrap().lines().map(str::trim_start);
            for line in lines.filter(|line| !line.contains("RankedGuard<G>")) {
                let strip_kind = |kind| line.strip_prefix("pub ").and_then(|line| line.strip_prefix(kind));
                let Some(name_and_rest) = ["struct ", "enum ", "union "].into_iter().find_map(strip_kind)
                else {
                    continue;
                };
                let name = name_and_rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                types += 1;
                if !table.contains(&name) {
                    missing_types.push(format!("{name}, {}", path.display()));
                }
            }
        }
    }
    assert!(types > 100 && missing_types.is_empty(), "{types} types; missing: {missing_types:#?}");
}
