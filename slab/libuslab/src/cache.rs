//! Object caches for C programs: the functions of `uslab.h`. Both libraries, `libuslab.so` and `libuslab-cache.so`, are
//! built from this source. `crate::home` provides the subsystem of the caches.

use crate::callbacks::{Callbacks, UserFunctions};
use crate::home;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::ptr::{NonNull, null_mut};
use nix::errno::Errno;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::time::Duration;
use uslab::{
    AllocError, CacheError, Gfp, KmemCache, KmemCacheBuilder, Limit, Magazines, Registration, SlabDebug,
};

/// `enum uslab_error` of `uslab.h`; the numbers follow the order in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Code {
    Ok,
    NoMemory,
    AtLimit,
    Refused,
    TooMany,
    BadName,
    BadSize,
    BadOptions,
    Busy,
    Damaged,
    NotWritten,
}

const ERROR_TEXTS: [&CStr; 11] = [
    c"no error",
    c"no memory is available",
    c"the cache is at its limit",
    c"the constructor of an object failed",
    c"more objects were requested than can exist",
    c"the cache name is missing, empty or contains blanks",
    c"no slab can hold objects of this size and alignment",
    c"these options conflict, or this version does not support them",
    c"objects of the cache are in use",
    c"a cache is damaged",
    c"the table could not be written; errno has the reason",
];
const _: () = assert!(Code::NotWritten as usize == ERROR_TEXTS.len() - 1);

impl From<AllocError> for Code {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::CacheLimit { .. }
            | AllocError::HeldLimit { .. }
            | AllocError::AccountLimit { .. } => Self::AtLimit,
            AllocError::Constructor => Self::Refused,
            AllocError::TooLarge => Self::TooMany,
            _ => Self::NoMemory,
        }
    }
}
impl From<CacheError> for Code {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Name => Self::BadName,
            CacheError::Geometry(_) => Self::BadSize,
            CacheError::ZeroOnFree => Self::BadOptions,
            _ => Self::NoMemory,
        }
    }
}

/// # Safety
/// `error` must be null or point to writable memory.
unsafe fn set_error(error: *mut c_int, code: Code) {
    if !error.is_null() {
        // SAFETY: `error` is null or writable, by this function's contract.
        unsafe { error.write(code as c_int) };
    }
}

/// The options of a cache (`struct uslab_cache_options`). An all-zero struct is valid.
#[repr(C)]
#[derive(Debug)]
pub struct UslabCacheOptions {
    struct_size: usize,
    name: *const c_char,
    size: usize,
    align: usize,
    flags: c_uint,
    limit_unit: c_uint,
    limit: u64,
    user: *mut c_void,
    ctor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>,
    dtor: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void)>,
    shrinker_count: Option<unsafe extern "C-unwind" fn(*mut c_void) -> usize>,
    shrinker_scan: Option<unsafe extern "C-unwind" fn(usize, *mut c_void) -> usize>,
    holds: usize,
}

