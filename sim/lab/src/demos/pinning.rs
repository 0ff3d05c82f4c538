//! Pinning: a few long-lived blocks between many short-lived blocks prevent free memory from being merged. The module
//! on pinning also contains the demo, which compares four allocators.

use super::command::Command;
use super::lanes::{Program, Steps, grouped, parts_of};
use super::structure::Lane;
use crate::allocators::heap::{Fit, Order};
use crate::allocators::memory::ConfigError;
use crate::allocators::tlsf::Search;
use crate::allocators::{Allocator, Buddy, Heap, Holes, Tlsf};
use core::alloc::Layout;
use core::fmt;
use core::ops::Range;

/// The separate heap for long-lived blocks gets this fraction of the memory.
pub(crate) const SPACING: usize = 16;

/// Fills an allocator with blocks of equal size.
pub(crate) fn fill<A: Allocator>(allocator: &mut A, layout: Layout) -> Vec<A::Block> {
    core::iter::from_fn(|| allocator.alloc(layout)).collect()
}
/// Frees each block for whose number `stays` returns `false`, and returns the remaining blocks.
pub(crate) fn free_short_lived<A: Allocator>(
    allocator: &mut A,
    blocks: Vec<A::Block>,
    stays: impl Fn(usize) -> bool,
) -> Vec<A::Block> {
    let mut pinned_blocks = Vec::new();
    for (i, block) in blocks.into_iter().enumerate() {
        if stays(i) { pinned_blocks.push(block) } else { allocator.free(block) }
    }
    pinned_blocks
}

/// The size of the demo's memory, and the size of a block.
const MEMORY: usize = 1 << 16;
const SIZE: usize = 256;

/// The rule that determines which blocks of a heap stay allocated.
#[derive(Clone, Copy, Debug)]
enum PinningRule {
    /// One in `n`.
    OneIn(usize),
    /// The first `n`.
    First(usize),
}

impl PinningRule {
    fn has(self, i: usize) -> bool {
        match self {
            Self::OneIn(n) => i.is_multiple_of(n),
            Self::First(n) => i < n,
        }
    }
}

/// A heap that the demo fills with blocks.
trait DemoHeap {
    /// Fills the heap with blocks, and returns their number.
    fn fill(&mut self) -> usize;
    /// Frees all blocks except the blocks that stay allocated.
    fn free(&mut self);
    /// Allocates a block and returns its offset; the next call of `free` frees this block.
    fn alloc(&mut self, bytes: usize) -> Option<usize>;
    fn holes(&self) -> Holes;
    /// Returns the ranges of the blocks in use; the flag of a range is `true` if its block stays allocated.
    fn blocks(&self) -> Vec<(Range<usize>, bool)>;
}

struct FilledHeap<A: Allocator> {
    allocator: A,
    stays: PinningRule,
    blocks: Vec<A::Block>,
    /// The blocks that later requests allocated.
    requested: Vec<A::Block>,
    freed: bool,
}

impl<A: Allocator> DemoHeap for FilledHeap<A> {
    fn fill(&mut self) -> usize {
        self.blocks = fill(&mut self.allocator, Layout::new::<[u8; SIZE]>());
        self.blocks.len()
    }
    fn free(&mut self) {
        let blocks = core::mem::take(&mut self.blocks);
        let (freed, stays) = (self.freed, self.stays);
        self.blocks = free_short_lived(&mut self.allocator, blocks, |i| freed || stays.has(i));
        for block in core::mem::take(&mut self.requested) {
            self.allocator.free(block);
        }
        self.freed = true;
    }
    fn alloc(&mut self, bytes: usize) -> Option<usize> {
        let block = self.allocator.alloc(Layout::from_size_align(bytes, 1).ok()?)?;
        let place = self.allocator.range(&block).start;
        self.requested.push(block);
        Some(place)
    }
    fn holes(&self) -> Holes {
        self.allocator.holes()
    }
    fn blocks(&self) -> Vec<(Range<usize>, bool)> {
        let range = |block| self.allocator.range(block);
        let filled = self.blocks.iter().enumerate();
        let filled = filled.map(|(i, block)| (range(block), self.freed || self.stays.has(i)));
        filled.chain(self.requested.iter().map(|block| (range(block), false))).collect()
    }
}

