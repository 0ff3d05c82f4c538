//! One descriptor a page, and the table of them: all that is known about a page lies here, never in the page.
//!
//! ```text
//!  0        8       12      16        24                                                      64
//!  | link   | state | head  | owner   | data (40 bytes for the owner of the block)            |
//! ```
//!
//! Who may touch what:
//!
//! | field | while free | while in a per-CPU magazine | while allocated |
//! |---|---|---|---|
//! | `link` | the zone, under its lock | nobody | the owner of the block |
//! | `state` | the zone, under its lock | the thread that takes the page out | the thread that frees it; others read |
//! | `head` | nobody | nobody | written before the block is handed out; anyone reads |
//! | `owner`, `data` | nobody | nobody | the owner of the block |
//!
//! `state` is one word so that a free can claim the block by one compare-and-exchange: of two threads that free the
//! same block, one is told that it is a double free. Frames of memory that was never committed read as zero, which
//! is [`Kind::Inside`]: no address of the range makes reading a frame a fault.
//!
//! The table's own memory is committed with the block of pages that it describes, and its backing goes back with it:
//! 64 bytes a page are 1.6 % of the memory in use, not of the memory reserved.

use crate::gfp::MigrateType;
use crate::pfn::{Order, Pfn};
use core::ops::Range;
use memory::{Life, Memory};
use uslab_magazine::sync::{AtomicPtr, AtomicU32, Fixed, MODEL, Ordering::*, UnsafeCell, planted};

// A checker has cells of its own.
#[cfg_attr(any(loom, shuttle), path = "frame/cells.rs")]
mod memory;

/// What a frame says about its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Not the first page of a block, or not committed, or in no zone.
    Inside = 0,
    /// The first page of a block on a free list.
    Free = 1,
    /// The first page of a block in a per-CPU magazine, or on its way between its owner and the zone.
    PerCpu = 2,
    /// The first page of an allocated block.
    Allocated = 3,
}

/// A frame's state: what the page is, and for the first page of a block which block.
///
/// Bits: kind 0..2, order 2..6, migrate type 6..8; of an allocated block compound 8, of a free one discarded 9; zero 10.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(u32);

impl State {
    /// Inside a block.
    pub(crate) const INSIDE: Self = Self(0);

    pub(crate) const fn new(kind: Kind, order: Order, mobility: MigrateType) -> Self {
        Self(kind as u32 | (order.get() as u32) << 2 | (mobility as u32) << 6)
    }
    pub(crate) const fn compound(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 8) | (yes as u32) << 8)
    }
    /// What the page is.
    pub const fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Inside,
            1 => Kind::Free,
            2 => Kind::PerCpu,
            _ => Kind::Allocated,
        }
    }
    /// The block's order; meaningless for [`Kind::Inside`].
    pub const fn order(self) -> Order {
        match Order::new((self.0 >> 2 & 15) as u8) {
            Some(order) => order,
            None => Order::MAX,
        }
    }
    /// The list that a free block is on; the mobility that an allocated block was asked with.
    pub const fn migrate_type(self) -> MigrateType {
        MigrateType::from_bits(self.0 >> 6)
    }
    /// Whether the pages of the block know its first page ([`Gfp::COMP`](crate::Gfp::COMP)).
    pub const fn is_compound(self) -> bool {
        self.0 >> 8 & 1 == 1
    }
    /// The same of another order.
    pub(crate) const fn of_order(self, order: Order) -> Self {
        Self(self.0 & !(0b1111 << 2) | (order.get() as u32) << 2)
    }
    /// The same of another type.
    pub(crate) const fn of_type(self, mobility: MigrateType) -> Self {
        Self(self.0 & !(0b11 << 6) | (mobility as u32) << 6)
    }
    pub(crate) const fn discarded(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 9) | (yes as u32) << 9)
    }
    /// Whether the memory of a free block was given back to the system while the block stayed committed.
    pub const fn is_discarded(self) -> bool {
        self.0 >> 9 & 1 == 1
    }
    pub(crate) const fn zero(self, yes: bool) -> Self {
        Self(self.0 & !(1 << 10) | (yes as u32) << 10)
    }
    /// True if the memory is known to be zero: no user has had it since the system gave it, or took its contents. Of an allocated block, if
    /// it was so when it was handed out.
    pub const fn is_zero(self) -> bool {
        self.0 >> 10 & 1 == 1
    }
    /// Whether this is a free block of exactly this order.
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

