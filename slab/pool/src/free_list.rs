//! A free list that is stored in free memory: each free slot contains a pointer to the next free slot.
//!
//! ```text
//!          +---------+---------+---------+---------+
//!          | 0x20    | 0x40    | 0x60    | null    |      slots of 32 bytes, all free
//!          +---------+---------+---------+---------+
//! address: 0x0       0x20      0x40      0x60
//!  head ---^
//! ```
//!
//! A slot in use contains no link, so the list costs only one word for its head. [`obtain`](FreeList::obtain) returns
//! the slot that was freed last, because that slot is probably still in the CPU's cache. The list does not own the
//! memory of its slots, and does not store the size of a slot. Slots from several memory ranges may be freed to one
//! list.
//!
//! Source: Reinalter, "Memory allocation strategies: a pool allocator" (2012); its `Freelist` is the basis of the
//! author's fixed and growing pools.

use super::error::PoolError;
use super::slot::SlotLayout;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The head of a chain of free slots, which takes one word. See the [module](self).
///
/// Example: a list for 1,024 bytes on the stack, with objects of 32 bytes at multiples of 8:
///
/// ```
/// use core::mem::MaybeUninit;
/// use core::ptr::NonNull;
/// use uslab_pool::FreeList;
///
/// #[repr(align(8))]
/// struct Memory([MaybeUninit<u8>; 1024]);
///
/// let mut memory = Memory([const { MaybeUninit::uninit() }; 1024]);
/// let range = NonNull::slice_from_raw_parts(NonNull::from(&mut memory.0).cast::<u8>(), 1024);
/// // SAFETY: only the list uses the memory while it exists.
/// let mut list = unsafe { FreeList::new(range, 32, 8, 0) }?;
/// assert_eq!(list.chain().count(), 32);
///
/// let object0 = list.obtain().unwrap();
/// let object1 = list.obtain().unwrap();
/// assert_eq!(object1.addr().get() - object0.addr().get(), 32);
/// // In any order.
/// // SAFETY: both were obtained above and are not used any more.
/// unsafe {
///     list.give(object1);
///     list.give(object0);
/// }
/// assert_eq!(list.obtain(), Some(object0));
/// # Ok::<(), uslab_pool::PoolError>(())
/// ```
///
/// # Invariants
/// Each slot of the chain is free, writable, large enough for a link, and occurs once in the chain.
#[derive(Debug)]
#[doc(alias = "Freelist")]
pub struct FreeList {
    head: Option<NonNull<u8>>,
}

// SAFETY: only the list can access the slots of the chain.
unsafe impl Send for FreeList {}

impl FreeList {
    /// Makes an empty list.
    pub const fn empty() -> Self {
        Self { head: None }
    }

    /// Makes a list of the slots of `memory`, in ascending order. Each slot has room for an object of `size` bytes,
    /// whose byte at `offset` is at a multiple of `align`. Bytes before the first slot and after the last slot are not
    /// used. If the memory is too small for a slot, the list is empty.
    ///
    /// Cost: the call writes to each slot.
    ///
    /// # Errors
    /// Returns the errors of [`SlotLayout::new`].
    ///
    /// # Safety
    /// Until the list is dropped, the memory must be valid for reads and writes, and must only be used through this
    /// list.
    pub unsafe fn new(
        memory: NonNull<[u8]>,
        size: usize,
        align: usize,
        offset: usize,
    ) -> Result<Self, PoolError> {
        let slots = SlotLayout::new(size, align)?.with_offset(offset);
        let (first, bytes) = slots.place(memory);
        let mut list = Self::empty();
        // SAFETY: this number of slots fits into the memory, which belongs to the list by this function's
        // contract.
        unsafe { list.thread(first, slots.stride(), bytes / slots.stride()) };
        Ok(list)
    }

