//! Addresses that are given up where the process may have few.

use super::core::Core;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::address_limit;

impl Core {
    /// Where `RLIMIT_AS` leaves less than `wanted` bytes of addresses, gives up addresses that are only reserved. Pages get them back as they
    /// are committed, if the limit then leaves them. Nothing happens without a limit.
    ///
    /// Cost: a system call; with a limit five more.
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: impl FnOnce(usize) -> usize) {
        let Some((limit, has)) = address_limit() else { return };
        self.huge.heed_limit();
        let pages = &self.memory.pages;
        if wanted(pages.reserved_bytes()) > limit.saturating_sub(has) && pages.has_unused_addresses() {
            // A pool that is mapped there next would lie where sized frees look for pages.
            self.guard.make_no_pool();
            pages.see_address_limit(has);
            pages.give_up_addresses(limit);
        }
    }

    /// The same where others are left less than a third of what the pages have, and gives up what describes those pages, too, once `told`
    /// knows how many are left.
    ///
    /// # Safety
    /// No thread reads the descriptors of a page that was never handed out, during the call.
    pub(crate) unsafe fn fit_addresses(&self, told: impl FnOnce(usize)) {
        self.give_up_addresses(|reserved| reserved / 3);
        self.tell_pages(told);
        let (pages, tags) = (&self.memory.pages, self.tags.lock().0.clone());
        // SAFETY: passed on; no slab begins behind these pages before what describes it has grown.
        unsafe {
            let left = pages.give_up_frames();
            self.memory.give_up_beside(left);
            if let Some(tags) = tags {
                tags.cut(pages, left);
            }
        }
        if let Some((_, has)) = address_limit() {
            pages.see_address_limit(has);
        }
    }
    /// `told` knows how many bytes the pages have, of which there may be more than when it was told last.
    #[cold]
    pub(crate) fn tell_pages(&self, told: impl FnOnce(usize)) {
        let _one = self.tags.lock();
        told(self.memory.pages.frames().len() as usize * PAGE_SIZE);
    }
}
