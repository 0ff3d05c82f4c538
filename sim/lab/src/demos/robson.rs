//! Robson's adversary: a program that uses little memory, but forces every allocator that does not move blocks to take
//! far more ("An Estimate of the Store Size Necessary for Dynamic Storage Allocation", 1971). The module also contains
//! the demo, which attacks six allocators.

use super::command::Command;
use super::lanes::{Program, Steps, grouped, parts_of};
use super::scene::{Is, Part};
use super::structure::{Lane, Line};
use crate::allocators::heap::{Fit, Order};
use crate::allocators::memory::ConfigError;
use crate::allocators::tlsf::Search;
use crate::allocators::{Allocator, Buddy, Heap, Tlsf};
use core::alloc::Layout;
use core::fmt;
use core::ops::Range;
use uslab::handle::{Handle32x32, HandleTable};

type Handle = Handle32x32;

/// The size in bytes of the smallest block with its header; after rounding, it is equal for all attacked allocators.
pub(crate) const UNIT: usize = 32;
/// The name of the allocator that can move blocks.
pub(crate) const MOVING_ALLOCATOR_NAME: &str = "moved together, by handles";

/// The error that an allocator under attack returns when its memory is full.
#[derive(Debug, thiserror::Error)]
#[error("the heap of {0} bytes has no room")]
pub(crate) struct NoRoom(usize);

/// An allocator under attack; the sizes of its blocks include headers.
trait AttackedAllocator {
    type Block;
    /// Allocates a block whose size, including its header, is `size` bytes.
    fn alloc(&mut self, size: usize) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
    /// Returns the block's current range, including its header.
    fn range(&self, block: &Self::Block) -> Range<usize>;
    fn bytes(&self) -> usize;
    /// Returns the number of bytes that the allocator copied to move blocks.
    fn copied(&self) -> usize {
        0
    }
}

/// An allocator that does not move blocks, with the number of bytes that it adds to each request.
struct NonMovingAllocator<A> {
    allocator: A,
    header: usize,
}

impl<A: Allocator> AttackedAllocator for NonMovingAllocator<A> {
    type Block = A::Block;
    fn alloc(&mut self, size: usize) -> Option<A::Block> {
        self.allocator.alloc(Layout::from_size_align(size - self.header, 1).ok()?)
    }
    fn free(&mut self, block: A::Block) {
        self.allocator.free(block);
    }
    fn range(&self, block: &A::Block) -> Range<usize> {
        let range = self.allocator.range(block);
        range.start - self.header.min(range.start)..range.end
    }
    fn bytes(&self) -> usize {
        self.allocator.capacity()
    }
}

/// A heap that compacts its blocks when a request does not fit at the end of its memory; users find blocks through
/// handles.
struct CompactingHeap {
    places: HandleTable<Range<usize>>,
    /// The handles of the blocks in the order of addresses; some of these blocks may be freed.
    order: Vec<Handle>,
    head: usize,
    bytes: usize,
    copied: usize,
}

impl CompactingHeap {
    fn new(bytes: usize) -> Self {
        Self { places: HandleTable::new(), order: Vec::new(), head: 0, bytes, copied: 0 }
    }
    fn compact(&mut self) {
        self.head = 0;
        let (places, head, copied) = (&mut self.places, &mut self.head, &mut self.copied);
        self.order.retain(|handle| {
            let Some(place) = places.get_mut(*handle) else { return false };
            let len = place.len();
            *copied += if place.start == *head { 0 } else { len };
            *place = *head..*head + len;
            *head += len;
            true
        });
    }
}