    /// Inserts `count` slots at the front of the chain; they begin at `first` and are `stride` bytes apart. After the
    /// call, `first` is the head of the chain.
    ///
    /// # Safety
    /// The slots must be valid for reads and writes, must be free, and must not be on a list. No code may use the slots
    /// before it obtains them from the list.
    pub(crate) unsafe fn thread(&mut self, first: NonNull<u8>, stride: usize, count: usize) {
        for slot in (0..count).rev() {
            // SAFETY: the slot is part of the memory, and is free by this function's contract.
            unsafe { self.give(first.add(slot * stride)) };
        }
    }

    /// Takes the most recently freed slot. Returns `None` if the list is empty. The bytes of the slot are unspecified;
    /// the first bytes are an old link.
    ///
    /// Cost: one load from the slot.
    #[inline]
    #[doc(alias = "Obtain")]
    pub fn obtain(&mut self) -> Option<NonNull<u8>> {
        let slot = self.head?;
        // SAFETY: the slot is on the chain.
        self.head = unsafe { next(slot) };
        Some(slot)
    }

    /// Frees a slot. Cost: one store to the slot.
    ///
    /// # Safety
    /// The slot must have come from this list, or be a new slot of the same size and alignment. The slot must be valid
    /// for reads and writes until the list is dropped, and the caller must no longer use it.
    #[inline]
    #[doc(alias = "Return")]
    pub unsafe fn give(&mut self, slot: NonNull<u8>) {
        // SAFETY: the slot has room for a link, and is no longer used, by this function's contract.
        unsafe { slot.cast::<Option<NonNull<u8>>>().write_unaligned(self.head) };
        self.head = Some(slot);
    }

    /// Iterates over the free slots in the order in which `obtain` would return them.
    ///
    /// ```
    /// # use core::{mem::MaybeUninit, ptr::NonNull};
    /// # use uslab_pool::FreeList;
    /// let mut memory = [const { MaybeUninit::<u64>::uninit() }; 16];
    /// let start = NonNull::from(&mut memory).cast::<u8>();
    /// // SAFETY: only the list uses the memory while it exists.
    /// let list = unsafe { FreeList::new(NonNull::slice_from_raw_parts(start, 128), 32, 8, 0) }?;
    /// let chain: Vec<_> = list.chain().map(|slot| format!("{:#x}", slot.addr().get() - start.addr().get())).collect();
    /// assert_eq!(chain.join("->") + "->null", "0x0->0x20->0x40->0x60->null");
    /// # Ok::<(), uslab_pool::PoolError>(())
    /// ```
    pub fn chain(&self) -> Chain<'_> {
        Chain { at: self.head, list: PhantomData }
    }
}

/// Returns the link that is stored in a free slot.
///
/// # Safety
/// The slot must be on a chain.
unsafe fn next(slot: NonNull<u8>) -> Option<NonNull<u8>> {
    // SAFETY: `give` wrote a link to the slot, and no other code writes to free slots. Links may be unaligned.
    unsafe { slot.cast::<Option<NonNull<u8>>>().read_unaligned() }
}

/// Iterator over free slots, returned by [`FreeList::chain`]. Cost: one load from each slot.
#[derive(Clone, Debug)]
pub struct Chain<'l> {
    at: Option<NonNull<u8>>,
    list: PhantomData<&'l FreeList>,
}

