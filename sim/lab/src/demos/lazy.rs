//! The demo of Kenwright's pool ("Fast Efficient Fixed-Size Memory Pool", 2012), in which a block joins the free list
//! only when it is first needed.

use super::blocks::{join_names, name};
use super::command::Command;
use super::demo::{Demo, capitalized};
use super::scene::{Is, Part, Scene};
use super::structure::{On, Shape, Step, Structure};
use crate::allocators::memory::ConfigError;
use uslab::pool::{HeapArea, IndexPool, Initialise, PoolGuard, SafePool};

const BLOCK: usize = 16;
const BLOCKS: usize = 16;

type Pool = SafePool<IndexPool<HeapArea>>;

/// Kenwright's pool, with its blocks in use.
#[derive(Debug)]
pub(super) struct LazyPoolDemo {
    /// The demo leaks the pool, because the blocks borrow from it. Each run of the demo leaks a few hundred bytes.
    pool: &'static Pool,
    live: Vec<(usize, PoolGuard<'static, IndexPool<HeapArea>>)>,
    /// The address of the pool's first block.
    base: Option<usize>,
    births: usize,
    /// The steps of the last command.
    steps: Vec<Step>,
}

impl LazyPoolDemo {
    pub(super) fn new() -> Result<Self, ConfigError> {
        let area = HeapArea::new(BLOCK * BLOCKS, 64)?;
        let pool = SafePool::new(IndexPool::with_blocks(area, BLOCK, BLOCKS, Initialise::EachAllocation)?);
        Ok(Self { pool: Box::leak(Box::new(pool)), live: vec![], base: None, births: 0, steps: vec![] })
    }

    fn note(&mut self, text: String, highlight: On) {
        self.steps.push(Step::new(text, highlight));
    }
    /// Returns the index of a block in the pool. The first block of a new pool is block 0.
    fn index(&self, block: &PoolGuard<'_, IndexPool<HeapArea>>) -> usize {
        (block.address().addr() - self.base.unwrap_or(block.address().addr())) / BLOCK
    }
}

impl Demo for LazyPoolDemo {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        let before = self.pool.state();
        self.steps.clear();
        match command {
            Command::Alloc { bytes: None, .. } => {
                let block = self.pool.alloc().map_err(|_| format!("All {BLOCKS} blocks are in use."))?;
                self.base.get_or_insert(block.address().addr());
                let (name, index) = (name(self.births), self.index(&block));
                self.live.push((self.births, block));
                self.births += 1;
                let new_state = self.pool.state();
                if new_state.initialised > before.initialised {
                    let joins = before.initialised;
                    let text = format!(
                        "Block {joins} joins the chain: the number {} is written into it.",
                        joins + 1
                    );
                    self.note(text, On::Put { at: joins as usize * BLOCK, bytes: BLOCK });
                }
                let text = format!("{name} gets the head of the chain, block {index}.");
                self.note(text, On::Take { at: index * BLOCK, bytes: BLOCK });
                let joined_text = match new_state.initialised - before.initialised {
                    0 => "All blocks have already joined the chain.".to_owned(),
                    _ => format!(
                        "Block {} joins the chain of free blocks: it is written for the first time.",
                        before.initialised
                    ),
                };
                let next_text = if new_state.free > 0 {
                    format!("The next free block is block {}.", new_state.next)
                } else {
                    "No block is free.".to_owned()
                };
                Ok(format!("{name} is block {index}. {joined_text} {next_text}"))
            }
            Command::Alloc { .. } => {
                Err(format!("Expected `alloc` without a size: all blocks have {BLOCK} bytes."))
            }
            Command::Free { block } => {
                let Some(position) = self.live.iter().position(|(birth, _)| name(*birth) == *block) else {
                    let live: Vec<_> = self.live.iter().map(|(birth, _)| name(*birth)).collect();
                    return Err(format!("Unknown block {block}; in use: {}.", join_names(&live)));
                };
                let (_, guard) = self.live.remove(position);
                let index = self.index(&guard);
                guard.free().map_err(|error| capitalized(&error.to_string()))?;
                let text =
                    format!("Block {index} becomes the head: the number {} is written into it.", before.next);
                self.note(text, On::Put { at: index * BLOCK, bytes: BLOCK });
                Ok(format!(
                    "{block} is free: block {index} holds the number {}, and is the next free block.",
                    before.next
                ))
            }
            _ => Err("Expected `alloc` or `free BLOCK`.".to_owned()),
        }
    }

    fn scene(&self) -> Scene {
        let state = self.pool.state();
        let block_state = |index: usize| {
            let live = self.live.iter().find(|(_, block)| self.index(block) == index);
            match live {
                Some((birth, _)) => Is::Used(name(*birth)),
                None if index < state.initialised as usize => Is::Free,
                None => Is::Untouched,
            }
        };
        let parts = (0..BLOCKS).map(|index| Part::of(index * BLOCK..(index + 1) * BLOCK, block_state(index)));
        let facts =
            [("free blocks", state.free), ("in the chain so far", state.initialised), ("next", state.next)];
        let facts = facts.map(|(name, n)| (name.to_owned(), n.to_string()));
        let shape = Shape::Chain {
            slot: BLOCK,
            list: self.pool.free_chain().into_iter().map(|block| block as usize).collect(),
            opened: state.initialised as usize,
            end: Some(state.initialised as usize),
        };
        let structure = Some(Structure::new(shape, self.steps.clone()));
        Scene { parts: parts.collect(), structure, facts: facts.into(), ..Scene::default() }
    }
}