impl UslabCacheOptions {
    /// Reads the options of a program that may have been compiled with another version of the
    /// header.
    ///
    /// # Safety
    /// `options` must point to as many readable bytes as its first word states.
    unsafe fn read(options: *const Self) -> Result<Self, Code> {
        const KNOWN_OPTIONS_BYTES: usize = size_of::<UslabCacheOptions>();
        // SAFETY: by this function's contract, the first word is readable, and so are as many bytes as it
        // states.
        let bytes = unsafe {
            let size = options.cast::<usize>().read();
            core::slice::from_raw_parts(options.cast::<u8>(), size)
        };
        let newer = bytes.get(KNOWN_OPTIONS_BYTES..).unwrap_or_default();
        if bytes.len() < offset_of!(Self, align) || newer.iter().any(|byte| *byte != 0) {
            return Err(Code::BadOptions);
        }
        let mut read = MaybeUninit::<Self>::zeroed();
        // SAFETY: both sides have that many bytes. If the struct is older, the missing fields stay
        // zero, which is valid.
        unsafe {
            read.as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(KNOWN_OPTIONS_BYTES));
            Ok(read.assume_init())
        }
    }

    fn limit(&self) -> Result<Option<Limit>, Code> {
        Ok(Some(match (self.limit, self.limit_unit) {
            (0, _) => return Ok(None),
            (objects, 0) => Limit::Objects(objects),
            (bytes, 1) => Limit::Bytes(bytes),
            (slabs, 2) => Limit::Slabs(u32::try_from(slabs).unwrap_or(u32::MAX)),
            _ => return Err(Code::BadOptions),
        }))
    }

    /// # Safety
    /// The name must be null or a string that ends in a NUL.
    unsafe fn builder(&self) -> Result<KmemCacheBuilder, Code> {
        if self.name.is_null() {
            return Err(Code::BadName);
        }
        // SAFETY: the name ends in a NUL, by this function's contract.
        let name = unsafe { CStr::from_ptr(self.name) }.to_string_lossy();
        let mut builder = KmemCache::builder(name, self.size).align(self.align);
        let flags: [fn(KmemCacheBuilder) -> KmemCacheBuilder; 12] = [
            KmemCacheBuilder::hardware_align,
            KmemCacheBuilder::zero_on_free,
            |builder| builder.check_frees(true),
            KmemCacheBuilder::merge,
            KmemCacheBuilder::reclaimable,
            KmemCacheBuilder::dma,
            |builder| builder.magazines(Magazines::Off),
            |builder| builder.slab_debug(SlabDebug::RED_ZONE),
            |builder| builder.slab_debug(SlabDebug::POISON),
            |builder| builder.slab_debug(SlabDebug::USERS),
            |builder| builder.slab_debug(SlabDebug::TRACE),
            KmemCacheBuilder::construct_slabs,
        ];
        if self.flags >> flags.len() != 0 {
            return Err(Code::BadOptions);
        }
        for (bit, flag) in flags.into_iter().enumerate() {
            if self.flags >> bit & 1 == 1 {
                builder = flag(builder);
            }
        }
        if let Some(limit) = self.limit()? {
            builder = builder.limit(limit);
        }
        if self.holds > 0 {
            builder = builder.holds(self.holds);
        }
        Ok(builder)
    }
}

/// `uslab_cache` of `uslab.h`: a cache with its callbacks and its shrinker.
#[derive(Debug)]
pub struct UslabCache {
    cache: KmemCache,
    shrinker: Option<Registration>,
    callbacks: Arc<Callbacks>,
}

/// # Safety
/// `options` must fulfil the conditions of [`UslabCacheOptions::read`] and [`UslabCacheOptions::builder`].
unsafe fn create(options: *const UslabCacheOptions) -> Result<UslabCache, Code> {
    // SAFETY: by this function's contract, `options` has as many bytes as its first word states.
    let options = unsafe { UslabCacheOptions::read(options) }?;
    if options.shrinker_count.is_some() != options.shrinker_scan.is_some() {
        return Err(Code::BadOptions);
    }
    // Making a cache takes several small allocations, which must not fail after this check.
    Vec::<u8>::new().try_reserve_exact(MAX_CACHE_BYTES).map_err(|_| Code::NoMemory)?;
    let callbacks = Callbacks::new(UserFunctions {
        user: options.user,
        ctor: options.ctor,
        dtor: options.dtor,
        count: options.shrinker_count,
        scan: options.shrinker_scan,
    });
    // SAFETY: the name is null or ends in a NUL, by this function's contract.
    let mut builder = unsafe { options.builder() }?;
    if options.ctor.is_some() {
        let callbacks = callbacks.clone();
        builder = builder.try_ctor(move |object| callbacks.construct(object));
    }
    if options.dtor.is_some() {
        let callbacks = callbacks.clone();
        builder = builder.dtor(move |object| callbacks.destruct(object));
    }
    let cache = home::build(builder)?;
    let shrinker = options.shrinker_scan.map(|_| cache.register_shrinker(callbacks.clone()));
    Ok(UslabCache { cache, shrinker, callbacks })
}

