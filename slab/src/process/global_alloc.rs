//! The process-wide malloc: [`Uslab`] as `#[global_allocator]`, and the base of `libuslab.so`.
//!
//! ```text
//! alloc ── started? ── Malloc of a separate subsystem
//!             └ no: the first thread starts it; until then it and all other threads get bootstrap memory
//! free ─── in the subsystem's pages? ── Malloc
//!             └ no: huge memory, or bootstrap memory, which is never reused
//! ```
//!
//! # Rules
//!
//! * The code of this allocator never panics. An allocation never calls the global heap, because that call would
//!   recurse. Only the allocator's start calls the global heap, and it detects the resulting recursive calls.
//! * No thread-local has a destructor, so a thread may allocate even in its last destructor. The allocator works before `main`.
//! * The subsystem is used by this allocator only. Object caches of the program belong to another subsystem, which
//!   allocates from this allocator.
//! * The forking thread holds every lock across a fork (`at_fork`).

#[cfg(unix)]
mod at_fork;

use crate::cache::config::Config;
use crate::cache::core::Core;
use crate::cache::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::debug::corruption::{self, Corruption, CorruptionKind};
use crate::debug::flags::DebugRules;
use crate::error::StartError;
use crate::error::{AllocError, CacheError};
use crate::process::bootstrap;
use crate::process::options::{Dump, Options};
use crate::profile::{NotStarted, Profile};
use crate::published::Published;
use crate::reclaim::reaper::Reap;
use crate::reclaim::reaper::ReaperInfo;
use crate::report::census::{Census, Violation};
use crate::report::info::{HeapUsage, Info, SlabInfo};
use crate::report::leaks::Holders;
use crate::size::large::ZERO_SIZE;
use crate::size::malloc::{FastPaths, Malloc, StaticPaths};
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;
use uslab_buddy::{Gfp, PAGE_SIZE};
use uslab_magazine::Mechanism;
use uslab_magazine::sync::Ordering::{AcqRel, Relaxed};
use uslab_magazine::sync::{AtomicU32, AtomicU64, Fixed, Kept, thread_local};
use uslab_magazine::tracepoints::OperationKind;

/// The process-wide malloc.
///
/// `Uslab` does not implement `GlobalAlloc` on systems whose `std` allocates its locks on the heap, such as macOS.
///
/// ```
/// use uslab::Uslab;
///
/// #[global_allocator]
/// static ALLOCATOR: Uslab = Uslab;
///
/// let text = String::from("in a slab");
/// // SAFETY: allocated by this allocator, and not freed yet.
/// assert!(unsafe { Uslab.usable_size(std::ptr::NonNull::from(text.as_bytes()).cast()) } >= text.len());
/// assert!(Uslab.info().is_some_and(|info| info.caches.iter().any(|cache| cache.used > 0)));
/// ```
///
/// The first call starts the allocator with the default [`Config`] and the options in the environment variable
/// `USLAB_OPTIONS`. For example, `stats=1,check=1,huge_pages=never,limit=1g` prints the table of caches at exit, checks
/// each free, advises against huge pages, and sets a limit; see [`options`](crate::options).
///
/// A free returns memory to the system if the kept free memory exceeds a configured surplus.
/// [`reap_every`](Self::reap_every) or `USLAB_OPTIONS=reap=500` starts a reaper thread. The reaper thread returns
/// further memory that was unused for an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uslab;

