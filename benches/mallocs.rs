//! General-purpose allocators, which serve requests of any size.
//!
//! Every allocator is given the size at allocation and at free, as Rust programs do. An allocator can use the given
//! size if the size makes its frees faster. An allocator without a Rust crate, or a second version of one, is loaded as
//! a shared library and called through function pointers, so that its symbols stay local.

use crate::ours::{GlobalSubject, Kmalloc};
use crate::preload;
use crate::rounds::Contender;
use crate::subject::{Kind, RawObject, Subject, ThreadAccess};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CStr, CString, c_void};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;
use std::ptr::NonNull;

/// An allocator of memory blocks of any size, aligned to 8 bytes, for any thread.
pub trait Malloc: Sync + Sized + Debug + 'static {
    /// Name of the allocator in tables.
    const NAME: &'static str;
    /// Kind of the allocator; determines the subjects with which it is compared.
    const KIND: Kind;

    /// Returns `true` if this machine has the allocator.
    fn available() -> bool {
        true
    }
    /// Prepares the allocator for use.
    ///
    /// # Panics
    /// Panics if this machine does not have the allocator.
    fn new() -> Self;
    /// Allocates `size` bytes, which must be at least 8.
    fn alloc(&self, size: usize) -> NonNull<u8>;
    /// Frees memory.
    ///
    /// # Safety
    /// `memory` was returned by `alloc` for this size, and the caller no longer uses it.
    unsafe fn free(&self, memory: NonNull<u8>, size: usize);
    /// Returns as much memory to the system as the allocator's interface allows.
    fn give_back(&self) {}
    /// Ends a reaping interval of the allocator; does nothing if the allocator has no reaping intervals.
    fn reap(&self) {}
}

/// Returns the layout of a request of `size` bytes.
#[inline(always)]
pub(crate) fn layout(size: usize) -> Layout {
    // SAFETY: 8 is a power of two, and no bench has sizes near the largest.
    unsafe { Layout::from_size_align_unchecked(size, 8) }
}

macro_rules! general {
    ($($(#[$meta:meta])* $name:ident = $shown:literal, $kind:ident, $allocator:expr, $give_back:expr;)*) => { $(
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name;
        $(#[$meta])*
        impl Malloc for $name {
            const NAME: &'static str = $shown;
            const KIND: Kind = Kind::$kind;
            fn new() -> Self {
                Self
            }
            #[inline(always)]
            fn alloc(&self, size: usize) -> NonNull<u8> {
                // SAFETY: the layout is not empty.
                let memory = unsafe { $allocator.alloc(layout(size)) };
                NonNull::new(memory).expect("memory")
            }
            #[inline(always)]
            unsafe fn free(&self, memory: NonNull<u8>, size: usize) {
                // SAFETY: the caller passes a block from `alloc` with this size, once; the layout is the same.
                unsafe { $allocator.dealloc(memory.as_ptr(), layout(size)) };
            }
            fn give_back(&self) {
                $give_back
            }
        }
    )* };
}
general! {
    /// The C library's malloc.
    System = "system", General, std::alloc::System, {
        // SAFETY: the call has no precondition.
        unsafe { libc::malloc_trim(0) };
    };
    /// mimalloc, version 3.
    #[cfg(feature = "peers")]
    MiMalloc3 = "mimalloc3", General, mimalloc::MiMalloc, {
        // SAFETY: the call has no precondition.
        unsafe { libmimalloc_sys::mi_collect(true) };
    };
    /// jemalloc, as built by the tikv crate.
    #[cfg(feature = "peers")]
    Jemalloc = "jemalloc", General, tikv_jemallocator::Jemalloc, {
        // 4096 is `MALLCTL_ARENAS_ALL`. The thread's own cache is flushed first. SAFETY: both names are commands
        // without a value.
        unsafe {
            for command in [c"thread.tcache.flush", c"arena.4096.purge"] {
                tikv_jemalloc_sys::mallctl(
                    command.as_ptr(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    0,
                );
            }
        }
    };
    /// snmalloc, whose Rust crate has no function that returns memory to the system.
    #[cfg(feature = "peers")]
    SnMalloc = "snmalloc", General, snmalloc_rs::SnMalloc, {};
}

#[derive(Clone, Copy, Debug)]
struct LoadedMalloc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    /// Function that frees memory; some libraries ignore its size argument.
    free: unsafe extern "C" fn(*mut c_void, usize),
    /// Function that returns unused memory to the system; some libraries ignore its argument.
    give_back: unsafe extern "C" fn(bool),
}

impl LoadedMalloc {
    /// Opens an allocator's library with local symbols, so that the library does not replace the program's malloc.
    fn open(peer: &str, [malloc, free, give_back]: [&CStr; 3]) -> Option<Self> {
        let mut files =
            preload::files(peer).filter_map(|file| CString::new(file.into_os_string().into_vec()).ok());
        // SAFETY: these mallocs are made to be loaded. The functions have these signatures, or lack the last
        // argument, which they ignore because it is in a register.
        unsafe {
            let open = |file: CString| libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            let library = files.find_map(|file| NonNull::new(open(file)))?.as_ptr();
            let function = |name: &CStr| NonNull::new(libc::dlsym(library, name.as_ptr()));
            Some(Self {
                malloc: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(usize) -> *mut c_void>(
                    function(malloc)?,
                ),
                free: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut c_void, usize)>(
                    function(free)?,
                ),
                give_back: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(bool)>(function(
                    give_back,
                )?),
            })
        }
    }
}

macro_rules! loaded {
    ($($(#[$meta:meta])* $name:ident = $shown:literal, [$($function:literal),*];)*) => { $(
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name(LoadedMalloc);
        impl $name {
            fn library() -> Option<LoadedMalloc> {
                LoadedMalloc::open($shown, [$($function),*])
            }
        }
        impl Malloc for $name {
            const NAME: &'static str = $shown;
            const KIND: Kind = Kind::General;
            fn available() -> bool {
                Self::library().is_some()
            }
            fn new() -> Self {
                Self(Self::library().expect("the library must load"))
            }
            #[inline(always)]
            fn alloc(&self, size: usize) -> NonNull<u8> {
                // SAFETY: the call has no precondition.
                let memory = unsafe { (self.0.malloc)(size) };
                NonNull::new(memory.cast()).expect("memory")
            }
            #[inline(always)]
            unsafe fn free(&self, memory: NonNull<u8>, size: usize) {
                // SAFETY: the caller passes a block from `alloc` with this size, once.
                unsafe { (self.0.free)(memory.as_ptr().cast(), size) };
            }
            fn give_back(&self) {
                // SAFETY: the call has no precondition.
                unsafe { (self.0.give_back)(true) };
            }
        }
    )* };
}
loaded! {
    /// mimalloc, version 2.
    MiMalloc2 = "mimalloc2", [c"mi_malloc", c"mi_free_size", c"mi_collect"];
    /// gperftools' tcmalloc.
    GPerfTools = "gperftools", [c"tc_malloc", c"tc_free_sized", c"MallocExtension_ReleaseFreeMemory"];
    /// rpmalloc. A thread's first allocation creates the thread's heap; rpmalloc notices the end of a thread only if
    /// rpmalloc is preloaded.
    RpMalloc = "rpmalloc", [c"rpmalloc", c"rpfree", c"rpmalloc_thread_collect"];
}

/// Names of the general allocators whose libraries are not installed.
pub(crate) fn missing_libraries() -> impl Iterator<Item = &'static str> {
    let all = [
        (MiMalloc2::NAME, MiMalloc2::available()),
        (GPerfTools::NAME, GPerfTools::available()),
        (RpMalloc::NAME, RpMalloc::available()),
    ];
    all.into_iter().filter(|(_, available)| !available).map(|(name, _)| name)
}

/// A [`Subject`] whose objects of one size come from a [`Malloc`].
#[derive(Debug)]
pub struct OneSizeObjects<M, const WORDS: usize>(M);

impl<M: Malloc, const WORDS: usize> Subject for OneSizeObjects<M, WORDS> {
    const NAME: &'static str = M::NAME;
    const KIND: Kind = M::KIND;
    type ThreadAccess<'s> = OneSizeAccess<'s, M, WORDS>;

    fn available() -> bool {
        M::available()
    }
    fn new(_: usize) -> Self {
        Self(M::new())
    }
    fn local(&self) -> OneSizeAccess<'_, M, WORDS> {
        OneSizeAccess(&self.0, PhantomData)
    }
}

