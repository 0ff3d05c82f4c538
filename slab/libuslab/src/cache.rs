//! Object caches for C programs: what `uslab.h` declares. They stand in the malloc's own subsystem, on the same pages, so that
//! one table shows all and one fork holds all.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null_mut};
use nix::errno::Errno;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use uslab::{CacheError, Gfp, KmemCache, Uslab};

/// `struct uslab_cache_info`.
#[repr(C)]
#[derive(Debug)]
pub struct UslabCacheInfo {
    object_size: usize,
    slab_size: usize,
    slabs: u64,
    objects: u64,
    used: u64,
    cached: u64,
    allocs: u64,
    frees: u64,
}

/// # Safety
/// `name` ends in a NUL; `ctor` may be called on each object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_create(
    name: *const c_char,
    size: usize,
    align: usize,
    ctor: Option<unsafe extern "C" fn(*mut c_void)>,
) -> *mut KmemCache {
    // SAFETY: by contract.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let mut builder = KmemCache::builder(name, size).align(align);
    if let Some(ctor) = ctor {
        // SAFETY: by contract, and the object is the constructor's alone.
        builder = builder.ctor(move |object| unsafe { ctor(object.as_mut_ptr().cast()) });
    }
    match Uslab.build(builder) {
        Ok(cache) => Box::into_raw(Box::new(cache)),
        Err(error) => {
            let bad = matches!(error, CacheError::Geometry(_) | CacheError::Name);
            if bad { Errno::EINVAL } else { Errno::ENOMEM }.set();
            null_mut()
        }
    }
}

/// # Safety
/// `cache` came from [`uslab_cache_create`], and nobody uses it meanwhile, nor after a success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_destroy(cache: *mut KmemCache) -> c_int {
    // SAFETY: by contract.
    if unsafe { &*cache }.destroy().is_err() {
        Errno::EBUSY.set();
        return -1;
    }
    // SAFETY: made by `Box::into_raw`, and nobody's any more.
    drop(unsafe { Box::from_raw(cache) });
    0
}

/// # Safety
/// `cache` came from [`uslab_cache_create`] and is not destroyed.
#[inline(always)]
unsafe fn allocate(cache: *const KmemCache, gfp: Gfp) -> *mut c_void {
    // SAFETY: by contract.
    match unsafe { &*cache }.alloc(gfp) {
        Ok(object) => object.as_ptr().cast(),
        Err(_) => crate::no_memory(),
    }
}

/// # Safety
/// `cache` came from [`uslab_cache_create`] and is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_alloc(cache: *const KmemCache) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { allocate(cache, Gfp::KERNEL) }
}

/// # Safety
/// As [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_zalloc(cache: *const KmemCache) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { allocate(cache, Gfp::ZERO) }
}

/// # Safety
/// As [`uslab_cache_alloc`]; `out` has room for `n` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_alloc_bulk(
    cache: *const KmemCache,
    n: usize,
    out: *mut *mut c_void,
) -> c_int {
    if n == 0 {
        return 0;
    }
    // SAFETY: an optional pointer is a pointer, null for none; each place is written before it is read.
    let out = unsafe {
        out.write_bytes(0, n);
        core::slice::from_raw_parts_mut(out.cast::<Option<NonNull<u8>>>(), n)
    };
    // SAFETY: by contract.
    match unsafe { &*cache }.alloc_bulk(Gfp::KERNEL, out) {
        Ok(()) => 0,
        Err(_) => {
            crate::no_memory();
            -1
        }
    }
}

/// # Safety
/// As [`uslab_cache_alloc`]; `object` is null, or came from this cache and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_free(cache: *const KmemCache, object: *mut c_void) {
    if let Some(object) = NonNull::new(object.cast()) {
        let before = Errno::last_raw();
        // SAFETY: by contract.
        unsafe { (*cache).free(object) };
        Errno::set_raw(before);
    }
}

/// # Safety
/// As [`uslab_cache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_shrink(cache: *const KmemCache) -> usize {
    // SAFETY: by contract.
    unsafe { &*cache }.shrink()
}

/// # Safety
/// As [`uslab_cache_alloc`]; `info` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_cache_info(cache: *const KmemCache, info: *mut UslabCacheInfo) {
    // SAFETY: by contract.
    let (cache, now) = unsafe { (&*cache, (*cache).info()) };
    let numbers = UslabCacheInfo {
        object_size: cache.geometry().object_size(),
        slab_size: cache.geometry().order().bytes(),
        slabs: now.slabs,
        objects: now.objects,
        used: now.used,
        cached: now.in_magazines + now.in_depot,
        allocs: now.allocs,
        frees: now.frees,
    };
    // SAFETY: by contract.
    unsafe { info.write(numbers) };
}

/// # Safety
/// `fd` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslab_slabinfo(fd: c_int) -> c_int {
    let table = Uslab.slabinfo().map(|table| table.to_string()).unwrap_or_default();
    if fd < 0 {
        Errno::EBADF.set();
        return -1;
    }
    // SAFETY: by contract; it is not closed here.
    let mut file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    match file.write_all(table.as_bytes()) {
        Ok(()) => 0,
        Err(error) => {
            Errno::set_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
            -1
        }
    }
}
