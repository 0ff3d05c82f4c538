//! The pool that the experiment on Kenwright's paper studies.

use uslab::pool::{HeapArea, IndexPool, Initialise, SafePool};

pub(super) type LazyPool = SafePool<IndexPool<HeapArea>>;

/// Returns a pool of `blocks` blocks on the heap.
pub(super) fn lazy(size: usize, blocks: usize, policy: Initialise) -> anyhow::Result<LazyPool> {
    let area = HeapArea::new(size * blocks, 64)?;
    Ok(SafePool::new(IndexPool::with_blocks(area, size, blocks, policy)?))
}
