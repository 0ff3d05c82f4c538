//! Map from the address of a boxed object to its cache: one for the process, a word per page.
//!
//! ```text
//!  address: | window: 17 bits | page in it: 18 bits | 12 bits |
//!             │                 └──> owners[page]: the cache of the objects there
//!             └──> WINDOWS[window]: the owners of a window's pages, made when the first slab begins there
//! ```
//!
//! A box is one word: its address leads to the cache that frees it. The map belongs to the process and not to a subsystem, so a
//! box does not need its subsystem, whether several of them have adjacent mappings or are on the heap. The frame of a page
//! names its cache, too, but that line is written by each CPU that allocates from or frees to the slab. A word of this map is
//! only written when a slab of a typed cache is made; a line covers eight pages. It stays after the slab was freed: only the
//! address of an object in use is looked up.
//!
//! A window is a GiB, and its words take 2 MiB of addresses, of which only those pages are committed that describe slabs of
//! boxed objects. They are never freed: a process uses few windows, repeatedly.
//!
//! A checker's atomics do not outlive executions, as this map does: its builds use `std`'s here.

use crate::cache::Cache;
use crate::debug::faults::Faults;
#[cfg(not(any(loom, shuttle)))]
use crate::published::Published;
use core::ptr::NonNull;
use uslab_buddy::{Backend, HugePages, PAGE_SHIFT, PAGE_SIZE, Region};
use uslab_magazine::sync::FixedPtr;

/// Bits of a program's addresses.
const ADDRESS_BITS: u32 = match () {
    () if cfg!(not(target_pointer_width = "64")) => usize::BITS,
    () if cfg!(target_arch = "x86_64") => 47,
    () => 48,
};
/// Bits of an address within a window.
const WINDOW_BITS: u32 = if cfg!(target_pointer_width = "64") { 30 } else { 24 };
const WINDOWS_LEN: usize = 1 << (ADDRESS_BITS - WINDOW_BITS);
const PAGES: usize = 1 << (WINDOW_BITS - PAGE_SHIFT);

type Owner = FixedPtr<Cache>;
/// Owners of a window's pages.
type Owners = [Owner; PAGES];
#[cfg(not(any(loom, shuttle)))]
type Window = Published<Owners>;
/// The same for builds in which `Published` is a checker's.
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
    /// As [`Published::offer`](crate::published::Published::offer).
    unsafe fn offer(&self, made: NonNull<Owners>) -> Result<&'static Owners, &'static Owners> {
        // SAFETY: `made` is never freed, by this function's contract.
        let made = unsafe { made.as_ref() };
        self.0.set(made).map(|()| made).map_err(|_| self.get().expect("somebody was first"))
    }
}

/// All zeros, so untouched pages take no memory.
static WINDOWS: [Window; WINDOWS_LEN] = [const { Window::new() }; WINDOWS_LEN];

/// Cache of an object.
///
/// Cost: two loads of lines that are rarely written.
///
/// # Safety
/// `object` is in use, and its slab's pages were [`set`].
#[inline(always)]
pub(crate) unsafe fn cache_of(object: NonNull<u8>) -> NonNull<Cache> {
    let address = object.addr().get();
    // SAFETY: `set` made the window. The object was handed out after that, and the caller has synchronised with its allocation,
    // so all writes of `set` are visible.
    unsafe {
        let owners = WINDOWS.get_unchecked(address >> WINDOW_BITS).get().unwrap_unchecked();
        NonNull::new_unchecked(owners.get_unchecked(page_in_window(address)).get())
    }
}

#[inline(always)]
fn page_in_window(address: usize) -> usize {
    address >> PAGE_SHIFT & (PAGES - 1)
}

/// Sets `cache` as the owner of `pages` pages from `first` on. `false` if memory is short.
#[must_use]
pub(crate) fn set(first: NonNull<u8>, pages: usize, cache: *mut Cache, backend: Backend) -> bool {
    let pages = (0..pages).map(|page| first.addr().get() + page * PAGE_SIZE);
    for address in pages {
        let Some(owners) = window(address >> WINDOW_BITS, backend) else { return false };
        owners[page_in_window(address)].set(cache);
    }
    true
}

/// Owners of a window's pages.
fn window(window: usize, backend: Backend) -> Option<&'static Owners> {
    let window = WINDOWS.get(window)?;
    if let Some(made) = window.get() {
        return Some(made);
    }
    // No subsystem's faults: it depends on the process's history which one makes it.
    let region = Region::committed(size_of::<Owners>(), PAGE_SIZE, backend, &Faults::default())?;
    // A page of it covers two MiB of objects.
    region.advise(HugePages::Never);
    // SAFETY: all zeros, which are null pointers; the region is leaked if it is published.
    match unsafe { window.offer(region.base().cast()) } {
        Ok(made) => {
            core::mem::forget(region);
            Some(made)
        }
        // The second of two threads frees its own.
        Err(first) => Some(first),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn owner(address: usize) -> *mut Cache {
        WINDOWS[address >> WINDOW_BITS].get().unwrap()[page_in_window(address)].get()
    }

    #[test]
    fn page_owners_are_found_on_both_sides_of_a_window_boundary() {
        // Addresses without a subsystem: only in its first window a program maps nothing.
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
