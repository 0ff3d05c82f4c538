//! Frames, the descriptors of pages, and the table that contains the frame of every page. A page's metadata is in its
//! frame, never in the page.
//!
//! ```text
//!  0        8       12      16        24                                                      64
//!  | link   | state | head  | owner   | data (40 bytes for the owner of the block)            |
//! ```
//!
//! Rules of access:
//!
//! | field | while free | while in a per-CPU magazine | while allocated |
//! |---|---|---|---|
//! | `link` | the zone, under its lock | none | the owner of the block |
//! | `state` | the zone, under its lock | the thread that takes the page out | the thread that frees it; others read |
//! | `head` | none | none | written before the block is handed out; any thread reads |
//! | `owner`, `data` | none | none | the owner of the block |
//!
//! A frame's `state` is one word, so that a free can claim the block with one compare-and-exchange. If two threads free
//! the same block, the later free is reported as a double free. Reading the frame of any page in the range never
//! faults. Frames of never-committed pages read as zero, which encodes the kind [`Kind::Inside`].
//!
//! The frames of a block are committed and decommitted together with the block. Frames take 64 bytes per committed page
//! (1.6 %), and no memory for reserved pages.

use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};
use core::ops::Range;
use memory::{Memory, PageLife};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, Fixed, MODEL, Ordering::*, UnsafeCell};

// Under a checker, frames consist of cells.
#[cfg_attr(any(loom, shuttle), path = "frame/cells.rs")]
mod memory;

/// The state of a page, as its frame records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The page starts no block: it is inside a block, uncommitted, or outside all zones.
    Inside = 0,
    /// The page is the first page of a block on a free list.
    Free = 1,
    /// The page is the first page of a block in a per-CPU magazine, or of a block that is moving between its owner and
    /// the zone.
    PerCpu = 2,
    /// The page is the first page of an allocated block.
    Allocated = 3,
}

/// The state of a frame: the kind of the page. The state of a block's first page also contains the block's order,
/// migrate type and flags.
///
/// Bits 0..2 are the page's kind, bits 2..6 the block's order, and bits 6..8 its migrate type. Bit 8 marks an allocated
/// compound block, bit 9 a discarded free block, and bit 10 a block of zeroed memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(u32);

impl State {
    /// The state of a page that is not the first page of a block.
    pub(crate) const INSIDE_BLOCK: Self = Self(0);

    pub(crate) const fn new(kind: Kind, order: Order, mobility: MigrateType) -> Self {
        Self(kind as u32 | (order.get() as u32) << 2 | (mobility as u32) << 6)
    }
    pub(crate) const fn with_compound(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 8) | (yes as u32) << 8)
    }
    /// The kind of the page.
    pub const fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Inside,
            1 => Kind::Free,
            2 => Kind::PerCpu,
            _ => Kind::Allocated,
        }
    }
    /// The order of the block at this page; meaningless for [`Kind::Inside`].
    pub const fn order(self) -> Order {
        match Order::new((self.0 >> 2 & 15) as u8) {
            Some(order) => order,
            None => Order::MAX,
        }
    }
    /// For a free block, the migrate type of its list; for an allocated block, the requested migrate type.
    pub const fn migrate_type(self) -> MigrateType {
        MigrateType::from_bits(self.0 >> 6)
    }
    /// Returns `true` for a compound block, in which every page records the first page
    /// ([`Gfp::COMP`](crate::Gfp::COMP)).
    pub const fn is_compound(self) -> bool {
        self.0 >> 8 & 1 == 1
    }
    pub(crate) const fn with_order(self, order: Order) -> Self {
        Self(self.0 & !(0b1111 << 2) | (order.get() as u32) << 2)
    }
    pub(crate) const fn with_type(self, mobility: MigrateType) -> Self {
        Self(self.0 & !(0b11 << 6) | (mobility as u32) << 6)
    }
    pub(crate) const fn discarded(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 9) | (yes as u32) << 9)
    }
    /// Returns `true` if the OS took back the memory of the free block while the block stayed committed.
    pub const fn is_discarded(self) -> bool {
        self.0 >> 9 & 1 == 1
    }
    pub(crate) const fn zero(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 10) | (yes as u32) << 10)
    }
    /// Returns `true` if the block's memory is known to be zero, because it was not used since the OS supplied or
    /// discarded it. For an allocated block, `is_zero` reports the state of the memory at the time of the allocation.
    pub const fn is_zero(self) -> bool {
        self.0 >> 10 & 1 == 1
    }
    /// Returns `true` if this is the state of a free block of order `order`.
    #[inline(always)]
    pub(crate) const fn is_free(self, order: Order) -> bool {
        self.0 & 0b11_1111 == Kind::Free as u32 | (order.get() as u32) << 2
    }
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.kind() {
            Kind::Inside => f.write_str("Inside"),
            kind => {
                let discarded = if self.is_discarded() { " discarded" } else { "" };
                write!(f, "{kind:?} order {} {:?}{discarded}", self.order(), self.migrate_type())
            }
        }
    }
}

