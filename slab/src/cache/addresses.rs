//! Releases reserved addresses if the process's address space is limited.

use super::core::Core;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::address_limit;

impl Core {
    /// Releases reserved addresses if `RLIMIT_AS` leaves the process fewer than `wanted` bytes. A later commit reserves
    /// addresses for its pages again, if the limit allows it. The call does nothing if the process has no limit on
    /// addresses.
    ///
    /// Cost: one system call, or six system calls if addresses are limited.
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: impl FnOnce(usize) -> usize) {
        let Some((limit, has)) = address_limit() else { return };
        self.huge.enable_address_limit_checks();
        let pages = &self.memory.pages;
        if wanted(pages.reserved_bytes()) > limit.saturating_sub(has) && pages.has_unused_addresses() {
            // Sized frees would mistake a guard pool that is mapped at released addresses for
            // pages.
            self.guard.forbid_pool_creation();
            pages.update_address_limit(has);
            pages.give_up_addresses(limit);
        }
    }

    /// Releases reserved page addresses if `RLIMIT_AS` leaves the process less than a third of their size. The call
    /// then passes the remaining size of the page range in bytes to `report`, and releases the metadata of pages that
    /// lost their addresses.
    ///
    /// # Safety
    /// No thread may read the descriptor of a never-allocated page during the call.
    pub(crate) unsafe fn fit_addresses(&self, report: impl FnOnce(usize)) {
        self.give_up_addresses(|reserved| reserved / 3);
        self.report_page_bytes(report);
        let (pages, tags) = (&self.memory.pages, self.tags.lock().0.clone());
        // SAFETY: by contract, no thread reads the descriptors of pages that were never handed out. The metadata of
        // these pages grows before a slab is made on them.
        unsafe {
            let remaining = pages.release_unmapped_frames();
            self.memory.unmap_metadata(remaining);
            if let Some(tags) = tags {
                tags.cut(pages, remaining);
            }
        }
        if let Some((_, has)) = address_limit() {
            pages.update_address_limit(has);
        }
    }
    /// Calls `report` with the size of the page range in bytes, which may have grown since the last call.
    #[cold]
    pub(crate) fn report_page_bytes(&self, report: impl FnOnce(usize)) {
        let _one = self.tags.lock();
        report(self.memory.pages.frames().len() as usize * PAGE_SIZE);
    }
}