/// The allocators that the demo compares; the experiment uses the same names.
const NAMES: [&str; 4] = ["first-fit", "best-fit", "tlsf", "buddy"];

fn heap(name: &str, bytes: usize, stays: PinningRule) -> Result<Box<dyn DemoHeap>, ConfigError> {
    fn filled<A: Allocator + 'static>(allocator: A, stays: PinningRule) -> Box<dyn DemoHeap>
    where
        A::Block: 'static,
    {
        Box::new(FilledHeap { allocator, stays, blocks: vec![], requested: vec![], freed: false })
    }
    Ok(match name {
        "first-fit" => filled(Heap::new(bytes, Fit::First, Order::Address)?, stays),
        "best-fit" => filled(Heap::new(bytes, Fit::Best, Order::Address)?, stays),
        "tlsf" => filled(Tlsf::new(bytes, 4, Search::Bitmaps)?, stays),
        _ => filled(Buddy::new(bytes)?, stays),
    })
}

/// One allocator in two variants: with all blocks in one heap, and with a separate heap for the blocks that stay.
struct Contender {
    name: &'static str,
    together: Box<dyn DemoHeap>,
    apart: Box<dyn DemoHeap>,
    long_lived: Box<dyn DemoHeap>,
    /// The offset of the last request in the common heap and in the separate heap; the inner `None` means a refusal,
    /// the outer `None` no request.
    served: [Option<Option<usize>>; 2],
}

impl Contender {
    fn new(name: &'static str, one_in: usize) -> Result<Self, ConfigError> {
        let mut together = heap(name, MEMORY, PinningRule::OneIn(one_in))?;
        let mut apart = heap(name, MEMORY - MEMORY / SPACING, PinningRule::First(0))?;
        let mut long_lived =
            heap(name, MEMORY / SPACING, PinningRule::First(together.fill().div_ceil(one_in)))?;
        apart.fill();
        long_lived.fill();
        long_lived.free();
        Ok(Self { name, together, apart, long_lived, served: [None, None] })
    }
    fn lanes(&self, request: usize) -> [Lane; 2] {
        let kind = |stays: bool| Pinning::KINDS[usize::from(!stays)];
        let parts = |heap: &dyn DemoHeap, begin: usize, end: usize| {
            let shifted =
                |(range, stays): (Range<usize>, bool)| (begin + range.start..begin + range.end, kind(stays));
            parts_of(heap.blocks().into_iter().map(shifted).collect(), 64, end, begin..end)
        };
        let border = MEMORY - MEMORY / SPACING;
        let mut apart = parts(&*self.apart, 0, border);
        apart.extend(parts(&*self.long_lived, border, MEMORY));
        let lane = |says: &str, heap: &dyn DemoHeap, outcome: Option<Option<usize>>, parts| {
            let Holes { count, largest, total } = heap.holes();
            let free = match count {
                0 => "full".to_owned(),
                1 => format!("{} bytes are free in one piece", grouped(total)),
                _ => format!(
                    "{} bytes are free in {count} pieces, the largest {}",
                    grouped(total),
                    grouped(largest)
                ),
            };
            let says_outcome = match outcome {
                Some(Some(place)) => format!("✓ {} bytes at {}; ", grouped(request), grouped(place)),
                Some(None) => format!("✗ no room for {} bytes; ", grouped(request)),
                None => String::new(),
            };
            Lane { name: format!("{}, {says}", self.name), says: says_outcome + &free, parts, curve: vec![] }
        };
        [
            lane("together", &*self.together, self.served[0], parts(&*self.together, 0, MEMORY)),
            lane("apart", &*self.apart, self.served[1], apart),
        ]
    }
}

