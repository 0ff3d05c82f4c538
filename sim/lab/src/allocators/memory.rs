//! The memory of an allocator under study. Allocators denote locations in the memory by offsets instead of pointers.
//!
//! Headers and links are stored in the memory as 32-bit numbers, as in textbooks; a link is an offset. The code
//! therefore computes addresses like textbook allocators, but needs no `unsafe`. Writing past the end of a block
//! destroys the next header, as in real memory. New memory is zeroed.

use super::allocator::Work;
use core::alloc::Layout;
use core::ops::Range;
use uslab::pool::PoolError;
use uslab::pool::words::{Event, Span, Words};

/// The link at the end of a list; it is not a valid offset.
pub(super) const NONE: u32 = u32::MAX;

/// A range of bytes whose start address is a multiple of [`ALIGN`](Self::ALIGN).
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    /// The number of bytes skipped at the start for the alignment.
    skip: usize,
    len: usize,
    /// The counts so far: accessed bytes of headers and links, and the counts that the allocator
    /// [reports](Words::record).
    work: Work,
    /// The events since the last read of the log; `None` before the first read.
    log: Option<Vec<Event>>,
}

/// An allocated block of a [`Memory`].
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryPiece {
    /// The address of the block's memory, which identifies the memory.
    memory: usize,
    at: usize,
    bytes: usize,
}

impl MemoryPiece {
    /// Returns the block's offset from the start of the memory.
    pub fn at(&self) -> usize {
        self.at
    }
    /// Returns the requested bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The error for a parameter with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value}: expected {expected}")]
pub struct ConfigError {
    /// The parameter's name.
    pub what: &'static str,
    /// The invalid value.
    pub value: usize,
    /// The accepted values.
    pub expected: String,
}

impl ConfigError {
    pub(super) fn new(what: &'static str, value: usize, expected: impl Into<String>) -> Self {
        Self { what, value, expected: expected.into() }
    }
}

impl From<PoolError> for ConfigError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Steps { bits } => Self::new("second-level bits", bits as usize, "2 to 5"),
            PoolError::NoRoom { bytes, needed } => {
                Self::new("a memory of", bytes, format!("{needed} bytes or more"))
            }
            PoolError::Positions { bytes, max } => {
                Self::new("a memory of", bytes, format!("{max} bytes or less"))
            }
            other => Self::new("memory for a pool of", 0, other.to_string()),
        }
    }
}

impl Memory {
    /// The alignment of the memory's start in bytes, which is also the largest alignment of a block.
    pub const ALIGN: usize = 4096;
    /// The largest size of a memory in bytes. The limit exists because offsets are 32-bit numbers.
    pub const MAX_BYTES: usize = 1 << 31;

    /// Creates a memory of `len` bytes, which are all zero.
    ///
    /// # Errors
    /// Fails if `len` is more than [`MAX_BYTES`](Self::MAX_BYTES), less than `min`, or not a multiple of `unit`.
    pub(super) fn new(len: usize, min: usize, unit: usize) -> Result<Self, ConfigError> {
        if !(min..=Self::MAX_BYTES).contains(&len) || !len.is_multiple_of(unit) {
            let multiple = if unit > 1 { format!(", a multiple of {unit}") } else { String::new() };
            let expected = format!("{min} to {} bytes{multiple}", Self::MAX_BYTES);
            return Err(ConfigError::new("a memory of", len, expected));
        }
        let bytes = vec![0; len + Self::ALIGN - 1];
        let address = bytes.as_ptr().addr();
        let skip = address.next_multiple_of(Self::ALIGN) - address;
        Ok(Self { skip, bytes, len, work: Work::default(), log: None })
    }

    /// Returns the size of the memory in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
    /// Returns `true` if the memory can provide the alignment of a layout.
    pub(super) fn aligns(layout: Layout) -> bool {
        layout.align() <= Self::ALIGN
    }

    /// Returns the block of `bytes` bytes at offset `at`.
    pub(super) fn piece(&self, offset: usize, bytes: usize) -> MemoryPiece {
        debug_assert!(offset + bytes <= self.len);
        MemoryPiece { memory: self.address(), at: offset, bytes }
    }
    /// Returns `true` if `piece` is a block of this memory.
    pub fn owns(&self, piece: &MemoryPiece) -> bool {
        piece.memory == self.address()
    }
    /// Returns the offset of `piece`, which must be a block of this memory.
    ///
    /// # Panics
    /// Panics if `piece` is a block of another memory. Mixing up two allocators of one type therefore fails
    /// immediately.
    pub fn checked_offset(&self, piece: &MemoryPiece) -> usize {
        assert!(self.owns(piece), "the block belongs to another allocator");
        piece.at
    }
    /// Returns the bytes of `piece`.
    ///
    /// # Panics
    /// Panics if `piece` is a block of another memory.
    pub(super) fn bytes(&mut self, piece: &MemoryPiece) -> &mut [u8] {
        let offset = self.checked_offset(piece);
        self.slice_mut(offset..offset + piece.bytes)
    }
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[self.skip + range.start..self.skip + range.end]
    }
    pub(super) fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[self.skip + range.start..self.skip + range.end]
    }

    /// Adds `bytes` accessed bytes of metadata; accesses to words are already counted.
    pub(super) fn touch(&mut self, bytes: u64) {
        self.work.touched += bytes;
    }
    /// Removes and returns the events that the allocator reported since the last call. The first call starts the event
    /// log.
    pub(super) fn take_log(&mut self) -> Vec<Event> {
        self.log.replace(vec![]).unwrap_or_default()
    }
    /// Adds the counts of this memory to `work`.
    pub(super) fn work(&self, work: Work) -> Work {
        Work {
            steps: work.steps + self.work.steps,
            longest: work.longest.max(self.work.longest),
            splits: work.splits + self.work.splits,
            merges: work.merges + self.work.merges,
            touched: work.touched + self.work.touched,
            ..work
        }
    }
}

