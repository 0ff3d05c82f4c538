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
        self.huge.heed_limit();
        if wanted.is_some_and(|wanted| wanted <= limit.saturating_sub(has)) {
            return;
        }
        let pages = &self.memory.pages;
        let tags = self.tags.lock().0.as_ref().map_or(0, |tags| tags.reserved());
        let (own, beside) = (pages.reserved_bytes(), self.memory.reserved_beside() + tags);
        let used = pages.committed_bytes();
        let others = has.saturating_sub(own + beside).saturating_add(wanted.unwrap_or(0));
        // What describes the pages goes in proportion; with a wish it stays.
        let (others, whole) =
            if wanted.is_some() { (others.saturating_add(beside), own) } else { (others, own + beside) };
        if wanted.is_some() && others.saturating_add(used) > limit {
            // All of it would not be enough.
            return;
        }
        let keep = used + limit.saturating_sub(others).saturating_sub(used) / 4 * 3;
        let keep = (keep as u128 * own as u128 / whole as u128) as usize;
        if keep < own {
            // A pool that is mapped there next would lie where sized frees look for pages.
            #[cfg(not(any(loom, shuttle)))]
            self.guard.make_no_pool();
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
        // SAFETY: passed on; no slab can begin behind these pages. One at a time under the lock: what another one gave up may be somebody's.
        unsafe {
            let pages = self.memory.pages.give_up_frames();
            let tags = self.tags.lock();
            self.memory.give_up_beside(pages);
            if let Some(tags) = &tags.0 {
                tags.cut(pages);
            }
        }
    }
}