/// The demo.
#[derive(Default)]
pub(super) struct Pinning {
    contenders: Vec<Contender>,
    /// The figures that were computed after the demo's last free.
    facts: Vec<(String, String)>,
    /// The size of the last request in bytes.
    request: usize,
}

impl fmt::Debug for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinning").field("facts", &self.facts).finish()
    }
}

impl Pinning {
    fn fill(&mut self, one_in: &str) -> Result<String, String> {
        let expected = || "Expected `fill 32`, `fill 64` or `fill 128`.".to_owned();
        let one_in = one_in.parse().ok().filter(|n| [32, 64, 128].contains(n)).ok_or_else(expected)?;
        let contenders = NAMES.into_iter().map(|name| Contender::new(name, one_in));
        let contenders = contenders.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        *self = Self { contenders, ..Self::default() };
        Ok(format!("Each heap is full of blocks of {SIZE} bytes. One in {one_in} is long-lived."))
    }
    fn free(&mut self, steps: &mut Steps) -> Result<String, String> {
        for contender in &mut self.contenders {
            contender.together.free();
            contender.served[0] = None;
        }
        steps.push((
            "Together: the short-lived blocks are freed. Each hole ends at a long-lived block.".to_owned(),
            self.lanes(),
        ));
        for contender in &mut self.contenders {
            contender.apart.free();
            contender.served[1] = None;
        }
        steps.push((
            "Apart: the same blocks are freed, and no long-lived block is between them.".to_owned(),
            vec![],
        ));
        let figures = self.contenders.iter().map(|Contender { name, together, apart, .. }| {
            let (together, apart) = (together.holes(), apart.holes());
            let times = apart.largest as f64 / together.largest.max(1) as f64;
            let found = format!(
                "largest free piece {} bytes together, {} apart: {times:.1} times as large",
                grouped(together.largest),
                grouped(apart.largest)
            );
            ((*name).to_owned(), found)
        });
        self.facts = figures.collect();
        Ok("In one heap, the few long-lived blocks cut the free memory into pieces. In a separate heap, they leave it in one piece.".to_owned())
    }
    fn alloc(&mut self, bytes: usize, steps: &mut Steps) -> Result<String, String> {
        self.request = bytes;
        let mut counts = [0; 2];
        for (i, place) in ["Together", "Apart"].into_iter().enumerate() {
            for contender in &mut self.contenders {
                let heap = if i == 0 { &mut contender.together } else { &mut contender.apart };
                let served = heap.alloc(bytes);
                contender.served[i] = Some(served);
                counts[i] += usize::from(served.is_some());
            }
            let text = format!(
                "{place}: {} of {} heaps have room for {} bytes in one piece.",
                counts[i],
                NAMES.len(),
                grouped(bytes)
            );
            steps.push((text, self.lanes()));
        }
        let [together, apart] = counts;
        Ok(format!(
            "A request for {} bytes: {together} of {} heaps serve it if all blocks are in one heap, and {apart} serve it if long-lived blocks have a separate heap.",
            grouped(bytes),
            NAMES.len()
        ))
    }
}

impl Program for Pinning {
    const KINDS: &'static [&'static str] = &["long-lived", "short-lived"];

    fn run(&mut self, command: &Command, steps: &mut Steps) -> Result<String, String> {
        match command {
            Command::Fill { what } => self.fill(what),
            Command::Free { .. } | Command::Alloc { .. } if self.contenders.is_empty() => {
                Err("No blocks are in use: `fill` allocates them.".to_owned())
            }
            Command::Free { block } if block == "short-lived" => self.free(steps),
            Command::Alloc { bytes: Some(bytes), align: 1 } => self.alloc(*bytes, steps),
            _ => Err("Expected `fill ONE-IN`, `free short-lived` or `alloc BYTES`.".to_owned()),
        }
    }
    fn lanes(&self) -> Vec<Lane> {
        self.contenders.iter().flat_map(|contender| contender.lanes(self.request)).collect()
    }
    fn facts(&self) -> Vec<(String, String)> {
        self.facts.clone()
    }
}