impl Span for Memory {
    fn address(&self) -> usize {
        self.bytes.as_ptr().addr() + self.skip
    }
    fn size(&self) -> usize {
        self.len
    }
}

/// The library's allocators access words through this trait; the lab's implementation counts each access.
impl Words for Memory {
    fn peek(&self, offset: usize) -> u32 {
        let bytes = &self.bytes[self.skip + offset..self.skip + offset + 4];
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    fn load(&mut self, offset: usize) -> u32 {
        self.work.touched += 4;
        self.peek(offset)
    }
    fn store(&mut self, offset: usize, word: u32) {
        self.work.touched += 4;
        self.slice_mut(offset..offset + 4).copy_from_slice(&word.to_ne_bytes());
    }
    fn record(&mut self, event: Event) {
        match event {
            Event::Searched(steps) => self.work.count_search(steps),
            Event::Split { .. } => self.work.splits += 1,
            Event::Merged { .. } => self.work.merges += 1,
            _ => {}
        }
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }
}

/// Implements [`Allocator`](super::Allocator) for a type with the fields `blocks` (the library's allocator, in a
/// [`Memory`]) and `work`.
macro_rules! of_the_library {
    ($allocator:ty, $name:literal, $take:expr) => {
        impl Allocator for $allocator {
            type Block = MemoryPiece;
            const NAME: &'static str = $name;

            fn alloc(&mut self, layout: Layout) -> Option<MemoryPiece> {
                let position = if Memory::aligns(layout) { $take(self, layout) } else { None };
                let block = position.map(|offset| self.blocks.memory().piece(offset, layout.size()));
                self.work.count_allocation(block)
            }
            fn free(&mut self, block: MemoryPiece) {
                let offset = self.blocks.memory().checked_offset(&block);
                self.work.frees += 1;
                self.blocks.free_block(offset);
            }
            fn range(&self, block: &MemoryPiece) -> Range<usize> {
                block.at()..block.at() + self.blocks.size(block.at())
            }
            fn bytes<'b>(&'b mut self, block: &'b mut MemoryPiece) -> &'b mut [u8] {
                self.blocks.memory_mut().bytes(block)
            }
            /// The two end markers of the heap take 16 bytes.
            fn capacity(&self) -> usize {
                self.blocks.memory().len() - 16
            }
            fn holes(&self) -> Holes {
                let mut holes = Holes::default();
                self.blocks.holes().for_each(|bytes| holes.add(bytes));
                holes
            }
            fn work(&self) -> Work {
                self.blocks.memory().work(self.work)
            }
            fn metadata_bytes(&self) -> usize {
                self.blocks.control_bytes()
            }
            fn room(&self, layout: Layout) -> Option<bool> {
                Some(Memory::aligns(layout) && self.blocks.room(layout))
            }
            fn check(&self) -> Result<(), String> {
                self.blocks.check()
            }
        }

        impl $allocator {
            /// Removes and returns the events logged since the last call. The first call starts the event log.
            pub(crate) fn take_log(&mut self) -> Vec<uslab::pool::words::Event> {
                self.blocks.memory_mut().take_log()
            }
        }
    };
}
pub(super) use of_the_library;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lab_memory_size_error_names_the_accepted_sizes() {
        let memory = Memory::new(100, 1, 1).unwrap();
        assert!(memory.slice(0..100).as_ptr().addr().is_multiple_of(Memory::ALIGN));
        let error_of = |len, min, unit| Memory::new(len, min, unit).unwrap_err().to_string();
        assert_eq!(error_of(8, 16, 1), "a memory of 8: expected 16 to 2147483648 bytes");
        assert_eq!(error_of(24, 16, 16), "a memory of 24: expected 16 to 2147483648 bytes, a multiple of 16");
        assert!(error_of(Memory::MAX_BYTES + 1, 0, 1).starts_with("a memory of 2147483649"));
    }

    #[test]
    #[should_panic(expected = "the block belongs to another allocator")]
    fn block_of_another_memory_is_detected() {
        let (first, second) = (Memory::new(64, 1, 1).unwrap(), Memory::new(64, 1, 1).unwrap());
        second.checked_offset(&first.piece(0, 8));
    }

    #[test]
    fn lab_memory_counts_loads_and_stores() {
        let mut memory = Memory::new(64, 1, 1).unwrap();
        memory.store(60, 7);
        assert_eq!((memory.load(60), memory.peek(60)), (7, 7));
        assert_eq!(memory.work(Work::default()).touched, 8);
    }
}
