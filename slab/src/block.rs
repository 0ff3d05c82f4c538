//! Blocks: owned memory that callers can use without `unsafe`.

use crate::cache::kmem_cache::KmemCache;
use crate::cache::mempool::Mempool;
use crate::cache::prefill::Prefilled;
use crate::error::AllocError;
use crate::size::kmalloc::Kmalloc;
#[cfg(not(any(loom, shuttle)))]
use crate::size::malloc::Malloc;
use core::alloc::Layout;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use uslab_buddy::Gfp;
use uslab_magazine::sync::abandoned;

/// An owned object of a [`KmemCache`] or [`Mempool`], or an owned allocation of a [`Kmalloc`] or [`Malloc`].
///
/// Dropping the block frees the memory on the CPU that drops it. A block zeroes its bytes when they are first read, so
/// unused memory stays untouched. An object of a cache with a constructor is not zeroed: it contains what the
/// constructor or its last user wrote.
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
    /// Number of leading bytes that are initialised.
    initialised: Cell<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Origin<'c> {
    Cache(&'c KmemCache),
    Kmalloc(&'c Kmalloc),
    #[cfg(not(any(loom, shuttle)))]
    Malloc(&'c Malloc),
    Mempool(&'c Mempool),
}

// SAFETY: a block owns its memory, and objects may be freed from any thread.
unsafe impl Send for Block<'_> {}

impl<'c> Block<'c> {
    fn alloc_from_cache(cache: &'c KmemCache, gfp: Gfp) -> Result<Self, AllocError> {
        // SAFETY: `object` was just allocated from `cache` with `gfp`, and is not shared.
        cache.alloc(gfp).map(|object| unsafe { Self::from_cache_object(cache, object, gfp) })
    }
    /// # Safety
    /// `object` must have been allocated from `cache` with `gfp`, and the caller must own it.
    unsafe fn from_cache_object(cache: &'c KmemCache, object: NonNull<u8>, gfp: Gfp) -> Self {
        Self::from_cache(cache, object, gfp, Origin::Cache(cache))
    }
    /// # Safety
    /// `object` must have been allocated from `pool` with `gfp`, and the caller must own it.
    unsafe fn from_mempool_object(pool: &'c Mempool, object: NonNull<u8>, gfp: Gfp) -> Self {
        Self::from_cache(pool.cache(), object, gfp, Origin::Mempool(pool))
    }
    fn from_cache(cache: &KmemCache, object: NonNull<u8>, gfp: Gfp, origin: Origin<'c>) -> Self {
        let geometry = cache.geometry();
        // A geometry's alignment is a power of two, and its sizes are far below the largest layout.
        let layout = Layout::from_size_align(geometry.object_size(), geometry.align())
            .unwrap_or_else(|_| unreachable!("{geometry:?} is not a valid layout"));
        let initialised = gfp.contains(Gfp::ZERO) || cache.cache().has_hooks();
        Self::new(object, layout, origin, initialised)
    }
    fn alloc_from_kmalloc(kmalloc: &'c Kmalloc, layout: Layout, gfp: Gfp) -> Result<Self, AllocError> {
        let memory = kmalloc.alloc_layout(layout, gfp)?;
        Ok(Self::new(memory, layout, Origin::Kmalloc(kmalloc), gfp.contains(Gfp::ZERO)))
    }
    #[cfg(not(any(loom, shuttle)))]
    fn alloc_from_malloc(malloc: &'c Malloc, layout: Layout, gfp: Gfp) -> Result<Self, AllocError> {
        let memory = malloc.alloc(layout, gfp)?;
        Ok(Self::new(memory, layout, Origin::Malloc(malloc), gfp.contains(Gfp::ZERO)))
    }
    fn new(memory: NonNull<u8>, layout: Layout, origin: Origin<'c>, initialised: bool) -> Self {
        let initialised = Cell::new(if initialised { layout.size() } else { 0 });
        Self { memory, layout, origin, initialised }
    }

    /// Converts a block of `cache` into a raw object that the caller owns. A block of another cache is returned
    /// unchanged.
    fn into_object(self, cache: &KmemCache) -> Result<NonNull<u8>, Self> {
        match self.origin {
            Origin::Cache(own) if core::ptr::eq(own.cache(), cache.cache()) => {
                Ok(ManuallyDrop::new(self).memory)
            }
            _ => Err(self),
        }
    }

    /// Requested size and alignment of the block.
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// Address of the block.
    pub fn address(&self) -> NonNull<u8> {
        self.memory
    }
    /// Number of usable bytes: the requested size rounded up to the allocator's size; 0 for an empty layout.
    ///
    /// A call costs as much as [`Malloc::usable_size`].
    pub fn usable_size(&self) -> usize {
        match self.origin {
            Origin::Cache(cache) => cache.geometry().usable(),
            Origin::Mempool(pool) => pool.cache().geometry().usable(),
            // SAFETY: `kmalloc` allocated the memory, and only the block's drop frees it.
            Origin::Kmalloc(kmalloc) => unsafe { kmalloc.usable_size(self.memory) },
            #[cfg(not(any(loom, shuttle)))]
            // SAFETY: `malloc` allocated the memory, and only the block's drop frees it.
            Origin::Malloc(malloc) => unsafe { malloc.usable_size(self.memory) },
        }
    }
    /// Returns all bytes of the block.
    pub fn bytes(&self) -> &[u8] {
        self.front(self.layout.size())
    }
    /// Returns all bytes of the block as a mutable slice.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.front_mut(self.layout.size())
    }
    /// Returns the first `n` bytes of the block, or the whole block if it is shorter. The call does not touch the bytes
    /// after the first `n`.
    pub fn front(&self, n: usize) -> &[u8] {
        let n = self.initialise(n);
        // SAFETY: the block owns the first `n` bytes, which are initialised.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr(), n) }
    }
    /// Returns the first `n` bytes of the block as a mutable slice, or the whole block if it is shorter.
    pub fn front_mut(&mut self, n: usize) -> &mut [u8] {
        let n = self.initialise(n);
        // SAFETY: the block owns the first `n` bytes, which are initialised, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), n) }
    }

    /// Writes `bytes` to the start of the block, and does not zero the overwritten bytes first.
    ///
    /// # Panics
    /// Panics if `bytes` is longer than the block.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.layout.size(), "{} bytes for {}", bytes.len(), self.layout.size());
        // SAFETY: the block is at least as long as `bytes`. Its borrow is exclusive, so `bytes` does not overlap it.
        unsafe { self.memory.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.initialised.set(self.initialised.get().max(bytes.len()));
    }

    /// Zeroes the uninitialised bytes among the block's first `n` bytes. Returns `n` or the block's size, whichever is
    /// smaller.
    fn initialise(&self, n: usize) -> usize {
        let (n, done) = (n.min(self.layout.size()), self.initialised.get());
        if done < n {
            // SAFETY: the block owns the bytes from `done` to `n`. No reference to bytes beyond `done` exists, because
            // each method that returns a reference initialises its bytes first, and `Cell` excludes other threads.
            unsafe { self.memory.add(done).write_bytes(0, n - done) };
            self.initialised.set(n);
        }
        n
    }
}

/// Borrows the block's bytes, for generic owners such as `bytes::Bytes::from_owner`.
impl AsRef<[u8]> for Block<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl KmemCache {
    /// Allocates an object as an owned, safe [`Block`].
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_block(&self, gfp: Gfp) -> Result<Block<'_>, AllocError> {
        Block::alloc_from_cache(self, gfp)
    }

    /// Allocates `n` objects as owned, safe [`Block`]s, as [`alloc_bulk`](Self::alloc_bulk) does.
    ///
    /// # Errors
    /// Fails as [`alloc_bulk`](Self::alloc_bulk) does, or with [`AllocError::Refused`] if the heap has no room for the
    /// `Vec`.
    pub fn alloc_blocks(&self, gfp: Gfp, n: usize) -> Result<Vec<Block<'_>>, AllocError> {
        // SAFETY: `object` was just allocated from this cache with `gfp`, and is not shared.
        self.alloc_owned_objects(gfp, n, |object| unsafe { Block::from_cache_object(self, object, gfp) })
    }
}