/// The list links of a frame: its next and previous page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Link {
    /// The number of the next page on the list plus one; 0 at the tail.
    next: u32,
    /// The number of the previous page on the list plus one; 0 at the head.
    prev: u32,
}

impl Link {
    const fn pack(pfn: Option<Pfn>) -> u32 {
        match pfn {
            Some(pfn) => pfn.get() + 1,
            None => 0,
        }
    }
    const fn unpack(raw: u32) -> Option<Pfn> {
        if raw == 0 { None } else { Some(Pfn::new(raw - 1)) }
    }
    /// Creates a link between `prev` and `next`.
    pub const fn new(prev: Option<Pfn>, next: Option<Pfn>) -> Self {
        Self { next: Self::pack(next), prev: Self::pack(prev) }
    }
    /// The next frame on the list, towards the tail.
    pub const fn next(self) -> Option<Pfn> {
        Self::unpack(self.next)
    }
    /// The previous frame on the list, towards the head.
    pub const fn prev(self) -> Option<Pfn> {
        Self::unpack(self.prev)
    }
}

/// The 40 bytes of a frame that the owner of the block may use freely.
pub type OwnerData = [u64; 5];

/// The descriptor of one page, like the kernel's `struct page`.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    link: UnsafeCell<Link>,
    state: AtomicU32,
    /// The first page of the block that contains this page: exact for the block's owner, a hint for other threads.
    head: Fixed,
    owner: AtomicPtr<u8>,
    data: UnsafeCell<OwnerData>,
    life: PageLife,
}

// A frame's size is a power of two and at most a cache line. The table relies on zero being a valid frame.
const _: () = assert!(MODEL || size_of::<Frame>() == 64);

// SAFETY: only `unsafe` methods and raw pointers access the cells, under the module's rules.
unsafe impl Sync for Frame {}
// SAFETY: `owner` is an address, and dropping a frame drops nothing through it.
unsafe impl Send for Frame {}

impl Frame {
    /// For debuggers: size of a frame in bytes, and the byte offsets of link, state, head, owner and data.
    pub const LAYOUT: [usize; 6] = [
        size_of::<Self>(),
        core::mem::offset_of!(Self, link),
        core::mem::offset_of!(Self, state),
        core::mem::offset_of!(Self, head),
        core::mem::offset_of!(Self, owner),
        core::mem::offset_of!(Self, data),
    ];

    /// Returns the links to the next and the previous frame on the list.
    ///
    /// # Safety
    /// The caller must own the allocated block, or hold the lock of the frame's list.
    #[inline(always)]
    pub unsafe fn link(&self) -> Link {
        // SAFETY: the caller owns the link, so no other thread writes it.
        self.link.with(|link| unsafe { *link })
    }
    /// Sets the links to the next and the previous frame on the list.
    ///
    /// # Safety
    /// The caller must own the allocated block, or hold the lock of the frame's list.
    #[inline(always)]
    pub unsafe fn set_link(&self, link: Link) {
        // SAFETY: the caller owns the link, so no other thread accesses it.
        self.link.with_mut(|own| unsafe { *own = link });
    }

