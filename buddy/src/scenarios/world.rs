//! Code that loom and shuttle scenarios share: an allocator of a few pages, owners of blocks, and the final audit.
//!
//! Each allocation and free of a page writes a cell in its frame. Two concurrent owners of a page therefore fail the
//! model. Under loom, handing over a page without a happens-before relation also fails the model.

use crate::corruption::Handler;
use crate::{Backend, Census, Frame, Order, PageAllocator, PageConfig, Pfn, ZoneKind};
use uslab_magazine::Cpus;
use uslab_magazine::sync::{Arc, AtomicU32, Ordering::Relaxed, planted};

pub(crate) const ONE: Order = Order::ZERO;
pub(crate) fn order_one() -> Order {
    ONE.up()
}

/// Creates an allocator of `pages` pages, in blocks of at most `order`, for two CPUs.
pub(crate) fn allocator_with_pages(
    pages: u32,
    order: Order,
    per_cpu_pages: bool,
    corruption: Handler,
) -> Arc<PageAllocator> {
    zones_with_pages(&[(ZoneKind::Normal, pages)], order, per_cpu_pages, corruption)
}

pub(crate) fn zones_with_pages(
    zones: &[(ZoneKind, u32)],
    order: Order,
    per_cpu_pages: bool,
    corruption: Handler,
) -> Arc<PageAllocator> {
    let cpus = Cpus::simulated(2, 1).unwrap();
    let config = PageConfig {
        backend: Backend::Heap,
        per_cpu_pages,
        max_order: order,
        pageblock_order: order,
        corruption,
        limited: true,
        ..PageConfig::with_nodes(cpus, vec![zones.to_vec()])
    };
    Arc::new(PageAllocator::new(config).unwrap())
}

pub(crate) fn free(pages: &PageAllocator, pfn: Pfn, order: Order) {
    // SAFETY: the models free what they allocated, once. The models detect any violation of this rule.
    unsafe { pages.free(pfn, order) }
}

/// Checks that all pages of the allocator are free. The audit must find every page, and after a decommit all pages must
/// form one block again.
pub(crate) fn audit(pages: &PageAllocator) {
    let checked = || pages.check().unwrap_or_else(|violation| panic!("{violation}"));
    let Census { managed, uncommitted, listed, per_cpu, allocated, lost, .. } = checked();
    assert_eq!(lost, 0, "the process must not have forked");
    assert_eq!((uncommitted + listed + per_cpu, allocated), (managed, 0), "pages were lost");
    pages.decommit();
    assert_eq!(checked().uncommitted, managed, "coalescing is incomplete");
}

/// The owner of a block in a scenario. The contents of an owner must be initialised before another thread reads the
/// owner.
pub(crate) struct Owner(AtomicU32);

impl Owner {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }
    /// # Safety
    /// The caller must own the frame's block, and other threads must no longer read the block's owner when `self` is
    /// dropped.
    pub(crate) unsafe fn publish(&self, frame: &Frame) {
        // SAFETY: the caller owns the block, and `self` outlives all readers, by this function's contract.
        let publish = || unsafe { frame.set_owner(core::ptr::from_ref(self).cast_mut().cast()) };
        planted!("an owner is published before it is initialised" => publish());
        // Relaxed: the Release in `set_owner` publishes the store.
        self.0.store(7, Relaxed);
        publish();
    }
    /// Reads the owner of a frame without owning the block, as a free of a wild pointer does.
    ///
    /// # Safety
    /// The frame's owner must be null or a live `Owner`.
    pub(crate) unsafe fn check_owner(frame: &Frame) {
        // SAFETY: the owner is null or a live `Owner`, by this function's contract.
        if let Some(found) = unsafe { frame.owner().cast::<Self>().as_ref() } {
            // Relaxed: the value was initialised before the owner was announced, and is constant since.
            assert_eq!(found.0.load(Relaxed), 7, "the owner that a reader finds is initialised");
        }
    }
}