impl<'c> Prefilled<'c> {
    /// Takes an object from the prefilled stock as an owned, safe [`Block`]. Dropping the block frees the object to the
    /// cache.
    pub fn alloc_block(&mut self) -> Option<Block<'c>> {
        let object = self.alloc()?;
        // SAFETY: `object` was just allocated from this cache with these flags.
        Some(unsafe { Block::from_cache_object(self.cache, object, self.gfp) })
    }

    /// Returns a block to the prefilled stock. A block of another cache is freed to that cache.
    pub fn free_block(&mut self, block: Block<'_>) {
        if let Ok(object) = block.into_object(self.cache) {
            // SAFETY: `object` belongs to this cache, and the block owned it.
            unsafe { self.free(object) };
        }
    }
}

impl Mempool {
    /// Allocates an owned, safe [`Block`], which frees its object to the pool when it is dropped.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_block(&self, gfp: Gfp) -> Result<Block<'_>, AllocError> {
        let object = self.alloc(gfp)?;
        // SAFETY: `object` was just allocated from this pool with `gfp`.
        Ok(unsafe { Block::from_mempool_object(self, object, gfp) })
    }
}

impl Kmalloc {
    /// Allocates `size` bytes as an owned, safe [`Block`], with the alignment of the size class.
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_block(&self, size: usize, gfp: Gfp) -> Result<Block<'_>, AllocError> {
        let layout = Layout::from_size_align(size, 1).map_err(|_| AllocError::TooLarge)?;
        Block::alloc_from_kmalloc(self, layout, gfp)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Malloc {
    /// Allocates memory for `layout` as an owned, safe [`Block`].
    ///
    /// # Errors
    /// Fails as [`alloc`](Self::alloc) does.
    pub fn alloc_block(&self, layout: Layout, gfp: Gfp) -> Result<Block<'_>, AllocError> {
        Block::alloc_from_malloc(self, layout, gfp)
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        if abandoned() {
            return;
        }
        // SAFETY: `origin` allocated the memory, the block owned it since, and nothing refers to it after this drop.
        unsafe {
            match self.origin {
                Origin::Cache(cache) => cache.free(self.memory),
                Origin::Kmalloc(kmalloc) => kmalloc.free(self.memory),
                #[cfg(not(any(loom, shuttle)))]
                Origin::Malloc(malloc) => malloc.free_sized(self.memory, self.layout),
                Origin::Mempool(pool) => pool.free(self.memory),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Config, Subsystem};

    #[test]
    fn block_reports_its_usable_size() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("odd", 60).align(8).build_in(&subsystem).unwrap();
        let malloc = Malloc::new(&subsystem).unwrap();
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let malloc_size = |size| malloc.alloc_block(layout(size), Gfp::KERNEL).unwrap().usable_size();
        assert_eq!(cache.alloc_block(Gfp::KERNEL).unwrap().usable_size(), 64);
        assert_eq!(subsystem.kmalloc().alloc_block(65, Gfp::KERNEL).unwrap().usable_size(), 96);
        assert_eq!([0, 65, 8193, 32_769].map(malloc_size), [0, 80, 10_240, 65_536]);
    }

    #[test]
    fn write_to_a_block_does_not_zero_it_beforehand() {
        let subsystem = Subsystem::new(Config::default()).unwrap();
        let cache = KmemCache::builder("written", 64).build_in(&subsystem).unwrap();
        cache.alloc_block(Gfp::KERNEL).unwrap().bytes_mut().fill(7);
        let mut block = cache.alloc_block(Gfp::KERNEL).unwrap();
        block.write(b"hello");
        block.write(b"J");
        assert_eq!((block.front(5), &block.as_ref()[5..]), (&b"Jello"[..], &[0; 59][..]));
        assert!(uslab_magazine::sync::catch_panic(|| block.write(&[1; 65])).is_err());
        assert_eq!(block.front(6), b"Jello\0");
    }

    #[test]
    fn block_zeroes_only_newly_exposed_bytes() {
        uslab_magazine::on_cpu(0);
        let pages = uslab_buddy::PageConfig::default_for(uslab_magazine::Cpus::simulated(1, 1).unwrap());
        let subsystem = Subsystem::new(Config::new(pages.limit(64 << 20))).unwrap();
        let cache = KmemCache::builder("front", 64).build_in(&subsystem).unwrap();
        cache.alloc_block(Gfp::KERNEL).unwrap().bytes_mut().fill(7);
        let mut block = cache.alloc_block(Gfp::KERNEL).unwrap();
        // SAFETY: the address is inside the object.
        let last = unsafe { block.address().add(63) };
        block.front_mut(8).fill(1);
        // SAFETY: the object's last user wrote its last byte.
        assert_eq!(unsafe { last.read() }, 7, "only the front of the memory was written");
        assert_eq!(block.front(16), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        block.front_mut(32).fill(2);
        assert_eq!((block.front(4), block.front(1000).len()), (&[2; 4][..], 64));
        assert!(block.bytes()[32..].iter().all(|b| *b == 0));
        let zeroed_block = cache.alloc_block(Gfp::ZERO).unwrap();
        assert!(zeroed_block.bytes().iter().all(|b| *b == 0));
    }
}
