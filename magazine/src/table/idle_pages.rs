//! Pages of stacks that serve nothing go back to the system.

use super::Table;
use crate::memory::Memory;
use crate::region::{CLASSES, LEN, Pages, Region};
use crate::sync::{planted, tell};
use core::ops::Range;

impl<M: Memory> Table<M> {
    /// Gives pages back to the system on which only stacks lie that are empty and served nothing since they were last seen:
    /// the bytes. For after a sweep; numbers that were given back are among them.
    ///
    /// Cost: the lock of drains, a look at every class on every CPU that was used, and if there are any such pages a fence and
    /// a system call for each run of them. They are given back while their stacks are closed, and no region is away.
    #[doc(hidden)]
    pub fn decommit_idle(&self) -> usize {
        let _one_at_a_time = self.lock_drains();
        let cpus = || 0..self.cpus.count();
        // Rounds that a drain is giving away lie where they lay.
        let mut drained = [false; CLASSES as usize];
        for (class, at) in self.all() {
            // SAFETY: the lock of drains is held.
            let drains = at.drains.with(|p| unsafe { *p });
            drained[class.index as usize] = drains > 0;
        }
        planted!("a page goes back while its rounds are given away" => drained = [false; CLASSES as usize]);
        let in_use = |region: Region<'_>| self.pages_in_use(region, &drained);
        let idle = |region: Region<'_>| region.backed().without(&in_use(region));
        let mut owned = |region: Region<'_>| {
            let (kept, backed) = (in_use(region), region.backed());
            for (class, at) in self.all().filter(|(_, at)| at.pages().any(|page| backed.has(page))) {
                if !at.pages().any(|page| kept.has(page)) {
                    planted!("a page goes back while its stacks are open" => {
                        region.set_aside(class);
                        continue;
                    });
                    // Nobody opens it again before the lock of drains is free.
                    region.close(class);
                    planted!("a page goes back with what its stacks have served" => continue);
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
    /// Pages on which a stack lies that holds rounds, is `drained`, or has served something since it was last seen.
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
    /// Gives back pages of the region of `cpu`: the bytes.
    fn decommit(&self, cpu: u32, pages: Range<usize>) -> usize {
        tell!("gives {} pages of the region of CPU {cpu} back", pages.len());
        self.decommit_pages(cpu, pages)
    }
}