/// A frame's place on a list: the neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Link {
    /// The next page number plus one; 0 at the tail.
    next: u32,
    /// The previous page number plus one; 0 at the head.
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
    /// Between `prev` and `next`.
    pub const fn new(prev: Option<Pfn>, next: Option<Pfn>) -> Self {
        Self { next: Self::pack(next), prev: Self::pack(prev) }
    }
    /// Towards the tail.
    pub const fn next(self) -> Option<Pfn> {
        Self::unpack(self.next)
    }
    /// Towards the head.
    pub const fn prev(self) -> Option<Pfn> {
        Self::unpack(self.prev)
    }
}

/// The 40 bytes of a frame that belong to the owner of the block.
pub type OwnerData = [u64; 5];

/// The descriptor of one page.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    link: UnsafeCell<Link>,
    state: AtomicU32,
    /// The first page of the block; a hint for everybody but the block's owner, who sees it exact.
    head: Fixed,
    owner: AtomicPtr<u8>,
    data: UnsafeCell<OwnerData>,
    life: Life,
}

// A power of two and no more than a cache line; the table relies on zero being a valid frame.
const _: () = assert!(MODEL || size_of::<Frame>() == 64);

// SAFETY: the cells are reached through `unsafe` methods or as raw pointers only, under the rules of the module.
unsafe impl Sync for Frame {}
// SAFETY: `owner` is an address and nothing is dropped through it.
unsafe impl Send for Frame {}

impl Frame {
    /// For debuggers: bytes of a frame, and where in it link, state, head, owner and data lie.
    #[doc(hidden)]
    pub const LAYOUT: [usize; 6] = [
        size_of::<Self>(),
        core::mem::offset_of!(Self, link),
        core::mem::offset_of!(Self, state),
        core::mem::offset_of!(Self, head),
        core::mem::offset_of!(Self, owner),
        core::mem::offset_of!(Self, data),
    ];

    /// The frame's neighbours on the list that it is on.
    ///
    /// # Safety
    /// The caller owns the link: it owns the allocated block, or holds the lock of the list that the frame is on.
    #[inline(always)]
    pub unsafe fn link(&self) -> Link {
        // SAFETY: the caller owns the link, so nobody writes it meanwhile.
        self.link.with(|link| unsafe { *link })
    }
    /// Sets the frame's neighbours.
    ///
    /// # Safety
    /// As for [`link`](Frame::link).
    #[inline(always)]
    pub unsafe fn set_link(&self, link: Link) {
        // SAFETY: the caller owns the link, so nobody reads or writes it meanwhile.
        self.link.with_mut(|own| unsafe { *own = link });
    }

    /// What the frame says now. Exact for the owner of the block, a snapshot for everybody else.
    #[inline(always)]
    pub fn state(&self) -> State {
        // Relaxed: whoever acts on it owns the block or holds the zone's lock, which order it; or claims by CAS.
        State(self.state.load(Relaxed))
    }
    #[inline(always)]
    pub(crate) fn set_state(&self, state: State) {
        // Relaxed: as for `state`.
        self.state.store(state.0, Relaxed);
    }
    /// Moves the frame from `from` to `to`, or says what it was instead.
    #[inline(always)]
    pub(crate) fn claim(&self, from: State, to: State) -> Result<(), State> {
        planted!("page marked after it went into the magazine" => return Ok(()));
        planted!("block claimed by load and store" => {
            self.set_state(to);
            return Ok(());
        });
        // Relaxed: decides between two frees of one block; data travels with the page through the magazine or lock.
        self.state.compare_exchange(from.0, to.0, Relaxed, Relaxed).map(drop).map_err(State)
    }

    /// The first page of the block that this page was last handed out in: exact on the first page itself, and on
    /// every page of a compound block, while the block is allocated.
    #[inline(always)]
    pub fn head(&self) -> Pfn {
        Pfn::new(self.head.get())
    }
    #[inline(always)]
    pub(crate) fn set_head(&self, head: Pfn) {
        self.head.set(head.get());
    }

