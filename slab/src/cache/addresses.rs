//! Release of reserved addresses if the process's address space is limited.

use super::core::Core;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::address_limit;

impl Core {
    /// Releases reserved addresses if `RLIMIT_AS` leaves fewer than `wanted` bytes. A later commit reserves addresses
    /// for its pages again, if the limit allows it. Without a limit on addresses, the call does nothing.
    ///
    /// Cost: one system call, and five more if addresses are limited.
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: impl FnOnce(usize) -> usize) {
        let Some((limit, has)) = address_limit() else { return };
        self.huge.apply_limit();
        let pages = &self.memory.pages;
        if wanted(pages.reserved_bytes()) > limit.saturating_sub(has) && pages.has_unused_addresses() {
            // Sized frees would mistake a guard pool that is mapped at released addresses for
            // pages.
            self.guard.prevent_pool();
            pages.read_address_limit(has);
            pages.give_up_addresses(limit);
        }
    }

    /// Releases addresses if all other parts of the process have less than a third of the addresses that pages have.
    /// Then calls `report` with the number of bytes that the pages still have, and releases the metadata addresses
    /// of pages that no longer exist.
    ///
    /// # Safety
    /// During the call no thread reads the descriptors of a page that was never handed out.
    pub(crate) unsafe fn fit_addresses(&self, report: impl FnOnce(usize)) {
        self.give_up_addresses(|reserved| reserved / 3);
        self.report_page_bytes(report);
        let (pages, tags) = (&self.memory.pages, self.tags.lock().0.clone());
        // SAFETY: by contract, no thread reads the descriptors of pages that were never handed out. The metadata of
        // these pages grows before a slab is made on them.
        unsafe {
            let remaining = pages.give_up_frames();
            self.memory.unmap_metadata(remaining);
            if let Some(tags) = tags {
                tags.cut(pages, remaining);
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