/// A thread's access to a [`OneSizeObjects`] subject.
#[derive(Debug)]
pub struct OneSizeAccess<'s, M, const WORDS: usize>(&'s M, PhantomData<[u64; WORDS]>);

impl<M: Malloc, const WORDS: usize> ThreadAccess for OneSizeAccess<'_, M, WORDS> {
    type Object = RawObject;
    #[inline(always)]
    fn alloc(&mut self, stamp: u64) -> RawObject {
        // SAFETY: the memory was just allocated, and has at least a word.
        unsafe { RawObject::stamped(self.0.alloc(WORDS * 8), stamp) }
    }
    fn stamp(&self, object: &RawObject) -> u64 {
        object.stamp()
    }
    fn address(&self, object: &RawObject) -> Option<NonNull<u64>> {
        Some(object.0)
    }
    #[inline(always)]
    fn free(&mut self, object: RawObject) {
        // SAFETY: the memory came from `alloc` with this size; the `RawObject` is consumed.
        unsafe { self.0.free(object.0.cast(), WORDS * 8) };
    }
    fn give_back(&mut self) {
        self.0.give_back();
    }
    fn reap(&mut self) {
        self.0.reap();
    }
}

/// A malloc workload, which needs blocks of several sizes.
pub trait MallocWork: Clone + 'static {
    /// Runs one round. Returns one value for each column of the group.
    fn run<M: Malloc>(&self, malloc: &M) -> Vec<f64>;
}

/// Returns the contenders at the malloc level: this project's malloc and the general allocators.
pub fn contenders(work: &impl MallocWork) -> Vec<Contender> {
    fn contender<M: Malloc>(work: &impl MallocWork) -> Option<Contender> {
        // The malloc is created in its first round, so that its memory does not appear in earlier rounds of other
        // contenders.
        let (work, mut malloc) = (work.clone(), None);
        let round = move || work.run(malloc.get_or_insert_with(M::new));
        M::available().then(|| Contender::new(M::NAME, M::KIND, round))
    }
    let all = [
        contender::<GlobalSubject>(work),
        contender::<Kmalloc>(work),
        contender::<System>(work),
        contender::<MiMalloc2>(work),
        contender::<GPerfTools>(work),
        contender::<RpMalloc>(work),
        #[cfg(feature = "peers")]
        contender::<MiMalloc3>(work),
        #[cfg(feature = "peers")]
        contender::<Jemalloc>(work),
        #[cfg(feature = "peers")]
        contender::<SnMalloc>(work),
    ];
    all.into_iter().flatten().collect()
}
