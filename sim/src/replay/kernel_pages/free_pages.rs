//! The set of free pages, which determines the sizes of the free blocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use uslab_buddy::MAX_ORDER;

pub(super) const ORDERS: usize = MAX_ORDER as usize + 1;

/// The number of pages in a block of the largest order. No block crosses the border between two chunks of the
/// largest block's size.
pub(super) const CHUNK: usize = 1 << MAX_ORDER;
const WORDS: usize = CHUNK / 64;

/// The set of free pages, and the set of pages with events.
#[derive(Debug, Default)]
pub(super) struct FreePages {
    chunks: BTreeMap<u64, Chunk>,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    /// The pages on a free list.
    free: [u64; WORDS],
    /// The pages with an event anywhere in the trace.
    known: [u64; WORDS],
}

impl FreePages {
    /// Creates the set from all pages with events; the `bool` of a page is `true` if the page was free when
    /// the trace began.
    pub(super) fn of(known: &[(u64, bool)]) -> Self {
        let mut pages = Self::default();
        for &(pfn, free) in known {
            pages.set(pfn, free);
            let chunk = pages.chunks.entry(pfn / CHUNK as u64).or_default();
            chunk.known[pfn as usize % CHUNK / 64] |= 1 << (pfn % 64);
        }
        pages
    }

    /// Marks a page as free or in use; returns `true` if the page was free before the call.
    pub(super) fn set(&mut self, pfn: u64, free: bool) -> bool {
        let chunk = self.chunks.entry(pfn / CHUNK as u64).or_default();
        let (word, bit) = (&mut chunk.free[pfn as usize % CHUNK / 64], 1 << (pfn % 64));
        let was = *word & bit != 0;
        *word = if free { *word | bit } else { *word & !bit };
        was
    }

    /// Returns the number of free blocks within a range of pages, for each order from 0 to `most`.
    pub(super) fn blocks(&self, pages: &Range<u64>, most: u8) -> [u64; ORDERS] {
        let mut sum = [0; ORDERS];
        for (number, chunk) in self.chunks.range(chunks(pages)) {
            let within = |at: usize| {
                let first = number * CHUNK as u64 + at as u64 * 64;
                let below = |end: u64| match end.saturating_sub(first) {
                    64.. => u64::MAX,
                    bits => (1 << bits) - 1,
                };
                chunk.free[at] & below(pages.end) & !below(pages.start)
            };
            sum.iter_mut().zip(blocks(&std::array::from_fn(within), most)).for_each(|(sum, n)| *sum += n);
        }
        sum
    }

    /// The kernel's table has only the number of free blocks of each order. The function chooses addresses for the free
    /// blocks that the table counts, and marks their pages without events as free.
    ///
    /// A free block cannot contain a page that is known to be in use. If some pages of a block are known to
    /// be free, the block's first page must be one of them. When the kernel splits a block, it takes pages from the
    /// lower half, so the first page leaves before the others. If no page of a block is known to be free, its buddy
    /// must have pages with events, because the block remains of a larger, split block. The table gives the number of
    /// blocks of each order. The function places blocks from the largest order to the smallest. Among several possible
    /// addresses, the function chooses the one whose block contains the most known free pages.
    ///
    /// Blocks that are far from all events get no address. A block without an address never changes and never
    /// merges.
    pub(super) fn place(&mut self, pages: &Range<u64>, table: &[u64]) {
        let most = table.len().saturating_sub(1).min(MAX_ORDER.into()) as u8;
        let chunk_pages = |number: u64| number * CHUNK as u64..(number + 1) * CHUNK as u64;
        let numbers = self.chunks.range(chunks(pages)).map(|(&number, _)| number);
        let mut blocks: Vec<u64> =
            numbers.flat_map(|number| chunk_pages(number).step_by(1 << most)).collect();
        for (order, &wanted) in (0..=most).zip(table).rev() {
            let size = 1 << order;
            let (mut whole, mut candidates, mut others) = (0, Vec::new(), Vec::new());
            for block in blocks {
                if block + size <= pages.start || pages.end <= block {
                    continue;
                }
                let inside = pages.start <= block && block + size <= pages.end;
                let free = self.count(block, order, |chunk, at| chunk.free[at]);
                let in_use = self.count(block, order, |chunk, at| chunk.known[at] & !chunk.free[at]);
                let is_remainder =
                    || order < most && self.count(block ^ size, order, |chunk, at| chunk.known[at]) > 0;
                let is_first_free = || self.count(block, 0, |chunk, at| chunk.free[at]) > 0;
                if inside && free == size {
                    whole += 1;
                } else if inside && in_use == 0 && if free > 0 { is_first_free() } else { is_remainder() } {
                    candidates.push((Reverse(free), block));
                } else if !inside || free + in_use > 0 {
                    others.push(block);
                }
            }
            candidates.sort_unstable();
            let rest =
                candidates.split_off(wanted.saturating_sub(whole).min(candidates.len() as u64) as usize);
            for (_, block) in candidates {
                (block..block + size).for_each(|pfn| _ = self.set(pfn, true));
            }
            others.extend(rest.into_iter().map(|(_, block)| block));
            blocks = match order {
                0 => break,
                _ => others.into_iter().flat_map(|block| [block, block + size / 2]).collect(),
            };
        }
    }

    /// Returns the number of bits that are set in the words of a block.
    fn count(&self, block: u64, order: u8, bits: impl Fn(&Chunk, usize) -> u64) -> u64 {
        let Some(chunk) = self.chunks.get(&(block / CHUNK as u64)) else { return 0 };
        let at = block as usize % CHUNK;
        let (words, mask) = match order {
            ..6 => (1, ((1 << (1 << order)) - 1) << (at % 64)),
            6.. => (1 << (order - 6), u64::MAX),
        };
        (at / 64..at / 64 + words).map(|at| u64::from((bits(chunk, at) & mask).count_ones())).sum()
    }
}

/// Returns the numbers of the chunks that contain the given pages.
fn chunks(pages: &Range<u64>) -> Range<u64> {
    pages.start / CHUNK as u64..pages.end.div_ceil(CHUNK as u64)
}

fn blocks(free: &[u64; WORDS], most: u8) -> [u64; ORDERS] {
    /// For each order, a mask of the bits in a word at which a block of this order can begin.
    const FIRST: [u64; 6] = [
        u64::MAX,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
    ];
    let mut whole = [0; ORDERS + 1];
    for word in free {
        let mut groups = *word;
        for (order, (whole, first)) in whole.iter_mut().zip(FIRST).enumerate() {
            if order > 0 {
                groups &= groups >> (1 << (order - 1)) & first;
            }
            *whole += u64::from(groups.count_ones());
        }
    }
    for (order, whole) in whole.iter_mut().enumerate().take(ORDERS).skip(FIRST.len()) {
        let groups = free.chunks(1 << (order - FIRST.len()));
        *whole = groups.filter(|words| words.iter().all(|word| *word == u64::MAX)).count() as u64;
    }
    whole[usize::from(most) + 1..].fill(0);
    // A completely free block contains two such blocks of the order below, which are not on a list.
    std::array::from_fn(|order| whole[order] - 2 * whole[order + 1])
}
