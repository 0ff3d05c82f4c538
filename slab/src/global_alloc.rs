//! The process-wide malloc: [`Uslab`] as `#[global_allocator]`, and what `libuslab.so` stands on.
//!
//! ```text
//! alloc ── started? ── Malloc of a subsystem of its own
//!             └ no: whoever is first starts it; what is allocated meanwhile, by it or beside it: bootstrap memory
//! free ─── in the subsystem's pages? ── Malloc
//!             └ no: huge memory, or bootstrap memory, which stays
//! ```
//!
//! # Rules
//!
//! * Nothing here panics, and nothing that lies under an allocation calls the global heap: it would come back here. (A start
//!   does, and is told by its own state.)
//! * No thread-local has a destructor, so an allocation is legal in the last destructor of a thread; none needs `main`.
//! * The subsystem is this allocator's own. Object caches that the program makes are in another one, which allocates here.
//! * A fork finds every lock held (`pthread_atfork`). The handlers are registered at the start, which is before almost all
//!   others: so theirs run before ours take the locks, and after ours have let them go.

use crate::bootstrap;
use crate::error::{AllocError, CacheError};
use crate::fork::Held;
use crate::kmem_cache::{KmemCache, KmemCacheBuilder};
use crate::malloc::Malloc;
use crate::options::{Dump, Options};
use crate::published::Published;
use crate::subsystem::{Config, Core, Info, StartError};
use crate::{Census, SlabInfo, Violation};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use nix::libc;
use std::io::Write;
use std::os::fd::FromRawFd;
use uslab_buddy::Gfp;
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicU32, Fixed, Kept};

/// The process-wide malloc.
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
/// It starts at its first call, with the default [`Config`] and what `USLAB_OPTIONS` says in the environment
/// (`stats=1,check=1,huge_pages=never,limit=1g`: the table of caches at the end of the process, a look at each free, advice on
/// huge pages, a limit; [`options`](crate::options) has all).
#[derive(Clone, Copy, Debug, Default)]
pub struct Uslab;

/// What was started.
#[derive(Debug)]
struct Process {
    malloc: Malloc,
    dump: Option<Dump>,
}

static PROCESS: Published<Process> = Published::new();

/// Bytes of free memory that stay with the process, for want of a thread that would give them back later. A burst of so
/// much costs no system call the next time; beyond, a block of 4 MiB costs four, and its pages' first touch.
const KEPT: usize = 64 << 20;

/// Who starts it: 0 for nobody yet, else a process. In the child of a process that was being started it is nobody's.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// It cannot be started: bootstrap memory is all there is.
const NEVER: u32 = u32::MAX;

impl Process {
    fn core(&'static self) -> &'static Core {
        self.malloc.core()
    }
}

/// The malloc; `None` while it is being started, by this thread or by another one.
#[inline(always)]
fn process() -> Option<&'static Process> {
    match PROCESS.get() {
        Some(process) => Some(process),
        None => start(),
    }
}

#[cold]
#[inline(never)]
fn start() -> Option<&'static Process> {
    let own = std::process::id();
    // Relaxed: only says who; what is started is published by itself.
    let who = STARTING.load(Relaxed);
    if who == own || who == NEVER || STARTING.compare_exchange(who, own, Relaxed, Relaxed).is_err() {
        return PROCESS.get();
    }
    let options = Options::of_environment();
    let mut config = Config::default();
    config.pages.huge_pages = options.huge_pages;
    config.pages.keep_free = Some(KEPT);
    config.check_frees = options.check.unwrap_or(config.check_frees);
    if let Some(limit) = options.limit {
        config.pages = config.pages.limit(limit);
    }
    let Ok(core) = Core::largest(config, Malloc::on) else {
        STARTING.store(NEVER, Relaxed);
        return None;
    };
    // SAFETY: the handlers are functions of this program that never go.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    if options.stats {
        // Programs close their standard error when they end, before this runs (GNU's `close_stdout`); so it has its own.
        // SAFETY: no memory is touched; the handler is as above.
        unsafe {
            STATS.set(libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 0).max(0).cast_unsigned());
            libc::atexit(print_stats);
        }
    }
    Some(PROCESS.publish(Box::new(Process { malloc: core, dump: options.dump() })))
}