/// State of the allocator once it has started.
#[derive(Debug)]
struct Process {
    malloc: &'static Malloc,
    dump: Option<Dump>,
    record: Option<(&'static [u8], usize)>,
    /// True if the table of caches is printed at the end of the process.
    stats: bool,
    leaks: bool,
    profile: Option<usize>,
    /// True if `USLAB_OPTIONS` sets the reaping interval. In this case, the program cannot change the interval.
    reap_is_set: bool,
    guard_is_set: bool,
    guard_slots: u32,
    /// The malloc's own inlined paths, which exist if the static paths are closed and restartable sequences are
    /// available.
    fast_paths: Option<&'static FastPaths>,
    /// Total number of pages freed when memory was last released.
    released: AtomicU64,
}

static PROCESS_ALLOCATOR: Published<Process> = Published::new();
/// Static paths to the process's malloc, which find it without a pointer.
static STATIC_FAST_PATHS: StaticPaths = StaticPaths::new();

/// Maximum bytes of free pages that the process keeps (see
/// [`PageConfig::keep_free`](uslab_buddy::PageConfig::keep_free)). In a control group with a limit, the process keeps
/// at most an eighth of the limit.
pub const KEEP_FREE: usize = 64 << 20;

/// Pid of the process that started or is starting the allocator; 0 before the first start. A child that was forked
/// during a start starts the allocator anew.
static STARTING_PID: AtomicU32 = AtomicU32::new(0);
/// Value of `STARTING_PID` if the allocator cannot start, so that only bootstrap memory is available.
const CANNOT_START: u32 = u32::MAX;

/// Milliseconds between two reaping intervals that the program requested; 0 if unset.
static REQUESTED_REAP_MS: Fixed = Fixed::new(0);
/// Mean number of allocations per guard sample if hardening adds guard pages. At this rate, sampling costs some 20 ns
/// per allocation.
const HARDENED_GUARD_PERIOD: u32 = 1000;
/// Mean number of allocations per guard sample that the program requested; [`UNSET_GUARD_PERIOD`] if unset.
static REQUESTED_GUARD_PERIOD: Fixed = Fixed::new(UNSET_GUARD_PERIOD);
const UNSET_GUARD_PERIOD: u32 = u32::MAX;
fn requested_guard_period() -> Option<u32> {
    Some(REQUESTED_GUARD_PERIOD.get()).filter(|period| *period != UNSET_GUARD_PERIOD)
}

impl Process {
    fn core(&'static self) -> &'static Core {
        self.malloc.core()
    }
    /// Applies the program's reaping interval, unless the environment sets one.
    fn apply_requested_reaping(&self) {
        if let period @ 1.. = REQUESTED_REAP_MS.get()
            && !self.reap_is_set
        {
            self.malloc.core().background.reap_every(Duration::from_millis(period.into()));
        }
    }
    /// Applies the program's sampling interval, unless the environment sets one.
    fn apply_requested_guard(&self) {
        let guard = &self.malloc.core().guard;
        if let Some(period) = requested_guard_period()
            && !self.guard_is_set
        {
            guard.set(period, self.guard_slots);
        }
    }
}

/// Returns the started allocator, or `None` while any thread is starting it.
#[inline(always)]
fn process() -> Option<&'static Process> {
    match PROCESS_ALLOCATOR.get() {
        Some(process) => Some(process),
        None => start(),
    }
}

thread_local! {
    /// True while this thread is inside the allocator's start. The flag saves system calls, because a start allocates
    /// some hundred times, and each test of the pid would be a system call.
    static STARTING_THREAD: Cell<bool> = const { Cell::new(false) };
}

#[cold]
#[inline(never)]
fn start() -> Option<&'static Process> {
    // Relaxed: the pid publishes no other data; `PROCESS_ALLOCATOR` publishes the allocator.
    let starter = STARTING_PID.load(Relaxed);
    if starter == CANNOT_START || STARTING_THREAD.get() {
        return PROCESS_ALLOCATOR.get();
    }
    let pid = std::process::id();
    if starter == pid || STARTING_PID.compare_exchange(starter, pid, Relaxed, Relaxed).is_err() {
        return PROCESS_ALLOCATOR.get();
    }
    STARTING_THREAD.set(true);
    let process = start_on_this_thread();
    STARTING_THREAD.set(false);
    process
}

/// Returns the configuration that the environment requests, with guard sampling of one in `guard` allocations.
fn requested_config(options: &Options, guard: Option<u32>) -> Config {
    let mut config = Config::with_max_kept_bytes(KEEP_FREE);
    config.pages.huge_pages = options.huge_pages;
    config.huge_cache = options.huge_cache.unwrap_or(config.huge_cache);
    config.harden = options.harden;
    config.guard_every = guard.or_else(requested_guard_period).unwrap_or(0);
    config.guard_slots = options.guard_slots.unwrap_or(config.guard_slots);
    config.check_frees = options.check.unwrap_or(config.check_frees) || config.harden.is_on();
    // The leak report needs the call stacks of allocations.
    let slab_debug = options.slab_debug.or(options.leaks.then_some("FU"));
    config.slab_debug = slab_debug.and_then(DebugRules::of_static).unwrap_or_default();
    config.reap_every = options.reap.filter(|interval| !interval.is_zero());
    if let Some(limit) = options.limit {
        // Each zone has addresses for the whole limit, up to 4 TiB.
        let zones = config.pages.nodes.len();
        let share = (limit / PAGE_SIZE).min(1 << 30).div_ceil(zones) as u32;
        config.pages.nodes.iter_mut().flatten().for_each(|(_, pages)| *pages = share.max(*pages));
        config.pages = config.pages.limit(limit);
    }
    config
}