    /// Returns the frame's current state. The owner of the block sees the exact state, and other threads may see a
    /// stale state.
    #[inline(always)]
    pub fn state(&self) -> State {
        // Relaxed: a thread that acts on the state owns the block, or holds the zone's lock (which orders the
        // state), or claims the block by CAS.
        State(self.state.load(Relaxed))
    }
    #[inline(always)]
    pub(crate) fn set_state(&self, state: State) {
        // Relaxed: the writer owns the block, or holds the zone's lock, which orders the store.
        self.state.store(state.0, Relaxed);
    }
    /// Changes the state from `from` to `to`, or returns the current state as an error.
    #[inline(always)]
    pub(crate) fn claim(&self, from: State, to: State) -> Result<(), State> {
        // Relaxed: the CAS only decides between two frees of one block. The magazine or lock that receives the freed
        // page orders the page's data.
        self.state.compare_exchange(from.0, to.0, Relaxed, Relaxed).map(drop).map_err(State)
    }

    /// Returns the first page of the block with which this page was last allocated. While the block is allocated, the
    /// result is exact for its first page, and for all pages of a compound block.
    #[inline(always)]
    pub fn head(&self) -> Pfn {
        Pfn::new(self.head.get())
    }
    #[inline(always)]
    pub(crate) fn set_head(&self, head: Pfn) {
        self.head.set(head.get());
    }

    /// Returns the owner pointer of the block that starts at this page; null for a block without an owner. When the
    /// block is freed, its owner pointer is reset to null.
    #[inline(always)]
    pub fn owner(&self) -> *mut u8 {
        // Acquire: pairs with the Release in `set_owner`, so that the reader finds an initialised owner. A holder of
        // the block needs no ordering to read the owner. A check of an unknown pointer relies on this Acquire to find
        // an initialised owner.
        self.owner.load(Acquire)
    }
    /// Sets the owner pointer of the block that starts at this page.
    ///
    /// Setting the owner is unsafe, because readers dereference the owner pointer to find caches:
    ///
    /// ```compile_fail,E0133
    /// use uslab_buddy::{Frame, PageAllocator, PageConfig, Pfn};
    /// let pages = PageAllocator::new(PageConfig::default_for(uslab_magazine::Cpus::os())).unwrap();
    /// pages.frame(Pfn::new(0)).set_owner(core::ptr::null_mut());
    /// ```
    ///
    /// # Safety
    /// The caller must own the page's block, because the frame of another page may be read-only, or another thread may
    /// read its owner. The pointer `owner` must be null, or point to the type that all readers of owners in this
    /// allocator expect. The target of `owner` must stay valid until another owner is set.
    #[inline(always)]
    pub unsafe fn set_owner(&self, owner: *mut u8) {
        // Release: pairs with the Acquire in `owner`.
        self.owner.store(owner, Release);
    }

    /// Returns the bytes of the frame that the block's owner may use. When a block is allocated, the contents of its
    /// owner's bytes are unspecified.
    #[inline(always)]
    pub fn data(&self) -> &UnsafeCell<OwnerData> {
        self.touch();
        &self.data
    }

    /// Under loom or shuttle, fails the model if the page is free, or if this call races with an earlier allocation or
    /// free of the page. In normal builds, `touch` does nothing.
    #[inline(always)]
    pub fn touch(&self) {
        self.life.touch();
    }
    /// Records that the page was allocated. Under loom or shuttle, fails the model if the page was already allocated,
    /// or if its last free races with this call.
    #[inline(always)]
    pub(crate) fn mark_page_allocated(&self) {
        self.life.set(true);
    }
    #[inline(always)]
    pub(crate) fn mark_page_freed(&self) {
        self.life.set(false);
    }
    /// Records that the page's memory is returned to the OS. Under loom or shuttle, fails the model if the page is
    /// allocated, or if this call races with its previous or next owner.
    pub(crate) fn mark_discarded_page(&self) {
        self.life.discard();
    }
}

