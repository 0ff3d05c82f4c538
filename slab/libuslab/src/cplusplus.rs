//! C++'s `operator new` and `operator delete`. A `delete` with a size need not look up the size, and a `new` is only
//! one call.
//!
//! A program may replace some forms of `new` and `delete`. If a program replaces one form, C++ requires that certain
//! other forms call it. `delete` with a size calls `delete` without a size, and array forms call object forms. Each
//! form therefore first checks if the form that it must call belongs to this library.
//!
//! The forms with `std::nothrow` stay in C++'s library, and call the forms of this library. If an allocation
//! fails, the `operator new` of the C++ library tries again, calls the handler, and throws.

use crate::{align_to_cache_line, allocate, free, has_size, malloc};
use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use nix::libc;
use uslab::malloc::MAX_ALIGN;
use uslab::{Gfp, Uslab};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicBool, AtomicPtr};

/// The definition that the program uses for a replaceable operator.
struct OperatorDefinition {
    name: &'static CStr,
    /// The pointer is null until the name was looked up.
    found: AtomicPtr<c_void>,
    /// True if the definition belongs to this library.
    ours: AtomicBool,
}

static NEW: OperatorDefinition = OperatorDefinition::new(c"_Znwm");
static NEW_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZnwmSt11align_val_t");
static DELETE: OperatorDefinition = OperatorDefinition::new(c"_ZdlPv");
static DELETE_ARRAY: OperatorDefinition = OperatorDefinition::new(c"_ZdaPv");
static DELETE_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZdlPvSt11align_val_t");
static DELETE_ARRAY_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZdaPvSt11align_val_t");

type New = extern "C-unwind" fn(usize) -> *mut c_void;
type NewAligned = extern "C-unwind" fn(usize, usize) -> *mut c_void;
type Delete = unsafe extern "C" fn(*mut c_void);
type DeleteAligned = unsafe extern "C" fn(*mut c_void, usize);

impl OperatorDefinition {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()), ours: AtomicBool::new(false) }
    }
    /// Returns `true` if the definition belongs to this library. Returns `false` before the name was looked up.
    #[inline(always)]
    fn is_ours(&self) -> bool {
        // Relaxed: every thread finds the same definition.
        self.ours.load(Relaxed)
    }
    fn found_definition(&self) -> NonNull<c_void> {
        // Relaxed: every thread finds the same function, which exists from the start.
        if let Some(found) = NonNull::new(self.found.load(Relaxed)) {
            return found;
        }
        let found = find_symbol(libc::RTLD_DEFAULT, self.name).unwrap_or_else(|| std::process::abort());
        // Relaxed: every thread finds the same definition.
        self.found.store(found.as_ptr(), Relaxed);
        self.ours.store(is_in_this_library(found.as_ptr()), Relaxed);
        found
    }
    /// Returns the definition in C++'s library, even if `dlopen` loaded that library for a part of the program.
    fn next_definition(&self) -> NonNull<c_void> {
        let next = find_symbol(libc::RTLD_NEXT, self.name);
        let is_library = |name: &&CStr| {
            // SAFETY: the name ends in a NUL, and the call loads no library.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            NonNull::new(library).and_then(|library| find_symbol(library.as_ptr(), self.name))
        };
        let libraries = || [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"];
        next.or_else(|| libraries().iter().find_map(is_library)).unwrap_or_else(|| std::process::abort())
    }
}

/// Looks up all forms when the library is loaded. A lookup at the first call could deadlock: `dlsym` waits for threads
/// in `dlopen`, where a constructor may wait for the caller.
pub(crate) fn find() {
    let forms = [&NEW, &NEW_ALIGNED, &DELETE, &DELETE_ARRAY, &DELETE_ALIGNED, &DELETE_ARRAY_ALIGNED];
    forms.into_iter().for_each(|form| _ = form.found_definition());
}

