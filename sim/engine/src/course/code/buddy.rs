//! The lab `merge`, in which a student writes the code that merges free buddies.

use super::reference::merge::Exercise;
use super::run::{Failure, POLICY_INVARIANT, panic_text};
use super::verdict::{Check, Verdict};
use crate::course::questions::ask::random;
use std::collections::BTreeSet;
use uslab_lab::allocators::Holes;
use uslab_lab::demos::{Is, Part, Scene};
use uslab_magazine::sync::catch_panic;

const LAB: &str = "merge";
/// The order of the single block that initially covers the whole memory.
const ORDER: u8 = 10;
/// The size of a page in bytes.
const PAGE: usize = 4096;
/// The number of operations that are shown before a failure.
const SHOWN_OPERATIONS: usize = 40;

/// The exercise's interface: how blocks are split and merged.
pub trait Buddy {
    /// Takes a block of `2^order` pages from the free lists. Returns the first page of the block, or `None` if no free
    /// block is large enough.
    fn alloc(lists: &mut FreeLists, order: u8) -> Option<u32>;
    /// Frees the block of `2^order` pages that begins at `page`.
    fn free(lists: &mut FreeLists, page: u32, order: u8);
}

/// The free blocks of a buddy allocator, listed by order. Each call except [`order`](Self::order) counts as one list
/// access.
#[derive(Clone, Debug)]
pub struct FreeLists {
    free: Vec<BTreeSet<u32>>,
    list_accesses: u64,
}

impl FreeLists {
    fn new() -> Self {
        let mut free = vec![BTreeSet::new(); usize::from(ORDER) + 1];
        free[usize::from(ORDER)].insert(0);
        Self { free, list_accesses: 0 }
    }
    /// Returns the order of the largest possible block.
    pub fn order(&self) -> u8 {
        ORDER
    }
    /// Takes the free block that has the lowest address among the blocks of an order. Returns `None` if the list is
    /// empty.
    ///
    /// # Panics
    /// Panics if the order is above the largest.
    pub fn pop(&mut self, order: u8) -> Option<u32> {
        self.list_accesses += 1;
        self.free[usize::from(order)].pop_first()
    }
    /// Adds a free block to the list of its order.
    ///
    /// # Panics
    /// Panics if the order is above the largest.
    pub fn push(&mut self, page: u32, order: u8) {
        self.list_accesses += 1;
        self.free[usize::from(order)].insert(page);
    }
    /// Takes the free block that begins at `page` and has exactly this order. Returns `false` if no free block of this
    /// order begins at `page`.
    ///
    /// # Panics
    /// Panics if the order is above the largest.
    pub fn remove(&mut self, page: u32, order: u8) -> bool {
        self.list_accesses += 1;
        self.free[usize::from(order)].remove(&page)
    }
    /// Returns the free blocks, each with its order.
    fn blocks(&self) -> impl Iterator<Item = (u32, u8)> {
        (0..).zip(&self.free).flat_map(|(order, free)| free.iter().map(move |page| (*page, order)))
    }
}

/// A request to the buddy allocator.
#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc(u8),
    /// Frees a block that is in use.
    Free(u64),
}

/// Generates requests in phases: many small blocks, blocks of mixed sizes, and few large blocks.
fn ops(seed: u32) -> Vec<Op> {
    let mut random = random(seed, "stream of merge");
    let mut ops = vec![];
    for _ in 0..12 {
        let largest = [1, 4, 8][random.of(0, 2) as usize];
        let allocs = random.of(30, 70);
        for _ in 0..random.of(150, 300) {
            ops.push(if random.of(0, 99) < allocs {
                Op::Alloc(random.of(0, largest) as u8)
            } else {
                Op::Free(random.of(0, u64::from(u32::MAX)))
            });
        }
    }
    ops
}

/// A violated invariant, and the first pages of the blocks that violate it.
#[derive(Debug)]
struct BrokenInvariant {
    text: String,
    pages: Vec<u32>,
}

impl From<String> for BrokenInvariant {
    fn from(text: String) -> Self {
        Self { text, pages: vec![] }
    }
}

/// The state of the memory while requests run.
struct MemoryState {
    lists: FreeLists,
    /// The blocks in use, each with its first page and order; the oldest block comes first.
    allocated: Vec<(u32, u8)>,
    /// The number of list accesses during frees.
    list_accesses: u64,
}

