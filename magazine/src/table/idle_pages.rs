//! Decommits pages that contain only idle stacks.

use super::Table;
use crate::memory::Memory;
use crate::region::{CLASSES, LEN_MASK, Pages, Region};
use crate::sync::tell;
use core::ops::Range;

impl<M: Memory> Table<M> {
    /// Decommits each page on which all stacks are empty and have served no operation since the table last checked
    /// them. Returns the number of decommitted bytes. Call `decommit_idle` after a sweep. `decommit_idle` also
    /// decommits the stacks of returned class numbers.
    ///
    /// Cost: the drain lock, and a check of every class on every used CPU. If any page is idle, the call also costs one
    /// fence, and one system call for each run of adjacent idle pages. During the system calls, the stacks on these
    /// pages are closed. Every CPU can use its other stacks during the system calls.
    pub fn decommit_idle(&self) -> usize {
        let _one_at_a_time = self.lock_drains();
        let cpus = || 0..self.cpus.count();
        // Objects that a drain is flushing are still on their stacks.
        let mut drained = [false; CLASSES as usize];
        for (class, at) in self.all() {
            // SAFETY: this thread holds the lock of drains.
            let drains = at.drains.with(|p| unsafe { *p });
            drained[class.index as usize] = drains > 0;
        }
        let in_use = |region: Region<'_>| self.pages_in_use(region, &drained);
        let idle = |region: Region<'_>| region.backed_pages().difference(&in_use(region));
        let mut owned = |region: Region<'_>| {
            let (kept, backed) = (in_use(region), region.backed_pages());
            for (class, at) in self.all().filter(|(_, at)| at.pages().any(|page| backed.has_page(page))) {
                if !at.pages().any(|page| kept.has_page(page)) {
                    // The stack stays closed until this thread releases the lock of drains.
                    region.close(class);
                    region.move_operation_count(class);
                }
            }
            region.mark_pages_unwritable(&backed.difference(&kept));
        };
        self.with_region_ownership(cpus(), |region| !idle(region).is_empty(), &mut owned);
        let mut bytes = 0;
        for (cpu, region) in cpus().filter_map(|cpu| Some((cpu, self.region(cpu)?))) {
            if region.committed() == 0 {
                continue;
            }
            let idle_pages = region.unwritable_pages();
            for run in idle_pages.runs() {
                bytes += self.decommit(cpu, run);
            }
            region.set_backed_pages(&region.backed_pages().difference(&idle_pages));
            region.mark_pages_unwritable(&Pages::default());
        }
        bytes
    }
    /// Returns the pages of a region that are in use. A page is in use if a stack on it holds objects, is `drained`, or
    /// has served an operation since the table last checked it.
    fn pages_in_use(&self, region: Region<'_>, drained: &[bool; CLASSES as usize]) -> Pages {
        let (mut pages, backed) = (Pages::default(), region.backed_pages());
        for (class, at) in self.all().filter(|(_, at)| at.pages().any(|page| backed.has_page(page))) {
            let head = region.head(class);
            if head & LEN_MASK > 0 || head != region.recorded_head(class) || drained[class.index as usize] {
                at.pages().for_each(|page| pages.add(page));
            }
        }
        pages
    }
    /// Decommits the given pages of the region of `cpu`. Returns the number of decommitted bytes.
    fn decommit(&self, cpu: u32, pages: Range<usize>) -> usize {
        tell!("decommits {} pages of the region of CPU {cpu}", pages.len());
        self.decommit_pages(cpu, pages)
    }
}
