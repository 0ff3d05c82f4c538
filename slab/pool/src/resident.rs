//! Returns how many bytes of some memory are resident, for tests.

use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;

pub(super) fn resident(memory: NonNull<[u8]>) -> usize {
    let mut pages = vec![0; memory.len().div_ceil(PAGE_SIZE)];
    // SAFETY: `mincore` writes one byte for each page, and does not access the pages.
    let result = unsafe { libc::mincore(memory.as_ptr().cast(), memory.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 != 0).count()
}
