//! The shipping allocator as a design.

use crate::design::{At, CacheCounts, Design, NoMemory, Unsupported};
use crate::levels::{CacheLevels, Level};
use crate::machine::Machine;
use crate::pages::gfp;
use crate::shown::ShownCache;
use crate::stream::CacheInfo;
use crate::told;
use uslab::{Block, Gfp, KmemCache};
use uslab_buddy::{Order, PageAllocator, PageBlock, Pfn};
use uslab_magazine::tracepoints::Step;
use uslab_magazine::{Path, Paths, on_cpu};

/// The crates `uslab` and `uslab-buddy` as they ship, on a [`Machine`].
#[derive(Debug)]
pub struct Shipping<'m> {
    pub(crate) machine: &'m Machine,
    /// The caches, indexed by their number in the stream. The entry is `None` for large kmalloc.
    pub(crate) caches: Vec<Option<&'m KmemCache>>,
    /// The number of freed objects whose stamp was wrong.
    overwritten: u64,
}

impl<'m> Shipping<'m> {
    /// Creates the shipping design on a machine.
    pub fn on(machine: &'m Machine) -> Self {
        Self { machine, caches: Vec::new(), overwritten: 0 }
    }
    /// Returns the stack that a CPU has for a cache, with the objects on it. Returns `None` for large kmalloc, and for
    /// a cache without magazines.
    fn stack(&self, cpu: u32, cache: u32) -> Option<Level> {
        let capacity = self.counts(cache).capacity as u32;
        // SAFETY: the engine is the subsystem's only user, and it runs on this thread.
        let view = unsafe { self.cache(cache)?.view() };
        CacheLevels::shipping(&view.magazines?, capacity).cpus.swap_remove(cpu as usize).pop()
    }
    pub(crate) fn cache(&self, cache: u32) -> Option<&'m KmemCache> {
        self.caches.get(cache as usize).copied().flatten()
    }
}

impl<'m> Design for Shipping<'m> {
    type Object = Block<'m>;
    type Block = PageBlock<'m>;

    fn learn(&mut self, cache: &CacheInfo) -> Result<(), Unsupported> {
        self.caches.push(self.machine.cache(cache).map_err(|error| Unsupported(error.to_string()))?);
        Ok(())
    }

    fn alloc(&mut self, at: At, cache: u32, bytes: u64) -> Result<Block<'m>, NoMemory> {
        on_cpu(at.cpu);
        let block = match self.cache(cache) {
            Some(cache) => {
                let mut block = cache.alloc_block(Gfp::KERNEL).map_err(|_| NoMemory)?;
                if self.machine.bytes {
                    let stamp = stamp(&block);
                    block.front_mut(stamp.len()).copy_from_slice(&stamp);
                }
                return Ok(block);
            }
            None => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                self.machine.subsystem.kmalloc().alloc_block(bytes, Gfp::KERNEL)
            }
        };
        block.map_err(|_| NoMemory)
    }
    fn free(&mut self, at: At, cache: u32, mut object: Block<'m>) {
        on_cpu(at.cpu);
        if self.machine.bytes && self.cache(cache).is_some() {
            let stamp = stamp(&object);
            let header = object.front_mut(stamp.len());
            self.overwritten += u64::from(*header != stamp);
            // The stamp is cleared, so that a second free fails the check.
            header.fill(0);
        }
        drop(object);
    }
    fn place(&self, cache: u32, object: &Block<'m>) -> Option<(u32, u16)> {
        let place = self.cache(cache)?.place_of(object.address())?;
        Some((place.slab.get(), place.index))
    }

    fn alloc_pages(&mut self, at: At, order: u8, migratetype: u8) -> Result<PageBlock<'m>, NoMemory> {
        on_cpu(at.cpu);
        let order = Order::new(order).ok_or(NoMemory)?;
        self.machine.subsystem.pages().alloc_block(order, gfp(migratetype), None).map_err(|_| NoMemory)
    }
    fn free_pages(&mut self, at: At, block: PageBlock<'m>) {
        on_cpu(at.cpu);
        drop(block);
    }
    fn split_pages(&mut self, block: PageBlock<'m>, order: u8) -> Vec<PageBlock<'m>> {
        block.split(Order::new(order).unwrap_or(Order::ZERO))
    }
    fn block(&self, block: &PageBlock<'m>) -> (u32, u8) {
        (block.pfn().get(), block.order().get())
    }

    fn shrink(&mut self, at: At, cache: Option<u32>) -> (u64, u64) {
        on_cpu(at.cpu);
        let cached = || {
            let infos = self.caches.iter().flatten().map(|cache| cache.info());
            infos.map(|info| info.in_magazines + info.in_depot).sum::<u64>()
        };
        let before = cached();
        let slabs = match cache {
            Some(cache) => self.cache(cache).map_or(0, |cache| cache.shrink()),
            None => self.machine.subsystem.shrink(),
        };
        (before - cached(), slabs as u64)
    }

    fn counts(&self, cache: u32) -> CacheCounts {
        let Some(cache) = self.cache(cache) else { return CacheCounts::default() };
        let info = cache.info();
        CacheCounts {
            size: info.object_size,
            order: info.order,
            per_slab: info.objs_per_slab,
            capacity: info.magazine_capacity,
            used: info.used,
            in_magazines: info.in_magazines,
            in_depot: info.in_depot,
            free_in_slabs: info.free_in_slabs,
            full: info.full,
            partial: info.partial,
            empty: info.empty,
            depot_exchanges: info.depot_exchanges,
            slabs_made: info.slabs_made,
        }
    }
    fn paths(&self) -> Paths {
        self.caches.iter().flatten().map(|cache| cache.info().paths).sum()
    }
    fn show(&self, number: u32) -> Option<ShownCache> {
        let cache = self.cache(number)?;
        let capacity = self.counts(number).capacity as u32;
        // SAFETY: the engine is the subsystem's only user, and it runs on this thread.
        Some(ShownCache::shipping(number, &unsafe { cache.view() }, capacity))
    }
    fn pages(&self) -> &PageAllocator {
        self.machine.subsystem.pages()
    }
    fn large_pages(&self) -> u64 {
        self.machine.subsystem.info().kmalloc_large.pages
    }
    fn is_slab(&self, page: u32) -> bool {
        !self.pages().frame(Pfn::new(page)).owner().is_null()
    }

    fn describe(&self, cpu: u32, cache: u32, freeing: bool, steps: &[Step]) -> Option<(Path, String)> {
        let order = self.cache(cache)?.info().order;
        Some(told::describe(steps, order, freeing, self.stack(cpu, cache)))
    }

    /// Checks the allocator's own invariants, and compares its counts with the stream's counts.
    fn check(&self, objects: u64, held_pages: u64) -> Result<(), String> {
        if self.overwritten > 0 {
            return Err(format!("{} objects were overwritten while in use", self.overwritten));
        }
        let c = self.machine.subsystem.check().map_err(|violation| violation.to_string())?;
        let large_info = self.machine.subsystem.info().kmalloc_large;
        let pages =
            c.slab_pages + c.grace_pages + c.large_pages + held_pages + c.per_cpu_pages + c.free_pages;
        for (quantity, value, expected) in [
            ("objects", c.used + c.in_magazines + c.in_depot + c.free_in_slabs, c.objects),
            ("pages", pages, c.pages),
            ("objects in use", c.used + (large_info.allocs - large_info.frees), objects),
        ] {
            if value != expected {
                return Err(format!("{quantity}: {value}; expected {expected}"));
            }
        }
        Ok(())
    }
}