    /// Who owns the block (of its first page): null for plain pages. Cleared when the block is freed.
    #[inline(always)]
    pub fn owner(&self) -> *mut u8 {
        // Acquire: pairs with the Release in `set_owner`, so that whoever finds the owner finds it initialised. A holder of
        // the block has that already; who asks about a stranger's pointer, to refuse it, has nothing else.
        self.owner.load(Acquire)
    }
    /// Says who owns the block.
    ///
    /// Caches are found through it, so safe code must not be able to forge one:
    ///
    /// ```compile_fail,E0133
    /// use uslab_buddy::{Frame, PageAllocator, PageConfig, Pfn};
    /// let pages = PageAllocator::new(PageConfig::default_for(uslab_magazine::Cpus::os())).unwrap();
    /// pages.frame(Pfn::new(0)).set_owner(core::ptr::null_mut());
    /// ```
    ///
    /// # Safety
    /// The caller owns the block that the page is in: frames of other pages may not be writable, and their owner is
    /// looked at by others. `owner` is null, or what all who read owners of this allocator take it for, as long as it
    /// stands here.
    #[inline(always)]
    pub unsafe fn set_owner(&self, owner: *mut u8) {
        // Release: pairs with the Acquire in `owner`.
        self.owner.store(owner, Release);
    }

    /// The bytes for the block's owner; their content is unspecified when the block is handed out.
    #[inline(always)]
    pub fn data(&self) -> &UnsafeCell<OwnerData> {
        self.touch();
        &self.data
    }

    /// Under a checker, fails the model unless the page is allocated and every earlier give and take of it
    /// happens-before this. Empty otherwise.
    #[inline(always)]
    pub fn touch(&self) {
        self.life.touch();
    }
    /// The page is handed out. Under a checker, fails the model if it was out already or if its free races with this.
    #[inline(always)]
    pub(crate) fn page_take(&self) {
        self.life.set(true);
    }
    /// The page comes back.
    #[inline(always)]
    pub(crate) fn page_give(&self) {
        self.life.set(false);
    }
    /// The page's memory is returned to the system. Under a checker, fails the model if the page is out, or if that is not ordered with its
    /// last owner or its next one.
    pub(crate) fn page_discard(&self) {
        self.life.discard();
    }
}

/// The frames of all pages of a range.
#[derive(Debug)]
pub struct FrameTable {
    frames: core::ptr::NonNull<Frame>,
    /// Becomes less only.
    len: Fixed,
    memory: Memory,
}

// SAFETY: `frames` points into `memory`, which the table owns; `Frame` is Send and Sync.
unsafe impl Send for FrameTable {}
// SAFETY: as above.
unsafe impl Sync for FrameTable {}

impl FrameTable {
    /// A table of `len` frames, [apart](Region::apart) from others if it is to grow; or `None` when the address space is refused.
    pub(crate) fn new(
        len: u32,
        apart: Option<usize>,
        addresses: &mut crate::region::Reservation,
    ) -> Option<Self> {
        let memory = Memory::new(len, apart, addresses)?;
        Some(Self { frames: memory.first(), len: Fixed::new(len), memory })
    }

    /// Bytes of addresses that it has.
    #[doc(hidden)]
    pub fn reserved(&self) -> usize {
        self.memory.bytes()
    }
    /// How many frames there are, committed or not.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len.get()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The frame of page `pfn`; `None` outside the range.
    #[inline(always)]
    pub fn get(&self, pfn: Pfn) -> Option<&Frame> {
        // SAFETY: inside the table, whose memory is readable from the start (it reads as zero until it is
        // committed, and zero is a valid frame) and lives as long as the table.
        (pfn.get() < self.len()).then(|| unsafe { self.frames.add(pfn.index()).as_ref() })
    }
    /// The frame of page `pfn`. Writing to it needs its block to be committed.
    ///
    /// # Panics
    /// Outside the range: a `Pfn` of this allocator is never.
    #[inline(always)]
    pub fn frame(&self, pfn: Pfn) -> &Frame {
        match self.get(pfn) {
            Some(frame) => frame,
            None => panic!("page {pfn} is outside the {} pages of the range", self.len()),
        }
    }

    /// Makes the frames of `pages` (page numbers) writable; `false` when the OS refuses.
    pub(crate) fn commit(&self, pages: Range<u32>) -> bool {
        self.memory.commit(pages)
    }
    /// Gives the memory of the frames of `pages` back where they fill whole OS pages. They stay writable: a
    /// mapping less to split.
    ///
    /// # Safety
    /// All of them say [`Kind::Inside`] and nobody uses their other fields.
    pub(crate) unsafe fn discard(&self, pages: Range<u32>) {
        // SAFETY: by contract.
        unsafe { self.memory.discard(pages) };
    }
    /// From now on there are so many frames: how many there were.
    pub(crate) fn set_len(&self, len: u32) -> u32 {
        let had = self.len();
        self.len.set(len);
        had
    }
    /// Has addresses for so many frames, of which there are as many as before: see [`Region::grow`].
    pub(crate) fn grow(&self, len: u32) -> bool {
        self.memory.grow(len)
    }
    /// Gives the addresses behind the frames that there are back.
    ///
    /// # Safety
    /// Nothing there was ever committed; and nobody looks at a frame there meanwhile.
    pub(crate) unsafe fn cut(&self) {
        // SAFETY: by contract.
        unsafe { self.memory.cut(self.len()) };
    }
}