/// Upper bound for the bytes of internal data per cache.
const MAX_CACHE_BYTES: usize = 16 << 10;

/// # Safety
/// `options` must point to as many bytes as its first word states, and its name must end in a NUL. Until the cache is
/// destroyed, any thread may call the functions in `options` and pass them the data pointer in `options`. `error` must
/// be null or point to writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_create(
    options: *const UslabCacheOptions,
    error: *mut c_int,
) -> *mut UslabCache {
    // SAFETY: the options are valid, by this function's contract.
    let (code, cache) = match unsafe { create(options) } {
        Ok(cache) => (Code::Ok, Box::into_raw(Box::new(cache))),
        Err(code) => (code, null_mut()),
    };
    // SAFETY: `error` is null or writable, by this function's contract.
    unsafe { set_error(error, code) };
    cache
}

/// # Safety
/// `cache` must be null or a pointer from [`uslab_cache_create`]. During the call and after a successful call, no
/// thread may use the cache. No callback of the cache may call `uslab_cache_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_destroy(cache: *mut UslabCache) -> c_int {
    if cache.is_null() {
        return Code::Ok as c_int;
    }
    // SAFETY: the cache exists, by this function's contract.
    if unsafe { &(*cache).cache }.destroy().is_err_and(|busy| busy.aliases == 0) {
        return Code::Busy as c_int;
    }
    // SAFETY: `Box::into_raw` made the pointer, which is no longer used, by this function's contract.
    let UslabCache { cache, shrinker, callbacks } = *unsafe { Box::from_raw(cache) };
    drop((shrinker, cache));
    Callbacks::end(callbacks);
    Code::Ok as c_int
}

/// # Safety
/// `cache` must come from [`uslab_cache_create`] and must not be destroyed. `error` must be null or point to writable
/// memory.
#[inline(always)]
unsafe fn allocate(cache: *const UslabCache, gfp: Gfp, error: *mut c_int) -> *mut c_void {
    // SAFETY: the cache exists, by this function's contract.
    match unsafe { &(*cache).cache }.alloc_inlined(gfp) {
        Some(object) => object.as_ptr().cast(),
        // SAFETY: the cache exists, and `error` is null or writable, by this function's contract.
        None => unsafe { alloc_slow(cache, gfp, error) },
    }
}
/// The function to which `allocate` makes a tail call, so that `allocate` keeps no values across the call. The function
/// is `extern "C"`, because a function with this ABI does not unwind.
///
/// # Safety
/// The caller must fulfil the contract of [`allocate`].
#[cold]
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "the cache must have a fast path")]
unsafe extern "C" fn alloc_slow(cache: *const UslabCache, gfp: Gfp, error: *mut c_int) -> *mut c_void {
    // SAFETY: the cache exists, by this function's contract.
    match unsafe { &(*cache).cache }.alloc_missed(gfp) {
        Ok(object) => object.as_ptr().cast(),
        // SAFETY: `error` is null or writable, by this function's contract.
        Err(why) => unsafe { fail(why, error) },
    }
}
/// # Safety
/// The caller must fulfil the contract of [`set_error`].
#[cold]
unsafe fn fail(why: AllocError, error: *mut c_int) -> *mut c_void {
    // SAFETY: `error` is null or writable, by this function's contract.
    unsafe { set_error(error, why.into()) };
    null_mut()
}