/// Returns the stamp of an object in use, which is the object's address. Every object has at least 8 bytes.
fn stamp(block: &Block<'_>) -> [u8; 8] {
    (block.address().addr().get() as u64).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Kind, Stream, Writer};
    use crate::{Engine, hash};

    fn stream() -> Stream {
        let mut writer = Writer::new("made".to_owned(), 2);
        for n in 0..5000_u64 {
            writer.begin(n * 1000);
            if n == 0 {
                writer.cache("dentry".to_owned(), Kind::Named, 192);
                writer.cache("kmalloc-large".to_owned(), Kind::Large, 0);
            }
            let digest = hash(&n.to_le_bytes());
            match digest % 16 {
                0 => writer.alloc(0, 1, digest % 20, 20_000),
                1..8 => writer.alloc((digest % 2) as u32, 0, digest % 1000, 192),
                _ => drop(writer.free((digest % 2) as u32, digest % 1000)),
            }
        }
        writer.finish()
    }

    #[test]
    fn engine_views_are_equal_with_and_without_memory() {
        let stream = stream();
        let moments = |machine: Machine| {
            let mut engine = Engine::new(Shipping::on(&machine), &stream);
            let moments = (1..=50).map(|part| {
                engine.run(part * 100).unwrap();
                engine.check().unwrap();
                serde_json::to_string(&engine.view(Vec::new(), &[0, 1])).unwrap()
            });
            moments.collect::<Vec<_>>()
        };
        let [without_fallback, with_fallback] =
            [Machine::new(&stream), Machine::with_bytes(&stream)].map(Result::unwrap).map(moments);
        assert!(without_fallback == with_fallback);
    }

    #[test]
    fn overwritten_object_in_use_is_detected() {
        let stream = stream();
        let machine = Machine::with_bytes(&stream).unwrap();
        let mut design = Shipping::on(&machine);
        design.learn(&stream.caches[0]).unwrap();
        let at = At::new(0, 0);
        let mut objects = [(); 2].map(|()| design.alloc(at, 0, 0).unwrap());
        objects[1].front_mut(1)[0] ^= 1;
        let [first, second] = objects;
        design.free(at, 0, first);
        assert_eq!(design.check(1, 0), Ok(()));
        design.free(at, 0, second);
        assert_eq!(design.check(0, 0).unwrap_err(), "1 objects were overwritten while in use");
    }
}