impl AttackedAllocator for CompactingHeap {
    type Block = Handle;
    fn alloc(&mut self, size: usize) -> Option<Handle> {
        if self.head + size > self.bytes {
            self.compact();
        }
        if self.head + size > self.bytes {
            return None;
        }
        let handle = self.places.alloc(self.head..self.head + size).ok()?;
        self.head += size;
        self.order.push(handle);
        Some(handle)
    }
    fn free(&mut self, block: Handle) {
        self.places.free(block);
    }
    fn range(&self, block: &Handle) -> Range<usize> {
        self.places.get(*block).cloned().unwrap_or_default()
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn copied(&self) -> usize {
        self.copied
    }
}

/// An attack on one allocator, with at most `live` bytes in use.
struct RobsonAttack<V: AttackedAllocator> {
    victim: V,
    live: usize,
    blocks: Vec<V::Block>,
    size: usize,
    grid: usize,
    top: usize,
}

/// The attack, which runs round by round. Each round of the attack except the first begins with [`free`](Self::free).
pub(crate) trait Round {
    /// Doubles the size. Frees all blocks except the blocks that cross a grid line, so that no hole is large enough for
    /// the new size.
    fn free(&mut self);
    /// Allocates blocks of the current size until `live` bytes are in use again. Returns the end of the highest block
    /// that was in use at any time.
    ///
    /// # Errors
    /// Fails if the allocator has no room for another block.
    fn fill(&mut self) -> Result<usize, NoRoom>;
    /// Returns the ranges of the blocks in use.
    fn blocks(&self) -> Vec<Range<usize>>;
    /// Returns the number of bytes that the allocator copied to move blocks.
    fn copied(&self) -> usize;
}

impl<V: AttackedAllocator> Round for RobsonAttack<V> {
    fn free(&mut self) {
        self.size *= 2;
        let size = self.size;
        // Two grids of this size consist of every second line of the last grid. The attack uses the grid that more
        // bytes cross.
        let crosses_grid = |grid: usize, range: &Range<usize>| {
            (range.end + size - 1 - grid) / size > (range.start + size - 1 - grid) / size
        };
        let ranges = self.blocks();
        let crossing_bytes =
            |grid| ranges.iter().filter(|range| crosses_grid(grid, range)).map(Range::len).sum::<usize>();
        let shifted_grid = self.grid + size / 2;
        if crossing_bytes(shifted_grid) > crossing_bytes(self.grid) {
            self.grid = shifted_grid;
        }
        let blocks = core::mem::take(&mut self.blocks);
        for (range, block) in ranges.iter().zip(blocks) {
            if crosses_grid(self.grid, range) {
                self.blocks.push(block);
            } else {
                self.victim.free(block);
            }
        }
    }
    fn fill(&mut self) -> Result<usize, NoRoom> {
        // If blocks move, their places change with each allocation, but the bytes in use do not.
        let mut used_bytes: usize = self.blocks().iter().map(Range::len).sum();
        while used_bytes + self.size <= self.live {
            let block = self.victim.alloc(self.size).ok_or(NoRoom(self.victim.bytes()))?;
            let range = self.victim.range(&block);
            used_bytes += range.len();
            self.top = self.top.max(range.end);
            self.blocks.push(block);
        }
        Ok(self.top)
    }
    fn blocks(&self) -> Vec<Range<usize>> {
        self.blocks.iter().map(|block| self.victim.range(block)).collect()
    }
    fn copied(&self) -> usize {
        self.victim.copied()
    }
}

/// A list of attacks, each with the name of its allocator.
pub(crate) type NamedAttacks = Vec<(&'static str, Box<dyn Round>)>;

/// Returns an attack on each allocator. The last allocator is [`MOVING_ALLOCATOR_NAME`]; each other allocator has
/// enough memory for `doublings` doublings of the size, so that it refuses no request.
///
/// # Errors
/// Fails if memory is exhausted.
pub(crate) fn attacks(live: usize, doublings: u32) -> Result<NamedAttacks, ConfigError> {
    fn attack<V: AttackedAllocator + 'static>(victim: V, live: usize) -> Box<dyn Round> {
        Box::new(RobsonAttack { victim, live, blocks: vec![], size: UNIT, grid: 0, top: 0 })
    }
    fn fixed<A: Allocator + 'static>(allocator: A, header: usize, live: usize) -> Box<dyn Round>
    where
        A::Block: 'static,
    {
        attack(NonMovingAllocator { allocator, header }, live)
    }
    let heap = live * (doublings as usize + 2) + (UNIT << doublings);
    let list = |fit| Ok::<_, ConfigError>(fixed(Heap::new(heap, fit, Order::Address)?, 8, live));
    Ok(vec![
        ("first fit, by address", list(Fit::First)?),
        ("best fit, by address", list(Fit::Best)?),
        ("next fit, by address", list(Fit::Next)?),
        ("TLSF", fixed(Tlsf::new(heap, 4, Search::Bitmaps)?, 4, live)),
        ("buddy", fixed(Buddy::new(heap.next_power_of_two())?, 0, live)),
        (MOVING_ALLOCATOR_NAME, attack(CompactingHeap::new(live), live)),
    ])
}

/// Returns Robson's bound on the memory after `doublings` doublings of the size, as a multiple of the bytes in use.
pub(crate) fn bound(live: usize, doublings: usize) -> f64 {
    let units = (live / UNIT) as f64;
    (units * (1.0 + doublings as f64 / 2.0) - (1_u64 << doublings) as f64 + 1.0) / units
}

/// The demo: six allocators under one attack.
#[derive(Default)]
pub(super) struct Robson {
    live: usize,
    doublings: usize,
    attacks: NamedAttacks,
    /// For each allocator, the end of the highest block that was in use at any time.
    tops: Vec<usize>,
}

impl fmt::Debug for Robson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Robson").field("live", &self.live).field("doublings", &self.doublings).finish()
    }
}

