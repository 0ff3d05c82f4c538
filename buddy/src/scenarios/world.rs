//! What models and schedules run on: an allocator of a few pages, owners of blocks, and the audit at the end.
//!
//! Every page handed out or taken back changes a cell of its frame, so a page that two threads have fails; under loom a
//! hand-over without happens-before does, too.

use crate::corruption::Handler;
use crate::{Backend, Census, Frame, Order, PageAllocator, PageConfig, Pfn, ZoneKind};
use uslab_magazine::Cpus;
use uslab_magazine::sync::{Arc, AtomicU32, Ordering::Relaxed, planted};

pub(crate) const ONE: Order = Order::ZERO;
pub(crate) fn two() -> Order {
    ONE.up()
}

/// An allocator of `pages` pages in blocks of `order` at most, for two CPUs.
pub(crate) fn allocator_of(
    pages: u32,
    order: Order,
    per_cpu_pages: bool,
    corruption: Handler,
) -> Arc<PageAllocator> {
    zones_of(&[(ZoneKind::Normal, pages)], order, per_cpu_pages, corruption)
}

/// The same with these zones.
pub(crate) fn zones_of(
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
    // SAFETY: the models free what they allocated, once; what is wrong otherwise is what they look for.
    unsafe { pages.free(pfn, order) }
}

/// All is free: the audit finds every page, and after a release they are one block again.
pub(crate) fn audit(pages: &PageAllocator) {
    let checked = || pages.check().unwrap_or_else(|violation| panic!("{violation}"));
    let Census { managed, uncommitted, listed, per_cpu, allocated, lost, .. } = checked();
    assert_eq!(lost, 0, "nothing forked");
    assert_eq!((uncommitted + listed + per_cpu, allocated), (managed, 0), "pages were lost");
    pages.decommit();
    assert_eq!(checked().uncommitted, managed, "coalescing is incomplete");
}

/// An owner with something to initialise.
pub(crate) struct Owner(AtomicU32);

impl Owner {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }
    /// # Safety
    /// The caller owns the frame's block, and whoever looks at its owner is done before this is dropped.
    pub(crate) unsafe fn announce(&self, frame: &Frame) {
        // SAFETY: passed on.
        let announce = || unsafe { frame.set_owner(core::ptr::from_ref(self).cast_mut().cast()) };
        planted!("owner announced before it is initialised" => announce());
        // Relaxed: the announcement publishes it.
        self.0.store(7, Relaxed);
        announce();
    }
    /// Asks for the frame's owner without any right to the block, as a free of a wild pointer does.
    ///
    /// # Safety
    /// The frame's owners are of this kind, and live.
    pub(crate) unsafe fn ask(frame: &Frame) {
        // SAFETY: passed on.
        if let Some(found) = unsafe { frame.owner().cast::<Self>().as_ref() } {
            // Relaxed: initialised before it was announced, and constant since.
            assert_eq!(found.0.load(Relaxed), 7, "an owner is found initialised");
        }
    }
}