/// # Safety
/// `cache` must come from [`uslab_cache_create`] and must not be destroyed. `error` must be null or point to writable
/// memory. A successful allocation does not write to `error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_alloc(cache: *const UslabCache, error: *mut c_int) -> *mut c_void {
    // SAFETY: the cache exists, and `error` is null or writable, by this function's contract.
    unsafe { allocate(cache, Gfp::KERNEL, error) }
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_zalloc(cache: *const UslabCache, error: *mut c_int) -> *mut c_void {
    // SAFETY: the cache exists, and `error` is null or writable, by this function's contract.
    unsafe { allocate(cache, Gfp::ZERO, error) }
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_acquire(
    cache: *const UslabCache,
    milliseconds: u64,
    error: *mut c_int,
) -> *mut c_void {
    // SAFETY: the cache exists, by this function's contract.
    match unsafe { &(*cache).cache }.acquire_timeout(Gfp::KERNEL, Duration::from_millis(milliseconds)) {
        Ok(object) => object.as_ptr().cast(),
        // SAFETY: `error` is null or writable, by this function's contract.
        Err(why) => unsafe { fail(why, error) },
    }
}

/// # Safety
/// The contract of [`uslab_cache_alloc`] applies, and `out` must have room for `n` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_alloc_bulk(
    cache: *const UslabCache,
    n: usize,
    out: *mut *mut c_void,
) -> c_int {
    if n == 0 {
        return Code::Ok as c_int;
    }
    // No memory is that large.
    if n > isize::MAX as usize / size_of::<*mut c_void>() {
        return Code::TooMany as c_int;
    }
    // SAFETY: `out` has room, by this function's contract. An optional pointer has the layout of a pointer, which is
    // null for `None`, and each place is written before it is read.
    let out = unsafe {
        out.write_bytes(0, n);
        core::slice::from_raw_parts_mut(out.cast::<Option<NonNull<u8>>>(), n)
    };
    // SAFETY: the cache exists, by this function's contract.
    match unsafe { &(*cache).cache }.alloc_bulk(Gfp::KERNEL, out) {
        Ok(()) => Code::Ok as c_int,
        Err(why) => Code::from(why) as c_int,
    }
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`]. `object` must be null or come from this cache, and the
/// caller must no longer use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_free(cache: *const UslabCache, object: *mut c_void) {
    if let Some(object) = NonNull::new(object.cast()) {
        // SAFETY: the cache exists, and the object belongs to it and is no longer used, by this function's contract.
        unsafe {
            if !(*cache).cache.free_inlined(object) {
                free_missed(cache, object);
            }
        }
    }
}
/// The slow path of a free, which may make system calls, and preserves `errno`.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_missed(cache: *const UslabCache, object: NonNull<u8>) {
    let before = Errno::last_raw();
    // SAFETY: the cache exists, and the object belongs to it and is no longer used, by the callers' contract.
    unsafe { (*cache).cache.free_missed(object) };
    Errno::set_raw(before);
}

/// # Safety
/// Each of the `n` objects must fulfil the contract of [`uslab_cache_free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_free_bulk(
    cache: *const UslabCache,
    n: usize,
    objects: *const *mut c_void,
) {
    let before = Errno::last_raw();
    for at in 0..n {
        // SAFETY: `objects` has `n` pointers, by this function's contract.
        if let Some(object) = NonNull::new(unsafe { objects.add(at).read() }.cast()) {
            // SAFETY: the object belongs to the cache and is no longer used, by this function's contract.
            unsafe { (*cache).cache.free(object) };
        }
    }
    Errno::set_raw(before);
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_shrink(cache: *const UslabCache) -> usize {
    // SAFETY: the cache exists, by this function's contract.
    unsafe { &(*cache).cache }.shrink()
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`], and no other thread may use the cache during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_validate(cache: *const UslabCache) -> u64 {
    // SAFETY: the cache exists, by this function's contract.
    unsafe { &(*cache).cache }.validate().errors()
}

/// # Safety
/// The contract of [`uslab_cache_alloc`] applies, and the caller must own the file descriptor `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_alloc_traces(cache: *const UslabCache, fd: c_int) -> c_int {
    // SAFETY: the cache exists, and the caller owns `fd`, by this function's contract.
    unsafe { write(fd, &(*cache).cache.alloc_traces().to_string()) }
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_reap(cache: *const UslabCache) -> u64 {
    // SAFETY: the cache exists, by this function's contract.
    unsafe { &(*cache).cache }.reap()
}

/// The statistics of a cache (`struct uslab_cache_info` of `uslab.h`).
#[repr(C)]
#[derive(Debug)]
pub struct UslabCacheInfo {
    struct_size: usize,
    object_size: usize,
    slab_size: usize,
    slabs: u64,
    objects: u64,
    used: u64,
    cached: u64,
    allocs: u64,
    frees: u64,
    failures: u64,
    constructed: u64,
    destructed: u64,
    limit: u64,
}

/// # Safety
/// The caller must fulfil the contract of [`uslab_cache_alloc`]. `info` must point to as many writable bytes as its
/// first word states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_info(cache: *const UslabCache, info: *mut UslabCacheInfo) {
    // SAFETY: by this function's contract, the cache exists, and the first word of `info` is
    // readable.
    let (cache, now, size) = unsafe { (&(*cache).cache, (*cache).cache.info(), (*info).struct_size) };
    let size = size.min(size_of::<UslabCacheInfo>());
    let numbers = UslabCacheInfo {
        struct_size: size,
        object_size: cache.geometry().object_size(),
        slab_size: cache.geometry().order().bytes(),
        slabs: now.slabs,
        objects: now.objects,
        used: now.used,
        cached: now.in_magazines + now.in_depot + now.quarantined,
        allocs: now.allocs,
        frees: now.frees,
        failures: now.failures,
        constructed: now.constructed,
        destructed: now.destructed,
        limit: now.limit.unwrap_or(0),
    };
    // SAFETY: by this function's contract, `info` has this many bytes, and the struct has only words without padding.
    unsafe { info.cast::<u8>().copy_from_nonoverlapping((&raw const numbers).cast(), size) };
}

/// # Safety
/// `text` must be null or point to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_check(text: *mut c_char, size: usize) -> c_int {
    let (code, said) = match home::check() {
        None | Some(Ok(_)) => (Code::Ok, String::new()),
        Some(Err(violation)) => (Code::Damaged, violation.to_string()),
    };
    if !text.is_null() && size > 0 {
        let n = said.len().min(size - 1);
        // SAFETY: `size` bytes at `text` are writable, by this function's contract.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(said.as_ptr(), n);
            text.add(n).write(0);
        }
    }
    code as c_int
}

/// Ends a reaping interval of all caches. Returns the number of decommitted bytes.
#[unsafe(no_mangle)]
pub extern "C" fn uslab_reap() -> usize {
    home::reap()
}

/// # Safety
/// The caller must own the file descriptor `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_slabinfo(fd: c_int) -> c_int {
    let table = home::slabinfo().map(|table| table.to_string()).unwrap_or_default();
    // SAFETY: the caller owns `fd`, by this function's contract.
    unsafe { write(fd, &table) }
}