/// Starts the allocator. The function is not inlined, to keep its frame of several pages off the stacks of threads that
/// arrive during a start.
#[inline(never)]
fn start_on_this_thread() -> Option<&'static Process> {
    let options = Options::from_environment();
    // With hardening, some objects get separate pages.
    let guard = options.guard.or(options.harden.guard_pages.then_some(HARDENED_GUARD_PERIOD));
    let config = requested_config(&options, guard);
    let guard_slots = config.guard_slots;
    let mut place = Box::<Malloc>::new_uninit();
    if let Err(error) = Core::start_retrying_fewer_pages(config, |core| Malloc::init(&mut place, core)) {
        crate::process::options::print_message(format_args!(
            "uslab: cannot start the allocator, freed memory is not reused: {error}"
        ));
        STARTING_PID.store(CANNOT_START, Relaxed);
        return None;
    }
    // SAFETY: `init` initialised the malloc.
    let malloc: &'static Malloc = Box::leak(unsafe { place.assume_init() });
    #[cfg(unix)]
    at_fork::register();
    if options.stats || options.leaks {
        // Some programs close their standard error before this exit handler runs (GNU's `close_stdout`). The handler
        // therefore keeps a copy of the descriptor.
        if let Ok(stderr) = duplicate_stderr() {
            // SAFETY: only the starting thread runs this code, and the handler is a function of this
            // program.
            unsafe {
                let file_identity = file_identity(&stderr);
                STATS_FILE.put((stderr, file_identity));
                #[cfg(any(unix, windows))]
                libc::atexit(at_exit);
            }
        }
    }
    let record = options.record();
    let mut process = Box::new(Process {
        released: AtomicU64::new(0),
        malloc,
        dump: options.dump(),
        record,
        stats: options.stats,
        leaks: options.leaks,
        profile: options.profile,
        reap_is_set: options.reap.is_some(),
        guard_is_set: guard.is_some(),
        guard_slots,
        fast_paths: None,
    });
    // If each call must be recorded, no call may use an inlined path.
    if process.malloc.core().cpus.mechanism() == Mechanism::Rseq && record.is_none() {
        // SAFETY: only the starting thread runs this code, and only once. The code below publishes `process`,
        // and the process is never dropped.
        process.fast_paths = unsafe { (!malloc.open(&STATIC_FAST_PATHS)).then(|| malloc.fast()) };
    }
    let process = PROCESS_ALLOCATOR.publish(process);
    // AcqRel: pairs with the AcqRel in `Uslab::reap_every`. The second of the two operations sees the stores that
    // precede the first.
    STARTING_PID.fetch_add(0, AcqRel);
    process.apply_requested_reaping();
    process.apply_requested_guard();
    Some(process)
}

/// Destination of the table of caches at exit: a copy of standard error, with the identity of its file.
static STATS_FILE: Kept<(File, Option<[u64; 3]>)> = Kept::new();

/// Returns the identity of the file that a descriptor refers to. The identity shows if the program has closed the
/// descriptor and then opened another file under its number.
fn file_identity(_file: &File) -> Option<[u64; 3]> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        _file.metadata().ok().map(|metadata| [metadata.dev(), metadata.ino(), metadata.rdev()])
    }
    #[cfg(not(unix))]
    None
}

#[cfg(unix)]
fn duplicate_stderr() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}
#[cfg(windows)]
fn duplicate_stderr() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    Ok(io::stderr().as_handle().try_clone_to_owned()?.into())
}

#[cfg(not(any(unix, windows)))]
fn duplicate_stderr() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg_attr(not(any(unix, windows)), allow(dead_code, reason = "no end of the process"))]
extern "C" fn at_exit() {
    // SAFETY: the file was stored before this handler was registered, and the process ends once.
    let stderr = unsafe { STATS_FILE.take() };
    let (Some((stderr, old_identity)), Some(process)) = (stderr, PROCESS_ALLOCATOR.get()) else { return };
    // The descriptor's number may belong to another file by now, so the descriptor is not closed.
    let mut stderr = core::mem::ManuallyDrop::new(stderr);
    if file_identity(&stderr) != old_identity {
        return;
    }
    let mut text = String::new();
    if process.leaks {
        let holders = process.core().leaks();
        if holders.unreachable() > 0 {
            text = format!("uslab: leaks: {} unreachable objects\n", holders.unreachable());
            let leaked = holders.0.iter().filter(|holder| holder.unreachable > 0);
            leaked.for_each(|holder| text += &holder.to_string());
        }
    }
    if process.stats {
        text += &process.core().info().statistics().to_string();
    }
    // A write error at exit cannot be reported.
    let _ = stderr.write_all(text.as_bytes());
}

