//! C++'s `operator new` and `operator delete`, implemented by this library. A `delete` with a size skips the lookup of
//! the size, and a `new` is only one call.
//!
//! A program may replace some forms of `new` and `delete`. If a program replaces one form, C++ requires that certain
//! other forms call the replacement. For example, `delete` with a size calls `delete` without a size, and array forms
//! call object forms. Each form of `new` and `delete` therefore first checks if the form that it should call belongs to
//! this library.
//!
//! The `std::nothrow` forms remain in the C++ library, and call this library's forms. If an allocation fails, the
//! `operator new` of the C++ library retries it, calls the new-handler, and throws.

use crate::{align_to_cache_line, allocate, free, has_size, malloc};
use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use nix::libc;
use uslab::malloc::MAX_ALIGN;
use uslab::{Gfp, Uslab};
use uslab_magazine::sync::Ordering::Relaxed;
use uslab_magazine::sync::{AtomicBool, AtomicPtr};

/// The program's definition of a replaceable operator.
struct OperatorDefinition {
    name: &'static CStr,
    /// The pointer is null until the operator was looked up.
    found: AtomicPtr<c_void>,
    /// `true` if the definition belongs to this library.
    ours: AtomicBool,
}

static OPERATOR_NEW: OperatorDefinition = OperatorDefinition::new(c"_Znwm");
static OPERATOR_NEW_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZnwmSt11align_val_t");
static OPERATOR_DELETE: OperatorDefinition = OperatorDefinition::new(c"_ZdlPv");
static OPERATOR_DELETE_ARRAY: OperatorDefinition = OperatorDefinition::new(c"_ZdaPv");
static OPERATOR_DELETE_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZdlPvSt11align_val_t");
static OPERATOR_DELETE_ARRAY_ALIGNED: OperatorDefinition = OperatorDefinition::new(c"_ZdaPvSt11align_val_t");

type NewFunction = extern "C-unwind" fn(usize) -> *mut c_void;
type OperatorNewAlignedFn = extern "C-unwind" fn(usize, usize) -> *mut c_void;
type Delete = unsafe extern "C" fn(*mut c_void);
type DeleteAligned = unsafe extern "C" fn(*mut c_void, usize);

impl OperatorDefinition {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()), ours: AtomicBool::new(false) }
    }
    /// Returns `true` if the definition belongs to this library. Returns `false` if the operator was not looked up yet.
    #[inline(always)]
    fn is_defined_here(&self) -> bool {
        // Relaxed: every thread finds the same definition.
        self.ours.load(Relaxed)
    }
    fn known_definition(&self) -> NonNull<c_void> {
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
    /// Returns the C++ library's definition, even if only a part of the program loaded that library by `dlopen`.
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

/// Looks up all operators when the library is loaded. A lookup at the first call could deadlock: `dlsym` waits for any
/// thread in `dlopen`, and a constructor in that thread may wait for the caller.
pub(crate) fn find() {
    let forms = [
        &OPERATOR_NEW,
        &OPERATOR_NEW_ALIGNED,
        &OPERATOR_DELETE,
        &OPERATOR_DELETE_ARRAY,
        &OPERATOR_DELETE_ALIGNED,
        &OPERATOR_DELETE_ARRAY_ALIGNED,
    ];
    forms.into_iter().for_each(|form| _ = form.known_definition());
}

/// Looks up a symbol by name. The lookup always succeeds, because this library defines every form, and a caller that
/// needs the next definition has the C++ library.
fn find_symbol(within: *mut c_void, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends in a NUL.
    NonNull::new(unsafe { libc::dlsym(within, name.as_ptr()) })
}

/// Returns `true` if an address is inside this library. `dladdr` is not used, because it would visit all symbols of the
/// library at each program start. If the program replaces a function, its address is inside the program.
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
    if let Some(memory) = Uslab.allocate_after_fast_miss(size, MAX_ALIGN) {
        return memory.as_ptr().cast();
    }
    let memory = malloc(size);
    if !memory.is_null() {
        return memory;
    }
    // SAFETY: the name of the symbol determines its type.
    let next =
        unsafe { core::mem::transmute::<NonNull<c_void>, NewFunction>(OPERATOR_NEW.next_definition()) };
    next(size)
}

/// `operator new[](size_t)`.
#[unsafe(export_name = "_Znam")]
pub extern "C-unwind" fn new_array(size: usize) -> *mut c_void {
    if OPERATOR_NEW.is_defined_here() { new(size) } else { new_array_slow(size) }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_array_slow(size: usize) -> *mut c_void {
    // SAFETY: the name of the symbol determines its type.
    let found =
        unsafe { core::mem::transmute::<NonNull<c_void>, NewFunction>(OPERATOR_NEW.known_definition()) };
    found(size)
}

/// `operator new(size_t, align_val_t)`. The alignment must be a power of two.
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
    let next = unsafe {
        core::mem::transmute::<NonNull<c_void>, OperatorNewAlignedFn>(OPERATOR_NEW_ALIGNED.next_definition())
    };
    next(size, align)
}