/// Looks up a symbol. The lookup always succeeds: this library has all forms, and a caller that needs the next
/// definition has C++'s library.
fn find_symbol(within: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends in a NUL.
    NonNull::new(unsafe { libc::dlsym(within, name.as_ptr()) })
}

/// Returns `true` if an address is within this library. `dladdr` would visit all symbols of the library at each start
/// of a program. If the program has replaced a function, the function's address is in the program.
fn is_in_this_library(address: *const c_void) -> bool {
    // The linker defines these symbols as the first mapped byte of the library, and as its end.
    unsafe extern "C" {
        static __ehdr_start: u8;
        static _end: u8;
    }
    ((&raw const __ehdr_start).addr()..(&raw const _end).addr()).contains(&address.addr())
}

/// `operator new(size_t)`.
#[unsafe(export_name = "_Znwm")]
pub extern "C-unwind" fn new(size: usize) -> *mut c_void {
    align_to_cache_line();
    match Uslab.allocate_fast(size, MAX_ALIGN) {
        Some(memory) => memory.as_ptr().cast(),
        None => new_slow(size),
    }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_slow(size: usize) -> *mut c_void {
    if let Some(memory) = Uslab.allocate_next(size, MAX_ALIGN) {
        return memory.as_ptr().cast();
    }
    let memory = malloc(size);
    if !memory.is_null() {
        return memory;
    }
    // SAFETY: the name of the symbol determines its type.
    let next = unsafe { core::mem::transmute::<NonNull<c_void>, New>(NEW.next_definition()) };
    next(size)
}

/// `operator new[](size_t)`.
#[unsafe(export_name = "_Znam")]
pub extern "C-unwind" fn new_array(size: usize) -> *mut c_void {
    if NEW.is_ours() { new(size) } else { new_array_slow(size) }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_array_slow(size: usize) -> *mut c_void {
    // SAFETY: the name of the symbol determines its type.
    let found = unsafe { core::mem::transmute::<NonNull<c_void>, New>(NEW.found_definition()) };
    found(size)
}

/// `operator new(size_t, align_val_t)`. The alignment is a power of two.
#[unsafe(export_name = "_ZnwmSt11align_val_t")]
pub extern "C-unwind" fn new_aligned(size: usize, align: usize) -> *mut c_void {
    match Uslab.allocate_fast(size, align.max(MAX_ALIGN)) {
        Some(memory) => memory.as_ptr().cast(),
        None => new_aligned_slow(size, align),
    }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_aligned_slow(size: usize, align: usize) -> *mut c_void {
    let memory = allocate(size, align.max(MAX_ALIGN), Gfp::KERNEL);
    if !memory.is_null() {
        return memory;
    }
    // SAFETY: the name of the symbol determines its type.
    let next = unsafe { core::mem::transmute::<NonNull<c_void>, NewAligned>(NEW_ALIGNED.next_definition()) };
    next(size, align)
}

/// `operator new[](size_t, align_val_t)`.
#[unsafe(export_name = "_ZnamSt11align_val_t")]
pub extern "C-unwind" fn new_array_aligned(size: usize, align: usize) -> *mut c_void {
    if NEW_ALIGNED.is_ours() { new_aligned(size, align) } else { new_array_aligned_slow(size, align) }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_array_aligned_slow(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the name of the symbol determines its type.
    let found =
        unsafe { core::mem::transmute::<NonNull<c_void>, NewAligned>(NEW_ALIGNED.found_definition()) };
    found(size, align)
}

/// Frees memory that `new` or `new_aligned` returned for this size and alignment. Returns `false` if the fast path
/// cannot free the memory.
#[inline(always)]
unsafe fn free_fast(memory: *mut c_void, size: usize, align: usize) -> bool {
    // SAFETY: the memory has this size and alignment, by the callers' contract. `free_sized_fast` refuses an address in
    // no page, such as null.
    unsafe { Uslab.free_sized_fast(memory.cast(), size, align) }
}
/// Calls the definition of `form` that the program uses.
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_slow(memory: *mut c_void, form: &OperatorDefinition) {
    // SAFETY: the name of the symbol determines its type, and by the callers' contract the memory may be
    // deleted.
    unsafe { core::mem::transmute::<NonNull<c_void>, Delete>(form.found_definition())(memory) };
}
/// Calls the definition of `form` that the program uses, for memory of a known size.
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_sized_slow(memory: *mut c_void, size: usize, form: &OperatorDefinition) {
    form.found_definition();
    if !form.is_ours() || has_size(memory, size, MAX_ALIGN) {
        // SAFETY: the memory may be deleted, by the callers' contract.
        unsafe { delete_slow(memory, form) };
    }
}
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_aligned_slow(memory: *mut c_void, align: usize, form: &OperatorDefinition) {
    // SAFETY: the name of the symbol determines its type, and by the callers' contract the memory may be
    // deleted.
    unsafe { core::mem::transmute::<NonNull<c_void>, DeleteAligned>(form.found_definition())(memory, align) };
}

#[cold]
#[inline(never)]
unsafe extern "C" fn delete_aligned_sized_slow(memory: *mut c_void, size: usize, align: usize) {
    DELETE_ALIGNED.found_definition();
    if !DELETE_ALIGNED.is_ours() || has_size(memory, size, align.max(MAX_ALIGN)) {
        // SAFETY: the memory may be deleted, by the callers' contract.
        unsafe { delete_aligned_slow(memory, align, &DELETE_ALIGNED) };
    }
}

/// `operator delete(void*)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdlPv")]
pub unsafe extern "C" fn delete(memory: *mut c_void) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        free(memory);
    }
}

/// `operator delete[](void*)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdaPv")]
pub unsafe extern "C" fn delete_array(memory: *mut c_void) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if DELETE.is_ours() {
            free(memory);
        } else {
            delete_slow(memory, &DELETE)
        }
    }
}

