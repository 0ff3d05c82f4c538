//! From the address of a boxed object to its cache: one map for the process, a word a page.
//!
//! ```text
//!  address: | window: 17 bits | page in it: 18 bits | 12 bits |
//!             │                 └──> owners[page]: the cache whose objects lie there
//!             └──> WINDOWS[window]: the owners of a window's pages, made when the first slab begins there
//! ```
//!
//! A box is one word: what it is freed by follows from where it lies. The map is the process's and not a subsystem's, so that no
//! box needs to know its subsystem, wherever the addresses of several of them lie: in mappings side by side or on the heap.
//! The frame of a page names its cache, too; but that line is written by whoever takes objects of the slab or gives them back,
//! on any CPU. Here a word is only written where a slab of a typed cache begins; a line is eight pages. It stays when the slab ends:
//! nobody asks without an object in use.
//!
//! A window is a GiB, and what describes it 2 MiB of addresses, of which those pages are memory that describe slabs of boxed
//! objects. They stay for the life of the process: it uses few windows, and those again and again.
//!
//! A checker's atomics do not outlive executions, as this map does: its builds have `std`'s here.

use crate::cache::Cache;
use crate::debug::faults::Faults;
#[cfg(not(any(loom, shuttle)))]
use crate::published::Published;
use core::ptr::NonNull;
use uslab_buddy::{Backend, HugePages, PAGE_SHIFT, PAGE_SIZE, Region};
use uslab_magazine::sync::FixedPtr;

/// Bits of an address that a program may have.
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
/// Of a window's pages.
type Owners = [Owner; PAGES];
#[cfg(not(any(loom, shuttle)))]
type Window = Published<Owners>;
/// The same, where `Published` is a checker's.
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
        // SAFETY: by contract it stays.
        let made = unsafe { made.as_ref() };
        self.0.set(made).map(|()| made).map_err(|_| self.get().expect("somebody was first"))
    }
}

/// Zeros, and so no memory before it is used.
static WINDOWS: [Window; WINDOWS_LEN] = [const { Window::new() }; WINDOWS_LEN];

/// The cache of an object.
///
/// Cost: two loads of lines that are hardly ever written to.
///
/// # Safety
/// `object` is in use, and lies in a slab whose pages were [`set`].
#[inline(always)]
pub(crate) unsafe fn cache_of(object: NonNull<u8>) -> NonNull<Cache> {
    let address = object.addr().get();
    // SAFETY: `set` found the window, and whoever has the object got it from somebody who had it after that: so all that was
    // written here before is seen.
    unsafe {
        let owners = WINDOWS.get_unchecked(address >> WINDOW_BITS).get().unwrap_unchecked();
        NonNull::new_unchecked(owners.get_unchecked(page_in_window(address)).get())
    }
}

#[inline(always)]
fn page_in_window(address: usize) -> usize {
    address >> PAGE_SHIFT & (PAGES - 1)
}

/// Pages of objects of `cache` begin at `first`. `false` if there is no memory to say so.
#[must_use]
pub(crate) fn set(first: NonNull<u8>, pages: usize, cache: *mut Cache, backend: Backend) -> bool {
    let pages = (0..pages).map(|page| first.addr().get() + page * PAGE_SIZE);
    for address in pages {
        let Some(owners) = window(address >> WINDOW_BITS, backend) else { return false };
        owners[page_in_window(address)].set(cache);
    }
    true
}

/// The owners of a window's pages.
fn window(window: usize, backend: Backend) -> Option<&'static Owners> {
    let window = WINDOWS.get(window)?;
    if let Some(made) = window.get() {
        return Some(made);
    }
    // No subsystem's faults: which of them makes it is the process's history.
    let region = Region::committed(size_of::<Owners>(), PAGE_SIZE, backend, &Faults::default())?;
    // One page of it says all of two MiB of objects.
    region.advise(HugePages::Never);
    // SAFETY: so many bytes, all zero, which is so many null pointers; the region is forgotten if they are published.
    match unsafe { window.offer(region.base().cast()) } {
        Ok(made) => {
            core::mem::forget(region);
            Some(made)
        }
        // Who comes second throws its own away.
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
    fn pages_on_both_sides_of_a_windows_edge_have_their_owners() {
        // Addresses where no subsystem lies: nothing is ever mapped in a program's first window but one.
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
    fn an_address_that_no_program_has_is_refused() {
        let at = NonNull::new(core::ptr::without_provenance_mut(1 << ADDRESS_BITS)).unwrap();
        assert!(!set(at, 1, core::ptr::without_provenance_mut(64), Backend::Heap));
    }
}
