//! mimalloc 3 as a library to preload. (Debian's `libmimalloc` is version 2.)

use libmimalloc_sys as _;

#[path = "shim.rs"]
mod shim;

shim::exports! {
    malloc(size: usize) -> *mut c_void = mi_malloc;
    calloc(count: usize, size: usize) -> *mut c_void = mi_calloc;
    realloc(memory: *mut c_void, size: usize) -> *mut c_void = mi_realloc;
    reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void = mi_reallocarray;
    memalign(align: usize, size: usize) -> *mut c_void = mi_memalign;
    aligned_alloc(align: usize, size: usize) -> *mut c_void = mi_aligned_alloc;
    posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int = mi_posix_memalign;
    malloc_usable_size(memory: *mut c_void) -> usize = mi_usable_size;
    free(memory: *mut c_void) -> () = mi_free;
    free_sized(memory: *mut c_void, size: usize) -> () = mi_free_size;
}