/// `operator new[](size_t, align_val_t)`.
#[unsafe(export_name = "_ZnamSt11align_val_t")]
pub extern "C-unwind" fn new_array_aligned(size: usize, align: usize) -> *mut c_void {
    if OPERATOR_NEW_ALIGNED.is_defined_here() {
        new_aligned(size, align)
    } else {
        new_array_aligned_slow(size, align)
    }
}
#[cold]
#[inline(never)]
extern "C-unwind" fn new_array_aligned_slow(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the name of the symbol determines its type.
    let found = unsafe {
        core::mem::transmute::<NonNull<c_void>, OperatorNewAlignedFn>(OPERATOR_NEW_ALIGNED.known_definition())
    };
    found(size, align)
}

/// Frees memory that `new` or `new_aligned` returned for this size and alignment. Returns `false` if the memory needs
/// the slow path.
#[inline(always)]
unsafe fn free_fast(memory: *mut c_void, size: usize, align: usize) -> bool {
    // SAFETY: the memory has this size and alignment, by the callers' contract. `free_sized_fast` refuses an address in
    // no page, such as null.
    unsafe { Uslab.free_sized_fast(memory.cast(), size, align) }
}
/// Calls the program's definition of `form`.
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_slow(memory: *mut c_void, form: &OperatorDefinition) {
    // SAFETY: the name of the symbol determines its type, and by the callers' contract the memory may be
    // deleted.
    unsafe { core::mem::transmute::<NonNull<c_void>, Delete>(form.known_definition())(memory) };
}
/// Calls the program's definition of `form`, for memory whose size is known.
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_sized_slow(memory: *mut c_void, size: usize, form: &OperatorDefinition) {
    form.known_definition();
    if !form.is_defined_here() || has_size(memory, size, MAX_ALIGN) {
        // SAFETY: the memory may be deleted, by the callers' contract.
        unsafe { delete_slow(memory, form) };
    }
}
#[cold]
#[inline(never)]
unsafe extern "C" fn delete_aligned_slow(memory: *mut c_void, align: usize, form: &OperatorDefinition) {
    // SAFETY: the name of the symbol determines its type, and by the callers' contract the memory may be
    // deleted.
    unsafe { core::mem::transmute::<NonNull<c_void>, DeleteAligned>(form.known_definition())(memory, align) };
}

#[cold]
#[inline(never)]
unsafe extern "C" fn delete_aligned_sized_slow(memory: *mut c_void, size: usize, align: usize) {
    OPERATOR_DELETE_ALIGNED.known_definition();
    if !OPERATOR_DELETE_ALIGNED.is_defined_here() || has_size(memory, size, align.max(MAX_ALIGN)) {
        // SAFETY: the memory may be deleted, by the callers' contract.
        unsafe { delete_aligned_slow(memory, align, &OPERATOR_DELETE_ALIGNED) };
    }
}

/// `operator delete(void*)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
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
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdaPv")]
pub unsafe extern "C" fn delete_array(memory: *mut c_void) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if OPERATOR_DELETE.is_defined_here() {
            free(memory);
        } else {
            delete_slow(memory, &OPERATOR_DELETE)
        }
    }
}

/// `operator delete(void*, size_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdlPvm")]
pub unsafe extern "C" fn delete_sized(memory: *mut c_void, size: usize) {
    align_to_cache_line();
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if !(OPERATOR_DELETE.is_defined_here() && free_fast(memory, size, MAX_ALIGN)) {
            delete_sized_slow(memory, size, &OPERATOR_DELETE)
        }
    }
}

/// `operator delete[](void*, size_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdaPvm")]
pub unsafe extern "C" fn delete_array_sized(memory: *mut c_void, size: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if OPERATOR_DELETE_ARRAY.is_defined_here() {
            delete_sized(memory, size);
        } else {
            delete_slow(memory, &OPERATOR_DELETE_ARRAY)
        }
    }
}

/// `operator delete(void*, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
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
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdaPvSt11align_val_t")]
pub unsafe extern "C" fn delete_array_aligned(memory: *mut c_void, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if OPERATOR_DELETE_ALIGNED.is_defined_here() {
            free(memory);
        } else {
            delete_aligned_slow(memory, align, &OPERATOR_DELETE_ALIGNED)
        }
    }
}

/// `operator delete(void*, size_t, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdlPvmSt11align_val_t")]
pub unsafe extern "C" fn delete_aligned_sized(memory: *mut c_void, size: usize, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if !(OPERATOR_DELETE_ALIGNED.is_defined_here() && free_fast(memory, size, align.max(MAX_ALIGN))) {
            delete_aligned_sized_slow(memory, size, align)
        }
    }
}

/// `operator delete[](void*, size_t, align_val_t)`.
///
/// # Safety
/// `memory` must be null or come from the matching `operator new`, and the caller must no longer use it.
#[unsafe(export_name = "_ZdaPvmSt11align_val_t")]
pub unsafe extern "C" fn delete_array_aligned_sized(memory: *mut c_void, size: usize, align: usize) {
    // SAFETY: the memory may be deleted, by this function's contract.
    unsafe {
        if OPERATOR_DELETE_ARRAY_ALIGNED.is_defined_here() {
            delete_aligned_sized(memory, size, align);
        } else {
            delete_aligned_slow(memory, align, &OPERATOR_DELETE_ARRAY_ALIGNED)
        }
    }
}
