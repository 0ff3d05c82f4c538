//! The article's particle, and the designs that store particles, as a Rust program would implement them.

use anyhow::Context as _;
use uslab::handle::{Handle, PackedArray, SlotMap};
use uslab::objects::{Hive, Key};
use uslab::pool::{HeapArea, LivePool};
use uslab::{CacheBox, ObjectCache};

/// The article's particle, of 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Particle {
    active: bool,
    position: [f32; 2],
    velocity: [f32; 2],
    lifetime: f32,
}

impl Particle {
    pub(super) fn new(i: usize) -> Self {
        Self { active: true, position: [i as f32, 0.0], velocity: [1.0, 0.5], lifetime: 1.0 }
    }
    #[inline(always)]
    fn update(&mut self) {
        self.position[0] += self.velocity[0] * 0.016;
        self.position[1] += self.velocity[1] * 0.016;
        self.lifetime -= 0.016;
    }
}

/// A pool design from the article.
pub(super) trait Design {
    /// The type of the key that identifies an object. The packed array has no stable keys, so its key is an object's
    /// current index.
    type Key;
    /// The kind of items that a walk inspects: slots with flags, values without gaps, or 64-bit words with one bit per
    /// slot.
    const INSPECTED_ITEMS: &'static str;

    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key>;
    fn free(&mut self, key: Self::Key);
    /// Updates all objects. Returns the number of updated objects.
    fn walk(&mut self) -> usize;
    /// Returns the number of items (slots, values or words) that a walk inspects.
    fn inspected(&mut self) -> usize;
}

/// Adjacent slots, each of which has a flag that is set while the slot is in use. If `SCANS` is true, a search finds
/// the lowest free slot for each new object. If `SCANS` is false, a freed slot is never used again.
#[derive(Default)]
pub(super) struct Flags<const SCANS: bool>(Vec<Particle>);

/// Adjacent slots; in a free slot, the link to the next free slot is stored in place of the particle's position.
pub(super) struct FreeList {
    slots: Vec<Particle>,
    head: u32,
}

const END_OF_LIST: u32 = u32::MAX;

impl Default for FreeList {
    fn default() -> Self {
        Self { slots: Vec::new(), head: END_OF_LIST }
    }
}

fn walk_flagged_slots(slots: &mut [Particle]) -> usize {
    let mut active = 0;
    for particle in slots.iter_mut() {
        if particle.active {
            particle.update();
            active += 1;
        }
    }
    active
}

impl<const SCANS: bool> Design for Flags<SCANS> {
    type Key = usize;
    const INSPECTED_ITEMS: &'static str = "slots";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        if SCANS && let Some(free) = self.0.iter().position(|slot| !slot.active) {
            self.0[free] = particle;
            return Ok(free);
        }
        self.0.push(particle);
        Ok(self.0.len() - 1)
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        self.0[key].active = false;
    }
    fn walk(&mut self) -> usize {
        walk_flagged_slots(&mut self.0)
    }
    fn inspected(&mut self) -> usize {
        self.0.len()
    }
}

impl Design for FreeList {
    type Key = usize;
    const INSPECTED_ITEMS: &'static str = "slots";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        let slot = self.head as usize;
        if let Some(free) = self.slots.get_mut(slot) {
            self.head = free.position[0].to_bits();
            *free = particle;
            return Ok(slot);
        }
        self.slots.push(particle);
        Ok(self.slots.len() - 1)
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        slot.active = false;
        slot.position[0] = f32::from_bits(self.head);
        self.head = key as u32;
    }
    fn walk(&mut self) -> usize {
        walk_flagged_slots(&mut self.slots)
    }
    fn inspected(&mut self) -> usize {
        self.slots.len()
    }
}

fn walk_particle_slice(particles: &mut [Particle]) -> usize {
    particles.iter_mut().for_each(Particle::update);
    particles.len()
}

impl Design for PackedArray<Particle> {
    type Key = ();
    const INSPECTED_ITEMS: &'static str = "values";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<()> {
        PackedArray::alloc(self, particle)?;
        Ok(())
    }
    fn free(&mut self, (): ()) {
        unreachable!("values of the packed array are freed by place")
    }
    fn walk(&mut self) -> usize {
        walk_particle_slice(self.as_mut_slice())
    }
    fn inspected(&mut self) -> usize {
        self.len()
    }
}