/// A list of frames, linked through their [`Link`]s: O(1) at both ends and for removing any.
///
/// The list itself is plain data; whoever owns it (a zone under its lock, a cache's node under its) owns the links
/// of the frames on it.
#[derive(Debug, Default)]
pub struct FrameList {
    head: Option<Pfn>,
    tail: Option<Pfn>,
    len: u32,
}

impl FrameList {
    /// For debuggers: bytes of a list, and where in it the number of its first page lies, which is one if the list is not empty,
    /// and where its length.
    #[doc(hidden)]
    pub const LAYOUT: [usize; 3] = {
        // SAFETY: a `Some` of a number without padding has no bytes that are not initialised.
        let first: [u32; 2] = unsafe { core::mem::transmute(Some(Pfn::new(u32::MAX - 1))) };
        let number = if first[0] == u32::MAX - 1 { 0 } else { size_of::<u32>() };
        [size_of::<Self>(), core::mem::offset_of!(Self, head) + number, core::mem::offset_of!(Self, len)]
    };

    /// An empty list.
    pub const fn new() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
    /// Frames on the list.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }
    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The first frame's page.
    #[inline]
    pub fn front(&self) -> Option<Pfn> {
        self.head
    }
    /// The last frame's page.
    pub fn back(&self) -> Option<Pfn> {
        self.tail
    }

    /// Puts `pfn` before all others.
    ///
    /// # Safety
    /// The caller owns the links of `pfn` and of all frames on the list, and `pfn` is on no list.
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

    /// Puts `pfn` behind all others.
    ///
    /// # Safety
    /// As for [`push_front`](FrameList::push_front).
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

    /// Takes `pfn` off the list.
    ///
    /// # Safety
    /// `pfn` is on this list, and the caller owns the links of all frames on it.
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

    /// Takes the first one off.
    ///
    /// # Safety
    /// The caller owns the links of all frames on the list.
    #[inline]
    pub unsafe fn pop_front(&mut self, table: &FrameTable) -> Option<Pfn> {
        let first = self.head?;
        // SAFETY: the first one is on the list; the caller owns the links.
        unsafe { self.remove(table, first) };
        Some(first)
    }

    /// The pages on the list, head first. Ends after `len` of them even if the links are damaged.
    ///
    /// # Safety
    /// The caller owns the links of all frames on the list as long as the iterator is used.
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
    fn a_state_gives_back_what_it_was_made_of() {
        assert_eq!(State::INSIDE.kind(), Kind::Inside);
        for kind in [Kind::Free, Kind::PerCpu, Kind::Allocated] {
            for order in Order::ZERO.through(Order::MAX) {
                for mobility in MigrateType::ALL {
                    let state = State::new(kind, order, mobility).compound(true);
                    assert_eq!((state.kind(), state.order()), (kind, order));
                    assert_eq!((state.migrate_type(), state.is_compound()), (mobility, true));
                    assert_eq!(state.is_free(order), kind == Kind::Free);
                    assert!(!state.compound(false).is_compound());
                    let discarded = state.discarded(true);
                    assert!(discarded.is_discarded() && discarded.discarded(false) == state);
                    assert_eq!(discarded.is_free(order), kind == Kind::Free);
                }
            }
        }
    }

    #[test]
    fn a_frame_list_is_a_double_ended_queue() {
        let table = table(64);
        let (mut list, mut shadow, mut seed) = (FrameList::new(), VecDeque::new(), 1_u32);
        assert!(list.is_empty());
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pfn = Pfn::new(seed >> 8 & 63);
            let at = shadow.iter().position(|p| *p == pfn);
            // SAFETY: the test owns all links, and tracks in `shadow` which pages are on the list.
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
    fn a_table_says_how_many_frames_it_has() {
        for len in [0, 1, 100] {
            let table = table(len);
            assert_eq!((table.len(), table.is_empty()), (len, len == 0));
        }
    }

    #[test]
    fn frames_are_committed_with_the_page_that_they_lie_in_and_no_other() {
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