impl MemoryState {
    fn new() -> Self {
        Self { lists: FreeLists::new(), allocated: vec![], list_accesses: 0 }
    }
    /// Runs a request and returns a description of its effect.
    fn run<B: Buddy>(&mut self, op: Op) -> Result<String, BrokenInvariant> {
        let text = match op {
            Op::Alloc(order) => {
                let has_large_block = self.lists.blocks().any(|(_, free)| free >= order);
                match B::alloc(&mut self.lists, order) {
                    Some(page) => {
                        self.allocated.push((page, order));
                        format!("A block of order {order} is allocated at page {page}.")
                    }
                    None if has_large_block => {
                        return Err(format!(
                            "a block of order {order} is refused, although a free block is large enough"
                        )
                        .into());
                    }
                    None => {
                        format!("A block of order {order} is refused: no free block is large enough.")
                    }
                }
            }
            Op::Free(_) if self.allocated.is_empty() => "No block is in use: nothing is freed.".to_owned(),
            Op::Free(pick) => {
                let (page, order) = self.allocated.remove((pick % self.allocated.len() as u64) as usize);
                let before = self.lists.list_accesses;
                B::free(&mut self.lists, page, order);
                self.list_accesses += self.lists.list_accesses - before;
                format!("The block of order {order} at page {page} is freed.")
            }
        };
        self.check_invariants().map(|()| text)
    }
    /// Checks two invariants: each page is in exactly one block, and no block and its buddy are both free.
    fn check_invariants(&self) -> Result<(), BrokenInvariant> {
        let broken_invariant = |pages: &[u32], text| Err(BrokenInvariant { text, pages: pages.to_vec() });
        let mut owner = vec![None; 1 << ORDER];
        let blocks = self
            .lists
            .blocks()
            .map(|block| (block, "free"))
            .chain(self.allocated.iter().map(|block| (*block, "in use")));
        for ((page, order), state) in blocks {
            let pages = 1_u32 << order;
            if !page.is_multiple_of(pages) || page + pages > 1 << ORDER {
                return broken_invariant(
                    &[page],
                    format!(
                        "the block of order {order} at page {page}, which is {state}, is not aligned to its order"
                    ),
                );
            }
            for page_in_block in page..page + pages {
                if let Some(other_state) = owner[page_in_block as usize].replace(state) {
                    return broken_invariant(
                        &[page_in_block],
                        format!(
                            "page {page_in_block} is in two blocks: one is {state}, the other is {other_state}"
                        ),
                    );
                }
            }
        }
        if let Some(page_without_block) = owner.iter().position(Option::is_none) {
            return Err(format!("page {page_without_block} is in no block").into());
        }
        for (page, order) in self.lists.blocks() {
            let buddy = page ^ (1 << order);
            if order < ORDER && page < buddy && self.lists.free[usize::from(order)].contains(&buddy) {
                return broken_invariant(
                    &[page, buddy],
                    format!(
                        "the blocks of order {order} at pages {page} and {buddy} are buddies, both free, and not merged"
                    ),
                );
            }
        }
        Ok(())
    }
    fn scene(&self, text: &str, refused: bool) -> Scene {
        let part = |(page, order): (u32, u8), is| Part { at: page as usize * PAGE, bytes: PAGE << order, is };
        let mut parts: Vec<_> = self.lists.blocks().map(|block| part(block, Is::Free)).collect();
        let holes = Holes {
            count: parts.len(),
            largest: parts.iter().map(|part| part.bytes).max().unwrap_or(0),
            total: parts.iter().map(|part| part.bytes).sum(),
        };
        parts.extend(self.allocated.iter().map(|block| part(*block, Is::Used(format!("{}", block.1)))));
        parts.sort_by_key(|part| part.at);
        Scene { said: text.to_owned(), refused, parts, holes, ..Scene::default() }
    }
}

/// Runs all requests on a student's allocator. Returns the number of list accesses during frees; returns the request's
/// index if a request failed.
fn run<B: Buddy>(ops: &[Op]) -> Result<u64, (usize, BrokenInvariant)> {
    let mut memory = MemoryState::new();
    for (index, op) in ops.iter().enumerate() {
        let result = catch_panic(|| memory.run::<B>(*op));
        result
            .unwrap_or_else(|panic| Err(panic_text(&*panic).into()))
            .map_err(|violation| (index, violation))?;
    }
    Ok(memory.list_accesses)
}

/// Runs a student's code that splits and merges blocks, and returns a verdict on it.
pub fn merge<B: Buddy>(seed: u32) -> Verdict {
    let ops = ops(seed);
    let reference = run::<Exercise>(&ops).expect("the reference solution must serve every request");
    let (checks, failure) = match run::<B>(&ops) {
        Ok(list_accesses) => {
            let invariants = Check::new(
                POLICY_INVARIANT.replace("object", "block"),
                format!("in {} operations", ops.len()),
                true,
            );
            let bound = 2.0 * reference as f64;
            (vec![invariants, Check::at_most("list accesses during all frees", list_accesses, bound)], None)
        }
        Err((failed, violation)) => {
            let description = format!("operation {}: {}", failed + 1, violation.text);
            (
                vec![Check::new(
                    "each page is in exactly one block, and free buddies are merged",
                    description,
                    false,
                )],
                Some(failure_from_violation::<B>(&ops, failed, violation)),
            )
        }
    };
    let failure = failure.and_then(|failure| serde_json::to_value(failure).ok());
    Verdict { lab: LAB.to_owned(), seed, checks, failure }
}

fn failure_from_violation<B: Buddy>(ops: &[Op], at: usize, violation: BrokenInvariant) -> Failure {
    let (mut memory, mut scenes) = (MemoryState::new(), vec![]);
    for (n, op) in ops[..=at].iter().enumerate() {
        let result = catch_panic(|| memory.run::<B>(*op));
        let result = result.unwrap_or_else(|panic| Err(panic_text(&*panic).into()));
        if n + SHOWN_OPERATIONS > at {
            let refused = result.is_err();
            scenes.push(memory.scene(&result.unwrap_or_else(|violation| violation.text), refused));
        }
    }
    Failure {
        lab: LAB.to_owned(),
        title: format!("{LAB}: operation {}", at + 1),
        wrong: violation.text,
        at: scenes.len() - 1,
        blocks: violation.pages.iter().map(|page| *page as usize * PAGE).collect(),
        scenes,
        ..Failure::default()
    }
}
