//! Process-wide map from the address of a boxed object to its cache, with one word per page.
//!
//! ```text
//!  address: | window: 17 bits | page in it: 18 bits | 12 bits |
//!             │                 └──> owners[page]: the cache of the objects there
//!             └──> ADDRESS_WINDOWS[window]: the owners of a window's pages, made with the window's first slab
//! ```
//!
//! A box is only one word long, because the map finds the cache from the object's address. The map belongs to the
//! process, not to a subsystem, so a box need not name its subsystem. The frame of a page also names its cache, but
//! each CPU that allocates from or frees to the slab writes the frame's cache line. A word of this map is written only
//! when a slab of a typed cache is made, and a cache line of the map covers eight pages. The word stays after its slab
//! was freed, because only addresses of objects in use are looked up.
//!
//! A window covers 1 GiB of addresses, and the words of its pages take 2 MiB of addresses. Only the pages of the map
//! that describe slabs of boxed objects are committed. The map is never freed, because a process reuses the same few
//! windows.
//!
//! The map outlives one execution of a model, but the atomics of a model checker do not. The checkers' builds therefore
//! use `std`'s atomics for the map.

use crate::cache::Cache;
use crate::debug::faults::Faults;
#[cfg(not(any(loom, shuttle)))]
use crate::published::Published;
use core::ptr::NonNull;
use uslab_buddy::{Backend, HugePages, PAGE_SHIFT, PAGE_SIZE, Region};
use uslab_magazine::sync::FixedPtr;

/// Number of significant bits of a user-space address.
const ADDRESS_BITS: u32 = match () {
    () if cfg!(not(target_pointer_width = "64")) => usize::BITS,
    () if cfg!(target_arch = "x86_64") => 47,
    () => 48,
};
/// Number of bits of an address within a window.
const WINDOW_BITS: u32 = if cfg!(target_pointer_width = "64") { 30 } else { 24 };
const ADDRESS_WINDOW_COUNT: usize = 1 << (ADDRESS_BITS - WINDOW_BITS);
const PAGES: usize = 1 << (WINDOW_BITS - PAGE_SHIFT);

type Owner = FixedPtr<Cache>;
type Owners = [Owner; PAGES];
#[cfg(not(any(loom, shuttle)))]
type Window = Published<Owners>;
/// Pointer to the owners of a window's pages, for builds in which a model checker replaces `Published`.
#[cfg(any(loom, shuttle))]
#[allow(clippy::disallowed_types, reason = "it outlives executions")]
struct Window(std::sync::OnceLock<&'static Owners>);
#[cfg(any(loom, shuttle))]
impl Window {
    const fn new() -> Self {
        Self(std::sync::OnceLock::new())
    }
    fn get(&self) -> Option<&'static Owners> {
        self.0.get().copied()
    }
    /// # Safety
    /// The caller must fulfil the safety conditions of [`Published::offer`](crate::published::Published::offer).
    unsafe fn offer(&self, new_owners: NonNull<Owners>) -> Result<&'static Owners, &'static Owners> {
        // SAFETY: by contract, `new_owners` is never freed.
        let new_owners = unsafe { new_owners.as_ref() };
        self.0
            .set(new_owners)
            .map(|()| new_owners)
            .map_err(|_| self.get().expect("another thread must have published the window"))
    }
}

/// All windows, initially zero, so that untouched pages take no memory.
static ADDRESS_WINDOWS: [Window; ADDRESS_WINDOW_COUNT] = [const { Window::new() }; ADDRESS_WINDOW_COUNT];

/// Returns the cache that owns an object.
///
/// Cost: two loads from cache lines that are rarely written.
///
/// # Safety
/// `object` must be in use, and [`set`] must have been called for the pages of its slab.
#[inline(always)]
pub(crate) unsafe fn cache_of(object: NonNull<u8>) -> NonNull<Cache> {
    let address = object.addr().get();
    // SAFETY: `set` made the window. The object was handed out after `set`, and the caller has synchronised with the
    // object's allocation, so all writes of `set` are visible.
    unsafe {
        let owners = ADDRESS_WINDOWS.get_unchecked(address >> WINDOW_BITS).get().unwrap_unchecked();
        NonNull::new_unchecked(owners.get_unchecked(page_index_in_window(address)).get())
    }
}

#[inline(always)]
fn page_index_in_window(address: usize) -> usize {
    address >> PAGE_SHIFT & (PAGES - 1)
}

/// Sets `cache` as the owner of `pages` pages that begin at `first`; returns `false` if memory is short.
#[must_use]
pub(crate) fn set(first: NonNull<u8>, pages: usize, cache: *mut Cache, backend: Backend) -> bool {
    let pages = (0..pages).map(|page| first.addr().get() + page * PAGE_SIZE);
    for address in pages {
        let Some(owners) = window(address >> WINDOW_BITS, backend) else { return false };
        owners[page_index_in_window(address)].set(cache);
    }
    true
}

/// Returns the owners of a window's pages, and creates them in the first call.
fn window(window: usize, backend: Backend) -> Option<&'static Owners> {
    let window = ADDRESS_WINDOWS.get(window)?;
    if let Some(made) = window.get() {
        return Some(made);
    }
    // This call injects no faults, because which subsystem makes the window depends on the process's history.
    let region = Region::committed(size_of::<Owners>(), PAGE_SIZE, backend, &Faults::default())?;
    // A huge page would waste memory, because one page of the map covers 2 MiB of objects.
    region.advise(HugePages::Never);
    // SAFETY: the memory is all zeros, which are null pointers. If the region is published, it is never
    // freed.
    match unsafe { window.offer(region.base().cast()) } {
        Ok(made) => {
            core::mem::forget(region);
            Some(made)
        }
        // If two threads make the same window, the second thread frees its region.
        Err(first) => Some(first),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn owner(address: usize) -> *mut Cache {
        ADDRESS_WINDOWS[address >> WINDOW_BITS].get().unwrap()[page_index_in_window(address)].get()
    }

    #[test]
    fn page_owners_are_found_across_a_window_boundary() {
        // This address range belongs to no subsystem, and the program maps nothing there.
        let edge = 2_usize << WINDOW_BITS;
        let cache: *mut Cache = core::ptr::without_provenance_mut(64);
        let at = |address| NonNull::new(core::ptr::without_provenance_mut(address)).unwrap();
        let set = |address, pages, cache| set(at(address), pages, cache, Backend::Heap);
        assert!(set(edge - 2 * PAGE_SIZE, 4, cache));
        let owners =
            || [-3_isize, -2, 1, 2].map(|page| owner(edge.wrapping_add_signed(page * PAGE_SIZE as isize)));
        let null = core::ptr::null_mut();
        assert_eq!(owners(), [null, cache, cache, null]);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn address_beyond_user_space_is_refused() {
        let at = NonNull::new(core::ptr::without_provenance_mut(1 << ADDRESS_BITS)).unwrap();
        assert!(!set(at, 1, core::ptr::without_provenance_mut(64), Backend::Heap));
    }
}
