//! Release of reserved addresses when the process's address space is limited.

use super::core::Core;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::address_limit;

impl Core {
    /// Releases reserved addresses if `RLIMIT_AS` leaves less than `wanted` bytes. Pages reserve addresses again when they are
    /// committed, if the limit then allows it. Without a limit nothing happens.
    ///
    /// Cost: a system call; with a limit, five more.
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: impl FnOnce(usize) -> usize) {
        let Some((limit, has)) = address_limit() else { return };
        self.huge.apply_limit();
        let pages = &self.memory.pages;
        if wanted(pages.reserved_bytes()) > limit.saturating_sub(has) && pages.has_unused_addresses() {
            // A pool that is mapped at released addresses would be taken for pages by sized frees.
            self.guard.make_no_pool();
            pages.read_address_limit(has);
            pages.give_up_addresses(limit);
        }
    }

    /// Releases addresses if all other parts of the process have less than a third of the addresses that pages have.
    /// Calls `report` with the number of bytes that the pages still have, and then also releases addresses of the
    /// metadata for pages that no longer exist.
    ///
    /// # Safety
    /// During the call no thread reads the descriptors of a page that was never handed out.
    pub(crate) unsafe fn fit_addresses(&self, report: impl FnOnce(usize)) {
        self.give_up_addresses(|reserved| reserved / 3);
        self.report_page_bytes(report);
        let (pages, tags) = (&self.memory.pages, self.tags.lock().0.clone());
        // SAFETY: by contract, no thread reads the descriptors of pages that were never handed out. No slab is made on these
        // pages before its metadata has grown.
        unsafe {
            let left = pages.give_up_frames();
            self.memory.unmap_metadata(left);
            if let Some(tags) = tags {
                tags.cut(pages, left);
            }
        }
        if let Some((_, has)) = address_limit() {
            pages.read_address_limit(has);
        }
    }
    /// Calls `report` with the number of bytes that the pages have, which may have grown since the last call.
    #[cold]
    pub(crate) fn report_page_bytes(&self, report: impl FnOnce(usize)) {
        let _one = self.tags.lock();
        report(self.memory.pages.frames().len() as usize * PAGE_SIZE);
    }
}
