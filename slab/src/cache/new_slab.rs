//! A slab under construction, which passes through several stages. If this value is dropped before the last stage, the
//! drop undoes the completed stages in reverse order.
//!
//! ```text
//!  charge          to the cache's limit and its account           undone: uncharged
//!  pages           from the page allocator                        undone: freed, if they are accessible
//!  side_tables     bitmaps, tags, records, canaries, owner, class  undone: tags and records cleared
//!  construct       its objects, and those that the caller takes   undone by itself
//!  publish         on the node's list: other threads find it      no error behind it, but a cache that is destroyed
//! ```

use super::alloc::BULK_BATCH;
use super::node::ObjectIndex;
use super::slabs::ConstructionFailure;
use super::{Cache, Object};
use crate::error::AllocError;
use crate::harden::Draws;
use uslab_buddy::{Gfp, Order, Pfn};
use uslab_magazine::Operation;

pub(super) struct NewSlab<'a> {
    cache: &'a Cache,
    op: &'a Operation<'a>,
    /// Pages and order of the slab; set in the stage [`pages`](Self::pages).
    slab: Option<(Pfn, Order)>,
    /// True if the slab already has tags and records.
    covered: bool,
}

impl Cache {
    /// Adds a slab to `node`. Passes up to `max` objects of the new slab to `put`, and returns the number of passed
    /// objects.
    pub(super) fn grow(
        &self,
        op: &Operation,
        node: u32,
        gfp: Gfp,
        max: usize,
        put: &mut impl FnMut(Object),
    ) -> Result<usize, ConstructionFailure> {
        let mut taken = [0; BULK_BATCH];
        let slab = NewSlab::charge(self, op)?.with_pages(node, gfp)?.with_side_tables()?;
        let (slab, count) = slab.construct(&mut taken[..max.min(BULK_BATCH)])?;
        let slab = slab.publish(&taken[..count])?;
        let object = |index: u16| self.object(ObjectIndex { slab, index: index.into() });
        taken[..count].iter().for_each(|index| put(object(*index)));
        Ok(count)
    }
}

impl<'a> NewSlab<'a> {
    fn charge(cache: &'a Cache, op: &'a Operation<'a>) -> Result<Self, ConstructionFailure> {
        // If the cache has been destroyed, its waiter for the account must not wait any longer.
        let destroyed = || cache.nodes[0].is_closed();
        cache.charge().map_err(|error| if destroyed() { AllocError::Destroyed } else { error })?;
        Ok(Self { cache, op, slab: None, covered: false })
    }

    fn with_pages(mut self, node: u32, gfp: Gfp) -> Result<Self, ConstructionFailure> {
        let usual_order = self.cache.geometry().order();
        let (slab, order) = self.cache.pages(self.op, node, gfp)?;
        self.slab = Some((slab, order));
        if order < usual_order {
            self.cache.uncharge_account(usual_order.bytes() - order.bytes());
        }
        Ok(self)
    }

    fn with_side_tables(mut self) -> Result<Self, ConstructionFailure> {
        let (cache, op) = (self.cache, self.op);
        let Some((slab, order)) = self.slab else { return Err(AllocError::SideTable.into()) };
        let objects = cache.geometry().objects_at(order);
        self.covered = cache.try_reserve_slab_records(slab, order)
            && cache.create_slab_records(op, slab, order, objects);
        let constructed = cache.config.constructed;
        // SAFETY: no other thread knows the block, and a slab has at most one object per word.
        let set_up = self.covered && unsafe { cache.core.memory.slab(slab).set_up(op, objects, constructed) };
        if set_up && let Some(hardened) = &cache.hardened {
            for index in 0..objects {
                // SAFETY: the object is in a slab that no other thread knows.
                unsafe { hardened.prepare(cache.object(ObjectIndex { slab, index }).0) };
            }
        }
        let is_recorded =
            set_up && cache.record_page_owner(slab, order) && cache.record_page_class(op, slab, order);
        // Caches with a known page class have no constructor and hide no slab, so no later stage fails for them.
        if is_recorded && cache.make_slab_inaccessible(slab, order) {
            Ok(self)
        } else {
            Err(AllocError::SideTable.into())
        }
    }

