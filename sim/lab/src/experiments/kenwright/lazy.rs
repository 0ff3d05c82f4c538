//! The pool under study.

use uslab::pool::{HeapArea, IndexPool, Initialise, Lender};

pub(super) type Lazy = Lender<IndexPool<HeapArea>>;

/// A pool of so many blocks on the heap.
pub(super) fn lazy(size: usize, blocks: usize, policy: Initialise) -> anyhow::Result<Lazy> {
    let area = HeapArea::new(size * blocks, 64)?;
    Ok(Lender::new(IndexPool::with_blocks(area, size, blocks, policy)?))
}
