//! A sparse table with an entry for each page frame.
//!
//! The frame numbers of a machine are close together. The table therefore consists of chunks of 512 frames (2
//! MiB of memory), which are created by the first write. The size of the table is proportional to the memory
//! that the trace uses.

use rustc_hash::FxHashMap;

use super::event::Pfn;

const CHUNK_BITS: u32 = 9;
const CHUNK: usize = 1 << CHUNK_BITS;

#[derive(Debug)]
pub(super) struct PageTable<T> {
    places: FxHashMap<u64, u32>,
    chunks: Vec<Box<[T]>>,
    /// The number of the chunk that was accessed last, and its index.
    last: (u64, u32),
}

impl<T: Default + Clone> PageTable<T> {
    pub(super) fn new() -> Self {
        Self { places: FxHashMap::default(), chunks: Vec::new(), last: (u64::MAX, 0) }
    }

    /// Returns the entry of a frame, if the frame's chunk exists.
    pub(super) fn get(&mut self, pfn: Pfn) -> Option<&mut T> {
        let place = self.place(pfn)?;
        Some(&mut self.chunks[place as usize][pfn.0 as usize % CHUNK])
    }

    /// Returns the entry of a frame; creates the frame's chunk if it does not exist.
    pub(super) fn entry(&mut self, pfn: Pfn) -> &mut T {
        let place = match self.place(pfn) {
            Some(place) => place,
            None => {
                let number = pfn.0 >> CHUNK_BITS;
                let place = self.chunks.len() as u32;
                self.chunks.push(vec![T::default(); CHUNK].into());
                self.places.insert(number, place);
                self.last = (number, place);
                place
            }
        };
        &mut self.chunks[place as usize][pfn.0 as usize % CHUNK]
    }

    fn place(&mut self, pfn: Pfn) -> Option<u32> {
        let number = pfn.0 >> CHUNK_BITS;
        if number != self.last.0 {
            self.last = (number, *self.places.get(&number)?);
        }
        Some(self.last.1)
    }
}

/// Iterates over the frames of a block.
pub(super) fn frames(pfn: Pfn, order: u8) -> impl Iterator<Item = Pfn> {
    (pfn.0..pfn.0 + (1 << order)).map(Pfn)
}