impl Robson {
    /// Returns the largest number of doublings after which the program can still allocate a block in addition to the
    /// blocks that it keeps.
    fn max_doublings(live: usize) -> usize {
        (live / UNIT).ilog2() as usize - 1
    }
    fn size(&self) -> usize {
        UNIT << self.doublings
    }
    fn fill(&mut self) -> Result<(), String> {
        let tops = self.attacks.iter_mut().map(|(_, attack)| attack.fill());
        self.tops = tops.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(())
    }
    fn begin(&mut self, live: &str) -> Result<String, String> {
        let expected = || "Expected `fill 2048`, `fill 4096` or `fill 8192`.".to_owned();
        let live = live.parse().ok().filter(|live| [2048, 4096, 8192].contains(live)).ok_or_else(expected)?;
        let doublings = Self::max_doublings(live);
        let attacks = attacks(live, doublings as u32).map_err(|error| error.to_string())?;
        *self = Self { live, doublings: 0, attacks, tops: vec![] };
        self.fill()?;
        Ok(format!(
            "{} blocks of {UNIT} bytes: {} bytes are in use, without holes.",
            live / UNIT,
            grouped(live)
        ))
    }
    fn round(&mut self, steps: &mut Steps) -> Result<String, String> {
        if self.attacks.is_empty() {
            return Err("No blocks are in use: `fill` allocates them.".to_owned());
        }
        if self.doublings == Self::max_doublings(self.live) {
            return Err(format!(
                "Blocks of {} bytes are the largest: `fill` starts again.",
                grouped(self.size())
            ));
        }
        self.doublings += 1;
        self.attacks.iter_mut().for_each(|(_, attack)| attack.free());
        let size = grouped(self.size());
        let lanes = self.lanes();
        let is_hole = |part: &Part| part.is == Is::Free && part.bytes >= self.size();
        let with_hole = lanes.iter().filter(|lane| lane.parts.iter().any(is_hole)).count();
        let text = format!(
            "All blocks are freed except blocks that cross a line of a grid of {size} bytes. {with_hole} of {} memories have a hole of {size} bytes.",
            lanes.len()
        );
        steps.push((text, lanes));
        self.fill()?;
        let text = format!(
            "The program allocates blocks of {size} bytes until one more would exceed its limit of {} bytes in use.",
            grouped(self.live)
        );
        steps.push((text, vec![]));
        let (largest, moving) =
            (self.tops.iter().max().copied().unwrap_or(0), self.tops.last().copied().unwrap_or(0));
        let times = |top: usize| top as f64 / self.live as f64;
        Ok(format!(
            "The program has {} bytes in use, and forces an allocator to take up to {:.2} times this memory. An allocator that moves blocks takes {:.2} times this memory.",
            grouped(self.live),
            times(largest),
            times(moving)
        ))
    }
}

impl Program for Robson {
    const KINDS: &'static [&'static str] = &["block of the last size", "older block"];

    fn run(&mut self, command: &Command, steps: &mut Steps) -> Result<String, String> {
        match command {
            Command::Fill { what } => self.begin(what),
            Command::Round => self.round(steps),
            _ => Err("Expected `fill BYTES` or `round`.".to_owned()),
        }
    }
    fn lanes(&self) -> Vec<Lane> {
        // After d doublings, the largest memory is about 1 + d / 2 times the bytes in use.
        let end = self.live * (5 + 2 * Self::max_doublings(self.live.max(2 * UNIT))) / 4;
        let lane = |((name, attack), top): (&(&str, Box<dyn Round>), &usize)| {
            let kind = |range: &Range<usize>| Self::KINDS[usize::from(range.len() < self.size())];
            let ranges = attack.blocks().into_iter().map(|range| (range.clone(), kind(&range)));
            let times = *top as f64 / self.live as f64;
            let part = times * 100.0 / bound(self.live, self.doublings);
            Lane {
                name: (*name).to_owned(),
                says: format!("{times:.2} × the bytes in use, {part:.0} % of the bound"),
                parts: parts_of(ranges.collect(), UNIT, *top, 0..end.max(*top)),
                curve: vec![],
            }
        };
        self.attacks.iter().zip(&self.tops).map(lane).collect()
    }
    fn marks(&self) -> Vec<Line> {
        if self.attacks.is_empty() {
            return vec![];
        }
        let bound = bound(self.live, self.doublings);
        vec![
            Line { at: self.live, name: format!("{} in use", grouped(self.live)) },
            Line { at: (bound * self.live as f64) as usize, name: format!("Robson's bound: {bound:.2} ×") },
        ]
    }
    fn facts(&self) -> Vec<(String, String)> {
        let copied = self.attacks.last().map(|(_, attack)| attack.copied()).unwrap_or(0);
        let taken = |((name, _), top): (&(&str, Box<dyn Round>), &usize)| {
            ((*name).to_owned(), format!("{} bytes", grouped(*top)))
        };
        let mut facts: Vec<_> = self.attacks.iter().zip(&self.tops).map(taken).collect();
        if !facts.is_empty() {
            facts.push(("copied to move blocks".to_owned(), format!("{} bytes", grouped(copied))));
        }
        facts
    }
}