/// # Safety
/// The caller must own the file descriptor `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_leaks(fd: c_int) -> c_int {
    let holders = home::leaks().map(|holders| holders.to_string()).unwrap_or_default();
    // SAFETY: the caller owns `fd`, by this function's contract.
    unsafe { write(fd, &holders) }
}

/// # Safety
/// The caller must own the file descriptor `fd`.
unsafe fn write(fd: c_int, text: &str) -> c_int {
    if fd < 0 {
        Errno::EBADF.set();
        return Code::NotWritten as c_int;
    }
    // SAFETY: by this function's contract, the caller owns `fd`, which is not closed here.
    let mut file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    match file.write_all(text.as_bytes()) {
        Ok(()) => Code::Ok as c_int,
        Err(error) => {
            Errno::set_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
            Code::NotWritten as c_int
        }
    }
}

/// Returns the description of an error as a static string.
#[unsafe(no_mangle)]
pub extern "C" fn uslab_error_text(error: c_int) -> *const c_char {
    let text = usize::try_from(error).ok().and_then(|error| ERROR_TEXTS.get(error));
    text.copied().unwrap_or(c"not an error code of this library").as_ptr()
}

/// Returns the library's version as a static string.
#[unsafe(no_mangle)]
pub extern "C" fn uslab_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