/// Frees memory outside the subsystem's pages: huge mappings, bootstrap memory, or foreign addresses.
#[cold]
unsafe fn free_other(process: Option<&Process>, memory: NonNull<u8>) {
    if bootstrap::bootstrap_allocation_size(memory).is_some() {
        return;
    }
    match process {
        // SAFETY: by the contract of `Uslab::free`, the caller may free the memory.
        Some(process) => unsafe { process.malloc.free(memory) },
        None if memory == ZERO_SIZE => {}
        None => report(CorruptionKind::Foreign, memory),
    }
}

/// Reports a corruption. Before the start, only bootstrap memory is known.
#[cold]
fn report(kind: CorruptionKind, memory: NonNull<u8>) {
    let address = memory.addr().get();
    corruption::abort(&Corruption { kind, address, cache: "malloc", owner: None, index: None, report: None });
}

impl Uslab {
    /// Allocates memory for `layout`. The memory is zeroed with [`Gfp::ZERO`], and unspecified otherwise. An empty
    /// layout also gets a valid address.
    ///
    /// # Errors
    /// Fails as [`Malloc::alloc`] does.
    #[inline(always)]
    pub fn allocate(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        match process() {
            Some(process) => process.malloc.alloc(layout, gfp),
            None => bootstrap::alloc(layout).ok_or(AllocError::Refused { bytes: layout.size() }),
        }
    }
}

/// Functions for the C libraries, which may change in any version.
#[doc(hidden)]
impl Uslab {
    /// The inlined part of [`allocate`](Self::allocate), for a power-of-two alignment. If the call returns `None`, it
    /// did nothing, and the caller must call [`allocate_after_miss`](Self::allocate_after_miss).
    #[inline(always)]
    pub fn allocate_fast(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        STATIC_FAST_PATHS.alloc(size, align)
    }
    /// The step after [`allocate_fast`](Self::allocate_fast), for callers where each instruction counts. If the call
    /// returns `None`, it did nothing.
    ///
    /// If the static paths are closed, the call tries the malloc's own inlined paths. While a profile observes only
    /// allocations, the call takes the complete slow path.
    #[inline(always)]
    pub fn allocate_after_fast_miss(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let process = PROCESS_ALLOCATOR.get()?;
        // SAFETY: a started malloc lives for ever.
        unsafe {
            let fast_block = process.fast_paths.and_then(|paths| paths.alloc(size, align));
            fast_block.or_else(|| process.malloc.fast().alloc_counted(size, align))
        }
    }
    /// Allocates without trying the inlined path. Returns null if memory is short.
    #[cold]
    #[inline(never)]
    pub fn allocate_after_miss(&self, layout: Layout, gfp: Gfp) -> *mut u8 {
        if let Some(memory) = self.allocate_after_fast_miss(layout.size(), layout.align()) {
            if gfp.contains(Gfp::ZERO) {
                // SAFETY: the memory was just allocated, with `layout.size()` bytes.
                unsafe { memory.write_bytes(0, layout.size()) };
            }
            return memory.as_ptr();
        }
        let process = process();
        // With the option `zero_size`, each empty layout gets a distinct address.
        let hides_zero_size = |process: &'static Process| process.core().harden.zero_size;
        let layout = if layout.size() > 0 || process.is_some_and(hides_zero_size) {
            layout
        } else {
            match Layout::from_size_align(1, layout.align()) {
                Ok(layout) => layout,
                Err(_) => return core::ptr::null_mut(),
            }
        };
        let memory = match process {
            Some(process) => process.malloc.alloc_any_layout(layout, gfp).ok(),
            None => bootstrap::alloc(layout),
        };
        memory.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
}

impl Uslab {
    /// Frees memory of an unknown layout.
    ///
    /// # Safety
    /// `memory` must come from this allocator, and must no longer be used.
    #[inline(always)]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        // SAFETY: by contract, the caller may free `memory`.
        if !unsafe { self.free_fast(memory.as_ptr()) } {
            // SAFETY: by contract, the caller may free `memory`.
            unsafe { self.free_slow(memory) };
        }
    }
}

