//! Separate memory for the samples of a malloc.

use crate::debug::corruption::CorruptionKind;
use crate::debug::faults::{Faults, RESERVE};
use core::ptr::NonNull;
use uslab_buddy::PAGE_SIZE;
use uslab_buddy::region::{Backend, Reserved, address_limit};
use uslab_magazine::Operation;

/// Maximum number of live samples.
pub(super) const MAX_LIVE_SAMPLES: usize = if cfg!(shuttle) { 1 << 6 } else { 1 << 16 };
/// Maximum size of a sample in bytes, which is also the largest object of a size class and its largest alignment.
pub(crate) const MAX_SAMPLE_BYTES: usize = 32 << 10;

/// Separate memory for sampled objects, outside the subsystem's pages. For a sample in separate memory, a free that
/// finds its class by address misses the inlined path. All other frees are unaffected.
#[derive(Debug)]
pub(crate) struct SampleMemory {
    memory: Reserved,
    /// One word per place: the size of the place's sample or, with the highest bit set, the index plus one of the next
    /// free place.
    places: Vec<u32>,
    free: u32,
}

const FREE: u32 = 1 << 31;

impl SampleMemory {
    /// Makes the separate memory. Returns `None` if addresses are refused or limited, or if memory is short.
    pub(crate) fn new(backend: Backend, faults: &Faults) -> Option<Self> {
        let mapped = cfg!(all(target_os = "linux", not(any(uslab_heap, loom, shuttle))));
        if !mapped || backend != Backend::Os || address_limit().is_some() {
            return None;
        }
        let mut places = vec![];
        places.try_reserve_exact(MAX_LIVE_SAMPLES).ok()?;
        let memory = Reserved::readable(
            MAX_LIVE_SAMPLES * MAX_SAMPLE_BYTES,
            MAX_SAMPLE_BYTES,
            backend,
            faults,
            RESERVE,
        )?;
        Some(Self { memory, places, free: 0 })
    }
    pub(super) fn base(&self) -> usize {
        self.memory.base().addr().get()
    }
    pub(super) fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let place = match self.free {
            // The system refused to commit the next place.
            0 if !self.memory.commit(&Operation::new(), (self.places.len() + 1) * MAX_SAMPLE_BYTES) => {
                return None;
            }
            0 => {
                self.places.push(FREE);
                self.places.len() - 1
            }
            free => free as usize - 1,
        };
        self.free = self.places[place] & !FREE;
        self.places[place] = bytes as u32;
        // SAFETY: the place was committed above, or when it was first used.
        Some(unsafe { self.memory.base().add(place * MAX_SAMPLE_BYTES) })
    }
    pub(super) fn size_of(&self, address: usize) -> Result<usize, CorruptionKind> {
        let offset = address - self.base();
        match self.places.get(offset / MAX_SAMPLE_BYTES) {
            None => Err(CorruptionKind::Foreign),
            Some(place) if place & FREE > 0 => Err(CorruptionKind::DoubleFree),
            Some(_) if !offset.is_multiple_of(MAX_SAMPLE_BYTES) => Err(CorruptionKind::Interior),
            Some(place) => Ok(*place as usize),
        }
    }
    pub(super) fn free(&mut self, address: usize) -> Result<(), CorruptionKind> {
        let bytes = self.size_of(address)?;
        let place = (address - self.base()) / MAX_SAMPLE_BYTES;
        if bytes > PAGE_SIZE {
            // SAFETY: the memory is committed, and its user has freed it.
            unsafe {
                self.memory.discard(place * MAX_SAMPLE_BYTES + PAGE_SIZE..(place + 1) * MAX_SAMPLE_BYTES)
            };
        }
        self.places[place] = self.free | FREE;
        self.free = place as u32 + 1;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, uslab_heap))))]
mod tests {
    use super::*;

    #[test]
    fn separate_sample_memory_has_space_for_each_live_sample() {
        let sample_memory = SampleMemory::new(Backend::Os, &Faults::default()).unwrap();
        assert!(sample_memory.places.capacity() >= MAX_LIVE_SAMPLES);
    }
}
