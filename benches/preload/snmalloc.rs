//! snmalloc as a library to preload.

use snmalloc_rs as _;

#[path = "shim.rs"]
mod shim;

shim::exports! {
    malloc(size: usize) -> *mut c_void = sn_malloc;
    calloc(count: usize, size: usize) -> *mut c_void = sn_calloc;
    realloc(memory: *mut c_void, size: usize) -> *mut c_void = sn_realloc;
    reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void = sn_reallocarray;
    memalign(align: usize, size: usize) -> *mut c_void = sn_memalign;
    aligned_alloc(align: usize, size: usize) -> *mut c_void = sn_aligned_alloc;
    posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int = sn_posix_memalign;
    malloc_usable_size(memory: *mut c_void) -> usize = sn_malloc_usable_size;
    free(memory: *mut c_void) -> () = sn_free;
    free_sized(memory: *mut c_void, size: usize) -> () = sn_free_sized;
}
