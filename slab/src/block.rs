//! Memory as a safe, owned value: for callers who must not, or need not, write `unsafe`.

use crate::error::AllocError;
use crate::kmalloc::Kmalloc;
use crate::kmem_cache::KmemCache;
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;
use uslab_buddy::Gfp;

/// An object of a [`KmemCache`] or an allocation of a [`Kmalloc`], freed on the CPU that drops it.
///
/// Its bytes are zero until they are written, and that costs nothing until somebody looks: a block that is never looked
/// at is never touched. (Objects of a cache with a constructor are as constructed or as their last user left them.)
///
/// ```
/// use uslab::{Gfp, Subsystem};
///
/// let mut block = Subsystem::global()?.kmalloc().alloc_block(100, Gfp::KERNEL)?;
/// block.bytes_mut()[..5].copy_from_slice(b"hello");
/// assert_eq!((block.layout().size(), &block.bytes()[..6]), (100, &b"hello\0"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Block<'c> {
    memory: NonNull<u8>,
    layout: Layout,
    origin: Origin<'c>,
    initialised: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Origin<'c> {
    Cache(&'c KmemCache),
    Kmalloc(&'c Kmalloc),
}

// SAFETY: a block owns its memory, and caches may be freed to from any thread.
unsafe impl Send for Block<'_> {}

impl<'c> Block<'c> {
    pub(crate) fn of_cache(cache: &'c KmemCache, gfp: Gfp) -> Result<Self, AllocError> {
        let memory = cache.alloc(gfp)?;
        let geometry = cache.geometry();
        // A geometry's alignment is a power of two, and its sizes are far below the largest layout.
        let layout = Layout::from_size_align(geometry.object_size(), geometry.align())
            .unwrap_or_else(|_| unreachable!("{geometry:?} is no layout"));
        let initialised = gfp.contains(Gfp::ZERO) || cache.cache().has_hooks();
        Ok(Self { memory, layout, origin: Origin::Cache(cache), initialised: Cell::new(initialised) })
    }
    pub(crate) fn of_kmalloc(kmalloc: &'c Kmalloc, layout: Layout, gfp: Gfp) -> Result<Self, AllocError> {
        let memory = kmalloc.alloc_layout(layout, gfp)?;
        let initialised = gfp.contains(Gfp::ZERO);
        Ok(Self { memory, layout, origin: Origin::Kmalloc(kmalloc), initialised: Cell::new(initialised) })
    }

    /// Size and alignment, as asked for.
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// Where it lies.
    pub fn address(&self) -> NonNull<u8> {
        self.memory
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.initialise();
        // SAFETY: the block owns so many bytes, and they are initialised.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }
    /// Its bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.initialise();
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }

    fn initialise(&self) {
        if !self.initialised.replace(true) {
            // SAFETY: the block owns so many bytes; nobody has a reference to them, because whoever hands one out comes
            // here first, and `Cell` keeps other threads out.
            unsafe { self.memory.write_bytes(0, self.layout.size()) };
        }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated from there, owned since, and nobody can name it after this.
        unsafe {
            match self.origin {
                Origin::Cache(cache) => cache.free(self.memory),
                Origin::Kmalloc(kmalloc) => kmalloc.free(self.memory),
            }
        }
    }
}