/// The locks that the forking thread holds.
static FORKING: Kept<Held<'static>> = Kept::new();

extern "C" fn before_fork() {
    if let Some(process) = PROCESS.get() {
        let held = process.core().hold();
        // SAFETY: all locks are held.
        unsafe { FORKING.put(held) };
    }
}
extern "C" fn in_parent() {
    // SAFETY: `before_fork` took all locks on this thread.
    drop(unsafe { FORKING.take() });
}
extern "C" fn in_child() {
    // SAFETY: as above; the thread is its copy.
    if let Some(held) = unsafe { FORKING.take() } {
        held.in_child();
    }
}

/// Where the table of caches is printed to: a copy of standard error, or 0.
static STATS: Fixed = Fixed::new(0);

extern "C" fn print_stats() {
    let to = STATS.get().cast_signed();
    if to == 0 {
        return;
    }
    if let Some(table) = Uslab.slabinfo() {
        // SAFETY: duplicated at the start for this, and used once.
        let mut to = unsafe { std::fs::File::from_raw_fd(to) };
        // There is nobody to tell that it is closed.
        let _ = to.write_all(table.to_string().as_bytes());
    }
}

/// What is in no page of the subsystem: huge, from the start, or not ours.
#[cold]
unsafe fn free_other(process: Option<&Process>, memory: NonNull<u8>) {
    if bootstrap::size_of_piece(memory).is_none()
        && let Some(process) = process
    {
        // SAFETY: passed on.
        unsafe { process.malloc.free(memory) };
    }
}

impl Uslab {
    /// Memory for `layout`, at least one byte of it; its bytes unspecified, or zero with [`Gfp::ZERO`].
    ///
    /// # Errors
    /// As [`Malloc::alloc`].
    #[inline(always)]
    pub fn allocate(&self, layout: Layout, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        match process() {
            Some(process) => process.malloc.alloc(layout, gfp),
            None => bootstrap::alloc(layout).ok_or(AllocError::Refused { bytes: layout.size() }),
        }
    }

    /// Takes memory back whose layout nobody knows.
    ///
    /// # Safety
    /// `memory` came from this allocator, and nobody uses it any more.
    #[inline(always)]
    pub unsafe fn free(&self, memory: NonNull<u8>) {
        let process = PROCESS.get();
        match process {
            // SAFETY: passed on.
            Some(process) if process.malloc.holds(memory) => unsafe { process.malloc.free(memory) },
            // SAFETY: passed on.
            _ => unsafe { free_other(process, memory) },
        }
    }

    /// As [`Malloc::realloc`].
    ///
    /// # Errors
    /// As [`Malloc::realloc`].
    ///
    /// # Safety
    /// As [`free`](Self::free), after a success.
    pub unsafe fn reallocate(&self, memory: NonNull<u8>, size: usize) -> Result<NonNull<u8>, AllocError> {
        let layout =
            |size| Layout::from_size_align(size, crate::malloc::MAX_ALIGN).map_err(|_| AllocError::TooLarge);
        match bootstrap::size_of_piece(memory) {
            // SAFETY: so large is the piece.
            Some(old) => unsafe { self.leave(memory, old, layout(size)?) },
            None => match PROCESS.get() {
                // SAFETY: passed on.
                Some(process) => unsafe { process.malloc.realloc(memory, size) },
                None => Err(AllocError::TooLarge),
            },
        }
    }

    /// Copies `old` bytes of bootstrap memory, which stays, to memory for `new`.
    ///
    /// # Safety
    /// `memory` has so many bytes.
    #[cold]
    unsafe fn leave(&self, memory: NonNull<u8>, old: usize, new: Layout) -> Result<NonNull<u8>, AllocError> {
        let moved = self.allocate(new, Gfp::KERNEL)?;
        // SAFETY: both are so large, and apart.
        unsafe { moved.copy_from_nonoverlapping(memory, old.min(new.size())) };
        Ok(moved)
    }