/// Functions for the C libraries, which may change in any version.
#[doc(hidden)]
impl Uslab {
    /// The inlined part of [`free`](Self::free), which accepts null. If the call returns `false`, as for null, it did
    /// nothing, and the caller must call [`free_slow`](Self::free_slow).
    ///
    /// # Safety
    /// `memory` must be null, or the caller must fulfil the conditions of [`free`](Self::free).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free_fast(&self, memory: *mut u8) -> bool {
        // SAFETY: by contract, `memory` is null, or the caller may free it.
        unsafe { STATIC_FAST_PATHS.free(memory) }
    }
    /// The step after [`free_fast`](Self::free_fast), for callers where each instruction counts.
    ///
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free_fast`](Self::free_fast).
    #[inline(always)]
    #[must_use]
    pub unsafe fn free_after_fast_miss(&self, memory: *mut u8) -> bool {
        let paths = PROCESS_ALLOCATOR.get().and_then(|process| process.fast_paths);
        // SAFETY: by contract, `memory` is null, or the caller may free it. A started malloc lives for ever.
        paths.is_some_and(|paths| unsafe { paths.free(memory) })
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`free`](Self::free).
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow(&self, memory: NonNull<u8>) {
        let process = PROCESS_ALLOCATOR.get();
        // SAFETY: by contract, the caller may free `memory`.
        if unsafe { self.free_after_fast_miss(memory.as_ptr()) } {
            return;
        }
        match process {
            // SAFETY: by contract, the caller may free `memory`.
            Some(process) if process.malloc.holds(memory) => unsafe { process.malloc.free_slow(memory) },
            // SAFETY: by contract, the caller may free `memory`.
            _ => unsafe { free_other(process, memory) },
        }
    }

    /// Returns `true` if the memory was allocated with this size and alignment, as far as checked frees and samples can
    /// decide. If the size or alignment is wrong, reports [corruption].
    #[cold]
    pub fn has_size(&self, memory: NonNull<u8>, size: usize, align: usize) -> bool {
        let (process, layout) = (PROCESS_ALLOCATOR.get(), Layout::from_size_align(size, align));
        let owns = |process: &&'static Process| {
            process.core().check_frees || process.core().guard.pool_of(memory).is_some()
        };
        match (process.filter(owns), layout) {
            (Some(process), Ok(layout)) if bootstrap::bootstrap_allocation_size(memory).is_none() => {
                process.malloc.has_size(memory, layout)
            }
            _ => true,
        }
    }

    /// Returns the file and byte limit of the recording that `USLAB_OPTIONS` requests, or `None` before the allocator
    /// has started.
    #[inline]
    pub fn record(&self) -> Option<(&'static [u8], usize)> {
        PROCESS_ALLOCATOR.get()?.record
    }

    /// Returns `true` if the static paths are open, so that they serve allocations and frees.
    pub fn has_static_paths(&self) -> bool {
        STATIC_FAST_PATHS.are_static_paths_open()
    }

    /// Starts the allocator unless it has already started. Installs the fault handler if allocations are sampled.
    ///
    /// The library's constructor calls `start` early. A start reads files, which a sandbox may forbid later.
    pub fn start(&self) {
        if process().is_some_and(|process| process.core().guard.is_on()) {
            #[cfg(target_os = "linux")]
            crate::guard::faults::handler::install();
        }
    }
}

impl Uslab {
    /// Resizes memory as [`Malloc::realloc`] does.
    ///
    /// # Errors
    /// Fails as [`Malloc::realloc`] does.
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the caller must satisfy the conditions of
    /// [`free`](Self::free).
    pub unsafe fn reallocate(&self, memory: NonNull<u8>, size: usize) -> Result<NonNull<u8>, AllocError> {
        let layout = |size| {
            Layout::from_size_align(size, crate::size::malloc::MAX_ALIGN).map_err(|_| AllocError::TooLarge)
        };
        let process = PROCESS_ALLOCATOR.get();
        match process {
            // SAFETY: by contract, the caller may free `memory`.
            Some(process) if process.malloc.holds(memory) => unsafe { process.malloc.realloc(memory, size) },
            _ => match (bootstrap::bootstrap_allocation_size(memory), process) {
                // SAFETY: the bootstrap allocation has `old` bytes.
                (Some(old), _) => unsafe { self.move_bootstrap_block_to_heap(memory, old, layout(size)?) },
                // SAFETY: by contract, the caller may free `memory`.
                (None, Some(process)) => unsafe { process.malloc.realloc(memory, size) },
                (None, None) => {
                    report(CorruptionKind::Foreign, memory);
                    Err(AllocError::NotAnObject)
                }
            },
        }
    }

    /// Frees memory that was allocated for `layout`.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`free`](Self::free), and `layout` must be the layout of the
    /// allocation.
    #[inline(always)]
    pub(crate) unsafe fn free_sized(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: by contract, `memory` has this layout, and the caller may free it.
        if !unsafe { self.free_sized_fast(memory.as_ptr(), layout.size(), layout.align()) } {
            // SAFETY: by contract, `memory` has this layout, and the caller may free it.
            unsafe { self.free_sized_slow(memory, layout) };
        }
    }
    /// The inlined part of `free_sized`. If the call returns `false`, it did nothing. The call returns `false` for
    /// null, and for memory that is not an object in the pages.
    ///
    /// # Safety
    /// `memory` must be null, or must fulfil the conditions of [`free`](Self::free) and have been allocated with this
    /// size and alignment.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub unsafe fn free_sized_fast(&self, memory: *mut u8, size: usize, align: usize) -> bool {
        // SAFETY: by contract, `memory` is null, or has this layout and the caller may free it.
        unsafe { STATIC_FAST_PATHS.free_sized(memory, size, align) }
    }
    #[cold]
    #[inline(never)]
    unsafe fn free_sized_slow(&self, memory: NonNull<u8>, layout: Layout) {
        let process = PROCESS_ALLOCATOR.get();
        match process {
            // SAFETY: by contract, `memory` has this layout, and the caller may free it.
            Some(process) if process.malloc.holds(memory) => unsafe {
                if process.fast_paths.is_some() {
                    process.malloc.free_sized(memory, layout);
                } else {
                    process.malloc.free_sized_slow(memory, layout);
                }
            },
            // SAFETY: by contract, the caller may free `memory`.
            _ => unsafe { free_other(process, memory) },
        }
    }

    /// Resizes memory that was allocated for `layout`, as [`reallocate`](Self::reallocate) does, and keeps the
    /// alignment.
    ///
    /// # Safety
    /// If the call succeeds, `memory` counts as freed, so the caller must satisfy the conditions of
    /// [`free_sized`](Self::free_sized).
    #[inline]
    pub(crate) unsafe fn reallocate_sized(
        &self,
        memory: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Result<NonNull<u8>, AllocError> {
        match PROCESS_ALLOCATOR.get() {
            Some(process)
                if process.malloc.holds(memory) || bootstrap::bootstrap_allocation_size(memory).is_none() =>
            // SAFETY: by contract, `memory` has this layout, and the caller may free it.
            unsafe { process.malloc.realloc_sized(memory, layout, size, Gfp::KERNEL) },
            _ => match Layout::from_size_align(size, layout.align()) {
                // SAFETY: the memory was allocated for `layout`, so it has `layout.size()` bytes.
                Ok(new) => unsafe { self.move_bootstrap_block_to_heap(memory, layout.size(), new) },
                Err(_) => Err(AllocError::TooLarge),
            },
        }
    }

    /// Copies `old` bytes of bootstrap memory to newly allocated memory for `new`. Bootstrap memory is never freed.
    ///
    /// # Safety
    /// `memory` must point to `old` bytes of bootstrap memory.
    #[cold]
    unsafe fn move_bootstrap_block_to_heap(
        &self,
        memory: NonNull<u8>,
        old: usize,
        new: Layout,
    ) -> Result<NonNull<u8>, AllocError> {
        let new_memory = self.allocate(new, Gfp::KERNEL)?;
        // SAFETY: both blocks have at least this many bytes, and do not overlap.
        unsafe { new_memory.copy_from_nonoverlapping(memory, old.min(new.size())) };
        Ok(new_memory)
    }

    /// Number of usable bytes at `memory`, which is at least the requested size. If `memory` is not an object of this
    /// allocator, the call reports [corruption], which ends the process.
    ///
    /// # Safety
    /// `memory` must come from this allocator, and must not be freed during the call.
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        let process = PROCESS_ALLOCATOR.get();
        match process {
            // SAFETY: by contract, `memory` is not freed during the call.
            Some(process) if process.malloc.holds(memory) => unsafe { process.malloc.usable_size(memory) },
            _ => match (bootstrap::bootstrap_allocation_size(memory), process) {
                (Some(bytes), _) => bytes,
                // SAFETY: by contract, `memory` is not freed during the call.
                (None, Some(process)) => unsafe { process.malloc.usable_size(memory) },
                (None, None) => {
                    report(CorruptionKind::NotAnObject, memory);
                    0
                }
            },
        }
    }

    /// Builds an object cache in the allocator's subsystem, on the same pages. The cache appears in the allocator's
    /// table of caches, and forks hold its locks.
    ///
    /// # Errors
    /// Fails as [`KmemCacheBuilder::build_in`] does. Fails with [`CacheError::TypeStable`] for a type-stable cache,
    /// which this subsystem cannot have. Fails with [`CacheError::Start`] if the malloc cannot start.
    pub fn build(&self, builder: KmemCacheBuilder) -> Result<KmemCache, CacheError> {
        if builder.is_type_stable() {
            return Err(CacheError::TypeStable);
        }
        let process = process().ok_or(CacheError::Start(StartError::Starting))?;
        // The cache takes no guard samples, because destroying a cache must find each object.
        builder.unsampled().build_on(process.malloc.core())
    }

    /// Returns the statistics dump that `USLAB_OPTIONS` requests. Starts the allocator if the variable is set.
    ///
    /// A library's constructor calls this function. After the call, a fork holds the locks, regardless of fork handlers
    /// that are registered before the first allocation.
    pub fn dump(&self) -> Option<Dump> {
        #[cfg(unix)]
        at_fork::register();
        match PROCESS_ALLOCATOR.get() {
            None if !Options::are_options_given() => None,
            _ => process()?.dump,
        }
    }
    /// Sampling rate, in bytes, of the heap profile that `USLAB_OPTIONS` requests. A library's constructor calls this
    /// function and starts the profile.
    pub fn profile_wanted(&self) -> Option<usize> {
        PROCESS_ALLOCATOR.get()?.profile
    }
    /// Starts a [heap profile](crate::profile) of the program, as
    /// [`Subsystem::start_profile`](crate::Subsystem::start_profile) does.
    ///
    /// # Errors
    /// Fails as [`Subsystem::start_profile`](crate::Subsystem::start_profile) does. Fails with [`NotStarted::Memory`]
    /// if the allocator cannot start.
    pub fn start_profile(&self, rate: usize) -> Result<(), NotStarted> {
        process().ok_or(NotStarted::Memory)?.core().start_profile(rate, None)
    }
    /// Stops the heap profile; returns `false` if no profile is running.
    pub fn stop_profile(&self) -> bool {
        PROCESS_ALLOCATOR.get().is_some_and(|process| process.core().stop_profile())
    }
    /// Returns the call stacks that allocated memory since the profile began, and the memory that each stack still
    /// holds (see [`Subsystem::profile`](crate::Subsystem::profile)). The call allocates memory.
    pub fn profile(&self) -> Profile {
        PROCESS_ALLOCATOR.get().map_or_else(Profile::default, |process| process.core().profiler.profile())
    }
    /// Returns the counters of the allocator's caches and pages, or `None` before the allocator has started. The call
    /// allocates memory.
    pub fn info(&self) -> Option<Info> {
        PROCESS_ALLOCATOR.get().map(|process| process.core().info())
    }
    /// Returns the allocator's memory, and how much of it is in use. All numbers are zero before the allocator has
    /// started. The call does not allocate.
    pub fn usage(&self) -> HeapUsage {
        PROCESS_ALLOCATOR.get().map_or_else(HeapUsage::default, |process| process.core().usage())
    }
    /// Returns the allocator's table in the format of `/proc/slabinfo`, or `None` before the allocator has started. The
    /// call allocates memory.
    pub fn slabinfo(&self) -> Option<SlabInfo> {
        PROCESS_ALLOCATOR.get().map(|process| process.core().slabinfo())
    }
    /// Checks the allocator's subsystem, as [`Subsystem::check`](crate::Subsystem::check) does. Returns `None` before
    /// the allocator has started. The call allocates a little memory, and no other thread may run during the call.
    pub fn check(&self) -> Option<Result<Census, Violation>> {
        PROCESS_ALLOCATOR.get().map(|process| process.core().check())
    }
    /// Returns the leaked objects that [`Subsystem::leaks`](crate::Subsystem::leaks) finds, or `None` before the
    /// allocator has started.
    pub fn leaks(&self) -> Option<Holders> {
        PROCESS_ALLOCATOR.get().map(|process| process.core().leaks())
    }
    /// Unmaps reserved addresses if the process exceeds its limit on addresses (`RLIMIT_AS`), so that it can map
    /// memory.
    ///
    /// Call this function after setting the limit. Without a limit, the call does nothing. After the call, pages get
    /// addresses only when they are committed, and leave 32 MiB or an eighth of the limit to other mappings. The limit
    /// continues to bound the number of pages even if it is raised later.
    ///
    /// Cost: one system call, or up to thirteen system calls with a limit.
    pub fn fit_address_limit(&self) {
        // A child of `vfork` has its own limit, but shares the parent's memory.
        if let Some(process) = PROCESS_ALLOCATOR.get()
            && STARTING_PID.load(Relaxed) == std::process::id()
        {
            // SAFETY: this malloc is the only malloc of its subsystem, and has no paths other than `STATIC_FAST_PATHS`
            // and its own paths. Pages are looked up only for addresses that the malloc handed out.
            unsafe { process.malloc.fit_addresses(&STATIC_FAST_PATHS) };
        }
    }
    /// Returns all unused memory to the system, including the CPUs' magazines and the freed mappings. Returns the
    /// number of bytes that the call returned to the system.
    pub fn release(&self) -> usize {
        PROCESS_ALLOCATOR.get().map_or(0, |process| {
            let core = process.core();
            let (mapped, pages) = (core.unmap_kept_mappings(), &core.memory.pages);
            core.shrink(&core.operation(OperationKind::Reclaim));
            let released = pages.decommit();
            core.discard_tags();
            // The call returns whole blocks, but parts that were already decommitted do not count.
            let freed = pages.pages_freed();
            let released_bytes = freed.saturating_sub(process.released.swap(freed, Relaxed));
            mapped + released.min(released_bytes as usize * PAGE_SIZE)
        })
    }
    /// Ends a reaping interval now, as [`Subsystem::end_interval`](crate::Subsystem::end_interval) does. Returns the
    /// number of bytes that the call returned to the system.
    pub fn reap(&self) -> usize {
        PROCESS_ALLOCATOR.get().map_or(0, |process| {
            process.core().adapt_to_memory_limits();
            process.core().end_interval()
        })
    }
    /// Samples one in `allocations` allocations of up to a page from now on; 0 disables sampling.
    ///
    /// Each sampled allocation gets a separate page between inaccessible pages. An invalid access to a sample ends the
    /// process with a report, which has call stacks if the cargo feature `stacks` is on. The option `guard=N` of
    /// `USLAB_OPTIONS` takes precedence. The function may be called before the first allocation. Setting the sampling
    /// rate does not start the allocator.
    ///
    /// A handler of `SIGSEGV` reports the faulting accesses. The first sample installs this handler permanently. The
    /// handler forwards all other faults to the previous handler.
    ///
    /// A program that never misses the inlined paths is sampled at most once per interval of the reaper (see
    /// [`reap_every`](Self::reap_every)).
    ///
    /// Cost: nothing on the inlined paths; some 20 us per sample, mostly for two call stacks and four system calls.
    pub fn guard_every(&self, allocations: u32) {
        REQUESTED_GUARD_PERIOD.set(allocations.min(UNSET_GUARD_PERIOD - 1));
        // AcqRel: pairs with the AcqRel at the end of a start: the later operation sees the stores before the earlier
        // one.
        STARTING_PID.fetch_add(0, AcqRel);
        if let Some(process) = PROCESS_ALLOCATOR.get() {
            process.apply_requested_guard();
        }
    }
    /// Number of allocations sampled so far, and number of samples in use.
    pub fn samples(&self) -> (u64, usize) {
        PROCESS_ALLOCATOR.get().map_or((0, 0), |process| {
            let guard = &process.core().guard;
            (guard.samples(), guard.pool().map_or(0, |pool| pool.used()))
        })
    }
    /// State of the reaper thread of [`reap_every`](Self::reap_every), or `None` before the allocator has started. The
    /// call does not allocate.
    pub fn reaper(&self) -> Option<ReaperInfo> {
        PROCESS_ALLOCATOR.get().map(|process| process.core().background.info())
    }
    /// Sets the interval of the allocator's reaper thread (see [`reaper`](crate::reaper)).
    ///
    /// The thread starts as soon as there may be memory to reap. The interval can be changed later. The option
    /// `reap=MS` of `USLAB_OPTIONS` takes precedence; `reap=0` requests no thread. The function may be called before
    /// the first allocation. Setting the interval does not start the allocator.
    pub fn reap_every(&self, interval: Duration) {
        REQUESTED_REAP_MS.set(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1));
        // AcqRel: pairs with the AcqRel at the end of a start: the later operation sees the stores before the earlier
        // one.
        STARTING_PID.fetch_add(0, AcqRel);
        if let Some(process) = PROCESS_ALLOCATOR.get() {
            process.apply_requested_reaping();
        }
    }
}

// The implementation exists only on systems where the locks of `std` are futexes. On other systems, locks are allocated
// on the heap at their first use, so an allocation would recurse.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
// SAFETY: an allocation has the requested layout, only its owner has it until it is freed, and nothing
// unwinds.
unsafe impl core::alloc::GlobalAlloc for Uslab {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.allocate_fast(layout.size(), layout.align()) {
            Some(memory) => memory.as_ptr(),
            None => self.allocate_after_miss(layout, Gfp::KERNEL),
        }
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.allocate_fast(layout.size(), layout.align()) {
            Some(memory) => {
                // SAFETY: the memory was just allocated, with `layout.size()` bytes.
                unsafe { memory.write_bytes(0, layout.size()) };
                memory.as_ptr()
            }
            None => self.allocate_after_miss(layout, Gfp::ZERO),
        }
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: an allocation is not null; by contract of `GlobalAlloc::dealloc`, the caller may free it.
        unsafe { self.free_sized(NonNull::new_unchecked(memory), layout) };
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: an allocation is not null; by contract of `GlobalAlloc::realloc`, the caller may free it.
        let new_memory = unsafe { self.reallocate_sized(NonNull::new_unchecked(memory), layout, size) };
        new_memory.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
}