/// The frames of all pages of an allocator's range.
#[derive(Debug)]
pub struct FrameTable {
    frames: core::ptr::NonNull<Frame>,
    /// Number of frames in the table; may shrink.
    len: Fixed,
    memory: Memory,
}

// SAFETY: `frames` points into `memory`, which the table owns, and `Frame` is Send and Sync.
unsafe impl Send for FrameTable {}
// SAFETY: `frames` points into `memory`, which the table owns, and `Frame` is Send and Sync.
unsafe impl Sync for FrameTable {}

impl FrameTable {
    /// Creates a frame table for `len` pages. If `apart` is set, the table can grow later, because it is placed
    /// [apart](Region::reserve_apart) from other mappings. Returns `None` if the OS refuses the address space.
    pub(crate) fn new(
        len: u32,
        apart: Option<usize>,
        addresses: &mut crate::region::Reservation,
    ) -> Option<Self> {
        let memory = Memory::new(len, apart, addresses)?;
        Some(Self { frames: memory.first(), len: Fixed::new(len), memory })
    }

    /// Number of bytes of address space that the table reserves.
    pub fn reserved(&self) -> usize {
        self.memory.bytes()
    }
    /// Number of frames, committed or not.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len.get()
    }
    /// Returns `true` if the table has no frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the frame of page `pfn`. Returns `None` if the table has no such page.
    #[inline(always)]
    pub fn get(&self, pfn: Pfn) -> Option<&Frame> {
        // SAFETY: the frame is inside the table, whose memory lives as long as the table and is always readable.
        // Uncommitted memory reads as zero, which is a valid frame.
        (pfn.get() < self.len()).then(|| unsafe { self.frames.add(pfn.index()).as_ref() })
    }
    /// Returns the frame of page `pfn`. The frame may be written only while the block that contains the page is
    /// committed.
    ///
    /// # Panics
    /// Panics if the table has no frame for `pfn`. A `Pfn` that the allocator returned always has a frame.
    #[inline(always)]
    pub fn frame(&self, pfn: Pfn) -> &Frame {
        match self.get(pfn) {
            Some(frame) => frame,
            None => panic!("page {pfn} is outside the {} pages of the range", self.len()),
        }
    }

    /// Makes the frames of the pages numbered `pages` writable. Returns `false` if the OS refuses to commit their
    /// memory.
    pub(crate) fn commit(&self, pages: Range<u32>) -> bool {
        self.memory.commit(pages)
    }
    /// Returns to the OS all whole OS pages that the frames of `pages` fill. The frames stay writable, because changing
    /// their protection would split the mapping.
    ///
    /// # Safety
    /// All frames of `pages` must be [`Kind::Inside`], and no thread may access any other field of these frames.
    pub(crate) unsafe fn discard(&self, pages: Range<u32>) {
        // SAFETY: no thread uses the frames, by this function's contract.
        unsafe { self.memory.discard(pages) };
    }
    /// Sets the table's number of frames. Returns the number of frames before the call.
    pub(crate) fn set_len(&self, len: u32) -> u32 {
        let old_len = self.len();
        self.len.set(len);
        old_len
    }
    /// Reserves addresses for the first `len` frames: see [`Region::grow`]. The table's number of frames does not
    /// change.
    pub(crate) fn grow(&self, len: u32) -> bool {
        self.memory.grow(len)
    }
    /// Unmaps the table's addresses after its last frame.
    ///
    /// # Safety
    /// The memory after the last frame must never have been committed, and no thread may read it during the call.
    pub(crate) unsafe fn cut(&self) {
        // SAFETY: no thread uses the part after the last frame, by this function's contract.
        unsafe { self.memory.cut(self.len()) };
    }
}

/// A list of frames, linked through their [`Link`]s. Inserting a frame at either end, or removing any frame, takes
/// O(1).
///
/// A frame list is plain data and has no lock. The owner of the list owns the links of all listed frames. Lists belong
/// to a zone, protected by the zone's lock, or to a node of a cache, protected by the node's lock.
#[derive(Debug, Default)]
pub struct FrameList {
    head: Option<Pfn>,
    tail: Option<Pfn>,
    len: u32,
}