    /// Bytes that may be used at `memory`, at least what was asked for; 0 for what is not ours.
    ///
    /// # Safety
    /// `memory` came from this allocator and is not freed meanwhile.
    pub unsafe fn usable_size(&self, memory: NonNull<u8>) -> usize {
        match PROCESS.get() {
            // SAFETY: passed on.
            Some(process) if process.malloc.holds(memory) => unsafe { process.malloc.usable_size(memory) },
            process => bootstrap::size_of_piece(memory)
                // SAFETY: passed on.
                .or_else(|| process.map(|process| unsafe { process.malloc.usable_size(memory) }))
                .unwrap_or(0),
        }
    }

    /// An object cache in its subsystem, on the same pages: one table shows all, and a fork holds its locks, too.
    ///
    /// # Errors
    /// As [`KmemCacheBuilder::build_in`]; [`CacheError::TypeStable`] for what cannot be here, and [`CacheError::Start`] where
    /// there is no malloc.
    pub fn build(&self, builder: KmemCacheBuilder) -> Result<KmemCache, CacheError> {
        if builder.is_type_stable() {
            return Err(CacheError::TypeStable);
        }
        let process = process().ok_or(CacheError::Start(StartError::Starting))?;
        builder.build_on(process.malloc.core())
    }

    /// The dump that `USLAB_OPTIONS` asks for. Starts the allocator if nobody has.
    pub fn dump(&self) -> Option<Dump> {
        process()?.dump
    }
    /// The numbers of its caches and pages; `None` before it has started. Allocates.
    pub fn info(&self) -> Option<Info> {
        PROCESS.get().map(|process| process.core().info())
    }
    /// Its `/proc/slabinfo`; `None` before it has started. Allocates.
    pub fn slabinfo(&self) -> Option<SlabInfo> {
        PROCESS.get().map(|process| process.core().slabinfo())
    }
    /// As [`Subsystem::check`](crate::Subsystem::check); `None` before it has started. Allocates a little itself: only while
    /// no other thread runs.
    pub fn check(&self) -> Option<Result<Census, Violation>> {
        PROCESS.get().map(|process| process.core().check())
    }
    /// Gives all that is not in use back to the system, what CPUs keep included. Returns the bytes of pages given back.
    pub fn release(&self) -> usize {
        PROCESS.get().map_or(0, |process| {
            let core = process.core();
            core.shrink();
            core.ground.pages.release()
        })
    }
    /// Ends an interval of all magazines, and gives what is empty back to the system. For a timer of some 10 seconds.
    pub fn reap(&self) {
        if let Some(process) = PROCESS.get() {
            process.core().reap();
            process.core().discard_empty();
            process.core().ground.pages.trim();
        }
    }
}

// SAFETY: memory is of the layout asked for and its owner's alone until it is freed; nothing unwinds.
unsafe impl GlobalAlloc for Uslab {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout, Gfp::KERNEL).map_or(null_mut(), NonNull::as_ptr)
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate(layout, Gfp::ZERO).map_or(null_mut(), NonNull::as_ptr)
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: an allocation is not null.
        let memory = unsafe { NonNull::new_unchecked(memory) };
        let process = PROCESS.get();
        match process {
            // SAFETY: passed on.
            Some(process) if process.malloc.holds(memory) => unsafe {
                process.malloc.free_sized(memory, layout);
            },
            // SAFETY: passed on.
            _ => unsafe { free_other(process, memory) },
        }
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: an allocation is not null.
        let memory = unsafe { NonNull::new_unchecked(memory) };
        let moved = match PROCESS.get() {
            Some(process) if process.malloc.holds(memory) || bootstrap::size_of_piece(memory).is_none() =>
            // SAFETY: passed on.
            unsafe { process.malloc.realloc_sized(memory, layout, size, Gfp::KERNEL) },
            _ => match Layout::from_size_align(size, layout.align()) {
                // SAFETY: so large is the piece.
                Ok(new) => unsafe { self.leave(memory, layout.size(), new) },
                Err(_) => Err(AllocError::TooLarge),
            },
        };
        moved.map_or(null_mut(), NonNull::as_ptr)
    }
}