impl Iterator for Chain<'_> {
    type Item = NonNull<u8>;

    fn next(&mut self) -> Option<NonNull<u8>> {
        let slot = self.at?;
        // SAFETY: the slot is on the chain, which does not change while it is borrowed.
        self.at = unsafe { next(slot) };
        Some(slot)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::mem::MaybeUninit;

    #[repr(align(64))]
    struct Memory<const N: usize>([MaybeUninit<u8>; N]);

    impl<const N: usize> Memory<N> {
        fn new() -> Self {
            Self([const { MaybeUninit::uninit() }; N])
        }
        fn range(&mut self, offset: usize) -> NonNull<[u8]> {
            NonNull::slice_from_raw_parts(NonNull::from(&mut self.0[offset..]).cast(), N - offset)
        }
    }

    /// Makes a list for a test, and returns the offsets of its slots and the list.
    fn list<const N: usize>(
        memory: &mut Memory<N>,
        offset: usize,
        layout: (usize, usize, usize),
    ) -> (Vec<usize>, FreeList) {
        let range = memory.range(offset);
        let start = range.cast::<u8>().addr().get() - offset;
        // SAFETY: the memory lives longer than the tests use the list.
        let list = unsafe { FreeList::new(range, layout.0, layout.1, layout.2) }.unwrap();
        (list.chain().map(|slot| slot.addr().get() - start).collect(), list)
    }

    #[test]
    fn free_list_takes_one_word() {
        assert_eq!(size_of::<FreeList>(), size_of::<usize>());
    }

    #[test]
    fn only_free_slots_contain_list_links() {
        let mut memory = Memory::<128>::new();
        let (chain, mut list) = list(&mut memory, 0, (32, 8, 0));
        assert_eq!(chain, [0x0, 0x20, 0x40, 0x60]);
        let slots: Vec<_> = list.chain().collect();
        for (slot, link) in slots.iter().zip([Some(slots[1]), Some(slots[2]), Some(slots[3]), None]) {
            // SAFETY: the slot is free, and its first word is a link.
            assert_eq!(unsafe { slot.cast::<Option<NonNull<u8>>>().read_unaligned() }, link);
        }
        let obtained = list.obtain().unwrap();
        // SAFETY: the slot belongs to the test, and has 32 bytes.
        unsafe { obtained.write_bytes(0xEE, 32) };
        assert_eq!(list.chain().collect::<Vec<_>>(), slots[1..]);
    }

    #[test]
    fn free_list_is_lifo_and_reports_empty() {
        let mut memory = Memory::<64>::new();
        let (_, mut list) = list(&mut memory, 0, (32, 8, 0));
        let (a, b) = (list.obtain().unwrap(), list.obtain().unwrap());
        assert_eq!((list.obtain(), list.obtain()), (None, None));
        // SAFETY: the slots were obtained above, and are not used.
        unsafe {
            list.give(a);
            list.give(b);
        }
        assert_eq!((list.obtain(), list.obtain(), list.obtain()), (Some(b), Some(a), None));
    }

    #[test]
    fn free_list_uses_only_slots_completely_inside_a_range() {
        assert_eq!(list(&mut Memory::<127>::new(), 0, (32, 8, 0)).0, [0, 32, 64]);
        assert_eq!(list(&mut Memory::<129>::new(), 0, (32, 8, 0)).0, [0, 32, 64, 96]);
        assert_eq!(
            list(&mut Memory::<128>::new(), 1, (32, 8, 0)).0,
            [8, 40, 72],
            "the list has padding in front"
        );
        assert_eq!(list(&mut Memory::<31>::new(), 0, (32, 8, 0)).0, [0; 0]);
        assert_eq!(list(&mut Memory::<0>::new(), 0, (32, 8, 0)).0, [0; 0]);
        assert_eq!(
            list(&mut Memory::<20>::new(), 13, (8, 64, 0)).0,
            [0; 0],
            "the list has padding at the end"
        );
        assert_eq!(list(&mut Memory::<32>::new(), 3, (9, 1, 0)).0, [3, 12, 21], "the links are unaligned");
    }

    #[test]
    fn slots_are_aligned_at_the_given_offset() {
        assert_eq!(list(&mut Memory::<128>::new(), 0, (40, 16, 4)).0, [12, 60]);
    }

    #[test]
    fn free_list_accepts_slots_outside_its_memory_range() {
        let (mut memory, mut other_memory) = (Memory::<32>::new(), Memory::<32>::new());
        let (_, mut old) = list(&mut memory, 0, (32, 8, 0));
        let slot = old.obtain().unwrap();
        let (_, mut new) = list(&mut other_memory, 0, (32, 8, 0));
        // SAFETY: the slot has the list's size and alignment, and its memory lives as long as the list.
        unsafe { new.give(slot) };
        assert_eq!(new.obtain(), Some(slot));
        assert!(new.obtain().is_some() && new.obtain().is_none());
    }
}
