//! Addresses that are given up where the process may have few.

use super::core::Core;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::address_limit;

impl Core {
    /// Where `RLIMIT_AS` leaves less than `wanted` bytes of addresses, gives up addresses that are only reserved: beside
    /// `wanted`, the rest of the process is to have a quarter of what is not in use. Nothing happens without a limit.
    ///
    /// Cost: a system call; with a limit five more.
    #[cold]
    pub(crate) fn give_up_addresses(&self, wanted: Option<usize>) {
        let Some((limit, has)) = address_limit() else { return };
        if wanted.is_some_and(|wanted| wanted <= limit.saturating_sub(has)) {
            return;
        }
        let pages = &self.memory.pages;
        let tags = self.tags.lock().0.as_ref().map_or(0, |tags| tags.reserved());
        let (own, beside) = (pages.reserved_bytes(), self.memory.reserved_beside() + tags);
        // What the pages, and what describes them in proportion, may have together.
        let others = has.saturating_sub(own + beside).saturating_add(wanted.unwrap_or(0));
        let (most, used) = (limit.saturating_sub(others), pages.committed_bytes());
        let keep = used + most.saturating_sub(used) / 4 * 3;
        let keep = (keep as u128 * own as u128 / (own + beside) as u128) as usize;
        if keep < own {
            pages.give_up_addresses(keep);
        }
    }

    /// The same without a wish, and gives up what describes those pages, too, once `told` knows how many are left.
    ///
    /// # Safety
    /// Nobody looks meanwhile at a page that was never handed out, nor later at the class of a page beyond those.
    pub(crate) unsafe fn fit_addresses(&self, told: impl FnOnce(usize)) {
        self.give_up_addresses(None);
        told(self.memory.pages.reserved_bytes() / PAGE_SIZE);
        // SAFETY: passed on; no slab can begin behind these pages.
        unsafe {
            let pages = self.memory.give_up_beside();
            if let Some(tags) = &self.tags.lock().0 {
                tags.cut(pages);
            }
        }
    }
}
