//! The pages of a model: the shipping page allocator, which manages addresses without memory.

use crate::design::NoMemory;
use crate::machine::{MachineError, page_config};
use crate::stream::Stream;
use rustc_hash::FxHashMap;
use uslab_buddy::{Gfp, Order, PageAllocator, PageBlock};
use uslab_magazine::on_cpu;

/// The pages of a machine.
///
/// # Invariants
/// The addresses have no memory behind them. Because of these addresses, no code outside this crate can access the page
/// allocator.
#[derive(Debug)]
pub struct Pages(PageAllocator);

impl Pages {
    /// Creates the pages of a machine with `cpus` CPUs.
    ///
    /// # Errors
    /// Fails if the page allocator cannot simulate the CPUs or the memory.
    pub fn new(cpus: u32) -> Result<Self, MachineError> {
        Ok(Self(PageAllocator::new(page_config(cpus, &[])?)?))
    }
    /// Creates the pages of a stream's machine.
    ///
    /// # Errors
    /// Fails in the same cases as [`new`](Self::new).
    pub fn of(stream: &Stream) -> Result<Self, MachineError> {
        Ok(Self(PageAllocator::new(page_config(stream.cpus, &stream.zones)?)?))
    }
    /// Allocates a block of `2^order` pages.
    pub(crate) fn alloc(&self, cpu: u32, order: u8, migratetype: u8) -> Result<PageBlock<'_>, NoMemory> {
        on_cpu(cpu);
        let order = Order::new(order).ok_or(NoMemory)?;
        self.0.alloc_block(order, gfp(migratetype), None).map_err(|_| NoMemory)
    }
    pub(crate) fn allocator(&self) -> &PageAllocator {
        &self.0
    }
}

/// Returns the flags for a migrate type of the stream: 0 is unmovable, 1 is movable, 2 is reclaimable.
pub(crate) fn gfp(migratetype: u8) -> Gfp {
    match migratetype {
        1 => Gfp::KERNEL | Gfp::MOVABLE,
        2 => Gfp::KERNEL | Gfp::RECLAIMABLE,
        _ => Gfp::KERNEL,
    }
}

/// The pages that all slabs of a model occupy.
#[derive(Debug)]
pub(crate) struct SlabPages<'p> {
    pages: &'p Pages,
    /// The slabs' blocks of pages, by first page.
    blocks: FxHashMap<u32, PageBlock<'p>>,
}

/// The source of pages for slabs. A trait object hides the source's lifetime from the type
/// [`Op`](crate::model::Op).
pub(crate) trait PageSource {
    /// Allocates a block of pages for a slab. Returns the block's first page.
    fn alloc(&mut self, cpu: u32, order: u8) -> Result<u32, NoMemory>;
    /// Frees the block of pages that begins at `page`.
    fn free(&mut self, cpu: u32, page: u32);
}

impl<'p> SlabPages<'p> {
    pub(crate) fn new(pages: &'p Pages) -> Self {
        Self { pages, blocks: FxHashMap::default() }
    }
    pub(crate) fn pages(&self) -> &'p Pages {
        self.pages
    }
    /// Returns `true` if a slab begins at this page.
    pub(crate) fn is_slab_start(&self, page: u32) -> bool {
        self.blocks.contains_key(&page)
    }
    /// Returns the number of pages in slabs.
    pub(crate) fn held(&self) -> u64 {
        self.blocks.values().map(|block| u64::from(block.order().pages())).sum()
    }
}

impl PageSource for SlabPages<'_> {
    fn alloc(&mut self, cpu: u32, order: u8) -> Result<u32, NoMemory> {
        let block = self.pages.alloc(cpu, order, 0)?;
        let page = block.pfn().get();
        self.blocks.insert(page, block);
        Ok(page)
    }
    fn free(&mut self, cpu: u32, page: u32) {
        on_cpu(cpu);
        drop(self.blocks.remove(&page));
    }
}
