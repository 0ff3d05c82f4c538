//! For tests: how much of some memory is there.

use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;

/// Pages of `memory`, which begins at one, that are resident.
pub(super) fn resident(memory: NonNull<[u8]>) -> usize {
    let mut pages = vec![0; memory.len().div_ceil(PAGE_SIZE)];
    // SAFETY: it writes a byte for each page, and looks at no page itself.
    let result = unsafe { libc::mincore(memory.as_ptr().cast(), memory.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 != 0).count()
}