impl Design for SlotMap<Particle> {
    type Key = Handle<u64, 32>;
    const INSPECTED_ITEMS: &'static str = "values";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        Ok(SlotMap::alloc(self, particle)?)
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        SlotMap::free(self, key);
    }
    fn walk(&mut self) -> usize {
        walk_particle_slice(self.as_mut_slice())
    }
    fn inspected(&mut self) -> usize {
        self.len()
    }
}

impl Design for LivePool<Particle, HeapArea> {
    type Key = usize;
    const INSPECTED_ITEMS: &'static str = "64-bit words";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<usize> {
        self.insert(particle).ok().context("the pool must have room")
    }
    #[inline(always)]
    fn free(&mut self, key: usize) {
        self.remove(key);
    }
    fn walk(&mut self) -> usize {
        self.iter_mut().for_each(|(_, particle)| particle.update());
        self.len()
    }
    fn inspected(&mut self) -> usize {
        self.capacity().div_ceil(64)
    }
}

impl Design for Hive<Particle> {
    type Key = Key<Particle>;
    const INSPECTED_ITEMS: &'static str = "64-bit words";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        self.insert(particle).map_err(|refused| refused.error.into())
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        self.remove(key);
    }
    fn walk(&mut self) -> usize {
        self.iter_mut().for_each(Particle::update);
        self.len()
    }
    fn inspected(&mut self) -> usize {
        // A walk inspects all words of each slab that has objects in use.
        let info = self.info();
        ((info.full + info.partial) * info.objs_per_slab.div_ceil(64)) as usize
    }
}
/// An object cache whose objects are in boxes: all threads can use it, but it offers no walk over its objects.
pub(super) struct BoxedObjects<'c>(pub(super) &'c ObjectCache<Particle>);

impl<'c> Design for BoxedObjects<'c> {
    type Key = CacheBox<'c, Particle>;
    const INSPECTED_ITEMS: &'static str = "";
    #[inline(always)]
    fn alloc(&mut self, particle: Particle) -> anyhow::Result<Self::Key> {
        let mut place = self.0.alloc()?;
        *place = particle;
        Ok(place)
    }
    #[inline(always)]
    fn free(&mut self, key: Self::Key) {
        drop(key);
    }
    fn walk(&mut self) -> usize {
        0
    }
    fn inspected(&mut self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    /// "A true zero-overhead free list": in the article's own code, the pointer in the union raises the union's
    /// alignment.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn article_union_enlarges_the_particle_to_32_bytes() {
        #[repr(C)]
        struct SimpleState {
            active: bool,
            position: [f32; 2],
            velocity: [f32; 2],
            lifetime: f32,
        }
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Data {
            position: [f32; 2],
            velocity: [f32; 2],
            lifetime: f32,
        }
        #[repr(C)]
        union State<L: Copy> {
            data: Data,
            next_free: L,
        }
        #[repr(C)]
        struct LiveState<L: Copy> {
            active: bool,
            state: State<L>,
        }
        assert_eq!((size_of::<SimpleState>(), size_of::<Data>()), (24, 20));
        assert_eq!((offset_of!(SimpleState, position), offset_of!(SimpleState, lifetime)), (4, 20));
        // The particle's 20 bytes become 24 for the pointer's alignment, and the flag before them takes 8.
        type Pointer = *const u8;
        assert_eq!((size_of::<State<Pointer>>(), offset_of!(LiveState<Pointer>, state)), (24, 8));
        assert_eq!(size_of::<LiveState<Pointer>>(), 32, "the state is a third larger");
        // A link of four bytes, as in this project's typed pools, costs nothing here.
        assert_eq!((offset_of!(LiveState<u32>, state), size_of::<LiveState<u32>>()), (4, 24));
        let _ = (
            offset_of!(SimpleState, active),
            offset_of!(SimpleState, velocity),
            offset_of!(LiveState<u32>, active),
        );
        let _ = (offset_of!(State<u32>, data), offset_of!(State<u32>, next_free));
        let _ = (offset_of!(Data, position), offset_of!(Data, velocity), offset_of!(Data, lifetime));
    }
}