/// `operator delete(void*, size_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdlPvm")]
pub unsafe extern "C" fn delete_sized(memory: *mut c_void, size: usize) {
    align_to_cache_line();
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if !(DELETE.is_ours() && free_fast(memory, size, MAX_ALIGN)) {
            delete_sized_slow(memory, size, &DELETE)
        }
    }
}

/// `operator delete[](void*, size_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdaPvm")]
pub unsafe extern "C" fn delete_array_sized(memory: *mut c_void, size: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if DELETE_ARRAY.is_ours() {
            delete_sized(memory, size);
        } else {
            delete_slow(memory, &DELETE_ARRAY)
        }
    }
}

/// `operator delete(void*, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdlPvSt11align_val_t")]
pub unsafe extern "C" fn delete_aligned(memory: *mut c_void, _align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        free(memory);
    }
}

/// `operator delete[](void*, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdaPvSt11align_val_t")]
pub unsafe extern "C" fn delete_array_aligned(memory: *mut c_void, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if DELETE_ALIGNED.is_ours() {
            free(memory);
        } else {
            delete_aligned_slow(memory, align, &DELETE_ALIGNED)
        }
    }
}

/// `operator delete(void*, size_t, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdlPvmSt11align_val_t")]
pub unsafe extern "C" fn delete_aligned_sized(memory: *mut c_void, size: usize, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if !(DELETE_ALIGNED.is_ours() && free_fast(memory, size, align.max(MAX_ALIGN))) {
            delete_aligned_sized_slow(memory, size, align)
        }
    }
}

/// `operator delete[](void*, size_t, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and is no longer used.
#[unsafe(export_name = "_ZdaPvmSt11align_val_t")]
pub unsafe extern "C" fn delete_array_aligned_sized(memory: *mut c_void, size: usize, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if DELETE_ARRAY_ALIGNED.is_ours() {
            delete_aligned_sized(memory, size, align);
        } else {
            delete_aligned_slow(memory, align, &DELETE_ARRAY_ALIGNED)
        }
    }
}