    /// Takes as many objects as `taken` has elements, and writes their indices to `taken`. Returns the number of
    /// objects.
    fn construct(self, taken: &mut [u16]) -> Result<(Self, usize), ConstructionFailure> {
        let cache = self.cache;
        let Some((slab, order)) = self.slab else { return Err(AllocError::SideTable.into()) };
        let object = |index| cache.object(ObjectIndex { slab, index });
        if cache.has_hooks() && !cache.constructs_on_allocation() {
            for index in 0..cache.geometry().objects_at(order) {
                let undo =
                    |_: &ConstructionFailure| (0..index).for_each(|index| cache.destruct(object(index)));
                cache.construct(object(index)).inspect_err(undo)?;
            }
        }
        let mut count = 0;
        // The page number alone is no unique seed, because the page may belong to this cache again. The high bit makes
        // the seed differ from the seeds of the nodes' random draws.
        let at = 1 << 63 | cache.counts.made.get() << 32 | u64::from(slab.get());
        let draws = &mut cache.config.object_order_seed().map(|key| Draws::of(key, at));
        let max = taken.len();
        let take = |index: usize| {
            taken[count] = index as u16;
            count += 1;
        };
        // SAFETY: no other thread knows the slab.
        let (_, is_new) = unsafe { cache.core.memory.slab(slab).alloc_bits(max, true, draws.as_mut(), take) };
        if is_new {
            cache.construct(object(taken[0].into()))?;
        }
        Ok((self, count))
    }

    /// Puts the slab on its node's list. The objects at `indices` are in use.
    fn publish(mut self, indices: &[u16]) -> Result<Pfn, ConstructionFailure> {
        let (cache, op, memory) = (self.cache, self.op, &self.cache.core.memory);
        let Some((slab, order)) = self.slab.take() else { return Err(AllocError::SideTable.into()) };
        // From here on the drop undoes no stage.
        core::mem::forget(self);
        // SAFETY: no other thread knows the block. A cache lives as long as it has slabs, and `finish` removes the
        // cache's name from the frames.
        unsafe { memory.set_owner(slab, order, cache.owner()) };
        cache.counts.made.add(1);
        // The peak counts slabs instead of the charge, because the charge is increased before the
        // memory is available.
        cache.counts.peak.max(cache.counts.made.get().saturating_sub(cache.counts.released.get()));
        cache.counts.pages.add(u64::from(order.pages()));
        cache.core.note_subsystem_growth();
        let node = &cache.nodes[memory.pages.node_of(slab) as usize];
        // SAFETY: the slab was set up above, and no other thread knows it.
        if unsafe { node.add(op, memory, slab) }.is_err() {
            let indices = indices.iter().map(|index| usize::from(*index));
            // SAFETY: no other thread knows the slab, because the node has not listed it.
            unsafe {
                memory
                    .slab(slab)
                    .free_objects_in_bitmap(indices, true, |index| unreachable!("{index} was allocated"))
            };
            cache.release_unlisted_slab(op, slab);
            return Err(AllocError::Destroyed.into());
        }
        Ok(slab)
    }
}

impl Drop for NewSlab<'_> {
    fn drop(&mut self) {
        let cache = self.cache;
        let Some((slab, order)) = self.slab else { return cache.uncharge(cache.geometry().order()) };
        if self.covered && cache.checked.is_some() {
            cache.check_and_free_records(slab, order);
        }
        // Pages that stay inaccessible are useless to other users, and stay charged.
        if cache.make_slab_accessible(slab, order) {
            // SAFETY: `pages` allocated the slab with this order, and no object is constructed any more.
            unsafe { cache.core.memory.free_pages(self.op, slab, order) };
            cache.uncharge(order);
        }
    }
}