impl FrameList {
    /// For debuggers: a list's size in bytes, and the byte offsets of its first page number and its length. An empty
    /// list has no valid first page number.
    pub const LAYOUT: [usize; 3] = {
        // SAFETY: a `Some` of a number without padding has no uninitialised bytes.
        let first: [u32; 2] = unsafe { core::mem::transmute(Some(Pfn::new(u32::MAX - 1))) };
        let number = if first[0] == u32::MAX - 1 { 0 } else { size_of::<u32>() };
        [size_of::<Self>(), core::mem::offset_of!(Self, head) + number, core::mem::offset_of!(Self, len)]
    };

    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
    /// Number of frames on the list.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }
    /// Returns `true` if the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Returns the page whose frame is first on the list.
    #[inline]
    pub fn front(&self) -> Option<Pfn> {
        self.head
    }
    /// Returns the page whose frame is last on the list.
    pub fn back(&self) -> Option<Pfn> {
        self.tail
    }

    /// Inserts page `pfn` at the head of the list.
    ///
    /// # Safety
    /// The caller must own the links of page `pfn` and of all listed frames. Page `pfn` must not be on any list.
    #[inline]
    pub unsafe fn push_front(&mut self, table: &FrameTable, pfn: Pfn) {
        // SAFETY: the caller owns the links.
        unsafe {
            table.frame(pfn).set_link(Link::new(None, self.head));
            match self.head {
                Some(old) => {
                    let frame = table.frame(old);
                    frame.set_link(Link::new(Some(pfn), frame.link().next()));
                }
                None => self.tail = Some(pfn),
            }
        }
        self.head = Some(pfn);
        self.len += 1;
    }

    /// Inserts page `pfn` at the tail of the list.
    ///
    /// # Safety
    /// The caller must own the links of page `pfn` and of all listed frames. Page `pfn` must not be on any list.
    #[inline]
    pub unsafe fn push_back(&mut self, table: &FrameTable, pfn: Pfn) {
        // SAFETY: the caller owns the links.
        unsafe {
            table.frame(pfn).set_link(Link::new(self.tail, None));
            match self.tail {
                Some(old) => {
                    let frame = table.frame(old);
                    frame.set_link(Link::new(frame.link().prev(), Some(pfn)));
                }
                None => self.head = Some(pfn),
            }
        }
        self.tail = Some(pfn);
        self.len += 1;
    }

    /// Removes page `pfn` from the list.
    ///
    /// # Safety
    /// Page `pfn` must be on this list, and the caller must own the links of all listed frames.
    #[inline]
    pub unsafe fn remove(&mut self, table: &FrameTable, pfn: Pfn) {
        debug_assert!(self.len > 0, "page {pfn} taken off an empty list");
        // SAFETY: the caller owns the links.
        unsafe {
            let link = table.frame(pfn).link();
            match link.prev() {
                Some(prev) => {
                    let frame = table.frame(prev);
                    frame.set_link(Link::new(frame.link().prev(), link.next()));
                }
                None => self.head = link.next(),
            }
            match link.next() {
                Some(next) => {
                    let frame = table.frame(next);
                    frame.set_link(Link::new(link.prev(), frame.link().next()));
                }
                None => self.tail = link.prev(),
            }
            table.frame(pfn).set_link(Link::default());
        }
        self.len -= 1;
    }

    /// Removes and returns the first page of the list.
    ///
    /// # Safety
    /// The caller must own the links of all listed frames.
    #[inline]
    pub unsafe fn pop_front(&mut self, table: &FrameTable) -> Option<Pfn> {
        let first = self.head?;
        // SAFETY: the page is first on this list, and the caller owns the links.
        unsafe { self.remove(table, first) };
        Some(first)
    }

