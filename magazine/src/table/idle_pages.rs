//! Decommitting the pages of stacks that serve nothing.

use super::Table;
use crate::memory::Memory;
use crate::region::{CLASSES, LEN, Pages, Region};
use crate::sync::{planted, tell};
use core::ops::Range;

impl<M: Memory> Table<M> {
    /// Decommits pages whose stacks are all empty and served nothing since they were last seen. Returns the
    /// bytes. Call it after a sweep; stacks of returned numbers are included.
    ///
    /// Cost: the lock of drains, a visit to every class on every CPU that was used, and if there are any such
    /// pages a fence and a system call for each run of them. They are decommitted while their stacks are
    /// closed; no region is away.
    #[doc(hidden)]
    pub fn decommit_idle(&self) -> usize {
        let _one_at_a_time = self.lock_drains();
        let cpus = || 0..self.cpus.count();
        // Rounds that a drain is giving away are still on their stacks.
        let mut drained = [false; CLASSES as usize];
        for (class, at) in self.all() {
            // SAFETY: the lock of drains is held.
            let drains = at.drains.with(|p| unsafe { *p });
            drained[class.index as usize] = drains > 0;
        }
        planted!("a page is decommitted while its rounds are being flushed" => drained = [false; CLASSES as usize]);
        let in_use = |region: Region<'_>| self.pages_in_use(region, &drained);
        let idle = |region: Region<'_>| region.backed().without(&in_use(region));
        let mut owned = |region: Region<'_>| {
            let (kept, backed) = (in_use(region), region.backed());
            for (class, at) in self.all().filter(|(_, at)| at.pages().any(|page| backed.has(page))) {
                if !at.pages().any(|page| kept.has(page)) {
                    planted!("a page is decommitted while its stacks are open" => {
                        region.set_aside(class);
                        continue;
                    });
                    // It stays closed until the lock of drains is free.
                    region.close(class);
                    planted!("a decommit loses the operation counts of its stacks" => continue);
                    region.set_aside(class);
                }
            }
            region.set_going(&backed.without(&kept));
        };
        self.own_regions(cpus(), |region| !idle(region).is_empty(), &mut owned);
        let mut bytes = 0;
        for (cpu, region) in cpus().filter_map(|cpu| Some((cpu, self.region(cpu)?))) {
            if region.committed() == 0 {
                continue;
            }
            let going = region.going();
            for run in going.runs() {
                bytes += self.decommit(cpu, run);
            }
            region.set_backed(&region.backed().without(&going));
            region.set_going(&Pages::default());
        }
        bytes
    }
    /// Pages with a stack that holds rounds, is `drained`, or has served something since it was last seen.
    fn pages_in_use(&self, region: Region<'_>, drained: &[bool; CLASSES as usize]) -> Pages {
        let (mut pages, backed) = (Pages::default(), region.backed());
        for (class, at) in self.all().filter(|(_, at)| at.pages().any(|page| backed.has(page))) {
            let head = region.head(class);
            if head & LEN > 0 || head != region.seen(class) || drained[class.index as usize] {
                at.pages().for_each(|page| pages.add(page));
            }
        }
        pages
    }
    /// Decommits pages of the region of `cpu`. Returns the bytes.
    fn decommit(&self, cpu: u32, pages: Range<usize>) -> usize {
        tell!("gives {} pages of the region of CPU {cpu} back", pages.len());
        self.decommit_pages(cpu, pages)
    }
}