    /// Iterates over the pages whose frames are on the list, head first. The iteration visits at most as many pages as
    /// the list's length, even if the links are damaged.
    ///
    /// # Safety
    /// The caller must own the links of all listed frames while the iterator is in use.
    pub unsafe fn iter<'t>(&self, table: &'t FrameTable) -> impl Iterator<Item = Pfn> + use<'t> {
        let mut next = self.head;
        (0..self.len).map_while(move |_| {
            let this = next?;
            // SAFETY: the caller owns the links.
            next = unsafe { table.get(this)?.link() }.next();
            Some(this)
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Backend;
    use std::collections::VecDeque;

    fn table(len: u32) -> FrameTable {
        let table = FrameTable::new(
            len,
            None,
            &mut crate::region::Reservation::none(Backend::Heap, &crate::Faults::default()),
        )
        .unwrap();
        assert!(table.commit(0..len));
        table
    }

    #[test]
    fn frame_state_round_trips() {
        assert_eq!(State::INSIDE_BLOCK.kind(), Kind::Inside);
        for kind in [Kind::Free, Kind::PerCpu, Kind::Allocated] {
            for order in Order::ZERO.through(Order::MAX) {
                for mobility in MigrateType::ALL {
                    let state = State::new(kind, order, mobility).with_compound(true);
                    assert_eq!((state.kind(), state.order()), (kind, order));
                    assert_eq!((state.migrate_type(), state.is_compound()), (mobility, true));
                    assert_eq!(state.is_free(order), kind == Kind::Free);
                    assert!(!state.with_compound(false).is_compound());
                    let discarded = state.discarded(true);
                    assert!(discarded.is_discarded() && discarded.discarded(false) == state);
                    assert_eq!(discarded.is_free(order), kind == Kind::Free);
                }
            }
        }
    }

    #[test]
    fn frame_list_pushes_and_pops_at_both_ends() {
        let table = table(64);
        let (mut list, mut shadow, mut seed) = (FrameList::new(), VecDeque::new(), 1_u32);
        assert!(list.is_empty());
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pfn = Pfn::new(seed >> 8 & 63);
            let at = shadow.iter().position(|p| *p == pfn);
            // SAFETY: the test owns all links, and `shadow` has the pages on the list.
            unsafe {
                match (at, seed >> 20 & 3) {
                    (Some(at), _) => {
                        list.remove(&table, pfn);
                        shadow.remove(at);
                    }
                    (None, 0) => {
                        list.push_front(&table, pfn);
                        shadow.push_front(pfn);
                    }
                    (None, 1) => assert_eq!(list.pop_front(&table), shadow.pop_front()),
                    (None, _) => {
                        list.push_back(&table, pfn);
                        shadow.push_back(pfn);
                    }
                }
                assert_eq!((list.len() as usize, list.is_empty()), (shadow.len(), shadow.is_empty()));
                assert_eq!((list.front(), list.back()), (shadow.front().copied(), shadow.back().copied()));
                assert!(list.iter(&table).eq(shadow.iter().copied()));
            }
        }
    }

    #[test]
    fn frame_table_reports_how_many_frames_it_contains() {
        for len in [0, 1, 100] {
            let table = table(len);
            assert_eq!((table.len(), table.is_empty()), (len, len == 0));
        }
    }

    #[test]
    fn committing_a_frame_commits_the_whole_os_page_around_it() {
        let faults = crate::Faults::new(1);
        let table =
            FrameTable::new(1 << 20, None, &mut crate::region::Reservation::none(Backend::Os, &faults))
                .unwrap();
        faults.arm(crate::faults::Rule::parse_all("commit:space=4096", &crate::faults::POINTS).unwrap());
        assert!(table.commit((1 << 19) + 3..(1 << 19) + 5) && !table.commit(0..1));
    }

    #[test]
    fn frames_can_be_read_before_they_are_committed() {
        let table = FrameTable::new(
            1 << 20,
            None,
            &mut crate::region::Reservation::none(Backend::Os, &crate::Faults::default()),
        )
        .unwrap();
        assert_eq!(table.frame(Pfn::new(77_777)).state().kind(), Kind::Inside);
        assert!(table.get(Pfn::new(1 << 20)).is_none());
    }
}
